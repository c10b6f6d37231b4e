"""SEC-08: what was given in confidence stands nowhere but where it was meant to go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import holdfast
from holdfast.errors import HoldfastError
from support import processes
from support.bystander import Bystanders
from support.faults import kill_runner
from support.peer import Peer
from support.points import Points
from support.promised import Beside, promised
from support.world import World

# Each way in has its own, so that a leak says which one it was.
IN_ENV = "canary-7f3a-in-env"
IN_OUR_ENV = "canary-91bc-in-the-hosts-env"
IN_INPUT = "canary-d204-in-input"
TYPED = "canary-58ee-typed"
CANARIES = [IN_ENV, IN_OUR_ENV, IN_INPUT, TYPED]


def leaks_on_disk(world: World) -> list[str]:
    """Files of the home and the runtime directory that hold a canary."""
    found = []
    # os.walk passes over what vanishes meanwhile: spares rehearse in the runtime directory.
    for root in (world.home, world.runtime):
        for directory, _, names in os.walk(root):
            for path in (Path(directory, name) for name in names):
                try:
                    raw = path.read_bytes() if path.is_file() else b""
                except FileNotFoundError:
                    continue
                found += [f"{canary} in {path}" for canary in CANARIES if canary.encode() in raw]
    return found


def leaks_in_processes(world: World, own: set[int]) -> list[str]:
    """Command lines and environments of our launchers, spares and runners."""
    found = []
    for pid in own:
        raw = processes.environment(pid) + os.fsencode(processes.command_line(pid))
        found += [f"{canary} in /proc/{pid}" for canary in CANARIES if canary.encode() in raw]
    return found


def own_processes(world: World) -> set[int]:
    marks = (b"HOLDFAST_ROLE=launcher", b"HOLDFAST_ROLE=runner")
    below = processes.descendants(os.getpid())
    return {row.pid for row in below if any(mark in processes.environment(row.pid) for mark in marks)}


@pytest.mark.covers("SEC-08")
@pytest.mark.parametrize("way", ["launcher", "direct"])
def test_sec_08_secrets_stand_in_no_argv_no_process_and_no_file_of_ours(
    world: World,
    points: Points,
    bystander: Bystanders,
    beside: Beside,
    monkeypatch: pytest.MonkeyPatch,
    way: str,
) -> None:
    if way == "direct":
        points.off("launcher")
    monkeypatch.setenv("HOST_TOKEN", IN_OUR_ENV)
    hf = world.open()
    typing = hf.start(
        world.probe("print-env", "X", "count-stdin"), env={"TOKEN": IN_ENV}, stdin="open", name="typing", key="k"
    )
    typing.send(f"{TYPED}\n")
    given = hf.run(world.probe("quiet", "count-stdin"), env={"TOKEN": IN_ENV}, input=IN_INPUT)
    assert given.text() == f"stdin {len(IN_INPUT)}\n"
    # The command itself has what it was given.
    assert IN_ENV.encode() in processes.environment(typing.pid or 0)
    assert IN_OUR_ENV.encode() in processes.environment(typing.pid or 0)
    own = own_processes(world)
    assert typing.runner_pid in own
    assert len(own) >= 2
    assert leaks_in_processes(world, own) == []
    assert leaks_on_disk(world) == []
    typing.update(labels={"a": "b"})
    with Peer(str(typing.endpoint)) as peer:
        told = repr(peer.hello()) + repr(peer.ask("status"))
        assert not [canary for canary in CANARIES if canary in told]
    typing.close_stdin()
    assert typing.wait(exit=True, timeout=30).reason == "exit"
    listed = repr([shot.to_json() for shot in hf.sessions(all=True)])
    assert not [canary for canary in CANARIES if canary in listed]
    assert leaks_on_disk(world) == []
    promised(world, typing, bystander=bystander, beside=beside)


@pytest.mark.covers("SEC-08")
def test_sec_08_errors_and_diagnostics_of_a_bad_day_repeat_no_secret(
    world: World, points: Points, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    said: list[str] = []

    def refused(command: str | list[str], **options: object) -> None:
        with pytest.raises(HoldfastError) as error:
            hf.start(command, **options)  # type: ignore[arg-type]
        said.append(f"{error.value} {error.value.to_json()} {error.value!r}")

    env = {"TOKEN": IN_ENV}
    refused(["/nonexistent"], env=env, input=IN_INPUT)
    refused(["true"], cwd="/nonexistent", env=env, input=IN_INPUT)
    refused(["true"], env={"TOKEN": IN_ENV + "\0"})
    refused(["true"], env={IN_ENV[:0]: IN_ENV})
    refused(["true"], input=IN_INPUT, stdin="closed")
    refused(["true"], env=env, input=IN_INPUT + "x" * (9 << 20))
    points.off("launcher")
    for point in ("records.create", "records.data", "records.rename", "runner.before_directory"):
        points.set(f"{point}=error:EIO")
        refused(["true"], env=env, input=IN_INPUT)
    points.set("log.append=error:EIO;log.frame=error:EIO")
    loud = hf.run(world.probe("quiet", "say", "x"), env=env, input=IN_INPUT)
    assert loud.metadata["warnings"]
    points.clear()
    points.off()
    assert not [text for text in said for canary in CANARIES if canary in text]
    assert leaks_on_disk(world) == []
    promised(world, loud, bystander=bystander, beside=beside)


# A host that fails in every way a user's program can, with its secrets at hand.
CRASHING = """
import os, sys, holdfast
hf = holdfast.open()
session = hf.start(sys.argv[2:], env={"TOKEN": sys.stdin.readline().strip()}, stdin="open")
print(session.id, flush=True)
session.send(sys.stdin.readline())
print("sent", flush=True)
sys.stdin.read()
"""


@pytest.mark.covers("SEC-08")
def test_sec_08_a_killed_runner_leaves_no_secret_behind(world: World, bystander: Bystanders, beside: Beside) -> None:
    host = world.host(CRASHING, "--", *world.probe("count-stdin"))
    host.send(f"{IN_ENV}\n")
    session = world.open().get(host.line())
    host.send(f"{TYPED}\n")
    assert host.line() == "sent"
    kill_runner(session)
    host.kill()
    assert session.stop(grace=0).done
    assert leaks_on_disk(world) == []
    assert not [canary for canary in CANARIES if canary in host.errors()]
    promised(world, session, bystander=bystander, beside=beside)
    world.open().collect()


def test_a_variable_is_named_in_the_spec_and_its_value_is_not(world: World) -> None:
    done = world.open().run("true", env={"TOKEN": IN_ENV})
    spec = (world.session(done.id) / "spec.json").read_text()
    assert '"TOKEN"' in spec
    assert IN_ENV not in spec


def test_a_restart_asks_for_values_that_were_never_stored(world: World) -> None:
    hf = world.open()
    first = hf.start(world.probe("print-env", "TOKEN", "forever"), env={"TOKEN": IN_ENV})
    with pytest.raises(holdfast.errors.BadArgument, match="TOKEN"):
        first.restart()
    second = first.restart(env={"TOKEN": "other"})
    assert second.wait(match="TOKEN=other", timeout=30).reason == "match"
    assert second.stop(grace=0).done


def test_the_canaries_are_found_where_they_are(world: World) -> None:
    """The look itself works: a leak that is there is seen."""
    world.open()
    Path(world.home, "leak").write_text(IN_ENV)
    assert leaks_on_disk(world) == [f"{IN_ENV} in {world.home}/leak"]
