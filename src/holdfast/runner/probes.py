"""What tells that a command does its work: a port that its tree listens on, an HTTP answer, a command that succeeds.

A probe is tried once per call of `try_`, and calls back when it knows, within a bound and without holding up the loop.
"""

from __future__ import annotations

import _socket as socket
import os

from . import listeners, spawn, tree
from .kernel_signals import NAMES, signal
from .knock import ANSWER_S, Knock, get
from .lines import tail
from .loop import READ
from .patterns import BadPattern, Pattern

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, Callable

    from .life import Life
    from .loop import Timer

    Done = Callable[[bool, str], None]

_LOOPBACK = ("127.0.0.1", "::1")
_PRINTABLE = frozenset(map(chr, range(0x21, 0x7F)))
# Between two moments of a search through all processes.
_SEARCH_PAUSE_S = 0.02
# Of what a probing command prints, the end is evidence.
_SAID_BYTES = 4096
_SAID_CHARACTERS = 200
# What carries this role is no part of the session's tree: neither listed nor waited for.
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
        raise BadProbe("a probe is a port, http, a line, a command or told")


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
        raise BadProbe(f"{url}: a runner asks http:// alone; probe the port, or by a command such as curl")
    if scheme.lower() != "http" or not colon or not rest or not _PRINTABLE.issuperset(rest):
        raise BadProbe(f"{url!a} is no URL of the form http://HOST:PORT/PATH")
    place, slash, path = rest.partition("/")
    place, question, query = place.partition("?")
    if place.startswith("["):
        host, _, port = place[1:].partition("]")
        port = port[1:]
    else:
        host, _, port = place.partition(":")
    if not host or "@" in host or (port and not port.isdigit()):
        raise BadProbe(f"{url!a} has no host, or no port, that can be asked")
    target = f"/?{query}" if question else slash + path.partition("#")[0] or "/"
    return host, int(port or 80), target


def _addresses(host: str, address: str | None = None) -> list[str]:
    """Where to ask. Names are for hosts to look up, who may wait for the answer."""
    if address is None and host == "localhost":
        return list(_LOOPBACK)
    packed(address or host)
    return [address or host]


def packed(address: str) -> bytes:
    try:
        return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)
    except OSError:
        raise BadProbe(f"{address!a} is neither an address nor localhost: a runner looks up no names") from None


def _check_port(port: object) -> None:
    if not isinstance(port, int) or isinstance(port, bool) or not 0 < port < 65536:
        raise BadProbe(f"a port is a whole number from 1 to 65535, not {port!a}")


def make(
    life: Life, settings: Mapping[str, Any], *, owner_check: bool, environment: dict[str, str], within_s: float
) -> Port | Command:
    """A probe of a port, with or without a request, or by a command."""
    if "command" in settings:
        return Command(life, settings["command"], environment, within_s)
    return Port(life, settings, owner_check=owner_check, within_s=within_s)


class Port:
    """Does the session's tree listen there (`owner_check`), or does anybody; and does it answer as it should?"""

    def __init__(
        self, life: Life, settings: Mapping[str, Any], *, owner_check: bool, within_s: float = ANSWER_S
    ) -> None:
        self._life = life
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
        self._knock: Knock | None = None
        self._search: listeners.Search | None = None
        self._search_timer: Timer | None = None

    def try_(self, done: Done) -> None:
        if self._owner_check:
            ours, detail = self._look()
            if not ours or self._request is None:
                done(ours, detail)
                return
        self._ask(list(self._addresses), done)

    def cancel(self) -> None:
        if self._knock is not None:
            self._knock.cancel()
            self._knock = None
        if self._search_timer is not None:
            self._search_timer.cancel()
            self._search_timer = None

    def _ask(self, addresses: list[str], done: Done) -> None:
        def answered(ok: bool, detail: str) -> None:
            self._knock = None
            if ok or not addresses:
                done(ok, detail)
            else:
                self._ask(addresses, done)

        address = addresses.pop(0), self._port
        knock = Knock(
            self._life.loop,
            address,
            answered,
            request=self._request,
            statuses=self._statuses,
            within_s=self._within_s,
        )
        if not knock.over:
            self._knock = knock

    def _look(self) -> tuple[bool, str]:
        """Is it ours that listens? A look at somebody else's port is no answer from ours."""
        port = self._port
        try:
            with self._life.reserve:
                found = listeners.find(port, [packed(address) for address in self._addresses])
            if not found:
                return False, f"nothing listens on port {port}"
            pid = listeners.holder(found, self._life.family.living())
            if pid is not None:
                return True, f"port {port} is held by pid {pid} of this session"
            if self._search is None or self._search.inodes != set(found):
                self._search = listeners.Search(found)
                self._search_on()
            pid = self._search.pid
        except listeners.NoTable:
            return False, f"who listens on port {port} is not told here; owner_check=False asks by connecting"
        except OSError as problem:
            return False, f"who listens on port {port} cannot be seen: {problem.strerror}"
        if pid is not None:
            name = os.path.basename((tree.command_line(pid) or ["?"])[0])
            return False, f"port {port} is held by pid {pid} ({name}), which is not of this session"
        user = next(iter(found.values()))
        who = "that cannot be looked at" if self._search.over else "which is not of this session"
        return False, f"port {port} is held by a process of user {user} {who}"

    def _search_on(self) -> None:
        """For the name of a foreign holder, until it is found or everybody was looked at."""
        self._search_timer = None
        if self._search is not None:
            self._search.go_on()
            if not self._search.over:
                self._search_timer = self._life.loop.after(_SEARCH_PAUSE_S, self._search_on)


class Command:
    """Does a command of the user end with code 0? It runs where the session's command does, apart from its tree."""

    def __init__(self, life: Life, argv: list[str], environment: dict[str, str], within_s: float) -> None:
        self._life = life
        self._spec = {**life.spec, "command": list(argv), "argv0": None, "stdin": "closed", "merge_stderr": True}
        self._environment = {**environment, tree.ROLE_VARIABLE: ROLE}
        self._within_s = within_s
        self._pid: int | None = None
        self._output: int | None = None
        self._said = b""
        self._timer: Timer | None = None
        self._done: Done | None = None

    def try_(self, done: Done) -> None:
        try:
            started = spawn.spawn(self._spec, self._environment, [])
        except spawn.SpawnFailed as problem:
            done(False, str(problem))
            return
        self._done = done
        self._said = b""
        self._pid = started.pid
        self._life.family.apart[started.pid] = self._ended
        self._output = started.outputs["stdout"]
        self._life.loop.watch(self._output, READ, self._hear)
        self._timer = self._life.loop.after(self._within_s, self._too_long)

    def cancel(self) -> None:
        self._done = None
        self._kill()
        self._close()

    def _hear(self, _events: int) -> None:
        assert self._output is not None
        try:
            piece = os.read(self._output, _SAID_BYTES)
        except BlockingIOError:
            return
        self._said = (self._said + piece)[-_SAID_BYTES:]
        if not piece:
            self._close_output()

    def _ended(self, status: int) -> None:
        self._pid = None
        if self._output is not None:
            self._hear(0)  # what it said last
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            self._answer(False, f"was ended by {NAMES.get(number, number)}")
        else:
            code = os.WEXITSTATUS(status)
            self._answer(code == 0, f"exited with {code}")

    def _too_long(self) -> None:
        self._timer = None
        self._kill()
        self._answer(False, f"took more than {self._within_s:g} s")

    def _answer(self, ok: bool, how: str) -> None:
        done, self._done = self._done, None
        said = tail(self._said, 0, lines=1, chars=_SAID_CHARACTERS)["text"]
        self._close()
        if done is not None:
            done(ok, f"{self._spec['command'][0]} {how}" + (f": {said}" if said and not ok else ""))

    def _kill(self) -> None:
        """All of its group: it is our child and not reaped, so its pid is its own."""
        if self._pid is not None:
            self._life.family.apart.pop(self._pid, None)
            try:
                os.killpg(self._pid, signal.SIGKILL)
            except OSError:
                pass
            self._pid = None

    def _close(self) -> None:
        self._close_output()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _close_output(self) -> None:
        if self._output is not None:
            self._life.loop.watch(self._output, 0, self._hear)
            os.close(self._output)
            self._output = None
