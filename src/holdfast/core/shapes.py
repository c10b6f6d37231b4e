"""The shape of every record of a session: which fields it has, of which type, within which bounds.

A record is checked once, where it enters: when a host reads a file or the answer of a runner, and when a deputy takes
what another place sends. Behind that check the fields below have the types below. Fields that are not listed are kept
and never relied upon.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Callable


_OFFSET_MAX = 10**19
_PID_MAX = 1 << 31
_INT_MAX = 1 << 63
_TEXT_CHARACTERS = 64 << 10
_ITEMS = 4096
# Instead of a runner's identity: this daemon runs inside a host, whose identity is in the field of the same name.
HOST = "host"


class Kind:
    """What one value must be: text of up to `longest` characters, an integer from `least` to below `limit`, of one of
    the `types`, or what passes the test. `problem` says what is wrong with a value, and None where nothing is."""

    longest = -1
    least, limit = 0, 0
    types: tuple[type, ...] = ()

    def __init__(self, words: str, test: Callable[[Any], bool] | None = None, *, types: tuple[type, ...] = ()) -> None:
        self._words = words
        self._test = test
        self.types = types

    def problem(self, value: Any) -> str | None:
        if type(value) is str and len(value) <= self.longest:
            return None
        if type(value) is int and self.least <= value < self.limit:
            return None
        if type(value) in self.types or (self._test is not None and self._test(value)):
            return None
        return f" must be {self._words}, not {_described(value)}"


class Shape(Kind):
    """An object with fields. A field that is not required may be absent or null."""

    def __init__(self, required: Mapping[str, Kind], optional: Mapping[str, Kind] | None = None) -> None:
        self._required = tuple(required)
        self.fields = {**required, **(optional or {})}

    def problem(self, value: object) -> str | None:
        if not isinstance(value, dict):
            return f" must be an object, not {_described(value)}"
        for field in self._required:
            if value.get(field) is None:
                return f".{field} is missing"
        for field, found in value.items():
            kind = self.fields.get(field)
            if kind is None or found is None or type(found) in kind.types:
                continue
            # Most fields are text or an integer: no call for those.
            if type(found) is str:
                is_right = len(found) <= kind.longest
            else:
                is_right = type(found) is int and kind.least <= found < kind.limit
            wrong = None if is_right else kind.problem(found)
            if wrong is not None:
                return f".{field}{wrong}"
        return None


class Each(Kind):
    """A list, or with `keys` an object, whose items are all of one kind."""

    def __init__(self, kind: Kind, *, keys: bool = False) -> None:
        self._kind = kind
        self._type = dict if keys else list

    def problem(self, value: object) -> str | None:
        if not isinstance(value, self._type):
            return f" must be {'a list' if self._type is list else 'an object'}, not {_described(value)}"
        if len(value) > _ITEMS:
            return f" has {len(value)} items; the limit is {_ITEMS}"
        least, limit = self._kind.least, self._kind.limit
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            # Most items are integers.
            wrong = None if type(item) is int and least <= item < limit else self._kind.problem(item)
            if wrong is not None:
                return f"[{str(key)[:40]!a}]{wrong}"
        return None


def text(longest: int = _TEXT_CHARACTERS) -> Kind:
    kind = Kind(f"text of at most {longest} characters")
    kind.longest = longest
    return kind


def one_of(*words: str) -> Kind:
    return Kind(f"one of {', '.join(words)}", lambda value: isinstance(value, str) and value in words)


def whole(least: int, limit: int) -> Kind:
    kind = Kind(f"an integer from {least} to {limit - 1}")
    kind.least, kind.limit = least, limit
    return kind


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and -1e18 < value < 1e18  # type: ignore[operator]


def _is_command(value: object) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(word, str) for word in value))


def _is_size(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(type(part) is int and 0 < part < 65536 for part in value)


def _described(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false", int: "an integer"}
    if isinstance(value, str) and len(value) > 80:
        return f"text of {len(value)} characters"
    shown = repr(value) if isinstance(value, (str, int, float)) else ""
    return shown if 0 < len(shown) <= 80 else names.get(type(value), type(value).__name__)


TEXT = text()
NAME = text(256)
OWNER = text(1024)
TIME = text(40)
PATH = text(16 << 10)
WHOLE = whole(-_INT_MAX, _INT_MAX)
COUNT = whole(0, _INT_MAX)
PID = whole(-_PID_MAX, _PID_MAX)
OFFSET = whole(0, _OFFSET_MAX)
NUMBER = Kind("a number", _is_number)
SWITCH = Kind("true or false", types=(bool,))
OBJECT = Kind("an object", types=(dict,))
LIST = Kind("a list", types=(list,))
TEXTS = Each(TEXT)
LABELS = Each(text(1024), keys=True)
OFFSETS = Each(OFFSET, keys=True)
COMMAND = Kind("text or a list of texts", _is_command)
SIZE = Kind("rows and columns", _is_size)
OBJECTS = Each(OBJECT)

_PROCESS = Shape({"pid": PID, "start": COUNT}, {"line": COMMAND, "command": TEXT, "error": TEXT})
_GAP = Shape({}, {"stream": NAME, "from": OFFSET, "to": OFFSET, "reason": NAME})
_FAILURE = Shape({}, {"errno": WHOLE, "step": TEXT, "path": PATH, "message": TEXT})
_OUTCOME = Shape(
    {"cause": NAME},
    {"code": WHOLE, "signal": NAME, "by": TEXT, "stopped": NAME, "status": NAME, "oom": SWITCH, "complete": SWITCH},
)
EXIT = Shape(
    {"cause": NAME, "survivors": Each(_PROCESS)},
    {**_OUTCOME.fields, "survivors_more": COUNT},
)
_DESIRED = Shape({}, {"state": NAME, "epoch": COUNT, "by": TEXT, "at": TIME})
_STOPPING = Shape({}, {"by": TEXT, "since": TIME, "stage": TEXT})
# What `update` may change.
CHANGEABLE: dict[str, Kind] = {
    "name": NAME,
    "owner": OWNER,
    "labels": LABELS,
    "description": TEXT,
    "notify": NAME,
    "notify_people": SWITCH,
    "timeout": NUMBER,
    "idle_timeout": NUMBER,
    "ttl": NUMBER,
    "soft": NUMBER,
    "lifetime": NAME,
}
_READY = Shape({}, {"ok": SWITCH, "probe": TEXT, "detail": TEXT, "after_s": NUMBER})
_MONITOR = Shape({}, {"count": COUNT, "suppressed": COUNT, "level": NAME, "persistent": SWITCH})
_WATCH = Shape(
    {},
    {
        "state": NAME,
        "hits": COUNT,
        "suppressed": COUNT,
        "strikes": COUNT,
        "disabled": Kind("text or an object", types=(str, dict)),
        "patterns": OBJECTS,
    },
)
_RESTART = Shape(
    {"policy": NAME},
    {
        "attempts": COUNT,
        "in_a_row": COUNT,
        "window": NUMBER,
        "delay": NUMBER,
        "delay_max": NUMBER,
        "reset_after": NUMBER,
    },
)
# What a runner counts, in its status and in its records.
_COUNTED: dict[str, Kind] = {
    "started_at": TIME,
    "ended_at": TIME,
    "last_output_at": TIME,
    "ends": OFFSETS,
    "lines": OFFSETS,
    "dropped_before": OFFSETS,
    "lines_dropped": OFFSETS,
    "log_bytes": COUNT,
    "gaps": Each(_GAP),
    "gaps_more": COUNT,
    "lost_bytes": COUNT,
    "warnings": TEXTS,
    "error": _FAILURE,
    "attempt": COUNT,
    "attempts": OBJECTS,
    "failed_starts": COUNT,
    "desired": _DESIRED,
    "stopping": _STOPPING,
    "health": NAME,
    "watch": _WATCH,
    "monitor": _MONITOR,
    "events": OBJECT,
    "ready": _READY,
    "signal_id": NAME,
    "signals_blocked": COUNT,
}

SPEC = Shape(
    {"id": NAME, "command": COMMAND, "endpoint": PATH, "stdin": NAME, "created_at": TIME},
    {
        **CHANGEABLE,
        "kind": NAME,
        "cwd": PATH,
        "place": text(1024),
        "metadata": OBJECT,
        "grace": NUMBER,
        "stop_ladder": Each(Shape({"signal": NAME, "wait_s": NUMBER}, {"target": NAME})),
        "size": SIZE,
        "tty": Kind("an object", types=(dict, bool)),
        "shell": COMMAND,
        "argv0": TEXT,
        "env_names": LIST,
        "env_set": LIST,
        "limits": OBJECT,
        "pass_fds": LIST,
        "key": TEXT,
        "request": TEXT,
        "log_cap": COUNT,
        "segment_bytes": COUNT,
        "free_floor": COUNT,
        "author": TEXT,
        "restarted_from": NAME,
        "owner_process": OBJECT,
        "signals": OBJECT,
        "people": OBJECT,
        "notes": TEXTS,
        "watch": OBJECT,
        "monitor": OBJECT,
        "ready": OBJECT,
        "health": OBJECT,
        "restart": _RESTART,
        "memory": COUNT,
        "heartbeat": NUMBER,
        "boot": NAME,
        "pidns": COUNT,
        "timens": COUNT,
    },
)
_STATE: dict[str, Kind] = {"boot": NAME, "pidns": COUNT, "nonce": NAME, "endpoint": PATH}
_STATE_OPTIONAL: dict[str, Kind] = {
    "timens": COUNT,
    "version": NAME,
    "changed": Shape({}, CHANGEABLE),
    "started_at": TIME,
    "pgid": PID,
    "attempt": COUNT,
    "attempts": OBJECTS,
    "desired": _DESIRED,
    "health": NAME,
    "watch": _WATCH,
    "monitor": _MONITOR,
    "ready": _READY,
    "deputy": Shape({"pid": PID, "start": COUNT}, {"boot": NAME, "pidns": COUNT}),
}
STATE = Shape({**_STATE, "command": _PROCESS, "runner": _PROCESS}, _STATE_OPTIONAL)
STATE_IN_PROCESS = Shape({**_STATE, "command": OBJECT, HOST: _PROCESS}, _STATE_OPTIONAL)
EXIT_RECORD = Shape({"exit": EXIT}, _COUNTED)
INTENT = Shape({"cause": NAME, "by": TEXT, "at": TIME}, {"stopped": NAME})
_STOPPED = Shape(
    {"found": Each(_PROCESS), "survivors": Each(_PROCESS)},
    {"found_more": COUNT, "survivors_more": COUNT, "rung": TEXT, "took_s": NUMBER, "already": SWITCH},
)
AWAY = Shape(
    {"state": NAME, "evidence": TEXT, "at": TIME},
    {"stopped": _STOPPED, "how": NAME, "sizes": OFFSETS, "gaps": Each(_GAP)},
)
CHANGES = Shape({}, CHANGEABLE)
LOCAL_CHANGES = Shape({"changed": CHANGES})
STATUS = Shape(
    {"state": one_of("starting", "running", "exited")},
    {
        **_COUNTED,
        **CHANGEABLE,
        "pid": PID,
        "stopping": _STOPPING,
        "stopped_by_signal": SWITCH,
        "exit": EXIT,
        "attached": Shape({}, {"control": COUNT, "observe": COUNT}),
        "stdin": NAME,
        "signals": COUNT,
        "size": SIZE,
        "needs_input": OBJECT,
        "title": TEXT,
    },
)
HELLO = Shape(
    {"status": STATUS},
    {
        "identity": Shape(
            {},
            {"id": NAME, "nonce": NAME, "boot": NAME, "pidns": COUNT, "timens": COUNT, HOST: _PROCESS},
        )
    },
)

# By the type of a request, what its answer has beside the status.
REPLIES: dict[str, Kind] = {
    "stop": Shape(dict(list(_STOPPED.fields.items())[:2]), {**_STOPPED.fields, "signal_id": NAME}),
    "wait": Shape({"reason": NAME}, {"signal_id": NAME, "ok": SWITCH}),
    "watch": Shape({}, {"watch": NAME, "removed": SWITCH}),
    "send_signal": Shape({"sent": COUNT}),
    "ring": Shape({"rung": COUNT}),
    "write": Shape({}, {"accepted": COUNT, "warnings": TEXTS}),
    "close_stdin": Shape({}, {"warnings": TEXTS}),
}
WRITTEN = Shape({"bytes": COUNT})


def check(kind: Kind, record: object) -> None:
    """ValueError says which field of the record is wrong, and how."""
    wrong = kind.problem(record)
    if wrong is not None:
        raise ValueError(wrong.removeprefix(".") if wrong.startswith(".") else f"it{wrong}")


def state(record: object) -> Kind:
    """The shape that a state record must have."""
    return STATE_IN_PROCESS if isinstance(record, dict) and record.get("runner") == HOST else STATE
