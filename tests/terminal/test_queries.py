"""The queries of programs to their terminal, end to end: each answered once, in order, with and without clients."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.model.events import Init
from support.own_time import OwnTime
from support.scale import scaled

if TYPE_CHECKING:
    from holdfast import Holdfast, Session
    from holdfast.sessions.attach import Attachment
    from support.world import World

PYTHON = [sys.executable, "-I", "-S", "-c"]

# Prints something, reads until everything it waits for has arrived, and prints that.
ASKING = """
import os, sys, tty
tty.setraw(0)
asked, wanted = map(bytes.fromhex, sys.argv[1:3])
for at in range(0, len(asked), int(sys.argv[3])):
    os.write(1, asked[at : at + int(sys.argv[3])])
heard = b""
while not heard.endswith(wanted):
    heard += os.read(0, 65536)
os.write(1, b"\\r\\nheard " + heard.hex().encode() + b"\\r\\n")
"""


@pytest.fixture
def home(world: World) -> Holdfast:
    return world.open()


def log_bytes(session: Session) -> bytes:
    return b"".join(session.raw("tty"))


def asking(home: Holdfast, asked: bytes, until_heard: bytes, piece: int = 1 << 20, **options: Any) -> Session:
    return home.start([*PYTHON, ASKING, asked.hex(), until_heard.hex(), str(piece)], tty=True, **options)


def heard(session: Session, timeout: float = 20) -> bytes:
    """What such a program was answered."""
    assert session.wait(timeout=timeout).reason == "exit", log_bytes(session)[-300:]
    found = re.search(rb"heard ([0-9a-f]*)\r\n", log_bytes(session))
    assert found is not None
    return bytes.fromhex(found[1].decode())


def first(attachment: Attachment, kind: type) -> Any:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for event in attachment.wait(deadline - time.monotonic()):
            if isinstance(event, kind):
                return event
    raise AssertionError(f"no {kind.__name__} came")


@pytest.mark.covers("terminal:6")
def test_two_questions_in_one_write_are_answered_for_their_own_places(home: Holdfast) -> None:
    session = asking(home, b"A\x1b[6nBC\x1b[6n\x1b[999;999H\x1b[6n\x1b[5n", b"\x1b[0n", size=(33, 99))
    assert heard(session) == b"\x1b[1;2R\x1b[1;4R\x1b[33;99R\x1b[0n"


ANSWERS = [
    (b"\x1b[6n", b"\x1b[1;1R"),
    (b"\x1b[?6n", b"\x1b[?1;1R"),
    (b"\x1b[5n", b"\x1b[0n"),
    (b"\x1b[c", b"\x1b[?62;22c"),
    (b"\x1b[0c", b"\x1b[?62;22c"),
    (b"\x1bZ", b"\x1b[?62;22c"),
    (b"\x1b[>c", b"\x1b[>0;276;0c"),
    (b"\x1b[=c", b"\x1bP!|00000000\x1b\\"),
    (b"\x1b[>q", b"\x1bP>|Holdfast(0.2.0)\x1b\\"),
    (b"\x1b[?2004$p", b"\x1b[?2004;2$y"),
    (b"\x1b[?25$p", b"\x1b[?25;1$y"),
    (b"\x1b[?3$p", b"\x1b[?3;4$y"),
    (b"\x1b[?2027$p", b"\x1b[?2027;0$y"),
    (b"\x1b[4$p", b"\x1b[4;2$y"),
    (b"\x1b[?u", b"\x1b[?0u"),
    (b"\x1b[?4m", b"\x1b[>4;0m"),
    (b"\x1b]4;1;?;2;?\x07", None),
    (b"\x1b]11;?\x07", b"\x1b]11;rgb:0000/0000/0000\x07"),
    (b"\x1b]11;?\x1b\\", b"\x1b]11;rgb:0000/0000/0000\x1b\\"),
    (b"\x1b]10;?;?\x07", None),
    (b"\x1b]12;?\x07", None),
    (b"\x1b[?996n", b"\x1b[?997;1n"),
    (b"\x1b[14t", b"\x1b[4;480;960t"),
    (b"\x1b[15t", b"\x1b[5;480;960t"),
    (b"\x1b[16t", b"\x1b[6;16;8t"),
    (b"\x1b[18t", b"\x1b[8;30;120t"),
    (b"\x1b[19t", b"\x1b[9;30;120t"),
    (b"\x1b[11t", b"\x1b[1t"),
    (b"\x1b[13t", b"\x1b[3;0;0t"),
    (b"\x1b[20t", b"\x1b]L\x1b\\"),
    (b"\x1b[21t", b"\x1b]l\x1b\\"),
    (b"\x1bP+q544e\x1b\\", b"\x1bP1+r544e=787465726D2D323536636F6C6F72\x1b\\"),
    (b"\x1bP+q4d73\x1b\\", b"\x1bP0+r4d73\x1b\\"),
    (b"\x1bP$qm\x1b\\", b"\x1bP1$r0m\x1b\\"),
    (b"\x1bP$qr\x1b\\", b"\x1bP1$r1;30r\x1b\\"),
    (b"\x1bP$qz\x1b\\", b"\x1bP0$r\x1b\\"),
    (b"\x1b[0x", b"\x1b[2;1;1;128;128;1;0x"),
    (b"\x1b[1x", b"\x1b[3;1;1;128;128;1;0x"),
    (b"\x1b[?1;1;0S", b"\x1b[?1;3;0S"),
    (b"\x05", b""),
    (b"\x1b]52;c;?\x07", b""),
    (b"\x1b_Gi=1,a=q;AAAA\x1b\\", b""),
]
# How many answers a query has that asks for several things, and what each looks like.
SEVERAL = {
    b"\x1b]4;1;?;2;?\x07": rb"\x1b\]4;1;rgb:[0-9a-f/]{14}\x07\x1b\]4;2;rgb:[0-9a-f/]{14}\x07",
    b"\x1b]10;?;?\x07": rb"\x1b\]10;rgb:[0-9a-f/]{14}\x07\x1b\]11;rgb:[0-9a-f/]{14}\x07",
    b"\x1b]12;?\x07": rb"\x1b\]12;rgb:[0-9a-f/]{14}\x07",
}


@pytest.mark.covers("terminal:7")
@pytest.mark.parametrize("clients", [0, 1, 10])
@pytest.mark.parametrize("piece", [1, 1 << 20])
def test_each_query_is_answered_once_and_in_order_however_many_watch(
    home: Holdfast, world: World, clients: int, piece: int
) -> None:
    gate = world.gate()
    asked = b"".join(query for query, _ in ANSWERS) + b"\x1b[?31337$p"
    wanted = b"\x1b[?31337;0$y"
    program = " ".join(["exec", sys.executable, "-I", "-S", str(world.root / "asking.py")])
    (world.root / "asking.py").write_text(ASKING)
    script = f"head -c1 {gate} > /dev/null; {program} {asked.hex()} {wanted.hex()} {piece}"
    session = home.start(script, tty=True)
    attachments = [session.attach(role="observe" if number % 2 else "control") for number in range(clients)]
    for attachment in attachments[: clients // 2 + 1]:
        first(attachment, Init)
    gate.release()
    answers = heard(session)
    for attachment in attachments:
        attachment.close()
    pattern = b"".join(
        SEVERAL[query] if answer is None else re.escape(answer) for query, answer in [*ANSWERS, (b"", wanted)]
    )
    assert re.fullmatch(pattern, answers), answers


# As they were recorded, up to the question that each of them waits for.
FISH = (
    b"\x1b[?u\x1b[>0q\x1b]11;?\x1b\\\x1b[?1049h\x1bP+q696e646e\x1b\\\x1bP+q71756572792d6f732d6e616d65\x1b\\"
    b"\x1b[?1049l\x1b[0c"
)
NEOVIM = (
    b"\x1b[?1049h\x1b[22;0;0t\x1b[?1h\x1b=\x1b[H\x1b[2J\x1b[?2004h\x1b[?2026$p\x1b[0m\x1b[4:3m\x1bP$qm\x1b\\"
    b"\x1b[?u\x1b[c"
)
OPENCODE = (
    b"\x1b[?2031h\x1b]10;?\x07\x1b]11;?\x07\x1b[>0q\x1b[?25l\x1b[s\x1b[6n\x1bP+q4d73\x1b\\\x1b[?1016$p\x1b[?2027$p"
    b"\x1b[?2031$p\x1b[?1004$p\x1b[?2004$p\x1b[?2026$p\x1b[?u\x1b]99;i=opentui-notifications:p=?;\x1b\\"
    b"\x1b]1337;Capabilities\x1b\\\x1b[H\x1b]66;w=1; \x1b\\\x1b[6n\x1b[H\x1b]66;s=2; \x1b\\\x1b[6n\x1b[u\x1b[s"
    b"\x1b[?1049h\x1b[>4;1m\x1b[?2027h\x1b[?2004h\x1b[?1000h\x1b[?1002h\x1b[?1003h\x1b[?1006h\x1b[14t\x1b]4;0;?\x07"
    b"\x1b_Gi=31337,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[c"
)
# It draws no character of what is typed before it knows where its prompt ends.
FSI = b"\x1b[?1h\x1b=\x1b[?1h\x1b=\r\n> \x1b[6n"
VERSION, BLACK, ATTRIBUTES = b"\x1bP>|Holdfast(0.2.0)\x1b\\", b"rgb:0000/0000/0000", b"\x1b[?62;22c"
BURSTS = {
    "fish 4.9": [
        FISH,
        *(b"\x1b[?0u", VERSION, b"\x1b]11;" + BLACK + b"\x1b\\", b"\x1bP0+r696e646e\x1b\\"),
        *(b"\x1bP0+r71756572792d6f732d6e616d65\x1b\\", ATTRIBUTES),
    ],
    "neovim 0.10": [NEOVIM, b"\x1b[?2026;2$y", b"\x1bP1$r0;4:3m\x1b\\", b"\x1b[?0u", ATTRIBUTES],
    "opencode 1.18": [
        OPENCODE,
        *(b"\x1b]10;rgb:e5e5/e5e5/e5e5\x07", b"\x1b]11;" + BLACK + b"\x07", VERSION, b"\x1b[1;1R"),
        *(b"\x1bP0+r4d73\x1b\\", b"\x1b[?1016;2$y", b"\x1b[?2027;0$y", b"\x1b[?2031;1$y", b"\x1b[?1004;2$y"),
        *(b"\x1b[?2004;2$y", b"\x1b[?2026;2$y", b"\x1b[?0u", b"\x1b[1;1R", b"\x1b[1;1R", b"\x1b[4;480;960t"),
        *(b"\x1b]4;0;" + BLACK + b"\x07", ATTRIBUTES),
    ],
    "dotnet fsi 3.1": [FSI, b"\x1b[2;3R"],
}


@pytest.mark.covers("terminal:5")
@pytest.mark.parametrize("name", BURSTS)
def test_the_burst_of_questions_a_program_starts_with_is_answered_whole(home: Holdfast, name: str) -> None:
    asked, *wanted = BURSTS[name]
    assert heard(asking(home, asked, wanted[-1])) == b"".join(wanted)


@pytest.mark.covers("terminal:5")
@pytest.mark.needs("fish")
def test_fish_comes_to_its_prompt_and_misses_no_answer(home: Holdfast) -> None:
    prompt = "function fish_prompt; echo -n 'at your service> '; end"
    session = home.start(["fish", "--no-config", "--init-command", prompt], tty=True)
    assert session.wait(match="at your service> ", timeout=30).reason == "match"
    session.submit("echo (math 6 x 7) is it")
    assert session.wait(match="42 is it", timeout=30).reason == "match"
    session.submit("exit")
    assert session.wait(timeout=30).reason == "exit"
    said = session.text()
    assert "could not read response" not in said
    assert "Primary Device Attribute" not in said


@pytest.mark.covers("terminal:5")
@pytest.mark.needs("nvim")
def test_neovim_starts_edits_and_leaves(home: Holdfast, world: World) -> None:
    file = world.root / "file.txt"
    session = home.start(["nvim", "--clean", str(file)], tty=True)
    session.wait(match="file.txt", timeout=30)
    session.keys("i", "text:written here", "Escape", "text::wq", "Enter", delay_ms=50)
    assert session.wait(timeout=30).reason == "exit"
    assert file.read_text() == "written here\n"


@pytest.mark.covers("terminal:12", "found:33")
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("settings, count", [("raw -echo", 1_000_000), ("sane", scaled(300_000, 1_000_000))])
def test_a_million_unread_query_replies_delay_nothing(home: Holdfast, world: World, settings: str, count: int) -> None:
    questions = world.root / "questions"
    questions.write_bytes(b"\x1b[6n" * count)
    gate = world.gate()
    script = f"stty {settings}; head -c1 {gate} > /dev/null; cat {questions}; printf 'all asked'; exec sleep 600"
    session = home.start(script, tty=True)
    runner = session.runner_pid
    assert runner is not None
    before = _resident(runner)
    gate.release()
    slowest, rounds, most = 0.0, 0, before
    deadline = time.monotonic() + 100
    asked = 0
    while asked < 4 * count:
        assert time.monotonic() < deadline
        passed = OwnTime(runner)
        asked = session.refresh().ends["tty"]
        slowest = max(slowest, passed.seconds(runner))
        most = max(most, _resident(runner))
        rounds += 1
    session.wait(match="all asked", timeout=60)
    assert rounds >= 2
    assert slowest < 0.5, "other requests wait"
    assert most < before + (16 << 20)
    dropped = session.refresh().metadata["replies_dropped"]
    assert 0 < dropped <= count
    if settings == "raw -echo":
        # What the kernel and our queue hold is all that was kept.
        assert dropped > count - 50_000
    session.kill()


def _resident(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
