"""Which Pythons this machine has."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from pathlib import Path

import pytest

OLDEST = (3, 9)
_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
# Those that the package says it runs on.
NAMED = re.findall(r'Python :: (3\.\d+)"', _PROJECT.read_text())


def all_of_them() -> dict[tuple[int, int], str]:
    """One interpreter for each version 3.x found on PATH, beside it, or among those that pyenv installed."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    pyenv = os.environ.get("PYENV_ROOT") or os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".pyenv")
    folders += sorted(Path(pyenv, "versions").glob("*/bin"))
    found: dict[tuple[int, int], str] = {}
    for folder in folders:
        for path in sorted(folder.glob("python3.*")):
            named = re.fullmatch(r"python3\.(\d+)", path.name)
            if named is not None and (3, int(named[1])) not in found and works(path, int(named[1])):
                found[3, int(named[1])] = str(path)
    return found


def works(path: Path, minor: int) -> bool:
    """A shim of pyenv stands there for every version and runs only some."""
    code = "import sys; print(sys.version_info[1])"
    try:
        done = subprocess.run([path, "-I", "-S", "-c", code], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0 and done.stdout.strip() == str(minor)


FOUND = all_of_them()
NEW_ENOUGH = {version: path for version, path in FOUND.items() if version >= OLDEST}
TOO_OLD = {version: path for version, path in FOUND.items() if version < OLDEST}


def named(version: str) -> str:
    """The interpreter of a version such as `3.12`; the test is skipped without it."""
    found = FOUND.get((3, int(version.removeprefix("3."))))
    if found is None:
        pytest.skip(f"no Python {version} here")
    return found
