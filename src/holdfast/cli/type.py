"""`hold send`, `submit`, `keys`, `paste` and `eof`."""

from __future__ import annotations

import os
import sys

from ..errors import TIMED_OUT
from .host import open_home
from .options import flag_of
from .output import note, say_json
from .parsing import Namespace, Parser, add_json, add_session, count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..model import Typed
    from ..model.options import Option
    from ..sessions.api import Session


WAIT_USAGE = "[--match RE] [--idle T] [...] [--json]"
_WARNINGS = {
    "canonical_limit": "a line is longer than the terminal accepts: the rest of it is lost",
    "tty_raw": "the program reads its terminal in raw mode: it gets the end-of-input key as an ordinary key",
}


def add_wait_for(parser: Parser) -> None:
    waits = parser.add_group("wait afterwards for the first of (30s unless --timeout)")
    waits.add_arguments(map(flag_of, _options()))
    add_json(parser, "the bytes accepted, warnings, the cursor before them, and the result of the wait")


def _wait_for(args: Namespace) -> dict[str, Any] | None:
    from ..sessions.wait import CONDITIONS

    asked = {option.name: getattr(args, option.name) for option in _options()}
    asked = {name: value for name, value in asked.items() if value is not None}
    return asked if asked.keys() & CONDITIONS.keys() else None


def _options() -> list[Option]:
    from ..sessions.wait import ALSO_AFTER_INPUT, WAIT_OPTIONS

    return [option for option in WAIT_OPTIONS.values() if option.group == ALSO_AFTER_INPUT]


def _typed(args: Namespace, act: Callable[[Session, dict[str, Any] | None], Typed]) -> int:
    """Type into the session, wait, and report both."""
    with open_home() as hf:
        return _report(act(hf.get(args.session), _wait_for(args)), args)


def _report(typed: Typed, args: Namespace) -> int:
    if args.json:
        say_json(typed)
    for warning in typed.warnings:
        note(_WARNINGS.get(warning, warning))
    return TIMED_OUT if typed.woke is not None and typed.woke.reason == "timeout" else 0


SEND_HELP = """\
Write to the input of a session that was started with --tty or --stdin open. The text is sent unchanged; --newline
adds a line end. Without a text, or with `-`, stdin is passed on as it arrives.
"""

SEND_USAGE = f"ID [TEXT] [--newline] {WAIT_USAGE}"
SEND_EXAMPLES = """
hold start --name calc --stdin open -- bc
hold send calc --newline '2 ^ 10' --match 1024
hold send calc < sums.txt
"""


def send_arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to write; `-` or nothing: stdin")
    parser.add_argument("-n", "--newline", action="store_true", help="add a line end")
    add_wait_for(parser)


def send_main(args: Namespace) -> int:
    end = b"\n" if args.newline else b""
    if args.text is None or args.text == "-":
        return _send_stdin(args, end)
    return _typed(args, lambda session, wait: session.send(os.fsencode(args.text) + end, wait_for=wait))


def _send_stdin(args: Namespace, end: bytes) -> int:
    from ..sessions.driver import drive
    from ..sessions.inputs import wait_behind
    from .options import pour

    with open_home() as hf:
        core = hf._core
        id = drive(core.locate(args.session))
        return _report(drive(wait_behind(core, id, drive(pour(core, id, last=end)), _wait_for(args))), args)


SUBMIT_HELP = """\
Type text into a session and press Enter a moment later, as a person would: full-screen programs ignore an Enter that
comes together with the text. Without a text, press only Enter.
"""

SUBMIT_USAGE = f"ID [TEXT] [--enter-delay MS] {WAIT_USAGE}"
SUBMIT_EXAMPLES = """
hold start --name repl --tty -- python3
hold submit repl 'print(2 ** 10)' --match 1024
"""


def submit_arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("text", nargs="?", default="", metavar="TEXT", help="what to type before Enter")
    parser.add_argument(
        "--enter-delay",
        type=count("--enter-delay"),
        metavar="MS",
        help="pause before Enter (default: terminal.enter_delay, 150)",
    )
    add_wait_for(parser)


def submit_main(args: Namespace) -> int:
    delay = args.enter_delay
    return _typed(args, lambda session, wait: session.submit(args.text, enter_delay_ms=delay, wait_for=wait))


KEYS_HELP = """\
Press keys by name in a session that has a terminal: Enter, Tab, Escape, Up, PageDown, F5, C-c, M-x, S-Tab, or single
characters; `text:...` types a text, `hex:1b5b41` sends bytes. An unknown name is an error and types nothing.
"""

KEYS_USAGE = f"ID KEY... [--delay MS] {WAIT_USAGE}"
KEYS_EXAMPLES = """
hold keys editor Escape : w q Enter
hold keys menu Down Down Enter --idle 1s
hold keys repl text:'help()' Enter
"""


def keys_arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("keys", nargs="+", metavar="KEY", help="a key, with modifiers such as C-, M- and S-")
    parser.add_argument("--delay", type=count("--delay"), default=0, metavar="MS", help="pause between two keys")
    add_wait_for(parser)


def keys_main(args: Namespace) -> int:
    return _typed(args, lambda session, wait: session.keys(*args.keys, delay_ms=args.delay, wait_for=wait))


PASTE_HELP = """\
Paste text into a session that has a terminal: as a bracketed paste if the program asked for it, and without control
characters, so that nothing in it is run. Without a text, or with `-`, paste stdin.
"""

PASTE_USAGE = f"ID [TEXT] [--bracketed auto|always|never] [--raw] {WAIT_USAGE}"
PASTE_EXAMPLES = """
hold paste repl < snippet.py
hold paste editor --bracketed always "two
lines"
"""


def paste_arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("text", nargs="?", metavar="TEXT", help="what to paste; `-` or nothing: stdin")
    parser.add_argument(
        "--bracketed",
        choices=("auto", "always", "never"),
        default="auto",
        help="auto: if the program asked for it (default)",
    )
    parser.add_argument("--raw", action="store_true", help="keep control characters")
    add_wait_for(parser)


def paste_main(args: Namespace) -> int:
    text = sys.stdin.read() if args.text in (None, "-") else args.text
    how = {"bracketed": args.bracketed, "raw": args.raw}
    return _typed(args, lambda session, wait: session.paste(text, **how, wait_for=wait))


EOF_HELP = """\
Close the input of a session, after everything that was sent: the command then sees end of file. On a terminal the
end-of-input key (usually Ctrl-D) is typed, and more input can follow.
"""

EOF_USAGE = f"ID {WAIT_USAGE}"
EOF_EXAMPLES = """
hold start --name sorter --stdin open -- sort
hold send sorter --newline banana && hold send sorter --newline apple
hold eof sorter --exit && hold logs sorter
"""


def eof_arrange(parser: Parser) -> None:
    add_session(parser)
    add_wait_for(parser)


def eof_main(args: Namespace) -> int:
    return _typed(args, lambda session, wait: session.eof(wait_for=wait))
