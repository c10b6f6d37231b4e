"""The deputy of a runner in another place: lock, endpoint and a copy of its directory here.

It holds the lock and the endpoint that a runner would hold, keeps a copy of the session's directory, and forwards the
messages of hosts and runner. It owns nothing. When it is killed, the next host that looks starts another, which
continues where the copy ends; when its link breaks, it reports that to its clients, and connects again.
"""

from __future__ import annotations

import _socket as socket
import fcntl
import os
import time

from ..core import clock, failpoints, processes, records, shapes, sockets, wire
from ..core.kernel_signals import signal
from ..core.loop import READ, WRITE, Loop
from ..core.signalfile import FILE
from ..runner import directory as session_directory
from ..runner import launcher
from ..runner.directory import RunnerLog
from ..runner.endpoint import CLIENTS_MAX
from . import copy, remote_end
from .copy import RemoteSignals
from .link import Helper, Link

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ..core.loop import Timer

    Message = dict[str, Any]


# Hosts that connect to a deputy: each has its own channel of the link, and waits while there is no link.


_READ_BYTES = 64 << 10
_FAREWELL_S = 1.0
# What all of them together have not read yet.
_UNSENT_MAX_BYTES = 8 << 20


class Caller:
    def __init__(self, callers: Callers, number: int, sock: socket.socket) -> None:
        self.number = number
        self.sock = sock
        self.ready = lambda events: callers.serve(self, events)
        self.unsent = bytearray()
        self.answered = False
        self.leaving = False


class Callers:
    def __init__(self, loop: Loop, session: str) -> None:
        self._loop = loop
        self._session = session
        self._callers: dict[int, Caller] = {}
        self._number = remote_end.FIRST_CHANNEL - 1
        self._link: Link | None = None
        # Whether the runner has answered any of them.
        self.were_answered = False

    def adopt(self, sock: socket.socket) -> Caller:
        """The first is the host that starts the session."""
        sock.setblocking(False)
        self._number += 1
        caller = self._callers[self._number] = Caller(self, self._number, sock)
        return caller

    def accept(self, listener: socket.socket) -> Caller | None:
        try:
            sock = sockets.accept(listener)
        except OSError:
            return None
        if sockets.peer_uid(sock) != os.getuid() or len(self._callers) >= CLIENTS_MAX:
            sock.close()
            return None
        caller = self.adopt(sock)
        self._open(caller)
        return caller

    def first_has_left(self) -> bool:
        return sockets.has_left(self._callers[remote_end.FIRST_CHANNEL].sock)

    def begin(self, link: Link) -> None:
        """The start request opens the channel of the first."""
        self._link = link

    def link_to(self, link: Link) -> None:
        self._link = link
        for caller in self._callers.values():
            self._open(caller)

    def _open(self, caller: Caller) -> None:
        if self._link is not None and not caller.leaving:
            self._link.send_message({"type": "open", "channel": caller.number})

    def turn(self) -> None:
        """Hosts are only read while there is a link that is not full."""
        listening = self._link is not None and not self._link.is_full
        for caller in self._callers.values():
            events = (READ if listening and not caller.leaving else 0) | (WRITE if caller.unsent else 0)
            self._loop.watch(caller.sock.fileno(), events, caller.ready)

    def serve(self, caller: Caller, events: int) -> None:
        if events & WRITE:
            self._send(caller)
        if not events & READ or caller.number not in self._callers or self._link is None:
            return
        try:
            received = caller.sock.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        if received:
            self._link.send(wire.data(caller.number, received))
        else:
            self._link.send_message({"type": "close", "channel": caller.number})
            self._drop(caller)

    def received(self, number: int, raw: bytes) -> None:
        """Pass on what the runner sent to one of them."""
        self.were_answered = True
        caller = self._callers.get(number)
        if caller is not None:
            caller.answered = True
            caller.unsent += raw
            if len(caller.unsent) > 2 * remote_end.WINDOW_BYTES:
                raise ValueError("the far end sends more than was read")
            self._send(caller)
            if sum(len(each.unsent) for each in self._callers.values()) > _UNSENT_MAX_BYTES:
                # Drop the one that reads least, so that it costs the others nothing.
                self._drop(max(self._callers.values(), key=lambda each: len(each.unsent)))

    def hang_up(self, number: int) -> None:
        caller = self._callers.get(number)
        if caller is not None:
            self._close_after_sending(caller)

    def hang_up_all(self) -> None:
        for caller in list(self._callers.values()):
            self._close_after_sending(caller)

    def lose_link(self, why: str) -> None:
        self._link = None
        for caller in list(self._callers.values()):
            self.refuse_one(caller, why)

    def refuse_one(self, caller: Caller, why: str) -> None:
        if not caller.answered:
            facts = {"id": self._session, "pid": None, "waited_s": 0.0}
            caller.unsent += wire.control(wire.error({}, "unreachable", why, **facts))
        self._close_after_sending(caller)

    def refuse(self, frame: dict[str, object]) -> None:
        for caller in self._callers.values():
            caller.unsent += wire.control(frame)

    def send_rest(self) -> None:
        self._link = None
        for caller in self._callers.values():
            caller.sock.settimeout(_FAREWELL_S)
            try:
                caller.sock.sendall(caller.unsent)
            except OSError:
                pass
            caller.sock.close()

    def _send(self, caller: Caller) -> None:
        sent = 0
        try:
            while caller.unsent:
                done = caller.sock.send(caller.unsent)
                del caller.unsent[:done]
                sent += done
        except BlockingIOError:
            pass
        except OSError:
            self._drop(caller)
            if self._link is not None:
                self._link.send_message({"type": "close", "channel": caller.number})
            return
        if sent and self._link is not None:
            self._link.send_message({"type": "read", "channel": caller.number, "bytes": sent})
        if caller.leaving and not caller.unsent:
            self._drop(caller)

    def _close_after_sending(self, caller: Caller) -> None:
        caller.leaving = True
        self._send(caller)

    def _drop(self, caller: Caller) -> None:
        if self._callers.pop(caller.number, None) is not None:
            self._loop.watch(caller.sock.fileno(), 0, caller.ready)
            caller.sock.close()


# The deputy itself.

_BACKLOG = 128
# A broken link is opened again soon at first, then less and less often; at once when a host connects, but not within
# this time.
_RETRY_S = 1.0
_RETRY_MAX_S = 60.0
# A host that checks whether we live holds the lock for a moment.
_LOCK_S = 0.5
_LOOK_S = 0.01
# How often the removal over there is tried after all of the session was copied.
_FORGET_TRIES = 5
# If the requested runner is not on record there after this time, it was never started.
_BEGIN_S = 30.0
# What a shell, or a container's runtime, ends with when there is no such program.
_NO_PROGRAM = (126, 127)
_NO_PYTHON = "holdfast: a runner needs Python"
_GONE = ("no such container", "no instance found")
# What handling an invalid message can raise.
_NONSENSE = (
    *(AssertionError, AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError, OSError),
)
# Keys of a spec that the copy of a visit does not get: signals, claims and limits belong to the owner.
_NOT_VISITED = (
    *("signals", "people", "key", "owner_process", "watch", "monitor", "heartbeat", "notify_people", "way", "visit"),
    *("timeout", "idle_timeout", "ttl", "soft", "lifetime", "claims"),
)
_NAME_CHARACTERS = 256
# If a link lasted this long, the other end works.
_LASTING_S = 30.0
_EVIDENCE_CHARACTERS = 500
_MESSAGES = ("refused", "here", "come", "over", "forgotten", "closed", "piece", "vanished")


def run(words: list[str]) -> None:
    """Be the deputy of a new session (`deputy`), or of one whose deputy is gone (`next-deputy`). The channel is
    descriptor 3."""
    launcher.close_other_descriptors({launcher.CHANNEL_FD})
    channel = socket.socket(fileno=launcher.CHANNEL_FD)
    if words == ["deputy"]:
        launcher.detach_from_parent()
        begin(channel)
    else:
        take_over(channel, then=launcher.detach_from_parent)


def begin(channel: socket.socket) -> None:
    """Be the deputy of a session that is requested on `channel`."""
    request, passed = launcher.receive_request(channel)
    if request is not None:
        deputy = Deputy(request)
        deputy.begin(channel, passed)
        deputy.live()


def take_over(channel: socket.socket, then: Callable[[], None]) -> None:
    """Be the next deputy of a session. `then` is called when we can be reached; with `end` in the request our sender
    waits for our own end instead."""
    request, _ = launcher.receive_request(channel)
    channel.close()
    if request is not None:
        deputy = Deputy(request)
        if deputy.take_over():
            if request.get("end") is None:
                then()
            deputy.live()


class Deputy:
    def __init__(self, request: Message) -> None:
        self._request: Message = request
        self._home: str = request["home"]
        self._spec: Message = request["spec"]
        self._reach: Message = request.pop("reach")
        self._endpoint: str = self._spec["endpoint"]
        # How to stop what still runs without its runner, if we were sent for that.
        self._end: Message | None = request.get("end")
        # The node of the session, if this is a visit.
        self._visit: str | None = self._spec.get("visit")
        self._code = wire.from_text(self._reach["code"]) or b""
        self._loop = Loop()
        self._callers = Callers(self._loop, self._spec["id"])
        self._directory = -1
        self._lock = -1
        self._listener: socket.socket | None = None
        self._copy: copy.Copy | None = None
        self._runner_log: RunnerLog | None = None
        self._news: RemoteSignals | None = None
        self._heading: Message | None = None
        self._link: Link | None = None
        # Whether the far end answered, and when.
        self._linked = False
        self._linked_at = 0.0
        self._timer: Timer | None = None
        self._retry_s = _RETRY_S
        self._failed_at = -_RETRY_S
        self._broken = ""
        self._passed: list[int] = []
        # Whether the far end has not been asked for the session yet.
        self._to_begin = False
        self._tries = 0
        # Whether the copy here is complete.
        self._is_over = False
        self._helper: Helper | None = None

    # While our sender waits.

    def begin(self, channel: socket.socket, passed: list[int]) -> None:
        self._to_begin, self._passed = True, passed
        self._callers.adopt(channel)

    def take_over(self) -> bool:
        """Take the place of a deputy that is gone. False if another was quicker; then that one can be reached."""
        failpoints.hit("deputy.sent")
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
        """Open the copy of the session here, and its endpoint."""
        self._directory, self._lock = directory, lock
        self._runner_log = RunnerLog(directory, (), "deputy.log")
        # A reboot removes directories of endpoints; our sender has one.
        if not os.path.isdir(os.path.dirname(self._endpoint)):
            self._endpoint = self._request.get("endpoint") or self._endpoint
        endpoint = self._endpoint
        here = processes.own_identity()
        # Hosts here connect to us, and see our death as they would see a runner's.
        deputy = {"boot": here["boot"], "pidns": here["pidns"], **here["runner"]}
        facts = {"endpoint": endpoint, "deputy": deputy}
        # A runner drops its oldest segment when it has begun another.
        cap, segment = self._spec["log_cap"], self._spec["segment_bytes"]
        segments = copy.segments_max(cap, segment)
        self._copy = copy.Copy(directory, facts, cap + 2 * segment, segments, is_visit=self._visit is not None)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _unlink(endpoint)  # we hold the lock, so there is no listener
        sockets.bind_unix(listener, *os.path.split(endpoint))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._listener = listener
        self._loop.watch(listener.fileno(), READ, self._accept)
        self._news = RemoteSignals(
            self._home, self._spec, directory, endpoint, self._reach["env"], self._runner_log.write
        )

    # Living.

    def live(self) -> None:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        if self._end is not None:
            self._loop.after(self._reach["timeout"] + self._end["within"], self._loop.leave)
        self._open_link()
        self._loop.run(self._callers.turn)
        self._leave()

    def _leave(self) -> None:
        if self._listener is not None:
            _unlink(self._endpoint)
            self._listener.close()
            # Before clients are closed: a host that finds no listener and a held lock takes us for unreachable.
            os.close(self._lock)
        self._callers.send_rest()
        if self._link is not None:
            self._link.close()

    # The link.

    def _open_link(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._linked, self._heading = False, None
        argv, environment = self._reach["argv"], self._reach["env"]
        try:
            link = Link(self._loop, argv, environment, self._code, on_frames=self._on_frames, lost=self._link_lost)
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
        code, errors = link.close()
        last = _short((errors.splitlines() or ["the link broke off"])[-1])
        if not self._linked and (code in _NO_PROGRAM or _NO_PYTHON in errors):
            self._without_link("place-no-python", last)
        elif not self._linked and self._is_gone(errors):
            self._without_link("place-gone", last)
        else:
            self._without_link("place-unreachable", _short(why or last))

    def _is_gone(self, errors: str) -> bool:
        """A machine may come back, whatever ssh reports; a missing container does not."""
        return not self._reach["comes_back"] and any(gone in errors.lower() for gone in _GONE)

    def _without_link(self, code: str, why: str) -> None:
        if self._linked and time.monotonic() - self._linked_at > _LASTING_S:
            self._retry_s = _RETRY_S
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
        self._callers.lose_link(text)
        if self._runner_log is not None:
            self._runner_log.write(text)
        if code == "place-gone":
            self._over("lost", text)
            return
        self._tries += self._is_over
        if self._tries >= _FORGET_TRIES or self._end is not None:
            self._loop.leave()
        else:
            self._timer = self._loop.after(self._retry_s, self._open_link)
            self._retry_s = min(2 * self._retry_s, _RETRY_MAX_S)

    def _refuse(self, frame: Message) -> None:
        self._callers.refuse(frame)
        self._loop.leave()

    def _on_frames(self, frames: list[wire.Frame]) -> None:
        for frame in frames:
            try:
                if isinstance(frame, dict):
                    # Messages of a later release are ignored.
                    if frame["type"] in _MESSAGES:
                        getattr(self, "_on_" + frame["type"])(frame)
                elif frame[0]:
                    self._callers.received(*frame)
                else:
                    self._take(frame[1])
            except copy.BadRecord as problem:
                self._give_up("damaged", f"{self._spec['place']} sent a record that cannot be used: {problem}")
                return
            except copy.OverLimit as problem:
                text = f"{self._spec['place']} sent more than this session may have here: {problem}"
                self._give_up("refused", text, [problem.gap])
                return
            except _NONSENSE as problem:
                # An invalid message, or a full disk: what is missing here is not lost there.
                self._link_lost(f"{type(problem).__name__}: {problem}")
                return
            if self._link is None:
                return

    def _give_up(self, state: str, evidence: str, gaps: list[Message] | None = None) -> None:
        """The place broke the rules of a session: take nothing more from it, and do not connect again."""
        assert self._copy is not None
        evidence = _short(evidence)
        record = {"state": state, "evidence": evidence, "at": clock.now_text(), "sizes": self._copy.sizes()}
        records.write(self._directory, records.AWAY, {**record, "gaps": gaps or [], "stopped": None}, durable=True)
        if self._runner_log is not None:
            self._runner_log.write(evidence)
        self._callers.lose_link(evidence)
        if self._link is not None:
            self._link.close()
            self._link = None
        failpoints.hit("deputy.gave_up")
        self._loop.leave()

    def _on_refused(self, frame: Message) -> None:
        problem = frame.get("problem")
        if not isinstance(problem, dict):
            self._link_lost(str(frame["why"]))
            return
        code, text = str(problem.get("code"))[:80], _short(str(problem.get("message")))
        if self._to_begin:
            facts = problem.get("facts")
            error = wire.error({}, code, text, **(facts if isinstance(facts, dict) else {}))
            self._refuse({**error, "fix": _short(str(problem.get("fix") or ""))})
        elif self._visit is not None and code in ("not-found", "removed"):
            self._linked = True
            self._over("missing", f"it was removed on the node {self._visit}", certain=True)
        else:
            self._link_lost(text)

    def _on_here(self, frame: Message) -> None:
        """The far end is there."""
        self._linked = True
        self._linked_at = time.monotonic()
        if not self._to_begin:
            self._continue()
        elif self._visit is None:
            self._start(frame)
        else:
            self._begin_visit(frame)

    def _continue(self) -> None:
        """Copy what is new there, and connect the hosts here to the runner."""
        assert self._link is not None
        self._resume()
        self._callers.link_to(self._link)

    def _resume(self) -> None:
        if self._link is not None and self._copy is not None:
            have = self._copy.have() if self._is_in_place() else {}
            self._link.send_message({"type": "resume", "id": self._spec["id"], "have": have})

    def _start(self, here: Message) -> None:
        """Write the spec here, then ask the far end to start the runner."""
        assert self._link is not None
        spec, request = self._spec, self._request
        if self._callers.first_has_left():
            self._loop.leave()  # the caller gave up before there was a link: nothing has happened yet
            return
        spec["cwd_given"], spec["cwd"] = spec["cwd"], _directory_there(spec["cwd"], here)
        if not self._persist():
            return
        failpoints.hit("deputy.begun")
        self._callers.begin(self._link)
        # Messages to people and claims are handled here; and each machine has its own clock.
        there = {part: value for part, value in request.items() if part not in ("asked", "host_env")}
        there.update(spec={**spec, "people": None, "way": None}, claims=0)
        asked = request.get("asked")
        age_s = None if asked is None else time.monotonic() - asked["monotonic"]
        frame = {"type": "start", "request": there, "age_s": age_s, "detached": bool(self._reach.get("detached"))}
        self._link.send_message(frame)
        self._request = {}

    def _begin_visit(self, here: Message) -> None:
        """Write the spec of the copy, answer our sender, and follow the session."""
        theirs, node = here.get("spec"), str(self._visit)
        try:
            shapes.check(shapes.SPEC, theirs)
            assert isinstance(theirs, dict)
            id = theirs["id"]
            if not 6 <= len(id) <= 32 or not id.isascii() or not id.isalnum() or id != id.lower():
                raise ValueError("its id is not that of a session")
        except ValueError as problem:
            why = _short(f"its record cannot be used: {problem}")
            self._refuse(wire.error({}, "node-refused", f"the node {node} was refused: {why}", node=node, why=why))
            return
        asked = self._spec
        spec = {name: value for name, value in theirs.items() if name not in _NOT_VISITED}
        name = theirs.get("name")
        endpoint = os.path.join(asked["runtime"], id + ".sock")
        spec.update(id=id, place=asked["place"], visit=node, endpoint=endpoint, owner=asked.get("owner"), way={})
        spec.update(name=None if name is None else f"{node}/{name}"[:_NAME_CHARACTERS], notify="never")
        spec["metadata"] = {**(theirs.get("metadata") or {}), "visit": node}
        spec["log_cap"] = min(int(theirs.get("log_cap") or 0), asked["log_cap_max"]) or asked["log_cap_max"]
        spec["segment_bytes"] = int(theirs.get("segment_bytes") or 0) or spec["log_cap"]
        text = f"session {id} of the node {node} has the same id as a session of this home"
        self._spec, self._endpoint = spec, endpoint
        if not self._persist(taken=wire.error({}, "visit-exists", text, id=id, node=node)):
            return
        self._callers.refuse({"type": "visited", "session": id})
        self._callers.hang_up_all()
        self._continue()

    def _persist(self, taken: Message | None = None) -> bool:
        """Make the directory of the session here. False when that is refused: our sender gets the error, which is
        `taken` where there is one and the directory exists."""
        try:
            directory, lock = session_directory.persist(self._home, self._spec)
        except session_directory.Refused as refusal:
            exists = os.path.isdir(os.path.join(self._home, "sessions", self._spec["id"]))
            self._refuse(taken if taken is not None and exists else refusal.frame)
            return False
        for fd in self._passed:
            os.close(fd)  # the spec is on disk: release the claims on name and key
        try:
            self._settle(directory, lock)
        except OSError as problem:
            session_directory.forget_session(directory)
            text = f"endpoint {self._endpoint}: {problem.strerror}; no process was started"
            facts = {"errno": problem.errno, "step": "endpoint", "path": self._endpoint}
            self._refuse(wire.error({}, "spawn-error", text, **facts))
            return False
        self._to_begin = False
        return True

    def _on_come(self, frame: Message) -> None:
        """PID 1 in a container rarely reaps orphans: start the runner from outside."""
        if self._helper is not None:
            raise ValueError("a second runner is asked for")
        argv = [*self._reach["detached"], str(frame["archive"]), "runner-at", str(frame["path"])]
        self._helper = Helper(self._loop, argv, self._reach["env"], failed=self._never_came)

    def _never_came(self, why: str) -> None:
        if not self._callers.were_answered:
            session_directory.forget_session(self._directory)
            place = self._spec["place"]
            text = f"{place} cannot be reached: {why}"
            self._refuse(wire.error({}, "place-unreachable", text, place=place, why=why))

    def _on_over(self, frame: Message) -> None:
        if frame["state"] == "exited":
            self._callers.hang_up_all()
            self._request_removal()
        elif frame["state"] == "stale" and self._end is not None and self._link is not None:
            self._link.send_message({"type": "end", "grace": self._end["grace"], "ladder": self._end["ladder"]})
            self._end = None
        else:
            certain = frame.get("certain") is True
            done = {"stopped": frame.get("stopped"), "how": frame.get("how")}
            shapes.check(shapes.AWAY, {"state": "stale", "evidence": "", "at": "", **done})
            self._over(str(frame["state"]), _short(str(frame["evidence"])), done, certain=certain)

    def _request_removal(self) -> None:
        """Everything was copied: have it removed there."""
        failpoints.hit("deputy.over")
        self._is_over = True
        if self._visit is not None or self._link is None:
            self._loop.leave()  # a visit removes nothing there
        else:
            self._link.send_message({"type": "forget"})

    def _on_forgotten(self, _frame: Message) -> None:
        self._loop.leave()

    def _over(self, state: str, evidence: str, done: Message | None = None, *, certain: bool = False) -> None:
        """Called when the session no longer has a runner. If there is no record of it, it was never started."""
        began = records.found(self._directory, "state.json") or records.found(self._directory, "exit.json")
        if state == "missing" and not began:
            # A link may break while a runner starts. A runner that refused has answered.
            young = time.time() - os.fstat(self._lock).st_mtime < _BEGIN_S
            if young and not self._callers.were_answered and not certain:
                self._timer = self._loop.after(_RETRY_S, self._resume)
                return
            session_directory.forget_session(self._directory)
        elif self._is_in_place():
            assert self._copy is not None
            state = "stale" if state == "stale" else "lost"
            record = {"state": state, "evidence": evidence, "at": clock.now_text(), "sizes": self._copy.sizes()}
            done = done or {"stopped": None, "how": None}
            records.write(self._directory, records.AWAY, {**record, **done}, durable=True)
            assert self._news is not None
            self._news.ended()
            if state == "lost":
                self._request_removal()
                return
        self._loop.leave()

    def _on_closed(self, frame: Message) -> None:
        self._callers.hang_up(frame["channel"])

    # The copy.

    def _on_piece(self, frame: Message) -> None:
        self._heading = frame

    def _on_vanished(self, frame: Message) -> None:
        assert self._copy is not None
        self._copy.take(frame, b"")

    def _take(self, raw: bytes) -> None:
        heading, self._heading = self._heading, None
        if heading is None or self._copy is None:
            raise ValueError("bytes of no file")
        # A host may have removed the ended session here while its last records arrive: they are dropped.
        in_place = self._is_in_place()
        if in_place:
            self._copy.take(heading, raw)
        if self._link is not None and raw:
            self._link.send_message({"type": "took", "bytes": len(raw)})
        failpoints.hit("deputy.copied")
        if in_place and heading["name"] == FILE and self._news is not None:
            self._news.received(raw, anew=heading["anew"] is True)

    # Hosts.

    def _is_in_place(self) -> bool:
        try:
            there = os.stat(os.path.join(self._home, "sessions", self._spec["id"]))
        except OSError:
            return False
        ours = os.fstat(self._directory)
        return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)

    def _accept(self, _events: int) -> None:
        assert self._listener is not None
        if not self._is_in_place():
            self._loop.leave()  # the session was moved aside: it needs no deputy
            return
        caller = self._callers.accept(self._listener)
        if caller is not None and self._link is None:
            if time.monotonic() - self._failed_at < _RETRY_S:
                self._callers.refuse_one(caller, self._broken)
            else:
                self._open_link()


def _short(text: str) -> str:
    """Text of another place as one bounded line without control characters."""
    shown = text if text.isprintable() else "".join(each if each.isprintable() else "?" for each in text)
    return shown if len(shown) <= _EVIDENCE_CHARACTERS else shown[:_EVIDENCE_CHARACTERS] + "..."


def _take_lock(path: str) -> int | None:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
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
    """The absolute path of the directory there."""
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
