"""A world is private, its programs are bounded, waits are woken by events."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from support import processes
from support.bystander import Bystanders
from support.waiting import TooLate, until, wait_for_file, wait_gone
from support.world import World


def test_the_environment_names_only_this_world(world: World) -> None:
    for name in ("HOLDFAST_HOME", "XDG_RUNTIME_DIR", "TMPDIR", "HOME", "XDG_CONFIG_HOME"):
        assert os.environ[name].startswith(str(world.root))
    assert "HOLDFAST_CONFIG" not in os.environ
    assert Path(tempfile.gettempdir()) == world.root / "tmp"
    assert Path.cwd() == world.cwd
    assert world.runtime_base.stat().st_mode & 0o777 == 0o700
    assert len(str(world.runtime)) < 60


def test_a_host_is_read_by_line_and_killed(world: World) -> None:
    host = world.host("import sys\nprint('hello', *sys.argv[1:])\nprint(input())\ninput()", "you")
    assert host.line() == "hello you"
    host.send("back\n")
    assert host.line() == "back"
    host.kill()
    assert host.returncode == -9


def test_a_host_on_a_terminal_gets_what_is_typed(world: World) -> None:
    script = "import os\nprint(os.isatty(0), os.tcgetpgrp(0) == os.getpgrp())\ninput()"
    # Python 3.13 would print the traceback in colours.
    host = world.host(script, tty=True, prefix=["env", "PYTHON_COLORS=0"])
    assert host.line() == "True True"
    host.send("\x03")
    assert host.lines_until("KeyboardInterrupt")
    assert host.wait() in (1, -2)


def test_closing_the_terminal_hangs_up_the_program(world: World) -> None:
    host = world.program(world.probe("forever"), tty=True)
    assert host.line() == "ready"
    host.hang_up()
    assert host.wait() == -1


def test_a_line_that_never_comes_fails_with_the_processes(world: World) -> None:
    host = world.program(world.probe("forever"))
    assert host.line() == "ready"
    with pytest.raises(TooLate, match=r"(?s)a line of .*within 0\.05 s.*probe\.py forever"):
        host.line(bound=0.05)


def test_a_file_is_waited_for_by_event(world: World) -> None:
    gate = world.gate()
    world.program(world.probe("await", gate, "touch", world.root / "here"))
    gate.release()
    assert wait_for_file(world.root / "here").exists()
    with pytest.raises(TooLate, match="never"):
        wait_for_file(world.root / "never", bound=0.02)


def test_until_returns_the_first_true_answer() -> None:
    answers = iter([0, "", "yes"])
    assert until(lambda: next(answers)) == "yes"


def test_the_end_of_an_orphan_is_waited_for_and_it_is_reaped(world: World) -> None:
    program = world.program(world.probe("daemon", "{", "print-ids", "}"))
    assert program.line() == "ready"
    pid = int(program.line().split()[1])
    wait_gone(pid)
    assert processes.look(pid) is None


def test_bystanders_say_what_they_received() -> None:
    beside = Bystanders()
    assert beside.ours.pgid == os.getpgrp()
    os.kill(beside.alike.pid, 15)
    os.kill(beside.own.pid, 9)
    extra = beside.like("sleep", "600")
    os.kill(extra.pid, 19)
    until(lambda: (row := processes.look(extra.pid)) is not None and row.state == "T")
    verdict = beside.verdict()
    assert len(verdict) == 3
    assert verdict[0].endswith("in its own group received KILL")
    assert verdict[1].endswith("look-alike command line received TERM")
    assert "'sleep 600' received STOP" in verdict[2]


def test_bystanders_that_were_left_alone_say_nothing(bystander: Bystanders) -> None:
    assert "holdfast runner" in processes.command_line(bystander.alike.pid)
    assert subprocess.run(["true"], check=False).returncode == 0
