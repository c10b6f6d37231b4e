"""The supervisor: one spawn, its end, its record."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import errors
from holdfast.tools.openclaw.runs import Withdrawn
from holdfast.tools.openclaw.spawn import SecretInput, SpawnInput
from holdfast.tools.openclaw.supervisor import Supervisor
from support import processes, signal_file
from support.evidence import contents
from support.faults import sweep_up
from support.own_time import QuietTime
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from collections.abc import Iterator

    from holdfast.tools.openclaw.runs import ManagedRun
    from support.agents import Agent
    from support.points import Points
    from support.world import World


@pytest.fixture
def agent(world: World) -> Iterator[Agent]:
    from support.agents import Agent

    made = Agent("openclaw", "agent-7")
    world.closing.callback(made.close)
    return made  # type: ignore[return-value]


def supervisor(agent: Agent, **options: Any) -> Supervisor:
    return Supervisor(agent.hf, "agent-7", **{"kill_grace_ms": 1500, **options})


@pytest.mark.covers("openclaw:21")
def test_a_pty_command_is_one_untouched_argument_and_a_blank_one_is_refused(agent: Agent, world: World) -> None:
    shell = world.cwd / "recorder"
    shell.write_text('#!/bin/sh\nfor each in "$@"; do printf "<%s>" "$each"; done > arguments\n')
    shell.chmod(0o700)
    line = """echo "a  b" && printf '%s' '$x'"""
    agent.tools.environ["SHELL"] = str(shell)
    assert agent.call("exec", command=line, pty=True).data["status"] == "completed"
    assert (world.cwd / "arguments").read_text() == f"<-c><{line}>"
    one = supervisor(agent)
    run = agent.run(one.spawn(SpawnInput(mode="pty", pty_command=line, shell=[str(shell), "-c"], scope_key="s")))
    assert agent.run(run.wait()).exit_code == 0
    assert (world.cwd / "arguments").read_text() == f"<-c><{line}>"
    with pytest.raises(errors.BadArgument, match="PTY command cannot be empty"):
        agent.run(one.spawn(SpawnInput(mode="pty", pty_command="  ", scope_key="blank")))
    assert agent.run(one.list_by_scope("blank")) == []
    plain = agent.call("exec", command="""echo "a  b" && printf '%s' '$x'""")
    agent.tools.environ["SHELL"] = "/bin/bash"
    assert plain.data["status"] == "completed"


def test_a_field_of_the_other_mode_is_an_error(agent: Agent) -> None:
    one = supervisor(agent)
    wrong = {
        "argv": SpawnInput(mode="pty", pty_command="x", argv=["x"]),
        "pty_command": SpawnInput(argv=["x"], pty_command="x"),
        "spawn argv cannot be empty": SpawnInput(argv=[]),
        "no terminal to lend": SpawnInput(argv=["x"], stdin_mode="inherit"),
        "standard streams": SpawnInput(argv=["x"], secret_input=SecretInput(2, bytearray)),
    }
    for text, input in wrong.items():
        with pytest.raises(errors.BadArgument, match=text):
            agent.run(one.spawn(input))
    assert agent.run(agent.hf.sessions(all=True)) == []


@pytest.mark.covers("openclaw:22")
def test_the_first_finalization_of_a_run_stays(agent: Agent) -> None:
    one = supervisor(agent)
    run = agent.run(one.spawn(SpawnInput(argv=["sh", "-c", "exit 3"], scope_key="s", run_id="short-run")))
    assert (agent.run(run.wait()).reason, agent.run(run.wait()).exit_code) == ("exit", 3)
    before = agent.run(one.get_record("short-run"))
    assert before is not None
    first = agent.run(one.finalize("short-run", note="one"))
    second = agent.run(supervisor(agent).finalize("short-run", note="two"))
    assert first is not None
    assert second is not None
    assert (first.first, second.first) == (True, False)
    assert (second.metadata, second.record) == ({"note": "one"}, first.record)
    agent.run(run.cancel())
    assert not agent.run(one.cancel("short-run"))
    assert agent.run(one.get_record("short-run")) == before
    assert agent.run(run.wait()).reason == "exit"
    (listed,) = agent.run(one.list_by_scope("s"))
    assert listed == before
    assert listed is not before
    with pytest.raises(dataclasses.FrozenInstanceError):
        listed.state = "running"  # type: ignore[misc]


@pytest.mark.covers("openclaw:23")
def test_a_cancel_while_it_starts_leaves_nothing(agent: Agent, points: Points) -> None:
    points.set("runner.before_spawn=pause")
    one = supervisor(agent)

    async def cancelled() -> tuple[list[str], Any, Any]:
        spawning = asyncio.ensure_future(one.spawn(SpawnInput(argv=["sleep", "600"], run_id="early-bird")))
        hit = await asyncio.to_thread(points.wait, "runner.before_spawn")
        cancelling = asyncio.ensure_future(one.cancel("early-bird"))
        states = [(await one.get_record("early-bird")).state]  # type: ignore[union-attr]
        hit.release()
        run = await spawning
        while states[-1] != "exited":
            record = await one.get_record("early-bird")
            assert record is not None
            states += [record.state] if record.state != states[-1] else []
            await asyncio.wait({cancelling}, timeout=0.02)
        assert await cancelling
        return states, run, await run.wait()

    states, run, exit = agent.run(cancelled())
    points.clear()
    assert states == ["exiting", "exited"]
    assert exit.reason == "manual-cancel"
    assert run.pid is None or processes.is_gone(run.pid)


@pytest.mark.covers("openclaw:24")
@pytest.mark.parametrize("first", ["cancel", "limits"])
def test_of_three_reasons_at_once_the_first_stops_it_once(agent: Agent, world: World, first: str) -> None:
    one = supervisor(agent, kill_grace_ms=4000)
    argv = world.probe("signal-report", "forever")

    async def stopped() -> tuple[Any, Any]:
        run = await one.spawn(SpawnInput(argv=argv, timeout_ms=60_000, no_output_timeout_ms=60_000))
        assert (await run.session.wait(match="ready", timeout=30)).reason == "match"
        cancelling = None
        if first == "cancel":
            cancelling = asyncio.ensure_future(run.cancel())
            assert (await run.session.wait(match="signal TERM", timeout=30)).reason == "match"
        before_limits = (await run.session.refresh()).cursor
        # Both have passed by now.
        await run.session.update(timeout=0.01, idle_timeout=0.01)
        if cancelling is not None:
            await cancelling
        else:
            woke = await run.session.wait(match="signal TERM", since=before_limits, timeout=30)
            assert woke.reason == "match"
            before = await one.get_record(run.run_id)
            assert before is not None
            assert before.state == "exiting"
        await run.cancel()
        return run, await run.wait()

    run, exit = agent.run(stopped())
    if first == "cancel":
        assert (exit.reason, exit.timed_out) == ("manual-cancel", False)
    else:
        assert exit.reason in ("overall-timeout", "no-output-timeout")
        assert exit.timed_out
    assert exit.stdout.count("signal TERM") == 1
    record = agent.run(one.get_record(run.run_id))
    assert record is not None
    assert record.termination_reason == exit.reason


@pytest.mark.covers("openclaw:25")
def test_an_exit_after_a_missed_deadline_is_a_timeout_with_its_own_code(
    agent: Agent, points: Points, world: World
) -> None:
    """The runner stands still between its first answer and its loop, while the deadline passes and the command ends."""
    points.set("runner.answered=pause")
    gate = world.gate()
    argv = world.probe("signal-report", "await", gate, "exit", 5)

    async def passed() -> tuple[Any, Any]:
        spawning = asyncio.ensure_future(supervisor(agent).spawn(SpawnInput(argv=argv, timeout_ms=500)))
        hit = await asyncio.to_thread(points.wait, "runner.answered")
        run = await spawning
        assert run.pid is not None
        assert run.started_at_ms is not None
        pid, deadline = run.pid, run.started_at_ms / 1000 + 0.6 - time.time()
        await asyncio.wait({asyncio.ensure_future(asyncio.Event().wait())}, timeout=max(0, deadline))
        gate.release()
        await asyncio.to_thread(until, lambda: processes.look(pid).state == "Z")  # type: ignore[union-attr]
        hit.release()
        return run, await run.wait()

    _, exit = agent.run(passed())
    points.clear()
    assert (exit.reason, exit.exit_code, exit.exit_signal, exit.timed_out) == ("overall-timeout", 5, None, True)
    assert "signal" not in exit.stdout


@pytest.mark.covers("openclaw:26", "found:33")
@pytest.mark.needs("root")
def test_output_every_100_ms_renews_a_watchdog_of_200_ms(agent: Agent, points: Points) -> None:
    """Before everybody else on the machine: whether the printer or the runner gets its turn in time is not the question
    here. Without a launcher both are started by this process and inherit that."""
    one = supervisor(agent)
    points.off("launcher")
    script = "i=0; while [ $i -lt 20 ]; do echo $i; sleep 0.1; i=$((i + 1)); done"
    with in_real_time():
        chatty = agent.run(one.spawn(SpawnInput(argv=["sh", "-c", script], no_output_timeout_ms=200)))
        exit = agent.run(chatty.wait())
    assert (exit.reason, exit.exit_code) == ("exit", 0)
    assert exit.stdout.split() == [str(number) for number in range(20)]


@contextmanager
def in_real_time() -> Iterator[None]:
    """Every thread of this process, and what it starts meanwhile, comes before all ordinary ones."""
    threads = [int(name) for name in os.listdir("/proc/self/task")]
    for thread in threads:
        os.sched_setscheduler(thread, os.SCHED_FIFO, os.sched_param(1))
    try:
        yield
    finally:
        for thread in threads:
            os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))


@pytest.mark.covers("openclaw:26")
def test_silence_ends_the_whole_tree(agent: Agent, world: World) -> None:
    one = supervisor(agent)
    heard: list[str] = []

    # The descendant is silent as long as its leader lives, and prints until it is killed.
    left = "trap '' TERM; while kill -0 $$ 2> /dev/null; do sleep 0.02; done; while sleep 0.02; do echo late; done"

    async def silent() -> tuple[Any, Any, list[int], int]:
        argv = ["sh", "-c", f"({left}) & echo $!; exec sleep 600"]
        run = await one.spawn(SpawnInput(argv=argv, no_output_timeout_ms=200, on_stdout=heard.append))
        assert run.pid is not None
        exit = await run.wait()
        count = len(heard)
        await run.wait_for_extinction()
        return run, exit, [run.pid, int("".join(heard).split()[0])], count

    run, exit, pids, count = agent.run(silent())
    assert (exit.reason, exit.timed_out, exit.no_output_timed_out) == ("no-output-timeout", True, True)
    for pid in pids:
        wait_gone(pid)
    assert "late" in agent.run(run.session.text("stdout"))
    assert len(heard) == count, "nothing is delivered after settlement"
    assert "".join(heard) == exit.stdout


@pytest.mark.covers("openclaw:30")
def test_a_capture_keeps_the_end_and_listeners_and_log_get_all(agent: Agent) -> None:
    one = supervisor(agent)
    heard: list[str] = []
    script = "import sys; sys.stdout.write('\\u00e9\\U0001f600' * 5000); sys.stderr.write('e' * 10)"
    input = SpawnInput(
        argv=["python3", "-c", script],
        env={"PYTHONIOENCODING": "utf-8"},
        max_captured_output_chars=256,
        on_stdout=heard.append,
    )
    run = agent.run(one.spawn(input))
    exit = agent.run(run.wait())
    marker, _, kept = exit.stdout.partition("\n")
    assert marker == "[earlier output left out]"
    assert len(kept) <= 256
    assert set(kept) == {"\u00e9", "\U0001f600"}
    assert exit.stderr == "e" * 10
    assert "".join(heard) == "\u00e9\U0001f600" * 5000
    assert agent.run(run.session.text("stdout")) == "\u00e9\U0001f600" * 5000
    with pytest.raises(errors.BadArgument, match="at least 256"):
        agent.run(one.spawn(SpawnInput(argv=["true"], max_captured_output_chars=255)))
    silent = agent.run(one.spawn(SpawnInput(argv=["echo", "x"], capture_output=False)))
    assert agent.run(silent.wait()).stdout == ""


@pytest.mark.covers("openclaw:33")
def test_a_secret_is_read_from_its_descriptor_and_stored_nowhere(agent: Agent, world: World) -> None:
    secret = "correct-horse-battery-staple"
    data = bytearray(secret.encode())
    gate = world.gate()
    script = f"read -r word <&3; echo length ${{#word}}; read -n 1 x < {gate}"

    async def started() -> Any:
        input = SpawnInput(argv=["bash", "-c", script], secret_input=SecretInput(3, lambda: data), run_id="keeper")
        run = await supervisor(agent).spawn(input)
        assert (await run.session.wait(match=f"length {len(secret)}", timeout=30)).reason == "match"
        return run

    run = agent.run(started())
    assert data == bytes(len(secret))
    needle = secret.encode()
    for pid in (run.pid, run.session.runner_pid, os.getpid()):
        for name in ("environ", "cmdline"):
            with open(f"/proc/{pid}/{name}", "rb") as file:
                assert needle not in file.read()
    gate.release()
    assert agent.run(run.wait()).exit_code == 0
    assert [path for path, data in contents(world.root) if needle in data] == []


def test_secrets_of_the_host_stay_with_it_unless_they_are_given(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "GITHUB_TOKEN", "SOME_PASSWORD", "BASH_ENV", "PYTHONPATH"):
        monkeypatch.setenv(name, "of the host")
    one = supervisor(agent)

    def variables(**more: Any) -> dict[str, str]:
        run = agent.run(one.spawn(SpawnInput(**{"argv": ["/usr/bin/env"], **more})))
        lines = agent.run(run.wait()).stdout.splitlines()
        return dict(line.split("=", 1) for line in lines)

    plain = variables()
    assert {"PATH", "HOME"} <= plain.keys()
    assert "of the host" not in plain.values()
    assert "OPENCLAW_SHELL" not in plain
    given = variables(env={"OPENAI_API_KEY": "given", "PATH": "/bin"})
    assert (given["OPENAI_API_KEY"], given["PATH"], "HOME" in given) == ("given", "/bin", True)
    assert "of the host" not in given.values()
    assert variables(env={"ONLY": "this"}, exact_env=True).keys() & {"ONLY", "PATH", "HOME"} == {"ONLY"}
    screen = variables(argv=None, mode="pty", pty_command="/usr/bin/env")
    assert (screen["TERM"], "of the host" in screen.values()) == ("xterm-256color", False)


def test_a_run_is_known_by_its_id_alone(agent: Agent) -> None:
    one = supervisor(agent)
    run = agent.run(one.spawn(SpawnInput(argv=["sleep", "600"])))
    for ref in ("last", str(run.pid), run.session.id[:6]):
        assert agent.run(one.get_record(ref)) is None
        assert agent.run(one.adopt(ref)) is None
        assert not agent.run(one.cancel(ref))
    for ref in (run.run_id, run.session.id):
        found = agent.run(one.get_record(ref))
        assert found is not None
        assert (found.run_id, found.state) == (run.run_id, "running")
    agent.run(run.cancel())


def test_a_record_changes_when_its_run_does(agent: Agent, world: World) -> None:
    one = supervisor(agent)
    run = agent.run(one.spawn(SpawnInput(argv=["sleep", "600"])))
    assert run.session.runner_pid is not None
    os.kill(run.session.runner_pid, signal.SIGKILL)
    os.kill(run.pid or 0, signal.SIGKILL)
    wait_gone(run.pid or 0)
    until(lambda: (it := agent.run(one.get_record(run.run_id))) is not None and it.state == "exited")
    first = agent.run(one.get_record(run.run_id))
    assert agent.run(one.get_record(run.run_id)) == first
    sweep_up(world, world.open())


def test_a_cancel_accepts_no_other_reason(agent: Agent) -> None:
    one = supervisor(agent)
    run = agent.run(one.spawn(SpawnInput(argv=["sleep", "600"], scope_key="s")))
    for asked in (one.cancel(run.run_id, "no-output-timeout"), one.cancel_scope("s", "bored"), run.cancel("exit")):
        with pytest.raises(errors.BadArgument, match="reason"):
            agent.run(asked)
    record = agent.run(one.get_record(run.run_id))
    assert record is not None
    assert (record.state, record.termination_reason) == ("running", None)
    assert agent.run(one.cancel(run.run_id, "manual-cancel"))
    assert agent.run(run.wait()).reason == "manual-cancel"


def test_a_forced_cancel_gives_no_grace(agent: Agent, world: World) -> None:
    one, other = supervisor(agent, kill_grace_ms=60_000), supervisor(agent)
    stubborn = SpawnInput(argv=world.probe("ignore", "TERM", "say", "up", "forever"))

    async def up() -> ManagedRun:
        run = await one.spawn(stubborn)
        await run.session.wait(match="up", timeout=30)
        return run

    async def forced() -> tuple[list[str | None], float]:
        at_once, by_id, later = await up(), await up(), await up()
        cancelling = asyncio.ensure_future(later.cancel())
        until_asked = time.monotonic() + 10
        while (await later.session.refresh()).stopping is None:
            assert time.monotonic() < until_asked
        passed = QuietTime()
        await at_once.cancel(force=True)
        assert await other.cancel(by_id.run_id, force=True)
        # A process that is in its grace already does not get the rest of it.
        await later.cancel(force=True)
        ends = [(await each.wait()).exit_signal for each in (at_once, by_id, later)]
        await cancelling
        return ends, passed.seconds()

    ends, took = agent.run(forced())
    assert ends == ["SIGKILL"] * 3
    assert took < 10


def test_a_shut_down_supervisor_spawns_nothing_and_lets_its_runs_live(agent: Agent) -> None:
    one, two = supervisor(agent), supervisor(agent)
    mine = agent.run(one.spawn(SpawnInput(argv=["sleep", "600"])))
    other = agent.run(two.spawn(SpawnInput(argv=["sleep", "600"])))
    agent.run(one.shutdown())
    with pytest.raises(errors.HoldfastError, match="process supervisor is shut down"):
        agent.run(one.spawn(SpawnInput(argv=["true"])))
    found = agent.run(two.reconcile_orphans())
    assert sorted(found["reattached"]) == sorted([mine.run_id, other.run_id])
    agent.run(two.shutdown(stop=True))
    assert processes.is_gone(other.pid or 0)
    assert not processes.is_gone(mine.pid or 0)
    assert agent.run(supervisor(agent).cancel(mine.run_id))


def test_a_shutdown_lets_starts_in_flight_live_and_ends_what_belongs_to_its_owner(agent: Agent, points: Points) -> None:
    one = supervisor(agent)
    points.set("runner.before_spawn=pause")

    async def begin(**more: Any) -> tuple[Any, Any]:
        spawning = asyncio.ensure_future(one.spawn(SpawnInput(argv=["sleep", "600"], **more)))
        return spawning, await asyncio.to_thread(points.wait, "runner.before_spawn")

    async def shut_down() -> tuple[Any, Any]:
        owned, hit = await begin(lifetime="owner")
        hit.release()
        await owned
        late, hit = await begin(scope_key="s")
        await one.shutdown()
        points.clear()
        hit.release()
        return await owned, await late

    owned, late = agent.run(shut_down())
    assert agent.run(owned.wait()).reason == "manual-cancel"
    assert processes.is_gone(owned.pid or 0)
    assert not processes.is_gone(late.pid)
    agent.run(late.cancel())


def test_a_withdrawn_run_is_one_that_has_ended() -> None:
    run = Withdrawn("never-born")

    async def asked() -> Any:
        await run.cancel()
        await run.begin_cancel()
        await run.first_wait()
        await run.wait_for_extinction()
        await run.stdin.end()
        with pytest.raises(errors.StdinClosed, match="withdrawn"):
            await run.stdin.write("x")
        return await run.wait(), await run.captured()

    exit, captured = asyncio.run(asked())
    assert (exit.reason, captured) == ("manual-cancel", ("", ""))
    assert (run.pid, run.started_at_ms, run.reused, run.is_cancelled) == (None, None, False, False)


def test_input_is_written_and_stdin_may_stay_open(agent: Agent) -> None:
    one = supervisor(agent)
    given = agent.run(one.spawn(SpawnInput(argv=["cat"], input="given")))
    assert agent.run(given.wait()).stdout == "given"

    async def typed() -> Any:
        run = await one.spawn(SpawnInput(argv=["cat"], stdin_mode="pipe-open"))
        await run.stdin.write("typed")
        await run.stdin.end()
        return await run.wait()

    assert agent.run(typed()).stdout == "typed"
    closed = agent.run(one.spawn(SpawnInput(argv=["cat"])))
    assert agent.run(closed.wait()).stdout == ""


def test_a_spawn_that_fails_is_an_error_and_a_record(agent: Agent, world: World) -> None:
    one = supervisor(agent)
    with pytest.raises(errors.SpawnError):
        agent.run(one.spawn(SpawnInput(argv=["/no/such/program"], run_id="never-there")))
    record = agent.run(one.get_record("never-there"))
    assert record is not None
    assert (record.state, record.termination_reason, record.pid) == ("exited", "spawn-error", None)
    (session,) = agent.run(agent.hf.sessions(all=True))
    assert len(signal_file.endings(world, session.id)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("why", ["overall-timeout", "no-output-timeout", "manual-cancel"])
def test_a_wait_returns_when_the_stop_of_another_cannot_end_the_command(agent: Agent, points: Points, why: str) -> None:
    points.set("tree.kill=error:EPERM")
    limits = {"overall-timeout": {"timeout_ms": 500}, "no-output-timeout": {"no_output_timeout_ms": 500}}.get(why, {})
    one, other = supervisor(agent, kill_grace_ms=100), supervisor(agent)

    async def settled() -> tuple[Any, Any, float]:
        # A limit runs from the request, and not from when we hear that it began.
        began = time.monotonic()
        run = await one.spawn(SpawnInput(argv=["sleep", "600"], **limits))  # type: ignore[arg-type]
        waiting = asyncio.ensure_future(run.wait())
        cancelling = asyncio.ensure_future(other.cancel(run.run_id)) if why == "manual-cancel" else None
        exit = await waiting
        took = time.monotonic() - began
        if cancelling is not None:
            await cancelling
        return run, exit, took

    run, exit, took = agent.run(settled())
    # Half a second until the limit, the grace, and what the last rung may take.
    assert 4.1 <= took < 0.5 + 0.1 + 4 + 10
    assert (exit.reason, exit.timed_out, exit.exit_signal) == (why, why != "manual-cancel", "SIGKILL")
    assert [each["pid"] for each in exit.survivors] == [run.pid]
    left = processes.look(run.pid or 0)
    assert left is not None
    processes.end(left)
    wait_gone(left.pid)
