"""Terminal output for tests: pieces that mean something, and hypothesis strategies that put them together."""

from __future__ import annotations

from hypothesis import strategies as st

CONTROLS = [bytes((byte,)) for byte in (0, 5, 7, 8, 9, 10, 11, 12, 13, 14, 15, 0x18, 0x1A, 0x1B, 0x7F)]
STRAY = [bytes((byte,)) for byte in (0x80, 0x9B, 0x9C, 0xC2, 0xE2, 0xF0, 0xFF)]
ESCAPES = [b"\x1b" + tail for tail in (b"7", b"8", b"D", b"E", b"H", b"M", b"N", b"O", b"=", b">", b"c", b"n", b"o")]
ESCAPES += [
    b"\x1b#8",
    b"\x1b(0",
    b"\x1b(B",
    b"\x1b)0",
    b"\x1b-A",
    b'\x1b("?',
    b"\xc2\x84",
    b"\xc2\x85",
    b"\xc2\x8d",
    b"\xc2\x88",
]
TEXTS = [
    text.encode() for text in ("a", "hello world ", "x" * 100, "漢字", "é", "e\u0301", "👩\u200d👩", "─", "\u00ad")
]
SGR = [
    b"\x1b[%bm" % body for body in (b"", b"0", b"1", b"31", b"1;32", b"39", b"22", b"4:3", b"38;5;200", b"48;2;1;2;3")
]
SGR += [
    b"\x1b[%bm" % body
    for body in (b"38:2::9:8:7", b"58;5;3", b"38;5;999", b"0;7", b"7;0", b"38;2;4;5;6", b"38;9;1", b"24")
]

_SMALL = st.integers(0, 40)
_BIG = st.sampled_from([0, 1, 5, 1000, 99999, 10**9])
_NUMBER = st.one_of(_SMALL, _BIG)
_NUMBERS = st.lists(st.one_of(_NUMBER.map(str), st.just("")), max_size=4).map(";".join)

_CURSOR = st.builds("\x1b[{}{}".format, _NUMBERS, st.sampled_from(list("ABCDEFGHIJKLMPSTXZ@`abdefgrsuW")))
_MODE_NUMBERS = (
    *(1, 3, 4, 5, 6, 7, 9, 12, 20, 25, 40, 45, 47, 66, 67, 69, 1000, 1002, 1003, 1004, 1005, 1006, 1007, 1015),
    *(1016, 1047, 1048, 1049, 2004, 2027, 2031, 2048, 1234),
)
_MODE = st.lists(st.sampled_from(_MODE_NUMBERS), min_size=1, max_size=3).map(lambda ns: ";".join(map(str, ns)))
_MODES = st.builds("\x1b[{}{}{}".format, st.sampled_from(["?", "?", "?", ""]), _MODE, st.sampled_from(list("hhllsr")))
_KEYS = st.builds("\x1b[{}{}u".format, st.sampled_from("<=>"), _NUMBERS)
_OTHER = st.sampled_from(
    ["\x1b[!p", "\x1b[2 q", "\x1b[6 q", '\x1b[1"q', "\x1b[>4;2m", "\x1b[>4m", "\x1b[22;0t", "\x1b[23;0t", "\x1b[?5W"]
)
_OSC_TEXT = [
    "0;title",
    "1;icon",
    "2;Ünï\ncode",
    "7;file://h/p",
    "8;;http://x",
    "8;;",
    "9;4;1;50",
    "9;4;0",
    "9;note",
    "133;A",
]
_OSC_TEXT += [
    "133;D;1",
    "4;1;#ff0000;2;?",
    "10;#fff",
    "11;rgb:f/f/f",
    "10;?;?",
    "104",
    "110",
    "111",
    "22;hand",
    "777;notify;a;b",
]
_OSC = st.builds("\x1b]{}{}".format, st.sampled_from(_OSC_TEXT), st.sampled_from(["\x07", "\x1b\\", "\x9c"]))
QUERIES = [
    "\x1b[6n",
    "\x1b[?6n",
    "\x1b[5n",
    "\x1b[c",
    "\x1bZ",
    "\x1b[>c",
    "\x1b[=c",
    "\x1b[>q",
    "\x1b[?7$p",
    "\x1b[4$p",
    "\x1b[?u",
]
QUERIES += [
    "\x1b[?4m",
    "\x1b]4;1;?\x07",
    "\x1b]11;?\x1b\\",
    "\x1b[?996n",
    "\x1b[14t",
    "\x1b[18t",
    "\x1b[21t",
    "\x1bP+q544e\x1b\\",
]
QUERIES += ["\x1bP$qm\x1b\\", "\x1bP$qr\x1b\\", "\x1b[x", "\x1b[?1;1;0S"]

pieces = st.one_of(
    st.sampled_from(TEXTS + SGR + CONTROLS + ESCAPES + STRAY),
    _CURSOR.map(str.encode),
    _MODES.map(str.encode),
    _KEYS.map(str.encode),
    _OTHER.map(str.encode),
    _OSC.map(str.encode),
    st.sampled_from(QUERIES).map(str.encode),
    st.binary(max_size=4),
)
short = st.lists(pieces, max_size=25).map(b"".join)

_LINE = st.lists(st.sampled_from([*TEXTS, *SGR, b"\t", b"\b", b"\x07", b"\x1b[K", b"\r"]), max_size=6).map(b"".join)
_ENDS = st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b"\x0b"])


@st.composite
def stretches(draw: st.DrawFn) -> bytes:
    """Enough lines that it is worth to take them in bulk."""
    lines = draw(st.lists(st.tuples(_LINE, _ENDS).map(b"".join), min_size=1, max_size=8))
    return b"".join(lines) * draw(st.integers(1, 40))


long = st.lists(st.one_of(short, stretches()), min_size=1, max_size=4).map(b"".join)
