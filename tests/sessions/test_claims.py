"""Names and keys: one holder each, whichever process races, dies or collects."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast.errors import Busy, NameTaken
from holdfast.home import Home, is_id
from holdfast.sessions.claims import Claim, Held, holder_of
from holdfast.sessions.driver import Blocking, drive
from support.waiting import until
from support.world import World

HOLD_UNTIL_KILLED = """
import sys
from holdfast.home import Home
from holdfast.sessions.claims import Claim
from holdfast.sessions.driver import Blocking, drive

held = drive(Claim(Home(), "name", "web").acquire(Blocking(), 5))
print("held", flush=True)
sys.stdin.read()
"""

WAIT_AND_CHECK = """
import os
from holdfast.home import Home
from holdfast.sessions.claims import Claim
from holdfast.sessions.driver import Blocking, drive

claim = Claim(Home(), "name", "web")
with drive(claim.acquire(Blocking(), 5)) as held:
    print("same" if os.fstat(held.fileno()).st_ino == os.stat(claim.path).st_ino else "orphan", flush=True)
"""

# 32 children wait for the end of one pipe, then all want the name. Exclusion is proven by a file of its own.
RACE = """
import os, sys
from holdfast.home import Home
from holdfast.sessions.claims import Claim
from holdfast.sessions.driver import Blocking, drive

claim = Claim(Home(), "name", "web")
key = Claim(Home(), "key", "deploy")
inside = os.path.join(Home().path, "inside")
gate, release = os.pipe()
results, say = os.pipe()
children = []
for number in range(32):
    pid = os.fork()
    if pid == 0:
        os.close(release)
        os.read(gate, 1)
        ticket = key.ticket()
        with drive(claim.acquire(Blocking(), 20)) as held:
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL, 0o600))
            won = held.holder is None
            if won:
                held.set(f"b0000000{number:02d}")
            os.unlink(inside)
        os.write(say, f"{int(won)} {ticket}\\n".encode())
        os._exit(0)
    children.append(pid)
os.close(say)
os.close(release)
with os.fdopen(results) as lines:
    print(lines.read(), end="")
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
print("codes", sum(map(abs, codes)), flush=True)
"""


def acquire(claim: Claim, timeout: float) -> Held:
    return drive(claim.acquire(Blocking(), timeout))


@pytest.fixture
def home(world: World) -> Home:
    made = Home()
    made.create()
    return made


def someone_waits_for(path: str) -> Callable[[], bool]:
    """As the kernel tells it: `->` marks one that is blocked by the line above."""
    inode = os.stat(path).st_ino

    def waits() -> bool:
        rows = Path("/proc/locks").read_text().splitlines()
        return any("->" in row and f":{inode} " in row for row in rows)

    return waits


def test_new_claim_has_no_holder_and_a_private_file(home: Home) -> None:
    claim = Claim(home, "name", "web")
    assert claim.peek() is None
    with acquire(claim, 0) as held:
        assert held.holder is None
    assert os.path.dirname(claim.path) == home.locks
    assert stat.S_IMODE(os.stat(claim.path).st_mode) == 0o600


def test_holder_that_was_set_is_seen_with_and_without_the_lock(home: Home) -> None:
    claim = Claim(home, "name", "web")
    with acquire(claim, 0) as held:
        held.set("b00000001")
        assert held.holder == "b00000001"
        assert Claim(home, "name", "web").peek() == "b00000001"
        held.set("b2")
        assert held.holder is None, "what is no id never becomes a path"
        held.set("b00000002")
    assert claim.peek() == "b00000002"
    assert json.loads(Path(claim.path).read_bytes()) == {"id": "b00000002", "text": "web"}
    with acquire(claim, 0) as held:
        held.set(None)
    assert claim.peek() is None


def test_name_and_key_of_one_text_are_two_claims(home: Home) -> None:
    with acquire(Claim(home, "name", "web"), 0) as name, acquire(Claim(home, "key", "web"), 0):
        name.set("b00000001")
        assert Claim(home, "key", "web").peek() is None


def test_claim_in_use_is_refused_within_the_timeout(home: Home) -> None:
    claim = Claim(home, "name", "web")
    with acquire(claim, 0) as held:
        held.set("b00000001")
        for timeout in (0.0, 0.05):
            before = time.monotonic()
            with pytest.raises(NameTaken) as caught:
                acquire(claim, timeout)
            assert time.monotonic() - before >= timeout
            assert caught.value.holder == "b00000001"
    with acquire(claim, 5) as held:
        assert held.holder == "b00000001"
    key = Claim(home, "key", "deploy")
    with acquire(key, 0), pytest.raises(Busy, match="deploy"):
        acquire(key, 0)


def test_copy_of_the_descriptor_keeps_the_lock(home: Home) -> None:
    claim = Claim(home, "name", "web")
    with acquire(claim, 0) as held:
        copy = os.dup(held.fileno())
    try:
        with pytest.raises(NameTaken):
            acquire(claim, 0)
    finally:
        os.close(copy)
    acquire(claim, 0).close()


def test_killed_holder_releases_waiters(world: World, home: Home) -> None:
    holder = world.host(HOLD_UNTIL_KILLED)
    assert holder.line() == "held"
    claim = Claim(home, "name", "web")
    with pytest.raises(NameTaken):
        acquire(claim, 0)
    waiter = world.host(WAIT_AND_CHECK)
    until(someone_waits_for(claim.path))
    holder.kill()
    assert waiter.line() == "same"
    assert waiter.wait() == 0
    acquire(claim, 5).close()


def test_cancelled_start_does_not_keep_the_claim_that_it_waited_for(home: Home) -> None:
    async def cancelled() -> str:
        async with holdfast.open_async() as hf:
            claim = Claim(home, "key", "deploy")
            with acquire(claim, 0):
                starting = asyncio.ensure_future(hf.start(["true"], key="deploy"))
                await asyncio.to_thread(until, someone_waits_for(claim.path))
                starting.cancel()
                await asyncio.gather(starting, return_exceptions=True)
            return (await hf.run(["true"], key="deploy")).status

    assert asyncio.run(cancelled()) == "completed"


def test_starts_that_wait_for_a_claim_delay_no_other_start_of_their_host(home: Home) -> None:
    async def beside() -> str:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with holdfast.open_async() as hf:
            claim = Claim(home, "key", "deploy")
            with acquire(claim, 0):
                waiting = asyncio.ensure_future(hf.start(["true"], key="deploy"))
                await asyncio.wait({waiting}, timeout=0)
                done = await hf.run(["true"], key="other")
                assert not waiting.done()
            await waiting
            return done.status

    assert asyncio.run(beside()) == "completed"


def test_file_swept_during_a_wait_is_not_mistaken_for_the_claim(world: World, home: Home) -> None:
    claim = Claim(home, "name", "web")
    with acquire(claim, 0):
        waiter = world.host(WAIT_AND_CHECK)
        until(someone_waits_for(claim.path))
        os.unlink(claim.path)
    assert waiter.line() == "same"
    assert waiter.wait() == 0


def test_32_racing_processes_leave_one_holder_and_distinct_tickets(world: World, home: Home) -> None:
    race = world.host(RACE)
    lines = race.lines_until("codes 0", bound=20)
    won, tickets = zip(*(map(int, line.split()) for line in lines[:-1]), strict=True)
    assert sum(won) == 1
    assert sorted(tickets) == list(range(1, 33))
    assert race.wait() == 0
    holder = Claim(home, "name", "web").peek()
    assert holder is not None
    assert holder.startswith("b0000000")


def test_ticket_is_newest_until_the_next_is_drawn(home: Home) -> None:
    key = Claim(home, "key", "deploy")
    first = key.ticket()
    assert key.newest(first)
    second = Claim(home, "key", "deploy").ticket()
    assert not key.newest(first)
    assert key.newest(second)
    os.unlink(key.path + ".tickets")
    assert key.newest(second), "a start that waited for ever must not lose to a sweep"


@given(st.binary(max_size=200) | st.recursive(st.integers() | st.text(), st.lists).map(json.dumps).map(str.encode))
def test_any_content_gives_an_id_or_nothing(content: bytes) -> None:
    holder = holder_of(content)
    assert holder is None or is_id(holder)


@given(
    st.text(st.characters(), max_size=300),
    st.from_regex(r"[a-z0-9]{6,32}", fullmatch=True),
    st.from_regex(r"[a-z0-9]{6,32}", fullmatch=True),
)
def test_any_text_and_id_come_back(text: str, first: str, second: str) -> None:
    assert Claim(Home("/nowhere"), "key", text).path.startswith("/nowhere/locks/key-")
    with Held(os.memfd_create("claim"), text) as held:
        for id in (first, second):
            held.set(id)
            assert held.holder == id
