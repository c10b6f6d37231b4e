"""One host, its calls as coroutines over the thread that it blocks; and words before a command."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast.errors import BadArgument, NotFound, Unreachable
from holdfast.home import Home
from holdfast.sessions.aio import coroutines
from holdfast.sessions.driver import drive
from holdfast.sessions.observe import read_files

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.world import World


def test_coroutines_of_a_blocking_host_run_to_their_end_without_a_loop(world: World) -> None:
    hf = world.open()

    async def both() -> str:
        again = coroutines(hf)
        session = await again.start("echo hello; sleep 60", owner="a")
        await session.wait(match="hello", timeout=30)
        (stopped,) = await again.stop_all([session.id], grace=1, by="somebody")
        assert stopped.done
        found = await again.get(session.id)
        assert found.exit is not None
        assert found.exit.by == "somebody"
        return await found.text()

    assert drive(both()) == "hello\n"


def test_a_command_stands_behind_the_words_of_its_shell(hf: Holdfast) -> None:
    done = hf.run("echo '$1' && exit 3", shell=["/bin/sh", "-c", 'echo before; eval "$1"', "sh"])
    assert done.exit is not None
    assert (done.text(), done.exit.code, done.command) == ("before\n$1\n", 3, "echo '$1' && exit 3")


def test_a_wait_for_several_is_one_wait_and_leaves_nothing_open(world: World) -> None:
    hf = world.open()
    gate = world.gate()
    first = hf.start(world.probe("await", gate, "say", "go", "forever"))
    second = hf.start(world.probe("say", "steady", "forever"))
    third = hf.start(world.probe("say", "steady", "forever"))
    before = set(os.listdir("/proc/self/fd"))
    quiet = hf.wait_all([first.id, second.id, third.id, second.id], idle=0.05, timeout=30)
    assert [woke.reason for woke in quiet] == ["idle"] * 3
    assert [woke.session.id for woke in quiet if woke.session] == [first.id, second.id, third.id]
    late = hf.wait_all([first.id, second.id], match="go", timeout=0.05)
    assert [woke.reason for woke in late] == ["timeout", "timeout"]
    gate.release()
    (found,) = hf.wait_all([second.id, first.id, third.id], any=True, match="go", timeout=30)
    assert (found.reason, found.match) == ("match", "go")
    assert found.session is not None
    assert found.session.id == first.id
    with pytest.raises(NotFound):
        hf.wait_all([first.id, "none"])
    assert set(os.listdir("/proc/self/fd")) == before
    assert hf.wait_all([]) == []
    hf.stop_all([first.id, second.id, third.id], grace=0)


def test_a_wait_for_the_first_of_several_fails_only_if_none_can_be_waited_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = world.root / "config.toml"
    config.write_text('[hosts]\nreply_timeout = "300ms"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    hf = world.open()
    gate = world.gate()
    session = hf.start(world.probe("await", gate, "say", "go", "forever"))
    out_of_reach = [hf.start(world.probe("quiet", "forever")) for _ in range(2)]
    ids = [each.id for each in out_of_reach]
    endpoints = [read_files(Home(), id).endpoint for id in ids]
    for endpoint in endpoints:
        os.rename(endpoint, f"{endpoint}.away")
    with pytest.raises(Unreachable):
        hf.wait_all(ids, any=True)
    (late,) = hf.wait_all([*ids, session.id], any=True, match="go", timeout=0.6)
    assert (late.reason, late.session and late.session.id) == ("timeout", session.id)
    gate.release()
    (found,) = hf.wait_all([*ids, session.id], any=True, match="go", timeout=30)
    assert found.match == "go"
    for endpoint in endpoints:
        os.rename(f"{endpoint}.away", endpoint)
    hf.stop_all([*ids, session.id], grace=0)


def test_a_wait_for_several_refuses_a_condition_that_there_is_not(world: World) -> None:
    hf = world.open()
    done = hf.run("true")
    with pytest.raises(BadArgument, match="typo: no such condition") as wrong:
        hf.wait_all([done.id], typo=1)  # type: ignore[call-arg]
    assert "extinct" in wrong.value.fix


def test_a_wait_for_several_on_a_loop_can_be_cancelled(world: World) -> None:
    async def cancel() -> None:
        async with holdfast.open_async(str(world.home)) as hf:
            sessions = [await hf.start(world.probe("say", "here", "forever")) for _ in range(2)]
            before = set(os.listdir("/proc/self/fd"))
            woken = await hf.wait_all([each.id for each in sessions], match="here", timeout=30)
            assert [woke.reason for woke in woken] == ["match", "match"]
            waiting = asyncio.ensure_future(hf.wait_all([each.id for each in sessions]))
            done, _ = await asyncio.wait([waiting], timeout=0.1)
            assert not done
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            assert set(os.listdir("/proc/self/fd")) == before
            await hf.stop_all([each.id for each in sessions], grace=0)

    asyncio.run(cancel())
