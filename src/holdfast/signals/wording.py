"""Signals in words: what happened, how a session ended, numbers, times, cursors. All styles share them.

Each sentence says what happened, what is not known, and where to read more; no sentence asks the reader to do anything.
"""

from __future__ import annotations

from ..core.records import STREAM_NUMBERS
from . import typed
from .items import AGENTS, ENDING, EVENTS, FOLDED, REPLAYED, WATCH, match_count, status

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from .items import Item
    from .lines import Signal
    from .redact import Quoter


# Parts of sentences: numbers, times, cursors, names.


_NAMED_PROCESSES = 3
_PROCESS_CHARACTERS = 60


def name(signal: Signal) -> str:
    """What the session is called; empty where its record says nothing."""
    shot = signal.snapshot
    return next(filter(None, (typed.text(shot, key) for key in ("name", "description", "command"))), "")


def cursor(signal: Signal, offsets: Mapping[str, int]) -> str:
    """`cursor stdout:88412`. A stream without an offset is at the end that it had, because a reader would start at its
    beginning otherwise. Empty where there is no offset at all."""
    if not offsets:
        return ""
    ends = typed.offsets(signal.snapshot, "ends")
    all_of_them = {**{stream: end for stream, end in ends.items() if end}, **offsets}
    order = sorted(all_of_them, key=lambda stream: (stream not in offsets, STREAM_NUMBERS[stream]))
    return "cursor " + ",".join(f"{stream}:{all_of_them[stream]}" for stream in order)


def lines(count: int) -> str:
    return f"{count} line" if count == 1 else f"{count} lines"


def spell(seconds: float) -> str:
    """0.4s, 12s, 3m 12s, 5m, 2h 5m, 3d 4h."""
    if seconds < 10:
        return f"{seconds:.1f}".removesuffix(".0") + "s"
    whole = int(seconds)
    for size, unit, small, part in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            rest = whole % size // small
            return f"{whole // size}{unit}" + (f" {rest}{part}" if rest else "")
    return f"{whole}s"


def spelt(seconds: float | None) -> str:
    return "an unknown time" if seconds is None else spell(seconds)


def as_of(signal: Signal) -> str:
    at = time_of(signal.at)
    return f", as of {at}" if at else ""


def time_of(value: object) -> str:
    """A time as it was recorded, to the second; empty for anything else."""
    if not isinstance(value, str) or not 19 <= len(value) <= 35 or not value.isascii():
        return ""
    known = value[:19].replace("T", "-").replace(":", "-").split("-")
    return value[:19] + "Z" if len(known) == 6 and all(map(str.isdecimal, known)) else ""


def processes(found: Sequence[Mapping[str, Any]], quoter: Quoter) -> str:
    named: Iterable[str] = (
        f"pid {typed.count(each, 'pid')} {quoter.quoted(typed.text(each, 'command'), _PROCESS_CHARACTERS)}"
        for each in found[:_NAMED_PROCESSES]
    )
    more = len(found) - _NAMED_PROCESSES
    return ", ".join([*named, *([f"and {more} more"] if more > 0 else [])])


# How a session ended: its status, why and by whom, what was observed, what still runs, where its output is.


# How a stop ended that was not finished within its grace period.
_STOPPED = {"kill": ", killed after the grace", "elsewhere": ", killed by another process within the grace"}
# How long these took is not known.
_NEVER_SEEN = ("lost", "spawn_error")
_ERROR_CHARACTERS = 160


def ending(item: Item, quoter: Quoter) -> str:
    signal = item.signal
    said = [f"{status(signal)}, {outcome(signal, quoter)}".removesuffix(", ")]
    took = typed.seconds(signal.fields, "duration_s")
    if took is not None and signal.kind != "monitor" and typed.text(signal.fields, "cause") not in _NEVER_SEEN:
        said[0] += f" after {spell(took)}"
    if signal.fields.get("start_limit") is True:
        said[0] += ", not restarted: the start limit was reached"
    if signal.attempt > 1:
        said[0] += f", attempt {signal.attempt}"
    if signal.kind == "monitor":
        said[0] += f", events={typed.count(typed.table(signal.fields, 'events'), 'count')}"
    if signal.kind == "lsp":
        said[0] += f", {server(signal, quoter)}"
    said += ending_additions(item, quoter)
    return "; ".join(said)


def ending_additions(item: Item, quoter: Quoter) -> list[str]:
    """What else a reader should know of an ending."""
    signal = item.signal
    said = []
    if signal.fields.get("output_complete") is False:
        said.append("output incomplete")
    unsearched = typed.count(typed.table(signal.fields, "watch"), "unscanned")
    if unsearched:
        said.append(f"{unsearched} bytes were not searched for matches")
    unmatched = typed.count(typed.table(signal.fields, "watch"), "suppressed")
    if unmatched:
        said.append(f"{lines(unmatched)} that matched were not reported")
    if item.survivor_count:
        said.append(survivors_sentence(item, quoter))
    return said


def survivors_sentence(item: Item, quoter: Quoter) -> str:
    count = item.survivor_count
    named = processes(item.survivors, quoter)
    return f"{count} of its processes still {'runs' if count == 1 else 'run'}{': ' + named if named else ''}"


def outcome(signal: Signal, quoter: Quoter) -> str:
    """The cause, unless it is a plain exit, followed by the exit code or signal."""
    parts = [ending_reason(signal, quoter), ending_seen(signal)]
    return ", ".join(filter(None, parts)) or ("" if signal.kind in AGENTS else "exit code unknown")


def ending_seen(signal: Signal) -> str:
    """The observed code or signal; empty if unknown."""
    name = typed.text(signal.fields, "signal")
    code = typed.number(signal.fields, "code")
    if code is not None:
        return f"exit code {code}"
    return f"signal {name}" if is_signal_name(name) else ""


def is_signal_name(name: str) -> bool:
    """Not only those of this system: the session may have run on another."""
    return name.isascii() and name.isalnum() and len(name) < 20


def ending_reason(signal: Signal, quoter: Quoter) -> str:
    """The cause, and the author of a stop; empty for a plain exit."""
    fields = signal.fields
    cause, by = typed.text(fields, "cause"), typed.text(fields, "by")
    if cause == "signal" and by:
        return f"signal sent by {quoter.word(by)}"
    if cause in ("", "exit", "signal"):
        return ""
    if cause == "stop":
        asked = f"stopped by {quoter.word(by)}" if by else "stopped by request"
        return asked + how_stopped(fields)
    if cause == "spawn_error":
        why = ending_error(signal)
        return f"could not be started: {quoter.label(why, _ERROR_CHARACTERS)}" if why else "could not be started"
    if cause == "lost":
        return "lost: its runner is gone and recorded no exit, so how it ended is unknown"
    limit = typed.seconds(fields, "limit_s")
    return limit_words(cause, "" if limit is None else spell(limit)) or f"cause {quoter.word(cause)}"


def limit_words(cause: str, length: str = "") -> str:
    """Which limit ended a command, with its length if known; empty for another cause."""
    return {
        "overall_timeout": f"timed out after {length}".removesuffix(" after "),
        "idle_timeout": f"printed nothing for {length or 'too long'}",
        "ttl": f"reached its time to live of {length}".removesuffix(" of "),
        "owner_gone": "outlived the process that owned it",
        "out_of_memory": "exceeded its memory limit",
    }.get(cause, "")


def how_stopped(fields: dict[str, Any]) -> str:
    """What to add to "stopped by"."""
    stopped = typed.text(fields, "stopped")
    if stopped == "at_once" and not fields.get("signal"):
        return ", killed at once"  # without a runner, nothing else says that it was killed
    return _STOPPED.get(stopped, "")


def ending_error(signal: Signal) -> str:
    """Why it could not be started."""
    for holder in (signal.fields, signal.snapshot, typed.table(signal.snapshot, "metadata")):
        error = holder.get("error")
        if isinstance(error, dict):
            error = error.get("message")
        if isinstance(error, str) and error:
            return error
    return ""


def server(signal: Signal, quoter: Quoter) -> str:
    """Of a language server."""
    facts_of = typed.table(signal.snapshot, "metadata")
    restarts = typed.count(facts_of, "restarts")
    failed, most = typed.count(facts_of, "failed_starts"), typed.count(facts_of, "max_restarts")
    name, state = quoter.word(facts_of.get("server")), quoter.word(facts_of.get("state"))
    return f"server={name}, state={state}, restarts={restarts}" + (f", failed starts={failed}/{most}" if most else "")


def again(item: Item, quoter: Quoter) -> str:
    signal = item.signal
    count = len(item.signals)
    noun = "signal" if count == 1 else "signals"
    note = f"replayed ({count} older {noun}, delivered again because the index was rebuilt)"
    if signal.ends_session:
        return f"{status(signal)}, {outcome(signal, quoter)}, {note}"
    kinds = dict.fromkeys(quoter.word(each.variant) for each in item.signals)
    return f"{', '.join(kinds)}: {note}"


def no_output(item: Item) -> str:
    """The text in the place of output, for an ending without any."""
    if item.signal.kind in AGENTS:
        return "(no summary)"
    return "" if item.signal.kind == "monitor" or ending_printed(item.signal) else "(no output)"


def ending_printed(signal: Signal) -> bool:
    return any(ends_of(signal).values())


def ends_of(signal: Signal) -> dict[str, int]:
    """The end offset of each stream."""
    recorded = isinstance(signal.fields.get("ends"), dict)
    return typed.offsets(signal.fields if recorded else signal.snapshot, "ends")


def whole_output(signal: Signal) -> str:
    """The cursor to read all that is kept; empty where nothing was printed."""
    ends = ends_of(signal)
    dropped = typed.offsets(signal.snapshot, "dropped_before")
    spoken = sorted((stream for stream, end in ends.items() if end), key=("stderr", "stdout", "tty").index)
    return ",".join(f"{stream}:{dropped.get(stream, 0)}" for stream in spoken)


# What happened, in one line after the name of a session. All styles share these words.


# It was delivered before; whether the reader handled it is unknown.
REDELIVERED = "redelivered (you may have it already)"
_WHY_DISABLED = {
    "strikes": "it matched too often, several times in a row",
    "lifetime": "the limit of match notices is reached",
    "too_slow": "the pattern took too long to match",
}
_LEVELS = {
    "held": "held: notices are delayed, because it prints too much",
    "digest": "digest: fewer notices while it floods",
}


def say(item: Item, quoter: Quoter, shown: int) -> str:
    """The sentence of an item that has `shown` lines of output below it."""
    if item.group == ENDING:
        text = ending(item, quoter)
    elif item.group == REPLAYED:
        text = again(item, quoter)
    elif item.group == EVENTS:
        count = item.left_out(shown) + item.counted(shown)
        text = "; ".join(filter(None, [f"printed {lines(count) if count else 'no lines'}", level(item)]))
    elif item.group == WATCH:
        text = _matched(item.signal, quoter)
    elif item.group == FOLDED:
        text = _folded(item)
    else:
        text = _notice(item, quoter)
    return quoter.short(text) + (f"; {REDELIVERED}" if item.redelivered else "")


def level(item: Item) -> str:
    """Of events: that the monitor holds lines back, or no longer does; empty where nothing changed."""
    said = _LEVELS.get(typed.text(item.signal.fields, "level"), "")
    if said or item.closed:
        return said
    were = {typed.text(signal.fields, "level") for signal in item.signals}
    were.add(typed.text(item.signals[0].fields, "level_before"))
    return "live again: lines are reported as they are printed" if were & _LEVELS.keys() else ""


def suppressed(item: Item, shown: int, read: str) -> str:
    """What was left out, and where it begins; empty where nothing was."""
    left_out = item.left_out(shown)
    return f"{lines(left_out)} suppressed, {read}" if left_out else ""


def _matched(signal: Signal, quoter: Quoter) -> str:
    fields = signal.fields
    stream = typed.stream(fields)
    pattern = quoter.quoted(typed.text(fields, "text") or fields.get("pattern"))
    said = f"matched {pattern}{f' on {stream}' if stream else ''}"
    more, earlier = typed.count(fields, "more"), typed.count(fields, "suppressed")
    if more:
        said += f"; {more} more {'line' if more == 1 else 'lines'} matched with it"
    if earlier:
        said += f"; {lines(earlier)} that matched earlier were suppressed"
    where = cursor(signal, {stream: typed.count(fields, "offset")} if stream else {})
    return said + (f"; output from there: {where}" if where else "")


def _folded(item: Item) -> str:
    count, sessions = sum(map(match_count, item.signals)), len({signal.session for signal in item.signals})
    noun = "session" if sessions == 1 else "sessions"
    return f"too many sessions matched at once: {lines(count)} of {sessions} more {noun}, with the first line of each:"


def _notice(item: Item, quoter: Quoter) -> str:
    signal = item.signal
    text = _SENTENCES.get(signal.variant, _unknown)(item, quoter)
    earlier = len(item.signals) - 1
    if earlier and signal.variant != "lifecycle":
        text += f" ({earlier} earlier of these not shown)"
    return text


def _lifecycle(item: Item, quoter: Quoter) -> str:
    signal = item.signal
    fields = signal.fields
    if fields.get("phase") == "restarting":
        wait = typed.seconds(fields, "retry_in_s")
        times = max(typed.count(fields, "count"), len(item.signals))
        due = f"in {spell(wait)}" if wait is not None else "soon"
        often = f", {times} times so far" if times > 1 else ""
        return f"ended ({outcome(signal, quoter)}) and is restarted automatically {due}{often}{as_of(signal)}"
    return f"{quoter.word(fields.get('phase') or 'lifecycle')}{as_of(signal)}"


def _watch_disabled(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    why = typed.text(fields, "reason")
    hits, missed = typed.count(fields, "hits"), typed.count(fields, "suppressed")
    said = f"is no longer watched: {_WHY_DISABLED.get(why) or quoter.word(why)}; {hits} match notices delivered"
    said += f", suppressed {lines(missed)} that matched" if missed else ""
    return f"{said}; it is still running, and you will be notified when it exits"


def _overflow(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    held = typed.count(fields, "suppressed")
    if fields.get("state") != "released":
        until = time_of(fields.get("until"))
        until = f"until {until}" if until else "for a while"
        return f"too many matches at once ({held} suppressed): matches are suppressed {until} and counted"
    more = typed.count(fields, "more_sessions")
    rest = f" (and {more} more sessions)" if more else ""
    return f"matches are reported again; {held} were held back, from these sessions{rest}:"


def _heartbeat(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    new = typed.count(fields, "new_lines")
    elapsed = typed.seconds(fields, "elapsed_s")
    after = f" after {spell(elapsed)}" if elapsed is not None else ""
    stream = typed.stream(fields)
    where = cursor(item.signal, {stream: typed.count(fields, "offset")}) if stream else ""
    said = (
        f"is still running{after}, {new} new {'line' if new == 1 else 'lines'} (heartbeat {typed.count(fields, 'n')})"
    )
    return f"{said}{as_of(item.signal)}" + (f"; output from there: {where}" if where else "")


def _needs_input(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    what = "a secret, such as a password" if fields.get("secret") is True else "input"
    kind = typed.text(fields, "kind")
    facts = ", ".join(
        filter(None, [kind and quoter.word(kind), *map(quoter.word, typed.texts(fields, "evidence")[:5])])
    )
    sure = typed.text(fields, "confidence")
    said = f"waits for {what} ({quoter.word(sure) if sure else 'unknown'} confidence{': ' + facts if facts else ''})"
    return said + as_of(item.signal)


def _deadline(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    limit, elapsed = typed.seconds(fields, "limit_s"), typed.seconds(fields, "elapsed_s")
    hard = typed.seconds(fields, "hard_in_s")
    said = f"has run for {spelt(elapsed)}, longer than expected"
    said += ("" if limit is None else f" ({spell(limit)})") + "; nothing was stopped"
    said += f", its time limit is reached in {spell(hard)}" if hard is not None else ", and it has no time limit"
    return said + as_of(item.signal)


def _ready(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    after = typed.seconds(fields, "after_s")
    when = f" after {spell(after)}" if after is not None else ""
    probe, detail = typed.text(fields, "probe"), typed.text(fields, "detail")
    facts = ", ".join(filter(None, [probe and quoter.word(probe), detail and quoter.quoted(detail)]))
    if fields.get("ok") is True:
        return f"is ready{when}" + (f" ({facts})" if facts else "") + as_of(item.signal)
    left = "" if detail.startswith("the command ended") else "; it is still running"
    return f"is not ready{when}" + (f": {facts}" if facts else "") + left + as_of(item.signal)


def _health(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    state = typed.text(fields, "state")
    facts = typed.text(fields, "evidence") or ", ".join(typed.texts(fields, "evidence"))
    evidence = quoter.quoted(facts) if facts else ""
    since = time_of(fields.get("since"))
    said = "is stale: its runner is gone but the command still runs; its output is no longer recorded; a stop ends it"
    if state != "stale":
        said = f"is {quoter.word(state)}"
    return said + (f" since {since}" if since else as_of(item.signal)) + (f" ({evidence})" if evidence else "")


def _gap(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    if fields.get("stream") == "signals":
        # Of the home itself: sessions were collected whose signals were not settled.
        named = [quoter.word(typed.text(each, "id")) for each in typed.tables(fields, "sessions")]
        more = typed.count(fields, "more_sessions")
        of = ", ".join([*named[:5], *(["..."] if more or len(named) > 5 else [])])
        return f"{typed.count(fields, 'signals')} signals were removed unread with their sessions ({of})"
    stream = typed.stream(fields) or "its output"
    why = typed.text(fields, "reason")
    said = f"is losing output: {stream} from offset {typed.count(fields, 'from')} on cannot be written to the disk"
    return said + (f" ({quoter.word(why)})" if why else "")


def _survivors(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    left = typed.tables(fields, "pids")
    if not left:
        return "has no more running processes"
    if fields.get("answered") is True:
        # Set by the host: an answer has already named these processes and how to end them.
        return "is still running in the background"
    after = "its stop" if fields.get("after") == "stop" else "its exit"
    holds = [name for name in typed.texts(fields, "holds") if name in STREAM_NUMBERS]
    count = len(left)
    said = f"left {count} {'process' if count == 1 else 'processes'} running after {after}"
    held = f" (holding {', '.join(holds)})" if holds else ""
    return f"{said}: {processes(left, quoter)}{held}; stopping the session ends them"


def _unknown(item: Item, quoter: Quoter) -> str:
    name = quoter.word(item.signal.fields.get("variant") or item.signal.variant)
    return f"has a signal that this version does not know: {name}"


_SENTENCES = {
    "lifecycle": _lifecycle,
    "watch_disabled": _watch_disabled,
    "overflow": _overflow,
    "heartbeat": _heartbeat,
    "needs_input": _needs_input,
    "deadline": _deadline,
    "ready": _ready,
    "health": _health,
    "gap": _gap,
    "survivors": _survivors,
}
