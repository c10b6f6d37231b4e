"""A supervised language server: a session whose stdin and stdout carry the protocol.

The runner restarts it in the same session. A thread of this host reads its messages from the log, initializes every new
attempt, and fails open requests as soon as their answer cannot come any more. The state follows from what was observed.
"""

from __future__ import annotations

import copy
import os
import threading
import time
from concurrent.futures import Future
from urllib.parse import quote

from .. import __version__
from ..core.wire import as_text
from ..errors import HoldfastError, RunnerGone, ServerRefused, SessionEnded, StdinClosed, Timeout, Unreachable
from ..sessions.driver import Blocking, Interrupted, Interruptible, drive, driven
from .handle import in_words
from .lsp_protocol import Diagnostics, OpenRequests, Reader, frame

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from ..model.options import StartOptions
    from ..sessions.connection import Connection
    from ..sessions.core import Core
    from ..sessions.start_request import Command

    Notified = Callable[[str, Any], object]

STOPPED, STARTING, RUNNING, STOPPING, ERROR = "stopped", "starting", "running", "stopping", "error"
# How long a server has to answer `initialize`.
INITIALIZE_S = 30.0
# A server that was healthy for this long starts its count of failed starts again.
HEALTHY_S = 60.0
REQUEST_S = 30.0
# How long after the caller's deadline a runner may still take a message.
_LATE_S = 0.5
# From `shutdown` to the first signal.
_POLITE_S = 5.0
_TERM_S = 2.0
_KILL_S = 4.0
# In base64, this is less than a runner takes as one piece of input.
_UNIT_BYTES = 256 << 10

# Requests of servers that are answered with null, so that they do not wait.
_NULL_ANSWERS = ("client/registerCapability", "client/unregisterCapability", "window/workDoneProgress/create")
_METHOD_NOT_FOUND = -32601


def options_for(server: str, max_restarts: int, root: str | None, options: StartOptions) -> StartOptions:
    """The start options of a language server, over those that were given."""
    metadata = {**options.get("metadata", {}), "server": server, "max_restarts": max_restarts}
    made: dict[str, Any] = {
        **options,
        "kind": "lsp",
        "stdin": "open",
        "lifetime": "owner",
        "cwd": options.get("cwd") or root,
        "ready": {"told": True, "timeout": INITIALIZE_S},
        "health": {"told": True},
        "restart": {
            "policy": "on-failure",
            # A server that exits without a stop has failed, whatever its code.
            "success_codes": [],
            "in_a_row": max_restarts,
            "reset_after": HEALTHY_S,
            "reset_on_ready": False,
            "attempts": 10_000,
        },
        "metadata": metadata,
    }
    return made  # type: ignore[return-value]


def initialize_params(root: str | None, given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The parameters of `initialize`: those that every server needs, and those of the host."""
    folder = os.path.abspath(root or os.getcwd())
    uri = "file://" + quote(folder)
    return {
        "processId": os.getpid(),
        "clientInfo": {"name": "holdfast", "version": __version__},
        "rootUri": uri,
        "workspaceFolders": [{"uri": uri, "name": os.path.basename(folder)}],
        "capabilities": {
            "textDocument": {"publishDiagnostics": {"relatedInformation": False}},
            "workspace": {"configuration": True, "workspaceFolders": True},
        },
        **(given or {}),
    }


def name_of(command: Command) -> str:
    """The name of the program."""
    words = command.split() if isinstance(command, str) else command
    return os.path.basename(words[0]) if words and words[0] else "server"


class Server:
    """What both facades have in common. `changed(state)` is called whenever the state changes."""

    def __init__(
        self,
        core: Core,
        id: str,
        server: str,
        *,
        root: str | None = None,
        initialize: Mapping[str, Any] | None = None,
        changed: Callable[[str], None] = lambda _state: None,
        notified: Notified | None = None,
    ) -> None:
        self.id = id
        self.server = server
        self.diagnostics = Diagnostics()
        # What the server said it can do, once it was initialized.
        self.capabilities: dict[str, Any] = {}
        # The attempt that messages are for: a restarted server knows nothing of them.
        self._attempt = 1
        self._initialize = initialize_params(root, initialize)
        self._changed = changed
        self._notified = notified
        self._book = OpenRequests(id, server)
        self._state = STARTING
        self._turned = threading.Condition()
        self._over: str | None = None
        self._initializing: Future[Any] | None = None
        self._initialized_by = float("inf")
        # Why the server refused to be initialized.
        self._refused: str | None = None
        self._writing = threading.Lock()
        self._writer: Connection | None = None
        # How callers wait. The reading thread, and writing, block.
        self._driver = core.driver
        self._core = _with_driver(core, Blocking())
        self._interruptible: Interruptible | None = Interruptible()
        follower = _with_driver(core, self._interruptible)
        self._thread = threading.Thread(target=self._run, args=(follower,), name=f"holdfast {server}", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.server} {self.id} {self._state}>"

    @property
    def state(self) -> str:
        return self._state

    @property
    def over(self) -> bool:
        """Is it gone for good, or being stopped?"""
        return self._over is not None or self._state == STOPPING

    @property
    def open_requests(self) -> int:
        return len(self._book)

    @property
    def restarts(self) -> int:
        return self._attempt - 1

    # What is asked of it.

    def ask(self, method: str, params: Any = None, *, timeout: float | None = REQUEST_S) -> tuple[int, Future[Any]]:
        """Send a request without waiting for its answer: its number, and the future of the answer. Blocks while the
        server is not ready."""
        deadline = _deadline(timeout)
        self._wait_running(timeout)
        return self._ask(method, params, _left(deadline))

    def begin_stop(self, by: str | None = None) -> threading.Thread:
        """Stop it in a thread."""
        stopping = threading.Thread(target=self._stop, args=(by,), name=f"holdfast stop {self.server}", daemon=True)
        stopping.start()
        return stopping

    def close(self) -> None:
        """Disconnect this host from it."""
        with self._turned:
            interruptible, self._interruptible = self._interruptible, None
        if interruptible is not None:
            interruptible.interrupt()
            self._thread.join()
            interruptible.close()

    async def _result(self, answer: Future[Any], timeout: float | None) -> Any:
        return answer.result(timeout)

    def _wait_running(self, timeout: float | None) -> None:
        with self._turned:
            if not self._turned.wait_for(lambda: self._state == RUNNING or self.over, timeout):
                raise Timeout(f"language server {self.server}", timeout or 0.0)
            if self._state != RUNNING:
                raise self._book.gone(None, self._over or "it is being stopped")

    def _stop(self, by: str | None) -> None:
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
                pass  # the stop follows
        drive(self._end_session(by, max(0.0, deadline - time.monotonic())))
        self._thread.join()

    def _ask(self, method: str, params: Any, left_s: float | None = None) -> tuple[int, Future[Any]]:
        number, answer = self._book.enter(method)
        self._send_request(number, method, params, left_s)
        return number, answer

    def _send_request(self, number: int, method: str, params: Any, left_s: float | None) -> None:
        """A request that cannot be sent has failed."""
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
                self._disconnect()
                raise self._book.gone(method, problem.message) from None

    async def _write(self, payload: bytes, left_s: float | None) -> None:
        """A message is refused as a whole if the runner's queue has no room. One that is larger than the queue is
        written in pieces, each of which is waited for."""
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
                raise StdinClosed(self.id, "the server no longer reads its input")

    def _disconnect(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    async def _end_session(self, by: str | None, polite_s: float) -> None:
        """The stop is recorded before the server gets `exit`, so that its end has that cause."""
        reply_s = self._core.config.hosts_reply_timeout
        ladder = [
            # CONT continues a stopped server and does nothing to a running one: this is its time to leave by itself.
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
            pass  # its runner has left
        finally:
            connection.close()

    # What it sends.

    def _run(self, core: Core) -> None:
        state = ERROR
        try:
            why, stopped = drive(self._follow(core))
            state = STOPPED if stopped else ERROR
        except Interrupted:
            why, state = "its host closed", STOPPED
        except HoldfastError as problem:
            why = problem.message
        except Exception as problem:  # noqa: BLE001  else callers would wait for nothing
            why = f"its reader failed: {in_words(problem)}"
            _logger().exception("the reader of language server %s failed", self.server)
        with self._turned:
            self._over = why
            self._become(state)
            self._turned.notify_all()
        self._book.fail_all(why)
        with self._writing:
            self._disconnect()

    async def _follow(self, core: Core) -> tuple[str, bool]:
        """Read until the session is over. Returns why it is over, and whether that was asked for."""
        reader = Reader(core, self.id)
        try:
            while True:
                news = await reader.next(self._initialized_by)
                for message in news.messages:
                    self._receive(message)
                bad = news.bad or self._refused
                if bad is not None:
                    self._refused = None
                    await self._give_up_attempt(core, bad)
                if news.began is not None:
                    self._start_attempt(news.began)
                if news.left is not None:
                    self._lost(news.left)
                if news.over:
                    return news.left or "its session has ended", news.asked
                if self._state == STARTING and time.monotonic() >= self._initialized_by:
                    await self._give_up_attempt(core, f"`initialize` was not answered within {INITIALIZE_S:g} s")
        finally:
            reader.close()

    def _start_attempt(self, attempt: int) -> None:
        """Initialize a new process."""
        self._attempt = attempt
        self.diagnostics.clear()
        with self._turned:
            if self._state == STOPPING:
                return
            self._become(STARTING)
        self._initialized_by = time.monotonic() + INITIALIZE_S
        _, self._initializing = self._ask("initialize", self._initialize)
        self._initializing.add_done_callback(self._initialized)

    def _initialized(self, answer: Future[Any]) -> None:
        problem = answer.exception()
        if isinstance(problem, ServerRefused) and self._initializing is answer:
            self._refused = problem.message
        if problem is not None or self._initializing is not answer:
            return  # the reader notices the end of this attempt, or that its time is over
        self._initialized_by = float("inf")
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
        """This attempt is over; another may follow."""
        self._initialized_by = float("inf")
        self._initializing = None
        with self._turned:
            if self._state != STOPPING:
                self._become(ERROR)
        self._book.fail_all(why)
        with self._writing:
            self._disconnect()

    async def _give_up_attempt(self, core: Core, why: str) -> None:
        """It runs and cannot be used: kill it, so that its runner may restart it."""
        self._lost(why)
        if self._state == STOPPING:
            return  # the stop ends it
        try:
            await core.request(self.id, "send_signal", signal="KILL", target="tree", attempt=self._attempt)
        except (SessionEnded, RunnerGone):
            pass  # it has ended by itself

    def _receive(self, message: dict[str, Any]) -> None:
        method = message.get("method")
        if method is None:
            self._book.answer(message)
        elif "id" in message:
            self._answer(message["id"], str(method), message.get("params"))
        elif method == "textDocument/publishDiagnostics":
            params = message.get("params")
            if isinstance(params, dict):
                self.diagnostics.publish(params.get("uri"), params.get("diagnostics"))
            self._notify_host(str(method), params)
        else:
            self._notify_host(str(method), message.get("params"))

    def _notify_host(self, method: str, params: Any) -> None:
        if self._notified is None:
            return
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
    """The same home with another driver, for work in a thread of its own."""
    other = copy.copy(core)
    other.driver = driver
    return other


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _logger() -> Any:
    import logging

    return logging.getLogger("holdfast.daemons")


class AsyncLanguageServer(Server):
    """A language server, for asyncio. Calls may come from any thread."""

    async def request(self, method: str, params: Any = None, *, timeout: float | None = REQUEST_S) -> Any:
        """Send a request and wait for the answer. ServerGone as soon as the answer cannot come any more, ServerRefused
        if the server answers with an error, Timeout if it does not answer. While the server starts or restarts, the
        request waits."""
        deadline = _deadline(timeout)
        await AsyncLanguageServer.wait_running(self, timeout)
        number, answer = self._book.enter(method)
        try:
            await self._driver.call(lambda: self._send_request(number, method, params, _left(deadline)))
            return await self._result(answer, _left(deadline))
        except TimeoutError:
            raise Timeout(f"the answer of {self.server} to {method}", timeout or 0.0) from None
        finally:
            # Also if the caller was cancelled: the server need not continue.
            if self._book.withdraw(number):
                await self._driver.call(lambda: self._notify_quietly("$/cancelRequest", {"id": number}, 0.0))

    async def notify(self, method: str, params: Any = None, *, timeout: float | None = REQUEST_S) -> None:
        deadline = _deadline(timeout)
        await AsyncLanguageServer.wait_running(self, timeout)
        await self._driver.call(lambda: self._send({"method": method, "params": params}, method, _left(deadline)))

    async def wait_running(self, timeout: float | None = REQUEST_S) -> None:
        """Wait until it has been initialized. ServerGone if that never happens."""
        await self._driver.call(lambda: self._wait_running(timeout))

    async def stop(self, by: str | None = None) -> None:
        """Ask it to shut down, give it a moment, then stop it. It is not restarted after this."""
        await self._driver.call(lambda: self._stop(by))

    async def _result(self, answer: Future[Any], timeout: float | None) -> Any:
        import asyncio

        async with asyncio.timeout(timeout):
            return await asyncio.wrap_future(answer)


class LanguageServer(Server):
    """A language server, for programs that block. Calls may come from any thread."""

    request = driven(AsyncLanguageServer.request)
    notify = driven(AsyncLanguageServer.notify)
    wait_running = driven(AsyncLanguageServer.wait_running)
    stop = driven(AsyncLanguageServer.stop)
