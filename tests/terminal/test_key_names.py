"""Key names as people write them: what each means, and that no mistake is ever typed."""

from __future__ import annotations

import base64
import re
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.errors import BadKey
from holdfast.runner.terminal import keyboard as encoder
from holdfast.runner.terminal.keycodes import MODIFIERS, NAMES, spell
from holdfast.terminal.keys import ALIASES, parse


def key(name: str, *mods: str) -> dict[str, Any]:
    return {"key": name, "mods": list(mods)}


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_name_is_known_in_any_case(name: str) -> None:
    assert parse([name, name.lower(), name.upper()]) == [key(name)] * 3


@pytest.mark.parametrize(
    "name, aliases",
    [
        ("Enter", "return cr Return CR"),
        ("Linefeed", "lf"),
        ("BackTab", "btab"),
        ("Escape", "esc ESC"),
        ("Backspace", "bs bspace BSpace"),
        ("Insert", "ins ic IC"),
        ("Delete", "del dc"),
        ("PageUp", "pgup ppage PPage PgUp"),
        ("PageDown", "pgdn npage"),
    ],
)
def test_an_alias_is_the_key(name: str, aliases: str) -> None:
    assert parse(aliases.split()) == [key(name)] * len(aliases.split())


@pytest.mark.covers("terminal:38")
@pytest.mark.parametrize(
    "spellings, part",
    [
        ("C-c ctrl+c ctrl-c control+c control-c ^c CTRL+c c-c", key("c", "ctrl")),
        ("^C C-C Ctrl+C", key("C", "ctrl")),
        ("M-x alt+x alt-x meta+x meta-x opt+x opt-x", key("x", "alt")),
        ("M-X", key("X", "alt")),
        ("S-Tab shift+tab shift-TAB", key("Tab", "shift")),
        ("super+k super-k", key("k", "super")),
        ("C-M-S-Up S-C-M-up ctrl+alt+shift+Up shift+C-alt-UP ^M-S-Up", key("Up", "shift", "alt", "ctrl")),
        ("^[ C-[", key("[", "ctrl")),
        ("^^ C-^", key("^", "ctrl")),
        ("^? C-?", key("?", "ctrl")),
        ("^", key("^")),
        ("C-- ctrl+- ctrl--", key("-", "ctrl")),
        ("C-+ ctrl++", key("+", "ctrl")),
        ("+", key("+")),
        ("-", key("-")),
        ("é", key("é")),
        ("😀", key("😀")),
        ("C-F5 ctrl+f5", key("F5", "ctrl")),
        ("KP- kp-", key("KP-")),
        ("key:Enter KEY:enter key:RETURN", key("Enter")),
        ("key:C-c", key("c", "ctrl")),
        (": key::", key(":")),
        ("C-: ctrl+:", key(":", "ctrl")),
    ],
)
def test_every_way_to_write_a_key_is_the_same_part(spellings: str, part: dict[str, Any]) -> None:
    tokens = spellings.split()
    assert parse(tokens) == [part] * len(tokens)


class Plain:
    """A terminal of which nothing was asked."""

    app_cursor = app_keypad = backarrow = bracketed_paste = focus_events = False
    modify_other_keys = kitty_flags = mouse = 0
    mouse_encoding = "x10"
    cell = None


def sent(*tokens: str) -> list[bytes]:
    return [encoder.encode(part, Plain())[0] for part in parse(tokens)]


@pytest.mark.covers("terminal:38")
def test_three_spellings_of_control_c_are_one_byte() -> None:
    assert sent("ctrl+c", "C-c", "^C") == [b"\x03"] * 3


@pytest.mark.covers("terminal:38")
def test_bytes_and_text_are_sendable_as_they_are() -> None:
    assert sent("hex:ff00c3", "0x1b", "hex:1B5b41", "0XFF", "HEX:00") == [
        b"\xff\x00\xc3",
        b"\x1b",
        b"\x1b[A",
        b"\xff",
        b"\x00",
    ]
    assert sent("text:key:x", "text:Enter", "text:hex:00", "text: a\n", "text:") == [
        b"key:x",
        b"Enter",
        b"hex:00",
        b" a\n",
        b"",
    ]


def test_a_space_is_a_key_by_name_and_by_itself() -> None:
    assert parse([" ", "C- "]) == [key(" "), key(" ", "ctrl")]
    assert sent(" ", "Space", "C-Space", "C- ") == [b" ", b" ", b"\0", b"\0"]


@pytest.mark.parametrize(
    "token, part",
    [
        ("FocusIn", {"focus": "in"}),
        ("focusout", {"focus": "out"}),
        ("Click@3,5", {"mouse": "click", "row": 3, "col": 5}),
        ("click@3,5,right", {"mouse": "click", "row": 3, "col": 5, "button": 3}),
        ("Click@3,5,2", {"mouse": "click", "row": 3, "col": 5, "button": 2}),
        ("WheelUp@3,5", {"mouse": "wheel_up", "row": 3, "col": 5}),
        ("wheeldown@500,1000", {"mouse": "wheel_down", "row": 500, "col": 1000}),
    ],
)
def test_focus_and_mouse_have_parts_of_their_own(token: str, part: dict[str, Any]) -> None:
    assert parse([token]) == [part]


@pytest.mark.covers("terminal:38")
@pytest.mark.parametrize(
    "token, suggestion",
    [
        ("Entr", "Enter"),
        ("Retrun", "Enter"),
        ("C-F99", "C-F9"),
        ("C-Entr", "C-Enter"),
        ("M-C-pageupp", "C-M-PageUp"),
        ("arrowup", None),
        ("Escpe", "Escape"),
        ("Dwn", "Down"),
        ("Ctl-c", "C-c"),
        ("A-x", "M-x"),
        ("ctrl_c", "C-c"),
        ("Control Up", "C-Up"),
        ("C-C-c", "C-c"),
        ("ctrl+^x", "C-x"),
        ("focusinn", "FocusIn"),
        ("C-FocusIn", "FocusIn"),
        ("C-Click@1,2", "Click@1,2"),
        ("Click", "Click@1,1"),
        ("Click@0,5", None),
        ("Click@1,1001", None),
        ("Click@1,2,9", None),
        ("WheelUp@1,2,left", None),
        ("\n", "Linefeed"),
        ("\x1b", "Escape"),
        ("C-\r", "C-Enter"),
        ("\x1b[A", None),
        ("\x9b", None),
        ("", None),
        ("C-", None),
        ("ctrl+", None),
        ("key:", None),
        ("key:hex:00", None),
        ("key:text:x", None),
        ("hex:", None),
        ("hex:1", None),
        ("hex:zz", None),
        ("hex:1b 5b", None),
        ("0x1", None),
        ("0x", None),
        ("hello world", None),
        ("ls -la", None),
        ("e\u0301", None),
        ("\ud800", None),
        ("text:\ud800", None),
        ("Enter\n", "Enter"),
        (" Enter", "Enter"),
        ("x" * 100_000, None),
    ],
)
def test_a_token_that_names_nothing_is_refused_with_what_is_near(token: str, suggestion: str | None) -> None:
    with pytest.raises(BadKey) as refused:
        parse(["Enter", "C-c", token])
    assert refused.value.key == token
    assert len(refused.value.suggestions) <= 3
    if suggestion is None:
        assert "`literal`" in refused.value.fix
    else:
        assert refused.value.suggestions[0] == suggestion
        assert suggestion in str(refused.value)
    assert len(str(refused.value)) < 300
    assert "\x1b" not in str(refused.value)


def test_a_key_name_must_be_text() -> None:
    with pytest.raises(BadKey):
        parse([7])  # type: ignore[list-item]


near_names = st.sampled_from([*sorted(NAMES), *ALIASES, "Click@1,2", "FocusIn"]).flatmap(
    lambda name: st.text(st.sampled_from(name + "xX1@,"), min_size=1, max_size=len(name) + 1)
)
prefixes = st.lists(
    st.sampled_from(["C-", "M-", "S-", "^", "ctrl+", "alt-", "super+", "key:", "hex:", "0x", "text:"]), max_size=3
).map("".join)
tokens = st.builds(str.__add__, prefixes, st.text(max_size=8) | near_names)


@given(token=tokens)
@example("C--")
@example("text:")
def test_no_token_is_typed_as_text_unless_it_says_so(token: str) -> None:
    try:
        parts = parse([token])
    except BadKey as refused:
        for suggestion in refused.suggestions:
            assert len(parse([suggestion])) == 1
        return
    assert len(parts) == 1
    part = parts[0]
    encoder.check_part(part)
    if "text" in part:
        assert token.lower().startswith("text:")
        assert part["text"] == token[5:]
    elif "bytes" in part:
        digits = re.fullmatch(r"(?:0x|hex:)([0-9a-f]+)", token, re.IGNORECASE)
        assert digits is not None
        assert base64.b64decode(part["bytes"]).hex() == digits[1].lower()
    elif "key" in part:
        assert part["key"] in NAMES or part["key"] == token[-1]


@given(name=st.sampled_from(sorted(NAMES)) | st.characters(exclude_categories=["Cc", "Cs"]), mods=st.integers(0, 15))
def test_a_suggested_spelling_is_read_as_the_same_key(name: str, mods: int) -> None:
    spelled = spell(name, mods)
    wanted = "Space" if name == " " else name
    assert parse([spelled]) == [key(wanted, *(word for word, bit in MODIFIERS.items() if mods & bit))]
