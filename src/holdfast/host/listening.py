"""Who listens for signals, and what became of those that nobody took: for `hold doctor`."""

from __future__ import annotations

import os

from ..errors import HoldfastError
from ..home import is_id
from ..index.pointers import Progress
from ..model import Finding
from ..runner.signalfile import HOME

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..home import Home
    from ..signals.consumers import Consumers

OK, WARNING = "ok", "warning"
_CHECK = "signals"
# So many bad lines of one file are told, and about so many in all; the rest is counted.
_LINES_NAMED = 3
_NAMED_MAX = 20
_NOTHING_TO_DO = "nothing to do: the others are read"


def examine(home: Home, consumers: Consumers) -> list[Finding]:
    """Consumers, those that were dropped, signals that were given up on, lines that are none."""
    try:
        known, dropped = consumers.known(), consumers.dropped()
    except HoldfastError as problem:
        return [Finding(_CHECK, WARNING, problem.message, fix=problem.fix)]
    waiting = sum(each["waiting"] for each in known)
    found = [Finding(_CHECK, OK, f"{len(known)} consumers, {waiting} signals wait for them")]
    for each in known:
        if each["parked"]:
            text = f"{each['parked']} signals of consumer {each['name']} were given up on: whoever took them died"
            fix = f"`hold signals --parked --consumer {each['name']}` shows them, `hold ack` takes them out"
            found.append(Finding(_CHECK, WARNING, text, fix=fix))
    if consumers.catchup.trouble is not None:
        found.append(Finding(_CHECK, WARNING, consumers.catchup.trouble, fix="see that the home can be written"))
    for each in dropped:
        text = f"consumer {each['name']} was dropped at {each['dropped_at']}: unused since {each['used_at']}"
        lost = f", with {each['waiting']} signals waiting" if each["waiting"] else ""
        found.append(Finding(_CHECK, OK, text + lost))
    return [*found, *_damaged(home)]


def people(home: Home) -> list[Finding]:
    """The ways to people on which something was not delivered, or which are over."""
    from ..signals.standing import troubles

    fix = "see that it works, and change its address in the configuration"
    return [Finding("people", WARNING, text, fix=fix) for text in troubles(home.path)]


def _damaged(home: Home) -> list[Finding]:
    """Of all that is retained: what was read to its end before is no less damaged."""
    from ..signals.indexing import read_on

    found: list[Finding] = []
    more = 0
    for id in [HOME, *sorted(filter(is_id, os.listdir(home.sessions)))]:
        whose = "the home" if id == HOME else id
        try:
            reading = read_on(home, Progress(id), writer_lives=True)
        except OSError as problem:
            found.append(Finding(_CHECK, WARNING, f"the signals of {whose} cannot be read: {problem.strerror}"))
            continue
        bad = [] if reading is None else reading.bad
        shown = bad[: _LINES_NAMED if len(found) < _NAMED_MAX else 0]
        more += len(bad) - len(shown)
        for offset, why in shown:
            text = f"the line at {offset} of the signals of {whose} is none: {why}"
            found.append(Finding(_CHECK, WARNING, text, fix=_NOTHING_TO_DO))
    if more:
        found.append(Finding(_CHECK, WARNING, f"{more} more lines of signals are none", fix=_NOTHING_TO_DO))
    return found
