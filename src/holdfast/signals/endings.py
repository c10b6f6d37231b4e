"""How a session ended, in words: its status, why and by whom, what was seen, what lives on, where its output is."""

from __future__ import annotations

from . import facts
from .items import AGENTS, is_end, status
from .words import lines, processes, spell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .items import Item
    from .quoting import Quoter
    from .records import Signal

# How a stop went, where it did not end within its grace and was given one.
_STOPPED = {"kill": ", killed after the grace", "elsewhere": ", killed from elsewhere meanwhile"}
# Nobody knows how long these took.
_NEVER_SEEN = ("lost", "spawn_error")
_ERROR_CHARACTERS = 160


def ending(item: Item, quoter: Quoter) -> str:
    signal = item.signal
    said = [f"{status(signal)}, {outcome(signal, quoter)}".removesuffix(", ")]
    took = facts.seconds(signal.fields, "duration_s")
    if took is not None and signal.kind != "monitor" and facts.text(signal.fields, "cause") not in _NEVER_SEEN:
        said[0] += f" after {spell(took)}"
    if signal.fields.get("start_limit") is True:
        said[0] += ", not started again: too many starts"
    if signal.attempt > 1:
        said[0] += f", attempt {signal.attempt}"
    if signal.kind == "monitor":
        said[0] += f", events={facts.count(facts.table(signal.fields, 'events'), 'count')}"
    if signal.kind == "lsp":
        said[0] += f", {server(signal, quoter)}"
    said += additions(item, quoter)
    return "; ".join(said)


def additions(item: Item, quoter: Quoter) -> list[str]:
    """What else is to be known of an ending."""
    signal = item.signal
    said = []
    if signal.fields.get("output_complete") is False:
        said.append("output incomplete")
    unsearched = facts.count(facts.table(signal.fields, "watch"), "unscanned")
    if unsearched:
        said.append(f"{unsearched} bytes were never searched for matches")
    unmatched = facts.count(facts.table(signal.fields, "watch"), "suppressed")
    if unmatched:
        said.append(f"{lines(unmatched)} that matched were not told")
    if item.survivor_count:
        said.append(living(item, quoter))
    return said


def living(item: Item, quoter: Quoter) -> str:
    count = item.survivor_count
    named = processes(item.survivors, quoter)
    return f"{count} of its processes still {'runs' if count == 1 else 'run'}{': ' + named if named else ''}"


def outcome(signal: Signal, quoter: Quoter) -> str:
    """Why, where there is more to say than how, and how."""
    parts = [reason(signal, quoter), seen(signal)]
    return ", ".join(filter(None, parts)) or ("" if signal.kind in AGENTS else "exit code unknown")


def seen(signal: Signal) -> str:
    """The observed code or signal; empty where nobody saw any."""
    name = facts.text(signal.fields, "signal")
    code = facts.number(signal.fields, "code")
    if code is not None:
        return f"exit code {code}"
    return f"signal {name}" if is_signal_name(name) else ""


def is_signal_name(name: str) -> bool:
    """Not only those of this system: the session may have run elsewhere."""
    return name.isascii() and name.isalnum() and len(name) < 20


def reason(signal: Signal, quoter: Quoter) -> str:
    """The cause, and who asked; empty for a plain exit."""
    fields = signal.fields
    cause, by = facts.text(fields, "cause"), facts.text(fields, "by")
    if cause == "signal" and by:
        return f"signal sent by {quoter.word(by)}"
    if cause in ("", "exit", "signal"):
        return ""
    if cause == "stop":
        asked = f"stopped by {quoter.word(by)}" if by else "stopped by request"
        return asked + how_stopped(fields)
    if cause == "spawn_error":
        why = error(signal)
        return f"could not be started: {quoter.label(why, _ERROR_CHARACTERS)}" if why else "could not be started"
    limit = facts.seconds(fields, "limit_s")
    length = f" {spell(limit)}" if limit is not None else ""
    return {
        "overall_timeout": f"time limit{length}",
        "idle_timeout": f"no output for {spell(limit)}" if limit is not None else "no output for too long",
        "ttl": f"lifetime{length} over",
        "owner_gone": "the process that owned it ended",
        "out_of_memory": "out of memory",
        "lost": "lost: its runner is gone and recorded no exit, how it ended is unknown",
    }.get(cause) or f"cause {quoter.word(cause)}"


def how_stopped(fields: dict[str, Any]) -> str:
    """What to add to "stopped by"."""
    stopped = facts.text(fields, "stopped")
    if stopped == "at_once" and not fields.get("signal"):
        return ", killed at once"  # without a runner, nothing else says that it was killed
    return _STOPPED.get(stopped, "")


def error(signal: Signal) -> str:
    """Why it could not be started."""
    for holder in (signal.fields, signal.snapshot, facts.table(signal.snapshot, "metadata")):
        error = holder.get("error")
        if isinstance(error, dict):
            error = error.get("message")
        if isinstance(error, str) and error:
            return error
    return ""


def server(signal: Signal, quoter: Quoter) -> str:
    """Of a language server."""
    facts_of = facts.table(signal.snapshot, "metadata")
    restarts = facts.count(facts_of, "restarts")
    failed, most = facts.count(facts_of, "failed_starts"), facts.count(facts_of, "max_restarts")
    name, state = quoter.word(facts_of.get("server")), quoter.word(facts_of.get("state"))
    return f"server={name}, state={state}, restarts={restarts}" + (f", failed starts={failed}/{most}" if most else "")


def again(item: Item, quoter: Quoter) -> str:
    signal = item.signal
    count = len(item.signals)
    note = f"replayed ({count} older {'signal' if count == 1 else 'signals'}, told again since the index was rebuilt)"
    if is_end(signal):
        return f"{status(signal)}, {outcome(signal, quoter)}, {note}"
    kinds = dict.fromkeys(quoter.word(each.variant) for each in item.signals)
    return f"{', '.join(kinds)}: {note}"


def no_output(item: Item) -> str:
    """What stands where no output does, of an ending without any."""
    if item.signal.kind in AGENTS:
        return "(no summary)"
    return "" if item.signal.kind == "monitor" or printed(item.signal) else "(no output)"


def printed(signal: Signal) -> bool:
    return any(ends_of(signal).values())


def ends_of(signal: Signal) -> dict[str, int]:
    """How far each stream went."""
    told = isinstance(signal.fields.get("ends"), dict)
    return facts.offsets(signal.fields if told else signal.snapshot, "ends")


def whole_output(signal: Signal) -> str:
    """The cursor from which all that is kept is read; empty where nothing was printed."""
    ends = ends_of(signal)
    dropped = facts.offsets(signal.snapshot, "dropped_before")
    spoken = sorted((stream for stream, end in ends.items() if end), key=("stderr", "stdout", "tty").index)
    return ",".join(f"{stream}:{dropped.get(stream, 0)}" for stream in spoken)
