"""`process` poll, log and list: what is shown of a run, to whom, and how often."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from typing import TYPE_CHECKING, Any

import pytest

from holdfast.errors import PtyUnavailable
from holdfast.tools.openclaw import runs, settings, views
from holdfast.tools.openclaw.spawn import SpawnInput
from support.faults import kill_runner, sweep_up, wedged
from support.own_time import QuietTime
from support.waiting import turn, until, wait_for_file

if TYPE_CHECKING:
    from support.agents import Agent, Agents
    from support.world import World


def start(agent: Agent, command: str | list[str], **more: Any) -> str:
    line = command if isinstance(command, str) else shlex.join(command)
    answer = agent.call("exec", command=line, background=True, **more)
    assert answer.data["status"] == "running", answer.text
    name: str = answer.data["sessionId"]
    return name


def poll(agent: Agent, name: str, **more: Any) -> Any:
    return agent.call("process", action="poll", sessionId=name, **more)


def log_has(agent: Agent, name: str, text: str, bound: float = 10) -> None:
    until(lambda: text in agent.call("process", action="log", sessionId=name).text, bound, what=f"{text!r} in the log")


@pytest.mark.covers("openclaw:7")
def test_an_aborted_poll_loses_nothing_and_two_at_once_repeat_nothing(direct: Agents) -> None:
    agent = direct("openclaw")
    name = start(agent, "echo first; cat", stdin="open")
    log_has(agent, name, "first")

    async def abort_after(steps: int) -> Any:
        """The answer, where it came before the abort."""
        calling = asyncio.ensure_future(agent.tools.call("process", {"action": "poll", "sessionId": name}))
        for _ in range(steps):
            await turn()
        calling.cancel()
        outcome: Any = (await asyncio.gather(calling, return_exceptions=True))[0]
        return None if isinstance(outcome, asyncio.CancelledError) else outcome

    async def both() -> list[Any]:
        asked = {"action": "poll", "sessionId": name, "timeout": 20_000}
        polls = [asyncio.ensure_future(agent.tools.call("process", asked)) for _ in range(2)]
        await agent.tools.call("process", {"action": "write", "sessionId": name, "data": "second\n"})
        await asyncio.wait(polls, return_when=asyncio.FIRST_COMPLETED)
        await agent.tools.call("process", {"action": "kill", "sessionId": name})
        return [await each for each in polls]

    aborted = 0
    while (answer := agent.run(abort_after(aborted))) is None:
        aborted += 1
    assert aborted > 3
    assert answer.text.startswith("first\n"), "no poll had shown it before"
    assert poll(agent, name).text.startswith("(no new output)")
    answers = agent.run(both())
    assert sum(answer.text.count("second") for answer in answers) == 1


@pytest.mark.covers("openclaw:8")
def test_an_unknown_id_is_answered_at_once(agents: Agents) -> None:
    agent = agents("openclaw")
    agent.call("process", action="list")
    took = []
    for _ in range(3):
        began = time.monotonic()
        answer = poll(agent, "amber-nothing", timeout=30_000)
        took.append(time.monotonic() - began)
        assert answer.text == "No session found for amber-nothing"
        assert (answer.data["status"], answer.data["error"], answer.error) == ("failed", "not-found", True)
    assert min(took) < 0.2
    texts = {"write": "active ", "kill": "active ", "submit": "active ", "clear": "finished ", "log": "", "remove": ""}
    for action, kind in texts.items():
        answer = agent.call("process", action=action, sessionId="x-y", data="x")
        assert answer.text == f"No {kind}session found for x-y"
    assert agent.call("process", action="poll").text == "sessionId is required for this action."
    assert agent.call("process", action="dance").text.startswith("Invalid process action. Expected one of: list, poll,")


def test_a_run_is_found_by_the_beginning_of_its_id_where_only_one_begins_so(direct: Agents) -> None:
    agent = direct("openclaw")

    def named(run_id: str) -> None:
        spawn = SpawnInput(argv=["sleep", "60"], run_id=run_id, scope_key="agent-7")
        agent.run(agent.tools.supervisor.spawn(spawn))

    for each in ("amber-atlas-2", "azure-atlas", "azure-otter", "brisk-raven"):
        named(each)
    for ref in ("azure-a", "azure-atl", "azure-atlas"):
        assert poll(agent, ref).data["sessionId"] == "azure-atlas"
    assert poll(agent, "brisk").data["sessionId"] == "brisk-raven"
    several = poll(agent, "azure")
    assert (several.data["error"], "azure-otter" in several.text) == ("ambiguous-id", True)
    # The whole id of one that is gone is not the beginning of another's.
    for ref in ("bri", "rave", "amber-atlas", "last"):
        assert poll(agent, ref).text == f"No session found for {ref}"
    agent.call("process", action="remove", sessionId="azure-otter")
    assert poll(agent, "azure").data["sessionId"] == "azure-atlas"
    assert direct("openclaw", owner="b").call("process", action="poll", sessionId="brisk").data["error"] == "not-found"
    agent.call("process", action="kill", all=True)


def test_a_run_that_its_call_reported_makes_no_prefix_ambiguous(direct: Agents) -> None:
    agent = direct("openclaw")
    assert agent.call("exec", command="true").data["status"] == "completed"
    (told,) = agent.run(agent.hf.sessions(all=True))
    beginning = runs.run_id(told).partition("-")[0] + "-"
    assert poll(agent, beginning).data["error"] == "not-found", "it never had a row"
    spawn = SpawnInput(argv=["sleep", "60"], run_id=f"{beginning}zebra", scope_key="agent-7")
    run = agent.run(agent.tools.supervisor.spawn(spawn))
    assert poll(agent, beginning).data["sessionId"] == run.run_id
    agent.run(run.cancel())


@pytest.mark.covers("openclaw:9")
def test_owners_do_not_exist_for_each_other(agents: Agents) -> None:
    a, b = agents("openclaw", owner="a"), agents("openclaw", owner="b")
    of_a, of_b = start(a, "echo mine; sleep 60"), start(b, "sleep 60")
    assert [each["sessionId"] for each in a.call("process", action="list").data["sessions"]] == [of_a]
    assert [each["sessionId"] for each in b.call("process", action="list").data["sessions"]] == [of_b]
    assert poll(b, of_a).text == f"No session found for {of_a}"
    assert b.call("process", action="kill", sessionId=of_a).text == f"No active session found for {of_a}"
    assert b.call("process", action="kill", all=True).data["status"] == "completed"
    assert "mine" in poll(a, of_a, timeout=5000).text
    assert "still running" in poll(a, of_a).text
    a.call("process", action="kill", sessionId=of_a)


@pytest.mark.covers("openclaw:10")
def test_a_poll_gives_the_newest_and_says_what_it_left_out(agents: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOG_SESSION_CAP", "1MiB")
    monkeypatch.setenv("HOLDFAST_LOG_SEGMENT", "64KiB")
    agent = agents("openclaw")
    name = start(agent, "for i in $(seq 10000 19999); do echo line $i; done; sleep 60")
    log_has(agent, name, "line 19999")
    polled = poll(agent, name)
    assert polled.text.startswith("[earlier output is omitted from this poll; use action=log with offset and limit")
    shown = polled.text.removesuffix("\n\nProcess still running.").partition("]\n")[2]
    assert len(shown) in (29_999, 30_000)
    assert shown.endswith("line 19999")
    first = agent.call("process", action="log", sessionId=name, offset=0, limit=1)
    assert (first.text, first.data["totalLines"]) == ("line 10000", 10_000)
    assert agent.call("process", action="log", sessionId=name).text.endswith(
        "[showing last 200 of 10000 lines; pass offset/limit to page]"
    )
    dropping = start(agent, "seq 1000000 1400000; sleep 60")
    log_has(agent, dropping, "1400000", 20)
    gone = poll(agent, dropping)
    assert gone.text.startswith("[earlier output was discarded at the retention cap and cannot be recovered]\n")
    assert "1400000" in gone.text
    agent.call("process", action="kill", all=True)


@pytest.mark.covers("openclaw:11")
def test_streams_keep_their_order_and_what_was_cut_comes_out_whole(agents: Agents, world: World) -> None:
    agent = agents("openclaw")
    gate = world.gate()
    wait = f"head -c 1 {gate} > /dev/null"
    name = start(agent, f"echo one; {wait}; echo two >&2; {wait}; echo three; sleep 60")
    for text in ("one", "two"):
        log_has(agent, name, text)
        gate.release()
    log_has(agent, name, "three")
    assert poll(agent, name).text.startswith("one\ntwo\nthree\n\n")
    half = world.probe("quiet", "write", "x", "hex", "f09f", "await", gate, "hex", "98801b5b33", "await", gate)
    cut = start(agent, [*half, "hex", "316d79", "forever"])
    log_has(agent, cut, "x")
    assert poll(agent, cut).text == "x\n\nProcess still running."
    gate.release()
    assert poll(agent, cut, timeout=5000).text == "\U0001f600\n\nProcess still running."
    gate.release()
    assert poll(agent, cut, timeout=5000).text == "y\n\nProcess still running."
    agent.call("process", action="kill", all=True)


@pytest.mark.covers("openclaw:12")
def test_empty_polls_suggest_growing_pauses(agents: Agents) -> None:
    agent = agents("openclaw")
    name = start(agent, "while read line; do echo $line; done", stdin="open")
    waits = [poll(agent, name).data["retryInMs"] for _ in range(5)]
    assert waits == [5000, 10_000, 30_000, 60_000, 60_000]
    agent.call("process", action="write", sessionId=name, data="news\n")
    assert "news" in poll(agent, name, timeout=5000).text
    assert poll(agent, name).data["retryInMs"] == 5000
    agent.call("process", action="kill", sessionId=name)


@pytest.mark.covers("openclaw:20")
def test_input_is_closed_unless_it_was_asked_for(agents: Agents) -> None:
    agent = agents("openclaw")
    closed = start(agent, "sleep 60")
    refused = agent.call("process", action="write", sessionId=closed, data="y\n")
    assert refused.text.startswith(f"Session {closed} stdin is not writable.")
    assert 'stdin:"open"' in refused.text
    assert "pty:true" in refused.text
    opened = start(agent, "read answer; echo got $answer; cat", stdin="open")
    assert agent.call("process", action="write", sessionId=opened, data="y\n").text == (
        f"Wrote 2 bytes to session {opened}."
    )
    assert "got y" in poll(agent, opened, timeout=5000).text
    last = agent.call("process", action="write", sessionId=opened, data="bye\n", eof=True)
    assert last.text == f"Wrote 4 bytes to session {opened} (stdin closed)."
    until(lambda: poll(agent, opened, timeout=1000).data["status"] == "completed")
    assert agent.call("process", action="log", sessionId=opened).text == "got y\nbye"
    agent.call("process", action="kill", all=True)


def test_a_read_position_survives_its_host_and_a_cursor_moves_nothing(agents: Agents) -> None:
    one = agents("openclaw")
    name = start(one, "echo early; sleep 60")
    log_has(one, name, "early")
    whole = poll(one, name, cursor="0")
    assert whole.text.startswith("early")
    first = poll(one, name)
    assert first.text.startswith("early")
    assert poll(one, name, cursor=first.data["nextCursor"]).text.startswith("(no new output)")
    assert poll(one, name, cursor="yesterday").data["error"] == "bad-cursor"
    assert poll(one, name, cursor="stdout:99999,stderr:0").data["error"] == "offset-ahead"
    another = agents("openclaw")
    assert poll(another, name).text.startswith("(no new output)")
    another.call("process", action="kill", sessionId=name)


def test_the_last_poll_has_all_output_as_aggregated(direct: Agents) -> None:
    agent = direct("openclaw", exec={"maxOutputChars": 1000})
    name = start(agent, "echo early; read x; echo late", stdin="open")
    log_has(agent, name, "early")
    assert poll(agent, name).text.startswith("early")
    agent.call("process", action="write", sessionId=name, data="\n")
    over = until(lambda: (it := poll(agent, name, timeout=1000)).data["status"] == "completed" and it)
    again = poll(agent, name)
    assert again.text.startswith("(no new output)")
    for each in (over, again):
        assert (each.data["aggregated"], each.data["totalChars"]) == ("early\nlate\n", 11)
    long = start(agent, "seq 1000")
    whole = until(lambda: (it := poll(agent, long, timeout=1000)).data["status"] == "completed" and it)
    assert len(whole.data["aggregated"]) == 1000
    assert whole.data["aggregated"].endswith("\n999\n1000\n")
    assert whole.data["totalChars"] == 3893


def test_all_characters_of_a_long_output_are_counted(direct: Agents) -> None:
    agent = direct("openclaw")
    name = start(agent, "seq 300000")
    until(lambda: poll(agent, name).data["status"] == "completed")
    assert poll(agent, name).data["totalChars"] == len("".join(f"{each}\n" for each in range(1, 300_001)))


def test_a_list_shows_the_state_of_each_run(agents: Agents) -> None:
    agent = agents("openclaw")
    running = start(agent, "sleep 60", stdin="open")
    done = start(agent, "echo out; exit 4")
    poll(agent, done, timeout=5000)
    until(lambda: poll(agent, done, timeout=500).data["status"] == "failed")
    listed = agent.call("process", action="list")
    second, first = listed.data["sessions"]
    assert (first["sessionId"], first["status"], first["stdinWritable"]) == (running, "running", True)
    assert (second["sessionId"], second["exitCode"], second["tail"]) == (done, 4, "out\n")
    assert listed.text.splitlines()[1].startswith(f"{running} running   ")
    assert listed.text.splitlines()[1].endswith(":: sleep 60")
    by_pid = poll(agent, str(first["pid"]))
    assert by_pid.data["sessionId"] == running
    agent.call("process", action="kill", sessionId=running)


def test_a_program_on_the_other_screen_is_shown_as_its_screen(agents: Agents, world: World) -> None:
    agent = agents("openclaw")
    mark = world.cwd / "drawn"
    redraw = r"printf '\033[?1049h'; for i in $(seq 500); do printf '\033[Hframe %d' $i; done; touch " + str(mark)
    name = start(agent, f"{redraw}; sleep 60", pty=True)
    wait_for_file(mark)
    log_has(agent, name, "frame 500")
    shown = poll(agent, name)
    assert shown.text.count("frame") == 1
    assert "frame 500" in shown.text
    agent.call("process", action="kill", sessionId=name)


def test_what_survivors_print_is_in_the_log_alone_and_marked(agents: Agents, world: World) -> None:
    gate = world.gate()
    agent = agents("openclaw")
    name = start(agent, f"(read -n 1 x < {gate}; echo late) & echo done")
    until(lambda: poll(agent, name, timeout=1000).data["status"] == "completed")
    gate.release()
    log_has(agent, name, "late")
    log = agent.call("process", action="log", sessionId=name)
    assert log.text == ("done\n[afterExit: processes that outlived the command printed what follows]\nlate")
    assert log.data["afterExit"] == 1
    assert "late" not in poll(agent, name).text


def test_silence_with_open_input_may_be_waiting(direct: Agents) -> None:
    agent = direct("openclaw", exec={"inputWaitIdleMs": 1000})
    name = start(agent, "read x", stdin="open")
    waiting = until(lambda: (it := poll(agent, name, timeout=200)).data["waitingForInput"] and it)
    assert waiting.data["inputWaitEvidence"] in ("idle", "blocked")
    assert f"Use process write, send-keys or submit on session {name}" in waiting.text
    assert "[input-wait]" in agent.call("process", action="list").text
    agent.call("process", action="kill", sessionId=name)


def test_rows_leave_by_age_and_number_and_ids_still_answer(direct: Agents, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = direct("openclaw")
    monkeypatch.setattr(settings, "ROWS", 3)
    names = []
    for number in range(5):
        names.append(start(agent, f"echo run {number}"))
        until(lambda: poll(agent, names[-1], timeout=500).data["status"] == "completed")
    running = start(agent, "sleep 600")
    listed = [row["sessionId"] for row in agent.call("process", action="list").data["sessions"]]
    assert listed == [running, *reversed(names[2:])]
    now = views.now_ms()
    monkeypatch.setattr(views, "now_ms", lambda: now + 31 * 60_000)
    assert [row["sessionId"] for row in agent.call("process", action="list").data["sessions"]] == [running]
    assert agent.call("process", action="log", sessionId=names[0]).text == "run 0"
    agent.call("process", action="kill", sessionId=running)


def test_a_runner_that_does_not_answer_is_reported_at_once(
    direct: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "0.3")
    agent = direct("openclaw")
    name = start(agent, "echo before; sleep 600")
    log_has(agent, name, "before")
    with wedged(world.open().get(name)):
        passed = QuietTime()
        polled = poll(agent, name, timeout=30_000)
        again = poll(agent, name, timeout=30_000)
        assert passed.seconds() < 5
    assert polled.text.startswith("before\n\n")
    assert f"Session {name} is unreachable" in polled.text
    assert (polled.data["health"], again.text.startswith("(no new output)")) == ("unreachable", True)
    agent.call("process", action="kill", sessionId=name)


def test_typing_without_a_runner_fails_in_the_words_of_these_tools(
    direct: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", "0.3")
    agent, hf = direct("openclaw"), world.open()
    name = start(agent, "echo before; exec sleep 600", stdin="open")
    log_has(agent, name, "before")
    typing: list[dict[str, Any]] = [
        {"action": "write", "data": "x"},
        {"action": "send-keys", "literal": "x"},
        {"action": "submit"},
        {"action": "paste", "text": "x"},
    ]
    with wedged(hf.get(name)):
        for asked in typing:
            answer = agent.call("process", sessionId=name, **asked)
            assert answer.text.startswith(f"Session {name} is unreachable: ")
            assert (answer.data["error"], answer.data["sessionId"]) == ("unreachable", name)
    kill_runner(hf.get(name))
    for asked in typing:
        answer = agent.call("process", sessionId=name, **asked)
        assert answer.text.startswith(f"Session {name} is stale: ")
        assert (answer.data["error"], answer.data["sessionId"]) == ("runner-gone", name)
    polled = poll(agent, name)
    assert (polled.data["health"], polled.data["stdinWritable"]) == ("stale", False)
    agent.call("process", action="kill", sessionId=name)
    sweep_up(world, hf)


def test_without_a_free_terminal_the_call_fails_and_runs_nothing(
    direct: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = direct("openclaw")

    async def none_left(*_: Any, **__: Any) -> Any:
        raise PtyUnavailable(28, 4096, 4096)

    monkeypatch.setattr(agent.hf, "run", none_left)
    refused = agent.call("exec", command="touch x", pty=True)
    assert (refused.data["status"], refused.data["error"]) == ("failed", "pty-unavailable")
    assert refused.data["failureKind"] == "runtime-error"
    assert list(world.cwd.iterdir()) == []


def test_a_log_of_no_lines_is_refused(agents: Agents) -> None:
    agent = agents("openclaw")
    name = start(agent, "echo here; sleep 60")
    log_has(agent, name, "here")
    none = agent.call("process", action="log", sessionId=name, limit=0)
    assert (none.error, none.data["error"], "limit" in none.text) == (True, "bad-argument", True)
    assert agent.call("process", action="log", sessionId=name, limit=1).text == "here"
    agent.call("process", action="kill", sessionId=name)


def test_a_log_that_is_too_long_keeps_the_end_or_what_follows_the_offset(agents: Agents) -> None:
    agent = agents("openclaw")
    name = start(agent, "seq 100000 149999; exec sleep 60")
    log_has(agent, name, "149999")

    def log(**more: Any) -> Any:
        return agent.call("process", action="log", sessionId=name, **more)

    last = log(limit=50_000)
    note, _, shown = last.text.partition("\n")
    assert note == "[earlier lines are left out at 200000 characters; pass offset/limit to page]"
    assert (len(shown), shown.endswith("\n149999")) == (200_000, True)
    assert (last.data["truncated"], last.data["totalLines"]) == (True, 50_000)
    assert shown.splitlines()[1] == str(100_000 + last.data["firstLine"] + 1)
    first = log(offset=0)
    shown, _, note = first.text.rpartition("\n")
    assert shown.startswith("100000\n")
    assert (len(shown), first.data["truncated"], first.data["firstLine"]) == (200_000, True, 0)
    following = int(re.findall(r"offset (\d+)", note)[0])
    assert log(offset=following, limit=1).text.endswith(str(100_000 + following))
    assert log(offset=following, limit=1).data["truncated"] is False
    assert log(offset=50_000).text == "[offset 50000 is beyond the end: there are 50000 lines]"
    agent.call("process", action="kill", all=True)


def test_a_stored_position_beyond_the_end_is_the_end(direct: Agents) -> None:
    """The home came back from an older copy of itself, or its notes are from a newer one."""
    agent = direct("openclaw")
    name = start(agent, "echo first; cat", stdin="open")
    log_has(agent, name, "first")

    async def id() -> str:
        return str((await agent.hf.get(name)).id)

    agent.tools.kept.put(agent.run(id()), views.POSITION, "stdout:999999,stderr:0")
    assert poll(agent, name).text == "(no new output)\n\nProcess still running."
    agent.call("process", action="write", sessionId=name, data="second\n")
    assert poll(agent, name, timeout=5000).text == "second\n\nProcess still running."
    agent.call("process", action="kill", sessionId=name)


def test_a_changed_limit_is_reported_with_its_new_value(direct: Agents) -> None:
    agent = direct("openclaw")
    name = start(agent, "sleep 60", key="web", timeout=100)

    async def change() -> int:
        session = await agent.hf.get(name)
        await session.update(timeout=200)
        return runs.at_ms(session.created_at) or 0

    asked = agent.run(change())
    again = agent.call("exec", command="sleep 60", key="web")
    assert (again.data["timeoutAtMs"], "(timeout 200 s)" in again.text) == (asked + 200_000, True)
    assert poll(agent, name).data["timeoutAtMs"] == asked + 200_000
    (row,) = agent.call("process", action="list").data["sessions"]
    assert row["timeoutAtMs"] == asked + 200_000
    agent.call("process", action="kill", sessionId=name)
