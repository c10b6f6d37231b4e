"""The everyday jobs of an agent, as programs in a directory: what they print, and what has to be learned from it."""

from __future__ import annotations

import sys
from pathlib import Path

PYTHON = sys.executable

# By name: what must have come back to whoever did the job.
PROOFS = {
    "install": "Successfully installed",
    "failing_tests": "assert total([2, 3]) == 6",
    "dev_server": "ready on",
    "repl": "1024",
    "big_log": "E4711 quota exceeded for tenant 90210",
    "menu": "you chose: three",
    "background_build": "build finished: 500 modules",
    "crash": "KeyError: 'DATABASE_URL'",
    "short_commands": "feature/economy",
    "silent_wait": "migration done",
    "question": "configured with color=yes",
    "new_server": "version 2",
}

_PROGRAMS = {
    "install.py": """
import sys, time
print("Collecting 40 packages")
for n in range(2001):
    filled = n * 40 // 2000
    sys.stdout.write("\\r[" + "#" * filled + "." * (40 - filled) + f"] {n / 20:5.1f}% {n * 37} kB/s")
    if n % 50 == 0:
        sys.stdout.write("\\n" + f"  Downloading package-{n // 50}-1.{n}.0.whl ({n} kB)\\n")
print("\\nInstalling collected packages")
print("Successfully installed " + " ".join(f"package-{n}-1.{n * 50}.0" for n in range(41)))
""",
    "tests.py": """
import sys
print("============ test session starts ============")
for n in range(400):
    print(f"tests/test_part{n % 20}.py::test_case_{n} PASSED [{n // 4:3}%]")
print("tests/test_sum.py::test_total FAILED [100%]")
print("================= FAILURES =================")
print("________________ test_total ________________")
print("    def test_total():")
print(">       assert total([2, 3]) == 6")
print("E       assert 5 == 6")
print("tests/test_sum.py:7: AssertionError")
print("======= 1 failed, 400 passed in 3.21s =======")
sys.exit(1)
""",
    "server.py": """
import http.server, os, sys, time
version = sys.argv[2] if len(sys.argv) > 2 else "1"
for n in range(150):
    print(f"[vite] transforming src/module{n}.ts")
time.sleep(1)
server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), http.server.SimpleHTTPRequestHandler)
print(f"version {version} ready on http://127.0.0.1:{sys.argv[1]}/", flush=True)
server.serve_forever()
""",
    "log.py": """
import sys
line = "2026-11-15T10:{:02}:{:02}.{:03}Z INFO  worker-{} handled request {} in {} ms\\n"
out = []
for n in range(700_000):
    out.append(line.format(n // 60 % 60, n % 60, n % 1000, n % 16, n * 7919 % 1000003, n % 90))
    if n == 421_337:
        out.append("2026-11-15T10:22:17.000Z ERROR worker-3 E4711 quota exceeded for tenant 90210\\n")
    if len(out) > 5000:
        sys.stdout.write("".join(out)); out.clear()
sys.stdout.write("".join(out))
""",
    "menu.py": """
import os, sys, termios, tty
choices = ["one", "two", "three", "four"]
at = 0
old = termios.tcgetattr(0)
tty.setcbreak(0)
try:
    while True:
        sys.stdout.write("\\x1b[2J\\x1b[HPick one (j/k, Enter):\\r\\n")
        for n, each in enumerate(choices):
            sys.stdout.write(("\\x1b[7m> " if n == at else "  ") + each + "\\x1b[0m\\r\\n")
        sys.stdout.flush()
        key = os.read(0, 1)
        if key in (b"\\n", b"\\r"):
            break
        at = (at + (key == b"j") - (key == b"k")) % len(choices)
finally:
    termios.tcsetattr(0, termios.TCSADRAIN, old)
sys.stdout.write(f"\\x1b[2J\\x1b[Hyou chose: {choices[at]}\\r\\n")
""",
    "build.py": """
import time
for n in range(500):
    print(f"[{n + 1}/500] CC obj/module{n}.o", flush=True)
    time.sleep(0.006)
print("build finished: 500 modules")
""",
    "crash.py": """
import os, time
for n in range(40):
    print(f"worker {n} up", flush=True)
time.sleep(1.5)
os.environ.pop("DATABASE_URL", None)
print("connecting as", os.environ["DATABASE_URL"])
""",
    "silent.py": """
import time
time.sleep(2.5)
print("migration done")
""",
    "question.py": """
answer = input("Use colour? [y/N] ")
print("configured with color=" + ("yes" if answer == "y" else "no"))
""",
}


def write(directory: Path) -> None:
    directory.mkdir()
    for name, text in _PROGRAMS.items():
        (directory / name).write_text(text.lstrip())
    (directory / ".git").mkdir()
    (directory / ".git" / "HEAD").write_text("ref: refs/heads/feature/economy\n")
    (directory / "README").write_text("".join(f"line {n} of the readme\n" for n in range(30)))
