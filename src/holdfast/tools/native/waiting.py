"""Waiting for the first of several sessions: what is asked of each, and what it was that came true."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from ...errors import BadArgument
from ...host.patterns import Pattern
from ...host.segments import TERMINAL
from ...host.text import clean
from ...model import Woke, format_cursor
from ...signals.words import spell
from .catalogue import WAIT_MAX_S
from .wording import quoted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...host.aio import AsyncSession
    from ...host.log import Log

# So long a session is silent that is called idle.
IDLE_S = 2.0
# Of a line without an end no more is looked at for a match that begins in what was seen of it.
_LINE_MAX_BYTES = 64 << 10


def conditions(
    until: str, pattern: str | None, timeout_s: float, cursors: Sequence[str | None]
) -> list[dict[str, Any]]:
    """What to ask of each session; `cursors` is how far the agent has seen them."""
    common: dict[str, Any] = {"timeout": timeout_s}
    if pattern is not None and until in ("output", "ready"):
        raise BadArgument("pattern", f"goes not together with until={until}", "give until=match to wait for a regex")
    if until == "match":
        if pattern is None:
            raise BadArgument("pattern", "is required with until=match", "give a regex")
        common["match"] = pattern
    elif until == "output":
        common["output"] = True
    elif until == "ready":
        common["ready"] = True
    elif until == "idle":
        common["idle"] = _number("pattern", pattern, IDLE_S, (0, WAIT_MAX_S), "how many seconds of silence, such as 2")
    elif until == "port":
        common["port"] = int(_number("pattern", pattern, None, (1, 65535), "the number of the port, such as 3000"))
    if until in ("match", "output"):
        return [{**common, "since": cursor or "0"} for cursor in cursors]
    return [common] * len(cursors)


async def first(
    sessions: Sequence[AsyncSession], conditions: Sequence[dict[str, Any]], log_of: Callable[[AsyncSession], Log]
) -> tuple[AsyncSession, Woke] | None:
    """The first of them for which it came true; None when the time was over for several."""
    waits = {
        asyncio.ensure_future(_met(each, asked, log_of(each))): each
        for each, asked in zip(sessions, conditions, strict=True)
    }
    try:
        pending = set(waits)
        trouble: BaseException | None = None
        late: tuple[AsyncSession, Woke] | None = None
        while pending:
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for each in (each for each in waits if each in done):
                problem = each.exception()
                if isinstance(problem, BadArgument) and waits[each].exit is None:
                    raise problem  # nobody need wait for the others to learn what was asked wrongly
                if problem is not None:
                    trouble = problem
                    continue  # the others can still be waited for
                if each.result().reason != "timeout":
                    return waits[each], each.result()
                late = waits[each], each.result()
        if late is None and trouble is not None:
            raise trouble
        return late if len(sessions) == 1 else None
    finally:
        for each in waits:
            each.cancel()
        await asyncio.gather(*waits, return_exceptions=True)


async def _met(session: AsyncSession, asked: dict[str, Any], log: Log) -> Woke:
    """A match may begin in what the agent has seen of a line, and end in what it has not."""
    begun = _Begun(session, log, asked["match"], asked["since"]) if "match" in asked else None
    if begun is None or not begun.lines:
        return await session.wait(**asked)
    plain = asyncio.ensure_future(session.wait(**asked))
    joined = asyncio.ensure_future(begun.wait())
    try:
        await asyncio.wait((plain, joined), return_when=asyncio.FIRST_COMPLETED)
        if joined.done() and (found := joined.result()) is not None:
            return found
        woke = await plain
        return woke if woke.reason == "match" else begun.look() or woke
    finally:
        plain.cancel()
        joined.cancel()
        await asyncio.gather(plain, joined, return_exceptions=True)


class _Begun:
    """Lines that the agent has seen the beginning of: where each began, and what was seen of it, by stream."""

    def __init__(self, session: AsyncSession, log: Log, pattern: str, since: str) -> None:
        self._session = session
        self._pattern = Pattern(pattern, ignore_case=False)
        self._log = log
        self._looked = since
        self.lines: dict[str, tuple[int, int]] = {}
        # A terminal's line is what is drawn there in the end, not what was printed one after the other.
        seen = {stream: at for stream, at in self._log.parse(since).items() if at and stream != TERMINAL}
        for stream, at in seen.items():
            page = self._log.tail(1, stream=stream, limit=_LINE_MAX_BYTES, until=seen)
            if page.data and not page.data.endswith(b"\n"):
                self.lines[stream] = (at - len(page.data), len(clean(page.data)))

    async def wait(self) -> Woke | None:
        """None where they all ended without a match."""
        while self.lines:
            if (found := self.look()) is not None:
                return found
            woke = await self._session.wait(output=True, since=self._looked)
            if woke.reason != "output":
                break
        return self.look()

    def look(self) -> Woke | None:
        # Before they are read: what is printed meanwhile is looked at again.
        self._looked = self._log.cursor()
        for stream, (begin, seen) in list(self.lines.items()):
            page = self._log.read(format_cursor({stream: begin}), stream=stream, limit=_LINE_MAX_BYTES)
            line, ended, _ = page.data.partition(b"\n")
            text = clean(line)
            dropped = bool(page.gaps)
            if not dropped and any(end > seen for _, end in self._pattern.spans(text.encode())):
                return Woke("match", cursor=format_cursor({stream: begin + len(line + ended)}), match=text)
            if ended or page.more or dropped:
                del self.lines[stream]
        return None


def why(woke: Woke, pattern: str | None) -> str:
    if woke.reason == "match":
        return f"matched {quoted(woke.match or '')}"
    if woke.reason == "idle":
        return f"quiet for {spell(float(pattern or IDLE_S))}"
    return f"port {pattern} is open" if woke.reason == "port" else ""


def _number(argument: str, given: str | None, default: float | None, bounds: tuple[float, float], wanted: str) -> float:
    try:
        found = default if given is None else float(given)
    except ValueError:
        found = None
    if found is None:
        raise BadArgument(argument, f"{given!a} is no number" if given else "is required", f"give {wanted}")
    if not bounds[0] <= found <= bounds[1]:
        raise BadArgument(argument, f"{given} is not from {bounds[0]} to {bounds[1]}", f"give {wanted}")
    return found
