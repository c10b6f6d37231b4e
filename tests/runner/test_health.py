"""Is the command well? The tally of hits and misses, and probes of real ports and commands."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runner.features.readiness import Health, Tally
from support.still_life import StillLife, still_life


@pytest.fixture
def life(tmp_path: Path) -> Iterator[StillLife]:
    with still_life(tmp_path) as life:
        yield life


class Probe:
    """Answers as the test says, when it says so."""

    def __init__(self) -> None:
        self.tries: list[Any] = []
        self.cancelled = 0

    def run(self, done: Any) -> None:
        self.tries.append(done)

    def cancel(self) -> None:
        self.cancelled += 1

    def answer(self, ok: bool, detail: str = "") -> None:
        self.tries[-1](ok, detail)


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> Probe:
    probe = Probe()
    monkeypatch.setattr("holdfast.runner.features.probes.Port", lambda *_args, **_options: probe)
    return probe


def watched(life: StillLife, *, held: bool = False, interval: float = 10.0, **probe: Any) -> Health:
    settings = {"probe": probe or {"port": 1}, "interval": interval, "misses": 3}
    health = Health(life, settings, {"PATH": os.environ["PATH"]}, held=held)  # type: ignore[arg-type]
    health.begin(1)
    return health


def states(life: StillLife) -> list[str]:
    return [each["state"] for each in life.told("health")]


def test_only_changes_are_reported(life: StillLife, probe: Probe) -> None:
    health = watched(life)
    assert health.facts() == {"health": None}
    for ok in (True, True, False, False, True, False, False, False, False, True):
        life.loop.pass_by(10.0)
        probe.answer(ok, "as it is")
    assert states(life) == ["healthy", "unhealthy", "healthy"]
    assert life.times("health") == [10.0, 80.0, 100.0]
    assert {each["evidence"] for each in life.told("health")} == {"as it is"}
    assert health.facts() == {"health": "healthy"}


def test_the_next_probe_comes_an_interval_after_the_last_answer(life: StillLife, probe: Probe) -> None:
    watched(life)
    life.loop.pass_by(100.0)
    assert len(probe.tries) == 1, "one at a time"
    probe.answer(True)
    life.loop.pass_by(9.9)
    assert len(probe.tries) == 1
    life.loop.pass_by(0.2)
    assert len(probe.tries) == 2


def test_probes_are_five_seconds_apart_at_least(life: StillLife, probe: Probe) -> None:
    watched(life, interval=1.0)
    life.loop.pass_by(4.9)
    assert probe.tries == []
    life.loop.pass_by(0.2)
    assert len(probe.tries) == 1
    assert "5 s" in life.runner_log.warnings[0]


def test_it_waits_until_the_command_is_ready(life: StillLife, probe: Probe) -> None:
    health = watched(life, held=True)
    life.loop.pass_by(1000.0)
    assert probe.tries == []
    health.release()
    life.loop.pass_by(0.0)
    assert len(probe.tries) == 1


def test_at_the_end_it_has_ended(life: StillLife, probe: Probe) -> None:
    health = watched(life)
    life.loop.pass_by(10.0)
    health.finish()
    assert probe.cancelled == 1
    health.release()
    life.loop.pass_by(1000.0)
    assert len(probe.tries) == 1
    assert life.loop.armed == 0


def test_misses_of_the_last_attempt_do_not_count_for_the_next(life: StillLife, probe: Probe) -> None:
    health = watched(life)
    for _ in range(2):
        life.loop.pass_by(10.0)
        probe.answer(False)
    health.pause()
    health.begin(2)
    for _ in range(2):
        life.loop.pass_by(10.0)
        probe.answer(False)
    assert states(life) == []
    life.loop.pass_by(10.0)
    probe.answer(False)
    assert states(life) == ["unhealthy"]


def test_a_port_of_another_process_is_not_healthy_when_the_owner_is_checked(life: StillLife) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        health = Health(
            life,  # type: ignore[arg-type]
            {"probe": {"port": number}, "interval": 5.0, "misses": 3, "owner_check": True},
            {},
            held=False,
        )
        health.begin(1)
        life.loop.pass_by(15.0)
        (told,) = life.told("health")
        assert told["state"] == "unhealthy"
        assert "which is not of this session" in told["evidence"]


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 5))
def test_a_tally_changes_at_the_first_hit_and_at_the_last_of_enough_misses(answers: list[bool], enough: int) -> None:
    tally = Tally(enough)
    for number, ok in enumerate(answers):
        before = tally.state
        changed = tally.take(ok, str(number))
        run = 0
        while run <= number and not answers[number - run]:
            run += 1
        assert changed == (tally.state != before)
        if ok:
            assert tally.state == "healthy"
        elif run >= enough:
            assert tally.state == "unhealthy"
        else:
            assert tally.state == before
        if changed:
            assert tally.since == str(number if ok else number - run + 1)
