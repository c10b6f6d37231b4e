"""The options that a host opens this toolset with."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...errors import BadArgument
from ...signals.redact import redact as redact_all
from ...terminal.text import visible
from .limits import EVENT_CHARS, KILL_GRACE_S, SERVER_WAIT_S
from .style import DrainStyle as Style

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from ...model import Snapshot, Stopped
    from ...sessions.aio import AsyncSession


GUARDS = ("promote", "refuse")
ORIGIN = ("platform", "chat_id", "user_id", "user_name", "thread_id", "message_id")


@dataclass(frozen=True)
class Settings:
    """`task_id` isolates: its sessions are listed and swept together, and share a place and a working directory.
    `place`: where they run, `{task_id}` in it stands for the task; None is what TERMINAL_ENV says. `recreate` is called
    with the task whose container is gone, and makes a new one. `turns`: an end that a reply reported counts as reported
    only when the open turn is settled. `drains`: the host delivers the notices of this owner. `redact` takes secrets
    out of results: True for the built-in rules, or a function; without it results show what was printed as it is."""

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
