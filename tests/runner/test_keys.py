"""Typed parts into bytes: every row of the key table in every mode, what is refused, and how a paste is cleaned."""

from __future__ import annotations

import base64
import re
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.runner.terminal import keyboard
from holdfast.runner.terminal.keycodes import MODIFIERS, NAMES
from support.stage import on_stage


@dataclass(frozen=True)
class Modes:
    app_cursor: bool = False
    app_keypad: bool = False
    backarrow: bool = False
    modify_other_keys: int = 0
    kitty_flags: int = 0
    bracketed_paste: bool = False
    focus_events: bool = False
    mouse: int = 0
    mouse_encoding: str = "x10"
    cell: tuple[int, int] | None = None


PLAIN = Modes()
COLUMNS = {
    "plain": PLAIN,
    "cursor": Modes(app_cursor=True),
    "keypad": Modes(app_keypad=True),
    "kitty 1": Modes(kitty_flags=1),
    "kitty 8": Modes(kitty_flags=8),
    "other 1": Modes(modify_other_keys=1),
    "other 2": Modes(modify_other_keys=2),
}

# `=` is the bytes of the plain mode, `-` a refusal; \e is ESC, \s a space.
GOLDEN = r"""
key           | plain        | cursor | keypad | kitty 1        | kitty 8        | other 1         | other 2
Enter         | \r           | =      | =      | =              | \e[13u         | =               | =
M-Enter       | \e\r         | =      | =      | \e[13;3u       | \e[13;3u       | =               | \e[27;3;13~
S-Enter       | -            | -      | -      | \e[13;2u       | \e[13;2u       | \e[27;2;13~     | \e[27;2;13~
C-Enter       | -            | -      | -      | \e[13;5u       | \e[13;5u       | \e[27;5;13~     | \e[27;5;13~
C-M-Enter     | -            | -      | -      | \e[13;7u       | \e[13;7u       | \e[27;7;13~     | \e[27;7;13~
super-Enter   | -            | -      | -      | \e[13;9u       | \e[13;9u       | -               | -
Linefeed      | \n           | =      | =      | =              | \e[10u         | =               | =
M-Linefeed    | \e\n         | =      | =      | \e[10;3u       | \e[10;3u       | =               | \e[27;3;10~
Tab           | \t           | =      | =      | =              | \e[9u          | =               | =
M-Tab         | \e\t         | =      | =      | \e[9;3u        | \e[9;3u        | =               | \e[27;3;9~
C-Tab         | -            | -      | -      | \e[9;5u        | \e[9;5u        | \e[27;5;9~      | \e[27;5;9~
S-Tab         | \e[Z         | =      | =      | \e[9;2u        | \e[9;2u        | =               | =
BackTab       | \e[Z         | =      | =      | \e[9;2u        | \e[9;2u        | =               | =
M-BackTab     | \e\e[Z       | =      | =      | \e[9;4u        | \e[9;4u        | =               | \e[27;4;9~
C-BackTab     | -            | -      | -      | \e[9;6u        | \e[9;6u        | \e[27;6;9~      | \e[27;6;9~
S-BackTab     | -            | -      | -      | -              | -              | -               | -
Escape        | \e           | =      | =      | \e[27u         | \e[27u         | =               | =
M-Escape      | \e\e         | =      | =      | \e[27;3u       | \e[27;3u       | =               | \e[27;3;27~
C-Escape      | -            | -      | -      | \e[27;5u       | \e[27;5u       | \e[27;5;27~     | \e[27;5;27~
Space         | \s           | =      | =      | =              | \e[32u         | =               | =
C-Space       | \x00         | =      | =      | \e[32;5u       | \e[32;5u       | =               | \e[27;5;32~
M-Space       | \e\s         | =      | =      | \e[32;3u       | \e[32;3u       | =               | \e[27;3;32~
S-Space       | -            | -      | -      | -              | \e[32;2u       | -               | \e[27;2;32~
Backspace     | \x7f         | =      | =      | =              | \e[127u        | =               | =
C-Backspace   | \x08         | =      | =      | \e[127;5u      | \e[127;5u      | =               | =
M-Backspace   | \e\x7f       | =      | =      | \e[127;3u      | \e[127;3u      | =               | \e[27;3;127~
C-M-Backspace | \e\x08       | =      | =      | \e[127;7u      | \e[127;7u      | =               | \e[27;7;127~
S-Backspace   | -            | -      | -      | \e[127;2u      | \e[127;2u      | -               | \e[27;2;127~
Up            | \e[A         | \eOA   | =      | =              | =              | =               | =
Down          | \e[B         | \eOB   | =      | =              | =              | =               | =
Right         | \e[C         | \eOC   | =      | =              | =              | =               | =
Left          | \e[D         | \eOD   | =      | =              | =              | =               | =
Home          | \e[H         | \eOH   | =      | =              | =              | =               | =
End           | \e[F         | \eOF   | =      | =              | =              | =               | =
S-Up          | \e[1;2A      | =      | =      | =              | =              | =               | =
M-Down        | \e[1;3B      | =      | =      | =              | =              | =               | =
M-S-Right     | \e[1;4C      | =      | =      | =              | =              | =               | =
C-Left        | \e[1;5D      | =      | =      | =              | =              | =               | =
C-S-Home      | \e[1;6H      | =      | =      | =              | =              | =               | =
C-M-End       | \e[1;7F      | =      | =      | =              | =              | =               | =
C-M-S-Up      | \e[1;8A      | =      | =      | =              | =              | =               | =
super-Up      | -            | -      | -      | \e[1;9A        | \e[1;9A        | -               | -
Insert        | \e[2~        | =      | =      | =              | =              | =               | =
Delete        | \e[3~        | =      | =      | =              | =              | =               | =
PageUp        | \e[5~        | =      | =      | =              | =              | =               | =
PageDown      | \e[6~        | =      | =      | =              | =              | =               | =
S-Insert      | \e[2;2~      | =      | =      | =              | =              | =               | =
M-Delete      | \e[3;3~      | =      | =      | =              | =              | =               | =
C-PageUp      | \e[5;5~      | =      | =      | =              | =              | =               | =
C-M-S-PageDown| \e[6;8~      | =      | =      | =              | =              | =               | =
F1            | \eOP         | =      | =      | \e[P           | \e[P           | =               | =
F2            | \eOQ         | =      | =      | \e[Q           | \e[Q           | =               | =
F3            | \eOR         | =      | =      | \e[13~         | \e[13~         | =               | =
F4            | \eOS         | =      | =      | \e[S           | \e[S           | =               | =
S-F1          | \e[1;2P      | =      | =      | =              | =              | =               | =
M-F2          | \e[1;3Q      | =      | =      | =              | =              | =               | =
C-F3          | \e[1;5R      | =      | =      | \e[13;5~       | \e[13;5~       | =               | =
C-M-F4        | \e[1;7S      | =      | =      | =              | =              | =               | =
F5            | \e[15~       | =      | =      | =              | =              | =               | =
F6            | \e[17~       | =      | =      | =              | =              | =               | =
F7            | \e[18~       | =      | =      | =              | =              | =               | =
F8            | \e[19~       | =      | =      | =              | =              | =               | =
F9            | \e[20~       | =      | =      | =              | =              | =               | =
F10           | \e[21~       | =      | =      | =              | =              | =               | =
F11           | \e[23~       | =      | =      | =              | =              | =               | =
F12           | \e[24~       | =      | =      | =              | =              | =               | =
C-F5          | \e[15;5~     | =      | =      | =              | =              | =               | =
M-S-F12       | \e[24;4~     | =      | =      | =              | =              | =               | =
F13           | \e[1;2P      | =      | =      | =              | =              | =               | =
F14           | \e[1;2Q      | =      | =      | =              | =              | =               | =
F15           | \e[1;2R      | =      | =      | \e[13;2~       | \e[13;2~       | =               | =
F16           | \e[1;2S      | =      | =      | =              | =              | =               | =
F17           | \e[15;2~     | =      | =      | =              | =              | =               | =
F18           | \e[17;2~     | =      | =      | =              | =              | =               | =
F19           | \e[18;2~     | =      | =      | =              | =              | =               | =
F20           | \e[19;2~     | =      | =      | =              | =              | =               | =
F21           | \e[20;2~     | =      | =      | =              | =              | =               | =
F22           | \e[21;2~     | =      | =      | =              | =              | =               | =
F23           | \e[23;2~     | =      | =      | =              | =              | =               | =
F24           | \e[24;2~     | =      | =      | =              | =              | =               | =
C-F13         | \e[1;6P      | =      | =      | =              | =              | =               | =
S-F13         | -            | -      | -      | -              | -              | -               | -
KP0           | 0            | =      | \eOp   | =              | \e[57399u      | =               | =
KP1           | 1            | =      | \eOq   | =              | \e[57400u      | =               | =
KP2           | 2            | =      | \eOr   | =              | \e[57401u      | =               | =
KP3           | 3            | =      | \eOs   | =              | \e[57402u      | =               | =
KP4           | 4            | =      | \eOt   | =              | \e[57403u      | =               | =
KP5           | 5            | =      | \eOu   | =              | \e[57404u      | =               | =
KP6           | 6            | =      | \eOv   | =              | \e[57405u      | =               | =
KP7           | 7            | =      | \eOw   | =              | \e[57406u      | =               | =
KP8           | 8            | =      | \eOx   | =              | \e[57407u      | =               | =
KP9           | 9            | =      | \eOy   | =              | \e[57408u      | =               | =
KP.           | .            | =      | \eOn   | =              | \e[57409u      | =               | =
KP/           | /            | =      | \eOo   | =              | \e[57410u      | =               | =
KP*           | *            | =      | \eOj   | =              | \e[57411u      | =               | =
KP-           | -\x20        | =      | \eOm   | =              | \e[57412u      | =               | =
KP+           | +            | =      | \eOk   | =              | \e[57413u      | =               | =
KPEnter       | \r           | =      | \eOM   | \e[57414u      | \e[57414u      | =               | =
KP=           | =\x20        | =      | \eOX   | =              | \e[57415u      | =               | =
C-KP5         | -            | -      | -      | -              | -              | -               | -
S-KPEnter     | -            | -      | -      | -              | -              | -               | -
C-@           | \x00         | =      | =      | \e[64;5u       | \e[64;5u       | =               | \e[27;5;64~
C-a           | \x01         | =      | =      | \e[97;5u       | \e[97;5u       | =               | \e[27;5;97~
C-A           | \x01         | =      | =      | \e[97;5u       | \e[97;5u       | =               | \e[27;5;97~
C-z           | \x1a         | =      | =      | \e[122;5u      | \e[122;5u      | =               | \e[27;5;122~
C-S-a         | -            | -      | -      | \e[97;6u       | \e[97;6u       | \e[27;6;65~     | \e[27;6;65~
C-M-a         | \e\x01       | =      | =      | \e[97;7u       | \e[97;7u       | =               | \e[27;7;97~
C-[           | \e           | =      | =      | \e[91;5u       | \e[91;5u       | =               | \e[27;5;91~
C-\           | \x1c         | =      | =      | \e[92;5u       | \e[92;5u       | =               | \e[27;5;92~
C-]           | \x1d         | =      | =      | \e[93;5u       | \e[93;5u       | =               | \e[27;5;93~
C-^           | \x1e         | =      | =      | \e[94;5u       | \e[94;5u       | =               | \e[27;5;94~
C-_           | \x1f         | =      | =      | \e[95;5u       | \e[95;5u       | =               | \e[27;5;95~
C-?           | \x7f         | =      | =      | \e[63;5u       | \e[63;5u       | =               | \e[27;5;63~
C-/           | \x1f         | =      | =      | \e[47;5u       | \e[47;5u       | =               | \e[27;5;47~
C-0           | -            | -      | -      | \e[48;5u       | \e[48;5u       | \e[27;5;48~     | \e[27;5;48~
C-1           | -            | -      | -      | \e[49;5u       | \e[49;5u       | \e[27;5;49~     | \e[27;5;49~
C-2           | \x00         | =      | =      | \e[50;5u       | \e[50;5u       | =               | \e[27;5;50~
C-3           | \e           | =      | =      | \e[51;5u       | \e[51;5u       | =               | \e[27;5;51~
C-4           | \x1c         | =      | =      | \e[52;5u       | \e[52;5u       | =               | \e[27;5;52~
C-5           | \x1d         | =      | =      | \e[53;5u       | \e[53;5u       | =               | \e[27;5;53~
C-6           | \x1e         | =      | =      | \e[54;5u       | \e[54;5u       | =               | \e[27;5;54~
C-7           | \x1f         | =      | =      | \e[55;5u       | \e[55;5u       | =               | \e[27;5;55~
C-8           | \x7f         | =      | =      | \e[56;5u       | \e[56;5u       | =               | \e[27;5;56~
C-9           | -            | -      | -      | \e[57;5u       | \e[57;5u       | \e[27;5;57~     | \e[27;5;57~
a             | a            | =      | =      | =              | \e[97u         | =               | =
A             | A            | =      | =      | =              | \e[97;2u       | =               | =
S-a           | A            | =      | =      | =              | \e[97;2u       | =               | =
S-1           | -            | -      | -      | -              | \e[49;2u       | -               | -
M-x           | \ex          | =      | =      | \e[120;3u      | \e[120;3u      | =               | \e[27;3;120~
M-X           | \eX          | =      | =      | \e[120;4u      | \e[120;4u      | =               | \e[27;4;88~
M-S-x         | \eX          | =      | =      | \e[120;4u      | \e[120;4u      | =               | \e[27;4;88~
M-[           | \e[          | =      | =      | \e[91;3u       | \e[91;3u       | =               | \e[27;3;91~
super-k       | -            | -      | -      | \e[107;9u      | \e[107;9u      | -               | -
é             | é            | =      | =      | =              | \e[233u        | =               | =
É             | É            | =      | =      | =              | \e[233;2u      | =               | =
M-é           | \eé          | =      | =      | \e[233;3u      | \e[233;3u      | =               | \e[27;3;233~
M-É           | \eÉ          | =      | =      | \e[233;4u      | \e[233;4u      | =               | \e[27;4;201~
C-é           | -            | -      | -      | \e[233;5u      | \e[233;5u      | \e[27;5;233~    | \e[27;5;233~
😀            | 😀           | =      | =      | =              | \e[128512u     | =               | =
"""

_WORDS = {"C": "ctrl", "M": "alt", "S": "shift", "super": "super"}


def part_of(name: str) -> dict[str, Any]:
    mods = []
    while (found := re.match(r"(C|M|S|super)-(?=.)", name)) is not None:
        mods.append(_WORDS[found[1]])
        name = name[found.end() :]
    return {"key": name, "mods": mods}


def bytes_of(cell: str) -> bytes:
    """`\\x20` only keeps a cell of one sign from being read as that sign."""
    names = {"e": "\x1b", "r": "\r", "n": "\n", "t": "\t", "s": " "}

    def meant(found: re.Match[str]) -> str:
        return names.get(found[1][0]) or chr(int(found[1][1:], 16))

    text = cell.removesuffix(r"\x20") if len(cell) == 5 else cell
    return re.sub(r"\\(x[0-9a-f]{2}|[ernts])", meant, text).encode()


def rows() -> dict[str, dict[str, bytes | None]]:
    lines = [[cell.strip() for cell in line.split("|")] for line in GOLDEN.strip().splitlines()]
    found = {}
    for name, *cells in lines[1:]:
        meant = [cells[0] if cell == "=" else cell for cell in cells]
        found[name] = {
            column: None if cell == "-" else bytes_of(cell) for column, cell in zip(COLUMNS, meant, strict=True)
        }
    return found


def typed(part: dict[str, Any], modes: Modes = PLAIN) -> bytes:
    keyboard.check_part(part)
    return keyboard.encode(part, modes)[0]


@pytest.mark.covers("terminal:37")
@pytest.mark.parametrize("name", rows())
def test_every_row_of_the_table_in_every_mode(name: str) -> None:
    part = part_of(name)
    for column, wanted in rows()[name].items():
        if wanted is not None:
            assert typed(part, COLUMNS[column]) == wanted, column
            continue
        with pytest.raises(keyboard.Inexpressible) as refused:
            typed(part, COLUMNS[column])
        assert refused.value.code == "bad-key"
        assert refused.value.key == name.replace("super-", "super+")


def test_the_table_has_every_name() -> None:
    assert {part_of(name)["key"] for name in rows()} >= NAMES


@pytest.mark.covers("terminal:37")
def test_every_control_letter_is_its_place_in_the_alphabet() -> None:
    for place, letter in enumerate("abcdefghijklmnopqrstuvwxyz", 1):
        for key in (letter, letter.upper()):
            assert typed({"key": key, "mods": ["ctrl"]}) == bytes([place])


def terminfo() -> dict[str, bytes]:
    listed = subprocess.run(["infocmp", "-x", "-1", "xterm-256color"], capture_output=True, text=True, check=True)
    pairs = re.findall(r"^\t(k\w+)=(.+),$", listed.stdout, re.MULTILINE)
    spelled = {"\\E": "\x1b", "^?": "\x7f", "^H": "\x08"}
    return {name: re.sub(r"\\E|\^\?|\^H", lambda found: spelled[found[0]], value).encode() for name, value in pairs}


def paired(text: str) -> dict[str, str]:
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


REQUIRED = {
    **paired("kcuu1 Up kcud1 Down kcuf1 Right kcub1 Left khome Home kend End"),
    **paired("kich1 Insert kdch1 Delete kpp PageUp knp PageDown kcbt BackTab kbs Backspace kent KPEnter"),
    **{f"kf{number}": f"F{number}" for number in range(1, 25)},
}
# Those that an old terminfo may lack.
OTHERS = {
    **paired("ka1 KP7 ka2 KP8 ka3 KP9 kb1 KP4 kb2 KP5 kb3 KP6 kc1 KP1 kc2 KP2 kc3 KP3 kpZRO KP0"),
    **paired("kpADD KP+ kpSUB KP- kpMUL KP* kpDIV KP/ kpDOT KP. kind S-Down kri S-Up"),
    **{f"kf{number + 24}": f"C-F{number}" for number in range(1, 13)},
    **{f"kf{number + 36}": f"C-S-F{number}" for number in range(1, 13)},
    **{f"kf{number + 48}": f"M-F{number}" for number in range(1, 13)},
    **{f"kf{number + 60}": f"M-S-F{number}" for number in range(1, 4)},
    **{
        f"{name}{number}": prefix + key
        for name, key in paired(
            "kUP Up kDN Down kRIT Right kLFT Left kHOM Home kEND End kIC Insert kDC Delete kPRV PageUp kNXT PageDown"
        ).items()
        for number, prefix in {"": "S-", 3: "M-", 4: "M-S-", 5: "C-", 6: "C-S-", 7: "C-M-"}.items()
    },
}


@pytest.mark.covers("terminal:37")
def test_cursor_editing_and_function_keys_are_those_of_terminfo() -> None:
    # A program that uses terminfo has sent `smkx` before it reads a key.
    transmit = Modes(app_cursor=True, app_keypad=True)
    known = terminfo()
    named = REQUIRED | {name: key for name, key in OTHERS.items() if name in known}
    assert {name: typed(part_of(key), transmit) for name, key in named.items()} == {name: known[name] for name in named}


def test_backarrow_mode_exchanges_the_two_bytes_of_backspace() -> None:
    modes = Modes(backarrow=True)
    assert typed(part_of("Backspace"), modes) == b"\x08"
    assert typed(part_of("C-Backspace"), modes) == b"\x7f"
    assert typed(part_of("M-Backspace"), modes) == b"\x1b\x08"
    assert typed(part_of("M-Backspace"), replace(modes, modify_other_keys=2)) == b"\x1b[27;3;8~"


def test_arrows_work_before_any_mode_was_seen_and_kitty_keeps_them_out_of_ss3() -> None:
    assert typed(part_of("Up")) == b"\x1b[A"
    assert typed(part_of("Up"), Modes(app_cursor=True, kitty_flags=1)) == b"\x1b[A"
    assert typed(part_of("KP0"), Modes(app_keypad=True, kitty_flags=1)) == b"0"


def test_kitty_with_associated_text_carries_the_text_of_each_key_that_has_one() -> None:
    modes = Modes(kitty_flags=8 | 16)
    assert typed(part_of("a"), modes) == b"\x1b[97;;97u"
    assert typed(part_of("A"), modes) == b"\x1b[97;2;65u"
    assert typed(part_of("KP5"), modes) == b"\x1b[57404;;53u"
    assert typed(part_of("C-a"), modes) == b"\x1b[97;5u"
    assert typed(part_of("S-1"), modes) == b"\x1b[49;2u"


def test_enter_as_a_part_is_the_key() -> None:
    assert typed({"enter": True}) == b"\r"
    assert typed({"enter": True}, Modes(kitty_flags=8)) == b"\x1b[13u"


def test_what_may_freeze_the_output_warns() -> None:
    _, warnings = keyboard.encode(part_of("C-s"), PLAIN)
    assert [each.partition(":")[0] for each in warnings] == ["xoff"]
    assert keyboard.encode(part_of("C-s"), Modes(kitty_flags=1)) == (b"\x1b[115;5u", [])


@pytest.mark.covers("terminal:38")
@pytest.mark.parametrize(
    "name, nearest",
    [("C-1", ("1",)), ("C-Enter", ("Enter",)), ("C-M-Enter", ("M-Enter", "Enter")), ("S-F13", ("F13",))],
)
def test_a_refusal_offers_the_key_with_the_modifiers_it_can_have(name: str, nearest: tuple[str, ...]) -> None:
    with pytest.raises(keyboard.Inexpressible) as refused:
        typed(part_of(name))
    assert refused.value.suggestions == nearest


# Text, bytes, paste.


def test_text_and_bytes_go_out_as_they_are() -> None:
    assert typed({"text": "key:x\n\x1b[A"}) == b"key:x\n\x1b[A"
    assert typed({"text": "caf\udcff"}) == b"caf\xff"
    assert typed({"bytes": base64.b64encode(b"\xff\x00\xc3").decode()}) == b"\xff\x00\xc3"
    assert typed({"text": "ä"}, Modes(kitty_flags=8, bracketed_paste=True)) == "ä".encode()


BRACKETED = Modes(bracketed_paste=True)


@pytest.mark.covers("terminal:39")
def test_a_paste_is_bracketed_by_the_mode_at_the_time_it_is_encoded() -> None:
    part = {"paste": "one\ntwo"}
    assert typed(part, BRACKETED) == b"\x1b[200~one\rtwo\x1b[201~"
    assert typed(part) == b"one\rtwo"
    assert typed({**part, "bracketed": "always"}) == b"\x1b[200~one\rtwo\x1b[201~"
    assert typed({**part, "bracketed": "never"}, BRACKETED) == b"one\rtwo"


@pytest.mark.covers("terminal:39")
@pytest.mark.parametrize(
    "text, left",
    [
        ("a\x1b[201~rm -rf /\nb", b"a[201~rm -rf /\rb"),
        ("a\x1b\x1b[201~[201~b", b"a[201~[201~b"),
        ("a\x1b\x00[201~b", b"a[201~b"),
        ("a\x9b201~b", b"a201~b"),
        ("a\udc9b201~b", b"a201~b"),
        ("a\udcc2\udc9b201~b", b"a\xc2201~b"),
        ("nul\x00bell\x07del\x7fbs\x08", b"nulbelldelbs"),
        ("tab\tkept", b"tab\tkept"),
        ("crlf\r\nlf\ncr\rend", b"crlf\rlf\rcr\rend"),
        ("form\x0cfeed\x0b\x85", b"formfeed"),
        ("ünï😀\udcff", "ünï😀".encode() + b"\xff"),
    ],
)
def test_a_paste_is_cleaned_of_what_could_end_it_or_act(text: str, left: bytes) -> None:
    assert typed({"paste": text}, BRACKETED) == b"\x1b[200~" + left + b"\x1b[201~"


@pytest.mark.covers("terminal:39")
def test_a_paste_says_what_it_removed_and_that_newlines_will_submit() -> None:
    part = {"paste": "\x1b[31mred\x00\nblue"}
    assert keyboard.encode(part, BRACKETED)[1] == ["paste_cleaned: 2 control characters were removed"]
    named = [each.partition(":")[0] for each in keyboard.encode(part, PLAIN)[1]]
    assert named == ["paste_cleaned", "paste_newlines"]
    assert keyboard.encode({"paste": "one line"}, PLAIN)[1] == []


def test_a_raw_paste_keeps_its_controls() -> None:
    assert typed({"paste": "\x1b[31m\x00\n", "raw": True}, BRACKETED) == b"\x1b[200~\x1b[31m\x00\r\x1b[201~"


@pytest.mark.covers("terminal:39")
def test_a_real_shell_takes_a_bracketed_paste_whole_and_runs_nothing_of_it(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    text = f"touch {one}\x1b[201~\ntouch {two}\x00\x9b201~\udc9b201~\necho seen\n"
    with on_stage("bash", "--norc", "--noprofile") as stage:
        stage.read_until(b"\x1b[?2004h")
        stage.send(typed({"paste": text}, BRACKETED))
        stage.read_until(b"echo seen")
        stage.send(typed(part_of("C-c")))
        stage.send(typed({"text": "echo do''ne"}) + typed({"enter": True}))
        stage.read_until(b"done")
        assert not one.exists()
        assert not two.exists()
        stage.send(typed({"paste": f"touch {one}\necho en''ded\n", "bracketed": "never"}))
        stage.read_until(b"ended")
        assert one.exists()


anything = st.text(st.characters() | st.sampled_from("\x1b[201~\x9b\udc9b\udcc2\r\n\x00"), max_size=60)


@pytest.mark.covers("terminal:39")
@given(text=anything)
def test_nothing_inside_a_cleaned_paste_can_end_it(text: str) -> None:
    try:
        keyboard.check_part({"paste": text})
    except keyboard.BadPart:
        assume(False)
    sent = typed({"paste": text}, BRACKETED)
    assert sent.startswith(b"\x1b[200~")
    assert sent.endswith(b"\x1b[201~")
    inside = sent[6:-6]
    assert not set(inside) & (set(range(0x20)) - {0x09, 0x0D} | {0x7F})
    assert not re.search(rb"\xc2[\x80-\x9f]", inside)
    assert not set(inside.decode(errors="surrogateescape")) & {chr(0xDC00 + byte) for byte in range(0x80, 0xA0)}


# Mouse and focus.


@pytest.mark.covers("terminal:37")
@pytest.mark.parametrize(
    "part, modes, wanted",
    [
        ({"mouse": "click", "row": 3, "col": 5}, Modes(mouse=9), b"\x1b[M %#"),
        ({"mouse": "click", "row": 3, "col": 5}, Modes(mouse=1000), b"\x1b[M %#\x1b[M#%#"),
        ({"mouse": "click", "row": 1, "col": 223, "button": 3}, Modes(mouse=1000), b'\x1b[M"\xff!\x1b[M#\xff!'),
        ({"mouse": "wheel_up", "row": 3, "col": 5}, Modes(mouse=1000), b"\x1b[M`%#"),
        (
            {"mouse": "wheel_down", "row": 3, "col": 300},
            Modes(mouse=1002, mouse_encoding="utf8"),
            "\x1b[Ma\u014c#".encode(),
        ),
        (
            {"mouse": "click", "row": 3, "col": 500, "button": 2},
            Modes(mouse=1003, mouse_encoding="sgr"),
            b"\x1b[<1;500;3M\x1b[<1;500;3m",
        ),
        ({"mouse": "wheel_up", "row": 3, "col": 5}, Modes(mouse=1000, mouse_encoding="sgr"), b"\x1b[<64;5;3M"),
        (
            {"mouse": "click", "row": 3, "col": 500},
            Modes(mouse=1000, mouse_encoding="urxvt"),
            b"\x1b[32;500;3M\x1b[35;500;3M",
        ),
        (
            {"mouse": "wheel_down", "row": 3, "col": 5},
            Modes(mouse=1000, mouse_encoding="pixels", cell=(20, 10)),
            b"\x1b[<65;46;51M",
        ),
        ({"mouse": "wheel_up", "row": 1, "col": 1}, Modes(mouse=1000, mouse_encoding="pixels"), b"\x1b[<64;5;9M"),
        ({"focus": "in"}, Modes(focus_events=True), b"\x1b[I"),
        ({"focus": "out"}, Modes(focus_events=True), b"\x1b[O"),
    ],
)
def test_mouse_and_focus_go_out_in_the_form_that_was_asked_for(
    part: dict[str, Any], modes: Modes, wanted: bytes
) -> None:
    assert typed(part, modes) == wanted


@pytest.mark.covers("terminal:37")
@pytest.mark.parametrize(
    "part, modes, key",
    [
        ({"mouse": "click", "row": 3, "col": 5}, PLAIN, "Click@3,5"),
        ({"mouse": "wheel_up", "row": 3, "col": 5}, Modes(mouse=9), "WheelUp@3,5"),
        ({"mouse": "click", "row": 3, "col": 224}, Modes(mouse=1000), "Click@3,224"),
        ({"focus": "in"}, PLAIN, "FocusIn"),
        ({"focus": "out"}, PLAIN, "FocusOut"),
    ],
)
def test_what_the_application_did_not_ask_for_is_refused(part: dict[str, Any], modes: Modes, key: str) -> None:
    with pytest.raises(keyboard.Inexpressible) as refused:
        typed(part, modes)
    assert refused.value.key == key


# Checking.


@pytest.mark.parametrize(
    "part, argument",
    [
        ("Enter", "parts"),
        ({}, "parts"),
        ({"key": "a", "text": "a"}, "parts"),
        ({"raw": b"x"}, "parts"),
        ({"text": "a", "mods": []}, "mods"),
        ({"key": "Entr"}, "key"),
        ({"key": "enter"}, "key"),
        ({"key": ""}, "key"),
        ({"key": "\x1b"}, "key"),
        ({"key": "\x9b"}, "key"),
        ({"key": "\ud800"}, "key"),
        ({"key": 7}, "key"),
        ({"key": ["a"]}, "key"),
        ({"key": "a", "mods": ["hyper"]}, "mods"),
        ({"key": "a", "mods": "ctrl"}, "mods"),
        ({"key": "a", "mods": [["ctrl"]]}, "mods"),
        ({"key": "a", "mods": ["ctrl", "ctrl"]}, "mods"),
        ({"text": 7}, "text"),
        ({"text": "\ud800"}, "text"),
        ({"bytes": "not base64!"}, "bytes"),
        ({"bytes": 7}, "bytes"),
        ({"paste": None}, "paste"),
        ({"paste": "x", "bracketed": True}, "bracketed"),
        ({"paste": "x", "raw": "yes"}, "raw"),
        ({"mouse": "drag", "row": 1, "col": 1}, "mouse"),
        ({"mouse": ["click"], "row": 1, "col": 1}, "mouse"),
        ({"mouse": "click", "row": 0, "col": 1}, "row"),
        ({"mouse": "click", "row": 1}, "col"),
        ({"mouse": "click", "row": 1, "col": 1001}, "col"),
        ({"mouse": "click", "row": True, "col": 1}, "row"),
        ({"mouse": "click", "row": 1, "col": 1, "button": 4}, "button"),
        ({"mouse": "wheel_up", "row": 1, "col": 1, "button": 1}, "button"),
        ({"focus": "maybe"}, "focus"),
        ({"enter": 1}, "enter"),
        ({"pause": -1}, "pause"),
        ({"pause": 5001}, "pause"),
        ({"pause": 1.5}, "pause"),
        ({"key": "a", "\x1b[31m" * 50: 1}, ("\x1b[31m" * 50)[:80]),
    ],
)
def test_a_malformed_part_is_refused_and_the_member_named(part: object, argument: str) -> None:
    with pytest.raises(keyboard.BadPart) as refused:
        keyboard.check_part(part)
    assert refused.value.argument == argument
    assert refused.value.code == ("bad-key" if argument == "key" else "bad-argument")
    assert "\x1b" not in str(refused.value)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
_members = [
    "bytes",
    "text",
    "key",
    "mods",
    "paste",
    "bracketed",
    "raw",
    "mouse",
    "row",
    "col",
    "focus",
    "enter",
    "pause",
]
modes_of_all_kinds = st.builds(
    Modes,
    app_cursor=st.booleans(),
    app_keypad=st.booleans(),
    backarrow=st.booleans(),
    modify_other_keys=st.integers(0, 3),
    kitty_flags=st.integers(0, 31),
    bracketed_paste=st.booleans(),
    focus_events=st.booleans(),
    mouse=st.sampled_from([0, 9, 1000, 1002, 1003]),
    mouse_encoding=st.sampled_from(["x10", "utf8", "sgr", "urxvt", "pixels"]),
    cell=st.none() | st.tuples(st.integers(1, 99), st.integers(1, 99)),
)


@given(part=_json | st.dictionaries(st.sampled_from(_members), _json, max_size=3), modes=modes_of_all_kinds)
def test_whatever_a_client_sends_is_refused_or_encoded(part: Any, modes: Modes) -> None:
    try:
        keyboard.check_part(part)
        sent, warnings = keyboard.encode(part, modes)
    except (keyboard.BadPart, keyboard.Inexpressible):
        return
    assert isinstance(sent, bytes)
    assert all(re.match(r"[a-z_]+: ", warning) for warning in warnings)


any_key = st.sampled_from(sorted(NAMES)) | st.characters(exclude_categories=["Cc", "Cs"])
any_mods = st.lists(st.sampled_from(sorted(MODIFIERS)), unique=True)


@given(key=any_key, mods=any_mods, modes=modes_of_all_kinds)
def test_an_accepted_key_is_never_nothing_and_no_modifier_is_lost(key: str, mods: list[str], modes: Modes) -> None:
    part = {"key": key, "mods": mods}
    keyboard.check_part(part)
    try:
        sent = keyboard.encode(part, modes)[0]
    except keyboard.Inexpressible as refused:
        for name in refused.suggestions:
            keyboard.encode(part_of(name.replace("super+", "super-")), modes)
        return
    assert sent
    # Fewer modifiers give other bytes, but for shift on a capital letter, which is there already.
    for dropped in mods:
        if dropped == "shift" and len(key) == 1 and key.isupper():
            continue
        fewer = {"key": key, "mods": [each for each in mods if each != dropped]}
        try:
            assert keyboard.encode(fewer, modes)[0] != sent
        except keyboard.Inexpressible:
            pass


def test_a_pause_has_no_bytes() -> None:
    keyboard.check_part({"pause": 100})
    assert keyboard.encode({"pause": 100}, PLAIN) == (b"", [])
