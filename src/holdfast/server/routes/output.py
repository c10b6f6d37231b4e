"""What sessions print: pages, tails, bytes and screens; and waiting."""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse

from ...core import wire
from ...errors import BadArgument, HoldfastError, OffsetAhead, OutputDropped, TooLarge
from ...model import FINAL_STATES
from ...model.options import CHOICE, DURATION, NUMBER, SWITCH, TEXT
from ...sessions.log import parse_cursor
from ...sessions.observe import read_files
from ...sessions.screens import repainted
from ...sessions.segments import STREAMS
from ...sessions.wait import CONDITIONS, WAIT_OPTIONS
from .. import replies, responses
from ..endpoints import as_json, endpoint, record, takes
from ..responses import NoSuch, problem
from .sessions import woke_json

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from typing import Any

    from ...sessions.aio import AsyncSession
    from ...sessions.log import Page
    from ..app import Ask


_OFFSET_MAX = (1 << 53) - 1
# The lines before a cursor are one window of a reader: very long ones are cut.
_BEFORE_BYTES = 1 << 20


_STREAM = takes("stream", CHOICE, "One stream; the default is tty on a terminal, else stdout.", words=STREAMS)
_STREAM_OR_ALL = takes("stream", CHOICE, "One stream, or all in their order.", words=(*STREAMS, "all"))
_FORMAT = takes("format", CHOICE, "Clean text (default), or the bytes in base64 as `data`.", words=("text", "raw"))


@endpoint(
    *("GET", "/v1/sessions/{id}/output", "observe", "Output since a cursor, without consuming it"),
    query=(
        _STREAM_OR_ALL,
        takes("since", TEXT, "A cursor; the default is the beginning.", high=200),
        takes("limit", NUMBER, "Bytes of the answer (default 64 KiB).", low=1, high=1 << 20),
        _FORMAT,
        takes("wait", DURATION, "How long to wait for something new, at most 60 s."),
    ),
    example={"limit": 1000},
    gives=replies.OutputPage,
)
async def output(ask: Ask) -> dict[str, Any]:
    query, session = ask.query, ask.session
    wait = ask.check_wait("wait", query.get("wait", 0))
    stream = query.get("stream") or stream_of(session)
    chosen = None if stream == "all" else stream
    since, limit = query.get("since"), query.get("limit", 64 << 10)
    page = await session.read(since, stream=chosen, limit=limit)
    if wait and not page.chunks and session.state not in FINAL_STATES:
        await ask.serving(session.wait(output=True, since=page.cursor, stream=chosen, timeout=wait))
        page = await session.read(since, stream=chosen, limit=limit)
    await session.refresh()
    if page.more or session.state not in FINAL_STATES:
        page = page.whole()
    is_raw = query.get("format") == "raw"
    ended = {"signal_id": page.signal_id} if page.signal_id is not None else {}
    return {**_page(ask, page, stream, is_raw=is_raw), "more": page.more, **ended}


@endpoint(
    *("GET", "/v1/sessions/{id}/tail", "observe", "The last lines"),
    query=(
        takes("lines", NUMBER, "How many (default 100).", high=100_000),
        _STREAM_OR_ALL,
        takes(
            "before", TEXT, "A cursor: the last lines before it. Streams it does not name: as they were then.", high=200
        ),
        _FORMAT,
    ),
    example={"lines": 5},
    gives=replies.Page,
)
async def tail(ask: Ask) -> dict[str, Any]:
    session, query = ask.session, ask.query
    stream = query.get("stream") or stream_of(session)
    chosen, lines, before = None if stream == "all" else stream, query.get("lines", 100), query.get("before")
    if before is None:
        page = await session.last(lines, stream=chosen)
    else:
        log = ask.hf._core.log(session.id)
        page = await asyncio.to_thread(
            lambda: log.tail(lines, chosen, limit=_BEFORE_BYTES, until=log.moment(before, chosen))
        )
    await session.refresh()
    return _page(ask, page, stream, is_raw=query.get("format") == "raw")


def stream_of(session: AsyncSession) -> str:
    return "tty" if session.tty else "stdout"


def _page(ask: Ask, page: Page, stream: str, *, is_raw: bool) -> dict[str, Any]:
    session = ask.session
    ends = ask.hf._core.log(session.id).ends()
    exit = session.exit
    # Where each stream of the page begins.
    begins = parse_cursor(page.cursor, STREAMS)
    begins |= {each: offset for each, offset, _ in reversed(page.chunks)}
    found: dict[str, Any] = {
        "stream": stream,
        "from": begins if stream == "all" else begins.get(stream, 0),
        "cursor": page.cursor,
        "dropped_before": page.dropped_before if stream == "all" else page.dropped_before.get(stream, 0),
        "end": ends if stream == "all" else ends.get(stream, 0),
        "output_complete": exit is not None and exit.complete,
        "status": session.status,
        "gaps": [dict(zip(("stream", "from", "to", "reason"), gap, strict=True)) for gap in page.gaps],
    }
    if stream == "all":
        found["chunks"] = [
            {"stream": each, "offset": offset, "length": len(data)} for each, offset, data in page.chunks
        ]
    return {**found, "data": wire.as_text(page.data)} if is_raw else {**found, "text": page.text}


# Of pipes: what a preview or a tile has room for.
_LAST_LINES = 60

_RANGE = re.compile(r"bytes=(\d{1,16})?-(\d{1,16})?")
# What is read into memory for one range; a client asks for the rest.
_RANGE_BYTES = 4 << 20


@endpoint(
    *(
        "GET",
        "/v1/sessions/{id}/log/{stream}",
        "observe",
        "The bytes of a stream; Range counts from the first byte ever",
    ),
    media=("application/octet-stream",),
    also=(206, 304),
)
async def log(ask: Ask) -> Response:
    session, stream = ask.session, ask.part("stream")
    if stream not in STREAMS:
        raise NoSuch("stream", stream, f"it is one of {', '.join(STREAMS)}")
    log = ask.hf._core.log(session.id)
    end, begin = log.ends().get(stream, 0), log.dropped_before().get(stream, 0)
    headers = {
        "Accept-Ranges": "bytes",
        "Content-Disposition": f'attachment; filename="{session.id}.{stream}"',
        "Holdfast-Offset": str(begin),
    }
    if session.exit is not None and session.exit.complete:
        headers["ETag"] = f'"{session.id}-{stream}-{begin}-{end}"'
        if _is_known(ask, headers):
            return Response(status_code=304, headers=headers)
    wanted = ask.request.headers.get("range")
    found = None if wanted is None else _RANGE.fullmatch(wanted.replace(" ", ""))
    if found is None or found[0] == "bytes=-":
        headers["Content-Type"] = ask.row.media[0]
        return StreamingResponse(blocks(log.raw(stream, begin, end)), headers=headers)
    first = int(found[1]) if found[1] else max(begin, end - int(found[2]))
    last = min(end, int(found[2]) + 1 if found[1] and found[2] else end)
    if first >= end or last <= first:
        raise OffsetAhead(stream, first, end)
    if first < begin:
        raise OutputDropped(stream, begin)

    def read() -> tuple[int, bytes]:
        with log.snapshot() as snapshot:
            return snapshot.piece(stream, first, last, _RANGE_BYTES)

    at, data = await asyncio.to_thread(read)
    if at != first:
        raise OutputDropped(stream, at)
    headers |= {"Content-Range": f"bytes {first}-{first + len(data) - 1}/{end}", "Holdfast-Offset": str(first)}
    return Response(data, 206, headers, ask.row.media[0])


def _is_known(ask: Ask, headers: dict[str, str]) -> bool:
    """Whether the client has this already. A proxy may have marked the tag as weak."""
    known = ask.request.headers.get("if-none-match", "")
    return known == "*" or headers["ETag"] in re.findall('"[^"]*"', known)


async def blocks(blocks: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (block := await asyncio.to_thread(next, blocks, None)) is not None:
        yield block


@endpoint(
    *("GET", "/v1/sessions/{id}/wait", "observe", "Wait until one of the conditions holds; `reason` says which"),
    query=(
        takes("until", TEXT, f"The conditions, with commas: {', '.join(CONDITIONS)}. Default: exit."),
        # A condition that takes a value is a parameter of its own, and need not be in `until`.
        *(row for row in WAIT_OPTIONS.values() if row.takes != SWITCH and row.name != "timeout"),
        takes("timeout", DURATION, "At most 60 s (default 30)."),
    ),
    example={"until": "exit", "timeout": 1},
    gives=replies.Waited,
)
async def wait(ask: Ask) -> dict[str, Any]:
    query = dict(ask.query)
    timeout = ask.check_wait("timeout", query.pop("timeout", 30))
    for name in filter(None, query.pop("until", "").split(",")):
        if name not in CONDITIONS:
            raise BadArgument("until", f"{name[:40]!a} is not one of {', '.join(CONDITIONS)}")
        # Conditions without a value are named only in `until`; the others also have a parameter.
        if CONDITIONS[name].takes == SWITCH:
            query[name] = True
        elif name not in query:
            raise BadArgument(name, "is missing", f"give {name}= too")
    woke = await ask.serving(ask.session.wait(**query, timeout=timeout))
    return {**woke_json(woke), "status": ask.session.status, "session": record(ask.session)}


_SCREEN_HELP = "text (default), json, ansi, svg, or restore: the bytes that put a terminal of that size into its state."


@endpoint(
    *("GET", "/v1/sessions/{id}/screen", "observe", "The screen of its terminal, now or at an offset"),
    query=(
        takes("format", CHOICE, _SCREEN_HELP, words=("text", "json", "ansi", "svg", "restore")),
        takes("at", NUMBER, "An offset of its output; the default is now.", high=_OFFSET_MAX),
        takes("history", NUMBER, "Rows that have scrolled off the top.", high=10_000),
    ),
    gives=replies.Screen,
    media=("text/plain", "image/svg+xml", "application/octet-stream"),
    also=(304,),
)
async def screen(ask: Ask) -> Response:
    form = ask.query.get("format", "text")
    if form == "restore":
        files = read_files(ask.hf.home, ask.session.id)
        offset, (rows, cols), data = await asyncio.to_thread(
            lambda: repainted(ask.hf._core, files, at=ask.query.get("at"))
        )
        headers = {"Holdfast-Offset": str(offset), "Holdfast-Size": f"{cols}x{rows}"}
        return Response(data, 200, headers, "application/octet-stream")
    shown = await ask.session.screen(at=ask.query.get("at"), history=ask.query.get("history", 0))
    headers = {
        "ETag": f'"{shown.offset}"',
        "Holdfast-Offset": str(shown.offset),
        "Holdfast-Size": "{1}x{0}".format(*shown.size),
        "Holdfast-Cursor": f"{shown.cursor.row},{shown.cursor.col}",
    }
    # A resize changes the screen and prints nothing.
    resized = any(offset >= shown.offset for offset, *_ in ask.hf._core.log(ask.session.id).resizes())
    if _is_known(ask, headers) and not resized:
        return Response(status_code=304, headers=headers)
    if form == "json":
        return as_json(shown.to_json(), headers=headers)
    text = {"text": lambda: shown.text, "ansi": shown.to_ansi, "svg": shown.to_svg}[form]()
    media = "image/svg+xml" if form == "svg" else "text/plain"
    return Response(text.encode("utf-8", "replace"), 200, headers, media)


@endpoint(
    *("GET", "/v1/screens", "observe", "The screens of several terminals, or the last lines of pipes, as text"),
    query=(takes("ids", TEXT, "At most 32 ids, with commas."),),
    gives=replies.Screens,
    also=(304,),
)
async def screens(ask: Ask) -> Response:
    ids = list(filter(None, ask.query.get("ids", "").split(",")))
    if len(ids) > responses.SCREENS:
        raise TooLarge("the number of screens", responses.SCREENS, "ask for fewer at once", unit="sessions")
    items = []
    for id in ids:
        try:
            found = ask.app.find(ask.hf, ask.caller, id)
            items.append({"id": found.id, **(await _screen_text(found))})
        except HoldfastError as error:
            items.append({"id": id, "problem": problem(error)})
    shown = json.dumps([(each["id"], each.get("offset"), each.get("size")) for each in items])
    headers = {"ETag": f'"{hashlib.sha256(shown.encode()).hexdigest()[:32]}"'}
    if _is_known(ask, headers):
        return Response(status_code=304, headers=headers)
    return as_json({"items": items}, headers=headers)


async def _screen_text(session: AsyncSession) -> dict[str, Any]:
    if session.tty:
        shown = await session.screen()
        return {"offset": shown.offset, "size": list(shown.size), "text": shown.text}
    page = await session.last(_LAST_LINES)
    return {"offset": page.cursor, "size": None, "text": page.text}
