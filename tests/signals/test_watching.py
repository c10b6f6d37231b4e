"""Watch patterns in real sessions: what matches, who is told, and what a crowd or a flood of matches comes to."""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import BadArgument
from support import processes
from support.peer import Peer
from support.told import ended, of, read
from support.waiting import until

if TYPE_CHECKING:
    from holdfast import Session
    from support.points import Points
    from support.world import World

HOST = """
import sys, holdfast
with holdfast.open() as hf:
    session = hf.start(sys.argv[1], owner="conv-1", watch=["ERROR"], notify="never")
    print(session.id)
"""


def configure(world: World, text: str) -> None:
    directory = world.root / "user" / ".config" / "holdfast"
    directory.mkdir(exist_ok=True)
    (directory / "config.toml").write_text(text)


def told(world: World, id: str, count: int = 1) -> list[dict[str, Any]]:
    """The matches that were told, when there are as many as that."""

    def enough() -> list[dict[str, Any]] | None:
        found = [each["watch"] for each in of(world, id, "watch")]
        return found if len(found) >= count else None

    return until(enough, 10.0, what=f"match {count} of {id}") or []


def overflows(world: World, count: int) -> list[dict[str, Any]]:
    def enough() -> list[dict[str, Any]] | None:
        found = [each["overflow"] for each in read(world.home / "signals.jsonl") if "overflow" in each]
        return found if len(found) >= count else None

    return until(enough, 10.0, what=f"overflow {count}") or []


@pytest.mark.covers("signals:25")
def test_a_match_while_no_host_is_alive_is_delivered_later_with_its_own_time(world: World) -> None:
    gate = world.gate()
    host = world.host(HOST, f"head -c 1 < {gate} > /dev/null; echo 'ERROR: disk full' >&2; head -c 1 < {gate}")
    id = host.line()
    assert host.wait() == 0
    gate.release()
    [match] = told(world, id)
    gate.release()

    with world.open() as hf, hf.signals("conv-1").claim() as batch:
        [delivered] = [each for each in batch if each.variant == "watch"]

    assert (match["lines"], match["stream"], match["offset"]) == (["ERROR: disk full"], "stderr", 0)
    [record] = of(world, id, "watch")
    assert (delivered.id, delivered.at) == (record["id"], record["at"])
    assert delivered.fields == match


@pytest.mark.covers("signals:25")
def test_a_question_without_a_newline_matches_once(world: World) -> None:
    configure(world, "[watch]\npartial_ms = 50\n")
    session = world.open().start("printf 'Password: '; read answer; echo; echo done", stdin="open", watch=["Password:"])
    [match] = told(world, session.id)
    session.send("secret\n")

    end = ended(world, session)["lifecycle"]

    assert match["lines"] == ["Password: "]
    assert len(of(world, session.id, "watch")) == 1
    assert end["watch"] == {"hits": 1, "suppressed": 0, "unscanned": 0}


# Prints each piece when it is told to.
_PIECES = """
import os, sys
gate = open(sys.argv[1], "rb", 0)
for times, piece in zip(sys.argv[2::2], sys.argv[3::2]):
    os.write(1, bytes.fromhex(piece) * int(times))
    gate.read(1)
"""
_LONG = 1 << 19


@pytest.mark.covers("STR-09")
@pytest.mark.parametrize(
    "before, pieces",
    [
        (b"first\n", [(1, b"a nee"), (1, b"dle here\n")]),
        (b"first\n", [(1, b"a n\x1b[31me\x1b[1;32me\x1b[0md\x1b[4ml\x1b[me here\n")]),
        (b"first\n", [(_LONG, b"xx"), (1, b" a needle here "), (_LONG, b"yy"), (1, b"\n")]),
    ],
    ids=["cut by reads", "inside colour codes", "in a very long line"],
)
def test_a_pattern_is_found_once_where_it_stands(world: World, before: bytes, pieces: list[tuple[int, bytes]]) -> None:
    gate = world.gate()
    words = [word for times, piece in ((1, before), *pieces) for word in (str(times), piece.hex())]
    session = world.open().start(
        [sys.executable, "-c", _PIECES, str(gate.path), *words], watch=["needle"], notify="exit"
    )
    printed = b""
    for times, piece in ((1, before), *pieces):
        printed += piece * times
        until(partial(_has_said, session, len(printed)), what="the next piece")
        gate.release()

    end = ended(world, session)["lifecycle"]

    [match] = [each["watch"] for each in of(world, session.id, "watch")]
    assert "needle" in match["lines"][0]
    assert (match["stream"], match["more"], match["suppressed"]) == ("stdout", 0, 0)
    if len(printed) < _LONG:
        assert match["offset"] == len(before)
    else:
        # Of a line that is told in parts, the part in which it stands.
        assert printed.index(b"needle") - (8 << 10) < match["offset"] <= printed.index(b"needle")
    assert end["watch"] == {"hits": 1, "suppressed": 0, "unscanned": 0}
    assert end["status"] == "completed"


def _has_said(session: Session, size: int) -> bool:
    return session.refresh().ends.get("stdout", 0) == size


@pytest.mark.covers("signals:26", "STR-09")
def test_matches_all_the_time_end_the_watching_and_the_end_is_told_all_the_same(world: World) -> None:
    configure(world, "[watch]\ninterval = 1\ngather_ms = 20\n")
    program = "import time\nfor n in range(64):\n print('ERROR', n, flush=True)\n time.sleep(0.05)"
    hf = world.open()
    session = hf.start(["python3", "-c", program], owner="conv-1", watch=["/error \\d/i"], notify="never")

    end = ended(world, session)

    matches = of(world, session.id, "watch")
    times = [each["mono_ns"] / 1e9 for each in matches]
    assert len(times) == 3
    assert all(later - earlier > 0.9 for earlier, later in pairwise(times))
    [disabled] = [each["watch_disabled"] for each in of(world, session.id, "watch_disabled")]
    assert (disabled["reason"], disabled["hits"], disabled["promoted"]) == ("strikes", 3, True)
    assert end["routed"] is True
    shown = sum(len(each["lines"]) + each["more"] + each["suppressed"] for each in (one["watch"] for one in matches))
    assert shown + disabled["suppressed"] + end["lifecycle"]["watch"]["suppressed"] == 64
    variants = [each.variant for each in hf.signals("conv-1").claim()]
    assert variants == ["watch", "watch", "watch", "watch_disabled", "lifecycle"]


@pytest.mark.covers("signals:27")
def test_the_last_match_that_may_be_told_ends_the_watching(world: World) -> None:
    configure(world, "[watch]\nlifetime = 1\n")
    session = world.open().start("echo ERROR 1; read x; echo ERROR 2", stdin="open", watch=["ERROR"], notify="exit")
    told(world, session.id)
    until(lambda: of(world, session.id, "watch_disabled"), what="the end of watching")
    session.send("\n")

    end = ended(world, session)["lifecycle"]

    [disabled] = [each["watch_disabled"] for each in of(world, session.id, "watch_disabled")]
    assert disabled == {"reason": "lifetime", "hits": 1, "suppressed": 0, "promoted": False}
    assert end["watch"] == {"hits": 1, "suppressed": 1, "unscanned": 0}


_CROWD = "[breaker]\nmax = 3\nwindow = 60\ncooldown = 3\n"


def crowd(world: World, size: int, owner: str = "conv-1") -> list[Session]:
    """Sessions that match one after the other, and wait."""
    hf = world.open()
    world.closing.callback(hf.collect)  # what a killed runner leaves
    sessions = []
    for number in range(size):
        command = f"read x; echo ERROR {number}; read x; echo ERROR again; read x"
        sessions.append(hf.start(command, stdin="open", owner=owner, watch=["ERROR"], notify="exit"))
        world.closing.callback(sessions[-1].stop, grace=0)
    for session in sessions:
        session.send("\n")
        until(lambda: judged(world, session.id, owner), 10.0, what=f"a judgement of {session.id}")  # noqa: B023
    return sessions


def judged(world: World, id: str, owner: str) -> bool:
    return bool(of(world, id, "watch")) or refused(world, id, owner)


def refused(world: World, id: str, owner: str) -> bool:
    for file in (world.home / "breakers").glob("*"):
        try:
            state = json.loads(file.read_bytes())
        except (OSError, ValueError):
            continue  # being written, or over
        if state["owner"] == owner and any(session[0] == id for session in state["sessions"]):
            return True
    return any(
        session["id"] == id
        for record in read(world.home / "signals.jsonl")
        for session in record["overflow"]["sessions"]
    )


@pytest.mark.covers("signals:29", "STR-09")
def test_a_crowd_of_sessions_is_told_of_as_one(world: World) -> None:
    configure(world, _CROWD)
    sessions = crowd(world, 5)
    others = crowd(world, 1, "conv-2")
    sessions[4].stop(grace=0)
    end = ended(world, sessions[4])

    tripped, released = overflows(world, 2)

    assert [len(of(world, session.id, "watch")) for session in (*sessions, *others)] == [1, 1, 1, 0, 0, 1]
    assert (tripped["state"], released["state"]) == ("tripped", "released")
    assert (released["suppressed"], released["scope"]) == (2, "owner")
    assert [(each["id"], each["first"]) for each in released["sessions"]] == [
        (sessions[3].id, "ERROR 3"),
        (sessions[4].id, "ERROR 4"),
    ]
    assert end["lifecycle"]["watch"] == {"hits": 0, "suppressed": 1, "unscanned": 0}
    variants = [each.variant for each in world.open().signals("conv-1").claim() if each.variant != "needs_input"]
    assert sorted(variants) == ["lifecycle", "overflow", "overflow", "watch", "watch", "watch"]


@pytest.mark.covers("signals:30")
@pytest.mark.parametrize("by", ["another runner", "a claim"])
def test_when_the_runner_that_tripped_the_breaker_is_killed_its_end_is_still_told_once(world: World, by: str) -> None:
    configure(world, _CROWD)
    sessions = crowd(world, 5)
    for session in sessions[3:] if by == "a claim" else sessions[3:4]:
        runner, command = session.runner_pid, session.pid
        assert runner is not None
        assert command is not None
        row = processes.look(runner)
        assert row is not None
        os.kill(runner, signal.SIGKILL)
        processes.wait_any([row], 5.0)
        os.kill(command, signal.SIGKILL)
    hf = world.open()
    if by == "a claim":
        waker = hf.signals("conv-1").waker()
        until(lambda: waker.wait(1) and "released" in _states(world), 10.0, what="the end of the overflow")

    states = [(each["state"], each["suppressed"]) for each in overflows(world, 2)]

    assert states == [("tripped", 1), ("released", 2)]
    with hf.signals("conv-1").claim() as batch:
        assert [each.variant for each in batch].count("overflow") == 2


def _states(world: World) -> list[str]:
    return [each["overflow"]["state"] for each in read(world.home / "signals.jsonl")]


def test_a_runner_that_cannot_tell_of_an_overflow_at_once_tells_it_later(world: World, points: Points) -> None:
    configure(world, _CROWD)
    points.set("breaker.tell=1*error:EIO")
    last = crowd(world, 4)[-1]
    assert not (world.home / "signals.jsonl").exists()
    last.send("\n")

    states = [(each["state"], each["suppressed"]) for each in overflows(world, 2)]

    assert states == [("tripped", 2), ("released", 2)]


@pytest.mark.covers("signals:31")
def test_what_a_grandchild_prints_after_the_end_is_logged_and_not_told(world: World) -> None:
    gate = world.gate()
    session = world.open().start(f"(head -c 1 < {gate} > /dev/null; echo ERROR late) & echo fine", watch=["ERROR"])
    end = ended(world, session)["lifecycle"]

    gate.release()
    until(lambda: "ERROR late" in session.text(), 10.0, what="the words of the grandchild")
    until(lambda: of(world, session.id, "survivors")[-1:] and not _survivors(world, session), what="its end")

    assert end["watch"] == {"hits": 0, "suppressed": 0, "unscanned": 0}
    assert of(world, session.id, "watch") == []


def _survivors(world: World, session: Session) -> list[Any]:
    found: list[Any] = of(world, session.id, "survivors")[-1]["survivors"]["pids"]
    return found


def cpu_ns(pid: int) -> int:
    """What this process has had of the processor."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])


@pytest.mark.covers("signals:31", "STR-09")
@pytest.mark.parametrize(
    "pattern, reason",
    [
        ("/(a+)+$/", "a repetition inside a repetition"),
        (r"/(x)\1/", "a back-reference"),
        ({"regex": "(?=x)y"}, "a look-ahead"),
        ("x" * 600, "512 characters"),
        ({"literal": "x", "before": 6}, "0 to 5 lines"),
    ],
)
def test_a_bad_pattern_is_refused_before_anything_is_spawned(world: World, pattern: Any, reason: str) -> None:
    hf = world.open()

    with pytest.raises(BadArgument, match=reason):
        hf.start("echo never", watch=["fine", pattern])

    assert hf.sessions(all=True) == []


@pytest.mark.covers("signals:31")
def test_a_pattern_that_takes_too_long_is_given_up_and_the_runner_answers_meanwhile(world: World) -> None:
    line = "a" * 80 + "!"
    session = world.open().start(
        f"read x; for n in 1 2 3 4 5; do echo {line}; done; read x",
        stdin="open",
        watch=["/(?:a|aa)*$/"],
        notify="never",
    )
    assert session.endpoint is not None
    assert session.runner_pid is not None
    held_ns = []
    with Peer(session.endpoint) as asking:
        asking.hello()
        status = asking.ask("write", data="\n")["status"]
        while status["watch"]["disabled"] is None:
            before = cpu_ns(session.runner_pid)
            status = asking.ask("ping")["status"]
            held_ns.append(cpu_ns(session.runner_pid) - before)
    # By its own clock: how long others kept it from the processor is not its doing.
    assert max(held_ns) < 50e6, "a question waits for one slice at most"
    assert sum(each > 10e6 for each in held_ns) >= 2, "it was asked between the slices"

    [disabled] = [each["watch_disabled"] for each in of(world, session.id, "watch_disabled")]
    session.send("\n")
    end = ended(world, session)

    assert (disabled["reason"], disabled["promoted"]) == ("too_slow", True)
    assert end["routed"] is True


def test_what_was_typed_into_a_terminal_does_not_match_but_the_answer_does(world: World) -> None:
    session = world.open().start(
        ["sh", "-c", 'echo ready; read line; echo "got $line"; read line'], tty=True, watch=["ERROR"]
    )
    world.closing.callback(session.stop, grace=0)
    session.wait(match="ready", timeout=10)
    session.send("an ERROR\n")

    [match] = told(world, session.id)

    assert (match["lines"], match["more"]) == (["got an ERROR"], 0)


def test_each_attempt_is_watched_and_the_counters_go_on(world: World) -> None:
    session = world.open().start(
        "echo ERROR; exit 3",
        watch=[{"literal": "ERROR", "once": True}],
        restart={"policy": "on-failure", "delay": 0.01, "delay_max": 0.01, "attempts": 3},
        notify="never",
    )

    end = ended(world, session)["lifecycle"]

    [match] = told(world, session.id)
    assert (match["hits"], match["suppressed"]) == (1, 0)
    # Seen in every attempt; one strike, for they came in one window.
    assert end["watch"] == {"hits": 1, "suppressed": 2, "unscanned": 0}


def test_a_pattern_may_come_later_and_go_again(world: World) -> None:
    session = world.open().start('while read line; do echo "$line"; done', stdin="open")
    session.send("ERROR too early\n")
    session.wait(match="too early", timeout=10)

    id = session.watch({"literal": "ERROR", "before": 1})
    session.send("so far so good\nERROR\n")
    [match] = told(world, session.id)
    assert session.unwatch(id)
    assert not session.unwatch(id)
    session.send("ERROR too late\n")
    session.close_stdin()
    end = ended(world, session)["lifecycle"]

    assert (match["pattern"], match["lines"], match["matched"]) == (id, ["so far so good", "ERROR"], [1])
    assert end["watch"] == {"hits": 1, "suppressed": 0, "unscanned": 0}


def test_in_a_flood_a_match_is_found_and_what_was_not_searched_is_counted(world: World) -> None:
    session = world.open().start(
        "head -c 30000000 /dev/zero | tr '\\0' '\\n'; echo ERROR at last", watch=["ERROR", "/never \\d+/"]
    )

    end = ended(world, session)["lifecycle"]

    [match] = told(world, session.id)
    assert (match["lines"], match["offset"]) == (["ERROR at last"], 30_000_000)
    assert end["watch"] == {"hits": 1, "suppressed": 0, "unscanned": 0}
