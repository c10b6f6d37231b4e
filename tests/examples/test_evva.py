"""The scripted agent with evva's tools does what it says, and leaves nothing running."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.world import World

EXAMPLE = Path(__file__).parents[2] / "examples" / "evva_agent.py"


def test_the_agent_breaks_gets_notified_and_repairs_across_its_own_restart(world: World) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(world.cwd)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    order = ["the server answers; now", "I replace myself", "failed, exit code 1", "the error: ", "answers again"]
    places = [said.index(part) for part in order]
    assert places == sorted(places)
    assert "NameError: name 'HttpServer' is not defined" in said
    assert re.search(r"no daemons\s*$", said)
    assert world.open().sessions() == []
