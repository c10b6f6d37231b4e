"""Acknowledge signals: they wait no longer for whom it is done, and are not told again.

Without --owner or --consumer it is done for you, and `hold signals` shows them no more; what waits for agents still
waits for them. With --owner it is done in the place of that owner's agent. Signals that are settled already are no
error. Says how many were still open.
"""

from __future__ import annotations

from .door import here
from .inbox import add_consumer, consumer
from .output import say, say_json
from .parsing import Parser, add_json, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from ..host.core import Core

USAGE = "SIGNAL... [--owner KEY | --consumer NAME] [--upto] [--json]"
EXAMPLES = """
hold ack b7k2m9qa1.3
hold ack --upto b7k2m9qa1.3             that one and all that came before it, of whichever session
hold ack b7k2m9qa1.3 --owner agent-7    its agent is not told of it any more
"""


def arrange(parser: Parser) -> None:
    parser.add_argument("signals", metavar="SIGNAL", nargs="+", help="as `hold signals` lists them")
    add_consumer(parser, "for")
    parser.add_argument("--upto", action="store_true", help="and everything that came before it")
    add_json(parser, "how many were `settled`")


def main(args: Namespace) -> int:
    if args.upto and len(args.signals) > 1:
        raise usage("--upto takes one signal: all before it are meant anyway", "hold ack")
    with here() as hf:
        for id in args.signals:
            _check(hf._core, id)
        to = consumer(hf, args)
        if args.upto:
            settled = to.ack(upto=args.signals[0])
        else:
            settled = sum(to.ack(id) for id in args.signals)
    if args.json:
        say_json({"consumer": to.name, "settled": settled})
    else:
        say(f"{settled} settled")
    return 0


def _check(core: Core, id: str) -> None:
    """Whole ids only: what is meant by a name or the beginning of an id may be another tomorrow."""
    from ..errors import BadArgument, NotFound
    from ..runner.signalfile import HOME
    from ..signals.records import split_id

    found = split_id(id)
    if found is None:
        raise BadArgument("SIGNAL", f"{id[:80]!a} is no signal", "give its id, such as b7k2m9qa1.3")
    if found[0] != HOME and core.find(found[0]) != found[0]:
        raise NotFound(found[0])
