"""The registry of background processes, for programs that block: what hermes-agent calls `process_registry`."""

from __future__ import annotations

import math
import os
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import BadArgument, HoldfastError, NotFound, PlaceUnreachable, SpawnError
from ...host.aio import AsyncHoldfast, coroutines
from ...host.driver import drive
from . import limits, scope, texts
from .consuming import Consuming
from .events import drain
from .handles import CompletionQueue, Interruptible, ProcessSession
from .place import LOCAL
from .process import Process, unknown
from .settings import Settings
from .starting import Starting, Wanted

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
    from typing import Any, Self

    from ...host.aio import AsyncSession
    from ...host.api import Holdfast
    from ...model import Snapshot
    from ...signals.records import Signal
    from ...signals.waker import Waker
    from .events import Drained, Event
    from .sandbox import Environment, Sandbox, SandboxProcess

    Facts = dict[str, Any]

# Where the owners that a registry started something for are kept, and how many of them.
_SERVED = ("registry", "owners")
_SERVED_MAX = 1000


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


class _Consumings:
    """That of whichever owner a session has."""

    def __init__(self, hf: AsyncHoldfast, settings: Settings) -> None:
        self._hf = hf
        self._settings = settings
        self._made: dict[str, Consuming] = {}
        self.observed: set[str] = set()

    def of(self, owner: str) -> Consuming:
        if owner not in self._made:
            made = Consuming(self._hf, owner, self._settings, self._hf.kept(f"hermes:{owner}"))
            made.observed = self.observed
            self._made.setdefault(owner, made)
        return self._made[owner]

    async def event_of(self, session: AsyncSession) -> str | None:
        return await self.of(session.owner or "").event_of(session)

    async def told(self, session: AsyncSession, event_id: str | None, *, at_once: bool = False) -> None:
        await self.of(session.owner or "").told(session, event_id, at_once=at_once)

    async def is_told(self, session: AsyncSession, event_id: str | None) -> bool:
        return await self.of(session.owner or "").is_told(session, event_id)


class Registry:
    """Over a home, for one `session_key` (absent: the task's own). Owns nothing: any number of them, in any number of
    processes, see the same sessions. Results are those of the tools, also for an id that nobody knows; other errors
    are raised. What it started for other tasks and session keys it knows too, after a restart as well."""

    def __init__(
        self, hf: Holdfast, *, task_id: str = "default", session_key: str | None = None, **options: Any
    ) -> None:
        self._blocking = hf
        self._hf = coroutines(hf)
        self.owner = _owner(session_key, task_id)
        self.settings = Settings(task_id, **options)
        self._kept = self._hf.kept(f"hermes:{self.owner}")
        self._consumings = _Consumings(self._hf, self.settings)
        self._lock = threading.Lock()
        # Whose sessions are found by their ids.
        self._found: list[str] = list(dict.fromkeys([*self._owners(task_id), *(self._kept.get(*_SERVED) or [])]))
        self._process = Process(self._hf, self._found, self.settings, self._consumings)
        self._waits: set[int] = set()
        # Processes in sandboxes that only this program has, by id; the sandboxes; whose end a reply has told.
        self._boxed: dict[str, SandboxProcess] = {}
        self._boxes: dict[int, Sandbox] = {}
        self._boxed_waits: list[threading.Event] = []
        self._consumed: set[str] = set()
        self._announced: set[str] = set()
        self.completion_queue = CompletionQueue(self._drained, self._all_wakers)
        # For programs that keep here which processes they look after themselves.
        self.pending_watchers: list[dict[str, Any]] = []

    def __repr__(self) -> str:
        return f"<Registry of {self.owner}>"

    # One session.

    def spawn_local(
        self,
        command: str,
        cwd: str | None = None,
        task_id: str = "",
        session_key: str = "",
        env_vars: Mapping[str, str] | None = None,
        use_pty: bool = False,
        **options: Any,
    ) -> ProcessSession:
        """As `spawn_via_env`, on this machine."""
        given = {"env_vars": env_vars, "use_pty": use_pty, **options}
        return self.spawn_via_env(LOCAL, command, cwd, task_id, session_key, **given)

    def spawn_via_env(
        self,
        env: str | Environment | None,
        command: str,
        cwd: str | None = None,
        task_id: str = "",
        session_key: str = "",
        timeout: float = limits.ENV_TIMEOUT_S,
        *,
        env_vars: Mapping[str, str] | None = None,
        use_pty: bool = False,
        notify_on_complete: bool = False,
        watch_patterns: Iterable[str] = (),
        heartbeat: int = 0,
        deadline: int | None = None,
        persist_on_release: bool = False,
        stdin: str | None = None,
    ) -> ProcessSession:
        """Start in the background; what `terminal` answers, with the attributes of a process. `env` is a place
        (`podman:NAME`) or, with the variables that hermes-agent has for it, a kind of place (`ssh`); None is where
        commands of the task run anyway. Or it is a sandbox of any make, with `execute(command, timeout=...)`: `timeout`
        is for one call of that."""
        task = task_id or self.settings.task_id
        own = not session_key and task == self.settings.task_id
        owner = self.owner if own else _owner(session_key, task)
        env_vars = {**self.settings.env_vars, **(env_vars or {})}
        if env is not None and not isinstance(env, str):
            from .sandbox import refuse

            about: Any = {"owner": owner, "task_id": task, "cwd": cwd, "env_vars": env_vars, "use_pty": use_pty}
            about |= {"deadline": deadline, "persists": persist_on_release}
            refuse(watch_patterns=watch_patterns, heartbeat=heartbeat, stdin=stdin)
            return self._spawn_boxed(env, command, timeout, notify_on_complete, **about)
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
        self._serve(owner)
        facts = drive(starting.in_background(wanted))
        session = drive(self._process.find(facts["session_id"])) if "session_id" in facts else None
        return ProcessSession(facts, session, self.settings.redacted)

    def _spawn_boxed(
        self, env: Environment, command: str, timeout: float, notifies: bool, **about: Any
    ) -> ProcessSession:
        from .sandbox import Sandbox, SandboxProcess

        Wanted(command, background=True, workdir=about["cwd"]).check()
        core = self._blocking._core
        with self._lock:
            sandbox = self._boxes.setdefault(id(env), Sandbox(env, timeout))
        common: Any = {
            "tell": self._tell_end,
            "config": core.config,
            "author": core.author,
            "settings": self.settings,
        }
        try:
            process = SandboxProcess(sandbox, command, **common, **about)
        except SpawnError as problem:
            said = texts.cannot_start(str(problem))
            return ProcessSession({"output": "", "exit_code": -1, "error": said, "error_code": problem.code}, None)
        with self._lock:
            self._boxed[process.id] = process
        process.notify_on_complete = notifies
        return process

    def _tell_end(self, process: SandboxProcess) -> None:
        """Nobody in its sandbox can call us: we look until it has ended."""
        from .sandbox import pauses_s

        delays, failures = pauses_s(), 0
        retries = pauses_s(limits.ENV_RETRY_S, limits.ENV_RETRY_MAX_S)
        while process.notify_on_complete:
            try:
                process.look()
                if process.is_over:
                    process.catch_up()
                    break
            except HoldfastError as problem:
                failures += 1
                if failures > limits.ENV_RETRIES:
                    process.stop_notices()
                    self.completion_queue.put(process.given_up(str(problem)))
                    return
                time.sleep(next(retries))
                continue
            if failures:
                failures, retries = 0, pauses_s(limits.ENV_RETRY_S, limits.ENV_RETRY_MAX_S)
            time.sleep(next(delays))
        with self._lock:
            # Notices that were switched off and on again have two threads that see the end.
            is_due = process.notify_on_complete and process.id not in self._consumed | self._announced
            if is_due:
                self._announced.add(process.id)
        if is_due:
            self.completion_queue.put(process.event())

    def _in_box(self, session_id: object) -> SandboxProcess | None:
        found = [each for name, each in list(self._boxed.items()) if scope.begins(name, session_id)]
        return found[0] if len(found) == 1 else None

    def _serve(self, owner: str) -> None:
        """Its sessions are found by their ids from now on."""
        with self._lock:
            if owner not in self._found:
                self._found.append(owner)
                served = [*(self._kept.get(*_SERVED) or []), owner]
                self._kept.put(*_SERVED, list(dict.fromkeys(served))[-_SERVED_MAX:])

    def _served(self) -> list[str]:
        own = self._owners(self.settings.task_id)
        return [each for each in self._found if each not in own]

    def get(self, session_id: str) -> ProcessSession | None:
        """None where there is none."""
        if boxed := self._in_box(session_id):
            return boxed
        try:
            session = drive(self._process.find(session_id))
        except NotFound:
            return None
        asked = session.metadata.get("hermes") or {}
        facts = self.poll(scope.called(session))
        facts |= {key: asked[key] for key in ("notify_on_complete", "watch_patterns") if key in asked}
        return ProcessSession(facts, session, self.settings.redacted)

    def poll(self, session_id: str, *, since: str | None = None, acknowledge: bool = False) -> Facts:
        if boxed := self._in_box(session_id):
            return boxed.polled()
        return self._of_one(self._process.poll(session_id, since=since, acknowledge=acknowledge))

    def read_log(self, session_id: str, offset: int | None = None, limit: int = limits.LOG_LINES) -> Facts:
        if (offset or 0) < 0 or limit < 1:
            raise BadArgument("offset", "or limit is out of bounds", f"give 0 or more, and 1 to {limits.LOG_LINES_MAX}")
        if boxed := self._in_box(session_id):
            return boxed.log(offset, min(limit, limits.LOG_LINES_MAX))
        return self._of_one(self._process.log(session_id, offset=offset, limit=min(limit, limits.LOG_LINES_MAX)))

    def wait(self, session_id: str, timeout: int | None = None) -> Facts:
        """Until it ends, `timeout` is over, or another thread calls `interrupt`."""
        if boxed := self._in_box(session_id):
            return self._wait_boxed(boxed, timeout)
        wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        core = self._blocking._core.blocking()
        core.driver = driver = Interruptible(wake)
        process = Process(AsyncHoldfast(core=core), self._found, self.settings, self._consumings)
        with self._lock:
            self._waits.add(wake)
        try:
            return self._of_one(process.wait(session_id, timeout=timeout, waiting=driver.waiting))
        finally:
            with self._lock:
                self._waits.discard(wake)
                os.close(wake)

    def _wait_boxed(self, boxed: SandboxProcess, timeout: int | None) -> Facts:
        is_interrupted = threading.Event()
        with self._lock:
            self._boxed_waits.append(is_interrupted)
        try:
            facts = boxed.waited(timeout, is_interrupted)
        finally:
            with self._lock:
                self._boxed_waits.remove(is_interrupted)
        if facts["status"] == "exited":
            self._consumed.add(boxed.id)
        return facts

    def interrupt(self) -> None:
        """End every `wait` that is under way in other threads; the processes go on."""
        with self._lock:
            for event in self._boxed_waits:
                event.set()
            for wake in self._waits:
                os.eventfd_write(wake, 1)

    def kill_process(self, session_id: str) -> Facts:
        if boxed := self._in_box(session_id):
            self._consumed.add(boxed.id)
            return boxed.killed("process.kill")
        return self._of_one(self._process.kill(session_id))

    def write_stdin(self, session_id: str, data: str) -> Facts:
        if boxed := self._in_box(session_id):
            return boxed.no_input()
        return self._of_one(self._process.write(session_id, data))

    def submit_stdin(self, session_id: str, data: str = "") -> Facts:
        if boxed := self._in_box(session_id):
            return boxed.no_input()
        return self._of_one(self._process.submit(session_id, data))

    def close_stdin(self, session_id: str) -> Facts:
        if boxed := self._in_box(session_id):
            return boxed.no_input()
        return self._of_one(self._process.close(session_id))

    def is_completion_consumed(self, session_id: str) -> bool:
        if boxed := self._in_box(session_id):
            return boxed.id in self._consumed
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
        consuming = self._consumings.of(self.owner)
        return Events(drive(drain(self._hf, consuming, self.settings, limit=limit, seen=seen, owns=owns)))

    def _drained(self) -> list[Drained]:
        """Of every owner that this registry starts something for."""
        owners = list(self._found)
        return [drive(drain(self._hf, self._consumings.of(owner), self.settings)) for owner in owners]

    def _all_wakers(self) -> list[Waker]:
        return [self._consumings.of(owner).consumer.waker() for owner in list(self._found)]

    def list_sessions(self, task_id: str | None = None, session_key: str | None = None) -> list[Facts]:
        """Those of the task, and those of the same session key under other tasks. Without either: all that this
        registry knows."""
        keys = [] if session_key is None else [session_key]
        everything = task_id is None and session_key is None
        if everything:
            task_id, keys = self.settings.task_id, [self.owner, *self._served()]
        owners = {*self._owners(task_id or ""), *keys}
        rows: list[Facts] = drive(self._process.listed(task_id or "", owners, keys))["processes"]
        boxed = [each for each in self._boxed_of(task_id) if each.owner in owners or session_key is None]
        boxed = [each for each in self._boxed_of(None) if everything or each in boxed or each.owner in keys]
        away = self._look_at(boxed)
        for each in boxed:
            unknown = {"health": "unreachable", "note": texts.SANDBOX_AWAY} if each in away else {}
            rows.insert(0, each.row(task_id) | unknown)
        return rows

    def _look_at(self, boxed: Iterable[SandboxProcess]) -> list[SandboxProcess]:
        """How they stand now; those whose sandbox does not answer, which is tried once."""
        away: list[SandboxProcess] = []
        for each in boxed:
            try:
                if each.sandbox in [other.sandbox for other in away] and not each.is_over:
                    away.append(each)
                elif not each.is_over:
                    each.look()
            except PlaceUnreachable:
                away.append(each)
        return away

    def has_active_processes(self, task_id: str | None, descendants: bool = False) -> bool:
        """Has a session of the task not ended, whoever owns it? With `descendants`, what it started counts as well."""
        if any(not each.exited for each in self._boxed_of(task_id or "")):
            return True
        found = drive(scope.of_task(self._hf, task_id or ""))
        return any(not scope.is_over(each) or (descendants and _survivors(each)) for each in found)

    def has_active_for_session(self, session_key: str | None, max_age: float | None = None) -> bool:
        """The same by session key; `max_age` leaves out what was started earlier, in seconds."""
        if session_key is None or not session_key.strip():
            return False
        if any(each.owner == session_key and not each.exited for each in self._boxed_of(None)):
            return True
        found = drive(scope.of_owner(self._hf, session_key))
        return any(not scope.is_over(each) and (max_age is None or _age(each) <= max_age) for each in found)

    def kill_all(self, task_id: str | None = None, exclude_ids: Iterable[str] = ()) -> int:
        """Stop those of a task, or this registry's own; how many are verified dead."""
        excluded = set(exclude_ids)
        boxed = [each for each in self._boxed_of(task_id) if not any(scope.begins(each.id, ref) for ref in excluded)]
        return self._sweep_boxed(boxed, "kill_all") + self._sweep(self._those(task_id), excluded, by="kill_all")

    def _sweep_boxed(self, boxed: Iterable[SandboxProcess], by: str) -> int:
        """Those that cannot be reached are not counted, and keep no other from being stopped."""
        dead = 0
        for each in boxed:
            try:
                dead += each.killed(by)["status"] == "killed"
            except PlaceUnreachable:
                continue
        return dead

    def _boxed_those(self, task_id: str) -> list[SandboxProcess]:
        """As `_those`."""
        return [each for each in self._boxed_of(task_id) if each.owner in self._owners(task_id)]

    def _boxed_of(self, task_id: str | None) -> list[SandboxProcess]:
        return [each for each in list(self._boxed.values()) if task_id is None or each.task_id == task_id]

    def kill_started_since(self, ts: float, task_id: str | None) -> int:
        """Stop what an abandoned turn started: those of the task that were started at or after `ts`."""
        # When something began is told to the millisecond.
        since = math.floor(ts * 1000) / 1000
        begun = [each for each in self._those(task_id or "") if _began(each) >= since]
        boxed = [each for each in self._boxed_those(task_id or "") if each.started_at >= since]
        return self._sweep_boxed(boxed, "kill_all") + self._sweep(begun, set(), by="kill_all")

    def release(self, task_id: str | None) -> int:
        """The end of a task: as `kill_all`, but for those that persist."""
        kept = [each for each in self._those(task_id or "") if scope.PERSIST not in each.labels]
        boxed = [each for each in self._boxed_those(task_id or "") if not each.persists]
        return self._sweep_boxed(boxed, "release") + self._sweep(kept, set(), by="release")

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
