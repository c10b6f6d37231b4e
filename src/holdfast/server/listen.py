"""Where the server listens, the names that it answers to, and the pages that may talk to it."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..core import directories
from ..errors import BadArgument, UnsafeDirectory
from ..serving.listener import BACKLOG, bound, check_port, is_loopback, url

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# The names that the server answers to, and the pages that may talk to it.


_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_NAME = re.compile(r"(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")


@dataclass(frozen=True)
class Names:
    """Exact values of Host, and exact values of Origin: those of our own pages, and those of other pages."""

    hosts: frozenset[str]
    own_origins: frozenset[str]
    other_origins: frozenset[str]


def names(address: ListenAddress, port: int | None) -> Names:
    """`port` is None on a unix socket: its proxy has a port that we do not know."""
    scheme, bind = address.scheme, address.bind
    here = ["127.0.0.1", "localhost", "[::1]"]
    if address.unix is None and not is_every_address(bind):
        here.append(f"[{bind}]" if ":" in bind else bind)
    hosts: set[str] = set()
    for name in [*here, *map(_host_name, address.host_names)]:
        if port is None or re.search(r":[0-9]+$", name):
            hosts.add(name)
            continue
        hosts.add(f"{name}:{port}")
        if port == _DEFAULT_PORTS[scheme]:
            # Browsers leave out the default port.
            hosts.add(name)
    origins = {f"{scheme}://{host}" for host in hosts}
    if address.public_url is not None:
        own = origin("public-url", address.public_url)
        origins.add(own)
        hosts.add(own.partition("://")[2])
    others = {origin("allow-origin", each) for each in address.allow_origins}
    return Names(frozenset(hosts), frozenset(origins), frozenset(others) - origins)


def origin(option: str, url: str) -> str:
    """The origin of a URL as browsers send it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.path not in ("", "/") or "@" in parts.netloc:
        raise BadArgument(option, f"{url[:80]!a} is not an origin", "give one such as https://hold.example:8443")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{host}{shown}"


if TYPE_CHECKING:
    Proxies = tuple[ipaddress.IPv4Network | ipaddress.IPv6Network | str, ...]


def proxies(given: Iterable[str]) -> Proxies:
    """Addresses of proxies whose headers about their clients are trusted; `unix` for those on a unix socket."""
    try:
        return tuple(each if each == "unix" else ipaddress.ip_network(each) for each in given)
    except ValueError as problem:
        raise BadArgument("trusted-proxy", str(problem), "give one such as 127.0.0.1/32, or unix") from None


def is_trusted(peer: str, trusted: Proxies) -> bool:
    if peer == "unix":
        return "unix" in trusted
    try:
        address = ipaddress.ip_address(peer)
    except ValueError:
        return False
    return any(not isinstance(each, str) and address in each for each in trusted)


def is_every_address(bind: str) -> bool:
    try:
        return ipaddress.ip_address(bind).is_unspecified
    except ValueError:
        return False


def _host_name(name: str) -> str:
    if not _HOST_NAME.fullmatch(name.lower()):
        raise BadArgument(
            "host-name", f"{name[:80]!a} is not a host name", "give one such as hold.example or hold.example:8443"
        )
    return name.lower()


# Where the server listens: what is allowed, what prevents it, and the socket.


PORT = 4653
# A server on the port answers at once.
_LOOK_S = 1.0
_LOOK_BYTES = 4096
_ANOTHER = "another `hold serve` answers there"


@dataclass(frozen=True)
class ListenAddress:
    bind: str = "127.0.0.1"
    port: int = PORT
    unix: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    host_names: tuple[str, ...] = ()
    allow_origins: tuple[str, ...] = ()
    public_url: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    # Only what comes through the fabric.
    is_closed: bool = False

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


def check(address: ListenAddress) -> None:
    """Check the address before anything listens."""
    check_port(address.port)
    if (address.tls_cert is None) != (address.tls_key is None):
        raise BadArgument(
            "tls-key" if address.tls_cert is None else "tls-cert",
            "a certificate needs its key, and a key its certificate",
            "give --tls-cert and --tls-key",
        )
    if address.tls_cert is not None:
        _check_certificate(address.tls_cert, address.tls_key or "")
    if address.unix is None and not is_loopback(address.bind) and address.tls_cert is None:
        raise BadArgument(
            "bind",
            f"{address.bind} can be reached by other machines, and without TLS they could read the token on its way",
            "give --tls-cert and --tls-key; or stay on 127.0.0.1 or --unix PATH, which `ssh -L` reaches from elsewhere",
        )


@contextmanager
def opened(address: ListenAddress) -> Iterator[socket.socket]:
    """The listening socket, which is closed afterwards; if it has a file, that is removed."""
    if address.unix is not None:
        with _unix(os.path.abspath(address.unix)) as listener:
            yield listener
        return
    try:
        listener = bound("127.0.0.1" if address.bind == "localhost" else address.bind, address.port)
    except OSError as problem:
        here = f"{address.bind}:{address.port}"
        if problem.errno != errno.EADDRINUSE:
            raise BadArgument("bind", f"cannot listen on {here} ({problem.strerror})", "give another --bind") from None
        said = what_answers(address.bind, address.port)
        fix = "give another --port, or 0 for a free one"
        if said == _ANOTHER:
            fix = f"`hold open` prints an address of it, if it serves this home; or {fix}"
        raise BadArgument("port", f"{here} is taken: {said}", fix) from None
    # Connections inherit it. asyncio sets it only on sockets whose protocol number is that of TCP, which is 0 here: the
    # echo of a key would wait behind `written` for a delayed acknowledgement, 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    with listener:
        yield listener


def what_answers(host: str, port: int) -> str:
    """What listens on the port, as far as a request without a secret shows."""
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
        return _ANOTHER
    if not said.startswith(b"HTTP/"):
        return "something that does not speak HTTP listens there"
    server = next((line for line in said.split(b"\r\n") if line.lower().startswith(b"server:")), b"")
    named = ascii(os.fsdecode(server.partition(b":")[2].strip()))[1:61]
    return "a web server answers there" + (f" ({named.rstrip(chr(39))})" if server else "")


def _check_certificate(certificate: str, key: str) -> None:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as problem:
        why = problem.strerror or str(problem)
        raise BadArgument(
            "tls-cert", f"{certificate} and {key} cannot be used ({why})", "give PEM files of a certificate and its key"
        ) from None


@contextmanager
def _unix(path: str) -> Iterator[socket.socket]:
    directory = os.path.dirname(path)
    try:
        directories.private(directory, directories.OPEN)
    except directories.Unfit as problem:
        raise UnsafeDirectory(problem.path, problem.why, problem.fix) from None
    _clear(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with listener:
        # The directory keeps others out already; the mode is for tools that only check the file.
        before = os.umask(0o177)
        try:
            listener.bind(path)
        except OSError as problem:
            raise BadArgument(
                "unix", f"cannot listen on {path} ({problem.strerror or problem})", "give another"
            ) from None
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
    """Remove the socket of a server that is gone."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise BadArgument("unix", f"{path} exists and is not a socket", "give another path, or remove it")
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
