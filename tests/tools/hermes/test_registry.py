"""The registry for programs that block: scopes and sweeps."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from holdfast.core import clock
from holdfast.errors import BadArgument, PlaceUnsupported
from holdfast.tools.hermes import ProcessSession, Registry, format_uptime_short, start
from support import processes
from support.scale import scaled
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from support.world import World

STAY = "exec sleep 300"


def known(registry: Registry, id: str) -> ProcessSession:
    found = registry.get(id)
    assert found is not None
    return found


def test_the_whole_life_of_a_session(world: World) -> None:
    registry = Registry(world.open(), session_key="conv-17")
    begun = registry.spawn_local("cat; exit 3", notify_on_complete=True)
    id = begun["session_id"]
    assert known(registry, id).owner == "conv-17"
    assert registry.poll(id)["status"] == "running"
    assert registry.write_stdin(id, "a")["bytes_written"] == 1
    assert registry.submit_stdin(id, "b")["bytes_written"] == 2
    assert registry.close_stdin(id)["status"] == "ok"
    assert not registry.is_completion_consumed(id)
    until(lambda: registry.poll(id)["status"] == "exited", what="the end")
    assert registry.read_log(id, offset=0)["output"] == "ab"
    assert registry.is_completion_consumed(id), "that read the last line"
    assert registry.wait(id)["exit_code"] == 3
    assert registry.kill_process(id)["status"] == "already_exited"
    missing = {"status": "not_found", "error": "No process with ID proc_000000000000", "error_code": "not-found"}
    for action in (registry.poll, registry.read_log, registry.wait, registry.kill_process, registry.close_stdin):
        assert action("proc_000000000000") == missing
    assert registry.write_stdin("proc_000000000000", "x") == missing
    assert registry.get("proc_000000000000") is None
    with pytest.raises(BadArgument):
        registry.read_log(id, offset=-1)
    closed_terminal = {"use_pty": True, "stdin": "closed"}
    bad = ({"heartbeat": -1}, {"deadline": 0}, {"cwd": ""}, {"stdin": "half"}, {"watch_patterns": [""]})
    for wrong in (*bad, closed_terminal):
        with pytest.raises(BadArgument):
            registry.spawn_local("true", **wrong)
    assert len(registry.list_sessions()) == 1


def test_a_drain_is_settled_by_a_loop_that_ends_and_given_back_by_one_that_does_not(world: World) -> None:
    hf = world.open()
    registry = Registry(hf, session_key="a")
    id = registry.spawn_local("exit 3", notify_on_complete=True)["session_id"]
    runner = hf.get(id).runner_pid
    assert runner is not None
    wait_gone(runner)

    def failing_turn() -> None:
        with registry.drain() as events:
            assert [event["exit_code"] for event in events.events] == [3]
            assert id in events.text
            raise RuntimeError("the turn failed")

    with pytest.raises(RuntimeError, match="turn"):
        failing_turn()
    assert until(lambda: [event["exit_code"] for event in registry.drain()], what="it again") == [3]
    assert len(registry.drain()) == 0


def test_a_place_that_is_not_known_is_refused(world: World) -> None:
    registry = Registry(world.open())
    with pytest.raises(PlaceUnsupported):
        registry.spawn_via_env("modal", "touch ran")
    with pytest.raises(BadArgument, match="TERMINAL_CONTAINER"):
        registry.spawn_via_env("docker", "touch ran")
    assert not (world.cwd / "ran").exists()
    registry.kill_process(registry.spawn_via_env("local", STAY)["session_id"])


def test_without_a_session_key_the_task_owns(world: World) -> None:
    registry = Registry(world.open(), task_id="t1")
    id = registry.spawn_local(STAY)["session_id"]
    assert known(registry, id).owner == "task:t1"
    assert registry.kill_all() == 1


def test_a_list_has_those_of_the_task_and_marks_those_of_the_same_session(world: World) -> None:
    registry = Registry(world.open(), task_id="t1", session_key="conv")
    mine = registry.spawn_local(STAY)["session_id"]
    sibling = registry.spawn_local(STAY, task_id="t2", session_key="conv")["session_id"]
    stranger = Registry(world.open(), task_id="t1", session_key="else")
    other = stranger.spawn_local(STAY)["session_id"]
    tasks = registry.spawn_local(STAY, task_id="t3")["session_id"]
    rows = {row["session_id"]: row.get("session_scoped") for row in registry.list_sessions("t1", "conv")}
    assert rows == {mine: None, sibling: True}
    assert [row["session_id"] for row in registry.list_sessions("t1")] == [mine]
    assert [row["session_id"] for row in registry.list_sessions("t3")] == [tasks], "what only the task owns is its own"
    assert [row["session_id"] for row in stranger.list_sessions()] == [other]
    for task in ("t1", "t2", "t3"):
        assert registry.kill_all(task) == 1
    assert (registry.release("t1"), registry.kill_started_since(0, "t1")) == (0, 0)
    assert stranger.poll(other)["status"] == "running", "what is not listed is not swept"
    assert registry.has_active_processes("t1"), "sessions of every owner keep the place"
    assert stranger.kill_all("t1") == 1


def test_what_was_started_for_the_registrys_own_task_is_its_own(world: World) -> None:
    registry = Registry(world.open(), task_id="t1", session_key="k1")
    id = registry.spawn_local("read x", task_id="t1", notify_on_complete=True)["session_id"]
    assert known(registry, id).owner == "k1"
    assert registry.poll(id)["status"] == "running"
    assert [row["session_id"] for row in registry.list_sessions()] == [id]
    assert registry.close_stdin(id)["status"] == "ok"
    assert until(lambda: [event["session_id"] for event in registry.drain()], what="its end") == [id]


def test_what_the_task_itself_owns_is_found_and_listed_with_a_session_key_too(world: World) -> None:
    registry = Registry(world.open(), task_id="t1", session_key="k1")
    id = Registry(world.open(), task_id="t1").spawn_local(STAY)["session_id"]
    elsewhere = Registry(world.open(), task_id="t2").spawn_local(STAY)["session_id"]
    for rows in (registry.list_sessions(), registry.list_sessions("t1", "k1"), registry.list_sessions("t1")):
        assert [row["session_id"] for row in rows] == [id]
    for ref in (id, id[:9], known(registry, id).native_id):
        assert registry.poll(ref)["session_id"] == id
    assert registry.poll(elsewhere)["status"] == "not_found", "that task is another"
    assert registry.kill_process(id)["status"] == "killed"
    assert registry.kill_all("t2") == 1


@pytest.mark.covers("hermes:26")
def test_a_blank_task_has_nothing_and_a_sweep_leaves_others_alone(world: World) -> None:
    hf = world.open()
    registry = Registry(hf, task_id="t1", session_key="a")
    mine = registry.spawn_local(STAY)
    sibling = registry.spawn_local(STAY, task_id="t2", session_key="a")
    other = hf.start(STAY, owner="a", labels={"hermes.task": "t1"})
    for blank in (None, "", "  "):
        assert registry.has_active_processes(blank) is False
        assert registry.has_active_processes(blank, descendants=True) is False
        assert registry.has_active_for_session(blank) is False
        assert (registry.release(blank), registry.kill_started_since(0, blank)) == (0, 0)
        assert blank is None or registry.kill_all(blank) == 0
    for each in (mine, sibling):
        assert not processes.is_gone(each["pid"])
    assert registry.has_active_processes("t1")
    assert registry.kill_all("t1") == 1
    assert processes.is_gone(mine["pid"])
    assert not registry.has_active_processes("t1")
    assert registry.poll(mine["session_id"])["termination_source"] == "kill_all"
    assert registry.has_active_processes("t2")
    for ref in (sibling["session_id"], sibling["session_id"].removeprefix("proc_")[:6]):
        assert registry.kill_all(exclude_ids=[ref]) == 0
    assert not processes.is_gone(sibling["pid"])
    assert registry.kill_all() == 1
    assert other.refresh().state == "running", "it is of no toolset"
    other.stop(grace=1)


def test_a_sweep_of_a_host_that_never_kills_only_asks(world: World) -> None:
    registry = Registry(world.open(), task_id="t1", daemon_term_grace_seconds=0)
    stubborn = registry.spawn_local("trap '' TERM; echo up; while :; do sleep 100; done")
    until(lambda: "up" in registry.poll(stubborn["session_id"])["output_preview"])
    willing = registry.spawn_local(STAY)
    assert registry.kill_all() == 1
    assert processes.is_gone(willing["pid"])
    assert not processes.is_gone(stubborn["pid"])
    assert Registry(world.open(), task_id="t1").kill_all() == 1


def test_what_persists_is_left_by_a_release_and_not_by_kill_all(world: World) -> None:
    registry = Registry(world.open(), task_id="t1")
    kept = registry.spawn_local(STAY, persist_on_release=True)
    gone = registry.spawn_local(STAY, notify_on_complete=True)
    assert registry.release("t1") == 1
    assert processes.is_gone(gone["pid"])
    assert not processes.is_gone(kept["pid"])
    events = list(registry.drain())
    assert [event["termination_source"] for event in events] == ["release"], "a sweep takes no note"
    assert registry.kill_all("t1") == 1


def test_an_abandoned_turn_takes_only_its_own_along(world: World) -> None:
    registry = Registry(world.open(), task_id="t1")
    before = registry.spawn_local(STAY)
    until(lambda: registry.poll(before["session_id"])["uptime_seconds"] >= 1, what="a second")
    turn = time.time() - 0.5
    during = registry.spawn_local(STAY)
    assert registry.kill_started_since(turn, "t1") == 1
    assert registry.kill_started_since(turn, "t1") == 0
    began = before.started_at
    assert registry.kill_started_since(began + 0.002, "t1") == 0
    assert processes.is_gone(during["pid"])
    assert not processes.is_gone(before["pid"])
    assert registry.has_active_for_session("task:t1")
    assert not registry.has_active_for_session("task:t1", max_age=0.5)
    assert registry.kill_started_since(began, "t1") == 1, "what began at that moment too"


def test_one_pattern_is_one_pattern(world: World) -> None:
    registry = Registry(world.open())
    assert registry.spawn_local("true", watch_patterns="ERROR")["watch_patterns"] == ["ERROR"]


def test_descendants_keep_a_task_active(world: World) -> None:
    registry = Registry(world.open(), task_id="t1")
    id = registry.spawn_local("sleep 300 & exit 0")["session_id"]
    until(lambda: registry.poll(id)["status"] == "exited", what="the end")
    assert not registry.has_active_processes("t1")
    assert registry.has_active_processes("t1", descendants=True)
    assert registry.kill_all("t1") == 1
    assert not registry.has_active_processes("t1", descendants=True)


def test_recovery_counts_what_runs_and_ends_nothing(world: World) -> None:
    registry = Registry(world.open(), task_id="t1")
    ids = [registry.spawn_local(STAY)["session_id"] for _ in range(2)]
    for path in world.home.glob("index.db*"):
        path.unlink(missing_ok=True)
    fresh = Registry(world.open(), task_id="t1")
    assert (fresh.recover_from_checkpoint(), fresh.recover_from_checkpoint()) == (2, 2)
    assert {row["session_id"] for row in fresh.list_sessions()} == set(ids)
    assert fresh.kill_all() == 2


@pytest.mark.covers("hermes:24")
def test_the_age_of_an_end_counts_and_not_that_of_the_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shift = world.root / "wall-shift"

    def minutes_ago(minutes: float) -> None:
        new = shift.with_suffix(".new")
        new.write_text(str(-60 * minutes))
        new.rename(shift)

    minutes_ago(40)
    monkeypatch.setenv("HOLDFAST_WALL_SHIFT_FILE", str(shift))
    monkeypatch.setattr(clock, "_WALL_SHIFT_FILE", str(shift))
    registry = Registry(world.open(), task_id="t1")
    forgotten = registry.spawn_local("exit 0")["session_id"]
    until(lambda: registry.poll(forgotten)["status"] == "exited", what="the end")
    id = registry.spawn_local("echo printed; read x; exit 3")["session_id"]
    until(lambda: registry.poll(id)["output_preview"] == "printed\n", what="output")
    minutes_ago(10 / 60)
    registry.submit_stdin(id)
    until(lambda: registry.poll(id)["status"] == "exited", what="the end")
    minutes_ago(0)
    another = registry.spawn_local(STAY)["session_id"]
    rows = {row["session_id"]: row for row in registry.list_sessions()}
    assert set(rows) == {id, another}, "what ended 40 minutes ago is not listed"
    assert rows[id]["uptime_seconds"] >= 39 * 60
    assert rows[id]["exit_code"] == 3
    assert registry.read_log(id)["output"] == "printed"
    assert registry.poll(forgotten)["status"] == "exited", "but it is still found"
    registry.kill_all()


@pytest.mark.covers("found:5")
def test_eight_threads_can_begin_at_once_on_a_registry_that_nothing_was_asked_of_yet(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(scaled(2, 20)):
        monkeypatch.setattr(start, "_profiles", {})
        registry = Registry(world.open(), task_id="t1", session_key=f"conv-{secrets.token_hex(4)}")
        together = threading.Barrier(8)

        def work(number: int, registry: Registry = registry, together: threading.Barrier = together) -> list[int]:
            together.wait(30)
            id = registry.spawn_local(f"echo {number}; exit {number}", notify_on_complete=True)["session_id"]
            assert id in {row["session_id"] for row in registry.list_sessions()}
            registry.has_active_processes("t1")
            registry.recover_from_checkpoint()
            done = registry.wait(id)
            assert (done["exit_code"], done["output"]) == (number, f"{number}\n")
            assert registry.is_completion_consumed(id)
            assert registry.read_log(id)["output"] == str(number)
            assert registry.kill_process(id)["status"] == "already_exited"
            return [event["exit_code"] for event in registry.drain()]

        with ThreadPoolExecutor(8) as threads:
            drained = list(threads.map(work, range(8)))
        announced = [code for codes in drained for code in codes]
        assert len(announced) == len(set(announced)), "no end is announced twice"


@pytest.mark.covers("found:6")
@pytest.mark.parametrize("task_id, session_key", [("", ""), ("t2", ""), ("", "k2"), ("t1", "k2"), ("t2", "k2")])
def test_an_id_that_a_registry_returned_is_known_to_it(world: World, task_id: str, session_key: str) -> None:
    hf = world.open()
    registry = Registry(hf, task_id="t1", session_key="k1")
    stays = registry.spawn_local(STAY, task_id=task_id, session_key=session_key)
    ends = registry.spawn_local("echo printed; exit 3", None, task_id, session_key, notify_on_complete=True)
    for id in (stays["session_id"], stays["session_id"][5:11]):
        assert registry.poll(id)["status"] == "running"
        assert known(registry, id).pid == stays["pid"]
    again = Registry(world.open(), task_id="t1", session_key="k1")
    assert again.poll(stays.id)["status"] == "running", "another one for the same session key knows it too"
    assert Registry(world.open(), task_id="t9", session_key="k9").get(stays.id) is None, "others do not"
    assert registry.wait(ends.id)["exit_code"] == 3
    assert registry.is_completion_consumed(ends.id)
    assert registry.completion_queue.empty(), "what a wait told is not told again"
    assert registry.read_log(ends.id)["output"] == "printed"
    assert {row["session_id"] for row in registry.list_sessions()} == {stays.id, ends.id}
    assert registry.kill_process(stays.id)["status"] == "killed"


@pytest.mark.covers("found:9")
def test_a_program_written_for_the_original_works_with_positional_arguments_and_attributes(world: World) -> None:
    registry = Registry(world.open())
    (world.cwd / "below").mkdir()
    begun = time.time()
    process = registry.spawn_local(
        "pwd; echo $GREETING; read x; exit 4", "below", "t1", "chat-1", {"GREETING": "hi"}, False
    )
    assert process.id == process["session_id"]
    assert process.id.startswith("proc_")
    assert (process.task_id, process.session_key) == ("t1", "chat-1")
    assert process.command == "pwd; echo $GREETING; read x; exit 4"
    assert process.cwd == str(world.cwd / "below")
    assert begun - 1 <= process.started_at <= time.time() + 1
    assert (process.exited, process.exit_code, process.detached, process.pid_scope) == (False, None, False, "host")
    assert process.pid == process["pid"]
    assert (process.watch_patterns, process.notify_on_complete) == ([], False)
    assert (process.watcher_platform, process.watcher_chat_id, process.watcher_interval) == ("", "", 0)
    process.notify_on_complete = True
    process.watcher_platform, process.watcher_chat_id = "telegram", "77"
    until(lambda: process.output_buffer == f"{world.cwd}/below\nhi\n", what="output")
    assert registry.read_log(process.id, 0, 1)["output"] == str(world.cwd / "below")
    assert registry.read_log(process.id, 1, 5)["output"] == "hi"
    assert registry.has_active_processes("t1")
    assert registry.has_active_for_session("chat-1")
    found = known(registry, process.id)
    assert (found.id, found.pid, found.exited) == (process.id, process.pid, False)
    assert registry.submit_stdin(process.id)["status"] == "ok"
    event = registry.completion_queue.get(timeout=20)
    assert (event["type"], event["session_id"], event["exit_code"]) == ("completion", process.id, 4)
    assert (event["session_key"], event["task_id"]) == ("chat-1", "t1")
    assert registry.completion_queue.empty()
    with pytest.raises(queue.Empty):
        registry.completion_queue.get_nowait()
    assert (process.exited, process.exit_code) == (True, 4)
    assert not registry.has_active_processes("t1")
    assert not registry.has_active_for_session("chat-1")
    assert registry.pending_watchers == []
    assert registry.recover_from_checkpoint() == 0
    assert [format_uptime_short(each) for each in (-1, 45, 185, 7200, 100_000)] == [
        "0s",
        "45s",
        "3m 5s",
        "2h 0m",
        "27h 46m",
    ]


@pytest.mark.covers("found:9")
def test_a_pattern_that_is_set_on_a_running_process_is_watched_for(world: World) -> None:
    registry = Registry(world.open())
    process = registry.spawn_local("cat")
    process.watch_patterns = ["ERROR"]
    assert process.watch_patterns == ["ERROR"]
    registry.submit_stdin(process.id, "an ERROR came")
    event = registry.completion_queue.get(timeout=20)
    assert (event["type"], event["pattern"], event["output"]) == ("watch_match", "ERROR", "an ERROR came")
    assert registry.kill_all() == 1
    failed = registry.spawn_local("true", "nowhere")
    assert (failed.id, failed.exited, failed.exit_code) == ("", True, -1)
    assert failed["error_code"] == "spawn-error"


@pytest.mark.covers("found:9")
def test_another_thread_can_interrupt_a_wait(world: World) -> None:
    registry = Registry(world.open())
    process = registry.spawn_local(f"echo up; {STAY}")
    with ThreadPoolExecutor(2) as threads:
        waits = [threads.submit(registry.wait, process.id, 60) for _ in range(2)]
        until(lambda: len(registry._waits) == 2, what="two waits")
        until(lambda: process.output_buffer == "up\n", what="output")
        begun = time.monotonic()
        registry.interrupt()
        until(lambda: all(each.done() for each in waits), what="the end of the waits")
        assert time.monotonic() - begun < 30
        for each in waits:
            told = each.result()
            assert (told["status"], told["process_running"], told["output"]) == ("interrupted", True, "up\n")
    assert registry.wait(process.id, 1)["status"] == "timeout", "the next one is not interrupted"
    assert registry.kill_process(process.id)["status"] == "killed"
