"""What clients may ask of a runner: one function per request, and the shape of each."""

from __future__ import annotations

from ..core import shapes, wire
from ..core.ending import CAUSE_OF_LIMIT
from ..core.kernel_signals import NUMBERS
from ..core.shapes import COUNT, NAME, OBJECT, OFFSETS, TEXT, Each, Kind, Shape, one_of, whole
from ..core.wire import Problem
from . import status
from .features.patterns import BadPattern
from .process_tree import set_title
from .streams import FIXES, QUEUE_MAX_BYTES, Stdin
from .terminal.pty import size_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from ..core.loop import Timer
    from .endpoint import Client
    from .session import Session
    from .terminal.terminal import Terminal

    Handler = Callable[[Session, Client, dict[str, Any]], "dict[str, Any] | None"]


_OUTPUT_MAX_BYTES = 256 << 10
# A century, as for hosts: a clock never overflows.
_LONGEST_S = 36525 * 86400
# Unanswered `wait` and `stop` of one client: more than any host sends, few enough to check in every turn.
_PENDING_MAX = 16
# Missed signals in one answer; the client asks again for the rest.
_SIGNALS_MAX = 16
_RING_CHARACTERS = 256


class Waiter:
    """A `wait` or `stop` request that is not answered yet."""

    def __init__(self, client: Client, request: dict[str, Any]) -> None:
        self.client = client
        self.request = request
        self.timer: Timer | None = None
        self.timed_out = False
        # True if the client gets the ending from us at once: then `exit.json` need not be synced.
        self.for_exit = bool(request.get("exit")) or request["type"] == "stop"
        # True if the client will confirm that it has reported the ending, so that it need not enter the queue.
        # `signals.py` describes the whole exchange.
        self.confirms = request.get("confirm") is True and bool(request.get("exit"))


def handle(session: Session, client: Client, request: dict[str, Any]) -> None:
    try:
        known = _REQUESTS.get(request["type"])
        if known is None:
            feature = request["type"][:80]
            text = f"the runner (version {status.VERSION}) does not know `{feature}`"
            raise Problem("unsupported", text, feature=feature, version=status.VERSION)
        handler, shape = known
        _check(shape, request)
        answer = handler(session, client, request)
    except Problem as problem:
        frame = wire.error(request, problem.code, str(problem), **problem.facts)
        if problem.fix is not None:
            frame["fix"] = problem.fix
    except OSError as problem:
        # No descriptor is left, or a file cannot be read: a request must not affect the command.
        frame = wire.error(request, "busy", f"`{request['type']}` failed: {problem.strerror}", what=problem.strerror)
    else:
        if answer is None:
            return
        frame = wire.reply(request, **answer)
    client.send({**frame, "status": status.status(session)})


def _check(shape: Kind, message: dict[str, Any]) -> None:
    try:
        shapes.check(shape, message)
    except ValueError as problem:
        argument = str(problem).split()[0].partition("[")[0].partition(".")[0]
        raise Problem("bad-argument", str(problem), argument=argument) from None


def answer_waiters(session: Session) -> None:
    for waiter in list(session.waiters):
        answer = _met(session, waiter)
        if answer is not None:
            session.waiters.remove(waiter)
            if waiter.timer is not None:
                waiter.timer.cancel()
            if waiter.confirms and answer.get("reason") == "exit":
                session.signals.may_confirm(waiter.client)
            waiter.client.send({**wire.reply(waiter.request, **answer), "status": status.status(session)})


def _met(session: Session, waiter: Waiter) -> dict[str, Any] | None:
    """The answer to a waiter, if its condition is met."""
    request = waiter.request
    if request["type"] == "stop":
        answer = session.stop_answer()
        return None if answer is None else {**answer, "signal_id": _ended_id(session)}
    after_signal = request.get("signals_after")
    # Records that the disk has not taken yet cannot be read.
    if after_signal is not None and session.signals.seq - session.signals.blocked > after_signal:
        found = session.signals.after(after_signal, _SIGNALS_MAX)
        if found:
            return {"reason": "signals", "signals": found}
    after = request.get("output_after")
    if after is not None:
        ends = session.log.ends()
        if any(ends.get(stream, 0) > offset for stream, offset in after.items()):
            return {"reason": "output"}
    # For language servers: the command is still running and has closed this stream.
    closed, tree = request.get("closed"), session.tree
    runs = session.exit is None and tree.command is not None and not tree.command_gone
    if closed is not None and runs and closed not in session.outputs.open_names:
        return {"reason": "closed"}
    if request.get("ready") and session.features.ready is not None:
        return {"reason": "ready", "ok": session.features.ready}
    if session.exit is not None:
        # `extinct` alone waits for the descendants; with `exit` it adds nothing: a host sends the one or the other.
        outlasts = request.get("extinct") and not request.get("exit")
        if not outlasts and (request.get("exit") or after is not None or after_signal is not None):
            return {"reason": "exit", "signal_id": _ended_id(session)}
        # Not before the record says so: the host reads the record, and would ask again at once.
        if outlasts and not tree.living() and not session.ending.unwritten:
            return {"reason": "extinct"}
    return {"reason": "timeout"} if waiter.timed_out else None


# The requests.


def _status_only(_session: Session, _client: Client, _request: dict[str, Any]) -> dict[str, Any]:
    return {}


def _output(session: Session, client: Client, request: dict[str, Any]) -> None:
    stream = request.get("stream") or "stdout"
    ends = session.log.ends()
    if stream not in ends:
        raise Problem("bad-argument", f"no stream {stream[:80]!r} here", argument="stream", streams=sorted(ends))
    since = request.get("since") or 0
    if since > ends[stream]:
        raise Problem("offset-ahead", f"{stream} ends at {ends[stream]}", end=ends[stream], offset=since)
    limit = request.get("limit")
    begin, payload = session.log.read(
        stream, since, _OUTPUT_MAX_BYTES if limit is None else min(limit, _OUTPUT_MAX_BYTES)
    )
    reply = wire.reply(
        request,
        stream=stream,
        cursor=begin + len(payload),
        end=ends[stream],
        dropped_before=session.log.first(stream),
        **{"from": begin},
    )
    client.send({**reply, "status": status.status(session)})
    client.send_bytes(wire.data(begin, payload))


def _write(session: Session, client: Client, request: dict[str, Any]) -> dict[str, Any] | None:
    if "parts" in request:
        return _type(session, client, request)
    name = "base64" if "base64" in request else "data"
    given: str = request.get(name) or ""
    try:
        unit = wire.from_text(given) if name == "base64" else given.encode()
    except UnicodeEncodeError:
        unit = None  # lone surrogates, which JSON can spell and UTF-8 cannot
    if unit is None or request.get(name) is None:
        raise Problem("bad-argument", f"`{name}` cannot be converted to bytes", argument=name)
    if session.terminal is not None:
        return _type(session, client, {**request, "parts": [{"raw": unit}]})
    _must_live(session)
    _must_be_attempt(session, request)
    _must_be_open(session)
    _must_have_room(session, len(unit))
    lost = False

    def taken(all_of_it: bool) -> None:
        nonlocal lost
        lost = not all_of_it
        client.send({"type": "written", "id": wire.number_of(request), "bytes": len(unit) if all_of_it else 0})

    session.inputs.note(client.author, len(unit), session.log.end("stdout"))
    session.stdin.write(unit, taken)
    if lost:
        _must_be_open(session)
    return {"accepted": len(unit)}


def _type(session: Session, client: Client, request: dict[str, Any]) -> dict[str, Any]:
    """Typed parts, checked as a whole before the first byte is written."""
    terminal = _terminal(session, "parts")
    size, warnings = terminal.check_input(request["parts"])
    _must_have_room(session, size)

    def taken(_whole: bool, count: int) -> None:
        client.send({"type": "written", "id": wire.number_of(request), "bytes": count})

    terminal.type(request["parts"], size, client.author, taken)
    return {"accepted": size, "parts": len(request["parts"]), "warnings": warnings}


def _close_stdin(session: Session, client: Client, _request: dict[str, Any]) -> dict[str, Any]:
    _must_live(session)
    _must_be_open(session)
    if isinstance(session.stdin, Stdin):
        session.inputs.note(client.author, 0, session.log.end("stdout"))
        session.stdin.close()
        return {}
    assert session.terminal is not None
    session.terminal.note_input(client.author, 1)
    return {"warnings": session.terminal.keyboard.type_eof()}


def _resize(session: Session, _client: Client, request: dict[str, Any]) -> dict[str, Any]:
    terminal = _terminal(session, "resize")
    _must_live(session)
    rows, cols = size_of([request.get("rows"), request.get("cols")])
    terminal.resize(rows, cols)
    return {"size": [rows, cols]}


def _ring(session: Session, _client: Client, request: dict[str, Any]) -> dict[str, Any]:
    text = "".join(filter(str.isprintable, request["text"]))[:_RING_CHARACTERS]
    return {"rung": 0 if session.terminal is None else session.terminal.ring(text)}


def _attach(session: Session, client: Client, request: dict[str, Any]) -> None:
    _terminal(session, "attach").attach(client, request)


def _send_signal(session: Session, client: Client, request: dict[str, Any]) -> dict[str, Any]:
    name = request["signal"].upper()
    number = NUMBERS.get(name if name.startswith("SIG") else "SIG" + name)
    if number is None:
        raise Problem("bad-argument", f"no signal {name[:80]!r}", argument="signal")
    target = request.get("target") or "command"
    _must_be_attempt(session, request)
    living = session.tree.living()
    if session.exit is not None and (target == "command" or not living):
        raise status.has_ended(session)
    sent = session.tree.send(target, number, living)
    # While the output of a command that has ended is drained, only its descendants get the signal.
    if sent and not session.tree.command_gone:
        session.ending.note_signal(number, client.author)
    return {"sent": sent}


def _stop(session: Session, client: Client, request: dict[str, Any]) -> dict[str, Any] | None:
    if session.exit is not None and not session.tree.living():
        ended = _ended_id(session)
        return {"found": [], "survivors": [], "rung": None, "took_s": 0.0, "already": True, "signal_id": ended}
    _must_wait_for_few(session, client)
    session.waiters.append(Waiter(client, request))
    by = (request.get("by") or "")[: wire.AUTHOR_CHARACTERS] or client.author
    session.stop(by=by, grace_s=request.get("grace"), ladder=request.get("ladder"))
    return None


def _wait(session: Session, client: Client, request: dict[str, Any]) -> None:
    _must_wait_for_few(session, client)
    waiter = Waiter(client, request)
    session.waiters.append(waiter)
    timeout = request.get("timeout")
    if timeout is not None:
        waiter.timer = session.loop.after(timeout, lambda: _out_of_time(session, waiter))
    answer_waiters(session)


def _out_of_time(session: Session, waiter: Waiter) -> None:
    waiter.timed_out = True
    answer_waiters(session)
    if waiter.confirms:
        session.signals.wake_waiting_hosts()


def _has_read(session: Session, client: Client, request: dict[str, Any]) -> None:
    """How far the client that the command waits for has read. It is not answered: the client sends it with every
    page."""
    session.has_read(client, request["read"])


def _restart(session: Session, client: Client, request: dict[str, Any]) -> dict[str, Any]:
    _must_live(session)
    if session.restarts is None:
        text = f"session {session.id} was started without `restart`: its command runs once"
        raise Problem("unsupported", text, feature="restart")
    session.restart((request.get("by") or client.author or "")[: wire.AUTHOR_CHARACTERS] or None)
    return {"desired": session.desired.facts()}


def _watch(session: Session, _client: Client, request: dict[str, Any]) -> dict[str, Any]:
    """`add` a pattern, with the limits for a session that had none, or `remove` one by its id."""
    _must_live(session)
    if request.get("remove") is not None:
        return {"removed": session.features.unwatch(request["remove"])}
    pattern, limits = request.get("add"), request.get("limits")
    if pattern is None or limits is None:
        raise Problem("bad-argument", "`watch` adds a pattern, with `limits`, or removes one by its id", argument="add")
    try:
        return {"watch": session.features.watch(pattern, limits)}
    except (BadPattern, KeyError, TypeError) as problem:
        raise Problem("bad-argument", f"{type(problem).__name__}: {problem}", argument="add") from None


def _update(session: Session, client: Client, request: dict[str, Any]) -> dict[str, Any]:
    confirmed: dict[str, Any] = {}
    if request.get("answered") is not None:
        confirmed["answered"] = session.signals.confirmed(client, request["answered"])
    if request.get("ready") is True:
        _must_be_attempt(session, request)
        session.features.report_ready()
    changes = {name: request[name] for name in shapes.CHANGEABLE if name in request}
    unknown = sorted(set(request) - set(shapes.CHANGEABLE) - {"type", "id", "answered", "ready", "attempt"})
    if unknown:
        raise Problem("bad-argument", f"cannot update {', '.join(unknown)}", argument=unknown[0])
    _check(_CHANGES, changes)
    for name in ("labels", "notify"):
        if name in changes and changes[name] is None:
            raise Problem("bad-argument", f"{name} must not be null", argument=name)
    if "lifetime" in changes:
        if changes["lifetime"] != "detached":
            raise Problem("bad-argument", "a session can only be made `detached` afterwards", argument="lifetime")
        session.outlive_call()
    if changes:
        new_owner = "owner" in changes and changes["owner"] != session.current("owner")
        session.changed.update(changes)
        for option in CAUSE_OF_LIMIT:
            if option in changes and session.exit is None:
                session.deadlines.set(option, changes[option])
        if session.tree.command is not None:
            session.write_state()
        if "name" in changes:
            set_title(session.id, changes["name"])
        if new_owner:
            session.signals.hand_over(changes["owner"])
        session.features.changed(changes)
    return {"changed": sorted(changes), **confirmed}


# What several requests need.


def _terminal(session: Session, what: str) -> Terminal:
    if session.terminal is None:
        raise Problem("not-a-tty", f"session {session.id} runs on pipes: `{what}` needs a terminal", id=session.id)
    return session.terminal


def _ended_id(session: Session) -> str | None:
    return None if session.signals.end_record is None else str(session.signals.end_record["id"])


def _must_wait_for_few(session: Session, client: Client) -> None:
    if sum(waiter.client is client for waiter in session.waiters) >= _PENDING_MAX:
        what = f"{_PENDING_MAX} requests of this connection wait for their answer"
        raise Problem("busy", f"busy: {what}", what=what)


def _must_be_attempt(session: Session, request: dict[str, Any]) -> None:
    """Input and signals for one attempt of a restarting command must not reach the next."""
    current = session.attempt.number
    meant = request.get("attempt", current)
    if meant != current:
        text = f"attempt {meant} of session {session.id} has ended, this is attempt {current}"
        raise Problem("session-ended", text, id=session.id, code=None, signal=None, ended_at=None)


def _must_live(session: Session) -> None:
    if session.exit is not None:
        raise status.has_ended(session)


def _must_have_room(session: Session, size: int) -> None:
    if not session.stdin.has_room(size):
        text = f"the input queue is full ({QUEUE_MAX_BYTES} bytes): the command does not read"
        queued = session.stdin.queued_bytes
        raise Problem("busy", text, queued=queued, key="input_queue_bytes", limit=QUEUE_MAX_BYTES)


def _must_be_open(session: Session) -> None:
    why = session.stdin.closed_because
    if why is not None:
        problem = Problem("stdin-closed", f"stdin of {session.id} is closed: {why}", id=session.id, why=why)
        problem.fix = FIXES.get(why)
        raise problem


_ANYTHING = Shape({})
_ANY_TEXT = Kind("text", lambda value: isinstance(value, str))
_SECONDS = Kind("seconds, 0 or more", lambda value: type(value) in (int, float) and 0 <= value <= _LONGEST_S)
_LIMIT = Kind("seconds, above 0", lambda value: type(value) in (int, float) and 0 < value <= _LONGEST_S)
_CHANGES = Shape(
    {},
    {
        **shapes.CHANGEABLE,
        **dict.fromkeys(("timeout", "idle_timeout", "ttl", "soft"), _LIMIT),
        "notify": one_of("never", "exit", "failure", "auto"),
    },
)
_TARGET = one_of("command", "group", "tree")
_SIGNAL = Kind("the name of a signal, such as TERM", lambda value: "SIG" + str(value) in NUMBERS)
_LADDER = Each(
    Shape({"signal": _SIGNAL, "wait_s": _SECONDS}, {"target": one_of("command", "group", "session", "tree")})
)

_ATTACH = Shape(
    {},
    {
        "role": one_of("control", "observe"),
        "lag": one_of("skip", "exact"),
        "kind": one_of("cli", "web", "agent"),
        "history_rows": whole(0, 100_001),
    },
)

_REQUESTS: dict[str, tuple[Handler, Kind]] = {
    "ping": (_status_only, _ANYTHING),
    "status": (_status_only, _ANYTHING),
    "output": (_output, Shape({}, {"stream": NAME, "since": COUNT, "limit": COUNT})),
    "write": (_write, Shape({}, {"base64": _ANY_TEXT, "data": _ANY_TEXT})),
    "close_stdin": (_close_stdin, _ANYTHING),
    "send_signal": (_send_signal, Shape({"signal": TEXT}, {"target": _TARGET})),
    "stop": (_stop, Shape({}, {"grace": _SECONDS, "by": TEXT, "ladder": _LADDER})),
    "wait": (_wait, Shape({}, {"timeout": _SECONDS, "output_after": OFFSETS, "signals_after": COUNT})),
    # The wire's name for backpressure.
    "hold": (_has_read, Shape({"read": OFFSETS})),
    "restart": (_restart, Shape({}, {"by": TEXT})),
    "watch": (_watch, Shape({}, {"remove": TEXT, "add": OBJECT, "limits": OBJECT})),
    "update": (_update, Shape({}, {"answered": COUNT})),
    "resize": (_resize, _ANYTHING),
    "attach": (_attach, _ATTACH),
    "ring": (_ring, Shape({"text": TEXT})),
}
