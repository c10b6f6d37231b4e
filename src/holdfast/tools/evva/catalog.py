"""The daemons of an owner: those that run, those whose end is not settled, and the objects that the host registered.

Sessions are read from the home, so every host of the owner sees the same. Only the registered objects and the list of
evicted daemons belong to this process.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ...daemons import kinds
from ...daemons.view import dressed, listed, stopped
from ...errors import DamagedRecord, NotFound, Removed
from ...home import is_id
from ...sessions.driver import drive
from ...sessions.observe import from_files, read_files
from ...signals.lines import is_coming
from . import snapshot
from .snapshot import TERMINAL, Tail

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Protocol

    from ...daemons.view import View
    from ...model import Snapshot
    from ...sessions.core import Core
    from ...signals.consumer import Consumer
    from .snapshot import DaemonSnapshot


if TYPE_CHECKING:

    class Daemon(Protocol):
        """What a host may register."""

        @property
        def id(self) -> str: ...

        def snapshot(self) -> DaemonSnapshot: ...

        def kill(self) -> Awaitable[object] | object: ...

        def output(self) -> str: ...


_log = logging.getLogger("holdfast.tools.evva")

# The number of evicted daemons that are remembered.
_REMEMBERED = 1000
# In the metadata of a directory that only holds the signals of something the host never registered.
SIGNALS_ONLY = "signals_only"


class SessionDaemon:
    """A session or in-process task as a daemon."""

    def __init__(self, catalog: Catalog, id: str, kind: str) -> None:
        self._catalog = catalog
        self.id = id
        self.kind = kind

    def __repr__(self) -> str:
        return f"<SessionDaemon {self.id}>"

    @property
    def status(self) -> str:
        return self.snapshot().status

    def snapshot(self) -> DaemonSnapshot:
        return self._catalog.look(self.id)

    def kill(self) -> None:
        self._catalog.kill(self.id)

    def output(self) -> str:
        return self.text().text

    def text(self, tail: int | None = None) -> Tail:
        """Its output as its kind shows it, or the last lines of that."""
        return self._catalog.text(self.id, tail)


class Catalog:
    """`core` blocks the calling thread."""

    def __init__(self, core: Core, view: View, owner: str, consumer: Consumer) -> None:
        self.core = core
        self._view = view
        self._owner = owner
        self._consumer = consumer
        self._lock = threading.Lock()
        self._registered: dict[str, Daemon] = {}
        # Evicted daemons; for objects of the host the object itself, which cannot be found otherwise.
        self._evicted: dict[str, Daemon | None] = {}
        # The last snapshot of each object, for when it cannot give one.
        self._last: dict[str, DaemonSnapshot] = {}

    # Registered objects.

    def register(self, daemon: Daemon) -> None:
        with self._lock:
            self._registered[daemon.id] = daemon
            self._evicted.pop(daemon.id, None)

    def evict(self, id: str) -> DaemonSnapshot | None:
        """Its last snapshot; None if it is not in the catalog."""
        daemon = self.get(id)
        if daemon is None:
            return None
        last = self.shot(daemon)
        with self._lock:
            own = self._registered.pop(id, None)
            self._evicted[id] = own
            while len(self._evicted) > _REMEMBERED:
                oldest = next(iter(self._evicted))
                del self._evicted[oldest]
                self._last.pop(oldest, None)
        return last

    def shot(self, daemon: Daemon) -> DaemonSnapshot | None:
        """Its snapshot, or the last one if it cannot give any."""
        try:
            shot = daemon.snapshot()
        except Exception:  # one broken object must not hide the others
            if isinstance(daemon, SessionDaemon):
                raise
            _log.exception("the snapshot of %s failed", daemon.id)
            return self._last.get(daemon.id)
        if not isinstance(daemon, SessionDaemon):
            self._last[daemon.id] = shot
        return shot

    def settled(self, id: str, last: DaemonSnapshot | None) -> DaemonSnapshot | None:
        """Its end is settled: evict a registered object. Returns the last snapshot if it left the catalog."""
        if id in self._registered:
            return self.evict(id)
        return last if self.get(id) is None else None

    # All daemons.

    def get(self, id: str) -> Daemon | None:
        own = self._registered.get(id)
        if own is not None:
            return own
        shot = None if id in self._evicted else self._session(id)
        if shot is None or not self._belongs(shot, unsettled=None):
            return None
        return SessionDaemon(self, id, shot.kind)

    def recall(self, id: str) -> Daemon | None:
        """As `get`, but also finds evicted and finished daemons."""
        found = self.get(id)
        if found is not None:
            return found
        own = self._evicted.get(id)
        if own is not None:
            return own
        shot = self._session(id)
        return None if shot is None else SessionDaemon(self, id, shot.kind)

    def snapshots(self) -> list[DaemonSnapshot]:
        """By start, then id."""
        with self._lock:
            own, gone = list(self._registered.values()), set(self._evicted)
        shots = [shot for shot in map(self.shot, own) if shot is not None]
        taken = gone | {daemon.id for daemon in own}
        shots += [self.of(shot) for shot in self._sessions() if shot.id not in taken]
        return in_order(shots)

    def everything(self) -> list[DaemonSnapshot]:
        """Also finished daemons that are kept, except calls that left no process behind."""
        now = self.snapshots()
        known = {shot.id for shot in now}
        kept, _ = drive(listed(self.core, None, self._owner, True))
        with self._lock:
            gone = [daemon for daemon in self._evicted.values() if daemon is not None]
        own = [shot for shot in map(self.shot, gone) if shot is not None and shot.is_terminal]
        known |= {shot.id for shot in own}
        ended = [shot for shot in kept if shot.id not in known and shot.status in TERMINAL]
        finished = [
            self.of(shot) for shot in ended if not self.is_call(shot.id) and not shot.metadata.get(SIGNALS_ONLY)
        ]
        return in_order([*now, *own, *finished])

    def _sessions(self) -> list[Snapshot]:
        live, unreachable = drive(listed(self.core, None, self._owner, False))
        self._view.compare(live, unreachable)
        unsettled = self._consumer.unsettled()
        known = {shot.id for shot in live}
        ended = [shot for id in sorted(unsettled - known) if (shot := self._session(id)) is not None]
        return [shot for shot in [*live, *ended] if self._belongs(shot, unsettled)]

    def registered(self, id: str) -> Daemon | None:
        """The registered object, also after it was evicted."""
        return self._registered.get(id) or self._evicted.get(id)

    def _belongs(self, shot: Snapshot, unsettled: set[str] | None) -> bool:
        """Whether it runs as a daemon, has survivors, or its end is not settled. A foreground call is no daemon."""
        if shot.metadata.get(SIGNALS_ONLY):
            return False
        if shot.status in TERMINAL:
            left = shot.exit is not None and (shot.exit.survivors or shot.exit.survivors_more)
            waits = bool(left) or shot.id in (self._consumer.unsettled() if unsettled is None else unsettled)
            return waits or self._is_signal_due(shot)
        return not self.is_call(shot.id)

    def _is_signal_due(self, shot: Snapshot) -> bool:
        """Whether its runner has written the exit record, which names the signal of the end, but not yet the signal."""
        ended = shot.metadata.get("signal_id")
        return isinstance(ended, str) and is_coming(self.core.home, ended) and not self.is_call(shot.id)

    def is_call(self, id: str) -> bool:
        try:
            return bool(read_files(self.core.home, id).current().get("lifetime") == "call")
        except (NotFound, DamagedRecord):
            return False

    def _session(self, id: str) -> Snapshot | None:
        """A session of the owner, from its files."""
        shot = self.written(id)
        return None if shot is None or shot.metadata.get(SIGNALS_ONLY) else shot

    def written(self, id: str) -> Snapshot | None:
        """As `_session`, but also a directory that only holds signals."""
        if not is_id(id):
            return None
        try:
            files = read_files(self.core.home, id)
            if files.current().get("owner") != self._owner:
                return None
            return dressed(self.core, from_files(files).snapshot())
        except (NotFound, DamagedRecord, Removed):
            return None

    def look(self, id: str) -> DaemonSnapshot:
        """The snapshot of one session, from its runner."""
        return self.of(self._looked(id))

    def _looked(self, id: str) -> Snapshot:
        return dressed(self.core, drive(self.core.look_up(id, self._owner)))

    def text(self, id: str, tail: int | None) -> Tail:
        shot = self._looked(id)
        output = kinds.of(shot.kind).output(self.core.log(id), shot, tail, None)
        return Tail(output.text, output.cut if tail is None else 0)

    def kill(self, id: str) -> None:
        drive(stopped(self.core, id, None, self._owner, self._view.servers))

    def of(self, shot: Snapshot) -> DaemonSnapshot:
        server = self._view.servers.get(shot.id)
        if server is not None:
            # Only the host that is connected to it knows.
            shot.metadata["state"] = server.state
        return snapshot.of(shot, lambda: self.core.log(shot.id))


def in_order(shots: list[DaemonSnapshot]) -> list[DaemonSnapshot]:
    return sorted(shots, key=lambda shot: (shot.started_at, shot.id))
