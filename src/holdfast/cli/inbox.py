"""Whose signals are meant: the consumer that --owner or --consumer names, else that of the person at the terminal."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import Any

    from ..host.api import Holdfast, Session
    from ..host.core import Core
    from ..index.audience import Filter
    from ..signals.consumer import Consumer
    from ..signals.listing import Listing, Waiting


def add_consumer(parser: argparse.ArgumentParser, verb: str) -> None:
    whose = parser.add_mutually_exclusive_group()
    whose.add_argument("--owner", metavar="KEY", help=f"{verb} this owner")
    whose.add_argument("--consumer", metavar="NAME", help=f"{verb} this consumer")


def listing(core: Core, args: argparse.Namespace) -> Listing:
    """To look, without any effect."""
    from ..home import check_owner
    from ..index.audience import Filter
    from ..signals.names import default_name

    if args.consumer is not None:
        return core.consumers.listing(args.consumer, _known(core, args.consumer))
    if args.owner is not None:
        return core.consumers.listing(default_name(args.owner), Filter([check_owner(args.owner)]))
    return persons(core)


async def parked(core: Core, args: argparse.Namespace) -> list[Waiting]:
    """What was given up on: of the consumer that is meant, and where none is named, of every one there is."""
    if args.consumer is not None or args.owner is not None:
        return await listing(core, args).waiting(args.lines, parked=True)
    from ..index.audience import Filter

    found: list[Waiting] = []
    for each in core.consumers.known():
        if each["parked"]:
            found += await core.consumers.listing(each["name"], Filter.from_json(each)).waiting(parked=True)
    found.sort(key=lambda each: each.pos)
    return found if args.lines is None else found[max(0, len(found) - args.lines) :]


def with_pending(core: Core, sessions: Sequence[Session]) -> list[dict[str, Any]]:
    """As JSON, with how many of their signals wait; null where the index does not say."""
    from ..errors import IndexBusy
    from ..host.driver import drive
    from ..host.verbs import pending_signals

    try:
        waiting = drive(pending_signals(core, sessions))
    except IndexBusy:
        waiting = {}
    return [{**session.to_json(), "pending_signals": waiting.get(session.id)} for session in sessions]


def persons(core: Core) -> Listing:
    """What waits for whoever sits here."""
    return core.consumers.listing()


def consumer(hf: Holdfast, args: argparse.Namespace) -> Consumer:
    """To act. It is made if it is not there, unless its name is all that is known of it."""
    from ..signals.names import PERSON

    if args.owner is not None:
        return hf.signals(args.owner)
    if args.consumer is None:
        # Until the first `hold ack` made it, who looks sees all that is retained.
        return hf.consumer(PERSON, start="retained")
    known = _known(hf._core, args.consumer)
    owners = "*" if known.owners is None else known.owners
    return hf.consumer(args.consumer, owners, variants=known.variants, kinds=known.kinds)


def _known(core: Core, name: str) -> Filter:
    """What a consumer wants that somebody made before."""
    from ..errors import HoldfastError
    from ..index.audience import Filter

    every = {each["name"]: each for each in core.consumers.known()}
    if name in every:
        return Filter.from_json(every[name])
    error = HoldfastError(f"no consumer {name[:80]!a}")
    error.code = "not-found"
    error.fix = f"one of {', '.join(sorted(every)[:10])}" if every else "there is none yet: --owner needs none"
    raise error
