"""The tools of evva: one record, one queue and one drain for everything in the background.

`Evva` is the toolset; `DaemonState` and `AsyncDaemonState` are the background of one owner, for programs that run the
agent themselves.
"""

from __future__ import annotations

from ...home import new_id
from .agent import Agent
from .batch import Batch, Fold
from .change import Change
from .signal import Event, Lifecycle, Signal
from .snapshot import DaemonSnapshot, LocalAgent, LocalBash, Lsp, Monitor, Other
from .state import AsyncDaemonState, DaemonState
from .toolset import Evva

__all__ = [
    "Agent",
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
    "Other",
    "Signal",
    "new_id",
]
