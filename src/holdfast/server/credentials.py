"""Who calls: tokens, compared so that the time it takes tells nothing, and how long a wrong one waits."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .problems import ScopeMissing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

SCOPES = ("observe", "control", "manage")

_FIRST_DELAY_S = 0.25
_LONGEST_DELAY_S = 8.0
_HELD_BACK = 64
# After so long without another attempt a peer starts anew; so many peers are remembered.
_FORGET_S = 60.0
_PEERS = 1024


@dataclass(frozen=True)
class Caller:
    """One token. Each scope contains those before it."""

    id: str
    label: str
    scope: str
    digest: bytes

    @property
    def scopes(self) -> list[str]:
        return list(SCOPES[: SCOPES.index(self.scope) + 1])

    def must(self, scope: str) -> None:
        if scope not in self.scopes:
            raise ScopeMissing(scope)


def home_token(secret: str) -> Caller:
    """The token of the home itself: who can read it could do everything without us."""
    return Caller("home", "home", "manage", _digest(secret))


class Tokens:
    def __init__(self, callers: Iterable[Caller]) -> None:
        self._callers = {caller.id: caller for caller in callers}
        # What an unknown id is compared with: it costs the same as a wrong secret.
        self._nobody = Caller("", "", "observe", _digest(""))

    def caller(self, authorization: str) -> Caller | None:
        """Whose `Bearer hf_<id>_<secret>` this is."""
        scheme, _, token = authorization.partition(" ")
        head, _, rest = token.strip().partition("_")
        id, _, secret = rest.partition("_")
        caller = self._callers.get(id, self._nobody)
        is_right = hmac.compare_digest(_digest(secret), caller.digest)
        return caller if is_right and caller.id and scheme.lower() == "bearer" and head == "hf" else None


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


class Patience:
    """Answers to wrong credentials are held back, longer each time, per peer. Right ones never come here."""

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._clock = clock
        self._sleep = sleep
        self._failures: dict[str, tuple[int, float]] = {}
        self._held = 0

    async def hold_back(self, peer: str) -> bool:
        """Until the answer may go out. False at once where too many wait already."""
        now = self._clock()
        count, last = self._failures.pop(peer, (0, now))
        if now - last > _FORGET_S:
            count = 0
        # Popped and put back: the first of the dictionary is the one that has been silent longest.
        self._failures[peer] = count + 1, now
        if len(self._failures) > _PEERS:
            del self._failures[next(iter(self._failures))]
        if self._held >= _HELD_BACK:
            return False
        self._held += 1
        try:
            await self._sleep(min(_FIRST_DELAY_S * 2 ** min(count, 16), _LONGEST_DELAY_S))
        finally:
            self._held -= 1
        return True
