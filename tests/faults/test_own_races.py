"""OWN-11 and OWN-14: one name for many, and commands that are gone before anyone looks."""

from __future__ import annotations

import asyncio
import json

import pytest

import holdfast
from support.bystander import Bystanders
from support.promised import Beside, promised
from support.scale import scaled
from support.world import World

# One process forks so many hosts; the close of one pipe lets all of them start at once.
RACERS = """
import json, os, sys
import holdfast
count, command = int(sys.argv[1]), sys.argv[2:]
go, release = os.pipe()
report, write = os.pipe()
for number in range(count):
    if os.fork() == 0:
        os.close(release)
        hf = holdfast.open()
        os.write(write, b".")
        os.read(go, 1)
        try:
            line = {"id": hf.start(command, name="web").id}
        except holdfast.HoldfastError as problem:
            line = problem.to_json()
        os.write(write, json.dumps(line).encode() + b"\\n")
        os._exit(0)
ready = 0
while ready < count:
    ready += len(os.read(report, count))
os.close(release)
os.close(write)
with os.fdopen(report) as lines:
    for line in lines:
        print(line, end="")
for number in range(count):
    os.wait()
print("done")
"""


@pytest.mark.covers("OWN-11")
def test_own_11_of_thirty_two_starts_with_one_name_exactly_one_holds_it(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    racers = world.host(RACERS, 32, *world.probe("append", world.root / "runs", "run", "forever"))
    answers = [json.loads(line) for line in racers.lines_until("done", 30)[:-1]]
    assert len(answers) == 32
    [winner] = [answer["id"] for answer in answers if "id" in answer]
    losers = [answer for answer in answers if "id" not in answer]
    assert {loser["code"] for loser in losers} == {"name-taken"}
    assert {loser["facts"]["holder"] for loser in losers} == {winner}
    assert all(winner in loser["message"] and loser["fix"] for loser in losers)
    hf = world.open()
    session = hf.get("web")
    assert session.id == winner
    assert session.wait(match="^ready$", timeout=30).reason == "match"
    # No half directory: what is there is the winner and the session beside.
    assert {path.name for path in (world.home / "sessions").iterdir()} == {winner, beside.session.id}
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=1).done
    promised(world, session, bystander=bystander, beside=beside)
    assert (world.root / "runs").read_text() == "run\n"
    follower = hf.start(["true"], name="web")
    assert follower.wait(exit=True, timeout=30).reason == "exit"
    assert hf.get("web").id == follower.id


MANY = scaled(100, 500)


@pytest.mark.covers("OWN-14")
@pytest.mark.slow
def test_own_14_five_hundred_that_are_gone_at_once_each_have_their_code(
    world: World, beside: Beside, bystander: Bystanders
) -> None:
    """Waited for before, during and after the end; without any output; no waiter sleeps."""

    async def one(hf: holdfast.AsyncHoldfast, number: int) -> tuple[str, int]:
        command, code = (["true"], 0) if number % 2 else ("exit 7", 7)
        if number % 3 == 0:
            session = await hf.run(command, wait=20)
        else:
            session = await hf.start(command)
            if number % 3 == 1:
                assert (await session.wait(exit=True, timeout=30)).reason == "exit"
        return session.id, code

    async def all_at_once() -> dict[str, int]:
        async with holdfast.open_async() as hf:
            limit = asyncio.Semaphore(50)

            async def bounded(number: int) -> tuple[str, int]:
                async with limit:
                    return await one(hf, number)

            return dict(await asyncio.gather(*(bounded(number) for number in range(MANY))))

    expected = asyncio.run(all_at_once())
    assert len(expected) == MANY
    hf = world.open()
    for id in expected:
        assert hf.get(id).wait(exit=True, timeout=30).reason == "exit"
    found = {each.id: each for each in hf.sessions(all=True) if each.id != beside.session.id}
    codes = {id: each.exit.code if each.exit else None for id, each in found.items()}
    assert codes == expected
    assert all(sum(each.ends.values()) == 0 for each in found.values())
    for id in list(expected)[::50]:
        promised(world, hf.get(id), bystander=bystander, beside=beside)


@pytest.mark.covers("OWN-14")
def test_own_14_the_end_is_reported_right_without_any_ability(
    world: World, without: str, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    for number in range(scaled(6, 20)):
        code = number % 2 * 7
        ran = hf.run(f"exit {code}", wait=30)
        started = hf.start(["sh", "-c", f"exit {code}"])
        assert started.wait(exit=True, timeout=30).reason == "exit"
        for session in (ran, started.refresh()):
            assert session.exit is not None
            assert (session.exit.code, session.exit.cause) == (code, "exit")
    promised(world, ran, bystander=bystander, beside=beside)
    promised(world, started, bystander=bystander, beside=beside)
