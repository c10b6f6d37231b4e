"""A rehearsal: one session in a scratch directory, before the real one.

A forked process pays for every page at its first write to it: a spare that has rehearsed a start has paid already, so
that its caller does not wait for hundreds of page faults. In a launcher that rehearses before it forks, the interpreter
has specialised the code, on pages that are shared. The self-test runs the same session to see whether it works.
"""

from __future__ import annotations

import _socket as socket
import os
import sys

from ..core import directories, failpoints, records, wire
from . import session, status
from .directory import Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


SESSION = "brehearsal"
# A spare that still rehearses adds a few files at most.
_PASSES_MAX = 100


def wanted() -> bool:
    """Do not rehearse when failpoints are planned: a plan counts the passes of real sessions only."""
    return not failpoints.ACTIVE and not failpoints.off("rehearsal")


def scratch_path(socket_path: str) -> str:
    """Where a launcher and its spares rehearse."""
    return socket_path[: -len(".sock")] + ".scratch"


def rehearse(scratch: str, *, with_end: bool = True) -> None:
    """Rehearse, and leave nothing but warm memory; a problem here is reported when a real session has it. Only the
    launcher makes `scratch`: once it has removed it, a spare cannot bring it back. A spare rehearses without the end: a
    session spends most of its life before its end, and would keep the pages that the end needs."""
    home = os.path.join(scratch, str(os.getpid()))
    try:
        for directory in (home, os.path.join(home, "sessions")):
            # One by one: makedirs leaves the mode of those above to the umask.
            if not os.path.isdir(directory):
                os.mkdir(directory, 0o700)
        ours, theirs = socket.socketpair()
        request = start_request(home, ["true"])
        if with_end:
            session.run(theirs, request, [])
        else:
            _run_start(theirs, request)
        ours.close()
    except (OSError, Refused):
        pass
    forget(home)


def _run_start(channel: socket.socket, request: dict[str, Any]) -> None:
    begun = session.Session(request, [], ())
    begun.begin()
    begun.greet(channel)
    if begun.tree.command is not None:
        os.waitpid(begun.tree.command["pid"], 0)
    begun.close()


def forget(path: str) -> None:
    """Remove a scratch directory with everything in it. A spare may still be rehearsing there: what it adds after one
    pass is removed by the next."""
    for _ in range(_PASSES_MAX):
        directories.remove(path)
        if not os.path.lexists(path):
            return


def start_request(home: str, command: str | list[str]) -> dict[str, Any]:
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


# `self-test`: one whole session in a temporary directory, on a machine that this code was just sent to.


def self_test() -> None:
    import tempfile  # not imported above: a launcher does not use it

    home = tempfile.mkdtemp(prefix="holdfast-self-test-")
    try:
        problem = _one_session(home)
    finally:
        forget(home)
    if problem is not None:
        sys.exit(f"holdfast: the runner's self-test failed: {problem}")
    print(f"holdfast runner {status.VERSION} on Python {sys.version_info[0]}.{sys.version_info[1]}: fine")


def _one_session(home: str) -> str | None:
    os.mkdir(os.path.join(home, "sessions"), 0o700)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        os.setsid()
        try:
            session.run(theirs, start_request(home, "echo held; exit 7"), [])
        finally:
            os._exit(0)
    theirs.close()
    ours.settimeout(20)
    decoder, reply = wire.Decoder(), None
    while reply is None:
        received = ours.recv(1 << 16)
        if not received:
            return "the runner left without an answer"
        for frame in decoder.feed(received):
            if isinstance(frame, dict) and frame["type"] in ("reply", "error"):
                reply = frame
    ours.close()
    os.waitpid(pid, 0)
    directory = os.path.join(home, "sessions", SESSION)
    code = records.read(os.path.join(directory, "exit.json"))["exit"]["code"]
    with open(os.path.join(directory, "stdout." + "0" * 20)) as file:
        printed = file.read()
    return None if (code, printed) == (7, "held\n") else f"exit code {code}, printed {printed!r}, answered {reply}"
