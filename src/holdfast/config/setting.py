"""What a setting is: a type, a default, bounds and a meaning, and how a given value is judged."""

from __future__ import annotations

import os

from ..errors import BadArgument
from ..model.units import seconds, shown, size_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    Value = bool | int | float | str | tuple[int, ...] | tuple[float, ...] | tuple[str, ...]

SIZE = "size"
DURATION = "duration"
SWITCH = "true or false"
COUNT = "whole number"
PATH = "absolute path"
WORD = "word"
TEXT = "text"
PROMPTS = "lines of kind=pattern"
DURATIONS = "list of durations"
CODES = "list of exit codes"
WORDS = "list of words"
NAMES = "list of names of variables"

# A list has no more than this; the longest that makes sense are all events, or all exit codes.
_LONGEST_LIST = 256


class Setting:
    """One setting. `low` and `high` bound numbers, also those of a list; `words` are the choices of a word."""

    __slots__ = ("default", "high", "key", "kind", "low", "meaning", "section", "words")

    def __init__(
        self,
        section: str,
        key: str,
        kind: str,
        default: Value,
        meaning: str,
        *,
        low: float = 0,
        high: float | None = None,
        words: tuple[str, ...] = (),
    ) -> None:
        self.section = section
        self.key = key
        self.kind = kind
        self.default = default
        self.meaning = meaning
        self.low = low
        self.high = high
        self.words = words

    @property
    def name(self) -> str:
        return f"{self.section}.{self.key}"

    @property
    def attribute(self) -> str:
        return f"{self.section}_{self.key}"

    @property
    def variable(self) -> str:
        return f"HOLDFAST_{self.section}_{self.key}".upper()

    def value(self, given: object) -> Value:
        """`given`, from the file or the environment, as what the setting holds; else BadArgument."""
        if self.kind == SIZE:
            return self._bounded(size_bytes(given, self.name))
        if self.kind == DURATION:
            return self._duration(given)
        if self.kind == COUNT:
            return self._count(given)
        if self.kind == DURATIONS:
            return self._several(given, self._duration)
        if self.kind == CODES:
            return self._several(given, self._count)
        if self.kind == WORDS:
            return self._several(given, self._word)
        if self.kind == NAMES:
            return self._several(given, self._name)
        if self.kind == SWITCH:
            given = {"true": True, "false": False}.get(given, given) if isinstance(given, str) else given
            if not isinstance(given, bool):
                raise BadArgument(self.name, f"{shown(given)} is neither true nor false", "give true or false")
            return given
        if self.kind == WORD:
            return self._word(given)
        given = self._text(given)
        if self.kind == PATH and (not os.path.isabs(given) or "\0" in given):
            raise BadArgument(self.name, f"{shown(given)} is no absolute path", f'such as "{self.default}"')
        if self.kind == PROMPTS:
            prompt_patterns(given, self.name)
        return given

    def _text(self, given: object) -> str:
        if not isinstance(given, str):
            raise BadArgument(self.name, f"{shown(given)} is no text", f'such as "{self.default}"')
        return given

    def _word(self, given: object) -> str:
        given = self._text(given)
        if given not in self.words:
            raise BadArgument(self.name, f"{shown(given)} is not known", "give " + " or ".join(self.words))
        return given

    def _name(self, given: object) -> str:
        given = self._text(given)
        if not (given.isascii() and given.isidentifier()):
            raise BadArgument(self.name, f"{shown(given)} is not the name of a variable", "such as MY_VARIABLE")
        return given

    def _duration(self, given: object) -> float:
        found = seconds(given, self.name)
        self._bounded(found)
        return found

    def _count(self, given: object) -> int:
        if isinstance(given, str) and given.removeprefix("-").isdecimal() and len(given) < 20:
            given = int(given)
        if not isinstance(given, int) or isinstance(given, bool):
            raise BadArgument(self.name, f"{shown(given)} is no whole number", f"such as {self.default}")
        self._bounded(given)
        return given

    def _several(self, given: object, judged: Callable[[object], Item]) -> tuple[Item, ...]:
        """A list of the file, or text (a variable has no lists) with commas or spaces between."""
        items = given.replace(",", " ").split() if isinstance(given, str) else given
        if not isinstance(items, (list, tuple)):
            raise BadArgument(self.name, f"{shown(given)} is no list", f'such as "{self.default}"')
        if len(items) > _LONGEST_LIST:
            raise BadArgument(self.name, f"{len(items)} are too many", f"give at most {_LONGEST_LIST}")
        return tuple([judged(item) for item in items])

    def _bounded(self, number: int | float) -> int | float:
        if number < self.low or (self.high is not None and number > self.high):
            bounds = f"at least {self.low:.10g}" if self.high is None else f"from {self.low:.10g} to {self.high:.10g}"
            raise BadArgument(self.name, f"{shown(number)} is out of bounds", f"give a number {bounds}")
        return number


if TYPE_CHECKING:
    from typing import TypeVar

    Item = TypeVar("Item", int, float, str)


def prompt_patterns(text: str, argument: str) -> dict[str, list[str]]:
    """Patterns by the kind of question they tell; BadArgument for one that is none, or that could take too long."""
    if not text.strip():
        return {}
    from ..runner.patterns import BadPattern
    from ..runner.prompts import Patterns

    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.strip():
            kind, _, pattern = line.partition("=")
            found.setdefault(kind.strip(), []).append(pattern)
    try:
        Patterns(found)
    except BadPattern as problem:
        raise BadArgument(argument, str(problem), "give lines such as question=^Which one> $") from None
    return found
