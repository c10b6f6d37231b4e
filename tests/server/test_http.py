"""The calls of the library over HTTP: what is asked for happens, and every answer says what it is."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import signal
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

import pytest
from websockets.sync.client import connect

from holdfast.config.settings import Settings
from holdfast.core.clock import now_text
from holdfast.model import SESSION_KEYS
from holdfast.server.endpoints import openapi
from holdfast.server.routes.sessions import _CLEAN_NAMES
from support import processes
from support.own_time import QuietTime
from support.scale import scaled
from support.serving import (
    START_BOUND_S,
    EventReader,
    Serving,
    also_through_a_node,
    closed_with,
    ended,
    filled,
    request,
    started,
)
from support.session_files import copied
from support.through_nodes import ThroughNode
from support.waiting import until
from support.webviewer import WebViewer

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from support.serving import Answer
    from support.world import World


@also_through_a_node
def test_a_session_is_started_read_changed_and_removed(serving: Serving) -> None:
    session = started(serving, "echo one; echo two", name="job", labels={"team": "web"}, owner="agent-7")
    assert set(session) == set(SESSION_KEYS)
    assert ended(serving, session["id"])["status"] == "completed"
    one = serving.call("GET", "/v1/sessions/job").json
    listed = serving.call("GET", "/v1/sessions?label=team:web&owner=agent-7&q=echo").json
    assert [each["id"] for each in listed["items"]] == [session["id"]]
    assert {**listed["items"][0], "observed_at": 0} == {**one, "observed_at": 0}
    assert serving.call("GET", "/v1/sessions?label=team:other").json["items"] == []
    assert serving.call("GET", "/v1/sessions?state=running").json["items"] == []
    assert serving.call("PATCH", f"/v1/sessions/{session['id']}", {"owner": "agent-8"}).json["owner"] == "agent-8"
    assert serving.call("DELETE", f"/v1/sessions/{session['id']}").status == 204
    assert serving.call("GET", f"/v1/sessions/{session['id']}").slug == "removed"
    assert serving.call("GET", "/v1/sessions").json["items"] == []


@also_through_a_node
def test_sessions_are_listed_by_the_time_of_their_creation(serving: Serving) -> None:
    session = started(serving, "true")
    ended(serving, session["id"])
    at = session["created_at"]
    east = datetime.fromisoformat(at).astimezone(timezone(timedelta(hours=9))).isoformat().replace("+", "%2B")
    for query, is_listed in (
        (f"since={at}", True),
        (f"until={at}", True),
        (f"since={east}&until={east}", True),
        ("since=2001-01-01", True),
        ("until=2001-01-01T00:00:00Z", False),
        ("since=9000-01-01", False),
    ):
        assert bool(serving.call("GET", f"/v1/sessions?{query}").json["items"]) == is_listed, query
    for name in ("since", "until"):
        for wrong in ("yesterday", "", "2026-13-01", "zz", "0001-01-01T00:00:00%2B09:00"):
            refused = serving.call("GET", f"/v1/sessions?{name}={wrong}")
            assert (refused.status, refused.slug) == (400, "bad-argument"), wrong


def test_a_server_is_ready_if_it_can_read_its_home_and_use_the_index(serving: Serving, world: World) -> None:
    def ready() -> tuple[int, dict[str, Any]]:
        answer = serving.ask("/readyz", {"Host": serving.address})
        return answer.status, answer.json

    started(serving, "true")
    assert ready() == (200, {"ok": True})
    index = world.home / "index.db"
    index.unlink()
    # It is made anew.
    assert ready() == (200, {"ok": True})
    index.unlink()
    index.mkdir()
    assert ready()[0] == 503
    assert serving.call("GET", "/v1/signals").slug == "busy"
    index.rmdir()
    until(lambda: ready()[0] == 200)


def test_the_access_log_has_a_line_for_each_request_and_nothing_of_its_content(world: World) -> None:
    serving = Serving(world, "--verbose")
    session = started(serving, "true", name="hidden")
    serving.call("GET", "/v1/sessions?q=hidden")
    assert serving.leave() == 0
    first, second = serving.program.errors().splitlines()
    form = r"\d{4}-\d\d-\d\dT[\d:.]+Z %s /v1/sessions %d [\d.]+ ms \d+ bytes home [0-9a-f]{16}"
    assert re.fullmatch(form % ("POST", 201), first)
    assert re.fullmatch(form % ("GET", 200), second)
    assert session["id"] not in first
    quiet = Serving(world)
    quiet.call("GET", "/v1/sessions")
    assert quiet.leave() == 0
    assert quiet.program.errors() == ""


@also_through_a_node
def test_a_session_has_few_variables_unless_those_of_the_server_are_asked_for(serving: Serving) -> None:
    for base, options in (("clean", {}), ("server", {"env_base": "server"})):
        id = started(serving, "env", env={"GIVEN": "1"}, **options)["id"]
        ended(serving, id)
        text = serving.call("GET", f"/v1/sessions/{id}/output").json["text"]
        names = {line.partition("=")[0] for line in text.splitlines()}
        assert {"GIVEN", "PATH", "HOME"} <= names
        assert ("HOLDFAST_HOME" in names or "XDG_RUNTIME_DIR" in names) == (base == "server")


@also_through_a_node
def test_a_running_session_is_typed_into_signalled_and_stopped(serving: Serving) -> None:
    id = started(serving, "cat", stdin="open")["id"]
    assert serving.call("DELETE", f"/v1/sessions/{id}").slug == "still-running"
    typed = serving.call(
        "POST", f"/v1/sessions/{id}/input", {"write": "hello\n", "wait_for": {"output": True, "timeout": 10}}
    )
    assert typed.json["accepted"] == 6
    assert typed.json["woke"]["reason"] == "output"
    raw = serving.call("POST", f"/v1/sessions/{id}/input", {"write": {"data": "/wo="}})
    assert raw.json["accepted"] == 2
    assert serving.call("POST", f"/v1/sessions/{id}/input", {"write": "a", "eof": True}).slug == "bad-request"
    assert serving.call("POST", f"/v1/sessions/{id}/input", {"keys": ["Enter"]}).slug == "not-a-tty"
    assert serving.call("POST", f"/v1/sessions/{id}/send-signal", {"signal": "CONT"}).json["sent"] == 1
    wrong = serving.call("POST", f"/v1/sessions/{id}/send-signal", {"signal": "NOPE"})
    assert wrong.slug == "bad-argument"
    assert wrong.json["errors"][0]["pointer"] == "/signal"
    stopped = serving.call("POST", f"/v1/sessions/{id}/stop", {"grace": 5, "reason": "enough"})
    assert stopped.status == 200
    assert stopped.json["survivors"] == []
    assert stopped.json["signal_id"] == f"{id}.2"
    # Through a node, the author has the name of its view.
    assert re.sub("@[a-z0-9-]+", "", stopped.json["exit"]["by"]) == "web:home: enough"
    again = serving.call("POST", f"/v1/sessions/{id}/stop", {})
    assert (again.status, again.json["state"]) == (200, "exited")
    assert serving.call("POST", f"/v1/sessions/{id}/input", {"write": "x"}).slug == "session-ended"


@also_through_a_node
def test_what_was_accepted_and_what_was_written_are_different_facts(serving: Serving) -> None:
    terminal = started(serving, "stty -echo; echo ready; exec cat", tty=True)["id"]
    serving.call("GET", f"/v1/sessions/{terminal}/wait?until=match&match=ready&timeout=30")
    reader, other = (started(serving, command, stdin="open")["id"] for command in ("exec cat", "exec sleep 600"))
    for id, body, accepted, written in (
        (reader, {"write": "hello\n"}, 6, 6),
        (terminal, {"keys": ["Up", "a"]}, 4, 4),
        # More than fits into a pipe.
        (other, {"write": "x" * 200_000}, 200_000, None),
        # The moment before Enter.
        (terminal, {"submit": "a", "enter_delay_ms": 5000}, 2, None),
    ):
        typed = serving.call("POST", f"/v1/sessions/{id}/input", body).json
        assert (typed["accepted"], typed["written"]) == (accepted, written), body
    for id in (reader, other, terminal):
        serving.call("POST", f"/v1/sessions/{id}/stop", {"grace": 0})


@also_through_a_node
def test_output_is_read_by_cursor_and_the_log_by_range(serving: Serving) -> None:
    id = started(serving, "printf 'a\\303\\251\\n'; printf 'err\\n' >&2; printf 'z\\n'")["id"]
    ended(serving, id)
    page = serving.call("GET", f"/v1/sessions/{id}/output?limit=4").json
    assert (page["text"], page["cursor"], page["end"]) == ("aé\n", "stdout:4", 6)
    assert page["more"]
    rest = serving.call("GET", f"/v1/sessions/{id}/output?since={page['cursor']}&format=raw").json
    assert b64decode(rest["data"]) == b"z\n"
    assert rest["output_complete"]
    assert rest["signal_id"] == f"{id}.2"
    both = serving.call("GET", f"/v1/sessions/{id}/output?stream=all").json
    assert sorted({chunk["stream"] for chunk in both["chunks"]}) == ["stderr", "stdout"]
    assert serving.call("GET", f"/v1/sessions/{id}/tail?lines=1").json["text"] == "z\n"
    whole = serving.call("GET", f"/v1/sessions/{id}/log/stdout")
    assert whole.body == b"a\xc3\xa9\nz\n"
    assert (
        serving.call("GET", f"/v1/sessions/{id}/log/stdout", **{"If-None-Match": whole.headers["etag"]}).status == 304
    )
    part = serving.call("GET", f"/v1/sessions/{id}/log/stdout", Range="bytes=1-3")
    assert (part.status, part.body) == (206, b"\xc3\xa9\n")
    assert part.headers["content-range"] == "bytes 1-3/6"
    assert serving.call("GET", f"/v1/sessions/{id}/log/stdout", Range="bytes=-2").body == b"z\n"
    assert serving.call("GET", f"/v1/sessions/{id}/log/stdout", Range="bytes=6-").slug == "offset-ahead"
    assert serving.call("HEAD", f"/v1/sessions/{id}/log/stdout").status == 200


def test_head_answers_as_get_without_the_body(serving: Serving) -> None:
    id = started(serving, "printf 'a\\nb'", tty=True)["id"]
    ended(serving, id)
    for path in ("", "/log/tty", "/export", "/screen", "/output"):
        target = f"/v1/sessions/{id}{path}"
        got, asked = (serving.call(method, target) for method in ("GET", "HEAD"))
        assert (asked.status, asked.body) == (200, b"")
        assert {**asked.headers, "date": ""} == {**got.headers, "date": ""}, path


@also_through_a_node
def test_lines_before_a_cursor_are_those_of_that_moment_on_all_streams(serving: Serving, world: World) -> None:
    steps = ("echo a", world.until_logged("a"), "echo b >&2", world.until_logged("b"), "echo c")
    id = started(serving, "; ".join(steps), env_base="server")["id"]
    ended(serving, id)
    ask = f"/v1/sessions/{id}/tail?stream=all&before="
    assert [serving.call("GET", ask + at).json["text"] for at in ("stdout:2", "stderr:0", "stdout:0")] == [
        *("a\nb\n", "a\n", "")
    ]
    page = serving.call("GET", ask + "stdout:2&lines=1").json
    assert (page["text"], page["cursor"]) == ("b\n", "stdout:2,stderr:2")
    assert serving.call("GET", ask + "stdout:99").slug == "offset-ahead"


@also_through_a_node
def test_the_spec_names_what_was_given_and_no_value_of_a_variable(serving: Serving) -> None:
    id = started(serving, ["true"], env={"HIDDEN": "value"}, labels={"a": "b"}, timeout=30)["id"]
    spec = serving.call("GET", f"/v1/sessions/{id}/spec")
    assert spec.json["env_names"] == ["HIDDEN"]
    assert {"command": ["true"], "labels": {"a": "b"}, "timeout": 30}.items() <= spec.json["options"].items()
    assert b"value" not in spec.body


def test_the_spec_names_the_owning_process_while_that_runs(serving: Serving, world: World) -> None:
    owner = world.program(["cat"])
    id = started(serving, ["sleep", "600"], lifetime="owner", owner_pid=owner.pid)["id"]
    spec = f"/v1/sessions/{id}/spec"
    assert serving.call("GET", spec).json["options"]["owner_pid"] == owner.pid
    owner.close_stdin()
    owner.wait(30)
    assert "owner_pid" not in serving.call("GET", spec).json["options"]


@also_through_a_node
def test_output_is_waited_for(serving: Serving, world: World) -> None:
    gate = world.gate()
    id = started(serving, world.probe("quiet", "await", gate.path, "lines", 1), env_base="server")["id"]
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(serving.call, "GET", f"/v1/sessions/{id}/output?wait=20")
        gate.release()
        assert waiting.result(30).json["text"] == "line 1\n"
    assert serving.call("GET", f"/v1/sessions/{id}/output?wait=61").slug == "bad-argument"
    assert serving.call("GET", f"/v1/sessions/{id}/wait?until=never").slug == "bad-argument"
    assert serving.call("GET", f"/v1/sessions/{id}/wait?until=match&match=lin.&timeout=30").json["match"] == "line 1"


@also_through_a_node
def test_the_screen_of_a_terminal_is_shown_in_every_format_and_resized(serving: Serving) -> None:
    id = started(serving, "printf '\\033[31mred\\033[0m'; exec cat", tty=True, size=[10, 40])["id"]
    serving.call("GET", f"/v1/sessions/{id}/wait?until=match&match=red&timeout=30")
    shown = serving.call("GET", f"/v1/sessions/{id}/screen")
    assert shown.body == b"red"
    assert shown.headers["etag"] == '"12"'
    for tag, status in (('"12"', 304), ('"7", W/"12"', 304), ("*", 304), ('"11"', 200), ("12", 200)):
        again = serving.call("GET", f"/v1/sessions/{id}/screen", **{"If-None-Match": tag})
        assert (again.status, again.body) == (status, b"" if status == 304 else b"red")
    assert serving.call("GET", f"/v1/sessions/{id}/screen?format=json").json["size"] == [10, 40]
    assert b"31mred" in serving.call("GET", f"/v1/sessions/{id}/screen?format=ansi").body
    assert serving.call("GET", f"/v1/sessions/{id}/screen?format=svg").body.startswith(b"<svg")
    assert serving.call("GET", f"/v1/sessions/{id}/screen?at=99").slug == "offset-ahead"
    restored = serving.call("GET", f"/v1/sessions/{id}/screen?format=restore&at=3")
    assert (restored.headers["holdfast-offset"], restored.headers["holdfast-size"]) == ("3", "40x10")
    # In the middle of a sequence: the output behind it completes it.
    assert restored.body.endswith(b"\x1b[3")
    resized = serving.call("POST", f"/v1/sessions/{id}/resize", {"rows": 20, "cols": 50})
    assert resized.json["size"] == [20, 50]
    # It shows something else, and nothing was printed.
    assert serving.call("GET", f"/v1/sessions/{id}/screen", **{"If-None-Match": '"12"'}).status == 200
    assert serving.call("POST", f"/v1/sessions/{id}/resize", {"rows": 0, "cols": 50}).slug == "bad-size"
    several = serving.call("GET", f"/v1/screens?ids={id},nobody")
    assert several.json["items"][0]["text"] == "red"
    assert several.json["items"][1]["problem"]["status"] == 404
    assert (
        serving.call("GET", f"/v1/screens?ids={id},nobody", **{"If-None-Match": several.headers["etag"]}).status == 304
    )

    def last_slice() -> str:
        return str(serving.call("GET", f"/v1/sessions/{id}/frames?buckets=4").json["items"][-1]["from"])

    # It prints nothing, and its time goes on.
    before = last_slice()
    until(lambda: last_slice() > before)
    serving.call("POST", f"/v1/sessions/{id}/stop", {"grace": 0})
    recorded = serving.call("GET", f"/v1/sessions/{id}/export")
    assert json.loads(recorded.body.splitlines()[0])["version"] == 3
    frames = serving.call("GET", f"/v1/sessions/{id}/frames").json["items"]
    assert [each["kind"] for each in frames].count("resize") >= 1
    slices = serving.call("GET", f"/v1/sessions/{id}/frames?buckets=4").json["items"]
    assert sum(each["bytes"] for each in slices) == frames[-1]["offset"] + frames[-1].get("length", 0)
    assert "end" in [mark["kind"] for each in slices for mark in each["marks"]]


@pytest.mark.parametrize("direction", ["newest", "oldest"])
def test_a_search_that_finds_nothing_in_its_time_says_where_it_goes_on(
    world: World, monkeypatch: pytest.MonkeyPatch, direction: str
) -> None:
    monkeypatch.setenv("HOLDFAST_SERVER_SEARCH_TIME", "0.1")
    serving = Serving(world)
    lines = "yes \"$(printf '\\033[31ma line in red\\033[0m')\" | head -n 2000000"
    id = started(serving, f"echo; echo wanted; {lines}; echo wanted; echo")["id"]
    ended(serving, id)
    bound = ("after", 8) if direction == "oldest" else ("before", 23 * 2_000_000)
    target = f"/v1/sessions/{id}/search?text=wanted&direction={direction}&limit=1"
    at, pages = bound[1], 0
    while True:
        page = serving.call("GET", f"{target}&{bound[0]}={at}").json
        pages += 1
        if page["hits"] or page["complete"]:
            break
        assert page["next"] >= at if direction == "oldest" else page["next"] <= at
        at = page["next"]
        if pages == 3:  # on a busy machine there would be very many
            serving.leave()
            monkeypatch.delenv("HOLDFAST_SERVER_SEARCH_TIME")
            serving = Serving(world)
    assert [hit["text"] for hit in page["hits"]] == ["wanted"]
    assert pages > 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_process_for_the_next_search_is_started_ahead_and_ends_with_the_server(
    serving: Serving, number: signal.Signals
) -> None:
    def workers() -> list[int]:
        return [each.pid for each in processes.below(serving.pid) if "searching" in processes.command_line(each.pid)]

    id = started(serving, "echo wanted")["id"]
    ended(serving, id)
    assert workers() == []
    spares: list[int] = []
    for _ in range(3):
        assert serving.call("GET", f"/v1/sessions/{id}/search?text=wanted").json["complete"]
        (spare,) = until(workers)
        # The one that was there has searched.
        assert spare not in spares
        assert all(processes.is_gone(pid) for pid in spares)
        spares.append(spare)
    serving.kill(number)
    until(lambda: processes.is_gone(spare))


@also_through_a_node
def test_a_log_is_searched_newest_first_and_page_by_page(serving: Serving) -> None:
    id = started(serving, "for n in 1 2 3 4 5; do echo line $n; done")["id"]
    ended(serving, id)
    page = serving.call("GET", f"/v1/sessions/{id}/search?re=line.[0-9]&limit=2&context=1").json
    assert [hit["text"] for hit in page["hits"]] == ["line 5", "line 4"]
    assert [hit["line"] for hit in page["hits"]] == [5, 4]
    assert page["hits"][1]["before"] == ["line 3"]
    assert not page["complete"]
    rest = serving.call("GET", f"/v1/sessions/{id}/search?re=line.[0-9]&before={page['next']}").json
    assert [hit["text"] for hit in rest["hits"]] == ["line 3", "line 2", "line 1"]
    assert rest["complete"]
    literal = serving.call("GET", f"/v1/sessions/{id}/search?text=e%205&direction=oldest").json
    assert literal["hits"][0]["spans"] == [[3, 6]]
    assert serving.call("GET", f"/v1/sessions/{id}/search?re=(").slug == "bad-argument"
    assert serving.call("GET", f"/v1/sessions/{id}/search?re=a&text=b").slug == "bad-argument"


@pytest.mark.covers("server:14")
@also_through_a_node
def test_one_idempotency_key_is_one_session(serving: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = {"command": "true", "name": None, "env": {"GIVEN": "secret-7"}}

    def ask(_: int, **more: object) -> Answer:
        return serving.call("POST", "/v1/sessions", {**body, **more}, **{"Idempotency-Key": "k1"})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, range(8)))
    assert {answer.status for answer in answers} == {201}
    (id,) = {answer.json["id"] for answer in answers}
    ended(serving, id)
    # Also after its end, and from a server that was started elsewhere, with other variables and settings.
    own = serving.direct if isinstance(serving, ThroughNode) else serving
    own.leave()
    monkeypatch.chdir(tmp_path)
    for name, value in {"LOGNAME": "other", "TZ": "UTC", "HOLDFAST_START_GRACE": "7", "HOLDFAST_TEST": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("LANG", raising=False)
    own.start()
    until(lambda: serving.call("GET", "/v1/info").status == 200)
    assert ask(0).json["id"] == id
    for other in ({"description": "another"}, {"env": {"GIVEN": "secret-8"}}, {"cwd": "/"}, {"timeout": 60}):
        refused = ask(0, **other)
        assert (refused.status, refused.slug, refused.json["holder"]) == (409, "key-reused", id), other
    assert len(serving.call("GET", "/v1/sessions").json["items"]) == 1
    # A restart is another attempt of the same request.
    again = own.world.open().get(id).restart(env=dict.fromkeys(("GIVEN", *_CLEAN_NAMES)), grace=0)
    assert ask(0).json["id"] == again.id
    again.wait(timeout=30)


@pytest.mark.covers("server:16")
@also_through_a_node
def test_pages_neither_miss_nor_repeat_sessions_that_existed_throughout(serving: Serving) -> None:
    kept = [started(serving, "true")["id"] for _ in range(4)]
    for sort in ("created", "ended", "activity", "name"):
        gone = [started(serving, "true")["id"] for _ in range(3)]
        for id in (*kept, *gone):
            ended(serving, id)
        running = [started(serving, "exec cat", stdin="open")["id"] for _ in range(4)]
        kept += running
        seen: list[str] = []
        after = ""
        while True:
            page = serving.call("GET", f"/v1/sessions?limit=2&sort={sort}{after}").json
            seen += [each["id"] for each in page["items"]]
            if page["next"] is None:
                break
            after = f"&after={page['next']}"
            started(serving, "true")
            if gone:
                assert serving.call("DELETE", f"/v1/sessions/{gone.pop()}").status == 204
            if moved := next((id for id in running if id not in seen), None):
                # What was not listed yet moves to the front: by its output, and by its end.
                running.remove(moved)
                typed = {"write": "x", "wait_for": {"output": True, "timeout": 10}}
                assert serving.call("POST", f"/v1/sessions/{moved}/input", typed).status == 200
                if sort != "activity":
                    serving.call("POST", f"/v1/sessions/{moved}/stop", {"grace": 0})
        assert not gone
        assert len(seen) == len(set(seen))
        assert set(kept) <= set(seen)
        for id in kept:
            serving.call("POST", f"/v1/sessions/{id}/stop", {"grace": 0})
    assert serving.call("GET", "/v1/sessions?after=nonsense").slug == "bad-cursor"


def test_by_activity_what_prints_again_after_it_was_listed_comes_once_more_and_nothing_is_missed(
    serving: Serving,
) -> None:
    ids = [started(serving, "exec cat", stdin="open")["id"] for _ in range(4)]
    page = serving.call("GET", "/v1/sessions?limit=2&sort=activity").json
    shown = [each["id"] for each in page["items"]]
    assert shown == ids[:1:-1]
    for id in shown[:1]:
        waits = {"output": True, "timeout": 10}
        serving.call("POST", f"/v1/sessions/{id}/input", {"write": "x", "wait_for": waits})
    rest = serving.call("GET", f"/v1/sessions?sort=activity&after={page['next']}").json["items"]
    assert [each["id"] for each in rest] == [*ids[1::-1], shown[0]]
    for id in ids:
        serving.call("POST", f"/v1/sessions/{id}/stop", {"grace": 0})


@pytest.mark.covers("server:17")
@also_through_a_node
def test_a_stopped_runner_is_unreachable_and_the_others_answer(serving: Serving) -> None:
    stuck, other = (started(serving, "exec cat", stdin="open") for _ in range(2))
    terminal = started(serving, "exec cat", tty=True)
    stopped = (stuck["runner_pid"], terminal["runner_pid"])
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    # A stop is missing: it ends the command also without its runner.
    writes: list[tuple[str, str, dict[str, Any]]] = [
        ("POST", f"{stuck['id']}/input", {"write": "x"}),
        ("POST", f"{stuck['id']}/close-stdin", {}),
        ("POST", f"{terminal['id']}/input", {"keys": ["a"]}),
        ("POST", f"{terminal['id']}/input", {"eof": True}),
        ("POST", f"{terminal['id']}/resize", {"cols": 90, "rows": 30}),
        ("POST", f"{stuck['id']}/send-signal", {"signal": "USR1"}),
        ("PATCH", stuck["id"], {"labels": {"a": "b"}}),
    ]

    def write(method: str, target: str, body: dict[str, Any]) -> Answer:
        sent = {"method": method, "body": json.dumps(body).encode(), "bound": 60}
        return serving.ask(f"/v1/sessions/{target}", {**serving.bearer, **TYPED}, **sent)

    try:
        with ThreadPoolExecutor(len(writes) + 1) as pool:
            passed = QuietTime()
            slow = pool.submit(serving.call, "GET", f"/v1/sessions/{stuck['id']}")
            assert serving.call("GET", f"/v1/sessions/{other['id']}").json["state"] == "running"
            assert (slow.result().status, slow.result().json["state"]) == (200, "unreachable")
            assert passed.seconds() < Settings.hosts_sweep_timeout
            waiting = [pool.submit(write, *each) for each in writes]
            assert serving.call("POST", f"/v1/sessions/{other['id']}/input", {"write": "x"}).status == 200
            assert serving.call("GET", "/v1/sessions?state=running").json["items"][0]["id"] == other["id"]
            assert not waiting[0].done()
            for each, asked in zip(waiting, writes, strict=True):
                assert (each.result().status, each.result().slug) == (504, "unreachable"), asked
        assert serving.call("DELETE", f"/v1/sessions/{stuck['id']}").slug == "still-running"
    finally:
        for pid in stopped:
            os.kill(pid, signal.SIGCONT)
    for id in (stuck["id"], other["id"], terminal["id"]):
        serving.call("POST", f"/v1/sessions/{id}/stop", {"grace": 0})


# Tokens.


def minted(serving: Serving, **options: Any) -> str:
    answer = serving.call("POST", "/v1/tokens", options)
    assert answer.status == 201, answer.body
    return str(answer.json["token"])


@pytest.mark.covers("server:11")
def test_a_token_that_observes_changes_nothing(serving: Serving, world: World) -> None:
    session = started(serving, "stty -echo; exec cat", tty=True)
    token = minted(serving, label="eye", scope="observe")
    paths = serving.call("GET", "/openapi.json").json["paths"]
    refused = 0
    for path, methods in paths.items():
        for method, operation in methods.items():
            if operation.get("x-scope") in ("control", "manage"):
                example = (operation.get("requestBody") or {}).get("content", {}).get("application/json", {})
                body = example.get("example", {}) if "requestBody" in operation else None
                target = filled(path, id=session["id"])
                answer = serving.call(method.upper(), target, body, token=token)
                assert answer.status in (403, 404), (method, path)
                refused += 1
    assert refused >= 20
    assert serving.call("GET", f"/v1/sessions/{session['id']}", token=token).json["state"] == "running"
    assert serving.call("POST", f"/v1/sessions/{session['id']}/tickets", {"role": "control"}, token=token).status == 403
    url = f"ws://127.0.0.1:{serving.port}/v1/sessions/{session['id']}/attach?role=observe"
    headers = {"Authorization": f"Bearer {token}"}
    with connect(url, subprotocols=["holdfast.v1.json"], additional_headers=headers, proxy=None) as viewer:  # type: ignore[list-item]
        assert json.loads(viewer.recv(START_BOUND_S))["role"] == "observe"
        viewer.send(json.dumps({"type": "input", "id": 1, "data": "typed\n"}))
        while (message := json.loads(viewer.recv(START_BOUND_S)))["type"] != "written":
            pass
        assert message["problem"]["type"] == "/problems/observe-only"
    assert not (world.session(session["id"]) / "inputs.jsonl").exists()
    serving.call("POST", f"/v1/sessions/{session['id']}/stop", {"grace": 0})
    assert serving.call("GET", f"/v1/sessions/{session['id']}/output").json["text"] == ""


def test_a_narrowed_token_knows_of_nothing_else(serving: Serving) -> None:
    mine = started(serving, "true", owner="agent-7", name="mine")
    other = started(serving, "true", owner="agent-8", name="other")
    token = minted(serving, label="seven", scope="manage", owner="agent-7")
    listed = serving.call("GET", "/v1/sessions", token=token).json["items"]
    assert [each["id"] for each in listed] == [mine["id"]]
    for ref in (other["id"], other["id"][:5], "other"):
        for method, path, body in (
            ("GET", "", None),
            ("DELETE", "", None),
            ("GET", "/output", None),
            ("POST", "/stop", {}),
            ("POST", "/tickets", {"role": "observe"}),
        ):
            assert serving.call(method, f"/v1/sessions/{ref}{path}", body, token=token).slug == "not-found"
    assert serving.call("POST", "/v1/tokens", {}, token=token).slug == "scope-missing"
    assert serving.call("POST", "/v1/sessions", {"command": "true", "owner": "agent-8"}, token=token).status == 403
    own = serving.call("POST", "/v1/sessions", {"command": "true"}, token=token).json
    assert own["owner"] == "agent-7"
    for id in (mine["id"], other["id"], own["id"]):
        ended(serving, id)
    signals = serving.call("GET", "/v1/signals", token=token).json["items"]
    assert {each["owner"] for each in signals} == {"agent-7"}


def test_the_owner_and_labels_of_a_token_are_checked_as_those_of_sessions_are(serving: Serving) -> None:
    # With its accent in a character of its own; sessions have both as one.
    owner = "Rene\u0301"
    mine = started(serving, "true", owner=owner, labels={"team": owner})
    for narrowing in ({"owner": owner}, {"labels": {"team": owner}}):
        token = minted(serving, scope="observe", **narrowing)
        listed = serving.call("GET", "/v1/sessions", token=token).json["items"]
        assert [each["id"] for each in listed] == [mine["id"]]
    for wrong in ({"label": "\x1b[2J"}, {"label": "\u202e"}, {"owner": "\0"}, {"labels": {"a": 1}}, {"labels": ["a"]}):
        assert serving.call("POST", "/v1/tokens", wrong).slug == "bad-argument", wrong


def test_a_narrowed_token_neither_learns_of_other_sessions_nor_moves_its_own_out_of_sight(serving: Serving) -> None:
    other = started(serving, "exec cat", stdin="open", owner="agent-8", name="other", key="shared")
    mine = started(serving, "exec cat", stdin="open", owner="agent-7", name="mine", labels={"team": "web"})
    by_owner = minted(serving, scope="manage", owner="agent-7")
    by_label = minted(serving, scope="manage", labels={"team": "web"})
    by_id = minted(serving, scope="manage", sessions=[mine["id"]])
    path = f"/v1/sessions/{mine['id']}"
    for token in (by_owner, by_label):
        for method, target, body, slug in (
            ("POST", "/v1/sessions", {"command": "true", "name": "other"}, "name-taken"),
            ("POST", "/v1/sessions", {"command": "true", "key": "shared"}, "key-reused"),
            ("PATCH", path, {"name": "other"}, "name-taken"),
        ):
            refused = serving.call(method, target, body, token=token)
            assert (refused.slug, refused.json["holder"]) == (slug, None)
            assert other["id"].encode() not in refused.body
    named = serving.call("POST", "/v1/sessions", {"command": "true", "name": "mine"}, token=by_owner)
    assert (named.slug, named.json["holder"]) == ("name-taken", mine["id"])
    # The same start again gives the session that there is, which has another owner by now.
    once = {"Idempotency-Key": "k1"}
    handed = serving.call("POST", "/v1/sessions", {"command": "sleep 60"}, token=by_owner, **once).json["id"]
    assert serving.call("PATCH", f"/v1/sessions/{handed}", {"owner": "agent-8"}).status == 200
    again = serving.call("POST", "/v1/sessions", {"command": "sleep 60"}, token=by_owner, **once)
    assert (again.slug, handed.encode() in again.body) == ("key-reused", False)
    for token, changes in (
        (by_owner, {"owner": "agent-8"}),
        (by_owner, {"owner": None}),
        (by_label, {"labels": {"team": "db"}}),
        (by_label, {"labels": None}),
        (by_label, {"labels": ["team"]}),
    ):
        assert serving.call("PATCH", path, changes, token=token).slug == "scope-missing", changes
    assert serving.call("POST", "/v1/sessions", {"command": "true", "owner": "agent-8"}, token=by_owner).status == 403
    wrong = {"command": "true", "labels": {"team": "db"}}
    assert serving.call("POST", "/v1/sessions", wrong, token=by_label).slug == "scope-missing"
    assert serving.call("POST", "/v1/sessions", {"command": "true"}, token=by_id).slug == "scope-missing"
    kept = serving.call("GET", path).json
    assert (kept["owner"], kept["labels"], kept["name"]) == ("agent-7", {"team": "web"}, "mine")
    # What leaves it in sight is done.
    kept = {"name": "renamed", "labels": {"team": "web", "tier": "1"}, "owner": "agent-7"}
    assert [serving.call("PATCH", path, kept, token=token).status for token in (by_owner, by_label, by_id)] == [
        *(200, 200, 200)
    ]
    link = serving.call("POST", f"{path}/links", {}, token=by_owner).json["url"].partition("#token=")[2]
    assert serving.call("GET", path, token=link).status == 200
    serving.call("PATCH", path, {"owner": "agent-8"})
    assert serving.call("GET", path, token=link).slug == "not-found"
    for id in (mine["id"], other["id"], handed):
        serving.call("POST", f"/v1/sessions/{id}/stop", {"grace": 0})


@pytest.mark.covers("server:12")
def test_a_revoked_link_closes_what_it_opened(serving: Serving) -> None:
    session = started(serving, "exec cat", tty=True)
    other = started(serving, "exec cat", tty=True)
    made = serving.call("POST", f"/v1/sessions/{session['id']}/links", {"ttl": "1h"}).json
    token = made["url"].partition("#token=")[2]
    assert serving.call("GET", f"/v1/sessions/{session['id']}", token=token).status == 200
    assert serving.call("GET", f"/v1/sessions/{other['id']}", token=token).slug == "not-found"
    (listed,) = serving.call("GET", f"/v1/sessions/{session['id']}/links").json["items"]
    assert (listed["id"], "token" in listed) == (made["id"], False)
    ticket = serving.call("POST", f"/v1/sessions/{session['id']}/tickets", {"role": "observe"}, token=token).json
    url = f"ws://127.0.0.1:{serving.port}/v1/sessions/{session['id']}/attach?ticket={ticket['ticket']}"
    with connect(url, subprotocols=["holdfast.v1.json"], proxy=None) as viewer:  # type: ignore[list-item]
        assert json.loads(viewer.recv(START_BOUND_S))["type"] == "init"
        assert serving.call("DELETE", f"/v1/sessions/{session['id']}/links/{made['id']}").status == 204
        assert closed_with(viewer) == (1008, "revoked")
    assert serving.call("GET", f"/v1/sessions/{session['id']}", token=token).slug == "unauthenticated"
    for id in (session["id"], other["id"]):
        serving.call("POST", f"/v1/sessions/{id}/stop", {"grace": 0})


def test_a_link_of_a_server_on_a_unix_socket_has_the_address_that_was_asked(world: World) -> None:
    path = world.root / "sock" / "s"
    public = "https://hold.example:8443"
    for words, base in (((), "http://localhost"), (("--public-url", public), public)):
        serving = Serving(world, "--unix", path, *words)
        id = world.open().run("true", wait=10).id
        headers = {"Host": "localhost", "Authorization": f"Bearer {serving.token}", "Content-Type": "application/json"}
        made = request(str(path), f"/v1/sessions/{id}/links", headers, method="POST", body=b"{}")
        assert made.json["url"].startswith(f"{base}/link#token=hf_"), made.body
        assert serving.leave() == 0


@pytest.mark.parametrize("ended_by", ["its own time", "another server"])
def test_a_link_that_is_over_closes_what_it_opened(serving: Serving, world: World, ended_by: str) -> None:
    session = started(serving, "exec cat", tty=True)
    links = f"/v1/sessions/{session['id']}/links"
    made = serving.call("POST", links, {"ttl": 5 if ended_by == "its own time" else "1h"}).json
    token = made["url"].partition("#token=")[2]
    bearer = {"Authorization": f"Bearer {token}"}
    url = f"ws://127.0.0.1:{serving.port}/v1/sessions/{session['id']}/attach?role=observe"
    attached = connect(url, additional_headers=bearer, subprotocols=["holdfast.v1.json"], proxy=None)  # type: ignore[list-item]
    with EventReader(serving, token=token) as reader, attached as viewer:
        assert json.loads(viewer.recv(START_BOUND_S))["type"] == "init"
        reader.until("hello")
        if ended_by == "another server":
            other = Serving(world)
            assert other.call("DELETE", f"{links}/{made['id']}").status == 204
            assert other.leave() == 0
        # Nothing asks the first server anything from here on.
        assert closed_with(viewer) == (1008, "revoked")
        assert reader.until("bye") == {"retry_ms": None, "reason": "revoked"}
    serving.call("POST", f"/v1/sessions/{session['id']}/stop", {"grace": 0})


def test_a_code_is_exchanged_once_and_the_server_proves_itself(serving: Serving, world: World) -> None:
    own = {"Host": serving.address, "Content-Type": "application/json", "Origin": serving.url}

    def post(path: str, body: dict[str, str], **more: str) -> Answer:
        return serving.ask(path, {**own, **more}, method="POST", body=json.dumps(body).encode())

    login = post("/v1/auth/exchange", {"code": serving.code})
    assert login.status == 200
    token = login.json["token"]
    assert serving.call("GET", "/v1/info", token=token).json["scopes"] == ["observe", "control", "manage"]
    assert post("/v1/auth/exchange", {"code": serving.code}).slug == "unauthenticated"
    again = world.hold("open", check=True).stdout.strip()
    url, _, code = again.partition("/#code=")
    assert url == serving.url
    assert post("/v1/auth/exchange", {"code": code}).status == 200
    _, id, secret = token.split("_", 2)
    proof = post("/v1/auth/prove", {"id": id, "nonce": "n1"}).json
    key = hashlib.sha256(secret.encode()).digest()
    expected = hmac.new(key, f"holdfast-server{serving.url}n1".encode(), hashlib.sha256).hexdigest()
    assert proof == {"proof": expected, "origin": serving.url}
    assert post("/v1/auth/prove", {"id": id, "nonce": "n1"}, Origin="http://evil.test").slug == "bad-origin"
    assert post("/v1/auth/prove", {"id": "nobody", "nonce": "n1"}).status == 200
    # Neither a code nor a secret is kept as it is.
    kept = (world.home / "server" / "tokens.json").read_text()
    assert secret not in kept
    assert serving.code not in kept
    assert serving.call("DELETE", f"/v1/tokens/{id}").status == 204
    assert serving.call("GET", "/v1/info", token=token).slug == "unauthenticated"


@pytest.mark.covers("server:23")
def test_inputs_and_the_audit_file_name_authors_and_contain_no_password(serving: Serving, world: World) -> None:
    began = now_text()
    token = minted(serving, label="ops", scope="manage")
    script = 'stty -echo; for n in 1 2 3 4; do printf "Password $n: "; read p; echo got ${#p}; done; exec cat'
    session = serving.call("POST", "/v1/sessions", {"command": script, "tty": True}, token=token).json
    at = f"/v1/sessions/{session['id']}"

    def asked(number: int) -> None:
        woke = serving.call("GET", f"{at}/wait?until=match&match=Password.{number}:&timeout=30")
        assert woke.json["reason"] == "match"

    secrets = [f"tr0ub4dor-{number}!" for number in range(4)]
    bodies = ({"submit": secrets[0]}, {"paste": secrets[1] + "\n"}, {"write": secrets[2] + "\n"})
    for number, body in enumerate(bodies, 1):
        asked(number)
        assert serving.call("POST", f"{at}/input", body, token=token).status == 200
    asked(4)
    viewer = WebViewer(serving.address, serving.token, session["id"])
    viewer.begun()
    viewer.type(secrets[3].encode() + b"\r")
    viewer.until(lambda: viewer.text.count("got 12") == 4, "what follows the last password")
    viewer.leave()
    inputs = serving.call("GET", f"{at}/inputs").json["items"]
    assert [(each["by"], each["bytes"]) for each in inputs] == [*[("web:ops", 13)] * 3, ("web:home", 13)]
    whole, prompt = len("Password 1: got 12\r\n"), len("Password 1: ")
    assert [each["offset"] for each in inputs] == [whole * number + prompt for number in range(4)]
    times = [began, *(each["at"] for each in inputs), now_text()]
    assert times == sorted(times)
    serving.call("POST", f"{at}/stop", {"grace": 0, "reason": "done"})
    audit = [json.loads(line) for line in (world.home / "server" / "audit.jsonl").read_text().splitlines()]
    acted = [(each["action"], each["by"]) for each in audit if each.get("session") == session["id"]]
    assert acted == [("start", "web:ops"), ("stop", "web:home")]
    assert ("token", "web:home") in [(each["action"], each["by"]) for each in audit]
    times = [began, *(each["at"] for each in audit), now_text()]
    assert times == sorted(times)
    assert os.stat(world.home / "server" / "audit.jsonl").st_mode & 0o777 == 0o600
    for path in (*_files(world.home), *_files(world.runtime)):
        assert b"tr0ub4dor" not in path.read_bytes(), path


@pytest.mark.covers("server:23")
@pytest.mark.parametrize("ended_by", ["input", "close-stdin"])
def test_the_end_of_input_is_recorded_with_its_author(serving: Serving, ended_by: str) -> None:
    token = minted(serving, label="ops", scope="control")
    id = started(serving, "echo ready; exec cat", stdin="open")["id"]
    serving.call("GET", f"/v1/sessions/{id}/wait?until=match&match=ready&timeout=30")
    body = {"eof": True} if ended_by == "input" else {}
    assert serving.call("POST", f"/v1/sessions/{id}/{ended_by}", body, token=token).status == 200
    ended(serving, id)
    (entry,) = serving.call("GET", f"/v1/sessions/{id}/inputs").json["items"]
    assert (entry["by"], entry["bytes"], entry["offset"]) == ("web:ops", 0, len("ready\n"))


def _files(root: Path) -> list[Path]:
    return [path for path in root.rglob("*") if path.is_file()]


# The description, and counters.


@also_through_a_node
def test_what_is_unknown_is_named(serving: Serving) -> None:
    assert "flavour" in serving.call("GET", "/v1/sessions?flavour=1").json["detail"]
    assert serving.call("GET", "/v1/sessions?limit=1&limit=2").slug == "bad-request"
    assert serving.call("GET", "/v1/sessions?limit=0").slug == "bad-argument"
    assert serving.call("GET", "/v1/events?label=team").slug == "bad-argument"
    assert serving.call("POST", "/v1/sessions", {"command": "true", "pass_fds": [3]}).slug == "bad-argument"
    assert serving.call("POST", "/v1/sessions", {"command": ""}).slug == "empty-command"
    assert serving.call("POST", "/v1/sessions", {"command": "true", "lifetime": "owner"}).slug == "bad-argument"
    assert serving.call("POST", "/v1/sessions", {"command": ["/nonexistent"]}).slug == "spawn-error"
    twice = b'{"command": "true", "labels": {"a": "b", "a": "c"}}'
    doubled = serving.ask("/v1/sessions", {**serving.bearer, **TYPED}, method="POST", body=twice)
    assert (doubled.slug, "'a'" in doubled.json["detail"]) == ("bad-request", True)
    deep: object = {}
    for _ in range(40):
        deep = {"a": deep}
    assert serving.call("POST", "/v1/sessions", {"command": "true", "metadata": deep}).slug == "too-large"
    started(serving, "exec cat", stdin="open", name="taken")
    assert serving.call("POST", "/v1/sessions", {"command": "true", "name": "taken"}).slug == "name-taken"
    serving.call("POST", "/v1/sessions/taken/stop", {"grace": 0})
    for slug in ("name-taken", "ticket-spent", "wrong-host"):
        page = serving.ask(f"/problems/{slug}", {"Host": serving.address})
        assert (page.status, page.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    assert serving.ask("/problems/nonsense", {"Host": serving.address}).status == 404


TYPED = {"Content-Type": "application/json"}
# What a parameter, and a field of a body, can be instead of what is asked for.
JUNK_TEXTS = ("", "x", "-1", "1e9", "9" * 20, "%00", "%ff", "%ed%a0%80", "a" * 5000, "[]", "(", "*", "a,b", ":", "/")
JUNK_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 1.5, 1e300, 10**30, "", "x", "\0", "\ud800", "a" * 5000, [], [None], [1], ["x"], [["x"]]),
    *({}, {"a": 1}, {"a": {"b": []}}, {"match": "("}, {"timeout": "x"}, {"data": "!!"}, {"data": 5}),
)
JUNK_BODIES = (b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"a":NaN}', b"[" * 100_000)


@pytest.mark.timeout(600)
def test_nothing_that_is_sent_makes_the_server_fail(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong value, an unknown name and a malformed body get a problem that says so, on every route."""
    monkeypatch.setenv("HOLDFAST_SERVER_STARTS_PER_MINUTE", "10000")
    serving = Serving(world)
    session = started(serving, "exec cat", stdin="open")
    parts = {"id": session["id"], "name": "people:web:home", "slug": "busy", "stream": "stdout"}
    share, number = scaled(7, 1), 0

    def some(values: tuple[Any, ...]) -> list[Any]:
        """In the short form each name gets others."""
        nonlocal number
        number += 1
        return [value for at, value in enumerate(values) if (at + number) % share == 0]

    for path, methods in openapi()["paths"].items():
        for method, operation in methods.items():
            target, verb = filled(path, **parts), method.upper()
            known = [each["name"] for each in operation["parameters"] if each["in"] == "query"]
            names = [name for name in known if name != "timeout"] if path != "/v1/events" else []
            for name, text in ((name, text) for name in names for text in some(JUNK_TEXTS)):
                brief = "&timeout=0" if path.endswith("/wait") else ""
                assert 0 < serving.call(verb, f"{target}?{name}={text}{brief}").status < 500, (target, name, text)
            if verb == "GET" and path.startswith("/v1") and known:
                assert serving.call(verb, f"{target}?nonsense=1").slug == "bad-argument", target
            if "requestBody" not in operation:
                continue
            for raw in some(JUNK_BODIES):
                headers = {**serving.bearer, "Content-Type": "application/json"}
                refused = serving.ask(target, headers, method=verb, body=raw)
                assert (refused.status, refused.slug) == (400, "bad-request"), (target, raw[:20])
            unknown = serving.call(verb, target, {"nonsense": 1})
            assert (unknown.slug, unknown.json["errors"][0]["pointer"]) == ("bad-argument", "/nonsense"), target
            large = serving.call(verb, target, "x" * Settings.server_body_bytes)
            assert (large.slug, large.json["key"]) == ("too-large", "server.body_bytes"), target
            plain = serving.call(verb, target, {}, **{"Content-Type": "text/plain"})
            assert plain.slug == "wrong-media-type", target
            fields = operation["requestBody"]["content"]["application/json"]["schema"]["properties"]
            for name in fields if path.rpartition("/")[2] not in ("stop", "exchange") else ():
                for value in some(JUNK_VALUES):
                    body = {name: value, **({"command": "true"} if verb + path == "POST/v1/sessions" else {})}
                    answer = serving.call(verb, target, body)
                    assert answer.status < 500 or answer.slug == "place-unsupported", (target, name, value)
    # The first one may have ended: some of those values were deadlines.
    serving.call("POST", f"/v1/sessions/{session['id']}/stop", {"grace": 0})
    session = started(serving, "exec cat", stdin="open")
    for waits, pointer in (({"match": "("}, "/wait_for/match"), ({"idle": "soon"}, "/wait_for/idle")):
        body = {"write": "x", "wait_for": waits}
        refused = serving.call("POST", f"/v1/sessions/{session['id']}/input", body)
        assert refused.json["errors"][0]["pointer"] == pointer
    for verb, target, body, pointer in (
        ("PATCH", "", {"timeout": -5}, "/timeout"),
        ("POST", "/resize", {"rows": 10}, "/cols"),
        ("POST", "/resize", {"rows": None, "cols": 10}, "/rows"),
    ):
        refused = serving.call(verb, f"/v1/sessions/{session['id']}{target}", body)
        assert refused.json["errors"][0]["pointer"] == pointer
    serving.call("POST", f"/v1/sessions/{session['id']}/stop", {"grace": 0})


@pytest.mark.covers("server:24")
def test_the_series_of_the_metrics_do_not_grow_with_the_sessions(serving: Serving, world: World) -> None:
    def series() -> set[str]:
        answer = serving.ask("/metrics", bound=40)
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = answer.body.decode().splitlines()
        for line in lines:
            assert re.fullmatch(
                r"# (HELP|TYPE) holdfast_\w+ .+|holdfast_\w+(\{(\w+=\"[^\"]*\",?)+\})? [0-9.e+-]+", line
            ), line
        return {line.rpartition(" ")[0] for line in lines if not line.startswith("#")}

    def start() -> None:
        id = started(serving, "true")["id"]
        ended(serving, id)

    def consume(name: str, owner: str) -> None:
        assert serving.call("PUT", f"/v1/consumers/{name}", {"owners": [owner], "start": "retained"}).status == 200

    start()
    consume("consumer-1", "owner-1")
    series()
    few = series()
    (one,) = (world.home / "sessions").iterdir()
    for number in range(499):
        place = f"ssh:host-{number}" if number % 2 else "local"
        words = {"name": f"name-{number}", "owner": f"owner-{number}", "labels": {f"key-{number}": "x"}, "place": place}
        copied(one, f"b{number:08d}", **words)
    consume("consumer-2", "owner-2")
    assert series() == few
    counted = serving.call("GET", "/metrics").body.decode()
    assert 'holdfast_sessions{state="exited",place="local"} 251' in counted
    assert 'holdfast_sessions{state="exited",place="ssh"} 249' in counted


def test_counters_begin_with_the_server_and_never_fall(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOG_SEGMENT", "64KiB")
    command, cap = "head -c 3000000 /dev/zero", "1MiB"
    world.open().run(command, log_cap=cap, wait=30)
    serving = Serving(world)
    names = ("sessions_started_total", 'sessions_ended_total{cause="exit"}', "log_dropped_bytes_total")

    def counted() -> list[int]:
        lines = (line.rpartition(" ") for line in serving.call("GET", "/metrics").body.decode().splitlines())
        values = {name: value for name, _, value in lines}
        return [int(values[f"holdfast_{name}"]) for name in names]

    assert counted() == [0, 0, 0]
    dropped = 0
    for number in (1, 2):
        id = started(serving, command, log_cap=cap)["id"]
        dropped += ended(serving, id)["dropped_before"]["stdout"]
        assert counted() == [number, number, dropped]
        for each in serving.call("GET", "/v1/sessions").json["items"]:
            assert serving.call("DELETE", f"/v1/sessions/{each['id']}").status == 204
        assert counted() == [number, number, dropped]


def test_an_invented_method_adds_no_series_to_the_metrics(serving: Serving) -> None:
    for number in range(3):
        assert serving.ask("/v1/info", method=f"BREW{number}").status == 405
    counted = [line for line in serving.call("GET", "/metrics").body.decode().splitlines() if 'code="405"' in line]
    assert counted == ['holdfast_http_requests_total{route="-",method="OTHER",code="405"} 3']


@also_through_a_node
def test_old_sessions_are_collected_and_places_listed(serving: Serving) -> None:
    ended(serving, started(serving, "true")["id"])
    collected = serving.call("POST", "/v1/gc", {"dry_run": True}).json
    assert (collected["dry_run"], collected["removed"]) == (True, [])
    places = serving.call("GET", "/v1/places").json["items"]
    assert places == [{"place": "local", "sessions": {"exited": 1}}]


@also_through_a_node
def test_a_consumer_is_made_read_and_acknowledged(serving: Serving) -> None:
    assert serving.call("GET", "/v1/consumers/mine").slug == "not-found"
    assert serving.call("PUT", "/v1/consumers/mine", {"owners": ["agent-7"]}).json["waiting"] == 0
    ids = [started(serving, "true", owner="agent-7")["id"] for _ in range(3)]
    for id in ids:
        ended(serving, id)

    def waiting() -> list[str]:
        return [each["id"] for each in serving.call("GET", "/v1/consumers/mine").json["items"]]

    until(lambda: len(waiting()) == 3)
    first, *rest = waiting()
    assert serving.call("POST", "/v1/consumers/mine/settle", {"ids": [first]}).json == {"settled": 1}
    assert waiting() == rest
    assert serving.call("POST", "/v1/consumers/mine/ack", {"upto": rest[-1]}).json == {"settled": 2}
    assert waiting() == []
    assert serving.call("PUT", "/v1/consumers/mine", {"owners": ["agent-8"]}).slug == "consumer-mismatch"
    assert serving.call("DELETE", "/v1/consumers/mine").status == 204
    page = serving.call("GET", "/v1/signals?owner=agent-7&limit=2").json
    assert len(page["items"]) == 2
    rest_page = serving.call("GET", f"/v1/signals?owner=agent-7&after={page['next']}").json
    assert sorted(each["session"] for each in (*page["items"], *rest_page["items"])) == sorted(ids)
