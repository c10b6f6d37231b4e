"""From a start request to a runner: through a launcher of our own context, else by executing one directly."""

from __future__ import annotations

import _socket as socket  # the wrapper around it takes longer to load than a start takes
import errno
import fcntl
import os
import sys

from .. import places, wire
from ..errors import HoldfastError, RunnerGone, SpawnError, Unreachable, Unsupported
from ..home import new_id
from ..runner import points, sockets, tree
from .claims import stands_at
from .connection import Connection, call

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..config import Config
    from .driver import Driver

_RUNNER = os.path.join(os.path.dirname(os.path.abspath(sockets.__file__)), "__main__.py")
_BACKLOG = 1024
# To take what we tell it; it comes to life after that.
_DEPUTY_S = 10.0
# What tests set; the rest of our environment is nobody's business there.
_HANDED_ON = (
    "HOLDFAST_POINTS",
    "HOLDFAST_POINTS_SOCKET",
    "HOLDFAST_OFF",
    "HOLDFAST_WALL_SHIFT_S",
    "HOLDFAST_WALL_SHIFT_FILE",
)
_STATUS_FACTS = frozenset(
    [
        "Uid",
        "Gid",
        "Groups",
        "CapInh",
        "CapPrm",
        "CapEff",
        "CapBnd",
        "CapAmb",
        "NoNewPrivs",
        "Seccomp",
        "Cpus_allowed_list",
        "Mems_allowed_list",
    ]
)


class Launching:
    """How this host starts runners. Holds no connection and no process."""

    def __init__(self, driver: Driver, runtime: str, config: Config, author: str) -> None:
        self._driver = driver
        self._runtime = runtime
        self._config = config
        self._author = author
        self._context: str | None = None

    async def start(self, request: dict[str, Any], descriptors: list[int]) -> Connection:
        """Carry one start request out. The answer's connection goes on as an ordinary one.

        A runner that fell silent is fenced off before another way is tried: whoever makes the session's directory
        first, runner or host, decides whether that start happens.
        """
        try:
            if self._config.launcher_enabled and not points.off("launcher"):
                sock = await self._reach_launcher()
                if sock is not None:
                    try:
                        return await self._ask(sock, request, descriptors)
                    except (RunnerGone, Unreachable):
                        if not _fence(request):
                            raise
                        spec = request["spec"]
                        spec["id"] = new_id(spec["kind"])
                        spec["endpoint"] = os.path.join(self._runtime, spec["id"] + ".sock")
            sock = await self._execute()
            try:
                return await self._ask(sock, request, descriptors)
            except Unreachable:
                _fence(request)
                raise
        except OSError as problem:
            raise SpawnError(problem.errno or 0, "launch", problem.filename) from None

    async def start_away(self, request: dict[str, Any], descriptors: list[int]) -> Connection:
        """The same in another place: a deputy carries the request there."""
        spec = request["spec"]
        spec["way"] = places.way(spec["place"])
        request["reach"] = places.reach(spec["place"], self._config, self._runtime, spec["way"])
        timeout = self._config.hosts_start_timeout + self._config.places_timeout
        try:
            return await self._ask(await self._execute("deputy"), request, descriptors, timeout)
        except Unreachable:
            _fence(request)
            raise
        except OSError as problem:
            raise SpawnError(problem.errno or 0, "launch", problem.filename) from None

    def send_deputies(self, home: str, specs: list[dict[str, Any]], end: dict[str, Any] | None = None) -> None:
        """Have somebody who holds a link to the place where each of these sessions runs. They are there when this
        returns, or others whom somebody else has sent. With `end` they have ended what had no runner any more, if
        they could. Takes a moment."""
        sent = []
        try:
            for spec in filter(_is_reached, specs):
                ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
                try:
                    pid = _spawn_python(["next-deputy"], {tree.ROLE_VARIABLE: "runner"}, [theirs.fileno()])
                except OSError:
                    ours.close()
                    break  # no process to be had: what is not asked after now is told as unreachable
                finally:
                    theirs.close()
                sent.append((pid, ours, spec))
            for _, ours, spec in sent:
                reach = places.reach(spec["place"], self._config, self._runtime, spec.get("way") or {})
                ours.settimeout(_DEPUTY_S)
                try:
                    endpoint = os.path.join(self._runtime, spec["id"] + ".sock")
                    request = {"type": "resume", "home": home, "spec": spec, "reach": reach, "end": end}
                    request["endpoint"] = endpoint
                    ours.sendall(wire.control(request))
                except OSError:
                    continue  # it could not even begin: whoever looks next sends another
        finally:
            for pid, ours, _ in sent:
                ours.close()
                os.waitpid(pid, 0)

    async def _ask(
        self, sock: socket.socket, request: dict[str, Any], descriptors: list[int], timeout: float | None = None
    ) -> Connection:
        session: str = request["spec"]["id"]
        timeout = timeout or self._config.hosts_start_timeout
        connection = Connection(self._driver, sock, session, self._author)
        try:
            if points.ACTIVE:
                points.hit("host.before_request")
            await connection.send(wire.control(request), timeout, descriptors)
            if points.ACTIVE:
                points.hit("host.request_sent")
            await connection.greet(timeout)
            if points.ACTIVE:
                points.hit("host.reply_read")
            return connection
        except BaseException:
            # Also where whoever asked was cancelled: a command that lives as long as its call has to hear of it.
            connection.close()
            raise

    async def _reach_launcher(self) -> socket.socket | None:
        """A connection to a launcher, started now if there is none. None: go without."""
        path = self.launcher_path()
        sock = _connect(path)
        if sock is None:
            pid = self._start_launcher(path)
            if pid is not None:
                sock = _connect(path)
                await self._driver.call(lambda: os.waitpid(pid, 0))
        return sock

    def _start_launcher(self, path: str) -> int | None:
        from ..runner import launcher

        lock = os.open(launcher.lock_path(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None  # one is coming or leaving right now: not worth waiting for
            if not stands_at(lock, launcher.lock_path(path)):
                return None
            try:
                os.unlink(path)  # nobody holds the lock, so nobody listens there
            except FileNotFoundError:
                pass
            sockets.bind_unix(listener, *os.path.split(path))
            listener.listen(_BACKLOG)
            words = ["launcher", str(self._config.launcher_spares), str(self._config.launcher_idle)]
            environment = {launcher.SOCKET_VARIABLE: path, tree.ROLE_VARIABLE: "launcher"}
            return _spawn_python(words, environment, [listener.fileno(), lock])
        finally:
            listener.close()
            os.close(lock)

    async def _execute(self, role: str = "runner") -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            pid = _spawn_python([role], {tree.ROLE_VARIABLE: "runner"}, [theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        status = await self._driver.call(lambda: os.waitpid(pid, 0)[1])
        refused = os.waitstatus_to_exitcode(status)
        if refused in (errno.EAGAIN, errno.ENOMEM):
            ours.close()
            raise OSError(refused, os.strerror(refused))
        ours.setblocking(False)
        return ours

    def launcher_path(self) -> str:
        """Where the launcher of our own context listens, if there is one."""
        return os.path.join(self._runtime, f"launcher-{self.context()}.sock")

    def context(self) -> str:
        """All that a command inherits from its launcher and that no request carries, and the code itself."""
        if self._context is None:
            # Not from hashlib, which loads all of OpenSSL.
            from _blake2 import blake2b

            digest = blake2b(digest_size=8)
            for fact in _inherited():
                digest.update(fact.encode("utf-8", "surrogateescape") + b"\0")
            self._context = digest.hexdigest()
        return self._context


def _is_reached(spec: dict[str, Any]) -> bool:
    """Do we know a way there? A later release may know more."""
    try:
        places.check(spec["place"])
    except HoldfastError:
        return False
    return True


def _fence(request: dict[str, Any]) -> bool:
    """Make the session's directory ourselves, so that a runner that wakes late starts nothing. False when it got
    as far as that: the session exists, or its remains will be told as what they are."""
    try:
        os.mkdir(os.path.join(request["home"], "sessions", request["spec"]["id"]), 0o700)
    except FileExistsError:
        return False
    return True


def _connect(path: str) -> socket.socket | None:
    try:
        sock = call(path)
    except OSError:
        return None
    if sockets.peer_uid(sock) == os.getuid():
        return sock
    sock.close()
    return None


def _spawn_python(words: list[str], environment: dict[str, str], descriptors: list[int]) -> int:
    """A detached interpreter running our runner module, with `descriptors` from 3 on and nothing else of ours."""
    if not sys.executable:
        raise Unsupported("starting a runner from an embedded interpreter")
    for name in _HANDED_ON:
        if name in os.environ:
            environment[name] = os.environ[name]
    # Above the numbers they go to, so that none is overwritten before it was copied.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 8) for fd in descriptors]
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    actions += [(os.POSIX_SPAWN_DUP2, fd, number) for number, fd in enumerate(high, 3)]
    argv = [sys.executable, "-I", "-S", "-X", "utf8", _RUNNER, *words]
    try:
        if points.ACTIVE:
            points.hit("host.spawn")
        return os.posix_spawn(sys.executable, argv, environment, file_actions=actions, setsid=True, setsigmask=[])
    finally:
        for fd in high:
            os.close(fd)


def _inherited() -> list[str]:
    import resource

    facts = [sys.executable, _RUNNER, *(os.environ.get(name, "") for name in _HANDED_ON)]
    with os.scandir(os.path.dirname(_RUNNER)) as entries:
        facts += sorted(f"{entry.name} {entry.stat().st_mtime_ns}" for entry in entries if entry.is_file())
    limits = sorted(name for name in dir(resource) if name.startswith("RLIMIT_"))
    facts += [f"{name} {resource.getrlimit(getattr(resource, name))}" for name in limits]
    facts.append(f"nice {os.getpriority(os.PRIO_PROCESS, 0)}")
    for name in ("cgroup", "oom_score_adj", "attr/current"):
        try:
            with open(f"/proc/self/{name}") as file:
                facts.append(file.read())
        except OSError:
            facts.append("")
    with open("/proc/self/status") as file:
        facts += [line for line in file if line.partition(":")[0] in _STATUS_FACTS]
    facts += [f"{name} {os.stat(f'/proc/self/ns/{name}').st_ino}" for name in sorted(os.listdir("/proc/self/ns"))]
    return facts
