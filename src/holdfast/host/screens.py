"""What a person would see of a terminal, now or at any retained offset: from the files alone, whoever lives."""

from __future__ import annotations

import time

from ..errors import NotATty, OffsetAhead
from ..runner.attach import STREAM
from ..runner.modes import SYNCHRONIZED_MAX_S
from . import keyframes
from .marks import plan_at, read_marks, tracker_at
from .observe import read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..terminal.grid import Grid
    from ..terminal.screen import Screen
    from .core import Core
    from .keyframes import Keyframe
    from .log import Log
    from .observe import Files


class Restore:
    """From where, and with which sizes in between, the screen at `at` is built."""

    __slots__ = ("_log", "at", "keyframe", "plan", "resizes", "state", "whole")

    def __init__(
        self,
        log: Log,
        at: int,
        state: dict[str, Any],
        plan: dict[str, Any],
        resizes: list[tuple[int, int, int]],
        keyframe: Keyframe | None,
    ) -> None:
        self._log = log
        self.at = at
        self.state = state
        self.plan = plan
        self.resizes = resizes
        self.keyframe = keyframe
        # Has everything been there that was read of it up to now?
        self.whole = True

    def read(self, begin: int, end: int) -> Iterator[bytes]:
        for offset, block in self._log.blocks(STREAM, begin, end):
            self.whole &= offset == begin
            yield block
            begin = offset + len(block)
        self.whole &= begin >= end


def restore_at(log: Log, files: Files, at: int, history_rows: int, kept: Keyframe | None = None) -> Restore:
    """The plan for the last ground offset up to `at`. It may begin at a keyframe, which has to be drawn from its dump:
    none is given where only the bytes of the log are sent on."""
    resizes = log.resizes()
    known = read_marks(files.directory)
    if kept is not None:
        known.append(kept.mark)
    rows, cols = files.spec["size"]
    tracker = tracker_at(log, (rows, cols), at, known, resizes)
    plan = plan_at(log, tracker, known, history_rows)
    return Restore(log, tracker.ground, tracker.snapshot(), plan, resizes, kept)


def screen(core: Core, files: Files, *, at: int | None, history: int) -> Screen:
    from ..terminal.screen import Screen

    if not files.spec.get("tty"):
        raise NotATty(files.id)
    log = core.log(files.id)
    with log.look() as look:
        end = look.ends.get(STREAM, 0)
        if at is not None and not look.has_come_to(STREAM, at):
            raise OffsetAhead(STREAM, at, end)
    at = None if at is None else min(at, end)
    restore, grid = _drawn(log, files, end if at is None else at, history)
    shown = Screen.of(grid, restore.state, exact=restore.plan["exact"] and restore.whole, history_rows=history)
    if at in (None, end) and _silent_s(log) > SYNCHRONIZED_MAX_S:
        shown.mid_update = False  # a program that never said that it is done is taken to be
    return shown


def drawn_at(core: Core, id: str, at: int, history_rows: int) -> tuple[Grid, dict[str, Any], bytes]:
    """The grid and the terminal's state at the last ground offset up to `at`, and the output from there to `at`."""
    files = read_files(core.home, id)
    restore, grid = _drawn(core.log(id), files, at, history_rows)
    return grid, restore.state, b"".join(restore.read(restore.at, at))


def _drawn(log: Log, files: Files, at: int, history_rows: int) -> tuple[Restore, Grid]:
    restore = restore_at(log, files, at, history_rows, keyframes.read(files.directory, at))
    return restore, keyframes.draw(files.directory, restore, history_rows)


def _silent_s(log: Log) -> float:
    """How long ago the terminal last printed something."""
    with log.look() as look:
        newest = look.newest(STREAM)
    return 0.0 if newest is None else time.time() - newest
