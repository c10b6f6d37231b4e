"""Names and numbers of signals, against the enums of the standard library."""

from __future__ import annotations

import signal

from holdfast.core import kernel_signals as signals


def test_every_signal_has_the_name_and_number_that_the_standard_library_gives_it() -> None:
    assert {name: int(number) for name, number in signal.Signals.__members__.items()} == signals.NUMBERS
    assert {int(number): number.name for number in signal.Signals} == signals.NAMES
