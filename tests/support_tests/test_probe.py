"""The probe does what its words say."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from support import probe, processes
from support.program import Program
from support.waiting import until, wait_for_file, wait_gone
from support.world import World


def output(*words: object, input: bytes = b"") -> bytes:
    done = subprocess.run(probe.argv(*words), input=input, capture_output=True, timeout=30, check=False)
    assert done.stderr == b""
    return done.stdout.removeprefix(b"ready\n")


def start(world: World, *words: object) -> Program:
    program = world.program(world.probe(*words))
    assert program.line() == "ready"
    return program


def test_words_run_in_order() -> None:
    assert output("lines", 2, "say", "x y", "write", "a", "hex", "00ff", "out", "lines", 1) == (
        b"line 1\nline 2\nx y\na\x00\xffline 1\n"
    )


def test_quiet_says_nothing() -> None:
    assert subprocess.run(probe.argv("quiet"), capture_output=True, check=True).stdout == b""


def test_random_bytes_are_the_same_on_both_sides() -> None:
    assert output("bytes", 200_000, 7) == b"".join(probe.random_bytes(200_000, 7))
    assert output("fill", 70_000) == b"x" * 70_000


def test_repeat_and_groups_nest() -> None:
    assert output("repeat", 2, "{", "say", "a", "repeat", 2, "{", "say", "b", "}", "}") == b"a\nb\nb\n" * 2


def test_stderr_gets_what_is_sent_there() -> None:
    done = subprocess.run(probe.argv("err", "say", "bad", "out", "say", "good"), capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"ready\ngood\n", b"bad\n")


@pytest.mark.parametrize("words, code", [(["exit", 7], 7), (["die", "TERM"], -15), (["fork", "exit", 9], 9)])
def test_it_ends_as_requested(words: list[object], code: int) -> None:
    assert subprocess.run(probe.argv(*words), stdout=subprocess.DEVNULL, check=False).returncode == code


def test_an_unknown_word_is_refused() -> None:
    done = subprocess.run(probe.argv("dance"), capture_output=True, check=False)
    assert done.returncode == 1
    assert b"dance" in done.stderr


def test_signals_are_ignored_reported_or_end_it(world: World) -> None:
    program = start(world, "signal-report", "ignore", "INT", "exit-on", "HUP", 3, "say", "armed", "forever")
    assert program.line() == "armed"
    program.signal(signal.SIGINT)
    program.signal(signal.SIGTERM)
    assert program.line() == "signal TERM"
    program.signal(signal.SIGHUP)
    assert program.wait() == 3


def test_a_daemon_leaves_its_parent_and_session(world: World) -> None:
    program = start(world, "daemon", "{", "print-ids", "forever", "}", "say", "left", "exit", 0)
    lines = {program.line(), program.line()}
    assert "left" in lines
    (ids,) = lines - {"left"}
    pid = int(ids.split()[1])
    assert program.wait() == 0
    row = processes.look(pid)
    assert row is not None
    assert row.ppid == os.getpid()
    assert row.sid not in (os.getsid(0), program.pid)
    processes.end(row)


def test_a_held_pipe_outlives_the_leader(world: World) -> None:
    gate, told = world.gate(), world.gate()
    program = start(world, "fork", "{", "tell", told, "holding", "await", gate, "}", "exit", 7)
    assert program.wait() == 7
    assert told.line() == "holding"
    gate.release()
    assert program.line() == ""


def test_stdin_is_copied_counted_and_read_by_line() -> None:
    assert output("cat", input=b"\x00abc") == b"\x00abc"
    assert output("count-stdin", input=b"x" * 100_000) == b"stdin 100000\n"
    assert output("read-line", "cat", input=b"one\ntwo\n") == b"got one\ntwo\n"


def test_facts_of_the_process_are_printed(tmp_path: Path) -> None:
    done = subprocess.run(
        probe.argv("print-env", "A", "print-env", "B", "print-fds", "print-cwd", "print-umask", "print-limit", "CORE"),
        capture_output=True,
        text=True,
        env={"A": "1"},
        cwd=tmp_path,
        umask=0o027,
        check=True,
    )
    lines = done.stdout.splitlines()
    assert lines[:6] == ["ready", "A=1", "B unset", "fds 0 1 2", f"cwd {tmp_path}", "umask 0027"]
    assert lines[6].startswith("limit CORE ")


def test_streams_can_be_closed_early(world: World) -> None:
    program = start(world, "close", 1, 2, "touch", world.root / "closed", "forever")
    assert program.line() == ""
    wait_for_file(world.root / "closed")
    assert program.returncode is None
    program.kill()


def test_serve_answers_on_its_port(world: World) -> None:
    program = start(world, "serve", 0)
    port = int(program.line().removeprefix("port "))
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        assert client.recv(10) == b"ok\n"
    program.kill()


def test_a_hopper_changes_its_pid_and_ends_by_itself(world: World) -> None:
    gate = world.gate()
    program = start(world, "hop", 0.2, "tell", gate, "landed")
    assert program.wait() == 0
    assert gate.line() == "landed"


def test_a_pair_that_reforks_replaces_the_half_that_dies(world: World) -> None:
    program = start(world, "refork", 1, 10, "forever")
    assert program.line() == "reforking 1"

    def pair() -> list[processes.Process]:
        rows = processes.descendants(program.pid)
        return rows if len(rows) == 2 else []

    child = next(row for row in until(pair) if row.ppid != program.pid)
    processes.send(child, signal.SIGKILL)

    def renewed() -> list[processes.Process]:
        rows = pair()
        return [] if child.pid in [row.pid for row in rows] else rows

    rows = until(renewed)
    parent, heir = sorted(rows, key=lambda row: row.ppid != program.pid)
    processes.send(parent, signal.SIGKILL)
    # The heir, now ours because its parent is gone, has made itself a partner.
    until(lambda: processes.descendants(heir.pid))
    for row in [*processes.descendants(heir.pid)]:
        processes.send(row, signal.SIGSTOP)
    stopped = processes.descendants(heir.pid)
    processes.end(heir)
    for row in stopped:
        processes.end(row)
    program.kill()
    for row in stopped:
        wait_gone(row.pid)


def test_memory_is_touched(world: World) -> None:
    program = start(world, "alloc", 8, "forever")
    assert program.line() == "allocated 8"
    with open(f"/proc/{program.pid}/statm", encoding="ascii") as statm:
        assert int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") > 8 << 20
    program.kill()
