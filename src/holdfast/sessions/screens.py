"""The screen of a terminal, now or at any retained offset, from the files alone."""

from __future__ import annotations

import time

from ..core.records import TTY
from ..core.vt.modes import SYNCHRONIZED_MAX_S
from ..errors import NotATty, OffsetAhead, Unsupported
from .marks import plan_at, read_marks, tracker_at
from .observe import read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..terminal.grid import Grid
    from ..terminal.screen import Screen
    from .core import Core
    from .log import Log
    from .observe import Files


# Grids that one host keeps; a large one takes a few megabytes.
_KEPT_MAX = 4


class Keyframe:
    """A grid that a host keeps of a session, and where it is: a mark like those in `marks.jsonl`."""

    __slots__ = ("grid", "mark")

    def __init__(self, mark: dict[str, Any], grid: Grid) -> None:
        self.mark = mark
        self.grid = grid


class Restore:
    """From where, and with which sizes in between, the screen at `at` is built."""

    __slots__ = ("_log", "at", "plan", "resizes", "state", "whole")

    def __init__(
        self,
        log: Log,
        at: int,
        state: dict[str, Any],
        plan: dict[str, Any],
        resizes: list[tuple[int, int, int]],
    ) -> None:
        self._log = log
        self.at = at
        self.state = state
        self.plan = plan
        self.resizes = resizes
        # Whether all bytes that were requested so far were available.
        self.whole = True

    def read(self, begin: int, end: int) -> Iterator[bytes]:
        for offset, block in self._log.blocks(TTY, begin, end):
            self.whole &= offset == begin
            yield block
            begin = offset + len(block)
        self.whole &= begin >= end


def restore_at(log: Log, files: Files, at: int, history_rows: int, kept: Keyframe | None = None) -> Restore:
    """The plan for the last ground offset up to `at`. It may begin at a keyframe: none is given where only the bytes of
    the log are sent on."""
    resizes = log.resizes()
    known = read_marks(files.directory)
    if kept is not None:
        known.append(kept.mark)
    rows, cols = files.spec["size"]
    tracker = tracker_at(log, (rows, cols), at, known, resizes)
    plan = plan_at(log, tracker, known, history_rows)
    return Restore(log, tracker.ground, tracker.snapshot(), plan, resizes)


def screen(core: Core, files: Files, *, at: int | None, history: int) -> Screen:
    from ..terminal.screen import Screen

    log, end, wanted = _wanted(core, files, at)
    restore, grid = _drawn(core, files, wanted, history)
    shown = Screen.of(grid, restore.state, exact=restore.plan["exact"] and restore.whole, history_rows=history)
    if wanted == end and _silent_s(log) > SYNCHRONIZED_MAX_S:
        shown.mid_update = False  # a program that never ended its update is taken to have ended it
    _keep(core, files.id, restore, grid, history)
    return shown


def repainted(core: Core, files: Files, *, at: int | None) -> tuple[int, tuple[int, int], bytes]:
    """An offset, the size there, and the bytes that put a blank terminal of that size into its state: the output that
    follows can be written after them."""
    from ..terminal.filter import Filter
    from ..terminal.paint import paint

    _, _, wanted = _wanted(core, files, at)
    restore, grid = _drawn(core, files, wanted, 0)
    painted = Filter().replay(paint(grid, restore.state, grid.size, 0, in_place=True))
    _keep(core, files.id, restore, grid, 0)
    return wanted, grid.size, painted + b"".join(restore.read(restore.at, wanted))


def _wanted(core: Core, files: Files, at: int | None) -> tuple[Log, int, int]:
    """The log, its end, and the offset that was asked for: the end if none was."""
    if not files.spec.get("tty"):
        raise NotATty(files.id)
    log = core.log(files.id)
    with log.snapshot() as snapshot:
        end = snapshot.ends.get(TTY, 0)
        if at is not None and not snapshot.has_come_to(TTY, at):
            raise OffsetAhead(TTY, at, end)
    return log, end, end if at is None else min(at, end)


def drawn_at_offset(core: Core, id: str, at: int, history_rows: int) -> tuple[Grid, dict[str, Any], bytes]:
    """The grid and the terminal's state at the last ground offset up to `at`, and the output from there to `at`."""
    files = read_files(core.home, id)
    restore, grid = _drawn(core, files, at, history_rows)
    return grid, restore.state, b"".join(restore.read(restore.at, at))


def _drawn(core: Core, files: Files, at: int, history_rows: int) -> tuple[Restore, Grid]:
    """The grid at an offset, from the one that this host keeps where that helps. The caller owns the grid."""
    from ..terminal.grid import GridFailed
    from ..terminal.restore import render

    log = core.log(files.id)
    kept = core.keyframes.pop(files.id, None)  # no other call feeds it meanwhile
    if kept is not None and (kept.mark["offset"] > at or kept.mark["history"] < history_rows):
        core.keyframes[files.id] = kept
        kept = None
    elif kept is not None:
        sizes = [(rows, cols) for offset, rows, cols in log.resizes() if offset <= kept.mark["offset"]]
        if sizes and sizes[-1] != kept.grid.size:
            kept = None  # resized since, at the same offset
    restore = restore_at(log, files, at, history_rows, kept)
    plan, begun = restore.plan, None
    if kept is not None:
        # It has both screens and the history: what comes before it need not be drawn.
        offset = kept.mark["offset"]
        after = [part for part in plan["ranges"] if part["to"] >= offset]
        if after and after[0]["from"] <= offset:
            plan = {**plan, "ranges": [{**after[0], "from": offset}, *after[1:]]}
            begun = offset, kept.grid
    try:
        return restore, render(plan, restore.read, restore.resizes, history_rows, keyframe=begun)
    except GridFailed as problem:
        raise Unsupported(f"drawing this screen: {problem}") from None


def _keep(core: Core, id: str, restore: Restore, grid: Grid, history_rows: int) -> None:
    """Keep this grid: the next request draws only what was printed since. A look back leaves a newer one in place."""
    newer = core.keyframes.get(id)
    if restore.plan["exact"] and restore.whole and (newer is None or newer.mark["offset"] <= restore.at):
        state = restore.state
        facts = {name: state[name] for name in ("lines", "size", "alt")}
        mark = {"offset": restore.at, "why": "keyframe", "history": history_rows, "state": state, **facts}
        core.keyframes[id] = Keyframe(mark, grid)
        while len(core.keyframes) > _KEPT_MAX:
            core.keyframes.pop(next(iter(core.keyframes)))


def _silent_s(log: Log) -> float:
    """How long ago the terminal last printed something."""
    with log.snapshot() as snapshot:
        newest = snapshot.newest(TTY)
    return 0.0 if newest is None else time.time() - newest
