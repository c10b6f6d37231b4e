"""What users say to a host, over the core: shared by the blocking and the asynchronous facade."""

from __future__ import annotations

import os

from ..errors import BadArgument, HoldfastError, RunnerGone
from ..model import Recovered, Snapshot, Stopped, Woke, seconds
from ..runner import clock
from .observe import Observed, from_files, read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ..model import Collected, StartOptions
    from .core import Core
    from .request import Command
    from .retention import Facts


async def start(core: Core, command: Command, options: StartOptions) -> Observed:
    if options.get("lifetime") == "call":
        raise BadArgument("lifetime", "`call` is the life of a run; start returns at once", "use run(), or `owner`")
    seen, connection = await core.start(command, options)
    if connection is not None:
        connection.close()
    collect_when_due(core)
    return seen


async def run(core: Core, command: Command, wait: float | str | None, options: StartOptions) -> Observed:
    """The connection that started it also waits for it. Aborting this call ends the waiting, and with
    `lifetime="call"` the command."""
    from .waiting import Wait

    limit = None if wait is None else seconds(wait)
    options.setdefault("notify", "auto")
    asked = {"type": "wait", "id": 0, "exit": True, **({} if limit is None else {"timeout": limit})}
    seen, connection = await core.start(command, options, then=asked)
    if connection is None:
        await Wait(core, seen.files.id, timeout=limit).run()
        return await core.observe(seen.files.id)
    try:
        reply = await connection.outcome(limit, core.config.hosts_reply_timeout)
        status = reply["status"]
        if reply["reason"] == "timeout" and options.get("lifetime") == "call":
            await connection.request("update", core.config.hosts_reply_timeout, lifetime="detached")
    except RunnerGone:
        await Wait(core, seen.files.id, timeout=limit).run()
        return await core.observe(seen.files.id)
    finally:
        connection.close()
    collect_when_due(core)
    ended = Observed(read_files(core.home, seen.files.id), status["state"], "its runner answered", live=status)
    core.note(ended)
    return ended


async def wait(
    core: Core,
    id: str,
    exit: bool,
    match: str | None,
    output: bool | None,
    idle: float | str | None,
    port: int | None,
    since: str | int | None,
    timeout: float | str | None,
) -> Woke:
    """The end of the command ends every wait: `exit` says that nothing else is waited for, and cannot be refused."""
    if not exit:
        raise BadArgument("exit", "the end of the command ends every wait", "leave it out, and look at `reason`")
    from .waiting import Wait

    waiting = Wait(
        core,
        id,
        match=match,
        output=bool(output),
        idle=None if idle is None else seconds(idle),
        port=port,
        since=since,
        timeout=None if timeout is None else seconds(timeout),
    )
    return await waiting.run()


async def send_signal(core: Core, id: str, signal: str | int, target: str) -> int:
    import signal as signals

    try:
        name = signals.Signals(signal).name if isinstance(signal, int) else signal
    except ValueError:
        raise BadArgument("signal", f"no signal {signal}") from None
    reply = await core.request(id, "send_signal", signal=name, target=target)
    sent: int = reply["sent"]
    return sent


def text(core: Core, id: str, stream: str | None) -> str:
    log = core.log(id)
    return log.read(None, stream=stream, limit=max(1, log.size())).text


async def stop_all(core: Core, refs: Iterable[object], grace: float | str | None) -> list[Stopped]:
    """All at once: every runner climbs its own ladder while the next is asked."""
    limit = None if grace is None else seconds(grace)
    ids = [core.find(ref) for ref in refs]
    under_way, answers = [], []
    for id in ids:
        try:
            under_way.append((id, await core.begin_stop(id, grace=limit)))
        except HoldfastError as problem:
            answers.append(Stopped(id, error=problem))
    for id, connection in under_way:
        try:
            answers.append(await core.finish_stop(id, connection, grace=limit))
        except HoldfastError as problem:
            answers.append(Stopped(id, error=problem))
    return answers


def fits(
    *,
    owner: str | None,
    labels: Mapping[str, str] | None,
    status: str | None,
    state: str | None,
    name: str | None,
    search: str | None,
) -> Callable[[Snapshot], bool]:
    wanted = search.casefold() if search else None

    def fit(shot: Snapshot) -> bool:
        return (
            (owner is None or shot.owner == owner)
            and (status is None or shot.status == status)
            and (state is None or shot.state == state)
            and (name is None or shot.name == name)
            and all(shot.labels.get(key) == value for key, value in (labels or {}).items())
            and (wanted is None or wanted in _searchable(shot))
        )

    return fit


def _searchable(shot: Snapshot) -> str:
    labels = [f"{key}={value}" for key, value in shot.labels.items()]
    return "\n".join([shot.id, shot.name or "", shot.command, shot.cwd or "", shot.description, *labels]).casefold()


def handles(found: Recovered, handle: Callable[[Snapshot], Any]) -> Recovered:
    """The same result, with handles in the place of observations."""
    for group in ("live", "exited", "unreachable", "stale", "lost"):
        setattr(found, group, [handle(seen.snapshot()) for seen in getattr(found, group)])
    return found


def in_words(shot: Snapshot) -> str:
    """State and outcome as a person would say them."""
    if shot.exit is None:
        return f"{shot.state}, pid {shot.pid}" if shot.pid else shot.state
    if shot.exit.signal is not None:
        return f"{shot.state} with signal {shot.exit.signal}"
    return f"{shot.state} with code {shot.exit.code}" if shot.exit.code is not None else shot.state


def collect(core: Core, *, dry_run: bool, all: bool) -> Collected:
    from .collect import collect as carry_out
    from .retention import Limits

    core.note_all()
    limits = Limits(
        age_s=core.config.log_keep, home_bytes=core.config.log_home_cap, free_bytes=core.config.log_free_floor
    )
    return carry_out(core.home, core.index, limits, lambda session: _facts(core, session), dry_run=dry_run, all=all)


def _facts(core: Core, id: str) -> Facts:
    from .log import Log
    from .retention import Facts

    seen = from_files(read_files(core.home, id))
    exit = seen.files.exit or {}
    return Facts(
        id,
        state=seen.state,
        final=seen.final,
        created_at=seen.files.spec["created_at"],
        ended_at=exit.get("ended_at"),
        bytes=Log(seen.files.directory).size(),
    )


def collect_when_due(core: Core) -> None:
    """Hosts look after the home now and then, so that nobody has to remember to."""
    if not core.config.collect_enabled:
        return
    try:
        age = clock.wall_ns() / 1e9 - os.stat(core.home.gc_stamp).st_mtime
    except FileNotFoundError:
        age = core.config.collect_interval
    # A stamp of the future is from before the clock was set back: waiting for it could take years.
    if not 0 <= age < core.config.collect_interval:
        collect(core, dry_run=False, all=False)
