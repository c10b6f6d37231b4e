"""Signals that a host makes itself: into the file of the daemon they speak of, which this host keeps."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from ...errors import BadArgument, HoldfastError
from .snapshot import TERMINAL

if TYPE_CHECKING:
    from ...daemons.relay import Relay
    from ...daemons.view import View
    from .catalog import Daemon
    from .signal import Signal

_log = logging.getLogger("holdfast.tools.evva")


class Emitting:
    """What it has no directory for yet gets one with its first signal, and is kept by this host from then on."""

    def __init__(self, view: View, owner: str) -> None:
        self._view = view
        self._owner = owner
        self._lock = threading.Lock()
        self._relays: dict[str, Relay] = {}

    def emit(self, signal: Signal, daemon: Daemon | None) -> None:
        """ValueError where somebody else writes that file: its runner, or another host."""
        known = signal.daemon_id in self._relays
        relay = self._relay(signal, daemon)
        if signal.event is not None:
            relay.event(signal.event.line, stream=signal.event.stream, closing=signal.event.closing)
        elif signal.lifecycle is not None and signal.lifecycle.status in TERMINAL:
            if not relay.end(signal.lifecycle.status, code=signal.lifecycle.exit_code):
                _log.warning("a second end of %s was dropped", signal.daemon_id)
        elif known:
            relay.runs()

    def _relay(self, signal: Signal, daemon: Daemon | None) -> Relay:
        id = signal.daemon_id
        with self._lock:
            relay = self._relays.get(id)
            if relay is None:
                end = (lambda: None) if daemon is None else daemon.kill
                description = signal.snapshot.description if signal.snapshot is not None else None
                try:
                    relay = self._view.relay(
                        id, end, kind=signal.kind or "unknown", owner=self._owner, description=description
                    )
                except BadArgument:
                    raise
                except HoldfastError as problem:
                    raise ValueError(f"{id} is told of by whoever runs it: {problem.message}") from None
                self._relays[id] = relay
        return relay
