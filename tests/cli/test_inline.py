"""`hold run` in a real terminal, tmux: inline, and hints for programs that need a terminal."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.waiting import until
from support.world import World

pytestmark = pytest.mark.needs("tmux")
BOUND_S = 60.0
PROMPT = "ready>"


class Pane:
    """A shell in a window of tmux, 80x24."""

    def __init__(self, world: World) -> None:
        self._argv = ["tmux", "-f", os.devnull, "-S", str(world.root / "tmux")]
        shell = f"env PS1='{PROMPT}' PATH={shlex.quote(os.path.dirname(sys.executable))}:$PATH sh"
        self("new-session", "-d", "-x", "80", "-y", "24", shell)
        self.prompts = 1
        self._wait()

    def __call__(self, *words: str) -> str:
        return subprocess.run([*self._argv, *words], capture_output=True, text=True, check=True, timeout=30).stdout

    @property
    def screen(self) -> list[str]:
        return [line.rstrip() for line in self("capture-pane", "-p").splitlines()]

    @property
    def everything(self) -> list[str]:
        """With what scrolled out."""
        return [line.rstrip() for line in self("capture-pane", "-p", "-S", "-").splitlines()]

    @property
    def is_whole_screen(self) -> bool:
        return self("display-message", "-p", "#{alternate_on}").strip() == "1"

    def type(self, line: str) -> None:
        self("send-keys", "-l", line)
        self("send-keys", "Enter")

    def run(self, line: str) -> list[str]:
        """What a command line leaves, up to the next prompt."""
        before = len("\n".join(self.everything).rstrip().splitlines())
        self.type(line)
        self.prompts += 1
        self._wait()
        return "\n".join(self.everything).rstrip().splitlines()[before:-1]

    def _wait(self) -> None:
        def is_back() -> bool:
            text = "\n".join(self.everything).rstrip()
            return text.endswith(PROMPT) and text.count(PROMPT) == self.prompts

        until(is_back, BOUND_S, what="the next prompt")

    def close(self) -> None:
        subprocess.run([*self._argv, "kill-server"], capture_output=True, check=False, timeout=30)


@pytest.fixture
def pane(world: World) -> Iterator[Pane]:
    made = Pane(world)
    yield made
    made.close()


def _hold(world: World, *words: str) -> str:
    return shlex.join(map(str, world.hold_argv(*words)))


def _alias(pane: Pane, world: World) -> None:
    """`hold`, so that command lines fit the window."""
    pane.run(f'hold() {{ {_hold(world)} "$@"; }}')


@pytest.mark.covers("habits:9")
def test_a_run_on_a_terminal_leaves_the_screen_as_the_program_alone_would(world: World, pane: Pane) -> None:
    (world.cwd / "names").mkdir()
    for name in ("one", "two", "three"):
        (world.cwd / "names" / name).touch()
    _alias(pane, world)
    pane.run("seq 30")  # one screenful and more
    names = world.cwd / "names"
    alone = pane.run(f"ls {names}")
    assert pane.run(f"hold run -t -- ls {names}") == alone
    everything = pane.everything
    assert [line for line in everything if line.isdecimal()] == [str(n) for n in range(1, 31)]
    # A program of the whole screen takes it, and gives it back.
    before = pane.everything
    for line in (f"vim -u NONE -N {names}/one", f"hold run -t -- vim -u NONE -N {names}/one"):
        pane.type(line)
        until(lambda: pane.is_whole_screen and pane.screen.count("~") > 15, BOUND_S, what="vim")
        assert not [line for line in pane.screen if line.isdecimal()]
        pane("send-keys", ":q", "Enter")
        until(lambda: not pane.is_whole_screen, BOUND_S, what="the end of vim")
        pane.prompts += 1
        pane._wait()
    after = "\n".join(pane.everything).rstrip().splitlines()
    known = "\n".join(before).rstrip().splitlines()
    assert after[: len(known) - 1] == known[:-1]
    # Only the two command lines were added, and the prompt.
    assert after[len(known) - 1 :] == [
        f"{PROMPT}vim -u NONE -N {names}/one",
        f"{PROMPT}hold run -t -- vim -u NONE -N {names}/one",
        PROMPT,
    ]


HINT = "needs a terminal? `hold run -t -- {}`"


@pytest.mark.covers("habits:10")
@pytest.mark.parametrize("program", ["python3", "bash", "sh -c 'exec < /dev/tty'"])
def test_a_program_that_needs_a_terminal_leaves_a_hint(world: World, pane: Pane, program: str) -> None:
    _alias(pane, world)
    shown = "".join(pane.run(f"hold run -- {program}"))
    assert HINT.format(program) in shown


@pytest.mark.covers("habits:10")
def test_the_hint_is_there_when_vim_has_been_left(world: World, pane: Pane) -> None:
    """On pipes it waits for keys that cannot come, on the screen that covers the hint."""
    _alias(pane, world)
    pane.type("hold run -- vim -u NONE -N")
    until(lambda: pane.is_whole_screen, BOUND_S, what="vim")
    pane("send-keys", "C-c")
    until(lambda: "sent INT to" in "".join(pane.screen), BOUND_S, what="the first Ctrl-C")
    pane("send-keys", "C-c")
    pane.prompts += 1
    pane._wait()
    assert not pane.is_whole_screen
    shown = "".join(pane.screen)
    assert HINT.format("vim -u NONE -N") in shown
    assert "is still running: `hold logs -f" in shown
    for session in world.open().sessions():
        session.kill()


@pytest.mark.covers("habits:10")
@pytest.mark.parametrize("restores", [True, False], ids=["restores", "leaves"])
def test_a_program_of_the_whole_screen_that_ends_at_once_leaves_a_hint(
    world: World, pane: Pane, restores: bool
) -> None:
    """As htop, which reads the end of its input; in pieces, as a pipe may deliver it."""
    program = world.cwd / "monitor"
    end = "printf '\\033[?1049l'" if restores else "true"
    program.write_text(f"#!/bin/sh\nprintf '\\033[?10'\nread key\nprintf '49h\\033[Hload: high'\n{end}\n")
    program.chmod(0o755)
    _alias(pane, world)
    shown = "".join(pane.run("hold run -- ./monitor"))
    assert HINT.format("./monitor") in shown
    assert not pane.is_whole_screen


@pytest.mark.covers("habits:10")
def test_other_programs_and_other_inputs_leave_no_hint(world: World, pane: Pane) -> None:
    _alias(pane, world)
    for line in (
        "hold run -- true",
        "hold run -- cat",
        "hold run -- python3 -c 'print(1)'",
        "hold run -- sh -c 'exit 3'",
        "echo 'print(2)' | hold run -- python3",
        "hold run -t -- true",
    ):
        assert "needs a terminal" not in "".join(pane.run(line)), line
    (world.cwd / "Makefile").write_text("all:\n\t@echo pear; echo apple\n")
    assert pane.run(f"MAKEFLAGS= make -sC {world.cwd} | hold run -- sort") == ["apple", "pear"]
    assert pane.run(f"hold run -- sort < {world.cwd}/Makefile")[0].strip() == "@echo pear; echo apple"
