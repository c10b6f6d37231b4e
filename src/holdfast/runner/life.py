"""The life of one command, from its spawn to the moment its runner leaves.

`live` runs it from start to end; `exit_sequence` is its last part. Every turn of the runner's loop resumes it;
it yields where it waits, and until when at the latest. Meanwhile clients and timers act on the session (`session.py`).
`Ending` is how one attempt ended: its cause, its exit object, and `exit.json`.
"""

from __future__ import annotations

import os
import time

from ..core import clock, failpoints, processes, records
from ..core.ending import AFTER_GRACE, ASKED_CAUSES, AT_ONCE, ELSEWHERE, IN_GRACE, LIMIT
from ..core.kernel_signals import NAMES, signal
from ..core.loop import Retry
from . import directory, requests, spawn, status
from .directory import Refused
from .limits import DOWN, LIMITS_OF_AN_ATTEMPT, UP, Owner
from .streams import ENDED, GIVEN, Stdin

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, Callable

    from ..core.loop import Loop, Reserve
    from .directory import RunnerLog
    from .log import LogWriter
    from .process_tree import MemoryGroup, ProcessTree, Stopping
    from .session import Session
    from .terminal.pty import Tty


# After the exit: silence this long ends the drain of the output, which takes this long at most.
_DRAIN_QUIET_S = 0.25
_DRAIN_S = 2.0
# A crash loop is signalled at first, then at most at this interval, with the count.
_RESTART_NOTICE_S = 15.0
# The record names this many survivors: its room was reserved at the start.
_RECORDED_MAX = 20


def live(session: Session, passed: list[tuple[int, int]]) -> Iterator[float | None]:
    """Run attempts until none follows, then the end. `passed` are descriptors for the first attempt."""
    restart_notice_at = float("-inf")
    while True:
        if _start_command(session, passed):
            while not session.tree.command_gone:
                yield None
            _command_left(session)
            yield from _drain(session)
        exit = _build_exit(session)
        retry_in_s = _settle_attempt(session, exit)
        if retry_in_s is None:
            break
        now = time.monotonic()
        notifies = now - restart_notice_at >= _RESTART_NOTICE_S
        if notifies:
            restart_notice_at = now
        _announce_restart(session, exit, retry_in_s, routed=notifies)
        session.retry_at = time.monotonic() + retry_in_s
        while session.desired.state == UP and (session.attempt.stop_under_way or time.monotonic() < session.retry_at):
            yield None if session.attempt.stop_under_way else session.retry_at
        failpoints.hit("restart.due")
        if session.desired.state == DOWN:
            _build_stopped_exit(session)
            break
        _begin_next_attempt(session)
        passed = []
    yield from exit_sequence(session)
    session.loop.leave()


def exit_sequence(session: Session) -> Iterator[None]:
    """The exit sequence: everything is on disk before any client or host learns of the end; what the disk refuses is
    retried until step 6."""
    outputs, ending, signals, terminal = session.outputs, session.ending, session.signals, session.terminal
    exit = ending.exit
    assert exit is not None
    # 1. No more output can follow, and the features have seen all of it.
    if terminal is not None:
        terminal.hang_up()
        exit["complete"] = not outputs.are_open
    session.features.finish()

    # 2. On disk: state, log, then `exit.json`. If no client waits for the end, it is synced, so that a power
    # loss cannot undo it. It contains the number of the signal of step 3: nothing may emit another before that.
    ending.make_final()
    if session.state_retry.is_due:
        session.write_state()
    ending.write(durable=not any(waiter.for_exit for waiter in session.waiters))
    failpoints.hit("runner.exit_written")

    # 3. The signal of the end. A client that waits for the end may confirm that it has reported it. The caller of a
    # command that could not be started has not asked yet: its `then` follows the hello.
    about_to_wait = session.then is not None and session.then.get("confirm") is True
    may_be_confirmed = about_to_wait or any(waiter.confirms for waiter in session.waiters)
    error = {} if ending.error is None else {"error": ending.error}
    signals.end(exit, extra={**status.end_extras(session), **error}, may_be_confirmed=may_be_confirmed)
    stop_goes_on = bool(exit["survivors"]) and session.attempt.stop_under_way
    if exit["survivors"] and not stop_goes_on:
        signals.survivors(exit, "stop" if exit["cause"] == "stop" else "exit", outputs.open_names)
    if terminal is not None:
        terminal.on_end_recorded()

    # 4. Waiters are answered from the end of this turn on. The runner stays while descendants live.
    session.tree.look_due = True
    while True:
        if session.tree.look_due and not session.attempt.stop_under_way:
            living = session.tree.living()
            if not living:
                break
            if stop_goes_on:
                # The stop that was in progress when the command ended is over, and did not end everything.
                stop_goes_on = False
                exit["survivors"], exit["survivors_more"] = processes.described_some(living)
                ending.write(durable=True)
                signals.survivors(exit, "stop", outputs.open_names)
        yield None

    # 5. The last descendant is gone: the record says so.
    if exit["survivors"] or not exit["complete"]:
        had_survivors = bool(exit["survivors"])
        outputs.read_buffered()
        exit.update(survivors=[], survivors_more=0, complete=not outputs.are_open)
        ending.write(durable=True)
        if had_survivors:
            signals.survivors(exit, "exit", outputs.open_names)

    # 6. Leave when the disk has taken every record, and it is known whether the end enters the queue.
    while ending.unwritten or signals.undecided or signals.unwritten:
        yield None


def _start_command(session: Session, passed: list[tuple[int, int]]) -> bool:
    """Start the command, connect it and record it. False when it could not be started: the ending says why."""
    spec, attempt = session.spec, session.attempt
    tty = _open_tty(session)
    if session.restarts is not None:
        session.restarts.began(time.monotonic())
    try:
        failpoints.hit("runner.before_spawn")
        started = spawn.spawn(spec, session.environment, passed, tty, session.memory)
    except (spawn.SpawnFailed, OSError) as problem:
        if isinstance(problem, OSError):
            # No descriptor for its input, or the like.
            problem = spawn.SpawnFailed(problem.errno or 0, "spawn", str(problem.filename or spec["cwd"]))
        session.ending.error = problem.record()
        session.ending.set_cause("spawn_error")
        if tty is not None and session.terminal is None:
            tty.close()
        return False
    failpoints.hit("runner.spawned")
    attempt.started_ns = clock.wall_ns()
    session.tree.command = session.last_command = {
        "pid": started.pid,
        "start": processes.start_time(started.pid),
        "line": processes.command_line(started.pid) or spawn.arguments(spec),
    }
    _connect(session, started, tty)
    session.write_state()
    failpoints.hit("runner.state_written")
    if spec["lifetime"] == "owner" and session.owner is None:
        session.owner = Owner(session.loop, spec["owner_process"], lambda: session.limit_passed("owner_gone"))
    session.signals.started()
    session.features.begin()
    if attempt.number > 1:
        failpoints.hit("restart.spawned")
    return True


def _open_tty(session: Session) -> Tty | None:
    """Open the terminal. Pipes never replace a terminal that is not available: the caller gets an error. The next
    attempt gets the terminal of the last attempt, set up again."""
    asked = session.spec["tty"]
    if not asked:
        return None
    if session.terminal is not None:
        session.terminal.tty.set_up(echo=asked["echo"])
        return session.terminal.tty
    from .terminal.pty import Tty, Unavailable

    try:
        rows, cols = session.spec["size"]
        return Tty(rows, cols, echo=asked["echo"])
    except Unavailable as problem:
        session.endpoint.close()
        if session.memory is not None:
            session.memory.remove()
        directory.forget_session(session.directory)
        facts = {"errno": problem.errno, "used": problem.used, "allowed": problem.allowed}
        raise Refused("pty-unavailable", f"{problem}; no process was started", **facts) from None


def _connect(session: Session, started: spawn.Spawned, tty: Tty | None) -> None:
    """The command's output to the log, and its input to the command."""
    if tty is None:
        session.stdin = Stdin(session.loop, started.stdin)
        session.outputs.open(started.outputs)
    elif session.terminal is None:
        from .terminal.pty import has_terminfo
        from .terminal.terminal import Terminal

        if not has_terminfo(session.environment):
            term = session.environment["TERM"]
            session.runner_log.warn(f"terminfo_missing: this machine has no terminfo entry for TERM={term}")
        session.terminal = Terminal(session, tty)
        session.stdin = session.terminal.keyboard
        session.outputs.open(started.outputs)
    else:
        session.terminal.begin()
        session.stdin = session.terminal.keyboard
    if session.input is not None:
        session.stdin.write(session.input)
        if isinstance(session.stdin, Stdin):
            session.stdin.close(GIVEN)
    if session.restarts is None:
        session.input = None


def _command_left(session: Session) -> None:
    """The command was reaped."""
    failpoints.hit("runner.reaped")
    session.attempt.left = time.monotonic()
    session.ending.at = clock.now_text()
    overdue = session.deadlines.overdue()
    if overdue is not None:
        session.ending.set_cause(overdue, LIMIT)
    session.deadlines.command_left()
    if session.terminal is None:
        session.stdin.abandon(ENDED)
    else:
        session.terminal.command_left(may_come_again=session.restarts is not None)


def _drain(session: Session) -> Iterator[float]:
    """Read the output to its end. If a descendant holds a pipe open, read until it was silent for a moment; if a stop
    is ending the rest of the tree, until that is done, so that the record need not name survivors."""
    began = time.monotonic()
    session.outputs.read_buffered()
    while session.outputs.are_open or session.attempt.stop_under_way:
        until = began + _DRAIN_S
        if not session.attempt.stop_under_way:
            until = min(until, max(began, session.deadlines.quiet_since) + _DRAIN_QUIET_S)
        if time.monotonic() >= until:
            return
        yield until


def _build_exit(session: Session) -> dict[str, Any]:
    # At a shutdown, processes get the signal one after the other, and a command that leaves at once may be reaped
    # before we get ours. This is the last check: a signal from now on comes after the end.
    if session.shutdown_asked:
        session.ending.set_cause("stop", "system")
    complete, stopping = not session.outputs.are_open, session.attempt.stopping
    return session.ending.build_exit(session.tree, session.memory, complete=complete, stopping=stopping)


def _build_stopped_exit(session: Session) -> None:
    """A stop came between two attempts: no command runs, and none will."""
    session.retry_at = None
    cause, by = session.stop_cause
    session.start_stop(by, 0)
    exit = session.ending.build_exit(session.tree, session.memory, complete=not session.outputs.are_open)
    exit.update(cause=cause, by=by)


def _settle_attempt(session: Session, exit: dict[str, Any]) -> float | None:
    """Record how the attempt ended. Returns in how many seconds the next one begins; None when none follows."""
    restarts, attempt = session.restarts, session.attempt
    asked, session.restart_asked = session.restart_asked, False
    # The caller of a first attempt that could not be started learns of it at once.
    if restarts is None or (session.tree.command is None and attempt.number == 1):
        return None
    ended = {part: exit[part] for part in ("code", "signal", "cause", "by")}
    retry_in_s = restarts.ended(time.monotonic(), {**ended, "attempt": attempt.number}, session.ending.error)
    if session.desired.state == DOWN:
        return None
    if asked:
        return 0.0
    if retry_in_s is None and restarts.limit_reached:
        exit["start_limit"] = True
    return retry_in_s


def _announce_restart(session: Session, exit: dict[str, Any], retry_in_s: float, *, routed: bool) -> None:
    if session.tree.living():
        # Processes that the last attempt left running would be in the way of the next.
        session.start_stop("restart")
    session.features.pause()
    session.signals.restarting(exit, retry_in_s, count=session.attempt.number, routed=routed)
    session.write_state()
    failpoints.hit("restart.planned")


def _begin_next_attempt(session: Session) -> None:
    requests.answer_waiters(session)  # those that stopped the last attempt: the next one starts without them
    session.retry_at = None
    if session.terminal is None:
        session.outputs.close()
    session.new_attempt(session.attempt.number + 1)
    session.deadlines.begin_again({option: session.current(option) for option in LIMITS_OF_AN_ATTEMPT})


class Ending:
    """How one attempt ended, and `exit.json`.

    The first cause wins. A stop that a host recorded while this runner did not answer came before everything that
    the runner learns when it wakes."""

    def __init__(
        self,
        loop: Loop,
        directory_fd: int,
        log: LogWriter,
        runner_log: RunnerLog,
        reserve: Reserve,
        *,
        facts: Callable[[], dict[str, Any]],
    ) -> None:
        self._directory = directory_fd
        self._log = log
        self._runner_log = runner_log
        self._reserve = reserve
        # The other fields of the record, as they are when it is written.
        self._facts = facts
        self._cause: tuple[str, str | None] | None = None
        # The client that sent each signal, by number: if the command dies of a signal, that client sent it.
        self._signalled: dict[int, str | None] = {}
        # A client sent SIGKILL before there was another cause: a stop that comes before the reaping comes too late.
        self._killed_first = False
        # The log at the recorded end.
        self._log_facts: dict[str, Any] = {}
        # The runner leaves without the record when the disk refuses it for too long: the session is `lost` then.
        self._retry = Retry(loop, directory_fd, lambda: self.write(durable=True))
        self._retry.limit()
        # Why there is no command.
        self.error: dict[str, Any] | None = None
        self.exit: dict[str, Any] | None = None
        # True if no other attempt follows.
        self.is_final = False
        self.at: str | None = None

    @property
    def unwritten(self) -> bool:
        """True if the disk refused the record, and writing it is still retried."""
        return self._retry.is_due

    def set_cause(self, cause: str, by: str | None = None) -> None:
        if self._cause is None:
            intent = self._intent()
            if intent.get("cause") == "stop":
                author = intent.get("by")
                cause, by = "stop", author if isinstance(author, str) else None
            self._cause = cause, by

    def note_signal(self, number: int, by: str | None) -> None:
        self._signalled[number] = by
        if number == signal.SIGKILL and self._cause is None:
            self._killed_first = True

    def build_exit(
        self, tree: ProcessTree, memory: MemoryGroup | None, *, complete: bool, stopping: Stopping | None = None
    ) -> dict[str, Any]:
        code = number = None
        if tree.wait_status is not None:
            if os.WIFSIGNALED(tree.wait_status):
                number = os.WTERMSIG(tree.wait_status)
            else:
                code = os.WEXITSTATUS(tree.wait_status)
        if number == signal.SIGKILL and self._killed_first:
            self._cause = None
        oom = memory is not None and memory.oom_kills() > 0
        # A shell whose child the kernel killed reports it in its own exit code.
        out_of_memory = oom and (number == signal.SIGKILL or code == 128 + signal.SIGKILL)
        if out_of_memory:
            self.set_cause("out_of_memory")
        elif number is None:
            self.set_cause("exit")
        else:
            self.set_cause("signal", self._signalled.get(number))
        assert self._cause is not None
        cause, by = self._cause
        stopped = None
        if cause in ASKED_CAUSES and tree.command_gone:
            stopped = self._stopped_by_host(number) if stopping is None else stopping.how_it_ended(number)
        if self.at is None:
            self.at = clock.now_text()
        survivors, more = processes.described_some(tree.living())
        self.exit = {
            "code": code,
            "signal": None if number is None else NAMES.get(number, f"SIG{number}"),
            "cause": cause,
            "by": by,
            "stopped": stopped,
            "oom": oom,
            "complete": complete,
            "survivors": survivors,
            "survivors_more": more,
        }
        return self.exit

    def make_final(self) -> None:
        """No other attempt follows: record how the session ended, and the end of the log. Output that descendants print
        later is in the log, after that offset."""
        self.is_final = True
        self._log_facts = self._log.facts()

    def write(self, *, durable: bool) -> None:
        """Write the log first, then the record: its presence means that the log is complete up to the recorded end.

        `exit` is from `build_exit`; `live` and `exit_sequence` add what they learn later. The log's facts are those of
        `make_final`. All other fields come from `status.exit_facts`."""
        assert self.exit is not None
        if durable:
            try:
                with self._reserve:
                    self._log.sync()
            except OSError as problem:
                self._runner_log.warn(f"the log could not be synced: {problem.strerror}")
        survivors: list[dict[str, Any]] = self.exit["survivors"]
        exit = {
            **self.exit,
            "survivors": survivors[:_RECORDED_MAX],
            "survivors_more": self.exit["survivors_more"] + max(0, len(survivors) - _RECORDED_MAX),
        }
        record = {"v": 1, "exit": exit, "ended_at": self.at, "error": self.error, **self._facts(), **self._log_facts}
        try:
            with self._reserve:
                records.write_exit(self._directory, record, durable=durable)
        except OSError as problem:
            self._runner_log.warn(f"exit.json could not be written: {problem.strerror}")
            self._retry.refused()
        else:
            self._retry.taken()

    def _intent(self) -> dict[str, Any]:
        """The stop that a host recorded before it stopped the command without us."""
        with self._reserve:
            return records.found(self._directory, records.INTENT)

    def _stopped_by_host(self, number: int | None) -> str | None:
        """How a command ended that a host stopped without us; `number` is the signal it died of."""
        recorded = self._intent().get("stopped")
        if recorded is None:
            return None
        if number != signal.SIGKILL:
            return IN_GRACE
        return recorded if recorded in (AFTER_GRACE, AT_ONCE) else ELSEWHERE
