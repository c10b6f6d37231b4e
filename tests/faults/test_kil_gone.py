"""KIL-12 and KIL-13: trees without a runner are ended by the host, and looking at them changes nothing."""

from __future__ import annotations

import signal
import time
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import Unreachable
from support import processes
from support.bystander import Bystanders
from support.faults import halt, kill_runner, sweep_up, wedged
from support.points import Points
from support.promised import Beside, marked, promised
from support.scale import scaled
from support.waiting import until
from support.world import World

if TYPE_CHECKING:
    from holdfast import Holdfast

PROOF = ["ignore", "TERM,HUP,INT"]
TREES: dict[str, tuple[list[object], int]] = {
    "leader that leaves, term-proof child": (
        ["exit-on", "TERM", 0, "fork", "{", *PROOF, "say", "up", "forever", "}"],
        2,
    ),
    "setsid escapee": (["fork", "{", "setsid", *PROOF, "say", "up", "forever", "}"], 2),
    "double fork": (["daemon", "{", *PROOF, "say", "up", "forever", "}"], 2),
    "all of them": (
        [
            *("exit-on", "TERM", 0, "daemon", "{", *PROOF, "say", "up", "forever", "}"),
            *("fork", "{", "setsid", *PROOF, "forever", "}", "fork", "{", "setpgid", "forever", "}"),
        ],
        4,
    ),
}


@pytest.mark.covers("KIL-12")
@pytest.mark.parametrize("tree", TREES)
def test_kil_12_a_tree_whose_runner_is_gone_is_ended_by_the_host(
    world: World, without: str, beside: Beside, bystander: Bystanders, tree: str
) -> None:
    words, count = TREES[tree]
    hf = world.open()
    session = hf.start(world.probe(*words, "lines", 4, "forever"))
    # Who does not leave is deaf by then, and everybody is there, without the process between two forks.
    for word in ("up", "line 4"):
        assert session.wait(match=f"^{word}$", timeout=30).reason == "match"
    kill_runner(session)
    promised(world, session, bystander=bystander, beside=beside, numbers=4)
    assert session.state == "stale"
    began = time.monotonic()
    stopped = session.stop(grace=0.5)
    assert not marked(session.id)
    assert time.monotonic() - began >= 0.2
    assert stopped.done
    assert len(stopped.found) == count
    assert stopped.rung == "KILL to the tree"
    promised(world, session, bystander=bystander, beside=beside, numbers=4)
    assert session.state == "lost"
    assert session.exit is not None
    assert (session.status, session.exit.cause) == ("killed", "stop")
    again = session.stop()
    assert (again.done, again.already) == (True, True)
    sweep_up(world, hf)


@pytest.mark.covers("KIL-12")
def test_kil_12_survivors_of_an_exit_are_ended_though_their_runner_is_gone(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    """The command has ended and is recorded; its runner dies while it watches what is left."""
    hf = world.open()
    session = hf.run(world.probe("lines", 4, "daemon", "{", *PROOF, "forever", "}", "exit", 3), wait=30)
    kill_runner(session)
    assert len(marked(session.id)) == 1
    promised(world, session, bystander=bystander, beside=beside, numbers=4)
    assert session.exit is not None
    assert (session.state, session.exit.code, len(session.exit.survivors)) == ("exited", 3, 1)
    stopped = session.stop(grace=0.3)
    assert stopped.done
    assert len(stopped.found) == 1
    assert not marked(session.id)
    promised(world, session, bystander=bystander, beside=beside, numbers=4)
    assert session.exit is not None
    assert session.exit.code == 3
    sweep_up(world, hf)


@pytest.mark.covers("KIL-12")
def test_kil_12_a_halted_tree_whose_runner_is_gone_is_ended(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    session = hf.start(world.probe("fork", "{", "forever", "}", "lines", 4, "forever"))
    assert session.wait(match="^line 4$", timeout=30).reason == "match"
    kill_runner(session)
    assert session.pid is not None
    halt(session.pid)
    stopped = session.stop(grace=2)
    assert stopped.done
    assert stopped.rung == "TERM to the tree"
    promised(world, session, bystander=bystander, beside=beside, numbers=4)
    sweep_up(world, hf)


STOPPER = """
import sys, holdfast
holdfast.open().get(sys.argv[1]).stop(grace=0.3)
"""


@pytest.mark.covers("KIL-12")
@pytest.mark.parametrize("rung", [1, 2, 3])
def test_kil_12_a_host_that_dies_on_the_ladder_is_followed_by_another(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders, rung: int
) -> None:
    hf = world.open()
    session = hf.start(world.probe(*PROOF, "lines", 4, "fork", "{", "forever", "}", "forever"))
    assert session.wait(match="^line 4$", timeout=30).reason == "match"
    kill_runner(session)
    points.set(f"host.rung={rung}*kill")
    stopper = world.host(STOPPER, session.id)
    assert stopper.wait() == -signal.SIGKILL
    points.clear()
    # First reason wins: the one that follows does not become the author.
    first_asked = f"api:{stopper.pid}"
    promised(world, session, bystander=bystander, beside=beside, numbers=4)
    assert session.state == "stale"
    stopped = session.stop(grace=0.3)
    assert stopped.done
    assert not marked(session.id)
    promised(world, session, bystander=bystander, beside=beside, numbers=4)
    assert session.exit is not None
    assert (session.exit.cause, session.exit.by) == ("stop", first_asked)
    sweep_up(world, hf)


@pytest.mark.covers("KIL-13", "found:34")
@pytest.mark.slow
@pytest.mark.parametrize("state", ["stale", "unreachable"])
@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
def test_kil_13_a_thousand_looks_neither_kill_nor_change_anything(
    world: World, beside: Beside, bystander: Bystanders, monkeypatch: pytest.MonkeyPatch, state: str, tty: bool
) -> None:
    """Status, list, output, wait, and the screen of a terminal. The bound of each look is short, or a wedged runner
    would cost it 1,000 times."""
    hf = world.open()
    # A terminal hangs up when its runner dies, and there is nobody left to report a signal to.
    session = hf.start(
        world.probe(*(("ignore", "HUP") if tty else ("signal-report",)), "lines", 30, "forever"), tty=tty
    )
    assert session.wait(match="^line 30$", timeout=30).reason == "match"
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "0.005")
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", "0.005")
    impatient = world.open()
    if state == "stale":
        kill_runner(session)
        look_a_thousand_times(world, impatient, session.id, state)
    else:
        with wedged(session) as runner:
            look_a_thousand_times(world, impatient, session.id, state)
            assert not processes.is_gone(runner.pid, runner.start)
    # A runner that was wedged finds its queue full of callers who gave up, and the next one is turned away.
    until(lambda: session.refresh().state == ("stale" if state == "stale" else "running"))
    promised(world, session, bystander=bystander, beside=beside, numbers=None if tty else 30)
    assert "signal" not in session.text()
    assert session.stop(grace=1).done
    sweep_up(world, hf)


def look_a_thousand_times(world: World, hf: Holdfast, id: str, state: str) -> None:
    session = hf.get(id)
    assert session.pid is not None
    before, text = processes.look(session.pid), session.text()
    screen = session.screen().text if session.tty else ""
    files = {path.name: path.stat().st_mtime_ns for path in world.session(id).iterdir()}
    for _ in range(scaled(40, 200)):
        assert not session.tty or session.screen().text == screen
        assert session.refresh().state == state
        assert state in [each.state for each in hf.sessions()]
        assert session.read(0).text == text
        assert session.tail(1) == "line 30\n"
        try:
            assert session.wait(output=True, timeout=0).reason == "timeout"
        except Unreachable:
            assert state == "unreachable"
    after = processes.look(session.pid)
    assert after is not None
    assert before is not None
    assert (after.pid, after.start) == (before.pid, before.start)
    assert {path.name: path.stat().st_mtime_ns for path in world.session(id).iterdir()} == files
