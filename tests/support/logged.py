"""A command of a test that goes on when its runner has written what it printed: what comes next is logged behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from support.world import World


def logged(world: World, line: str) -> str:
    """Words of a shell: until this line stands in the log of its own session."""
    logs = f'"{world.home}/sessions/$HOLDFAST_SESSION_ID/"std*.0*'
    return f"until grep -qsx {line} {logs}; do :; done"
