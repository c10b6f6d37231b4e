"""Small JSON records of a session directory: spec, state, exit. Whole or absent, never half.

Everything goes through a directory descriptor: a session directory that somebody renamed or removed is never
made again by accident.
"""

from __future__ import annotations

import json
import os

from . import points

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A live exit record is well below this; its room is taken at the start, so that a disk that fills up later
# cannot keep the ending from being told.
EXIT_ROOM_BYTES = 4096
_EXIT_RESERVE = ".exit.reserved"


def write(directory: int, name: str, record: dict[str, Any], *, durable: bool = False) -> None:
    """Replace `name` in one step."""
    _replace(directory, name + ".tmp", name, _encode(record), durable)


def reserve_exit(directory: int) -> None:
    if points.ACTIVE:
        points.hit("records.create")
    fd = os.open(_EXIT_RESERVE, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        _write_all(fd, bytes(EXIT_ROOM_BYTES))
    finally:
        os.close(fd)


def write_exit(directory: int, record: dict[str, Any], *, durable: bool) -> None:
    """Into the room reserved at the start where it still exists; the record appears in one step."""
    payload = _encode(record)
    try:
        fd = os.open(_EXIT_RESERVE, os.O_WRONLY | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        _replace(directory, "exit.json.tmp", "exit.json", payload, durable)
    else:
        try:
            _write_all(fd, payload)
            os.ftruncate(fd, len(payload))
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        if points.ACTIVE:
            points.hit("records.rename")
        os.rename(_EXIT_RESERVE, "exit.json", src_dir_fd=directory, dst_dir_fd=directory)
    if durable:
        os.fsync(directory)


def read(path: str) -> dict[str, Any]:
    """The record at `path`. FileNotFoundError when absent, ValueError when it is no record."""
    with open(path, "rb") as file:
        raw = file.read(1 << 20)
    try:
        record = json.loads(raw)
    except RecursionError:
        raise ValueError(f"{path}: nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError(f"{path}: not a JSON object")
    return record


def _replace(directory: int, temporary: str, name: str, payload: bytes, durable: bool) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    if points.ACTIVE:
        points.hit("records.create")
    fd = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        try:
            _write_all(fd, payload)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        if points.ACTIVE:
            points.hit("records.rename")
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        os.unlink(temporary, dir_fd=directory)
        raise


def _write_all(fd: int, payload: bytes) -> None:
    view = memoryview(payload)
    while view:
        if points.ACTIVE:
            points.hit("records.data")
        view = view[os.write(fd, view) :]


def _encode(record: dict[str, Any]) -> bytes:
    # ASCII escapes keep the lone surrogates that stand for undecodable bytes of a command line.
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
