"""Who is left of a command, as its runner sees them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest

from holdfast.runner import descriptors, tree
from holdfast.runner.family import Family


@pytest.mark.covers("KIL-04")
def test_one_that_a_walk_missed_is_found_by_the_next_while_the_kernel_says_that_somebody_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that forks and dies all the time may come to us right after we looked at our children."""
    reserve = descriptors.Reserve()
    family = Family(reserve)
    family.status = 0
    walks: Iterator[list[tree.Process]] = iter([[]])
    real = tree.descendants
    monkeypatch.setattr(tree, "descendants", lambda pid: next(walks, None) or real(pid))
    with subprocess.Popen(["sleep", "600"]) as child:
        try:
            assert child.pid in [process.pid for process in family.living()]
        finally:
            child.kill()
    reserve.close()
