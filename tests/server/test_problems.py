"""The description of the routes, and every problem that they can answer with, each provoked for real."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import errors
from holdfast.core import wire
from holdfast.errors import HoldfastError
from holdfast.runner.streams import QUEUE_MAX_BYTES
from holdfast.server import responses
from holdfast.server.endpoints import openapi
from holdfast.server.responses import status_of
from support.described import PROBLEM, check_described
from support.faults import kill_runner, sweep_up
from support.levers import namespace_argv
from support.serving import (
    UPGRADE,
    Answer,
    EventReader,
    Serving,
    also_through_a_node,
    ended,
    filled,
    read_answer,
    started,
)
from support.through_nodes import ThroughNode
from support.waiting import until
from support.webviewer import WebViewer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from support.ssh_hosts import SshHost
    from support.world import World

# By status, as the contract of the server has them.
PROBLEMS = {
    400: {"bad-request", "bad-argument", "bad-cursor", "bad-key", "bad-size", "empty-command"},
    401: {"unauthenticated", "ticket-spent"},
    403: {"scope-missing", "bad-origin", "observe-only"},
    404: {"not-found"},
    409: {
        *("name-taken", "key-reused", "ambiguous-id", "session-ended", "still-running", "stdin-closed", "not-a-tty"),
        *("self-attach", "size-policy", "consumer-mismatch", "identity-mismatch", "runner-gone"),
        *("node-taken", "node-twice", "visit-exists"),
    },
    410: {"removed", "output-dropped"},
    413: {"too-large"},
    415: {"wrong-media-type"},
    416: {"offset-ahead"},
    421: {"wrong-host"},
    422: {"spawn-error", "pty-unavailable"},
    429: {"busy", "too-many-clients", "too-many-sessions"},
    501: {"unsupported", "place-unsupported"},
    502: {"place-unreachable", "place-gone", "place-no-python", "node-refused"},
    503: {"shutting-down"},
    504: {"unreachable", "node-unreachable"},
    507: {"disk-full"},
}
# Cases that the contract does not name: decision 137.
BESIDE = {
    403: {"foreign-peer"},
    409: {"superseded"},
    500: {"damaged-record", "error"},
    502: {"malformed-answer", "protocol-error"},
    503: {"not-ready"},
}
# Errors of the command line, of toolsets and of language servers: no route raises them.
ELSEWHERE = {
    *("already-ended", "config-error", "kind-reserved", "not-allowed", "run-in-progress", "server-gone"),
    *("server-refused", "timeout", "unsafe-directory", "unsafe-file"),
}
# tests/faults/test_sec_access.py and tests/server/test_gate.py provoke these two.
NOT_HERE = {"foreign-peer", "error"}
# Only a toolset limits the number of sessions: tests/tools/hermes/test_terminal.py provokes this one.
OF_TOOLSETS = {"too-many-sessions"}
# These need another machine: tests/nodes/test_node_problems.py provokes them, and tests/nodes/test_view.py the last.
OF_NODES = {"node-taken", "node-twice", "node-refused", "node-unreachable", "visit-exists"}
# The other tests of this file.
SPECIAL = {
    *("self-attach", "pty-unavailable", "disk-full", "shutting-down"),
    *("place-unreachable", "place-gone", "place-no-python", "place-unsupported", "unsupported"),
}


def is_problem(answer: Answer, slug: str) -> None:
    """With its status, all members of a problem, and a page that explains it."""
    assert answer.slug == slug, answer.body
    assert slug in PROBLEMS.get(answer.status, set()) | BESIDE.get(answer.status, set())
    problem = answer.json
    assert problem["title"] == slug.replace("-", " ")
    assert problem["request_id"]
    assert problem["instance"]


@pytest.mark.covers("server:15", "nodes:15")
@also_through_a_node
def test_every_example_passes_and_every_answer_fits_its_description(serving: Serving) -> None:
    done = started(serving, "echo hello")
    ended(serving, done["id"])
    running = started(serving, "exec cat", tty=True)
    pipes = started(serving, "exec cat", stdin="open")
    to_remove = started(serving, "true")
    ended(serving, to_remove["id"])
    document = serving.call("GET", "/openapi.json").json
    made: dict[str, str] = {"name": "people:web:home", "slug": "not-found", "stream": "stdout"}
    operations = [
        (f"{method.upper()} {path}", operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    # What is made is used by what comes after it, and removed last.
    late = ("/stop", "/settle", "/ack")
    operations.sort(key=lambda each: (each[0].startswith("DELETE"), each[0].endswith(late), each[0][:3] != "PUT"))
    for name, operation in operations:
        method, path = name.split(" ")
        if path in ("/v1/events", "/assets/{name}"):
            continue  # below: a stream, and what the page names
        id = done["id"]
        if name.startswith("PATCH") or path.endswith(("resize", "stop", "send-signal", "screen", "export")):
            id = running["id"]
        elif path.endswith(("input", "close-stdin")):
            id = pipes["id"]
        elif name == "DELETE /v1/sessions/{id}":
            id = to_remove["id"]
        body = operation.get("requestBody")
        sent = None if body is None else body["content"]["application/json"].get("example", {})
        if path == "/v1/auth/exchange":
            sent = {"code": serving.code}
        elif path.endswith(("/settle", "/ack")):
            sent = {"ids": [made["signal"]]} if path.endswith("/settle") else {"upto": made["signal"]}
        asked = "&".join(f"{each['name']}={each['example']}" for each in operation["parameters"] if "example" in each)
        asked = f"ids={id}" if path == "/v1/screens" else asked
        target = filled(path, id=id, session=id, **made) + (f"?{asked}" if asked else "")
        # Its status, media type, members and types are compared with the description on the way.
        answer = serving.call(method, target, sent)
        if isinstance(serving, ThroughNode) and path.startswith("/v1/auth/"):
            # A view is known by its key: there is nothing to log in to.
            assert (answer.status, answer.slug) == (404, "not-found")
            continue
        if isinstance(serving, ThroughNode) and serving.at(target) != target and method == "GET":
            is_same(answer, serving.direct.call(method, target))
        assert answer.status == int(next(iter(operation["responses"]))), (name, target, answer.body)
        if name == "POST /v1/tokens":
            made["tid"] = answer.json["id"]
        elif name == "POST /v1/sessions/{id}/links":
            made["lid"] = answer.json["id"]
        elif name == "GET /v1/signals":
            made["signal"] = answer.json["items"][0]["id"]
        elif name == "POST /v1/sessions":
            ended(serving, answer.json["id"])
    with EventReader(serving) as reader:
        assert (reader.answer.status, reader.answer.headers["content-type"]) == (
            200,
            "text/event-stream; charset=utf-8",
        )
        assert reader.until("hello")
    for asset in re.findall(r"/assets/[\w.-]+", serving.ask("/", {"Host": serving.address}).body.decode()):
        assert serving.ask(asset, {"Host": serving.address}).status == 200
    serving.call("POST", f"/v1/sessions/{pipes['id']}/stop", {"grace": 0})


def is_same(answer: Answer, direct: Answer) -> None:
    """But for the moment of the answer, and the name that the caller has there."""
    bodies = [re.sub(rb'("observed_at": |"label": "home)[^,}]*', rb"\1", each.body) for each in (answer, direct)]
    assert (answer.status, bodies[0]) == (direct.status, bodies[1])
    changing = {"content-length": "", "date": ""}
    assert {**answer.headers, **changing} == {**direct.headers, **changing}


@pytest.mark.covers("server:15")
def test_every_answer_is_described_with_types_and_a_difference_is_found() -> None:
    document = openapi()
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            first = next(iter(operation["responses"].values()))
            assert "content" in first or "204" in operation["responses"], (method, path)
            for media, content in first.get("content", {}).items():
                assert ("schema" in content) == (media == "application/json"), (method, path)
    for name, shape in document["components"]["schemas"].items():
        assert shape["required"], name
        assert set(shape["required"]) <= shape["properties"].keys(), name
        is_open = shape["additionalProperties"] is not False
        assert is_open == (name in ("Problem", "QueuedSignal", "WaitingSignal")), name
    whole: dict[str, Any] = {"accepted": 1, "written": None, "warnings": [], "status": "running", "cursor": "stdout:0"}

    def answer(value: object, status: int = 200, media: str = "application/json") -> Answer:
        return Answer(f"HTTP/1.1 {status} -\r\ncontent-type: {media}\r\n\r\n{json.dumps(value)}".encode())

    check_described("POST", "/v1/sessions/b123/input", answer(whole))
    for wrong in (
        answer({**whole, "accepted": "1"}),
        answer({**whole, "more": 1}),
        answer({**whole, "status": "done"}),
        answer({name: whole[name] for name in whole if name != "cursor"}),
        answer(whole, 201),
        answer(whole, media="text/plain"),
        answer(whole, 400, PROBLEM),
    ):
        with pytest.raises(AssertionError):
            check_described("POST", "/v1/sessions/b123/input", wrong)


def test_the_description_names_what_a_body_must_have_and_allows_null_for_the_rest(serving: Serving) -> None:
    id = started(serving, "exec cat", tty=True, labels={"a": "b"}, description="d", timeout=60)["id"]
    required = 0
    for path, methods in openapi()["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json")
            if body is None:
                continue
            target = filled(path, id=id, name="mine")
            example = body.get("example", {})
            for name in body["schema"].get("required", ()):
                required += 1
                for wrong in ({each: example[each] for each in example if each != name}, {**example, name: None}):
                    refused = serving.call(method.upper(), target, wrong)
                    assert refused.slug == "bad-argument", (path, name)
                    assert refused.json["errors"][0]["pointer"] == f"/{name}"
    assert required >= 9
    # What is accepted is compared with the description on the way.
    names = ("name", "owner", "labels", "description", "notify", "notify_people", "timeout", "idle_timeout", "ttl")
    session = serving.call("PATCH", f"/v1/sessions/{id}", dict.fromkeys((*names, "soft")))
    assert session.status == 200
    # It is described by its command again.
    assert (session.json["labels"], session.json["description"]) == ({}, "exec cat")
    assert serving.call("POST", "/v1/tokens", {"scope": None, "ttl": None, "labels": None, "owner": None}).status == 201
    serving.call("POST", f"/v1/sessions/{id}/stop", {"grace": 0})


@pytest.mark.covers("server:15")
def test_the_problems_are_those_of_the_contract() -> None:
    """A new error of the library is provoked here, or no route raises it."""
    for status, slugs in (*PROBLEMS.items(), *BESIDE.items()):
        for slug in slugs:
            assert status_of(slug) == status, slug
    known = {slug for slugs in PROBLEMS.values() for slug in slugs}
    beside = {slug for slugs in BESIDE.values() for slug in slugs}
    kinds = [each for module in (errors, responses) for each in vars(module).values() if isinstance(each, type)]
    codes = {each.code for each in kinds if issubclass(each, HoldfastError)}
    assert codes - known == beside | ELSEWHERE
    assert known > SPECIAL | OF_TOOLSETS
    assert set(_ordinary()) == (known | beside) - SPECIAL - OF_TOOLSETS - OF_NODES - NOT_HERE


@pytest.mark.covers("server:15")
@pytest.mark.timeout(120)
def test_each_problem_is_provoked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SERVER_SSE_READERS", "1")
    monkeypatch.setenv("HOLDFAST_LOG_SEGMENT", "64KiB")
    serving = Serving(world)
    for slug, provoke in _ordinary().items():
        is_problem(provoke(serving, world), slug)
        page = serving.ask(f"/problems/{slug}", {"Host": serving.address})
        assert (page.status, slug in page.body.decode()) == (200, True)
    for session in serving.call("GET", "/v1/sessions?limit=200").json["items"]:
        serving.call("POST", f"/v1/sessions/{session['id']}/stop", {"grace": 0})
    sweep_up(world, world.open())


def _ordinary() -> dict[str, Callable[[Serving, World], Answer]]:
    """How each is provoked with a server that has nothing special; in this order."""

    def call(method: str, target: str, body: object = None, **more: Any) -> Callable[[Serving, World], Answer]:
        return lambda serving, _: serving.call(method, target, body, **more)

    def unreachable(serving: Serving, world: World) -> Answer:
        session = started(serving, "exec cat", stdin="open")
        os.kill(session["runner_pid"], signal.SIGSTOP)
        try:
            headers = {**serving.bearer, "Content-Type": "application/json"}
            target = f"/v1/sessions/{session['id']}/input"
            return serving.ask(target, headers, method="POST", body=b'{"write": "x"}', bound=60)
        finally:
            os.kill(session["runner_pid"], signal.SIGCONT)

    def gone(serving: Serving, world: World) -> Answer:
        session = world.open().start("trap '' HUP; echo up; exec sleep 600", stdin="open", name="gone")
        session.wait(match="up", timeout=30)
        kill_runner(session)
        return serving.call("POST", "/v1/sessions/gone/input", {"write": "x"})

    def mistaken(serving: Serving, world: World) -> Answer:
        session = started(serving, "exec cat", stdin="open")
        path = world.session(session["id"]) / "state.json"
        whole = path.read_bytes()
        state = json.loads(whole)
        state["runner"]["start"] += 1
        state.pop("check", None)
        path.write_text(json.dumps(state))
        try:
            return serving.call("POST", f"/v1/sessions/{session['id']}/input", {"write": "x"})
        finally:
            path.write_bytes(whole)

    def lied_to(lie: bytes) -> Callable[[Serving, World], Answer]:
        """The greeting is that of the runner, and what comes after it is not."""

        def provoke(serving: Serving, world: World) -> Answer:
            session = started(serving, "exec cat", stdin="open")
            endpoint = json.loads((world.session(session["id"]) / "state.json").read_text())["endpoint"]
            os.rename(endpoint, endpoint + ".own")
            try:
                with answering_for(endpoint, lie):
                    return serving.call("POST", f"/v1/sessions/{session['id']}/input", {"write": "x"})
            finally:
                os.rename(endpoint + ".own", endpoint)

        return provoke

    def damaged(serving: Serving, world: World) -> Answer:
        id = over(serving, world)
        (world.session(id) / "spec.json").write_bytes(b"[]")
        return serving.call("GET", f"/v1/sessions/{id}")

    def unready(serving: Serving, world: World) -> Answer:
        sessions = world.home / "sessions"
        sessions.rename(world.home / "elsewhere")
        try:
            return serving.ask("/readyz", {"Host": serving.address})
        finally:
            (world.home / "elsewhere").rename(sessions)

    def replaced(serving: Serving, world: World) -> Answer:
        """Three starts replace one command, which does not stop: at most one of them is the newest."""
        body = {"command": "exec sleep 600", "key": "one", "replace": True}
        stubborn = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
        first = serving.call("POST", "/v1/sessions", {**body, "command": stubborn, "grace": 60}).json
        serving.call("GET", f"/v1/sessions/{first['id']}/wait?until=match&match=ready&timeout=30")
        with ThreadPoolExecutor(3) as pool:
            starts = [pool.submit(serving.call, "POST", "/v1/sessions", body) for _ in range(3)]
            (drawn,) = (world.home / "locks").glob("*.tickets")
            until(lambda: drawn.stat().st_size == 4, what="the tickets of all starts")
            os.kill(first["pid"], signal.SIGKILL)
        return next(start.result() for start in starts if start.result().status != 201)

    def ambiguous(serving: Serving, world: World) -> Answer:
        one = started(serving, "true")
        ended(serving, one["id"])
        twin = one["id"][:-1] + ("1" if one["id"].endswith("0") else "0")
        shutil.copytree(world.session(one["id"]), world.session(twin))
        for path in world.session(twin).glob("*.json"):
            record = json.loads(path.read_text().replace(one["id"], twin))
            record.pop("check", None)
            path.write_text(json.dumps(record))
        serving.call("GET", "/v1/sessions")
        return serving.call("GET", f"/v1/sessions/{one['id'][:-1]}")

    def busy(serving: Serving, world: World) -> Answer:
        session = started(serving, "exec sleep 600", stdin="open")
        for _ in range(6):
            target = f"/v1/sessions/{session['id']}/input"
            answer = serving.call("POST", target, {"write": "x" * 500_000})
            if answer.status != 200:
                assert answer.headers["retry-after"]
                limits = serving.call("GET", "/v1/info").json["limits"]
                assert answer.json["limit"] == limits[answer.json["key"]] == QUEUE_MAX_BYTES
                assert str(QUEUE_MAX_BYTES) in answer.json["detail"]
                return answer
        raise AssertionError("the queue has no end")

    def dropped(serving: Serving, world: World) -> Answer:
        session = started(serving, "head -c 3000000 /dev/zero", log_cap="1MiB")
        ended(serving, session["id"])
        target = f"/v1/sessions/{session['id']}/log/stdout"
        # The last bytes, however many there are.
        kept = serving.call("GET", target, Range="bytes=-3000000")
        assert (kept.status, kept.headers["content-range"].rpartition("-")[2]) == (206, "2999999/3000000")
        return serving.call("GET", target, Range="bytes=0-10")

    def spent(serving: Serving, world: World) -> Answer:
        session = started(serving, "exec cat", tty=True)
        ticket = serving.ticket(session["id"])
        target = f"/v1/sessions/{session['id']}/attach?ticket={ticket}"
        assert serving.upgrade(target, {"Host": serving.address}).status == 101
        return serving.upgrade(target, {"Host": serving.address})

    def observing(serving: Serving, world: World) -> Answer:
        """As the answer to an input over WebSocket: no request has it."""
        session = started(serving, "exec cat", tty=True)
        viewer = WebViewer(serving.address, serving.token, session["id"], role="observe")
        viewer.begun()
        viewer.type(b"x")
        viewer.until(lambda: viewer.of("written"), "the refusal")
        viewer.leave()
        problem = {**viewer.of("written")[0]["problem"], "request_id": "-", "instance": "-"}
        head = f"HTTP/1.1 {problem['status']} -\r\ncontent-type: application/problem+json\r\n\r\n"
        return Answer(head.encode() + json.dumps(problem).encode())

    def scopeless(serving: Serving, world: World) -> Answer:
        token = serving.call("POST", "/v1/tokens", {"scope": "observe"}).json["token"]
        return serving.call("POST", "/v1/gc", {}, token=token)

    def sized(serving: Serving, world: World) -> Answer:
        session = started(serving, "exec cat", tty=True)
        viewer = WebViewer(serving.address, serving.token, session["id"])
        viewer.begun()
        viewer.say("resize", rows=20, cols=60)
        viewer.until(lambda: viewer.of("resized"), "its size")
        answer = serving.call("POST", f"/v1/sessions/{session['id']}/resize", {"rows": 10, "cols": 10})
        viewer.leave()
        return answer

    def crowded(serving: Serving, world: World) -> Answer:
        with socket.create_connection(("127.0.0.1", serving.port), 30) as reader:
            head = "".join(f"{name}: {value}\r\n" for name, value in serving.bearer.items())
            reader.sendall(f"GET /v1/events HTTP/1.1\r\n{head}\r\n".encode())
            assert reader.recv(100)
            return serving.call("GET", "/v1/events")

    def over(serving: Serving, world: World) -> str:
        id: str = started(serving, "true")["id"]
        ended(serving, id)
        return id

    def removed(serving: Serving, world: World) -> Answer:
        id = over(serving, world)
        assert serving.call("DELETE", f"/v1/sessions/{id}").status == 204
        return serving.call("GET", f"/v1/sessions/{id}")

    def reused(serving: Serving, world: World) -> Answer:
        assert serving.call("POST", "/v1/sessions", {"command": "true"}, **{"Idempotency-Key": "k"}).status == 201
        return serving.call("POST", "/v1/sessions", {"command": "false"}, **{"Idempotency-Key": "k"})

    def about(path: str, body: object = None, method: str = "POST", **options: Any) -> Callable[..., Answer]:
        """A request about a new session that runs."""

        def provoke(serving: Serving, world: World) -> Answer:
            session = started(serving, "exec sleep 600", **options)
            return serving.call(method, f"/v1/sessions/{session['id']}{path}", body)

        return provoke

    def named(serving: Serving, world: World) -> Answer:
        started(serving, "exec sleep 600", name="taken")
        answer = serving.call("POST", "/v1/sessions", {"command": "true", "name": "taken"})
        assert answer.json["holder"] == serving.call("GET", "/v1/sessions/taken").json["id"]
        return answer

    def mismatched(serving: Serving, world: World) -> Answer:
        assert serving.call("PUT", "/v1/consumers/mine", {"owners": ["a"]}).status == 200
        return serving.call("PUT", "/v1/consumers/mine", {"owners": ["b"]})

    return {
        "bad-request": call("GET", "/v1/sessions?limit=1&limit=2"),
        "bad-argument": call("GET", "/v1/sessions?limit=0"),
        "bad-cursor": call("GET", "/v1/sessions?after=nonsense"),
        "bad-key": about("/input", {"keys": ["Entr"]}, tty=True),
        "bad-size": about("/resize", {"rows": 0, "cols": 10}, tty=True),
        "empty-command": call("POST", "/v1/sessions", {"command": ""}),
        "unauthenticated": call("GET", "/v1/info", token="hf_home_wrong"),
        "ticket-spent": spent,
        "scope-missing": scopeless,
        "bad-origin": lambda serving, _: serving.ask("/v1/info", {**serving.bearer, "Origin": "http://evil.test"}),
        "observe-only": observing,
        "not-found": call("GET", "/v1/sessions/nobody"),
        "name-taken": named,
        "key-reused": reused,
        "ambiguous-id": ambiguous,
        "session-ended": lambda serving, world: serving.call(
            "POST", f"/v1/sessions/{over(serving, world)}/input", {"write": "x"}
        ),
        "still-running": about("", method="DELETE"),
        "stdin-closed": about("/input", {"write": "x"}),
        "not-a-tty": about("/screen", method="GET"),
        "size-policy": sized,
        "consumer-mismatch": mismatched,
        "identity-mismatch": mistaken,
        "runner-gone": gone,
        "removed": removed,
        "output-dropped": dropped,
        "too-large": call("POST", "/v1/sessions", {"command": "x" * (1 << 20)}),
        "wrong-media-type": lambda serving, _: serving.ask("/v1/sessions", method="POST", body=b"command=true"),
        "offset-ahead": about("/output?since=1000000&stream=stdout", method="GET"),
        "wrong-host": lambda serving, _: serving.ask("/healthz", {"Host": "evil.test"}),
        "spawn-error": call("POST", "/v1/sessions", {"command": ["/nonexistent"]}),
        "busy": busy,
        "too-many-clients": crowded,
        "unreachable": unreachable,
        "superseded": replaced,
        "damaged-record": damaged,
        "malformed-answer": lied_to(wire.control({"type": "reply", "id": 1, "status": {"state": 7}})),
        "protocol-error": lied_to(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        "not-ready": unready,
    }


@contextmanager
def answering_for(endpoint: str, lie: bytes) -> Iterator[None]:
    """A listener there that passes on the greetings of both sides, and then says something else."""

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            with client, socket.socket(socket.AF_UNIX) as runner:
                runner.connect(endpoint + ".own")
                runner.sendall(client.recv(65536))
                client.sendall(runner.recv(1 << 20))
                if client.recv(65536):
                    client.sendall(lie)

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(endpoint)
        listener.listen()
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            os.unlink(endpoint)


@pytest.mark.covers("server:15")
def test_a_locked_index_is_busy(world: World) -> None:
    serving = Serving(world)
    assert serving.call("GET", "/v1/signals").status == 200
    with closing(sqlite3.connect(world.home / "index.db")) as db:
        db.execute("BEGIN EXCLUSIVE")
        refused = serving.call("PUT", "/v1/consumers/mine", {"owners": ["a"]})
    is_problem(refused, "busy")
    assert refused.headers["retry-after"]


@pytest.mark.covers("server:15")
@pytest.mark.timeout(120)
def test_each_problem_of_a_place_is_provoked(world: World, monkeypatch: pytest.MonkeyPatch, ssh_host: SshHost) -> None:
    monkeypatch.setenv("HOLDFAST_PLACES_SSH", shlex.join(ssh_host.argv))
    monkeypatch.setenv("HOLDFAST_PLACES_PYTHON", "no-such-python")
    serving = Serving(world)
    for slug, options in (
        ("place-unsupported", {"place": "mars:north"}),
        ("unsupported", {"place": ssh_host.place, "lifetime": "owner", "owner_pid": os.getpid()}),
        ("place-no-python", {"place": ssh_host.place}),
        ("place-unreachable", {"place": "ssh:no-such-host.invalid"}),
        ("place-gone", {"place": "podman:never-there"}),
    ):
        headers = {**serving.bearer, "Content-Type": "application/json"}
        body = json.dumps({"command": "true", **options}).encode()
        is_problem(serving.ask("/v1/sessions", headers, method="POST", body=body, bound=60), slug)
    assert serving.call("GET", "/v1/sessions").json["items"] == []


@pytest.mark.covers("server:15")
@pytest.mark.namespaces
def test_no_terminal_and_no_space_are_problems(world: World) -> None:
    """In namespaces of its own the server has one terminal, and a small disk for its sessions."""
    sessions = world.home / "sessions"
    sessions.mkdir(parents=True, mode=0o700)
    world.home.chmod(0o700)
    mounts = [
        "mount -t devpts -o newinstance,ptmxmode=0666,mode=0620,max=1 devpts /dev/pts",
        "mount --bind /dev/pts/ptmx /dev/ptmx",
        f"mount -t tmpfs -o size=1m,mode=700 tmpfs {sessions}",
    ]
    prefix = [*namespace_argv("--mount"), "sh", "-c", " && ".join([*mounts, 'exec "$@"']), "sh"]
    serving = Serving(world, prefix=prefix)
    first = started(serving, "exec sleep 600", tty=True)
    is_problem(serving.call("POST", "/v1/sessions", {"command": "true", "tty": True}), "pty-unavailable")
    filling = started(serving, f"head -c 2000000 /dev/zero > {sessions}/fill")
    ended(serving, filling["id"])
    is_problem(serving.call("POST", "/v1/sessions", {"command": "true"}), "disk-full")
    serving.call("POST", f"/v1/sessions/{first['id']}/stop", {"grace": 0})
    world.end_launchers()


@pytest.mark.covers("server:15")
def test_a_session_is_not_attached_from_inside_itself(world: World) -> None:
    hf = world.open()
    session = hf.start([*world.hold_argv("serve", "--port", 0)], tty=True)
    found = session.wait(match="http://[0-9.:]+/", timeout=60)
    assert found.reason == "match"
    port = int(session.text().split("127.0.0.1:")[1].split("/")[0])
    token = (world.home / "server" / "token").read_text().strip()
    headers = {"Host": f"127.0.0.1:{port}", "Authorization": f"Bearer hf_home_{token}", **UPGRADE}
    with socket.create_connection(("127.0.0.1", port), 30) as there:
        lines = [f"GET /v1/sessions/{session.id}/attach HTTP/1.1", *(f"{k}: {v}" for k, v in headers.items())]
        there.sendall("\r\n".join([*lines, "", ""]).encode())
        is_problem(read_answer(there), "self-attach")
    session.stop(grace=10)


@pytest.mark.covers("server:15")
def test_a_waiting_request_gets_an_error_when_the_server_shuts_down(world: World) -> None:
    serving = Serving(world)
    session = started(serving, "exec cat", stdin="open")
    with socket.create_connection(("127.0.0.1", serving.port), 30) as waiting:
        head = "".join(f"{name}: {value}\r\n" for name, value in serving.bearer.items())
        waiting.sendall(f"GET /v1/sessions/{session['id']}/wait?timeout=60 HTTP/1.1\r\n{head}\r\n".encode())
        # Answered after it: the other waits by then.
        assert serving.call("GET", f"/v1/sessions/{session['id']}").status == 200
        serving.kill(signal.SIGTERM)
        is_problem(read_answer(waiting), "shutting-down")
    assert serving.program.wait(30) == 0
    world.open().get(session["id"]).stop(grace=0)
