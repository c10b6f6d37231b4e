"""The breaker over sessions: its rules by what they promise, its files when runners die, crowd and disks refuse."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from holdfast.runner import breakers
from holdfast.runner.breaker import FURTHER_MAX, SESSIONS_MAX, Breaker, Notice
from holdfast.runner.breakers import DIRECTORY, FILE_MAX_BYTES, Breakers
from support.scale import scaled

SETTINGS = {"scope": "owner", "max": 15, "window": 10.0, "cooldown": 30.0}
MOST, WINDOW, COOLDOWN = 3, 10_000, 30_000


def notice(session: str, first: str = "ERROR: disk full") -> Notice:
    return Notice(session, first, "stdout", 7)


class Rules(RuleBasedStateMachine):
    """Whatever comes in whatever order: never too many in a window, nothing uncounted, and an end to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        self.breaker = Breaker()
        self.admitted: list[int] = []
        self.refused: list[str] = []

    @rule(step=st.sampled_from([0, 1, 500, 3_000, 9_999, 10_000, 30_000]))
    def time_passes(self, step: int) -> None:
        self.now += step
        if self.breaker.is_due(self.now):
            assert self.breaker.tally()["suppressed"] == len(self.refused)
            self.breaker = Breaker()
            self.admitted, self.refused = [], []

    @rule(session=st.integers(0, 60))
    def a_match(self, session: int) -> None:
        was_open = self.breaker.until is not None
        admitted = self.breaker.admit(notice(f"s{session}"), self.now, most=MOST, window=WINDOW, cooldown=COOLDOWN)
        assert not (was_open and admitted)
        if admitted:
            self.admitted.append(self.now)
        else:
            self.refused.append(f"s{session}")

    @invariant()
    def no_window_has_more_than_the_most(self) -> None:
        for at in self.admitted:
            assert sum(at <= other < at + WINDOW for other in self.admitted) <= MOST

    @invariant()
    def it_opens_for_one_cooldown(self) -> None:
        if self.breaker.until is not None:
            assert 0 <= self.breaker.until - self.now <= COOLDOWN
            assert self.refused

    @invariant()
    def the_tally_has_all_that_were_refused(self) -> None:
        tally = self.breaker.tally()
        assert tally["suppressed"] == len(self.refused)
        named = {each["id"]: each["matches"] for each in tally["sessions"]}
        assert len(named) <= SESSIONS_MAX
        assert named == {session: self.refused.count(session) for session in named}
        assert tally["more_sessions"] == len(set(self.refused) - set(named))


def test_whatever_comes_the_breaker_keeps_its_rules() -> None:
    run_state_machine_as_test(
        Rules, settings=settings(max_examples=scaled(20, 60), stateful_step_count=60, deadline=None)
    )


@given(st.lists(st.integers(0, 400), min_size=1, max_size=80))
def test_a_window_that_slides_admits_as_soon_as_the_oldest_is_out(steps: list[int]) -> None:
    breaker, now, times = Breaker(), 0, list[int]()
    for step in steps:
        now += step
        free = sum(now - 1000 < at for at in times) < 2
        assert breaker.admit(notice("s"), now, most=2, window=1000, cooldown=1) is free
        if not free:
            return
        times.append(now)


class Home:
    """A home of its own on a clock that the test moves."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.now_ms = 5_000_000
        self.said: list[str] = []
        self.breakers = self.runner()

    def runner(self, boot: str = "boot") -> Breakers:
        return Breakers(str(self.path), str(self.path / "run"), boot, say=self.said.append, now_ms=lambda: self.now_ms)

    def match(self, session: str, owner: str | None = "conv-1", **parts: Any) -> float | None:
        return self.breakers.admit(owner, notice(session), {**SETTINGS, **parts})

    def overflows(self) -> list[dict[str, Any]]:
        file = self.path / "signals.jsonl"
        records = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        assert all(record["session"] is None for record in records)
        return [{**record["overflow"], "owner": record["owner"]} for record in records]

    def states(self) -> list[str]:
        return [overflow["state"] for overflow in self.overflows()]

    def files(self) -> list[Path]:
        return sorted((self.path / DIRECTORY).iterdir())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.mark.covers("signals:29")
def test_a_crowd_trips_the_breaker_and_its_end_names_all_that_were_refused(home: Home) -> None:
    waits = []
    for number in range(20):
        home.now_ms += 50
        waits.append(home.match(f"b{number}"))

    assert [wait is None for wait in waits] == [True] * 15 + [False] * 5
    assert waits[15] == 30.0
    assert home.states() == ["tripped"]
    assert home.match("other", owner="conv-2") is None

    home.now_ms += 29_000
    assert home.breakers.release("conv-1", SETTINGS) is not None
    home.now_ms += 1_000
    for runner in (home.breakers, home.runner(), home.runner()):
        assert runner.release("conv-1", SETTINGS) is None

    tripped, released = home.overflows()
    assert (tripped["suppressed"], [each["id"] for each in tripped["sessions"]]) == (1, ["b15"])
    assert (released["state"], released["scope"], released["owner"]) == ("released", "owner", "conv-1")
    assert (released["suppressed"], released["more_sessions"]) == (5, 0)
    assert [(each["id"], each["matches"], each["first"]) for each in released["sessions"]] == [
        (f"b{number}", 1, "ERROR: disk full") for number in range(15, 20)
    ]
    assert all((each["stream"], each["offset"]) == ("stdout", 7) for each in released["sessions"])
    assert home.match("b1") is None


def test_the_next_match_tells_of_an_end_that_nobody_told(home: Home) -> None:
    for number in range(17):
        home.match(f"b{number}")
    home.now_ms += 30_000

    assert home.match("b99") is None
    assert home.states() == ["tripped", "released"]
    assert home.overflows()[1]["suppressed"] == 2


def test_a_host_that_claims_tells_of_all_ends_and_learns_of_the_next(home: Home) -> None:
    for owner in ("one", "two"):
        for number in range(16):
            home.match(f"{owner}{number}", owner)
        home.now_ms += 10_000
    host = home.runner()
    assert host.release_all() == 10.0
    home.now_ms += 10_000

    assert host.release_all() == 10.0
    home.now_ms += 10_000
    assert host.release_all() is None

    released = [overflow for overflow in home.overflows() if overflow["state"] == "released"]
    assert [(overflow["owner"], overflow["suppressed"]) for overflow in released] == [("one", 1), ("two", 1)]
    assert home.files() == []


def test_sessions_without_an_owner_share_a_breaker_and_a_home_has_one_for_all(home: Home) -> None:
    assert [home.match(f"s{number}", None, max=2) is None for number in range(3)] == [True, True, False]
    assert [home.match(f"s{number}", f"o{number}", max=2, scope="home") is None for number in range(3)] == [
        True,
        True,
        False,
    ]
    assert [overflow["scope"] for overflow in home.overflows()] == ["owner", "home"]


_TRIPS_AND_DIES = """
import os, signal, sys
from holdfast.runner.breaker import Notice
from holdfast.runner.breakers import Breakers
home, settings = sys.argv[1], {"scope": "owner", "max": 3, "window": 10.0, "cooldown": 30.0}
breakers = Breakers(home, home, "boot")
for number in range(6):
    breakers.admit("conv-1", Notice(f"b{number}", "x", "stdout", 0), settings)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.covers("signals:30")
@pytest.mark.parametrize("by", ["another runner", "a claim", "the next match"])
def test_when_the_runner_that_tripped_it_is_killed_another_tells_of_the_end(tmp_path: Path, by: str) -> None:
    died = subprocess.run([sys.executable, "-c", _TRIPS_AND_DIES, str(tmp_path)], check=False)
    assert died.returncode == -signal.SIGKILL
    limits = {"scope": "owner", "max": 3, "window": 10.0, "cooldown": 30.0}
    end = time.monotonic_ns() // 1_000_000 + 60_000
    others = [Breakers(str(tmp_path), str(tmp_path), "boot", now_ms=lambda: end) for _ in range(3)]

    for other in others:
        if by == "another runner":
            other.release("conv-1", limits)
        elif by == "a claim":
            other.release_all()
        else:
            other.admit("conv-1", notice("b9"), limits)

    records = [json.loads(line)["overflow"] for line in (tmp_path / "signals.jsonl").read_text().splitlines()]
    assert [(record["state"], record["suppressed"]) for record in records] == [("tripped", 1), ("released", 3)]


def test_a_runner_killed_before_it_told_leaves_that_to_the_next(tmp_path: Path) -> None:
    environment = {**os.environ, "HOLDFAST_POINTS": "breaker.tell=kill"}
    command = [sys.executable, "-c", _TRIPS_AND_DIES, str(tmp_path)]
    assert subprocess.run(command, env=environment, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "signals.jsonl").exists()
    limits = {"scope": "owner", "max": 3, "window": 10.0, "cooldown": 30.0}
    now = time.monotonic_ns() // 1_000_000
    next_one = Breakers(str(tmp_path), str(tmp_path), "boot", now_ms=lambda: now)

    [file] = (tmp_path / DIRECTORY).iterdir()
    now = json.loads(file.read_bytes())["until"] - 1
    assert next_one.admit("conv-1", notice("b9"), limits) == 0.001
    now += 1
    next_one.release("conv-1", limits)

    records = [json.loads(line)["overflow"] for line in (tmp_path / "signals.jsonl").read_text().splitlines()]
    assert [(record["state"], record["suppressed"]) for record in records] == [("tripped", 2), ("released", 2)]


def test_a_lock_that_another_holds_lets_the_match_pass_in_time(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    slept = [0.0]
    clock = SimpleNamespace(monotonic=lambda: sum(slept), sleep=slept.append)
    monkeypatch.setattr(breakers, "time", clock)
    home.match("b1")
    with open(home.files()[0]) as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        assert home.match("b2") is None

        assert 0 < sum(slept) < 0.1
    assert home.breakers.unasked == 1
    assert "without asking" in home.said[0]


@pytest.mark.parametrize("broken", [b"{", b"[]", b'{"v":1}', b"\xff\n", b"x" * (FILE_MAX_BYTES + 10)])
def test_a_file_that_cannot_be_read_is_begun_anew_and_that_is_said(home: Home, broken: bytes) -> None:
    for number in range(16):
        home.match(f"b{number}")
    home.files()[0].write_bytes(broken)

    assert home.match("b16") is None
    assert "begins anew" in home.said[0]
    assert home.match("b17") is None
    assert len(home.said) == 1


def test_another_boot_ends_what_was_open_and_forgets_the_window(home: Home) -> None:
    for number in range(16):
        home.match(f"b{number}")
    home.breakers = home.runner("another boot")
    home.now_ms = 10

    assert home.match("b20") is None
    assert home.states() == ["tripped", "released"]


def test_the_file_stays_small_whatever_is_in_it(home: Home) -> None:
    for number in range(1100):
        home.now_ms += 997
        home.match(f"session-{number:08d}", max=1000, window=5000.0)
    assert home.files()[0].stat().st_size <= FILE_MAX_BYTES

    for number in [*range(800), *range(800)]:
        emoji = Notice(f"session-{number:08d}", "\U0001f600" * 500, "stderr", 1 << 40)
        home.breakers.admit("conv-2", emoji, {**SETTINGS, "max": 1, "cooldown": 900.0})

    assert all(file.stat().st_size <= FILE_MAX_BYTES for file in home.files())
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in home.files())
    home.now_ms += 900_000
    home.breakers.release_all()
    released = home.overflows()[-1]
    assert (released["suppressed"], len(released["sessions"])) == (1599, SESSIONS_MAX)
    assert released["more_sessions"] == FURTHER_MAX
    assert {each["first"] for each in released["sessions"]} == {"\U0001f600" * 4}


def test_sessions_beyond_the_tally_are_counted_once_each_however_often_they_match(home: Home) -> None:
    for number in [0, *range(1, 80), *range(60, 80), *range(70, 80)]:
        home.breakers = home.runner()
        home.match(f"b{number}", max=1)
    home.now_ms += 30_000
    home.breakers.release_all()

    released = home.overflows()[-1]
    assert (released["suppressed"], len(released["sessions"]), released["more_sessions"]) == (109, SESSIONS_MAX, 29)


def test_what_could_not_be_told_is_told_later(home: Home) -> None:
    stream = home.path / "signals.jsonl"
    stream.touch()
    with open(stream) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        waits = [home.match(f"b{number}") for number in range(16)]
        assert waits[15] is not None
    assert home.states() == []

    home.match("b17")
    assert home.states() == ["tripped"]
    home.now_ms += 30_000
    with open(stream) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert home.breakers.release("conv-1", SETTINGS) is not None
        assert home.match("b18") is not None
    assert home.breakers.release("conv-1", SETTINGS) is None

    assert home.states() == ["tripped", "released"]
    assert home.overflows()[1]["suppressed"] == 3


def test_a_disk_that_refuses_lets_matches_pass(home: Home) -> None:
    (home.path / DIRECTORY).write_text("in the way")

    assert home.match("b1") is None
    assert home.breakers.unasked == 1


def test_runners_at_the_same_time_never_admit_too_many(tmp_path: Path) -> None:
    program = """
import sys
from holdfast.runner.breaker import Notice
from holdfast.runner.breakers import Breakers
home, name = sys.argv[1:]
breakers = Breakers(home, home, "boot")
settings = {"scope": "owner", "max": 15, "window": 600.0, "cooldown": 600.0}
sys.stdin.readline()
admitted = sum(breakers.admit("o", Notice(name, "x", "stdout", 0), settings) is None for _ in range(20))
print(admitted, breakers.unasked)
"""
    runners = [
        subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path), f"b{number}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(4)
    ]
    for runner in runners:
        assert runner.stdin is not None
        runner.stdin.write("go\n")
        runner.stdin.flush()
    counts = [tuple(map(int, runner.communicate()[0].split())) for runner in runners]

    unasked = sum(count[1] for count in counts)
    assert sum(count[0] for count in counts) - unasked == 15
    records = [json.loads(line) for line in (tmp_path / "signals.jsonl").read_text().splitlines()]
    assert [record["overflow"]["state"] for record in records] == ["tripped"]
    [file] = (tmp_path / DIRECTORY).iterdir()
    assert json.loads(file.read_bytes())["suppressed"] == 80 - 15 - unasked
    assert os.listdir(tmp_path / DIRECTORY) == [file.name]
