"""`hold top`: a live view of everything that runs.

The live view is drawn by textual, the extra `top`. Without it, a plain table is drawn again every second.
"""

from __future__ import annotations

import os

from .host import open_home
from .output import Style, cut, is_terminal, note, say, say_json, style, table, write
from .parsing import Namespace, Parser, add_json
from .top_rows import HEADS, LOOK_S, Details, Row, cells, fitting, look, title

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


TOP_HELP = """\
A live view of everything that runs: its CPU time and memory, the last line it printed, how many signals wait for its
owner.

The view needs the extra `top` (pip install 'holdfast[top]'). Keys: arrows or j and k select; Enter attaches, or shows
the log of a session without a terminal; l shows the log, s stops, r restarts, / filters as `hold ls --search` does,
o changes the order, a also shows what has ended, ? lists the keys, q quits. A stop or restart that was asked for is
finished after you quit. Without the extra, a plain table is shown every second; q quits.

CPU is in percent of one processor since the last update; memory is the resident memory of all its processes. If
stdout is not a terminal, or with --json, the table is printed once; CPU is then measured over the whole life of the
processes.
"""

TOP_USAGE = "[--json]"
TOP_EXAMPLES = """
hold top
hold top | grep -v running              print the table once
hold top --json | jq -r '.[] | select(.needs_input) | .id'
"""


def top_arrange(parser: Parser) -> None:
    add_json(parser, "what runs now")


def top_main(args: Namespace) -> int:
    if not args.json and is_terminal(0) and is_terminal(1) and os.environ.get("TERM", "dumb") != "dumb":
        # textual draws on stderr.
        live = _textual_view() if is_terminal(2) else None
        return _plain() if live is None else live()
    with open_home() as hf:
        rows = look(hf, Details(hf.home))
        if args.json:
            say_json([row.to_json() for row in rows])
        elif rows:
            say(table(HEADS, [cells(row) for row in rows], style(hf.config)))
        elif is_terminal(1):
            note("nothing is running")
    return 0


# The plain table, where textual is not installed.


def _textual_view() -> Callable[[], int] | None:
    try:
        from .top_view import live
    except ModuleNotFoundError as missing:
        if missing.name not in ("textual", "rich"):
            raise
        return None
    return live


def _plain() -> int:
    import select
    import signal
    import termios

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    before, keys = termios.tcgetattr(0), termios.tcgetattr(0)
    keys[3] &= ~(termios.ICANON | termios.ECHO)
    # Ctrl-Z would leave the shell on this screen.
    keys[6][termios.VSUSP] = b"\0"
    try:
        termios.tcsetattr(0, termios.TCSANOW, keys)
        write(1, b"\x1b[?1049h\x1b[?25l")
        with open_home() as hf:
            details = Details(hf.home)
            while True:
                cols, height = os.get_terminal_size(1)
                write(1, _picture(look(hf, details), cols or 80, height or 24, style(hf.config).colour))
                if select.select([0], [], [], LOOK_S)[0] and os.read(0, 4096) in (b"q", b"Q", b""):
                    break
    except KeyboardInterrupt:
        pass
    finally:
        try:
            write(1, b"\x1b[?25h\x1b[?1049l")
            termios.tcsetattr(0, termios.TCSANOW, before)
        except (OSError, termios.error):
            pass  # the terminal was closed
    return 0


def _picture(rows: Sequence[Row], cols: int, height: int, colour: bool) -> bytes:
    """The whole screen: as many rows as fit."""
    lines = [cut(title(rows), cols)]
    every = [cells(row, cols) for row in rows[: max(0, height - 3)]]
    if every:
        kept = fitting(every, cols)
        heads = [HEADS[n] for n in kept]
        lines += table(heads, [[line[n] for n in kept] for line in every], Style(colour, cols)).split("\n")
    lines += [""] * (height - 1 - len(lines))
    lines.append(cut("q quit  (pip install 'holdfast[top]' for keys, logs and a filter)", cols))
    return b"\x1b[H" + "\x1b[K\r\n".join(lines[:height]).encode() + b"\x1b[J"
