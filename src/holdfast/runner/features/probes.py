"""Probes: a port that the tree listens on, an HTTP answer, a command that succeeds.

A probe is tried once per call of `run`, and calls back when it has a result, within a time limit and without blocking
the loop.
"""

from __future__ import annotations

import _socket as socket
import errno
import os
import sys
import time

from ...core import processes
from ...core.kernel_signals import NAMES, signal
from ...core.loop import READ, WRITE, Alarm
from ...core.vt.text import tail
from .. import spawn
from .patterns import BadPattern, Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping
    from typing import Any, Callable

    from ...core.loop import Loop
    from . import SessionWithProcesses

    Done = Callable[[bool, str], None]


# One question to a port, without blocking the loop: does it accept a connection, or what does it answer to a GET?
# Always finished within a time limit.

# A server that has just started may take long to answer its first request; longer than this counts as no answer.
ANSWER_S = 10.0
_HEAD_MAX_BYTES = 16 << 10


class TcpProbe:
    """Calls `done(ok, detail)` once, unless it was cancelled before. `request` None: an accepted connection is enough.
    `statuses` None: any of 200 to 299."""

    def __init__(
        self,
        loop: Loop,
        address: tuple[str, int],
        done: Done,
        *,
        request: bytes | None = None,
        statuses: list[int] | None = None,
        within_s: float = ANSWER_S,
    ) -> None:
        self._loop = loop
        self._done: Done | None = done
        self.over = False
        self._statuses = statuses
        self._request = request
        self._unsent = request or b""
        self._received = b""
        self._socket: socket.socket | None = None
        self.where = f"[{address[0]}]:{address[1]}" if ":" in address[0] else f"{address[0]}:{address[1]}"
        late = f"{self.where}: no answer in {within_s:g} s"
        self._alarm = Alarm(loop, lambda: self._finish(False, late))
        try:
            family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
            self._socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
            number = self._socket.connect_ex(address)
        except OSError as problem:
            self._finish(False, f"{self.where}: {problem.strerror}")
            return
        if number not in (0, errno.EINPROGRESS):
            self._finish(False, f"{self.where}: {os.strerror(number)}")
            return
        self._alarm.set(within_s)
        loop.watch(self._socket.fileno(), WRITE, self._connected)

    def cancel(self) -> None:
        self._done = None
        self._close()

    def _connected(self, _events: int) -> None:
        assert self._socket is not None
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self._finish(False, f"{self.where}: {os.strerror(number)}")
        elif self._request is None:
            self._finish(True, f"{self.where} takes connections")
        else:
            self._loop.watch(self._socket.fileno(), WRITE, self._send)

    def _send(self, _events: int) -> None:
        assert self._socket is not None
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            return
        except OSError as problem:
            self._finish(False, f"{self.where}: {problem.strerror}")
            return
        if not self._unsent:
            self._loop.watch(self._socket.fileno(), READ, self._receive)

    def _receive(self, _events: int) -> None:
        assert self._socket is not None
        try:
            piece = self._socket.recv(_HEAD_MAX_BYTES)
        except BlockingIOError:
            return
        except OSError as problem:
            self._finish(False, f"{self.where}: {problem.strerror}")
            return
        self._received += piece
        status = status_of(self._received)
        if status == 0 or (status is None and (not piece or len(self._received) > _HEAD_MAX_BYTES)):
            self._finish(False, f"{self.where} does not speak HTTP")
        elif status is not None:
            good = 200 <= status < 300 if self._statuses is None else status in self._statuses
            self._finish(good, f"{self.where} answers {status}")

    def _finish(self, ok: bool, detail: str) -> None:
        done, self._done = self._done, None
        self._close()
        if done is not None:
            done(ok, detail)

    def _close(self) -> None:
        self.over = True
        self._alarm.cancel()
        if self._socket is not None:
            self._loop.watch(self._socket.fileno(), 0, self._connected)
            self._socket.close()
            self._socket = None


def get(host: str, target: str) -> bytes:
    """`host` as the URL has it, with its port."""
    head = f"GET {target} HTTP/1.1\r\nHost: {host}\r\nUser-Agent: holdfast\r\nAccept: */*\r\nConnection: close\r\n\r\n"
    return head.encode("ascii")


def status_of(received: bytes) -> int | None:
    """The status in the answer that begins with these bytes. None: not known yet; 0: this is not HTTP. Interim answers
    (1xx) are skipped."""
    while True:
        line, end, rest = received.partition(b"\r\n")
        if not end:
            return None if b"HTTP/1.".startswith(line[:7]) or line.startswith(b"HTTP/1.") else 0
        word, _, rest_of_line = line.partition(b" ")
        number = rest_of_line[:3]
        if not word.startswith(b"HTTP/1.") or len(number) != 3 or not number.isdigit():
            return 0
        if number[:1] != b"1":
            return int(number)
        _, end, received = rest.partition(b"\r\n\r\n") if not rest.startswith(b"\r\n") else (b"", b"\r\n", rest[2:])
        if not end:
            return None


# The listeners of a port on this machine, from `/proc`: the sockets by address, and the processes that hold them.
#
# This only reads `/proc` and does not connect: a server that serves one client and exits is not affected.


_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTENS = b"0A"
_READ_BYTES = 1 << 16
# The kernel lists the sockets that listen first. This much of a table is read.
_TABLE_MAX_BYTES = 4 << 20
# One step of the search for a foreign holder takes at most this long.
_SEARCH_S = 0.005

_ANY_4, _ANY_6 = bytes(4), bytes(16)
_MAPPED = bytes(10) + b"\xff\xff"


class NoTable(Exception):
    """This system does not list the sockets that listen."""


def find_listeners(port: int, addresses: Collection[bytes]) -> dict[int, int]:
    """The sockets that take connections to this port at one of these addresses (packed, 4 or 16 bytes): the user by
    inode."""
    found: dict[int, int] = {}
    there = False
    for table in _TABLES:
        try:
            rows = list(_rows(table))
        except FileNotFoundError:
            continue  # a kernel without that version of the protocol
        there = True
        mine = [row for row in rows if row[1] == port and any(_takes(row[0], wanted) for wanted in addresses)]
        found.update((inode, uid) for _, _, uid, inode in mine)
    if not there:
        raise NoTable
    return found


def _rows(table: str) -> Iterator[tuple[bytes, int, int, int]]:
    fd = os.open(table, os.O_RDONLY | os.O_CLOEXEC)
    try:
        rest, size = os.read(fd, _READ_BYTES), 0
        first = True
        while rest and size < _TABLE_MAX_BYTES:
            rows = rest.split(b"\n")
            rest = rows.pop()
            for row in rows:
                if first:
                    first = False  # the line with the column names
                    continue
                fields = row.split()
                if fields[3] != _LISTENS:
                    return
                address, _, number = fields[1].partition(b":")
                yield _packed(address), int(number, 16), int(fields[7]), int(fields[9])
            more = os.read(fd, _READ_BYTES)
            if not more:
                return
            size += len(more)
            rest += more
    finally:
        os.close(fd)


def _packed(address: bytes) -> bytes:
    """The kernel writes words of four bytes, each as a number of this machine."""
    words = [int(address[at : at + 8], 16) for at in range(0, len(address), 8)]
    return b"".join(word.to_bytes(4, sys.byteorder) for word in words)


def _takes(listening: bytes, wanted: bytes) -> bool:
    if listening == wanted or listening == _MAPPED + wanted:
        return True
    # A socket that listens on every address of IPv6 takes IPv4 too, unless it was set not to.
    return listening == _ANY_6 or (listening == _ANY_4 and len(wanted) == 4)


def listener_holder(inodes: Collection[int], processes: Iterable[processes.Process]) -> int | None:
    """Which of these has one of the sockets."""
    wanted = {f"socket:[{inode}]" for inode in inodes}
    return next((process.pid for process in processes if _holds(process.pid, wanted)), None)


def _holds(pid: int, wanted: set[str]) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        numbers = os.listdir(folder)
    except OSError:
        return False  # gone, or we may not inspect it
    for number in numbers:
        try:
            if os.readlink(f"{folder}/{number}") in wanted:
                return True
        except OSError:
            continue
    return False


class ListenerSearch:
    """Searches all processes of the machine for one that holds these sockets, some at a time."""

    def __init__(self, inodes: Collection[int]) -> None:
        self.inodes = set(inodes)
        self.pid: int | None = None
        self._wanted = {f"socket:[{inode}]" for inode in inodes}
        self._left = [int(name) for name in os.listdir("/proc") if name.isdigit()]

    @property
    def over(self) -> bool:
        return self.pid is not None or not self._left

    def step(self) -> int | None:
        """The pid, once it is found. None: not yet, or it cannot be."""
        until = time.monotonic() + _SEARCH_S
        while self.pid is None and self._left and time.monotonic() < until:
            pid = self._left.pop()
            if _holds(pid, self._wanted):
                self.pid = pid
        return self.pid


_LOOPBACK = ("127.0.0.1", "::1")
_PRINTABLE = frozenset(map(chr, range(0x21, 0x7F)))
# Pause between two steps of a search through all processes.
_SEARCH_PAUSE_S = 0.02
# Of the output of a probing command, the end is kept as evidence.
_PRINTED_BYTES = 4096
_PRINTED_CHARACTERS = 200
# A process with this role is not part of the session's tree.
ROLE = "probe"


class BadProbe(ValueError):
    """A probe that no runner can try."""


def check(settings: Mapping[str, Any]) -> None:
    """Raises BadProbe, or BadPattern, for what a runner would refuse."""
    if "port" in settings:
        _addresses(settings.get("host", "localhost"), settings.get("address"))
        _check_port(settings["port"])
    elif "http" in settings:
        host, port, _ = split_url(settings["http"])
        _addresses(host, settings.get("address"))
        _check_port(port)
    elif "line" in settings:
        Pattern(settings["line"])
    elif "command" in settings:
        if not settings["command"]:
            raise BadProbe("the command of a probe is a list of words, with at least one")
    elif "told" not in settings:
        raise BadProbe("a probe is one of port, http, line, command or told")


def name_of(settings: Mapping[str, Any]) -> str:
    """As a user would write it."""
    if "port" in settings:
        host = settings.get("host", "localhost")
        return f"port:{settings['port']}" if host in ("localhost", "127.0.0.1") else f"port:{host}:{settings['port']}"
    if "http" in settings:
        return str(settings["http"])
    if "line" in settings:
        try:
            return f"line:{Pattern(settings['line']).text}"
        except BadPattern:
            return "line"
    return "command" if "command" in settings else "told"


def split_url(url: str) -> tuple[str, int, str]:
    """Host, port and target of a URL that a runner can ask."""
    scheme, colon, rest = url.partition("://")
    if scheme.lower() == "https":
        raise BadProbe(f"{url}: a runner only sends http:// requests; probe the port, or use a command such as curl")
    if scheme.lower() != "http" or not colon or not rest or not _PRINTABLE.issuperset(rest):
        raise BadProbe(f"{url!a} is not a URL of the form http://HOST:PORT/PATH")
    place, slash, path = rest.partition("/")
    place, question, query = place.partition("?")
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        port = port[1:]
    else:
        host, _, port = place.partition(":")
    if not host or "@" in host or (port and not port.isdigit()):
        raise BadProbe(f"{url!a} lacks a host or has an invalid port")
    target = f"/?{query}" if question else slash + path.partition("#")[0] or "/"
    return host, int(port or 80), target


def _addresses(host: str, address: str | None = None) -> list[str]:
    """The addresses to ask. Hosts look names up, because that may block."""
    if address is None and host == "localhost":
        return list(_LOOPBACK)
    packed(address or host)
    return [address or host]


def packed(address: str) -> bytes:
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except OSError:
        raise BadProbe(f"{address!a} is neither an address nor localhost: a runner does not resolve names") from None


def _check_port(port: object) -> None:
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        raise BadProbe(f"a port is a whole number from 1 to 65535, not {port!a}")


class Port:
    """True if a process of the session (`owner_check`), or any process, listens there and answers as it should."""

    def __init__(
        self,
        session: SessionWithProcesses,
        settings: Mapping[str, Any],
        *,
        owner_check: bool,
        within_s: float = ANSWER_S,
    ) -> None:
        self._session = session
        self._within_s = within_s
        self._owner_check = owner_check
        self._request: bytes | None = None
        self._statuses: list[int] | None = None
        if "http" in settings:
            host, self._port, target = split_url(settings["http"])
            self._request = get(f"[{host}]:{self._port}" if ":" in host else f"{host}:{self._port}", target)
            self._statuses = settings.get("statuses") or None
        else:
            host, self._port = settings.get("host", "localhost"), settings["port"]
        self._addresses = _addresses(host, settings.get("address"))
        self._probe: TcpProbe | None = None
        self._search: ListenerSearch | None = None
        self._next_search = Alarm(session.loop, self._search_more)

    def run(self, done: Done) -> None:
        if self._owner_check:
            ours, detail = self._look()
            if not ours or self._request is None:
                done(ours, detail)
                return
        self._ask(list(self._addresses), done)

    def cancel(self) -> None:
        if self._probe is not None:
            self._probe.cancel()
            self._probe = None
        self._next_search.cancel()

    def _ask(self, addresses: list[str], done: Done) -> None:
        def answered(ok: bool, detail: str) -> None:
            self._probe = None
            if ok or not addresses:
                done(ok, detail)
            else:
                self._ask(addresses, done)

        address = addresses.pop(0), self._port
        probe = TcpProbe(
            self._session.loop,
            address,
            answered,
            request=self._request,
            statuses=self._statuses,
            within_s=self._within_s,
        )
        if not probe.over:
            self._probe = probe

    def _look(self) -> tuple[bool, str]:
        """Whether the listener is a process of this session. The port of another process does not count."""
        port = self._port
        try:
            with self._session.reserve:
                found = find_listeners(port, [packed(address) for address in self._addresses])
            if not found:
                return False, f"nothing listens on port {port}"
            pid = listener_holder(found, self._session.tree.living())
            if pid is not None:
                return True, f"port {port} is held by pid {pid} of this session"
            if self._search is None or self._search.inodes != set(found):
                self._search = ListenerSearch(found)
                self._search_more()
            pid = self._search.pid
        except NoTable:
            return False, f"the listener of port {port} cannot be found here; owner_check=False probes by connecting"
        except OSError as problem:
            return False, f"the listener of port {port} cannot be found: {problem.strerror}"
        if pid is not None:
            name = os.path.basename((processes.command_line(pid) or ["?"])[0])
            return False, f"port {port} is held by pid {pid} ({name}), which is not of this session"
        user = next(iter(found.values()))
        which = "that cannot be inspected" if self._search.over else "which is not of this session"
        return False, f"port {port} is held by a process of user {user} {which}"

    def _search_more(self) -> None:
        """Search for the name of a foreign holder, until it is found or all processes were looked at."""
        if self._search is not None:
            self._search.step()
            if not self._search.over:
                self._next_search.set(_SEARCH_PAUSE_S)


class Command:
    """True if a command of the user ends with code 0. It runs where the session's command does, apart from its tree."""

    def __init__(
        self, session: SessionWithProcesses, argv: list[str], environment: dict[str, str], within_s: float
    ) -> None:
        self._session = session
        self._spec = {**session.spec, "command": list(argv), "argv0": None, "stdin": "closed", "merge_stderr": True}
        self._environment = {**environment, processes.ROLE_VARIABLE: ROLE}
        self._within_s = within_s
        self._pid: int | None = None
        self._output: int | None = None
        self._printed = b""
        self._alarm = Alarm(session.loop, self._too_long)
        self._done: Done | None = None

    def run(self, done: Done) -> None:
        try:
            started = spawn.spawn(self._spec, self._environment, [])
        except spawn.SpawnFailed as problem:
            done(False, str(problem))
            return
        self._done = done
        self._printed = b""
        self._pid = started.pid
        self._session.tree.apart[started.pid] = self._ended
        self._output = started.outputs["stdout"]
        self._session.loop.watch(self._output, READ, self._read_output)
        self._alarm.set(self._within_s)

    def cancel(self) -> None:
        self._done = None
        self._kill()
        self._close()

    def _read_output(self, _events: int) -> None:
        assert self._output is not None
        try:
            piece = os.read(self._output, _PRINTED_BYTES)
        except BlockingIOError:
            return
        self._printed = (self._printed + piece)[-_PRINTED_BYTES:]
        if not piece:
            self._close_output()

    def _ended(self, status: int) -> None:
        self._pid = None
        if self._output is not None:
            self._read_output(0)  # what it printed last
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            self._answer(False, f"was ended by {NAMES.get(number, number)}")
        else:
            code = os.WEXITSTATUS(status)
            self._answer(code == 0, f"exited with {code}")

    def _too_long(self) -> None:
        self._kill()
        self._answer(False, f"took more than {self._within_s:g} s")

    def _answer(self, ok: bool, how: str) -> None:
        done, self._done = self._done, None
        said = tail(self._printed, 0, lines=1, chars=_PRINTED_CHARACTERS)["text"]
        self._close()
        if done is not None:
            done(ok, f"{self._spec['command'][0]} {how}" + (f": {said}" if said and not ok else ""))

    def _kill(self) -> None:
        """All of its group: it is our child and not reaped, so its pid is its own."""
        if self._pid is not None:
            self._session.tree.apart.pop(self._pid, None)
            try:
                os.killpg(self._pid, signal.SIGKILL)
            except OSError:
                pass
            self._pid = None

    def _close(self) -> None:
        self._close_output()
        self._alarm.cancel()

    def _close_output(self) -> None:
        if self._output is not None:
            self._session.loop.watch(self._output, 0, self._read_output)
            os.close(self._output)
            self._output = None
