"""The screens of `hold top` without a terminal: lines by example, keys by what they do, pictures by an emulator."""

from __future__ import annotations

from typing import Any

import pyghostty  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.fullscreen import paint, plain
from holdfast.cli.keypresses import Keypresses
from holdfast.cli.scroll import LINES_MAX, Scroll, wrapped
from holdfast.cli.tables import Style, width
from holdfast.cli.toplist import Row
from holdfast.cli.topscreen import View
from holdfast.cli.usage import Usage
from holdfast.host.verbs import fits
from holdfast.model.session import snapshot

PLAIN, COLOURED = Style(False, None), Style(True, None)
NOW = 1785575707.0  # 2026-08-01T09:15:07Z


def row(
    id: str,
    *,
    last: str = "",
    usage: Usage | None = None,
    signals: int = 0,
    live: dict[str, Any] | None = None,
    **spec: Any,
) -> Row:
    asked = {"id": id, "command": "make", "started_at": None, "created_at": "2026-08-01T09:14:07.000Z", **spec}
    shot = snapshot(asked, None, None, live, observed_state="running", observed_at="2026-08-01T09:14:07.000Z")
    return Row(shot, last=last, usage=usage, signals=signals)


def fitting(text: str) -> Any:
    return fits(owner=None, labels=None, status=None, state=None, name=None, search=text)


def view(*rows: Row) -> View:
    made = View(fitting)
    made.lines((24, 80), PLAIN)
    made.show(list(rows))
    return made


def test_sessions_are_listed_under_their_heads() -> None:
    shown = view(
        row("b7k2m9qa1", name="web", last="Local: http://localhost:3000", usage=Usage(12.4, 3 << 20, 2), signals=3),
        row("p0x4m9qa1", kind="terminal", tty={}, last="Password:", live={"needs_input": {"kind": "secret"}}),
    )
    assert shown.lines((6, 120), PLAIN, NOW) == [
        "hold top: 2 running, 1 needs input",
        "  ID         NAME  KIND        STATUS       AGE  CPU   MEMORY  SIGNALS  LAST OUTPUT",
        "> b7k2m9qa1  web   local_bash  running      60s  12%  3.0 MiB        3  Local: http://localhost:3000"
        + " " * 20,
        "  p0x4m9qa1  make  terminal    needs input  60s                         Password:",
        "",
        "enter attach  l logs  s stop  r restart  / filter  q quit",
    ]


@pytest.mark.parametrize(
    "cols, heads",
    [
        (100, "ID NAME KIND STATUS AGE CPU MEMORY LAST OUTPUT"),
        (60, "ID NAME STATUS AGE CPU LAST OUTPUT"),
        (45, "ID NAME STATUS LAST OUTPUT"),
        (30, "ID LAST OUTPUT"),
    ],
)
def test_where_there_is_little_room_the_least_needed_goes(cols: int, heads: str) -> None:
    shown = view(row("b7k2m9qa1", name="web", last="ready", usage=Usage(1.0, 1 << 20, 1)))
    assert " ".join(shown.lines((6, cols), PLAIN, NOW)[1].split()) == heads


@given(st.integers(1, 40), st.integers(1, 130), st.lists(st.text(max_size=200), max_size=30), st.text(max_size=30))
def test_every_picture_fits_its_terminal(height: int, cols: int, texts: list[str], filter: str) -> None:
    shown = view(*(row(f"b{n:08}", name=text or None, last=text, signals=n) for n, text in enumerate(texts)))
    for key in ["G", "/", *filter, "enter", "s"]:
        shown.press(key)
        lines = shown.lines((height, cols), COLOURED)
        assert len(lines) == height
        for line in map(plain, lines):
            assert width(line) <= max(cols, 1)
            assert "\x1b" not in line
            assert "\n" not in line


def test_the_selected_one_is_always_seen() -> None:
    shown = view(*(row(f"b{n:08}") for n in range(50)))
    for key in ["j"] * 60 + ["k"] * 30 + ["page-down", "page-up", "home", "end", "g", "G", "up", "down"]:
        shown.press(key)
        marked = [line for line in shown.lines((10, 80), PLAIN) if line.startswith("> ")]
        assert [line.split()[1] for line in marked] == [shown.selected]
    assert shown.selected == "b00000049"


def test_the_selection_stays_with_its_session_and_then_with_its_place() -> None:
    shown = view(row("baaaaaaa1"), row("baaaaaaa2"), row("baaaaaaa3"))
    shown.press("down")
    shown.show([row("baaaaaaa0"), row("baaaaaaa1"), row("baaaaaaa2"), row("baaaaaaa3")])
    assert shown.selected == "baaaaaaa2"
    gone = shown.show([row("baaaaaaa0"), row("baaaaaaa1"), row("baaaaaaa3")])
    assert [each.id for each in gone] == ["baaaaaaa2"]
    assert shown.selected == "baaaaaaa3"
    shown.show([])
    assert shown.selected is None
    assert shown.press("enter") is None


def test_enter_attaches_to_a_terminal_and_shows_the_logs_of_others() -> None:
    shown = view(row("b00000001"), row("p00000001", kind="terminal", tty={}))
    assert shown.press("enter") == ("logs", "b00000001")
    shown.press("j")
    assert shown.press("enter") == ("attach", "p00000001")
    assert shown.press("l") == ("logs", "p00000001")
    assert shown.press("q") == ("quit", "")


@pytest.mark.parametrize("key, what", [("s", "stop"), ("r", "restart")])
def test_what_ends_a_command_is_asked_first(key: str, what: str) -> None:
    shown = view(row("b00000001", name="web"), row("b00000002"))
    assert shown.press(key) is None
    assert shown.lines((6, 80), PLAIN)[-1] == f"{what} b00000001 (web)? y/n"
    assert shown.press("j") is None
    assert shown.selected == "b00000001"
    shown.press(key)
    # The answer is for the one that was asked about, whatever is listed by now.
    shown.show([row("b00000002")])
    assert shown.press("y") == (what, "b00000001")
    assert shown.press("y") is None


def test_a_filter_hides_what_does_not_fit_while_it_is_typed() -> None:
    shown = view(row("b00000001", name="web"), row("b00000002", command="sleep quietly"))
    for key in "/quiqx":
        shown.press(key)
    shown.press("backspace")
    shown.press("backspace")
    assert shown.lines((6, 80), PLAIN)[0] == "hold top: 2 running, 1 with 'qui'"
    assert shown.lines((6, 80), PLAIN)[-1] == "/qui_"
    assert [each.id for each in shown.rows] == ["b00000002"]
    assert shown.selected == "b00000002"
    shown.press("enter")
    assert shown.press("l") == ("logs", "b00000002")
    for key in ("/", "ctrl-u", "z", "enter"):
        shown.press(key)
    assert "escape takes it away" in shown.lines((6, 80), PLAIN)[2]
    shown.press("escape")
    assert len(shown.rows) == 2


# Keys.


@pytest.mark.parametrize(
    "sent, keys",
    [
        (b"jk\r\x7f\x03\x1a", ["j", "k", "enter", "backspace", "ctrl-c", "ctrl-z"]),
        (
            b"\x1b[A\x1bOB\x1b[1;5C\x1b[5~\x1b[6;2~\x1b[H\x1b[4~",
            ["up", "down", "right", "page-up", "page-down", "home", "end"],
        ),
        ("ü漢".encode(), ["ü", "漢"]),
        (b"\x1bxq", ["q"]),
        (b"\x1b[200~a\x1b[?1;2c\x1b[<0;1;1Mb", ["a", "b"]),
    ],
)
def test_keys_have_their_names_however_they_are_cut(sent: bytes, keys: list[str]) -> None:
    assert Keypresses().feed(sent) == keys
    one_by_one = Keypresses()
    assert [key for at in range(len(sent)) for key in one_by_one.feed(sent[at : at + 1])] == keys
    assert not one_by_one.holds


def test_an_escape_is_a_key_when_nothing_follows() -> None:
    keypresses = Keypresses()
    assert keypresses.feed(b"\x1b") == []
    assert keypresses.holds
    assert keypresses.release() == ["escape"]
    assert keypresses.feed(b"\x1b\x1b[A") == ["escape", "up"]


@given(st.binary(max_size=200))
def test_whatever_is_sent_some_keys_or_none_come_of_it(data: bytes) -> None:
    keypresses = Keypresses()
    for key in keypresses.feed(data) + keypresses.feed(b"") + keypresses.release():
        assert key.isprintable()


# Text that is longer than the screen.


def test_what_comes_is_followed_until_somebody_goes_up() -> None:
    scroll = Scroll(10, 3)
    scroll.add("".join(f"line {n}\n" for n in range(10)))
    assert scroll.rows() == ["line 7", "line 8", "line 9"]
    scroll.begin("half")
    assert scroll.rows() == ["line 8", "line 9", "half"]
    scroll.press("up")
    scroll.add("line 10\n")
    assert (scroll.rows(), scroll.following) == (["line 7", "line 8", "line 9"], False)
    scroll.press("g")
    assert (scroll.rows(), scroll.above) == (["line 0", "line 1", "line 2"], 0)
    scroll.press("page-down")
    assert scroll.rows() == ["line 2", "line 3", "line 4"]
    scroll.press("G")
    scroll.begin("")
    scroll.add("line 11\n")
    assert (scroll.rows(), scroll.following) == (["line 9", "line 10", "line 11"], True)


def test_old_lines_make_room_and_what_is_seen_stays() -> None:
    scroll = Scroll(80, 2)
    scroll.add("".join(f"{n}\n" for n in range(LINES_MAX)))
    scroll.press("up")
    seen = scroll.rows()
    scroll.add("new\n" * 5)
    assert scroll.rows() == seen
    scroll.press("g")
    assert scroll.rows() == ["5", "6"]


@given(st.text(), st.integers(2, 30))
def test_a_wrapped_line_is_all_there(text: str, cols: int) -> None:
    line = "".join(text.splitlines())
    rows = wrapped(line, cols)
    assert all(width(each) <= cols for each in rows)
    assert "".join(rows) == "".join(wrapped(line, 10_000))


@given(st.lists(st.text("ab漢 ", max_size=6), max_size=8), st.lists(st.text("ab漢 ", max_size=6), max_size=8))
def test_a_picture_over_another_is_the_new_one(before: list[str], after: list[str]) -> None:
    before, after = ([line for line in lines if width(line) <= 8] for lines in (before, after))
    terminal = pyghostty.Terminal(8, 8)
    terminal.feed(b"rubbish\r\nrubbish" + paint(None, before, 8) + paint(before, after, 8))
    shown = [line.rstrip() for line in terminal.text().split("\n")]
    assert [*shown, *[""] * 8][:8] == [*(line.rstrip() for line in after), *[""] * 8][:8]
    assert paint(after, after, 8) == b""
