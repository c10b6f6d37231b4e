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

_RECORDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recorder.py")


class Bystander:
    """One recording process, with `words` in its command line for whoever matches by text."""

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

    def ask(self) -> list[str]:
        """End it and say what happened to it; an empty list is what must be."""
        assert self._process.stdin is not None
        row = processes.look(self.pid)
        happened = []
        if row is not None and row.state in "Tt":
            happened.append("STOP")
            self._process.send_signal(signal.SIGCONT)
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
        told = [(one.place, one.ask()) for one in self.all]
        return [f"the bystander {place} received {', '.join(happened)}" for place, happened in told if happened]


@pytest.fixture
def bystander() -> Iterator[Bystanders]:
    """Processes beside the test that must not receive any signal."""
    beside = Bystanders()
    yield beside
    hit = beside.verdict()
    assert not hit, "; ".join(hit)
