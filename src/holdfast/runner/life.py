"""The life of one session, top to bottom: persist, spawn, serve, start again or end.

Everything a host can learn later is on disk the moment it is true. The runner leaves when the exit is recorded and
told, and no descendant lives.
"""

from __future__ import annotations

import errno
import os
import time

from . import birth, cgroup, clock, descriptors, points, records, requests, spawn, telling, tree, wire
from .attempt import Attempt
from .birth import Refused
from .causes import LIMIT, status_of
from .deadlines import Deadlines, asked_at
from .diary import Diary
from .ending import AGAIN_S
from .endpoint import Endpoint
from .family import become_subreaper
from .features import Features
from .inputs import Inputs
from .kernel_signals import signal
from .log import Log
from .loop import READ, Loop, Timer
from .outputs import Outputs
from .owner import Owner
from .report import Report
from .restarts import DOWN, UP, Desired, Restarts
from .signals import Signals
from .stdin import GIVEN, Stdin
from .terminal import Terminal
from .tty import Tty, Unavailable, has_terminfo

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket as socket
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

    from .ending import Ending
    from .endpoint import Client
    from .family import Family
    from .keyboard import Keyboard

# Answers still on their way when everything else is done.
_FAREWELL_S = 1.0
# A state record that was refused is tried again first soon, then ever more seldom: the disk may stay as it is for days.
_STATE_AGAIN_MAX_S = 30.0
# A crash loop is told at first, then at most this often, with the count.
_RESTART_NOTICE_S = 15.0
# Beyond these a life has grown this process's memory enough to make a fresh one better.
_BRIEF_S = 10.0
_BRIEF_BYTES = 1 << 20


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
        self.home: str = request["home"]
        # What the caller wants next, so that even a command that ends at once is answered to somebody who waits.
        self._then: dict[str, Any] | None = request.get("then")
        self._holds = request.get("hold") is True
        claims = request.get("claims", 0)
        self.loop = Loop()
        self.reserve = descriptors.Reserve()
        self._identify()
        self.directory, self._life_lock = birth.persist(self.home, self.spec)
        for fd in passed[:claims]:
            os.close(fd)  # the spec is on disk: whoever waits for the name or key may look now

        self.diary = Diary(self.directory, warnings)
        self.inputs = Inputs(self.directory, self.diary.say)
        self.log = Log(
            self.directory,
            _streams(self.spec),
            cap_bytes=self.spec["log_cap"],
            segment_bytes=self.spec["segment_bytes"],
            free_floor_bytes=self.spec["free_floor"],
            say=self.diary.say,
            refused=self._log_refused,
        )
        self.outputs = Outputs(self.loop, self.log, self._heard, self._output_held)
        # The connection whose reader holds the command back before the log's cap would cut what it has not read.
        self._holder: Client | None = None
        self.stdin: Stdin | Keyboard = Stdin(self.loop, None)
        # The terminal half, of a session that has one.
        self.terminal: Terminal | None = None
        self.changed: dict[str, Any] = {}
        self.waiters: list[requests.Waiter] = []
        self.desired = Desired(self.spec["author"], clock.now_text())
        self.restarts = _restarts(self.spec)
        self._restart_timer: Timer | None = None
        self._restart_asked = False
        self._last_command: dict[str, Any] | None = None
        self._restart_told_at = -_RESTART_NOTICE_S
        self._memory: cgroup.MemoryGroup | None = None
        self._owner: Owner | None = None
        self._call: Client | None = None
        self._state_due: Timer | None = None
        self._state_again_s = AGAIN_S
        # Is the ending on record?
        self._over = False
        # Was it recorded while a stop was still ending what the command left behind?
        self._stop_goes_on = False
        # Set by signal handlers, looked at in each turn.
        self._reap_due = True
        self._told_to_leave = False

        # What each attempt is given anew.
        self.environment: dict[str, str] = {**request["env"], tree.SESSION_VARIABLE: self.id}
        self.host_environment: dict[str, str] = request.get("host_env") or self.environment
        self._input = wire.from_text(request.get("input"))
        # When its host asked for it, on our clock, where that can be told.
        self.asked = asked_at(request, self.here.get("timens"))
        self.attempt = Attempt(self, 1)
        self.signals = Signals(self)
        self.features = Features(self)
        self._listen_to_signals()
        self.endpoint = self._open_endpoint()
        self.deadlines = Deadlines(self.loop, self.spec, self._end_for, self.asked)
        self._memory = self._limit_memory()
        self._report = Report(self.spec.get("report_fd"))
        try:
            self._spawn([*zip(passed[claims:], self.spec["pass_fds"]), *self._report.passed])
        finally:
            for fd in passed[claims:]:
                os.close(fd)

    def run(self, channel: socket.socket) -> None:
        """Serve until the session is over. `channel` brought the start request and is our first client."""
        client = self.endpoint.adopt(channel, {"author": self.spec["author"]})
        if self.spec["lifetime"] == "call":
            self._call = client
        if self._holds:
            self._holder = client
            self.has_read(client, {})
            self.holders_changed()
        client.send(telling.hello(self))
        then, self._then = self._then, None
        if then is not None:
            requests.serve(self, client, then)
        if points.ACTIVE:
            points.hit("runner.answered")
        if not self._all_told():
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
            self.attempt.reap()
        self.attempt.turn()
        if self.family.somebody_died:
            self.settle_rest()
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
            birth.forget(self.directory)
            if problem.errno in birth.FULL:
                raise birth.refused_by_disk(problem, path) from None
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
        """Never replaced by pipes: who asked for a terminal and cannot have one is told. One that is there already is
        set up anew for the next attempt."""
        if not self.spec["tty"]:
            return None
        if self.terminal is not None:
            self.terminal.tty.set_up(echo=self.spec["tty"]["echo"])
            return self.terminal.tty
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
        birth.forget(self.directory)

    def _spawn(self, passed: list[tuple[int, int]]) -> None:
        tty = self._open_tty()
        if self.restarts is not None:
            self.restarts.began(time.monotonic())
        try:
            if points.ACTIVE:
                points.hit("runner.before_spawn")
            if self._memory is None:
                started = spawn.spawn(self.spec, self.environment, passed, tty)
            else:
                with self._memory:
                    started = spawn.spawn(self.spec, self.environment, passed, tty)
        except (spawn.SpawnFailed, OSError) as problem:
            if isinstance(problem, OSError):
                # No descriptor to enter the control group with, or to look at anything else.
                problem = spawn.SpawnFailed(problem.errno or 0, "spawn", str(problem.filename or self.spec["cwd"]))
            self.attempt.fail(problem.record())
            if tty is not None and self.terminal is None:
                tty.close()
            return
        if points.ACTIVE:
            points.hit("runner.spawned")
        self.attempt.started_ns = clock.wall_ns()
        self.family.command = self._last_command = {
            "pid": started.pid,
            "start": tree.start_time(started.pid),
            "line": tree.command_line(started.pid) or spawn.arguments(self.spec),
        }
        self._connect(started, tty)
        self.write_state()
        if points.ACTIVE:
            points.hit("runner.state_written")
        if self.spec["lifetime"] == "owner" and self._owner is None:
            self._owner = Owner(self.loop, self.spec["owner_process"], lambda: self._end_for("owner_gone"))
        self.signals.started()
        self.features.begin()

    def _connect(self, started: spawn.Command, tty: Tty | None) -> None:
        """The command's output goes to the log, and what it was given goes in."""
        if tty is None:
            self.stdin = Stdin(self.loop, started.stdin)
            self.outputs.open(started.outputs)
        elif self.terminal is None:
            if not has_terminfo(self.environment):
                self.diary.warn(f"terminfo_missing: nothing is known here about TERM={self.environment['TERM']}")
            self.terminal = Terminal(self, tty, self.directory, self.environment)
            self.stdin = self.terminal.keyboard
            self.outputs.open(started.outputs)
        else:
            self.terminal.begin(self.family)
            self.stdin = self.terminal.keyboard
        if self._input is not None:
            self.stdin.write(self._input)
            if isinstance(self.stdin, Stdin):
                self.stdin.close(GIVEN)
        if self.restarts is None:
            self._input = None

    # Running.

    def _heard(self, stream: str, chunk: bytes | bytearray) -> None:
        if self.terminal is not None:
            self.terminal.heard(bytes(chunk))
        self.deadlines.output()
        if self.features.listen:
            self.features.heard(stream, len(chunk))
        self.attempt.heard()

    def _output_held(self, held: bool) -> None:
        self.deadlines.hold(held)

    def _log_refused(self, stream: str, offset: int, reason: str) -> None:
        if self.exit is None:
            self.signals.emit("gap", {"stream": stream, "from": offset, "reason": reason})

    def people_called(self, variant: str, record: dict[str, Any]) -> None:
        """A record went to the queue: where people asked to be told, somebody has to be there who tells them."""
        self.features.routed(variant, record)

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

    def has_read(self, client: Client, read: dict[str, int]) -> None:
        """The reader that holds the command back has come so far in each stream."""
        if client is self._holder:
            self.log.keep_from(read)
            self.outputs.look_again()

    def holders_changed(self) -> None:
        """A reader that holds the command back came or left. One that is attached takes over from the connection that
        brought the start request: both belong to `hold run`."""
        on_terminal = self.terminal is not None and self.terminal.has_holders
        if on_terminal:
            self._holder = None
            self.log.keep_from(None)
        self.outputs.hold_while(self._may_read if on_terminal or self._holder is not None else None)

    def _may_read(self, size: int) -> bool:
        return self.log.has_room(size) and not (self.terminal is not None and self.terminal.is_held)

    def _client_gone(self, client: Client) -> None:
        if client is self._holder:
            self._holder = None
            self.log.keep_from(None)
            self.holders_changed()
        self.waiters = [waiter for waiter in self.waiters if waiter.client is not client]
        self.signals.gone(client)
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
        self._end("stop", by, grace_s, climb)

    def restart(self, by: str | None) -> None:
        """End this attempt and begin the next at once, whatever the policy says of its end."""
        self.desired.ask(UP, by, clock.now_text())
        self.write_state()
        if self._restart_timer is not None:
            self._restart_timer.cancel()
            epoch = self.desired.epoch
            self._restart_timer = self.loop.after(0, lambda: self._restart_due(epoch))
        else:
            self._restart_asked = True
            self.ending.blame("stop", by)
            self.attempt.climb_down(by, None, None)

    def _end_for(self, cause: str) -> None:
        """A limit on this session's life has passed: also on what outlives its command."""
        if self.exit is None or self.family.living():
            self._end(cause, None if cause == "owner_gone" else LIMIT, None, None)

    def _end(self, cause: str, by: str | None, grace_s: float | None, climb: list[dict[str, Any]] | None) -> None:
        self.ending.blame(cause, by)
        if not (cause in _LIMITS_OF_AN_ATTEMPT and self.restarts is not None):
            self.desired.ask(DOWN, by or cause, clock.now_text())
            if self.restarts is not None and self.exit is None:
                self.write_state()
        if self._restart_timer is None:
            self.attempt.climb_down(by, grace_s, climb)
        else:
            self._give_up_restart(cause, by)

    def stop_answer(self) -> dict[str, Any] | None:
        """The answer of a finished stop, once the exit it led to is recorded too; of one that a restart overtook there
        is none to wait for."""
        overtaken = self._restart_timer is not None
        if self.exit is None and not overtaken and (self.family.command_gone or self.family.command is None):
            return None
        return self.attempt.stop_answer

    def attempt_over(self) -> None:
        """The command is gone and its output drained."""
        # At a shutdown everybody is told one after the other, and a command that leaves at once may be reaped before it
        # is our turn. This is the last look: who tells us after the end was judged comes after the end.
        if self._told_to_leave:
            self.ending.blame("stop", "system")
        complete, stopped = not self.outputs.are_open, self.attempt.stop_outcome
        self.ending.judge(self.family, self._memory, complete=complete, stopped=stopped)
        exit = self.ending.exit
        assert exit is not None
        retry_in_s = None
        # The first attempt belongs to whoever asked for it, who is told at once that it could not be started.
        may_follow = self.family.command is not None or self.attempt.number > 1
        if self.restarts is not None and may_follow:
            ended = {**_brief(exit), "attempt": self.attempt.number}
            retry_in_s = self.restarts.ended(time.monotonic(), ended, self.ending.error)
            if self._restart_asked:
                retry_in_s = 0.0
            if self.desired.state == DOWN:
                retry_in_s = None
            elif self.restarts.limit_reached and retry_in_s is None:
                exit["start_limit"] = True
        self._restart_asked = False
        if retry_in_s is None:
            self._record_end()
        else:
            self._plan_restart(exit, retry_in_s)

    def _plan_restart(self, exit: dict[str, Any], retry_in_s: float) -> None:
        assert self.restarts is not None
        now = time.monotonic()
        told = now - self._restart_told_at >= _RESTART_NOTICE_S
        if told:
            self._restart_told_at = now
        if self.family.living():
            # What the last attempt left behind would be in the way of the next.
            self.attempt.climb_down("restart", None, None)
        self.features.pause()
        self.signals.restarting(exit, retry_in_s, count=self.attempt.number, routed=told)
        epoch = self.desired.epoch
        self._restart_timer = self.loop.after(retry_in_s, lambda: self._restart_due(epoch))
        self.write_state()
        if points.ACTIVE:
            points.hit("restart.planned")

    def _restart_due(self, epoch: int) -> None:
        if points.ACTIVE:
            points.hit("restart.due")
        if self.desired.epoch != epoch or self._restart_timer is None:
            return
        if self.attempt.stop_under_way:
            # Its remains are still being ended.
            self._restart_timer = self.loop.after(AGAIN_S, lambda: self._restart_due(epoch))
            return
        self._begin_again()

    def _begin_again(self) -> None:
        assert self._restart_timer is not None
        requests.answer_waiters(self)  # whoever stopped this attempt: the next knows nothing of it
        self._restart_timer.cancel()
        self._restart_timer = None
        if self.terminal is None:
            self.outputs.close()
        epoch = self.desired.epoch
        self.attempt = Attempt(self, self.attempt.number + 1)
        self.deadlines.begin_again({option: self.now(option) for option in _LIMITS_OF_AN_ATTEMPT.values()})
        self._spawn([])
        if points.ACTIVE:
            points.hit("restart.spawned")
        if self._told_to_leave or (self.desired.epoch != epoch and self.desired.state == DOWN):
            self.stop(by=self.desired.by, grace_s=None, climb=None)

    def _give_up_restart(self, cause: str, by: str | None) -> None:
        """It is between two attempts: nothing runs, and nothing will."""
        assert self._restart_timer is not None
        self._restart_timer.cancel()
        self._restart_timer = None
        self.attempt.climb_down(by, 0, None)
        self.ending.judge(self.family, self._memory, complete=not self.outputs.are_open)
        assert self.ending.exit is not None
        self.ending.exit.update(cause=cause, by=by)
        self._record_end()

    def _record_end(self) -> None:
        exit = self.ending.exit
        assert exit is not None
        if self.terminal is not None:
            self.terminal.hang_up()
            exit["complete"] = not self.outputs.are_open
        self.features.finish()
        self._over = True
        self.ending.fence()
        if self._state_due is not None:
            self.write_state()
        self._report.keep(self.directory, self.diary.warn)
        # An ending that nobody was given is worth the wait for the disk: a power loss must not make it a lie.
        waited_for = any(waiter.for_exit for waiter in self.waiters)
        self.ending.write(durable=not waited_for)
        if points.ACTIVE:
            points.hit("runner.exit_written")
        # Of a command that could not even be started, whoever asked for it is about to be told.
        about_to = self._then is not None and self._then.get("confirm") is True
        confirmers = about_to or any(waiter.confirms for waiter in self.waiters)
        why = {} if self.ending.error is None else {"error": self.ending.error}
        self.signals.end(exit, extra={**self._ended_extra(), **why}, confirmers=confirmers)
        if exit["survivors"] and self.attempt.stop_under_way:
            self._stop_goes_on = True
        elif exit["survivors"]:
            self.signals.survivors(exit, "stop" if exit["cause"] == "stop" else "exit", self.outputs.names)
        if self.terminal is not None:
            self.terminal.ended()
        self.family.somebody_died = True

    def _ended_extra(self) -> dict[str, Any]:
        limited = self.ending.exit is not None and self.ending.exit.get("start_limit")
        return {**self.features.ended(), **({"start_limit": True} if limited else {})}

    def last_facts(self) -> dict[str, Any]:
        """What the exit record says beside the exit."""
        facts: dict[str, Any] = {"attempt": self.attempt.number, "signal_id": f"{self.id}.{self._ended_seq()}"}
        facts.update(self._ended_extra(), desired=self.desired.facts(), **self.features.last())
        if self.restarts is not None:
            facts["attempts"] = self.restarts.attempts
            facts["failed_starts"] = self.restarts.failed_starts
        return facts

    def _ended_seq(self) -> int:
        """The record of the ending follows at once: its number is known."""
        ended = self.signals.ended
        return self.signals.seq + 1 if ended is None else int(ended["seq"])

    def settle_rest(self) -> None:
        """After the exit: descendants may live on. When the last is gone, say so and leave."""
        if self.exit is None or self.attempt.stop_under_way:
            return
        stop_ended, self._stop_goes_on = self._stop_goes_on, False
        if self.family.living():
            if stop_ended:
                self._name_survivors()
            return
        if self.exit["survivors"] or not self.exit["complete"]:
            had_survivors = bool(self.exit["survivors"])
            self.outputs.read_buffered()
            self.exit["survivors"], self.exit["survivors_more"] = [], 0
            self.exit["complete"] = not self.outputs.are_open
            self.ending.write(durable=True)
            if had_survivors:
                self.signals.survivors(self.exit, "exit", self.outputs.names)
        if self._all_told():
            self.loop.leave()

    def _name_survivors(self) -> None:
        """The stop that was under way when the command ended is over, and did not end everything."""
        assert self.exit is not None
        self.exit["survivors"], self.exit["survivors_more"] = tree.described_some(self.family.living())
        self.ending.write(durable=True)
        self.signals.survivors(self.exit, "stop", self.outputs.names)

    def _all_told(self) -> bool:
        return self.exit is not None and not self.ending.untold and self.signals.decided and not self.signals.untold

    def _farewell(self) -> None:
        """Unlink the endpoint, let answers go out, leave nothing open behind the last reader."""
        self.endpoint.close()
        self.features.close()
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
        self.signals.close()
        self.log.close()
        self.reserve.close()
        self.loop.close()
        signal.set_wakeup_fd(-1)
        for fd in (self._wakeup, self._wakeup_writer, self.directory, self._life_lock):
            os.close(fd)

    # What others may know.

    @property
    def family(self) -> Family:
        return self.attempt.family

    @property
    def command(self) -> dict[str, Any] | None:
        """The identity of the command, or, while the next attempt could not be started, that of the last one."""
        return self.family.command or self._last_command

    @property
    def ending(self) -> Ending:
        return self.attempt.ending

    @property
    def exit(self) -> dict[str, Any] | None:
        """How the session ended; the end of an attempt that is followed by another is not one."""
        return self.ending.exit if self._over else None

    @property
    def started_at(self) -> str | None:
        return self.attempt.started_at

    @property
    def stopping(self) -> dict[str, Any] | None:
        """The stop that was asked for; after the end only while it is under way."""
        return self.attempt.stopping if self.exit is None or self.attempt.stop_under_way else None

    @property
    def status(self) -> str:
        if self.exit is not None:
            return status_of(self.exit)
        return "running" if self.command is not None else "pending"

    @property
    def warnings(self) -> list[str]:
        return self.diary.warnings + self.log.warnings

    def now(self, name: str) -> Any:
        """A field of the spec as `update` left it."""
        return self.changed.get(name, self.spec.get(name))

    def write_state(self) -> None:
        if self._state_due is not None:
            self._state_due.cancel()
            self._state_due = None
        try:
            with self.reserve:
                records.write(self.directory, "state.json", telling.state(self))
        except OSError as problem:
            # The command already runs; whoever looks finds it by our endpoint, which the spec names too.
            self.diary.warn(f"state.json could not be written: {problem.strerror}")
            if problem.errno != errno.ENOENT:
                self._state_due = self.loop.after(self._state_again_s, self.write_state)
                self._state_again_s = min(2 * self._state_again_s, _STATE_AGAIN_MAX_S)
        else:
            self._state_again_s = AGAIN_S


# Of a restarting command these are limits of one attempt: the next has its own.
_LIMITS_OF_AN_ATTEMPT = {"overall_timeout": "timeout", "idle_timeout": "idle_timeout"}


def _restarts(spec: dict[str, Any]) -> Restarts | None:
    settings = spec.get("restart")
    if settings is None:
        return None
    return Restarts(settings, shell=isinstance(spec["command"], str), chance=lambda: os.urandom(1)[0] / 255)


def _brief(exit: dict[str, Any]) -> dict[str, Any]:
    return {part: exit[part] for part in ("code", "signal", "cause", "by")}


def _streams(spec: dict[str, Any]) -> list[str]:
    if spec["tty"]:
        return ["tty"]
    return ["stdout"] if spec["merge_stderr"] else ["stdout", "stderr"]
