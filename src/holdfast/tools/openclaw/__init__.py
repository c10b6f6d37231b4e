"""Toolset `openclaw`: `exec` and `process`, and under them a supervisor that agents may use too."""

from __future__ import annotations

from .toolset import OpenClaw

__all__ = ["OpenClaw"]
