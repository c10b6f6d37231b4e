"""Whether a command at a terminal waits for input, decided without I/O: from the rows about the cursor, drawn from the
end of the log, from what a question looks like there, and from the other evidence of a look. Silence alone is no
evidence, however long.

`Seen` is what one look at a terminal found, `decide` what it means, `Looks` that two looks must agree.
"""

from __future__ import annotations

import re

from ....core.vt.page import PageState
from ....core.vt.parser import Scanner
from ....core.vt.widths import column_count
from ..patterns import REFERENCES, REPEATS, BadPattern, inside, parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    Verdict = dict[str, Any]


# What a question looks like on a screen: patterns on the row of the cursor, and menus in the rows above it.
#
# Each pattern sees a bounded piece of one row, and each of its repetitions is bounded, so that no output can make a
# look long. Patterns of a user are checked by `bounded` for the same reason.


ASKING = ("secret", "choice", "question", "continue", "menu")
AT_PROMPT = ("pager", "repl", "shell")
KINDS = ASKING + AT_PROMPT

ROWS_ABOVE = 3
_ROW_CHARACTERS = 512
# Short, because two repetitions over a row cost the cube of its length.
_ADDED_ROW_CHARACTERS = 128
_ADDED_PATTERN_CHARACTERS = 256
_FEW = 8
_TOO_MANY = 100

_KEY_NAME = r"any key|enter|return|space(?: ?bar)?|esc(?:ape)?|tab|f\d{1,2}|(?!ctrl.?c\b)ctrl[-+ ]?[a-z]"
# A single letter counts as a key only if it is quoted, or if the text says what it does.
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

# In the order in which they are tried on the text left of the cursor; the first that matches decides.
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
                raise BadPattern(f"unknown kind {kind!a}; there are {', '.join(KINDS)}")
            self._added += [(kind, bounded(source)) for source in sources]
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
    """The text left and right of the cursor, whose column counts cells. Blank where a row is cut short."""
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


def bounded(source: str) -> re.Pattern[str]:
    """A pattern of a user, unless it could take long on a short row: nothing repeated inside a repetition, no
    repeated alternatives, two long repetitions at most, no back-reference."""
    if not source or len(source) > _ADDED_PATTERN_CHARACTERS:
        raise BadPattern(f"a pattern has 1 to {_ADDED_PATTERN_CHARACTERS} characters")
    try:
        pattern = re.compile(source)
        parsed = parser().parse(source, pattern.flags)
    except (re.error, RecursionError, OverflowError) as problem:
        raise BadPattern(f"{source!a} is not a regular expression: {problem}") from None
    if _long_repetitions(parsed.data, 1) > 2:
        raise BadPattern(f"{source!a} could take too long: it repeats a repetition or a choice, or too much")
    return pattern


def _long_repetitions(items: Any, around: int) -> int:
    """How many there are, `around` being how often all this is repeated; many more where one is inside another."""
    count = 0
    for operation, argument in items:
        name, most = str(operation), 1
        if name in REPEATS:
            most = int(argument[1])
            if around > _FEW or (around > 1 and most > 1):
                return _TOO_MANY
            count += most > _FEW
        elif name in REFERENCES or (name == "BRANCH" and around > _FEW):
            return _TOO_MANY
        count += sum(_long_repetitions(inner, max(around, most)) for inner in inside(name, argument))
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


# The row of the cursor and the few above it, drawn from the end of the log: the runner keeps no text of its own.


TAIL_BYTES = 16 << 10

# What moves the cursor only along its line, and takes nothing away above it. Behind the last thing that is not of this
# kind, only the last few lines matter.
_PLAIN = rb"\[[0-9:;]*[mKnc]|\[\?(?!47[hl]|104[79][hl])[0-9]+[hlu]|\[[<=>][0-9;]*[a-z]|\]|\([B0]|[=>\\]"
_ODD = re.compile(rb"\x1b(?!" + _PLAIN + rb")|\xc2[\x80-\x9f]|[\x0b\x0c\x18\x1a]")
_LINE_END = b"\r\n"


class Sketch:
    """`rows` ends with the cursor's row. `column` counts cells, and is after the last one where the next character
    would wrap. `inverse`: all left of the cursor is in reverse video."""

    __slots__ = ("column", "inverse", "rows")

    def __init__(self, rows: list[str], column: int, inverse: bool) -> None:
        self.rows = rows
        self.column = column
        self.inverse = inverse


def sketch(
    tail: bytes, at: int, rows: int, cols: int, *, clear: dict[str, Any] | None = None, alternate: bool = False
) -> Sketch:
    """From the end of the log, whose first byte here is that at offset `at`. `clear` is the newest mark of a screen
    that was cleared, `alternate` which screen is shown now. What lies before the piece is not known, and left blank."""
    state = PageState(rows, cols, keeps_tabs=False)
    page = state.page
    if clear is not None and clear["alt"] == alternate and at <= clear["offset"] <= at + len(tail):
        _continue_from(state, clear["state"])
        tail = tail[clear["offset"] - at :]
    elif at:
        page.row = rows - 1
        # It may begin in the middle of a sequence: after the end of a line, or else before an ESC, is outside of any.
        end = tail.find(b"\n") + 1
        tail = tail[end or max(0, tail.find(b"\x1b")) :]
    for kind, offset, raw in Scanner().steps(_last_lines(tail)):
        state.take(kind, offset, raw)
    row, column = page.here(), page.col + page.pending_wrap
    inverse = column > 0 and row.inverse is not None and row.inverse.issuperset(range(column))
    near = [row.text().rstrip() for row in page.screen[max(0, page.row - ROWS_ABOVE) : page.row + 1]]
    return Sketch(near, column, inverse)


def _continue_from(state: PageState, snapshot: dict[str, Any]) -> None:
    """From a state of the tracker, at the size of now."""
    page = state.page
    rows, cols = page.rows, page.cols
    state.modes.continue_from(snapshot["modes"], snapshot["alt"])
    page.continue_from(snapshot, state.modes)
    page.row, page.col = min(page.row, rows - 1), min(page.col, cols - 1)
    if snapshot["size"] != [rows, cols]:
        page.no_margins()
        page.pending_wrap = False


def _last_lines(tail: bytes) -> bytes:
    """All that matters of it, as far as that can be seen at once."""
    begin = len(tail)
    for _ in range(ROWS_ABOVE + 2):
        begin = tail.rfind(_LINE_END, 0, begin)
        if begin < 0:
            return tail
    return tail if _ODD.search(tail, begin) else tail[begin + len(_LINE_END) :]


# What one look found, and what it means.


# The first look comes this long after the last output, the second this long after the first.
LOOK_S = 0.5
# Without proof that a process reads the terminal, a pattern or a bell counts only after this much silence.
QUIET_S = 5.0
# A session that is at work although nothing is printed is looked at again, less and less often, and then not
# until it prints again: a question has to be printed.
_RELOOK_MAX_S = 8.0

# Of processes; the rest are of the screen.
_PROCESS_VETOES = ("running", "disk_wait")


class Seen:
    """What one look found; `evidence` are fields below that differ from what is said there.

    `rows` are the text of the cursor's row, last, and up to three rows above it; `column` counts cells from 0.
    """

    # A process in the foreground sits in a read on the terminal; None where that cannot be known.
    blocked_read: bool | None = None
    # One sleeps until there is input on it, as line editors do and also programs that are busy with something else.
    polled_read = False
    # The terminal is canonical, and the command switched the echo off. One that was started without echo says nothing.
    echo_off = False
    # OSC 133 opened a prompt, and no command was started.
    prompt_mark = False
    # Since the last input.
    bell = False
    # The foreground is the command's own group.
    leader = True
    # `running`, `disk_wait` of processes; `spinner`, `synchronized`, `output` of the screen.
    vetoes: Sequence[str] = ()
    # All left of the cursor is in reverse video.
    inverse = False
    cursor_visible = True
    # Why a quiet command may be hung.
    stopped: str | None = None
    cpu_idle = False

    def __init__(self, rows: Sequence[str], column: int, *, quiet_s: float, **evidence: Any) -> None:
        self.rows = rows
        self.column = column
        self.quiet_s = quiet_s
        self.__dict__.update(evidence)


def decide(seen: Seen, patterns: Patterns) -> Verdict:
    """`{state, confidence, kind, evidence, line, secret, hung}`. Only two looks that agree make it an answer."""
    found = patterns.find(
        seen.rows, seen.column, inverse=seen.inverse, cursor_visible=seen.cursor_visible, leader=seen.leader
    )
    evidence = [
        name
        for name, there in (
            ("blocked_read", seen.blocked_read),
            ("polled_read", seen.polled_read),
            ("echo_off", seen.echo_off),
            ("prompt_mark", seen.prompt_mark),
            ("pattern", found),
            ("bell", seen.bell),
        )
        if there
    ]
    vetoes = [*seen.vetoes, *(["busy_marker"] if busy(seen.rows) else [])]
    confidence = _confidence(seen, evidence, vetoes)
    kind = _kind(seen, found)
    if confidence is None:
        at_work = any(veto != "disk_wait" for veto in vetoes) or seen.quiet_s < QUIET_S
        state = "working" if at_work else "quiet"
        kind = None
    else:
        state = "at_prompt" if kind in AT_PROMPT else "needs_input"
    return {
        "state": state,
        "confidence": confidence,
        "kind": kind,
        "evidence": evidence,
        "line": found[1] if found else _line(seen.rows),
        "secret": confidence is not None and kind == "secret",
        "hung": _hung(seen, vetoes) if state == "quiet" else None,
    }


def _confidence(seen: Seen, evidence: list[str], vetoes: list[str]) -> str | None:
    pattern = "pattern" in evidence
    # If the screen says that the program is working, this overrides all other evidence: a program may have a thread
    # that always reads keys.
    if any(veto not in _PROCESS_VETOES for veto in vetoes):
        return None
    proved = seen.echo_off or pattern or seen.prompt_mark
    if (seen.blocked_read and proved) or (seen.blocked_read is None and seen.echo_off and pattern):
        return "high"
    if vetoes:
        return None
    # A shell that marks its prompts says itself that it has one.
    if seen.prompt_mark and seen.leader:
        return "medium"
    # A program with its own line editor polls where another one reads. Alone that says nothing: most programs that fill
    # the screen poll all the time.
    if pattern and seen.polled_read:
        return "medium"
    if (pattern or seen.bell) and seen.quiet_s >= QUIET_S:
        return "medium"
    return "low" if seen.blocked_read or seen.echo_off else None


def _kind(seen: Seen, found: tuple[str, str] | None) -> str | None:
    if seen.echo_off:
        return "secret"
    # The foreground group tells a shell's own prompt from the question of a program it started.
    if seen.prompt_mark and seen.leader:
        return "shell"
    return found[0] if found else None


def _hung(seen: Seen, vetoes: list[str]) -> str | None:
    """Why a quiet session may be hung. A report, never a reason to act."""
    if seen.stopped:
        return seen.stopped
    if "disk_wait" in vetoes:
        return "disk_wait"
    return "no_cpu" if seen.cpu_idle else None


def _line(rows: Sequence[str]) -> str:
    """Where no row is a question: the last row near the cursor that has text."""
    return next((line for line in map(line_of, reversed(rows)) if line), "")


class Looks:
    """Two looks LOOK_S apart on an unchanged screen must agree before a state is more than working or quiet.

    `due_s` is how long after a look the next one is worth its cost; None: not before there is new output.
    """

    def __init__(self) -> None:
        self.due_s: float | None = LOOK_S
        self._first: tuple[float, object, tuple[object, ...]] | None = None
        self._relook_s = LOOK_S

    def output(self) -> None:
        """Something was printed: look at it LOOK_S from now."""
        self.due_s = LOOK_S
        self._relook_s = LOOK_S

    def see(self, now: float, screen: object, verdict: Verdict, quiet_s: float) -> Verdict:
        """The verdict, once a look at the same `screen` (an offset, say) at least LOOK_S ago came to the same."""
        asks = verdict["state"] in ("at_prompt", "needs_input")
        means = (verdict["state"], verdict["kind"], verdict["secret"])
        first = self._first
        if not asks:
            self._first = None
            self.due_s = self._again(verdict, quiet_s)
            return verdict
        if first is None or first[1:] != (screen, means):
            self._first = first = (now, screen, means)
        elif now - first[0] >= LOOK_S:
            self.due_s = None if verdict["confidence"] == "high" else self._again(verdict, quiet_s)
            return verdict
        self.due_s = first[0] + LOOK_S - now
        return {**verdict, "state": "working", "confidence": None, "kind": None, "secret": False}

    def _again(self, verdict: Verdict, quiet_s: float) -> float | None:
        if quiet_s < QUIET_S:
            return QUIET_S - quiet_s
        if verdict["state"] != "working":
            return None
        # Something still shows that the program is working, after this much silence: look again, less and less often.
        self._relook_s *= 2
        return self._relook_s if self._relook_s <= _RELOOK_MAX_S else None
