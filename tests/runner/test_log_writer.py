"""The log writer against what was written: every byte is stored, dropped or in a gap, and counted as that."""

from __future__ import annotations

import errno
import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import clock, failpoints, records
from holdfast.runner.log import FRAME_BYTES, FRAMES_MAX_BYTES, LogWriter
from holdfast.sessions import segments as frame_reader
from support.scale import scaled

CAP = 2000
SEGMENT = 300
CHUNK_MAX = CAP // 8
STREAMS = ("stdout", "stderr")

# Line ends stand so that dropping at any offset changes the count in a way that is easy to get wrong.
_PATTERN = b"".join(bytes([1 + n % 250]) * (n % 7) + b"\n" for n in range(997))


def printed(stream: str, begin: int, end: int) -> bytes:
    """What a stream prints at these offsets: known for every single one."""
    shift = 13 if stream == "stderr" else 0
    first = (begin + shift) % len(_PATTERN)
    copies = (end - begin) // len(_PATTERN) + 2
    return (_PATTERN * copies)[first : first + end - begin]


class Desk:
    """A directory with a log in it, and what the model says of it."""

    def __init__(self, path: Path, cap: int = CAP, segment: int = SEGMENT, floor: int = 0) -> None:
        self.path = path
        self.fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self.said: list[str] = []
        self.cap = cap
        self.log = LogWriter(
            self.fd,
            list(STREAMS),
            cap_bytes=cap,
            segment_bytes=segment,
            free_floor_bytes=floor,
            say=self.said.append,
        )
        self.ends = dict.fromkeys(STREAMS, 0)

    def append(self, stream: str, size: int) -> None:
        begin = self.ends[stream]
        self.ends[stream] = begin + size
        self.log.append(stream, printed(stream, begin, begin + size))

    def segments(self, stream: str) -> list[tuple[int, bytes]]:
        found = sorted(self.path.glob(f"{stream}.{'[0-9]' * 20}"))
        return [(int(path.name.rpartition(".")[2]), path.read_bytes()) for path in found]

    def check(self) -> None:
        """Disk, facts and what was printed agree, to the byte."""
        facts = self.log.facts()
        assert facts["ends"] == self.ends
        assert facts["gaps_more"] == 0
        on_disk = 0
        for stream in STREAMS:
            end, dropped = self.ends[stream], facts["dropped_before"][stream]
            assert facts["lines"][stream] == printed(stream, 0, end).count(b"\n")
            spans = []
            for first, data in self.segments(stream):
                assert data == printed(stream, first, first + len(data))
                assert data, "an empty segment is left"
                spans.append((first, first + len(data)))
                on_disk += len(data)
            gaps = [(gap["from"], gap["to"]) for gap in facts["gaps"] if gap["stream"] == stream]
            assert all(gap["reason"] == "disk" for gap in facts["gaps"])
            # The retained part is covered exactly once, by a segment or by a gap.
            kept = sorted(span for span in spans + gaps if span[1] > dropped)
            edges = [dropped, *[edge for span in kept for edge in span], end]
            assert edges[::2] == edges[1::2], (edges, spans, gaps)
            refused = sum(printed(stream, *gap).count(b"\n") for gap in gaps if gap[1] <= dropped)
            assert facts["lines_dropped"][stream] == printed(stream, 0, dropped).count(b"\n") - refused
            note = self.path / f"{stream}.dropped"
            if dropped:
                assert note.read_text().split() == [str(dropped), str(facts["lines_dropped"][stream])]
        assert facts["log_bytes"] == self.log.size == on_disk <= self.cap
        self._check_frames()

    def _check_frames(self) -> None:
        path = self.path / "frames"
        if not path.exists():
            return
        assert path.stat().st_size % FRAME_BYTES == 0
        assert path.stat().st_size <= min(FRAMES_MAX_BYTES, self.cap // 8)
        assert not (self.path / "frames.tmp").exists()
        at = dict.fromkeys(STREAMS, 0)
        for stream, begin, end in frame_reader.load(str(self.path), whole=True).walk(0):
            assert at[stream] <= begin < end <= self.ends[stream]
            at[stream] = end

    def close(self) -> None:
        self.log.close()
        os.close(self.fd)


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    made = Desk(tmp_path)
    yield made
    made.close()


@contextmanager
def faults(plan: str) -> Iterator[None]:
    failpoints.reload({"HOLDFAST_POINTS": plan})
    try:
        yield
    finally:
        failpoints.reload({})


_now = [10**18]


@contextmanager
def ticking(step_ns: int) -> Iterator[None]:
    """Each look at the clock finds it `step_ns` later; it never goes back, not even for the next test."""

    def mono_ns() -> int:
        _now[0] += step_ns
        return _now[0]

    with patch.object(clock, "mono_ns", mono_ns):
        yield


appends = st.lists(st.tuples(st.sampled_from(STREAMS), st.integers(1, CHUNK_MAX)), max_size=40)
refusals = st.lists(
    st.tuples(
        st.sampled_from(["log.append", "log.rotate", "log.frame"]),
        st.integers(1, 40),
        st.sampled_from(["", "+"]),
        st.sampled_from(["EIO", "ENOSPC", "EROFS", "EDQUOT"]),
    ),
    max_size=6,
)


@given(appends)
def test_any_appends_under_a_cap_keep_the_tail_and_count_the_rest(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        desk = Desk(Path(directory))
        for step in steps:
            desk.append(*step)
            desk.check()
        assert desk.log.gaps == []
        assert desk.said == []
        desk.close()


@given(appends, refusals, st.sampled_from([0, 30_000_000, 200_000_000]))
@settings(max_examples=scaled(20, 100))
def test_any_appends_with_any_refusals_leave_every_byte_accounted_for(
    steps: list[tuple[str, int]], refused: list[tuple[str, int, str, str]], step_ns: int
) -> None:
    plan = ";".join(f"{point}={nth}{onward}*error:{name}" for point, nth, onward, name in refused)
    with tempfile.TemporaryDirectory() as directory, faults(plan), ticking(step_ns):
        desk = Desk(Path(directory))
        for step in steps:
            desk.append(*step)
            desk.check()
        desk.close()


def test_a_segment_is_full_before_the_next_begins_and_its_name_is_its_first_offset(desk: Desk) -> None:
    for _ in range(5):
        desk.append("stdout", 150)
    assert [(first, len(data)) for first, data in desk.segments("stdout")] == [(0, 300), (300, 300), (600, 150)]


def test_a_segment_is_at_most_a_quarter_of_the_cap(tmp_path: Path) -> None:
    desk = Desk(tmp_path, cap=400, segment=1 << 20)
    for _ in range(5):
        desk.append("stdout", 50)
    assert [len(data) for _, data in desk.segments("stdout")] == [100, 100, 50]
    desk.close()


@given(st.lists(st.tuples(st.sampled_from(STREAMS), st.integers(1, 2 * CAP)), max_size=6))
def test_chunks_larger_than_the_cap_itself_never_exceed_it(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        desk = Desk(Path(directory))
        for step in steps:
            desk.append(*step)
            desk.check()
        desk.close()


@pytest.mark.covers("LOG-03")
def test_log_and_frames_together_keep_within_the_cap_also_while_the_frames_are_copied(tmp_path: Path) -> None:
    """On faulty code the frames came on top: with segments that are small against the cap, more than one of them."""
    desk = Desk(tmp_path, cap=20_000, segment=300)
    copied = 0

    def usage() -> int:
        return sum(path.stat().st_size for path in tmp_path.iterdir() if path.name[-7:] != "dropped")

    def rename(source: str, *args: Any, **options: Any) -> None:
        nonlocal copied
        if source == "frames.tmp":
            copied += 1
            assert usage() <= 20_000 + 300
        real(source, *args, **options)

    real = os.rename
    with patch.object(os, "rename", rename):
        for n in range(2000):
            desk.append(STREAMS[n % 2], 30)
            assert usage() <= 20_000
    desk.check()
    assert copied > 10
    assert desk.log.size > 15_000, "nearly all of the cap is for the log itself"
    desk.close()


def test_a_stream_that_prints_nothing_has_no_file(desk: Desk) -> None:
    desk.append("stdout", 5)
    assert desk.segments("stderr") == []
    assert desk.log.facts()["ends"] == {"stdout": 5, "stderr": 0}


def test_the_oldest_segment_goes_first_whichever_stream_it_is_of(desk: Desk) -> None:
    desk.append("stderr", 200)
    for _ in range(12):
        desk.append("stdout", 200)
    facts = desk.log.facts()
    # The open segment of the quiet stream is its tail and stays; the loud one pays.
    assert facts["dropped_before"]["stderr"] == 0
    assert facts["dropped_before"]["stdout"] > 0
    desk.check()


def test_a_refused_range_is_one_gap_however_often_it_was_tried(desk: Desk) -> None:
    desk.append("stdout", 100)
    desk.append("stderr", 40)
    with faults("log.append=error:ENOSPC"), ticking(200_000_000):
        for _ in range(200):
            desk.append("stdout", 10)
            desk.append("stderr", 7)
    assert desk.log.facts()["gaps"] == [
        {"stream": "stdout", "from": 100, "to": 2100, "reason": "disk"},
        {"stream": "stderr", "from": 40, "to": 1440, "reason": "disk"},
    ]
    with ticking(200_000_000):
        desk.append("stdout", 50)
    assert [first for first, _ in desk.segments("stdout")] == [0, 2100]
    desk.check()
    assert len([text for text in desk.said if "refuses the log of stdout" in text]) == 1


def test_a_full_disk_that_still_takes_names_is_not_filled_with_empty_files(desk: Desk) -> None:
    desk.append("stdout", 100)
    with faults("log.append=error:ENOSPC"), ticking(200_000_000):
        for _ in range(500):
            desk.append("stdout", 10)
    assert sorted(os.listdir(desk.path)) == ["frames", f"stdout.{0:020d}"]


def test_a_refusing_disk_is_not_asked_at_every_append(desk: Desk) -> None:
    with faults("log.rotate=error:ENOSPC"), ticking(10_000_000):
        for _ in range(100):
            desk.append("stdout", 1)
        tried = failpoints._passes["log.rotate"]
    assert tried == 10


def test_a_write_that_is_cut_short_stores_what_was_taken_and_no_more(desk: Desk) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (137, before[1]))
    try:
        desk.append("stdout", 100)
        desk.append("stdout", 100)
        desk.append("stdout", 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert desk.log.facts()["gaps"] == [{"stream": "stdout", "from": 137, "to": 220, "reason": "disk"}]
    desk.check()
    with ticking(10**9):
        desk.append("stdout", 10)
    desk.check()
    assert [(first, len(data)) for first, data in desk.segments("stdout")] == [(0, 137), (220, 10)]


def test_more_gaps_than_are_listed_are_counted(desk: Desk) -> None:
    plan = ";".join(f"log.append={2 * n}*error:EIO" for n in range(1, 100))
    with faults(plan), ticking(10**9):
        for _ in range(160):
            desk.append("stdout", 3)
    facts = desk.log.facts()
    assert len(facts["gaps"]) == 64 + 1  # the one that is still open is listed beside them
    assert facts["gaps_more"] == 80 - 65
    assert facts["gaps"][-1]["to"] == 480


def test_a_frames_file_above_its_share_keeps_the_newer_half(tmp_path: Path) -> None:
    desk = Desk(tmp_path, cap=64 << 10, segment=8 << 10)
    share = (64 << 10) // 8
    for _ in range(share // FRAME_BYTES):
        desk.append("stdout", 1)
    assert (tmp_path / "frames").stat().st_size == share
    desk.append("stdout", 1)
    assert (tmp_path / "frames").stat().st_size == share // 2
    frames = frame_reader.load(str(tmp_path), whole=True)
    spans = [span for _, *span in frames.walk(0)]
    assert spans == [[n, n + 1] for n in range(desk.ends["stdout"] - share // 2 // FRAME_BYTES, desk.ends["stdout"])]
    assert frames.trimmed()
    desk.check()
    desk.close()


def test_frames_that_cannot_be_halved_are_given_up_and_started_again(tmp_path: Path) -> None:
    desk = Desk(tmp_path, cap=8 << 10, segment=1 << 10)
    with patch.object(records, "create", side_effect=OSError(errno.ENOSPC, "no space")):
        for _ in range(100):
            desk.append("stdout", 3)
            assert (tmp_path / "frames").stat().st_size <= 1 << 10
    desk.append("stdout", 3)
    desk.check()
    assert [text for text in desk.said if "frames" in text]
    desk.close()


def test_a_frame_cut_short_does_not_shift_the_ones_behind_it(desk: Desk) -> None:
    desk.append("stdout", 5)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FRAME_BYTES + 10, before[1]))
    try:
        desk.append("stdout", 5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    desk.append("stdout", 5)
    desk.check()
    assert [span for _, *span in frame_reader.load(str(desk.path)).walk(0)] == [[0, 5], [10, 15]]


def test_below_the_free_space_floor_only_the_newest_segments_stay(tmp_path: Path) -> None:
    desk = Desk(tmp_path, cap=64 << 20, segment=1 << 20, floor=1 << 62)
    for _ in range(6):
        desk.append("stdout", 1 << 20)
    assert len(desk.segments("stdout")) <= 3
    assert desk.segments("stdout")[-1][0] + len(desk.segments("stdout")[-1][1]) == 6 << 20
    assert desk.log.facts()["dropped_before"]["stdout"] > 0
    assert any("below the floor" in text for text in desk.said)
    desk.check()
    desk.close()


def test_a_truncated_segment_keeps_later_offsets_right(desk: Desk) -> None:
    desk.append("stdout", 100)
    os.truncate(desk.path / f"stdout.{0:020d}", 30)
    desk.append("stdout", 50)
    assert desk.segments("stdout") == [(0, printed("stdout", 0, 30)), (100, printed("stdout", 100, 150))]
    assert desk.log.size == 80
    assert any("was changed by another process" in text for text in desk.log.warnings)


def test_a_removed_segment_is_followed_by_a_new_one(desk: Desk) -> None:
    desk.append("stdout", 100)
    (desk.path / f"stdout.{0:020d}").unlink()
    desk.append("stdout", 50)
    assert desk.segments("stdout") == [(100, printed("stdout", 100, 150))]
    assert desk.log.size == 50
    for _ in range(12):
        desk.append("stdout", 200)
    assert desk.log.size <= CAP
    assert any("already gone" in text for text in desk.said)


def test_a_segment_that_cannot_be_dropped_stays_in_the_count(desk: Desk) -> None:
    """On the faulty code its bytes were taken off the books and the cap was exceeded for ever after."""
    for _ in range(8):
        desk.append("stdout", 200)
    first = desk.path / f"stdout.{0:020d}"
    saved = first.read_bytes()
    first.unlink()
    first.mkdir()
    with ticking(10**9):
        desk.append("stdout", 200)
        desk.append("stdout", 200)
        first.rmdir()
        first.write_bytes(saved)
        desk.append("stdout", 200)
    desk.check()


def test_no_descriptor_for_a_new_segment_means_going_on_in_the_old_one(desk: Desk) -> None:
    with faults("log.rotate=2+*error:EMFILE"):
        for _ in range(5):
            desk.append("stdout", 150)
    assert [(first, len(data)) for first, data in desk.segments("stdout")] == [(0, 750)]
    assert any("no descriptor" in text for text in desk.log.warnings)
    desk.append("stdout", 150)
    assert [first for first, _ in desk.segments("stdout")] == [0, 750]
    desk.check()


def test_warnings_are_said_once_and_bounded(desk: Desk) -> None:
    for n in range(40):
        desk.log._warn(f"text {n}")
        desk.log._warn(f"text {n % 3}")
    assert len(desk.log.warnings) == 16
    assert desk.said == [f"text {n}" for n in range(40)]


def test_everything_is_synced_also_what_lies_in_closed_segments(desk: Desk) -> None:
    for _ in range(6):
        desk.append("stdout", 200)
    names = {path.name for path in desk.path.iterdir()}
    synced: list[str] = []
    with patch.object(os, "fsync", lambda fd: synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)):
        desk.log.sync()
    assert set(synced) == names
