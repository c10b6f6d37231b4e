"""Many nodes in one process, each with a key and a connection of its own, in front of an application with sessions.

python many_nodes.py PLAN: the file that `plan` wrote. It says `ready` when all are connected. A line `change NAME` on
its stdin changes the first session of that node; `connects` prints how many connected in each second.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING

from nacl.public import PrivateKey, PublicKey

from holdfast.core.clock import rfc3339
from holdfast.home import Home
from holdfast.model import SESSION_KEYS
from holdfast.nodes.fabric import Address
from holdfast.nodes.joining import FABRIC, VIEWING, Directory, View, Viewing
from holdfast.nodes.offering import Offering
from holdfast.server.tokens import Caller

if TYPE_CHECKING:
    from typing import Any

    from starlette.types import Receive, Scope, Send


def plan(home: Home, names: list[str], sessions: int) -> dict[str, Any]:
    """Have the view and the fabric of this home know these nodes, as if each had joined."""
    directory, viewing = Directory(home), Viewing(home)
    keys = {name: PrivateKey.generate() for name in names}
    with directory.changing(FABRIC) as record:
        for name in names:
            record["logins"][f"n-{name}"] = {"password": f"secret-of-{name}", "node": name}
    with directory.changing(VIEWING) as record:
        known = record.setdefault("nodes", {})
        known.update({name: {"key": bytes(key.public_key).hex()} for name, key in keys.items()})
    address = viewing.address
    assert address is not None
    return {
        "address": asdict(address),
        "view": viewing.name,
        "key": bytes(viewing.key.public_key).hex(),
        "nodes": {name: bytes(key).hex() for name, key in keys.items()},
        "sessions": sessions,
    }


class _Joined:
    """What `Joined` is to a home: one view may look at this node."""

    def __init__(self, name: str, key: str, plan: dict[str, Any]) -> None:
        self.key = PrivateKey(bytes.fromhex(key))
        login = {"user": f"n-{name}", "password": f"secret-of-{name}"}
        address = Address(**{**plan["address"], **login})
        self.view = View(plan["view"], PublicKey(bytes.fromhex(plan["key"])), "manage", None, {}, name, address)

    def view_of(self, key_id: bytes) -> View | None:
        return self.view if bytes(self.view.public)[: len(key_id)] == key_id else None

    def note_copied(self, view: View, is_copied: object) -> None:
        pass


class Application:
    """Answers what a list asks of a node's own server."""

    def __init__(self, name: str, sessions: int) -> None:
        now = time.time_ns()
        self.rows = [_row(name, number, now) for number in range(sessions)]
        self.changed = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/v1/events":
            while True:
                await self.changed.wait()
                self.changed.clear()
                data = json.dumps({**self.rows[0], "change": "updated"})
                await send(_body(f"event: session\ndata: {data}\n\n", more=True))
        is_list = scope["path"] == "/v1/sessions"
        answer = {"items": self.rows, "count": len(self.rows)} if is_list else {"version": "0", "scopes": ["manage"]}
        await send(_body(json.dumps(answer)))


def _body(text: str, *, more: bool = False) -> dict[str, Any]:
    return {"type": "http.response.body", "body": text.encode(), "more_body": more}


def _row(node: str, number: int, now_ns: int) -> dict[str, Any]:
    at = rfc3339(now_ns - number * 1_000_000_000)
    state = "running" if number % 4 == 0 else "exited"
    facts: dict[str, Any] = {
        "id": f"b{number:08d}",
        "name": f"{node}-job-{number}",
        "state": state,
        "kind": "local_bash",
    }
    facts |= {"command": "make -j8 check", "cwd": f"/home/{node}/work", "owner": "ci", "labels": {"tier": "web"}}
    times = {"created_at": at, "started_at": at, "observed_at": at, "last_output_at": at}
    return {**dict.fromkeys(SESSION_KEYS), **facts, **times, "pid": 4711, "log_bytes": 100_000, "place": "local"}


async def serve(plan: dict[str, Any], answering: type[Application] = Application) -> None:
    connects: Counter[int] = Counter()
    applications: dict[str, Application] = {}
    caller = Caller("view", "view", "manage", b"")
    loop = asyncio.get_running_loop()
    commands = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    async with AsyncExitStack() as stack:
        fabrics = []
        for name, key in plan["nodes"].items():
            joined, application = _Joined(name, key, plan), answering(name, plan["sessions"])
            applications[name] = application
            offering = Offering(joined, application, lambda *_: caller, [], lambda *_, **__: None)  # type: ignore[arg-type]
            fabric = offering.through(joined.view.fabric, name)
            fabrics.append(await stack.enter_async_context(fabric))
            stack.push_async_callback(offering.close)
            _count(fabric, connects)
            # As machines do that were not all switched on in one second.
            await asyncio.sleep(0.005)
        for fabric in fabrics:
            await fabric.ready.wait()
        print("ready", flush=True)
        while line := (await commands.readline()).decode().split():
            if line[0] == "change":
                found = applications[line[1]]
                found.rows[0] = {**found.rows[0], "name": line[2]}
                found.changed.set()
            else:
                print(json.dumps(connects), flush=True)


def _count(fabric: Any, connects: Counter[int]) -> None:
    changed = fabric._changed

    def told() -> None:
        if fabric.problem is None:
            connects[int(time.time())] += 1
        changed()

    fabric._changed = told


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        asyncio.run(serve(json.load(file)))
