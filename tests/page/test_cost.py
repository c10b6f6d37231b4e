"""What the page costs: the server while nobody looks, and the browser after a long time."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import until
from support.scale import scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.serving import Serving

    Start = Callable[..., Session]

IDLE_S = scaled(20, 120)
MINUTES = scaled(0.3, 30)
BUSY = scaled(8, 50)
# Ten a minute.
PAUSE_S = scaled(0.0, 6.0)
_LEAST_TICKS = 2
_LINGER_S = 10


def ticks(pid: int) -> int:
    """Processor time of a process."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


@pytest.mark.covers("page:37")
@pytest.mark.timeout(600)
def test_a_server_without_viewers_uses_no_cpu(chromium: Chromium, serving: Serving, start: Start) -> None:
    start("echo hello; sleep 600", name="idle")
    window = chromium.window()
    tab = chromium.signed_in(window)
    tab.shows("idle", ".rows")
    tab.passes(2)
    cover = window.new_page()
    until(lambda: tab.page.evaluate("document.visibilityState") == "hidden")

    # A hidden page of an idle home: below 0.1 % of a processor, and the clock of a tick is coarse.
    before = ticks(serving.pid)
    tab.passes(IDLE_S)
    assert ticks(serving.pid) - before <= max(_LEAST_TICKS, IDLE_S * os.sysconf("SC_CLK_TCK") / 1000)

    tab.page.close()
    until(lambda: _readers(serving) == 0)
    # The server keeps its watches for some seconds after the last reader.
    _pass(cover, _LINGER_S)
    before = ticks(serving.pid)
    _pass(cover, IDLE_S)
    # The clock of a tick is coarse: one may begin before.
    assert ticks(serving.pid) - before <= 1


def _pass(page: Page, seconds: float) -> None:
    page.evaluate("(ms) => new Promise((done) => setTimeout(done, ms))", seconds * 1000)


def _readers(serving: Serving) -> float:
    lines = serving.call("GET", "/metrics").body.decode().splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if 'transport="sse"' in line)


def measured(tab: Tab) -> dict[str, Any]:
    """Heap and listeners after a collection."""
    tab.devtools.send("HeapProfiler.collectGarbage")
    found = tab.devtools.send("Performance.getMetrics")["metrics"]
    return {each["name"]: each["value"] for each in found}


@pytest.mark.covers("page:36")
@pytest.mark.timeout(3600)
def test_hours_of_coming_and_going_leave_nothing_in_the_browser(
    chromium: Chromium, serving: Serving, start: Start
) -> None:
    """Ten times a minute one of many busy sessions is attached and left again."""
    for number in range(BUSY):
        start("while :; do echo busy $((i+=1)); sleep 0.5; done", name=f"busy-{number}", tty=True)
    # Rows out of view are not in the document: all of them are in view.
    tab = chromium.signed_in(viewport={"width": 1280, "height": 200 + 32 * BUSY})
    tab.devtools.send("Performance.enable")
    page = tab.page

    def visit(number: int) -> None:
        page.click(tab.row(f"busy-{number % BUSY}"))
        tab.terminal_shows("busy")
        page.click("header.top a.brand")
        # Not `wait_for_selector`: its handle would keep the row.
        page.locator(tab.row("busy-0")).wait_for()

    # The first visits load the terminal and fill caches.
    for number in range(3):
        visit(number)
    tab.passes(1)
    before = measured(tab)
    rounds = max(10, int(MINUTES * 10))
    for number in range(rounds):
        began = time.monotonic()
        visit(number)
        tab.passes(max(0.0, PAUSE_S - (time.monotonic() - began)))
    # What the last visit left goes in a moment; what each left would stay.
    until(lambda: measured(tab)["JSEventListeners"] <= before["JSEventListeners"], what="the listeners of before")
    until(lambda: measured(tab)["Nodes"] <= before["Nodes"] * 1.2, what="the elements of before")
    assert measured(tab)["JSHeapUsedSize"] - before["JSHeapUsedSize"] < 20_000_000
    assert len(tab.sockets) >= rounds + 3
    until(lambda: tab.page.evaluate("1") and all(each.is_closed() for each in tab.sockets))
    nobody = {"control": 0, "observe": 0}
    for number in range(BUSY):
        path = f"/v1/sessions/busy-{number}"
        until(lambda path=path: serving.call("GET", path).json["attached"] == nobody)  # type: ignore[misc]
