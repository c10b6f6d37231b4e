"""From signal files to the queue: whatever a crash, a rotation or a second reader leaves, each signal comes once."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.signalfile import SignalFile
from holdfast.errors import IndexBusy
from holdfast.index.queues import Progress
from holdfast.signals.lines import read_on
from holdfast.signals.missing import RunnerGoneFacts, write_home_signal
from support.waiting import BOUND_S, until, wait_readable
from support.world import World
from support.written import Desk


def numbers(desk: Desk, session: str) -> list[int]:
    return [seq for (seq,) in desk.rows(f"SELECT seq FROM signals WHERE session = '{session}' ORDER BY pos")]


def lose_index(desk: Desk) -> None:
    for path in Path(desk.home.path).glob("index.db*"):
        path.unlink(missing_ok=True)


@pytest.mark.covers("signals:7", "LOG-05")
def test_file_cut_at_every_byte_of_its_last_record_gives_all_earlier_ones(desk: Desk) -> None:
    session = desk.session()
    session.tell_many(2)
    whole = (session.path / "signals.jsonl").read_bytes()
    session.tell(text="the last one, with some length to be cut")
    complete = (session.path / "signals.jsonl").read_bytes()
    session.die()
    directory = os.open(session.path, os.O_RDONLY)
    try:
        for cut in range(len(whole), len(complete)):
            (session.path / "signals.jsonl").write_bytes(complete[:cut])
            reading = read_on(desk.home, Progress(session.id), writer_lives=False)
            assert reading is not None
            assert ([each.seq for each in reading.found], reading.bad, reading.whole) == ([1, 2], [], True)
            successor = SignalFile(directory, session.id, "boot", take_over=True)
            successor.write("ready", {"ok": True}, kind=None, owner=None, attempt=1, routed=True, snapshot=None)
            successor.close()
            after = read_on(desk.home, Progress(session.id), writer_lives=False)
            assert after is not None
            # A line that lacked its end alone is whole after all, and counts.
            assert [each.seq for each in after.found] == ([1, 2, 3, 4] if cut == len(complete) - 1 else [1, 2, 3])
            assert len(after.bad) == (len(whole) < cut < len(complete) - 1)
    finally:
        os.close(directory)


def test_line_that_is_still_being_written_is_waited_for(desk: Desk) -> None:
    session = desk.session()
    session.tell()
    path = session.path / "signals.jsonl"
    line = path.read_bytes()
    second = line.replace(b'"seq":1', b'"seq":2').replace(b".1", b".2", 1)
    with path.open("ab") as file:
        file.write(second[:30])
    consumer = desk.consumer()
    assert len(consumer.claim().ids) == 1
    with path.open("ab") as file:
        file.write(second[30:])
    assert consumer.claim().ids == [f"{session.id}.2"]


def test_bad_line_is_skipped_and_named(desk: Desk) -> None:
    session = desk.session()
    session.tell()
    path = session.path / "signals.jsonl"
    with path.open("ab") as file:
        file.write(b'{"seq": 2}\rgarbage\n')
    session.tell()
    reading = read_on(desk.home, Progress(session.id), writer_lives=True)
    assert reading is not None
    assert [each.seq for each in reading.found] == [1, 2]
    assert [why for _, why in reading.bad] == ["not JSON"]
    assert len(desk.consumer().claim()) == 2


def test_what_is_recorded_only_is_not_queued_and_costs_no_row(desk: Desk) -> None:
    session = desk.session()
    session.tell("lifecycle", routed=False, phase="started")
    desk.look()
    assert desk.rows("SELECT count(*) FROM signals") == [(0,)]
    assert desk.rows("SELECT count(*) FROM signal_files") == [(0,)]
    id = session.tell()
    assert desk.consumer().claim().ids == [id]


def test_ending_that_a_waiter_may_confirm_is_undecided_until_he_does(desk: Desk) -> None:
    consumer = desk.consumer()
    answered, queued, silent = desk.session(), desk.session(), desk.session()
    for session in (answered, queued, silent):
        session.tell()
        session.end(routed="auto")
        session.tell("survivors", pids=[{"pid": 1}])
    assert {signal.variant for signal in consumer.claim()} == {"watch"}
    assert consumer.pending().next_due is not None
    answered.file.note({"answered": 2, "by": "api:1"})
    queued.file.note({"queued": 2})
    silent.die()
    batch = consumer.claim()
    assert {(signal.session, signal.seq) for signal in batch if signal.variant == "survivors"} == {
        (session.id, 3) for session in (answered, queued, silent)
    }
    assert {signal.session for signal in batch if signal.variant == "lifecycle"} == {queued.id, silent.id}


@pytest.mark.covers("signals:9")
def test_rotated_file_gives_every_signal_once_and_in_order(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session(kind="monitor", max_bytes=4000)
    got: list[int] = []
    kept = [session.tell("ready", ok=True)]
    for number in range(60):
        session.tell("event", lines=[{"text": "x" * 50}], count=1)
        if number % 20 == 7:
            kept.append(session.tell("watch", text="ERROR"))
        if number % 7 == 0:
            with consumer.claim() as batch:
                got += [signal.seq for signal in batch]
    assert (session.path / "signals.1.jsonl").exists()
    with consumer.claim() as batch:
        got += [signal.seq for signal in batch]
    assert got == sorted(set(got))
    assert {int(id.rpartition(".")[2]) for id in kept} <= set(got)
    assert numbers(desk, session.id) == got
    first, *rest = (session.path / "signals.jsonl").read_text().splitlines()
    dropped_before = json.loads(first)["dropped_before_seq"]
    records = [record for record in map(json.loads, rest) if "seq" in record]
    assert all(record["seq"] >= dropped_before for record in records if "event" in record)
    assert [record["id"] for record in records if "event" not in record] == kept
    # Of what is not carried over only the newest is retained; nothing that is comes twice.
    late = desk.consumer("late", "conv-1")
    seqs = [signal.seq for signal in late.claim()]
    assert seqs == sorted(set(seqs))
    assert {int(id.rpartition(".")[2]) for id in kept} <= set(seqs)


def test_signal_whose_record_was_rotated_away_is_counted_and_reported_by_the_home(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session(kind="monitor", max_bytes=4000)
    session.tell("event", lines=[{"text": "first"}], count=1)
    desk.look()
    while not (session.path / "signals.1.jsonl").exists():
        session.tell("event", lines=[{"text": "x" * 50}], count=1, quietly=True)
    inode = (session.path / "signals.1.jsonl").stat().st_ino
    while (session.path / "signals.1.jsonl").stat().st_ino == inode:
        session.tell("event", lines=[{"text": "x" * 50}], count=1, quietly=True)
    batch = consumer.claim()
    assert batch.gone == {session.id: 1}
    batch.settle()
    reported = consumer.claim().signals
    assert [(signal.id, signal.variant, signal.fields["signals"]) for signal in reported] == [("home.1", "gap", 1)]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(["event", "watch", "unrouted", "owner", "look", "other look"]), max_size=60))
def test_any_history_is_entered_once_and_in_order_for_every_observer(desk: Desk, history: list[str]) -> None:
    session = desk.session(kind="monitor", max_bytes=3000)
    other = Desk(desk.home)
    routed = []
    owner = session.owner
    for step in history:
        if step == "look":
            desk.look()
        elif step == "other look":
            other.look()
        elif step == "owner":
            owner = f"{owner}x"[-20:]
            session.hand_over(owner)
        else:
            id = session.tell("event" if step == "unrouted" else step, routed=step != "unrouted", text="x" * 100)
            routed += [int(id.rpartition(".")[2])] if step != "unrouted" else []
    desk.look()
    other.look()
    entered = numbers(desk, session.id)
    assert entered == sorted(set(entered))
    assert set(entered) <= set(routed)
    # What no host read before two rotations is gone; everything else is in, under its current owner.
    if "look" in history or "other look" in history or not (session.path / "signals.1.jsonl").exists():
        assert routed[-5:] == entered[-5:]
    owners = {owner for (owner,) in desk.rows(f"SELECT DISTINCT owner FROM signals WHERE session = '{session.id}'")}
    assert owners <= {owner}
    other.close()
    desk.over(session)


def test_many_hosts_that_look_at_once_enter_each_signal_once(desk: Desk) -> None:
    sessions = [desk.session() for _ in range(5)]
    desks = [Desk(desk.home) for _ in range(4)]
    begin = threading.Barrier(5)

    def look(each: Desk) -> None:
        consumer = each.consumer()
        begin.wait(BOUND_S)
        for _ in range(10):
            consumer.pending()

    threads = [threading.Thread(target=look, args=(each,)) for each in desks]
    for thread in threads:
        thread.start()
    begin.wait(BOUND_S)
    ids = {id for _ in range(20) for session in sessions for id in [session.tell()]}
    for thread in threads:
        thread.join()
    desk.look()
    assert set(desk.consumer().claim().ids) == ids
    for session in sessions:
        assert numbers(desk, session.id) == list(range(1, 21))
    for each in desks:
        each.close()


def test_session_becomes_final_only_when_its_signals_are_in(desk: Desk) -> None:
    session = desk.session()
    session.tell()
    assert desk.index.note([desk.row(session.id)]) == [session.id]
    assert session.id in desk.index.unfinished()
    end = session.end(routed="auto")
    assert desk.index.note([desk.row(session.id)]) == [session.id]
    session.die()
    assert desk.index.note([desk.row(session.id)]) == []
    assert desk.index.unfinished() == []
    assert desk.rows("SELECT count(*) FROM signal_files") == [(0,)]
    assert desk.consumer().claim().ids == [f"{session.id}.1", end]


def test_foreground_session_becomes_final_without_a_row_of_signals(desk: Desk) -> None:
    session = desk.session()
    session.tell("lifecycle", routed=False, phase="started")
    session.end(routed="auto")
    session.file.note({"answered": 2, "by": "cli:1"})
    assert desk.index.note([desk.row(session.id)]) == []
    for table in ("signals", "signal_files", "pending"):
        assert desk.rows(f"SELECT count(*) FROM {table}") == [(0,)]


@pytest.mark.covers("signals:5", "IDN-07")
def test_lost_index_gives_everything_again_as_a_replay(desk: Desk) -> None:
    consumer, everybody = desk.consumer(), desk.consumer("all", "*")
    session = desk.session()
    ids = session.tell_many(99)
    answered = desk.session()
    answered.end(routed="auto")
    answered.file.note({"answered": 1, "by": "cli:1"})
    ids.append(session.end())
    with consumer.claim() as batch:
        assert batch.ids == ids
    before = desk.index.generation()
    lose_index(desk)
    again = consumer.claim()
    assert again.ids == ids
    assert all(signal.replayed for signal in again)
    assert "replayed" in again.signals[0].to_json()
    again.release("see below")
    assert desk.index.generation() != before
    # A consumer of everybody's was there too: it misses nothing.
    assert everybody.pending() == 100
    seen = set(ids).__contains__
    assert not desk.consumer("stored", "conv-1").claim(seen=seen)
    new = desk.session()
    id = new.tell()
    fresh = desk.consumer("fresh", "conv-1").claim().signals[-1]
    assert (fresh.id, fresh.replayed) == (id, False)


def test_new_home_replays_nothing(desk: Desk) -> None:
    desk.session().tell()
    assert [signal.replayed for signal in desk.consumer().claim()] == [False]


def test_rebuild_keeps_what_was_settled(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session()
    ids = session.tell_many(3)
    consumer.ack(ids[0])
    desk.index.rebuild()
    batch = consumer.claim()
    assert (batch.ids, batch.signals[0].replayed) == (ids[1:], False)
    batch.settle()
    more = session.tell()
    assert consumer.claim().ids == [more]


def test_removed_session_leaves_a_count_of_unread_signals(desk: Desk) -> None:
    consumer, other = desk.consumer(), desk.consumer("two", "conv-1")
    kept, removed = desk.session(), desk.session()
    kept.tell()
    read, *_ = removed.tell_many(4)
    assert consumer.pending() == 5
    consumer.ack(read)
    other.ack(read)
    removed.die()
    shutil.rmtree(removed.path)
    desk.index.mark_removed([removed.id])
    batch = consumer.claim()
    assert [(signal.session, signal.variant) for signal in batch] == [(kept.id, "watch"), (None, "gap")]
    gap = batch.signals[1]
    assert (gap.id, gap.owner, gap.fields["signals"]) == ("home.1", "conv-1", 3)
    assert gap.fields["sessions"] == [{"id": removed.id, "signals": 3}]
    assert desk.rows("SELECT count(*) FROM unread") == [(0,)]
    assert other.claim().ids == batch.ids


def test_directory_that_was_removed_by_hand_is_counted_too(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session()
    session.tell()
    desk.look()
    session.die()
    shutil.rmtree(session.path)
    os.utime(desk.home.sessions, ns=(10**18, 10**18))
    assert [signal.variant for signal in consumer.claim()] == ["gap"]


@pytest.mark.covers("IDN-07")
def test_locked_index_is_waited_for_and_then_said(desk: Desk, world: World) -> None:
    consumer = desk.consumer()
    id = desk.session().tell()
    locker = sqlite3.connect(desk.home.index, isolation_level=None)
    locker.execute("BEGIN EXCLUSIVE")
    with pytest.raises(IndexBusy) as reported:
        consumer.claim()
    assert reported.value.waited_s >= 2
    locker.execute("ROLLBACK")
    locker.close()
    assert consumer.claim().ids == [id]


@pytest.mark.covers("IDN-06")
@pytest.mark.parametrize("damage", ["zeros", "garbage", "directory", "symlink", "fifo", "gone", "other session's"])
def test_damaged_file_of_one_session_does_not_hide_the_others(desk: Desk, damage: str) -> None:
    consumer = desk.consumer()
    hurt, whole = desk.session(), desk.session()
    hurt.tell()
    id = whole.tell()
    path = hurt.path / "signals.jsonl"
    raw = path.read_bytes()
    path.unlink()
    if damage in ("zeros", "garbage"):
        path.write_bytes(bytes(300) if damage == "zeros" else os.urandom(300) + b"\n" + raw[20:])
    elif damage == "directory":
        path.mkdir()
    elif damage == "symlink":
        path.symlink_to("/etc/passwd")
    elif damage == "fifo":
        os.mkfifo(path)
    elif damage == "other session's":
        path.write_bytes((whole.path / "signals.jsonl").read_bytes())
    for _ in range(2):
        desk.outcomes[hurt.id] = RunnerGoneFacts(
            "exited", kind=None, owner=None, attempt=1, notify="exit", snapshot=None, ended={}, row=desk.row(hurt.id)
        )
        with consumer.claim() as batch:
            assert [signal.id for signal in batch if signal.session == whole.id] in ([id], [])
        hurt.die()
    assert consumer.pending() == 0


def test_file_whose_bytes_flip_gives_only_what_is_still_a_record(desk: Desk) -> None:
    session = desk.session()
    session.tell_many(3)
    path = session.path / "signals.jsonl"
    raw = path.read_bytes()
    for at in range(0, len(raw), 7):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        reading = read_on(desk.home, Progress(session.id), writer_lives=False)
        assert reading is not None
        assert 1 <= len(reading.found) <= 3
        assert {each.seq for each in reading.found} <= {1, 2, 3}


@pytest.mark.parametrize("wanted", ["read", "claim"])
def test_want_of_descriptors_loses_nothing(desk: Desk, wanted: str) -> None:
    consumer = desk.consumer()
    id = desk.session().tell()
    if wanted == "claim":
        desk.look()
        assert consumer.pending() == 1
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        with contextlib.suppress(OSError, IndexBusy):
            assert not consumer.claim()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    gc.collect()
    until(lambda: consumer.pending() == 1)
    assert consumer.claim().ids == [id]


def test_flood_while_the_index_is_locked_wakes_and_is_claimed_in_order_afterwards(desk: Desk) -> None:
    consumer = desk.consumer()
    session = desk.session()
    with consumer.waker() as waker:
        consumer.claim()
        locker = sqlite3.connect(desk.home.index, isolation_level=None)
        locker.execute("BEGIN EXCLUSIVE")
        ids = session.tell_many(500)
        wait_readable(waker.fileno())
        locker.execute("ROLLBACK")
        locker.close()
        assert waker.wait(BOUND_S)
    assert consumer.claim().ids == ids


def test_home_signals_go_to_the_owner_they_name(desk: Desk) -> None:
    consumer, everybody = desk.consumer(), desk.consumer("all", "*")
    for owner in ("conv-1", "conv-2", None):
        write_home_signal(desk.home, desk.runtime, "overflow", {"state": "tripped"}, owner)
    assert consumer.claim().ids == ["home.1"]
    batch = everybody.claim()
    assert batch.ids == ["home.1", "home.2", "home.3"]
    assert {signal.session for signal in batch} == {None}
