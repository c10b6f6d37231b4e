"""Tokens: the one of the home, minted ones, links that show one session, and one-time codes for the page.

Minted tokens are in `<home>/server/tokens.json`, which keeps digests of the secrets only. All servers of a home use
this file: each reads it again when it has changed.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import hmac
import os
import secrets
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..config.settings import Settings
from ..core import records
from ..core.clock import rfc3339
from ..errors import Busy
from .responses import NoSuch, ScopeMissing, reached
from .watching import NAMES, Watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    Entry = dict[str, Any]


SCOPES = ("observe", "control", "manage")
_WHOLE = "manage of the whole home"
CODE_S = 300.0
PAGE_S, PAGE_IDLE_S = 7 * 86400.0, 12 * 3600.0

CODE, PAGE, TOKEN, LINK = "code", "page", "token", "link"
_FILE = "tokens.json"
_MOST = Settings.server_tokens
_NS = 1_000_000_000
_CODE_BYTES = 16
_SECRET_BYTES = 32
_ID_BYTES = 6
# The precision of the time of last use in the file.
_USED_S = 600.0
# A token that does not expire is checked at this interval while a connection uses it.
_LOOK_S = 86400.0


class Caller:
    """One token: its scope, where each scope contains the previous ones, and the sessions to which it is narrowed.
    `revoked` is set when it is no longer valid; its connections then close."""

    def __init__(
        self,
        id: str,
        label: str,
        scope: str,
        digest: bytes,
        sessions: frozenset[str] | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self.id = id
        self.label = label
        self.scope = scope
        self.digest = digest
        self._sessions = sessions
        self._owner = owner
        self._labels = dict(labels or {})
        self.revoked = asyncio.Event()

    @property
    def scopes(self) -> list[str]:
        return list(SCOPES[: SCOPES.index(self.scope) + 1])

    @property
    def author(self) -> str:
        return f"web:{self.label}"

    def claims(self) -> dict[str, Any]:
        """What a node is told about it; the node limits it to what it grants this view."""
        sessions = None if self._sessions is None else sorted(self._sessions)
        return {"label": self.label, "scope": self.scope, "sessions": sessions, **self.narrowing}

    @property
    def narrowing(self) -> dict[str, Any]:
        """Beside the sessions: the owner and labels that these must have."""
        return {"owner": self._owner, "labels": self._labels}

    @property
    def is_narrowed(self) -> bool:
        return self._sessions is not None or self._owner is not None or bool(self._labels)

    def must(self, scope: str) -> None:
        if scope not in self.scopes:
            raise ScopeMissing(scope)

    def sees(self, id: str | None, owner: object, labels: Mapping[str, str] | None) -> bool:
        """True if it may know of this session."""
        return (
            (self._sessions is None or id in self._sessions)
            and (self._owner is None or owner == self._owner)
            and all((labels or {}).get(key) == value for key, value in self._labels.items())
        )

    def narrowed(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Start options, with the owner and labels without which this token would not see the session."""
        if self._sessions is not None or (self.is_narrowed and options.get("replace")):
            raise ScopeMissing(_WHOLE)
        owner = {"owner": self._owner} if self._owner is not None and options.get("owner") is None else {}
        labels = options.get("labels") or {}
        labels = {"labels": {**self._labels, **labels}} if self._labels and isinstance(labels, dict) else {}
        found = {**options, **owner, **labels}
        self.must_see(None, found.get("owner"), found.get("labels"))
        return found

    def must_see(self, id: str | None, owner: object, labels: object) -> None:
        """Refuse to create a session that this token may not see."""
        if not self.sees(id, owner, labels if isinstance(labels, dict) else {}):
            raise ScopeMissing(_WHOLE)


def home_token(secret: str) -> Caller:
    """The token of the home itself: its readers could do everything without us."""
    return Caller("home", "home", "manage", digest(secret))


def digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


class Tokens:
    """`directory` has the file; without one only the token of the home is valid."""

    def __init__(
        self, home: Caller | None, directory: str | None, wall: Callable[[], float] = time.time, *, most: int = _MOST
    ) -> None:
        self._most = most
        self._home = home
        self._directory = directory
        self._wall = wall
        # What an unknown id is compared with: it costs the same as a wrong secret.
        self._unknown = Caller("", "", "observe", secrets.token_bytes(_SECRET_BYTES))
        self._stamp: tuple[int, ...] | None = None
        self._entries: dict[str, Entry] = {}
        self._callers: dict[str, Caller] = {}
        # Those with open connections: how many, and when to look at the token again.
        self._open: dict[Caller, int] = {}
        self._timers: dict[Caller, asyncio.TimerHandle] = {}
        self._watching: Watching | None = None

    def caller(self, authorization: str) -> Caller | None:
        """The token that `Bearer hf_<id>_<secret>` is."""
        scheme, _, token = authorization.partition(" ")
        head, _, rest = token.strip().partition("_")
        id, _, secret = rest.partition("_")
        caller = self._known(id)
        is_right = hmac.compare_digest(digest(secret), caller.digest)
        if not is_right or not caller.id or scheme.lower() != "bearer" or head != "hf":
            return None
        self._note_use(id)
        return caller

    def is_valid(self, caller: Caller) -> bool:
        """False once it was revoked, or has expired."""
        return self._known(caller.id) is caller

    def prove(self, id: str, origin: str, nonce: str) -> str:
        """A value that only this server can compute, and that a client with the secret can check."""
        message = f"holdfast-server{origin}{nonce}".encode("utf-8", "surrogatepass")
        return hmac.new(self._known(id).digest, message, hashlib.sha256).hexdigest()

    def issue_code(self) -> str:
        """A code that can be exchanged once, soon, for a token of the page."""
        code = secrets.token_urlsafe(_CODE_BYTES)
        self._add(CODE, digest(code), "page", "manage", CODE_S)
        return code

    def exchange(self, code: str) -> tuple[Caller, str] | None:
        """Exchange a code, which is used up, for a token of the page; None for a wrong code."""
        with self._changing() as entries:
            taken = None
            for id, entry in entries.items():
                if entry["kind"] == CODE and hmac.compare_digest(bytes.fromhex(entry["digest"]), digest(code)):
                    taken = id
            if taken is None:
                return None
            del entries[taken]
        return self.issue(PAGE, "page", "manage", PAGE_S, idle_s=PAGE_IDLE_S)

    def issue(self, kind: str, label: str, scope: str, ttl_s: float | None, **limits: Any) -> tuple[Caller, str]:
        """Issue a new token; returns it and its text, which is stored nowhere."""
        secret = secrets.token_urlsafe(_SECRET_BYTES)
        id = self._add(kind, digest(secret), label, scope, ttl_s, **limits)
        return self._known(id), f"hf_{id}_{secret}"

    def revoke(self, id: str, *, kind: tuple[str, ...], session: str | None = None) -> None:
        with self._changing() as entries:
            entry = entries.get(id)
            if entry is None or entry["kind"] not in kind or (session is not None and session not in entry["sessions"]):
                raise NoSuch("token", id, "GET on the same address without the id lists the existing ones")
            del entries[id]

    def revoke_made_by(self, maker: str) -> list[str]:
        """Revoke what this caller has made, and what was made with that; returns the ids."""
        made = [id for id, entry in _read(self._directory or "").items() if entry.get("maker") == maker]
        if made:
            with self._changing() as entries:
                for id in made:
                    entries.pop(id, None)
        return made

    def listed(self, *, kind: tuple[str, ...], session: str | None = None) -> list[dict[str, Any]]:
        """All of these kinds, without anything secret."""
        self._read_if_changed()
        return [
            described(id, entry)
            for id, entry in self._entries.items()
            if entry["kind"] in kind and (session is None or session in (entry["sessions"] or ()))
        ]

    def describe(self, id: str) -> dict[str, Any]:
        return described(id, self._entries[id])

    # Open connections.

    @contextmanager
    def in_use(self, caller: Caller) -> Iterator[None]:
        """While it has a connection open: `revoked` is set as soon as it expires, or any server revokes it."""
        if self._directory is None or self._callers.get(caller.id) is not caller:
            yield
            return
        self._open[caller] = self._open.get(caller, 0) + 1
        try:
            self._watch_if_used()
            self._check(caller)
            yield
        finally:
            self._open[caller] -= 1
            if not self._open[caller]:
                del self._open[caller]
                if caller in self._timers:
                    self._timers.pop(caller).cancel()
            self._watch_if_used()

    def _check(self, caller: Caller) -> None:
        """Check the token now, and again when it may have expired. An open connection counts as use."""
        if caller in self._timers:
            self._timers.pop(caller).cancel()
        after_s = _LOOK_S
        if self._known(caller.id) is caller:
            self._note_use(caller.id)
            entry, now = self._entries[caller.id], self._wall()
            if entry["idle_s"] is not None:
                after_s = min(after_s, entry["idle_s"] / 2)
            if entry["expires_s"] is not None:
                after_s = min(after_s, entry["expires_s"] - now)
        self._timers[caller] = asyncio.get_running_loop().call_later(max(0.0, after_s), self._check, caller)

    def _watch_if_used(self) -> None:
        loop = asyncio.get_running_loop()
        if self._open and self._watching is None:
            self._watching = Watching()
            self._watching.watch(self._directory or "", _FILE, NAMES)
            loop.add_reader(self._watching.fileno(), self._see)
        elif not self._open and self._watching is not None:
            loop.remove_reader(self._watching.fileno())
            self._watching.__exit__()
            self._watching = None

    def _see(self) -> None:
        if self._watching is not None:
            self._watching.read()
            self._read_if_changed()

    # The file.

    def _known(self, id: str) -> Caller:
        if self._home is not None and id == self._home.id:
            return self._home
        self._read_if_changed()
        entry = self._entries.get(id)
        if entry is None or entry["kind"] == CODE or _is_over(entry, self._wall()):
            if entry is not None and id in self._callers:
                self._callers.pop(id).revoked.set()
            return self._unknown
        caller = self._callers.get(id)
        if caller is None:
            sessions = None if entry["sessions"] is None else frozenset(entry["sessions"])
            secret = bytes.fromhex(entry["digest"])
            caller = Caller(id, entry["label"], entry["scope"], secret, sessions, entry["owner"], entry["labels"])
            self._callers[id] = caller
        return caller

    def _note_use(self, id: str) -> None:
        entry = self._entries.get(id)
        if entry is not None and self._wall() - entry["used_s"] > _USED_S:
            with self._changing() as entries:
                if id in entries:
                    entries[id]["used_s"] = self._wall()

    def _add(
        self,
        kind: str,
        secret: bytes,
        label: str,
        scope: str,
        ttl_s: float | None,
        *,
        idle_s: float | None = None,
        sessions: list[str] | None = None,
        owner: str | None = None,
        labels: Mapping[str, str] | None = None,
        maker: str | None = None,
    ) -> str:
        id = secrets.token_hex(_ID_BYTES)
        now = self._wall()
        with self._changing() as entries:
            # Codes and logins do not count: they expire soon, and without them no person could get in to make room.
            counted = (TOKEN, LINK)
            if kind in counted and sum(each["kind"] in counted for each in entries.values()) >= self._most:
                raise reached(Busy("there are too many tokens and links"), "tokens", self._most)
            entries[id] = {
                "kind": kind,
                "label": label,
                "scope": scope,
                "digest": secret.hex(),
                "created_s": now,
                "used_s": now,
                "expires_s": None if ttl_s is None else now + ttl_s,
                "idle_s": idle_s,
                "sessions": sessions,
                "owner": owner,
                "labels": dict(labels or {}),
                # Of a token that was made with another: who made that one.
                "maker": entries.get(maker or "", {}).get("maker", maker),
            }
        return id

    @contextmanager
    def _changing(self) -> Iterator[dict[str, Entry]]:
        """Change the entries. Other servers of the home wait meanwhile."""
        assert self._directory is not None
        fd = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            now = self._wall()
            before = _read(self._directory)
            entries = {id: dict(entry) for id, entry in before.items() if not _is_over(entry, now)}
            yield entries
            if entries != before:
                records.write(fd, _FILE, {"v": 1, "tokens": entries})
            self._use(entries)
        finally:
            os.close(fd)

    def _read_if_changed(self) -> None:
        if self._directory is None:
            return
        stamp = self._look()
        if stamp != self._stamp:
            self._use(_read(self._directory))
            self._stamp = stamp

    def _use(self, entries: dict[str, Entry]) -> None:
        self._entries = entries
        for id in self._callers.keys() - entries.keys():
            self._callers.pop(id).revoked.set()

    def _look(self) -> tuple[int, ...]:
        try:
            found = os.stat(os.path.join(self._directory or "", _FILE))
        except FileNotFoundError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size


def described(id: str, entry: Entry) -> dict[str, Any]:
    times = {name: entry[f"{name}_s"] for name in ("created", "used", "expires")}
    return {
        "id": id,
        **{key: entry[key] for key in ("kind", "label", "scope", "sessions", "owner", "labels")},
        **{f"{name}_at": None if at is None else rfc3339(int(at * _NS)) for name, at in times.items()},
    }


def _is_over(entry: Entry, now: float) -> bool:
    expires, idle = entry["expires_s"], entry["idle_s"]
    return (expires is not None and now >= expires) or (idle is not None and now - entry["used_s"] >= idle)


def _read(directory: str) -> dict[str, Entry]:
    """The usable part of the file. A damaged file has no valid token."""
    try:
        tokens = records.read(os.path.join(directory, _FILE))["tokens"]
        return {
            str(id): entry
            for id, entry in tokens.items()
            if {"kind", "digest", "scope", "label", "expires_s", "idle_s", "used_s", "sessions"} <= entry.keys()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


# The servers of a home that run now, for `hold open`.


def announce(directory: str, instance: str, url: str) -> str:
    """Write a note with the address of this server; returns the path of the note."""
    from ..core.processes import start_time

    path = os.path.join(directory, f"at.{instance}.json")
    records.write(None, path, {"v": 1, "url": url, "pid": os.getpid(), "start": start_time(os.getpid())})
    return path


def running(directory: str) -> list[str]:
    """Addresses of the servers that run, the newest first. Notes of servers that were killed are removed."""
    from ..core.processes import same

    found: list[tuple[float, str]] = []
    for name in os.listdir(directory) if os.path.isdir(directory) else ():
        path = os.path.join(directory, name)
        if not (name.startswith("at.") and name.endswith(".json")):
            continue
        try:
            note = records.read(path)
            if same(note["pid"], note["start"]):
                found.append((os.stat(path).st_mtime, str(note["url"])))
            else:
                os.unlink(path)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return [url for _, url in sorted(found, reverse=True)]
