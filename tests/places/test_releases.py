"""A place whose far end, or whose deputy here, is of another release."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from support.places import deputies, kill_deputies

if TYPE_CHECKING:
    from support.places import Away
    from support.releases import Change
    from support.world import World


@pytest.mark.covers("UPG-01")
@pytest.mark.own_launcher
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["over_ssh", "in_podman"])
def test_upg_01_a_session_in_a_place_is_used_by_another_release_and_goes_on_with_its_deputy(
    request: pytest.FixtureRequest, world: World, change: Change, kind: str
) -> None:
    before, after = change
    away: Away = request.getfixturevalue(kind)
    id = before.says("start", "--place", away.place, "--stdin", "open", "--", "cat")
    pid = json.loads(before.says("status", id, "--json"))["pid"]
    for turn, side in enumerate((after, before, after)):
        # In the second turn the deputy is of the release that started the session, in the third of the other one.
        side.hold("send", "--newline", id, f"word {turn}")
        side.hold("wait", id, "--match", f"^word {turn}$", "--timeout", "30s")
        assert json.loads(side.says("status", id, "--json"))["pid"] == pid
        if turn:
            kill_deputies(world)
            side.hold("ls")
    assert after.says("logs", id).split("\n") == [f"word {turn}" for turn in range(3)]
    after.hold("stop", id, "--grace", "0")
    for side in (before, after):
        seen = json.loads(side.says("status", id, "--json"))
        assert (seen["state"], seen["status"]) == ("exited", "killed")
    assert not deputies(world) or not json.loads(after.says("ls", "--json"))
