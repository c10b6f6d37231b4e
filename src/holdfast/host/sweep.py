"""Greet many runners at once, under one bound for all of them."""

from __future__ import annotations

import _socket as socket
import time

from .. import wire
from ..errors import HoldfastError, IdentityMismatch
from ..model import RUNNING, STARTING, UNREACHABLE
from ..runner import sockets
from .connection import Connection, greeting, say
from .observe import Observed, from_files, read_again

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .driver import Driver
    from .observe import Files

# Connections open at a time: far below the usual descriptor limit of a process.
_AT_ONCE = 256


async def sweep(driver: Driver, sessions: list[Files], *, author: str, timeout: float) -> list[Observed]:
    """Look at each, identity proven. What does not answer within `timeout`, counted for all together, is
    `unreachable`; no wedged runner delays the answer of another."""
    deadline = time.monotonic() + timeout
    observed = [from_files(files) for files in sessions]
    asked = [place for place, seen in enumerate(observed) if seen.state in (RUNNING, STARTING)]
    waiting: dict[int, tuple[int, socket.socket, wire.Decoder]] = {}
    hello = greeting(author)
    while asked or waiting:
        while asked and len(waiting) < _AT_ONCE:
            place = asked.pop()
            sock = _call(observed[place].files, hello)
            if sock is None:
                observed[place] = _silent(observed[place].files)
            else:
                waiting[sock.fileno()] = (place, sock, wire.Decoder())
        if not waiting:
            continue
        ready = await driver.ready(waiting, (), deadline - time.monotonic())
        if not ready and time.monotonic() >= deadline:
            break
        for fd in ready:
            place, sock, decoder = waiting[fd]
            seen = _hear(driver, sock, decoder, observed[place].files, author)
            if seen is not None:
                observed[place] = seen
                del waiting[fd]
                sock.close()
    for place, sock, _ in waiting.values():
        sock.close()
        observed[place] = Observed(
            observed[place].files, UNREACHABLE, f"its runner lives and did not answer within {timeout:g} s"
        )
    for place in asked:
        observed[place] = Observed(observed[place].files, UNREACHABLE, "there was no time left to ask its runner")
    return observed


def _call(files: Files, hello: bytes) -> socket.socket | None:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        sockets.connect_unix(sock, files.endpoint)
    except OSError:
        sock.close()
        return None
    say(sock, hello)
    return sock


def _silent(files: Files) -> Observed:
    """Nobody listens at the endpoint. Either the runner left just now, or its socket was taken away."""
    seen = from_files(read_again(files))
    if seen.state in (RUNNING, STARTING):
        return Observed(seen.files, UNREACHABLE, f"its runner lives, but nobody listens at {files.endpoint}")
    return seen


def _hear(driver: Driver, sock: socket.socket, decoder: wire.Decoder, files: Files, author: str) -> Observed | None:
    """What this runner said; None when it has not finished its sentence."""
    try:
        received = sock.recv(1 << 16)
    except BlockingIOError:
        return None
    except OSError:
        received = b""
    if not received:
        return _silent(files)
    try:
        frames = decoder.feed(received)
    except wire.BadFrame:
        return Observed(files, UNREACHABLE, "something else answers at its endpoint")
    if not frames:
        return None
    message = frames[0]
    connection = Connection(driver, sock, files.id, author)
    connection.hello = message if isinstance(message, dict) else {}
    try:
        if connection.hello.get("type") == "error":
            raise HoldfastError.from_wire(connection.hello)
        connection.prove(files.spec, files.state)
    except IdentityMismatch as problem:
        return Observed(files, UNREACHABLE, f"something else answers at its endpoint: {problem.message}")
    except HoldfastError as problem:
        return Observed(files, UNREACHABLE, problem.message)
    status = connection.hello["status"]
    return Observed(files, status["state"], "its runner answered", live=status)
