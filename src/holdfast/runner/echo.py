"""What a terminal shows because it was typed, told from what the command prints. Pure: time is given.

An echoed line says what was typed, mostly behind a prompt. So what was typed is taken out of a line that matches, and
the rest is judged again.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

# The time that a shell may take to show what it was given.
MEMORY_S = 2.0
# A paste is echoed too, but nobody watches for all of a large one.
_LINES_MAX = 64
_LINE_MAX_CHARS = 4096
# Keys that are no text, and the marks around a paste.
_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|.)?")
_ERASE, _KILL = "\x7f\x08", "\x15"
_AT_PROMPT = re.compile("[$#%>\u276f\u00bb\u279c\u203a\u03bb]\\s?$")


class _Typed:
    """A line of it, and when its last character came. `shown`: its echo was seen."""

    __slots__ = ("at", "shown", "text")

    def __init__(self, at: float) -> None:
        self.text = ""
        self.at = at
        self.shown = False


class Echo:
    def __init__(self) -> None:
        # The last is the line that is not ended.
        self._typed: list[_Typed] = [_Typed(0.0)]

    def typed(self, data: bytes, now: float) -> None:
        for character in _SEQUENCE.sub("", data.decode("utf-8", "replace")):
            line = self._typed[-1]
            line.at = now
            if character in "\r\n":
                if line.text:
                    self._typed.append(_Typed(now))
            elif character in _ERASE:
                line.text = line.text[:-1]
            elif character == _KILL:
                line.text = ""
            elif character.isprintable() or character == "\t":
                line.text = (line.text + character)[-_LINE_MAX_CHARS:]
        del self._typed[:-_LINES_MAX]

    def explains(self, text: str, now: float, matches: Callable[[str], bool], *, whole: bool) -> bool:
        """Is it only for what was typed that this line matches? What was typed is shown by one line: the next that says
        it is the command's answer. But a shell that was given it too early shows it again, at its prompt."""
        for line in self._typed:
            if not line.text or now - line.at > MEMORY_S:
                continue
            before, found, behind = text.partition(line.text)
            if not found or matches(before + behind):
                continue
            if line.shown and not _AT_PROMPT.search(before):
                continue
            line.shown = line.shown or whole
            return True
        return False
