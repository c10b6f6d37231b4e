"""One turn at a time over what is pending; who comes second is told so, and nothing is touched."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from ...errors import RunInProgress
from ...host.driver import drive
from ...signals import gate

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from ...signals.waker import Waker
    from .batch import Fold
    from .state import State


class _Held:
    def __init__(self, fold: Fold) -> None:
        self.fold = fold

    async def settle(self) -> None:
        self.fold.batch.settle()

    async def release(self, reason: str) -> None:
        self.fold.batch.release(reason)


class Folds:
    """A state as the source of turns."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._waker: Waker | None = None

    @property
    def waker(self) -> Waker:
        """Made for whoever wants to wait here; others have the wake of the state."""
        if self._waker is None:
            self._waker = self._state.consumer.waker()
        return self._waker

    def clear(self) -> None:
        if self._waker is not None:
            self._waker.clear()

    def poke(self) -> None:
        self.stir()
        self._state.wake_again()

    def stir(self) -> None:
        """Who waits here looks again, and finds out when the next thing is due."""
        if self._waker is not None:
            self._waker.poke()

    def close(self) -> None:
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.close()

    async def pending(self) -> int:
        return int(self._state.has_pending())

    async def take(self) -> _Held | None:
        while True:
            fold = self._state.fold()
            if fold:
                return _Held(fold)
            if not fold.ids:
                return None
            fold.batch.settle()


class Gate(gate.Gate):
    """`run(turn)`: `turn(fold)` until nothing is pending, leave, look again."""

    def __init__(self, state: State) -> None:
        self._folds = Folds(state)
        self._source: Any = self._folds
        self._turns = gate.Turns(self._folds)
        self._left = threading.Condition()
        self._one_waits = threading.Lock()

    def leave(self) -> bool:
        try:
            return super().leave()
        finally:
            self._say_left()

    def run(self, turn: Callable[[Fold], object], limit: int | None = None) -> int:  # type: ignore[override]
        async def taken(held: object) -> None:
            assert isinstance(held, _Held)
            turn(held.fold)

        if not self._turns.enter():
            raise RunInProgress
        try:
            return drive(self._turns.inside(taken, limit))
        finally:
            self._say_left()

    def serve(self, turn: Callable[[Fold], object]) -> None:  # type: ignore[override]
        while True:
            # One waits at a waker; the next does when he has gone inside.
            with self._one_waits:
                self.waker.wait()
            try:
                self.run(turn)
            except RunInProgress:
                # Whoever is inside takes what there is; what he gives back may be for us.
                with self._left:
                    self._left.wait_for(lambda: not self.busy)

    def stir(self) -> None:
        self._folds.stir()

    def close(self) -> None:
        self._folds.close()

    def _say_left(self) -> None:
        with self._left:
            self._left.notify_all()


class AsyncGate(gate.AsyncGate):
    """The same, where a turn is awaited."""

    def __init__(self, state: State) -> None:
        self._folds = Folds(state)
        self._source: Any = self._folds
        self._turns = gate.Turns(self._folds)
        self._waiting: list[asyncio.Future[None]] = []
        self._one_waits = asyncio.Lock()

    async def leave(self) -> bool:
        try:
            return await super().leave()
        finally:
            self._say_left()

    async def run(self, turn: Callable[[Fold], Awaitable[object]], limit: int | None = None) -> int:  # type: ignore[override]
        async def taken(held: object) -> None:
            assert isinstance(held, _Held)
            await turn(held.fold)

        if not self._turns.enter():
            raise RunInProgress
        try:
            return await self._turns.inside(taken, limit)
        finally:
            self._say_left()

    async def serve(self, turn: Callable[[Fold], Awaitable[object]]) -> None:  # type: ignore[override]
        while True:
            async with self._one_waits:
                await self.waker
            try:
                await self.run(turn)
            except RunInProgress:
                while self.busy:
                    left = asyncio.get_running_loop().create_future()
                    self._waiting.append(left)
                    await left

    def stir(self) -> None:
        self._folds.stir()

    def close(self) -> None:
        self._folds.close()

    def _say_left(self) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if not each.done():
                each.set_result(None)
