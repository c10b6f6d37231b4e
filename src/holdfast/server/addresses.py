"""The names that the server answers to, and the pages that may talk to it."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ..errors import BadArgument

if TYPE_CHECKING:
    from collections.abc import Iterable

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST_NAME = re.compile(r"(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")


@dataclass(frozen=True)
class Names:
    """Exact values of Host, and exact values of Origin: those of our own pages, and those of others."""

    hosts: frozenset[str]
    own_origins: frozenset[str]
    other_origins: frozenset[str]


def names(
    scheme: str,
    port: int | None,
    *,
    bind: str | None = None,
    host_names: Iterable[str] = (),
    allow_origins: Iterable[str] = (),
    public_url: str | None = None,
) -> Names:
    """`port` is None on a unix socket: whoever forwards to it has a port that we do not know."""
    here = ["127.0.0.1", "localhost", "[::1]"]
    if bind and not is_every_address(bind):
        here.append(f"[{bind}]" if ":" in bind else bind)
    hosts: set[str] = set()
    for name in [*here, *map(_host_name, host_names)]:
        if port is None or re.search(r":[0-9]+$", name):
            hosts.add(name)
            continue
        hosts.add(f"{name}:{port}")
        if port == _DEFAULT_PORTS[scheme]:
            # Browsers leave it out.
            hosts.add(name)
    origins = {f"{scheme}://{host}" for host in hosts}
    if public_url is not None:
        own = origin("public-url", public_url)
        origins.add(own)
        hosts.add(own.partition("://")[2])
    others = {origin("allow-origin", each) for each in allow_origins}
    return Names(frozenset(hosts), frozenset(origins), frozenset(others) - origins)


def origin(option: str, url: str) -> str:
    """The origin of a URL as browsers send it."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), None
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or parts.path not in ("", "/") or "@" in parts.netloc:
        raise BadArgument(option, f"{url[:80]!a} is no origin", "give one such as https://hold.example:8443")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown = "" if port in (None, _DEFAULT_PORTS[parts.scheme]) else f":{port}"
    return f"{parts.scheme}://{host}{shown}"


def is_every_address(bind: str) -> bool:
    try:
        return ipaddress.ip_address(bind).is_unspecified
    except ValueError:
        return False


def _host_name(name: str) -> str:
    if not _HOST_NAME.fullmatch(name.lower()):
        raise BadArgument("host-name", f"{name[:80]!a} is none", "give one such as hold.example or hold.example:8443")
    return name.lower()
