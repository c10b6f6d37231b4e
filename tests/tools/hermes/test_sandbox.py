"""Processes in a sandbox of any make: an object that runs a command to its end."""

from __future__ import annotations

import os
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import BadArgument, PlaceNoPython, PlaceUnreachable
from holdfast.tools.hermes import Registry
from support import processes
from support.hermes import Sandbox, beside
from support.waiting import until

if TYPE_CHECKING:
    from support.containers import Container
    from support.places import NewContainer
    from support.world import World

STAY = "exec sleep 300"


def check_life(registry: Registry, sandbox: Sandbox, cwd: str) -> None:
    """Output, exit code, list, wait, and the end of the whole tree."""
    process = registry.spawn_via_env(sandbox, "pwd; echo $GREETING; echo err >&2; exit 7", cwd, "t1", "chat-1", 30)
    assert process.id.startswith("proc_")
    assert (process["session_id"], process["exit_code"], process.pid_scope) == (process.id, 0, "sandbox")
    done = registry.wait(process.id, 60)
    assert (done["status"], done["exit_code"], done["output"]) == ("exited", 7, f"{cwd}\nhello\nerr\n")
    assert registry.wait(process.id) == done, "the same answer again"
    assert (process.exited, process.exit_code, process.output_buffer) == (True, 7, f"{cwd}\nhello\nerr\n")
    assert registry.read_log(process.id, 0, 1)["output"] == cwd
    assert registry.read_log(process.id, limit=1)["output"] == "err"
    assert registry.is_completion_consumed(process.id)
    tree = registry.spawn_via_env(
        sandbox, f"trap '' TERM; sh -c \"setsid sh -c 'echo deep; {STAY}' & {STAY}\" & echo up; wait", None, "t1"
    )
    calls = len(sandbox.calls)
    assert registry.poll(tree.id)["status"] == "running"
    assert len(sandbox.calls) == calls + 1, "one call a request"
    until(lambda: {"up", "deep"} <= set(tree.output_buffer.split()), what="output")
    assert registry.has_active_processes("t1")
    assert {row["session_id"] for row in registry.list_sessions("t1", "chat-1")} == {process.id, tree.id}
    assert registry.poll(tree.id[:11])["session_id"] == tree.id
    assert registry.write_stdin(tree.id, "x")["error_code"] == "stdin-closed"
    killed = registry.kill_process(tree.id)
    assert (killed["status"], killed["completion_reason"]) == ("killed", "killed")
    assert killed["exit_code"] == -9
    assert not registry.has_active_processes("t1")
    assert registry.kill_process(tree.id)["status"] == "already_exited"


@pytest.mark.covers("found:9")
def test_any_object_that_executes_commands_is_a_place(world: World) -> None:
    sandbox, home = beside(world)
    registry = Registry(world.open(), env_vars={"GREETING": "hello"})
    check_life(registry, sandbox, str(home))
    mine = f"HOME={home}".encode()
    left = [each for each in processes.recent() if mine in processes.environment(each.pid) and each.state not in "ZX"]
    assert left == [], "nothing of the tree is left"
    sent = sum("printf %s" in call for call in sandbox.calls)
    assert 1 <= sent <= 10, "the runner was sent once"
    assert list(home.rglob("remote_end.*.pyc")), "and compiled once"


@pytest.mark.covers("found:9")
def test_the_end_of_a_process_in_a_sandbox_is_announced_and_a_wait_can_be_interrupted(world: World) -> None:
    sandbox, _ = beside(world)
    registry = Registry(world.open())
    process = registry.spawn_via_env(sandbox, "echo $INSIDE; exit 3", task_id="t1")
    process.notify_on_complete = True
    event = registry.completion_queue.get(timeout=30)
    assert (event["type"], event["session_id"], event["exit_code"]) == ("completion", process.id, 3)
    assert event["output"] == "yes\n"
    stays = registry.spawn_via_env(sandbox, STAY)
    with ThreadPoolExecutor(1) as thread:
        wait = thread.submit(registry.wait, stays.id, 100)
        until(lambda: registry._waits, 40, what="the wait")
        registry.interrupt()
        assert wait.result(timeout=20)["status"] == "interrupted"
    assert registry.wait(stays.id, 1)["status"] == "timeout"
    assert registry.kill_all() == 1
    slow = registry.spawn_via_env(sandbox, STAY, deadline=1)
    done = registry.wait(slow.id, 30)
    assert (done["status"], done["completion_reason"]) == ("exited", "timed_out")


@pytest.mark.covers("found:9")
def test_a_sandbox_without_python_or_without_an_answer_runs_nothing(world: World) -> None:
    programs = world.root / "programs"
    programs.mkdir()
    for name in ("sh", "mkdir", "id", "cat", "printf"):
        found = shutil.which(name)
        assert found is not None
        os.symlink(found, programs / name)
    sandbox, home = beside(world, path=str(programs))
    registry = Registry(world.open())
    with pytest.raises(PlaceNoPython) as told:
        registry.spawn_via_env(sandbox, f"touch {home}/ran")
    assert told.value.code == "place-no-python"
    assert not (home / "ran").exists()

    class Broken:
        def execute(self, command: str, *, timeout: float) -> str:
            raise ConnectionError("no such sandbox")

    with pytest.raises(PlaceUnreachable, match="no such sandbox"):
        registry.spawn_via_env(Broken(), "true")
    with pytest.raises(BadArgument):
        registry.spawn_via_env(Broken(), " ")
    assert registry.list_sessions() == []


def test_a_directory_that_is_not_there_is_refused_in_a_sandbox(world: World) -> None:
    sandbox, home = beside(world)
    failed = Registry(world.open()).spawn_via_env(sandbox, f"touch {home}/ran", "/nowhere")
    assert (failed.id, failed["exit_code"], failed["error_code"]) == ("", -1, "spawn-error")
    assert not (home / "ran").exists()


def test_long_output_is_fetched_in_pieces(world: World) -> None:
    sandbox, home = beside(world)
    registry = Registry(world.open())
    process = registry.spawn_via_env(sandbox, "seq 120000; exit 3")
    until(lambda: list(home.rglob("exit.json")), 40, what="the end")
    calls = len(sandbox.calls)
    polled = registry.poll(process.id)
    assert (polled["status"], polled["exit_code"]) == ("exited", 3)
    assert polled["output_preview"].endswith("\n119999\n120000\n")
    assert len(sandbox.calls) > calls + 2
    log = registry.read_log(process.id, limit=2)
    assert (log["output"], log["total_lines"]) == ("119999\n120000", 120_000)
    unread = registry.spawn_via_env(sandbox, "seq 50000; exit 4")
    done = registry.wait(unread.id, 60)
    assert (done["exit_code"], done["output"][-7:]) == (4, "\n50000\n"), "without a poll before"


def test_a_list_looks_at_processes_in_sandboxes_and_says_which_cannot_be_seen(world: World) -> None:
    sandbox, home = beside(world)
    registry = Registry(world.open())
    ended = registry.spawn_via_env(sandbox, "echo said; exit 5")
    stays = [registry.spawn_via_env(sandbox, STAY).id for _ in range(2)]
    until(lambda: list(home.rglob("exit.json")), 40, what="the end")
    rows = {row["session_id"]: row for row in registry.list_sessions()}
    found = rows[ended.id]
    assert (found["status"], found["exit_code"], found["output_preview"]) == ("exited", 5, "said\n")
    assert {rows[id]["status"] for id in stays} == {"running"}
    assert not any("health" in row for row in rows.values())
    calls = len(sandbox.calls)
    sandbox.failures = 1
    rows = {row["session_id"]: row for row in registry.list_sessions()}
    assert len(sandbox.calls) == calls + 1, "a sandbox that does not answer is tried once"
    assert {rows[id]["health"] for id in stays} == {"unreachable"}
    assert "health" not in rows[ended.id]
    assert registry.kill_all() == 2


def test_no_call_waits_in_a_sandbox_for_an_end(world: World) -> None:
    """Calls are made one at a time: one that waits holds up every other."""
    sandbox, _ = beside(world)
    registry = Registry(world.open())
    stays = registry.spawn_via_env(sandbox, STAY, notify_on_complete=True, timeout=30)
    calls = len(sandbox.lengths)
    other = registry.spawn_via_env(sandbox, STAY)
    with ThreadPoolExecutor(1) as thread:
        wait = thread.submit(registry.wait, other.id, 100)
        try:
            until(lambda: registry._waits, 40, what="the wait")
            until(lambda: len(sandbox.lengths) > calls + 3, 40, what="looks")
            lengths = set(sandbox.lengths[calls:])
            assert registry.poll(stays.id)["status"] == "running"
            killed = registry.kill_process(other.id)
            assert killed["status"] == "killed", killed
            assert wait.result(timeout=30)["status"] == "exited"
        finally:
            registry.interrupt()
    assert lengths == {30}, "none is given time to wait there"
    assert registry.kill_all() == 1
    assert registry.completion_queue.get(timeout=40)["session_id"] == stays.id, "no call is under way after that"


def test_an_end_is_announced_although_calls_fail(world: World) -> None:
    sandbox, _ = beside(world)
    registry = Registry(world.open())
    process = registry.spawn_via_env(sandbox, "exit 3")
    sandbox.failures = 2
    process.notify_on_complete = True
    event = registry.completion_queue.get(timeout=60)
    assert (event["type"], event["session_id"], event["exit_code"]) == ("completion", process.id, 3)
    assert sandbox.failures == 0
    again = registry.get(process.id)
    assert again is not None
    assert again.notify_on_complete
    (row,) = registry.list_sessions()
    assert row["notify_on_complete"]


def test_a_process_in_a_sandbox_is_a_session_that_people_see_and_stop(world: World) -> None:
    sandbox, _ = beside(world)
    registry = Registry(world.open())
    stays = registry.spawn_via_env(sandbox, f"echo up; {STAY}", "/tmp")
    until(lambda: stays.output_buffer == "up\n", what="output")
    other = world.open()
    seen = other.get(stays.native_id)
    assert (seen.command, seen.cwd, seen.text()) == (f"echo up; {STAY}", "/tmp", "up\n")
    assert other.get(stays.native_id).stop(by="a person").done
    assert stays.exited
    polled = registry.poll(stays.id)
    assert (polled["completion_reason"], polled["termination_source"]) == ("killed", "a person")


def test_what_a_sandbox_cannot_do_is_refused(world: World) -> None:
    sandbox, home = beside(world)
    registry = Registry(world.open())
    for asked in ({"watch_patterns": ["up"]}, {"heartbeat": 60}, {"stdin": "open"}):
        options: Any = asked
        with pytest.raises(BadArgument) as told:
            registry.spawn_via_env(sandbox, f"touch {home}/ran", **options)
        assert told.value.argument == next(iter(asked))
        assert "leave it out" in told.value.fix
    assert sandbox.calls == []
    process = registry.spawn_via_env(sandbox, "true", stdin="closed")
    with pytest.raises(BadArgument, match="watch_patterns"):
        process.watch_patterns = ["up"]
    process.watch_patterns = []
    assert process.watch_patterns == []
    assert registry.wait(process.id, 60)["exit_code"] == 0


def test_the_end_of_a_task_ends_its_processes_in_sandboxes_but_for_those_that_persist(world: World) -> None:
    sandbox, _ = beside(world)
    registry = Registry(world.open())
    about: Any = {"task_id": "t1"}
    stays = registry.spawn_via_env(sandbox, STAY, persist_on_release=True, **about)
    ends = registry.spawn_via_env(sandbox, STAY, **about)
    other = registry.spawn_via_env(sandbox, STAY, task_id="t2")
    assert registry.release("t1") == 1
    rows = {row["session_id"]: row["status"] for row in registry.list_sessions()}
    assert rows == {stays.id: "running", ends.id: "exited", other.id: "running"}
    assert registry.kill_started_since(other.started_at, "t1") == 0
    assert registry.kill_started_since(stays.started_at, "t1") == 1
    assert registry.kill_all("t2") == 1


@pytest.mark.long
@pytest.mark.covers("found:9")
def test_a_container_that_is_only_reached_by_execute(world: World, container: Container) -> None:
    sandbox = Sandbox(["podman", "exec", container.name, "sh", "-c"])
    check_life(Registry(world.open(), env_vars={"GREETING": "hello"}), sandbox, "/tmp")


@pytest.mark.long
@pytest.mark.covers("found:9")
def test_a_container_without_python_is_refused(world: World, new_container: NewContainer) -> None:
    made = new_container(python=False)
    begun = time.monotonic()
    with pytest.raises(PlaceNoPython):
        Registry(world.open()).spawn_via_env(Sandbox(["podman", "exec", made.name, "sh", "-c"]), "true")
    assert time.monotonic() - begun < 60
