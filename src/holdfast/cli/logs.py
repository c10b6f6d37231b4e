"""`hold logs`, `search` and `wait`: output, now or when it comes."""

from __future__ import annotations

from .host import near_label, open_home, services_here
from .output import DIM, RED, is_terminal, note, outcome, printable, say, say_json, style, width, write
from .parsing import (
    REFERENCE_HELP,
    Namespace,
    Parser,
    add_json,
    add_sessions,
    add_streams,
    count,
    no_session,
    pair,
    usage,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from ..model import Exit, Woke
    from ..sessions.api import Holdfast, Session
    from ..sessions.log import Log, Page
    from ..sessions.search import Hit
    from .output import Style


LOGS_HELP = """\
Print the output of a session that is kept: both streams in their order, as clean text.

With several sessions, or --label, each line begins with the name of its session, and lines are sorted by time. Without
an ID, it prints those of all services of the project here. --since and --until take a time such as 5m (ago) or
2026-08-01T09:14:07Z.

Reading changes nothing. Colours and other control sequences are removed, except with --raw. With --json, prints {id,
status, text, cursor, dropped_before, gaps}; with --raw too, `chunks` of base64 instead of `text`; with -f, one such
object a line.
"""

LOGS_USAGE = "[ID...] [-f] [-n N | --since CURSOR|T] [--until T] [--timestamps] [--stdout | --stderr] [--raw] [--json]"
LOGS_EXAMPLES = """
hold logs web
hold logs -f -n 20 web
hold logs -f web worker --since 5m --timestamps
tail -f $(hold logs web --path)
hold logs web --json | jq -r .cursor      then: hold logs web --since stdout:88412,stderr:0
hold logs last --raw --stdout > output.bin
"""


def logs_arrange(parser: Parser) -> None:
    add_sessions(parser, "*")
    parser.add_argument(
        "--label", action="append", type=pair("--label"), metavar="K=V", help="every running session with this label"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="follow new output until the command ends")
    part = parser.add_group(exclusive=True)
    part.add_argument("-n", "--lines", type=count("-n"), metavar="N", help="only the last N lines")
    part.add_argument("--since", metavar="CURSOR|T", help="only output after this cursor or time; 0 is the beginning")
    parser.add_argument("--until", metavar="T", help="only output until this time")
    parser.add_argument("--timestamps", action="store_true", help="show when each line was printed")
    parser.add_argument("--path", action="store_true", help="print the names of the log files instead")
    add_streams(parser)
    parser.add_argument("--raw", action="store_true", help="the bytes, unchanged")
    add_json(parser, "text and cursor")


def logs_main(args: Namespace) -> int:
    from ..sessions.lines import moment, since_moment
    from ..sessions.log import Log

    with open_home() as hf:
        labelled = hf.sessions(labels=dict(args.label)) if args.label else []
        refs = [*args.sessions, *(each.id for each in labelled)]
        if args.label and not refs:
            error = usage(f"no running session has this label{near_label(hf, args.label)}", "hold logs")
            labels = " ".join(f"--label {printable(key)}={printable(value)}" for key, value in args.label)
            error.fix = f"`hold ls -a {labels}` lists those that have ended; give their ids"
            raise error
        if not refs:
            refs = [each.id for each in services_here(hf)]
        if not refs:
            raise no_session("no session given", "hold logs")
        sessions = list({session.id: session for session in map(hf.get, refs)}.values())
        if args.path:
            for each in sessions:
                for name in Log(hf.home.session(each.id)).files(args.stream):
                    say(name)
            return 0
        since, until = moment(args.since), moment(args.until, "--until")
        if len(sessions) > 1 or args.timestamps or until is not None:
            if args.json or args.raw:
                raise usage("--json and --raw take one session, without --timestamps and --until", "hold logs")
            if since is None and args.since not in (None, "0"):
                raise usage("a cursor is for one session; give --since a time, such as 5m", "hold logs")
            names = {each.id: each.name or each.id for each in sessions}
            room = max(map(width, map(printable, names.values()))) if len(names) > 1 else 0
            which = {"since": since, "until": until, "last": args.lines, "stream": args.stream}
            print_lines(hf, names.items(), room=room, timestamps=args.timestamps, follow=args.follow, **which)
            return 0
        session = sessions[0]
        log = Log(hf.home.session(session.id))
        if since is not None:
            args.since = since_moment(log, since)
        if args.json:
            _say_json(session, log, args)
            return 0
        show = _Raw() if args.raw else _Clean(log, follow=args.follow, live=args.follow and is_terminal(1))
        for page in _pages(session, log, args):
            for stream, start, stop, reason in page.gaps:
                note(f"{stop - start} bytes of {stream} from byte {start} are missing: {reason}")
            show.page(page)
        show.end()
    return 0


_PREFIX_COLOURS = ("36", "33", "32", "35", "34", "31")


def print_lines(
    hf: Holdfast,
    sessions: Iterable[tuple[str, str]],
    *,
    room: int,
    timestamps: bool = False,
    ended: Callable[[str, str], None] = lambda _id, _name: None,
    **which: Any,
) -> None:
    """Lines of sessions, each behind the name given here with its id, in `room` columns (0: none), sorted by time; with
    `follow`, each batch of lines that has arrived. `ended` is called with each whose lines are over."""
    from collections.abc import Sized
    from time import localtime, strftime

    from ..sessions.lines import read_lines

    painted = style(hf.config)
    names: dict[str, str] = {}
    prefixes: dict[str, str] = {}

    def ids() -> Iterator[str]:
        for id, name in sessions:
            shown, colour = printable(name), _PREFIX_COLOURS[len(names) % len(_PREFIX_COLOURS)]
            names[id] = name
            prefixes[id] = painted.paint(shown + " " * (room - width(shown)) + " | ", colour) if room else ""
            yield id

    # All that are known at the beginning wait for each other.
    known = list(ids()) if isinstance(sessions, Sized) else ids()
    for lines in read_lines(hf, known, ended=lambda over: ended(over, names[over]), **which):
        text = []
        for at, id, line in lines:
            seconds = at / 1e9
            stamp = strftime("%Y-%m-%dT%H:%M:%S", localtime(seconds)) + f".{at // 1_000_000 % 1000:03d}"
            stamp = f"{stamp}{strftime('%z', localtime(seconds))} " if timestamps else ""
            text.append(f"{prefixes[id]}{stamp}{line}\n")
        write(1, "".join(text).encode("utf-8", "replace"))


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
        from ..sessions.lines import Cleaners

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


class _Clean:
    """Clean text as it comes; with `live`, a line is shown before it is finished."""

    def __init__(self, log: Log, *, follow: bool, live: bool) -> None:
        from ..sessions.lines import Cleaners
        from .output import columns

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
            # Replace the unfinished line.
            write(1, b"\r\x1b[K")
            self._showing = False
        write(1, text.encode("utf-8", "replace"))


SEARCH_HELP = """\
Find lines in the output of sessions, as clean text. Patterns are RE2. Exits with 1 if nothing matches.

The last word is the pattern. As with grep, it can also come first, if that word names no session and the last one
does; with -e every word is a session. The lines of several sessions begin with the name of their session.
"""

SEARCH_USAGE = "ID... PATTERN [-e PATTERN] [-C N] [-i] [-n N] [--newest] [--stdout | --stderr] [--json]"
SEARCH_EXAMPLES = """
hold search web 'ERROR|WARN' -C 2
hold search -e timeout web worker db
hold search last -i timeout --newest -n 5
hold search web 'listening on (.*)' --json | jq -r '.[0].text'
"""

NO_MATCH = 1


def search_arrange(parser: Parser) -> None:
    words = "sessions (" + REFERENCE_HELP + "), then a regular expression"
    parser.add_argument("sessions", nargs="*", metavar="ID... PATTERN", help=words)
    parser.add_argument("-e", "--regexp", dest="pattern", metavar="PATTERN", help="a regular expression")
    parser.add_argument("-C", "--context", type=count("-C"), default=0, metavar="N", help="lines around each match")
    parser.add_argument("-i", "--ignore-case", action="store_true", help="ignore case")
    parser.add_argument("-n", "--limit", type=count("-n", 1), metavar="N", help="at most N matches of each session")
    parser.add_argument("--newest", action="store_true", help="search backwards from the end")
    add_streams(parser)
    add_json(parser, "the matches: session, stream, offset, line, text, spans, before, after")


def search_main(args: Namespace) -> int:
    with open_home() as hf:
        pattern, refs = args.pattern, args.sessions
        if pattern is None:
            pattern, refs = _pattern_of(hf, refs)
        elif not refs:
            raise no_session("the following arguments are required: ID", "hold search")
        sessions = list({session.id: session for session in map(hf.get, refs)}.values())
        found = False
        records: list[dict[str, Any]] = []
        for session in sessions:
            hits = session.search(
                pattern,
                context=args.context,
                stream=args.stream,
                newest=args.newest,
                limit=args.limit,
                ignore_case=args.ignore_case,
            )
            if args.json:
                records += [_hit_record(session.id, hit) for hit in hits]
            else:
                name = printable(session.name or session.id) if len(sessions) > 1 else ""
                if found and hits and args.context:
                    say("--")
                _show(hits, style(hf.config), name, context=args.context, newest=args.newest)
            found = found or bool(hits)
        if args.json:
            say_json(records)
    return 0 if found else NO_MATCH


def _pattern_of(hf: Holdfast, words: list[str]) -> tuple[str, list[str]]:
    """The pattern and the sessions of words without -e. The last word is the pattern, or the first if that is none of
    our sessions and the last is one."""
    if len(words) < 2:
        missing = "PATTERN" if words else "ID, PATTERN"
        raise usage(f"the following arguments are required: {missing}", "hold search")
    *first, last = words
    if not _is_session(hf, first[0]):
        return (words[0], words[1:]) if _is_session(hf, last) else (last, first)
    if len(words) > 2 and _is_session(hf, last):
        error = usage(f"{first[0]!a} and {last!a} are both sessions: which word is the pattern?", "hold search")
        error.fix = "give it with -e, such as `hold search -e PATTERN ID...`"
        raise error
    return last, first


def _is_session(hf: Holdfast, word: str) -> bool:
    from ..errors import AmbiguousId, NotFound

    try:
        hf.get(word)
    except NotFound:
        return False
    except AmbiguousId:
        pass
    return True


def _hit_record(session: str, hit: Hit) -> dict[str, Any]:
    return {
        "session": session,
        "stream": hit.stream,
        "offset": hit.offset,
        "line": hit.line,
        "text": hit.text,
        "spans": hit.spans,
        "before": hit.before,
        "after": hit.after,
    }


def _show(hits: list[Hit], style: Style, name: str, *, context: int, newest: bool) -> None:
    """Like grep: `number:line`, context as `number-line`, both behind the name of several; `--` between groups; no line
    twice."""
    near, match = (f"{name}-", f"{name}:") if name else ("", "")
    shown: tuple[str, int] | None = None
    for n, hit in enumerate(hits):
        line = hit.line or 0
        following = hits[n + 1] if n + 1 < len(hits) and not newest else None
        first = line - len(hit.before)
        if shown is not None and shown[0] == hit.stream and first <= shown[1] + 1 and not newest:
            skip = shown[1] + 1 - first
        else:
            skip = 0
            if shown is not None and context:
                say(style.paint("--", DIM))
        for at, text in list(enumerate(hit.before, first))[skip:]:
            say(style.paint(f"{near}{at}-", DIM) + text)
        say(style.paint(f"{match}{line}:", DIM) + _marked(hit, style))
        last = line
        for at, text in enumerate(hit.after, line + 1):
            if following is not None and following.stream == hit.stream and at >= (following.line or 0):
                break
            say(style.paint(f"{near}{at}-", DIM) + text)
            last = at
        shown = (hit.stream, last)


def _marked(hit: Hit, style: Style) -> str:
    parts, at = [], 0
    for low, high in hit.spans:
        parts.append(hit.text[at:low])
        parts.append(style.paint(hit.text[low:high], RED, "1"))
        at = high
    return "".join([*parts, hit.text[at:]])


WAIT_HELP = """\
Wait until one of the conditions holds, and print which one. Without a condition, wait until the command has ended.
Without --since, --match also finds a line that was printed earlier. With several sessions, wait for every one of them;
with --any, only for the first.

Without a condition, exit with the code of the command (128+n for signal n). With a condition, exit with 0 when it
holds; with --exit when the command has ended, whatever its code. If the command ends before another condition holds,
exit with its code, or with 1 if that is 0. Exit with 124 on timeout, 5 if the runner is gone. With several sessions,
exit with the first of their codes that is not 0, in the order of the command line.
"""

WAIT_USAGE = "ID... [--any] [CONDITION...] [--timeout T] [--since CURSOR] [--propagate] [--json]"
WAIT_EXAMPLES = """
hold wait web --match 'Local:.*http' --timeout 30s
hold wait lint test build && echo all passed
hold wait web --port 3000 && curl localhost:3000
"""


def wait_arrange(parser: Parser) -> None:
    from ..sessions.wait import WAIT_OPTIONS
    from .options import flag_of

    add_sessions(parser)
    parser.add_argument("--any", action="store_true", help="wait only for the first of several sessions")
    parser.add_group().add_arguments(flag_of(option) for option in WAIT_OPTIONS.values() if option.flag)
    parser.add_argument("--propagate", action="store_true", help="with --exit: exit with the code of the command")
    add_json(parser, "reason, cursor, match and session (of several an array)")


def wait_main(args: Namespace) -> int:
    from ..sessions.wait import CONDITIONS, WAIT_OPTIONS

    options: Any = {name: getattr(args, name) for name, row in WAIT_OPTIONS.items() if row.flag}
    options = {name: value for name, value in options.items() if value is not None}
    asked_more = any(name in CONDITIONS and name != "exit" for name in options)
    several = len(args.sessions) > 1
    if several and args.since is not None:
        raise usage("--since takes a cursor, which is for one session", "hold wait")
    with open_home() as hf:
        woken = hf.wait_all(args.sessions, any=args.any, **options)
    if args.json:
        say_json(woken if several else woken[0])
    codes = [_report(woke, args, asked_more=asked_more, several=several) for woke in woken]
    return next(filter(None, codes), 0)


def _report(woke: Woke, args: Namespace, *, asked_more: bool, several: bool) -> int:
    """Print how the wait for one session ended; returns its exit code."""
    from ..errors import NOT_REACHED, TIMED_OUT

    session: Any = woke.session
    name = f"{printable(session.name or session.id)}: " if several else ""
    if not args.json:
        say(name + woke.reason + _detail(woke, session.exit))
    if woke.reason == "timeout":
        return TIMED_OUT
    if woke.reason == "not_ready":
        note(f"{name}it did not become ready in time, and is still running")
        return 1
    if woke.reason in ("stale", "lost"):
        return NOT_REACHED
    if woke.reason == "exit":
        if args.propagate or not (asked_more or args.exit):
            return exit_code(session.exit)
        if not args.exit:
            note(f"{name}the command ended first")
            return exit_code(session.exit) or 1
    return 0


def _detail(woke: Woke, exit: Exit | None) -> str:
    if woke.match:
        return f": {printable(woke.match)}"
    ended = woke.reason == "exit" and exit is not None and exit.cause != "spawn_error"
    return f": {outcome(exit)}" if ended and exit else ""


def exit_code(exit: Exit | None) -> int:
    """The exit code as a shell would report it."""
    code = None if exit is None else exit.shell_code
    return 1 if code is None else code
