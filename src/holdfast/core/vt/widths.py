"""Bytes to characters, and how many columns they take: wide 2, combining and format 0, all others 1."""

from __future__ import annotations

import re
import unicodedata

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


# Characters with certainly one column, and with certainly two: their runs are counted at once. A test compares them
# with `column_count`; characters that are missing here are only slower.
_NARROW = (
    "\x20-\x7e\xa0-\u02ff\u0370-\u0482\u048a-\u0590\u1e00-\u1fff\u2010-\u2027\u2030-\u205e\u20a0-\u20bf"
    "\u2100-\u2319\u2400-\u25fc\u2800-\u28ff\ue000-\uf8ff\ufffd"
)
_WIDE = "\u3001-\u3029\u3041-\u3096\u309b-\u30ff\u4e00-\u9fff\uac00-\ud7a3\uff01-\uff60\U0001f600-\U0001f64f"
_RUNS = re.compile(f"([{_NARROW}]+)|([{_WIDE}]+)|(.)", re.DOTALL)
_KNOWN_MAX = 4096


class _Columns(dict[str, int]):
    """The columns of characters, once looked up. Cleared before a hostile stream makes it large."""

    def __missing__(self, character: str) -> int:
        if len(self) >= _KNOWN_MAX:
            self.clear()
        self[character] = columns = column_count(character)
        return columns


def column_count(character: str) -> int:
    code = ord(character)
    if code < 0x300:
        return 0 if code < 0x20 or 0x7F <= code <= 0x9F else 1
    category = unicodedata.category(character)
    # Hangul vowels and finals join the consonant before them.
    if 0x1160 <= code <= 0x11FF or category in ("Mn", "Me", "Cf"):
        return 0
    if category == "Cn":
        # Not in this Python's tables, whose width for it is meaningless: Han and emoji will be assigned there.
        wide = 0x4E00 <= code <= 0x9FFF or 0x1FA70 <= code <= 0x1FAFF or 0x20000 <= code <= 0x3FFFD
        return 2 if wide else 1
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


COLUMNS = _Columns()


def decode(raw: bytes) -> str:
    """Decode UTF-8. Invalid bytes become U+FFFD, as many as a terminal shows."""
    return raw.decode("utf-8", "replace")


def is_utf8(data: bytes) -> bool:
    if data.isascii():
        return True
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def runs(text: str) -> Iterator[tuple[int, int]]:
    """(count, columns) of successive characters of one width. Characters without a width are left out."""
    for match in _RUNS.finditer(text):
        if match.lastindex != 3:
            yield match.end() - match.start(), match.lastindex or 0
        elif COLUMNS[match.group()]:
            yield 1, COLUMNS[match.group()]


def last_shown(text: str) -> str:
    """The last character that takes a column."""
    for character in reversed(text):
        if COLUMNS[character]:
            return character
    return ""


_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f]+")


def label(raw: bytes, max_bytes: int) -> str:
    """A text that a program sets, such as a title: bounded, on one line, without controls."""
    return _UNPRINTABLE.sub(" ", raw[:max_bytes].decode("utf-8", "ignore")).strip()
