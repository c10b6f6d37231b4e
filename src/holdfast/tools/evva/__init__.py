"""evva's tools: one record, one queue and one drain for everything in the background.

`Evva` is the toolset; `DaemonState` and `AsyncDaemonState` are the background of one owner, for programs that run the
agent themselves. A stop may raise `NotFound` and `AlreadyEnded`.
"""

from __future__ import annotations

from ...daemons.observers import DOMAIN
from ...errors import AlreadyEnded, NotFound
from ...home import new_id
from .emitting import Agent
from .signal import Batch, Event, Fold, Lifecycle, Signal, new_event_signal, new_lifecycle_signal
from .snapshot import (
    KIND_DREAM,
    KIND_IN_PROCESS_TEAMMATE,
    KIND_LOCAL_AGENT,
    KIND_LOCAL_BASH,
    KIND_LOCAL_WORKFLOW,
    KIND_LSP,
    KIND_MONITOR,
    KIND_REMOTE_AGENT,
    KINDS,
    OP_ADDED,
    OP_EVENT,
    OP_REMOVED,
    STATUS_COMPLETED,
    STATUS_FAILED,
    STATUS_KILLED,
    STATUS_PENDING,
    STATUS_RUNNING,
    STATUSES,
    Change,
    DaemonSnapshot,
    LocalAgent,
    LocalBash,
    Lsp,
    Monitor,
    Other,
    is_terminal,
    names,
)
from .state import AsyncDaemonState, DaemonState
from .toolset import Evva

__all__ = [
    "DOMAIN",
    "KINDS",
    "KIND_DREAM",
    "KIND_IN_PROCESS_TEAMMATE",
    "KIND_LOCAL_AGENT",
    "KIND_LOCAL_BASH",
    "KIND_LOCAL_WORKFLOW",
    "KIND_LSP",
    "KIND_MONITOR",
    "KIND_REMOTE_AGENT",
    "OP_ADDED",
    "OP_EVENT",
    "OP_REMOVED",
    "STATUSES",
    "STATUS_COMPLETED",
    "STATUS_FAILED",
    "STATUS_KILLED",
    "STATUS_PENDING",
    "STATUS_RUNNING",
    "Agent",
    "AlreadyEnded",
    "AsyncDaemonState",
    "Batch",
    "Change",
    "DaemonSnapshot",
    "DaemonState",
    "Event",
    "Evva",
    "Fold",
    "Lifecycle",
    "LocalAgent",
    "LocalBash",
    "Lsp",
    "Monitor",
    "NotFound",
    "Other",
    "Signal",
    "is_terminal",
    "names",
    "new_event_signal",
    "new_id",
    "new_lifecycle_signal",
]
