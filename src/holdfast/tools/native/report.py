"""Matches, a list of sessions, and a stop in an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import HoldfastError
from ...signals.wording import spell
from ..base import Answer
from ..owner_sessions import is_extinct
from .answer_text import AnswerText
from .output import clip, shown
from .words import ago, call, called, ending, facts, label, ref, size, state_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...model import Snapshot, Stopped
    from ...sessions.search import Hit
    from .seen import Seen


# Matches of a search.


_OLDER_NAMED = 5


def hits(answer_text: AnswerText, session: Snapshot, found: Sequence[Hit], budget: int, limit: int) -> int:
    """Matches with the lines around them, newest first, and where older ones are. Returns how many are shown. One
    more than `limit` in `found` means that there may be others."""
    room = budget
    count = 0
    for hit in found:
        block = [f"  {line}" for line in hit.before] + [f"> {hit.text}"] + [f"  {line}" for line in hit.after]
        block = [_short(line, max(80, budget // 4)) for line in block]
        if count == limit or (count and _price(block) > room):
            break
        near = block if count else _nearest(block, len(hit.before), room)
        room -= _price(near)
        answer_text.add(f"at {hit.stream}:{hit.offset}")
        answer_text.output(near)
        if left := len(block) - len(near):
            answer_text.add(f"... {left} line{'' if left == 1 else 's'} around it left out")
        count += 1
    older = found[count:]
    if older:
        places = ", ".join(f"{hit.stream}:{hit.offset}" for hit in older[:_OLDER_NAMED])
        more = ", ..." if len(older) > _OLDER_NAMED or len(found) > limit else ""
        step = call("read", id=ref(session), since=f"{older[0].stream}:{older[0].offset}", stream=older[0].stream)
        answer_text.add(f"... older matches at {places}{more}; {step}")
    return count


def _price(block: Sequence[str]) -> int:
    return sum(len(line) + 1 for line in block) + 24


def _nearest(block: list[str], at: int, room: int) -> list[str]:
    """The line of a match, the number `at`, and as many of those around it as fit, the farthest left out first."""
    first, last, price = 0, len(block) - 1, _price(block)
    while price > room and first < last:
        if at - first > last - at:
            price -= len(block[first]) + 1
            first += 1
        else:
            price -= len(block[last]) + 1
            last -= 1
    return block[first : last + 1]


def _short(line: str, limit: int) -> str:
    return clip(shown(line), limit)


# All sessions of an agent, a line each.


# Of those that ended; the rest are counted, and found by their names.
_ENDED_MAX = 50
# A line is this long, so that twenty are less than 2,000 characters; the command gets what is left of it.
_LINE_CHARACTERS = 96
_COMMAND_LEAST = 12
_NAME_CHARACTERS = 24


def listed(sessions: Sequence[Snapshot], seen: Seen, *, all: bool) -> Answer:
    live = [each for each in sessions if not is_extinct(each)]
    ended = [each for each in sessions if is_extinct(each)]
    running = sum(each.exit is None for each in live)
    shown = [*live, *ended[-_ENDED_MAX:]] if all else live
    known = seen.all()
    answer_text = AnswerText(_heading(running, len(live) - running, len(ended), len(shown), all))
    data = []
    for each in shown:
        unread = seen.unread(each, known)
        answer_text.add(_line(each, unread))
        data.append(facts(each, command=each.command, unread=unread))
    return Answer(answer_text.text(), {"sessions": data, "running": running, "ended": len(ended) + len(live) - running})


def _heading(running: int, outlived: int, ended: int, shown: int, all: bool) -> str:
    """`outlived`: of those that ended, the ones with processes that still run; they are shown with those that run."""
    said = f"{running} running" if running else "no session is running"
    if outlived:
        said += f", {outlived} ended with processes that still run"
    if not ended:
        return said
    if not all:
        return f"{said}; {ended} ended, list(all=true) shows them"
    left = running + outlived + ended - shown
    return f"{said}, {ended} ended" + (f"; the {left} oldest are not shown" if left else "")


def _line(session: Snapshot, unread: int) -> str:
    name = f" {label(session.name, _NAME_CHARACTERS)}" if session.name else ""
    head = f"{session.id}{name} {state_of(session)}: "
    said = []
    if session.exit is not None and session.exit.survivors:
        count = len(session.exit.survivors) + session.exit.survivors_more
        if session.stopping:
            said.append("; 1 process is being ended" if count == 1 else f"; {count} processes are being ended")
        else:
            said.append("; 1 process still runs" if count == 1 else f"; {count} processes still run")
    if session.needs_input:
        said.append("; waits for input")
    elif session.exit is None and (session.metadata.get("ready") or {}).get("ok", True) is None:
        said.append("; not ready yet")
    if unread:
        said.append(f"; {size(unread)} unread")
    beside = "".join(said)
    return head + label(session.command, max(_COMMAND_LEAST, _LINE_CHARACTERS - len(head) - len(beside))) + beside


# What a stop took and what it left, in words.


_NAMED = 5


def stopped(sessions: Sequence[Snapshot], answers: Sequence[Stopped | BaseException]) -> Answer:
    lines, data = [], []
    for session, answer in zip(sessions, answers, strict=True):
        if isinstance(answer, HoldfastError):
            lines.append(f"{called(session)} not stopped: {answer.message}")
            data.append(facts(session, error=answer.to_json()))
        elif not isinstance(answer, BaseException):
            lines.append(f"{called(session)} {_said(session, answer)}")
            data.append(facts(session, **_facts(answer)))
    failed = [answer for answer in answers if isinstance(answer, HoldfastError) or answer_left(answer)]
    if len(lines) == 1:
        return Answer(AnswerText(lines[0]).text(), data[0], error=bool(failed))
    answer_text = AnswerText(
        f"{len(lines) - len(failed)} of {len(lines)} stopped" if lines else "no session of yours is running"
    )
    for line in lines:
        answer_text.add(line)
    return Answer(answer_text.text(), {"sessions": data}, error=bool(failed))


def answer_left(answer: Stopped | BaseException) -> bool:
    return not isinstance(answer, BaseException) and bool(answer.survivors)


def _said(session: Snapshot, answer: Stopped) -> str:
    if answer.already:
        return f"had ended: {ending(session)}, {ago(session.ended_at, session.observed_at)}; nothing to stop"
    count = len(answer.found) + answer.found_more
    how = ending(session) if session.exit is not None else "NOT ended"
    took = f"{how} in {spell(answer.took_s)}, {count} process{'' if count == 1 else 'es'}"
    if answer.rung:
        took += f", {answer.rung}"
    if not answer.survivors:
        return took
    named = [f"{each.get('pid')} {label(str(each.get('command') or ''), 100)}" for each in answer.survivors[:_NAMED]]
    more = len(answer.survivors) - _NAMED + answer.survivors_more
    return f"{took}; SURVIVED: {', '.join(named)}" + (f" and {more} more" if more > 0 else "")


def _facts(answer: Stopped) -> dict[str, Any]:
    def named(each: Any) -> dict[str, Any]:
        return {"pid": each.get("pid"), "command": each.get("command")}

    return {
        "already": answer.already,
        "took_s": answer.took_s,
        "found": len(answer.found) + answer.found_more,
        "survivors": [named(each) for each in answer.survivors],
        "how": answer.rung,
    }
