"""Waiting for the first of several sessions: what is asked of each, and what it was that came true."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...errors import BadArgument
from ...signals.words import spell
from .wording import quoted

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...host.aio import AsyncSession
    from ...model import Woke

# So long a session is silent that is called idle.
IDLE_S = 2.0


def conditions(
    until: str, pattern: str | None, timeout_s: float, cursors: Sequence[str | None]
) -> list[dict[str, Any]]:
    """What to ask of each session; `cursors` is how far the agent has seen them."""
    common: dict[str, Any] = {"timeout": timeout_s}
    if until == "match":
        if pattern is None:
            raise BadArgument("pattern", "is required with until=match", "give a regex")
        common["match"] = pattern
    elif until == "output":
        common["output"] = True
    elif until == "ready":
        common["ready"] = True
    elif until == "idle":
        common["idle"] = _number("pattern", pattern, IDLE_S, "how many seconds of silence, such as 2")
    elif until == "port":
        common["port"] = int(_number("pattern", pattern, None, "the number of the port, such as 3000"))
    if until in ("match", "output"):
        return [{**common, "since": cursor or "0"} for cursor in cursors]
    return [common] * len(cursors)


async def first(
    sessions: Sequence[AsyncSession], conditions: Sequence[dict[str, Any]]
) -> tuple[AsyncSession, Woke] | None:
    """The first of them for which it came true; None when the time was over for several."""
    waits = {asyncio.ensure_future(each.wait(**asked)): each for each, asked in zip(sessions, conditions, strict=True)}
    try:
        pending = set(waits)
        trouble: BaseException | None = None
        late: tuple[AsyncSession, Woke] | None = None
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for each in (each for each in waits if each in done):
                trouble = each.exception() or trouble
                if each.exception() is not None:
                    continue  # the others can still be waited for
                if each.result().reason != "timeout":
                    return waits[each], each.result()
                late = waits[each], each.result()
        if late is None and trouble is not None:
            raise trouble
        return late if len(sessions) == 1 else None
    finally:
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


def why(woke: Woke, pattern: str | None) -> str:
    if woke.reason == "match":
        return f"matched {quoted(woke.match or '')}"
    if woke.reason == "idle":
        return f"quiet for {spell(float(pattern or IDLE_S))}"
    return f"port {pattern} is open" if woke.reason == "port" else ""


def _number(argument: str, given: str | None, default: float | None, wanted: str) -> float:
    try:
        found = default if given is None else float(given)
    except ValueError:
        found = None
    if found is None:
        raise BadArgument(argument, f"{given!a} is no number" if given else "is required", f"give {wanted}")
    return found
