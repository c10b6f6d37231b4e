"""A token in a file of the home. Whoever can read the home may have it, and nobody else."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from ..errors import BadArgument, UnsafeDirectory
from ..runner import whereabouts

if TYPE_CHECKING:
    from ..home import Home

_TOKEN_BYTES = 32
_TOKEN_CHARACTERS = 16
# No token is longer; what is, somebody mistook for one.
_FILE_BYTES = 4096


def token_path(home: Home, name: str) -> str:
    return os.path.join(home.path, "server", name)


def token_of(home: Home, name: str) -> str:
    """The token of this name, made when first asked for."""
    path = token_path(home, name)
    try:
        whereabouts.private(os.path.dirname(path), whereabouts.WRITABLE)
    except whereabouts.Unfit as problem:
        raise UnsafeDirectory(problem.path, problem.why, problem.fix) from None
    if not os.path.lexists(path):
        _make(path)
    return read_token(path)


def _make(path: str) -> None:
    import secrets

    # Whole when it appears: another server may start at the same moment, and would read half of it.
    draft = f"{path}.{secrets.token_hex(8)}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w") as file:
            file.write(secrets.token_urlsafe(_TOKEN_BYTES) + "\n")
        os.link(draft, path, follow_symlinks=False)
    except FileExistsError:
        pass  # somebody was quicker, or planted it: reading it tells
    finally:
        os.unlink(draft)


def read_token(path: str, *, follow: bool = False) -> str:
    """What the file holds. `follow`: a link to it is as good, since the user named it."""
    try:
        # A FIFO in its place must not hold us up.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW))
    except OSError as problem:
        if problem.errno != errno.ELOOP:
            raise
        raise UnsafeDirectory(path, "it is a symlink", f"rm {path}; a new token is made at the next start") from None
    with open(fd) as file:
        facts = os.fstat(fd)
        if not stat.S_ISREG(facts.st_mode):
            raise UnsafeDirectory(path, "it is no file", f"remove {path}; a new token is made at the next start")
        if facts.st_uid != os.geteuid():
            why = f"it belongs to uid {facts.st_uid}, not to us"
            raise UnsafeDirectory(path, why, f"rm {path}; a new token is made at the next start")
        if facts.st_mode & whereabouts.OPEN:
            why = f"others can read the token (its mode is {stat.S_IMODE(facts.st_mode):04o})"
            raise UnsafeDirectory(
                path, why, f"rm {path}: who read it still could use it; a new one is made at the next start"
            )
        token = file.read(_FILE_BYTES).strip()
    if len(token) < _TOKEN_CHARACTERS:
        raise BadArgument(
            "token", f"{path} holds no token of {_TOKEN_CHARACTERS} characters or more", "delete it, and start again"
        )
    return token
