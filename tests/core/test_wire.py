"""Frames: the same bytes give the same frames however they are cut, and nothing a peer sends can hurt us."""

from __future__ import annotations

import itertools
import json
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core import wire

Frames = list[dict[str, Any] | tuple[int, bytes]]

texts = st.text(max_size=40)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
messages = st.builds(lambda word, rest: {**rest, "type": word}, texts, st.dictionaries(texts, values, max_size=5))
chunks = st.tuples(st.integers(0, 2**64 - 1), st.binary(max_size=200))
sequences = st.lists(messages | chunks, max_size=6)


def encode(frames: Frames) -> bytes:
    return b"".join(wire.control(f) if isinstance(f, dict) else wire.data(*f) for f in frames)


def decode(stream: bytes, cuts: list[int]) -> tuple[Frames, str | None]:
    """All frames of the stream fed in these pieces, and why it broke off."""
    decoder = wire.Decoder()
    found: Frames = []
    edges = [0, *sorted(cuts), len(stream)]
    for begin, end in itertools.pairwise(edges):
        try:
            found += decoder.feed(stream[begin:end])
        except wire.BadFrame as problem:
            return found + problem.frames, str(problem)
    return found, None


def raw(kind: int, payload: bytes, length: int | None = None) -> bytes:
    return struct.pack(">IB", len(payload) + 1 if length is None else length, kind) + payload


def nested(depth: int, opening: str = "[", closing: str = "]") -> bytes:
    """A control frame whose object and the lists in it are `depth` deep together."""
    lists = depth - 1
    return raw(wire.CONTROL, f'{{"type":"x","v":{opening * lists}{closing * lists}}}'.encode())


@given(sequences)
def test_frames_fed_whole_come_out_as_they_were(frames: Frames) -> None:
    assert decode(encode(frames), []) == (frames, None)


@given(sequences, st.data())
def test_frames_cut_anywhere_come_out_the_same(frames: Frames, data: st.DataObject) -> None:
    stream = encode(frames)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    assert decode(stream, cuts) == (frames, None)


@given(sequences)
def test_frames_fed_byte_by_byte_come_out_the_same(frames: Frames) -> None:
    stream = encode(frames)
    assert decode(stream, list(range(len(stream)))) == (frames, None)


@given(sequences, st.binary(max_size=300), st.data())
@example([], b"GET / HTTP/1.1\r\n\r\n", None)
@example([], b"\x16\x03\x01\x02\x00\x01\x00", None)
def test_garbage_behind_frames_ends_the_same_way_for_every_cut(
    frames: Frames, garbage: bytes, data: st.DataObject | None
) -> None:
    stream = encode(frames) + garbage
    cuts = [1] if data is None else data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    whole = decode(stream, [])
    assert decode(stream, cuts) == whole
    assert whole[0][: len(frames)] == frames


@given(st.binary(max_size=2000))
def test_any_bytes_give_frames_or_a_bad_frame_and_nothing_else(stream: bytes) -> None:
    found, _ = decode(stream, [])
    for frame in found:
        assert isinstance(frame, tuple) or isinstance(frame["type"], str)


@given(st.binary(max_size=400))
def test_any_payload_of_a_control_frame_gives_a_message_or_a_bad_frame(payload: bytes) -> None:
    found, why = decode(raw(wire.CONTROL, payload), [])
    assert (len(found) == 1) is (why is None)


def test_a_frame_begun_and_not_finished_is_reported() -> None:
    decoder = wire.Decoder()
    stream = wire.control({"type": "ping"})
    assert not decoder.midway
    assert decoder.feed(stream[:3]) == []
    assert decoder.midway
    assert decoder.feed(stream[3:]) == [{"type": "ping"}]
    assert not decoder.midway


@pytest.mark.parametrize(
    "stream, why",
    [
        (raw(wire.CONTROL, b"", 0), "a frame of 0 bytes"),
        (raw(wire.CONTROL, b"", 2**32 - 1), "a frame of 4294967295 bytes"),
        (raw(wire.CONTROL, b"", wire.FRAME_MAX_BYTES + 1), "the limit is 1048576"),
        (raw(0, b"x"), "frame type 0"),
        (raw(3, b"x"), "frame type 3"),
        (raw(255, b"x"), "frame type 255"),
        (raw(wire.DATA, b"1234567"), "without its offset"),
        (raw(wire.CONTROL, b""), "not JSON"),
        (raw(wire.CONTROL, b"{"), "not JSON"),
        (raw(wire.CONTROL, b'{"type":"\xff"}'), "not JSON"),
        (raw(wire.CONTROL, b'{"type":"\xed\xa0\x80"}'), "not JSON"),
        (raw(wire.CONTROL, '{"type":"x"}'.encode("utf-16")), "not JSON"),
        (raw(wire.CONTROL, b'{"type":"x","at":NaN}'), "NaN is not a number"),
        (raw(wire.CONTROL, b'{"type":"x","at":-Infinity}'), "-Infinity is not a number"),
        (raw(wire.CONTROL, b"[]"), "must be a JSON object"),
        (raw(wire.CONTROL, b"7"), "must be a JSON object"),
        (raw(wire.CONTROL, b"{}"), "must be a JSON object with a `type`"),
        (raw(wire.CONTROL, b'{"type":7}'), "must be a JSON object with a `type`"),
        (nested(wire.DEPTH_MAX + 1), "nested deeper than 32"),
        (nested(10_000), "JSON"),
        (nested(10_000, '{"a":', "}"), "JSON"),
    ],
)
def test_a_bad_frame_is_refused_and_the_case_named(stream: bytes, why: str) -> None:
    found, told = decode(wire.control({"type": "good"}) + stream, [])
    assert found == [{"type": "good"}]
    assert told is not None
    assert why in told


def test_a_bad_length_is_refused_before_its_payload_comes() -> None:
    with pytest.raises(wire.BadFrame, match="limit"):
        wire.Decoder().feed(struct.pack(">IB", wire.FRAME_MAX_BYTES + 1, wire.CONTROL))


def test_depth_at_the_limit_is_taken_and_brackets_in_text_are_no_depth() -> None:
    assert decode(nested(wire.DEPTH_MAX), [])[1] is None
    text = wire.control({"type": "x", "v": '["{' * 5000 + "\\" + '"'})
    assert decode(text, [])[1] is None
    wide = wire.control({"type": "x", "v": [[] for _ in range(5000)]})
    assert decode(wide, [])[1] is None


def test_after_a_bad_frame_nothing_more_is_taken_or_kept() -> None:
    decoder = wire.Decoder()
    with pytest.raises(wire.BadFrame):
        decoder.feed(b"GET / HTTP/1.1\r\n\r\n")
    tracemalloc.start()
    try:
        for _ in range(100):
            with pytest.raises(wire.BadFrame):
                decoder.feed(bytes(1 << 16))
        assert tracemalloc.get_traced_memory()[0] < 1 << 16
    finally:
        tracemalloc.stop()


def test_an_unfinished_frame_holds_no_more_than_the_limit_and_one_read() -> None:
    decoder = wire.Decoder()
    head = struct.pack(">IB", wire.FRAME_MAX_BYTES, wire.DATA) + bytes(8)
    tracemalloc.start()
    try:
        assert decoder.feed(head) == []
        block = bytes(1 << 16)
        for _ in range(wire.FRAME_MAX_BYTES // len(block) - 1):
            assert decoder.feed(block) == []
        # A growing buffer is given some room ahead of its size.
        assert tracemalloc.get_traced_memory()[1] < 3 * wire.FRAME_MAX_BYTES
        frame = decoder.feed(block[:-9])[0]
        assert frame == (0, bytes(wire.FRAME_MAX_BYTES - 9))
    finally:
        tracemalloc.stop()


def test_a_frame_full_of_keys_stays_within_bounded_memory() -> None:
    keys = {f"k{n}": n for n in range(70_000)}
    stream = wire.control({"type": "x", **keys})
    assert len(stream) < wire.FRAME_MAX_BYTES
    tracemalloc.start()
    try:
        assert len(decode(stream, [])[0]) == 1
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


def test_a_start_request_may_be_larger_and_no_larger() -> None:
    decoder = wire.Decoder(wire.START_MAX_BYTES)
    stream = wire.control({"type": "start", "input": "x" * (wire.START_MAX_BYTES - 100)})
    assert len(decoder.feed(stream)) == 1
    with pytest.raises(wire.BadFrame):
        decoder.feed(struct.pack(">IB", wire.START_MAX_BYTES + 1, wire.CONTROL))


@given(st.dictionaries(st.just("id"), values))
def test_an_answer_bears_the_number_of_its_request_and_nothing_else_of_it(request: dict[str, Any]) -> None:
    for answer in (wire.reply(request, fine=True), wire.error(request, "busy", "later")):
        asked = request.get("id")
        assert answer["id"] == (asked if isinstance(asked, int) else None)
        assert len(json.dumps(answer)) < 200


@given(st.binary(max_size=100))
def test_bytes_in_a_control_frame_come_back_and_other_text_does_not(payload: bytes) -> None:
    assert wire.from_text(wire.as_text(payload)) == payload


@pytest.mark.parametrize("text", [None, 7, "a", "a===", "ä", "YQ==\n", ["YQ=="]])
def test_what_is_not_base64_gives_none(text: object) -> None:
    assert wire.from_text(text) is None
