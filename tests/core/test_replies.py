"""The replies to the queries of programs."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.vt.modes import ALTERNATE, DEFAULT, KNOWN, KNOWN_ANSI, MOUSE, SYNCHRONIZED
from holdfast.core.vt.tracker import Tracker

FOREGROUND, BACKGROUND = "rgb:e5e5/e5e5/e5e5", "rgb:0000/0000/0000"

# Question, answers, on a fresh terminal of 30 x 120.
TABLE: list[tuple[str, list[str]]] = [
    ("\x1b[6n", ["\x1b[1;1R"]),
    ("\x1b[?6n", ["\x1b[?1;1R"]),
    ("\x1b[5n", ["\x1b[0n"]),
    ("\x1b[c", ["\x1b[?62;22c"]),
    ("\x1b[0c", ["\x1b[?62;22c"]),
    ("\x1bZ", ["\x1b[?62;22c"]),
    ("\x9a", ["\x1b[?62;22c"]),
    ("\x1b[>c", ["\x1b[>0;276;0c"]),
    ("\x1b[>0c", ["\x1b[>0;276;0c"]),
    ("\x1b[=c", ["\x1bP!|00000000\x1b\\"]),
    ("\x1b[>q", ["\x1bP>|Holdfast(1.2.3)\x1b\\"]),
    ("\x1b[>0q", ["\x1bP>|Holdfast(1.2.3)\x1b\\"]),
    ("\x1b[?7$p", ["\x1b[?7;1$y"]),
    ("\x1b[?2004$p", ["\x1b[?2004;2$y"]),
    ("\x1b[?3$p", ["\x1b[?3;4$y"]),
    ("\x1b[?40$p", ["\x1b[?40;4$y"]),
    ("\x1b[?2027$p", ["\x1b[?2027;0$y"]),
    ("\x1b[?2048$p", ["\x1b[?2048;0$y"]),
    ("\x1b[?4711$p", ["\x1b[?4711;0$y"]),
    ("\x1b[4$p", ["\x1b[4;2$y"]),
    ("\x1b[12$p", ["\x1b[12;0$y"]),
    ("\x1b[?u", ["\x1b[?0u"]),
    ("\x1b[?4m", ["\x1b[>4;0m"]),
    ("\x1b]4;1;?\x1b\\", ["\x1b]4;1;rgb:cdcd/0000/0000\x1b\\"]),
    ("\x1b]4;0;?;255;?\x07", ["\x1b]4;0;rgb:0000/0000/0000\x07", "\x1b]4;255;rgb:eeee/eeee/eeee\x07"]),
    ("\x1b]4;16;?;17;?\x9c", ["\x1b]4;16;rgb:0000/0000/0000\x1b\\", "\x1b]4;17;rgb:0000/0000/5f5f\x1b\\"]),
    ("\x1b]10;?\x07", [f"\x1b]10;{FOREGROUND}\x07"]),
    ("\x1b]11;?\x1b\\", [f"\x1b]11;{BACKGROUND}\x1b\\"]),
    ("\x1b]12;?\x9c", [f"\x1b]12;{FOREGROUND}\x1b\\"]),
    ("\x1b]10;?;?;?\x07", [f"\x1b]10;{FOREGROUND}\x07", f"\x1b]11;{BACKGROUND}\x07", f"\x1b]12;{FOREGROUND}\x07"]),
    ("\x1b[?996n", ["\x1b[?997;1n"]),
    ("\x1b[14t", ["\x1b[4;480;960t"]),
    ("\x1b[15t", ["\x1b[5;480;960t"]),
    ("\x1b[16t", ["\x1b[6;16;8t"]),
    ("\x1b[18t", ["\x1b[8;30;120t"]),
    ("\x1b[19t", ["\x1b[9;30;120t"]),
    ("\x1b[11t", ["\x1b[1t"]),
    ("\x1b[13t", ["\x1b[3;0;0t"]),
    ("\x1b[20t", ["\x1b]L\x1b\\"]),
    ("\x1b[21t", ["\x1b]l\x1b\\"]),
    ("\x1bP+q544E\x1b\\", ["\x1bP1+r544E=787465726D2D323536636F6C6F72\x1b\\"]),
    (
        "\x1bP+q436f;636F6C6F7273;524742;7878;zz\x1b\\",
        [
            "\x1bP1+r436f=323536\x1b\\",
            "\x1bP1+r636F6C6F7273=323536\x1b\\",
            "\x1bP1+r524742=382F382F38\x1b\\",
            "\x1bP0+r7878\x1b\\",
            "\x1bP0+r\x1b\\",
        ],
    ),
    ("\x1bP$qm\x1b\\", ["\x1bP1$r0m\x1b\\"]),
    ("\x1bP$q q\x1b\\", ["\x1bP1$r0 q\x1b\\"]),
    ("\x1bP$qr\x1b\\", ["\x1bP1$r1;30r\x1b\\"]),
    ("\x1bP$qs\x9c", ["\x1bP1$r1;120s\x1b\\"]),
    ('\x1bP$q"p\x1b\\', ['\x1bP1$r62;1"p\x1b\\']),
    ('\x1bP$q"q\x1b\\', ['\x1bP1$r0"q\x1b\\']),
    ("\x1bP$qz\x1b\\", ["\x1bP0$r\x1b\\"]),
    ("\x1b[x", ["\x1b[2;1;1;128;128;1;0x"]),
    ("\x1b[0x", ["\x1b[2;1;1;128;128;1;0x"]),
    ("\x1b[1x", ["\x1b[3;1;1;128;128;1;0x"]),
    ("\x1b[?1;1;0S", ["\x1b[?1;3;0S"]),
]

UNANSWERED = [
    *("\x05", "\x1b[?15n", "\x1b[?25n", "\x1b[?26n", "\x1b[?53n", "\x1b[?62n", "\x1b[?63;1n", "\x1b[?75n"),
    *(
        "\x1b[1;1;1;1;1;1*y",
        "\x1b[1$w",
        "\x1b[2$w",
        "\x1b[1$u",
        "\x1b[0&u",
        '\x1b[1"v',
        "\x1b['w",
        "\x1b[2x",
        "\x1b[1c",
    ),
    *("\x1b]21;foreground=?\x07", "\x1b]52;c;?\x07", "\x1b]99;i=1:p=?;\x1b\\", "\x1b]1337;ReportCellSize\x07"),
    *(
        "\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\",
        "\x1b]13;?\x07",
        "\x1b]19;?\x07",
        "\x1b]4;256;?\x07",
        "\x1b]5;0;?\x07",
    ),
    *(
        "\x1b[?6",
        "[6n",
        "\x1b[6\x18n",
        "\x1b[?1?6n",
        "\x1bP$qm\x07",
        "\x1b]10;?\x1b[m",
        "\x1b[1;2;3t",
        "\x1b[?S\x18"[:-3],
    ),
]


def tracker(**options: Any) -> Tracker:
    return Tracker(30, 120, version="1.2.3", **options)


def ask(one: Tracker, question: str) -> list[str]:
    one.feed(question.encode())
    return [reply.decode() for reply in one.take_replies()]


@pytest.mark.parametrize("question, answers", TABLE)
def test_a_question_has_its_answer(question: str, answers: list[str]) -> None:
    assert ask(tracker(), question) == answers


@pytest.mark.covers("terminal:7")
@pytest.mark.parametrize("question, answers", TABLE)
def test_a_question_split_at_every_byte_is_answered_once_and_in_order(question: str, answers: list[str]) -> None:
    data = f"\x1b[5n{question}\x1b[5n".encode()
    expected = [reply.encode() for reply in ("\x1b[0n", *answers, "\x1b[0n")]
    for at in range(len(data) + 1):
        one = tracker()
        one.feed(data[:at])
        replies = one.take_replies()
        one.feed(data[at:])
        assert replies + one.take_replies() == expected
    one = tracker()
    for i in range(len(data)):
        one.feed(data[i : i + 1])
    assert one.take_replies() == expected


@pytest.mark.parametrize("question", UNANSWERED)
def test_other_questions_get_no_answer(question: str) -> None:
    assert ask(tracker(), question) == []


@pytest.mark.covers("terminal:6")
def test_two_position_reports_with_text_between_give_two_positions() -> None:
    assert ask(tracker(), "A\x1b[6nB\x1b[6n") == ["\x1b[1;2R", "\x1b[1;3R"]


@pytest.mark.covers("terminal:6")
def test_beyond_the_corner_the_position_is_the_size() -> None:
    assert ask(tracker(), "\x1b[999;999H\x1b[6n") == ["\x1b[30;120R"]


def test_a_pending_wrap_is_reported_as_the_last_column() -> None:
    assert ask(tracker(), "x" * 120 + "\x1b[6ny\x1b[6n") == ["\x1b[1;120R", "\x1b[2;2R"]


def test_in_origin_mode_positions_count_from_the_margins() -> None:
    assert ask(tracker(), "\x1b[5;20r\x1b[?69h\x1b[3;80s\x1b[?6h\x1b[2;4H\x1b[6n\x1b[?6n") == [
        "\x1b[2;4R",
        "\x1b[?2;4R",
    ]


def test_the_clipboard_is_named_only_where_it_was_opted_in() -> None:
    assert ask(tracker(clipboard=True), "\x1b[c\x1bZ") == ["\x1b[?62;22;52c"] * 2


def test_a_title_is_never_reported_back() -> None:
    assert ask(tracker(), "\x1b]0;$(reboot)\x07\x1b[20t\x1b[21t") == ["\x1b]L\x1b\\", "\x1b]l\x1b\\"]


def test_settings_are_reported_as_they_are() -> None:
    one = tracker()
    ask(one, '\x1b[1;4:3;38;5;208;48;2;1;2;3;58;5;9m\x1b[4 q\x1b[3;20r\x1b[?69h\x1b[5;60s\x1b[1"q')
    asked = "".join(f"\x1bP$q{what}\x1b\\" for what in ("m", " q", "r", "s", '"q'))
    values = ("0;1;4:3;38:5:208;48:2::1:2:3;58:5:9m", "4 q", "3;20r", "5;60s", '1"q')
    assert ask(one, asked) == [f"\x1bP1$r{value}\x1b\\" for value in values]


def test_pixels_are_those_of_the_client_that_sizes() -> None:
    one = tracker()
    one.cell = (20, 10)
    assert ask(one, "\x1b[14t\x1b[16t") == ["\x1b[4;600;1200t", "\x1b[6;20;10t"]


def test_the_terminal_name_is_that_of_the_session() -> None:
    assert ask(tracker(term="foot"), "\x1bP+q544e\x1b\\") == ["\x1bP1+r544e=666F6F74\x1b\\"]


# Colours.


def colors(one: Tracker) -> tuple[str, str]:
    foreground, background = ask(one, "\x1b]10;?;?\x07")
    return foreground[5:-1], background[5:-1]


@pytest.mark.covers("terminal:11")
def test_colours_follow_application_spec_client_environment_default() -> None:
    assert colors(tracker()) == (FOREGROUND, BACKGROUND)
    environment = {"colorfgbg": "4;default;15"}
    assert colors(tracker(**environment)) == ("rgb:0000/0000/eeee", "rgb:ffff/ffff/ffff")
    one = tracker(**environment)
    one.client_colors((1, 2, 3), (4, 5, 6))
    assert colors(one) == ("rgb:0101/0202/0303", "rgb:0404/0505/0606")
    one = tracker(colors={"foreground": "#aabbcc", "background": [7, 8, 9]}, **environment)
    one.client_colors((1, 2, 3), (4, 5, 6))
    assert colors(one) == ("rgb:aaaa/bbbb/cccc", "rgb:0707/0808/0909")
    ask(one, "\x1b]10;rgb:1/22/333\x07\x1b]11;#123\x07")
    assert colors(one) == ("rgb:1111/2222/3333", "rgb:1000/2000/3000")
    ask(one, "\x1b]110\x07\x1b]111\x07")
    assert colors(one) == ("rgb:aaaa/bbbb/cccc", "rgb:0707/0808/0909")


@pytest.mark.covers("terminal:11")
def test_a_client_that_knows_one_colour_leaves_the_other_as_it_was() -> None:
    one = tracker()
    one.client_colors((1, 1, 1), (2, 2, 2))
    one.client_colors(None, (3, 3, 3))
    assert colors(one) == ("rgb:0101/0101/0101", "rgb:0303/0303/0303")


@pytest.mark.parametrize("nonsense", ["", "15", "x;y", "300;-1", ";"])
def test_an_environment_that_makes_no_sense_is_ignored(nonsense: str) -> None:
    assert colors(tracker(colorfgbg=nonsense)) == (FOREGROUND, BACKGROUND)


@pytest.mark.covers("terminal:11")
@pytest.mark.parametrize("asked, answered", [("\x07", "\x07"), ("\x1b\\", "\x1b\\"), ("\x9c", "\x1b\\")])
def test_the_terminator_is_mirrored_in_seven_bits(asked: str, answered: str) -> None:
    for number in ("10", "11", "12", "4;7"):
        (reply,) = ask(tracker(), f"\x1b]{number};?{asked}")
        assert reply.endswith(answered)
        assert reply.isascii()


def test_the_palette_is_reported_as_set_and_reset() -> None:
    one = tracker()
    ask(one, "\x1b]4;1;#ffffff;2;rgb:12/34/56\x07")
    assert ask(one, "\x1b]4;2;?\x07") == ["\x1b]4;2;rgb:1212/3434/5656\x07"]
    ask(one, "\x1b]104;2\x07")
    assert ask(one, "\x1b]4;2;?;1;?\x07") == ["\x1b]4;2;rgb:0000/cdcd/0000\x07", "\x1b]4;1;rgb:ffff/ffff/ffff\x07"]
    ask(one, "\x1b]104\x07")
    assert ask(one, "\x1b]4;1;?\x07") == ["\x1b]4;1;rgb:cdcd/0000/0000\x07"]


def test_a_query_after_a_setting_in_one_sequence_reports_that_setting() -> None:
    assert ask(tracker(), "\x1b]4;1;#010203;1;?\x07") == ["\x1b]4;1;rgb:0101/0202/0303\x07"]


def test_the_colour_scheme_is_reported_when_it_changes_if_that_was_asked_for() -> None:
    one = tracker()
    assert ask(one, "\x1b]11;#ffffff\x07") == []
    assert ask(one, "\x1b[?996n") == ["\x1b[?997;2n"]
    assert ask(one, "\x1b[?2031h\x1b]11;#eeeeee\x07") == []
    assert ask(one, "\x1b]111\x07") == ["\x1b[?997;1n"]
    one.client_colors((0, 0, 0), (255, 255, 255))
    assert one.take_replies() == [b"\x1b[?997;2n"]


# Modes.

FLAGS = sorted(KNOWN - {SYNCHRONIZED})


def mode(one: Tracker, number: int) -> str:
    (reply,) = ask(one, f"\x1b[?{number}$p")
    return reply.removeprefix(f"\x1b[?{number};").removesuffix("$y")


@pytest.mark.covers("terminal:10")
@pytest.mark.parametrize("number", sorted(KNOWN))
def test_a_mode_is_reported_after_set_and_reset(number: int) -> None:
    one = tracker()
    assert mode(one, number) == ("1" if number in DEFAULT else "2")
    ask(one, f"\x1b[?{number}h")
    assert mode(one, number) == "1"
    ask(one, f"\x1b[?{number}l")
    assert mode(one, number) == "2"


@pytest.mark.covers("terminal:10")
@pytest.mark.parametrize("number", FLAGS)
@pytest.mark.parametrize("saved", "hl")
def test_a_mode_is_reported_after_save_and_restore(number: int, saved: str) -> None:
    one = tracker()
    other = "l" if saved == "h" else "h"
    ask(one, f"\x1b[?{number}{saved}\x1b[?{number}s\x1b[?{number}{other}")
    assert mode(one, number) == ("1" if other == "h" else "2")
    ask(one, f"\x1b[?{number}r")
    assert mode(one, number) == ("1" if saved == "h" else "2")


@pytest.mark.covers("terminal:10")
@pytest.mark.parametrize("number", FLAGS)
def test_a_mode_is_reported_after_a_soft_reset(number: int) -> None:
    one = tracker()
    before = "l" if number in DEFAULT else "h"
    ask(one, f"\x1b[?{number}{before}\x1b[!p")
    reset = {1: "2", 6: "2", 7: "1", 25: "1", 45: "2", 66: "2", 69: "2"}
    assert mode(one, number) == reset.get(number, "1")


@pytest.mark.covers("terminal:10")
@pytest.mark.parametrize("number", sorted(KNOWN))
def test_a_mode_is_reported_after_a_full_reset(number: int) -> None:
    one = tracker()
    before = "l" if number in DEFAULT else "h"
    ask(one, f"\x1b[?{number}{before}\x1bc")
    assert mode(one, number) == ("1" if number in DEFAULT else "2")


@pytest.mark.covers("terminal:10")
@pytest.mark.parametrize("number", sorted(KNOWN_ANSI))
def test_an_ansi_mode_is_reported(number: int) -> None:
    one = tracker()
    for change, value in (("h", 1), ("l", 2)):
        assert ask(one, f"\x1b[{number}{change}\x1b[{number}$p") == [f"\x1b[{number};{value}$y"]
    assert ask(one, f"\x1b[{number}h\x1bc\x1b[{number}$p") == [f"\x1b[{number};2$y"]
    assert ask(one, "\x1b[4h\x1b[!p\x1b[4$p") == ["\x1b[4;2$y"]


def test_refused_modes_are_never_set() -> None:
    one = tracker()
    for number, value in ((3, "4"), (40, "4"), (2027, "0"), (2048, "0")):
        ask(one, f"\x1b[?{number}h")
        assert mode(one, number) == value
    assert one.snapshot()["modes"]["unknown"] == {}


@pytest.mark.parametrize("number", MOUSE)
def test_one_mouse_mode_replaces_another(number: int) -> None:
    one = tracker()
    ask(one, "".join(f"\x1b[?{each}h" for each in MOUSE) + f"\x1b[?{number}h")
    assert [each for each in MOUSE if mode(one, each) == "1"] == [number]
    assert one.mouse == number


@pytest.mark.parametrize("number", ALTERNATE)
def test_all_modes_of_the_alternate_screen_report_where_one_is(number: int) -> None:
    one = tracker()
    ask(one, f"\x1b[?{number}h")
    assert [mode(one, each) for each in ALTERNATE] == ["1"] * 3


def test_an_unfinished_update_ends_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("holdfast.core.vt.modes.monotonic", lambda: now)
    one = tracker()
    ask(one, "\x1b[?2026h")
    now = 100.9
    assert one.sync_open
    assert mode(one, SYNCHRONIZED) == "1"
    now = 101.1
    assert not one.sync_open
    assert mode(one, SYNCHRONIZED) == "2"


# Keys.


def test_the_kitty_keyboard_has_a_stack_for_each_screen() -> None:
    one = tracker()
    assert ask(one, "\x1b[>5u\x1b[?u") == ["\x1b[?5u"]
    assert ask(one, "\x1b[=2;2u\x1b[?u") == ["\x1b[?7u"]
    assert ask(one, "\x1b[=1;3u\x1b[?u") == ["\x1b[?6u"]
    assert ask(one, "\x1b[=8u\x1b[?u") == ["\x1b[?8u"]
    assert ask(one, "\x1b[?1049h\x1b[?u\x1b[>1u\x1b[?u") == ["\x1b[?0u", "\x1b[?1u"]
    assert ask(one, "\x1b[?1049l\x1b[?u") == ["\x1b[?8u"]
    assert ask(one, "\x1b[<u\x1b[?u") == ["\x1b[?0u"]
    assert ask(one, "\x1b[?1049h\x1b[?u\x1b[<99u\x1b[?u") == ["\x1b[?1u", "\x1b[?0u"]


def test_the_kitty_stack_is_bounded() -> None:
    one = tracker()
    ask(one, "".join(f"\x1b[>{n % 32}u" for n in range(1000)))
    assert len(one.snapshot()["keys"]["kitty"][0]) == 17
    assert ask(one, "\x1b[<16u\x1b[?u") == [f"\x1b[?{983 % 32}u"]


def test_modify_other_keys_is_set_and_reset() -> None:
    one = tracker()
    assert ask(one, "\x1b[>4;2m\x1b[?4m") == ["\x1b[>4;2m"]
    assert ask(one, "\x1b[>4m\x1b[?4m") == ["\x1b[>4;0m"]
    assert ask(one, "\x1b[>4;1m\x1b[>1;2m\x1b[?4m") == ["\x1b[>4;1m"]
    assert ask(one, "\x1b[>4n\x1b[?4m") == ["\x1b[>4;0m"]
