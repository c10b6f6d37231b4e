"""`Native`: the tools over the library. It keeps nothing itself; what an agent has seen is in the index."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ...errors import BadArgument, HoldfastError, SpawnError
from ...model import FINAL_STATES
from ...sessions.aio import AsyncSession
from ...sessions.log import Log
from ...sessions.run import run, start
from ...sessions.wait import wait_all
from ...signals.lines import Signal
from ...signals.wording import spell
from ..base import SIGNALS, Answer, Toolset
from ..owner_sessions import has_survivors
from . import report, screens, waiting, words
from .answer_text import AnswerText
from .output import (
    TROUBLE,
    Output,
    begin_excerpt,
    budget_for,
    cost,
    failed,
    last_excerpt,
    offsets_of,
    read_excerpt,
)
from .report import listed, stopped
from .seen import Seen
from .waiting import conditions
from .words import BUDGET, BUDGET_MAX, TOOLS, call, facts, next_step, quoted, ref, size, status

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...sessions.aio import AsyncHoldfast
    from ...sessions.search import Hit
    from ..base import Approve, Tool
    from .output import Excerpt


# How long `run` waits on the connection that started the command; after that the client gets progress.
_FIRST_WAIT_S = 3.0
# Up to this much output is read at once; more is read in a thread.
_AT_ONCE_BYTES = 64 << 10
_HITS = 40
# Some of them are shown anyway.
_TROUBLES = 100
_AROUND = 5
_REPORTED_RUNNING = ("ready", "needs_input")
_REPORTED_ENDED = (*_REPORTED_RUNNING, "survivors", "health")


class Native(Toolset):
    """`signals=False` leaves that tool out: for hosts that bring signals to the agent themselves."""

    name = "native"
    own_queue = False
    tools: tuple[Tool, ...] = TOOLS
    instructions = (
        "Commands run here outlive this connection: they keep running when a call is aborted, the client restarts "
        "or the server dies, and `read` shows their output at any time. Start servers and long jobs with a short "
        "wait_s, and `wait` for what happens instead of polling. What happens between calls stays in a queue until you "
        "acknowledge it with `signals`."
    )

    def __init__(self, hf: AsyncHoldfast, owner: str, *, approve: Approve | None = None, signals: bool = True) -> None:
        if not signals:
            self.tools = tuple(tool for tool in TOOLS if tool is not SIGNALS)
        super().__init__(hf, owner, approve=approve)
        self._seen = Seen(self.kept)

    async def _failed(self, tool: Tool, problem: HoldfastError) -> Answer:
        if isinstance(problem, SpawnError) and "id" in problem.facts:
            with suppress(HoldfastError):  # removed meanwhile: there is nothing to acknowledge
                await self._mark_reported(await self.find(problem.facts["id"]))
        return await words.problem_answer(self, tool, problem)

    # run

    async def tool_run(
        self,
        *,
        command: str | list[str],
        wait_s: float,
        name: str | None,
        cwd: str | None,
        env: dict[str, str] | None,
        tty: bool,
        stdin: str,
        timeout_s: float | None,
        idle_timeout_s: float | None,
        ready: str | None,
        watch: list[str] | None,
        notify: str,
        key: str | None,
        replace: bool,
    ) -> Answer:
        asked = {
            "name": name,
            "cwd": cwd,
            "env": env,
            "tty": tty,
            "stdin": None if tty else stdin,
            "timeout": timeout_s,
            "idle_timeout": idle_timeout_s,
            "watch": watch,
            "replace": replace,
        }
        options: Any = {name: value for name, value in asked.items() if value not in (None, False, [], {})}
        options |= {"owner": self.owner, "notify": notify}
        if key is not None:
            # Keys are per owner.
            options |= {"key": json.dumps([self.owner, key]), "metadata": {"key": key}}
        former = await self._holders(name, key) if replace else []
        core = self.hf._core
        if ready is not None:
            options["ready"] = _probe(ready)
            started = await start(core, command, options)
            session = AsyncSession(core, started.snapshot())
            # One that existed may have been started without `ready`.
            if not started.existed or session.metadata.get("ready"):
                await self.with_progress([session], session.wait(ready=True, timeout=wait_s))
        else:
            # A short command is waited for on the connection that started it. If it ends in time, its runner knows that
            # this call has the end, and queues nothing.
            started = await run(core, command, min(wait_s, _FIRST_WAIT_S), options)
            session = AsyncSession(core, started.snapshot())
            if session.exit is None and wait_s > _FIRST_WAIT_S:
                await self.with_progress([session], session.wait(timeout=wait_s - _FIRST_WAIT_S))
        replaced = [each.id for each in former if (await each.refresh()).exit is not None]
        for each in former:
            await self._mark_reported(each)
        said = f"replaces {', '.join(replaced)}" if replaced else ""
        said = "was already running" if started.existed else said
        if started.existed and ready is not None and session.exit is None and not session.metadata.get("ready"):
            # Its runner does not check readiness. Only an open port can be found out afterwards.
            what, _, port = ready.partition(":")
            retry = call("wait", ids=ref(session), until="port", pattern=port) if what == "port" else ""
            unknown = "started without ready, so it is unknown whether it is ready"
            return await self._answer(session, said, unknown, next_call=retry)
        return await self._answer(session, said, suggest_next=True, nothing_queued=started.nothing_queued)

    async def _holders(self, name: str | None, key: str | None) -> list[AsyncSession]:
        live = await self.listed()
        return [each for each in live if (each.metadata.get("key") == key if key is not None else each.name == name)]

    # read

    async def tool_read(
        self,
        *,
        id: str,
        since: str | None,
        tail: int | None,
        search: str | None,
        context: int,
        stream: str | None,
        budget: int,
        raw: bool,
    ) -> Answer:
        given = [each for each, value in (("since", since), ("tail", tail), ("search", search)) if value is not None]
        if len(given) > 1:
            raise BadArgument(given[1], f"cannot be combined with {given[0]}", "give one of since, tail, search")
        session = await self.find(id)
        log = self._log(session)
        if stream is not None and stream not in (streams := log.streams()):
            raise BadArgument("stream", f"{words.called(session)} has no {stream}", f"give {' or '.join(streams)}")
        if search is not None:
            return await self._search(session, search, context, stream, budget)
        if not given:
            return await self._answer(
                session, budget=budget, stream=stream, raw=raw, only_output=True, suggest_next=True
            )
        if tail is not None:
            found = await self._in_thread_if_large(session, lambda: last_excerpt(log, tail, stream, raw=raw))
        else:
            found = await self._in_thread_if_large(session, lambda: begin_excerpt(log, since, stream, raw=raw))
        answer_text = AnswerText(status(session), facts(session))
        output = Output(answer_text, session)
        output.show(found, budget, stream, ahead=0 if since is None else 1, raw=raw)
        if since is not None and output.left:
            answer_text.facts["cursor"] = output.left[0]["since"]
        else:
            answer_text.continue_at(found.cursor, stream, said=session.exit is None)
        if since is not None and not found.lines:
            answer_text.add(f"no output after {since}" if not found.lost else "nothing else")
        await self._mark_reported(session)
        if tail is not None:
            at = log.parse(self._seen.cursor(session.id), stream=stream)
            if all(found.begin.get(name, 0) <= offset for name, offset in at.items()):
                self._seen.move(session.id, found.cursor)
        return _with_output(answer_text, output)

    async def _search(
        self, session: AsyncSession, pattern: str, context: int, stream: str | None, budget: int
    ) -> Answer:
        found = await session.search(pattern, context=context, stream=stream, newest=True, limit=_HITS + 1)
        answer_text = AnswerText(status(session, "newest matches first" if found else "no match"), facts(session))
        shown = report.hits(answer_text, session, found, budget, _HITS)
        if not found:
            hint = (
                "" if "(?i" in pattern else f"; {call('read', id=ref(session), search='(?i)' + pattern)} ignores case"
            )
            answer_text.add(f"searched {size(sum(session.ends.values()))}{hint}")
        matches = [{"stream": hit.stream, "offset": hit.offset, "text": hit.text} for hit in found]
        await self._mark_reported(session)
        return answer_text.answer(matches=matches[:shown])

    # wait

    async def tool_wait(self, *, ids: list[str], until: str, pattern: str | None, timeout_s: float) -> Answer:
        if pattern is not None and until == "exit":
            until = "match"
        sessions = list({each.id: each for each in [await self.find(id) for id in ids]}.values())
        if not sessions:
            raise BadArgument("ids", "is empty", "give at least one id; list() shows yours")
        # An agent that waits for several sessions again and again gets each end once.
        news = [each for each in sessions if each.exit is None or not self._seen.is_reported(each.id)] or sessions
        began = time.monotonic()
        asked = {
            each.id: conditions(until, pattern, timeout_s, self._seen.cursor(each.id), self._log(each)) for each in news
        }
        woken = await self.with_progress(news, wait_all(self.hf._core, asked, any=True))
        waited = time.monotonic() - began
        ((id, woke),) = woken.items()
        if woke.reason == "timeout" and len(news) > 1:
            return await self._timeout_answer(news, until, waited)
        session = await self.find(id)
        if woke.reason == "timeout":
            return await self._answer(session, f"no {until} within {spell(waited)}", reason="timeout", last_line=True)
        others = [ref(each) for each in sessions if each.id != session.id and not self._seen.is_reported(each.id)]
        again = {} if until == "exit" else {"until": until} | ({} if pattern is None else {"pattern": pattern})
        following = call("wait", ids=others, **again) if others else ""
        return await self._answer(session, words.why(woke, pattern), reason=woke.reason, next_call=following)

    async def _timeout_answer(self, sessions: Sequence[AsyncSession], until: str, waited: float) -> Answer:
        answer_text = AnswerText(f"no {until} of {len(sessions)} sessions within {spell(waited)}")
        rows = []
        for each in sessions:
            await each.refresh()
            last = (await each.tail(1)).strip()
            answer_text.add(status(each, f"last line {quoted(last)}" if last else "no output yet"))
            rows.append(facts(each, last_line=last))
        return Answer(answer_text.text(), {"reason": "timeout", "waited_s": round(waited, 3), "sessions": rows})

    # send

    async def tool_send(
        self,
        *,
        id: str,
        text: str | None,
        keys: list[str] | None,
        paste: str | None,
        eof: bool | None,
        submit: bool | None,
        wait_s: float,
    ) -> Answer:
        given = {"text": text, "keys": keys, "paste": paste, "eof": eof or None}
        chosen = [name for name, value in given.items() if value is not None]
        if len(chosen) != 1:
            problem = f"{chosen[0]} and {chosen[1]} cannot be combined" if chosen else "there is nothing to send"
            raise BadArgument("text", problem, "give one of text, keys, paste, eof")
        if submit and chosen[0] in ("keys", "eof"):
            raise BadArgument("submit", f"cannot be combined with {chosen[0]}", "leave it out, or give text or paste")
        session = await self.find(id)
        before = await session.screen() if session.tty and session.exit is None else None
        typed, note = await waiting.typed(session, text, keys, paste, submit)
        await self.with_progress([session], waiting.settled(session, typed.cursor, wait_s, before))
        await session.refresh()
        # A warning that the input may not end the program is wrong once it has ended.
        said = [note, *map(words.warning, typed.warnings if session.exit is None else ())]
        if before is None:
            return await self._answer(session, *said)
        after = await session.screen()
        if not after.alt and await waiting.scrolled_by(session, typed.cursor, after):
            return await self._answer(session, *said)
        rows = screens.changed_rows(before, after, live=session.exit is None)
        answer_text = AnswerText(status(session, *said), facts(session, cursor=f"tty:{after.offset}"))
        answer_text.output([f"{number:>3} {row}" if after.alt else row for number, row in rows])
        if not rows:
            answer_text.add("nothing changed on the screen")
        await self._mark_reported(session)
        self._seen.move(session.id, f"tty:{after.offset}")
        changed = [{"row": number, "text": row} for number, row in rows]
        return answer_text.answer(rows=changed)

    # screen

    async def tool_screen(self, *, id: str, history: int) -> Answer:
        session = await self.find(id)
        screen = await session.screen(history=history)
        height, width = screen.size
        cursor = screen.cursor
        said = [f"{width}x{height}"]
        if screen.title:
            said.append(f"title {quoted(screen.title, 60)}")
        where = f"row {cursor.row + 1}, column {cursor.col + 1}"
        said.append(f"cursor {screens.CURSOR} at {where}" if cursor.visible else "cursor hidden")
        answer_text = AnswerText(status(session, *said), facts(session, cursor=f"tty:{screen.offset}"))
        rows, above = screens.screen_rows(screen), screens.history_rows(screen)
        fitting = screens.fitting_rows(above, BUDGET - sum(len(row) + 1 for row in rows))
        if len(fitting) < len(above):
            left = len(above) - len(fitting)
            instead = call("read", id=ref(session), tail=history, budget=BUDGET_MAX)
            answer_text.add(f"... {left} row{'' if left == 1 else 's'} of history left out; {instead}")
        answer_text.output(fitting + rows)
        await self._mark_reported(session)
        seen = self._seen.cursor(session.id)
        if screen.alt or not await waiting.scrolled_by(session, seen or "0", screen):
            self._seen.move(session.id, f"tty:{screen.offset}")
        data = {
            "rows": screens.screen_rows(screen, marked=False),
            "history": fitting,
            "cursor": {"row": cursor.row, "col": cursor.col, "visible": cursor.visible},
            "size": list(screen.size),
            "title": screen.title,
        }
        return answer_text.answer(screen=data)

    # stop, list

    async def tool_stop(self, *, ids: list[str] | None, all: bool, grace_s: float) -> Answer:
        if all and ids:
            raise BadArgument("all", "cannot be combined with ids", "give ids, or all=true")
        if not all and not ids:
            raise BadArgument("ids", "no session is named", "give ids, or all=true")
        if ids:
            sessions = list({each.id: each for each in [await self.find(id) for id in ids]}.values())
        else:
            sessions = await self.listed()
        answers = await asyncio.gather(
            *(each.stop(grace_s, by=self.owner) for each in sessions), return_exceptions=True
        )
        for each, answer in zip(sessions, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, HoldfastError):
                raise answer
            if each.exit is not None:
                await self._mark_reported(each, after_stop=True)
        return stopped(sessions, answers)

    async def tool_list(self, *, all: bool) -> Answer:
        return listed(await self.listed(ended=True), self._seen, all=all)

    # What they share.

    async def _in_thread_if_large(self, session: AsyncSession, read: Callable[[], Excerpt]) -> Excerpt:
        """In a thread if it takes long."""
        return read() if session.log_bytes <= _AT_ONCE_BYTES else await asyncio.to_thread(read)

    def _log(self, session: AsyncSession) -> Log:
        return Log(self.hf.home.session(session.id), session.ends)

    async def _answer(
        self,
        session: AsyncSession,
        *phrases: str,
        budget: int | None = None,
        stream: str | None = None,
        raw: bool = False,
        only_output: bool = False,
        reason: str | None = None,
        last_line: bool = False,
        suggest_next: bool = False,
        next_call: str = "",
        nothing_queued: bool = False,
    ) -> Answer:
        """A session with the output that the agent has not seen, at most `budget`, of `stream` or of all; `raw` is not
        folded. `phrases` are added to its status, `reason` to the data.

        `only_output`: the call asked for nothing but output. `last_line`: show the last line where nothing is new.
        `suggest_next`: say what to do next with a session that still runs; `next_call`: say this call instead.
        `nothing_queued`: there is no signal of it to acknowledge."""
        since = None if nothing_queued else self._seen.cursor(session.id)
        log = self._log(session)
        found = await self._in_thread_if_large(session, lambda: read_excerpt(log, since, stream, raw=raw))
        drawn = session.tty and session.exit is None and session.metadata.get("alt_screen") and not raw
        # A full-screen program is shown as rows, which change only if something was printed.
        new = found.begin != offsets_of(found.cursor, stream) if drawn else bool(found.lines or found.lost)
        phrases = tuple(filter(None, phrases))
        if only_output and not new:
            phrases = (*phrases, "nothing new" if since else "no output")
        if last_line and not new:
            last = (await session.tail(1)).strip()
            phrases = (*phrases, f"last line {quoted(last)}" if last else "no output yet")
        answer_text = AnswerText(status(session, *phrases), facts(session))
        answer_text.continue_at(found.cursor, None, said=session.exit is None)
        output = Output(answer_text, session)
        room = budget or budget_for(session)
        if drawn and new:
            rows = screens.screen_rows(await session.screen())
            fitting = screens.fitting_rows(rows, room)
            if left := len(rows) - len(fitting):
                above = f"... {left} row{'' if left == 1 else 's'} above left out"
                answer_text.add(f"{above}; {call('screen', id=ref(session))}")
            answer_text.output(fitting)
        elif not drawn:
            trouble = await self._trouble(session, found, room) if failed(session) else ()
            output.show(found, room, trouble=trouble, raw=raw)
        if next_call:
            answer_text.add(f"next: {next_call}")
        elif suggest_next and session.exit is None and not (only_output and new) and (following := next_step(session)):
            answer_text.add(f"next: {following}")
        # Last: output that an aborted call would have shown is still new.
        if nothing_queued:
            self._seen.all_shown(session.id, found.cursor)
        else:
            await self._mark_reported(session)
            self._seen.move(session.id, found.cursor)
        more = {} if reason is None else {"reason": reason}
        return _with_output(answer_text, output, **more)

    async def _trouble(self, session: AsyncSession, found: Excerpt, budget: int) -> list[Hit]:
        """Lines that may be the reason of its failure, if not all output fits. Not for a terminal, where every line
        would have to be drawn."""
        if session.tty or (not found.passed and cost(found.lines) <= budget):
            return []
        return await session.search(TROUBLE, context=_AROUND, limit=_TROUBLES)

    async def _mark_reported(self, session: AsyncSession, *, after_stop: bool = False) -> None:
        """Acknowledge the signals that an answer reports: the end, readiness, a question; for a session that is over
        also its earlier signals and its survivors, which a stop reports too."""
        over = session.state in FINAL_STATES
        news = over and not self._seen.is_reported(session.id)
        asks = session.needs_input or (session.metadata.get("ready") or {}).get("ok") is not None
        left = has_survivors(session)
        # If that fails, a signal comes twice, which is better than no answer.
        with suppress(HoldfastError):
            if news:
                await self.acknowledge(session)
            if news or left or after_stop or (asks and not over):
                # For a session that is over all signals count, also those that were skipped while it ran.
                known = 0 if over else self._seen.reported_upto(session.id)
                for each in await session.told():
                    if isinstance(each, Signal) and each.seq > known and _reports(each, over=over):
                        await self.consumer().ack(each.id)
                        self._seen.move(session.id, None, upto=each.seq)
        if news:
            self._seen.move(session.id, None, reported=True)


def _with_output(answer_text: AnswerText, output: Output, **more: Any) -> Answer:
    if output.left:
        more["left_out"] = output.left
    return answer_text.answer(**more)


def _reports(signal: Signal, *, over: bool) -> bool:
    """Whether an answer reports this signal, or reports an end that makes it void."""
    if signal.variant == "lifecycle":
        return over and signal.fields.get("phase") == "restarting"
    return signal.variant in (_REPORTED_ENDED if over else _REPORTED_RUNNING)


def _probe(ready: str) -> str:
    """A line is given by a regex, as everywhere in these tools."""
    word, _, pattern = ready.partition(":")
    bare = pattern and not re.fullmatch(r"/.+/i?", pattern, re.DOTALL)
    return f"line:/{pattern}/" if word == "line" and bare else ready
