"""Frames: the one protocol between hosts and runners, without any I/O.

A frame is `u32 length | u8 type | payload`; the length counts the type byte. Control frames carry a UTF-8 JSON
object, data frames an 8-byte offset and raw bytes. A `Decoder` turns a byte stream cut anywhere into frames.
"""

from __future__ import annotations

import binascii
import struct

from . import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Union

    Control = dict[str, Any]
    Data = tuple[int, bytes]
    Frame = Union[Control, Data]


PROTOCOL = 1
# How much is kept of the name that a client gives itself.
AUTHOR_CHARACTERS = 256

CONTROL = 1
DATA = 2

# Large enough for any reply and any unit of input, small enough that a hostile peer cannot make us hold much.
FRAME_MAX_BYTES = 1 << 20
# Input that fits into a frame in its base64 spelling, and into the queue of a command that does not read yet.
UNIT_MAX_BYTES = 512 << 10
# A start request carries a whole environment and argv; the kernel's own limit for both is 2 MiB by default and
# the caller's `input` comes on top. What is too long for exec must fail there, with exec's errno.
START_MAX_BYTES = 16 << 20
DEPTH_MAX = jsontext.DEPTH_MAX

LENGTH_BYTES = 4
_HEAD = struct.Struct(">IB")
_OFFSET = struct.Struct(">Q")


class BadFrame(Exception):
    """The peer sent something that is not a frame. The connection cannot be trusted any further; `frames` are
    the good ones that came right before."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.frames: list[Frame] = []


class Problem(Exception):
    """A request that cannot be carried out; becomes an error frame."""

    def __init__(self, code: str, message: str, /, **facts: object) -> None:
        super().__init__(message)
        self.code = code
        self.facts = facts
        # Instead of the fix that belongs to the code.
        self.fix: str | None = None


def control(message: Control) -> bytes:
    payload = jsontext.write(message).encode()
    return _HEAD.pack(len(payload) + 1, CONTROL) + payload


def data(offset: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) + 1 + _OFFSET.size, DATA) + _OFFSET.pack(offset) + payload


def reply(request: Control, **fields: object) -> Control:
    return {"type": "reply", "id": number_of(request), **fields}


def error(request: Control, code: str, message: str, /, **facts: object) -> Control:
    return {"type": "error", "id": number_of(request), "code": code, "message": message, "facts": facts}


def number_of(request: Control) -> int | None:
    """The id by which the peer knows its request; anything but a number is not sent back."""
    found = request.get("id")
    return found if isinstance(found, int) and abs(found) < 1 << 63 else None


def as_text(raw: bytes) -> str:
    """Bytes inside a control frame."""
    return binascii.b2a_base64(raw, newline=False).decode("ascii")


def from_text(text: object) -> bytes | None:
    """None when `text` is not what `as_text` makes."""
    if not isinstance(text, str):
        return None
    try:
        raw = binascii.a2b_base64(text)
    except ValueError:
        return None
    # The conversion passes over whatever is not of its alphabet; we do not.
    return raw if as_text(raw) == text else None


class Decoder:
    """Feed bytes, take frames. Holds at most one unfinished frame, and nothing after a bad one."""

    def __init__(self, frame_max: int = FRAME_MAX_BYTES, control_max: int | None = None) -> None:
        self._buffer = bytearray()
        self._frame_max = frame_max
        self._control_max = frame_max if control_max is None else control_max
        self._bad: BadFrame | None = None

    @property
    def midway(self) -> bool:
        """Is a frame begun and not finished?"""
        return bool(self._buffer)

    def feed(self, received: bytes) -> list[Frame]:
        if self._bad is not None:
            raise BadFrame(str(self._bad))
        self._buffer += received
        frames: list[Frame] = []
        start = 0
        try:
            while True:
                end = self._end_of_frame(start)
                if end is None:
                    break
                body = start + _HEAD.size
                frames.append(_decode(self._buffer[start + LENGTH_BYTES], bytes(memoryview(self._buffer)[body:end])))
                start = end
        except BadFrame as problem:
            problem.frames = frames
            self._bad = problem
            self._buffer.clear()
            raise
        del self._buffer[:start]
        return frames

    def _end_of_frame(self, start: int) -> int | None:
        """None while it has not come whole."""
        if len(self._buffer) - start < _HEAD.size:
            return None
        length, kind = _HEAD.unpack_from(self._buffer, start)
        if not 1 <= length <= self._frame_max:
            raise BadFrame(f"a frame of {length} bytes; the limit is {self._frame_max}")
        if kind not in (CONTROL, DATA):
            raise BadFrame(f"frame type {kind} is neither control nor data")
        if kind == CONTROL and length > self._control_max:
            raise BadFrame(f"a control frame of {length} bytes; the limit is {self._control_max}")
        end: int = start + LENGTH_BYTES + length
        return end if end <= len(self._buffer) else None


def frame(body: bytes) -> Frame:
    """One that came whole, without its length."""
    if not body or body[0] not in (CONTROL, DATA):
        raise BadFrame("a frame begins with its type: control or data")
    return _decode(body[0], body[1:])


def _decode(kind: int, payload: bytes) -> Frame:
    if kind == CONTROL:
        return message(payload)
    if len(payload) < _OFFSET.size:
        raise BadFrame("a data frame without its offset")
    return _OFFSET.unpack_from(payload)[0], payload[_OFFSET.size :]


def message(text: bytes) -> Control:
    """What a control frame carries."""
    try:
        found = jsontext.read_finite(text)
    except (ValueError, RecursionError) as problem:
        raise BadFrame(f"a control frame that is not JSON: {problem}") from None
    if not isinstance(found, dict) or not isinstance(found.get("type"), str):
        raise BadFrame("a control frame must be a JSON object with a `type`")
    # Counting is quick, and brackets inside text are counted too: only then is the exact look worth its time.
    if text.count(b"[") + text.count(b"{") > DEPTH_MAX and jsontext.is_deeper(found, DEPTH_MAX):
        raise BadFrame(f"JSON nested deeper than {DEPTH_MAX}")
    return found
