"""Sessions: list, start, change, type, stop, remove."""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from starlette.responses import Response

from ...core import jsontext, wire
from ...core.clock import now_text
from ...core.processes import same as same_process
from ...errors import BadArgument, BadCursor, BadRequest, KeyReused
from ...model import LIVE_STATES, STATES, STATUSES, seconds
from ...model.options import CHOICE, DURATION, NUMBER, OPTIONS, OTHER, SWITCH, TEXT
from ...sessions import run
from ...sessions.aio import AsyncSession
from ...sessions.core import fits
from ...sessions.observe import read_files
from .. import replies
from ..attach import keys_of, text_of
from ..endpoints import as_json, endpoint, record, redacted, takes
from .home import unavailable

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...model import Snapshot
    from ...nodes.routes import Elsewhere
    from ..app import Ask


# The variables that a session gets although it was started with a clean environment.
_CLEAN_NAMES = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "TZ")


# Sessions: list, start, one, update, remove.


_SORTS: dict[str, Callable[[Snapshot], tuple[str, str]]] = {
    "created": lambda shot: (shot.created_at or "", shot.id),
    "ended": lambda shot: (shot.ended_at or "", shot.id),
    "activity": lambda shot: (shot.last_output_at or shot.started_at or "", shot.id),
    "name": lambda shot: (shot.name or "", shot.id),
}
# In these orders a running session moves to the front.
_MOVING = ("ended", "activity")


@endpoint(
    *("GET", "/v1/sessions", "observe", "Sessions, a page at a time"),
    query=(
        takes("state", CHOICE, "Only sessions in this state.", words=STATES),
        takes("status", CHOICE, "Only sessions with this status.", words=STATUSES),
        takes("label", TEXT, "Only sessions with this label, KEY:VALUE; repeated: all of them.", repeated=True),
        *(takes(name, TEXT, f"Only sessions of this {name}.") for name in ("owner", "name", "place", "kind")),
        takes("q", TEXT, "Text in id, name, command, directory, description or labels."),
        takes("since", TEXT, "Created at this time or later."),
        takes("until", TEXT, "Created at this time or earlier."),
        takes("needs_input", SWITCH, "Only sessions that wait for input, or only others."),
        takes("sort", CHOICE, "created (default), ended and activity: newest first.", words=tuple(_SORTS)),
        takes("limit", NUMBER, "Sessions of a page (default 50).", low=1, high=200),
        takes("after", TEXT, "The `next` of the page before."),
        takes("count", SWITCH, "Whether to count all sessions that fit."),
        takes("nodes", TEXT, "Also sessions of these nodes: all, or names separated by commas."),
    ),
    example={"state": "running", "limit": 10},
    gives=replies.Sessions,
)
async def sessions(ask: Ask) -> dict[str, Any]:
    query = ask.query
    labels = dict(label_of(text) for text in query.get("label", ()))
    query |= {name: _time(name, query[name]) for name in ("since", "until") if name in query}
    state = query.get("state")
    asked: dict[str, Any] = {"labels": labels, "state": state, "search": query.get("q")}
    asked |= {name: query.get(name) for name in ("owner", "status", "name")}
    shots = await ask.hf.sessions(all=state not in LIVE_STATES, **asked)
    shots = [shot for shot in shots if _fits(shot, query) and ask.caller.sees(shot.id, shot.owner, shot.labels)]
    away = unavailable(shots)
    more: dict[str, Any] = {}
    there: Elsewhere | None = None
    if "nodes" in query and ask.nodes is not None:
        from ...nodes import routes as nodes_routes

        fit = fits(**asked)
        there = nodes_routes.Elsewhere(ask.nodes, ask.caller, lambda shot: fit(shot) and _fits(shot, query))
        await there.look(query["nodes"])
    found: list[Snapshot] = [*shots, *(there.shots if there is not None else ())]
    order = _Order(query, found)
    items, has_more = order.page(found)
    count = len(found)
    if there is not None:
        # As far as the page is known to be right without asking the nodes.
        is_known = has_more and order.sort == "created" and not query.get("count")
        if await there.look_below(items[-1].created_at if is_known else None, ask.request.query_params):
            items, has_more = order.page([*shots, *there.shots])
        has_more, count = has_more or there.has_more, len(shots) + len(there.shots) + there.count
        if there.truncated:
            more["truncated"] = there.truncated
        if there.silent:
            shown = {getattr(shot, "node", "") for shot in items}
            named, more["unreachable_nodes"] = nodes_routes.unreachable(there.silent, shown)
            away += named
    if query.get("count"):
        more["count"] = count
    known = [{"node": None, **record(shot)} if "nodes" in query else record(shot) for shot in items]
    following = order.position(items[-1]) if items and has_more else None
    return {"items": known, "next": following, "unavailable": away, **more}


class _Order:
    """The order of a list, and where a page of it begins."""

    def __init__(self, query: dict[str, Any], shots: list[Snapshot]) -> None:
        self.sort = query.get("sort", "created")
        self._by, self._is_newest_first = _SORTS[self.sort], self.sort != "name"
        self._limit = query.get("limit", 50)
        self._last: tuple[str, str] | None = None
        if "after" in query:
            self._began, self._last = _position(query["after"], self.sort)
        else:
            times = [now_text(), *(self._by(shot)[0] for shot in shots)]
            self._began = max(times) if self.sort in _MOVING else ""

    def page(self, shots: list[Snapshot]) -> tuple[list[Snapshot], bool]:
        """The sessions of this page in their order, and whether there are more."""
        shots = sorted(shots, key=self._key, reverse=self._is_newest_first)
        last = self._last
        if last is not None and self._is_newest_first:
            shots = [shot for shot in shots if self._key(shot) < last]
        elif last is not None:
            shots = [shot for shot in shots if self._key(shot) > last]
        return shots[: self._limit], len(shots) > self._limit

    def position(self, shot: Snapshot) -> str:
        """Where the next page begins, if this page ends with `shot`."""
        return wire.as_text(jsontext.write([self.sort, self._began, *self._key(shot)]).encode())

    def _key(self, shot: Snapshot) -> tuple[str, str]:
        """The place in the list. What has moved since the first page comes last, so that it is not missed."""
        at, id = self._by(shot)
        return "" if self._began and at > self._began else at, id


def label_of(text: str) -> tuple[str, str]:
    key, colon, value = text.partition(":")
    if not colon:
        raise BadArgument("label", f"{text[:80]!a} has no colon", "give KEY:VALUE")
    return key, value


def _time(name: str, text: str) -> str:
    """In the form that sessions have, so that they can be compared. Without a zone it is in UTC."""
    try:
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise BadArgument(name, f"{text[:80]!a} is not a time", "give it as 2026-01-31T12:00:00Z") from None
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _fits(shot: Snapshot, query: dict[str, Any]) -> bool:
    created = shot.created_at or ""
    return (
        query.get("place") in (None, shot.place)
        and query.get("kind") in (None, shot.kind)
        and query.get("since", "") <= created
        and ("until" not in query or created <= query["until"])
        and query.get("needs_input") in (None, shot.needs_input is not None)
    )


def _position(after: str, sort: str) -> tuple[str, tuple[str, str]]:
    """The time of the first page, and the place of the last session of the page before."""
    try:
        by, began, at, id = jsontext.read(wire.from_text(after) or b"")
        if by == sort and isinstance(began, str) and isinstance(at, str) and isinstance(id, str):
            return began, (at, id)
    except (ValueError, TypeError):
        pass
    raise BadCursor(after)


@endpoint(
    *("POST", "/v1/sessions", "manage", "Start a command"),
    body=(
        takes("command", OTHER, "Text for the shell, or a list of words."),
        *(row for name, row in OPTIONS.items() if name != "pass_fds"),
        takes(
            "env_base",
            CHOICE,
            "The variables that `env` adds to: few (clean, default) or those of the server.",
            words=("clean", "server"),
        ),
    ),
    is_checked=False,
    required=("command",),
    example={"command": "echo hello", "labels": {"from": "openapi"}},
    status=201,
    gives=replies.Session,
    audit="start",
)
async def start(ask: Ask) -> Response:
    options = ask.caller.narrowed(ask.body)
    key = ask.request.headers.get("idempotency-key")
    once = None if key is None else ask.app.digest_of(options)
    command = options.pop("command")
    base = options.pop("env_base", "clean")
    if base not in ("clean", "server"):
        raise BadArgument("env_base", "is neither clean nor server", "give one of the two")
    if options.get("lifetime") == "owner" and options.get("owner_pid") is None:
        # The owner would be this server, whose end must not end a session.
        raise BadArgument("owner_pid", "is missing", "give the pid of the owning process")
    # Another place has its own variables.
    if base == "clean" and options.get("place") in (None, "local"):
        options["clean_env"] = True
        given = options.get("env")
        if given is None or isinstance(given, dict):
            kept = {name: os.environ[name] for name in _CLEAN_NAMES if name in os.environ}
            options["env"] = {**kept, **(given or {})}
    if key is not None:
        options["key"] = key
    ask.app.count_start(ask.caller)
    core = ask.hf._core
    seen = await run.start(core, command, options, once=once)  # type: ignore[arg-type]
    session = AsyncSession(core, seen.snapshot())
    if not ask.caller.sees(session.id, session.owner, session.labels):
        # It was started with this key, and has another owner or other labels by now.
        raise KeyReused(options["key"], None)
    ask.facts["session"] = session.id
    return as_json(record(session), 201, {"Location": f"/v1/sessions/{session.id}"})


@endpoint("GET", "/v1/sessions/{id}", "observe", "Everything known about a session", gives=replies.Session)
async def session(ask: Ask) -> dict[str, Any]:
    return record(await ask.session.refresh())


@endpoint(
    "GET", "/v1/sessions/{id}/spec", "observe", "The options that the session was started with", gives=replies.Spec
)
async def spec(ask: Ask) -> dict[str, Any]:
    """The start options that were given, and the names of the variables that were set: their values are not stored.
    Those of the clean base are left out, because a start sets them again."""
    files = read_files(ask.hf.home, ask.session.id)
    given = {name: files.spec.get(name) for name in ("command", *OPTIONS) if name != "env"}
    owner = files.spec.get("owner_process")
    # Another process may have its number by now.
    if owner and same_process(owner["pid"], owner["start"]):
        given["owner_pid"] = owner["pid"]
    redact = redacted({name: value for name, value in given.items() if value not in (None, [], {}, "", False)})
    base = _CLEAN_NAMES if files.spec.get("clean_env") else ()
    return {"options": redact, "env_names": [name for name in files.spec.get("env_set") or () if name not in base]}


_UPDATES = (
    "name",
    "owner",
    "labels",
    "description",
    "notify",
    "notify_people",
    "timeout",
    "idle_timeout",
    "ttl",
    "soft",
)


@endpoint(
    *("PATCH", "/v1/sessions/{id}", "manage", "Change a session; null clears"),
    body=tuple(OPTIONS[name] for name in _UPDATES),
    is_checked=False,
    example={"labels": {"from": "openapi"}},
    gives=replies.Session,
    audit="update",
)
async def update(ask: Ask) -> dict[str, Any]:
    cleared = {"labels": {}, "notify": OPTIONS["notify"].default}
    changes = {name: cleared.get(name) if value is None else value for name, value in ask.body.items()}
    ask.facts["changed"] = sorted(changes)
    session = ask.session
    ask.caller.must_see(session.id, changes.get("owner", session.owner), changes.get("labels", session.labels))
    return record(await session.update(**changes) if changes else await session.refresh())


@endpoint("DELETE", "/v1/sessions/{id}", "manage", "Remove a finished session", audit="remove", status=204)
async def remove(ask: Ask) -> Response:
    await ask.session.remove()
    return Response(status_code=204)


# Input, size, signals and the end.


# Of a stop that goes on.
_NONE_LEFT = {"survivors": [], "survivors_more": 0, "signal_id": None}
_VERBS = ("write", "submit", "paste", "keys", "eof")


@endpoint(
    *(
        "POST",
        "/v1/sessions/{id}/input",
        "control",
        "Write to its input: exactly one of write, submit, paste, keys, eof",
    ),
    body=(
        takes("write", OTHER, 'Text, or bytes as {"data": BASE64}; nothing is appended.'),
        takes("submit", OTHER, "Text, and Enter a moment later."),
        takes("paste", OTHER, "Text, pasted safely."),
        takes("keys", OTHER, "Names of keys."),
        takes("eof", SWITCH, "The end of its input."),
        takes("enter_delay_ms", NUMBER, "Of submit: how long Enter waits.", high=5000),
        takes("bracketed", CHOICE, "Of paste.", words=("auto", "always", "never")),
        takes("raw", SWITCH, "Of paste: keep control characters."),
        takes("delay_ms", NUMBER, "Of keys: the time between two.", high=2000),
        takes("wait_for", OTHER, "Conditions to wait for afterwards."),
    ),
    example={"write": "hello\n"},
    gives=replies.Typed,
)
async def type_input(ask: Ask) -> dict[str, Any]:
    body, session = ask.body, ask.session
    given = [verb for verb in _VERBS if body.get(verb) is not None]
    if len(given) != 1:
        raise BadRequest(f"an input has exactly one of {', '.join(_VERBS)}", "send one request for each")
    waits = _waits(ask, body.get("wait_for"))
    verb = given[0]
    if verb == "write":
        work = session.send(_bytes(body["write"]), wait_for=waits)
    elif verb == "submit":
        work = session.submit(text_of(body, "submit"), enter_delay_ms=body.get("enter_delay_ms"), wait_for=waits)
    elif verb == "paste":
        bracketed, raw = body.get("bracketed") or "auto", bool(body.get("raw"))
        work = session.paste(text_of(body, "paste"), bracketed=bracketed, raw=raw, wait_for=waits)
    elif verb == "keys":
        keys = [body["keys"]] if isinstance(body["keys"], str) else keys_of(body)
        work = session.keys(*keys, delay_ms=body.get("delay_ms") or 0, wait_for=waits)
    else:
        work = session.eof(wait_for=waits)
    typed = await ask.serving(work)
    ask.app.metrics.add("input_bytes_total", "web", typed.accepted)
    woke = {} if typed.woke is None else {"woke": woke_json(typed.woke)}
    status = (await session.refresh()).status
    facts = {"accepted": typed.accepted, "written": typed.written, "warnings": typed.warnings, "status": status}
    return {**facts, "cursor": typed.cursor, **woke}


def _bytes(value: object) -> str | bytes:
    if isinstance(value, str):
        return value
    if isinstance(value, dict) and value.keys() == {"data"} and isinstance(value["data"], str):
        raw = wire.from_text(value["data"])
        if raw is not None:
            return raw
    raise BadArgument("write", "is neither text nor bytes", 'give text, or {"data": BASE64}')


def _waits(ask: Ask, given: object) -> dict[str, Any] | None:
    if given is None:
        return None
    if not isinstance(given, dict):
        raise BadArgument("wait_for", "is not an object", 'such as {"match": "ready", "timeout": 5}')
    ask.check_wait("timeout", seconds(given.get("timeout", 30), "timeout"))
    return given


def woke_json(woke: Any) -> dict[str, Any]:
    return {"reason": woke.reason, "cursor": woke.cursor, "match": woke.match, "signal_id": woke.signal_id}


@endpoint(
    "POST",
    "/v1/sessions/{id}/close-stdin",
    "control",
    "End the input of a command on pipes",
    body=(),
    gives=replies.StatusOnly,
)
async def close_stdin(ask: Ask) -> dict[str, Any]:
    await ask.session.close_stdin()
    return {"status": (await ask.session.refresh()).status}


@endpoint(
    *("POST", "/v1/sessions/{id}/resize", "control", "Change the size of its terminal"),
    body=(takes("cols", OTHER, "Columns, 1 to 1000."), takes("rows", OTHER, "Rows, 1 to 500.")),
    required=("cols", "rows"),
    example={"cols": 100, "rows": 30},
    gives=replies.Session,
)
async def resize(ask: Ask) -> dict[str, Any]:
    return record(await ask.session.resize(ask.body["rows"], ask.body["cols"]))


@endpoint(
    *("POST", "/v1/sessions/{id}/send-signal", "control", "Send one operating-system signal"),
    body=(
        takes("signal", OTHER, "Its name or number."),
        takes("target", CHOICE, "To the command (default), its group or its tree.", words=("command", "group", "tree")),
    ),
    required=("signal",),
    example={"signal": "WINCH"},
    gives=replies.Sent,
    audit="signal",
)
async def send_signal(ask: Ask) -> dict[str, Any]:
    name = ask.body["signal"]
    if not isinstance(name, (str, int)) or isinstance(name, bool):
        raise BadArgument(
            "signal", "is neither a name nor a number", "give a name such as HUP, TERM or USR1, or a number such as 15"
        )
    target = ask.body.get("target") or "command"
    sent = await ask.session.send_signal(name, target)
    ask.facts |= {"signal": name, "target": target}
    return {"sent": sent, "status": (await ask.session.refresh()).status}


@endpoint(
    *("POST", "/v1/sessions/{id}/stop", "control", "Stop it with everything it started"),
    body=(
        takes("grace", DURATION, "How long to wait before it is killed."),
        takes("reason", TEXT, "Why, for the record.", high=200),
    ),
    example={"grace": 5},
    gives=replies.Stopped,
    also=(202,),
    audit="stop",
)
async def stop(ask: Ask) -> Response:
    reason = ask.body.get("reason")
    ask.facts["reason"] = reason
    by = f"{ask.caller.author}: {reason}" if reason else ask.caller.author
    work = ask.app.spawn(ask.session.stop(ask.body.get("grace"), by=by))
    leaving = ask.app.spawn(ask.app.leaving.wait())
    await asyncio.wait([work, leaving], timeout=ask.app.config.server_long_poll, return_when=asyncio.FIRST_COMPLETED)
    leaving.cancel()
    if not work.done():
        return as_json({**record(await ask.session.refresh()), **_NONE_LEFT}, 202)
    stopped = work.result()
    facts = {"survivors": stopped.survivors, "survivors_more": stopped.survivors_more, "signal_id": stopped.signal_id}
    return as_json({**record(await ask.session.refresh()), **facts})
