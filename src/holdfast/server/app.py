"""A request after the gate: its scope, its session, its values, and the answer of its handler."""

from __future__ import annotations

import asyncio
import hmac
import json
import secrets
import time
from typing import TYPE_CHECKING

from starlette.responses import Response, StreamingResponse
from starlette.routing import Route, Router, WebSocketRoute

from .. import __version__
from ..errors import (
    AmbiguousId,
    BadArgument,
    BadRequest,
    Busy,
    HoldfastError,
    KeyReused,
    NameTaken,
    NoSuchNode,
    NotFound,
    Removed,
    ShuttingDown,
    Unsupported,
)
from ..sessions.aio import AsyncHoldfast, AsyncSession, as_author
from ..sessions.observe import from_files, read_files
from .attach import attach_params, attend
from .audit import Audit
from .endpoints import as_json, by_path, read_body, read_query
from .events import Events
from .gate import ATTACH, NODES, Patience, Tickets, peer_of
from .metrics import Metrics
from .observers import Feeds
from .responses import NoSuchAddress, ScopeMissing, TicketSpent, reached
from .searching import Searches
from .tokens import Tokens, digest, home_token

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from typing import Any, TypeVar

    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send
    from starlette.websockets import WebSocket

    from ..nodes.serving import Nodes
    from .attach import Role
    from .endpoints import Endpoint
    from .gate import Ticket
    from .tokens import Caller

    T = TypeVar("T")


class Ask:
    """One request: its caller, the host that acts in the caller's name, its session and its values."""

    def __init__(self, app: App, request: Request, row: Endpoint) -> None:
        self.app = app
        self.request = request
        self.row = row
        self.query: dict[str, Any] = {}
        self.body: dict[str, Any] = {}
        self.facts: dict[str, Any] = {}
        self._session: AsyncSession | None = None

    @property
    def caller(self) -> Caller:
        caller: Caller = self.request.state.caller
        return caller

    @property
    def hf(self) -> AsyncHoldfast:
        return self.app.host(self.caller)

    @property
    def nodes(self) -> Nodes | None:
        """The other machines that the caller may see."""
        return None if self.request.scope["state"].get("is_from_view") else self.app.nodes

    @property
    def session(self) -> AsyncSession:
        """The session as its files have it; `refresh` asks its runner."""
        assert self._session is not None
        return self._session

    def part(self, name: str) -> str:
        part: str = self.request.path_params[name]
        return part

    async def read(self) -> None:
        """Read and check what was sent. The session comes last: its runner may take a while."""
        if self.row.query is not None:
            self.query = read_query(self.request.query_params, self.row.query)
        if self.row.body is not None:
            try:
                self.body = await read_body(self.request, self.row, self.app.config)
            except BadArgument as error:
                raise _pointed(error, {}) from None
        if "{id}" in self.row.path:
            self._session = self.app.find(self.hf, self.caller, self.part("id"))
            self.facts["session"] = self._session.id

    def check_wait(self, name: str, seconds: float) -> float:
        """Check whether a request may ask to wait this long."""
        most = self.app.config.server_long_poll
        if seconds > most:
            raise reached(BadArgument(name, f"{seconds:g} s is too long", "ask again afterwards"), "long_poll", most)
        return seconds

    async def serving(self, work: Awaitable[T]) -> T:
        """Wait for something that may take long, but not while the server is shutting down."""
        task = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self.app.leaving.wait())
        try:
            await asyncio.wait([task, leaving], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise ShuttingDown
            return task.result()
        finally:
            leaving.cancel()
            task.cancel()


class App:
    """The routes over one home, and everything that a server has for them. `directory` has its files, `token` is that
    of the home. `leaving` is set when the server is asked to shut down."""

    def __init__(
        self,
        hf: AsyncHoldfast,
        *,
        directory: str,
        token: str,
        url: str,
        clock: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
        leaving: asyncio.Event,
    ) -> None:
        self.hf = hf
        # The other machines that this home sees or that see it, once there are any.
        self.nodes: Nodes | None = None
        self.instance = secrets.token_hex(8)
        self.url = url
        self.leaving = leaving
        self.tickets = Tickets(clock, hf.config.server_tickets)
        self.tokens = Tokens(home_token(token), directory, most=hf.config.server_tokens)
        self._key = digest(token)
        self.patience = Patience(clock, sleep)
        self.audit, self.metrics = Audit(directory), Metrics()
        self.events = Events(hf, self.instance, self.metrics, self.tokens, leaving)
        self.config = hf.config
        self.feeds = Feeds(hf.config.server_observers_per_session, hf.config.server_lag_bytes)
        self.searches = Searches(hf.config.server_search_workers, hf.config.server_search_time)
        self._hosts: dict[str, AsyncHoldfast] = {}
        self._starts: dict[str, list[float]] = {}
        # The event loop refers to tasks weakly.
        self._tasks: set[asyncio.Task[Any]] = set()
        self.routes = [
            *(Route(path, self._handler(rows), methods=list(rows)) for path, rows in by_path().items()),
            WebSocketRoute(ATTACH, self.attach),
            Route(ATTACH, self.no_upgrade),
        ]
        self._router = Router(self.routes, redirect_slashes=False, default=_nowhere)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"].startswith(NODES):
            if self.nodes is None or scope["state"].get("is_from_view"):
                raise NoSuchNode(scope["path"].split("/")[3][:80])
            from ..nodes.routes import forward

            await forward(self, scope, receive, send)
            return
        # Only inside an app do Starlette's routes raise errors instead of answering in their own way.
        await self._router({**scope, "app": self}, receive, send)

    def _handler(self, rows: dict[str, Endpoint]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            row = rows["GET" if request.method == "HEAD" else request.method]
            request.scope["state"]["route"] = row.path
            ask = Ask(self, request, row)
            if row.scope is not None:
                ask.caller.must(row.scope)
                if row.is_for_all and ask.caller.is_narrowed:
                    raise ScopeMissing(f"{row.scope} of the whole home")
            await ask.read()
            try:
                answer = await row.run(ask)
            except HoldfastError as error:
                if isinstance(error, BadArgument) and row.body is not None:
                    raise _pointed(error, ask.body) from None
                raise self.without_hidden(ask.caller, error) if row.scope is not None else error from None
            if row.audit is not None:
                self.note(row.audit, request, **ask.facts)
            if request.method == "HEAD" and isinstance(answer, StreamingResponse):
                # Its length is that of the streamed answer: unknown.
                answer.body_iterator = _nothing()
            return as_json(answer, row.status) if isinstance(answer, dict) else answer

        return handle

    def note(self, action: str, request: Request, **facts: Any) -> None:
        caller: Caller | None = getattr(request.state, "caller", None)
        by = None if caller is None else caller.author
        token = None if caller is None else caller.id
        peer, request_id = peer_of(request.scope), request.state.request_id
        self.audit.note(action, by=by, token=token, peer=peer, request_id=request_id, **facts)

    def host(self, caller: Caller) -> AsyncHoldfast:
        """A host whose author is recorded with every request to a runner."""
        if caller.author not in self._hosts:
            self._hosts[caller.author] = as_author(self.hf, caller.author)
        return self._hosts[caller.author]

    def find(self, hf: AsyncHoldfast, caller: Caller, ref: str) -> AsyncSession:
        """Find a session by id, the beginning of an id, or name. Sessions that a narrowed token may not see are not
        found."""
        try:
            # Pids and `last` only mean something at the machine itself.
            if ref == "last" or ref.isdigit():
                raise NotFound(ref)
            id = hf._core.find(ref)
            session = AsyncSession(hf._core, from_files(read_files(hf.home, id)).snapshot())
        except (AmbiguousId, Removed):
            if caller.is_narrowed:
                raise NotFound(ref) from None
            raise
        if not caller.sees(session.id, session.owner, session.labels):
            raise NotFound(ref)
        return session

    def without_hidden(self, caller: Caller, error: HoldfastError) -> HoldfastError:
        """The error without the names of sessions that a narrowed token may not see."""
        if caller.is_narrowed and isinstance(error, NameTaken | KeyReused) and error.holder is not None:
            try:
                self.find(self.hf, caller, error.holder)
            except NotFound:
                return NameTaken(error.name, None) if isinstance(error, NameTaken) else KeyReused(error.key, None)
        return error

    def digest_of(self, sent: dict[str, Any]) -> str:
        """The digest of a body. It is keyed, so that it does not betray a variable with few possible values."""
        return hmac.new(self._key, json.dumps(sent, sort_keys=True).encode(), "sha256").hexdigest()

    def spawn(self, work: Awaitable[T]) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def count_start(self, caller: Caller) -> None:
        now = time.monotonic()
        recent = [at for at in self._starts.get(caller.id, ()) if now - at < 60]
        most = self.config.server_starts_per_minute
        if len(recent) >= most:
            raise reached(Busy("too many starts within a minute"), "starts_per_minute", most)
        self._starts[caller.id] = [*recent, now]

    async def attach(self, socket: WebSocket) -> None:
        socket.scope["state"]["route"] = ATTACH
        caller: Caller = socket.state.caller
        ticket: Ticket | None = socket.state.ticket
        try:
            session = self.find(self.host(caller), caller, socket.path_params["id"])
        except NotFound:
            if ticket is None:
                raise
            raise TicketSpent from None
        if ticket is not None and session.id != ticket.session:
            raise TicketSpent
        params = attach_params(socket.query_params, tty=session.tty)
        # Input of a session on pipes is sent with `POST .../input`.
        usual: Role = "control" if session.tty else "observe"
        role = params.role or usual if ticket is None else ticket.role
        if params.role not in (None, role):
            raise TicketSpent
        caller.must(role)
        connected = self.metrics.clients
        connected["ws", role] += 1
        try:
            with self.tokens.in_use(caller):
                await attend(self, socket, session, params, role, caller.label)
        finally:
            connected["ws", role] -= 1

    async def no_upgrade(self, request: Request) -> Response:
        raise BadRequest("this address accepts only WebSocket upgrades", "send a WebSocket upgrade, version 13")


async def _nowhere(scope: Scope, receive: Receive, send: Send) -> None:
    if str(scope["state"].get("peer")).startswith("view:"):
        # A view of a later release may know more addresses.
        raise Unsupported(f"{scope.get('method', 'a WebSocket at')} {scope['path'][:80]}", __version__, of="the node")
    raise NoSuchAddress


async def _nothing() -> AsyncIterator[bytes]:
    return
    yield b""


def _pointed(error: BadArgument, body: dict[str, Any]) -> BadArgument:
    """Add the place in the body, as a JSON pointer. If a runner refuses a value, only its message is given."""
    argument = str(error.facts.get("argument"))
    waits = body.get("wait_for")
    path = [argument]
    if argument not in body and isinstance(waits, dict):
        path = ["wait_for", argument] if argument in waits else ["wait_for"]
    pointer = "".join(f"/{part.replace('~', '~0').replace('/', '~1')}" for part in path)
    error.facts.setdefault("errors", [{"pointer": pointer, "detail": error.facts.get("why") or error.message}])
    return error
