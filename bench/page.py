"""B18: the page in headless Chromium. Each figure is held against a goal in seconds, milliseconds or bytes."""

from __future__ import annotations

import os
import random
import select
import shutil
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from holdfast.sessions.api import Holdfast, Session

from .measure import Spread
from .place import place
from .report import Against, Row
from .signals import fill

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from playwright.sync_api import Browser, BrowserContext, Page

_BOUND_S = 120.0
_ROUNDS = 11
_KEYS = 200
_MINUTE_S = 60.0
_LOG_LINES = 740_000
_SEEKS = 60
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
# When the first element of a kind, or the first text in a terminal, was there: milliseconds of the page's own clock.
_SPY = """
    window.first = {};
    window.pressed = [];
    window.sent = [];
    window.tasks = [];
    new MutationObserver(() => {
        if (document.querySelector("a.row")) window.first.row ??= performance.now();
        const drawn = document.querySelector(".xterm-rows")?.textContent;
        if (drawn?.includes("ready")) window.first.screen ??= performance.now();
    }).observe(document, { childList: true, subtree: true, characterData: true });
    addEventListener("click", () => (window.first = { click: performance.now() }), true);
    addEventListener("keydown", () => window.pressed.push(performance.now()), true);
    const send = WebSocket.prototype.send;
    WebSocket.prototype.send = function (data) {
        if (String(new TextDecoder().decode(data)).includes('"input"')) window.sent.push(performance.now());
        return send.call(this, data);
    };
    new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((each) => each.duration)))
        .observe({ type: "longtask", buffered: true });
"""
# The milliseconds from each key to its echo in the rows of the terminal.
_ECHO = """() => {
    const rows = document.querySelector(".xterm-rows");
    let shown = rows.textContent;
    window.echoes = [];
    new MutationObserver(() => {
        if (rows.textContent === shown) return;
        shown = rows.textContent;
        window.echoes.push(performance.now() - window.pressed.at(-1));
    }).observe(rows, { childList: true, subtree: true, characterData: true });
}"""
# Goes to an offset as a link to it would, and resolves with the milliseconds until it is drawn.
_SEEK = """(offset) => new Promise((done, fail) => {
    setTimeout(() => fail(new Error(`${offset} was not drawn`)), 60_000);
    const begun = performance.now();
    const box = () => document.querySelector(".past .terminal");
    const observer = new MutationObserver(() => {
        if (box()?.dataset.offset !== String(offset)) return;
        observer.disconnect();
        done(performance.now() - begun);
    });
    observer.observe(document, { subtree: true, childList: true, attributes: true });
    history.pushState(null, "", "?at=" + offset);
    dispatchEvent(new PopStateEvent("popstate"));
})"""
# Clicks, and resolves with the milliseconds until an element of the selector is there that was not before.
_CLICK = """([target, selector]) => new Promise((done, fail) => {
    setTimeout(() => fail(new Error(`${selector} did not appear`)), 60_000);
    const begun = performance.now();
    let isGone = !document.querySelector(selector);
    const observer = new MutationObserver(() => {
        const isThere = document.querySelector(selector) !== null;
        isGone ||= !isThere;
        if (!isThere || !isGone) return;
        observer.disconnect();
        done(performance.now() - begun);
    });
    observer.observe(document, { subtree: true, childList: true, attributes: true });
    document.querySelector(target).click();
})"""
_FLOOD = """
import os
line = b"a line of a flood, as long as such lines are, printed again and again\\r\\n" * 900
os.write(1, b"ready\\r\\n")
os.read(0, 1)
for _ in range(100_000_000 // len(line)): os.write(1, line)
os.read(0, 1 << 16)
while True: os.read(0, 1)
"""
_LONG = f"""
import os
line = b"%08d haystack haystack haystack haystack haystack haystack haystack haystack needle %d\\n"
for n in range(0, {_LOG_LINES}, 1000): os.writev(1, [line % (k, k % 1000) for k in range(n, n + 1000)])
print("ready", flush=True)
input()
"""


class _Served:
    def __init__(self, home: str, browser: Browser) -> None:
        self._home = home
        self._browser = browser
        self.port = 0
        self.start()

    def start(self) -> float:
        """When it listened."""
        words = [os.path.join(os.path.dirname(sys.executable), "hold"), "serve", "--port", str(self.port)]
        self._program = subprocess.Popen(words, stdout=subprocess.PIPE)
        assert self._program.stdout is not None
        self.url = self._program.stdout.readline().split()[0].decode().partition("/#")[0]
        self.port = int(self.url.rpartition(":")[2])
        return time.perf_counter()

    def end(self, *, kill: bool = False) -> None:
        (self._program.kill if kill else self._program.terminate)()
        self._program.wait()
        assert self._program.stdout is not None
        self._program.stdout.close()

    def tab(self, path: str = "/") -> Page:
        """A browser with nothing in its cache, signed in."""
        opened = subprocess.run(
            [os.path.join(os.path.dirname(sys.executable), "hold"), "open"], stdout=subprocess.PIPE, check=True
        )
        code = opened.stdout.decode().strip().partition("#code=")[2]
        page = self._context().new_page()
        page.set_default_timeout(_BOUND_S * 1000)
        page.add_init_script(_SPY)
        page.goto(f"{self.url}{path}#code={code}")
        return page

    def _context(self) -> BrowserContext:
        return self._browser.new_context(viewport={"width": 1280, "height": 800})


@contextmanager
def _served() -> Iterator[tuple[_Served, Holdfast]]:
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        raise FileNotFoundError("chromium; `tools/system-packages.sh bench` installs it")
    with place() as here, here.open() as hf, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        served = _Served(here.environ["HOLDFAST_HOME"], browser)
        try:
            yield served, hf
        finally:
            browser.close()
            served.end()


def page() -> list[Row]:
    rows = []
    for measure in (_first_row_and_screen, _echo, _thousand, _flood, _restart, _find, _seek):
        stalled, began = stalled_s(), time.monotonic()
        with _served() as (served, hf):
            row = measure(served, hf)
        share = (stalled_s() - stalled) / (time.monotonic() - began)
        row.note = "; ".join(filter(None, (row.note, f"programs waited for a processor in {share:.0%} of the time")))
        rows.append(Row("B18", row.what, row.ours, row.against, f"{row.what}: {row.note}"))
    return rows


class _Measured:
    """A row of the goals: its name and goals are those of the contract, word for word."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.against: list[Against] = []
        self.note = ""
        self._said: list[str] = []

    def add(self, goal: str, limit: float, figures: list[float], unit: str) -> None:
        """Hold the median of the figures against the limit; all in seconds or bytes."""
        spread = Spread.of(figures)
        scale = {"s": 1.0, "ms": 1e-3, "MB": 1e6}[unit]
        self._said.append(f"{spread.median / scale:.{2 if unit == 's' else 1}f} {unit}")
        self.against.append(
            Against(goal, Spread(spread.median / limit, spread.low / limit, spread.high / limit), at_most=1)
        )

    @property
    def ours(self) -> str:
        return "; ".join(self._said)


def _terminal(hf: Holdfast, name: str, code: str, **options: Any) -> Session:
    return hf.start([sys.executable, "-c", code], tty=True, name=name, size=(30, 120), **options)


def _open(served: _Served, session: Session) -> Page:
    """A tab attached to a session, with the keyboard in it."""
    page = served.tab(f"/s/{session.id}")
    page.wait_for_function("() => document.querySelector('.xterm-rows')?.textContent.includes('ready')")
    page.focus(".terminal textarea")
    return page


def _first_row_and_screen(served: _Served, hf: Holdfast) -> _Measured:
    for n in range(49):
        hf.run(f"echo {n}", name=f"job-{n}", wait=10)
    _terminal(hf, "screen", "print('ready'); input()")
    row = _Measured("list of 50, cold, to the first row; to the terminal's first screen from a click")
    lists, screens = [], []
    for _ in range(_ROUNDS):
        page = served.tab()
        page.wait_for_function("() => window.first.row")
        lists.append(page.evaluate("window.first.row") / 1e3)
        page.click("a.row:has-text('screen')")
        page.wait_for_function("() => window.first.screen")
        screens.append(page.evaluate("window.first.screen - window.first.click") / 1e3)
        page.context.close()
    row.add("1.0 s", 1.0, lists, "s")
    row.add("0.8 s", 0.8, screens, "s")
    return row


def _echo(served: _Served, hf: Holdfast) -> _Measured:
    session = _terminal(
        hf, "echo", "import os, tty\ntty.setraw(0)\nos.write(1, b'ready')\nwhile True: os.write(1, os.read(0, 1))"
    )
    page = _open(served, session)
    page.evaluate(_ECHO)
    for n in range(_KEYS):
        page.keyboard.press("abcdefgh"[n % 8])
        page.wait_for_function(f"() => window.echoes.length > {n}")
    echoes = [each / 1e3 for each in page.evaluate("window.echoes")]
    server = []
    with _socket(served, session) as (send, receive):
        for _ in range(_KEYS):
            began = time.perf_counter()
            send()
            receive()
            server.append(time.perf_counter() - began)
    row = _Measured("key to echo drawn, localhost; the server's part of it (frame in, frame out)")
    row.add("30 ms", 0.030, echoes, "ms")
    row.add("p99 80 ms", 0.080, [statistics.quantiles(echoes, n=100)[98]], "ms")
    row.add("2 ms", 0.002, server, "ms")
    row.note = "the server's part includes runner, terminal, program and a client in Python"
    return row


@contextmanager
def _socket(served: _Served, session: Session) -> Iterator[tuple[Callable[[], None], Callable[[], None]]]:
    """One key in, its echo out."""
    import json

    from websockets.sync.client import connect
    from websockets.typing import Subprotocol

    with open(os.path.join(os.environ["HOLDFAST_HOME"], "server", "token")) as file:
        token = f"hf_home_{file.read().strip()}"
    address = f"{served.url.replace('http', 'ws')}/v1/sessions/{session.id}/attach?from=now"
    headers = {"Authorization": f"Bearer {token}"}
    with connect(address, subprotocols=[Subprotocol("holdfast.v1.json")], additional_headers=headers) as there:

        def receive() -> None:
            while json.loads(there.recv(_BOUND_S))["type"] != "data":
                pass

        yield lambda: there.send(json.dumps({"type": "input", "id": 1, "data": "x"})), receive


def _thousand(served: _Served, hf: Holdfast) -> _Measured:
    fill(hf, 950)
    for n in range(50):
        hf.start("while :; do echo more; sleep 0.25; done", name=f"busy-{n}")
    page = served.tab()
    page.wait_for_function("() => window.first.row")
    metrics = page.context.new_cdp_session(page)
    _heap(metrics)
    select.select([], [], [], 5)
    before = _heap(metrics)
    page.evaluate("window.tasks.length = 0")
    select.select([], [], [], _MINUTE_S)
    tasks, after = page.evaluate("window.tasks"), _heap(metrics)
    row = _Measured("1,000 rows, 50 of them changing four times a second, for a minute")
    row.add("no task above 100 ms", 0.1, [max(tasks, default=0) / 1e3], "ms")
    row.add("heap grows by less than 20 MB", 20e6, [max(0.0, after - before)], "MB")
    row.note = f"{len(tasks)} tasks of more than 50 ms; heap {after / 1e6:.1f} MB"
    return row


def _heap(metrics: Any) -> float:
    metrics.send("HeapProfiler.collectGarbage")
    return float(metrics.send("Runtime.getHeapUsage")["usedSize"])


def _flood(served: _Served, hf: Holdfast) -> _Measured:
    session = _terminal(hf, "flood", _FLOOD, log_cap=256 << 20)
    page = _open(served, session)
    metrics = page.context.new_cdp_session(page)
    page.keyboard.press("Enter")
    page.evaluate("window.pressed.length = window.sent.length = 0")
    highest = 0.0
    while session.refresh().ends["tty"] < 99_000_000:
        page.keyboard.press("a")
        highest = max(highest, float(metrics.send("Runtime.getHeapUsage")["usedSize"]))
    keys = page.evaluate("[window.pressed, window.sent]")
    delays = [(sent - pressed) / 1e3 for pressed, sent in zip(*keys, strict=False)]
    again = _terminal(hf, "again", _FLOOD.replace("100_000_000", "10_000_000_000"), log_cap=64 << 20)
    page = _open(served, again)
    page.keyboard.press("Enter")
    again.wait(match="flood", timeout=_BOUND_S)
    began = time.perf_counter()
    page.keyboard.press("Control+c")
    again.wait(exit=True, timeout=_BOUND_S)
    ended = time.perf_counter() - began
    row = _Measured("flood of 100 MB while somebody types")
    row.add("key sent within 50 ms p95", 0.050, [statistics.quantiles(delays, n=20)[18]], "ms")
    row.add("`C-c` ends it within 0.5 s", 0.5, [ended], "s")
    row.add("heap below 200 MB", 200e6, [highest], "MB")
    row.note = f"{len(delays)} keys"
    return row


def _restart(served: _Served, hf: Holdfast) -> _Measured:
    session = _terminal(hf, "screen", "print('ready'); input()")
    page = _open(served, session)
    figures = []
    for _ in range(_ROUNDS):
        served.end(kill=True)
        page.wait_for_function("() => document.querySelector('.connection').textContent.includes('offline')")
        began = served.start()
        page.wait_for_function("() => /live|resumed/.test(document.querySelector('.connection').textContent)")
        figures.append(time.perf_counter() - began)
    row = _Measured("server killed and started anew, to live again")
    row.add("1 s after it listens", 1.0, figures, "s")
    return row


def _long_log(served: _Served, hf: Holdfast) -> tuple[Page, Session]:
    session = _terminal(hf, "long", _LONG, log_cap=128 << 20)
    session.wait(match="ready", timeout=_BOUND_S)
    page = served.tab(f"/s/{session.id}?at=1000")
    page.wait_for_selector(".past .terminal[data-offset]")
    return page, session.refresh()


def _find(served: _Served, hf: Holdfast) -> _Measured:
    page, _ = _long_log(served, hf)
    page.click("button:text-is('Find')")
    finds, screens = [], []
    for n in range(_ROUNDS):
        page.fill(".find form > input", f"needle {n % 9 + 1}\\d{n % 7}$")
        page.check(".find input[type=checkbox]")
        finds.append(page.evaluate(_CLICK, [".find form .primary", ".hits li"]) / 1e3)
        page.wait_for_selector(".find form .primary:not([disabled])")
        page.evaluate("delete document.querySelector('.past .terminal').dataset.offset")
        screens.append(page.evaluate(_CLICK, [f".hits li:nth-child({n + 2}) button", ".past [data-offset]"]) / 1e3)
    row = _Measured("find in a 64 MiB log, first hits; hit to screen at that offset")
    row.add("0.5 s", 0.5, finds, "s")
    row.add("0.3 s", 0.3, screens, "s")
    return row


def _seek(served: _Served, hf: Holdfast) -> _Measured:
    page, session = _long_log(served, hf)
    chosen = random.Random(1).sample(range(session.ends["tty"]), _SEEKS)
    figures = [page.evaluate(_SEEK, offset) / 1e3 for offset in chosen]
    row = _Measured("seek anywhere in a 64 MiB terminal log")
    row.add("0.3 s p95", 0.3, [statistics.quantiles(figures, n=20)[18]], "s")
    row.note = f"median {statistics.median(figures):.2f} s"
    return row


def stalled_s() -> float:
    """How long some process has waited for a processor."""
    with open("/proc/pressure/cpu") as file:
        return int(file.readline().rpartition("total=")[2]) / 1e6


ROWS = {"B18": page}
