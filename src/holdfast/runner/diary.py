"""What a runner or its deputy has to say: a log of its own, and warnings for whoever asks for the status."""

from __future__ import annotations

import os

from . import clock, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_MAX_BYTES = 64 << 10
_WARNINGS_MAX = 32


class Diary:
    def __init__(self, directory: int, warnings: Iterable[str], name: str = "runner.log") -> None:
        self._directory = directory
        self._name = name
        self.warnings = list(warnings)

    def warn(self, text: str) -> None:
        """Once, in the status, in the exit record and in the log."""
        if text not in self.warnings and len(self.warnings) < _WARNINGS_MAX:
            self.warnings.append(text)
            self.say(text)

    def tell(self, problem: Exception) -> None:
        """Where a bug of ours came from. Not by the `traceback` module, which brings a dozen others along."""
        lines = [f"Traceback of {type(problem).__name__}: {problem}"]
        at = problem.__traceback__
        while at is not None:
            lines.append(f"  {at.tb_frame.f_code.co_filename}:{at.tb_lineno} {at.tb_frame.f_code.co_name}")
            at = at.tb_next
        self.say("\n".join(lines))

    def say(self, text: str) -> None:
        """Into the log, bounded; there is nobody else to tell."""
        try:
            fd = records.open_own(self._directory, self._name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            try:
                if os.fstat(fd).st_size < _MAX_BYTES:
                    os.write(fd, f"{clock.now_text()} {text}\n".encode("utf-8", "replace"))
            finally:
                os.close(fd)
        except OSError:
            pass
