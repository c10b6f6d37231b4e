"""What `hold doctor` says about signals."""

from __future__ import annotations

from holdfast import Holdfast
from holdfast.model import Finding
from support.waiting import BOUND_S, until, wait_gone
from support.world import World


def about_signals(hf: Holdfast) -> list[Finding]:
    return [each for each in hf.doctor() if each.check == "signals"]


def test_consumers_and_what_waits_for_them_are_counted(world: World) -> None:
    hf = world.open()
    hf.signals("conv-1")
    session = hf.start(world.probe("exit", 1), owner="conv-1")
    session.wait(timeout=BOUND_S)
    until(lambda: hf.signals("conv-1").pending() == 1, what="the signal of its end")
    (found,) = about_signals(hf)
    assert (found.level, found.text) == ("ok", "1 consumers, 1 signals wait for them")


def test_dropped_consumer_is_reported_by_the_doctor(world: World) -> None:
    hf = world.open()
    hf.signals("conv-1")
    change = "UPDATE consumers SET used_ns = 0, used_boot = 'an earlier one'"
    hf._core.index.database.change(lambda db: db.execute(change))
    hf.collect()
    counted, dropped = about_signals(hf)
    assert "0 consumers" in counted.text
    assert "consumer owner:conv-1 was dropped" in dropped.text


def test_parked_signals_and_bad_lines_are_warnings(world: World) -> None:
    hf = world.open()
    consumer = hf.signals("conv-1")
    ended = hf.start(world.probe("exit", 1), owner="conv-1")
    ended.wait(timeout=BOUND_S)
    running = hf.start(world.probe("cat"), stdin="open", owner="conv-1")
    until(lambda: consumer.pending() == 1, what="the signal of the end")
    hf._core.index.database.change(lambda db: db.execute("UPDATE pending SET parked = 1"))
    with (world.session(running.id) / "signals.jsonl").open("ab") as file:
        file.write(b"not a record\n")
    _, parked, bad = about_signals(hf)
    assert (parked.level, bad.level) == ("warning", "warning")
    assert "given up on" in parked.text
    assert "hold ack" in (parked.fix or "")
    assert f"of session {running.id}: not JSON" in bad.text
    running.stop(grace=0)


def test_bad_lines_are_reported_after_the_end_too_and_many_are_counted(world: World) -> None:
    hf = world.open()
    consumer = hf.signals("conv-1")
    session = hf.start(world.probe("cat"), stdin="open", owner="conv-1")
    with (world.session(session.id) / "signals.jsonl").open("ab") as file:
        file.write(b'{"torn off\n' * 5)
    runner = session.runner_pid
    session.stop(grace=0)
    assert runner is not None
    wait_gone(runner)
    with consumer.claim() as batch:
        assert [each.variant for each in batch] == ["lifecycle"]
    assert hf.sessions() == []
    assert hf._core.index.unfinished() == []
    _, *bad, more = about_signals(hf)
    assert len(bad) == 3
    assert {f"of session {session.id}: not JSON" in each.text for each in bad} == {True}
    assert (more.level, more.text) == ("warning", "2 more signal records are invalid")
