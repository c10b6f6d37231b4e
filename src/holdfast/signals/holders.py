"""Who holds claims of a consumer: rows of processes, told apart by boot, namespaces, pid and start time."""

from __future__ import annotations

from ..runner import tree
from .claiming import Holder, Rules, standing

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from typing import Protocol

    class Clock(Protocol):
        def mono_ns(self) -> int: ...

        def wall_ns(self) -> int: ...


# A lease is written anew when this part of it is over: not in every call.
_WORN = 0.1


class Holders:
    """Inside the caller's transactions. `here` stands for this process where a test plays another."""

    def __init__(self, rules: Rules, clock: Clock, here: Holder | None = None) -> None:
        self._rules = rules
        self._clock = clock
        self._here = here

    def here(self) -> Holder:
        if self._here is not None:
            return self._here
        found = tree.here()
        return Holder(found["boot"], found["pidns"], found["timens"], found["runner"]["pid"], found["runner"]["start"])

    def all(self, db: sqlite3.Connection, consumer: int) -> list[tuple[int, Holder]]:
        sql = "SELECT id, boot, pidns, timens, pid, start, until, until_wall FROM holders WHERE consumer = ?"
        return [(row[0], Holder(*row[1:])) for row in db.execute(sql, (consumer,))]

    def mine(self, db: sqlite3.Connection, consumer: int) -> Holder | None:
        here = self.here().identity
        return next((holder for _, holder in self.all(db, consumer) if holder.identity == here), None)

    def others(self, db: sqlite3.Connection, consumer: int) -> list[Holder]:
        here = self.here().identity
        return [holder for _, holder in self.all(db, consumer) if holder.identity != here]

    def standing(self, other: Holder) -> str:
        return standing(self.here(), other, self._clock.mono_ns(), self._clock.wall_ns(), tree.same)

    def due_ns(self, other: Holder) -> int:
        """When its lease ends, on our monotonic clock."""
        now = self._clock.mono_ns()
        return now + self.here().remaining_ns(other, now, self._clock.wall_ns())

    def hold(self, db: sqlite3.Connection, consumer: int) -> int:
        """This process as a holder, from now for a whole lease."""
        until = (self._clock.mono_ns() + self._rules.lease_ns, self._clock.wall_ns() + self._rules.lease_ns)
        sql = """INSERT INTO holders (consumer, boot, pidns, timens, pid, start, until, until_wall)
        VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (consumer, boot, pidns, timens, pid, start)
        DO UPDATE SET until = excluded.until, until_wall = excluded.until_wall RETURNING id"""
        return int(db.execute(sql, (consumer, *self.here().identity, *until)).fetchone()[0])

    def is_worn(self, mine: Holder) -> bool:
        return mine.until_ns - self._clock.mono_ns() < (1 - _WORN) * self._rules.lease_ns

    def tidy(self, db: sqlite3.Connection, consumer: int) -> None:
        """Holders of nothing go; this one, if it holds more, has said another word."""
        sql = """DELETE FROM holders WHERE consumer = ?
        AND NOT EXISTS (SELECT 1 FROM pending WHERE pending.holder = holders.id)"""
        db.execute(sql, (consumer,))
        mine = self.mine(db, consumer)
        if mine is not None and self.is_worn(mine):
            self.hold(db, consumer)
