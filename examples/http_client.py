"""A client of `hold serve` with the standard library alone. It sends its token only to the server that knows it.

    hold serve &
    python examples/http_client.py http://127.0.0.1:4653 ~/.local/state/holdfast/server/token

Another user of the machine can listen on the port while the server is down. So each new connection begins with a
proof, which only the server can compute, and the token is sent on that same connection.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import secrets
import select
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

TIMEOUT_S = 90


class NotTheServer(Exception):
    """What listens at the address could not prove that it is our server. It was not sent the token."""


class Refused(Exception):
    """The server answered with a problem."""

    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(f"{problem.get('detail')}; {problem.get('fix')}")
        self.problem = problem


class Client:
    """`token` is `hf_ID_SECRET`; that of the home is `hf_home_` and the text of the file `server/token`."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        self._origin, self._host = f"{parts.scheme}://{parts.netloc}", parts.netloc
        self._token = token
        self._connection: http.client.HTTPConnection | None = None

    def call(self, method: str, path: str, body: object = None) -> Any:
        """The JSON of the answer. A request whose answer was lost is not repeated: look whether it was done."""
        if not self._is_connected():
            self._connect()
        status, data = self._send(method, path, body, {"Authorization": f"Bearer {self._token}"})
        found = json.loads(data) if data else None
        if status >= 400:
            raise Refused(found or {})
        return found

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _is_connected(self) -> bool:
        """Over TLS a connection stays open. If there is something to read then, the server has closed it."""
        sock = None if self._connection is None else self._connection.sock
        return sock is not None and not select.select([sock], [], [], 0)[0]

    def _connect(self) -> None:
        self.close()
        secure = self._origin.startswith("https:")
        self._connection = (http.client.HTTPSConnection if secure else http.client.HTTPConnection)(
            self._host, timeout=TIMEOUT_S
        )
        self._connection.connect()
        # A new connection would not be proven.
        self._connection.auto_open = 0
        _, id, secret = self._token.split("_", 2)
        nonce = secrets.token_urlsafe(16)
        _, data = self._send("POST", "/v1/auth/prove", {"id": id, "nonce": nonce}, {})
        key = hashlib.sha256(secret.encode()).digest()
        expected = hmac.new(key, f"holdfast-server{self._origin}{nonce}".encode(), "sha256").hexdigest()
        try:
            proof = str(json.loads(data)["proof"])
        except (ValueError, TypeError, KeyError):
            proof = ""
        if not hmac.compare_digest(proof.encode(), expected.encode()):
            self.close()
            raise NotTheServer(f"{self._origin} is not the server of this token: nothing secret was sent to it")

    def _send(self, method: str, path: str, body: object, headers: dict[str, str]) -> tuple[int, bytes]:
        assert self._connection is not None
        sent = None if body is None else json.dumps(body)
        try:
            self._connection.request(method, path, sent, {**headers, "Content-Type": "application/json"})
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise


def main() -> None:
    url, path = sys.argv[1:]
    client = Client(url, f"hf_home_{Path(path).expanduser().read_text().strip()}")
    session = client.call("POST", "/v1/sessions", {"command": "echo hello from a session"})
    client.call("GET", f"/v1/sessions/{session['id']}/wait?until=exit&timeout=30")
    print(client.call("GET", f"/v1/sessions/{session['id']}/tail")["text"], end="")
    client.close()


if __name__ == "__main__":
    main()
