"""The `os` tools of dominds over sessions: commands that are waited for a while, and daemons that outlive the wait.

A *daemon* is a session that outlived the wait of its `shell_cmd`, a *reminder* the record of one daemon as the agent
sees it. Both words belong to this toolset's texts only.
"""

from __future__ import annotations

from .reminders import Reminder, Wakeups
from .toolset import Dominds

__all__ = ["Dominds", "Reminder", "Wakeups"]
