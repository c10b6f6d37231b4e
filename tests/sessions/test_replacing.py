"""`replace` between owners, and what a start that failed leaves behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast import errors

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.world import World


def test_an_owner_does_not_replace_what_belongs_to_another(hf: Holdfast, world: World) -> None:
    theirs = hf.start(world.probe("forever"), name="web", owner="b")
    with pytest.raises(errors.NameTaken):
        hf.start(world.probe("forever"), name="web", owner="a", replace=True)
    assert theirs.refresh().state == "running"
    newer = hf.start(world.probe("forever"), name="web", owner="b", replace=True)
    exit = theirs.refresh().exit
    assert exit is not None
    assert (exit.cause, exit.by) == ("stop", "b")
    # Who has no owner is no agent: it may.
    newest = hf.start(world.probe("forever"), name="web", replace=True)
    assert newer.refresh().status == "killed"
    newest.stop(grace=0)


def test_a_start_that_failed_reports_which_session_has_its_record(hf: Holdfast) -> None:
    with pytest.raises(errors.SpawnError) as caught:
        hf.start(["/nope/nothing"], owner="a")
    exit = hf.get(caught.value.facts["id"]).exit
    assert exit is not None
    assert exit.cause == "spawn_error"


def test_a_refused_pattern_is_quoted_as_it_was_given(hf: Holdfast) -> None:
    done = hf.run("true")
    with pytest.raises(errors.BadArgument) as caught:
        done.search("(a")
    assert "(?m)" not in str(caught.value)
