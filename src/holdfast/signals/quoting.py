"""Text of others, made fit to be quoted: it cannot act, hide, or look like anything that we wrote.

Output comes from programs, names and commands from whoever started them: all of it is data. It is stripped of what a
terminal would obey, redacted, its invisible characters are shown, and it stays on the lines that we give it.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .redact import Redactor

PREFIX = "| "
# The most that stands before a line.
_BEFORE_CHARACTERS = len(PREFIX + "(stderr) ")
LINE_CHARACTERS = 500
LABEL_CHARACTERS = 120
# A heading of ours: what stands around its sentence at most, and what the sentence has in any case.
_AROUND_SENTENCE = 260
_SENTENCE_LEAST = 120
# What is longer is cut before it is looked at; a record holds less.
_LOOKED_AT_CHARACTERS = 64 << 10

_SEQUENCES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]?"
    "|(?:\x1b[\\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x18\x1a\x1b\x9c\n]*(?:\x07|\x1b\\\\|\x9c)?"
    "|\x1b[ -/]*[0-~]?"
)
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
# Bidi controls, what has no width, selectors and tags that carry hidden text, fillers, halves of a pair. The selector
# behind an emoji is kept: it is in every second message of a build tool, and says one thing only.
_HIDDEN = re.compile(
    "[\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164"
    "\ud800-\udfff\ufe00-\ufe0e\ufeff\uffa0\ufff0-\ufffb\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
_TAG = re.compile(r"<(?=[^\W\d_]|[/!?])")
# Half of an escape of ours, or half an entity, at a place where a line is cut.
_HALF = re.compile(r"(?:&l?t?|\\u?|\\u\{[0-9a-f]{0,6})\Z")
_PLAIN_WORD = re.compile(r"[\w.:@/+-]+", re.ASCII)
_BACKTICKS = re.compile("`+")


def clean(text: str) -> str:
    """Without escape sequences and control characters but TAB and LF; what a CR overwrote is gone."""
    text = text[:_LOOKED_AT_CHARACTERS]
    if text.isprintable():
        return text
    text = _CONTROLS.sub("", _SEQUENCES.sub("", text).replace("\r\n", "\n"))
    if "\r" in text:
        text = "\n".join(map(_overwritten, text.split("\n")))
    return text


def _overwritten(line: str) -> str:
    shown = ""
    for part in line.split("\r"):
        shown = part + shown[len(part) :]
    return shown


def visible(text: str) -> str:
    """What nobody would see, as `\\u{...}`."""
    return text if text.isascii() else _HIDDEN.sub(lambda found: f"\\u{{{ord(found.group()):x}}}", text)


def without_tags(text: str) -> str:
    """No `<` in it opens or closes anything."""
    return _TAG.sub("&lt;", text) if "<" in text else text


def cut(text: str, limit: int) -> str:
    """At most so long, and told where it was longer."""
    if len(text) <= limit:
        return text
    mark = f" ...[{len(text)} characters in all]"
    if len(mark) > limit:
        mark = "..."
    return _HALF.sub("", text[: max(0, limit - len(mark))]) + mark


def fence(lines: Sequence[str]) -> str:
    """Longer than any run of backticks inside."""
    return "`" * max(3, 1 + max((len(run) for line in lines for run in _BACKTICKS.findall(line)), default=0))


class Quoter:
    """`tags`: the message is made of tags. `guard`: what a line may not begin with, where nothing stands before it."""

    __slots__ = ("_guard", "_label_chars", "_labels", "_line_chars", "_redact", "_tags", "plain")

    def __init__(
        self,
        redact: Redactor | Callable[[str], str],
        *,
        tags: bool,
        guard: re.Pattern[str] | None = None,
        plain: bool = False,
        line_chars: int = LINE_CHARACTERS,
        label_chars: int = LABEL_CHARACTERS,
    ) -> None:
        self._redact = redact
        self._tags = tags
        self._guard = guard
        self.plain = plain
        self._line_chars = line_chars
        self._label_chars = label_chars
        self._labels: dict[tuple[str, int], str] = {}

    def lines(self, texts: Sequence[str], limit: int | None = None) -> list[str]:
        """Each text as one line of a body, without what stands before it. As many come back."""
        if not texts:
            return []
        cleaned = [clean(text).rstrip().replace("\n", " ") for text in texts]
        redacted = self._redact("\n".join(cleaned)).split("\n")
        if len(redacted) != len(texts):
            # A redaction of the host's own that keeps no lines.
            redacted = [self._redact(line).replace("\n", " ") for line in cleaned]
        room = self._line_chars - _BEFORE_CHARACTERS
        return [self._escaped(line, room if limit is None else min(room, limit)) for line in redacted]

    def label(self, value: object, limit: int | None = None) -> str:
        """A name, a command, a pattern: on one line, and short."""
        if not isinstance(value, str):
            return ""
        limit = self._label_chars if limit is None else limit
        # The same few are asked for again and again while it is found out what fits.
        found = self._labels.get((value, limit))
        if found is None:
            text = self._redact(" ".join(clean(value).split())).replace("\n", " ")
            found = self._labels[value, limit] = self._escaped(text, limit)
        return found

    def word(self, value: object, limit: int | None = None) -> str:
        """A label that stands between words of ours: in quotes, unless it is a plain word itself."""
        text = self.label(value, limit)
        return text if _PLAIN_WORD.fullmatch(text) else self.quoted(value, limit)

    def quoted(self, value: object, limit: int | None = None) -> str:
        return '"' + self.label(value, limit).replace('"', '\\"') + '"'

    def short(self, sentence: str) -> str:
        """A sentence of ours, so that the name before it and a cursor behind it still fit on the line."""
        return cut(sentence, max(_SENTENCE_LEAST, self._line_chars - _AROUND_SENTENCE))

    def before(self, lines: Sequence[str], streams: Sequence[str] = ()) -> list[str]:
        """Body lines as they stand in the message. `streams` are named where they are given."""
        marks = [f"({stream}) " if stream else "" for stream in streams] or [""] * len(lines)
        marked = [mark + line for mark, line in zip(marks, lines, strict=True)]
        if not self.plain:
            return [PREFIX + line for line in marked]
        return list(map(self.guarded, marked))

    def guarded(self, line: str) -> str:
        """A line with nothing before it, that could be taken for the beginning or the end of a message."""
        return "\\" + line if self._guard is not None and self._guard.match(line) else line

    def _escaped(self, text: str, limit: int) -> str:
        text = visible(text)
        return cut(without_tags(text) if self._tags else text, limit)
