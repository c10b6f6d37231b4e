"""`hold signals`, `ack` and `notify`."""

from __future__ import annotations

from ..config.settings import PEOPLE_EVENTS
from ..errors import BadArgument
from ..model.session import nearest
from .host import open_home
from .output import DIM, RED, YELLOW, age, is_terminal, note, printable, say, say_json, style, table
from .parsing import Namespace, Parser, add_json, add_sessions, count, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType
    from typing import Any

    from ..index.queues import Filter
    from ..sessions.api import Holdfast
    from ..sessions.core import Core
    from ..signals.consumer import Consumer
    from ..signals.consumers import Listing, Waiting
    from ..signals.people.notices import Notice
    from .output import Style


SIGNALS_HELP = """\
List the signals that wait to be acknowledged: ends, matches, lines of monitors, prompts, and more.

Listing acknowledges nothing. Without --owner or --consumer: all signals of this home that are retained, except those
that you acknowledged with `hold ack`. With --owner: the signals that wait for that owner's agent; the agent still gets
them. Secrets are removed.

With --follow, new signals are shown until Ctrl-C. With --json: an array of records with `state` (due, held, later,
parked), `deliveries` and `why`; with --follow, one object a line.
"""

SIGNALS_USAGE = "[--owner KEY | --consumer NAME] [-n N] [--follow] [--parked] [--json]"
SIGNALS_EXAMPLES = """
hold signals
hold signals --owner agent-7            signals that wait for that agent
hold signals --owner agent-7 --follow --json | jq -r .id
hold signals --parked                   signals that are not redelivered, and why
"""


def signals_arrange(parser: Parser) -> None:
    _add_consumer(parser, "signals for")
    parser.add_argument("-n", "--lines", type=count("-n"), metavar="N", help="only the last N signals")
    parser.add_argument("-f", "--follow", action="store_true", help="show new signals as they come")
    parser.add_argument(
        "--parked",
        action="store_true",
        help="only parked signals: their reader crashed repeatedly; they are not redelivered",
    )
    add_json(parser, "the records")


def signals_main(args: Namespace) -> int:
    from ..sessions.driver import drive

    if args.parked and args.follow:
        raise usage("--parked cannot be combined with --follow: parked signals are not redelivered", "hold signals")
    with open_home() as hf:
        core = hf._core
        if args.parked:
            wanted = drive(_parked(core, args))
        else:
            queue = _listing(core, args)
            wanted = drive(queue.waiting(args.lines))
            if args.follow:
                return _follow(queue, wanted, as_json=args.json)
        if args.json:
            say_json([record(each) for each in wanted])
        elif wanted:
            say(_listed(wanted, style(core.config), whose=args.parked))
        elif is_terminal(1):
            note("no signal is parked" if args.parked else "no signal waits")
        for trouble in (core.index.trouble, core.consumers.catchup.trouble):
            if trouble is not None:
                note(trouble)
    return 0


def _follow(queue: Listing, found: list[Waiting], *, as_json: bool) -> int:
    """Show new signals until we are ended by a signal; returns 128 plus its number."""
    import select
    import signal
    import sys

    from ..sessions.driver import drive

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
    except _Leave as leave:
        return 128 + leave.number


class _Leave(Exception):
    """Raised by a signal handler, so that the waker is closed before we exit."""

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
            state = f"{state}, delivered {each.deliveries} times".removeprefix(", ") if each.deliveries > 1 else state
        rows.append(
            (
                (signal.id, ""),
                (age(signal.at), DIM),
                (signal.owner or "", ""),
                (each.consumer if whose else "", ""),
                (state, RED if each.state == "parked" else YELLOW),
                (words(each) + (f" (released: {each.why})" if each.why else ""), ""),
            )
        )
    return table(("ID", "AGE", "OWNER", "CONSUMER", "STATE", "WHAT"), rows, style)


def words(each: Waiting) -> str:
    """One line that says what happened."""
    notice = _notice(each)
    line = notice.fields["line"]
    return f"{notice.title}: {line}" if line else notice.title


def record(each: Waiting) -> dict[str, Any]:
    delivery = {"consumer": each.consumer, "state": each.state, "deliveries": each.deliveries, "why": each.why}
    return {**_notice(each).record(), **delivery, "replayed": each.signal.replayed}


def _notice(each: Waiting) -> Notice:
    from ..signals.people.notices import Notice
    from ..signals.redact import redact

    return Notice([each.signal], redact)


ACK_HELP = """\
Acknowledge signals, so that they are not delivered again. Prints how many were not acknowledged before.

Without --owner or --consumer they are acknowledged for you: `hold signals` no longer shows them, but agents still get
them. With --owner they are acknowledged for that owner's agent. It is not an error if a signal is already acknowledged.
"""

ACK_USAGE = "(SIGNAL... | --all) [--owner KEY | --consumer NAME] [--upto] [--json]"
ACK_EXAMPLES = """
hold ack b7k2m9qa1.3
hold ack --all                          everything that waits for you
hold ack --upto b7k2m9qa1.3             that one and all earlier ones, of all sessions
hold ack b7k2m9qa1.3 --owner agent-7    that agent does not get it any more
"""


def ack_arrange(parser: Parser) -> None:
    parser.add_argument("signals", metavar="SIGNAL", nargs="*", help="ids as `hold signals` prints them")
    _add_consumer(parser, "for")
    parser.add_argument("--upto", action="store_true", help="also acknowledge all earlier signals")
    parser.add_argument("--all", action="store_true", help="every signal that waits now")
    add_json(parser, "how many were `settled`")


def ack_main(args: Namespace) -> int:
    from ..sessions.driver import drive

    if args.upto and len(args.signals) > 1:
        raise usage("--upto takes one signal; all earlier ones are included", "hold ack")
    if args.all == bool(args.signals):
        raise usage("give ids of signals, or --all", "hold ack")
    with open_home() as hf:
        if args.all:
            args.signals = [each.signal.id for each in drive(_listing(hf._core, args).waiting(None))]
        for id in args.signals:
            _check(hf._core, id)
        to = _consumer(hf, args)
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
    """Only whole ids: a name or the beginning of an id may mean another session tomorrow."""
    from ..core.signalfile import HOME
    from ..errors import NotFound
    from ..signals.lines import split_id

    found = split_id(id)
    if found is None:
        raise BadArgument("SIGNAL", f"{id[:80]!a} is not the id of a signal", "give its id, such as b7k2m9qa1.3")
    if found[0] != HOME and core.find(found[0]) != found[0]:
        raise NotFound(found[0])


NOTIFY_HELP = """\
Set up a channel that sends notices to people, a command or a webhook, and send a test notice through it. Or switch
notices about a session on or off; or `test` every channel.

--command takes a program and its arguments; {title}, {body} and other placeholders are replaced, and without any the
title and the body are appended. Only what happens afterwards is sent, never an end that was requested with `hold stop`
or `hold kill`. By default: failures, limits, and commands that wait for input.
"""

NOTIFY_USAGE = "(--command CMD | --webhook URL) [--on EVENTS]\n       hold notify test | (on|off ID...) [--json]"
NOTIFY_EXAMPLES = """
hold notify --command notify-send --on all      successes too
hold notify off web worker
hold notify --webhook https://example.org/hook
hold notify test
"""


def notify_arrange(parser: Parser) -> None:
    parser.add_argument("action", nargs="?", choices=("on", "off", "test"), help="for sessions; or test all channels")
    add_sessions(parser, "*")
    channel = parser.add_group(exclusive=True)
    channel.add_argument("--command", metavar="CMD", help="run this for each notice")
    channel.add_argument("--webhook", metavar="URL", help="post each notice there as JSON, signed")
    parser.add_argument(
        "--on", type=_events, metavar="EVENTS", help=f"all, or some of {', '.join(PEOPLE_EVENTS)}, separated by commas"
    )
    add_json(parser, "the sessions, or the result of each test notice")


def _events(text: str) -> tuple[str, ...]:
    found = PEOPLE_EVENTS if text == "all" else tuple(filter(None, text.split(",")))
    for word in found:
        if word not in PEOPLE_EVENTS:
            near = nearest(word, PEOPLE_EVENTS)
            known = f"did you mean {near}?" if near else f"all, or some of {', '.join(PEOPLE_EVENTS)}"
            raise BadArgument("--on", f"{word[:80]!a} is not an event", known)
    return found


def notify_main(args: Namespace) -> int:
    adds = args.command is not None or args.webhook is not None
    if adds == (args.action is not None) or (args.action in ("on", "off")) != bool(args.sessions):
        raise usage("give --command, --webhook, test, or on or off with sessions", "hold notify")
    if args.on and not adds:
        raise usage("--on comes with --command or --webhook", "hold notify")
    if adds or args.action == "test":
        return _channels(args)
    with open_home() as hf:
        sessions = [hf.get(ref) for ref in args.sessions]
        for session in sessions:
            session.update(notify_people=args.action == "on")
        if args.json:
            say_json(sessions)
    return 0


def _channels(args: Namespace) -> int:
    """Set up a channel if one is asked for, and test it, or all."""
    import os

    from ..config import channels, config_path, load
    from ..home import Home
    from ..signals.people.program import send_test

    load(os.environ)  # a file with a mistake is not changed
    file, wanted = config_path(os.environ), []
    if args.command is not None:
        channels.add_command(file, args.command, args.on)
        wanted = ["people:command"]
    elif args.webhook is not None:
        webhook = channels.add_webhook(file, args.webhook, args.on)
        wanted = [f"people:webhook:{webhook.name}"]
        note(f"the receiver checks signatures with the secret in {printable(webhook.secret_file)}")
    if wanted:
        note(f"written to {printable(file)}")
    home = Home()
    home.create()
    outcomes = send_test(load(os.environ), home.path, wanted)
    if args.json:
        say_json({name: {"outcome": each.kind, "why": each.why or None} for name, each in outcomes.items()})
    for name, each in outcomes.items():
        sent = each.kind == "delivered"
        if not args.json:
            say(f"{name}: " + ("test notice sent" if sent else f"NOT sent: {printable(each.why)}"))
    if not outcomes:
        note("there is no channel; `hold notify --command CMD` sets one up")
    return 0 if outcomes and all(each.kind == "delivered" for each in outcomes.values()) else 1


# The consumer that --owner or --consumer names; without them, the one of the user.


def _add_consumer(parser: Parser, verb: str) -> None:
    whose = parser.add_group(exclusive=True)
    whose.add_argument("--owner", metavar="KEY", help=f"{verb} this owner")
    whose.add_argument("--consumer", metavar="NAME", help=f"{verb} this consumer")


def _listing(core: Core, args: Namespace) -> Listing:
    """The signals that wait, without claiming any."""
    from ..home import check_owner
    from ..index.queues import Filter
    from ..signals.consumers import default_name

    if args.consumer is not None:
        return core.consumers.listing(args.consumer, _known(core, args.consumer))
    if args.owner is not None:
        return core.consumers.listing(default_name(args.owner), Filter([check_owner(args.owner)]))
    return core.consumers.listing()


async def _parked(core: Core, args: Namespace) -> list[Waiting]:
    """Parked signals of the consumer that is named; if none is named, of all consumers."""
    if args.consumer is not None or args.owner is not None:
        return await _listing(core, args).waiting(args.lines, parked=True)
    from ..index.queues import Filter

    found: list[Waiting] = []
    for each in core.consumers.known():
        if each["parked"]:
            found += await core.consumers.listing(each["name"], Filter.from_json(each)).waiting(parked=True)
    found.sort(key=lambda each: each.pos)
    return found if args.lines is None else found[max(0, len(found) - args.lines) :]


def _consumer(hf: Holdfast, args: Namespace) -> Consumer:
    """The consumer to acknowledge with. It is created if needed, but not from a bare name."""
    from ..signals.consumers import PERSON

    if args.owner is not None:
        return hf.signals(args.owner)
    if args.consumer is None:
        # Until the first `hold ack`, `hold signals` shows all signals that are retained.
        return hf.consumer(PERSON, start="retained")
    known = _known(hf._core, args.consumer)
    owners = "*" if known.owners is None else known.owners
    return hf.consumer(args.consumer, owners, variants=known.variants, kinds=known.kinds)


def _known(core: Core, name: str) -> Filter:
    """The filter of an existing consumer."""
    from ..errors import HoldfastError
    from ..index.queues import Filter

    every = {each["name"]: each for each in core.consumers.known()}
    if name in every:
        return Filter.from_json(every[name])
    error = HoldfastError(f"no consumer {name[:80]!a}")
    error.code = "not-found"
    near = nearest(name, every)
    error.fix = (
        f"did you mean {near}?"
        if near
        else (
            f"one of {', '.join(sorted(every)[:10])}"
            if every
            else "there is no consumer yet; --owner does not need one"
        )
    )
    raise error
