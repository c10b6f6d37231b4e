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

from . import birth, clock, mirror, points, records, shapes, sockets, tree, wire
from .callers import Callers
from .diary import Diary
from .kernel_signals import signal
from .link import Helper, Link
from .loop import READ, Loop
from .news import News
from .signalfile import FILE

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
# What comes of handling words that do not say what they should.
_NONSENSE = (
    *(AssertionError, AttributeError, LookupError, TypeError, ValueError, ArithmeticError, RecursionError, OSError),
)
# A link that lived so long was not broken by what is wrong at its other end.
_LASTING_S = 30.0
_EVIDENCE_CHARACTERS = 500
_MESSAGES = ("refused", "here", "come", "over", "forgotten", "closed", "piece", "vanished")


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
        self._loop = Loop()
        self._callers = Callers(self._loop, self._spec["id"])
        self._directory = -1
        self._lock = -1
        self._listener: socket.socket | None = None
        self._copy: mirror.Copy | None = None
        self._diary: Diary | None = None
        self._news: News | None = None
        self._heading: Message | None = None
        self._link: Link | None = None
        # Did the far end speak, and when did it begin?
        self._linked = False
        self._linked_at = 0.0
        self._timer: Timer | None = None
        self._retry_s = _RETRY_S
        self._failed_at = -_RETRY_S
        self._broken = ""
        self._passed: list[int] = []
        # Is there anything that the far end does not know of yet?
        self._to_begin = False
        self._tries = 0
        # Is all that there is to know of it on record here?
        self._is_over = False
        self._helper: Helper | None = None

    # As long as whoever sent us waits.

    def begin(self, channel: socket.socket, passed: list[int]) -> None:
        self._to_begin, self._passed = True, passed
        self._callers.adopt(channel)

    def take_over(self) -> bool:
        """Stand in for one that is gone. False where another was quicker, once that one can be reached."""
        if points.ACTIVE:
            points.hit("deputy.sent")
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
        facts = {"endpoint": endpoint, "deputy": deputy}
        # A runner drops its oldest segment when it has begun another.
        cap, segment = self._spec["log_cap"], self._spec["segment_bytes"]
        self._copy = mirror.Copy(directory, facts, cap + 2 * segment, mirror.segments_max(cap, segment))
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        _unlink(endpoint)  # we hold the lock: nobody listens there
        sockets.bind_unix(listener, *os.path.split(endpoint))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        self._listener = listener
        self._news = News(self._home, self._spec, directory, endpoint, self._reach["env"], self._diary.say)

    # Living.

    def live(self) -> None:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        if self._listener is not None:
            self._loop.watch(self._listener.fileno(), READ, self._accept)
        if self._end is not None:
            self._loop.after(self._reach["timeout"] + self._end["within"], self._loop.leave)
        self._open_link()
        self._loop.run(self._callers.turn)
        self._leave()

    def _leave(self) -> None:
        if self._listener is not None:
            _unlink(self._endpoint)
            self._listener.close()
            # Before anybody is let go: who finds nobody at our door and the lock held takes us for silent.
            os.close(self._lock)
        self._callers.say_farewell()
        if self._link is not None:
            self._link.close()

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
        last = _short((said.splitlines() or ["the link broke off"])[-1])
        if not self._linked and (code in _NO_PROGRAM or _NO_PYTHON in said):
            self._without_link("place-no-python", last)
        elif not self._linked and self._is_gone(said):
            self._without_link("place-gone", last)
        else:
            self._without_link("place-unreachable", _short(why or last))

    def _is_gone(self, said: str) -> bool:
        """A machine may come back, whatever is said on the way to it; a container that is not there does not."""
        return not self._spec["place"].startswith("ssh:") and any(gone in said.lower() for gone in _GONE)

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

    def _refuse(self, frame: Message) -> None:
        self._callers.refuse(frame)
        self._loop.leave()

    def _hear(self, frames: list[wire.Frame]) -> None:
        for frame in frames:
            try:
                if isinstance(frame, dict):
                    # What a later release may say and we do not know, we do not do.
                    if frame["type"] in _MESSAGES:
                        getattr(self, "_on_" + frame["type"])(frame)
                elif frame[0]:
                    self._callers.hear(*frame)
                else:
                    self._take(frame[1])
            except mirror.Nonsense as problem:
                self._give_up("damaged", f"{self._spec['place']} sent a record that cannot be used: {problem}")
                return
            except mirror.Excess as problem:
                text = f"{self._spec['place']} sent more than this session may have here: {problem}"
                self._give_up("refused", text, [problem.gap])
                return
            except _NONSENSE as problem:
                # Nonsense, or a disk that takes no more: what is missing here is not lost there.
                self._link_lost(f"{type(problem).__name__}: {problem}")
                return
            if self._link is None:
                return

    def _give_up(self, state: str, evidence: str, gaps: list[Message] | None = None) -> None:
        """The place does not keep to what a session is: nothing more of it is taken, and nobody tries again."""
        assert self._copy is not None
        evidence = _short(evidence)
        record = {"state": state, "evidence": evidence, "at": clock.now_text(), "sizes": self._copy.sizes()}
        records.write(self._directory, records.AWAY, {**record, "gaps": gaps or [], "stopped": None}, durable=True)
        if self._diary is not None:
            self._diary.say(evidence)
        self._callers.lose_link(evidence)
        if self._link is not None:
            self._link.close()
            self._link = None
        if points.ACTIVE:
            points.hit("deputy.gave_up")
        self._loop.leave()

    def _on_refused(self, frame: Message) -> None:
        self._link_lost(str(frame["why"]))

    def _on_here(self, frame: Message) -> None:
        """The far end is there."""
        assert self._link is not None
        self._linked = True
        self._linked_at = time.monotonic()
        if self._to_begin:
            self._start(frame)
            return
        self._resume()
        self._callers.link_to(self._link)

    def _resume(self) -> None:
        if self._link is not None and self._copy is not None:
            self._link.tell({"type": "resume", "id": self._spec["id"], "have": self._copy.have()})

    def _start(self, here: Message) -> None:
        """Persist, then spawn: also here."""
        assert self._link is not None
        spec, request = self._spec, self._request
        if self._callers.first_has_left():
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
        self._callers.begin(self._link)
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
        if not self._callers.were_answered:
            birth.forget(self._directory)
            place = self._spec["place"]
            text = f"{place} cannot be reached: {why}"
            self._refuse(wire.error({}, "place-unreachable", text, place=place, why=why))

    def _on_over(self, frame: Message) -> None:
        if frame["state"] == "exited":
            self._callers.hang_up_all()
            self._have_forgotten()
        elif frame["state"] == "stale" and self._end is not None and self._link is not None:
            self._link.tell({"type": "end", "grace": self._end["grace"], "ladder": self._end["ladder"]})
            self._end = None
        else:
            certain = frame.get("certain") is True
            done = {"stopped": frame.get("stopped"), "how": frame.get("how")}
            shapes.check(shapes.AWAY, {"state": "stale", "evidence": "", "at": "", **done})
            self._over(str(frame["state"]), _short(str(frame["evidence"])), done, certain=certain)

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

    def _over(self, state: str, evidence: str, done: Message | None = None, *, certain: bool = False) -> None:
        """No runner will say more about it. Where nothing was ever recorded, nothing ever was."""
        began = records.found(self._directory, "state.json") or records.found(self._directory, "exit.json")
        if state == "missing" and not began:
            # A link may break while a runner is on its way. One that refused has said so.
            young = time.time() - os.fstat(self._lock).st_mtime < _BEGIN_S
            if young and not self._callers.were_answered and not certain:
                self._timer = self._loop.after(_RETRY_S, self._resume)
                return
            birth.forget(self._directory)
        else:
            assert self._copy is not None
            state = "stale" if state == "stale" else "lost"
            record = {"state": state, "evidence": evidence, "at": clock.now_text(), "sizes": self._copy.sizes()}
            done = done or {"stopped": None, "how": None}
            records.write(self._directory, records.AWAY, {**record, **done}, durable=True)
            assert self._news is not None
            self._news.ended_there()
            if state == "lost":
                self._have_forgotten()
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
        self._copy.take(heading, raw)
        if self._link is not None and raw:
            self._link.tell({"type": "took", "bytes": len(raw)})
        if points.ACTIVE:
            points.hit("deputy.copied")
        if heading["name"] == FILE and self._news is not None:
            self._news.came(raw, anew=heading["anew"] is True)

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
            self._loop.leave()  # somebody moved the session aside: there is nothing to stand in for
            return
        caller = self._callers.accept(self._listener)
        if caller is not None and self._link is None:
            if time.monotonic() - self._failed_at < _RETRY_S:
                self._callers.turn_away(caller, self._broken)
            else:
                self._open_link()


def _short(text: str) -> str:
    """Words of another place: one line, bounded, and nothing in it that a terminal would obey."""
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
