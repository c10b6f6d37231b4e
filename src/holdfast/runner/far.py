"""The end of a link that stands in another place: between the deputy's stream and the runner there.

One process for one session, for as long as its deputy listens; it owns nothing. It starts the runner when it is asked
to, passes on what hosts and runner say to each other, and tells what grows in the session's directory. Whatever the
runner says is passed on after the growth that came before it, so that who hears of something finds it in the copy.
"""

from __future__ import annotations

import _socket as socket
import errno
import os
import select
import sys
import time

from . import mirror, records, sockets, telling, tree, whereabouts, wire
from .causes import AFTER_GRACE, AT_ONCE, IN_GRACE
from .kernel_signals import signal
from .ladder import TREE, Ladder, rungs
from .loop import READ, WRITE, Loop

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

_GUESTS = "guests"
_KEPT_S = 30 * 86400
# What the deputy has not passed on yet, of each channel, and not written yet, of growth.
WINDOW_BYTES = 1 << 20
# The host whose call starts the session speaks on this one.
FIRST_CHANNEL = 1
_READ_BYTES = 64 << 10
# Output that trickles is gathered for this long.
_GATHER_S = 0.01
_GATHER_BYTES = 4 << 10
# Of growth, before anything else has its turn.
_AT_ONCE_BYTES = 256 << 10
# A runner that lives and does not let us in is asked again.
_AGAIN_S = 0.1
# Of processes that are nobody's children nobody tells us.
_ORPHANS_LOOK_S = 0.02
_MESSAGES = ("start", "resume", "open", "close", "read", "took", "end", "forget")
_BACKLOG = 1
_DETACHED_S = 15.0
# A deputy that has nothing to say to us is gone, and nobody has told us: a container's engine may lose that.
_FIRST_WORD_S = 10.0
_LAST_WORD_S = 60.0


def main() -> None:
    """The link is stdin and stdout. Both stay ours: nothing that is started here inherits them."""
    os.umask(0o077)
    tree.here()
    try:
        home, runtime = guest_directories()
    except (whereabouts.Unfit, OSError) as problem:
        _write(wire.control({"type": "refused", "why": str(problem)}))
        return
    _forget_old(os.path.join(home, "sessions"))
    Far(home, runtime).run()


def guest_directories() -> tuple[str, str]:
    """Home and runtime directory of sessions that others start here."""
    home = whereabouts.chosen_home(os.environ)
    whereabouts.make_with_parents(home)
    whereabouts.check(home, os.stat(home), whereabouts.WRITABLE)
    # Apart from the sessions of whoever lives here: home and endpoints may be the very ones of our deputy. And not in a
    # directory that is taken away with the last login of a user.
    staying = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
    home, runtime = os.path.join(home, _GUESTS), os.path.join(whereabouts.runtime_directory(staying), _GUESTS)
    for directory in (home, os.path.join(home, "sessions"), runtime):
        whereabouts.private(directory, whereabouts.OPEN)
    return home, runtime


class _Channel:
    """One conversation of a host with the runner."""

    def __init__(self, far: Far, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.ready = lambda events: far.serve(self, events)
        self.unsent = bytearray()
        # Told to the deputy and not yet read by the host.
        self.owed = 0


class Far:
    def __init__(self, home: str, runtime: str) -> None:
        self._home = home
        self._runtime = runtime
        self._loop = Loop()
        self._decoder = wire.Decoder(wire.START_MAX_BYTES)
        self._channels: dict[int, _Channel] = {}
        self._session: str | None = None
        self._endpoint = ""
        self._growth: mirror.Growth | None = None
        # Our own conversation with the runner: it tells us that there is something new.
        self._ear: socket.socket | None = None
        self._ear_decoder = wire.Decoder()
        self._has_asked = False
        self._has_started = False
        # Of growth, what the deputy has not written yet; and is there more, or may be?
        self._untaken = 0
        self._is_behind = False
        # Growth that is being told, and what the runner said last, to be answered when all of that was told.
        self._pieces: Iterator[tuple[dict[str, Any], bytes]] | None = None
        self._status: dict[str, Any] | None = None

    def run(self) -> None:
        environment = {name: value for name, value in _environment().items() if name != tree.ROLE_VARIABLE}
        here = {"home": self._home, "cwd": os.getcwd(), "user": os.path.expanduser("~"), "pid": os.getpid()}
        self._tell({"type": "here", "version": telling.VERSION, "archive": sys.argv[0], **here})
        self._environment = environment
        os.set_blocking(0, False)
        self._loop.watch(0, READ, self._hear_deputy)
        self._silence = self._loop.after(_FIRST_WORD_S, self._loop.leave)
        self._loop.run(lambda: None)

    # The deputy.

    def _hear_deputy(self, _events: int) -> None:
        try:
            received = os.read(0, _READ_BYTES)
        except BlockingIOError:
            return
        if not received:
            self._loop.leave()
            return
        self._silence.cancel()
        for frame in self._decoder.feed(received):
            if isinstance(frame, dict):
                # What a later release may ask and we do not know, we do not do.
                if frame["type"] in _MESSAGES:
                    getattr(self, "_on_" + frame["type"])(frame)
            else:
                self._pass_on(*frame)

    def _on_start(self, frame: dict[str, Any]) -> None:
        request = frame["request"]
        spec = request["spec"]
        base = {} if spec["clean_env"] else self._environment
        removed = set(spec["env_set"]) - set(request["env"])
        request["env"] = {**{name: value for name, value in base.items() if name not in removed}, **request["env"]}
        spec["env_names"] = sorted(request["env"])
        request["home"] = self._home
        if frame.get("age_s") is not None:
            request["asked"] = {"monotonic": time.monotonic() - frame["age_s"], "timens": tree.time_namespace()}
        self._follow(spec["id"], {})
        spec["endpoint"] = self._endpoint
        try:
            sock = self._detached(spec["id"]) if frame.get("detached") else executed()
        except OSError as problem:
            text = f"no runner could be started there: {problem.strerror or problem}"
            facts = {"errno": problem.errno, "step": "launch", "path": problem.filename}
            self._say(FIRST_CHANNEL, wire.control(wire.error({}, "spawn-error", text, **facts)))
            self._loop.leave()
            return
        self._has_started = True
        self._add(FIRST_CHANNEL, sock)
        self._pass_on(FIRST_CHANNEL, wire.control(request))

    def _detached(self, id: str) -> socket.socket:
        """Where the parent of our orphans would not reap them, a runner comes to us: its parent is outside."""
        path = os.path.join(self._runtime, id + ".start")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sockets.bind_unix(listener, *os.path.split(path))
            listener.listen(_BACKLOG)
            self._tell({"type": "come", "archive": sys.argv[0], "path": path})
            waiting = select.poll()
            waiting.register(listener, select.POLLIN)
            waiting.register(0, 0)  # the end of the link, and nothing else
            ready = dict(waiting.poll(_DETACHED_S * 1000))
            if listener.fileno() not in ready:
                raise OSError(errno.ETIMEDOUT, "it did not come in time")
            return sockets.accept(listener)
        finally:
            listener.close()
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass

    def _on_resume(self, frame: dict[str, Any]) -> None:
        self._follow(frame["id"], frame["have"])
        self._listen()

    def _on_open(self, frame: dict[str, Any]) -> None:
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sockets.connect_unix(sock, self._endpoint)
        except OSError:
            self._tell({"type": "closed", "channel": frame["channel"]})
        else:
            self._add(frame["channel"], sock)

    def _on_close(self, frame: dict[str, Any]) -> None:
        channel = self._channels.get(frame["channel"])
        if channel is not None:
            if self._has_asked:
                self._drop(channel)
            else:
                # Who asked for the session is gone; how it stands is told by the runner's answer, or its end.
                channel.sock.shutdown(socket.SHUT_WR)

    def _on_read(self, frame: dict[str, Any]) -> None:
        channel = self._channels.get(frame["channel"])
        if channel is not None:
            channel.owed -= frame["bytes"]
            self._watch(channel)

    def _on_forget(self, _frame: dict[str, Any]) -> None:
        """All of it has come home."""
        assert self._session is not None
        _remove(os.path.join(self._home, "sessions", self._session))
        self._tell({"type": "forgotten"})
        self._loop.leave()

    # Hosts and the runner.

    def _add(self, number: int, sock: socket.socket) -> None:
        sock.setblocking(False)
        channel = self._channels[number] = _Channel(self, number, sock)
        self._watch(channel)

    def _pass_on(self, number: int, raw: bytes) -> None:
        channel = self._channels.get(number)
        if channel is not None:
            channel.unsent += raw
            self._send(channel)

    def _send(self, channel: _Channel) -> None:
        try:
            while channel.unsent:
                del channel.unsent[: channel.sock.send(channel.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            channel.unsent.clear()  # what it said before it left is still to be read
        self._watch(channel)

    def _watch(self, channel: _Channel) -> None:
        events = (READ if channel.owed < WINDOW_BYTES else 0) | (WRITE if channel.unsent else 0)
        self._loop.watch(channel.sock.fileno(), events, channel.ready)

    def serve(self, channel: _Channel, events: int) -> None:
        if events & WRITE:
            self._send(channel)
        if events & READ and channel.number in self._channels:
            self._hear(channel)

    def _hear(self, channel: _Channel) -> bool:
        """Pass on what the runner says there; False where that was all."""
        try:
            received = channel.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        self._tell_growth()
        if received:
            channel.owed += len(received)
            self._say(channel.number, received)
            self._watch(channel)
        else:
            self._drop(channel)
            self._tell({"type": "closed", "channel": channel.number})
        if not self._has_asked:
            self._listen()
        return bool(received)

    def _drop(self, channel: _Channel) -> None:
        del self._channels[channel.number]
        self._loop.watch(channel.sock.fileno(), 0, channel.ready)
        channel.sock.close()

    # Growth.

    def _follow(self, id: str, have: dict[str, list[int]]) -> None:
        self._session = id
        self._endpoint = os.path.join(self._runtime, id + ".sock")
        self._growth = mirror.Growth(os.path.join(self._home, "sessions", id), have)

    def _listen(self) -> None:
        """Ask the runner to tell us when there is more. It left: then all there is to know stands in its files."""
        self._has_asked = True
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sockets.connect_unix(sock, self._endpoint)
        except OSError:
            sock.close()
            self._without_runner()
            return
        self._ear, self._ear_decoder = sock, wire.Decoder()
        greeting = {"type": "hello", "protocol": wire.PROTOCOL, "version": telling.VERSION, "features": []}
        sock.sendall(wire.control({**greeting, "kind": "link", "author": "link"}))
        sock.setblocking(False)
        self._loop.watch(sock.fileno(), READ, self._hear_runner)

    def _wait(self) -> None:
        """For what comes after what the runner said last, all of which was told; after the command's end, for what it
        left behind."""
        status, self._status = self._status, None
        if self._ear is None or status is None:
            return
        read = status["signals"] - status.get("signals_blocked", 0)
        asked = {"type": "wait", "id": 1, "output_after": status["ends"], "signals_after": read}
        try:
            self._ear.send(wire.control({**asked, **({} if status["exit"] is None else {"extinct": True})}))
        except OSError:
            pass  # we hear of it when we read

    def _hear_runner(self, _events: int) -> None:
        assert self._ear is not None
        try:
            received = self._ear.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._loop.watch(self._ear.fileno(), 0, self._hear_runner)
            self._ear.close()
            self._ear = None
            self._without_runner()
            return
        for frame in self._ear_decoder.feed(received):
            if isinstance(frame, dict) and "status" in frame:
                self._status = frame["status"]
                told = self._tell_growth()
                if not self._is_behind:
                    trickles = told < _GATHER_BYTES and frame["type"] == "reply"
                    self._loop.after(_GATHER_S if trickles else 0.0, self._wait)

    def _without_runner(self) -> None:
        path = self._directory
        if not os.path.exists(os.path.join(path, "spec.json")):
            # Whom we started ourselves, and saw leaving, does not come late.
            facts = {"evidence": "it is not on record there", "certain": self._has_started}
            self._say_over("missing", **facts)
            return
        if not records.lock_is_free(os.path.join(path, "spec.json")):
            self._loop.after(_AGAIN_S, self._listen)  # just starting, or full
            return
        # It is gone, and so is whoever could add to what it said last.
        for channel in list(self._channels.values()):
            while self._hear(channel):
                pass
        self._tell_growth(at_once=True)
        if os.path.exists(os.path.join(path, "exit.json")):
            self._say_over("exited", evidence="exit record")
        else:
            self._tell_orphans()

    def _tell_orphans(self, **facts: object) -> None:
        left = self._orphans()
        if left:
            evidence = "its runner is gone, its processes live"
        elif self._began_here():
            evidence = "its runner and its processes are gone"
        else:
            evidence = "its place was started anew while it ran"
        self._say_over("stale" if left else "lost", evidence=evidence, **facts)

    def _say_over(self, state: str, **facts: object) -> None:
        """What comes of that, our deputy says."""
        self._tell({"type": "over", "state": state, **facts})
        self._loop.after(_LAST_WORD_S, self._loop.leave)

    def _began_here(self) -> bool:
        """Pids of another boot, or of a container that was stopped and started, mean others now."""
        state, here = records.found(None, os.path.join(self._directory, "state.json")), tree.here()
        return (state.get("boot"), state.get("pidns")) == (here["boot"], here["pidns"])

    def _orphans(self) -> list[tree.Process]:
        if not self._began_here():
            return []
        state = records.found(None, os.path.join(self._directory, "state.json"))
        return tree.orphans(
            os.path.basename(self._directory), state.get("command"), state.get("pgid"), state.get("runner")
        )

    def _on_end(self, frame: dict[str, Any]) -> None:
        """Climb the ladder over what lives on without its runner. There is nothing else for us to do meanwhile."""
        began = time.monotonic()
        found = self._orphans()
        command = (records.found(None, os.path.join(self._directory, "state.json")).get("command") or {}).get("pid")
        climb = Ladder(rungs(float(frame["grace"]), frame["ladder"]))
        rung = None
        how = IN_GRACE if any(process.pid == command for process in found) else None
        while True:
            living = self._orphans()
            command_gone = not any(process.pid == command for process in living)
            step = climb.step(time.monotonic(), command_gone=command_gone, tree_gone=not living)
            if climb.over:
                survivors = tree.described(living)
                break
            if step is None:
                time.sleep(_ORPHANS_LOOK_S)
                continue
            if step.signal == "KILL" and not command_gone:
                how = AT_ONCE if rung is None else AFTER_GRACE
            rung = str(step)
            if step.signal == "KILL" and step.target == TREE:
                survivors = tree.Sweep(self._orphans, step.wait_s).run()
                break
            for process in tree.members(living, command, step.target):
                tree.send(process, getattr(signal, "SIG" + step.signal))
                if step.signal != "KILL":
                    tree.send(process, signal.SIGCONT)
        took_s = round(time.monotonic() - began, 3)
        stopped = {"found": tree.described(found), "survivors": survivors, "rung": rung, "took_s": took_s}
        self._tell_orphans(stopped=stopped, how=how)

    @property
    def _directory(self) -> str:
        assert self._session is not None
        return os.path.join(self._home, "sessions", self._session)

    def _tell_growth(self, *, at_once: bool = False) -> int:
        """All there is; where that is much, a part of it now, and the rest turn by turn, as the link takes it: who
        wants to stop a flood must not have to wait until it was told."""
        if self._growth is None:
            return 0
        told, fresh = 0, False
        self._is_behind = True
        while at_once or (told < _AT_ONCE_BYTES and self._untaken < WINDOW_BYTES):
            if self._pieces is None:
                self._pieces, fresh = self._growth.pieces(), True
            heading, raw = next(self._pieces, (None, b""))
            if heading is None:
                self._pieces = None
                if fresh:
                    self._is_behind = False
                    return told
                continue  # that was of an earlier look
            self._tell(heading)
            if heading["type"] == "piece":
                self._say(0, raw)
                self._untaken += len(raw)
            told += len(raw)
        if self._untaken < WINDOW_BYTES:
            self._loop.after(0.0, self._tell_more)
        return told

    def _on_took(self, frame: dict[str, Any]) -> None:
        self._untaken -= frame["bytes"]
        self._tell_more()

    def _tell_more(self) -> None:
        if self._is_behind:
            self._tell_growth()
        if not self._is_behind:
            self._wait()

    def _tell(self, message: dict[str, Any]) -> None:
        _write(wire.control(message))

    def _say(self, number: int, raw: bytes) -> None:
        _write(wire.data(number, raw))


def _environment() -> dict[str, str]:
    """As the place gave it to us, without what our interpreter has added for itself."""
    try:
        with open("/proc/self/environ", "rb") as file:
            given = [os.fsdecode(each).partition("=") for each in file.read().split(b"\0") if each]
    except OSError:
        return dict(os.environ)
    return {name: value for name, _, value in given}


def _write(payload: bytes) -> None:
    """The deputy always reads, so this ends; without it we end too."""
    view = memoryview(payload)
    try:
        while view:
            view = view[os.write(1, view) :]
    except OSError:
        os._exit(0)


def executed() -> socket.socket:
    """A runner of its own session, nobody's child."""
    ours, theirs = socket.socketpair()
    actions: list[tuple[Any, ...]] = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    actions.append((os.POSIX_SPAWN_DUP2, theirs.fileno(), 3))
    argv = [sys.executable, "-I", "-S", "-X", "utf8", sys.argv[0], "runner"]
    try:
        pid = os.posix_spawn(argv[0], argv, {tree.ROLE_VARIABLE: "runner"}, file_actions=actions, setsid=True)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    os.waitpid(pid, 0)
    return ours


def _forget_old(sessions: str) -> None:
    """What ended long ago and was never asked for: whoever would have is gone, or could not reach us."""
    for name in _names(sessions):
        directory = os.path.join(sessions, name)
        try:
            ended = os.stat(os.path.join(directory, "exit.json")).st_mtime
        except OSError:
            continue
        if ended < time.time() - _KEPT_S and records.lock_is_free(os.path.join(directory, "spec.json")):
            _remove(directory)


def _remove(directory: str) -> None:
    for name in _names(directory):
        path = os.path.join(directory, name)
        try:
            if os.path.isdir(path) and not os.path.islink(path):
                _remove(path)
            else:
                os.unlink(path)
        except OSError:
            continue
    try:
        os.rmdir(directory)
    except OSError:
        pass


def _names(directory: str) -> Iterator[str]:
    try:
        yield from os.listdir(directory)
    except OSError:
        return
