"""A sequence of many megabytes draws nothing: the lines around it are shown, and nothing of it is."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support.viewer import Viewer

if TYPE_CHECKING:
    from holdfast import Session
    from support.world import World

PROGRAM = """
import sys
out = sys.stdout.buffer
out.write(b"first line\\r\\n\\x1b]0;")
for _ in range(int(sys.argv[1]) * 16):
    out.write((b"hidden in a title\\r\\n" * 4000)[:65536])
out.write(b"\\x07second line\\r\\n")
out.flush()
sys.stdin.readline()
"""
LINES = "first line\nsecond line"


def started(world: World, mib: int) -> Session:
    # With the cap of 64 MiB the first line would be dropped from the log before the second is printed.
    cap = "256MiB" if mib > 60 else "64MiB"
    command = [sys.executable, "-c", PROGRAM, str(mib)]
    session = world.open().start(command, tty={"echo": False}, size=(10, 60), log_cap=cap)
    world.closing.callback(session.kill)
    session.wait(match="second line", timeout=120)
    return session


def shows_both_lines(session: Session) -> None:
    shown = session.screen()
    assert shown.text == LINES
    assert shown.exact
    assert session.tail(2) == LINES + "\n"
    assert session.tail(10) == LINES + "\n"
    with session.attach(role="observe") as attachment:
        viewer = Viewer(attachment)
        viewer.until(lambda: viewer.text == LINES, "both lines at an attached client")


@pytest.mark.covers("found:29")
@pytest.mark.parametrize("mib", [9, pytest.param(100, marks=pytest.mark.long)])
def test_a_line_before_a_sequence_of_many_megabytes_and_one_behind_it_are_all_that_is_shown(
    world: World, mib: int
) -> None:
    session = started(world, mib)
    assert session.refresh().ends["tty"] > mib << 20
    shows_both_lines(session)
    session.send("\n")
    session.wait(timeout=30)
    assert session.refresh().state == "exited"
    shows_both_lines(session)


def test_text_read_from_the_middle_of_a_long_sequence_begins_after_it(world: World) -> None:
    session = started(world, 1)
    page = session.read(300_000)
    while page.more:
        page = session.read(page.cursor)
    assert page.text == "second line\n"
