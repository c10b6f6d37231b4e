"""Which shell takes the command: the user's own where it can, never one that reads its start-up files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Not for commands: two that end at once, and one with another language.
_UNFIT = ("false", "nologin", "fish")
_FLAGS = {"bash": ("--noprofile", "--norc", "-c"), "zsh": ("-f", "-c")}
_PLACES = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")


def words(environ: Mapping[str, str]) -> list[str]:
    """All that stands before the command, which follows as one argument."""
    shell = environ.get("SHELL", "")
    if os.path.basename(shell) in _UNFIT or not os.path.isabs(shell) or not os.access(shell, os.X_OK):
        shell = next((path for path in _PLACES if os.access(path, os.X_OK)), "/bin/sh")
    return [shell, *_FLAGS.get(os.path.basename(shell), ("-c",))]
