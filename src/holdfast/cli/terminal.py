"""`hold attach`, `screen`, `resize`, `export` and `reset`."""

from __future__ import annotations

import os
import sys

from ..errors import HoldfastError
from .host import open_home
from .output import Awaiting, is_terminal, megabytes, note, say_json, write
from .parsing import Namespace, Parser, add_json, add_session, count, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..terminal.screen import Screen
    from .attach_loop import Since


ATTACH_HELP = """\
Use a session's terminal from this one: show its screen and its output, and pass on every key.

Attaching and detaching change nothing in the session; closing the window detaches. The detach key is ctrl-] (see
--detach-key), followed by: `d` detach, `o` only watch, `r` redraw the screen, `?` help. Typed twice, the key itself is
sent. The exit code is that of the command (128+n for signal n) if it ended while attached, else 0.

If stdout is not a terminal, it gets the bytes of the log from the beginning to the end of the command, and no terminal
is changed. If stdin is not a terminal, it is passed on as it arrives.
"""

ATTACH_USAGE = "ID [--observe] [--from WHERE] [--detach-key KEY] [--stdin-eof WHAT] [OPTION...]"
ATTACH_EXAMPLES = """
hold start --name editor --tty -- vim notes.txt
hold attach editor                      ctrl-] d detaches
hold attach editor --observe            only watch
hold attach build | tee build.log       all output from the start, and the exit code
echo 'print(6 * 7)' | hold attach repl --stdin-eof eof
"""


def attach_arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("--observe", action="store_true", help="only watch: no keys and no size are passed on")
    parser.add_argument(
        "--from",
        dest="since",
        type=_where,
        metavar="WHERE",
        help="screen (default in a terminal), start (default elsewhere), now, or an offset in its log",
    )
    parser.add_argument("--detach-key", metavar="KEY", help="such as ctrl-a or C-\\, or none (default: ctrl-])")
    parser.add_argument(
        "--stdin-eof",
        choices=("ignore", "eof", "detach"),
        default="ignore",
        help="at the end of stdin, if that is not a terminal: do nothing (default), close its input, or detach",
    )
    parser.add_argument(
        "--history",
        type=count("--history"),
        metavar="N",
        help="rows above the screen (default: terminal.history_rows, 1000)",
    )
    parser.add_argument(
        "--clipboard", action="store_true", help="let it write to your clipboard, if it was started with --clipboard"
    )
    parser.add_argument("--graphics", action="store_true", help="pass on pictures, for terminals that show them")


def attach_main(args: Namespace) -> int:
    from ..sessions.observe import read_files
    from ..terminal.keys import detach_key
    from .attach_loop import AttachLoop, AttachOptions

    with open_home() as hf:
        name = hf.config.terminal_detach_key if args.detach_key is None else args.detach_key
        key = detach_key(name)
        session = hf.get(args.session)
        asked = read_files(hf.home, session.id).spec.get("tty") or {}
        options = AttachOptions(
            history_rows=hf.config.terminal_history_rows if args.history is None else args.history,
            observe=args.observe,
            since=args.since,
            key=key,
            stdin_eof=args.stdin_eof,
            clipboard=args.clipboard and bool(asked.get("clipboard")),
            graphics=args.graphics,
        )
        # A session of a node has another id there, and its name is that of the node's.
        called = args.session if "/" in args.session else None
        return AttachLoop(session, options, called).run()


def _where(text: str) -> Since:
    from ..errors import BadArgument

    if text in ("screen", "start", "now"):
        return text  # type: ignore[return-value]
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    raise BadArgument(
        "--from", f"{text[:80]!a} is not a position in a log", "screen, start, now, or an offset such as 4096"
    )


SCREEN_HELP = """\
Show the screen of a session's terminal, now or at an offset in its log: as text, JSON, ANSI, SVG or PNG."""

SCREEN_USAGE = "ID [--format text|json|ansi|svg|png] [--at OFFSET] [--history N] [--settle MS] [-o FILE]"
SCREEN_EXAMPLES = """
hold screen editor
hold screen editor --format svg -o editor.svg
hold screen top --settle 300 --json | jq .cursor
"""


def screen_arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument(
        "--format", choices=("text", "json", "ansi", "svg", "png"), default="text", help="default: text"
    )
    parser.add_argument("--at", type=count("--at"), metavar="OFFSET", help="as it was at this offset in the log")
    parser.add_argument(
        "--history", type=count("--history"), default=0, metavar="N", help="also N rows that scrolled out"
    )
    parser.add_argument(
        "--settle",
        type=count("--settle"),
        default=0,
        metavar="MS",
        help="wait until it has printed nothing for this long",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the file to write (default: stdout)")
    add_json(parser, "rows, cursor, size and more, as --format json does")


def screen_main(args: Namespace) -> int:
    with open_home() as hf:
        shown = hf.get(args.session).screen(at=args.at, history=args.history, settle_ms=args.settle)
    form = "json" if args.json else args.format
    if form == "json" and args.output is None:
        say_json(shown.to_json())
    elif args.output is not None:
        from ..sessions.recording import save

        save(args.output, [_content(shown, form)])
    else:
        sys.stdout.flush()
        write(1, _content(shown, form))
    return 0


def _content(shown: Screen, form: str) -> bytes:
    if form == "png":
        return shown.to_png()
    if form == "json":
        import json

        return json.dumps(shown.to_json()).encode() + b"\n"
    made = {"text": lambda: shown.text + "\n", "ansi": shown.to_ansi, "svg": shown.to_svg}[form]()
    return made.encode("utf-8", "replace")


RESIZE_HELP = """\
Change the size of a session's terminal. While a client is attached, the size of its window is used, unless the
session was started with --size-policy fixed.
"""

RESIZE_USAGE = "ID COLSxROWS [--json]"
RESIZE_EXAMPLES = """
hold resize editor 120x40
"""


def resize_arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("size", metavar="COLSxROWS", help="such as 80x24")
    add_json(parser, "the session")


def resize_main(args: Namespace) -> int:
    from ..sessions.start_request import check_size

    rows, cols = check_size(args.size)
    with open_home() as hf:
        session = hf.get(args.session).resize(rows, cols)
        if args.json:
            say_json(session)
    return 0


EXPORT_HELP = """\
Write a recording of a session's terminal to a file: an asciicast, which asciinema plays, plain text, or raw bytes.

It is made from the log, while the session runs or later. Without --format the name of the file decides: .txt is text,
.raw the bytes as they were printed, everything else asciicast 3. `-` is stdout. A point is an offset in the log, or a
time since the start such as 90s. With --json, prints {format, from, to, invalid, gaps}.
"""

EXPORT_USAGE = "ID FILE [--format asciicast3|asciicast2|raw|text] [--from P] [--to P] [--idle-limit T] [--json]"
EXPORT_EXAMPLES = """
hold export editor demo.cast              then: asciinema play demo.cast
hold export build - --format text | less
hold export demo demo.cast --from 90s --to 5m --idle-limit 2s
"""

_BY_NAME = {".txt": "text", ".text": "text", ".log": "text", ".raw": "raw", ".bin": "raw"}


def export_arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("file", metavar="FILE", help="the file to write; `-` is stdout")
    parser.add_argument(
        "--format", choices=("asciicast3", "asciicast2", "raw", "text"), help="default: by the name of the file"
    )
    parser.add_argument(
        "--from", dest="since", metavar="POINT", help="where to begin: an offset, or a time such as 90s"
    )
    parser.add_argument("--to", dest="until", metavar="POINT", help="where to stop")
    parser.add_argument(
        "--idle-limit", type=duration("--idle-limit"), metavar="T", help="shorten longer pauses to this"
    )
    add_json(parser, "what was written and what is missing")


def export_main(args: Namespace) -> int:
    from ..sessions.observe import read_files
    from ..sessions.recording import Recording

    form = args.format or _BY_NAME.get(os.path.splitext(args.file)[1].lower(), "asciicast3")
    with open_home() as hf:
        files = read_files(hf.home, hf.get(args.session).id)
        recording = Recording(files, since=args.since, until=args.until, idle_limit=args.idle_limit)
        if args.file == "-":
            for piece in recording.write(form):
                write(1, piece)
        else:
            whole = f"of {megabytes(recording.end)}"
            with Awaiting(lambda: f"the recording, at {megabytes(recording.at)} {whole}"):
                recording.save(args.file, form)
    tally = recording.tally
    if args.json and args.file != "-":
        say_json(
            {
                "format": form,
                "from": recording.begin,
                "to": recording.end,
                "invalid": tally.invalid,
                "gaps": [{"from": gap.start, "to": gap.stop, "reason": gap.reason} for gap in tally.missing],
            }
        )
    for gap in tally.missing:
        note(f"{gap.stop - gap.start} bytes from byte {gap.start} are missing: {gap.reason}")
    if tally.invalid:
        note(f"invalid UTF-8 in {tally.invalid} places was replaced by U+FFFD; --format raw keeps the bytes")
    return 0


RESET_HELP = """\
Repair this terminal after an attach was killed: its modes, keys, mouse, colours, screens and settings.

`hold attach` does the same when it detaches, for what it changed; this resets everything it could have changed. The
text on the screen is not erased.
"""

RESET_USAGE = ""
RESET_EXAMPLES = """
hold reset
hold reset > /dev/pts/3                 repair another terminal
"""


def reset_arrange(parser: Parser) -> None:
    pass


def reset_main(_args: Namespace) -> int:
    from ..terminal.undo import everything

    if not is_terminal(1):
        error = HoldfastError("stdout is not a terminal")
        error.fix = "run `hold reset` in the terminal, or with its output there"
        raise error
    try:
        cols = os.get_terminal_size(1).columns or 80
    except OSError:
        cols = 80
    write(1, everything(cols))
    _make_usual(1)
    return 0


def _make_usual(fd: int) -> None:
    """Set lines, echo and signal keys as a login does."""
    import termios

    settings = termios.tcgetattr(fd)
    settings[0] |= termios.BRKINT | termios.ICRNL | termios.IXON
    settings[0] &= ~(termios.IGNBRK | termios.INLCR | termios.IGNCR | termios.ISTRIP)
    settings[1] |= termios.OPOST | termios.ONLCR
    settings[3] |= termios.ICANON | termios.ISIG | termios.IEXTEN | termios.ECHO | termios.ECHOE | termios.ECHOK
    settings[3] &= ~termios.ECHONL
    termios.tcsetattr(fd, termios.TCSANOW, settings)
