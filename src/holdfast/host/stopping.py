"""Ending a session whose runner is gone or does not answer: the same ladder, climbed by the host.

Each process is verified by pid and start time right before each signal; what cannot be verified is not signalled.
"""

from __future__ import annotations

import os
import signal
import time

from ..errors import IdentityMismatch
from ..model import CAUSE_STOP, Stopped
from ..runner import clock, points, records, tree
from ..runner.causes import AFTER_GRACE, AT_ONCE, IN_GRACE
from ..runner.ladder import Ladder, rungs
from .driver import first_death
from .observe import elsewhere, orphans, stranger

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from .driver import Driver
    from .observe import Files

# Each costs a descriptor while it is waited for, and the first death is enough for a look at all of them.
_WATCHED_MAX = 64
# Where the kernel cannot tell us of a death.
_LOOK_S = 0.05


async def stop_from_records(
    driver: Driver, files: Files, *, grace: float, by: str, ladder: Sequence[Mapping[str, Any]] | None = None
) -> Stopped:
    """Climb the ladder over what the records prove to be this session's. Who asked is on disk before the first rung:
    no runner may be left to tell it, and one that wakes later must not take the end for the command's own."""
    _refuse_elsewhere(files)
    _refuse_poison(files)
    began = time.monotonic()
    found = orphans(files)
    if found and files.exit is None:
        alive = any(process.pid == _command_pid(files) for process in found)
        record_intent(files, by, IN_GRACE if alive else None)
    asked = ladder or (files.spec.get("stop_ladder") if grace > 0 else None)
    climb = Ladder(rungs(grace, None if asked is None else [dict(each) for each in asked]))
    rung = None
    while True:
        living = orphans(files)
        command_gone = not any(process.pid == _command_pid(files) for process in living)
        step = climb.step(time.monotonic(), command_gone=command_gone, tree_gone=not living)
        if climb.over:
            survivors = tree.described(living)
            break
        if step is None:
            await first_death(driver, living[:_WATCHED_MAX], climb.until - time.monotonic(), look_s=_LOOK_S)
            continue
        if points.ACTIVE:
            points.hit("host.rung")
        if step.signal == "KILL" and not command_gone and files.exit is None:
            _record_kill(files, AT_ONCE if rung is None else AFTER_GRACE)
        rung = str(step)
        if step.signal == "KILL" and step.target == "tree":
            sweep = tree.Sweep(lambda: orphans(files), step.wait_s)
            survivors = await driver.call(sweep.run)
            break
        for process in tree.members(living, _command_pid(files), step.target):
            tree.send(process, getattr(signal, "SIG" + step.signal))
            if step.signal != "KILL":
                tree.send(process, signal.SIGCONT)
    return Stopped(
        files.id,
        found=tree.described(found),
        survivors=survivors,
        rung=rung,
        took_s=round(time.monotonic() - began, 3),
        already=not found,
    )


def record_intent(files: Files, by: str, stopped: str | None = None) -> None:
    """A disk that takes nothing must not keep the command alive: the end is then told without its reason. `stopped` is
    how the command will have ended unless a kill is recorded later."""
    intent = {"v": 1, "cause": CAUSE_STOP, "by": by, "at": clock.now_text(), "stopped": stopped}
    try:
        directory = os.open(files.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            records.write_once(directory, records.INTENT, intent)
        finally:
            os.close(directory)
    except OSError:
        pass
    if points.ACTIVE:
        points.hit("host.intent_written")


def _record_kill(files: Files, stopped: str) -> None:
    """Before the signal is sent: another host may record the end as soon as the command is gone."""
    try:
        directory = os.open(files.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            if records.found(directory, records.INTENT).get("cause") == CAUSE_STOP:
                records.update(directory, records.INTENT, {"stopped": stopped})
        finally:
            os.close(directory)
    except OSError:
        pass


def _command_pid(files: Files) -> int | None:
    return None if files.command is None else files.command["pid"]


def refuse_unproven(files: Files) -> None:
    """What has the command's pid is not the command, or cannot be told from here: no stop may end it."""
    _refuse_elsewhere(files)
    other = stranger(files)
    if other is None or files.command is None:
        return
    # A marked process at that pid makes the record the liar. Without one, others of the session may still live.
    marked = tree.environment(other.pid).get(tree.SESSION_VARIABLE) == files.id
    if marked or not orphans(files):
        raise IdentityMismatch(files.id, "command start", files.command["start"], other.start)


def _refuse_elsewhere(files: Files) -> None:
    away = elsewhere(files)
    if away is not None:
        raise IdentityMismatch(files.id, *away)


def _refuse_poison(files: Files) -> None:
    """A record whose group is not the command's own was tampered with: nothing in it can be trusted."""
    if files.state is None:
        return
    pgid, pid = files.state.get("pgid"), files.state["command"]["pid"]
    if pgid != pid or pid <= 1:
        raise IdentityMismatch(files.id, "process group", pid, pgid)
