"""A language server for tests: speaks the protocol, and does what a test asks of it.

Words: `fail N` (exit with 3 the first N times, counted in a file), `silent` (never answers `initialize`),
`refuse` (answers it with an error), `garbage` (prints what is no message), `deaf` (does not exit when it is asked to).
Requests of its own: `echo` gives its parameters back, `hang` is never answered, `die` exits, `mess` prints what is no
message, `mute` closes its output and lives on, `ask` asks the client.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

BAD = -32601


def argv(*words: object) -> list[str]:
    """Its command line, isolated like that of the probe."""
    return [sys.executable, "-I", "-S", str(Path(__file__)), *map(str, words)]


def send(message: dict[str, Any]) -> None:
    body = json.dumps({"jsonrpc": "2.0", **message}).encode()
    os.write(1, b"Content-Length: %d\r\n\r\n" % len(body) + body)


def receive() -> dict[str, Any] | None:
    size = 0
    while line := sys.stdin.buffer.readline().strip():
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            size = int(value)
    if not size:
        return None
    found = json.loads(sys.stdin.buffer.read(size))
    assert isinstance(found, dict)
    return found


def diagnose(text: str, uri: str) -> None:
    """Every line with `wrong` in it is."""
    found = [
        {"range": {"start": {"line": number, "character": 0}, "end": {"line": number, "character": 1}}, "message": line}
        for number, line in enumerate(text.splitlines())
        if "wrong" in line
    ]
    send({"method": "textDocument/publishDiagnostics", "params": {"uri": uri, "diagnostics": found}})


def serve(words: Sequence[str]) -> int:
    asked: dict[str, Any] = {}
    while (message := receive()) is not None:
        method, number = message.get("method"), message.get("id")
        params: Any = message.get("params")
        if method is None:
            asked["answer"] = message
        elif method == "initialize" and "refuse" in words:
            send({"id": number, "error": {"code": BAD, "message": "not with me"}})
        elif method == "initialize" and "silent" not in words:
            send({"id": number, "result": {"capabilities": {"echo": True}, "pid": os.getpid()}})
        elif method == "echo":
            send({"id": number, "result": params})
        elif method == "heard":
            send({"id": number, "result": asked})
        elif method == "ask":
            send({"id": 1, "method": params["method"], "params": params["params"]})
            send({"id": number, "result": None})
        elif method == "die":
            os._exit(int(params["code"]))
        elif method == "mess":
            os.write(1, b"Hello from a print statement\r\n\r\n")
        elif method == "mute":
            os.close(1)
        elif method == "textDocument/didOpen":
            diagnose(params["textDocument"]["text"], params["textDocument"]["uri"])
        elif method == "shutdown":
            asked["shutdown"] = True
            os.write(2, b"shutting down\n")
            send({"id": number, "result": None})
        elif method == "exit" and "deaf" not in words:
            os.write(2, b"bye\n")
            return 0 if "shutdown" in asked else 1
        elif number is not None and method not in ("hang", "initialize"):
            send({"id": number, "error": {"code": BAD, "message": f"no {method} here"}})
    return 0


def main(words: Sequence[str]) -> int:
    if "deaf" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "garbage" in words:
        os.write(1, b"Listening on port 2087\r\n\r\n")
    if "fail" in words:
        count, path = int(words[1]), Path(words[2])
        tries = len(path.read_text()) if path.exists() else 0
        if tries < count:
            path.write_text("x" * (tries + 1))
            os.write(2, b"cannot start\n")
            return 3
    os.write(2, b"ready to serve\n")
    return serve(words)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
