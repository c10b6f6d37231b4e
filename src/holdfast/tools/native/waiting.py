"""The conditions of a wait; input, and waiting for the reaction to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...core.records import TTY
from ...core.vt.text import clean
from ...errors import BadArgument
from ...model import format_cursor
from ...model.options import DURATION, NUMBER, SWITCH
from ...sessions.search import Pattern
from ...sessions.wait import CONDITIONS
from .screens import prompt_row
from .words import IDLE_S, PATTERNS, WAIT_MAX_S

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...model import Typed
    from ...sessions.aio import AsyncSession
    from ...sessions.log import Log
    from ...terminal.screen import Screen


# The conditions of a wait.


# The most of an unfinished line that is searched for a match that begins in its seen part.
_LINE_MAX_BYTES = 64 << 10


def conditions(until: str, pattern: str | None, timeout_s: float, cursor: str | None, log: Log) -> dict[str, Any]:
    """The arguments of the wait for a session; `cursor` is how far the agent has seen its `log`."""
    row = CONDITIONS[until]
    since = cursor or "0"
    value: Any
    if row.takes == SWITCH:
        value = True
        if pattern is not None:
            raise BadArgument(
                "pattern", f"cannot be combined with until={until}", "give until=match to wait for a regex"
            )
    elif row.takes == DURATION:
        value = _number(pattern, IDLE_S if until == "idle" else None, (0, WAIT_MAX_S), PATTERNS[until])
    elif row.takes == NUMBER:
        value = int(_number(pattern, None, (row.low, row.high), PATTERNS[until]))
    else:
        value = pattern
        if pattern is None:
            raise BadArgument("pattern", f"is required with until={until}", f"give {PATTERNS[until]}")
        since = _unmatched(log, pattern, since)
    return {until: value, "since": since, "timeout": timeout_s}


def _unmatched(log: Log, pattern: str, since: str) -> str:
    """A match may begin in the seen part of an unfinished line: such a line is searched from its beginning, unless the
    seen part matches by itself and so does not count."""
    matcher = Pattern(pattern, ignore_case=False)
    seen = log.parse(since)
    begin = dict(seen)
    for stream, at in seen.items():
        # A line of a terminal is what is drawn in the end, not the bytes in sequence.
        if at and stream != TTY:
            line = log.tail(1, stream=stream, limit=_LINE_MAX_BYTES, until=seen).data
            if not line.endswith(b"\n") and not matcher.spans(clean(line).encode()):
                begin[stream] = at - len(line)
    return since if begin == seen else format_cursor(begin)


def _number(given: str | None, default: float | None, bounds: tuple[float, float], wanted: str) -> float:
    try:
        found = default if given is None else float(given)
    except ValueError:
        found = None
    if found is None:
        raise BadArgument("pattern", f"{given!a} is not a number" if given else "is required", f"give {wanted}")
    if not bounds[0] <= found <= bounds[1]:
        raise BadArgument("pattern", f"{given} is not from {bounds[0]} to {bounds[1]}", f"give {wanted}")
    return found


# Input, and waiting for the reaction to it.


# After input, the output of a pipe is complete when it pauses for this long, or for a quarter of the time.
_PIPE_QUIET_S = 0.4
# On a terminal the prompt shows that; it is looked for after this time.
_TERMINAL_QUIET_S = 0.1
# More than this is more than a screen.
_SCREENFUL_BYTES = 64 << 10


async def typed(
    session: AsyncSession,
    text: str | None,
    keys: Sequence[str] | None,
    paste: str | None,
    submit: bool | None,
) -> tuple[Typed, str]:
    """Send one of them, or the end of input if none is given; with a note for the agent."""
    if text is not None and session.tty and submit is not False:
        return await session.submit(text.removesuffix("\n")), ""
    if text is not None:
        bare = not submit and not session.tty and not text.endswith("\n")
        note = "sent without a newline; submit=true adds one" if bare else ""
        return await session.send(text + "\n" if submit else text), note
    if keys is not None:
        return await session.keys(*keys), ""
    if paste is None:
        return await session.eof(), ""
    return await session.paste(paste, submit=bool(submit)), ""


async def settled(session: AsyncSession, cursor: str, wait_s: float, before: Screen | None) -> None:
    """Wait until the reaction is complete, as far as that can be known, at most `wait_s`."""
    until = time.monotonic() + wait_s
    woke = await session.wait(output=True, since=cursor, timeout=wait_s)
    while woke.reason == "output" and (left := until - time.monotonic()) > 0:
        quiet = max(_PIPE_QUIET_S, wait_s / 4) if before is None else _TERMINAL_QUIET_S
        woke = await session.wait(idle=min(quiet, left), timeout=left)
        if woke.reason != "idle" or before is None or await _asks_again(session, before):
            return
        woke = await session.wait(output=True, since=woke.cursor, timeout=max(0.0, until - time.monotonic()))


async def _asks_again(session: AsyncSession, before: Screen) -> bool:
    """Whether the same prompt is there again, or input is asked for."""
    if session.metadata.get("input_state") in ("at_prompt", "needs_input"):
        return True
    after = await session.screen()
    asked = prompt_row(before)
    moved = (after.cursor.row, after.rows[0].cells) != (before.cursor.row, before.rows[0].cells)
    return bool(asked.strip()) and moved and prompt_row(after) == asked


async def scrolled_by(session: AsyncSession, cursor: str, after: Screen) -> bool:
    """Whether more was printed than the screen holds."""
    page = await session.read(cursor, limit=_SCREENFUL_BYTES)
    return page.more or page.data.count(b"\n") >= after.size[0]
