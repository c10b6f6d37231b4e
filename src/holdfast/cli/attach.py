"""Take a session's terminal as one's own: its screen as it is, its output as it comes, every key passed on.

Nothing is typed, signalled or changed by coming and leaving; closing the window leaves too. The detach key is ctrl-]
(see --detach-key); behind it `d` leaves, `o` only watches, `r` shows the screen anew, `?` helps, and the key itself
is sent by typing it twice. We exit with the command's code (128+n for signal n) if its end was seen, with 0 if not.

Where our output is no terminal, it gets the bytes of the log from the beginning to the end of the command, and no
setting of any terminal is touched. Where our input is none, it is passed on as it comes.
"""

from __future__ import annotations

from .door import here
from .parsing import Parser, add_session, count

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from typing import Literal

    from ..terminal.detach import DetachKey

    Since = Literal["screen", "start", "now"] | int

USAGE = "ID [--observe] [--from WHERE] [--detach-key KEY] [--stdin-eof WHAT] [OPTION...]"
EXAMPLES = """
hold start --name editor --tty -- vim notes.txt
hold attach editor                      ctrl-] d leaves it running
hold attach editor --observe            look on, type nothing
hold attach build | tee build.log       every byte from the start, and the exit code
echo 'print(6 * 7)' | hold attach repl --stdin-eof eof
"""

_WORDS: tuple[Literal["screen"], Literal["start"], Literal["now"]] = ("screen", "start", "now")


class Wishes:
    """What the options of `hold attach` say. `since` None: the screen on a terminal, everything into a pipe. `hold`:
    the command waits for us, which `hold run` asks for."""

    def __init__(
        self,
        *,
        observe: bool = False,
        since: Since | None = None,
        key: DetachKey | None = None,
        stdin_eof: str = "ignore",
        history_rows: int,
        clipboard: bool = False,
        graphics: bool = False,
        hold: bool = False,
    ) -> None:
        self.observe = observe
        self.since = since
        self.key = key
        self.stdin_eof = stdin_eof
        self.history_rows = history_rows
        self.clipboard = clipboard
        self.graphics = graphics
        self.hold = hold


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("--observe", action="store_true", help="watch only: type nothing, size nothing")
    parser.add_argument(
        "--from",
        dest="since",
        type=_where,
        metavar="WHERE",
        help="screen (default in a terminal), start (default elsewhere), now, or an offset of its log",
    )
    parser.add_argument("--detach-key", metavar="KEY", help="such as ctrl-a or C-\\, or none (default: ctrl-])")
    parser.add_argument(
        "--stdin-eof",
        choices=("ignore", "eof", "detach"),
        default="ignore",
        help="at the end of our input, where that is no terminal: nothing (default), end its input, or leave",
    )
    parser.add_argument(
        "--history",
        type=count("--history"),
        metavar="N",
        help="rows above the screen (default: terminal.history_rows, 1000)",
    )
    parser.add_argument(
        "--clipboard", action="store_true", help="let it write to our clipboard, if it was started with that"
    )
    parser.add_argument("--graphics", action="store_true", help="let pictures pass, for terminals that show them")


def main(args: Namespace) -> int:
    from ..host.observe import read_files
    from ..terminal.detach import detach_key
    from .client import Client

    with here() as hf:
        name = hf.config.terminal_detach_key if args.detach_key is None else args.detach_key
        key = detach_key(name)
        session = hf.get(args.session)
        asked = read_files(hf.home, session.id).spec.get("tty") or {}
        wishes = Wishes(
            observe=args.observe,
            since=args.since,
            key=key,
            stdin_eof=args.stdin_eof,
            history_rows=hf.config.terminal_history_rows if args.history is None else args.history,
            clipboard=args.clipboard and bool(asked.get("clipboard")),
            graphics=args.graphics,
        )
        return Client(session, wishes).run()


def _where(text: str) -> Since:
    from ..errors import BadArgument

    for word in _WORDS:
        if text == word:
            return word
    if text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    raise BadArgument("--from", f"{text[:80]!a} is no place in a log", "screen, start, now, or an offset such as 4096")
