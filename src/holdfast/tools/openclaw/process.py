"""`process`: what an agent does with the runs it has in the background, one function for each action."""

from __future__ import annotations

import asyncio
import re
import time
from typing import TYPE_CHECKING

from ...errors import (
    AmbiguousId,
    BadKey,
    Busy,
    HoldfastError,
    IdentityMismatch,
    NotATty,
    NotFound,
    Removed,
    RunnerGone,
    SessionEnded,
    StdinClosed,
    StillRunning,
    Unreachable,
)
from ...host.finding import PREFIX_MIN_CHARACTERS
from ...model import FINAL_STATES, LOST, STALE, UNREACHABLE
from ...signals.records import Signal
from ...signals.styles import OpenClaw as Style
from ..answer import Answer
from . import reading, rows, runs, settings, texts
from .executing import failed
from .managed import ManagedRun

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from ...host.aio import AsyncSession
    from ...model import Stopped
    from .toolset import OpenClaw

    Action = Callable[[OpenClaw, AsyncSession, dict[str, Any]], Awaitable[Answer]]


_NUMBER = re.compile(r"-?[0-9]+")


async def act(tools: OpenClaw, **asked: Any) -> Answer:
    action, ref = asked["action"], (asked["sessionId"] or "").strip()
    if action not in texts.ACTIONS:
        return failed(texts.BAD_ACTION, "bad-argument")
    if action == "list":
        return await _list(tools)
    if action == "kill" and asked["all"]:
        return await _kill_all(tools)
    if not ref:
        return failed(texts.NO_ID, "bad-argument")
    try:
        session = await _find(tools, ref)
    except AmbiguousId as problem:
        return failed(str(problem), problem.code)
    if session is None or not _is_in_reach(action, session):
        return failed(texts.unknown(action, ref), "not-found")
    name = runs.run_id(session)
    if session.state not in FINAL_STATES and not rows.is_backgrounded(tools, session):
        return failed(texts.not_backgrounded(name), Busy.code, sessionId=name)
    if action in ("write", "kill", "remove") and await rows.is_finalizing(session):
        return failed(texts.finalizing(name), Busy.code, sessionId=name)
    return await _ACTIONS[action](tools, session, asked)


async def _find(tools: OpenClaw, ref: str) -> AsyncSession | None:
    """One of the scope's; what was cleared or removed is there for people only."""
    if ref == "last":
        return None  # a word of people's: the newest may be any
    try:
        session = await tools.find(ref)
    except (NotFound, Removed):
        return await _beginning_with(tools, ref)
    if ref.isdecimal() and session.state in FINAL_STATES:
        return None  # a pid is of somebody who lives
    return None if _is_hidden(tools, session) or runs.METADATA not in session.metadata else session


async def _beginning_with(tools: OpenClaw, ref: str) -> AsyncSession | None:
    """The only one whose id begins so. An id that only lacks the number behind it is that of another, which is gone."""
    if len(ref) < PREFIX_MIN_CHARACTERS:
        return None
    known = {runs.run_id(each): each for each in await rows.with_row(tools)}
    found = [name for name in known if name.startswith(ref) and not _NUMBER.fullmatch(name, len(ref))]
    # Asked last: it takes a look at its records.
    found = [name for name in found if not await rows.was_told_in_its_call(tools, known[name])]
    if len(found) > 1:
        raise AmbiguousId(ref, sorted(found))
    return await known[found[0]].refresh() if found else None


def _is_hidden(tools: OpenClaw, session: AsyncSession) -> bool:
    return tools.notes.get(session.id, rows.ROW) in (rows.CLEARED, rows.REMOVED)


def _is_in_reach(action: str, session: AsyncSession) -> bool:
    over = session.state in FINAL_STATES
    if action == "clear":
        return over
    if action == "kill":
        # Of one that is lost nobody knows what lives.
        return not over or session.state == LOST or bool(session.exit and session.exit.survivors)
    return not over or action in ("poll", "log", "remove")


async def _list(tools: OpenClaw) -> Answer:
    found = []
    for each in await rows.listed(tools):
        try:
            found.append(await rows.row(tools, each))
        except (NotFound, Removed):
            continue  # another process removed it while we looked
    text = "\n".join(map(rows.line, found)) or texts.NO_SESSIONS
    return Answer(text, {"status": "completed", "sessions": found})


# Reading.


async def _poll(tools: OpenClaw, session: AsyncSession, asked: dict[str, Any]) -> Answer:
    deadline = time.monotonic() + settings.poll_ms(asked["timeout"] or 0) / 1000
    while True:
        since = asked["cursor"] or tools.notes.get(session.id, rows.POSITION) or "0"
        screen = await _full_screen(session)
        output = await reading.new_output(session, since, tools.settings.poll_chars, stored=not asked["cursor"])
        left_s = deadline - time.monotonic()
        may_wait = session.state not in (*FINAL_STATES, UNREACHABLE) and left_s > 0
        if not output.text and not output.discarded and may_wait:
            try:
                # Behind what was looked at: half a character is no news.
                await session.wait(output=True, since=output.seen, timeout=left_s)
                continue
            except Unreachable:
                await session.refresh()
        if session.state not in FINAL_STATES:
            await session.refresh()
            if session.state in FINAL_STATES:
                continue
        answer = await _polled(tools, session, since, output, screen)
        await tools.acknowledge(session)
        # From here on nothing waits: who was aborted before was given nothing, and a sibling that was quicker has
        # moved on.
        if asked["cursor"] or (tools.notes.get(session.id, rows.POSITION) or "0") == since:
            if not asked["cursor"] and output.cursor != since:
                tools.notes.put(session.id, rows.POSITION, output.cursor)
            return answer


async def _polled(
    tools: OpenClaw, session: AsyncSession, since: str, output: reading.Output, screen: str | None
) -> Answer:
    name = runs.run_id(session)
    text = output.noted if screen is None or not output.text else screen
    said = [text.rstrip("\r\n")] if text.strip() else [texts.NO_NEW_OUTPUT]
    data: dict[str, Any] = {
        "status": rows.status(session),
        "sessionId": name,
        "name": rows.short_name(session.command),
        "cursor": since,
        "nextCursor": output.cursor,
    }
    if session.state in FINAL_STATES:
        tools.notes.put(session.id, rows.EMPTY_POLLS, None)
        data |= rows.ended_facts(session)
        whole = await reading.aggregated(session, tools.settings.aggregated_chars, tools.notes)
        data |= {"aggregated": whole.text, "totalChars": whole.chars}
        said.append(_how_it_ended(session, name))
        if "survivors" in data:
            said.append(rows.left_behind(session))
        if data["timedOut"]:
            said.append(f"Reason: {data['exitReason']}. {texts.RETRY_GUIDANCE}")
        return Answer("\n\n".join(said), data)
    live = await rows.live_facts(tools, session)
    data |= {**live, "retryInMs": _retry_in_ms(tools, session, empty=not output.text)}
    if session.state == UNREACHABLE:
        said.append(texts.unreachable(name))
    elif session.state == STALE:
        said.append(texts.stale(name, session.pid))
    elif live["waitingForInput"]:
        said.append(texts.input_wait(name, live["idleMs"], live["inputWaitEvidence"]))
    else:
        said.append(texts.STILL_RUNNING)
    if session.state in (UNREACHABLE, STALE):
        data["health"] = session.state
    return Answer("\n\n".join(said), data)


async def _full_screen(session: AsyncSession) -> str | None:
    """What a program that draws on the other screen shows: its redraws say nothing."""
    if session.state in FINAL_STATES or not session.tty or not session.metadata.get("alt_screen"):
        return None
    return Style.harmless((await session.screen()).text)


def _retry_in_ms(tools: OpenClaw, session: AsyncSession, *, empty: bool) -> int:
    before = tools.notes.get(session.id, rows.EMPTY_POLLS) or 0
    count = before + 1 if empty else 0
    if count != before:
        tools.notes.put(session.id, rows.EMPTY_POLLS, count or None)
    return settings.RETRY_MS[min(max(count, 1), len(settings.RETRY_MS)) - 1]


def _how_it_ended(session: AsyncSession, name: str) -> str:
    assert session.exit is not None
    if session.state == LOST:
        return f"{texts.lost(name)} {texts.exited(None, None)}"
    by = f" Stopped for {session.exit.by}." if runs.reason(session) == runs.MANUAL_CANCEL and session.exit.by else ""
    return texts.exited(session.exit.code, session.exit.signal) + by


async def _log(tools: OpenClaw, session: AsyncSession, asked: dict[str, Any]) -> Answer:
    lines, after_exit = await reading.all_lines(session)
    total, offset, limit = len(lines), asked["offset"], asked["limit"]
    if offset is None:
        first = max(0, total - (settings.LOG_LINES if limit is None else limit))
        shown = lines[first:]
    else:
        first = min(offset, total)
        shown = lines[first:] if limit is None else lines[first : first + limit]
    whole = "\n".join(shown)
    cut = len(whole) > settings.LOG_CHARS
    text = whole
    if cut and offset is None:
        first += whole[: -settings.LOG_CHARS].count("\n")
        text = f"{texts.LOG_CUT_BEFORE}\n{whole[-settings.LOG_CHARS :]}"
    elif cut:
        text = whole[: settings.LOG_CHARS]
        text += "\n" + texts.log_cut_behind(first + max(1, text.count("\n")))
    if offset is None and limit is None and total > settings.LOG_LINES:
        text += "\n" + texts.showing_last(len(shown), total)
    over = session.state in FINAL_STATES
    dropped = any(session.dropped_before.values())
    if offset is not None and total and offset >= total:
        text = texts.offset_behind_end(offset, total)
    elif not text:
        text = texts.NO_OUTPUT_RECORDED if over else texts.NO_OUTPUT_YET
    data = {
        "status": rows.status(session),
        "sessionId": runs.run_id(session),
        "total": total,
        "totalLines": total,
        "totalChars": sum(map(len, lines)) + total,
        "firstLine": first,
        "truncated": cut or dropped,
        "exitCode": session.exit.code if session.exit else None,
        "exitSignal": session.exit.signal if session.exit else None,
        **({"afterExit": after_exit} if after_exit else {}),
    }
    if dropped and first == 0:
        text = f"{texts.DISCARDED}\n{text}"
    return Answer(text, data)


# Typing.


async def _write(tools: OpenClaw, session: AsyncSession, asked: dict[str, Any]) -> Answer:
    async def typed() -> str:
        accepted, eof = 0, bool(asked["eof"])
        warnings: list[str] = []
        if asked["data"]:
            done = await session.send(asked["data"])
            accepted = done.accepted
            warnings += done.warnings
        if eof:
            warnings += (await session.eof()).warnings
            if not session.tty:
                tools.notes.put(session.id, rows.INPUT_CLOSED, True)
        return texts.wrote(accepted, runs.run_id(session), eof=eof, tty=session.tty, warnings=warnings)

    return await _typing("write", session, typed)


async def _send_keys(_tools: OpenClaw, session: AsyncSession, asked: dict[str, Any]) -> Answer:
    literal, codes, keys = asked["literal"], asked["hex"] or [], asked["keys"] or []
    if not (literal or codes or keys):
        return failed(texts.NO_KEYS, "bad-argument", sessionId=runs.run_id(session))
    name = runs.run_id(session)

    async def typed() -> str:
        if not session.tty and not keys:
            raw = (literal or "").encode(errors="replace") + b"".join(map(_byte, codes))
            return texts.sent((await session.send(raw)).accepted, name, ())
        tokens = [f"text:{literal}"] if literal else []
        tokens += [f"hex:{_digits(each)}" for each in codes] + [f"key:{each}" for each in keys]
        done = await session.keys(*tokens)
        return texts.sent(done.accepted, name, done.warnings)

    return await _typing("send-keys", session, typed)


async def _submit(_tools: OpenClaw, session: AsyncSession, _asked: dict[str, Any]) -> Answer:
    async def typed() -> str:
        await session.send("\r")
        return texts.submitted(runs.run_id(session))

    return await _typing("submit", session, typed)


async def _paste(_tools: OpenClaw, session: AsyncSession, asked: dict[str, Any]) -> Answer:
    text = asked["text"]
    if not text:
        return failed(texts.NO_PASTE, "bad-argument", sessionId=runs.run_id(session))

    async def typed() -> str:
        if session.tty:
            done = await session.paste(text, bracketed="auto" if asked["bracketed"] else "never")
        else:
            done = await session.send(text)
        return texts.pasted(len(text), runs.run_id(session), done.warnings)

    return await _typing("paste", session, typed)


async def _typing(action: str, session: AsyncSession, typed: Callable[[], Awaitable[str]]) -> Answer:
    name = runs.run_id(session)
    try:
        said = await typed()
    except StdinClosed as problem:
        return failed(texts.not_writable(name), problem.code, sessionId=name)
    except NotATty as problem:
        return failed(texts.needs_pty(name), problem.code, sessionId=name)
    except SessionEnded:
        return failed(texts.unknown(action, name), "not-found", sessionId=name)
    except (RunnerGone, Unreachable) as problem:
        if (await session.refresh()).state in FINAL_STATES:
            return failed(texts.unknown(action, name), "not-found", sessionId=name)
        gone = isinstance(problem, RunnerGone)
        said = texts.stale(name, session.pid) if gone else texts.not_taken(name)
        return failed(said, problem.code, sessionId=name)
    return Answer(said, {"status": "running", "sessionId": name})


def _byte(code: str) -> bytes:
    try:
        return bytes.fromhex(_digits(code))
    except ValueError:
        raise BadKey(code, why="bytes are written as pairs of hexadecimal digits, such as 1b") from None


def _digits(code: str) -> str:
    """`1b`, `0x1b` and `\\x1b` are the same byte."""
    return code.strip().lower().removeprefix("\\x").removeprefix("0x")


# Ending.


async def _kill(tools: OpenClaw, session: AsyncSession, _asked: dict[str, Any]) -> Answer:
    name = runs.run_id(session)
    tools.notes.put(session.id, rows.EMPTY_POLLS, None)
    try:
        stopped = await session.stop(by=tools.owner)
    except IdentityMismatch as problem:
        await session.refresh()
        return failed(texts.not_terminated(name, str(problem)), problem.code, sessionId=name, state=session.state)
    except HoldfastError as problem:
        return failed(texts.not_terminated(name, str(problem)), problem.code, sessionId=name)
    return await _killed(tools, session, stopped)


async def _killed(tools: OpenClaw, session: AsyncSession, stopped: Stopped) -> Answer:
    name = runs.run_id(session)
    data: dict[str, Any] = {"status": "completed", "sessionId": name}
    if session.exit is not None:
        data |= {"exitCode": session.exit.code, "exitSignal": session.exit.signal, "exitReason": runs.reason(session)}
        await tools.acknowledge(session)
    if stopped.survivors:
        data |= {"status": "failed", "error": "still-running", "survivors": [dict(each) for each in stopped.survivors]}
        said = texts.still_there(texts.processes(stopped.survivors))
        return Answer(texts.terminated(name, said), data, error=True)
    outcome = _how_it_ended(session, name) if session.exit is not None else ""
    return Answer(texts.terminated(name, texts.tree_is_empty(outcome).strip()), data)


async def _kill_all(tools: OpenClaw) -> Answer:
    living = await rows.of_scope(tools)
    if not living:
        return Answer(texts.NO_SESSIONS, {"status": "completed", "killed": []})
    answers = await asyncio.gather(*[_kill(tools, each, {}) for each in living])
    error = any(answer.error for answer in answers)
    data = {"status": "failed" if error else "completed", "killed": [answer.data for answer in answers]}
    return Answer("\n".join(answer.text for answer in answers), data, error=error)


async def _clear(tools: OpenClaw, session: AsyncSession, _asked: dict[str, Any]) -> Answer:
    name = runs.run_id(session)
    if session.exit and session.exit.survivors:
        # Without its row nobody could end them.
        left = rows.left_behind(session)
        return failed(f"{texts.unknown('clear', name)}: {left}", StillRunning.code, sessionId=name)
    tools.notes.put(session.id, rows.ROW, rows.CLEARED)
    await tools.acknowledge(session)
    return Answer(texts.cleared(name), {"status": "completed", "sessionId": name})


async def _remove(tools: OpenClaw, session: AsyncSession, _asked: dict[str, Any]) -> Answer:
    name = runs.run_id(session)
    tools.notes.put(session.id, rows.ROW, rows.REMOVED)
    await tools.acknowledge(session)
    if session.state in (STALE, LOST):
        await _acknowledge_all(tools, session)
    if session.state in FINAL_STATES and not (session.exit and session.exit.survivors):
        return Answer(texts.removed(name, stopped=False), {"status": "completed", "sessionId": name})
    await ManagedRun(session, by=tools.owner).begin_cancel()
    return Answer(texts.removed(name, stopped=True), {"status": "completed", "sessionId": name})


async def _acknowledge_all(tools: OpenClaw, session: AsyncSession) -> None:
    """Of a run whose runner is gone a host tells what became of it: let that happen now, and take it off the queue."""
    consumer = tools.consumer()
    await consumer.pending()
    for each in await session.told():
        if isinstance(each, Signal):
            await consumer.ack(each.id)


_ACTIONS: dict[str, Action] = {
    "poll": _poll,
    "log": _log,
    "write": _write,
    "send-keys": _send_keys,
    "submit": _submit,
    "paste": _paste,
    "kill": _kill,
    "clear": _clear,
    "remove": _remove,
}
