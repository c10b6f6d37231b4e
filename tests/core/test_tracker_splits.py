"""However the bytes of a stream are cut, and whichever way they are taken: the same state, replies and marks."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.vt import tracker as tracker_module
from holdfast.core.vt.tracker import Tracker
from support import terminal_output
from support.scale import scaled

Seen = tuple[dict[str, Any], list[bytes], list[dict[str, Any]], int, int, dict[str, Any] | None]


class Tokenwise(Tracker):
    """Takes every token by itself."""

    def _take_stretch(self, data: bytes) -> None:
        self._take_tokens(data)


def seen(tracker: Tracker) -> Seen:
    # Before anything that settles what waits.
    offset = tracker.offset
    state = tracker.snapshot()
    return state, tracker.take_replies(), tracker.take_marks(), tracker.ground, offset, tracker.last_clear


def fed(*chunks: bytes, kind: type[Tracker] = Tracker) -> Seen:
    tracker = kind(5, 20)
    for chunk in chunks:
        tracker.feed(chunk)
    return seen(tracker)


@pytest.fixture(autouse=True)
def small_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracker_module, "EVERY_BYTES", 5000)
    monkeypatch.setattr(tracker_module, "CLEARS_APART_BYTES", 64)


@pytest.mark.covers("terminal:1")
@given(terminal_output.short)
@settings(max_examples=scaled(30, 150), deadline=None)
def test_every_split_in_two_and_single_bytes_give_the_same(data: bytes) -> None:
    whole = fed(data)
    assert fed(*(data[i : i + 1] for i in range(len(data)))) == whole
    for at in range(1, len(data)):
        assert fed(data[:at], data[at:]) == whole


@pytest.mark.covers("terminal:1")
@given(terminal_output.long, st.lists(st.integers(0, 20_000), max_size=5), st.integers(1, 3000))
@settings(max_examples=scaled(60, 300), deadline=None)
def test_taking_in_bulk_and_by_tokens_gives_the_same(data: bytes, cuts: list[int], size: int) -> None:
    whole = fed(data, kind=Tokenwise)
    assert fed(data) == whole
    assert fed(*(data[i : i + size] for i in range(0, len(data), size))) == whole
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    assert fed(*(data[a:b] for a, b in pairwise(edges))) == whole


@given(terminal_output.long, st.integers(1, 400))
@settings(max_examples=scaled(20, 60), deadline=None)
def test_looking_between_chunks_changes_nothing(data: bytes, size: int) -> None:
    tracker = Tracker(5, 20)
    replies: list[bytes] = []
    marks = tracker.take_marks()
    for i in range(0, len(data), size):
        tracker.feed(data[i : i + size])
        assert tracker.snapshot()["offset"] == tracker.ground
        replies += tracker.take_replies()
        marks += tracker.take_marks()
    state, _, _, *rest = seen(tracker)
    assert (state, replies, marks, *rest) == fed(data)


@given(terminal_output.short)
@settings(max_examples=scaled(20, 100), deadline=None)
def test_from_every_snapshot_on_the_rest_leads_to_the_same(data: bytes) -> None:
    whole, _, _, ground, offset, _ = fed(data)
    for at in range(len(data)):
        tracker = Tracker(5, 20)
        tracker.feed(data[:at])
        again = Tracker.from_snapshot(tracker.snapshot())
        assert again.snapshot() == tracker.snapshot()
        again.feed(data[tracker.ground :])
        assert (again.snapshot(), again.ground, again.offset) == (whole, ground, offset)


@given(terminal_output.long)
@settings(max_examples=scaled(20, 100), deadline=None)
def test_from_every_mark_on_the_rest_leads_to_the_same(data: bytes) -> None:
    whole, _, marks, *_ = fed(data)
    for mark in marks:
        assert mark["state"]["offset"] == mark["offset"]
        again = Tracker.from_snapshot(mark["state"])
        again.feed(data[mark["offset"] :])
        assert again.snapshot() == whole


@given(terminal_output.long)
@settings(max_examples=scaled(20, 100), deadline=None)
def test_answers_come_once_the_question_is_whole_and_not_before(data: bytes) -> None:
    tracker = Tracker(5, 20)
    replies: list[bytes] = []
    for i in range(len(data)):
        tracker.feed(data[i : i + 1])
        replies += tracker.take_replies()
    assert replies == fed(data)[1]


@pytest.mark.parametrize(
    "before",
    [
        *(
            b"",
            b"\x1bN",
            b"\x1b[20h",
            b"\x1b[?45h",
            b"\x1b[?7l",
            b"\x1b[?69h\x1b[3;9s",
            b"\x1b[?69h\x1b[1;9s",
            b"\x1b[2;3r",
        ),
        *(
            b"\x1b[2;3r\x1b[5;1H",
            b"\x1b[2;3r\x1b[4;1H",
            b"\x1b[?6h\x1b[2;3r",
            b"\x1b[?1049h",
            b"x" * 20,
            b"\x0e",
            b"\xe6\xbc",
        ),
        *(b"\x1b[31;1m", b"\x1b[3", b"\x1b]0;t", b"\xc2"),
    ],
)
@pytest.mark.parametrize(
    "line",
    [
        *(
            b"plain\r\n",
            b"long " * 9 + b"\r\n",
            b"no return\n",
            b"\x1b[31mred\x1b[39m\r\n",
            b"\x1b[1mb\x1b[0m\x1b[4m\r\n",
        ),
        *(
            "漢字 e\u0301\r\n".encode(),
            b"\ta\bb\x07\r\n",
            b"a\x1b[K\r\n",
            b"a\b\b\b\b\r\n",
            b"\xc2\x9b31mred\xc2\x85\r\n",
            b"\xc2\xa0 \xc2x\r\n",
            b"\x1b[?25h\x1b[A\r\n",
            b"\r",
            b"\r\n",
            b"a\r\n\x0e",
            b"\xff\x80\xe2\x82\r\n",
        ),
    ],
)
def test_in_every_layout_bulk_and_tokens_agree(before: bytes, line: bytes) -> None:
    many = scaled(200, 600)
    for count, after in ((many, b""), (many, b"tail"), (3, b"x" * 2000), (many, b"\r\x1b[3")):
        data = before + line * count + after
        whole = fed(data, kind=Tokenwise)
        assert fed(data) == whole
        assert fed(before, data[len(before) :]) == whole
        assert fed(*(data[i : i + 999] for i in range(0, len(data), 999))) == whole


_WORDS = st.sampled_from(
    [b"?", b"", b"4", b"-1", b"--5", b"rgb:", b"#fff", b"A", b"D", b"9" * 400, b"\xff", b"\n", b"file://"]
)
_PAYLOADS = st.lists(st.one_of(_WORDS, st.binary(max_size=5)), max_size=6).map(b";".join)
_COMMANDS = st.sampled_from([0, 1, 2, 4, 7, 8, 9, 10, 11, 12, 22, 52, 104, 110, 111, 112, 133, 777, 10**9])
_STRINGS = st.one_of(
    st.builds(lambda command, payload: b"\x1b]%d;%b\x07" % (command, payload), _COMMANDS, _PAYLOADS),
    st.builds(
        lambda name, payload: b"\x1bP%b%b\x1b\\" % (name, payload),
        st.sampled_from([b"$q", b"+q", b"1$q", b""]),
        _PAYLOADS,
    ),
    st.builds(
        lambda prefix, payload, final: b"\x1b[%b%b%c" % (prefix, payload, final),
        st.sampled_from([b"", b"?", b">", b"<", b"="]),
        st.lists(st.sampled_from([b"", b"0", b"1", b"4:", b":", b"38", b"2", b"99999999999"]), max_size=40).map(
            b";".join
        ),
        st.integers(0x40, 0x7E),
    ),
)


@given(st.lists(_STRINGS, max_size=8).map(b"".join))
@settings(max_examples=scaled(60, 300), deadline=None)
def test_nothing_that_is_printed_breaks_it(data: bytes) -> None:
    state, replies, *_ = fed(data)
    assert json.loads(json.dumps(state)) == state
    assert all(reply.isascii() for reply in replies)
