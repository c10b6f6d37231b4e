"""`<home>/server/audit.jsonl`: logins, refusals, and everything that was changed, with author and time. Bounded."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ..core import clock, jsontext, records

if TYPE_CHECKING:
    from typing import Any


_FILE_BYTES = 8 << 20
_FILES = 4


def _name(number: int) -> str:
    return f"audit.{number}.jsonl" if number else "audit.jsonl"


class Audit:
    """Secrets, input and output are never passed to it. A line that cannot be written has no other effect."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def note(self, action: str, **facts: Any) -> None:
        entry = {"at": clock.now_text(), "action": action, **facts}
        line = jsontext.write(entry).encode("utf-8", "replace") + b"\n"
        try:
            directory = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                fd = records.open_own(directory, _name(0), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
                try:
                    os.write(fd, line)
                    if os.fstat(fd).st_size > _FILE_BYTES:
                        self._turn_over(directory)
                finally:
                    os.close(fd)
            finally:
                os.close(directory)
        except (OSError, ValueError):
            pass

    def _turn_over(self, directory: int) -> None:
        for number in range(_FILES - 1, 0, -1):
            try:
                os.rename(_name(number - 1), _name(number), src_dir_fd=directory, dst_dir_fd=directory)
            except FileNotFoundError:
                continue
