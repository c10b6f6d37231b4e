"""A screen in each of its forms: text, JSON, coloured text, SVG, PNG."""

from __future__ import annotations

import json
import sys
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from holdfast.core.vt.tracker import Tracker
from holdfast.errors import Unsupported
from holdfast.terminal.grid import Grid
from holdfast.terminal.screen import Cursor, Screen

SVG = "{http://www.w3.org/2000/svg}"


def screen(data: bytes, size: tuple[int, int] = (4, 30), history: int = 0, **options: Any) -> Screen:
    grid, tracker = Grid(*size), Tracker(*size)
    grid.feed(data)
    tracker.feed(data)
    return Screen.of(grid, tracker.snapshot(), history_rows=history, **options)


def test_screen_then_all_that_is_known_about_it() -> None:
    data = b"\x1b]2;the title\x07\x1b[?1049h\x1b[?25l\x1b[5 q\x1b[2;3Hx\x1b[?2026h"
    seen = screen(data, exact=False)

    assert (seen.size, seen.alt, seen.title, seen.offset) == ((4, 30), True, "the title", len(data))
    assert seen.cursor == Cursor(1, 3, False, "bar")
    assert (seen.exact, seen.mid_update) == (False, True)
    assert seen.rows[1].text.rstrip() == "  x"


def test_text_then_rows_without_blanks_at_their_ends_and_history_above() -> None:
    seen = screen(b"\r\n".join(b"line %d   " % i for i in range(8)) + b"\r\n", history=2)

    assert seen.text == "line 3\nline 4\nline 5\nline 6\nline 7"
    assert str(seen) == seen.text
    assert screen(b"").text == ""


def test_concealed_text_then_not_in_the_text() -> None:
    seen = screen("pin: \x1b[8m12日\x1b[28m|".encode())

    assert seen.text == "pin:     " + "|"
    assert "12日" not in seen.to_svg()


def test_json_then_runs_with_colours_attributes_and_links() -> None:
    data = (
        b"a\x1b[1;31;44mbold red\x1b[0;4:3;58;5;9mcurly\x1b[0;38;2;1;2;3m\x1b]8;id=x;https://example.org/\x07rgb"
        b"\x1b]8;;\x07\x1b[m\r\n\x1b[7m inverse \x1b[m"
    )
    found = json.loads(json.dumps(screen(data).to_json()))

    assert found["rows"][0]["runs"] == [
        {"text": "a"},
        {"text": "bold red", "fg": 1, "bg": 4, "bold": True},
        {"text": "curly", "underline": "curly", "underline_color": 9},
        {"text": "rgb", "fg": "#010203", "link": "https://example.org/"},
    ]
    assert found["rows"][1] == {"runs": [{"text": " inverse ", "inverse": True}]}
    assert found["rows"][2:] == [{"runs": []}, {"runs": []}]
    assert found["cursor"] == {"row": 1, "col": 9, "visible": True, "shape": "block"}
    keys = {"size", "cursor", "alt", "title", "offset", "exact", "mid_update", "history", "rows"}
    assert found.keys() == keys


def test_wrapped_row_in_json_then_it_says_so() -> None:
    found = screen(b"x" * 40).to_json()

    assert [row.get("wrapped", False) for row in found["rows"]] == [True, False, False, False]


def test_ansi_printed_on_a_terminal_then_the_same_rows() -> None:
    lines = (
        "\x1b[1;31mred\x1b[m 日本 \x1b[44m bg \x1b[K",
        "\x1b[m\x1b]8;;http://x\x07link\x1b]8;;\x07 e\u0301\x1b[4:3mu",
    )
    data = "\r\n".join(lines).encode()
    seen = screen(data)

    printed = seen.to_ansi()

    assert printed.endswith("\n")
    again = Grid(6, 30)
    again.feed(printed.replace("\n", "\r\n").encode())
    assert [row.runs for row in again.rows()[:4]] == [row.runs for row in seen.rows]


def test_svg_then_well_formed_with_text_colours_and_cursor() -> None:
    link = "\x1b]8;;https://example.org/?a=1&b=2\x07link\x1b]8;;\x07"
    data = f'\x1b]2;<&"title\x07a <b> & c\x1b[31;44m red \x1b[m 日{link}'.encode()
    root = ET.fromstring(screen(data).to_svg())

    texts = ["".join(text.itertext()) for text in root.iter(f"{SVG}text")]
    assert "a <b> & c" in texts
    assert " red " in texts
    title = root.find(f"{SVG}title")
    assert title is not None
    assert title.text == '<&"title'
    assert [link.get("href") for link in root.iter(f"{SVG}a")] == ["https://example.org/?a=1&b=2"]
    fills = {each.get("fill") for each in root.iter()}
    assert {"#cd0000", "#0000ee", "#000000"} <= fills
    assert len([rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "cursor"]) == 1


def test_palette_that_the_program_changed_then_the_picture_has_it() -> None:
    drawn = screen(b"\x1b]4;1;rgb:12/34/56\x07\x1b]11;#abcdef\x07\x1b[31mx").to_svg()

    assert "#123456" in drawn
    assert "#abcdef" in drawn


def test_link_to_a_script_then_no_link_in_the_picture() -> None:
    drawn = screen(b"\x1b]8;;javascript:alert(1)\x07click\x1b]8;;\x07").to_svg()

    assert "click" in drawn
    assert "javascript" not in drawn


def test_characters_that_xml_does_not_allow_then_still_well_formed() -> None:
    ET.fromstring(screen("\ufffe\uffff ok".encode()).to_svg())


def test_png_then_a_picture_of_the_right_size() -> None:
    pytest.importorskip("PIL", reason="Pillow is an extra")
    small = screen("\x1b[31;44mred\x1b[m 日 \x1b[4munder".encode()).to_png()
    large = screen(b"x", (8, 60)).to_png()

    assert small.startswith(b"\x89PNG\r\n\x1a\n")
    (small_width, small_height), (large_width, large_height) = (
        (int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")) for png in (small, large)
    )
    assert large_width - 16 == 2 * (small_width - 16)
    assert large_height - 16 == 2 * (small_height - 16)


def test_png_without_pillow_then_an_error_that_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIL", "PIL.Image", "PIL.ImageDraw", "PIL.ImageFont"):
        monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(Unsupported, match=r"pip install 'holdfast\[png\]'"):
        screen(b"x").to_png()
