"""A session in words: states, statuses, causes, how it ended, and the snapshot that every surface shows."""

from __future__ import annotations

from ..runner.causes import ASKED_CAUSES
from ..runner.commandline import command_text
from ..runner.kernel_signals import NUMBERS
from ..runner.log import STREAM_NUMBERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

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

CAUSE_EXIT = "exit"
CAUSE_SIGNAL = "signal"
CAUSE_STOP = "stop"
CAUSE_OVERALL_TIMEOUT = "overall_timeout"
CAUSE_IDLE_TIMEOUT = "idle_timeout"
CAUSE_TTL = "ttl"
CAUSE_OWNER_GONE = "owner_gone"
CAUSE_SPAWN_ERROR = "spawn_error"
CAUSE_OUT_OF_MEMORY = "out_of_memory"
CAUSE_LOST = "lost"
CAUSES = (CAUSE_EXIT, CAUSE_SIGNAL, *ASKED_CAUSES, CAUSE_SPAWN_ERROR, CAUSE_OUT_OF_MEMORY, CAUSE_LOST)

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

SESSION_KEYS = (
    "id",
    "kind",
    "name",
    "description",
    "owner",
    "labels",
    "command",
    "cwd",
    "tty",
    "size",
    "state",
    "status",
    "stopping",
    "pid",
    "runner_pid",
    "place",
    "created_at",
    "started_at",
    "ended_at",
    "attempt",
    "desired",
    "exit",
    "cursor",
    "ends",
    "dropped_before",
    "log_bytes",
    "last_output_at",
    "attached",
    "needs_input",
    "health",
    "in_process",
    "endpoint",
    "observed_at",
    "metadata",
)

# Facts without a key of their own that must not be lost: they stand in `metadata` when there are any.
EXTRA_FACTS = (
    *("stopped_by_signal", "warnings", "gaps", "lost_bytes", "error", "restarted_from", "notes"),
    *("signal_id", "signals_blocked", "attempts", "start_limit", "failed_starts"),
    *("watch", "monitor", "events", "ready"),
    *("input_state", "hung", "title", "alt_screen", "replies_dropped"),
)

# Those that the spec tells.
_ASKED_FACTS = ("restarted_from", "notes")


def shell_code(code: int | None, signal: str | None) -> int | None:
    """What a shell has in `$?`: the code, or 128 and the number of the signal."""
    if code is not None or signal is None:
        return code
    # A number where the system has no name for it.
    number = NUMBERS.get(signal) or signal.removeprefix("SIG")
    return 128 + int(number) if str(number).isdecimal() else None


class Exit:
    """How a command ended. `cause` is the first reason, `code` or `signal` the observed outcome, `by` the client that
    asked for the stop or sent the signal (None: it came from elsewhere). `stopped` says of one that was asked to end
    how it did: within the `grace`, by a `kill` after it or `at_once`, or killed from `elsewhere` meanwhile.
    `survivors_more` counts those that `survivors` does not name."""

    __slots__ = ("by", "cause", "code", "complete", "oom", "signal", "stopped", "survivors", "survivors_more")

    def __init__(
        self,
        code: int | None,
        signal: str | None,
        cause: str,
        by: str | None = None,
        oom: bool = False,
        complete: bool = True,
        survivors: Sequence[Record] = (),
        survivors_more: int = 0,
        stopped: str | None = None,
    ) -> None:
        self.code = code
        self.signal = signal
        self.cause = cause
        self.by = by
        self.oom = oom
        self.complete = complete
        self.survivors = list(survivors)
        self.survivors_more = survivors_more
        self.stopped = stopped

    @property
    def shell_code(self) -> int | None:
        """The code that a shell would show of it; None where neither a code nor a signal was seen."""
        return shell_code(self.code, self.signal)

    @classmethod
    def from_json(cls, record: Record) -> Exit:
        """From the `exit` object of `exit.json` or of a runner's status; later fields are ignored."""
        return cls(
            record.get("code"),
            record.get("signal"),
            record.get("cause") or CAUSE_LOST,
            record.get("by"),
            bool(record.get("oom")),
            bool(record.get("complete", True)),
            record.get("survivors") or (),
            record.get("survivors_more") or 0,
            record.get("stopped"),
        )

    def to_json(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "signal": self.signal,
            "cause": self.cause,
            "by": self.by,
            "stopped": self.stopped,
            "oom": self.oom,
            "complete": self.complete,
            "survivors": self.survivors,
            "survivors_more": self.survivors_more,
        }

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Exit) and self.to_json() == other.to_json()

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        how = f"signal {self.signal}" if self.signal is not None else f"code {self.code}"
        return f"<Exit {how}, cause {self.cause}>"


class Snapshot:
    """What was known about a session at `observed_at`. The attributes are the stable JSON keys."""

    __slots__ = SESSION_KEYS

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

    def __init__(self, **values: Any) -> None:
        for key in SESSION_KEYS:
            setattr(self, key, values[key])

    def to_json(self) -> dict[str, Any]:
        record = {key: getattr(self, key) for key in SESSION_KEYS}
        if self.exit is not None:
            record["exit"] = self.exit.to_json()
        return record

    def __repr__(self) -> str:
        return f"<Snapshot {self.id} {self.state}>"


def status_of(state: str, exit: Exit | None) -> str:
    """One of five words for agents."""
    if state == STARTING:
        return PENDING
    if state not in FINAL_STATES:
        return RUNNING
    if exit is None:
        return FAILED
    if exit.cause in ASKED_CAUSES:
        return KILLED
    return COMPLETED if exit.code == 0 else FAILED


def format_cursor(offsets: Mapping[str, int]) -> str:
    """The text of a cursor; that of a session without a byte is the beginning."""
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
    """One picture from all records. `live` is the runner's status, or what the host saw in the files itself;
    `intent` what somebody asked for past a runner that could not record the end.

    The newer word wins: live, then the exit record, then what `update` changed, then the spec.
    """
    state, ended, live = state or {}, exit_record or {}, live or {}
    asked = {**spec, **(state.get("changed") or {})}
    asked.update((key, live[key]) for key in ("name", "owner", "labels", "description") if key in live)

    exit_json = live.get("exit") or ended.get("exit")
    exit = Exit.from_json(exit_json) if exit_json else None
    if exit is None and observed_state == LOST:
        asked_past = intent or {}
        cause, by, stopped = asked_past.get("cause"), asked_past.get("by"), asked_past.get("stopped")
        exit = Exit(None, None, cause or CAUSE_LOST, by, complete=False, stopped=stopped)

    def newest(key: str) -> Any:
        value = live.get(key)
        return ended.get(key) if value is None else value

    runner = state.get("runner")
    ends = dict(newest("ends") or {})
    dropped_before = dict(newest("dropped_before") or {})
    log_bytes = newest("log_bytes")
    if log_bytes is None:
        log_bytes = sum(ends.values()) - sum(dropped_before.values())
    command = command_text(asked.get("command"))
    stopping = newest("stopping")
    metadata = dict(asked.get("metadata") or {})
    for fact in EXTRA_FACTS:
        value = newest(fact) or (asked.get(fact) if fact in _ASKED_FACTS else None)
        if value:
            metadata[fact] = value
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
        # A command that its runner gave up on has failed, whatever its last attempt said; and a host may have told more
        # of what it ran itself than a code does.
        status=FAILED if newest("start_limit") else (exit_json or {}).get("status") or status_of(observed_state, exit),
        stopping=stopping,
        pid=live.get("pid") or (state.get("command") or {}).get("pid"),
        runner_pid=runner.get("pid") if isinstance(runner, dict) else None,
        place=asked.get("place") or "local",
        created_at=asked.get("created_at"),
        started_at=newest("started_at") or state.get("started_at"),
        ended_at=newest("ended_at"),
        attempt=newest("attempt") or state.get("attempt") or 1,
        desired=newest("desired") or (exit is None and state.get("desired")) or _desired(stopping, exit),
        exit=exit,
        cursor=format_cursor(ends),
        ends=ends,
        dropped_before=dropped_before,
        log_bytes=log_bytes,
        last_output_at=newest("last_output_at"),
        attached=live.get("attached") or {"control": 0, "observe": 0},
        needs_input=live.get("needs_input"),
        health=STALE if observed_state == STALE else newest("health") or state.get("health"),
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
