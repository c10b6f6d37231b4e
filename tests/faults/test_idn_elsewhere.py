"""IDN-09 to IDN-11: a host in another environment, in another namespace, and before many wedged runners."""

from __future__ import annotations

import json
import os
import signal
from contextlib import ExitStack
from typing import Any

import pytest

from holdfast import errors
from holdfast.sessions import observe
from support import processes
from support.bystander import Bystanders
from support.faults import halt, kill_runner, sweep_up, wedged
from support.levers import namespace_argv
from support.own_time import QuietTime
from support.points import Points
from support.promised import Beside, left_alone, marked, promised
from support.scale import scaled
from support.waiting import until, wait_gone
from support.world import World

# Tells as JSON what it sees of one session and how its attempts to act on it end.
VISITOR = """
import json, sys, holdfast
hf = holdfast.open()
def attempt(act):
    try:
        return act()
    except holdfast.HoldfastError as problem:
        return problem.to_json()
session = hf.get(sys.argv[1])
recovered = hf.recover()
told = {
    "state": session.state,
    "evidence": session.metadata["evidence"],
    "listed": sorted(each.id for each in hf.sessions(all=True)),
    "lost": [each.id for each in recovered.lost],
    "removed": hf.collect().removed,
    "text": session.text(),
}
if "send" in sys.argv:
    told["send"] = attempt(lambda: session.send("hello\\n").accepted)
if "stop" in sys.argv:
    told["stop"] = attempt(lambda: session.stop(grace=0).to_json()["survivors"])
    told["all"] = attempt(lambda: hf.collect(all=True).to_json())
print(json.dumps(told))
"""


def visit(world: World, *words: str, **options: Any) -> dict[str, Any]:
    host = world.host(VISITOR, *words, **options)
    line = host.line()
    assert host.wait(30) == 0, host.errors()
    told: dict[str, Any] = json.loads(line)
    return told


@pytest.mark.covers("IDN-09")
def test_idn_09_a_host_with_another_environment_finds_and_reaches_every_session(
    world: World, without: str, bystander: Bystanders, beside: Beside
) -> None:
    session = world.open().start(world.probe("cat"), stdin="open")
    assert session.wait(match="ready", timeout=30).reason == "match"
    elsewhere = world.root / "other"
    elsewhere.mkdir(mode=0o700)
    other = {"TMPDIR": str(elsewhere), "TZ": "Pacific/Kiritimati", "LANG": "tr_TR.UTF-8", "LC_ALL": "C"}
    for runtime in (str(elsewhere), str(elsewhere / "absent"), "relative", ""):
        told = visit(world, session.id, "send", env={**other, "XDG_RUNTIME_DIR": runtime}, prefix=["env", "-C", "/"])
        assert (told["state"], told["send"]) == ("running", 6)
        assert told["listed"] == sorted([session.id, beside.session.id])
    until(lambda: session.text() == "ready\n" + "hello\n" * 4, watch=world.session(session.id), what="four hellos")
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=0).done


@pytest.mark.covers("IDN-09")
def test_idn_09_a_temporary_directory_too_deep_for_a_socket_address_works(
    world: World, monkeypatch: pytest.MonkeyPatch, without: str, bystander: Bystanders, beside: Beside
) -> None:
    deep = world.root.joinpath("deep", *["d" * 40] * 4)
    deep.mkdir(parents=True, mode=0o700)
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    monkeypatch.setenv("TMPDIR", str(deep))
    hf = world.open()
    session = hf.start(world.probe("cat"), stdin="open")
    assert len(session.endpoint or "") > 108
    monkeypatch.setenv("TMPDIR", str(world.root / "tmp"))
    told = visit(world, session.id, "send")
    assert (told["state"], told["send"]) == ("running", 6)
    assert session.wait(match="^hello$", timeout=30).reason == "match"
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=0).done
    wait_gone(session.runner_pid or 0)
    assert not os.path.exists(session.endpoint or "")
    for lock in deep.rglob("launcher-*.lock"):
        launcher = int(lock.read_text().split()[0])
        os.kill(launcher, signal.SIGTERM)
        wait_gone(launcher)


NAMESPACES = [
    pytest.param(namespace_argv("--pid", "--fork", "--mount-proc"), "pidns", id="pid"),
    pytest.param(
        namespace_argv("--time", "--boottime", "1000", "--fork"),
        "timens",
        id="time",
        marks=pytest.mark.needs("time-namespace"),
    ),
]


@pytest.mark.covers("IDN-10")
@pytest.mark.needs("namespaces")
@pytest.mark.parametrize("prefix, part", NAMESPACES)
def test_idn_10_from_another_namespace_a_living_runner_can_be_talked_to(
    world: World, without: str, bystander: Bystanders, beside: Beside, prefix: list[str], part: str
) -> None:
    session = world.open().start(world.probe("cat"), stdin="open")
    assert session.wait(match="ready", timeout=30).reason == "match"
    told = visit(world, session.id, "send", prefix=prefix)
    assert (told["state"], told["send"], told["lost"]) == ("running", 6, [])
    assert session.wait(match="^hello$", timeout=30).reason == "match"
    promised(world, session, bystander=bystander, beside=beside)
    told = visit(world, session.id, "stop", prefix=prefix)
    assert told["stop"] == []
    promised(world, session, bystander=bystander, beside=beside)
    assert session.state == "exited"


@pytest.mark.covers("IDN-10")
@pytest.mark.needs("namespaces")
@pytest.mark.parametrize("prefix, part", NAMESPACES)
def test_idn_10_from_another_namespace_nothing_is_verified_signalled_or_called_lost(
    world: World, without: str, bystander: Bystanders, beside: Beside, prefix: list[str], part: str
) -> None:
    hf = world.open()
    session = hf.start(world.probe("forever"))
    assert session.wait(match="ready", timeout=30).reason == "match"
    kill_runner(session)
    told = visit(world, session.id, "send", "stop", prefix=prefix)
    assert (told["state"], told["text"], told["lost"], told["removed"]) == ("unreachable", "ready\n", [], [])
    assert "cannot be verified from this" in told["evidence"]
    assert (told["stop"]["code"], told["stop"]["facts"]["part"]) == ("identity-mismatch", part)
    assert told["send"]["code"] in ("unreachable", "runner-gone")
    assert told["all"]["code"] == "still-running"
    assert [row.pid for row in marked(session.id)] == [session.pid]
    # Nothing of what was seen from there is remembered: here it is still what it is.
    assert session.refresh().state == "stale"
    assert session.stop(grace=0).done
    promised(world, session, bystander=bystander, beside=beside)
    sweep_up(world, hf)


@pytest.mark.covers("IDN-10")
@pytest.mark.needs("namespaces")
def test_idn_10_a_wedged_runner_is_not_stopped_by_pids_of_another_namespace(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    """On faulty code the recorded pid was looked up in the visitor's own process table."""
    session = world.open().start(world.probe("forever"))
    assert session.wait(match="ready", timeout=30).reason == "match"
    quick = {"HOLDFAST_HOSTS_REPLY_TIMEOUT": "0.2s", "HOLDFAST_HOSTS_SWEEP_TIMEOUT": "0.2s"}
    with wedged(session):
        told = visit(world, session.id, "stop", env=quick, prefix=namespace_argv("--pid", "--fork", "--mount-proc"))
        assert told["state"] == "unreachable"
        assert told["stop"]["code"] == "identity-mismatch"
        assert [row.pid for row in marked(session.id)] == [session.pid]
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=0).done


@pytest.mark.covers("IDN-10")
@pytest.mark.needs("namespaces")
def test_idn_10_a_start_that_died_before_its_state_is_not_called_lost_from_elsewhere(
    world: World, points: Points, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    points.set("runner.spawned=kill")
    points.off("launcher")
    with pytest.raises(errors.HoldfastError):
        hf.start(["sleep", "600"])
    points.clear()
    points.off()
    (name,) = (path.name for path in (world.home / "sessions").iterdir() if path.name != beside.session.id)
    told = visit(world, name, "stop", prefix=namespace_argv("--pid", "--fork", "--mount-proc"))
    assert (told["state"], told["lost"]) == ("unreachable", [])
    assert told["stop"]["code"] == "identity-mismatch"
    assert hf.get(name).state == "stale"
    assert hf.get(name).stop(grace=0).done
    beside.unharmed()
    left_alone(bystander)
    sweep_up(world, hf)


@pytest.mark.covers("IDN-10")
@pytest.mark.needs("namespaces", "first-pid-namespace")
def test_idn_10_a_namespace_that_has_ended_ended_its_sessions(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    """Only the first pid namespace sees all processes, so only there can this be determined. Without that, the
    sessions would stay forever."""
    start = "import holdfast; print(holdfast.open().start(['sleep', '600']).id, flush=True); input()"
    host = world.host(start, prefix=namespace_argv("--pid", "--fork", "--mount-proc"))
    hf = world.open()
    session = hf.get(host.line())
    assert session.state == "running"
    inner = processes.descendants(host.pid)[0]
    processes.send(inner, signal.SIGKILL)
    host.wait()
    seen = session.refresh()
    assert (seen.state, seen.metadata["evidence"]) == (
        "lost",
        "the pid namespace it ran in is gone, with every process in it",
    )
    promised(world, session, bystander=bystander, beside=beside)
    sweep_up(world, hf)


MANY = scaled(40, 200)


@pytest.mark.slow
@pytest.mark.covers("IDN-11")
def test_idn_11_fifty_wedged_among_two_hundred_cost_one_bound(
    world: World, bystander: Bystanders, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Time for the others to answer on a busy machine.
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "4s")
    hf = world.open()
    sessions = [hf.start(["sleep", "600"]) for _ in range(MANY)]
    stuck = sessions[::4]
    for session in stuck:
        halt(session.runner_pid or 0)
    try:
        for look in (hf, world.open()):
            passed = QuietTime()
            seen = {session.id: session.state for session in look.sessions()}
            assert passed.seconds() < hf.config.hosts_sweep_timeout + 2.0
            assert seen.pop(beside.session.id) == "running"
            assert {id for id, state in seen.items() if state == "unreachable"} == {each.id for each in stuck}
            assert set(seen) == {each.id for each in sessions}
            assert set(seen.values()) == {"running", "unreachable"}
        passed = QuietTime()
        recovered = hf.recover()
        assert (len(recovered.live), len(recovered.unreachable)) == (MANY - len(stuck) + 1, len(stuck))
        assert passed.seconds() < hf.config.hosts_sweep_timeout + 2.0
    finally:
        for session in stuck:
            os.kill(session.runner_pid or 0, signal.SIGCONT)
    until(lambda: {session.state for session in hf.sessions()} == {"running"}, what="the waking of all")
    left_alone(bystander)
    beside.unharmed()
    assert all(stopped.done for stopped in hf.stop_all([session.id for session in sessions], grace=0))


@pytest.mark.covers("IDN-11")
def test_idn_11_more_wedged_ones_than_can_be_asked_at_once_hide_none_that_answers(
    world: World, bystander: Bystanders, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On faulty code the runners that were asked first used all connections until the end, and the others were
    reported as unreachable without having been asked."""
    monkeypatch.setattr(observe, "_AT_ONCE", 4)
    monkeypatch.setattr(observe, "halted", lambda _: False)  # as those that are silent for another reason
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "1.5")
    hf = world.open()
    # The newest are asked first, and a wedged one in between.
    started = [hf.start(world.probe("forever")) for _ in range(12)]
    stuck = [*started[5:], started[2]]
    with ExitStack() as held:
        for session in stuck:
            held.enter_context(wedged(session))
        passed = QuietTime()
        found = {each.id: each for each in hf.sessions()}
        assert passed.seconds() < 4
        unreachable = {id for id, each in found.items() if each.state == "unreachable"}
        assert unreachable == {session.id for session in stuck}
        assert all("did not answer within 1.5 s" in found[id].metadata["evidence"] for id in unreachable)
        assert len(found) == 13
        left_alone(bystander)
        beside.unharmed()
    until(lambda: {each.state for each in hf.sessions()} == {"running"}, what="the waking of all")
    assert all(answer.done for answer in hf.stop_all([each.id for each in started], grace=0))
