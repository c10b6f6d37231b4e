"""The page on a phone: a narrow screen, fingers, and a keyboard that covers half of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.browser import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Session
    from support.browser import Chromium, Tab

    Start = Callable[..., Session]

_PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
# A soft keyboard takes this much of the height: `interactive-widget=resizes-content` makes the page as much smaller.
_KEYBOARD_PX = 340
_CAT = "stty raw -echo; printf ready; exec od -An -tx1 -v -w1"


def fits(tab: Tab) -> None:
    """Nothing sticks out to the side: the page cannot be scrolled that way, and what is shown ends within it."""
    wide = tab.page.evaluate(
        """() => [...document.querySelectorAll("body *")].filter((each) => {
            const {right, width} = each.getBoundingClientRect();
            const isCut = each.parentElement.closest(".terminal, .chips, .choices, .keys-row, pre, .row, .hidden, svg");
            return width > 0 && right > innerWidth + 1 && !isCut;
        }).map((each) => each.outerHTML.slice(0, 120))"""
    )
    assert wide == []
    assert tab.page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")


@pytest.mark.covers("page:33")
@pytest.mark.timeout(300)
def test_list_terminal_inbox_and_replay_by_touch(chromium: Chromium, start: Start) -> None:
    raw = start(_CAT, tty=True, name="raw", size=(24, 80))
    asks = start("printf 'Sure? [y/N] '; read answer; echo got $answer; sleep 600", tty=True, name="asks")
    start(
        "echo a very long line without an end $(seq -s ' ' 200); sleep 600", name="with a rather long name for a phone"
    )
    until(lambda: asks.refresh().needs_input)
    tab = chromium.signed_in(chromium.context(**_PHONE))
    page = tab.page
    page.wait_for_selector(tab.row("raw"))
    fits(tab)
    heights = page.eval_on_selector_all("a.row", "rows => rows.map((row) => row.getBoundingClientRect().height)")
    assert min(heights) >= 44

    page.tap(tab.row("raw"))
    tab.terminal_shows("ready")
    fits(tab)
    assert page.query_selector(".touch") is not None

    def typed(wanted: str) -> None:
        until(lambda: raw.text().split("ready")[-1].split() == wanted.split(), what=wanted)

    page.tap(".touch button:text-is('Esc')")
    typed("1b")
    page.tap(".touch button:text-is('Ctrl')")
    page.fill(".touch input", "a")
    typed("1b 01")
    # It stuck for one key.
    page.tap(".touch button:text-is('Tab')")
    typed("1b 01 09")
    for _ in range(2):
        page.tap(".touch button:text-is('Ctrl')")
    page.fill(".touch input", "b")
    page.fill(".touch input", "e")
    typed("1b 01 09 02 05")
    page.tap(".touch button:text-is('Ctrl')")
    page.fill(".touch input", "hi")
    page.tap(".touch button:text-is('Send')")
    typed("1b 01 09 02 05 68 69 0d")

    page.fill(".touch input", "kept")
    page.set_viewport_size({"width": 390, "height": 844 - _KEYBOARD_PX})
    bar = page.eval_on_selector(".touch", "bar => bar.getBoundingClientRect().bottom")
    assert bar <= 844 - _KEYBOARD_PX
    fits(tab)
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    page.wait_for_selector(".touch input")
    assert page.input_value(".touch input") == "kept"

    page.wait_for_selector(".timeline svg")
    page.tap(".timeline svg")
    page.wait_for_selector(".past .xterm-screen")
    tab.shows("ready", ".past")
    fits(tab)
    page.tap(".past button:has-text('Play')")
    page.tap("button:text-is('Live')")
    tab.shows("live", ".connection")

    page.tap("header.top a:text('Inbox')")
    page.wait_for_selector(".question input")
    fits(tab)
    page.fill(".question input", "y")
    page.tap(".question button:text('Send')")
    assert asks.wait(match="got y", timeout=60).reason == "match"
    page.tap("header.top a:text('Grid')")
    page.wait_for_selector(".tile")
    fits(tab)
    page.tap("header.top .primary")
    page.wait_for_selector("dialog")
    fits(tab)
