"""The loop of an agent: one turn at a time, and no signal between two of them is missed."""

from __future__ import annotations

import asyncio
import random
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import signals
from holdfast.core import processes
from holdfast.sessions.driver import Asynchronous
from holdfast.signals.consumer import AsyncNotice, Notice
from holdfast.signals.consumers import Consumers
from holdfast.signals.loop import AsyncGate, Gate, Turns
from holdfast.signals.queue import Holder
from support.waiting import BOUND_S
from support.written import Clock, Desk

if TYPE_CHECKING:
    from holdfast.signals.loop import Held

INTERLEAVINGS = 10_000


@types.coroutine
def step(ready: Callable[[], bool] = lambda: True) -> Generator[Callable[[], bool], None, None]:
    """Where another may run, and we continue once it is `ready`."""
    yield ready


class Taken:
    def __init__(self, source: Source, numbers: list[int]) -> None:
        self.source, self.numbers = source, numbers

    async def settle(self) -> None:
        await step()
        self.source.settled += self.numbers

    async def release(self, reason: str) -> None:
        await step()
        self.source.due += self.numbers


class Source:
    """A queue and a descriptor, where another may run wherever one of them is touched."""

    def __init__(self) -> None:
        self.due: list[int] = []
        self.settled: list[int] = []
        self.readable = True
        self.in_turn = 0

    def clear(self) -> None:
        self.readable = False

    def make_readable(self) -> None:
        self.readable = True

    async def take(self) -> Taken | None:
        await step()
        taken, self.due = self.due, []
        await step()
        return Taken(self, taken) if taken else None

    async def pending(self) -> int:
        await step()
        count = len(self.due)
        await step()
        return count

    async def emit(self, number: int) -> None:
        await step()
        self.due.append(number)
        await step()
        self.readable = True


def play(seed: int) -> None:
    """A few hosts' threads, a few signals, turns that fail now and then; which runs next is random."""
    draw = random.Random(seed)
    source = Source()
    turns = Turns(source)
    signals = draw.randrange(1, 6)

    async def turn(held: Held) -> None:
        assert source.in_turn == 0
        source.in_turn += 1
        await step()
        await step()
        source.in_turn -= 1
        if draw.random() < 0.2:
            raise ZeroDivisionError

    async def loop() -> None:
        while True:
            await step(lambda: source.readable)
            try:
                await turns.run(turn, limit=draw.choice([None, None, 1]))
            except ZeroDivisionError:
                continue

    loops: list[Coroutine[Any, Any, None]] = [loop() for _ in range(draw.randrange(1, 4))]
    emitters = [source.emit(number) for number in range(signals)]
    waiting: dict[Coroutine[Any, Any, None], Callable[[], bool]] = dict.fromkeys([*loops, *emitters], lambda: True)
    steps = 0
    while ready := [each for each, is_ready in waiting.items() if is_ready()]:
        chosen = draw.choice(ready)
        try:
            waiting[chosen] = chosen.send(None)
        except StopIteration:
            del waiting[chosen]
        steps += 1
        assert steps < 10_000, f"seed {seed}: it does not come to rest"
    assert sorted(source.settled) == list(range(signals)), f"seed {seed}: {source.due} were never handled"
    assert not turns.busy
    for each in loops:
        each.close()


@pytest.mark.covers("signals:14")
def test_no_interleaving_loses_a_signal_or_hangs() -> None:
    for seed in range(INTERLEAVINGS):
        play(seed)


@pytest.mark.covers("signals:14")
def test_signal_between_the_last_check_and_the_release_is_handled_by_the_same_run(desk: Desk) -> None:
    gate = Gate(desk.consumer())
    session = desk.session()
    first = session.tell()
    reported: list[list[str]] = []
    inner = gate._turns._source
    late: list[str] = []
    pending = inner.pending

    async def with_a_signal_before() -> int:
        if not late:
            assert not gate.busy
            late.append(session.tell())
        return await pending()

    inner.pending = with_a_signal_before  # type: ignore[method-assign]
    assert gate.run(lambda notice: reported.append(notice.ids)) == 2
    assert reported == [[first], late]
    gate.close()


def test_gate_is_found_where_the_contract_says() -> None:
    assert (signals.Gate, signals.AsyncGate) == (Gate, AsyncGate)
    with pytest.raises(AttributeError):
        _ = getattr(signals, "Turnstile")  # noqa: B009 - as a user would write it


def test_options_of_a_drain_are_those_of_a_gate(desk: Desk) -> None:
    consumer = desk.consumer()
    session, foreign = desk.session(), desk.session()
    known, news = session.tell(), session.tell(lines=["it broke"])
    foreign.tell()
    gate = Gate(consumer, "hermes", seen=known.__eq__, owns=lambda signal: signal.session == session.id, quote="plain")
    reported: list[tuple[list[str], str]] = []
    assert gate.run(lambda notice: reported.append((notice.ids, notice.text))) == 1
    [(ids, text)] = reported
    assert ids == [news]
    assert text.startswith("[IMPORTANT: ")
    assert "\nit broke\n" in text
    pending = consumer.pending()
    assert (pending, pending.next_due is not None) == (0, True)
    gate.close()


def test_what_was_parked_is_reported_in_a_turn_of_its_own_where_there_is_nothing_else(desk: Desk) -> None:
    consumer = desk.consumer()
    id = desk.session().tell()
    here = processes.own_identity()
    dead = Holder(here["boot"], here["pidns"], here["timens"], 2**22 + 1, 7)
    for _ in range(8):
        batch = desk.consumer_at(Clock(), here=dead).claim()
        batch._async.open.clear()
    gate = Gate(consumer)
    reported: list[str] = []
    assert gate.run(lambda notice: reported.append(notice.text)) == 1
    assert f"{id}; see hold signals --parked" in reported[0]
    assert gate.run(lambda notice: reported.append(notice.text)) == 0
    gate.close()


def test_callback_that_fails_in_a_gate_settles_nothing(desk: Desk) -> None:
    consumers = Consumers(Asynchronous(), desk.index, desk.config, desk.runtime)
    consumer = consumers.of_owner("conv-1")
    id = desk.session().tell()

    async def turn(notice: AsyncNotice) -> None:
        raise AssertionError("nothing may be shown")

    async def main() -> None:
        gate = AsyncGate(consumer, seen=lambda _: bool(1 / 0))
        with pytest.raises(ZeroDivisionError):
            await gate.run(turn)
        assert not gate.busy
        assert [signal.id for signal in await consumer.peek()] == [id]
        gate.close()

    asyncio.run(main())


def test_second_caller_goes_away(desk: Desk) -> None:
    gate = Gate(desk.consumer())
    session = desk.session()
    session.tell()
    outcome: list[int] = []

    def turn(notice: Notice) -> None:
        thread = threading.Thread(target=lambda: outcome.append(gate.run(turn)))
        thread.start()
        thread.join(BOUND_S)
        assert gate.busy

    assert gate.run(turn) == 1
    assert outcome == [0]
    assert not gate.busy
    gate.close()


def test_turn_that_raises_gives_back_and_leaves_the_gate_open(desk: Desk) -> None:
    consumer = desk.consumer()
    gate = Gate(consumer)
    session = desk.session()
    session.tell()

    def failing(notice: Notice) -> None:
        session.tell()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        gate.run(failing)
    assert not gate.busy
    # What came meanwhile has to be delivered: a waiting host is woken.
    assert gate.waker.wait(0)
    reported: list[str] = []
    assert gate.run(lambda notice: reported.extend(notice.ids)) == 1
    assert reported == [f"{session.id}.2"]
    assert consumer.pending().next_due is not None
    gate.close()


def test_limit_of_turns_leaves_by_the_same_door(desk: Desk) -> None:
    gate = Gate(desk.consumer())
    session = desk.session()
    session.tell()
    assert gate.run(lambda notice: session.tell(), limit=1) == 1
    assert gate.waker.wait(0)
    assert not gate.busy
    gate.close()


def test_host_with_a_loop_of_its_own_uses_the_same_steps(desk: Desk) -> None:
    consumer = desk.consumer()
    gate = Gate(consumer)
    session = desk.session()
    assert gate.enter()
    assert not gate.enter()
    session.tell()
    assert gate.leave()
    with consumer.claim() as batch:
        assert len(batch) == 1
    assert not gate.leave()
    gate.close()


def test_asynchronous_gate_serves_until_it_is_cancelled(desk: Desk) -> None:
    consumers = Consumers(Asynchronous(), desk.index, desk.config, desk.runtime)
    consumer = consumers.of_owner("conv-1")
    session = desk.session()

    async def main() -> list[str]:
        gate = AsyncGate(consumer)
        reported: list[str] = []
        enough = asyncio.Event()

        async def turn(notice: AsyncNotice) -> None:
            reported.extend(notice.ids)
            if len(reported) < 3:
                session.tell()
            else:
                enough.set()

        session.tell()
        serving = asyncio.create_task(gate.serve(turn))
        async with asyncio.timeout(BOUND_S):
            await enough.wait()
            while gate.busy:
                await asyncio.to_thread(lambda: None)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        assert await consumer.pending() == 0
        gate.close()
        return reported

    assert asyncio.run(main()) == [f"{session.id}.{number}" for number in (1, 2, 3)]
