"""Records what a dead runner could not: the end of its session, or that its command still runs.

The writer of a signal file holds its lock. A host that gets the lock is the successor: it reads the file again and
appends only what is missing, so that any number of hosts write one `stale` and one ending.
"""

from __future__ import annotations

import os
from contextlib import contextmanager

from ..core import clock, failpoints, processes, wake
from ..core.signalfile import HOME, SignalFile
from ..model import EXITED, LOST, STALE
from .lines import Signal, directory_of, entries, generations, split_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..home import Home
    from ..index import Row


class RunnerGoneFacts:
    """What a host knows of a session whose runner is gone. `ended` are the fields of the ending, if it ended, and
    `ended_id` its id where the runner named one; `evidence` says why it is stale; `watch` are processes whose death
    changes the facts; `row` is for the index."""

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
        """A dead runner answered no waiter, so `auto` means yes."""
        failed = (self.ended or {}).get("status") != "completed"
        return self.notify != "never" and (self.notify != "failure" or failed)


def write_missing(home: Home, runtime: str, session: str, facts: RunnerGoneFacts) -> dict[str, Any] | None:
    """Append what is missing, if anything. BlockingIOError while another host does, or the runner lives after all."""
    if facts.state not in (EXITED, STALE, LOST):
        return None
    with _taken_over(home, session) as file:
        failpoints.hit("signals.taken_over")
        written = _append_missing(file, _written(home, session), facts)
    if written is not None:
        wake.hosts(runtime, facts.owner, session, written["seq"])
    return written


def write_home_signal(home: Home, runtime: str, variant: str, fields: dict[str, Any], owner: str | None) -> None:
    """A signal of the home itself. BlockingIOError while another process writes one."""
    with _taken_over(home, HOME) as file:
        file.write(variant, fields, kind=None, owner=owner, attempt=None, routed=True, snapshot=None)
        seq = file.seq
    wake.hosts(runtime, owner, None, seq)


@contextmanager
def _taken_over(home: Home, session: str) -> Iterator[SignalFile]:
    """The signal file of a session without a writer, to be continued."""
    directory = os.open(directory_of(home, session), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name = None if session == HOME else session
        file = SignalFile(directory, name, processes.boot_id(), take_over=True)
        try:
            yield file
        finally:
            file.close()
    finally:
        os.close(directory)


def _append_missing(file: SignalFile, written: list[Signal], facts: RunnerGoneFacts) -> dict[str, Any] | None:
    if any(signal.ends_session for signal in written):
        return None
    common: dict[str, Any] = {
        "kind": facts.kind,
        "owner": facts.owner,
        "attempt": facts.attempt,
        "snapshot": facts.snapshot,
    }
    if facts.state == STALE:
        if any(signal.variant == "health" and signal.fields.get("state") == STALE for signal in written):
            return None
        fields = {"state": STALE, "evidence": facts.evidence, "since": clock.now_text()}
        return file.write("health", fields, routed=True, **common)
    fields = {"phase": "ended", **(facts.ended or {})}
    named = split_id(facts.ended_id)
    if named is not None:
        file.skip_to(named[1])
    return file.write("lifecycle", fields, routed=facts.ending_is_routed, durable=True, **common)


def _written(home: Home, session: str) -> list[Signal]:
    """The signals that say whether anything is missing: a session ends once, and changes its health now and then."""
    with generations(directory_of(home, session)) as found:
        signals = (each for fd, _ in found for _, _, each in entries(fd, session) if isinstance(each, Signal))
        return [each for each in signals if each.ends_session or each.variant == "health"]
