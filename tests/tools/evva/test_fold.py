"""What happened, as one message for the conversation; and the loop that asks for it."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable

import pytest

from holdfast import signals
from holdfast.errors import BadArgument, RunInProgress
from holdfast.tools.evva import DaemonState, Event, Fold, Lifecycle, Signal
from holdfast.tools.evva.state import FoldGate, Gate
from support.agents import Agent
from support.own_daemon import OWNER
from support.signal_file import endings
from support.waiting import BOUND_S, until
from support.world import World

Library = Callable[..., Agent]


@pytest.fixture
def state(world: World) -> DaemonState:
    return world.closing.enter_context(DaemonState(world.open(), OWNER))


def ended(world: World, state: DaemonState, command: str, **options: object) -> str:
    session = state.start(command, **options)  # type: ignore[arg-type]
    until(lambda: endings(world, session.id), what=f"the end of {command}")
    return session.id


def blocks(text: str) -> list[str]:
    return re.findall(r"<system-reminder>(.*?)</system-reminder>", text, re.DOTALL)


@pytest.mark.covers("evva:11")
def test_a_background_command_ends_completed_failed_or_killed(library: Library, world: World) -> None:
    agent = library("evva")
    commands = ("echo hi", "exit 7", "sleep 60")
    ids = [agent.call("bash", command=each, run_in_background=True).data["daemon_id"] for each in commands]
    agent.call("daemon_stop", daemon_id=ids[2])
    until(lambda: all(endings(world, id) for id in ids), what="their ends")
    with agent.tools.state.fold() as fold:
        said = blocks(fold.text)
        found = {each.daemon_id: each.lifecycle for each in fold.batch}
    assert [said for said in said if "| hi" in said] == [
        f"daemon {ids[0]} [local_bash] completed, exit code 0\n| hi\n",
    ]
    assert f"daemon {ids[1]} [local_bash] failed, exit code 7\n(no output)\n" in said
    assert f"daemon {ids[2]} [local_bash] killed, signal SIGTERM, cause=stop, by=agent-7\n(no output)\n" in said
    lifecycles = [found[id] for id in ids]
    assert lifecycles == [
        Lifecycle("completed", cause="exit", exit_code=0),
        Lifecycle("failed", cause="exit", exit_code=7),
        Lifecycle("killed", cause="stop", exit_signal="SIGTERM"),
    ]
    stopped = agent.tools.state.recall(ids[2]).snapshot()
    assert (stopped.status, stopped.requested_by) == ("killed", "agent-7")


@pytest.mark.covers("evva:22")
def test_events_come_before_ends_and_are_settled_or_released_with_the_message(world: World, state: DaemonState) -> None:
    monitors = [ended(world, state, f"echo {word}", kind="monitor") for word in ("one", "two")]
    command = ended(world, state, "echo three")
    released = state.fold()
    said = blocks(released.text)[1:]
    assert [block.split("\n")[0] for block in said] == [
        *(f"daemon {id} [monitor] events:" for id in monitors),
        *(f"daemon {id} [monitor] completed, events=1" for id in monitors),
        f"daemon {command} [local_bash] completed, exit code 0",
    ]
    assert {shot.id for shot in state.snapshot()} == {*monitors, command}
    released.batch.release("the model was not there")
    assert not state.has_pending(), "not before its pause"
    assert len(state) == 3
    until(state.has_pending, what="the end of the pause")
    gone: list[str] = []
    state.subscribe(lambda change: gone.append(change.id) if change.op == "removed" else None)
    with state.fold() as again:
        assert again.ids == released.ids
        assert "redelivered" in again.text
    assert len(state) == 0
    assert sorted(gone) == sorted([*monitors, command])
    assert not state.fold()


def test_the_message_of_a_failed_turn_comes_again(world: World, state: DaemonState) -> None:
    ended(world, state, "echo one")
    with pytest.raises(RuntimeError), state.fold() as fold:
        raise RuntimeError("no answer")
    until(state.has_pending, what="the end of the pause")
    assert [each.redelivered for each in state.drain_signals()] == [True]
    assert fold.ids


def test_an_empty_fold_is_false(state: DaemonState) -> None:
    with state.fold() as fold:
        assert not fold
        assert (fold.text, fold.ids, len(fold.batch)) == ("", [], 0)


def test_quotes_and_tails_as_asked_for(world: World) -> None:
    hf = world.open()
    plain = world.closing.enter_context(DaemonState(hf, OWNER, quote="plain", ended_tail_chars=3000))
    ended(world, plain, f"for i in $(seq 1 40); do echo $i {'x' * 60}; done; echo '<b>'")
    with plain.fold() as fold:
        lines = blocks(fold.text)[1].splitlines()
    assert lines[-1] == "&lt;b>"
    assert lines[-2] == f"40 {'x' * 60}"
    assert f"2 {'x' * 60}" in lines, "more than a record has room for"
    assert len(fold.text) <= 8000
    with pytest.raises(BadArgument):
        DaemonState(hf, OWNER, quote="none")
    with pytest.raises(BadArgument):
        DaemonState(hf, OWNER, ended_tail_chars=3001)


def test_a_tail_is_never_made_shorter_than_it_is_by_default(world: World, state: DaemonState) -> None:
    hf = world.open()
    raised = world.closing.enter_context(DaemonState(hf, OWNER, ended_tail_chars=10))
    ended(world, state, "echo first; seq 1 20; exit 3")
    fold = state.fold()
    assert "| first\n" in fold.text
    fold.batch.release("for the other")
    until(raised.has_pending, what="it again")
    with raised.fold() as again:
        assert again.text.replace(", redelivered", "") == fold.text


def test_a_watch_that_matched_is_an_event_of_another_variant(world: World, state: DaemonState) -> None:
    session = state.start(world.probe("say", "an ERROR", "forever"), watch=["ERROR"])
    until(state.has_pending, what="the match")
    (match,) = state.drain_signals()
    assert match.event is not None
    assert match.event.variant == "watch"
    assert "ERROR" in match.event.line
    session.stop(grace=0)


@pytest.mark.covers("evva:23")
def test_a_signal_between_the_last_look_and_the_release_of_the_flag_gets_a_turn(
    world: World, state: DaemonState, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns: list[str] = []
    look = FoldGate.take
    looks = 0

    async def take(self: FoldGate) -> object:
        nonlocal looks
        held = await look(self)
        looks += 1
        if looks == 1:
            assert held is None
            assert state.gate.busy, "the flag is still set, and the last look is over"
            ended(world, state, "echo late")
        return held

    monkeypatch.setattr(FoldGate, "take", take)
    assert isinstance(state.gate, signals.Gate)
    assert state.gate.run(lambda fold: turns.append(fold.text)) == 1
    assert len(turns) == 1
    assert "| late" in turns[0]
    assert not state.gate.busy


@pytest.mark.covers("evva:24")
def test_a_late_wake_fires_at_once_and_a_second_run_is_refused(world: World, state: DaemonState) -> None:
    ended(world, state, "echo one")
    woken: list[bool] = []
    state.set_wake(lambda: woken.append(True))
    # Nothing else happens. While the observers of the end are being called, their thread calls it after them.
    until(lambda: woken, what="the wake for what is pending")
    inside, leave = threading.Event(), threading.Event()

    def turn(_fold: Fold) -> None:
        inside.set()
        assert leave.wait(BOUND_S)

    running = threading.Thread(target=state.gate.run, args=(turn,))
    running.start()
    assert inside.wait(BOUND_S)
    with pytest.raises(RunInProgress):
        state.gate.run(lambda _fold: pytest.fail("a second turn"))
    leave.set()
    running.join(BOUND_S)
    assert not running.is_alive()
    assert not state.has_pending()
    other: list[bool] = []
    state.set_wake(lambda: other.append(True))
    ended(world, state, "echo two")
    until(lambda: other, what="the new wake")
    assert len(woken) == 1, "the former is not called any more"


class Enough(Exception):
    """Ends a loop that serves."""


def test_two_threads_can_serve_one_gate(world: World, state: DaemonState) -> None:
    inside, leave = threading.Semaphore(0), threading.Semaphore(0)
    texts: list[str] = []

    def turn(fold: Fold) -> None:
        texts.append(fold.text)
        inside.release()
        assert leave.acquire(timeout=BOUND_S)
        if "| last" in fold.text:
            raise Enough

    def serve() -> None:
        with pytest.raises(Enough):
            state.gate.serve(turn)

    serving = [threading.Thread(target=serve) for _ in range(2)]
    for each in serving:
        each.start()
    for said in ("one", "two", "three"):
        # From the second on, one of the two finds the other inside.
        ended(world, state, f"echo {said}")
        if said != "one":
            leave.release()
        assert inside.acquire(timeout=BOUND_S)
    assert [f"| {said}\n" in text for said, text in zip(("one", "two", "three"), texts, strict=True)] == [True] * 3
    assert all(each.is_alive() for each in serving)
    leave.release()
    ended(world, state, "echo last")
    for _ in serving:
        # Given back by the first, it comes again for the other.
        assert inside.acquire(timeout=BOUND_S)
        leave.release()
    for each in serving:
        each.join(BOUND_S)
        assert not each.is_alive()


def test_a_serving_thread_sleeps_while_another_call_runs_the_turns(
    world: World, state: DaemonState, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, leave = threading.Semaphore(0), threading.Semaphore(0)
    turns: list[tuple[str, str]] = []
    refused: list[str] = []
    run = Gate.run

    def counted(gate: Gate, turn: Callable[[Fold], object], limit: int | None = None) -> int:
        try:
            return run(gate, turn, limit)
        except RunInProgress:
            refused.append(threading.current_thread().name)
            raise

    def turn(fold: Fold) -> None:
        turns.append((threading.current_thread().name, fold.text))
        inside.release()
        assert leave.acquire(timeout=BOUND_S)
        if "| last" in fold.text:
            raise Enough

    def serve() -> None:
        with pytest.raises(Enough):
            state.gate.serve(turn)

    monkeypatch.setattr(Gate, "run", counted)
    ended(world, state, "echo one")
    running = threading.Thread(target=state.gate.run, args=(turn,), name="running")
    running.start()
    assert inside.acquire(timeout=BOUND_S)
    serving = threading.Thread(target=serve, name="serving")
    serving.start()
    ended(world, state, "echo two")
    until(lambda: refused, what="the refusal")
    ended(world, state, "sleep 0.3; echo three")
    leave.release()
    assert inside.acquire(timeout=BOUND_S)
    leave.release()
    running.join(BOUND_S)
    ended(world, state, "echo last")
    assert inside.acquire(timeout=BOUND_S)
    leave.release()
    serving.join(BOUND_S)
    assert not serving.is_alive()
    assert [name for name, _ in turns] == ["running", "running", "serving"]
    assert set(refused) == {"serving"}
    assert len(refused) < 10, "it sleeps until something else comes"


def test_a_closed_state_leaves_no_socket(world: World) -> None:
    state = DaemonState(world.open(), OWNER)
    assert not state.gate.waker.closed
    state.close()
    assert list((world.runtime / "wake").iterdir()) == []


def test_the_flag_is_left_by_errors_too(world: World, state: DaemonState) -> None:
    ended(world, state, "echo one")

    def turn(_fold: Fold) -> None:
        raise RuntimeError("no answer")

    with pytest.raises(RuntimeError):
        state.gate.run(turn)
    assert not state.gate.busy
    until(state.has_pending, what="the end of the pause")
    assert state.gate.run(lambda _fold: None) == 1


def test_for_asyncio_turns_are_awaited_and_the_wake_comes_on_the_loop(library: Library, world: World) -> None:
    agent = library("evva")
    state = agent.tools.state
    turns: list[str] = []

    async def main() -> None:
        woken = asyncio.Event()
        state.set_wake(woken.set)
        answer = await agent.tools.call("bash", {"command": "echo hi", "run_in_background": True})
        async with asyncio.timeout(BOUND_S):
            await woken.wait()

        async def turn(fold: Fold) -> None:
            with pytest.raises(RunInProgress):
                await state.gate.run(turn)
            turns.append(fold.text)

        assert await state.gate.run(turn) == 1
        assert answer.data["daemon_id"] in turns[0]
        assert await state.gate.run(turn) == 0

    agent.run(main())
    assert len(turns) == 1


def test_what_is_emitted_in_parts_is_folded_in_one_block(state: DaemonState) -> None:
    for text in ("one", "two"):
        state.emit(Signal("x00000001", "webcam", event=Event(text)))
    state.emit(Signal("x00000001", "webcam", event=Event("", closing=True)))
    with state.fold() as fold:
        (block,) = blocks(fold.text)[1:]
    assert block == "daemon x00000001 [webcam] events:\n| one\n| two\n(stream closed)\n"
