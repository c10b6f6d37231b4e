"""A signed POST of the record. Redirects are not followed: the signature is for one address."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import threading
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from urllib.parse import urlsplit

from ... import __version__
from ...runner import jsontext
from . import AGAIN, DELIVERED, FAILED, GONE, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ...config.channels import WebhookChannel
    from ..notices import Notice

ID_HEADER = "Holdfast-Signal-Id"
SIGNATURE_HEADER = "Holdfast-Signature"

_TRY_AGAIN = frozenset((408, 425, 429))
_SECRET_BYTES = 4096


class Webhook:
    def __init__(self, channel: WebhookChannel, timeout_s: float, wall: Callable[[], float] = time.time) -> None:
        self._channel = channel
        self._timeout_s = timeout_s
        self._wall = wall

    def deliver(self, notice: Notice) -> Post:
        body = jsontext.write(notice.record()).encode()
        return Post(self._channel, notice.first.id, body, self._timeout_s, self._wall)


class Post:
    def __init__(
        self, channel: WebhookChannel, id: str, body: bytes, timeout_s: float, wall: Callable[[], float]
    ) -> None:
        self._channel = channel
        self._id = id
        self._body = body
        self._timeout_s = timeout_s
        self._wall = wall
        self._guard = threading.Lock()
        self._connection: HTTPConnection | None = None
        self._over = False

    def run(self) -> Outcome:
        try:
            secret = read_secret(self._channel.secret_file)
        except (OSError, ValueError) as problem:
            # It can be put right, and the notice need not be lost until then.
            return Outcome(AGAIN, f"{self._channel.secret_file}: {problem}")
        try:
            return self._post(secret)
        except (OSError, HTTPException) as problem:
            return Outcome(AGAIN, f"no answer: {str(problem) or type(problem).__name__}")
        finally:
            if self._connection is not None:
                self._connection.close()

    def abort(self) -> Outcome:
        """The thread inside is woken by the end of its connection."""
        with self._guard:
            self._over = True
            sock = None if self._connection is None else self._connection.sock
        if sock is not None:
            try:
                sock.shutdown(2)
            except OSError:
                pass  # it is closed already
        return Outcome(AGAIN, f"no answer within {self._timeout_s:g} s")

    def _post(self, secret: bytes) -> Outcome:
        address = urlsplit(self._channel.url)
        assert address.hostname is not None
        kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        connection = kind(address.hostname, address.port, timeout=self._timeout_s)
        with self._guard:
            self._connection = connection
        connection.connect()
        if self._over:
            return Outcome(AGAIN, "there was no time left")
        if address.scheme != "https" and not _is_here(connection.sock.getpeername()[0]):
            return Outcome(FAILED, f"{address.hostname} is not on this machine: only https goes there")
        path = (address.path or "/") + (f"?{address.query}" if address.query else "")
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"holdfast/{__version__}",
            ID_HEADER: self._id,
            SIGNATURE_HEADER: signature(secret, int(self._wall()), self._body),
        }
        connection.request("POST", path, self._body, headers)
        answer = connection.getresponse()
        return judged(answer.status, answer.getheader("Retry-After"), self._wall())


def _is_here(address: str) -> bool:
    """Of the machine itself. A name that should be, `localhost` too, can be made to point elsewhere."""
    return ip_address(address.partition("%")[0]).is_loopback


def signature(secret: bytes, at: int, body: bytes) -> str:
    """The time is signed too, so that an old post cannot be sent again by who has seen it."""
    return f"t={at},v1={hmac.new(secret, b'%d.' % at + body, hashlib.sha256).hexdigest()}"


def judged(status: int, retry_after: str | None, now: float) -> Outcome:
    """What an answer means for the notice, and for the channel."""
    if 200 <= status < 300:
        return Outcome(DELIVERED)
    if status in _TRY_AGAIN or status >= 500:
        return Outcome(AGAIN, f"the answer was {status}", _asked_wait(retry_after, now))
    if status == 410:
        return Outcome(GONE, "the answer was 410: nothing more is wanted there")
    what = "a redirect, which is not followed" if 300 <= status < 400 else "which will not change"
    return Outcome(FAILED, f"the answer was {status}, {what}")


def _asked_wait(text: str | None, now: float) -> float | None:
    """`Retry-After`: seconds, or a date."""
    if text is None:
        return None
    text = text.strip()
    if text.isascii() and text.isdigit():
        return float(text[:12])
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return None


def read_secret(path: str) -> bytes:
    """ValueError says why a file cannot be trusted with one."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        file = os.fstat(fd)
        if not stat.S_ISREG(file.st_mode) or file.st_uid != os.geteuid():
            raise ValueError("it is no file of our own")
        if file.st_mode & 0o077:
            raise ValueError(f"its mode is {stat.S_IMODE(file.st_mode):04o}, and others may not read it: chmod 600")
        secret = os.read(fd, _SECRET_BYTES + 1).rstrip(b"\r\n")
    finally:
        os.close(fd)
    if not secret or len(secret) > _SECRET_BYTES:
        raise ValueError(f"it holds no secret of 1 to {_SECRET_BYTES} bytes")
    return secret
