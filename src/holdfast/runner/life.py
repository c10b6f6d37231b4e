"""The life of one command, top to bottom: persist, spawn, serve, end.

Everything a host can learn later is on disk the moment it is true. The runner leaves when the exit is recorded and
no descendant lives.
"""

from __future__ import annotations

import errno
import os
import time

from . import cgroup, clock, descriptors, points, records, requests, spawn, telling, tree, wire
from .deadlines import Deadlines, asked_at
from .diary import Diary
from .ending import AGAIN_S, Ending
from .endpoint import Endpoint
from .family import Family, become_subreaper
from .inputs import Inputs
from .kernel_signals import signal
from .log import Log
from .loop import READ, Loop, Timer
from .outputs import Outputs
from .owner import Owner
from .stdin import ENDED, GIVEN, Stdin
from .stopping import Stopping
from .terminal import Terminal
from .tty import Tty, Unavailable, has_terminfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket as socket
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

    from .endpoint import Client
    from .keyboard import Keyboard

# After the exit: buffered output is read, then silence this long ends the drain, and this much in all.
_DRAIN_QUIET_S = 0.25
_DRAIN_S = 2.0
# Answers still on their way when everything else is done.
_FAREWELL_S = 1.0
# A state record that was refused is tried again first soon, then ever more seldom: the disk may stay as it is for days.
_STATE_AGAIN_MAX_S = 30.0
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Beyond these a life has grown this process's memory enough to make a fresh one better.
_BRIEF_S = 10.0
_BRIEF_BYTES = 1 << 20


class Refused(Exception):
    """The start request cannot be carried out; nothing was spawned. Carries the error frame."""

    def __init__(self, code: str, message: str, /, **facts: object) -> None:
        super().__init__(message)
        self.frame = wire.error({}, code, message, **facts)


def live(channel: socket.socket, request: dict[str, Any], passed: list[int], warnings: Sequence[str] = ()) -> bool:
    """Carry out one start request and stay until the session is over. `warnings` are what its caller must know.
    True when it was a brief life that left this process as it was."""
    began = time.monotonic()
    try:
        descriptors.make_sure()
        life = Life(request, passed, warnings)
    except descriptors.TooFew as problem:
        refusal = Refused("spawn-error", str(problem), errno=problem.errno, step="descriptors", path=None)
        channel.sendall(wire.control(refusal.frame))
        return False
    except Refused as refusal:
        channel.sendall(wire.control(refusal.frame))
        return False
    try:
        life.run(channel)
    except Exception as problem:
        life.diary.tell(problem)
        raise
    return time.monotonic() - began < _BRIEF_S and life.log.size < _BRIEF_BYTES and life.family.childless()


class Life:
    def __init__(self, request: dict[str, Any], passed: list[int], warnings: Sequence[str]) -> None:
        self.spec: dict[str, Any] = request["spec"]
        self.id: str = self.spec["id"]
        # What the caller wants next, so that even a command that ends at once is answered to somebody who waits.
        self._then: dict[str, Any] | None = request.get("then")
        claims = request.get("claims", 0)
        self.loop = Loop()
        self._reserve = descriptors.Reserve()
        self._identify()
        self._directory = self._persist(request["home"])
        for fd in passed[:claims]:
            os.close(fd)  # the spec is on disk: whoever waits for the name or key may look now

        self.diary = Diary(self._directory, warnings)
        self.inputs = Inputs(self._directory, self.diary.say)
        self.log = Log(
            self._directory,
            _streams(self.spec),
            cap_bytes=self.spec["log_cap"],
            segment_bytes=self.spec["segment_bytes"],
            free_floor_bytes=self.spec["free_floor"],
            say=self.diary.say,
        )
        self.family = Family(self._reserve)
        self.ending = Ending(
            self.loop,
            self._directory,
            self.log,
            self.diary,
            self._reserve,
            facts=self._exit_facts,
            settled=self._settle_rest,
        )
        self.outputs = Outputs(self.loop, self.log, self._heard)
        self.stdin: Stdin | Keyboard = Stdin(self.loop, None)
        # The terminal half, of a session that has one.
        self.terminal: Terminal | None = None
        self.changed: dict[str, Any] = {}
        self.started_at: str | None = None
        self.waiters: list[requests.Waiter] = []
        self._stopping: Stopping | None = None
        self._memory: cgroup.MemoryGroup | None = None
        self._owner: Owner | None = None
        self._call: Client | None = None
        self._drain_until = 0.0
        self._drain_timer: Timer | None = None
        self._state_due: Timer | None = None
        self._state_again_s = AGAIN_S
        # Set by signal handlers, looked at in each turn.
        self._reap_due = True
        self._told_to_leave = False

        self._listen_to_signals()
        self.endpoint = self._open_endpoint()
        self.deadlines = Deadlines(self.loop, self.spec, self._end_for, asked_at(request, self.here.get("timens")))
        self._memory = self._limit_memory()
        try:
            self._spawn(request, list(zip(passed[claims:], self.spec["pass_fds"])))
        finally:
            for fd in passed[claims:]:
                os.close(fd)

    def run(self, channel: socket.socket) -> None:
        """Serve until the session is over. `channel` brought the start request and is our first client."""
        client = self.endpoint.adopt(channel, {"author": self.spec["author"]})
        if self.spec["lifetime"] == "call":
            self._call = client
        client.send(telling.hello(self))
        if self._then is not None:
            requests.serve(self, client, self._then)
        if points.ACTIVE:
            points.hit("runner.answered")
        if self.exit is None or self.ending.untold:
            self.loop.run(self._turn)
        requests.answer_waiters(self)
        self._farewell()

    def _turn(self) -> None:
        """What every turn of the loop ends with: deaths are noticed, ladders climbed, ends recorded, waiters told."""
        if self._told_to_leave:
            # Before the command is reaped: at a shutdown it was told too, and may be quicker than we are.
            self._told_to_leave = False
            self.stop(by="system", grace_s=None, climb=None)
        if self._reap_due:
            self._reap_due = False
            self._reap()
        if self.family.somebody_died and self._stopping is not None:
            self._stopping.climb()
        if self.exit is None and self.family.command_gone and not self._draining:
            self._record_end()
        if self.family.somebody_died and self.exit is not None:
            self._settle_rest()
        self.family.somebody_died = False
        if self.terminal is not None:
            self.terminal.turn()
        requests.answer_waiters(self)

    # Starting.

    def _identify(self) -> None:
        self.nonce = os.urandom(16).hex()
        self.here = tree.here()
        # A runner that dies before its first state record still says from where its processes can be verified.
        self.spec.update((part, value) for part, value in self.here.items() if part != "runner")

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
            raise _refused_by_disk(problem, path) from None
        directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            records.reserve_exit(directory)
            self._life_lock = records.write_locked(directory, "spec.json", self.spec)
        except OSError as problem:
            _forget(directory)
            os.close(directory)
            raise _refused_by_disk(problem, path) from None
        if points.ACTIVE:
            points.hit("runner.spec_written")
        return directory

    def _listen_to_signals(self) -> None:
        self._wakeup, self._wakeup_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT):
            signal.signal(number, self._on_signal)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.loop.watch(self._wakeup, READ, self._on_wakeup)
        if not points.off("subreaper"):
            become_subreaper()

    def _open_endpoint(self) -> Endpoint:
        path = self.spec["endpoint"]
        try:
            return Endpoint(
                self.loop,
                path,
                hello=lambda: telling.hello(self),
                serve=lambda client, message: requests.serve(self, client, message),
                gone=self._client_gone,
                failed=self.diary.tell,
            )
        except OSError as problem:
            _forget(self._directory)
            if problem.errno in _FULL:
                raise _refused_by_disk(problem, path) from None
            message = f"endpoint {path}: {problem.strerror}; no process was started"
            raise Refused("spawn-error", message, errno=problem.errno, step="endpoint", path=path) from None

    def _limit_memory(self) -> cgroup.MemoryGroup | None:
        if self.spec["memory"] is None:
            return None
        try:
            group = cgroup.MemoryGroup(self.id, self.spec["memory"])
            with group:
                pass  # may we enter it at all?
            return group
        except (cgroup.Unavailable, OSError) as problem:
            self._give_up()
            message = f"a memory limit needs a control group we may use: {problem}"
            raise Refused("unsupported", message, feature="memory") from None

    def _open_tty(self) -> Tty | None:
        """Never replaced by pipes: who asked for a terminal and cannot have one is told."""
        if not self.spec["tty"]:
            return None
        try:
            rows, cols = self.spec["size"]
            return Tty(rows, cols, echo=self.spec["tty"]["echo"])
        except Unavailable as problem:
            self._give_up()
            facts = {"errno": problem.errno, "used": problem.used, "allowed": problem.allowed}
            raise Refused("pty-unavailable", f"{problem}; no process was started", **facts) from None

    def _give_up(self) -> None:
        """Nothing was spawned yet: leave no trace of this session."""
        self.endpoint.close()
        if self._memory is not None:
            self._memory.remove()
        _forget(self._directory)

    def _spawn(self, request: dict[str, Any], passed: list[tuple[int, int]]) -> None:
        environment = {**request["env"], tree.SESSION_VARIABLE: self.id}
        tty = self._open_tty()
        try:
            if points.ACTIVE:
                points.hit("runner.before_spawn")
            if self._memory is None:
                started = spawn.spawn(self.spec, environment, passed, tty)
            else:
                with self._memory:
                    started = spawn.spawn(self.spec, environment, passed, tty)
        except spawn.SpawnFailed as problem:
            self.ending.error = problem.record()
            self.ending.blame("spawn_error")
            self._record_end()
            if tty is not None:
                tty.close()
            return
        if points.ACTIVE:
            points.hit("runner.spawned")
        self.started_at = clock.now_text()
        self.family.command = {
            "pid": started.pid,
            "start": tree.start_time(started.pid),
            "line": tree.command_line(started.pid) or spawn.arguments(self.spec),
        }
        if tty is None:
            self.stdin = Stdin(self.loop, started.stdin)
        else:
            if not has_terminfo(environment):
                self.diary.warn(f"terminfo_missing: nothing is known here about TERM={environment['TERM']}")
            self.terminal = Terminal(self, tty, self._directory, environment)
            self.stdin = self.terminal.keyboard
        self.outputs.open(started.outputs)
        given = wire.from_text(request.get("input"))
        if given is not None:
            self.stdin.write(given)
            if isinstance(self.stdin, Stdin):
                self.stdin.close(GIVEN)
        self.write_state()
        if points.ACTIVE:
            points.hit("runner.state_written")
        if self.spec["lifetime"] == "owner":
            self._owner = Owner(self.loop, self.spec["owner_process"], lambda: self._end_for("owner_gone"))

    # Running.

    def _heard(self, _stream: str, chunk: bytes | bytearray) -> None:
        if self.terminal is not None:
            self.terminal.heard(bytes(chunk))
        self.deadlines.output()
        if self.family.command_gone and self.exit is None:
            self._drain_quietly()

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGCHLD:
            self._reap_due = True
        elif number == signal.SIGCONT:
            self.loop.woke()
        else:
            self._told_to_leave = True

    def _on_wakeup(self, _events: int) -> None:
        try:
            os.read(self._wakeup, 4096)
        except BlockingIOError:
            pass
        self._reap_due = True

    def _client_gone(self, client: Client) -> None:
        self.waiters = [waiter for waiter in self.waiters if waiter.client is not client]
        if self.terminal is not None:
            self.terminal.gone(client)
        if client is self._call:
            self._call = None
            self._end_for("owner_gone")

    def detach(self) -> None:
        """Neither the call that started us nor an owner holds our life any longer."""
        self._call = None
        if self._owner is not None:
            self._owner.close()
            self._owner = None

    # Ending.

    def stop(self, *, by: str | None, grace_s: float | None, climb: list[dict[str, Any]] | None) -> None:
        """Start the ladder, or join the one under way: whoever asks later gets the same answer. Asking for no grace
        hurries it."""
        self._end("stop", by, grace_s, climb)

    def _end_for(self, cause: str) -> None:
        """A limit on this session's life has passed: also on what outlives its command."""
        if self.exit is None or self.family.living():
            self._end(cause, None, None, None)

    def _end(self, cause: str, by: str | None, grace_s: float | None, climb: list[dict[str, Any]] | None) -> None:
        self.ending.blame(cause, by)
        grace = self.spec["grace"] if grace_s is None else grace_s
        if self._stopping is not None and self._stopping.under_way:
            if grace == 0:
                self._stopping.hurry()
            return
        if climb is None and grace_s != 0:
            climb = self.spec["stop_ladder"]  # but who asks for no grace at all wants it gone
        interrupt = None if self.terminal is None else self.terminal.interrupt
        self._stopping = Stopping(
            self.loop, self.family, by=by, grace_s=grace, climb=climb, reap=self._reap, interrupt=interrupt
        )
        self._stopping.climb()

    def stop_answer(self) -> dict[str, Any] | None:
        """The answer of a finished stop, once the exit it led to is recorded too."""
        if self._stopping is None or (self.exit is None and self.family.command_gone):
            return None
        return self._stopping.answer

    def _reap(self) -> None:
        if self.family.reap():
            self._command_left()

    def _command_left(self) -> None:
        if points.ACTIVE:
            points.hit("runner.reaped")
        self.ending.at = clock.now_text()
        late = self.deadlines.overdue()
        if late is not None:
            self.ending.blame(late)
        self.deadlines.command_left()
        if self.terminal is None:
            self.stdin.abandon(ENDED)
        else:
            self.terminal.command_left()
        self._drain_until = time.monotonic() + _DRAIN_S
        self.outputs.read_buffered()
        if self.outputs.are_open or self._stop_under_way:
            self._drain_quietly()

    @property
    def _stop_under_way(self) -> bool:
        return self._stopping is not None and self._stopping.under_way

    @property
    def _draining(self) -> bool:
        return self._drain_timer is not None and (self.outputs.are_open or self._stop_under_way)

    def _drain_quietly(self) -> None:
        """Somebody still holds a pipe: give its output a moment of silence before the end is recorded. Or the rest of
        the tree is being ended: give it a moment to go, so that the record need not name it."""
        self._cancel_drain()
        wait_s = min(_DRAIN_QUIET_S, max(0.0, self._drain_until - time.monotonic()))
        self._drain_timer = self.loop.after(wait_s, self._drained)

    def _cancel_drain(self) -> None:
        if self._drain_timer is not None:
            self._drain_timer.cancel()
            self._drain_timer = None

    def _drained(self) -> None:
        self._drain_timer = None
        if self._stop_under_way and time.monotonic() < self._drain_until:
            self._drain_quietly()  # whoever is left is being ended
        elif self.exit is None:
            self._record_end()

    def _record_end(self) -> None:
        self._cancel_drain()
        # At a shutdown everybody is told one after the other, and a command that leaves at once may be reaped before it
        # is our turn. This is the last look: who tells us after the end was judged comes after the end.
        if self._told_to_leave:
            self.ending.blame("stop", "system")
        self.ending.judge(self.family, self._memory, complete=not self.outputs.are_open)
        if self._state_due is not None:
            self.write_state()
        # An ending that nobody was given is worth the wait for the disk: a power loss must not make it a lie.
        self.ending.write(durable=not any(waiter.for_exit for waiter in self.waiters))
        if points.ACTIVE:
            points.hit("runner.exit_written")
        if self.terminal is not None:
            self.terminal.ended()
        self.family.somebody_died = True

    def _exit_facts(self) -> dict[str, Any]:
        used = self.family.rusage
        return {
            "started_at": self.started_at,
            "rusage": used and {"user_s": used.ru_utime, "system_s": used.ru_stime, "max_rss_kb": used.ru_maxrss},
            "rung": self._stopping and self._stopping.rung,
            "warnings": self.warnings,
            "last_output_at": telling.last_output_at(self),
        }

    def _settle_rest(self) -> None:
        """After the exit: descendants may live on. When the last is gone, say so and leave."""
        assert self.exit is not None
        if self._stop_under_way or self.family.living():
            return
        if self.exit["survivors"] or not self.exit["complete"]:
            self.outputs.read_buffered()
            self.exit["survivors"], self.exit["survivors_more"] = [], 0
            self.exit["complete"] = not self.outputs.are_open
            self.ending.write(durable=True)
        if not self.ending.untold:
            self.loop.leave()

    def _farewell(self) -> None:
        """Unlink the endpoint, let answers go out, leave nothing open behind the last reader."""
        self.endpoint.close()
        deadline = time.monotonic() + _FAREWELL_S
        for client in list(self.endpoint.clients):
            if client.stream is None:
                client.close_after_sending()
            else:
                client.stream.leave()
        while self.endpoint.clients and time.monotonic() < deadline:
            self.loop.serve(self.loop.ready(max(0.0, deadline - time.monotonic())))
        for client in list(self.endpoint.clients):
            client.close()
        if self._memory is not None:
            self._memory.remove()
        if self._owner is not None:
            self._owner.close()
        self.outputs.close()
        if self.terminal is not None:
            self.terminal.close()
        self.inputs.close()
        self.log.close()
        self._reserve.close()
        self.loop.close()
        signal.set_wakeup_fd(-1)
        for fd in (self._wakeup, self._wakeup_writer, self._directory, self._life_lock):
            os.close(fd)

    # What others may know.

    @property
    def stopping(self) -> dict[str, Any] | None:
        return None if self._stopping is None else self._stopping.facts()

    @property
    def exit(self) -> dict[str, Any] | None:
        return self.ending.exit

    @property
    def warnings(self) -> list[str]:
        return self.diary.warnings + self.log.warnings

    def now(self, name: str) -> Any:
        """A field of the spec as `update` left it."""
        return self.changed.get(name, self.spec[name])

    def write_state(self) -> None:
        if self._state_due is not None:
            self._state_due.cancel()
            self._state_due = None
        try:
            with self._reserve:
                records.write(self._directory, "state.json", telling.state(self))
        except OSError as problem:
            # The command already runs; whoever looks finds it by our endpoint, which the spec names too.
            self.diary.warn(f"state.json could not be written: {problem.strerror}")
            if problem.errno != errno.ENOENT:
                self._state_due = self.loop.after(self._state_again_s, self.write_state)
                self._state_again_s = min(2 * self._state_again_s, _STATE_AGAIN_MAX_S)
        else:
            self._state_again_s = AGAIN_S


def _streams(spec: dict[str, Any]) -> list[str]:
    if spec["tty"]:
        return ["tty"]
    return ["stdout"] if spec["merge_stderr"] else ["stdout", "stderr"]


def _refused_by_disk(problem: OSError, path: str) -> Refused:
    refusal = Refused(
        "disk-full",
        f"{path} cannot be written: {problem.strerror}; no process was started",
        path=path,
        free=_free_bytes(path),
        errno=problem.errno,
        reason=problem.strerror,
    )
    if problem.errno not in _FULL:
        refusal.frame["fix"] = "see that the home is writable and its disk sound, or set HOLDFAST_HOME to another"
    return refusal


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
