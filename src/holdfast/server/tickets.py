"""Tickets: one upgrade of one session in one role, soon, by whoever asked for it."""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import Busy
from . import limits

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Literal

    from .credentials import Caller

_TICKET_BYTES = 32


@dataclass(frozen=True)
class Ticket:
    session: str
    role: Literal["control", "observe"]
    caller: Caller
    origin: str | None
    expires: float


class Tickets:
    """Those that were given out and not used. They live in one process, so no other instance takes them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By digest: finding one takes a time that tells nothing about the secret. All live equally long, so that the
        # oldest come first.
        self._open: dict[bytes, Ticket] = {}

    def issue(self, session: str, role: Literal["control", "observe"], caller: Caller, origin: str | None) -> str:
        now = self._clock()
        while self._open and (first := next(iter(self._open))) and self._open[first].expires <= now:
            del self._open[first]
        if len(self._open) >= limits.TICKETS:
            raise Busy(f"{limits.TICKETS} tickets are outstanding (tickets)")
        secret = secrets.token_urlsafe(_TICKET_BYTES)
        self._open[_digest(secret)] = Ticket(session, role, caller, origin, now + limits.TICKET_S)
        return secret

    def take(self, secret: str, origin: str | None) -> Ticket | None:
        """What the ticket is good for. Whoever presents it has used it, also where it was the wrong one to present."""
        ticket = self._open.pop(_digest(secret), None)
        if ticket is None or ticket.expires <= self._clock() or ticket.origin != origin:
            return None
        return ticket


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()
