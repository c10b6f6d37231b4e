"""`hold signals`, `ack`, `notify`, and the options of a start that ask for signals."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.signals.consumer import Consumer
from support.faults import kill_runner, sweep_up
from support.program import Program
from support.waiting import until, wait_gone
from support.world import World


def listed(world: World, *words: object) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(world.hold("signals", *words, "--json", check=True).stdout)
    return found


def ids(world: World, *words: object) -> list[str]:
    return [each["id"] for each in listed(world, *words)]


Start = Callable[..., str]


@pytest.fixture
def start(world: World) -> Start:
    """A session of the probe; its id."""

    def begin(*words: object, **options: Any) -> str:
        session = world.open().start(world.probe(*words), **options)
        world.closing.callback(session.kill)
        return session.id

    return begin


@pytest.fixture
def ended(world: World, start: Start) -> Start:
    """The same, when it has ended and the end is signalled, which a runner does after it has recorded it."""

    def begin(*words: object, **options: Any) -> str:
        id = start(*words, **options)
        session = world.open().get(id)
        assert session.wait(timeout=30).reason == "exit"
        assert session.runner_pid is not None
        wait_gone(session.runner_pid)
        return id

    return begin


def agent_of(world: World, owner: str) -> Consumer:
    return world.open().signals(owner)


# Asking for signals.


def test_what_is_asked_for_travels_in_the_start(world: World) -> None:
    def spec(*options: str) -> dict[str, Any]:
        id = world.hold("start", *options, "--", *world.probe("forever"), check=True).stdout.strip()
        world.closing.callback(lambda: world.hold("kill", id))
        found: dict[str, Any] = json.loads((world.home / "sessions" / id / "spec.json").read_text())
        return found

    asked = spec(
        *("--watch", "/error/i", "--watch", "panic", "--heartbeat", "2m", "--soft", "90s", "--health", "port:3000"),
        *("--ready", "port:3000", "--ready", "line:listening", "--ready-any", "--ready-timeout", "5s"),
        *("--restart", "on-failure", "--no-notify-people", "--stdin", "open"),
    )
    patterns = [(each["regex"], each["literal"]) for each in asked["watch"]["patterns"]]
    assert patterns == [("error", None), (None, "panic")]
    assert (asked["heartbeat"], asked["soft"], asked["notify_people"]) == (120.0, 90.0, False)
    assert asked["health"]["probe"]["port"] == 3000
    assert (asked["ready"]["mode"], asked["ready"]["timeout"], len(asked["ready"]["probes"])) == ("any", 5.0, 2)
    assert asked["restart"]["policy"] == "on-failure"
    monitor = spec("--monitor", "--persistent", "--notify-people")
    assert (monitor["kind"], monitor["monitor"]["persistent"], monitor["timeout"]) == ("monitor", True, None)
    assert monitor["notify_people"] is True
    plain = spec()
    assert [plain.get(name) for name in ("watch", "monitor", "ready", "restart", "notify_people")] == [None] * 5


@pytest.mark.parametrize("command", ["start", "run"])
def test_what_was_raised_or_cut_is_said_beside_the_answer(world: World, command: str) -> None:
    done = world.hold(command, "--heartbeat", "5s", "--monitor", "--timeout", "3h", "--", "true", check=True)
    unheard = ["no consumer for signals of sessions without an owner yet; they wait"] if command == "start" else []
    assert [line.partition(": ")[2].partition(": ")[2] for line in done.stderr.splitlines()] == [
        "a heartbeat comes at most every 60 s: 5 s became 60 s",
        "a monitor's limit is 1 to 3600 s: 10800 s became 3600 s",
        *unheard,
    ]


def test_readiness_is_waited_for(world: World, start: Start) -> None:
    gate = world.gate()
    id = start("await", gate, "say", "listening", "forever", ready="line:listening")
    late = world.hold("wait", id, "--ready", "--timeout", "0.1s")
    assert (late.returncode, late.stdout) == (124, "timeout\n")
    gate.release()
    done = world.hold("wait", id, "--ready", "--timeout", "30s")
    assert (done.returncode, done.stdout.split(":")[0].strip()) == (0, "ready")
    assert ids(world) == [f"{id}.2"]


# Looking.


def test_what_waits_is_listed_and_stays(world: World, ended: Start) -> None:
    id = ended("say", "ERROR: disk full", "exit", 3, name="build", watch=["ERROR"])
    for _ in range(2):
        shown = world.hold("signals", check=True).stdout.splitlines()
        assert shown[0].split() == ["ID", "AGE", "WHAT"]
        assert [line.split()[0] for line in shown[1:]] == [f"{id}.2", f"{id}.3"]
        assert shown[1].endswith("  build printed 'ERROR': ERROR: disk full")
        assert "build failed, exit code 3 after " in shown[2]
    watch, ending = listed(world)
    assert (watch["watch"]["lines"], watch["state"], watch["deliveries"]) == (["ERROR: disk full"], "due", 0)
    assert (ending["lifecycle"]["phase"], ending["lifecycle"]["code"]) == ("ended", 3)
    assert ids(world, "-n", 1) == [f"{id}.3"]
    # Whoever looks is no consumer.
    assert world.open()._core.consumers.known() == []


def test_status_and_ls_report_how_many_wait_and_take_none(world: World, ended: Start) -> None:
    id = ended("say", "ERROR: disk full", "exit", 3, owner="a", watch=["ERROR"])
    other = ended("exit", 0)

    def waiting() -> dict[str, int]:
        return {
            each["id"]: each["pending_signals"]
            for each in json.loads(world.hold("ls", "-a", "--json", check=True).stdout)
        }

    assert waiting() == {id: 2, other: 1}
    assert json.loads(world.hold("status", id, "--json", check=True).stdout)["pending_signals"] == 2
    agent_of(world, "a").claim().settle()
    assert waiting() == {id: 0, other: 1}


def test_nothing_that_waits_is_an_empty_list(world: World) -> None:
    assert listed(world) == listed(world, "--owner", "a") == listed(world, "--parked") == []
    assert world.hold("signals", check=True).stdout == ""


def test_secrets_are_left_out(world: World, ended: Start) -> None:
    id = ended("say", "PASSWORD=hunter2hunter2", "exit", 1)
    for done in (world.hold("signals", check=True), world.hold("signals", "--json", check=True)):
        assert id in done.stdout
        assert "hunter2" not in done.stdout
        assert "[redacted]" in done.stdout


def test_each_owner_has_its_own(world: World, ended: Start) -> None:
    first, second = (ended("exit", 0, owner=owner) for owner in ("a", "b"))
    nobodys = ended("exit", 0)
    assert ids(world, "--owner", "a") == [f"{first}.2"]
    assert ids(world, "--owner", "b") == [f"{second}.2"]
    assert sorted(ids(world)) == sorted(f"{id}.2" for id in (first, second, nobodys))


def test_what_an_agent_holds_is_said_to_be_held(world: World, ended: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SIGNALS_RELEASE_WAITS", "1h")
    id = ended("exit", 0, owner="a")
    agent = agent_of(world, "a")
    batch = agent.claim()
    assert [(each["state"], each["deliveries"]) for each in listed(world, "--owner", "a")] == [("held", 1)]
    batch.settle()
    assert ids(world, "--owner", "a") == []
    assert ids(world) == [f"{id}.2"]
    ended("exit", 0, owner="a")
    agent.claim().release("busy")
    assert [each["state"] for each in listed(world, "--consumer", "owner:a")] == ["later"]
    assert "  later  " in world.hold("signals", "--owner", "a", check=True).stdout


def test_what_was_given_up_on_is_listed_with_the_reason(
    world: World, ended: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SIGNALS_PARK_AFTER", "1")
    id = ended("exit", 0, owner="a")
    agent_of(world, "a").claim().release("it crashed the agent", poison=True)
    parked = listed(world, "--owner", "a", "--parked")
    assert [(each["id"], each["state"], each["why"]) for each in parked] == [
        (f"{id}.2", "parked", "it crashed the agent")
    ]
    assert "it crashed the agent" in world.hold("signals", "--owner", "a", "--parked", check=True).stdout
    # Where a notice says `hold signals --parked`, it need not be known whose it is.
    assert listed(world, "--parked") == parked
    assert parked[0]["consumer"] == "owner:a"
    shown = world.hold("signals", "--parked", check=True).stdout.splitlines()
    assert shown[0].split() == ["ID", "AGE", "OWNER", "CONSUMER", "STATE", "WHAT"]
    assert "  owner:a  " in shown[1]
    world.hold("ack", f"{id}.2", "--consumer", "owner:a", check=True)
    assert listed(world, "--owner", "a", "--parked") == listed(world, "--parked") == []


def follow(world: World, *words: str) -> Program:
    program = world.program(world.hold_argv("signals", "--follow", *words))
    world.closing.callback(lambda: leave(program))
    return program


def leave(program: Program) -> None:
    """It takes down what it put up to be called."""
    program.signal(signal.SIGTERM)
    assert program.wait() == 128 + signal.SIGTERM


def test_what_comes_is_shown_as_it_comes(world: World, start: Start, ended: Start) -> None:
    first = ended("exit", 0, owner="a")
    everything, one = follow(world), follow(world, "--owner", "a", "--json")
    assert everything.line().split()[0] == f"{first}.2"
    assert json.loads(one.line())["id"] == f"{first}.2"
    nobodys = start("exit", 0, name="x")
    id, at, owner, what = everything.line().split("  ")
    assert (id, at[-1], owner) == (f"{nobodys}.2", "Z", "-")
    assert what.startswith("x completed, exit code 0 after ")
    second = start("exit", 0, owner="a")
    assert everything.line().split()[0] == f"{second}.2"
    assert json.loads(one.line())["id"] == f"{second}.2"
    assert ids(world, "--owner", "a") == [f"{first}.2", f"{second}.2"]


def test_a_follower_also_sees_signals_that_the_agent_settled_first(world: World, start: Start, ended: Start) -> None:
    agent = agent_of(world, "a")
    following = follow(world, "--owner", "a")
    first = start("exit", 0, owner="a")
    assert following.line().split()[0] == f"{first}.2"
    second = ended("exit", 0, owner="a")
    agent.ack(upto=f"{second}.2")
    assert following.line().split()[0] == f"{second}.2"
    assert ids(world, "--owner", "a") == []


def test_a_follower_sees_what_a_killed_runner_could_not_report(world: World, start: Start) -> None:
    id = start("forever", name="web")
    session = world.open().get(id)
    following = follow(world)
    # Known to it as one whose runner is to be watched.
    first = start("exit", 0)
    assert following.line().split()[0] == f"{first}.2"
    kill_runner(session)
    world.closing.callback(lambda: sweep_up(world, world.open()))
    assert " web is stale" in following.line()
    assert session.pid is not None
    os.kill(session.pid, signal.SIGKILL)
    assert following.line().split("  ")[3].startswith("web failed, lost")


# Restarting.


def test_a_supervised_session_is_restarted_in_its_place(world: World, start: Start) -> None:
    id = start("forever", restart="on-failure")
    before = world.open().get(id)
    assert world.hold("restart", id, check=True).stdout == f"{id}\n"
    hf = world.open()
    until(lambda: hf.get(id).attempt == 2, what="the second attempt")
    assert hf.get(id).pid != before.pid
    other = world.hold("restart", id, "--grace", "1s", check=True).stdout.strip()
    world.closing.callback(lambda: world.hold("kill", other))
    assert other != id


# Acknowledging.


def test_an_acknowledgement_takes_nothing_from_other_consumers(world: World, ended: Start) -> None:
    for _ in range(2):
        ended("exit", 0, owner="a")
    before = ids(world)
    assert world.hold("ack", before[0], check=True).stdout == "1 settled\n"
    assert world.hold("ack", before[0], check=True).stdout == "0 settled\n"
    assert ids(world) == before[1:]
    assert ids(world, "--owner", "a") == before
    done = world.hold("ack", "--owner", "a", "--json", *before, check=True)
    assert json.loads(done.stdout) == {"consumer": "owner:a", "settled": 2}
    assert ids(world, "--owner", "a") == []
    assert ids(world) == before[1:]


def test_all_up_to_one_are_acknowledged(world: World, ended: Start) -> None:
    for _ in range(3):
        ended("exit", 0)
    order = ids(world)
    assert len(order) == 3
    assert world.hold("ack", "--upto", order[1], check=True).stdout == "2 settled\n"
    assert ids(world) == order[2:]


def test_an_existing_consumer_is_used_by_name(world: World, ended: Start) -> None:
    world.open().consumer("watcher", ["a"], variants=["lifecycle"], start="retained")
    id = ended("exit", 0, owner="a")
    assert ids(world, "--consumer", "watcher") == [f"{id}.2"]
    world.hold("ack", f"{id}.2", "--consumer", "watcher", check=True)
    assert ids(world, "--consumer", "watcher") == []


# People.


def test_people_are_notified_or_not_from_now_on(world: World, start: Start) -> None:
    id = start("forever", name="web")

    def changed() -> Any:
        state = Path(world.home, "sessions", id, "state.json")
        return json.loads(state.read_text())["changed"].get("notify_people")

    world.hold("notify", "on", "web", check=True)
    assert changed() is True
    reported = json.loads(world.hold("notify", "off", id, "--json", check=True).stdout)
    assert [each["id"] for each in reported] == [id]
    assert changed() is False
    world.hold("kill", id, check=True)
    assert world.hold("notify", "on", id).returncode == 4


@pytest.mark.covers("found:27")
def test_signals_of_several_sessions_are_listed_in_the_order_of_their_times(world: World) -> None:
    with holdfast.open() as hf:
        gates = [world.gate() for _ in range(6)]
        ids = [hf.start(world.probe("await", gate, "exit", 1), notify="exit").id for gate in gates]
        for id, gate in zip(ids, gates, strict=True):
            gate.release()
            hf.get(id).wait(exit=True, timeout=30)
    # The news of the first two come late, as over a link that was down.
    for id in ids[:2]:
        world.session(id).rename(world.root / id)
    late = json.loads(world.hold("signals", "--json", check=True).stdout)
    assert [each["session"] for each in late] == ids[2:]
    for id in ids[:2]:
        (world.root / id).rename(world.session(id))
    listed = json.loads(world.hold("signals", "--json", check=True).stdout)
    times = [each["at"] for each in listed]
    assert times == sorted(times)
    assert [each["session"] for each in listed] == ids
    newest = json.loads(world.hold("signals", "-n", "2", "--json", check=True).stdout)
    assert [each["session"] for each in newest] == ids[-2:]
