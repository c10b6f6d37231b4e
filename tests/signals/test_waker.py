"""Waiting for signals: on one descriptor, without a thread, a tick or a lost wake."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterable

import pytest

from holdfast.core import processes as tree
from holdfast.core import wake
from holdfast.core.loop import Loop
from holdfast.daemons.wakes import Feed
from holdfast.errors import Busy, UnsafeDirectory
from holdfast.sessions.driver import Asynchronous, Blocking, drive
from holdfast.signals.consumer import Consumer
from holdfast.signals.consumers import Consumers
from holdfast.signals.waker import Waker, sweep, wake_directory
from support import processes
from support.own_time import OwnTime
from support.points import Points
from support.scale import scaled
from support.waiting import BOUND_S, is_readable, until, wait_readable
from support.world import World
from support.written import Desk

# Claims what there is and holds it until it is killed.
HOLDER = """
import sys, holdfast
consumer = holdfast.open().signals("conv-1")
batch = consumer.claim()
print(*batch.ids)
sys.stdin.read()
"""

WAITER = """
import sys, holdfast
consumer = holdfast.open().signals("conv-1")
with consumer.waker() as waker:
    consumer.claim()
    print("waiting", flush=True)
    waker.wait()
print("woken")
"""


def quiet(waker: Waker, consumer: Consumer) -> None:
    """Past the look that every waker begins with."""
    assert is_readable(waker.fileno(), 0)
    consumer.claim()
    assert not is_readable(waker.fileno(), 0)


def test_descriptor_is_readable_from_a_signal_until_it_is_cleared(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session()
    with consumer.waker() as waker:
        quiet(waker, consumer)
        session.tell()
        for _ in range(3):
            assert is_readable(waker.fileno(), 0)
        waker.clear()
        assert not is_readable(waker.fileno(), 0)
        assert consumer.pending() == 1


def test_only_the_owners_own_signals_wake_and_everybodys_wake_all(desk: Desk) -> None:
    consumer, everybody = desk.consumer(), desk.consumer("all", "*")
    with consumer.waker() as own, everybody.waker() as all:
        quiet(own, consumer)
        quiet(all, everybody)
        desk.session("conv-2").tell()
        desk.session(None).tell()
        assert not is_readable(own.fileno(), 0)
        assert is_readable(all.fileno(), 0)


def test_consumer_of_several_owners_is_woken_for_each(desk: Desk) -> None:
    consumer = desk.consumer("two", ["conv-1", "conv-2"])
    with consumer.waker() as waker:
        for owner in ("conv-1", "conv-2"):
            consumer.claim()
            desk.session(owner).tell()
            assert is_readable(waker.fileno(), 0)
        # So many that it is woken for everybody.
        crowd = desk.consumer("crowd", [f"conv-{number}" for number in range(40)])
    with crowd.waker() as waker:
        crowd.claim()
        desk.session("conv-39").tell()
        assert is_readable(waker.fileno(), 0)


def test_hint_names_the_session_that_is_looked_at(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session()
    with consumer.waker() as waker:
        quiet(waker, consumer)
        wake.hosts(desk.runtime, "conv-1", session.id, 1)
        waker.clear()
        assert consumer._async.hints == {session.id}


@pytest.mark.covers("signals:15")
def test_descriptor_works_in_select_in_a_thread_and_in_asyncio(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session()
    with consumer.waker() as waker:
        quiet(waker, consumer)
        seen: list[list[Waker]] = []
        thread = threading.Thread(target=lambda: seen.append(select.select([waker], [], [], BOUND_S)[0]))
        thread.start()
        session.tell()
        thread.join()
        assert seen == [[waker]]
        consumer.claim().settle()

        async def wait() -> None:
            arrived = asyncio.Event()
            loop = asyncio.get_running_loop()
            loop.add_reader(waker.fileno(), arrived.set)
            session.tell()
            async with asyncio.timeout(BOUND_S):
                await arrived.wait()
            loop.remove_reader(waker.fileno())

        asyncio.run(wait())


def test_wait_and_await_return_when_something_is_due(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session()
    with consumer.waker() as waker:
        assert not waker.wait(0.01)
        session.tell(quietly=True)
        assert waker.wait(BOUND_S)
        consumer.claim().settle()
        timer = threading.Timer(0.05, session.tell)
        timer.start()
        assert waker.wait(BOUND_S)
        timer.join()

    consumers = Consumers(Asynchronous(), desk.index, desk.config, desk.runtime)
    other = consumers.of_owner("conv-1")

    async def wait() -> None:
        await (await other.claim()).settle()
        with other.waker() as waker:
            asyncio.get_running_loop().call_later(0.05, session.tell)
            async with asyncio.timeout(BOUND_S):
                assert await waker
        assert await other.pending() == 1

    before = threading.active_count()
    asyncio.run(wait())
    assert threading.active_count() <= before


def test_wait_returns_when_what_was_given_back_is_due_again(desk: Desk) -> None:
    consumer = desk.consumer()
    desk.session().tell()
    with consumer.waker() as waker:
        began = time.monotonic()
        consumer.claim().release("not now")
        assert waker.wait(BOUND_S)
        assert time.monotonic() - began > 0.8


class Bursting(Blocking):
    """What is waited for comes when it is; while a burst is joined, the rest of it."""

    def __init__(self, first: Callable[[], object], burst: Callable[[], object]) -> None:
        self._first = first
        self._burst = burst
        self.waited: list[float | None] = []

    async def ready(self, readers: Iterable[int], writers: Iterable[int], timeout: float | None) -> set[int]:
        if list(readers):
            self._first()
            return await super().ready(readers, writers, timeout)
        self.waited.append(timeout)
        self._burst()
        return set()


def test_burst_is_joined_before_the_wait_returns(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session()
    with consumer.waker() as waker:
        quiet(waker, consumer)
        driver = Bursting(session.tell, lambda: session.tell_many(19))
        assert drive(waker.wait_due(driver, None))
        assert driver.waited == [0.2]
        assert len(consumer.claim()) == 20


@pytest.mark.covers("signals:15", "found:33")
@pytest.mark.timeout(120)
def test_waiting_host_does_nothing(desk: Desk, world: World) -> None:
    session = desk.session()
    session.tell("lifecycle", routed=False, phase="started")
    waiter = world.host(WAITER)
    assert waiter.line() == "waiting"
    until(lambda: _rests(waiter.pid))
    before = _switches(waiter.pid)
    other = desk.consumer("other", "conv-2")
    for _ in range(300):
        other.pending()
    assert not is_readable(waiter._out, scaled(0.5, 60.0))
    assert _switches(waiter.pid) == before, "it made a system call"
    session.tell()
    assert waiter.line() == "woken"
    assert waiter.wait() == 0


def _rests(pid: int) -> bool:
    """Asleep, and nothing that it does is so quick that twenty looks would all miss it."""
    first = _switches(pid)
    asleep = processes.look(pid)
    return asleep is not None and asleep.state == "S" and all(_switches(pid) == first for _ in range(20))


def _switches(pid: int) -> list[str]:
    with open(f"/proc/{pid}/status") as file:
        return [line for line in file if "ctxt_switches" in line]


def fill(flood: socket.socket, path: str) -> None:
    try:
        while True:
            flood.sendto(b"b00000000 1", path)
    except BlockingIOError:
        return


@pytest.mark.covers("signals:15", "LOG-09")
@pytest.mark.parametrize("how", ["full", "deleted", "refused"])
def test_lost_wake_loses_no_signal(desk: Desk, how: str) -> None:
    consumer = desk.consumer()
    session = desk.session()
    waker = consumer.waker()
    quiet(waker, consumer)
    (own,) = waker._sockets
    path = own.path
    if how == "full":
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as flood:
            flood.setblocking(False)
            fill(flood, path)
    elif how == "deleted":
        os.unlink(path)
    else:
        waker._sockets.clear()
        own.leave_to_parent()
        assert os.path.exists(path)
    id = session.tell()
    assert consumer.claim().ids == [id]
    waker.close()
    if how == "refused":
        assert sweep(os.path.dirname(path)) == 1


def test_closed_waker_removes_only_its_own_socket(desk: Desk) -> None:
    consumer = desk.consumer()
    first, second = consumer.waker(), consumer.waker()
    directory = os.path.join(desk.runtime, wake.DIRECTORY)
    assert len(os.listdir(directory)) == 2
    assert {stat.S_IMODE(os.stat(os.path.join(directory, name)).st_mode) for name in os.listdir(directory)} == {0o600}
    first.close()
    first.close()
    assert len(os.listdir(directory)) == 1
    path = second._sockets[0].path
    os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(path)
        second.close()
        assert os.listdir(directory) == [os.path.basename(path)]
        os.unlink(path)


def test_forked_child_leaves_its_parents_waker_alone(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session()
    with consumer.waker() as waker:
        quiet(waker, consumer)
        child = os.fork()
        if child == 0:
            code = 0 if waker.closed and not consumer._async.wakers() else 1
            waker.close()
            os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        session.tell()
        assert is_readable(waker.fileno(), 0)


def test_planted_directory_is_refused(desk: Desk, world: World) -> None:
    directory = os.path.join(desk.runtime, wake.DIRECTORY)
    os.mkdir(directory, 0o777)
    os.chmod(directory, 0o777)
    with pytest.raises(UnsafeDirectory):
        _ = desk.consumer().waker()
    os.rmdir(directory)
    os.symlink(world.cwd, directory)
    with pytest.raises(UnsafeDirectory):
        _ = desk.consumer().waker()
    os.unlink(directory)


def test_too_many_waiters_of_one_owner_are_refused_and_the_dead_make_room(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = desk.consumer()
    monkeypatch.setattr("holdfast.signals.waker.WAKE_SOCKETS_MAX", 3)
    wakers = [consumer.waker() for _ in range(3)]
    with pytest.raises(Busy):
        _ = consumer.waker()
    (dead,) = wakers[0]._sockets
    path = dead.path
    dead.leave_to_parent()
    with consumer.waker():
        assert not os.path.exists(path)
    for each in wakers[1:]:
        each.close()
    wakers[0]._sockets.clear()
    wakers[0].close()


def bind_dead(directory: str, name: str, count: int) -> None:
    """Sockets of hosts that are gone."""
    for number in range(count):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as left_behind:
            left_behind.bind(os.path.join(directory, f"{name}-{number:012x}"))


def test_dead_sockets_of_one_name_do_not_keep_another_from_being_woken(desk: Desk) -> None:
    """On faulty code the first so many of all names together were called, dead or alive."""
    consumer = desk.consumer()
    wakers = [consumer.waker() for _ in range(10)]
    directory = wake_directory(desk.runtime)
    bind_dead(directory, wake.VIEW, 140)
    session = desk.session()
    for each in wakers:
        each.clear()
    consumer.claim()
    session.tell()
    assert [is_readable(each.fileno(), 0) for each in wakers] == [True] * 10
    for each in wakers:
        each.close()
    assert sweep(directory) == 140


def test_a_host_that_observes_removes_dead_consumers(desk: Desk) -> None:
    loop = Loop()
    directory = wake_directory(desk.runtime)
    bind_dead(directory, wake.VIEW, 64)
    feed = Feed(loop, desk.home, desk.runtime, lambda _signal: None)
    assert [name.partition("-")[0] for name in os.listdir(directory)] == [wake.VIEW]
    feed.close()
    loop.close()


@pytest.mark.covers("signals:10", "LOG-09")
def test_holder_that_dies_wakes_the_waiter_for_its_name(desk: Desk, world: World) -> None:
    consumer = desk.consumer()
    ids = desk.session().tell_many(3)
    holder = world.host(HOLDER)
    assert holder.line().split() == ids
    with consumer.waker() as waker:
        assert not waker.wait(0.01)
        assert consumer.pending() == 0
        holder.kill()
        passed = OwnTime(os.getpid())
        wait_readable(waker.fileno())
        assert passed.stop().seconds() < 1
        batch = consumer.claim()
    assert batch.ids == ids
    assert all(signal.redelivered and signal.deliveries == 2 for signal in batch)


def die_holding(consumer: Consumer) -> list[str]:
    """What a process claims that dies of it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        batch = consumer.claim()
        os.write(writer, " ".join(batch.ids).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as reported:
        return reported.read().split()


@pytest.mark.covers("signals:12")
def test_eight_deaths_of_the_holder_park_and_it_comes_alone_from_the_fifth(desk: Desk) -> None:
    consumer = desk.consumer()
    ids = desk.session().tell_many(2)
    given = [die_holding(consumer) for _ in range(8)]
    assert given == [ids] * 4 + [ids[:1], ids[:1], ids[:1], ids[:1]]
    batch = consumer.claim()
    assert (batch.ids, batch.parked) == (ids[1:], ids[:1])
    assert [signal.id for signal, _ in consumer.parked()] == ids[:1]
    batch.release("later")
    assert consumer.claim().parked == []


def test_without_pidfds_the_next_claim_finds_the_dead(desk: Desk, world: World, points: Points) -> None:
    points.off("pidfd")
    consumer = desk.consumer()
    ids = desk.session().tell_many(1)
    holder = world.host(HOLDER)
    assert holder.line().split() == ids
    with consumer.waker() as waker:
        consumer.claim()
        assert waker._pidfds == {}
        holder.kill()
        assert consumer.claim().ids == ids


def test_runner_that_dies_wakes_once(desk: Desk, world: World) -> None:
    program = world.program(world.probe("cat"))
    assert program.line() == "ready"
    identity = {"pid": program.pid, "start": tree.start_time(program.pid)}
    consumer = desk.consumer()
    session = desk.session(runner=identity)
    session.tell("lifecycle", routed=False, phase="started")
    with consumer.waker() as waker:
        quiet(waker, consumer)
        assert list(waker._pidfds) == [(identity["pid"], identity["start"])]
        program.kill()
        wait_readable(waker.fileno())
        consumer.claim()
        assert not is_readable(waker.fileno(), 0)
        consumer.claim()
        assert not is_readable(waker.fileno(), 0)


def test_no_more_runners_are_watched_than_allowed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.signals.waker.WATCHED_RUNNERS_MAX", 1)
    consumer = desk.consumer()
    for pid in (os.getpid(), os.getppid()):
        session = desk.session(runner={"pid": pid, "start": tree.start_time(pid)})
        session.tell("lifecycle", routed=False, phase="started")
    with consumer.waker() as waker:
        consumer.claim()
        assert len(waker._pidfds) == 1
