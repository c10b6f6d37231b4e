"""The signals of an in-process daemon: a runner's, with this host's observers told between the record and the wake."""

from __future__ import annotations

from ..runner.signals import Signals

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..runner.life import Life

    # A record that was written, and the wake that is due for it.
    Told = Callable[[dict[str, Any], Callable[[], None]], None]


class KeptSignals(Signals):
    """Observers of this host are told between the record on disk and the wake."""

    def __init__(self, life: Life, told: Told) -> None:
        super().__init__(life)
        self._told = told
        self._held: list[int] | None = None

    def emit(
        self, variant: str, fields: dict[str, Any], *, routed: bool | str = True, durable: bool = False
    ) -> dict[str, Any]:
        held: list[int] = []
        self._held = held
        try:
            record = super().emit(variant, fields, routed=routed, durable=durable)
        finally:
            self._held = None
        self._told(record, lambda: self._wake_all(held))
        return record

    def _wake_all(self, seqs: list[int]) -> None:
        for seq in seqs:
            super()._wake(seq)

    def _wake(self, seq: int) -> None:
        if self._held is None:
            super()._wake(seq)
        else:
            self._held.append(seq)

    def close_inherited(self) -> None:
        self._file.close()
