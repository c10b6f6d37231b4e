"""The files of a terminal's session, written by the runner's own log writer under a clock that the test moves."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import clock as real_clock
from holdfast.runner import log as runner_log
from holdfast.sessions.log import Log
from holdfast.sessions.observe import Files

START_WALL_NS = 1_790_000_000_000_000_000
START_MONO_NS = 5_000_000_000


class _Clock:
    """In the place of the runner's."""

    rfc3339 = staticmethod(real_clock.rfc3339)

    def __init__(self) -> None:
        self.passed_ns = 0

    def mono_ns(self) -> int:
        return START_MONO_NS + self.passed_ns

    def wall_ns(self) -> int:
        return START_WALL_NS + self.passed_ns


class TerminalFiles:
    """What a session printed, when, and at which size."""

    def __init__(
        self,
        directory: Path,
        monkeypatch: pytest.MonkeyPatch,
        size: tuple[int, int] = (24, 80),
        *,
        command: str | list[str] = "bash",
        cap_bytes: int = 1 << 26,
        segment_bytes: int = 1 << 20,
    ) -> None:
        self.path = directory
        self.clock = _Clock()
        monkeypatch.setattr(runner_log, "clock", self.clock)
        directory.mkdir(parents=True, exist_ok=True)
        self._fd = os.open(directory, os.O_RDONLY)
        self.log = runner_log.LogWriter(
            self._fd,
            ["tty"],
            cap_bytes=cap_bytes,
            segment_bytes=segment_bytes,
            free_floor_bytes=0,
            say=lambda text: None,
        )
        self.spec: dict[str, Any] = {
            "id": directory.name,
            "command": command,
            "name": None,
            "tty": {"term": "xterm-256color"},
            "size": list(size),
            "created_at": self.now(),
        }
        (directory / "spec.json").write_text(json.dumps(self.spec))
        self.exit: dict[str, Any] | None = None
        self.log.resize("tty", *size)

    def now(self) -> str:
        return real_clock.rfc3339(self.clock.wall_ns())

    def wait(self, seconds: float) -> None:
        self.clock.passed_ns += round(seconds * 1e9)

    def prints(self, data: bytes, after: float = 0.0) -> None:
        self.wait(after)
        self.log.append("tty", data)

    def resizes(self, rows: int, cols: int, after: float = 0.0) -> None:
        self.wait(after)
        self.log.resize("tty", rows, cols)

    def ends(self, code: int | None = 0, signal: str | None = None, after: float = 0.0) -> None:
        self.wait(after)
        ended: dict[str, Any] = {"code": code, "signal": signal, "cause": "exit", "survivors": []}
        self.exit = {"v": 1, "exit": ended, "ended_at": self.now(), **self.log.facts()}
        (self.path / "exit.json").write_text(json.dumps(self.exit))

    @property
    def files(self) -> Files:
        return Files(self.path.name, str(self.path), self.spec, None, self.exit)

    @property
    def read(self) -> Log:
        return Log(str(self.path))

    def close(self) -> None:
        self.log.close()
        os.close(self._fd)


@contextmanager
def terminal_files(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., TerminalFiles]]:
    """Makes one, or several one after the other, and closes them."""
    with ExitStack() as closing:

        def make(size: tuple[int, int] = (24, 80), **options: Any) -> TerminalFiles:
            files = TerminalFiles(directory, monkeypatch, size, **options)
            closing.callback(files.close)
            return files

        yield make


def copied(session: Path, id: str, **words: Any) -> None:
    """Another session with the same past, and its own words in its spec."""
    target = session.with_name(id)
    target.mkdir(mode=0o700)
    for name in ("spec.json", "state.json", "exit.json"):
        record = json.loads((session / name).read_text().replace(session.name, id))
        record.pop("check", None)
        record |= words if name == "spec.json" else {}
        (target / name).write_text(json.dumps(record))
    (target / "signals.jsonl").write_text((session / "signals.jsonl").read_text().replace(session.name, id))
    for path in target.iterdir():
        path.chmod(0o600)
