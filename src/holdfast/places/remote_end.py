"""The end of a link in another place, and one request answered by a command that ends.

One process for one session, for as long as its deputy listens; it owns nothing. It starts the runner when it is asked
to, forwards the messages of hosts and runner, and sends what grows in the session's directory. A message of the runner
is forwarded after the growth that came before it, so that a host that hears of something finds it in the copy.
"""

from __future__ import annotations

import _socket as socket
import errno
import os
import select
import socket as socket_socket
import sys
import time

from ..core import directories, jsontext, processes, records, sockets, wire
from ..core.ending import IN_GRACE
from ..core.loop import READ, WRITE, Loop
from ..core.processes import Ladder, rungs
from ..runner import status
from . import mirror

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from ..core.processes import Rung

    Record = dict[str, Any]


# The far end of a link: between the deputy's stream and the runner in that place.


_GUESTS = "guests"
_KEPT_S = 30 * 86400
# What the deputy has not passed on yet, of each channel, and not written yet, of growth.
WINDOW_BYTES = 1 << 20
# The channel of the host that starts the session.
FIRST_CHANNEL = 1
_READ_BYTES = 64 << 10
# Output that trickles is gathered for this long.
_GATHER_S = 0.01
_GATHER_BYTES = 4 << 10
# The most new file content sent before other messages get their turn.
_AT_ONCE_BYTES = 256 << 10
# A runner that lives and does not let us in is asked again.
_AGAIN_S = 0.1
# Orphans are not our children: we have to look for their end.
_ORPHANS_LOOK_S = 0.02
_MESSAGES = ("start", "resume", "open", "close", "read", "took", "end", "forget")
_BACKLOG = 1
_DETACHED_S = 15.0
# A deputy that sends nothing is gone: a container's engine may lose the end of a link.
_FIRST_WORD_S = 10.0
_LAST_WORD_S = 60.0


def run(words: list[str]) -> None:
    """`far`: the end of a link. `ask TEXT`: one request, answered by a command that ends."""
    if words == ["far"]:
        main()
    elif words[:1] == ["ask"] and len(words) == 2:
        answer_once(words[1])
    else:
        sys.exit("holdfast: the end of a link is started by a deputy, not by hand")


def main() -> None:
    """The link is stdin and stdout. Both stay ours: nothing that is started here inherits them."""
    os.umask(0o077)
    processes.own_identity()
    try:
        home, runtime = guest_directories()
    except (directories.Unfit, OSError) as problem:
        _write(wire.control({"type": "refused", "why": str(problem)}))
        return
    _forget_old(os.path.join(home, "sessions"))
    RemoteEnd(home, runtime).run()


def guest_directories() -> tuple[str, str]:
    """Home and runtime directory of sessions that others start here."""
    home = directories.chosen_home(os.environ)
    directories.make_with_parents(home)
    directories.check(home, os.stat(home), directories.WRITABLE)
    # Apart from the sessions of this machine's own hosts: home and endpoints may be those of our deputy. And not in a
    # directory that is removed with the last login of a user.
    staying = {name: value for name, value in os.environ.items() if name != "XDG_RUNTIME_DIR"}
    home, runtime = os.path.join(home, _GUESTS), os.path.join(directories.runtime_directory(staying), _GUESTS)
    for directory in (home, os.path.join(home, "sessions"), runtime):
        directories.private(directory, directories.OPEN)
    return home, runtime


class _Channel:
    """One conversation of a host with the runner."""

    def __init__(self, far: RemoteEnd, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.ready = lambda events: far.serve(self, events)
        self.unsent = bytearray()
        # Sent to the deputy and not yet read by the host.
        self.owed = 0


class RemoteEnd:
    def __init__(self, home: str, runtime: str) -> None:
        self._home = home
        self._runtime = runtime
        self._loop = Loop()
        self._decoder = wire.Decoder(wire.START_MAX_BYTES)
        self._channels: dict[int, _Channel] = {}
        self._session: str | None = None
        self._endpoint = ""
        self._growth: mirror.Growth | None = None
        # Our own connection to the runner, which reports that there is something new.
        self._ear: socket.socket | None = None
        self._ear_decoder = wire.Decoder()
        self._has_asked = False
        self._has_started = False
        # Bytes of file content that the deputy has not written yet; and whether there is, or may be, more.
        self._untaken = 0
        self._is_behind = False
        # Growth that is being sent, and the last status of the runner, to be answered when all of it was sent.
        self._pieces: Iterator[tuple[dict[str, Any], bytes]] | None = None
        self._status: dict[str, Any] | None = None

    def run(self) -> None:
        environment = {name: value for name, value in _environment().items() if name != processes.ROLE_VARIABLE}
        here: dict[str, Any] = {
            "home": self._home,
            "cwd": os.getcwd(),
            "user": os.path.expanduser("~"),
            "pid": os.getpid(),
        }
        here.update(self._facts())
        self._send_message({"type": "here", "version": status.VERSION, "archive": sys.argv[0], **here})
        self._environment = environment
        os.set_blocking(0, False)
        self._loop.watch(0, READ, self._read_deputy)
        self._silence = self._loop.after(_FIRST_WORD_S, self._loop.leave)
        self._loop.run(lambda: None)

    def _facts(self) -> dict[str, Any]:
        """More facts for the first message to the deputy."""
        return {}

    def _handles(self, message: dict[str, Any]) -> bool:
        """Whether this end handles such messages. Those of a later release are ignored."""
        return message["type"] in _MESSAGES

    # The deputy.

    def _read_deputy(self, _events: int) -> None:
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
                if self._handles(frame):
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
            request["asked"] = {"monotonic": time.monotonic() - frame["age_s"], "timens": processes.time_namespace()}
        self._follow(spec["id"], {})
        spec["endpoint"] = self._endpoint
        try:
            sock = self._detached(spec["id"]) if frame.get("detached") else executed()
        except OSError as problem:
            text = f"no runner could be started there: {problem.strerror or problem}"
            facts = {"errno": problem.errno, "step": "launch", "path": problem.filename}
            self._send_data(FIRST_CHANNEL, wire.control(wire.error({}, "spawn-error", text, **facts)))
            self._loop.leave()
            return
        self._has_started = True
        self._add(FIRST_CHANNEL, sock)
        self._pass_on(FIRST_CHANNEL, wire.control(request))

    def _detached(self, id: str) -> socket.socket:
        """Where PID 1 does not reap orphans, the runner is started from outside and connects to us."""
        path = os.path.join(self._runtime, id + ".start")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sockets.bind_unix(listener, *os.path.split(path))
            listener.listen(_BACKLOG)
            self._send_message({"type": "come", "archive": sys.argv[0], "path": path})
            waiting = select.poll()
            waiting.register(listener, select.POLLIN)
            waiting.register(0, 0)  # the end of the link, and nothing else
            ready = dict(waiting.poll(_DETACHED_S * 1000))
            if listener.fileno() not in ready:
                raise OSError(errno.ETIMEDOUT, "it did not connect in time")
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
            self._send_message({"type": "closed", "channel": frame["channel"]})
        else:
            self._add(frame["channel"], sock)

    def _on_close(self, frame: dict[str, Any]) -> None:
        channel = self._channels.get(frame["channel"])
        if channel is not None:
            if self._has_asked:
                self._drop(channel)
            else:
                # The host that asked for the session is gone; the runner answers or ends.
                channel.sock.shutdown(socket.SHUT_WR)

    def _on_read(self, frame: dict[str, Any]) -> None:
        channel = self._channels.get(frame["channel"])
        if channel is not None:
            channel.owed -= frame["bytes"]
            self._watch(channel)

    def _on_forget(self, _frame: dict[str, Any]) -> None:
        """Everything was copied: remove it here."""
        assert self._session is not None
        directories.remove(os.path.join(self._home, "sessions", self._session))
        self._send_message({"type": "forgotten"})
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
            channel.unsent.clear()  # what it sent before it left is still to be read
        self._watch(channel)

    def _watch(self, channel: _Channel) -> None:
        events = (READ if channel.owed < WINDOW_BYTES else 0) | (WRITE if channel.unsent else 0)
        self._loop.watch(channel.sock.fileno(), events, channel.ready)

    def serve(self, channel: _Channel, events: int) -> None:
        if events & WRITE:
            self._send(channel)
        if events & READ and channel.number in self._channels:
            self._read_channel(channel)

    def _read_channel(self, channel: _Channel) -> bool:
        """Pass on what the runner sent there. False where that was all."""
        try:
            received = channel.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            received = b""
        self._send_growth()
        if received:
            channel.owed += len(received)
            self._send_data(channel.number, received)
            self._watch(channel)
        else:
            self._drop(channel)
            self._send_message({"type": "closed", "channel": channel.number})
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
        """Ask the runner to report when there is more. If it has left, its files say everything."""
        self._has_asked = True
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sockets.connect_unix(sock, self._endpoint)
        except OSError:
            sock.close()
            self._without_runner()
            return
        self._ear, self._ear_decoder = sock, wire.Decoder()
        greeting = {"type": "hello", "protocol": wire.PROTOCOL, "version": status.VERSION, "features": []}
        sock.sendall(wire.control({**greeting, "kind": "link", "author": "link"}))
        sock.setblocking(False)
        self._loop.watch(sock.fileno(), READ, self._read_runner)

    def _wait(self) -> None:
        """Wait for more than the runner's last status, all of which was sent; after the command's end, for the end of
        what it left behind."""
        status, self._status = self._status, None
        if self._ear is None or status is None:
            return
        read = status["signals"] - status.get("signals_blocked", 0)
        asked = {"type": "wait", "id": 1, "output_after": status["ends"], "signals_after": read}
        try:
            self._ear.send(wire.control({**asked, **({} if status["exit"] is None else {"extinct": True})}))
        except OSError:
            pass  # the next read shows it

    def _read_runner(self, _events: int) -> None:
        assert self._ear is not None
        try:
            received = self._ear.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if not received:
            self._loop.watch(self._ear.fileno(), 0, self._read_runner)
            self._ear.close()
            self._ear = None
            self._without_runner()
            return
        for frame in self._ear_decoder.feed(received):
            if isinstance(frame, dict) and "status" in frame:
                self._status = frame["status"]
                sent = self._send_growth()
                if not self._is_behind:
                    trickles = sent < _GATHER_BYTES and frame["type"] == "reply"
                    self._loop.after(_GATHER_S if trickles else 0.0, self._wait)

    def _without_runner(self) -> None:
        path = self._directory
        if not os.path.exists(os.path.join(path, "spec.json")):
            # A runner that we started and saw leaving does not come late.
            facts = {"evidence": "it is not on record there", "certain": self._has_started}
            self._report_over("missing", **facts)
            return
        if records.runner_lives(path):
            self._loop.after(_AGAIN_S, self._listen)  # just starting, or full
            return
        # It is gone, and its last messages are complete.
        for channel in list(self._channels.values()):
            while self._read_channel(channel):
                pass
        self._send_growth(at_once=True)
        if os.path.exists(os.path.join(path, "exit.json")):
            self._report_over("exited", evidence="exit record")
        else:
            self._report_orphans()

    def _report_orphans(self, **facts: object) -> None:
        left = self._orphans()
        if left:
            evidence = "its runner is gone, its processes live"
        elif self._began_here():
            evidence = "its runner and its processes are gone"
        else:
            evidence = "its place was restarted while it ran"
        self._report_over("stale" if left else "lost", evidence=evidence, **facts)

    def _report_over(self, state: str, **facts: object) -> None:
        """Report the end, and wait for the deputy's answer."""
        self._send_message({"type": "over", "state": state, **facts})
        self._loop.after(_LAST_WORD_S, self._loop.leave)

    def _began_here(self) -> bool:
        """Is the state record of this boot and this container? Otherwise its pids are those of other processes."""
        state, here = records.found(None, os.path.join(self._directory, "state.json")), processes.own_identity()
        return (state.get("boot"), state.get("pidns")) == (here["boot"], here["pidns"])

    def _orphans(self) -> list[processes.Process]:
        if not self._began_here():
            return []
        state = records.found(None, os.path.join(self._directory, "state.json"))
        return processes.orphans(
            os.path.basename(self._directory), state.get("command"), state.get("pgid"), state.get("runner")
        )

    def _on_end(self, frame: dict[str, Any]) -> None:
        """Climb the ladder over what still runs without its runner. There is nothing else to do meanwhile."""
        began = time.monotonic()
        found = self._orphans()
        command = (records.found(None, os.path.join(self._directory, "state.json")).get("command") or {}).get("pid")
        how = [IN_GRACE if any(process.pid == command for process in found) else None]
        ladder = Ladder(rungs(float(frame["grace"]), frame["ladder"]))
        last: list[str | None] = [None]

        def acting(rung: Rung, kills: str | None) -> None:
            last[0] = str(rung)
            if kills is not None:
                how.append(kills)

        climbing = processes.climb(ladder, self._orphans, command, acting=acting)
        while True:
            try:
                next(climbing)
            except StopIteration as done:
                survivors = done.value
                break
            time.sleep(_ORPHANS_LOOK_S)
        took_s = round(time.monotonic() - began, 3)
        stopped = {"found": processes.described(found), "survivors": survivors, "rung": last[0], "took_s": took_s}
        self._report_orphans(stopped=stopped, how=how[-1])

    @property
    def _directory(self) -> str:
        assert self._session is not None
        return os.path.join(self._home, "sessions", self._session)

    def _send_growth(self, *, at_once: bool = False) -> int:
        """Send what is new; if that is much, a part of it now and the rest as the link takes it: a stop of a flood must
        not wait until the flood was sent."""
        if self._growth is None:
            return 0
        sent, fresh = 0, False
        self._is_behind = True
        while at_once or (sent < _AT_ONCE_BYTES and self._untaken < WINDOW_BYTES):
            if self._pieces is None:
                self._pieces, fresh = self._growth.pieces(), True
            heading, raw = next(self._pieces, (None, b""))
            if heading is None:
                self._pieces = None
                if fresh:
                    self._is_behind = False
                    return sent
                continue  # that was of an earlier look
            self._send_message(heading)
            if heading["type"] == "piece":
                self._send_data(0, raw)
                self._untaken += len(raw)
            sent += len(raw)
        if self._untaken < WINDOW_BYTES:
            self._loop.after(0.0, self._send_more)
        return sent

    def _on_took(self, frame: dict[str, Any]) -> None:
        self._untaken -= frame["bytes"]
        self._send_more()

    def _send_more(self) -> None:
        if self._is_behind:
            self._send_growth()
        if not self._is_behind:
            self._wait()

    def _send_message(self, message: dict[str, Any]) -> None:
        _write(wire.control(message))

    def _send_data(self, number: int, raw: bytes) -> None:
        _write(wire.data(number, raw))


def _environment() -> dict[str, str]:
    """The environment that the place gave us, without what our interpreter added."""
    try:
        with open("/proc/self/environ", "rb") as file:
            given = [os.fsdecode(each).partition("=") for each in file.read().split(b"\0") if each]
    except OSError:
        return dict(os.environ)
    return {name: value for name, _, value in given}


def _write(payload: bytes) -> None:
    """Blocks until the deputy has read it. If the deputy is gone, this process ends."""
    view = memoryview(payload)
    try:
        while view:
            view = view[os.write(1, view) :]
    except OSError:
        os._exit(0)


def executed() -> socket.socket:
    """Start a runner in a session of its own, detached from us."""
    ours, theirs = socket.socketpair()
    argv = [sys.executable, "-I", "-S", "-X", "utf8", sys.argv[0], "runner"]
    try:
        pid = processes.start_program(argv, {processes.ROLE_VARIABLE: "runner"}, {3: theirs.fileno()}, setsid=True)
    except OSError:
        ours.close()
        raise
    finally:
        theirs.close()
    os.waitpid(pid, 0)
    return ours


def _forget_old(sessions: str) -> None:
    """Remove sessions that ended long ago and were never fetched."""
    for name in os.listdir(sessions):
        directory = os.path.join(sessions, name)
        try:
            ended = os.stat(os.path.join(directory, "exit.json")).st_mtime
        except OSError:
            continue
        if ended < time.time() - _KEPT_S and not records.runner_lives(directory):
            directories.remove(directory)


# One question about one session, asked by a command and answered before that ends: for places that run commands and
# have no stream to a runner. `ask` and a request in base64; the answer follows a mark in the output.

MARK = "holdfast-answer:"
_START_S = 20.0
_MARGIN_S = 5.0
_STREAMS = ("stdout", "stderr", "tty")


def answer_once(text: str) -> None:
    request = jsontext.read(wire.from_text(text) or b"")
    try:
        answer = {"start": _start, "look": _look, "stop": _stop}[request["do"]](request)
    except (OSError, ValueError) as problem:
        answer = {"error": str(problem)}
    packed = wire.as_text(jsontext.write(answer).encode())
    sys.stdout.write(f"\n{MARK}{packed}\n")


def _start(asked: Record) -> Record:
    home, runtime = guest_directories()
    request = asked["request"]
    spec = request["spec"]
    spec["endpoint"] = os.path.join(runtime, spec["id"] + ".sock")
    spec["cwd"] = os.path.expanduser(spec["cwd"]) if spec["cwd"] else os.getcwd()
    spec["argv0"] = None
    request["env"] = {**os.environ, **request["env"]}
    spec["env_names"] = sorted(request["env"])
    request["home"] = home
    with _Talk(executed()) as talk:
        talk.send(request)
        answer = talk.receive(_START_S)
    if answer.get("type") == "error":
        return {"error": answer.get("message") or "no runner could be started"}
    error = answer["status"].get("error")
    return {"pid": answer["status"].get("pid"), "spawn_error": error, "endpoint": spec["endpoint"], "home": home}


def _look(asked: Record) -> Record:
    """Its state, and what it printed from `since` on."""
    directory = os.path.join(asked["home"], "sessions", asked["id"])
    # The record first: what it says was printed is there then.
    exit = records.found(None, os.path.join(directory, "exit.json"))
    lives = records.runner_lives(directory)
    if not exit and not lives:
        exit = records.found(None, os.path.join(directory, "exit.json"))
    data, end = _printed(directory, asked["since"], asked["limit"])
    return {
        "exit": exit.get("exit"),
        "lost": not exit and not lives,
        "since": end - len(data),
        "data": wire.as_text(data),
    }


def _stop(asked: Record) -> Record:
    reply = _request(asked, {"type": "stop", "id": 1, "grace": asked["grace"], "by": asked["by"]}, asked["grace"] + 10)
    return {**_look(asked), "survivors": [each["pid"] for each in reply.get("survivors") or []]}


def _request(asked: Record, request: Record, bound_s: float) -> Record:
    """The answer of the runner; empty where it is gone."""
    sock = socket_socket.socket(socket_socket.AF_UNIX)
    try:
        sock.connect(asked["endpoint"])
    except OSError:
        sock.close()
        return {}
    with _Talk(sock) as talk:
        greeting = {"type": "hello", "protocol": wire.PROTOCOL, "version": status.VERSION, "features": []}
        talk.send({**greeting, "kind": "link", "author": "ask"})
        talk.send(request)
        until = time.monotonic() + bound_s + _MARGIN_S
        while time.monotonic() < until:
            answer = talk.receive(until - time.monotonic())
            if not answer or (answer.get("type") in ("reply", "error") and answer.get("id") == request["id"]):
                return answer
    return {}


def _printed(directory: str, since: int, limit: int) -> tuple[bytes, int]:
    """At most `limit` bytes of the one stream from `since` on, and where they end."""
    found = b""
    for name in sorted(os.listdir(directory)):
        stream, _, first = name.partition(".")
        if stream in _STREAMS and first.isdigit() and len(found) < limit:
            begin = int(first)
            try:
                fd = records.open_file(os.path.join(directory, name))
            except ValueError:
                continue
            with open(fd, "rb") as file:
                file.seek(max(0, since - begin))
                part = file.read(limit - len(found))
            if part and begin + max(0, since - begin) > since + len(found):
                since = begin - len(found)  # what was before is not kept any more
            found += part
    return found, since + len(found)


class _Talk:
    def __init__(self, sock: Any) -> None:
        self._sock = sock
        self._decoder = wire.Decoder()
        self._frames: list[Any] = []

    def __enter__(self) -> _Talk:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def send(self, message: Record) -> None:
        self._sock.sendall(wire.control(message))

    def receive(self, bound_s: float) -> Record:
        """The next message; empty at the end, or after the timeout."""
        until = time.monotonic() + bound_s
        while True:
            while self._frames:
                frame = self._frames.pop(0)
                if isinstance(frame, dict):
                    return frame
            left = until - time.monotonic()
            if left <= 0:
                return {}
            self._sock.settimeout(left)
            try:
                received = self._sock.recv(1 << 16)
            except OSError:
                return {}
            if not received:
                return {}
            self._frames += self._decoder.feed(received)
