"""What a stop took and what it left, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import HoldfastError
from ...signals.words import spell
from ..answer import Answer
from .report import facts
from .wording import Sheet, ago, called, ending, label

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...model import Snapshot, Stopped

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
        return Answer(Sheet(lines[0]).text(), data[0], error=bool(failed))
    sheet = Sheet(f"{len(lines) - len(failed)} of {len(lines)} stopped" if lines else "nothing of yours runs")
    for line in lines:
        sheet.add(line)
    return Answer(sheet.text(), {"sessions": data}, error=bool(failed))


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
