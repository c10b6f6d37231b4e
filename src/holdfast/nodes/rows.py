"""Rows of sessions from a node: checked, limited in size, and marked with that node's name whatever they contain."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from ..core import shapes
from ..home import is_id
from ..model import SESSION_KEYS, STATES, STATUSES, UNREACHABLE, Exit, Snapshot
from ..model.session import status_of

if TYPE_CHECKING:
    from typing import Any

    Row = dict[str, Any]


TEXT_CHARACTERS = 4096
_NAME_CHARACTERS = 256
_PARTS_MAX = 64
_WORDS = ("kind", "name", "owner", "cwd", "place", "created_at", "started_at", "ended_at", "last_output_at", "health")
_TEXTS = ("description", "command", "cursor", "endpoint", "observed_at")
_COUNTS = ("pid", "runner_pid", "attempt", "log_bytes")
_OBJECTS = ("labels", "desired", "ends", "dropped_before", "attached", "metadata", "stopping", "needs_input")
# These are never null in a session.
_NEVER_NULL: Row = {"kind": "local_bash", "description": "", "command": "", "cursor": "", "place": "local"}
_NEVER_NULL |= {"observed_at": "", "attempt": 1, "log_bytes": 0}


class FarShot(Snapshot):
    """The snapshot of a session of a node."""

    node: str

    def to_json(self) -> Row:
        return {**super().to_json(), "node": self.node}


def far_shot(node: str, row: object) -> FarShot | None:
    """None if the row is not that of a session."""
    if not isinstance(row, dict) or not isinstance(row.get("id"), str) or not is_id(row["id"]):
        return None
    values: Row = dict.fromkeys(SESSION_KEYS)
    values["id"] = row["id"]
    for key in _WORDS:
        values[key] = _text(row.get(key), _NAME_CHARACTERS if key != "cwd" else TEXT_CHARACTERS, is_common=True)
    for key in _TEXTS:
        values[key] = _text(row.get(key), TEXT_CHARACTERS)
    for key in _COUNTS:
        found = row.get(key)
        values[key] = found if type(found) is int and 0 <= found < 1 << 63 else None
    for key in _OBJECTS:
        values[key] = _small(row.get(key)) if isinstance(row.get(key), dict) else None
    for key in ("labels", "ends", "dropped_before"):
        kind = str if key == "labels" else int
        values[key] = {name: each for name, each in (values[key] or {}).items() if type(each) is kind}
    for key in ("desired", "attached", "metadata"):
        values[key] = values[key] or {}
    for key, value in _NEVER_NULL.items():
        values[key] = value if values[key] is None else values[key]
    size = row.get("size")
    is_size = isinstance(size, list) and len(size) == 2 and all(type(each) is int for each in size)
    values["size"] = size if is_size else None
    values["tty"], values["in_process"] = row.get("tty") is True, row.get("in_process") is True
    values["exit"] = _exit(row.get("exit"))
    values["state"] = row["state"] if row.get("state") in STATES else UNREACHABLE
    status = row.get("status")
    values["status"] = status if status in STATUSES else status_of(values["state"], values["exit"])
    shot = FarShot(**values)
    shot.node = node
    return shot


def _text(found: object, most: int, *, is_common: bool = False) -> str | None:
    if not isinstance(found, str):
        return None
    return sys.intern(found[:most]) if is_common else found[:most]


def _exit(found: object) -> Exit | None:
    try:
        shapes.check(shapes.EXIT, found)
    except (ValueError, RecursionError):
        return None
    assert isinstance(found, dict)
    return Exit.from_json({**found, "survivors": found["survivors"][:_PARTS_MAX]})


def _small(found: Any, depth: int = 3) -> Any:
    """The value with long texts, long collections and deep nesting cut off."""
    if isinstance(found, str):
        return found[:TEXT_CHARACTERS]
    if isinstance(found, dict | list) and depth == 0:
        return None
    if isinstance(found, dict):
        parts = list(found.items())[:_PARTS_MAX]
        return {str(name)[:_NAME_CHARACTERS]: _small(each, depth - 1) for name, each in parts}
    if isinstance(found, list):
        return [_small(each, depth - 1) for each in found[:_PARTS_MAX]]
    return found
