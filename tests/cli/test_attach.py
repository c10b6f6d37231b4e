"""`hold attach` in a window of its own: every key passed on, the screen the session's, the terminal left as it was."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from cli.outer import Outer
from holdfast import Session
from support.faults import kill_runner, sweep_up
from support.waiting import until, wait_gone
from support.world import World

Attach = Callable[..., Outer]
Started = Callable[..., Session]

# Says what it reads, byte for byte.
READER = """
import os, sys, tty
tty.setraw(0)
os.write(1, b"ready\\r\\n")
while True:
    data = os.read(0, 65536)
    os.write(1, data.hex(" ").encode() + b"\\r\\n")
"""
# Prints its input, in lines of Python bytes, without anything of its own.
PRINTER = """
import ast, os, sys, tty
tty.setraw(0)
os.write(1, b"ready\\r\\n")
line = b""
while True:
    line += os.read(0, 65536)
    while b"\\r" in line:
        first, _, line = line.partition(b"\\r")
        # Answers to what was printed may stand before it.
        os.write(1, ast.literal_eval(first[first.rindex(b"b'"):].decode()))
"""
# Turns on whatever a program can turn on.
EVERYTHING = (
    "\\x1b[?1049h\\x1b[?1h\\x1b=\\x1b[?1003;1006;1004;2004h\\x1b[?25l\\x1b[6 q\\x1b[5;10r\\x1b)0\\x1b[1;31m\\x1b[?7l"
    "\\x1b[>5u\\x1b[>1u\\x1b[>4;2m\\x1b]2;theirs\\x07\\x1b]4;1;red\\x07\\x1b]9;4;1;50\\x07\\x1b]8;;http://x\\x07\\x1b[?2026h"
)


@pytest.fixture
def started(world: World) -> Started:
    """A session on a terminal, its command ready."""

    def start(source: str | list[str], *, ready: str | None = "ready", tty: Any = True) -> Session:
        argv = [sys.executable, "-u", "-c", source] if isinstance(source, str) else source
        session = world.open().start(argv, tty=tty, size=(24, 80))
        world.closing.callback(session.kill)
        if ready is not None:
            assert session.wait(match=ready, timeout=30).reason == "match"
        return session

    return start


@pytest.fixture
def attach(world: World) -> Attach:
    def run(session: Session, *options: str, env: dict[str, str] | None = None, **size: int) -> Outer:
        outer = Outer(world.hold_argv("attach", session.id, *options), env, **size)
        world.closing.callback(outer.close)
        return outer

    return run


def read_by(session: Session) -> bytes:
    """What a READER got, as far as it has printed whole lines."""
    lines = session.text().split("ready", 1)[1].split("\n")[:-1]
    return bytes.fromhex(" ".join(line.strip() for line in lines))


def got(session: Session, expected: bytes) -> None:
    until(lambda: read_by(session) == expected, what=f"{expected!r} at the command, not {read_by(session)!r}")


def clients(session: Session) -> int:
    return sum(session.refresh().attached.values())


def leave(outer: Outer) -> None:
    outer.type(b"\x1dd")
    assert outer.end() == 0
    assert "detached from" in outer.everything


@pytest.mark.covers("terminal:33")
def test_every_key_arrives_byte_for_byte(started: Started, attach: Attach) -> None:
    session = started(READER)
    outer = attach(session)
    outer.shows("ready")
    typed = [
        b"\x03\x04\x1a\x13\x11\x16\x1c\x0f",
        b"\x1b[A\x1bOA\x1b[1;5C",
        b"\x1bOP\x1b[15~\x1b[24;2~",
        b"\x1bx\x1b",
        b"\x1b[<0;10;5M\x1b[<0;10;5m\x1b[M !!",
        "grün 漢字\r".encode(),
        bytes(range(0x80, 0x100)),
        b"\x00\x7f\x08",
    ]
    sent = b""
    for keys in typed:
        outer.type(keys)
        sent += keys
        got(session, sent)
    assert outer.is_raw
    leave(outer)


@pytest.mark.covers("terminal:33")
def test_a_window_that_is_closed_detaches_and_signals_nothing(started: Started, attach: Attach) -> None:
    source = f"""
import signal
for number in signal.valid_signals() - {{signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD}}:
    try:
        signal.signal(number, lambda number, frame: print("signal", number, flush=True))
    except (OSError, ValueError):
        pass
{READER}"""
    session = started(source)
    outer = attach(session)
    outer.shows("ready")
    assert clients(session) == 1
    pid = session.pid
    outer.hang_up()
    assert outer.wait() == 0
    until(lambda: not clients(session), what="the client to be gone")
    assert session.refresh().state == "running"
    assert session.pid == pid
    assert "signal" not in session.text()
    # It still reads, and nothing was read that was not typed.
    session.send("x")
    got(session, b"x")


@pytest.mark.covers("terminal:32")
@pytest.mark.parametrize("how", ["the key", "SIGTERM", "SIGHUP", "SIGINT", "the end", "an error"])
def test_whatever_it_was_put_into_the_terminal_is_left_as_it_was(
    world: World, started: Started, attach: Attach, how: str
) -> None:
    session = started(f"import os\nos.write(1, b'{EVERYTHING}')\n{READER}")
    outer = attach(session)
    outer.shows("ready")
    during = outer.modes()
    assert during["?1049"] or during["screen"]
    assert during["?1003"]
    assert during["?2004"]
    assert not during["visible"]
    assert during["keyboard"] == 1
    expected = 0
    if how == "the key":
        outer.type(b"\x1dd")
    elif how.startswith("SIG"):
        number = signal.Signals[how]
        outer.signal(number)
        expected = 130 if how == "SIGINT" else 0
    elif how == "the end":
        session.kill()
        expected = 137
    else:
        kill_runner(session)
        expected = 5
    assert outer.end() == expected
    after = {name: value for name, value in outer.modes().items() if value != outer.before[name]}
    assert after == {}
    assert outer.is_as_before()
    assert b"\x1b]104;1\x1b\\" in outer.printed
    assert outer.printed.count(b"\x1b[22;0t") == outer.printed.count(b"\x1b[23;0t") == 1
    if how == "an error":
        sweep_up(world, world.open())


@pytest.mark.covers("terminal:32")
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(["vim", "-u", "NONE", "-i", "NONE", "-n"], marks=pytest.mark.needs("vim")),
        pytest.param(["fish", "--no-config"], marks=pytest.mark.needs("fish")),
        ["bash", "--norc"],
    ],
)
def test_after_a_real_program_the_terminal_is_as_it_was(started: Started, attach: Attach, program: list[str]) -> None:
    session = started(program, ready=None)
    outer = attach(session)
    outer.until(lambda: outer.text.strip() != "", f"{program[0]} on the screen")
    leave(outer)
    assert outer.is_as_before()
    again = attach(session)
    again.until(lambda: again.text.strip() != "", f"{program[0]} again")
    leave(again)
    assert again.is_as_before()


@pytest.mark.covers("terminal:9")
def test_a_terminal_that_answers_everything_is_never_asked(started: Started, attach: Attach) -> None:
    """Only what the client itself asks before attaching: and no answer to that reaches the session."""
    session = started(READER)
    asks = b"\x1b[6n\x1b[c\x1b[>c\x1b[>q\x1b[5n\x1b[?u\x1b]10;?\x07\x1b]11;?\x1b\\\x1b[18t\x1b[?2004$p\x05\x1bZ"
    printer = started(PRINTER)
    for _ in range(2):
        outer = attach(printer)
        outer.shows("ready")
        asked = list(outer.asked)
        printer.send(repr(asks + b"LIVE").encode() + b"\r")
        outer.shows("LIVE")
        # A repaint, and what is asked behind it.
        outer.type(b"\x1dr")
        outer.until(partial(_repainted, outer), "the screen to be drawn again")
        printer.send(repr(asks + b"MORE").encode() + b"\r")
        outer.shows("MORE")
        assert outer.asked == asked
        leave(outer)
        assert outer.asked == asked
    outer = attach(session)
    outer.shows("ready")
    outer.type(b"x")
    got(session, b"x")
    leave(outer)
    assert read_by(session) == b"x"


@pytest.mark.covers("terminal:9")
def test_answers_that_come_late_do_not_reach_the_session(started: Started, attach: Attach) -> None:
    session = started(READER)
    outer = attach(session)
    # The emulator gets to see the questions only when the session is shown, long after the client stopped waiting.
    until(lambda: clients(session), what="the client")
    outer.shows("ready")
    assert outer.asked
    outer.type(b"x")
    got(session, b"x")
    leave(outer)


@pytest.mark.covers("terminal:15")
def test_labels_reach_the_terminal_and_the_clipboard_does_not(started: Started, attach: Attach) -> None:
    session = started(PRINTER)
    outer = attach(session)
    outer.shows("ready")
    labels = [
        b"\x1b]7;file://h/d\x07",
        b"\x1b]8;;http://x\x07",
        b"\x1b]133;A\x07",
        b"\x1b]9;4;1;7\x07",
        b"\x1b]2;mine\x07",
    ]
    copy = b"\x1b]52;c;aGVsbG8=\x07"
    session.send(repr(b"".join(labels) + copy + b"\x07\x1b]9;note\x07\x1b[8;50;100tEND").encode() + b"\r")
    outer.shows("END")
    for each in (*labels, b"\x07", b"\x1b]9;note\x07"):
        assert each in outer.printed, each
    assert b"\x1b]52" not in outer.printed
    assert b"\x1b[8;50;100t" not in outer.printed
    leave(outer)
    again = attach(session, "--clipboard")
    again.shows("END")
    shown = again.printed
    for each in (b"]52", b"\x1b]9;note", b"\x1b[8;50;100t"):
        assert each not in shown, each
    assert b"\x07" not in shown.replace(b"]0;", b"").split(b"\x1b]")[0]
    leave(again)


@pytest.mark.covers("terminal:15")
def test_with_consent_on_both_sides_the_clipboard_is_written_live_and_never_again(
    started: Started, attach: Attach
) -> None:
    session = started(PRINTER, tty={"clipboard": True})
    copy = b"\x1b]52;c;aGVsbG8=\x07"
    for options, passes in (((), False), (("--clipboard",), True)):
        outer = attach(session, *options)
        outer.shows("ready")
        session.send(repr(copy + b"END%d" % passes).encode() + b"\r")
        outer.shows(f"END{int(passes)}")
        assert (copy in outer.printed) is passes
        leave(outer)
    again = attach(session, "--clipboard")
    again.shows("END1")
    assert copy not in again.printed
    leave(again)


@pytest.mark.covers("terminal:35")
def test_the_detach_key_is_found_however_it_comes(started: Started, attach: Attach) -> None:
    session = started(READER)
    kitty, other = b"\x1b[93;5u", b"\x1b[27;5;93~"
    for typed, sent in (
        ([b"\x1d", b"d"], b""),
        ([b"a\x1d\x1d", b"\x1dd"], b"a\x1d"),
        ([kitty + b"d"], b""),
        ([other + b"d"], b""),
        ([b"\x1b[200~\x1dd\x1b[201~", b"\x1dd"], b"\x1b[200~\x1dd\x1b[201~"),
        ([b"\x1dx", b"b", b"\x1dd"], b"b"),
    ):
        before = read_by(session)
        outer = attach(session)
        outer.shows("ready")
        for piece in typed:
            outer.type(piece)
            until(partial(_all_read, outer), what="the keys to be read")
        assert outer.end() == 0
        got(session, before + sent)
        assert outer.is_as_before()


def _all_read(outer: Outer) -> bool:
    """Does nothing wait on the terminal for `hold attach` to read it?"""
    waiting: int = struct.unpack("i", fcntl.ioctl(outer.slave, termios.FIONREAD, bytes(4)))[0]
    return waiting == 0


def _repainted(outer: Outer) -> bool:
    return outer.printed.count(b"\x1b[22;0t") == 2 and "LIVE" in outer.text


@pytest.mark.covers("terminal:35")
def test_another_detach_key_and_none_at_all(started: Started, attach: Attach, world: World) -> None:
    session = started(READER)
    outer = attach(session, "--detach-key", "C-a")
    outer.shows("ready")
    outer.type(b"\x1dd")
    got(session, b"\x1dd")
    outer.type(b"\x01d")
    assert outer.end() == 0
    outer = attach(session, env={"HOLDFAST_TERMINAL_DETACH_KEY": "none"})
    outer.shows("ready")
    outer.type(b"\x1dd\x01d")
    got(session, b"\x1dd\x1dd\x01d")
    outer.signal(signal.SIGTERM)
    assert outer.end() == 0
    refused = world.hold("attach", session.id, "--detach-key", "Entr")
    assert refused.returncode == 2
    assert "Enter" in refused.stderr


@pytest.mark.covers("terminal:36")
def test_into_a_pipe_go_the_bytes_of_the_command_alone(started: Started, world: World) -> None:
    session = started(["sh", "-c", "printf 'a\\033[31m\\033]52;c;AA\\007b\\n'; exit 7"], ready=None)
    hold = world.hold_argv("attach", session.id)
    done = subprocess.run(hold, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"a\x1b[31m\x1b]52;c;AA\x07b\r\n", b"", 7)
    killed = started(["sh", "-c", "printf x; kill -TERM $$"], ready=None)
    assert (ended := world.hold("attach", killed.id)).returncode == 143
    assert ended.stdout == "x"


@pytest.mark.covers("terminal:36")
def test_a_pipe_behind_it_leaves_the_terminal_alone(started: Started, world: World) -> None:
    session = started(["sh", "-c", "echo ready; read line; echo got $line; exit 3"])
    hold = " ".join(world.hold_argv("attach", session.id))
    outer = Outer(["bash", "-c", f"{hold} | cat; exit ${{PIPESTATUS[0]}}"])
    world.closing.callback(outer.close)
    outer.shows("ready")
    assert termios.tcgetattr(outer.slave) == outer.settings
    outer.type(b"hello\n")
    outer.shows("got hello")
    assert outer.end() == 3
    assert outer.is_as_before()
    assert b"\x1b" not in outer.printed


@pytest.mark.covers("terminal:36")
@pytest.mark.parametrize("on_terminal", [False, True])
def test_a_pipe_before_it_is_typed_and_the_terminal_is_left_alone(
    started: Started, world: World, on_terminal: bool
) -> None:
    session = started(["sh", "-c", "echo ready; read line; echo got $line; exit 3"])
    if not on_terminal:
        done = world.hold("attach", session.id, input="hello\n")
        assert done.returncode == 3
        assert done.stdout.replace("\r", "").splitlines() == ["ready", "hello", "got hello"]
        assert done.stderr == ""
        return
    hold = " ".join(world.hold_argv("attach", session.id))
    outer = Outer(["bash", "-c", f"echo hello | {hold}"])
    world.closing.callback(outer.close)
    outer.shows("got hello")
    assert termios.tcgetattr(outer.slave) == outer.settings
    assert outer.end() == 3
    assert outer.is_as_before()
    assert outer.asked == []


def test_the_end_of_piped_input_is_what_the_option_says(started: Started, world: World) -> None:
    session = started(READER)
    done = world.hold("attach", session.id, "--stdin-eof", "detach", "--from", "now", input="x" * 10000)
    assert done.returncode == 0
    got(session, b"x" * 10000)
    cat = started(["sh", "-c", "echo ready; exec cat > /dev/null"])
    done = world.hold("attach", cat.id, "--stdin-eof", "eof", input="a line\nand a half")
    assert done.returncode == 0
    ignoring = started(["sh", "-c", "echo ready; read line; sleep 0.3; exit 4"])
    assert world.hold("attach", ignoring.id, input="x\n").returncode == 4


def test_an_observers_mouse_and_focus_ring_no_bell(started: Started, attach: Attach) -> None:
    session = started(READER)
    outer = attach(session, "--observe")
    outer.shows("ready")
    before = outer.printed.count(b"\x07")
    for piece in (b"\x1b[<35;10;5M\x1b[I", b"\x1b[<35;1", b"0;5M\x1b[O", b"\x1b[M !!", b"\x1b[35;10;5M"):
        outer.type(piece)
    outer.type(b"x")
    outer.shows(f"`hold attach {session.id}` takes control")
    outer.shows("ctrl-] d leaves")
    outer.type(b"x")
    outer.until(lambda: "you are only watching" not in outer.text, "the session again")
    assert outer.printed.count(b"\x07") == before
    outer.type(b"x")
    outer.until(lambda: outer.printed.count(b"\x07") > before, "the bell for a key")
    leave(outer)
    assert outer.printed.count(b"\x07") == before + 1
    assert outer.printed.count(b"you are only watching") == 1


def test_an_observer_types_and_sizes_nothing(started: Started, attach: Attach) -> None:
    session = started(READER)
    outer = attach(session, "--observe", rows=10, cols=40)
    outer.shows("ready")
    outer.type(b"abc")
    outer.shows("you are only watching")
    assert session.refresh().size == [24, 80]
    leave(outer)
    assert read_by(session) == b""
    assert outer.is_as_before()


def test_a_client_that_gives_up_control_keeps_watching(started: Started, attach: Attach) -> None:
    session = started(READER)
    outer = attach(session)
    outer.shows("ready")
    outer.type(b"a")
    got(session, b"a")
    outer.type(b"\x1dobc")
    outer.shows("you are only watching")
    outer.type(b" ")
    outer.until(lambda: "you are only watching" not in outer.text, "the session again")
    session.send("z")
    outer.shows("7a")
    assert read_by(session) == b"az"
    leave(outer)


def test_the_last_line_names_the_session_and_is_a_line_of_its_own(world: World) -> None:
    home = world.open()
    for verb in (["attach", "calm"], ["run", "-t", "--name", "busy", "--"]):
        argv = ["sh", "-c", "printf 'prompt# '; exec cat"]
        if verb[0] == "attach":
            world.closing.callback(home.start(argv, tty=True, name="calm").kill)
        outer = Outer(world.hold_argv(*verb, *(argv if verb[0] == "run" else ())))
        world.closing.callback(outer.close)
        outer.shows("prompt#")
        outer.type(b"\x1dd")
        assert outer.end() == 0
        name = "busy" if verb[0] == "run" else "calm"
        last = outer.everything.rstrip().splitlines()[-1]
        assert last.startswith(f"hold: detached from {name}; `hold attach {name}`"), outer.everything
        world.closing.callback(home.get(name).kill)


def test_an_attach_that_is_refused_writes_no_query(started: Started, world: World) -> None:
    session = started(["sh", "-c", "echo ready; exec sleep 600"])
    outer = Outer(world.hold_argv("attach", session.id), {"HOLDFAST_SESSION_ID": session.id})
    world.closing.callback(outer.close)
    assert outer.end() != 0
    assert "from inside it" in outer.everything
    assert b"\x1b]10;?" not in outer.printed
    assert outer.asked == []


def test_a_window_that_changes_its_size_resizes_the_session(started: Started, attach: Attach) -> None:
    session = started(READER)
    outer = attach(session, rows=20, cols=70)
    outer.shows("ready")
    until(lambda: session.refresh().size == [20, 70], what="the size of the window")
    for rows in range(21, 31):
        outer.resize(rows, 100)
    until(lambda: session.refresh().size == [30, 100], what="the last size of the window")
    leave(outer)
    assert session.refresh().size == [30, 100]


def test_a_suspended_client_leaves_the_terminal_and_comes_back(started: Started, attach: Attach, world: World) -> None:
    source = f"import os\nos.write(1, b'{EVERYTHING}')\n{READER}"
    session = started(source)
    # A job under a shell: an orphaned one cannot be stopped by its terminal.
    hold = " ".join(world.hold_argv("attach", session.id))
    outer = Outer(["bash", "--norc", "-im", "-c", f"{hold}; echo suspended; fg; echo over"])
    world.closing.callback(outer.close)
    outer.shows("ready")
    client = _child(outer.pid)
    os.kill(client, signal.SIGTSTP)
    outer.until(lambda: b"suspended" in outer.printed, "the shell to continue")
    between = outer.printed[: outer.printed.index(b"suspended")]
    assert b"\x1b[?1049l" in between
    outer.until(lambda: outer.modes()["?1003"] and outer.modes()["screen"], "the session again")
    outer.type(b"k")
    got(session, b"k")
    outer.type(b"\x1dd")
    outer.until(lambda: b"over" in outer.printed, "the end")
    outer.end()
    wait_gone(client)


# Starts the rest in the background, lets it run into being stopped for that, and takes it to the foreground.
FOREGROUND_LATER = """
import os, signal, sys
child = os.fork()
if child == 0:
    os.setpgid(0, 0)
    os.execvp(sys.argv[1], sys.argv[1:])
_, status = os.waitpid(child, os.WUNTRACED)
assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal.SIGTTOU, status
os.tcsetpgrp(0, child)
os.kill(child, signal.SIGCONT)
os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_client_that_begins_in_the_background_continues_when_it_is_taken_to_the_foreground(
    started: Started, world: World
) -> None:
    session = started(READER)
    outer = Outer([sys.executable, "-c", FOREGROUND_LATER, *world.hold_argv("attach", session.id)])
    world.closing.callback(outer.close)
    outer.shows("ready")
    outer.type(b"k")
    got(session, b"k")
    leave(outer)
    assert "Traceback" not in outer.everything


def test_a_suspended_client_can_be_ended(started: Started, world: World) -> None:
    session = started(READER)
    hold = " ".join(world.hold_argv("attach", session.id))
    # Until bash knows that it continues, `wait` reports again that it is stopped.
    waiting = "while wait %1; ended=$?; [ $ended = 148 ]; do :; done; echo over $ended"
    outer = Outer(["bash", "--norc", "-im", "-c", f"{hold}; kill %1; {waiting}"])
    world.closing.callback(outer.close)
    outer.shows("ready")
    client = _child(outer.pid)
    os.kill(client, signal.SIGTSTP)
    outer.until(lambda: b"over 0" in outer.printed, "the end of the client")
    wait_gone(client)
    assert session.refresh().state == "running"


def _child(pid: int) -> int:
    from pathlib import Path

    until(lambda: Path(f"/proc/{pid}/task/{pid}/children").read_text().split(), what="the client")
    return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])


def test_help_is_shown_and_any_key_continues(started: Started, attach: Attach) -> None:
    session = started(READER)
    outer = attach(session)
    outer.shows("ready")
    outer.type(b"\x1d?")
    outer.shows("Press any key to continue")
    outer.type(b"q")
    outer.until(lambda: "Press any key" not in outer.text, "the session again")
    outer.type(b"a")
    got(session, b"a")
    leave(outer)


def test_an_ended_session_is_shown_with_its_code(started: Started, attach: Attach) -> None:
    session = started(["sh", "-c", "echo the last words; exit 6"], ready=None)
    session.wait(timeout=30)
    outer = attach(session)
    assert outer.end() == 6
    assert "the last words" in outer.everything
    assert f"{session.id} has ended: code 6" in outer.everything
    assert outer.is_as_before()


def test_a_session_on_pipes_is_refused(started: Started, world: World) -> None:
    session = world.open().start(["sleep", "60"])
    world.closing.callback(session.kill)
    refused = world.hold("attach", session.id)
    assert refused.returncode == 4
    assert "not on a terminal" in refused.stderr


def test_reset_repairs_a_terminal_after_a_kill(started: Started, attach: Attach, world: World) -> None:
    session = started(f"import os\nos.write(1, b'{EVERYTHING}')\n{READER}")
    hold = " ".join(world.hold_argv("attach", session.id))
    reset = " ".join(world.hold_argv("reset"))
    outer = Outer(["bash", "--norc", "-c", f"{hold}; read line; {reset}"])
    world.closing.callback(outer.close)
    outer.shows("ready")
    os.kill(_child(outer.pid), signal.SIGKILL)
    until(lambda: not clients(session), what="the client to be gone")
    assert not outer.is_as_before()
    outer.type(b"\n")
    outer.end()
    assert outer.modes() == outer.before
    usual = termios.ICANON | termios.ECHO | termios.ISIG
    assert termios.tcgetattr(outer.slave)[3] & usual == usual


def test_reset_into_a_pipe_is_refused(world: World) -> None:
    assert world.hold("reset").returncode == 1


def test_a_reader_that_leaves_ends_the_client_and_not_the_session(started: Started, world: World) -> None:
    session = started(["sh", "-c", "echo ready; exec sleep 60"])
    hold = subprocess.Popen(
        world.hold_argv("attach", session.id), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, process_group=0
    )
    assert hold.stdout is not None
    assert hold.stdout.readline() == b"ready\r\n"
    hold.stdout.close()
    assert hold.wait(30) == 141
    assert session.refresh().state == "running"


def test_after_an_unasked_stop_the_screen_is_shown_again(started: Started, attach: Attach) -> None:
    session = started(READER)
    outer = attach(session)
    outer.shows("ready")
    outer.signal(signal.SIGSTOP)
    outer.stopped()
    # As a shell does that takes its terminal back.
    termios.tcsetattr(outer.slave, termios.TCSANOW, outer.settings)
    outer.signal(signal.SIGCONT)
    outer.until(lambda: outer.printed.count(b"\x1b[22;0t") == 2 and outer.is_raw, "the screen to be drawn again")
    outer.type(b"a")
    got(session, b"a")
    leave(outer)
    assert outer.is_as_before()


def test_a_terminal_that_takes_nothing_can_be_left(started: Started, attach: Attach) -> None:
    session = started(["sh", "-c", "echo ready; exec yes"])
    outer = attach(session, "--from", "now")
    outer.until(lambda: b"y\r\n" in outer.printed, "output")
    outer.type(b"\x1dd")
    # Nobody reads the terminal: the client waits a moment for it, and goes.
    assert outer.wait() == 0
    assert termios.tcgetattr(outer.slave) == outer.settings
    assert session.refresh().state == "running"


def test_a_replay_from_the_start_is_silent_and_continues_live(started: Started, attach: Attach) -> None:
    session = started(PRINTER)
    session.send(repr(b"early\x07\x1b]9;note\x07\x1b[31m").encode() + b"\r")
    session.wait(match="early", timeout=30)
    outer = attach(session, "--from", "start")
    outer.shows("early")
    session.send(repr(b"late\x07").encode() + b"\r")
    outer.shows("late")
    outer.until(lambda: b"late\x07" in outer.printed, "the bell")
    assert outer.printed.count(b"\x07") == 1
    leave(outer)
    now = attach(session, "--from", "now")
    until(lambda: clients(session) == 1, what="the client")
    session.send(repr(b"newest").encode() + b"\r")
    now.shows("newest")
    assert "early" not in now.text
    leave(now)


def test_a_place_in_the_log_that_is_invalid_is_refused(world: World, started: Started) -> None:
    session = started(["sh", "-c", "echo ready; exec sleep 60"])
    assert world.hold("attach", session.id, "--from", "yesterday").returncode == 2
    assert world.hold("attach", session.id, "--from", "99999").returncode == 2


@pytest.mark.parametrize("reported", [True, False])
def test_a_session_that_takes_no_input_loses_none_and_can_be_left(
    started: Started, attach: Attach, reported: bool
) -> None:
    """The command reads nothing until a signal; a paste that is larger than every buffer waits."""
    source = """
import os, signal, sys, tty
tty.setraw(0)
signal.signal(signal.SIGUSR1, lambda *_: None)
os.write(1, b"ready\\r\\n")
signal.pause()
taken = 0
while taken < 3 << 20:
    taken += len(os.read(0, 65536))
print(f"taken {taken}", flush=True)
signal.pause()
"""
    session = started(source)
    outer = attach(session)
    outer.shows("ready")
    block = b"x" * 65536
    for _ in range(48):
        for at in range(0, len(block), 4095):
            outer.type(block[at : at + 4095])
    outer.type(b"\x1dr\x1d?")
    outer.until(lambda: outer.printed.count(b"\x07") == 2, "bells")
    if reported:
        session.send_signal("USR1")
        outer.shows(f"taken {3 << 20}")
        leave(outer)
    else:
        leave(outer)
        assert "the last input was not accepted" in outer.everything.replace("\n", "")
        assert outer.is_as_before()
