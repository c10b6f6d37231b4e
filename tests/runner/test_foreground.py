"""What `/proc` tells of a terminal's foreground: real programs on real terminals, while they wait, run or stand."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core import processes
from holdfast.runner.features.needs_input import foreground
from holdfast.runner.features.needs_input.foreground import ForegroundLook
from support.levers import normal_user
from support.stage import Stage, on_stage
from support.world import World

PYTHON = (sys.executable, "-I", "-S", "-c")


def look(stage: Stage) -> ForegroundLook:
    return foreground.look(stage.device, stage.foreground)


def settled(stage: Stage, blocked: bool | None) -> ForegroundLook:
    """Once the program has come to rest: it prints before it waits."""
    seen: list[ForegroundLook] = []

    def rests() -> bool:
        seen.append(look(stage))
        return seen[-1].blocked_read is blocked and not seen[-1].vetoes

    stage.until(rests, f"blocked_read {blocked}")
    return seen[-1]


@pytest.mark.covers("terminal:44")
@pytest.mark.parametrize(
    "argv, printed",
    [
        (("bash", "-c", "read -s -p 'Password: ' x"), b"Password: "),
        ((*PYTHON, "input('Name? ')"), b"Name? "),
        (("sh", "-c", "echo ready; exec cat"), b"ready"),
        (("sh", "-c", "echo ready; cat < /dev/tty"), b"ready"),
        (("less", "/etc/passwd"), b"/etc/passwd"),
        (("sh", "-c", "cat /etc/passwd | less"), b":"),
    ],
)
def test_a_program_that_reads_its_terminal_is_seen_to(argv: tuple[str, ...], printed: bytes) -> None:
    with on_stage(*argv) as stage:
        stage.read_until(printed)
        seen = settled(stage, True)
        assert seen.vetoes == []
        assert seen.stopped is None


@pytest.mark.covers("terminal:44")
@pytest.mark.parametrize(
    "argv, printed",
    [
        (("sh", "-c", "echo ready; exec sleep 3600"), b"ready"),
        (("sh", "-c", "echo ready; cat | cat > /dev/null < /dev/null & exec sleep 3600"), b"ready"),
        (("bash", "--norc", "--noprofile"), b"bash-"),
        ((*PYTHON, "import select; print('ready', flush=True); select.select([0], [], [])"), b"ready"),
    ],
)
def test_a_program_that_sleeps_or_polls_is_not_taken_for_a_reader(argv: tuple[str, ...], printed: bytes) -> None:
    with on_stage(*argv) as stage:
        stage.read_until(printed)
        stage.until(lambda: look(stage).blocked_read is False and not look(stage).vetoes, "rest")


def test_a_read_on_something_else_is_no_read_on_the_terminal(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with on_stage("sh", "-c", f"echo ready; exec cat <> {tmp_path / 'fifo'}") as stage:
        stage.read_until(b"ready")
        assert not settled(stage, False).vetoes


READER_AND_WORKER = """
import threading, sys
threading.Thread(target=sys.stdin.readline, daemon=True).start()
print("ready", flush=True)
while True: pass
"""
READER_IN_A_THREAD = """
import threading, sys
threading.Thread(target=sys.stdin.readline, daemon=True).start()
print("ready", flush=True)
threading.Event().wait()
"""


def test_a_thread_that_reads_beside_one_that_works_is_no_waiting() -> None:
    with on_stage(*PYTHON, READER_AND_WORKER) as stage:
        stage.read_until(b"ready")
        # Until the reader sits in its read, the two take turns.
        stage.until(lambda: look(stage).vetoes == ["running"], "the work")
        assert look(stage).blocked_read is False


def test_a_thread_that_reads_beside_one_that_sleeps_is() -> None:
    with on_stage(*PYTHON, READER_IN_A_THREAD) as stage:
        stage.read_until(b"ready")
        settled(stage, True)


def test_a_reader_counts_though_another_process_beside_it_runs() -> None:
    with on_stage("sh", "-c", "echo ready; while :; do :; done & cat < /dev/tty") as stage:
        stage.read_until(b"ready")
        stage.until(lambda: look(stage).blocked_read is True, "the reader")
        stage.until(lambda: look(stage).running, "the other one")


# Until the child of a vfork has become its program, the kernel holds the parent as if it waited for a disk.
HELD_BY_THE_KERNEL = """
import os, sys
print("ready", flush=True)
open_it = (os.POSIX_SPAWN_OPEN, 0, sys.argv[1], os.O_RDONLY, 0)
os.posix_spawn("/bin/true", ["true"], {}, file_actions=[open_it])
"""


def test_a_process_that_the_kernel_holds_is_reported(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with on_stage(*PYTHON, HELD_BY_THE_KERNEL, str(tmp_path / "fifo")) as stage:
        stage.read_until(b"ready")
        # On its way into the kernel one of its two processes may still run.
        stage.until(lambda: look(stage).vetoes == ["disk_wait"], "the wait")
        assert look(stage).blocked_read is False


def test_only_the_foreground_is_looked_at() -> None:
    with on_stage("bash", "-c", "set -m; (while :; do :; done) & echo ready; read x") as stage:
        stage.read_until(b"ready")
        assert not settled(stage, True).running


@pytest.mark.parametrize(
    "script, signal_name",
    [
        ("set -m; cat & echo ready; sleep 3600", "SIGTTIN"),
        ("set -m; stty tostop; (sleep 0.01; echo no) & echo ready; sleep 3600", "SIGTTOU"),
    ],
)
def test_a_job_that_the_terminal_stopped_is_reported_with_the_signal(script: str, signal_name: str) -> None:
    with on_stage("bash", "-c", script) as stage:
        stage.read_until(b"ready")
        stage.until(lambda: look(stage).stopped == signal_name, signal_name)
        assert look(stage).blocked_read is False


def test_a_stopped_command_is_reported() -> None:
    with on_stage("sh", "-c", "echo ready; exec sleep 3600") as stage:
        stage.read_until(b"ready")
        os.kill(stage.pid, signal.SIGSTOP)
        stage.until(lambda: look(stage).stopped == "stopped", "the stop")
        assert look(stage).vetoes == []


def test_time_on_the_processor_is_counted() -> None:
    with on_stage("sh", "-c", "echo ready; while :; do :; done") as stage:
        stage.read_until(b"ready")
        before = look(stage).cpu_ticks
        stage.until(lambda: look(stage).cpu_ticks > before, "a tick")


def test_a_given_list_of_processes_is_enough() -> None:
    with on_stage("sh", "-c", "echo ready; cat < /dev/tty") as stage:
        stage.read_until(b"ready")
        settled(stage, True)
        mine = processes.descendants(os.getpid())
        assert foreground.look(stage.device, stage.foreground, mine).blocked_read is True
        assert foreground.look(stage.device, stage.foreground, []).blocked_read is False


def test_another_terminal_is_not_this_one() -> None:
    with on_stage("sh", "-c", "echo ready; exec cat") as stage:
        stage.read_until(b"ready")
        settled(stage, True)
        assert foreground.look(stage.device + 1, stage.foreground).blocked_read is False


@pytest.mark.root
def test_a_process_that_may_not_be_looked_into_is_unknown_and_never_a_no(world: World) -> None:
    """As a program of another user on the same terminal is for a runner: sudo asking for a password."""
    look_in = f"""
import sys
sys.path.insert(0, {str(Path(foreground.__file__).parents[4])!r})
from holdfast.runner.features.needs_input import foreground
print(foreground.look(int(sys.argv[1]), int(sys.argv[2])).blocked_read)
"""
    with on_stage("sh", "-c", "echo ready; exec cat") as stage:
        stage.read_until(b"ready")
        settled(stage, True)
        argv = [*normal_user(world), *PYTHON, look_in, str(stage.device), str(stage.foreground)]
        answer = subprocess.run(argv, capture_output=True, text=True, check=True)
        assert answer.stdout == "None\n"


@pytest.mark.parametrize("limit", ["_PROCESSES_MAX", "_THREADS_MAX"])
def test_what_lies_beyond_the_bound_of_a_look_is_unknown(monkeypatch: pytest.MonkeyPatch, limit: str) -> None:
    with on_stage(*PYTHON, READER_IN_A_THREAD) as stage:
        stage.read_until(b"ready")
        settled(stage, True)
        monkeypatch.setattr(foreground, limit, 0)
        assert look(stage).blocked_read is None


def test_a_machine_whose_calls_are_not_known_reports_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with on_stage("sh", "-c", "echo ready; exec cat") as stage:
        stage.read_until(b"ready")
        settled(stage, True)
        monkeypatch.setattr(foreground, "_READS", {})
        assert look(stage).blocked_read is None
