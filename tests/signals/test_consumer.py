"""Consumers: claim and settle, over files that the test writes and an index of its own."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading

import pytest

from holdfast.core import processes
from holdfast.errors import BadArgument, ConsumerMismatch
from holdfast.index import queues
from holdfast.sessions.driver import Asynchronous
from holdfast.signals.consumer import Consumer
from holdfast.signals.consumers import Consumers, default_name
from holdfast.signals.queue import Holder
from holdfast.tools import TOOLSETS
from support.world import World
from support.written import Clock, Desk, Writer


def test_signals_come_in_order_and_once(desk: Desk) -> None:
    consumer = desk.consumer()
    one, two = desk.session(), desk.session()
    ids = [one.tell(text="a"), one.tell(text="b")]
    desk.look()
    ids += [two.tell(text="c"), one.tell(text="d")]
    assert consumer.pending() == 4
    with consumer.claim() as batch:
        assert sorted(batch.ids) == sorted(ids)
        assert [signal.seq for signal in batch if signal.session == one.id] == [1, 2, 3]
        assert not any(signal.redelivered for signal in batch)
        assert consumer.claim().signals == []
    assert (consumer.pending(), len(consumer.claim())) == (0, 0)


def test_claim_takes_at_most_the_limit_and_says_what_is_left(desk: Desk) -> None:
    consumer = desk.consumer()
    ids = desk.session().tell_many(5)
    first = consumer.claim(limit=2)
    assert (first.ids, first.remaining) == (ids[:2], 3)
    second = consumer.claim(limit=9)
    assert (second.ids, second.remaining) == (ids[2:], 0)
    with pytest.raises(BadArgument):
        consumer.claim(limit=0)


def test_looking_changes_nothing(desk: Desk) -> None:
    consumer = desk.consumer()
    ids = desk.session().tell_many(3)
    for _ in range(3):
        pending = consumer.pending()
        assert (pending, pending.oldest, pending.next_due) == (3, ids[0], None)
        assert pending.oldest_at is not None
        assert [signal.id for signal in consumer.peek(2)] == ids[:2]
    assert consumer.claim().ids == ids


def failing_turn(consumer: Consumer) -> list[str]:
    ids: list[str] = []
    try:
        with consumer.claim() as batch:
            ids += batch.ids
            raise ZeroDivisionError
    except ZeroDivisionError:
        return ids


@pytest.mark.covers("signals:12")
def test_exception_gives_back_and_a_clean_end_settles(desk: Desk) -> None:
    clock = Clock()
    consumer = desk.consumer_at(clock)
    ids = desk.session().tell_many(2)
    for wait in (1, 5, 30, 60, 60):
        assert failing_turn(consumer) == ids
        pending = consumer.pending()
        assert pending == 0
        assert pending.next_due == pytest.approx(clock.mono_ns() / 1e9 + wait, abs=1e-3)
        clock.passes(wait - 0.001)
        assert not consumer.claim()
        clock.passes(0.001)
    with consumer.claim() as batch:
        assert [(signal.redelivered, signal.deliveries) for signal in batch] == [(True, 6)] * 2
    assert (consumer.pending(), consumer.pending().next_due, consumer.claim().ids) == (0, None, [])


@pytest.mark.covers("signals:12")
def test_twenty_plain_releases_do_not_park(desk: Desk) -> None:
    clock = Clock()
    consumer = desk.consumer_at(clock)
    id = desk.session().tell()
    for _ in range(20):
        batch = consumer.claim()
        assert batch.ids == [id]
        batch.release("no time")
        clock.passes(60)
    assert consumer.parked() == []
    assert consumer.claim().ids == [id]


def test_poison_comes_alone_from_the_fifth_and_is_parked_after_the_eighth(desk: Desk) -> None:
    clock = Clock()
    consumer = desk.consumer_at(clock)
    bad, *good = desk.session().tell_many(3)
    sizes = []
    for delivery in range(1, 9):
        batch = consumer.claim()
        sizes.append(len(batch))
        batch.release("it broke me", poison=True, ids=[bad])
        assert batch.parked == ([bad] if delivery == 8 else [])
        batch.release("not its fault")
        clock.passes(60)
    assert sizes == [3, 3, 3, 3, 1, 1, 1, 1]
    assert [(signal.id, why) for signal, why in consumer.parked()] == [(bad, "it broke me")]
    assert consumer.claim().ids == good
    assert consumer.ack(bad) == 1
    assert consumer.parked() == []


def test_settle_is_idempotent_and_of_single_ids(desk: Desk) -> None:
    consumer = desk.consumer()
    ids = desk.session().tell_many(4)
    batch = consumer.claim()
    assert (batch.settle(ids[:2]), batch.settle(ids[:2])) == (2, 0)
    batch.release("the rest later")
    assert batch.settle() == 0
    assert desk.consumer_at(later(60)).claim().ids == ids[2:]


def later(seconds: float) -> Clock:
    clock = Clock()
    clock.passes(seconds)
    return clock


def test_dropped_batch_goes_back(desk: Desk) -> None:
    clock = Clock()
    consumer = desk.consumer_at(clock)
    id = desk.session().tell()
    consumer.claim()
    gc.collect()
    clock.passes(1)
    batch = consumer.claim()
    assert (batch.ids, batch.signals[0].deliveries) == ([id], 2)


def test_batch_that_is_collected_in_the_midst_of_a_question_goes_back_with_the_next_call(desk: Desk) -> None:
    consumer = desk.consumer()
    desk.session().tell()
    batch = consumer.claim()
    desk.index.database.ask(lambda db: batch._async.abandon("garbage"))
    assert desk.rows("SELECT count(*) FROM pending WHERE holder IS NOT NULL") == [(1,)]
    assert consumer.pending().next_due is not None
    assert desk.rows("SELECT count(*) FROM pending WHERE holder IS NOT NULL") == [(0,)]


def test_batch_that_is_collected_after_its_host_was_closed_goes_back_and_leaves_nothing_open(desk: Desk) -> None:
    """It may be garbage that is collected late. On faulty code the index was opened again and stayed open."""
    consumer = desk.consumer()
    id = desk.session().tell()
    batch = consumer.claim()
    desk.index.close()
    batch._async.abandon("garbage")
    assert not desk.index.database.is_open
    assert desk.consumer_at(later(1)).claim().ids == [id]


def test_claim_that_fails_on_the_way_goes_back(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = desk.consumer()
    id = desk.session().tell()

    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr("holdfast.signals.consumer.load", broken)
        with pytest.raises(OSError, match="Input/output"):
            consumer.claim()
    gc.collect()
    assert desk.consumer_at(later(1)).claim().ids == [id]


def test_lease_ends_for_a_silent_holder_and_is_prolonged_by_any_call(desk: Desk) -> None:
    clock = Clock()
    consumer, other = desk.consumer_at(clock), desk.consumer_at(clock, here=stranger())
    id = desk.session().tell()
    batch = consumer.claim()
    for _ in range(3):
        clock.passes(800)
        assert other.pending() == 0
        consumer.peek()
    clock.passes(899)
    waiting = other.pending()
    assert waiting == 0
    assert waiting.next_due == pytest.approx(clock.mono_ns() / 1e9 + 1, abs=0.01)
    clock.passes(1)
    assert other.pending() == 1
    stolen = other.claim()
    assert (stolen.ids, stolen.signals[0].redelivered) == ([id], True)
    # The first one was only slow: what it did, it did.
    assert batch.settle() == 1
    assert stolen.settle() == 0


def stranger() -> Holder:
    """Another process that lives, as holder: the one that started us."""
    here = processes.own_identity()
    return Holder(here["boot"], here["pidns"], here["timens"], os.getppid(), processes.start_time(os.getppid()))


def test_reboot_frees_what_was_held_and_ends_every_wait(desk: Desk) -> None:
    here = stranger()
    before = Holder("another boot", here.pidns, here.timens, here.pid, here.start)
    consumer = desk.consumer_at(Clock(), here=before)
    held, given_back = desk.session().tell_many(2)
    batch = consumer.claim()
    batch.release("too early", ids=[given_back])
    after = desk.consumer()
    assert after.pending() == 2
    found = after.claim()
    assert found.ids == [held, given_back]
    assert [signal.deliveries for signal in found] == [2, 2]
    batch._async.open.clear()


def test_peek_shows_what_the_dead_and_the_silent_held_as_pending_counts_it(desk: Desk) -> None:
    here, clock = stranger(), Clock()
    dead = Holder(here.boot, here.pidns, here.timens, 2**22 + 1, 7)
    leased, held, free = desk.session().tell_many(3)
    batches = [desk.consumer_at(clock, here=each).claim(limit=1) for each in (here, dead)]
    other = desk.consumer_at(clock)
    for ids in ([held, free], [leased, held, free]):
        pending = other.pending()
        assert (pending, pending.oldest) == (len(ids), ids[0])
        assert [signal.id for signal in other.peek()] == ids
        assert [signal.id for signal in other.peek(1)] == ids[:1]
        assert [signal.deliveries for signal in other.peek()] == [1 if id == free else 2 for id in ids]
        clock.passes(901)
    assert other.claim().ids == [leased, held, free]
    for batch in batches:
        batch._async.open.clear()


@pytest.mark.parametrize("style", TOOLSETS)
def test_what_was_parked_is_named_in_one_message_and_only_in_one(desk: Desk, style: str) -> None:
    here, clock = stranger(), Clock()
    dead = Holder(here.boot, here.pidns, here.timens, 2**22 + 1, 7)
    id = desk.session().tell()
    for _ in range(8):
        batch = desk.consumer_at(clock, here=dead).claim()
        batch._async.open.clear()
    consumer = desk.consumer_at(clock)
    notice = consumer.drain(style)
    assert (notice.ids, notice.parked, bool(notice)) == ([], [id], True)
    assert f"{id}; see hold signals --parked" in notice.text
    bad = desk.session().tell()
    for _ in range(8):
        consumer.claim().release("it broke me", poison=True)
        clock.passes(60)
    news = desk.session().tell()
    with consumer.drain(style) as notice:
        assert notice.ids == [news]
        assert f"{bad}; see hold signals --parked" in notice.text
        assert id not in notice.text
    assert consumer.drain(style).text == ""


# Kept where the interpreter comes to them last, when it has no modules left to import from.
LEFT = {
    "batch": "builtins.kept = consumer.claim()",
    "loop": "loop = iter(consumer); builtins.kept = loop, next(loop)",
}


@pytest.mark.parametrize("left", LEFT)
def test_claim_left_at_the_end_of_a_program_says_nothing_and_comes_again(desk: Desk, left: str) -> None:
    id = desk.session().tell()
    program = f"import builtins, holdfast; consumer = holdfast.open().signals('conv-1'); {LEFT[left]}"
    host = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert host.stderr == ""
    [again] = desk.consumer_at(later(1)).claim()
    assert (again.id, again.deliveries) == (id, 2)


def test_holder_in_another_namespace_has_its_lease_and_nothing_else(desk: Desk) -> None:
    here = stranger()
    clock = Clock()
    elsewhere = desk.consumer_at(clock, here=Holder(here.boot, here.pidns + 1, here.timens, 2**22 + 1, 7))
    id = desk.session().tell()
    batch = elsewhere.claim()
    other = desk.consumer_at(clock)
    assert other.pending() == 0
    clock.passes(901)
    assert other.claim().ids == [id]
    batch._async.open.clear()


@pytest.mark.covers("signals:13")
def test_two_consumers_of_one_owner_each_get_everything(desk: Desk) -> None:
    agent, page = desk.consumer(), desk.consumer("page", "conv-1")
    ids = desk.session().tell_many(3)
    with agent.claim() as batch:
        assert batch.ids == ids
    assert (agent.pending(), page.pending()) == (0, 3)
    assert page.claim().ids == ids


# Takes what it can get of the consumer that it shares, the first batch while another host holds one too.
_SHARER = """
import holdfast
with holdfast.open() as hf:
    consumer = hf.signals("conv-1")
    batch = consumer.claim(limit=37)
    print(*batch.ids, flush=True)
    input()
    batch.settle()
    while batch := consumer.claim(limit=37):
        print(*batch.ids, flush=True)
        batch.settle()
    print("none", flush=True)
"""


@pytest.mark.covers("signals:13")
def test_processes_that_share_a_consumer_get_each_signal_once_between_them(desk: Desk, world: World) -> None:
    sessions = [desk.session() for _ in range(10)]
    ids = {id for session in sessions for id in session.tell_many(100)}
    hosts = [world.host(_SHARER) for _ in range(2)]
    taken = [host.line().split() for host in hosts]
    assert [len(each) for each in taken] == [37, 37]
    for host in hosts:
        host.send("go on\n")
    for host, got in zip(hosts, taken, strict=True):
        while (line := host.line()) != "none":
            got += line.split()
        assert host.wait() == 0
    assert len(taken[0]) + len(taken[1]) == 1000
    assert {*taken[0], *taken[1]} == ids


@pytest.mark.covers("LOG-09")
def test_hosts_that_share_a_consumer_share_its_signals(desk: Desk) -> None:
    desk.consumer()
    sessions = [desk.session() for _ in range(10)]
    ids = {id for session in sessions for id in session.tell_many(100)}
    taken: list[list[str]] = [[], []]
    live: set[str] = set()
    twice: list[str] = []
    lock = threading.Lock()

    def host(number: int) -> None:
        consumer = desk_of_its_own.consumer() if number else desk.consumer()
        while batch := consumer.claim(limit=37):
            with lock:
                twice.extend(live.intersection(batch.ids))
                live.update(batch.ids)
            taken[number] += batch.ids
            batch.settle()
            with lock:
                live.difference_update(batch.ids)

    desk_of_its_own = Desk(desk.home)
    hosts = [threading.Thread(target=host, args=(number,)) for number in range(2)]
    for each in hosts:
        each.start()
    for each in hosts:
        each.join()
    desk_of_its_own.close()
    assert twice == []
    assert len(taken[0]) + len(taken[1]) == 1000
    assert {*taken[0], *taken[1]} == ids
    assert desk.consumer().pending() == 0


@pytest.mark.covers("signals:19")
def test_owners_never_get_each_others_signals(desk: Desk) -> None:
    a, b = desk.consumer("a", "conv-a"), desk.consumer("b", ["conv-b"])
    everybody = desk.consumer("all", "*")
    for_a, for_b, nobodys = (desk.session(owner).tell() for owner in ("conv-a", "conv-b", None))
    assert a.claim().ids == [for_a]
    assert b.claim().ids == [for_b]
    assert set(everybody.claim().ids) == {for_a, for_b, nobodys}
    # Byte by byte: neither a prefix nor another case is the same owner.
    desk.session("conv").tell()
    desk.session("Conv-a").tell()
    assert (a.pending(), b.pending()) == (0, 0)


@pytest.mark.covers("signals:19")
def test_raising_callback_settles_and_shows_nothing(desk: Desk) -> None:
    consumer = desk.consumer()
    ids = desk.session().tell_many(3)

    def broken(_: object) -> bool:
        raise RuntimeError("the transcript is not readable")

    with pytest.raises(RuntimeError):
        consumer.claim(seen=broken)
    with pytest.raises(RuntimeError):
        consumer.claim(owns=broken)
    assert consumer.pending() == 3
    batch = consumer.claim()
    assert batch.ids == ids
    assert [signal.deliveries for signal in batch] == [1, 1, 1]


@pytest.mark.covers("signals:11")
def test_ids_that_were_seen_are_settled_and_not_shown(desk: Desk) -> None:
    consumer = desk.consumer()
    ids = desk.session().tell_many(5)
    stored = set(ids[:3])
    batch = consumer.claim(limit=2, seen=stored.__contains__)
    assert batch.ids == ids[3:4]
    batch.release("no matter")
    assert desk.rows("SELECT count(*) FROM pending") == [(2,)]
    assert desk.consumer_at(later(60)).claim(seen=set(ids).__contains__).ids == []
    assert desk.rows("SELECT count(*) FROM pending") == [(0,)]


def test_what_the_host_does_not_own_stays_for_others(desk: Desk) -> None:
    consumer = desk.consumer()
    mine, theirs = desk.session(), desk.session()
    ids, others = mine.tell_many(2), theirs.tell_many(2)
    batch = consumer.claim(owns=lambda signal: signal.session == mine.id)
    assert batch.ids == ids
    batch.settle()
    assert consumer.pending() == 0
    again = desk.consumer_at(later(60)).claim()
    assert (again.ids, again.signals[0].redelivered) == (others, False)


@pytest.mark.covers("signals:19")
def test_late_consumer_of_an_owner_gets_what_is_retained(desk: Desk) -> None:
    session = desk.session()
    ids = [*session.tell_many(2), session.end()]
    desk.over(session)
    desk.look()
    assert desk.consumer().claim().ids == ids
    assert desk.consumer("all", "*").pending() == 0
    assert desk.consumer("all-of-it", "*", start="retained").pending() == 3
    assert desk.consumer("behind", "conv-1", start=ids[0]).claim().ids == ids[1:]
    assert desk.consumer("new", "conv-1", start="now").pending() == 0
    with pytest.raises(BadArgument, match="start"):
        desk.consumer("wrong", "conv-1", start="b00000000.9")


def test_now_is_what_comes_after_it(desk: Desk) -> None:
    session = desk.session()
    session.tell()
    consumer = desk.consumer("all", "*")
    id = session.tell()
    assert consumer.claim().ids == [id]


def test_filter_by_variant_and_kind(desk: Desk) -> None:
    ends = desk.consumer("ends", "*", variants=["lifecycle"])
    monitors = desk.consumer("monitors", "*", kinds=["monitor"])
    shell, monitor = desk.session(), desk.session(kind="monitor")
    shell.tell()
    monitor.tell("event")
    end = shell.end()
    assert ends.claim().ids == [end]
    assert monitors.claim().ids == [f"{monitor.id}.1"]


def test_same_name_with_another_filter_is_refused_unless_replaced(desk: Desk) -> None:
    consumer = desk.consumer("inbox", "conv-1")
    one, two = desk.session("conv-1"), desk.session("conv-2")
    first, other = one.tell_many(2), two.tell_many(2)
    consumer.ack(first[0])
    with pytest.raises(ConsumerMismatch):
        desk.consumer("inbox", ["conv-1", "conv-2"])
    wider = desk.consumer("inbox", ["conv-1", "conv-2"], replace=True)
    assert sorted(wider.claim().ids) == sorted([first[1], *other])
    with pytest.raises(ConsumerMismatch):
        consumer.claim()
    narrow = desk.consumer("inbox", "conv-2", replace=True, start="now")
    assert narrow.ack(upto=other[1]) == 2
    assert desk.rows("SELECT count(*) FROM pending") == [(0,)]


@pytest.mark.parametrize("name", ["", "Caps", "-x", "a b", "x" * 65, "ü"])
def test_name_that_does_not_fit_is_refused(desk: Desk, name: str) -> None:
    with pytest.raises(BadArgument, match="consumer"):
        desk.consumer(name)


def test_owner_that_does_not_fit_into_a_name_is_hashed(desk: Desk) -> None:
    assert default_name("agent-7") == "owner:agent-7"
    long = default_name("Conversation " + "x" * 200)
    assert long.startswith("owner:")
    assert len(long) == 38
    assert long != default_name("Conversation " + "x" * 201)
    owner = "Büro 7"
    id = desk.session(owner).tell()
    assert Consumer(desk.consumers.of_owner(owner)).claim().ids == [id]


def test_note_joins_the_open_batch_and_its_fate(desk: Desk) -> None:
    clock = Clock()
    consumer = desk.consumer_at(clock)
    first, second = desk.session(), desk.session()
    shown = first.tell()
    batch = consumer.claim()
    waited_for = second.end(quietly=True)
    consumer.note(waited_for)
    assert (batch.ids, consumer.pending()) == ([shown], 0)
    batch.release("the turn failed")
    clock.passes(1)
    again = consumer.claim()
    assert set(again.ids) == {shown, waited_for}
    again.settle()
    third = first.tell()
    batch = consumer.claim()
    noted = second.tell()
    consumer.note(noted)
    assert batch.ids == [third]
    batch.settle()
    clock.passes(3600)
    assert consumer.pending() == 0


def test_note_without_an_open_batch_joins_the_next_claim(desk: Desk) -> None:
    clock = Clock()
    consumer = desk.consumer_at(clock)
    session = desk.session()
    noted = session.tell()
    consumer.note(noted)
    assert not consumer.claim()
    gc.collect()
    clock.passes(3600)
    assert consumer.pending() == 0
    shown = session.tell()
    with consumer.claim() as batch:
        assert batch.ids == [shown]
    assert desk.rows("SELECT count(*) FROM pending") == [(0,)]
    returned = consumer.note(session.tell())
    returned.release("the turn failed")
    assert consumer.pending().next_due is not None


def test_note_of_what_is_settled_or_anothers_changes_nothing(desk: Desk) -> None:
    consumer = desk.consumer()
    theirs = desk.session("conv-2").tell()
    keeper = desk.consumer("two", "conv-2")
    consumer.note(theirs).settle()
    assert keeper.pending() == 1
    for wrong in ("b7k2", "web", "b7k2m9qa1"):
        with pytest.raises(BadArgument):
            consumer.note(wrong)


def test_ack_settles_exactly_what_is_named(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session()
    ids = session.tell_many(5)
    assert consumer.ack(ids[2]) == 1
    assert consumer.ack(ids[2]) == 0
    assert consumer.ack(upto=ids[3]) == 3
    assert consumer.claim().ids == ids[4:]
    with pytest.raises(BadArgument):
        consumer.ack(session.id)
    with pytest.raises(BadArgument):
        consumer.ack()
    with pytest.raises(BadArgument):
        consumer.ack(upto="b00000000.1")


def test_hand_over_moves_what_is_not_settled_and_all_that_follows(desk: Desk) -> None:
    a, b = desk.consumer("a", "conv-a"), desk.consumer("b", "conv-b")
    session = desk.session("conv-a")
    settled, open = session.tell_many(2)
    a.ack(settled)
    assert a.pending() == 1
    session.hand_over("conv-b")
    after = session.tell()
    assert b.claim().ids == [open, after]
    assert a.pending() == 0
    session.hand_over(None)
    last = session.tell()
    everybody = desk.consumer("all", "*", start="retained")
    assert last in everybody.claim().ids
    assert (a.pending(), b.pending()) == (0, 0)


def test_hand_over_before_anybody_listened_moves_everything(desk: Desk) -> None:
    session = desk.session("conv-a")
    ids = session.tell_many(2)
    desk.look()
    session.hand_over("conv-b")
    assert desk.consumer("b", "conv-b").claim().ids == ids
    assert desk.consumer("a", "conv-a").pending() == 0


def test_drain_is_one_message_and_a_finished_loop_settles_it(desk: Desk) -> None:
    clock = Clock()
    consumer = desk.consumer_at(clock)
    session = desk.session()
    ids = [*session.tell_many(2), session.end()]
    notice = consumer.drain()
    assert session.id in notice.text
    assert (notice.ids, notice.role_hint, notice.batch.ids) == (ids, "environment", ids)
    for signal in notice:
        if signal.seq == 2:
            break
    clock.passes(1)
    assert [signal.id for signal in consumer.drain()] == ids
    clock.passes(3600)
    assert (consumer.pending(), bool(consumer.drain())) == (0, False)


def test_drain_that_cannot_be_rendered_gives_back(desk: Desk) -> None:
    clock = Clock()
    consumer = desk.consumer_at(clock)
    id = desk.session().tell()
    with pytest.raises(BadArgument):
        consumer.drain(style="limerick")
    clock.passes(1)
    assert consumer.claim().ids == [id]


def test_loop_over_a_consumer_settles_each_message_when_the_next_is_asked_for(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session()
    first = session.tell()
    reported = []
    for notice in consumer:
        reported.append(notice.ids)
        if len(reported) == 1:
            second = session.tell()
        else:
            assert desk.rows("SELECT count(*) FROM pending") == [(1,)]
            break
    assert reported == [[first], [second]]
    # Left by a break: the second was not settled.
    assert consumer.pending().next_due is not None


def test_loop_whose_body_raises_gives_its_message_back_at_once(desk: Desk) -> None:
    consumer = desk.consumer()
    id = desk.session().tell()
    try:
        for notice in consumer:
            _ = len(notice.ids) / 0
    except ZeroDivisionError:
        assert notice.ids == [id]
    assert desk.consumer_at(later(1)).claim().ids == [id]


def test_asynchronous_consumer_has_the_same_manners(desk: Desk) -> None:
    consumers = Consumers(Asynchronous(), desk.index, desk.config, desk.runtime)
    consumer = consumers.of_owner("conv-1")
    session = desk.session()
    ids = session.tell_many(3)

    async def use() -> None:
        assert await consumer.pending() == 3
        assert [signal.id for signal in await consumer.peek(1)] == ids[:1]
        assert await consumer.ack(ids[0]) == 1
        async with await consumer.claim(limit=1) as batch:
            assert batch.ids == ids[1:2]
            noted = session.tell()
            await consumer.note(noted)
        notice = await consumer.drain()
        assert [signal.id async for signal in notice] == ids[2:]
        assert await consumer.pending() == 0
        assert await consumer.parked() == []
        more = session.tell()
        reported = []
        try:
            async for message in consumer:
                reported.append(message.ids)
                _ = len(message.ids) / 0
        except ZeroDivisionError:
            pass
        assert reported == [[more]]
        assert (await consumer.pending()).next_due is not None

    asyncio.run(use())


def test_fork_does_not_give_back_what_its_parent_holds(desk: Desk) -> None:
    consumer = desk.consumer()
    desk.session().tell()
    batch = consumer.claim()
    child = os.fork()
    if child == 0:
        batch._async.__del__()
        os._exit(0)
    os.waitpid(child, 0)
    assert desk.rows("SELECT count(*) FROM pending WHERE holder IS NOT NULL") == [(1,)]
    assert batch.settle() == 1


def test_consumer_that_is_not_used_is_dropped_and_remembered(desk: Desk) -> None:
    consumer = desk.consumer()
    desk.consumer("fresh", "*")
    desk.session().tell()
    assert consumer.pending() == 1
    assert desk.consumers.drop_unused() == []
    # The wall clock alone proves nothing, as long as the machine runs.
    long_ago = "UPDATE consumers SET {} WHERE name = 'owner:conv-1'"
    desk.index.database.change(lambda db: db.execute(long_ago.format("used_ns = 0")))
    assert desk.consumers.drop_unused() == []
    desk.index.database.change(lambda db: db.execute(long_ago.format("used_boot = 'an earlier one'")))
    assert desk.consumers.drop_unused() == ["owner:conv-1"]
    assert [(each["name"], each["waiting"]) for each in desk.consumers.dropped()] == [("owner:conv-1", 1)]
    assert [each["name"] for each in desk.consumers.known()] == ["fresh"]
    # A host that still uses it makes it again, and misses nothing.
    assert len(consumer.claim()) == 1


def test_listeners_of_an_owner_are_counted(desk: Desk) -> None:
    assert queues.listening(desk.home, "conv-1", "local_bash") == 0
    desk.consumer()
    desk.consumer("matches", "conv-1", variants=["watch"])
    desk.consumer("all", "*")
    assert queues.listening(desk.home, "conv-1", "local_bash") == 2
    assert queues.listening(desk.home, None, "local_bash") == 1


def test_writer_of_the_desk_is_taken_for_a_runner(desk: Desk) -> None:
    session: Writer = desk.session()
    session.tell()
    desk.look()
    assert session.id in desk.catchup.known


def test_a_signal_is_open_until_it_is_settled_by_any_holder(desk: Desk) -> None:
    consumer = desk.consumer()
    one, two = desk.session().tell_many(2)
    assert consumer.is_open(one)
    assert consumer.is_open(two)
    batch = consumer.claim(limit=1)
    assert consumer.is_open(one)
    batch.settle()
    consumer.ack(two)
    assert not consumer.is_open(one)
    assert not consumer.is_open(two)
    assert not consumer.is_open("b00000099.1")
