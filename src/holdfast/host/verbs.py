"""What users say to a host, over the core: shared by the blocking and the asynchronous facade."""

from __future__ import annotations

import os
import time

from ..errors import BadArgument, DamagedRecord, HoldfastError, IndexBusy, Removed, RunnerGone, Unreachable
from ..model import Exported, Recovered, Snapshot, Stopped, Woke, seconds
from ..runner import clock
from .observe import NO_SPEC, Observed, from_files, read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ..model import Collected, StartOptions
    from ..signals.records import Note, Signal
    from ..terminal.screen import Screen
    from .connection import Connection
    from .core import Core
    from .log import Page
    from .request import Command
    from .retention import Facts

_SETTLE_MAX_MS = 1000
# How long the end of a call waits for the runner to confirm that the command lives on.
_LET_GO_S = 0.2
# Options that ask for notices.
_TELLING = ("watch", "monitor", "heartbeat", "soft", "ready", "health")


async def start(core: Core, command: Command, options: StartOptions) -> Observed:
    if options.get("lifetime") == "call":
        raise BadArgument("lifetime", "`call` is the life of a run; start returns at once", "use run(), or `owner`")
    seen, connection = await core.start(command, options)
    if connection is not None:
        connection.close()
    _count_listeners(core, seen, options)
    collect_when_due(core)
    return seen


def _count_listeners(core: Core, seen: Observed, options: StartOptions) -> None:
    """Who asked for a notice that nobody would get yet is told so; it waits all the same."""
    from ..index.audience import listening

    spec = seen.files.spec
    owner = spec.get("owner")
    seen.consumers = listening(core.home, owner, spec.get("kind") or "")
    asked = options.get("notify") in ("exit", "failure") or any(options.get(each) for each in _TELLING)
    if asked and not seen.consumers:
        whose = "sessions without an owner" if owner is None else f"owner {owner}"
        notes = [*(spec.get("notes") or ()), f"nobody listens for signals of {whose} yet; they wait"]
        seen.files.spec = {**spec, "notes": notes}


def records(core: Core, id: str) -> dict[str, Any]:
    files = read_files(core.home, id)
    return {"spec": files.spec, "state": files.state, "exit": files.exit}


def told(core: Core, id: str) -> list[Signal | Note]:
    from ..signals.indexing import told

    return told(core.home, id)


async def pending_signals(core: Core, shots: Iterable[Snapshot]) -> dict[str, int]:
    """How many signals of each wait for its owner; of one without an owner, for whoever sits at the terminal."""
    shots = list(shots)
    waiting = await core.consumers.listing().counts({shot.owner for shot in shots}) if shots else {}
    return {shot.id: waiting.get(shot.id, 0) for shot in shots}


async def run(
    core: Core,
    command: Command,
    wait: float | str | None,
    options: StartOptions,
    started: Callable[[Observed], None] | None = None,
) -> Observed:
    """The connection that started it also waits for it. Aborting this call ends the waiting, and with
    `lifetime="call"` the command. `started` is called with what there is to wait for."""
    from .waiting import Wait

    limit = None if wait is None else seconds(wait)
    options.setdefault("notify", "auto")
    asked = exit_wait(options, limit)
    seen, connection = await core.start(command, options, then=asked)
    if started is not None:
        started(seen)
    if connection is None:
        await Wait(core, seen.files.id, timeout=limit).run()
        return await core.observe(seen.files.id)
    until = None if limit is None else time.monotonic() + limit
    try:
        reply = await connection.told_end(limit, core.config.hosts_reply_timeout)
        status = reply["status"]
        left = reply["reason"] == "timeout" or (status.get("exit") or {}).get("survivors")
        if left and options.get("lifetime") == "call":
            await let_go(connection)
    except RunnerGone:
        await Wait(core, seen.files.id, timeout=limit).run()
        return await core.observe(seen.files.id)
    except Unreachable:
        if until is None or time.monotonic() < until:
            raise
        if options.get("lifetime") == "call":
            await let_go(connection)
        return await core.observe(seen.files.id)  # the time is over
    finally:
        connection.close()
    collect_when_due(core)
    ended = Observed(read_files(core.home, seen.files.id), status["state"], "its runner answered", live=status)
    core.note(ended)
    return ended


async def let_go(connection: Connection) -> None:
    """The call returns, it is not aborted: a command that lived in it lives on. A runner that was stopped by a signal
    reads this when it continues, before it sees that the connection was closed."""
    try:
        await connection.request("update", _LET_GO_S, lifetime="detached")
    except (RunnerGone, Unreachable):
        pass


def exit_wait(options: StartOptions, limit: float | None) -> dict[str, Any]:
    """What a start asks on its own connection. An ending with `notify=auto` that we are given, we confirm."""
    confirm = options.get("notify") == "auto"
    return {"type": "wait", "id": 0, "exit": True, "confirm": confirm, **({} if limit is None else {"timeout": limit})}


async def wait(
    core: Core,
    id: str,
    *,
    exit: bool = True,
    match: str | None = None,
    output: bool | None = None,
    idle: float | str | None = None,
    port: int | None = None,
    ready: bool | None = None,
    extinct: bool = False,
    since: str | int | None = None,
    stream: str | None = None,
    timeout: float | str | None = None,
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
        ready=bool(ready),
        extinct=extinct,
        since=since,
        stream=stream,
        timeout=None if timeout is None else seconds(timeout),
    )
    woke = await waiting.run()
    if woke.reason in ("exit", "lost"):
        woke.signal_id = core.ended_signal(id)
    return woke


async def watch(core: Core, id: str, pattern: str | Mapping[str, Any]) -> str:
    from .attention import pattern as checked
    from .attention import watch_limits

    reply = await core.request(id, "watch", add=checked(pattern, "pattern"), limits=watch_limits(core.config))
    added: str = reply.get("watch") or ""
    return added


async def unwatch(core: Core, id: str, watch: str) -> bool:
    return bool((await core.request(id, "watch", remove=watch)).get("removed"))


async def send_signal(core: Core, id: str, signal: str | int, target: str) -> int:
    from ..runner.kernel_signals import NAMES, NUMBERS

    name = NAMES.get(signal, "") if isinstance(signal, int) else signal.upper()
    if name not in NUMBERS and f"SIG{name}" not in NUMBERS:
        raise BadArgument("signal", f"no signal {ascii(signal)[:40]}", _near_signals(name))
    reply = await core.request(id, "send_signal", signal=name, target=target)
    sent: int = reply["sent"]
    return sent


def _near_signals(name: str) -> str:
    from difflib import get_close_matches

    from ..runner.kernel_signals import NUMBERS

    near = get_close_matches(name[:20].removeprefix("SIG"), [each.removeprefix("SIG") for each in NUMBERS], 1)
    return f"did you mean {near[0]}?" if near else "give a name such as HUP, TERM or USR1, or a number such as 15"


async def resize(core: Core, id: str, rows: int, cols: int) -> None:
    from .tty import check_size

    rows, cols = check_size((rows, cols))
    await core.request(id, "resize", rows=rows, cols=cols)


async def screen(core: Core, id: str, at: int | None, history: int, settle_ms: int) -> Screen:
    """With `settle_ms` it waits, at most a second, until the output has been silent for so long."""
    from .screens import screen as drawn

    if settle_ms:
        if not 0 < settle_ms <= _SETTLE_MAX_MS:
            raise BadArgument("settle_ms", f"{settle_ms} is out of bounds", f"give 1 to {_SETTLE_MAX_MS}")
        await wait(core, id, idle=settle_ms / 1000, timeout=_SETTLE_MAX_MS / 1000)
    files = read_files(core.home, id)
    return await core.driver.call(lambda: drawn(core, files, at=at, history=history))


def attach_request(
    role: str,
    since: str | int,
    history_rows: int,
    lag: str,
    size: tuple[int, int] | None,
    terminal: Mapping[str, Any] | None,
    kind: str,
    label: str | None,
    visible: bool,
    hold: bool,
) -> dict[str, Any]:
    from .tty import check_size

    return {
        "role": role,
        "from": since,
        "history_rows": history_rows,
        "lag": lag,
        "size": None if size is None else check_size(size),
        "terminal": None if terminal is None else dict(terminal),
        "kind": kind,
        "label": label,
        "visible": visible,
        **({"hold": True} if hold else {}),
    }


def export(
    core: Core,
    id: str,
    path: str | os.PathLike[str],
    format: str,
    since: str | int | None,
    until: str | int | None,
    idle_limit: float | None,
) -> Exported:
    from .recorded import FORMATS, Recording

    if format not in FORMATS:
        raise BadArgument("format", f"{format!r} is not one of {', '.join(FORMATS)}")
    recording = Recording(read_files(core.home, id), since=since, until=until, idle_limit=idle_limit)
    recording.save(os.fspath(path), format)
    gaps = [{"from": gap.start, "to": gap.stop, "reason": gap.reason} for gap in recording.tally.missing]
    return Exported(format, recording.begin, recording.end, recording.tally.invalid, gaps)


def read(core: Core, id: str, since: str | int | None, stream: str | None, limit: int | None) -> Page:
    page = core.log(id).read(since, stream=stream, limit=limit)
    if not page.more:
        page.signal_id = core.ended_signal(id)
    return page


def text(core: Core, id: str, stream: str | None) -> str:
    log = core.log(id)
    return log.read(None, stream=stream, limit=max(1, log.size())).text


async def stop_all(
    core: Core,
    refs: Iterable[object],
    grace: float | str | None,
    by: str | None = None,
    ladder: Sequence[Mapping[str, Any]] | None = None,
) -> list[Stopped]:
    """All at once: every runner climbs its own ladder while the next is asked."""
    from .request import check_ladder

    limit = None if grace is None else seconds(grace)
    climb = None if ladder is None else check_ladder(ladder)
    ids, under_way, answers = [], [], []
    for ref in refs:
        try:
            ids.append(core.find(ref))
        except Removed as problem:
            answers.append(Stopped(str(ref), error=problem))  # it was there when the caller listed it
    for id in ids:
        try:
            under_way.append((id, await core.begin_stop(id, grace=limit, by=by, ladder=climb)))
        except HoldfastError as problem:
            answers.append(Stopped(id, error=problem))
    for id, connection in under_way:
        try:
            answers.append(await core.finish_stop(id, connection, grace=limit, by=by, ladder=climb))
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
        shown = []
        for seen in getattr(found, group):
            try:
                shown.append(handle(seen.snapshot()))
            except Removed:
                continue  # while we looked
        setattr(found, group, shown)
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
    done = carry_out(core.home, core.index, limits, lambda session: _facts(core, session), dry_run=dry_run, all=all)
    if not dry_run:
        try:
            core.consumers.drop_unused()
        except IndexBusy:
            pass  # the next collection does it
        from ..signals.calling import call_if_needed

        call_if_needed(core.home, core.config, core.consumers)
    return done


def _facts(core: Core, id: str) -> Facts:
    from .log import Log
    from .retention import Facts

    try:
        seen = from_files(read_files(core.home, id))
    except DamagedRecord as problem:
        size = _stored_bytes(core.home.session(id))
        damage = f"has no spec.json; {problem.fix}" if problem.why == NO_SPEC else problem.message
        return Facts(id, state="damaged", final=not core.lives_on(id), bytes=size, damage=damage)
    exit = seen.files.exit or {}
    return Facts(
        id,
        state=seen.state,
        final=seen.final,
        created_at=seen.files.spec["created_at"],
        ended_at=exit.get("ended_at"),
        bytes=Log(seen.files.directory).size(),
    )


def _stored_bytes(directory: str) -> int:
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0


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
