"""An index that is lost while many sessions are retained: one host reads the directories, the others wait for it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from support.own_time import QuietTime
from support.points import Points
from support.scale import scaled
from support.waiting import BOUND_S, TooLate
from support.world import World

RETAINED = scaled(300, 1000)
HOSTS = 10
# What a command may take longer than alone.
LONGER_S = 3.0
PATIENT_S = BOUND_S


def retain(world: World, count: int) -> list[str]:
    """So many ended sessions: one real run, and copies of its directory under other ids."""
    with world.open() as hf:
        made = hf.run("echo hello; exit 3", owner="agent-1", wait=BOUND_S)
    ids = [f"b{n:08d}" for n in range(count)]
    for id in ids:
        copy = shutil.copytree(world.session(made.id), world.session(id))
        for file in copy.iterdir():
            _rename(file, made.id, id)
    return ids


def _rename(file: Path, old: str, new: str) -> None:
    data = file.read_bytes()
    if old.encode() not in data:
        return
    data = data.replace(old.encode(), new.encode())
    if file.suffix == ".json":
        # A record that was edited carries no check sum.
        record = json.loads(data)
        del record["check"]
        data = json.dumps(record).encode() + b"\n"
    file.write_bytes(data)


def lose_index(world: World) -> None:
    for file in world.home.glob("index.db*"):
        file.unlink(missing_ok=True)


class Command:
    """One `hold` beside others, and how long it took."""

    def __init__(self, world: World, *args: str) -> None:
        self._passed = QuietTime()
        self._process = subprocess.Popen(
            world.hold_argv(*args), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.args = args

    def end(self) -> float:
        self.said, self.errors = self._process.communicate(timeout=PATIENT_S)
        assert self._process.returncode == 0, self.errors
        return self._passed.seconds()


def check(command: Command, ids: list[str]) -> None:
    assert "Traceback" not in command.errors
    if command.args[0] == "ls":
        assert {each["id"] for each in json.loads(command.said)} >= set(ids)
    elif command.args[0] == "status":
        assert json.loads(command.said)["exit"]["code"] == 3


@pytest.mark.slow
@pytest.mark.covers("found:49")
def test_ten_hosts_at_a_lost_index_take_little_longer_than_one(world: World, points: Points) -> None:
    ids = retain(world, RETAINED)
    lose_index(world)
    alone_s = Command(world, "ls", "-a", "--json").end()
    wanted = [("ls", "-a", "--json"), ("status", ids[0], "--json"), ("signals", "--json")]

    def at_once() -> float:
        commands = [Command(world, *wanted[n % len(wanted)]) for n in range(HOSTS)]
        took_s = max(command.end() for command in commands)
        for command in commands:
            check(command, ids)
        return took_s

    # Nine wait until one has read it in, and then all share the processors as they do with an index.
    with_index_s = at_once()
    lose_index(world)
    points.set("index.rebuild=notify")
    began = time.monotonic()
    took_s = at_once()
    # On a busy machine one may take longer to read it in than the others wait for that.
    if time.monotonic() - began < 2.5:
        points.wait("index.rebuild", BOUND_S)
        with pytest.raises(TooLate):
            points.wait("index.rebuild", 0)
    assert took_s <= alone_s + with_index_s + LONGER_S


@pytest.mark.slow
@pytest.mark.covers("found:49")
def test_a_host_that_is_held_up_while_it_reads_a_lost_index_holds_up_no_other(world: World, points: Points) -> None:
    ids = retain(world, RETAINED)
    lose_index(world)
    alone_s = Command(world, "ls", "-a", "--json").end()
    lose_index(world)
    points.set("index.rebuild=pause")
    stuck = Command(world, "ls", "-a", "--json")
    hit = points.wait("index.rebuild", PATIENT_S)
    others = [Command(world, "ls", "-a", "--json") for _ in range(2)]
    took = [command.end() for command in others]
    hit.release()
    stuck.end()
    for command in (*others, stuck):
        check(command, ids)
    assert max(took) <= 2 * alone_s + LONGER_S
