"""Both ends of any log: every line of it is shown or counted, and the cursors are right."""

from __future__ import annotations

import os
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runner.log import LogWriter
from holdfast.sessions.log import Log
from holdfast.tools.native import output
from support.scale import scaled

if TYPE_CHECKING:
    from holdfast.tools.native.output import Line

# Lines that no folding joins, some longer than what is read at once.
LINE = st.text("abcdefgh", min_size=1, max_size=40) | st.text("xyz", min_size=300, max_size=700)
CHUNKS = st.lists(
    st.tuples(st.sampled_from(["stdout", "stderr"]), st.lists(LINE, min_size=1, max_size=8), st.booleans()), max_size=40
)


@contextmanager
def written(chunks: list[tuple[str, list[str], bool]]) -> Iterator[tuple[Log, dict[str, list[str]]]]:
    """A log of these, each cut in the middle where that is said; and the lines that its streams have."""
    texts: dict[str, str] = {"stdout": "", "stderr": ""}
    with tempfile.TemporaryDirectory() as directory:
        fd = os.open(directory, os.O_RDONLY)
        log = LogWriter(
            fd, ["stdout", "stderr"], cap_bytes=1 << 26, segment_bytes=1 << 20, free_floor_bytes=0, say=lambda _: None
        )
        for stream, lines, halved in chunks:
            text = "".join(f"{line}\n" for line in lines)
            text = text[: len(text) // 2] if halved else text
            log.append(stream, text.encode())
            texts[stream] += text
        try:
            yield Log(directory), {name: text.split("\n") for name, text in texts.items()}
        finally:
            log.close()
            os.close(fd)


def by_stream(lines: list[Line], stream: str) -> list[str]:
    return [line.text for line in lines if line.stream == stream]


@settings(deadline=None)
@given(CHUNKS, st.booleans())
def test_every_line_is_shown_or_counted(chunks: list[tuple[str, list[str], bool]], whole: bool) -> None:
    head, tail = (1 << 18, 1 << 20) if whole else (200, 500)
    with pytest.MonkeyPatch.context() as patch, written(chunks) as (log, texts):
        patch.setattr(output, "HEAD_BYTES", head)
        patch.setattr(output, "TAIL_BYTES", tail)
        found = output.read_excerpt(log, None, raw=True)
        assert log.parse(found.cursor) == log.ends()
        for stream, lines in texts.items():
            lines = lines if lines[-1] else lines[:-1]
            split = found.gap if found.gap is not None else len(found.lines)
            first, last = by_stream(found.lines[:split], stream), by_stream(found.lines[split:], stream)
            count, size = found.passed.get(stream, (0, 0))
            if first and first != lines[: len(first)]:
                assert lines[0].startswith(first.pop(0))  # nothing shorter is there to begin with
                assert not first
            assert first == lines[: len(first)]
            assert len(first) + count + len(last) == len(lines)
            if last:
                assert last[1:] == lines[len(lines) - len(last) + 1 :]
                # One that is longer than all that is read of the end has lost its beginning.
                assert lines[len(lines) - len(last)].endswith(last[0])
            if first and size:
                assert found.behind[stream] == sum(len(line) + 1 for line in first)
        if found.gap is None:
            assert not found.passed


@settings(deadline=None)
@given(CHUNKS)
def test_pages_are_the_whole_log(chunks: list[tuple[str, list[str], bool]]) -> None:
    with pytest.MonkeyPatch.context() as patch, written(chunks) as (log, texts):
        patch.setattr(output, "HEAD_BYTES", 400)
        since, seen = "0", []
        for _ in range(200):
            found = output.begin_excerpt(log, since, raw=True)
            seen += found.lines
            if found.gap is None:
                break
            assert found.passed
            since = ",".join(f"{name}:{at}" for name, at in found.behind.items())
        for stream, lines in texts.items():
            # What is longer than a page comes in parts.
            assert "".join(by_stream(seen, stream)) == "".join(lines)


def test_the_last_lines_are_those_of_the_log() -> None:
    with written([("stdout", [f"{letter}" * 5 for letter in "abcdef"], False)]) as (log, _):
        found = output.last_excerpt(log, 2)
        assert [line.text for line in found.lines] == ["eeeee", "fffff"]
        assert found.begin["stdout"] == 24


@pytest.mark.slow
def test_the_size_of_a_log_costs_no_memory() -> None:
    line = "some words of a line that is as long as lines are, more or less, and says nothing"
    with written([("stdout", [line + "abcdefgh"[n % 8] for n in range(5000)], False)] * scaled(40, 100)) as (log, _):
        assert log.ends()["stdout"] > scaled(16_000_000, 40_000_000)
        tracemalloc.start()
        try:
            found = output.read_excerpt(log, None)
            output.begin_excerpt(log, None)
            output.last_excerpt(log, 100)
            assert tracemalloc.get_traced_memory()[1] < 25_000_000
        finally:
            tracemalloc.stop()
        assert sum(count for count, _ in found.passed.values()) + sum(each.times for each in found.lines) == scaled(
            200_000, 500_000
        )
