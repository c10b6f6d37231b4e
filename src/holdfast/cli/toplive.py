"""`hold top` in a terminal: looks, shows, and does what the keys ask for, until somebody leaves."""

from __future__ import annotations

import asyncio
import time

from ..errors import HoldfastError, IndexBusy
from ..host.aio import AsyncHoldfast
from ..host.verbs import fits
from ..terminal.detach import detach_key
from .ending import in_words
from .fullscreen import LEAVE, REDRAW, FullScreen
from .inbox import persons
from .output import note
from .tables import state_words, style
from .toplist import Details, Row
from .topscreen import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from ..config import Config
    from ..model import Snapshot
    from .tables import Style

# Nothing tells of output, ages, processor time, or of what others start: these are looked for once a second, and only
# while the list is shown. What is signalled (an end, a match, a prompt) is shown at once.
_LOOK_S = 1.0
# A flood of signals is shown so often at most.
_WAKE_S = 0.2
# So many endings at once are told below the list.
_ENDINGS = 3


def live(author: str, config: Config) -> int:
    return asyncio.run(_main(author, config))


async def _main(author: str, config: Config) -> int:
    async with AsyncHoldfast(config=config, author=author) as hf:
        top = Top(hf)
        try:
            top.screen.enter()
            await top.run()
        finally:
            top.close()
        await top.finish()
    return 0


class Top:
    def __init__(self, hf: AsyncHoldfast) -> None:
        self._hf = hf
        self._signals = persons(hf._core)
        self._waker = self._signals.waker()
        self._style: Style = style(hf.config)
        self._view = View(_fitting)
        self._details = Details(hf.home)
        self.screen = FullScreen()
        self._woken = asyncio.Event()
        # What was asked for and is not done yet: whose it is, and what it will have to say.
        self._at_work: dict[str, asyncio.Task[str]] = {}
        # Whose end was asked for here, and told.
        self._told: set[str] = set()

    def close(self) -> None:
        self.screen.close()
        self._waker.close()

    async def run(self) -> None:
        """Until somebody leaves."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._waker.fileno(), self._called)
        looking = self._start_looking()
        try:
            while True:
                if self.screen.events.empty():
                    self.screen.draw(self._view.lines(self.screen.size, self._style))
                event = await self.screen.events.get()
                if event == LEAVE:
                    return
                if event == "ctrl-l":
                    self.screen.forget()
                asked = None if event == REDRAW else self._press(event)
                if asked is None:
                    continue
                what, id = asked
                if what == "quit":
                    return
                if what in ("stop", "restart"):
                    self._begin(what, id)
                    continue
                # Nobody sees the list meanwhile.
                looking.cancel()
                if not (await self._logs(id) if what == "logs" else self._attach(id)):
                    return
                looking = self._start_looking()
        finally:
            loop.remove_reader(self._waker.fileno())
            if not looking.cancel() and not looking.cancelled():
                looking.result()  # why it ended

    async def finish(self) -> None:
        """What was asked for is done, though the screen is gone."""
        for id, task in list(self._at_work.items()):
            note(f"{id}: {await task}")

    def _press(self, key: str) -> tuple[str, str] | None:
        seen = {row.id for row in self._view.near()}
        asked = self._view.press(key)
        if not seen.issuperset(row.id for row in self._view.near()):
            self._woken.set()  # others are seen now, about which less is known
        return asked

    # Looking.

    def _called(self) -> None:
        self._waker.clear()
        self._woken.set()

    def _start_looking(self) -> asyncio.Task[None]:
        looking = asyncio.create_task(self._look_on())
        # It ends only when it is told to, or by a mistake of ours, with which nobody must be left alone.
        looking.add_done_callback(lambda task: None if task.cancelled() else self.screen.events.put_nowait(LEAVE))
        return looking

    async def _look_on(self) -> None:
        while True:
            began = time.monotonic()
            try:
                await self._look()
            except (HoldfastError, OSError) as problem:
                self._view.message = str(problem)
            self.screen.events.put_nowait(REDRAW)
            # A look that takes long, for there are many or a runner does not answer, is followed by as long a pause.
            await asyncio.sleep(max(_WAKE_S, time.monotonic() - began))
            try:
                await asyncio.wait_for(self._woken.wait(), _LOOK_S - _WAKE_S)
            except TimeoutError:
                pass

    async def _look(self) -> None:
        self._woken.clear()
        shots = await self._hf.daemons.list()
        waiting = await self._waiting(shots)
        rows = [Row(shot, signals=waiting.get(shot.id, 0)) for shot in shots]
        gone = self._view.show(rows)
        self._details.fill(self._view.near())
        self._details.forget_others(rows)
        ended = [await self._ending(row) for row in gone if row.id not in self._told]
        if ended:
            self._view.message = "; ".join(ended[:_ENDINGS])
        elif self._hf.trouble is not None:
            self._view.message = self._hf.trouble

    async def _waiting(self, shots: list[Snapshot]) -> dict[str, int]:
        try:
            return await self._signals.counts(shot.owner for shot in shots)
        except IndexBusy:
            return {}

    async def _ending(self, row: Row) -> str:
        """What became of one that is no longer in the list."""
        try:
            shot: Snapshot = await self._hf.get(row.id)
        except HoldfastError:
            return f"{row.id} was removed"
        name = f" ({shot.name})" if shot.name else ""
        return f"{row.id}{name}: {state_words(shot)[0]}"

    # Doing.

    def _begin(self, what: str, id: str) -> None:
        if id in self._at_work:
            return
        self._view.message = f"{id}: {'stopping' if what == 'stop' else 'restarting'}"
        task = asyncio.create_task(self._stop(id) if what == "stop" else self._restart(id))
        self._at_work[id] = task
        self._told.add(id)
        task.add_done_callback(lambda task: self._done(id, task))

    def _done(self, id: str, task: asyncio.Task[str]) -> None:
        self._at_work.pop(id, None)
        if not task.cancelled():
            self._view.message = f"{id}: {task.result()}"
        self._woken.set()

    async def _stop(self, id: str) -> str:
        try:
            return in_words(await (await self._hf.get(id)).stop())
        except HoldfastError as problem:
            return f"{problem.message}; {problem.fix}"

    async def _restart(self, id: str) -> str:
        try:
            session = await (await self._hf.get(id)).restart()
        except HoldfastError as problem:
            return f"{problem.message}; {problem.fix}"
        self._view.selected = session.id
        return "restarted" if session.id == id else f"restarted as {session.id}"

    async def _logs(self, id: str) -> bool:
        from .logscreen import LogScreen

        try:
            session = await self._hf.get(id)
        except HoldfastError as problem:
            self._view.message = problem.message
            return True
        return await LogScreen(self._hf, session, self.screen, self._style).run()

    def _attach(self, id: str) -> bool:
        """Blocks, as `hold attach` does: all that is at work here waits, and there is nothing to be drawn."""
        from .attach import Wishes
        from .client import Client
        from .door import here

        self.screen.leave()
        try:
            with here() as hf:
                rows, key = hf.config.terminal_history_rows, detach_key(hf.config.terminal_detach_key)
                client = Client(hf.get(id), Wishes(key=key, history_rows=rows))
                client.run()
                if client.dismissed:
                    return False
        except HoldfastError as problem:
            self._view.message = problem.message
        self.screen.enter()
        return True


def _fitting(text: str) -> Callable[[Snapshot], bool]:
    return fits(owner=None, labels=None, status=None, state=None, name=None, search=text)
