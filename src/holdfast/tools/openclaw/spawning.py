"""What is asked of the supervisor: one spawn, in one of two modes, as the options of a start."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ... import places
from ...errors import BadArgument, TooLarge
from . import hardening, scopes
from .runs import METADATA, SCOPE_LABEL

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

CHILD, PTY = "child", "pty"

KILL_GRACE_MS, KILL_GRACE_MAX_MS = 5000, 60_000
# What the last rung may take to take effect.
SETTLE_MS = 4000
CAPTURED_CHARS, CAPTURED_MIN_CHARS = 1 << 20, 256
SIZE = (30, 120)

# What only one of the modes has.
_CHILD_ONLY = ("argv", "argv0", "shell_command", "input", "stdin_mode")
_PTY_ONLY = ("pty_command",)
# What fits into a pipe that nobody reads yet.
_SECRET_MAX_BYTES = 64 << 10


@dataclass(frozen=True)
class SecretInput:
    """Read by the command from this descriptor, once. `create_data` is called right before the start, and what it
    gave is zeroed right after."""

    fd: int
    create_data: Callable[[], bytearray]


@dataclass(frozen=True, kw_only=True)
class SpawnInput:
    """`child` runs an argv, or a line in the shell, over pipes; `pty` runs a line in the shell on a terminal. A field
    of the other mode is an error. `env` is added to what is harmless of the host's environment; with `exact_env` it
    is all."""

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
    place: str = places.LOCAL
    lifetime: str = "detached"
    # What else a session can be given; the tools do.
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
                raise BadArgument(name, f"is not for the mode {self.mode}", "leave it out, or choose the other mode")
        if self.mode == PTY:
            if not (self.pty_command or "").strip():
                raise BadArgument("pty_command", "PTY command cannot be empty", "give the line that the shell runs")
        elif self.shell_command is None and not self.argv:
            raise BadArgument("argv", "spawn argv cannot be empty", "give the program and its arguments")
        elif self.shell_command is not None and self.argv is not None:
            raise BadArgument("argv", "stands beside shell_command", "give one of them")
        if self.stdin_mode not in (None, "pipe-open", "pipe-closed"):
            why = "the runner has no terminal to lend" if self.stdin_mode == "inherit" else "is not known"
            raise BadArgument("stdin_mode", f"{str(self.stdin_mode)[:40]!a}: {why}", "give pipe-open or pipe-closed")
        if self.input is not None and self.stdin_mode == "pipe-open":
            raise BadArgument("stdin_mode", "input is written and then stdin is closed", "leave one of them out")
        if self.secret_input is not None and self.secret_input.fd < 3:
            raise BadArgument(
                "secret_input", f"{self.secret_input.fd} is one of the standard streams", "give 3 or more"
            )
        if self.max_captured_output_chars < CAPTURED_MIN_CHARS:
            low = CAPTURED_MIN_CHARS
            raise BadArgument("max_captured_output_chars", "is too small", f"give at least {low}")
        places.check(self.place)

    @property
    def scope(self) -> str:
        """Blank belongs to no scope."""
        return self.scope_key if self.scope_key and self.scope_key.strip() else ""

    @property
    def command(self) -> str | list[str]:
        if self.mode == PTY:
            return self.pty_command or ""
        return self.shell_command if self.shell_command is not None else list(self.argv or ())

    def options(self, run_id: str, owner: str | None, grace_ms: int, facts: Mapping[str, Any]) -> dict[str, Any]:
        """For a start. Everything is in there: nothing is attached afterwards."""
        own = {
            "session_id": self.session_id,
            "backend_id": self.backend_id,
            "scope_key": self.scope,
            **facts,
            **(self.metadata or {}),
        }
        labels = {**({SCOPE_LABEL: scopes.label(self.scope)} if self.scope else {}), **(self.labels or {})}
        tty = self.mode == PTY
        # Away nothing of the host's is handed on anyway.
        handed_on = {} if self.exact_env or self.place != places.LOCAL else hardening.inherited(os.environ)
        return {
            "name": run_id,
            "owner": owner,
            "labels": labels,
            "cwd": self.cwd,
            "env": {**handed_on, **(self.env or {})},
            "clean_env": self.exact_env or self.place == places.LOCAL,
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
    """TERM to the command's group, later the kill of everybody. Shells on a terminal ignore TERM and not HUP."""
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
    """A pipe with what `create_data` gave, for the time of a start."""

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
