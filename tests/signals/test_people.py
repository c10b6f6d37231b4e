"""Which signals are sent to people, when, and when again: by example and over all schedules."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.config import PEOPLE_EVENTS, Config, load, people_spec
from holdfast.core import processes
from holdfast.core.signalfile import VARIANTS
from holdfast.runner.people_notifier import ROLE, concerns_people
from holdfast.signals.lines import Signal
from holdfast.signals.people.delivery import (
    ATTENDED,
    BEFORE,
    EXPIRED,
    OTHER,
    Gathering,
    Moment,
    age_s,
    reason_not_to_send,
    retry_wait,
    variants_of,
    wall_ns,
)
from support.notified import BOOT, SECOND_NS, signal_of
from support.world import World

DEFAULT = Config().people_events
WAITS = (1.0, 5.0, 30.0, 120.0, 600.0)


def _now(at_s: float = 100.0, boot: str = BOOT, wall_s: float = 0.0) -> Moment:
    return Moment(boot, round(at_s * SECOND_NS), round(wall_s * SECOND_NS))


def _fate(signal: Signal, now: Moment | None = None, notify: bool | None = None) -> str | None:
    return reason_not_to_send(signal, now or _now(), events=DEFAULT, notify=notify, max_age_s=3600.0, attended_s=60.0)


@pytest.mark.parametrize(
    "variant, fields, reported",
    [
        ("lifecycle", {"phase": "ended", "status": "failed", "cause": "exit", "code": 1}, True),
        ("lifecycle", {"phase": "ended", "status": "failed", "cause": "lost"}, True),
        ("lifecycle", {"phase": "ended", "status": "killed", "cause": "overall_timeout"}, True),
        ("lifecycle", {"phase": "ended", "status": "killed", "cause": "idle_timeout"}, True),
        ("lifecycle", {"phase": "ended", "status": "killed", "cause": "ttl"}, True),
        ("lifecycle", {"phase": "ended", "status": "killed", "cause": "stop"}, False),
        ("lifecycle", {"phase": "ended", "status": "completed", "cause": "exit", "code": 0}, False),
        ("lifecycle", {"phase": "restarting", "status": "failed"}, False),
        ("needs_input", {"confidence": "high"}, True),
        ("overflow", {"state": "tripped"}, True),
        ("watch", {}, False),
        ("event", {}, False),
        ("heartbeat", {}, False),
    ],
)
def test_by_default_people_are_notified_of_failures_limits_questions_and_overflows(
    variant: str, fields: dict[str, Any], reported: bool
) -> None:
    assert concerns_people(variant, fields, DEFAULT, None) is reported


def test_every_variant_can_be_asked_for_and_every_event_can_happen() -> None:
    phases = {"ended", "failed", "limit", "restarting"}
    assert set(PEOPLE_EVENTS) - phases == set(VARIANTS) - {"lifecycle"}
    for variant in set(VARIANTS) - {"lifecycle"}:
        assert concerns_people(variant, {}, (variant,), None)
    ended = {"phase": "ended", "status": "failed", "cause": "ttl"}
    for event in ("ended", "failed", "limit"):
        assert concerns_people("lifecycle", ended, (event,), None)
    assert concerns_people("lifecycle", {"phase": "restarting"}, ("restarting",), None)
    assert not concerns_people("lifecycle", {"phase": "started"}, PEOPLE_EVENTS, True)


def test_a_session_may_always_or_never_be_reported() -> None:
    done = {"phase": "ended", "status": "completed", "cause": "exit", "code": 0}
    assert concerns_people("lifecycle", done, DEFAULT, True)
    assert not concerns_people("needs_input", {}, DEFAULT, False)
    assert not concerns_people("lifecycle", {"phase": "ended", "status": "failed"}, PEOPLE_EVENTS, False)
    assert _fate(signal_of(), notify=False) == OTHER


def test_a_new_channel_gets_what_happens_in_the_millisecond_in_which_it_was_configured() -> None:
    """A signal has whole milliseconds: compared to the nanosecond it seemed to lie before its channel."""
    at_ns = wall_ns(signal_of())

    def since(since_ns: int) -> str | None:
        return reason_not_to_send(
            signal_of(), _now(), events=DEFAULT, notify=None, max_age_s=3600.0, attended_s=60.0, since_ns=since_ns
        )

    assert round(at_ns, -6) % 10**9 == 412_000_000
    assert since(round(at_ns, -6) + 999_999) is None
    assert since(round(at_ns, -6) + 1_000_000) == BEFORE


def test_what_is_older_than_an_hour_is_expired_by_the_clock_that_cannot_be_set() -> None:
    assert _fate(signal_of(at_s=100), _now(100 + 3600)) is None
    assert _fate(signal_of(at_s=100), _now(100 + 3601)) == EXPIRED
    # Whatever the wall clock says.
    assert _fate(signal_of(at_s=100), _now(101, wall_s=4e9)) is None


def test_the_age_of_a_signal_of_an_earlier_boot_is_reported_by_the_wall_clock() -> None:
    at = 1_785_575_647.412  # 2026-08-01T09:14:07.412Z
    assert age_s(signal_of(), _now(5, boot="other", wall_s=at + 30)) == pytest.approx(30, abs=0.001)
    assert _fate(signal_of(), _now(5, boot="other", wall_s=at + 3700)) == EXPIRED
    assert age_s(signal_of(at="soon"), _now(5, boot="other", wall_s=at)) == 0.0


@pytest.mark.parametrize(
    "attached, expected",
    [
        ({"control": 1, "observe": 0, "person_idle_s": 0.0}, ATTENDED),
        ({"control": 1, "observe": 0, "person_idle_s": 60}, ATTENDED),
        ({"control": 1, "observe": 0, "person_idle_s": 60.5}, None),
        ({"control": 1, "observe": 0, "person_idle_s": None}, None),
        ({"control": 0, "observe": 3}, None),
        ({"person_idle_s": True}, None),
        (None, None),
        ("x", None),
    ],
)
def test_what_a_person_is_looking_at_is_attended(attached: object, expected: str | None) -> None:
    assert _fate(signal_of(snapshot={"attached": attached})) == expected


@given(st.lists(st.floats(0, 1000), max_size=8), st.integers(1, 12), st.floats(0, 1), st.none() | st.floats(0, 1e6))
def test_a_retry_comes_a_little_after_its_time_and_never_before_the_asked_one(
    waits: list[float], failures: int, chance: float, wanted: float | None
) -> None:
    wait = retry_wait(waits, failures, wanted, lambda: chance)
    if failures > len(waits):
        assert wait is None
        return
    assert wait is not None
    planned = waits[failures - 1]
    assert max(planned, wanted or 0) <= wait <= max(planned * 1.2, wanted or 0)


def test_the_schedule_of_retries_is_the_promised_one() -> None:
    assert Config().people_retry_waits == WAITS
    assert [retry_wait(WAITS, failures, None, lambda: 0.0) for failures in range(1, 7)] == [*WAITS, None]


def test_the_first_notice_goes_at_once_and_the_rest_of_ten_seconds_go_together() -> None:
    gathering = Gathering(10.0)
    first, second, third = (signal_of(seq=seq) for seq in (1, 2, 3))
    gathering.add(first)
    assert gathering.take(0.0, 4) == [[first]]
    gathering.add(second)
    assert gathering.take(1.0, 4) == []
    assert gathering.next_at() is None, "it is under way, for an unknown time"
    gathering.done([first], 2.0)
    assert gathering.next_at() == 12.0
    gathering.add(third)
    assert gathering.take(11.9, 4) == []
    assert gathering.take(12.0, 4) == [[second, third]]
    gathering.done([second, third], 12.0)
    assert (gathering.calm_at(), len(gathering), gathering.next_at()) == (22.0, 0, None)


def test_sessions_do_not_wait_for_each_other_but_for_room() -> None:
    gathering = Gathering(10.0)
    signals = [signal_of(session=f"b0000000{number}") for number in range(4)]
    for signal in signals:
        gathering.add(signal)
    assert gathering.take(0.0, 3) == [[signals[0]], [signals[1]], [signals[2]]]
    assert gathering.take(0.0, 0) == []
    assert gathering.take(0.0, 1) == [[signals[3]]]


def test_a_bell_rings_once_for_all_sessions_and_not_again_within_five_seconds() -> None:
    gathering = Gathering(10.0, 5.0)
    one, two, three = (signal_of(session=f"b0000000{number}") for number in range(3))
    gathering.add(one)
    gathering.add(two)
    assert gathering.take(0.0, 4) == [[one, two]]
    gathering.add(three)
    assert gathering.take(0.1, 4) == []
    gathering.done([one, two], 0.2)
    assert gathering.next_at() == 5.2
    assert gathering.take(5.1, 4) == []
    assert gathering.take(5.2, 4) == [[three]]


class Told(RuleBasedStateMachine):
    """Whatever comes and however long it takes: nothing is lost or doubled, order stays, and people are notified of one
    session once within ten seconds."""

    def __init__(self) -> None:
        super().__init__()
        self.gathering = Gathering(10.0)
        self.now = 0.0
        self.added: dict[str, list[str]] = {}
        self.told: dict[str, list[str]] = {}
        self.last: dict[str, float] = {}
        self.under_way: list[list[Signal]] = []

    @rule(session=st.integers(0, 2))
    def comes(self, session: int) -> None:
        name = f"b0000000{session}"
        ids = self.added.setdefault(name, [])
        signal = signal_of(session=name, seq=len(ids) + 1)
        ids.append(signal.id)
        self.gathering.add(signal)

    @rule(seconds=st.sampled_from([0.0, 0.5, 3.0, 10.0]))
    def passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(limit=st.integers(0, 4))
    def sends(self, limit: int) -> None:
        for group in self.gathering.take(self.now, limit):
            name = group[0].session
            assert name is not None
            assert {signal.session for signal in group} == {name}
            assert name not in {each[0].session for each in self.under_way}
            assert self.now - self.last.get(name, -10.0) >= 10.0
            self.told.setdefault(name, []).extend(signal.id for signal in group)
            self.under_way.append(group)

    @precondition(lambda self: self.under_way)
    @rule()
    def arrives(self) -> None:
        group = self.under_way.pop(0)
        self.gathering.done(group, self.now)
        self.last[str(group[0].session)] = self.now

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        for name, ids in self.added.items():
            reported = self.told.get(name, [])
            assert reported == ids[: len(reported)]
        assert len(self.gathering) == sum(map(len, self.added.values())) - sum(map(len, self.told.values()))

    @invariant()
    def the_next_time_is_a_time_at_which_something_goes(self) -> None:
        at = self.gathering.next_at()
        if at is not None and at <= self.now:
            waiting = {name for name, ids in self.added.items() if len(self.told.get(name, [])) < len(ids)}
            busy = {each[0].session for each in self.under_way}
            assert any(self.now >= self.last.get(name, -10.0) + 10.0 for name in waiting - busy)


TestTold = Told.TestCase


def _configured(world: World, text: str) -> Config:
    file = world.root / "config.toml"
    file.write_text(text)
    return load({}, str(file))


def test_a_runner_gets_the_events_for_people_and_their_deliverer(world: World) -> None:
    assert people_spec(Config())["events"] == []
    ops = '[people.webhook.ops]\nurl = "https://x/"\nsecret_file = "/s"\nevents = ["ended", "gap"]\n'
    spec = people_spec(_configured(world, ops))
    assert spec["events"] == ["ended", "gap"], "the usual ones were not asked for"
    assert spec["argv"][-2:] == ["--config", str(world.root / "config.toml")]
    assert not any("https" in word for word in spec["argv"])
    both = people_spec(_configured(world, ops + "[people]\nbell = true\n"))
    assert both["events"] == sorted({*DEFAULT, "ended", "gap"})


def test_a_session_that_is_started_by_a_notice_is_one_like_others(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the deliverer calls has its mark; a session with it would be left out of its own tree."""
    monkeypatch.setenv(processes.ROLE_VARIABLE, ROLE)
    session = world.open().start(world.probe("forever"))
    assert [process["pid"] for process in session.stop(grace=0).found] == [session.pid]


def test_the_variants_of_events_are_those_that_can_be_them() -> None:
    assert variants_of(("failed", "restarting")) == ["lifecycle"]
    assert variants_of(("watch", "ended")) == ["lifecycle", "watch"]
    assert variants_of(()) == ["lifecycle"], "a session may ask for a notice of its end"
    assert set(variants_of(PEOPLE_EVENTS)) == set(VARIANTS)
