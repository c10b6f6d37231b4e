"""What tests do to runners, hosts and launchers: kill, wedge, wake, and clean up afterwards."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from support import processes
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from holdfast import Holdfast, Session
    from support.world import World


def runner_of(session: Session) -> processes.Process:
    assert session.runner_pid is not None
    row = processes.look(session.runner_pid)
    assert row is not None
    return row


def kill_runner(session: Session) -> None:
    """SIGKILL the runner, and wait until it is gone."""
    row = runner_of(session)
    assert processes.send(row, signal.SIGKILL)
    wait_gone(row.pid)


def is_stopped(pid: int) -> bool:
    row = processes.look(pid)
    return row is not None and row.state in "Tt"


def halt(pid: int) -> None:
    """SIGSTOP a process, and wait until it stands still."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: is_stopped(pid), what=f"the halt of {pid}")


@contextmanager
def wedged(session: Session) -> Iterator[processes.Process]:
    """The runner stands still inside the block."""
    row = runner_of(session)
    halt(row.pid)
    try:
        yield row
    finally:
        processes.send(row, signal.SIGCONT)


def kill_launchers(world: World) -> list[processes.Process]:
    """SIGKILL every launcher of this world; its spares leave on their own."""
    found = world.launchers()
    for row in found:
        processes.send(row, signal.SIGKILL)
        wait_gone(row.pid)
    return found


def sweep_up(world: World, hf: Holdfast) -> None:
    """Sockets of runners that were killed stay until a collection; a half start must be old for that."""
    for path in [*(world.home / "sessions").iterdir(), *world.runtime.glob("*.sock")]:
        try:
            os.utime(path, (0, 0))
        except FileNotFoundError:
            continue  # its runner left in an orderly way after all
    hf.collect()
