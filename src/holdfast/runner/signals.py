"""Signals of a runner: a record on disk first, then clients that wait, then a wake; and calling for people."""

from __future__ import annotations

import errno
import fcntl
import os
import time

from ..core import clock, failpoints, processes, signalfile
from ..core.command import status_of
from ..core.loop import Alarm, Retry
from ..core.signalfile import FILE_MAX_BYTES, SignalFile
from ..core.vt.text import log_tail
from . import spawn, status
from .limits import CAUSES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any, Callable

    from .endpoint import Client
    from .session import Session


# The signal of the end shows this much of each stream: enough to see why a command failed.
_TAIL_LINES = 30
_TAIL_CHARACTERS = 2000
# Which option set the limit that was reached.
_LIMITS = {cause: option for option, cause in CAUSES.items()}


class Signals:
    def __init__(self, session: Session) -> None:
        self._session = session
        settings = session.spec.get("signals") or {}
        self._answer_grace_s: float = settings.get("answer_grace", 1.0)
        self._file = SignalFile(
            session.directory,
            session.id,
            session.here["boot"],
            max_bytes=settings.get("file_bytes", FILE_MAX_BYTES),
            say=session.runner_log.write,
        )
        self._runtime = os.path.dirname(session.spec["endpoint"])
        self._retry = Retry(session.loop, session.directory, self._try_again)
        # The clients that were given the ending and may confirm it, while it is open whether it enters the queue.
        self._confirmers: list[Client] = []
        self._undecided: int | None = None
        self._grace = Alarm(session.loop, self._enter_queue)
        # The signal of the end.
        self.ended: dict[str, Any] | None = None

    @property
    def seq(self) -> int:
        return self._file.seq

    @property
    def blocked(self) -> int:
        return self._file.blocked

    @property
    def undecided(self) -> bool:
        """Is it undecided whether the ending enters the queue?"""
        return self._undecided is not None

    @property
    def unwritten(self) -> bool:
        """Does the disk refuse records that it may take yet? Only we have them, and their numbers are known."""
        return self._retry.is_due

    def after(self, seq: int, limit: int) -> list[dict[str, Any]]:
        return self._file.after(seq, limit)

    def emit(
        self, variant: str, fields: dict[str, Any], *, routed: bool | str = True, durable: bool = False
    ) -> dict[str, Any]:
        """`routed` is explained at `SignalFile.write`."""
        session = self._session
        record = self._file.write(
            variant,
            fields,
            kind=session.spec["kind"],
            owner=session.current("owner"),
            attempt=session.attempt.number,
            routed=routed,
            snapshot=status.snapshot(session),
            durable=durable,
        )
        self._retry_if_refused()
        if routed is True:
            self._wake(record["seq"])
            session.notify_people(variant, record)
        else:
            signalfile.wake_views(self._runtime, session.id, record["seq"])
        return record

    def started(self) -> None:
        record = self.emit("lifecycle", {"phase": "started"}, routed=False)
        if self._session.current("notify") != "auto":
            # A host that waits for the end must learn of the session, to notice when its runner dies.
            self._wake(record["seq"])

    def restarting(self, exit: dict[str, Any], retry_in_s: float, *, count: int, routed: bool) -> None:
        fields = {"phase": "restarting", **self._outcome(exit), "retry_in_s": round(retry_in_s, 3), "count": count}
        self.emit("lifecycle", fields, routed=routed)

    def end(self, exit: dict[str, Any], *, extra: dict[str, Any], may_be_confirmed: bool) -> None:
        """The signal of the end. With `may_be_confirmed` a waiting client may confirm that it has reported the end."""
        session = self._session
        status = status_of(exit)
        notify = session.current("notify")
        routed: bool | str = notify == "exit" or (notify == "failure" and status != "completed")
        if notify == "auto":
            routed = "auto"
        # A language server writes messages of its protocol to stdout, which are not for reading.
        silent = ("stdout",) if session.spec["kind"] == "lsp" else ()
        fields = {
            "phase": "ended",
            **self._outcome(exit),
            "output_complete": exit["complete"],
            "ends": session.log.ends(),
            "tail": {
                stream: log_tail(session.log, stream, lines=_TAIL_LINES, chars=_TAIL_CHARACTERS)
                for stream, end in session.log.ends().items()
                if end and stream not in silent
            },
            **extra,
        }
        durable = routed is True or (routed == "auto" and not may_be_confirmed)
        self.ended = self.emit("lifecycle", fields, routed=routed, durable=durable)
        self._retry.limit()
        if routed == "auto":
            self._undecided = self.ended["seq"]
            if may_be_confirmed:
                # From now on: the client may be answered with something else first, and never confirm.
                self._grace.set(self._answer_grace_s)
            else:
                self._enter_queue()

    def survivors(self, exit: dict[str, Any], after: str, holds: list[str]) -> None:
        pids = [{"pid": each["pid"], "start": each["start"], "command": each["command"]} for each in exit["survivors"]]
        routed = bool(pids)
        self.emit("survivors", {"pids": pids, "after": after, "holds": holds}, routed=routed, durable=routed)

    def hand_over(self, owner: str | None) -> None:
        self._note({"owner": owner, "at": clock.now_text()})
        self._wake(self.seq)

    # Does the ending enter the queue, or has a client reported it?
    #
    # Only with `notify=auto`. A `wait` for the exit with `confirm` promises to confirm. The ending is recorded with
    # `routed` "auto", then such a client gets its answer (`may_confirm`). It reports the end and confirms that by
    # `update` with `answered` (`confirmed`): the ending stays out of the queue. If all such clients are gone, or the
    # grace is over, or there was none, the ending enters the queue (`_enter_queue`). A note in the file says which.

    def may_confirm(self, client: Client) -> None:
        if self._undecided is not None and client not in self._confirmers:
            self._confirmers.append(client)

    def gone(self, client: Client) -> None:
        if client in self._confirmers:
            self._confirmers.remove(client)
            if not self._confirmers:
                self._enter_queue()

    def wake_waiting_hosts(self) -> None:
        """A client that would have confirmed waits no longer: hosts that wait for signals look again."""
        self._wake(self.seq)

    def confirmed(self, client: Client, seq: int) -> bool:
        """`client` has reported the ending: it stays out of the queue. False when that comes too late, or from a client
        that was not given it."""
        if self._undecided != seq or client not in self._confirmers:
            return False
        self._note({"answered": seq, "by": client.author, "at": clock.now_text()})
        self._decide()
        if self.seq > seq:
            # Signals after the ending could not be read before this was decided.
            self._wake(self.seq)
        return True

    def _enter_queue(self) -> None:
        if self._undecided is not None:
            seq = self._undecided
            self._note({"queued": seq})
            self._file.sync()
            self._decide()
            self._wake(seq)
            assert self.ended is not None
            self._session.notify_people("lifecycle", self.ended)

    def _decide(self) -> None:
        self._undecided = None
        self._confirmers.clear()
        self._grace.cancel()

    def close(self) -> None:
        self._retry.taken()
        self._file.retry()
        self._file.close()

    def _wake(self, seq: int) -> None:
        failpoints.hit("signals.before_wake")
        signalfile.wake(self._runtime, self._session.current("owner"), self._session.id, seq)

    def _note(self, fields: dict[str, Any]) -> None:
        self._file.note(fields)
        self._retry_if_refused()

    def _retry_if_refused(self) -> None:
        if self._file.blocked and not self._retry.is_due:
            self._retry.refused()

    def _try_again(self) -> None:
        if self._file.retry():
            self._retry.taken()
            self._wake(self.seq)
        else:
            self._retry.refused()

    def _outcome(self, exit: dict[str, Any]) -> dict[str, Any]:
        attempt = self._session.attempt
        left = time.monotonic() if attempt.left is None else attempt.left
        return {
            "status": status_of(exit),
            "code": exit["code"],
            "signal": exit["signal"],
            "cause": exit["cause"],
            "by": exit["by"],
            "stopped": exit.get("stopped"),
            "duration_s": round(left - attempt.began, 3),
            **({"limit_s": self._session.current(_LIMITS[exit["cause"]])} if exit["cause"] in _LIMITS else {}),
        }


# Notifying people. A runner sends nothing itself: it makes sure that a deliverer runs, a short-lived host, one per
# home. The lock on `locks/people` is taken here and handed on, so that two runners never start two, and none is started
# while a host delivers.


LOCK = "people"
# The deliverer finds the lock here.
LOCK_FD = 3
ROLE = "people"
_ASK_APART_S = 1.0


def concerns_people(variant: str, fields: dict[str, Any], events: Collection[str], notify: bool | None) -> bool:
    """Are people to be notified of this signal? `notify` is the session's own choice: never, or its end in any case."""
    if notify is False:
        return False
    if variant != "lifecycle":
        return variant in events
    phase = fields.get("phase")
    if phase != "ended":
        return phase == "restarting" and "restarting" in events
    cause, by = fields.get("cause"), fields.get("by")
    if (cause == "stop" or (cause == "signal" and by)) and by != "system":
        return False  # asked for by a stop, or by a signal that was sent through us
    return (
        notify is True
        or "ended" in events
        or ("failed" in events and fields.get("status") == "failed")
        or ("limit" in events and fields.get("cause") in _LIMITS)
    )


class People:
    """`settings` name the events and the deliverer's program, which is given the home."""

    def __init__(
        self, home: str, settings: dict[str, Any], environment: dict[str, str], say: Callable[[str], None]
    ) -> None:
        self._home = home
        self._events = frozenset(settings["events"])
        # The configuration file and its time of change at the start, 0 without one; an earlier release did not say.
        self._config: tuple[str, int] | None = tuple(settings["config"]) if settings.get("config") else None
        self._ask_from = 0.0
        self._argv: list[str] = [*settings["argv"], home]
        self._environment = {**environment, processes.ROLE_VARIABLE: ROLE}
        self._environment.pop(processes.SESSION_VARIABLE, None)
        self._say = say

    def consider(self, variant: str, record: dict[str, Any], notify: bool | None) -> None:
        """Start a deliverer if this record, which is in the queue, is for people."""
        if concerns_people(variant, record[variant], self._events, notify) or self._is_changed(variant):
            self.start_deliverer()

    def _is_changed(self, variant: str) -> bool:
        """Other channels or events may be configured by now. The deliverer reads them; a runner reads no configuration.
        It is asked about every end, and about other signals not more often than once a second."""
        now = time.monotonic()
        if self._config is None or (variant != "lifecycle" and now < self._ask_from):
            return False
        self._ask_from = now + _ASK_APART_S
        file, changed_ns = self._config
        try:
            return os.stat(file).st_ctime_ns != changed_ns
        except OSError:
            return False

    def start_deliverer(self) -> None:
        """Start a deliverer, unless one runs already."""
        try:
            lock = take_lock(self._home)
            if lock is not None:
                try:
                    self._start(lock)
                finally:
                    os.close(lock)
        except OSError as problem:
            # The record stays in the queue, and the next deliverer reports it.
            self._say(f"the program that notifies people could not be started: {problem.strerror}")

    def _start(self, lock: int) -> int:
        """By its role no look at the session's tree counts it, nor what it starts."""
        failpoints.hit("people.start")
        return spawn.start_program(self._argv, self._environment, {LOCK_FD: lock}, setsid=True)


def lock_path(home: str) -> str:
    return os.path.join(home, "locks", LOCK)


def take_lock(home: str) -> int | None:
    """The right to notify the people of this home, held as long as the descriptor or a copy of it is open; None while
    another process has it."""
    fd = os.open(lock_path(home), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        os.close(fd)
        if problem.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
            return None
        raise
    return fd
