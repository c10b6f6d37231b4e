"""What a daemon printed, as an agent is shown it: the end of the log, whole characters, at most 64 KiB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...host.log import Page
from ...host.text import all_visible
from ...signals.styles import Evva as Style

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...host.log import Chunk, Log

MAX_BYTES = 64 << 10
_ALL_LINES = 1 << 30
# A cut line is left out where its rest is no longer than this.
_LINE_REST_BYTES = 8 << 10


class Tail:
    """`cut` bytes that the log has stand before it."""

    __slots__ = ("cut", "text")

    def __init__(self, text: str, cut: int) -> None:
        self.text = text
        self.cut = cut

    @classmethod
    def of(
        cls,
        log: Log,
        *,
        lines: int | None = None,
        stream: str | None = None,
        until: Mapping[str, int] | None = None,
    ) -> Tail:
        page = log.tail(lines or _ALL_LINES, stream=stream, limit=MAX_BYTES, until=until)
        chunks = page.chunks
        trimmed = page.more or len(page.data) > MAX_BYTES
        if trimmed and not page.told:
            # The limit was for each stream, and its first line may have lost its beginning.
            chunks = _whole(_last(chunks, MAX_BYTES))
            shown = [chunk for chunk in chunks if chunk[2]]
            page = Page(shown, page.cursor, page.dropped_before, page.gaps, page.more, directory=log.directory)
        first: dict[str, int] = {}
        for name, offset, data in reversed(chunks):
            if data or name not in first:
                first[name] = offset
        cut = sum(offset - page.dropped_before.get(name, 0) for name, offset in first.items())
        return cls(page.text, cut if lines is None or trimmed else 0)

    def shown(self) -> Tail:
        return Tail(shown(self.text), self.cut)


def shown(text: str) -> str:
    """What a program or an agent said, for an answer: nothing hidden, and nothing that imitates our own words."""
    return Style.harmless(all_visible(text))


def lines_of(text: str) -> list[str]:
    """As commands end them: what Unicode calls a line separator stands inside a line."""
    return text.removesuffix("\n").split("\n") if text else []


def _last(chunks: list[Chunk], room: int) -> list[Chunk]:
    """The last bytes of all streams together, in the order in which they came. A chunk that is left out stays, empty,
    at its end: there its stream goes on."""
    kept: list[Chunk] = []
    for name, offset, data in reversed(chunks):
        skip = max(0, len(data) - room)
        kept.append((name, offset + skip, data[skip:]))
        room -= len(data) - skip
    return kept[::-1]


def _whole(chunks: list[Chunk]) -> list[Chunk]:
    """Without the rest of a line, or at least of a character, at their beginning."""
    name = next((name for name, _, data in chunks if data), None)
    skip = _first_whole(b"".join(data for each, _, data in chunks if each == name)[: _LINE_REST_BYTES + 4])
    kept: list[Chunk] = []
    for each, offset, data in chunks:
        left_out = min(skip, len(data)) if each == name else 0
        skip -= left_out
        kept.append((each, offset + left_out, data[left_out:]))
    return kept


def _first_whole(data: bytes) -> int:
    """Where the first whole line begins, or, where that would cost too much, the first whole character."""
    end = data.find(b"\n", 0, _LINE_REST_BYTES)
    if end >= 0:
        return end + 1
    return next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
