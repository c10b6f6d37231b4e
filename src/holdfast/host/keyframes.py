"""A screen that took long to draw is kept beside the log, for whoever asks next. A cache: one file, disposable."""

from __future__ import annotations

import json
import os

from ..errors import Unsupported
from ..runner import records
from .marks import is_mark

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..terminal.grid import Grid
    from .screens import Restore

    Mark = dict[str, Any]

# Drawing less than this again is quicker than keeping it.
_WORTH_BYTES = 256 << 10
_PREFIX = "keyframe."


class Keyframe:
    """The newest one of a session: a mark like others, and the dump of the grid there."""

    __slots__ = ("dump", "mark")

    def __init__(self, mark: Mark, dump: str) -> None:
        self.mark = mark
        self.dump = dump


def read(directory: str, at: int) -> Keyframe | None:
    """One that lies before `at`; one that cannot be read is none."""
    for name in _names(directory):
        try:
            kept = records.read(os.path.join(directory, name))
            mark, dump = kept["mark"], kept["dump"]
            if is_mark(mark) and mark["offset"] <= at and isinstance(mark["history"], int) and isinstance(dump, str):
                return Keyframe(mark, dump)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def draw(directory: str, restore: Restore, history_rows: int) -> Grid:
    """The grid of a restore, from a keyframe where one helps; kept as one where that was long work."""
    from ..terminal.grid import GridFailed
    from ..terminal.restore import render

    keyframe, plan = restore.keyframe, restore.plan
    kept = None
    if (
        keyframe is not None
        and keyframe.mark["history"] >= history_rows
        and plan["ranges"][-1]["from"] <= keyframe.mark["offset"]
    ):
        # It holds both screens and the history: what comes before it need not be drawn.
        plan = {**plan, "ranges": [{**plan["ranges"][-1], "from": keyframe.mark["offset"]}]}
        kept = keyframe.mark["offset"], keyframe.dump
    try:
        grid = render(plan, restore.read, restore.resizes, history_rows, keyframe=kept)
    except GridFailed as problem:
        raise Unsupported(f"drawing this screen: {problem}") from None
    if plan["exact"] and restore.whole and sum(part["to"] - part["from"] for part in plan["ranges"]) > _WORTH_BYTES:
        _keep(directory, restore, grid, history_rows)
    return grid


def _keep(directory: str, restore: Restore, grid: Grid, history_rows: int) -> None:
    state = restore.state
    mark = {
        "offset": restore.at,
        "why": "keyframe",
        "lines": state["lines"],
        "size": state["size"],
        "alt": state["alt"],
        "history": history_rows,
        "state": state,
    }
    content = json.dumps({"mark": mark, "dump": grid.dump()}).encode()
    name = f"{_PREFIX}{restore.at:020d}"
    before = _names(directory)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        records.replace(fd, f".{name}.{os.getpid()}", name, content, durable=False)
        for old in before:
            if old != name:
                os.unlink(old, dir_fd=fd)
    except OSError:
        pass  # a full or a read-only home, or somebody else did the same: the next one draws it again
    finally:
        os.close(fd)


def _names(directory: str) -> list[str]:
    try:
        return sorted((name for name in os.listdir(directory) if name.startswith(_PREFIX)), reverse=True)
    except FileNotFoundError:
        return []  # removed meanwhile
