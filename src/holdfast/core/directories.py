"""Where state and endpoints are kept on this machine, and the checks that no other user can reach into them."""

from __future__ import annotations

import os
import stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


# Mode bits: others may write (WRITABLE); others may access it at all (OPEN).
WRITABLE = stat.S_IWGRP | stat.S_IWOTH
OPEN = stat.S_IRWXG | stat.S_IRWXO
_INSTEAD = "set HOLDFAST_HOME to a directory of your own"


class Unfit(Exception):
    """A directory that cannot be used, why, and what to do about it."""

    def __init__(self, path: str, why: str, fix: str) -> None:
        super().__init__(f"{path}: {why}; {fix}")
        self.path = path
        self.why = why
        self.fix = fix


def chosen_home(environ: Mapping[str, str]) -> str:
    chosen = environ.get("HOLDFAST_HOME")
    if chosen:
        return chosen
    state = environ.get("XDG_STATE_HOME", "")
    # The XDG specification says to ignore relative paths.
    if os.path.isabs(state):
        return os.path.join(state, "holdfast")
    user = environ.get("HOME") or os.path.expanduser("~")
    if not os.path.isabs(user):
        raise Unfit(user, "HOME is not an absolute path", "set HOME, or HOLDFAST_HOME and HOLDFAST_CONFIG")
    return os.path.join(user, ".local", "state", "holdfast")


def runtime_directory(environ: Mapping[str, str]) -> str:
    """The directory of endpoints: made 0700, or found to be ours alone. A planted one is refused."""
    base = environ.get("XDG_RUNTIME_DIR", "")
    # Set but absent is what a container or `su` leaves behind: then there is no such directory.
    if os.path.isabs(base) and os.path.isdir(base):
        found = os.stat(base)
        if found.st_uid != os.geteuid():
            why = f"it belongs to uid {found.st_uid}, not to us"
            raise Unfit(base, why, "`unset XDG_RUNTIME_DIR`, or set it to a directory of your own")
        path = os.path.join(base, "holdfast")
    else:
        base = environ.get("TMPDIR", "")
        base = base if os.path.isabs(base) else "/tmp"
        path = os.path.join(base, f"holdfast-{os.geteuid()}")
    mode = os.stat(base).st_mode
    if mode & WRITABLE and not mode & stat.S_ISVTX:
        why = "others may rename what is in it (writable, and no sticky bit)"
        raise Unfit(base, why, f"`chmod +t {base}`, or set XDG_RUNTIME_DIR to one of your own")
    own = os.path.join(environ.get("HOME") or "~", ".cache", "holdfast-run")
    private(path, OPEN, f"`mkdir -p -m 700 {own} && export XDG_RUNTIME_DIR={own}`")
    return path


def private(path: str, forbidden: int, instead: str = _INSTEAD) -> None:
    """Make the directory, or see that it is a real one, ours, and without the mode bits `forbidden`. `instead` is what
    to do where it is another user's, which only root could remove."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        _make(path)
        found = os.lstat(path)
    check(path, found, forbidden, instead)


def check(path: str, found: os.stat_result, forbidden: int, instead: str = _INSTEAD) -> None:
    foreign = found.st_uid != os.geteuid()
    remove = instead if foreign else "remove it, and a directory is made in its place"
    if stat.S_ISLNK(found.st_mode):
        raise Unfit(path, "it is a symlink", remove)
    if not stat.S_ISDIR(found.st_mode):
        raise Unfit(path, "it is not a directory", remove)
    if foreign:
        raise Unfit(path, f"it belongs to uid {found.st_uid}, not to us", instead)
    if found.st_mode & forbidden:
        why = f"its mode {stat.S_IMODE(found.st_mode):04o} lets others in"
        raise Unfit(path, why, f"check that no other user put anything there, then `chmod 700 {path}`")


def make_with_parents(path: str) -> None:
    if not os.path.isdir(path):
        make_with_parents(os.path.dirname(path))
        _make(path)


def _make(path: str) -> None:
    try:
        # A umask can only narrow it further, and nothing widens or narrows it later.
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass  # made or planted meanwhile: the check that follows finds out


def remove(path: str) -> None:
    """A file, or a directory with all that is in it, as far as it can be removed. Links are not followed."""
    try:
        os.unlink(path)
    except IsADirectoryError:
        try:
            for name in os.listdir(path):
                remove(os.path.join(path, name))
            os.rmdir(path)
        except OSError:
            pass  # it changed meanwhile
    except OSError:
        pass
