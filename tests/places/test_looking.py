"""What hosts here make of sessions in other places: told why they cannot be reached, listed in any case, mended."""

from __future__ import annotations

import json
import os
import shlex
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import BadArgument, Unreachable
from support.places import kill_deputies
from support.waiting import until

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.places import Away
    from support.ssh_hosts import SshHost
    from support.world import World


@pytest.fixture
def hf(remote: Away, world: World) -> Holdfast:
    return world.open()


def test_an_unreachable_place_is_reported_with_the_reason(hf: Holdfast, remote: Away, world: World) -> None:
    session = hf.start(remote.probe("cat"), place=remote.place, stdin="open")
    kill_deputies(world)
    remote.cable.down()
    with pytest.raises(Unreachable, match=rf"{remote.place} cannot be reached: .*{remote.refusal}"):
        session.send("x")
    assert "cannot be reached" in session.refresh().metadata["evidence"]
    remote.cable.mend()
    kill_deputies(world)
    session.send("y\n")
    assert session.wait(match="y", timeout=30).reason == "match"
    session.stop(grace=0)


def test_a_way_that_only_a_later_release_knows_breaks_no_listing(hf: Holdfast, remote: Away, world: World) -> None:
    session = hf.start(remote.probe("forever"), place=remote.place)
    beside = hf.start(world.probe("forever"))
    kill_deputies(world)
    path = world.session(session.id) / "spec.json"
    spec = path.read_text()
    path.write_text(json.dumps({**json.loads(spec), "place": "orbit:n1"}))
    assert {each.id: each.state for each in hf.sessions()} == {session.id: "unreachable", beside.id: "running"}
    path.write_text(spec)
    assert hf.get(session.id).state == "running"
    session.stop(grace=0)
    beside.stop(grace=0)


def test_a_damaged_copy_is_copied_again(hf: Holdfast, remote: Away, world: World) -> None:
    session = hf.start(remote.probe("forever"), place=remote.place)
    kill_deputies(world)
    state = world.session(session.id) / "state.json"
    whole = state.read_bytes()
    state.write_bytes(whole[: len(whole) // 2])
    (finding,) = [each for each in hf.doctor() if each.check == "records" and each.repaired]
    assert finding.path == str(state)
    assert "copied again" in (finding.fix or "")
    assert hf.get(session.id).state == "running"
    assert json.loads(state.read_bytes())["nonce"] == json.loads(whole)["nonce"]
    session.stop(grace=0)


def test_a_restart_asks_for_what_it_cannot_know_of_a_place(
    hf: Holdfast, remote: Away, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = hf.start("echo $COLOR; exec sleep 600", place=remote.place, env={"COLOR": "blue"})
    monkeypatch.setenv("COLOR", "the colour of this machine")
    with pytest.raises(BadArgument, match="COLOR"):
        session.restart()
    again = session.restart(env={"COLOR": "red"})
    assert again.place == remote.place
    assert again.wait(match="red", timeout=30).reason == "match"
    again.stop(grace=0)


def test_a_waiter_does_not_notice_a_broken_link(hf: Holdfast, remote: Away, world: World) -> None:
    gate = remote.gate()
    session = hf.start(remote.probe("await", gate, "say", "at last"), place=remote.place)
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(session.wait, timeout=30)
        following = pool.submit(lambda: list(session.follow()))
        for _ in range(2):
            remote.cable.drop()
        remote.cable.down()
        until(lambda: session.refresh().state == "unreachable", what="a look at a link that is down")
        assert not waiting.done()
        assert not following.done()
        remote.cable.mend()
        gate.release()
        assert waiting.result(timeout=30).reason == "exit"
        assert b"".join(page.data for page in following.result(timeout=30)) == b"ready\nat last\n"


NESTED = """
import sys, holdfast
with holdfast.open() as hf:
    print(hf.start(["sleep", "600"], place=sys.argv[1]).id)
"""


def test_a_link_is_no_part_of_the_session_it_was_opened_in(hf: Holdfast, remote: Away) -> None:
    outer = hf.run([sys.executable, "-c", NESTED, remote.place])
    assert outer.exit is not None
    assert (outer.exit.code, outer.exit.survivors) == (0, [])
    inner = hf.get(outer.text().strip())
    assert inner.state == "running"
    outer.stop()
    assert inner.refresh().state == "running"
    inner.stop(grace=0)


def test_the_program_of_a_link_is_found_by_the_path_of_its_host(
    over_ssh: Away, ssh_host: SshHost, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = world.root / "programs"
    folder.mkdir()
    (folder / "our-ssh").write_text(f'#!/bin/sh\nexec {shlex.join(ssh_host.argv)} "$@"\n')
    (folder / "our-ssh").chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("HOLDFAST_PLACES_SSH", "our-ssh")
    assert world.open().run("echo here", place=over_ssh.place).text() == "here\n"


def test_a_directory_in_the_copy_is_left_alone(hf: Holdfast, remote: Away, world: World) -> None:
    session = hf.start(remote.probe("forever"), place=remote.place)
    (world.session(session.id) / "files").mkdir()
    kill_deputies(world)
    assert session.refresh().state == "running"
    session.stop(grace=0)
    assert (world.session(session.id) / "files").is_dir()
