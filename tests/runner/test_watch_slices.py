"""The matcher as a reader of the log: it finds what a naive one finds, in slices that leave time for all else."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.runner import scan as scan_module
from holdfast.runner.fence import Fence
from holdfast.runner.lines import Line, Lines
from holdfast.runner.log import Log
from holdfast.runner.patterns import Pattern
from holdfast.runner.scan import Scan
from support.scale import scaled
from support.still_life import still_life
from support.watched import Watched


class Reading:
    """One stream of a real log, and the matcher that reads it."""

    def __init__(self, directory: Path, patterns: list[Pattern], now: Callable[[], float] = lambda: 0.0) -> None:
        self._fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        self.log = Log(
            self._fd,
            ["stdout"],
            cap_bytes=1 << 26,
            segment_bytes=1 << 20,
            free_floor_bytes=0,
            say=lambda _text: None,
        )
        self.found: list[tuple[str, int, str]] = []
        self.scan = Scan(self.log, "stdout", Fence(), self._note, now, None)
        self.scan.set_patterns(patterns)

    def _note(self, _stream: str, pattern: Pattern, line: Line, _before: list[str]) -> None:
        self.found.append((pattern.id, line.offset, line.text))

    def close(self) -> None:
        self.log.close()
        os.close(self._fd)


PATTERNS = [
    Pattern({"id": "w1", "literal": "ERROR"}),
    Pattern({"id": "w2", "literal": "stra\u00dfe kiss", "ignore_case": True}),
    Pattern({"id": "w3", "regex": r"took \d+ms$"}),
    Pattern({"id": "w4", "regex": "(?i)fail(?:ed|ure)"}),
]


def naive(output: bytes, patterns: list[Pattern]) -> list[tuple[str, int, str]]:
    """Every line, every pattern."""
    lines = Lines()
    found, again = [], False
    for line in [*lines.feed(output), *lines.end()]:
        first = next((pattern for pattern in patterns if pattern.matches(line, again=again)), None)
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


@given(_lines, st.integers(1, 200), st.lists(st.sampled_from(PATTERNS), min_size=1, unique=True))
@settings(max_examples=scaled(20, 100), deadline=None)
def test_the_matcher_finds_what_a_naive_one_finds(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], block: int, patterns: list[Pattern]
) -> None:
    output = b"".join(lines)
    reading = Reading(tmp_path_factory.mktemp("reading"), patterns)
    try:
        reading.log.append("stdout", output)
        sizes: dict[str, Any] = {"_BLOCK_BYTES": block, "_ODD_BLOCK_BYTES": 1 + block // 2, "_TAKEN_AT_ONCE": 3}
        with patch.multiple(scan_module, **sizes):
            while not reading.scan.step(1.0):
                pass
            reading.scan.finish()
    finally:
        reading.close()

    assert reading.found == naive(output, patterns)
    assert reading.scan.unscanned == 0


def test_a_slice_ends_when_its_time_is_over_and_goes_on_where_it_was(tmp_path: Path) -> None:
    ticks = iter(range(1 << 20))
    reading = Reading(tmp_path, PATTERNS, now=lambda: float(next(ticks)))
    for number in range(20):
        reading.log.append("stdout", b"an ERROR %d\n" % number * 1000)

    slices = 0
    while not reading.scan.step(0.0):
        slices += 1
        assert len(reading.found) <= 16 * slices
    reading.close()

    assert slices > 100
    assert len(reading.found) == 20_000


def test_what_is_not_looked_at_in_time_is_counted_to_the_byte(tmp_path: Path) -> None:
    reading = Reading(tmp_path, PATTERNS)
    reading.log.append("stdout", b"an ERROR here\n" * 10_000)
    for _ in range(3):
        reading.scan.step(-1.0)
    seen = len(reading.found)

    reading.scan.finish()
    reading.close()

    assert 0 < seen < 10_000
    assert reading.scan.unscanned == 14 * (10_000 - seen)


def watched(life: Any, home: Path, *patterns: str | dict[str, Any]) -> Watched:
    return Watched(life, home, "b1", patterns)


def test_after_each_slice_the_others_get_twice_its_time(tmp_path: Path) -> None:
    with still_life(tmp_path) as life:
        one = watched(life, tmp_path, "ERROR")

        def now() -> float:
            one.clock.now += 0.001
            return one.clock.now

        one.watch._now = now
        for scan in one.watch._scans.values():
            scan._now = now
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
