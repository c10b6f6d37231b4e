"""Warm processes that become runners.

A launcher owns nothing. It keeps a few forked spares, which accept on its listening socket themselves: the kernel
hands a caller to one of them, and that spare is the runner from then on. Kill the launcher at any moment and only
speed is lost. It serves callers of its own context alone (same user, limits, namespaces, control groups, code), so
that a command started through it cannot be told from one whose runner was started directly.
"""

from __future__ import annotations

import _socket as socket
import gc
import os
import select
import sys
import time

from . import cgroup, life, points, rehearsal, sockets, telling, tree, wire
from .family import become_subreaper
from .kernel_signals import signal

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# Where the launcher listens; beside it stands the lock that it holds for life.
SOCKET_VARIABLE = "HOLDFAST_SOCKET"

_LISTENER_FD = 3
_LOCK_FD = 4
_CHANNEL_FD = 3
# The request follows the connection at once; a peer that takes longer is not one of ours.
_REQUEST_S = 10.0
# A spare is replaced when things have been quiet for so long, so that the fork does not compete with the command
# it was taken for; at once when none is left.
_QUIET_S = 0.02
# What a spare says when it was taken by a caller who waits for the end, and when that end has come.
_TAKEN, _BACK = b"t", b"b"
_TAKEN_MAX = 64
# The interpreter knows a function after some ten calls of it.
_REHEARSALS = 12
# Of our own CPU time: on a machine with very many processes each of these lives looks at all of them.
_WARM_UP_S = 0.2
_LEAVE_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Memory only grows: after so many lives a fresh fork is better.
_LIVES_MAX = 100


def main(words: list[str]) -> None:
    if words[:1] == ["self-test"]:
        from . import selftest

        selftest.main()
    elif words[:1] == ["runner"]:
        _shed_descriptors({_CHANNEL_FD})
        _leave_parent()
        _become_runner(socket.socket(fileno=_CHANNEL_FD), None, cgroup.leave_service_group())
    elif words[:1] == ["runner-at"] and len(words) == 2:
        _come_to(words[1])
    elif words[:1] == ["far"]:
        from . import far

        far.main()
    elif words[:1] == ["ask"] and len(words) == 2:
        from . import once

        once.main(words[1])
    elif words[:1] == ["deputy"]:
        from . import deputy

        _shed_descriptors({_CHANNEL_FD})
        _leave_parent()
        deputy.begin(socket.socket(fileno=_CHANNEL_FD))
    elif words[:1] == ["next-deputy"]:
        from . import deputy

        _shed_descriptors({_CHANNEL_FD})
        deputy.take_over(socket.socket(fileno=_CHANNEL_FD), then=_leave_parent)
    elif words[:1] == ["launcher"] and len(words) == 3:
        _shed_descriptors({_LISTENER_FD, _LOCK_FD})
        _leave_parent()
        listener = socket.socket(fileno=_LISTENER_FD)
        Launcher(listener, os.environ[SOCKET_VARIABLE], spares=int(words[1]), idle_s=float(words[2])).run()
    else:
        sys.exit("holdfast: the runner is started by the library, not by hand")


def _come_to(path: str) -> None:
    """Be the runner of whoever waits at `path`. Whoever started us is outside of where we are, and buries us."""
    _shed_descriptors(set())
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sockets.connect_unix(channel, path)
    try:
        os.setsid()
    except PermissionError:
        pass  # we lead a session already
    _become_runner(channel, None, None)


def lock_path(socket_path: str) -> str:
    return socket_path[: -len(".sock")] + ".lock"


def scratch_path(socket_path: str) -> str:
    """Where spares rehearse."""
    return socket_path[: -len(".sock")] + ".scratch"


def _leave_parent() -> None:
    """Go on as a process of nobody. Whoever started us reaps the other half at once, and reads from its end whether
    there was a process to be had."""
    try:
        if os.fork():
            os._exit(0)
    except OSError as problem:
        os._exit(problem.errno or 1)
    os.setsid()


def _shed_descriptors(kept: set[int]) -> None:
    """Whatever else we inherited is not ours."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in range(3):
        os.dup2(null, fd)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > 2 and fd not in kept:
            try:
                os.close(fd)
            except OSError:
                pass  # the descriptor of the listing itself
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
        # The other end of each is a spare's, or that of one that was taken and may come back; it closes when it
        # will not.
        self._spares: list[socket.socket] = []
        self._taken: list[socket.socket] = []
        self._warning: str | None = None
        self._told_to_leave: socket.socket | None = None

    def run(self) -> None:
        self._warning = cgroup.leave_service_group()
        os.ftruncate(_LOCK_FD, 0)
        os.write(_LOCK_FD, b"%d %d\n" % (os.getpid(), tree.start_time(os.getpid())))
        self._listener.setblocking(False)
        scratch = scratch_path(self._path)
        rehearsal.forget(scratch)  # of a launcher that was killed
        if _rehearses():
            try:
                os.mkdir(scratch, 0o700)
            except OSError:
                pass  # then no rehearsal succeeds, which costs only speed
        self._keep_spares()
        self._unlink_socket()
        rehearsal.forget(scratch)
        os.unlink(lock_path(self._path))  # we hold the lock: nobody else has taken the place yet

    def _keep_spares(self) -> None:
        """Until we are told to leave, idle for too long, or of no use."""
        if not self._warm_up():
            return
        told_to_leave = self._told_to_leave = _leave_on_signals()
        quiet_since = time.monotonic()
        while self._spares or self._fork_spare():
            missing = self._wanted - len(self._spares)
            wait_s = _QUIET_S if missing > 0 else self._idle_s - (time.monotonic() - quiet_since)
            if wait_s <= 0:
                return
            ready = self._ready(wait_s)
            if told_to_leave in ready:
                return
            if ready:
                quiet_since = time.monotonic()
                self._hear(ready)
            elif missing > 0 and not self._fork_spare(rehearse=_rehearses()):
                return

    def _warm_up(self) -> bool:
        """Live a few times ourselves, with a spare for whoever may be waiting already. What the interpreter learns of
        its code by that, every later spare has from birth, on pages that it shares with us. False: of no use."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _LEAVE_ON)  # they are for us, and not for the life we rehearse
        until = time.process_time() + _WARM_UP_S
        for _ in range(_REHEARSALS if _rehearses() else 0):
            if time.process_time() > until or signal.sigpending() & set(_LEAVE_ON):
                break
            self._hear(self._ready(0))
            if not self._spares and not self._fork_spare():
                return False
            rehearsal.rehearse(scratch_path(self._path))
        become_subreaper(False)
        gc.collect()
        gc.freeze()
        return True

    def _ready(self, wait_s: float) -> list[socket.socket]:
        told_to_leave = [] if self._told_to_leave is None else [self._told_to_leave]
        return select.select([*told_to_leave, *self._spares, *self._taken], [], [], wait_s)[0]

    def _hear(self, ready: list[socket.socket]) -> None:
        for line in ready:
            self._hear_one(line)

    def _hear_one(self, line: socket.socket) -> None:
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
            pass  # it was killed in the middle of its word
        line.close()

    def _unlink_socket(self) -> None:
        """Only our own: another launcher may have taken the path."""
        try:
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        except FileNotFoundError:
            pass

    def _fork_spare(self, *, rehearse: bool = False) -> bool:
        """False when there is no process or descriptor to be had: then we are of no use, and leave."""
        try:
            if points.ACTIVE:
                points.hit("launcher.fork")
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
            if self._told_to_leave is not None:
                self._told_to_leave.close()
            os.close(_LOCK_FD)
            _reset_signals()
            os.setsid()
            if rehearse:
                rehearsal.rehearse(scratch_path(self._path))
                _reset_signals()
            tree.here()
            self._serve(theirs)
        except BaseException:  # noqa: BLE001 - a forked child must never run on into its parent's code
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(0)

    def _serve(self, launcher: socket.socket) -> None:
        """Be the runner of whoever comes. After a command whose caller waited for its end, and that ended soon, we
        are as good as new and warmer: then the launcher may have us back."""
        for _ in range(_LIVES_MAX):
            channel = self._wait_for_caller(launcher)
            if channel is None or not _become_runner(channel, launcher, self._warning):
                return
            _reset_signals()
            launcher.send(_BACK)
            _, descriptors = sockets.recv_with_fds(launcher, 1, 1)
            if not descriptors:
                return
            self._listener = socket.socket(fileno=descriptors[0])
        launcher.close()

    def _wait_for_caller(self, launcher: socket.socket) -> socket.socket | None:
        """Block until the kernel hands us a caller; None when the launcher left."""
        poll = select.epoll()
        # One spare is woken for one caller; the others sleep on instead of racing it.
        poll.register(self._listener, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        poll.register(launcher, select.EPOLLIN)
        try:
            while True:
                ready = {fd for fd, _ in poll.poll()}
                if launcher.fileno() in ready:
                    self._unlink_socket()
                    return None
                try:
                    channel = sockets.accept(self._listener)
                except (BlockingIOError, ConnectionError):
                    continue
                if points.ACTIVE:
                    points.hit("launcher.taken")
                # A listener that outlives its launcher would let callers wait for nobody.
                self._listener.close()
                return channel
        finally:
            poll.close()


def _rehearses() -> bool:
    """Not under a plan of failpoints, which counts the passes of real lives alone."""
    return not points.ACTIVE and not points.off("rehearsal")


def _become_runner(channel: socket.socket, launcher: socket.socket | None, warning: str | None) -> bool:
    """Carry out one start. True when this process can do so again, and was told to its launcher as only taken."""
    if sockets.peer_uid(channel) != os.getuid():
        return False
    channel.settimeout(_REQUEST_S)
    received = _receive_start(channel)
    if received is None:
        return False
    request, descriptors = received
    comes_back = launcher is not None and request.get("then") is not None and not points.ACTIVE
    if launcher is not None:
        if comes_back:
            launcher.send(_TAKEN)
        else:
            launcher.close()
    if points.ACTIVE:
        points.hit("runner.request_read")
    if sockets.has_left(channel):
        return False  # the caller gave us up and went another way, or died: nothing has happened yet
    channel.settimeout(None)
    brief = life.live(channel, request, descriptors, [] if warning is None else [warning])
    return comes_back and brief


def _receive_start(channel: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """The one start frame and exactly the descriptors it announces; None when the caller left or talks nonsense."""
    decoder = wire.Decoder(wire.START_MAX_BYTES)
    descriptors: list[int] = []
    while True:
        try:
            received, more = sockets.recv_with_fds(channel, 1 << 18, sockets.MAX_FDS)
        except OSError:
            received, more = b"", []
        descriptors += more
        try:
            frames = decoder.feed(received)
        except wire.BadFrame as problem:
            channel.sendall(wire.control(wire.error({}, "bad-request", str(problem))))
            frames, received = [], b""
        if frames:
            request = frames[0]
            break
        if not received:
            for fd in descriptors:
                os.close(fd)
            return None
    if isinstance(request, dict) and request["type"] == "hello":
        channel.sendall(wire.control(_hello()))
        return None
    if not isinstance(request, dict) or request.get("type") != "start":
        channel.sendall(wire.control(wire.error({}, "bad-request", "a start request was expected")))
        return None
    announced = request.get("claims", 0) + len(request["spec"]["pass_fds"])
    for fd in descriptors[announced:]:
        os.close(fd)
    return request, descriptors[:announced]


def _hello() -> dict[str, Any]:
    """Whose spare this is: for whoever looks after the machine, since no start is ever sent to another code's."""
    identity = {"launcher": os.getppid(), "source": os.path.dirname(os.path.abspath(__file__))}
    return {"type": "hello", "protocol": wire.PROTOCOL, "version": telling.VERSION, "identity": identity}


def _leave_on_signals() -> socket.socket:
    """A socket that becomes readable when we are told to go."""
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
