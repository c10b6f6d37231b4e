"""How the command line opens the home: as a host that says who sits at it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..host.api import Holdfast
    from ..host.core import Core


def here() -> Holdfast:
    from ..host.api import Holdfast

    return Holdfast(author=author())


def core() -> Core:
    """For `run`, which holds on to the connection that started its session."""
    from ..config import load
    from ..home import Home
    from ..host.core import Core
    from ..host.driver import Blocking

    return Core(Blocking(), Home(), load(os.environ), author())


def author(way: str = "cli") -> str:
    """Who asks, for the records of what was asked."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME")
    if not user:
        import pwd

        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = str(os.getuid())
    return f"{way}:{user}"
