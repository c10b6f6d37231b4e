"""The copy of a session that runs in another place: what it takes, and what it refuses."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.places import copy as copies
from holdfast.places import mirror


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def piece(name: str, at: int = 0, *, anew: bool = False, last: bool = True) -> dict[str, object]:
    return {"type": "piece", "name": name, "at": at, "anew": anew, "last": last}


def test_a_large_log_of_small_segments_is_copied_whole(directory: int) -> None:
    cap, segment = 2048 << 10, 1 << 10
    copy = copies.Copy(directory, {}, cap + 2 * segment, copies.segments_max(cap, segment))
    for number in range(2050):
        copy.take(piece(f"stdout.{number * segment:020d}", anew=True), b"x" * segment)
    with pytest.raises(copies.OverLimit, match="the log would have"):
        copy.take(piece(f"stdout.{2050 * segment:020d}", anew=True), b"x" * segment)


@pytest.mark.parametrize("cap, segment, least", [(1 << 30, 1 << 20, 1025), (1 << 20, 1 << 30, 4), (1, 1, 1), (0, 0, 0)])
def test_the_number_of_segments_follows_from_the_cap_and_their_size(cap: int, segment: int, least: int) -> None:
    assert copies.segments_max(cap, segment) >= max(1024, least)


def test_a_segment_that_is_started_again_is_counted_once_when_it_is_whole(directory: int, tmp_path: Path) -> None:
    copy = copies.Copy(directory, {}, 100)
    name = "stdout." + "0" * 20
    for _ in range(20):
        copy.take(piece(name, anew=True, last=False), b"x" * 20)
        copy.take(piece(name, 20), b"x" * 20)
    assert (tmp_path / name).stat().st_size == 40
    with pytest.raises(copies.OverLimit, match="102 bytes"):
        copy.take(piece(name, 40), b"x" * 62)


def test_a_piece_continues_where_the_copy_said_that_it_ends(directory: int, tmp_path: Path) -> None:
    name = "stdout." + "0" * 20
    (tmp_path / name).write_bytes(b"came, and what a host has added")
    (tmp_path / "away.json").write_text(json.dumps({"sizes": {name: 4}}))
    copy = copies.Copy(directory, {}, 100)
    assert copy.have()[name][0] == 4
    copy.take(piece(name, 4), b"more")
    with pytest.raises(copies.OverLimit, match="at 4, after one that ended at 8"):
        copy.take(piece(name, 4), b"again")


def test_a_report_is_sent_up_to_its_limit(tmp_path: Path) -> None:
    report = tmp_path / "report"
    report.write_bytes(b"x" * (70 << 10))
    growth = mirror.Growth(str(tmp_path), {})
    assert sum(len(raw) for _, raw in growth.pieces()) == mirror.limit("report") == 64 << 10
    report.write_bytes(b"x" * (80 << 10))
    assert list(growth.pieces()) == []


def test_an_exit_record_is_never_sent_before_a_file_that_was_written_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A listing may miss the first and contain the second of two files that appear while it is read."""
    growth = mirror.Growth(str(tmp_path), {})

    def racing(path: str) -> list[str]:
        for name in ("report", "exit.json"):
            (tmp_path / name).write_text("{}")
        return ["exit.json"]

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", racing)
        assert list(growth.pieces()) == []
    assert [heading["name"] for heading, _ in growth.pieces()] == ["report", "exit.json"]
