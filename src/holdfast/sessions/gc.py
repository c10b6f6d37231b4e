"""Collection: which sessions may go, removing them, and sweeping what dead processes left behind.

Any number of processes may collect at once, beside readers and starts: a session leaves by one rename, and everything
else is removed only under a lock, or after a check, that proves it unused.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from dataclasses import dataclass

from .. import home as homes
from ..core import clock, jsontext, processes, wake
from ..errors import DamagedRecord, HoldfastError, IndexBusy, StillRunning
from ..model import Collected
from . import claims
from .observe import NO_SPEC, from_files, has_lived, last_change_ns, read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import ParamSpec, TypeVar

    from ..home import Home
    from ..index import Index
    from .claims import Claim
    from .core import Core


# The retention policy: which sessions may be removed. Pure.


AGE_S = 7 * 86400.0
HOME_BYTES = 4 << 30

# Recorded times have milliseconds, and the clocks of one machine are read one after the other.
_CLOCK_SLACK_S = 1.0
# Slewing moves a clock by 0.05 %; what is beyond that, and beyond a minute, was a jump.
_JUMP_S = 60.0
_JUMP_SHARE = 0.001


@dataclass(slots=True)
class Facts:
    """What the policy needs to know about a session. `final`: it ended, and none of it is still running. `damage`: why
    its records cannot be used; such a session is removed like others, by the age of its last change. Times are seconds
    since 1970."""

    id: str
    state: str
    final: bool
    bytes: int
    created_at: float | None = None
    ended_at: float | None = None
    damage: str | None = None

    @property
    def finished(self) -> bool:
        return self.final or self.state == "lost"


@dataclass(slots=True)
class Limits:
    """`age_s` counts from the exit. `home_bytes` bounds all sessions together; None is no bound."""

    age_s: float | None = AGE_S
    home_bytes: int | None = HOME_BYTES
    free_bytes: int = 0


@dataclass(slots=True)
class Plan:
    """`remove` in the order of removal, `notes` for people."""

    remove: list[Facts]
    notes: list[str]


@dataclass(slots=True)
class Moment:
    """Now, by the wall clock and by the monotonic clock of this boot."""

    wall_s: float
    boot_s: float
    boot: str

    @classmethod
    def now(cls) -> Moment:
        return cls(clock.wall_ns() / 1e9, time.clock_gettime(time.CLOCK_BOOTTIME), processes.boot_id())


def plan(
    sessions: Iterable[Facts],
    limits: Limits,
    now: float,
    *,
    jumped: str | None = None,
    free_bytes: int | None = None,
) -> Plan:
    """Which finished sessions are to be removed: those that ended long ago, then the oldest until the rest fits.

    `jumped` says why the wall clock cannot be trusted in this run: then no session is removed because of its age.
    """
    sessions = list(sessions)
    finished = sorted((each for each in sessions if each.finished), key=_oldest_end_first)
    ahead = [each for each in finished if each.ended_at is not None and each.ended_at > now + _CLOCK_SLACK_S]
    if ahead and not jumped:
        jumped = f"session {ahead[0].id} ended in the future by the wall clock"
    notes = [f"no session is removed because of its age in this run: {jumped}"] if jumped else []

    def too_old(each: Facts) -> bool:
        if jumped or limits.age_s is None or each.ended_at is None:
            return False
        return now - each.ended_at > limits.age_s

    remove = [each for each in finished if too_old(each)]
    freed = sum(each.bytes for each in remove)
    over_cap = 0 if limits.home_bytes is None else sum(each.bytes for each in sessions) - limits.home_bytes
    short = 0 if free_bytes is None else limits.free_bytes - free_bytes
    for each in finished:
        if max(over_cap, short) <= freed:
            break
        # Removing one without a byte of output would free nothing.
        if each.bytes and not too_old(each):
            remove.append(each)
            freed += each.bytes
    if over_cap > freed:
        notes.append(f"running sessions hold {over_cap - freed:,} bytes more than log.home_cap allows")
    if short > freed:
        notes.append(f"free space is {short - freed:,} bytes below log.free_floor, and no finished session holds them")
    return Plan(remove, notes)


def jump(before: Moment, now: Moment) -> str | None:
    """Why the wall clock cannot be trusted, compared with the last collection; None if it can."""
    wall = now.wall_s - before.wall_s
    if wall < -_CLOCK_SLACK_S:
        return f"the wall clock is {-wall:.0f} s behind the last collection"
    if now.boot == before.boot:
        true = now.boot_s - before.boot_s
        if abs(wall - true) > max(_JUMP_S, _JUMP_SHARE * abs(true)):
            return f"the wall clock moved by {wall - true:+.0f} s since the last collection"
    return None


def _oldest_end_first(facts: Facts) -> tuple[float, str]:
    at = facts.ended_at if facts.ended_at is not None else facts.created_at
    return at or 0.0, facts.id


# Collection: remove what may go, sweep what dead processes left behind.


if TYPE_CHECKING:
    P = ParamSpec("P")
    T = TypeVar("T")


# A start takes milliseconds and gives up after seconds; after a minute it is dead.
_HALF_AGE_S = 60.0
# No start waits this long for its turn: older ticket numbers can be discarded.
_BESIDE_AGE_S = 3600.0

_TRASH = ".trash-"
_LAUNCHER = re.compile(r"launcher-[0-9a-f]+\.sock")
_LOCK = re.compile(r"(name|key)-[0-9a-f]{16}")


def collect(
    home: Home,
    index: Index,
    limits: Limits,
    observe: Callable[[str], Facts | None],
    *,
    dry_run: bool = False,
    all: bool = False,
    runtime: str | None = None,
    now: Moment | None = None,
) -> Collected:
    """Remove what exceeds the limits; with `all`, every session, and StillRunning unless all of them ended.

    `observe` describes one session, None when it is gone; what it cannot read stays and is reported.
    """
    started = time.monotonic()
    now = now or Moment.now()
    sweep = _Sweep(home, dry_run, runtime)
    seen: dict[str, Facts] = {}
    half: list[str] = []
    for id in sorted(index.ids()):
        try:
            facts = observe(id)
        except (HoldfastError, OSError, ValueError) as error:
            if _never_lived(home.session(id)):
                half.append(id)
            elif os.path.lexists(home.session(id)):
                sweep.skipped.append(f"{id}: {error}")
            continue
        if facts is None:
            continue
        damaged_start = facts.damage is not None and _never_lived(home.session(id))
        if damaged_start or (facts.state in ("starting", "lost") and _never_lived(home.session(id))):
            half.append(id)
            continue
        if facts.finished and facts.ended_at is None:
            changed_ns = last_change_ns(home.session(id))
            facts.ended_at = None if changed_ns is None else changed_ns / 1e9
        seen[id] = facts

    if all:
        live = [id for id, facts in seen.items() if not facts.finished]
        live += [id for id in half if not _abandoned(home.session(id))]
        if live:
            first, *others = sorted(live)
            raise StillRunning(first, others=others)
        chosen = Plan(list(seen.values()), [])
    else:
        before = _read_stamp(home)
        jumped = jump(before, now) if before else None
        chosen = plan(seen.values(), limits, now.wall_s, jumped=jumped, free_bytes=_free_bytes(home))
    sweep.skipped += chosen.notes

    removed = chosen.remove
    going = {facts.id for facts in removed}
    sweep.skipped += [f"{id}: {facts.damage}" for id, facts in seen.items() if facts.damage and id not in going]
    if not dry_run:
        removed = [facts for facts in removed if sweep.attempt(facts.id, _take_out, home, facts.id) is not None]
        index.mark_removed([facts.id for facts in removed])
    for id in half:
        sweep.attempt(id, sweep.half, id)
    sweep.attempt(home.sessions, sweep.trash)
    sweep.attempt("sockets", sweep.sockets, seen)
    sweep.attempt("launchers", sweep.launchers)
    sweep.attempt("wake sockets", sweep.wake_sockets)
    sweep.attempt(home.locks, sweep.locks, {facts.id for facts in removed})
    sweep.attempt(home.path, sweep.broken_indexes, 0.0 if all else limits.age_s)
    if not dry_run:
        sweep.attempt(home.gc_stamp, write_stamp, home, now)
    return Collected(
        removed=[facts.id for facts in removed],
        swept=sweep.swept,
        freed_bytes=sum(facts.bytes for facts in removed) if dry_run else sweep.freed,
        skipped=sweep.skipped,
        dry_run=dry_run,
        took_s=time.monotonic() - started,
    )


def collect_home(core: Core, *, dry_run: bool, all: bool, spare: str | None = None) -> Collected:
    """Collect by the settings of a host, drop unused consumers, and see that people are notified. `spare` stays: its
    caller has yet to read it."""

    def observe(id: str) -> Facts:
        facts = _facts(core, id)
        if id == spare:
            facts.state, facts.final = "running", False
        return facts

    core.flush_rows()
    config = core.config
    limits = Limits(age_s=config.log_keep, home_bytes=config.log_home_cap, free_bytes=config.log_free_floor)
    done = collect(core.home, core.index, limits, observe, dry_run=dry_run, all=all)
    if not dry_run:
        try:
            core.consumers.drop_unused()
        except IndexBusy:
            pass  # the next collection does it
        from .without_runner import start_deliverer_if_needed

        start_deliverer_if_needed(core.home, config, core.consumers)
    return done


def _facts(core: Core, id: str) -> Facts:
    from .log import Log

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
        created_at=clock.epoch(seen.files.spec["created_at"]),
        ended_at=clock.epoch(exit.get("ended_at")),
        bytes=Log(seen.files.directory).size(),
    )


def _stored_bytes(directory: str) -> int:
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except OSError:
        return 0


def remove(home: Home, index: Index, id: str, claimed: Iterable[Claim] = ()) -> int | None:
    """Remove one finished session, and its claims unless another session has them by now. Returns the bytes that were
    freed, None when it was gone already."""
    trash = _take_out(home, id)
    sweep = _Sweep(home, dry_run=False)
    for claim in claimed:
        sweep.attempt(claim.path, sweep.unlink_stale, claim.path, {id})
    if trash is None:
        return None
    index.mark_removed([id])
    sessions = _directory(home.sessions)
    try:
        return _delete(sessions, trash)
    finally:
        os.close(sessions)


def write_stamp(home: Home, now: Moment) -> None:
    """Remember when the last collection was. A new home gets one too: it is what a jump is measured from."""
    record = {"wall_s": now.wall_s, "boot_s": now.boot_s, "boot": now.boot}
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(home.gc_stamp, flags, 0o600)
    try:
        os.write(fd, jsontext.write(record).encode())
        os.utime(fd, (now.wall_s, now.wall_s))
    finally:
        os.close(fd)


class _Sweep:
    """Leftovers of dead processes. One that cannot be removed is reported and does not stop the others."""

    def __init__(self, home: Home, dry_run: bool, runtime: str | None = None) -> None:
        self.swept: list[str] = []
        self.skipped: list[str] = []
        self.freed = 0
        self._home = home
        self._dry_run = dry_run
        self._runtime = runtime

    def _runtime_directory(self) -> str:
        return self._runtime or homes.runtime_directory()

    def attempt(self, what: str, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return act(*args, **kwargs)
        except (HoldfastError, OSError) as error:
            self.skipped.append(f"{what}: {error}")
            return None

    def half(self, id: str) -> None:
        """The directory of a start that died before its command existed."""
        path = self._home.session(id)
        locks = _lock_files(path)
        if locks is None:
            return
        try:
            if not _is_old(path, _HALF_AGE_S) or not _never_lived(path):
                return
            self.swept.append(path)
            if self._dry_run:
                return
            try:
                # In one step if it is empty: a late starter finds no directory to write into.
                os.rmdir(path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
                _take_out(self._home, id)
        except FileNotFoundError:
            pass
        finally:
            for fd in locks:
                os.close(fd)

    def trash(self) -> None:
        """What was taken out, by us or by a process that died before it deleted it."""
        if self._dry_run:
            return
        sessions = _directory(self._home.sessions)
        try:
            for name in os.listdir(sessions):
                if name.startswith(_TRASH):
                    self.freed += self.attempt(name, _delete, sessions, name) or 0
        finally:
            os.close(sessions)

    def sockets(self, seen: Mapping[str, Facts]) -> None:
        """Endpoints without a listener. The directory is shared by all homes of the user."""
        runtime = self._runtime_directory()
        directory = _directory(runtime)
        try:
            for name in os.listdir(directory):
                id = name.removesuffix(".sock")
                if id == name or not homes.is_id(id):
                    continue
                facts = seen.get(id)
                if facts is None:
                    # Perhaps of another home, and just bound by a runner that is about to listen.
                    gone = not os.path.lexists(self._home.session(id))
                    gone = gone and _is_old(os.path.join(runtime, name), _HALF_AGE_S)
                else:
                    gone = facts.finished
                if gone and self.attempt(name, self._unlink_refusing, directory, name):
                    self.swept.append(os.path.join(runtime, name))
        finally:
            os.close(directory)

    def launchers(self) -> None:
        """What a killed launcher left, under the lock that the next launcher takes first."""
        runtime = self._runtime_directory()
        for name in sorted(filter(_LAUNCHER.fullmatch, os.listdir(runtime))):
            path = os.path.join(runtime, name)
            if self.attempt(name, self._unlink_launcher, path):
                self.swept.append(path)

    def wake_sockets(self) -> None:
        """Those of hosts that were killed while they waited for signals."""
        from ..signals.waker import dead

        directory = os.path.join(self._runtime_directory(), wake.DIRECTORY)
        for path in dead(directory):
            if not self._dry_run:
                os.unlink(path)
            self.swept.append(path)

    def _unlink_launcher(self, path: str) -> bool:
        from ..runner import launcher, rehearsal

        lock = launcher.lock_path(path)
        try:
            fd = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            if not claims.lock_now(fd) or not claims.stands_at(fd, lock):
                return False
            if not self._dry_run:
                os.unlink(path)
                rehearsal.forget(rehearsal.scratch_path(path))
                os.unlink(lock)
            return True
        finally:
            os.close(fd)

    def _unlink_refusing(self, directory: int, name: str) -> bool:
        import socket

        before = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISSOCK(before.st_mode):
            return False
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # A stopped listener with a full backlog must not block us.
            probe.setblocking(False)
            if probe.connect_ex(f"/proc/self/fd/{directory}/{name}") != errno.ECONNREFUSED:
                return False
        after = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if (before.st_dev, before.st_ino) != (after.st_dev, after.st_ino):
            return False
        if not self._dry_run:
            os.unlink(name, dir_fd=directory)
        return True

    def locks(self, removed: set[str]) -> None:
        """Claims whose holder is gone; each under its own lock, against a claim at this moment."""
        for name in sorted({name.partition(".")[0] for name in os.listdir(self._home.locks)}):
            if _LOCK.fullmatch(name):
                path = os.path.join(self._home.locks, name)
                if self.attempt(name, self.unlink_stale, path, removed):
                    self.swept.append(path)

    def unlink_stale(self, path: str, removed: set[str]) -> bool:
        try:
            fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return self._unlink_beside(path)
        try:
            if not claims.lock_now(fd) or not claims.stands_at(fd, path):
                return False
            holder = claims.holder_of(os.pread(fd, 4096, 0))
            if holder and holder not in removed and os.path.lexists(self._home.session(holder)):
                return False
            if not self._dry_run:
                self._unlink_beside(path)
                os.unlink(path)
            return True
        finally:
            os.close(fd)

    def _unlink_beside(self, path: str) -> bool:
        """Remove the files beside a claim when they are old and unlocked."""
        old = [path + suffix for suffix in claims.BESIDE if _is_old(path + suffix, _BESIDE_AGE_S)]
        return bool([each for each in old if self._unlink_unheld(each)])

    def _unlink_unheld(self, path: str) -> bool:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            held = not claims.lock_now(fd) or not claims.stands_at(fd, path)
            if not held and not self._dry_run:
                os.unlink(path)
            return not held
        finally:
            os.close(fd)

    def broken_indexes(self, age_s: float | None) -> None:
        """Damaged indexes that were set aside."""
        for name in os.listdir(self._home.path):
            path = os.path.join(self._home.path, name)
            if name.startswith("index.db.broken-") and age_s is not None and _is_old(path, age_s):
                self.swept.append(path)
                if not self._dry_run:
                    self.attempt(name, os.unlink, path)


def _take_out(home: Home, id: str) -> str | None:
    """Rename it, so that readers no longer find it; None when another process was faster."""
    trash = f"{_TRASH}{id}-{os.urandom(4).hex()}"
    try:
        os.rename(home.session(id), os.path.join(home.sessions, trash))
    except FileNotFoundError:
        return None
    return trash


def _delete(parent: int, name: str) -> int:
    """Delete what `name` is, following no link; the bytes of the files that we (and no other) deleted.

    Inner directories move up beside `name` before they are emptied: neither the stack nor the open files grow with the
    depth of a tree."""
    freed, names = 0, [name]
    while names:
        name = names.pop()
        try:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                os.unlink(name, dir_fd=parent)
                freed += status.st_size if stat.S_ISREG(status.st_mode) else 0
                continue
            fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                for inner in os.listdir(fd):
                    freed += _delete_inner(fd, inner, parent, names)
            finally:
                os.close(fd)
            os.rmdir(name, dir_fd=parent)
        except FileNotFoundError:
            continue  # another collection was quicker
    return freed


def _delete_inner(directory: int, name: str, parent: int, names: list[str]) -> int:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=directory)
            return status.st_size if stat.S_ISREG(status.st_mode) else 0
        moved = f"{_TRASH}{os.urandom(8).hex()}"
        os.rename(name, moved, src_dir_fd=directory, dst_dir_fd=parent)
        names.append(moved)
    except FileNotFoundError:
        pass
    return 0


def _directory(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def _never_lived(path: str) -> bool:
    return os.path.isdir(path) and not has_lived(path)


def _abandoned(path: str) -> bool:
    locks = _lock_files(path)
    for fd in locks or ():
        os.close(fd)
    return locks is not None and _is_old(path, _HALF_AGE_S)


def _lock_files(path: str) -> list[int] | None:
    """Lock every file of a half directory; None when a starter has one of the locks: then it is alive."""
    fds: list[int] = []
    try:
        for name in os.listdir(path):
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
            fds.append(os.open(os.path.join(path, name), flags))
            # Shared, because a host that checks at the same moment must not take us for the starter.
            fcntl.flock(fds[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        for fd in fds:
            os.close(fd)
        return None
    return fds


def _is_old(path: str, age_s: float) -> bool:
    """By the time of the last change. A time in the future is never old: the clock jumped."""
    try:
        return time.time() - os.lstat(path).st_mtime >= age_s
    except FileNotFoundError:
        return False


def _free_bytes(home: Home) -> int:
    disk = os.statvfs(home.path)
    return disk.f_bavail * disk.f_frsize


def _read_stamp(home: Home) -> Moment | None:
    try:
        with open(home.gc_stamp, "rb") as file:
            changed = os.fstat(file.fileno()).st_mtime
            raw = file.read(4096)
    except OSError:
        return None
    try:
        record = jsontext.read(raw)
        return Moment(float(record["wall_s"]), float(record["boot_s"]), str(record["boot"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        # Damaged by a crash: its mtime still gives the time.
        return Moment(changed, 0.0, "")
