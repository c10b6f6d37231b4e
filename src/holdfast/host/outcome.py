"""What became of a session whose runner is gone, in the words of the signal that the runner did not live to write."""

from __future__ import annotations

import os

from ..errors import NotFound, Removed
from ..model import EXITED, LOST, STALE
from ..runner import jsontext, tree
from ..runner.deadlines import CAUSES
from ..runner.lines import tail
from ..runner.signalfile import FILE
from ..signals.succession import Outcome
from .log import Log
from .observe import from_files, read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..home import Home
    from ..index import Row
    from ..model import Snapshot
    from .observe import Files, Observed

# As much of each stream as a runner shows of an ending.
_TAIL_LINES = 30
_TAIL_CHARACTERS = 2000
_TAIL_BYTES = 16 << 10
_SNAPSHOT_MAX_BYTES = 4096
# The death of any of so many may change the picture.
_WATCHED = 16
# Which option set the limit that was reached.
_LIMITS = {cause: option for option, cause in CAUSES.items()}
# What the exit record knows beside the exit, and a runner would have told.
_COUNTED = ("watch", "events", "start_limit", "error")
# Of a session's keys those that a signal has no room or no use for.
_NOT_IN_SIGNALS = ("cursor", "observed_at", "endpoint", "runner_pid", "needs_input", "attached", "size")


def outcome(home: Home, id: str, row_of: Callable[[Observed], Row]) -> Outcome | None:
    """None where there is nothing to say: it is gone, or only just coming into being."""
    try:
        files = read_files(home, id)
    except NotFound:
        return None
    try:
        return _outcome(files, from_files(files), row_of)
    except Removed:
        return None


def _outcome(files: Files, seen: Observed, row_of: Callable[[Observed], Row]) -> Outcome:
    now = files.now()
    # A release that knew no signals left sessions that nobody promised any for; and of a start that died before it was
    # one, whoever asked for it was told, unless the machine went down under both.
    rebooted = files.spec.get("boot") not in (None, tree.boot_id())
    told_by_start = files.state is None and files.exit is None and not rebooted
    silent = ("signals" not in files.spec or told_by_start) and not os.path.exists(os.path.join(files.directory, FILE))
    shot = seen.snapshot()
    survivors = [] if shot.exit is None else shot.exit.survivors
    processes = [(each.pid, each.start) for each in seen.orphans] or [
        (each["pid"], each["start"]) for each in survivors
    ]
    if files.away:
        # What lives there cannot be watched from here; who tells of it can.
        deputy = (files.state or {}).get("deputy")
        processes = [] if deputy is None else [(deputy["pid"], deputy["start"])]
    return Outcome(
        "" if silent or seen.state not in (EXITED, STALE, LOST) else seen.state,
        kind=shot.kind,
        owner=shot.owner,
        attempt=shot.attempt,
        notify=now.get("notify") or "exit",
        notify_people=now.get("notify_people"),
        snapshot=_bounded(shot),
        ended=_ended(seen, shot) if seen.state in (EXITED, LOST) else None,
        ended_id=(files.exit or {}).get("signal_id"),
        evidence=seen.evidence,
        watch=processes[:_WATCHED],
        row=row_of(seen),
    )


def _ended(seen: Observed, shot: Snapshot) -> dict[str, Any]:
    exit = shot.exit
    assert exit is not None
    recorded = seen.files.exit or {}
    # What a language server writes to stdout are messages of its protocol, and nobody's to read.
    silent = ("stdout",) if shot.kind == "lsp" else ()
    return {
        "status": shot.status,
        "code": exit.code,
        "signal": exit.signal,
        "cause": exit.cause,
        "by": exit.by,
        "stopped": exit.stopped,
        "duration_s": _duration_s(shot.started_at, shot.ended_at),
        "output_complete": exit.complete,
        "ends": shot.ends,
        "tail": {
            stream: _tail(seen.files.directory, stream, end)
            for stream, end in shot.ends.items()
            if end and stream not in silent
        },
        **({"limit_s": seen.files.now().get(_LIMITS[exit.cause])} if exit.cause in _LIMITS else {}),
        **{name: recorded[name] for name in _COUNTED if recorded.get(name) is not None},
        "evidence": seen.evidence,
    }


def _tail(directory: str, stream: str, end: int) -> dict[str, Any]:
    with Log(directory).look() as look:
        since = max(end - _TAIL_BYTES, look.begin(stream))
    raw = b"".join(Log(directory).raw(stream, since))
    return tail(raw[:_TAIL_BYTES], since, lines=_TAIL_LINES, chars=_TAIL_CHARACTERS)


def _duration_s(started_at: str | None, ended_at: str | None) -> float | None:
    if started_at is None or ended_at is None:
        return None  # nobody was there to see the end
    from datetime import datetime

    try:
        took = datetime.fromisoformat(ended_at) - datetime.fromisoformat(started_at)
    except (ValueError, TypeError):
        return None  # no times of ours
    return round(max(0.0, took.total_seconds()), 3)


def _bounded(shot: Snapshot) -> dict[str, Any]:
    record = {key: value for key, value in shot.to_json().items() if key not in _NOT_IN_SIGNALS}
    if shot.exit is not None:
        record["exit"]["survivors"] = len(shot.exit.survivors) + shot.exit.survivors_more
    for part in ("metadata", "labels", "cwd", "description"):
        if len(jsontext.write(record)) <= _SNAPSHOT_MAX_BYTES:
            break
        record[part] = None
    return record
