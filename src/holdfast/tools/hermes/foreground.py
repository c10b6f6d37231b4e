"""A command in the foreground, started like any other. It is left running when the caller stops waiting, unless the
user interrupts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from typing import TYPE_CHECKING

from ...core.ending import LIMIT
from ...core.processes import SETTLE_S
from ...errors import HoldfastError, RunnerGone, SessionEnded, Unreachable
from ..owner_sessions import Running, unless
from . import labels, limits, process, words
from .settings import Settings
from .start import LOCAL, TerminalArguments, moved_to, reporting_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from ...sessions.aio import AsyncHoldfast, AsyncSession
    from .toolset import Hermes

    Facts = dict[str, Any]


# Why a call stops waiting.
INTERRUPT = "interrupt"
YIELD = "yield"

# Between the end of a command and the report of it.
_MARGIN_S = 1.0
_SERVERS = re.compile(
    r"""(?x) (?:^|[;&|(\n])\s*
    (?: (?:env|exec|sudo|time|nice|nohup|uv\ run|poetry\ run|npx|pnpm\ exec|yarn\ exec)\s+
      | [A-Za-z_]\w*=(?:"[^"]*"|'[^']*'|[^\s"'])*\s+ )*
    (?: (?:npm|pnpm|yarn|bun)\s+(?:run\s+)?(?:dev|start|serve|watch|preview)\b
      | (?:next|nuxt|astro|remix|vite|webpack)\s+(?:dev|serve|start|preview)\b | vite(?:\s+--|\s*$)
      | webpack-dev-server\b
      | (?:uvicorn|gunicorn|hypercorn|daphne|flask\s+run|fastapi\s+(?:dev|run)|nodemon|http-server|live-server)\b
      | python[0-9.]*\s+-m\s+(?:http\.server|uvicorn|flask|gunicorn)\b | python[0-9.]*\s+\S*manage\.py\s+runserver\b
      | (?:rails|rackup|bin/rails)\s+(?:s|server)\b | php\s+-S\b | jupyter\s+(?:lab|notebook)\b | ng\s+serve\b
      | docker(?:-compose|\s+compose)(?:\s+-\S+(?:\s+(?!up\b)[^\s-]\S*)?)*\s+up\b(?!.*\s(?:-d|--detach)\b)
      | cargo\s+watch\b | tail\s+(?:-\S*f|--follow)
    )"""
)
_ONLY_ASKS = re.compile(r"\s(?:--help|--version)\b")


def is_server(command: str) -> bool:
    """Whether it looks like a command that does not end by itself."""
    return _SERVERS.search(command) is not None and _ONLY_ASKS.search(command) is None


async def in_foreground(tools: Hermes, wanted: TerminalArguments, stop: asyncio.Future[str]) -> Facts:
    """`stop` may be set before there is a command."""
    hf, settings, starting = tools.hf, tools.settings, tools.starting
    server = is_server(wanted.command)
    if server and settings.foreground_guard == "refuse":
        said = words.REFUSED_SERVER.format(command=wanted.command)
        return {"output": "", "exit_code": -1, "error": said, "error_code": "bad-argument", "status": "error"}
    limit, cap = wanted.timeout or limits.timeout_s(), limits.foreground_cap_s()
    wait_s = min(settings.server_wait_s, cap) if server else cap
    if limit <= wait_s:
        # Its deadline comes first: the answer says how that ended it, and a stop may take its time.
        wait_s = limit + settings.grace_s + SETTLE_S + _MARGIN_S

    async def run(place: str, started: Callable[[], None]) -> Facts:
        options, hints = await starting.options(wanted, place)
        if stop.done() and stop.result() == INTERRUPT:
            return {"output": words.INTERRUPTED, "exit_code": 130, "error": None}
        options |= {**reporting_directory(options["shell"]), "notify": "auto", "timeout": limit}
        waited = True
        async with Running(hf, wanted.command, on_start=started, wait=wait_s, **options) as running:
            try:
                outcome = tools.with_progress(running.sessions, running.outcome(min(limit, wait_s)))
                if await unless(stop, outcome) is None:
                    await running.started()  # a start that is under way is not aborted
                session = running.result()
            except Unreachable:
                if running.session is None:
                    raise
                # It runs on without an answer from there, and its end is queued.
                session, waited = await running.session.refresh(), False
        if session is None:
            (session,) = running.sessions
            if stop.result() == INTERRUPT:
                return await _interrupted(session, settings)
            return await _yielded(session, settings, wanted)
        if (session.stopping or {}).get("by") == LIMIT:
            return await _overdue(session, settings, limit)
        if not labels.is_over(session):
            facts = await _yielded(session, settings, wanted)
            return facts | ({"promoted_from_foreground": words.promoted(server, wait_s)} if waited else {})
        moved = moved_to(hf, session)
        if moved is not None:
            starting.place.move(place, moved)
        return await _ended(hf, session, settings, wanted, limit, moved, hints)

    facts, again = await starting.begin(wanted, run)
    return facts | again


async def _interrupted(session: AsyncSession, settings: Settings) -> Facts:
    with contextlib.suppress(HoldfastError):
        # This reply reports the end. If no runner takes this, the command is stopped all the same.
        await session.update(notify="never")
    stopped = await settings.stop(session, "interrupt")
    text, _, _ = await _output(session, settings)
    facts: Facts = {"output": _with_line(text, words.INTERRUPTED), "exit_code": 130, "error": None}
    facts["session_id"] = labels.called(session)
    if stopped.survivors:
        facts["survivors"] = [each["pid"] for each in stopped.survivors]
    if not labels.is_over(session):
        # It survived, or its end is not recorded yet: from now on it is a background process, and its end is due.
        await _to_background(session)
        facts |= {"process_running": True, "hint": words.SURVIVED} if stopped.survivors else process.health(session)
    return facts


async def _overdue(session: AsyncSession, settings: Settings, limit: int) -> Facts:
    """Its time is over and it survived: from now on it is a background process, and its end is due."""
    await _to_background(session)
    text, _, _ = await _output(session, settings)
    facts: Facts = {"output": _with_line(text, words.TIMED_OUT.format(limit_s=limit)), "exit_code": 124, "error": None}
    facts |= {"cause": "overall_timeout", "session_id": labels.called(session), "survivors": [session.pid]}
    return facts | {"process_running": True, "hint": words.SURVIVED}


async def _yielded(session: AsyncSession, settings: Settings, wanted: TerminalArguments) -> Facts:
    # A limit that was not asked for is lifted.
    await _to_background(session, **({"timeout": None} if wanted.timeout is None else {}))
    text, _, _ = await _output(session, settings)
    facts: Facts = {
        "output": text,
        "exit_code": None,
        "error": None,
        "status": "yielded_to_background",
        "session_id": labels.called(session),
        "pid": session.pid,
        **process.place(session),
    }
    if not settings.drains:
        facts |= {"notify_unsupported": words.NO_DELIVERY, "note": words.YIELDED_SILENTLY}
    else:
        facts |= {"notify_on_complete": True, "note": words.YIELDED}
    return process.with_health(facts, session)


async def _to_background(session: AsyncSession, **changes: Any) -> None:
    """From now on its end is queued."""
    yielded = {**session.labels, labels.MODE: labels.YIELDED}
    try:
        await session.update(labels=yielded, notify="exit", **changes)
    except SessionEnded:
        pass  # just now: no call waited any more, so its end is queued
    except (RunnerGone, Unreachable):
        await session.refresh()  # the same; and the answer says so


async def _ended(
    hf: AsyncHoldfast,
    session: AsyncSession,
    settings: Settings,
    wanted: TerminalArguments,
    limit: int,
    moved: str | None,
    hints: list[str],
) -> Facts:
    exit = session.exit
    code = None if exit is None else process.exit_code(exit.code, exit.signal)
    text, cut, characters = await _output(session, settings)
    late = exit is not None and exit.cause == "overall_timeout"
    facts: Facts = {
        "output": _with_line(text, words.TIMED_OUT.format(limit_s=limit)) if late else text,
        "exit_code": 124 if late else code,
        "error": None,
    }
    if late:
        facts["cause"] = "overall_timeout"
    if exit is not None and exit.cause == "lost":
        facts |= {"error": "the command and its supervisor are gone; no exit code was seen", "error_code": "lost"}
    if moved is not None:
        facts["cwd"] = moved
    survivors = process.survivors(exit)
    if survivors:
        hints = [*hints, words.HINT_SURVIVORS]
    if cut:
        facts |= {
            "output_total_chars": characters,
            "truncation_note": words.READ_THE_REST.format(id=labels.called(session)),
        }
        facts |= {"full_output_path": _log_path(hf, session)} if session.place == LOCAL else {}
    if cut or survivors or late:
        facts["session_id"] = labels.called(session)
    meaning = None if late else process.meaning(wanted.command, code)
    facts |= {"exit_code_meaning": meaning} if meaning else {}
    return facts | survivors | ({"hint": "; ".join(hints)} if hints else {})


async def _output(session: AsyncSession, settings: Settings) -> tuple[str, bool, int]:
    """The shown part, whether something is left out, and how many characters there are."""
    gone = sum(session.dropped_before.values())
    whole = await session.text()
    whole = whole if gone else process.without_noise(whole)
    total = gone + len(whole)
    if gone and "\n" in whole[:-1]:
        # It was dropped by bytes: the first line may be only the end of one.
        whole = whole.partition("\n")[2]
    text, cut = process.window(await process.aside(session, lambda: settings.shown(whole)))
    return (f"{words.DROPPED.format(count=gone)}\n{text}", True, total) if gone else (text, cut, total)


def _log_path(hf: AsyncHoldfast, session: AsyncSession) -> str:
    """The file with all bytes, or the directory if there are several."""
    directory = hf.home.session(session.id)
    stream = "tty." if session.tty else "stdout."
    files = [name for name in os.listdir(directory) if name.startswith(stream)]
    return os.path.join(directory, files[0]) if len(files) == 1 else directory


def _with_line(text: str, line: str) -> str:
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}"
