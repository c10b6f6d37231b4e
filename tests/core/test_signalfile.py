"""`signals.jsonl`: one writer, whole lines, numbers without a gap, whatever becomes of the disk and of the writer."""

from __future__ import annotations

import itertools
import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.signalfile import FILE, LINE_MAX_BYTES, OLDER, SignalFile, read


@contextmanager
def opened(path: Path, **options: Any) -> Iterator[SignalFile]:
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        file = SignalFile(directory, "b12345678", "boot", **options)
        try:
            yield file
        finally:
            file.close()
    finally:
        os.close(directory)


def write(file: SignalFile, variant: str = "heartbeat", **fields: Any) -> dict[str, Any]:
    return file.write(variant, fields, kind="local_bash", owner="me", attempt=1, routed=True, snapshot={})


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_records_are_numbered_without_a_gap_and_have_one_variant(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        for number in range(5):
            write(file, n=number)
    found = lines(tmp_path / FILE)
    assert [record["seq"] for record in found] == [1, 2, 3, 4, 5]
    assert [record["id"] for record in found] == [f"b12345678.{n}" for n in range(1, 6)]
    assert all(record["heartbeat"] == {"n": record["seq"] - 1} for record in found)


def test_a_second_writer_is_refused_while_the_first_lives(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        write(file)
        with pytest.raises(BlockingIOError), opened(tmp_path, take_over=True):
            pass
    with opened(tmp_path, take_over=True) as successor:
        assert write(successor)["seq"] == 2


@pytest.mark.covers("signals:7")
def test_a_file_cut_at_any_byte_of_its_last_record_is_gone_on_with_on_a_fresh_line(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        for number in range(3):
            write(file, n=number)
    whole = (tmp_path / FILE).read_bytes()
    start_of_last = whole.rstrip(b"\n").rindex(b"\n") + 1
    for end in range(start_of_last, len(whole)):
        (tmp_path / FILE).write_bytes(whole[:end])
        with opened(tmp_path, take_over=True) as successor:
            # All but the end of the line is a whole record.
            torn = end < len(whole) - 1
            assert write(successor, n=9)["seq"] == (3 if torn else 4)
        found = [read(line) for line in (tmp_path / FILE).read_bytes().splitlines(keepends=True)]
        records = [record for record in found if record is not None and "seq" in record]
        assert [record["seq"] for record in records] == ([1, 2, 3] if torn else [1, 2, 3, 4])
        assert records[-1]["heartbeat"] == {"n": 9}


def test_a_successor_of_a_large_file_reads_but_its_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who tells of an overflow does so within milliseconds, whatever the home has told before."""
    with opened(tmp_path, max_bytes=8 << 20) as file:
        for _ in range(3000):
            write(file, "overflow", text="x" * 300)
    read_bytes = 0
    pread = os.pread

    def counted(fd: int, size: int, at: int) -> bytes:
        nonlocal read_bytes
        found = pread(fd, size, at)
        read_bytes += len(found)
        return found

    monkeypatch.setattr("holdfast.core.signalfile.os.pread", counted)
    with opened(tmp_path, take_over=True) as successor:
        assert write(successor)["seq"] == 3001
    assert read_bytes < 100_000 < (tmp_path / FILE).stat().st_size


@given(st.lists(st.sampled_from(["record", "note", "lost", "garbage", "turned"]), max_size=30), st.integers(1, 400))
def test_the_last_number_is_found_whatever_stands_in_the_file(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str], block_bytes: int
) -> None:
    path = tmp_path_factory.mktemp("home")
    seq = 0
    text: list[str] = []
    for part in parts:
        if part == "record":
            seq += 1
            text.append(json.dumps({"seq": seq, "heartbeat": {}, "pad": "x" * (37 * seq % 300)}))
        elif part == "lost":
            seq += 2
            text.append(json.dumps({"lost": 2, "before": seq + 1}))
        elif part == "turned":
            seq += 1
            text = [json.dumps({"dropped_before_seq": seq + 1}), *(line for line in text if "dropped" not in line)]
        else:
            text.append('{"queued": 1}' if part == "note" else '{"seq": 99, "torn')
    (path / FILE).write_text("".join(line + "\n" for line in text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("holdfast.core.signalfile._BLOCK_BYTES", block_bytes)
        with opened(path, take_over=True) as successor:
            assert successor.seq == seq


@pytest.mark.covers("signals:9")
def test_a_file_that_grew_is_turned_over_and_keeps_all_but_events(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=20_000) as file:
        write(file, "lifecycle", phase="started")
        write(file, "watch", pattern="w1")
        write(file, "ready", ok=True)
        file.note({"answered": 9})
        while not (tmp_path / OLDER).exists():
            write(file, "event", lines=["x" * 500])
        write(file, "event", lines=["last"])
        last = file.seq
    kept = lines(tmp_path / FILE)
    assert [next(key for key in ("lifecycle", "watch", "ready") if key in record) for record in kept[1:4]] == [
        "lifecycle",
        "watch",
        "ready",
    ]
    assert kept[4] == {"answered": 9}
    first_event = next(record["seq"] for record in kept if "event" in record)
    assert kept[0] == {"dropped_before_seq": first_event}
    assert kept[-1]["seq"] == last
    older = [record["seq"] for record in lines(tmp_path / OLDER) if "seq" in record]
    assert older == list(range(1, first_event))
    with opened(tmp_path, take_over=True) as successor:
        assert write(successor)["seq"] == last + 1


@pytest.mark.covers("signals:9")
def test_a_file_that_is_full_of_heartbeats_is_thinned_of_them_alone_and_says_how_many_went(tmp_path: Path) -> None:
    """On faulty code the oldest went, whatever they were."""
    with opened(tmp_path, max_bytes=20_000) as file:
        write(file, "lifecycle", phase="started")
        file.note({"owner": "her"})
        write(file, "watch", pattern="w1", text="x" * 9000)
        write(file, "ready", ok=True)
        turned = 0
        inode = (tmp_path / FILE).stat().st_ino
        while turned < 3:
            write(file, "heartbeat", tail="x" * 500)
            now = (tmp_path / FILE).stat().st_ino
            turned, inode = turned + (now != inode), now
    kept = lines(tmp_path / FILE)
    assert kept[1]["lifecycle"] == {"phase": "started"}
    assert kept[2] == {"owner": "her"}
    assert (kept[3]["seq"], kept[4]["seq"]) == (2, 3)
    beats = [record["seq"] for record in kept if "heartbeat" in record]
    assert beats == list(range(file.seq - len(beats) + 1, file.seq + 1)), "the oldest went"
    assert kept[0]["thinned"] == file.seq - 3 - len(beats)


def test_a_file_of_nothing_that_may_go_grows_on_and_is_not_turned_over_with_every_line(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=20_000) as file:
        inodes = []
        for number in range(100):
            write(file, "watch", text="x" * 1000, n=number)
            inodes.append((tmp_path / FILE).stat().st_ino)
    assert [record["watch"]["n"] for record in lines(tmp_path / FILE) if "watch" in record] == list(range(100))
    assert sum(one != other for one, other in itertools.pairwise(inodes)) <= 4


def test_the_attempts_of_a_command_that_is_restarted_for_ever_are_bounded_but_never_the_ending(tmp_path: Path) -> None:
    with opened(tmp_path, max_bytes=20_000) as file:
        write(file, "lifecycle", phase="ended")
        for _ in range(200):
            write(file, "lifecycle", phase="restarting", error="x" * 300)
    assert (tmp_path / FILE).stat().st_size < 21_000
    kept = lines(tmp_path / FILE)
    assert kept[1]["lifecycle"]["phase"] == "ended"
    assert kept[0]["thinned"] + sum("lifecycle" in record for record in kept) == 201


def test_what_a_full_disk_refuses_waits_and_comes_in_order(tmp_path: Path) -> None:
    said: list[str] = []
    with opened(tmp_path, say=said.append) as file:
        write(file, n=1)
        size = (tmp_path / FILE).stat().st_size
        with no_room(size + 5):
            for number in range(2, 300):
                write(file, n=number)
            assert file.blocked == 298
            assert not file.retry()
            assert (tmp_path / FILE).stat().st_size == size
        assert file.retry()
        write(file, n=300)
    found = lines(tmp_path / FILE)
    assert found[1] == {"lost": 42, "before": 44}
    assert [record["seq"] for record in found if "seq" in record] == [1, *range(44, 301)]
    assert said


def test_an_ending_that_had_to_wait_is_synced_when_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / FILE
    synced: list[int] = []
    monkeypatch.setattr("holdfast.core.signalfile.os.fsync", lambda _fd: synced.append(path.stat().st_size))
    with opened(tmp_path) as file:
        write(file, n=1)
        size = path.stat().st_size
        with no_room(size + 5):
            file.write("lifecycle", {}, kind=None, owner=None, attempt=1, routed=True, snapshot=None, durable=True)
        synced.clear()
        assert file.retry()
        assert synced, "a power loss would have taken it"
        assert min(synced) == path.stat().st_size > size
        synced.clear()
        write(file, n=2)
        assert not synced


@contextmanager
def no_room(size: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@given(st.recursive(st.text(max_size=30_000), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_no_line_is_longer_than_its_limit(tmp_path_factory: pytest.TempPathFactory, content: Any) -> None:
    with opened(tmp_path_factory.mktemp("signals")) as file:
        record = write(file, content=content)
        assert len(json.dumps(record, separators=(",", ":"))) < LINE_MAX_BYTES


def test_a_line_that_was_cut_says_so(tmp_path: Path) -> None:
    with opened(tmp_path) as file:
        write(file, text="y" * 100_000, other="short")
    (record,) = lines(tmp_path / FILE)
    assert record["heartbeat"]["text"].endswith("[cut]")
    assert record["heartbeat"]["other"] == "short"
