"""Ctrl-C at the terminal of a server: it leaves with one line."""

from __future__ import annotations

import http.client
import json
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from support.waiting import until
from support.webviewer import WebViewer

if TYPE_CHECKING:
    from support.program import Program
    from support.world import World

# The packages of a server take a second to load, and several on a busy machine.
START_BOUND_S = 30.0
INTERRUPT = "\x03"


def interrupted(program: Program) -> list[str]:
    """What it says on the way out."""
    program.send(INTERRUPT)
    said = []
    while line := program.line(START_BOUND_S):
        said.append(line.removeprefix("^C"))  # the terminal shows what was typed
    assert program.wait(START_BOUND_S) == 0
    return said


@pytest.mark.covers("found:23")
@pytest.mark.parametrize("viewed", [False, True])
def test_the_server_of_a_home_leaves_with_one_line(world: World, viewed: bool) -> None:
    program = world.program(world.hold_argv("serve", "--port", 0), tty=True)
    address = program.line(START_BOUND_S).partition("://")[2].partition("/")[0]
    session = world.open().start("echo up; exec sleep 600", tty=True)
    if viewed:
        token = (world.home / "server" / "token").read_text().strip()
        viewer = WebViewer(address, f"hf_home_{token}", session.id)
        world.closing.callback(viewer.leave)
        viewer.begun()
    assert interrupted(program) == ["hold: ended; the sessions are still running"]
    assert session.refresh().state == "running"
    session.stop(grace=0)


@pytest.mark.covers("found:23")
@pytest.mark.parametrize("connected", [False, True])
def test_the_mcp_server_leaves_with_one_line(world: World, connected: bool) -> None:
    program = world.program(world.hold_argv("mcp", "--http", "--port", 0, "--owner", "agent-7"), tty=True)
    url = program.line(START_BOUND_S).split()[-1]
    assert "--print-config" in program.line(START_BOUND_S)
    if connected:
        token = (world.home / "server" / "mcp-token").read_text().strip()
        stream(world, url, token)
    assert interrupted(program) == ["hold: ended; the sessions are still running"]


def stream(world: World, url: str, token: str) -> None:
    """A client that has said hello, listens for notifications, and waits for a tool."""
    there = urlsplit(url)
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    headers["Content-Type"] = "application/json"

    def connection() -> http.client.HTTPConnection:
        made = http.client.HTTPConnection(there.netloc, timeout=START_BOUND_S)
        world.closing.callback(made.close)
        return made

    def post(message: dict[str, object]) -> http.client.HTTPResponse:
        asking = connection()
        asking.request("POST", there.path, json.dumps({"jsonrpc": "2.0", **message}), headers)
        return asking.getresponse()

    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    answer = post({"id": 1, "method": "initialize", "params": hello})
    assert answer.status == 200
    headers["Mcp-Session-Id"] = answer.headers["Mcp-Session-Id"]
    answer.read()
    assert post({"method": "notifications/initialized"}).status == 202
    listening = connection()
    listening.request("GET", there.path, headers=headers)
    assert listening.getresponse().status == 200
    call = {"name": "run", "arguments": {"command": "touch began; sleep 600", "wait_s": 60}}
    assert post({"id": 2, "method": "tools/call", "params": call}).status == 200
    until((world.cwd / "began").exists, START_BOUND_S, watch=world.cwd, what="the call")
    world.closing.callback(lambda: [each.stop(grace=0) for each in world.open().sessions()])
