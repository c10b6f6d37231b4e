"""The numbers of this toolset, and the options that a host opens it with."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import BadArgument
from ...signals.redact import redact as redact_all
from ...terminal.text import visible
from .style import DrainStyle as Style

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ...model import Snapshot, Stopped
    from ...sessions.aio import AsyncSession


# The numbers of this toolset.


# Seconds.
TIMEOUT_S = 180
FOREGROUND_CAP_S = 600
# A server reports its start within this time.
SERVER_WAIT_S = 10.0
KILL_GRACE_S = 2.0
# Reading the files of the user's shell.
PROFILE_S = 4.5
# One call of a sandbox that runs commands for us.
ENV_TIMEOUT_S = 10.0
# The pause between two calls that look for the end of a process: at first, and at most. No call waits for the end in
# the sandbox, because other calls would have to wait as well.
ENV_PAUSE_S = 0.25
ENV_PAUSE_MAX_S = 2.0

# Characters.
REPLY_CHARS = 200_000
OUTPUT_CHARS = 50_000
OUTPUT_HEAD_SHARE = 0.4
POLL_CHARS = 1000
WAIT_EXITED_CHARS = 2000
WAIT_RUNNING_CHARS = 1000
EVENT_CHARS = 2000
LIST_COMMAND_CHARS = 200
LIST_PREVIEW_CHARS = 200

# Lines and rows.
LOG_LINES = 200
LOG_LINES_MAX = 5000
LIST_ROWS = 64
LIST_AGE_S = 1800
RUNNING_HINT = 64
PTY_SIZE = (30, 120)

# Hexadecimal digits of an id: all, and the fewest of a prefix.
ID_DIGITS = 12
PREFIX_DIGITS = 4


_log = logging.getLogger("holdfast.tools.hermes")
# Each warning once: the variables are read at every call.
_warned: set[tuple[str, str]] = set()


def timeout_s(environ: Mapping[str, str] = os.environ) -> int:
    return _whole(environ, "TERMINAL_TIMEOUT", TIMEOUT_S)


def foreground_cap_s(environ: Mapping[str, str] = os.environ) -> int:
    return _whole(environ, "TERMINAL_MAX_FOREGROUND_TIMEOUT", FOREGROUND_CAP_S)


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "").strip()
    if not text:
        return default
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        if (name, text) not in _warned:
            _warned.add((name, text))
            _log.warning("%s=%a is not a number of seconds of at least 1; %d is used", name, text[:40], default)
        return default
    return int(text)


# The options that a host opens this toolset with.


GUARDS = ("promote", "refuse")
ORIGIN = ("platform", "chat_id", "user_id", "user_name", "thread_id", "message_id")


@dataclass(frozen=True)
class Settings:
    """`task_id` isolates: its sessions are listed and swept together, and share a place and a working directory.
    `place`: where they run, `{task_id}` in it stands for the task; None is what TERMINAL_ENV says. `recreate` is called
    with the task whose container is gone, and makes a new one. `turns`: an end that a reply reported shares the fate of
    the open turn. `drains`: the host delivers the notices of this owner. `redact` takes secrets out of results: True
    for the built-in rules, or a function; without it results show what was printed as it is."""

    task_id: str
    owner_task_id: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)
    place: str | None = None
    recreate: Callable[[str], str | Awaitable[str]] | None = None
    cwd: str | None = None
    env_pass: Sequence[str] = ()
    env_vars: Mapping[str, str] = field(default_factory=dict)
    env_deny: Sequence[str] = ()
    completion_output_chars: int = EVENT_CHARS
    foreground_guard: str = "promote"
    server_wait_s: float = SERVER_WAIT_S
    daemon_term_grace_seconds: float = KILL_GRACE_S
    max_running: int | None = None
    turns: bool = False
    drains: bool = True
    redact: bool | Callable[[str], str] = False

    def shown(self, text: str) -> str:
        """As a result shows it: nothing invisible, and nothing that looks like a notice."""
        return Style.harmless(visible(self.redacted(text), joiners=True))

    def redacted(self, text: str) -> str:
        return self.without_secrets(text) if self.redact else text

    def shown_in_notice(self, text: str) -> str:
        return visible(self.without_secrets(text), joiners=True)

    def without_secrets(self, text: str) -> str:
        """By the host's own function, else by the built-in rules: notices never hold secrets."""
        return self.redact(text) if callable(self.redact) else redact_all(text)

    async def stop(self, session: AsyncSession, by: str) -> Stopped:
        return await session.stop(self.grace_s, by, self.ladder_for(session))

    @property
    def grace_s(self) -> float:
        return self.daemon_term_grace_seconds or KILL_GRACE_S

    @property
    def ladder(self) -> list[dict[str, object]] | None:
        """A host that never kills only sends SIGTERM, first to the command and then to what is left."""
        if self.daemon_term_grace_seconds > 0:
            return None
        ask = {"signal": "TERM", "wait_s": KILL_GRACE_S / 2}
        return [{**ask, "target": "command"}, {**ask, "target": "tree", "last": True}]

    def ladder_for(self, shot: Snapshot) -> list[dict[str, object]] | None:
        """A host that kills also kills a session that was started by a host that never does."""
        if self.ladder is not None or not (shot.metadata.get("hermes") or {}).get("only_asks"):
            return self.ladder
        ask = {"signal": "TERM", "wait_s": self.grace_s / 2}
        return [{**ask, "target": "command"}, {**ask, "target": "tree"}]

    def __post_init__(self) -> None:
        if self.foreground_guard not in GUARDS:
            raise BadArgument("foreground_guard", f"{self.foreground_guard!a} is not known", "give promote or refuse")
        unknown = sorted(set(self.origin) - set(ORIGIN))
        if unknown:
            raise BadArgument("origin", f"{unknown[0]!a} is not known", f"give some of {', '.join(ORIGIN)}")
