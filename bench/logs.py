"""B12 and B13: reading and searching huge logs."""

from __future__ import annotations

import os
import subprocess
import time
from functools import partial

from holdfast.sessions.api import Holdfast, Session

from .measure import Spread, interleaved, ratio, timed
from .place import Place, place
from .report import Against, Curve, Row

_MB = 1_000_000
_SIZES_MB = (1, 100, 1000)
_LINES = 200
_SEARCHED_BYTES = 256 << 20
# How far back the bare reader looks: enough for 200 of our lines, as a hand-written one would guess.
_BARE_BYTES = 64 << 10


def tail() -> list[Row]:
    with place() as here, here.open() as hf:
        figures: dict[int, dict[str, list[float]]] = {}
        for size in _SIZES_MB:
            flat, session = _logged(here, hf, size * _MB)
            wanted = _bare_tail(flat)
            if session.tail(_LINES).rstrip("\n") != wanted.decode().rstrip("\n"):
                raise AssertionError("the last lines differ")
            sides = {
                "tail": timed(partial(_process_tail, flat)),
                "bare": timed(partial(_bare_tail, flat)),
                "ours": timed(partial(session.tail, _LINES)),
            }
            figures[size] = interleaved(sides, 60, warm=3)
            os.unlink(flat)
        largest, smallest = figures[_SIZES_MB[-1]], figures[_SIZES_MB[0]]
        lines = {
            name: [(float(size), Spread.of(each[side]).median * 1e3) for size, each in figures.items()]
            for side, name in (("ours", "Session.tail"), ("bare", "seek and read"), ("tail", "tail -n 200"))
        }
        against = [
            Against("itself at 1 MB", ratio(largest["ours"], smallest["ours"]), at_most=1.5),
            Against("bare seek and read in Python", ratio(largest["ours"], largest["bare"]), at_most=3),
            Against("tail -n 200, a process", ratio(largest["ours"], largest["tail"])),
        ]
        ours = ", ".join(f"{Spread.of(figures[size]['ours']).median * 1e3:.2f} ms at {size} MB" for size in _SIZES_MB)
        return [Row("B12", "the last 200 lines of a log", ours, against, curve=Curve("MB", "ms", lines))]


def search() -> list[Row]:
    pattern = "code=1[0-9]{3}7 failed"
    with place() as here, here.open() as hf:
        flat, session = _logged(here, hf, _SEARCHED_BYTES)
        found: list[int] = []

        def ours() -> float:
            began = time.perf_counter()
            found.append(len(session.search(pattern, context=2)))
            return 1 / (time.perf_counter() - began)

        def grep() -> float:
            began = time.perf_counter()
            told = subprocess.run(["grep", "-nE", "-C", "2", pattern, flat], capture_output=True, check=True).stdout
            took = time.perf_counter() - began
            expected.append(sum(b"failed" in line for line in told.splitlines()))
            return 1 / took

        expected: list[int] = []
        figures = interleaved({"grep": grep, "ours": ours}, 7)
        speed = Spread.of(figures["ours"]).median * _SEARCHED_BYTES / 1e6
        note = f"{found[-1]} hits" + ("" if found[-1] == expected[-1] else f", grep has {expected[-1]}")
        against = [Against("grep -nE -C 2", ratio(figures["ours"], figures["grep"]), at_least=0.5)]
        return [Row("B13", "search 256 MB with context", f"{speed:.0f} MB/s", against, note)]


def _logged(here: Place, hf: Holdfast, size: int) -> tuple[str, Session]:
    """A file of `size` bytes of lines, and a session that printed them."""
    flat = here.file(f"flat{size}")
    with open(flat, "wb") as file:
        serial = 0
        while file.tell() < size:
            file.write(b"".join(_line(serial + number) for number in range(10_000)))
            serial += 10_000
        file.truncate(size - 1)
        file.seek(size - 1)
        file.write(b"\n")
    session = hf.run(["cat", flat], log_cap=4 << 30)
    if session.ends["stdout"] != size or session.dropped_before["stdout"]:
        raise AssertionError(f"the log holds {session.ends} of {size} bytes")
    return flat, session


def _line(serial: int) -> bytes:
    if serial % 20_011 == 17:
        return b"2026-08-01T09:14:07Z worker-%d ERROR request code=1%03d7 failed after 3 tries\n" % (
            serial % 7,
            serial % 1000,
        )
    return b"2026-08-01T09:14:07Z worker-%d request %d handled in %d ms, 200 OK\n" % (serial % 7, serial, serial % 971)


def _process_tail(path: str) -> None:
    subprocess.run(["tail", "-n", str(_LINES), path], capture_output=True, check=True)


def _bare_tail(path: str) -> bytes:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _BARE_BYTES))
        return b"\n".join(file.read().splitlines()[-_LINES:])


ROWS = {"B12": tail, "B13": search}
