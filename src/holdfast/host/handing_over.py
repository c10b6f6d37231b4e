"""Changes to a session that no runner speaks for any more: to whom its ending goes, and whether it is told."""

from __future__ import annotations

import errno
import os

from ..runner import clock, records, tree, wake
from ..runner.signalfile import SignalFile
from .observe import record_here

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
                if files.away:
                    record_here(files, {"owner": owner})
                else:
                    records.write(directory, "state.json", {"changed": {**changed, "owner": owner}})
                return row()

            consumers.hand_over(files.id, former, owner, record)
            seq = file.seq
        finally:
            file.close()
    finally:
        os.close(directory)
    wake.call(consumers.catchup.runtime, owner, files.id, seq)


def set_notify(files: Files, notify: str) -> bool:
    """False while a runner lives, or another host writes about this session."""
    directory = os.open(files.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        file = SignalFile(directory, files.id, tree.boot_id(), take_over=True)
        try:
            changed = (records.found(directory, "state.json").get("changed")) or {}
            records.write(directory, "state.json", {"changed": {**changed, "notify": notify}})
        finally:
            file.close()
    except BlockingIOError:
        return False
    finally:
        os.close(directory)
    return True
