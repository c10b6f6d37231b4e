"""The live view of `hold top`, drawn by textual."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual import events
from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.screen import ModalScreen, Screen
from textual.widgets import DataTable, Input, RichLog, Static

from ..errors import HoldfastError
from ..sessions.aio import AsyncHoldfast
from ..sessions.core import fits
from ..sessions.lines import Cleaners
from ..sessions.log import Log
from .end import in_words
from .host import author, open_home, settings
from .output import BOLD, DIM, GREEN, RED, YELLOW, cut, note, printable, state_words, style
from .top_rows import HEADS, LOOK_S, Details, Row, cells, fitting, look, title

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ..model import Snapshot
    from ..sessions.aio import AsyncSession
    from ..sessions.log import Page
    from .top_rows import Cell


_STYLES = {RED: "red", GREEN: "green", YELLOW: "yellow", DIM: "dim", BOLD: "bold", "": ""}
_RIGHT = ("AGE", "CPU", "MEMORY", "SIGNALS")
# The shortest time between two updates, however many signals come.
_WAKE_S = 0.2
# At most this many endings are reported in one line.
_ENDINGS = 3
_LOG_LINES = 10_000
_FIRST_LINES = 1000
# New output is collected for this long before it is drawn.
_GATHER_S = 0.05

_KEYS = "enter attach  l log  s stop  r restart  / filter  o order  a all  ? help  q quit"
_LOG_KEYS = "q back  arrows, space, b, g, G scroll; at the end new output is followed"
_HELP = """\
up, down, j, k   select a session          g, G   first, last
enter            attach; show the log of a session without a terminal
l                show its log
s, r             stop, restart (asks first)
/                filter: id, name, command, directory, description, labels
escape           remove the filter
o                order: start, cpu, memory, name, status
a                show or hide ended sessions, newest first
ctrl-z           suspend hold top
q, ctrl-c        quit

Any key closes this page."""

# Keys that move through the list or a log.
_MOVES = {"up": "up", "k": "up", "down": "down", "j": "down", "pageup": "page_up", "pagedown": "page_down"}
_MOVES |= {"home": "home", "g": "home", "end": "end", "G": "end"}

_ORDERS: dict[str, Callable[[Row], Any]] = {
    "start": lambda row: 0,
    "cpu": lambda row: -(row.usage.cpu or 0.0) if row.usage else 0.0,
    "memory": lambda row: -row.usage.memory if row.usage else 0,
    "name": lambda row: row.name,
    "status": lambda row: row.status[0],
}


def live() -> int:
    return asyncio.run(_main())


async def _main() -> int:
    config = settings()
    if not style(config).colour:
        os.environ["NO_COLOR"] = "1"  # textual reads it
    async with AsyncHoldfast(config=config, author=author()) as hf:
        app = View(hf)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, app.leave)
        await app.run_async(mouse=False)
        await app.sessions.finish()
    # A terminal that is closed makes textual fail, too.
    return 0 if app.was_asked_to_leave else app.return_code or 0


class _Driver(LinuxDriver):
    """Textual's driver, for a terminal that may be closed or used by others while we are stopped."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._file: Any = _Output(self._file)
        self._drawing = False

    def _get_terminal_size(self) -> tuple[int, int]:
        """The size of the window, where textual prefers the variables LINES and COLUMNS."""
        try:
            cols, rows = os.get_terminal_size(self.fileno)
        except OSError:
            return 80, 24
        return cols or 80, rows or 24

    def start_application_mode(self) -> None:
        super().start_application_mode()
        self._drawing = True

    def stop_application_mode(self) -> None:
        self._drawing = False
        super().stop_application_mode()

    def _sigcont_application(self, *_: object) -> None:
        if self._drawing:
            # Stopped without a SIGTSTP: the shell has changed the terminal meanwhile.
            self.suspend_application_mode()
        super()._sigcont_application()


class _Output:
    """Ignores errors of writing: with its writer thread dead, textual would block without end."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self.fileno = file.fileno

    def write(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError:
            pass

    def flush(self) -> None:
        try:
            self._file.flush()
        except OSError:
            pass


class View(App[None]):
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    Screen, DataTable, RichLog, Input { background: ansi_default; color: ansi_default; }
    .title { height: 1; text-style: bold; }
    .below { height: 1; text-style: dim; }
    .message { color: ansi_yellow; text-style: none; }
    DataTable, RichLog { height: 1fr; scrollbar-size: 0 0; }
    DataTable > .datatable--header { background: ansi_default; color: ansi_default; text-style: bold; }
    DataTable > .datatable--cursor { background: ansi_default; color: ansi_default; text-style: reverse; }
    Input, Input:focus { border: none; height: 1; padding: 0; display: none; }
    Overlay { background: transparent; align: left bottom; }
    Overlay > Static { height: auto; background: ansi_default; }
    .question { text-style: bold; }
    .help { border: solid ansi_default; }
    """

    def __init__(self, hf: AsyncHoldfast) -> None:
        super().__init__(driver_class=_Driver)
        self.theme = "ansi-dark"
        self.sessions = Sessions(hf)
        self.was_asked_to_leave = False

    def on_mount(self) -> None:
        self.push_screen(self.sessions)

    def leave(self) -> None:
        self.was_asked_to_leave = True
        self.exit()

    def exit(self, *args: Any, **options: Any) -> None:
        self.sessions.is_left = True
        super().exit(*args, **options)

    async def on_event(self, event: events.Event) -> None:
        """Keys act here, one after the other: textual's bindings would act after the keys typed behind them were
        sent to the old screen."""
        if isinstance(event, events.Key):
            is_text = event.is_printable and "+" not in event.key
            key = event.character if is_text and event.character else event.key
            if key == "ctrl+c":
                self.exit()
                return
            if key == "ctrl+z":
                self.action_suspend_process()
                return
            press = getattr(self.screen, "press", None)
            if press is not None and press(key):
                return
        await super().on_event(event)


class Sessions(Screen[None]):
    """The list."""

    def __init__(self, hf: AsyncHoldfast) -> None:
        super().__init__()
        self._hf = hf
        # Sessions are read in a thread, so that keys are handled without delay.
        self._watched = open_home()
        self._waker = hf._core.consumers.listing().waker()
        self._woken = asyncio.Event()
        self._details = Details(hf.home)
        self._every: list[Row] = []
        self._shown: list[Row] = []
        # The widths of the columns, and the cells of each row, as they are drawn.
        self._columns: dict[int, int] = {}
        self._drawn: list[list[Cell]] = []
        self._looked = False
        self._select: str | None = None
        self._filter = ""
        self._order = "start"
        self._shows_ended = False
        self._message = ""
        # Set when the user quits.
        self.is_left = False
        # Stops and restarts that are not finished, or finished after the user quit, by session.
        self._at_work: dict[str, asyncio.Task[str]] = {}
        # Sessions whose end was asked for here: it is reported once.
        self._reported: set[str] = set()

    def compose(self) -> Iterable[Any]:
        self._title = Static(classes="title", markup=False)
        self._list: DataTable[Text] = DataTable(cursor_type="row", cell_padding=1)
        self._input = Input(compact=True)
        self._below = Static(classes="below", markup=False)
        return [self._title, self._list, self._input, self._below]

    def on_mount(self) -> None:
        asyncio.get_running_loop().add_reader(self._waker.fileno(), self._called)
        self.set_focus(self._list)
        self.run_worker(self._look_on())

    def on_unmount(self) -> None:
        asyncio.get_running_loop().remove_reader(self._waker.fileno())
        self._waker.close()

    async def finish(self) -> None:
        """Wait for stops and restarts that were asked for, and report them."""
        for id, task in list(self._at_work.items()):
            note(f"{id}: {await task}")

    # Looking.

    def _called(self) -> None:
        self._waker.clear()
        self._woken.set()

    def on_screen_resume(self) -> None:
        self._woken.set()

    async def _look_on(self) -> None:
        while True:
            began = time.monotonic()
            self._woken.clear()
            try:
                await self._look()
            except (HoldfastError, OSError) as problem:
                self._message = str(problem)
            self._draw()
            # With many sessions, or a runner that does not answer, at most a third of the time is spent on this.
            await asyncio.sleep(max(_WAKE_S, 2 * (time.monotonic() - began)))
            try:
                await asyncio.wait_for(self._woken.wait(), LOOK_S - _WAKE_S)
            except TimeoutError:
                pass

    async def _look(self) -> None:
        rows = await _in_thread(lambda: look(self._watched, self._details, ended=self._shows_ended))
        running = {row.id for row in rows if not row.has_ended}
        gone = [row for row in self._every if not row.has_ended and row.id not in running | self._reported]
        self._every, self._looked = rows, True
        if gone:
            self._message = "; ".join([await self._ending(row) for row in gone[:_ENDINGS]])
        elif self._watched.trouble is not None:
            self._message = self._watched.trouble

    async def _ending(self, row: Row) -> str:
        try:
            shot: Snapshot = await self._hf.get(row.id)
        except HoldfastError:
            return f"{row.id} was removed"
        return f"{row.id}{f' ({shot.name})' if shot.name else ''}: {state_words(shot)[0]}"

    # Drawing.

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        cols = self.app.size.width
        rows = sorted(self._every, key=_ORDERS[self._order])
        if self._filter:
            is_wanted = fits(owner=None, labels=None, status=None, state=None, name=None, search=self._filter)
            rows = [row for row in rows if is_wanted(row.shot)]
        more = [f"{len(rows)} match {printable(self._filter)!r}"] if self._filter else []
        more += [f"by {self._order}"] if self._order != "start" else []
        self._title.update(cut(title(self._every, ", ".join(more)) if self._looked else "hold top", cols))
        self._below.update(cut(printable(self._message), cols) or _KEYS)
        self._below.set_class(bool(self._message), "message")
        self._fill(rows, cols)

    def _fill(self, rows: list[Row], cols: int) -> None:
        """Only cells that changed are drawn again. The selection stays with its session; if that is gone, with its
        place."""
        selected, self._select = self._select or self._selected(), None
        at = min(self._list.cursor_row, max(0, len(rows) - 1))
        lines = [cells(row, cols) for row in rows]
        columns = fitting(lines, cols - 2)
        is_new, top = columns != self._columns, self._list.scroll_y
        if is_new or len(lines) < len(self._drawn):
            self._list.clear(columns=is_new)
            self._drawn = []
            for n, width in columns.items() if is_new else ():
                self._list.add_column(Text(HEADS[n], justify=_side(n)), width=width, key=HEADS[n])
        for number, line in enumerate(lines):
            if number == len(self._drawn):
                self._list.add_row(*(_text(line, n, width) for n, width in columns.items()), key=str(number))
                self._drawn.append(line)
                continue
            for n, width in columns.items():
                if line[n] != self._drawn[number][n]:
                    self._list.update_cell(str(number), HEADS[n], _text(line, n, width))
            self._drawn[number] = line
        self._list.show_header = bool(rows)
        moved = [row.id for row in rows] != [row.id for row in self._shown]
        self._shown, self._columns = rows, columns
        if is_new or moved:
            at = next((number for number, row in enumerate(rows) if row.id == selected), at)
            self._list.scroll_to(y=top, animate=False, force=True)
            self._list.move_cursor(row=at)

    def _selected(self) -> str | None:
        at = self._list.cursor_row
        return self._shown[at].id if at < len(self._shown) else None

    # Keys.

    def press(self, key: str) -> bool:
        """True unless the key is text for the filter."""
        if self._message:
            self._message = ""
            self._draw()
        if self._input.display:
            if key == "escape":
                self._clear_filter()
            if key in ("escape", "enter"):
                self._show_input(False)
            return key in ("escape", "enter")
        act = {
            "up": self._list.action_cursor_up,
            "down": self._list.action_cursor_down,
            "page_up": self._list.action_page_up,
            "page_down": self._list.action_page_down,
            "home": self._list.action_scroll_top,
            "end": self._list.action_scroll_bottom,
            "enter": self._open,
            "l": self._show_log,
            "s": lambda: self._ask("stop"),
            "r": lambda: self._ask("restart"),
            "/": lambda: self._show_input(True),
            "escape": self._clear_filter,
            "o": self._change_order,
            "a": self._show_ended,
            "?": lambda: self.app.push_screen(Overlay(_HELP, "help")),
            "q": self.app.exit,
        }.get(_MOVES.get(key, key))
        if act is not None:
            act()
        return True

    def _open(self) -> None:
        id = self._selected()
        if id is not None and next(row.shot.tty for row in self._shown if row.id == id):
            self._attach_to(id)
        else:
            self._show_log()

    def _show_log(self) -> None:
        id = self._selected()
        if id is not None:
            self.app.push_screen(LogView(self._hf, id))

    def _change_order(self) -> None:
        orders = list(_ORDERS)
        self._order = orders[(orders.index(self._order) + 1) % len(orders)]
        self._draw()

    def _show_ended(self) -> None:
        self._shows_ended = not self._shows_ended
        self._woken.set()

    def _show_input(self, shown: bool) -> None:
        self._below.display = not shown
        self._input.display = shown
        self.set_focus(self._input if shown else self._list)

    def on_input_changed(self, event: Input.Changed) -> None:
        self._filter = event.value
        self._draw()

    def _clear_filter(self) -> None:
        self._filter = self._input.value = ""
        self._draw()

    def _ask(self, what: str) -> None:
        id = self._selected()
        if id is None:
            return
        name = next((row.shot.name for row in self._shown if row.id == id), None)
        text = f"{what} {id}{f' ({printable(name)})' if name else ''}? y/n"
        self.app.push_screen(Overlay(text, "question", lambda: self._begin(what, id)))

    # Acting.

    def _begin(self, what: str, id: str) -> None:
        if id in self._at_work:
            return
        self._message = f"{id}: {'stopping' if what == 'stop' else 'restarting'}"
        self._draw()
        task = asyncio.create_task(self._act(what, id))
        self._at_work[id] = task
        self._reported.add(id)
        task.add_done_callback(lambda task: self._done(id, task))

    def _done(self, id: str, task: asyncio.Task[str]) -> None:
        if self.is_left:
            return  # `finish` reports it
        self._at_work.pop(id, None)
        if not task.cancelled():
            self._message = f"{id}: {task.result()}"
        self._woken.set()

    async def _act(self, what: str, id: str) -> str:
        try:
            session = await self._hf.get(id)
            if what == "stop":
                return in_words(await session.stop())
            again = await session.restart()
        except HoldfastError as problem:
            return f"{problem.message}; {problem.fix}"
        self._select = again.id
        return "restarted" if again.id == id else f"restarted as {again.id}"

    def _attach_to(self, id: str) -> None:
        """Blocks until the user detaches, as `hold attach` does."""
        from ..terminal.keys import detach_key
        from .attach_loop import AttachLoop, AttachOptions

        with self.app.suspend(), open_home() as hf:
            try:
                rows, key = hf.config.terminal_history_rows, detach_key(hf.config.terminal_detach_key)
                loop = AttachLoop(hf.get(id), AttachOptions(key=key, history_rows=rows))
                loop.run()
            except HoldfastError as problem:
                self._message = problem.message
            else:
                if loop.dismissed:
                    self.app.exit()


async def _in_thread(work: Callable[[], list[Row]]) -> list[Row]:
    """In a thread that does not outlive the process: one that waits for a runner must not hold up its end."""
    done: Future[list[Row]] = Future()
    done.set_running_or_notify_cancel()  # what it has begun is not cancelled

    def run() -> None:
        try:
            done.set_result(work())
        except Exception as problem:  # noqa: BLE001  it is raised where the result is awaited
            done.set_exception(problem)

    threading.Thread(target=run, name="hold-top", daemon=True).start()
    return await asyncio.wrap_future(done)


def _side(column: int) -> Any:
    return "right" if HEADS[column] in _RIGHT else "left"


def _text(line: list[Cell], column: int, width: int) -> Text:
    text, colour = line[column]
    return Text(cut(text, width), _STYLES[colour], justify=_side(column))


class Overlay(ModalScreen[None]):
    """A text at the bottom, until the next key. If there is a question in it, y or Y is yes."""

    def __init__(self, text: str, kind: str, act: Callable[[], None] = lambda: None) -> None:
        super().__init__()
        self._text = Static(text, classes=kind, markup=False)
        self._act = act

    def compose(self) -> Iterable[Any]:
        return [self._text]

    def press(self, key: str) -> bool:
        self.dismiss()
        if key in ("y", "Y"):
            self._act()
        return True


class LogView(Screen[None]):
    """The log of a session, followed while its end is shown."""

    def __init__(self, hf: AsyncHoldfast, id: str) -> None:
        super().__init__()
        self._hf = hf
        self._session_id = id
        self._output = Log(hf.home.session(id))
        self._clean = Cleaners(self._output, follow=True)

    def compose(self) -> Iterable[Any]:
        self._title = Static(classes="title", markup=False)
        self._text = RichLog(max_lines=_LOG_LINES, min_width=1, wrap=True)
        self._unfinished = Static(markup=False)
        return [self._title, self._text, self._unfinished, Static(_LOG_KEYS, classes="below", markup=False)]

    def on_mount(self) -> None:
        self._unfinished.display = False
        self.run_worker(self._follow())

    def press(self, key: str) -> bool:
        if key in ("q", "escape"):
            self.dismiss()
            return True
        move = {**_MOVES, "enter": "down", "b": "page_up", " ": "page_down"}.get(key)
        if move is not None:
            getattr(self._text, f"scroll_{move}")(animate=False)
        return True

    async def _follow(self) -> None:
        head = self._session_id
        try:
            session = await self._hf.get(head)
            head = f"{session.id}  {printable(session.description)}"
            self._say(f"{head}  {state_words(session)[0]}")
            while await self._follow_from_end(session):
                pass
            self._add(self._clean.rest(), "")
            self._say(f"{head}  {state_words(await session.refresh())[0]}")
        except (HoldfastError, OSError) as problem:
            self._say(f"{head}  {problem}")

    def _say(self, text: str) -> None:
        self._title.update(cut(text, self.app.size.width))

    async def _follow_from_end(self, session: AsyncSession) -> bool:
        """True if it prints faster than this can show: then some output is skipped."""
        end = self._output.tail(_FIRST_LINES)
        self._show(end)
        async for page in session.follow(end.cursor):
            self._show(page)
            if page.more:
                self._clean = Cleaners(self._output, follow=True)
                self._add("(output is faster than this view: some of it is skipped here, the log has all of it)", "")
                return True
            await asyncio.sleep(_GATHER_S)
        return False

    def _show(self, page: Page) -> None:
        for stream, start, stop, reason in page.gaps:
            self._add(f"({stop - start} bytes of {stream} from byte {start} are missing: {reason})", "")
        if page.told:
            self._add(page.text, "")
        elif page.chunks:
            text = "".join(self._clean.feed(*chunk) for chunk in page.chunks)
            self._add(text, self._clean.unfinished(page.chunks[-1][0]))

    def _add(self, text: str, unfinished: str) -> None:
        """Finished lines, and the line that is not finished yet."""
        lines = [printable(line.expandtabs()) for line in text.splitlines()]
        if lines:
            self._text.write(Text("\n".join(lines)), scroll_end=self._text.is_vertical_scroll_end)
        self._unfinished.update(printable(unfinished))
        self._unfinished.display = bool(unfinished)
