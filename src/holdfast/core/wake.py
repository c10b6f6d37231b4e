"""Wakes the hosts that wait for signals: a datagram to each socket in `wake/` that has the owner's name.

A hint and nothing more: it may be lost, and the file that it speaks of is the truth.
"""

from __future__ import annotations

import _socket as socket
import os
from _blake2 import blake2b

from . import sockets

DIRECTORY = "wake"
# The name of sockets that are woken for the sessions of all owners.
ALL = "all"
# The name of those that look at everything, also at records that enter no queue.
VIEW = "view"
# This many sockets of each name are woken: more than hosts make.
_MOST = 1024


def owner_hash(owner: str) -> str:
    return blake2b(owner.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def hosts(runtime: str, owner: str | None, session: str | None, seq: int) -> None:
    """Wake those that wait for signals of this owner."""
    _send_hint(runtime, {VIEW, ALL} if owner is None else {VIEW, ALL, owner_hash(owner)}, session, seq)


def views(runtime: str, session: str, seq: int) -> None:
    """Wake for a record that enters no queue."""
    _send_hint(runtime, {VIEW}, session, seq)


def _send_hint(runtime: str, wanted: set[str], session: str | None, seq: int) -> None:
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
        # The limit holds for each name by itself.
        for path in (path for paths in there.values() for path in paths[:_MOST]):
            try:
                sockets.send_unix(sender, hint, os.path.join(directory, path))
            except OSError:
                continue  # full: it wakes anyway; refused or gone: no process is there
    finally:
        sender.close()
