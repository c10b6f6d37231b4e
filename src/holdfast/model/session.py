"""A session in words: states, statuses, causes, exit, snapshot; durations and sizes."""

from __future__ import annotations

from ..core.ending import ASKED_CAUSES, status_after
from ..core.kernel_signals import NUMBERS
from ..core.processes import command_text
from ..core.records import STREAM_NUMBERS
from ..errors import BadArgument, dataclass_transform, declared_values

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


# A session in words: states, statuses, causes, how it ended, and the snapshot that every surface shows.


if TYPE_CHECKING:
    Record = Mapping[str, Any]

STARTING = "starting"
RUNNING = "running"
EXITED = "exited"
UNREACHABLE = "unreachable"
STALE = "stale"
LOST = "lost"
STATES = (STARTING, RUNNING, EXITED, UNREACHABLE, STALE, LOST)
LIVE_STATES = (STARTING, RUNNING, UNREACHABLE, STALE)
FINAL_STATES = (EXITED, LOST)

PENDING = "pending"
COMPLETED = "completed"
FAILED = "failed"
KILLED = "killed"
STATUSES = (PENDING, RUNNING, COMPLETED, FAILED, KILLED)

CAUSE_STOP = "stop"
CAUSE_LOST = "lost"
CAUSES = ("exit", "signal", *ASKED_CAUSES, "spawn_error", "out_of_memory", CAUSE_LOST)

KIND_LETTERS = {
    "local_bash": "b",
    "terminal": "p",
    "monitor": "m",
    "lsp": "l",
    "local_task": "k",
    "local_agent": "a",
    "in_process_teammate": "t",
    "remote_agent": "r",
    "local_workflow": "w",
    "dream": "d",
}
UNKNOWN_KIND_LETTER = "x"

# Facts without a key of their own: they are in `metadata` when there are any.
EXTRA_FACTS = (
    *("stopped_by_signal", "warnings", "gaps", "lost_bytes", "error", "restarted_from", "notes"),
    *("signal_id", "signals_blocked", "attempts", "restarting", "start_limit", "failed_starts"),
    *("watch", "monitor", "events", "ready"),
    *("input_state", "hung", "title", "alt_screen", "replies_dropped"),
)

# Those that come from the spec.
_ASKED_FACTS = ("restarted_from", "notes")


def shell_code(code: int | None, signal: str | None) -> int | None:
    """What a shell has in `$?`: the code, or 128 plus the number of the signal."""
    if code is not None or signal is None:
        return code
    # A number where the system has no name for it.
    number = NUMBERS.get(signal) or signal.removeprefix("SIG")
    return 128 + int(number) if str(number).isdecimal() else None


@dataclass_transform(eq_default=False)
class Declared:
    """Attributes by annotation: the constructor takes them in their order, with the defaults of the class. A list is
    copied."""

    def __init__(self, *given: object, **named: object) -> None:
        for name, value in declared_values(type(self), given, named).items():
            setattr(self, name, list(value) if vars(type(self)).get(name) is EMPTY else value)  # type: ignore[call-overload]

    def to_json(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in type(self).__annotations__}


# The default of a list.
EMPTY: Any = []


def _plain(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    to_json: Callable[[], Any] | None = getattr(value, "to_json", None)
    return to_json() if to_json else value


class Exit(Declared):
    """How a command ended. `cause` is the first reason, `code` or `signal` the observed outcome, `by` the client that
    requested the stop or sent the signal (None: it came from elsewhere). `stopped` says how a requested stop ended:
    within the `grace`, by a `kill` after it or `at_once`, or killed from `elsewhere` meanwhile. `survivors_more` counts
    those that `survivors` does not list."""

    code: int | None
    signal: str | None
    cause: str
    by: str | None = None
    stopped: str | None = None
    oom: bool = False
    complete: bool = True
    survivors: list[Any] = EMPTY
    survivors_more: int = 0

    @property
    def shell_code(self) -> int | None:
        """The code that a shell would show; None if neither a code nor a signal is known."""
        return shell_code(self.code, self.signal)

    @classmethod
    def from_json(cls, record: Record) -> Exit:
        """From the `exit` object of `exit.json` or of a runner's status; later fields are ignored."""
        return cls(
            record.get("code"),
            record.get("signal"),
            record.get("cause") or CAUSE_LOST,
            record.get("by"),
            record.get("stopped"),
            bool(record.get("oom")),
            bool(record.get("complete", True)),
            record.get("survivors") or [],
            record.get("survivors_more") or 0,
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exit) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        how = f"signal {self.signal}" if self.signal is not None else f"code {self.code}"
        return f"<Exit {how}, cause {self.cause}>"


class Snapshot:
    """What was known about a session at `observed_at`. The attributes are the stable JSON keys."""

    id: str
    kind: str
    name: str | None
    description: str
    owner: str | None
    labels: dict[str, str]
    command: str
    cwd: str | None
    tty: bool
    size: list[int] | None
    state: str
    status: str
    stopping: dict[str, Any] | None
    pid: int | None
    runner_pid: int | None
    runner_version: str | None
    place: str
    created_at: str | None
    started_at: str | None
    ended_at: str | None
    attempt: int
    desired: dict[str, Any]
    exit: Exit | None
    cursor: str
    ends: dict[str, int]
    dropped_before: dict[str, int]
    log_bytes: int
    last_output_at: str | None
    attached: dict[str, int]
    needs_input: dict[str, Any] | None
    health: str | None
    in_process: bool
    endpoint: str | None
    observed_at: str
    metadata: dict[str, Any]
    # A view of many machines holds 100,000 of them; more than 30 attributes are too many for a shared dictionary.
    __slots__ = tuple(__annotations__)

    def __init__(self, **values: Any) -> None:
        for key in STORED_KEYS:
            setattr(self, key, values[key])

    @property
    def condition(self) -> str:
        """The word that lists show: `state`, or something more important about a running session."""
        if self.exit is None and self.state == RUNNING:
            if self.stopping:
                return "stopping"
            if self.metadata.get("restarting"):
                return "restarting"
            if self.metadata.get("stopped_by_signal"):
                return "suspended"
            if self.needs_input:
                return "needs input"
            if self.health == "unhealthy":
                return "unhealthy"
        return self.state

    def to_json(self) -> dict[str, Any]:
        record = {key: getattr(self, key) for key in SESSION_KEYS}
        if self.exit is not None:
            record["exit"] = self.exit.to_json()
        return record

    def __repr__(self) -> str:
        return f"<Snapshot {self.id} {self.state}>"


STORED_KEYS = tuple(Snapshot.__annotations__)
SESSION_KEYS = (*STORED_KEYS, "condition")


def status_of(state: str, exit: Exit | None) -> str:
    """One of five words for agents."""
    if state == STARTING:
        return PENDING
    if state not in FINAL_STATES:
        return RUNNING
    return FAILED if exit is None else status_after(exit.cause, exit.code)


def format_cursor(offsets: Mapping[str, int]) -> str:
    """The text of a cursor; 0 for a session without output."""
    return ",".join(f"{stream}:{offsets[stream]}" for stream in STREAM_NUMBERS if stream in offsets) or "0"


def snapshot(
    spec: Record,
    state: Record | None,
    exit_record: Record | None,
    live: Record | None = None,
    intent: Record | None = None,
    *,
    observed_state: str,
    observed_at: str,
) -> Snapshot:
    """One snapshot from all records. `live` is the runner's status, or what the host saw in the files itself; `intent`
    is a requested end that the runner could not record.

    The newer record wins: live, then the exit record, then what `update` changed, then the spec.
    """
    state, ended, live = state or {}, exit_record or {}, live or {}
    asked = {**spec, **(state.get("changed") or {})}
    asked.update((key, live[key]) for key in ("name", "owner", "labels", "description") if key in live)

    exit_json = live.get("exit") or ended.get("exit")
    exit = Exit.from_json(exit_json) if exit_json else None
    if exit is None and observed_state == LOST:
        recorded_stop = intent or {}
        cause, by, stopped = recorded_stop.get("cause"), recorded_stop.get("by"), recorded_stop.get("stopped")
        exit = Exit(None, None, cause or CAUSE_LOST, by, complete=False, stopped=stopped)

    newest = {**ended, **{key: value for key, value in live.items() if value is not None}}
    runner = state.get("runner")
    ends = dict(newest.get("ends") or {})
    dropped_before = dict(newest.get("dropped_before") or {})
    log_bytes = newest.get("log_bytes")
    if log_bytes is None:
        log_bytes = sum(ends.values()) - sum(dropped_before.values())
    command = command_text(asked.get("command"))
    stopping = newest.get("stopping")
    metadata = dict(asked.get("metadata") or {})
    for fact in EXTRA_FACTS:
        value = newest.get(fact) or (asked.get(fact) if fact in _ASKED_FACTS else None)
        if value:
            metadata[fact] = value
    # A command that its runner gave up restarting has failed, whatever its last attempt returned. A host may have
    # recorded a status of its own for a daemon that ran inside it.
    status = FAILED if newest.get("start_limit") else (exit_json or {}).get("status")
    return Snapshot(
        id=asked["id"],
        kind=asked.get("kind") or "local_bash",
        name=asked.get("name"),
        description=asked.get("description") or asked.get("name") or command or asked["id"],
        owner=asked.get("owner"),
        labels=dict(asked.get("labels") or {}),
        command=command,
        cwd=asked.get("cwd"),
        tty=bool(asked.get("tty")) or asked.get("kind") == "terminal",
        size=live.get("size") or asked.get("size"),
        state=observed_state,
        status=status or status_of(observed_state, exit),
        stopping=stopping,
        pid=live.get("pid") or (state.get("command") or {}).get("pid"),
        runner_pid=runner.get("pid") if isinstance(runner, dict) else None,
        runner_version=state.get("version"),
        place=asked.get("place") or "local",
        created_at=asked.get("created_at"),
        started_at=newest.get("started_at") or state.get("started_at"),
        ended_at=newest.get("ended_at"),
        attempt=newest.get("attempt") or state.get("attempt") or 1,
        desired=newest.get("desired") or (exit is None and state.get("desired")) or _desired(stopping, exit),
        exit=exit,
        cursor=format_cursor(ends),
        ends=ends,
        dropped_before=dropped_before,
        log_bytes=log_bytes,
        last_output_at=newest.get("last_output_at"),
        attached=live.get("attached") or {"control": 0, "observe": 0},
        needs_input=live.get("needs_input"),
        health=STALE if observed_state == STALE else newest.get("health") or state.get("health"),
        in_process=runner == "host",
        endpoint=state.get("endpoint"),
        observed_at=observed_at,
        metadata=metadata,
    )


def _desired(stopping: object, exit: Exit | None) -> dict[str, Any]:
    # The start was the first request, the stop is the second.
    if stopping or (exit is not None and exit.cause == CAUSE_STOP):
        return {"state": "down", "epoch": 2}
    return {"state": "up", "epoch": 1}


# Durations and sizes as people write them.


_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "": 1}
_BYTES = {
    "": 1,
    "b": 1,
    "k": 1 << 10,
    "kib": 1 << 10,
    "m": 1 << 20,
    "mib": 1 << 20,
    "g": 1 << 30,
    "gib": 1 << 30,
    "t": 1 << 40,
    "tib": 1 << 40,
}
# A century. None means no limit, and a clock never overflows.
LONGEST_S = 36525 * 86400
# Offsets stay below this everywhere, so that JavaScript can hold them.
LARGEST_BYTES = 1 << 53

_SECONDS_FIX = "give a number of seconds, or text such as 500ms, 10s, 5m, 2h or 7d"
_BYTES_FIX = "give a number of bytes, or text such as 512K, 64M or 4GiB (powers of 1024)"


def seconds(value: object, argument: str = "duration") -> float:
    """5, 0.5, "500ms", "10s", "5m", "2h" or "7d" in seconds."""
    amount, unit = _parts(value, argument, _SECONDS_FIX)
    if unit not in _SECONDS:
        raise BadArgument(argument, f"{shown(value)} has no known unit", _SECONDS_FIX)
    found = amount * _SECONDS[unit]
    if not 0 <= found <= LONGEST_S:
        raise BadArgument(argument, f"{shown(value)} is not between 0 and a century", _SECONDS_FIX)
    return float(found)


def size_bytes(value: object, argument: str = "size") -> int:
    """4096, "512K", "64M", "64MiB" or "4G" in bytes. "64MB" is refused: it means two things."""
    amount, unit = _parts(value, argument, _BYTES_FIX)
    factor = _BYTES.get(unit.lower())
    if factor is None:
        raise BadArgument(argument, f"{shown(value)} has no known unit", _BYTES_FIX)
    found = amount * factor
    if not 0 <= found <= LARGEST_BYTES or found != int(found):
        raise BadArgument(argument, f"{shown(value)} is not a whole number of bytes up to 2^53", _BYTES_FIX)
    return int(found)


def _parts(value: object, argument: str, fix: str) -> tuple[float, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value, ""
    if isinstance(value, str) and len(value) <= 40 and value.isascii():
        text = value.strip()
        digits = text.rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        number = digits.strip()
        if number.replace(".", "", 1).isdecimal():
            return float(number) if "." in number else int(number), text[len(digits) :]
    raise BadArgument(argument, f"{shown(value)} cannot be understood", fix)


def shown(value: object) -> str:
    """A refused value for a message: short, without control characters; never raises."""
    if isinstance(value, (str, float, bool)) or (isinstance(value, int) and value.bit_length() <= 64):
        return ascii(value[:80] if isinstance(value, str) else value)
    return f"a value of type {type(value).__name__}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that a mistyped one probably means."""
    from difflib import get_close_matches

    words = {each.lower(): each for each in known}
    near = get_close_matches(word[:80].lower(), words, 1)
    return words[near[0]] if near else None
