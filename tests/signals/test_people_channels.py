"""Ways to a person, with a real server and real programs."""

from __future__ import annotations

import hashlib
import hmac
import json
import socket
import stat
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config.channels import PLACEHOLDERS, WebhookChannel
from holdfast.signals.people.channels import (
    AGAIN,
    DELIVERED,
    FAILED,
    GONE,
    Bell,
    Command,
    Webhook,
    arguments,
    judged,
    read_secret,
)
from holdfast.signals.people.notices import Notice
from holdfast.signals.redact import Redactor
from support.notified import Receiver, signal_of
from support.waiting import BOUND_S
from support.world import World

REDACT = Redactor()
NASTY = "$(touch /tmp/x) ; `id` | && \"quoted\" '{body}' {0} %s"


def _notice(name: str = "build") -> Notice:
    return Notice([signal_of(snapshot={"name": name})], REDACT)


@pytest.fixture
def secret_file(world: World) -> Path:
    path = world.root / "secret"
    path.touch(mode=0o600)
    path.write_text("s3cret\n")
    return path


def _webhook(receiver_url: str, secret_file: Path, timeout_s: float = 5.0) -> Webhook:
    return Webhook(WebhookChannel("ops", receiver_url, str(secret_file), None), timeout_s, wall=lambda: 1234.9)


@pytest.mark.covers("signals:37")
def test_what_a_session_is_called_reaches_the_command_as_text(world: World) -> None:
    said = world.root / "said"
    code = "import os, sys, json; json.dump([sys.argv[2:], dict(os.environ)], open(sys.argv[1], 'w'))"
    argv = [sys.executable, "-c", code, str(said), "{title}", "a{name}b{session}", '{"json": "{code}"}', "{nothing"]
    notice = _notice(NASTY)
    assert Command(argv).deliver(notice).run().kind == DELIVERED
    words, environment = json.loads(said.read_text())
    assert NASTY in words[0]
    assert words[1:] == [f"a{NASTY}bb7k2m9qa1", '{"json": "7"}', "{nothing"]
    for name in PLACEHOLDERS:
        assert environment[f"HOLDFAST_EVENT_{name.upper()}"] == notice.fields[name]
    assert (environment["HOLDFAST_EVENT_ID"], environment["HOLDFAST_EVENT_VARIANT"]) == ("b7k2m9qa1.1", "lifecycle")


@given(
    st.lists(st.text(st.sampled_from("{}abtile "), max_size=12)), st.text(st.sampled_from("{}title ;$"), max_size=20)
)
def test_an_argument_stays_one_and_nothing_put_into_it_is_looked_at_again(argv: list[str], title: str) -> None:
    put = arguments(argv, {"title": title})
    assert len(put) == len(argv)
    assert put == [title.join(word.split("{title}")) for word in argv]


def test_a_command_that_fails_or_is_not_there_has_failed() -> None:
    outcome = Command(["/bin/sh", "-c", "exit 3"]).deliver(_notice()).run()
    assert (outcome.kind, outcome.why) == (FAILED, "/bin/sh exited with code 3")
    outcome = Command(["/nonexistent/notify"]).deliver(_notice()).run()
    assert outcome.kind == FAILED
    assert "No such file" in outcome.why


def test_a_command_past_its_limit_is_killed_with_all_that_it_started(world: World) -> None:
    gate = world.gate()
    call = Command(world.probe("fork", "{", "tell", gate, "child", "forever", "}", "forever")).deliver(_notice())
    outcomes = []
    thread = threading.Thread(target=lambda: outcomes.append(call.run()))
    thread.start()
    assert gate.line() == "child"
    assert call.abort().kind == FAILED
    thread.join(BOUND_S)
    # The census after the test finds processes that are left.
    assert outcomes[0].why.endswith("was ended by signal 9")


def test_a_command_that_is_cut_off_before_it_began_never_runs(world: World) -> None:
    call = Command(["/bin/touch", str(world.root / "ran")]).deliver(_notice())
    call.abort()
    assert call.run().kind == FAILED
    assert not (world.root / "ran").exists()


@pytest.mark.covers("signals:37")
def test_a_webhook_gets_the_record_signed(secret_file: Path) -> None:
    with Receiver() as receiver:
        notice = _notice()
        assert _webhook(receiver.url, secret_file).deliver(notice).run().kind == DELIVERED
        got = receiver.next()
    assert got.path == "/hook?x=1"
    assert json.loads(got.body) == notice.record()
    assert got.headers["Holdfast-Signal-Id"] == "b7k2m9qa1.1"
    assert got.headers["Content-Type"] == "application/json"
    expected = hmac.new(b"s3cret", b"1234." + got.body, hashlib.sha256).hexdigest()
    assert got.headers["Holdfast-Signature"] == f"t=1234,v1={expected}"


@pytest.mark.parametrize(
    "status, kind",
    [
        *((200, DELIVERED), (204, DELIVERED), (299, DELIVERED)),
        *((408, AGAIN), (425, AGAIN), (429, AGAIN), (500, AGAIN), (503, AGAIN), (599, AGAIN)),
        *((400, FAILED), (401, FAILED), (404, FAILED), (301, FAILED), (308, FAILED), (410, GONE)),
    ],
)
def test_an_answer_means_what_it_says(secret_file: Path, status: int, kind: str) -> None:
    with Receiver([(status, {"Location": "/elsewhere"} if 300 <= status < 400 else {})]) as receiver:
        outcome = _webhook(receiver.url, secret_file).deliver(_notice()).run()
        assert outcome.kind == kind
        assert kind == DELIVERED or str(status) in outcome.why
        assert receiver.count == 1, "no redirect is followed"


@pytest.mark.parametrize(
    "text, seconds",
    [
        ("120", 120.0),
        (" 7 ", 7.0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 60.0),
        ("Wed, 21 Oct 2005 07:28:00 GMT", 0.0),
        ("soon", None),
        ("-1", None),
        ("", None),
        (None, None),
    ],
)
def test_the_other_side_may_ask_to_be_left_alone(text: str | None, seconds: float | None) -> None:
    assert judged(429, text, 1_445_412_480 - 60).after_s == seconds
    assert judged(200, text, 0).after_s is None


def test_an_unanswered_request_is_tried_again(secret_file: Path) -> None:
    # Bound, so that no other process gets the port meanwhile, and not listening.
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        outcome = _webhook(f"http://127.0.0.1:{port}/", secret_file).deliver(_notice()).run()
    assert outcome.kind == AGAIN
    assert "refused" in outcome.why


def test_a_server_that_does_not_answer_is_cut_off(secret_file: Path) -> None:
    with Receiver(hold=True) as receiver:
        post = _webhook(receiver.url, secret_file, timeout_s=60).deliver(_notice())
        outcomes = []
        thread = threading.Thread(target=lambda: outcomes.append(post.run()))
        thread.start()
        receiver.next()
        assert post.abort().kind == AGAIN
        thread.join(BOUND_S)
        assert outcomes[0].kind == AGAIN


def test_plain_http_goes_to_this_machine_alone(secret_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`localhost` is a name, and names can be made to point elsewhere."""
    with Receiver() as receiver:
        webhook = _webhook(receiver.url, secret_file)
        monkeypatch.setattr("holdfast.signals.people.channels._is_here", lambda _address: False)
        outcome = webhook.deliver(_notice()).run()
        assert (outcome.kind, receiver.count) == (FAILED, 0)
        assert "use https" in outcome.why


@pytest.mark.parametrize("trouble", ["missing", "mode", "empty", "long", "directory", "link"])
def test_a_secret_that_others_could_know_signs_nothing(world: World, secret_file: Path, trouble: str) -> None:
    if trouble == "missing":
        secret_file.unlink()
    elif trouble == "mode":
        secret_file.chmod(0o640)
    elif trouble == "empty":
        secret_file.write_text("\n")
    elif trouble == "long":
        secret_file.write_text("x" * 5000)
    elif trouble == "directory":
        secret_file.unlink()
        secret_file.mkdir(mode=stat.S_IRWXU)
    else:
        secret_file.rename(world.root / "moved")
        secret_file.symlink_to(world.root / "moved")
    with Receiver() as receiver:
        outcome = _webhook(receiver.url, secret_file).deliver(_notice()).run()
        assert (outcome.kind, receiver.count) == (AGAIN, 0), "it can be put right until the next try"
    assert str(secret_file) in outcome.why


def test_a_secret_is_the_bytes_of_its_file(secret_file: Path) -> None:
    secret_file.write_bytes(b"  \xff key \r\n")
    assert read_secret(str(secret_file)) == b"  \xff key "


def test_a_bell_is_rung_with_the_title() -> None:
    rung: list[str] = []

    def ring(text: str) -> int:
        rung.append(text)
        return 0

    assert Bell(ring).deliver(_notice()).run().kind == DELIVERED
    assert rung == ["build failed, exit code 7"]


@pytest.mark.covers("found:48")
@pytest.mark.parametrize("text", ["--help", "-rf", "-", "@/etc/passwd", "+x"])
def test_what_a_session_says_cannot_become_an_option_of_the_program(world: World, text: str) -> None:
    """A real parser of options at the other end, for each field that a session chooses."""
    said = world.root / "said"
    code = (
        "import argparse, json, sys\n"
        "parser = argparse.ArgumentParser(prefix_chars='-+', fromfile_prefix_chars='@')\n"
        "parser.add_argument('words', nargs='*')\n"
        f"json.dump(parser.parse_args().words, open({str(said)!r}, 'w'))\n"
    )
    words = [*(f"{{{name}}}" for name in PLACEHOLDERS), "{name}{body}"]
    notice = _notice(text)
    notice.fields.update(dict.fromkeys(PLACEHOLDERS, text))
    assert Command([sys.executable, "-c", code, *words]).deliver(notice).run().kind == DELIVERED
    assert json.loads(said.read_text()) == [f" {text}"] * len(PLACEHOLDERS) + [f" {text}{text}"]
    # What the configuration itself begins with stays as it is written there.
    assert arguments(["--title={title}", "-b{body}", "{unknown}"], notice.fields)[:2] == [
        f"--title={text}",
        f"-b{text}",
    ]
