"""Which session is meant: by id, the beginning of one, name, pid, or `last`."""

from __future__ import annotations

import os

from ..errors import AmbiguousId, BadArgument, DamagedRecord, NotFound, Removed
from ..home import check_name, is_id
from ..model import LIVE_STATES
from .claims import Claim
from .observe import from_files, read_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..home import Home
    from ..index import Index

PREFIX_MIN_CHARACTERS = 4
_PID_DIGITS = 10


def find(home: Home, index: Index, ref: object, owner: str | None = None) -> str:
    """The id that `ref` means: an id, a unique prefix of it, a name, a pid, or `last`. With an owner, what belongs
    to others does not exist."""
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
    named = _named(home, index, text, owner)
    if named is not None:
        return named
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
    # Whose it was is not known any more.
    if owner is None and is_id(text) and index.removed(text):
        raise Removed(text)
    raise NotFound(text)


def _belongs(home: Home, id: str, owner: str | None) -> bool:
    if owner is None:
        return True
    try:
        return bool(read_files(home, id).now().get("owner") == owner)
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
    # Renamed meanwhile, or its claim was swept: the newest that bore the name.
    for id in index.by_name(name):
        if name_of(home, id) == name and _belongs(home, id, owner):
            return id
    return None


def name_of(home: Home, id: str) -> object:
    try:
        files = read_files(home, id)
    except (NotFound, DamagedRecord):
        return None
    return files.now().get("name")


def _live_first(home: Home, ids: list[str]) -> list[str]:
    """Pids come again: a live session that has one wins over all that had it. Those of another place mean nothing
    here."""
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
