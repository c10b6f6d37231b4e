"""All sessions of an agent, a line each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...model import FINAL_STATES
from ..answer import Answer
from .report import facts
from .wording import Sheet, label, size, standing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...model import Snapshot
    from .seen import Seen

# Of those that ended; the rest are counted, and found by their names.
_ENDED_MAX = 50
# A line is this long, so that twenty are less than 2,000 characters; the command gets what is left of it.
_LINE_CHARACTERS = 96
_COMMAND_LEAST = 12
_NAME_CHARACTERS = 24


def listed(sessions: Sequence[Snapshot], seen: Seen, *, all: bool) -> Answer:
    live = [each for each in sessions if not _over(each)]
    ended = [each for each in sessions if _over(each)]
    running = sum(each.exit is None for each in live)
    shown = [*live, *ended[-_ENDED_MAX:]] if all else live
    known = seen.all()
    sheet = Sheet(_heading(running, len(live) - running, len(ended), len(shown), all))
    data = []
    for each in shown:
        unread = seen.unread(each, known)
        sheet.add(_line(each, unread))
        data.append(facts(each, command=each.command, unread=unread))
    return Answer(sheet.text(), {"sessions": data, "running": running, "ended": len(ended) + len(live) - running})


def _over(session: Snapshot) -> bool:
    return session.state in FINAL_STATES and not (session.exit and session.exit.survivors)


def _heading(running: int, outlived: int, ended: int, shown: int, all: bool) -> str:
    """`outlived`: of those that ended, the ones with processes that live on; they are shown with those that run."""
    said = f"{running} running" if running else "nothing runs"
    if outlived:
        said += f", {outlived} ended with processes that live on"
    if not ended:
        return said
    if not all:
        return f"{said}; {ended} ended, list(all=true) shows them"
    left = running + outlived + ended - shown
    return f"{said}, {ended} ended" + (f"; the {left} oldest are not shown" if left else "")


def _line(session: Snapshot, unread: int) -> str:
    name = f" {label(session.name, _NAME_CHARACTERS)}" if session.name else ""
    who = f"{session.id}{name} {standing(session)}: "
    said = []
    if session.exit is not None and session.exit.survivors:
        count = len(session.exit.survivors) + session.exit.survivors_more
        if session.stopping:
            said.append("; 1 process is being ended" if count == 1 else f"; {count} processes are being ended")
        else:
            said.append("; 1 process lives on" if count == 1 else f"; {count} processes live on")
    if session.needs_input:
        said.append("; waits for input")
    elif session.exit is None and (session.metadata.get("ready") or {}).get("ok", True) is None:
        said.append("; not ready yet")
    if unread:
        said.append(f"; {size(unread)} unread")
    beside = "".join(said)
    return who + label(session.command, max(_COMMAND_LEAST, _LINE_CHARACTERS - len(who) - len(beside))) + beside
