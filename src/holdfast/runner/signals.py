"""Signals of a runner: a record on disk first, then a wake of the hosts that wait.

A signal of which people are to be notified also starts a process that does so. Clients that wait are answered at the
end of the turn.
"""

from __future__ import annotations

import os
import time

from ..core import clock, failpoints, wake
from ..core.ending import TAIL_CHARACTERS, TAIL_LINES, attempt_fields, end_fields, status_of
from ..core.loop import Alarm, Retry
from ..core.signalfile import FILE_MAX_BYTES, SignalFile
from ..core.vt.text import log_tail
from . import status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .endpoint import Client
    from .session import Session


class Signals:
    def __init__(self, session: Session) -> None:
        self._session = session
        settings = session.spec.get("signals") or {}
        self._answer_grace_s: float = settings.get("answer_grace", 1.0)
        self._file = SignalFile(
            session.directory,
            session.id,
            session.identity["boot"],
            max_bytes=settings.get("file_bytes", FILE_MAX_BYTES),
            say=session.runner_log.write,
        )
        self._runtime = os.path.dirname(session.spec["endpoint"])
        self._retry = Retry(session.loop, session.directory, self._try_again)
        # The clients that were given the ending and may confirm it, while it is undecided whether the end enters the
        # queue.
        self._confirmers: list[Client] = []
        self._undecided: int | None = None
        self._grace = Alarm(session.loop, self._enter_queue)
        # The signal of the end.
        self.end_record: dict[str, Any] | None = None

    @property
    def seq(self) -> int:
        return self._file.seq

    @property
    def blocked(self) -> int:
        return self._file.blocked

    @property
    def undecided(self) -> bool:
        """True while it is undecided whether the end enters the queue."""
        return self._undecided is not None

    @property
    def unwritten(self) -> bool:
        """True while the disk refuses records that it may still take later. Only we have them, and their numbers are
        known."""
        return self._retry.is_due

    def after(self, seq: int, limit: int) -> list[dict[str, Any]]:
        return self._file.after(seq, limit)

    def emit(
        self, variant: str, fields: dict[str, Any], *, routed: bool | str = True, durable: bool = False
    ) -> dict[str, Any]:
        """`routed` is explained at `SignalFile.write`. If it enters the queue and people are to be notified, a process
        that does so is started, too."""
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
            wake.views(self._runtime, session.id, record["seq"])
        return record

    def started(self) -> None:
        record = self.emit("lifecycle", {"phase": "started"}, routed=False)
        if self._session.current("notify") != "auto":
            # A host that waits for the end must learn of the session, to notice when its runner dies.
            self._wake(record["seq"])

    def restarting(self, exit: dict[str, Any], retry_in_s: float, *, count: int, routed: bool) -> None:
        ended = attempt_fields(exit, self._duration_s(), self._session.current)
        fields = {"phase": "restarting", **ended, "retry_in_s": round(retry_in_s, 3), "count": count}
        self.emit("lifecycle", fields, routed=routed)

    def end(self, exit: dict[str, Any], *, extra: dict[str, Any], may_be_confirmed: bool) -> None:
        """The signal of the end. With `may_be_confirmed` a waiting client may confirm that it has reported the end."""
        session = self._session
        notify = session.current("notify")
        routed: bool | str = notify == "exit" or (notify == "failure" and status_of(exit) != "completed")
        if notify == "auto":
            routed = "auto"
        ended = end_fields(
            exit,
            self._duration_s(),
            session.current,
            kind=session.spec["kind"],
            ends=session.log.ends(),
            tail=lambda stream: log_tail(session.log, stream, lines=TAIL_LINES, chars=TAIL_CHARACTERS),
        )
        fields = {"phase": "ended", **ended, **extra}
        durable = routed is True or (routed == "auto" and not may_be_confirmed)
        self.end_record = self.emit("lifecycle", fields, routed=routed, durable=durable)
        self._retry.limit()
        if routed == "auto":
            self._undecided = self.end_record["seq"]
            if may_be_confirmed:
                # From now on the client may be answered with something else first, and would never confirm.
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
        """A client that would have confirmed no longer waits: hosts that wait for signals check again."""
        self._wake(self.seq)

    def confirmed(self, client: Client, seq: int) -> bool:
        """`client` has reported the ending: it stays out of the queue. False if that comes too late, or from a client
        that was not given the ending."""
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
            assert self.end_record is not None
            self._session.notify_people("lifecycle", self.end_record)

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
        wake.hosts(self._runtime, self._session.current("owner"), self._session.id, seq)

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

    def _duration_s(self) -> float:
        attempt = self._session.attempt
        left = time.monotonic() if attempt.left is None else attempt.left
        return round(left - attempt.began, 3)
