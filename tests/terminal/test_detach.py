"""The detach key in what a person types: every other byte goes through as it came."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.wire import UNIT_MAX_BYTES
from holdfast.errors import BadArgument, BadKey
from holdfast.terminal.keys import (
    BELL,
    DETACH,
    HELP,
    HOLD_S,
    OBSERVE,
    PASTE_LOST_S,
    PASTE_S,
    REPAINT,
    DetachKey,
    DetachScanner,
    detach_key,
    pressed,
)

PREFIX = b"\x1d"
KITTY = b"\x1b[93;5u"
OTHER_KEYS = b"\x1b[27;5;93~"
FORMS = [PREFIX, KITTY, OTHER_KEYS]
COMMANDS = {b"d": DETACH, b"o": OBSERVE, b"r": REPAINT, b"?": HELP}


def scanner(key: str = "ctrl-]") -> DetachScanner:
    return DetachScanner(detach_key(key))


def feed(scan: DetachScanner, *pieces: bytes) -> list[bytes | str]:
    """All that came out; bytes that stand beside each other joined."""
    out: list[bytes | str] = []
    for each in itertools.chain.from_iterable(scan.feed(piece) for piece in pieces):
        if out and isinstance(out[-1], bytes) and isinstance(each, bytes):
            out[-1] += each
        else:
            out.append(each)
    return out


@pytest.mark.covers("terminal:35")
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("letter, command", COMMANDS.items())
def test_the_key_and_a_letter_are_a_command_and_nothing_is_sent(form: bytes, letter: bytes, command: str) -> None:
    assert feed(scanner(), b"before" + form + letter) == [b"before", command]


@pytest.mark.covers("terminal:35")
@pytest.mark.parametrize("form", FORMS)
def test_the_key_and_its_letter_split_over_reads_are_the_same_command(form: bytes) -> None:
    typed = form + b"d"
    for cut in range(1, len(typed)):
        scan = scanner()
        scan.holds_escape = True
        assert feed(scan, typed[:cut], typed[cut:]) == [DETACH], cut
    scan = scanner()
    scan.holds_escape = True
    assert feed(scan, *(typed[at : at + 1] for at in range(len(typed)))) == [DETACH]


@pytest.mark.covers("terminal:35")
@pytest.mark.parametrize("form", FORMS)
def test_the_key_twice_is_sent_once_as_it_was_typed(form: bytes) -> None:
    assert feed(scanner(), b"a" + form + form + b"b") == [b"a" + form + b"b"]


@pytest.mark.covers("terminal:35")
@pytest.mark.parametrize("other", [b"x", b"D", b"\x03", b"\xc3\xa9", b"\x1b[A", b"\x1bOP", b"\x1bx", b"\x1b[24~"])
def test_any_other_key_after_it_rings_and_is_not_sent(other: bytes) -> None:
    assert feed(scanner(), PREFIX + other + b"after") == [BELL, b"after"]
    for cut in range(1, len(other)):
        assert feed(scanner(), PREFIX + other[:cut], other[cut:] + b"after") == [BELL, b"after"]


def test_escape_alone_after_the_key_rings_when_nothing_follows() -> None:
    scan = scanner()
    assert scan.feed(PREFIX + b"\x1b") == []
    assert scan.wait_s == HOLD_S
    assert scan.release() == [BELL]
    assert scan.feed(b"x") == [b"x"]


@pytest.mark.covers("terminal:35")
def test_inside_a_paste_the_key_is_text() -> None:
    paste = b"\x1b[200~one" + PREFIX + b"d two" + KITTY + b"d\x1b[201~"
    assert scanner().feed(paste + PREFIX + b"d") == [paste, DETACH]


@pytest.mark.covers("terminal:35")
def test_with_no_key_everything_is_sent() -> None:
    typed = PREFIX + b"d" + KITTY + b"d" + OTHER_KEYS + b"?"
    assert feed(scanner("none"), typed) == [typed]


@pytest.mark.covers("terminal:35")
@pytest.mark.parametrize(
    "name, byte, code",
    [
        ("ctrl-a", b"\x01", 97),
        ("C-\\", b"\x1c", 92),
        ("^B", b"\x02", 98),
        ("Ctrl+]", b"\x1d", 93),
        ("C-^", b"\x1e", 94),
    ],
)
def test_another_key_may_be_chosen_by_its_name(name: str, byte: bytes, code: int) -> None:
    assert feed(scanner(name), byte + b"d") == [DETACH]
    assert feed(scanner(name), b"\x1b[%d;5ud" % code) == [DETACH]
    if byte != PREFIX:
        assert feed(scanner(name), PREFIX + b"d") == [PREFIX + b"d"]
    assert DetachKey(name).name == f"ctrl-{chr(code)}"


@pytest.mark.parametrize("name", ["d", "C-[", "F5", "C-M-a", "Enter", "ctrl-é", "text:x", "hex:1d", "FocusIn", "C-Up"])
def test_a_key_that_is_no_control_key_is_refused(name: str) -> None:
    with pytest.raises(BadArgument, match="not a control key"):
        detach_key(name)


@pytest.mark.parametrize("name", ["", "ctrl", "nonne", "C-foo"])
def test_a_key_that_is_invalid_is_refused(name: str) -> None:
    with pytest.raises(BadKey):
        detach_key(name)


def test_the_escape_key_is_not_held_back() -> None:
    scan = scanner()
    assert scan.feed(b"\x1b") == [b"\x1b"]
    assert scan.feed(b"x") == [b"x"]


def test_an_escape_that_went_out_and_begins_the_key_still_detaches() -> None:
    assert feed(scanner(), b"\x1b", b"[93;5u", b"d") == [b"\x1b", DETACH]


def test_where_programs_ask_for_exact_keys_an_escape_waits_for_its_rest() -> None:
    scan = scanner()
    scan.holds_escape = True
    assert scan.feed(b"\x1b") == []
    assert scan.wait_s == HOLD_S
    assert scan.release() == [b"\x1b"]
    assert scan.wait_s is None


def test_a_sequence_that_never_ends_is_released_as_it_is() -> None:
    scan = scanner()
    assert scan.feed(b"a\x1b[93") == [b"a"]
    assert scan.release() == [b"\x1b[93"]
    assert feed(scan, b";5ud") == [b";5ud"]


def test_sequences_of_other_keys_go_out_whole_and_at_once() -> None:
    typed = b"\x1b[A\x1bOP\x1b[1;5C\x1bx\x1b[<35;10;5M\x1b[M !!\xc3\xa9\x03\x04\x1a\x13\x1b[24~"
    assert scanner().feed(typed) == [typed]


def test_a_focus_report_is_a_unit_of_its_own() -> None:
    assert scanner().feed(b"ab\x1b[Icd\x1b[O") == [b"ab", b"\x1b[I", b"cd", b"\x1b[O"]


def test_a_paste_is_one_unit_however_it_was_read() -> None:
    paste = b"\x1b[200~" + b"line\r" * 40 + b"\x1b[201~"
    for cut in range(1, len(paste)):
        scan = scanner()
        scan.holds_escape = True
        assert scan.feed(b"a" + paste[:cut]) + scan.feed(paste[cut:] + b"b") == [b"a", paste, b"b"]


def test_a_paste_without_end_is_sent_after_a_while() -> None:
    scan = scanner()
    assert scan.feed(b"\x1b[200~text") == []
    assert scan.wait_s == PASTE_S
    assert scan.release() == [b"\x1b[200~text"]
    assert scan.feed(PREFIX + b"d") == []
    assert scan.release() == [PREFIX + b"d"]
    assert scan.wait_s == PASTE_LOST_S
    assert scan.release() == []
    assert scan.feed(PREFIX + b"d") == [DETACH]


def test_a_paste_that_no_frame_can_carry_goes_out_in_pieces() -> None:
    scan = scanner()
    paste = b"\x1b[200~" + b"x" * (UNIT_MAX_BYTES * 2) + b"\x1b[201~"
    units = [unit for at in range(0, len(paste), 65536) for unit in scan.feed(paste[at : at + 65536])]
    assert all(isinstance(unit, bytes) and len(unit) <= UNIT_MAX_BYTES for unit in units)
    assert b"".join(unit for unit in units if isinstance(unit, bytes)) == paste


def test_key_events_of_kitty_give_the_command_after_the_key() -> None:
    """All keys as sequences, with releases, modifier keys and alternate keys: pressing ctrl, ], then shift and /."""
    ctrl_down, ctrl_up = b"\x1b[57442;5u", b"\x1b[57442;1:3u"
    press, release = b"\x1b[93;5:1u", b"\x1b[93;5:3u"
    assert feed(scanner(), ctrl_down + press + release + ctrl_up + b"\x1b[100;1:1u") == [ctrl_down + ctrl_up, DETACH]
    assert feed(scanner(), press + b"\x1b[57441;2u\x1b[47:63;2u") == [b"\x1b[57441;2u", HELP]
    assert feed(scanner(), press + release + press) == [press]


def test_locks_do_not_change_the_key() -> None:
    assert feed(scanner(), b"\x1b[93;133ud") == [DETACH]
    assert feed(scanner(), b"\x1b[93;6ud") == [b"\x1b[93;6ud"]


def test_the_mouse_between_the_key_and_its_letter_is_passed_on() -> None:
    moved = b"\x1b[<35;10;5M"
    assert feed(scanner(), PREFIX + moved + b"d") == [moved, DETACH]


def test_input_after_a_detach_is_dropped() -> None:
    scan = scanner()
    assert scan.feed(PREFIX + b"dls\r\x1b[") == [DETACH]
    assert scan.wait_s is None


@pytest.mark.parametrize("report", [b"\x1b[<35;10;5M", b"\x1b[M !!", b"\x1b[35;10;5M", b"\x1b[I", b"\x1b[O"])
def test_reports_that_are_no_keys_are_removed_wherever_a_read_cuts_them(report: bytes) -> None:
    for cut in range(len(report) + 1):
        first, begun = pressed(b"a" + report[:cut])
        second, rest = pressed(begun + report[cut:] + b"b")
        assert (first + second, rest) == (b"ab", b"")
    assert pressed(b"\x1b[A\x1bx\x1b[200~y") == (b"\x1b[A\x1bxy", b"")


keyboard = st.lists(
    st.sampled_from([PREFIX, KITTY, OTHER_KEYS, b"d", b"?", b"x", b"\x1b[A", b"\x1b[200~", b"\x1b[201~", b"\xc3\xa9"])
    | st.binary(max_size=4),
    max_size=20,
).map(b"".join)


@given(keyboard, st.lists(st.integers(0, 200), max_size=6))
def test_splitting_changes_nothing(typed: bytes, cuts: list[int]) -> None:
    edges = [0, *sorted(min(cut, len(typed)) for cut in cuts), len(typed)]
    whole, pieces = scanner(), scanner()
    whole.holds_escape = pieces.holds_escape = True
    one = [*whole.feed(typed), *whole.release()]
    many = [out for begin, end in itertools.pairwise(edges) for out in pieces.feed(typed[begin:end])]
    many += pieces.release()
    if DETACH in one:
        one = one[: one.index(DETACH) + 1]
        many = many[: many.index(DETACH) + 1]
    assert _joined(one) == _joined(many)


@given(keyboard.filter(lambda typed: PREFIX not in typed and b"93" not in typed))
def test_without_the_key_every_byte_arrives(typed: bytes) -> None:
    scan = scanner()
    out = [*scan.feed(typed), *scan.release()]
    assert b"".join(each for each in out if isinstance(each, bytes)) == typed


def _joined(out: list[bytes | str]) -> list[bytes | str]:
    joined: list[bytes | str] = []
    for each in out:
        if joined and isinstance(joined[-1], bytes) and isinstance(each, bytes):
            joined[-1] += each
        else:
            joined.append(each)
    return joined
