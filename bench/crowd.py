"""B9 to B11: many sessions at once."""

from __future__ import annotations

import mmap
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.core import processes
from holdfast.sessions.api import Holdfast, Session

from .measure import Spread, interleaved, ratio, timed
from .place import Place, end, place, wait_gone
from .report import Against, Curve, Row

_MEMORY_COUNT = 200
_CROWD = 1000
_IDLE_S = 30.0
# As much as two dozen runners touch.
_FRESH_PAGES = 16 << 10
_MB_KB = 1000.0


def memory() -> list[Row]:
    with place() as here, here.open() as hf:
        bare_kb = _bare_python_kb()
        tmux_kb = _tmux_pane_kb(here)
        dtach_kb = _dtach_kb(here)
        sessions = [hf.start(["sleep", "600"]) for _ in range(_MEMORY_COUNT)]
        figures = [_pss_kb(_runner(session)) for session in sessions]
        spread = Spread.of(figures)

        def over(reference_kb: float) -> Spread:
            return Spread(*(figure / reference_kb for figure in (spread.median, spread.low, spread.high)))

        against = [
            Against("1.0 MB", over(_MB_KB), at_most=1),
            Against(f"bare python3 -c 'input()' / 5 ({bare_kb / 5:.0f} kB)", over(bare_kb / 5), at_most=1),
            Against(f"a tmux pane's share ({tmux_kb:.0f} kB)", over(tmux_kb)),
            Against(f"a dtach process ({dtach_kb:.0f} kB)", over(dtach_kb)),
        ]
        ours = f"{spread.median:.0f} kB ({spread.low:.0f}-{spread.high:.0f})"
        return [Row("B9", f"memory (PSS) of one idle session's runner, among {_MEMORY_COUNT}", ours, against)]


def thousand() -> list[Row]:
    with place() as here, here.open() as hf:
        page_before = _page_us()
        sessions, costs = _start_crowd(hf)
        page_after = _page_us()
        answered = hf.recover()
        alive = len(answered.live)
        runners = [_runner(session) for session in sessions]
        before = {pid: _ticks(pid) for pid in runners}
        time.sleep(_IDLE_S)
        busy_ms = sum(_ticks(pid) - before[pid] for pid in runners) * 1000 / os.sysconf("SC_CLK_TCK")
        first, last = costs[:100], costs[-100:]
        against = [
            Against("answers over sessions", _exact(alive / _CROWD), at_least=1),
            Against("CPU ms of all runners in 30 idle s, over none", _exact(busy_ms), at_most=0),
            Against("start cost of the last 100 over the first 100", ratio(last, first), at_most=1.3),
        ]
        # What a start costs beside its own work: each runner needs memory that nobody had before it.
        pages = f"a fresh page costs {page_before:.1f} us before and {page_after:.1f} us behind them"
        ours = f"{alive} answer, {Spread.of(last).median * 1e3:.2f} ms a start; {pages}"
        points = [(float(at), Spread.of(costs[at - 100 : at]).median * 1e3) for at in range(100, _CROWD + 1, 100)]
        curve = Curve("sessions alive", "ms a start", {"start": points})
        return [Row("B10", "1,000 sessions", ours, against, curve=curve)]


def _page_us() -> float:
    """What the machine takes for a page of memory that is touched for the first time."""
    with mmap.mmap(-1, _FRESH_PAGES * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as fresh:
        fresh.madvise(mmap.MADV_NOHUGEPAGE)
        began = time.perf_counter()
        for page in range(_FRESH_PAGES):
            fresh[page * mmap.PAGESIZE] = 1
        return (time.perf_counter() - began) * 1e6 / _FRESH_PAGES


def recovery() -> list[Row]:
    with place() as here, here.open() as hf:
        _start_crowd(hf)
        with _bare_servers(here) as paths:

            def ours() -> float:
                # A host that knows nothing yet, as after a crash.
                with here.open() as fresh:
                    began = time.perf_counter()
                    found = fresh.recover()
                    took = time.perf_counter() - began
                if len(found.live) != _CROWD:
                    raise AssertionError(f"{len(found.live)} of {_CROWD} were found")
                return took

            figures = interleaved({"reference": timed(lambda: _knock(paths)), "ours": ours}, 9)
        against = [Against("a bare loop: connect, one round trip", ratio(figures["ours"], figures["reference"]), 3)]
        took = Spread.of(figures["ours"])
        note = "the bare loop's sockets are served by one forked process each, as sessions are by runners"
        return [
            Row(
                "B11",
                f"find {_CROWD} live sessions again, identity proven",
                f"{took.median * 1e3:.0f} ms",
                against,
                note,
            )
        ]


def _start_crowd(hf: Holdfast) -> tuple[list[Session], list[float]]:
    sessions, costs = [], []
    for _ in range(_CROWD):
        began = time.perf_counter()
        sessions.append(hf.start(["sleep", "600"]))
        costs.append(time.perf_counter() - began)
    return sessions, costs


@contextmanager
def _bare_servers(here: Place) -> Iterator[list[str]]:
    paths, pids = [], []
    try:
        for serial in range(_CROWD):
            path = os.path.join(here.runtime, f"bare{serial}")
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            listener.bind(path)
            listener.listen(8)
            pid = os.fork()
            if pid == 0:
                _serve(listener)
            listener.close()
            paths.append(path)
            pids.append(pid)
        yield paths
    finally:
        for pid in pids:
            end(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _serve(listener: socket.socket) -> None:
    answer = bytes(900)
    try:
        while True:
            peer, _ = listener.accept()
            peer.recv(4096)
            peer.sendall(answer)
            peer.close()
    finally:
        os._exit(0)


def _knock(paths: list[str]) -> None:
    for path in paths:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.connect(path)
            sock.sendall(b"hello")
            sock.recv(4096)


def _runner(session: Session) -> int:
    assert session.runner_pid is not None
    return session.runner_pid


def _pss_kb(pid: int) -> float:
    with open(f"/proc/{pid}/smaps_rollup") as file:
        return next(float(line.split()[1]) for line in file if line.startswith("Pss:"))


def _ticks(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _exact(figure: float) -> Spread:
    return Spread(figure, figure, figure)


def _bare_python_kb() -> float:
    program = "print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        figure = _pss_kb(process.pid)
        process.communicate(b"\n")
    return figure


def _tmux_pane_kb(here: Place) -> float:
    subprocess.run([*here.tmux, "new-session", "-d", "sleep 600"], check=True)
    for _ in range(_MEMORY_COUNT - 1):
        subprocess.run([*here.tmux, "new-window", "-d", "sleep 600"], check=True)
    told = subprocess.run([*here.tmux, "display-message", "-p", "#{pid}"], check=True, capture_output=True, text=True)
    figure = _pss_kb(int(told.stdout)) / _MEMORY_COUNT
    subprocess.run([*here.tmux, "kill-server"], check=True)
    return figure


def _dtach_kb(here: Place) -> float:
    for serial in range(20):
        subprocess.run(["dtach", "-n", os.path.join(here.runtime, f"dtach{serial}"), "sleep", "600"], check=True)
    pids = [
        pid for pid in processes.everyone() if processes.command_line(pid)[:2] == ["dtach", "-n"] and _in(here, pid)
    ]
    figure = Spread.of([_pss_kb(pid) for pid in pids]).median
    for pid in pids:
        end(pid, signal.SIGTERM)
    wait_gone(pids)
    return figure


def _in(here: Place, pid: int) -> bool:
    return processes.command_line(pid)[2].startswith(here.runtime)


ROWS = {"B9": memory, "B10": thousand, "B11": recovery}
