"""What waits for people although nobody is there to tell them: their deliverer was killed, or could not be started.

For hosts to ask now and then, as they collect. A runner calls at each new signal, and so does a host that tells what a
runner could not.
"""

from __future__ import annotations

import os
import threading

from ..errors import IndexBusy
from ..host.request import people_spec
from ..runner.people import People

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..config import Config
    from ..home import Home
    from .consumers import Consumers

PREFIX = "people:"


def call_if_needed(home: Home, config: Config, consumers: Consumers) -> bool:
    """Call a deliverer where one is wanted. Whether one was."""
    spec = people_spec(config)
    if not spec["events"]:
        return False
    try:
        known = [each for each in consumers.known() if each["name"].startswith(PREFIX)]
    except IndexBusy:
        return False
    if not any(each["waiting"] > each["parked"] for each in known):
        return False
    CalledByHost(home.path, spec, dict(os.environ), lambda _problem: None).call()
    return True


def call_for(home: Home, config: Config, variant: str, record: dict[str, Any], notify: bool | None) -> None:
    """This record is in the queue, written by a host: call a deliverer if people are to be told of it."""
    spec = people_spec(config)
    if spec["events"]:
        CalledByHost(home.path, spec, dict(os.environ), lambda _problem: None).called(variant, record, notify)


class CalledByHost(People):
    """A host has children of its own: what we start is waited for by its pid alone."""

    def _start(self, lock: int) -> int:
        pid = super()._start(lock)
        threading.Thread(target=os.waitpid, args=(pid, 0), name="holdfast-people", daemon=True).start()
        return pid
