"""The rules of claims, on a clock that the test moves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.signals.claiming import DEAD, HOLDS, SILENT, Delivery, Holder, Rules, choose, standing

S = 10**9
RULES = Rules()


def holder(boot: str = "one", pidns: int = 1, timens: int = 1, pid: int = 10, until_s: float = 0.0) -> Holder:
    return Holder(boot, pidns, timens, pid, 77, round(until_s * S), round(until_s * S))


@pytest.mark.covers("signals:12")
def test_releases_wait_one_five_thirty_then_sixty_seconds_and_never_park() -> None:
    delivery = Delivery(1)
    waits = []
    for attempt in range(20):
        now = attempt * 1000 * S
        delivery.take()
        assert not delivery.release(RULES, now)
        waits.append((delivery.not_before_ns - now) / S)
        assert not delivery.is_due(delivery.not_before_ns - 1)
        assert delivery.is_due(delivery.not_before_ns)
    assert waits == [1, 5, 30, *[60] * 17]
    assert (delivery.parked, delivery.comes_alone(RULES), delivery.deliveries) == (False, False, 20)


def test_death_of_the_holder_frees_at_once_the_fifth_comes_alone_and_the_eighth_parks() -> None:
    delivery = Delivery(1)
    alone = []
    for death in range(1, 9):
        alone.append(delivery.comes_alone(RULES))
        delivery.take()
        assert delivery.orphan(RULES) is (death == 8)
        assert delivery.is_due(0) is (death < 8)
    assert alone == [False] * 4 + [True] * 4
    assert delivery.parked


def test_poison_counts_as_a_death_and_waits_as_a_release() -> None:
    delivery = Delivery(1)
    for _ in range(7):
        delivery.take()
        assert not delivery.release(RULES, 0, poison=True)
    delivery.take()
    assert delivery.release(RULES, 0, poison=True)
    assert not delivery.is_due(10**18)


def test_lease_that_ended_blames_nobody() -> None:
    delivery = Delivery(1)
    for _ in range(50):
        delivery.take()
        delivery.expire()
    assert (delivery.failures, delivery.is_due(0)) == (0, True)


def test_what_could_not_be_looked_at_was_not_delivered() -> None:
    delivery = Delivery(1)
    delivery.take()
    delivery.untake()
    assert (delivery.deliveries, delivery.is_due(0)) == (0, True)
    delivery.take()
    delivery.defer(RULES, 5 * S)
    assert (delivery.deliveries, delivery.releases, delivery.not_before_ns) == (0, 0, 65 * S)


def test_suspected_poison_takes_nobody_with_it() -> None:
    plain = [Delivery(pos) for pos in (1, 2, 4)]
    suspect = Delivery(3, failures=4)
    due = [plain[0], plain[1], suspect, plain[2]]
    assert choose(due, 10, RULES) == plain[:2]
    assert choose(due[2:], 10, RULES) == [suspect]
    assert choose(due[3:], 10, RULES) == [plain[2]]
    assert choose(due, 1, RULES) == [plain[0]]


@pytest.mark.parametrize(
    "other, now_s, lives, what",
    [
        (holder(until_s=900), 0, True, HOLDS),
        (holder(until_s=900), 0, False, DEAD),
        (holder(until_s=900), 900, True, SILENT),
        (holder(boot="two", until_s=900), 0, True, DEAD),
        # Of another pid or time namespace nothing can be seen: the lease alone tells.
        (holder(pidns=2, until_s=900), 0, False, HOLDS),
        (holder(pidns=2, until_s=900), 901, False, SILENT),
        (holder(timens=2, until_s=900), 0, False, HOLDS),
    ],
)
def test_standing_of_another_holder(other: Holder, now_s: int, lives: bool, what: str) -> None:
    assert standing(holder(), other, now_s * S, now_s * S, lambda pid, start: lives) == what


def test_lease_on_another_monotonic_clock_is_judged_by_the_wall() -> None:
    other = Holder("one", 2, 2, 10, 77, until_ns=5 * S, until_wall_ns=1000 * S)
    assert standing(holder(), other, 100 * S, 999 * S, lambda pid, start: False) == HOLDS
    assert standing(holder(), other, 0, 1000 * S, lambda pid, start: False) == SILENT


@given(st.lists(st.integers(0, 7), max_size=30), st.integers(1, 40))
def test_choice_keeps_the_order_and_the_bound(failures: list[int], limit: int) -> None:
    due = [Delivery(pos, failures=count) for pos, count in enumerate(failures)]
    chosen = choose(due, limit, RULES)
    assert chosen == due[: len(chosen)]
    assert len(chosen) <= limit
    assert bool(chosen) is bool(due)
    assert len(chosen) == 1 or not any(each.comes_alone(RULES) for each in chosen)


class DeliveryLife(RuleBasedStateMachine):
    """Whatever holders do: never in two hands, parked only by deaths and poison, and never stuck otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.delivery = Delivery(1)
        self.now = 0
        self.blamed = 0

    @precondition(lambda self: self.delivery.is_due(self.now))
    @rule()
    def take(self) -> None:
        self.delivery.take()

    @precondition(lambda self: self.delivery.held)
    @rule(poison=st.booleans())
    def release(self, poison: bool) -> None:
        self.delivery.release(RULES, self.now, poison=poison)
        self.blamed += poison

    @precondition(lambda self: self.delivery.held)
    @rule()
    def holder_dies(self) -> None:
        self.delivery.orphan(RULES)
        self.blamed += 1

    @precondition(lambda self: self.delivery.held)
    @rule()
    def lease_ends(self) -> None:
        self.delivery.expire()

    @rule(seconds=st.integers(1, 90))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds * S

    @invariant()
    def due_within_a_minute_unless_held_or_parked(self) -> None:
        delivery = self.delivery
        assert delivery.parked is (self.blamed >= 8)
        assert not (delivery.parked and delivery.held)
        assert delivery.held or delivery.parked or delivery.is_due(self.now + 60 * S)
        assert delivery.deliveries >= delivery.failures


TestDeliveryLife = DeliveryLife.TestCase
