"""Another program that listens where a server was, and the client over HTTP that is not to trust it."""

from __future__ import annotations

import importlib.util
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

HTTP_CLIENT = Path(__file__).parents[2] / "examples" / "http_client.py"


def http_client() -> Any:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location("http_client", HTTP_CLIENT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Handler(BaseHTTPRequestHandler):
    """Answers everything, and writes down what it was sent."""

    received: list[bytes]
    body = b"<!doctype html><title>elsewhere</title>"

    def handle_one_request(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.received.append(self.raw_requestline + bytes(self.headers) + content)
        self.send_response(200)
        self.send_header("Content-Type", "application/json" if self.path.startswith("/v1") else "text/html")
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None: ...


@contextmanager
def program_on(port: int, body: bytes = _Handler.body) -> Iterator[tuple[str, list[bytes]]]:
    """Another program that listens there, and all that it was sent."""
    received: list[bytes] = []
    handler = type("Handler", (_Handler,), {"received": received, "body": body, "protocol_version": "HTTP/1.0"})
    server = until(lambda: _bound(port, handler), what="the port")
    assert server is not None
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", received
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _bound(port: int, handler: type[_Handler]) -> ThreadingHTTPServer | None:
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), handler)
    except OSError:
        return None
