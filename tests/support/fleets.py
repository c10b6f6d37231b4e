"""Machines for tests of nodes: each has a home and a runtime directory of its own, and a fabric connects them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.serving import START_BOUND_S, Serving
from support.waiting import until

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Sequence

    from support.program import Program
    from support.world import World


class Machine:
    """A home that knows nothing of the test's own."""

    def __init__(self, world: World, name: str, prefix: Sequence[str] = ()) -> None:
        self.name = name
        self._prefix = prefix
        self._world = world
        self.root = world.root / name
        self.home = self.root / "state"
        self.root.mkdir(mode=0o700)
        # Beside the test's own: where a world looks for its launchers.
        runtime = world.root / f"{name}.run"
        runtime.mkdir(mode=0o700)
        self.env = {"HOLDFAST_HOME": str(self.home), "XDG_RUNTIME_DIR": str(runtime)}
        world.closing.callback(self._stop_all)

    def hold(self, *words: object, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        return self._world.hold(*words, env=self.env, check=check, prefix=self._prefix, **options)

    def program(self, *words: object, pace: float = 1.0) -> Program:
        return self._world.program(_paced(self._world, pace, *words), env=self.env, prefix=self._prefix)

    def serve(self, pace: float = 1.0) -> Program:
        """Its server, which answers through the fabric alone. With a `pace`, it waits that part of its usual times."""
        program = self.program("serve", "--no-listen", pace=pace)
        self._world.closing.callback(leave, program)
        assert "fabric" in program.line(START_BOUND_S), program.errors()
        return program

    def file(self, name: str) -> Path:
        return self.home / "nodes" / name

    def endpoints(self) -> list[Path]:
        """The sockets of its live runners and deputies."""
        return list(Path(self.env["XDG_RUNTIME_DIR"], "holdfast").glob("[!l]*.sock"))

    def processes(self, server: Program) -> list[int]:
        """All that runs there: the server, the launcher, the runners and their commands."""
        rows = json.loads(self.hold("ls", "--json").stdout)
        found = {server.pid, *(row["pid"] for row in rows), *(row["runner_pid"] for row in rows)}
        locks = Path(self.env["XDG_RUNTIME_DIR"]).glob("holdfast*/launcher-*.lock")
        return sorted(found | {int(lock.read_text().split()[0]) for lock in locks})

    def _stop_all(self) -> None:
        if (self.home / "sessions").exists():
            self.hold("stop", "--all", "--grace", "0", check=False)


class FleetServing(Serving):
    """`hold serve` of a view, on a port, in the view's own home."""

    def __init__(self, view: Machine, pace: float = 1.0) -> None:
        super().__init__(as_world(view, pace))


# The times after which something of nodes is done, as a part of what they are.
_PACED = """
import sys
from holdfast.nodes import asking, exchange, far_app, following, joining
pace = float(sys.argv.pop(1))
TIMES = {
    asking: ("_ANSWER_S",),
    exchange: ("SAY_S", "HEAR_S"),
    far_app: ("_OPEN_S",),
    joining: ("_ANSWER_S",),
    following: ("_LINGER_S", "_RETRY_S", "_RETRY_MAX_S", "_OPEN_S", "_TURN_S"),
}
for module, names in TIMES.items():
    for name in names:
        setattr(module, name, getattr(module, name) * pace)
from holdfast.cli import main
sys.exit(main())
"""


def _paced(world: World, pace: float, *words: object) -> list[str]:
    if pace == 1:
        return world.hold_argv(*words)
    return [sys.executable, "-c", _PACED, str(pace), *map(str, words)]


def as_world(machine: Machine, pace: float = 1.0) -> World:
    """The test's world with another home: for what takes a world."""
    world = machine._world

    class There:
        home = machine.home
        closing = world.closing
        root = world.root

        @staticmethod
        def hold_argv(*words: object) -> list[str]:
            return _paced(world, pace, *words)

        @staticmethod
        def program(argv: list[str], **options: Any) -> Program:
            return world.program(argv, **{**options, "env": machine.env})

        @staticmethod
        def hold(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
            return machine.hold(*words, **options)

    return There()  # type: ignore[return-value]


class Fleet:
    """A view with its fabric, and the nodes that joined it."""

    def __init__(self, world: World, view: str = "view") -> None:
        self._world = world
        self.view = Machine(world, view)
        self.port = free_port()
        self.fabric = self.start_fabric()

    def start_fabric(self, *words: object) -> Program:
        program = self.view.program("fabric", "--port", self.port, *words)
        self._world.closing.callback(leave, program)
        assert "connects" in program.line(START_BOUND_S), program.errors()
        self.fabric = program
        return program

    def machine(self, name: str) -> Machine:
        return Machine(self._world, name)

    def invite(self, name: str, scope: str = "manage") -> tuple[Program, str]:
        """`hold node invite`, waiting, and the code that it printed."""
        inviting = self.view.program("node", "invite", name, "--scope", scope)
        line = inviting.line(START_BOUND_S)
        found = re.fullmatch(r"hold node join (\S+)", line)
        assert found, (line, inviting.errors())
        return inviting, found[1]

    def join(self, name: str, scope: str = "manage") -> Machine:
        """A machine that joined under this name; its server does not run yet."""
        machine = self.machine(name)
        inviting, code = self.invite(name, scope)
        machine.hold("node", "join", code)
        assert inviting.wait(START_BOUND_S) == 0, inviting.errors()
        # A test may change this file, which `hold fabric` writes at each change of its logins.
        written = self.view.file("nats.conf")
        until(lambda: f".n.{name}.>" in written.read_text(), START_BOUND_S, what="the permissions of the node")
        return machine

    def node(self, name: str, scope: str = "manage") -> Machine:
        """A node that answers."""
        machine = self.join(name, scope)
        machine.serve()
        self.until_connected(name)
        return machine

    def listed(self) -> dict[str, dict[str, Any]]:
        answer = json.loads(self.view.hold("node", "ls", "--json").stdout)
        return {row["node"]: row for row in answer["nodes"]}

    def until_connected(self, name: str) -> None:
        until(lambda: self.listed()[name]["state"] == "connected", START_BOUND_S, what=f"an answer of node {name}")

    def serve_view(self, pace: float = 1.0) -> FleetServing:
        """The view's own server, on a port."""
        return FleetServing(self.view, pace)


def leave(program: Program) -> None:
    if program.returncode is None:
        program.signal(signal.SIGTERM)
    program.wait(START_BOUND_S)


def free_port() -> int:
    with socket.socket() as there:
        there.bind(("127.0.0.1", 0))
        return int(there.getsockname()[1])


@pytest.fixture
def fleet(world: World) -> Fleet:
    os.environ.pop("HOLDFAST_HOME", None)
    return Fleet(world)
