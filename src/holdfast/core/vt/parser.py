"""The one parser of terminal output: bytes in, whole tokens out, the same however the bytes were cut.

Everything that reads terminal output uses it. It knows where sequences begin and end, not what they mean. A token comes
out when its last byte has arrived. Until then its bytes are `pending` and `ground` stays at the first of them, so a
state derived from tokens is the state at `ground`.

Only the UTF-8 form of a C1 control counts (`C2 9B` is CSI): a raw 0x80-0x9F is text, like every other stray byte.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Union

    Chunk = Union[bytes, bytearray, memoryview]
    Step = tuple[int, int, bytes]

# A longer sequence is not kept: it is skipped to its end.
PENDING_MAX_BYTES = 4096
CSI_PARAMETERS_MAX = 32
CSI_DIGITS_MAX = 5
CSI_NUMBER_MAX = 99999

# The kinds of token. The first eight are also the groups of _STEP.
TEXT = 1  # whole printable characters, and bytes that are not UTF-8
CSI = 2
CONTROL = 3  # one byte of C0, or DEL
ESC = 4  # ESC, intermediates, final; also an encoded C1 that opens nothing
OSC = 5
DCS = 6
STRING = 7  # SOS, PM, APC
# A sequence that was cut off (CAN, SUB, ESC, an encoded C1) or is not well-formed. It has no effect. It must not be
# passed on either, because a terminal would swallow what comes next with it. `raw` is empty after a cut OVERLONG one.
INVALID = 8
# The first PENDING_MAX_BYTES of a longer sequence. REST follows, in pieces as it arrives, until a token of another kind
# comes.
OVERLONG = 9
REST = 10

# C0 inside CSI or ESC sequences is executed; CAN, SUB and ESC end them instead. DEL has no effect there.
_C0 = rb"\x00-\x17\x19\x1c-\x1f\x7f"
# Up to the end of a string, without backtracking into it.
_STRING_BODY = rb"[^\x18\x1a\x1b\xc2]*(?:\xc2(?![\x80-\x9f])[^\x18\x1a\x1b\xc2]*)*"
_OSC_BODY = _STRING_BODY.replace(rb"[^", rb"[^\x07")
_ST = rb"(?:\x1b\\|\xc2\x9c)"

_STEP = re.compile(
    rb"([\x20-\x7e\x80-\xc1\xc3-\xff]+(?:\xc2(?![\x80-\x9f])[\x20-\x7e\x80-\xc1\xc3-\xff]*)*"
    rb"|(?:\xc2(?![\x80-\x9f])[\x20-\x7e\x80-\xc1\xc3-\xff]*)+)"
    rb"|((?:\x1b\[|\xc2\x9b)[<-?]?[0-9:;]*[ -/]*[@-~])"
    rb"|([\x00-\x1a\x1c-\x1f\x7f])"
    rb"|(\x1b(?:[0-OQ-WYZ\\`-~]|[ -/]+[0-~])|\xc2[\x80-\x8f\x91-\x97\x99\x9a\x9c])"
    rb"|((?:\x1b\]|\xc2\x9d)" + _OSC_BODY + rb"(?:\x07|" + _ST + rb"))"
    rb"|((?:\x1bP|\xc2\x90)" + _STRING_BODY + _ST + rb")"
    rb"|((?:\x1b[X^_]|\xc2[\x98\x9e\x9f])" + _STRING_BODY + _ST + rb")"
    rb"|([\x1b\xc2])"
)

# The slow path, for what _STEP did not match whole. An opener may have controls between its two bytes.
_OPENER = re.compile(rb"\x1b[" + _C0 + rb"]*([\[\]PX^_])|\xc2([\x90\x98\x9b\x9d-\x9f])")
_C1_OPENERS = {b"\x90": b"P", b"\x98": b"X", b"\x9b": b"[", b"\x9d": b"]", b"\x9e": b"^", b"\x9f": b"_"}
_BODIES = {
    b"[": re.compile(rb"[" + _C0 + rb"\x20-\x3f]*"),
    b"]": re.compile(_OSC_BODY),
    b"P": re.compile(_STRING_BODY),
    b"X": re.compile(_STRING_BODY),
    b"^": re.compile(_STRING_BODY),
    b"_": re.compile(_STRING_BODY),
    b"": re.compile(rb"[" + _C0 + rb"\x20-\x2f]*"),
}
_KINDS = {b"[": CSI, b"]": OSC, b"P": DCS, b"X": STRING, b"^": STRING, b"_": STRING, b"": ESC}
_CONTROLS = re.compile(rb"[" + _C0 + rb"]")
_WELL_FORMED = re.compile(rb"(?:\x1b\[|\xc2\x9b)([<-?]?)([0-9:;]*)([ -/]*)([@-~])")
_DCS_HEAD = re.compile(rb"([<-?]?)([0-9:;]*)([ -/]*)([@-~])")

_CHARACTER = (
    rb"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xec\xee\xef][\x80-\xbf]{2}|\xed[\x80-\x9f][\x80-\xbf]"
    rb"|\xf0[\x90-\xbf][\x80-\xbf]{2}|[\xf1-\xf3][\x80-\xbf]{3}|\xf4[\x80-\x8f][\x80-\xbf]{2}"
)
_BEGUN = (
    rb"[\xc2-\xdf]|\xe0[\xa0-\xbf]?|[\xe1-\xec\xee\xef][\x80-\xbf]?|\xed[\x80-\x9f]?"
    rb"|\xf0(?:[\x90-\xbf][\x80-\xbf]?)?|[\xf1-\xf3][\x80-\xbf]{0,2}|\xf4(?:[\x80-\x8f][\x80-\xbf]?)?"
)
# What a decoder makes one character of: a valid one, the beginning of an incomplete one, a stray byte.
_ONE_CHARACTER = re.compile(rb"(" + _CHARACTER + rb")|(" + _BEGUN + rb")|[\x80-\xff]")
_UNFINISHED = re.compile(rb"(?:" + _BEGUN + rb")\Z")

_NO_BODY: tuple[int, ...] = ()


def unfinished(text: bytes) -> int:
    """How many bytes at the end of the text are the beginning of an incomplete UTF-8 character."""
    if not text or text[-1] < 0x80:
        return 0
    match = _UNFINISHED.search(text, max(0, len(text) - 3))
    return len(text) - match.start() if match is not None else 0


def split_csi(raw: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Prefix (one of `<=>?` or nothing), parameters as they are, intermediates, final."""
    match = _WELL_FORMED.match(raw)
    assert match is not None, raw
    prefix, body, intermediates, final = match.groups()
    return prefix, body, intermediates, final


def split_esc(raw: bytes) -> tuple[bytes, bytes]:
    """Intermediates and final; an encoded C1 has the final of its ESC form."""
    if raw[0] == 0xC2:
        return b"", bytes((raw[1] - 0x40,))
    return raw[1:-1], raw[-1:]


def split_string(raw: bytes) -> tuple[bytes, bytes]:
    """The text between the opener and the terminator, and the terminator."""
    terminator = raw[-1:] if raw[-1] == 7 else raw[-2:]
    return raw[2 : -len(terminator)], terminator


def split_dcs(raw: bytes) -> tuple[bytes, bytes, bytes, bytes, bytes, bytes]:
    """Prefix, parameters, intermediates, final, data, terminator. No final if the head is not well-formed."""
    body, terminator = split_string(raw)
    match = _DCS_HEAD.match(body)
    if match is None:
        return b"", b"", b"", b"", body, terminator
    prefix, parameters, intermediates, final = match.groups()
    return prefix, parameters, intermediates, final, body[match.end() :], terminator


def numbers(body: bytes) -> tuple[int, ...]:
    """The parameters of a CSI: 0 for an absent one, the first part of one with several (`4:3` is 4)."""
    if not body:
        return _NO_BODY
    return tuple(
        [number(part.partition(b":")[0]) for part in body.split(b";", CSI_PARAMETERS_MAX)[:CSI_PARAMETERS_MAX]]
    )


def number(digits: bytes) -> int:
    if len(digits) > CSI_DIGITS_MAX:
        digits = digits.lstrip(b"0")
        if len(digits) > CSI_DIGITS_MAX:
            return CSI_NUMBER_MAX
    return int(digits) if digits else 0


def opener(raw: bytes) -> bytes:
    """`[` `]` `P` `X` `^` `_` as after ESC, also for the encoded C1; empty for anything else."""
    match = _OPENER.match(raw)
    return b"" if match is None else match.group(1) or _C1_OPENERS[match.group(2)]


class Scanner:
    def __init__(self, offset: int = 0) -> None:
        # The offset of the next byte.
        self.offset = offset
        # The last offset outside any sequence and any character.
        self.ground = offset
        # The bytes between the two: at most PENDING_MAX_BYTES and three that may be the end. Empty for an overlong one.
        self.pending = b""
        # The opener of an overlong sequence that has not ended, and its last byte if that may begin the end.
        self._skipping: bytes | None = None
        self._held = b""

    @property
    def idle(self) -> bool:
        """Whether the next byte is in ground state, with nothing unfinished before it."""
        return self.ground == self.offset

    @property
    def half_character(self) -> bytes:
        """The beginning of an incomplete character: U+FFFD if nothing more comes."""
        return self.pending if unfinished(self.pending) == len(self.pending) else b""

    def pass_over(self, size: int) -> None:
        """Skip bytes that the caller knows to be whole and in ground state."""
        self.offset += size
        self.ground = self.offset

    def hold(self, half: bytes) -> None:
        """Take bytes that the caller knows to be the beginning of a character, in ground state."""
        self.pending = half
        self.offset += len(half)

    def steps(self, chunk: Chunk) -> Iterator[Step]:
        """(kind, offset, raw) of every token that the chunk completes. Controls inside a CSI or ESC sequence are not in
        its `raw`: they come before it as tokens of their own. Must be run to its end, because it changes the state."""
        data = chunk if type(chunk) is bytes else bytes(chunk)
        self.offset += len(data)
        at = 0
        if self._skipping is not None:
            data = self._held + data
            rest, at = self._skip(data)
            yield from rest
            if self._skipping is not None:
                return
        elif self.pending:
            data = self.pending + data
            self.pending = b""
        base = self.offset - len(data)
        size = len(data)
        while at < size:
            # The alternatives match every byte: each match begins where the last one ended.
            for match in _STEP.finditer(data, at):
                kind = match.lastindex
                raw = match[0]
                start = at
                at += len(raw)
                if kind == TEXT:
                    if at == size:
                        tail = unfinished(raw)
                        if tail:
                            self.pending = raw[-tail:]
                            raw = raw[:-tail]
                            if not raw:
                                break
                    yield TEXT, base + start, raw
                elif kind == INVALID:
                    steps, at = self._odd(data, start, base)
                    yield from steps
                    if at < 0:
                        return
                    break
                elif len(raw) > PENDING_MAX_BYTES:
                    yield from _overlong(raw, base + start)
                else:
                    yield kind, base + start, raw  # type: ignore[misc]
        self.ground = self.offset - len(self.pending)

    def _odd(self, data: bytes, start: int, base: int) -> tuple[list[Step], int]:
        """A sequence that is unfinished, cut, not well-formed or has controls inside: its steps and the index after it,
        or -1 if the data ends within it."""
        opener, end, state = _delimit(data, start)
        if state == _OPEN:
            if end - start <= PENDING_MAX_BYTES:
                self.pending = data[start:]
                self.ground = base + start
                return [], -1
            self.ground = base + start
            self._skipping = opener
            # What may be the end, or part of a character, is read again with the next byte.
            self._held = data[end:]
            return _overlong(data[start:end], base + start), -1
        raw = data[start:end]
        if len(raw) > PENDING_MAX_BYTES:
            pieces = _overlong(raw, base + start)
            if state == _CUT:
                pieces.append((INVALID, base + end, b""))
            return pieces, end
        steps: list[Step] = []
        if opener in (b"[", b""):
            steps = [(CONTROL, base + start + m.start(), m.group()) for m in _CONTROLS.finditer(raw) if m[0] != b"\x7f"]
            raw = _CONTROLS.sub(b"", raw)
        else:
            # Only between the two bytes of the opener: controls in the string are part of it.
            match = _OPENER.match(raw)
            assert match is not None
            if match.end() > 2:
                controls = raw[1 : match.end() - 1]
                steps = [(CONTROL, base + start + 1 + i, controls[i : i + 1]) for i in range(len(controls))]
                raw = b"\x1b" + raw[match.end() - 1 :]
        kind = _KINDS[opener]
        if state != _WHOLE or (kind == CSI and _WELL_FORMED.fullmatch(raw) is None):
            kind = INVALID
        steps.append((kind, base + start, raw))
        return steps, end

    def _skip(self, data: bytes) -> tuple[list[Step], int]:
        """Skip through an overlong sequence: its steps, and the index up to which the data belongs to it."""
        opener = self._skipping
        assert opener is not None
        base = self.offset - len(data)
        end, state = _end(data, 0, opener)
        steps: list[Step] = [(REST, base, data[:end])] if end else []
        self._held = data[end:] if state == _OPEN else b""
        if state != _OPEN:
            self._skipping = None
        if state == _CUT:
            steps.append((INVALID, base + end, b""))
        return steps, end


def _overlong(raw: bytes, offset: int) -> list[Step]:
    steps: list[Step] = [(OVERLONG, offset, raw[:PENDING_MAX_BYTES])]
    if len(raw) > PENDING_MAX_BYTES:
        steps.append((REST, offset + PENDING_MAX_BYTES, raw[PENDING_MAX_BYTES:]))
    return steps


# How a sequence ends: it is whole; it is invalid and its last byte belongs to it; it was cut by the beginning of
# another; its end has not arrived.
_WHOLE, _SPOILT, _CUT, _OPEN = range(4)


def _delimit(data: bytes, start: int) -> tuple[bytes, int, int]:
    """Opener, end and state of the sequence that begins at `start`."""
    match = _OPENER.match(data, start)
    if match is not None:
        which = match.group(1) or _C1_OPENERS[match.group(2)]
        return (which, *_end(data, match.end(), which))
    return (b"", *_end(data, start + 1, b""))


def _end(data: bytes, at: int, opener: bytes) -> tuple[int, int]:
    """Where the sequence ends whose body continues at `at`, and how. If open: up to where it is certain."""
    match = _BODIES[opener].match(data, at)
    assert match is not None
    end = match.end()
    if end == len(data):
        # The pattern takes a final C2 for part of a character; it may also begin the terminator.
        return (end - 1 if end > at and data[-1] == 0xC2 else end), _OPEN
    byte = data[end]
    if byte in (0x18, 0x1A):
        return end + 1, _SPOILT
    is_string = opener not in (b"[", b"")
    if byte == 7:
        return end + 1, _WHOLE
    if byte in (0x1B, 0xC2):
        if byte == 0x1B and not is_string:
            return end, _CUT
        if end + 1 == len(data):
            return end, _OPEN
        after = data[end + 1]
        if is_string and after == (0x5C if byte == 0x1B else 0x9C):
            return end + 2, _WHOLE
        if byte == 0x1B or 0x80 <= after <= 0x9F:
            return end, _CUT
    if byte < 0x80:
        return end + 1, _WHOLE
    character = _ONE_CHARACTER.match(data, end)
    assert character is not None
    if character.group(2) and character.end() == len(data):
        return end, _OPEN
    return character.end(), _SPOILT
