"""Signals for people, and a receiver of webhooks that records its requests."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from holdfast.signals.lines import Signal
from support.waiting import BOUND_S

BOOT = "5f2c9e01"
SECOND_NS = 1_000_000_000


def signal_of(
    variant: str = "lifecycle",
    fields: Mapping[str, Any] | None = None,
    *,
    session: str | None = "b7k2m9qa1",
    seq: int = 1,
    at_s: float = 100.0,
    **common: Any,
) -> Signal:
    """One that was emitted `at_s` on the monotonic clock; a failed ending unless another is asked for."""
    if fields is None:
        fields = {"phase": "ended", "status": "failed", "code": 7, "cause": "exit"} if variant == "lifecycle" else {}
    record = {
        "v": 1,
        "id": f"{session or 'home'}.{seq}",
        "seq": seq,
        "session": session,
        "kind": "local_bash",
        "owner": "conv-17",
        "attempt": 1,
        "at": "2026-08-01T09:14:07.412Z",
        "mono_ns": round(at_s * SECOND_NS),
        "boot": BOOT,
        "routed": True,
        "snapshot": {"name": "build", "command": "make test", "place": "local"},
        variant: dict(fields),
        **common,
    }
    return Signal(record)


class Got:
    """One request as it came."""

    def __init__(self, path: str, headers: Mapping[str, str], body: bytes) -> None:
        self.path = path
        self.headers = headers
        self.body = body


class Receiver:
    """An HTTP server on this machine that gives the prepared answers in turn, the last one for ever. An answer is a
    status, or a status and headers; `hold` lets requests wait for their answer until `release`."""

    def __init__(self, answers: Sequence[int | tuple[int, Mapping[str, str]]] = (200,), *, hold: bool = False) -> None:
        self._answers = list(answers)
        self._got: queue.Queue[Got] = queue.Queue()
        self._released = threading.Event()
        self.count = 0
        if not hold:
            self._released.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver._take(self, Got(self.path, dict(self.headers), body))

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False  # its close waits for all of them
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def __enter__(self) -> Receiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/hook?x=1"

    def next(self, bound: float = BOUND_S) -> Got:
        return self._got.get(timeout=bound)

    def release(self) -> None:
        self._released.set()

    def _take(self, handler: BaseHTTPRequestHandler, got: Got) -> None:
        self.count += 1
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        status, headers = answer if isinstance(answer, tuple) else (answer, {})
        self._got.put(got)
        self._released.wait()
        try:
            handler.send_response(status)
            for name, value in headers.items():
                handler.send_header(name, value)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
        except OSError:
            pass  # it did not wait for our answer
