"""Who may do what through a fabric: scopes, narrowing, limits, and two views of one node."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import InvalidStatus

from holdfast.errors import Busy, HoldfastError
from holdfast.nodes.conversation import BYTES, LAST
from holdfast.nodes.exchange import Broken
from support.fleets import Fleet, FleetServing, leave
from support.serving import START_BOUND_S, EventReader, closed_with, filled
from support.through_nodes import attached, seen_until, there
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    from holdfast.nodes.far_app import Calls
    from support.fleets import Machine
    from support.world import World


def joined(fleet: Fleet, machine: Machine, scope: str, *words: object) -> None:
    """The machine joins this fleet too, under its own name."""
    inviting, code = fleet.invite(machine.name, scope)
    machine.hold("node", "join", code, *words)
    assert inviting.wait(START_BOUND_S) == 0, inviting.errors()


def reached(serving: FleetServing, *nodes: str) -> None:
    for node in nodes:
        until(
            lambda node=node: serving.call("GET", f"/v1/nodes/{node}/info").status == 200,  # type: ignore[misc]
            START_BOUND_S,
            what=f"node {node}",
        )


def owned(machine: Machine, owner: str, name: str) -> str:
    return machine.hold(
        "start", "--tty", "--owner", owner, "--name", name, "--", f"echo {name}; exec cat"
    ).stdout.strip()


@pytest.mark.covers("nodes:12")
def test_a_view_that_may_observe_changes_nothing_over_http_websocket_and_far(fleet: Fleet) -> None:
    node = fleet.node("eye", "observe")
    id = owned(node, "agent-7", "mine")
    before = {path.name: path.read_bytes() for path in (node.home / "sessions" / id).glob("spec.json")}
    serving = fleet.serve_view()
    reached(serving, "eye")
    paths = serving.call("GET", "/openapi.json").json["paths"]
    tried = []
    for path, methods in paths.items():
        for method, operation in methods.items():
            if operation.get("x-scope") in ("control", "manage"):
                example = (operation.get("requestBody") or {}).get("content", {}).get("application/json", {})
                body = example.get("example", {}) if "requestBody" in operation else None
                target = filled(path, id=id).removeprefix("/v1")
                answer = serving.call(method.upper(), f"/v1/nodes/eye{target}", body)
                assert answer.status in (403, 404), (method, path, answer.body)
                tried.append(answer.status)
    assert len(tried) >= 20
    assert tried.count(403) >= 20
    with pytest.raises(InvalidStatus) as refused:
        attached(serving, "eye", id, "control")
    assert refused.value.response.status_code == 403
    with attached(serving, "eye", id, "observe") as viewer:
        seen_until(viewer, b"mine")
        viewer.send(json.dumps({"type": "input", "id": 1, "data": "typed\n"}))
        while (message := json.loads(viewer.recv(START_BOUND_S)))["type"] != "written":
            pass
        assert message["problem"]["type"] == "/problems/observe-only"
    far = fleet.view.hold("run", "--place", "node:eye", "--", "true", check=False)
    assert far.returncode != 0
    assert "manage" in far.stderr, far.stderr
    assert node.hold("ls", "-aq").stdout.split() == [id]
    assert there(serving, "eye", f"/sessions/{id}")["state"] == "running"
    assert not (node.home / "sessions" / id / "inputs.jsonl").exists()
    assert {path.name: path.read_bytes() for path in (node.home / "sessions" / id).glob("spec.json")} == before


@pytest.mark.covers("nodes:12", "nodes:13")
def test_what_is_narrowed_on_the_node_or_by_the_token_of_the_view_stays_narrowed(fleet: Fleet) -> None:
    owner, plain = fleet.machine("owner"), fleet.node("plain")
    joined(fleet, owner, "manage", "--owner", "agent-7")
    owner.serve()
    ids = {
        (machine.name, name): owned(machine, who, name)
        for machine in (owner, plain)
        for who, name in (("agent-7", "mine"), ("agent-8", "other"))
    }
    serving = fleet.serve_view()
    reached(serving, "owner", "plain")
    token = _minted(serving, label="seven", scope="manage", owner="agent-7")
    by_label = _minted(serving, label="none", scope="manage", labels={"team": "web"})

    def listed(node: str, token: str | None, query: str = "") -> set[str]:
        """The owners of what is listed."""
        answer = serving.call("GET", f"/v1/nodes/{node}/sessions?count=true{query}", token=token).json
        assert answer["count"] == len(answer["items"])
        return {each["owner"] for each in answer["items"]}

    assert listed("plain", None) == {"agent-7", "agent-8"}
    assert listed("plain", by_label) == listed("owner", by_label) == set()
    for node, secret in (("owner", None), ("owner", token), ("plain", token)):
        other = ids[node, "other"]
        with EventReader(serving, f"/v1/nodes/{node}/events", token=secret) as events:
            assert events.answer.status == 200
            assert listed(node, secret) == {"agent-7"}
            assert listed(node, secret, "&q=mine") == {"agent-7"}
            assert listed(node, secret, "&q=other") == set()
            for ref in (other, other[:6], "other"):
                for method, path, body in (
                    ("GET", "", None),
                    ("GET", "/search?text=other", None),
                    ("GET", "/output", None),
                    ("POST", "/stop", {}),
                    ("DELETE", "", None),
                ):
                    target = f"/v1/nodes/{node}/sessions/{ref}{path}"
                    assert serving.call(method, target, body, token=secret).slug == "not-found", target
            (screen,) = serving.call("GET", f"/v1/nodes/{node}/screens?ids={other}", token=secret).json["items"]
            assert screen["problem"]["type"] == "/problems/not-found"
            started = serving.call("POST", f"/v1/nodes/{node}/sessions", {"command": "true"}, token=secret)
            assert started.json["owner"] == "agent-7", started.body
            refused = {"command": "true", "owner": "agent-8"}
            assert serving.call("POST", f"/v1/nodes/{node}/sessions", refused, token=secret).status == 403
            machine = owner if node == "owner" else plain
            machine.hold("run", "--owner", "agent-8", "--name", f"late-{secret is None}", "--", "true")
            last = machine.hold("start", "--owner", "agent-7", "--", "true").stdout.strip()
            seen = set()
            for name, _, row in events:
                if name == "session":
                    seen.add(row["owner"])
                    if row["id"] == last:
                        break
            assert seen == {"agent-7"}
            assert serving.call("GET", f"/v1/nodes/{node}/metrics", token=secret).slug == "unsupported"
    merged = serving.call("GET", "/v1/sessions?nodes=all&count=true", token=token).json
    assert {each["owner"] for each in merged["items"]} == {"agent-7"}
    assert {each["node"] for each in merged["items"]} == {"owner", "plain"}
    assert merged["count"] == len(merged["items"])
    everything = serving.call("GET", "/v1/sessions?nodes=all&limit=200").json["items"]
    assert {each["owner"] for each in everything if each["node"] == "owner"} == {"agent-7"}
    assert {each["owner"] for each in everything if each["node"] == "plain"} == {"agent-7", "agent-8"}

    # Revoked here, it loses what it has open there.
    target, headers = f"/v1/nodes/plain/sessions/{ids['plain', 'mine']}", {"Origin": f"http://{serving.address}"}
    ticket = serving.call("POST", f"{target}/tickets", {"role": "control"}, token=token, **headers).json["ticket"]
    with attached(serving, "plain", ids["plain", "mine"], ticket=ticket) as viewer:
        seen_until(viewer, b"mine")
        (id,) = [each["id"] for each in serving.call("GET", "/v1/tokens").json["items"] if each["label"] == "seven"]
        assert serving.call("DELETE", f"/v1/tokens/{id}").status == 204
        assert closed_with(viewer)[0] == 1008


def test_a_machine_that_joins_decides_what_the_view_may_do_and_see(fleet: Fleet) -> None:
    machine = fleet.machine("a")
    inviting, code = fleet.invite("a", "control")
    for words in (
        ("ls", "a"),
        ("ls", "--scope", "observe"),
        ("join", code, "--credentials", "file"),
        ("invite", "b", "--owner", "agent-7"),
        ("trust", "view", "--scope", "observe", "--label", "team=web"),
        ("revoke", "view", "--json"),
    ):
        refused = machine.hold("node", *words, check=False)
        assert refused.returncode == 2, words
        assert f"{words[0]} takes no" in refused.stderr, refused.stderr
    said = machine.hold("node", "join", code, "--scope", "observe", "--label", "team=web", "--label", "tier=1").stderr
    assert inviting.wait(START_BOUND_S) == 0
    assert "that view may observe this home" in said
    machine.serve()
    ids = {
        labels: machine.hold("start", *(f"--label={each}" for each in labels), "--", "sleep 600").stdout.strip()
        for labels in ((), ("team=web",), ("team=web", "tier=1"))
    }
    serving = fleet.serve_view()
    reached(serving, "a")
    seen = ids["team=web", "tier=1"]
    assert [row["id"] for row in serving.call("GET", "/v1/nodes/a/sessions").json["items"]] == [seen]
    assert serving.call("POST", f"/v1/nodes/a/sessions/{seen}/input", {"write": "x"}).status == 403
    # The machine that invites has asked for no more than this.
    inviting, code = fleet.invite("b", "observe")
    asked = fleet.machine("b").hold("node", "join", code, "--scope", "manage")
    assert inviting.wait(START_BOUND_S) == 0
    assert "that view may observe this home" in asked.stderr


@pytest.mark.parametrize("words", [("revoke",), ("trust", "--scope", "control")], ids=["revoke", "trust"])
def test_tokens_that_a_view_minted_on_a_node_end_with_what_it_may_do(fleet: Fleet, words: tuple[str, ...]) -> None:
    node = fleet.join("a")
    direct, serving = FleetServing(node), fleet.serve_view()
    reached(serving, "a")
    id = node.hold("start", "--", "sleep 600").stdout.strip()
    own = _minted(direct, scope="manage")
    minted = serving.call("POST", "/v1/nodes/a/tokens", {"scope": "manage"}).json["token"]
    again = direct.call("POST", "/v1/tokens", {"scope": "manage"}, token=minted).json["token"]
    link = serving.call("POST", f"/v1/nodes/a/sessions/{id}/links", {}).json["url"].partition("=")[2]

    def statuses(target: str = f"/v1/sessions/{id}") -> list[int]:
        return [direct.call("GET", target, token=token).status for token in (own, minted, again, link)]

    assert statuses() == [200, 200, 200, 200]
    (view,) = (each["view"] for each in json.loads(node.hold("node", "ls", "--json").stdout)["views"])
    with EventReader(direct, "/v1/events", token=again) as events:
        events.until("hello")
        node.hold("node", words[0], view, *words[1:])
        assert events.until("bye")["reason"] == "revoked"
    assert statuses() == [200, 401, 401, 401]
    # While it may manage, they stay.
    if words[0] == "trust":
        node.hold("node", "trust", view, "--scope", "manage")
        until(lambda: "manage" in serving.call("GET", "/v1/nodes/a/info").json["scopes"], START_BOUND_S)
        minted = serving.call("POST", "/v1/nodes/a/tokens", {"scope": "manage"}).json["token"]
        node.hold("node", "trust", view, "--scope", "manage")
        assert statuses("/v1/info")[:2] == [200, 200]


def _minted(serving: FleetServing, **options: Any) -> str:
    answer = serving.call("POST", "/v1/tokens", options)
    assert answer.status == 201, answer.body
    return str(answer.json["token"])


@asynccontextmanager
async def viewing(machine: Machine) -> AsyncIterator[Calls]:
    """A process of a view: this one."""
    from holdfast.home import Home
    from holdfast.nodes.far_app import Calls
    from holdfast.nodes.joining import Viewing

    view = Viewing(Home(machine.home))
    calls = Calls(view)
    assert view.address is not None
    async with calls.through(view.address) as fabric:
        await asyncio.wait_for(fabric.ready.wait(), START_BOUND_S)
        yield calls


@pytest.mark.covers("nodes:22", "nodes:28")
def test_two_views_of_one_node_have_their_own_scopes_authors_and_limits(world: World, fleet: Fleet) -> None:
    others = [Fleet(world, "second"), Fleet(world, "third")]
    node = fleet.join("a", "control")
    joined(others[0], node, "manage")
    joined(others[1], node, "observe")
    node.serve()
    for each in (fleet, *others):
        each.until_connected("a")
    asyncio.run(_limits(node, [fleet, *others]))
    first, second = fleet.serve_view(), others[0].serve_view()
    reached(first, "a")
    reached(second, "a")
    id = node.hold("start", "--tty", "--", "cat").stdout.strip()
    names = [json.loads(each.view.file("fabric.json").read_text())["view"] for each in (fleet, others[0])]
    assert first.call("POST", "/v1/nodes/a/sessions", {"command": "true"}).status == 403
    with attached(first, "a", id) as one:
        with attached(second, "a", id) as other:
            for viewer, text in ((one, "of.the.first"), (other, "of.the.second")):
                viewer.send(json.dumps({"type": "input", "id": 1, "submit": text}))
                seen_until(viewer, text.encode())
            seen_until(one, b"of.the.second")
            authors = [each["by"] for each in there(first, "a", f"/sessions/{id}/inputs")["items"]]
            assert authors == [f"web:home@{name}" for name in names]
            second.kill()
            second.program.wait()
        one.send(json.dumps({"type": "input", "id": 2, "submit": "alone"}))
        seen_until(one, b"alone")


async def _limits(node: Machine, fleets: list[Fleet]) -> None:
    """64 exchanges of one view and 64 of another are all that a node has. Each waits for the end of a command."""
    # A runner has at most 64 clients.
    start = ("start", "--", "exec sleep 600")
    ids = [(await asyncio.to_thread(node.hold, *start)).stdout.strip() for _ in range(3)]

    talks: list[Any] = []

    async def opened(calls: Calls) -> Any:
        talk = await calls.open("a")
        id = ids[len(talks) % 3]
        caller = {"label": "x", "scope": "observe"}
        asked = {"path": f"/v1/sessions/{id}/wait", "query": "until=exit&timeout=55", "headers": [], "caller": caller}
        await talk.send({"type": "http", "method": "GET", **asked})
        await talk.send_body(0, b"")
        return talk

    async def refusal(calls: Calls) -> HoldfastError:
        talk = await calls.open("a")
        with pytest.raises(Broken) as over:
            await talk.receive()
        assert over.value.problem is not None, over.value
        return HoldfastError.from_wire(over.value.problem)

    async with AsyncExitStack() as stack:
        views = [await stack.enter_async_context(viewing(each.view)) for each in fleets]
        for view in views[:2]:
            for _ in range(64):
                talks.append(await opened(view))  # noqa: PERF401
            _is_named(await refusal(view), "exchanges_of_a_view", 64)
        _is_named(await refusal(views[2]), "exchanges", 128)
        await asyncio.to_thread(node.hold, "stop", *ids, "--grace", "0")
        for talk in talks:
            frame = await asyncio.wait_for(talk.receive(), START_BOUND_S)
            assert (frame["type"], frame["status"]) == ("http.response.start", 200)
            await talk.close()


def _is_named(refused: HoldfastError, key: str, limit: int) -> None:
    assert isinstance(refused, Busy), refused
    assert f"({key} is {limit})" in refused.message
    assert (refused.facts["key"], refused.facts["limit"]) == (key, limit)


# A server of a node whose links lead to `cat`: what comes back over a link is what was sent.
_ECHOING = """
import sys
from holdfast.nodes import serving
serving.far_end = lambda: ["sh", "-c", "exec cat"]
from holdfast.cli import main
sys.exit(main())
"""


@pytest.mark.covers("nodes:22")
def test_links_are_limited_apart_from_requests_and_their_refusal_names_the_limit(world: World, fleet: Fleet) -> None:
    others = [Fleet(world, "second"), Fleet(world, "third")]
    node = fleet.join("a")
    for each in others:
        joined(each, node, "manage")
    id = node.hold("start", "--name", "web", "--", "exec sleep 600").stdout.strip()
    server = world.program([sys.executable, "-c", _ECHOING, "serve", "--no-listen"], env=node.env)
    world.closing.callback(leave, server)
    assert "fabric" in server.line(START_BOUND_S), server.errors()
    for each in (fleet, *others):
        each.until_connected("a")
    asyncio.run(_links(fleet.view, id, [fleet, *others]))


async def _links(view: Machine, id: str, fleets: list[Fleet]) -> None:
    async def linked(calls: Calls) -> Any:
        talk = await calls.open("a")
        await talk.send({"type": "far", "digest": "", "size": 0})
        await echoes(talk)
        return talk

    async def echoes(talk: Any) -> None:
        await talk.send_body(BYTES, b"an echo")
        assert await asyncio.wait_for(talk.receive(), START_BOUND_S) == (BYTES + LAST, b"an echo")

    async def refusal(calls: Calls) -> HoldfastError:
        with pytest.raises(Broken) as over:
            await linked(calls)
        assert over.value.problem is not None, over.value
        return HoldfastError.from_wire(over.value.problem)

    async with AsyncExitStack() as stack:
        views = [await stack.enter_async_context(viewing(each.view)) for each in fleets]
        talks = [await linked(views[0]) for _ in range(64)]
        _is_named(await refusal(views[0]), "links_of_a_view", 64)
        for words in (("start", "--place", "node:a", "--json", "--", "true"), ("logs", "--json", "a/web")):
            refused = await asyncio.to_thread(view.hold, *words, check=False)
            _is_named(HoldfastError.from_wire(json.loads(refused.stderr.splitlines()[-1])), "links_of_a_view", 64)
        # Requests of this view are answered, and another view has links of its own.
        rows = json.loads((await asyncio.to_thread(view.hold, "ls", "--nodes", "a", "--json")).stdout)
        assert [row["id"] for row in rows] == [id]
        assert (await asyncio.to_thread(fleets[0].listed))["a"]["state"] == "connected"
        talks += [await linked(views[1]) for _ in range(64)]
        _is_named(await refusal(views[2]), "links", 128)
        for talk in talks:
            await echoes(talk)
        await talks.pop(0).close()

        async def has_another() -> bool:
            try:
                talks.append(await linked(views[0]))
            except Broken:
                return False
            return True

        async with asyncio.timeout(START_BOUND_S):
            while not await has_another():
                pass
        for talk in talks:
            await talk.close()


def test_a_view_does_not_see_the_nodes_of_its_node(world: World, fleet: Fleet) -> None:
    fleet.join("a").hold("start", "--", "sleep 1000")
    other = Fleet(world, "other")
    joined(other, fleet.view, "manage")
    own = fleet.view.hold("start", "--", "sleep 1000").stdout.strip()
    fleet.serve_view()
    serving = other.serve_view()
    reached(serving, fleet.view.name)
    base = f"/v1/nodes/{fleet.view.name}"
    assert serving.call("GET", f"{base}/nodes").json == {"items": []}
    page = serving.call("GET", f"{base}/sessions?nodes=all").json
    assert ([row["id"] for row in page["items"]], page["unavailable"]) == ([own], [])
    assert serving.call("GET", f"{base}/nodes/a/info").status == 404


def test_an_exchange_that_ended_before_its_turn_to_be_read_is_opened_again(fleet: Fleet) -> None:
    """A node ends an exchange on which nothing comes for ten seconds. Behind slow nodes a turn comes later."""
    from holdfast.nodes.asking import _ask

    fleet.join("a").serve()
    fleet.until_connected("a")

    async def main() -> list[dict[str, Any]] | str:
        async with viewing(fleet.view) as calls:
            opened = asyncio.Event()
            open_exchange = calls.open

            async def ended_at_once(name: str) -> Any:
                talk = await open_exchange(name)
                if not opened.is_set():
                    await talk.close()
                opened.set()
                return talk

            calls.open = ended_at_once  # type: ignore[assignment,method-assign]
            return await _ask(calls, "a", ["limit=1"], asyncio.Semaphore(1), asyncio.Semaphore(1))

    answer = asyncio.run(main())
    assert isinstance(answer, list), answer
    assert answer[0]["items"] == []
