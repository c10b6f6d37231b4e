"""The index as the queue needs it: an answer, or IndexBusy. What is not entered must be known not to be."""

from __future__ import annotations

from ..errors import IndexBusy
from ..index import audience
from ..index.database import WAIT_S

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable
    from typing import TypeVar

    from ..home import Home
    from ..index import Index

    T = TypeVar("T")


class Store:
    def __init__(self, index: Index, home: Home) -> None:
        self.index = index
        self.home = home

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Of one state of things, whatever others write meanwhile."""

        def one_state(db: sqlite3.Connection) -> tuple[T]:
            db.execute("BEGIN")
            return (question(db),)

        answer = self.index.database.ask(one_state)
        if answer is None:
            raise IndexBusy(self.home.index, WAIT_S, full=self.index.database.full)
        return answer[0]

    def write(self, change: Callable[[sqlite3.Connection], T]) -> T:
        """All of `change` or nothing. In an index that is new, the consumers that there were are there first."""
        done: list[T] = []

        def all_of_it(db: sqlite3.Connection) -> None:
            audience.prepare(db, self.home)
            done[:] = [change(db)]

        if not self.index.database.ask(lambda db: self.index.database.write(db, all_of_it)):
            raise IndexBusy(self.home.index, WAIT_S, full=self.index.database.full)
        return done[0]
