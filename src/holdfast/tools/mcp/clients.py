"""Configurations of common MCP clients, and the address and token of our server."""

from __future__ import annotations

import json
import os
import shlex
import sys
from typing import TYPE_CHECKING, NamedTuple

from ...errors import BadArgument
from ...home import Home
from ...serving import listener

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    Entry = dict[str, Any]
    Env = dict[str, str]


# What to write into the configuration of common MCP clients, so that they start or reach our server.


NAME = "holdfast"
_TOKEN_VARIABLE = "HOLDFAST_MCP_TOKEN"  # noqa: S105  the name of a variable


class Client(NamedTuple):
    """`then` says what to do with the configuration; `started` and `reached` make it, for stdio and for HTTP."""

    then: str
    started: Callable[[Sequence[str], Env], str]
    reached: Callable[[str, str], str] | None


def _json(*path: str, **entry: Any) -> str:
    made: Entry = entry
    for key in reversed(path):
        made = {key: made}
    return json.dumps(made, indent=2)


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def _entry(command: Sequence[str], env: Env) -> Entry:
    made: Entry = {"command": command[0], "args": list(command[1:])}
    return {**made, "env": env} if env else made


def _common(command: Sequence[str], env: Env) -> str:
    return _json("mcpServers", NAME, **_entry(command, env))


def _toml(table: str, entry: Mapping[str, object]) -> str:
    # JSON strings and lists of them are TOML as well; a table in a line has another mark.
    lines = [f"[{table}]"]
    for key, value in entry.items():
        if isinstance(value, dict):
            value = "{ " + ", ".join(f"{name} = {json.dumps(each)}" for name, each in value.items()) + " }"
            lines.append(f"{key} = {value}")
        else:
            lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines)


CLIENTS: dict[str, Client] = {
    "claude-code": Client(
        "run that in a shell; to change it, run `claude mcp remove holdfast` first",
        lambda command, env: shlex.join(
            [
                "claude",
                "mcp",
                "add",
                "--scope",
                "user",
                NAME,
                *(word for pair in env.items() for word in ("-e", "=".join(pair))),
                "--",
                *command,
            ]
        ),
        lambda url, token: shlex.join(
            [
                *("claude", "mcp", "add", "--scope", "user", "--transport", "http", NAME, url),
                *("--header", f"Authorization: Bearer {token}"),
            ]
        ),
    ),
    "claude-desktop": Client("put that into claude_desktop_config.json", _common, None),
    "cursor": Client(
        "put that into ~/.cursor/mcp.json, or .cursor/mcp.json in a project",
        _common,
        lambda url, token: _json("mcpServers", NAME, url=url, headers=_bearer(token)),
    ),
    "vscode": Client(
        "put that into .vscode/mcp.json in a project",
        lambda command, env: _json("servers", NAME, type="stdio", **_entry(command, env)),
        lambda url, token: _json("servers", NAME, type="http", url=url, headers=_bearer(token)),
    ),
    "codex": Client(
        "put that into ~/.codex/config.toml, once: Codex refuses a file that has it twice",
        # Codex waits one second for a server that is not required, and works without its tools if that is too short.
        lambda command, env: _toml(
            f"mcp_servers.{NAME}", {**_entry(command, env), "required": True, "startup_timeout_sec": 60}
        ),
        lambda url, token: (
            f"# in the environment of the client: {_TOKEN_VARIABLE}={token}\n"
            + _toml(f"mcp_servers.{NAME}", {"url": url, "bearer_token_env_var": _TOKEN_VARIABLE})
        ),
    ),
    "gemini": Client(
        "put that into ~/.gemini/settings.json",
        _common,
        lambda url, token: _json("mcpServers", NAME, httpUrl=url, headers=_bearer(token)),
    ),
    "windsurf": Client(
        "put that into ~/.codeium/windsurf/mcp_config.json",
        _common,
        lambda url, token: _json("mcpServers", NAME, serverUrl=url, headers=_bearer(token)),
    ),
    "zed": Client(
        "put that into settings.json of Zed",
        lambda command, env: _json("context_servers", NAME, **_entry(command, env)),
        lambda url, token: _json("context_servers", NAME, url=url, headers=_bearer(token)),
    ),
    "opencode": Client(
        "put that into opencode.json",
        lambda command, env: _json(
            "mcp", NAME, type="local", command=list(command), **({"environment": env} if env else {}), enabled=True
        ),
        lambda url, token: _json("mcp", NAME, type="remote", url=url, headers=_bearer(token), enabled=True),
    ),
}


class Hooks(NamedTuple):
    """`begin` and `end` are the names that a client has for the events around a turn."""

    file: str
    begin: str
    end: str


HOOKS = {
    "claude-code": Hooks("~/.claude/settings.json", "UserPromptSubmit", "Stop"),
    "gemini": Hooks("~/.gemini/settings.json", "BeforeAgent", "AfterAgent"),
}


def hook_settings(name: str, words: Sequence[str], env: Env) -> str:
    """The part of a client's settings that runs our hook around each turn."""
    set_ = ["env", *map("=".join, env.items())] if env else []
    hook = {"type": "command", "command": shlex.join([*set_, *program(), "hook", name, "--turn", *words])}
    hooks = HOOKS[name]
    return _json(hooks={event: [{"hooks": [hook]}] for event in (hooks.begin, hooks.end)})


def program() -> list[str]:
    """The command line of `hold`, also where the client has another PATH than we."""
    script = os.path.join(os.path.dirname(sys.executable), "hold")
    return [script] if os.access(script, os.X_OK) else [sys.executable, "-m", "holdfast.cli"]


def command(toolset: str, owner: str | None, *, redact: bool = False) -> list[str]:
    """The command line that starts our server."""
    return [
        *program(),
        "mcp",
        *(() if toolset == "native" else ("--toolset", toolset)),
        *(() if owner is None else ("--owner", owner)),
        *(("--redact",) if redact else ()),
    ]


def config(name: str, command: Sequence[str], env: Env, *, url: str | None = None, token: str = "") -> str:
    client = CLIENTS[name]
    if url is None:
        return client.started(command, env)
    if client.reached is None:
        raise BadArgument("print-config", f"{name} starts its servers itself", "leave out --http")
    return client.reached(url, token)


# Where the server is reached over HTTP, and the token that it asks for.


LOOPBACK = ("127.0.0.1", "::1", "localhost")
PATH = "/mcp"


def address(host: str, port: int) -> str:
    return listener.url("http", host, port, PATH)


def token(file: str | None) -> str:
    """The token in a file of the user's, or the home's own, made when first asked for."""
    if file:
        return listener.read_token(file, follow=True)
    home = Home()
    home.create()
    return listener.token_of(home, "mcp-token")
