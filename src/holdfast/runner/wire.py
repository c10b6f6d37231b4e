"""Frames: the one protocol between hosts and runners, without any I/O.

A frame is `u32 length | u8 type | payload`; the length counts the type byte. Control frames carry a UTF-8 JSON
object, data frames an 8-byte offset and raw bytes. A `Decoder` turns a byte stream cut anywhere into frames.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Union

    Control = dict[str, Any]
    Data = tuple[int, bytes]
    Frame = Union[Control, Data]

PROTOCOL = 1

CONTROL = 1
DATA = 2

# Large enough for any reply and any unit of input, small enough that a hostile peer cannot make us hold much.
FRAME_MAX_BYTES = 1 << 20
# A start request carries a whole environment and argv; the kernel's own limit for both is 2 MiB by default and
# the caller's `input` comes on top. What is too long for exec must fail there, with exec's errno.
START_MAX_BYTES = 16 << 20
DEPTH_MAX = 32

_HEAD = struct.Struct(">IB")
_OFFSET = struct.Struct(">Q")


class BadFrame(Exception):
    """The peer sent something that is no frame of ours. The connection cannot be trusted any further."""


def control(message: Control) -> bytes:
    payload = json.dumps(message, separators=(",", ":")).encode()
    return _HEAD.pack(len(payload) + 1, CONTROL) + payload


def data(offset: int, payload: bytes) -> bytes:
    return _HEAD.pack(len(payload) + 1 + _OFFSET.size, DATA) + _OFFSET.pack(offset) + payload


def reply(request: Control, **fields: object) -> Control:
    return {"type": "reply", "id": request.get("id"), **fields}


def error(request: Control, code: str, message: str, /, **facts: object) -> Control:
    return {"type": "error", "id": request.get("id"), "code": code, "message": message, "facts": facts}


def as_text(raw: bytes) -> str:
    """Bytes inside a control frame."""
    return base64.b64encode(raw).decode("ascii")


def from_text(text: object) -> bytes | None:
    """None when `text` is not what `as_text` makes."""
    try:
        return base64.b64decode(text, validate=True) if isinstance(text, str) else None
    except (binascii.Error, ValueError):
        return None


class Decoder:
    """Feed bytes, take frames. Holds at most one unfinished frame."""

    def __init__(self, frame_max: int = FRAME_MAX_BYTES) -> None:
        self._buffer = bytearray()
        self._frame_max = frame_max

    @property
    def midway(self) -> bool:
        """Is a frame begun and not finished?"""
        return bool(self._buffer)

    def feed(self, received: bytes) -> list[Frame]:
        buffer = self._buffer
        buffer += received
        frames: list[Frame] = []
        start = 0
        while len(buffer) - start >= _HEAD.size:
            length, kind = _HEAD.unpack_from(buffer, start)
            if not 1 <= length <= self._frame_max:
                raise BadFrame(f"a frame of {length} bytes; the limit is {self._frame_max}")
            end = start + 4 + length
            if kind not in (CONTROL, DATA):
                raise BadFrame(f"frame type {kind} is neither control nor data")
            if len(buffer) < end:
                break
            frames.append(_decode(kind, bytes(memoryview(buffer)[start + 5 : end])))
            start = end
        del buffer[:start]
        return frames


def _decode(kind: int, payload: bytes) -> Frame:
    if kind == DATA:
        if len(payload) < _OFFSET.size:
            raise BadFrame("a data frame without its offset")
        return _OFFSET.unpack_from(payload)[0], payload[_OFFSET.size :]
    if _too_deep(payload):
        raise BadFrame(f"JSON nested deeper than {DEPTH_MAX}")
    try:
        message = json.loads(payload)
    except (ValueError, RecursionError) as problem:
        raise BadFrame(f"a control frame that is no JSON: {problem}") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise BadFrame("a control frame must be a JSON object with a `type`")
    return message


def _too_deep(payload: bytes) -> bool:
    # Brackets inside strings are counted too, so a shallow object may need the exact look; a deep one always does.
    if payload.count(b"[") + payload.count(b"{") <= DEPTH_MAX:
        return False
    depth = 0
    in_string = escaped = False
    for byte in payload:
        if in_string:
            if escaped:
                escaped = False
            elif byte == 0x5C:
                escaped = True
            elif byte == 0x22:
                in_string = False
        elif byte == 0x22:
            in_string = True
        elif byte in b"[{":
            depth += 1
            if depth > DEPTH_MAX:
                return True
        elif byte in b"]}":
            depth -= 1
    return False
