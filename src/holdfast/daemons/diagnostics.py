"""What a language server finds wrong with files: a bounded list, given out once.

A server publishes all that it knows of a file again and again; an agent wants what is new, and not too much of it.
"""

from __future__ import annotations

from _blake2 import blake2b

from ..signals.quoting import Quoter, clean
from ..signals.redact import redact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FILE_MAX = 10
DRAIN_MAX = 30
REMEMBERED_MAX = 500

# As the protocol numbers them.
SEVERITIES = {1: "error", 2: "warning", 3: "information", 4: "hint"}
_TEXT_CHARACTERS = 500


class Diagnostic:
    __slots__ = ("code", "column", "line", "message", "severity", "source", "uri")

    def __init__(
        self, uri: str, line: int, column: int, severity: str, message: str, code: str | None, source: str | None
    ) -> None:
        self.uri = uri
        # Counted from 1, as editors and compilers do.
        self.line = line
        self.column = column
        self.severity = severity
        self.message = message
        self.code = code
        self.source = source

    @property
    def key(self) -> bytes:
        parts = (self.uri, self.line, self.column, self.severity, self.message, self.code, self.source)
        return blake2b(repr(parts).encode("utf-8", "replace"), digest_size=16).digest()

    def __str__(self) -> str:
        """One line, as a drain would quote it: whatever the server says, it cannot act, hide or end a message."""
        quoter = Quoter(redact, tags=True)
        by = quoter.label(" ".join(each for each in (self.source, self.code) if each))
        path = quoter.word(self.uri.removeprefix("file://"), _TEXT_CHARACTERS)
        message = quoter.label(self.message, _TEXT_CHARACTERS)
        return f"{path}:{self.line}:{self.column}: {self.severity}: {message}{f' [{by}]' if by else ''}"

    def __repr__(self) -> str:
        return f"<Diagnostic {self}>"


class Drained:
    """Diagnostics that were not given out before, worst first within a file, and how many there was no room for."""

    __slots__ = ("items", "more")

    def __init__(self, items: list[Diagnostic], more: int) -> None:
        self.items = items
        self.more = more

    def __bool__(self) -> bool:
        return bool(self.items)

    @property
    def text(self) -> str:
        """One block; empty when there is nothing new."""
        lines = [str(each) for each in self.items]
        if self.more:
            lines.append(f"and {self.more} more diagnostics")
        return "\n".join(lines)


class Diagnostics:
    def __init__(
        self, *, file_max: int = FILE_MAX, drain_max: int = DRAIN_MAX, remembered_max: int = REMEMBERED_MAX
    ) -> None:
        self._file_max = file_max
        self._drain_max = drain_max
        self._remembered_max = remembered_max
        # The last word on each file that has something to tell, the longest unchanged first.
        self._files: dict[str, list[Diagnostic]] = {}
        # What was given out before, by its hash; the oldest is forgotten first.
        self._given: dict[bytes, None] = {}
        self.dropped = 0

    def publish(self, uri: object, found: object) -> None:
        """The server's last word on a file: it replaces the one before."""
        if not isinstance(uri, str) or not isinstance(found, list):
            return
        self._files.pop(uri, None)
        told = [each for each in (_diagnostic(uri, item) for item in found) if each is not None]
        if told:
            self._files[uri] = told
        while sum(map(len, self._files.values())) > self._remembered_max and len(self._files) > 1:
            self.dropped += len(self._files.pop(next(iter(self._files))))
        if len(told) > self._remembered_max:
            self.dropped += len(told) - self._remembered_max
            del told[self._remembered_max :]

    def clear(self) -> None:
        """A new server knows nothing of what the last one said."""
        self._files.clear()

    def current(self) -> list[Diagnostic]:
        """All that stands now, given out or not."""
        return [each for told in self._files.values() for each in told]

    def drain(self) -> Drained:
        """What is new since the last drain. What there was no room for comes with the next."""
        items: list[Diagnostic] = []
        more = 0
        for told in self._files.values():
            fresh: dict[bytes, Diagnostic] = {}
            for each in told:
                if each.key not in self._given:
                    fresh.setdefault(each.key, each)
            ordered = sorted(fresh.items(), key=lambda pair: _rank(pair[1]))
            room = max(0, min(self._file_max, self._drain_max - len(items)))
            for key, each in ordered[:room]:
                items.append(each)
                self._remember(key)
            more += len(ordered[room:])
        return Drained(items, more)

    def _remember(self, key: bytes) -> None:
        self._given[key] = None
        if len(self._given) > self._remembered_max:
            # Rather what no longer stands: what does would be given out again.
            standing = {each.key for each in self.current()}
            del self._given[next((each for each in self._given if each not in standing), next(iter(self._given)))]


def _rank(each: Diagnostic) -> tuple[int, int, int]:
    order = list(SEVERITIES.values())
    return order.index(each.severity), each.line, each.column


def _diagnostic(uri: str, item: Any) -> Diagnostic | None:
    """None for what is none: a server's mistake must not become ours."""
    try:
        start = item["range"]["start"]
        line, column = int(start["line"]) + 1, int(start["character"]) + 1
        message = str(item["message"])
    except (KeyError, TypeError, ValueError):
        return None
    code, source = item.get("code"), item.get("source")
    return Diagnostic(
        uri,
        line,
        column,
        SEVERITIES.get(item.get("severity", 1), "error"),
        _one_line(message),
        None if code is None else _one_line(str(code)),
        _one_line(source) if isinstance(source, str) else None,
    )


def _one_line(text: str) -> str:
    shown = " ".join(clean(text).split())
    return shown if len(shown) <= _TEXT_CHARACTERS else shown[:_TEXT_CHARACTERS] + "..."
