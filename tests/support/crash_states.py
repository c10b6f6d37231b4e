"""Crash states: one real life of a runner with its calls on tape, and the directory as it was after each of them."""

from __future__ import annotations

import os
import pickle
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.runner import rehearsal, session, streams
from holdfast.runner import spawn as libc_spawn

Files = dict[str, bytes]
Step = tuple[Any, ...]

SESSION = rehearsal.SESSION


def record(home: Path, command: str, into: Path, *, read_bytes: int, **spec: Any) -> list[Step]:
    """Live one life, in a process of its own, and give back what it did to its directory, in order. It reads output
    in pieces of `read_bytes`."""
    (home / "sessions").mkdir(mode=0o700, exist_ok=True)
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        try:
            ours.close()
            os.setsid()
            taped = _Tape()
            streams.READ_BYTES = streams._FLOOD_BYTES = read_bytes
            request = rehearsal.start_request(str(home), command)
            request["spec"].update(created_at="2026-01-01T00:00:00.000Z", **spec)
            request.pop("then")  # without a waiter the ending has to survive a power loss
            session.run(theirs, request, [])
            into.write_bytes(pickle.dumps(taped.steps))
        finally:
            os._exit(0)
    theirs.close()
    try:
        while ours.recv(1 << 16):
            continue
    finally:
        ours.close()
        os.waitpid(pid, 0)
    steps: list[Step] = pickle.loads(into.read_bytes())
    return steps


class _Tape:
    """Stands between the runner and the calls that change files. Only ever used in a process that ends with it."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self._names: dict[int, str] = {}
        self._real = {name: getattr(os, name) for name in dir(os) if name.islower()}
        for name in ("mkdir", "open", "close", "write", "rename", "unlink", "ftruncate", "fsync"):
            setattr(os, name, getattr(self, name))
        self._spawn = libc_spawn.posix_spawn
        libc_spawn.posix_spawn = self.spawn

    def mkdir(self, path: Any, mode: int = 0o777, **options: Any) -> None:
        self._real["mkdir"](path, mode, **options)
        self.steps.append(("mkdir", os.path.basename(path)))

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        fd: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        if dir_fd is not None:
            self._names[fd] = path
            if flags & os.O_ACCMODE:
                self.steps.append(("create" if flags & os.O_CREAT else "open", path, bool(flags & os.O_TRUNC)))
        elif flags & os.O_DIRECTORY:
            self._names[fd] = "."
        return fd

    def close(self, fd: int) -> None:
        self._real["close"](fd)
        self._names.pop(fd, None)

    def write(self, fd: int, data: Any) -> int:
        count: int = self._real["write"](fd, data)
        if fd in self._names:
            self.steps.append(("write", self._names[fd], bytes(data[:count])))
        return count

    def rename(self, old: str, new: str, **options: Any) -> None:
        self._real["rename"](old, new, **options)
        self.steps.append(("rename", old, new))
        self._names.update({fd: new for fd, name in self._names.items() if name == old})

    def unlink(self, path: str, **options: Any) -> None:
        self._real["unlink"](path, **options)
        if "dir_fd" in options:
            self.steps.append(("unlink", path))

    def ftruncate(self, fd: int, size: int) -> None:
        self._real["ftruncate"](fd, size)
        self.steps.append(("cut", self._names[fd], size))

    def fsync(self, fd: int) -> None:
        self._real["fsync"](fd)
        self.steps.append(("sync", self._names[fd]))

    def spawn(self, *args: Any, **options: Any) -> int:
        self.steps.append(("spawn", ""))
        return self._spawn(*args, **options)


def states(steps: list[Step], *, torn: bool) -> Iterator[tuple[int, Files | None]]:
    """After so many steps, the files of the session (None before its directory). `torn`: also in the middle of each
    write, at every byte; of a block of zeros at its edges alone."""
    files: Files | None = None
    positions: dict[str, int] = {}
    yield 0, None
    for number, (verb, name, *rest) in enumerate(steps, 1):
        if verb == "mkdir":
            files = {}
        assert files is not None
        if verb in ("create", "open"):
            files[name] = b"" if rest[0] else files.get(name, b"")
            positions[name] = 0
        elif verb == "write":
            old, data = files[name], rest[0]
            # Logs and frames are appended to; records are written from the front, once.
            begin = len(old) if name.startswith(("stdout", "stderr", "frames", "runner")) else positions.get(name, 0)
            cuts = range(1, len(data)) if data.strip(b"\0") else (1, len(data) - 1)
            for size in cuts if torn else ():
                files[name] = old[:begin] + data[:size] + old[begin + size :]
                yield number, dict(files)
            files[name] = old[:begin] + data + old[begin + len(data) :]
            positions[name] = begin + len(data)
        elif verb == "rename":
            files[rest[0]] = files.pop(name)
        elif verb == "unlink":
            files.pop(name, None)
        elif verb == "cut":
            files[name] = files[name][: rest[0]]
        yield number, dict(files)


class Stage:
    """A directory that is made to hold exactly some files, again and again."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: Files = {}

    def build(self, files: Files) -> None:
        if not self.directory.exists():
            self.directory.mkdir(mode=0o700)
            self._files = {}
        for name in self._files.keys() - files.keys():
            (self.directory / name).unlink()
        for name, data in files.items():
            if self._files.get(name) != data:
                (self.directory / name).write_bytes(data)
        self._files = dict(files)
