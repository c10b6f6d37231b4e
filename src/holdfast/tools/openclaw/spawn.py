"""What a run is started with: its environment, and the options of its session."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import BadArgument, NotAllowed, TooLarge
from ...places import kinds
from .. import environment as base
from .runs import CAPTURED_CHARS, METADATA, SCOPE_LABEL, SETTLE_MS, scope_label

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any


# The environment of a command: what an agent may override, and what it inherits from the host.
#
# An override must not run other code than the command, or redirect it to another machine.


_SHAPE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# These make a program load other code or libraries. The host's own values are not inherited either.
_LOADERS = re.compile(
    r"""
    LD_\w* | DYLD_\w* | BASH_FUNC_.* | NODE_OPTIONS | NODE_PATH | PYTHONPATH | PYTHONHOME | PYTHONBREAKPOINT | RUBYLIB
    | RUBYOPT | PERL5LIB | PERL5OPT | JAVA_TOOL_OPTIONS | BASH_ENV | ENV | IFS | PS4 | SHELLOPTS | SHELL | GCONV_PATH
    | GLIBC_TUNABLES | SSLKEYLOGFILE | LUA_INIT\w* | VIMINIT | CDPATH
    """,
    re.VERBOSE | re.IGNORECASE,
)
# These make tools read other settings, run other programs, or connect to other machines.
_REDIRECTING = re.compile(
    r"""
    HOME | ZDOTDIR | GIT_SSH\w* | GIT_CONFIG_\w* | GIT_DIR | GIT_EXEC_PATH | GIT_EXTERNAL_DIFF | \w*_ASKPASS | PAGER
    | EDITOR | VISUAL | PROMPT_COMMAND | PYTHONSTARTUP | \w*_PROXY | \w*_CA_BUNDLE | SSL_CERT_\w* | NPM_CONFIG_\w*
    | PIP_\w* | UV_\w* | CARGO_REGISTRIES_\w* | TF_VAR_\w* | CC | CXX | RUSTC\w* | MAKEFLAGS | XDG_\w* | KUBECONFIG
    | SSH_AUTH_SOCK
    """,
    re.VERBOSE | re.IGNORECASE,
)
# An approval covers a command in a known environment: afterwards only its appearance may change.
_AFTER_APPROVAL = re.compile(r"TERM|LANG|LC_\w*|COLORTERM|NO_COLOR|FORCE_COLOR", re.IGNORECASE)

# Tells shell profiles that the command is not interactive.
MARK = {"OPENCLAW_SHELL": "exec"}


class Violation(NotAllowed):
    """A forbidden variable; nothing is started. The message is openclaw's sentence, and the fix follows it."""

    fix = "Leave it out, and put what is needed into the command itself."

    def __init__(self, variable: str) -> None:
        what = "Custom 'PATH' variable" if variable.upper() == "PATH" else f"Environment variable '{variable}'"
        text = f"Security Violation: {what} is forbidden during host execution."
        self._set(text, tool="exec", why=variable)

    def __str__(self) -> str:
        return f"{self.message} {self.fix}"


def check_variables(overrides: Mapping[str, str], *, approved: bool = False, sandbox: bool = False) -> None:
    """In a sandbox an override applies only inside it and cannot affect the host."""
    for name in overrides:
        if not _SHAPE.fullmatch(name):
            raise BadArgument("env", f"{name[:40]!a} is not the name of a variable", "use letters, digits and _")
        forbidden = name.upper() == "PATH" or _LOADERS.fullmatch(name) or _REDIRECTING.fullmatch(name)
        if (forbidden and not sandbox) or base.denied(name) or (approved and not _AFTER_APPROVAL.fullmatch(name)):
            raise Violation(name)


def inherited(host: Mapping[str, str]) -> dict[str, str]:
    """The host's variables that every command inherits."""
    return {name: value for name, value in base.environment(host).items() if not _LOADERS.fullmatch(name)}


def environment(
    host: Mapping[str, str], overrides: Mapping[str, str], path_prepend: Sequence[str] = ()
) -> dict[str, str]:
    """The whole environment of a command. `overrides` must have passed `check_variables`."""
    env = {**inherited(host), **overrides}
    if path_prepend:
        env["PATH"] = ":".join([*path_prepend, *filter(None, [env.get("PATH")])])
    return env | MARK


# A spawn, in one of two modes, and the start options of its session.


CHILD, PTY = "child", "pty"

KILL_GRACE_MS, KILL_GRACE_MAX_MS = 5000, 60_000
CAPTURED_MIN_CHARS = 256
SIZE = (30, 120)

# Fields of only one mode.
_CHILD_ONLY = ("argv", "argv0", "shell_command", "input", "stdin_mode")
_PTY_ONLY = ("pty_command",)
# The capacity of a pipe.
_SECRET_MAX_BYTES = 64 << 10


@dataclass(frozen=True)
class SecretInput:
    """The command reads it from this descriptor, once. `create_data` is called right before the start; its result is
    zeroed right after."""

    fd: int
    create_data: Callable[[], bytearray]


@dataclass(frozen=True, kw_only=True)
class SpawnInput:
    """`child` runs an argv, or a line in the shell, over pipes; `pty` runs a line in the shell on a terminal. A field
    of the other mode is an error. `env` is added to the harmless part of the host's environment; with `exact_env` it
    is the whole environment."""

    mode: str = CHILD
    argv: Sequence[str] | None = None
    argv0: str | None = None
    shell_command: str | None = None
    input: str | bytes | None = None
    stdin_mode: str | None = None
    pty_command: str | None = None
    secret_input: SecretInput | None = None
    run_id: str | None = None
    session_id: str | None = None
    backend_id: str | None = None
    scope_key: str | None = None
    replace_existing_scope: bool = False
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    exact_env: bool = False
    timeout_ms: int | None = None
    no_output_timeout_ms: int | None = None
    capture_output: bool = True
    max_captured_output_chars: int = CAPTURED_CHARS
    on_stdout: Callable[[str], object] | None = None
    on_stderr: Callable[[str], object] | None = None
    place: str = kinds.LOCAL
    lifetime: str = "detached"
    # Further options of a session, for the tools.
    shell: Sequence[str] | None = None
    labels: Mapping[str, str] | None = None
    notify: str = "never"
    key: str | None = None
    metadata: Mapping[str, Any] | None = None
    oom_score_adj: int | None = None

    def check(self) -> None:
        if self.mode not in (CHILD, PTY):
            raise BadArgument("mode", f"{str(self.mode)[:40]!a} is not known", f"give {CHILD} or {PTY}")
        for name in _PTY_ONLY if self.mode == CHILD else _CHILD_ONLY:
            if getattr(self, name) is not None:
                raise BadArgument(name, f"cannot be given in mode {self.mode}", "leave it out, or change the mode")
        if self.mode == PTY:
            if not (self.pty_command or "").strip():
                raise BadArgument("pty_command", "PTY command cannot be empty", "give the line that the shell runs")
        elif self.shell_command is None and not self.argv:
            raise BadArgument("argv", "spawn argv cannot be empty", "give the program and its arguments")
        elif self.shell_command is not None and self.argv is not None:
            raise BadArgument("argv", "cannot be combined with shell_command", "give one of them")
        if self.stdin_mode not in (None, "pipe-open", "pipe-closed"):
            why = "the runner has no terminal to lend" if self.stdin_mode == "inherit" else "is not known"
            raise BadArgument("stdin_mode", f"{str(self.stdin_mode)[:40]!a}: {why}", "give pipe-open or pipe-closed")
        if self.input is not None and self.stdin_mode == "pipe-open":
            raise BadArgument("stdin_mode", "cannot be pipe-open with input", "leave one of them out")
        if self.secret_input is not None and self.secret_input.fd < 3:
            why = f"{self.secret_input.fd} is one of the standard streams"
            raise BadArgument("secret_input", why, "give 3 or more")
        if self.max_captured_output_chars < CAPTURED_MIN_CHARS:
            raise BadArgument("max_captured_output_chars", "is too small", f"give at least {CAPTURED_MIN_CHARS}")
        kinds.check(self.place)

    @property
    def scope(self) -> str:
        """A blank key is no scope."""
        return self.scope_key if self.scope_key and self.scope_key.strip() else ""

    @property
    def command(self) -> str | list[str]:
        if self.mode == PTY:
            return self.pty_command or ""
        return self.shell_command if self.shell_command is not None else list(self.argv or ())

    def options(self, run_id: str, owner: str | None, grace_ms: int, facts: Mapping[str, Any]) -> dict[str, Any]:
        """The options of the session's start."""
        own = {
            "session_id": self.session_id,
            "backend_id": self.backend_id,
            "scope_key": self.scope,
            **facts,
            **(self.metadata or {}),
        }
        labels = {**({SCOPE_LABEL: scope_label(self.scope)} if self.scope else {}), **(self.labels or {})}
        tty = self.mode == PTY
        # Another place inherits nothing from the host.
        handed_on = {} if self.exact_env or self.place != kinds.LOCAL else inherited(os.environ)
        return {
            "name": run_id,
            "owner": owner,
            "labels": labels,
            "cwd": self.cwd,
            "env": {**handed_on, **(self.env or {})},
            "clean_env": self.exact_env or self.place == kinds.LOCAL,
            "place": self.place,
            "argv0": self.argv0,
            "shell": None if self.shell is None else list(self.shell),
            "input": self.input,
            "stdin": "open" if self.stdin_mode == "pipe-open" else None if tty or self.input is not None else "closed",
            "tty": tty or None,
            "size": SIZE if tty else None,
            "timeout": self.timeout_ms / 1000 if self.timeout_ms else None,
            "idle_timeout": self.no_output_timeout_ms / 1000 if self.no_output_timeout_ms else None,
            "lifetime": self.lifetime,
            "grace": grace_ms / 1000,
            "stop_ladder": ladder(grace_ms, tty=tty),
            "notify": self.notify,
            "key": self.key,
            "metadata": {METADATA: own},
            "oom_score_adj": self.oom_score_adj,
        }


def ladder(grace_ms: int, *, tty: bool) -> list[dict[str, Any]]:
    """TERM to the command's group, then KILL to the tree. Shells on a terminal ignore TERM but not HUP."""
    grace_s = grace_ms / 1000
    if tty:
        soft = [
            {"signal": "TERM", "target": "session", "wait_s": 0.0},
            {"signal": "HUP", "target": "session", "wait_s": grace_s},
        ]
    else:
        soft = [{"signal": "TERM", "target": "group", "wait_s": grace_s}]
    return [*soft, {"signal": "KILL", "target": "tree", "wait_s": SETTLE_MS / 1000}]


class Secret:
    """A pipe that holds the secret during a start."""

    def __init__(self, secret: SecretInput | None) -> None:
        self._secret = secret
        self._reader = -1

    def __enter__(self) -> dict[int, int] | None:
        if self._secret is None:
            return None
        data = self._secret.create_data()
        try:
            if len(data) > _SECRET_MAX_BYTES:
                raise TooLarge("secret_input", _SECRET_MAX_BYTES)
            self._reader, writer = os.pipe()
            try:
                os.write(writer, data)
            finally:
                os.close(writer)
        finally:
            data[:] = bytes(len(data))
        return {self._secret.fd: self._reader}

    def __exit__(self, *_: object) -> None:
        if self._reader >= 0:
            os.close(self._reader)
