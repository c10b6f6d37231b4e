"""LOG-03 and LOG-04: caps hold at every moment, what was dropped is counted exactly, and what is kept is right."""

from __future__ import annotations

import hashlib
import os
import signal
from pathlib import Path

import pytest

from holdfast import Holdfast, Session
from holdfast.errors import OffsetAhead, OutputDropped, Removed
from support import numbered_stream, probe, processes
from support.bystander import Bystanders
from support.faults import is_stopped
from support.peer import memory_kb
from support.promised import Beside, home_is_usable, is_typed, promised
from support.scale import scaled
from support.waiting import until
from support.world import World

MIB = 1 << 20


def usage(directory: Path) -> tuple[int, int]:
    """Bytes of log, and of everything else that grows, as they are on the disk now."""
    log = rest = 0
    for name in os.listdir(directory):
        try:
            fd = os.open(directory / name, os.O_RDONLY)
        except FileNotFoundError:
            continue
        try:
            size = os.fstat(fd).st_size
        finally:
            os.close(fd)
        if name.startswith(("stdout.0", "stderr.0")):
            log += size
        elif name.startswith("frames"):
            rest += size
    return log, rest


def watch_usage(session: Session, directory: Path, done: int, bound: float) -> tuple[int, int]:
    """The most that was ever seen, looked at all the while until so much was printed. The runner is halted for each
    look: sizes taken one after the other while it writes would be of different moments."""
    most = (0, 0)
    runner = session.runner_pid
    assert runner is not None

    def is_over() -> bool:
        nonlocal most
        row = processes.look(runner)
        if row is not None and processes.send(row, signal.SIGSTOP):
            until(lambda: is_stopped(runner) or processes.is_gone(runner), what="the halt of the runner")
            log, rest = usage(directory)
            processes.send(row, signal.SIGCONT)
            most = max(most[0], log), max(most[1], log + rest)
        return session.refresh().ends["stdout"] >= done or session.state == "exited"

    until(is_over, bound, what=f"{done} bytes of output")
    return most


def tail_is_right(session: Session, name: str, size: int) -> None:
    """Everything retained is what was printed at its offset, and the counts say exactly what is gone."""
    dropped = session.dropped_before[name]
    at = dropped
    for part in session.raw(name):
        assert part == numbered_stream.at(at, len(part)), f"wrong bytes near {at}"
        at += len(part)
    assert at == session.ends[name] == size


@pytest.mark.covers("LOG-03")
@pytest.mark.slow
def test_log_03_a_gibibyte_under_a_cap_of_64_mib_leaves_memory_flat_and_an_exact_tail(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    size, cap = scaled(192 * MIB, 1 << 30), 64 * MIB
    gate = world.gate()
    command = [
        "sh",
        "-c",
        f'head -c1 {gate} >/dev/null; "$@"; head -c1 {gate} >/dev/null',
        "sh",
        *numbered_stream.argv(size),
    ]
    hf = world.open()
    session = hf.start(command, log_cap=cap)
    runner = session.runner_pid
    assert runner is not None
    before = memory_kb(runner)
    gate.release()
    log, everything = watch_usage(session, world.session(session.id), size, 120)
    assert log <= cap
    assert everything <= cap
    # The most it ever had, not only what it has now.
    assert memory_kb(runner, "VmHWM") - before < 4 << 10
    gate.release()
    assert session.wait(exit=True, timeout=30).reason == "exit"
    done = promised(world, session, bystander=bystander, beside=beside)
    assert done.exit is not None
    assert done.exit.code == 0
    assert done.ends["stdout"] == size
    assert cap - 9 * MIB <= done.log_bytes <= cap
    assert done.dropped_before["stdout"] == size - done.log_bytes
    tail_is_right(done, "stdout", size)
    log_reader = hf._core.log(done.id)
    assert log_reader.lines_dropped()["stdout"] == numbered_stream.lines_before(done.dropped_before["stdout"])


@pytest.mark.covers("LOG-03")
def test_log_03_endless_output_keeps_within_its_cap_through_many_rotations_and_memory_stays_flat(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    cap = 8 * MIB
    session = world.open().start(["yes", "0123456789abcde"], log_cap=cap)
    runner = session.runner_pid
    assert runner is not None
    directory = world.session(session.id)
    until(lambda: session.refresh().ends["stdout"] > 2 * cap, what="the first rotations")
    before = memory_kb(runner)
    log, everything = watch_usage(session, directory, 15 * cap, 40)
    assert log <= cap
    assert everything <= cap
    assert memory_kb(runner) - before < 2 << 10
    now = session.refresh()
    assert now.dropped_before["stdout"] > 10 * cap
    assert session.stop(grace=0).done
    done = promised(world, session, bystander=bystander, beside=beside)
    # Nothing is missing between what was dropped and the end, and every byte stands where it was printed.
    assert done.log_bytes == done.ends["stdout"] - done.dropped_before["stdout"]
    at = done.dropped_before["stdout"]
    text = b"0123456789abcde\n" * (MIB // 16 + 2)
    for part in done.raw("stdout"):
        assert part == text[at % 16 :][: len(part)]
        at += len(part)
    page = done.read(0, limit=100)
    assert [(gap.start, gap.stop, gap.reason) for gap in page.gaps] == [(0, done.dropped_before["stdout"], "dropped")]


@pytest.mark.covers("LOG-03")
def test_log_03_single_lines_under_a_small_cap_do_not_let_the_frames_outgrow_the_log(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    """A frame is larger than a short line: without a share of its own the index of a log would exceed the log."""
    session = world.open().start(world.probe("lines", 60_000), log_cap=MIB)
    log, everything = watch_usage(session, world.session(session.id), 600_000, 30)
    assert log <= MIB
    assert everything <= MIB
    assert session.wait(exit=True, timeout=30).reason == "exit"
    promised(world, session, bystander=bystander, beside=beside, numbers=60_000)


@pytest.mark.parametrize("size", [0, 1, 255, 65_535, 65_536, 65_537, 1_000_003, 5 * MIB + 1])
def test_random_bytes_under_the_cap_come_back_with_the_same_digest_on_both_streams(world: World, size: int) -> None:
    command = world.probe("quiet", "out", "bytes", size, 1, "err", "bytes", size, 2, "out", "bytes", 99, 3)
    done = world.open().run(command)
    for name, seeds in (("stdout", ((size, 1), (99, 3))), ("stderr", ((size, 2),))):
        wanted, got = hashlib.sha256(), hashlib.sha256()
        for part in (part for count, seed in seeds for part in probe.random_bytes(count, seed)):
            wanted.update(part)
        for part in done.raw(name):
            got.update(part)
        assert got.digest() == wanted.digest()
    assert done.ends == {"stdout": size + 99, "stderr": size}
    assert done.dropped_before == {"stdout": 0, "stderr": 0}


def test_all_byte_values_come_back_through_every_reader(world: World) -> None:
    values = bytes(range(256)) * 3
    done = world.open().run(world.probe("quiet", "hex", values.hex(), "err", "hex", values[::-1].hex()))
    assert b"".join(done.raw("stdout")) == values
    assert b"".join(done.raw("stderr")) == values[::-1]
    assert done.read(stream="stdout").data == values
    assert b"".join(page.data for page in done.follow(stream="stderr")) == values[::-1]
    whole = done.read()
    assert b"".join(data for name, _, data in whole.chunks if name == "stdout") == values


@pytest.fixture
def tight(world: World, monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """A home that may hold three mebibytes."""
    monkeypatch.setenv("HOLDFAST_LOG_HOME_CAP", "3MiB")
    monkeypatch.setenv("HOLDFAST_LOG_FREE_FLOOR", "0")
    monkeypatch.setenv("HOLDFAST_COLLECT_ENABLED", "false")
    return world.open()


def filled(hf: Holdfast, world: World, size: int = MIB) -> Session:
    done = hf.run(world.probe("quiet", "fill", size))
    assert done.log_bytes == size
    return done


@pytest.mark.covers("LOG-04")
def test_log_04_a_home_over_its_quota_loses_its_oldest_finished_sessions_and_no_live_one(
    world: World, tight: Holdfast, bystander: Bystanders, beside: Beside
) -> None:
    live = tight.start(world.probe("quiet", "fill", MIB, "say", "", "say", "end", "cat"), stdin="open")
    assert live.wait(match="^end$", timeout=30).reason == "match"
    finished = [filled(tight, world) for _ in range(4)]
    small = tight.run("echo small")
    plan = tight.collect(dry_run=True)
    found = tight.collect()
    assert found.removed == plan.removed == [session.id for session in finished[:3]]
    assert found.freed_bytes >= 3 * MIB
    for gone in finished[:3]:
        with pytest.raises(Removed) as refusal:
            gone.read()
        is_typed(refusal.value)
    kept = {session.id for session in tight.sessions(all=True)}
    assert kept == {live.id, finished[3].id, small.id, beside.session.id}
    # The live one does not notice: not one byte of it is gone, and it goes on.
    live.send("more\n")
    assert live.wait(match="^more$", timeout=30).reason == "match"
    assert live.refresh().log_bytes == live.ends["stdout"] == MIB + len("\nend\nmore\n")
    promised(world, live, bystander=bystander, beside=beside)
    # Live ones alone above the quota: nothing can go, and that is said.
    more = [
        tight.start(world.probe("quiet", "fill", 2 * MIB, "say", "", "say", "end", "cat"), stdin="open")
        for _ in range(2)
    ]
    for session in more:
        assert session.wait(match="^end$", timeout=30).reason == "match"
    again = tight.collect()
    assert again.removed == [finished[3].id, small.id]
    assert any("running sessions hold" in text for text in again.skipped)
    assert all(stopped.done for stopped in tight.stop_all([live.id, *(session.id for session in more)], grace=0))
    home_is_usable(tight)


@pytest.mark.covers("LOG-04")
def test_log_04_hosts_collect_on_their_own_when_it_is_time(
    world: World, bystander: Bystanders, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_LOG_HOME_CAP", "3200K")
    monkeypatch.setenv("HOLDFAST_LOG_FREE_FLOOR", "0")
    monkeypatch.setenv("HOLDFAST_COLLECT_INTERVAL", "0s")
    hf = world.open()
    made = [filled(hf, world) for _ in range(6)]
    hf.run("true")
    kept = {session.id for session in hf.sessions(all=True)}
    assert {session.id for session in made} & kept == {session.id for session in made[-3:]}
    promised(world, made[-1], bystander=bystander, beside=beside)


@pytest.mark.covers("LOG-04")
def test_log_04_below_the_free_space_floor_finished_sessions_go_and_a_live_one_keeps_its_tail(
    world: World, bystander: Bystanders, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No disk has so much: everybody is below this floor.
    monkeypatch.setenv("HOLDFAST_LOG_FREE_FLOOR", str(1 << 52))
    monkeypatch.setenv("HOLDFAST_COLLECT_ENABLED", "false")
    monkeypatch.setenv("HOLDFAST_LOG_SEGMENT", "1MiB")
    hf = world.open()
    finished = filled(hf, world)
    size = 20 * MIB
    live = hf.start(["sh", "-c", f"{_quoted(numbered_stream.argv(size))}; echo; echo end; exec cat"], stdin="open")
    assert live.wait(match="^end$", timeout=30).reason == "match"
    found = hf.collect()
    assert found.removed == [finished.id]
    now = live.refresh()
    assert now.ends["stdout"] == size + len("\nend\n")
    assert now.dropped_before["stdout"] > 0
    assert now.log_bytes == now.ends["stdout"] - now.dropped_before["stdout"]
    assert any("below the floor" in text for text in now.metadata["warnings"])
    assert now.tail(1) == "end\n"
    kept = b"".join(now.raw("stdout"))
    assert kept == (numbered_stream.at(now.dropped_before["stdout"], size - now.dropped_before["stdout"]) + b"\nend\n")
    promised(world, live, bystander=bystander, beside=beside)
    assert live.stop(grace=0).done


def _quoted(words: list[str]) -> str:
    import shlex

    return shlex.join(words)


@pytest.mark.covers("LOG-04")
def test_log_04_a_reader_whose_place_was_dropped_gets_the_first_kept_offset(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    gate = world.gate()
    command = [
        "sh",
        "-c",
        (
            f"{_quoted(numbered_stream.argv(MIB))}; head -c1 {gate} >/dev/null; "
            f"exec {_quoted(numbered_stream.argv(6 * MIB))}"
        ),
    ]
    hf = world.open()
    session = hf.start(command, log_cap=2 * MIB)
    until(lambda: session.refresh().ends["stdout"] == MIB, what="the first mebibyte")
    reader = session.read(limit=1000)
    cursor, followed = reader.cursor, session.follow()
    first = next(followed)
    gate.release()
    assert session.wait(exit=True, timeout=30).reason == "exit"
    dropped = session.refresh().dropped_before["stdout"]
    assert dropped > 4 * MIB
    page = session.read(cursor, limit=1000)
    assert page.dropped_before["stdout"] == dropped
    assert [(gap.start, gap.stop, gap.reason) for gap in page.gaps] == [(len(reader.data), dropped, "dropped")]
    assert page.chunks[0][1] == dropped
    assert page.data == numbered_stream.at(dropped - MIB, len(page.data))
    with pytest.raises(OutputDropped) as refusal:
        hf._core.log(session.id).read(cursor, strict=True)
    is_typed(refusal.value)
    assert refusal.value.dropped_before == dropped
    with pytest.raises(OffsetAhead):
        session.read("stdout:99999999999")
    # One who was in the middle all the while gets whole pages with the hole named, never other bytes.
    at = len(first.data)
    for page in followed:
        for gap in page.gaps:
            assert (gap.start, gap.reason) == (at, "dropped")
            at = gap.stop
        for _, offset, data in page.chunks:
            assert offset == at
            assert data == (
                numbered_stream.at(at, len(data)) if at + len(data) <= MIB else numbered_stream.at(at - MIB, len(data))
            )
            at += len(data)
    assert at == 7 * MIB
    promised(world, session, bystander=bystander, beside=beside)
