"""The numbers of this toolset: defaults, bounds, and the names under which openclaw's users know them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ...errors import BadArgument
from .policy import AllowList
from .spawning import KILL_GRACE_MAX_MS, KILL_GRACE_MS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

TIMEOUT_S = 1800
YIELD_MS, YIELD_MIN_MS, YIELD_MAX_MS = 10_000, 10, 120_000
POLL_MAX_MS = 30_000
POLL_CHARS, AGGREGATED_CHARS = 30_000, 200_000
CHARS_MIN, CHARS_MAX = 1000, 200_000
LOG_LINES, LOG_CHARS = 200, 200_000
TAIL_CHARS = 2000
INPUT_WAIT_MS, INPUT_WAIT_MIN_MS, INPUT_WAIT_MAX_MS = 15_000, 1000, 600_000
ROWS_MS, ROWS_MIN_MS, ROWS_MAX_MS = 1_800_000, 60_000, 10_800_000
ROWS = 50
NAME_CHARACTERS = 48
# Empty polls in a row: when it makes sense to come again.
RETRY_MS = (5000, 10_000, 30_000, 60_000)

SECURITY = ("deny", "allowlist", "full")  # from the strictest on
ASK = ("off", "on-miss", "always")  # the last asks most

_KNOWN = frozenset(
    (
        *("backgroundMs", "timeoutSec", "notifyOnExit", "notifyOnExitEmptySuccess", "cleanupMs", "pathPrepend"),
        *("security", "ask", "allowlist", "maxOutputChars", "pendingMaxOutputChars", "inputWaitIdleMs", "killGraceMs"),
    )
)


class Settings:
    """`given` is what openclaw has under `tools.exec`; a variable of the environment comes before the default."""

    def __init__(self, given: Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ) -> None:
        own = dict(given or {})
        unknown = sorted(set(own) - _KNOWN)
        if unknown:
            raise BadArgument("tools.exec", f"there is no {unknown[0]!a}", "there is " + ", ".join(sorted(_KNOWN)))

        def number(key: str, variable: str, default: int, low: int, high: int) -> int:
            value = own.get(key, environ.get(variable, default))
            try:
                return min(max(int(value), low), high)
            except (TypeError, ValueError):
                raise BadArgument(key, f"{str(value)[:40]!a} is no whole number", f"give {low} to {high}") from None

        self.yield_ms = number("backgroundMs", "OPENCLAW_BASH_YIELD_MS", YIELD_MS, YIELD_MIN_MS, YIELD_MAX_MS)
        self.timeout_s = number("timeoutSec", "", TIMEOUT_S, 0, 10**9)
        self.poll_chars = number(
            "pendingMaxOutputChars", "OPENCLAW_BASH_PENDING_MAX_OUTPUT_CHARS", POLL_CHARS, CHARS_MIN, CHARS_MAX
        )
        self.aggregated_chars = number(
            "maxOutputChars", "OPENCLAW_BASH_MAX_OUTPUT_CHARS", AGGREGATED_CHARS, CHARS_MIN, CHARS_MAX
        )
        self.input_wait_ms = number(
            "inputWaitIdleMs",
            "OPENCLAW_PROCESS_INPUT_WAIT_IDLE_MS",
            INPUT_WAIT_MS,
            INPUT_WAIT_MIN_MS,
            INPUT_WAIT_MAX_MS,
        )
        self.rows_ms = number("cleanupMs", "OPENCLAW_BASH_JOB_TTL_MS", ROWS_MS, ROWS_MIN_MS, ROWS_MAX_MS)
        self.kill_grace_ms = number("killGraceMs", "", KILL_GRACE_MS, 0, KILL_GRACE_MAX_MS)
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
    """Each as text, or as openclaw stores it: an object with a `pattern`."""
    entries = list(given) if isinstance(given, (list, tuple)) else [None]
    found: list[Any] = [each.get("pattern") if isinstance(each, dict) else each for each in entries]
    wrong = [each for each in found if not isinstance(each, str) or not each.strip()]
    if wrong:
        fix = "give a list of program names and path patterns, such as git or /usr/bin/*"
        raise BadArgument("allowlist", f"{str(wrong[0])[:40]!a} is not a pattern", fix)
    return found


def yield_ms(asked: int) -> int:
    return min(max(asked, YIELD_MIN_MS), YIELD_MAX_MS)


def poll_ms(asked: int) -> int:
    return min(max(asked, 0), POLL_MAX_MS)


def stricter(one: str, other: str | None) -> str:
    return min(one, other or one, key=SECURITY.index)


def more_asking(one: str, other: str | None) -> str:
    return max(one, other or one, key=ASK.index)
