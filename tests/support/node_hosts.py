"""A node as a place: a home with an environment of its own, reached from the test's world through a real fabric."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from typing import TYPE_CHECKING

from support.fabric_proxy import move
from support.fleets import free_port
from support.program import Program
from support.serving import START_BOUND_S
from support.ssh_hosts import Forwarder
from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from support.world import World

NAME = "far"
# A server whose far ends are another program.
_OTHER_FAR_ENDS = """
import json, sys
from holdfast.nodes import serving
argv = json.loads(sys.argv.pop(1))
serving.far_end = lambda: argv
from holdfast.cli import main
sys.exit(main())
"""


class NodeHost:
    """The view is the test's own home. The node's connection to the fabric passes through a cable. `far_end` is run in
    the place of ours."""

    def __init__(self, root: Path, world: World, far_end: Sequence[str] = ()) -> None:
        self.root = root
        self.home = root / "home"
        self.place = f"node:{NAME}"
        self._world = world
        self._closing = ExitStack()
        self._closing.callback(shutil.rmtree, root)
        runtime = root / "run"
        for directory in (self.home, runtime):
            directory.mkdir(mode=0o700)
        own = {"HOME": str(self.home), "XDG_RUNTIME_DIR": str(runtime), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        port = free_port()
        here = dict(os.environ)
        assert "connects" in self._program(here, "fabric", "--port", port).line(START_BOUND_S)
        inviting = self._program(here, "node", "invite", NAME, "--scope", "manage")
        code = inviting.line(START_BOUND_S).split()[-1]
        join = world.hold_argv("node", "join", code)
        subprocess.run(join, env=own, stdout=subprocess.DEVNULL, timeout=START_BOUND_S, check=True)
        assert inviting.wait(START_BOUND_S) == 0
        cable = self.cable = Forwarder(port)
        self._closing.callback(cable.close)
        move(self.home / ".local/state/holdfast/nodes/joined.json", url=f"nats://127.0.0.1:{cable.port}")
        serve = world.hold_argv("serve", "--no-listen")
        if far_end:
            serve = [sys.executable, "-c", _OTHER_FAR_ENDS, json.dumps(far_end), *serve[-2:]]
        self._run(own, serve)
        until(self._is_connected, START_BOUND_S, what="the node")

    def close(self) -> None:
        self._closing.close()

    def _is_connected(self) -> bool:
        (row,) = json.loads(self._world.hold("node", "ls", "--json", check=True).stdout)["nodes"]
        return bool(row["state"] == "connected")

    def _program(self, env: dict[str, str], *words: object) -> Program:
        return self._run(env, self._world.hold_argv(*words))

    def _run(self, env: dict[str, str], argv: list[str]) -> Program:
        number = len(list(self.root.iterdir()))
        made = Program(argv, stderr=self.root / f"{number}.err", env=env, cwd=self.root)
        self._closing.callback(_leave, made)
        return made


def _leave(program: Program) -> None:
    if program.returncode is None:
        program.signal(signal.SIGTERM)
        program.wait(START_BOUND_S)
    program.end()
