"""The two spellings of what an attached client and the server tell each other, without any I/O.

`holdfast.v1` has the frames of the runners' protocol, one a binary message and without their length; `holdfast.v1.json`
has text, with bytes in base64. The facts are the same, so whoever attends a client knows neither of them.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Protocol

from .. import wire
from ..errors import BadRequest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    # Bytes may stand in it; a `data` message has an `offset` and `data`, and input its bytes under `data` too.
    Message = dict[str, Any]

_FIX = "the types of messages and their fields are in docs/guides/attach-over-websocket.md"
# In JSON some frames go by other names.
_SPELLED = {"mode": "mode_changed", "size": "resized", "exit": "session_ended"}


class Dialect(Protocol):
    """`spell` a message for the client, and `read` one of its own; BadRequest where that is none."""

    name: str

    def spell(self, message: Message) -> str | bytes: ...

    def read(self, received: str | bytes) -> Message: ...


class Binary:
    name = "holdfast.v1"

    def spell(self, message: Message) -> bytes:
        if message["type"] == "data":
            return wire.data(message["offset"], message["data"])[wire.LENGTH_BYTES :]
        return wire.control(_in_text(message))[wire.LENGTH_BYTES :]

    def read(self, received: str | bytes) -> Message:
        if isinstance(received, str):
            raise BadRequest(f"{self.name} has binary messages only", _FIX)
        try:
            frame = wire.frame(received)
        except wire.BadFrame as problem:
            raise BadRequest(str(problem), _FIX) from None
        if isinstance(frame, dict):
            return frame
        number, data = frame
        return {"type": "input", "id": number or None, "data": data}


class Json:
    name = "holdfast.v1.json"

    def spell(self, message: Message) -> str:
        spelled = {**_in_text(message), "type": _SPELLED.get(message["type"], message["type"])}
        if message["type"] == "exit":
            spelled["exit_code"] = spelled.pop("code")
        # In ASCII, for half characters of a title or a path cannot be sent otherwise.
        return json.dumps(spelled, separators=(",", ":"))

    def read(self, received: str | bytes) -> Message:
        if isinstance(received, bytes):
            raise BadRequest(f"{self.name} has text messages only", _FIX)
        try:
            return wire.message(received.encode("utf-8", "surrogatepass"))
        except wire.BadFrame as problem:
            raise BadRequest(str(problem), _FIX) from None


DIALECTS: tuple[Dialect, ...] = (Binary(), Json())


def chosen(offered: Iterable[str]) -> Dialect:
    """The first that a client offers and we speak."""
    known = {dialect.name: dialect for dialect in DIALECTS}
    for name in offered:
        if name in known:
            return known[name]
    names = " or ".join(known)
    raise BadRequest("no subprotocol that is spoken here", f"offer {names} in Sec-WebSocket-Protocol")


def _in_text(message: Message) -> Message:
    return {key: wire.as_text(value) if isinstance(value, bytes) else value for key, value in message.items()}
