"""Sessions as their files show them, and consumers over them: written by the test in the place of runners."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.config import Config
from holdfast.core import clock as real_clock
from holdfast.core import processes, records, wake
from holdfast.core.signalfile import SignalFile
from holdfast.home import Home, new_id, runtime_directory
from holdfast.index import Index, Row
from holdfast.sessions.driver import Blocking
from holdfast.signals.catchup import Catchup, finish
from holdfast.signals.consumer import AsyncConsumer, Consumer
from holdfast.signals.consumers import Consumers
from holdfast.signals.missing import RunnerGoneFacts
from holdfast.signals.queue import RETAINED, Holder, Queue

ENDED: dict[str, Any] = {
    "phase": "ended",
    "status": "completed",
    "code": 0,
    "signal": None,
    "cause": "exit",
    "by": None,
    "duration_s": 1.0,
    "output_complete": True,
    "ends": {},
    "tail": {},
}


class Clock:
    """Both clocks, moved by the test. It starts from the real ones, for leases are also looked at by others."""

    def __init__(self) -> None:
        self._mono_ns, self._wall_ns = real_clock.mono_ns(), real_clock.wall_ns()

    def mono_ns(self) -> int:
        return self._mono_ns

    def wall_ns(self) -> int:
        return self._wall_ns

    def passes(self, seconds: float) -> None:
        self._mono_ns += round(seconds * 1e9)
        self._wall_ns += round(seconds * 1e9)


class Writer:
    """A session with a runner that writes signals and nothing else."""

    def __init__(self, home: Home, runtime: str, owner: str | None, kind: str = "local_bash", **options: Any) -> None:
        self.id = new_id(kind)
        self.owner, self.kind, self._runtime = owner, kind, runtime
        self.path = Path(home.session(self.id))
        self.path.mkdir(mode=0o700)
        self._directory = os.open(self.path, os.O_RDONLY)
        spec: dict[str, Any] = {"id": self.id, "owner": owner, "kind": kind, "notify": "exit", "signals": {}}
        self._life = records.write_locked(self._directory, "spec.json", spec)
        here = processes.own_identity()
        records.write(self._directory, "state.json", {**{part: here[part] for part in ("boot", "pidns")}, **options})
        self.file = SignalFile(self._directory, self.id, here["boot"], max_bytes=options.get("max_bytes", 4 << 20))
        self.lives = True

    def tell(self, variant: str = "watch", *, routed: bool | str = True, quietly: bool = False, **fields: Any) -> str:
        record = self.file.write(
            variant, fields, kind=self.kind, owner=self.owner, attempt=1, routed=routed, snapshot={"id": self.id}
        )
        if routed is True and not quietly:
            wake.hosts(self._runtime, self.owner, self.id, record["seq"])
        return str(record["id"])

    def tell_many(self, count: int) -> list[str]:
        return [self.tell(text=f"line {number}", lines=[f"line {number}"]) for number in range(count)]

    def end(self, *, routed: bool | str = True, **fields: Any) -> str:
        return self.tell("lifecycle", routed=routed, **{**ENDED, **fields})

    def hand_over(self, owner: str | None) -> None:
        self.owner = owner
        self.file.note({"owner": owner, "at": real_clock.now_text()})

    def die(self) -> None:
        if self.lives:
            self.lives = False
            self.file.close()
            os.close(self._life)
            os.close(self._directory)


class Desk:
    """A home with an index, sessions that tests write, and consumers."""

    def __init__(self, home: Home | None = None) -> None:
        self.home = home or Home()
        self.home.create()
        self.runtime = runtime_directory()
        self.config = Config()
        self.index = Index(self.home, self._row, self._finish)
        self.outcomes: dict[str, RunnerGoneFacts] = {}
        self.catchup = Catchup(self.index, self.runtime, self._outcome)
        self.consumers = Consumers(Blocking(), self.index, self.config, self.runtime, self._outcome)
        self.writers: list[Writer] = []

    def session(self, owner: str | None = "conv-1", **options: Any) -> Writer:
        made = Writer(self.home, self.runtime, owner, **options)
        self.writers.append(made)
        return made

    def consumer(self, name: str = "owner:conv-1", owners: str | Iterable[str] = "conv-1", **options: Any) -> Consumer:
        return Consumer(self.consumers.open(name, owners, **options))

    def consumer_at(self, clock: Clock, name: str = "owner:conv-1", here: Holder | None = None) -> Consumer:
        """One whose times the test moves, and whose process it may play."""
        from holdfast.index.queues import Filter

        filter = Filter(["conv-1"])
        queue = Queue(self.index, self.config, name, filter, start=RETAINED, clock=clock, here=here)
        made = AsyncConsumer(Blocking(), self.config, queue, self.catchup)
        made.open(replace=False)
        return Consumer(made)

    def over(self, session: Writer) -> None:
        """Its runner is gone, and the index knows that it can change no more."""
        session.die()
        self.index.note([self.row(session.id)])

    def row(self, id: str) -> Row:
        return Row(id, final=True, record={"id": id, "status": "completed"})

    def look(self) -> None:
        self.catchup.run()

    def rows(self, sql: str) -> list[Any]:
        return self.index.database.read(lambda db: db.execute(sql).fetchall())

    def close(self) -> None:
        for each in self.writers:
            each.die()
        self.index.close()

    def _row(self, id: str) -> Row | None:
        return None

    def _finish(self, db: Any, id: str) -> bool:
        return finish(db, self.home, id, writer_lives=records.runner_lives(self.home.session(id)))

    def _outcome(self, id: str) -> RunnerGoneFacts | None:
        return self.outcomes.get(id)
