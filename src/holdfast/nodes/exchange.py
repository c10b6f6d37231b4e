"""One conversation of a view with a node, without any I/O: numbered sealed messages both ways, credit, silence, end.

A message is `u8 kind | u64 number | sealed body`; a body is one frame of the wire without its length. A hole, a repeat
or a wrong seal ends the exchange: nothing is sent twice, and readers continue at their own cursors.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from ..core import wire
from .sealing import BadSeal

if TYPE_CHECKING:
    from typing import Any

    from .sealing import Seal


OPEN, OPENED, SEALED = 1, 2, 3
HEAD = struct.Struct(">BQ")
# The first bytes of the two messages of a handshake. They are compared as a whole: nothing seals them.
OPEN_HEAD, OPENED_HEAD = HEAD.pack(OPEN, 0), HEAD.pack(OPENED, 0)
# The fabric carries at most this much in one message.
MESSAGE_BYTES = 256 << 10
# The size of a part of a longer body.
PART_BYTES = 128 << 10
# Sent and not yet taken by the other side.
CREDIT_BYTES = 512 << 10
_ACK_BYTES = CREDIT_BYTES // 8
# After this long without a message of ours, one is sent; after that long without one of theirs, the exchange is over.
SAY_S, HEAR_S = 15.0, 35.0

_ACK, _PING, _END = "ack", "ping", "end"
# Codes of the problem with which an exchange ends when one side no longer trusts the other.
REVOKED, FORGOTTEN = "revoked", "forgotten"


class Broken(Exception):
    """The exchange is over. `problem` is what the other side said about it, if it did."""

    def __init__(self, why: str, problem: dict[str, Any] | None = None) -> None:
        super().__init__(why)
        self.problem = problem


class Exchange:
    """`now` is a monotonic time; the caller asks `due` when to check again."""

    def __init__(self, seal: Seal, now: float) -> None:
        self._seal = seal
        self._sent = self._heard = 0
        # Unacknowledged bytes: sent, received, and those of the received that were used.
        self._unacked = self._held = self._used = 0
        self._said_at = self._heard_at = now
        self.is_over = False

    # Out.

    @property
    def may_send(self) -> bool:
        """True if there is credit for one more part, or a control message."""
        return self._unacked + PART_BYTES + HEAD.size <= CREDIT_BYTES

    def control(self, message: dict[str, Any], now: float) -> bytes:
        return self._message(wire.control(message), now)

    def data(self, number: int, raw: bytes, now: float) -> bytes:
        return self._message(wire.data(number, raw), now)

    def ping(self, now: float) -> bytes:
        return self._message(wire.control({"type": _PING}), now, is_counted=False)

    def end(self, now: float, problem: dict[str, Any] | None = None) -> bytes:
        """The last message. With a problem, the other side reports it as its own."""
        self.is_over = True
        return self._message(wire.control({"type": _END, "problem": problem}), now, is_counted=False)

    def _message(self, frame: bytes, now: float, *, is_counted: bool = True) -> bytes:
        body = frame[wire.LENGTH_BYTES :]
        message = HEAD.pack(SEALED, self._sent) + self._seal.seal(self._sent, body)
        self._sent += 1
        self._said_at = now
        if is_counted:
            self._unacked += len(body)
        return message

    # In.

    def receive(self, message: bytes, now: float) -> tuple[wire.Frame, int] | None:
        """The frame that came and the size to acknowledge; None for one that only concerns the exchange."""
        kind, number = HEAD.unpack_from(message) if len(message) > HEAD.size else (0, -1)
        if kind != SEALED or number != self._heard:
            raise Broken(f"message {number} came where {self._heard} was due")
        try:
            body = self._seal.open(number, message[HEAD.size :])
            frame = wire.frame(body)
        except (BadSeal, wire.BadFrame) as problem:
            raise Broken(str(problem)) from None
        self._heard += 1
        self._heard_at = now
        word = frame["type"] if isinstance(frame, dict) else None
        if isinstance(frame, dict) and word in (_ACK, _PING, _END):
            if word == _ACK:
                self._take_ack(frame.get("bytes"))
            elif word == _END:
                self.is_over = True
                said = frame.get("problem")
                raise Broken("the other side ended it", said if isinstance(said, dict) else None)
            return None
        self._held += len(body)
        if self._held > CREDIT_BYTES:
            raise Broken("the other side sent more than its credit")
        return frame, len(body)

    def taken(self, size: int, now: float) -> bytes | None:
        """A frame was used: the acknowledgement to send, when enough has come together."""
        self._used += size
        if self._used < _ACK_BYTES:
            return None
        acknowledged, self._used = self._used, 0
        self._held -= acknowledged
        return self._message(wire.control({"type": _ACK, "bytes": acknowledged}), now, is_counted=False)

    def _take_ack(self, size: object) -> None:
        if not isinstance(size, int) or not 0 < size <= self._unacked:
            raise Broken("an acknowledgement of what was not sent")
        self._unacked -= size

    # Silence.

    def due(self) -> float:
        """When to check the next two."""
        return min(self._said_at + SAY_S, self._heard_at + HEAR_S)

    def owes_word(self, now: float) -> bool:
        return now >= self._said_at + SAY_S

    def is_silent(self, now: float) -> bool:
        return now >= self._heard_at + HEAR_S
