"""LOG-08: many hosts start, read, remove and collect at once. No live session is hurt, each read is whole or typed."""

from __future__ import annotations

import json
import sqlite3
from typing import Any

import pytest

from support.bystander import Bystanders
from support.program import Program
from support.promised import Beside, home_is_usable, promised
from support.scale import scaled
from support.world import World

HOSTS = scaled(12, 32)
STEPS = scaled(10, 14)

# One host of the crowd: a fixed number of steps, chosen by its own seed. Whatever it is told must be a typed error of
# the few that can honestly happen, and whatever it reads must be whole.
HOST = """
import json, random, sys, holdfast

seed, steps = int(sys.argv[1]), int(sys.argv[2])
chance = random.Random(seed)
hf = holdfast.open()
told, kept = {}, []
EXPECTED = {"not-found", "removed", "still-running"}

def whole(session):
    data = b"".join(session.raw("stdout"))
    printed = session.id.encode() + b"\\n" + b"".join(b"%d\\n" % n for n in range(1, 401)) + b"end\\n"
    assert (printed + b"still here\\n").startswith(data), (session.id, data[:40], data[-40:])
    assert session.state != "exited" or data.startswith(printed), (session.id, len(data))

def start():
    command = "echo $HOLDFAST_SESSION_ID; seq 1 400; echo end"
    if chance.random() < 0.25 and len(kept) < 2:
        kept.append(hf.start(command + "; exec cat", stdin="open", owner=f"host-{seed}").id)
    else:
        whole(hf.run(command))

def some():
    listed = hf.sessions(all=True)
    return chance.choice(listed) if listed else None

def read():
    session = some()
    if session is not None and session.owner != "beside":
        whole(session)

def follow():
    session = some()
    if session is not None and session.state == "exited":
        pages = list(session.follow())
        assert sum(len(page.data) for page in pages) in (sum(session.ends.values()), 0)

def remove():
    session = some()
    if session is not None:
        session.remove()

def collect():
    hf.collect()

def find():
    session = some()
    if session is not None:
        assert hf.get(session.id).id == session.id

for _ in range(steps):
    step = chance.choice([start, start, read, read, follow, remove, collect, find])
    try:
        step()
        code = step.__name__
    except holdfast.HoldfastError as problem:
        assert problem.code in EXPECTED, (step.__name__, problem.code, str(problem))
        code = problem.code
    told[code] = told.get(code, 0) + 1
# What this host keeps has not been touched by anybody.
for id in kept:
    session = hf.get(id)
    assert session.state == "running", (id, session.state)
    session.send("still here\\n")
    woke = session.wait(match="^still here$", timeout=30)
    assert woke.reason == "match", woke
print(json.dumps({"told": told, "kept": kept}), flush=True)
"""


@pytest.mark.covers("LOG-08")
@pytest.mark.slow
def test_log_08_collection_against_use_hurts_no_live_session_and_leaves_directories_and_index_alike(
    world: World, bystander: Bystanders, beside: Beside, monkeypatch: pytest.MonkeyPatch
) -> None:
    # So tight that every collection finds something to remove.
    monkeypatch.setenv("HOLDFAST_LOG_HOME_CAP", "16K")
    monkeypatch.setenv("HOLDFAST_LOG_FREE_FLOOR", "0")
    monkeypatch.setenv("HOLDFAST_COLLECT_INTERVAL", "0s")
    crowd = [world.host(HOST, seed, STEPS) for seed in range(HOSTS)]
    told: dict[str, int] = {}
    kept: list[str] = []
    for host in crowd:
        found = _result(host)
        kept += found["kept"]
        for step, count in found["told"].items():
            told[step] = told.get(step, 0) + count
    assert sum(told.values()) == HOSTS * STEPS
    assert told["start"] > HOSTS // 2
    assert kept
    hf = world.open()
    live = {session.id for session in hf.sessions()}
    assert live == {beside.session.id, *kept}
    listed = {session.id for session in hf.sessions(all=True)}
    directories = {path.name for path in (world.home / "sessions").iterdir()}
    assert listed == directories
    index = sqlite3.connect(world.home / "index.db")
    try:
        assert {id for (id,) in index.execute("SELECT id FROM sessions")} == directories
    finally:
        index.close()
    promised(world, hf.get(kept[0]), bystander=bystander, beside=beside)
    assert all(stopped.done for stopped in hf.stop_all(kept, grace=0))
    hf.collect()
    home_is_usable(hf)


def _result(host: Program) -> dict[str, Any]:
    line = host.line(120)
    assert line, host.errors()
    found: dict[str, Any] = json.loads(line)
    assert host.wait(30) == 0, host.errors()
    return found
