"""B7 and B8: a chatty program on pipes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

from holdfast.sessions.api import Holdfast

from .measure import Spread, interleaved, ratio, timed
from .place import end, place
from .report import Against, Row

_BYTES = 256 << 20
_CAP = 1 << 30
_BLOCKS = f"dd if=/dev/zero bs=1M count={_BYTES >> 20} 2>/dev/null"
_LINES = f"yes 'a line of a chatty program, of the length that such lines have' | head -c {_BYTES}"

_FOLLOWER = """
import sys, holdfast
with holdfast.open() as hf:
    for page in hf.get(sys.argv[1]).follow():
        print(page.cursor, flush=True)
"""


def pipes() -> list[Row]:
    rows = []
    with place() as here, here.open() as hf:
        for what, command in (("large blocks", _BLOCKS), ("lines", _LINES)):
            target = here.file("copy")
            shell = ["/bin/sh", "-c", f"{{ {command}; }} | cat > {target}"]

            def reference(shell: list[str] = shell, target: str = target) -> float:
                took = timed(lambda: subprocess.run(shell, check=True))()
                os.unlink(target)
                return 1 / took

            def ours(command: str = command) -> float:
                began = time.perf_counter()
                session = hf.run(command, log_cap=_CAP)
                took = time.perf_counter() - began
                if session.ends["stdout"] != _BYTES or session.dropped_before["stdout"]:
                    raise AssertionError(f"the log holds {session.ends} of {_BYTES} bytes")
                forget(hf, session.id)
                return 1 / took

            figures = interleaved({"reference": reference, "ours": ours}, 9)
            speed = Spread.of(figures["ours"]).median * _BYTES / 1e6
            against = [Against("cmd | cat > file", ratio(figures["ours"], figures["reference"]), at_least=0.7)]
            rows.append(Row("B7", f"a chatty program on pipes: {what}", f"{speed:.0f} MB/s", against))
    return rows


def slow_viewer() -> list[Row]:
    with place() as here, here.open() as hf:
        command = f"echo ready; read go; {_BLOCKS}"

        def write(with_viewer: bool) -> float:
            session = hf.start(command, stdin="open", log_cap=_CAP)
            session.wait(output=True, since=0)
            viewer = None
            if with_viewer:
                words = [sys.executable, "-c", _FOLLOWER, session.id]
                viewer = subprocess.Popen(words, stdout=subprocess.PIPE)
                assert viewer.stdout is not None
                viewer.stdout.readline()
                time.sleep(0.1)  # it goes back to waiting for more
                viewer.send_signal(signal.SIGSTOP)
            began = time.perf_counter()
            session.send("go\n")
            session.wait(exit=True)
            took = time.perf_counter() - began
            if viewer is not None:
                end(viewer.pid, signal.SIGKILL)
                viewer.wait()
                assert viewer.stdout is not None
                viewer.stdout.close()
            forget(hf, session.id)
            return 1 / took

        figures = interleaved({"none": lambda: write(False), "stopped": lambda: write(True)}, 11)
        speed = Spread.of(figures["stopped"]).median * _BYTES / 1e6
        against = [Against("no viewer", ratio(figures["stopped"], figures["none"]), at_least=0.95)]
        return [Row("B8", "a viewer that stopped reading", f"{speed:.0f} MB/s", against)]


def forget(hf: Holdfast, id: str) -> None:
    """So that the dirty pages of earlier rounds do not slow down later ones."""
    deadline = time.monotonic() + 10
    session = hf.get(id)
    while True:
        try:
            session.remove()
            return
        except Exception:
            # The runner needs a moment to leave after it has answered.
            if time.monotonic() > deadline:
                raise
            time.sleep(0.01)


ROWS = {"B7": pipes, "B8": slow_viewer}
