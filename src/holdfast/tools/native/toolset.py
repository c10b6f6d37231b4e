"""`Native`: the tools over the library. It owns nothing; what an agent has seen is kept in the index."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ...errors import BadArgument, HoldfastError, SpawnError
from ...host.log import Log
from ...model import CAUSE_LOST, FINAL_STATES, format_cursor
from ...signals.records import Signal
from ...signals.words import spell
from ..answer import Answer
from ..toolset import PROGRESS_S, Toolset
from ..unread import SIGNALS
from . import excerpt, problems, report, screens, sending, wording
from .budget import BUDGET, BUDGET_MAX, cost
from .catalogue import TOOLS
from .listing import listed
from .report import TROUBLE, Output, budget_for, facts, failed, next_step, status
from .seen import Seen
from .stopping import stopped
from .waiting import conditions, first, why
from .wording import Sheet, call, quoted, ref, size

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from ...host.aio import AsyncHoldfast, AsyncSession
    from ...host.search import Hit
    from ..toolset import Approve, Tool
    from .excerpt import Excerpt

# So much output is read as fast as another thread would be asked to.
_AT_ONCE_BYTES = 64 << 10
_HITS = 40
# Some may be among what is shown anyway.
_TROUBLES = 100
_AROUND = 5
_TOLD_WHILE_IT_RUNS = ("ready", "needs_input")
_TOLD_AT_THE_END = (*_TOLD_WHILE_IT_RUNS, "survivors", "health")


class Native(Toolset):
    """`signals=False` leaves that tool out: for hosts that bring signals to the agent themselves."""

    name = "native"
    tools: tuple[Tool, ...] = TOOLS
    instructions = (
        "Commands run here outlive this connection: they go on when a call is aborted, the client restarts or the "
        "server dies, and `read` shows their output at any time. Start servers and long jobs with a short wait_s, and "
        "`wait` for what happens instead of polling. What happened meanwhile stays in a queue until you acknowledge it "
        "with `signals`."
    )

    def __init__(self, hf: AsyncHoldfast, owner: str, *, approve: Approve | None = None, signals: bool = True) -> None:
        if not signals:
            self.tools = tuple(tool for tool in TOOLS if tool is not SIGNALS)
        super().__init__(hf, owner, approve=approve)
        self._seen = Seen(self.kept())

    async def _failed(self, tool: Tool, problem: HoldfastError) -> Answer:
        if isinstance(problem, SpawnError) and "id" in problem.facts:
            with suppress(HoldfastError):  # removed meanwhile: nothing is left to announce
                await self._told(await self.find(problem.facts["id"]))
        return await problems.answer(self, tool, problem)

    # run

    async def _run(
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
        options: dict[str, Any] = {
            "owner": self.owner,
            "name": name,
            "cwd": cwd,
            "env": env or {},
            "tty": tty,
            "timeout": timeout_s,
            "idle_timeout": idle_timeout_s,
            "watch": watch or [],
            "notify": notify,
            "replace": replace,
        }
        if not tty:
            options["stdin"] = stdin
        mine = secrets.token_hex(4)
        if key is not None:
            # Another agent's keys are its own, and whether it was us who started it is told by this mark.
            options |= {"key": json.dumps([self.owner, key]), "metadata": {"key": key, "call": mine}}
        former = await self._holders(name, key) if replace else []
        answered = False
        if ready is not None:
            session = await self.hf.start(command, ready=_probe(ready), **options)
            # Under a key it may be one that somebody started without saying when it is ready.
            if session.metadata.get("call") == mine or key is None or session.metadata.get("ready"):
                await self.waiting([session], session.wait(ready=True, timeout=wait_s))
        else:
            # A brief one is waited for on the connection that started it. If it ended before the time was over, its
            # runner knows that we know, and nothing is queued.
            limit, began = min(wait_s, PROGRESS_S), time.monotonic()
            session = await self.hf.run(command, wait=limit, **options)
            over = session.exit is not None and session.exit.cause != CAUSE_LOST
            # One that could be typed into may have asked for something, and that was queued.
            mute = not tty and stdin == "closed"
            answered = notify == "auto" and mute and over and time.monotonic() - began < limit
            if session.exit is None and wait_s > PROGRESS_S:
                await self.waiting([session], session.wait(timeout=wait_s - PROGRESS_S))
        existing = key is not None and session.metadata.get("call") != mine
        replaced = [each.id for each in former if (await each.refresh()).exit is not None]
        for each in former:
            await self._told(each)
        said = f"replaces {', '.join(replaced)}" if replaced else ""
        said = "was already running" if existing else said
        if existing and ready is not None and session.exit is None and not session.metadata.get("ready"):
            # Nobody looks whether it is. What can be found out without having looked from the beginning is a port.
            what, _, port = ready.partition(":")
            step = call("wait", ids=ref(session), until="port", pattern=port) if what == "port" else ""
            return await self._answer(session, said, "started without ready: not known whether it is", others=step)
        return await self._answer(session, said, step=True, answered=answered and not existing)

    async def _holders(self, name: str | None, key: str | None) -> list[AsyncSession]:
        live = await self.hf.sessions(owner=self.owner)
        return [each for each in live if (each.metadata.get("key") == key if key is not None else each.name == name)]

    # read

    async def _read(
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
            raise BadArgument(given[1], f"goes not together with {given[0]}", "give one of since, tail, search")
        session = await self.find(id)
        log = self._log(session)
        if stream is not None and stream not in (streams := log.streams()):
            raise BadArgument("stream", f"{wording.called(session)} has no {stream}", f"give {' or '.join(streams)}")
        if search is not None:
            return await self._search(session, search, context, stream, budget)
        if tail is not None:
            found = await self._off(session, lambda: excerpt.last(log, tail, stream, raw=raw))
            sheet = Sheet(status(session), facts(session))
            output = Output(sheet, session)
            output.last(found, budget, stream, raw=raw)
            self._tell_cursor(sheet, session, log, found, stream)
            await self._told(session)
            at = log.parse(self._seen.cursor(session.id), stream=stream)
            if all(found.begin.get(name, 0) <= offset for name, offset in at.items()):
                self._seen.move(session.id, format_cursor(log.parse(found.cursor, stream=stream)))
            return _with_output(sheet, output)
        if since is not None:
            found = await self._off(session, lambda: excerpt.begin(log, since, stream, raw=raw))
            sheet = Sheet(status(session), facts(session))
            output = Output(sheet, session)
            output.first(found, budget, stream, raw=raw)
            if output.left:
                sheet.facts["cursor"] = output.left[0]["since"]
            else:
                self._tell_cursor(sheet, session, log, found, stream)
            if not found.lines:
                sheet.add(f"nothing behind {since}" if not found.lost else "nothing else")
            await self._told(session)
            return _with_output(sheet, output)
        return await self._answer(session, budget=budget, stream=stream, raw=raw, asked=True, step=True)

    async def _search(
        self, session: AsyncSession, pattern: str, context: int, stream: str | None, budget: int
    ) -> Answer:
        found = await session.search(pattern, context=context, stream=stream, newest=True, limit=_HITS + 1)
        sheet = Sheet(status(session, "newest matches first" if found else "no match"), facts(session))
        told = report.hits(sheet, session, found, budget, _HITS)
        if not found:
            hint = (
                "" if "(?i" in pattern else f"; {call('read', id=ref(session), search='(?i)' + pattern)} ignores case"
            )
            sheet.add(f"searched {size(sum(session.ends.values()))}{hint}")
        matches = [{"stream": hit.stream, "offset": hit.offset, "text": hit.text} for hit in found]
        await self._told(session)
        return sheet.answer(matches=matches[:told])

    # wait

    async def _wait(self, *, ids: list[str], until: str, pattern: str | None, timeout_s: float) -> Answer:
        if pattern is not None and until == "exit":
            until = "match"
        sessions = list({each.id: each for each in [await self.find(id) for id in ids]}.values())
        if not sessions:
            raise BadArgument("ids", "is empty", "give at least one id; list() shows yours")
        # Whoever waits for several again and again is told of each end once.
        news = [each for each in sessions if each.exit is None or not self._seen.is_told(each.id)] or sessions
        began = time.monotonic()
        asked = conditions(until, pattern, timeout_s, [self._seen.cursor(each.id) for each in news])
        woken = await self.waiting(news, first(news, asked, self._log))
        waited = time.monotonic() - began
        if woken is None:
            return await self._waited_in_vain(news, until, waited)
        session, woke = woken
        if woke.reason == "timeout":
            return await self._answer(session, f"no {until} within {spell(waited)}", reason="timeout", last_line=True)
        others = [ref(each) for each in sessions if each.id != session.id and not self._seen.is_told(each.id)]
        again = {} if until == "exit" else {"until": until} | ({} if pattern is None else {"pattern": pattern})
        step = call("wait", ids=others, **again) if others else ""
        return await self._answer(session, why(woke, pattern), reason=woke.reason, others=step)

    async def _waited_in_vain(self, sessions: Sequence[AsyncSession], until: str, waited: float) -> Answer:
        sheet = Sheet(f"no {until} of {len(sessions)} sessions within {spell(waited)}")
        told = []
        for each in sessions:
            await each.refresh()
            last = (await each.tail(1)).strip()
            sheet.add(status(each, f"last line {quoted(last)}" if last else "no output yet"))
            told.append(facts(each, last_line=last))
        return Answer(sheet.text(), {"reason": "timeout", "waited_s": round(waited, 3), "sessions": told})

    # send

    async def _send(
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
            why = f"{chosen[0]} and {chosen[1]} are two inputs" if chosen else "nothing is given to send"
            raise BadArgument("text", why, "give one of text, keys, paste, eof")
        if submit and chosen[0] in ("keys", "eof"):
            raise BadArgument("submit", f"goes not together with {chosen[0]}", "leave it out, or give text or paste")
        session = await self.find(id)
        before = await session.screen() if session.tty and session.exit is None else None
        typed, note = await sending.typed(session, text, keys, paste, submit)
        await self.waiting([session], sending.settled(session, typed.cursor, wait_s, before))
        await session.refresh()
        # What might not end a program did, where it has ended.
        said = [note, *map(wording.warning, typed.warnings if session.exit is None else ())]
        if before is None:
            return await self._answer(session, *said)
        after = await session.screen()
        if not after.alt and await sending.scrolled_by(session, typed.cursor, after):
            return await self._answer(session, *said)
        rows = screens.changed(before, after, live=session.exit is None)
        sheet = Sheet(status(session, *said), facts(session, cursor=f"tty:{after.offset}"))
        sheet.output([f"{number:>3} {row}" if after.alt else row for number, row in rows])
        if not rows:
            sheet.add("nothing changed on the screen")
        await self._told(session)
        self._seen.move(session.id, f"tty:{after.offset}")
        changed = [{"row": number, "text": row} for number, row in rows]
        return sheet.answer(rows=changed)

    # screen

    async def _screen(self, *, id: str, history: int) -> Answer:
        session = await self.find(id)
        screen = await session.screen(history=history)
        height, width = screen.size
        cursor = screen.cursor
        said = [f"{height}x{width}"]
        if screen.title:
            said.append(f"title {quoted(screen.title, 60)}")
        where = f"row {cursor.row + 1}, column {cursor.col + 1}"
        said.append(f"cursor {screens.CURSOR} at {where}" if cursor.visible else "cursor hidden")
        sheet = Sheet(status(session, *said), facts(session, cursor=f"tty:{screen.offset}"))
        rows, above = screens.rows(screen), screens.history(screen)
        fitting = screens.fitting(above, BUDGET - sum(len(row) + 1 for row in rows))
        if len(fitting) < len(above):
            left = len(above) - len(fitting)
            instead = call("read", id=ref(session), tail=history, budget=BUDGET_MAX)
            sheet.add(f"... {left} row{'' if left == 1 else 's'} of history left out; {instead}")
        sheet.output(fitting + rows)
        await self._told(session)
        seen = self._seen.cursor(session.id)
        if screen.alt or not await sending.scrolled_by(session, seen or "0", screen):
            self._seen.move(session.id, f"tty:{screen.offset}")
        data = {
            "rows": screens.rows(screen, marked=False),
            "history": fitting,
            "cursor": {"row": cursor.row, "col": cursor.col, "visible": cursor.visible},
            "size": list(screen.size),
            "title": screen.title,
        }
        return sheet.answer(screen=data)

    # stop, list

    async def _stop(self, *, ids: list[str] | None, all: bool, grace_s: float) -> Answer:
        if all and ids:
            raise BadArgument("all", "goes not together with ids", "give ids, or all=true")
        if not all and not ids:
            raise BadArgument("ids", "what to stop?", "give ids, or all=true")
        if ids:
            sessions = list({each.id: each for each in [await self.find(id) for id in ids]}.values())
        else:
            sessions = await self.hf.sessions(owner=self.owner)
        answers = await asyncio.gather(
            *(each.stop(grace_s, by=self.owner) for each in sessions), return_exceptions=True
        )
        for each, answer in zip(sessions, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, HoldfastError):
                raise answer
            if each.exit is not None:
                await self._told(each, after_stop=True)
        return stopped(sessions, answers)

    async def _list(self, *, all: bool) -> Answer:
        return listed(await self.hf.sessions(owner=self.owner, all=True), self._seen, all=all)

    # What they share.

    async def _off(self, session: AsyncSession, read: Callable[[], Excerpt]) -> Excerpt:
        """What takes long does not hold up the loop."""
        return read() if session.log_bytes <= _AT_ONCE_BYTES else await asyncio.to_thread(read)

    def _log(self, session: AsyncSession) -> Log:
        return Log(self.hf.home.session(session.id))

    async def _answer(
        self,
        session: AsyncSession,
        *said: str,
        budget: int | None = None,
        stream: str | None = None,
        raw: bool = False,
        asked: bool = False,
        reason: str | None = None,
        last_line: bool = False,
        step: bool = False,
        others: str = "",
        answered: bool = False,
    ) -> Answer:
        """A session with what is new to the agent, which has seen it then. `asked`: for nothing but that. `step`: say
        what to do with one that runs on."""
        since = self._seen.cursor(session.id)
        log = self._log(session)
        found = await self._off(session, lambda: excerpt.read(log, since, stream, raw=raw))
        drawn = session.tty and session.exit is None and session.metadata.get("alt_screen") and not raw
        # Of a full screen it is the rows that are shown: they stand as they stood where nothing was printed.
        new = log.parse(since) != log.parse(found.cursor) if drawn else bool(found.lines or found.lost)
        said = tuple(filter(None, said))
        if asked and not new:
            said = (*said, "nothing new" if since else "no output")
        if last_line and not new:
            last = (await session.tail(1)).strip()
            said = (*said, f"last line {quoted(last)}" if last else "no output yet")
        sheet = Sheet(status(session, *said), facts(session))
        self._tell_cursor(sheet, session, log, found)
        output = Output(sheet, session)
        room = budget or budget_for(session)
        if drawn and new:
            rows = screens.rows(await session.screen())
            fitting = screens.fitting(rows, room)
            if left := len(rows) - len(fitting):
                above = f"... {left} row{'' if left == 1 else 's'} above left out"
                sheet.add(f"{above}; {call('screen', id=ref(session))}")
            sheet.output(fitting)
        elif not drawn:
            output.add(found, room, trouble=await self._trouble(session, found, room), raw=raw)
        if others:
            sheet.add(f"next: {others}")
        elif step and not (asked and new) and (following := next_step(session)):
            sheet.add(f"next: {following}")
        await self._told(session, answered=answered)
        # Last of all: what an aborted call would have shown is still new.
        self._seen.move(session.id, found.cursor, told=answered)
        more = {} if reason is None else {"reason": reason}
        return _with_output(sheet, output, **more)

    def _tell_cursor(
        self, sheet: Sheet, session: AsyncSession, log: Log, found: Excerpt, stream: str | None = None
    ) -> None:
        """Where to read on from; nothing comes any more from one that is over."""
        at = wording.cursor(log.parse(found.cursor, stream=stream))
        sheet.facts["cursor"] = at
        if session.exit is None and at != "0":
            sheet.also(f"cursor {at}")

    async def _trouble(self, session: AsyncSession, found: Excerpt, budget: int) -> list[Hit]:
        """What may be the reason of a failure, where not all that it printed fits. Of a terminal every line would have
        to be drawn for it."""
        if not failed(session) or session.tty or (not found.passed and cost(found.lines) <= budget):
            return []
        return await session.search(TROUBLE, context=_AROUND, limit=_TROUBLES)

    async def _told(self, session: AsyncSession, *, answered: bool = False, after_stop: bool = False) -> None:
        """What the agent was given in an answer is not announced to it again: the end, that it is ready, what it
        asks; and of one that is over, how it was before, and who is left of it, which a stop says too. `answered`: its
        end was never queued."""
        news = session.state in FINAL_STATES and not answered and not self._seen.is_told(session.id)
        # Where that cannot be noted it comes twice, which is better than no answer.
        with suppress(HoldfastError):
            await self._acknowledge(session, news=news, after_stop=after_stop)
        if news:
            self._seen.move(session.id, None, told=True)

    async def _acknowledge(self, session: AsyncSession, *, news: bool, after_stop: bool) -> None:
        over = session.state in FINAL_STATES
        if news:
            # The exit record names it, unless its runner was killed.
            signal = session.metadata.get("signal_id") or (await session.wait(timeout=0)).signal_id
            if signal:
                await self.consumer().ack(signal)
        asks = session.needs_input or (session.metadata.get("ready") or {}).get("ok") is not None
        left = session.exit is not None and bool(session.exit.survivors)
        if news or left or after_stop or (asks and not over):
            # Of one that is over all are looked at again: those that were passed over while it ran are told now too.
            known = 0 if over else self._seen.told_upto(session.id)
            for each in await session.told():
                if isinstance(each, Signal) and each.seq > known and _tells(each, over=over):
                    await self.consumer().ack(each.id)
                    self._seen.move(session.id, None, upto=each.seq)


def _with_output(sheet: Sheet, output: Output, **more: Any) -> Answer:
    if output.left:
        more["left_out"] = output.left
    return sheet.answer(**more)


def _tells(signal: Signal, *, over: bool) -> bool:
    """Does an answer say this, or that it is over, which makes it void: one that is over does not start again."""
    if signal.variant == "lifecycle":
        return over and signal.fields.get("phase") == "restarting"
    return signal.variant in (_TOLD_AT_THE_END if over else _TOLD_WHILE_IT_RUNS)


def _probe(ready: str) -> str:
    """Lines are named by a regex here, as everywhere in these tools."""
    word, _, pattern = ready.partition(":")
    bare = pattern and not re.fullmatch(r"/.+/i?", pattern, re.DOTALL)
    return f"line:/{pattern}/" if word == "line" and bare else ready
