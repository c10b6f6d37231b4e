"""Somebody who is not root, for what root is exempt from."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.world import World

# Nobody's on any machine of ours; limits count per uid, so each test process has its own.
_FIRST_UID = 540_000


def normal_user(world: World) -> list[str]:
    """A prefix that runs a program as an ordinary user, to whom this world is given."""
    uid = _FIRST_UID + os.getpid() % 60_000
    for directory, folders, files in os.walk(world.root):
        for name in [".", *folders, *(file for file in files if not _is_set_id(Path(directory, file)))]:
            os.chown(os.path.join(directory, name), uid, uid)
    # The interpreter may stand in a directory that is closed to others; reading it is all this grants.
    read = "+dac_read_search"
    return [
        "setpriv",
        *(f"--reuid={uid}", f"--regid={uid}", "--clear-groups"),
        *(f"--inh-caps=-all,{read}", f"--ambient-caps=-all,{read}"),
    ]


def _is_set_id(path: Path) -> bool:
    return bool(path.lstat().st_mode & 0o4000)
