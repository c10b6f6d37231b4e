"""A network cable in the hands of a test: TCP connections pass through it and can be held up, broken off or refused."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable

LOOPBACK = "127.0.0.1"

_CHUNK_BYTES = 65536
_BACKLOG = 64


class Forwarder:
    """Listens on a free port of loopback and passes each connection on to another port."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        # Bound and never listening: keeps the port ours while nobody listens there.
        self._holder = bound(0)
        self.port: int = self._holder.getsockname()[1]
        self._flowing = True
        self._changed = threading.Condition()
        self._links: set[Link] = set()
        self._listener: socket.socket | None = None
        self._acceptor: threading.Thread | None = None
        self._listen()

    @property
    def connections(self) -> int:
        """How many pass through now."""
        with self._changed:
            return len(self._links)

    def cut(self) -> None:
        """Nothing passes: connections hang, and so does whoever makes a new one."""
        with self._changed:
            self._flowing = False

    def mend(self) -> None:
        """Everything passes again, also what was held up; somebody listens."""
        with self._changed:
            self._flowing = True
            self._changed.notify_all()
        if self._listener is None:
            self._listen()

    def drop(self) -> None:
        """Connections are broken off on both sides; new ones fare as before."""
        with self._changed:
            links = list(self._links)
            for link in links:
                link.break_off()
            self._changed.notify_all()
        for link in links:
            link.join()

    def down(self) -> None:
        """Connections are broken off and new ones refused."""
        if self._listener is not None and self._acceptor is not None:
            with self._changed:
                listener, self._listener = self._listener, None
                # Wakes accept(), which close() would not.
                listener.shutdown(socket.SHUT_RDWR)
                self._changed.notify_all()
            self._acceptor.join()
            listener.close()
        self.drop()

    def close(self) -> None:
        self.down()
        self._holder.close()

    def _listen(self) -> None:
        listener = bound(self.port)
        listener.listen(_BACKLOG)
        self._listener = listener
        self._acceptor = threading.Thread(target=self._accept, args=(listener,), name="forwarder", daemon=True)
        self._acceptor.start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            self._wait_flowing(lambda: self._listener is not listener)
            if self._listener is not listener:
                near.close()
                return
            try:
                far = socket.create_connection((LOOPBACK, self._target_port))
            except OSError:
                near.close()
                continue
            with self._changed:
                self._links.add(Link(near, far, self._wait_flowing, self._forget))

    def _wait_flowing(self, or_else: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._flowing or or_else())

    def _forget(self, link: Link) -> None:
        with self._changed:
            self._links.discard(link)


class Link:
    """One connection: two sockets and a thread for each direction."""

    def __init__(
        self,
        near: socket.socket,
        far: socket.socket,
        wait_flowing: Callable[[Callable[[], bool]], None],
        forget: Callable[[Link], None],
    ) -> None:
        self._ends = (near, far)
        self._wait_flowing = wait_flowing
        self._forget = forget
        self._is_broken = False
        self._open_directions = 2
        self._closing = threading.Lock()
        self._threads = [
            threading.Thread(target=self._pump, args=ends, name="forwarder", daemon=True)
            for ends in ((near, far), (far, near))
        ]
        for thread in self._threads:
            thread.start()

    def break_off(self) -> None:
        self._is_broken = True
        with self._closing:
            self._shut_down()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        try:
            while data := source.recv(_CHUNK_BYTES):
                self._wait_flowing(lambda: self._is_broken)
                sink.sendall(data)
            self._wait_flowing(lambda: self._is_broken)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            # One side is gone; the other learns it as soon as anything passes again.
            self._wait_flowing(lambda: self._is_broken)
            self._shut_down()
        with self._closing:
            self._open_directions -= 1
            if self._open_directions:
                return
            for end in self._ends:
                end.close()
        self._forget(self)

    def _shut_down(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


def bound(port: int) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((LOOPBACK, port))
    return made
