"""Whether a command may run: an allow-list or a hook decides, and an approval is bound to what was asked."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    Decide = Callable[["Request"], "Verdict | Awaitable[Verdict]"]

_SLUG_CHARACTERS = 8


@dataclass(frozen=True)
class Request:
    """What somebody decides about. `id` is made of all of it: whatever differs is another request."""

    command: str
    cwd: str
    env_names: tuple[str, ...]
    place: str
    elevated: bool
    security: str
    ask: str

    @property
    def id(self) -> str:
        parts = [self.command, self.cwd, self.env_names, self.place, self.elevated, self.security, self.ask]
        return sha256(json.dumps(parts).encode()).hexdigest()[:32]

    @property
    def slug(self) -> str:
        return self.id[:_SLUG_CHARACTERS]


@dataclass(frozen=True)
class Allow:
    """`approval` is the id of the request that a person approved; it has to be this one."""

    approval: str | None = None


@dataclass(frozen=True)
class Deny:
    text: str


@dataclass(frozen=True)
class Pending:
    """A person was asked, and has until then (milliseconds since 1970)."""

    expires_at_ms: int


@dataclass(frozen=True)
class Unavailable:
    """Somebody would have to approve it, and nobody can be asked."""

    reason: str


Verdict = Allow | Deny | Pending | Unavailable


# A first word that names its program by itself: nothing in it is expanded, quoted or assigned.
_PROGRAM = re.compile(r"[A-Za-z0-9_./+@%:,-]+")
# Outside quotes these redirect, group, expand or run something that the line does not name.
_UNCLEAR = frozenset("$`()<>{}\n\r\0")
_JOINTS = ("&&", "||", "|", ";")


class AllowList:
    """Which programs may run without anybody being asked. A pattern with a slash is compared with the path of the
    program (`~/bin/*`, `/usr/bin/git`), one without with the name that was called. A line passes when each of its
    commands does, and when all of them can be told from its text."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = [os.path.expanduser(pattern) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def has(self, command: str, cwd: str, path: str | None) -> bool:
        """`path` is where programs are looked for; None in another place, where only names and full paths count."""
        programs = _programs(command)
        return bool(programs) and all(self._has(program, cwd, path) for program in programs)

    def _has(self, program: str, cwd: str, path: str | None) -> bool:
        if not _PROGRAM.fullmatch(program):
            return False
        called = None if "/" in program else program
        if called is None:
            found = os.path.normpath(os.path.join(cwd, program)) if cwd or program.startswith("/") else None
        else:
            found = None if path is None else shutil.which(called, path=path)
        return any(
            found is not None and fnmatchcase(found, pattern) if "/" in pattern else pattern == called
            for pattern in self._patterns
        )


def _programs(command: str) -> list[str]:
    """The first word of each command of the line; empty where that cannot be told."""
    found: list[list[str]] = [[]]
    at, within_word = 0, False
    while at < len(command):
        char = command[at]
        joint = next((each for each in _JOINTS if command.startswith(each, at)), None)
        if joint is not None or char in " \t":
            within_word = False
            if joint is not None:
                found.append([])
            at += len(joint or char)
            continue
        if char in _UNCLEAR or char == "&":
            return []
        end = _end_of_part(command, at)
        if end is None:
            return []
        if within_word:
            found[-1][-1] += command[at:end]
        else:
            found[-1].append(command[at:end])
        within_word, at = True, end
    return [words[0] for words in found] if all(found) else []


def _end_of_part(command: str, at: int) -> int | None:
    """Behind one character, escaped character or quoted part of a word; None where it is not closed, or expands."""
    if command[at] == "\\":
        return at + 2 if at + 1 < len(command) and command[at + 1] not in "\n\r" else None
    if command[at] == "'":
        closing = command.find("'", at + 1)
        return closing + 1 if closing > 0 else None
    if command[at] != '"':
        return at + 1
    at += 1
    while at < len(command) and command[at] not in '"$`':
        at += 2 if command[at] == "\\" else 1
    return at + 1 if at < len(command) and command[at] == '"' else None


def by_list(request: Request, allowed: AllowList, path: str | None) -> Verdict | None:
    """What the allow-list lets pass without anybody being asked; None where it does not."""
    strict = request.security == "allowlist" or request.ask == "on-miss"
    if not strict or request.security == "deny" or request.ask == "always" or request.elevated:
        return None
    return Allow() if allowed.has(request.command, request.cwd, path) else None


def without_hook(request: Request, allowed: AllowList) -> Verdict:
    """Where the host has no policy hook, for what the allow-list did not let pass."""
    if request.security == "deny":
        return Deny("exec was not allowed: its security is deny; nothing has run.")
    if request.elevated:
        return Unavailable("elevated has to be permitted by a policy hook, and this host has none; leave elevated out")
    if request.security == "full" and request.ask == "off":
        return Allow()
    if allowed and request.ask == "off":
        return Deny("exec was not allowed: the allow-list does not have every program of this line; nothing has run.")
    asked = f"security is {request.security}, ask is {request.ask}"
    listed = "the allow-list does not have every program of this line" if allowed else "the allow-list is empty"
    return Unavailable(f"{asked}, this host has no policy hook, and {listed}")
