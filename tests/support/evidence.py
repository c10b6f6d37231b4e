"""What a failed test leaves to read: processes, descriptors, runner logs, files, the trace of points."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from support import processes

_TAIL_BYTES = 2000
_COPY_BYTES = 1 << 20

# The directory of the running test's world, and what happened at its points.
roots: list[Path] = []
trace: list[str] = []


def forget() -> None:
    roots.clear()
    trace.clear()


def describe() -> str:
    me = os.getpid()
    parts = [("processes", processes.tree_text(me)), ("descriptors", _descriptors(me))]
    for root in roots:
        parts.append(("files", "\n".join(_listing(root))))
        parts.extend((str(log.relative_to(root)), tail(log)) for log in logs(root))
    if trace:
        parts.append(("points", "\n".join(trace)))
    return "\n".join(f"--- {title}\n{text}" for title, text in parts)


def logs(root: Path) -> list[Path]:
    """Diagnostics of runners and launchers, and what host programs said on stderr."""
    found = []
    for directory, _, files in os.walk(root):
        for name in files:
            of_launcher = name.startswith("launcher") and name.endswith(".log")
            if of_launcher or name.endswith((".err", "runner.log")):
                found.append(Path(directory, name))
    return sorted(path for path in found if path.is_file())


def tail(path: Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace")
    except OSError as error:
        return f"unreadable: {error}"


def keep(directory: Path, root: Path, text: str) -> None:
    """Copy the world and the report to where they outlive the test."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "evidence.txt").write_text(text)
    for path in _walk(root):
        target = directory / path.relative_to(root)
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= _COPY_BYTES:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def _descriptors(me: int) -> str:
    rows = [(me, processes.descriptors(me))]
    rows += [(row.pid, processes.descriptors(row.pid)) for row in processes.descendants(me)]
    return "\n".join(f"{pid}: " + ", ".join(f"{fd}={to}" for fd, to in sorted(fds.items())) for pid, fds in rows)


def _listing(root: Path) -> Iterator[str]:
    for path in sorted(_walk(root)):
        status = path.lstat()
        yield f"{stat.filemode(status.st_mode)} {status.st_size:>9} {path.relative_to(root)}"


def _walk(root: Path) -> Iterator[Path]:
    for directory, folders, files in os.walk(root):
        for name in folders + files:
            path = Path(directory, name)
            if os.path.lexists(path):
                yield path


def contents(top: Path) -> Iterator[tuple[Path, bytes]]:
    """Of every plain file that is there. Files of a launcher that rehearses come and go meanwhile."""
    for directory, _, names in os.walk(top):
        for path in (Path(directory, name) for name in names):
            if path.is_file():
                with contextlib.suppress(FileNotFoundError):
                    yield path, path.read_bytes()
