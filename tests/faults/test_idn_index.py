"""IDN-07 and IDN-08: directories are the truth, whatever became of the index."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast import errors
from support import processes
from support.bystander import Bystanders
from support.faults import sweep_up
from support.own_time import QuietTime
from support.points import Points
from support.promised import Beside, home_is_usable, left_alone, promised
from support.waiting import until, wait_gone
from support.world import World


def delete(index: Path) -> None:
    for path in index.parent.glob("index.db*"):
        path.unlink(missing_ok=True)


def delete_the_file_alone(index: Path) -> None:
    index.unlink()


def delete_the_journal(index: Path) -> None:
    for path in index.parent.glob("index.db-*"):
        path.unlink()


def truncate(index: Path) -> None:
    os.truncate(index, 5000)


def empty(index: Path) -> None:
    os.truncate(index, 0)


def garbage(index: Path) -> None:
    index.write_bytes(os.urandom(8192))


def garbage_in_the_journal(index: Path) -> None:
    Path(f"{index}-wal").write_bytes(os.urandom(8192))


def swap(index: Path) -> None:
    """Another home's index in its place, complete and wrong."""
    fresh = index.with_name("swapped.db")
    with sqlite3.connect(index) as source, sqlite3.connect(fresh) as target:
        source.backup(target)
    source.close()
    target.execute("UPDATE sessions SET id = 'b0000000' || rowid, final = 1, record = '{}'")
    target.commit()
    target.close()
    fresh.rename(index)


def a_directory(index: Path) -> None:
    delete(index)
    index.mkdir()


WOUNDS = [
    delete,
    delete_the_file_alone,
    delete_the_journal,
    truncate,
    empty,
    garbage,
    garbage_in_the_journal,
    swap,
    a_directory,
]


@pytest.mark.covers("IDN-07")
@pytest.mark.parametrize("hurt", WOUNDS, ids=lambda wound: wound.__name__)
def test_idn_07_whatever_happens_to_the_index_every_session_is_found_and_every_runner_ends_well(
    world: World, bystander: Bystanders, beside: Beside, hurt: Callable[[Path], None]
) -> None:
    hf = world.open()
    done = hf.run("echo done; exit 3", name="old")
    gate = world.gate()
    live = hf.start(world.probe("await", gate, "exit", 5), name="live")
    every = {done.id, live.id, beside.session.id}
    assert {session.id for session in hf.sessions(all=True)} == every
    hurt(world.home / "index.db")
    # The host that had it open, one that comes later, and one after what was damaged was replaced.
    for host in (hf, world.open(), world.open()):
        assert {session.id for session in host.sessions(all=True)} == every
        assert {session.id for session in host.sessions()} == every - {done.id}
        assert host.get("old").id == done.id
        assert host.get("live").id == live.id
        assert host.get(done.id[:6]).text() == "done\n"
    gate.release()
    assert hf.get(live.id).wait(exit=True, timeout=30).reason == "exit"
    ended = promised(world, hf.get(live.id), bystander=bystander, beside=beside)
    assert ended.exit is not None
    assert ended.exit.code == 5
    if hurt is not a_directory:
        hf.doctor(rebuild=True)
        told = [finding for finding in world.open().doctor() if finding.check == "index"]
        assert [finding.level for finding in told] == ["ok"], told
    assert {session.id for session in hf.sessions(all=True)} == every
    home_is_usable(hf)


@pytest.mark.covers("IDN-07")
def test_idn_07_a_locked_index_costs_a_bounded_wait_and_is_reported(world: World, bystander: Bystanders) -> None:
    with holdfast.open() as hf:
        done = hf.run("exit 3")
    holder = sqlite3.connect(world.home / "index.db", isolation_level=None)
    try:
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
        holder.execute("BEGIN EXCLUSIVE")
        passed = QuietTime()
        later = world.open()
        assert [session.id for session in later.sessions(all=True)] == [done.id]
        assert later.run("exit 4").exit is not None
        assert passed.seconds() < 5.0
        assert later.trouble is not None
        told = [finding for finding in later.doctor() if finding.check == "index"]
        assert [finding.level for finding in told] == ["warning"]
        assert told[0].fix
    finally:
        holder.close()
    assert [session.status for session in later.sessions(all=True)] == ["failed", "failed"]
    # For a moment the file is left alone; then the trouble is over, and forgotten.
    until(lambda: later.sessions(all=True) and later.trouble is None, what="the end of the trouble")
    left_alone(bystander)


@pytest.mark.covers("IDN-07")
def test_idn_07_an_index_of_a_later_release_is_left_as_it_is(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    done = world.open().run("exit 3")
    path = world.home / "index.db"
    with sqlite3.connect(path) as database:
        database.execute("UPDATE meta SET value = '999' WHERE key = 'schema'")
        database.execute("CREATE TABLE later (thing)")
        database.execute("INSERT INTO later VALUES ('kept')")
    database.close()
    later = world.open()
    assert {session.id for session in later.sessions(all=True)} == {done.id, beside.session.id}
    assert later.run("exit 4").exit is not None
    later.doctor(rebuild=True)
    assert later.trouble is not None
    assert "later release" in later.trouble
    with sqlite3.connect(path) as database:
        assert database.execute("SELECT thing FROM later").fetchall() == [("kept",)]
        assert database.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == ("999",)
    database.close()
    beside.unharmed()
    left_alone(bystander)


RUN_AND_DIE = """
import os, sys, holdfast
from holdfast.sessions import core
def die(self, seen):
    os.kill(os.getpid(), 9)
core.Core.note = die
holdfast.open().run(["sh", "-c", "echo told; exit 6"])
"""


@pytest.mark.covers("IDN-08")
def test_idn_08_a_host_killed_between_exit_record_and_row_loses_nothing(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    watcher = world.open()
    assert [session.id for session in watcher.sessions(all=True)] == [beside.session.id]
    host = world.host(RUN_AND_DIE)
    assert host.wait() == -9
    sessions = world.home / "sessions"
    (name,) = (path.name for path in sessions.iterdir() if path.name != beside.session.id)
    until((sessions / name / "exit.json").exists, watch=sessions / name, what="the exit record")
    for hf in (watcher, world.open()):
        seen = {session.id: session for session in hf.sessions(all=True)}
        assert set(seen) == {name, beside.session.id}
        ended = seen[name].exit
        assert ended is not None
        assert ended.code == 6
    promised(world, watcher.get(name), bystander=bystander, beside=beside)


@pytest.mark.covers("IDN-08")
def test_idn_08_rows_that_lie_are_overruled_by_the_directories(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    done = hf.run("exit 3", name="web")
    gate = world.gate()
    live = hf.start(world.probe("await", gate, "exit", 5))
    hf.sessions(all=True)
    with sqlite3.connect(world.home / "index.db") as database:
        row = database.execute("SELECT * FROM sessions WHERE id = ?", (done.id,)).fetchone()
        marks = ", ".join("?" * len(row))
        database.execute(f"INSERT INTO sessions VALUES ({marks})", ("b0ghost00", *row[1:]))
        database.execute('UPDATE sessions SET record = \'{"id":"x"}\' WHERE id = ?', (done.id,))
        database.execute("DELETE FROM sessions WHERE id = ?", (live.id,))
    database.close()
    # What a look noticed of the directory before no longer holds, as after any start or removal.
    os.utime(world.home / "sessions")
    for host in (hf, world.open()):
        seen = {session.id: session for session in host.sessions(all=True)}
        assert set(seen) == {done.id, live.id, beside.session.id}
        assert seen[live.id].state == "running"
        assert seen[done.id].exit == done.exit
        with pytest.raises(errors.NotFound):
            host.get("b0ghost00")
    gate.release()
    live.wait(exit=True, timeout=30)
    promised(world, live, bystander=bystander, beside=beside)


@pytest.mark.covers("IDN-08")
def test_idn_08_what_was_removed_never_comes_back(world: World, bystander: Bystanders, beside: Beside) -> None:
    hf = world.open()
    kept, removed, deleted = (hf.run(f"exit {code}", name=f"n{code}") for code in (1, 2, 3))
    removed.remove()
    shutil.rmtree(world.session(deleted.id))
    for host in (hf, world.open()):
        with pytest.raises(errors.Removed):
            host.get(removed.id)
        for ref in (deleted.id, "n2", "n3"):
            with pytest.raises(errors.NotFound):
                host.get(ref)
        assert {session.id for session in host.sessions(all=True)} == {kept.id, beside.session.id}
        host.doctor(rebuild=True)
        assert {session.id for session in host.sessions(all=True)} == {kept.id, beside.session.id}
    delete(world.home / "index.db")
    assert {session.id for session in hf.sessions(all=True)} == {kept.id, beside.session.id}
    beside.unharmed()
    left_alone(bystander)


@pytest.mark.covers("IDN-08")
def test_idn_08_a_runner_killed_after_its_exit_record_changes_nothing(
    world: World, points: Points, bystander: Bystanders, beside: Beside
) -> None:
    points.set("runner.exit_written=kill")
    points.off("launcher")
    hf = world.open()
    session = hf.start("echo told; exit 6")
    wait_gone(session.runner_pid or 0)
    points.clear()
    assert json.loads((world.session(session.id) / "exit.json").read_text())["exit"]["code"] == 6
    seen = {each.id: each for each in world.open().sessions(all=True)}[session.id]
    assert seen.exit is not None
    assert (seen.state, seen.exit.code) == ("exited", 6)
    assert processes.is_gone(session.pid or 0)
    promised(world, session, bystander=bystander, beside=beside)
    sweep_up(world, hf)
