"""Hosts that knock at a deputy's door: each has a channel of the link to itself, and waits while there is none."""

from __future__ import annotations

import _socket as socket
import os

from . import far, sockets, wire
from .endpoint import CLIENTS_MAX
from .loop import READ, WRITE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .link import Link
    from .loop import Loop

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
        self._number = far.FIRST_CHANNEL - 1
        self._link: Link | None = None
        # Has the runner said anything to anybody?
        self.were_answered = False

    def adopt(self, sock: socket.socket) -> Caller:
        """The first is whoever asks for the session."""
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
        return sockets.has_left(self._callers[far.FIRST_CHANNEL].sock)

    def begin(self, link: Link) -> None:
        """The first has its channel by asking for the session."""
        self._link = link

    def link_to(self, link: Link) -> None:
        self._link = link
        for caller in self._callers.values():
            self._open(caller)

    def _open(self, caller: Caller) -> None:
        if self._link is not None and not caller.leaving:
            self._link.tell({"type": "open", "channel": caller.number})

    def turn(self) -> None:
        """Nobody is listened to while there is no link, or a full one."""
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
            self._link.tell({"type": "close", "channel": caller.number})
            self._drop(caller)

    def hear(self, number: int, raw: bytes) -> None:
        """What the runner says to one of them."""
        self.were_answered = True
        caller = self._callers.get(number)
        if caller is not None:
            caller.answered = True
            caller.unsent += raw
            if len(caller.unsent) > 2 * far.WINDOW_BYTES:
                raise ValueError("the far end says more than anybody has read")
            self._send(caller)
            if sum(len(each.unsent) for each in self._callers.values()) > _UNSENT_MAX_BYTES:
                # The one that reads least costs the others nothing.
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
            self.turn_away(caller, why)

    def turn_away(self, caller: Caller, why: str) -> None:
        if not caller.answered:
            facts = {"id": self._session, "pid": None, "waited_s": 0.0}
            caller.unsent += wire.control(wire.error({}, "unreachable", why, **facts))
        self._close_after_sending(caller)

    def refuse(self, frame: dict[str, object]) -> None:
        for caller in self._callers.values():
            caller.unsent += wire.control(frame)

    def say_farewell(self) -> None:
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
                self._link.tell({"type": "close", "channel": caller.number})
            return
        if sent and self._link is not None:
            self._link.tell({"type": "read", "channel": caller.number, "bytes": sent})
        if caller.leaving and not caller.unsent:
            self._drop(caller)

    def _close_after_sending(self, caller: Caller) -> None:
        caller.leaving = True
        self._send(caller)

    def _drop(self, caller: Caller) -> None:
        if self._callers.pop(caller.number, None) is not None:
            self._loop.watch(caller.sock.fileno(), 0, caller.ready)
            caller.sock.close()
