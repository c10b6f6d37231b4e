"""Rows of sessions from a node: checked, limited in size, and marked with that node's name whatever they contain."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING

from ..core import jsontext, shapes
from ..core.clock import rfc3339
from ..home import is_id
from ..model import SESSION_KEYS, STATES, STATUSES, UNREACHABLE, Exit, Snapshot
from ..model.session import status_of
from ..terminal.text import visible

if TYPE_CHECKING:
    from typing import Any

    Row = dict[str, Any]


TEXT_CHARACTERS = 4096
_NAME_CHARACTERS = 256
_PARTS_MAX = 64
# Values that are not text are written as JSON, no longer than this.
_OBJECTS_CHARACTERS = 8192
_WORDS = ("kind", "name", "owner", "cwd", "place", "health", "runner_version")
_TEXTS = ("description", "command", "cursor", "endpoint")
_TIMES = ("created_at", "started_at", "ended_at", "last_output_at", "observed_at")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", re.ASCII)
_COUNTS = ("pid", "runner_pid", "attempt", "log_bytes")
_OBJECTS = ("labels", "desired", "ends", "dropped_before", "attached", "metadata", "stopping", "needs_input")
# These are never null in a session.
_NEVER_NULL: Row = {"kind": "local_bash", "description": "", "command": "", "cursor": "", "place": "local"}
_NEVER_NULL |= dict.fromkeys(("created_at", "observed_at"), rfc3339(0)) | {"cwd": "", "attempt": 1, "log_bytes": 0}


class FarShot(Snapshot):
    """The snapshot of a session of a node."""

    node: str
    __slots__ = ("node",)

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
    now = rfc3339(time.time_ns())
    for key in _TIMES:
        found = row.get(key)
        # If a node's clock is ahead, its sessions must not be the newest of all for years.
        values[key] = min(found, now) if isinstance(found, str) and _TIME.fullmatch(found) else None
    for key in _COUNTS:
        found = row.get(key)
        values[key] = found if type(found) is int and 0 <= found < 1 << 63 else None
    for key in _OBJECTS:
        values[key] = _small(row.get(key)) if isinstance(row.get(key), dict) else None
    if len(jsontext.write([values[key] for key in _OBJECTS])) > _OBJECTS_CHARACTERS:
        values |= dict.fromkeys(_OBJECTS)
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
    return sys.intern(clean(found[:most])) if is_common else clean(found[:most])


def clean(text: str) -> str:
    """Characters that act on a terminal, or turn or hide text, as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in "\n\t" else ascii(each)[1:-1] for each in visible(text))


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
        return clean(found[:TEXT_CHARACTERS])
    if isinstance(found, dict | list) and depth == 0:
        return None
    if isinstance(found, dict):
        parts = list(found.items())[:_PARTS_MAX]
        return {clean(str(name)[:_NAME_CHARACTERS]): _small(each, depth - 1) for name, each in parts}
    if isinstance(found, list):
        return [_small(each, depth - 1) for each in found[:_PARTS_MAX]]
    return found
