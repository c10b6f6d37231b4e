"""What a person reads: one short text of one signal, or of several about the same session. Pure.

A title that says the most important on its own, and a body of a few lines. Everything is redacted first; then every
text that a session can choose becomes one line without anything that a terminal or another program would act on.
"""

from __future__ import annotations

from ..lines import COMMON, Signal
from ..redact import clean_text, cut, escape_hidden
from ..typed import seconds
from ..wording import how_stopped, limit_words, spell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ..redact import Redactor


_LABEL_CHARACTERS = 80
_LINE_CHARACTERS = 240
_BODY_LINES = 10
# At most this many joined signals are named in the text and included in full in a post.
JOINED_NAMED = 5
_THEIRS = ("owner", "snapshot")
_CAUSES = {"lost": "lost, how it ended is unknown", "spawn_error": "could not be started"}


class Notice:
    """`first` is what it is about; `others` came with it. `fields` are what a command may put into its arguments."""

    __slots__ = ("body", "fields", "first", "others", "title")

    def __init__(self, signals: Sequence[Signal], redact: Redactor) -> None:
        redacted = [_redacted(signal, redact) for signal in signals]
        self.first = max(redacted, key=lambda signal: (_weight(signal), signal.seq))
        self.others = [signal for signal in redacted if signal is not self.first]
        self.title = _title(self.first)
        self.body = "\n".join([*_body(self.first), *_joined(self.others)])
        self.fields = {**_fields(self.first), "title": self.title, "body": self.body}

    def record(self) -> dict[str, Any]:
        """The record as it is posted, with those that were joined to it."""
        if not self.others:
            return self.first.record
        joined = [each.record for each in self.others[:JOINED_NAMED]]
        return {**self.first.record, "joined": joined, "joined_more": len(self.others) - len(joined)}


def _redacted(signal: Signal, redact: Redactor) -> Signal:
    """The fields that Holdfast wrote stay as they are: they identify the signal for the receiver."""
    ours = {name: signal.record[name] for name in COMMON if name in signal.record and name not in _THEIRS}
    return Signal({**redact.value(signal.record), **ours}, deliveries=signal.deliveries, replayed=signal.replayed)


def _weight(signal: Signal) -> int:
    """What a person most needs to know leads."""
    return 2 if signal.ends_session else 1 if signal.variant == "needs_input" else 0


def _fields(signal: Signal) -> dict[str, str]:
    shot, fields = signal.snapshot, signal.fields
    return {
        "kind": _line(signal.kind),
        "status": _line(fields.get("status") or shot.get("status")),
        "session": signal.session or "",
        "name": _line(shot.get("name")),
        "owner": _line(signal.owner),
        "code": _line(fields.get("code")),
        "cause": _line(fields.get("cause")),
        "line": _line(_key_line(signal)),
        # Reserved for the address of the session's page; not filled in yet.
        "url": "",
        "place": _line(shot.get("place")),
    }


def _title(signal: Signal) -> str:
    if signal.variant == "overflow":
        if signal.fields.get("state") == "tripped":
            return "too many matches at once: further matches are held back for a while"
        return f"{_line(signal.fields.get('suppressed'))} matches were held back"
    return f"{_label(signal)} {_happened(signal)}"


def _label(signal: Signal) -> str:
    shot = signal.snapshot
    given = shot.get("name") or shot.get("description") or shot.get("command") or signal.session
    return cut(_line(given or "the home"), _LABEL_CHARACTERS)


def _happened(signal: Signal) -> str:
    fields = signal.fields
    if signal.variant == "lifecycle":
        return _ended(fields) if signal.ends_session else f"restarts: {_outcome(fields)}"
    if signal.variant == "needs_input":
        return "waits for a secret" if fields.get("secret") else "waits for input"
    if signal.variant == "watch":
        return f"printed {_line(fields.get('text'))!r}"
    if signal.variant == "ready":
        return "is ready" if fields.get("ok") else f"is not ready: {_line(fields.get('detail'))}"
    if signal.variant == "health":
        return f"is {_line(fields.get('state'))}"
    if signal.variant == "deadline":
        elapsed = seconds(fields, "elapsed_s")
        return "has been running for a long time" if elapsed is None else f"has been running for {spell(elapsed)}"
    if signal.variant == "survivors":
        pids = fields.get("pids")
        return f"left {len(pids) if isinstance(pids, list) else 'some'} processes behind"
    return {
        "event": "has news",
        "heartbeat": "still runs",
        "watch_disabled": "is no longer watched",
        "gap": "is losing output: it cannot be written to the disk",
    }.get(signal.variant, "has a signal that this version does not know")


def _ended(fields: dict[str, Any]) -> str:
    outcome = _outcome(fields)
    took = seconds(fields, "duration_s")
    return outcome if took is None else f"{outcome} after {spell(took)}"


def _outcome(fields: dict[str, Any]) -> str:
    status, cause = _line(fields.get("status")) or "ended", str(fields.get("cause"))
    if cause == "stop":
        by = _line(fields.get("by"))
        asked = f"{status}, stopped by {by}" if by else f"{status}, stopped"
        return asked + how_stopped(fields)
    why = _CAUSES.get(cause) or limit_words(cause)
    if why:
        return f"{status}, {why}"
    if fields.get("signal"):
        by = _line(fields.get("by"))
        return f"{status}, {_line(fields['signal'])}" + (f" sent by {by}" if by else "")
    return f"{status}, exit code {_line(fields['code'])}" if fields.get("code") is not None else status


def _key_line(signal: Signal) -> object:
    """The one line of output that says most."""
    fields = signal.fields
    if signal.variant == "needs_input":
        return fields.get("line")
    lines = _body(signal)
    return lines[0] if signal.variant in ("watch", "event") and lines else lines[-1] if lines else ""


def _body(signal: Signal) -> list[str]:
    """Output, the errors before the rest."""
    fields = signal.fields
    if signal.variant in ("watch", "event"):
        found = fields.get("lines")
        given = found[:_BODY_LINES] if isinstance(found, list) else []
        return [_line(each.get("text") if isinstance(each, dict) else each) for each in given]
    if signal.variant == "needs_input":
        return [_line(fields["line"])] if fields.get("line") else []
    tails = fields.get("tail")
    if isinstance(tails, str):
        tails = {"": {"text": tails}}
    if not isinstance(tails, dict):
        return []
    lines: list[str] = []
    for stream in sorted(tails, key=lambda stream: (stream != "stderr", stream)):
        text = tails[stream].get("text") if isinstance(tails[stream], dict) else None
        if isinstance(text, str) and text.strip() and not lines:
            lines = [_line(line) for line in text.splitlines() if line.strip()][-_BODY_LINES:]
    return lines


def _joined(others: list[Signal]) -> list[str]:
    if not others:
        return []
    named = [f"- {_happened(signal)}" for signal in others[:JOINED_NAMED]]
    more = len(others) - len(named)
    return [f"and {len(others)} more:", *named, *([f"- and {more} more"] if more else [])]


def _line(given: object) -> str:
    """One line of anything."""
    if given is None:
        return ""
    text = given if isinstance(given, str) else str(given)
    return cut(escape_hidden(clean_text(text).replace("\n", " ").replace("\t", " ")), _LINE_CHARACTERS)
