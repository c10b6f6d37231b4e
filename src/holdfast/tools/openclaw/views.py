"""A run as the tools show it: its output as text for a model, and its row in a list."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...core import clock, processes
from ...errors import OffsetAhead
from ...model import FINAL_STATES, PENDING, RUNNING, STALE, UNREACHABLE, format_cursor
from ...signals.lines import Note
from ...terminal.text import AgentText
from ..owner_sessions import has_survivors
from . import runs, settings, words
from .runs import SCOPE_LABEL, at_ms, scope_label
from .style import DrainStyle as Style

if TYPE_CHECKING:
    from typing import Any

    from ...model import Snapshot
    from ...sessions.aio import AsyncSession
    from .toolset import OpenClaw


# Output: what is new since a cursor, its end, or all of it in lines.


# A poll looks at no more than this many bytes of each stream; escape sequences count as bytes.
_LOOK_BYTES = 512 << 10


@dataclass
class Output:
    """`cursor` is where the next poll continues. `seen` is the end of what was read: between the two is an unfinished
    character or escape sequence."""

    text: str
    cursor: str
    seen: str
    omitted: bool = False
    discarded: bool = False
    chars: int = 0

    @property
    def noted(self) -> str:
        """The text after the notes about what is missing."""
        notes = [words.DISCARDED] * self.discarded + [words.OMITTED] * self.omitted
        return "\n".join([*notes, *([self.text] if self.text else [])])


async def _ends(session: AsyncSession) -> dict[str, int]:
    """The end of the command's output so far. What survivors print comes after it."""
    if session.state not in FINAL_STATES:
        return dict(session.ends)
    return dict(await runs.ends_of(session) or session.ends)


async def new_output(session: AsyncSession, since: str, cap: int, *, stored: bool = False) -> Output:
    """The output after a cursor: the newest `cap` characters of each stream. A cursor that we stored is never refused:
    one beyond the end means the end."""
    ends, final = await _ends(session), session.state in FINAL_STATES
    at = runs.offsets(since, ends)
    if stored:
        at = {stream: min(offset, ends[stream]) for stream, offset in at.items()}
    for stream, offset in at.items():
        if offset > ends[stream]:
            raise OffsetAhead(stream, offset, ends[stream])
    begin = {stream: max(at[stream], end - _LOOK_BYTES) for stream, end in ends.items()}
    discarded = any(at[stream] < session.dropped_before.get(stream, 0) for stream in ends)
    omitted = any(begin[stream] > max(at[stream], session.dropped_before.get(stream, 0)) for stream in ends)
    pieces, finished = await _read(session, begin, ends, flush=final)
    room = dict.fromkeys(ends, cap)
    shown: list[str] = []
    for stream, piece in reversed(pieces):
        kept = piece[-room[stream] :] if room[stream] else ""
        omitted = omitted or len(piece) > len(kept)
        room[stream] -= len(kept)
        shown.append(kept)
    text = Style.harmless("".join(reversed(shown)))
    cursor = format_cursor(ends if final else finished)
    return Output(text, cursor, format_cursor(ends), omitted and bool(text), discarded, len(text))


async def aggregated(session: AsyncSession, cap: int) -> Output:
    """The last `cap` characters of all output; `chars` counts everything that is retained."""
    output = await new_output(session, "0", cap)
    if output.omitted or len(output.text) > cap:
        ends = await _ends(session)
        total = len(await _text(session, dict.fromkeys(ends, 0), ends))
        return replace(output, text=output.text[-cap:], omitted=True, chars=total)
    return output


async def last_chars(session: AsyncSession, chars: int) -> tuple[str, bool]:
    """The end of the output, and whether there is more before it."""
    ends = await _ends(session)
    begin = {stream: max(0, end - 4 * chars) for stream, end in ends.items()}
    text = await _text(session, begin, ends)
    return Style.harmless(text[-chars:]), len(text) > chars or any(begin.values())


async def all_lines(session: AsyncSession) -> tuple[list[str], int]:
    """Every retained line, and how many of them survivors printed after the exit."""
    ends = await _ends(session)
    lines = _lines(await _text(session, dict.fromkeys(ends, 0), ends))
    later = {stream: end for stream, end in session.ends.items() if end > ends.get(stream, 0)}
    if session.state not in FINAL_STATES or not later:
        return lines, 0
    after = _lines(await _text(session, {stream: ends.get(stream, 0) for stream in later}, later))
    return [*lines, words.AFTER_EXIT, *after], len(after)


async def _text(session: AsyncSession, begin: dict[str, int], ends: dict[str, int]) -> str:
    return "".join(text for _, text in (await _read(session, begin, ends, flush=True))[0])


async def _read(
    session: AsyncSession, begin: dict[str, int], ends: dict[str, int], *, flush: bool
) -> tuple[list[tuple[str, str]], dict[str, int]]:
    """The clean text of each piece of output in order of arrival, and the offsets up to which it is finished. With
    `flush` also what is unfinished."""
    texts: dict[str, AgentText] = {}
    pieces = []
    async for stream, offset, data in runs.chunks(session, begin, ends):
        pieces.append((stream, texts.setdefault(stream, AgentText(offset)).feed(data)))
    if flush:
        pieces += [(stream, text.flush()) for stream, text in texts.items()]
    return pieces, {stream: texts[stream].ground if stream in texts else end for stream, end in ends.items()}


def _lines(text: str) -> list[str]:
    lines = Style.harmless(text.replace("\r\n", "\n")).split("\n")
    return lines if lines[-1] else lines[:-1]


# Rows: which runs are listed, and the facts of each.


# The topics under which facts about a session are kept.
ROW, POSITION, EMPTY_POLLS, INPUT_CLOSED = "row", "position", "empty", "eof"
# Values of ROW. A run has no row after its call reported its end, or after the agent cleared or removed it. A call that
# yielded just as the run ended keeps its row.
REPORTED, CLEARED, REMOVED, YIELDED = "told", "cleared", "removed", "yielded"


async def listed(tools: OpenClaw) -> list[AsyncSession]:
    """Newest first: the runs in the background, and those that ended there lately."""
    found = await with_row(tools)
    running = [each for each in found if each.state not in FINAL_STATES and is_backgrounded(tools, each)]
    since = now_ms() - tools.settings.rows_ms
    over = [each for each in found if each.state in FINAL_STATES and runs.reason(each) != runs.SPAWN_ERROR]
    over = [each for each in over if ended_at_ms(each) >= since or has_survivors(each)]
    recent = sorted([each for each in over if not await was_reported_by_its_call(tools, each)], key=ended_at_ms)
    recent = recent[-settings.ROWS :]
    return sorted([*running, *recent], key=lambda each: (each.created_at or "", each.id), reverse=True)


async def with_row(tools: OpenClaw) -> list[AsyncSession]:
    """All runs whose row was not taken away. `was_reported_by_its_call` excludes more."""
    hidden = {id for id, why in tools.kept.all(ROW).items() if why != YIELDED}
    return [each for each in await of_scope(tools, all=True) if each.id not in hidden]


async def was_reported_by_its_call(tools: OpenClaw, session: AsyncSession) -> bool:
    """Whether the call that started the run reported its end: its caller is alive, or the runner recorded it."""
    if session.state not in FINAL_STATES:
        return False
    if runs.BACKGROUND_LABEL in session.labels or has_survivors(session):
        return False
    if tools.kept.get(session.id, ROW) == YIELDED:
        return False
    return not runs.is_backgrounded(session) or any(
        isinstance(each, Note) and each.answered is not None for each in await session.told()
    )


def is_backgrounded(tools: OpenClaw, session: Snapshot) -> bool:
    """Whether its call returned before its end, or its caller died."""
    return runs.is_backgrounded(session) or tools.kept.get(session.id, ROW) == YIELDED


async def of_scope(tools: OpenClaw, *, all: bool = False) -> list[AsyncSession]:
    return await tools.listed(ended=all, labels={SCOPE_LABEL: scope_label(tools.owner)})


async def row(tools: OpenClaw, session: AsyncSession) -> dict[str, Any]:
    tail, more = await last_chars(session, settings.TAIL_CHARS)
    found: dict[str, Any] = {
        "sessionId": runs.run_id(session),
        "status": status(session),
        "startedAt": at_ms(session.started_at),
        "runtimeMs": runtime_ms(session),
        "cwd": session.cwd,
        "command": session.command,
        "name": short_name(session.command),
        "tail": tail,
        "truncated": more or any(session.dropped_before.values()),
    }
    if session.state in FINAL_STATES:
        return {**found, **ended_facts(session), "endedAt": at_ms(session.ended_at)}
    return {**found, "pid": session.pid, **await live_facts(tools, session), "health": health(session)}


def line(found: dict[str, Any]) -> str:
    marks = ["overall-timeout"] if found.get("exitReason") == runs.OVERALL_TIMEOUT else []
    marks += ["input-wait"] if found.get("waitingForInput") else []
    said = "".join(f" [{mark}]" for mark in marks)
    took = words.duration(found["runtimeMs"])
    return f"{found['sessionId']} {found['status']:<9} {took}{said} :: {found['name']}"


async def live_facts(tools: OpenClaw, session: AsyncSession) -> dict[str, Any]:
    """The facts of a live run."""
    spec = await runs.limits(session)
    writable = session.tty or (spec.get("stdin") == "open" and spec.get("input_bytes") is None)
    # Without a runner there is nothing to write through.
    writable = writable and session.state != STALE and not tools.kept.get(session.id, INPUT_CLOSED)
    last = at_ms(session.last_output_at)
    idle_ms = now_ms() - (last or at_ms(session.started_at) or now_ms())
    blocked = session.needs_input is not None
    quiet = writable and idle_ms >= tools.settings.input_wait_ms
    facts: dict[str, Any] = {
        "stdinWritable": writable,
        "waitingForInput": bool(writable and (blocked or quiet)),
        "idleMs": max(0, idle_ms),
        "lastOutputAt": last,
        "timeoutAtMs": timeout_at_ms(session, spec),
    }
    if facts["waitingForInput"]:
        facts["inputWaitEvidence"] = "blocked" if blocked else "idle"
    return facts


def ended_facts(session: Snapshot) -> dict[str, Any]:
    assert session.exit is not None
    exit = runs.exit_of(session)
    facts: dict[str, Any] = {
        "exitCode": exit.exit_code,
        "exitSignal": exit.exit_signal,
        "exitReason": exit.reason,
        "timedOut": exit.timed_out,
        "noOutputTimedOut": exit.no_output_timed_out,
    }
    if exit.survivors:
        facts["survivors"] = exit.survivors
    if session.exit.oom:
        facts["oom"] = True
    return facts


def left_behind(session: Snapshot) -> str:
    """The sentence about its survivors, unless a stop is still killing them."""
    assert session.exit is not None
    named = words.processes(session.exit.survivors)
    return (words.SURVIVORS_DYING if session.stopping else words.SURVIVORS_LEFT).format(named=named)


def status(session: Snapshot) -> str:
    return RUNNING if session.status == PENDING else session.status


def health(session: Snapshot) -> str | None:
    return session.state if session.state in (UNREACHABLE, STALE) else session.health


async def is_finalizing(session: AsyncSession) -> bool:
    """Whether its process is gone and its exit is not recorded yet. Another pid namespace cannot be checked."""
    if session.state != RUNNING or session.pid is None:
        return False
    state = (await session.records())["state"] or {}
    return state.get("pidns") == processes.pid_namespace() and processes.look(session.pid) is None


def timeout_at_ms(session: Snapshot, spec: dict[str, Any]) -> int | None:
    """The time limit counts from the request."""
    asked = at_ms(session.created_at)
    return None if spec.get("timeout") is None or asked is None else asked + round(spec["timeout"] * 1000)


def runtime_ms(session: Snapshot) -> int:
    began = at_ms(session.started_at)
    return 0 if began is None else max(0, (at_ms(session.ended_at) or now_ms()) - began)


def ended_at_ms(session: Snapshot) -> int:
    return at_ms(session.ended_at) or at_ms(session.last_output_at) or at_ms(session.created_at) or 0


def short_name(command: str) -> str:
    """The program and its first argument that is not an option."""
    try:
        found = shlex.split(command)
    except ValueError:
        found = command.split()
    target = next((word for word in found[1:] if not word.startswith("-")), "")
    return words.one_line(" ".join([*found[:1], target]), settings.NAME_CHARACTERS)


def now_ms() -> int:
    return clock.wall_ns() // 1_000_000
