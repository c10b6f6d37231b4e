"""What `stop` and `kill` have in common: many sessions at once, one line for each, the worst outcome as exit code."""

from __future__ import annotations

from .output import say, say_json
from .status import process_words
from .tables import printable, span

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from ..errors import HoldfastError
    from ..host.api import Holdfast
    from ..model import Stopped

SURVIVED = 1


def find_all(hf: Holdfast, refs: Iterable[str]) -> tuple[list[str], list[tuple[str, HoldfastError]]]:
    """The ids that are meant, each once, and what could not be found."""
    from ..errors import HoldfastError

    ids: dict[str, None] = {}
    missing: list[tuple[str, HoldfastError]] = []
    for ref in refs:
        try:
            ids[hf.get(ref).id] = None
        except HoldfastError as problem:
            missing.append((ref, problem))
    return list(ids), missing


def end_all(hf: Holdfast, refs: Iterable[str], grace: float | None, *, as_json: bool) -> int:
    """End them all side by side and say what came of each. Not zero if anything survived or was not there."""
    ids, missing = find_all(hf, refs)
    answers = hf.stop_all(ids, grace) if ids else []
    worst = 0
    told: list[dict[str, Any]] = []
    for ref, problem in missing:
        worst = worst or problem.exit_code
        told.append({"ref": ref, "error": problem.to_json()})
        if not as_json:
            say(f"{printable(ref)}: {printable(problem.message)}; {printable(problem.fix)}")
    for answer in answers:
        if not answer.done:
            worst = worst or getattr(answer.error, "exit_code", SURVIVED)
        told.append(answer.to_json())
        if not as_json:
            say(f"{answer.id}: {in_words(answer)}")
    if as_json:
        say_json(told)
    return worst


def in_words(answer: Stopped) -> str:
    if answer.error is not None:
        message = getattr(answer.error, "message", str(answer.error))
        return f"{printable(message)}; {printable(getattr(answer.error, 'fix', ''))}"
    if answer.survivors:
        left = [printable(process_words(each)) for each in answer.survivors]
        return "NOT ended, still there: " + ", ".join(left + _more(answer.survivors_more))
    if answer.already:
        return "already over"
    count = len(answer.found) + answer.found_more
    processes = "1 process" if count == 1 else f"{count} processes"
    return f"stopped, {processes} gone after {span(answer.took_s)}" + (f" ({answer.rung})" if answer.rung else "")


def _more(count: int) -> list[str]:
    return [f"and {count} more"] if count else []
