"""Signals: stored, routed to consumers, rendered for agents and people. Hosts only; runners write them.

`Gate` and `AsyncGate` are the loop of an agent that is woken by them; consumers come from `hf.signals(owner)` and
`hf.consumer(name)`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .loop import AsyncGate, Gate


__all__ = ["AsyncGate", "Gate"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import loop

    return getattr(loop, name)
