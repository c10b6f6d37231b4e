"""Does a command wait for somebody? Decided from evidence, without I/O; silence alone is none, however long.

`Seen` is what one look at a terminal found, `decide` what it means, `Looks` that two looks must agree. Whoever looks
gathers the evidence: the rows from the screen, the processes from `foreground`, the rest from tracker and termios.
"""

from __future__ import annotations

from .prompts import AT_PROMPT, Patterns, busy, line_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    Verdict = dict[str, Any]

# So long after the last output the first look is worth its cost, and so long after it the second.
LOOK_S = 0.5
# Without proof that somebody reads the terminal, only so much silence makes a pattern or a bell count.
QUIET_S = 5.0
# A session that is at work although nothing is printed is looked at again, less and less often, and then left alone
# until it prints: what it asks, it prints.
_RELOOK_MAX_S = 8.0

# Of processes; the rest are of the screen.
_PROCESS_VETOES = ("running", "disk_wait")


class Seen:
    """What one look found.

    `rows` are the text of the cursor's row, last, and up to three rows above it; `column` counts cells from 0;
    `inverse`: all left of the cursor is in reverse video. `blocked_read`: a process in the foreground sits in a read
    on the terminal, None where that cannot be known. `polled_read`: one sleeps until there is input on it, as line
    editors do and also programs that are busy with something else. `echo_off`: canonical, and the command switched
    the echo off (a terminal that was started without echo says nothing by it). `prompt_mark`: OSC 133 opened a
    prompt, no command was started. `bell`: since the last input. `leader`: the foreground is the command's own group.
    `vetoes`: `running`, `disk_wait` of processes; `spinner`, `synchronized`, `output` of the screen. `stopped`,
    `cpu_idle`: why a quiet one may be hung.
    """

    __slots__ = (
        "bell",
        "blocked_read",
        "column",
        "cpu_idle",
        "cursor_visible",
        "echo_off",
        "inverse",
        "leader",
        "polled_read",
        "prompt_mark",
        "quiet_s",
        "rows",
        "stopped",
        "vetoes",
    )

    def __init__(
        self,
        rows: Sequence[str],
        column: int,
        *,
        quiet_s: float,
        blocked_read: bool | None = None,
        polled_read: bool = False,
        echo_off: bool = False,
        prompt_mark: bool = False,
        bell: bool = False,
        leader: bool = True,
        vetoes: Sequence[str] = (),
        inverse: bool = False,
        cursor_visible: bool = True,
        stopped: str | None = None,
        cpu_idle: bool = False,
    ) -> None:
        self.rows = rows
        self.column = column
        self.quiet_s = quiet_s
        self.blocked_read = blocked_read
        self.polled_read = polled_read
        self.echo_off = echo_off
        self.prompt_mark = prompt_mark
        self.bell = bell
        self.leader = leader
        self.vetoes = vetoes
        self.inverse = inverse
        self.cursor_visible = cursor_visible
        self.stopped = stopped
        self.cpu_idle = cpu_idle


def decide(seen: Seen, patterns: Patterns) -> Verdict:
    """`{state, confidence, kind, evidence, line, secret, hung}`. Only two looks that agree make it an answer."""
    found = patterns.find(
        seen.rows, seen.column, inverse=seen.inverse, cursor_visible=seen.cursor_visible, leader=seen.leader
    )
    evidence = [
        name
        for name, there in (
            ("blocked_read", seen.blocked_read),
            ("polled_read", seen.polled_read),
            ("echo_off", seen.echo_off),
            ("prompt_mark", seen.prompt_mark),
            ("pattern", found),
            ("bell", seen.bell),
        )
        if there
    ]
    vetoes = [*seen.vetoes, *(["busy_marker"] if busy(seen.rows) else [])]
    confidence = _confidence(seen, evidence, vetoes)
    kind = _kind(seen, found)
    if confidence is None:
        at_work = any(veto != "disk_wait" for veto in vetoes) or seen.quiet_s < QUIET_S
        state = "working" if at_work else "quiet"
        kind = None
    else:
        state = "at_prompt" if kind in AT_PROMPT else "needs_input"
    return {
        "state": state,
        "confidence": confidence,
        "kind": kind,
        "evidence": evidence,
        "line": found[1] if found else _line(seen.rows),
        "secret": confidence is not None and kind == "secret",
        "hung": _hung(seen, vetoes) if state == "quiet" else None,
    }


def _confidence(seen: Seen, evidence: list[str], vetoes: list[str]) -> str | None:
    pattern = "pattern" in evidence
    # A screen that says it is at work is believed before anything else: a program may well keep one thread reading its
    # keys all the time.
    if any(veto not in _PROCESS_VETOES for veto in vetoes):
        return None
    proved = seen.echo_off or pattern or seen.prompt_mark
    if (seen.blocked_read and proved) or (seen.blocked_read is None and seen.echo_off and pattern):
        return "high"
    if vetoes:
        return None
    # A shell that marks its prompts says itself that it has one.
    if seen.prompt_mark and seen.leader:
        return "medium"
    # A program with its own line editor polls where another one reads. Alone that says nothing: most programs that fill
    # the screen poll all the time.
    if pattern and seen.polled_read:
        return "medium"
    if (pattern or seen.bell) and seen.quiet_s >= QUIET_S:
        return "medium"
    return "low" if seen.blocked_read or seen.echo_off else None


def _kind(seen: Seen, found: tuple[str, str] | None) -> str | None:
    if seen.echo_off:
        return "secret"
    # Who is in the foreground tells a shell's own prompt from the question of a program it started.
    if seen.prompt_mark and seen.leader:
        return "shell"
    return found[0] if found else None


def _hung(seen: Seen, vetoes: list[str]) -> str | None:
    """Why a quiet session may never go on. A report, never a reason to act."""
    if seen.stopped:
        return seen.stopped
    if "disk_wait" in vetoes:
        return "disk_wait"
    return "no_cpu" if seen.cpu_idle else None


def _line(rows: Sequence[str]) -> str:
    """Where nothing asks in so many words: the last row near the cursor that says anything."""
    return next((line for line in map(line_of, reversed(rows)) if line), "")


class Looks:
    """Two looks LOOK_S apart on an unchanged screen must agree before a state is more than working or quiet.

    `due_s` is how long after a look the next one is worth its cost; None: not before there is new output.
    """

    def __init__(self) -> None:
        self.due_s: float | None = LOOK_S
        self._first: tuple[float, object, tuple[object, ...]] | None = None
        self._patience = LOOK_S

    def output(self) -> None:
        """Something was printed: look at it LOOK_S from now."""
        self.due_s = LOOK_S
        self._patience = LOOK_S

    def see(self, now: float, screen: object, verdict: Verdict, quiet_s: float) -> Verdict:
        """The verdict, once a look at the same `screen` (an offset, say) at least LOOK_S ago came to the same."""
        asks = verdict["state"] in ("at_prompt", "needs_input")
        means = (verdict["state"], verdict["kind"], verdict["secret"])
        first = self._first
        if not asks:
            self._first = None
            self.due_s = self._again(verdict, quiet_s)
            return verdict
        if first is None or first[1:] != (screen, means):
            self._first = first = (now, screen, means)
        elif now - first[0] >= LOOK_S:
            self.due_s = None if verdict["confidence"] == "high" else self._again(verdict, quiet_s)
            return verdict
        self.due_s = first[0] + LOOK_S - now
        return {**verdict, "state": "working", "confidence": None, "kind": None, "secret": False}

    def _again(self, verdict: Verdict, quiet_s: float) -> float | None:
        if quiet_s < QUIET_S:
            return QUIET_S - quiet_s
        if verdict["state"] != "working":
            return None
        # Vetoed after all that silence.
        self._patience *= 2
        return self._patience if self._patience <= _RELOOK_MAX_S else None
