"""The native toolset: few tools, one job each, small answers that say what can be done next.

How its drain looks is the default, and the base of the others: `Native` in `signals/render.py`.
"""

from __future__ import annotations

from .toolset import Native

__all__ = ["Native"]
