"""Visits: a deputy for a session that others started on a node. A reference to one is `NODE/REF`."""

from __future__ import annotations

import time

from ..core import records, wire
from ..errors import (
    AmbiguousId,
    HoldfastError,
    NodeUnreachable,
    NoSuchNode,
    NotFound,
    PlaceUnreachable,
    ProtocolError,
    VisitExists,
)
from ..home import is_id
from ..model import LIVE_STATES
from ..places import kinds
from .connection import Connection
from .find import PREFIX_MIN_CHARACTERS
from .launch import spawn_runner
from .observe import from_files, read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .core import Core


async def visit(core: Core, ref: str, owner: str | None = None) -> str:
    """The id of the local copy of the session `NODE/REF`. The node resolves the reference; if it cannot be asked, the
    copy of an earlier visit can still be read."""
    known, ended = _copy(core, ref)
    if known is not None and (not ended or ref.endswith("/" + known)):
        return known
    try:
        return await _begin(core, ref, owner)
    except (NodeUnreachable, PlaceUnreachable):
        if known is None:
            raise
        return known


def find_copy(core: Core, ref: str) -> str:
    known, _ = _copy(core, ref)
    if known is None:
        raise NotFound(ref)
    return known


def _copy(core: Core, ref: str) -> tuple[str | None, bool]:
    """The local copy, if there is one, and whether its session has ended."""
    node, _, name = ref.partition("/")
    candidates = [name] if is_id(name) else []
    candidates += core.index.by_name(ref)
    if len(name) >= PREFIX_MIN_CHARACTERS and name.isascii() and name.isalnum():
        candidates += core.index.prefix(name)
    ended: list[str] = []
    for id in dict.fromkeys(candidates):
        try:
            files = read_files(core.home, id)
        except HoldfastError:
            continue
        if files.spec.get("visit") == node:
            if from_files(files).state in LIVE_STATES:
                return id, False
            ended.append(id)
    if len(ended) > 1 and not is_id(name) and not any(_spec(core, id).get("name") == ref for id in ended):
        raise AmbiguousId(ref, ended)
    return (ended[0], True) if ended else (None, True)


def _spec(core: Core, id: str) -> dict[str, Any]:
    return records.found(None, core.home.session(id) + "/spec.json")


async def _begin(core: Core, ref: str, owner: str | None) -> str:
    node, _, name = ref.partition("/")
    if node not in records.found(None, core.home.path + "/nodes/viewing.json").get("nodes", {}):
        raise NoSuchNode(node)
    place = f"node:{node}"
    # The node says which session it is: until then the reference stands for its id.
    asked: dict[str, Any] = {"id": ref, "place": place, "visit": node, "endpoint": "", "owner": owner}
    asked.update(runtime=core.runtime, log_cap_max=core.config.log_home_cap)
    reach = kinds.reach(place, core.config, core.home.path, core.runtime, {}, name)
    connection = Connection(core.driver, await spawn_runner(core, "deputy"), ref)
    timeout = core.config.hosts_start_timeout + core.config.places_timeout
    try:
        await connection.send(
            wire.control({"type": "start", "home": core.home.path, "spec": asked, "reach": reach}), timeout
        )
        answer = await connection.message(time.monotonic() + timeout, timeout)
    finally:
        connection.close()
    if answer["type"] == "visited":
        return str(answer["session"])
    if answer["type"] != "error":
        raise ProtocolError(f"expected visited, got {answer['type']!r:.80}")
    problem = HoldfastError.from_wire(answer)
    if isinstance(problem, VisitExists):
        id = str(problem.facts.get("id"))
        if _spec(core, id).get("visit") == node:
            return id  # the copy of an earlier visit, or of one at the same time
    if isinstance(problem, NotFound):
        problem = NotFound(ref)
        problem.fix = f"`hold ls -a --nodes {node}` lists every session there"
    raise problem
