"""A monitor over a real log, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.runner.features import line_reader
from holdfast.runner.features import monitor as monitors
from holdfast.runner.features.monitor import Monitor
from support.still_life import StillLife, still_life

SETTINGS: dict[str, Any] = {
    "include": [],
    "exclude": [],
    "persistent": False,
    "batch_ms": 200,
    "bucket": 10,
    "refill_s": 2.0,
    "digest_after": 30.0,
    "digest_every": 60.0,
    "calm": 60.0,
    "on_flood": "digest",
}


@pytest.fixture
def life(tmp_path: Path) -> Iterator[StillLife]:
    with still_life(tmp_path) as life:
        yield life


def monitored(life: StillLife, **changed: Any) -> Monitor:
    monitor = Monitor(life, {**SETTINGS, **changed})  # type: ignore[arg-type]
    life.features.append(monitor)
    monitor.begin(1)
    return monitor


def pattern(**parts: Any) -> dict[str, Any]:
    return {"id": "m1", "literal": None, "regex": None, "stream": "any", "ignore_case": False, **parts}


def texts(event: dict[str, Any]) -> list[str]:
    return [line["text"] for line in event["lines"]]


def counted(life: StillLife) -> int:
    """Lines, each once: of one that came in parts the last part counts."""
    events = life.told("event")
    for each in events:
        whole = [line for line in each["lines"] if ", goes on; " not in line["text"]]
        assert len(whole) + each["suppressed"] == each["count"]
    return sum(each["count"] for each in events)


@pytest.mark.covers("signals:32")
def test_lines_within_200_ms_are_one_event_in_the_order_of_printing(life: StillLife) -> None:
    monitored(life)
    life.prints("one\ntw")
    life.loop.pass_by(0.05)
    life.prints("a warning\n", "stderr")
    life.loop.pass_by(0.05)
    life.prints("o\nthr")
    life.loop.pass_by(1.0)
    life.prints("ee\n")
    life.loop.pass_by(1.0)
    first, second = life.told("event")
    assert [(line["text"], line["stream"], line["offset"]) for line in first["lines"]] == [
        ("one", "stdout", 0),
        ("a warning", "stderr", 0),
        ("two", "stdout", 4),
    ]
    assert texts(second) == ["three"]
    assert life.times("event") == [0.2, 1.3]


def test_an_idle_monitor_has_no_timer(life: StillLife) -> None:
    monitored(life)
    assert life.loop.armed == 0
    life.prints("line\n")
    life.loop.pass_by(1.0)
    assert life.loop.armed == 0
    life.prints("half a line")
    life.loop.pass_by(1.0)
    assert life.loop.armed == 0
    assert len(life.told("event")) == 1


@pytest.mark.covers("signals:32")
def test_a_line_of_1_mib_comes_in_marked_parts_and_later_lines_still_arrive(life: StillLife) -> None:
    monitored(life)
    life.prints("before\n")
    for _ in range(16):
        life.prints(b"x" * (1 << 16))
    life.loop.pass_by(1.0)
    life.prints("\nafter\n")
    life.loop.pass_by(1.0)
    first, second = life.told("event")
    parts = [line["part"] for line in first["lines"]]
    assert parts == list(range(parts[0], parts[0] + len(parts)))
    assert all(f"[part {line['part']}, goes on; 8192 characters" in line["text"] for line in first["lines"])
    assert all(line["offset"] == 7 + 8192 * (line["part"] - 1) for line in first["lines"])
    assert first["cursor"] == "stdout:0"
    assert texts(second)[-1] == "after"
    assert second["lines"][0]["part"] == 128
    assert counted(life) == 3


@pytest.mark.covers("signals:32")
def test_the_last_event_closes_also_without_lines(life: StillLife) -> None:
    monitor = monitored(life)
    monitor.finish()
    (closing,) = life.told("event")
    assert closing["closing"]
    assert closing["count"] == 0
    assert monitor.ended() == {"events": {"count": 0, "suppressed": 0}}


def test_what_is_unfinished_at_the_end_is_reported_in_the_closing_event(life: StillLife) -> None:
    monitor = monitored(life)
    life.prints("told\n")
    life.loop.pass_by(1.0)
    life.prints("pending\nunfinished")
    monitor.finish()
    life.prints("a grandchild\n")
    life.loop.pass_by(100.0)
    first, closing = life.told("event")
    assert not first["closing"]
    assert closing["closing"]
    assert texts(closing) == ["pending", "unfinished"]
    assert monitor.ended() == {"events": {"count": 3, "suppressed": 0}}


def test_a_line_is_what_it_was_when_it_ended(life: StillLife) -> None:
    monitored(life)
    life.prints("10%\r20%\r\x1b[32m100%\x1b[0m\r\nplain\r\n")
    life.loop.pass_by(1.0)
    (event,) = life.told("event")
    assert texts(event) == ["100%", "plain"]


def test_a_restart_ends_an_unfinished_line_and_closes_nothing(life: StillLife) -> None:
    monitor = monitored(life)
    life.prints("dying wo")
    monitor.pause()
    life.loop.pass_by(1.0)
    monitor.begin(2)
    life.prints("born again\n")
    life.loop.pass_by(1.0)
    assert [texts(event) for event in life.told("event")] == [["dying wo"], ["born again"]]
    assert not any(event["closing"] for event in life.told("event"))


def test_only_lines_that_are_included_and_not_excluded_are_reported(life: StillLife) -> None:
    monitored(
        life,
        include=[pattern(literal="error", ignore_case=True), pattern(regex="^fatal", stream="stderr")],
        exclude=[pattern(literal="known")],
    )
    life.prints("fine\nERROR: one\nerror: known\nfatal on stdout\n")
    life.prints("fatal on stderr\n", "stderr")
    life.loop.pass_by(1.0)
    (event,) = life.told("event")
    assert texts(event) == ["ERROR: one", "fatal on stderr"]
    assert event["count"] == 2


def test_a_monitor_with_patterns_is_at_rest_while_nothing_matches(life: StillLife) -> None:
    monitored(life, include=[pattern(literal="error")])
    life.prints("fine\n")
    life.loop.pass_by(1.0)
    assert life.loop.armed == 0
    assert life.told("event") == []


def test_a_pattern_that_takes_too_long_is_given_up_and_lines_are_rather_shown(life: StillLife) -> None:
    slow = pattern(regex="a*a*a*a*a*a*[bc]")
    monitored(life, include=[slow])
    for _ in range(4):
        life.prints("a" * 400 + "\n")
    life.loop.pass_by(1.0)
    assert len(life.runner_log.warnings) == 1
    assert "takes too long" in life.runner_log.warnings[0]
    assert counted(life) == 4


@pytest.mark.covers("signals:33")
def test_in_a_flood_the_newest_lines_are_read_and_all_are_counted(
    life: StillLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitors, "SLICE_S", 0.0)
    monitor = monitored(life)
    read, looked_at = life.log.read, 0

    def counting(stream: str, since: int, limit: int) -> tuple[int, bytes]:
        nonlocal looked_at
        at, raw = read(stream, since, limit)
        looked_at += len(raw)
        return at, raw

    monkeypatch.setattr(life.log, "read", counting)
    number = 0
    for _ in range(100):
        life.prints("".join(f"line {number + each:07d}\n" for each in range(10_000)))
        number += 10_000
        life.loop.pass_by(0.1)
    monitor.finish()
    assert counted(life) == number == 1_000_000
    assert looked_at <= len(life.told("event")) * (64 << 10) < life.log.end("stdout") // 10, "what is not shown is free"
    assert monitor.ended()["events"]["count"] == number
    for event in life.told("event"):
        shown = texts(event)
        numbers = [int(text.split()[1]) for text in shown]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert len(numbers) == 50
    cursor = life.told("event")[3]["cursor"]
    assert cursor is not None
    offset = int(cursor.partition(":")[2])
    _, raw = life.log.read("stdout", offset, 13)
    before = int(texts(life.told("event")[2])[-1].split()[1])
    assert raw == f"line {before + 1:07d}\n".encode(), "the first line that was not shown"


@pytest.mark.covers("signals:33")
def test_a_long_flood_is_held_then_digested_then_live_again(life: StillLife) -> None:
    monitor = monitored(life)
    printed = 0
    for _ in range(1200):
        life.prints("busy\n" * 100)
        printed += 100
        life.loop.pass_by(0.1)
    levels = [event["level"] for event in life.told("event")]
    assert levels[:10] == ["live"] * 10
    assert set(levels) == {"live", "held", "digest"}
    digests = [at for at, event in zip(life.times("event"), life.told("event"), strict=True) if _digest(event)]
    assert 30.0 <= digests[0] <= 33.0
    assert digests[1] - digests[0] == pytest.approx(60.0)
    life.loop.pass_by(200.0)
    assert life.loop.armed == 0
    life.prints("calm\n")
    life.loop.pass_by(0.3)
    assert life.told("event")[-1]["level"] == "live"
    assert texts(life.told("event")[-1]) == ["calm"]
    assert counted(life) == printed + 1
    assert monitor.facts()["monitor"]["level"] == "live"


def _digest(event: dict[str, Any]) -> bool:
    return bool(event["level"] == "digest")


def test_a_flood_stops_the_command_once_where_that_was_asked_for(life: StillLife) -> None:
    monitored(life, on_flood="stop")
    for _ in range(600):
        life.prints("busy\n" * 100)
        life.loop.pass_by(0.1)
    assert life.stopped_by == ["flood"]


def test_what_retention_took_before_it_was_read_is_still_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitors, "SLICE_S", 0.0)
    with still_life(tmp_path, cap_bytes=1 << 20) as life:
        monitor = monitored(life)
        for _ in range(64):
            life.prints(b"0123456789abcde\n" * 4096)
        assert life.log.first("stdout") > 0
        life.loop.pass_by(0.2)
        assert counted(life) == 64 * 4096
        assert monitor.ended() == {"events": {"count": 64 * 4096, "suppressed": 64 * 4096 - 50}}


def test_with_patterns_what_retention_took_is_reported_in_bytes(tmp_path: Path) -> None:
    with still_life(tmp_path, cap_bytes=1 << 20) as life:
        monitor = monitored(life, include=[pattern(literal="needle")])
        for _ in range(64):
            life.prints(b"0123456789abcde\n" * 4096)
        life.prints("needle\n")
        lost = life.log.first("stdout")
        life.loop.pass_by(1.0)
        monitor.finish()
        assert counted(life) == 1
        assert monitor.ended()["events"]["unscanned"] == lost > 0


@pytest.mark.covers("signals:33", "found:33")
def test_between_slices_a_busy_command_has_its_runner_for_itself(life: StillLife) -> None:
    class Slow(line_reader.LineFollower):
        def read(self, for_s: float) -> bool:
            assert for_s == line_reader.SLICE_S
            life.loop.now += for_s
            return super().read(0.0)

    taken: list[str] = []
    follower = Slow(life.log, lambda _stream, line: taken.append(line.text))
    slices = line_reader.Slices(life.loop, follower, pause=line_reader.PAUSE)
    life.features.append(slices)
    began = life.loop.now
    for _ in range(200):
        life.prints(b"0123456789abcde\n" * 4096)
        life.loop.pass_by(0.01)
    share = len(taken) / (200 * 4096)
    assert 0 < share < 1, "it is behind"
    slept = life.loop.now - began - 2.0
    assert slept / (life.loop.now - began) <= 0.05, "a twentieth of the time at most"
    life.loop.pass_by(60.0)
    assert len(taken) == 200 * 4096, "in silence it catches up"
    assert life.loop.armed == 0


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["stdout", "stderr"]),
            st.lists(st.sampled_from(["\n", "short\n", "no end", "\r", "x" * 700 + "\n", "y\n" * 9000]), max_size=6),
            st.floats(0.0, 5.0),
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_every_line_is_shown_or_counted(
    tmp_path: Path, pieces: list[tuple[str, list[str], float]], jumps: bool
) -> None:
    for old in tmp_path.iterdir():
        old.unlink()
    with pytest.MonkeyPatch.context() as patch, still_life(tmp_path) as life:
        if jumps:
            patch.setattr(monitors, "SLICE_S", 0.0)
        monitor = monitored(life)
        printed = {"stdout": "", "stderr": ""}
        for stream, parts, pause in pieces:
            text = "".join(parts)
            if text:
                life.prints(text, stream)
                printed[stream] += text
            life.loop.pass_by(pause)
        monitor.finish()
        whole = sum(text.count("\n") for text in printed.values())
        rest = [text.rpartition("\n")[2].replace("\r", "") for text in printed.values()]
        assert counted(life) == whole + sum(bool(each) for each in rest)
