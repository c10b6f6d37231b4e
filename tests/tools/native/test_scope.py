"""An agent sees its owner's sessions; others do not exist for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.waiting import until

if TYPE_CHECKING:
    from support.agents import Agents
    from support.world import World


@pytest.mark.covers("native:17")
def test_what_belongs_to_another_does_not_exist(direct: Agents, world: World) -> None:
    a, b = direct("native", owner="a"), direct("native", owner="b")
    id = b.call("run", command=world.probe("forever"), name="web", key="dev", wait_s=0.1).data["id"]
    theirs = b.run(b.hf.get(id))
    missing = a.call("read", id="nothing-like-it").text
    for reference in (id, id[:5], "web", theirs.pid, str(theirs.pid), "last"):
        for tool, options in (
            ("read", {"id": reference}),
            ("wait", {"ids": [reference]}),
            ("send", {"id": reference, "text": "x"}),
            ("screen", {"id": reference}),
            ("stop", {"ids": [reference]}),
        ):
            answer = a.call(tool, **options)
            assert answer.error
            assert answer.text == missing.replace("nothing-like-it", str(reference))
            assert answer.data["error"]["code"] == "not-found"
    assert a.call("list", all=True).data["sessions"] == []
    assert a.call("stop", all=True).data == {"sessions": []}
    # Neither is its name told of, nor can it be replaced.
    for replace in (False, True):
        taken = a.call("run", command="true", name="web", replace=replace)
        assert taken.error
        assert id not in taken.text
        assert id not in str(taken.data)
    # A key is everybody's own.
    mine = a.call("run", command=world.probe("forever"), key="dev", wait_s=0.1)
    assert not mine.error
    assert mine.data["id"] != id
    a.call("stop", all=True, grace_s=0)
    assert b.run(b.hf.get(id)).state == "running"
    theirs.pid and b.run(theirs.kill())
    until(lambda: b.call("signals").data["signals"])
    assert a.call("signals").data["signals"] == []


@pytest.mark.covers("native:17")
def test_no_owner_can_be_spelled_so_that_its_keys_are_those_of_another(direct: Agents, world: World) -> None:
    a, b = direct("native", owner="a"), direct("native", owner="a:b")
    theirs = b.call("run", command=world.probe("forever"), key="c", wait_s=0)
    mine = a.call("run", command=world.probe("forever"), key="b:c", wait_s=0)
    assert not mine.error
    assert mine.data["id"] != theirs.data["id"]
    other = a.call("run", command="true", key="b:c")
    assert other.error
    assert mine.data["id"] in other.text
    for agent in (a, b):
        agent.call("stop", all=True, grace_s=0)
