"""Small JSON records of a session directory: spec, state, exit, intent. Whole or absent, never half.

Everything goes through a directory descriptor: a session directory that was renamed or removed is never
made again by accident. Where `directory` is None, the name is a path, for files outside of session directories.
"""

from __future__ import annotations

import binascii
import errno
import fcntl
import os
import stat

from . import failpoints, jsontext

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any


# An exit record with all the gaps and warnings it may list stays below this; its room is taken at the start, so that a
# disk that fills up later cannot keep the ending from being recorded.
EXIT_ROOM_BYTES = 16 << 10
_EXIT_RESERVE = ".exit.reserved"
_NOTE_TRIES = 5
# Error numbers that mean: missing, or not a regular file (link, pipe, socket, directory and the like).
_NOT_A_FILE = (errno.ENOENT, errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.EINVAL)
# The stop of a session whose runner could not be asked; written by a host before it acts without the runner.
INTENT = "intent.json"
# What the deputy of a session in another place last learned of it, once its runner cannot be asked.
AWAY = "away.json"
# What was decided here about a session in another place: owner, name, labels. The place cannot change it.
LOCAL_CHANGES = "here.json"
LOCALLY_CHANGED = ("name", "owner", "labels", "description", "notify", "notify_people")
# The streams of a session, in the order in which a cursor names them, and their numbers in the `frames` file.
TTY = "tty"
STREAM_NUMBERS = {"stdout": 0, "stderr": 1, TTY: 2}
# A spec holds a whole argv, and a start request of this size is taken.
_RECORD_MAX_BYTES = 16 << 20
# A start request is nested at most so deep; writing and showing much deeper values would exhaust the stack.
_DEPTH_MAX = 64
_BLOCK_BYTES = 64 << 10

# The last field of a record as we write it: the crc32 of every byte before. A flipped bit must not become another
# exit code. A record that was edited by hand, in any other spelling, is accepted as it is.
_CHECK_HEAD, _CHECK_TAIL = b',"check":"', b'"}\n'
_CHECK_BYTES = len(_CHECK_HEAD) + 8 + len(_CHECK_TAIL)


def write(directory: int | None, name: str, record: dict[str, Any], *, durable: bool = False) -> None:
    """Replace `name` in one step. Fields that we do not know, those of a later release say, are kept."""
    replace(directory, name + ".tmp", name, _encode({**found(directory, name), **record}), durable)


def update(directory: int, name: str, record: dict[str, Any]) -> None:
    """As `write`, where several processes may do so at once."""
    replace(directory, f"{name}.{os.urandom(4).hex()}.tmp", name, _encode({**found(directory, name), **record}), False)


def write_once(directory: int | None, name: str, record: dict[str, Any]) -> None:
    """As `write`, unless the record exists already: then it stays as it is."""
    new_once(directory, name, _encode(record))


def new_once(directory: int | None, name: str, payload: bytes) -> None:
    """A new file, for its owner alone and whole when it appears. What already has the name stays as it is."""
    temporary = f"{name}.{os.urandom(4).hex()}.tmp"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        try:
            _write_all(fd, payload)
        finally:
            os.close(fd)
        os.link(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except FileExistsError:
        pass
    finally:
        os.unlink(temporary, dir_fd=directory)


def write_locked(directory: int, name: str, record: dict[str, Any]) -> int:
    """As `write`, and locked from the first moment it can be seen. Returns the descriptor that holds the lock."""
    temporary = name + ".tmp"
    failpoints.hit("records.create")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=directory)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        _write_all(fd, _encode(record))
        failpoints.hit("records.rename")
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except OSError:
        os.close(fd)
        raise
    return fd


def reserve_exit(directory: int) -> None:
    failpoints.hit("records.create")
    fd = create(directory, _EXIT_RESERVE)
    try:
        _write_all(fd, bytes(EXIT_ROOM_BYTES))
    finally:
        os.close(fd)


def write_exit(directory: int, record: dict[str, Any], *, durable: bool) -> None:
    """Write it into the room reserved at the start, where that still exists; the record appears in one step."""
    payload = _encode({**found(directory, "exit.json"), **record})
    try:
        fd = open_own(directory, _EXIT_RESERVE, os.O_WRONLY)
    except OSError as problem:
        if problem.errno not in _NOT_A_FILE:
            raise
        _clear(directory, _EXIT_RESERVE)
        replace(directory, "exit.json.tmp", "exit.json", payload, durable)
    else:
        try:
            _write_all(fd, payload)
            os.ftruncate(fd, len(payload))
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        failpoints.hit("records.rename")
        _rename(directory, _EXIT_RESERVE, "exit.json")
    if durable:
        os.fsync(directory)


def note_ends(directory: int, ends: dict[str, int]) -> None:
    """Note how far the output has come while a full disk refuses it: in the room reserved for the exit record. Without
    that room, nothing is noted."""
    try:
        fd = open_own(directory, _EXIT_RESERVE, os.O_WRONLY)
    except OSError:
        return
    try:
        os.pwrite(fd, _encode({"ends": ends}), 0)
    except OSError:
        pass
    finally:
        os.close(fd)


def noted_ends(directory: str) -> dict[str, int]:
    """What `note_ends` last wrote for the session in this directory; empty where nothing was."""
    for _ in range(_NOTE_TRIES):
        try:
            fd = os.open(f"{directory}/{_EXIT_RESERVE}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return {}
        try:
            line, newline, _ = os.read(fd, EXIT_ROOM_BYTES).partition(b"\n")
            ends = parse(line + newline).get("ends") if newline else None
        except (OSError, ValueError):
            continue  # it is just being written
        finally:
            os.close(fd)
        if not isinstance(ends, dict):
            return {}
        return {name: end for name, end in ends.items() if type(end) is int}
    return {}


def read(path: str) -> dict[str, Any]:
    """The record at `path`. FileNotFoundError when absent, ValueError when it is not a record."""
    return _read(path, None)


def _read(path: str, directory: int | None) -> dict[str, Any]:
    fd = open_file(path, directory)
    try:
        # Records are replaced, never written in place: the size does not change under us.
        return parse(os.read(fd, min(os.fstat(fd).st_size, _RECORD_MAX_BYTES)))
    finally:
        os.close(fd)


def open_file(path: str, directory: int | None = None) -> int:
    """Open a regular file for reading. ValueError where something else has its name: a pipe would block the reader, a
    link lead elsewhere."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=directory)
    except OSError as problem:
        if problem.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise ValueError("it is not a regular file") from None
        raise
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ValueError("it is not a regular file")
    return fd


def open_own(directory: int | None, name: str, flags: int) -> int:
    """Open a regular file of a session directory in which its command, too, can plant pipes and links under every name.
    OSError at once where one has the name."""
    fd = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600, dir_fd=directory)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return fd


def create(directory: int | None, name: str, flags: int = os.O_WRONLY) -> int:
    """A new and empty file of a session directory, whatever had its name."""
    _clear(directory, name)
    return open_own(directory, name, flags | os.O_CREAT | os.O_EXCL)


def _clear(directory: int | None, name: str) -> None:
    try:
        os.unlink(name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError as problem:
        if problem.errno not in (errno.EISDIR, errno.EPERM):
            raise
        # A directory: it may hold anything, so it is kept.
        os.rename(name, f"{name}.{os.urandom(4).hex()}", src_dir_fd=directory, dst_dir_fd=directory)


def _rename(directory: int | None, temporary: str, name: str) -> None:
    try:
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    except IsADirectoryError:
        _clear(directory, name)
        os.rename(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)


def lines(path: str, line_max: int, too_long: bytes | None = None) -> Iterator[bytes]:
    """The lines of a regular file with their newlines; instead of those longer than `line_max`, `too_long`. Nothing
    where there is no such file."""
    try:
        fd = open_file(path)
    except (OSError, ValueError):
        return
    try:
        for _, _, line in lines_at(fd, 0, line_max):
            if line is not None or too_long is not None:
                yield line if line is not None else too_long or b""
    finally:
        os.close(fd)


def lines_at(fd: int, at: int, line_max: int) -> Iterator[tuple[int, int, bytes | None]]:
    """Where each line begins and ends, and the line with its newline, which the last may lack; None for one longer
    than `line_max`. Memory stays bounded whatever is in the file."""
    begin, kept, is_too_long = at, b"", False
    while block := os.pread(fd, _BLOCK_BYTES, at):
        *ended, rest = block.split(b"\n")
        end = at
        for part in ended:
            end += len(part) + 1
            fits = not is_too_long and len(kept) + len(part) <= line_max
            yield begin, end, kept + part + b"\n" if fits else None
            begin, kept, is_too_long = end, b"", False
        kept += rest
        if is_too_long or len(kept) > line_max:
            kept, is_too_long = b"", True
        at += len(block)
    if kept or is_too_long:
        yield begin, at, None if is_too_long else kept


def parse(raw: bytes) -> dict[str, Any]:
    body, head, check, tail = raw[:-_CHECK_BYTES], raw[-_CHECK_BYTES:-11], raw[-11:-3], raw[-3:]
    if (head, tail) == (_CHECK_HEAD, _CHECK_TAIL) and check != b"%08x" % binascii.crc32(body):
        raise ValueError("its check does not fit: something changed in it")
    try:
        record = jsontext.read(raw)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(record, dict):
        raise ValueError("not a JSON object")
    if raw.count(b"[") + raw.count(b"{") > _DEPTH_MAX and jsontext.is_deeper(record, _DEPTH_MAX):
        raise ValueError("nested too deeply")
    return record


def found(directory: int | None, name: str) -> dict[str, Any]:
    """The record as it is now; empty when it is absent or cannot be read."""
    try:
        return _read(name, directory)
    except (OSError, ValueError):
        return {}


def lock_is_free(path: str) -> bool:
    """Whether no process holds the lock on this file, or there is none that can be opened."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as problem:
        if problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # this process lacks descriptors or memory: the lock may well be held
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        raise
    finally:
        os.close(fd)
    return True


def runner_lives(directory: str) -> bool:
    """Whether a process holds the lock that a runner holds on its spec for life."""
    return not lock_is_free(os.path.join(directory, "spec.json"))


def replace(directory: int | None, temporary: str, name: str, payload: bytes, durable: bool) -> None:
    failpoints.hit("records.create")
    fd = create(directory, temporary)
    try:
        try:
            _write_all(fd, payload)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        failpoints.hit("records.rename")
        _rename(directory, temporary, name)
    except OSError:
        os.unlink(temporary, dir_fd=directory)
        raise


def _write_all(fd: int, payload: bytes) -> None:
    view = memoryview(payload)
    while view:
        failpoints.hit("records.data")
        view = view[os.write(fd, view) :]


def _encode(record: dict[str, Any]) -> bytes:
    # ASCII escapes keep the lone surrogates that replace undecodable bytes of a command line.
    unchecked = {field: value for field, value in record.items() if field != "check"}
    body = jsontext.write(unchecked).encode()[:-1]
    return body + _CHECK_HEAD + b"%08x" % binascii.crc32(body) + _CHECK_TAIL
