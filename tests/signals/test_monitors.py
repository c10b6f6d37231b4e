"""Monitors: sessions whose lines are signals, with real commands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support import signal_file
from support.waiting import until

if TYPE_CHECKING:
    from holdfast import Session
    from support.world import World


def events(world: World, session: Session) -> list[dict[str, Any]]:
    return [record["event"] for record in signal_file.records(world, session.id) if "event" in record]


def texts(world: World, session: Session) -> list[str]:
    return [line["text"] for event in events(world, session) for line in event["lines"]]


def shown(world: World, session: Session, text: str) -> None:
    until(lambda: text in texts(world, session), what=f"an event with {text!r}")


def ended(world: World, session: Session) -> dict[str, Any]:
    lifecycle: dict[str, Any] = signal_file.ended(world, session)["lifecycle"]
    return lifecycle


@pytest.mark.covers("signals:32")
def test_lines_become_events_then_the_closing_one_then_the_end(world: World) -> None:
    gate = world.gate()
    script = f"echo one; echo two >&2; echo three; head -c 1 < {gate} > /dev/null; echo last; no-such-program-at-all"
    session = world.open().start(["sh", "-c", script], monitor=True)
    assert session.kind == "monitor"
    assert session.id.startswith("m")
    # Most often one event: but the writer or the reader may be delayed between two lines.
    until(lambda: len(texts(world, session)) == 3, what="three lines")
    first = events(world, session)
    assert sorted((line["text"], line["stream"]) for event in first for line in event["lines"]) == [
        ("one", "stdout"),
        ("three", "stdout"),
        ("two", "stderr"),
    ]
    assert sum(event["count"] for event in first) == 3
    assert {(event["suppressed"], event["level"], event["closing"]) for event in first} == {(0, "live", False)}
    gate.release()
    end = ended(world, session)
    assert (end["status"], end["code"]) == ("failed", 127)
    variants = [next(iter(set(each) & {"event", "lifecycle"})) for each in signal_file.records(world, session.id)]
    rest = events(world, session)[len(first) :]
    assert variants == ["lifecycle", *["event"] * (len(first) + len(rest)), "lifecycle"]
    assert [event["closing"] for event in rest] == [False] * (len(rest) - 1) + [True]
    assert rest[0]["lines"][0]["text"] == "last"
    assert end["events"] == {"count": 3 + sum(event["count"] for event in rest), "suppressed": 0}
    assert all(each["routed"] is True for each in signal_file.records(world, session.id) if "event" in each)


@pytest.mark.covers("signals:32")
def test_a_line_of_1_mib_comes_in_parts_and_the_next_lines_still_come(world: World) -> None:
    session = world.open().start(
        ["sh", "-c", "head -c 1048576 /dev/zero | tr '\\0' x; sleep 0.5; echo; echo after"], monitor=True
    )
    end = ended(world, session)
    lines = [line for event in events(world, session) for line in event["lines"]]
    parts = [line["part"] for line in lines if line["part"]]
    assert len(parts) > 3
    assert parts == sorted(parts)
    assert all(len(line["text"]) <= 500 for line in lines)
    assert lines[-1]["text"] == "after"
    assert (end["status"], end["code"]) == ("completed", 0)


@pytest.mark.covers("signals:33")
def test_a_flood_is_counted_to_the_last_line_and_the_newest_are_shown(world: World) -> None:
    hf = world.open()
    session = hf.start(["seq", "1", "2000000"], monitor=True)
    end = ended(world, session)
    assert end["events"]["count"] == 2_000_000
    reported = events(world, session)
    assert sum(event["count"] for event in reported) == 2_000_000
    assert sum(event["suppressed"] for event in reported) == end["events"]["suppressed"]
    assert sum(len(event["lines"]) for event in reported) + end["events"]["suppressed"] == 2_000_000
    assert reported[-1]["lines"][-1]["text"] == "2000000"
    assert all(len(event["lines"]) <= 50 for event in reported)
    # What was not shown is read where the event says.
    event = reported[-1]
    assert event["cursor"] is not None
    page = session.read(since=event["cursor"], limit=100)
    before = reported[-2]["lines"][-1]["text"] if len(reported) > 1 else "0"
    assert page.data.split()[0].decode() == str(int(before) + 1)


def test_patterns_choose_the_lines(world: World) -> None:
    session = world.open().start(
        ["sh", "-c", "for n in $(seq 100); do echo step $n; echo noise; done"],
        monitor={"include": ["/step [0-9]*0$/"], "exclude": ["100"]},
    )
    end = ended(world, session)
    assert texts(world, session) == [f"step {number}0" for number in range(1, 10)]
    assert end["events"] == {"count": 9, "suppressed": 0}


def test_what_was_printed_in_the_last_moment_comes_before_the_end(world: World) -> None:
    session = world.open().start(["printf", "no end of line"], monitor=True)
    ended(world, session)
    (closing,) = events(world, session)
    assert closing["closing"]
    assert [line["text"] for line in closing["lines"]] == ["no end of line"]


def test_a_restarted_monitor_closes_once(world: World) -> None:
    session = world.open().start(
        ["sh", "-c", "echo up; exit 1"],
        monitor=True,
        restart={"policy": "on-failure", "delay": 0.01, "delay_max": 0.01, "attempts": 3},
    )
    end = ended(world, session)
    assert [event["closing"] for event in events(world, session)].count(True) == 1
    assert events(world, session)[-1]["closing"]
    assert end["events"]["count"] == 3


@pytest.mark.slow
def test_a_monitor_ends_at_its_limit(world: World) -> None:
    session = world.open().start(["sh", "-c", "echo up; sleep 600"], monitor=True, timeout=1)
    end = ended(world, session)
    assert (end["status"], end["cause"]) == ("killed", "overall_timeout")
    assert events(world, session)[-1]["closing"]


def test_the_status_of_a_monitor_reports_its_level_and_counts(world: World) -> None:
    session = world.open().start(["sh", "-c", "echo up; sleep 600"], monitor={"persistent": True})
    shown(world, session, "up")
    status = session.refresh().metadata["monitor"]
    assert status == {"count": 1, "suppressed": 0, "level": "live", "persistent": True}
    session.kill()
