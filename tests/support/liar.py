"""The far end of a link that says whatever its test wants: `python liar.py LIES.json`, in the place of `docker`.

It keeps to the protocol where `lies` are silent: a session that runs, with one line of output.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from holdfast.core import jsontext, wire
from holdfast.places import link

OUTPUT = "stdout.00000000000000000000"
NOW = "2026-01-01T00:00:00.000Z"


def main(path: str) -> None:
    with open(path, encoding="utf-8") as file:
        lies: dict[str, Any] = json.load(file)
    os.write(1, link.MARK + b"have\n")
    tell({"type": "here", "version": "0.1.0", "archive": "x", "home": "/", "cwd": "/", "user": "/", "pid": 1})
    decoder = wire.Decoder(wire.START_MAX_BYTES)
    spoken: dict[int, wire.Decoder] = {}
    session = ""
    while received := os.read(0, 1 << 16):
        for frame in decoder.feed(received):
            if isinstance(frame, tuple):
                answer(lies, session, frame[0], spoken[frame[0]].feed(frame[1]))
                continue
            if frame["type"] in ("start", "resume"):
                session = frame["id"] if frame["type"] == "resume" else frame["request"]["spec"]["id"]
                spoken[1] = wire.Decoder(wire.START_MAX_BYTES)
                grow(lies, session)
                if frame["type"] == "start":
                    say(wire.data(1, wire.control(hello(lies, session))))
            elif frame["type"] == "open":
                spoken[frame["channel"]] = wire.Decoder()
                say(wire.data(frame["channel"], wire.control(hello(lies, session))))


def say(raw: bytes) -> None:
    view = memoryview(raw)
    while view:
        view = view[os.write(1, view) :]


def tell(frame: dict[str, Any]) -> None:
    say(wire.control(frame))


def piece(name: str, raw: bytes, at: int = 0, **heading: Any) -> None:
    tell({"type": "piece", "name": name, "at": at, "anew": at == 0, "last": True, **heading})
    say(wire.data(0, raw))


def identity(session: str) -> dict[str, Any]:
    process = {"pid": 4242, "start": 1}
    return {
        "nonce": "n",
        "boot": "b",
        "pidns": 1,
        "timens": 1,
        "runner": process,
        "command": {**process, "line": ["x"]},
    }


def hello(lies: dict[str, Any], session: str) -> dict[str, Any]:
    said = {"id": session, **identity(session)}
    return {"type": "hello", "protocol": 1, "version": "0", "features": [], "identity": said, "status": status(lies)}


def status(lies: dict[str, Any]) -> dict[str, Any]:
    counted = {"ends": {"stdout": 4}, "dropped_before": {"stdout": 0}, "log_bytes": 4, "signals": 1}
    told = {"state": "running", "pid": 4242, "started_at": NOW, "exit": None, "error": None, "attempt": 1}
    return {**told, **counted, **lies.get("status", {})}


def grow(lies: dict[str, Any], session: str) -> None:
    piece(OUTPUT, b"one\n")
    lines = b""
    for line in lies.get("signals", []):
        number = line["seq"]
        record = {"v": 1, "id": f"{session}.{number}", "session": session, "at": NOW, "routed": True, **line}
        lines += jsontext.write(record).encode() + b"\n"
    if lines:
        piece("signals.jsonl", lines)
    state = {**identity(session), "endpoint": "/x", "pgid": 4242, "started_at": NOW, "attempt": 1, "changed": {}}
    if "state" in lies:
        state = {**state, **lies["state"]}
    piece("state.json", json.dumps(state).encode())
    if "exit" in lies:
        piece("exit.json", json.dumps(lies["exit"]).encode())
    for name, text in lies.get("files", {}).items():
        piece(name, text.encode())
    flood(**lies["flood"]) if "flood" in lies else None


def flood(names: list[str], block: str, times: int, size: int, then: dict[str, Any] | None = None) -> None:
    """The same block again and again, into each file in turn; `then` is the heading of one more byte at its begin."""
    raw = (block * (size // len(block) + 1))[:size].encode()
    for name in names:
        for number in range(times):
            piece(name, raw, number * len(raw))
        if then is not None:
            piece(name, raw[:1], **then)


def answer(lies: dict[str, Any], session: str, channel: int, requests: list[wire.Frame]) -> None:
    for request in requests:
        if isinstance(request, dict) and request["type"] not in ("hello", "start", "wait"):
            reply = {**wire.reply(request), "status": status(lies), **lies.get("reply", {})}
            say(wire.data(channel, wire.control(reply)))


if __name__ == "__main__":
    main(sys.argv[1])
