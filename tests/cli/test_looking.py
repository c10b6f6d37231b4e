"""ls, status, logs, search, wait: for people and as JSON."""

from __future__ import annotations

import base64
import json
import os
import pty
import re
import subprocess

import pytest

from cli.conftest import Start
from support.waiting import until
from support.world import World


def lines_of(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


def test_ls_shows_live_sessions_and_with_a_those_that_are_over(world: World, start: Start) -> None:
    live = start("forever", options=("--name", "web", "--label", "app=shop"))
    over = start("exit", 3)
    world.hold("wait", over, "--exit", "--timeout", "30s", check=True)
    head, *rows = lines_of(world.hold("ls").stdout)
    assert head == ["ID", "NAME", "STATE", "AGE", "LABELS", "COMMAND"]
    assert [row[:3] for row in rows] == [[live, "web", "running"]]
    everything = world.hold("ls", "-a").stdout
    assert [row[0] for row in lines_of(everything)[1:]] == [live, over]
    assert "exit 3" in everything


FILTERS = [
    (("--owner", "a"), ["one"]),
    (("--label", "k=1"), ["one", "two"]),
    (("--label", "k=1", "--owner", "b"), ["two"]),
    (("--search", "TWO"), ["two"]),
    (("--name", "one"), ["one"]),
    (("--status", "running"), ["one", "two"]),
    (("--status", "failed"), ["three"]),
    (("--state", "exited"), ["three"]),
    (("-a",), ["one", "two", "three"]),
]


def test_ls_filters(world: World, start: Start) -> None:
    start("forever", options=("--name", "one", "--owner", "a", "--label", "k=1"))
    start("forever", options=("--name", "two", "--owner", "b", "--label", "k=1"))
    start("exit", 1, options=("--name", "three"))
    world.hold("wait", "three", "--exit", "--timeout", "30s", check=True)
    for words, expected in FILTERS:
        found = json.loads(world.hold("ls", "--json", *words, check=True).stdout)
        assert [session["name"] for session in found] == expected, words
        quiet = world.hold("ls", "-q", *words, check=True).stdout.split()
        assert quiet == [session["id"] for session in found], words


def test_an_empty_listing_is_an_empty_array(world: World) -> None:
    done = world.hold("ls", "--json")
    assert (json.loads(done.stdout), done.stderr, done.returncode) == ([], "", 0)
    assert world.hold("ls").stdout == ""


def test_control_characters_never_reach_the_terminal(world: World) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\r\u202egnp.exe"
    id = world.hold("start", "--description", evil, "--", "sh", "-c", f"true '{evil}'", check=True).stdout.strip()
    world.hold("wait", id, "--exit", check=True)
    for words in (("ls", "-a"), ("status", id), ("recover",)):
        shown = world.hold(*words).stdout
        assert not set(shown) & set("\x1b\x07\r\u202e"), words
    assert "\\x1b]0;owned" in world.hold("ls", "-a").stdout


def test_status_reports_everything_with_evidence_and_time(world: World, start: Start) -> None:
    id = start(
        "say",
        "hello",
        "forever",
        options=(
            "--name",
            "web",
        ),
    )
    world.hold("wait", id, "--match", "hello", "--timeout", "30s", check=True)
    shown = {line[:12].strip(): line[12:].strip() for line in world.hold("status", "web").stdout.splitlines()}
    session = json.loads(world.hold("status", "web", "--json").stdout)
    assert shown["id"] == session["id"] == id
    assert shown["state"] == "running"
    assert shown["evidence"] == session["metadata"]["evidence"] == "its runner answered"
    assert shown["observed"].endswith(" ago)")
    assert shown["pid"] == str(session["pid"])
    assert shown["stdout"] == "12 B"
    assert shown["cursor"] == session["cursor"] == "stdout:12,stderr:0"


def test_status_of_one_that_ended_reports_how(world: World, start: Start) -> None:
    id = start("die", "USR1")
    world.hold("wait", id, "--exit", "--timeout", "30s", check=True)
    shown = world.hold("status", id, check=True).stdout
    assert "exited (signal USR1)" in shown
    assert "\ncause        signal, not by a stop or `hold kill`\n" in shown


@pytest.mark.parametrize("how", ["id", "prefix", "name", "pid", "last"])
def test_a_session_is_found_by_what_is_known_of_it(world: World, start: Start, how: str) -> None:
    start("forever")
    id = start("forever", options=("--name", "web"))
    session = world.open().get(id)
    ref = {"id": id, "prefix": id[:5], "name": "web", "pid": str(session.pid), "last": "last"}[how]
    assert json.loads(world.hold("status", ref, "--json").stdout)["id"] == id


def test_logs_are_all_that_was_printed_as_clean_text(world: World, start: Start) -> None:
    id = start("write", "\x1b[31mred\x1b[0m 10%\r20%\n", "err", "say", "bad", "out", "write", "no end")
    world.hold("wait", id, "--exit", "--timeout", "30s", check=True)
    assert world.hold("logs", id).stdout == "ready\n20% 10%\nbad\nno end"
    assert world.hold("logs", id, "--stderr").stdout == "bad\n"
    assert world.hold("logs", id, "--stdout", "-n", "1").stdout == "no end"
    assert world.hold("logs", id, "-n", "2").stdout == "bad\nno end"
    raw = subprocess.run(world.hold_argv("logs", id, "--raw", "--stdout"), capture_output=True, timeout=20, check=True)
    assert raw.stdout == b"ready\n\x1b[31mred\x1b[0m 10%\r20%\nno end"


def test_logs_as_json_carry_the_cursor_to_continue_from(world: World, start: Start) -> None:
    gate = world.gate()
    id = start("say", "one", "err", "await", gate, "say", "two")
    world.hold("wait", id, "--match", "one", "--timeout", "30s", check=True)
    page = json.loads(world.hold("logs", id, "--json").stdout)
    assert (page["id"], page["text"], page["status"], page["gaps"]) == (id, "ready\none\n", "running", [])
    gate.release()
    world.hold("wait", id, "--exit", "--timeout", "30s", check=True)
    rest = json.loads(world.hold("logs", id, "--since", page["cursor"], "--json").stdout)
    assert (rest["text"], rest["cursor"]) == ("two\n", "stdout:10,stderr:4")
    again = json.loads(world.hold("logs", id, "--since", "0", "--json").stdout)
    assert again["text"] == "ready\none\ntwo\n"
    raw = json.loads(world.hold("logs", id, "--raw", "--json").stdout)["chunks"]
    assert [(c["stream"], c["offset"], base64.b64decode(c["data"])) for c in raw] == [
        ("stdout", 0, b"ready\none\n"),
        ("stderr", 0, b"two\n"),
    ]


def test_a_long_log_is_read_to_its_end(world: World, start: Start) -> None:
    id = start("lines", 200_000)
    world.hold("wait", id, "--exit", "--timeout", "20s", check=True)
    assert world.hold("logs", id).stdout == "ready\n" + "".join(f"line {n}\n" for n in range(1, 200_001))


def test_a_followed_log_ends_with_the_command(world: World, start: Start) -> None:
    gate = world.gate()
    id = start("lines", 5, "await", gate, "say", "last words")
    world.hold("wait", id, "--match", "line 5", "--timeout", "30s", check=True)
    follower = world.program(world.hold_argv("logs", "-f", "-n", "2", id))
    assert [follower.line(), follower.line()] == ["line 4", "line 5"]
    gate.release()
    assert follower.line() == "last words"
    assert follower.wait() == 0


def test_a_followed_log_as_json_is_an_object_a_line(world: World, start: Start) -> None:
    gate = world.gate()
    id = start("await", gate, "say", "more")
    follower = world.program(world.hold_argv("logs", "-f", "--json", id))
    assert json.loads(follower.line())["text"] == "ready\n"
    gate.release()
    assert json.loads(follower.line())["text"] == "more\n"
    assert follower.wait() == 0


def test_output_that_was_dropped_is_reported(world: World, start: Start) -> None:
    id = start("fill", 3_000_000, "say", "", "say", "end", options=("--log-cap", "1M"))
    world.hold("wait", id, "--exit", "--timeout", "30s", check=True)
    done = world.hold("logs", id)
    assert done.stdout.endswith("\nend\n")
    assert "bytes of stdout from byte 0 are missing: dropped" in done.stderr
    page = json.loads(world.hold("logs", id, "--json").stdout)
    assert page["dropped_before"]["stdout"] > 0
    assert page["gaps"][0]["reason"] == "dropped"
    assert "dropped" in world.hold("status", id).stdout


def test_status_names_log_limits_and_restarts(world: World, start: Start) -> None:
    limits = ("--timeout", "2h", "--idle-timeout", "30m", "--log-cap", "2M")
    id = start("forever", options=("--restart", "on-failure", *limits))
    world.hold("kill", "-9", id, check=True)
    until(lambda: json.loads(world.hold("status", id, "--json").stdout)["attempt"] == 2, 30, what="the second attempt")
    facts = dict(re.split("  +", line, maxsplit=1) for line in world.hold("status", id).stdout.splitlines())
    assert facts["log"] == str(world.home / "sessions" / id)
    assert facts["limits"] == "timeout 2h, idle timeout 30m, log 2.0 MiB"
    assert facts["restart"] == "on-failure, at most 5 times in 10m; this is attempt 2"
    # Local time with its offset from UTC.
    for key in ("observed", "created", "started"):
        assert re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4} \(", facts[key]), facts[key]


def test_search_prints_matches_with_context_once_each(world: World, start: Start) -> None:
    id = start("quiet", "lines", 12)
    world.hold("wait", id, "--exit", "--timeout", "30s", check=True)
    found = world.hold("search", id, "line (3|5|11)$", "-C", "1")
    assert found.stdout.splitlines() == [
        "2-line 2",
        "3:line 3",
        "4-line 4",
        "5:line 5",
        "6-line 6",
        "--",
        "10-line 10",
        "11:line 11",
        "12-line 12",
    ]
    assert found.returncode == 0
    newest = world.hold("search", id, "LINE", "-i", "--newest", "-n", "2")
    assert newest.stdout == "12:line 12\n11:line 11\n"


def test_search_as_json_reports_where(world: World, start: Start) -> None:
    id = start("quiet", "lines", 3)
    world.hold("wait", id, "--exit", "--timeout", "30s", check=True)
    hits = json.loads(world.hold("search", id, "2", "-C", "1", "--json").stdout)
    assert hits == [
        {
            "session": id,
            "stream": "stdout",
            "offset": 7,
            "line": 2,
            "text": "line 2",
            "spans": [[5, 6]],
            "before": ["line 1"],
            "after": ["line 3"],
        }
    ]


def test_search_without_a_match_exits_with_1(world: World, start: Start) -> None:
    id = start("forever")
    done = world.hold("search", id, "nowhere")
    assert (done.stdout, done.stderr, done.returncode) == ("", "", 1)
    assert json.loads(world.hold("search", id, "nowhere", "--json").stdout) == []


def test_search_of_several_sessions_names_each(world: World, start: Start) -> None:
    for name in ("web", "api", "db"):
        start("quiet", "say", f"{name} begins", "say", "error", options=("--name", name))
    world.hold("wait", "web", "api", "db", "--timeout", "30s", check=True)
    both = "web:2:error\napi:2:error\n"
    assert world.hold("search", "web", "api", "error").stdout == both
    assert world.hold("search", "error", "web", "api").stdout == both
    assert world.hold("search", "-e", "error", "web", "api", "web").stdout == both
    assert world.hold("search", "web", "api", "error", "-C", "1").stdout.splitlines() == [
        "web-1-web begins",
        "web:2:error",
        "--",
        "api-1-api begins",
        "api:2:error",
    ]
    hits = json.loads(world.hold("search", "api", "web", "begins", "--json").stdout)
    assert [hit["text"] for hit in hits] == ["api begins", "web begins"]
    assert [world.hold("status", hit["session"], "--json").returncode for hit in hits] == [0, 0]
    # One that matches is enough.
    assert world.hold("search", "web", "api", "web begins").returncode == 0
    assert world.hold("search", "web", "api", "neither").returncode == 1


def test_search_takes_the_last_word_as_the_pattern_unless_only_the_first_is_no_session(
    world: World, start: Start
) -> None:
    start("quiet", "say", "db is here", options=("--name", "web"))
    start("quiet", "say", "web is here", options=("--name", "db"))
    world.hold("wait", "web", "db", "--timeout", "30s", check=True)
    assert world.hold("search", "web", "db").stdout == "1:db is here\n"
    assert world.hold("search", "db", "web").stdout == "1:web is here\n"
    assert world.hold("search", "here", "web").stdout == "1:db is here\n"
    assert world.hold("search", "-e", "db", "web").stdout == "1:db is here\n"
    assert world.hold("search", "db", "--", "-x").returncode == 1
    unclear = world.hold("search", "web", "here", "db")
    assert unclear.returncode == 2
    assert "'web' and 'db' are both sessions" in unclear.stderr
    assert "-e PATTERN" in unclear.stderr
    unknown = world.hold("search", "wbe", "here")
    assert (unknown.returncode, "no such session: 'wbe'" in unknown.stderr) == (3, True)
    missing = world.hold("search", "-e", "here")
    assert (missing.returncode, "required: ID" in missing.stderr) == (2, True)


def test_wait_for_several_reports_every_one_and_the_first_failure(world: World, start: Start) -> None:
    gates = [world.gate(), world.gate()]
    slow = start("await", gates[0], "exit", 4, options=("--name", "slow"))
    start("await", gates[1], "exit", 5, options=("--name", "quick"))
    start("exit", 0, options=("--name", "fine"))
    first = world.hold("wait", "--any", "slow", "quick", "fine", "--timeout", "30s")
    assert (first.stdout, first.returncode) == ("fine: exit: code 0\n", 0)
    late = world.hold("wait", "slow", "fine", "--timeout", "50ms")
    assert (late.stdout, late.returncode) == ("slow: timeout\nfine: exit: code 0\n", 124)
    gates[1].release()
    assert world.hold("wait", "--any", "slow", "quick", "--timeout", "30s").returncode == 5
    waiting = world.program(world.hold_argv("wait", "fine", "quick", slow, "slow"))
    gates[0].release()
    assert [waiting.line() for _ in range(3)] == ["fine: exit: code 0", "quick: exit: code 5", "slow: exit: code 4"]
    assert waiting.wait() == 5
    woken = json.loads(world.hold("wait", "slow", "fine", "--json").stdout)
    assert [woke["session"]["exit"]["code"] for woke in woken] == [4, 0]
    done = world.hold("wait", "fine", "slow", "--match", "never", "--timeout", "30s")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["hold: fine: the command ended first", "hold: slow: the command ended first"]
    assert world.hold("wait", "fine", "slow", "--since", "0").returncode == 2
    assert world.hold("wait", "fine", "none").returncode == 3


def test_wait_says_which_condition_came(world: World, start: Start) -> None:
    gate = world.gate()
    id = start("say", "up and running", "await", gate, "exit", 3)
    matched = world.hold("wait", id, "--match", "up .*", "--timeout", "30s")
    assert (matched.stdout, matched.returncode) == ("match: up and running\n", 0)
    assert world.hold("wait", id, "--idle", "50ms", "--timeout", "30s").stdout == "idle\n"
    late = world.hold("wait", id, "--timeout", "50ms")
    assert (late.stdout, late.returncode) == ("timeout\n", 124)
    gate.release()
    assert world.hold("wait", id, "--timeout", "30s").stdout == "exit: code 3\n"
    done = world.hold("wait", id, "--exit", "--propagate")
    assert (done.stdout, done.returncode) == ("exit: code 3\n", 3)
    woke = json.loads(world.hold("wait", id, "--json").stdout)
    assert (woke["reason"], woke["session"]["exit"]["code"]) == ("exit", 3)


@pytest.mark.parametrize("code, seen", [(0, 1), (7, 7)])
def test_wait_for_a_match_that_never_came_does_not_exit_with_0(
    world: World, start: Start, code: int, seen: int
) -> None:
    id = start("exit", code)
    done = world.hold("wait", id, "--match", "never", "--timeout", "30s")
    assert (done.stdout, done.returncode) == (f"exit: code {code}\n", seen)
    assert "the command ended first" in done.stderr
    assert world.hold("wait", id, "--match", "never", "--exit", "--timeout", "30s").returncode == 0


def test_wait_for_a_port_and_for_output(world: World, start: Start) -> None:
    gate = world.gate()
    id = start("await", gate, "say", "new", "serve", 0)
    waiting = world.program(world.hold_argv("wait", id, "--output", "--since", "stdout:6", "--timeout", "30s"))
    gate.release()
    assert waiting.line() == "output"
    world.hold("wait", id, "--match", "port", "--timeout", "30s", check=True)
    port = world.hold("logs", id, "-n", "1").stdout.split()[1]
    assert world.hold("wait", id, "--port", port, "--timeout", "30s").stdout == "port\n"


@pytest.mark.parametrize("columns", [0, 1, 19])
def test_a_terminal_without_a_width_gets_a_table_all_the_same(world: World, start: Start, columns: int) -> None:
    id = start("forever")
    master, slave = pty.openpty()
    try:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 0, columns, 0, 0))
        env = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
        done = subprocess.run(world.hold_argv("ls"), stdout=slave, stderr=slave, env=env, timeout=20, check=False)
        assert done.returncode == 0
        assert id in os.read(master, 65536).decode()
    finally:
        os.close(master)
        os.close(slave)
