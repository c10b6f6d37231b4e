"""A sandbox that is reached only by an object that runs a command to its end."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from support.world import World


class Sandbox:
    """Runs commands to their end, apart from ours: another home, another environment, no descriptor left open."""

    def __init__(self, words: Sequence[str], env: dict[str, str] | None = None) -> None:
        self._words = words
        self._env = env
        self.calls: list[str] = []
        # How long each was allowed to take.
        self.lengths: list[float] = []
        # So many of the next calls fail.
        self.failures = 0

    def execute(self, command: str, *, timeout: float = 30) -> dict[str, Any]:
        self.calls.append(command)
        self.lengths.append(timeout)
        if self.failures:
            self.failures -= 1
            raise ConnectionError("no answer")
        done = subprocess.run(
            [*self._words, command],
            env=self._env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout,
            check=False,
        )
        return {"output": done.stdout.decode(), "returncode": done.returncode}


def beside(world: World, *, path: str = "/usr/local/bin:/usr/bin:/bin") -> tuple[Sandbox, Path]:
    home = world.root / "sandbox"
    (home / "tmp").mkdir(parents=True)
    env = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "PATH": path, "INSIDE": "yes"}
    shell = shutil.which("sh")
    assert shell is not None
    return Sandbox([shell, "-c"], env), home
