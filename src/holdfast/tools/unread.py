"""A tool for agents that cannot be told by themselves: what happened to their sessions, until it is acknowledged."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..errors import BadArgument, HoldfastError
from ..signals.records import Signal
from .answer import Answer
from .parameters import STRINGS, Parameter
from .tool import Tool

if TYPE_CHECKING:
    from .toolset import Toolset

SIGNALS = Tool(
    "signals",
    "What happened to your sessions and was not acknowledged yet: ends, matches, questions.",
    (Parameter("ack", STRINGS, "ids you have dealt with, or upto:ID"),),
    repeats=True,
)
# So many ids are acknowledged by name; more of them by the last.
_NAMED = 3
_UPTO = "upto:"


async def signals(toolset: Toolset, ack: list[str] | None) -> Answer:
    consumer = toolset.consumer()
    settled = 0
    for id in ack or ():
        upto = id.removeprefix(_UPTO)
        try:
            settled += await (consumer.ack(id) if upto == id else consumer.ack(upto=upto))
        except BadArgument as problem:
            raise BadArgument("ack", problem.why, problem.fix) from None
    notice = await consumer.drain(toolset.name)
    ids, text = notice.ids, notice.text
    # What was shown is done when it is acknowledged: an answer may be lost on its way.
    await notice.release("shown, and not acknowledged yet")
    if not text:
        said = "no news of your sessions"
        if shown := await _shown(toolset):
            said += f"; {len(shown)} shown before and not acknowledged: signals(ack={_named(shown)})"
        return Answer(said, {"signals": [], "acknowledged": settled})
    data = {"signals": ids, "acknowledged": settled, "remaining": notice.remaining}
    return Answer(f"{text}\nshown until taken off the queue: signals(ack={_named(ids)})", data)


def _named(ids: list[str]) -> str:
    return json.dumps(ids if len(ids) <= _NAMED else [f"{_UPTO}{ids[-1]}"])


async def _shown(toolset: Toolset) -> list[str]:
    """What was not acknowledged and comes again after a while."""
    consumer = toolset.consumer()
    found = []
    for id in sorted(await consumer.untold()):
        try:
            told = await (await toolset.find(id)).told()
        except HoldfastError:
            continue  # its session was removed meanwhile
        found += [each for each in told if isinstance(each, Signal) and await consumer.is_open(each.id)]
    return [each.id for each in sorted(found, key=lambda each: each.at)]
