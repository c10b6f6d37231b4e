"""Signals to real processes: only to the very one that was meant, and to a tree only when all of it stands still."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator

import pytest

from holdfast.core import failpoints, processes
from support import probe
from support.waiting import Lines, until


@pytest.fixture
def family() -> Iterator[subprocess.Popen[bytes]]:
    words = probe.argv("fork", "{", "forever", "}", "fork", "{", "forever", "}", "say", "forked", "forever")
    with subprocess.Popen(words, stdout=subprocess.PIPE) as program:
        assert program.stdout is not None
        lines = Lines(program.stdout.fileno(), "the family")
        while lines.next() != "forked":
            pass
        members = living(program.pid)
        yield program
        for process in members:
            processes.send(process, signal.SIGKILL)


def living(root: int) -> list[processes.Process]:
    everybody = [processes.look(root), *processes.descendants(root)]
    return [process for process in everybody if process is not None and process.state not in "ZX"]


@pytest.mark.covers("found:32")
@pytest.mark.parametrize("ability", ["", "pidfd"], ids=["pidfd", "without-pidfd"])
def test_a_process_with_another_start_time_is_not_signalled(ability: str, family: subprocess.Popen[bytes]) -> None:
    """The pid was seen to belong to another process, which ended, and the kernel gave the pid again."""
    failpoints.reload({"HOLDFAST_OFF": ability})
    try:
        start = processes.start_time(family.pid)
        for other in (start - 1, start + 1, 0):
            assert processes.send_to(family.pid, other, signal.SIGKILL) is None
        assert family.poll() is None
        assert processes.send_to(family.pid, start, signal.SIGTERM) is None
        assert family.wait(30) == -signal.SIGTERM
    finally:
        failpoints.reload({})


def swept(sweep: processes.Sweep) -> list[dict[str, object]]:
    while (survivors := sweep.step()) is None:
        pass
    return survivors


@pytest.mark.covers("found:32", "KIL-04")
def test_the_whole_tree_stands_still_before_its_first_member_is_killed(
    family: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a member that forks when another one dies would outrun the walk."""
    real = processes.send
    killed: list[int] = []

    def send(process: processes.Process, number: int) -> str | None:
        if number == signal.SIGKILL:
            if not killed:
                until(lambda: {each.state for each in living(family.pid)} == {"T"}, what="the freeze")
            killed.append(process.pid)
        return real(process, number)

    monkeypatch.setattr(processes, "send", send)
    assert len(living(family.pid)) == 3
    assert swept(processes.Sweep(lambda: living(family.pid), 5)) == []
    assert len(set(killed)) == 3
