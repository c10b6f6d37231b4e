"""Waking whoever waits for signals: a datagram to each socket in `wake/` that bears the owner's name.

A hint and nothing more: it may be lost, and the file that it speaks of is the truth.
"""

from __future__ import annotations

import _socket as socket
import os
from _blake2 import blake2b

from . import sockets

DIRECTORY = "wake"
# The name of sockets that are woken for everybody's sessions.
ALL = "all"
# The name of those that look at everything, also at what is only recorded and goes to nobody's queue.
VIEW = "view"
# Of each name so many are called: more than hosts may be allowed to make.
_MOST = 1024


def owner_hash(owner: str) -> str:
    return blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def call(runtime: str, owner: str | None, session: str | None, seq: int) -> None:
    _call(runtime, {VIEW, ALL} if owner is None else {VIEW, ALL, owner_hash(owner)}, session, seq)


def show(runtime: str, session: str, seq: int) -> None:
    """A record that is in nobody's queue."""
    _call(runtime, {VIEW}, session, seq)


def _call(runtime: str, wanted: set[str], session: str | None, seq: int) -> None:
    directory = os.path.join(runtime, DIRECTORY)
    there: dict[str, list[str]] = {name: [] for name in wanted}
    try:
        for path in os.listdir(directory):
            there.get(path.partition("-")[0], []).append(path)
    except OSError:
        return
    if not any(there.values()):
        return
    hint = f"{session or 'home'} {seq}".encode()
    try:
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    except OSError:
        return
    try:
        # Those of one name have no part in how many of another are called.
        for path in (path for paths in there.values() for path in paths[:_MOST]):
            try:
                sockets.send_unix(sender, hint, os.path.join(directory, path))
            except OSError:
                continue  # full: it wakes anyway; refused or gone: nobody is there
    finally:
        sender.close()
