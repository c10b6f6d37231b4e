"""The launcher that tests share: it starts sessions of any world, and its runners are not taken for spares."""

from __future__ import annotations

import os

from support import processes, shared_launcher
from support.waiting import until
from support.world import World, new_root


def test_a_session_of_a_lent_launcher_is_distinguished_from_its_spares(world: World) -> None:
    shared = shared_launcher.SharedLauncher(World(new_root("hf-launcher-")), dict(os.environ))
    world.closing.callback(shared.end)
    shared.lend(world)
    session = world.open().start(world.probe("forever"))
    runner = processes.look(session.runner_pid or 0)
    assert runner is not None
    assert shared.is_child(runner)
    assert not shared.is_spare(runner)

    def spares() -> list[int]:
        return [row.pid for row in processes.below(shared.process.pid) if shared.is_spare(row)]

    until(lambda: len(spares()) == 2, what="the next spare")
    assert runner.pid not in spares()
    assert [row.pid for row in world.launchers()] == [shared.process.pid]
    session.kill()
    # It leaves with this test and removes only its own names.
    for path in world.runtime.glob("launcher-*"):
        path.unlink()
