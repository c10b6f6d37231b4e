"""The deputy of a runner that lives in another place: what its session has here.

It holds the lock and the endpoint that a runner would hold, keeps a copy of the session's directory, and passes on what
hosts and runner say. It owns nothing. Kill it, and the next host that looks starts another, which goes on where the
copy ends; cut its link, and it says so to whoever asks, and tries again.
"""

from __future__ import annotations

import _socket as socket
import fcntl
import os
import time

from . import birth, clock, far, jsontext, mirror, points, records, sockets, tree, wake, wire
from .diary import Diary
from .endpoint import CLIENTS_MAX
from .kernel_signals import signal
from .link import Helper, Link
from .loop import READ, WRITE, Loop
from .people import People
from .signalfile import FILE, VARIANTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    from .loop import Timer

    Message = dict[str, Any]

_READ_BYTES = 64 << 10
_BACKLOG = 128
_REQUEST_S = 10.0
# A link that broke is tried again first soon, then ever more seldom; at once where somebody asks, but for this.
_RETRY_S = 1.0
_RETRY_MAX_S = 60.0
# Whoever looks whether we live holds the lock for a moment.
_LOCK_S = 0.5
_LOOK_S = 0.01
# How often it is tried to have forgotten there what has come home.
_FORGET_TRIES = 5
# After this a runner that was asked for and is not on record there has never come.
_BEGIN_S = 30.0
# What a shell, or a container's runtime, ends with when there is no such program.
_NO_PROGRAM = (126, 127)
_NO_PYTHON = "holdfast: a runner needs Python"
_GONE = ("no such container", "no instance found")


def begin(channel: socket.socket) -> None:
    """Of a session that is asked for on `channel`."""
    request, passed = _receive(channel)
    if request is not None:
        deputy = Deputy(request)
        deputy.begin(channel, passed)
        deputy.live()


def take_over(channel: socket.socket, then: Callable[[], None]) -> None:
    """Of a session whose deputy is gone. `then` is called when we can be reached: somebody waits for that, or, where
    we are sent to end what has no runner any more, for our own end."""
    request, _ = _receive(channel)
    channel.close()
    if request is not None:
        deputy = Deputy(request)
        if deputy.take_over():
            if request.get("end") is None:
                then()
            deputy.live()


def _receive(channel: socket.socket) -> tuple[Message | None, list[int]]:
    channel.settimeout(_REQUEST_S)
    decoder = wire.Decoder(wire.START_MAX_BYTES)
    passed: list[int] = []
    while True:
        received, more = sockets.recv_with_fds(channel, _READ_BYTES, sockets.MAX_FDS)
        passed += more
        for frame in decoder.feed(received):
            return (frame if isinstance(frame, dict) else None), passed
        if not received:
            return None, passed


class _Client:
    """A host that knocked at our door, and its channel."""

    def __init__(self, deputy: Deputy, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.ready = lambda events: deputy.serve(self, events)
        self.unsent = bytearray()
        self.opened = False
        self.answered = False
        self.leaving = False


class Deputy:
    def __init__(self, request: Message) -> None:
        self._request: Message = request
        self._home: str = request["home"]
        self._spec: Message = request["spec"]
        self._reach: Message = request.pop("reach")
        self._endpoint: str = self._spec["endpoint"]
        # How to end what lives on without its runner, where somebody waits for that.
        self._end: Message | None = request.get("end")
        self._code = wire.from_text(self._reach["code"]) or b""
        self._loop: Loop
        self._directory = -1
        self._lock = -1
        self._listener: socket.socket | None = None
        self._copy: mirror.Copy | None = None
        self._diary: Diary | None = None
        self._people: People | None = None
        self._heading: Message | None = None
        self._link: Link | None = None
        # Did the far end speak?
        self._linked = False
        self._timer: Timer | None = None
        self._retry_s = _RETRY_S
        self._failed_at = -_RETRY_S
        self._broken = ""
        self._clients: dict[int, _Client] = {}
        self._number = far.FIRST_CHANNEL
        self._passed: list[int] = []
        # Is there anything that the far end does not know of yet?
        self._to_begin = False
        self._tries = 0
        # Is all that there is to know of it on record here?
        self._is_over = False
        # Has a runner spoken?
        self._was_answered = False
        self._helper: Helper | None = None
        self._partial = b""
        self._ended: Message | None = None

    # Before anybody waits for us no more.

    def begin(self, channel: socket.socket, passed: list[int]) -> None:
        self._to_begin, self._passed = True, passed
        channel.setblocking(False)
        self._clients[self._number] = _Client(self, self._number, channel)

    def take_over(self) -> bool:
        """Stand in for one that is gone. False where another was quicker, once that one can be reached."""
        path = os.path.join(self._home, "sessions", self._spec["id"])
        lock = _take_lock(os.path.join(path, "spec.json"))
        if lock is None:
            until = time.monotonic() + _LOCK_S
            while not os.path.exists(self._spec["endpoint"]) and time.monotonic() < until:
                time.sleep(_LOOK_S)
            return False
        self._settle(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), lock)
        return True

    def _settle(self, directory: int, lock: int) -> None:
        """What a session has here: its copy, and a door."""
        self._directory, self._lock = directory, lock
        self._diary = Diary(directory, (), "deputy.log")
        # A reboot takes directories of endpoints away; whoever sent us has one.
        if not os.path.isdir(os.path.dirname(self._endpoint)):
            self._endpoint = self._request.get("endpoint") or self._endpoint
        endpoint = self._endpoint
        here = tree.here()
        # Hosts here knock at our door, and hear of our death where they would hear of a runner's.
        deputy = {"boot": here["boot"], "pidns": here["pidns"], **here["runner"]}
        self._copy = mirror.Copy(directory, {"endpoint": endpoint, "deputy": deputy})
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _unlink(endpoint)  # we hold the lock: nobody listens there
        sockets.bind_unix(listener, *os.path.split(endpoint))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._listener = listener
        if self._spec.get("people") is not None:
            self._people = People(self._home, self._spec["people"], self._reach["env"], self._diary.say)

    # Living.

    def live(self) -> None:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._loop = Loop()
        if self._listener is not None:
            self._loop.watch(self._listener.fileno(), READ, self._accept)
        if self._end is not None:
            self._loop.after(self._reach["timeout"] + self._end["within"], self._loop.leave)
        self._open_link()
        self._loop.run(self._turn)
        self._leave()

    def _turn(self) -> None:
        """Nobody is listened to while there is no link, or a full one."""
        listening = self._linked and self._link is not None and not self._link.is_full
        for client in self._clients.values():
            events = (READ if listening and not client.leaving else 0) | (WRITE if client.unsent else 0)
            self._loop.watch(client.sock.fileno(), events, client.ready)

    def _leave(self) -> None:
        if self._link is not None:
            self._link.close()
        for client in list(self._clients.values()):
            client.sock.setblocking(True)
            client.sock.settimeout(1.0)
            try:
                client.sock.sendall(client.unsent)
            except OSError:
                pass
            client.sock.close()
        if self._listener is not None:
            _unlink(self._endpoint)
            self._listener.close()
            # At once: who finds nobody at our door and the lock held takes us for silent.
            os.close(self._lock)

    # The link.

    def _open_link(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._linked, self._heading = False, None
        argv, environment = self._reach["argv"], self._reach["env"]
        try:
            link = Link(self._loop, argv, environment, self._code, heard=self._hear, lost=self._link_lost)
        except OSError as problem:
            self._without_link("place-unreachable", f"{argv[0]}: {problem.strerror}")
            return
        self._link = link
        self._timer = self._loop.after(self._reach["timeout"], self._link_late)

    def _link_late(self) -> None:
        if not self._linked:
            self._link_lost(f"no answer within {self._reach['timeout']:g} s")

    def _link_lost(self, why: str | None = None) -> None:
        if self._link is None:
            return
        link, self._link = self._link, None
        code, said = link.close()
        last = (said.splitlines() or ["the link broke off"])[-1]
        if not self._linked and (code in _NO_PROGRAM or _NO_PYTHON in said):
            self._without_link("place-no-python", last)
        elif not self._linked and self._is_gone(said):
            self._without_link("place-gone", last)
        else:
            self._without_link("place-unreachable", why or last)

    def _is_gone(self, said: str) -> bool:
        """A machine may come back, whatever is said on the way to it; a container that is not there does not."""
        return not self._spec["place"].startswith("ssh:") and any(gone in said.lower() for gone in _GONE)

    def _without_link(self, code: str, why: str) -> None:
        self._linked = False
        self._failed_at = time.monotonic()
        if self._timer is not None:
            self._timer.cancel()
        place = self._spec["place"]
        text = {
            "place-unreachable": f"{place} cannot be reached: {why}",
            "place-gone": f"{place} is gone: {why}",
            "place-no-python": f"{place} has no Python that can run a command there: {why}",
        }[code]
        if self._to_begin:
            # Nothing was written and nothing started anywhere.
            self._refuse(wire.error({}, code, text, place=place, why=why))
            return
        self._broken = text
        for client in list(self._clients.values()):
            self._turn_away(client)
        if self._diary is not None:
            self._diary.say(text)
        if code == "place-gone":
            self._over("lost", text)
            return
        self._tries += self._is_over
        if self._tries >= _FORGET_TRIES or self._end is not None:
            self._loop.leave()
        else:
            self._timer = self._loop.after(self._retry_s, self._open_link)
            self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)

    def _turn_away(self, client: _Client) -> None:
        if not client.answered:
            facts = {"id": self._spec["id"], "pid": None, "waited_s": 0.0}
            client.unsent += wire.control(wire.error({}, "unreachable", self._broken, **facts))
        self._close_after_sending(client)

    def _refuse(self, frame: Message) -> None:
        for client in self._clients.values():
            client.unsent += wire.control(frame)
        self._loop.leave()

    def _hear(self, frames: list[wire.Frame]) -> None:
        for frame in frames:
            try:
                if isinstance(frame, dict):
                    getattr(self, "_on_" + frame["type"], self._on_other)(frame)
                elif frame[0]:
                    self._on_words(*frame)
                else:
                    self._on_piece_data(frame[1])
            except (AssertionError, AttributeError, LookupError, TypeError, ValueError, OSError) as problem:
                # Nonsense, or a disk that takes no more: what is missing here is not lost there.
                self._link_lost(f"{type(problem).__name__}: {problem}")
                return
            if self._link is None:
                return

    def _on_other(self, frame: Message) -> None:
        """Of a later release: what we do not know, we do not do."""

    def _on_refused(self, frame: Message) -> None:
        self._link_lost(str(frame["why"]))

    def _on_here(self, frame: Message) -> None:
        """The far end is there."""
        assert self._link is not None
        self._linked = True
        if self._to_begin:
            self._start(frame)
            return
        self._resume()
        for client in self._clients.values():
            self._open_channel(client)

    def _resume(self) -> None:
        if self._link is not None and self._copy is not None:
            self._link.tell({"type": "resume", "id": self._spec["id"], "have": self._copy.have()})

    def _start(self, here: Message) -> None:
        """Persist, then spawn: also here."""
        assert self._link is not None
        spec, request = self._spec, self._request
        if sockets.has_left(self._clients[far.FIRST_CHANNEL].sock):
            self._loop.leave()  # who asked gave up while the link came about: nothing has happened yet
            return
        spec["cwd_given"], spec["cwd"] = spec["cwd"], _directory_there(spec["cwd"], here)
        try:
            directory, lock = birth.persist(self._home, spec)
        except birth.Refused as refusal:
            self._refuse(refusal.frame)
            return
        for fd in self._passed:
            os.close(fd)  # the spec is on disk: whoever waits for the name or key may look now
        try:
            self._settle(directory, lock)
        except OSError as problem:
            birth.forget(directory)
            text = f"endpoint {spec['endpoint']}: {problem.strerror}; no process was started"
            facts = {"errno": problem.errno, "step": "endpoint", "path": spec["endpoint"]}
            self._refuse(wire.error({}, "spawn-error", text, **facts))
            return
        assert self._listener is not None
        self._loop.watch(self._listener.fileno(), READ, self._accept)
        if points.ACTIVE:
            points.hit("deputy.begun")
        self._to_begin = False
        self._clients[far.FIRST_CHANNEL].opened = True
        # Whom people are told by, and who waits for a name, is decided here; and clocks are each machine's own.
        there = {part: value for part, value in request.items() if part not in ("asked", "host_env")}
        there.update(spec={**spec, "people": None, "way": None}, claims=0)
        asked = request.get("asked")
        age_s = None if asked is None else time.monotonic() - asked["monotonic"]
        frame = {"type": "start", "request": there, "age_s": age_s, "detached": bool(self._reach.get("detached"))}
        self._link.tell(frame)
        self._request = {}

    def _on_come(self, frame: Message) -> None:
        """There, who loses its parent finds none that would bury it: a runner has to be started from outside."""
        if self._helper is not None:
            raise ValueError("a second runner is asked for")
        argv = [*self._reach["detached"], str(frame["archive"]), "runner-at", str(frame["path"])]
        self._helper = Helper(self._loop, argv, self._reach["env"], failed=self._never_came)

    def _never_came(self, why: str) -> None:
        if not self._was_answered:
            birth.forget(self._directory)
            place = self._spec["place"]
            text = f"{place} cannot be reached: {why}"
            self._refuse(wire.error({}, "place-unreachable", text, place=place, why=why))

    def _on_over(self, frame: Message) -> None:
        for client in list(self._clients.values()):
            self._close_after_sending(client)
        if frame["state"] == "exited":
            self._have_forgotten()
        elif frame["state"] == "stale" and self._end is not None and self._link is not None:
            self._link.tell({"type": "end", "grace": self._end["grace"], "ladder": self._end["ladder"]})
            self._end = None
        else:
            certain = frame.get("certain") is True
            self._over(frame["state"], str(frame["evidence"]), frame.get("stopped"), certain=certain)

    def _have_forgotten(self) -> None:
        """All that there was over there has come home."""
        if points.ACTIVE:
            points.hit("deputy.over")
        self._is_over = True
        if self._link is not None:
            self._link.tell({"type": "forget"})
        else:
            self._loop.leave()

    def _on_forgotten(self, _frame: Message) -> None:
        self._loop.leave()

    def _over(self, state: str, evidence: str, stopped: object = None, *, certain: bool = False) -> None:
        """No runner will say more about it. Where nothing was ever recorded, nothing ever was."""
        began = records.found(self._directory, "state.json") or records.found(self._directory, "exit.json")
        if state == "missing" and not began:
            # A link may break while a runner is on its way. One that refused has said so.
            young = time.time() - os.fstat(self._lock).st_mtime < _BEGIN_S
            if young and not self._was_answered and not certain:
                self._timer = self._loop.after(_RETRY_S, self._resume)
                return
            birth.forget(self._directory)
        else:
            assert self._copy is not None
            state = "stale" if state == "stale" else "lost"
            record = {"state": state, "evidence": evidence, "at": clock.now_text(), "sizes": self._copy.sizes()}
            records.write(self._directory, records.AWAY, {**record, "stopped": stopped}, durable=True)
            self._wake(self._now("owner"), 0)
            if state == "lost":
                self._have_forgotten()
                return
        self._loop.leave()

    # The copy.

    def _on_piece(self, frame: Message) -> None:
        self._heading = frame

    def _on_vanished(self, frame: Message) -> None:
        assert self._copy is not None
        self._copy.take(frame, b"")

    def _on_piece_data(self, raw: bytes) -> None:
        heading, self._heading = self._heading, None
        if heading is None or self._copy is None:
            raise ValueError("bytes of no file")
        self._copy.take(heading, raw)
        if self._link is not None and raw:
            self._link.tell({"type": "took", "bytes": len(raw)})
        if points.ACTIVE:
            points.hit("deputy.copied")
        self._retry_s = _RETRY_S
        if heading["name"] == FILE:
            self._signals(raw, anew=heading["anew"] is True)

    def _signals(self, raw: bytes, *, anew: bool) -> None:
        """Records have come: whoever waits for them is woken, as their runner would."""
        *lines, self._partial = ((b"" if anew else self._partial) + raw).split(b"\n")
        seq, owners = 0, set()
        for line in lines:
            try:
                record = jsontext.read(line)
                seq = max(seq, int(record.get("seq") or record.get("queued") or 0))
            except (ValueError, AttributeError, TypeError):
                continue
            owners.add(record.get("owner"))
            self._tell_people(record)
        for owner in owners - {None} or {self._now("owner")}:
            self._wake(owner, seq)

    def _tell_people(self, record: Message) -> None:
        variant = next((name for name in VARIANTS if name in record), None)
        if variant == "lifecycle" and record[variant].get("phase") == "ended":
            self._ended = record
        if record.get("queued") and self._ended is not None:
            record, variant = {**self._ended, "routed": True}, "lifecycle"
        if self._people is not None and variant is not None and record.get("routed") is True:
            self._people.called(variant, record, self._now("notify_people"))

    def _wake(self, owner: str | None, seq: int) -> None:
        wake.call(os.path.dirname(self._endpoint), owner, self._spec["id"], seq)

    def _now(self, option: str) -> Any:
        changed = records.found(self._directory, "state.json").get("changed") or {}
        return changed.get(option, self._spec.get(option))

    # Hosts.

    def _accept(self, _events: int) -> None:
        assert self._listener is not None
        try:
            sock = sockets.accept(self._listener)
        except OSError:
            return
        if sockets.peer_uid(sock) != os.getuid() or len(self._clients) >= CLIENTS_MAX:
            sock.close()
            return
        sock.setblocking(False)
        self._number += 1
        client = self._clients[self._number] = _Client(self, self._number, sock)
        if self._linked:
            self._open_channel(client)
        elif self._link is None:
            if time.monotonic() - self._failed_at < _RETRY_S:
                self._turn_away(client)
            else:
                self._open_link()

    def _open_channel(self, client: _Client) -> None:
        assert self._link is not None
        client.opened = True
        self._link.tell({"type": "open", "channel": client.number})

    def serve(self, client: _Client, events: int) -> None:
        if events & WRITE:
            self._send(client)
        if not events & READ or client.number not in self._clients or self._link is None:
            return
        try:
            received = client.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if received:
            self._link.send(wire.data(client.number, received))
        else:
            self._link.tell({"type": "close", "channel": client.number})
            self._drop(client)

    def _on_words(self, number: int, raw: bytes) -> None:
        self._was_answered = True
        client = self._clients.get(number)
        if client is not None:
            client.answered = True
            client.unsent += raw
            self._send(client)

    def _on_closed(self, frame: Message) -> None:
        client = self._clients.get(frame["channel"])
        if client is not None:
            self._close_after_sending(client)

    def _send(self, client: _Client) -> None:
        sent = 0
        try:
            while client.unsent:
                done = client.sock.send(client.unsent)
                del client.unsent[:done]
                sent += done
        except BlockingIOError:
            pass
        except OSError:
            self._drop(client)
            if self._link is not None:
                self._link.tell({"type": "close", "channel": client.number})
            return
        if sent and self._link is not None and client.opened:
            self._link.tell({"type": "read", "channel": client.number, "bytes": sent})
        if client.leaving and not client.unsent:
            self._drop(client)

    def _close_after_sending(self, client: _Client) -> None:
        client.leaving = True
        self._send(client)

    def _drop(self, client: _Client) -> None:
        if self._clients.pop(client.number, None) is not None:
            self._loop.watch(client.sock.fileno(), 0, client.ready)
            client.sock.close()


def _take_lock(path: str) -> int | None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    until = time.monotonic() + _LOCK_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        except BlockingIOError:
            if time.monotonic() >= until:
                os.close(fd)
                return None
            time.sleep(_LOOK_S)


def _directory_there(given: str | None, here: Message) -> str:
    """The directory that is meant there, by its own name."""
    if given is None:
        return str(here["cwd"])
    if given == "~" or given.startswith("~/"):
        given = str(here["user"]) + given[1:]
    return os.path.normpath(os.path.join(str(here["cwd"]), given))


def _unlink(path: str) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
