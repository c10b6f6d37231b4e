"""Input, and what to wait for afterwards."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from . import screens

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...host.aio import AsyncSession
    from ...model import Typed
    from ...terminal.screen import Screen

# After input, output of a pipe that paused for so long, or for a quarter of the time, has said what there is to say.
_PIPE_QUIET_S = 0.4
# On a terminal it is the prompt that tells; after so long it is looked for.
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
    """One of them, or the end of input where none is given; and what the agent should know about it."""
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
    """Until what came back is complete, as far as that can be known, at most so long."""
    until = time.monotonic() + wait_s
    woke = await session.wait(output=True, since=cursor, timeout=wait_s)
    while woke.reason == "output" and (left := until - time.monotonic()) > 0:
        quiet = max(_PIPE_QUIET_S, wait_s / 4) if before is None else _TERMINAL_QUIET_S
        woke = await session.wait(idle=min(quiet, left), timeout=left)
        if woke.reason != "idle" or before is None or await _asks_again(session, before):
            return
        woke = await session.wait(output=True, since=woke.cursor, timeout=max(0.0, until - time.monotonic()))


async def _asks_again(session: AsyncSession, before: Screen) -> bool:
    """Does the prompt stand there that stood there before, or is somebody asked to type?"""
    if session.metadata.get("input_state") in ("at_prompt", "needs_input"):
        return True
    after = await session.screen()
    asked = screens.prompt(before)
    moved = (after.cursor.row, after.rows[0].cells) != (before.cursor.row, before.rows[0].cells)
    return bool(asked.strip()) and moved and screens.prompt(after) == asked


async def scrolled_by(session: AsyncSession, cursor: str, after: Screen) -> bool:
    """Is the screen too small for what was printed?"""
    page = await session.read(cursor, limit=_SCREENFUL_BYTES)
    return page.more or page.data.count(b"\n") >= after.size[0]
