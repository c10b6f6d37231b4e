"""Paths and names: the home, the runtime directory, ids of sessions, and rules for names."""

from __future__ import annotations

import errno
import os

from .core import directories
from .errors import BadArgument, DiskFull, UnsafeDirectory
from .model import KIND_LETTERS, UNKNOWN_KIND_LETTER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


ID_ALPHABET = "0123456789abcdefghijklmnopqrstuvwxyz"
# 36 ** 8 is 2.8e12: among a million sessions two alike are unlikely, and mkdir refuses the second.
_ID_RANDOM_CHARACTERS = 8
# The largest multiple of 36 in a byte: without throwing the rest away some letters came more often.
_UNBIASED_BYTES = 252

NAME_CHARACTERS = 64
OWNER_CHARACTERS = 256
LABELS = 64
LABEL_KEY_CHARACTERS = 64
LABEL_VALUE_CHARACTERS = 256


class Home:
    """The state directory and the paths in it. Only `create` touches the disk."""

    __slots__ = ("gc_stamp", "index", "locks", "path", "quarantine", "sessions")

    def __init__(self, path: str | os.PathLike[str] | None = None, environ: Mapping[str, str] = os.environ) -> None:
        path = _chosen_home(environ) if path is None else os.fspath(path)
        if not path or "\0" in path:
            raise BadArgument("home", f"{path[:80]!a} is not a path", "name a directory, or leave it out")
        self.path = os.path.abspath(path)
        self.sessions = os.path.join(self.path, "sessions")
        self.locks = os.path.join(self.path, "locks")
        self.quarantine = os.path.join(self.path, "quarantine")
        self.index = os.path.join(self.path, "index.db")
        self.gc_stamp = os.path.join(self.path, "gc.stamp")

    def __repr__(self) -> str:
        return f"<Home {self.path}>"

    def session(self, id: str) -> str:
        """The directory of a session. Only a full id ever becomes a path."""
        if not is_id(id):
            raise BadArgument("id", f"{ascii(id)[:80]} is not an id", "give a full id as `hold ls` prints it")
        return os.path.join(self.sessions, id)

    def create(self) -> None:
        """Make what is missing, 0700 from birth; refuse what others could have planted or could change."""
        with _Refusing():
            if not os.path.lexists(self.path):
                directories.make_with_parents(self.path)
            # The home itself may be reached through a symlink: the user chose that path.
            directories.check(self.path, os.stat(self.path), directories.WRITABLE)
            for path in (self.sessions, self.locks, self.quarantine):
                directories.private(path, directories.WRITABLE)


def runtime_directory(environ: Mapping[str, str] = os.environ) -> str:
    """The directory of endpoints: made 0700, or found to be ours alone. A planted one is refused."""
    with _Refusing():
        return directories.runtime_directory(environ)


def is_id(text: str) -> bool:
    """Whether `text` has the form `^[a-z0-9]{6,32}$`."""
    return 6 <= len(text) <= 32 and not text.strip(ID_ALPHABET)


def new_id(kind: str) -> str:
    """The letter of the kind and 8 characters, each as likely as any other."""
    id = KIND_LETTERS.get(kind, UNKNOWN_KIND_LETTER)
    while len(id) <= _ID_RANDOM_CHARACTERS:
        for byte in os.urandom(2 * _ID_RANDOM_CHARACTERS):
            if byte < _UNBIASED_BYTES and len(id) <= _ID_RANDOM_CHARACTERS:
                id += ID_ALPHABET[byte % len(ID_ALPHABET)]
    return id


def check_name(name: object) -> str:
    """The name in its one canonical spelling, or BadArgument: it must not be mistaken for anything else."""
    text = plain_text("name", name, NAME_CHARACTERS)
    if "/" in text:
        raise BadArgument("name", "has a /, so that it looks like a path", "use - or . instead")
    if text.startswith("-"):
        raise BadArgument("name", "starts with -, so that it looks like an option", "start with a letter")
    if text.isdigit():
        raise BadArgument("name", "has digits only, so that it looks like a pid", "add a letter")
    if text == "last":
        raise BadArgument("name", "`last` means the newest session", "choose another word")
    return text


def check_owner(owner: object) -> str:
    return plain_text("owner", owner, OWNER_CHARACTERS)


def check_labels(labels: object) -> dict[str, str]:
    if not isinstance(labels, dict):
        raise BadArgument("labels", "is not a mapping", 'give {"key": "value"}')
    if len(labels) > LABELS:
        raise BadArgument("labels", f"has more than {LABELS} entries", "keep the rest in metadata")
    checked: dict[str, str] = {}
    for key, value in labels.items():
        key = plain_text("label key", key, LABEL_KEY_CHARACTERS)
        if "=" in key or ":" in key:
            raise BadArgument("label key", f"{key!a} has = or :, which end a key", "use . or - instead")
        checked[key] = plain_text(f"label {key}", value, LABEL_VALUE_CHARACTERS) if value != "" else ""
    return checked


def plain_text(what: str, text: object, limit: int) -> str:
    """`text` in NFC, of 1 to `limit` visible characters."""
    if not isinstance(text, str):
        raise BadArgument(what, f"is {type(text).__name__}, not text", "give a string")
    if not text:
        raise BadArgument(what, "is empty", "give at least one character")
    # Before it is normalised: megabytes would take long.
    if len(text) > 4 * limit:
        raise BadArgument(what, f"is longer than {limit} characters", "shorten it")
    if not text.isascii():
        import unicodedata

        text = unicodedata.normalize("NFC", text)
        for character in text:
            # Control, format (bidi and zero-width among them), surrogate, private, unassigned; exotic spaces.
            category = unicodedata.category(character)
            if category[0] == "C" or (category[0] == "Z" and character != " "):
                raise BadArgument(what, f"has the invisible character {character!a}", "use visible characters")
    elif not text.isprintable():
        raise BadArgument(what, "has a control character", "use visible characters")
    if len(text) > limit:
        raise BadArgument(what, f"is longer than {limit} characters", "shorten it")
    if text[0] == " " or text[-1] == " ":
        raise BadArgument(what, "starts or ends with a space", "strip it")
    return text


def user_home(environ: Mapping[str, str]) -> str:
    path = environ.get("HOME") or os.path.expanduser("~")
    if not os.path.isabs(path):
        raise BadArgument("HOME", "is not an absolute path", "set HOME, or HOLDFAST_HOME and HOLDFAST_CONFIG")
    return path


def _chosen_home(environ: Mapping[str, str]) -> str:
    try:
        return directories.chosen_home(environ)
    except directories.Unfit as problem:
        raise BadArgument("HOME", "is not an absolute path", problem.fix) from None


class _Refusing:
    """What the system or a look at a directory says against it becomes the error that names it."""

    def __enter__(self) -> None: ...

    def __exit__(self, _kind: object, problem: BaseException | None, _traceback: object) -> None:
        if isinstance(problem, directories.Unfit):
            raise UnsafeDirectory(problem.path, problem.why, problem.fix) from None
        if isinstance(problem, OSError):
            raise _unusable(str(problem.filename), problem) from None


def no_space(path: str) -> DiskFull:
    disk = os.statvfs(os.path.dirname(path))
    return DiskFull(path, disk.f_bavail * disk.f_frsize)


def _unusable(path: str, error: OSError) -> DiskFull | UnsafeDirectory:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return no_space(path)
    reason = os.strerror(error.errno) if error.errno else str(error)
    return UnsafeDirectory(path, reason, "choose another place with HOLDFAST_HOME, XDG_RUNTIME_DIR or TMPDIR")
