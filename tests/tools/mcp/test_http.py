"""The server on HTTP: which requests it accepts, and that it serves as over pipes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import stat
import urllib.error
import urllib.request
from typing import TYPE_CHECKING

import httpx2
from mcp.client.streamable_http import streamable_http_client

from support.mcp_clients import connected, text
from support.processes import connections
from support.waiting import BOUND_S, until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from support.program import Program
    from support.world import World

# The SDK takes a second to load, and several on a busy machine.
START_BOUND_S = 30.0
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}


class Served:
    def __init__(self, world: World, *words: str) -> None:
        self.program: Program = world.program(
            world.hold_argv("mcp", "--http", "--port", 0, "--owner", "agent-7", *words)
        )
        world.closing.callback(self._leave)
        self.url = until(self._address, START_BOUND_S, what="the address") or ""
        self.token = (world.home / "server" / "mcp-token").read_text().strip()

    def _leave(self) -> None:
        self.program.signal(signal.SIGTERM)
        self.program.wait(START_BOUND_S)

    def _address(self) -> str | None:
        found = re.search(r"http://\S+/mcp", self.program.errors())
        return found.group() if found else None

    def post(self, headers: Mapping[str, str], body: object = None) -> int:
        """The status that a request gets."""
        request = urllib.request.Request(
            self.url,
            json.dumps(HELLO if body is None else body).encode(),
            {
                "Content-Type": "application/json",
                "Accept": "application/json, text/event-stream",
                "Authorization": f"Bearer {self.token}",
                **headers,
            },
        )
        try:
            with urllib.request.urlopen(request, timeout=BOUND_S) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as refused:
            with refused:
                return int(refused.code)


def test_a_client_with_the_token_has_the_same_tools(world: World) -> None:
    served = Served(world)

    async def main() -> None:
        headers = {"Authorization": f"Bearer {served.token}"}
        async with httpx2.AsyncClient(headers=headers) as http:
            async with connected(streamable_http_client(served.url, http_client=http)) as client:
                assert "hi" in text(await client.call_tool("run", {"command": "echo hi"}))
            async with connected(streamable_http_client(served.url, http_client=http), "auto") as client:
                assert "echo hi" in text(await client.call_tool("list", {"all": True}))

    asyncio.run(main())


def test_no_other_user_is_served(world: World) -> None:
    served = Served(world)
    port = served.url.rpartition(":")[2].partition("/")[0]
    answers: list[tuple[dict[str, str], int]] = [
        ({}, 200),
        ({"Origin": f"http://127.0.0.1:{port}"}, 200),
        ({"Authorization": ""}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": f"Basic {served.token}"}, 401),
        ({"Host": "evil.example"}, 421),
        ({"Host": "127.0.0.1:1"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "null"}, 403),
    ]
    assert [(headers, served.post(headers)) for headers, _ in answers] == answers


def test_further_hosts_and_origins_are_accepted_when_named(world: World) -> None:
    served = Served(world, "--allow-host", "proxy.example", "--allow-origin", "https://proxy.example")
    assert served.post({"Host": "proxy.example", "Origin": "https://proxy.example"}) == 200


def test_the_token_is_kept_for_its_owner_alone(world: World) -> None:
    Served(world)
    path = world.home / "server" / "mcp-token"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    path.chmod(0o644)
    refused = world.hold("mcp", "--http", "--port", 0)
    assert refused.returncode == 1
    assert "others can read the token" in refused.stderr


def test_other_addresses_than_loopback_are_refused(world: World) -> None:
    refused = world.hold("mcp", "--http", "--host", "0.0.0.0", "--port", 0)
    assert refused.returncode == 2
    assert "is not this machine alone" in refused.stderr


def test_a_port_in_use_is_reported(world: World) -> None:
    port = Served(world).url.rpartition(":")[2].partition("/")[0]
    refused = world.hold("mcp", "--http", "--port", port)
    assert refused.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in refused.stderr


_WAITING_CLIENT = """
import asyncio, httpx2, json, mcp, sys
from mcp.client.streamable_http import streamable_http_client

async def main():
    url, token, command = sys.argv[1:]
    async with httpx2.AsyncClient(headers={"Authorization": "Bearer " + token}, timeout=60) as http:
        async with mcp.Client(streamable_http_client(url, http_client=http), mode="legacy") as client:
            await client.call_tool("run", {"command": json.loads(command), "wait_s": 0, "name": "job"})
            print("started", flush=True)
            sys.stdin.readline()
            await client.call_tool("wait", {"ids": ["job"], "timeout_s": 60})

asyncio.run(main())
"""


def test_a_client_that_vanishes_takes_no_ending_with_it(world: World) -> None:
    served = Served(world)
    gate = world.gate()
    argv = world.probe("await", gate)
    client = world.host(_WAITING_CLIENT, served.url, served.token, json.dumps(argv))
    assert client.line(START_BOUND_S) == "started"
    session = world.open().get("job")
    # The server has a connection to the runner as long as it waits there.
    endpoint = session.endpoint or ""
    until(lambda: connections(endpoint) == 0, what="the end of all earlier requests, ours too,")
    client.send("wait\n")
    until(lambda: connections(endpoint) > 0, what="the wait")
    client.kill()
    until(lambda: connections(endpoint) == 0, what="the end of the wait")
    gate.release()
    assert session.wait(timeout=30).reason == "exit"

    async def main() -> None:
        headers = {"Authorization": f"Bearer {served.token}"}
        async with (
            httpx2.AsyncClient(headers=headers) as http,
            connected(streamable_http_client(served.url, http_client=http)) as again,
        ):
            # The exit record, on which the wait ends, comes before the signal.
            async with asyncio.timeout(BOUND_S):
                while "job" not in (told := text(await again.call_tool("signals", {}))):
                    pass
            assert "completed" in told

    asyncio.run(main())


def test_ports_that_are_invalid_are_refused(world: World) -> None:
    refused = world.hold("mcp", "--http", "--port", 99999)
    assert refused.returncode == 2
    assert "port: '99999' is not a port number" in refused.stderr
