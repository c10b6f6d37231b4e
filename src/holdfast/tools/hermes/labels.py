"""What a session says of itself in this toolset: its id and its labels, and whether it is over."""

from __future__ import annotations

import re
import secrets
from typing import TYPE_CHECKING

from ...core.clock import epoch
from ...model import FINAL_STATES
from .limits import ID_DIGITS, PREFIX_DIGITS

if TYPE_CHECKING:
    from typing import Any

    from ...model import Snapshot


# Labels. The first name of a session is its id here, even after a rename.
ID = "hermes.id"
TASK = "hermes.task"
OWNER_TASK = "hermes.owner_task"
ORIGIN = "hermes.origin."
PERSIST = "hermes.persist"
MODE = "hermes.mode"

FOREGROUND = "foreground"
BACKGROUND = "background"
# Began in the foreground, and its caller stopped waiting.
YIELDED = "yielded"

# The place of processes in a sandbox that only runs commands to their end.
SANDBOX = "sandbox"

PREFIX = "proc_"
SHORT = re.compile(rf"(?:{PREFIX})?([0-9a-f]{{{PREFIX_DIGITS},{ID_DIGITS}}})")


def new_id() -> str:
    return PREFIX + secrets.token_hex(ID_DIGITS // 2)


def called(shot: Snapshot) -> str:
    return shot.labels.get(ID) or shot.name or shot.id


def facts(shot: Snapshot) -> dict[str, Any]:
    """What the start recorded for this toolset."""
    return shot.metadata.get("hermes") or {}


def pid_of(shot: Snapshot) -> int | None:
    """Of a process in a sandbox, its pid there."""
    return shot.pid or facts(shot).get("pid")


def is_over(shot: Snapshot) -> bool:
    return shot.state in FINAL_STATES


def is_ours(shot: Snapshot) -> bool:
    return ID in shot.labels


def begins(name: str, ref: object) -> bool:
    """Whether `ref` is this id, whole or by its first digits."""
    text = str(ref).strip()
    short = SHORT.fullmatch(text)
    return text == name or (short is not None and name.startswith(PREFIX + short.group(1)))


def is_meant(shot: Snapshot, ref: object) -> bool:
    return begins(called(shot), ref) or str(ref).strip() in (shot.id, shot.name)


def began_at(shot: Snapshot) -> float:
    """Seconds since the epoch."""
    return epoch(shot.started_at or shot.created_at) or 0.0
