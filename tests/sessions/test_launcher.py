"""What a launcher does before anybody asks it for a runner."""

from __future__ import annotations

import signal

import pytest

from support.waiting import until
from support.world import World

pytestmark = pytest.mark.own_launcher


def ignores_children(pid: int) -> bool:
    """A launcher does so once its warm-up is over."""
    with open(f"/proc/{pid}/status", encoding="ascii") as status:
        ignored = next(int(line.split()[1], 16) for line in status if line.startswith("SigIgn:"))
    return bool(ignored >> (signal.SIGCHLD - 1) & 1)


@pytest.mark.parametrize("off", ["", "rehearsal"], ids=["rehearsed", "not-rehearsed"])
def test_sessions_start_through_a_launcher_that_has_rehearsed_and_through_one_that_has_not(
    world: World, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    """All other tests use launchers that do not rehearse: whatever a rehearsal leaves behind shows here."""
    monkeypatch.setenv("HOLDFAST_OFF", off)
    hf = world.open()
    assert hf.run(["echo", "first"], wait=30).text() == "first\n"
    (launcher,) = world.launchers()
    until(lambda: ignores_children(launcher.pid), what="the end of the warm-up")
    for number in range(5):
        done = hf.run(["sh", "-c", f"echo {number}; exit 3"], wait=30)
        assert done.exit is not None
        assert (done.text(), done.exit.code) == (f"{number}\n", 3)
    assert [row.pid for row in world.launchers()] == [launcher.pid]
    rehearsed = list(world.runtime.glob("launcher-*.scratch"))
    assert len(rehearsed) == (0 if off else 1)
    world.end_launchers()
    assert not list(world.runtime.glob("launcher-*"))
