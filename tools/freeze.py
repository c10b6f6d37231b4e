"""Freezes runner, host and a home of this release, for the tests of every later one: `python tools/freeze.py`.

A published release is never frozen again: its files are what users have on their disks. Until it is published,
`--again` replaces them. The tests take every folder of `tests/frozen` by themselves.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import holdfast
from holdfast.core import records
from holdfast.places.kinds import runner_archive

FROZEN = Path(__file__).resolve().parents[1] / "tests" / "frozen"

# In every record, as a later release of either side might have left there.
LATER = {"later": {"field": ["of", "another", "release"], "number": 7}}


def main() -> None:
    release = FROZEN / holdfast.__version__
    if release.exists():
        if sys.argv[1:] != ["--again"]:
            sys.exit(f"{release} is frozen; --again replaces it, as long as that release is not published")
        shutil.rmtree(release)
    release.mkdir(parents=True)
    (release / "runner.pyz").write_bytes(deflated(runner_archive()))
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*build, "--wheel-dir", release, FROZEN.parents[1]], check=True)
    (wheel,) = release.glob("*.whl")
    if "holdfast/server/page/index.html" not in zipfile.ZipFile(wheel).namelist():
        sys.exit("the wheel has no page: install Node and npm, and run this again with --again")
    with tempfile.TemporaryDirectory(prefix="hf-freeze-") as scratch:
        # Nothing of the machine this is made on.
        os.environ.clear()
        os.environ.update(PATH="/usr/bin:/bin", HOME=scratch, XDG_RUNTIME_DIR=scratch, LANG="C.UTF-8")
        os.environ.update(HOLDFAST_LAUNCHER_ENABLED="false")
        home = Path(scratch) / "home"
        with holdfast.open(home, author="api:freeze") as hf:
            live = fill(hf)
            shutil.copytree(home / "sessions", copied := Path(scratch) / "sessions")
            hf.stop_all([live.id], grace=0)
        for session in sorted(copied.iterdir()):
            for name in ("spec.json", "state.json", "exit.json"):
                if (session / name).exists():
                    mark(session, name)
        shutil.copytree(copied, release / "home" / "sessions")
    print(f"{release}: {len(list((release / 'home' / 'sessions').iterdir()))} sessions, a runner and a host")


def deflated(archive: bytes) -> bytes:
    """A third of the size, for a file that stays in the repository for ever."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(archive)) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for entry in source.infolist():
            target.writestr(entry, source.read(entry), zipfile.ZIP_DEFLATED)
    return packed.getvalue()


def fill(hf: holdfast.Holdfast) -> holdfast.Session:
    """One of each ending, and one that is alive, which is returned: its files are copied as they are then."""
    cwd = "/"
    hf.run("echo out; echo err >&2", cwd=cwd, name="both", labels={"tier": "web"}, owner="agent-7")
    hf.run("printf 'h\\303\\251llo\\n\\033[31mred\\033[0m\\n'; exit 3", cwd=cwd, name="failed")
    hf.run("echo merged; echo too >&2", cwd=cwd, name="merged", merge_stderr=True)
    hf.run("seq 1 2000", cwd=cwd, name="long")
    hf.run("sleep 60", wait=0, cwd=cwd, name="stopped").stop(grace=0)
    hf.run("sleep 60", cwd=cwd, name="late", timeout=0.1)
    try:
        hf.run(["/no/such/program"], cwd=cwd, name="unspawned")
    except holdfast.HoldfastError:
        pass
    lost = hf.start("echo last words; exec sleep 60", cwd=cwd, name="lost")
    lost.wait(match="last words", timeout=5)
    lost.update(name="lost-renamed", description="was called lost")
    os.kill(lost.runner_pid or 0, signal.SIGKILL)
    os.kill(lost.pid or 0, signal.SIGKILL)
    terminal = hf.start(
        "stty -echo; printf '\\033[1mbold\\033[0m\\r\\n'; read answer; exit 4", cwd=cwd, name="terminal", tty=True
    )
    terminal.wait(match="bold", timeout=5)
    terminal.submit("yes")
    terminal.wait(exit=True, timeout=5)
    live = hf.start("echo still here; exec sleep 60", cwd=cwd, name="live", owner="agent-7", notify="exit")
    live.wait(match="still here", timeout=5)
    return live


def mark(session: Path, name: str) -> None:
    directory = os.open(session, os.O_RDONLY | os.O_DIRECTORY)
    people = records.read(str(session / name)).get("people")
    if people is not None:  # nothing of this machine
        config = "/etc/holdfast/config.toml"
        argv = ["/usr/bin/python3", *people["argv"][1:-1], config]
        people = {"people": {**people, "argv": argv, "config": [config, 0]}}
    try:
        records.write(directory, name, {**LATER, **(people or {})})
    finally:
        os.close(directory)


if __name__ == "__main__":
    main()
