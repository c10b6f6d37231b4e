"""Which session is meant: by id, name, service of the project here, pid, the beginning of an id, or `last`."""

from __future__ import annotations

import os

from ..errors import AmbiguousId, BadArgument, DamagedRecord, NotFound, Removed
from ..home import check_name, is_id
from ..model import LIVE_STATES
from .claims import Claim, kept_holder, live_holder, name_of
from .observe import from_files, read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..home import Home
    from ..index import Index


PREFIX_MIN_CHARACTERS = 4
_PID_DIGITS = 10
_PROJECT_FILES = ("holdfast.toml", "Procfile")


def find(home: Home, index: Index, ref: object, owner: str | None = None, *, services: bool = False) -> str:
    """The id that `ref` means: an id, a unique prefix of it, a name, a pid, or `last`; with `services` also a service
    of the project of the current directory. With an owner, sessions of other owners are not found."""
    text = str(ref)
    if text == "last":
        newest = index.last() if owner is None else next(iter(index.owned(owner)), None)
        if newest is None:
            raise NotFound(text)
        return newest
    if is_id(text) and os.path.exists(os.path.join(home.session(text), "spec.json")):
        if not _belongs(home, text, owner):
            raise NotFound(text)
        return text
    meant = {_named(home, index, text, owner), _service(home, text, owner) if services else None} - {None}
    if len(meant) > 1:
        # A session outside the project has the name of a service. The running one is meant.
        live = {id for id in meant if live_holder(home, id) is not None}
        if len(live) != 1:
            raise AmbiguousId(text, sorted(filter(None, meant)))
        meant = live
    for id in filter(None, meant):
        return id
    if text.isascii() and text.isdigit() and len(text) <= _PID_DIGITS:
        candidates = _live_first(home, [id for id in index.by_pid(int(text)) if _belongs(home, id, owner)])
    elif len(text) >= PREFIX_MIN_CHARACTERS and text.isascii() and text.isalnum():
        candidates = [id for id in index.prefix(text) if _belongs(home, id, owner)]
    else:
        candidates = []
    if len(candidates) > 1:
        raise AmbiguousId(text, candidates)
    if candidates:
        return candidates[0]
    # Its owner is no longer known.
    if owner is None and is_id(text) and index.removed(text):
        raise Removed(text)
    raise NotFound(text)


def _belongs(home: Home, id: str, owner: str | None) -> bool:
    if owner is None:
        return True
    try:
        return bool(read_files(home, id).current().get("owner") == owner)
    except (NotFound, DamagedRecord):
        return False


def _named(home: Home, index: Index, text: str, owner: str | None) -> str | None:
    try:
        name = check_name(text)
    except BadArgument:
        return None
    holder = Claim(home, "name", name).peek()
    if holder is not None and name_of(home, holder) == name and _belongs(home, holder, owner):
        return holder
    # Renamed meanwhile, or its claim was swept: take the newest session that had the name.
    for id in index.by_name(name):
        if name_of(home, id) == name and _belongs(home, id, owner):
            return id
    return None


def _service(home: Home, name: str, owner: str | None) -> str | None:
    try:
        file = project_file(os.getcwd())
    except FileNotFoundError:
        return None
    seen = None if file is None else kept_holder(home, Claim(home, "key", service_key(file, name)).peek())
    return seen.files.id if seen is not None and _belongs(home, seen.files.id, owner) else None


def project_file(directory: str) -> str | None:
    """The file of the project, in this directory or above."""
    directory = os.path.abspath(directory)
    while True:
        for name in _PROJECT_FILES:
            path = os.path.join(directory, name)
            if os.path.isfile(path):
                return path
        above = os.path.dirname(directory)
        if above == directory:
            return None
        directory = above


def service_key(file: str, service: str) -> str:
    """The key of the session of a service."""
    return f"{file}#{service}"


def _live_first(home: Home, ids: list[str]) -> list[str]:
    """Pids are reused: a live session with this pid has priority over those that had it before. Pids of another place
    are not compared."""
    live: list[str] = []
    over: list[str] = []
    for id in ids:
        try:
            files = read_files(home, id)
        except (NotFound, DamagedRecord):
            continue
        if not files.away:
            (live if from_files(files).state in LIVE_STATES else over).append(id)
    return live or over[:1]
