"""A damaged `state.json` beside a runner that lives: the runner knows what belongs there and is asked to write it."""

from __future__ import annotations

from ..errors import HoldfastError
from .connection import Connection, prove
from .driver import Blocking, drive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Whoever looks waits for it, perhaps on an event loop.
_ANSWER_S = 1.0


def rewrite_state(id: str, spec: dict[str, Any]) -> bool:
    """Whether the runner at the endpoint that the spec names proved to be this session's and wrote its record anew."""
    try:
        drive(_ask(id, spec))
    except (HoldfastError, OSError, KeyError, TypeError):
        return False
    return True


async def _ask(id: str, spec: dict[str, Any]) -> None:
    connection = await Connection.open(Blocking(), spec["endpoint"], id, author="host:repair", timeout=_ANSWER_S)
    try:
        prove(id, connection.hello, spec, None)
        # An update that changes nothing: every update writes the record.
        known = connection.hello["status"].get("description")
        await connection.request("update", _ANSWER_S, description=known)
    finally:
        connection.close()
