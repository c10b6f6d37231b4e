"""STR-05 and STR-06: streams that end before the command, and input that nobody takes."""

from __future__ import annotations

import pytest

from holdfast import Session
from holdfast.errors import Busy, HoldfastError, SessionEnded, StdinClosed, TooLarge
from support import processes
from support.bystander import Bystanders
from support.peer import Peer, is_alive
from support.promised import Beside, is_typed, promised
from support.waiting import until
from support.world import World

MIB = 1 << 20


def ticks(pid: int) -> tuple[int, int]:
    """Processor time in ticks, and how often the process went to sleep of its own accord."""
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        slept = next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))
    return int(fields[11]) + int(fields[12]), slept


@pytest.mark.covers("STR-05")
@pytest.mark.parametrize(
    "closing, outputs", [("exec >&- 2>&-", 0), ("exec >&-", 1), ("exec 2>&-", 1), ("exec <&- >&- 2>&-", 0)]
)
def test_str_05_a_command_that_closes_its_streams_runs_until_its_exit_without_a_busy_loop(
    world: World, bystander: Bystanders, beside: Beside, closing: str, outputs: int
) -> None:
    gate, closed = world.gate(), world.gate()
    hf = world.open()
    session = hf.start(f"echo before; {closing}; echo done > {closed}; head -c1 {gate} > /dev/null; exit 3")
    assert closed.line() == "done"
    runner = session.runner_pid
    assert runner is not None
    assert session.wait(match="before", timeout=30).reason == "match"
    until(lambda: pipes(runner) == outputs, what="the end of the streams")
    assert session.refresh().state == "running"
    with Peer(str(beside.session.endpoint)) as peer:
        peer.hello()
        # One that was woken and has not come to run yet is not asleep, though it costs nothing.
        until(lambda: (row := processes.look(runner)) is not None and row.state == "S", what="the rest of the runner")
        # It still has to see that we hung up; a thousand round trips next door are then long enough for one that
        # spins to be seen.
        until(lambda: idle(peer, runner, 50), what="the runner to fall asleep")
        assert idle(peer, runner, 1000)
    assert session.refresh().exit is None
    gate.release()
    assert session.wait(exit=True, timeout=30).reason == "exit"
    done = promised(world, session, bystander=bystander, beside=beside)
    assert done.exit is not None
    assert (done.exit.code, done.exit.complete) == (3, True)
    assert done.text() == "before\n"


def idle(peer: Peer, runner: int, trips: int) -> bool:
    before = ticks(runner)
    for _ in range(trips):
        assert peer.ask("ping")["type"] == "reply"
    return ticks(runner) == before


def pipes(runner: int) -> int:
    """Output pipes that the runner still reads; its wakeup pipe has both ends here."""
    names = [to for to in processes.descriptors(runner).values() if to.startswith("pipe:")]
    return len([name for name in names if names.count(name) == 1])


def refusal_of(act: object) -> HoldfastError:
    assert callable(act)
    with pytest.raises(HoldfastError) as refusal:
        act()
    is_typed(refusal.value)
    return refusal.value


@pytest.mark.covers("STR-06")
def test_str_06_each_trouble_with_stdin_is_an_error_of_its_own(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    # Never open.
    never = hf.start(world.probe("forever"))
    for act in (lambda: never.send("x"), never.close_stdin):
        refusal = refusal_of(act)
        assert isinstance(refusal, StdinClosed)
        assert "started with stdin closed" in refusal.message
        assert 'stdin="open"' in refusal.fix
    assert never.stop(grace=0).done

    # Closed by us.
    closed = hf.start(world.probe("count-stdin", "forever"), stdin="open")
    closed.send("1234")
    closed.close_stdin()
    assert closed.wait(match="^stdin 4$", timeout=30).reason == "match"
    for act in (lambda: closed.send("x"), closed.close_stdin):
        refusal = refusal_of(act)
        assert isinstance(refusal, StdinClosed)
        assert "it was closed on request" in refusal.message
        assert "its input has ended" in refusal.fix
    assert closed.stop(grace=0).done

    # Given whole at the start.
    given = hf.start(world.probe("count-stdin", "forever"), input="12345")
    assert given.wait(match="^stdin 5$", timeout=30).reason == "match"
    refusal = refusal_of(lambda: given.send("x"))
    assert isinstance(refusal, StdinClosed)
    assert "given at the start" in refusal.message
    assert "instead of `input`" in refusal.fix
    assert given.stop(grace=0).done

    # Closed by the command.
    deaf = hf.start(world.probe("close", 0, "say", "deaf", "forever"), stdin="open")
    assert deaf.wait(match="^deaf$", timeout=30).reason == "match"
    refusal = refusal_of(lambda: deaf.send("x"))
    assert isinstance(refusal, StdinClosed)
    assert "the command closed it" in refusal.message
    assert "it no longer reads" in refusal.fix
    assert deaf.refresh().state == "running"
    assert deaf.stop(grace=0).done

    # After the end, with and without a survivor that keeps the runner there.
    ended = hf.run("exit 4", stdin="open")
    for act in (lambda: ended.send("x"), ended.close_stdin):
        refusal = refusal_of(act)
        assert isinstance(refusal, SessionEnded)
        assert refusal.facts["code"] == 4
    left = hf.start(world.probe("fork", "{", "forever", "}", "exit", 4), stdin="open")
    assert left.wait(exit=True, timeout=30).reason == "exit"
    refusal = refusal_of(lambda: left.send("x"))
    assert isinstance(refusal, SessionEnded)
    assert left.stop(grace=0).done
    promised(world, ended, bystander=bystander, beside=beside)


@pytest.mark.covers("STR-06")
def test_str_06_ten_megabytes_to_one_that_does_not_read_are_refused_as_busy_while_its_output_flows(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    gate = world.gate()
    hf = world.open()
    session = hf.start(
        world.probe("fork", "{", "lines-forever", 0.001, "}", "await", gate, "count-stdin", "forever"), stdin="open"
    )
    assert session.wait(match="^line 5$", timeout=30).reason == "match"
    accepted, refused = 0, None
    for _ in range(20):
        try:
            accepted += session.send(bytes(MIB // 2)).accepted
        except Busy as busy:
            refused = busy
            break
    assert refused is not None
    is_typed(refused)
    assert int(str(refused.facts["queued"])) > MIB // 2
    assert accepted < 3 * MIB
    assert isinstance(refusal_of(lambda: session.send(bytes(MIB // 2))), Busy)
    # Nobody else is held up: not the output, not the questions.
    line = numbered(session)
    assert session.wait(match=f"^line {line + 20}$", timeout=30).reason == "match"
    assert is_alive(str(session.endpoint))
    gate.release()
    # What was accepted goes through, and then there is room again.
    until(lambda: is_taken(session, bytes(MIB // 2)), what="room in the queue")
    accepted += MIB // 2
    session.close_stdin()
    assert session.wait(match=f"^stdin {accepted}$", timeout=30).reason == "match"
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=0).done


def numbered(session: Session) -> int:
    return int(session.tail(2, stream="stdout").splitlines()[0].removeprefix("line "))


def is_taken(session: Session, unit: bytes) -> bool:
    try:
        return session.send(unit).accepted == len(unit)
    except Busy:
        return False


@pytest.mark.covers("STR-06")
def test_str_06_a_unit_larger_than_any_frame_is_refused_before_it_is_sent(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    session = world.open().start(world.probe("count-stdin", "forever"), stdin="open")
    refusal = refusal_of(lambda: session.send(bytes(10 * MIB)))
    assert isinstance(refusal, TooLarge)
    assert refusal.limit == MIB // 2
    assert "smaller pieces" in refusal.fix
    assert session.send("ok").accepted == 2
    session.close_stdin()
    assert session.wait(match="^stdin 2$", timeout=30).reason == "match"
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=0).done
