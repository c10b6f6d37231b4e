"""Waits that outlast the command, stops with a ladder of their own, and what is on record of a session."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from holdfast import errors
from holdfast.core.clock import epoch
from support.faults import kill_runner, sweep_up, wedged
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.points import Points
    from support.world import World

_ONLY_THE_COMMAND = [
    {"signal": "TERM", "target": "command", "wait_s": 5},
    {"signal": "KILL", "target": "command", "wait_s": 2},
]


def test_output_of_another_stream_does_not_end_a_wait(hf: Holdfast, world: World) -> None:
    gate = world.gate()
    session = hf.start(world.probe("await", gate, "say", "one", "await", gate, "err", "say", "two", "forever"))
    session.wait(match="ready", timeout=30)
    gate.release()
    assert session.wait(output=True, stream="stderr", since="stdout:0,stderr:0", timeout=0.3).reason == "timeout"
    gate.release()
    assert session.wait(output=True, stream="stderr", since="stdout:0,stderr:0", timeout=30).reason == "output"
    session.stop(grace=0)


def test_a_match_in_another_stream_does_not_end_a_wait(hf: Holdfast, world: World) -> None:
    gate = world.gate()
    session = hf.start(world.probe("say", "here", "await", gate, "err", "say", "here", "forever"))
    session.wait(match="here", timeout=30)
    assert session.wait(match="here", stream="stderr", timeout=0.3).reason == "timeout"
    gate.release()
    seen = session.cursor
    woke = session.wait(match="here", stream="stderr", timeout=30)
    assert (woke.reason, woke.cursor) == ("match", "stdout:0,stderr:5")
    printed = seen.partition(",")[0]
    woke = session.wait(match="here", stream="stderr", since=f"{printed},stderr:0", timeout=30)
    assert (woke.reason, woke.cursor) == ("match", f"{printed},stderr:5")
    assert session.wait(match="here", stream="stderr", since=2, timeout=0.1).reason == "timeout"
    session.stop(grace=0)


@pytest.mark.parametrize("match", [None, "never"])
def test_output_of_another_stream_does_not_disturb_silence(hf: Holdfast, match: str | None) -> None:
    session = hf.start("while :; do echo busy; sleep 0.02; done")
    session.wait(match="busy", timeout=30)
    assert session.wait(idle=0.3, match=match, stream="stderr", timeout=30).reason == "idle"
    session.stop(grace=0)


def test_a_wait_for_extinction_outlasts_the_command(hf: Holdfast, world: World) -> None:
    gate = world.gate()
    session = hf.run(world.probe("fork", "{", "await", gate, "say", "late", "await", gate, "}", "exit", 0), wait=30)
    assert session.state == "exited"
    seen = session.cursor
    assert session.wait(output=True, extinct=True, since=seen, timeout=0.2).reason == "timeout"
    gate.release()
    woke = session.wait(output=True, extinct=True, since=seen, timeout=30)
    assert woke.reason == "output"
    assert "late" in session.read(since=woke.cursor).text
    gate.release()
    assert session.wait(extinct=True, timeout=30).reason == "exit"
    assert session.wait(extinct=True, timeout=30).reason == "exit", "also when asked again"


def test_a_wait_for_extinction_ends_when_the_runner_is_gone(hf: Holdfast, world: World) -> None:
    session = hf.run(world.probe("fork", "{", "forever", "}", "exit", 0), wait=30)
    kill_runner(session)
    assert session.wait(extinct=True, output=True, timeout=30).reason == "exit"
    assert session.stop(grace=0).done
    sweep_up(world, hf)


def test_a_stop_climbs_the_ladder_it_is_given(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("fork", "{", "say", "child", "forever", "}", "forever"))
    session.wait(match="child", timeout=30)
    stopped = session.stop(ladder=_ONLY_THE_COMMAND)
    assert stopped.rung == "TERM to the command"
    assert len(stopped.survivors) == 1
    assert session.refresh().state == "exited"
    assert session.stop(grace=0).done


@pytest.mark.parametrize("target", ["command", "group", "session", "tree"])
def test_a_stop_may_name_each_target_of_a_rung(hf: Holdfast, world: World, target: str) -> None:
    """A runner refused `session`, which hosts allow."""
    session = hf.start(world.probe("forever"), tty=target == "session")
    ladder = [{"signal": "TERM", "target": target, "wait_s": 30, "last": True}]
    stopped = session.stop(ladder=ladder)
    assert (stopped.rung, stopped.survivors) == (f"TERM to the {target}", [])


def test_a_stop_past_a_dead_runner_climbs_the_ladder_it_is_given(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("fork", "{", "say", "child", "forever", "}", "forever"))
    until(lambda: "child" in session.text())
    kill_runner(session)
    assert session.pid is not None
    stopped = session.stop(ladder=_ONLY_THE_COMMAND)
    wait_gone(session.pid)
    assert len(stopped.survivors) == 1
    assert session.stop(grace=0).done
    sweep_up(world, hf)


def test_a_ladder_that_is_invalid_is_refused_before_anything_is_signalled(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("forever"))
    with pytest.raises(errors.BadArgument):
        session.stop(ladder=[{"signal": "NONSENSE"}])
    assert session.refresh().state == "running"
    session.stop(grace=0)


def test_the_last_lines_come_with_their_offset_and_what_is_before_it(hf: Holdfast) -> None:
    session = hf.run("seq 1 10")
    page = session.last(3, stream="stdout")
    assert page.text == "8\n9\n10\n"
    (chunk,) = page.chunks
    assert session.lines_before("stdout", chunk[1]) == 7


def test_records_and_what_was_reported_are_there_to_be_read(hf: Holdfast) -> None:
    session = hf.run("true")
    records = session.records()
    assert records["spec"]["command"] == "true"
    assert records["state"]["command"]["pid"] == session.pid
    assert records["exit"]["exit"]["code"] == 0
    until(lambda: any(getattr(each, "answered", None) for each in session.told()), what="the confirmation")
    assert [each.variant for each in session.told() if hasattr(each, "variant")] == ["lifecycle", "lifecycle"]


def test_a_session_without_a_signal_file_has_no_signals(hf: Holdfast, world: World) -> None:
    session = hf.run("true", wait=30)
    until(lambda: any(getattr(each, "answered", None) for each in session.told()), what="the confirmation")
    (world.session(session.id) / "signals.jsonl").unlink()
    assert session.told() == []


def test_an_impostor_is_recognised_by_the_part_that_differs(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("forever"))
    path = world.session(session.id) / "state.json"
    kept = path.read_text()
    state = json.loads(kept)
    state["command"]["start"] = 1
    path.write_text(json.dumps(state))
    assert session.refresh().metadata["mismatch"] == "command start"
    path.write_text(kept)
    assert "mismatch" not in session.refresh().metadata
    session.stop(grace=0)


def test_a_session_without_runner_still_reports_when_it_last_printed(hf: Holdfast, world: World) -> None:
    began = time.time()
    session = hf.start(world.probe("forever"))
    session.wait(match="ready", timeout=30)
    ready = time.time()
    kill_runner(session)
    after = session.refresh()
    assert after.state == "stale"
    printed = epoch(after.last_output_at)
    assert printed is not None
    # The clock of a file goes by ticks.
    assert began - 0.1 <= printed <= ready
    session.stop(grace=0)
    sweep_up(world, hf)


def test_a_failed_start_that_the_caller_got_is_not_reported_again(hf: Holdfast) -> None:
    with pytest.raises(errors.SpawnError):
        hf.run("true", shell="no-such-shell", owner="agent-7")
    (session,) = hf.sessions(all=True)
    until(lambda: any(getattr(each, "answered", None) for each in session.told()), what="the confirmation")
    assert session.pending_signals() == 0


def test_a_runner_that_does_not_listen_yet_is_starting(hf: Holdfast, world: World, points: Points) -> None:
    points.off("launcher")
    points.set("runner.spec_written=pause")
    host = world.host('import holdfast; holdfast.open().start("sleep 60"); print("started")')
    paused = points.wait("runner.spec_written", 10)
    (session,) = hf.sessions()
    assert session.state == "starting"
    paused.release()
    assert host.line() == "started"
    assert session.refresh().state == "running"
    session.stop(grace=0)


@pytest.fixture
def patience(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """So long that who waits for it is not taken for one that was merely slow."""
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "20s")


@pytest.mark.usefixtures("patience")
def test_a_runner_of_another_owner_that_stands_still_delays_no_listing(hf: Holdfast, world: World) -> None:
    mine = hf.start(world.probe("forever"), owner="agent-7")
    theirs = hf.start(world.probe("forever"), owner="agent-8")
    with wedged(theirs):
        began = time.monotonic()
        for all_of_them in (True, False):
            assert [each.id for each in hf.sessions(all=all_of_them, owner="agent-7")] == [mine.id]
        assert time.monotonic() - began < hf.config.hosts_sweep_timeout
    mine.stop(grace=0)
    theirs.stop(grace=0)
