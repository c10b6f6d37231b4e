"""A file that is written where the user wants it, in a directory that others may write too (`/tmp`).

Whatever others put there beforehand is neither followed nor written to: the content goes to a new file under a random
name, which takes the place of the old one when it is whole.
"""

from __future__ import annotations

import errno
import os
import stat

from ..errors import UnsafeFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def save(path: str, content: Iterable[bytes]) -> None:
    """Whole or not at all. A pipe or a device of ours, or of the system, is written to as it is."""
    fd = _open_special(path)
    if fd is not None:
        _write(fd, content)
        return
    beside = f"{path}.{os.urandom(8).hex()}.part"
    fd = os.open(beside, _NEW, 0o666)
    try:
        _write(fd, content)
        os.replace(beside, path)
    except BaseException:
        try:
            os.unlink(beside)
        except FileNotFoundError:
            pass
        raise


def _open_special(path: str) -> int | None:
    """Where `path` is a pipe or a device."""
    flags = os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return None
    if stat.S_ISLNK(found.st_mode):
        directory = os.stat(os.path.dirname(os.path.abspath(path)))
        # /dev/stdout is a link that the system made.
        if directory.st_uid != 0 or directory.st_mode & _OTHERS or not _is_special(os.stat(path)):
            return None
        return os.open(path, flags)
    if not _is_special(found):
        return None
    if found.st_uid not in (os.geteuid(), 0):
        raise UnsafeFile(path, f"it is a pipe or device of uid {found.st_uid}")
    fd = os.open(path, flags | os.O_NOFOLLOW)
    now = os.fstat(fd)
    if (now.st_dev, now.st_ino) != (found.st_dev, found.st_ino):
        os.close(fd)
        raise OSError(errno.EAGAIN, "it was replaced while it was opened", path)
    return fd


def _is_special(found: os.stat_result) -> bool:
    return stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode)


def _write(fd: int, content: Iterable[bytes]) -> None:
    with open(fd, "wb", buffering=1 << 16) as file:
        file.writelines(content)
