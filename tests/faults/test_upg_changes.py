"""UPG-01: an upgrade, or a rollback, while sessions run, and in the middle of a start, a stop, a drain and a replay.
Nothing hangs, nothing is killed, and what a release does not know is refused by name and version."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast import errors
from holdfast.runner.status import WIRE_FEATURES
from holdfast.sessions.driver import drive
from support.releases import Change, Side, of_each_release, of_release, of_today
from support.waiting import until

if TYPE_CHECKING:
    from support.points import Points
    from support.world import World

pytestmark = [pytest.mark.covers("UPG-01"), pytest.mark.own_launcher]


def facts(side: Side, ref: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(side.says("status", ref, "--json"))
    return found


def test_upg_01_sessions_go_on_through_a_change_of_release_and_back(world: World, change: Change) -> None:
    before, after = change
    pipes = before.says("start", "--stdin", "open", "--name", "pipes", "--", *world.probe("cat"))
    terminal = before.says("start", "--tty", "--name", "repl", "--", "cat")
    over = before.hold("run", "--name", "over", "--", "echo done; exit 3", check=False)
    assert (over.returncode, over.stdout) == (3, "done\n")
    pids = [facts(before, name)["pid"] for name in ("pipes", "repl")]
    for turn, side in enumerate((after, before, after)):
        assert set(side.says("ls", "-q").split()) == {pipes, terminal}
        side.hold("send", "--newline", "pipes", f"word {turn}")
        side.hold("wait", "pipes", "--match", f"^word {turn}$", "--timeout", "30s")
        side.hold("submit", "repl", f"typed {turn}")
        side.hold("wait", "repl", "--match", f"typed {turn}", "--timeout", "30s")
        assert f"typed {turn}" in side.says("screen", "repl")
        assert side.says("logs", "over") == "done"
        assert facts(side, "over")["exit"]["code"] == 3  # type: ignore[index]
        side.hold("doctor", check=False)
        side.hold("gc")
        assert side.says("run", "--", "echo its own") == "its own"
        assert [facts(side, name)["pid"] for name in ("pipes", "repl")] == pids
    assert side.says("logs", "pipes").split("\n") == ["ready", "word 0", "word 1", "word 2"]
    after.hold("stop", "--all", "--grace", "0")
    for side in (before, after):
        assert [facts(side, name)["status"] for name in ("pipes", "repl")] == ["killed", "killed"]


_POINTS = ("host.spawn", "runner.spec_written", "runner.spawned", "runner.state_written")


@pytest.mark.parametrize(
    "point", [pytest.param(point, marks=() if point == "runner.spawned" else pytest.mark.long) for point in _POINTS]
)
def test_upg_01_a_change_in_the_middle_of_a_start(world: World, change: Change, points: Points, point: str) -> None:
    before, after = change
    points.set(f"{point}=pause")
    starting = before.program("start", "--name", "web", "--", *world.probe("forever"), HOLDFAST_OFF="launcher")
    hit = points.wait(point)
    points.clear()
    # Whatever the other release sees of it: it neither waits for it nor ends it.
    after.hold("ls")
    after.hold("doctor", check=False)
    after.hold("gc")
    hit.release()
    # On a busy machine the commands above took longer than a start waits; the session comes about all the same.
    if starting.wait() != 0:
        assert "is alive but did not answer within 10 s" in starting.errors()
    until(lambda: world.open().get("web").state == "running", what="the session")
    id = after.says("ls", "-q")
    assert facts(after, "web")["state"] == "running"
    after.hold("stop", id, "--grace", "0")
    assert facts(before, id)["status"] == "killed"


def test_upg_01_a_change_in_the_middle_of_a_stop(world: World, change: Change) -> None:
    before, after = change
    id = before.says("start", "--", *world.probe("ignore", "TERM,INT,HUP", "forever"))
    before.hold("wait", id, "--match", "ready", "--timeout", "30s")
    stopping = before.program("stop", id, "--grace", "10m")
    observer = world.open().get(id)
    until(lambda: bool(observer.refresh().stopping), what="the stop")
    stopping.kill()
    assert facts(after, id)["state"] == "running"
    assert facts(after, id)["stopping"]
    after.hold("stop", id, "--grace", "0")
    for side in (after, before):
        seen = facts(side, id)
        assert (seen["status"], seen["exit"]["cause"]) == ("killed", "stop")  # type: ignore[index]


# Claims what waits, says what it has; settles it when it is told to.
DRAINER = """
import sys, holdfast
with holdfast.open() as hf:
    batch = hf.signals("agent-7").claim()
    print(*[each.session for each in batch.signals if each.variant == "lifecycle"], flush=True)
    if sys.stdin.readline():
        batch.settle()
        print("settled", flush=True)
"""


def test_upg_01_a_change_in_the_middle_of_a_drain(world: World, change: Change) -> None:
    before, after = change

    def drained(side: Side) -> list[str]:
        drainer = side.host(DRAINER)
        found = drainer.line().split()
        drainer.send("settle\n")
        assert drainer.line() == "settled", drainer.errors()
        assert drainer.wait() == 0, drainer.errors()
        return found

    start = ("start", "--owner", "agent-7", "--notify", "exit", "--")
    first = [before.says(*start, "true"), after.says(*start, "true")]
    for id in first:
        after.hold("wait", id, check=False)
    drainer = before.host(DRAINER)
    assert sorted(drainer.line().split()) == sorted(first)
    drainer.kill()
    # What was claimed and not settled comes again, in the other release, and once.
    assert sorted(drained(after)) == sorted(first)
    assert drained(before) == []
    second = after.says(*start, "true")
    before.hold("wait", second, check=False)
    assert drained(before) == [second]
    assert drained(after) == []


def test_upg_01_a_change_in_the_middle_of_a_replay(world: World, change: Change) -> None:
    before, after = change
    gate = world.gate()
    id = before.says("start", "--", *world.probe("lines", 2000, "await", gate, "say", "later", "exit", 0))
    before.hold("wait", id, "--match", "^line 2000$", "--timeout", "30s")
    follower = before.program("logs", "-f", id)
    read = json.loads(before.says("logs", id, "-n", "1000", "--json"))
    assert follower.lines_until("line 1000")[1:] == [f"line {n}" for n in range(1, 1001)]
    assert len(after.says("logs", id).split("\n")) == 2001
    after.hold("doctor", check=False)
    gate.release()
    assert follower.lines_until("later") == [f"line {n}" for n in range(1001, 2001)] + ["later"]
    assert follower.wait() == 0, follower.errors()
    # A cursor of one release goes on in the other at the same byte.
    assert after.says("logs", id, "--since", read["cursor"]) == "later"
    assert facts(after, id)["exit"]["code"] == 0  # type: ignore[index]


@of_each_release
def test_upg_01_ls_status_and_doctor_show_which_runner_has_which_version(world: World, release: Path) -> None:
    there, today = of_release(world, release), of_today(world, release)
    theirs = there.says("start", "--name", "theirs", "--", *world.probe("forever"))
    ours = today.says("start", "--name", "ours", "--", *world.probe("forever"))
    shots = json.loads(today.says("ls", "--json"))
    assert {shot["id"]: shot["runner_version"] for shot in shots} == {
        theirs: release.name,
        ours: today.version,
    }
    assert f"version {release.name}" in today.says("status", theirs)
    rows = {line.split()[1]: line for line in today.says("ls").split("\n")[1:]}
    found = [line for line in today.hold("doctor", check=False).stdout.split("\n") if "runners:" in line]
    assert "RUNNER" in today.says("ls")
    assert [name for name, row in rows.items() if f" {release.name} " in row] == ["theirs"]
    assert [f"version {release.name} runs {theirs}:" in line for line in found] == [True]
    # As the fix says.
    moved = today.says("restart", "theirs")
    assert json.loads(today.says("status", moved, "--json"))["runner_version"] == today.version
    today.hold("stop", "--all", "--grace", "0")
    # A session that has ended has no runner: nothing is said of it.
    assert "RUNNER" not in today.says("ls", "-a")


@of_each_release
def test_upg_01_what_a_released_runner_does_not_know_is_unsupported_by_name_and_version(
    world: World, release: Path
) -> None:
    id = of_release(world, release).says("start", "--stdin", "open", "--", *world.probe("cat"))
    hf = world.open()
    _, connection = drive(hf._core.connect(id))
    unknown = {*WIRE_FEATURES, "reincarnate"} - set(connection.hello["features"])
    connection.close()
    assert unknown
    for feature in unknown:
        with pytest.raises(errors.Unsupported) as caught:
            drive(hf._core.request(id, feature))
        assert (caught.value.feature, caught.value.version) == (feature, release.name)
        assert f"{feature}" in str(caught.value)
        assert release.name in str(caught.value)
    session = hf.get(id)
    assert session.send("hello\n").accepted == 6
    assert session.wait(match="hello", timeout=30).reason == "match"
    assert session.stop(grace=0).done
