"""The parser: what is a token, and that no cut of the bytes changes it."""

from __future__ import annotations

from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.vt.parser import (
    CONTROL,
    CSI,
    DCS,
    ESC,
    INVALID,
    OSC,
    OVERLONG,
    PENDING_MAX_BYTES,
    REST,
    STRING,
    TEXT,
    Scanner,
    numbers,
    opener,
    split_csi,
    split_dcs,
    split_esc,
    split_string,
)
from support.scale import scaled

Seen = list[tuple[int, int, bytes]]


class Token(NamedTuple):
    kind: int
    offset: int
    raw: bytes


def fed(scanner: Scanner, chunk: bytes | bytearray | memoryview) -> list[Token]:
    return [Token(*step) for step in scanner.steps(chunk)]


PIECES = (
    [
        bytes((byte,))
        for byte in (0, 7, 8, 9, 10, 13, 14, 0x18, 0x1A, 0x1B, 0x7F, 0x80, 0x9B, 0x9C, 0xC2, 0xE2, 0xF0, 0xFF)
    ]
    + [b"\x1b" + bytes((byte,)) for byte in b"[]PX^_\\c78(#=>DEHMNOZ"]
    + [b"\xc2" + bytes((byte,)) for byte in (0x84, 0x85, 0x90, 0x98, 0x9A, 0x9B, 0x9C, 0x9D, 0x9E, 0x9F, 0xA0, 0xBF)]
    + [b"0", b"12", b";", b":", b"?", b">", b"<", b"=", b" ", b"$", b"!", b"m", b"H", b"h", b"q", b"u", b"n", b"A" * 50]
    + ["é".encode(), "漢字".encode(), "👩‍👩".encode(), "e\u0301".encode(), b"52;c;", b"\x1b\\", b"\x1b[31m", b"\x1b[2J"]
)
streams = st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=6)), max_size=40).map(b"".join)


def joined(tokens: list[Token]) -> Seen:
    """Pieces of text, and of what is too long, put together: where they were cut is the one thing that may differ."""
    seen: Seen = []
    for token in tokens:
        last = seen[-1][0] if seen else 0
        if (token.kind == TEXT and last == TEXT) or (token.kind == REST and last == OVERLONG):
            kind, offset, raw = seen.pop()
            seen.append((kind, offset, raw + token.raw))
        else:
            seen.append((token.kind, token.offset, token.raw))
    return seen


def scan(*chunks: bytes) -> tuple[Seen, int, int, bytes]:
    scanner = Scanner()
    tokens = [token for chunk in chunks for token in fed(scanner, chunk)]
    return joined(tokens), scanner.offset, scanner.ground, scanner.pending


def one(data: bytes) -> Token:
    tokens = fed(Scanner(), data)
    assert len(tokens) == 1, tokens
    return tokens[0]


def parameters(data: bytes) -> tuple[int, ...]:
    return numbers(split_csi(one(data).raw)[1])


@pytest.mark.covers("terminal:1")
@given(streams)
@settings(max_examples=scaled(60, 300), deadline=None)
def test_any_stream_gives_the_same_tokens_however_it_is_cut(data: bytes) -> None:
    whole = scan(data)
    assert scan(*(data[i : i + 1] for i in range(len(data)))) == whole
    for at in range(1, len(data)):
        assert scan(data[:at], data[at:]) == whole


@given(streams, st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_a_sequence_about_the_cap_is_the_same_however_it_is_cut(tail: bytes, short: int) -> None:
    for begin in (b"\x1b]", b"\x1b[", b"\x1bP", b"\x1b_", b"\xc2\x9d"):
        data = begin + b"1" * (PENDING_MAX_BYTES - len(begin) - short) + tail + b"\x1b\\z"
        whole = scan(data)
        for at in (*range(PENDING_MAX_BYTES - 6, len(data)), 1, 2, 3):
            assert scan(data[:at], data[at:]) == whole
        assert scan(data[:4090], *(data[i : i + 1] for i in range(4090, len(data)))) == whole


@given(streams)
@settings(max_examples=scaled(60, 300), deadline=None)
def test_no_byte_is_lost_or_doubled(data: bytes) -> None:
    scanner = Scanner()
    raw = b"".join(token.raw for token in fed(scanner, data)) + scanner.pending
    assert sorted(raw.replace(b"\x7f", b"")) == sorted(data.replace(b"\x7f", b""))
    assert scanner.ground == len(data) - len(scanner.pending)


@given(streams)
@settings(max_examples=scaled(40, 200), deadline=None)
def test_from_a_ground_offset_on_a_new_scanner_sees_the_same(data: bytes) -> None:
    tokens, _, _, _ = scan(data)
    for at in range(1, len(data)):
        scanner = Scanner()
        before = fed(scanner, data[:at])
        behind = fed(Scanner(scanner.ground), data[scanner.ground :])
        assert joined(before + behind) == tokens


@given(streams)
@settings(max_examples=scaled(40, 200), deadline=None)
def test_text_holds_whole_characters(data: bytes) -> None:
    pieces = [fed(s, data[i : i + 1]) for s in (Scanner(),) for i in range(len(data))]
    text = [token.raw for tokens in pieces for token in tokens if token.kind == TEXT]
    assert "".join(raw.decode(errors="replace") for raw in text) == "".join(
        token.raw.decode(errors="replace") for token in fed(Scanner(), data) if token.kind == TEXT
    )


@pytest.mark.covers("terminal:16")
@pytest.mark.parametrize("character", ["é", "漢", "👩"])
def test_a_character_cut_between_reads_comes_out_whole_and_is_pending_until_then(character: str) -> None:
    data = character.encode()
    for at in range(1, len(data)):
        scanner = Scanner()
        assert fed(scanner, data[:at]) == []
        assert (scanner.pending, scanner.ground, scanner.offset) == (data[:at], 0, at)
        (token,) = fed(scanner, data[at:])
        assert (token.kind, token.offset, token.raw) == (TEXT, 0, data)
        assert scanner.idle


@pytest.mark.covers("terminal:16")
def test_stray_bytes_are_text_at_once() -> None:
    scanner = Scanner()
    for byte in (0xFF, 0x80, 0x9B, 0x9D, 0xC0, 0xC1, 0xF5):
        (token,) = fed(scanner, bytes((byte,)))
        assert (token.kind, token.raw) == (TEXT, bytes((byte,)))
        assert scanner.idle


@pytest.mark.parametrize("text", [b"row[3]1;hello", rb"x[i]0; C:\dir", b"[6n", b"[5n", b"]10;?"])
def test_what_looks_like_a_sequence_without_esc_is_text_at_once(text: bytes) -> None:
    scanner = Scanner()
    seen = b""
    for i in range(len(text)):
        (token,) = fed(scanner, text[i : i + 1])
        assert token.kind == TEXT
        seen += token.raw
        assert scanner.idle
    assert seen == text


def test_a_csi_gives_its_parts() -> None:
    token = one(b"\x1b[?12;;4:3 $q")
    assert token.kind == CSI
    assert split_csi(token.raw) == (b"?", b"12;;4:3", b" $", b"q")
    assert parameters(b"\x1b[?12;;4:3 $q") == (12, 0, 4)
    assert parameters(b"\xc2\x9b1m") == (1,)
    assert parameters(b"\x1b[m") == ()


def test_parameters_are_bounded() -> None:
    assert parameters(b"\x1b[000000000012;123456789m") == (12, 99999)
    assert parameters(b"\x1b[" + b"1;" * 1000 + b"m") == (1,) * 32


def test_an_esc_sequence_gives_its_parts() -> None:
    token = one(b"\x1b(0")
    assert (token.kind, *split_esc(token.raw)) == (ESC, b"(", b"0")
    token = one(b"\xc2\x85")
    assert (token.kind, *split_esc(token.raw)) == (ESC, b"", b"E")


@pytest.mark.parametrize("terminator", [b"\x07", b"\x1b\\", b"\xc2\x9c"])
@pytest.mark.parametrize("begin", [b"\x1b]", b"\xc2\x9d"])
def test_an_osc_gives_payload_and_terminator(begin: bytes, terminator: bytes) -> None:
    token = one(begin + "0;Ünï\u00a0".encode() + terminator)
    assert (token.kind, *split_string(token.raw)) == (OSC, "0;Ünï\u00a0".encode(), terminator)


def test_a_dcs_gives_its_parts_and_bel_does_not_end_it() -> None:
    token = one(b"\x1bP1;2$qm\x07\x1b\\")
    assert token.kind == DCS
    assert split_dcs(token.raw) == (b"", b"1;2", b"$", b"q", b"m\x07", b"\x1b\\")


@pytest.mark.parametrize("begin", [b"\x1bX", b"\x1b^", b"\x1b_", b"\xc2\x98", b"\xc2\x9e", b"\xc2\x9f"])
def test_other_strings_are_one_token(begin: bytes) -> None:
    token = one(begin + b"Gf=100;\x07\nAAAA\x1b\\")
    assert (token.kind, split_string(token.raw)[0]) == (STRING, b"Gf=100;\x07\nAAAA")
    assert opener(token.raw) in (b"X", b"^", b"_")


def test_controls_inside_a_csi_come_before_it() -> None:
    seen = [(t.kind, t.offset, t.raw) for t in fed(Scanner(), b"\x1b[1\n2\x07;\x7f3H")]
    assert seen == [(CONTROL, 3, b"\n"), (CONTROL, 5, b"\x07"), (CSI, 0, b"\x1b[12;3H")]


def test_a_control_inside_an_unfinished_csi_waits_for_its_end() -> None:
    scanner = Scanner()
    assert fed(scanner, b"a\x1b[1\n")[1:] == []
    assert scanner.ground == 1


@pytest.mark.parametrize("cutter", [b"\x18", b"\x1a"])
@pytest.mark.parametrize("begun", [b"\x1b", b"\x1b[3", b"\x1b]0;x", b"\x1bP$q", b"\x1b_G", b"\x1b("])
def test_can_and_sub_cut_a_sequence_off(begun: bytes, cutter: bytes) -> None:
    seen = [(t.kind, t.raw) for t in fed(Scanner(), begun + cutter + b"m")]
    assert seen == [(INVALID, begun + cutter), (TEXT, b"m")]


@pytest.mark.parametrize("begun", [b"\x1b", b"\x1b[3", b"\x1b]0;x", b"\x1bP$q", b"\x1b_G", b"\x1b("])
@pytest.mark.parametrize("next_one", [b"\x1b[6n", b"\xc2\x9b6n"])
def test_esc_inside_a_sequence_begins_another(begun: bytes, next_one: bytes) -> None:
    seen = [(t.kind, t.raw) for t in fed(Scanner(), begun + next_one)]
    assert seen == [(INVALID, begun), (CSI, next_one)]


@pytest.mark.parametrize(
    "bad", [b"\x1b[1?2h", b"\x1b[ 1h", b"\x1b[1>c", b"\x1b[?>c", b"\x1b[1\xe2\x82\xac", b"\x1b\xc3\xa9"]
)
def test_what_is_not_well_formed_is_invalid_to_its_end(bad: bytes) -> None:
    seen = [(t.kind, t.raw) for t in fed(Scanner(), bad + b"z")]
    assert seen == [(INVALID, bad), (TEXT, b"z")]


@pytest.mark.covers("terminal:14")
def test_an_osc_without_end_is_skipped_unbuffered() -> None:
    scanner = Scanner()
    chunk = b"x" * 65536
    kinds = [token.kind for token in fed(scanner, b"ok\x1b]52;c;" + chunk)]
    assert kinds == [TEXT, OVERLONG, REST]
    for _ in range(1600):
        (token,) = fed(scanner, chunk)
        assert token.kind == REST
        assert scanner.pending == b""
    assert scanner.ground == 2
    seen = [(t.kind, t.raw) for t in fed(scanner, b"\x1b\\shown")]
    assert seen == [(REST, b"\x1b\\"), (TEXT, b"shown")]
    assert scanner.idle
    assert scanner.offset == 2 + 7 + 1601 * 65536 + 7


def test_an_overlong_sequence_that_is_cut_says_so() -> None:
    tokens = fed(Scanner(), b"\x1b]" + b"x" * 5000 + b"\x1b[6n")
    assert [token.kind for token in tokens] == [OVERLONG, REST, INVALID, CSI]
    assert opener(tokens[0].raw) == b"]"
    assert tokens[2].raw == b""


def test_a_memoryview_and_a_bytearray_are_accepted() -> None:
    assert [t.raw for t in fed(Scanner(), memoryview(b"a\n"))] == [b"a", b"\n"]
    assert [t.raw for t in fed(Scanner(), bytearray(b"a\n"))] == [b"a", b"\n"]
