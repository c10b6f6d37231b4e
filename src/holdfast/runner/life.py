"""The life of one command, top to bottom: persist, spawn, serve, end.

Everything a host can learn later is on disk the moment it is true. The runner leaves when the exit is recorded and
no descendant lives.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import sys
import time
import traceback

from . import cgroup, clock, points, records, requests, spawn, tree, wire
from .deadlines import Deadlines
from .endpoint import Endpoint
from .ladder import Ladder, Rung, rungs
from .log import Log
from .loop import READ, Loop, Timer
from .stdin import Stdin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

    from .endpoint import Client

VERSION = "0.1.0"

READ_BYTES = 1 << 16
# A stream that fills whole reads gets a wider pipe and a buffer that is used again and again: fresh memory for every
# read costs more than the read.
_FLOOD_BYTES = 1 << 18
# So many reads of one stream in one turn of the loop, so that a flood cannot starve the rest.
_READS_A_TURN = 4
# After the exit: buffered output is read, then silence this long ends the drain, and this much in all.
_DRAIN_QUIET_S = 0.25
_DRAIN_S = 2.0
# Without pidfds the owner's life can only be asked for.
_OWNER_LOOK_S = 1.0
# Answers still on their way when everything else is done.
_FAREWELL_S = 1.0
# A record that the disk refused is written again after this; without the exit record we leave after so long.
_RECORD_AGAIN_S = 0.25
_UNTOLD_S = 10.0
# Beyond these a life has grown this process's memory enough to make a fresh one better.
_BRIEF_S = 10.0
_BRIEF_BYTES = 1 << 20
_DIAGNOSTICS_MAX_BYTES = 64 << 10
_PR_SET_CHILD_SUBREAPER = 36
# Loop, signals, directory, lock, log, endpoint, three pipes with both ends, and a few to look around with.
_DESCRIPTORS = 20


class Refused(Exception):
    """The start request cannot be carried out; nothing was spawned. Carries the error frame."""

    def __init__(self, code: str, message: str, /, **facts: object) -> None:
        super().__init__(message)
        self.frame = wire.error({}, code, message, **facts)


def live(channel: socket.socket, request: dict[str, Any], descriptors: list[int], warnings: Sequence[str] = ()) -> bool:
    """Carry out one start request and stay until the session is over. `warnings` are what its caller must know.
    True when it was a brief life that left this process as it was."""
    began = time.monotonic()
    try:
        _make_sure_of_descriptors()
        life = Life(request, descriptors, warnings)
    except Refused as refusal:
        channel.sendall(wire.control(refusal.frame))
        return False
    try:
        life.run(channel)
    except Exception:
        life.say(traceback.format_exc())
        raise
    return time.monotonic() - began < _BRIEF_S and life.log.size < _BRIEF_BYTES


def _make_sure_of_descriptors() -> None:
    """Refuse before anything exists what would otherwise fail half-way."""
    taken: list[int] = []
    try:
        for _ in range(_DESCRIPTORS):
            taken.append(os.dup(0))  # noqa: PERF401 - those taken must be known when the next is refused
    except OSError as problem:
        message = f"the runner needs {_DESCRIPTORS} descriptors and was given {len(taken)}: {problem.strerror}"
        raise Refused("spawn-error", message, errno=problem.errno, step="descriptors", path=None) from None
    finally:
        for fd in taken:
            os.close(fd)


class _Reserve:
    """One descriptor kept back: within, there is one for the files and looks without which no end can be told,
    even when clients or a lowered limit have taken all the others."""

    def __init__(self) -> None:
        self._fd: int | None = os.dup(0)

    def __enter__(self) -> None:
        self.close()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __exit__(self, *_: object) -> None:
        if self._fd is None:
            try:
                self._fd = os.dup(0)
            except OSError:
                pass  # the limit sank below even this one; the next pass tries again


class Life:
    version = VERSION

    def __init__(self, request: dict[str, Any], descriptors: list[int], warnings: Sequence[str] = ()) -> None:
        self.spec: dict[str, Any] = request["spec"]
        self.id: str = self.spec["id"]
        # What the caller wants next, so that even a command that ends at once is answered to somebody who waits.
        self._then: dict[str, Any] | None = request.get("then")
        claims = request.get("claims", 0)
        passed = list(zip(descriptors[claims:], self.spec["pass_fds"]))
        self.loop = Loop()
        self._reserve = _Reserve()
        self.nonce = os.urandom(16).hex()
        here = tree.here()
        self.boot, self.pidns, self.timens = here["boot"], here["pidns"], here["timens"]
        # A runner that dies before its first state record still says from where its processes can be verified.
        self.spec.update(boot=self.boot, pidns=self.pidns, timens=self.timens)
        self.runner = here["runner"]
        self.command: dict[str, Any] | None = None
        self.changed: dict[str, Any] = {}
        self.started_at: str | None = None
        self.ended_at: str | None = None
        self.exit: dict[str, Any] | None = None
        self.warnings: list[str] = list(warnings)
        self.error: dict[str, Any] | None = None
        self.stopping: dict[str, Any] | None = None
        self.waiters: list[requests.Waiter] = []

        self._cause: tuple[str, str | None] | None = None
        self._status: int | None = None
        self._rusage: Any = None
        self._ladder: Ladder | None = None
        self._ladder_timer: Timer | None = None
        self._sweep: tree.Sweep | None = None
        self._stopped: dict[str, Any] = {}
        self._call: Client | None = None
        self._owner_pidfd: int | None = None
        self._cgroup: cgroup.MemoryGroup | None = None
        self._outputs: dict[str, int] = {}
        self._floods: dict[str, bytearray] = {}
        self._drain_until = 0.0
        self._drain_timer: Timer | None = None
        self._extinct = False
        self._state_due: Timer | None = None
        self._untold = False
        self._untold_until: float | None = None
        self._untold_timer: Timer | None = None
        # Looking at the family costs a walk through /proc, so it is done when a death may have changed it.
        self._somebody_died = False

        self._directory = self._persist(request["home"])
        for fd in descriptors[:claims]:
            os.close(fd)  # the spec is on disk: whoever waits for the name or key may look now
        self.log = Log(
            self._directory,
            ["stdout"] if self.spec["merge_stderr"] else ["stdout", "stderr"],
            cap_bytes=self.spec["log_cap"],
            segment_bytes=self.spec["segment_bytes"],
            free_floor_bytes=self.spec["free_floor"],
            say=self.say,
        )
        self._listen_to_signals()
        self.endpoint = self._open_endpoint()
        self.deadlines = Deadlines(self.loop, self.spec, self._deadline_passed)
        self.stdin = Stdin(self.loop, None)
        try:
            self._spawn(request, passed)
        finally:
            for fd, _ in passed:
                os.close(fd)

    # -- starting ---------------------------------------------------------------------------------------------

    def _persist(self, home: str) -> int:
        """Spec on disk, room for the exit record taken, and the lock that says we live."""
        path = os.path.join(home, "sessions", self.id)
        try:
            if points.ACTIVE:
                points.hit("runner.before_directory")
            os.mkdir(path, 0o700)
        except FileExistsError:
            raise Refused("superseded", f"session {self.id} was given up by its host before we came") from None
        except OSError as problem:
            raise self._refused_by_disk(problem, path) from None
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            records.reserve_exit(directory)
            self._life_lock = records.write_locked(directory, "spec.json", self.spec)
        except OSError as problem:
            _forget(directory)
            os.close(directory)
            raise self._refused_by_disk(problem, path) from None
        if points.ACTIVE:
            points.hit("runner.spec_written")
        return directory

    def _refused_by_disk(self, problem: OSError, path: str) -> Refused:
        refusal = Refused(
            "disk-full",
            f"{path} cannot be written: {problem.strerror}; no process was started",
            path=path,
            free=_free_bytes(path),
            errno=problem.errno,
            reason=problem.strerror,
        )
        if problem.errno not in (errno.ENOSPC, errno.EDQUOT):
            refusal.frame["fix"] = "see that the home is writable and its disk sound, or set HOLDFAST_HOME to another"
        return refusal

    def _listen_to_signals(self) -> None:
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._wakeup = reader
        self._wakeup_writer = writer
        self._reap_due = True
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._on_signal)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.loop.watch(reader, READ, self._on_wakeup)
        if not points.off("subreaper"):
            become_subreaper()

    def _open_endpoint(self) -> Endpoint:
        path = self.spec["endpoint"]
        try:
            return Endpoint(
                self.loop,
                path,
                hello=self.hello,
                serve=lambda client, message: requests.serve(self, client, message),
                gone=self._client_gone,
            )
        except OSError as problem:
            _forget(self._directory)
            raise self._refused_by_disk(problem, path) from None

    def _spawn(self, request: dict[str, Any], passed: list[tuple[int, int]]) -> None:
        environment = dict(request["env"])
        environment[tree.SESSION_VARIABLE] = self.id
        try:
            self._cgroup = self._memory_group()
        except cgroup.Unavailable as problem:
            self.endpoint.close()
            _forget(self._directory)
            raise Refused(
                "unsupported",
                f"a memory limit needs a control group we may use: {problem}",
                feature="memory",
            ) from None
        try:
            if points.ACTIVE:
                points.hit("runner.before_spawn")
            if self._cgroup is None:
                started = spawn.spawn(self.spec, environment, passed)
            else:
                with self._cgroup:
                    started = spawn.spawn(self.spec, environment, passed)
        except spawn.SpawnFailed as problem:
            self.error = problem.record()
            self._cause = ("spawn_error", None)
            self._record_end()
            return
        if points.ACTIVE:
            points.hit("runner.spawned")
        self.started_at = clock.now_text()
        self.command = {
            "pid": started.pid,
            "start": tree.start_time(started.pid),
            "line": tree.command_line(started.pid) or spawn.arguments(self.spec),
        }
        self._outputs = started.outputs
        for name, fd in started.outputs.items():
            self._watch_output(name, fd)
        self.stdin = Stdin(self.loop, started.stdin)
        self._feed_input(request)
        self.write_state()
        if points.ACTIVE:
            points.hit("runner.state_written")
        self._watch_owner()

    def _memory_group(self) -> cgroup.MemoryGroup | None:
        return None if self.spec["memory"] is None else cgroup.MemoryGroup(self.id, self.spec["memory"])

    def _feed_input(self, request: dict[str, Any]) -> None:
        given = wire.from_text(request.get("input"))
        if given is not None:
            self.stdin.write(given)
            self.stdin.close("its input was given at the start and is complete")

    def _watch_owner(self) -> None:
        owner = self.spec["owner_process"]
        if self.spec["lifetime"] != "owner" or owner is None:
            return
        if points.ACTIVE:
            points.hit("runner.owner_look")
        try:
            if points.off("pidfd"):
                raise AttributeError
            self._owner_pidfd = os.pidfd_open(owner["pid"])
        except ProcessLookupError:
            self._end_for("owner_gone")
            return
        except (AttributeError, OSError):
            self._look_at_owner()
            return
        if not tree.same(owner["pid"], owner["start"]):
            self._end_for("owner_gone")
            return
        self.loop.watch(self._owner_pidfd, READ, lambda _events: self._owner_left())

    def _look_at_owner(self) -> None:
        owner = self.spec["owner_process"]
        if not tree.same(owner["pid"], owner["start"]):
            self._end_for("owner_gone")
        elif self.exit is None:
            self.loop.after(_OWNER_LOOK_S, self._look_at_owner)

    def _owner_left(self) -> None:
        if self._owner_pidfd is not None:
            self.loop.watch(self._owner_pidfd, 0, lambda _events: None)
            os.close(self._owner_pidfd)
            self._owner_pidfd = None
        self._end_for("owner_gone")

    # -- running ----------------------------------------------------------------------------------------------

    def run(self, channel: socket.socket) -> None:
        """Serve until the session is over. `channel` brought the start request and is our first client."""
        client = self.endpoint.adopt(channel, {"author": self.spec["author"]})
        if self.spec["lifetime"] == "call":
            self._call = client
        client.send(self.hello())
        if self._then is not None:
            requests.serve(self, client, self._then)
        if points.ACTIVE:
            points.hit("runner.answered")
        if self.exit is None or self._untold:
            self.loop.run(self._turn)
        requests.answer_waiters(self)
        self._farewell()

    def _turn(self) -> None:
        if self._told_to_leave:
            # Before the command is reaped: at a shutdown it was told too, and may be quicker than we are.
            self._told_to_leave = False
            self.stop(by="system", reason="stop", grace_s=None, climb=None)
        if self._reap_due:
            self._reap_due = False
            self._reap()
        if self._somebody_died and self._ladder is not None and self._sweep is None:
            self._climb()
        if self.exit is None and self._status is not None and not self._drain_pending():
            self._record_end()
            self._somebody_died = True
        if self._somebody_died and self.exit is not None:
            self._settle_rest()
        self._somebody_died = False
        requests.answer_waiters(self)

    def _watch_output(self, name: str, fd: int) -> None:
        self.loop.watch(fd, READ, lambda _events: self._read(name))

    def _read(self, name: str) -> None:
        fd = self._outputs[name]
        for _ in range(_READS_A_TURN):
            try:
                chunk = self._next_chunk(name, fd)
            except BlockingIOError:
                return
            if not chunk:
                self._close_output(name)
                return
            if points.ACTIVE:
                points.hit("runner.output")
            self.log.append(name, chunk)
            self.deadlines.output()
            if self._status is not None and self.exit is None:
                self._drain_quietly()
            if len(chunk) < READ_BYTES:
                return
            if name not in self._floods:
                spawn.widen(fd)
                self._floods[name] = bytearray(_FLOOD_BYTES)

    def _next_chunk(self, name: str, fd: int) -> bytes | bytearray:
        flood = self._floods.get(name)
        if flood is None:
            return os.read(fd, READ_BYTES)
        size = os.readv(fd, [flood])
        return flood if size == len(flood) else bytes(memoryview(flood)[:size])

    def _close_output(self, name: str) -> None:
        fd = self._outputs.pop(name)
        self._floods.pop(name, None)
        self.loop.watch(fd, 0, lambda _events: None)
        os.close(fd)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGCHLD:
            self._reap_due = True
        elif number == signal.SIGCONT:
            self.loop.woke()
        else:
            self._told_to_leave = True

    _told_to_leave = False

    def _on_wakeup(self, _events: int) -> None:
        try:
            os.read(self._wakeup, 4096)
        except BlockingIOError:
            pass
        self._reap_due = True

    def _reap(self) -> None:
        """Collect the command and every orphan that became ours."""
        while True:
            try:
                pid, status, rusage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                self._extinct = self._somebody_died = True
                return
            if pid == 0:
                return
            self._somebody_died = True
            if self.command is not None and pid == self.command["pid"] and self._status is None:
                self._status, self._rusage = status, rusage
                self._command_left()

    def _command_left(self) -> None:
        if points.ACTIVE:
            points.hit("runner.reaped")
        self.ended_at = clock.now_text()
        if self._cause is None:
            late = self.deadlines.overdue()
            if late is not None:
                self._cause = (late, None)
        self.deadlines.cancel()
        self.stdin.abandon("the command has ended")
        self._drain_until = time.monotonic() + _DRAIN_S
        for name in list(self._outputs):
            self._read_buffered(name)
        if self._outputs or self._ladder is not None:
            self._drain_quietly()

    def _read_buffered(self, name: str) -> None:
        """Read what was printed up to now, and its end where it is there. No more: somebody else who holds the pipe
        may print for ever."""
        end = self.log.ends()[name] + spawn.buffered(self._outputs[name])
        more = True
        while more and name in self._outputs:
            more = self.log.ends()[name] < end
            self._read(name)

    def _drain_quietly(self) -> None:
        """Somebody still holds a pipe: give its output a moment of silence before the end is recorded. Or the rest of
        the tree is being ended: give it a moment to go, so that the record need not name it."""
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        wait_s = min(_DRAIN_QUIET_S, max(0.0, self._drain_until - time.monotonic()))
        self._drain_timer = self.loop.after(wait_s, self._drained)

    def _drained(self) -> None:
        self._drain_timer = None
        if self._ladder is not None and time.monotonic() < self._drain_until:
            self._drain_quietly()  # whoever is left is being ended
        elif self.exit is None:
            self._record_end()
            requests.answer_waiters(self)

    def _drain_pending(self) -> bool:
        return self._drain_timer is not None and (bool(self._outputs) or self._ladder is not None)

    # -- ending -----------------------------------------------------------------------------------------------

    def living(self) -> list[tree.Process]:
        if self._extinct:
            return []
        with self._reserve:
            return tree.descendants(os.getpid())

    def stop(self, *, by: str | None, reason: str, grace_s: float | None, climb: list[dict[str, Any]] | None) -> None:
        """Start the ladder, or join the one under way: whoever asks later gets the same answer. Asking for less
        grace than is left hurries it."""
        if self._cause is None:
            self._cause = (reason, by)
        grace = self.spec["grace"] if grace_s is None else grace_s
        if self._ladder is not None:
            if grace == 0 and self._ladder.rung is not None and self._ladder.rung.signal != "KILL":
                self._ladder = Ladder(rungs(0))
                self._climb()
            return
        self._ladder = Ladder(rungs(grace, climb or self.spec["stop_ladder"]))
        self.stopping = {"by": by, "since": clock.now_text(), "stage": None}
        self._stopped = {
            "found": tree.described(self.living()),
            "began": time.monotonic(),
            "survivors": [],
            "rung": None,
        }
        self._climb()

    def _end_for(self, cause: str) -> None:
        if self.exit is None:
            self.stop(by=None, reason=cause, grace_s=None, climb=None)

    def _deadline_passed(self, cause: str) -> None:
        if self._status is None:
            self._end_for(cause)

    def _climb(self) -> None:
        assert self._ladder is not None
        living = self.living()
        rung = self._ladder.step(time.monotonic(), command_gone=self._status is not None, tree_gone=not living)
        if self._ladder.over:
            self._stop_done([tree.describe(process) for process in living])
        elif rung is not None:
            if points.ACTIVE:
                points.hit("runner.rung")
            self.stopping = {**(self.stopping or {}), "stage": str(rung)}
            self._stopped["rung"] = str(rung)
            self._act(rung, living)

    def _act(self, rung: Rung, living: list[tree.Process]) -> None:
        assert self._ladder is not None
        if rung.signal == "KILL" and rung.target != "command":
            self._sweep = tree.Sweep(self.living, rung.wait_s)
            self._step_sweep()
            return
        self.signal_members(rung.target, getattr(signal, "SIG" + rung.signal), living)
        if rung.signal != "KILL":
            # A stopped process does not even see the signal before it is continued.
            self.signal_members(rung.target, signal.SIGCONT, living)
        if self._ladder_timer is not None:
            self._ladder_timer.cancel()
        self._ladder_timer = self.loop.after(max(0.0, self._ladder.until - time.monotonic()), self._climb_if_due)

    def _climb_if_due(self) -> None:
        if self._ladder is not None and self._sweep is None:
            self._climb()

    def _step_sweep(self) -> None:
        if self._sweep is None:
            return
        self._reap()
        survivors = self._sweep.step()
        self._reap()
        if survivors is None:
            self.loop.after(self._sweep.pause_s, self._step_sweep)
            return
        self._sweep = None
        self._stop_done(survivors)

    def _stop_done(self, survivors: list[dict[str, Any]]) -> None:
        """The answer is complete once the exit, if there is one, is recorded too."""
        self._ladder = None
        if self._ladder_timer is not None:
            self._ladder_timer.cancel()
        self._stopped["survivors"] = survivors
        self._stopped["took_s"] = round(time.monotonic() - self._stopped["began"], 3)
        self._stopped["done"] = True
        self._somebody_died = True  # the sweep has reaped: what is left is looked at once more

    def stop_answer(self) -> dict[str, Any] | None:
        """What a finished stop found and left; None while it is under way."""
        if not self._stopped.get("done") or (self.exit is None and self._status is not None):
            return None
        return {name: self._stopped[name] for name in ("found", "survivors", "rung", "took_s")}

    def signal_members(self, target: str, number: int, living: list[tree.Process]) -> int:
        assert self.command is not None
        pid = self.command["pid"]
        members = {
            "command": [process for process in living if process.pid == pid],
            "group": [process for process in living if process.group == pid],
            "tree": living,
        }[target]
        for process in members:
            tree.send(process, number)
        return len(members)

    def _record_end(self) -> None:
        """Log first, then the record: its presence says that the log is complete up to the recorded end."""
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None
        if self.ended_at is None:
            self.ended_at = clock.now_text()
        durable = not any(waiter.for_exit for waiter in self.waiters)
        self._fenced = self.log.facts()
        self._judge_exit()
        if self._state_due is not None:
            self.write_state()
        if durable:
            try:
                with self._reserve:
                    self.log.sync()
            except OSError as problem:
                self._warn(f"the log could not be synced: {problem.strerror}")
        self._write_exit(durable)
        if points.ACTIVE:
            points.hit("runner.exit_written")

    def _judge_exit(self) -> None:
        code = number = None
        if self._status is not None:
            if os.WIFSIGNALED(self._status):
                number = os.WTERMSIG(self._status)
            else:
                code = os.WEXITSTATUS(self._status)
        oom = self._cgroup is not None and self._cgroup.oom_kills() > 0
        if self._cause is None:
            # A shell whose child the kernel took says so in its own code.
            starved = oom and (number == signal.SIGKILL or code == 128 + signal.SIGKILL)
            self._cause = ("out_of_memory" if starved else "exit" if number is None else "signal", None)
        cause, by = self._cause
        survivors = tree.described(self.living())
        self.exit = {
            "code": code,
            "signal": None if number is None else _signal_name(number),
            "cause": cause,
            "by": by,
            "oom": oom,
            "complete": not self._outputs,
            "survivors": survivors,
        }

    def _write_exit(self, durable: bool) -> None:
        rusage = self._rusage
        record = {
            "v": 1,
            "exit": self.exit,
            "started_at": self.started_at,
            "ended_at": self.ended_at,
            "rusage": rusage
            and {"user_s": rusage.ru_utime, "system_s": rusage.ru_stime, "max_rss_kb": rusage.ru_maxrss},
            "error": self.error,
            "rung": self._stopped.get("rung"),
            "warnings": self.warnings + self.log.warnings,
            "last_output_at": self._last_output_at(),
            **self._fenced,
        }
        try:
            with self._reserve:
                records.write_exit(self._directory, record, durable=durable)
        except OSError as problem:
            self._warn(f"exit.json could not be written: {problem.strerror}")
            self._untold = self._may_tell_later(problem)
        else:
            self._untold = False

    def _may_tell_later(self, problem: OSError) -> bool:
        """A disk that refuses for a moment must not make the ending unknown. One that does so for long, or whose
        directory somebody removed, is left to say `lost`."""
        now = time.monotonic()
        if self._untold_until is None:
            self._untold_until = now + _UNTOLD_S
        if problem.errno == errno.ENOENT or now > self._untold_until:
            return False
        if self._untold_timer is not None:
            self._untold_timer.cancel()
        self._untold_timer = self.loop.after(_RECORD_AGAIN_S, self._tell_again)
        return True

    def _tell_again(self) -> None:
        self._write_exit(durable=True)
        self._settle_rest()

    def _settle_rest(self) -> None:
        """After the exit: descendants may live on. When the last is gone, say so and leave."""
        assert self.exit is not None
        if self._ladder is not None or self._sweep is not None:
            return
        if self.living():
            return
        self._extinct = True
        if self.exit["survivors"] or not self.exit["complete"]:
            for name in list(self._outputs):
                self._read_buffered(name)
            self.exit["survivors"] = []
            self.exit["complete"] = not self._outputs
            self._write_exit(durable=True)
        if not self._untold:
            self.loop.leave()

    def _farewell(self) -> None:
        """Unlink the endpoint, let answers go out, leave nothing open behind the last reader."""
        self.endpoint.close()
        deadline = time.monotonic() + _FAREWELL_S
        for client in list(self.endpoint.clients):
            client.close_after_sending()
        while self.endpoint.clients and time.monotonic() < deadline:
            for key, events in self.loop.selector.select(max(0.0, deadline - time.monotonic())):
                key.data(events)
        if self._cgroup is not None:
            self._cgroup.remove()
        self.log.close()
        self._reserve.close()
        self.loop.close()
        signal.set_wakeup_fd(-1)
        for fd in (self._wakeup, self._wakeup_writer, self._directory, self._life_lock):
            os.close(fd)

    def _client_gone(self, client: Client) -> None:
        self.waiters = [waiter for waiter in self.waiters if waiter.client is not client]
        if client is self._call:
            self._call = None
            self._end_for("owner_gone")

    def outlive_call(self) -> None:
        """The call that started us returned; its connection no longer holds our life."""
        self._call = None

    # -- telling ----------------------------------------------------------------------------------------------

    def hello(self) -> dict[str, Any]:
        return {
            "type": "hello",
            "protocol": wire.PROTOCOL,
            "version": VERSION,
            "features": list(requests.FEATURES),
            "identity": {
                "id": self.id,
                "nonce": self.nonce,
                "boot": self.boot,
                "pidns": self.pidns,
                "timens": self.timens,
                "runner": self.runner,
                "command": self.command,
            },
            "status": self.status(),
        }

    def status(self) -> dict[str, Any]:
        exited = self.exit is not None
        return {
            "state": "exited" if exited else "running" if self.command else "starting",
            "pid": self.command and self.command["pid"],
            "started_at": self.started_at,
            "ended_at": self.ended_at if exited else None,
            "stopping": None if exited else self.stopping,
            "stopped_by_signal": self._stopped_by_signal(),
            "exit": self.exit,
            "error": self.error,
            "last_output_at": self._last_output_at(),
            "attached": {"control": 0, "observe": 0},
            "stdin": "open" if self.stdin.is_open else "closed",
            "warnings": self.warnings + self.log.warnings,
            **self.log.facts(),
            **{name: self.now(name) for name in requests.CHANGEABLE},
        }

    def _stopped_by_signal(self) -> bool:
        """Is the command held by SIGSTOP or its like? It looks idle, and is not."""
        if self.command is None or self._status is not None:
            return False
        with self._reserve:
            process = tree.look(self.command["pid"])
        return process is not None and process.state in "Tt"

    def _last_output_at(self) -> str | None:
        last = self.log.last_output_wall_ns
        return None if last is None else clock.rfc3339(last)

    def now(self, name: str) -> Any:
        """A field of the spec as `update` left it."""
        return self.changed.get(name, self.spec[name])

    def write_state(self) -> None:
        assert self.command is not None
        if self._state_due is not None:
            self._state_due.cancel()
            self._state_due = None
        record = {
            "v": 1,
            "boot": self.boot,
            "pidns": self.pidns,
            "timens": self.timens,
            "nonce": self.nonce,
            "protocol": wire.PROTOCOL,
            "version": VERSION,
            "runner": self.runner,
            "command": self.command,
            "pgid": self.command["pid"],
            "endpoint": self.spec["endpoint"],
            "started_at": self.started_at,
            "attempt": 1,
            "changed": self.changed,
        }
        try:
            with self._reserve:
                records.write(self._directory, "state.json", record)
        except OSError as problem:
            # The command already runs; whoever looks finds it by our endpoint, which the spec names too.
            self._warn(f"state.json could not be written: {problem.strerror}")
            if problem.errno != errno.ENOENT:
                self._state_due = self.loop.after(_RECORD_AGAIN_S, self.write_state)

    def read_log(self, stream: str, since: int, limit: int) -> tuple[int, bytes]:
        """Bytes of one stream for a client that cannot read our files."""
        return requests.read_segments(self._directory, stream, since, limit)

    def _warn(self, text: str) -> None:
        """Once, to whoever asks for the status and in the records."""
        if text not in self.warnings:
            self.warnings.append(text)
            self.say(text)

    def say(self, text: str) -> None:
        """Into `runner.log`, bounded; a runner has nobody else to tell."""
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open("runner.log", flags, 0o600, dir_fd=self._directory)
            try:
                if os.fstat(fd).st_size < _DIAGNOSTICS_MAX_BYTES:
                    os.write(fd, f"{clock.now_text()} {text}\n".encode("utf-8", "replace"))
            finally:
                os.close(fd)
        except OSError:
            pass


def _forget(directory: int) -> None:
    """Nothing was spawned and nobody was told of this session: leave no trace."""
    try:
        for name in os.listdir(directory):
            os.unlink(name, dir_fd=directory)
        os.rmdir(os.readlink(f"/proc/self/fd/{directory}"))
    except OSError:
        pass  # a disk that takes nothing may also let nothing go; a collection sweeps it later


def _free_bytes(path: str) -> int | None:
    try:
        disk = os.statvfs(os.path.dirname(path))
    except OSError:
        return None
    return disk.f_bavail * disk.f_frsize


def become_subreaper() -> None:
    """Orphans of the command come to us instead of init, so none is lost from sight."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


_libc = ctypes.CDLL(None, use_errno=True)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
