"""A private world for each test: home, runtime directory, temporary files, configuration, cwd."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support import evidence, probe, processes, shared_launcher
from support.program import Program
from support.waiting import BOUND_S, Gate, TooLate

if TYPE_CHECKING:
    from holdfast import Holdfast

WORLD = pytest.StashKey["World"]()


class World:
    """The directories of one test and the ways to act in them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "state"
        self.runtime_base = root / "run"
        self.runtime = self.runtime_base / "holdfast"
        self.cwd = root / "work"
        self.closing = ExitStack()
        self._count = 0
        for directory in (
            root / "tmp",
            root / "user",
            root / "user" / ".config",
            self.runtime_base,
            self.cwd,
        ):
            directory.mkdir(mode=0o700)

    @property
    def env(self) -> dict[str, str]:
        """What distinguishes this world, as environment variables."""
        return {
            "HOLDFAST_HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.runtime_base),
            "TMPDIR": str(self.root / "tmp"),
            "HOME": str(self.root / "user"),
            "XDG_CONFIG_HOME": str(self.root / "user" / ".config"),
            "LANG": "C.UTF-8",
            # Rehearsals only make a start faster, and take longer than most tests.
            "HOLDFAST_OFF": "rehearsal",
        }

    def session(self, id: str) -> Path:
        """The directory of a session."""
        return self.home / "sessions" / id

    def open(self, **options: Any) -> Holdfast:
        """holdfast.open(), closed at teardown."""
        import holdfast

        return self.closing.enter_context(holdfast.open(**options))

    def hold(
        self,
        *args: object,
        input: str | None = None,
        timeout: float = BOUND_S,
        env: Mapping[str, str] | None = None,
        check: bool = False,
        prefix: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run the CLI to its end. Output is text; bytes that are not UTF-8 survive as surrogates."""
        argv = [*prefix, *self.hold_argv(*args)]
        try:
            done = subprocess.run(
                argv,
                input=input,
                stdin=subprocess.DEVNULL if input is None else None,
                capture_output=True,
                encoding="utf-8",
                errors="surrogateescape",
                timeout=timeout,
                env={**os.environ, **(env or {})},
                process_group=0,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            said = (late.stdout or b"") + (late.stderr or b"")
            raise TooLate(f"the end of hold {' '.join(map(str, args))}, which said {said!r},", timeout) from None
        if check and done.returncode != 0:
            raise AssertionError(f"hold {' '.join(map(str, args))} ended with {done.returncode}: {done.stderr}")
        return done

    def hold_argv(self, *args: object) -> list[str]:
        return [sys.executable, "-m", "holdfast.cli", *map(str, args)]

    def host(self, code: str, *args: object, **options: Any) -> Program:
        """A host process of its own that runs this Python source; may be killed at any time."""
        script = self.root / f"host-{self._next()}.py"
        script.write_text(code)
        return self.program([sys.executable, "-u", str(script), *map(str, args)], **options)

    def program(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        prefix: Sequence[str] = (),
        tty: bool = False,
    ) -> Program:
        """A program beside the test, ended at teardown; `prefix` is for unshare, setpriv, prlimit."""
        running = Program(
            [*prefix, *argv],
            stderr=self.root / f"program-{self._next()}.err",
            env={**os.environ, **(env or {})},
            cwd=self.cwd,
            tty=tty,
        )
        self.closing.callback(running.end)
        return running

    def probe(self, *words: object) -> list[str]:
        """The command line of the suite's child program."""
        return probe.argv(*words)

    def gate(self) -> Gate:
        """A FIFO for the probe's `await` and `tell`."""
        gate = Gate(self.root / f"gate-{self._next()}")
        self.closing.callback(gate.close)
        return gate

    def until_logged(self, line: str) -> str:
        """Words for a shell in a session: wait until its own log has this line, so that what comes next follows it."""
        logs = f'"{self.home}/sessions/$HOLDFAST_SESSION_ID/"std*.0*'
        return f"until grep -qsx {line} {logs}; do :; done"

    def launchers(self) -> list[processes.Process]:
        """The launchers of this world, by their own lock files, proven by start time."""
        found = []
        for lock in self.root.glob("*/holdfast*/launcher-*.lock"):
            try:
                pid, _, start = lock.read_text(errors="replace").strip().partition(" ")
            except FileNotFoundError:
                continue  # it left while we looked
            row = processes.look(int(pid)) if pid.isdigit() else None
            if row is not None and str(row.start) == start and row.state not in "ZX":
                found.append(row)
        return found

    def end_launchers(self, bound: float = BOUND_S) -> None:
        """Ask every launcher of this world alone to leave and wait for it; the census reports one that stays."""
        shared = shared_launcher.current()
        launchers = [row for row in self.launchers() if shared is None or row != shared.process]
        for launcher in launchers:
            processes.send(launcher, signal.SIGTERM)
        for launcher in launchers:
            processes.wait_any([launcher], bound)

    def remove(self) -> None:
        """Take the directories away, whatever modes a test gave them."""
        for directory, folders, _ in os.walk(self.root):
            for folder in folders:
                path = Path(directory, folder)
                if not path.is_symlink() and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                    path.chmod(0o700)
        shutil.rmtree(self.root)

    def _next(self) -> int:
        self._count += 1
        return self._count


def new_root(prefix: str) -> Path:
    # Short: a socket below it must fit into sun_path, which tmp_path does not.
    return Path(tempfile.mkdtemp(prefix=prefix, dir="/tmp"))


def inherited_settings() -> list[str]:
    """What the caller of pytest has set and no test may see."""
    return [name for name in os.environ if name.startswith(("HOLDFAST_", "XDG_"))]


@pytest.fixture
def world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """This test's own world; the census removes it when it has counted."""
    made = World(new_root("hf-"))
    request.node.stash[WORLD] = made
    evidence.roots.append(made.root)
    shared = shared_launcher.current()
    if shared is not None and shared_launcher.is_shared_by(request.node):
        shared.lend(made)
    for name in inherited_settings():
        monkeypatch.delenv(name)
    for name, value in made.env.items():
        monkeypatch.setenv(name, value)
    # tempfile remembers the first answer.
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.chdir(made.cwd)
    yield made
    try:
        made.closing.close()
    finally:
        made.end_launchers()


@pytest.fixture(scope="session", autouse=True)
def nowhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a test without a world of its own would write: it must stay empty."""
    # Before any test: the first to ask for tmp_path would have all of them made in its own world.
    tmp_path_factory.getbasetemp()
    root = new_root("hf-nowhere-")
    before = dict(os.environ)
    for name in inherited_settings():
        del os.environ[name]
    os.environ.update(HOME=str(root), XDG_RUNTIME_DIR=str(root))
    try:
        yield root
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(root)
