"""`hold run` in a terminal: what Ctrl-C, SIGTERM and the end of the terminal do, and what is said about it."""

from __future__ import annotations

import re
import signal

import pytest

from cli.conftest import Start
from support import processes
from support.bystander import Bystanders
from support.points import Points
from support.program import Program
from support.promised import Beside, promised
from support.waiting import until, wait_gone, wait_readable
from support.world import World

LIFETIMES = ("detached", "call")


def run(world: World, lifetime: str, *words: object, tty: bool = True) -> Program:
    """`hold run` of a probe on a terminal of its own, once the probe is ready. Its stderr goes to a file, so that it
    can be read when the terminal is gone."""
    hold = world.hold_argv("run", "--lifetime", lifetime, "--name", "it", "--grace", "1s", "--")
    line = 'exec "$@" 2>"$ERRORS"'
    argv = ["sh", "-c", line, "sh", *hold, *world.probe(*words)]
    program = world.program(argv, env={"ERRORS": str(world.root / "said")}, tty=tty)
    assert program.line() == "ready", said(world)
    return program


def said(world: World) -> str:
    return (world.root / "said").read_text()


def tree_of(pid: int) -> list[int]:
    return [pid, *(row.pid for row in processes.descendants(pid))]


@pytest.mark.covers("OWN-08")
@pytest.mark.parametrize("lifetime", LIFETIMES)
@pytest.mark.parametrize("provoke", ["the terminal closes", "Ctrl-C", "SIGTERM"])
def test_own_08_a_run_that_is_left_continues_or_ends_as_its_lifetime_says(
    world: World, beside: Beside, bystander: Bystanders, lifetime: str, provoke: str
) -> None:
    child = ("fork", "{", "ignore", "TERM,INT,HUP", "say", "set", "forever", "}")
    program = run(world, lifetime, *child, "ignore", "INT,HUP", "say", "set", "forever")
    assert [program.line(), program.line()] == ["set", "set"]
    session = world.open().get("it")
    assert session.pid is not None
    tree = tree_of(session.pid)
    assert len(tree) == 2

    if provoke == "the terminal closes":
        program.hang_up()
        expected = 128 + signal.SIGHUP
    elif provoke == "SIGTERM":
        program.signal(signal.SIGTERM)
        expected = 128 + signal.SIGTERM
    else:
        # The command ignores the first one, which is passed on; the second one is for us.
        program.send(b"\x03")
        until(lambda: "sent INT" in said(world), what="the first Ctrl-C")
        program.send(b"\x03")
        expected = 128 + signal.SIGINT
    assert program.wait(30) == expected

    if lifetime == "detached":
        assert f"{session.id} is still running" in said(world)
        assert f"hold logs -f {session.id}" in said(world)
        promised(world, session, bystander=bystander, beside=beside)
        assert session.state == "running"
        assert session.id in world.hold("ls", "-q").stdout.split()
        assert tree_of(session.pid) == tree
        assert session.stop(grace=0).done
    else:
        assert f"{session.id} has ended" in said(world)
        for pid in tree:
            wait_gone(pid)
        promised(world, session, bystander=bystander, beside=beside)
        assert session.status == "killed"
        assert session.id not in world.hold("ls", "-q").stdout.split()


@pytest.mark.covers("OWN-08")
def test_own_08_a_call_whose_hold_is_killed_ends_too(world: World, beside: Beside, bystander: Bystanders) -> None:
    program = run(world, "call", "fork", "{", "forever", "}", "say", "set", "forever")
    assert program.line() == "set"
    session = world.open().get("it")
    assert session.pid is not None
    tree = tree_of(session.pid)
    program.kill()
    for pid in tree:
        wait_gone(pid)
    until(lambda: session.refresh().state == "exited", what="the record of its end")
    promised(world, session, bystander=bystander, beside=beside)
    assert session.exit is not None
    assert session.exit.cause == "owner_gone"


def test_ctrl_c_reaches_the_whole_group_of_the_command(world: World) -> None:
    words = ("fork", "{", "signal-report", "say", "child", "forever", "}", "signal-report", "say", "parent", "forever")
    program = run(world, "detached", *words)
    assert {program.line(), program.line()} == {"child", "parent"}
    program.send(b"\x03")
    found = [program.line().removeprefix("^C") for _ in range(2)]
    assert found == ["signal INT", "signal INT"]
    program.kill()
    world.open().get("it").kill()


def test_ctrl_c_that_ends_the_command_is_exit_130(world: World) -> None:
    program = run(world, "detached", "forever")
    program.send(b"\x03")
    assert program.wait() == 130
    session = world.open().get("it")
    assert session.exit is not None
    assert (session.exit.signal, session.exit.cause) == ("SIGINT", "signal")
    assert "goes on" not in said(world)


def test_ctrl_backslash_is_passed_on_too(world: World) -> None:
    program = run(world, "detached", "signal-report", "say", "set", "forever")
    assert program.line() == "set"
    program.send(b"\x1c")
    assert program.line().endswith("signal QUIT")
    program.kill()
    world.open().get("it").kill()


def test_signals_that_the_caller_ignores_stay_ignored(world: World) -> None:
    hold = world.hold_argv("run", "--name", "it", "--stdin", "open", "--", *world.probe("read-line"))
    argv = ["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", *hold]
    program = world.program(argv)
    assert program.line() == "ready"
    program.signal(signal.SIGHUP)
    program.send("still here\n")
    assert program.line() == "got still here"
    assert program.wait() == 0


def test_a_listing_in_a_terminal_is_coloured_and_cut_to_its_width(world: World, start: Start) -> None:
    id = start("forever", "x" * 300)
    program = world.program(world.hold_argv("ls"), tty=True, env={"COLUMNS": "60", "TERM": "xterm"})
    lines = [program.line(), program.line()]
    plain = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in lines]
    assert plain != lines
    assert plain[0].startswith("ID")
    assert plain[1].startswith(id)
    assert max(map(len, plain)) <= 60
    assert program.wait() == 0


@pytest.mark.parametrize(
    "env, config, coloured",
    [
        ({"TERM": "xterm"}, "auto", True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "auto", False),
        ({"TERM": "dumb"}, "auto", False),
        ({"TERM": "xterm"}, "never", False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, "always", True),
    ],
)
def test_colour_follows_the_terminal_no_color_and_the_setting(
    world: World, env: dict[str, str], config: str, coloured: bool
) -> None:
    program = world.program(world.hold_argv("config"), tty=True, env={**env, "HOLDFAST_CLI_COLOR": config})
    assert ("\x1b[" in program.line()) is coloured
    program.wait()


def test_a_followed_line_shows_up_before_it_is_finished(world: World, start: Start) -> None:
    gate = world.gate()
    id = start("quiet", "write", "half a", "await", gate, "say", " line")
    program = world.program(world.hold_argv("logs", "-f", id), tty=True, env={"TERM": "xterm"})
    wait_readable(program._out, what="the unfinished line")
    gate.release()
    assert program.line() == "half a\r\x1b[Khalf a line"
    assert program.wait() == 0


def test_a_signal_that_comes_during_the_start_is_obeyed_after_it(world: World, points: Points) -> None:
    points.set("host.request_sent=pause")
    program = world.program(world.hold_argv("run", "--name", "it", "--", *world.probe("forever")))
    hit = points.wait("host.request_sent")
    program.signal(signal.SIGTERM)
    hit.release()
    assert program.wait() == 128 + signal.SIGTERM
    assert "is still running" in program.errors()
    points.clear()
    session = world.open().get("it")
    assert session.state == "running"
    assert session.kill().done


def test_a_ctrl_c_during_the_start_is_passed_on_after_it(world: World, points: Points) -> None:
    points.set("host.request_sent=pause")
    # One that SIGINT ends at any moment of its life: an interpreter that is still starting would exit with 1.
    program = world.program(world.hold_argv("run", "--name", "it", "--", "sleep", "600"))
    hit = points.wait("host.request_sent")
    program.signal(signal.SIGINT)
    hit.release()
    assert program.wait() == 128 + signal.SIGINT
    assert "sent INT" in program.errors()
    points.clear()
    assert world.open().get("it").state == "exited"


@pytest.mark.parametrize("command", ["attach", "screen"])
def test_a_session_on_pipes_is_offered_its_log_first(world: World, command: str) -> None:
    id = world.hold("start", "--", "sleep", "60", check=True).stdout.split()[0]
    refused = world.hold(command, id)
    assert refused.returncode == 4
    assert f"`hold logs -f {id}` follows its output; start the command with --tty" in refused.stderr
    world.hold("kill", id, check=True)
