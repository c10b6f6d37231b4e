"""What a reader keeps about sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast.errors import NotFound

if TYPE_CHECKING:
    from support.world import World


def test_what_is_kept_is_there_for_the_next_host_and_for_no_other_reader(world: World) -> None:
    world.open().kept("native:a").put("b00000001", "shown", "stdout:7")
    kept = world.open().kept("native:a")
    assert kept.get("b00000001", "shown") == "stdout:7"
    assert kept.all("shown") == {"b00000001": "stdout:7"}
    assert world.open().kept("native:b").all("shown") == {}
    kept.put("b00000001", "shown", None)
    assert world.open().kept("native:a").get("b00000001", "shown") is None


def test_what_cannot_be_written_is_kept_by_this_host(world: World) -> None:
    hf = world.open()
    hf.sessions()
    index = world.home / "index.db"
    for path in world.home.glob("index.db*"):
        path.unlink(missing_ok=True)
    index.mkdir()
    kept = hf.kept("native:a")
    kept.put("b00000001", "shown", 7)
    assert kept.get("b00000001", "shown") == 7
    assert kept.all("shown") == {"b00000001": 7}


def test_with_the_session_goes_what_was_kept_about_it(world: World) -> None:
    hf = world.open()
    session = hf.run(["true"])
    hf.kept("native:a").put(session.id, "shown", "stdout:0")
    session.remove()
    assert hf.kept("native:a").all("shown") == {}


@pytest.mark.covers("native:17")
def test_for_an_owner_the_sessions_of_others_do_not_exist(world: World) -> None:
    hf = world.open()
    mine = hf.start(world.probe("forever"), owner="a", name="mine")
    theirs = hf.start(world.probe("forever"), owner="b", name="theirs")
    assert hf.get("last", owner="a").id == mine.id
    assert hf.get("mine", owner="a").id == mine.id
    assert hf.get(mine.pid, owner="a").id == mine.id
    for ref in (theirs.id, theirs.id[:6], "theirs", theirs.pid):
        with pytest.raises(NotFound):
            hf.get(ref, owner="a")
    with pytest.raises(NotFound):
        hf.get("last", owner="nobody")
    hf.stop_all([mine.id, theirs.id])
