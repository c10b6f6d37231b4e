"""The scratch directory of a launcher, which it removes when it leaves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from holdfast.runner import rehearsal
from support.scale import scaled
from support.waiting import until

# A spare that rehearses again and again, as long as it can.
SPARE = """
import os, sys
from holdfast.runner import rehearsal
while os.path.isdir(sys.argv[1]):
    rehearsal.rehearse(sys.argv[1])
"""


def test_a_scratch_directory_is_removed_while_a_spare_still_rehearses_in_it(tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    for _ in range(scaled(5, 50)):
        scratch.mkdir(mode=0o700)
        spare = subprocess.Popen([sys.executable, "-c", SPARE, str(scratch)])
        until(lambda: list(scratch.glob("*/sessions/*")), what="a rehearsal")
        rehearsal.forget(str(scratch))
        assert not scratch.exists()
        assert spare.wait(30) == 0
        assert not scratch.exists()
