"""Where the server listens: what is allowed, what stands in the way, and the socket."""

from __future__ import annotations

import errno
import ipaddress
import os
import socket
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import BadArgument, UnsafeDirectory
from ..runner import whereabouts
from ..serving.listener import BACKLOG, bound, check_port, url
from .addresses import is_every_address, origin

if TYPE_CHECKING:
    from collections.abc import Iterator

PORT = 4653
# Whoever has the port answers at once or is no server that we could name.
_LOOK_S = 1.0
_LOOK_BYTES = 4096


@dataclass(frozen=True)
class Entrance:
    bind: str = "127.0.0.1"
    port: int = PORT
    unix: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    host_names: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    public_url: str | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.tls_cert else "http"

    def url(self, port: int | None) -> str:
        """How clients reach it."""
        if self.public_url is not None:
            return origin("public-url", self.public_url)
        if port is None:
            return f"unix:{self.unix}"
        if is_every_address(self.bind):
            return url(self.scheme, self.host_names[0] if self.host_names else "localhost", port)
        return url(self.scheme, self.bind, port)


def check(entrance: Entrance) -> None:
    """Refuse before anything listens."""
    check_port(entrance.port)
    if (entrance.tls_cert is None) != (entrance.tls_key is None):
        raise BadArgument(
            "tls", "a certificate needs its key, and a key its certificate", "give --tls-cert and --tls-key"
        )
    if entrance.tls_cert is not None:
        _check_certificate(entrance.tls_cert, entrance.tls_key or "")
    if entrance.unix is None and not _is_loopback(entrance.bind) and entrance.tls_cert is None:
        raise BadArgument(
            "bind",
            f"{entrance.bind} can be reached by other machines, and without TLS they could read the token on its way",
            "give --tls-cert and --tls-key; or stay on 127.0.0.1 or --unix PATH, which `ssh -L` reaches from elsewhere",
        )


@contextmanager
def opened(entrance: Entrance) -> Iterator[socket.socket]:
    """The listening socket, closed afterwards; a file that it made is removed."""
    if entrance.unix is not None:
        with _unix(os.path.abspath(entrance.unix)) as listener:
            yield listener
        return
    try:
        listener = bound("127.0.0.1" if entrance.bind == "localhost" else entrance.bind, entrance.port)
    except OSError as problem:
        here = f"{entrance.bind}:{entrance.port}"
        if problem.errno != errno.EADDRINUSE:
            raise BadArgument("bind", f"{here} cannot be had ({problem.strerror})", "give another --bind") from None
        said = what_answers(entrance.bind, entrance.port)
        raise BadArgument("port", f"{here} is taken: {said}", "give another --port, or 0 for a free one") from None
    with listener:
        yield listener


def what_answers(host: str, port: int) -> str:
    """Who has the port, as far as a request without any secret tells."""
    if is_every_address(host):
        host = "::1" if ":" in host else "127.0.0.1"
    try:
        with socket.create_connection((host, port), _LOOK_S) as there:
            there.settimeout(_LOOK_S)
            there.sendall(f"GET /v1/info HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
            said = b""
            while len(said) < _LOOK_BYTES and (more := there.recv(_LOOK_BYTES)):
                said += more
    except OSError:
        said = b""
    lowered = said.lower()
    if b'realm="holdfast"' in lowered or b"/problems/" in lowered:
        return "another `hold serve` answers there"
    if not said.startswith(b"HTTP/"):
        return "something that speaks no HTTP listens there"
    server = next((line for line in said.split(b"\r\n") if line.lower().startswith(b"server:")), b"")
    named = ascii(os.fsdecode(server.partition(b":")[2].strip()))[1:61]
    return "a web server answers there" + (f" ({named.rstrip(chr(39))})" if server else "")


def _is_loopback(bind: str) -> bool:
    if bind == "localhost":
        return True
    try:
        return ipaddress.ip_address(bind).is_loopback
    except ValueError:
        raise BadArgument("bind", f"{bind[:80]!a} is no address", "give one such as 127.0.0.1 or ::1") from None


def _check_certificate(certificate: str, key: str) -> None:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as problem:
        why = problem.strerror or str(problem)
        raise BadArgument("tls", f"{certificate} and {key} cannot be used ({why})", "give PEM files that fit") from None


@contextmanager
def _unix(path: str) -> Iterator[socket.socket]:
    directory = os.path.dirname(path)
    try:
        whereabouts.private(directory, whereabouts.OPEN)
    except whereabouts.Unfit as problem:
        raise UnsafeDirectory(problem.path, problem.why, problem.fix) from None
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        # The directory keeps others out already; the mode is for those who look at the file alone.
        before = os.umask(0o177)
        try:
            listener.bind(path)
        except OSError as problem:
            raise BadArgument("unix", f"{path} cannot be had ({problem.strerror or problem})", "give another") from None
        finally:
            os.umask(before)
        listener.listen(BACKLOG)
        made = os.lstat(path).st_ino
        try:
            yield listener
        finally:
            try:
                if os.lstat(path).st_ino == made:
                    os.unlink(path)
            except FileNotFoundError:
                pass


def _clear(path: str) -> None:
    """Take away the socket of a server that is gone."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise BadArgument("unix", f"{path} is there and is no socket", "give another path, or remove it")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as there:
        there.settimeout(_LOOK_S)
        try:
            there.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
        except OSError as problem:
            raise BadArgument("unix", f"{path} is taken ({problem.strerror or problem})", "give another path") from None
        else:
            raise BadArgument("unix", f"{path} is taken: a server answers there", "give another path")
