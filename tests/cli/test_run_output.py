"""`hold run` is a pipe: every byte reaches its reader, and the command waits for a slow one. What is lost all the same
is counted on stderr, with exit code 125."""

from __future__ import annotations

import hashlib
import os
import random
import select
import signal
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from cli.outer import Outer
from support.levers import namespace_argv
from support.scale import scaled
from support.waiting import until
from support.world import World

TESTS = Path(__file__).resolve().parents[1]
CAP = scaled(1 << 20, 64 << 20)
SIZE = scaled(12_000_000, 400_000_000)
RATE = scaled(8_000_000, 1_000_000)
# What may be printed beyond what the reader has: the log, a pipe on each side, and what is in flight.
AHEAD = CAP + (3 << 20)
SETTINGS = {"HOLDFAST_LOG_SESSION_CAP": str(CAP)}

# Reads so many bytes at so many a second, prints their hash, and keeps waiting: it is killed, it never sees the end.
READER = """
import hashlib, select, sys, time
size, rate = int(sys.argv[1]), float(sys.argv[2])
found, read = hashlib.sha256(), 0
select.select([0], [], [])
began = time.monotonic()
while read < size:
    piece = sys.stdin.buffer.read1(min(1 << 16, size - read))
    if not piece:
        break
    found.update(piece)
    read += len(piece)
    select.select([], [], [], max(0.0, began + read / rate - time.monotonic()))
print(read, found.hexdigest(), flush=True)
select.select([], [], [])
"""


@pytest.fixture
def noise(world: World) -> Path:
    """A file of random bytes, as long as the test needs them."""
    path = world.root / "noise"
    source = random.Random(18)
    with path.open("wb") as file:
        for begin in range(0, SIZE, 1 << 20):
            file.write(source.randbytes(min(1 << 20, SIZE - begin)))
    return path


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _started(world: World, *argv: str, name: str = "big") -> subprocess.Popen[bytes]:
    """`hold run` with both streams in pipes; at teardown the pipes are closed and it is ended."""
    running = subprocess.Popen(
        world.hold_argv("run", "--name", name, *argv),
        env={**os.environ, **SETTINGS},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        process_group=0,
    )
    world.closing.callback(_end, running)
    return running


def _end(running: subprocess.Popen[bytes]) -> None:
    if running.poll() is None:
        running.kill()
    with running:
        pass


@pytest.mark.covers("habits:7", "found:18")
@pytest.mark.timeout(scaled(60, 900))
def test_a_run_far_above_the_logs_cap_is_whole_in_a_hash(world: World, noise: Path) -> None:
    wanted = _hash(noise)
    for _ in range(scaled(1, 3)):
        run = _started(world, "--", "cat", str(noise))
        hashed = subprocess.run(["sha256sum"], stdin=run.stdout, capture_output=True, text=True, check=True)
        _, errors = run.communicate()
        assert hashed.stdout.split()[0] == wanted
        assert (run.returncode, errors) == (0, b"")
        session = world.open().get("big")
        # The cap holds as ever: what was read has left the log.
        assert session.ends["stdout"] == SIZE
        assert session.log_bytes <= CAP + CAP // 4
        session.remove()


@pytest.mark.covers("habits:7", "found:18")
@pytest.mark.timeout(scaled(60, 900))
def test_a_slow_reader_gets_every_byte_and_the_command_waits_for_it(world: World, noise: Path) -> None:
    wanted = _hash(noise)
    runs = []
    # Three readers at once: each is slow, so that they cost no more time than one.
    for number in range(scaled(1, 3)):
        run = _started(world, "--", "cat", str(noise), name=f"slow{number}")
        argv = [sys.executable, "-c", READER, str(SIZE), str(RATE)]
        reader = subprocess.Popen(argv, stdin=run.stdout, stdout=subprocess.PIPE)
        assert run.stdout is not None
        run.stdout.close()
        world.closing.callback(_end, reader)
        runs.append((number, run, reader))
    for number, run, reader in runs:
        assert reader.stdout is not None
        assert reader.stdout.readline().decode().split() == [str(SIZE), wanted]
        reader.kill()
        assert run.stderr is not None
        assert run.stderr.read() == b""
        assert run.wait() == 0
        session = world.open().get(f"slow{number}")
        assert session.started_at is not None
        assert session.ended_at is not None
        took = datetime.fromisoformat(session.ended_at) - datetime.fromisoformat(session.started_at)
        # It printed no faster than it was read, but for what fits into the log.
        assert took.total_seconds() > (SIZE - AHEAD) / RATE


def _held(world: World, at_least: int = CAP // 2) -> int:
    """Where the output stands once the command waits: its runner, asked again and again, has read nothing more."""
    hf = world.open()
    until(lambda: [one for one in hf.sessions() if one.name == "big" and one.pid], what="the session")
    session = hf.get("big")
    seen = [-1] * 20

    def stands_still() -> bool:
        seen.append(sum(session.refresh().ends.values()))
        return seen[-1] >= at_least and len(set(seen[-20:])) == 1

    until(stands_still, what="the output to stand still")
    return seen[-1]


@pytest.mark.short
def test_the_command_waits_below_the_cap_without_a_reader(world: World, noise: Path) -> None:
    run = _started(world, "--", "cat", str(noise))
    printed = _held(world)
    assert printed <= CAP + CAP // 4
    assert world.open().get("big").dropped_before == {"stdout": 0, "stderr": 0}
    assert run.stdout is not None
    assert hashlib.sha256(run.stdout.read()).hexdigest() == _hash(noise)
    assert run.wait() == 0


@pytest.mark.short
@pytest.mark.parametrize("how", ["killed", "closed"])
def test_a_reader_that_leaves_lets_the_command_continue(world: World, noise: Path, how: str) -> None:
    run = _started(world, "--", "cat", str(noise))
    _held(world)
    assert run.stdout is not None
    if how == "killed":
        run.kill()
    run.stdout.close()
    run.wait()
    session = world.open().get("big")
    session.wait(exit=True, timeout=30)
    assert session.refresh().exit is not None
    assert session.exit.code == 0  # type: ignore[union-attr]
    assert session.ends["stdout"] == SIZE
    assert session.dropped_before["stdout"] > 0


@pytest.mark.short
def test_a_second_interrupt_lets_a_waiting_command_continue(world: World, noise: Path) -> None:
    command = f"trap '' INT; cat {noise}"
    run = _started(world, "--", command)
    hf = world.open()
    until(lambda: any(one.name == "big" and sum(one.ends.values()) > CAP // 2 for one in hf.sessions()))
    assert run.stderr is not None
    run.send_signal(signal.SIGINT)
    assert b"sent INT" in run.stderr.readline()
    run.send_signal(signal.SIGINT)
    assert b"is still running: `hold logs -f " in run.stderr.readline()
    session = world.open().get("big")
    session.wait(exit=True, timeout=30)
    assert session.refresh().ends["stdout"] == SIZE


@pytest.mark.short
def test_both_streams_are_whole_and_in_their_place(world: World) -> None:
    lines = 60_000
    command = f"i=0; while [ $i -lt 60 ]; do seq {lines // 60}; seq {lines // 60} >&2; i=$((i+1)); done"
    whole = "".join(f"{number}\n" for number in range(1, lines // 60 + 1)) * 60
    done = subprocess.run(
        world.hold_argv("run", "--", f"{command}; {command}; {command}; {command}"),
        capture_output=True,
        text=True,
        env={**os.environ, **SETTINGS},
        check=False,
    )
    assert done.stdout == whole * 4
    assert done.stderr == whole * 4
    assert done.returncode == 0


# No file system has so much room: the runner keeps as little of the log as it may.
NO_ROOM = {"HOLDFAST_LOG_FREE_FLOOR": "100TiB"}


@pytest.mark.covers("habits:7", "found:18")
@pytest.mark.short
def test_a_run_is_whole_while_free_space_is_below_the_floor(world: World) -> None:
    size = 40_000_000
    done = subprocess.run(
        world.hold_argv("run", "--", "head", "-c", str(size), "/dev/zero"),
        capture_output=True,
        env={**os.environ, **NO_ROOM},
        timeout=30,
        check=False,
    )
    assert (done.returncode, len(done.stdout), done.stderr) == (0, size, b"")


# Both streams grow alike: 4 KiB to each in turn, once the runner has read what came before.
ALIKE = """
import fcntl, os, sys, termios
for number in range(int(sys.argv[1])):
    for fd in (1, 2):
        os.write(fd, bytes([number % 251]) * 4096)
        while any(fcntl.ioctl(fd, termios.FIONREAD, bytes(4))):
            os.sched_yield()
"""


@pytest.mark.covers("habits:7", "found:18")
@pytest.mark.short
def test_two_streams_that_grow_alike_are_whole_while_free_space_is_below_the_floor(world: World) -> None:
    writes = 1500
    settings = {"HOLDFAST_LOG_SESSION_CAP": "16MiB", "HOLDFAST_LOG_SEGMENT": "4MiB", **NO_ROOM}
    done = subprocess.run(
        world.hold_argv("run", "--", sys.executable, "-c", ALIKE, str(writes)),
        capture_output=True,
        env={**os.environ, **settings},
        timeout=30,
        check=False,
    )
    whole = b"".join(bytes([number % 251]) * 4096 for number in range(writes))
    assert done.returncode == 0
    assert done.stdout == whole
    assert done.stderr == whole


@pytest.mark.short
def test_a_terminals_output_into_a_pipe_is_whole(world: World) -> None:
    run = _started(world, "--tty", "--", "seq", "1", "400000")
    assert _held(world) <= CAP + CAP // 4
    out, errors = run.communicate()
    assert out == b"".join(b"%d\r\n" % number for number in range(1, 400_001))
    assert (run.returncode, errors) == (0, b"")


@pytest.mark.short
def test_a_terminal_that_shows_nothing_makes_its_command_wait(world: World) -> None:
    argv = world.hold_argv("run", "--name", "big", "--tty", "--", "seq", "1", "250000")
    window = Outer(argv, env={**os.environ, **SETTINGS})
    world.closing.callback(window.close)
    # The window is not read: its terminal, and then everything behind it, fills up.
    printed = _held(world, 1)
    assert printed < 1_600_000
    window.until(lambda: b"250000\r\n" in window.printed[-2000:], "the last number", 30)
    assert window.end() == 0
    # Nothing was skipped.
    assert all(b"%d\r\n" % number in window.printed for number in range(1, 250_000, 997))


@pytest.mark.short
def test_a_command_that_waits_for_its_reader_is_not_idle(world: World, noise: Path) -> None:
    run = _started(world, "--idle-timeout", "400ms", "--", f"cat {noise}")
    _held(world)
    assert run.stdout is not None
    # Far longer than it may be silent, and nothing is read.
    select.select([], [], [], 1.2)
    assert hashlib.sha256(run.stdout.read()).hexdigest() == _hash(noise)
    assert run.wait() == 0


@pytest.mark.short
def test_a_run_that_stays_for_a_while_leaves_a_flood_in_time(world: World) -> None:
    done = subprocess.run(
        world.hold_argv("run", "--wait", "1s", "--", "yes"),
        stdout=subprocess.PIPE,
        env={**os.environ, **SETTINGS},
        timeout=30,
        check=False,
    )
    assert done.returncode == 0
    id = done.stdout.split(b"\n")[-2].decode()
    world.hold("kill", id, check=True)


# A home of 3 MB of its own, and `hold run` in it: the output fills it, then room is made, and the command continues.
ON_SMALL_DISK = f"""
import json, os, subprocess, sys
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
from support.waiting import until
home = Path(os.environ["HOLDFAST_HOME"])
home.mkdir(mode=0o700)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(home)], check=True)
ballast = home / "ballast"
ballast.write_bytes(bytes(1 << 20))
gate, tty = sys.argv[1], sys.argv[2:]
later = "n=0; while [ $n -lt 40 ]; do n=$((n+1)); echo later $n; sleep 0.02; done"
command = f"seq 1 600000; read go < {{gate}}; {{later}}; exit 3"
argv = [sys.executable, "-m", "holdfast.cli", "run", "--name", "big", *tty, "--", command]
run = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
import holdfast
hf = holdfast.open()
printed = sum(len(str(n)) + 1 + len(tty) for n in range(1, 600_001))
until(lambda: any(sum(one.ends.values()) >= printed for one in hf.sessions()), what="the end of the flood")
ballast.unlink()
with open(gate, "w") as file: file.write("go\\n")
out, errors = run.communicate(timeout=20)
session = hf.get("big")
print(json.dumps(dict(
    code=run.returncode, errors=errors.decode(), received=len(out), printed=sum(session.ends.values()),
    last=out[-10:].decode(),
)), flush=True)
"""


@pytest.mark.covers("habits:8", "found:18")
@pytest.mark.namespaces
@pytest.mark.parametrize("tty", [[], ["--tty"]], ids=["pipes", "terminal"])
def test_what_a_full_disk_refuses_is_counted_and_makes_the_run_fail(world: World, tty: list[str]) -> None:
    import json

    gate = world.root / "fifo"
    os.mkfifo(gate)
    host = world.host(ON_SMALL_DISK, gate, *tty, prefix=namespace_argv("--mount"), env={"HOLDFAST_LOG_FREE_FLOOR": "0"})
    line = host.line(40)
    assert line, host.errors()
    reported = json.loads(line)
    missing = reported["printed"] - reported["received"]
    assert missing > 0
    why = f"{missing} not stored (disk full)"
    assert reported["errors"].startswith(f"hold: {missing} bytes of output are missing: {why}")
    assert reported["code"] == 125
    assert reported["last"].strip().endswith("later 40")
