"""A real Chromium for the page, and what each tab sent, printed and failed at."""

from __future__ import annotations

import json
import shutil
import socket
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from support import waiting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from playwright.sync_api import (
        Browser,
        BrowserContext,
        CDPSession,
        ConsoleMessage,
        Error,
        Page,
        Playwright,
        Request,
        Response,
        WebSocket,
    )

    from holdfast import Session
    from support.serving import Serving
    from support.world import World

# The browser looks for its maker's servers otherwise.
_QUIET = ("background-networking", "component-update", "sync", "quic", "gpu", "domain-reliability")
# A browser starts many processes: it needs longer than others on a machine with other work.
BOUND_S = 60.0
BOUND_MS = BOUND_S * 1000
until = partial(waiting.until, bound=BOUND_S)
_POLLING_MS = 20
_BUFFER = """() => {
    const buffer = document.querySelector(".terminal")?.terminal?.buffer.active;
    if (!buffer) return "";
    let text = "";
    for (let row = 0; row < buffer.length; row++) {
        const line = buffer.getLine(row);
        text += (row && !line.isWrapped ? "\\n" : "") + line.translateToString(true);
    }
    return text;
}"""


_SCREEN = """() => {
    const {attachment, terminal} = document.querySelector(".terminal");
    const buffer = terminal.buffer.active;
    const row = (_, row) => buffer.getLine(buffer.baseY + row).translateToString(true);
    return [attachment.offset, Array.from({length: terminal.rows}, row).join("\\n")];
}"""
_IS_FITTED = """() => {
    const {attachment, terminal} = document.querySelector(".terminal");
    const room = attachment.screen.fit.proposeDimensions();
    return terminal.rows === room.rows && terminal.cols === room.cols;
}"""
# The highlighted line of the log.
_PICKED = """() => {
    const box = document.querySelector(".picked")?.getBoundingClientRect();
    const rows = [...document.querySelectorAll(".xterm-rows > div")];
    const row = box && rows.find((row) => Math.abs(row.getBoundingClientRect().top - box.top) < 4);
    return row?.textContent.replace("▏", "").trim() ?? "";
}"""
# Of the devtools protocol, by the modifier that it is.
_MODIFIERS = {"M-": 1, "C-": 2, "S-": 8}


class Tab:
    """One tab of a browser. `problems` are what a clean run has none of."""

    def __init__(self, page: Page, origin: str) -> None:
        self.page = page
        self.origin = origin
        self.requests: list[Request] = []
        self.sockets: list[WebSocket] = []
        self.problems: list[str] = []
        page.set_default_timeout(BOUND_MS)
        page.on("request", self._note_request)
        page.on("websocket", self._note_socket)
        page.on("console", self._note_line)
        page.on("pageerror", self._note_exception)
        page.on("response", self._note_answer)

    def _note_socket(self, socket: WebSocket) -> None:
        self.sockets.append(socket)

    def _note_line(self, line: ConsoleMessage) -> None:
        self.problems.append(f"console: {line.text}")

    def _note_exception(self, error: Error) -> None:
        self.problems.append(f"exception: {error}")

    def _note_answer(self, answer: Response) -> None:
        if answer.status >= 400:
            self.problems.append(f"{answer.status} {answer.url}")

    def _note_request(self, request: Request) -> None:
        self.requests.append(request)
        parts = urlsplit(request.url)
        if parts.scheme in ("http", "https", "ws", "wss") and f"{parts.scheme}://{parts.netloc}" != self.origin:
            self.problems.append(f"another origin: {request.url}")

    def open(self, path: str) -> None:
        self.page.goto(path if "://" in path else self.origin + path)

    def row(self, name: str) -> str:
        """The selector of a session's row in the list."""
        return f"a.row:has(.name bdi:text-is({name!r}))"

    def shows(self, text: str, within: str = "body") -> None:
        # A hidden tab draws no frames, by which it would look otherwise.
        self.page.wait_for_function(
            "([selector, text]) => document.querySelector(selector)?.textContent.includes(text)",
            arg=[within, text],
            polling=_POLLING_MS,
        )

    def terminal_shows(self, text: str) -> None:
        self.shows(text, ".xterm-rows")

    def buffer(self) -> str:
        """Everything in the terminal's buffer, wrapped lines joined."""
        return str(self.page.evaluate(_BUFFER))

    def screen(self) -> tuple[int, str]:
        """The offset behind the last byte that the attached terminal shows, and its rows."""
        offset, text = self.page.evaluate(_SCREEN)
        return offset, plain_rows(text)

    def picked(self) -> str:
        """The highlighted line of the log, if it is in view."""
        return str(self.page.evaluate(_PICKED))

    def is_fitted(self) -> bool:
        """The attached terminal has the size that fills its room: the session's last answer to a resize has come."""
        return bool(self.page.evaluate(_IS_FITTED))

    def attach(self, session: Session, query: str = "", status: str = "live") -> None:
        self.open(f"/s/{session.id}{query}")
        self.shows(status, ".connection")

    def until_taken(self) -> None:
        """Until the session has taken all that was typed into the attached terminal."""
        self.page.wait_for_function(
            "() => document.querySelector('.terminal').attachment.inputs.size === 0", polling=_POLLING_MS
        )

    def passes(self, seconds: float) -> None:
        """Let the page's own clock pass: for what must hold for so long."""
        self.page.evaluate("(ms) => new Promise((done) => setTimeout(done, ms))", seconds * 1000)

    @cached_property
    def devtools(self) -> CDPSession:
        return self.page.context.new_cdp_session(self.page)

    def press(self, key: str, modifiers: str = "", *, code: str = "", number: int = 0, text: str = "") -> None:
        """One key as a keyboard sends it, with modifiers as of a key token (`C-M-S-`)."""
        bits = sum(bit for name, bit in _MODIFIERS.items() if name in modifiers)
        event = {"key": key, "code": code, "modifiers": bits, "windowsVirtualKeyCode": number, "text": text}
        if code.startswith("Numpad"):
            event |= {"isKeypad": True, "location": 3}
        self.devtools.send("Input.dispatchKeyEvent", {**event, "type": "keyDown" if text else "rawKeyDown"})
        self.devtools.send("Input.dispatchKeyEvent", {**event, "type": "keyUp", "text": ""})

    def sent(self) -> list[dict[str, Any]]:
        """What its attached terminals have sent, from the first call on."""
        if not hasattr(self, "_frames"):
            self._frames: list[dict[str, Any]] = []
            self.page.on("websocket", lambda socket: socket.on("framesent", self._note_frame))
        return self._frames

    def _note_frame(self, frame: str | bytes) -> None:
        data = frame.encode() if isinstance(frame, str) else frame
        self._frames.append(json.loads(data[1:]))


def plain_rows(text: str) -> str:
    """Rows without the blanks at their ends, and without the empty ones below."""
    return "\n".join(row.rstrip() for row in text.split("\n")).rstrip("\n")


class Chromium:
    def __init__(self, playwright: Playwright, browser: Browser, port: int, serving: Serving) -> None:
        self._playwright = playwright
        self._browser = browser
        self._port = port
        self._serving = serving

    def window(self) -> BrowserContext:
        """One window: only its tab in front is visible. In other contexts each tab takes itself for visible."""
        address = f"http://127.0.0.1:{self._port}"
        return self._playwright.chromium.connect_over_cdp(address, no_defaults=True).contexts[0]

    def context(self, **options: object) -> BrowserContext:
        """A person's browser: contexts share nothing."""
        return self._browser.new_context(**{"viewport": {"width": 1280, "height": 800}, **options})  # type: ignore[arg-type]

    def tab(self, context: BrowserContext | None = None) -> Tab:
        page = (context or self.context()).new_page()
        page.bring_to_front()
        return Tab(page, self._serving.url)

    def signed_in(self, context: BrowserContext | None = None, /, **options: object) -> Tab:
        """A tab that shows the list."""
        tab = self.tab(context or self.context(**options))
        tab.open(f"{self._serving.url}/#code={self._serving.fresh_code()}")
        tab.page.wait_for_selector("main.list")
        return tab


@pytest.fixture
def start(world: World) -> Callable[..., Session]:
    """Start a session that ends with the test."""

    def start(command: str | list[str], **options: Any) -> Session:
        session = world.open().start(command, **options)
        world.closing.callback(session.kill)
        return session

    return start


@pytest.fixture
def chromium(serving: Serving) -> Iterator[Chromium]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    assert path, "chromium is missing: apt-get install chromium"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = ["--no-sandbox", "--no-first-run", f"--remote-debugging-port={port}", "--window-size=1280,900"]
    flags += [f"--disable-{each}" for each in _QUIET]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield Chromium(playwright, browser, port, serving)
        finally:
            browser.close()
