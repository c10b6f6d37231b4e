"""Both spellings of what is said over a WebSocket, and the fields that messages have."""

from __future__ import annotations

import base64
import json
import struct
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import QueryParams

from holdfast.errors import BadArgument, BadKey, BadRequest
from holdfast.server import attach
from holdfast.server.attach import DIALECTS, Binary, Dialect, Json, chosen

_ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
_TYPES = ("input", "resize", "focus", "observe", "detach", "ack", "ping", "dance")
_NAMES = ("id", "data", "b64", "keys", "paste", "submit", "rows", "cols", "offset", "focused", "bracketed", "raw")
_MESSAGES = st.builds(
    lambda kind, fields: {"type": kind, **fields},
    st.sampled_from(_TYPES),
    st.dictionaries(st.sampled_from(_NAMES), _ANY_JSON, max_size=4),
)


def test_output_is_a_byte_an_offset_and_the_bytes_or_base64() -> None:
    message = {"type": "data", "offset": 258, "data": b"\x00\xff"}
    assert Binary().spell(message) == b"\2" + struct.pack(">Q", 258) + b"\x00\xff"
    assert json.loads(Json().spell(message)) == {"type": "data", "offset": 258, "data": "AP8="}


def test_three_messages_have_longer_names_in_json() -> None:
    assert [json.loads(Json().spell({"type": name, "code": 3}))["type"] for name in ("mode", "size", "exit")] == [
        "mode_changed",
        "resized",
        "session_ended",
    ]
    assert json.loads(Json().spell({"type": "exit", "code": 3, "cause": "exit"})) == {
        "type": "session_ended",
        "cause": "exit",
        "exit_code": 3,
    }
    assert json.loads(Binary().spell({"type": "exit", "code": 3})[1:]) == {"type": "exit", "code": 3}


@given(st.binary(max_size=300), st.integers(min_value=1, max_value=(1 << 64) - 1))
def test_input_is_the_same_in_both(data: bytes, number: int) -> None:
    binary = Binary().read(b"\2" + struct.pack(">Q", number) + data)
    text = Json().read(json.dumps({"type": "input", "id": number, "b64": base64.b64encode(data).decode()}))
    assert binary["id"] == text["id"] == number
    assert attach.input_of(binary, 150) == attach.input_of(text, 150) == data


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
@given(received=st.binary(max_size=200) | st.text(max_size=200) | _ANY_JSON.map(json.dumps))
def test_whatever_a_client_sends_is_a_message_or_a_bad_request(dialect: Dialect, received: str | bytes) -> None:
    for each in (received, received.encode("utf-8", "surrogatepass") if isinstance(received, str) else received):
        for framed in (each, b"\1" + each if isinstance(each, bytes) else each):
            with suppress(BadRequest):
                assert isinstance(dialect.read(framed)["type"], str)


@given(_MESSAGES)
def test_whatever_a_message_says_is_obeyed_or_refused_by_name(message: dict[str, Any]) -> None:
    with suppress(BadRequest, BadArgument, BadKey):
        attach.check_fields(message)
        if message["type"] == "input":
            assert isinstance(attach.input_of(message, 150), (bytes, list))


_QUERY = ("from", "lag", "stream", "history_rows", "rows", "cols", "visible")


@given(st.dictionaries(st.sampled_from(_QUERY), st.text()), st.booleans())
def test_whatever_a_query_says_is_a_wish_or_refused_by_name(query: dict[str, str], tty: bool) -> None:
    with suppress(BadArgument):
        found = attach.attach_params(QueryParams(query), tty=tty)
        assert isinstance(found.since, int) or found.since in ("screen", "start", "now")


def test_the_first_that_a_client_offers_is_spoken() -> None:
    assert chosen(["chat", "holdfast.v1.json", "holdfast.v1"]).name == "holdfast.v1.json"
    with pytest.raises(BadRequest, match="subprotocol"):
        chosen(["chat"])


def test_enter_follows_text_as_late_as_is_configured_or_said() -> None:
    line = {"type": "input", "submit": "x"}
    assert attach.input_of(line, 40) == [{"text": "x"}, {"pause": 40}, {"enter": True}]
    assert attach.input_of({**line, "enter_delay_ms": 7}, 40) == [{"text": "x"}, {"pause": 7}, {"enter": True}]
