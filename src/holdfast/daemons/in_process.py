"""Daemons inside this host: for these the host does what a runner does for a session.

One thread, the `HostLoop`, keeps all of them. A `Keeper` owns the directory of one daemon. It has the shape of a
runner's `Session`, so that requests, signals, limits and records are those of every session.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future

from ..core import clock, processes, records, wire
from ..core.ending import status_of
from ..core.loop import READ, Loop, Reserve
from ..core.signalfile import signal_id
from ..errors import BadArgument, HoldfastError, NameTaken, ShuttingDown
from ..runner import directory as session_directory
from ..runner import requests, status
from ..runner.directory import RunnerLog
from ..runner.endpoint import Endpoint
from ..runner.features.feature_set import FeatureSet
from ..runner.life import Ending
from ..runner.limits import DOWN, Deadlines, Desired
from ..runner.log import LogWriter
from ..runner.signals import Signals
from ..runner.streams import Stdin
from ..sessions.claims import CLAIM_S, Claim, live_holder, name_of
from ..sessions.driver import Blocking, drive
from ..sessions.feature_options import feature_options
from ..sessions.start_request import build
from ..sessions.without_runner import CalledByHost
from . import kinds

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any, TypeVar

    from ..core.loop import Timer
    from ..model.options import StartOptions
    from ..runner.endpoint import Client
    from ..runner.session import Session
    from ..sessions.core import Core
    from .handle import Worker

    T = TypeVar("T")
    # Calls the observers of a record that is on disk.
    Observe = Callable[[dict[str, Any]], None]
    # Runs this on the thread of observers.
    Deliver = Callable[[Callable[[], None]], None]


# A worker that was asked to end has this long. Nothing can end it by force.
GRACE_S = 10.0
# A worker that reported its end has this long to leave; after that it is named as a survivor.
_LEAVING_S = 2.0
# The last answers get this long to reach their clients.
_FAREWELL_S = 1.0
# The length of these facts in a signal; the state record has more of them.
_SIGNAL_CHARACTERS = {"summary": 2000, "error": 500, "phase": 200, "progress": 200, "prompt": 500}
_RECORD_CHARACTERS = 64 << 10


class HostLoop:
    """A thread with a runner's loop. It starts with the first daemon, and sleeps while nothing happens. Everything that
    is written about the daemons is written on it, so that no lock is needed."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.reserve = Reserve()
        self.kept: list[Keeper] = []
        self._work: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._pid = os.getpid()
        self._closing = threading.Lock()
        self._closed = False
        self.loop.watch(self._bell, READ, self._do_work)
        self._thread = threading.Thread(target=self._run, name="holdfast daemons", daemon=True)
        _host_loops.add(self)
        self._thread.start()

    def call(self, work: Callable[[], T]) -> T:
        """Do it on the loop's thread and return its result, or raise its error."""
        return work() if threading.get_ident() == self._thread.ident else self.post(work).result()

    def post(self, work: Callable[[], T]) -> Future[T]:
        """As `call`, without waiting. Work is done in the order in which it was posted."""
        result: Future[T] = Future()
        with self._closing:
            if self._closed or os.getpid() != self._pid:
                raise ShuttingDown
            self._work.append((work, result))
            os.eventfd_write(self._bell, 1)
        return result

    def close(self) -> None:
        """Work that was posted before is done first."""
        with self._closing:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            os.eventfd_write(self._bell, 1)
        self._thread.join()
        for keeper in self.kept:
            keeper.close()
        self.loop.close()
        self.reserve.close()
        os.close(self._bell)
        _host_loops.discard(self)

    def _run(self) -> None:
        while not self._closed or self._work:
            try:
                self.loop.run(self._turn)
            except Exception:  # one daemon's trouble, or a bug of ours, must not end the others
                import logging

                logging.getLogger("holdfast.daemons").exception("the loop of in-process daemons met a problem")

    def _do_work(self, _events: int) -> None:
        os.eventfd_read(self._bell)
        while self._work:
            work, result = self._work.popleft()
            try:
                result.set_result(work())
            except BaseException as problem:  # noqa: BLE001  it belongs to the caller
                result.set_exception(problem)
        if self._closed:
            self.loop.leave()

    def _turn(self) -> None:
        for keeper in list(self.kept):
            keeper.turn()


_host_loops: weakref.WeakSet[HostLoop] = weakref.WeakSet()


def _after_fork() -> None:
    """A child that outlives its parent must not make the parent's daemons look alive."""
    for host in list(_host_loops):
        for keeper in host.kept:
            keeper.leave_to_parent()


os.register_at_fork(after_in_child=_after_fork)


def make_spec(
    core: Core,
    function: str,
    *,
    kind: str = "local_task",
    name: str | None = None,
    description: str | None = None,
    owner: str | None = None,
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, Any] | None = None,
    notify: str | None = None,
    timeout: float | str | None = None,
    grace: float | str | None = None,
    id: str | None = None,
) -> dict[str, Any]:
    """The spec of a daemon, checked like that of a session. A daemon with an id of its own is an object of the host, of
    any kind."""
    if id is None and not kinds.of(kind).in_process:
        raise BadArgument("kind", f"{kind!r} is run by a runner, not by a host", "use start()")
    options: dict[str, Any] = {
        "kind": kind,
        "name": name,
        "description": description,
        "owner": owner,
        "labels": labels,
        "metadata": {"function": function, **(metadata or {})},
        "notify": notify,
        "timeout": timeout,
        "grace": GRACE_S if grace is None else grace,
        "lifetime": "owner",
        "merge_stderr": True,
        "clean_env": True,
    }
    asked: StartOptions = options  # type: ignore[assignment]
    spec = build(function, asked, config=core.config, author=core.author, environ={}).spec
    if id is not None:
        spec["id"] = id
    # Its lines have the limits of a monitor's.
    spec["monitor"] = feature_options({"monitor": {"persistent": True}}, core.config, [])["monitor"]
    spec["endpoint"] = os.path.join(core.runtime, spec["id"] + ".sock")
    return spec


def keep(
    core: Core, host: HostLoop, spec: dict[str, Any], worker: Worker, observe: Observe, deliver: Deliver
) -> Keeper:
    """Make the directory of a daemon, under its name if it has one."""

    def make() -> Keeper:
        try:
            return host.call(lambda: Keeper(host, core.home.path, spec, worker, observe, deliver))
        except session_directory.Refused as refused:
            raise HoldfastError.from_wire(refused.frame) from None

    name = spec["name"]
    if name is None:
        return make()
    with drive(Claim(core.home, "name", name).acquire(Blocking(), CLAIM_S)) as held:
        holder = held.holder
        if holder is not None and live_holder(core.home, holder) and name_of(core.home, holder) == name:
            raise NameTaken(name, holder)
        keeper = make()
        held.set(keeper.id)
    return keeper


class _Ending(Ending):
    """A worker has no exit status: it reports how it ended, or is seen to end."""

    def build(self, code: int | None, signal: str | None, survivors: list[dict[str, Any]], more: int) -> dict[str, Any]:
        self.set_cause("exit")
        assert self._cause is not None
        self.at = clock.now_text()
        self.exit = {
            "code": code,
            "signal": signal,
            "cause": self._cause[0],
            "by": self._cause[1],
            "oom": False,
            "complete": True,
            "survivors": survivors,
            "survivors_more": more,
        }
        return self.exit


class _Signals(Signals):
    """`due` is what follows once a record is on disk: the observers of this host, then the wake."""

    def __init__(self, session: Session, observe: Observe) -> None:
        super().__init__(session)
        self._observe = observe
        self.due: list[Callable[[], None]] = []

    def emit(
        self, variant: str, fields: dict[str, Any], *, routed: bool | str = True, durable: bool = False
    ) -> dict[str, Any]:
        place = len(self.due)
        record = super().emit(variant, fields, routed=routed, durable=durable)
        self.due.insert(place, lambda: self._observe(record))
        return record

    def _wake(self, seq: int) -> None:
        wake = super()._wake
        self.due.append(lambda: wake(seq))

    def take_due(self) -> list[Callable[[], None]]:
        due, self.due = self.due, []
        return due

    def close_inherited(self) -> None:
        self._file.close()


class Keeper:
    """Owns the directory of one daemon, answers requests about it, and records its end. Used on the loop's thread."""

    terminal = None
    restarts = None
    retry_at: float | None = None

    def __init__(
        self, host: HostLoop, home: str, spec: dict[str, Any], worker: Worker, observe: Observe, deliver: Deliver
    ) -> None:
        here = processes.own_identity()
        self.spec = spec
        self.id: str = spec["id"]
        self.home = home
        self.environment = dict(os.environ)
        self.nonce = os.urandom(16).hex()
        self.identity = {**here, "runner": "host", "host": here["runner"]}
        spec.update((part, here[part]) for part in ("boot", "pidns", "timens"))
        self._host = host
        self.loop = host.loop
        self._deliver = deliver
        # Only a daemon that writes lines has events; the others have no event that a stream was closed.
        self._monitor: dict[str, Any] | None = spec.pop("monitor")
        self._has_lines = False
        self.directory, self._spec_lock = session_directory.persist(home, spec)
        people = spec.pop("people", None)
        self.stdin = Stdin(self.loop, None)
        self.changed: dict[str, Any] = {}
        self.waiters: list[requests.Waiter] = []
        self.desired = Desired(spec["author"], clock.now_text())
        # What is an attempt and its process tree in a runner is the worker here.
        self.attempt = self.tree = worker
        worker.command["line"] = [spec["command"]]
        self.runner_log = RunnerLog(self.directory, ())
        self._people = None if people is None else CalledByHost(home, people, self.environment, self.runner_log.write)
        self.command: dict[str, Any] | None = worker.command
        # The last stop: its facts until the end, its answer so far, and the timer of its grace while that lasts.
        self.stopping: dict[str, Any] | None = None
        self._stop_began = 0.0
        self._stop_answer: dict[str, Any] | None = None
        self._grace: Timer | None = None
        self._leaving: Timer | None = None
        self._closed = False
        self._unlocking = threading.Lock()
        # Done when there is nothing more to wait for: it has ended and left, or survived its stop.
        self.settled: Future[None] = Future()
        try:
            self.log = LogWriter(
                self.directory,
                ["stdout"],
                cap_bytes=spec["log_cap"],
                segment_bytes=spec["segment_bytes"],
                free_floor_bytes=spec["free_floor"],
                say=self.runner_log.write,
            )
            self.ending = _Ending(
                self.loop, self.directory, self.log, self.runner_log, host.reserve, facts=self._exit_facts
            )
            self.signals = _Signals(self._session, observe)
            self.features = FeatureSet(self._session)
            self.deadlines = Deadlines(self.loop, spec, lambda cause: self.stop(cause, by=None))
            self.endpoint = Endpoint(
                self.loop,
                spec["endpoint"],
                hello=lambda: status.hello(self._session),
                serve=lambda client, message: requests.handle(self._session, client, message),
                gone=self._client_gone,
                failed=self.runner_log.exception,
            )
        except OSError as problem:
            session_directory.forget_session(self.directory)
            os.close(self.directory)
            os.close(self._spec_lock)
            raise session_directory.refused_by_disk(problem, os.path.join(home, "sessions", self.id)) from None
        host.kept.append(self)

    @property
    def _session(self) -> Session:
        return self  # type: ignore[return-value]  # it has the shape of one

    # Running.

    def do(self, work: Callable[[], T]) -> T:
        """Do it. What is due afterwards is handed on before the caller continues."""
        try:
            return work()
        finally:
            self._deliver_due()

    def begin(self, *, signalled: bool = True) -> None:
        self.attempt.started_ns = clock.wall_ns()
        self.write_state()
        if signalled:
            self.signals.started()

    def line(self, text: bytes) -> None:
        """Lines for the log and the queue, under the limits of a monitor."""
        if self.exit is not None:
            return
        if not self._has_lines:
            self._has_lines = True
            self.features.close()
            self.spec["monitor"] = self._monitor
            self.features = FeatureSet(self._session)
            self.features.begin()
        self.printed(text)

    def printed(self, data: bytes) -> None:
        """Output for the log."""
        if self.exit is None:
            self.log.append("stdout", data)
            self.deadlines.output()
            self.features.on_output("stdout")

    def describe(self, facts: Mapping[str, object]) -> bool:
        """Set facts of the snapshot's `metadata`. False once it has ended."""
        if self.exit is not None:
            return False
        self._describe(facts)
        self.write_state()
        return True

    def _describe(self, facts: Mapping[str, object]) -> None:
        kept = dict(self.changed.get("metadata") or self.spec.get("metadata") or {})
        kept.update((name, _cut(value, _RECORD_CHARACTERS)) for name, value in facts.items())
        self.changed["metadata"] = kept
        self.spec["metadata"] = {
            name: _cut(value, _SIGNAL_CHARACTERS.get(name, _RECORD_CHARACTERS)) for name, value in kept.items()
        }

    def emit(
        self, variant: str, fields: dict[str, Any], *, routed: bool = True, facts: Mapping[str, object] | None = None
    ) -> bool:
        """A signal that the host makes itself; `facts` are for the snapshot. False once it has ended."""
        if self.exit is not None:
            return False
        if facts:
            self._describe(facts)
        self.signals.emit(variant, fields, routed=routed)
        return True

    # Stopping.

    def stop(self, cause: str = "stop", *, by: str | None, grace_s: float | None = None, ladder: object = None) -> None:
        """Ask the worker to end. A later stop joins the one under way, and hurries it if it wants no grace."""
        if self.exit is None:
            self.ending.set_cause(cause, by)
            self.desired.ask(DOWN, by or cause, clock.now_text())
            self.write_state()
        grace_s = self.spec["grace"] if grace_s is None else grace_s
        if self._grace is not None:
            if grace_s == 0:
                self._grace.cancel()
                self._grace_over()
            return
        if self.exit is None:
            self.stopping = {"by": by, "since": clock.now_text(), "stage": "cancel"}
        self._stop_began = time.monotonic()
        self._stop_answer = {"found": self.tree.living(), "found_more": 0}
        self._grace = self.loop.after(grace_s, self._grace_over)
        self.tree.cancel()

    def stop_answer(self) -> dict[str, Any] | None:
        return self._stop_answer if self.exit and self._grace is None else None

    def _grace_over(self) -> None:
        self._answer_stop()
        self._name_survivor()

    def _answer_stop(self) -> None:
        assert self._stop_answer is not None
        self._grace = None
        took_s = round(time.monotonic() - self._stop_began, 3)
        self._stop_answer.update(survivors=self.tree.living(), survivors_more=0, rung="cancel", took_s=took_s)

    # Ending.

    def end(
        self,
        how: str,
        *,
        code: int | None = None,
        signal: str | None = None,
        cause: str | None = None,
        by: str | None = None,
        survivors: int = 0,
        facts: Mapping[str, object] | None = None,
    ) -> bool:
        """Record its end: completed, failed or killed, unless a stop came before. `survivors` is the number of
        processes that it left behind. The first end counts: False for every later one."""
        if self.exit is not None:
            return False
        if facts:
            self._describe(facts)
        cause = cause or ("stop" if how == "killed" else "signal" if signal else "exit")
        self.ending.set_cause(cause, self.spec["author"] if cause == "stop" and by is None else by)
        exit = self.ending.build(code, signal, [], survivors)
        if exit["cause"] == cause and status_of(exit) != how:
            exit["status"] = how  # cause and code do not say it: a daemon may complete without a code
        self._record_end(exit)
        if self.tree.living():
            self.loop.after(_LEAVING_S, self._name_survivor)
        return True

    def worker_left(self) -> None:
        """The task or thread is over, whether or not it reported that."""
        self.attempt.left = time.monotonic()
        if self._grace is not None:
            self._grace.cancel()
            self._answer_stop()
        self._leave_when_settled()

    def _name_survivor(self) -> None:
        """The worker's time is over, and it may still be there."""
        survivors = self.tree.living()
        if self.exit is None:
            exit = self.ending.build(None, None, survivors, 0)
            self._record_end(exit)
            if survivors:
                self.signals.survivors(exit, "stop", [])
        elif survivors:
            self._set_survivors(survivors)
        self._settle()

    def _record_end(self, exit: dict[str, Any]) -> None:
        try:
            self.features.finish()
        except Exception as problem:  # noqa: BLE001  whatever it is, the end has to be recorded
            self.runner_log.exception(problem)
        self.deadlines.command_left()
        self.ending.make_final()
        self.stopping = None
        self.write_state()
        self.ending.write(durable=not any(waiter.for_exit for waiter in self.waiters))
        may_be_confirmed = any(waiter.confirms for waiter in self.waiters)
        self.signals.end(exit, extra=self.features.ended(), may_be_confirmed=may_be_confirmed)

    def _set_survivors(self, survivors: list[dict[str, Any]]) -> None:
        assert self.exit is not None
        if self.exit["survivors"] != survivors:
            self.exit["survivors"] = survivors
            self.ending.write(durable=True)
            self.signals.survivors(self.exit, "exit", [])

    def _leave_when_settled(self) -> None:
        """After the end, when the task or thread is gone too and the disk has every record."""
        if self.exit is None or self.tree.living() or self._leaving is not None:
            return
        self._set_survivors([])
        if not (self.ending.unwritten or self.signals.undecided or self.signals.unwritten):
            self._leaving = self.loop.after(_FAREWELL_S, self._leave)
            self.endpoint.close()

    def turn(self) -> None:
        """After whatever happened in the loop."""
        self._leave_when_settled()
        self._deliver_due()
        requests.answer_waiters(self._session)
        if self._leaving is not None:
            for client in list(self.endpoint.clients):
                client.close_after_sending()
            if not self.endpoint.clients:
                self._leave()

    def _deliver_due(self) -> None:
        due = self.signals.take_due()
        if due:
            self._deliver(lambda: call_all(due))

    def _leave(self) -> None:
        if not self._closed:
            self._host.kept.remove(self)
            self.close()
            self._settle()

    def _settle(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)

    def close(self) -> None:
        """Release everything, except the lock while the worker lives: it is the survivor that the record names."""
        if self._closed:
            return
        self._closed = True
        self._deliver_due()
        if self._leaving is None:
            self.endpoint.close()
        else:
            self._leaving.cancel()
        for client in list(self.endpoint.clients):
            client.close()
        self.features.close()
        self.signals.close()
        self.log.close()
        os.close(self.directory)
        if not self.tree.living():
            self.unlock()

    def unlock(self) -> None:
        """Called from the loop, or from the thread of a worker that outlives it."""
        with self._unlocking:
            fd, self._spec_lock = self._spec_lock, -1
        if fd >= 0:
            os.close(fd)

    def leave_to_parent(self) -> None:
        """In a forked child: locks and endpoint are the parent's, and must not outlive it here."""
        if not self._closed:
            self._closed = True
            self.unlock()
            self.signals.close_inherited()
            self.endpoint._listener.close()

    # What requests and records ask; the names are those of a `Session`.

    @property
    def exit(self) -> dict[str, Any] | None:
        """How it ended, once it has."""
        return self.ending.exit if self.ending.is_final else None

    @property
    def started_at(self) -> str | None:
        started_ns = self.attempt.started_ns
        return None if started_ns is None else clock.rfc3339(started_ns)

    @property
    def status(self) -> str:
        return "running" if self.exit is None else status_of(self.exit)

    @property
    def warnings(self) -> list[str]:
        return self.runner_log.warnings + self.log.warnings

    def has_read(self, client: Client, read: dict[str, int]) -> None:
        """No reader holds back a daemon inside the host."""

    def current(self, name: str) -> Any:
        return self.changed.get(name, self.spec.get(name))

    def outlive_call(self) -> None:
        text = "an in-process daemon ends with its host: it cannot be detached"
        raise wire.Problem("unsupported", text, feature="lifetime")

    def notify_people(self, variant: str, record: dict[str, Any]) -> None:
        if self._people is not None:
            self._people.consider(variant, record, self.current("notify_people"))

    def snapshot(self) -> dict[str, Any]:
        return status.snapshot(self._session)

    def write_state(self) -> None:
        state = status.state(self._session)
        state.pop("pgid", None)  # a task or thread has no process group
        try:
            records.write(self.directory, "state.json", state)
        except OSError as problem:
            self.runner_log.warn(f"state.json could not be written: {problem.strerror}")

    def _exit_facts(self) -> dict[str, Any]:
        ended = self.signals.end_record
        seq = self.signals.seq + 1 if ended is None else int(ended["seq"])
        return {
            "started_at": self.started_at,
            "warnings": self.warnings,
            "last_output_at": status.last_output_at(self._session),
            "attempt": 1,
            "desired": self.desired.facts(),
            "signal_id": signal_id(self.id, seq),
        }

    def _client_gone(self, client: Client) -> None:
        self.waiters = [waiter for waiter in self.waiters if waiter.client is not client]
        self.signals.gone(client)


def call_all(callbacks: list[Callable[[], Any]]) -> None:
    """A callback that raises does not keep the others back."""
    for callback in callbacks:
        try:
            callback()
        except Exception:
            import logging

            logging.getLogger("holdfast.daemons").exception("a callback of a daemon failed")


def _cut(value: object, limit: int) -> object:
    if not isinstance(value, str) or len(value) <= limit:
        return value
    return f"{value[:limit]} ...[{len(value) - limit} characters cut]"
