"""How a drain looks to the agent of one toolset, by name.

Each frames its message so that output cannot end it, and says that a machine made it and that output is data.
"""

from __future__ import annotations

from ...errors import BadArgument
from .dominds import Dominds
from .evva import Evva
from .hermes import Hermes
from .native import Native
from .openclaw import OpenClaw
from .style import Left, Plan, Style

__all__ = ["STYLES", "Dominds", "Evva", "Hermes", "Left", "Native", "OpenClaw", "Plan", "Style", "named"]

STYLES: dict[str, type[Style]] = {style.name: style for style in (Native, Evva, Dominds, Hermes, OpenClaw)}


def named(name: str) -> Style:
    try:
        return STYLES[name]()
    except KeyError:
        raise BadArgument("style", f"{name[:40]!a} is not known", "give " + " or ".join(STYLES)) from None
