"""Where words go: answers to stdout, everything else to stderr."""

from __future__ import annotations

import errno
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

_WRITE_BYTES = 1 << 16
# What to do about an error of the system.
_FIXES = {
    errno.ENOSPC: "free some space",
    errno.ENOENT: "check the path: there is nothing of this name",
    errno.ENOTDIR: "check the path: a part of it is no directory",
    errno.EISDIR: "name a file, not a directory",
    errno.EACCES: "name a file that you may use, or change its permissions",
    errno.EPERM: "name a file that you may use, or change its permissions",
    errno.EROFS: "name a file on a disk that can be written",
}


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


def say_json(value: Any, *, lines: bool = False) -> None:
    """One JSON text, for people indented; `lines`: one of many, a line each."""
    import json

    indent = 2 if not lines and is_terminal(1) else None
    say(json.dumps(value, indent=indent, default=_as_json))


def note(text: str, head: str = "hold") -> None:
    """A message to whoever sits there. That nobody does is no reason to fail."""
    _to_stderr(f"{head}: {text}\n")


def write(fd: int, data: bytes) -> None:
    """Bytes as they are, all of them; also where somebody made the descriptor non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view[:_WRITE_BYTES]) :]
        except BlockingIOError:
            import select

            select.select([], [fd], [])


def is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def complain(problem: Exception, *, as_json: bool, options: Collection[str] = ()) -> int | None:
    """Render what went wrong in a command with these options; the exit code, None for what is a bug of ours."""
    from ..errors import FAILED, HoldfastError
    from .tables import printable
    from .wording import typed

    if isinstance(problem, OSError):
        about = f"{problem.filename}: " if isinstance(problem.filename, str) else ""
        reason = problem.strerror or str(problem)
        error = HoldfastError(about + reason, errno=problem.errno, path=problem.filename)
        error.fix = _FIXES.get(problem.errno or 0, "see `hold doctor`")
        error.exit_code = getattr(problem, "exit_code", FAILED)
    elif isinstance(problem, HoldfastError):
        error = problem
    else:
        return None
    message, fix = typed(error, options)
    if as_json:
        import json

        _to_stderr(json.dumps({**error.to_json(), "message": message, "fix": fix}, default=_as_json) + "\n")
    else:
        note(printable(message))
        note(printable(fix), head="fix")
    return error.exit_code


def _to_stderr(text: str) -> None:
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (OSError, ValueError):
        pass


def _as_json(value: Any) -> Any:
    to_json = getattr(value, "to_json", None)
    return to_json() if to_json is not None else str(value)
