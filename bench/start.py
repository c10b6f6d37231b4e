"""B1 to B3 and B20: how long it takes until something runs."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from contextlib import ExitStack

from holdfast.core import processes
from holdfast.sessions.api import Holdfast

from .measure import Spread, interleaved, ratio, timed
from .place import MEMORY, Place, end, place
from .report import Against, Row

_ROUNDS = 100
# One command after the other, as from somebody who reads in between: the launcher refills in the quiet.
_PAUSE_S = 0.05


def run_short() -> list[Row]:
    rows = []
    with place() as here, here.open() as hf:
        rows.append(_run_row(hf, "argv", ["echo", "hi"], f"{_creates(here)}; {_instructions()}"))
        rows.append(_run_row(hf, "shell", "echo hi"))
    with place(MEMORY) as here, here.open() as hf:
        rows.append(_run_row(hf, "argv, home in memory", ["echo", "hi"]))
    return rows


def _run_row(hf: Holdfast, what: str, command: str | list[str], note: str = "") -> Row:
    def ours() -> None:
        if hf.run(command).text() != "hi\n":
            raise AssertionError("the output is not what was printed")

    words = ["/bin/sh", "-c", command] if isinstance(command, str) else command
    sides = {
        "reference": timed(lambda: subprocess.run(words, capture_output=True, check=True)),
        "ours": timed(ours),
    }
    paced = interleaved(sides, _ROUNDS, pause_s=_PAUSE_S, warm=5)
    rushed = interleaved(sides, _ROUNDS)
    against = [
        Against("subprocess.run", ratio(paced["ours"], paced["reference"]), at_most=3),
        Against("subprocess.run, back to back", ratio(rushed["ours"], rushed["reference"])),
    ]
    return Row("B1", f"run a short command and read its output ({what})", _ms(paced["ours"]), against, note)


def start_background() -> list[Row]:
    with place() as here, here.open() as hf:
        subprocess.run([*here.tmux, "new-session", "-d", "sleep 600"], check=True)
        serial = iter(range(1_000_000))

        def ours() -> float:
            began = time.perf_counter()
            session = hf.start(["sleep", "60"])
            took = time.perf_counter() - began
            session.kill()
            return took

        def tmux() -> float:
            name = f"s{next(serial)}"
            began = time.perf_counter()
            subprocess.run([*here.tmux, "new-session", "-d", "-s", name, "sleep 60"], check=True)
            took = time.perf_counter() - began
            subprocess.run([*here.tmux, "kill-session", "-t", name], check=True)
            return took

        def dtach() -> float:
            path = os.path.join(here.runtime, f"d{next(serial)}")
            began = time.perf_counter()
            subprocess.run(["dtach", "-n", path, "sleep", "60"], check=True)
            took = time.perf_counter() - began
            end_dtach(path)
            return took

        figures = interleaved({"tmux": tmux, "dtach": dtach, "ours": ours}, 60, pause_s=_PAUSE_S, warm=3)
        against = [
            Against("tmux new-session -d", ratio(figures["ours"], figures["tmux"]), at_most=0.5),
            Against("dtach -n", ratio(figures["ours"], figures["dtach"]), at_most=2),
        ]
        return [Row("B2", "start something in the background", _ms(figures["ours"]), against)]


def from_shell() -> list[Row]:
    hold = os.path.join(os.path.dirname(sys.executable), "hold")
    with place() as here:
        subprocess.run([*here.tmux, "new-session", "-d", "sleep 600"], check=True)
        sides = {
            "python": timed(lambda: subprocess.run([sys.executable, "-c", "pass"], check=True)),
            "tmux": timed(lambda: subprocess.run([*here.tmux, "ls"], check=True, capture_output=True)),
            "start": timed(lambda: subprocess.run([hold, "start", "--", "true"], check=True, capture_output=True)),
            "ls": timed(lambda: subprocess.run([hold, "ls"], check=True, capture_output=True)),
        }
        figures = interleaved(sides, 40, warm=3)
        return [
            Row(
                "B3",
                what,
                _ms(figures[side]),
                [
                    Against("python3 -c pass", ratio(figures[side], figures["python"]), at_most=3),
                    Against("tmux ls", ratio(figures[side], figures["tmux"])),
                ],
            )
            for side, what in (("start", "`hold start -- true`"), ("ls", "`hold ls`"))
        ]


def end_dtach(path: str) -> None:
    """dtach leaves with its command; the one that serves `path` is found by its own arguments."""
    for process in processes.everyone().values():
        if processes.command_line(process.pid)[:3] == ["dtach", "-n", path]:
            end(process.pid, 15)


def _creates(here: Place) -> str:
    """What a session must make on disk costs this much by itself here, whoever makes it."""
    figures = []
    for serial in range(30):
        began = time.perf_counter()
        os.mkdir(here.file(f"c{serial}"))
        for name in "abcdef":
            os.close(os.open(here.file(f"c{serial}/{name}"), os.O_WRONLY | os.O_CREAT, 0o600))
        figures.append(time.perf_counter() - began)
    return f"making a directory and six empty files takes {Spread.of(figures).median * 1e3:.2f} ms on this disk"


def _instructions() -> str:
    """CPU instructions repeat where times do not, where the machine has the counters."""
    try:
        asked = ["perf", "stat", "-x", ",", "-e", "instructions", "true"]
        told = subprocess.run(asked, capture_output=True, text=True, check=False).stderr
    except FileNotFoundError:
        told = ""
    first = told.partition(",")[0].strip()
    if not first.isdigit():
        return "CPU instructions: not available on this machine"
    with place():
        per_run = _instructions_of(60) - _instructions_of(10)
    return f"CPU instructions of one run, runner and command included: {per_run / 50 / 1e6:.1f} million"


def _instructions_of(count: int) -> int:
    program = f"import holdfast\nwith holdfast.open() as hf:\n for _ in range({count}): hf.run(['echo', 'hi']).text()"
    asked = ["perf", "stat", "-a", "-x", ",", "-e", "instructions", sys.executable, "-c", program]
    return int(subprocess.run(asked, capture_output=True, text=True, check=True).stderr.partition(",")[0])


def _ms(figures: list[float]) -> str:
    spread = Spread.of(figures)
    return f"{spread.median * 1e3:.2f} ms ({spread.low * 1e3:.2f}-{spread.high * 1e3:.2f})"


# Ten services: what each is after, and the seconds until it listens. The longest way through them takes as long as the
# slowest takes alone, less what a start and a probe may take.
_SERVICES: dict[str, tuple[float, tuple[str, ...]]] = {
    "db": (0.4, ()),
    "cache": (0.2, ()),
    "queue": (0.3, ()),
    "search": (2.0, ()),
    "mail": (0.1, ()),
    "storage": (0.5, ()),
    "api": (0.5, ("db", "cache")),
    "worker": (0.3, ("db", "queue")),
    "metrics": (0.2, ("cache",)),
    "web": (0.3, ("api", "storage")),
}
_SERVER = """
import socket, sys, time
time.sleep(float(sys.argv[2]))
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
while True:
    server.accept()
"""


def project_up() -> list[Row]:
    hold = os.path.join(os.path.dirname(sys.executable), "hold")
    with place() as here:
        script = here.file("server.py")
        with open(script, "w") as file:
            file.write(_SERVER)
        # Servers that take long to start are few in a project; the others are cheap, so that this measures us.
        ports = dict(zip(("db", "search", "web"), free_ports(3), strict=True))
        commands = {
            name: ["sh", "-c", f"sleep {s}; echo listening; exec sleep 600"] for name, (s, _) in _SERVICES.items()
        }
        commands |= {name: [sys.executable, script, str(port), str(_SERVICES[name][0])] for name, port in ports.items()}
        with open(here.file("holdfast.toml"), "w") as file:
            for name, (_, after) in _SERVICES.items():
                # JSON strings and lists of them are TOML as well.
                file.write(f"[session.{name}]\ncommand = {json.dumps(commands[name])}\nafter = {json.dumps(after)}\n")
                file.write(f'ready = "{f"port:{ports[name]}" if name in ports else "line:listening"}"\n')
        slowest = max(_SERVICES, key=lambda name: _SERVICES[name][0])

        def alone() -> float:
            began = time.perf_counter()
            with subprocess.Popen(commands[slowest], stdout=subprocess.PIPE) as server:
                assert server.stdout is not None
                server.stdout.readline()
                took = time.perf_counter() - began
                server.kill()
            return took

        def up() -> float:
            began = time.perf_counter()
            subprocess.run([hold, "up"], cwd=here.path, check=True, capture_output=True)
            took = time.perf_counter() - began
            subprocess.run([hold, "down", "--grace", "0"], cwd=here.path, check=True, capture_output=True)
            return took

        figures = interleaved({"alone": alone, "ours": up}, 10)
        against = [Against("the slowest service alone", ratio(figures["ours"], figures["alone"]), at_most=1.2)]
        return [Row("B20", "`hold up` of ten services until all are ready", _ms(figures["ours"]), against)]


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in servers]


ROWS = {"B1": run_short, "B2": start_background, "B3": from_shell, "B20": project_up}
