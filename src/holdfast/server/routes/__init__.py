"""All routes: each module adds its rows to the table of endpoints."""

from .. import page
from . import history, home, output, sessions, signals

__all__ = ["history", "home", "output", "page", "sessions", "signals"]
