"""Show a recording, or a session from its beginning, as it went: with its pauses and its sizes. Ctrl-C ends it.

On a terminal it is drawn at the size it was recorded in; what does not fit is cut. What it asked of its terminal is
not asked of ours. Into a pipe go the bytes as they were printed.
"""

from __future__ import annotations

import os

from ..errors import BadArgument
from .door import here
from .output import is_terminal, write
from .parsing import Parser, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterable, Iterator

    from ..terminal.asciicast import Event, Header

USAGE = "FILE|ID [--speed N] [--idle-limit T] [--from POINT] [--to POINT]"
EXAMPLES = """
hold play demo.cast
hold play build --speed 4 --idle-limit 1s
"""

_SPEED_MAX = 1000.0


def arrange(parser: Parser) -> None:
    parser.add_argument(
        "what", metavar="FILE|ID", help="an asciicast of version 2 or 3, `-` for our input, or a session"
    )
    parser.add_argument("--speed", type=_speed, default=1.0, metavar="N", help="so many times as fast")
    parser.add_argument(
        "--idle-limit", type=duration("--idle-limit"), metavar="T", help="make longer pauses as short as this"
    )
    parser.add_argument("--from", dest="since", metavar="POINT", help="of a session: an offset, or a time such as 90s")
    parser.add_argument("--to", dest="until", metavar="POINT", help="of a session: where to stop")


def main(args: Namespace) -> int:
    if args.what == "-":
        # Ours may be in another encoding, and what is no UTF-8 is no reason to stop.
        with open(0, encoding="utf-8", errors="replace", newline="\n", closefd=False) as lines:
            _play(*_parsed(lines, args), args)
    elif os.path.isfile(args.what):
        with open(args.what, encoding="utf-8", errors="replace", newline="\n") as lines:
            _play(*_parsed(lines, args), args)
    else:
        from ..host.observe import read_files
        from ..host.recorded import Recording

        with here() as hf:
            files = read_files(hf.home, hf.get(args.what).id)
        recording = Recording(files, since=args.since, until=args.until)
        _play(recording.header(), recording.events(), args)
    return 0


def _parsed(lines: Iterable[str], args: Namespace) -> tuple[Header, Iterator[Event]]:
    from ..terminal.asciicast import parsed

    for option, given in (("--from", args.since), ("--to", args.until)):
        if given is not None:
            raise BadArgument(option, "a file is played from its beginning to its end", "leave it out")
    return parsed(lines, args.what)


def _play(header: Header, events: Iterable[Event], args: Namespace) -> None:
    import time

    from ..terminal.playing import play

    def size() -> tuple[int, int]:
        try:
            columns, rows = os.get_terminal_size(1)
        except OSError:
            return header.rows, header.cols
        return rows or header.rows, columns or header.cols

    play(
        header,
        events,
        lambda data: write(1, data),
        sleep=time.sleep,
        clock=time.monotonic,
        speed=args.speed,
        idle_limit=args.idle_limit,
        size=size if is_terminal(1) else None,
    )


def _speed(text: str) -> float:
    try:
        speed = float(text)
    except ValueError:
        speed = 0.0
    if not 0 < speed <= _SPEED_MAX:
        raise BadArgument("--speed", f"{text[:80]!a} is no number above 0", "such as 2 or 0.5")
    return speed
