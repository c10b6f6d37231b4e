"""The guide to many machines, run as printed: each block on the machine that its fence names, with a real fabric."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from support.fleets import Machine, free_port, leave
from support.scale import scaled
from support.serving import START_BOUND_S
from support.waiting import until

if TYPE_CHECKING:
    from support.program import Program
    from support.world import World

ROOT = Path(__file__).resolve().parents[2]
GUIDE = ROOT / "docs/guides/many-machines.md"
BOXES = [f"box-{number}" for number in range(scaled(2, 12))]
# What runs until somebody ends it.
_LASTING = ("hold fabric", "hold node invite", "hold serve")
# Runs the command on the machine with this name, as its user would.
_SSH = """#!/bin/sh
. "{root}/$1.env"
exec sh -c "$2"
"""


class Command(NamedTuple):
    machine: str
    line: str


def commands() -> list[Command]:
    found = []
    for machine, text in re.findall(r"^```sh no-run (\S+)\n(.*?)^```$", GUIDE.read_text(), re.MULTILINE | re.DOTALL):
        # A line that is indented, or the end of a loop, belongs to the one before.
        found += [Command(machine, line) for line in re.split(r"\n(?! |done)", text.strip())]
    return found


class Guide:
    def __init__(self, world: World) -> None:
        self._world = world
        self.port = free_port()
        self.code = ""
        self.ran: list[str] = []
        self.machines = {name: Machine(world, name) for name in ("laptop", "build-box", *BOXES)}
        programs = world.root / "bin"
        programs.mkdir()
        (programs / "ssh").write_text(_SSH.format(root=world.root))
        (programs / "ssh").chmod(0o755)
        path = f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        for name, machine in self.machines.items():
            machine.env |= {"PATH": path, "HOME": str(machine.root)}
            exports = "".join(f"export {key}={shlex.quote(value)}\n" for key, value in machine.env.items())
            (world.root / f"{name}.env").write_text(exports)

    def run(self, command: Command, *, typed: str = "") -> Program:
        """To its end, or until it has said its first line if it is one that lasts."""
        machine, line = self.machines[command.machine], command.line
        # Nobody knows this name, the port may be taken, and the invitation has its own text.
        line = line.replace("laptop.example", "localhost").replace(
            "--bind 0.0.0.0", f"--bind 127.0.0.1 --port {self.port}"
        )
        line = line.replace("hf.9Qk2...", self.code)
        lasts = line.startswith(_LASTING)
        argv = ["bash", "-c", f"cd && {'exec ' if lasts else ''}{line}"]
        program = self._world.program(argv, env=machine.env)
        self.ran.append(command.line)
        if lasts:
            self._world.closing.callback(leave, program)
            said = program.line(START_BOUND_S)
            assert said, program.errors()
            if said.startswith("hold node join "):
                self.code = said.split()[-1]
            return program
        program.send(typed)
        program.close_stdin()
        assert program.wait(2 * START_BOUND_S) == 0, f"{command.line}\n{program.errors()}"
        return program


@pytest.mark.timeout(scaled(180, 900))
def test_the_guide_from_one_machine_to_many_works_as_it_is_printed(world: World) -> None:
    guide = Guide(world)
    laptop, build_box = guide.machines["laptop"], guide.machines["build-box"]
    (laptop.root / "boxes.txt").write_text("\n".join(BOXES))
    (build_box.root / "src/app").mkdir(parents=True)
    (build_box.root / "src/app/Makefile").write_text("all:\n\t@echo made\n")
    web = "echo serving; head -n 1 >/dev/null; echo over"
    inviting: Program | None = None
    for command in commands():
        if command.line.startswith("pip install"):
            assert _extra(command.line) in _extras(), command.line
            continue
        if command.line.startswith("hold ls --nodes  "):
            build_box.hold("start", "--name", "web", "--tty", "--", web)
            laptop_sees(laptop, {"build-box"})
        program = guide.run(command, typed="done\n" if " attach " in command.line else "")
        if command.line.startswith("hold node invite"):
            inviting = program
        elif command.line.startswith("hold node join"):
            assert inviting is not None
            (fingerprint,) = {_fingerprint(each) for each in (program, inviting)}
            assert inviting.wait(START_BOUND_S) == 0
        elif " attach " in command.line:
            assert _rest(program).replace("\r", "").split("\n")[:1] == ["serving"]
        elif "make -j8" in command.line:
            assert _rest(program) == "made\n"
        elif command.line.startswith("hold ls --nodes  "):
            assert "web" in _rest(program)
        elif command.line.startswith("for box"):
            seen = _rest(program)
            assert seen.count("fingerprint") == 2 * len(BOXES), seen
            laptop_sees(laptop, {"build-box", *BOXES})
    known = json.loads(laptop.hold("node", "ls", "--json").stdout)["nodes"]
    assert {row["node"]: row["fingerprint"] for row in known}["build-box"] == fingerprint
    # Every command of the guide that is not about a NATS server of others.
    assert {line.split()[1] for line in guide.ran if line.startswith("hold ")} == {
        *("fabric", "node", "serve", "ls", "attach", "run", "doctor")
    }


def laptop_sees(laptop: Machine, names: set[str]) -> None:
    def connected() -> set[str]:
        rows = json.loads(laptop.hold("node", "ls", "--json").stdout)["nodes"]
        return {row["node"] for row in rows if row["state"] == "connected"}

    until(lambda: connected() == names, 2 * START_BOUND_S, what=f"an answer of {sorted(names)}")


def _rest(program: Program) -> str:
    lines = []
    while line := program.line():
        lines.append(line)
    return "\n".join([*lines, ""])


def _fingerprint(program: Program) -> str:
    return program.line(START_BOUND_S).split()[-1]


def _extra(line: str) -> str:
    found = re.search(r"holdfast\[(\w+)\]", line)
    assert found, line
    return found[1]


def _extras() -> set[str]:
    return set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
