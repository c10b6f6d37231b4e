"""What takes longer than a second says on a terminal what it waits for."""

from __future__ import annotations

import os
import signal
import sys

from cli.conftest import Start
from cli.outer import Outer
from places.conftest import configure_place
from support.world import World

_SLOW_GC = """
import signal, sys
from holdfast import cli
from holdfast.sessions.api import Holdfast
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
collect = Holdfast.collect
def slowly(self, **words):
    done = collect(self, **words)
    signal.sigwait([signal.SIGUSR1])
    return done
Holdfast.collect = slowly
sys.exit(cli.carry_out(["gc", "--all"]))
"""


def _window(world: World, argv: list[str], **env: str) -> Outer:
    window = Outer(argv, env=env)
    world.closing.callback(window.close)
    return window


def test_a_stop_says_the_rung_and_what_is_left(world: World, start: Start) -> None:
    start("ignore", "TERM", "fork", "{", "forever", "}", "forever", options=("--name", "web"))
    window = _window(world, world.hold_argv("stop", "web", "--grace", "60s"))
    window.shows("hold: waiting for web (TERM to the command, 2 processes left, such as pid ")
    world.hold("kill", "web", check=True)
    assert window.end() == 0
    # The line is removed.
    assert "waiting" not in window.text
    assert "stopped, 2 processes gone" in window.text


def test_a_restart_says_what_it_waits_for(world: World, start: Start) -> None:
    before = start("ignore", "TERM", "forever", options=("--name", "web"))
    window = _window(world, world.hold_argv("restart", "web", "--grace", "60s"))
    window.shows("hold: waiting for web (TERM to the command, 1 process left, such as pid ")
    world.hold("kill", before, check=True)
    assert window.end() == 0
    assert "waiting" not in window.text
    assert world.open().get("web").id in window.text
    world.hold("kill", "web", check=True)


def test_a_restart_that_reads_its_input_waits_for_nothing_yet(world: World, start: Start) -> None:
    """The line would be drawn over what is typed, and nothing is being stopped."""
    before = start("forever", options=("--input", "/dev/null"))
    given = world.cwd / "given"
    os.mkfifo(given)
    window = _window(world, world.hold_argv("restart", before, "--input", str(given)))
    writer = os.open(given, os.O_WRONLY)  # from here on it reads
    try:
        assert len(os.listdir(f"/proc/{window.pid}/task")) == 1
    finally:
        os.close(writer)
    assert window.end() == 0
    world.hold("kill", "last", check=True)


def test_a_collection_says_how_far_it_is(world: World, start: Start) -> None:
    over = start("exit", 0)
    world.hold("wait", over, "--timeout", "30s", check=True)
    window = _window(world, [sys.executable, "-c", _SLOW_GC])
    window.shows("hold: waiting for the collection: 1 of 1 sessions removed")
    window.signal(signal.SIGUSR1)
    assert window.end() == 0
    assert "waiting" not in window.text


def test_an_export_says_how_far_it_is(world: World, start: Start) -> None:
    id = start("fill", 400_000, "say", "", "exit", 0, options=("--tty",))
    world.hold("wait", id, "--timeout", "30s", check=True)
    pipe = world.cwd / "pipe"
    os.mkfifo(pipe)
    window = _window(world, world.hold_argv("export", id, str(pipe), "--format", "raw"))
    reader = os.open(pipe, os.O_RDONLY)
    # The pipe takes some of it, and is not read any more.
    window.shows("hold: waiting for the recording, at ")
    line = next(line for line in window.text.splitlines() if "waiting" in line)
    assert line.split(" at ")[1].startswith(("64", "128"))
    while os.read(reader, 1 << 20):
        pass
    os.close(reader)
    assert window.end() == 0
    assert "waiting" not in window.text


def test_a_start_in_another_place_says_which_it_waits_for(world: World) -> None:
    configure_place(world, "box", ["sh", "-c", "read forever; read forever; exec sleep 600"])
    for verb in ("run", "start"):
        window = _window(world, world.hold_argv(verb, "--place", "box", "--", "true"), HOLDFAST_PLACES_TIMEOUT="3s")
        window.shows("hold: waiting for box to start it")
        assert window.end() != 0
        assert "waiting for" not in window.text
        assert "no answer" in window.text.replace("\n", " ")


def test_nothing_is_said_beside_a_terminal_or_in_the_first_second(world: World, start: Start) -> None:
    id = start("forever")
    window = _window(world, world.hold_argv("stop", id))
    assert window.end() == 0
    assert b"waiting" not in window.printed
    id = start("ignore", "TERM", "forever")
    done = world.hold("stop", id, "--grace", "1500ms", check=True)
    assert done.stderr == ""
