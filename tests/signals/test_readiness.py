"""Ready, healthy, still alive, late, waiting for input: the signals of a running session, with real commands."""

from __future__ import annotations

import json
import os
import random
import socket
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import BadArgument
from support.faults import kill_runner
from support.signal_file import of, records
from support.viewer import Viewer
from support.waiting import until

if TYPE_CHECKING:
    from holdfast import Holdfast, Session
    from support.world import World

# Waits for the gate, then serves.
SERVER = """
import http.server, sys
open(sys.argv[2], "rb", buffering=0).read(1)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def reported(world: World, session: Session, variant: str) -> list[dict[str, Any]]:
    parts = ("routed", "mono_ns")
    return [{**each[variant], **{part: each[part] for part in parts}} for each in of(world, session.id, variant)]


def first(world: World, session: Session, variant: str, bound: float = 10.0) -> dict[str, Any]:
    return until(lambda: reported(world, session, variant), bound, what=f"a signal {variant}")[0]


def free_port() -> int:
    """Not from the range that the kernel assigns by itself: no other process gets it before the session does."""
    for port in random.SystemRandom().sample(range(10_240, 32_768), 100):
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
    raise AssertionError("no port is free")


@pytest.fixture
def hf(world: World) -> Holdfast:
    return world.open()


@pytest.mark.covers("signals:35")
def test_the_sessions_own_listener_makes_it_ready_once(world: World, hf: Holdfast) -> None:
    port, gate = free_port(), world.gate()
    session = hf.start([sys.executable, "-c", SERVER, str(port), str(gate)], ready=f"port:{port}")
    assert session.wait(output=True, ready=True, timeout=0.3).reason == "timeout"
    gate.release()
    assert session.wait(ready=True, timeout=30).reason == "ready"
    (ready,) = reported(world, session, "ready")
    assert ready["ok"]
    assert ready["probe"] == f"port:{port}"
    assert f"held by pid {session.pid}" in ready["detail"]
    session.stop(grace=0)
    assert len(reported(world, session, "ready")) == 1


@pytest.mark.covers("signals:35")
def test_a_foreign_listener_is_named_and_the_session_continues(world: World, hf: Holdfast) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        session = hf.start(["sleep", "600"], ready={"port": port, "timeout": 0.5})
        assert session.wait(ready=True, timeout=30).reason == "not_ready"
        (ready,) = reported(world, session, "ready")
        assert not ready["ok"]
        assert f"port {port} is held by pid {os.getpid()} " in ready["detail"]
        assert session.refresh().state == "running"
        session.stop(grace=0)


def test_a_listener_in_a_grandchild_that_left_its_parents_counts(world: World, hf: Holdfast) -> None:
    port = free_port()
    session = hf.start(world.probe("daemon", "{", "serve", port, "}", "forever"), ready=f"port:{port}")
    assert session.wait(ready=True, timeout=30).reason == "ready"
    session.stop(grace=0)


def test_a_url_that_answers_makes_it_ready(world: World, hf: Holdfast) -> None:
    port, gate = free_port(), world.gate()
    gate.release()
    argv = [sys.executable, "-c", SERVER, str(port), str(gate)]
    session = hf.start(argv, ready=f"http://127.0.0.1:{port}/health")
    assert session.wait(ready=True, timeout=30).reason == "ready"
    assert reported(world, session, "ready")[0]["detail"] == f"127.0.0.1:{port} answers 200"
    session.stop(grace=0)


def test_a_line_or_a_host_makes_it_ready(world: World, hf: Holdfast) -> None:
    session = hf.start(["sh", "-c", "printf 'now re'; printf 'ady\\n'; sleep 600"], ready="line:ready")
    assert session.wait(ready=True, timeout=30).reason == "ready"
    assert reported(world, session, "ready")[0]["detail"] == "stdout:0: now ready"
    session.stop(grace=0)
    session = hf.start(["sleep", "600"], ready={"told": True})
    session.update(ready=True)
    assert session.wait(ready=True, timeout=30).reason == "ready"
    session.stop(grace=0)


def test_an_end_before_it_was_ready_is_no_ready(world: World, hf: Holdfast) -> None:
    session = hf.start(["true"], ready="line:never", owner="agent", notify="never")
    session.wait(timeout=30)
    (ready,) = reported(world, session, "ready")
    assert (ready["ok"], ready["detail"]) == (False, "the command ended before it was ready")
    text = hf.signals("agent").drain("native").text
    assert "is not ready" in text
    assert "left running" not in text


def test_what_no_runner_can_probe_is_refused_before_anything_is_started(hf: Holdfast) -> None:
    with pytest.raises(BadArgument, match="only sends http:"):
        hf.start(["sleep", "600"], ready={"http": "https://localhost/"})
    assert hf.sessions() == []


@pytest.mark.covers("signals:34")
def test_a_heartbeat_that_is_too_quick_is_raised_with_a_note(hf: Holdfast) -> None:
    session = hf.start(["sleep", "600"], heartbeat=5)
    assert any("heartbeat" in note and "60 s" in note for note in session.refresh().metadata["notes"])
    session.stop(grace=0)


@pytest.mark.slow
@pytest.mark.covers("signals:34")
def test_a_printing_session_beats_and_a_silent_one_does_not(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    config = world.root / "config.toml"
    config.write_text('[session]\nheartbeat_floor = "1s"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    hf = world.open()
    silent = hf.start(["sleep", "600"], heartbeat=1)
    gate = world.gate()
    session = hf.start(["sh", "-c", f"echo first; head -c 1 < {gate} > /dev/null; echo second; sleep 600"], heartbeat=1)
    until(lambda: reported(world, session, "heartbeat"), what="the first heartbeat")
    gate.release()
    until(lambda: len(reported(world, session, "heartbeat")) == 2, what="the second heartbeat")
    one, two = reported(world, session, "heartbeat")
    assert [(beat["n"], beat["tail"], beat["offset"], beat["new_lines"]) for beat in (one, two)] == [
        (1, "first", 0, 1),
        (2, "second", 6, 1),
    ]
    assert two["routed"] is True
    assert reported(world, silent, "heartbeat") == []
    for each in (session, silent):
        each.stop(grace=0)
    assert len(reported(world, session, "heartbeat")) == 2


@pytest.mark.covers("signals:34")
def test_a_soft_deadline_reports_at_1_2_and_4_times_and_kills_nothing(world: World, hf: Holdfast) -> None:
    session = hf.start(["sleep", "600"], soft=1, timeout=100)
    until(lambda: len(reported(world, session, "deadline")) == 3, 30.0, what="the third reminder")
    deadlines = reported(world, session, "deadline")
    assert [each["n"] for each in deadlines] == [1, 2, 4]
    for each in deadlines:
        assert each["n"] <= each["elapsed_s"] < each["n"] * 2, "and not when the next was due"
        assert each["elapsed_s"] + each["hard_in_s"] == pytest.approx(100.0, abs=0.01)
    assert session.refresh().state == "running"
    session.stop(grace=0)


@pytest.mark.covers("signals:36")
def test_a_hidden_read_on_a_terminal_is_reported_as_a_secret(world: World, hf: Holdfast) -> None:
    session = hf.start(["bash", "-c", "read -s -p 'Password: ' x; read -s -p 'Again: ' y"], tty=True)
    asked = first(world, session, "needs_input")
    assert (asked["confidence"], asked["secret"], asked["kind"]) == ("high", True, "secret")
    assert asked["line"] == "Password:"
    assert asked["routed"] is True
    assert {"blocked_read", "echo_off"} <= set(asked["evidence"])
    (snapshot,) = (record["snapshot"] for record in records(world, session.id) if "needs_input" in record)
    assert (snapshot["needs_input"]["kind"], snapshot["needs_input"]["secret"]) == ("secret", True)
    assert "line" not in snapshot["needs_input"]
    session.kill()


@pytest.mark.slow
@pytest.mark.covers("signals:36")
def test_a_sleeper_needs_no_input(world: World, hf: Holdfast) -> None:
    on_terminal = hf.start(["sleep", "60"], tty=True)
    on_pipes = hf.start(["sleep", "60"], stdin="open")
    # One that does read, and was started later: when it was found, the sleeper was looked at too.
    reader = hf.start(["cat"], stdin="open")
    until(lambda: on_terminal.refresh().metadata["input_state"] == "quiet", what="the state quiet")
    first(world, reader, "needs_input")
    reader.kill()
    for session in (on_terminal, on_pipes):
        assert reported(world, session, "needs_input") == []
        session.kill()


@pytest.mark.slow
@pytest.mark.covers("signals:36")
def test_a_person_who_types_is_not_notified_of_visible_output(world: World, hf: Holdfast) -> None:
    session = hf.start(["bash", "-c", "echo ready; read -n 1 start; read -s -p 'Password: ' x"], tty=True)
    session.wait(match="ready", timeout=30)
    viewer = Viewer(world.closing.enter_context(session.attach(kind="cli")))
    viewer.take(5)
    viewer.attachment.send(b"y")
    typed_ns = time.monotonic_ns()

    def asked() -> list[dict[str, Any]]:
        return [each for each in reported(world, session, "needs_input") if each["routed"]]

    until(lambda: session.refresh().needs_input is not None, what="the question")
    (question,) = until(asked, what="the signal, once no key is typed")
    assert question["mono_ns"] - typed_ns >= 4.9e9
    assert (question["confidence"], question["secret"]) == ("high", True)
    session.kill()


def test_a_soft_deadline_that_comes_later_counts_from_the_beginning_all_the_same(world: World, hf: Holdfast) -> None:
    """On faulty code it counted from the update."""
    session = hf.start(world.probe("sleep", 0.4, "say", "late", "forever"))
    assert session.wait(match="late", timeout=30).reason == "match"
    session.update(soft=0.1)
    reported = first(world, session, "deadline")
    assert reported["elapsed_s"] >= 0.4
    assert reported["n"] >= 4, "the last of those that have passed"
    session.kill()


def test_a_reader_of_a_pipe_needs_input_after_a_while(world: World, hf: Holdfast) -> None:
    session = hf.start(["sh", "-c", "printf 'Your name? '; read name; echo hello $name"], stdin="open")
    asked = first(world, session, "needs_input")
    assert (asked["confidence"], asked["kind"], asked["line"], asked["offset"]) == (
        "medium",
        "question",
        "Your name?",
        11,
    )
    assert session.refresh().needs_input is not None
    (snapshot,) = (record["snapshot"] for record in records(world, session.id) if "needs_input" in record)
    assert snapshot["needs_input"]["kind"] == "question"
    assert "Your name" not in json.dumps({**snapshot, "command": None, "description": None}), "nothing that it printed"
    session.send("world\n")
    session.wait(timeout=30)
    assert session.text().endswith("hello world\n")


@pytest.mark.slow
def test_a_health_command_is_reported_by_its_changes_and_is_no_part_of_the_tree(world: World, hf: Holdfast) -> None:
    well = world.cwd / "well"
    well.touch()
    session = hf.start(
        ["sleep", "600"],
        ready={"told": True},
        health={"command": ["sh", "-c", f"test -e {well} || echo ill; test -e {well}"], "interval": 5, "misses": 1},
    )
    session.update(ready=True)
    assert first(world, session, "health")["state"] == "healthy"
    well.unlink()
    until(lambda: len(reported(world, session, "health")) == 2, what="the change")
    ill = reported(world, session, "health")[1]
    assert (ill["state"], ill["evidence"]) == ("unhealthy", "sh exited with 1: ill")
    assert session.refresh().health == "unhealthy"
    result = session.stop(grace=0)
    assert [each["command"] for each in result.found] == ["sleep 600"]
    assert session.refresh().health == "unhealthy"


def test_the_last_health_is_known_when_the_runner_is_not(world: World, hf: Holdfast) -> None:
    world.closing.callback(hf.collect)
    session = hf.start(["sleep", "600"], ready={"told": True}, health={"command": ["true"], "interval": 5})
    session.update(ready=True)
    assert first(world, session, "health")["state"] == "healthy"
    kill_runner(session)
    assert (session.refresh().state, session.health) == ("stale", "stale")
    assert session.records()["state"]["health"] == "healthy"
    session.kill()
