"""One line of a signal file: recognised by its form, and never trusted."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.signalfile import LINE_MAX_BYTES, VARIANTS
from holdfast.signals.lines import Bad, Note, Signal, parse, split_id

RECORD: dict[str, Any] = {
    "v": 1,
    "id": "b7k2m9qa1.3",
    "seq": 3,
    "session": "b7k2m9qa1",
    "kind": "local_bash",
    "owner": "conv-17",
    "attempt": 1,
    "at": "2026-08-01T09:14:07.412Z",
    "mono_ns": 81234567890,
    "boot": "5f2c9e01",
    "routed": True,
    "snapshot": {"state": "running"},
}
WATCH = {"pattern": "w1", "text": "ERROR", "lines": ["ERROR: disk full"], "stream": "stderr", "offset": 18234}


def line(**changes: Any) -> bytes:
    record = {**RECORD, **changes}
    return json.dumps({key: value for key, value in record.items() if value is not ...}).encode() + b"\n"


def test_signal_has_its_common_fields_and_those_of_its_variant() -> None:
    signal = parse(line(watch=WATCH), "b7k2m9qa1")
    assert isinstance(signal, Signal)
    assert (signal.id, signal.seq, signal.session, signal.owner) == ("b7k2m9qa1.3", 3, "b7k2m9qa1", "conv-17")
    assert (signal.variant, signal.pattern, signal.offset) == ("watch", "w1", 18234)
    assert signal.fields == WATCH
    assert (signal.redelivered, signal.deliveries, signal.replayed) == (False, 1, False)
    assert signal.to_json()["watch"] == WATCH
    with pytest.raises(AttributeError, match="a watch signal has no code"):
        _ = signal.code


def test_field_named_like_a_common_one_is_in_the_fields_alone() -> None:
    signal = parse(line(needs_input={"kind": "password"}))
    assert isinstance(signal, Signal)
    assert (signal.kind, signal.fields["kind"]) == ("local_bash", "password")


def test_variant_of_a_later_release_is_delivered_as_unknown() -> None:
    signal = parse(line(teleported={"to": "mars"}, priority=3))
    assert isinstance(signal, Signal)
    assert signal.variant == "unknown"
    assert signal.fields == {"variant": "teleported", "to": "mars"}
    assert signal.record["priority"] == 3


def test_home_signal_has_no_session() -> None:
    signal = parse(line(session=None, id="home.3", overflow={"state": "tripped"}), "home")
    assert isinstance(signal, Signal)
    assert (signal.session, signal.id) == (None, "home.3")


@pytest.mark.parametrize(
    "broken, why",
    [
        (line(), "no variant"),
        (line(watch=WATCH, ready={"ok": True}), "two variants"),
        (line(one={}, two={}), "two variants"),
        (line(watch="ERROR"), "watch is not an object"),
        (line(watch=WATCH, id="b7k2m9qa1.4"), "id is not b7k2m9qa1.3"),
        (line(watch=WATCH, seq=0, id="b7k2m9qa1.0"), "seq is not a positive"),
        (line(watch=WATCH, seq=True, id="b7k2m9qa1.1"), "seq is not a positive"),
        (line(watch=WATCH, session="b7", id="b7.3"), "session is not an id"),
        (line(watch=WATCH, session="c00000001", id="c00000001.3"), "it belongs to c00000001"),
        (line(watch=WATCH, owner=7), "owner is not text"),
        (line(watch=WATCH, owner="half \ud83d pair"), "owner is not text"),
        (line(watch=WATCH, snapshot=[1]), "snapshot is not an object"),
        (b"[1, 2]\n", "not an object"),
        (b'{"seq": 3, "watch"\n', "not JSON"),
        (b"\xff\xfe\n", "not JSON"),
        (b'{"watch":' * 1500 + b"1" + b"}" * 1500 + b"\n", "nested deeper"),
        (line(watch={"text": "x" * LINE_MAX_BYTES}), "longer than"),
        (b'{"owner": 3}\n', "owner is not text"),
    ],
)
def test_line_that_breaks_the_rules_is_bad_and_says_why(broken: bytes, why: str) -> None:
    parsed = parse(broken, "b7k2m9qa1")
    assert isinstance(parsed, Bad)
    assert why in parsed.why
    assert parsed.is_torn == (broken == b'{"seq": 3, "watch"\n')


@pytest.mark.parametrize(
    "text, answered, queued, hands_over",
    [
        ('{"answered": 3, "by": "api:1"}', 3, None, False),
        ('{"queued": 3}', None, 3, False),
        ('{"owner": null, "at": "x"}', None, None, True),
        ('{"dropped_before_seq": 9}', None, None, False),
        ('{"answered": "3"}', None, None, False),
    ],
)
def test_line_without_a_number_is_a_note(text: str, answered: int | None, queued: int | None, hands_over: bool) -> None:
    note = parse(text.encode())
    assert isinstance(note, Note)
    assert (note.answered, note.queued, note.hands_over) == (answered, queued, hands_over)


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_any_bytes_parse_to_one_of_three(raw: bytes) -> None:
    assert isinstance(parse(raw, "b7k2m9qa1"), Signal | Note | Bad)


@given(st.sampled_from(VARIANTS), st.integers(1, 2**50))
def test_what_was_written_is_read_back(variant: str, seq: int) -> None:
    signal = parse(line(seq=seq, id=f"b7k2m9qa1.{seq}", **{variant: {"n": seq}}))
    assert isinstance(signal, Signal)
    assert (signal.variant, signal.seq, signal.fields) == (variant, seq, {"n": seq})
    assert split_id(signal.id) == ("b7k2m9qa1", seq)


@pytest.mark.parametrize(
    "id", ["", "b7k2", "b7k2m9qa1", "b7k2m9qa1.", "b7k2m9qa1.0", "b7k2m9qa1.07", "../x.1", "web.1", "b7k2m9qa1.-1", 3]
)
def test_what_is_no_id_of_a_signal_is_refused(id: object) -> None:
    assert split_id(id) is None
