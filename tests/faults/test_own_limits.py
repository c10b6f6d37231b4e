"""OWN-13: no descriptor and no process to be had, in host, launcher and runner in turn."""

from __future__ import annotations

import errno
import json
import resource
import signal
import subprocess
from typing import Any

import pytest

from holdfast.errors import SpawnError
from support import processes
from support.bystander import Bystanders
from support.levers import normal_user
from support.points import Points
from support.promised import Beside, home_is_usable, left_alone, promised
from support.waiting import until
from support.world import World

# Several segments, thrice, and still within the smallest log.
SIZE = 300_000

pytestmark = pytest.mark.covers("OWN-13")

# Lowers its own limit to what is open plus 0, 1, 2, ... until a start works, and says how each start ended.
SCARCE_HOST = """
import json, os, resource, holdfast
hf = holdfast.open()
hf.run(["true"])
hf.start(["true"])
before = resource.getrlimit(resource.RLIMIT_NOFILE)
highest = max(map(int, os.listdir("/proc/self/fd"))) - 1  # the last one is the listing's
for room in range(80):
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + room, before[1]))
    try:
        line = {"id": hf.start(["true"]).id}
    except holdfast.HoldfastError as problem:
        line = problem.to_json()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    print(json.dumps({**line, "room": room}))
    if "id" in line:
        break
print(json.dumps({"after": hf.run("exit 3").exit.code}))
"""


def test_own_13_a_host_without_descriptors_fails_typed_at_every_step_and_works_again(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    host = world.host(SCARCE_HOST)
    lines = []
    while line := host.line():
        lines.append(json.loads(line))
    assert host.wait() == 0, host.errors()
    *scarce, enough, after = lines
    assert scarce, lines
    assert {line.get("code") for line in scarce} == {"spawn-error"}, lines
    # Below the lowest number that can be asked for, the kernel says EINVAL for the same thing.
    assert {line["facts"]["errno"] for line in scarce} <= {errno.EMFILE, errno.EINVAL}
    assert all(line["fix"] and line["facts"]["step"] for line in scarce)
    assert after == {"after": 3}
    hf = world.open()
    session = hf.get(enough["id"])
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised(world, session, bystander=bystander, beside=beside)
    # The refused left nothing: two before, the one that worked, the one after, and the one beside.
    assert len(hf.sessions(all=True)) == 5


STARTER = """
import json, sys, holdfast
hf = holdfast.open()
try:
    print(json.dumps({"id": hf.start(sys.argv[1:]).id}))
except holdfast.HoldfastError as problem:
    print(json.dumps(problem.to_json()))
"""


def test_own_13_a_runner_without_descriptors_refuses_before_anything_exists(
    world: World, points: Points, without: str, beside: Beside, bystander: Bystanders
) -> None:
    """For every number that is too small: typed, and neither directory nor socket nor command is left."""
    points.set("runner.request_read=pause")
    hf = world.open()
    room = 0
    while True:
        host = world.host(STARTER, *world.probe("quiet", "append", world.root / "runs", "run", "exit", 3))
        hit = points.wait("runner.request_read")
        highest = max(processes.descriptors(hit.pid))
        resource.prlimit(hit.pid, resource.RLIMIT_NOFILE, (highest + 1 + room, highest + 1 + room))
        hit.release()
        told = json.loads(host.line() or host.errors())
        host.wait()
        if "id" in told:
            break
        assert (told["code"], told["facts"]["errno"]) == ("spawn-error", errno.EMFILE), told
        assert [path.name for path in (world.home / "sessions").iterdir()] == [beside.session.id]
        assert {path.name for path in world.runtime.glob("b*.sock")} == {f"{beside.session.id}.sock"}
        room += 3
    assert room > 0
    points.clear()
    session = hf.get(told["id"])
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert session.exit.code == 3
    assert (world.root / "runs").read_text() == "run\n"


def is_warm(launcher: int) -> bool:
    """Once it has rehearsed, the kernel reaps its children for it."""
    with open(f"/proc/{launcher}/status", encoding="ascii") as status:
        ignored = next(int(line.split()[1], 16) for line in status if line.startswith("SigIgn:"))
    return bool(ignored >> (signal.SIGCHLD - 1) & 1)


def test_own_13_a_launcher_without_descriptors_leaves_and_starts_continue(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    [launcher] = world.launchers()
    # A rehearsal that cannot write its record would try again for ten seconds.
    until(lambda: is_warm(launcher.pid), what="the end of the rehearsals")
    resource.prlimit(launcher.pid, resource.RLIMIT_NOFILE, (5, 5))
    # Spares that were taken by a start never come back, so the launcher has to fork.
    sessions = [hf.start(["sh", "-c", "exit 3"]) for _ in range(6)]
    for session in sessions:
        session.wait(timeout=30)
    until(lambda: launcher.pid not in [row.pid for row in world.launchers()], what="the leave of the launcher")
    for session in sessions:
        promised(world, session, bystander=bystander, beside=beside)
        assert session.exit is not None
        assert session.exit.code == 3
    home_is_usable(hf)


@pytest.mark.parametrize("room", [0, 1])
def test_own_13_a_live_session_without_descriptors_continues_in_its_segment_and_says_so(
    world: World, without: str, beside: Beside, bystander: Bystanders, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The limit sinks just before a rotation, is lifted later, and not a byte is missing."""
    monkeypatch.setenv("HOLDFAST_LOG_SEGMENT", "16KiB")
    hf = world.open()
    gates = [world.gate() for _ in range(3)]
    parts = [word for gate in gates for word in ("await", gate, "fill", SIZE)]
    session = hf.start(world.probe("quiet", "say", "up", *parts, "exit", 3), merge_stderr=True, log_cap="1MiB")
    assert session.wait(match="^up$", timeout=30).reason == "match"
    directory = world.session(session.id)

    def segments() -> int:
        return len(list(directory.glob("stdout.*")))

    def printed(size: int) -> None:
        until(lambda: sum(path.stat().st_size for path in directory.glob("stdout.*")) >= size, what=f"{size} bytes")

    gates[0].release()
    printed(SIZE + 3)
    assert session.runner_pid is not None
    before = resource.prlimit(session.runner_pid, resource.RLIMIT_NOFILE)
    lowest = next(n for n in range(1000) if n not in processes.descriptors(session.runner_pid))
    resource.prlimit(session.runner_pid, resource.RLIMIT_NOFILE, (lowest + room, before[1]))
    then = segments()
    gates[1].release()
    printed(2 * SIZE + 3)
    if room == 0:
        assert segments() == then
    resource.prlimit(session.runner_pid, resource.RLIMIT_NOFILE, before)
    if room == 0:
        until(lambda: session.refresh().state == "running", what="the answer of the runner")
        assert "no descriptor for a new segment" in str(session.metadata["warnings"])
    gates[2].release()
    assert session.wait(exit=True, timeout=30).reason == "exit"
    assert segments() > then
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert (session.exit.code, session.ends["stdout"]) == (3, 3 * SIZE + 3)
    assert "gaps" not in session.metadata


def test_own_13_a_session_whose_descriptors_are_taken_still_reports_its_end(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    """The limit sinks and stays: the exit record and the look at who is left have their descriptors. Those are among
    the first that a runner opens."""
    gate = world.gate()
    session = world.open().start(world.probe("lines", 5, "daemon", "{", "forever", "}", "await", gate, "exit", 3))
    assert session.wait(match="^line 5$", timeout=30).reason == "match"
    assert session.runner_pid is not None
    lowest = next(n for n in range(8, 1000) if n not in processes.descriptors(session.runner_pid))
    _, hard = resource.prlimit(session.runner_pid, resource.RLIMIT_NOFILE)
    resource.prlimit(session.runner_pid, resource.RLIMIT_NOFILE, (lowest, hard))
    gate.release()
    until((world.session(session.id) / "exit.json").exists, what="the exit record")
    promised(world, session, bystander=bystander, beside=beside, numbers=5)
    assert session.exit is not None
    assert session.exit.code == 3
    [survivor] = session.exit.survivors
    resource.prlimit(session.runner_pid, resource.RLIMIT_NOFILE, (lowest + 20, hard))
    assert session.stop(grace=1).done
    assert processes.is_gone(survivor["pid"])
    promised(world, session, bystander=bystander, beside=beside, numbers=5)


# As an ordinary user, for root is exempt from this limit. One start for each line that it gets.
USER_HOST = """
import json, resource, sys, holdfast
hf = holdfast.open()
before = resource.getrlimit(resource.RLIMIT_NPROC)
lasting = []
for line in sys.stdin:
    if line.strip() == "lasting":
        lasting.append(hf.start(["sleep", "60"]))
        print(json.dumps({"state": lasting[-1].state}), flush=True)
        continue
    if line.strip() == "limited":
        resource.setrlimit(resource.RLIMIT_NPROC, (1, before[1]))
    try:
        session = hf.run(sys.argv[1:], wait=30)
        print(json.dumps({"exit": session.to_json()["exit"]}), flush=True)
    except holdfast.HoldfastError as problem:
        print(json.dumps(problem.to_json()), flush=True)
    resource.setrlimit(resource.RLIMIT_NPROC, before)
for session in lasting:
    session.kill()
"""


@pytest.mark.needs("root", "setpriv")
@pytest.mark.parametrize("who", ["host", "launcher", "runner"])
def test_own_13_without_processes_a_start_fails_typed_or_goes_another_way(
    world: World, points: Points, bystander: Bystanders, who: str
) -> None:
    if who == "host":
        points.off("launcher")
    if who == "runner":
        points.set("runner.request_read=pause")
        (world.root / "points.sock").chmod(0o777)
    user = normal_user(world)
    host = world.host(USER_HOST, *world.probe("quiet", "exit", 3), prefix=user)

    def limit(pid: int) -> None:
        # By the same user: root without CAP_SYS_RESOURCE may not touch another's limits.
        subprocess.run([*user, "prlimit", f"--pid={pid}", "--nproc=1:"], check=True)

    def start(how: str = "plain") -> dict[str, Any]:
        host.send(how + "\n")
        if who == "runner":
            hit = points.wait("runner.request_read")
            if how == "limited runner":
                limit(hit.pid)
            hit.release()
        answer: dict[str, Any] = json.loads(host.line() or host.errors())
        return answer

    if who == "launcher":
        assert start()["exit"]["code"] == 3
        [launcher] = world.launchers()
        limit(launcher.pid)
        # It cannot make another spare: it leaves when those it has are used up (by sessions that stay, for a brief
        # runner would come back), and a new one takes its place.
        for _ in range(5):
            assert start("lasting")["state"] == "running"
        until(lambda: launcher.pid not in [row.pid for row in world.launchers()], what="the leave of the launcher")
    else:
        refused = start("limited" if who == "host" else "limited runner")
        step = "launch" if who == "host" else "exec"
        assert (refused["code"], refused["facts"]["step"]) == ("spawn-error", step), refused
        assert refused["facts"]["errno"] == errno.EAGAIN
        assert refused["fix"]
    assert start()["exit"]["code"] == 3
    host.close_stdin()
    assert host.wait() == 0, host.errors()
    left_alone(bystander)


def test_own_13_the_error_of_a_refused_start_names_the_step(world: World, points: Points) -> None:
    """The same from a point, for machines where limits cannot be set: no process for the runner itself."""
    points.off("launcher")
    hf = world.open()
    points.set("host.spawn=error:EAGAIN", here=True)
    with pytest.raises(SpawnError, match="launch") as told:
        hf.start(["true"])
    assert told.value.errno == errno.EAGAIN
    points.clear()
    home_is_usable(hf)
