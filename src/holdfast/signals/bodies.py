"""What signals say: read from their files, where the index points.

A rotation moves records: then they are looked for by their number. What is found nowhere is gone, and is said to be.
"""

from __future__ import annotations

import os

from .indexing import directory_of, generations, is_no_file, lines, owner_here
from .records import Signal, parse

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..home import Home
    from ..index.pointers import Pointer


def load(home: Home, wanted: Iterable[tuple[Pointer, int]]) -> tuple[list[Signal], list[Pointer]]:
    """The signals in the order given, each with the number of its delivery; and those whose record is gone."""
    wanted = list(wanted)
    by_session: dict[str, list[Pointer]] = {}
    for pointer, _ in wanted:
        by_session.setdefault(pointer.session, []).append(pointer)
    found: dict[str, Signal] = {}
    for session, pointed in by_session.items():
        try:
            found.update(_read(directory_of(home, session), session, pointed))
        except OSError as problem:
            if not is_no_file(problem):
                raise
    signals, gone = [], []
    for pointer, deliveries in wanted:
        signal = found.get(pointer.id)
        if signal is None:
            gone.append(pointer)
            continue
        signal.deliveries, signal.replayed = deliveries, pointer.replayed
        if signal.owner != pointer.owner and owner_here(home, pointer.session)[0]:
            signal.owner = signal.record["owner"] = pointer.owner
        signals.append(signal)
    return signals, gone


def _read(directory: str, session: str, pointed: list[Pointer]) -> dict[str, Signal]:
    fds = generations(directory)
    try:
        return _find(fds, session, pointed)
    finally:
        for fd in fds:
            os.close(fd)


def _find(fds: list[int], session: str, pointed: list[Pointer]) -> dict[str, Signal]:
    by_inode = {os.fstat(fd).st_ino: fd for fd in fds}
    found: dict[str, Signal] = {}
    for pointer in pointed:
        fd = by_inode.get(pointer.file)
        signal = None if fd is None else parse(os.pread(fd, pointer.length, pointer.offset), session)
        if isinstance(signal, Signal) and signal.seq == pointer.seq:
            found[pointer.id] = signal
    if len(found) < len(pointed):
        moved = {pointer.id for pointer in pointed} - found.keys()
        for fd in fds:
            for line in lines(fd, 0):
                signal = parse(line, session)
                if isinstance(signal, Signal) and signal.id in moved:
                    found[signal.id] = signal
    return found
