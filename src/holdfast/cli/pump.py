"""Our standard input into that of a session, piece by piece, no faster than the command takes it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..host.core import Core

_PIECE_BYTES = 1 << 16


async def pour(core: Core, id: str, *, last: bytes = b"", close: bool = False) -> int:
    """Until the end of our input; then `last`, and the end of theirs if `close`. How many bytes were taken."""
    _, connection = await core.connect(id)
    taken, reply_s = 0, core.config.hosts_reply_timeout
    try:
        while piece := os.read(0, _PIECE_BYTES):
            taken += await connection.write(piece, reply_s)
        if last:
            taken += await connection.write(last, reply_s)
        if close:
            await connection.request("close_stdin", reply_s)
        return taken
    finally:
        connection.close()


def pour_beside(core: Core, id: str) -> None:
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
            drive(pour(core, id, close=True))
        except (HoldfastError, OSError):
            pass

    threading.Thread(target=work, name="stdin", daemon=True).start()
