"""What a runner is to a session, a keeper is to an in-process daemon: it owns the directory, answers and records.

It has the shape of a runner's `Life`, so that requests, signals and the ending are those of every session. All of it
happens on the thread of the `HostLoop`.
"""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future

from ..runner import birth, clock, records, requests, telling, tree, wire
from ..runner.causes import status_of
from ..runner.deadlines import Deadlines
from ..runner.diary import Diary
from ..runner.endpoint import Endpoint
from ..runner.features import Features
from ..runner.log import Log
from ..runner.restarts import DOWN, Desired
from ..runner.stdin import Stdin
from ..signals.calling import CalledByHost
from .attempt import Attempt, Worked
from .keptsignals import KeptSignals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..runner.endpoint import Client
    from ..runner.life import Life
    from ..runner.loop import Timer
    from .attempt import ToldEnd, Worker, WorkerEnding
    from .hostloop import HostLoop
    from .keptsignals import Told

COMPLETED, FAILED, CANCELLED = "completed", "failed", "cancelled"
# Whoever has told how it ended is leaving; one that stays longer is named as a survivor.
_LEAVING_S = 2.0
_FAREWELL_S = 1.0
_SOON_S = 0.1
# What the records of signals have room for; the state record has more of it.
_SHOWN_CHARACTERS = {"summary": 2000, "error": 500, "phase": 200, "progress": 200, "prompt": 500}
_KEPT_CHARACTERS = 64 << 10


class Keeper:
    def __init__(self, host: HostLoop, home: str, spec: dict[str, Any], worker: Worker, told: Told) -> None:
        here = tree.here()
        self.spec = spec
        self.id: str = spec["id"]
        self.home = home
        self.environment = dict(os.environ)
        self.nonce = os.urandom(16).hex()
        self.here = {**here, "runner": "host", "host": here["runner"]}
        spec.update((part, here[part]) for part in ("boot", "pidns", "timens"))
        self._host = host
        self.loop = host.loop
        # Events are for those who write lines; the others need not hear that a stream was closed.
        self._monitor: dict[str, Any] | None = spec.pop("monitor")
        self._has_lines = False
        self.directory, self._life_lock = birth.persist(home, spec)
        self.stdin = Stdin(self.loop, None)
        self.terminal = None
        self.restarts = None
        self.changed: dict[str, Any] = {}
        self.waiters: list[requests.Waiter] = []
        self.desired = Desired(spec["author"], clock.now_text())
        self.family = Worked(worker, spec["command"])
        self.diary = Diary(self.directory, ())
        people = spec.pop("people", None)
        self._people = None if people is None else CalledByHost(home, people, self.environment, self.diary.say)
        self._over = False
        self._leaving: Timer | None = None
        self._state_due: Timer | None = None
        self._gone = False
        self._unlocking = threading.Lock()
        # Set when nothing more is to be waited for: it is over and gone, or has survived its stop.
        self.settled: Future[None] = Future()
        try:
            self.log = Log(
                self.directory,
                ["stdout"],
                cap_bytes=spec["log_cap"],
                segment_bytes=spec["segment_bytes"],
                free_floor_bytes=spec["free_floor"],
                say=self.diary.say,
            )
            self.attempt = Attempt(
                self.loop,
                self.directory,
                self.log,
                self.diary,
                host.reserve,
                self.family,
                facts=self._exit_facts,
                settled=self.settle_rest,
                outlived=self._outlived,
            )
            self.signals = KeptSignals(self._life, told)
            self.features = Features(self._life)
            self.deadlines = Deadlines(self.loop, spec, lambda cause: self._end_for(cause, None, None))
            self.endpoint = Endpoint(
                self.loop,
                spec["endpoint"],
                hello=lambda: telling.hello(self._life),
                serve=lambda client, message: requests.serve(self._life, client, message),
                gone=self._client_gone,
                failed=self.diary.tell,
            )
        except OSError as problem:
            birth.forget(self.directory)
            os.close(self.directory)
            os.close(self._life_lock)
            raise birth.refused_by_disk(problem, os.path.join(home, "sessions", self.id)) from None
        host.kept.append(self)

    @property
    def _life(self) -> Life:
        return self  # type: ignore[return-value]  # it has the shape of one

    # Running.

    def begin(self, *, told: bool = True) -> None:
        self.attempt.started_ns = clock.wall_ns()
        self.write_state()
        if told:
            self.signals.started()

    def line(self, text: bytes) -> None:
        """Lines for the log and the queue, under the limits of a monitor."""
        if self._over:
            return
        if not self._has_lines:
            self._has_lines = True
            self.features.close()
            self.spec["monitor"] = self._monitor
            self.features = Features(self._life)
            self.features.begin()
        self.log.append("stdout", text)
        self.deadlines.output()
        self.features.heard("stdout", len(text))

    def describe(self, *, soon: bool = False, **facts: object) -> bool:
        """Phase, progress and the like: what the snapshot says under `metadata`. `soon`: many of them are written at
        once. False when it has ended."""
        if self._over:
            return False
        self._describe(facts)
        if not soon:
            self.write_state()
        elif self._state_due is None:
            self._state_due = self.loop.after(_SOON_S, self.write_state)
        return True

    def _describe(self, facts: Mapping[str, object]) -> None:
        kept = dict(self.changed.get("metadata") or self.spec.get("metadata") or {})
        kept.update((name, _cut(value, _KEPT_CHARACTERS)) for name, value in facts.items())
        self.changed["metadata"] = kept
        self.spec["metadata"] = {
            name: _cut(value, _SHOWN_CHARACTERS.get(name, _KEPT_CHARACTERS)) for name, value in kept.items()
        }

    # Ending.

    def stop(self, *, by: str | None, grace_s: float | None, climb: object = None) -> None:
        self._end_for("stop", by, grace_s)

    def host_closes(self, grace_s: float | None) -> None:
        self._end_for("owner_gone", self.spec["author"], grace_s)

    def _end_for(self, cause: str, by: str | None, grace_s: float | None) -> None:
        if not self._over:
            self.ending.blame(cause, by)
            self.desired.ask(DOWN, by or cause, clock.now_text())
            self.write_state()
        self.attempt.stop(by, self.spec["grace"] if grace_s is None else grace_s)

    def stop_answer(self) -> dict[str, Any] | None:
        return self.attempt.stop_answer if self._over else None

    def tell(
        self, variant: str, fields: dict[str, Any], *, routed: bool = True, facts: Mapping[str, object] | None = None
    ) -> bool:
        """A signal that the host makes itself, of a daemon of which `facts` are true by now. False once it has
        ended."""
        if self._over:
            return False
        if facts:
            self._describe(facts)
        self.signals.emit(variant, fields, routed=routed)
        return True

    def end(self, outcome: str, code: int | None = None, /, **facts: str | None) -> bool:
        """Whoever first says how it ended is believed. False for everybody later."""
        if self._over:
            return False
        told = {name: value for name, value in facts.items() if value is not None}
        if told:
            self._describe(told)
        if outcome == CANCELLED:
            self.ending.blame("stop", self.spec["author"])
        self._record_end(0 if outcome == COMPLETED else code, [])
        return True

    def end_as(self, told: ToldEnd, facts: Mapping[str, object] | None = None) -> bool:
        """The same by a host that knows more of it than a task or thread can tell."""
        if self._over:
            return False
        if facts:
            self._describe(facts)
        self._record_end(told.code, [], told)
        return True

    def withdraw(self) -> None:
        """It is told of no more, and nobody hears of an end: there is a record, in nobody's queue."""
        if not self._over:
            self.changed["notify"] = "never"
            self.ending.blame("owner_gone", self.spec["author"])
            self._record_end(None, [])

    def worker_left(self) -> None:
        """Whatever it said or did not say: the task or thread is over."""
        self.attempt.worker_left()
        self.settle_rest()

    def _outlived(self) -> None:
        """It had its time, and is still there."""
        survivors = self.family.living()
        if not self._over:
            self._record_end(None, survivors)
        elif survivors:
            self._name_survivors(survivors)
        self._settle()

    def _settle(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)

    def _record_end(self, code: int | None, survivors: list[dict[str, Any]], told: ToldEnd | None = None) -> None:
        try:
            self.features.finish()
        except Exception as problem:  # noqa: BLE001  whatever it is, the end has to be told
            self.diary.tell(problem)
        self.deadlines.command_left()
        self._over = True
        if told is None:
            self.ending.judge_worker(code, survivors)
        else:
            self.ending.judge_told(told, self.spec["author"])
        self.write_state()
        self.ending.write(durable=not any(waiter.for_exit for waiter in self.waiters))
        exit = self.ending.exit
        assert exit is not None
        confirmers = any(waiter.confirms for waiter in self.waiters)
        self.signals.end(exit, extra=self.features.ended(), confirmers=confirmers)
        if survivors:
            self.signals.survivors(exit, "stop", [])
        elif self.family.living():
            self.loop.after(_LEAVING_S, self._outlived)

    def _name_survivors(self, survivors: list[dict[str, Any]]) -> None:
        exit = self.ending.exit
        assert exit is not None
        if exit["survivors"] != survivors:
            exit["survivors"] = survivors
            self.ending.write(durable=True)
            self.signals.survivors(exit, "exit", [])

    def settle_rest(self) -> None:
        """After the ending: when the task or thread is gone too, say so and leave."""
        if not self._over or self.family.living() or self._leaving is not None:
            return
        self._name_survivors([])
        if not self.ending.untold and self.signals.decided and not self.signals.untold:
            self._leaving = self.loop.after(_FAREWELL_S, self._let_go)
            self.endpoint.close()

    def turn(self) -> None:
        requests.answer_waiters(self._life)
        if self._leaving is None:
            self.settle_rest()
        elif not self._gone:
            for client in list(self.endpoint.clients):
                client.close_after_sending()
            if not self.endpoint.clients:
                self._let_go()

    def _let_go(self) -> None:
        if self._gone or self._leaving is None:
            return
        self._gone = True
        self._leaving.cancel()
        for client in list(self.endpoint.clients):
            client.close()
        self._host.kept.remove(self)
        self.features.close()
        self.signals.close()
        self.log.close()
        os.close(self.directory)
        self.unlock()
        self._settle()

    def host_leaves(self) -> None:
        """The host's loop is closed. Where the worker lives on, the lock stays as long as it does: what the record says
        of the survivor is true."""
        if self._gone:
            return
        self._gone = True
        if self._leaving is None:
            self.endpoint.close()
        for client in list(self.endpoint.clients):
            client.close()
        self.features.close()
        self.signals.close()
        self.log.close()
        os.close(self.directory)
        if not self.family.living():
            self.unlock()

    def unlock(self) -> None:
        """From whichever thread sees last that nobody is left."""
        with self._unlocking:
            fd, self._life_lock = self._life_lock, -1
        if fd >= 0:
            os.close(fd)

    def leave_to_parent(self) -> None:
        """In a forked child: the locks and the door are the parent's, and must not outlive it in us."""
        if not self._gone:
            self._gone = True
            self.unlock()
            self.signals.close_inherited()
            self.endpoint._listener.close()

    # What others may know; the names are those of a `Life`.

    @property
    def command(self) -> dict[str, Any] | None:
        return self.family.command

    @property
    def ending(self) -> WorkerEnding:
        return self.attempt.ending

    @property
    def exit(self) -> dict[str, Any] | None:
        return self.ending.exit if self._over else None

    @property
    def started_at(self) -> str | None:
        return self.attempt.started_at

    @property
    def stopping(self) -> dict[str, Any] | None:
        return None if self.exit else self.attempt.stopping

    @property
    def status(self) -> str:
        return "running" if self.exit is None else status_of(self.exit)

    @property
    def warnings(self) -> list[str]:
        return self.diary.warnings + self.log.warnings

    def has_read(self, client: Client, read: dict[str, int]) -> None:
        """No reader holds back what runs inside the host."""

    def now(self, name: str) -> Any:
        return self.changed.get(name, self.spec.get(name))

    def detach(self) -> None:
        text = "an in-process daemon ends with its host: it cannot be detached"
        raise wire.Problem("unsupported", text, feature="lifetime")

    def people_called(self, variant: str, record: dict[str, Any]) -> None:
        if self._people is not None:
            self._people.called(variant, record, self.now("notify_people"))

    def snapshot(self) -> dict[str, Any]:
        return telling.snapshot(self._life)

    def _exit_facts(self) -> dict[str, Any]:
        ended = self.signals.ended
        seq = self.signals.seq + 1 if ended is None else int(ended["seq"])
        return {
            "started_at": self.started_at,
            "warnings": self.warnings,
            "last_output_at": telling.last_output_at(self._life),
            "attempt": 1,
            "desired": self.desired.facts(),
            "signal_id": f"{self.id}.{seq}",
        }

    def write_state(self) -> None:
        if self._state_due is not None:
            self._state_due.cancel()
            self._state_due = None
        state = {
            "v": 1,
            "nonce": self.nonce,
            **self.here,
            "command": self.family.command,
            "protocol": wire.PROTOCOL,
            "version": telling.VERSION,
            "endpoint": self.spec["endpoint"],
            "started_at": self.started_at,
            "attempt": 1,
            "desired": self.desired.facts(),
            "changed": self.changed,
            **self.features.facts(),
        }
        try:
            records.write(self.directory, "state.json", state)
        except OSError as problem:
            self.diary.warn(f"state.json could not be written: {problem.strerror}")

    def _client_gone(self, client: Client) -> None:
        self.waiters = [waiter for waiter in self.waiters if waiter.client is not client]
        self.signals.gone(client)


def _cut(value: object, limit: int) -> object:
    if not isinstance(value, str) or len(value) <= limit:
        return value
    return f"{value[:limit]} ...[{len(value) - limit} characters cut]"
