"""The settings of this toolset, and the policy that decides whether a command may run."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TYPE_CHECKING

from ...errors import BadArgument
from .spawn import KILL_GRACE_MAX_MS, KILL_GRACE_MS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Any


# The policy: an allow-list or a hook decides, and an approval is bound to the request.


if TYPE_CHECKING:
    Decide = Callable[["Request"], "Verdict | Awaitable[Verdict]"]

_SLUG_CHARACTERS = 8


@dataclass(frozen=True)
class Request:
    """What is to be decided. `id` is a hash of all fields."""

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
    """`approval` is the id of the request that a person approved; it must be this one."""

    approval: str | None = None


@dataclass(frozen=True)
class Deny:
    text: str


@dataclass(frozen=True)
class Pending:
    """A person was asked; the question expires at this time (milliseconds since 1970)."""

    expires_at_ms: int


@dataclass(frozen=True)
class Unavailable:
    """An approval is needed, and no person can be asked."""

    reason: str


Verdict = Allow | Deny | Pending | Unavailable


# A first word that is the name of a program: without expansion, quoting or assignment.
_PROGRAM = re.compile(r"[A-Za-z0-9_./+@%:,-]+")
# A line as far as its programs can be read from its text: what joins two commands, blanks, and words. What redirects,
# groups or expands outside single quotes is none of these, because it may run something that the line does not name.
_PART = re.compile(
    r"""(?xs) (?P<joint> && | \|\| | [|;] ) | [ \t]+
    | (?P<word> (?: \\[^\n\r] | '[^']*' | "(?: \\. | [^"\\$`] )*" | [^\s\\'"$`()<>{}&|;\0] )+ )"""
)


class AllowList:
    """The programs that may run without a question. A pattern with a slash is compared with the path of the program
    (`~/bin/*`, `/usr/bin/git`), one without with the name in the line. A line passes when all its commands can be
    read from its text and each of them passes."""

    def __init__(self, patterns: Sequence[str] = ()) -> None:
        self._patterns = [os.path.expanduser(pattern) for pattern in patterns]

    def __bool__(self) -> bool:
        return bool(self._patterns)

    def has(self, command: str, cwd: str, path: str | None) -> bool:
        """`path` is the search path; None in another place, where only names and full paths count."""
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
    """The first word of each command of the line; empty if they cannot be read from its text."""
    found: list[list[str]] = [[]]
    at = 0
    while at < len(command):
        part = _PART.match(command, at)
        if part is None:
            return []
        if part["joint"]:
            found.append([])
        elif part["word"]:
            found[-1].append(part["word"])
        at = part.end()
    return [words[0] for words in found] if all(found) else []


def by_list(request: Request, allowed: AllowList, path: str | None) -> Verdict | None:
    """`Allow` where the allow-list applies and has every program of the line."""
    strict = request.security == "allowlist" or request.ask == "on-miss"
    if not strict or request.security == "deny" or request.ask == "always" or request.elevated:
        return None
    return Allow() if allowed.has(request.command, request.cwd, path) else None


def without_hook(request: Request, allowed: AllowList) -> Verdict:
    """The verdict of a host without a policy hook, after the allow-list did not allow the command."""
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


# The settings.


POLL_MAX_MS = 30_000
LOG_LINES, LOG_CHARS = 200, 200_000
TAIL_CHARS = 2000
ROWS = 50
NAME_CHARACTERS = 48
# When to poll again, by the number of empty polls in a row.
RETRY_MS = (5000, 10_000, 30_000, 60_000)

_YIELD_MS = 10, 120_000

SECURITY = ("deny", "allowlist", "full")  # from the strictest on
ASK = ("off", "on-miss", "always")  # the last asks most

# By name under `tools.exec`: the variable of the environment, the default, the least and the most.
_NUMBERS = {
    "backgroundMs": ("OPENCLAW_BASH_YIELD_MS", 10_000, *_YIELD_MS),
    "timeoutSec": ("", 1800, 0, 10**9),
    "pendingMaxOutputChars": ("OPENCLAW_BASH_PENDING_MAX_OUTPUT_CHARS", 30_000, 1000, 200_000),
    "maxOutputChars": ("OPENCLAW_BASH_MAX_OUTPUT_CHARS", 200_000, 1000, 200_000),
    "inputWaitIdleMs": ("OPENCLAW_PROCESS_INPUT_WAIT_IDLE_MS", 15_000, 1000, 600_000),
    "cleanupMs": ("OPENCLAW_BASH_JOB_TTL_MS", 1_800_000, 60_000, 10_800_000),
    "killGraceMs": ("", KILL_GRACE_MS, 0, KILL_GRACE_MAX_MS),
}
_OTHERS = ("notifyOnExit", "notifyOnExitEmptySuccess", "pathPrepend", "security", "ask", "allowlist")
_KNOWN = frozenset((*_NUMBERS, *_OTHERS))


class Settings:
    """`given` are openclaw's settings under `tools.exec`; a variable of the environment replaces a default."""

    def __init__(self, given: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ) -> None:
        own = dict(given or {})
        unknown = sorted(set(own) - _KNOWN)
        if unknown:
            raise BadArgument("tools.exec", f"there is no {unknown[0]!a}", "there is " + ", ".join(sorted(_KNOWN)))

        def number(key: str) -> int:
            variable, default, low, high = _NUMBERS[key]
            value = own.get(key, environ.get(variable, default))
            try:
                return min(max(int(value), low), high)
            except (TypeError, ValueError):
                raise BadArgument(key, f"{str(value)[:40]!a} is not a whole number", f"give {low} to {high}") from None

        self.yield_ms = number("backgroundMs")
        self.timeout_s = number("timeoutSec")
        self.poll_chars = number("pendingMaxOutputChars")
        self.aggregated_chars = number("maxOutputChars")
        self.input_wait_ms = number("inputWaitIdleMs")
        self.rows_ms = number("cleanupMs")
        self.kill_grace_ms = number("killGraceMs")
        self.notify_on_exit = _one_of(own, "notifyOnExit", (True, False, "failure"), True)
        self.notify_empty_success = _one_of(own, "notifyOnExitEmptySuccess", (True, False), False)
        self.security = _one_of(own, "security", SECURITY, "full")
        self.ask = _one_of(own, "ask", ASK, "off")
        self.allowlist = AllowList(_patterns(own.get("allowlist") or ()))
        self.path_prepend = [str(each) for each in own.get("pathPrepend") or ()]
        self.oom_score_adj = 0 if environ.get("OPENCLAW_CHILD_OOM_SCORE_ADJ") == "0" else 1000


def _one_of(own: Mapping[str, Any], key: str, allowed: tuple[Any, ...], default: Any) -> Any:
    value = own.get(key, default)
    if value not in allowed:
        raise BadArgument(key, f"{str(value)[:40]!a} is not known", "give " + " or ".join(map(str, allowed)))
    return value


def _patterns(given: object) -> list[str]:
    """Each is text, or an object with a `pattern`, as openclaw stores it."""
    entries = list(given) if isinstance(given, (list, tuple)) else [None]
    found: list[Any] = [each.get("pattern") if isinstance(each, dict) else each for each in entries]
    wrong = [each for each in found if not isinstance(each, str) or not each.strip()]
    if wrong:
        fix = "give a list of program names and path patterns, such as git or /usr/bin/*"
        raise BadArgument("allowlist", f"{str(wrong[0])[:40]!a} is not a pattern", fix)
    return found


def yield_ms(asked: int) -> int:
    low, high = _YIELD_MS
    return min(max(asked, low), high)


def poll_ms(asked: int) -> int:
    return min(max(asked, 0), POLL_MAX_MS)


def stricter(one: str, other: str | None) -> str:
    return min(one, other or one, key=SECURITY.index)


def more_asking(one: str, other: str | None) -> str:
    return max(one, other or one, key=ASK.index)
