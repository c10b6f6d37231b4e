"""Reminders: which daemons the agent is reminded of, what they say, and when they go."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

import pytest

from holdfast import errors
from holdfast.core import clock
from holdfast.tools.dominds.words import Texts
from support.faults import kill_runner, wedged
from support.waiting import until

if TYPE_CHECKING:
    from holdfast.tools import Answer
    from holdfast.tools.dominds import Reminder
    from support.agents import Agent, Agents
    from support.world import World


def started(agent: Agent, command: str) -> Answer:
    receipt = agent.call("shell_cmd", command=command, timeoutSeconds=1)
    assert receipt.data["outcome"] == "running", receipt.text
    return receipt


def reminders(agent: Agent) -> list[Reminder]:
    found: list[Reminder] = agent.run(agent.tools.reminders())
    return found


def only(agent: Agent) -> Reminder:
    (reminder,) = reminders(agent)
    return reminder


@pytest.mark.covers("dominds:22")
def test_a_reminder_is_the_same_bytes_until_something_changes(
    direct: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = direct("dominds")
    gate = world.gate()
    daemon = started(agent, f"echo out; echo err >&2; read -n 1 < {gate}; echo more; sleep 60")
    first = only(agent)
    now = clock.wall_ns
    with monkeypatch.context() as patch:
        patch.setattr(clock, "wall_ns", lambda: now() + 60_000_000_000)
        later = only(agent)
    assert later.render() == first.render()
    assert later.fingerprint == first.fingerprint
    lines = first.render().splitlines()
    assert lines.index("stderr:") < lines.index("stdout:")
    gate.release()
    assert world.open().get(daemon.data["session"]).wait(match="more", timeout=30).reason == "match"
    changed = only(agent)
    assert changed.render() != first.render()
    assert changed.fingerprint != first.fingerprint
    assert "more" in changed.render()


def test_a_running_daemon_is_rendered_with_everything_about_it(direct: Agents) -> None:
    agent = direct("dominds", reminder_chars=20)
    daemon = started(agent, "seq 600; echo bad >&2; sleep 60")
    pid = daemon.data["pid"]
    reminder = only(agent)
    message = reminder.message()
    assert (message["role"], message["role_hint"]) == ("user", "environment")
    command = "seq 600; echo bad >&2; sleep 60"
    summary = f"🟢 {command} running (system-maintained / live source of truth)"
    (uptime,) = re.findall(r"^Uptime: (\d+s)$", message["content"], re.MULTILINE)
    head = f"🔄 [System notice] Daemon lifecycle reminder [{reminder.id}] - {summary} | PID {pid}, uptime: {uptime}"
    assert message["content"].splitlines() == [
        head,
        "Kept current by the system. Do not answer, acknowledge or copy it.",
        "",
        f"Daemon PID: {pid}",
        f"Command: {command}",
        "Shell: bash",
        "Lifecycle status: running",
        f"Uptime: {uptime}",
        f"Started at: {daemon.data['startedAt']}",
        "stdout: 100 lines have scrolled out of view",
        "",
        *("stderr:", "```console", "bad", "```"),
        "",
        *("stdout: (last 20 characters)", "```console", "596", "597", "598", "599", "600", "```"),
    ]


def test_a_receipt_and_a_reminder_say_what_retention_dropped(
    direct: Agents, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = world.root / "small.toml"
    config.write_text("[log]\nsession_cap = '1MiB'\nsegment = '256KiB'\n")
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    agent = direct("dominds")
    command = "seq -f 'line %012.0f' 0 99999; sleep 60"
    receipt = agent.call("shell_cmd", command=command, timeoutSeconds=2)
    for text in (receipt.text, only(agent).render()):
        (said,) = [line for line in text.splitlines() if "was dropped by retention" in line]
        assert said.startswith("⚠️  stdout before offset ")


def test_rendering_does_not_count_as_showing(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    gate = world.gate()
    daemon = started(agent, f"read -n 1 < {gate}; echo fr''esh; sleep 60")
    gate.release()
    until(lambda: "fresh" in only(agent).render(), what="the line in the reminder")
    read = agent.call("get_daemon_output", pid=daemon.data["pid"], timeout_ms=0)
    assert read.data["wait_status"] == "output"


def test_each_state_has_its_summary(direct: Agents, world: World) -> None:
    agent = direct("dominds", stale_policy="report")
    daemon = started(agent, "exec sleep 60")
    session = world.open().get(daemon.data["session"])
    with wedged(session):
        assert "🟠 exec sleep 60 runner not answering | PID " in only(agent).render()
    kill_runner(session)
    assert "🔴 exec sleep 60 stale: runner gone, process alive | PID " in only(agent).render()
    os.kill(daemon.data["pid"], 9)
    until(lambda: only(agent).state == "lost", what="the loss")
    lost = only(agent)
    assert "⚪ exec sleep 60 lost: no exit record | PID " in lost.render()
    assert "Lifecycle status: unknown (no exit record)" in lost.render()
    assert "delete" not in lost.to_json()


def test_an_end_is_shown_with_its_cause_and_who_asked(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    daemon = started(agent, "sleep 60; true")
    world.open(author="cli:ada").get(daemon.data["session"]).stop(grace=1)
    reminder = only(agent)
    assert "🟡 sleep 60; true exited (exit event notice) | PID " in reminder.render()
    assert "Lifecycle status: exited (code: null, signal: SIGTERM)" in reminder.render()
    assert "Cause: stop, asked by cli:ada" in reminder.render()
    fields = reminder.to_json()
    assert (fields["completed"], fields["cause"], fields["requestedBy"]) == (True, "stop", "cli:ada")


def test_a_reminder_of_descendants_stays_when_they_are_gone(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    gate = world.gate()
    done = agent.call("shell_cmd", command=f"read -n 1 < {gate} & echo up")
    assert done.data["survivors"]
    assert not only(agent).completed
    gate.release()
    until(lambda: only(agent).completed, what="the extinction")
    assert "exited (exit event notice)" in only(agent).render()


def test_the_owner_has_one_list_for_all_dialogs_and_others_see_nothing(direct: Agents) -> None:
    one, two = direct("dominds", dialog="a"), direct("dominds", dialog="b")
    started(one, "sleep 60; true")
    started(two, "sleep 61; true")
    assert [each.to_json()["originDialogId"] for each in reminders(one)] == ["a", "b"]
    assert [each.id for each in reminders(one)] == [each.id for each in reminders(two)]
    assert reminders(direct("dominds", owner="agent-8")) == []


def test_another_language_leaves_what_is_matched_as_it_is(direct: Agents) -> None:
    agent = direct("dominds", texts={"snapshot_status": "Zustand: {status}"})
    started(agent, "sleep 60")
    assert "Zustand: running" in only(agent).render().splitlines()


@pytest.mark.parametrize(
    "name, text",
    [
        ("status_running", "läuft"),
        ("status_exited", "beendet"),
        ("cut", "{limit} of {count}"),
        ("cut", "{limit"),
        ("cut", "{}"),
        ("cut", "{limit.__class__}"),
        ("cut", "{limit:x}"),
        ("cut", "{limit!r}"),
    ],
)
def test_a_text_that_could_not_be_filled_in_is_refused_at_once(name: str, text: str) -> None:
    with pytest.raises(errors.BadArgument, match=name):
        Texts({name: text})


def test_dismissing_is_refused_while_something_lives(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    gate = world.gate()
    daemon = started(agent, f"read -n 1 < {gate}")
    with pytest.raises(errors.StillRunning) as refused:
        agent.run(agent.tools.dismiss(daemon.data["session"]))
    assert f'stop_daemon({{ "pid": {daemon.data["pid"]} }})' in str(refused.value)
    gate.release()
    until(lambda: only(agent).completed, what="the end")
    agent.run(agent.tools.dismiss(daemon.data["session"]))
    assert reminders(agent) == []
    assert not agent.call("get_daemon_output", pid=daemon.data["pid"]).error, "the log is still there"
    with pytest.raises(errors.NotFound):
        agent.run(agent.tools.dismiss("b00000000"))


@pytest.mark.slow
@pytest.mark.covers("dominds:27")
def test_a_lost_index_brings_back_at_most_the_ended_daemon(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    for _ in range(100):
        assert agent.call("shell_cmd", command="true").data["outcome"] == "completed"
    gate = world.gate()
    daemon = started(agent, f"read -n 1 < {gate}")
    gate.release()
    until(lambda: only(agent).completed, what="the end")
    agent.run(agent.tools.dismiss(daemon.data["session"]))
    assert reminders(agent) == []
    for path in world.home.glob("index.db*"):
        path.unlink(missing_ok=True)
    again = direct("dominds")
    assert {each.id for each in reminders(again)} <= {daemon.data["session"]}


def test_damaged_records_are_reported_and_block_nothing(direct: Agents, world: World) -> None:
    agent = direct("dominds")
    daemon = started(agent, "sleep 60")
    broken = world.home / "sessions" / "b00000001"
    broken.mkdir(mode=0o700)
    (broken / "spec.json").write_text("{")
    found = agent.run(agent.tools.recover())
    assert [path for path in found["quarantined"] if "b00000001" in path]
    assert only(agent).id == daemon.data["session"]
