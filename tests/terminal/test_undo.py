"""What a terminal was put into is undone, and nothing else is touched."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.terminal.undo import Undo, everything

PAIRS = [
    (b"\x1b[?1049h", b"\x1b[?1049l"),
    (b"\x1b[?47h", b"\x1b[?47l"),
    (b"\x1b[?1000;1006h", b"\x1b[?1000l\x1b[?1006l"),
    (b"\x1b[?1003h", b"\x1b[?1003l"),
    (b"\x1b[?1004h", b"\x1b[?1004l"),
    (b"\x1b[?1007h", b"\x1b[?1007r"),
    (b"\x1b[?2004h", b"\x1b[?2004l"),
    (b"\x1b[?25l", b"\x1b[?25h"),
    (b"\x1b[?7l", b"\x1b[?7h"),
    (b"\x1b[?1h\x1b=", b"\x1b[?1l\x1b>"),
    (b"\x1b[?4242h", b"\x1b[?4242l"),
    (b"\x1b[4h", b"\x1b[4l"),
    (b"\x1b[>1u", b"\x1b[<1u"),
    (b"\x1b[>1u\x1b[>5u", b"\x1b[<2u"),
    (b"\x1b[=5;1u", b"\x1b[=0;1u"),
    (b"\x1b[>4;2m", b"\x1b[>4m"),
    (b"\x1b[6 q", b"\x1b[0 q"),
    (b"\x1b[3;10r", b"\x1b7\x1b[r\x1b8"),
    (b"\x1b(0", b"\x1b(B"),
    (b"\x0e", b"\x0f"),
    (b"\x1b[1;31m", b"\x1b[m"),
    (b"\x1b]4;1;red;7;blue\x07", b"\x1b]104;1;7\x1b\\"),
    (b"\x1b]11;#000000\x1b\\", b"\x1b]111\x1b\\"),
    (b"\x1b]10;red;blue\x07", b"\x1b]110\x1b\\\x1b]111\x1b\\"),
    (b"\x1b]8;;https://example.org\x07", b"\x1b]8;;\x1b\\"),
    (b"\x1b]9;4;1;50\x07", b"\x1b]9;4;0\x1b\\"),
    (b"\x1b]22;pointer\x07", b"\x1b]22;default\x1b\\"),
    (b"\x1b[?69h\x1b[5;20s", b"\x1b[?69l\x1b7\x1b[r\x1b8"),
    (b"\x1b[?5h", b"\x1b[?5l"),
    (b"\x1b[?2026h", b"\x1b[?2026l"),
    (b"\x1b[>4n", b"\x1b[>4m"),
    (b"\x1b[>1;2f", b"\x1b[>f"),
    (b"\x1bl", b"\x1bm"),
]
QUIET = [
    b"\x1b]21\x1b\\",
    b"\x1b]21;foreground=red\x1b\\\x1b]21;foreground=\x1b\\",
    b"text\r\n",
    b"\x1b[2J\x1b[H",
    b"\x1b[?25l\x1b[?25h",
    b"\x1b[?1049h\x1b[?1049l",
    b"\x1b[>1u\x1b[<u",
    b"\x1b[>4;2m\x1b[>4;0m",
    b"\x1b[2 q\x1b[0 q",
    b"\x1b[3;10r\x1b[r",
    b"\x1b(0\x1b(B",
    b"\x1b]9;4;1;5\x07\x1b]9;4;0\x07",
    b"\x1b]8;;https://example.org\x07\x1b]8;;\x07",
    b"\x1b]11;#000000\x07\x1b]111\x07",
    b"\x1b]4;1;red\x07\x1b]104\x07",
    b"\x1b[?1000h\x1b[31m\x1bc",
]


def undone(written: bytes) -> bytes:
    undo = Undo()
    assert undo.feed(written) == written
    return undo.undo_all(80)


@pytest.mark.covers("found:47")
@pytest.mark.parametrize("written, expected", PAIRS)
def test_what_was_set_is_undone_once(written: bytes, expected: bytes) -> None:
    undo = Undo()
    undo.feed(written)
    assert undo.undo_all(80) == expected
    assert undo.undo_all(80) == b""


@pytest.mark.covers("found:47")
@pytest.mark.parametrize("written", [b"\x1b[?5W", b"\x1b[5W", b"\x1b[3g", b"\x1bH"])
def test_tab_stops_are_undone_however_they_were_changed(written: bytes) -> None:
    assert undone(written) == undone(b"\x1bH") != b""


@pytest.mark.covers("found:47")
def test_all_ten_colors_of_the_window_are_undone() -> None:
    for number in range(10, 20):
        assert undone(b"\x1b]%d;red\x07" % number) == b"\x1b]%d\x1b\\" % (number + 100)


@pytest.mark.parametrize("written", QUIET)
def test_what_is_as_it_was_is_left_alone(written: bytes) -> None:
    assert undone(written) == b""


def test_each_screen_gets_its_own_keyboard_back() -> None:
    assert undone(b"\x1b[>1u\x1b[?1049h\x1b[>5u\x1b[>7u") == b"\x1b[<2u\x1b[?1049l\x1b[<1u"


def test_a_keyboard_that_was_set_before_is_set_again() -> None:
    undo = Undo(flags=5)
    undo.feed(b"\x1b[<9u\x1b[=1u")
    assert undo.undo_all(80) == b"\x1b[=5;1u"


def test_tab_stops_are_every_eight_columns_again() -> None:
    assert undone(b"\x1b[3g\x1bH") == b"\x1b7\x1b[3g\r" + b"\x1b[8C\x1bH" * 9 + b"\x1b8"


def test_modes_that_were_restored_from_somewhere_are_put_back() -> None:
    assert undone(b"\x1b[?25;1000r") == b"\x1b[?1000l\x1b[?25h"


def test_exact_keys_are_known() -> None:
    undo = Undo()
    assert not undo.exact_keys
    undo.feed(b"\x1b[>1u")
    assert undo.exact_keys
    undo.feed(b"\x1b[<u\x1b[>4;2m")
    assert undo.exact_keys
    undo.feed(b"\x1b[>4m")
    assert not undo.exact_keys


def test_everything_undoes_each_of_them() -> None:
    full = everything(80)
    for _, expected in PAIRS:
        for part in expected.replace(b"\x1b", b"\0\x1b").split(b"\0"):
            known = (
                b"\x1b[?1007r",
                b"\x1b[?4242l",
                b"\x1b[?1049l",
                b"\x1b[?47l",
                b"\x1b]104;1;7",
                b"\x1b[<1u",
                b"\x1b[<2u",
            )
            assert part in full or part in known, part


@given(
    st.lists(st.sampled_from([written for written, _ in PAIRS] + QUIET), max_size=8).map(b"".join), st.integers(0, 99)
)
def test_splitting_changes_nothing(written: bytes, cut: int) -> None:
    undo = Undo()
    undo.feed(written[:cut])
    undo.feed(written[cut:])
    assert undo.undo_all(80) == undone(written)


@given(st.binary(max_size=200))
def test_no_bytes_break_it_and_it_undoes_itself(written: bytes) -> None:
    undo = Undo()
    undo.feed(written + b"\x18\x18")
    undo.feed(undo.undo_all(80))
    # Tab stops are set to be as they were, and the pen is.
    again = undo.undo_all(80).replace(b"\x1b[m", b"").replace(undone(b"\x1bH"), b"")
    assert again in (b"", b"\x1b[=0;1u")
