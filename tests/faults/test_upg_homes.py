"""UPG-02: homes that an earlier release wrote, and fields that a later one added."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, errors
from holdfast.sessions import start_request
from support import processes
from support.bystander import Bystanders
from support.promised import Beside, promised
from support.releases import RELEASES
from support.waiting import until
from support.world import World

LATER = {"later": {"field": ["of", "another", "release"], "number": 7}}


@pytest.fixture(params=RELEASES, ids=lambda path: path.name)
def frozen(request: pytest.FixtureRequest, world: World) -> Holdfast:
    """A copy of a frozen home, with the modes it had: a checkout forgets them."""
    shutil.copytree(request.param / "home", world.home)
    for directory, _, files in os.walk(world.home):
        Path(directory).chmod(0o700)
        for name in files:
            Path(directory, name).chmod(0o600)
    return world.open()


def fields(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(path.read_text())
    return record


@pytest.mark.covers("UPG-02")
def test_upg_02_every_session_of_an_old_home_is_listed_as_what_it_is(frozen: Holdfast) -> None:
    seen = {session.name: session for session in frozen.sessions(all=True)}
    outcomes = {
        name: (session.status, session.exit and (session.exit.cause, session.exit.code, session.exit.signal))
        for name, session in seen.items()
    }
    # The first release was frozen without these two.
    later = {"terminal": ("failed", ("exit", 4, None)), "live": ("failed", ("lost", None, None))}
    assert outcomes == ({} if "terminal" not in seen else later) | {
        "both": ("completed", ("exit", 0, None)),
        "failed": ("failed", ("exit", 3, None)),
        "merged": ("completed", ("exit", 0, None)),
        "long": ("completed", ("exit", 0, None)),
        "stopped": ("killed", ("stop", None, "SIGKILL")),
        "late": ("killed", ("overall_timeout", None, "SIGTERM")),
        "unspawned": ("failed", ("spawn_error", None, None)),
        "lost-renamed": ("failed", ("lost", None, None)),
    }
    assert (seen["both"].owner, seen["both"].labels) == ("agent-7", {"tier": "web"})
    assert seen["lost-renamed"].description == "was called lost"
    assert {session.name for session in frozen.sessions(all=True, owner="agent-7")} - {"live"} == {"both"}


@pytest.mark.covers("UPG-02")
def test_upg_02_every_byte_of_an_old_home_can_be_read_and_searched(frozen: Holdfast) -> None:
    assert frozen.get("both").text() == "out\nerr\n"
    assert b"".join(frozen.get("failed").raw("stdout")) == b"h\xc3\xa9llo\n\x1b[31mred\x1b[0m\n"
    assert frozen.get("failed").text() == "h\u00e9llo\nred\n"
    assert frozen.get("merged").text() == "merged\ntoo\n"
    assert frozen.get("long").text() == "".join(f"{n}\n" for n in range(1, 2001))
    assert frozen.get("long").tail(2) == "1999\n2000\n"
    assert frozen.get("lost-renamed").text() == "last words\n"
    if any(session.name == "terminal" for session in frozen.sessions(all=True)):
        assert frozen.get("terminal").screen().text.strip() == "bold"
        assert frozen.get("live").text() == "still here\n"
    (hit,) = frozen.get("long").search("^1234$")
    assert (hit.line, hit.text) == (1234, "1234")


@pytest.mark.covers("UPG-02")
def test_upg_02_index_doctor_and_collection_take_an_old_home_and_leave_its_records_alone(
    frozen: Holdfast, world: World
) -> None:
    before = {path: path.read_bytes() for path in world.home.rglob("*.json")}
    names = {session.name for session in frozen.sessions(all=True)}
    assert [finding for finding in frozen.doctor(rebuild=True) if finding.level == "problem"] == []
    for path in world.home.glob("index.db*"):
        path.unlink(missing_ok=True)
    assert {session.name for session in world.open().sessions(all=True)} == names
    assert {path: path.read_bytes() for path in world.home.rglob("*.json")} == before
    for path, content in before.items():
        assert json.loads(content)["later"] == LATER["later"], path
    assert set(frozen.collect(dry_run=True, all=True).removed) == {path.parent.name for path in before}
    again = frozen.get("failed").restart()
    until(lambda: again.refresh().state == "exited", watch=world.session(again.id), what="the end")
    assert again.text() == frozen.get("failed").text()
    frozen.collect(all=True)
    assert frozen.sessions(all=True) == []


def put(path: Path, **more: Any) -> None:
    """As another release would write it: complete, in one step."""
    new = path.with_suffix(".other")
    new.write_text(json.dumps({**fields(path), **more}))
    new.rename(path)


@pytest.mark.covers("UPG-02")
def test_upg_02_later_fields_are_still_there_after_a_rewrite(
    world: World, monkeypatch: pytest.MonkeyPatch, bystander: Bystanders, beside: Beside
) -> None:
    build = start_request.build

    def later_build(*args: Any, **options: Any) -> start_request.StartRequest:
        asked = build(*args, **options)
        asked.spec.update(LATER)
        return asked

    monkeypatch.setattr(start_request, "build", later_build)
    gate = world.gate()
    session = world.open().start(world.probe("fork", "{", "forever", "}", "await", gate, "exit", 0))
    assert session.wait(match="ready", timeout=30).reason == "match"
    directory = world.session(session.id)
    assert fields(directory / "spec.json")["later"] == LATER["later"]
    put(directory / "state.json", **LATER)
    session.update(name="web", labels={"a": "b"})
    state = fields(directory / "state.json")
    assert (state["later"], state["changed"]) == (LATER["later"], {"name": "web", "labels": {"a": "b"}})
    gate.release()
    assert session.wait(exit=True, timeout=30).reason == "exit"
    (survivor,) = fields(directory / "exit.json")["exit"]["survivors"]
    put(directory / "exit.json", **LATER)
    row = processes.look(survivor["pid"])
    assert row is not None
    processes.send(row, signal.SIGKILL)
    until(lambda: fields(directory / "exit.json")["exit"]["survivors"] == [], watch=directory, what="the rewrite")
    assert fields(directory / "exit.json")["later"] == LATER["later"]
    assert fields(directory / "spec.json")["later"] == LATER["later"]
    promised(world, session, bystander=bystander, beside=beside)


@pytest.mark.covers("UPG-02")
def test_upg_02_a_session_of_a_later_kind_is_still_shown(frozen: Holdfast, world: World) -> None:
    directory = world.session(frozen.get("both").id)
    put(directory / "spec.json", v=2, kind="hologram", stdin="telepathy")
    put(directory / "exit.json", v=2)
    seen = world.open().get("both")
    assert (seen.kind, seen.status, seen.text()) == ("hologram", "completed", "out\nerr\n")
    with pytest.raises(errors.SessionEnded):
        seen.send("x")
