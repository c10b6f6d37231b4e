"""What clients may ask of a runner: one function per request."""

from __future__ import annotations

from . import attach, shapes, telling, wire
from .deadlines import CAUSES
from .kernel_signals import NUMBERS
from .patterns import BadPattern
from .stdin import FIXES, Stdin
from .wire import Problem

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .endpoint import Client
    from .life import Life
    from .loop import Timer
    from .terminal import Terminal


_OUTPUT_MAX_BYTES = 256 << 10
# A century, as for hosts: a clock never overflows.
_LONGEST_S = 36525 * 86400
# Unanswered `wait` and `stop` of one client: more than any host has, few enough to look at in every turn.
_PENDING_MAX = 16
# Of many signals that somebody missed, so many in one answer; the rest is asked for again.
_SIGNALS_MAX = 16
_RING_CHARACTERS = 256


class Waiter:
    """A `wait` or `stop` request that is not answered yet."""

    def __init__(self, client: Client, request: dict[str, Any]) -> None:
        self.client = client
        self.request = request
        self.timer: Timer | None = None
        self.timed_out = False

    @property
    def for_exit(self) -> bool:
        """Does somebody get the ending from us at once? Then a power loss cannot make it a lie."""
        return bool(self.request.get("exit")) or self.request["type"] == "stop"

    @property
    def confirms(self) -> bool:
        """Will the client say that it has told the ending, so that it need not enter the queue?"""
        return self.request.get("confirm") is True and bool(self.request.get("exit"))


def serve(life: Life, client: Client, request: dict[str, Any]) -> None:
    handler = _HANDLERS.get(request["type"])
    if handler is None:
        feature = request["type"][:80]
        text = f"the runner (version {telling.VERSION}) does not know `{feature}`"
        frame = wire.error(request, "unsupported", text, feature=feature, version=telling.VERSION)
        client.send({**frame, "status": telling.status(life)})
        return
    try:
        answer = handler(life, client, request)
    except Problem as problem:
        frame = wire.error(request, problem.code, str(problem), **problem.facts)
        if problem.fix is not None:
            frame["fix"] = problem.fix
        client.send({**frame, "status": telling.status(life)})
        return
    except OSError as problem:
        # No descriptor is left, or a file cannot be read: the command must not suffer for a question.
        frame = wire.error(request, "busy", f"`{request['type']}` failed: {problem.strerror}", what=problem.strerror)
        client.send({**frame, "status": telling.status(life)})
        return
    if answer is not None:
        client.send({**wire.reply(request, **answer), "status": telling.status(life)})


def answer_waiters(life: Life) -> None:
    for waiter in list(life.waiters):
        answer = _met(life, waiter)
        if answer is not None:
            life.waiters.remove(waiter)
            if waiter.timer is not None:
                waiter.timer.cancel()
            if waiter.confirms and answer.get("reason") == "exit":
                life.signals.expect(waiter.client)
            waiter.client.send({**wire.reply(waiter.request, **answer), "status": telling.status(life)})


def _ping(_life: Life, _client: Client, _request: dict[str, Any]) -> dict[str, Any]:
    return {}


def _output(life: Life, client: Client, request: dict[str, Any]) -> None:
    stream = _text(request, "stream", "stdout")
    ends = life.log.ends()
    if stream not in ends:
        raise Problem("bad-argument", f"no stream {stream[:80]!r} here", argument="stream", streams=sorted(ends))
    since = _number(request, "since", 0)
    if since > ends[stream]:
        raise Problem("offset-ahead", f"{stream} ends at {ends[stream]}", end=ends[stream], offset=since)
    limit = min(_number(request, "limit", _OUTPUT_MAX_BYTES), _OUTPUT_MAX_BYTES)
    begin, payload = life.log.read(stream, since, limit)
    facts = life.log.facts()
    reply = wire.reply(
        request,
        stream=stream,
        cursor=begin + len(payload),
        end=ends[stream],
        dropped_before=facts["dropped_before"][stream],
        **{"from": begin},
    )
    client.send({**reply, "status": telling.status(life)})
    client.send_bytes(wire.data(begin, payload))


def _write(life: Life, client: Client, request: dict[str, Any]) -> dict[str, Any] | None:
    if "parts" in request:
        return _type(life, client, request)
    unit = wire.from_text(request["base64"]) if "base64" in request else _utf8(_text(request, "data"))
    if unit is None:
        name = "base64" if "base64" in request else "data"
        raise Problem("bad-argument", f"`{name}` holds what cannot be made bytes", argument=name)
    if life.terminal is not None:
        return _type(life, client, {**request, "parts": [{"raw": unit}]})
    _must_live(life)
    _must_be_attempt(life, request)
    _must_be_open(life)
    _must_have_room(life, len(unit))
    lost = False

    def taken(all_of_it: bool) -> None:
        nonlocal lost
        lost = not all_of_it
        client.send({"type": "written", "id": wire.number_of(request), "bytes": len(unit) if all_of_it else 0})

    life.inputs.note(client.author, len(unit), life.log.end("stdout"))
    life.stdin.write(unit, taken)
    if lost:
        _must_be_open(life)
    return {"accepted": len(unit)}


def _type(life: Life, client: Client, request: dict[str, Any]) -> dict[str, Any]:
    """Typed parts, checked as a whole before the first byte is written."""
    terminal = _terminal(life, "parts")
    size, warnings = terminal.check_input(request["parts"])
    _must_have_room(life, size)

    def taken(_whole: bool, count: int) -> None:
        client.send({"type": "written", "id": wire.number_of(request), "bytes": count})

    terminal.type(request["parts"], size, client.author, taken)
    return {"accepted": size, "parts": len(request["parts"]), "warnings": warnings}


def _close_stdin(life: Life, client: Client, _request: dict[str, Any]) -> dict[str, Any]:
    _must_live(life)
    _must_be_open(life)
    if isinstance(life.stdin, Stdin):
        life.stdin.close()
        return {}
    assert life.terminal is not None
    life.terminal.note_input(client.author, 1)
    return {"warnings": life.terminal.keyboard.type_eof()}


def _resize(life: Life, _client: Client, request: dict[str, Any]) -> dict[str, Any]:
    terminal = _terminal(life, "resize")
    _must_live(life)
    rows, cols = attach.size_of([request.get("rows"), request.get("cols")])
    terminal.resize(rows, cols)
    return {"size": [rows, cols]}


def _ring(life: Life, _client: Client, request: dict[str, Any]) -> dict[str, Any]:
    """Where nobody can be attached, nobody is."""
    text = "".join(filter(str.isprintable, _text(request, "text")))[:_RING_CHARACTERS]
    return {"rung": 0 if life.terminal is None else life.terminal.ring(text)}


def _attach(life: Life, client: Client, request: dict[str, Any]) -> None:
    _terminal(life, "attach").attach(client, request)


def _terminal(life: Life, what: str) -> Terminal:
    if life.terminal is None:
        raise Problem("not-a-tty", f"session {life.id} runs on pipes: `{what}` needs a terminal", id=life.id)
    return life.terminal


def _send_signal(life: Life, client: Client, request: dict[str, Any]) -> dict[str, Any]:
    name = _text(request, "signal").upper()
    number = NUMBERS.get(name if name.startswith("SIG") else "SIG" + name)
    if number is None:
        raise Problem("bad-argument", f"no signal {name[:80]!r}", argument="signal")
    target = request.get("target", "command")
    if target not in ("command", "group", "tree"):
        raise Problem("bad-argument", "target is command, group or tree", argument="target")
    _must_be_attempt(life, request)
    living = life.family.living()
    if life.exit is not None and (target == "command" or not living):
        _must_live(life)
    sent = life.family.send(target, number, living)
    # While the output of a command that has ended is read, only its descendants get the signal.
    if sent and not life.family.command_gone:
        life.ending.note_signal(number, client.author)
    return {"sent": sent}


def _stop(life: Life, client: Client, request: dict[str, Any]) -> dict[str, Any] | None:
    if life.exit is not None and not life.family.living():
        ended = _ended_id(life)
        return {"found": [], "survivors": [], "rung": None, "took_s": 0.0, "already": True, "signal_id": ended}
    grace = _seconds(request, "grace")
    by = request.get("by")
    if by is not None:
        by = _text(request, "by")[: wire.AUTHOR_CHARACTERS]
    climb = request.get("ladder")
    if climb is not None:
        check_ladder(climb)
    _must_have_patience(life, client)
    life.waiters.append(Waiter(client, request))
    life.stop(by=by or client.author, grace_s=grace, climb=climb)
    return None


def check_ladder(climb: object) -> None:
    """A ladder that came over the wire: a list of {signal, target?, wait_s}."""
    good = isinstance(climb, list) and all(
        isinstance(rung, dict)
        and "SIG" + str(rung.get("signal")) in NUMBERS
        and rung.get("target", "command") in ("command", "group", "tree")
        and _is_duration(rung.get("wait_s"))
        for rung in climb
    )
    if not good:
        raise Problem("bad-argument", "a ladder is a list of {signal, target, wait_s}", argument="ladder")


def _wait(life: Life, client: Client, request: dict[str, Any]) -> None:
    timeout = _seconds(request, "timeout")
    after = request.get("output_after")
    if after is not None and not (isinstance(after, dict) and all(isinstance(at, int) for at in after.values())):
        raise Problem("bad-argument", "`output_after` is {stream: offset}", argument="output_after")
    if "signals_after" in request:
        _number(request, "signals_after", 0)
    _must_have_patience(life, client)
    waiter = Waiter(client, request)
    life.waiters.append(waiter)
    if timeout is not None:
        waiter.timer = life.loop.after(timeout, lambda: _out_of_time(life, waiter))
    answer_waiters(life)


def _hold(life: Life, client: Client, request: dict[str, Any]) -> None:
    """How far the reader that holds the command back has read. Not answered: it comes with every page."""
    read = request.get("read")
    if not (isinstance(read, dict) and all(type(at) is int and at >= 0 for at in read.values())):
        raise Problem("bad-argument", "`read` is {stream: offset}", argument="read")
    life.has_read(client, read)


def _out_of_time(life: Life, waiter: Waiter) -> None:
    waiter.timed_out = True
    answer_waiters(life)
    if waiter.confirms:
        life.signals.let_go()


def _restart(life: Life, client: Client, request: dict[str, Any]) -> dict[str, Any]:
    _must_live(life)
    if life.restarts is None:
        text = f"session {life.id} was started without `restart`: its command runs once"
        raise Problem("unsupported", text, feature="restart")
    life.restart(_text(request, "by", client.author or "")[: wire.AUTHOR_CHARACTERS] or None)
    return {"desired": life.desired.facts()}


def _watch(life: Life, _client: Client, request: dict[str, Any]) -> dict[str, Any]:
    """`add` a pattern, with the limits for a session that had none, or `remove` one by its id."""
    _must_live(life)
    if "remove" in request:
        return {"removed": life.features.unwatch(_text(request, "remove"))}
    pattern, limits = request.get("add"), request.get("limits")
    if not isinstance(pattern, dict) or not isinstance(limits, dict):
        raise Problem("bad-argument", "`watch` adds a pattern, with `limits`, or removes one by its id", argument="add")
    try:
        return {"watch": life.features.watch(pattern, limits)}
    except (BadPattern, KeyError, TypeError) as problem:
        raise Problem("bad-argument", f"{type(problem).__name__}: {problem}", argument="add") from None


def _update(life: Life, client: Client, request: dict[str, Any]) -> dict[str, Any]:
    confirmed: dict[str, Any] = {}
    if "answered" in request:
        confirmed["answered"] = life.signals.answered(client, _number(request, "answered", 0))
    if request.get("ready") is True:
        _must_be_attempt(life, request)
        life.features.told_ready()
    changes = {name: request[name] for name in telling.CHANGEABLE if name in request}
    unknown = sorted(set(request) - set(telling.CHANGEABLE) - {"type", "id", "answered", "ready", "attempt"})
    if unknown:
        raise Problem("bad-argument", f"cannot update {', '.join(unknown)}", argument=unknown[0])
    for option in CAUSES:
        if _seconds(changes, option) == 0:
            raise Problem("bad-argument", f"`{option}` is seconds, above 0", argument=option)
    for option in ("name", "owner", "description"):
        if changes.get(option) is not None:
            _text(changes, option)
    labels = changes.get("labels", {})
    if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
        raise Problem("bad-argument", "`labels` is {key: text}", argument="labels")
    try:
        # What a host would refuse to read from the record is not written there.
        shapes.check(shapes.CHANGES, changes)
    except ValueError as problem:
        raise Problem("bad-argument", str(problem), argument=str(problem).split()[0]) from None
    if changes.get("notify", "exit") not in ("never", "exit", "failure", "auto"):
        raise Problem("bad-argument", "`notify` is never, exit, failure or auto", argument="notify")
    if changes.get("notify_people") not in (None, True, False):
        raise Problem("bad-argument", "`notify_people` is true, false or null", argument="notify_people")
    if _seconds(changes, "soft") == 0:
        raise Problem("bad-argument", "`soft` is seconds, above 0", argument="soft")
    if "lifetime" in changes:
        if changes["lifetime"] != "detached":
            raise Problem("bad-argument", "a session can only be made `detached` afterwards", argument="lifetime")
        life.detach()
    if changes:
        handed_over = "owner" in changes and changes["owner"] != life.now("owner")
        life.changed.update(changes)
        for option in CAUSES:
            if option in changes and life.exit is None:
                life.deadlines.set(option, changes[option])
        if life.family.command is not None:
            life.write_state()
        if handed_over:
            life.signals.hand_over(changes["owner"])
        life.features.changed(changes)
    return {"changed": sorted(changes), **confirmed}


def _met(life: Life, waiter: Waiter) -> dict[str, Any] | None:
    request = waiter.request
    if request["type"] == "stop":
        answer = life.stop_answer()
        return None if answer is None else {**answer, "signal_id": _ended_id(life)}
    after_signal = request.get("signals_after")
    # What the disk does not take yet is nobody's to read: it is answered when it is there.
    if after_signal is not None and life.signals.seq - life.signals.blocked > after_signal:
        found = life.signals.after(after_signal, _SIGNALS_MAX)
        if found:
            return {"reason": "signals", "signals": found}
    after = request.get("output_after")
    if after is not None:
        ends = life.log.ends()
        if any(ends.get(stream, 0) > offset for stream, offset in after.items()):
            return {"reason": "output"}
    closed = request.get("closed")
    if closed is not None and _lives(life) and closed not in life.outputs.names:
        return {"reason": "closed"}
    if request.get("ready") and life.features.ready is not None:
        return {"reason": "ready", "ok": life.features.ready}
    if life.exit is not None:
        outlasts = request.get("extinct") and not request.get("exit")
        if not outlasts and (request.get("exit") or after is not None or after_signal is not None):
            return {"reason": "exit", "signal_id": _ended_id(life)}
        if outlasts and not life.family.living():
            return {"reason": "extinct"}
    return {"reason": "timeout"} if waiter.timed_out else None


def _lives(life: Life) -> bool:
    return life.exit is None and life.family.command is not None and not life.family.command_gone


def _ended_id(life: Life) -> str | None:
    return None if life.signals.ended is None else str(life.signals.ended["id"])


def _must_have_patience(life: Life, client: Client) -> None:
    if sum(waiter.client is client for waiter in life.waiters) >= _PENDING_MAX:
        what = f"{_PENDING_MAX} requests of this connection wait for their answer"
        raise Problem("busy", f"busy: {what}", what=what)


def _must_be_attempt(life: Life, request: dict[str, Any]) -> None:
    """What is meant for one process of a restarting command must not reach the next."""
    meant = request.get("attempt", life.attempt.number)
    if meant != life.attempt.number:
        text = f"attempt {meant} of session {life.id} has ended, this is attempt {life.attempt.number}"
        raise Problem("session-ended", text, id=life.id, code=None, signal=None, ended_at=None)


def _must_live(life: Life) -> None:
    if life.exit is not None:
        raise telling.has_ended(life)


def _number(request: dict[str, Any], name: str, default: int) -> int:
    value = request.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Problem("bad-argument", f"`{name}` must be a whole number, 0 or more", argument=name)
    return value


def _text(request: dict[str, Any], name: str, default: str | None = None) -> str:
    value = request.get(name, default)
    if not isinstance(value, str):
        raise Problem("bad-argument", f"`{name}` must be text", argument=name)
    return value


def _utf8(text: str) -> bytes | None:
    """None for lone surrogates, which JSON can spell and no encoding knows."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return None


def _seconds(request: dict[str, Any], name: str) -> float | None:
    value = request.get(name)
    if value is not None and not _is_duration(value):
        raise Problem("bad-argument", f"`{name}` is seconds, 0 or more", argument=name)
    return value


def _is_duration(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= _LONGEST_S


def _must_have_room(life: Life, size: int) -> None:
    if not life.stdin.has_room(size):
        raise Problem("busy", "the input queue is full: the command does not read", queued=life.stdin.queued_bytes)


def _must_be_open(life: Life) -> None:
    why = life.stdin.closed_because
    if why is not None:
        problem = Problem("stdin-closed", f"stdin of {life.id} is closed: {why}", id=life.id, why=why)
        problem.fix = FIXES.get(why)
        raise problem


_HANDLERS: dict[str, Callable[[Life, Client, dict[str, Any]], dict[str, Any] | None]] = {
    "ping": _ping,
    "status": _ping,
    "output": _output,
    "write": _write,
    "close_stdin": _close_stdin,
    "send_signal": _send_signal,
    "stop": _stop,
    "wait": _wait,
    "hold": _hold,
    "restart": _restart,
    "watch": _watch,
    "update": _update,
    "resize": _resize,
    "attach": _attach,
    "ring": _ring,
}
