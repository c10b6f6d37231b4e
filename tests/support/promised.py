"""The six promises that hold after every row of the fault list, checked by one function."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from holdfast.errors import HoldfastError
from support import processes
from support.waiting import until

if TYPE_CHECKING:
    from holdfast import Holdfast, Session
    from support.bystander import Bystanders
    from support.points import Points
    from support.world import World

# What rows are run without, each in turn, so that what stands in for it is tested as the main way.
ABILITIES = ("", "pidfd", "launcher", "cgroup")

# For rows that are about control groups: what happens without them is asked by a test of its own.
with_control_groups = pytest.mark.parametrize(
    "without", [ability for ability in ABILITIES if ability != "cgroup"], indirect=True
)

_MARK = b"HOLDFAST_SESSION_ID="


class Beside:
    """A second session. It echoes a line each time it is asked, so that a fault next door would show."""

    def __init__(self, world: World) -> None:
        self.session = world.open().start(world.probe("cat"), stdin="open", owner="beside")
        self._identity = (self.session.pid, self.session.runner_pid)
        self._beats = 0

    def unharmed(self) -> None:
        """Same processes, still serving, and every line it was ever given is there once."""
        self._beats += 1
        self.session.send(f"beat {self._beats}\n")
        assert self.session.wait(match=f"^beat {self._beats}$", timeout=30).reason == "match"
        now = self.session.refresh()
        assert (now.state, now.pid, now.runner_pid) == ("running", *self._identity)
        assert self.session.text() == "ready\n" + "".join(f"beat {n}\n" for n in range(1, self._beats + 1))

    def end(self) -> None:
        assert self.session.stop(grace=0).done


@pytest.fixture
def beside(world: World) -> Iterator[Beside]:
    """A session next door that must not notice anything."""
    second = Beside(world)
    yield second
    second.end()


@pytest.fixture(params=ABILITIES, ids=lambda name: f"without-{name}" if name else "with-all")
def without(request: pytest.FixtureRequest, points: Points) -> str:
    """One ability switched off, here and in whatever starts from now on; the empty text is none."""
    ability = str(request.param)
    if ability:
        points.off(ability)
    return ability


def promised(
    world: World,
    session: Session,
    *,
    bystander: Bystanders,
    beside: Beside,
    numbers: int | None = None,
    error: BaseException | None = None,
) -> Session:
    """Ask all six of this session as it is now. `numbers`: it printed `line 1` to `line N`, all of them. `error`:
    the error that reported the fault. Returns the refreshed session."""
    session.refresh()
    log_is_whole(world, session, numbers)
    ending_is_true(world, session)
    nobody_is_forgotten(world, session)
    left_alone(bystander)
    if error is not None:
        is_typed(error)
    beside.unharmed()
    return session


def log_is_whole(world: World, session: Session, numbers: int | None = None) -> None:
    """(1) What the files hold is what a reader gets, with no gap and nothing twice, apart from recorded gaps."""
    told = session.metadata.get("gaps", [])
    for stream, end in session.ends.items():
        stored, expected = b"", session.dropped_before.get(stream, 0)
        for path in sorted(world.session(session.id).glob(f"{stream}.{'[0-9]' * 20}")):
            first = int(path.suffix[1:])
            if first != expected:
                assert {"stream": stream, "from": expected, "to": first, "reason": "disk"} in told
            data = path.read_bytes()
            stored, expected = stored + data, first + len(data)
        # A live session may have printed on since it was looked at; the disk may have refused the last of it.
        if expected < end:
            assert {"stream": stream, "from": expected, "to": end, "reason": "disk"} in told
        assert b"".join(session.raw(stream)).startswith(stored)
    counted = unbroken(session)
    assert numbers is None or counted == numbers


def unbroken(session: Session) -> int:
    """How far the numbered lines on stdout go; each number once, in order, from 1 on. A torn last line is none."""
    lines = b"".join(session.raw("stdout")).split(b"\n")[:-1]
    found = [int(match[1]) for line in lines if (match := re.fullmatch(rb"line (\d+)", line))]
    assert found == list(range(1, len(found) + 1)), f"broken near {_first_break(found)}"
    return len(found)


def _first_break(found: list[int]) -> int:
    return next(place for place, number in enumerate(found, 1) if number != place)


def ending_is_true(world: World, session: Session) -> None:
    """(2) The outcome is what was recorded, or is recorded as unknown. Who asked for it past the
    runner is known even then."""
    path = world.session(session.id) / "exit.json"
    if session.state == "lost":
        assert session.exit is not None
        assert (session.exit.code, session.exit.signal) == (None, None)
        assert (session.exit.cause, session.exit.by) == intended(world, session)
        assert session.status == ("killed" if session.exit.cause == "stop" else "failed")
        assert not path.exists()
    elif session.state == "exited":
        assert session.exit is not None
        recorded = json.loads(path.read_text())["exit"]
        told = session.exit.to_json()
        for fact in ("code", "signal", "cause", "by", "oom"):
            assert recorded[fact] == told[fact]
        known = [told["code"] is not None, told["signal"] is not None]
        assert known.count(True) == (0 if told["cause"] == "spawn_error" else 1)
    else:
        assert session.exit is None


def intended(world: World, session: Session) -> tuple[str, str | None]:
    """Cause and author of an end that no runner recorded."""
    path = world.session(session.id) / "intent.json"
    intent = json.loads(path.read_text()) if path.exists() else {"cause": "lost"}
    return intent["cause"], intent.get("by")


def nobody_is_forgotten(world: World, session: Session) -> None:
    """(3) Every process with the session's mark is gone, listed as a survivor, or within reach of a stop. And no
    session ever has two runners."""
    assert len(runners(world, session.id)) <= 1
    if session.state not in ("exited", "lost"):
        return

    def forgotten() -> int:
        session.refresh()
        listed = {survivor["pid"] for survivor in session.exit.survivors} if session.exit else set()
        counted = session.exit.survivors_more if session.exit else 0
        return len({row.pid for row in marked(session.id)} - listed) - counted

    # A process that was just killed takes a moment to be torn down.
    until(lambda: forgotten() <= 0, what=f"the end of everybody in {session.id}, or their listing,")


def marked(id: str) -> list[processes.Process]:
    """Living processes that carry the mark of this session."""
    mark = _MARK + id.encode() + b"\0"
    return [
        row for row in processes.recent() if row.state not in "ZX" and mark in processes.environment(row.pid) + b"\0"
    ]


def runners(world: World, id: str) -> list[processes.Process]:
    """Living processes that hold this session's directory."""
    directory = str(world.session(id))
    rows = (row for row in processes.recent() if row.state not in "ZX")
    return [row for row in rows if directory in processes.descriptors(row.pid).values()]


def left_alone(bystander: Bystanders) -> None:
    """(4) So far: none is gone or stopped. Whether one received anything is asked when its fixture ends."""
    for one in bystander.all:
        row = processes.look(one.pid)
        assert row is not None, f"the bystander {one.place} is gone"
        assert row.start == one.start
        assert row.state not in "ZXTt", f"the bystander {one.place} is in state {row.state}"


def is_typed(error: BaseException) -> None:
    """(5) One class for this case, whose text names case and fix."""
    assert isinstance(error, HoldfastError), repr(error)
    assert type(error) is not HoldfastError, f"{error.code} has no class of its own"
    assert error.message
    assert error.fix
    assert str(error) == f"{error.message}; {error.fix}"


def home_is_usable(hf: Holdfast) -> None:
    """After an error the next ordinary call works."""
    done = hf.run("echo fine", wait=30)
    assert (done.status, done.text()) == ("completed", "fine\n")
