"""One question about one session, asked by a command and answered before that ends: for places that run commands and
have no stream to a runner. `ask` and a request in base64; the answer stands behind a mark in the output."""

from __future__ import annotations

import os
import socket
import sys
import time

from . import far, jsontext, records, telling, wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Record = dict[str, Any]

MARK = "holdfast-answer:"
_START_S = 20.0
_MARGIN_S = 5.0
_STREAMS = ("stdout", "stderr", "tty")


def main(text: str) -> None:
    request = jsontext.read(wire.from_text(text) or b"")
    try:
        answer = {"start": _start, "look": _look, "stop": _stop}[request["do"]](request)
    except (OSError, ValueError) as problem:
        answer = {"error": str(problem)}
    packed = wire.as_text(jsontext.write(answer).encode())
    sys.stdout.write(f"\n{MARK}{packed}\n")


def _start(asked: Record) -> Record:
    home, runtime = far.guest_directories()
    request = asked["request"]
    spec = request["spec"]
    spec["endpoint"] = os.path.join(runtime, spec["id"] + ".sock")
    spec["cwd"] = os.path.expanduser(spec["cwd"]) if spec["cwd"] else os.getcwd()
    spec["argv0"] = None
    request["env"] = {**os.environ, **request["env"]}
    spec["env_names"] = sorted(request["env"])
    request["home"] = home
    with _Talk(far.executed()) as talk:
        talk.say(request)
        answer = talk.hear(_START_S)
    if answer.get("type") == "error":
        return {"error": answer.get("message") or "no runner could be started"}
    error = answer["status"].get("error")
    return {"pid": answer["status"].get("pid"), "spawn_error": error, "endpoint": spec["endpoint"], "home": home}


def _look(asked: Record) -> Record:
    """How it stands, and what it printed from `since` on."""
    directory = os.path.join(asked["home"], "sessions", asked["id"])
    # The record first: what it says was printed is there then.
    exit = records.found(None, os.path.join(directory, "exit.json"))
    lives = not records.lock_is_free(os.path.join(directory, "spec.json"))
    if not exit and not lives:
        exit = records.found(None, os.path.join(directory, "exit.json"))
    data, end = _printed(directory, asked["since"], asked["limit"])
    return {
        "exit": exit.get("exit"),
        "lost": not exit and not lives,
        "since": end - len(data),
        "data": wire.as_text(data),
    }


def _stop(asked: Record) -> Record:
    said = _request(asked, {"type": "stop", "id": 1, "grace": asked["grace"], "by": asked["by"]}, asked["grace"] + 10)
    return {**_look(asked), "survivors": [each["pid"] for each in said.get("survivors") or []]}


def _request(asked: Record, request: Record, bound_s: float) -> Record:
    """The answer of the runner; empty where it is gone."""
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(asked["endpoint"])
    except OSError:
        sock.close()
        return {}
    with _Talk(sock) as talk:
        greeting = {"type": "hello", "protocol": wire.PROTOCOL, "version": telling.VERSION, "features": []}
        talk.say({**greeting, "kind": "link", "author": "ask"})
        talk.say(request)
        until = time.monotonic() + bound_s + _MARGIN_S
        while time.monotonic() < until:
            answer = talk.hear(until - time.monotonic())
            if not answer or (answer.get("type") in ("reply", "error") and answer.get("id") == request["id"]):
                return answer
    return {}


def _printed(directory: str, since: int, limit: int) -> tuple[bytes, int]:
    """At most `limit` bytes of the one stream from `since` on, and where they end."""
    found = b""
    for name in sorted(os.listdir(directory)):
        stream, _, first = name.partition(".")
        if stream in _STREAMS and first.isdigit() and len(found) < limit:
            begin = int(first)
            try:
                fd = records.open_file(os.path.join(directory, name))
            except ValueError:
                continue
            with open(fd, "rb") as file:
                file.seek(max(0, since - begin))
                part = file.read(limit - len(found))
            if part and begin + max(0, since - begin) > since + len(found):
                since = begin - len(found)  # what was before is not kept any more
            found += part
    return found, since + len(found)


class _Talk:
    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._decoder = wire.Decoder()
        self._frames: list[Any] = []

    def __enter__(self) -> _Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def say(self, message: Record) -> None:
        self._sock.sendall(wire.control(message))

    def hear(self, bound_s: float) -> Record:
        """The next message; empty at the end, or when the time is over."""
        until = time.monotonic() + bound_s
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if isinstance(frame, dict):
                    return frame
            left = until - time.monotonic()
            if left <= 0:
                return {}
            self._sock.settimeout(left)
            try:
                received = self._sock.recv(1 << 16)
            except OSError:
                return {}
            if not received:
                return {}
            self._frames += self._decoder.feed(received)
