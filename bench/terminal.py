"""B4, B5, B6, B8 and B15: terminals."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from functools import partial

from holdfast.model.events import Data
from holdfast.sessions.api import Holdfast, Session

from .measure import Spread, interleaved, ratio
from .place import Place, end, place
from .report import Against, Row
from .start import end_dtach
from .stream import forget

_HOLD = os.path.join(os.path.dirname(sys.executable), "hold")
_SIZE = (30, 120)
_CAP = 1 << 30
_FLOOD_BYTES = 48 << 20
_RAW_CAT = "stty raw -echo; echo ready; exec cat"
_KEYS = 200

_WATCHER = """
import sys, holdfast
from holdfast.model.events import Init
with holdfast.open() as hf, hf.get(sys.argv[1]).attach(role="observe", lag="exact", since="now") as attachment:
    for event in attachment:
        if isinstance(event, Init):
            print("attached", flush=True)
"""


class _Outer:
    """A program in a terminal of ours; what it draws is taken and dropped."""

    def __init__(self, words: list[str], *, drain: bool = False) -> None:
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvp(words[0], words)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", *_SIZE, 0, 0))
        self._thread = threading.Thread(target=self._drain, daemon=True) if drain else None
        if self._thread is not None:
            self._thread.start()

    def _drain(self) -> None:
        try:
            while os.read(self.fd, 1 << 16):
                pass
        except OSError:
            pass

    def settle(self, quiet_s: float | None = 0.3) -> None:
        """Until it is silent for so long, or ends."""
        try:
            while select.select([self.fd], [], [], quiet_s)[0] and os.read(self.fd, 1 << 16):
                pass
        except OSError:
            pass

    def cpu_s(self) -> float:
        """What it took, once it has ended by itself."""
        _, _, used = os.wait4(self.pid, 0)
        os.close(self.fd)
        return used.ru_utime + used.ru_stime

    def round_trip(self, key: bytes) -> float:
        began = time.perf_counter()
        os.write(self.fd, key)
        while True:
            if not select.select([self.fd], [], [], 5)[0]:
                raise TimeoutError("no echo came")
            if key in os.read(self.fd, 1 << 16):
                return time.perf_counter() - began

    def close(self) -> None:
        end(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def typing() -> list[Row]:
    with place() as here, here.open() as hf:
        session = hf.start(_RAW_CAT, tty=True, size=_SIZE)
        session.wait(match="ready")
        subprocess.run([*here.tmux, "new-session", "-d", "-s", "typing", _RAW_CAT], check=True)
        path = os.path.join(here.runtime, "typing")
        subprocess.run(["dtach", "-n", path, "sh", "-c", _RAW_CAT], check=True)
        outers = {
            "tmux": _Outer([*here.tmux, "attach", "-t", "typing"]),
            "dtach": _Outer(["dtach", "-a", path]),
            "hold": _Outer([_HOLD, "attach", session.id]),
        }
        attachment = session.attach(since="now")
        for outer in outers.values():
            outer.settle(1.0)
        attachment.wait(1.0)

        def ours(key: bytes) -> float:
            began = time.perf_counter()
            attachment.send(key)
            while True:
                for event in attachment.wait(5):
                    if key in getattr(event, "data", b""):
                        return time.perf_counter() - began

        figures: dict[str, list[float]] = {name: [] for name in (*outers, "ours")}
        for number in range(_KEYS):
            key = b"%c" % (97 + number % 26)
            for name, outer in outers.items():
                figures[name].append(outer.round_trip(key))
                if name == "hold":
                    attachment.wait(0.05)
            figures["ours"].append(ours(key))
            outers["hold"].settle(0.001)
        attachment.close()
        for outer in outers.values():
            outer.close()
        end_dtach(path)
        rows = []
        for side, what in {
            "ours": "typing into an attached session (API)",
            "hold": "the same through `hold attach`",
        }.items():
            p99 = sorted(figures[side])[int(len(figures[side]) * 0.99)]
            shown = f"{Spread.of(figures[side]).median * 1e6:.0f} us, p99 {p99 * 1e6:.0f} us"
            rows.append(
                Row(
                    "B4",
                    what,
                    shown,
                    [
                        Against("tmux attach", ratio(figures[side], figures["tmux"]), at_most=1.0),
                        Against("dtach -a", ratio(figures[side], figures["dtach"]), at_most=1.5),
                    ],
                )
            )
        return rows


def unattended() -> list[Row]:
    rows = []
    for what, line in (
        ("plain lines", b"a line of a chatty program, of the length that such lines have\n"),
        (
            "coloured lines",
            b"\x1b[32m2026-08-01\x1b[0m \x1b[1;34mworker\x1b[0m handled a request in \x1b[33m17\x1b[0m ms\n",
        ),
    ):
        with place() as here, here.open() as hf:
            flat = _flat(here, line)
            sides: dict[str, Callable[[], float]] = {
                "limit": partial(_bare, flat),
                "tmux": partial(_tmux_unattended, here, flat),
                "ours": partial(_ours_unattended, hf, flat),
            }
            figures = interleaved(sides, 7)
            speed = Spread.of(figures["ours"]).median * _FLOOD_BYTES / 1e6
            against = [
                Against("a bare loop that drops the bytes", ratio(figures["ours"], figures["limit"]), at_least=0.9),
                Against("tmux", ratio(figures["ours"], figures["tmux"]), at_least=1.5),
            ]
            rows.append(Row("B5", f"a chatty program on a PTY: {what}", f"{speed:.0f} MB/s", against))
    return rows


def attended() -> list[Row]:
    with place() as here, here.open() as hf:
        flat = _flat(here, b"a line of a chatty program, of the length that such lines have\n")

        def ours() -> float:
            session = hf.start(f"read go; cat {flat}", tty={"echo": False}, size=_SIZE, log_cap=_CAP)
            watcher = _watch(session)
            began = time.perf_counter()
            session.send("go\n")
            watcher.wait()
            took = time.perf_counter() - began
            forget(hf, session.id)
            return 1 / took

        # Of `hold attach` itself: how much it shows in a second of its own processor time, whatever the runner makes.
        ended = hf.run(["cat", flat], tty=True, size=_SIZE, log_cap=_CAP)

        def shown() -> float:
            outer = _Outer([_HOLD, "attach", ended.id, "--from", "start"])
            outer.settle(None)
            return 1 / outer.cpu_s()

        sides = {"tmux": lambda: _tmux_attended(here, flat), "ours": ours, "shown": shown}
        figures = interleaved(sides, 7)
        speed, rate = (Spread.of(figures[side]).median * _FLOOD_BYTES / 1e6 for side in ("ours", "shown"))
        against = [Against("tmux attached", ratio(figures["ours"], figures["tmux"]), at_least=1.5)]
        note = f"`hold attach` in a window of the session's size shows {rate:.0f} MB per second of its own CPU time"
        return [Row("B6", "the same with one client attached", f"{speed:.0f} MB/s", against, note)]


def stopped_viewer() -> list[Row]:
    with place() as here, here.open() as hf:
        flat = _flat(here, b"a line of a chatty program, of the length that such lines have\n")

        def write(with_viewer: bool) -> float:
            session = hf.start(f"read go; cat {flat}", tty={"echo": False}, size=_SIZE, log_cap=_CAP)
            watcher = _watch(session) if with_viewer else None
            if watcher is not None:
                watcher.send_signal(signal.SIGSTOP)
            began = time.perf_counter()
            session.send("go\n")
            session.wait(exit=True)
            took = time.perf_counter() - began
            if watcher is not None:
                watcher.kill()
                watcher.wait()
            forget(hf, session.id)
            return 1 / took

        figures = interleaved({"none": lambda: write(False), "stopped": lambda: write(True)}, 9)
        speed = Spread.of(figures["stopped"]).median * _FLOOD_BYTES / 1e6
        against = [Against("no viewer", ratio(figures["stopped"], figures["none"]), at_least=0.95)]
        return [Row("B8", "a viewer of a terminal that stopped reading", f"{speed:.0f} MB/s", against)]


def screens() -> list[Row]:
    with place() as here, here.open() as hf:
        small = _drawn(here, hf, 16 << 10, clears=False)
        cleared = _drawn(here, hf, 16 << 20, clears=True)
        plain = _drawn(here, hf, 16 << 20, clears=False)

        def look(session: Session, cold: bool) -> float:
            if cold:
                hf._core.keyframes.clear()
            began = time.perf_counter()
            session.screen()
            return time.perf_counter() - began

        sides = {
            "small": lambda: look(small, True),
            "clears": lambda: look(cleared, True),
            "cold": lambda: look(plain, True),
            "again": lambda: look(plain, False),
        }
        figures = interleaved(sides, 9)
        cold = Spread.of(figures["cold"]).median
        note = f"cold without clears: {cold:.2f} s (goal <= 0.4 s: {'met' if cold <= 0.4 else 'missed'})"
        against = [
            Against("itself after 16 KB, with clears", ratio(figures["clears"], figures["small"]), at_most=5),
            Against("itself after 16 KB, asked again", ratio(figures["again"], figures["small"]), at_most=5),
        ]
        shown = f"{Spread.of(figures['clears']).median * 1e3:.1f} ms"
        return [Row("B15", "the screen after 16 MB of redraws", shown, against, note)]


def _flat(here: Place, line: bytes) -> str:
    path = here.file("flat")
    with open(path, "wb") as file:
        whole = line * (_FLOOD_BYTES // len(line) + 1)
        file.write(whole[: _FLOOD_BYTES - 1] + b"\n")
    return path


def _bare(flat: str) -> float:
    pid, fd = pty.fork()
    if pid == 0:
        os.execvp("cat", ["cat", flat])
    began = time.perf_counter()
    try:
        while os.read(fd, 1 << 16):
            pass
    except OSError:
        pass
    took = time.perf_counter() - began
    os.waitpid(pid, 0)
    os.close(fd)
    return 1 / took


def _ours_unattended(hf: Holdfast, flat: str) -> float:
    began = time.perf_counter()
    session = hf.run(["cat", flat], tty=True, size=_SIZE, log_cap=_CAP)
    took = time.perf_counter() - began
    if session.dropped_before["tty"] or session.ends["tty"] < _FLOOD_BYTES:
        raise AssertionError(f"the log holds {session.ends}")
    forget(hf, session.id)
    return 1 / took


def _tmux_unattended(here: Place, flat: str) -> float:
    began = time.perf_counter()
    command = f"cat {flat}; {' '.join(here.tmux)} wait-for -S done"
    subprocess.run([*here.tmux, "new-session", "-d", "-x", "120", "-y", "30", command], check=True)
    subprocess.run([*here.tmux, "wait-for", "done"], check=True)
    return 1 / (time.perf_counter() - began)


def _tmux_attended(here: Place, flat: str) -> float:
    command = f"read go; cat {flat}; {' '.join(here.tmux)} wait-for -S done; sleep 1"
    subprocess.run([*here.tmux, "new-session", "-d", "-s", "seen", command], check=True)
    subprocess.run([*here.tmux, "set-hook", "-t", "seen", "client-attached", "wait-for -S attached"], check=True)
    outer = _Outer([*here.tmux, "attach", "-t", "seen"], drain=True)
    subprocess.run([*here.tmux, "wait-for", "attached"], check=True)
    began = time.perf_counter()
    subprocess.run([*here.tmux, "send-keys", "-t", "seen", "go", "Enter"], check=True)
    subprocess.run([*here.tmux, "wait-for", "done"], check=True)
    took = time.perf_counter() - began
    subprocess.run([*here.tmux, "kill-session", "-t", "seen"], check=True)
    outer.close()
    return 1 / took


def _watch(session: Session) -> subprocess.Popen[bytes]:
    watcher = subprocess.Popen([sys.executable, "-c", _WATCHER, session.id], stdout=subprocess.PIPE)
    assert watcher.stdout is not None
    watcher.stdout.readline()
    return watcher


def _drawn(here: Place, hf: Holdfast, size: int, *, clears: bool) -> Session:
    """A session that drew full screens of this many bytes in all."""
    row = b"\x1b[%d;1H\x1b[3%dmrow %d of a busy screen, drawn again\x1b[0m\x1b[K"
    frame = b"".join(row % (number, number % 8, number) for number in range(1, 31))
    path = here.file(f"drawn{size}{clears}")
    with open(path, "wb") as file:
        file.write(b"\x1b[?1049h")
        while file.tell() < size:
            file.write((b"\x1b[2J" if clears else b"") + frame)
    session = hf.start(f"stty raw -echo; cat {path}; exec sleep 600", tty=True, size=_SIZE, log_cap=_CAP)
    with session.attach(role="observe", since="start", lag="exact") as attachment:
        for event in attachment:
            if isinstance(event, Data) and event.offset + len(event.data) >= os.path.getsize(path):
                return session
    raise AssertionError("it was not drawn")


ROWS = {"B4": typing, "B5": unattended, "B6": attended, "B8t": stopped_viewer, "B15": screens}
