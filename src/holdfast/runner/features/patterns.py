"""Patterns: a literal, or a regular expression with a bound on its CPU time.

The engine of the standard library can take for ever on a short line. So patterns with constructs that allow this are
refused here, and all searches run under a timer.
"""

from __future__ import annotations

import re

from ...core.kernel_signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import FrameType
    from typing import Any

    from ...core.vt.text import Line


# What to look for in the lines of a command: a literal, or a regular expression that cannot take long.


PATTERNS_MAX = 16
PATTERN_MAX_CHARS = 512
# If there are more alternatives than these, they are not searched for one by one in raw output.
_NEEDLES_MAX = 8
# A repetition whose upper bound is above this counts as unlimited.
_LONG = 16
REPEATS = ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT")
REFERENCES = ("GROUPREF", "GROUPREF_IGNORE", "GROUPREF_LOC_IGNORE", "GROUPREF_UNI_IGNORE", "GROUPREF_EXISTS")


class BadPattern(ValueError):
    """An invalid pattern, or one that could take too long."""


class Needle:
    """Bytes without which no line matches. `folded` ones are in lower case, and match any case of ASCII."""

    __slots__ = ("folded", "raw")

    def __init__(self, raw: bytes, folded: bool) -> None:
        self.raw = raw
        self.folded = folded


class Pattern:
    """As the spec of a session has it. Raises BadPattern."""

    __slots__ = ("_literal", "before", "id", "ignore_case", "needles", "once", "regex", "stream", "text")

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.id: str = settings.get("id", "")
        self.stream: str = settings.get("stream", "any")
        self.ignore_case: bool = settings.get("ignore_case", False)
        self.once: bool = settings.get("once", False)
        # How many of the lines before a match are shown with it.
        self.before: int = settings.get("before", 0)
        self._literal: str | None = None
        self.regex: re.Pattern[str] | None = None
        source = settings.get("literal")
        if source is not None:
            _check_length(source)
            if any(end in source for end in "\r\n"):
                raise BadPattern("a literal cannot contain a line end")
            # As a user would write it.
            self.text: str = source
            if self.ignore_case:
                self.regex = re.compile(re.escape(source), re.IGNORECASE)
            else:
                self._literal = source
            # None: no bytes are certain, and every line has to be searched.
            self.needles: list[Needle] | None = _longest_run([ord(character) for character in source], self.ignore_case)
        else:
            source = settings["regex"]
            _check_length(source)
            self.text = f"/{source}/{'i' if self.ignore_case else ''}"
            self.regex, parsed = compile_bounded(source, re.IGNORECASE if self.ignore_case else 0)
            self.needles = _needed(parsed.data, bool(self.regex.flags & re.IGNORECASE))
        if self.needles is not None and len(self.needles) > _NEEDLES_MAX:
            self.needles = None

    def applies_to(self, stream: str) -> bool:
        return self.stream in ("any", stream)

    def matches(self, line: Line, *, matched_before: bool = False) -> bool:
        """Whether this line, or part of a line, matches in what is new. With `matched_before`, the part before matched:
        a match that begins there is the same. A regex may take long: make sure that a timer runs."""
        if self.regex is not None:
            return self._searched(self.regex, line, matched_before)
        literal = self._literal
        assert literal is not None
        if not line.fresh:
            return literal in line.text
        return line.text.find(literal, line.fresh if matched_before else max(0, line.fresh - len(literal) + 1)) >= 0

    def _searched(self, regex: re.Pattern[str], line: Line, matched_before: bool) -> bool:
        # The line does not end where a part is cut; neither does it begin where a later part does.
        text = line.text + "\0" if line.cut else line.text
        if not line.fresh:
            return regex.search(text) is not None
        if matched_before:
            return regex.search(text, line.fresh) is not None
        return any(found.end() > line.fresh for found in regex.finditer(text, 1))


def check(settings: Mapping[str, Any]) -> None:
    """Raises BadPattern for what a runner would refuse."""
    Pattern(settings)


def compile_bounded(source: str, flags: int = 0) -> tuple[re.Pattern[str], Any]:
    """The pattern and its parse; refuses patterns that may need more than linear time."""
    try:
        pattern = re.compile(source, flags)
        parsed = parser().parse(source, pattern.flags)
    except (re.error, RecursionError, OverflowError) as problem:
        raise BadPattern(f"not a regular expression: {problem}") from None
    construct = _forbidden(parsed.data, repeated=False)
    if construct is not None:
        raise BadPattern(f"{construct} can take too long, and is not allowed")
    return pattern, parsed


def parser() -> Any:
    """Renamed in Python 3.11, where the old name warns."""
    parser = getattr(re, "_parser", None)
    if parser is None:
        import sre_parse as parser
    return parser


def _check_length(source: str) -> None:
    if not source or len(source) > PATTERN_MAX_CHARS:
        raise BadPattern(f"a pattern has 1 to {PATTERN_MAX_CHARS} characters, not {len(source)}")


def _forbidden(items: Any, *, repeated: bool) -> str | None:
    """The first construct that is not allowed, by name."""
    for operation, argument in items:
        name = str(operation)
        if name in REFERENCES:
            return "a back-reference"
        if name in ("ASSERT", "ASSERT_NOT"):
            return "a look-ahead" if argument[0] > 0 else "a look-behind"
        long = repeated
        if name in REPEATS:
            least, most = int(argument[0]), int(argument[1])
            if repeated and most > _LONG and least != most:
                return "a repetition inside a repetition"
            long = repeated or most > _LONG
        for inner in inside(name, argument):
            construct = _forbidden(inner, repeated=long)
            if construct is not None:
                return construct
    return None


def inside(name: str, argument: Any) -> list[Any]:
    """The sequences of items that one item is made of."""
    if name in REPEATS:
        return [argument[2].data]
    if name == "BRANCH":
        return [branch.data for branch in argument[1]]
    if name == "SUBPATTERN":
        return [argument[3].data]
    if name == "ATOMIC_GROUP":
        return [argument.data]
    if name in ("ASSERT", "ASSERT_NOT"):
        return [argument[1].data]
    return []


def _longest_run(codes: list[int], folded: bool) -> list[Needle] | None:
    """The longest run of characters that have bytes of their own; if case is ignored, of the ASCII ones."""
    best: list[int] = []
    run: list[int] = []
    for code in [*codes, -1]:
        # Surrogates have no bytes, nor has what replaces bytes that are not a character.
        if 0 <= code < 0x80 or (code > 0 and not folded and not 0xD800 <= code < 0xE000 and code != 0xFFFD):
            run.append(code)
        else:
            best = max(best, run, key=len)
            run = []
    if not best:
        return None
    text = "".join(map(chr, best))
    return [Needle((text.lower() if folded else text).encode(), folded)]


def _needed(items: Any, folded: bool) -> list[Needle] | None:
    """A line that matches contains one of these: the longest that the sequence requires."""
    offers: list[list[Needle] | None] = []
    run: list[int] = []
    for operation, argument in items:
        name = str(operation)
        if name == "LITERAL":
            run.append(argument)
            continue
        if name == "AT":
            continue
        run.append(-1)
        if name == "BRANCH":
            offers.append(_any_of([_needed(branch.data, folded) for branch in argument[1]]))
        elif name == "SUBPATTERN":
            _, added, removed, inner = argument
            offers.append(_needed(inner.data, (folded or bool(added & re.IGNORECASE)) and not removed & re.IGNORECASE))
        elif name in REPEATS and int(argument[0]) > 0:
            offers.append(_needed(argument[2].data, folded))
        elif name == "ATOMIC_GROUP":
            offers.append(_needed(argument.data, folded))
    offers.append(_longest_run(run, folded))
    return max(filter(None, offers), key=_worth, default=None)


def _any_of(branches: list[list[Needle] | None]) -> list[Needle] | None:
    needles: list[Needle] = []
    for branch in branches:
        if branch is None:
            return None
        needles += branch
    return needles


def _worth(needles: list[Needle]) -> tuple[int, int]:
    return min(len(needle.raw) for needle in needles), -len(needles)


# Regular expressions under a timer: the CPU that one slice of searching may take.
#
# The engine looks for signals while it works, so a handler that raises ends it. The handler raises only there.


SLICE_CPU_S = 0.020

_searching = False
_listening = False


class _TookTooLong(BaseException):
    pass


class RegexTimeout:
    """`with` it is one slice. Only in the main thread, as all handlers of signals."""

    def __init__(self, cpu_s: float = SLICE_CPU_S) -> None:
        self._cpu_s = cpu_s
        self.overruns = 0

    def __enter__(self) -> None:
        global _listening
        if not _listening:
            signal.signal(signal.SIGVTALRM, _stop)
            _listening = True
        # Again and again: it may run out between two searches.
        signal.setitimer(signal.ITIMER_VIRTUAL, self._cpu_s, self._cpu_s)

    def __exit__(self, *_: object) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.0)

    def matches(self, pattern: Pattern, line: Line, *, matched_before: bool = False) -> bool:
        """False also when the time ran out; that is counted."""
        global _searching
        try:
            _searching = True
            found = pattern.matches(line, matched_before=matched_before)
            _searching = False
        except _TookTooLong:
            _searching = False
            self.overruns += 1
            return False
        return found


def _stop(_number: int, _frame: FrameType | None) -> None:
    if _searching:
        raise _TookTooLong
