"""Many sessions at once, and the price of one that does nothing."""

from __future__ import annotations

import pytest

from support import processes
from support.bystander import Bystanders
from support.promised import Beside, marked, promised, runners
from support.scale import scaled
from support.waiting import until
from support.world import World

MANY = scaled(60, 200)
IDLE = scaled(15, 50)


@pytest.mark.covers("OWN-02")
@pytest.mark.slow
def test_two_hundred_sessions_are_started_listed_recovered_and_stopped(
    world: World, beside: Beside, bystander: Bystanders, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new host finds each of them by its own runner, and one call ends them all."""
    # That all of them answer is asked here, not how soon a busy machine lets the last of them.
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "20s")
    hf = world.open()
    started = [hf.start(["sleep", "600"], owner="many") for _ in range(MANY)]
    ids = {session.id for session in started}
    assert len(ids) == MANY
    assert {session.id for session in hf.sessions(owner="many")} == ids
    fresh = world.open()
    found = fresh.recover()
    assert {session.id for session in found.live} == ids | {beside.session.id}
    live = [session.to_json() for session in found.live]
    assert not found.unreachable
    assert not found.stale
    assert not found.lost
    assert {shot["metadata"]["evidence"] for shot in live} == {"its runner answered"}
    assert len({shot["runner_pid"] for shot in live}) == MANY + 1
    stopped = fresh.stop_all(ids, grace=5)
    assert all(answer.done for answer in stopped)
    assert [session.id for session in fresh.sessions()] == [beside.session.id]
    for session in started[::20]:
        promised(world, session, bystander=bystander, beside=beside)
        assert session.exit is not None
        assert (session.exit.cause, session.exit.signal) == ("stop", "SIGTERM")
        assert not marked(session.id)
    until(lambda: not any(runners(world, id) for id in list(ids)[:5]), what="the leave of their runners")


@pytest.mark.slow
def test_fifty_idle_runners_cost_nothing_while_another_one_is_busy(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    """No clock is asserted: an idle runner sleeps in the kernel, so not even a context switch is counted."""
    hf = world.open()
    idle = [hf.start(world.probe("forever")) for _ in range(IDLE)]
    for session in idle:
        assert session.wait(match="^ready$", timeout=30).reason == "match"
        promised(world, session, bystander=bystander, beside=beside)
    launchers = world.launchers()
    pids = [session.runner_pid for session in idle if session.runner_pid is not None]
    assert len(pids) == IDLE
    until(lambda: all((row := processes.look(pid)) is not None and row.state == "S" for pid in pids))
    quiet = settled(pids)
    for _ in range(scaled(300, 1000)):
        assert beside.session.refresh().state == "running"
    assert {pid: processes.price(pid) for pid in pids} == quiet
    assert world.launchers() == launchers
    assert all(answer.done for answer in hf.stop_all([session.id for session in idle], grace=1))
    promised(world, idle[0], bystander=bystander, beside=beside)


def settled(pids: list[int]) -> dict[int, tuple[int, int, int]]:
    """Their prices once two looks agree: the last client's leave has been dealt with."""
    before: dict[int, tuple[int, int, int]] = {}

    def same() -> bool:
        nonlocal before
        now = {pid: processes.price(pid) for pid in pids}
        same, before = now == before, now
        return same

    until(same, what="rest")
    return before
