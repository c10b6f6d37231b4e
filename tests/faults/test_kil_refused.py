"""KIL-10 and KIL-11: what must not be signalled, and what may not be."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import support
from holdfast.errors import IdentityMismatch, StillRunning
from support import processes
from support.bystander import Bystanders
from support.faults import kill_runner, sweep_up
from support.levers import normal_user
from support.points import Points
from support.promised import Beside, home_is_usable, left_alone, marked, promised
from support.waiting import until, wait_gone
from support.world import World

if TYPE_CHECKING:
    from collections.abc import Callable

POISON: dict[str, Callable[[Bystanders], object]] = {
    "0": lambda _: 0,
    "1": lambda _: 1,
    "-1": lambda _: -1,
    "the test's own": lambda _: os.getpgrp(),
    "a bystander's": lambda bystander: bystander.own.pgid,
    "none": lambda _: None,
}


def poison(world: World, id: str, pgid: object) -> str:
    """Edit the recorded group; returns what the record was."""
    path = world.session(id) / "state.json"
    before = path.read_text()
    path.write_text(json.dumps({**json.loads(before), "pgid": pgid}))
    return before


@pytest.mark.covers("KIL-10")
@pytest.mark.parametrize("pgid", POISON)
def test_kil_10_a_poisoned_group_id_is_refused_with_the_reason(
    world: World, without: str, beside: Beside, bystander: Bystanders, pgid: str
) -> None:
    hf = world.open()
    session = hf.start(world.probe("lines", 3, "forever"))
    assert session.wait(match="^line 3$", timeout=30).reason == "match"
    kill_runner(session)
    before = poison(world, session.id, POISON[pgid](bystander))
    with pytest.raises(IdentityMismatch, match="process group") as told:
        session.stop(grace=0)
    promised(world, session, bystander=bystander, beside=beside, numbers=3, error=told.value)
    assert session.state == "stale"
    assert session.pid is not None
    assert not processes.is_gone(session.pid)
    (world.session(session.id) / "state.json").write_text(before)
    assert session.stop(grace=1).done
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    sweep_up(world, hf)


@pytest.mark.covers("KIL-10")
@pytest.mark.parametrize("pgid", ["0", "1", "the test's own", "a bystander's"])
def test_kil_10_a_live_runner_does_not_believe_the_poisoned_record(
    world: World, without: str, beside: Beside, bystander: Bystanders, pgid: str
) -> None:
    hf = world.open()
    session = hf.start(world.probe("lines", 3, "fork", "{", "forever", "}", "forever"))
    assert session.wait(match="^line 3$", timeout=30).reason == "match"
    poison(world, session.id, POISON[pgid](bystander))
    until(lambda: session.send_signal("CONT", target="group") == 2, what="a group of two")
    stopped = session.stop(grace=0.5)
    assert stopped.done
    assert len(stopped.found) == 2
    promised(world, session, bystander=bystander, beside=beside, numbers=3)


# Becomes root for good, which its parent may not signal.
RISER = """
#include <unistd.h>
int main(void) { if (setuid(0)) return 1; if (write(1, "risen\\n", 6) != 6) return 2; for (;;) pause(); }
"""

# A whole host of an ordinary user: root may not open somebody else's home, so the promises are asked in there.
USER_HOST = """
import json, os, sys, holdfast
from pathlib import Path
from types import SimpleNamespace
from support import probe, promised

def session_directory(id):
    return Path(os.environ["HOLDFAST_HOME"], "sessions", id)

def kept(session):
    session.refresh()
    promised.log_is_whole(world, session)
    promised.ending_is_true(world, session)
    promised.nobody_is_forgotten(world, session)
    beside.unharmed()
    print(json.dumps(session.to_json()["exit"]))

world = SimpleNamespace(open=holdfast.open, probe=probe.argv, session=session_directory)
beside = promised.Beside(world)
session = holdfast.open().start(sys.argv[1])
assert session.wait(match="^risen$", timeout=30).reason == "match"
print(json.dumps(session.stop(grace=0.5).to_json()))
kept(session)
input()
again = session.stop(grace=0.5)
assert again.done, again
kept(session)
beside.end()
"""


@pytest.mark.covers("KIL-11")
@pytest.mark.needs("root", "setpriv")
def test_kil_11_a_member_that_became_root_is_a_survivor_and_stop_does_not_claim_success(
    world: World, without: str, bystander: Bystanders
) -> None:
    riser = world.root / "riser"
    subprocess.run(["cc", "-x", "c", "-o", str(riser), "-"], input=RISER, text=True, check=True)
    riser.chmod(0o4755)
    prefix = normal_user(world)
    tests = {"PYTHONPATH": str(Path(support.__file__).parents[1])}
    host = world.host(USER_HOST, f"{shlex.quote(str(riser))} & exec sleep 600", prefix=prefix, env=tests)
    stopped = json.loads(host.line() or host.errors())
    assert len(stopped["found"]) == 2
    [survivor] = stopped["survivors"]
    assert (survivor["error"], survivor["command"]) == ("EPERM", str(riser))
    row = processes.look(survivor["pid"])
    assert row is not None
    assert row.state not in "Tt"
    ended = json.loads(host.line() or host.errors())
    assert (ended["signal"], ended["cause"]) == ("SIGTERM", "stop")
    assert [each["pid"] for each in ended["survivors"]] == [survivor["pid"]]
    left_alone(bystander)
    processes.end(row)
    wait_gone(row.pid)
    host.send("\n")
    assert json.loads(host.line() or host.errors())["survivors"] == []
    assert host.wait() == 0, host.errors()
    left_alone(bystander)


@pytest.mark.covers("KIL-11")
def test_kil_11_a_process_that_does_not_die_is_listed_with_the_reason(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders
) -> None:
    """As above for a machine where nobody may change uid: the kernel's refusal comes from a point."""
    points.set("tree.kill=error:EPERM")
    hf = world.open()
    session = hf.start(world.probe("lines", 3, "forever"))
    assert session.wait(match="^line 3$", timeout=30).reason == "match"
    stopped = session.stop(grace=0.3)
    assert not stopped.done
    [survivor] = stopped.survivors
    assert (survivor["pid"], survivor["error"]) == (session.pid, "EPERM")
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    assert session.state == "running"
    assert session.pid is not None
    row = processes.look(session.pid)
    assert row is not None
    processes.end(row)
    until(lambda: session.refresh().state == "exited", what="the record of the end")
    promised(world, session, bystander=bystander, beside=beside, numbers=3)
    assert session.exit is not None
    assert (session.exit.signal, session.exit.cause) == ("SIGKILL", "stop")
    assert not marked(session.id)
    points.clear()
    home_is_usable(hf)


@pytest.mark.covers("KIL-11")
@pytest.mark.parametrize("way", ["restart", "replace"])
def test_kil_11_nothing_is_started_in_the_place_of_what_survived_the_stop(
    world: World, points: Points, beside: Beside, bystander: Bystanders, way: str
) -> None:
    """On faulty code the second server was started while the first still held the port."""
    points.set("tree.kill=error:EPERM")
    hf = world.open()
    session = hf.start(world.probe("lines", 3, "forever"), name="web", grace=0.3)
    assert session.wait(match="^line 3$", timeout=30).reason == "match"
    with pytest.raises(StillRunning) as told:
        session.restart() if way == "restart" else hf.start(world.probe("forever"), name="web", replace=True)
    assert [each["pid"] for each in told.value.survivors] == [session.pid]
    promised(world, session, bystander=bystander, beside=beside, numbers=3, error=told.value)
    assert {each.id for each in hf.sessions(all=True)} == {session.id, beside.session.id}
    assert session.pid is not None
    row = processes.look(session.pid)
    assert row is not None
    processes.end(row)
    until(lambda: session.refresh().state == "exited", what="the record of the end")
    points.clear()
    home_is_usable(hf)
