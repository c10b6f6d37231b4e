"""What a run printed, as text for a model: new output by cursor, the end of it, or all of it in lines."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...errors import BadCursor, OffsetAhead
from ...host.agent_text import AgentText
from ...model import FINAL_STATES, format_cursor
from ...signals.styles import OpenClaw as Style
from . import texts
from .managed import recorded_ends

if TYPE_CHECKING:
    from ...host.aio import AsyncSession
    from ...index.kept import Kept

# Of what a poll has to skip anyway, so many bytes of each stream are looked at: escape sequences count as bytes.
_LOOK_BYTES = 512 << 10
_PAGE_BYTES = 1 << 20
# What is kept of a session: how many characters it printed.
_CHARS = "chars"
_CURSOR = re.compile(r"(?:stdout|stderr|tty):[0-9]{1,18}(?:,(?:stdout|stderr|tty):[0-9]{1,18})*")


@dataclass
class Output:
    """`cursor` is where to go on, `seen` the end of what was looked at: between them is the beginning of a character or
    sequence whose end has not come."""

    text: str
    cursor: str
    seen: str
    omitted: bool = False
    discarded: bool = False
    chars: int = 0

    @property
    def noted(self) -> str:
        """With what has to be said about it in front."""
        notes = [texts.DISCARDED] * self.discarded + [texts.OMITTED] * self.omitted
        return "\n".join([*notes, *([self.text] if self.text else [])])


@dataclass
class _Streams:
    """Texts in the order in which they came."""

    ends: dict[str, int]
    pieces: list[tuple[str, str]] = field(default_factory=list)
    texts: dict[str, AgentText] = field(default_factory=dict)

    def take(self, stream: str, offset: int, data: bytes) -> None:
        data = data[: max(0, self.ends.get(stream, 0) - offset)]
        if data:
            text = self.texts.setdefault(stream, AgentText(offset))
            self.pieces.append((stream, text.feed(data)))

    def flush(self) -> None:
        for stream, text in self.texts.items():
            self.pieces.append((stream, text.flush()))


async def ends_of(session: AsyncSession) -> tuple[dict[str, int], bool]:
    """How far its output goes, and whether that is all there will ever be. What survivors print is behind it."""
    if session.state not in FINAL_STATES:
        return dict(session.ends), False
    return dict(await recorded_ends(session) or session.ends), True


async def new_output(session: AsyncSession, since: str, cap: int, *, stored: bool = False) -> Output:
    """What came behind a cursor: of each stream at most `cap` characters, the newest. One that we stored ourselves is
    never refused: behind the end is the end."""
    ends, final = await ends_of(session)
    at = _stored(since, ends) if stored else _asked(since, ends)
    begin = {stream: max(at[stream], end - _LOOK_BYTES) for stream, end in ends.items()}
    discarded = any(at[stream] < session.dropped_before.get(stream, 0) for stream in ends)
    omitted = any(begin[stream] > max(at[stream], session.dropped_before.get(stream, 0)) for stream in ends)
    streams = await _read(session, begin, ends, final)
    kept = dict.fromkeys(ends, cap)
    shown: list[str] = []
    for stream, text in reversed(streams.pieces):
        omitted = omitted or len(text) > kept[stream]
        text = text[-kept[stream] :] if kept[stream] else ""
        kept[stream] -= len(text)
        shown.append(text)
    told = {stream: streams.texts[stream].ground if stream in streams.texts else end for stream, end in ends.items()}
    text = Style.harmless("".join(reversed(shown)))
    cursor = format_cursor(ends if final else told)
    return Output(
        text, cursor, format_cursor(ends), omitted=omitted and bool(text), discarded=discarded, chars=len(text)
    )


async def aggregated(session: AsyncSession, cap: int, notes: Kept) -> Output:
    """The end of all that a run printed; `chars` counts all that is retained."""
    output = await new_output(session, "0", cap)
    if output.omitted or len(output.text) > cap:
        return replace(output, text=output.text[-cap:], omitted=True, chars=await _counted(session, notes))
    return output


async def _counted(session: AsyncSession, notes: Kept) -> int:
    """Of a run that is over once for all: its whole log has to be read for it."""
    if session.state not in FINAL_STATES:
        return await total_chars(session)
    known, dropped = notes.get(session.id, _CHARS), dict(session.dropped_before)
    if known is None or known["dropped_before"] != dropped:
        known = {"dropped_before": dropped, "chars": await total_chars(session)}
        notes.put(session.id, _CHARS, known)
    chars: int = known["chars"]
    return chars


async def last_chars(session: AsyncSession, chars: int) -> tuple[str, bool]:
    """The end of its output, and whether there is more before."""
    ends, _ = await ends_of(session)
    begin = {stream: max(0, end - 4 * chars) for stream, end in ends.items()}
    streams = await _read(session, begin, ends, final=True)
    text = "".join(text for _, text in streams.pieces)
    return Style.harmless(text[-chars:]), len(text) > chars or any(begin.values())


async def total_chars(session: AsyncSession) -> int:
    """Of all that is retained."""
    ends, _ = await ends_of(session)
    streams = await _read(session, dict.fromkeys(ends, 0), ends, final=True)
    return sum(len(text) for _, text in streams.pieces)


async def all_lines(session: AsyncSession) -> tuple[list[str], int]:
    """Every retained line, and how many of them survivors printed after the end."""
    ends, final = await ends_of(session)
    streams = await _read(session, dict.fromkeys(ends, 0), ends, final=True)
    lines = _lines(streams)
    later = {stream: end for stream, end in session.ends.items() if end > ends.get(stream, 0)} if final else {}
    if not later:
        return lines, 0
    behind = await _read(session, {stream: ends.get(stream, 0) for stream in later}, later, final=True)
    after = _lines(behind)
    return [*lines, texts.AFTER_EXIT, *after], len(after)


async def _read(session: AsyncSession, begin: dict[str, int], ends: dict[str, int], final: bool) -> _Streams:
    streams = _Streams(ends)
    at = dict(begin)
    while any(at[stream] < end for stream, end in ends.items()):
        page = await session.read(since=format_cursor(at), limit=_PAGE_BYTES)
        for stream, offset, data in page.chunks:
            streams.take(stream, offset, data)
        after = _offsets(page.cursor, ends)
        if after == at:
            break
        at = after
    if final:
        streams.flush()
    return streams


def _lines(streams: _Streams) -> list[str]:
    lines = Style.harmless("".join(text for _, text in streams.pieces).replace("\r\n", "\n")).split("\n")
    return lines if lines[-1] else lines[:-1]


def _offsets(cursor: str, ends: dict[str, int]) -> dict[str, int]:
    """By stream; `0` is the beginning of all of them."""
    found = dict.fromkeys(ends, 0)
    for part in cursor.split(",") if cursor != "0" else ():
        stream, _, offset = part.partition(":")
        if stream in found:
            found[stream] = int(offset)
    return found


def _stored(cursor: str, ends: dict[str, int]) -> dict[str, int]:
    return {stream: min(offset, ends[stream]) for stream, offset in _offsets(cursor, ends).items()}


def _asked(cursor: str, ends: dict[str, int]) -> dict[str, int]:
    """The same for one that somebody wrote."""
    if cursor != "0" and not _CURSOR.fullmatch(cursor):
        raise BadCursor(cursor)
    found = _offsets(cursor, ends)
    for stream, offset in found.items():
        if offset > ends[stream]:
            raise OffsetAhead(stream, offset, ends[stream])
    return found
