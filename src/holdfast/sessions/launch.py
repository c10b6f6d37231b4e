"""From a start request to a runner: by a launcher, else by executing one directly; in another place by a deputy."""

from __future__ import annotations

import _socket as socket  # the wrapper around it takes longer to load than a start takes
import errno
import fcntl
import os
import sys

from ..core import failpoints, processes, sockets, wire
from ..errors import HoldfastError, RunnerGone, SpawnError, Unreachable, Unsupported
from ..home import new_id
from ..places import kinds
from .claims import stands_at
from .connection import Connection, open_socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..config import Config
    from .core import Core


_RUNNER = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "runner", "__main__.py")
# A last word of the runner's command line, which its title is written over.
_TITLE_ROOM = " " * 128
_BACKLOG = 1024
# Time for a deputy to take its request.
_DEPUTY_S = 10.0
# Variables that tests set. The rest of our environment is not passed on.
_HANDED_ON = (
    "HOLDFAST_POINTS",
    "HOLDFAST_POINTS_SOCKET",
    "HOLDFAST_OFF",
    "HOLDFAST_WALL_SHIFT_S",
    "HOLDFAST_WALL_SHIFT_FILE",
)
_PROC_STATUS_FIELDS = frozenset(
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


async def reach_runner(core: Core, request: dict[str, Any], descriptors: list[int]) -> Connection:
    """Carry out one start request: by a launcher, else by a runner that is executed directly; in another place by a
    deputy, which carries the request there. The connection of the answer is an ordinary one afterwards.

    A runner that does not answer is fenced off before another way is tried: the first process to make the session's
    directory, runner or host, decides whether that start happens. The other way gets a new id and endpoint, which are
    written into the spec of `request`.
    """
    spec = request["spec"]
    role, timeout = "runner", core.config.hosts_start_timeout
    try:
        if spec["place"] != kinds.LOCAL:
            role, timeout = "deputy", timeout + core.config.places_timeout
            spec["way"] = kinds.way(spec["place"])
            request["reach"] = kinds.reach(spec["place"], core.config, core.home.path, core.runtime, spec["way"])
        elif core.config.launcher_enabled and not failpoints.off("launcher"):
            sock = await _reach_launcher(core)
            if sock is not None:
                try:
                    return await _ask(core, sock, request, descriptors, timeout)
                except (RunnerGone, Unreachable):
                    if not _fence(request):
                        raise
                    spec["id"] = new_id(spec["kind"])
                    spec["endpoint"] = core.endpoint(spec["id"])
        sock = await spawn_runner(core, role)
        try:
            return await _ask(core, sock, request, descriptors, timeout)
        except Unreachable:
            _fence(request)
            raise
    except OSError as problem:
        raise SpawnError(problem.errno or 0, "launch", problem.filename) from None


def send_deputies(core: Core, specs: list[dict[str, Any]], end: dict[str, Any] | None = None) -> None:
    """Start a deputy for each of these sessions in other places. When this returns, each session has one, ours or
    that of another host. With `end`, a deputy stops what runs there without a runner."""
    sent = []
    try:
        for spec in [each for each in specs if _is_reached(each, core.config)]:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                pid = _spawn_python(["next-deputy"], {processes.ROLE_VARIABLE: "runner"}, [theirs.fileno()])
            except OSError:
                ours.close()
                break  # no process is available: the other sessions are reported as unreachable
            finally:
                theirs.close()
            sent.append((pid, ours, spec))
        for _, ours, spec in sent:
            visited = spec["id"] if spec.get("visit") else None
            way = spec.get("way") or {}
            reach = kinds.reach(spec["place"], core.config, core.home.path, core.runtime, way, visited)
            ours.settimeout(_DEPUTY_S)
            try:
                request = {"type": "resume", "home": core.home.path, "spec": spec, "reach": reach, "end": end}
                request["endpoint"] = core.endpoint(spec["id"])
                ours.sendall(wire.control(request))
            except OSError:
                continue  # it could not even begin: the next check starts another
    finally:
        for pid, ours, _ in sent:
            ours.close()
            os.waitpid(pid, 0)


async def _ask(
    core: Core, sock: socket.socket, request: dict[str, Any], descriptors: list[int], timeout: float
) -> Connection:
    connection = Connection(core.driver, sock, request["spec"]["id"], pending=request.get("then"))
    try:
        failpoints.hit("host.before_request")
        await connection.send(wire.control(request), timeout, descriptors)
        failpoints.hit("host.request_sent")
        await connection.greet(timeout)
        failpoints.hit("host.reply_read")
        return connection
    except BaseException:
        # Also when the call was cancelled: a command with `lifetime="call"` ends with this connection.
        connection.close()
        raise


async def _reach_launcher(core: Core) -> socket.socket | None:
    """A connection to a launcher, which is started now if there is none. None: continue without."""
    path = launcher_path(core)
    sock = _connect(path)
    if sock is None:
        pid = _start_launcher(core, path)
        if pid is not None:
            sock = _connect(path)
            await core.driver.call(lambda: os.waitpid(pid, 0))
    return sock


def _start_launcher(core: Core, path: str) -> int | None:
    from ..runner import launcher

    lock = os.open(launcher.lock_path(path), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None  # one is starting or leaving right now: not worth waiting for
        if not stands_at(lock, launcher.lock_path(path)):
            return None
        try:
            os.unlink(path)  # the lock was free, so no launcher listens there
        except FileNotFoundError:
            pass
        sockets.bind_unix(listener, *os.path.split(path))
        listener.listen(_BACKLOG)
        words = ["launcher", str(core.config.launcher_spares), str(core.config.launcher_idle)]
        environment = {launcher.SOCKET_VARIABLE: path, processes.ROLE_VARIABLE: "launcher"}
        return _spawn_python(words, environment, [listener.fileno(), lock])
    finally:
        listener.close()
        os.close(lock)


async def spawn_runner(core: Core, role: str) -> socket.socket:
    """A new interpreter as `role`, runner or deputy, and our end of its channel. By its variable a deputy is a runner
    too: neither is part of a session's tree."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        pid = _spawn_python([role], {processes.ROLE_VARIABLE: "runner"}, [theirs.fileno()])
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    status = await core.driver.call(lambda: os.waitpid(pid, 0)[1])
    refused = os.waitstatus_to_exitcode(status)
    if refused in (errno.EAGAIN, errno.ENOMEM):
        ours.close()
        raise OSError(refused, os.strerror(refused))
    ours.setblocking(False)
    return ours


def launcher_path(core: Core) -> str:
    """Where the launcher of this host listens, if there is one. Its name is a digest of everything that a command
    inherits from its launcher and that no request carries, and of the code itself. Computed once a host."""
    if core.launcher_path is None:
        # Not from hashlib, which loads all of OpenSSL.
        from _blake2 import blake2b

        digest = blake2b(digest_size=8)
        for fact in _inherited():
            digest.update(fact.encode("utf-8", "surrogateescape") + b"\0")
        core.launcher_path = os.path.join(core.runtime, f"launcher-{digest.hexdigest()}.sock")
    return core.launcher_path


def _is_reached(spec: dict[str, Any], config: Config) -> bool:
    """True if this release and configuration know the place: another may know more."""
    try:
        kinds.check(spec["place"], config)
    except HoldfastError:
        return False
    return True


def _fence(request: dict[str, Any]) -> bool:
    """Make the session's directory ourselves, so that a runner that wakes late starts nothing. False when it got
    as far as that: the session exists, or its remains are found later."""
    try:
        os.mkdir(os.path.join(request["home"], "sessions", request["spec"]["id"]), 0o700)
    except FileExistsError:
        return False
    return True


def _connect(path: str) -> socket.socket | None:
    try:
        sock = open_socket(path)
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
    argv = [sys.executable, "-I", "-S", "-X", "utf8", _RUNNER, *words, _TITLE_ROOM]
    failpoints.hit("host.spawn")
    return processes.start_program(argv, environment, dict(enumerate(descriptors, 3)), setsid=True)


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
        facts += [line for line in file if line.partition(":")[0] in _PROC_STATUS_FIELDS]
    facts += [f"{name} {os.stat(f'/proc/self/ns/{name}').st_ino}" for name in sorted(os.listdir("/proc/self/ns"))]
    return facts
