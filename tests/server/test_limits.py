"""Limits are settings of the server; a refusal names the setting that was reached, and its value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from holdfast.config import SETTINGS
from holdfast.errors import TooManyClients
from holdfast.runner.endpoint import CLIENTS_MAX
from support.serving import Serving, closed_with, started
from support.waiting import BOUND_S, until
from support.webviewer import BINARY, JSON, WebViewer

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from holdfast import Session
    from support.serving import Answer
    from support.world import World

LOW = {
    "observers_per_session": 1,
    "header_bytes": 2048,
    "body_bytes": 4096,
    "body_depth": 4,
    "long_poll": 1,
    "starts_per_minute": 3,
    "tickets": 1,
    "tokens": 2,
}


def turned_away(serving: Serving, session: str, dialect: str = JSON, **query: Any) -> dict[str, object]:
    """The problem that comes before the close: a page sees no answer to an upgrade."""
    viewer = WebViewer(serving.address, serving.token, session, dialect, **query)
    while viewer.take(BOUND_S):
        pass
    assert viewer.closed == (1013, "too-many-clients")
    (error,) = viewer.told
    assert (error["type"], error["code"]) == ("error", "too-many-clients")
    viewer.leave()
    return error


@pytest.mark.parametrize("key", ["connections", "connections_per_peer"])
def test_an_upgrade_beyond_the_connections_is_closed_with_1013(
    world: World, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv(f"HOLDFAST_SERVER_{key.upper()}", "1")
    serving = Serving(world)
    session = started(serving, "exec cat", tty=True)

    def joined() -> WebViewer | None:
        """None while the connection before it is still counted."""
        viewer = WebViewer(serving.address, serving.token, session["id"])
        viewer.until(lambda: viewer.told, "its first message")
        if viewer.told[0]["type"] == "init":
            return viewer
        viewer.leave()
        return None

    viewer = until(joined, what="the first")
    assert viewer is not None
    error = turned_away(serving, session["id"])
    assert (error["key"], error["limit"]) == (f"server.{key}", 1)
    viewer.type(b"still here\r")
    viewer.until(lambda: viewer.text.count("still here") == 2, "its echo")
    viewer.leave()
    world.open().get(session["id"]).stop(grace=0)


def test_behind_a_trusted_proxy_each_of_its_clients_is_a_peer(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SERVER_CONNECTIONS_PER_PEER", "1")
    serving = Serving(world, "--trusted-proxy", "127.0.0.1/32")
    session = started(serving, "exec cat", tty=True)
    url = f"ws://{serving.address}/v1/sessions/{session['id']}/attach"

    def joined(client: str) -> ClientConnection:
        headers = {"Authorization": f"Bearer {serving.token}", "X-Forwarded-For": client}
        return connect(url, subprotocols=[Subprotocol(JSON)], additional_headers=headers, proxy=None)

    with joined("203.0.113.1") as one, joined("203.0.113.2") as other, joined("203.0.113.1") as again:
        told = [json.loads(each.recv(BOUND_S)) for each in (one, other, again)]
        assert [each["type"] for each in told] == ["init", "init", "error"]
        assert (told[2]["key"], told[2]["limit"]) == ("server.connections_per_peer", 1)
        assert closed_with(again) == (1013, "too-many-clients")
    serving.call("POST", f"/v1/sessions/{session['id']}/stop", {"grace": 0})


def test_a_client_beyond_the_limit_of_the_runner_is_closed_with_1013(world: World, serving: Serving) -> None:
    session = world.open().start("exec cat", tty=True)
    attached = [session.attach() for _ in range(CLIENTS_MAX)]
    assert turned_away(serving, session.id)["limit"] == CLIENTS_MAX
    for each in attached:
        each.close()
    until(lambda: _is_stopped(session), what="room for one more client")


def _is_stopped(session: Session) -> bool:
    """False while the runner has not seen its clients leave."""
    try:
        session.stop(grace=0)
    except TooManyClients:
        return False
    return True


def test_a_refusal_names_the_setting_and_its_value(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for key, value in LOW.items():
        monkeypatch.setenv(f"HOLDFAST_SERVER_{key.upper()}", str(value))
    serving = Serving(world)
    limits = serving.call("GET", "/v1/info").json["limits"]
    assert LOW.items() <= limits.items()
    assert {each.key for each in SETTINGS if each.section == "server"} <= limits.keys()

    def is_refused(answer: Answer, slug: str, key: str) -> None:
        assert answer.slug == slug
        named(answer.json, key)

    def named(problem: dict[str, object], key: str) -> None:
        assert (problem["key"], problem["limit"]) == (f"server.{key}", LOW[key])
        assert f"server.{key} is {LOW[key]}" in str(problem["detail"])
        assert f"server.{key}" in str(problem["fix"])

    session, other, _ = (started(serving, "exec cat", tty=True) for _ in range(3))
    is_refused(serving.call("POST", "/v1/sessions", {"command": "true"}), "busy", "starts_per_minute")
    is_refused(serving.ask("/healthz", {**serving.bearer, "X": "x" * 2048}), "too-large", "header_bytes")
    is_refused(serving.call("POST", "/v1/sessions", {"command": "x" * 5000}), "too-large", "body_bytes")
    deep = {"command": "true", "metadata": {"a": {"b": {"c": {"d": 1}}}}}
    is_refused(serving.call("POST", "/v1/sessions", deep), "too-large", "body_depth")
    at = f"/v1/sessions/{session['id']}"
    is_refused(serving.call("GET", f"{at}/wait?timeout=2"), "bad-argument", "long_poll")
    is_refused(serving.call("GET", f"{at}/output?wait=2"), "bad-argument", "long_poll")
    waits = {"write": "x", "wait_for": {"output": True, "timeout": 2}}
    is_refused(serving.call("POST", f"{at}/input", waits), "bad-argument", "long_poll")
    serving.ticket(session["id"])
    is_refused(serving.call("POST", f"{at}/tickets", {"role": "observe"}), "busy", "tickets")
    for _ in range(2):
        assert serving.call("POST", "/v1/tokens", {}).status == 201
    is_refused(serving.call("POST", "/v1/tokens", {}), "busy", "tokens")
    is_refused(serving.call("POST", f"{at}/links", {}), "busy", "tokens")
    viewer = WebViewer(serving.address, serving.token, session["id"], role="observe")
    viewer.begun()
    for dialect in (JSON, BINARY):
        named(turned_away(serving, session["id"], dialect, role="observe"), "observers_per_session")
    # Another session has room, and so has this one for control.
    for id, role in ((other["id"], "observe"), (session["id"], "control")):
        more = WebViewer(serving.address, serving.token, id, role=role)
        assert more.begun()["role"] == role
        more.leave()
    viewer.leave()
    for each in serving.call("GET", "/v1/sessions").json["items"]:
        serving.call("POST", f"/v1/sessions/{each['id']}/stop", {"grace": 0})


def test_a_full_table_of_tokens_neither_stops_a_start_nor_a_login(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SERVER_TOKENS", "1")
    serving = Serving(world)
    minted = serving.call("POST", "/v1/tokens", {}).json
    assert serving.leave() == 0
    serving.start()
    for code in (serving.code, serving.fresh_code()):
        login = serving.call("POST", "/v1/auth/exchange", {"code": code})
        assert login.status == 200
    assert serving.call("POST", "/v1/tokens", {}).slug == "busy"
    page = login.json["token"]
    assert serving.call("DELETE", f"/v1/tokens/{minted['id']}", token=page).status == 204
    assert serving.call("POST", "/v1/tokens", {}, token=page).status == 201
