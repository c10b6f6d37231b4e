"""Greet many runners at once, under one bound for all of them."""

from __future__ import annotations

import time

from .. import wire
from ..errors import DamagedRecord, HoldfastError, IdentityMismatch
from ..model import RUNNING, STARTING, UNREACHABLE
from ..runner import shapes
from .connection import call, check_answer, greeting, prove, say
from .observe import Observed, from_files, halted, read_again

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket as socket

    from .driver import Driver
    from .observe import Files

# Connections open at a time: far below the usual descriptor limit of a process.
_AT_ONCE = 256


class _Called:
    """A runner that was called and has not answered yet."""

    __slots__ = ("decoder", "place", "sock", "until")

    def __init__(self, place: int, sock: socket.socket, until: float) -> None:
        self.place = place
        self.sock = sock
        self.decoder = wire.Decoder()
        self.until = until


async def sweep(driver: Driver, sessions: list[Files], *, author: str, timeout: float) -> list[Observed]:
    """Look at each, identity proven. What does not answer within `timeout`, counted for all together, is
    `unreachable`; no wedged runner delays the answer of another. Where more are to be asked than can be at once, one
    that is silent makes room for others after its share of the time, and is asked again when all had their turn."""
    deadline = time.monotonic() + timeout
    observed = [_unless_halted(from_files(files)) for files in sessions]
    asked = [place for place, seen in enumerate(observed) if seen.state in (RUNNING, STARTING)]
    share = timeout * min(1.0, _AT_ONCE / (len(asked) or 1))
    waiting: dict[int, _Called] = {}
    silent: set[int] = set()
    hello = greeting(author)
    try:
        while asked or waiting:
            while asked and len(waiting) < _AT_ONCE:
                place = asked.pop()
                sock = _call(observed[place].files, hello)
                if sock is None:
                    observed[place] = _silent(observed[place].files)
                else:
                    waiting[sock.fileno()] = _Called(place, sock, time.monotonic() + share)
            if not waiting:
                continue
            until = min(deadline, next(iter(waiting.values())).until) if asked else deadline
            ready = await driver.ready(waiting, (), until - time.monotonic())
            for fd in ready:
                called = waiting[fd]
                seen = _hear(called.sock, called.decoder, observed[called.place].files)
                if seen is not None:
                    observed[called.place] = seen
                    del waiting[fd]
                    called.sock.close()
            now = time.monotonic()
            if not ready and now >= deadline:
                break
            for fd, called in list(waiting.items()) if asked else ():
                if called.until <= now:
                    del waiting[fd]
                    called.sock.close()
                    asked.insert(0, called.place)
                    silent.add(called.place)
    finally:
        for called in waiting.values():
            called.sock.close()
    silent.update(called.place for called in waiting.values())
    for place in {*asked, *silent}:
        if observed[place].state in (RUNNING, STARTING) and observed[place].live is None:
            why = f"its runner lives and did not answer within {timeout:g} s"
            if place not in silent:
                why = "there was no time left to ask its runner"
            observed[place] = Observed(observed[place].files, UNREACHABLE, why)
    return observed


def _unless_halted(seen: Observed) -> Observed:
    if seen.state not in (RUNNING, STARTING) or not halted(seen.files):
        return seen
    return Observed(seen.files, UNREACHABLE, "its runner is stopped (SIGSTOP); send it SIGCONT to resume")


def _call(files: Files, hello: bytes) -> socket.socket | None:
    try:
        sock = call(files.endpoint)
    except OSError:
        return None
    say(sock, hello)
    return sock


def _silent(files: Files) -> Observed:
    """Nobody listens at the endpoint. Either the runner left just now, or its socket was taken away; or it is about to
    listen, and has not even started the command."""
    seen = from_files(read_again(files))
    if seen.state == RUNNING:
        return Observed(seen.files, UNREACHABLE, f"its runner lives, but nobody listens at {files.endpoint}")
    return seen


def _hear(sock: socket.socket, decoder: wire.Decoder, files: Files) -> Observed | None:
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
    hello = frames[0] if isinstance(frames[0], dict) else {}
    try:
        if hello.get("type") == "error":
            raise HoldfastError.from_wire(hello)
        prove(files.id, hello, files.spec, files.state)
        check_answer(files.id, files.endpoint, hello, shapes.HELLO)
    except DamagedRecord as problem:
        damaged = Observed(files, UNREACHABLE, problem.message)
        damaged.damage = problem
        return damaged
    except IdentityMismatch as problem:
        other = Observed(files, UNREACHABLE, f"something else answers at its endpoint: {problem.message}")
        other.mismatch = problem.part
        return other
    except HoldfastError as problem:
        return Observed(files, UNREACHABLE, problem.message)
    return Observed(files, hello["status"]["state"], "its runner answered", live=hello["status"])
