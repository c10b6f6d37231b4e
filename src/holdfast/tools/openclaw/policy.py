"""Whether a command may run: a hook of the host decides, and an approval is bound to what was asked."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Decide = Callable[["Request"], "Verdict | Awaitable[Verdict]"]

_SLUG_CHARACTERS = 8


@dataclass(frozen=True)
class Request:
    """What somebody decides about. `id` is made of all of it: whatever differs is another request."""

    command: str
    cwd: str
    env_names: tuple[str, ...]
    place: str
    elevated: bool
    security: str
    ask: str

    @property
    def id(self) -> str:
        parts = [self.command, self.cwd, self.env_names, self.place, self.elevated, self.security, self.ask]
        return sha256(json.dumps(parts).encode()).hexdigest()[:32]

    @property
    def slug(self) -> str:
        return self.id[:_SLUG_CHARACTERS]


@dataclass(frozen=True)
class Allow:
    """`approval` is the id of the request that a person approved; it has to be this one."""

    approval: str | None = None


@dataclass(frozen=True)
class Deny:
    text: str


@dataclass(frozen=True)
class Pending:
    """A person was asked, and has until then (milliseconds since 1970)."""

    expires_at_ms: int


@dataclass(frozen=True)
class Unavailable:
    """Somebody would have to approve it, and nobody can be asked."""

    reason: str


Verdict = Allow | Deny | Pending | Unavailable


def usual(request: Request) -> Verdict:
    """Where a host has no policy of its own."""
    return (
        Deny("exec was not allowed: its security is deny; nothing has run.") if request.security == "deny" else Allow()
    )
