"""`marks.jsonl`: where in a terminal's log a screen can be built from, with the tracker's state there.

Derived data: without it a screen is rebuilt from the beginning of the log.
"""

from __future__ import annotations

import os

from . import jsontext, marks, records

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .tracker import Tracker

    Mark = dict[str, Any]

KEPT_MAX = 1024


class MarkFile:
    def __init__(self, directory: int, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._say = say
        self._kept: list[Mark] = []
        self._fd: int | None = None
        self._refused = False

    def keep(self, fresh: list[Mark]) -> None:
        self._kept += fresh
        if len(self._kept) > KEPT_MAX:
            # Every other of the older ones: a start that is farther away only costs more to replay.
            half = len(self._kept) // 2
            self._kept = self._kept[:1] + self._kept[1:half:2] + self._kept[half:]
            self._write(self._kept, anew=True)
        else:
            self._write(fresh)

    def plan(self, tracker: Tracker, *, history_rows: int, oldest: int) -> dict[str, Any]:
        newest = tracker.last_clear
        known = self._kept if newest is None else [*self._kept, newest]
        return marks.plan(
            known,
            at=tracker.ground,
            lines=tracker.lines,
            history_rows=history_rows,
            oldest=oldest,
            alt_entry=tracker.alt_entry,
        )

    def end(self, tracker: Tracker) -> None:
        if tracker.last_clear is not None:
            self.keep([tracker.last_clear])
        self.keep([tracker.mark("end")])

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _write(self, fresh: list[Mark], *, anew: bool = False) -> None:
        if not fresh:
            return
        lines = b"".join(jsontext.write(mark).encode() + b"\n" for mark in fresh)
        try:
            if anew:
                self.close()
                records.replace(self._directory, "marks.tmp", "marks.jsonl", lines, durable=False)
                return
            if self._fd is None:
                self._fd = records.open_own(self._directory, "marks.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(self._fd, lines)
        except OSError as problem:
            if not self._refused:
                self._refused = True
                self._say(f"marks.jsonl could not be written: {problem.strerror}")
