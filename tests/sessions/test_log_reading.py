from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast import errors
from holdfast.model import format_cursor
from holdfast.runner.log import FRAME_BYTES, LogWriter
from holdfast.sessions import segments
from holdfast.sessions.lines import since_moment
from holdfast.sessions.log import Log, Page, parse_cursor
from support.scale import scaled

Write = Callable[..., LogWriter]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "b00000001"
    path.mkdir()
    return path


@pytest.fixture
def writer(directory: Path) -> Iterator[Write]:
    """The runner's own writer, closed in the end."""
    opened: list[tuple[LogWriter, int]] = []

    def make(
        *, cap: int = 1 << 26, segment: int = 1 << 20, streams: tuple[str, ...] = ("stdout", "stderr")
    ) -> LogWriter:
        fd = os.open(directory, os.O_RDONLY)
        log = LogWriter(
            fd, list(streams), cap_bytes=cap, segment_bytes=segment, free_floor_bytes=0, say=lambda text: None
        )
        opened.append((log, fd))
        return log

    yield make
    for log, fd in opened:
        log.close()
        os.close(fd)


def record_exit(directory: Path, log: LogWriter) -> None:
    (directory / "exit.json").write_text(json.dumps({"v": 1, **log.facts()}))


def by_stream(page: Page) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for stream, _, data in page.chunks:
        found[stream] = found.get(stream, b"") + data
    return found


def all_pages(log: Log, since: str | int | None = None, *, limit: int | None = None) -> list[Page]:
    pages = [log.read(since, limit=limit)]
    while pages[-1].more:
        pages.append(log.read(pages[-1].cursor, limit=limit))
    return pages


def segment_files(directory: Path, stream: str = "stdout") -> list[Path]:
    return sorted(directory.glob(f"{stream}.0*"))


def test_streams_are_read_in_order_of_arrival(directory: Path, writer: Write) -> None:
    log = writer()
    for stream, data in [("stdout", b"one\n"), ("stderr", b"two\n"), ("stdout", b"three\n"), ("stdout", b"4")]:
        log.append(stream, data)
    page = Log(str(directory)).read()
    assert page.chunks == [("stdout", 0, b"one\n"), ("stderr", 0, b"two\n"), ("stdout", 4, b"three\n4")]
    assert (page.cursor, page.more, page.gaps) == ("stdout:11,stderr:4", False, [])
    assert page.dropped_before == {"stdout": 0, "stderr": 0}
    assert (page.data, page.text) == (b"one\ntwo\nthree\n4", "one\ntwo\nthree\n4")


def test_output_whose_time_is_not_kept_any_more_is_before_every_moment(directory: Path, writer: Write) -> None:
    """All output is retained, but the times of very old output are dropped: `--since 5m` showed all of it."""
    log = writer(cap=1 << 14)
    log.append("stderr", b"old\n")
    for number in range(100):
        log.append("stdout", f"{number:03d}\n".encode())
    reader = Log(str(directory))
    with reader.snapshot() as snapshot:
        _, wall, stream, _, oldest, _ = next(snapshot.whole_frames().records())
    assert (stream, reader.dropped_before()) == ("stdout", {"stdout": 0, "stderr": 0})
    assert oldest > 0, "no time was dropped"
    assert since_moment(reader, wall / 1e9 - 0.001) == f"stdout:{oldest},stderr:4"
    assert since_moment(reader, wall / 1e9 + 60) == "stdout:400,stderr:4"


def test_reading_again_from_a_cursor_continues_and_consumes_nothing(directory: Path, writer: Write) -> None:
    log = writer()
    log.append("stdout", b"one\n")
    first = Log(str(directory)).read()
    assert Log(str(directory)).read(first.cursor).chunks == []
    log.append("stderr", b"two\n")
    assert Log(str(directory)).read(first.cursor).chunks == [("stderr", 0, b"two\n")]
    assert Log(str(directory)).read().data == b"one\ntwo\n"


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 64, 1000])
def test_pages_of_any_size_give_the_same_bytes_in_the_same_order(directory: Path, writer: Write, limit: int) -> None:
    rng = random.Random(limit)
    log = writer(segment=50)
    whole: dict[str, bytes] = {"stdout": b"", "stderr": b""}
    arrived = []
    for number in range(60):
        stream = rng.choice(["stdout", "stderr"])
        data = f"{stream} {number}\n".encode() * rng.randrange(1, 3)
        log.append(stream, data)
        whole[stream] += data
        arrived.append(data)
    pages = all_pages(Log(str(directory)), limit=limit)
    assert b"".join(page.data for page in pages) == b"".join(arrived)
    assert all(len(page.data) <= limit for page in pages)
    assert pages[-1].cursor == format_cursor({stream: len(data) for stream, data in whole.items()})
    assert not any(page.gaps for page in pages)


def test_a_full_page_ends_with_a_line_where_it_can(directory: Path, writer: Write) -> None:
    log = writer(streams=("stdout",))
    log.append("stdout", b"first\nsecond\n")
    page = Log(str(directory)).read(limit=9)
    assert (page.data, page.more, page.cursor) == (b"first\n", True, "stdout:6")
    assert Log(str(directory)).read(0, limit=3).data == b"fir"


def test_one_stream_alone_keeps_the_place_of_the_other_in_the_cursor(directory: Path, writer: Write) -> None:
    log = writer()
    log.append("stdout", b"out")
    log.append("stderr", b"err")
    page = Log(str(directory)).read("stdout:1,stderr:2", "stdout")
    assert (page.data, page.cursor) == (b"ut", "stdout:3,stderr:2")


def test_lines_of_two_streams_never_mix_in_the_text(directory: Path, writer: Write) -> None:
    log = writer()
    for stream, data in [("stdout", b"half "), ("stderr", b"warning\n"), ("stdout", b"line\n"), ("stderr", b"x")]:
        log.append(stream, data)
    assert Log(str(directory)).read().text == "warning\nhalf line\nx"


def test_bytes_without_frames_are_read_in_stream_order(directory: Path, writer: Write) -> None:
    log = writer()
    for number in range(10):
        log.append("stdout", b"o%d\n" % number)
        log.append("stderr", b"e%d\n" % number)
    (directory / "frames").unlink()
    assert [stream for stream, _, _ in Log(str(directory)).read().chunks] == ["stdout", "stderr"]


def test_older_half_of_the_frames_gone_keeps_the_order_of_the_rest(directory: Path, writer: Write) -> None:
    log = writer()
    for number in range(10):
        log.append("stdout", b"o%d\n" % number)
        log.append("stderr", b"e%d\n" % number)
    frames = directory / "frames"
    frames.write_bytes(frames.read_bytes()[-6 * FRAME_BYTES :])
    old = b"".join(b"o%d\n" % n for n in range(7)) + b"".join(b"e%d\n" % n for n in range(7))
    new = b"".join(b"o%d\ne%d\n" % (n, n) for n in range(7, 10))
    assert Log(str(directory)).read().data == old + new
    assert b"".join(page.data for page in all_pages(Log(str(directory)), limit=5)) == old + new


def test_a_reader_far_behind_many_frames_still_reads_in_order(directory: Path, writer: Write) -> None:
    log = writer()
    arrived = []
    for number in range(2000):
        data = b"%06d\n" % number
        arrived.append(data)
        log.append("stderr" if number % 3 == 0 else "stdout", data)
    read = b"".join(page.data for page in all_pages(Log(str(directory)), limit=700))
    assert read == b"".join(arrived)


@pytest.mark.parametrize(
    "text, streams, expected",
    [
        (None, ("stdout", "stderr"), {}),
        ("0", ("stdout", "stderr"), {}),
        (0, ("stdout", "stderr"), {}),
        (12, ("tty",), {"tty": 12}),
        ("12", ("stdout",), {"stdout": 12}),
        ("stdout:88412,stderr:0", ("stdout", "stderr"), {"stdout": 88412, "stderr": 0}),
        ("stderr:7", ("stdout", "stderr"), {"stderr": 7}),
    ],
)
def test_a_cursor_is_parsed(text: str | int | None, streams: tuple[str, ...], expected: dict[str, int]) -> None:
    assert parse_cursor(text, streams) == expected


@pytest.mark.parametrize(
    "text",
    ["", "x", "-1", -1, 5, "5", True, "1e3", "stdout", "stdout:", "stdout:-1", "stdout:1,", "stdout: 1", "std:1"],
)
def test_what_is_no_cursor_is_refused(text: str | int) -> None:
    with pytest.raises(errors.BadCursor):
        parse_cursor(text, ("stdout", "stderr"))


@pytest.mark.parametrize("text", ["stdout:1,stdout:2", "stdout:1;stderr:2", "stdout:\u0661", "stdout:" + "9" * 20])
def test_what_only_looks_like_a_cursor_is_refused(text: str) -> None:
    with pytest.raises(errors.BadCursor):
        parse_cursor(text, ("stdout", "stderr"))


@given(st.text(max_size=30))
def test_any_text_is_a_cursor_or_refused(text: str) -> None:
    try:
        offsets = parse_cursor(text, ("stdout",))
    except errors.BadCursor:
        return
    assert parse_cursor(format_cursor(offsets), ("stdout",)) == offsets


@given(st.dictionaries(st.sampled_from(["stdout", "stderr", "tty"]), st.integers(0, 2**62), min_size=1))
def test_a_cursor_survives_its_text(offsets: dict[str, int]) -> None:
    assert parse_cursor(format_cursor(offsets), ()) == offsets


def test_a_cursor_ahead_of_the_end_is_refused(directory: Path, writer: Write) -> None:
    writer().append("stdout", b"abc")
    with pytest.raises(errors.OffsetAhead) as caught:
        Log(str(directory)).read("stdout:4")
    assert (caught.value.stream, caught.value.offset, caught.value.end) == ("stdout", 4, 3)


def test_silent_streams_are_known_from_the_spec(directory: Path) -> None:
    log = Log(str(directory))
    assert (log.streams(), log.cursor(), log.read().cursor) == ((), "0", "0")
    (directory / "spec.json").write_text('{"merge_stderr": false}')
    log = Log(str(directory))
    assert (log.cursor(), log.parse("0")) == ("stdout:0,stderr:0", {"stdout": 0, "stderr": 0})
    assert log.parse("stderr:0", stream="stdout") == {"stdout": 0}
    with pytest.raises(errors.BadCursor):
        log.read(5)


def test_a_directory_that_is_gone_is_removed(directory: Path) -> None:
    log = Log(str(directory))
    shutil.rmtree(directory)
    with pytest.raises(errors.Removed) as caught:
        log.read()
    assert caught.value.id == "b00000001"


def test_an_unknown_stream_or_limit_is_refused(directory: Path) -> None:
    with pytest.raises(errors.BadArgument):
        Log(str(directory)).read(stream="stdin")
    with pytest.raises(errors.BadArgument):
        Log(str(directory)).read(limit=0)
    with pytest.raises(errors.BadArgument):
        Log(str(directory)).tail(-1)


def test_dropped_output_is_a_gap_on_the_page_or_an_error_on_request(directory: Path, writer: Write) -> None:
    log = writer(cap=400, segment=100, streams=("stdout",))
    for number in range(100):
        log.append("stdout", b"line %04d\n" % number)
    begin = log.facts()["dropped_before"]["stdout"]
    reader = Log(str(directory))
    assert begin > 0
    assert reader.dropped_before() == {"stdout": begin}
    assert reader.lines_dropped() == {"stdout": begin // 10}
    assert reader.size() == 1000 - begin
    page = reader.read("stdout:15")
    assert page.gaps == [("stdout", 15, begin, "dropped")]
    assert page.dropped_before == {"stdout": begin}
    assert page.chunks[0][1] == begin
    assert page.data.endswith(b"line 0099\n")
    with pytest.raises(errors.OutputDropped) as caught:
        reader.read("stdout:15", strict=True)
    assert caught.value.dropped_before == begin
    assert reader.read(f"stdout:{begin}", strict=True).gaps == []


def test_a_segment_noted_as_dropped_but_not_unlinked_yet_is_not_read(directory: Path) -> None:
    (directory / "stdout.00000000000000000000").write_bytes(b"a\nb\n")
    (directory / "stdout.00000000000000000004").write_bytes(b"c\n")
    (directory / "stdout.dropped").write_text("4 2\n")
    page = Log(str(directory)).read()
    assert (page.data, page.gaps) == (b"c\n", [("stdout", 0, 4, "dropped")])
    assert Log(str(directory)).lines_before("stdout", 6) == 3


@pytest.mark.parametrize("note", ["", "x y", "4", "99 1", "-4 2", "4 2 1", "4 -2", "\0" * 8])
def test_a_damaged_note_of_drops_is_ignored(directory: Path, note: str) -> None:
    (directory / "stdout.00000000000000000000").write_bytes(b"a\nb\n")
    (directory / "stdout.dropped").write_text(note)
    assert Log(str(directory)).read().data == b"a\nb\n"


def test_segments_dropped_under_a_reader_are_a_gap_not_garbage(
    directory: Path, writer: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer(cap=400, segment=100, streams=("stdout",))
    whole = b""

    def print_more(count: int) -> None:
        nonlocal whole
        for _ in range(count):
            line = b"line %06d\n" % len(whole)
            whole += line
            log.append("stdout", line)

    print_more(20)
    listed = segments.LogSnapshot._list
    done: list[bool] = []

    def list_then_rotate(snapshot: segments.LogSnapshot) -> None:
        listed(snapshot)
        if not done:
            done.append(True)
            print_more(60)

    monkeypatch.setattr(segments.LogSnapshot, "_list", list_then_rotate)
    page = Log(str(directory)).read()
    assert [gap.reason for gap in page.gaps] == ["dropped"]
    for _, offset, data in page.chunks:
        assert whole[offset : offset + len(data)] == data
    rest = all_pages(Log(str(directory)), page.cursor)
    assert whole.endswith(page.data + b"".join(each.data for each in rest)) or rest[0].gaps


@pytest.mark.covers("LOG-05")
def test_a_log_cut_at_any_byte_gives_all_before_the_tear_and_says_where_it_is(directory: Path, writer: Write) -> None:
    log = writer(segment=20, streams=("stdout",))
    whole = b""
    for number in range(8):
        line = b"line %d\n" % number
        whole += line
        log.append("stdout", line)
    last = segment_files(directory)[-1]
    first = int(last.name[-20:])
    for finished in (False, True):
        if finished:
            record_exit(directory, log)
        for size in range(len(whole) - first, -1, -1):
            os.truncate(last, size)
            page = Log(str(directory)).read()
            assert page.data == whole[: first + size]
            tear = [("stdout", first + size, len(whole), "missing")] if first + size < len(whole) else []
            assert page.gaps == tear
            assert (page.cursor, page.more) == (f"stdout:{len(whole)}", False)
            assert Log(str(directory)).read(page.cursor).gaps == []
            assert Log(str(directory)).tail(3).data == b"".join(page.data.splitlines(True)[-3:])
        last.write_bytes(whole[first:])


@pytest.mark.covers("LOG-05")
def test_frames_cut_at_any_byte_lose_no_output(directory: Path, writer: Write) -> None:
    log = writer()
    for number in range(6):
        log.append("stdout", b"o%d\n" % number)
        log.append("stderr", b"e%d\n" % number)
    frames = directory / "frames"
    for size in range(frames.stat().st_size, -1, -1):
        os.truncate(frames, size)
        page = Log(str(directory)).read()
        assert by_stream(page) == {
            "stdout": b"".join(b"o%d\n" % n for n in range(6)),
            "stderr": b"".join(b"e%d\n" % n for n in range(6)),
        }
        assert not page.gaps


@pytest.mark.covers("IDN-06")
@given(st.data())
@settings(max_examples=scaled(40, 200), deadline=None)
def test_damaged_frames_lose_no_output(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("b")
    fd = os.open(directory, os.O_RDONLY)
    log = LogWriter(
        fd, ["stdout", "stderr"], cap_bytes=1 << 20, segment_bytes=1 << 20, free_floor_bytes=0, say=lambda text: None
    )
    for number in range(6):
        log.append("stdout", b"o%d\n" % number)
        log.append("stderr", b"e%d\n" % number)
    log.close()
    os.close(fd)
    frames = bytearray((directory / "frames").read_bytes())
    kind = data.draw(st.sampled_from(["flip", "zeros", "garbage", "shift"]))
    place = data.draw(st.integers(0, len(frames) - 1))
    if kind == "flip":
        frames[place] ^= data.draw(st.integers(1, 255))
    elif kind == "zeros":
        frames[place:] = bytes(len(frames) - place)
    elif kind == "garbage":
        frames[place:] = data.draw(st.binary(max_size=100))
    else:
        del frames[place]
    (directory / "frames").write_bytes(frames)
    page = Log(str(directory)).read()
    assert by_stream(page)["stdout"] == b"".join(b"o%d\n" % n for n in range(6))
    assert by_stream(page)["stderr"] == b"".join(b"e%d\n" % n for n in range(6))


@pytest.mark.covers("IDN-06")
@pytest.mark.parametrize("name", ["frames", "exit.json", "spec.json", "stdout.dropped"])
def test_a_directory_in_the_place_of_a_record_loses_no_output(directory: Path, writer: Write, name: str) -> None:
    writer().append("stdout", b"kept\n")
    (directory / name).unlink(missing_ok=True)
    (directory / name).mkdir()
    assert Log(str(directory)).read().data == b"kept\n"


@pytest.mark.covers("LOG-07")
@pytest.mark.parametrize("how", ["delete", "directory", "symlink", "fifo"])
def test_a_segment_that_cannot_be_read_is_a_gap_and_offsets_stay(directory: Path, writer: Write, how: str) -> None:
    log = writer(segment=20, streams=("stdout",))
    whole = b"".join(b"line %03d\n" % number for number in range(9))
    for start in range(0, len(whole), 9):
        log.append("stdout", whole[start : start + 9])
    second = segment_files(directory)[1]
    second.unlink()
    if how == "directory":
        second.mkdir()
    elif how == "symlink":
        second.symlink_to("/etc/passwd")
    elif how == "fifo":
        os.mkfifo(second)
    page = Log(str(directory)).read()
    assert page.chunks == [("stdout", 0, whole[:27]), ("stdout", 54, whole[54:])]
    assert page.gaps == [("stdout", 27, 54, "missing" if how == "delete" else "unreadable")]
    assert page.cursor == "stdout:81"
    assert list(Log(str(directory)).raw("stdout", 20, 60)) == [whole[20:27], whole[54:60]]
    tail = Log(str(directory)).tail(5)
    assert tail.data == whole[9:27] + whole[54:]
    assert tail.gaps == page.gaps


@pytest.mark.covers("LOG-07")
def test_a_segment_without_permission_is_a_gap(directory: Path, writer: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    log = writer(segment=4, streams=("stdout",))
    for data in (b"one\n", b"two\n", b"six\n"):
        log.append("stdout", data)
    locked = segment_files(directory)[1]
    locked.chmod(0)
    opened = os.open

    def refusing(path: str, flags: int, *rest: Any, **options: Any) -> int:
        # Root may open anything, so the kernel's answer to anybody else is given here.
        if os.path.basename(path) == locked.name:
            raise PermissionError(13, "Permission denied", path)
        return opened(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", refusing)
    page = Log(str(directory)).read()
    assert (page.data, page.gaps) == (b"one\nsix\n", [("stdout", 4, 8, "unreadable")])


@pytest.mark.covers("LOG-07")
def test_a_stream_whose_files_were_all_deleted_is_missing_up_to_its_recorded_end(
    directory: Path, writer: Write
) -> None:
    log = writer()
    log.append("stdout", b"gone\n")
    log.append("stderr", b"kept\n")
    segment_files(directory)[0].unlink()
    page = Log(str(directory)).read()
    assert (page.data, page.gaps) == (b"kept\n", [("stdout", 0, 5, "missing")])
    assert Log(str(directory)).ends() == {"stdout": 5, "stderr": 5}


def test_bytes_that_the_disk_refused_are_a_gap_with_its_reason(directory: Path) -> None:
    (directory / "stdout.00000000000000000000").write_bytes(b"before\n")
    (directory / "stdout.00000000000000000050").write_bytes(b"after\n")
    for record in (
        None,
        {"ends": {"stdout": 56}, "gaps": [{"stream": "stdout", "from": 7, "to": 50, "reason": "disk"}]},
    ):
        if record:
            (directory / "exit.json").write_text(json.dumps(record))
        page = Log(str(directory)).read()
        assert (page.data, page.gaps) == (b"before\nafter\n", [("stdout", 7, 50, "disk")])
        assert page.cursor == "stdout:56"


def test_files_that_are_no_segments_are_ignored(directory: Path, writer: Write) -> None:
    writer().append("stdout", b"kept\n")
    for name in ("stdout.0", "stdout.0000000000000000000x", "stdout.99999999999999999999", "stdout.", "other.txt"):
        (directory / name).write_bytes(b"not ours")
    assert Log(str(directory)).read().data == b"kept\n"


@pytest.mark.covers("STR-03")
def test_every_byte_value_is_read_as_it_was_written(directory: Path, writer: Write) -> None:
    log = writer(segment=100, streams=("stdout",))
    whole = bytes(range(256)) * 5
    for start in range(0, len(whole), 37):
        log.append("stdout", whole[start : start + 37])
    assert b"".join(page.data for page in all_pages(Log(str(directory)), limit=50)) == whole


def test_a_copied_directory_reads_the_same(directory: Path, writer: Write, tmp_path: Path) -> None:
    log = writer(segment=8)
    for number in range(9):
        log.append("stdout", b"o%d\n" % number)
        log.append("stderr", b"e%d\n" % number)
    shutil.copytree(directory, tmp_path / "copy")
    assert Log(str(tmp_path / "copy")).read().chunks == Log(str(directory)).read().chunks


@pytest.mark.parametrize(
    "data, lines, expected",
    [
        (b"1\n2\n3\n", 2, b"2\n3\n"),
        (b"1\n2\n3", 2, b"2\n3"),
        (b"1\n2\n3\n", 3, b"1\n2\n3\n"),
        (b"1\n2\n3\n", 9, b"1\n2\n3\n"),
        (b"1\n2\n3\n", 0, b""),
        (b"1\n\n\n", 2, b"\n\n"),
        (b"\n", 1, b"\n"),
        (b"1", 1, b"1"),
        (b"", 5, b""),
    ],
)
@pytest.mark.parametrize("segment", [1, 2, 1000])
def test_tail_gives_the_last_lines(
    directory: Path, writer: Write, data: bytes, lines: int, expected: bytes, segment: int
) -> None:
    log = writer(segment=segment, streams=("stdout",))
    for number in range(len(data)):
        log.append("stdout", data[number : number + 1])
    page = Log(str(directory)).tail(lines)
    assert (page.data, page.more) == (expected, False)
    assert page.cursor == (f"stdout:{len(data)}" if data else "0")


def test_tail_crosses_blocks_and_segments(directory: Path, writer: Write) -> None:
    log = writer(segment=30_000, streams=("stdout",))
    lines = [b"%07d\n" % number * (1 + number % 3) for number in range(20_000)]
    for start in range(0, 20_000, 100):
        log.append("stdout", b"".join(lines[start : start + 100]))
    split = b"".join(lines).splitlines(True)
    for count in (1, 199, 5_000, 12_345, len(split), len(split) + 1):
        assert Log(str(directory)).tail(count).data == b"".join(split[-count:])


def test_tail_over_two_streams_is_the_last_lines_as_they_were_finished(directory: Path, writer: Write) -> None:
    log = writer()
    for stream, data in [
        ("stdout", b"a\nb\nc"),
        ("stderr", b"E1\n"),
        ("stdout", b"c\nd\n"),
        ("stderr", b"E2\nE"),
        ("stdout", b"e\n"),
    ]:
        log.append(stream, data)
    reader = Log(str(directory))
    finished = ["a", "b", "E1", "cc", "d", "E2", "e", "E"]
    for count in range(len(finished) + 2):
        assert reader.tail(count).text.split("\n") == (finished[-count:] if count else [""])
    assert reader.tail(2, "stdout").text == "d\ne\n"


def test_tail_below_the_ends_of_a_moment_is_what_it_was_then(directory: Path, writer: Write) -> None:
    log = writer()
    log.append("stdout", b"a\nhalf")
    reader = Log(str(directory))
    then = reader.ends()
    log.append("stderr", b"E1\n")
    log.append("stdout", b" a line\nlater\n")
    assert reader.tail(9, until=then).text == "a\nhalf"
    assert reader.tail(1, until=then).text == "half"
    assert reader.tail(9, until={}).text == ""
    assert reader.tail(9).text == "a\nE1\nhalf a line\nlater\n"


def test_tail_of_an_endless_line_is_bounded_and_says_so(directory: Path, writer: Write) -> None:
    log = writer(streams=("stdout",))
    log.append("stdout", b"x" * 200_000)
    page = Log(str(directory)).tail(1, limit=50_000)
    assert (len(page.data), page.more) == (50_000, True)


def test_lines_before_an_offset_count_what_was_dropped(directory: Path, writer: Write) -> None:
    log = writer(cap=4000, segment=1000, streams=("stdout",))
    for number in range(1000):
        log.append("stdout", b"line %04d\n" % number)
    reader = Log(str(directory))
    assert reader.dropped_before()["stdout"] > 0
    assert reader.lines_before("stdout", 10_000) == 1000
    assert reader.lines_before("stdout", 9_990) == 999
    page = reader.tail(200)
    assert reader.lines_before("stdout", page.chunks[0][1]) == 800
    assert reader.lines_at("stdout", [5, 9_990, 9_995, 10_000]) == [None, 999, 999, 1000]
    assert reader.lines_before("stdout", 5) == reader.lines_dropped()["stdout"]


def test_lines_are_counted_on_from_counts_that_are_known(
    directory: Path, writer: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = writer(streams=("stdout",))
    log.append("stdout", b"%06d\n" * 5000 % tuple(range(5000)))
    reader = Log(str(directory))
    # Several blocks, as a log of megabytes has.
    monkeypatch.setattr("holdfast.sessions.log.PIECE_BYTES", 4096)
    rng = random.Random(7)
    known: list[tuple[int, int]] = []
    for _ in range(50):
        offsets = sorted(rng.sample(range(7 * 5000), rng.choice((1, 3))))
        assert reader.lines_at("stdout", offsets, known) == [at // 7 for at in offsets]
        assert known == sorted(set(known))
    assert len(known) > 4
    # A wrong count shows that it was gone on from.
    at, count = known[-1]
    assert reader.lines_at("stdout", [at + 7], [(at, count + 1000)]) == [(at + 7) // 7 + 1000]


def test_nothing_stays_open_after_a_call(directory: Path, writer: Write) -> None:
    log = writer(segment=10)
    for number in range(9):
        log.append("stdout", b"out %d\n" % number)
        log.append("stderr", b"err %d\n" % number)
    reader = Log(str(directory))
    before = os.listdir("/proc/self/fd")
    reader.read()
    reader.tail(5)
    next(reader.raw("stdout"))
    reader.lines_before("stdout", 20)
    assert len(os.listdir("/proc/self/fd")) == len(before)
