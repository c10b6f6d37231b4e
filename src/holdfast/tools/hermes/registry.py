"""The registry of background processes, for programs that block: what hermes-agent calls `process_registry`."""

from __future__ import annotations

import math
import threading
import time
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

from ...errors import BadArgument, HoldfastError, NotFound, PlaceUnreachable, SpawnError, StdinClosed, Unsupported
from ...model import UNREACHABLE, Stopped
from ...sessions.aio import coroutines, over
from ...sessions.driver import Interrupted, Interruptible, drive
from ...signals.consumer import Notice
from ..owner_sessions import has_survivors
from . import labels, limits, words
from .events import drain
from .handles import CompletionQueue, ProcessSession
from .owners import Owners, RegistryOwner, of_task
from .process import Actions, unknown
from .settings import Settings
from .start import LOCAL, Starting, TerminalArguments

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from typing import Any

    from ...sessions.aio import AsyncSession
    from ...sessions.api import Holdfast
    from ...signals.lines import Signal
    from ...signals.waker import Waker
    from .events import Drained, Event
    from .process import Find
    from .sandbox import Box, Environment, Sandbox


if TYPE_CHECKING:
    Facts = dict[str, Any]

# Where the other owners that a registry started something for are kept, and how many of them.
_SERVED = ("registry", "owners")
_SERVED_MAX = 1000


class Events(Notice):
    """Drained events. A loop that comes to its end, or a clean `with`, settles them; anything else releases them."""

    def __init__(self, drained: Drained) -> None:
        super().__init__(drained.notice)
        self.events = drained.events

    def __len__(self) -> int:
        return len(self.events)

    def __iter__(self) -> Iterator[Event]:  # type: ignore[override]
        yield from self.events
        self.settle()


class Registry:
    """Over a home, for one `session_key` (absent: the task's own). Owns nothing: any number of them, in any number of
    processes, see the same sessions. Results are those of the tools, also for an unknown id; other errors are raised.
    It also knows what it started for other tasks and session keys, after a restart as well."""

    def __init__(
        self, hf: Holdfast, *, task_id: str = "default", session_key: str | None = None, **options: Any
    ) -> None:
        self._blocking = hf
        self._hf = coroutines(hf)
        self.owner = _owner(session_key, task_id)
        self.settings = Settings(task_id, **options)
        self._kept = self._hf.kept(f"hermes:{self.owner}")
        self._lock = threading.Lock()
        served = [*self._of_registry(task_id), *(self._kept.get(*_SERVED) or [])]
        self._owners = Owners(self._hf, self.settings, [RegistryOwner(self._hf, each) for each in served])
        self._actions = Actions(self._owners, self.settings, find=self._finding(self._owners), stop=self._stop)
        self._waits: set[Interruptible] = set()
        # Processes in sandboxes that only this program has, by the id of their session; and the sandboxes.
        self._boxes: dict[str, Box] = {}
        self._sandboxes: dict[int, Sandbox] = {}
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
            self._serve(owner)
            return self._spawn_boxed(env, command, timeout, notify_on_complete, **about)
        place = self.settings.place if env is None else env
        settings = replace(self.settings, task_id=task, env_vars=env_vars, place=place)
        wanted = TerminalArguments(
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
        wanted.check()
        self._serve(owner)
        facts = drive(Starting(self._owners.of(owner), settings).in_background(wanted))
        session = drive(self._actions.find(facts["session_id"])) if "session_id" in facts else None
        return ProcessSession(facts, session, self.settings.redacted)

    def _spawn_boxed(
        self, env: Environment, command: str, timeout: float, notifies: bool, **about: Any
    ) -> ProcessSession:
        from .sandbox import Sandbox, SandboxProcess, start

        TerminalArguments(command, background=True, workdir=about["cwd"]).check()
        core = self._blocking._core
        with self._lock:
            sandbox = self._sandboxes.setdefault(id(env), Sandbox(env, timeout))
        common: Any = {"config": core.config, "author": core.author, "settings": self.settings}
        try:
            box = start(sandbox, command, relay=self._blocking.daemons.relay, **common, **about)
        except SpawnError as problem:
            said = words.CANNOT_START.format(why=str(problem))
            return ProcessSession({"output": "", "exit_code": -1, "error": said, "error_code": problem.code}, None)
        self._boxes[box.id] = box
        process = SandboxProcess(box, drive(self._owners.find(box.id)), self.settings.redacted)
        process.notify_on_complete = notifies
        return process

    def _finding(self, owners: Owners) -> Find:
        """Looks into the sandbox of a process that is in one."""

        async def find(ref: object) -> AsyncSession:
            session = await owners.find(ref)
            box = self._boxes.get(session.id)
            if box is None or box.is_over:
                return session
            box.look()
            return await session.refresh()

        return find

    async def _stop(self, session: AsyncSession, by: str) -> Stopped:
        box = self._boxes.get(session.id)
        if box is None:
            return await self.settings.stop(session, by)
        already, survivors = box.is_over, box.stop(by)
        await session.refresh()
        return Stopped(session.id, already=already, survivors=[{"pid": pid} for pid in survivors])

    def _serve(self, owner: str) -> None:
        """From now on its sessions are found by their ids."""
        with self._lock:
            if owner not in self._owners.names():
                self._owners.of(owner)
                served = [*(self._kept.get(*_SERVED) or []), owner]
                self._kept.put(*_SERVED, list(dict.fromkeys(served))[-_SERVED_MAX:])

    def get(self, session_id: str) -> ProcessSession | None:
        """None if there is no such process."""
        try:
            session = drive(self._actions.find(session_id))
        except NotFound:
            return None
        if box := self._boxes.get(session.id):
            from .sandbox import SandboxProcess

            return SandboxProcess(box, session, self.settings.redacted)
        asked = labels.facts(session)
        facts = self.poll(labels.called(session))
        facts |= {key: asked[key] for key in ("notify_on_complete", "watch_patterns") if key in asked}
        return ProcessSession(facts, session, self.settings.redacted)

    def poll(self, session_id: str, *, since: str | None = None, acknowledge: bool = False) -> Facts:
        return self._of_one(self._actions.poll(session_id, since=since, acknowledge=acknowledge))

    def read_log(self, session_id: str, offset: int | None = None, limit: int = limits.LOG_LINES) -> Facts:
        if (offset or 0) < 0 or limit < 1:
            raise BadArgument("offset", "or limit is out of bounds", f"give 0 or more, and 1 to {limits.LOG_LINES_MAX}")
        return self._of_one(self._actions.log(session_id, offset=offset, limit=min(limit, limits.LOG_LINES_MAX)))

    def wait(self, session_id: str, timeout: int | None = None) -> Facts:
        """Until it ends, `timeout` is over, or another thread calls `interrupt`."""
        driver = Interruptible()
        core = self._blocking._core.blocking()
        core.driver = driver
        hf = over(core)
        find = self._finding(Owners(hf, self.settings, [RegistryOwner(hf, each) for each in self._owners.names()]))
        with self._lock:
            self._waits.add(driver)
        try:
            with self._watched(session_id):
                return self._of_one(Actions(self._owners, self.settings, find=find).wait(session_id, timeout=timeout))
        except Interrupted:
            return self._of_one(self._actions.interrupted(session_id))
        finally:
            with self._lock:
                self._waits.discard(driver)
                driver.close()

    def _watched(self, session_id: str) -> AbstractContextManager[None]:
        try:
            box = self._boxes.get(drive(self._owners.find(session_id)).id)
        except HoldfastError:
            box = None  # the wait itself says what is wrong
        return nullcontext() if box is None else box.watched()

    def interrupt(self) -> None:
        """End every `wait` in other threads; the processes run on."""
        with self._lock:
            for driver in self._waits:
                driver.interrupt()

    def kill_process(self, session_id: str) -> Facts:
        return self._of_one(self._actions.kill(session_id))

    def write_stdin(self, session_id: str, data: str) -> Facts:
        return self._typed(session_id, self._actions.write(session_id, data))

    def submit_stdin(self, session_id: str, data: str = "") -> Facts:
        return self._typed(session_id, self._actions.submit(session_id, data))

    def close_stdin(self, session_id: str) -> Facts:
        return self._typed(session_id, self._actions.close(session_id))

    def _typed(self, session_id: str, action: Coroutine[Any, Any, Facts]) -> Facts:
        try:
            return self._of_one(action)
        except (StdinClosed, Unsupported):
            if not labels.facts(drive(self._owners.find(session_id))).get("sandbox"):
                raise
            return {"status": "error", "error": words.NO_INPUT_THERE, "error_code": StdinClosed.code}

    def is_completion_consumed(self, session_id: str) -> bool:
        return drive(self._actions.is_consumed(session_id))

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
        return Events(self._drain(self.owner, limit=limit, seen=seen, owns=owns))

    def _drain(self, owner: str, **options: Any) -> Drained:
        consumer = self._owners.of(owner).consumer()
        return drive(drain(self._hf, consumer, self._owners.observed, self.settings, **options))

    def _drained(self) -> list[Drained]:
        return [self._drain(owner) for owner in self._owners.names()]

    def _all_wakers(self) -> list[Waker]:
        return [self._owners.of(owner).consumer().waker() for owner in self._owners.names()]

    def list_sessions(self, task_id: str | None = None, session_key: str | None = None) -> list[Facts]:
        """The sessions of the task, and those of the same session key under other tasks. Without either: all that
        this registry knows."""
        keys = [] if session_key is None else [session_key]
        everything = task_id is None and session_key is None
        if everything:
            task_id = self.settings.task_id
            others = [each for each in self._owners.names() if each not in self._of_registry(task_id)]
            keys = [self.owner, *others]
        owners = {*self._of_registry(task_id or ""), *keys}
        away = self._look_at_all()
        rows: list[Facts] = drive(self._actions.listed(task_id or "", owners, keys))["processes"]
        boxes = {box.name: box for box in list(self._boxes.values())}
        for row in rows:
            if row["session_id"] in away:
                row |= {"health": UNREACHABLE, "note": words.AWAY}
            if row["session_id"] in boxes and boxes[row["session_id"]].notifies:
                row["notify_on_complete"] = True
        return rows

    def _look_at_all(self) -> set[str]:
        """Look at the processes in sandboxes. Returns those whose sandbox does not answer; it is tried once."""
        silent: list[Sandbox] = []
        boxes = [each for each in list(self._boxes.values()) if not each.is_over]
        for box in boxes:
            try:
                if box.sandbox not in silent:
                    box.look()
            except PlaceUnreachable:
                silent.append(box.sandbox)
        return {box.name for box in boxes if box.sandbox in silent}

    def has_active_processes(self, task_id: str | None, descendants: bool = False) -> bool:
        """Whether a session of the task, of any owner, has not ended. With `descendants`, survivors count too."""
        self._look_at_all()
        found = drive(of_task(self._hf, task_id or ""))
        return any(not labels.is_over(each) or (descendants and has_survivors(each)) for each in found)

    def has_active_for_session(self, session_key: str | None, max_age: float | None = None) -> bool:
        """The same by session key; `max_age` leaves out what was started earlier, in seconds."""
        if session_key is None or not session_key.strip():
            return False
        self._look_at_all()
        found = drive(RegistryOwner(self._hf, session_key).listed())
        since = -math.inf if max_age is None else time.time() - max_age
        return any(not labels.is_over(each) and labels.began_at(each) >= since for each in found)

    def kill_all(self, task_id: str | None = None, exclude_ids: Iterable[str] = ()) -> int:
        """Stop those of a task, or this registry's own; how many are verified dead."""
        return self._sweep(self._those(task_id), set(exclude_ids), by="kill_all")

    def kill_started_since(self, ts: float, task_id: str | None) -> int:
        """Stop what an abandoned turn started: those of the task that were started at or after `ts`."""
        # Start times are recorded in milliseconds.
        since = math.floor(ts * 1000) / 1000
        begun = [each for each in self._those(task_id or "") if labels.began_at(each) >= since]
        return self._sweep(begun, set(), by="kill_all")

    def release(self, task_id: str | None) -> int:
        """The end of a task: as `kill_all`, but for those that persist."""
        ending = [each for each in self._those(task_id or "") if labels.PERSIST not in each.labels]
        return self._sweep(ending, set(), by="release")

    def recover_from_checkpoint(self) -> int:
        """Look at everything that is not known to be over; how many sessions run. Ends nothing."""
        found = drive(self._hf.recover())
        running = [*found.live, *found.unreachable, *found.stale]
        return sum(labels.ID in each.to_json()["labels"] for each in running)

    def _those(self, task_id: str | None) -> list[AsyncSession]:
        if task_id is None:
            return drive(self._owners.of(self.owner).listed())
        owners = self._of_registry(task_id)
        return [each for each in drive(of_task(self._hf, task_id)) if each.owner in owners]

    def _of_registry(self, task_id: str) -> list[str]:
        """The owners whose sessions of a task this registry sees and ends: itself and the task. Another session key may
        have work in the same task, which is left alone."""
        return list(dict.fromkeys([self.owner, _owner(None, task_id)]))

    def _sweep(self, found: Iterable[AsyncSession], excluded: set[str], *, by: str) -> int:
        """How many are verified dead. A sandbox that does not answer keeps no other session from being stopped."""
        left = [each for each in found if not any(labels.is_meant(each, ref) for ref in excluded)]
        dead = 0
        for each in [each for each in left if each.id in self._boxes]:
            left.remove(each)
            try:
                dead += drive(self._stop(each, by)).done and labels.is_over(each)
            except PlaceUnreachable:
                continue
        while left:
            # Usually all at once: only sessions of a host that never kills are stopped differently.
            ladder = self.settings.ladder_for(left[0])
            alike = [each.id for each in left if self.settings.ladder_for(each) == ladder]
            left = [each for each in left if each.id not in alike]
            dead += sum(each.done for each in drive(self._hf.stop_all(alike, self.settings.grace_s, by, ladder)))
        return dead


def _owner(session_key: str | None, task_id: str) -> str:
    return session_key or f"task:{task_id}"
