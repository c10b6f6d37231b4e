"""What anybody may ask about daemons, whoever runs them: list, stop, output. Written once for both kinds of host."""

from __future__ import annotations

from ..errors import AlreadyEnded, BadArgument, DamagedRecord, NotFound
from ..host.observe import read_files
from ..model import UNREACHABLE, seconds
from . import kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..host.core import Core
    from ..model import Snapshot
    from .kinds import Output
    from .lsp import LanguageServer

    Duration = float | str


async def listed(
    core: Core, kind: str | None, owner: str | None, include_terminal: bool
) -> tuple[list[Snapshot], list[Snapshot]]:
    """By start time, then id; and those among them that did not answer."""

    def fits(shot: Snapshot) -> bool:
        return (kind is None or shot.kind == kind) and (owner is None or shot.owner == owner)

    shots = await core.sessions(all=include_terminal, fits=fits)
    shots.sort(key=lambda shot: (shot.started_at or shot.created_at or "", shot.id))
    return [dressed(core, shot) for shot in shots], [shot for shot in shots if shot.state == UNREACHABLE]


async def stopped(
    core: Core, ref: object, grace: Duration | None, by: str | None, servers: Mapping[str, LanguageServer]
) -> Snapshot:
    """The snapshot from before. The ending is never made up here: whoever owns the daemon tells it."""
    id = core.find(ref)
    seen = await core.observe(id)
    shot = dressed(core, seen.snapshot())
    if seen.final:
        raise AlreadyEnded(id, shot.status, shot.to_json())
    if id in servers and grace is None:
        servers[id].begin_stop(by)
        return shot
    await kinds.of(shot.kind).stop(core, id, grace=None if grace is None else seconds(grace), by=by)
    return shot


async def text_of(core: Core, ref: object, tail: int | None, since: str | int | None) -> Output:
    if tail is not None and tail < 1:
        raise BadArgument("tail", f"{tail} is not a number of lines", "give 1 or more")
    id = core.find(ref)
    shot = dressed(core, (await core.observe(id)).snapshot())
    return await core.driver.call(lambda: kinds.of(shot.kind).output(core.log(id), shot, tail, since))


def dressed(core: Core, shot: Snapshot) -> Snapshot:
    return kinds.dress(shot, lambda: _spec(core, shot.id))


def _spec(core: Core, id: str) -> Mapping[str, Any]:
    """Empty for one that was removed under our eyes, or is damaged: a list tells of the others all the same."""
    try:
        return read_files(core.home, id).now()
    except (NotFound, DamagedRecord):
        return {}
