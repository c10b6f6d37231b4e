"""What a test does through the server of a view: ask a node, attach to a session of it."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from typing import TYPE_CHECKING

from websockets.sync.client import connect
from websockets.typing import Origin, Subprotocol

from support.fleets import Fleet, as_world
from support.serving import START_BOUND_S, Serving
from support.waiting import until

if TYPE_CHECKING:
    from typing import Any

    from websockets.sync.client import ClientConnection

    from support.fleets import FleetServing
    from support.world import World


class ThroughNode(Serving):
    """The home of the test is a node; its server is asked through that of a view."""

    def __init__(self, world: World) -> None:
        self.direct = Serving(world)
        fleet = Fleet(world)
        inviting, code = fleet.invite("n")
        assert world.hold("node", "join", code).returncode == 0
        assert inviting.wait() == 0
        super().__init__(as_world(fleet.view))
        self.code = self.direct.code

    def start(self) -> None:
        super().start()
        until(lambda: self.call("GET", "/v1/info").status == 200, START_BOUND_S, what="the node")

    @property
    def pids(self) -> list[int]:
        return [self.direct.pid, self.pid]

    def at(self, target: str) -> str:
        return re.sub("^/v1/", "/v1/nodes/n/", target)


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
        # Pings are answered however late the test takes what came.
        max_queue=None,
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
