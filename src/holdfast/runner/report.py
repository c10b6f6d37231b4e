"""What a command says to whoever started it, beside its output: a file in memory, kept when it ends.

Where that is another machine no descriptor can be handed to the command; this one is its runner's own.
"""

from __future__ import annotations

import os

from . import records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Callable

FILE = "report"
# Of two directories; what is longer was not meant for us, and must not fill the disk of whoever keeps a copy.
_MAX_BYTES = 16 << 10


class Report:
    """`number` is what the command knows it by; None for a command that was not asked to say anything."""

    def __init__(self, number: int | None) -> None:
        self._fd = -1 if number is None else os.memfd_create(FILE)
        self.passed: list[tuple[int, int]] = [] if number is None else [(self._fd, number)]

    def keep(self, directory: int, warn: Callable[[str], None]) -> None:
        """As a file of the session. Nothing said is no file."""
        if self._fd < 0:
            return
        try:
            said = os.pread(self._fd, _MAX_BYTES, 0)
            if said:
                records.replace(directory, FILE + ".tmp", FILE, said, durable=False)
        except OSError as problem:
            warn(f"the report could not be kept: {problem.strerror}")
        os.close(self._fd)
        self._fd = -1
