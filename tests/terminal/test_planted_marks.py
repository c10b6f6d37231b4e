"""Forged marks and screens beside a log: nothing in them becomes a sequence, wherever it is shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cli.outer import COLS, ROWS, Outer
from support.poison import PAYLOAD, POISONS, harm
from support.webviewer import JSON, WebViewer

if TYPE_CHECKING:
    from holdfast import Session
    from support.serving import Serving
    from support.world import World


def ended(world: World) -> Session:
    session = world.open().run(
        world.probe("hex", b"\x1b]2;title\x07".hex(), "say", "shown"), tty=True, size=(ROWS, COLS), wait=10
    )
    assert session.refresh().state == "exited"
    return session


@pytest.mark.covers("found:37")
def test_a_planted_mark_writes_nothing_but_text_to_a_window_and_a_page(world: World, serving: Serving) -> None:
    assert harm(PAYLOAD.encode()), "the check finds nothing"
    session = ended(world)
    path = Path(world.home) / "sessions" / session.id / "marks.jsonl"
    recorded = path.read_text()
    for number, (name, poison) in enumerate(POISONS.items()):
        marks = [json.loads(line) for line in recorded.splitlines()]
        for mark in marks:
            poison(mark["state"], PAYLOAD)
        path.write_text("".join(json.dumps(mark) + "\n" for mark in marks))
        # Of the session's size, and of another.
        rows, cols = (10, 30) if number % 2 else (ROWS, COLS)
        window = Outer(world.hold_argv("attach", session.id, "--observe"), rows=rows, cols=cols)
        world.closing.callback(window.close)
        assert window.end() == 0
        assert "shown" in window.everything
        assert harm(window.printed) == [], name
        assert window.is_as_before()
        viewer = WebViewer(serving.address, serving.token, session.id, JSON)
        world.closing.callback(viewer.leave)
        init = viewer.begun()
        assert harm(init["screen"] or b"") == [], name
        assert printable(init["title"])
        screen = session.screen()
        assert "shown" in screen.text
        assert printable(screen.title)
        assert harm(screen.to_ansi().encode()) == [], name


def printable(text: str | None) -> bool:
    return text is None or all(each.isprintable() for each in text)
