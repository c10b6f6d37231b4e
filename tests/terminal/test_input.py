"""Input, end to end: what people type, paste and submit, as the program reads it."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast import errors
from holdfast.model.events import Data, Written
from support.waiting import until, wait_for_file

if TYPE_CHECKING:
    from holdfast import Holdfast, Session
    from support.world import World

PYTHON = [sys.executable, "-I", "-S", "-c"]
RAW = "stty raw -echo"
ECHOING = f"{RAW}; printf 'ready:'; exec cat -v"
BEGIN, END = b"\x1b[200~", b"\x1b[201~"


@pytest.fixture
def home(world: World) -> Holdfast:
    return world.open()


def log_bytes(session: Session) -> bytes:
    return b"".join(session.raw("tty"))


def echoing(home: Holdfast) -> Session:
    """A session that shows what it reads, byte for byte, on a raw terminal."""
    session = home.start(ECHOING, tty=True)
    session.wait(match="ready:", timeout=30)
    return session


def shown(session: Session, last: str) -> str:
    """All that was typed, up to and with this."""
    assert session.wait(match=re.escape(last), timeout=30).reason == "match"
    return session.text().partition("ready:")[2].rstrip("\n")


# Reads a paste and queries the terminal after every piece of it; then prints all it read.
PASTED = """
import os, sys, tty
tty.setraw(0)
os.write(1, b"ready")
heard, asked = b"", 0
while b"<over>" not in heard:
    heard += os.read(0, 4096)
    if asked < 40:
        asked += 1
        os.write(1, b"\\x1b[?%d$p" % (50000 + asked))
with open(sys.argv[1] + ".part", "wb") as file:
    file.write(heard)
os.rename(file.name, sys.argv[1])
"""


def reading(home: Holdfast, source: str, file: Path) -> Session:
    """A program on a raw terminal that writes what it read into the file."""
    session = home.start([*PYTHON, source, str(file)], tty=True)
    session.wait(match="ready", timeout=30)
    return session


@pytest.mark.covers("terminal:8")
def test_answers_during_a_long_paste_come_after_it_whole_and_in_order(home: Holdfast, world: World) -> None:
    text = "".join(f"{number:07d}\t" for number in range(32 * 1024))
    assert len(text) == 256 << 10
    session = reading(home, PASTED, world.root / "heard")
    session.paste(text, bracketed="always")
    session.send("<over>")
    got = wait_for_file(world.root / "heard").read_bytes()
    before, paste, after = got.partition(BEGIN + text.encode() + END)
    assert paste, "the paste is torn or lost"
    # Asked while the paste was under way: before the next input, which had not begun.
    replies, over, _ = (before + after).partition(b"<over>")
    assert over
    assert replies == b"".join(b"\x1b[?%d;0$y" % (50000 + number) for number in range(1, 41))


COLLECTING = """
import os, sys, tty
tty.setraw(0)
os.write(1, b"ready")
heard = b""
while not heard.endswith(b"<over>"):
    heard += os.read(0, 65536)
with open(sys.argv[1] + ".part", "wb") as file:
    file.write(heard)
os.rename(file.name, sys.argv[1])
"""


@pytest.mark.covers("terminal:40")
def test_two_clients_pasting_at_once_do_not_mix(home: Holdfast, world: World) -> None:
    session = reading(home, COLLECTING, world.root / "heard")
    one, two = session.attach(since="now"), session.attach(since="now")
    texts = {one: "1" * 30_000, two: "2" * 30_000}
    for _ in range(4):
        for client, text in texts.items():
            client.send_parts([{"paste": text, "bracketed": "always", "raw": False}])
    until(lambda: not one.wants_write and not two.wants_write)
    session.paste("3" * 30_000, bracketed="always")
    until(lambda: session.refresh().attached["control"] == 2)
    # What is still on its way would come behind the end.
    for client in texts:
        written = 0
        while written < 4:
            events = client.wait(30)
            assert events
            written += sum(isinstance(event, Written) for event in events)
    pieces: list[bytes] = []
    session.send("<over>")
    got = wait_for_file(world.root / "heard").read_bytes().removesuffix(b"<over>")
    one.close()
    two.close()
    while got:
        assert got.startswith(BEGIN)
        piece, _, got = got.removeprefix(BEGIN).partition(END)
        pieces.append(piece)
    assert sorted(pieces) == sorted([*[text.encode() for text in texts.values()] * 4, b"3" * 30_000])


# Takes an Enter that comes within 100 ms of other input for part of a paste, as many programs do.
PASTE_TIMER = """
import os, select, tty
tty.setraw(0)
os.write(1, b"ready")
line = b""
while True:
    chunk = os.read(0, 4096)
    while select.select([0], [], [], 0.1)[0]:
        chunk += os.read(0, 4096)
    if chunk == b"\\r":
        os.write(1, b"\\r\\nsubmitted <%b>\\r\\n" % line)
        line = b""
    else:
        line += chunk.replace(b"\\r", b"|")
        os.write(1, b"\\r\\ntyped <%b>\\r\\n" % line)
"""


@pytest.mark.covers("terminal:40")
def test_submit_submits_where_an_enter_that_comes_with_its_text_does_not(home: Holdfast) -> None:
    session = home.start([*PYTHON, PASTE_TIMER], tty=True)
    session.wait(match="ready", timeout=30)
    session.send("hello\r")
    assert session.wait(match=r"typed <hello\|>", timeout=30).reason == "match"
    # By default the Enter comes later than such programs wait for it; here also where they are woken late.
    assert home._core.config.terminal_enter_delay > 0.1
    session.submit(" again", enter_delay_ms=2000)
    assert session.wait(match=r"submitted <hello\| again>", timeout=30).reason == "match"
    session.submit()
    assert session.wait(match="submitted <>", timeout=30).reason == "match"
    session.submit("too fast", enter_delay_ms=0)
    assert session.wait(match=r"typed <too fast\|>", timeout=30).reason == "match"
    session.kill()


# Long lines.


@pytest.mark.covers("terminal:17")
def test_a_line_of_a_megabyte_is_logged_attached_and_tailed(home: Holdfast, world: World) -> None:
    size = 1_000_000
    words = " ".join(world.probe("quiet", "fill", size, "say", "!", "say", "behind"))
    session = home.start(f"read go; exec {words}", tty={"echo": False})
    with session.attach(role="observe", since="start", lag="exact") as attachment:
        session.send("go\n")
        live = b"".join(event.data for event in attachment if isinstance(event, Data))
    assert live == log_bytes(session) == b"x" * size + b"!\r\nbehind\r\n"
    tail = session.tail(2)
    assert ("x" * size + "!\nbehind\n").endswith(tail)
    assert len(tail) > 200_000, "as much of a line as one read gives"


@pytest.mark.covers("terminal:17")
def test_a_line_of_a_megabyte_reaches_a_raw_reader_whole(home: Holdfast, world: World) -> None:
    session = reading(home, COLLECTING, world.root / "heard")
    line = os.urandom(500_000).replace(b"<", b">") * 2
    for half in (line[:500_000], line[500_000:]):
        typed = session.send(half)
        assert (typed.accepted, typed.warnings) == (500_000, [])
    session.send("<over>")
    got = wait_for_file(world.root / "heard").read_bytes()
    assert hashlib.sha256(got).digest() == hashlib.sha256(line + b"<over>").digest()


@pytest.mark.covers("terminal:17")
def test_a_line_too_long_for_a_canonical_terminal_is_warned_of(home: Holdfast) -> None:
    session = home.start("stty -echo; echo ready; exec cat", tty=True)
    session.wait(match="ready", timeout=30)
    assert session.send("x" * 4094 + "\n").warnings == []
    assert session.send(("y" * 2000 + "\n") * 5).warnings == []
    for typed in (session.send("z" * 5000 + "\n"), session.paste("z" * 5000), session.submit("z" * 5000)):
        assert typed.warnings == ["canonical_limit"]
    session.kill()


# The end of input.


@pytest.mark.covers("terminal:34")
@pytest.mark.parametrize("unfinished", [False, True])
@pytest.mark.parametrize("way", ["attach", "keys", "eof"])
def test_the_end_of_input_can_be_typed(home: Holdfast, world: World, way: str, unfinished: bool) -> None:
    session = home.start("echo ready; cat; echo over; exit 3", tty=True)
    session.wait(match="ready", timeout=30)
    session.send("whole\nunfin" if unfinished else "whole\n")
    until(lambda: log_bytes(session).count(b"whole") == 2, watch=world.session(session.id))
    # The first of two only ends the line that was begun.
    times = 2 if unfinished else 1
    if way == "attach":
        with session.attach() as attachment:
            for _ in range(times):
                attachment.send(b"\x04")
            assert session.wait(timeout=30).reason == "exit"
    elif way == "keys":
        session.keys(*["C-d"] * times)
    else:
        assert session.eof().warnings == []
    assert session.wait(timeout=30).reason == "exit"
    assert session.exit is not None
    assert session.exit.code == 3
    # Once as the echo, once from the command.
    said = log_bytes(session)
    assert (said.count(b"whole"), said.count(b"unfin")) == (2, 2 * unfinished)
    assert said.endswith(b"over\r\n")


def test_the_end_of_input_on_a_raw_terminal_is_only_a_byte_with_a_warning(home: Holdfast) -> None:
    session = echoing(home)
    assert session.eof().warnings == ["tty_raw"]
    assert shown(session, "^D") == "^D"
    session.send("still here")
    assert shown(session, "here") == "^Dstill here"
    session.kill()


# Keys.


@pytest.mark.covers("terminal:38")
@pytest.mark.parametrize("wrong, near", [("Entr", "Enter"), ("C-1", None), ("C-F99", None), ("S-Enter", None)])
def test_a_key_that_is_invalid_is_refused_and_nothing_is_typed(home: Holdfast, wrong: str, near: str | None) -> None:
    session = echoing(home)
    with pytest.raises(errors.BadKey) as refused:
        session.keys("a", "Up", "C-c", wrong, "b")
    assert refused.value.suggestions
    assert near is None or near in refused.value.suggestions
    session.send("Z")
    assert shown(session, "Z") == "Z"
    session.kill()


@pytest.mark.covers("terminal:38")
def test_keys_are_named_in_several_ways_and_text_and_bytes_go_among_them(home: Holdfast) -> None:
    session = echoing(home)
    session.keys("ctrl+c", "C-c", "^C")
    session.keys("hex:ff00c3", "text:key:x", "Up", "Z")
    assert shown(session, "Z") == "^C^C^CM-^?^@M-Ckey:x^[[AZ"
    session.kill()


# Pastes.

HOSTILE = "echo one\necho \x1b[201~t\x1bwo\x9b201~\0three\r\n"


@pytest.mark.covers("terminal:39")
def test_a_paste_into_a_shell_is_one_paste_and_submits_nothing(home: Holdfast, world: World) -> None:
    (world.root / "user" / ".inputrc").write_text("set enable-bracketed-paste on\n")
    session = home.start(["bash", "--norc", "--noprofile", "-i"], tty=True, env={"PS1": "prompt> "})
    session.wait(match="prompt> ", timeout=30)
    typed = session.paste(HOSTILE)
    assert [warning.partition(":")[0] for warning in typed.warnings] == ["paste_cleaned"]
    assert "4 control" in typed.warnings[0]
    session.wait(match="three", timeout=30)
    session.wait(idle=0.3, timeout=30)
    assert not re.search(rb"(?m)^(\x1b\[\?2004l\r?)?one\r", log_bytes(session)), "nothing was run"
    session.keys("Enter")
    until(lambda: log_bytes(session).count(b"prompt> ") == 2, watch=world.session(session.id))
    ran = session.text().rpartition("echo [201~two201~three")[2]
    assert [line.strip() for line in ran.splitlines() if line.strip()] == ["one", "[201~two201~three", "prompt>"]
    session.kill()


@pytest.mark.covers("terminal:39")
def test_a_paste_without_brackets_has_returns_for_newlines_and_a_warning(home: Holdfast) -> None:
    session = echoing(home)
    typed = session.paste("one\ntwo\r\nthree\x1b[201~Z")
    assert [warning.partition(":")[0] for warning in typed.warnings] == ["paste_cleaned", "paste_newlines"]
    assert shown(session, "Z") == "one^Mtwo^Mthree[201~Z"
    session.kill()


LATE_BRACKETS = """
import os, sys, tty
tty.setraw(0)
os.write(1, b"ready")
os.read(os.open(sys.argv[2], os.O_RDONLY), 1)
os.write(1, b"\\x1b[?2004h")
heard = b""
while not heard.endswith(b"<over>"):
    heard += os.read(0, 65536)
with open(sys.argv[1] + ".part", "wb") as file:
    file.write(heard)
os.rename(file.name, sys.argv[1])
"""


@pytest.mark.covers("terminal:39")
def test_the_mode_at_the_time_of_writing_decides_over_the_brackets(home: Holdfast, world: World) -> None:
    gate = world.gate()
    session = home.start([*PYTHON, LATE_BRACKETS, str(world.root / "heard"), str(gate)], tty=True)
    session.wait(match="ready", timeout=30)
    session.send("-" * 200_000)
    session.paste("pasted")
    session.send("<over>")
    gate.release()
    got = wait_for_file(world.root / "heard").read_bytes()
    assert got.lstrip(b"-") == BEGIN + b"pasted" + END + b"<over>"
