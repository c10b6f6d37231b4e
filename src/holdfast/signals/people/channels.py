"""Channels to people: a command, a webhook, the bell."""

from __future__ import annotations

import hashlib
import hmac
import os
import signal
import stat
import subprocess
import threading
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ipaddress import ip_address
from urllib.parse import urlsplit

from ... import __version__
from ...config.channels import PLACEHOLDER
from ...core import jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Protocol

    from ...config.channels import WebhookChannel
    from .notices import Notice


# Channels to a person. Each takes one notice and returns its outcome; it may block, and `abort` ends it.


if TYPE_CHECKING:

    class Delivery(Protocol):
        """One notice on its way."""

        def run(self) -> Outcome:
            """Deliver it, in a thread of its own."""
            ...

        def abort(self) -> Outcome:
            """Its time limit has passed, whether or not it has begun; called from another thread."""
            ...

    class Channel(Protocol):
        def deliver(self, notice: Notice) -> Delivery: ...


DELIVERED = "delivered"
AGAIN = "again"
FAILED = "failed"
# The channel itself has ended: the other side wants nothing more.
GONE = "gone"


class Outcome:
    """`why` is for people; `after_s` is how long the other side wants to be left alone."""

    __slots__ = ("after_s", "kind", "why")

    def __init__(self, kind: str, why: str = "", after_s: float | None = None) -> None:
        self.kind = kind
        self.why = why
        self.after_s = after_s

    def __repr__(self) -> str:
        return f"<{self.kind}{': ' + self.why if self.why else ''}>"


# A program of the user's choice is called for each notice: no shell, every argument stays one.


VARIABLES = "HOLDFAST_EVENT_"
# At the beginning of an argument: an option, and in some programs a file whose content is meant.
_MEANINGFUL = ("-", "+", "@")


class Command:
    def __init__(self, argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
        self._argv = argv
        self._environ = environ

    def deliver(self, notice: Notice) -> Call:
        fields = notice.fields
        more = {"id": notice.first.id, "variant": notice.first.variant}
        variables = {VARIABLES + name.upper(): text for name, text in {**fields, **more}.items()}
        return Call(arguments(self._argv, fields), {**self._environ, **variables})


def arguments(argv: Sequence[str], fields: Mapping[str, str]) -> list[str]:
    """The value of a placeholder is not searched again: no text of a session becomes a placeholder. Nor does it become
    an option or the name of a file to be read: at the beginning of an argument it gets a space before it."""
    return [_argument(word, fields) for word in argv]


def _argument(word: str, fields: Mapping[str, str]) -> str:
    filled = PLACEHOLDER.sub(lambda found: fields.get(found.group(1), found.group()), word)
    chosen_by_session = filled[:1] != word[:1] or PLACEHOLDER.match(word) is not None
    return f" {filled}" if chosen_by_session and filled.startswith(_MEANINGFUL) else filled


class Call:
    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._argv = argv
        self._environment = environment
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False

    def run(self) -> Outcome:
        try:
            with self._guard:
                if self._over:
                    return Outcome(FAILED, "there was no time left for it")
                # In a group of its own, so that its end is the end of all that it started.
                self._process = process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=self._environment,
                    cwd="/",
                    process_group=0,
                )
        except OSError as problem:
            return Outcome(FAILED, f"{self._argv[0]} could not be started: {problem.strerror}")
        # Without reaping it: as long as it is a zombie, its number and its group's are its own.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._guard:
            self._over = True
            code = process.wait()
        if code == 0:
            return Outcome(DELIVERED)
        how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
        return Outcome(FAILED, f"{self._argv[0]} {how}")

    def abort(self) -> Outcome:
        with self._guard:
            if self._process is not None and not self._over:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._over = True
        return Outcome(FAILED, f"{self._argv[0]} took too long and was killed")


# A signed POST of the record. Redirects are not followed: the signature is for one address.


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
            # The user can fix it, and the notice need not be lost until then.
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
            return Outcome(FAILED, f"{address.hostname} is not on this machine: use https")
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
    """The time is signed too, so that an old post cannot be sent again by anyone who has seen it."""
    return f"t={at},v1={hmac.new(secret, b'%d.' % at + body, hashlib.sha256).hexdigest()}"


def judged(status: int, retry_after: str | None, now: float) -> Outcome:
    """The outcome for the notice and the channel, from the answer to a post."""
    if 200 <= status < 300:
        return Outcome(DELIVERED)
    if status in _TRY_AGAIN or status >= 500:
        return Outcome(AGAIN, f"the answer was {status}", _asked_wait(retry_after, now))
    if status == 410:
        return Outcome(GONE, "the answer was 410 (Gone): the receiver wants no more notices")
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
            raise ValueError("it is not a regular file of this user")
        if file.st_mode & 0o077:
            raise ValueError(f"its mode is {stat.S_IMODE(file.st_mode):04o}, others could read it: chmod 600")
        secret = os.read(fd, _SECRET_BYTES + 1).rstrip(b"\r\n")
    finally:
        os.close(fd)
    if not secret or len(secret) > _SECRET_BYTES:
        raise ValueError(f"it does not hold a secret of 1 to {_SECRET_BYTES} bytes")
    return secret


# A ring at the terminals of the people who are attached somewhere in this home.


if TYPE_CHECKING:
    # Rings wherever a person is attached; at how many sessions.
    Ring = Callable[[str], int]


class Bell:
    def __init__(self, ring: Ring) -> None:
        self._ring = ring

    def deliver(self, notice: Notice) -> BellRing:
        return BellRing(self._ring, notice.title)


class BellRing:
    def __init__(self, ring: Ring, text: str) -> None:
        self._ring = ring
        self._text = text

    def run(self) -> Outcome:
        """It counts as delivered also if no person is attached."""
        self._ring(self._text)
        return Outcome(DELIVERED)

    def abort(self) -> Outcome:
        """A runner that did not ring by now does not answer at all."""
        return Outcome(DELIVERED)
