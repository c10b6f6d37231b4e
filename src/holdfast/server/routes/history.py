"""The past of a session: searching its log, when it printed what, recordings, and its inputs."""

from __future__ import annotations

import asyncio
import os
import re
from bisect import bisect_right
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse

from ...core import jsontext, records
from ...core.clock import epoch, rfc3339, wall_ns
from ...errors import BadArgument
from ...model import LIVE_STATES
from ...model.options import CHOICE, NUMBER, SWITCH, TEXT
from ...runner.log import DATA, RESIZE
from ...sessions.observe import read_files
from ...sessions.recording import Recording
from ...sessions.segments import STREAMS
from ...signals.lines import Signal
from .. import replies
from ..endpoints import endpoint, takes
from .output import blocks, stream_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ...sessions.log import Log
    from ..app import Ask

    # Monotonic and wall time in ns, stream, kind, offset, length.
    Record = tuple[int, int, str, int, int, int]


_OFFSET_MAX = (1 << 53) - 1
_LINE_BYTES = 64 << 10
_MARKS = 32


@endpoint(
    *("GET", "/v1/sessions/{id}/search", "observe", "Lines that match, newest first; 2 s for a page"),
    query=(
        takes("re", TEXT, "A regular expression (RE2)."),
        takes("text", TEXT, "Text to find as it is."),
        takes("stream", CHOICE, "One stream; the default is tty on a terminal, else stdout.", words=STREAMS),
        takes("direction", CHOICE, "Which hits come first.", words=("newest", "oldest")),
        takes("before", NUMBER, "Only hits before this offset.", high=_OFFSET_MAX),
        takes("after", NUMBER, "Only hits after this offset.", high=_OFFSET_MAX),
        takes("limit", NUMBER, "Hits of a page (default 100).", low=1, high=1000),
        takes("context", NUMBER, "Lines before and after a hit (default 2).", high=50),
        takes("ignore_case", SWITCH, "Whether upper and lower case are the same."),
    ),
    example={"text": "hello"},
    gives=replies.Hits,
)
async def search(ask: Ask) -> dict[str, Any]:
    query = ask.query
    if ("re" in query) == ("text" in query):
        raise BadArgument("re", "exactly one of re and text is needed", "give one of the two")
    stream = query.get("stream") or stream_of(ask.session)
    newest = query.get("direction", "newest") == "newest"
    log = ask.hf._core.log(ask.session.id)
    request = {
        "directory": log.directory,
        "pattern": query["re"] if "re" in query else re.escape(query["text"]),
        "stream": stream,
        "context": query.get("context", 2),
        "newest": newest,
        "ignore_case": bool(query.get("ignore_case")),
        "before": query.get("before"),
        "after": query.get("after"),
    }
    hits, is_complete, at = await ask.app.searches.search(request, query.get("limit", 100))
    begin, end = log.dropped_before().get(stream, 0), log.ends().get(stream, 0)
    numbers = await asyncio.to_thread(ask.app.searches.lines, log, stream, sorted(hit["offset"] for hit in hits))
    for hit in hits:
        hit["line"] = numbers[hit["offset"]]
    low, high = max(begin, query.get("after", 0)), min(end, query.get("before", end))
    # Nothing was searched: the next page begins where this one did.
    at = query.get("before" if newest else "after") if at is None else at
    scanned = high - low if is_complete else 0 if at is None else high - at if newest else at - low
    return {"hits": hits, "next": None if is_complete else at, "scanned": max(0, scanned), "complete": is_complete}


@endpoint(
    *("GET", "/v1/sessions/{id}/frames", "observe", "When output came, and sizes of the terminal"),
    query=(
        takes("from", NUMBER, "Only records at this offset or after it.", high=_OFFSET_MAX),
        takes("stream", CHOICE, "Only this stream.", words=STREAMS),
        takes("limit", NUMBER, "Records of a page (default 1000).", low=1, high=10_000),
        takes("buckets", NUMBER, "Instead of records, this many slices of the whole time.", low=1, high=400),
    ),
    example={"buckets": 10},
    gives=replies.Frames,
)
async def frames(ask: Ask) -> dict[str, Any]:
    wanted, stream = ask.query.get("from", 0), ask.query.get("stream")
    log = ask.hf._core.log(ask.session.id)

    def read() -> list[Record]:
        with log.snapshot() as snapshot:
            found = snapshot.whole_frames().records()
            rows = [row for row in found if row[3] in (DATA, RESIZE) and stream in (None, row[2])]
        # The length of a resize is its size.
        return [row for row in rows if row[4] + (row[5] if row[3] == DATA else 0) >= wanted]

    if "buckets" in ask.query:
        signals, count = await ask.session.told(), ask.query["buckets"]
        return {"items": await asyncio.to_thread(lambda: _slices(ask, read(), log, signals, count))}
    rows = await asyncio.to_thread(read)
    limit = ask.query.get("limit", 1000)
    items = [_frame(*row) for row in rows[:limit]]
    return {"items": items, "next": rows[limit][4] if len(rows) > limit else None}


def _frame(_mono: int, wall: int, stream: str, kind: int, offset: int, length: int) -> dict[str, Any]:
    facts = {"at": rfc3339(wall), "stream": stream, "offset": offset}
    if kind == RESIZE:
        return {**facts, "kind": "resize", "rows": length >> 16, "cols": length & 0xFFFF}
    return {**facts, "kind": "data", "length": length}


def _slices(ask: Ask, rows: list[Record], log: Log, signals: list[Any], count: int) -> list[dict[str, Any]]:
    """Bytes, first and last offset and marks for each slice of time from the first record to the last, or to now."""
    if not rows:
        return []
    begin = rows[0][1]
    end = max(row[1] for row in rows)
    if ask.session.state in LIVE_STATES:
        end = max(end, wall_ns())
    width = max(1, -(-(end - begin + 1) // count))
    slices: list[dict[str, Any]] = [
        {"from": rfc3339(begin + at * width), "bytes": 0, "first": None, "last": None, "marks": []}
        for at in range(count)
    ]

    def of(wall_ns: int) -> dict[str, Any]:
        return slices[min(count - 1, max(0, (wall_ns - begin) // width))]

    def mark(wall_ns: int | None, kind: str, stream: str | None, offset: int | None, **facts: Any) -> None:
        if wall_ns is None:
            return
        stream = stream or last_stream
        # A hit is placed where its byte came: its record may be written later.
        starts, walls = came.get(stream, ([], []))
        if offset is not None and starts and offset < ends.get(stream, 0):
            wall_ns = min(wall_ns, walls[max(0, bisect_right(starts, offset) - 1)])
        if len(of(wall_ns)["marks"]) < _MARKS:
            placed = {"kind": kind, "at": rfc3339(wall_ns), "stream": stream, "offset": offset}
            of(wall_ns)["marks"].append({**placed, **facts})

    came: dict[str, tuple[list[int], list[int]]] = {}
    for _, wall, stream, kind, offset, _ in rows:
        if kind == DATA:
            starts, walls = came.setdefault(stream, ([], []))
            starts.append(offset)
            walls.append(wall)
    last_stream = next((row[2] for row in reversed(rows) if row[3] == DATA), rows[0][2])
    kept, ends = log.dropped_before(), log.ends()
    reached: dict[str, int] = {}
    for _, wall, stream, kind, offset, length in rows:
        if kind == RESIZE:
            mark(wall, "resize", stream, offset, rows=length >> 16, cols=length & 0xFFFF)
            continue
        slice = of(wall)
        slice["bytes"] += length
        slice["first"] = {stream: offset, **(slice["first"] or {})}
        slice["last"] = {**(slice["last"] or {}), stream: offset + length}
        before, first_kept = reached.get(stream, offset), kept.get(stream, 0)
        # What the disk refused has no frame.
        if offset > before >= first_kept:
            mark(wall, "gap", stream, before, bytes=offset - before, reason="disk")
        if 0 < first_kept < offset + length and before <= first_kept:
            mark(wall, "gap", stream, first_kept, bytes=first_kept, reason="dropped")
            kept[stream] = 0
        reached[stream] = offset + length
    for signal in signals:
        if isinstance(signal, Signal) and signal.fields.get("phase") not in ("started", "ended"):
            fields = signal.fields
            at = fields.get("offset", fields.get("from"))
            mark(_ns(signal.at), "signal", fields.get("stream"), at, id=signal.id, variant=signal.variant)
    for entry in _inputs(ask):
        mark(_ns(entry.get("at")), "input", None, entry.get("offset"), by=entry.get("by"))
    if ask.session.ended_at is not None:
        mark(_ns(ask.session.ended_at), "end", None, ends.get(last_stream, 0))
    return slices


def _ns(at: object) -> int | None:
    """The end of the recorded millisecond: the event came before it."""
    seconds = epoch(at)
    return None if seconds is None else round(seconds * 1e3) * 1_000_000 + 999_999


@endpoint(
    *("GET", "/v1/sessions/{id}/export", "observe", "A recording of its terminal"),
    query=(takes("format", CHOICE, "asciicast3 (default) or text.", words=("asciicast3", "text")),),
    media=("application/octet-stream",),
)
async def export(ask: Ask) -> Response:
    form = ask.query.get("format", "asciicast3")
    files = read_files(ask.hf.home, ask.session.id)
    recording = await asyncio.to_thread(Recording, files)
    name = f"{ask.session.id}.{'cast' if form == 'asciicast3' else 'txt'}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Content-Type": ask.row.media[0]}
    return StreamingResponse(blocks(recording.write(form)), headers=headers)


@endpoint(
    *("GET", "/v1/sessions/{id}/inputs", "observe", "The author, time and size of each input"),
    query=(takes("limit", NUMBER, "The newest ones (default 200).", low=1, high=10_000),),
    example={"limit": 10},
    gives=replies.Inputs,
)
async def inputs(ask: Ask) -> dict[str, Any]:
    return {"items": list(_inputs(ask))[-ask.query.get("limit", 200) :]}


def _inputs(ask: Ask) -> Iterator[dict[str, Any]]:
    """What the runner recorded about each write: never the text."""
    directory = ask.hf.home.session(ask.session.id)
    for name in ("inputs.1.jsonl", "inputs.jsonl"):
        try:
            for line in records.lines(os.path.join(directory, name), _LINE_BYTES):
                entry = jsontext.read(line)
                if isinstance(entry, dict):
                    yield entry
        except (OSError, ValueError):
            continue
