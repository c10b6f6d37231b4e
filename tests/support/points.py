"""The test's side of failpoints: set a plan, wait for a point, let it go on; and which points there are."""

from __future__ import annotations

import ast
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core import failpoints as runner_points
from support import evidence
from support.waiting import BOUND_S, Lines, TooLate, is_readable
from support.world import World

REPOSITORY = Path(__file__).resolve().parents[2]
SOURCE = REPOSITORY / "src" / "holdfast"


class Hit:
    """A process at a point. One that paused stays there until `release`."""

    def __init__(self, channel: socket.socket) -> None:
        verb, self.name, pid = Lines(channel.fileno(), "a point").next().split()
        self.pid = int(pid)
        self.paused = verb == "pause"
        self._channel = channel

    def release(self) -> None:
        """Let it go on."""
        if self._channel.fileno() >= 0:
            self._channel.close()
            evidence.trace.append(f"{self.name} {self.pid} released")

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Signal the process where it stands; what was said before it is released."""
        os.kill(self.pid, number)
        self.release()


class Points:
    """The plan for whatever starts from now on, and a listener for pause and notify."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._here = False
        self._early: list[Hit] = []
        self._held: list[Hit] = []
        path = world.root / "points.sock"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1024)
        self._path = str(path)

    def set(self, plan: str, *, here: bool = False) -> None:
        """The plan for processes that start from now on; `here`: for the host in this process too."""
        if here and any(verb in plan for verb in ("=kill", "*kill", "stop", "pause")):
            raise ValueError("kill, stop and pause would hit the test itself: use world.host()")
        self._patch.setenv("HOLDFAST_POINTS", plan)
        self._patch.setenv("HOLDFAST_POINTS_SOCKET", self._path)
        self._here = here
        self._apply()
        evidence.trace.append(f"set {plan}")

    def clear(self) -> None:
        """No plan, neither here nor for what starts from now on."""
        self._patch.delenv("HOLDFAST_POINTS", raising=False)
        self._apply()

    def off(self, *abilities: str) -> None:
        """Switch these abilities off, here and in whatever starts from now on; none: all are on again. Launchers of a
        test do not rehearse in either case."""
        self._patch.setenv("HOLDFAST_OFF", ",".join(("rehearsal", *abilities)))
        self._apply()

    def _apply(self) -> None:
        runner_points.reload(os.environ if self._here else {"HOLDFAST_OFF": os.environ.get("HOLDFAST_OFF", "")})

    def wait(self, name: str, bound: float = BOUND_S) -> Hit:
        """The next process that comes to the point; others that come meanwhile are kept."""
        deadline = time.monotonic() + bound
        for index, hit in enumerate(self._early):
            if hit.name == name:
                return self._early.pop(index)
        while is_readable(self._listener.fileno(), deadline - time.monotonic()):
            hit = Hit(self._listener.accept()[0])
            evidence.trace.append(f"{hit.name} {hit.pid} {'paused' if hit.paused else 'passed'}")
            self._held.append(hit)
            if hit.name == name:
                return hit
            self._early.append(hit)
        raise TooLate(f"the point {name}", bound)

    def close(self) -> None:
        self._listener.close()
        for hit in self._held:
            hit.release()
        runner_points.reload({})


@pytest.fixture
def points(world: World, monkeypatch: pytest.MonkeyPatch) -> Iterator[Points]:
    """Failpoints for this test; every process still held is let go at the end."""
    made = Points(world, monkeypatch)
    yield made
    made.close()


class Place:
    """One `points.hit("name")` in the source."""

    def __init__(self, name: str, where: str) -> None:
        self.name = name
        self.where = where


def places(source: Path = SOURCE) -> list[Place]:
    """Every call of points.hit, with its name as it is written there."""
    found: list[Place] = []
    for path in sorted(source.rglob("*.py")):
        text = path.read_text()
        if "failpoints.hit" not in text:
            continue
        tree = ast.parse(text, str(path))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and _is_hit(node.func):
                where = f"{path.relative_to(source)}:{node.lineno}"
                name = node.args[0] if node.args else None
                if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
                    raise AssertionError(f"{where}: a point's name must be written out")
                found.append(Place(name.value, where))
    return sorted(found, key=lambda place: place.where)


def all_points(source: Path = SOURCE) -> list[str]:
    """The names of all points in the source."""
    return sorted({place.name for place in places(source)})


def points_in_tests(tests: Path = REPOSITORY / "tests") -> set[str]:
    """Those that a test outside the harness names."""
    paths = (path for path in tests.rglob("test_*.py") if path.parent.name != "support_tests")
    text = "\n".join(path.read_text() for path in paths)
    return {name for name in all_points() if name in text}


def _is_hit(function: ast.expr) -> bool:
    named = isinstance(function, ast.Attribute) and function.attr == "hit"
    return named and ast.unparse(function) == "failpoints.hit"
