"""Signals that were handed out, until their fate is decided; and the same as one message for the conversation."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Self

    from ...signals.consumer import Batch as Claimed
    from ...signals.records import Signal as Record
    from .signal import Signal


class Batch(Sequence["Signal"]):
    """`settled(batch)` and `released(batch)` are called once, with what became of it. Thread-safe."""

    def __init__(
        self,
        claimed: Claimed,
        signals: list[Signal],
        settled: Callable[[Batch], None],
        released: Callable[[Batch], None],
    ) -> None:
        self._claimed = claimed
        self._signals = signals
        self._settled = settled
        self._released = released
        self._open = True
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Batch of {len(self)} signals>"

    @overload
    def __getitem__(self, index: int) -> Signal: ...

    @overload
    def __getitem__(self, index: slice) -> list[Signal]: ...

    def __getitem__(self, index: int | slice) -> Signal | list[Signal]:
        return self._signals[index]

    def __len__(self) -> int:
        return len(self._signals)

    @property
    def ids(self) -> list[str]:
        """Of the records, each once: they belong into whatever is stored of the turn."""
        return self._claimed.ids

    @property
    def records(self) -> list[Record]:
        """As they were written."""
        return self._claimed.signals

    @property
    def parked(self) -> list[str]:
        return self._claimed.parked

    def settle(self) -> None:
        """Done; terminal daemons in it leave the catalog. Again, or after a release: nothing."""
        if self.acknowledge():
            self._settled(self)

    def acknowledge(self) -> bool:
        """The queue's part of that. False when its fate was decided before."""
        with self._lock:
            if not self._open:
                return False
            self._claimed.settle()
            self._open = False
            return True

    def release(self, reason: str) -> None:
        """Back to the queue, for a growing while."""
        with self._lock:
            if not self._open:
                return
            self._claimed.release(reason)
            self._open = False
        self._released(self)


class Fold:
    """One message, role user, and what is in it. Empty, it is false. A clean `with` settles, an exception releases."""

    def __init__(self, text: str, batch: Batch) -> None:
        self.text = text
        self.batch = batch

    def __repr__(self) -> str:
        return f"<Fold of {len(self.ids)} signals, {len(self.text)} characters>"

    @property
    def ids(self) -> list[str]:
        return self.batch.ids

    def __bool__(self) -> bool:
        return bool(self.text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.batch.settle()
        else:
            self.batch.release(f"{kind.__name__}: {error}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
