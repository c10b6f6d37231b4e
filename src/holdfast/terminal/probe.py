"""A client's own terminal is queried once before an attach: colours, size of a cell, kitty keyboard.

The queries end with one that every terminal answers (its type, DA1): a query not answered by then stays unanswered.
Input that is not an answer was typed and is kept. Answers that arrive too late are still removed from the input.
"""

from __future__ import annotations

import os
import re
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Color = list[int]


ANSWERS_WITHIN_S = 0.2

QUESTIONS = b"\x1b]10;?\x1b\\\x1b]11;?\x1b\\\x1b[16t\x1b[14t\x1b[?u\x1b[c"

_ANSWER = re.compile(
    rb"\x1b\](?P<layer>1[01]);(?P<color>[^\x07\x1b]{1,48})(?:\x07|\x1b\\)"
    rb"|\x1b\[(?P<what>[46]);(?P<height>\d{1,5});(?P<width>\d{1,5})t"
    rb"|\x1b\[\?(?P<keyboard>\d{1,3})u"
    rb"|\x1b\[\?(?P<type>[0-9;]{1,64})c"
)
_BEGUN = re.compile(
    rb"\x1b(?:\](?:1(?:[01](?:;(?:[^\x07\x1b]{1,48}\x1b?)?)?)?)?"
    rb"|\[(?:\?[0-9;]{0,64}|[46](?:;\d{0,5}(?:;\d{0,5})?)?)?)?\Z"
)
_CHANNELS = re.compile(rb"rgba?:([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})/([0-9a-fA-F]{1,4})(?:/[0-9a-fA-F]{1,4})?")
_HEX = re.compile(rb"#([0-9a-fA-F]{2})([0-9a-fA-F]{2})([0-9a-fA-F]{2})")


class Answers:
    """Takes answers out of the input of a terminal. `complete` once the last query was answered."""

    def __init__(self) -> None:
        self.foreground: Color | None = None
        self.background: Color | None = None
        self.cell: tuple[int, int] | None = None
        self.area: tuple[int, int] | None = None
        self.keyboard: int | None = None
        self.complete = False
        self._held = b""

    @property
    def has_partial(self) -> bool:
        """Whether the beginning of an answer waits for its rest."""
        return bool(self._held)

    def feed(self, data: bytes) -> bytes:
        """Return what was typed."""
        buffer, self._held = self._held + data, b""
        typed = bytearray()
        at = 0
        while at < len(buffer) and not self.complete:
            escape = buffer.find(b"\x1b", at)
            if escape < 0:
                break
            typed += buffer[at:escape]
            answer = _ANSWER.match(buffer, escape)
            if answer:
                self._take(answer)
                at = answer.end()
            elif _BEGUN.match(buffer, escape):
                self._held = buffer[escape:]
                return bytes(typed)
            else:
                typed += b"\x1b"
                at = escape + 1
        return bytes(typed) + buffer[at:]

    def release(self) -> bytes:
        """The rest did not arrive: return the beginning as typed."""
        held, self._held = self._held, b""
        return held

    def _take(self, answer: re.Match[bytes]) -> None:
        if answer["layer"]:
            color = _color(answer["color"])
            if answer["layer"] == b"10":
                self.foreground = color
            else:
                self.background = color
        elif answer["what"]:
            pixels = int(answer["height"]), int(answer["width"])
            if answer["what"] == b"6":
                self.cell = pixels
            else:
                self.area = pixels
        elif answer["keyboard"]:
            self.keyboard = int(answer["keyboard"])
        else:
            self.complete = True

    def describe(self, rows: int, cols: int) -> dict[str, Any]:
        """The argument of `attach`: foreground, background, height and width of a cell, each only if known."""
        known: dict[str, Any] = {}
        if self.foreground:
            known["foreground"] = self.foreground
        if self.background:
            known["background"] = self.background
        cell = self.cell
        if cell is None and self.area and rows and cols:
            cell = self.area[0] // rows, self.area[1] // cols
        if cell and all(cell):
            known["cell"] = list(cell)
        return known


def probe(reads: int, writes: int, within_s: float = ANSWERS_WITHIN_S) -> tuple[Answers, bytes]:
    """Query the terminal behind these descriptors, which is in raw mode. The answers, and what was typed meanwhile."""
    answers = Answers()
    typed = b""
    os.write(writes, QUESTIONS)
    until = time.monotonic() + within_s
    poll = select.poll()
    poll.register(reads, select.POLLIN)
    while not answers.complete:
        left = until - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            break
        data = os.read(reads, 4096)
        if not data:
            break
        typed += answers.feed(data)
    return answers, typed


def _color(text: bytes) -> Color | None:
    """Red, green and blue from 0 to 255."""
    found = _CHANNELS.fullmatch(text) or _HEX.fullmatch(text)
    if found is None:
        return None
    return [int(part, 16) * 255 // (16 ** len(part) - 1) for part in found.groups()[:3]]
