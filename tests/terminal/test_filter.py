"""What reaches the terminal of a client: text at once, no question, no side effect, however the output was cut."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Sequence

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core.vt.parser import PENDING_MAX_BYTES
from holdfast.terminal.filter import CANCEL, CLIPBOARD_BYTES, Filter
from holdfast.terminal.undo import Undo
from support.scale import scaled

QUESTIONS = [
    b"\x05",
    b"\x1bZ",
    b"\xc2\x9a",
    b"\x1b[6n",
    b"\x1b[?6n",
    b"\x1b[5n",
    b"\x1b[?996n",
    b"\x1b[?15n",
    b"\x1b[c",
    b"\x1b[0c",
    b"\x1b[>c",
    b"\x1b[=c",
    b"\x1b[>q",
    b"\x1b[>0q",
    b"\x1b[?2026$p",
    b"\x1b[4$p",
    b"\x1b[?u",
    b"\x1b[?4m",
    b"\x1b]4;1;?\x07",
    b"\x1b]4;1;?;2;?\x1b\\",
    b"\x1b]10;?\x1b\\",
    b"\x1b]010;?\x07",
    b"\x1b]11;?\x07",
    b"\x1b]12;?\xc2\x9c",
    b"\xc2\x9d10;?;?\x07",
    b"\x1b]21;foreground=?;cursor=?\x1b\\",
    b"\x1b]22;?__current__\x1b\\",
    b"\x1b]50;?\x07",
    b"\x1b]60\x1b\\",
    b"\x1b]99;i=1:p=?;\x1b\\",
    b"\x1b]1337;ReportCellSize\x07",
    b"\x1b]1337;Capabilities\x07",
    *(b"\x1b[%dt" % number for number in (11, 13, 14, 15, 16, 18, 19, 20, 21)),
    b"\x1bP+q544e\x1b\\",
    b"\x1bP$qm\x1b\\",
    b"\xc2\x90$q q\xc2\x9c",
    b"\x1bP@kitty-cmd{}\x1b\\",
    b"\x1b[x",
    b"\x1b[1x",
    b"\x1b[?1;1;0S",
    b"\x1b[1;1;1;1;10;10*y",
    b"\x1b[1$w",
    b"\x1b[1$u",
    b"\x1b[&u",
    b'\x1b["v',
    b"\x1b['|",
    b"\x1b[\x006n",
]
EFFECTS = [
    *(b"\x1b[%dt" % number for number in range(1, 11)),
    b"\x1b[4;600;800t",
    b"\x1b[8;24;80t",
    b"\x1b[24t",
    b"\x1b[5i",
    b"\x1b[?5i",
    b"\x1b[?3h",
    b"\x1b[?40l",
    b"\x1b[?2031h",
    b"\x1b[?2048h",
    b"\x1b[?3;2048r",
    b"\x1b]52;c;aGVsbG8=\x07",
    b"\x1b]052;c;aGVsbG8=\x07",
    b"\x1b]52;c;?\x07",
    b"\x1b]5522;type=write\x1b\\",
    b"\x1b_Ga=T,f=100;AAAA\x1b\\",
    b"\x1b]1337;File=inline=1:AAAA\x07",
    b"\x1b]1337;MultipartFile=inline=1\x07",
    b"\x1b]1337;Copy=:AAAA\x07",
]
# What would outlast the session, or reach further than the screen. Nothing could undo it.
REFUSED = [
    b"\x1bP1;1|17/68656c6c6f\x1b\\",  # DECUDK: a key types what the program wants
    b"\x1bP0|17/68656c6c6f0d\x1b\\",
    b"\xc2\x901;1|17/68656c6c6f\xc2\x9c",
    b"\x1bP0;1;0{ @????\x1b\\",  # DECDLD
    b"\x1bP1;0;0!z1b63\x1b\\",  # DECDMAC
    b"\x1bP1$t1;1\x1b\\",  # DECRSPS
    b"\x1bP+p544e=41\x1b\\",  # XTSETTCAP
    b"\x1bPtmux;anything\x1b\\",
    b"\x1b]50;#3\x07",
    b"\x1b]50;fixed\x1b\\",
    b"\x1b]050;fixed\x07",
    b"\x1b]1337;SetMark\x07",
    b"\x1b]1337;CurrentDir=/\x07",
    b"\x1b]1337;SetUserVar=a=YQ==\x07",
    b"\x1b]1337;ClearScrollback\x07",
    b"\x1b]1337;SetProfile=evil\x1b\\",
    b"\xc2\x9d1337;RequestAttention=fireworks\xc2\x9c",
    b"\x1b]3;_NET_WM_NAME=x\x07",
    b"\x1b]46;/tmp/log\x07",
    b'\x1b]51;["call","Tapi_x",[]]\x07',
    b"\x1b]5113;ac=send\x1b\\",
    b'\x1b]9;7;"cmd"\x1b\\',
    b"\x1b]9;3;title\x1b\\",
    b'\x1b[61"p',
    b"\x1b[132$|",
    b"\x1b[48*|",
    b"\x1b[1$}",
    b"\x1b G",
    b"\x1b%@",
]
NOTICES = [b"\x07", b"\x1b]9;done\x07", b"\x1b]99;;done\x1b\\", b"\x1b]777;notify;title;text\x1b\\"]
HARMLESS = [
    b"plain",
    "grün 漢字 🙂".encode(),
    b"\r\n\t\x08",
    b"\x1b[1;31m",
    b"\x1b[38:2::1:2:3m",
    b"\x1b[4:3m",
    b"\x1b[10;20H",
    b"\x1b[2J",
    b"\x1b[?1049h",
    b"\x1b[?2004l",
    b"\x1b[?1;25h",
    b"\x1b[s",
    b"\x1b[u",
    b"\x1b[>1u",
    b"\x1b[<u",
    b"\x1b[=5;1u",
    b"\x1b[>4;2m",
    b"\x1b[2 q",
    b"\x1b[!p",
    b"\x1b[3;10r",
    b"\x1b[?2026h",
    b"\x1b7",
    b"\x1b8",
    b"\x1b(0",
    b"\x1b#8",
    b"\x1bc",
    b"\x0e\x0f",
    b"\x1b]0;title\x07",
    b"\x1b]2;title\x1b\\",
    b"\x1b]7;file://host/dir\x1b\\",
    b"\x1b]8;id=1;https://example.org\x1b\\",
    b"\x1b]133;A\x07",
    b"\x1b]133;D;0\x1b\\",
    b"\x1b]9;4;1;50\x07",
    b"\x1b]4;1;rgb:ff/00/00\x1b\\",
    b"\x1b]104\x07",
    b"\x1b]11;#000000\x07",
    b"\x1b]22;pointer\x1b\\",
    b"\x1bPq#0;2;0;0;0~~\x1b\\",
    b"\x1b[1;2;3;4$x",
    b"\xc2\x9b1m",
    b"\xff\xbf",
    b"\xc2\xa0",
]


def run(
    stream: bytes, cuts: Sequence[int] = (), *, replay: bool = False, clipboard: bool = False, graphics: bool = False
) -> bytes:
    filter = Filter(clipboard, graphics)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    each = filter.replay if replay else filter.live
    return b"".join(each(stream[begin:end]) for begin, end in itertools.pairwise(edges))


@pytest.mark.covers("terminal:9")
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("replay", [False, True])
def test_a_question_never_reaches_the_terminal_wherever_it_is_cut(question: bytes, replay: bool) -> None:
    stream = b"before" + question + b"after"
    for cut in range(len(stream)):
        shown = run(stream, [cut], replay=replay).replace(b"\x00", b"")
        assert shown == b"beforeafter", cut


@pytest.mark.covers("terminal:15")
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("replay", [False, True])
def test_what_acts_on_the_window_the_printer_or_the_clipboard_is_removed(effect: bytes, replay: bool) -> None:
    assert run(b"a" + effect + b"b", replay=replay) == b"ab"


@pytest.mark.covers("found:47")
@pytest.mark.parametrize("graphics", [False, True])
def test_what_nothing_could_undo_does_not_pass_however_it_is_cut(graphics: bool) -> None:
    for sequence in REFUSED:
        stream = b"a" + sequence + b"b"
        for cut in range(len(stream)):
            assert run(stream, [cut], graphics=graphics) == b"ab", (sequence, cut)
            assert run(stream, [cut], graphics=graphics, replay=True) == b"ab", (sequence, cut)
        long = sequence[:-2] + b"x" * 2 * PENDING_MAX_BYTES + sequence[-2:]
        if sequence[:2] in (b"\x1bP", b"\x1b]"):
            assert run(b"a" + long + b"b") == b"ab", sequence


@pytest.mark.covers("found:47")
@pytest.mark.parametrize("opened", [b"", b"\x1b]0;title ", b"\x1b_note ", b"\x1b]2;" + b"A" * PENDING_MAX_BYTES])
def test_a_byte_of_c1_outside_a_character_does_not_pass_however_it_is_cut(opened: bytes) -> None:
    ended = b"\x1b\\" if opened else b""
    for byte in range(0x80, 0xA0):
        for before in (b"x", b"\xff", b"\xe2", b"\xe2\x9c", b"\xe0\x80", b"\xf0\x9f"):
            raw = before + bytes((byte,)) + b"6n" + "✔".encode()
            if before == b"\xe2\x9c":
                raw = before + b"x" + raw[2:]
            stream = opened + raw + ended
            whole = run(stream)
            assert stray(whole) == [], stream
            assert "✔".encode() in whole
            for cut in range(len(opened), len(stream)):
                assert run(stream, [cut]) == whole


def stray(data: bytes) -> list[str]:
    """Bytes of C1 that are no part of a character."""
    text = data.decode("utf-8", "surrogateescape")
    return [each for each in text if 0xDC80 <= ord(each) <= 0xDC9F]


@pytest.mark.covers("terminal:15")
@pytest.mark.parametrize("sequence", HARMLESS)
@pytest.mark.parametrize("replay", [False, True])
def test_everything_else_passes_as_it_is(sequence: bytes, replay: bool) -> None:
    stream = b"a" + sequence + b"b"
    for cut in range(len(stream)):
        assert run(stream, [cut], replay=replay) == stream, cut


@pytest.mark.covers("terminal:15")
@pytest.mark.parametrize("notice", NOTICES)
def test_a_notice_passes_live_and_is_silent_in_a_replay(notice: bytes) -> None:
    assert run(b"a" + notice + b"b") == b"a" + notice + b"b"
    assert run(b"a" + notice + b"b", replay=True) == b"ab"


@pytest.mark.covers("terminal:13")
@pytest.mark.parametrize("text", [b"row[3]1;hello", b"x[i]0; C:\\dir", b"[6n", b"[5n", b"]10;?", b"[5;1R"])
def test_text_that_looks_like_a_sequence_goes_out_at_once_and_whole(text: bytes) -> None:
    filter = Filter()
    for at in range(len(text)):
        assert filter.live(text[at : at + 1]) == text[at : at + 1]


@pytest.mark.parametrize("character", ["é", "漢", "🙂"])
def test_a_character_is_passed_on_with_its_last_byte(character: str) -> None:
    encoded = character.encode()
    filter = Filter()
    out = [filter.live(encoded[at : at + 1]) for at in range(len(encoded))]
    assert out == [*[b""] * (len(encoded) - 1), encoded]


@pytest.mark.parametrize(
    "begun, rest",
    [
        (b"\x1b]0;", b"title\x07"),
        (b"\x1b]8;", b";https://example.org\x1b\\"),
        (b"\x1bPq", b"#0;2;0;0;0\x1b\\"),
        (b"\x1b^", b"private\x1b\\"),
        (b"\x1b]9;9 ", b"minutes left\x07"),
        (b"\xc2\x9d2;", b"title\xc2\x9c"),
    ],
)
def test_a_string_passes_as_soon_as_its_head_allows_it(begun: bytes, rest: bytes) -> None:
    filter = Filter()
    assert filter.live(begun[:-1]) == b""
    assert filter.live(begun[-1:]) == begun
    assert filter.live(rest[:3]) == rest[:3]
    assert filter.live(rest[3:]) == rest[3:]


def test_a_held_sequence_passes_after_four_kibibytes() -> None:
    for begun in (b"\x1b[", b"\x1b]4;0;", b"\x1b]10;"):
        filter = Filter()
        stream = begun + b"1" * (PENDING_MAX_BYTES + 10)
        out = filter.live(stream)
        assert len(stream) - len(out) <= 4
        assert stream.startswith(out)


@pytest.mark.covers("terminal:14")
@pytest.mark.parametrize(
    "begun, mebibytes",
    [
        (b"\x1b]0;", 100),
        *(
            (begun, scaled(10, 100))
            for begun in (b"\x1b]52;c;", b"\x1b]777;notify;", b"\x1b_G", b"\x1b]4;1;", b"\x1bPq")
        ),
    ],
)
def test_a_string_without_end_costs_no_memory_and_what_follows_it_is_shown(begun: bytes, mebibytes: int) -> None:
    filter = Filter()
    block = b"x" * 65536
    tracemalloc.start()
    try:
        filter.live(begun)
        for _ in range(16 * mebibytes):
            filter.live(block)
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert held < 512 << 10
    assert filter.live(b"\x07\x1b\\after").endswith(b"after")


def test_part_of_a_question_is_removed_and_the_rest_stays() -> None:
    assert run(b"\x1b]4;1;red;2;?;3;blue\x07") == b"\x1b]4;1;red;3;blue\x07"
    assert run(b"\x1b]10;red;?;blue\x1b\\") == b"\x1b]10;red\x1b\\\x1b]12;blue\x1b\\"
    assert run(b"\x1b]21;foreground=red;cursor=?\x1b\\") == b"\x1b]21;foreground=red\x1b\\"
    assert run(b"\x1b[?25;3;2048h") == b"\x1b[?25h"


@pytest.mark.covers("terminal:15")
def test_the_clipboard_is_written_live_with_consent_alone() -> None:
    copy = b"\x1b]52;c;" + b"QUJD" * 4 + b"\x07"
    assert run(copy, clipboard=True) == copy
    assert run(copy, clipboard=True, replay=True) == b""
    assert run(b"\x1b]52;c;?\x07", clipboard=True) == b""
    assert run(b"\x1b]52;c;not base 64\x07", clipboard=True) == b""


def test_a_clipboard_up_to_its_bound_passes_and_a_larger_one_does_not() -> None:
    copy = b"\x1b]52;c;" + b"QUJD" * 8192 + b"\x1b\\"
    assert run(b"a" + copy + b"b", clipboard=True) == b"a" + copy + b"b"
    assert run(b"a" + copy + b"b", list(range(0, len(copy), 999)), clipboard=True) == b"a" + copy + b"b"
    large = b"\x1b]52;c;" + b"QUJD" * (CLIPBOARD_BYTES // 4) + b"\x1b\\"
    assert run(b"a" + large + b"b", clipboard=True) == b"ab"


def test_pictures_pass_when_they_were_asked_for() -> None:
    kitty = b"\x1b_Ga=T,f=100;" + b"A" * 9000 + b"\x1b\\"
    iterm = b"\x1b]1337;File=inline=1:" + b"A" * 9000 + b"\x07"
    assert run(kitty + iterm, graphics=True) == kitty + iterm
    assert run(b"a" + kitty + iterm + b"b") == b"ab"


def test_a_saved_title_comes_back_as_a_title() -> None:
    stream = b"\x1b]0;shell\x07\x1b[22;0t\x1b]2;editor\x07\x1b[23;0t\x1b[23;0t"
    assert run(stream) == b"\x1b]0;shell\x07\x1b]2;editor\x07\x1b]2;shell\x1b\\"
    assert run(b"\x1b[22;1t\x1b[23;1t") == b""


def test_titles_known_from_a_restore_are_brought_back() -> None:
    filter = Filter()
    filter.set_titles(b"editor", [b"shell"])
    assert filter.live(b"\x1b[23t") == b"\x1b]2;shell\x1b\\"


def test_a_string_that_is_cut_off_swallows_nothing() -> None:
    assert run(b"\x1b]0;tit\x1b[6nafter") == b"\x1b]0;tit" + CANCEL + b"after"
    assert run(b"\x1b]0;tit\x18after") == b"\x1b]0;tit\x18after"
    assert run(b"\x1b]52;c;AA\x1b[1mafter") == b"\x1b[1mafter"
    assert run(b"\x1b[12\x18after") == b"after"


def test_an_abandoned_string_is_ended() -> None:
    filter = Filter()
    assert filter.abandon() == b""
    filter.live(b"text \xe2\x82")
    assert filter.abandon() == b""
    filter.live(b"\xac\x1b[12")
    assert filter.abandon() == b""
    filter.live(b"m\x1b]0;ti")
    assert filter.abandon() == CANCEL
    filter = Filter()
    filter.live(b"\x1bPq" + b"~" * 10000)
    assert filter.abandon() == CANCEL


def test_passed_sequences_are_recorded_for_the_undo_and_removed_ones_are_not() -> None:
    undo = Undo()
    filter = Filter(undo=undo)
    filter.live(b"\x1b[?1049;3h\x1b[1mx\x1b[?25l\x1b]9;4;1;5\x07\x1b[?2031h")
    assert undo.undo_all(80) == b"\x1b[?1049l\x1b[?25h\x1b[m\x1b]9;4;0\x1b\\"


pieces = st.sampled_from([*QUESTIONS, *EFFECTS, *NOTICES, *HARMLESS, b"\x1b[22;0t", b"\x1b[23;0t"])
broken = st.sampled_from([*QUESTIONS, *EFFECTS, *HARMLESS]).flatmap(
    lambda whole: st.integers(0, len(whole)).map(lambda cut: whole[:cut])
)
long_strings = st.builds(
    lambda head, size, end: head + b"A" * size + end,
    st.sampled_from(
        [b"\x1b]0;", b"\x1b]52;c;", b"\x1b]4;1;", b"\x1b_G", b"\x1bPq", b"\x1b[", b"\x1b]1337;File=", b"\x1b\x05]0;"]
    ),
    st.sampled_from([PENDING_MAX_BYTES - 8, PENDING_MAX_BYTES, PENDING_MAX_BYTES + 9]),
    st.sampled_from([b"\x07", b"\x1b\\", b"\x18", b"\x1b[6n", b"\xc2\x9c", b""]),
)
controls = st.sampled_from(
    [
        b"\x1b",
        b"\x1b[",
        b"\x1b]",
        b"\x1bP",
        b"\x1b_",
        b"\xc2",
        b"\x18",
        b"\x1a",
        b"\x07",
        b"\x9b",
        b";",
        b"?",
        b"1",
        b"\x1b\\",
    ]
)
streams = st.lists(pieces | broken | controls | long_strings | st.binary(max_size=6), max_size=12).map(b"".join)


@pytest.mark.covers("terminal:1")
@given(streams, st.lists(st.integers(0, 6000), max_size=6), st.booleans(), st.booleans())
@example(b"\x1b_\x1b[6nx", [3], False, False)
@example(b"\x1b]60\x1b\\x", [4, 5], False, False)
@settings(max_examples=scaled(60, 300))
def test_splitting_never_changes_what_is_shown(stream: bytes, cuts: list[int], replay: bool, all: bool) -> None:
    whole = run(stream, replay=replay, clipboard=all, graphics=all)
    assert run(stream, cuts, replay=replay, clipboard=all, graphics=all) == whole


@given(streams.map(lambda stream: stream[:600]))
@example(b"\x1b]0;" + b"A" * PENDING_MAX_BYTES + b"\x07after")
@settings(max_examples=scaled(20, 60))
def test_single_bytes_show_the_same(stream: bytes) -> None:
    assert run(stream, list(range(len(stream)))) == run(stream)


@given(streams.map(lambda stream: stream[:2000]))
@example(b"\xc2\x05\x9b6n")
@settings(max_examples=scaled(20, 100))
def test_nothing_that_is_shown_asks_when_it_is_filtered_again(stream: bytes) -> None:
    once = run(stream + b"\x18.")
    assert run(once) == once


@given(st.text(max_size=200))
def test_text_is_never_held(text: str) -> None:
    filter = Filter()
    for character in (each for each in text if each.isprintable()):
        assert filter.live(character.encode()) == character.encode()
