"""What was signalled and waits to be acknowledged: endings, matches, lines of monitors, prompts, and more.

Looking acknowledges nothing. Without --owner or --consumer it is what waits for you, of all sessions of this home: all
that is retained, less what you acknowledged with `hold ack`. An owner's signals wait for its agent; whoever looks with
--owner takes nothing away from it. Secrets are left out of what is shown.

With --follow, what comes from now on is shown too, until Ctrl-C. With --json: one array of records, and for each
`state` (due, held by somebody, later, parked), `deliveries` and `why`; with --follow, one object a line.
"""

from __future__ import annotations

from .door import core as open_core
from .inbox import add_consumer, listing, parked
from .output import is_terminal, note, say, say_json
from .parsing import Parser, add_json, count, usage
from .tables import DIM, RED, YELLOW, age, printable, style, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace
    from types import FrameType
    from typing import Any

    from ..signals.listing import Listing, Waiting
    from ..signals.notices import Notice
    from .tables import Style

USAGE = "[--owner KEY | --consumer NAME] [-n N] [--follow] [--parked] [--json]"
EXAMPLES = """
hold signals
hold signals --owner agent-7            what waits for that agent
hold signals --owner agent-7 --follow --json | jq -r .id
hold signals --parked                   what was given up on, and why
"""


def arrange(parser: Parser) -> None:
    add_consumer(parser, "what waits for")
    parser.add_argument("-n", "--lines", type=count("-n"), metavar="N", help="only the last N of those that wait")
    parser.add_argument("-f", "--follow", action="store_true", help="go on with what comes")
    parser.add_argument(
        "--parked", action="store_true", help="only what killed who read it, and comes no more by itself"
    )
    add_json(parser, "the records")


def main(args: Namespace) -> int:
    from ..host.driver import drive

    if args.parked and args.follow:
        raise usage("--parked are those that come no more: there is nothing to follow", "hold signals")
    core = open_core()
    try:
        if args.parked:
            wanted = drive(parked(core, args))
        else:
            queue = listing(core, args)
            wanted = drive(queue.waiting(args.lines))
            if args.follow:
                return _follow(queue, wanted, as_json=args.json)
        if args.json:
            say_json([record(each) for each in wanted])
        elif wanted:
            say(_listed(wanted, style(core.config), whose=args.parked))
        elif is_terminal(1):
            note("nothing is parked" if args.parked else "nothing waits")
        for trouble in (core.index.trouble, core.consumers.catchup.trouble):
            if trouble is not None:
                note(trouble)
    finally:
        core.close()
    return 0


def _follow(queue: Listing, found: list[Waiting], *, as_json: bool) -> int:
    """Until whoever had enough ends us. The exit code, as a shell tells of a signal."""
    import select
    import signal
    import sys

    from ..host.driver import drive

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _leave)
    try:
        with queue.waker() as waker:
            poll = select.poll()
            poll.register(waker.fileno(), select.POLLIN)
            while True:
                for each in found:
                    if as_json:
                        say_json(record(each), lines=True)
                    else:
                        signaled = each.signal
                        say(printable(f"{signaled.id}  {signaled.at}  {signaled.owner or '-'}  {words(each)}"))
                sys.stdout.flush()
                again_s = queue.again_s
                poll.poll(None if again_s is None else again_s * 1000 + 1)
                waker.clear()
                found = drive(queue.new())
    except _Leave as told:
        return 128 + told.number


class _Leave(Exception):
    """Somebody ended us: what was put up to be called is taken down first."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def _leave(number: int, _frame: FrameType | None) -> None:
    raise _Leave(number)


def _listed(found: list[Waiting], style: Style, *, whose: bool) -> str:
    rows = []
    for each in found:
        signal = each.signal
        state = "" if each.state == "due" else each.state
        if each.deliveries and each.state != "held":
            state = f"{state}, told {each.deliveries} times".removeprefix(", ") if each.deliveries > 1 else state
        rows.append(
            (
                (signal.id, ""),
                (age(signal.at), DIM),
                (signal.owner or "", ""),
                (each.consumer if whose else "", ""),
                (state, RED if each.state == "parked" else YELLOW),
                (words(each) + (f" (given back: {each.why})" if each.why else ""), ""),
            )
        )
    return table(("ID", "AGE", "OWNER", "CONSUMER", "STATE", "WHAT"), rows, style)


def words(each: Waiting) -> str:
    """What happened, in one line."""
    notice = _told(each)
    line = notice.fields["line"]
    return f"{notice.title}: {line}" if line else notice.title


def record(each: Waiting) -> dict[str, Any]:
    told = {"consumer": each.consumer, "state": each.state, "deliveries": each.deliveries, "why": each.why}
    return {**_told(each).record(), **told, "replayed": each.signal.replayed}


def _told(each: Waiting) -> Notice:
    from ..signals.notices import Notice
    from ..signals.redact import redact

    return Notice([each.signal], redact)
