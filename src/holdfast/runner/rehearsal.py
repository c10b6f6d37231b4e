"""One whole life in a scratch directory, before the real one.

A forked process pays for every page at its first write to it. A spare that has lived once has all of them, so that
its caller does not wait for hundreds of page faults. A launcher that has lived before it forks has taught the
interpreter its code, on pages that are shared. The self-test lives the same life to see whether it works.
"""

from __future__ import annotations

import _socket as socket
import os

from . import life

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SESSION = "brehearsal"
# A spare that still rehearses adds a few files at most.
_PASSES_MAX = 100


def rehearse(scratch: str) -> None:
    """Leaves nothing behind but warm memory; what goes wrong here will be told when it matters. Only the launcher makes
    `scratch`: once it has removed it, a spare cannot bring it back."""
    home = os.path.join(scratch, str(os.getpid()))
    try:
        for directory in (home, os.path.join(home, "sessions")):
            # One by one: makedirs leaves the mode of those above to the umask.
            if not os.path.isdir(directory):
                os.mkdir(directory, 0o700)
        ours, theirs = socket.socketpair()
        life.live(theirs, request(home, ["true"]), [])
        ours.close()
    except OSError:
        pass
    forget(home)


def forget(path: str) -> None:
    """Remove a scratch directory with all that is in it. A spare may still rehearse there: what it adds behind one pass
    goes with the next."""
    for _ in range(_PASSES_MAX):
        _remove(path)
        if not os.path.lexists(path):
            return


def _remove(path: str) -> None:
    try:
        os.unlink(path)
    except IsADirectoryError:
        try:
            for name in os.listdir(path):
                _remove(os.path.join(path, name))
            os.rmdir(path)
        except OSError:
            pass  # it changed meanwhile
    except OSError:
        pass


def request(home: str, command: str | list[str]) -> dict[str, Any]:
    """A start request for `command` in a home of its own."""
    spec = {
        "v": 1,
        "id": SESSION,
        "kind": "local_bash",
        "name": None,
        "description": None,
        "owner": None,
        "labels": {},
        "command": command,
        "shell": "/bin/sh",
        "argv0": None,
        "cwd": "/",
        "umask": 0o22,
        "limits": {},
        "oom_score_adj": 0,
        "memory": None,
        "tty": None,
        "size": None,
        "stdin": "closed",
        "merge_stderr": False,
        "pass_fds": [],
        "timeout": None,
        "idle_timeout": None,
        "ttl": None,
        "lifetime": "detached",
        "owner_process": None,
        "grace": 5.0,
        "stop_ladder": None,
        "notify": "never",
        "log_cap": 1 << 20,
        "segment_bytes": 1 << 18,
        "free_floor": 0,
        "author": "rehearsal",
        "endpoint": os.path.join(home, "s.sock"),
    }
    then = {"type": "wait", "id": 0, "exit": True}
    return {"type": "start", "home": home, "env": {"PATH": os.defpath}, "spec": spec, "then": then}
