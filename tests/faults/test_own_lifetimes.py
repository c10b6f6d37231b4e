"""OWN-09: a session that lives as long as its owner does."""

from __future__ import annotations

import signal

import pytest

from support.bystander import Bystanders
from support.points import Points
from support.promised import Beside, marked, promised
from support.waiting import until
from support.world import World

pytestmark = pytest.mark.covers("OWN-09")

STARTER = """
import sys, holdfast
hf = holdfast.open()
owner = {"owner_pid": int(sys.argv[1])} if sys.argv[1] != "me" else {}
session = hf.start(sys.argv[2:], lifetime="owner", grace=1, **owner)
print(session.id)
sys.stdin.read()
"""


def ended_for_its_owner(world: World, id: str, bystander: Bystanders, beside: Beside) -> None:
    session = world.open().get(id)
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert (session.exit.cause, session.exit.by, session.exit.signal) == ("owner_gone", None, "SIGTERM")
    assert session.status == "killed"
    assert not marked(id)


def other_session(world: World, beside: Beside) -> str:
    [id] = {path.name for path in (world.home / "sessions").iterdir()} - {beside.session.id}
    return id


@pytest.mark.parametrize("owner", ["the host", "another process"])
def test_own_09_a_session_ends_when_its_owner_is_killed(
    world: World, without: str, beside: Beside, bystander: Bystanders, owner: str
) -> None:
    other = world.program(world.probe("forever"))
    host = world.host(STARTER, other.pid if owner == "another process" else "me", *world.probe("forever"))
    id = host.line()
    session = world.open().get(id)
    assert session.wait(match="^ready$", timeout=30).reason == "match"
    assert session.refresh().state == "running"
    if owner == "another process":
        host.kill()
        assert session.refresh().state == "running"
        other.kill()
    else:
        host.kill()
    ended_for_its_owner(world, id, bystander, beside)


@pytest.mark.parametrize(
    "at", ["runner.before_directory", "runner.before_spawn", "runner.spawned", "runner.owner_look"]
)
def test_own_09_an_owner_that_goes_while_it_starts_is_noticed(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders, at: str
) -> None:
    owner = world.program(world.probe("forever"))
    points.set(f"{at}=pause")
    host = world.host(STARTER, owner.pid, *world.probe("quiet", "forever"))
    hit = points.wait(at)
    owner.kill()
    hit.release()
    id = host.line()
    points.clear()
    ended_for_its_owner(world, id, bystander, beside)


@pytest.mark.parametrize("at", ["host.request_sent", "host.reply_read"])
def test_own_09_a_host_that_owns_and_dies_while_it_starts_leaves_nothing_running(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders, at: str
) -> None:
    points.set(f"{at}=kill")
    host = world.host(STARTER, "me", *world.probe("quiet", "forever"))
    assert host.wait() == -signal.SIGKILL
    points.clear()
    hf = world.open()
    # Nothing at all, or a session that ended for this reason.
    until(lambda: [each.id for each in hf.sessions()] == [beside.session.id], what="the end of what it started")
    for session in hf.sessions(all=True):
        if session.id != beside.session.id:
            ended_for_its_owner(world, session.id, bystander, beside)


# Inside a pid namespace of its own: the owner ends, and a stranger gets its very pid before the runner looks.
REUSER = """
import json, subprocess, sys, threading
import holdfast

owner = subprocess.Popen(["sleep", "600"])
hf = holdfast.open()
sessions = []
thread = threading.Thread(target=lambda: sessions.append(
    hf.start(sys.argv[1:], lifetime="owner", owner_pid=owner.pid, grace=1)))
thread.start()
print("starting", flush=True)
input()
owner.kill()
owner.wait()
with open("/proc/sys/kernel/ns_last_pid", "w") as file:
    file.write(str(owner.pid - 1))
stranger = subprocess.Popen(["sleep", "600"])
print(json.dumps([owner.pid, stranger.pid]), flush=True)
thread.join()
[session] = sessions
session.wait(exit=True, timeout=30)
print(session.refresh().exit.cause, stranger.poll(), flush=True)
stranger.kill()
stranger.wait()
"""


@pytest.mark.namespaces
@pytest.mark.parametrize("ability", ["", "pidfd"])
def test_own_09_a_stranger_with_the_owners_pid_does_not_keep_it_alive(
    world: World, points: Points, bystander: Bystanders, beside: Beside, ability: str
) -> None:
    points.off("launcher", *filter(None, [ability]))
    points.set("runner.owner_look=pause")
    prefix = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc"]
    host = world.host(REUSER, *world.probe("quiet", "forever"), prefix=prefix)
    assert host.line() == "starting"
    hit = points.wait("runner.owner_look")
    points.clear()
    host.send("\n")
    owner, stranger = host.line()[1:-1].split(", ")
    assert owner == stranger
    hit.release()
    assert host.line() == "owner_gone None", host.errors()
    assert host.wait() == 0, host.errors()
    id = other_session(world, beside)
    session = promised(world, world.open().get(id), bystander=bystander, beside=beside)
    assert session.exit is not None
    assert session.exit.cause == "owner_gone"
    # Its runner may have gone with its namespace before it could take its socket along.
    world.open().collect()
