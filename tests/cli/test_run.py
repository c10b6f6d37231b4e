"""`hold run` behaves like the command itself; `hold start` prints the id alone."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.conftest import Start
from holdfast.cli.run import missing_output
from support import probe
from support.waiting import until
from support.world import World


def test_a_run_passes_both_streams_and_the_code_through(world: World) -> None:
    done = world.hold("run", "--", *world.probe("say", "out", "err", "say", "bad", "exit", 7))
    assert (done.stdout, done.stderr, done.returncode) == ("ready\nout\n", "bad\n", 7)


def test_a_run_passes_raw_bytes_through(world: World) -> None:
    argv = world.hold_argv("run", "--", *world.probe("quiet", "bytes", 300_000, 7))
    done = subprocess.run(argv, capture_output=True, timeout=20, check=False)
    assert done.stdout == b"".join(probe.random_bytes(300_000, 7))
    assert (done.stderr, done.returncode) == (b"", 0)


def test_a_run_shows_output_while_the_command_runs(world: World) -> None:
    gate = world.gate()
    program = world.program(world.hold_argv("run", "--", *world.probe("await", gate, "say", "more", "exit", 3)))
    assert program.line() == "ready"
    gate.release()
    assert program.line() == "more"
    assert program.wait() == 3


@pytest.mark.parametrize("name", ["TERM", "KILL", "SEGV"])
def test_a_command_that_a_signal_ended_is_128_and_its_number(world: World, name: str) -> None:
    done = world.hold("run", "--", *world.probe("die", name))
    assert done.returncode == 128 + signal.Signals["SIG" + name]


def test_a_single_word_with_spaces_is_a_line_for_the_shell(world: World) -> None:
    assert world.hold("run", "--", "echo one && echo two | tr o 0").stdout == "one\ntw0\n"


def test_words_without_dashes_before_them_are_the_command(world: World) -> None:
    assert world.hold("run", "--name", "x", "echo", "-n", "--json").stdout == "--json"


def test_a_shell_that_is_named_runs_the_line(world: World) -> None:
    done = world.hold("run", "--shell", "/bin/bash", "--", "echo $BASH")
    assert done.stdout == "/bin/bash\n"
    refused = world.hold("run", "--shell", "/bin/bash", "--", "echo", "x")
    assert refused.returncode == 2
    assert "fix: quote the line" in refused.stderr


def test_a_run_gets_what_its_options_say(world: World) -> None:
    (world.cwd / "below").mkdir()
    words = ("print-env", "COLOR", "print-env", "HOME", "print-cwd", "err", "say", "x")
    options = ("--env", "COLOR=blue=green", "--unset-env", "HOME", "--cwd", "below", "--merge-stderr")
    done = world.hold("run", *options, "--", *world.probe(*words))
    assert done.stdout == f"ready\nCOLOR=blue=green\nHOME unset\ncwd {world.cwd / 'below'}\nx\n"
    assert done.stderr == ""


def test_stdin_is_that_of_a_pipe_or_a_file_unless_it_is_closed(world: World) -> None:
    assert world.hold("run", "--", "cat", input="a pipe\n").stdout == "a pipe\n"
    assert world.hold("run", "--stdin", "closed", "--", "cat", input="nothing\n").stdout == ""
    assert world.hold("run", "--", "cat").stdout == ""


@pytest.mark.parametrize("size", [0, 5, 3_000_000])
def test_an_open_stdin_carries_ours_to_its_end(world: World, size: int) -> None:
    done = world.hold("run", "--stdin", "open", "--", *world.probe("count-stdin"), input="x" * size)
    assert (done.stdout, done.returncode) == (f"ready\nstdin {size}\n", 0)


def test_input_that_comes_while_it_runs_is_carried_at_once(world: World) -> None:
    argv = world.hold_argv("run", "--stdin", "open", "--", *world.probe("read-line", "read-line"))
    program = world.program(argv)
    assert program.line() == "ready"
    program.send("first\n")
    assert program.line() == "got first"
    program.send("second\n")
    assert program.line() == "got second"
    assert program.wait() == 0


def test_a_command_that_does_not_read_its_open_stdin_still_ends(world: World) -> None:
    program = world.program(world.hold_argv("run", "--stdin", "open", "--", *world.probe("exit", 4)))
    assert program.wait() == 4


def test_a_given_input_is_the_whole_input(world: World) -> None:
    (world.cwd / "data").write_text("from a file\n")
    assert world.hold("run", "--input", "data", "--", "cat").stdout == "from a file\n"
    assert world.hold("run", "--input", "-", "--", "cat", input="from ours\n").stdout == "from ours\n"


def test_a_run_that_waits_too_long_prints_the_id_and_leaves_it(world: World) -> None:
    # Time enough for a start on a busy machine: what is printed later is not shown.
    done = world.hold("run", "--wait", "5s", "--", *world.probe("write", "half", "forever"))
    assert done.returncode == 0
    id = done.stdout.splitlines()[-1]
    assert done.stdout == f"ready\nhalf\n{id}\n"
    assert f"hold stop {id}" in done.stderr
    assert world.open().get(id).state == "running"
    assert world.hold("stop", id, "--grace", "1s").returncode == 0


def test_a_run_that_ends_in_time_does_not_print_the_id(world: World) -> None:
    done = world.hold("run", "--wait", "20s", "--", *world.probe("exit", 5))
    assert (done.stdout, done.returncode) == ("ready\n", 5)


def test_a_call_that_was_waited_for_long_enough_becomes_detached(world: World) -> None:
    done = world.hold("run", "--wait", "100ms", "--lifetime", "call", "--", *world.probe("forever"))
    session = world.open().get(done.stdout.split()[-1])
    assert session.state == "running"
    assert session.kill().done


def test_a_run_as_json_is_the_session_and_nothing_else(world: World) -> None:
    done = world.hold("run", "--json", "--", *world.probe("err", "say", "x", "exit", 3))
    session = json.loads(done.stdout)
    assert (session["state"], session["exit"]["code"], done.returncode, done.stderr) == ("exited", 3, 3, "")
    early = world.hold("run", "--json", "--wait", "50ms", "--", *world.probe("forever"))
    assert (json.loads(early.stdout)["state"], early.returncode) == ("running", 0)
    world.hold("kill", "last", check=True)


def test_processes_that_outlive_the_command_are_reported(world: World) -> None:
    done = world.hold("run", "--name", "it", "--", *world.probe("close", 1, 2, "fork", "{", "forever", "}", "exit", 6))
    assert done.returncode == 6
    assert "a process it started is still running" in done.stderr
    assert "exit 6, 1 still running" in world.hold("ls").stdout
    assert world.hold("stop", "it", "--grace", "0").returncode == 0


def test_a_limit_that_ended_the_command_is_reported(world: World) -> None:
    done = world.hold("run", "--name", "it", "--timeout", "200ms", "--", *world.probe("forever"))
    assert done.returncode == 124
    assert done.stderr == f"hold: {world.open().get('it').id} timed out after 200ms and was stopped\n"


def test_a_silence_that_ended_the_command_is_reported(world: World) -> None:
    done = world.hold("run", "--name", "it", "--idle-timeout", "300ms", "--", *world.probe("forever"))
    assert done.returncode == 128 + signal.SIGTERM
    reported = f"{world.open().get('it').id} printed nothing for 300ms and was stopped"
    assert done.stderr == f"hold: {reported}\n"


def test_missing_output_is_counted_by_its_reasons() -> None:
    found = missing_output({"disk": 5, "missing": 4})
    assert found == "9 bytes of output are missing: 5 not stored (disk full), 4 in removed log files"
    assert missing_output({"dropped": 1}) == "1 byte of output is missing: 1 deleted from the log (its cap)"


def test_a_reader_that_leaves_ends_the_run_but_not_the_session(world: World) -> None:
    program = world.program(world.hold_argv("run", "--name", "it", "--", *world.probe("lines-forever", 0.001)))
    assert program.line() == "ready"
    program.hang_up()
    assert program.wait() == 128 + signal.SIGPIPE
    assert "is still running" in program.errors()
    session = world.open().get("it")
    assert session.state == "running"
    assert session.kill().done


def test_a_run_whose_runner_is_killed_has_an_unknown_exit(world: World) -> None:
    program = world.program(world.hold_argv("run", "--name", "it", "--", *world.probe("forever")))
    assert program.line() == "ready"
    session = world.open().get("it")
    assert session.runner_pid is not None
    assert session.pid is not None
    os.kill(session.runner_pid, signal.SIGKILL)
    until(lambda: session.refresh().state == "stale", what="the loss of the runner")
    os.kill(session.pid, signal.SIGKILL)
    assert program.wait() == 125
    assert "the runner of session" in program.errors()
    world.hold("gc", "--all")


def test_a_start_prints_the_id_alone(world: World, start: Start) -> None:
    id = start("forever", options=("--name", "web", "--owner", "me", "--label", "app=shop", "--description", "a shop"))
    session = world.open().get("web")
    assert (session.id, session.owner, session.labels, session.description) == (id, "me", {"app": "shop"}, "a shop")
    assert session.metadata.get("warnings") is None
    author = json.loads((world.session(id) / "spec.json").read_text())["author"]
    assert author.startswith("cli:")


def test_a_start_as_json_is_the_session(world: World) -> None:
    done = world.hold("start", "--json", "--", "true")
    session = json.loads(done.stdout)
    assert session["command"] == "true"
    assert session["id"]
    world.hold("wait", session["id"], "--exit", check=True)


def test_a_session_of_an_owner_ends_with_the_caller_of_hold(world: World) -> None:
    hold = world.hold_argv("start", "--lifetime", "owner", "--", *world.probe("forever"))
    program = world.program(["sh", "-c", '"$@"; read line', "sh", *hold])
    id = program.line()
    session = world.open().get(id)
    assert session.state == "running"
    program.close_stdin()
    program.wait()
    assert session.wait(exit=True, timeout=30).reason == "exit"
    assert session.refresh().exit is not None
    assert session.exit is not None
    assert session.exit.cause == "owner_gone"


def test_a_key_finds_the_running_session_again(world: World, start: Start) -> None:
    command = world.probe("forever")
    first = start("forever", options=("--key", "once"))
    again = world.hold("start", "--key", "once", "--", *command, check=True).stdout.strip()
    assert again == first
    replaced = world.hold("start", "--key", "once", "--replace", "--", *command, check=True).stdout.strip()
    assert replaced != first
    world.hold("kill", replaced, check=True)


def test_a_descriptor_is_handed_on(world: World, tmp_path: Path) -> None:
    with (tmp_path / "file").open("w") as file:
        os.set_inheritable(file.fileno(), True)
        command = ["bash", "-c", f"echo through >&{file.fileno()}"]
        argv = world.hold_argv("run", "--pass-fd", file.fileno(), "--", *command)
        subprocess.run(argv, pass_fds=[file.fileno()], check=True, timeout=20)
    assert (tmp_path / "file").read_text() == "through\n"


def test_the_stop_ladder_is_the_one_that_was_asked_for(world: World, start: Start) -> None:
    id = start("exit-on", "USR1", 9, "say", "set", "forever", options=("--stop-ladder", "USR1:5s,KILL/tree"))
    world.hold("wait", id, "--match", "set", "--timeout", "30s", check=True)
    assert "USR1" in world.hold("stop", id, check=True).stdout
    exit = world.open().get(id).exit
    assert exit is not None
    assert exit.code == 9


# A host that ignores and blocks what hosts do, and runs the command line that it is given.
_UNWILLING = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGUSR1, signal.SIGPIPE, signal.SIGRTMIN):
    signal.signal(number, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2, signal.SIGTERM])
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.mark.covers("found:25")
@pytest.mark.parametrize("options", [(), ("--tty",)], ids=["pipes", "terminal"])
@pytest.mark.parametrize("host", ["plain", "unwilling"])
def test_a_command_has_no_signal_ignored_or_blocked(world: World, options: tuple[str, ...], host: str) -> None:
    # Not the probe: an interpreter ignores some by itself.
    argv = world.hold_argv("run", *options, "--", "grep", "-E", "Sig(Blk|Ign)", "/proc/self/status")
    if host == "unwilling":
        argv = [sys.executable, "-c", _UNWILLING, *argv]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=20, check=True)
    masks = [int(line.split()[1], 16) for line in done.stdout.splitlines()]
    assert masks == [0, 0]


@pytest.mark.parametrize("how", ["an option", "an empty input", "the file", "a variable"])
def test_a_loop_that_reads_lines_keeps_its_input(world: World, how: str) -> None:
    env, words, after = {}, "", ""
    if how == "an option":
        words = "--stdin closed"
    elif how == "an empty input":
        after = "</dev/null"
    elif how == "a variable":
        env["HOLDFAST_START_STDIN"] = "closed"
    else:
        file = world.root / "user" / ".config" / "holdfast" / "config.toml"
        file.parent.mkdir(exist_ok=True)
        file.write_text('[start]\nstdin = "closed"\n')
        file.chmod(0o600)
    hold = shlex.join(map(str, world.hold_argv("run")))
    command = """sh -c 'cat; echo "did $0"' $line"""
    loop = f"seq 2 | while read -r line; do {hold} {words} -- {command} {after}; done"
    with_env = {**os.environ, **env}
    done = subprocess.run(["sh", "-c", loop], capture_output=True, text=True, timeout=60, check=True, env=with_env)
    assert (done.stdout, done.stderr) == ("did 1\ndid 2\n", "")
    # Without any of these the first one reads all, as ssh does.
    if how == "an option":
        loop = loop.replace(words, "")
        first = subprocess.run(["sh", "-c", loop], capture_output=True, text=True, timeout=60, check=True)
        assert first.stdout == "2\ndid 1\n"
