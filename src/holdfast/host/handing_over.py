"""Another owner for a session that no runner speaks for any more: its ending goes to whoever looks after it now."""

from __future__ import annotations

import errno
import os

from ..runner import clock, records, tree, wake
from ..runner.signalfile import SignalFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..index import Row
    from ..signals.consumers import Consumers
    from .observe import Files


def hand_over(consumers: Consumers, files: Files, owner: str | None, row: Callable[[], Row]) -> None:
    """As its runner would: a note among its signals, then its record, and in the index what nobody has settled yet.
    BlockingIOError while a runner lives, or another host writes."""
    changed = (files.state or {}).get("changed") or {}
    former = files.now().get("owner")
    directory = os.open(files.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file = SignalFile(directory, files.id, tree.boot_id(), take_over=True)
        try:

            def record() -> Row:
                file.note({"owner": owner, "at": clock.now_text()})
                if file.blocked:
                    raise OSError(errno.ENOSPC, "the disk takes no note of the new owner")
                records.write(directory, "state.json", {"changed": {**changed, "owner": owner}})
                return row()

            consumers.hand_over(files.id, former, owner, record)
            seq = file.seq
        finally:
            file.close()
    finally:
        os.close(directory)
    wake.call(consumers.catchup.runtime, owner, files.id, seq)
