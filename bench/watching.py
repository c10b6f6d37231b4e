"""B14: watch patterns on a chatty program; beside it, a monitored one while somebody holds the index."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from holdfast.sessions.api import Holdfast, Session

from .measure import Spread, interleaved, ratio
from .place import place
from .report import Against, Row
from .stream import forget

_BYTES = 256 << 20
_CAP = 1 << 30
_LINES = f"yes 'a line of a chatty program, of the length that such lines have' | head -c {_BYTES}"
_TIMED = f"began=$(date +%s%N); {_LINES}; echo $(($(date +%s%N) - began)) >&2"
_MONITOR = {"persistent": True, "digest_after": 3600}
# None of them is ever printed: what is measured is the looking.
_PATTERNS = [
    *("ERROR", "FATAL", "panic:", "Traceback", "Segmentation fault"),
    *("listening on", "out of memory", "assertion failed", "Killed", "deadlock detected"),
    *(r"/exit(ed)? with (code|status) [1-9]\d*/", r"/(warning|deprecated): .+/i"),
]


def patterns() -> list[Row]:
    with place() as here, here.open() as hf:
        figures = interleaved({"none": lambda: _run(hf, []), "watched": lambda: _run(hf, _PATTERNS)}, 11)
        speed = Spread.of(figures["watched"]).median * _BYTES / 1e6
        against = [Against("no patterns", ratio(figures["watched"], figures["none"]), at_least=0.6)]
        return [Row("B14", "watch patterns on a chatty program", f"{speed:.0f} MB/s", against), _locked(hf)]


def _locked(hf: Holdfast) -> Row:
    """Signals of a flood while the index answers nobody."""

    def locked() -> float:
        with closing(sqlite3.connect(hf.home.index, isolation_level=None)) as other:
            session = hf.start(_TIMED, log_cap=_CAP, owner="agent", monitor=_MONITOR)
            other.execute("BEGIN EXCLUSIVE")
            session.wait()
            other.execute("ROLLBACK")
        return _speed(hf, session)

    def free() -> float:
        session = hf.start(_TIMED, log_cap=_CAP, owner="agent", monitor=_MONITOR)
        session.wait()
        return _speed(hf, session)

    figures = interleaved({"free": free, "locked": locked}, 11)
    speed = Spread.of(figures["locked"]).median * _BYTES / 1e6
    against = [Against("nobody holds the index", ratio(figures["locked"], figures["free"]), at_least=0.95)]
    return Row("B14", "a flood under a monitor while the index is locked", f"{speed:.0f} MB/s", against)


def _run(hf: Holdfast, watch: list[str]) -> float:
    return _speed(hf, hf.run(_TIMED, log_cap=_CAP, watch=watch))


def _speed(hf: Holdfast, session: Session) -> float:
    """By the command's own clock: it is the command that must not be slowed. What the matcher still has to look at when
    the last byte is taken is not its time."""
    if session.ends["stdout"] != _BYTES:
        raise AssertionError(f"the log holds {session.ends} of {_BYTES} bytes")
    took = int(session.text(stream="stderr")) / 1e9
    forget(hf, session.id)
    return 1 / took


ROWS = {"B14": patterns}
