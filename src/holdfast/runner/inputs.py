"""`inputs.jsonl`: who wrote when, how much, and at which offset of the output. What, only where that was asked for."""

from __future__ import annotations

import os

from . import clock, jsontext, keys, records, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .keys import Part
    from .tty import Tty

# Some ten thousand entries; then the file becomes `inputs.1.jsonl` and a new one begins.
_FILE_MAX_BYTES = 1 << 20


class Inputs:
    def __init__(self, directory: int, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say
        self._fd: int | None = None
        self._size = 0
        self._refused = False

    def note(self, author: str | None, size: int, offset: int, content: bytes | None = None) -> None:
        entry: dict[str, Any] = {"at": clock.now_text(), "by": author, "bytes": size, "offset": offset}
        if content is not None:
            entry["data"] = wire.as_text(content)
        line = jsontext.write(entry).encode() + b"\n"
        try:
            if self._fd is None:
                self._fd = records.open_own(self._directory, "inputs.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            self._size += os.write(self._fd, line)
            if self._size > _FILE_MAX_BYTES:
                self._turn_over()
        except OSError as problem:
            if not self._refused:
                self._refused = True
                self._say(f"inputs.jsonl could not be written: {problem.strerror}")

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _turn_over(self) -> None:
        os.rename("inputs.jsonl", "inputs.1.jsonl", src_dir_fd=self._directory, dst_dir_fd=self._directory)
        self.close()
        self._size = 0


def audited(parts: list[Part], tty: Tty, modes: Any) -> bytes | None:
    """What these parts come to in the modes of this moment; None while the terminal does not show what is typed."""
    settings = tty.settings()
    if settings is None or not settings.echo:
        return None
    content = b""
    for part in parts:
        try:
            content += part["raw"] if isinstance(part.get("raw"), bytes) else keys.encode(part, modes)[0]
        except keys.Inexpressible:
            continue
    return content
