"""The scripted agent with the tools of dominds does what it says, and leaves nothing running."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support.world import World

EXAMPLE = Path(__file__).parents[2] / "examples" / "dominds_agent.py"


def test_the_agent_is_notified_of_a_death_across_its_own_restart_and_repairs(world: World) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(world.cwd)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    said = done.stdout
    order = [
        "replacing myself",
        "reminded of: 🔄 [System notice] Daemon lifecycle reminder",
        "told: - PID: ",
        "the error: ModuleNotFoundError",
        "stopped successfully\ndone",
    ]
    places = [said.index(part) for part in order]
    assert places == sorted(places)
    assert said.count("is now running in the background") == 3
    assert world.open().sessions() == []
