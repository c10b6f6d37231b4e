"""A supervised language server: a session whose stdin and stdout belong to the protocol, and this host's side of it.

The runner restarts it in the same session; a thread here reads what it says from the log, greets every new attempt,
and fails what waits for an answer the moment it cannot come any more. State is what was seen, never what was hoped for.
"""

from __future__ import annotations

import copy
import threading
import time
from concurrent.futures import Future

from ..errors import HoldfastError, RunnerGone, ServerRefused, SessionEnded, StdinClosed, Timeout, Unreachable
from ..host.driver import Blocking, drive
from ..wire import as_text
from .diagnostics import Diagnostics
from .handle import in_words
from .interruptible import Interrupted, Interruptible
from .jsonrpc import frame
from .lspreader import Reader
from .requestbook import Requestbook

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..host.connection import Connection
    from ..host.core import Core

    Notified = Callable[[str, Any], object]

STOPPED, STARTING, RUNNING, STOPPING, ERROR = "stopped", "starting", "running", "stopping", "error"
# How long a server has to answer its greeting.
INITIALIZE_S = 30.0
REQUEST_S = 30.0
# A runner that does not take a message is given up on this long after the caller's time is over.
_LATE_S = 0.5
# From `shutdown` to the first signal.
_POLITE_S = 5.0
_TERM_S = 2.0
_KILL_S = 4.0
# Below what a runner takes as one unit of input, in its base64 spelling.
_UNIT_BYTES = 256 << 10

# What servers ask of a client that has nothing of the kind, and that must not keep them waiting.
_NULL_ANSWERS = ("client/registerCapability", "client/unregisterCapability", "window/workDoneProgress/create")
_METHOD_NOT_FOUND = -32601


class LanguageServer:
    """Calls may come from any thread. `changed(state)` is called whenever the state is another."""

    def __init__(
        self,
        core: Core,
        id: str,
        server: str,
        *,
        initialize: Mapping[str, Any],
        changed: Callable[[str], None] = lambda _state: None,
        notified: Notified = lambda _method, _params: None,
    ) -> None:
        self.id = id
        self.server = server
        self.diagnostics = Diagnostics()
        # What the server said it can do, once it was greeted.
        self.capabilities: dict[str, Any] = {}
        # Which process is spoken to: one that took its place is another's conversation.
        self._attempt = 1
        self._initialize = dict(initialize)
        self._changed = changed
        self._notified = notified
        self._book = Requestbook(id, server)
        self._state = STARTING
        self._turned = threading.Condition()
        self._over: str | None = None
        self._greeting: Future[Any] | None = None
        self._greeted_by = float("inf")
        # Why the server did not let itself be greeted.
        self._refused: str | None = None
        self._writing = threading.Lock()
        self._writer: Connection | None = None
        self._core = _with_driver(core, Blocking())
        self._interruptible: Interruptible | None = Interruptible()
        follower = _with_driver(core, self._interruptible)
        self._thread = threading.Thread(target=self._run, args=(follower,), name=f"holdfast {server}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<LanguageServer {self.server} {self.id} {self._state}>"

    @property
    def state(self) -> str:
        return self._state

    @property
    def over(self) -> bool:
        """Is it gone for good?"""
        return self._is_leaving

    @property
    def open_requests(self) -> int:
        return len(self._book)

    @property
    def restarts(self) -> int:
        return self._attempt - 1

    # What is asked of it.

    def request(self, method: str, params: Any = None, *, timeout: float | None = REQUEST_S) -> Any:
        """Ask and wait for the answer. ServerGone the moment it cannot come any more, ServerRefused when the server
        says no, Timeout when it says nothing. While it starts or restarts, the question waits with us."""
        deadline = None if timeout is None else time.monotonic() + timeout
        number, answer = self.ask(method, params, timeout=timeout)
        try:
            return answer.result(_left(deadline))
        except TimeoutError:
            if self.abandon(number):
                raise Timeout(f"the answer of {self.server} to {method}", timeout or 0.0) from None
            return answer.result()  # it came at the last moment

    def ask(self, method: str, params: Any = None, *, timeout: float | None = REQUEST_S) -> tuple[int, Future[Any]]:
        """The same without waiting for the answer; only for a server that is not ready yet."""
        deadline = None if timeout is None else time.monotonic() + timeout
        self.wait_running(timeout)
        return self._ask(method, params, _left(deadline))

    def abandon(self, number: int) -> bool:
        """Nobody waits for this answer any more. False when it has come by now."""
        withdrawn = self._book.withdraw(number)
        if withdrawn:
            self._notify_quietly("$/cancelRequest", {"id": number}, 0.0)
        return withdrawn

    def notify(self, method: str, params: Any = None, *, timeout: float | None = REQUEST_S) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        self.wait_running(timeout)
        self._send({"method": method, "params": params}, method, _left(deadline))

    def wait_running(self, timeout: float | None = REQUEST_S) -> None:
        """Until it has been greeted. ServerGone when it never will be."""
        with self._turned:
            if not self._turned.wait_for(lambda: self._state == RUNNING or self._is_leaving, timeout):
                raise Timeout(f"language server {self.server}", timeout or 0.0)
            if self._state != RUNNING:
                raise self._book.gone(None, self._over or "it is being stopped")

    def stop(self, by: str | None = None) -> None:
        """Ask it to shut down, give it a moment, then insist. It is not restarted after this."""
        with self._turned:
            was_running = self._state == RUNNING
            if self._over is not None:
                return
            self._become(STOPPING)
        deadline = time.monotonic() + _POLITE_S
        if was_running:
            try:
                self._ask("shutdown", None)[1].result(_left(deadline))
            except (HoldfastError, TimeoutError):
                pass  # it had its chance
        drive(self._end_session(by, max(0.0, deadline - time.monotonic())))
        self._thread.join()

    def begin_stop(self, by: str | None = None) -> threading.Thread:
        """The same without waiting for its end."""
        stopping = threading.Thread(target=self.stop, args=(by,), name=f"holdfast stop {self.server}", daemon=True)
        stopping.start()
        return stopping

    def close(self) -> None:
        """Let go of it: this host speaks to it no more."""
        with self._turned:
            interruptible, self._interruptible = self._interruptible, None
        if interruptible is not None:
            interruptible.interrupt()
            self._thread.join()
            interruptible.close()

    @property
    def _is_leaving(self) -> bool:
        return self._over is not None or self._state == STOPPING

    def _ask(self, method: str, params: Any, left_s: float | None = None) -> tuple[int, Future[Any]]:
        number, answer = self.enter(method)
        self.send(number, method, params, left_s)
        return number, answer

    def enter(self, method: str) -> tuple[int, Future[Any]]:
        """The first half of a question: from now on it has a number, and ends whatever happens."""
        return self._book.enter(method)

    def send(self, number: int, method: str, params: Any, left_s: float | None = None) -> None:
        """The second half, for a caller that has so much time left. What cannot be sent has failed."""
        try:
            self._send({"id": number, "method": method, "params": params}, method, left_s)
        except HoldfastError as problem:
            self._book.fail(number, problem)

    def _notify_quietly(self, method: str, params: Any, left_s: float | None = None) -> None:
        try:
            self._send({"method": method, "params": params}, method, left_s)
        except HoldfastError:
            pass

    def _send(self, message: dict[str, Any], method: str | None, left_s: float | None = None) -> None:
        if message.get("params", 0) is None:
            del message["params"]
        payload = frame({"jsonrpc": "2.0", **message})
        with self._writing:
            try:
                drive(self._write(payload, left_s))
            except (RunnerGone, SessionEnded, StdinClosed, Unreachable) as problem:
                self._hang_up()
                raise self._book.gone(method, problem.message) from None

    async def _write(self, payload: bytes, left_s: float | None) -> None:
        """Whole or not at all: a queue that has no room refuses it, and one that is larger than the queue goes in
        pieces, each of which is waited for."""
        reply_s = self._core.config.hosts_reply_timeout
        if left_s is not None:
            reply_s = min(reply_s, left_s + _LATE_S)
        if self._writer is None:
            _, self._writer = await self._core.connect(self.id, reply_s)
        if len(payload) <= _UNIT_BYTES:
            await self._writer.request("write", reply_s, base64=as_text(payload), attempt=self._attempt)
            return
        for begin in range(0, len(payload), _UNIT_BYTES):
            unit = payload[begin : begin + _UNIT_BYTES]
            taken, _ = await self._writer.write(unit, reply_s, attempt=self._attempt)
            if taken < len(unit):
                raise StdinClosed(self.id, "the server reads no more")

    def _hang_up(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _end_session(self, by: str | None, polite_s: float) -> None:
        """The stop is on record before the server is told to exit: it ends because it was asked to."""
        reply_s = self._core.config.hosts_reply_timeout
        ladder = [
            # Continues a stopped one, and is nothing to a running one: the time to leave by itself.
            {"signal": "CONT", "target": "command", "wait_s": polite_s},
            {"signal": "TERM", "target": "tree", "wait_s": _TERM_S},
            {"signal": "KILL", "target": "tree", "wait_s": _KILL_S},
        ]
        try:
            _, connection = await self._core.connect(self.id)
        except (SessionEnded, RunnerGone):
            return
        try:
            await connection.ask("stop", reply_s, by=by or self._core.author, ladder=ladder)
            self._notify_quietly("exit", None)
            await connection.answer(polite_s + _TERM_S + _KILL_S + reply_s)
        except RunnerGone:
            pass  # it has left
        finally:
            connection.close()

    # What it says.

    def _run(self, core: Core) -> None:
        state = ERROR
        try:
            why, stopped = drive(self._follow(core))
            state = STOPPED if stopped else ERROR
        except Interrupted:
            why, state = "its host closed", STOPPED
        except HoldfastError as problem:
            why = problem.message
        except Exception as problem:  # noqa: BLE001  silent, it would leave everybody waiting
            why = f"its reader failed: {in_words(problem)}"
            _logger().exception("the reader of language server %s failed", self.server)
        with self._turned:
            self._over = why
            self._become(state)
            self._turned.notify_all()
        self._book.fail_all(why)
        with self._writing:
            self._hang_up()

    async def _follow(self, core: Core) -> tuple[str, bool]:
        """Until the session is over: why it is, and whether somebody asked for that."""
        reader = Reader(core, self.id)
        try:
            while True:
                told = await reader.next(self._greeted_by)
                for message in told.messages:
                    self._hear(message)
                bad = told.bad or self._refused
                if bad is not None:
                    self._refused = None
                    await self._give_up_attempt(core, bad)
                if told.began is not None:
                    self._greet(told.began)
                if told.left is not None:
                    self._lost(told.left)
                if told.over:
                    return told.left or "its session has ended", told.asked
                if self._state == STARTING and time.monotonic() >= self._greeted_by:
                    await self._give_up_attempt(core, f"`initialize` was not answered within {INITIALIZE_S:g} s")
        finally:
            reader.close()

    def _greet(self, attempt: int) -> None:
        """A new process: it knows nothing of us, nor of what the last one was asked."""
        self._attempt = attempt
        self.diagnostics.clear()
        with self._turned:
            if self._state == STOPPING:
                return
            self._become(STARTING)
        self._greeted_by = time.monotonic() + INITIALIZE_S
        _, self._greeting = self._ask("initialize", self._initialize)
        self._greeting.add_done_callback(self._greeted)

    def _greeted(self, answer: Future[Any]) -> None:
        problem = answer.exception()
        if isinstance(problem, ServerRefused) and self._greeting is answer:
            self._refused = problem.message
        if problem is not None or self._greeting is not answer:
            return  # the end of this attempt is noticed by itself, or its time is
        self._greeted_by = float("inf")
        result = answer.result()
        self.capabilities = result.get("capabilities", {}) if isinstance(result, dict) else {}
        self._notify_quietly("initialized", {})
        try:
            drive(self._core.request(self.id, "update", ready=True, attempt=self._attempt))
        except HoldfastError:
            return
        with self._turned:
            if self._state == STARTING:
                self._become(RUNNING)

    def _lost(self, why: str) -> None:
        """This attempt is over, another may follow."""
        self._greeted_by = float("inf")
        self._greeting = None
        with self._turned:
            if self._state != STOPPING:
                self._become(ERROR)
        self._book.fail_all(why)
        with self._writing:
            self._hang_up()

    async def _give_up_attempt(self, core: Core, why: str) -> None:
        """It lives and is of no use: its runner may start another."""
        self._lost(why)
        if self._state == STOPPING:
            return  # it is being ended already, and by rungs
        try:
            await core.request(self.id, "send_signal", signal="KILL", target="tree", attempt=self._attempt)
        except (SessionEnded, RunnerGone):
            pass  # what we say of it is true by now

    def _hear(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            self._book.answer(message)
        elif "id" in message:
            self._answer(message["id"], str(method), message.get("params"))
        elif method == "textDocument/publishDiagnostics":
            params = message.get("params")
            if isinstance(params, dict):
                self.diagnostics.publish(params.get("uri"), params.get("diagnostics"))
            self._tell(str(method), params)
        else:
            self._tell(str(method), message.get("params"))

    def _tell(self, method: str, params: Any) -> None:
        try:
            self._notified(method, params)
        except Exception:  # noqa: BLE001  it is the host's own
            _logger().exception("a notification of language server %s met a failing callback", self.server)

    def _answer(self, number: object, method: str, params: Any) -> None:
        reply: dict[str, Any] = {"id": number}
        if method == "workspace/configuration":
            items = params.get("items", []) if isinstance(params, dict) else []
            reply["result"] = [None] * len(items)
        elif method in _NULL_ANSWERS:
            reply["result"] = None
        else:
            reply["error"] = {"code": _METHOD_NOT_FOUND, "message": f"this client has no {method}"}
        try:
            self._send(reply, None)
        except HoldfastError:
            pass  # it is gone, or does not read

    def _become(self, state: str) -> None:
        """Under the lock of `_turned`."""
        if self._state != state:
            self._state = state
            self._turned.notify_all()
            self._changed(state)


def _with_driver(core: Core, driver: Blocking) -> Core:
    """The same home, waited for in another way: this work has a thread of its own, whatever the host is."""
    other = copy.copy(core)
    other.driver = driver
    return other


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _logger() -> Any:
    import logging

    return logging.getLogger("holdfast.daemons")
