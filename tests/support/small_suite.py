"""Run a few lines of tests under the harness, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Mapping

from support.promises import REPOSITORY
from support.world import World

_HEAD = """
import fcntl, os, socket, subprocess, sys, threading
from pathlib import Path
import pytest
from support import census, probe
"""


def run(world: World, body: str, *options: str, env: Mapping[str, str] | None = None) -> str:
    """The whole report of these tests."""
    test = world.root / "test_leak.py"
    test.write_text(_HEAD + textwrap.dedent(body))
    argv = [sys.executable, "-m", "pytest", "-c", str(REPOSITORY / "pyproject.toml"), "-p", "conftest"]
    argv += ["-p", "no:cacheprovider", "-p", "no:randomly", "--rootdir", str(REPOSITORY), str(test), *options]
    ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    ours.update({"PYTHONPATH": str(REPOSITORY / "tests"), "CI": "", **(env or {})})
    done = subprocess.run(argv, capture_output=True, text=True, env=ours, timeout=60, check=False)
    return done.stdout + done.stderr
