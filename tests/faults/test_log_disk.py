"""LOG-01 and LOG-02: a disk that is full, read-only or failing costs log, says so, and costs nothing else."""

from __future__ import annotations

import errno
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, Session
from holdfast.errors import DiskFull
from holdfast.sessions.connection import Connection
from support import processes
from support.bystander import Bystanders
from support.levers import namespace_argv
from support.points import Points
from support.promised import Beside, home_is_usable, is_typed, marked, promised
from support.scale import scaled
from support.waiting import until, wait_for_file
from support.world import World

TESTS = Path(__file__).resolve().parents[1]

# The first part of a host that lives on a small disk of its own. `world` and `beside` are as in any other test.
_ON_SMALL_DISK = f"""
import json, os, subprocess, sys, time
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
home = Path(os.environ["HOLDFAST_HOME"])
home.mkdir(mode=0o700)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(home)], check=True)
import holdfast
from support import probe
from support.promised import Beside, ending_is_true, log_is_whole, nobody_is_forgotten
from support.waiting import until

class World:
    def session(self, id): return home / "sessions" / id
    def probe(self, *words): return probe.argv(*words)
    def open(self): return holdfast.open()

def promised(session):
    session.refresh()
    log_is_whole(world, session)
    ending_is_true(world, session)
    nobody_is_forgotten(world, session)
    beside.unharmed()

def tell(**facts): print(json.dumps(facts), flush=True)
def free(): disk = os.statvfs(home); return disk.f_bavail * disk.f_frsize

world = World()
ballast = home / "ballast"
ballast.write_bytes(bytes(1 << 20))
beside = Beside(world)
hf = holdfast.open()
"""

FULL = (
    _ON_SMALL_DISK
    + """
# The whole of the first part comes at full speed; the second line by line, when the disk has room again.
printed = sum(len(f"{n}\\n") for n in range(1, 2_000_001))
command = "seq 1 2000000; while read word; do echo got $word; done; exit 7"
session = hf.start(command, stdin="open", log_cap="64MiB")
until(lambda: session.refresh().ends["stdout"] == printed, what="the end of the flood")
now = session.refresh()
tell(state=now.state, gaps=now.metadata["gaps"], warnings=now.metadata["warnings"], free=free(), stored=now.log_bytes)
for options in ({}, {"name": "web"}, {"key": "k"}):
    try:
        hf.start("echo never", **options)
        refused = None
    except holdfast.HoldfastError as problem:
        refused = {**problem.to_json(), "text": str(problem)}
    tell(refused=refused, sessions=len(os.listdir(home / "sessions")))
ballast.unlink()
tries = 0
while not session.search("^got"):
    tries += 1
    session.send(f"{tries}\\n")
    session.wait(output=True, idle=0.02, timeout=1)
session.send("last\\n")
session.close_stdin()
session.wait(exit=True, timeout=30)
promised(session)
record = json.loads((world.session(session.id) / "exit.json").read_text())
page = session.read()
while page.more:
    more = session.read(page.cursor)
    page.chunks.extend(more.chunks); page.gaps.extend(more.gaps); page.cursor, page.more = more.cursor, more.more
names = sorted(path.name for path in world.session(session.id).iterdir())
tell(
    printed=printed, tries=tries, record=record, names=names,
    chunks=[(name, at, len(data), data[:40].decode(), data[-40:].decode()) for name, at, data in page.chunks],
    gaps=[list(gap) for gap in page.gaps],
)
assert hf.run("echo fine").text() == "fine\\n"
beside.end()
"""
)


def numbers_at(offset: int, size: int) -> bytes:
    """What `seq 1 2000000` prints there."""
    # Up to 9, 99, 999...: so many numbers of so many digits.
    start, digits = 1, 1
    at = 0
    while True:
        block = 9 * 10 ** (digits - 1) * (digits + 1)
        if offset < at + block:
            break
        at, start, digits = at + block, start * 10, digits + 1
    first = start + (offset - at) // (digits + 1)
    text = b"".join(b"%d\n" % number for number in range(first, first + size // (digits + 1) + 2))
    skip = (offset - at) % (digits + 1)
    return text[skip : skip + size]


@pytest.mark.covers("LOG-01")
@pytest.mark.namespaces
@pytest.mark.slow
def test_log_01_a_disk_that_fills_up_costs_a_gap_and_no_more(world: World, bystander: Bystanders) -> None:
    host = world.host(FULL, prefix=namespace_argv("--mount"), env={"HOLDFAST_LOG_FREE_FLOOR": "0"})
    full = _told(host)
    # The command was not held up: every byte it printed was counted while the disk was full.
    assert full["state"] == "running"
    (gap,) = full["gaps"]
    assert (gap["stream"], gap["reason"], gap["from"]) == ("stdout", "disk", full["stored"])
    assert full["free"] < 64 << 10
    assert [text for text in full["warnings"] if "refuses the log of stdout" in text]
    for _ in range(3):
        refused = _told(host)
        assert refused["refused"]["code"] == "disk-full"
        assert "space" in refused["refused"]["text"]
        assert "free some space" in refused["refused"]["fix"]
        assert refused["sessions"] == 2
    end = _told(host)
    record = end["record"]
    # The missing range is exactly what no file holds, and what came later stands where it belongs.
    assert record["gaps"][0]["from"] == full["stored"]
    begin, stop = record["gaps"][0]["from"], record["gaps"][0]["to"]
    assert stop >= end["printed"]
    assert (
        begin + sum(chunk[2] for chunk in end["chunks"] if chunk[1] >= stop) + (stop - begin)
        == record["ends"]["stdout"]
    )
    assert end["gaps"] == [["stdout", begin, stop, "disk"]]
    stored = [chunk for chunk in end["chunks"] if chunk[1] < begin]
    assert sum(chunk[2] for chunk in stored) == begin
    for _, offset, size, head, tail in stored:
        assert head.encode() == numbers_at(offset, 40)
        assert tail.encode() == numbers_at(offset + size - 40, 40)
    assert end["chunks"][-1][4].endswith("got last\n")
    assert record["exit"]["code"] == 7
    assert record["exit"]["complete"] is True
    # Once, in the record: there was no room to say it in runner.log.
    assert len([text for text in record["warnings"] if "refuses the log of stdout" in text]) == 1
    # Trying again and again left no empty files behind.
    assert len([name for name in end["names"] if name.startswith("stdout.")]) <= 3
    assert host.wait(30) == 0, host.errors()
    assert bystander.all


@pytest.mark.covers("LOG-02")
def test_log_02_a_disk_that_takes_nothing_for_a_while_is_outlived_and_the_exit_recorded_in_the_end(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    """A size limit of zero stands for it, because the kernel remounts nothing read-only that is being written to."""
    hf = world.open()
    session = hf.start("echo one; while read word; do echo got $word; done; exit 7", stdin="open")
    assert session.wait(match="^one$", timeout=30).reason == "match"
    runner = session.runner_pid
    assert runner is not None
    _, hard = resource.prlimit(runner, resource.RLIMIT_FSIZE)
    resource.prlimit(runner, resource.RLIMIT_FSIZE, (0, hard))
    session.send("lost\n")
    until(lambda: session.refresh().ends["stdout"] == 13, what="the line that cannot be stored")
    now = session.refresh()
    assert now.state == "running"
    assert now.metadata["gaps"] == [{"stream": "stdout", "from": 4, "to": 13, "reason": "disk"}]
    assert [text for text in now.metadata["warnings"] if "File too large" in text]
    session.update(labels={"a": "b"})
    assert not [path for path in world.session(session.id).glob("stdout.*") if path.name[-1] != "0"]

    resource.prlimit(runner, resource.RLIMIT_FSIZE, (hard, hard))
    while not session.search("^got [0-9]"):
        session.send("1\n")
        session.wait(output=True, idle=0.02, timeout=1)
    state = world.session(session.id) / "state.json"
    until(lambda: json.loads(state.read_text())["changed"].get("labels") == {"a": "b"}, what="the repaired state")

    resource.prlimit(runner, resource.RLIMIT_FSIZE, (0, hard))
    session.close_stdin()
    until(lambda: session.refresh().state == "exited", what="the end of the command")
    assert session.exit is not None
    assert session.exit.code == 7
    assert not (world.session(session.id) / "exit.json").exists()
    resource.prlimit(runner, resource.RLIMIT_FSIZE, (hard, hard))
    wait_for_file(world.session(session.id) / "exit.json")
    done = promised(world, session, bystander=bystander, beside=beside)
    assert done.exit is not None
    assert done.exit.code == 7
    assert [text for text in done.metadata["warnings"] if "exit.json could not be written" in text]
    assert done.text().startswith("one\n")
    assert "lost" not in done.text()


@pytest.mark.covers("LOG-02")
def test_log_02_a_state_record_that_is_refused_is_tried_again_ever_more_seldom(
    world: World, points: Points, bystander: Bystanders, beside: Beside
) -> None:
    """On faulty code it was tried four times a second for as long as the command lived."""
    points.set("records.create=4+*notify")  # after the room for the exit, the spec and the first state
    points.off("launcher")
    session = world.open().start(world.probe("cat"), stdin="open")
    runner = session.runner_pid
    assert runner is not None
    _, hard = resource.prlimit(runner, resource.RLIMIT_FSIZE)
    resource.prlimit(runner, resource.RLIMIT_FSIZE, (0, hard))
    began = time.monotonic()
    session.update(labels={"a": "b"})
    for _ in range(4):
        points.wait("records.create")
    # From before the first: we may hear late of any of them, which must not make a pause look short.
    assert time.monotonic() - began > 1.2
    resource.prlimit(runner, resource.RLIMIT_FSIZE, (hard, hard))
    state = world.session(session.id) / "state.json"
    until(lambda: json.loads(state.read_text())["changed"].get("labels") == {"a": "b"}, what="the repaired state")
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=0).done


def test_a_wait_for_the_last_process_rests_while_the_disk_refuses_the_record(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On faulty code the runner answered at once that all were gone, the record did not say so, and the host asked
    again and again."""
    session = world.open().run(["sh", "-c", "sleep 600 >/dev/null 2>&1 & exit 0"], wait=30)
    assert session.exit is not None
    [survivor] = session.exit.survivors
    runner, last = session.runner_pid, processes.look(survivor["pid"])
    assert runner is not None
    assert last is not None
    _, hard = resource.prlimit(runner, resource.RLIMIT_FSIZE)
    resource.prlimit(runner, resource.RLIMIT_FSIZE, (0, hard))
    processes.end(last)
    asked, ask = [], Connection.ask

    async def counted(connection: Connection, type: str, within: float | None, /, **fields: object) -> None:
        asked.append(type)
        await ask(connection, type, within, **fields)

    monkeypatch.setattr(Connection, "ask", counted)
    assert session.wait(extinct=True, timeout=0.5).reason == "timeout"
    assert len(asked) < 5
    resource.prlimit(runner, resource.RLIMIT_FSIZE, (hard, hard))
    assert session.wait(extinct=True, timeout=30).reason == "exit"
    assert session.exit.survivors == []


def _told(host: Any) -> Any:
    line = host.line(30)
    assert line, host.errors()
    return json.loads(line)


POINTS = ["records.create", "records.data", "records.rename", "log.append", "log.rotate", "log.frame"]
ERRORS = ["EIO", "ENOSPC", "EROFS", "EDQUOT"]


@pytest.mark.covers("LOG-02")
@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_log_02_any_single_write_or_rename_may_fail_and_the_records_stay_true(
    world: World, points: Points, bystander: Bystanders, beside: Beside, point: str
) -> None:
    points.off("launcher")
    hf = world.open()
    # Each error at each point in the long form, otherwise one of them.
    for name in scaled([ERRORS[POINTS.index(point) % len(ERRORS)]], ERRORS):
        reached = 0
        for nth in range(1, 60):
            points.set(f"{point}={nth}*error:{name}")
            if not _one_life(world, hf, name, bystander, beside):
                break
            reached += 1
        else:
            pytest.fail("the fault was always reached")
        assert reached >= (4 if point.startswith("records.") else 3), (point, name, reached)
    points.clear()
    home_is_usable(hf)


def _one_life(world: World, hf: Holdfast, name: str, bystander: Bystanders, beside: Beside) -> bool:
    """Start, print, update, end, with a fault on the way. Whether it was reached."""
    before = set(os.listdir(world.home / "sessions"))
    born = {(row.pid, row.start) for row in processes.descendants(os.getpid())}
    # Long enough for two rotations, in two parts so that the state is rewritten in between.
    command = world.probe("quiet", "fill", 270_000, "read-line", "fill", 270_000, "say", "", "exit", 5)
    reason = os.strerror(getattr(errno, name))
    session, refusal = _started(hf, command)
    if session is None:
        assert refusal is not None
        is_typed(refusal)
        assert reason in refusal.message
        assert "no process was started" in refusal.message
        assert set(os.listdir(world.home / "sessions")) == before
        assert not [row for row in processes.descendants(os.getpid()) if _is_new_probe(row, born)]
        return True
    session.update(labels={"a": "b"})
    session.send("on\n")
    assert session.wait(exit=True, timeout=30).reason == "exit"
    done = promised(world, session, bystander=bystander, beside=beside)
    assert done.exit is not None
    assert (done.exit.code, done.exit.cause) == (5, "exit")
    assert done.ends == {"stdout": 540_008}
    assert done.labels == {"a": "b"}
    warnings = done.metadata.get("warnings", [])
    said = (world.session(done.id) / "runner.log").read_text() if warnings else ""
    assert len(warnings) <= 1, warnings
    for text in warnings:
        assert reason in text
        assert said.count(text) == 1
    # What is not in the files is in a gap, to the byte.
    gaps = sum(gap["to"] - gap["from"] for gap in done.metadata.get("gaps", []))
    assert gaps + done.log_bytes == 540_008
    assert sum(len(part) for part in done.raw("stdout")) == done.log_bytes
    assert marked(done.id) == []
    return bool(warnings)


def _started(hf: Holdfast, command: list[str]) -> tuple[Session | None, DiskFull | None]:
    try:
        return hf.start(command, stdin="open", log_cap="1MiB", merge_stderr=True), None
    except DiskFull as refusal:
        return None, refusal


def _is_new_probe(row: processes.Process, born: set[tuple[int, int]]) -> bool:
    line = processes.command_line(row.pid)
    return (row.pid, row.start) not in born and "probe.py" in line and sys.executable in line
