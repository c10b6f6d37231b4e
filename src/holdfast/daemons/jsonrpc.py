"""JSON-RPC as language servers speak it: framing and messages, without any I/O."""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]

# A server that announces more than this in one message is not to be believed.
MESSAGE_MAX_BYTES = 64 << 20
# Headers are a few dozen bytes; what goes on without an end is something else.
_HEADERS_MAX_BYTES = 4 << 10
_SEPARATOR = b"\r\n\r\n"


class BadMessage(Exception):
    """What came is no message of this protocol; nothing behind it can be understood."""


def frame(message: Message) -> bytes:
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


class Frames:
    """Feed bytes cut anywhere, take messages."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def midway(self) -> bool:
        return bool(self._buffer)

    def feed(self, received: bytes) -> list[Message]:
        self._buffer += received
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        begin = self._buffer.find(_SEPARATOR)
        if begin < 0:
            if len(self._buffer) > _HEADERS_MAX_BYTES:
                raise BadMessage(f"{len(self._buffer)} bytes without the end of a header")
            return None
        size = _content_length(bytes(self._buffer[:begin]))
        end = begin + len(_SEPARATOR) + size
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[begin + len(_SEPARATOR) : end])
        del self._buffer[:end]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as problem:
            raise BadMessage(f"the body is no JSON: {problem}") from None
        if not isinstance(message, dict):
            raise BadMessage(f"a message is an object, not {type(message).__name__}")
        return message


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            digits = value.strip()
            if digits.isdigit() and int(digits) <= MESSAGE_MAX_BYTES:
                return int(digits)
            raise BadMessage(f"a length of {digits[:20]!r}")
    raise BadMessage(f"a header without a length: {head[:80]!r}")
