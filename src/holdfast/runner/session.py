"""The session that one runner owns: its parts, its loop, and what clients and timers may do to it.

`run` carries out one start request. The command's own life, from its spawn to its end, is in `life.py`. Whatever a host
can learn later is on disk the moment it is true.
"""

from __future__ import annotations

import os
import time

from ..core import clock, failpoints, loop, processes, records, wire
from ..core.ending import CAUSE_OF_LIMIT, LIMIT, status_of
from ..core.kernel_signals import signal
from ..core.loop import READ, Alarm, Loop, Retry
from . import directory, life, process_tree, requests, status
from .directory import REPORT_FILE, Inputs, Refused, RunnerLog
from .endpoint import Endpoint
from .features.feature_set import FeatureSet
from .life import Ending
from .limits import DOWN, LIMITS_OF_AN_ATTEMPT, UP, Deadlines, Desired, Owner, Restarts, requested_at
from .log import LogWriter
from .people_notifier import PeopleNotifier
from .process_tree import ProcessTree, Stopping, become_subreaper
from .signals import Signals
from .streams import Outputs, Stdin

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket as socket
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any

    from .endpoint import Client
    from .terminal.keyboard import Keyboard
    from .terminal.terminal import Terminal


# The last answers get this long to reach their clients.
_FAREWELL_S = 1.0
# A session above these has grown the memory of this process: a new process is better.
_BRIEF_S = 10.0
_BRIEF_BYTES = 1 << 20


def run(channel: socket.socket, request: dict[str, Any], passed: list[int], warnings: Sequence[str] = ()) -> bool:
    """Carry out one start request and stay until the session is over. `passed` has the locks of the claims first, then
    the descriptors of the command. `warnings` are for the caller. True when the session was brief and left this process
    as it was."""
    began = time.monotonic()
    try:
        loop.check_descriptors()
        session = Session(request, passed, warnings)
        session.begin()
    except loop.TooFewDescriptors as problem:
        refusal = Refused("spawn-error", str(problem), errno=problem.errno, step="descriptors", path=None)
        channel.sendall(wire.control(refusal.frame))
        return False
    except Refused as refusal:
        channel.sendall(wire.control(refusal.frame))
        return False
    try:
        session.greet(channel)
        session.serve_until_over()
        session.close()
    except Exception as problem:
        session.runner_log.exception(problem)
        raise
    return time.monotonic() - began < _BRIEF_S and session.log.size < _BRIEF_BYTES and session.tree.childless()


class Attempt:
    """One run of the command. A session that restarts its command has several."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.stopping: Stopping | None = None
        # On the wall clock, for people.
        self.started_ns: int | None = None
        self.began = time.monotonic()
        # When the command was gone: descendants that live on are not part of its duration.
        self.left: float | None = None

    @property
    def stop_under_way(self) -> bool:
        return self.stopping is not None and self.stopping.answer is None


class Session:
    def __init__(self, request: dict[str, Any], passed: list[int], warnings: Sequence[str]) -> None:
        """Make what has to exist before the command: its directory, its endpoint and the parts that act on it.
        `Refused` says why there is no session."""
        # What was asked for, and the identity of this runner.
        self.spec: dict[str, Any] = request["spec"]
        self.id: str = self.spec["id"]
        self.home: str = request["home"]
        # The caller's next request, which it sends along so that it learns even of a command that ends at once.
        self.then: dict[str, Any] | None = request.get("then")
        self._backpressure = request.get("hold") is True
        claims = request.get("claims", 0)
        self.identity = processes.own_identity()
        # When the host sent the request, on our clock, if that is known.
        self.requested_at = requested_at(request, self.identity.get("timens"))
        self.loop = Loop()
        self.reserve = loop.Reserve()
        self.nonce = os.urandom(16).hex()

        # The spec on disk. It names boot and namespaces, so that hosts can verify the processes of a runner that dies
        # before its first state record.
        self.spec.update((part, value) for part, value in self.identity.items() if part != "runner")
        self.directory, self._spec_lock = directory.persist(self.home, self.spec)
        for fd in passed[:claims]:
            os.close(fd)  # the spec is on disk: a host that waits for the name or key can see it now

        # Input and output.
        self.runner_log = RunnerLog(self.directory, warnings)
        self.inputs = Inputs(self.directory, self.runner_log.write)
        self.log = LogWriter(
            self.directory,
            _streams(self.spec),
            cap_bytes=self.spec["log_cap"],
            segment_bytes=self.spec["segment_bytes"],
            free_floor_bytes=self.spec["free_floor"],
            say=self.runner_log.write,
            refused=self._log_refused,
        )
        self.deadlines = Deadlines(self.loop, self.spec, self.limit_passed, self.requested_at)
        self.outputs = Outputs(self.loop, self.log, self._on_output, self.deadlines.pause_idle_limit)
        # Backpressure: the command waits before the log's cap would drop what this client has not read.
        self._backpressure_reader: Client | None = None
        self.stdin: Stdin | Keyboard = Stdin(self.loop, None)
        # Only where the session has a terminal.
        self.terminal: Terminal | None = None
        self.environment: dict[str, str] = {**request["env"], processes.SESSION_VARIABLE: self.id}
        self.input = wire.from_text(request.get("input"))

        # What clients changed and wait for.
        self.changed: dict[str, Any] = {}
        self.waiters: list[requests.Waiter] = []
        self.state_retry = Retry(self.loop, self.directory, self.write_state)
        self.owner: Owner | None = None
        # The client whose `run` this session belongs to, with `lifetime="call"`.
        self._run_client: Client | None = None

        # Attempts, restarts and the end.
        self.desired = Desired(self.spec["author"], clock.now_text())
        self.restarts = _restarts(self.spec)
        self.restart_asked = False
        # Between two attempts: when the next begins.
        self.retry_at: float | None = None
        # Cause and author of a stop that came between two attempts.
        self.stop_cause: tuple[str, str | None] = ("stop", None)
        self.last_command: dict[str, Any] | None = None
        # Set by a signal, and checked in each turn.
        self._reap_due = True
        self.shutdown_asked = False

        # The parts that act.
        self.new_attempt(1)
        self.signals = Signals(self)
        self.features = FeatureSet(self)
        people, environment = self.spec.get("people"), request.get("host_env") or self.environment
        self._people = PeopleNotifier(self.home, people, environment, self.runner_log.write) if people else None
        self._handle_kernel_signals()
        self.endpoint = self._open_endpoint()
        self.memory = self._limit_memory()

        self._resume_alarm = Alarm(self.loop, _nothing)
        # The descriptors that the command gets, and their numbers there.
        self._passed = [*zip(passed[claims:], self.spec["pass_fds"])]
        if self.spec.get("report_fd") is not None:
            report = records.open_own(self.directory, REPORT_FILE, os.O_WRONLY)
            self._passed.append((report, self.spec["report_fd"]))

    def begin(self) -> None:
        """The life of the command begins: `live` spawns it before it yields for the first time. `Refused` where it has
        to have a terminal and there is none."""
        self._life = life.live(self, self._passed)
        try:
            self._resume_life()
        finally:
            for fd, _ in self._passed:
                os.close(fd)

    def greet(self, channel: socket.socket) -> None:
        """The answer to the start request: `channel` brought it, and is the first client."""
        client = self.endpoint.adopt(channel, {"author": self.spec["author"]})
        if self.spec["lifetime"] == "call":
            self._run_client = client
        if self._backpressure:
            self._backpressure_reader = client
            self.has_read(client, {})
            self.backpressure_changed()
        client.send(status.hello(self))
        then, self.then = self.then, None
        if then is not None:
            requests.handle(self, client, then)
        failpoints.hit("runner.answered")

    def serve_until_over(self) -> None:
        """Serve clients until the session is over."""
        self.loop.run(self._turn)
        requests.answer_waiters(self)  # in case the life ended before the first turn

    def _turn(self) -> None:
        """After descriptors were served, and again after timers: reap, resume the life, answer waiters."""
        if self.shutdown_asked:
            # Before the command is reaped: at a shutdown it got the signal too, and may be faster than we are.
            self.shutdown_asked = False
            self.stop(by="system")
        if self._reap_due:
            self._reap_due = False
            self.tree.reap()
        if self.tree.look_due and self.attempt.stopping is not None:
            self.attempt.stopping.climb()
        self._resume_life()
        self.tree.look_due = False
        if self.terminal is not None:
            self.terminal.turn()
        requests.answer_waiters(self)

    def _resume_life(self) -> None:
        until = next(self._life, None)  # None: no deadline, or the life has ended and told the loop to leave
        if until is None:
            self._resume_alarm.cancel()
        else:
            self._resume_alarm.set(until - time.monotonic())

    def close(self) -> None:
        """Unlink the endpoint, let the last answers go out, close everything."""
        self.endpoint.close()
        self.features.close()
        deadline = time.monotonic() + _FAREWELL_S
        for client in list(self.endpoint.clients):
            if client.attachment is None:
                client.close_after_sending()
            else:
                client.attachment.leave()
        while self.endpoint.clients and time.monotonic() < deadline:
            self.loop.dispatch(self.loop.ready(max(0.0, deadline - time.monotonic())))
        for client in list(self.endpoint.clients):
            client.close()
        if self.memory is not None:
            self.memory.remove()
        if self.owner is not None:
            self.owner.close()
        self.outputs.close()
        if self.terminal is not None:
            self.terminal.close()
        self.inputs.close()
        self.signals.close()
        self.log.close()
        self.reserve.close()
        self.loop.close()
        signal.set_wakeup_fd(-1)
        for fd in (self._wakeup, self._wakeup_writer, self.directory, self._spec_lock):
            os.close(fd)

    # Before the command.

    def new_attempt(self, number: int) -> None:
        self.attempt = Attempt(number)
        self.tree = ProcessTree(self.reserve)
        self.ending = Ending(
            self.loop, self.directory, self.log, self.runner_log, self.reserve, facts=lambda: status.exit_facts(self)
        )

    def _handle_kernel_signals(self) -> None:
        self._wakeup, self._wakeup_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wakeup_writer, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT):
            signal.signal(number, self._on_kernel_signal)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self.loop.watch(self._wakeup, READ, self._on_wakeup)
        if not failpoints.off("subreaper"):
            become_subreaper()

    def _on_kernel_signal(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGCHLD:
            # Also here: after a stop, the loop may serve its timers before it checks the wakeup descriptor.
            self._reap_due = True
        elif number == signal.SIGCONT:
            self.loop.woke()
        else:
            self.shutdown_asked = True

    def _on_wakeup(self, _events: int) -> None:
        try:
            os.read(self._wakeup, 4096)
        except BlockingIOError:
            pass
        self._reap_due = True

    def _open_endpoint(self) -> Endpoint:
        path = self.spec["endpoint"]
        try:
            return Endpoint(
                self.loop,
                path,
                hello=lambda: status.hello(self),
                serve=lambda client, message: requests.handle(self, client, message),
                gone=self._client_gone,
                failed=self.runner_log.exception,
            )
        except OSError as problem:
            directory.forget_session(self.directory)
            if problem.errno in directory.DISK_FULL:
                raise directory.refused_by_disk(problem, path) from None
            message = f"endpoint {path}: {problem.strerror}; no process was started"
            raise Refused("spawn-error", message, errno=problem.errno, step="endpoint", path=path) from None

    def _limit_memory(self) -> process_tree.MemoryGroup | None:
        if self.spec["memory"] is None:
            return None
        try:
            group = process_tree.MemoryGroup(self.id, self.spec["memory"])
            group.enter()  # check whether we may
            group.leave()
            return group
        except (process_tree.Unavailable, OSError) as problem:
            self.endpoint.close()
            directory.forget_session(self.directory)
            message = f"a memory limit needs a control group we may use: {problem}"
            raise Refused("unsupported", message, feature="memory") from None

    # While the command runs.

    def _on_output(self, stream: str, chunk: bytes | bytearray) -> None:
        """The log has taken this output."""
        if self.terminal is not None:
            self.terminal.on_output(bytes(chunk))
        self.deadlines.output()
        self.features.on_output(stream)

    def _log_refused(self, stream: str, offset: int, reason: str) -> None:
        # After `make_final`, the number of the next signal is promised to the end.
        if self.exit is None:
            self.signals.emit("gap", {"stream": stream, "from": offset, "reason": reason})

    def notify_people(self, variant: str, record: dict[str, Any]) -> None:
        """A record entered the queue: if people are to be notified of it, a process that does so is started."""
        if self._people is not None:
            self._people.consider(variant, record, self.current("notify_people"))

    def has_read(self, client: Client, read: dict[str, int]) -> None:
        """The client that the command waits for has read each stream up to here."""
        if client is self._backpressure_reader:
            self.log.keep_from(read)
            self.outputs.look_again()

    def backpressure_changed(self) -> None:
        """A client that the command waits for came or left. An attached client replaces the connection that brought the
        start request: both belong to `hold run`."""
        on_terminal = self.terminal is not None and self.terminal.has_backpressure
        if on_terminal:
            self._backpressure_reader = None
            self.log.keep_from(None)
        self.outputs.read_only_while(self._may_read if on_terminal or self._backpressure_reader is not None else None)

    def _may_read(self, size: int) -> bool:
        return self.log.has_room(size) and not (self.terminal is not None and self.terminal.is_far_behind)

    def _client_gone(self, client: Client) -> None:
        if client is self._backpressure_reader:
            self._backpressure_reader = None
            self.log.keep_from(None)
            self.backpressure_changed()
        self.waiters = [waiter for waiter in self.waiters if waiter.client is not client]
        self.signals.gone(client)
        if self.terminal is not None:
            self.terminal.gone(client)
        if client is self._run_client:
            self._run_client = None
            self.limit_passed("owner_gone")

    def outlive_call(self) -> None:
        """From now on the session outlives the call that started it, and its owner."""
        self._run_client = None
        if self.owner is not None:
            self.owner.close()
            self.owner = None

    # Stopping.

    def restart(self, by: str | None) -> None:
        """End this attempt and begin the next at once, whatever the policy says about its end."""
        self.desired.ask(UP, by, clock.now_text())
        self.write_state()
        if self.retry_at is not None:
            self.retry_at = time.monotonic()
        else:
            self.restart_asked = True
            self._stop_attempt("stop", by)

    def limit_passed(self, cause: str) -> None:
        """A limit on the session's time has passed; it also ends descendants that outlive the command."""
        if self.exit is None or self.tree.living():
            self.stop(cause, by=None if cause == "owner_gone" else LIMIT)

    def stop(
        self,
        cause: str = "stop",
        *,
        by: str | None,
        grace_s: float | None = None,
        ladder: list[dict[str, Any]] | None = None,
    ) -> None:
        """End the session; a limit of one attempt ends only that attempt. Between two attempts, keep the next from
        beginning."""
        ends_attempt_only = self.restarts is not None and cause in map(CAUSE_OF_LIMIT.get, LIMITS_OF_AN_ATTEMPT)
        if not ends_attempt_only:
            self.desired.ask(DOWN, by or cause, clock.now_text())
            if self.restarts is not None and self.exit is None:
                self.write_state()
        if self.retry_at is None:
            self._stop_attempt(cause, by, grace_s, ladder)
        else:
            self.stop_cause = cause, by

    def _stop_attempt(
        self, cause: str, by: str | None, grace_s: float | None = None, ladder: list[dict[str, Any]] | None = None
    ) -> None:
        # If the command is gone, its output is read to the end, and the cause is how it ended.
        if not self.tree.command_gone:
            self.ending.set_cause(cause, by)
        self.start_stop(by, grace_s, ladder)

    def start_stop(
        self, by: str | None, grace_s: float | None = None, ladder: list[dict[str, Any]] | None = None
    ) -> None:
        """Start a stop, or join the one in progress: a later request gets the same answer, and hurries it if it wants
        no grace."""
        grace = self.spec["grace"] if grace_s is None else grace_s
        stopping = self.attempt.stopping
        if stopping is not None and stopping.answer is None:
            if grace == 0:
                stopping.hurry()
            return
        if ladder is None and grace_s != 0:
            ladder = self.spec["stop_ladder"]  # a request without any grace skips it
        interrupt = None if self.terminal is None else self.terminal.interrupt
        stopping = Stopping(self.loop, self.tree, by=by, grace_s=grace, ladder=ladder, interrupt=interrupt)
        self.attempt.stopping = stopping
        stopping.climb()

    def stop_answer(self) -> dict[str, Any] | None:
        """The answer of a finished stop, once the exit that it led to is recorded too; a stop that a restart overtook
        has no exit to wait for, nor has a command that survived its stop."""
        overtaken = self.retry_at is not None
        if self.exit is None and not overtaken and (self.tree.command_gone or self.tree.command is None):
            return None
        return None if self.attempt.stopping is None else self.attempt.stopping.answer

    def write_state(self) -> None:
        try:
            with self.reserve:
                records.write(self.directory, "state.json", status.state(self))
        except OSError as problem:
            # The command runs already; hosts find it by the endpoint, which the spec names too.
            self.runner_log.warn(f"state.json could not be written: {problem.strerror}")
            self.state_retry.refused()
        else:
            self.state_retry.taken()

    # What others may know.

    @property
    def exit(self) -> dict[str, Any] | None:
        """How the session ended, once it has; the end of an attempt that another follows does not count."""
        return self.ending.exit if self.ending.is_final else None

    @property
    def command(self) -> dict[str, Any] | None:
        """The identity of the command, or, while the next attempt could not be started, that of the last one."""
        return self.tree.command or self.last_command

    @property
    def started_at(self) -> str | None:
        started_ns = self.attempt.started_ns
        return None if started_ns is None else clock.rfc3339(started_ns)

    @property
    def stopping(self) -> dict[str, Any] | None:
        """The stop that was requested; after the end, only while it is in progress."""
        stopping = self.attempt.stopping
        return stopping.facts() if stopping is not None and (self.exit is None or stopping.answer is None) else None

    @property
    def status(self) -> str:
        if self.exit is not None:
            return status_of(self.exit)
        return "running" if self.command is not None else "pending"

    @property
    def warnings(self) -> list[str]:
        return self.runner_log.warnings + self.log.warnings

    def current(self, name: str) -> Any:
        """A field of the spec as `update` left it."""
        return self.changed.get(name, self.spec.get(name))


def load_all() -> None:
    """Load what only some sessions use. A launcher does so: its runners share the pages, and need not load it."""
    from .features import monitor, readiness
    from .terminal import terminal

    _ = monitor, readiness, terminal


def _restarts(spec: dict[str, Any]) -> Restarts | None:
    settings = spec.get("restart")
    if settings is None:
        return None
    return Restarts(settings, shell=isinstance(spec["command"], str), chance=lambda: os.urandom(1)[0] / 255)


def _streams(spec: dict[str, Any]) -> list[str]:
    if spec["tty"]:
        return ["tty"]
    return ["stdout"] if spec["merge_stderr"] else ["stdout", "stderr"]


def _nothing() -> None:
    """Wakes the loop; the following turn resumes the life."""
