"""The page on a phone: a narrow screen, fingers, and a keyboard that covers half of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.browser import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.serving import Serving

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
    # A terminal that has the size of the window hides no column and no row.
    cut = """() => [...document.querySelectorAll(".behind:not([inert]) .terminal")].some(
        (each) => each.scrollWidth > each.clientWidth || each.scrollHeight > each.clientHeight)"""
    until(lambda: not tab.page.evaluate(cut), what="a terminal as large as its box")


@pytest.mark.covers("page:33")
@pytest.mark.timeout(300)
def test_list_terminal_inbox_and_replay_by_touch(chromium: Chromium, serving: Serving, start: Start) -> None:
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

    # For what is typed into the terminal itself, too; a soft keyboard sends text, not keys.
    page.tap(".touch button:text-is('Ctrl')")
    page.tap(".terminal")
    page.keyboard.insert_text("c")
    page.keyboard.insert_text("c")
    page.tap(".touch button:text-is('Shift')")
    page.keyboard.press("Tab")
    typed("1b 01 09 02 05 68 69 0d 03 63 1b 5b 5a")

    page.fill(".touch input", "kept")
    page.set_viewport_size({"width": 390, "height": 844 - _KEYBOARD_PX})
    bar = page.eval_on_selector(".touch", "bar => bar.getBoundingClientRect().bottom")
    assert bar <= 844 - _KEYBOARD_PX
    fits(tab)
    page.set_viewport_size({"width": 390, "height": 844})
    page.reload()
    page.wait_for_selector(".touch input")
    assert page.input_value(".touch input") == "kept"

    # A tap near a mark selects it.
    page.wait_for_selector(".timeline .mark.input")
    box = page.locator(".timeline .mark.input").first.bounding_box()
    assert box is not None
    page.touchscreen.tap(box["x"] + 6, box["y"] + 10)
    page.wait_for_url("**at=*")
    inputs = serving.call("GET", f"/v1/sessions/{raw.id}/inputs").json["items"]
    assert int(page.url.partition("at=")[2]) in {each["offset"] for each in inputs}
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
    for action, name in (
        *(("Start a command", "Start a command"), ("Show the keys", "Keys"), ("Tokens", "Tokens")),
        *(("Share this session", "Share as an observer link"), ("Stop this session", "Stop this session?")),
    ):
        if name.startswith("Share"):
            tab.attach(raw)
        page.tap("header.top button:has-text('Go to')")
        page.fill("dialog input", action)
        fits(tab)
        page.tap(f"dialog [role=option]:has-text('{action}')")
        page.wait_for_selector(f"dialog[aria-label={name!r}]")
        fits(tab)
        if name == "Keys":
            assert page.locator("dialog kbd").first.is_visible()
        page.keyboard.press("Escape")


def _touch(tab: Tab, kind: str, *points: tuple[float, float]) -> None:
    touches = [{"x": x, "y": y, "id": number} for number, (x, y) in enumerate(points)]
    tab.devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touches})


def _drag(tab: Tab, begin: list[tuple[float, float]], end: list[tuple[float, float]]) -> None:
    """Fingers from here to there in ten steps."""
    _touch(tab, "touchStart", *begin)
    for step in range(1, 11):
        between = [
            (x + (u - x) * step / 10, y + (v - y) * step / 10) for (x, y), (u, v) in zip(begin, end, strict=True)
        ]
        _touch(tab, "touchMove", *between)
    _touch(tab, "touchEnd")


def test_one_finger_scrolls_a_long_press_selects_and_two_change_the_font(chromium: Chromium, start: Start) -> None:
    session = start(
        "seq -f 'row number %03.0f' 200; read answer; tput smcup; exec od -An -tx1 -v -w1", tty=True, name="rows"
    )
    context = chromium.context(**_PHONE, permissions=["clipboard-read", "clipboard-write"])
    tab = chromium.signed_in(context)
    page = tab.page
    tab.attach(session)
    tab.terminal_shows("number 200")
    # A new size, as the timeline brings one, takes a selection away.
    page.wait_for_selector(".timeline svg")
    tab.passes(0.5)
    until(lambda: "\u00d7" not in page.inner_text(".bar"), what="a terminal of this window's size")
    box = page.locator(".xterm-screen").bounding_box()
    assert box is not None
    x, top, bottom = box["x"] + 60, box["y"] + 20, box["y"] + box["height"] - 20
    terminal = "document.querySelector('.terminal').terminal"
    end = page.evaluate(f"{terminal}.buffer.active.viewportY")

    _drag(tab, [(x, top)], [(x, bottom)])
    until(lambda: page.evaluate(f"{terminal}.buffer.active.viewportY") < end - 5)
    place = page.evaluate(f"{terminal}.buffer.active.viewportY")
    _drag(tab, [(x, bottom)], [(x, bottom - 60)])
    until(lambda: place < page.evaluate(f"{terminal}.buffer.active.viewportY") < end)

    # The word under the finger, and what it passes then.
    _touch(tab, "touchStart", (x, top))
    until(lambda: page.evaluate(f"{terminal}.getSelection()") == "number")
    _touch(tab, "touchMove", (x, top + 40))
    until(lambda: page.evaluate(f"{terminal}.getSelection()").startswith("number"))
    picked = until(lambda: (text := page.evaluate(f"{terminal}.getSelection()")).count("row") > 0 and text)
    _touch(tab, "touchEnd")
    page.tap(".bar button:text-is('Copy')")
    until(lambda: page.evaluate("navigator.clipboard.readText()") == picked)

    cols = page.evaluate(f"{terminal}.cols")
    _drag(tab, [(150, top), (200, top)], [(100, top), (250, top)])
    until(lambda: page.evaluate(f"{terminal}.options.fontSize") >= 20)
    assert page.evaluate("localStorage.font") == str(page.evaluate(f"{terminal}.options.fontSize"))
    page.tap(".terminal")
    until(lambda: (session.refresh().size or (0, cols))[1] < cols)
    fits(tab)

    # Where a program has the screen, it gets arrows.
    session.submit("")
    page.wait_for_function(f"() => {terminal}.buffer.active.type === 'alternate'")
    until(lambda: page.evaluate("document.querySelector('.terminal').attachment.modes.alternateScreen"))
    _drag(tab, [(x, top)], [(x, top + 100)])
    page.keyboard.press("Control+d")
    page.keyboard.press("Control+d")
    assert session.wait(match="1b", timeout=60).reason == "match"
    assert tab.problems == []
