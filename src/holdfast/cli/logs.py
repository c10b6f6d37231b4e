"""What a session printed: all that is kept, both streams in the order in which it came, as clean text.

Reading consumes nothing. Colours and other control sequences are left out unless --raw asks for the bytes as they are.
With --json: {id, status, text, cursor, dropped_before, gaps}; with --raw as well, `chunks` of base64 in the place of
`text`; with -f, one such object a line.
"""

from __future__ import annotations

from .door import here
from .output import is_terminal, note, say_json, write
from .parsing import Parser, add_json, add_session, add_streams, count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator
    from typing import Any

    from ..host.api import Session
    from ..host.log import Log, Page
    from ..host.terminal_log import Reading
    from ..host.text import Cleaner

USAGE = "ID [-f] [-n N | --since CURSOR] [--stdout | --stderr] [--raw] [--json]"
EXAMPLES = """
hold logs web
hold logs -f -n 20 web
hold logs web --json | jq -r .cursor      then: hold logs web --since stdout:88412,stderr:0
hold logs last --raw --stdout > output.bin
"""


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the command has ended")
    part = parser.add_mutually_exclusive_group()
    part.add_argument("-n", "--lines", type=count("-n"), metavar="N", help="only the last N lines")
    part.add_argument("--since", metavar="CURSOR", help="only what came behind this cursor; 0 is the beginning")
    add_streams(parser)
    parser.add_argument("--raw", action="store_true", help="the bytes as they were printed")
    add_json(parser, "text and cursor")


def main(args: Namespace) -> int:
    from ..host.log import Log

    with here() as hf:
        session = hf.get(args.session)
        log = Log(hf.home.session(session.id))
        if args.json:
            _say_json(session, log, args)
            return 0
        show = _Raw() if args.raw else _Clean(log, follow=args.follow, live=args.follow and is_terminal(1))
        for page in _pages(session, log, args):
            for stream, start, stop, reason in page.gaps:
                note(f"{stop - start} bytes of {stream} from {start} on are not there: {reason}")
            show.page(page)
        show.end()
    return 0


def _pages(session: Session, log: Log, args: Namespace) -> Iterator[Page]:
    cursor = args.since
    if args.lines is not None:
        page = log.tail(args.lines, stream=args.stream)
        yield page
        cursor = page.cursor
    elif not args.follow:
        while True:
            page = session.read(cursor, stream=args.stream)
            yield page
            cursor = page.cursor
            if not page.more:
                return
    if args.follow:
        yield from session.follow(cursor, stream=args.stream)


def _say_json(session: Session, log: Log, args: Namespace) -> None:
    if args.follow:
        for page in _pages(session, log, args):
            say_json(_record(session, log, [page], args.raw), lines=True)
    else:
        say_json(_record(session, log, list(_pages(session, log, args)), args.raw))


def _record(session: Session, log: Log, pages: list[Page], raw: bool) -> dict[str, Any]:
    record: dict[str, Any] = {
        "id": session.id,
        "status": session.status,
        "cursor": pages[-1].cursor,
        "dropped_before": pages[-1].dropped_before,
        "gaps": [
            {"stream": stream, "from": start, "to": stop, "reason": reason}
            for page in pages
            for stream, start, stop, reason in page.gaps
        ],
    }
    if raw:
        import base64

        record["chunks"] = [
            {"stream": stream, "offset": offset, "data": base64.b64encode(data).decode("ascii")}
            for page in pages
            for stream, offset, data in page.chunks
        ]
    elif len(pages) == 1:
        record["text"] = pages[0].text
    else:
        clean = Cleaners(log)
        text = [clean.feed(*chunk) for page in pages for chunk in page.chunks]
        record["text"] = "".join([*text, clean.rest()])
    return record


class _Raw:
    def page(self, page: Page) -> None:
        for _, _, data in page.chunks:
            write(1, data)

    def end(self) -> None:
        pass


class Cleaners:
    """Finished lines in the order in which they were finished: streams never mix within a line. Who follows a terminal
    is shown its lines as they come; what is rewritten after that is shown once more."""

    def __init__(self, log: Log, *, follow: bool = False) -> None:
        self._log = log
        self._follow = follow
        self._by_stream: dict[str, Cleaner] = {}
        self._terminal: Reading | None = None

    def feed(self, stream: str, offset: int, data: bytes) -> str:
        if stream == "tty":
            return self._feed_terminal(offset, data)
        if stream not in self._by_stream:
            from ..host.text import Cleaner

            self._by_stream[stream] = Cleaner()
        return self._by_stream[stream].feed(data)

    def _feed_terminal(self, offset: int, data: bytes) -> str:
        if self._terminal is None:
            from ..host.terminal_log import Reading

            with self._log.look() as look:
                self._terminal = Reading(look, offset, live=self._follow)
        text = "".join([text for _, text in self._terminal.feed(offset, data)])
        return text + self._terminal.settled() if self._follow else text

    def unfinished(self, stream: str) -> str:
        if self._terminal is not None:
            return self._terminal.unfinished()
        return self._by_stream[stream].peek()

    def rest(self) -> str:
        rest = [cleaner.flush() for cleaner in self._by_stream.values()]
        if self._terminal is not None:
            rest.append("".join([text for _, text in self._terminal.finish()]))
        return "\n".join(filter(None, rest))


class _Clean:
    """Clean text as it comes. In a terminal that is followed, a line shows up before it is finished."""

    def __init__(self, log: Log, *, follow: bool, live: bool) -> None:
        from .tables import columns

        self._clean = Cleaners(log, follow=follow)
        self._room = (columns() or 80) - 1 if live else 0
        self._showing = False

    def page(self, page: Page) -> None:
        if page.told:
            self._put(page.text)
            return
        for stream, offset, data in page.chunks:
            text = self._clean.feed(stream, offset, data)
            if text:
                self._put(text)
        if self._room and page.chunks:
            begun = self._clean.unfinished(page.chunks[-1][0])[: self._room]
            self._put(begun)
            self._showing = bool(begun)

    def end(self) -> None:
        rest = self._clean.rest()
        self._put(rest + "\n" if rest and self._room else rest)

    def _put(self, text: str) -> None:
        if self._showing:
            # What was shown of the line is written again, whole.
            write(1, b"\r\x1b[K")
            self._showing = False
        write(1, text.encode("utf-8", "replace"))
