"""The registry of background processes, for programs that block: what hermes-agent calls `process_registry`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import BadArgument, NotFound
from ...host.aio import coroutines
from ...host.driver import drive
from . import limits, scope
from .consuming import Consuming
from .events import drain
from .place import LOCAL
from .process import Process, unknown
from .settings import Settings
from .starting import Starting, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
    from typing import Any, Self

    from ...host.aio import AsyncSession
    from ...host.api import Holdfast, Session
    from ...model import Snapshot
    from ...signals.records import Signal
    from .events import Drained, Event

    Facts = dict[str, Any]


class Events:
    """What was drained. A loop that comes to its end, or a clean `with`, settles it; anything else gives it back."""

    def __init__(self, drained: Drained) -> None:
        self._drained = drained
        self.events = drained.events
        self.text = drained.text
        self.ids = drained.ids

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:
        yield from self.events
        self.settle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.settle()
        else:
            self.release(f"{kind.__name__}: {error}")

    def settle(self) -> None:
        drive(self._drained.settle())

    def release(self, reason: str) -> None:
        drive(self._drained.release(reason))


class Registry:
    """Over a home, for one `session_key` (absent: the task's own). Owns nothing: any number of them, in any number of
    processes, see the same sessions. Results are those of the tools, also for an id that nobody knows; other errors
    are raised."""

    def __init__(
        self, hf: Holdfast, *, task_id: str = "default", session_key: str | None = None, **options: Any
    ) -> None:
        self._blocking = hf
        self._hf = coroutines(hf)
        self.owner = _owner(session_key, task_id)
        self.settings = Settings(task_id, **options)
        self._consuming = Consuming(self._hf, self.owner, self.settings, self._hf.kept(f"hermes:{self.owner}"))
        self._process = Process(self._hf, self._owners(task_id), self.settings, self._consuming)

    def __repr__(self) -> str:
        return f"<Registry of {self.owner}>"

    # One session.

    def spawn_local(self, command: str, **options: Any) -> Facts:
        """As `spawn_via_env`, on this machine."""
        return self.spawn_via_env(LOCAL, command, **options)

    def spawn_via_env(
        self,
        env: str | None,
        command: str,
        *,
        cwd: str | None = None,
        task_id: str | None = None,
        session_key: str | None = None,
        env_vars: Mapping[str, str] | None = None,
        use_pty: bool = False,
        notify_on_complete: bool = False,
        watch_patterns: Iterable[str] = (),
        heartbeat: int = 0,
        deadline: int | None = None,
        persist_on_release: bool = False,
        stdin: str | None = None,
    ) -> Facts:
        """Start in the background; what `terminal` answers. `env` is a place (`podman:NAME`) or, with the variables
        that hermes-agent has for it, a kind of place (`ssh`); None is where commands of the task run anyway."""
        task = self.settings.task_id if task_id is None else task_id
        own = session_key is None and task == self.settings.task_id
        owner = self.owner if own else _owner(session_key, task)
        env_vars = {**self.settings.env_vars, **(env_vars or {})}
        place = self.settings.place if env is None else env
        settings = replace(self.settings, task_id=task, env_vars=env_vars, place=place)
        starting = Starting(self._hf, owner, settings, self._hf.kept(f"hermes:{owner}"))
        wanted = Wanted(
            command,
            background=True,
            workdir=cwd,
            pty=use_pty,
            notify=notify_on_complete,
            watch_patterns=[watch_patterns] if isinstance(watch_patterns, str) else list(watch_patterns),
            heartbeat=heartbeat,
            deadline=deadline,
            persist_on_release=persist_on_release,
            stdin=stdin,
        )
        return drive(starting.in_background(wanted))

    def get(self, session_id: str) -> Session:
        return self._blocking.get(drive(self._process.find(session_id)).id)

    def poll(self, session_id: str, *, since: str | None = None, acknowledge: bool = False) -> Facts:
        return self._of_one(self._process.poll(session_id, since=since, acknowledge=acknowledge))

    def read_log(self, session_id: str, offset: int | None = None, limit: int = limits.LOG_LINES) -> Facts:
        if (offset or 0) < 0 or limit < 1:
            raise BadArgument("offset", "or limit is out of bounds", f"give 0 or more, and 1 to {limits.LOG_LINES_MAX}")
        return self._of_one(self._process.log(session_id, offset=offset, limit=min(limit, limits.LOG_LINES_MAX)))

    def wait(self, session_id: str, timeout: int | None = None) -> Facts:
        return self._of_one(self._process.wait(session_id, timeout=timeout))

    def kill_process(self, session_id: str) -> Facts:
        return self._of_one(self._process.kill(session_id))

    def write_stdin(self, session_id: str, data: str) -> Facts:
        return self._of_one(self._process.write(session_id, data))

    def submit_stdin(self, session_id: str, data: str = "") -> Facts:
        return self._of_one(self._process.submit(session_id, data))

    def close_stdin(self, session_id: str) -> Facts:
        return self._of_one(self._process.close(session_id))

    def is_completion_consumed(self, session_id: str) -> bool:
        return drive(self._process.is_consumed(session_id))

    def _of_one(self, action: Coroutine[Any, Any, Facts]) -> Facts:
        try:
            return drive(action)
        except NotFound as problem:
            return unknown(problem)

    # All of them.

    def drain(
        self,
        *,
        limit: int | None = None,
        seen: Callable[[str], bool] | None = None,
        owns: Callable[[Signal], bool] | None = None,
    ) -> Events:
        """What happened since the last drain that was settled."""
        return Events(drive(drain(self._hf, self._consuming, self.settings, limit=limit, seen=seen, owns=owns)))

    def list_sessions(self, task_id: str | None = None, session_key: str | None = None) -> list[Facts]:
        """Those of the task, and those of the same session key under other tasks."""
        if task_id is None and session_key is None:
            task_id, session_key = self.settings.task_id, self.owner
        owners = {*self._owners(task_id or ""), *([] if session_key is None else [session_key])}
        rows: list[Facts] = drive(self._process.listed(task_id or "", owners, session_key or ""))["processes"]
        return rows

    def has_active_processes(self, task_id: str | None, descendants: bool = False) -> bool:
        """Has a session of the task not ended, whoever owns it? With `descendants`, what it started counts as well."""
        found = drive(scope.of_task(self._hf, task_id or ""))
        return any(not scope.is_over(each) or (descendants and _survivors(each)) for each in found)

    def has_active_for_session(self, session_key: str | None, max_age: float | None = None) -> bool:
        """The same by session key; `max_age` leaves out what was started earlier, in seconds."""
        if session_key is None or not session_key.strip():
            return False
        found = drive(scope.of_owner(self._hf, session_key))
        return any(not scope.is_over(each) and (max_age is None or _age(each) <= max_age) for each in found)

    def kill_all(self, task_id: str | None = None, exclude_ids: Iterable[str] = ()) -> int:
        """Stop those of a task, or this registry's own; how many are verified dead."""
        return self._sweep(self._those(task_id), set(exclude_ids), by="kill_all")

    def kill_started_since(self, ts: float, task_id: str | None) -> int:
        """Stop what an abandoned turn started: those of the task that were started at or after `ts`."""
        # When something began is told to the millisecond.
        since = math.floor(ts * 1000) / 1000
        begun = [each for each in self._those(task_id or "") if _began(each) >= since]
        return self._sweep(begun, set(), by="kill_all")

    def release(self, task_id: str | None) -> int:
        """The end of a task: as `kill_all`, but for those that persist."""
        kept = [each for each in self._those(task_id or "") if scope.PERSIST not in each.labels]
        return self._sweep(kept, set(), by="release")

    def recover_from_checkpoint(self) -> int:
        """Look at everything that is not known to be over; how many sessions run. Ends nothing."""
        found = drive(self._hf.recover())
        running = [*found.live, *found.unreachable, *found.stale]
        return sum(scope.ID in each.to_json()["labels"] for each in running)

    def _those(self, task_id: str | None) -> list[AsyncSession]:
        if task_id is None:
            return drive(scope.of_owner(self._hf, self.owner))
        owners = self._owners(task_id)
        return [each for each in drive(scope.of_task(self._hf, task_id)) if each.owner in owners]

    def _owners(self, task_id: str) -> list[str]:
        """Whose sessions of a task are this registry's to see and to end: its own, and those that the task itself owns.
        Another session key may have work in the same task, and no part in what happens here."""
        return list(dict.fromkeys([self.owner, _owner(None, task_id)]))

    def _sweep(self, sessions: Iterable[AsyncSession], excluded: set[str], *, by: str) -> int:
        left = [each for each in sessions if not any(scope.is_meant(each, ref) for ref in excluded)]
        dead = 0
        while left:
            # Usually all in one go: only those of a host that never kills are stopped in another way.
            ladder = self.settings.ladder_for(left[0])
            alike = [each.id for each in left if self.settings.ladder_for(each) == ladder]
            left = [each for each in left if each.id not in alike]
            dead += sum(each.done for each in drive(self._hf.stop_all(alike, self.settings.grace_s, by, ladder)))
        return dead


def _owner(session_key: str | None, task_id: str) -> str:
    return session_key or f"task:{task_id}"


def _survivors(shot: Snapshot) -> bool:
    return shot.exit is not None and bool(shot.exit.survivors)


def _began(shot: Snapshot) -> float:
    found = scope.moment(shot.started_at or shot.created_at)
    return 0.0 if found is None else found.timestamp()


def _age(shot: Snapshot) -> float:
    return scope.since(shot.started_at or shot.created_at) or 0.0
