"""What a question looks like on a screen: patterns on the row of the cursor, and menus in the rows above it.

Each pattern sees a bounded piece of one row, and each of its repetitions is bounded, so that no output can make a look
long. Patterns that a user adds are fenced for the same reason.
"""

from __future__ import annotations

import re

from .characters import column_count
from .patterns import BadPattern, parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

ASKING = ("secret", "choice", "question", "continue", "menu")
AT_PROMPT = ("pager", "repl", "shell")
KINDS = ASKING + AT_PROMPT

ROWS_ABOVE = 3
_ROW_CHARACTERS = 512
# So short, because two repetitions over a row cost the cube of its length.
_ADDED_ROW_CHARACTERS = 128
_ADDED_PATTERN_CHARACTERS = 256
_FEW = 8
_TOO_MANY = 100

_KEY_NAME = r"any key|enter|return|space(?: ?bar)?|esc(?:ape)?|tab|f\d{1,2}|(?!ctrl.?c\b)ctrl[-+ ]?[a-z]"
# A letter alone is a key where it is quoted, or where it says what for.
_KEY = rf"(?:(?:{_KEY_NAME})\b|[\"'`<\[(](?:{_KEY_NAME}|[a-z])[\"'`>\])]|[a-z](?= to | for | or |,|[ \t.:]{{0,4}}$))"
_HIDDEN = (
    r"(?i)\b(?:pass[ -]?(?:word|phrase|code)|passwd|pin|otp"
    r"|(?:one[- ]time|verification|security|authentication|two-factor|2fa|mfa|sms) (?:code|password|token|pin))"
    r"\b.{0,200}[:\uff1a][ \t]{0,2}$"
)
_ALTERNATIVE = r"[\[(<]?[^\s\[\]()<>/|][^\[\]()<>/|]{0,23}[\])>]?"
# Counts (3/10) and rates (MB/s) are no alternatives.
_CHOICE = (
    rf"(?i)[\[(](?=[\[(<]?[a-z])(?!\w{{1,4}}/s[\])]){_ALTERNATIVE}(?: ?[/|] ?{_ALTERNATIVE}){{1,7}}[\])]"
    r"(?: ?[\[(][^\[\]()]{1,24}[\])])?[ \t]?[?:>]?[ \t]{0,2}$"
)

# In the order in which they are tried on what stands left of the cursor; the first that fits decides.
_DEFAULTS = (
    ("secret", _HIDDEN),
    ("choice", _CHOICE),
    ("pager", r"^:$"),
    ("pager", r"\(END\)[ \t]{0,2}$"),
    ("pager", r"--\s?More\s?--(?: ?\([^)]{1,40}\))?[ \t]{0,2}$"),
    ("pager", r"press h for help or q to quit\)?[ \t]{0,2}$"),
    ("pager", r"^lines \d{1,9}-\d{1,9}(?:/\d{1,9})?(?: \d{1,3}%)?[ \t]{0,2}$"),
    ("question", r"\w\W{0,6}[?\uff1f][:\uff1a]?[ \t]{0,2}$"),
    ("continue", rf"(?i)\b(?:press|hit|type|strike)\b[^.!?]{{0,40}}?[ \t]{_KEY}"),
    ("repl", r"^>>> ?$"),
    ("repl", r"^\.\.\. ?$"),
    ("repl", r"^In \[\d{1,9}\]: ?$"),
    ("repl", r"^ {0,20}\.{3,9}: ?$"),
    ("repl", r"^[\w.@:/~()\[\]*+-]{0,60}> ?$"),
    ("repl", r"^\w{1,20} \[[\w()]{1,40}\]> ?$"),
    ("repl", r"^\([\w+.:-]{1,30}\) ?$"),
    # psql (of a superuser, inside a quotation, in a transaction) and Clojure; Perl's debugger; PHP.
    ("repl", r"^\w[\w.@:/-]{0,60}[=('\"$!^-]\*?[#>] ?$"),
    ("repl", r"^DB<{1,9}\d{1,9}>{1,9} ?$"),
    ("repl", r"^php [>{('\"] ?$"),
    ("shell", r"(?:^|[^#])# ?$"),
    ("shell", r"[$\u276f\u00bb\u279c\u203a\u03bb] ?$"),
    # A number before it makes it a percentage.
    ("shell", r"(?:^|(?<!\d)\s)(?![\d.,]{1,9}%)\S{0,60}% $"),
)
# A command being typed at a shell's prompt may end in anything.
_TYPED_AT_SHELL = re.compile(r"^(?:\[[^\]]{1,60}\]|\S{0,60})[$#%\u276f\u00bb\u279c\u203a\u03bb] \S")

_MENU_HINT = re.compile(
    r"(?i)(?:\barrows?\b|[\u2191\u2193]|\bup/down\b).{0,80}(?:\benter\b|\breturn\b|[\u23ce\u21b5])"
    r"|(?:\benter\b|\breturn\b|[\u23ce\u21b5]).{0,80}(?:\barrows?\b|[\u2191\u2193]|\bup/down\b)"
    r"|\buse (?:the )?arrow keys\b"
)
# `>` also quotes mail and points at a line of code: it counts where the cursor was hidden for a menu.
_POINTER = re.compile(
    r"^([ \t\u2502\u2503|]{0,20})([\u276f\u203a\u25b6\u25ba\u25b8\u279c\u27a4\u00bb\u25cf\u25c9>])( {1,3})\S"
)
_BESIDE_POINTER = " \t\u2502\u2503|\u25cb\u25ef\u25cc\u00b7"
_BORDERS = " \t\u2502\u2503|"

_BUSY = re.compile(r"(?i)\b(?:esc|escape|ctrl[-+ ]?c|\^c)\b.{0,16}\bto (?:interrupt|stop)\b")
_SPINNERS = frozenset(
    "|/-\\\u2580\u2584\u25d0\u25d3\u25d1\u25d2\u25e2\u25e3\u25e4\u25e5\u00b7\u2722\u2733\u2736\u273b\u273d*+"
)


class Patterns:
    """The defaults, what a user adds before them, or in their place."""

    def __init__(self, added: Mapping[str, Sequence[str]] | None = None, *, replace: bool = False) -> None:
        self._added: list[tuple[str, re.Pattern[str]]] = []
        for kind, sources in (added or {}).items():
            if kind not in KINDS:
                raise BadPattern(f"no kind {kind!a}; there are {', '.join(KINDS)}")
            self._added += [(kind, fenced(source)) for source in sources]
        kept = {kind for kind, _ in self._added} if replace else set()
        self._defaults = [(kind, pattern) for kind, pattern in _compiled() if kind not in kept]
        self._menus = "menu" not in kept

    def find(
        self, rows: Sequence[str], column: int, *, inverse: bool, cursor_visible: bool, leader: bool
    ) -> tuple[str, str] | None:
        """The kind of question, and the row that is it."""
        if not rows:
            return None
        row = rows[-1]
        before, after = split(row, column)
        found = self._at_cursor(before.lstrip(_BORDERS), after, inverse=inverse and before[:1].strip() != "")
        if found in ASKING and leader and _TYPED_AT_SHELL.match(before):
            found = "shell"
        if found is not None:
            return found, line_of(row)
        menu = _menu(rows, cursor_visible=cursor_visible) if self._menus else None
        return None if menu is None else ("menu", line_of(menu))

    def _at_cursor(self, before: str, after: str, *, inverse: bool) -> str | None:
        if not before.strip():
            return None
        alone = not after.strip(_BORDERS)
        # A shell may have a second prompt at the right edge.
        at_edge = alone or after.startswith("  ")
        if inverse and alone:
            return "pager"
        for kind, pattern in self._added:
            if (alone or (at_edge and kind in AT_PROMPT)) and pattern.search(before[-_ADDED_ROW_CHARACTERS:]):
                return kind
        for kind, pattern in self._defaults:
            if (alone or (at_edge and kind in AT_PROMPT)) and pattern.search(before):
                return kind
        return None


def busy(rows: Iterable[str]) -> bool:
    """Does a row say that the program works, and how to make it stop?"""
    return any(_BUSY.search(row[:_ROW_CHARACTERS]) for row in rows)


def spins(before: Sequence[str], after: Sequence[str]) -> bool:
    """Did a spinner turn between two looks: one cell of a row changed, from one of its glyphs to another?"""
    for old, new in zip(before, after):
        if len(old) == len(new) and old != new:
            changed = [(one, other) for one, other in zip(old[:_ROW_CHARACTERS], new) if one != other]
            if len(changed) == 1 and all(_is_spinner(glyph) for glyph in changed[0]):
                return True
    return False


def split(row: str, column: int) -> tuple[str, str]:
    """What stands left and right of the cursor, whose column counts cells. Blank where a row is cut short."""
    if row.isascii():
        at = column
    else:
        cells = at = 0
        while at < len(row) and cells < column:
            cells += column_count(row[at])
            at += 1
        while at < len(row) and column_count(row[at]) == 0:
            at += 1
        at += max(0, column - cells)
    return row.ljust(at)[:at][-_ROW_CHARACTERS:], row[at : at + _ROW_CHARACTERS]


def line_of(row: str) -> str:
    """As it is reported: one line of bounded length without control characters."""
    return "".join(character for character in row[-_ROW_CHARACTERS:] if character.isprintable()).strip(_BORDERS)


def fenced(source: str) -> re.Pattern[str]:
    """A pattern of a user, unless it could take long on a short row: nothing repeated inside a repetition, no
    repeated alternatives, two long repetitions at most, no back-reference."""
    if not source or len(source) > _ADDED_PATTERN_CHARACTERS:
        raise BadPattern(f"a pattern has 1 to {_ADDED_PATTERN_CHARACTERS} characters")
    try:
        pattern = re.compile(source)
        parsed = parser().parse(source, pattern.flags)
    except (re.error, RecursionError, OverflowError) as problem:
        raise BadPattern(f"{source!a} is no regular expression: {problem}") from None
    if _long_repetitions(parsed.data, 1) > 2:
        raise BadPattern(f"{source!a} could take too long: it repeats a repetition or a choice, or too much")
    return pattern


def _long_repetitions(items: Any, around: int) -> int:
    """How many there are, `around` being how often all this is repeated; many more where one is inside another."""
    count = 0
    for operation, argument in items:
        name = str(operation)
        if name in ("MAX_REPEAT", "MIN_REPEAT", "POSSESSIVE_REPEAT"):
            most = int(argument[1])
            if around > _FEW or (around > 1 and most > 1):
                return _TOO_MANY
            count += _long_repetitions(argument[2].data, max(around, most)) + (1 if most > _FEW else 0)
        elif name == "BRANCH":
            if around > _FEW:
                return _TOO_MANY
            count += sum(_long_repetitions(branch.data, around) for branch in argument[1])
        elif name in ("GROUPREF", "GROUPREF_IGNORE", "GROUPREF_EXISTS"):
            return _TOO_MANY
        elif name == "SUBPATTERN":
            count += _long_repetitions(argument[3].data, around)
        elif name in ("ASSERT", "ASSERT_NOT"):
            count += _long_repetitions(argument[1].data, around)
        elif name == "ATOMIC_GROUP":
            count += _long_repetitions(argument.data, around)
    return count


def _menu(rows: Sequence[str], *, cursor_visible: bool) -> str | None:
    near = [row[:_ROW_CHARACTERS].rstrip() for row in rows[-1 - ROWS_ABOVE :]]
    for place, row in enumerate(near):
        found = _POINTER.match(row)
        if found is None or (found[2] == ">" and cursor_visible):
            continue
        text_at = found.end(3)
        beside = [other for other in (place - 1, place + 1) if 0 <= other < len(near)]
        options = [other for other in beside if _is_option(near[other], text_at)]
        if options and (not near[-1] or _POINTER.match(near[-1]) or _is_option(near[-1], text_at)):
            return row
    for row in near:
        if _MENU_HINT.search(row) and (not near[-1].strip(_BORDERS) or row is near[-1]):
            return row
    return None


def _is_option(row: str, text_at: int) -> bool:
    return len(row) > text_at and not row[:text_at].strip(_BESIDE_POINTER) and row[text_at] != " "


def _is_spinner(glyph: str) -> bool:
    return glyph in _SPINNERS or "\u2800" <= glyph <= "\u28ff"


_memory: list[tuple[str, re.Pattern[str]]] = []


def _compiled() -> list[tuple[str, re.Pattern[str]]]:
    if not _memory:
        _memory.extend((kind, re.compile(source)) for kind, source in _DEFAULTS)
    return _memory
