"""Which daemons an owner has now: what runs, what ended and is not settled, and what the host registered itself.

Sessions are not remembered here: the home tells, so every host of the owner sees the same. Only a host's own objects,
and what was taken out on purpose, are this process's.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ...daemons import kinds
from ...daemons.listing import dressed, listed, stopped
from ...errors import DamagedRecord, NotFound, Removed
from ...home import is_id
from ...host.driver import drive
from ...host.observe import from_files, read_files
from . import snapshot
from .output import Tail
from .words import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Awaitable
    from typing import Protocol

    from ...daemons.view import View
    from ...host.core import Core
    from ...model import Snapshot
    from ...signals.consumer import Consumer
    from .snapshot import DaemonSnapshot

    class Daemon(Protocol):
        """What a host may register: anything with an id that can be looked at, ended and read."""

        @property
        def id(self) -> str: ...

        def snapshot(self) -> DaemonSnapshot: ...

        def kill(self) -> Awaitable[object] | object: ...

        def output(self) -> str: ...


_log = logging.getLogger("holdfast.tools.evva")

# So many of a host's own objects are remembered after they were taken out.
_REMEMBERED = 1000
# In the metadata of what a host told of and never registered: there is a directory for its signals, and no daemon.
SIGNALS_ONLY = "signals_only"


class SessionDaemon:
    """A session, or a task of some host, as a daemon."""

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
        """The text of its kind, or the last lines of it."""
        return self._catalog.text(self.id, tail)


class Catalog:
    """Blocking: `core` waits in the calling thread."""

    def __init__(self, core: Core, view: View, owner: str, consumer: Consumer) -> None:
        self.core = core
        self._view = view
        self._owner = owner
        self._consumer = consumer
        self._lock = threading.Lock()
        self._registered: dict[str, Daemon] = {}
        # Taken out on purpose; of a host's own objects, which nobody else can find again, the object itself.
        self._evicted: dict[str, Daemon | None] = {}
        # What they last were, for one that cannot say it.
        self._last: dict[str, DaemonSnapshot] = {}

    # What a host does.

    def register(self, daemon: Daemon) -> None:
        with self._lock:
            self._registered[daemon.id] = daemon
            self._evicted.pop(daemon.id, None)

    def evict(self, id: str) -> DaemonSnapshot | None:
        """The last that is known of it; None where it is not in the catalog."""
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
        """What it is, or last was where it cannot say that; None where it never could."""
        try:
            shot = daemon.snapshot()
        except Exception:  # one object of the host's must not hide all the others
            if isinstance(daemon, SessionDaemon):
                raise
            _log.exception("%s cannot be looked at", daemon.id)
            return self._last.get(daemon.id)
        if not isinstance(daemon, SessionDaemon):
            self._last[daemon.id] = shot
        return shot

    def settled(self, id: str, last: DaemonSnapshot | None) -> DaemonSnapshot | None:
        """Its end was told: an object of the host's own goes now, a session is gone by that. None: it is still here."""
        if id in self._registered:
            return self.evict(id)
        return last if self.get(id) is None else None

    # What there is.

    def get(self, id: str) -> Daemon | None:
        own = self._registered.get(id)
        if own is not None:
            return own
        shot = None if id in self._evicted else self._session(id)
        if shot is None or not self._belongs(shot, untold=None):
            return None
        return SessionDaemon(self, id, shot.kind)

    def recall(self, id: str) -> Daemon | None:
        """Also what was evicted, or is long over and kept."""
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
        """With all that is kept, but without calls that left nothing behind."""
        now = self.snapshots()
        known = {shot.id for shot in now}
        kept, _ = drive(listed(self.core, None, self._owner, True))
        with self._lock:
            gone = [daemon for daemon in self._evicted.values() if daemon is not None]
        own = [shot for shot in map(self.shot, gone) if shot is not None and shot.is_terminal]
        known |= {shot.id for shot in own}
        ended = [shot for shot in kept if shot.id not in known and shot.status in TERMINAL]
        told = [self.of(shot) for shot in ended if not self.is_call(shot.id) and not shot.metadata.get(SIGNALS_ONLY)]
        return in_order([*now, *own, *told])

    def _sessions(self) -> list[Snapshot]:
        live, silent = drive(listed(self.core, None, self._owner, False))
        self._view.look_back(live, silent)
        untold = self._consumer.untold()
        known = {shot.id for shot in live}
        ended = [shot for id in sorted(untold - known) if (shot := self._session(id)) is not None]
        return [shot for shot in [*live, *ended] if self._belongs(shot, untold)]

    def registered(self, id: str) -> Daemon | None:
        """A host's own object, also when it was taken out."""
        return self._registered.get(id) or self._evicted.get(id)

    def _belongs(self, shot: Snapshot, untold: set[str] | None) -> bool:
        """Does it run as a daemon, has it survivors, or is its end still to be told? A call that somebody waits for
        is none."""
        if shot.metadata.get(SIGNALS_ONLY):
            return False
        if shot.status in TERMINAL:
            left = shot.exit is not None and (shot.exit.survivors or shot.exit.survivors_more)
            return bool(left) or shot.id in (self._consumer.untold() if untold is None else untold)
        return not self.is_call(shot.id)

    def is_call(self, id: str) -> bool:
        try:
            return bool(read_files(self.core.home, id).now().get("lifetime") == "call")
        except (NotFound, DamagedRecord):
            return False

    def is_mine(self, id: str) -> bool:
        return self._session(id) is not None

    def _session(self, id: str) -> Snapshot | None:
        """One of the owner's daemons, from its files."""
        shot = self.written(id)
        return None if shot is None or shot.metadata.get(SIGNALS_ONLY) else shot

    def written(self, id: str) -> Snapshot | None:
        """The same also for what is none."""
        if not is_id(id):
            return None
        try:
            files = read_files(self.core.home, id)
            if files.now().get("owner") != self._owner:
                return None
            return dressed(self.core, from_files(files).snapshot())
        except (NotFound, DamagedRecord, Removed):
            return None

    def look(self, id: str) -> DaemonSnapshot:
        """One session, its runner asked."""
        return self.of(self._looked(id))

    def _looked(self, id: str) -> Snapshot:
        return dressed(self.core, drive(self.core.look_up(id, self._owner)))

    def text(self, id: str, tail: int | None) -> Tail:
        shot, log = self._looked(id), self.core.log(id)
        if shot.kind == "local_bash":
            return Tail.of(log, lines=tail)
        told = kinds.of(shot.kind).output(log, shot, tail, None)
        return Tail(told.text, told.cut if tail is None else 0)

    def kill(self, id: str) -> None:
        drive(stopped(self.core, id, None, self._owner, self._view.servers))

    def of(self, shot: Snapshot) -> DaemonSnapshot:
        server = self._view.servers.get(shot.id)
        if server is not None:
            # Only the host that speaks to it knows.
            shot.metadata["state"] = server.state
        return snapshot.of(shot, lambda: self.core.log(shot.id))


def in_order(shots: list[DaemonSnapshot]) -> list[DaemonSnapshot]:
    return sorted(shots, key=lambda shot: (shot.started_at, shot.id))
