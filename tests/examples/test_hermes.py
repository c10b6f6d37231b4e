"""The scripted agent with the tools of hermes does what it says, and leaves nothing running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.world import World

EXAMPLE = Path(__file__).parents[2] / "examples" / "hermes_agent.py"


def test_the_agent_breaks_gets_notified_and_repairs_across_its_own_restart(world: World) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(world.cwd)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    order = ["now it is broken", "I replace myself", "it ended with 1", "the error: NameError"]
    places = [said.index(part) for part in order]
    assert places == sorted(places)
    assert said.count("the server answers: True") == 2
    rows = said.splitlines()[-3:]
    assert [row.split()[1:] for row in rows] == [["exited", "killed"], ["exited", "exited"], ["exited", "killed"]]
    assert world.open().sessions() == []
