"""The fabric: one connection to a NATS server, one subscription, always reconnected. No other module knows NATS.

The library's own reconnection gives up after 60 tries and keeps what it could not send; both are switched off. A lost
connection ends every exchange that used it, and the next connection starts without any.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import random
import re
import ssl
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import nats.errors
from nacl.signing import SigningKey
from nats.aio.client import Client

from .exchange import MESSAGE_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from nats.aio.msg import Msg


_log = logging.getLogger("holdfast.nodes")
# The library's protocol does not know that its connection was upgraded to TLS; asyncio logs that at each end.
logging.getLogger("asyncio").addFilter(lambda record: "from eof_received() has no effect" not in str(record.msg))
# It also logs an error when a reply arrives that was no longer waited for. Only programs that ask for its log get that.
logging.getLogger("nats").addHandler(logging.NullHandler())

_PING_S = 20
_CONNECT_S = 5
_LEAVING_S = 0.1
_CLOSE_S = 0.5
_RETRY_S, _RETRY_MAX_S = 1.0, 60.0
# A machine that slept may have lost its connection, and learns of it only from its next pings. Whether it slept is
# checked so often: a clock went on by that much more than the time between two checks.
_LOOK_S, _ASLEEP_S = 1.0, 10.0
# The library drops what a subscription has not taken beyond these. Credit keeps exchanges far below.
_WAITING_MESSAGES = 64 << 10
_WAITING_BYTES = 256 << 20
# The library's send buffer. When it is full, one stalled exchange would block all senders; credit keeps it smaller.
_UNSENT_BYTES = 128 << 20
_LAST_MESSAGES = 256
_NO_RESPONDERS = "503"
_STATUS = "Status"
# The oldest server whose behaviour we rely on: it reports at once that a subject has no subscriber.
_OLDEST = (2, 2)
# The exchange of a fabric that only tests the connection: no other process addresses its subscription.
TRIAL = "-"
# What a file of credentials may have: a JWT and its seed (`.creds`), a seed alone (an nkey), or USER:PASSWORD.
_CREDENTIALS_BYTES = 64 << 10
_JWT = re.compile(r"\beyJ[\w-]+\.[\w-]+\.[\w-]+")
_SEED = re.compile(r"\bSU[A-Z2-7]{56}\b")
_PASSWORD = re.compile(r"[^\s:]+:\S+")
# The first byte of the public key of a user; a seed has two bytes before the key, both a checksum behind it.
_USER_BYTE, _SEED_KEY = bytes([20 << 3]), slice(2, 34)
_CERTIFICATE = re.compile("-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_CREDENTIALS_FIX = "name a readable file that has the login of this home in the setting nodes.credentials"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Address:
    """Where a fabric is and how we log in there."""

    url: str
    fleet: str
    user: str
    password: str
    # The certificate that its own server uses, in PEM; None for one that this machine trusts anyway.
    certificate: str | None = None
    # In place of user and password: what `credentials_in` has read.
    credentials: str | None = field(default=None, repr=False)

    def login(self) -> str:
        return self.credentials or f"{self.user}:{self.password}"

    def to_json(self) -> dict[str, str]:
        """Only what is set: an earlier release knows no `credentials`."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def is_local(self) -> bool:
        return urlsplit(self.url).hostname in LOOPBACK

    def subject(self, side: str, *rest: str) -> str:
        """Of a node or view by its name, and of one exchange of it."""
        return ".".join(("hf1", self.fleet, side, *rest))


@dataclass(frozen=True)
class GivenAddress(Address):
    """That of a NATS server of others, from the settings. The file of its credentials is read at each connection."""

    path: str = ""

    def login(self) -> str:
        if not self.path:
            raise Unfit("no credentials: the setting nodes.credentials is missing", _CREDENTIALS_FIX)
        return credentials_in(self.path)


class Unfit(Exception):
    """The server, or our login there, does not meet our needs."""

    fix = "start it with `hold fabric`, or check the network; every machine connects again by itself"

    def __init__(self, why: str, fix: str = fix) -> None:
        super().__init__(why)
        self.fix = fix


class Fabric:
    """The messages for one node or view, or for one `exchange` of it.

    `heard(exchange, message, reply)` is called for each; the message is None when what was sent with that exchange as
    its reply had no subscriber. `changed()` is called after each change of `problem`.
    """

    def __init__(
        self,
        address: Address,
        side: str,
        name: str,
        heard: Callable[[str, bytes | None, str], None],
        changed: Callable[[], None] = lambda: None,
        *,
        exchange: str = ">",
    ) -> None:
        self.address = address
        self._ours = address.subject(side, name, exchange)
        # A message without a subscriber shows whether we may publish; a login that has not joined yet may not.
        is_joined = exchange in (">", TRIAL)
        self._probe = address.subject("v" if side == "n" else "n", "-", "probe") if is_joined else None
        self._heard = heard
        self._changed = changed
        self._client: Client | None = None
        self._refusals: list[Unfit] = []
        self._last: list[tuple[str, bytes]] = []
        self.ready, self._tried = asyncio.Event(), asyncio.Event()
        # Why there is no connection; None while there is one.
        self.problem: Unfit | None = Unfit("not connected yet")
        self._was_lost = False
        self._closed, self._woke = asyncio.Event(), asyncio.Event()
        self._clocks = _clocks()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Fabric:
        self._look()
        self._task = asyncio.create_task(self._keep())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        assert self._timer is not None
        self._timer.cancel()
        # While the library connects, a cancellation may be lost in it.
        while not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=_LEAVING_S)

    async def fault(self, within_s: float) -> Unfit | None:
        """Why the first attempt to connect did not succeed; None if it did."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._tried.wait(), within_s)
        return self.problem

    async def publish(self, subject: str, message: bytes, reply: str = "", *, is_last: bool = False) -> bool:
        """False if it was certainly not sent: there is no connection. The last message of an exchange is kept for the
        next connection, so that the other side learns of the end."""
        client = self._client
        if client is None or not client.is_connected:
            if is_last and len(self._last) < _LAST_MESSAGES:
                self._last.append((subject, message))
            return False
        try:
            await client.publish(subject, message, reply)
        except (nats.errors.Error, OSError):
            return False
        return True

    async def flush(self) -> None:
        """Wait until the server has what was published."""
        if self._client is not None:
            with suppress(nats.errors.Error, OSError):
                await self._client.flush()

    async def _keep(self) -> None:
        retry_s = _RETRY_S
        while True:
            try:
                await self._connection()
                retry_s = _RETRY_S
            except nats.errors.NoServersError as problem:
                self._set(self._refusals[-1] if self._refusals else _unfit(problem))
            except (nats.errors.Error, OSError, Unfit, ValueError) as problem:
                self._set(_unfit(problem))
            # A thousand nodes whose server was away must not reconnect at the same moment.
            with suppress(TimeoutError):
                await asyncio.wait_for(self._woke.wait(), random.uniform(0.1, 1.0) * retry_s)
            retry_s = _RETRY_S if self._woke.is_set() else min(2 * retry_s, _RETRY_MAX_S)
            self._woke.clear()

    def _look(self) -> None:
        before, self._clocks = self._clocks, _clocks()
        if any(now - then > _ASLEEP_S for then, now in zip(before, self._clocks, strict=True)):
            self._woke.set()
            self._closed.set()
        self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self._look)

    async def _connection(self) -> None:
        """One connection, until it is lost."""
        client, closed = Client(), asyncio.Event()
        self._closed = closed
        self._refusals = []

        async def on_closed() -> None:
            closed.set()

        address = self.address
        # Before the library is asked to connect: it does not close a client that was not.
        login, tls = _login(client, address.login()), _tls(address)
        try:
            await client.connect(
                address.url,
                **login,
                tls=tls,
                name="holdfast",
                allow_reconnect=False,
                # Without this, a server that refuses the connection is tried 60 times, 2 s apart, by default.
                max_reconnect_attempts=1,
                reconnect_time_wait=0,
                connect_timeout=_CONNECT_S,
                ping_interval=_PING_S,
                max_outstanding_pings=2,
                pending_size=_UNSENT_BYTES,
                closed_cb=on_closed,
                disconnected_cb=on_closed,
                error_cb=self._complain,
            )
            _check(client)
            await client.subscribe(
                self._ours, cb=self._take, pending_msgs_limit=_WAITING_MESSAGES, pending_bytes_limit=_WAITING_BYTES
            )
            if self._probe is not None:
                await client.publish(self._probe)
            # One flush may arrive before the subscription; two in a row do not.
            await client.flush()
            await client.flush()
            if self._refusals:
                raise self._refusals[0]
            for subject, message in self._last:
                await client.publish(subject, message)
            self._last.clear()
            self._client = client
            self._set(None)
            await closed.wait()
        finally:
            self._client = None
            self.ready.clear()
            # After a failed handshake of TLS the library waits 30 s for the other side to close it.
            with suppress(nats.errors.Error, OSError, asyncio.CancelledError, TimeoutError):
                await asyncio.wait_for(client.close(), _CLOSE_S)
        lost = "this machine was asleep" if self._woke.is_set() else "the connection broke off"
        self._set(self._refusals[0] if self._refusals else Unfit(lost))

    def _set(self, problem: Unfit | None) -> None:
        if problem is None:
            self.ready.set()
        self._tried.set()
        if str(problem) != str(self.problem):
            self.problem = problem
            # The end of a problem is reported where the problem was reported.
            level = logging.INFO if problem is None and not self._was_lost else logging.WARNING
            self._was_lost = problem is not None
            _log.log(level, "fabric %s: %s", self.address.url, problem or "connected")
            self._changed()

    async def _take(self, message: Msg) -> None:
        exchange = message.subject.rpartition(".")[2]
        if message.headers:
            if message.headers.get(_STATUS) == _NO_RESPONDERS:
                self._heard(exchange, None, "")
            return
        self._heard(exchange, message.data, message.reply)

    async def _complain(self, problem: Exception) -> None:
        self._refusals.append(_unfit(problem))


def _clocks() -> tuple[float, float]:
    """Those that go on while a machine sleeps; that of the wall also while a virtual machine is stopped."""
    return time.clock_gettime(time.CLOCK_BOOTTIME), time.time()


def credentials_in(path: str) -> str:
    """The credentials of a file on one line, without the rest of its text."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read(_CREDENTIALS_BYTES)
    except OSError as problem:
        raise Unfit(f"no credentials: {path}: {problem.strerror}", _CREDENTIALS_FIX) from None
    jwt, seed = _JWT.search(text), _SEED.search(text)
    if seed is not None:
        _signing_key(seed[0])
        return f"{jwt[0]} {seed[0]}" if jwt else seed[0]
    if not _PASSWORD.fullmatch(text.strip()):
        why = f"no credentials: {path} has neither `.creds`, nor an nkey seed, nor USER:PASSWORD"
        raise Unfit(why, _CREDENTIALS_FIX)
    return text.strip()


def _login(client: Client, credentials: str) -> dict[str, Any]:
    """The arguments of `connect`. To sign with a seed itself, the library would need one more package."""
    *jwt, last = credentials.split()
    user, colon, password = last.partition(":")
    if colon:
        return {"user": user, "password": password}
    key = _signing_key(last)
    client._public_nkey = base64.b32encode(_checked(_USER_BYTE + bytes(key.verify_key))).decode()
    signing = {"signature_cb": lambda nonce: base64.b64encode(key.sign(nonce.encode()).signature)}
    return {**signing, "user_jwt_cb": jwt[0].encode} if jwt else signing


def _signing_key(seed: str) -> SigningKey:
    raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    if raw != _checked(raw[: _SEED_KEY.stop]):
        raise Unfit("no credentials: the seed is damaged", _CREDENTIALS_FIX)
    return SigningKey(raw[_SEED_KEY])


def _checked(raw: bytes) -> bytes:
    return raw + binascii.crc_hqx(raw, 0).to_bytes(2, "little")


def _tls(address: Address) -> ssl.SSLContext | None:
    if not address.url.startswith("tls:"):
        if not address.is_local:
            why = f"{address.url} is another machine, and the address has no TLS: use tls://"
            raise Unfit(why, "start it with --tls-cert and --tls-key, and invite again")
        return None
    if address.certificate is None:
        return ssl.create_default_context()
    # It is exactly the certificate that the invitation names, whoever signed it and whatever host it was made for.
    context = ssl.create_default_context(cadata=first_certificate(address.certificate))
    context.verify_flags = ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VERIFY_X509_TRUSTED_FIRST
    context.check_hostname = False
    return context


def first_certificate(text: str) -> str:
    """That of the server itself: a file may also have those of its authorities, and its key."""
    found = _CERTIFICATE.search(text)
    if found is None:
        raise Unfit("its certificate is not in PEM")
    return found[0] + "\n"


def _check(client: Client) -> None:
    info: dict[str, Any] = client._server_info  # the library has no other way to ask
    if info.get("max_payload", 0) < MESSAGE_BYTES:
        why = f"its max_payload is {info.get('max_payload')} bytes: set it to {MESSAGE_BYTES} or more"
        raise Unfit(why, f"set max_payload to {MESSAGE_BYTES} or more in the configuration of that server")
    version = str(info.get("version", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < _OLDEST or not info.get("headers"):
        why = f"nats-server {version} is too old: it needs 2.2 or later, with headers"
        raise Unfit(why, "install a newer nats-server, or use `hold fabric`")


def _unfit(problem: Exception) -> Unfit:
    if isinstance(problem, Unfit):
        return problem
    text = str(problem).removeprefix("nats: ").strip().strip("'")
    lowered = text.lower()
    if "permissions violation" in lowered:
        fix = "give this login the permissions that docs/guides/many-machines.md names"
        return Unfit(f"a permission is missing: {text}", fix)
    if "authorization" in lowered:
        fix = "invite and join again, or check nodes.credentials"
        return Unfit("it refuses our login: the invitation was taken back, or the credentials are wrong", fix)
    if isinstance(problem, ssl.SSLError):
        why = f"its certificate is not the expected one: {getattr(problem, 'verify_message', '') or text}"
        return Unfit(why, "use the certificate that it was set up with, or invite the machines again with the new one")
    if isinstance(problem, (TimeoutError, nats.errors.TimeoutError)):
        return Unfit("no answer")
    if isinstance(problem, ConnectionRefusedError):
        return Unfit("nothing listens at its address")
    return Unfit(text or type(problem).__name__)
