"""Programs of others at the other end: configurations of common clients, and the inspector from npm."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.tools import TOOLSETS
from holdfast.tools.mcp.clients import CLIENTS, command

if TYPE_CHECKING:
    from support.world import World

NODE = Path(__file__).resolve().parents[3] / "build" / "node" / "node_modules"
INSPECTOR = NODE / ".bin" / "mcp-inspector"
needs_npm = pytest.mark.skipif(not INSPECTOR.exists(), reason="tools/node-packages.sh installed nothing")


def _command(client: str, printed: str) -> list[str]:
    """The command line that such a client would start."""
    if client == "claude-code":
        words = shlex.split(printed)
        return words[words.index("--") + 1 :]
    if client == "codex":
        entry = tomllib.loads(printed)["mcp_servers"]["holdfast"]
    else:
        (servers,) = json.loads(printed).values()
        entry = servers["holdfast"]
    words = entry["command"]
    return list(words) if isinstance(words, list) else [words, *entry["args"]]


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_printed_for_a_client_names_the_command_that_starts_our_server(world: World, client: str) -> None:
    printed = world.hold("mcp", "--print-config", client, "--toolset", "evva", "--owner", "bot", check=True)
    assert _command(client, printed.stdout) == command("evva", "bot")
    # A home of one's own is named, for the client has another environment.
    assert f"{world.home}" in printed.stdout


def _environment(client: str, printed: str) -> dict[str, str]:
    """What such a client would add to its environment."""
    if client == "claude-code":
        words = shlex.split(printed)
        return dict(words[at + 1].split("=", 1) for at, word in enumerate(words) if word in ("-e", "--env"))
    if client == "codex":
        entry = tomllib.loads(printed)["mcp_servers"]["holdfast"]
    else:
        (servers,) = json.loads(printed).values()
        entry = servers["holdfast"]
    return dict(entry.get("env") or entry.get("environment") or {})


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("written", [True, False])
def test_a_client_with_another_environment_finds_the_same_home_and_sockets(
    world: World, monkeypatch: pytest.MonkeyPatch, client: str, written: bool
) -> None:
    monkeypatch.delenv("HOLDFAST_HOME", raising=False)
    monkeypatch.delenv("HOLDFAST_CONFIG", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(world.root / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(world.root / "config"))
    monkeypatch.setenv("TMPDIR", str(world.root))
    monkeypatch.setenv("UNRELATED", "x")
    file = world.root / "config" / "holdfast" / "config.toml"
    if written:
        file.parent.mkdir(parents=True)
        file.write_text("")
    printed = world.hold("mcp", "--print-config", client, check=True)
    assert _environment(client, printed.stdout) == {
        "HOLDFAST_HOME": str(world.root / "state" / "holdfast"),
        # One that is named must be there.
        **({"HOLDFAST_CONFIG": str(file)} if written else {}),
        "XDG_RUNTIME_DIR": str(world.runtime_base),
        "TMPDIR": str(world.root),
    }


def test_the_command_that_is_printed_starts_our_server(world: World) -> None:
    hello: dict[str, Any] = {"protocolVersion": "2025-06-18", "capabilities": {}}
    hello["clientInfo"] = {"name": "test", "version": "1"}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    done = subprocess.run(
        command("evva", "bot"),
        input=json.dumps(request) + "\n",
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert json.loads(done.stdout.splitlines()[0])["result"]["serverInfo"]["name"] == "holdfast"


@pytest.mark.parametrize("client", CLIENTS)
def test_what_is_printed_for_http_has_the_address_and_the_token(world: World, client: str) -> None:
    printed = world.hold("mcp", "--http", "--port", 8765, "--print-config", client)
    if client == "claude-desktop":
        assert printed.returncode == 2
        return
    assert printed.returncode == 0
    assert "http://127.0.0.1:8765/mcp" in printed.stdout
    assert (world.home / "server" / "mcp-token").read_text().strip() in printed.stdout


def test_an_unknown_client_is_refused_with_those_there_are(world: World) -> None:
    refused = world.hold("mcp", "--print-config", "emacs")
    assert refused.returncode == 2
    assert "claude-code, claude-desktop, cursor" in refused.stderr


def test_no_entry_is_printed_for_a_server_that_could_not_start(world: World) -> None:
    config = world.root / "user" / ".config" / "holdfast" / "config.toml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("[stop]\ngrace = 5s\n")
    refused = world.hold("mcp", "--print-config", "codex")
    assert (refused.returncode != 0, refused.stdout) == (True, "")
    assert 'write grace = "5s"' in refused.stderr
    config.unlink()
    # As where the package is not installed.
    code = "import sys; sys.modules['mcp'] = None; from holdfast.cli import main; sys.exit(main())"
    argv = [sys.executable, "-c", code, "mcp", "--print-config", "codex"]
    refused = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False)
    assert (refused.returncode != 0, refused.stdout) == (True, "")
    assert "pip install 'holdfast[mcp]'" in refused.stderr


@needs_npm
@pytest.mark.long
@pytest.mark.parametrize("family", TOOLSETS)
def test_the_inspector_lists_the_tools_of_each_family(world: World, family: str) -> None:
    listed = _inspect(world, family, "--method", "tools/list")
    assert {tool["name"] for tool in listed["tools"]} >= _SOME[family]


_SOME = {
    "native": {"run", "read", "wait", "send", "screen", "stop", "list", "signals"},
    "dominds": {"shell_cmd", "get_daemon_output", "stop_daemon"},
    "evva": {"bash", "monitor", "daemon_list", "daemon_output", "daemon_stop"},
    "hermes": {"terminal", "process"},
    "openclaw": {"exec", "process"},
}


@needs_npm
def test_the_inspector_calls_a_tool_and_reads_a_resource(world: World) -> None:
    called = _inspect(world, "native", "--method", "tools/call", "--tool-name", "run", "--tool-arg", "command=echo hi")
    assert called["content"][0]["text"].splitlines()[1] == "hi"
    resources = _inspect(world, "native", "--method", "resources/list")["resources"]
    (log,) = [each["uri"] for each in resources if each["uri"].endswith("/log")]
    read = _inspect(world, "native", "--method", "resources/read", "--uri", log)
    assert read["contents"][0]["text"] == "hi\n"


def _inspect(world: World, family: str, *words: str) -> Any:
    served = world.hold_argv("mcp", "--toolset", family, "--owner", "agent-7")
    # Clients give their servers little of their own environment.
    env = [word for name, value in world.env.items() for word in ("-e", f"{name}={value}")]
    done = subprocess.run(
        ["node", str(INSPECTOR), "--cli", *served, *words, *env],
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
        process_group=0,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


_AJV = """
const Ajv = require("ajv/dist/2020").default;
for (const {name, inputSchema} of JSON.parse(require("fs").readFileSync(0))) {
  const ajv = new Ajv({strict: true, strictTypes: true, strictTuples: true, strictRequired: true});
  ajv.compile(inputSchema);
  console.log(name);
}
"""


@needs_npm
def test_schemas_pass_the_strictest_mode_of_ajv(world: World) -> None:
    from support.agents import Agent

    schemas = []
    for family in TOOLSETS:
        agent = Agent(family, "agent-7")
        for strict in (False, True):
            schemas += agent.tools.schemas("mcp", strict=strict)
        agent.close()
    done = subprocess.run(
        ["node", "-e", _AJV],
        input=json.dumps(schemas),
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        env={**os.environ, "NODE_PATH": str(NODE)},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [each["name"] for each in schemas]


def test_a_hook_that_fails_lets_the_turn_go_on_and_says_nothing_if_nothing_has_happened(world: World) -> None:
    event = json.dumps({"hook_event_name": "BeforeAgent", "session_id": "a", "cwd": str(world.cwd)})
    quiet = world.hold("hook", "gemini", "--turn", input=event)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "", "")
    for broken in ("", "no JSON", "{}", "[]"):
        failed = world.hold("hook", "gemini", "--turn", input=broken)
        # A client takes 2 for a refusal of the whole turn.
        assert (failed.returncode, failed.stdout) == (1, "")
        assert "no notices in this turn" in failed.stderr


def test_a_turn_is_shown_again_what_one_that_did_not_end_was_shown(world: World) -> None:
    def turn(event: str, conversation: str) -> str:
        said = {"hook_event_name": event, "session_id": conversation}
        return world.hold("hook", "claude-code", "--turn", "--owner", "bot", input=json.dumps(said), check=True).stdout

    hf = world.open()
    build = hf.start("echo no space; exit 3", name="build", owner="bot", notify="exit")
    build.wait(timeout=30)
    for conversation in ("crashed", "next"):
        shown = json.loads(turn("UserPromptSubmit", conversation))["hookSpecificOutput"]
        assert shown["hookEventName"] == "UserPromptSubmit"
        assert "build" in shown["additionalContext"]
        assert "no space" in shown["additionalContext"]
    # What happens during a turn is for the one after it.
    hf.start("exit 4", name="later", owner="bot", notify="exit").wait(timeout=30)
    assert turn("Stop", "next") == ""
    assert hf.signals("bot").pending() == 1
    assert "later" in turn("UserPromptSubmit", "next")
    assert turn("Stop", "next") == ""
    assert turn("UserPromptSubmit", "next") == ""
