"""The stream of events: sessions as they change, each signal once and in order, and a reset instead of a hole."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import threading
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.signals.lines import Signal
from support.faults import wedged
from support.serving import (
    START_BOUND_S,
    EventReader,
    Serving,
    also_through_a_node,
    closed_with,
    request,
    serving_inside,
    started,
)
from support.session_files import copied
from support.through_nodes import ThroughNode
from support.waiting import until

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from holdfast import Session
    from support.serving import Inside
    from support.world import World


@also_through_a_node
def test_a_session_is_seen_from_its_start_to_its_removal(world: World, serving: Serving) -> None:
    hf = world.open()
    with EventReader(serving) as reader:
        assert reader.answer.headers["content-type"].startswith("text/event-stream")
        hello = reader.until("hello")
        assert set(hello) == {"instance", "generation", "pos", "features"}
        session = hf.start("cat", stdin="open", name="job")
        assert reader.until("session", change="created")["id"] == session.id
        session.send("hello\n")
        grown = reader.until("session", change="updated")
        while grown["ends"].get("stdout") != 6:
            grown = reader.until("session", change="updated")
        session.update(labels={"team": "web"})
        while grown["labels"] != {"team": "web"}:
            grown = reader.until("session")
        session.stop(grace=0)
        assert reader.until("session", change="ended")["exit"]["cause"] == "stop"
        session.remove()
        assert reader.until("session", change="removed")["id"] == session.id


@also_through_a_node
def test_a_runner_that_is_stopped_is_unreachable_to_open_readers_until_it_continues(
    world: World, serving: Serving
) -> None:
    """An open page showed it as running: nothing is written or sent when a process is stopped."""
    hf = world.open()
    session, other = hf.start("exec sleep 600"), hf.start("exec cat", stdin="open")
    with EventReader(serving) as reader, EventReader(serving, f"/v1/events?session={other.id}") as elsewhere:
        for each in (reader, elsewhere):
            each.until("hello")
        with wedged(session):
            assert reader.until("session", id=session.id)["state"] == "unreachable"
            other.send("hello\n")
            assert reader.until("session", id=other.id)["state"] == "running"
        assert reader.until("session", id=session.id)["state"] == "running"
        assert elsewhere.until("session")["id"] == other.id
    for running in (session, other):
        running.stop(grace=0)


def test_only_what_was_asked_for_and_may_be_seen_comes(world: World, serving: Serving) -> None:
    hf = world.open()
    minted = serving.call("POST", "/v1/tokens", {"label": "seven", "scope": "observe", "owner": "agent-7"}).json
    with (
        EventReader(serving, "/v1/events?types=signal&owner=agent-8") as filtered,
        EventReader(serving, token=minted["token"]) as narrowed,
    ):
        for reader in (filtered, narrowed):
            reader.until("hello")
        for owner in ("agent-7", "agent-8"):
            hf.run("true", owner=owner, notify="exit", wait=10)
        assert next(iter(filtered))[2]["owner"] == "agent-8"
        ended = narrowed.until("session", change="ended")
        assert ended["owner"] == "agent-7"
        assert serving.call("DELETE", f"/v1/tokens/{minted['id']}").status == 204
        assert "agent-8" not in {data.get("owner") for _, _, data in narrowed}


def since(serving: Serving, world: World, last: str, token: str | None = None) -> list[tuple[str, Any]]:
    """The events of a reader that resumes there, up to those of a session that is started now."""
    found: list[tuple[str, Any]] = []
    with EventReader(serving, last=last, token=token) as reader:
        events = iter(reader)
        assert next(events)[0] == "hello"
        now = world.open().run("true", owner="agent-7", notify="never", wait=10).id
        for name, _, data in events:
            if data.get("id") == now:
                break
            found.append((name, data))
    return found


@also_through_a_node
def test_a_resumed_reader_gets_each_change_after_its_signal_and_just_before_it(world: World, serving: Serving) -> None:
    hf = world.open()
    before = hf.run("true", wait=10)
    with EventReader(serving) as reader, EventReader(serving) as other:
        for each in (reader, other):
            each.until("hello")
        for _ in range(50):
            session = hf.run("seq 1000", notify="exit", wait=10)
            last, at = next((id, data["at"]) for name, id, data in reader if name == "signal")
            other.until("session", change="ended", id=session.id)
            # A millisecond later, and most often sent earlier.
            if at > (session.ended_at or ""):
                break
        assert last is not None
        assert [data["change"] for _, data in since(serving, world, last) if data.get("id") == session.id] == ["ended"]
        before.update(owner="agent-8")
        other.until("session", owner="agent-8")
        (changed,) = [data for _, data in since(serving, world, last) if data["id"] == before.id]
        assert changed["owner"] == "agent-8"
        before.remove()
        other.until("session", change="removed")
        assert ("session", {"id": before.id, "change": "removed"}) in since(serving, world, last)


def test_a_resumed_reader_with_a_narrowed_token_lists_again_after_a_removal(world: World, serving: Serving) -> None:
    hf = world.open()
    minted = serving.call("POST", "/v1/tokens", {"scope": "observe", "owner": "agent-7"}).json
    session = hf.run("true", owner="agent-7", wait=10)
    # The newest signal is of a session that stays.
    hf.run("true", notify="exit", wait=10)
    assert len(recorded(serving)) == 1
    with EventReader(serving) as reader:
        hello = reader.until("hello")
    last = f"{hello['generation']}:{hello['pos']}"
    assert "reset" not in [name for name, _ in since(serving, world, last, minted["token"])]
    session.remove()
    found = since(serving, world, last, minted["token"])
    assert [data for name, data in found if name == "reset"] == [{"reason": "too_old"}]


@also_through_a_node
def test_a_session_that_no_longer_fits_is_removed_for_its_reader(world: World, serving: Serving) -> None:
    session = world.open().start("exec sleep 600", owner="agent-7")
    with EventReader(serving, "/v1/events?owner=agent-7") as reader:
        reader.until("hello")
        session.update(owner="agent-8")
        gone = reader.until("session", change="removed")
        assert (gone["id"], gone["owner"]) == (session.id, "agent-7")
        session.update(owner="agent-7")
        assert reader.until("session", change="created")["id"] == session.id
    session.stop(grace=0)


@also_through_a_node
@pytest.mark.parametrize("pos", ["-1", "1e3", "", "9999999999999999", "99999999999999999999"])
def test_an_id_that_was_not_given_out_is_a_reset_and_no_hole(world: World, serving: Serving, pos: str) -> None:
    with EventReader(serving) as reader:
        generation = reader.until("hello")["generation"]
    with EventReader(serving, last=f"{generation}:{pos}") as reader:
        events = iter(reader)
        assert [next(events)[0], next(events)[0]] == ["hello", "reset"]


def test_a_reader_too_many_is_refused_before_its_stream_begins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SERVER_SSE_READERS", "1")

    def read(inside: Inside) -> None:
        with EventReader(inside) as reader:
            reader.until("hello")
            refused = request(("127.0.0.1", inside.port), "/v1/events", inside.bearer)
            assert (refused.status, refused.slug, refused.json["key"]) == (
                429,
                "too-many-clients",
                "server.sse_readers",
            )

    async def main() -> None:
        async with serving_inside() as inside:
            await asyncio.to_thread(read, inside)

    asyncio.run(main())


@pytest.mark.covers("server:18")
@also_through_a_node
def test_cut_fifty_times_a_reader_has_every_signal_once_in_order(world: World, serving: Serving) -> None:
    hf = world.open()
    chance = random.Random(18)
    sessions: list[Session] = []

    def load() -> None:
        commands = (f"echo hit {number}; echo hit again" for number in range(60))
        sessions.extend(hf.start(each, watch=["hit"], notify="exit", owner="load") for each in commands)
        for session in sessions:
            session.wait(timeout=30)
        sessions.append(hf.start("true", notify="exit", owner="last"))
        sessions[-1].wait(timeout=30)

    with EventReader(serving, "/v1/events?types=signal") as reader:
        last = f"{reader.until('hello')['generation']}:0"
    thread = threading.Thread(target=load)
    thread.start()
    seen: list[str] = []
    owners: set[str] = set()
    # Most often in the middle of an event, and all in all before the last.
    for cut in [*(chance.randrange(1, 2500) for _ in range(50)), None]:
        with EventReader(serving, "/v1/events?types=signal", last=last, cut=cut) as reader:
            for name, id, data in reader:
                assert name in ("hello", "signal"), (name, data)
                if name == "signal":
                    assert id is not None
                    seen.append(data["id"])
                    owners.add(data["owner"])
                    last = id
                if "last" in owners and len(seen) >= len(recorded(serving)):
                    break
    thread.join()
    assert seen == recorded(serving)
    for session in sessions:
        own = [id for id in seen if id.startswith(session.id)]
        assert own == [each.id for each in session.told() if isinstance(each, Signal) and each.routed]


@also_through_a_node
def test_a_reader_that_is_behind_what_is_kept_lists_again(world: World, serving: Serving) -> None:
    hf = world.open()
    first = hf.run("true", notify="exit", wait=10)
    until(lambda: recorded(serving))
    hf.run("true", notify="exit", wait=10)
    until(lambda: len(recorded(serving)) == 2)
    with EventReader(serving) as reader:
        generation = reader.until("hello")["generation"]
    first.remove()
    until(lambda: len(recorded(serving)) == 1)
    with EventReader(serving, last=f"{generation}:0") as reader:
        events = iter(reader)
        assert [next(events)[0], next(events)[2]] == ["hello", {"reason": "too_old"}]


@pytest.mark.long
@also_through_a_node
def test_a_reader_that_is_a_thousand_events_behind_lists_again(world: World, serving: Serving) -> None:
    hf = world.open()
    session = hf.run("true", notify="exit", wait=10)
    until(lambda: recorded(serving))
    own = serving.direct if isinstance(serving, ThroughNode) else serving
    with EventReader(serving) as reader:
        reader.until("hello")
        own.kill(signal.SIGSTOP)
        for number in range(1001):
            copied(world.session(session.id), f"b{number:08d}")
        own.kill(signal.SIGCONT)
        last, reset = next((id, data) for name, id, data in reader if name == "reset")
        assert reset == {"reason": "overflow"}
    assert serving.call("GET", "/v1/sessions?count=true&limit=1").json["count"] == 1002
    newest = hf.run("true", notify="exit", wait=10)
    with EventReader(serving, last=last) as reader:
        assert reader.until("signal", session=newest.id)


def recorded(serving: Serving) -> list[str]:
    found: list[str] = []
    after = "0"
    while True:
        page = serving.call("GET", f"/v1/signals?limit=200&after={after}").json
        if not page["items"]:
            return found
        found += [each["id"] for each in page["items"]]
        after = page["next"]


@pytest.mark.covers("server:19")
@also_through_a_node
def test_a_deleted_index_is_a_reset_and_then_a_correct_list(world: World, serving: Serving) -> None:
    hf = world.open()
    ids = {hf.run("true", notify="exit", wait=10).id for _ in range(3)}
    assert len(recorded(serving)) == 3
    with EventReader(serving) as reader:
        before = reader.until("hello")["generation"]
        for path in world.home.glob("index.db*"):
            path.unlink(missing_ok=True)
        id, data = next((id, data) for name, id, data in reader if name == "reset")
        assert data == {"reason": "new_generation"}
        assert id is not None
        assert id.rpartition(":")[0] != before
        listed = serving.call("GET", "/v1/sessions").json["items"]
        assert {each["id"] for each in listed} == ids
        ended = hf.run("true", notify="exit", wait=10)
        assert reader.until("signal")["session"] == ended.id
    with EventReader(serving, last=f"{before}:3") as reader:
        reader.until("hello")
        assert reader.until("reset") == {"reason": "new_generation"}


@pytest.mark.covers("server:1")
def test_a_server_that_is_killed_while_twenty_sessions_print_loses_no_byte(world: World) -> None:
    from websockets.sync.client import connect

    serving = Serving(world)
    hf = world.open()
    stop = world.root / "stop"
    # They print until the file is there, each number on a line.
    script = f"stty -opost; i=0; while [ ! -e {stop} ]; do echo $i; i=$((i+1)); sleep 0.02; done; echo end $i"
    begun = [started(serving, script, tty=True) for _ in range(20)]
    running = [hf.get(each["id"]) for each in begun]
    token = {"Authorization": f"Bearer {serving.token}"}

    def attached(at: int | str) -> ClientConnection:
        url = f"ws://{serving.address}/v1/sessions/{running[0].id}/attach?from={at}&lag=exact"
        return connect(url, subprotocols=["holdfast.v1.json"], additional_headers=token, proxy=None)  # type: ignore[list-item]

    def ends() -> list[int]:
        return [session.refresh().ends.get("tty", 0) for session in running]

    got = b""
    with attached("start") as viewer:
        while len(got) < 100:
            message = json.loads(viewer.recv(START_BOUND_S))
            if message["type"] == "data":
                got += b64decode(message["data"])
        serving.kill()
        serving.program.wait(START_BOUND_S)
    at_the_kill = ends()
    until(lambda: all(now > then + 20 for now, then in zip(ends(), at_the_kill, strict=True)), 60, what="all print on")
    serving.start()
    listed = serving.call("GET", "/v1/sessions?state=running").json["items"]
    assert {(each["id"], each["pid"]) for each in listed} == {(each["id"], each["pid"]) for each in begun}
    with attached(len(got)) as viewer:
        assert json.loads(viewer.recv(START_BOUND_S))["resumed"] is True
        stop.touch()
        while (message := json.loads(viewer.recv(START_BOUND_S)))["type"] != "session_ended":
            if message["type"] == "data":
                assert message["offset"] == len(got)
                got += b64decode(message["data"])
    for session in running:
        session.wait(timeout=30)
        whole = b"".join(session.raw("tty"))
        count = int(whole.split()[-1])
        assert whole == b"".join(b"%d\n" % number for number in range(count)) + b"end %d\n" % count
        assert (session.exit.code if session.exit else None) == 0
    assert got == b"".join(running[0].raw("tty"))


@pytest.mark.covers("server:2")
def test_asked_to_leave_it_says_goodbye_to_its_readers(world: World) -> None:
    from websockets.sync.client import connect

    serving = Serving(world)
    hf = world.open()
    running = [hf.start("exec cat", tty=True) for _ in range(3)]
    before = [session.pid for session in running]
    url = f"ws://{serving.address}/v1/sessions/{running[0].id}/attach"
    token = {"Authorization": f"Bearer {serving.token}"}
    with (
        EventReader(serving) as reader,
        connect(url, subprotocols=["holdfast.v1"], additional_headers=token, proxy=None) as viewer,  # type: ignore[list-item]
    ):
        reader.until("hello")
        viewer.recv()
        serving.kill(signal.SIGTERM)
        assert reader.until("bye") == {"retry_ms": 2000}
        assert list(reader) == []
        assert closed_with(viewer) == (1001, "shutting-down")
    assert serving.program.wait(START_BOUND_S) == 0
    assert [session.refresh().pid for session in running] == before
    assert {session.state for session in running} == {"running"}
    for session in running:
        session.stop(grace=0)
