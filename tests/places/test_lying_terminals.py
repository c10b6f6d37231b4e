"""A place whose runner lies about its terminal: a window here shows text, and nothing that the place wants it to do."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from cli.outer import COLS, ROWS, Outer
from support.poison import PAYLOAD, SOURCE, harm
from support.webviewer import JSON, WebViewer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.places import Away
    from support.serving import Serving
    from support.world import World

LIE = """
{source}

_true = Tracker._describe

def _lie(self, offset):
    state = _true(self, offset)
    {name}(state, {payload!r})
    return state

Tracker._describe = _lie
"""


@contextmanager
def lying(away: Away, name: str) -> Iterator[None]:
    """The code that the place has of ours is changed there."""
    (code,) = (away.state / "runner").iterdir()
    path = code / "holdfast" / "core" / "vt" / "tracker.py"
    true = path.read_text()
    path.write_text(true + LIE.format(source=SOURCE, name=name, payload=PAYLOAD))
    try:
        yield
    finally:
        path.write_text(true)


@pytest.mark.covers("found:37")
@pytest.mark.parametrize("name", ["texts", "colors"])
def test_a_lying_far_end_writes_nothing_but_text_to_a_window_and_a_page(
    over_ssh: Away, world: World, serving: Serving, name: str
) -> None:
    hf = world.open()
    hf.run("true", place=over_ssh.place, wait=20)
    with lying(over_ssh, name):
        # A title that was kept is restored live: what was kept is a lie.
        command = over_ssh.probe(
            "say", "shown", "read-line", "hex", b"\x1b[?1h\x1b[23;0t\x1b[?1049h".hex(), "say", "live", "read-line"
        )
        session = hf.start(command, tty={"echo": False}, size=(ROWS, COLS), place=over_ssh.place)
        world.closing.callback(session.kill)
        session.wait(match="shown", timeout=30)
        windows = [
            Outer(world.hold_argv("attach", session.id, "--observe"), rows=rows, cols=cols)
            for rows, cols in ((ROWS, COLS), (10, 30))
        ]
        for window in windows:
            world.closing.callback(window.close)
        viewer = WebViewer(serving.address, serving.token, session.id, JSON)
        world.closing.callback(viewer.leave)
        init = viewer.begun()
        assert harm(init["screen"] or b"") == []
        assert printable(init["title"])
        if name == "texts":
            for window in windows:
                window.shows("shown")
        viewer.until(lambda: len([init, *viewer.of("clients")][-1]["clients"]) == 3, "all of them attached")
        session.send("\n")
        session.wait(match="live", timeout=30)
        for window in windows:
            window.shows("live")
        viewer.until(lambda: "live" in viewer.text, "what is printed live")
        session.send("\n")
        for window in windows:
            assert window.end() == 0
            assert harm(window.printed) == []
            assert window.is_as_before()
        viewer.until(lambda: viewer.of("session_ended"), "the end")
        assert all(printable(each.get("title")) for each in viewer.told)
    session.wait(timeout=30)
    # After the end, from the files that came from there.
    after = Outer(world.hold_argv("attach", session.id, "--observe"))
    world.closing.callback(after.close)
    assert after.end() == 0
    assert harm(after.printed) == []
    assert printable(session.screen().title)


def printable(text: str | None) -> bool:
    return text is None or all(each.isprintable() for each in text)
