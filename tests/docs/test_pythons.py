"""Every Python that the package names shows what the documents show."""

from __future__ import annotations

import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

from support import interpreters

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "pythons.sh"
HERE = "{}.{}".format(*sys.version_info)


@pytest.mark.covers("found:51")
@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("version", [version for version in interpreters.NAMED if version != HERE])
def test_documents_show_the_same_on_every_python(version: str) -> None:
    interpreters.named(version)
    words = [str(SCRIPT), "--only", version, "T=tests/docs/test_tour.py", "WORKERS=2"]
    # pip builds with what is in the real home.
    env = os.environ | {"HOME": pwd.getpwuid(os.getuid()).pw_dir}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr
