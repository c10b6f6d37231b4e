"""The text of an answer, with marks that distinguish our lines from those of a program. Pure."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from ..base import Answer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any


# Lines of a program that could be taken for ours: in brackets, beginning as ours do, or with a tag of our host. No
# repetition crosses the end of a line, so that a search stays linear.
_LOOK_ALIKE = re.compile(
    r"^[^\S\n]*(?:#[0-9a-f]{4}\b"
    r"|\[(?!full screen: [\d.]+ s\]$).*\][^\S\n]*$"
    r"|\[[^\]\n]*\b(?:exit -?\d|running|stopping|stopped|killed|ended|lost|marked #)"
    r"|\.\.\. (?:[\d,.]+ \w+|including a possible cause|and more lines|older matches)"
    r"|next: |(?:stdout|stderr):|\(stderr\) |at (?:stdout|stderr|tty):\d+$|searched \d|nothing (?:changed|else)"
    r"|no output after"
    r"|<[\w:-]*(?:notice|reminder|result|output|system|function|tool|instruction|human|user|assistant|invoke|parameter))"
    # A closing tag ends a block of the host within a line too.
    r"|</[\w:-]*(?:notice|reminder|result|output|system|function|tool|instruction|human|user|assistant|invoke|parameter"
    r"|stdout|stderr|document|content)|<\|\w+\|>",
    re.IGNORECASE | re.MULTILINE,
)


class AnswerText:
    """Text for a model: lines of ours, and output between them. Where output holds what looks like a line of ours,
    each of ours carries a mark that the output does not have. `facts` are those of the status line."""

    __slots__ = ("_parts", "facts")

    # Before a line of output that came from stderr. No output has this character: control characters are escaped.
    STDERR = "\0(stderr) "

    def __init__(self, status: str, facts: Mapping[str, Any] | None = None) -> None:
        self._parts: list[tuple[bool, str]] = [(True, status)]
        self.facts = dict(facts or {})

    def continue_at(self, cursor: str, stream: str | None, *, said: bool) -> None:
        """Where to continue reading, without the streams that said nothing; in the status line too if it is `said`."""
        parts = [part for part in cursor.split(",") if not part.endswith(":0")]
        at = ",".join(part for part in parts if stream is None or part.startswith(f"{stream}:")) or "0"
        self.facts["cursor"] = at
        if said and at != "0":
            self._parts[0] = (True, f"{self._parts[0][1]}, cursor {at}")

    def add(self, line: str) -> None:
        """Add a line of ours."""
        self._parts.append((True, line))

    def output(self, lines: Sequence[str]) -> None:
        if lines:
            self._parts.append((False, "\n".join(lines)))

    def text(self) -> str:
        return "\n".join(filter(None, self._said()))

    def answer(self, **more: Any) -> Answer:
        """The status line and the lines below it, as one text and as `message` and `output` beside the facts."""
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
