"""What a daemon printed, as an agent is shown it: the end of the log, whole characters, at most 64 KiB."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...host.log import Page

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
        if len(page.data) > MAX_BYTES:
            # The limit was for each of two streams.
            page = log.tail(lines or _ALL_LINES, stream=stream, limit=MAX_BYTES // 2, until=until)
        first: dict[str, int] = {}
        chunks: list[Chunk] = []
        for name, offset, data in page.chunks:
            if name not in first:
                if page.more and not page.told:
                    data = data[_first_whole(data) :]
                    offset = offset + len(page.chunks[len(chunks)][2]) - len(data)
                first[name] = offset
            chunks.append((name, offset, data))
        cut = sum(offset - page.dropped_before.get(name, 0) for name, offset in first.items())
        if page.more and not page.told:
            page = Page(chunks, page.cursor, page.dropped_before, page.gaps, page.more, directory=log.directory)
        return cls(page.text, cut if lines is None or page.more else 0)


def _first_whole(data: bytes) -> int:
    """Where the first whole line begins, or, where that would cost too much, the first whole character."""
    end = data.find(b"\n", 0, _LINE_REST_BYTES)
    if end >= 0:
        return end + 1
    return next((at for at, byte in enumerate(data[:4]) if byte & 0xC0 != 0x80), 0)
