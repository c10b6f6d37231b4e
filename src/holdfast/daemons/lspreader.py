"""What a language server says, read from the log of its session, cut at the borders between its attempts.

The session's own signals tell where one attempt ends and the next begins, and the runner tells of both in the order in
which they happened: bytes of two processes never become one message.
"""

from __future__ import annotations

import time

from ..errors import RunnerGone, SessionEnded
from ..host.observe import from_files, read_files
from ..model import KILLED
from .jsonrpc import BadMessage, Frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..host.connection import Connection
    from ..host.core import Core


# A process that ends closes its output a moment before its end is known: only one that does not end has fallen silent.
_CLOSED_S = 0.25


class Told:
    """What the next look brought: messages, and what became of the attempt."""

    __slots__ = ("asked", "bad", "began", "left", "messages", "over")

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        # What came is no message.
        self.bad: str | None = None
        # The number of an attempt that was spawned.
        self.began: int | None = None
        # How the attempt ended; whether it was the last, and that because somebody asked for it.
        self.left: str | None = None
        self.over = False
        self.asked = False


class Reader:
    """stdout from the log, cut at the borders between attempts, which the session's own signals tell."""

    def __init__(self, core: Core, id: str) -> None:
        self._core = core
        self._id = id
        self._log = core.log(id)
        self._frames = Frames()
        self._cursor = 0
        self._seq = 0
        # Up to where what was printed is known to be this attempt's.
        self._readable = 0
        # Nothing more of this attempt can be understood.
        self._deaf = False
        # Its output is closed; at which time that will have been its own doing.
        self._closed_at: float | None = None
        self._records: list[dict[str, Any]] = []
        self._connection: Connection | None = None

    async def next(self, until: float) -> Told:
        """Sleeps until there is something, or the clock shows `until`."""
        told = Told()
        if self._records:
            self._take(self._records.pop(0), told)
            return told
        if self._cursor < self._readable:
            self._read(self._readable, told)
            return told
        try:
            over = await self._sleep(until)
        except (RunnerGone, SessionEnded):
            over = True
        if over:
            self.close()
            self._read_rest(told)
        elif self._closed_at is not None and time.monotonic() >= self._closed_at and not self._records:
            self._closed_at = None
            self._deafen("it closed its output", told)
        return told

    async def _sleep(self, until: float) -> bool:
        """Whether it is over, and nothing told so: the disk did not take the record of that."""
        reply_s = self._core.config.hosts_reply_timeout
        if self._connection is None:
            _, self._connection = await self._core.connect(self._id)
        asked: dict[str, object] = {"exit": True, "output_after": {"stdout": self._cursor}, "signals_after": self._seq}
        if self._closed_at is None and not self._deaf:
            asked["closed"] = "stdout"
        elif self._closed_at is not None:
            until = min(until, self._closed_at)
        bound = None if until == float("inf") else max(0.0, until - time.monotonic())
        if bound is not None:
            asked["timeout"] = bound
        await self._connection.ask("wait", reply_s, **asked)
        # Nobody waits for this answer at a fixed time: a runner that is late is still there.
        reply = await self._connection.outcome(bound, reply_s, late_s=reply_s)
        if reply["reason"] == "output":
            # Signals come first: all that is told here was printed before the next of them.
            self._readable = reply["status"]["ends"]["stdout"]
        elif reply["reason"] == "signals":
            self._records += reply["signals"]
        elif reply["reason"] == "closed":
            self._closed_at = time.monotonic() + _CLOSED_S
        return bool(reply["reason"] == "exit")

    def _take(self, record: dict[str, Any], told: Told) -> None:
        self._seq = max(self._seq, record["seq"])
        fields = record.get("lifecycle")
        if fields is None:
            return
        self._closed_at = None
        # What it printed before this moment comes first.
        end = ((record.get("snapshot") or {}).get("ends") or {}).get("stdout")
        self._read(end, told)
        if fields["phase"] == "started":
            self._begin_again(end)
            told.began = record["attempt"]
        else:
            told.left = _in_words(fields)
            told.over = fields["phase"] == "ended"
            told.asked = told.over and fields.get("status") == "killed"

    def _begin_again(self, end: int | None) -> None:
        self._frames = Frames()
        self._deaf = False
        if end is not None:
            self._cursor = max(self._cursor, end)

    def _read(self, until: int | None, told: Told) -> None:
        for begin, data in self._log.blocks("stdout", self._cursor, until):
            if begin != self._cursor and not self._deaf:
                self._deafen(f"its output from {self._cursor} to {begin} is lost", told)
            self._cursor = begin + len(data)
            if self._deaf:
                continue
            try:
                told.messages += self._frames.feed(data)
            except BadMessage as problem:
                self._deafen(f"it said what is no message: {problem}", told)

    def _deafen(self, why: str, told: Told) -> None:
        self._deaf = True
        told.bad = why

    def _read_rest(self, told: Told) -> None:
        """No runner is there to ask: the files tell the rest."""
        self._read(None, told)
        seen = from_files(read_files(self._core.home, self._id))
        shot = seen.snapshot()
        told.over = True
        told.asked = shot.status == KILLED
        exit = seen.files.exit
        told.left = seen.evidence if exit is None else _in_words({**exit["exit"], **exit})

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _in_words(fields: Mapping[str, Any]) -> str:
    """How an attempt ended."""
    if fields.get("cause") in ("stop", "owner_gone"):
        return "it was stopped"
    if fields.get("start_limit"):
        return "it failed too often to be started again"
    if fields.get("signal"):
        return f"it was ended by {fields['signal']}"
    code = fields.get("code")
    return f"it exited with code {code}" if code is not None else f"it ended: {fields.get('cause')}"
