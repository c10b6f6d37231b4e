"""`process`: the actions on runs in the background, one function for each."""

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
from ...model import FINAL_STATES, LOST, STALE, UNREACHABLE
from ...sessions.find import PREFIX_MIN_CHARACTERS
from ...signals.lines import Signal
from ..base import Answer
from ..owner_sessions import has_survivors, is_extinct
from . import runs, settings, views, words
from .execute import failed
from .runs import ManagedRun
from .style import DrainStyle as Style

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Any

    from ...model import Stopped
    from ...sessions.aio import AsyncSession
    from .toolset import OpenClaw


if TYPE_CHECKING:
    Action = Callable[["OpenClaw", AsyncSession, dict[str, Any]], Awaitable[Answer]]
    Typing = Callable[["OpenClaw", AsyncSession, dict[str, Any]], Awaitable[str]]


_NUMBER = re.compile(r"-?[0-9]+")


async def act(tools: OpenClaw, **asked: Any) -> Answer:
    action, ref = asked["action"], (asked["sessionId"] or "").strip()
    if action not in words.ACTIONS:
        return failed(words.BAD_ACTION, "bad-argument")
    if action == "list":
        return await _list(tools)
    if action == "kill" and asked["all"]:
        return await _kill_all(tools)
    if not ref:
        return failed(words.NO_ID, "bad-argument")
    try:
        session = await _find(tools, ref)
    except AmbiguousId as problem:
        return failed(str(problem), problem.code)
    if session is None or not _is_in_reach(action, session):
        return failed(words.unknown(action, ref), "not-found")
    name = runs.run_id(session)
    if session.state not in FINAL_STATES and not views.is_backgrounded(tools, session):
        return failed(words.NOT_BACKGROUNDED.format(session=name), Busy.code, sessionId=name)
    if action in ("write", "kill", "remove") and await views.is_finalizing(session):
        return failed(words.FINALIZING.format(session=name), Busy.code, sessionId=name)
    if action in _TYPING:
        return await _type(action, tools, session, asked)
    return await _ACTIONS[action](tools, session, asked)


async def _find(tools: OpenClaw, ref: str) -> AsyncSession | None:
    """A run of this owner that was not cleared or removed."""
    if ref == "last":
        return None  # for people only
    try:
        session = await tools.find(ref)
    except (NotFound, Removed):
        return await _beginning_with(tools, ref)
    if ref.isdecimal() and session.state in FINAL_STATES:
        return None  # a pid means a live process
    hidden = tools.kept.get(session.id, views.ROW) in (views.CLEARED, views.REMOVED)
    return None if hidden or runs.METADATA not in session.metadata else session


async def _beginning_with(tools: OpenClaw, ref: str) -> AsyncSession | None:
    """The only run whose name begins with `ref`. `amber-atlas` does not mean `amber-atlas-2`: it is an older run."""
    if len(ref) < PREFIX_MIN_CHARACTERS:
        return None
    known = {runs.run_id(each): each for each in await views.with_row(tools)}
    found = [name for name in known if name.startswith(ref) and not _NUMBER.fullmatch(name, len(ref))]
    # Last, because it reads records.
    found = [name for name in found if not await views.was_reported_by_its_call(tools, known[name])]
    if len(found) > 1:
        raise AmbiguousId(ref, sorted(found))
    return await known[found[0]].refresh() if found else None


def _is_in_reach(action: str, session: AsyncSession) -> bool:
    over = session.state in FINAL_STATES
    if action == "clear":
        return over
    if action == "kill":
        # Processes of a lost run may still be alive.
        return not over or session.state == LOST or has_survivors(session)
    return not over or action in ("poll", "log", "remove")


async def _list(tools: OpenClaw) -> Answer:
    found = []
    for each in await views.listed(tools):
        try:
            found.append(await views.row(tools, each))
        except (NotFound, Removed):
            continue  # removed meanwhile
    text = "\n".join(map(views.line, found)) or words.NO_SESSIONS
    return Answer(text, {"status": "completed", "sessions": found})


# Reading.


async def _poll(tools: OpenClaw, session: AsyncSession, asked: dict[str, Any]) -> Answer:
    deadline = time.monotonic() + settings.poll_ms(asked["timeout"] or 0) / 1000
    while True:
        since = asked["cursor"] or tools.kept.get(session.id, views.POSITION) or "0"
        screen = await _full_screen(session)
        output = await views.new_output(session, since, tools.settings.poll_chars, stored=not asked["cursor"])
        left_s = deadline - time.monotonic()
        may_wait = session.state not in (*FINAL_STATES, UNREACHABLE) and left_s > 0
        if not output.text and not output.discarded and may_wait:
            try:
                # From the end of what was read: half a character is no new output.
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
        # No await from here on: an aborted poll moves nothing. If a concurrent poll moved the position, read again.
        if asked["cursor"] or (tools.kept.get(session.id, views.POSITION) or "0") == since:
            if not asked["cursor"] and output.cursor != since:
                tools.kept.put(session.id, views.POSITION, output.cursor)
            return answer


async def _polled(
    tools: OpenClaw, session: AsyncSession, since: str, output: views.Output, screen: str | None
) -> Answer:
    name = runs.run_id(session)
    text = output.noted if screen is None or not output.text else screen
    said = [text.rstrip("\r\n")] if text.strip() else [words.NO_NEW_OUTPUT]
    data: dict[str, Any] = {
        "status": views.status(session),
        "sessionId": name,
        "name": views.short_name(session.command),
        "cursor": since,
        "nextCursor": output.cursor,
    }
    if session.state in FINAL_STATES:
        tools.kept.put(session.id, views.EMPTY_POLLS, None)
        data |= views.ended_facts(session)
        whole = await views.aggregated(session, tools.settings.aggregated_chars)
        data |= {"aggregated": whole.text, "totalChars": whole.chars}
        said.append(_how_it_ended(session, name))
        if "survivors" in data:
            said.append(views.left_behind(session))
        if data["timedOut"]:
            said.append(f"Reason: {data['exitReason']}. {words.RETRY_GUIDANCE}")
        return Answer("\n\n".join(said), data)
    live = await views.live_facts(tools, session)
    data |= {**live, "retryInMs": _retry_in_ms(tools, session, empty=not output.text)}
    if session.state == UNREACHABLE:
        said.append(words.UNREACHABLE.format(session=name))
    elif session.state == STALE:
        said.append(words.STALE.format(session=name, pid=session.pid))
    elif live["waitingForInput"]:
        said.append(words.input_wait(name, live["idleMs"], live["inputWaitEvidence"]))
    else:
        said.append(words.STILL_RUNNING)
    if session.state in (UNREACHABLE, STALE):
        data["health"] = session.state
    return Answer("\n\n".join(said), data)


async def _full_screen(session: AsyncSession) -> str | None:
    """The screen of a full-screen program, in the place of its redraws."""
    if session.state in FINAL_STATES or not session.tty or not session.metadata.get("alt_screen"):
        return None
    return Style.harmless((await session.screen()).text)


def _retry_in_ms(tools: OpenClaw, session: AsyncSession, *, empty: bool) -> int:
    before = tools.kept.get(session.id, views.EMPTY_POLLS) or 0
    count = before + 1 if empty else 0
    if count != before:
        tools.kept.put(session.id, views.EMPTY_POLLS, count or None)
    return settings.RETRY_MS[min(max(count, 1), len(settings.RETRY_MS)) - 1]


def _how_it_ended(session: AsyncSession, name: str) -> str:
    assert session.exit is not None
    if session.state == LOST:
        return f"{words.LOST.format(session=name)} {words.exited(None, None)}"
    by = f" Stopped for {session.exit.by}." if runs.reason(session) == runs.MANUAL_CANCEL and session.exit.by else ""
    return words.exited(session.exit.code, session.exit.signal) + by


async def _log(tools: OpenClaw, session: AsyncSession, asked: dict[str, Any]) -> Answer:
    lines, after_exit = await views.all_lines(session)
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
        text = f"{words.LOG_CUT_BEFORE}\n{whole[-settings.LOG_CHARS :]}"
    elif cut:
        text = whole[: settings.LOG_CHARS]
        text += "\n" + words.LOG_CUT_BEHIND.format(offset=first + max(1, text.count("\n")))
    if offset is None and limit is None and total > settings.LOG_LINES:
        text += "\n" + words.SHOWING_LAST.format(shown=len(shown), total=total)
    over = session.state in FINAL_STATES
    dropped = any(session.dropped_before.values())
    if offset is not None and total and offset >= total:
        text = words.OFFSET_BEHIND_END.format(offset=offset, total=total)
    elif not text:
        text = words.NO_OUTPUT_RECORDED if over else words.NO_OUTPUT_YET
    data = {
        "status": views.status(session),
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
        text = f"{words.DISCARDED}\n{text}"
    return Answer(text, data)


# Typing.


async def _type(action: str, tools: OpenClaw, session: AsyncSession, asked: dict[str, Any]) -> Answer:
    name = runs.run_id(session)
    if action == "send-keys" and not (asked["literal"] or asked["hex"] or asked["keys"]):
        return failed(words.NO_KEYS, "bad-argument", sessionId=name)
    if action == "paste" and not asked["text"]:
        return failed(words.NO_PASTE, "bad-argument", sessionId=name)
    try:
        said = await _TYPING[action](tools, session, asked)
    except StdinClosed as problem:
        return failed(words.NOT_WRITABLE.format(session=name), problem.code, sessionId=name)
    except NotATty as problem:
        return failed(words.NEEDS_PTY.format(session=name), problem.code, sessionId=name)
    except SessionEnded:
        return failed(words.unknown(action, name), "not-found", sessionId=name)
    except (RunnerGone, Unreachable) as problem:
        if (await session.refresh()).state in FINAL_STATES:
            return failed(words.unknown(action, name), "not-found", sessionId=name)
        gone = isinstance(problem, RunnerGone)
        said = words.STALE.format(session=name, pid=session.pid) if gone else words.NOT_TAKEN.format(session=name)
        return failed(said, problem.code, sessionId=name)
    return Answer(said, {"status": "running", "sessionId": name})


async def _write(tools: OpenClaw, session: AsyncSession, asked: dict[str, Any]) -> str:
    accepted, eof = 0, bool(asked["eof"])
    warnings: list[str] = []
    if asked["data"]:
        done = await session.send(asked["data"])
        accepted = done.accepted
        warnings += done.warnings
    if eof:
        warnings += (await session.eof()).warnings
        if not session.tty:
            tools.kept.put(session.id, views.INPUT_CLOSED, True)
    return words.wrote(accepted, runs.run_id(session), eof=eof, tty=session.tty, warnings=warnings)


async def _send_keys(_tools: OpenClaw, session: AsyncSession, asked: dict[str, Any]) -> str:
    literal, codes, keys = asked["literal"], asked["hex"] or [], asked["keys"] or []
    if not session.tty and not keys:
        done = await session.send((literal or "").encode(errors="replace") + b"".join(map(_byte, codes)))
    else:
        tokens = [f"text:{literal}"] if literal else []
        tokens += [f"hex:{_digits(each)}" for each in codes] + [f"key:{each}" for each in keys]
        done = await session.keys(*tokens)
    return words.sent(done.accepted, runs.run_id(session), done.warnings)


async def _submit(_tools: OpenClaw, session: AsyncSession, _asked: dict[str, Any]) -> str:
    await session.send("\r")
    return words.SUBMITTED.format(session=runs.run_id(session))


async def _paste(_tools: OpenClaw, session: AsyncSession, asked: dict[str, Any]) -> str:
    text = asked["text"]
    if session.tty:
        done = await session.paste(text, bracketed="auto" if asked["bracketed"] else "never")
    else:
        done = await session.send(text)
    return words.pasted(len(text), runs.run_id(session), done.warnings)


_TYPING: dict[str, Typing] = {"write": _write, "send-keys": _send_keys, "submit": _submit, "paste": _paste}


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
    tools.kept.put(session.id, views.EMPTY_POLLS, None)
    try:
        stopped = await session.stop(by=tools.owner)
    except IdentityMismatch as problem:
        await session.refresh()
        return failed(
            words.NOT_TERMINATED.format(session=name, why=problem), problem.code, sessionId=name, state=session.state
        )
    except HoldfastError as problem:
        return failed(words.NOT_TERMINATED.format(session=name, why=problem), problem.code, sessionId=name)
    return await _killed(tools, session, stopped)


async def _killed(tools: OpenClaw, session: AsyncSession, stopped: Stopped) -> Answer:
    name = runs.run_id(session)
    data: dict[str, Any] = {"status": "completed", "sessionId": name}
    if session.exit is not None:
        data |= {"exitCode": session.exit.code, "exitSignal": session.exit.signal, "exitReason": runs.reason(session)}
        await tools.acknowledge(session)
    if stopped.survivors:
        data |= {"status": "failed", "error": "still-running", "survivors": [dict(each) for each in stopped.survivors]}
        seen = words.STILL_THERE.format(named=words.processes(stopped.survivors))
        return Answer(words.TERMINATED.format(session=name, seen=seen), data, error=True)
    outcome = f"{_how_it_ended(session, name)} " if session.exit is not None else ""
    return Answer(words.TERMINATED.format(session=name, seen=f"{outcome}Its process tree is empty."), data)


async def _kill_all(tools: OpenClaw) -> Answer:
    living = await views.of_scope(tools)
    if not living:
        return Answer(words.NO_SESSIONS, {"status": "completed", "killed": []})
    answers = await asyncio.gather(*[_kill(tools, each, {}) for each in living])
    error = any(answer.error for answer in answers)
    data = {"status": "failed" if error else "completed", "killed": [answer.data for answer in answers]}
    return Answer("\n".join(answer.text for answer in answers), data, error=error)


async def _clear(tools: OpenClaw, session: AsyncSession, _asked: dict[str, Any]) -> Answer:
    name = runs.run_id(session)
    if has_survivors(session):
        # Without its row the agent could not end them.
        left = views.left_behind(session)
        return failed(f"{words.unknown('clear', name)}: {left}", StillRunning.code, sessionId=name)
    tools.kept.put(session.id, views.ROW, views.CLEARED)
    await tools.acknowledge(session)
    return Answer(words.CLEARED.format(session=name), {"status": "completed", "sessionId": name})


async def _remove(tools: OpenClaw, session: AsyncSession, _asked: dict[str, Any]) -> Answer:
    name = runs.run_id(session)
    tools.kept.put(session.id, views.ROW, views.REMOVED)
    await tools.acknowledge(session)
    if session.state in (STALE, LOST):
        await _acknowledge_all(tools, session)
    if is_extinct(session):
        return Answer(words.removed(name, stopped=False), {"status": "completed", "sessionId": name})
    await ManagedRun(session, by=tools.owner).begin_cancel()
    return Answer(words.removed(name, stopped=True), {"status": "completed", "sessionId": name})


async def _acknowledge_all(tools: OpenClaw, session: AsyncSession) -> None:
    """A host records the end of a run whose runner is gone: have that done now, and acknowledge it."""
    consumer = tools.consumer()
    await consumer.pending()
    for each in await session.told():
        if isinstance(each, Signal):
            await consumer.ack(each.id)


_ACTIONS: dict[str, Action] = {
    "poll": _poll,
    "log": _log,
    "kill": _kill,
    "clear": _clear,
    "remove": _remove,
}
