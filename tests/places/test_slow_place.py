"""A server with sessions in a place that does not answer: it says so, and delays nothing else."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from support.own_time import QuietTime
from support.serving import Serving, started

if TYPE_CHECKING:
    from support.places import Away
    from support.world import World

pytestmark = pytest.mark.needs("sshd")


@pytest.mark.timeout(180)
def test_a_place_that_does_not_answer_is_unavailable_and_delays_only_requests_about_it(
    remote: Away, world: World
) -> None:
    serving = Serving(world)
    here = started(serving, "exec cat", stdin="open")
    headers = {**serving.bearer, "Content-Type": "application/json"}
    body = f'{{"command": "exec cat", "stdin": "open", "place": "{remote.place}"}}'.encode()
    made = serving.ask("/v1/sessions", headers, method="POST", body=body, bound=60)
    assert made.status == 201, made.body
    there = made.json
    assert serving.call("GET", "/v1/sessions").json["unavailable"] == []
    remote.cable.cut()
    try:
        passed = QuietTime()
        with ThreadPoolExecutor() as pool:
            one = pool.submit(serving.ask, f"/v1/sessions/{there['id']}", bound=60)
            target = f"/v1/sessions/{there['id']}/input"
            write = pool.submit(serving.ask, target, headers, method="POST", body=b'{"write": "x"}', bound=60)
            assert serving.call("GET", f"/v1/sessions/{here['id']}").json["state"] == "running"
            assert serving.call("POST", f"/v1/sessions/{here['id']}/input", {"write": "x"}).status == 200
            assert not write.done()
            assert (one.result().status, one.result().json["state"]) == (200, "unreachable")
            assert (write.result().status, write.result().slug) in ((504, "unreachable"), (502, "place-unreachable"))
        assert passed.seconds() < 12
        listed = serving.ask("/v1/sessions", bound=60).json
        states = {each["id"]: each["state"] for each in listed["items"]}
        assert states == {here["id"]: "running", there["id"]: "unreachable"}
        assert [each["place"] for each in listed["unavailable"]] == [remote.place]
        assert listed["unavailable"][0]["problem"]["type"] == "/problems/place-unreachable"
        places = serving.ask("/v1/places", bound=60).json
        assert [each["place"] for each in places["items"]] == ["local", remote.place]
        assert [each["place"] for each in places["unavailable"]] == [remote.place]
    finally:
        remote.cable.mend()
    for id in (here["id"], there["id"]):
        serving.ask(f"/v1/sessions/{id}/stop", headers, method="POST", body=b'{"grace": 0}', bound=60)
