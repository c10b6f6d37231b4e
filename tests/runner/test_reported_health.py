"""Health without a probe: what a host says of a command that it speaks to, and what its end says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.runner.features.readiness import ReportedHealth
from support.still_life import StillLife, still_life
from support.world import World


@pytest.fixture
def life(tmp_path: Path) -> Iterator[StillLife]:
    with still_life(tmp_path) as life:
        yield life


def test_it_is_well_when_a_host_says_that_it_is_ready_and_not_when_it_goes_unasked(life: StillLife) -> None:
    health = ReportedHealth(life)  # type: ignore[arg-type]
    health.begin(1)
    assert health.facts() == {"health": None}
    health.release(True)
    health.on_output("stdout")
    health.pause()
    health.begin(2)
    assert health.facts() == {"health": "unhealthy"}
    health.release(True)
    health.finish()
    assert [each["state"] for each in life.told("health")] == ["healthy", "unhealthy", "healthy"]
    assert health.facts() == {"health": "healthy"}


def test_it_is_unhealthy_when_readiness_was_not_reported_in_time(life: StillLife) -> None:
    health = ReportedHealth(life)  # type: ignore[arg-type]
    health.begin(1)
    health.release(False)
    health.pause()
    assert [each["state"] for each in life.told("health")] == ["unhealthy"]


def test_what_is_meant_for_one_attempt_does_not_reach_the_next(world: World) -> None:
    from holdfast.errors import SessionEnded
    from holdfast.sessions.driver import drive
    from support.waiting import until

    hf = world.open()
    restart = {"policy": "always", "delay": 0.01, "delay_max": 0.01}
    session = hf.start(world.probe("read-line", "exit", "0"), stdin="open", restart=restart, ready={"told": True})
    core = hf._core

    def ask(type: str, **fields: object) -> object:
        return drive(core.request(session.id, type, **fields))

    ask("write", data="first\n", attempt=1)
    session.wait(match="got first")
    until(lambda: session.refresh().attempt == 2, what="the second attempt")
    for type, fields in (
        ("write", {"data": "late\n"}),
        ("send_signal", {"signal": "KILL"}),
        ("update", {"ready": True}),
    ):
        with pytest.raises(SessionEnded, match="attempt 1 of session"):
            ask(type, attempt=1, **fields)
    ask("write", data="second\n", attempt=2)
    session.wait(match="got second")
    session.kill()
    assert "late" not in session.text()
