"""The text of one stream as an agent is shown it: the last lines, what is before them, and what a cap left out."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...host.text import all_visible
from ...signals.styles import Dominds as Style
from .wording import TRUNCATED

if TYPE_CHECKING:
    from typing import Any

    from ...host.aio import AsyncSession
    from ...host.log import Chunk, Page

STREAMS = ("stdout", "stderr")
# What the same owner started elsewhere may have a terminal.
TERMINAL = "tty"
# Of what may be shown of a long text, so much is its beginning.
_HEAD_SHARE = 0.67
# More than any log holds, and a number that the machine can count to.
_LINES_MAX = 1 << 40


class View:
    """`text` begins at offset `start` and ends at `end`; `scrolled` lines of the stream are before it."""

    __slots__ = ("_chunks", "dropped_before", "empty", "end", "omitted", "scrolled", "start", "stream", "text")

    def __init__(self, stream: str, page: Page, end: int, scrolled: int) -> None:
        self.stream = stream
        self.text = Style.harmless(all_visible(page.text.removesuffix("\n")))
        # A blank line is no text, and is output.
        self.empty = not page.text
        self.end = end
        self.start = page.chunks[0][1] if page.chunks else end
        self.scrolled = scrolled
        self.dropped_before = page.dropped_before.get(stream, 0)
        # What a cap left out: characters, and between which offsets they are.
        self.omitted: dict[str, int] | None = None
        self._chunks = page.chunks

    def to_json(self) -> dict[str, Any]:
        return {
            "start": self.start,
            "end": self.end,
            "linesScrolledOut": self.scrolled,
            "droppedBefore": self.dropped_before,
            "omitted": self.omitted,
        }

    def cap(self, limit: int, tool: str) -> None:
        """Leave out the middle of what is longer than so many characters."""
        text = self.text
        if len(text) <= limit:
            return
        facts = {"tool": tool, "chars": len(text), "limit": limit}
        # The mark is part of what is shown; one with the largest number it can have is the longest.
        room = max(0, limit - len(TRUNCATED.format(**facts, omitted=len(text))) - 2)
        head = math.ceil(room * _HEAD_SHARE)
        tail = len(text) - (room - head)
        begin, end = _offset(self._chunks, text, head, up=False), _offset(self._chunks, text, tail, up=True)
        self.omitted = {"from": begin, "to": end, "chars": tail - head}
        mark = TRUNCATED.format(**facts, omitted=tail - head)
        self.text = f"{text[:head]}\n{mark}\n{text[tail:]}"

    def tail(self, limit: int) -> tuple[str, bool]:
        """The last characters, from a line's beginning where there is one, and whether there are more."""
        if len(self.text) <= limit:
            return self.text, False
        text = self.text[len(self.text) - limit :]
        return text.partition("\n")[2] or text, True


async def last_lines(session: AsyncSession, stream: str, lines: int) -> View:
    return await _view(session, stream, await session.last(min(lines, _LINES_MAX), stream=stream))


async def lines_since(session: AsyncSession, stream: str, offset: int) -> View:
    return await _view(session, stream, await session.read(f"{stream}:{offset}", stream=stream))


async def _view(session: AsyncSession, stream: str, page: Page) -> View:
    if not page.chunks:
        return View(stream, page, session.ends.get(stream, 0), 0)
    _, offset, data = page.chunks[-1]
    return View(stream, page, offset + len(data), await session.lines_before(stream, page.chunks[0][1]))


def _offset(chunks: list[Chunk], text: str, position: int, *, up: bool) -> int:
    """Where in the log a character of the text stands. Lines of the text are lines of the log; within one whose bytes
    were not all text it is the line's beginning, or with `up` its end."""
    number = text.count("\n", 0, position)
    first = text.rfind("\n", 0, position) + 1
    line = text[first:].partition("\n")[0]
    at = chunks[0][1]
    rest = b""
    for index, (_, offset, data) in enumerate(chunks):
        ends = data.count(b"\n")
        at, rest = offset, data
        if number <= ends:
            rest = data.split(b"\n", number)[-1]
            at = offset + len(data) - len(rest)
            rest += b"".join(later for _, _, later in chunks[index + 1 :])
            break
        number -= ends
    raw = rest.partition(b"\n")[0]
    if raw == line.encode("utf-8", "replace"):
        return at + len(text[first:position].encode("utf-8", "replace"))
    return at + len(raw) if up else at
