"""Limits are settings of the server; a refusal names the setting that was reached, and its value."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import InvalidStatus

from holdfast.config import SETTINGS
from support.serving import Serving, started
from support.webviewer import WebViewer

if TYPE_CHECKING:
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
    # The code that the server printed is one of them.
    assert serving.call("POST", "/v1/tokens", {}).status == 201
    is_refused(serving.call("POST", "/v1/tokens", {}), "busy", "tokens")
    is_refused(serving.call("POST", f"{at}/links", {}), "busy", "tokens")
    viewer = WebViewer(serving.address, serving.token, session["id"], role="observe")
    viewer.begun()
    with pytest.raises(InvalidStatus) as refused:
        WebViewer(serving.address, serving.token, session["id"], role="observe")
    assert refused.value.response.status_code == 429
    named(json.loads(refused.value.response.body), "observers_per_session")
    # Another session has room, and so has this one for control.
    for id, role in ((other["id"], "observe"), (session["id"], "control")):
        more = WebViewer(serving.address, serving.token, id, role=role)
        assert more.begun()["role"] == role
        more.leave()
    viewer.leave()
    for each in serving.call("GET", "/v1/sessions").json["items"]:
        serving.call("POST", f"/v1/sessions/{each['id']}/stop", {"grace": 0})
