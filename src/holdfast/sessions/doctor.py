"""Check everything that can be wrong with a home and this machine; repair what is safe to repair."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
import time

from .. import config
from ..core import failpoints, processes, records, sockets, wire
from ..core.signalfile import HOME
from ..errors import DamagedRecord, DiskFull, HoldfastError, MalformedAnswer, NotFound
from ..home import is_id, runtime_directory
from ..index.queues import Progress
from ..model import EXITED, LOST, STALE, UNREACHABLE, Finding
from ..places.kinds import is_away
from ..runner import process_tree, status
from .connection import greeting, open_socket, send_greeting
from .gc import collect_home
from .launch import launcher_path
from .observe import check_contents, read_files, refused_place, runner_holds

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket as socket
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..home import Home
    from ..signals.consumers import Consumers
    from .core import Core


OK, WARNING, PROBLEM = "ok", "warning", "problem"


# Consumers of signals, and parked signals.


_CHECK = "signals"
# This many bad lines of one file are named, and about this many in all; the rest is counted.
_LINES_NAMED = 3
_NAMED_MAX = 20
_NOTHING_TO_DO = "nothing to do: the others are read"


def examine_listeners(home: Home, consumers: Consumers) -> list[Finding]:
    """Consumers, those that were dropped, parked signals, invalid records."""
    try:
        known, dropped = consumers.known(), consumers.dropped()
    except HoldfastError as problem:
        return [Finding(_CHECK, WARNING, problem.message, fix=problem.fix)]
    waiting = sum(each["waiting"] for each in known)
    found = [Finding(_CHECK, OK, f"{len(known)} consumers, {waiting} signals wait for them")]
    for each in known:
        if each["parked"]:
            text = f"{each['parked']} signals of consumer {each['name']} were given up on: their reader crashed"
            fix = f"`hold signals --parked --consumer {each['name']}` shows them, `hold ack` takes them out"
            found.append(Finding(_CHECK, WARNING, text, fix=fix))
    if consumers.catchup.trouble is not None:
        found.append(Finding(_CHECK, WARNING, consumers.catchup.trouble, fix="see that the home can be written"))
    for each in dropped:
        text = f"consumer {each['name']} was dropped at {each['dropped_at']}: unused since {each['used_at']}"
        lost = f", with {each['waiting']} signals waiting" if each["waiting"] else ""
        found.append(Finding(_CHECK, OK, text + lost))
    return [*found, *_damaged_signals(home)]


def people(home: Home) -> list[Finding]:
    """The channels to people on which something was not delivered, or which were abandoned."""
    from ..signals.people.status import troubles

    fix = "check that it works, or change its address in the configuration"
    return [Finding("people", WARNING, text, fix=fix) for text in troubles(home.path)]


def _damaged_signals(home: Home) -> list[Finding]:
    """Check all retained signals, also those that were read before."""
    from ..signals.lines import read_on

    found: list[Finding] = []
    more = 0
    for id in [HOME, *sorted(filter(is_id, os.listdir(home.sessions)))]:
        whose = "the home" if id == HOME else f"session {id}"
        try:
            reading = read_on(home, Progress(id), writer_lives=True)
        except OSError as problem:
            found.append(Finding(_CHECK, WARNING, f"the signals of {whose} cannot be read: {problem.strerror}"))
            continue
        bad = [] if reading is None else reading.bad
        shown = bad[: _LINES_NAMED if len(found) < _NAMED_MAX else 0]
        more += len(bad) - len(shown)
        for offset, why in shown:
            text = f"invalid signal record at byte {offset} of {whose}: {why}"
            found.append(Finding(_CHECK, WARNING, text, fix=_NOTHING_TO_DO))
    if more:
        found.append(Finding(_CHECK, WARNING, f"{more} more signal records are invalid", fix=_NOTHING_TO_DO))
    return found


_ADVICE = {
    UNREACHABLE: (PROBLEM, "try again; `hold logs {0}` reads its output, `hold stop {0}` ends it"),
    STALE: (PROBLEM, "`hold stop {0}` ends what is left of it; `hold logs {0}` reads its output"),
    LOST: (WARNING, "`hold logs {0}` reads what it printed, `hold restart {0}` runs it again"),
}
_SET_ASIDE = "`hold doctor --rebuild` moves the session to quarantine; it continues to run there"
# How long a launcher may take to answer.
_HELLO_S = 1.0
_PR_GET_CHILD_SUBREAPER = 37
# Less than the smallest session needs.
_FULL_BYTES = 1 << 17
# Enough to see that a limit can be set; nothing ever runs under it.
_PROBE_LIMIT_BYTES = 64 << 20


async def try_place(core: Core, place: str) -> list[Finding]:
    """Run a short command at a place, which needs everything that a place needs; the error says what is missing."""
    from .act import remove
    from .run import run

    try:
        seen = await run(core, ["sh", "-c", "uname -srm; id -un; pwd"], None, {"place": place}, None)
        id = seen.snapshot().id
        said = core.log(id).tail(3).text.split("\n")
        await remove(core, id)
    except HoldfastError as problem:
        return [Finding(f"place {place}", "problem", problem.message, fix=problem.fix)]
    text = f"runs commands: {said[0]}, as {said[1]}, in {said[2]}" if len(said) > 3 else "runs commands"
    return [Finding(f"place {place}", "ok", text)]


async def examine(core: Core, *, rebuild: bool) -> list[Finding]:
    """Every check gives at least one finding. What is damaged is moved to quarantine once its runner is provably gone;
    `rebuild` also moves unreadable sessions to quarantine and rebuilds the index."""
    found = [_home(core), _runtime(core), _config(core), _space(core), _locking(core)]
    found += _records(core, rebuild)
    found += _index(core, rebuild)
    found += await _sessions(core, rebuild)
    found += examine_listeners(core.home, core.consumers)
    found += people(core.home)
    found += _leftovers(core)
    found += await _launchers(core)
    found += _abilities()
    return found


def _home(core: Core) -> Finding:
    found = _directory("home", core.home.path, core.home.create)
    if found.level != OK:
        return found
    # The mode of a directory does not show that its file system is read-only, or out of inodes.
    for path in (core.home.path, core.home.sessions, core.home.locks):
        try:
            _write_something(path)
        except OSError as problem:
            text = f"{path} cannot be written: {problem.strerror}; no session can be started and no end recorded"
            fix = "make it writable again, or set HOLDFAST_HOME to a directory that is"
            fix = DiskFull.fix if problem.errno == errno.ENOSPC else fix
            return Finding("home", PROBLEM, text, fix=fix, path=path)
    return found


def _write_something(directory: str) -> None:
    path = os.path.join(directory, f".doctor-{os.urandom(8).hex()}")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, b"x")
    finally:
        os.close(fd)
        os.unlink(path)


def _runtime(core: Core) -> Finding:
    return _directory("runtime directory", core.runtime, runtime_directory)


def _directory(check: str, path: str, verify: Callable[[], object]) -> Finding:
    """`verify` is what every host does at its start; the directory may have changed since."""
    try:
        verify()
        mode = stat.S_IMODE(os.stat(path).st_mode)
    except HoldfastError as problem:
        return Finding(check, PROBLEM, problem.message, fix=problem.fix, path=path)
    except OSError as problem:
        return Finding(
            check, PROBLEM, f"{path}: {problem.strerror}", fix="make it usable, or choose another", path=path
        )
    return Finding(check, OK, f"only this user can use {path}, mode {mode:04o}", path=path)


def _config(core: Core) -> Finding:
    file: str | None = core.config.file or config.config_path(os.environ)
    try:
        loaded = config.load(os.environ, core.config.file)
    except HoldfastError as problem:
        return Finding("config", PROBLEM, problem.message, fix=problem.fix, path=file)
    file = loaded.file
    if loaded.ignored:
        text = f"{', '.join(loaded.ignored)}: no longer a setting, has no effect"
        return Finding("config", WARNING, text, fix="remove it", path=file)
    if file is None:
        return Finding("config", OK, f"no file at {config.config_path(os.environ)}: the defaults are in force")
    return Finding("config", OK, f"{file} is valid", path=file)


def _space(core: Core) -> Finding:
    disk = os.statvfs(core.home.path)
    free, floor = disk.f_bavail * disk.f_frsize, core.config.log_free_floor
    if free < _FULL_BYTES:
        text = f"the disk is full, {free >> 10} KiB are free: output is lost and nothing can be started"
        return Finding("free space", PROBLEM, text, fix=DiskFull.fix, path=core.home.path)
    if free < floor:
        text = f"{free >> 20} MiB are free, below the floor of {floor >> 20} MiB: logs keep their newest part only"
        return Finding("free space", WARNING, text, fix="free some space, or `hold gc`", path=core.home.path)
    return Finding("free space", OK, f"{free >> 20} MiB are free, the floor is {floor >> 20} MiB", path=core.home.path)


def _locking(core: Core) -> Finding:
    """Check that the lock that distinguishes a live runner from a dead one works on this file system."""
    path = core.home.locks
    first = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    second = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Finding("locks", OK, "flock works on the home's file system", path=path)
    except OSError as problem:
        text = f"flock does not work there: {problem.strerror}"
        return Finding("locks", PROBLEM, text, fix="put the home on a local file system", path=path)
    finally:
        os.close(second)
        os.close(first)
    text = "flock gives the same lock twice there: living runners look dead"
    return Finding("locks", PROBLEM, text, fix="put the home on a local file system", path=path)


def _records(core: Core, rebuild: bool) -> list[Finding]:
    findings, readable = [], 0
    for session in sorted(core.index.ids()):
        try:
            read_files(core.home, session)
            check_contents(core.home, session)
            readable += 1
        except NotFound:
            continue  # a start that is just beginning, or its remains, which are reported as leftovers
        except DamagedRecord as problem:
            findings.append(_damaged(core, session, problem, rebuild))
    noun = "session" if readable == 1 else "sessions"
    return [*findings, Finding("records", OK, f"the records of {readable} {noun} can be read")]


def _damaged(core: Core, session: str, problem: DamagedRecord, rebuild: bool) -> Finding:
    path = core.home.session(session)
    spec = os.path.join(path, "spec.json")
    alive = runner_holds(core.home, session, core.runtime)
    away = is_away(records.found(None, spec))
    if away and os.path.basename(problem.path) == "state.json":
        return _damaged_copy(problem)
    if away and alive:
        return _set_aside(core, session, problem.message, rebuild)
    if alive:
        fix = "its runner is alive: leave it until it has ended, then ask again"
        return Finding("records", PROBLEM, problem.message, fix=fix, path=path)
    left = processes.orphans(session, None, None)
    if left and not rebuild:
        pids = ", ".join(str(process.pid) for process in left)
        fix = f"its processes live ({pids}): end them, or `hold doctor --rebuild` moves the directory anyway"
        return Finding("records", PROBLEM, problem.message, fix=fix, path=path)
    if alive is None and not rebuild:
        fix = "it is unknown whether its runner lives; `hold doctor --rebuild` moves it to quarantine"
        return Finding("records", PROBLEM, problem.message, fix=fix, path=path)
    try:
        aside = _quarantine(core, session)
    except OSError as refused:
        fix = f"move it away by hand: {refused.strerror}"
        return Finding("records", PROBLEM, problem.message, fix=fix, path=path)
    return Finding("records", WARNING, problem.message, fix=f"moved to {aside}", repaired=True, path=aside)


def _damaged_copy(problem: DamagedRecord) -> Finding:
    """The damaged copy of a session in another place: the original is intact there, and is copied again with the next
    link."""
    try:
        os.unlink(problem.path)
    except OSError as refused:
        fix = f"remove it by hand: {refused.strerror}"
        return Finding("records", PROBLEM, problem.message, fix=fix, path=problem.path)
    fix = "it was a copy, and is copied again from where the session runs"
    return Finding("records", WARNING, problem.message, fix=fix, repaired=True, path=problem.path)


def _quarantine(core: Core, session: str) -> str:
    aside = os.path.join(core.home.quarantine, f"{session}-{os.urandom(4).hex()}")
    os.rename(core.home.session(session), aside)
    core.index.mark_removed([session])
    return aside


def _index(core: Core, rebuild: bool) -> list[Finding]:
    path = core.home.index
    if rebuild:
        count = core.index.rebuild()
        if core.index.trouble is None:
            text = f"rebuilt from the directories of {count} sessions"
            return [Finding("index", OK, text, repaired=True, path=path)]
    else:
        core.index.look()
    if core.index.trouble is None:
        return [Finding("index", OK, "in use", path=path)]
    again = DiskFull.fix if core.index.database.full else "`hold doctor --rebuild` rebuilds it"
    fix = f"everything works without it, only slower; {again}"
    return [Finding("index", WARNING, core.index.trouble, fix=fix, path=path)]


async def _sessions(core: Core, rebuild: bool) -> list[Finding]:
    findings: list[Finding] = []
    running = 0
    running_by: dict[str, list[str]] = {}
    for shot in await core.sessions(all=True, fits=lambda shot: shot.state != EXITED):
        if shot.runner_version is not None and shot.state != LOST:
            running_by.setdefault(shot.runner_version, []).append(shot.id)
        advice = _ADVICE.get(shot.state)
        if advice is None:
            running += 1
            continue
        level, fix = advice
        text = f"{shot.id} is {shot.state}: {shot.metadata['evidence']}"
        if shot.state == UNREACHABLE and refused_place(core.home, shot.id):
            findings.append(_set_aside(core, shot.id, text, rebuild))
            continue
        path = core.home.session(shot.id)
        findings.append(Finding("sessions", level, text, fix=fix.format(shot.id), path=path))
    for session, problem in core.damaged.items():
        if isinstance(problem, MalformedAnswer):
            findings.append(_set_aside(core, session, problem.message, rebuild))
    text = f"{running} running" + ("; they continue when this package is removed or replaced" if running else "")
    return [*findings, Finding("sessions", OK, text), *_other_releases(running_by)]


def _other_releases(running_by: dict[str, list[str]]) -> Iterator[Finding]:
    """Running sessions whose runners are of another release: they keep running with that release."""
    for version, ids in sorted(running_by.items()):
        if version != status.VERSION:
            named = ", ".join(ids[:_NAMED_MAX]) + (f" and {more} more" if (more := len(ids) - _NAMED_MAX) > 0 else "")
            text = f"version {version} runs {named}: they keep running; `hold restart` moves one to {status.VERSION}"
            yield Finding("runners", OK, text)


def _set_aside(core: Core, session: str, text: str, rebuild: bool) -> Finding:
    """A session in another place can be moved aside while it runs there: what it has here is a copy."""
    path = core.home.session(session)
    away = is_away(records.found(None, os.path.join(path, "spec.json")))
    if not rebuild or not away:
        fix = _SET_ASIDE if away else "end its runner and its processes, then ask again"
        return Finding("sessions", PROBLEM, text, fix=fix, path=path)
    endpoint = read_files(core.home, session).endpoint
    aside = _quarantine(core, session)
    try:
        open_socket(endpoint).close()  # its deputy finds its directory gone, and leaves
    except OSError:
        pass
    return Finding("sessions", WARNING, text, fix=f"moved to {aside}", repaired=True, path=aside)


def _leftovers(core: Core) -> list[Finding]:
    left = collect_home(core, dry_run=True, all=False).swept
    if not left:
        return [Finding("leftovers", OK, "none")]
    return [Finding("leftovers", WARNING, f"{path} is left over", fix="`hold gc`", path=path) for path in left]


async def _launchers(core: Core) -> list[Finding]:
    ours = launcher_path(core)
    findings = []
    for path in sorted(_launcher_sockets(core.runtime)):
        answer = await _ask_launcher(core, path)
        if isinstance(answer, str):
            fix = "starts work without it; end its process, or run `hold gc` if the process is gone"
            findings.append(Finding("launcher", WARNING, f"{path}: {answer}", fix=fix, path=path))
            continue
        version, source = answer
        text = f"version {version} of {source}"
        if path == ours:
            findings.append(Finding("launcher", OK, f"{text} answers", path=path))
        else:
            why = "another version" if version != status.VERSION else "other code, limits, environment or namespaces"
            text = f"{text}, for {why}: not used from here; it exits after its idle time"
            findings.append(Finding("launcher", OK, text, path=path))
    if not core.config.launcher_enabled:
        findings.append(Finding("launcher", OK, "switched off by the configuration"))
    return findings or [Finding("launcher", OK, "none is running; the next start starts one")]


def _launcher_sockets(runtime: str) -> Iterator[str]:
    try:
        names = os.listdir(runtime)
    except OSError:
        return
    for name in names:
        if name.startswith("launcher-") and name.endswith(".sock"):
            yield os.path.join(runtime, name)


async def _ask_launcher(core: Core, path: str) -> tuple[str, str] | str:
    """Ask a launcher for its version and the path of its code; or say what is wrong with it."""
    try:
        sock = open_socket(path)
        try:
            if sockets.peer_uid(sock) != os.getuid():
                return "a process of another user listens there"
            send_greeting(sock, greeting(core.author))
            frames = await _first_frames(core, sock)
        finally:
            sock.close()
    except (OSError, wire.BadFrame) as problem:
        refused = isinstance(problem, OSError) and problem.errno == errno.ECONNREFUSED
        return "it does not listen" if refused else f"no launcher answers there ({problem})"
    answer = frames[0] if frames else None
    if not isinstance(answer, dict):
        return f"it did not answer within {_HELLO_S:g} s"
    identity = answer.get("identity")
    if answer["type"] != "hello" or not isinstance(identity, dict):
        return "the process that answers there is not a launcher of this release"
    return str(answer.get("version")), str(identity.get("source"))


async def _first_frames(core: Core, sock: socket.socket) -> list[dict[str, Any] | tuple[int, bytes]]:
    decoder = wire.Decoder()
    deadline = time.monotonic() + _HELLO_S
    while await core.driver.ready([sock.fileno()], (), deadline - time.monotonic()):
        received = sock.recv(1 << 16)
        frames = decoder.feed(received)
        if frames or not received:
            return frames
    return []


def _abilities() -> list[Finding]:
    return [
        _ability("pidfd", _pidfd, "a session is then watched and signalled only by pid and start time"),
        _ability(
            "subreaper",
            _subreaper,
            "processes that leave their session are then found only by a variable in their environment",
        ),
        _ability("memory limit", _memory_limit, "`memory` at a start is then refused"),
        _ability("children lists", _children, "a walk over a tree then reads the whole process table"),
    ]


def _ability(check: str, probe: Callable[[], str | None], without: str) -> Finding:
    """Whether this machine has an ability: `probe` says why not, or returns None."""
    why = probe()
    if why is None:
        return Finding(check, OK, "yes")
    return Finding(check, WARNING, f"no: {why}", fix=without)


def _pidfd() -> str | None:
    if failpoints.off("pidfd"):
        return "switched off"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as problem:
        return str(problem)
    return None


def _subreaper() -> str | None:
    if failpoints.off("subreaper"):
        return "switched off"
    libc = ctypes.CDLL(None, use_errno=True)
    answer = ctypes.c_int()
    # A query shows as much as an attempt, and changes nothing about this process.
    if libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0) != 0:
        return os.strerror(ctypes.get_errno())
    return None


def _memory_limit() -> str | None:
    try:
        process_tree.MemoryGroup(f"doctor-{os.getpid()}", _PROBE_LIMIT_BYTES).remove()
    except (process_tree.Unavailable, OSError) as problem:
        return str(problem)
    return None


def _children() -> str | None:
    path = f"/proc/self/task/{os.getpid()}/children"
    return None if os.path.exists(path) else f"{path} is not there"
