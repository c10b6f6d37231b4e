"""The `os` tools of dominds over sessions: commands that are waited for a while, and daemons that outlive the wait.

A *daemon* is a session that outlived the wait of its `shell_cmd`, a *reminder* the record of one daemon as the agent
sees it. Both words belong to this family's texts only.
"""

from __future__ import annotations

from .family import Dominds
from .reminder import Reminder
from .wakeups import Wakeups

__all__ = ["Dominds", "Reminder", "Wakeups"]
