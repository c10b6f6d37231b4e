"""A disk that fills up and empties again ends nobody who follows, and takes no cursor back that was handed out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.levers import namespace_argv
from support.scale import scaled
from support.world import World

TESTS = Path(__file__).resolve().parents[1]
SECONDS = scaled(3, 60)

# A home of 3 MB of its own. Two commands print numbered lines until they are told to stop, one on pipes and one on a
# terminal; four followers read them, while the disk is filled to its last byte and emptied again.
DISK = f"""
import json, os, subprocess, sys, threading, time
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
from support.waiting import until
home = Path(os.environ["HOLDFAST_HOME"])
home.mkdir(mode=0o700)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(home)], check=True)
import holdfast, holdfast.sessions.log
root, seconds = Path(sys.argv[1]), float(sys.argv[2])
go_on = root / "go-on"
go_on.touch()
line = "n=$((n+1)); echo $n of a line that is long enough; echo $n on the other stream >&2"
command = f"n=0; while [ -e {{go_on}} ]; do {{line}}; done; echo the last line; exit 7"
hold = [sys.executable, "-m", "holdfast.cli"]
files = {{}}

def follow(name, *words):
    files[name] = root / (name + ".out")
    with files[name].open("wb") as out, (root / (name + ".err")).open("wb") as errors:
        return subprocess.Popen([*hold, *words], stdin=subprocess.DEVNULL, stdout=out, stderr=errors)

hf = holdfast.open()
terminal = hf.start(command, tty=True, name="terminal")
followers = {{"run": follow("run", "run", "--name", "pipes", "--", command)}}
until(lambda: any(one.name == "pipes" for one in hf.sessions()))
pipes = hf.get("pipes")
followers["logs"] = follow("logs", "logs", "-f", "--raw", pipes.id)
followers["attach"] = follow("attach", "attach", terminal.id)
pages = []
problem = []

def by_library():
    try:
        with holdfast.open() as mine:
            for page in mine.get(pipes.id).follow():
                pages.append((page.cursor, sum(len(data) for _, _, data in page.chunks), list(page.gaps)))
    except BaseException as raised:
        problem.append(repr(raised))

library = threading.Thread(target=by_library)
library.start()
sessions = (pipes, terminal)
cursors = {{session.id: set() for session in sessions}}

def note():
    for session in sessions:
        cursors[session.id].add(session.refresh().cursor)
        cursors[session.id].add(session.read(session.cursor).cursor)
        cursors[session.id].add(session.wait(output=True, timeout=0.01).cursor)
        for cursor in cursors[session.id]:
            session.read(cursor, limit=1000)

def refused(session):
    # Changes whenever the disk refuses something.
    known = session.refresh().metadata
    return known.get("gaps_more"), [gap["to"] for gap in known.get("gaps", [])]

def fill():
    with open(home / "ballast", "ab", buffering=0) as ballast:
        try:
            while True:
                ballast.write(bytes(4096))
        except OSError:
            pass

def living():
    over = [name for name, process in followers.items() if process.poll() is not None]
    assert not over and not problem, (over, problem, [(root / (name + ".err")).read_text() for name in over])

def until_or_over(predicate, what):
    until(lambda: living() or predicate(), 30, what=what)

rounds = 0
began = time.monotonic()
while time.monotonic() < began + seconds or rounds < 3:
    rounds += 1
    before = {{session.id: refused(session) for session in sessions}}
    for session in sessions:
        until_or_over(lambda: fill() or refused(session) != before[session.id], f"a gap in {{session.name}}")
    note()
    (home / "ballast").unlink()
    for session in sessions:
        log = holdfast.sessions.log.Log(str(home / "sessions" / session.id))
        ends = log.ends()
        until_or_over(lambda: log.ends() != ends, f"more in the log of {{session.name}}")
    note()
    living()
go_on.unlink()
for session in sessions:
    session.wait(exit=True, timeout=30)
codes = {{name: process.wait(30) for name, process in followers.items()}}
library.join(30)
note()
told = {{}}
for name, file in files.items():
    data = file.read_bytes()
    told[name] = {{"code": codes[name], "size": len(data), "errors": (root / (name + ".err")).read_text()[-4000:]}}
    # The two pipes are read one after the other: the last line of one may stand before the rest of the other.
    told[name]["end"] = b"the last line" in data[-256 * 1024 :]
print(json.dumps({{
    "rounds": rounds, "problem": problem, "library": library.is_alive(), "followers": told,
    "pages": [pages[-1][0], sum(size for _, size, _ in pages)],
    "missing": sum(gap.stop - gap.start for _, _, gaps in pages for gap in gaps),
    "ends": [session.refresh().ends for session in sessions], "cursor": pipes.cursor,
    "gaps": [session.metadata.get("gaps", []) for session in sessions],
    "cursors": [len(cursors[session.id]) for session in sessions],
}}), flush=True)
"""


@pytest.mark.covers("found:43")
@pytest.mark.namespaces
@pytest.mark.slow
@pytest.mark.timeout(scaled(60, 240))
def test_a_disk_that_fills_and_empties_ends_no_follower_and_no_cursor(world: World) -> None:
    host = world.host(
        DISK,
        world.root,
        SECONDS,
        prefix=namespace_argv("--mount"),
        env={"HOLDFAST_LOG_FREE_FLOOR": "0", "HOLDFAST_LOG_SESSION_CAP": "1MiB", "HOLDFAST_LOG_SEGMENT": "64KiB"},
    )
    line = host.line(scaled(50, 200))
    assert line, host.errors()
    told: dict[str, Any] = json.loads(line)
    print(json.dumps(told, indent=1))
    assert not told["problem"]
    followers = told["followers"]
    # Each saw the end, which was printed when the disk had room again.
    for name, code in {"run": 125, "logs": 0, "attach": 7}.items():
        assert followers[name]["code"] == code, followers[name]
        assert followers[name]["end"], followers[name]
    pipes = sum(told["ends"][0].values())
    assert told["pages"][0] == told["cursor"]
    # What the one that asked for every byte did not get is what was declared missing.
    assert told["pages"][1] + told["missing"] == pipes
