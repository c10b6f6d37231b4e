"""A command that its caller waits for: started like any other, and left running when the caller stops waiting."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
from typing import TYPE_CHECKING

from ...errors import HoldfastError, RunnerGone, SessionEnded, SpawnError, Unreachable
from ...model import UNREACHABLE
from ...runner.causes import LIMIT
from ...runner.ladder import SETTLE_S
from . import limits, scope, shell, texts, views
from .place import LOCAL
from .racing import INTERRUPT

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any

    from ...host.aio import AsyncHoldfast, AsyncSession
    from .racing import Race
    from .settings import Settings
    from .starting import Starting, Wanted

    Facts = dict[str, Any]

# Between the end of a command and the word of it.
_MARGIN_S = 1.0
# So long after its limit a command may be on its way out before its runner is looked at.
_OVERDUE_S = 0.1
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
    """Does it look like something that does not end by itself?"""
    return _SERVERS.search(command) is not None and _ONLY_ASKS.search(command) is None


async def in_foreground(hf: AsyncHoldfast, starting: Starting, settings: Settings, wanted: Wanted, race: Race) -> Facts:
    wanted.check()
    server = is_server(wanted.command)
    if server and settings.foreground_guard == "refuse":
        said = texts.refused_server(wanted.command)
        return {"output": "", "exit_code": -1, "error": said, "error_code": "bad-argument", "status": "error"}
    limit, cap = wanted.timeout or limits.timeout_s(), limits.foreground_cap_s()
    wait_s = min(settings.server_wait_s, cap) if server else cap
    if limit <= wait_s:
        # Its deadline comes first: how that ended it is the answer, and it may take as long as a stop may.
        wait_s = limit + settings.grace_s + SETTLE_S + _MARGIN_S

    async def begin(place: str, started: Callable[[], None]) -> Facts:
        options, hints = await starting.options(wanted, place)
        if race.is_interrupted:
            return {"output": texts.INTERRUPTED, "exit_code": 130, "error": None}
        program = options["shell"]
        directory = shell.LastDirectory(program) if place == LOCAL else shell.LastDirectoryAway(hf, program)
        try:
            options |= {**directory.options, "notify": "auto", "timeout": limit}
            began: asyncio.Future[AsyncSession] = asyncio.get_running_loop().create_future()
            began.add_done_callback(lambda _: started())
            waited = True
            try:
                work = hf.run(wanted.command, wait=wait_s, started=began.set_result, **options)
                outcome = await race.run(_in_reach(work, began, min(limit, wait_s)), began)
            except Unreachable:
                if not began.done():
                    raise
                # It goes on, and its end is told: nobody waits for it there any more.
                outcome, waited = await began.result().refresh(), False
            if outcome == INTERRUPT:
                return await _interrupted(began.result(), settings)
            if not isinstance(outcome, str) and (outcome.stopping or {}).get("by") == LIMIT:
                return await _overdue(outcome, settings, limit)
            if isinstance(outcome, str) or not scope.is_over(outcome):
                facts = await _yielded(began.result(), settings, wanted)
                if not isinstance(outcome, str) and waited:
                    facts["promoted_from_foreground"] = texts.promoted(server, wait_s)
                return facts
            moved = directory.moved(outcome)
            if moved is not None:
                starting.place.move(place, moved)
            return await _ended(hf, outcome, settings, wanted, limit, moved, hints)
        finally:
            directory.close()

    try:
        async with starting.alone() as started:
            await starting.must_have_room()
            facts, recreated = await starting.place.begin(lambda place: begin(place, started))
    except SpawnError as problem:
        starting.lost_directory(problem, wanted)
        raise
    return facts | ({"environment_recreated": True} if recreated else {})


async def _in_reach(
    work: Coroutine[Any, Any, AsyncSession], began: asyncio.Future[AsyncSession], limit_s: float
) -> AsyncSession:
    """What comes of the run. Its runner keeps the limit; Unreachable where none answers when that is over."""
    running = asyncio.ensure_future(work)
    try:
        done, _ = await asyncio.wait([running], timeout=limit_s + _OVERDUE_S)
        while not done:
            session = began.result() if began.done() else None
            if session is not None and (await session.refresh()).state == UNREACHABLE:
                raise Unreachable(session.id, session.runner_pid, limit_s)
            done, _ = await asyncio.wait([running], timeout=_OVERDUE_S)
        return running.result()
    finally:
        if not running.done():
            running.cancel()
            await asyncio.wait([running])


async def _interrupted(session: AsyncSession, settings: Settings) -> Facts:
    with contextlib.suppress(HoldfastError):
        # This reply tells it. Without a runner that takes this, it is stopped all the same.
        await session.update(notify="never")
    stopped = await settings.stop(session, "interrupt")
    text, _, _ = await _output(session, settings)
    facts: Facts = {"output": _with_line(text, texts.INTERRUPTED), "exit_code": 130, "error": None}
    facts["session_id"] = scope.called(session)
    if stopped.survivors:
        facts["survivors"] = [each["pid"] for each in stopped.survivors]
    if not scope.is_over(session):
        # It withstood, or nobody has recorded its end: from now on it is one of the background, and its end is still
        # to be told.
        await _go_on(session)
        facts |= {"process_running": True, "hint": texts.WITHSTOOD} if stopped.survivors else views.health(session)
    return facts


async def _overdue(session: AsyncSession, settings: Settings, limit: int) -> Facts:
    """Its time is over, and it withstood: from now on it is one of the background, and its end is still to be told."""
    await _go_on(session)
    text, _, _ = await _output(session, settings)
    facts: Facts = {"output": _with_line(text, texts.timed_out(limit)), "exit_code": 124, "error": None}
    facts |= {"cause": "overall_timeout", "session_id": scope.called(session), "survivors": [session.pid]}
    return facts | {"process_running": True, "hint": texts.WITHSTOOD}


async def _yielded(session: AsyncSession, settings: Settings, wanted: Wanted) -> Facts:
    # A limit that nobody asked for is lifted.
    await _go_on(session, **({"timeout": None} if wanted.timeout is None else {}))
    text, _, _ = await _output(session, settings)
    facts: Facts = {
        "output": text,
        "exit_code": None,
        "error": None,
        "status": "yielded_to_background",
        "session_id": scope.called(session),
        "pid": session.pid,
        **views.place(session),
    }
    if not settings.drains:
        facts |= {"notify_unsupported": texts.NOBODY_LISTENS, "note": texts.YIELDED_SILENTLY}
    else:
        facts |= {"notify_on_complete": True, "note": texts.YIELDED}
    return views.with_health(facts, session)


async def _go_on(session: AsyncSession, **changes: Any) -> None:
    """Its end is told from now on."""
    labels = {**session.labels, scope.MODE: scope.YIELDED}
    try:
        await session.update(labels=labels, notify="exit", **changes)
    except SessionEnded:
        pass  # just now: nobody waited any more, and so its end is told
    except (RunnerGone, Unreachable):
        await session.refresh()  # the same; and that it is so is told too


async def _ended(
    hf: AsyncHoldfast,
    session: AsyncSession,
    settings: Settings,
    wanted: Wanted,
    limit: int,
    moved: str | None,
    hints: list[str],
) -> Facts:
    exit = session.exit
    code = None if exit is None else views.exit_code(exit.code, exit.signal)
    text, cut, characters = await _output(session, settings)
    late = exit is not None and exit.cause == "overall_timeout"
    facts: Facts = {
        "output": _with_line(text, texts.timed_out(limit)) if late else text,
        "exit_code": 124 if late else code,
        "error": None,
    }
    if late:
        facts["cause"] = "overall_timeout"
    if exit is not None and exit.cause == "lost":
        facts |= {"error": "the command and its supervisor are gone; no exit code was seen", "error_code": "lost"}
    if moved is not None:
        facts["cwd"] = moved
    survivors = views.survivors(exit)
    if survivors:
        hints = [*hints, texts.HINT_SURVIVORS]
    if cut:
        facts |= {"output_total_chars": characters, "truncation_note": texts.read_the_rest(scope.called(session))}
        facts |= {"full_output_path": _log_path(hf, session)} if session.place == LOCAL else {}
    if cut or survivors or late:
        facts["session_id"] = scope.called(session)
    meaning = None if late else views.meaning(wanted.command, code)
    facts |= {"exit_code_meaning": meaning} if meaning else {}
    return facts | survivors | ({"hint": "; ".join(hints)} if hints else {})


async def _output(session: AsyncSession, settings: Settings) -> tuple[str, bool, int]:
    """As much of it as is shown, whether that is not all, and how much there is."""
    gone = sum(session.dropped_before.values())
    whole = await session.text()
    whole = whole if gone else views.without_noise(whole)
    total = gone + len(whole)
    if gone and "\n" in whole[:-1]:
        # It was dropped by bytes: of the line that it begins with, only the end may be left.
        whole = whole.partition("\n")[2]
    long = len(whole) >= limits.LONG_CHARS
    text, cut = views.window(await asyncio.to_thread(settings.shown, whole) if long else settings.shown(whole))
    return (f"{texts.dropped(gone)}\n{text}", True, total) if gone else (text, cut, total)


def _log_path(hf: AsyncHoldfast, session: AsyncSession) -> str:
    """The file with all bytes, or the directory where there are several."""
    directory = hf.home.session(session.id)
    stream = "tty." if session.tty else "stdout."
    files = [name for name in os.listdir(directory) if name.startswith(stream)]
    return os.path.join(directory, files[0]) if len(files) == 1 else directory


def _with_line(text: str, line: str) -> str:
    return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}{line}"
