"""How sessions, times and sizes are said to a model, and what tells our lines from those of a program. Pure."""

from __future__ import annotations

import re
import secrets
from datetime import datetime
from typing import TYPE_CHECKING

from ...model import FINAL_STATES, LOST, STALE, UNREACHABLE
from ...signals.quoting import clean, visible
from ...signals.words import spell
from ..answer import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ...model import Snapshot

_QUOTED_CHARACTERS = 100
# Lines of a program that could be taken for ours: in brackets, beginning as ours do, or with a tag of our host. Nothing
# that repeats goes over the end of a line: from each of many lines it would go to the end of them all.
_LOOK_ALIKE = re.compile(
    r"^[^\S\n]*(?:#[0-9a-f]{4}\b"
    r"|\[(?!full screen: [\d.]+ s\]$).*\][^\S\n]*$"
    r"|\[[^\]\n]*\b(?:exit -?\d|running|stopping|stopped|killed|ended|lost|marked #)"
    r"|\.\.\. (?:[\d,.]+ \w+|among them|and so on|older matches)"
    r"|next: |(?:stdout|stderr):|\(stderr\) |at (?:stdout|stderr|tty):\d+$|searched \d|nothing (?:changed|behind|else)"
    r"|<[\w:-]*(?:notice|reminder|result|output|system|function|tool|instruction|human|user|assistant|invoke|parameter))"
    # What ends a block of its host does so within a line too.
    r"|</[\w:-]*(?:notice|reminder|result|output|system|function|tool|instruction|human|user|assistant|invoke|parameter"
    r"|stdout|stderr|document|content)|<\|\w+\|>",
    re.IGNORECASE | re.MULTILINE,
)
_LIMITS = {
    "overall_timeout": "ended by timeout_s",
    "idle_timeout": "ended by idle_timeout_s",
    "ttl": "ended by its time to live",
    "owner_gone": "ended with its owner",
    "out_of_memory": "killed, out of memory",
    "lost": "lost, nobody saw how it ended",
}

_WARNINGS = {
    "tty_raw": "the program reads single keys and may not take this as an end",
    "canonical_limit": "a line this long may be cut by the terminal",
}
_EVIDENCE = {
    "blocked_read": "it reads its input",
    "polled_read": "it waits for input",
    "echo_off": "echo is off",
    "prompt_mark": "it marked a prompt",
    "pattern": "the line looks like a question",
    "bell": "it rang the bell",
}


class Sheet:
    """Text for a model: lines of ours, and output between them. Where output holds what looks like a line of ours,
    each of ours carries a mark that the output does not have. `facts` are those of the moment that the status tells."""

    __slots__ = ("_parts", "facts")

    # Before a line of output that came from stderr. No output has this character: what acts is spelled out.
    STDERR = "\0(stderr) "

    def __init__(self, status: str, facts: Mapping[str, Any] | None = None) -> None:
        self._parts: list[tuple[bool, str]] = [(True, status)]
        self.facts = dict(facts or {})

    def also(self, said: str) -> None:
        """More in the status line."""
        self._parts[0] = (True, f"{self._parts[0][1]}, {said}")

    def add(self, line: str) -> None:
        """One of ours."""
        self._parts.append((True, line))

    def output(self, lines: Sequence[str]) -> None:
        if lines:
            self._parts.append((False, "\n".join(lines)))

    def text(self) -> str:
        return "\n".join(filter(None, self._said()))

    def answer(self, **more: Any) -> Answer:
        """The status line and what stands below it, as one text and as `message` and `output` beside the facts."""
        message, output = self._said()
        data = {**self.facts, **more, "message": message, "output": output}
        return Answer("\n".join(filter(None, (message, output))), data)

    def _said(self) -> tuple[str, str]:
        output = "\n".join(text for ours, text in self._parts if not ours)
        status, rest = self._parts[0][1], self._parts[1:]
        if not _LOOK_ALIKE.search(output):
            return f"[{status}]", "\n".join(text for _, text in rest).replace("\0", "").rstrip("\n")
        mark = "#" + secrets.token_hex(2)
        while mark in output:
            mark = "#" + secrets.token_hex(4)
        body = "\n".join(f"{mark} {text}" if ours else text for ours, text in rest)
        first = f"[{mark} {status}; what is not marked {mark} is program output]"
        return first, body.replace(self.STDERR, f"({mark} stderr) ").rstrip("\n")


def ref(session: Snapshot) -> str:
    """What a call names it by. A name may be another's once this one has ended."""
    return session.name if session.name and session.state not in FINAL_STATES else session.id


def called(session: Snapshot) -> str:
    return f"{session.name} {session.id}" if session.name else session.id


def call(tool: str, **arguments: object) -> str:
    """A call as a model writes it."""
    return f"{tool}({', '.join(f'{name}={_value(value)}' for name, value in arguments.items())})"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_value, value)) + "]"
    return quoted(value) if isinstance(value, str) else str(value)


def quoted(text: str, limit: int = _QUOTED_CHARACTERS) -> str:
    """Somebody's words inside a line of ours."""
    return '"' + label(text, limit).replace("\\", "\\\\").replace('"', '\\"') + '"'


def label(text: str, limit: int = _QUOTED_CHARACTERS) -> str:
    words = visible(" ".join(clean(text).split()))
    return words if len(words) <= limit else words[: limit - 3] + "..."


def standing(session: Snapshot) -> str:
    """`exit 1 after 12.4s`, `running 10s`, and what is known beside it."""
    took = spell(seconds(session))
    if session.exit is not None:
        return f"{ending(session)} after {took}"
    if session.state == STALE:
        return f"running {took}, but its supervisor is gone"
    if session.state == UNREACHABLE:
        return f"running {took}, but its supervisor does not answer"
    if session.stopping:
        return f"stopping, {took} old"
    return f"running {took}"


def ending(session: Snapshot) -> str:
    exit = session.exit
    if exit is None:
        return session.state
    if exit.cause == "stop":
        by = "you" if exit.by == session.owner else label(exit.by or "", 40)
        how = f"stopped by {by}" if by else "stopped"
    else:
        how = _LIMITS.get(exit.cause, "")
    if exit.code is not None:
        code = f"exit {exit.code}"
    else:
        code = f"signal {exit.signal.removeprefix('SIG')}" if exit.signal else ""
        if code and not how:
            how, code = f"killed by {code}", ""
    return f"{how} ({code})" if how and code else how or code or ("lost" if session.state == LOST else "ended")


def seconds(session: Snapshot) -> float:
    """How long it ran, or has been running."""
    begin = session.started_at or session.created_at
    end = session.ended_at or session.observed_at
    return max(0.0, (moment(end) - moment(begin)).total_seconds()) if begin and end else 0.0


def ago(at: str | None, now: str) -> str:
    return spell(max(0.0, (moment(now) - moment(at)).total_seconds())) + " ago" if at else "earlier"


def moment(at: str) -> datetime:
    return datetime.fromisoformat(at)


def size(count: int) -> str:
    """120 bytes, 3.4 KB, 1.2 MB."""
    if count < 1000:
        return "1 byte" if count == 1 else f"{count} bytes"
    return f"{count / 1000:.1f} KB" if count < 999_950 else f"{count / 1_000_000:,.1f} MB"


def lines_and_bytes(lines: int, count: int) -> str:
    return f"{lines:,} line{'' if lines == 1 else 's'}, {size(count)}"


def cursor(offsets: dict[str, int]) -> str:
    """A stream that it does not name is read from its beginning: one that said nothing need not be named."""
    return ",".join(f"{stream}:{offset}" for stream, offset in offsets.items() if offset) or "0"


def waits(session: Snapshot) -> str:
    """What the command wants of somebody, with the evidence; empty where nothing tells so."""
    found: dict[str, Any] | None = session.needs_input
    if not found:
        return ""
    evidence = " and ".join(_EVIDENCE.get(each, str(each)) for each in found.get("evidence") or ())
    kind = "a secret" if found.get("secret") else "input"
    asked = f" at {quoted(found['line'], 80)}" if found.get("line") else ""
    return f"waits for {kind}{asked}" + (f" ({evidence})" if evidence else "")


def warning(said: str) -> str:
    """Of `name: explanation`, or a name alone."""
    name, _, explanation = said.partition(": ")
    return explanation or _WARNINGS.get(name, name)
