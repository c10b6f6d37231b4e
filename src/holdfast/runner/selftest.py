"""`self-test`: one whole life in a temporary directory, for a machine this file was just sent to."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile

from . import life, rehearsal, telling, wire


def main() -> None:
    home = tempfile.mkdtemp(prefix="holdfast-self-test-")
    try:
        problem = _one_life(home)
    finally:
        shutil.rmtree(home)
    if problem is not None:
        sys.exit(f"holdfast: the runner's self-test failed: {problem}")
    print(f"holdfast runner {telling.VERSION} on Python {sys.version_info[0]}.{sys.version_info[1]}: fine")


def _one_life(home: str) -> str | None:
    os.mkdir(os.path.join(home, "sessions"), 0o700)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        ours.close()
        os.setsid()
        try:
            life.live(theirs, rehearsal.request(home, "echo held; exit 7"), [])
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
    directory = os.path.join(home, "sessions", rehearsal.SESSION)
    with open(os.path.join(directory, "exit.json")) as file:
        code = json.load(file)["exit"]["code"]
    with open(os.path.join(directory, "stdout." + "0" * 20)) as file:
        printed = file.read()
    return None if (code, printed) == (7, "held\n") else f"exit code {code}, printed {printed!r}, told {reply}"
