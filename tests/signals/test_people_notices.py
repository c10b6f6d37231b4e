"""The short text that a person reads, and the record that is posted."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.channels import PLACEHOLDERS
from holdfast.core.signalfile import VARIANTS
from holdfast.signals.lines import Signal
from holdfast.signals.people.notices import Notice
from holdfast.signals.redact import Redactor
from support.notified import signal_of

REDACT = Redactor()


def _notice(*signals: Signal) -> Notice:
    return Notice(signals, REDACT)


@pytest.mark.parametrize(
    "variant, fields, title",
    [
        (
            "lifecycle",
            {"phase": "ended", "status": "failed", "code": 2, "cause": "exit", "duration_s": 192.0},
            "build failed, exit code 2 after 3m 12s",
        ),
        (
            "lifecycle",
            {"phase": "ended", "status": "failed", "signal": "SIGSEGV", "cause": "signal"},
            "failed, SIGSEGV",
        ),
        ("lifecycle", {"phase": "ended", "status": "killed", "cause": "overall_timeout"}, "killed, timed out"),
        ("lifecycle", {"phase": "ended", "status": "killed", "cause": "stop", "by": "conv-1"}, "stopped by conv-1"),
        ("lifecycle", {"phase": "ended", "status": "failed", "cause": "lost"}, "lost, how it ended is unknown"),
        ("lifecycle", {"phase": "restarting", "status": "failed", "code": 1}, "build restarts: failed, exit code 1"),
        ("needs_input", {"secret": False}, "build waits for input"),
        ("needs_input", {"secret": True}, "build waits for a secret"),
        ("watch", {"text": "ERROR"}, "build printed 'ERROR'"),
        ("ready", {"ok": True}, "build is ready"),
        ("ready", {"ok": False, "detail": "port 3000 is held by pid 7"}, "is not ready: port 3000 is held by pid 7"),
        ("health", {"state": "unhealthy"}, "build is unhealthy"),
        ("deadline", {"elapsed_s": 7260}, "build has been running for 2h 1m"),
        ("survivors", {"pids": [{}, {}]}, "build left 2 processes behind"),
        ("overflow", {"state": "tripped", "suppressed": 1}, "too many matches at once"),
        ("overflow", {"state": "released", "suppressed": 5}, "5 matches were held back"),
        ("heartbeat", {}, "build still runs"),
    ],
)
def test_a_title_says_what_happened_to_whom(variant: str, fields: dict[str, Any], title: str) -> None:
    assert title in _notice(signal_of(variant, fields)).title


def test_the_body_of_an_ending_is_the_end_of_its_errors() -> None:
    tail = {"stdout": {"text": "fine\n"}, "stderr": {"text": "".join(f"line {n}\n" for n in range(30))}}
    notice = _notice(signal_of(fields={"phase": "ended", "status": "failed", "tail": tail}))
    assert notice.body.splitlines() == [f"line {n}" for n in range(20, 30)]
    assert notice.fields["line"] == "line 29"


def test_the_fields_are_those_that_a_command_may_use() -> None:
    notice = _notice(signal_of())
    assert set(notice.fields) == set(PLACEHOLDERS)
    assert (notice.fields["session"], notice.fields["code"], notice.fields["place"]) == ("b7k2m9qa1", "7", "local")


def test_joined_signals_are_led_by_what_matters_most_and_all_counted() -> None:
    asked = signal_of("needs_input", {"line": "Password:"}, seq=1)
    watches = [signal_of("watch", {"text": "x"}, seq=seq) for seq in range(2, 10)]
    assert _notice(asked, *watches).title == "build waits for input"
    ended = signal_of(seq=10)
    notice = _notice(asked, *watches, ended)
    assert notice.first.id == ended.id
    assert "and 9 more:" in notice.body
    assert "- and 4 more" in notice.body
    record = notice.record()
    assert [each["id"] for each in record["joined"]] == [asked.id, *(watch.id for watch in watches[:4])]
    assert record["joined_more"] == 4
    assert Signal(record).id == ended.id, "what is joined does not make it another record"


def test_nothing_leaves_unredacted() -> None:
    secret = "ghp_0123456789abcdefghijABCDEFGHIJ"
    tail = {"stderr": {"text": f"cloning with token {secret}\n"}}
    signal = signal_of(
        fields={"phase": "ended", "status": "failed", "tail": tail}, snapshot={"name": f"x {secret}", "command": secret}
    )
    notice = _notice(signal, signal_of("watch", {"text": secret, "lines": [secret]}, seq=2))
    said = json.dumps([notice.title, notice.body, notice.fields, notice.record()])
    assert secret not in said
    assert "[redacted]" in said
    assert notice.record()["id"] == signal.id
    assert secret in json.dumps(signal.record), "the signal itself is left as it is"


def _acts(character: str) -> bool:
    """Controls, lone surrogates, breaks of lines, and what turns the direction of what follows."""
    return unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in "\u202a\u202b\u202d\u202e\u200b"


_texts = st.text(max_size=60) | st.sampled_from(
    ["\x1b]52;c;x\x07", "a\r\nb", "\u202e\u200b", "\x00", "{title}", "$(x)"]
)
_values = st.recursive(
    st.none() | st.booleans() | st.integers() | _texts, lambda inner: st.lists(inner, max_size=3), max_leaves=5
)
_names = ["phase", "status", "code", "cause", "by", "text", "lines", "line", "tail", "pids", "detail", "elapsed_s"]


@given(st.sampled_from([*VARIANTS, "later"]), st.dictionaries(st.sampled_from(_names), _values), _texts)
def test_any_signal_becomes_a_notice_without_anything_that_acts(
    variant: str, fields: dict[str, Any], name: str
) -> None:
    notice = _notice(signal_of(variant, fields, snapshot={"name": name}))
    assert notice.title
    for field, text in notice.fields.items():
        for line in text.split("\n") if field == "body" else [text]:
            assert not any(_acts(character) for character in line)
    json.dumps(notice.record())
