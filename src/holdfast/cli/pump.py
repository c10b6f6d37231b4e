"""Our standard input into that of a session, piece by piece, no faster than the command takes it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..host.connection import Connection
    from ..host.core import Core
    from ..model import Typed

_PIECE_BYTES = 1 << 16


class Source:
    """Where input comes from: a file, or our own with `-`. Read piece by piece."""

    def __init__(self, path: str = "-") -> None:
        self._fd = 0 if path == "-" else os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._read: list[bytes] = []

    def is_longer_than(self, size: int) -> bool:
        """Reads as much as it takes to know."""
        count = sum(map(len, self._read))
        while count <= size and (piece := os.read(self._fd, _PIECE_BYTES)):
            self._read.append(piece)
            count += len(piece)
        return count > size

    def whole(self) -> bytes:
        return b"".join([*self._read, *iter(lambda: os.read(self._fd, _PIECE_BYTES), b"")])

    def next(self) -> bytes:
        """The next piece; none at the end."""
        return self._read.pop(0) if self._read else os.read(self._fd, _PIECE_BYTES)


async def pour(core: Core, id: str, *, source: Source | None = None, last: bytes = b"", close: bool = False) -> Typed:
    """Until the end of the source, ours if none is given; then `last`, and the end of theirs if `close`."""
    from ..model import Typed

    _, connection = await core.connect(id)
    reply_s = core.config.hosts_reply_timeout
    poured = Typed(0, cursor=core.log(id).cursor())
    try:
        source = source or Source()
        while piece := source.next():
            await _write(connection, piece, reply_s, poured)
        if last:
            await _write(connection, last, reply_s, poured)
        if close:
            await connection.request("close_stdin", reply_s)
        return poured
    finally:
        connection.close()


async def _write(connection: Connection, piece: bytes, reply_s: float, poured: Typed) -> None:
    taken, warnings = await connection.write(piece, reply_s)
    poured.accepted += taken
    poured.warnings += [warning for warning in warnings if warning not in poured.warnings]


def pour_beside(core: Core, id: str, source: Source | None = None, *, close: bool = True) -> None:
    """The same on a thread of its own, to the end of either side. That the command stopped reading, or is gone,
    is seen by whoever follows it."""
    import signal
    import threading

    from ..errors import HoldfastError
    from ..host.driver import drive

    def work() -> None:
        # Handlers run on the main thread, which must be the one that a signal interrupts.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            drive(pour(core, id, source=source, close=close))
        except (HoldfastError, OSError):
            pass

    threading.Thread(target=work, name="stdin", daemon=True).start()
