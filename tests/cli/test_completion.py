"""What TAB offers, asked of `hold __complete` and of each shell itself."""

from __future__ import annotations

import os
import subprocess

import pytest

from cli.conftest import Start
from support.waiting import until
from support.world import World


def complete(world: World, *line: str) -> list[str]:
    """What is offered for the last of the words."""
    done = world.hold("__complete", len(line) - 1, *line)
    assert done.stderr == ""
    return [offer.partition("\t")[0] for offer in done.stdout.splitlines()]


def test_commands_and_options_are_completed(world: World) -> None:
    assert complete(world, "hold", "st") == ["start", "status", "stop"]
    assert complete(world, "hold", "help", "w") == ["wait"]
    assert complete(world, "hold", "ls", "--s") == ["--status", "--state", "--search"]
    assert complete(world, "hold", "ls", "--status", "") == ["pending", "running", "completed", "failed", "killed"]
    assert complete(world, "hold", "completion", "") == ["bash", "zsh", "fish"]
    assert "--size-policy" in complete(world, "hold", "run", "--")
    assert "--monitor" in complete(world, "hold", "run", "--")
    assert "--place" in complete(world, "hold", "run", "--")
    assert complete(world, "hold", "start", "--restart", "") == ["never", "on-failure", "always"]
    assert complete(world, "hold", "run", "--lifetime", "d") == ["detached"]
    assert complete(world, "hold", "run", "--", "ma") == []
    assert complete(world, "hold", "run", "make", "--na") == []
    assert complete(world, "hold", "nonsense", "") == []
    assert world.hold("__complete", "x").returncode == 1


def test_sessions_are_completed_where_they_fit(world: World, start: Start) -> None:
    live = start("forever", options=("--name", "web"))
    over = start("exit", 0, options=("--name", "old"))
    world.hold("wait", over, "--exit", "--timeout", "30s", check=True)
    world.hold("ls", "-a", check=True)
    assert complete(world, "hold", "stop", "") == ["web", live]
    assert complete(world, "hold", "stop", "w") == ["web"]
    assert complete(world, "hold", "stop", "web", live[:4]) == [live]
    assert live not in complete(world, "hold", "rm", "")
    assert over in complete(world, "hold", "rm", "")
    assert {"web", live, over} <= set(complete(world, "hold", "logs", "-n", "5", ""))
    assert complete(world, "hold", "status", "web", "") == []
    offers = world.hold("__complete", 2, "hold", "stop", "web").stdout
    assert offers.startswith("web\t")


def test_owners_consumers_and_signals_are_completed(world: World, start: Start) -> None:
    over = start("exit", 3, options=("--owner", "agent-7"))
    live = start("forever", options=("--name", "web"))
    world.hold("wait", over, "--timeout", "30s")
    assert complete(world, "hold", "signals", "--owner", "") == ["agent-7"]
    # The end is signalled after it was recorded.
    until(lambda: complete(world, "hold", "ack", "") == [f"{over}.2"], what="the signal of the end")
    assert complete(world, "hold", "ack", f"{over}.2", "--consumer", "") == []
    world.hold("ack", f"{over}.2", check=True)
    assert complete(world, "hold", "ack", "--consumer", "") == ["cli"]
    assert complete(world, "hold", "ack", "") == []
    assert complete(world, "hold", "notify", "") == ["on", "off", "test"]
    assert complete(world, "hold", "notify", "off", "") == ["web", live]
    # Another session, or the pattern.
    assert complete(world, "hold", "search", "web", "") == ["web", live, over]


@pytest.fixture
def path(world: World) -> str:
    """A search path on which `hold` is found, as where it is installed."""
    binaries = world.root / "bin"
    binaries.mkdir()
    hold = binaries / "hold"
    hold.write_text(f'#!/bin/sh\nexec {" ".join(world.hold_argv())} "$@"\n')
    hold.chmod(0o755)
    return f"{binaries}:{os.environ['PATH']}"


def test_bash_completes_with_it(world: World, start: Start, path: str) -> None:
    start("forever", options=("--name", "two words"))
    line = """eval "$(hold completion bash)"
        COMP_WORDS=(hold stop t); COMP_CWORD=2; _hold; printf '%s\\n' "${COMPREPLY[@]}"
        COMP_WORDS=(hold rec); COMP_CWORD=1; _hold; printf '%s\\n' "${COMPREPLY[@]}" """
    env = {**os.environ, "PATH": path}
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=env, timeout=20, check=True)
    assert done.stdout == "two\\ words\nrecover\n"


@pytest.mark.needs("fish")
def test_fish_completes_with_it(world: World, start: Start, path: str) -> None:
    start("forever", options=("--name", "two words"))
    (world.root / "a-file").write_text("")
    typed = ["hold stop t", "hold rec", "hold run --lifetime d", f"hold run {world.root}/a-f"]
    lines = ["hold completion fish | source", *(f"complete --do-complete '{line}'; echo ." for line in typed)]
    env = {**os.environ, "PATH": path}
    done = subprocess.run(
        ["fish", "--no-config", "-c", "\n".join(lines)], capture_output=True, text=True, env=env, timeout=20, check=True
    )
    assert done.stderr == ""
    offers = [[line.partition("\t")[0] for line in block.splitlines()] for block in done.stdout.split(".\n")]
    assert offers == [["two words"], ["recover"], ["detached"], [f"{world.root}/a-file"], []]


@pytest.mark.needs("zsh")
def test_zsh_completes_with_it(world: World, start: Start, path: str) -> None:
    """Typed on a terminal, TAB and all. A function of the same name says what the line came to."""
    start("forever", options=("--name", "two words"))
    (world.root / "a-file").write_text("")
    ran = world.root / "ran"
    shell = world.program(["zsh", "-f", "-i"], env={"PATH": path, "TERM": "dumb", "ZDOTDIR": str(world.root)}, tty=True)
    shell.send("autoload -Uz compinit; compinit -u -D\n")
    shell.send('eval "$(hold completion zsh)"\n')
    shell.send(f"hold() {{ print -r -- ${{(qq)@}} >> {ran} }}\n")
    for number, (typed, wanted) in enumerate(
        [
            ("hold rec\t\n", "'recover'"),
            ("hold stop t\t\n", "'stop' 'two words'"),
            ("hold run --lifetime d\t\n", "'run' '--lifetime' 'detached'"),
            (f"hold run {world.root}/a-f\t\n", f"'run' '{world.root}/a-file'"),
        ]
    ):
        shell.send(typed)
        until(lambda: ran.exists() and ran.read_text().count("\n") > number, what=f"the end of {typed!r}")  # noqa: B023
        assert ran.read_text().splitlines()[number] == wanted
    shell.send("exit\n")
    assert shell.wait() == 0
