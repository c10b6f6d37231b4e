"""Bystanders: processes that record each signal they get. None may get any."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support import probe, processes
from support.waiting import BOUND_S, Lines

_RECORDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "child", "recorder.py")


class Bystander:
    """One recording process, with `words` in its command line, for code that matches by text."""

    def __init__(self, place: str, *words: str, own_group: bool = True) -> None:
        self.place = place
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", _RECORDER, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            process_group=0 if own_group else None,
        )
        assert self._process.stdout is not None
        self.pid = self._process.pid
        self.pgid = self.pid if own_group else os.getpgrp()
        row = processes.look(self.pid)
        assert row is not None
        self.start = row.start
        self._lines = Lines(self._process.stdout.fileno(), f"the bystander {place}")

    def wait_ready(self) -> None:
        assert self._lines.next() == "ready"

    def look(self) -> list[str]:
        """What happened to it since the last call; it keeps running."""
        assert self._process.stdin is not None
        happened = self._stopped()
        try:
            os.write(self._process.stdin.fileno(), b"?")
            while (line := self._lines.next()) != "still":
                if not line:
                    break
                happened.append(line)
        except BrokenPipeError:
            pass
        if processes.is_gone(self.pid, self.start):
            happened.append("its end")
        return happened

    def _stopped(self) -> list[str]:
        row = processes.look(self.pid)
        if row is None or row.state not in "Tt":
            return []
        self._process.send_signal(signal.SIGCONT)
        return ["STOP"]

    def ask(self) -> list[str]:
        """End it and say what happened to it; an empty list is what must be."""
        assert self._process.stdin is not None
        happened = self._stopped()
        self._process.stdin.close()
        while (line := self._lines.next()) not in ("", "done"):
            happened.append(line)
        code = self._process.wait(BOUND_S)
        assert self._process.stdout is not None
        self._process.stdout.close()
        if code < 0:
            happened.append(signal.Signals(-code).name.removeprefix("SIG"))
        return happened


class Bystanders:
    """One in a group of its own, one in the test's group, one that looks like a runner and its probe."""

    def __init__(self) -> None:
        look_alike = [*probe.argv("ready", "forever"), "holdfast", "runner", "launcher"]
        self.own = Bystander("in its own group")
        self.ours = Bystander("in the test's group", own_group=False)
        self.alike = Bystander("with a look-alike command line", *look_alike)
        self.all = [self.own, self.ours, self.alike]
        for one in self.all:
            one.wait_ready()

    def like(self, *words: str) -> Bystander:
        """One more, with this text in its command line."""
        more = Bystander(f"that looks like {' '.join(words)!r}", *words)
        self.all.append(more)
        more.wait_ready()
        return more

    def verdict(self) -> list[str]:
        """One line for each bystander that was hit; ends them all."""
        return self._told([(one.place, one.ask()) for one in self.all])

    def so_far(self) -> list[str]:
        """The same of those that stay for the next test; the others end."""
        staying = [self.own, self.ours, self.alike]
        told = [(one.place, one.look()) for one in staying]
        told += [(one.place, one.ask()) for one in self.all if one not in staying]
        self.all = staying
        return self._told(told)

    def _told(self, told: list[tuple[str, list[str]]]) -> list[str]:
        return [f"the bystander {place} received {', '.join(happened)}" for place, happened in told if happened]


# One set for all tests of this process: three interpreters take longer to start than most tests.
_shared: list[Bystanders] = []


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before the census counts."""
    if not _shared and "bystander" in getattr(item, "fixturenames", ()):
        _shared.append(Bystanders())


def pytest_sessionfinish() -> None:
    while _shared:
        _shared.pop().verdict()


@pytest.fixture
def bystander() -> Iterator[Bystanders]:
    """Processes beside the test that must not receive any signal."""
    (beside,) = _shared
    yield beside
    hit = beside.so_far()
    if hit:
        # The next test gets others.
        _shared.clear()
        beside.verdict()
    assert not hit, "; ".join(hit)
