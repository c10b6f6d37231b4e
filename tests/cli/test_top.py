"""`hold top` in a window of its own, and as one look into a pipe."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import termios
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cli.outer import Outer
from holdfast import Session
from holdfast.daemons.handle import Handle
from support import processes
from support.own_time import QuietTime
from support.waiting import until
from support.world import World

Top = Callable[..., Outer]
Started = Callable[..., Session]

QUIET = "import time\nprint('ready', flush=True)\ntime.sleep(600)"
# Says what it reads, a line at a time.
ECHO = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print('got', line.strip(), flush=True)"


@pytest.fixture
def started(world: World) -> Started:
    def start(source: str, *, ready: str | None = "ready", tty: bool = False, **options: object) -> Session:
        options.setdefault("stdin", "open")
        session = world.open().start([sys.executable, "-u", "-c", source], tty=tty, **options)  # type: ignore[arg-type]
        world.closing.callback(session.kill)
        if ready is not None:
            assert session.wait(match=ready, timeout=30).reason == "match"
        return session

    return start


@pytest.fixture
def top(world: World) -> Top:
    def run(env: dict[str, str] | None = None, **size: int) -> Outer:
        outer = Outer(world.hold_argv("top"), env, **size)
        world.closing.callback(outer.close)
        return outer

    return run


def line_of(outer: Outer, id: str) -> str:
    return next((line for line in outer.text.split("\n") if id in line), "")


def is_listed(outer: Outer, id: str) -> bool:
    return any(line.startswith(f" {id} ") for line in outer.text.split("\n"))


def check_selected(outer: Outer, id: str) -> None:
    outer.type(b"s")
    outer.shows(f"stop {id}")
    outer.type(b"n")
    outer.until(lambda: "? y/n" not in outer.text, "the question to go")


def quit(outer: Outer) -> None:
    outer.type(b"q")
    assert outer.end() == 0
    assert outer.is_as_before()


def test_one_look_is_a_table_or_json(world: World, started: Started) -> None:
    web = started(QUIET, name="web")
    prompt = started("input('Password: ')", tty=True, ready="Password")
    until(lambda: prompt.refresh().needs_input, what="that it waits for a person")
    shown = world.hold("top", check=True).stdout.splitlines()
    assert shown[0].split() == ["ID", "NAME", "KIND", "STATUS", "AGE", "CPU", "MEMORY", "SIGNALS", "LAST", "OUTPUT"]
    assert [line.split()[0] for line in shown[1:]] == [web.id, prompt.id]
    assert shown[1].split()[1:4] == ["web", "local_bash", "running"]
    assert shown[1].endswith("  ready")
    assert "  needs input  " in shown[2]
    assert shown[2].endswith("  Password:")
    reported = json.loads(world.hold("top", "--json", check=True).stdout)
    assert [each["id"] for each in reported] == [web.id, prompt.id]
    assert (reported[0]["last_line"], reported[0]["processes"]) == ("ready", 1)
    assert reported[0]["memory_bytes"] > 1 << 20
    assert reported[0]["cpu_percent"] >= 0
    assert reported[0]["name"] == "web"


def test_signals_that_wait_are_counted(world: World, started: Started) -> None:
    def counted() -> list[int]:
        return [each["pending_signals"] for each in json.loads(world.hold("top", "--json", check=True).stdout)]

    owned = started(QUIET, watch=["ready"], owner="a")
    agent = world.open().signals("a")
    until(agent.pending, what="the match")
    nobodys = started(QUIET)
    assert counted() == [1, 0]
    assert world.hold("top", check=True).stdout.splitlines()[1].split()[-2:] == ["1", "ready"]
    world.hold("ack", f"{owned.id}.2", check=True)
    assert counted() == [1, 0]
    agent.ack(f"{owned.id}.2")
    assert counted() == [0, 0]
    assert nobodys.refresh().state == "running"


def test_what_runs_inside_a_host_is_listed_and_stopped_too(world: World, top: Top) -> None:
    reported = threading.Event()

    def work(handle: Handle) -> None:
        handle.on_stop(reported.set)
        handle.line("indexed 3 files")
        reported.wait(30)

    handle = world.open().daemons.thread(work, description="index", kind="local_task")
    outer = top()
    outer.until(lambda: "indexed 3 files" in line_of(outer, handle.id), "the thread of this test")
    outer.type(b"l")
    outer.until(lambda: outer.text.startswith(f"{handle.id}  index  running\nindexed 3 files"), "its lines")
    outer.type(b"qsy")
    outer.shows("nothing is running")
    assert reported.is_set()
    quit(outer)


def test_nothing_that_runs_is_an_empty_list(world: World) -> None:
    assert json.loads(world.hold("top", "--json", check=True).stdout) == []
    assert world.hold("top", check=True).stdout == ""


def test_what_happens_is_shown(started: Started, top: Top) -> None:
    web, other = started(ECHO, name="web"), started(ECHO, name="other")
    outer = top()
    outer.until(lambda: line_of(outer, web.id) and line_of(outer, other.id), "both sessions")
    assert outer.is_raw
    web.send("hello\n")
    outer.until(lambda: line_of(outer, web.id).endswith("got hello"), "what it printed last")
    third = started(ECHO, name="third")
    outer.shows(third.id)
    third.send_signal("KILL")
    outer.shows(f"{third.id} (third): signal KILL")
    assert not is_listed(outer, third.id)
    quit(outer)


def test_enter_attaches_and_detaching_comes_back(started: Started, top: Top) -> None:
    started(ECHO, name="first")
    session = started(ECHO, name="second", tty=True, size=(24, 80))
    outer = top()
    outer.shows(session.id)
    outer.type(b"j\r")
    outer.until(lambda: "hold top" not in outer.text and "ready" in outer.text, "the terminal of the session")
    outer.type(b"typed\r")
    outer.shows("got typed")
    outer.type(b"\x1dd")
    outer.until(lambda: is_listed(outer, session.id), "the list again")
    check_selected(outer, session.id)
    assert session.refresh().state == "running"
    quit(outer)
    assert f"detached from {session.name}" in outer.everything


def test_a_session_that_ends_while_attached_leads_back(started: Started, top: Top) -> None:
    session = started("print('ready')\ninput()", tty=True, size=(24, 80))
    outer = top()
    outer.shows(session.id)
    outer.type(b"\r")
    outer.until(lambda: "hold top" not in outer.text and "ready" in outer.text, "the terminal of the session")
    outer.type(b"\r")
    outer.shows("nothing is running")
    quit(outer)


def test_logs_are_followed_and_q_comes_back(started: Started, top: Top) -> None:
    session = started(ECHO, name="web")
    outer = top(rows=10)
    outer.shows(session.id)
    outer.type(b"l")
    # It reads its input: at first it is running, soon it needs input.
    outer.until(lambda: re.match(rf"{session.id}  web  (running|needs input)\nready", outer.text), "its logs")
    session.send("".join(f"{n}\n" for n in range(20)))
    outer.shows("got 19")
    assert "ready" not in outer.text
    outer.type(b"g")
    outer.shows("ready")
    outer.type(b"G")
    outer.shows("got 19")
    session.eof()
    outer.shows(f"{session.id}  web  exit 0")
    outer.type(b"q")
    outer.shows("hold top: nothing is running")
    quit(outer)


def test_a_session_is_stopped_when_that_is_confirmed(started: Started, top: Top) -> None:
    first, second = started(ECHO, name="first"), started(ECHO, name="second")
    outer = top()
    outer.shows(second.id)
    outer.type(b"s")
    outer.shows(f"stop {first.id} (first)? y/n")
    outer.type(b"n")
    outer.shows("enter attach")
    outer.type(b"jsy")
    outer.shows(f"{second.id}: stopped, 1 process gone")
    outer.until(lambda: not is_listed(outer, second.id), "it to be gone from the list")
    assert second.refresh().exit is not None
    assert first.refresh().state == "running"
    quit(outer)


def test_a_stop_is_finished_although_its_caller_leaves(started: Started, top: Top) -> None:
    # It takes a while to end, so that the stop is still in progress when the view closes.
    source = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: (time.sleep(2), sys.exit(0)))
print("ready", flush=True)
while True:
    signal.pause()
"""
    session = started(source, name="web")
    session.wait(match="ready", timeout=30)
    outer = top()
    outer.shows(session.id)
    outer.type(b"syq")
    assert outer.end() == 0
    assert f"{session.id}: stopped" in outer.everything
    assert session.refresh().status == "killed"


def test_a_session_is_restarted(world: World, started: Started, top: Top) -> None:
    session = started(ECHO, name="web")
    outer = top()
    outer.shows(session.id)
    outer.type(b"ry")
    outer.shows(f"{session.id}: restarted as ")
    again = world.open().get("web")
    world.closing.callback(again.kill)
    assert again.id != session.id
    assert again.metadata["restarted_from"] == session.id
    outer.until(lambda: is_listed(outer, again.id), "the new one")
    check_selected(outer, again.id)
    quit(outer)


def test_a_filter_leaves_what_fits(started: Started, top: Top) -> None:
    web, other = started(ECHO, name="web"), started(ECHO, name="other")
    outer = top()
    outer.shows(other.id)
    outer.type(b"/oth\r")
    outer.until(lambda: not line_of(outer, web.id) and line_of(outer, other.id), "only one")
    outer.type(b"\x1b")
    outer.shows(web.id)
    quit(outer)


def test_another_size_is_another_picture(started: Started, top: Top) -> None:
    sessions = [started(ECHO, name=f"s{n}") for n in range(4)]
    outer = top(rows=24, cols=100)
    outer.shows(sessions[-1].id)
    outer.type(b"G")
    check_selected(outer, sessions[-1].id)
    outer.resize(5, 40)
    outer.until(lambda: "KIND" not in outer.text and is_listed(outer, sessions[-1].id), "the selected one")
    assert not is_listed(outer, sessions[0].id)
    outer.resize(30, 120)
    outer.until(lambda: "KIND" in outer.text and line_of(outer, sessions[0].id), "a large picture")
    outer.type(b"q")
    assert outer.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_ending_it_restores_the_terminal(started: Started, top: Top, number: signal.Signals) -> None:
    session = started(ECHO)
    outer = top()
    outer.shows(session.id)
    outer.signal(number)
    assert outer.end() == 0
    assert outer.is_as_before()
    assert session.refresh().state == "running"


def test_asked_to_leave_while_attached_it_leaves_at_once(started: Started, top: Top) -> None:
    session = started(ECHO, tty=True, size=(24, 80))
    outer = top()
    outer.shows(session.id)
    outer.type(b"\r")
    outer.until(lambda: "hold top" not in outer.text and "ready" in outer.text, "the terminal of the session")
    outer.signal(signal.SIGTERM)
    assert outer.end() == 0
    assert outer.is_as_before()


def test_asked_to_leave_while_it_shows_logs_it_leaves_at_once(started: Started, top: Top) -> None:
    session = started(ECHO, name="web")
    outer = top()
    outer.shows(session.id)
    outer.type(b"l")
    outer.shows(f"{session.id}  web  ")
    outer.signal(signal.SIGTERM)
    assert outer.end() == 0
    assert outer.is_as_before()
    assert "Traceback" not in outer.everything


def test_a_window_that_is_closed_ends_it(started: Started, top: Top) -> None:
    session = started(ECHO)
    outer = top()
    outer.shows(session.id)
    outer.hang_up()
    assert outer.wait() == 0
    assert session.refresh().state == "running"


def test_it_can_be_put_aside_and_continued(world: World, started: Started) -> None:
    session = started(ECHO)
    # A job under a shell: an orphaned one cannot be stopped by its terminal.
    hold = " ".join(world.hold_argv("top"))
    outer = Outer(["bash", "--norc", "-im", "-c", f"{hold}; echo aside; fg; echo over"])
    world.closing.callback(outer.close)
    outer.shows(session.id)
    outer.type(b"\x1a")
    outer.until(lambda: b"aside" in outer.printed, "the shell to continue")
    assert b"\x1b[?1049l" in outer.printed[: outer.printed.index(b"aside")]
    outer.until(lambda: outer.modes()["screen"] and outer.is_raw and line_of(outer, session.id), "the list again")
    outer.type(b"q")
    outer.until(lambda: b"over" in outer.printed, "the end")
    outer.end()


def test_after_an_unasked_stop_the_list_is_drawn_again(started: Started, top: Top) -> None:
    session = started(ECHO)
    outer = top()
    outer.shows(session.id)
    outer.signal(signal.SIGSTOP)
    outer.stopped()
    # As a shell does that takes its terminal back.
    termios.tcsetattr(outer.slave, termios.TCSANOW, outer.settings)
    outer.signal(signal.SIGCONT)
    outer.until(lambda: outer.printed.count(b"\x1b[?1049h") == 2 and outer.is_raw, "the screen to be drawn again")
    quit(outer)


def test_a_runner_that_does_not_answer_holds_up_no_key(world: World, started: Started, top: Top) -> None:
    first, second = started(ECHO), started(ECHO)
    outer = top(env={"HOLDFAST_HOSTS_SWEEP_TIMEOUT": "3s"})
    outer.shows(second.id)
    assert first.runner_pid is not None
    runner = processes.look(first.runner_pid)
    assert runner is not None
    os.kill(first.runner_pid, signal.SIGSTOP)
    world.closing.callback(lambda: os.kill(first.runner_pid or 0, signal.SIGCONT))
    outer.until(lambda: "unreachable" in line_of(outer, first.id), "that it does not answer", bound=30)
    passed = QuietTime()
    outer.type(b"js")
    outer.shows(f"stop {second.id}")
    assert passed.seconds() < 2.5
    outer.type(b"n")
    os.kill(first.runner_pid, signal.SIGCONT)
    outer.until(lambda: "unreachable" not in line_of(outer, first.id), "that it answers")
    quit(outer)


def test_where_no_screen_can_be_drawn_there_is_a_table(started: Started, top: Top) -> None:
    session = started(ECHO)
    outer = top(env={"TERM": "dumb"})
    assert outer.end() == 0
    assert session.id in outer.text
    assert b"\x1b[?1049h" not in outer.printed
    until(lambda: session.refresh().state == "running")


def test_an_unhealthy_and_a_restarting_session_are_seen(started: Started, top: Top) -> None:
    sick = started(QUIET, name="sick", health={"port": 1, "interval": 5, "misses": 1})
    started("print('ready'); exit(3)", name="crash", restart={"policy": "always", "delay": 60})
    outer = top(cols=100)
    outer.shows("2 running, 1 restarting")
    outer.until(lambda: re.search(r" crash +restarting, attempt 2 in \d+s ", outer.text), "when it is restarted")
    outer.until(lambda: re.search(r" sick +unhealthy ", outer.text), "that it is unhealthy")
    outer.shows("2 running, 1 unhealthy, 1 restarting")
    check_selected(outer, sick.id)
    quit(outer)


@pytest.mark.covers("habits:20")
def test_order_filter_log_stop_and_help_in_80_columns(started: Started, top: Top) -> None:
    long = "ready " + "and a line that is longer than the terminal " * 4
    busy = "print('ready', flush=True)\nwhile True: pass"
    quiet = started(f"import time\nprint({long!r}, flush=True)\ntime.sleep(600)", name="a-quiet-one-with-a-long-name")
    working = started(busy, name="b")
    outer = top()
    in_order = [quiet.id, working.id]

    def listed() -> list[str]:
        return [line.split()[0] for line in outer.text.split("\n")[2:] if line[1:10] in in_order]

    outer.until(lambda: listed() == in_order, "both sessions")
    # Each takes one line: a title, the heads, two sessions, and nothing else before the keys.
    shown = [line for line in outer.text.split("\n") if line.strip()]
    assert len(shown) == 5
    assert shown[1].split()[0] == "ID"
    assert shown[4].startswith("enter attach")
    outer.type(b"o")
    outer.until(lambda: "by cpu" in outer.text and listed() == in_order[::-1], "the busy one first")
    outer.type(b"?")
    outer.shows("Any key closes this page.")
    outer.type(b" ")
    outer.until(lambda: "Any key" not in outer.text, "the list again")
    outer.type(b"/quiet\r")
    outer.until(lambda: listed() == [quiet.id], "the one that matches")
    outer.type(b"l")
    outer.until(lambda: outer.text.split("\n")[1].startswith("ready and a line"), "its log")
    outer.type(b"qsy")
    outer.shows(f"{quiet.id}: stopped")
    quit(outer)
    assert quiet.refresh().status == "killed"
    assert working.refresh().state == "running"


@pytest.mark.covers("habits:20")
def test_what_has_ended_is_listed_when_asked_for(started: Started, top: Top) -> None:
    running = started(QUIET, name="runs")
    early = started("print('ready early', flush=True); exit(3)", name="early")
    late = started("print('ready late', flush=True)", name="late")
    for session in (early, late):
        session.wait(exit=True, timeout=30)
    outer = top()
    outer.shows(running.id)
    assert not is_listed(outer, late.id)
    outer.type(b"a")
    outer.shows("1 running, 2 ended")
    listed = [line.split()[:2] for line in outer.text.split("\n")[2:5]]
    assert listed == [[running.id, "runs"], [late.id, "late"], [early.id, "early"]]
    assert re.search(r" exit 3 .* ready early", line_of(outer, early.id))
    # Nothing wraps: the keys below are whole.
    assert "q quit" in outer.text.split("\n")[-1]
    # Its log can be read, and it can be started again.
    outer.type(b"Gl")
    outer.shows(f"{early.id}  early")
    outer.shows("ready early")
    outer.type(b"q/late\r")
    outer.shows("1 match")
    outer.type(b"ry")
    outer.shows(f"{late.id}: restarted as ")
    outer.type(b"a")
    outer.until(lambda: not is_listed(outer, early.id) and "ended" not in outer.text.split("\n")[0], "the running ones")
    quit(outer)


def test_without_textual_a_plain_table_is_shown_until_q(tmp_path: Path, started: Started, top: Top) -> None:
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError('not installed', name='textual')")
    web = started(ECHO, name="web")
    outer = top(env={"PYTHONPATH": str(tmp_path)})
    outer.until(lambda: line_of(outer, web.id).endswith("ready"), "the table")
    web.send("hello\n")
    outer.until(lambda: line_of(outer, web.id).endswith("got hello"), "what it printed last")
    assert "holdfast[top]" in outer.text
    quit(outer)


@pytest.mark.parametrize("keys, number", [(b"\x03", None), (b"", signal.SIGTERM)])
def test_the_plain_table_gives_the_terminal_back(
    tmp_path: Path, started: Started, top: Top, keys: bytes, number: signal.Signals | None
) -> None:
    (tmp_path / "textual.py").write_text("raise ModuleNotFoundError('not installed', name='textual')")
    session = started(ECHO)
    outer = top(env={"PYTHONPATH": str(tmp_path)})
    outer.shows(session.id)
    if number is None:
        outer.type(keys)
    else:
        outer.signal(number)
    assert outer.end() == 0
    assert outer.is_as_before()
