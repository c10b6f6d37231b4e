"""CLK-01 and CLK-04: the machine goes down, and comes up again."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.core import processes as tree
from support import processes
from support.bystander import Bystanders
from support.faults import halt, kill_runner, runner_of, sweep_up
from support.levers import namespace_argv
from support.points import Points
from support.promised import Beside, home_is_usable, is_typed, left_alone, marked, promised, runners
from support.waiting import until, wait_gone
from support.world import World

OTHER_BOOT = "0f0f0f0f-0000-4000-8000-000000000000\n"


@pytest.mark.covers("CLK-01")
def test_clk_01_after_a_reboot_what_was_unfinished_is_lost_and_no_process_is_signalled(
    world: World, points: Points, monkeypatch: pytest.MonkeyPatch, bystander: Bystanders
) -> None:
    """The command is kept alive: as if, on the new boot, a stranger had its pid and even its start time."""
    hf = world.open()
    done = hf.run("echo done; exit 3")
    live = hf.start(world.probe("lines", 3, "forever"), name="web")
    assert live.wait(match="line 3", timeout=30).reason == "match"
    kill_runner(live)
    points.set("runner.spec_written=kill")
    points.off("launcher")
    with pytest.raises(errors.HoldfastError):
        hf.start("never")
    points.clear()
    (starting,) = {path.name for path in (world.home / "sessions").iterdir()} - {done.id, live.id}

    boot = world.root / "boot_id"
    boot.write_text(OTHER_BOOT)
    kernels = tree.BOOT_ID_PATH
    monkeypatch.setattr(tree, "BOOT_ID_PATH", str(boot))
    rebooted = world.open()
    seen = {session.id: session for session in rebooted.sessions(all=True)}
    assert {id: session.state for id, session in seen.items()} == {
        done.id: "exited",
        live.id: "lost",
        starting: "lost",
    }
    for id in (live.id, starting):
        session = seen[id]
        assert session.metadata["evidence"] == "the machine was rebooted while it ran"
        assert session.exit is not None
        assert (session.status, session.exit.cause, session.exit.by) == ("failed", "lost", None)
        assert (session.exit.code, session.exit.signal, session.exit.complete) == (None, None, False)
    assert seen[live.id].text() == "ready\nline 1\nline 2\nline 3\n"
    assert seen[done.id].exit == done.exit
    with pytest.raises(errors.IdentityMismatch) as caught:
        seen[live.id].stop(grace=0)
    is_typed(caught.value)
    assert caught.value.facts["part"] == "boot"
    assert [row.pid for row in marked(live.id)] == [live.pid], "nothing was signalled"
    left_alone(bystander)
    # Its name is free, and it can be run again.
    again = rebooted.get("web").restart()
    assert (again.state, again.name, again.metadata["restarted_from"]) == ("running", "web", live.id)
    assert again.stop(grace=0).done
    monkeypatch.setattr(tree, "BOOT_ID_PATH", kernels)
    for row in marked(live.id):
        processes.end(row)
    sweep_up(world, hf)


@pytest.mark.covers("CLK-01", "found:30")
def test_clk_01_after_a_reboot_each_unfinished_session_gives_one_ended_with_cause_lost(
    world: World, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = world.open()
    hf.signals("me").pending()
    live = hf.start(world.probe("forever"), owner="me", notify="exit")
    kill_runner(live)
    for row in marked(live.id):
        processes.end(row)
    found = {live.id: "running"}
    points.off("launcher")
    for point in ("runner.spec_written", "runner.before_spawn"):
        points.set(f"{point}=kill")
        with pytest.raises(errors.HoldfastError):
            hf.start(world.probe("forever"), owner="me", notify="exit")
        (starting,) = {path.name for path in (world.home / "sessions").iterdir()} - found.keys()
        found[starting] = point
    points.clear()

    boot = world.root / "boot_id"
    boot.write_text(OTHER_BOOT)
    kernels = tree.BOOT_ID_PATH
    monkeypatch.setattr(tree, "BOOT_ID_PATH", str(boot))
    for _ in range(2):
        # A second host, and another look by the same one, add nothing.
        rebooted = world.open()
        rebooted.recover()
        rebooted.sessions(all=True)
    ended = [each for each in rebooted.signals("me").peek() if each.variant == "lifecycle"]
    assert sorted(str(each.session) for each in ended) == sorted(found), "one each"
    for each in ended:
        assert (each.phase, each.cause, each.status, each.by) == ("ended", "lost", "failed", None)
    monkeypatch.setattr(tree, "BOOT_ID_PATH", kernels)
    sweep_up(world, hf)


@pytest.mark.covers("CLK-01")
@pytest.mark.needs("namespaces")
def test_clk_01_the_boot_id_is_read_from_the_kernel(world: World, bystander: Bystanders, beside: Beside) -> None:
    """The seam of the other test against the real source: another file stands where the kernel's does."""
    hf = world.open()
    session = hf.start(world.probe("forever"))
    assert session.wait(match="ready", timeout=30).reason == "match"
    kill_runner(session)
    boot = world.root / "boot_id"
    boot.write_text(OTHER_BOOT)
    code = "import holdfast; print(*(f'{each.id}={each.state}' for each in holdfast.open().sessions(all=True)))"
    mount = f'mount --bind {boot} {tree.BOOT_ID_PATH} && exec "$0" "$@"'
    host = world.host(code, prefix=[*namespace_argv("--mount"), "sh", "-c", mount])
    assert set(host.line().split()) == {f"{session.id}=lost", f"{beside.session.id}=running"}, host.errors()
    assert host.wait() == 0
    assert Path(tree.BOOT_ID_PATH).read_text() != OTHER_BOOT
    for row in marked(session.id):
        processes.end(row)
    left_alone(bystander)
    beside.unharmed()
    sweep_up(world, hf)


def shut_down(pids: list[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGTERM)
        except ProcessLookupError:
            pass  # the one before took it along


@pytest.mark.covers("CLK-04")
@pytest.mark.parametrize("order", ["runner-first", "at-once"])
@pytest.mark.parametrize(
    "words, outcome",
    [
        (("forever",), (None, "SIGTERM")),
        (("exit-on", "TERM", "0", "say", "deaf", "forever"), (0, None)),
        (("fork", "{", "forever", "}", "say", "forked", "forever"), (None, "SIGTERM")),
    ],
    ids=["plain", "exits-0-on-term", "with-a-child"],
)
def test_clk_04_a_shutdown_is_recorded_as_a_stop_by_the_system(
    world: World,
    bystander: Bystanders,
    beside: Beside,
    order: str,
    words: tuple[str, ...],
    outcome: tuple[int | None, str | None],
) -> None:
    session = world.open().start(world.probe(*words))
    assert (
        session.wait(match={"exit-on": "deaf", "fork": "forked"}.get(words[0], "ready"), timeout=30).reason == "match"
    )
    runner = runner_of(session)
    pids = [runner.pid, *(row.pid for row in marked(session.id))]
    if order == "at-once":
        # It finds its own signal and the death of its command together when it comes to itself.
        halt(runner.pid)
        shut_down(pids)
        wait_gone(session.pid or 0)
        os.kill(runner.pid, signal.SIGCONT)
    else:
        shut_down(pids)
    record = world.session(session.id) / "exit.json"
    until(record.exists, watch=record.parent, what="the exit record, before the SIGKILL,")
    for pid in pids:
        row = processes.look(pid)
        if row is not None:
            processes.send(row, signal.SIGKILL)
    wait_gone(runner.pid)
    recorded = json.loads(record.read_text())["exit"]
    assert (recorded["cause"], recorded["by"]) == ("stop", "system")
    assert (recorded["code"], recorded["signal"]) == outcome
    ended = promised(world, session, bystander=bystander, beside=beside)
    assert ended.status == "killed"
    sweep_up(world, world.open())


@pytest.mark.covers("CLK-04")
def test_clk_04_a_command_signalled_and_reaped_before_its_runner_knows_is_no_success(
    world: World, points: Points, bystander: Bystanders, beside: Beside
) -> None:
    """On faulty code the runner looked for its own signal only before it reaped: what was told it a moment later, with
    the end not yet judged, came too late, and the shutdown of a command that exits 0 on TERM read `completed`."""
    points.set("runner.reaped=pause")
    session = world.open().start(world.probe("exit-on", "TERM", 0, "say", "set", "forever"))
    assert session.wait(match="^set$", timeout=30).reason == "match"
    runner = runner_of(session)
    os.kill(session.pid or 0, signal.SIGTERM)
    reaped = points.wait("runner.reaped")
    assert processes.look(session.pid or 0) is None
    os.kill(runner.pid, signal.SIGTERM)
    reaped.release()
    wait_gone(runner.pid)
    ended = promised(world, session, bystander=bystander, beside=beside)
    assert ended.exit is not None
    assert (ended.status, ended.exit.code, ended.exit.cause, ended.exit.by) == ("killed", 0, "stop", "system")
    sweep_up(world, world.open())


@pytest.mark.covers("CLK-04")
def test_clk_04_killed_before_it_could_record_anything_it_is_lost(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    session = hf.start(world.probe("ignore", "TERM", "say", "deaf", "forever"))
    assert session.wait(match="deaf", timeout=30).reason == "match"
    runner = runner_of(session)
    shut_down([runner.pid, session.pid or 0])
    until(lambda: (session.refresh().stopping or {}).get("by") == "system", what="the stop by the system")
    for row in (runner, *marked(session.id)):
        processes.send(row, signal.SIGKILL)
        wait_gone(row.pid)
    assert runners(world, session.id) == []
    ended = promised(world, session, bystander=bystander, beside=beside)
    assert (ended.state, ended.status) == ("lost", "failed")
    sweep_up(world, hf)
    home_is_usable(hf)
