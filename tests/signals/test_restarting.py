"""A command that its runner starts again: the same session, one log, one ending."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import BadArgument
from support.peer import Peer
from support.points import Points
from support.signal_file import records
from support.waiting import until
from support.world import World

QUICK: dict[str, Any] = {"policy": "on-failure", "delay": 0.01, "delay_max": 0.01}


def phases(world: World, id: str) -> list[str]:
    return [record["lifecycle"]["phase"] for record in records(world, id) if "lifecycle" in record]


def test_a_failing_command_is_started_again_in_the_same_session(world: World) -> None:
    hf = world.open()
    counted = world.cwd / "count"
    script = f'echo x >> {counted}; echo attempt $(wc -l < {counted}); [ "$(wc -l < {counted})" -ge 3 ] || exit 7'
    session = hf.start(script, restart=QUICK)
    assert session.wait(timeout=30).reason == "exit"
    assert session.exit is not None
    assert (session.exit.code, session.exit.cause, session.attempt) == (0, "exit", 3)
    assert session.text() == "attempt 1\nattempt 2\nattempt 3\n"
    until(lambda: "ended" in phases(world, session.id), what="the ending")
    assert phases(world, session.id) == [
        *("started", "restarting", "started", "restarting", "started", "ended"),
    ]
    first, second = (each["lifecycle"] for each in records(world, session.id) if _phase(each) == "restarting")
    assert (first["code"], first["status"]) == (7, "failed")
    assert first["retry_in_s"] == pytest.approx(0.01, rel=0.2)
    routed = [each["routed"] for each in records(world, session.id) if _phase(each) == "restarting"]
    assert routed == [True, False], "a crash loop is reported once, then seldom"
    assert second["count"] == 2
    assert [each["code"] for each in session.metadata["attempts"]] == [7, 7, 0]


def _phase(record: dict[str, Any]) -> str | None:
    phase: str | None = record.get("lifecycle", {}).get("phase")
    return phase


@pytest.mark.covers("signals:39")
def test_the_sixth_start_within_the_window_never_happens(world: World) -> None:
    hf = world.open()
    session = hf.start("echo again; exit 3", restart=QUICK)
    assert session.wait(timeout=30).reason == "exit"
    assert session.exit is not None
    assert (session.exit.code, session.status, session.attempt) == (3, "failed", 5)
    assert session.text() == "again\n" * 5
    # The exit record comes first, and right behind it the signal.
    until(lambda: phases(world, session.id)[-1] == "ended", what="the ending")
    assert records(world, session.id)[-1]["lifecycle"]["start_limit"] is True
    assert session.metadata["start_limit"] is True


def test_the_start_limit_after_an_attempt_that_took_too_long_is_a_failure_in_record_and_session(world: World) -> None:
    """On faulty code the record said `killed`: a limit of one attempt is not a request to end the session."""
    hf = world.open()
    session = hf.start(world.probe("forever"), timeout=0.2, restart={**QUICK, "attempts": 2})
    assert session.wait(timeout=30).reason == "exit"
    assert session.exit is not None
    assert (session.status, session.exit.cause, session.attempt) == ("failed", "overall_timeout", 2)
    record = until(lambda: [each for each in records(world, session.id) if _phase(each) == "ended"], what="the ending")
    ended = record[0]["lifecycle"]
    assert (ended["status"], ended["cause"], ended["start_limit"]) == ("failed", "overall_timeout", True)
    assert record[0]["snapshot"]["status"] == "failed"


@pytest.mark.covers("signals:39", "KIL-08")
@pytest.mark.parametrize(
    "point, action, delay, attempts",
    [
        # The stop comes first, and what was planned is not done.
        ("restart.planned", "pause", 60, 1),
        # The next attempt is under way when the stop is read: it is the last.
        ("restart.due", "pause", 0.05, 2),
        ("runner.before_spawn", "2*pause", 0.05, 2),
        ("restart.spawned", "pause", 0.05, 2),
    ],
)
def test_a_stop_at_any_point_of_a_pending_restart_leaves_no_later_attempt(
    world: World, points: Points, point: str, action: str, delay: float, attempts: int
) -> None:
    points.set(f"{point}={action}")
    hf = world.open()
    gate = world.gate()
    command = world.probe("say", "here", "await", gate, "exit", 7)
    session = hf.start(command, restart={"policy": "always", "delay": delay, "delay_max": delay})
    assert session.wait(match="here", timeout=30).reason == "match"
    assert session.endpoint is not None
    with Peer(session.endpoint) as stopper:
        stopper.hello()
        gate.release()
        hit = points.wait(point)
        # It is there, unread, before the runner continues.
        asked = stopper.ask_later("stop", grace=1, by="stopper")
        points.clear()
        hit.release()
        answer = stopper.answer(asked)
        assert answer["survivors"] == []
        assert answer["status"]["desired"]["state"] == "down"
        stopper.rest()
    session.refresh()
    assert session.exit is not None
    assert (session.status, session.exit.cause, session.exit.by) == ("killed", "stop", "stopper")
    assert session.attempt == attempts
    assert phases(world, session.id) == ["started", "restarting", *["started"] * (attempts - 1), "ended"]
    assert (session.desired["state"], session.desired["by"]) == ("down", "stopper")


def test_a_restart_that_is_asked_for_begins_the_next_attempt_at_once(world: World) -> None:
    hf = world.open()
    session = hf.start(world.probe("lines", 1, "forever"), restart={"policy": "on-failure", "delay": 60})
    assert session.wait(match="line 1", timeout=30).reason == "match"
    first = session.pid
    again = session.restart()
    assert again.id == session.id
    until(lambda: session.refresh().attempt == 2 and session.state == "running", what="the second attempt")
    assert session.pid != first
    assert session.desired["epoch"] == 2
    assert session.stop().done
    assert session.attempt == 2


def test_the_back_off_is_no_part_of_how_long_a_command_took(world: World) -> None:
    hf = world.open()
    session = hf.start("exit 7", restart={"policy": "on-failure", "delay": 60})
    waiting = until(lambda: [each for each in records(world, session.id) if _phase(each) == "restarting"])
    ran_s = waiting[0]["lifecycle"]["duration_s"]
    assert session.wait(idle=0.5, timeout=30).reason == "idle"
    assert session.stop(grace=0).done
    ended = until(lambda: [each for each in records(world, session.id) if _phase(each) == "ended"])
    assert (ended[0]["lifecycle"]["duration_s"], ended[0]["lifecycle"]["status"]) == (ran_s, "killed")


def test_the_time_limit_of_an_attempt_does_not_end_a_session_between_two_attempts(world: World) -> None:
    hf = world.open()
    session = hf.start(world.probe("exit", 3), timeout=2, restart={"policy": "on-failure", "delay": 2.5, "attempts": 2})
    assert session.wait(timeout=30).reason == "exit"
    assert session.exit is not None
    assert (session.exit.code, session.exit.cause, session.attempt) == (3, "exit", 2)


def test_a_restart_between_two_attempts_does_not_wait_for_the_back_off(world: World) -> None:
    hf = world.open()
    gate = world.gate()
    session = hf.start(world.probe("await", gate, "exit", 7), restart={"policy": "on-failure", "delay": 60})
    gate.release()
    until(lambda: "restarting" in phases(world, session.id), what="the back-off")
    session.restart()
    until(lambda: session.refresh().attempt == 2 and session.state == "running", what="the second attempt")
    assert session.stop(grace=0).done


def test_a_stop_that_a_restart_overtakes_is_answered(world: World) -> None:
    """On faulty code the caller of the stop waited until the whole session ended."""
    hf = world.open()
    gate = world.gate()
    command = world.probe("ignore", "TERM", "say", "deaf", "await", gate)
    session = hf.start(command, restart={"policy": "always"})
    assert session.wait(match="deaf", timeout=30).reason == "match"
    assert session.endpoint is not None
    with Peer(session.endpoint) as stopper, Peer(session.endpoint) as restarter:
        stopper.hello()
        asked = stopper.ask_later("stop", grace=600, by="stopper")
        assert stopper.ask("ping")["status"]["desired"]["state"] == "down"
        restarter.hello()
        assert restarter.ask("restart", by="restarter")["desired"]["state"] == "up"
        gate.release()
        answer = stopper.answer(asked)
    assert [each["pid"] for each in answer["found"]] == [session.pid]
    assert (answer["survivors"], answer["signal_id"]) == ([], None)
    assert (answer["status"]["desired"]["state"], answer["status"]["desired"]["by"]) == ("up", "restarter")
    until(lambda: session.refresh().attempt == 2 and session.state == "running", what="the second attempt")
    assert session.stop(grace=0).done


def test_a_terminal_is_the_same_one_for_every_attempt(world: World) -> None:
    hf = world.open()
    session = hf.start("tty; read line; echo got $line; exit 1", tty=True, restart={**QUICK, "attempts": 2})
    cursor: str | int = 0
    for word in ("one", "two"):
        assert session.wait(match="/dev/pts/", since=cursor, timeout=30).reason == "match"
        session.submit(word)
        woke = session.wait(match=f"got {word}", timeout=30)
        assert woke.reason == "match"
        cursor = woke.cursor
    assert session.wait(timeout=30).reason == "exit"
    assert (session.attempt, session.status) == (2, "failed")
    rows = [row.rstrip() for row in session.screen().text.splitlines() if row.strip()]
    assert rows[0] == rows[3], "both attempts had the same terminal"
    assert rows[1:3] == ["one", "got one"]
    assert rows[4:6] == ["two", "got two"]


def test_a_record_that_the_disk_refuses_at_first_is_written_later_and_in_its_order(
    world: World, points: Points
) -> None:
    points.set("signals.data=1*error:ENOSPC")
    hf = world.open()
    gate = world.gate()
    session = hf.start(world.probe("await", gate, "exit", 3), owner="conv-1")
    assert session.metadata["signals_blocked"] == 1
    gate.release()
    assert session.wait(timeout=30).reason == "exit"
    until(lambda: "ended" in phases(world, session.id), what="the ending")
    assert phases(world, session.id) == ["started", "ended"]
    with hf.signals("conv-1").claim() as batch:
        assert [each.code for each in batch] == [3]


def test_a_policy_and_descriptors_that_pass_only_once_do_not_go_together(world: World) -> None:
    hf = world.open()
    with pytest.raises(BadArgument, match="pass_fds"):
        hf.start("true", restart="always", pass_fds=[3])


@pytest.mark.covers("LOG-01")
def test_an_outage_of_the_disk_is_reported_once_with_the_offset_from_which_output_is_missing(
    world: World, points: Points
) -> None:
    points.set("log.append=2+*error:ENOSPC")
    hf = world.open()
    gate = world.gate()
    session = hf.start(world.probe("await", gate, "say", "lost", "exit", 0), owner="conv-1")
    assert session.wait(match="ready", timeout=30).reason == "match"
    gate.release()
    assert session.wait(timeout=30).reason == "exit"
    until(lambda: "ended" in phases(world, session.id), what="the ending")
    gaps = [record["gap"] for record in records(world, session.id) if "gap" in record]
    assert len(gaps) == 1
    assert gaps[0]["stream"] == "stdout"
    assert gaps[0]["from"] == len(session.text())
    assert "No space left" in gaps[0]["reason"]
