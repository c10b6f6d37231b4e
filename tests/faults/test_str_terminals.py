"""STR rows on terminals, and what a full disk means to who is attached: bursts, edges, storms, hostile output."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from holdfast import Session
from holdfast.errors import HoldfastError, ObserveOnly, Unsupported
from holdfast.model.events import Clients, Init
from support import numbered_stream
from support.bystander import Bystanders
from support.levers import namespace_argv
from support.peer import is_alive, memory_kb
from support.points import Points
from support.program import Program
from support.promised import Beside, home_is_usable, left_alone, promised
from support.scale import scaled
from support.viewer import Viewer
from support.waiting import until
from support.world import World

TESTS = Path(__file__).resolve().parents[1]
MIB = 1 << 20

# A client in a process of its own: digest and size of all that came from C on, and how it ended.
ATTACHER = """
import hashlib, json, sys, holdfast
from holdfast.model.events import Data, Exit, Gap, Init
id, begin = sys.argv[1:]
digest, told = hashlib.sha256(), {"exits": 0, "gaps": 0, "last": None}
session = holdfast.open().get(id)
print("here", flush=True)
with session.attach(role="observe", lag="exact", since=int(begin) if begin.isdecimal() else begin) as attachment:
    for event in attachment:
        told["last"] = type(event).__name__
        if isinstance(event, Init):
            told["from"] = at = event.at
        elif isinstance(event, Gap):
            told["gaps"] += 1
            at = event.end
        elif isinstance(event, Data) and event.offset >= told["from"]:
            assert event.offset == at, (event.offset, at)
            digest.update(event.data)
            at += len(event.data)
        elif isinstance(event, Exit):
            told["exits"] += 1
            told["code"] = event.code
        if told["last"] == "Init":
            print("attached", flush=True)
print(json.dumps({**told, "end": at, "digest": digest.hexdigest()}), flush=True)
"""


def whole(session: Session) -> bytes:
    return b"".join(session.raw("tty"))


def report(client: Program, bound: float = 30) -> dict[str, Any]:
    while (line := client.line(bound)) in ("here", "attached"):
        pass
    assert line, client.errors()
    told: dict[str, Any] = json.loads(line)
    return told


def agrees(told: dict[str, Any], session: Session, code: int) -> None:
    """From C on it was told the log, no byte twice, none missing, then the exit, once."""
    log = whole(session)
    assert (told["exits"], told["last"], told["code"], told["gaps"]) == (1, "Exit", code, 0)
    assert told["end"] == len(log) == session.ends["tty"]
    assert told["digest"] == hashlib.sha256(log[told["from"] :]).hexdigest()


BURST = """
import os, sys, termios, tty
sys.path.insert(0, sys.argv[1])
from support import numbered_stream
tty.setraw(1)
os.write(1, b"up")
os.read(0, 1)
for number in range(int(sys.argv[2])):
    view = memoryview(numbered_stream.terminal_block(number))
    while view:
        view = view[os.write(1, view):]
os._exit(9)
"""


@pytest.mark.covers("STR-04")
@pytest.mark.slow
def test_str_04_a_hundred_megabytes_on_a_terminal_right_before_the_end_are_all_there_for_everybody(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    blocks = scaled(24, 100)
    script = world.root / "burst.py"
    script.write_text(BURST)
    argv = [sys.executable, "-I", "-S", str(script), str(TESTS), str(blocks)]
    session = world.open().start(argv, tty=True, log_cap=128 * MIB)
    assert session.wait(match="^up", timeout=30).reason == "match"
    clients = [world.host(ATTACHER, session.id, begin) for begin in ("start", "screen", "now")]
    for client in clients:
        assert [client.line(), client.line()] == ["here", "attached"]
    session.send("x")
    told = [report(client, 100) for client in clients]
    session.wait(exit=True, timeout=30)
    done = promised(world, session, bystander=bystander, beside=beside)
    assert done.exit is not None
    assert (done.exit.code, done.exit.complete) == (9, True)
    assert done.ends == {"tty": 2 + blocks * numbered_stream.BLOCK}
    wanted = hashlib.sha256(b"up")
    for number in range(blocks):
        wanted.update(numbered_stream.terminal_block(number))
    assert told[0]["digest"] == wanted.hexdigest()
    for each in told:
        agrees(each, done, 9)


@pytest.mark.covers("STR-04")
def test_str_04_last_words_on_a_terminal_come_before_the_exit_for_every_client(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    for number in range(12):
        size = 70_000 * (number % 4)
        session = hf.start(
            world.probe("quiet", "read-line", "fill", size, "say", "", "say", "last", "exit", 4), tty=True
        )
        viewers = [Viewer(session.attach(role="observe", lag=lag, since="start")) for lag in ("exact", "skip")]
        session.send("go\n")
        for viewer in viewers:
            assert viewer.to_the_end().code == 4
            assert viewer.live.endswith(b"x\r\nlast\r\n" if size else b"\r\nlast\r\n")
            assert viewer.live == whole(session)
            viewer.attachment.close()
        session.refresh()
        assert session.ends == {"tty": len("go\r\ngot go\r\n") + size + len("\r\nlast\r\n")}
    promised(world, session, bystander=bystander, beside=beside)


# Where a client may come in: before the command exists, before its first byte, in the middle, while the log goes to
# its next segment, between its last byte and the exit, and when the exit is on record.
EDGES = [
    "runner.before_spawn=pause",
    "runner.spawned=pause",
    "runner.state_written=pause",
    "runner.answered=pause",
    "runner.output=1*pause",
    "runner.output=3*pause",
    "log.rotate=2*pause",
    "runner.reaped=pause",
    "runner.exit_written=pause",
]
BEGINS = ["screen", "start", "now"]
# Each edge with each begin in the long form, otherwise with one of them.
COMINGS = scaled(
    [(edge, BEGINS[number % len(BEGINS)]) for number, edge in enumerate(EDGES)],
    list(itertools.product(EDGES, BEGINS)),
)

STARTER = """
import sys, holdfast
hf = holdfast.open()
hf.start(sys.argv[1:], tty=True, name="edge", log_cap="4MiB")
print("started", flush=True)
"""


@pytest.mark.covers("STR-07")
@pytest.mark.parametrize("edge, begin", COMINGS)
def test_str_07_an_attach_at_any_edge_gets_the_log_from_c_on_and_the_exit_once(
    world: World,
    points: Points,
    bystander: Bystanders,
    beside: Beside,
    monkeypatch: pytest.MonkeyPatch,
    edge: str,
    begin: str,
) -> None:
    points.set(edge)
    points.off("launcher")
    monkeypatch.setenv("HOLDFAST_LOG_SEGMENT", "64KiB")
    words = world.probe(
        "lines", 100, "write", "\x1b[2J\x1b[H", "fill", 300_000, "say", "", "lines", 20, 0.001, "exit", 6
    )
    world.host(STARTER, *words)
    hit = points.wait(edge.partition("=")[0])
    id = next(path.name for path in (world.home / "sessions").iterdir() if path.name != beside.session.id)
    client = world.host(ATTACHER, id, begin, env={"HOLDFAST_POINTS": "", "HOLDFAST_HOSTS_SWEEP_TIMEOUT": "0.2s"})
    assert client.line() == "here"
    endpoint = f"{id}.sock"
    until(lambda: connected(endpoint) or not (world.runtime / endpoint).exists(), what="the connection")
    hit.release()
    told = report(client)
    points.clear()
    session = world.open().get(id)
    session.wait(exit=True, timeout=30)
    promised(world, session, bystander=bystander, beside=beside)
    agrees(told, session, 6)
    assert whole(session).startswith(b"ready\r\nline 1\r\n")
    assert whole(session).endswith(b"line 20\r\n")
    if begin == "start":
        assert told["from"] == 0


def connected(endpoint: str) -> bool:
    """Is somebody connected to this endpoint whom nobody has accepted yet, or has?"""
    with open("/proc/net/unix") as file:
        return sum(line.rstrip().endswith(endpoint) for line in file) > 1


@pytest.mark.covers("STR-07")
def test_str_07_a_thousand_resizes_of_three_clients_and_an_observer_are_recorded_where_they_happened(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    """The command prints its size whenever it is told of one. What is recorded before an offset is what it had."""
    program = world.root / "sizes.py"
    program.write_text(SIZES)
    session = world.open().start([sys.executable, "-I", "-S", str(program)], tty=True, size=(30, 120))
    assert session.wait(match="30x120", timeout=30).reason == "match"
    viewers = [Viewer(world.closing.enter_context(session.attach())) for _ in range(3)]
    observer = Viewer(world.closing.enter_context(session.attach(role="observe")))
    for viewer in (*viewers, observer):
        viewer.until(lambda viewer=viewer: viewer.of(Init), "the screen")  # type: ignore[misc]
    for number in range(250):
        for place, viewer in enumerate(viewers):
            viewer.attachment.resize(10 + number % 40, 30 + place * 50 + number % 20)
        observer.attachment.resize(5, 5)
        if number % 50 == 0:
            for viewer in (*viewers, observer):
                viewer.take(0)
    # Who sent a size first and who last is only known of those that were taken.
    for place, viewer in enumerate(viewers):
        size = [10 + 249 % 40, 30 + place * 50 + 249 % 20]
        viewer.until(partial(has_size, viewer, place, size), "its own last size")
    last = (47, 147)
    viewers[2].attachment.resize(*last)
    viewers[2].until(lambda: f"{last[0]}x{last[1]}" in viewers[2].text, "the last size")
    observer.until(lambda: len(observer.refusals) == 250, "the refusals")
    assert all(isinstance(refused.error, ObserveOnly) for refused in observer.refusals)
    assert not any(viewer.refusals for viewer in viewers)
    assert session.refresh().size == list(last)
    session.send("x")
    assert {viewer.to_the_end().code for viewer in (*viewers, observer)} == {3}
    done = promised(world, session, bystander=bystander, beside=beside)
    for viewer in (*viewers, observer):
        assert viewer.live == whole(done)[viewer.live_from :]
    recorded = done._core.log(done.id).resizes()
    assert recorded[0] == (0, 30, 120)
    assert recorded[-1][1:] == last
    # Everybody was told of each where it happened, between the bytes before and those behind it.
    for viewer in (*viewers, observer):
        assert viewer.sizes == recorded[1:]
    assert 2 <= len(recorded) <= 1002
    assert (5, 5) not in [size[1:] for size in recorded]
    # Each size the command saw is one that was on record before it told.
    at = 0
    for line in whole(done).split(b"\r\n")[:-1]:
        rows, cols = map(int, line.split(b"x"))
        assert (rows, cols) in [size[1:] for size in recorded if size[0] <= at], (line, at)
        at += len(line) + 2
    assert (rows, cols) == last


def has_size(viewer: Viewer, place: int, size: list[int]) -> bool:
    told = viewer.of(Clients)
    return bool(told) and told[-1].clients[place]["size"] == size


SIZES = """
import fcntl, os, select, signal, struct, termios, tty
woken, waker = os.pipe()
os.set_blocking(waker, False)
signal.signal(signal.SIGWINCH, lambda *_: None)
signal.set_wakeup_fd(waker)
tty.setraw(0)
while True:
    rows, cols = struct.unpack("HHHH", fcntl.ioctl(0, termios.TIOCGWINSZ, bytes(8)))[:2]
    os.write(1, b"%dx%d\\r\\n" % (rows, cols))
    ready = select.select([0, woken], [], [])[0]
    if 0 in ready:
        os._exit(3)
    os.read(woken, 4096)
"""

# Prints what is hostile, takes what was answered to it, and asks once more.
HOSTILE = """
import os, select, sys, tty
tty.setraw(0)
exec(open(sys.argv[1]).read())
def put(data):
    view = memoryview(data)
    while view:
        view = view[os.write(1, view[:65536]):]
heard = b""
def listen(seconds):
    global heard
    while select.select([0], [], [], seconds)[0]:
        heard += os.read(0, 65536)
put(b"up\\r\\n")
os.read(0, 1)
for part in hostile():
    put(part)
    listen(0)
listen(0.3)
put(b"\\x18\\x1b[m\\x1b[2J\\x1b[Hafter all\\x1b[6n")
while not heard.endswith(b"\\x1b[1;10R"):
    heard += os.read(0, 65536)
with open(sys.argv[2], "wb") as file:
    file.write(heard)
put(b"!")
os.read(0, 1)
os._exit(4)
"""
STREAMS = {
    "an OSC without end": "def hostile():\n    yield b'\\x1b]2;'\n    for _ in range(160): yield b'x' * 65536\n",
    "a DCS without end": "def hostile():\n    yield b'\\x1bPq'\n    for _ in range(160): yield b'x' * 65536\n",
    "an APC without end": "def hostile():\n    yield b'\\x1b_G'\n    for _ in range(160): yield b'x' * 65536\n",
    "links": "def hostile():\n    for n in range(40_000): yield b'\\x1b]8;id=%d;http://x/%d\\x1b\\\\a' % (n, n)\n",
    "queries": "def hostile():\n    for n in range(400): yield b'\\x1b[6n' * 250\n",
    "parameters": "def hostile():\n    for _ in range(100): yield b'\\x1b[' + b'1;' * 10_000 + b'm'\n",
    "screens": "def hostile():\n    for _ in range(200): yield b'\\x1b[?1049hx\\x1b[?1049l' * 200\n",
    "clears": "def hostile():\n    for _ in range(200): yield b'\\x1b[2J\\x1b[H\\x1bc' * 500\n",
    "titles": "def hostile():\n    for n in range(50_000): yield b'\\x1b]2;%d\\x07\\x1b[22t' % n\n",
}


@pytest.mark.covers("STR-08")
@pytest.mark.parametrize("name", list(STREAMS))
def test_str_08_hostile_output_is_logged_as_it_stands_bounded_and_answered_at_most_once(
    world: World, bystander: Bystanders, beside: Beside, name: str
) -> None:
    (world.root / "hostile.py").write_text(HOSTILE)
    (world.root / "stream.py").write_text(STREAMS[name])
    argv = [sys.executable, "-I", "-S", *(str(world.root / each) for each in ("hostile.py", "stream.py", "heard"))]
    session = world.open().start(argv, tty=True)
    assert session.wait(match="up", timeout=30).reason == "match"
    runner = session.runner_pid
    assert runner is not None
    listener = Viewer(
        world.closing.enter_context(session.attach(role="observe", lag="exact", since="start")), draws=False
    )
    listener.until(lambda: listener.of(Init), "the beginning")
    before = memory_kb(runner)
    session.send("x")
    listener.until(lambda: listener.live.endswith(b"after all\x1b[6n!"), "what follows", 50)
    assert memory_kb(runner, "VmHWM") - before < 24 << 10
    assert is_alive(str(session.endpoint))
    shown = drawn(session)
    dropped = session.refresh().metadata.get("replies_dropped", 0)
    session.send("x")
    assert listener.to_the_end().code == 4
    session.wait(exit=True, timeout=30)
    done = promised(world, session, bystander=bystander, beside=beside, error=shown)
    printed: dict[str, Any] = {}
    exec(STREAMS[name], printed)
    wanted = b"up\r\n" + b"".join(printed["hostile"]()) + b"\x18\x1b[m\x1b[2J\x1b[Hafter all\x1b[6n!"
    assert done.ends == {"tty": len(wanted)}
    assert whole(done) == wanted == listener.live
    heard = (world.root / "heard").read_bytes()
    answers = heard.split(b"R")[:-1]
    assert all(re.fullmatch(rb"\x1b\[\d+;\d+", answer) for answer in answers)
    assert 1 <= len(answers) <= wanted.count(b"\x1b[6n")
    if name == "queries":
        # Those that had no room are counted.
        assert len(answers) + dropped == wanted.count(b"\x1b[6n")


def drawn(session: Session) -> HoldfastError | None:
    """What follows is shown, or it is said that it cannot be."""
    try:
        assert session.screen().text == "after all!"
    except Unsupported as problem:
        return problem
    return None


# A host on a small disk of its own. The command prints a block for each line that it gets; whoever is at the head of
# the output takes it before the next is asked for.
FULL = f"""
import json, os, subprocess, sys
sys.path.insert(0, {str(TESTS)!r})
from pathlib import Path
home = Path(os.environ["HOLDFAST_HOME"])
home.mkdir(mode=0o700)
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "tmpfs", str(home)], check=True)
import holdfast
from support import probe
from support.promised import Beside, ending_is_true, log_is_whole, nobody_is_forgotten
from support.viewer import Viewer

class World:
    def session(self, id): return home / "sessions" / id
    def probe(self, *words): return probe.argv(*words)
    def open(self): return holdfast.open()

world = World()
ballast = home / "ballast"
ballast.write_bytes(bytes(1 << 20))
beside = Beside(world)
hf = holdfast.open()
BLOCK = 65536
words = world.probe("quiet", "repeat", 64, "{{", "read-line", "fill", BLOCK, "}}", "exit", 7)
session = hf.start(words, tty={{"echo": False}}, log_cap="64MiB")
live, late = (Viewer(session.attach(role="observe", lag="exact", since="start"), draws=False) for _ in range(2))

def step(number):
    session.send(f"{{number:02}}\\n")
    line = len("got 00\\r\\n") + BLOCK
    live.until(lambda: len(live.live) == (number + 1) * line, f"block {{number}}")

for number in range(60):
    step(number)
now = session.refresh()
print(json.dumps({{"state": now.state, "gaps": now.metadata["gaps"], "warnings": now.metadata["warnings"],
    "live": len(live.live), "end": now.ends["tty"]}}), flush=True)
ballast.unlink()
until = 64
for number in range(60, until):
    step(number)
    session.wait(idle=0.3, timeout=1)
exits = [viewer.to_the_end().code for viewer in (live, late)]
session.wait(exit=True, timeout=30)
session.refresh()
log_is_whole(world, session)
ending_is_true(world, session)
nobody_is_forgotten(world, session)
beside.unharmed()
wanted = b"".join(b"got %02d\\r\\n" % number + b"x" * BLOCK for number in range(until))
after = Viewer(session.attach(role="observe", lag="exact", since="start"), draws=False)
after.to_the_end()
record = json.loads((world.session(session.id) / "exit.json").read_text())
stored = {{int(path.suffix[1:]): path.read_bytes() for path in sorted(world.session(session.id).glob("tty.0*"))}}
print(json.dumps({{
    "exits": exits, "code": session.exit.code, "whole": live.live == wanted, "live gaps": len(live.gaps),
    "gaps": record["gaps"], "late": [(gap.begin, gap.end, gap.reason) for gap in late.gaps],
    "after": [(gap.begin, gap.end, gap.reason) for gap in after.gaps],
    "stored": all(wanted[first:first + len(data)] == data for first, data in stored.items()),
    "end": record["ends"]["tty"], "printed": len(wanted),
}}), flush=True)
for viewer in (live, late, after):
    viewer.attachment.close()
beside.end()
"""


@pytest.mark.covers("LOG-01")
@pytest.mark.namespaces
def test_log_01_a_disk_that_fills_up_keeps_nothing_from_a_client_that_is_attached(
    world: World, bystander: Bystanders
) -> None:
    """Who is at the head gets every byte; who comes later is told which are missing, and why."""
    host = world.host(FULL, prefix=namespace_argv("--mount"), env={"HOLDFAST_LOG_FREE_FLOOR": "0"})
    full = json.loads(host.line(30) or host.errors())
    assert full["state"] == "running"
    assert full["live"] == full["end"]
    assert full["gaps"]
    assert {(gap["stream"], gap["reason"]) for gap in full["gaps"]} == {("tty", "disk")}
    assert [text for text in full["warnings"] if "refuses the log of tty" in text]
    end = json.loads(host.line(30) or host.errors())
    assert end["exits"] == [7, 7]
    assert end["code"] == 7
    assert end["whole"]
    assert end["live gaps"] == 0
    assert end["stored"]
    assert end["end"] == end["printed"]
    missing = [[gap["from"], gap["to"], gap["reason"]] for gap in end["gaps"]]
    assert missing
    assert end["after"] == missing
    assert end["late"] == missing
    assert host.wait(30) == 0, host.errors()
    left_alone(bystander)


HOSTS = scaled(6, 12)
STEPS = scaled(6, 10)

# One host of a crowd that starts, attaches, types, removes and collects. Whatever it is told must be a typed error of
# the few that can honestly happen; whatever it is shown must be whole.
CROWD = """
import json, random, sys, holdfast
from holdfast.model.events import Data, Exit, Gap, Init

seed, steps = int(sys.argv[1]), int(sys.argv[2])
chance = random.Random(seed)
hf = holdfast.open()
told, kept = {}, []
EXPECTED = {"not-found", "removed", "still-running", "session-ended"}
PRINTED = b"".join(b"%d\\r\\n" % n for n in range(1, 401)) + b"end\\r\\n"

def start():
    if chance.random() < 0.3 and len(kept) < 2:
        kept.append(hf.start("stty -echo; seq 1 400; echo end; exec cat", tty=True, owner=f"host-{seed}").id)
    else:
        hf.run("seq 1 400; echo end", tty=True)

def some():
    listed = [session for session in hf.sessions(all=True) if session.tty]
    return chance.choice(listed) if listed else None

def attach():
    session = some()
    if session is None:
        return
    begin = chance.choice(["screen", "start", "now"])
    with session.attach(role="observe", since=begin, lag="exact") as attachment:
        first = at = None
        live = b""
        while not attachment.over:
            events = attachment.wait(20 if first is None else 0.05)
            if not events:
                break
            for event in events:
                assert not isinstance(event, Gap), event
                if isinstance(event, Init):
                    first = at = event.at
                elif isinstance(event, Data) and event.offset >= first:
                    assert event.offset == at
                    live += event.data
                    at += len(event.data)
        assert (PRINTED + b"still here\\r\\n")[first:].startswith(live), (session.id, first, live[:40])

def screen():
    session = some()
    if session is not None:
        text = session.screen().text
        assert not text or text.split()[-1] in ("end", "here") or text.split()[-1].isdecimal(), text[-40:]

def remove():
    session = some()
    if session is not None:
        session.remove()

def collect():
    hf.collect()

for _ in range(steps):
    step = chance.choice([start, start, attach, attach, attach, screen, remove, collect])
    try:
        step()
        code = step.__name__
    except holdfast.HoldfastError as problem:
        assert problem.code in EXPECTED, (step.__name__, problem.code, str(problem))
        code = problem.code
    told[code] = told.get(code, 0) + 1
# What this host keeps has not been touched by anybody.
for id in kept:
    session = hf.get(id)
    assert session.state == "running", (id, session.state)
    with session.attach() as attachment:
        attachment.send(b"still here\\n")
        seen = b""
        while b"still here\\r\\n" not in seen:
            events = attachment.wait(30)
            assert events
            seen += b"".join(event.data for event in events if isinstance(event, Data))
print(json.dumps({"told": told, "kept": kept}), flush=True)
"""


@pytest.mark.covers("LOG-08")
@pytest.mark.slow
def test_log_08_collection_beside_attached_clients_harms_no_live_terminal(
    world: World, bystander: Bystanders, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So tight that every collection finds something to remove.
    monkeypatch.setenv("HOLDFAST_LOG_HOME_CAP", "16K")
    monkeypatch.setenv("HOLDFAST_LOG_FREE_FLOOR", "0")
    monkeypatch.setenv("HOLDFAST_COLLECT_INTERVAL", "0s")
    crowd = [world.host(CROWD, seed, STEPS) for seed in range(HOSTS)]
    told: dict[str, int] = {}
    kept: list[str] = []
    for host in crowd:
        found = json.loads(host.line(120) or host.errors())
        assert host.wait(30) == 0, host.errors()
        kept += found["kept"]
        for step, count in found["told"].items():
            told[step] = told.get(step, 0) + count
    assert sum(told.values()) == HOSTS * STEPS
    assert told["attach"] > HOSTS // 2
    assert kept
    hf = world.open()
    assert {session.id for session in hf.sessions()} == {beside.session.id, *kept}
    assert {session.id for session in hf.sessions(all=True)} == {
        path.name for path in (world.home / "sessions").iterdir()
    }
    for id in kept:
        promised(world, hf.get(id), bystander=bystander, beside=beside)
        assert "still here" in hf.get(id).screen().text
    assert all(stopped.done for stopped in hf.stop_all(kept, grace=0))
    home_is_usable(hf)
