"""Which features a runner loads: those that its session asks for."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# One whole session in this process, and the optional modules that it has loaded then.
SCRIPT = """
import _socket, json, sys
sys.path.insert(0, sys.argv[1])
from holdfast.runner import rehearsal, session
request = rehearsal.start_request(sys.argv[2], ["true"])
request["spec"].update(json.loads(sys.argv[3]), created_at="2026-01-01T00:00:00.000Z")
ours, theirs = _socket.socketpair()
session.run(theirs, request, [])
optional = ("features.monitor", "features.needs_input.feature", "features.readiness", "terminal.terminal")
print(json.dumps([name for name in optional if "holdfast.runner." + name in sys.modules]))
"""
READY = {"probes": [{"told": True}], "mode": "all", "timeout": 5, "owner_check": True}


@pytest.mark.parametrize(
    "asked, loaded",
    [
        ({}, []),
        ({"stdin": "open"}, ["features.needs_input.feature"]),
        ({"ready": READY}, ["features.readiness"]),
    ],
    ids=["nothing", "stdin", "ready"],
)
def test_a_runner_loads_only_the_features_that_its_session_asks_for(
    tmp_path: Path, asked: dict[str, object], loaded: list[str]
) -> None:
    import holdfast

    (tmp_path / "sessions").mkdir(0o700)
    source = Path(holdfast.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", SCRIPT, str(source), str(tmp_path), json.dumps(asked)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert json.loads(done.stdout) == loaded
