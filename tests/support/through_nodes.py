"""What a test does through the server of a view: ask a node, attach to a session of it."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import TYPE_CHECKING

from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from support.serving import START_BOUND_S

if TYPE_CHECKING:
    from typing import Any

    from websockets.sync.client import ClientConnection

    from support.fleets import FleetServing


def there(serving: FleetServing, node: str, target: str) -> Any:
    answer = serving.call("GET", f"/v1/nodes/{node}{target}")
    assert answer.status == 200, answer.body
    return answer.json


def attached(
    serving: FleetServing, node: str, session: str, role: str = "control", *, ticket: str = "", **query: object
) -> ClientConnection:
    target, origin = f"/v1/nodes/{node}/sessions/{session}", f"http://{serving.address}"
    if not ticket:
        ticket = serving.call("POST", f"{target}/tickets", {"role": role}, Origin=origin).json["ticket"]
    more = "".join(f"&{name}={value}" for name, value in query.items())
    return connect(
        f"ws://{serving.address}{target}/attach?ticket={ticket}{more}",
        subprotocols=[Subprotocol("holdfast.v1.json")],
        origin=Origin(origin),
        proxy=None,
    )


def seen_until(viewer: ClientConnection, text: bytes) -> bytes:
    seen = b""
    while text not in seen:
        message = json.loads(viewer.recv(START_BOUND_S))
        if message["type"] == "init":
            seen += b64decode(message.get("screen") or "")
        elif message["type"] == "data":
            seen += b64decode(message["data"])
    return seen
