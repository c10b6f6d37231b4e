"""The launcher: warm processes that become runners. They rehearse one session before the real one.

A launcher owns nothing. It keeps a few forked spares, which accept on its listening socket themselves: the kernel
hands a caller to one of them, and that spare is the runner from then on. Kill the launcher at any moment and only
speed is lost. It serves callers of its own context alone (same user, limits, namespaces, control groups, code), so
that a command started through it does not differ from one whose runner was started directly.
"""

from __future__ import annotations

import _socket as socket
import gc
import os
import select
import sys
import time

from ..core import failpoints, processes, sockets, wire
from ..core.kernel_signals import signal
from . import process_tree, rehearsal, session, status
from .process_tree import become_subreaper, set_title

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


# Where the launcher listens; beside it is the lock that it holds for life.
SOCKET_VARIABLE = "HOLDFAST_SOCKET"

_LISTENER_FD = 3
_LOCK_FD = 4
CHANNEL_FD = 3
# The request follows the connection at once; a peer that takes longer is not one of ours.
_REQUEST_S = 10.0
# A spare is replaced after this much quiet, so that the fork does not compete with the command
# it was taken for; at once when none is left.
_QUIET_S = 0.02
# A spare sends the first when a caller that waits for the end took it, and the second when that end has come.
_TAKEN, _BACK = b"t", b"b"
_TAKEN_MAX = 64
# Python optimises a function after about ten calls.
_REHEARSALS = 12
# Of our own CPU time: each rehearsal walks /proc, which takes long on a machine with very many processes.
_WARM_UP_S = 0.2
_LEAVE_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Memory only grows: after this many sessions a fresh fork is better.
_LIVES_MAX = 100
# How CPython hands out memory for small objects: blocks of a few sizes, those of one size together in a pool.
_BLOCK_BYTES, _BLOCK_MAX_BYTES = 16, 512
_POOL_BYTES, _POOL_HEADER_BYTES = (16 << 10 if sys.version_info >= (3, 10) else 4 << 10), 48
_BALLAST_MAX = 20_000


def main(words: list[str]) -> None:
    if words[:1] == ["self-test"]:
        rehearsal.self_test()
    elif words[:1] == ["runner"]:
        close_other_descriptors({CHANNEL_FD})
        detach_from_parent()
        _become_runner(socket.socket(fileno=CHANNEL_FD), None, process_tree.leave_service_group())
    elif words[:1] == ["runner-at"] and len(words) == 2:
        _connect_back(words[1])
    elif words[:1] == ["launcher"] and len(words) == 3:
        close_other_descriptors({_LISTENER_FD, _LOCK_FD})
        detach_from_parent()
        listener = socket.socket(fileno=_LISTENER_FD)
        Launcher(listener, os.environ[SOCKET_VARIABLE], spares=int(words[1]), idle_s=float(words[2])).run()
    else:
        sys.exit("holdfast: the runner is started by the library, not by hand")


def _connect_back(path: str) -> None:
    """Be the runner of the caller that listens at `path`. The process that started us is outside our namespace, and
    reaps us."""
    close_other_descriptors(set())
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sockets.connect_unix(channel, path)
    try:
        os.setsid()
    except PermissionError:
        pass  # we lead a session already
    _become_runner(channel, None, None)


def lock_path(socket_path: str) -> str:
    return socket_path[: -len(".sock")] + ".lock"


def detach_from_parent() -> None:
    """Continue in a fork whose parent exits at once. The caller reaps that parent, and learns from its exit code
    whether the fork succeeded."""
    try:
        if os.fork():
            os._exit(0)
    except OSError as problem:
        os._exit(problem.errno or 1)
    os.setsid()


def close_other_descriptors(kept: set[int]) -> None:
    """Close everything else that we inherited."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor that lists the others
    for fd in kept:
        os.set_inheritable(fd, False)
    os.chdir("/")


class Launcher:
    def __init__(self, listener: socket.socket, path: str, *, spares: int, idle_s: float) -> None:
        self._listener = listener
        self._path = path
        self._inode = os.stat(path).st_ino
        self._wanted = spares
        self._idle_s = idle_s
        # The other ends are held by spares. `_taken`: former spares that now run a session and may come back. The
        # socket closes when the process ends.
        self._spares: list[socket.socket] = []
        self._taken: list[socket.socket] = []
        self._warning: str | None = None
        self._ballast: list[bytes] = []
        self._leave_asked: socket.socket | None = None

    def run(self) -> None:
        set_title("launcher")
        session.load_all()
        self._warning = process_tree.leave_service_group()
        os.ftruncate(_LOCK_FD, 0)
        os.write(_LOCK_FD, b"%d %d\n" % (os.getpid(), processes.start_time(os.getpid())))
        self._listener.setblocking(False)
        scratch = rehearsal.scratch_path(self._path)
        rehearsal.forget(scratch)  # of a launcher that was killed
        if rehearsal.wanted():
            try:
                os.mkdir(scratch, 0o700)
            except OSError:
                pass  # then no rehearsal succeeds, which costs only speed
        self._keep_spares()
        self._unlink_socket()
        rehearsal.forget(scratch)
        os.unlink(lock_path(self._path))  # we hold the lock: no other launcher has the path yet

    def _keep_spares(self) -> None:
        """Keep spares ready, until a signal asks us to leave, we were idle for too long, or we cannot fork."""
        if not self._warm_up():
            return
        leave_asked = self._leave_asked = _leave_on_signals()
        quiet_since = time.monotonic()
        while self._spares or self._fork_spare():
            missing = self._wanted - len(self._spares)
            wait_s = _QUIET_S if missing > 0 else self._idle_s - (time.monotonic() - quiet_since)
            if wait_s <= 0:
                return
            ready = self._ready(wait_s)
            if leave_asked in ready:
                return
            if ready:
                quiet_since = time.monotonic()
                for line in ready:
                    self._spare_changed(line)
            elif missing > 0 and not self._fork_spare(rehearse=rehearsal.wanted()):
                return

    def _warm_up(self) -> bool:
        """Rehearse a few times ourselves, while a spare serves callers that already wait. Every later spare inherits by
        fork what the interpreter has specialised, on pages that it shares with us. False: we cannot fork."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _LEAVE_ON)  # they are for us, and not for the session we rehearse
        until = time.process_time() + _WARM_UP_S
        for _ in range(_REHEARSALS if rehearsal.wanted() else 0):
            if time.process_time() > until or signal.sigpending() & set(_LEAVE_ON):
                break
            for line in self._ready(0):
                self._spare_changed(line)
            if not self._spares and not self._fork_spare():
                return False
            rehearsal.rehearse(rehearsal.scratch_path(self._path))
        become_subreaper(False)
        gc.collect()
        self._ballast = _fill_pools()
        gc.freeze()
        return True

    def _ready(self, wait_s: float) -> list[socket.socket]:
        leave_asked = [] if self._leave_asked is None else [self._leave_asked]
        return select.select([*leave_asked, *self._spares, *self._taken], [], [], wait_s)[0]

    def _spare_changed(self, line: socket.socket) -> None:
        """A spare was taken, came back, or is gone for good."""
        (self._spares if line in self._spares else self._taken).remove(line)
        try:
            said = line.recv(1)
            if said == _TAKEN and len(self._taken) < _TAKEN_MAX:
                self._taken.append(line)
                return
            if said == _BACK and len(self._spares) < self._wanted:
                sockets.send_with_fds(line, _BACK, [self._listener.fileno()])
                self._spares.append(line)
                return
        except OSError:
            pass  # it was killed while it wrote
        line.close()

    def _unlink_socket(self) -> None:
        """Unlink only our own socket: another launcher may have taken the path."""
        try:
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        except FileNotFoundError:
            pass

    def _fork_spare(self, *, rehearse: bool = False) -> bool:
        """Fork a spare. False when no process or descriptor is available: then we are of no use, and leave."""
        try:
            failpoints.hit("launcher.fork")
            ours, theirs = socket.socketpair()
            pid = os.fork()
        except OSError:
            return False
        if pid:
            theirs.close()
            self._spares.append(ours)
            return True
        try:
            ours.close()
            for line in [*self._spares, *self._taken]:
                line.close()
            if self._leave_asked is not None:
                self._leave_asked.close()
            os.close(_LOCK_FD)
            _reset_signals()
            os.setsid()
            if rehearse:
                rehearsal.rehearse(rehearsal.scratch_path(self._path), with_end=False)
                _reset_signals()
            processes.own_identity()
            self._serve(theirs)
        except BaseException:  # noqa: BLE001 - a forked child must never run on into its parent's code
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)

    def _serve(self, line: socket.socket) -> None:
        """Be the runner of one caller after the other. After a short command whose caller waited for its end, this
        process offers itself as a spare again to the launcher, at the other end of `line`."""
        for _ in range(_LIVES_MAX):
            set_title("spare")
            channel = self._wait_for_caller(line)
            if channel is None or not _become_runner(channel, line, self._warning):
                return
            _reset_signals()
            line.send(_BACK)
            _, descriptors = sockets.recv_with_fds(line, 1, 1)
            if not descriptors:
                return
            self._listener = socket.socket(fileno=descriptors[0])
        line.close()

    def _wait_for_caller(self, line: socket.socket) -> socket.socket | None:
        """Block until the kernel hands us a caller; None when the launcher left."""
        poll = select.epoll()
        # One spare is woken for one caller; the others sleep on instead of racing it.
        poll.register(self._listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        poll.register(line, select.EPOLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poll.poll()}
                if line.fileno() in ready:
                    self._unlink_socket()
                    return None
                try:
                    channel = sockets.accept(self._listener)
                except (BlockingIOError, ConnectionError):
                    continue
                failpoints.hit("launcher.taken")
                # A listener that outlives its launcher would let callers wait for ever.
                self._listener.close()
                return channel
        finally:
            poll.close()


def _fill_pools() -> list[bytes]:
    """Fill the free blocks between our objects, and return what fills them. A runner that puts its new objects there
    gets its own copy of each of those pages; without them it puts its objects side by side on pages of their own."""
    ballast: list[bytes] = []
    for size in range(_BLOCK_BYTES, _BLOCK_MAX_BYTES + 1, _BLOCK_BYTES):
        length = size - sys.getsizeof(b"")
        block = bytes(max(length, 2))
        # The first block of a pool: all pools that were in use before are full.
        while id(block) % _POOL_BYTES != _POOL_HEADER_BYTES and len(ballast) < _BALLAST_MAX:
            ballast.append(block)
            block = bytes(max(length, 2))
    return ballast


def _become_runner(channel: socket.socket, line: socket.socket | None, warning: str | None) -> bool:
    """Carry out one start. True: this process may become a spare again, its launcher was told that it is taken."""
    if sockets.peer_uid(channel) != os.getuid():
        return False
    received = _receive_start(channel)
    if received is None:
        return False
    request, descriptors = received
    comes_back = line is not None and request.get("then") is not None and not failpoints.ACTIVE
    if line is not None:
        if comes_back:
            line.send(_TAKEN)
        else:
            line.close()
    failpoints.hit("runner.request_read")
    if sockets.has_left(channel):
        return False  # the caller gave up and started another way, or died: nothing has happened yet
    channel.settimeout(None)
    set_title(request["spec"]["id"], request["spec"]["name"])
    brief = session.run(channel, request, descriptors, [] if warning is None else [warning])
    return comes_back and brief


def _receive_start(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The one start frame and exactly the descriptors it announces; None for another request, which is answered."""
    request, descriptors = receive_request(channel)
    if request is not None and request["type"] == "hello":
        channel.sendall(wire.control(_hello()))
        return None
    if request is None or request["type"] != "start":
        if request is not None:
            channel.sendall(wire.control(wire.error({}, "bad-request", "a start request was expected")))
        return None
    announced = request.get("claims", 0) + len(request["spec"]["pass_fds"])
    for fd in descriptors[announced:]:
        os.close(fd)
    return request, descriptors[:announced]


def receive_request(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The first control frame of a caller, and all descriptors that came with it; None when the caller left, was silent
    for too long or sent something else."""
    channel.settimeout(_REQUEST_S)
    decoder = wire.Decoder(wire.START_MAX_BYTES)
    descriptors: list[int] = []
    frames: list[wire.Frame] = []
    received = b"-"
    while received and not frames:
        try:
            received, more = sockets.recv_with_fds(channel, 1 << 18, sockets.MAX_FDS)
            descriptors += more
            frames = decoder.feed(received)
        except wire.BadFrame as problem:
            channel.sendall(wire.control(wire.error({}, "bad-request", str(problem))))
            break
        except OSError:
            break
    if frames and isinstance(frames[0], dict):
        return frames[0], descriptors
    if frames:
        channel.sendall(wire.control(wire.error({}, "bad-request", "the first frame must be a request")))
    for fd in descriptors:
        os.close(fd)
    return None, []


def _hello() -> dict[str, Any]:
    """The launcher and the code of this spare, for `hold doctor`. Hosts send a start only to their own code."""
    identity = {"launcher": os.getppid(), "source": os.path.dirname(os.path.abspath(__file__))}
    return {"type": "hello", "protocol": wire.PROTOCOL, "version": status.VERSION, "identity": identity}


def _leave_on_signals() -> socket.socket:
    """A socket that becomes readable when a signal asks us to leave."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.detach(), warn_on_full_buffer=False)
    for number in _LEAVE_ON:
        signal.signal(number, lambda _number, _frame: None)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps runners that ended
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _LEAVE_ON)
    return reader


def _reset_signals() -> None:
    wakeup = signal.set_wakeup_fd(-1)
    if wakeup >= 0:
        os.close(wakeup)
    for number in (*_LEAVE_ON, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _LEAVE_ON)
