"""What is typed at a program of ours that draws the whole screen: names of keys, from what a terminal sends."""

from __future__ import annotations

import codecs
import re

# How long an escape may be the beginning of more: terminals send a key at once, networks may cut it.
HOLD_S = 0.05
_LONGEST = 64

_SEQUENCE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|O[ -~]|[^\x1b\[O])", re.DOTALL)
_FINALS = {"A": "up", "B": "down", "C": "right", "D": "left", "H": "home", "F": "end"}
_NUMBERS = {"1": "home", "4": "end", "5": "page-up", "6": "page-down", "7": "home", "8": "end"}
_SINGLE = {"\r": "enter", "\n": "enter", "\t": "tab", "\x7f": "backspace", "\x08": "backspace"}


class Keypresses:
    """Fed with bytes. A key is one character, or a name of several; what has no name here is left out."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("ignore")
        self._held = ""

    @property
    def holds(self) -> bool:
        """Whether something may be the beginning of a key: to be released if nothing follows."""
        return bool(self._held)

    def feed(self, data: bytes) -> list[str]:
        text, self._held = self._held + self._decoder.decode(data), ""
        keys: list[str] = []
        at = 0
        while at < len(text):
            if text[at] != "\x1b":
                keys += _character(text[at])
                at += 1
                continue
            found = _SEQUENCE.match(text, at)
            if found is None:
                if text.startswith("\x1b\x1b", at):
                    keys.append("escape")
                    at += 1
                    continue
                self._held = text[at:] if len(text) - at <= _LONGEST else ""
                break
            keys += _sequence(found.group())
            at = found.end()
        return keys

    def release(self) -> list[str]:
        """Nothing followed: the escape was a key of its own."""
        held, self._held = self._held, ""
        return ["escape"] if held == "\x1b" else []


def _character(character: str) -> list[str]:
    if character in _SINGLE:
        return [_SINGLE[character]]
    if "\x01" <= character <= "\x1a":
        return ["ctrl-" + chr(ord(character) + 0x60)]
    return [character] if character.isprintable() else []


def _sequence(text: str) -> list[str]:
    final = text[-1]
    if text[1] == "O" or (text[1] == "[" and final != "~"):
        # With modifiers (`1;2A`) it is the same key to us.
        name = "enter" if text == "\x1bOM" else _FINALS.get(final)
    elif text[1] == "[":
        name = _NUMBERS.get(text[2:-1].partition(";")[0])
    else:
        name = None
    return [] if name is None else [name]
