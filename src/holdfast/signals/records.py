"""One line of a signal file: a signal, a note about one, or something that is neither.

The line is the truth and stays as it was written: fields of a later release are kept, its unknown variants are given
to whoever asks as `unknown`. What breaks the rules is told apart from what is merely new.
"""

from __future__ import annotations

from ..home import is_id
from ..runner import jsontext
from ..runner.signalfile import HOME, LINE_MAX_BYTES, VARIANTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

UNKNOWN = "unknown"
AUTO = "auto"

COMMON = (*("v", "id", "seq", "session", "kind", "owner", "attempt", "at", "mono_ns", "boot", "routed", "snapshot"),)
# SQLite's integers, and far beyond any count of signals.
_SEQ_MAX = 1 << 53
_DEPTH_MAX = 32
_COMMON = frozenset(COMMON)
_VARIANTS = frozenset(VARIANTS)


class Signal:
    """Something happened to a session. The variant's own fields are attributes too, where no common one has their
    name (`fields` has them all); `deliveries` counts how often this consumer got it, this time included."""

    __slots__ = (*COMMON, "deliveries", "fields", "record", "replayed", "variant")

    v: int
    id: str
    seq: int
    session: str | None
    kind: str | None
    owner: str | None
    attempt: int
    at: str
    mono_ns: int
    boot: str | None
    routed: bool | str
    snapshot: dict[str, Any]
    variant: str
    fields: dict[str, Any]
    record: dict[str, Any]
    deliveries: int
    replayed: bool

    def __init__(self, record: Mapping[str, Any], *, deliveries: int = 1, replayed: bool = False) -> None:
        """`record` is one that `parse` takes; ValueError says what is wrong with another."""
        key = _variant_of(record)
        _check(record)
        for name in COMMON:
            setattr(self, name, record.get(name))
        self.v = record.get("v", 1)
        self.attempt = record.get("attempt") or 1
        self.at = record.get("at") or ""
        self.mono_ns = record.get("mono_ns") or 0
        self.routed = record.get("routed", True)
        self.snapshot = record.get("snapshot") or {}
        self.record = dict(record)
        self.variant = key if key in _VARIANTS else UNKNOWN
        self.fields = dict(record[key]) if key in _VARIANTS else {"variant": key, **record[key]}
        self.deliveries = deliveries
        self.replayed = replayed

    def __getattr__(self, name: str) -> Any:
        # Only names that are no slot come here.
        try:
            return self.fields[name]
        except (AttributeError, KeyError):
            raise AttributeError(f"a {self.variant} signal has no {name}") from None

    def __repr__(self) -> str:
        return f"<Signal {self.id} {self.variant}{' again' if self.redelivered else ''}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Signal) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def redelivered(self) -> bool:
        return self.deliveries > 1

    @property
    def ends_session(self) -> bool:
        return self.variant == "lifecycle" and self.fields.get("phase") == "ended"

    def to_json(self) -> dict[str, Any]:
        """The record, and how it came."""
        told = {"redelivered": self.redelivered, "deliveries": self.deliveries, "replayed": self.replayed}
        return {**self.record, **told}


class Note:
    """A line that is no signal: one was answered, is queued after all, the session has another owner, or the lines
    before this one were dropped."""

    __slots__ = ("fields",)

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = fields

    def __repr__(self) -> str:
        return f"<Note {self.fields}>"

    @property
    def answered(self) -> int | None:
        return _number(self.fields.get("answered"))

    @property
    def queued(self) -> int | None:
        return _number(self.fields.get("queued"))

    @property
    def hands_over(self) -> bool:
        return "owner" in self.fields

    @property
    def owner(self) -> str | None:
        owner: str | None = self.fields["owner"]
        return owner


class Bad:
    """A line that is neither, and why; `is_torn` where it may be one that its writer did not finish."""

    __slots__ = ("is_torn", "why")

    def __init__(self, why: str, *, is_torn: bool = False) -> None:
        self.why = why
        self.is_torn = is_torn

    def __repr__(self) -> str:
        return f"<Bad line: {self.why}>"


def parse(line: bytes | str, session: str | None = None) -> Signal | Note | Bad:
    """One line, without or with its newline. `session`: in whose file it stands (`home` for the home's own)."""
    if len(line) > LINE_MAX_BYTES + 1:
        return Bad(f"longer than {LINE_MAX_BYTES} bytes")
    try:
        record = jsontext.read(line)
    except RecursionError:
        return Bad(f"nested deeper than {_DEPTH_MAX}")
    except ValueError:
        # Each record is an object, so what is torn off one begins as an object does.
        text = line.strip()
        return Bad("no JSON", is_torn=not text or text[:1] in (b"{", "{"))
    if not isinstance(record, dict):
        return Bad("no object")
    if jsontext.is_deeper(record, _DEPTH_MAX):
        return Bad(f"nested deeper than {_DEPTH_MAX}")
    if "seq" not in record:
        owner = record.get("owner")
        return Note(record) if owner is None or _is_text(owner) else Bad("owner is no text")
    try:
        signal = Signal(record)
    except ValueError as problem:
        return Bad(str(problem))
    if session is not None and session != (signal.session or HOME):
        return Bad(f"it speaks of {signal.session or HOME}")
    return signal


def signal_id(session: str | None, seq: int) -> str:
    return f"{session or HOME}.{seq}"


def split_id(id: object) -> tuple[str, int] | None:
    """The session (or `home`) and the number; None where `id` is not the id of a signal. Never a prefix or a name."""
    if not isinstance(id, str):
        return None
    session, dot, digits = id.rpartition(".")
    if not dot or not (session == HOME or is_id(session)) or not (digits.isascii() and digits.isdigit()):
        return None
    if len(digits) > 16 or digits[0] == "0":
        return None
    return session, int(digits)


def _variant_of(record: Mapping[str, Any]) -> str:
    """The one key that says what happened. Keys of a later release that are no objects are no variants."""
    known = [key for key in record if key in _VARIANTS]
    if len(known) > 1:
        raise ValueError(f"two variants: {known[0]} and {known[1]}")
    if known:
        if not isinstance(record[known[0]], dict):
            raise ValueError(f"{known[0]} is no object")
        return known[0]
    new = [key for key, value in record.items() if key not in _COMMON and isinstance(value, dict)]
    if len(new) != 1:
        raise ValueError("no variant" if not new else f"two variants: {new[0]} and {new[1]}")
    return new[0]


def _check(record: Mapping[str, Any]) -> None:
    session, seq = record.get("session"), _number(record.get("seq"))
    if seq is None or not 1 <= seq <= _SEQ_MAX:
        raise ValueError("seq is no number from 1")
    if session is not None and not (isinstance(session, str) and is_id(session)):
        raise ValueError("session is no id")
    if record.get("id") != signal_id(session, seq):
        raise ValueError(f"id is not {signal_id(session, seq)}")
    for name in ("kind", "owner", "at", "boot"):
        if record.get(name) is not None and not _is_text(record[name]):
            raise ValueError(f"{name} is no text")
    for name in ("v", "attempt", "mono_ns"):
        if record.get(name) is not None and _number(record[name]) is None:
            raise ValueError(f"{name} is no number")
    if record.get("snapshot") is not None and not isinstance(record["snapshot"], dict):
        raise ValueError("snapshot is no object")


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_text(value: object) -> bool:
    """Text that can be stored: an owner is compared byte by byte, and half a surrogate pair has no bytes."""
    if not isinstance(value, str):
        return False
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
