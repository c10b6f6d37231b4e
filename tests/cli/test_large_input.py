"""Input of any size arrives whole: pasted into a terminal, and given to a command when it is started."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from holdfast.runner.terminal.keyboard import _PASTE_BEGIN, _PASTE_END
from support.scale import scaled
from support.world import World

SIZE = scaled(9 << 20, 64 << 20)
PASTED = scaled(3 << 20, 64 << 20)

# Reads its terminal byte by byte, as an editor does, to the end of a paste, and says what came.
EDITOR = """
import hashlib, os, sys, tty
tty.setraw(0)
begin, end = bytes.fromhex(sys.argv[1]), bytes.fromhex(sys.argv[2])
os.write(1, b"\\x1b[?2004hwaiting\\r\\n")
found, count, last = hashlib.sha256(), 0, b""
while True:
    data = last + os.read(0, 65536)
    if data.startswith(begin):
        data = data[len(begin):]
    if data.endswith(end):
        found.update(data[:-len(end)])
        count += len(data) - len(end)
        break
    data, last = data[:-len(end)], data[-len(end):]
    found.update(data)
    count += len(data)
os.write(1, f"{count} {found.hexdigest()}\\r\\n".encode())
"""


@pytest.fixture
def text(world: World) -> Path:
    """Lines of text in which no two places look the same."""
    path = world.root / "text"
    with path.open("wb") as file:
        number = 0
        while file.tell() < SIZE:
            file.write(b"".join(b"%d \xc3\xa4\xe2\x82\xac and more\n" % n for n in range(number, number + 10_000)))
            number += 10_000
        file.truncate(SIZE)
    return path


@pytest.mark.covers("habits:11", "found:27")
@pytest.mark.timeout(scaled(60, 300))
def test_a_large_paste_arrives_whole(world: World, text: Path) -> None:
    session = world.open().start(
        ["python3", "-c", EDITOR, _PASTE_BEGIN.hex(), _PASTE_END.hex()], tty=True, name="editor", size=(24, 200)
    )
    world.closing.callback(session.stop, 0)
    session.wait(match="waiting", timeout=30)
    # Whole characters: what is cut in the middle is no text.
    pasted = text.read_bytes()[:PASTED].decode(errors="ignore")
    assert len(pasted.encode()) > PASTED - 4
    done = world.hold("paste", "editor", "--match", "[0-9a-f]{64}", "--timeout", "200s", input=pasted, timeout=250)
    assert done.returncode == 0, done.stderr
    typed = pasted.replace("\n", "\r").encode()
    assert f"{len(typed)} {hashlib.sha256(typed).hexdigest()}" in session.text()


@pytest.mark.covers("habits:11", "found:27")
@pytest.mark.timeout(scaled(60, 300))
@pytest.mark.parametrize("how", ["run", "run from a file", "start"])
def test_a_large_input_given_at_the_start_arrives_whole(world: World, text: Path, how: str) -> None:
    wanted = hashlib.sha256(text.read_bytes()).hexdigest()
    source = str(text) if how == "run from a file" else "-"
    argv = world.hold_argv(how.split(maxsplit=1)[0], "--name", "sum", "--input", source, "--", "sha256sum")
    with text.open("rb") as file:
        done = subprocess.run(argv, stdin=file, capture_output=True, text=True, timeout=250, check=True)
    session = world.open().get("sum")
    if how == "start":
        assert done.stdout == f"{session.id}\n"
        session.wait(exit=True, timeout=60)
    else:
        assert done.stdout.split()[0] == wanted
    assert session.text().split()[0] == wanted
    assert session.refresh().exit is not None
    assert done.stderr == ""


def test_a_command_that_does_not_read_its_large_input_ends_the_pouring(world: World, text: Path) -> None:
    argv = world.hold_argv("start", "--input", str(text), "--", "head", "-c", "10")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    session = world.open().get("last")
    session.wait(exit=True, timeout=30)
    assert len(session.read().data) == 10
    assert os.path.getsize(text) == SIZE


def test_a_large_input_of_a_command_that_restarts_is_refused_with_a_fix(world: World, text: Path) -> None:
    argv = world.hold_argv("start", "--restart", "on-failure", "--input", "-", "--", "cat")
    with text.open("rb") as file:
        refused = subprocess.run(argv, stdin=file, capture_output=True, text=True, check=False)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "fix: have the command read a file itself, or leave out --restart\n" in refused.stderr
