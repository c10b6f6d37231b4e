"""A command on a terminal of its own: how it is born, what it finds there, and what happens when there is none."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast import errors
from support.processes import price
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.world import World


@pytest.mark.covers("terminal:28")
def test_the_command_leads_its_own_session_on_its_own_terminal(
    hf: Holdfast, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"TMUX": "/tmp/outer", "COLUMNS": "17", "LINES": "5", "KITTY_WINDOW_ID": "3"}.items():
        monkeypatch.setenv(name, value)
    script = (
        "tty; stty size; ps -o pid=,pgid=,sid=,tpgid= -p $$;"
        " for v in TERM COLORTERM TERM_PROGRAM TMUX COLUMNS LINES KITTY_WINDOW_ID HOLDFAST_SESSION_ID;"
        ' do eval "printf \'%s=%s.\\n\' $v \\"\\${$v-absent}\\""; done; ls /proc/self/fd | tr "\\n" " "'
    )
    done = hf.run(script, tty=True, size=(33, 99), wait=30)
    lines = done.text().splitlines()
    assert lines[0].startswith("/dev/pts/")
    assert lines[1] == "33 99"
    pid, group, session, foreground = map(int, lines[2].split())
    assert pid == group == session == foreground == done.pid
    said = dict(line.rstrip(".").split("=", 1) for line in lines[3:11])
    assert said["TERM"] == "xterm-256color"
    assert said["COLORTERM"] == "truecolor"
    assert said["TERM_PROGRAM"] == "holdfast"
    assert said["HOLDFAST_SESSION_ID"] == done.id
    assert [said[name] for name in ("TMUX", "COLUMNS", "LINES", "KITTY_WINDOW_ID")] == ["absent"] * 4
    # 3 is the directory that ls itself has open.
    assert lines[11].split() == ["0", "1", "2", "3"]
    assert (done.kind, done.tty, done.id[0]) == ("terminal", True, "p")


def test_the_terminal_is_cooked_by_us_and_not_as_the_callers(hf: Holdfast) -> None:
    done = hf.run("stty -a", tty=True, wait=30)
    said = done.text()
    for setting in ("intr = ^C", "erase = ^?", "eof = ^D"):
        assert setting in said
    assert {"icrnl", "opost", "onlcr", "isig", "icanon", "iutf8", "echo"} <= set(said.split())
    assert "-echo" in hf.run("stty -a", tty={"echo": False}, wait=30).text().split()


def test_an_explicit_variable_wins_over_what_is_taken_away(hf: Holdfast) -> None:
    asked = {"TERM": "vt100", "COLUMNS": "40"}
    assert hf.run("echo $TERM $COLUMNS", tty=True, env=asked, wait=30).text() == "vt100 40\n"
    assert hf.run("echo $TERM", tty=True, env={"TERM": "dumb"}, wait=30).text() == "xterm-256color\n"
    assert hf.run("echo $TERM", tty={"term": "xterm"}, env={"TERM": "vt100"}, wait=30).text() == "xterm\n"


def test_an_unknown_terminal_type_is_reported_at_the_start(hf: Holdfast) -> None:
    done = hf.run("true", tty={"term": "no-such-terminal"}, wait=30)
    assert any("terminfo_missing" in warning for warning in done.metadata["warnings"])


@pytest.mark.parametrize("size", [(0, 80), (501, 80), (24, 0), (24, 1001), "x", "24", (1, 2, 3), ("a", "b")])
def test_a_size_out_of_bounds_is_refused_before_anything_exists(hf: Holdfast, size: object) -> None:
    with pytest.raises(errors.BadSize):
        hf.start("true", tty=True, size=size)  # type: ignore[arg-type]
    assert hf.sessions(all=True) == []


@pytest.mark.parametrize(
    "tty",
    [
        "yes",
        1,
        {"colour": 1},
        {"size_policy": "widest"},
        {"term": ""},
        {"echo": "no"},
        {"colors": {"background": "red"}},
    ],
)
def test_a_wrong_terminal_option_is_refused(hf: Holdfast, tty: object) -> None:
    with pytest.raises(errors.BadArgument):
        hf.start("true", tty=tty)  # type: ignore[arg-type]
    assert hf.sessions(all=True) == []


@pytest.mark.covers("terminal:27")
def test_a_missing_program_or_directory_is_reported_as_itself_and_leaves_no_pipe(hf: Holdfast, world: World) -> None:
    for command, options, step in (
        (["/no/such/program"], {}, "exec"),
        (["true"], {"cwd": str(world.root / "nowhere")}, "cwd"),
    ):
        with pytest.raises(errors.SpawnError) as refused:
            hf.start(command, tty=True, **options)  # type: ignore[arg-type]
        assert refused.value.step == step
    assert [each.status for each in hf.sessions(all=True)] == ["failed", "failed"]


@pytest.mark.covers("terminal:26")
def test_a_program_that_closes_its_streams_and_reopens_its_terminal_is_still_read(hf: Holdfast, world: World) -> None:
    gate = world.gate()
    script = f'exec <&- >&- 2>&-; head -c1 {gate}; read -r secret < /dev/tty; echo "got $secret" > /dev/tty; exit 4'
    session = hf.start(script, tty=True)
    runner = session.runner_pid
    assert runner is not None
    until(lambda: not os.path.exists(f"/proc/{session.pid}/fd/1"))

    def costs_nothing() -> bool:
        before = price(runner)
        for _ in range(100):
            assert "got" not in session.text()
        return price(runner) == before

    # Not at the first try, where it is just being looked at for a question.
    until(costs_nothing, what="rest: an open terminal without output costs nothing")
    gate.release()
    session.send("hush\n")
    assert session.wait(timeout=30).reason == "exit"
    assert session.exit is not None
    assert session.exit.code == 4
    assert "got hush" in session.text()


@pytest.mark.covers("terminal:25")
def test_a_grandchild_that_holds_the_terminal_delays_no_exit_and_its_output_is_logged(
    hf: Holdfast, world: World
) -> None:
    up, go, gate = world.gate(), world.gate(), world.gate()
    holder = ["setsid", "ignore", "HUP", "tell", up, "up", "await", gate, "say", "later", "forever"]
    session = hf.start(world.probe("fork", "{", *holder, "}", "await", go, "exit", "7"), tty=True)
    up.line()
    go.release()
    assert session.wait(timeout=30).reason == "exit"
    assert session.exit is not None
    assert (session.exit.code, session.exit.complete) == (7, False)
    assert session.exit.survivors
    with session.attach() as attachment:
        kinds = []
        for event in attachment:
            kinds.append(event)
            if type(event).__name__ == "Exit":
                break
        assert kinds[-1].output_open is True  # type: ignore[attr-defined]
    gate.release()
    until(lambda: "later" in session.text(), watch=world.session(session.id))
    assert session.stop(grace=1).survivors == []
    assert session.refresh().exit is not None


@pytest.mark.covers("terminal:45")
def test_stopping_a_shell_with_a_stubborn_tree_empties_it_and_says_how(hf: Holdfast, world: World) -> None:
    ready = world.gate()
    stubborn = " ".join(world.probe("ignore", "TERM,INT,HUP", "tell", ready, "up", "forever"))
    escapee = " ".join(world.probe("daemon", "ignore", "TERM,INT,HUP", "tell", ready, "up", "forever"))
    session = hf.start(["sh", "-i"], tty=True)
    session.submit(f"stty raw -echo; ({stubborn}) & ({escapee}) & cat")
    for _ in range(2):
        ready.line()
    stopped = session.stop(grace=1)
    assert stopped.survivors == []
    assert stopped.rung == "KILL to the tree"
    assert len(stopped.found) >= 3
    session.refresh()
    assert session.exit is not None
    assert (session.status, session.exit.cause) == ("killed", "stop")


def test_stop_interrupts_first_as_a_person_would(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("exit-on", "INT", "9", "say", "armed", "forever"), tty=True)
    session.wait(match="armed", timeout=30)
    stopped = session.stop(grace=20)
    assert stopped.rung == "INTR to the terminal"
    session.refresh()
    assert session.exit is not None
    assert (session.exit.code, session.exit.cause, session.status) == (9, "stop", "killed")


def test_an_interactive_shell_leaves_at_the_hang_up(hf: Holdfast) -> None:
    session = hf.start(["bash", "--norc", "-i"], tty=True, env={"PS1": "prompt> "})
    session.wait(match="prompt> ", timeout=30)
    # Three tenths of it are what the shell has to leave in before the next signal.
    stopped = session.stop(grace=8)
    assert stopped.survivors == []
    assert stopped.rung == "HUP to the session"


@pytest.mark.covers("terminal:19", "OWN-05")
def test_a_killed_runner_leaves_its_terminal_session_lost_or_stale_never_running(hf: Holdfast, world: World) -> None:
    plain = hf.start("echo printed; exec sleep 600", tty=True)
    proof = hf.start(world.probe("ignore", "HUP", "say", "printed", "forever"), tty=True)
    for session in (plain, proof):
        session.wait(match="printed", timeout=30)
        assert session.runner_pid is not None
        os.kill(session.runner_pid, signal.SIGKILL)
        wait_gone(session.runner_pid)
    assert plain.pid is not None
    wait_gone(plain.pid)
    assert hf.get(plain.id).state == "lost"
    assert hf.get(proof.id).state == "stale"
    for session in (plain, proof):
        assert "printed" in session.text()
    assert proof.stop(grace=1).survivors == []
    hf.collect()
