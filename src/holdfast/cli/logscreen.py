"""What a session printed, on the whole screen, and what it goes on to print: `l` in `hold top`."""

from __future__ import annotations

import asyncio

from ..errors import HoldfastError
from ..host.log import Log
from .fullscreen import LEAVE, REDRAW, FullScreen
from .logs import Cleaners
from .scroll import LINES_MAX, Scroll
from .tables import BOLD, DIM, cut, printable, state_words

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..host.aio import AsyncHoldfast, AsyncSession
    from ..host.log import Page
    from .tables import Style

# So often the screen is drawn at most.
_GATHER_S = 0.05
_KEYS = "q back  arrows, space, b, g, G move  at the end it follows"


class LogScreen:
    def __init__(self, hf: AsyncHoldfast, session: AsyncSession, screen: FullScreen, style: Style) -> None:
        self._session = session
        self._screen = screen
        self._style = style
        self._log = Log(hf.home.session(session.id))
        self._clean = Cleaners(self._log, follow=True)
        self._scroll = Scroll(*self._room())
        self._told = state_words(session)[0]

    async def run(self) -> bool:
        """Until somebody goes back; false if nobody is there any more."""
        following = asyncio.create_task(self._follow())
        try:
            while True:
                if self._screen.events.empty():
                    self._draw()
                key = await self._screen.events.get()
                if key in ("q", "escape", "ctrl-c", LEAVE):
                    return key != LEAVE
                if key == "ctrl-l":
                    self._screen.forget()
                self._scroll.press(key)
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)

    async def _follow(self) -> None:
        try:
            while await self._follow_from_end():
                pass
            self._scroll.begin("")
            self._scroll.add(self._clean.rest())
            self._told = state_words(await self._session.refresh())[0]
        except (HoldfastError, OSError) as problem:
            self._told = str(problem)
        self._screen.events.put_nowait(REDRAW)

    async def _follow_from_end(self) -> bool:
        """True when it prints faster than can be read here: what is between is left out, and said."""
        end = self._log.tail(LINES_MAX)
        self._show(end)
        async for page in self._session.follow(end.cursor):
            self._show(page)
            if page.more:
                self._clean = Cleaners(self._log, follow=True)
                self._scroll.begin("")
                self._scroll.add("(it prints faster than this can show: some is left out, and in the log)")
                return True
            # What comes in the meantime comes at once then; and keys have their turn.
            await asyncio.sleep(_GATHER_S)
        return False

    def _show(self, page: Page) -> None:
        for stream, start, stop, reason in page.gaps:
            self._scroll.add(f"({stop - start} bytes of {stream} from {start} on are not there: {reason})")
        if page.told:
            self._scroll.add(page.text)
        else:
            for chunk in page.chunks:
                self._scroll.add(self._clean.feed(*chunk))
            if page.chunks:
                self._scroll.begin(self._clean.unfinished(page.chunks[-1][0]))
        self._screen.events.put_nowait(REDRAW)

    def _room(self) -> tuple[int, int]:
        height, cols = self._screen.size
        return cols, max(1, height - 2)

    def _draw(self) -> None:
        cols, height = self._room()
        self._scroll.resize(cols, height)
        rows = self._scroll.rows()
        shot = self._session
        title = f"{shot.id}  {printable(shot.description)}  {self._told}"
        place = "" if self._scroll.following else f"  ({self._scroll.above} rows above)"
        lines = [
            self._style.paint(cut(title, cols), BOLD),
            *rows,
            *[""] * (height - len(rows)),
            self._style.paint(cut(_KEYS + place, cols), DIM),
        ]
        self._screen.draw(lines)
