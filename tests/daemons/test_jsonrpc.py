"""Messages of language servers, however their bytes were cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.daemons.lsp_protocol import MESSAGE_MAX_BYTES, BadMessage, Frames, frame

_message = st.dictionaries(
    st.text(max_size=8), st.integers() | st.text() | st.none() | st.lists(st.text(), max_size=3), max_size=4
)


@given(messages=st.lists(_message, max_size=5), cuts=st.lists(st.integers(0, 400), max_size=8))
def test_messages_cut_anywhere_come_out_whole_and_in_order(messages: list[dict[str, object]], cuts: list[int]) -> None:
    raw = b"".join(map(frame, messages))
    borders = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    frames = Frames()
    found = [each for begin, end in pairwise(borders) for each in frames.feed(raw[begin:end])]
    # What no encoding knows goes over the wire as a question mark.
    assert found == [Frames().feed(frame(each))[0] for each in messages]
    assert frames.feed(frame({"last": True})) == [{"last": True}]


def test_the_length_counts_bytes_and_other_headers_are_passed_over() -> None:
    body = '{"text":"ü€𝄞"}'.encode()
    head = b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\ncontent-length: %d\r\n\r\n" % len(body)
    assert Frames().feed(head + body) == [{"text": "ü€𝄞"}]


@pytest.mark.parametrize(
    "raw",
    [
        b"Listening on port 2087\r\n\r\n",
        b"Content-Length: many\r\n\r\n{}",
        b"Content-Length: -1\r\n\r\n{}",
        b"Content-Length: %d\r\n\r\n" % (MESSAGE_MAX_BYTES + 1),
        b"Content-Length: 2\r\n\r\n[]",
        b"Content-Length: 3\r\n\r\n{x}",
        b"print() in a server that should not\n" * 200,
    ],
)
def test_a_malformed_message_is_reported_as_such(raw: bytes) -> None:
    with pytest.raises(BadMessage):
        Frames().feed(raw)


def test_a_message_that_has_not_come_whole_is_waited_for() -> None:
    frames = Frames()
    raw = frame({"id": 1})
    assert frames.feed(raw[:-1]) == []
    assert frames.feed(raw[-1:]) == [{"id": 1}]
