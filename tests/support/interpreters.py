"""Which Pythons this machine has."""

from __future__ import annotations

import os
import pwd
import re
from pathlib import Path

import pytest

OLDEST = (3, 9)
_PROJECT = Path(__file__).resolve().parents[2] / "pyproject.toml"
# Those that the package says it runs on.
NAMED = re.findall(r'Python :: (3\.\d+)"', _PROJECT.read_text())


def all_of_them() -> dict[tuple[int, int], str]:
    """One interpreter for each version 3.x found on PATH, beside it, or among those that pyenv installed. None is run:
    every worker of a run must find the same ones, also on a busy machine."""
    pyenv = os.environ.get("PYENV_ROOT") or os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".pyenv")
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    # pyenv has a shim for every version, also for those that it cannot run.
    folders = [folder for folder in folders if folder != Path(pyenv, "shims")]
    folders += sorted(Path(pyenv, "versions").glob("*/bin"))
    found: dict[tuple[int, int], str] = {}
    for folder in folders:
        for path in sorted(folder.glob("python3.*")):
            named = re.fullmatch(r"python3\.(\d+)", path.name)
            if named is not None and os.access(path, os.X_OK):
                found.setdefault((3, int(named[1])), str(path))
    return found


FOUND = all_of_them()
NEW_ENOUGH = {version: path for version, path in FOUND.items() if version >= OLDEST}
TOO_OLD = {version: path for version, path in FOUND.items() if version < OLDEST}


def named(version: str) -> str:
    """The interpreter of a version such as `3.12`; the test is skipped without it."""
    found = FOUND.get((3, int(version.removeprefix("3."))))
    if found is None:
        pytest.skip(f"no Python {version} here")
    return found
