"""Watch patterns in real sessions: what matches, which owner is notified, and what becomes of many matches at once."""

from __future__ import annotations

import sys
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import BadArgument
from support.faults import kill_runner
from support.peer import Peer
from support.signal_file import ended, of
from support.waiting import until

if TYPE_CHECKING:
    from holdfast import Session
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


def reported(world: World, id: str, count: int = 1) -> list[dict[str, Any]]:
    """The matches that were signalled, once there are as many as that."""

    def enough() -> list[dict[str, Any]] | None:
        found = [each["watch"] for each in of(world, id, "watch")]
        return found if len(found) >= count else None

    return until(enough, what=f"match {count} of {id}") or []


@pytest.mark.covers("signals:25")
def test_a_match_while_no_host_is_alive_is_delivered_later_with_its_own_time(world: World) -> None:
    gate = world.gate()
    host = world.host(HOST, f"head -c 1 < {gate} > /dev/null; echo 'ERROR: disk full' >&2; head -c 1 < {gate}")
    id = host.line()
    assert host.wait() == 0
    gate.release()
    [match] = reported(world, id)
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
    [match] = reported(world, session.id)
    session.send("secret\n")

    end = ended(world, session)["lifecycle"]

    assert match["lines"] == ["Password: "]
    assert len(of(world, session.id, "watch")) == 1
    assert end["watch"] == {"hits": 1, "suppressed": 0, "unscanned": 0}


# Prints each piece when the test asks for it.
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
        # Of a line that is signalled in parts, the part that has it.
        assert printed.index(b"needle") - (8 << 10) < match["offset"] <= printed.index(b"needle")
    assert end["watch"] == {"hits": 1, "suppressed": 0, "unscanned": 0}
    assert end["status"] == "completed"


def _has_said(session: Session, size: int) -> bool:
    return session.refresh().ends.get("stdout", 0) == size


@pytest.mark.covers("signals:26", "STR-09")
def test_matches_all_the_time_end_the_watching_and_the_end_is_reported_all_the_same(world: World) -> None:
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
def test_the_last_match_that_may_be_reported_ends_the_watching(world: World) -> None:
    configure(world, "[watch]\nlifetime = 1\n")
    session = world.open().start("echo ERROR 1; read x; echo ERROR 2", stdin="open", watch=["ERROR"], notify="exit")
    reported(world, session.id)
    until(lambda: of(world, session.id, "watch_disabled"), what="the end of watching")
    session.send("\n")

    end = ended(world, session)["lifecycle"]

    [disabled] = [each["watch_disabled"] for each in of(world, session.id, "watch_disabled")]
    assert disabled == {"reason": "lifetime", "hits": 1, "suppressed": 0, "promoted": False}
    assert end["watch"] == {"hits": 1, "suppressed": 1, "unscanned": 0}


def crowd(world: World, size: int, owner: str = "conv-1") -> list[Session]:
    """Sessions that match one after the other, and wait."""
    hf = world.open()
    world.closing.callback(hf.collect)  # what a killed runner leaves
    sessions = []
    for number in range(size):
        command = f"read x; echo ERROR {number}; read x"
        sessions.append(hf.start(command, stdin="open", owner=owner, watch=["ERROR"], notify="exit"))
        world.closing.callback(sessions[-1].stop, grace=0)
    for session in sessions:
        session.send("\n")
    for session in sessions:
        reported(world, session.id)
    return sessions


@pytest.mark.covers("STR-09")
def test_a_crowd_of_sessions_is_one_bounded_message_that_counts_and_names_them_all(world: World) -> None:
    sessions = crowd(world, 20)
    [other] = crowd(world, 1, "conv-2")
    sessions[19].stop(grace=0)
    ended(world, sessions[19])
    hf = world.open()

    with hf.signals("conv-1").drain(limit=1000) as notice:
        variants = [each.variant for each in notice.signals]
        lines = notice.text.splitlines()

    assert (variants.count("watch"), variants.count("lifecycle")) == (20, 1)
    assert len(notice.text) <= 8000
    heading = [line for line in lines if "too many sessions matched at once" in line]
    assert heading == [
        "supervisor: too many sessions matched at once: 5 lines of 5 more sessions, with the first line of each:"
    ]
    folded = lines[lines.index(heading[0]) + 1 :][:5]
    matches = [line for line in lines if "[local_bash]" in line and ' matched "ERROR" on stdout' in line]
    assert len(matches) == 15
    named = {session.id for session in sessions if any(line.startswith(session.id) for line in matches)}
    left = {session.id: f"ERROR {number}" for number, session in enumerate(sessions) if session.id not in named}
    assert sorted(folded) == sorted(f"| {id}: 1, first at stdout:0: {line}" for id, line in left.items())
    assert any(line.startswith(sessions[19].id) and "stopped by" in line for line in lines), "an ending passes"
    assert other.id not in notice.text
    assert hf.signals("conv-1").pending() == 0

    with hf.signals("conv-2").drain() as theirs:
        assert f"{other.id} [local_bash]" in theirs.text
        assert "too many" not in theirs.text


def test_matches_of_killed_runners_are_folded_with_the_same_count(world: World) -> None:
    sessions = crowd(world, 18)
    for session in sessions[14:]:
        kill_runner(session)

    with world.open().signals("conv-1").drain(limit=1000) as notice:
        assert [each.variant for each in notice.signals].count("watch") == 18

    assert "3 lines of 3 more sessions" in notice.text


@pytest.mark.covers("signals:31")
def test_what_a_grandchild_prints_after_the_end_is_logged_and_not_reported(world: World) -> None:
    gate = world.gate()
    session = world.open().start(f"(head -c 1 < {gate} > /dev/null; echo ERROR late) & echo fine", watch=["ERROR"])
    end = ended(world, session)["lifecycle"]

    gate.release()
    until(lambda: "ERROR late" in session.text(), what="the words of the grandchild")
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
    session.wait(match="ready", timeout=30)
    session.send("an ERROR\n")

    [match] = reported(world, session.id)

    assert (match["lines"], match["more"]) == (["got an ERROR"], 0)


def test_each_attempt_is_watched_and_the_counters_continue(world: World) -> None:
    session = world.open().start(
        "echo ERROR; exit 3",
        watch=[{"literal": "ERROR", "once": True}],
        restart={"policy": "on-failure", "delay": 0.01, "delay_max": 0.01, "attempts": 3},
        notify="never",
    )

    end = ended(world, session)["lifecycle"]

    [match] = reported(world, session.id)
    assert (match["hits"], match["suppressed"]) == (1, 0)
    # Seen in every attempt; one strike, for they came in one window.
    assert end["watch"] == {"hits": 1, "suppressed": 2, "unscanned": 0}


def test_a_pattern_may_come_later_and_go_again(world: World) -> None:
    session = world.open().start('while read line; do echo "$line"; done', stdin="open")
    session.send("ERROR too early\n")
    session.wait(match="too early", timeout=30)

    id = session.watch({"literal": "ERROR", "before": 1})
    session.send("so far so good\nERROR\n")
    [match] = reported(world, session.id)
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

    [match] = reported(world, session.id)
    assert (match["lines"], match["offset"]) == (["ERROR at last"], 30_000_000)
    assert end["watch"] == {"hits": 1, "suppressed": 0, "unscanned": 0}
