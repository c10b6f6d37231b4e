"""Two tools, `terminal` and `process`: background processes as NousResearch/hermes-agent words them.

    tools = holdfast.tools.toolset("hermes", hf, owner="conv-17")
    await tools.call("terminal", {"command": "npm run dev", "background": True, "watch_patterns": ["ERROR"]})
    async with await tools.drain() as drained:
        print(drained.text)

`Registry` has the same for programs that block.
"""

from __future__ import annotations

from .events import is_wanted
from .handles import ProcessSession, format_uptime_short
from .registry import Registry
from .settings import Settings
from .toolset import Hermes

__all__ = ["Hermes", "ProcessSession", "Registry", "Settings", "format_uptime_short", "is_wanted"]
