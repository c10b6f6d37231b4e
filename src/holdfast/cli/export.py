"""Write what a terminal session showed to a file: a recording that players of asciicasts show again, or plain text.

From its log, while it runs or when it is over. Without --format the name decides: .txt is text, .raw the bytes as they
were printed, everything else asciicast 3. `-` is our own output. A point is an offset of the log, or a time since
the beginning such as 90s. With --json: {format, from, to, invalid, gaps} when the file is written.
"""

from __future__ import annotations

import os

from .door import here
from .output import note, say_json, write
from .parsing import Parser, add_json, add_session, duration

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from ..host.recorded import Recording

USAGE = "ID FILE [--format asciicast3|asciicast2|raw|text] [--from P] [--to P] [--idle-limit T] [--json]"
EXAMPLES = """
hold export editor demo.cast              then: hold play demo.cast, or asciinema play demo.cast
hold export build - --format text | less
hold export demo demo.cast --from 90s --to 5m --idle-limit 2s
"""

_BY_NAME = {".txt": "text", ".text": "text", ".log": "text", ".raw": "raw", ".bin": "raw"}


def arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("file", metavar="FILE", help="where to write it; `-` is our own output")
    parser.add_argument("--format", choices=("asciicast3", "asciicast2", "raw", "text"), help="default: by the name")
    parser.add_argument(
        "--from", dest="since", metavar="POINT", help="where to begin: an offset, or a time such as 90s"
    )
    parser.add_argument("--to", dest="until", metavar="POINT", help="where to stop")
    parser.add_argument(
        "--idle-limit", type=duration("--idle-limit"), metavar="T", help="make longer pauses as short as this"
    )
    add_json(parser, "what was written and what is missing of it")


def main(args: Namespace) -> int:
    from ..host.observe import read_files
    from ..host.recorded import Recording

    form = args.format or _BY_NAME.get(os.path.splitext(args.file)[1].lower(), "asciicast3")
    with here() as hf:
        files = read_files(hf.home, hf.get(args.session).id)
        recording = Recording(files, since=args.since, until=args.until, idle_limit=args.idle_limit)
        if args.file == "-":
            for piece in recording.write(form):
                write(1, piece)
        else:
            recording.save(args.file, form)
    _tell(recording, form, args)
    return 0


def _tell(recording: Recording, form: str, args: Namespace) -> None:
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
        note(f"{gap.stop - gap.start} bytes from {gap.start} on are not there: {gap.reason}")
    if tally.invalid:
        note(f"no UTF-8 in {tally.invalid} places, where U+FFFD stands now; --format raw keeps the bytes")
