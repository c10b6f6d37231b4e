"""A short soak: what `make soak` runs for half an hour."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "bench" / "soak.py"


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.needs("namespaces")
def test_a_short_soak_has_no_violation() -> None:
    done = subprocess.run(
        [sys.executable, str(SOAK), "--minutes", "1"], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
