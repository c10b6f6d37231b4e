"""The native toolset: few tools, one job each, small answers that say what can be done next."""

from __future__ import annotations

from .toolset import Native

__all__ = ["Native"]
