"""Output by line numbers that never shift: the first line that was ever printed is 0."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...host.text import clean, decode, unfinished
from ...model import FINAL_STATES

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ...host.aio import AsyncSession

    # Does the work on so many characters, and holds nobody else up with it.
    Worked = Callable[[int, Callable[[], str]], Awaitable[str]]

_PAGE_BYTES = 1 << 20


@dataclass
class Window:
    """`lines` are those from `first` on; `total` counts all there ever were, `dropped` those that are gone."""

    lines: list[str]
    first: int
    total: int
    dropped: int


async def numbered(session: AsyncSession, first: int | None, count: int, worked: Worked, *, raw: bool) -> Window:
    """`count` lines from `first` on, or the last ones."""
    stream = only_stream(session)
    # The rows of a terminal are not its bytes, and two streams have no numbers in common.
    if stream is None or (session.tty and not raw):
        gone = [await session.lines_before(name, session.dropped_before.get(name, 0)) for name in session.ends]
        return _of_text(await session.text(), first, count, sum(gone))
    end = session.ends.get(stream, 0)
    begin = session.dropped_before.get(stream, 0)
    dropped = await session.lines_before(stream, begin)
    ended = await session.lines_before(stream, end)
    last = b"" if end == begin else (await session.read(f"{stream}:{end - 1}", stream=stream, limit=1)).data
    total = ended + (last not in (b"", b"\n"))
    start = max(dropped, total - count if first is None else first)
    data = await _between(session, stream, begin, end, start - dropped, count)
    if not raw and session.state not in FINAL_STATES:
        data = data[: len(data) - unfinished(data)]
    text = await worked(len(data), lambda: decode(data) if raw else clean(data))
    lines = text.split("\n")
    if lines and not lines[-1]:
        lines.pop()
    return Window(lines, start, total, dropped)


def only_stream(session: AsyncSession) -> str | None:
    """Where all its output is; None for a session of somebody else that has two."""
    streams = tuple(session.ends) or ("stdout",)
    return streams[0] if len(streams) == 1 else None


def _of_text(text: str, first: int | None, count: int, dropped: int) -> Window:
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    start = max(0, len(lines) - count) if first is None else max(0, first - dropped)
    return Window(lines[start : start + count], dropped + start, dropped + len(lines), dropped)


async def _between(session: AsyncSession, stream: str, begin: int, end: int, skip: int, count: int) -> bytes:
    """`count` lines behind the first `skip`, of the bytes from `begin` to `end`."""
    found: list[bytes] = []
    at = begin
    while at < end and count > 0:
        page = await session.read(f"{stream}:{at}", stream=stream, limit=min(_PAGE_BYTES, end - at))
        if not page.chunks:
            break
        _, offset, newest = page.chunks[-1]
        at = offset + len(newest)
        data = page.data
        here = data.count(b"\n")
        if here <= skip and skip > 0:
            skip -= here
            if skip > 0 or data.endswith(b"\n"):
                continue
            data = data[data.rfind(b"\n") + 1 :]
        elif skip > 0:
            data = data.split(b"\n", skip)[-1]
            skip = 0
        parts = data.split(b"\n", count)
        if len(parts) > count:
            found.append(data[: len(data) - len(parts[-1])])
            break
        found.append(data)
        count -= data.count(b"\n")
    return b"".join(found)
