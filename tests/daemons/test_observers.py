"""Observers: all are called, in order, and never on the thread that writes the records."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast.daemons.observers import Change, LoopDeliverer, Observers, ThreadDeliverer, op_of, shown
from holdfast.signals.lines import Signal


def test_observers_are_notified_in_the_order_in_which_they_came() -> None:
    calls: list[str] = []
    observers = Observers()
    observers.add(lambda change: calls.append(f"first {change.op}"))
    observers.add(lambda change: calls.append(f"second {change.op}"))
    observers.notify(Change("added", "k12345678", None))
    assert calls == ["first added", "second added"]


def test_an_observer_that_raises_is_logged_and_the_next_is_still_called(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[str] = []
    observers = Observers()

    def fail(_change: Change) -> None:
        raise ValueError("mine")

    observers.add(fail)
    observers.add(lambda change: calls.append(change.op))
    observers.notify(Change("event", "k12345678", None))
    assert calls == ["event"]
    assert "event of k12345678" in caplog.text
    assert "ValueError: mine" in caplog.text


def test_an_observer_added_during_a_notification_gets_the_next_one() -> None:
    calls: list[str] = []
    observers = Observers()
    observers.add(lambda change: observers.add(lambda later: calls.append(later.op)) if change.op == "added" else None)
    observers.notify(Change("added", "k12345678", None))
    assert calls == []
    observers.notify(Change("running", "k12345678", None))
    assert calls == ["running"]


def test_each_way_out_takes_away_one_even_where_the_same_came_twice() -> None:
    calls: list[str] = []

    def note(change: Change) -> None:
        calls.append(change.op)

    observers = Observers()
    leave = observers.add(note)
    observers.add(note)
    leave()
    leave()
    observers.notify(Change("added", "k12345678", None))
    assert calls == ["added"]
    assert len(observers) == 1


def test_a_blocking_host_reports_on_another_thread_and_everything_before_it_closes() -> None:
    threads: list[int] = []
    deliverer = ThreadDeliverer()
    for _ in range(100):
        deliverer.deliver(lambda: threads.append(threading.get_ident()))
    deliverer.close()
    assert len(threads) == 100
    assert threading.get_ident() not in threads


def test_an_asyncio_host_reports_on_its_loop_and_after_its_end_right_away() -> None:
    calls: list[int] = []

    async def main() -> LoopDeliverer:
        deliverer = LoopDeliverer(asyncio.get_running_loop())
        done = asyncio.Event()

        def note() -> None:
            calls.append(threading.get_ident())
            done.set()

        thread = threading.Thread(target=deliverer.deliver, args=(note,))
        thread.start()
        await done.wait()
        thread.join()
        return deliverer

    deliverer = asyncio.run(main())
    deliverer.deliver(lambda: calls.append(0))
    assert calls == [threading.get_ident(), 0]


@pytest.mark.parametrize(
    "record,op",
    [
        ({"lifecycle": {"phase": "started"}}, "running"),
        ({"lifecycle": {"phase": "restarting"}}, "restarting"),
        ({"lifecycle": {"phase": "ended", "status": "killed"}}, "killed"),
        ({"event": {}}, "event"),
        ({"needs_input": {}}, "needs_input"),
    ],
)
def test_a_record_is_called_by_what_happened(record: dict[str, dict[str, str]], op: str) -> None:
    common = {"id": "k12345678.1", "seq": 1, "session": "k12345678"}
    assert op_of(Signal({**common, **record})) == op


def test_the_snapshot_of_a_signal_is_shown_with_none_for_what_it_had_no_room_for() -> None:
    exit = {"code": None, "signal": None, "cause": "stop", "by": "me", "survivors": 2, "survivors_more": 0}
    shot = shown({"id": "k12345678", "kind": "local_task", "exit": exit, "ends": {"stdout": 7}, "metadata": None})
    assert shot.cursor == "stdout:7"
    assert shot.exit is not None
    assert (shot.exit.survivors, shot.exit.survivors_more) == ([], 2)
    assert shot.description == "k12345678"
    assert shot.cwd is None
    assert shot.metadata == {}
