"""Real MCP clients from npm, each driven by the stand-in for its model, with our server configured as we print it.

A client gets a home of its own and reaches nothing but loopback. What switches off its telemetry, its updates and its
questions to a person are options and environment variables; the entry of our server is the printed one, unchanged.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.model_api import Model, ModelApi

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from support.model_api import Conversation
    from support.world import World

_CLIENTS = Path(__file__).resolve().parents[2] / "build" / "clients"
_ARCH = {"x86_64": "x64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
# A client starts, calls a dozen tools and ends, which takes some seconds; machines that run the suite are busy.
_TIMEOUT_S = 400


class Client:
    """`structured`: it hands the model structured content alone, where there is some."""

    def __init__(self, name: str, program: str, run: Callable[[Run], list[str]], *, structured: bool) -> None:
        self.name = name
        # Where it has its settings, with those of hooks.
        self.settings = {"claude-code": ".claude/settings.json", "gemini": ".gemini/settings.json"}.get(name, "")
        self.structured = structured
        self._pattern = program
        self._run = run

    def program(self) -> Path | None:
        """None: it is not installed."""
        return next(iter(sorted(_CLIENTS.glob(f"{self.name}/node_modules/{self._pattern}"))), None)

    def configured(self, world: World, url: str, family: str) -> tuple[Run, list[str]]:
        """A run that has our server, and its command line."""
        program = self.program()
        assert program is not None, f"tools/mcp-clients.sh did not install {self.name}"
        run = Run(world, program, url)
        printed = world.hold("mcp", "--print-config", self.name, "--toolset", family, check=True, timeout=60)
        run.printed = printed.stdout
        return run, self._run(run)

    def talk(self, world: World, family: str, conversation: Conversation) -> Model:
        """One conversation in which the model asks for tools of the family."""
        model = Model(conversation)
        with ModelApi(model) as api:
            run, argv = self.configured(world, api.url, family)
            done = run.execute(argv)
        if model.problem is not None:
            raise model.problem
        ended = f"{self.name} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
        assert model.finished, ended
        return model


class Run:
    """One run of one client: its directories, its environment, and the configuration that we printed."""

    def __init__(self, world: World, program: Path, url: str) -> None:
        self.program = str(program)
        self.home = world.root / "client"
        self.home.mkdir()
        self.cwd = world.cwd
        self.url = url
        self.printed = ""
        directories = ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME")
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.home),
            "TMPDIR": str(world.root / "tmp"),
            **{name: str(self.home / name.lower()) for name in directories},
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy", "ALL_PROXY"), url),
            "NO_PROXY": "127.0.0.1,localhost",
        }

    def execute(self, argv: list[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        with subprocess.Popen(
            argv,
            env={**self.env, **(env or {})},
            cwd=self.cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        ) as self._process:
            try:
                out, errors = self._process.communicate(timeout=_TIMEOUT_S)
            except BaseException:
                self.kill()
                raise
        return subprocess.CompletedProcess(argv, self._process.returncode, out, errors)

    def kill(self) -> None:
        """The client alone: its servers see that it is gone."""
        self._process.kill()

    def add_hooks(self, client: Client, printed: str) -> None:
        """Merge what `hold hook` printed into the settings of the client."""
        path = self.home / client.settings
        settings = json.loads(path.read_text()) if path.exists() else {}
        self.write(path, json.dumps({**settings, **json.loads(printed)}))

    def write(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def _claude_code(run: Run) -> list[str]:
    """What is printed is a command line: it is run in a shell that finds `claude`."""
    commands = run.home / "bin"
    commands.mkdir()
    (commands / "claude").symlink_to(run.program)
    run.env |= {
        "PATH": f"{commands}{os.pathsep}{run.env['PATH']}",
        "ANTHROPIC_BASE_URL": run.url,
        "ANTHROPIC_API_KEY": "none",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        # The model is given the tools at once, and need not look for them.
        "ENABLE_TOOL_SEARCH": "false",
        "MCP_CONNECTION_NONBLOCKING": "0",
        "MCP_TIMEOUT": "100000",
        "MCP_TOOL_TIMEOUT": "100000",
    }
    added = run.execute(["sh", "-c", run.printed])
    assert added.returncode == 0, added.stderr
    return [run.program, "-p", "Begin.", "--allowedTools", "mcp__holdfast"]


_CODEX = """\
model = "stand-in"
model_provider = "stand_in"
check_for_update_on_startup = false

[analytics]
enabled = false

[features]
plugins = false
apps = false

[model_providers.stand_in]
name = "stand-in"
base_url = "{url}/v1"
wire_api = "responses"

"""


def _codex(run: Run) -> list[str]:
    run.write(run.home / ".codex" / "config.toml", _CODEX.format(url=run.url) + run.printed)
    # Without a person to ask, tools that may destroy something would be refused.
    return [run.program, "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "Begin."]


def _opencode(run: Run) -> list[str]:
    provider: dict[str, Any] = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "stand-in",
        "options": {"baseURL": f"{run.url}/v1", "apiKey": "none"},
        "models": {"model": {"name": "model", "tool_call": True}},
    }
    config: dict[str, Any] = {
        **json.loads(run.printed),
        "provider": {"stand-in": provider},
        "model": "stand-in/model",
        "small_model": "stand-in/model",
        "autoupdate": False,
        "share": "disabled",
    }
    run.write(run.cwd / "opencode.json", json.dumps(config))
    off = ("AUTOUPDATE", "MODELS_FETCH", "LSP_DOWNLOAD", "DEFAULT_PLUGINS")
    run.env |= {f"OPENCODE_DISABLE_{what}": "1" for what in off}
    return [run.program, "run", "Begin."]


def _gemini(run: Run) -> list[str]:
    settings: dict[str, Any] = {
        **json.loads(run.printed),
        "security": {"auth": {"selectedType": "gemini-api-key"}},
        "general": {"enableAutoUpdate": False},
        "privacy": {"usageStatisticsEnabled": False},
    }
    run.write(run.home / ".gemini" / "settings.json", json.dumps(settings))
    run.env |= {
        "GEMINI_CLI_NO_RELAUNCH": "true",
        "GEMINI_API_KEY": "none",
        "GOOGLE_GEMINI_BASE_URL": run.url,
        "GEMINI_CLI_TRUST_WORKSPACE": "true",
    }
    return ["node", run.program, "--yolo", "--model", "gemini-2.5-pro", "--prompt", "Begin."]


CODEX = Client("codex", f"@openai/codex-linux-{_ARCH}/vendor/*/bin/codex", _codex, structured=True)
CLAUDE_CODE = Client("claude-code", f"@anthropic-ai/claude-code-linux-{_ARCH}/claude", _claude_code, structured=True)
OPENCODE = Client("opencode", f"opencode-linux-{_ARCH}/bin/opencode", _opencode, structured=False)
GEMINI = Client("gemini", "@google/gemini-cli/bundle/gemini.js", _gemini, structured=False)
