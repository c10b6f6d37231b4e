"""A ring at the terminals of all people who are attached to a session of this home, whatever it is about."""

from __future__ import annotations

from ..errors import HoldfastError
from ..home import Home
from ..model import LIVE_STATES
from .core import Core
from .driver import Blocking, drive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..config import Config


def ring(home: str, config: Config, text: str) -> int:
    """At how many terminals. A host of its own: it is called from a thread."""
    core = Core(Blocking(), Home(home), config, "people")
    try:
        rung = 0
        for shot in drive(core.sessions(all=False, fits=lambda shot: shot.state in LIVE_STATES)):
            if any((shot.attached or {}).values()):
                try:
                    rung += drive(core.request(shot.id, "ring", text=text))["rung"]
                except HoldfastError:
                    continue  # it has just ended, or is of an earlier release and has no bell
        return rung
    finally:
        core.close()
