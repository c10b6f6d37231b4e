"""One connection to one runner: greeting, identity, requests and answers."""

from __future__ import annotations

import _socket as socket
import time

from .. import __version__
from ..core import shapes, sockets, wire
from ..errors import HoldfastError, IdentityMismatch, MalformedAnswer, ProtocolError, RunnerGone, Unreachable
from .driver import Blocking, drive

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .driver import Driver


if TYPE_CHECKING:
    Message = dict[str, Any]

# What a later runner may require of us; none does yet.
FEATURES = ("output", "wait", "stop", "update")
_RECEIVE_BYTES = 1 << 18
# A wait without a bound is cut into pieces of this length: after each, a silent runner is pinged.
RENEW_S = 30.0
# A runner answers a wait with a timeout when that time is over; its client waits this much longer for the answer.
LATE_S = 0.1


def greeting(author: str) -> bytes:
    return wire.control(
        {
            "type": "hello",
            "protocol": wire.PROTOCOL,
            "version": __version__,
            "features": FEATURES,
            "kind": author.partition(":")[0],
            "author": author,
        }
    )


def open_socket(path: str) -> socket.socket:
    """Connect to a listener. OSError when there is none, BlockingIOError when its backlog is full."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        sockets.connect_unix(sock, path)
    except BaseException:
        sock.close()
        raise
    return sock


def send_greeting(sock: socket.socket, hello: bytes) -> None:
    """A runner with too many clients sends an error and closes the connection, perhaps before this: the error can still
    be read."""
    try:
        sock.send(hello)
    except ConnectionError:
        pass


def check_answer(session: str, endpoint: str, answer: Message, shape: shapes.Kind) -> None:
    """After this check, an answer of a runner has the types that hosts rely on."""
    try:
        shapes.check(shape, answer)
    except ValueError as problem:
        raise MalformedAnswer(session, endpoint, str(problem)) from None


def prove(session: str, hello: Message, spec: Message, state: Message | None) -> None:
    """Check, part by part, that the peer is the recorded runner; otherwise nothing may be sent to it."""
    found = hello.get("identity")
    if not isinstance(found, dict):
        raise IdentityMismatch(session, "identity", "an identity", None)
    parts: list[tuple[str, object, object]] = [("id", spec["id"], found.get("id"))]
    if state is not None:
        parts += [(part, state.get(part), found.get(part)) for part in ("nonce", "boot", "pidns", "timens")]
        # A restarting command is another process at each attempt, and the record may be of the previous or the next
        # one.
        others = ("runner", "host") if spec.get("restart") else ("runner", "command", "host")
        for process in others:
            for fact in ("pid", "start"):
                parts.append((f"{process} {fact}", _fact(state, process, fact), _fact(found, process, fact)))
        if "command" in others:
            parts.append(("command line", _fact(state, "command", "line"), _fact(found, "command", "line")))
    for part, recorded, given in parts:
        if recorded != given:
            raise IdentityMismatch(session, part, recorded, given)


class Connection:
    """Frames both ways over a non-blocking socket. Every wait has a bound, unless the caller asks for none."""

    def __init__(
        self,
        driver: Driver,
        sock: socket.socket,
        session: str,
        path: str = "",
        *,
        pending: Message | None = None,
    ) -> None:
        """`pending` is a request that was sent already: the `then` of a start."""
        self._driver = driver
        self._socket = sock
        self._session = session
        self._path = path
        self._decoder = wire.Decoder()
        self._received: list[Message | tuple[int, bytes]] = []
        # The number and type of the last request.
        self._serial: int = 0 if pending is None else pending["id"]
        self._pending: str = "" if pending is None else pending["type"]
        self.hello: Message = {}

    @classmethod
    async def open(cls, driver: Driver, path: str, session: str, *, author: str, timeout: float) -> Connection:
        """Connect and exchange greetings. A listener that does not greet in time is `unreachable`; a path without a
        listener is `runner-gone`."""
        try:
            sock = open_socket(path)
        except BlockingIOError:
            raise Unreachable(session, None, 0.0) from None
        except OSError:
            raise RunnerGone(session, "gone", None) from None
        connection = cls(driver, sock, session, path)
        try:
            send_greeting(sock, greeting(author))
            connection.hello = await connection.greet(timeout)
        except OSError:
            connection.close()
            raise RunnerGone(session, "gone", None) from None
        except BaseException:
            connection.close()
            raise
        return connection

    async def greet(self, timeout: float) -> Message:
        message = await self.message(time.monotonic() + timeout, timeout)
        if message["type"] == "error":
            raise HoldfastError.from_wire(message)
        if message["type"] != "hello":
            raise ProtocolError(f"expected hello, got {message['type']!r}")
        self.hello = message
        return message

    async def request(self, type: str, within: float | None, /, **fields: object) -> Message:
        """Send a request and wait for the answer. `within` bounds the runner's silence; None waits as long as it
        takes."""
        await self.ask(type, within, **fields)
        return await self.answer(within)

    async def ask(self, type: str, within: float | None, /, **fields: object) -> None:
        self._serial += 1
        self._pending = type
        await self.send(wire.control({"type": type, "id": self._serial, **fields}), within)

    async def answer(self, timeout: float | None) -> Message:
        """The answer to the last request; with `written` if the kernel had all of its input before."""
        deadline = None if timeout is None else time.monotonic() + timeout
        written: Message = {}
        while True:
            message = await self.message(deadline, timeout)
            if message.get("id") != self._serial:
                continue
            if message["type"] == "written":
                check_answer(self._session, self._path, message, shapes.WRITTEN)
                written = {"written": message["bytes"]}
            elif message["type"] in ("reply", "error"):
                return {**self._checked(message, self._pending), **written}

    async def answer_in_time(self, bound_s: float | None, reply_s: float, late_s: float | None = None) -> Message:
        """The answer to the last request, which the runner gives within `bound_s`, None for as long as it takes.
        `unreachable` if it is late by `late_s`, or if the runner does not even answer a ping within `reply_s`."""
        late_s = min(reply_s, LATE_S) if late_s is None else late_s
        if bound_s is not None and bound_s <= RENEW_S:
            return await self.answer(bound_s + late_s)
        asked, type = self._serial, self._pending
        until = None if bound_s is None else time.monotonic() + bound_s + late_s
        while True:
            message = await self._sign_of_life(reply_s, until)
            if message.get("id") != asked or message["type"] not in ("reply", "error"):
                continue
            return self._checked(message, type)

    def _checked(self, message: Message, asked: str) -> Message:
        if message["type"] == "error":
            raise HoldfastError.from_wire(message)
        shape = shapes.REPLIES.get(asked)
        if shape is not None:
            check_answer(self._session, self._path, message, shape)
        return message

    async def wait_and_confirm_end(self, bound_s: float | None, reply_s: float, late_s: float | None = None) -> Message:
        """The answer to a wait with `confirm`, as `answer_in_time`. If it is the end, confirm that the caller reports
        it, so that it stays out of the owner's queue."""
        reply = await self.answer_in_time(bound_s, reply_s, late_s)
        if reply.get("reason") == "exit" and reply.get("signal_id"):
            try:
                await self.ask("update", reply_s, answered=int(reply["signal_id"].rpartition(".")[2]))
            except ValueError:
                raise MalformedAnswer(self._session, self._path, "signal_id is not the id of a signal") from None
            except (RunnerGone, Unreachable):
                pass  # it was queued by then: a repeated report is better than a missing one
        return reply

    async def confirm_now(self, reply_s: float) -> Message:
        """The same after the command has ended: the answer is here, or comes at once."""
        return await self.wait_and_confirm_end(0.0, reply_s, late_s=reply_s)

    async def write(self, data: bytes, reply_s: float, **fields: object) -> tuple[int, list[str]]:
        """Write to the command's input and wait, as long as it takes, until the kernel has all of it. Returns how many
        bytes were taken, 0 if the command closed its end meanwhile, and warnings."""
        return await self.put(reply_s, base64=wire.as_text(data), **fields)

    async def put(self, reply_s: float, **fields: object) -> tuple[int, list[str]]:
        """The same for the `parts` of input to a terminal."""
        await self.ask("write", reply_s, **fields)
        asked = self._serial
        taken: int | None = None
        warnings: list[str] | None = None
        while taken is None or warnings is None:
            # The event may come before the reply, which only says that it was accepted.
            message = await self._sign_of_life(reply_s)
            if message.get("id") != asked:
                continue
            if message["type"] == "error":
                raise HoldfastError.from_wire(message)
            if message["type"] == "written":
                check_answer(self._session, self._path, message, shapes.WRITTEN)
                taken = message["bytes"]
            elif message["type"] == "reply":
                warnings = self._checked(message, "write").get("warnings") or []
        return taken, warnings

    async def has_read(self, read: dict[str, int], reply_s: float) -> None:
        """Report how far we have read, so that the runner need not make the command wait for us. Runners of releases
        that cannot hold a command back get no report."""
        if "hold" in self.hello.get("features", ()):
            await self.send(wire.control({"type": "hold", "read": read}), reply_s)

    async def _sign_of_life(self, reply_s: float, until: float | None = None) -> Message:
        """The next message or, if none came for long, the answer to a ping; nothing after `until`."""

        def left(most: float) -> float:
            return most if until is None else max(0.0, min(most, until - time.monotonic()))

        wait_s = left(RENEW_S)
        try:
            return await self.message(time.monotonic() + wait_s, wait_s)
        except Unreachable:
            if until is not None and time.monotonic() >= until:
                raise
            await self.ask("ping", reply_s)
            wait_s = left(reply_s)
            return await self.message(time.monotonic() + wait_s, wait_s)

    async def data(self, timeout: float) -> tuple[int, bytes]:
        """The data frame that follows an `output` reply."""
        deadline = time.monotonic() + timeout
        while True:
            frame = await self._frame(deadline, timeout)
            if isinstance(frame, tuple):
                return frame

    async def send(self, payload: bytes, timeout: float | None, descriptors: list[int] | None = None) -> None:
        view = memoryview(payload)
        while view:
            try:
                if descriptors:
                    view = view[sockets.send_with_fds(self._socket, bytes(view), descriptors) :]
                    descriptors = None
                else:
                    view = view[self._socket.send(view) :]
            except BlockingIOError:
                if not await self._driver.ready((), [self._socket.fileno()], timeout):
                    raise self._silent(timeout) from None
            except ConnectionError:
                raise RunnerGone(self._session, "gone", None) from None

    async def accepted(self, timeout: float) -> None:
        """Wait for the first frame that answers the last request, and leave it to be taken. An error is raised."""
        frame = await self._frame(time.monotonic() + timeout, timeout)
        if isinstance(frame, dict) and frame["type"] == "error":
            raise HoldfastError.from_wire(frame)
        self._received.insert(0, frame)

    def arrived(self) -> list[Message | tuple[int, bytes]]:
        """The messages that have arrived, without waiting. RunnerGone once the peer has hung up and all messages were
        taken."""
        while True:
            try:
                received = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                break
            except ConnectionError:
                received = b""
            if not received:
                if not self._received:
                    raise RunnerGone(self._session, "gone", None)
                break
            self._decode(received)
            if len(received) < _RECEIVE_BYTES:
                break
        frames, self._received = self._received, []
        return frames

    def send_some(self, payload: memoryview) -> int:
        """Send as much as the socket takes now."""
        try:
            return self._socket.send(payload)
        except BlockingIOError:
            return 0
        except ConnectionError:
            raise RunnerGone(self._session, "gone", None) from None

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _silent(self, waited_s: float | None) -> Unreachable:
        pid = _fact(self.hello.get("identity") or {}, "runner", "pid")
        return Unreachable(self._session, pid if isinstance(pid, int) else None, waited_s or 0.0)

    async def message(self, deadline: float | None, timeout: float | None) -> Message:
        while True:
            frame = await self._frame(deadline, timeout)
            if isinstance(frame, dict):
                return frame

    async def _frame(self, deadline: float | None, timeout: float | None) -> Message | tuple[int, bytes]:
        while not self._received:
            # Also ends for a peer that sends without end and never answers.
            if deadline is not None and time.monotonic() > deadline:
                raise self._silent(timeout)
            try:
                received = self._socket.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                left = None if deadline is None else deadline - time.monotonic()
                if not await self._driver.ready([self._socket.fileno()], (), left):
                    raise self._silent(timeout) from None
                continue
            except ConnectionError:
                received = b""
            if not received:
                raise RunnerGone(self._session, "gone", None)
            self._decode(received)
        return self._received.pop(0)

    def _decode(self, received: bytes) -> None:
        try:
            frames = self._decoder.feed(received)
        except wire.BadFrame as problem:
            raise ProtocolError(str(problem)) from None
        for frame in frames:
            if isinstance(frame, dict) and ("status" in frame or frame["type"] == "hello"):
                check_answer(self._session, self._path, frame, shapes.HELLO)
        self._received += frames


def _fact(identity: Message, process: str, fact: str) -> object:
    facts = identity.get(process)
    return facts.get(fact) if isinstance(facts, dict) else None


# A damaged `state.json` beside a runner that lives: the runner knows what belongs there and is asked to write it.


# The reader waits for this, perhaps on an event loop.
_ANSWER_S = 1.0


def rewrite_state(id: str, spec: dict[str, Any]) -> bool:
    """Whether the runner at the endpoint that the spec names proved to be this session's and wrote its record again."""
    try:
        drive(_ask(id, spec))
    except (HoldfastError, OSError, KeyError, TypeError):
        return False
    return True


async def _ask(id: str, spec: dict[str, Any]) -> None:
    connection = await Connection.open(Blocking(), spec["endpoint"], id, author="host:repair", timeout=_ANSWER_S)
    try:
        prove(id, connection.hello, spec, None)
        # An update that changes nothing: every update writes the record.
        known = connection.hello["status"].get("description")
        await connection.request("update", _ANSWER_S, description=known)
    finally:
        connection.close()
