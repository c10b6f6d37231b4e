"""What happened, in one line that stands alone after the name of a session. All styles share these words.

Each says what is, what is not known, and where more is to be read; none tells anybody to do something.
"""

from __future__ import annotations

from ..runner.log import STREAM_NUMBERS
from . import facts
from .endings import again, ending, outcome
from .items import AGAIN, ENDING, EVENTS, WATCH
from .words import as_of, cursor, lines, processes, spell, spelt, time_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .items import Item
    from .quoting import Quoter
    from .records import Signal

# It was given out before, and nobody knows how far that went.
AGAIN_TOLD = "redelivered (it may be known already)"
_WHY_DISABLED = {
    "strikes": "too many matches came, time after time",
    "lifetime": "as many matches were told as one session may tell",
    "too_slow": "the pattern took too long to match",
}
_LEVELS = {
    "held": "held: notices wait for a token, as it prints much",
    "digest": "digest: a notice only now and then, while it floods",
}


def say(item: Item, quoter: Quoter, shown: int) -> str:
    """The sentence of an item, `shown` lines of output standing below it."""
    if item.group == ENDING:
        text = ending(item, quoter)
    elif item.group == AGAIN:
        text = again(item, quoter)
    elif item.group == EVENTS:
        count = item.left_out(shown) + item.counted(shown)
        text = "; ".join(filter(None, [f"printed {lines(count) if count else 'no lines'}", level(item)]))
    elif item.group == WATCH:
        text = _matched(item.signal, quoter)
    else:
        text = _notice(item, quoter)
    return quoter.short(text) + (f"; {AGAIN_TOLD}" if item.redelivered else "")


def level(item: Item) -> str:
    """Of events: that the monitor tells less than all at once, or all again; empty where that is as ever."""
    said = _LEVELS.get(facts.text(item.signal.fields, "level"), "")
    if said or item.closed:
        return said
    were = {facts.text(signal.fields, "level") for signal in item.signals}
    were.add(facts.text(item.signals[0].fields, "level_before"))
    return "live again: notices come as it prints" if were & _LEVELS.keys() else ""


def suppressed(item: Item, shown: int, read: str) -> str:
    """What was left out, and where it begins; empty where nothing was."""
    left_out = item.left_out(shown)
    return f"{lines(left_out)} suppressed, {read}" if left_out else ""


def _matched(signal: Signal, quoter: Quoter) -> str:
    fields = signal.fields
    stream = facts.stream(fields)
    pattern = quoter.quoted(facts.text(fields, "text") or fields.get("pattern"))
    said = f"matched {pattern}{f' on {stream}' if stream else ''}"
    more, earlier = facts.count(fields, "more"), facts.count(fields, "suppressed")
    if more:
        said += f"; {more} more {'line' if more == 1 else 'lines'} matched with it"
    if earlier:
        said += f"; {lines(earlier)} that matched earlier were suppressed"
    where = cursor(signal, {stream: facts.count(fields, "offset")} if stream else {})
    return said + (f"; output from there: {where}" if where else "")


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
        wait = facts.seconds(fields, "retry_in_s")
        times = max(facts.count(fields, "count"), len(item.signals))
        due = f"in {spell(wait)}" if wait is not None else "soon"
        often = f", {times} times by now" if times > 1 else ""
        return f"ended ({outcome(signal, quoter)}) and starts again {due} by itself{often}{as_of(signal)}"
    return f"{quoter.word(fields.get('phase') or 'lifecycle')}{as_of(signal)}"


def _watch_disabled(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    why = facts.text(fields, "reason")
    hits, missed = facts.count(fields, "hits"), facts.count(fields, "suppressed")
    said = f"is not watched any more: {_WHY_DISABLED.get(why) or quoter.word(why)}; {hits} matches told"
    said += f", suppressed {lines(missed)} that matched" if missed else ""
    return f"{said}; it runs on, and its end will be told"


def _overflow(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    held = facts.count(fields, "suppressed")
    if fields.get("state") != "released":
        until = time_of(fields.get("until"))
        until = f"until {until}" if until else "for a while"
        return (
            f"too many matches at once ({held} suppressed): they are suppressed {until} and counted; all else is told"
        )
    more = facts.count(fields, "more_sessions")
    rest = f" (and {more} more sessions)" if more else ""
    return f"matches are told again; {held} were held back, of these sessions{rest}:"


def _heartbeat(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    new = facts.count(fields, "new_lines")
    elapsed = facts.seconds(fields, "elapsed_s")
    after = f" after {spell(elapsed)}" if elapsed is not None else ""
    stream = facts.stream(fields)
    where = cursor(item.signal, {stream: facts.count(fields, "offset")}) if stream else ""
    said = (
        f"is still running{after}, {new} new {'line' if new == 1 else 'lines'} (heartbeat {facts.count(fields, 'n')})"
    )
    return f"{said}{as_of(item.signal)}" + (f"; output from there: {where}" if where else "")


def _needs_input(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    what = "a secret, such as a password, to be typed" if fields.get("secret") is True else "somebody to type"
    kind = facts.text(fields, "kind")
    told = ", ".join(filter(None, [kind and quoter.word(kind), *map(quoter.word, facts.texts(fields, "evidence")[:5])]))
    sure = facts.text(fields, "confidence")
    said = f"waits for {what} ({quoter.word(sure) if sure else 'unknown'} confidence{': ' + told if told else ''})"
    return said + as_of(item.signal)


def _deadline(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    limit, elapsed = facts.seconds(fields, "limit_s"), facts.seconds(fields, "elapsed_s")
    hard = facts.seconds(fields, "hard_in_s")
    said = f"runs for {spelt(elapsed)}, longer than the {spelt(limit)} expected; nothing was stopped"
    said += f", its time limit ends it in {spell(hard)}" if hard is not None else ", and it has no time limit"
    return said + as_of(item.signal)


def _ready(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    after = facts.seconds(fields, "after_s")
    when = f" after {spell(after)}" if after is not None else ""
    probe, detail = facts.text(fields, "probe"), facts.text(fields, "detail")
    told = ", ".join(filter(None, [probe and quoter.word(probe), detail and quoter.quoted(detail)]))
    if fields.get("ok") is True:
        return f"is ready{when}" + (f" ({told})" if told else "") + as_of(item.signal)
    left = "" if detail.startswith("the command ended") else "; it was left running"
    return f"is not ready{when}" + (f": {told}" if told else "") + left + as_of(item.signal)


def _health(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    state = facts.text(fields, "state")
    told = facts.text(fields, "evidence") or ", ".join(facts.texts(fields, "evidence"))
    evidence = quoter.quoted(told) if told else ""
    since = time_of(fields.get("since"))
    said = "is stale: its runner is gone, the command lives, what it prints from now on is not recorded; a stop ends it"
    if state != "stale":
        said = f"is {quoter.word(state)}"
    return said + (f" since {since}" if since else as_of(item.signal)) + (f" ({evidence})" if evidence else "")


def _gap(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    if fields.get("stream") == "signals":
        # Of the home itself: a collection took sessions whose signals nobody had settled.
        named = [quoter.word(facts.text(each, "id")) for each in facts.tables(fields, "sessions")]
        more = facts.count(fields, "more_sessions")
        of = ", ".join([*named[:5], *(["..."] if more or len(named) > 5 else [])])
        return f"{facts.count(fields, 'signals')} signals were removed unread with their sessions ({of})"
    stream = facts.stream(fields) or "its output"
    why = facts.text(fields, "reason")
    said = f"loses output: the disk refuses {stream} from offset {facts.count(fields, 'from')} on"
    return said + (f" ({quoter.word(why)})" if why else "")


def _survivors(item: Item, quoter: Quoter) -> str:
    fields = item.signal.fields
    left = facts.tables(fields, "pids")
    if not left:
        return "has nothing running any more"
    if fields.get("answered") is True:
        # A host's own mark: the agent was told which processes, and how to end them.
        return "goes on in the background"
    after = "its stop" if fields.get("after") == "stop" else "its exit"
    holds = [name for name in facts.texts(fields, "holds") if name in STREAM_NUMBERS]
    count = len(left)
    said = f"left {count} {'process' if count == 1 else 'processes'} running after {after}"
    held = f" (holding {', '.join(holds)})" if holds else ""
    return f"{said}: {processes(left, quoter)}{held}; a stop of the session ends them"


def _unknown(item: Item, quoter: Quoter) -> str:
    name = quoter.word(item.signal.fields.get("variant") or item.signal.variant)
    return f"told something that this release has no words for: {name}"


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
