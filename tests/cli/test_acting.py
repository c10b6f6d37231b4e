"""send, eof, stop, kill, restart, rm, recover, doctor, gc, config."""

from __future__ import annotations

import json
import os
import re

import pytest

from cli.conftest import Start
from support.faults import kill_runner, sweep_up, wedged
from support.waiting import wait_gone
from support.world import World


def test_text_is_sent_exactly_and_the_input_closed(world: World, start: Start) -> None:
    id = start("read-line", "count-stdin", options=("--stdin", "open"))
    assert world.hold("send", id, "he", check=True).stdout == ""
    world.hold("send", id, "llo", "--newline", check=True)
    world.hold("wait", id, "--match", "got hello", "--timeout", "30s", check=True)
    sent = json.loads(world.hold("send", id, "12345", "--json").stdout)
    assert (sent["accepted"], sent["warnings"], sent["woke"]) == (5, [], None)
    world.hold("eof", id, check=True)
    assert world.hold("wait", id, "--match", "stdin 5", "--timeout", "30s").returncode == 0


def test_our_input_is_passed_on_whole_when_no_text_is_given(world: World, start: Start) -> None:
    id = start("count-stdin", options=("--stdin", "open"))
    sent = world.hold("send", id, "--json", input="x" * 2_500_000)
    assert json.loads(sent.stdout)["accepted"] == 2_500_000
    ended = json.loads(world.hold("eof", id, "--match", "stdin 2500000", "--timeout", "5s", "--json").stdout)
    assert (ended["woke"]["reason"], ended["warnings"]) == ("match", [])


@pytest.mark.parametrize("way", ["a text", "our input"])
def test_what_is_sent_can_be_waited_behind(world: World, start: Start, way: str) -> None:
    id = start("read-line", "forever", options=("--stdin", "open"))
    text = ("hello",) if way == "a text" else ()
    input = "" if text else "hello"
    done = world.hold("send", id, *text, "--newline", "--match", "got (.*)", "--json", input=input)
    answer = json.loads(done.stdout)
    assert (done.returncode, answer["accepted"], answer["woke"]["match"]) == (0, 6, "got hello")
    late = world.hold("send", id, *text, "--newline", "--match", "got (.*)", "--timeout", "100ms", input=input)
    assert late.returncode == 124


@pytest.mark.parametrize("way", ["a text", "our input"])
def test_a_line_too_long_for_the_terminal_is_warned_of(world: World, start: Start, way: str) -> None:
    id = start("forever", options=("--tty",))
    line = "x" * 5000
    sent = world.hold("send", id, line) if way == "a text" else world.hold("send", id, input=line)
    assert sent.returncode == 0
    assert "longer than the terminal accepts" in sent.stderr


def test_the_end_of_input_is_a_key_to_a_raw_terminal_and_that_is_said(world: World) -> None:
    raw = "stty raw -echo; echo ready; exec sleep 60"
    id = world.hold("start", "--tty", "--", raw, check=True).stdout.strip()
    world.hold("wait", id, "--match", "ready", "--timeout", "30s", check=True)
    ended = world.hold("eof", id)
    assert ended.returncode == 0
    assert "reads its terminal in raw mode" in ended.stderr
    world.hold("kill", id, check=True)


def test_stop_ends_many_side_by_side_with_a_line_each(world: World, start: Start) -> None:
    ids = [start("ignore", "TERM", "say", "set", "forever") for _ in range(3)]
    for id in ids:
        world.hold("wait", id, "--match", "set", "--timeout", "30s", check=True)
    done = world.hold("stop", *ids, "--grace", "1s")
    lines = done.stdout.splitlines()
    assert [line.split(":")[0] for line in lines] == ids
    assert all(re.search("stopped, 1 process gone after [1-9][0-9]*s", line) for line in lines), lines
    assert done.returncode == 0
    again = world.hold("stop", *ids)
    assert (again.returncode, again.stdout.count("already over")) == (0, 3)


def test_stop_as_json_reports_what_was_found(world: World, start: Start) -> None:
    id = start("fork", "{", "forever", "}", "say", "set", "forever")
    world.hold("wait", id, "--match", "set", "--timeout", "30s", check=True)
    [answer] = json.loads(world.hold("stop", id, "--json").stdout)
    assert (answer["id"], len(answer["found"]), answer["survivors"], answer["error"]) == (id, 2, [], None)


def test_stop_takes_an_owner_a_label_or_all(world: World, start: Start) -> None:
    mine = start("forever", options=("--owner", "me"))
    red = start("forever", options=("--label", "color=red"))
    other = start("forever")
    assert world.hold("stop", "--owner", "me", check=True).stdout.startswith(mine)
    assert world.hold("stop", "--label", "color=red", check=True).stdout.startswith(red)
    assert world.hold("ls", "-q").stdout.split() == [other]
    assert world.hold("stop", "--all", check=True).stdout.startswith(other)
    nobody = world.hold("stop", "--all", "--json")
    assert (json.loads(nobody.stdout), nobody.returncode) == ([], 0)


def test_stop_continues_past_what_it_cannot_find(world: World, start: Start) -> None:
    id = start("forever")
    done = world.hold("stop", "nobody", id)
    assert done.returncode == 3
    assert "nobody: no such session" in done.stdout
    assert f"{id}: stopped" in done.stdout
    assert world.open().get(id).state == "exited"


def test_kill_ends_the_tree_at_once(world: World, start: Start) -> None:
    id = start("ignore", "TERM", "fork", "{", "ignore", "TERM", "forever", "}", "say", "set", "forever")
    world.hold("wait", id, "--match", "set", "--timeout", "30s", check=True)
    done = world.hold("kill", id)
    assert done.returncode == 0
    assert "2 processes gone" in done.stdout
    exit = world.open().get(id).exit
    assert exit is not None
    assert exit.signal == "SIGKILL"


def test_kill_with_a_signal_sends_just_that(world: World, start: Start) -> None:
    id = start("signal-report", "say", "set", "forever")
    world.hold("wait", id, "--match", "set", "--timeout", "30s", check=True)
    assert world.hold("kill", "-s", "usr1", id).stdout == f"{id}: sent to 1 process\n"
    world.hold("wait", id, "--match", "signal USR1", "--timeout", "30s", check=True)
    [answer] = json.loads(world.hold("kill", "-s", "12", "--target", "tree", id, "--json").stdout)
    assert (answer["id"], answer["sent"]) == (id, 1)
    world.hold("wait", id, "--match", "signal USR2", "--timeout", "30s", check=True)
    assert world.hold("ls", "-q").stdout.split() == [id]


def test_restart_gives_a_new_session_of_the_same_command(world: World, start: Start) -> None:
    first = start("print-env", "COLOR", "forever", options=("--name", "web", "--env", "COLOR=red"))
    refused = world.hold("restart", "web")
    assert refused.returncode == 2
    assert "COLOR" in refused.stderr
    assert world.hold("ls", "-q").stdout.split() == [first]
    second = world.hold("restart", "web", "--env", "COLOR=blue", "--grace", "1s", check=True).stdout.strip()
    assert second != first
    session = world.open().get("web")
    assert (session.id, session.metadata["restarted_from"]) == (second, first)
    assert session.wait(match="COLOR=blue", timeout=30).reason == "match"
    assert world.hold("stop", "--all").returncode == 0


def test_restart_takes_what_was_never_stored_once_more(world: World) -> None:
    words = world.root / "words"
    words.write_text("again\n")
    first = world.hold("start", "--input", "-", "--lifetime", "owner", "--owner-pid", str(os.getpid()), "--", "cat")
    refused = world.hold("restart", first.stdout.strip())
    assert refused.returncode == 2
    assert "input: 0 bytes were given" in refused.stderr
    again = ("restart", first.stdout.strip(), "--input", words, "--lifetime", "detached")
    second = world.hold(*again, check=True).stdout.strip()
    world.hold("wait", second, "--exit", "--timeout", "30s", check=True)
    assert world.hold("logs", second).stdout == "again\n"


def test_rm_removes_ended_sessions_and_refuses_running_ones(world: World, start: Start) -> None:
    over, live = start("exit", 0), start("forever")
    world.hold("wait", over, "--exit", "--timeout", "30s", check=True)
    done = world.hold("rm", over, live)
    assert done.stdout == f"removed {over}\n"
    assert f"session {live} is still running" in done.stderr
    assert done.returncode == 4
    assert not world.session(over).exists()
    answers = json.loads(world.hold("rm", over, live, "--json").stdout)
    assert [(answer["removed"], answer["error"]["code"]) for answer in answers] == [
        (False, "removed"),
        (False, "still-running"),
    ]


def test_recover_lists_each_group(world: World, start: Start) -> None:
    hf = world.open()
    live = start("forever", options=("--name", "live"))
    stale, lost, silent = (hf.get(start("forever")) for _ in range(3))
    kill_runner(stale)
    assert lost.pid is not None
    kill_runner(lost)
    from support import processes

    processes.end(processes.look(lost.pid))  # type: ignore[arg-type]
    wait_gone(lost.pid)
    with wedged(silent):
        shown = world.hold("recover", env={"HOLDFAST_HOSTS_SWEEP_TIMEOUT": "3s"}).stdout
    rows = [line.split()[:2] for line in shown.splitlines()[1:]]
    assert rows == [["live", live], ["unreachable", silent.id], ["stale", stale.id], ["lost", lost.id]]
    found = json.loads(world.hold("recover", "--json").stdout)
    assert [session["id"] for session in found["stale"]] == [stale.id]
    assert world.hold("stop", stale.id).returncode == 0
    assert world.hold("stop", "--all").returncode == 0
    sweep_up(world, hf)


def test_doctor_finds_a_healthy_home_healthy(world: World, start: Start) -> None:
    start("forever")
    done = world.hold("doctor")
    assert done.returncode == 0, done.stdout
    assert "ok " in done.stdout
    findings = json.loads(world.hold("doctor", "--rebuild", "--json").stdout)
    assert all({"check", "level", "text", "fix", "repaired"} <= set(finding) for finding in findings)
    assert "problem" not in [finding["level"] for finding in findings]


def test_gc_says_what_goes_and_only_then_removes_it(world: World, start: Start) -> None:
    over, live = start("exit", 0), start("forever")
    world.hold("wait", over, "--exit", "--timeout", "30s", check=True)
    refused = world.hold("gc", "--all")
    assert refused.returncode == 4
    assert "still running" in refused.stderr
    world.hold("stop", live, check=True)
    dry = world.hold("gc", "--all", "--dry-run")
    assert f"would remove {over}" in dry.stdout
    assert world.session(over).exists()
    done = json.loads(world.hold("gc", "--all", "--json").stdout)
    assert sorted(done["removed"]) == sorted([over, live])
    assert world.hold("gc", check=True).stdout.startswith("removed 0 sessions")


def test_config_shows_each_value_and_its_source(world: World) -> None:
    file = world.root / "user" / ".config" / "holdfast" / "config.toml"
    file.parent.mkdir()
    file.write_text('[log]\nkeep = "2d"\n')
    done = world.hold("config", env={"HOLDFAST_START_GRACE": "90s"})
    shown = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if "." in line.split(" ")[0]}
    assert shown["log.keep"] == ["2d", "file", f"{file}:2"]
    assert shown["start.grace"] == ["90s", "env", "HOLDFAST_START_GRACE"]
    assert shown["start.shell"] == ["/bin/sh", "default"]
    values = json.loads(world.hold("config", "--json").stdout)
    assert values["log.keep"] == {"value": 172800.0, "source": f"file {file}:2"}


def test_config_lists_the_channels_to_people_without_their_secrets(world: World) -> None:
    file = world.root / "config.toml"
    file.write_text(
        '[people.command]\nargv = ["notify-send", "{title}"]\n'
        '[people.webhook.ops]\nurl = "https://example.org/very-secret"\nsecret_file = "/s"\nevents = ["ended"]\n'
    )
    env = {"HOLDFAST_CONFIG": str(file)}
    shown = world.hold("config", env=env).stdout
    assert "failed, limit, needs_input" in shown
    assert "(as people.events)" in shown
    assert "1s, 5s, 30s, 2m, 10m" in shown
    assert "notify-send, {title}" in shown
    assert "https://example.org/..." in shown
    reported = world.hold("config", "--json", env=env).stdout
    assert "very-secret" not in shown + reported
    assert json.loads(reported)["people.webhook.ops"] == {
        "value": {"url": "https://example.org/...", "secret_file": "/s", "events": ["ended"]},
        "source": f"file {file}:3",
    }


def test_options_of_a_terminal_ask_for_one_of_that_kind(world: World) -> None:
    line = 'echo "$TERM"; stty -a; exec sleep 60'
    colors = ("--foreground", "#010203", "--background", "#fffefd")
    reported = ("--term", "vt220", "--size-policy", "fixed", "--no-echo", "--clipboard", *colors)
    id = world.hold("start", *reported, "--size", "40x10", "--", line, check=True).stdout.strip()
    world.hold("wait", id, "--match", "speed", "--timeout", "30s", check=True)
    shown = world.hold("logs", id).stdout
    assert shown.startswith("vt220")
    assert "rows 10; columns 40" in shown
    assert " -echo " in shown
    tty = json.loads((world.session(id) / "spec.json").read_text())["tty"]
    assert (tty["size_policy"], tty["clipboard"]) == ("fixed", True)
    assert tty["colors"] == {"foreground": [1, 2, 3], "background": [255, 254, 253]}
    world.hold("kill", id, check=True)
    wrong = world.hold("start", "--background", "mauve", "--", "true")
    assert (wrong.returncode, "is not a colour" in wrong.stderr) == (2, True)
