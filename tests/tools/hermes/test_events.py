"""Events: their keys, matches, heartbeats, overflows, and which of them a gateway passes on."""

from __future__ import annotations

import asyncio
import json
import shlex
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import BadArgument
from holdfast.tools.hermes.events import _Events, _wanted, is_wanted
from support.batches import Teller
from support.hermes import beats_until_the_end, drain, drained, over, process, start
from support.waiting import until

if TYPE_CHECKING:
    from holdfast.signals.lines import Signal
    from support.agents import Agents
    from support.world import World

# Its characters are joined by invisible ones.
FAMILY = "👩‍👩‍👧"
COMMON = (
    *("type", "event_id", "session_id", "session_key", "command", "task_id", "owner_task_id", "platform", "chat_id"),
    *("user_id", "user_name", "thread_id", "message_id", "ts"),
)


def test_an_event_carries_where_its_session_came_from(library: Agents) -> None:
    agent = library(
        "hermes",
        owner="conv",
        task_id="t1",
        owner_task_id="sub-2",
        origin={"platform": "telegram", "chat_id": "42", "user_name": FAMILY},
    )
    id = start(agent, "echo out; echo err >&2; exit 3", notify=True)
    (event,) = drained(agent)
    assert set(COMMON) <= set(event)
    assert (event["type"], event["session_id"], event["session_key"]) == ("completion", id, "conv")
    assert (event["task_id"], event["owner_task_id"]) == ("t1", "sub-2")
    assert (event["platform"], event["chat_id"], event["user_id"]) == ("telegram", "42", "")
    assert event["user_name"] == FAMILY
    assert (event["exit_code"], event["completion_reason"], event["termination_source"]) == (3, "exited", "")
    assert (event["output"], event["output_cut"], event["observed"]) == ("out\nerr\n", False, False)
    assert event["survivors"] == []
    assert event["started_at"] < event["ts"]


def test_a_completion_names_what_lives_on(library: Agents) -> None:
    agent = library("hermes")
    id = start(agent, "sleep 1000 & exit 0", notify=True)
    (event,) = drained(agent)
    survivors = process(agent, "poll", id)["survivors"]
    assert (event["survivors"], len(survivors)) == (survivors, 1)
    assert process(agent, "kill", id)["descendants_stopped"] == survivors


def test_a_completion_has_the_end_of_the_output_as_long_as_it_was_asked_for(library: Agents) -> None:
    agent = library("hermes")
    start(agent, "seq 10000", notify=True)
    (event,) = drained(agent)
    assert len(event["output"]) <= 2000
    assert event["output_cut"] is True
    assert event["output"].splitlines()[-1] == "10000"
    longer = library("hermes", completion_output_chars=10_000)
    start(longer, "seq 10000", notify=True)
    (event,) = drained(longer)
    assert 9_000 < len(event["output"]) <= 10_000


@pytest.mark.covers("hermes:22")
def test_a_pattern_that_is_split_or_coloured_matches_once(library: Agents, world: World) -> None:
    agent = library("hermes")
    split = shlex.join(world.probe("quiet", "write", "an ER", "sleep", 0.1, "write", "ROR\n", "sleep", 0.4))
    coloured = r"printf 'an \033[31mER\033[1mROR\033[0m here\n'; sleep 0.4"
    for command, output in ((split, "an ERROR"), (coloured, "an ERROR here")):
        answer = agent.call("terminal", command=command, background=True, watch_patterns=["error", "ERROR"])
        assert answer.data["watch_patterns"] == ["error", "ERROR"]
        over(agent, answer.data["session_id"])
        (event,) = drained(agent)
        assert (event["type"], event["pattern"], event["output"]) == ("watch_match", "ERROR", output)
        assert (event["suppressed"], event["offset"]) == (0, 0)
        assert drain(agent) == []
    both = agent.call("terminal", command="echo ERROR", background=True, notify=True, watch_patterns=["ERROR"])
    assert "notify" in both.data["watch_patterns_ignored"]
    assert "watch_patterns" not in both.data
    (event,) = drained(agent)
    assert (event["type"], event["session_id"]) == ("completion", both.data["session_id"])
    before = len(agent.run(agent.hf.sessions(all=True)))
    refused = agent.call("terminal", command="touch ran", watch_patterns=["x"])
    assert refused.data["error_code"] == "bad-argument"
    assert "terminal(command='touch ran', background=true, watch_patterns=['x'])" in refused.data["error"]
    assert len(agent.run(agent.hf.sessions(all=True))) == before
    assert not (world.cwd / "ran").exists()


@pytest.mark.parametrize("given", [None, ["WARN"]])
def test_patterns_that_were_given_as_notify_are_watched_too(library: Agents, given: list[str] | None) -> None:
    agent = library("hermes")
    asked = {"command": "true", "background": True, "notify": ["ERROR"], "watch_patterns": given}
    answer = agent.call("terminal", **asked)
    assert answer.data["watch_patterns"] == [*(given or []), "ERROR"]


def test_a_match_is_shown_in_the_list(library: Agents) -> None:
    agent = library("hermes")
    id = start(agent, "echo ERROR; exec sleep 300", watch_patterns=["ERROR"])
    drained(agent)
    (row,) = agent.call("process", action="list").data["processes"]
    assert (row["watch_patterns"], row["watch_hit"]) == (["ERROR"], True)
    process(agent, "kill", id)


def test_a_heartbeat_is_never_more_often_than_once_a_minute(library: Agents) -> None:
    agent = library("hermes")
    answer = agent.call("terminal", command="exec sleep 300", background=True, heartbeat=5)
    assert (answer.data["heartbeat_seconds"], answer.data["notify_on_complete"]) == (60, True)
    session = agent.run(agent.hf.get(answer.data["session_id"]))
    assert agent.run(session.records())["spec"]["heartbeat"] == 60
    process(agent, "kill", answer.data["session_id"])


@pytest.mark.slow
def test_heartbeats_carry_only_what_is_new_and_none_follows_the_end(
    library: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SESSION_HEARTBEAT_FLOOR", "1")
    agent = library("hermes")
    command = "i=0; until test -e over; do i=$((i+1)); echo line $i; sleep 0.4; done; exit 3"
    answer = agent.call("terminal", command=command, background=True, heartbeat=1)
    assert answer.data["heartbeat_seconds"] == 1
    assert len(beats_until_the_end(agent, (world.cwd / "over").touch)) >= 2


def events_of(library: Agents, *signals: Signal) -> list[dict[str, Any]]:
    made = _Events(library("hermes").hf, set(), str)

    async def all_of_them() -> list[dict[str, Any] | None]:
        return [await made.of(signal) for signal in _wanted(list(signals))]

    return [event for event in asyncio.run(all_of_them()) if event]


@pytest.mark.covers("found:10")
def test_signals_become_events(library: Agents) -> None:
    teller = Teller("b00000001")
    beat = teller.tell("heartbeat", n=2, interval_s=60, elapsed_s=120.5, tail="new", new_lines=1)
    off = teller.tell("watch_disabled", reason="strikes", hits=3, suppressed=7, promoted=True)
    tripped = Teller(None, name="", command="").tell("overflow", state="tripped", scope="a")
    released = Teller(None, name="", command="").tell("overflow", state="released", scope="a", suppressed=5)
    events = events_of(library, beat, off, tripped, released)
    assert [event["type"] for event in events] == [
        "heartbeat",
        "watch_disabled",
        "watch_overflow_tripped",
        "watch_overflow_released",
    ]
    assert (events[0]["seq"], events[0]["interval"], events[0]["elapsed"], events[0]["output"]) == (2, 60, 120.5, "new")
    assert events[1]["suppressed"] == 7
    assert "3 match notices delivered, 7 matching lines suppressed" in events[1]["message"]
    assert "You will be notified when it exits" in events[1]["message"]
    assert "More than 15 watch match notices in 10s" in events[2]["message"]
    assert "suppressed for 30s" in events[2]["message"]
    assert "5 were suppressed" in events[3]["message"]
    assert events[2]["session_id"] == events[2]["command"] == ""
    assert "exit_code" not in events[2]
    assert events[3]["suppressed"] == 5


def test_a_heartbeat_that_was_overtaken_by_the_end_is_dropped(library: Agents) -> None:
    teller = Teller("b00000001")
    beat = teller.tell("heartbeat", n=1, interval_s=60, elapsed_s=60, tail="x")
    assert [event["type"] for event in events_of(library, beat, teller.ended(0))] == ["completion"]


@pytest.mark.parametrize(
    "variant, options",
    [("watch", {"watch": [{"literal": "ERROR"}], "notify": "exit"}), ("heartbeat", {"heartbeat": 1})],
)
def test_what_was_given_back_is_not_reported_after_the_end(
    library: Agents, monkeypatch: pytest.MonkeyPatch, variant: str, options: dict[str, Any]
) -> None:
    monkeypatch.setenv("HOLDFAST_SESSION_HEARTBEAT_FLOOR", "1")
    agent = library("hermes")
    session = agent.run(agent.hf.start("echo ERROR; read x; exit 3", owner="agent-7", stdin="open", **options))

    def given_back() -> bool:
        taken = agent.run(agent.tools.drain())
        told = [event["type"] for event in taken.events]
        agent.run(taken.release("the turn failed"))
        return bool(told)

    until(given_back, what=f"a {variant}")
    agent.run(session.send("\n"))
    agent.run(session.wait(timeout=30))
    until(lambda: any(event["type"] == "completion" for event in drain(agent)), what="the completion")
    told: list[str] = []

    def settled() -> bool:
        taken = agent.run(agent.tools.drain())
        told.extend([*(event["type"] for event in taken.events), *([taken.text] if taken.text else [])])
        agent.run(taken.settle())
        return not agent.run(agent.tools.consumer().unsettled())

    until(settled, what="an empty queue")
    assert told == []


def test_a_match_that_was_not_delivered_is_reported_although_the_end_was_read(library: Agents) -> None:
    agent = library("hermes")
    options: dict[str, Any] = {"watch": [{"literal": "ERROR"}], "notify": "exit"}
    session = agent.run(agent.hf.start("echo ERROR; exit 3", owner="agent-7", **options))
    assert process(agent, "wait", session.id)["status"] == "exited"
    (event,) = drained(agent)
    assert (event["type"], event["output"]) == ("watch_match", "ERROR")
    assert drain(agent) == []


@pytest.mark.parametrize(
    "mode, wanted",
    [
        ("all", ["completion 0", "completion 1", "watch_match", "heartbeat"]),
        ("concise", ["completion 0", "completion 1", "watch_match"]),
        ("result", ["completion 0", "completion 1"]),
        ("error", ["completion 1"]),
        ("off", []),
    ],
)
def test_a_gateway_passes_on_what_its_mode_says(mode: str, wanted: list[str]) -> None:
    events: dict[str, dict[str, Any]] = {
        "completion 0": {"type": "completion", "exit_code": 0},
        "completion 1": {"type": "completion", "exit_code": 1},
        "watch_match": {"type": "watch_match"},
        "heartbeat": {"type": "heartbeat"},
    }
    assert [name for name, event in events.items() if is_wanted(event, mode)] == wanted
    assert is_wanted(events["watch_match"])
    assert not is_wanted(events["heartbeat"]), "concise, where nothing is said"
    with pytest.raises(BadArgument):
        is_wanted({"type": "completion"}, "loud")


def test_a_kill_is_reported_with_who_asked(library: Agents) -> None:
    agent = library("hermes")
    id = start(agent, "exec sleep 300", notify=True)
    session = agent.run(agent.hf.get(id))
    agent.run(session.stop(grace=1, by="a person"))
    (event,) = drained(agent)
    assert (event["completion_reason"], event["termination_source"], event["exit_code"]) == ("killed", "a person", -15)
    until(lambda: process(agent, "poll", id)["termination_source"] == "a person")


@pytest.mark.covers("found:10")
def test_a_match_that_is_too_long_ends_in_a_mark(library: Agents) -> None:
    agent = library("hermes")
    long_line = "printf 'ERROR %05000d\\n' 7; read x"
    start(agent, long_line, watch_patterns=["ERROR"])
    (one,) = drained(agent)
    assert one["output"].startswith("ERROR 000")
    assert one["output"].endswith("...(truncated)")
    assert len(one["output"]) <= 2000 + len("\n...(truncated)")
    start(agent, "seq -f 'ERROR %05g' 30; read x", watch_patterns=["ERROR"])
    (many,) = drained(agent)
    assert many["output"].endswith("...(truncated)")
    assert many["output"].count("ERROR") <= 20
    short = start(agent, "echo ERROR; read x", watch_patterns=["ERROR"])
    assert [event["output"] for event in drained(agent)] == ["ERROR"]
    for row in agent.call("process", action="list").data["processes"]:
        process(agent, "kill", row["session_id"])
    assert short


@pytest.mark.covers("found:10")
def test_no_number_of_matches_alone_ends_the_watching(library: Agents, world: World) -> None:
    agent = library("hermes")
    id = start(agent, "read x", watch_patterns=["ERROR"])
    spec = json.loads((world.session(agent.run(agent.hf.get(id)).id) / "spec.json").read_text())
    assert spec["watch"]["lifetime"] > 1_000_000_000
    process(agent, "kill", id)


def is_past(moment: float) -> bool:
    return time.monotonic() > moment


@pytest.mark.long
@pytest.mark.covers("found:10")
def test_ten_matches_with_pauses_between_them_are_all_reported(
    library: Agents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_WATCH_INTERVAL", "1s")
    agent = library("hermes")
    id = start(agent, "cat", watch_patterns=["ERROR"])
    for number in range(10):
        window = time.monotonic() + 1.5
        process(agent, "submit", id, data=f"ERROR {number}")
        assert [event["output"] for event in drained(agent)] == [f"ERROR {number}"]
        until(partial(is_past, window), what="the end of the window")
    process(agent, "kill", id)
