"""The signals of a session, read from its file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.waiting import BOUND_S, until

if TYPE_CHECKING:
    from holdfast import Session
    from support.world import World

Record = dict[str, Any]


def records(world: World, id: str) -> list[Record]:
    """Of one session, in their order."""
    return read(world.session(id) / "signals.jsonl")


def read(file: Path) -> list[Record]:
    """All records of a file, none where there is no file. A line that is just being written has no end yet."""
    lines = file.read_text().rpartition("\n")[0].splitlines() if file.exists() else []
    return [record for record in map(json.loads, lines) if "seq" in record]


def of(world: World, id: str, variant: str) -> list[Record]:
    return [record for record in records(world, id) if variant in record]


def endings(world: World, id: str) -> list[Record]:
    return [record for record in of(world, id, "lifecycle") if record["lifecycle"]["phase"] == "ended"]


def ended(world: World, session: Session) -> Record:
    """The one record of its ending, when it is there: the exit record comes first, and right behind it this."""
    assert session.wait(timeout=30).reason == "exit"
    (record,) = until(lambda: endings(world, session.id), BOUND_S, what="the ending")
    return record
