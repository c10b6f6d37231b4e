"""A place that lies about its session: what it says stays within that session, and within the session's limits."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import errors
from support import liar
from support.node_hosts import NodeHost
from support.peer import memory_kb
from support.places import deputies, kill_deputies
from support.points import Points
from support.waiting import until
from support.world import World

# A node runs what it wants in the place of our far end.
_NODE = pytest.param("node", marks=[pytest.mark.covers("nodes:23"), pytest.mark.long])
Lie = Callable[..., None]

ENDED: dict[str, Any] = {"code": 0, "signal": None, "cause": "exit", "survivors": []}
WATCH = {"seq": 1, "owner": "victim", "kind": "local_bash", "watch": {"pattern": "w1", "lines": ["do as I say"]}}
# Each as large as the whole log may be.
FULL_SEGMENTS = {"names": [f"stdout.{n << 20:020d}" for n in range(30)], "block": "x", "times": 16, "size": 65536}


@pytest.fixture(params=["docker", _NODE])
def place(
    request: pytest.FixtureRequest,
    world: World,
    node_with: Callable[[list[str]], NodeHost],
    monkeypatch: pytest.MonkeyPatch,
) -> str:
    """Its program reads what it is to say in a file."""
    lies = world.root / "lies.json"
    source = Path(liar.__file__).parents[2] / "src"
    # Its standard input is the link.
    argv = [sys.executable, "-c", f"import sys; sys.path[:0] = [{str(source)!r}, {str(source.parent / 'tests')!r}]; "]
    argv[-1] += f"from support.liar import main; main({str(lies)!r})"
    lies.write_text("{}")
    if request.param == "node":
        return node_with(argv).place
    monkeypatch.setenv("HOLDFAST_PLACES_DOCKER", shlex.join(argv))
    return "docker:liar"


@pytest.fixture
def lie(world: World, place: str, monkeypatch: pytest.MonkeyPatch) -> Lie:
    """Sets what the place says from its next link on."""
    lies = world.root / "lies.json"
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", "3s")
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "3s")

    def write(**said: Any) -> None:
        lies.write_text(json.dumps(said))

    write()
    return write


@pytest.fixture
def swept(world: World) -> Iterator[None]:
    yield
    kill_deputies(world)
    for socket in world.runtime.glob("*.sock"):
        socket.unlink()


def answered(world: World, *words: str) -> Any:
    done = world.hold(*words, timeout=40.0)
    assert "Traceback" not in done.stderr, done.stderr
    return done


def everything_answers(world: World, id: str, sound: str) -> None:
    """The session is named as damaged, the sound one is served, nothing falls."""
    listed = answered(world, "ls", "-a", "--json")
    assert [row["id"] for row in json.loads(listed.stdout)] == [sound]
    assert f"{id} is damaged" in listed.stderr
    told = answered(world, "status", id)
    assert told.returncode == 1
    assert "cannot be" in told.stderr or "invalid answer" in told.stderr
    assert json.loads(answered(world, "recover", "--json").stdout)["quarantined"]
    assert answered(world, "signals").returncode == 0
    assert answered(world, "status", sound).returncode == 0


@pytest.mark.covers("found:36")
@pytest.mark.parametrize(
    "said",
    [
        {"state": {"changed": ["owner"]}},
        {"state": {"command": {"pid": "many", "start": None}}},
        {"exit": {"exit": {**ENDED, "survivors": [7]}}},
        {"exit": {"exit": ENDED, "ends": {"stdout": "x" * 200_000}}},
    ],
    ids=["changed", "command", "survivors", "huge"],
)
@pytest.mark.usefixtures("swept")
def test_a_record_of_the_wrong_shape_damages_that_session_alone(
    world: World, lie: Lie, place: str, said: dict[str, Any]
) -> None:
    hf = world.open()
    sound = hf.run("echo fine").id
    lie(**said)
    with pytest.raises(errors.HoldfastError):
        hf.start("true", place=place)
    until(lambda: not deputies(world), what="the deputy that gave up")
    [id] = [path.name for path in (world.home / "sessions").iterdir() if path.name != sound]
    everything_answers(world, id, sound)
    # Its words are kept, as that place's.
    assert f"{place} sent a record that cannot be used" in answered(world, "status", id).stderr
    told = answered(world, "doctor")
    assert told.returncode == 0, told.stdout
    assert id in told.stdout
    assert [path.name for path in (world.home / "sessions").iterdir()] == [sound]


@pytest.mark.covers("found:36")
@pytest.mark.parametrize(
    "status",
    [{"ends": "all"}, {"exit": {"survivors": 3}}, {"state": "sleeping"}, {"labels": [1]}, {"pid": {}}],
    ids=["ends", "exit", "state", "labels", "pid"],
)
@pytest.mark.usefixtures("swept")
def test_a_status_of_the_wrong_shape_damages_that_session_alone(
    world: World, lie: Lie, place: str, status: dict[str, Any]
) -> None:
    hf = world.open()
    sound = hf.run("echo fine").id
    session = hf.start("true", place=place)
    kill_deputies(world)
    lie(status=status)
    everything_answers(world, session.id, sound)
    told = json.loads(answered(world, "doctor", "--json").stdout)
    [offered] = [each for each in told if each["check"] == "sessions" and each["level"] == "problem"]
    assert "--rebuild" in offered["fix"]
    assert answered(world, "doctor", "--rebuild").returncode == 0
    assert [path.name for path in (world.home / "sessions").iterdir()] == [sound]
    until(lambda: not deputies(world), what="the end of the deputy whose session was moved aside")


@pytest.mark.covers("found:36")
@pytest.mark.usefixtures("swept")
def test_signals_and_marks_of_the_wrong_shape_damage_that_session_alone(world: World, lie: Lie, place: str) -> None:
    hf = world.open()
    sound = hf.run("echo fine", owner="agent").id
    wrong = [{"seq": "x"}, {"seq": 1, "watch": []}, {"seq": 2, "session": sound, "watch": {}}, [], {"queued": []}]
    lines = "\n".join([*map(json.dumps, wrong), "[" * 9000, '{"seq": Infinity}', "{", ""])
    lie(files={"signals.jsonl": lines, "marks.jsonl": lines})
    session = hf.start("true", place=place, owner="agent")
    listed = answered(world, "ls", "-a", "--json")
    assert {row["id"] for row in json.loads(listed.stdout)} == {sound, session.id}
    for words in (
        ["status", session.id],
        ["signals"],
        ["recover"],
        ["logs", session.id],
        ["signals", "--owner", "agent"],
    ):
        assert answered(world, *words).returncode == 0
    told = json.loads(answered(world, "doctor", "--json").stdout)
    [offered] = [each for each in told if each["level"] == "problem"]
    assert session.id in offered["text"]
    assert "--rebuild" in offered["fix"]
    assert answered(world, "doctor", "--rebuild").returncode == 0
    assert [path.name for path in (world.home / "sessions").iterdir()] == [sound]
    until(lambda: not deputies(world), what="the end of the deputy whose session was moved aside")


@pytest.mark.covers("found:36")
@pytest.mark.usefixtures("swept")
def test_replies_without_what_was_asked_for_are_typed_errors(world: World, lie: Lie, place: str) -> None:
    hf = world.open()
    session = hf.start("true", place=place)
    for act in (lambda: session.stop(grace=0), lambda: session.send_signal("HUP")):
        with pytest.raises(errors.DamagedRecord):
            act()
    lie(reply={"sent": "many", "found": {}, "survivors": None})
    kill_deputies(world)
    for act in (lambda: session.stop(grace=0), lambda: session.send_signal("HUP")):
        with pytest.raises(errors.DamagedRecord):
            act()


@pytest.mark.covers("found:38")
@pytest.mark.parametrize(
    "flood, gap",
    [
        ({"names": [liar.OUTPUT], "block": "x\n", "times": 400, "size": 65536}, "stdout"),
        ({"names": [f"stdout.{n:020d}" for n in range(1100)], "block": "x", "times": 1, "size": 1}, "stdout"),
        ({**FULL_SEGMENTS, "then": {"at": 0, "anew": False}}, "stdout"),
        ({**FULL_SEGMENTS, "then": {"at": 0, "anew": True, "last": False}}, "stdout"),
        ({"names": ["signals.jsonl"], "block": "x", "times": 4, "size": 16384}, "signals.jsonl"),
        ({"names": ["frames"], "block": "x", "times": 400, "size": 65536}, "frames"),
    ],
    ids=["log", "segments", "segments set back", "segments begun anew", "signal line", "frames"],
)
@pytest.mark.usefixtures("swept")
def test_a_place_that_sends_more_than_the_session_may_have_is_cut_off(
    world: World, lie: Lie, place: str, points: Points, monkeypatch: pytest.MonkeyPatch, flood: dict[str, Any], gap: str
) -> None:
    monkeypatch.setenv("HOLDFAST_LOG_SESSION_CAP", "1MiB")
    monkeypatch.setenv("HOLDFAST_LOG_SEGMENT", "256KiB")
    hf = world.open()
    session = hf.start("true", place=place)
    kill_deputies(world)
    lie(flood=flood)
    points.set("deputy.gave_up=pause")
    hf.get(session.id)
    hit = points.wait("deputy.gave_up", 20)
    assert memory_kb(hit.pid, "VmHWM") < 32 << 10
    hit.release()
    until(lambda: not deputies(world), what="the deputy that gave up")
    seen = hf.get(session.id)
    assert seen.state == "unreachable"
    assert f"{place} sent more than this session may have here" in seen.metadata["evidence"]
    [named] = seen.metadata["gaps"]
    assert (named["stream"], named["reason"]) == (gap, "limit")
    stored = sum(path.stat().st_size for path in world.session(session.id).iterdir())
    assert stored < (17 << 20 if gap == "frames" else 2 << 20)
    assert seen.text().startswith("one\n") or gap == "stdout"
    # Nobody tries again, however often it is looked at.
    for _ in range(3):
        hf.get(session.id)
    assert deputies(world) == []
    assert answered(world, "doctor", "--rebuild").returncode == 0
    assert list((world.home / "sessions").iterdir()) == []


@pytest.mark.covers("found:39")
@pytest.mark.usefixtures("swept")
def test_a_place_cannot_change_the_owner_of_its_session_or_reach_another_owners_queue(
    world: World, lie: Lie, place: str
) -> None:
    hf = world.open()
    for owner in ("victim", "mine"):
        hf.signals(owner).pending()
    stolen = {"owner": "victim", "name": "web", "labels": {"a": "b"}, "description": "yours"}
    lie(state={"changed": stolen}, status=stolen, signals=[WATCH])
    session = hf.start("true", place=place, owner="mine", name="mine")
    until(lambda: hf.signals("mine").pending(), what="its signal in the queue of its owner")
    assert hf.signals("victim").pending() == 0
    [signal] = hf.signals("mine").peek()
    assert (signal.owner, signal.to_json()["owner"]) == ("mine", "mine")
    shot = session.refresh()
    assert (shot.owner, shot.name, shot.labels) == ("mine", "mine", {})
    assert hf.sessions(owner="victim") == []
    assert [each.id for each in hf.sessions(owner="mine")] == [session.id]
    with pytest.raises(errors.NotFound):
        hf.get("web")
    # A host here can.
    session.update(owner="other", name="named")
    lie(state={"changed": stolen}, status=stolen, signals=[WATCH, {**WATCH, "seq": 2}])
    kill_deputies(world)
    shot = hf.get("named")
    assert (shot.id, shot.owner) == (session.id, "other")
    until(lambda: hf.signals("other").pending() == 2, what="its signals in the queue of the new owner")
    assert hf.signals("victim").pending() == 0
    assert hf.signals("mine").pending() == 0
