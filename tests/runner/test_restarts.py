"""Back-off, start limit and desired state of a restarting command: arithmetic under a given clock."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.runner.limits import DOWN, UP, Desired, Restarts

SETTINGS: dict[str, Any] = {
    "policy": "on-failure",
    "success_codes": [0],
    "final_codes": [125],
    "delay": 1.0,
    "delay_max": 60.0,
    "reset_after": 60.0,
    "reset_on_ready": False,
    "attempts": 5,
    "window": 600.0,
}


def plan(shell: bool = False, **changes: Any) -> Restarts:
    return Restarts({**SETTINGS, **changes}, shell=shell, chance=lambda: 0.5)


def ended(code: int | None = 1, signal: str | None = None, cause: str = "exit") -> dict[str, Any]:
    return {"code": code, "signal": signal, "cause": cause, "by": None}


def once(restarts: Restarts, exit: dict[str, Any]) -> float | None:
    restarts.began(0.0)
    return restarts.ended(1.0, exit)


@pytest.mark.parametrize(
    "exit, repeated",
    [
        (ended(0), False),
        (ended(1), True),
        (ended(None, "SIGSEGV", "signal"), True),
        (ended(None, "SIGKILL", "overall_timeout"), True),
        (ended(None, "SIGKILL", "idle_timeout"), True),
        (ended(None, "SIGKILL", "out_of_memory"), True),
        (ended(None, "SIGTERM", "stop"), False),
        (ended(None, "SIGTERM", "ttl"), False),
        (ended(None, "SIGTERM", "owner_gone"), False),
        (ended(None, None, "spawn_error"), False),
        (ended(125), False),
    ],
)
def test_a_failure_is_repeated_and_what_was_asked_for_is_not(exit: dict[str, Any], repeated: bool) -> None:
    assert (once(plan(), exit) is not None) is repeated


def test_always_repeats_a_success_too_but_no_stop() -> None:
    assert once(plan(policy="always"), ended(0)) is not None
    assert once(plan(policy="always"), ended(0, cause="stop")) is None


@pytest.mark.parametrize("code", [126, 127])
def test_a_shell_that_did_not_find_its_command_is_not_repeated(code: int) -> None:
    assert once(plan(shell=True), ended(code)) is None
    assert once(plan(shell=False), ended(code)) is not None


def test_the_delay_doubles_up_to_its_most() -> None:
    restarts = plan(attempts=100, window=1.0)
    delays, now = [], 0.0
    for _ in range(9):
        restarts.began(now)
        delays.append(restarts.ended(now + 1.0, ended()))
        now += 100.0
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_running_long_enough_or_being_ready_makes_the_next_failure_a_first_one() -> None:
    restarts = plan(attempts=100, reset_on_ready=True)
    restarts.began(0.0)
    assert restarts.ended(1.0, ended()) == 1.0
    restarts.began(2.0)
    assert restarts.ended(3.0, ended()) == 2.0
    restarts.began(5.0)
    assert restarts.ended(65.0, ended()) == 1.0
    restarts.began(66.0)
    assert restarts.ended(67.0, ended()) == 2.0
    restarts.began(70.0)
    restarts.was_ready()
    assert restarts.ended(71.0, ended()) == 1.0


def test_the_sixth_start_within_the_window_never_happens() -> None:
    restarts = plan()
    for number in range(4):
        restarts.began(number * 100.0)
        assert restarts.ended(number * 100.0 + 1.0, ended()) is not None
    restarts.began(400.0)
    assert restarts.ended(401.0, ended()) is None
    assert restarts.limit_reached


def test_starts_that_left_the_window_count_no_more() -> None:
    restarts = plan()
    for number in range(20):
        restarts.began(number * 200.0)
        assert restarts.ended(number * 200.0 + 1.0, ended()) is not None


@given(st.lists(st.floats(0.001, 100), max_size=40), st.floats(0, 1))
def test_no_window_ever_holds_more_starts_than_allowed(pauses: list[float], chance: float) -> None:
    restarts = Restarts(SETTINGS, shell=False, chance=lambda: chance)
    now, starts = 0.0, []
    for ran in pauses:
        starts.append(now)
        restarts.began(now)
        delay = restarts.ended(now + ran, ended())
        if delay is None:
            break
        assert 0.9 <= delay <= 66
        now += ran + delay
    for last in starts:
        assert sum(last - SETTINGS["window"] < at <= last for at in starts) <= SETTINGS["attempts"]


def test_the_last_twenty_attempts_are_remembered() -> None:
    restarts = plan(attempts=1000)
    for number in range(30):
        restarts.began(number * 10.0)
        restarts.ended(number * 10.0 + 0.5, ended(number))
    assert [each["code"] for each in restarts.attempts] == list(range(10, 30))
    assert restarts.attempts[0]["ran_s"] == 0.5


def test_each_request_makes_a_new_epoch() -> None:
    desired = Desired("me", "then")
    assert desired.facts() == {"state": UP, "epoch": 1, "by": "me", "at": "then"}
    desired.ask(DOWN, "you", "now")
    assert desired.facts() == {"state": DOWN, "epoch": 2, "by": "you", "at": "now"}


def test_failed_starts_in_a_row_end_it_and_one_that_ran_long_enough_resets_the_count() -> None:
    restarts = plan(in_a_row=3, attempts=1000)
    now = 0.0
    for ran_s, repeated, failed in [
        (5.0, True, 1),
        (0.1, True, 2),
        (61.0, True, 0),
        (59.9, True, 1),
        (1.0, True, 2),
        (1.0, False, 3),
    ]:
        restarts.began(now)
        now += ran_s
        assert (restarts.ended(now, ended()) is not None) is repeated
        assert restarts.failed_starts == failed
        now += 1.0
    assert restarts.limit_reached
