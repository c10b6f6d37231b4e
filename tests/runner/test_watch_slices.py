"""The matcher as a reader of the log: it finds what a naive one finds, in slices that leave time for all else."""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.vt.text import Line, Lines
from holdfast.runner.features import line_reader
from holdfast.runner.features.patterns import Pattern
from support.scale import scaled
from support.still_life import Watched, still_life


class Reading:
    """One stream of a real log, and the watch that reads it."""

    def __init__(self, directory: Path, patterns: list[dict[str, Any]], stack: ExitStack) -> None:
        life = stack.enter_context(still_life(directory, streams=("stdout",)))
        self.watched = Watched(life, directory, "b1", tuple(patterns))
        self.following = self.watched.watch._follower
        self.found: list[tuple[str, int, str]] = []
        stack.enter_context(patch.object(self.watched.watch, "_found", self._note))

    def _note(self, _stream: str, pattern: Pattern, line: Line, _before: list[str]) -> None:
        self.found.append((pattern.id, line.offset, line.text))


PATTERNS: list[dict[str, Any]] = [
    {"literal": "ERROR"},
    {"literal": "stra\u00dfe kiss", "ignore_case": True},
    {"regex": r"took \d+ms$"},
    {"regex": "(?i)fail(?:ed|ure)"},
]


def naive(output: bytes, patterns: list[Pattern]) -> list[tuple[str, int, str]]:
    """Every line, every pattern."""
    lines = Lines()
    found, again = [], False
    for line in [*lines.feed(output), *lines.end()]:
        first = next((pattern for pattern in patterns if pattern.matches(line, matched_before=again)), None)
        if first is not None:
            found.append((first.id, line.offset, line.text))
        again = first is not None and line.cut
    return found


_lines = st.lists(
    st.sampled_from(
        [
            *(b"all is well\n", b"\n", b"an ERROR here\n", b"took 12ms\r\n", b"took 12ms or so\r\n", b"Failure\n"),
            *(
                "STRA\u00dfE \u212aiss \u00e9\n".encode(),
                b"\x1b[31mERR\x1b[0mOR\n",
                b"10%\r20%\rERROR\rERROR\n",
                b"half a line, ",
            ),
            *(b"ERR\x1b]0;title\x07OR\n", b"ERR\x00OR\n", b"x" * 70, b"failed\n", b"\xff\xfe\n"),
        ]
    ),
    max_size=30,
)


@given(_lines, st.integers(1, 200), st.lists(st.sampled_from(PATTERNS), min_size=1, unique_by=str))
@settings(max_examples=scaled(20, 100), deadline=None)
def test_the_matcher_finds_what_a_naive_one_finds(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], block: int, patterns: list[dict[str, Any]]
) -> None:
    output = b"".join(lines)
    with ExitStack() as stack:
        reading = Reading(tmp_path_factory.mktemp("reading"), patterns, stack)
        sizes: dict[str, Any] = {"_BLOCK_BYTES": block, "_ODD_BLOCK_BYTES": 1 + block // 2, "_TAKEN_AT_ONCE": 3}
        with patch.multiple(line_reader, **sizes):
            reading.watched.life.prints(output)
            while not reading.following.read(1.0):
                pass
            unscanned = reading.watched.ends()["unscanned"]

    numbered = [Pattern({"id": f"w{number}", **each}) for number, each in enumerate(patterns, 1)]
    assert reading.found == naive(output, numbered)
    assert unscanned == 0


def test_a_slice_ends_when_its_time_is_over_and_continues_where_it_was(tmp_path: Path) -> None:
    with ExitStack() as stack:
        reading = Reading(tmp_path, PATTERNS, stack)
        for number in range(20):
            reading.watched.life.prints(b"an ERROR %d\n" % number * 1000)

        slices = 0
        while not reading.following.read(0.0):
            slices += 1
            assert len(reading.found) <= 16 * slices

    assert slices > 100
    assert len(reading.found) == 20_000


def test_what_is_not_looked_at_in_time_is_counted_to_the_byte(tmp_path: Path) -> None:
    with ExitStack() as stack:
        reading = Reading(tmp_path, PATTERNS, stack)
        reading.watched.life.prints(b"an ERROR here\n" * 10_000)
        for _ in range(3):
            reading.following.read(-1.0)
        seen = len(reading.found)
        reading.following.give_up()

        assert 0 < seen < 10_000
        assert reading.watched.ends()["unscanned"] == 14 * (10_000 - seen)


def watched(life: Any, home: Path, *patterns: str | dict[str, Any]) -> Watched:
    return Watched(life, home, "b1", patterns)


def test_after_each_slice_the_others_get_twice_its_time(tmp_path: Path) -> None:
    with still_life(tmp_path) as life, ExitStack() as stack:
        one = watched(life, tmp_path, "ERROR")

        def now() -> float:
            one.clock.now += 0.001
            return one.clock.now

        stack.enter_context(patch.object(time, "monotonic", now))
        life.prints(b"fine\n" * 2_000_000)
        spent: list[float] = []
        rests: list[float] = []
        while one.clock.armed:
            [timer] = [timer for timer in one.clock.timers if timer.call is not None]
            rests.append(timer.at - one.clock.now)
            one.clock.now = max(one.clock.now, timer.at)
            began = one.clock.now
            call, timer.call = timer.call, None
            assert call is not None
            call()
            spent.append(one.clock.now - began)
            if len(spent) < 5:
                life.prints(b"more\n")

    assert len(spent) > 10
    # While nothing more comes there is nobody to rest for.
    assert all(rest <= 0 for rest in rests[6:])
    spent, rests = spent[:5], rests[:5]
    assert all(rest >= 2 * slice_s - 0.003 for slice_s, rest in zip(spent[:-1], rests[1:], strict=True))


@pytest.mark.covers("signals:31")
def test_no_regex_holds_the_loop_for_long(tmp_path: Path) -> None:
    with still_life(tmp_path) as life:
        one = watched(life, tmp_path, {"regex": "(?:a|aa)*$"}, {"regex": "(x|y).*(.|z).*(?:u|v)$"})
        life.prints(("a" * 100 + "!\n" + "x" * 8000 + "\n") * 100)
        longest = 0.0
        while one.clock.armed:
            [timer, *_] = sorted((each for each in one.clock.timers if each.call is not None), key=lambda each: each.at)
            call, timer.call = timer.call, None
            assert call is not None
            began = time.process_time()
            call()
            longest = max(longest, time.process_time() - began)

    assert one.disabled[0]["reason"] == "too_slow"
    assert longest < 0.05
