"""What the runner tells: a record on disk first, then whoever waits on a connection, then a wake."""

from __future__ import annotations

import os
import time

from . import clock, points, telling, wake
from .causes import status_of
from .deadlines import CAUSES
from .ending import UNTOLD_S
from .lines import tail
from .signalfile import FILE_MAX_BYTES, SignalFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .endpoint import Client
    from .life import Life
    from .loop import Timer

# What a refusing disk did not take is tried again after this, and ever more seldom.
_AGAIN_S = 0.25
_AGAIN_MAX_S = 30.0
# Of an ending its record shows this much of each stream: what a failure is told by.
_TAIL_LINES = 30
_TAIL_CHARACTERS = 2000
_TAIL_BYTES = 16 << 10
# Which option set the limit that was reached.
_LIMITS = {cause: option for option, cause in CAUSES.items()}


class Signals:
    def __init__(self, life: Life) -> None:
        self._life = life
        settings = life.spec.get("signals") or {}
        self._answer_grace_s: float = settings.get("answer_grace", 1.0)
        self._file = SignalFile(
            life.directory,
            life.id,
            life.here["boot"],
            max_bytes=settings.get("file_bytes", FILE_MAX_BYTES),
            say=life.diary.say,
        )
        self._runtime = os.path.dirname(life.spec["endpoint"])
        self._again: Timer | None = None
        self._again_s = _AGAIN_S
        self._untold_until: float | None = None
        # Who was given the ending and may confirm it, while it is not decided whether it enters the queue.
        self._asked: list[Client] = []
        self._undecided: int | None = None
        self._grace: Timer | None = None
        # The last word on the session: its id, for whoever was told of the end by another way.
        self.ended: dict[str, Any] | None = None

    @property
    def seq(self) -> int:
        return self._file.seq

    @property
    def blocked(self) -> int:
        return self._file.blocked

    @property
    def decided(self) -> bool:
        return self._undecided is None

    @property
    def untold(self) -> bool:
        """Of a session that is over: are there records that the disk may yet take? Nobody else has them, and their
        numbers are named already. Not where somebody removed the directory, nor for ever."""
        if not self._file.blocked or os.fstat(self._life.directory).st_nlink == 0:
            return False
        if self._untold_until is None:
            self._untold_until = time.monotonic() + UNTOLD_S
        return time.monotonic() < self._untold_until

    def after(self, seq: int, limit: int) -> list[dict[str, Any]]:
        return self._file.after(seq, limit)

    def emit(
        self, variant: str, fields: dict[str, Any], *, routed: bool | str = True, durable: bool = False
    ) -> dict[str, Any]:
        life = self._life
        record = self._file.write(
            variant,
            fields,
            kind=life.spec["kind"],
            owner=life.now("owner"),
            attempt=life.attempt.number,
            routed=routed,
            snapshot=telling.snapshot(life),
            durable=durable,
        )
        if self._file.blocked and self._again is None:
            self._try_again_later()
        if routed is True:
            self._wake(record["seq"])
            life.people_called(variant, record)
        else:
            wake.show(self._runtime, life.id, record["seq"])
        return record

    def started(self) -> None:
        record = self.emit("lifecycle", {"phase": "started"}, routed=False)
        if self._life.now("notify") != "auto":
            # Who waits for what comes of it wants to know when its runner dies.
            self._wake(record["seq"])

    def restarting(self, exit: dict[str, Any], retry_in_s: float, *, count: int, routed: bool) -> None:
        fields = {"phase": "restarting", **self._outcome(exit), "retry_in_s": round(retry_in_s, 3), "count": count}
        self.emit("lifecycle", fields, routed=routed)

    def end(self, exit: dict[str, Any], *, extra: dict[str, Any], confirmers: bool) -> None:
        """The one ending of the session. With `confirmers` somebody who waits may say that he told it already."""
        life = self._life
        status = status_of(exit)
        notify = life.now("notify")
        routed: bool | str = notify == "exit" or (notify == "failure" and status != "completed")
        if notify == "auto":
            routed = "auto"
        # What a language server writes to stdout are messages of its protocol, and nobody's to read.
        silent = ("stdout",) if life.spec["kind"] == "lsp" else ()
        fields = {
            "phase": "ended",
            **self._outcome(exit),
            "output_complete": exit["complete"],
            "ends": life.log.ends(),
            "tail": {
                stream: self._tail(stream, end)
                for stream, end in life.log.ends().items()
                if end and stream not in silent
            },
            **extra,
        }
        durable = routed is True or (routed == "auto" and not confirmers)
        self.ended = self.emit("lifecycle", fields, routed=routed, durable=durable)
        if self._again is not None:
            # We stay for it, and not for long.
            self._again.cancel()
            self._try_again_later()
        if routed == "auto":
            self._undecided = self.ended["seq"]
            if confirmers:
                # From now on: whoever waits may be given something else first, and never be asked.
                self._grace = life.loop.after(self._answer_grace_s, self._queue)
            else:
                self._queue()

    def survivors(self, exit: dict[str, Any], after: str, holds: list[str]) -> None:
        pids = [{"pid": each["pid"], "start": each["start"], "command": each["command"]} for each in exit["survivors"]]
        routed = bool(pids)
        self.emit("survivors", {"pids": pids, "after": after, "holds": holds}, routed=routed, durable=routed)

    def hand_over(self, owner: str | None) -> None:
        self._file.note({"owner": owner, "at": clock.now_text()})
        self._wake(self.seq)

    # Has the ending been told by whoever waited for it?

    def expect(self, client: Client) -> None:
        if self._undecided is not None and client not in self._asked:
            self._asked.append(client)

    def gone(self, client: Client) -> None:
        if client in self._asked:
            self._asked.remove(client)
            if not self._asked:
                self._queue()

    def let_go(self) -> None:
        """Who waited waits no more: from now on the ending is for the queue, and its readers."""
        self._wake(self.seq)

    def answered(self, client: Client, seq: int) -> bool:
        """`client` has told the ending: it stays out of the queue. False when that comes too late, or from somebody
        who was not given it."""
        if self._undecided != seq or client not in self._asked:
            return False
        self._file.note({"answered": seq, "by": client.author, "at": clock.now_text()})
        self._decide()
        if self.seq > seq:
            # What was told after the ending could not be read before this was decided.
            self._wake(self.seq)
        return True

    def _queue(self) -> None:
        if self._undecided is not None:
            seq = self._undecided
            self._file.note({"queued": seq})
            self._file.sync()
            self._decide()
            self._wake(seq)
            assert self.ended is not None
            self._life.people_called("lifecycle", self.ended)

    def _decide(self) -> None:
        self._undecided = None
        self._asked.clear()
        if self._grace is not None:
            self._grace.cancel()
            self._grace = None
        self._life.settle_rest()

    def close(self) -> None:
        if self._again is not None:
            self._again.cancel()
        self._file.retry()
        self._file.close()

    def _wake(self, seq: int) -> None:
        if points.ACTIVE:
            points.hit("signals.before_wake")
        wake.call(self._runtime, self._life.now("owner"), self._life.id, seq)

    def _try_again_later(self) -> None:
        if self.ended is not None:
            self._again_s = _AGAIN_S
        self._again = self._life.loop.after(self._again_s, self._try_again)

    def _try_again(self) -> None:
        self._again = None
        if not self._file.retry():
            self._again_s = min(2 * self._again_s, _AGAIN_MAX_S)
            self._try_again_later()
        else:
            self._again_s = _AGAIN_S
            self._wake(self.seq)
        if self.ended is not None:
            self._life.settle_rest()

    def _outcome(self, exit: dict[str, Any]) -> dict[str, Any]:
        attempt = self._life.attempt
        left = time.monotonic() if attempt.left is None else attempt.left
        return {
            "status": status_of(exit),
            "code": exit["code"],
            "signal": exit["signal"],
            "cause": exit["cause"],
            "by": exit["by"],
            "stopped": exit.get("stopped"),
            "duration_s": round(left - attempt.began, 3),
            **({"limit_s": self._life.now(_LIMITS[exit["cause"]])} if exit["cause"] in _LIMITS else {}),
        }

    def _tail(self, stream: str, end: int) -> dict[str, Any]:
        try:
            at, raw = self._life.log.read(stream, max(0, end - _TAIL_BYTES), _TAIL_BYTES)
        except OSError:
            return {"text": "", "offset": end, "cut": True}
        return tail(raw, at, lines=_TAIL_LINES, chars=_TAIL_CHARACTERS)
