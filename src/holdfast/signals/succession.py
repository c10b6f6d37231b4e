"""What a runner did not live to tell, told by whichever host finds it gone.

The writer of a signal file holds its lock. A host that gets the lock is the successor: it reads the file again and
appends only what is missing, so that any number of hosts write one `stale` and one ending.
"""

from __future__ import annotations

import os
from itertools import islice

from ..runner import clock, points, tree, wake
from ..runner.signalfile import SignalFile
from .indexing import directory_of, generations, lines
from .records import Signal, parse, split_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..home import Home
    from ..index import Row

# The states of a session in which something may be missing.
EXITED, STALE, LOST = "exited", "stale", "lost"
# A session ends once, and tells its health now and then.
_LOOKED_AT = 10_000


class Outcome:
    """What a host knows of a session whose runner is gone. `ended` are the fields of the ending, of one that is over,
    and `ended_id` its id where the runner named one; `evidence` says why it is stale; `watch` are processes whose death
    changes the picture; `row` is for the index."""

    __slots__ = (
        *("attempt", "ended", "ended_id", "evidence", "kind", "notify", "owner"),
        *("notify_people", "row", "snapshot", "state", "watch"),
    )

    def __init__(
        self,
        state: str,
        *,
        kind: str | None,
        owner: str | None,
        attempt: int | None,
        notify: str | None,
        notify_people: bool | None = None,
        snapshot: dict[str, Any] | None,
        ended: dict[str, Any] | None = None,
        ended_id: str | None = None,
        evidence: str = "",
        watch: list[tuple[int, int]] | None = None,
        row: Row | None = None,
    ) -> None:
        self.state = state
        self.kind = kind
        self.owner = owner
        self.attempt = attempt
        self.notify = notify
        self.notify_people = notify_people
        self.snapshot = snapshot
        self.ended = ended
        self.ended_id = ended_id
        self.evidence = evidence
        self.watch = watch or []
        self.row = row

    @property
    def ending_is_routed(self) -> bool:
        """Of a runner that is gone nobody was given the end, so `auto` means yes."""
        failed = (self.ended or {}).get("status") != "completed"
        return self.notify != "never" and (self.notify != "failure" or failed)


def succeed(home: Home, runtime: str, session: str, outcome: Outcome) -> dict[str, Any] | None:
    """Append what is missing, if anything. BlockingIOError while another host does, or the runner lives after all."""
    if outcome.state not in (EXITED, STALE, LOST):
        return None
    directory = os.open(directory_of(home, session), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file = SignalFile(directory, session, tree.boot_id(), take_over=True)
        if points.ACTIVE:
            points.hit("signals.taken_over")
        try:
            written = _append_missing(file, _told(home, session), outcome)
        finally:
            file.close()
    finally:
        os.close(directory)
    if written is not None:
        wake.call(runtime, outcome.owner, session, written["seq"])
    return written


def tell_home(home: Home, runtime: str, variant: str, fields: dict[str, Any], owner: str | None) -> None:
    """A signal of the home itself. BlockingIOError while somebody else writes one."""
    directory = os.open(home.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file = SignalFile(directory, None, tree.boot_id(), take_over=True)
        try:
            file.write(variant, fields, kind=None, owner=owner, attempt=None, routed=True, snapshot=None)
            seq = file.seq
        finally:
            file.close()
    finally:
        os.close(directory)
    wake.call(runtime, owner, None, seq)


def _append_missing(file: SignalFile, told: list[Signal], outcome: Outcome) -> dict[str, Any] | None:
    if any(signal.ends_session for signal in told):
        return None
    common: dict[str, Any] = {
        "kind": outcome.kind,
        "owner": outcome.owner,
        "attempt": outcome.attempt,
        "snapshot": outcome.snapshot,
    }
    if outcome.state == STALE:
        if any(signal.variant == "health" and signal.fields.get("state") == STALE for signal in told):
            return None
        fields = {"state": STALE, "evidence": outcome.evidence, "since": clock.now_text()}
        return file.write("health", fields, routed=True, **common)
    fields = {"phase": "ended", **(outcome.ended or {})}
    named = split_id(outcome.ended_id)
    if named is not None:
        file.skip_to(named[1])
    return file.write("lifecycle", fields, routed=outcome.ending_is_routed, durable=True, **common)


def _told(home: Home, session: str) -> list[Signal]:
    """The signals that say whether anything is missing."""
    fds = generations(directory_of(home, session))
    try:
        parsed = (parse(line, session) for fd in fds for line in lines(fd, 0) if line.endswith(b"\n"))
        told = (each for each in parsed if isinstance(each, Signal) and (each.ends_session or each.variant == "health"))
        return list(islice(told, _LOOKED_AT))
    finally:
        for fd in fds:
            os.close(fd)
