"""One channel from claim to settle, on a clock that the test turns."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import Config
from holdfast.errors import IndexBusy
from holdfast.signals.lines import Signal
from holdfast.signals.people import status
from holdfast.signals.people.channels import AGAIN, DELIVERED, FAILED, GONE, Outcome
from holdfast.signals.people.delivery import ChannelQueue, Delivery, Moment, Subscription
from holdfast.signals.people.notices import Notice
from holdfast.signals.people.status import ChannelStatus
from holdfast.signals.redact import Redactor
from support.notified import BOOT, SECOND_NS, signal_of
from support.waiting import BOUND_S

NAME = "people:webhook:ops"
REDACT = Redactor()


class Batch:
    def __init__(self, queue: Queue, signals: list[Signal]) -> None:
        self.queue = queue
        self.held = {signal.id: signal for signal in signals}

    def settle(self, ids: Iterable[str] | None = None) -> None:
        self.queue.answer()
        for id in list(self.held) if ids is None else list(ids):
            del self.held[id]
            self.queue.settled.append(id)

    def release(self, reason: str, *, ids: Iterable[str] | None = None) -> None:
        assert reason
        for id in list(self.held) if ids is None else list(ids):
            self.queue.waiting.append(self.held.pop(id))


class Queue:
    def __init__(self) -> None:
        self.waiting: list[Signal] = []
        self.settled: list[str] = []
        self.busy = False

    def answer(self) -> None:
        if self.busy:
            raise IndexBusy("index.db", 0.25)

    def claim(self, limit: int) -> tuple[Batch, Sequence[Signal]]:
        self.answer()
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return Batch(self, taken), taken


class Send:
    """A delivery whose outcome the test decides, or that never ends by itself."""

    def __init__(self, channel: Sender, notice: Notice) -> None:
        self.channel = channel
        self.notice = notice
        self.aborted = threading.Event()

    def run(self) -> Outcome:
        outcome = self.channel.outcome(self.notice)
        if outcome is None:
            self.aborted.wait(BOUND_S)
            return Outcome(FAILED, "cut off")
        return outcome

    def abort(self) -> Outcome:
        self.aborted.set()
        return Outcome(AGAIN, "late")


class Sender:
    def __init__(self, outcome: Callable[[Notice], Outcome | None]) -> None:
        self.outcome = outcome
        self.sent: list[list[str]] = []

    def deliver(self, notice: Notice) -> Send:
        self.sent.append([notice.first.id, *(signal.id for signal in notice.others)])
        return Send(self, notice)


class Stage:
    """A way, its queue, and the time."""

    def __init__(
        self,
        home: Path,
        outcome: Callable[[Notice], Outcome | None],
        *,
        at_once: int = 4,
        notify: Callable[[str], bool | None] = lambda _session: None,
        max_age_s: float = 3600.0,
    ) -> None:
        self.home = home
        self.clock = 100.0
        self.queue = Queue()
        self.sender = Sender(outcome)
        self.done = threading.Semaphore(0)
        config = Config()
        config.people_apart, config.people_attended, config.people_timeout = 10.0, 60.0, 10.0
        config.people_max_age, config.people_retry_waits = max_age_s, (1.0, 5.0, 30.0, 120.0, 600.0)
        self.way = ChannelQueue(
            Subscription(NAME, "https://example.org/", self.sender, ("failed", "watch")),
            self.queue.claim,
            config,
            notify=notify,
            redact=REDACT,
            status=ChannelStatus(str(home)),
            now=lambda: Moment(BOOT, round(self.clock * SECOND_NS), 0),
            wake=self.done.release,
            chance=lambda: 0.0,
            at_once=at_once,
        )

    def add(self, *signals: Signal) -> None:
        self.queue.waiting.extend(signals)

    def turn(self, ends: int = 0) -> None:
        """Everything that is to be done now; then so many deliveries end, and that is looked at."""
        self.way.turn(self.clock)
        for _ in range(ends):
            assert self.done.acquire(timeout=BOUND_S)
        if ends:
            self.way.turn(self.clock)

    def at(self, clock: float) -> None:
        self.clock = clock


def _always(kind: str, why: str = "", after_s: float | None = None) -> Callable[[Notice], Outcome]:
    return lambda _notice: Outcome(kind, why, after_s)


def test_a_signal_for_people_is_reported_and_then_settled(tmp_path: Path) -> None:
    stage = Stage(tmp_path, _always(DELIVERED))
    stage.add(signal_of(at_s=100))
    stage.way.turn(stage.clock)
    assert stage.queue.settled == [], "it is not reported yet, as far as anybody knows"
    assert stage.done.acquire(timeout=BOUND_S)
    stage.turn()
    assert stage.queue.settled == ["b7k2m9qa1.1"]
    assert stage.way.calm_at(stage.clock) == 110.0, "what comes within ten seconds is joined"


def test_unwanted_events_are_settled_without_a_notice(tmp_path: Path) -> None:
    stage = Stage(tmp_path, _always(DELIVERED), notify=lambda session: False if session == "b00000002" else None)
    stage.at(10_000.0)
    attached = {"attached": {"control": 1, "observe": 0, "person_idle_s": 3.0}}
    stage.add(
        signal_of("heartbeat", at_s=10_000, seq=1),
        signal_of(at_s=10_000, seq=2, snapshot=attached),
        signal_of(at_s=6000, seq=3),
        signal_of(at_s=10_000, session="b00000002"),
    )
    stage.turn()
    assert len(stage.queue.settled) == 4
    assert stage.sender.sent == []
    assert (stage.way.next_at(), stage.way.calm_at(stage.clock)) == (None, 10_000.0)
    assert status.read(str(tmp_path))[NAME] == {"expired": 1}, "what is dropped for its age is counted"


def test_a_failing_way_is_tried_at_the_promised_times_and_then_given_up(tmp_path: Path) -> None:
    stage = Stage(tmp_path, _always(AGAIN, "the answer was 500"))
    stage.add(signal_of(at_s=100))
    stage.turn(1)
    times = []
    while (at := stage.way.next_at()) is not None:
        times.append(at - stage.clock)
        stage.at(at - 0.001)
        stage.turn()
        assert stage.queue.settled == []
        stage.at(at)
        stage.turn(1)
    assert times == pytest.approx([1, 5, 30, 120, 600])
    assert stage.sender.sent == [["b7k2m9qa1.1"]] * 6
    assert stage.queue.settled == ["b7k2m9qa1.1"]
    found = status.read(str(tmp_path))[NAME]
    assert (found["failed"], found["last_failure"]["why"]) == (1, "the answer was 500")
    assert found["last_failure"]["signal"] == "b7k2m9qa1.1"


def test_the_wait_that_was_asked_for_is_kept(tmp_path: Path) -> None:
    stage = Stage(tmp_path, _always(AGAIN, "the answer was 429", 77.0))
    stage.add(signal_of(at_s=100))
    stage.turn(1)
    assert stage.way.next_at() == 177.0


def test_a_notice_that_would_be_too_old_by_then_is_not_tried_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, _always(AGAIN, "the answer was 429", 3599.0))
    stage.at(102.0)
    stage.add(signal_of(at_s=100))
    stage.turn(1)
    assert stage.way.next_at() is None
    assert stage.queue.settled == ["b7k2m9qa1.1"]


def test_a_way_that_failed_for_good_is_not_tried_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, _always(FAILED, "the answer was 404"))
    stage.add(signal_of(at_s=100), signal_of(at_s=100, session="b00000002"))
    stage.turn(2)
    assert len(stage.queue.settled) == 2
    assert status.read(str(tmp_path))[NAME]["failed"] == 2
    assert not stage.way.over


def test_a_link_whose_other_end_is_gone_is_closed_until_it_is_reopened(tmp_path: Path) -> None:
    stage = Stage(tmp_path, lambda notice: Outcome(GONE, "410") if notice.first.session == "b00000001" else None)
    stage.add(*(signal_of(at_s=100, session=f"b0000000{number}") for number in (1, 2, 3)))
    stage.turn(1)
    assert stage.way.over
    assert stage.queue.settled == ["b00000001.1"]
    assert {signal.session for signal in stage.queue.waiting} == {"b00000002", "b00000003"}
    stage.turn()
    assert len(stage.sender.sent) == 3, "nothing is sent any more"
    assert (stage.way.next_at(), stage.way.calm_at(stage.clock)) == (None, 110.0)
    assert Stage(tmp_path, _always(DELIVERED)).way.over
    assert ChannelStatus(str(tmp_path)).over(NAME, "https://example.org/") == "410"
    assert ChannelStatus(str(tmp_path)).over(NAME, "https://example.org/other") is None


def test_a_delivery_that_takes_too_long_is_cut_off_and_tried_again(tmp_path: Path) -> None:
    stage = Stage(tmp_path, lambda _notice: None)
    stage.add(signal_of(at_s=100))
    stage.turn()
    assert stage.way.next_at() == 110.0
    stage.at(110.0)
    stage.turn()
    assert stage.done.acquire(timeout=BOUND_S), "its thread has left"
    assert stage.way.next_at() == 111.0
    assert stage.queue.settled == []


def test_no_more_than_four_are_under_way_and_a_due_retry_waits_without_spinning(tmp_path: Path) -> None:
    outcomes: dict[str, Outcome | None] = {"b00000000": Outcome(AGAIN)}
    stage = Stage(tmp_path, lambda notice: outcomes.get(str(notice.first.session)))
    stage.add(signal_of(at_s=100, session="b00000000"))
    stage.turn(1)
    stage.add(*(signal_of(at_s=100, session=f"b0000000{number}") for number in range(1, 7)))
    stage.turn()
    assert len(stage.sender.sent) == 5
    stage.at(102.0)
    stage.turn()
    assert len(stage.sender.sent) == 5
    assert stage.way.next_at() == 110.0, "the retry was due at 101, and has no room"
    stage.at(110.0)
    stage.turn()
    stage.way.turn(stage.clock)
    assert ["b00000000.1"] in stage.sender.sent[5:]
    stage.way.close()


def test_news_of_a_session_join_while_one_is_tried_again(tmp_path: Path) -> None:
    outcomes = [Outcome(AGAIN), Outcome(DELIVERED), Outcome(DELIVERED)]
    stage = Stage(tmp_path, lambda _notice: outcomes.pop(0))
    stage.add(signal_of("watch", {"text": "a"}, at_s=100, seq=1))
    stage.turn(1)
    stage.add(signal_of("watch", {"text": "b"}, at_s=100, seq=2), signal_of(at_s=100, seq=3))
    stage.turn()
    stage.at(101.0)
    stage.turn(1)
    assert stage.queue.settled == ["b7k2m9qa1.1"]
    assert stage.way.next_at() == 111.0
    stage.at(111.0)
    stage.turn(1)
    assert stage.sender.sent == [["b7k2m9qa1.1"], ["b7k2m9qa1.1"], ["b7k2m9qa1.3", "b7k2m9qa1.2"]]
    assert sorted(stage.queue.settled) == [f"b7k2m9qa1.{seq}" for seq in (1, 2, 3)]


def test_a_deliverer_that_leaves_gives_back_unsent_signals(tmp_path: Path) -> None:
    stage = Stage(tmp_path, lambda _notice: None)
    stage.add(*(signal_of("watch", {}, at_s=100, seq=seq) for seq in (1, 2)))
    stage.turn()
    stage.add(signal_of("watch", {}, at_s=100, seq=3))
    stage.turn()
    stage.way.close()
    assert sorted(signal.id for signal in stage.queue.waiting) == [f"b7k2m9qa1.{seq}" for seq in (1, 2, 3)]
    assert stage.queue.settled == []


def test_what_is_claimed_twice_after_a_lease_is_reported_once(tmp_path: Path) -> None:
    stage = Stage(tmp_path, lambda _notice: None)
    stage.add(signal_of(at_s=100))
    stage.turn()
    stage.add(signal_of(at_s=100))
    stage.turn()
    assert (len(stage.sender.sent), len(stage.queue.waiting)) == (1, 0)
    stage.way.close()
    assert len(stage.queue.waiting) == 1


def test_a_full_disk_does_not_prevent_notices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.core.records.write", full)
    stage = Stage(tmp_path, _always(FAILED, "no"))
    stage.add(signal_of(at_s=100))
    stage.turn(1)
    assert stage.queue.settled == ["b7k2m9qa1.1"]


def test_a_busy_index_delays_what_is_said_to_the_queue_and_nothing_else(tmp_path: Path) -> None:
    stage = Stage(tmp_path, _always(DELIVERED))
    stage.add(signal_of(at_s=100), signal_of("heartbeat", {}, at_s=100, seq=2))
    stage.queue.busy = True
    stage.turn()
    assert (stage.sender.sent, stage.way.next_at()) == ([], 101.0)
    stage.queue.busy = False
    stage.at(101.0)
    stage.way.turn(stage.clock)
    stage.queue.busy = True
    assert stage.done.acquire(timeout=BOUND_S)
    stage.turn()
    assert stage.queue.settled == ["b7k2m9qa1.2"]
    assert (stage.way.next_at(), stage.way.calm_at(stage.clock)) == (102.0, None)
    stage.queue.busy = False
    stage.turn()
    assert stage.queue.settled == ["b7k2m9qa1.2", "b7k2m9qa1.1"]
    assert len(stage.sender.sent) == 1


@given(
    st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["watch", "heartbeat"])), max_size=12),
    st.lists(st.sampled_from([DELIVERED, AGAIN, FAILED]), max_size=30),
)
def test_whatever_fails_every_signal_is_settled_once_in_the_end(
    tmp_path_factory: pytest.TempPathFactory, signals: list[tuple[int, str]], kinds: list[str]
) -> None:
    stage = Stage(tmp_path_factory.getbasetemp(), lambda _notice: Outcome(kinds.pop() if kinds else DELIVERED))
    for seq, (session, variant) in enumerate(signals, 1):
        stage.add(signal_of(variant, {}, session=f"b0000000{session}", seq=seq, at_s=100))
    stage.turn(0)
    under_way = len(stage.sender.sent)
    while True:
        stage.turn(under_way)
        begun = len(stage.sender.sent)
        if (at := stage.way.next_at()) is None:
            break
        stage.at(max(stage.clock, at))
        stage.turn()
        under_way = len(stage.sender.sent) - begun
    assert sorted(stage.queue.settled) == sorted(
        f"b0000000{session}.{seq}" for seq, (session, _) in enumerate(signals, 1)
    )


def test_the_state_of_channels_is_described_without_addresses(tmp_path: Path) -> None:
    home = str(tmp_path)
    assert status.troubles(home) == []
    stand = ChannelStatus(home)
    stand.failed(NAME, "b7k2m9qa1.1", "the answer was 404")
    stand.failed(NAME, "b7k2m9qa1.2", "the answer was 404")
    assert [f"{NAME} failed to deliver 2 notices" in each for each in status.troubles(home)] == [True]
    stand.end("people:webhook:other", "https://example.org/very-secret", "410")
    assert any("people:webhook:other has not been used since" in each for each in status.troubles(home))
    file = tmp_path / status.FILE
    assert "very-secret" not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    for damaged in ("{", '{"channels": 5}', '{"channels": {"x": 5}}'):
        file.write_text(damaged)
        assert status.troubles(home) == []


class _Turned:
    """A way that has work until it was turned so often."""

    def __init__(self, turns: int, log: list[float]) -> None:
        self.turns = turns
        self.log = log

    def turn(self, clock: float) -> None:
        self.turns -= 1
        self.log.append(clock)

    def next_at(self) -> float | None:
        return self.log[-1] + 0.02 if self.turns > 0 else None

    def calm_at(self, clock: float) -> float | None:
        return self.log[-1] + 0.03 if self.turns == 0 else clock

    def close(self) -> None:
        self.turns = -100


def test_a_deliverer_wakes_when_due_and_leaves_when_idle() -> None:
    read, write = os.pipe()
    cleared: list[None] = []
    attendance = Delivery(read, lambda: cleared.append(None))
    log: list[float] = []
    attendance.ways.append(_Turned(3, log))  # type: ignore[arg-type]
    assert attendance.run()
    # Three turns, then one when it is calm; each after a look at the waker.
    assert len(log) == len(cleared) == 4
    assert log[1] - log[0] >= 0.02
    assert log[3] - log[2] >= 0.03
    attendance.close()
    attendance.wake()
    os.close(read)
    os.close(write)


def test_a_deliverer_that_is_asked_to_leave_does_so_and_confirms_it() -> None:
    read, write = os.pipe()
    attendance = Delivery(read, lambda: None)
    timer = threading.Timer(0.05, attendance.leave)
    timer.start()
    assert not attendance.run(lambda: 60.0)
    timer.join()
    assert not attendance.run(), "not even to begin with"
    os.close(read)
    os.close(write)
