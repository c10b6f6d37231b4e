"""Who is left of a command, as its runner sees them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from holdfast.core import loop, processes
from holdfast.runner.process_tree import ProcessTree


@pytest.mark.covers("KIL-04")
def test_a_process_that_one_walk_missed_is_found_by_the_next_while_the_kernel_counts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that forks and dies all the time may come to us right after we looked at our children."""
    reserve = loop.Reserve()
    tree = ProcessTree(reserve)
    tree.wait_status = 0
    walks: Iterator[list[processes.Process]] = iter([[]])
    real = processes.descendants
    monkeypatch.setattr(processes, "descendants", lambda pid: next(walks, None) or real(pid))
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            assert child.pid in [process.pid for process in tree.living()]
        finally:
            child.kill()
    reserve.close()
