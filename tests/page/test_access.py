"""Without a mouse and without sight: each step by keys, an accessibility check of each screen, changes read out."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import until
from support.scale import LONG

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.serving import Serving
    from support.world import World

    Start = Callable[..., Session]

_AXE = Path(__file__).parents[2] / "web/node_modules/axe-core/axe.min.js"
_RUN = """async (colours) => {
    const found = await axe.run(document, {rules: {"color-contrast": {enabled: colours}}});
    return found.violations.map((each) => `${each.id}: ${each.nodes.slice(0, 3).map((node) => node.html).join(" | ")}`);
}"""
# Visible: an outline, or another way in which the focused element differs from itself without the focus.
_FOCUS = """() => {
    const at = document.activeElement;
    if (!at || at === document.body) return "";
    const style = getComputedStyle(at);
    const name = at.getAttribute("aria-label") ?? at.labels?.[0]?.textContent ?? at.textContent.trim();
    const isVisible = at.closest(".terminal") || (at.matches(":focus-visible") && style.outlineStyle !== "none");
    return isVisible ? (name || at.tagName) : "invisible";
}"""
_OBSERVED = """() => {
    window.said = [];
    const region = document.querySelector("[aria-live=polite]");
    const note = () => said.push([region.textContent, performance.now()]);
    new MutationObserver(note).observe(region, {subtree: true, childList: true, characterData: true});
}"""


def screens(tab: Tab, asks: Session, pipes: Session) -> dict[str, Callable[[], Any]]:
    """How to get to each screen and dialog from anywhere."""
    page = tab.page

    def at(path: str, ready: str) -> Callable[[], Any]:
        def go() -> None:
            tab.open(path)
            page.wait_for_selector(ready)

        return go

    def dialog(name: str, keys: list[str], path: str = f"/s/{pipes.id}?tab=about") -> Callable[[], Any]:
        def go() -> None:
            tab.open(path)
            page.wait_for_selector(".about")
            page.wait_for_selector(".top .primary")
            for key in keys:
                page.keyboard.press(key)
                if key == "Control+k":
                    page.wait_for_selector("dialog[open] input:focus")
            page.wait_for_selector(f"dialog[aria-label={name!r}]")

        return go

    return {
        "list": at("/", "a.row"),
        "no hit": at("/?q=nothing+has+this+name", ".empty button"),
        "inbox": at("/inbox", ".question"),
        "grid": at("/grid", ".tile"),
        "terminal": at(f"/s/{asks.id}", ".connection.live"),
        "log": at(f"/s/{pipes.id}", ".log .xterm-screen"),
        "past": at(f"/s/{asks.id}?at=3", ".past .xterm-screen"),
        "find": at(f"/s/{pipes.id}?find=1", ".find"),
        "signals": at(f"/s/{pipes.id}?tab=signals", ".padded"),
        "about": at(f"/s/{pipes.id}?tab=about", ".about"),
        "unknown": at("/s/nobody", ".trouble"),
        "start": dialog("Start a command", ["n"]),
        "stop": dialog("Stop this session?", ["x"]),
        "share": dialog("Share as an observer link", ["s"]),
        "keys": dialog("Keys", ["?"]),
        "palette": dialog("Go to or do", ["Control+k"]),
        "tokens": dialog("Tokens", ["Control+k", *"tokens", "Enter"]),
    }


@pytest.mark.timeout(600)
def test_every_screen_and_dialog_passes_an_accessibility_check(chromium: Chromium, start: Start) -> None:
    pipes = start("while :; do echo out; echo err >&2; sleep 1; done", name="pipes", owner="agent-7", labels={"a": "b"})
    asks = start("printf 'Sure? [y/N] '; read answer; sleep 60", tty=True, name="asks")
    start("exit 3", name="failed").wait(exit=True, timeout=60)
    until(lambda: asks.refresh().needs_input)
    found: list[str] = []
    # In short, each screen in one of the three.
    looks: tuple[dict[str, Any], ...] = (
        {"color_scheme": "light"},
        {"color_scheme": "dark"},
        {"forced_colors": "active"},
    )
    for number, look in enumerate(looks):
        tab = chromium.signed_in(**look)
        for place, (name, go) in enumerate(screens(tab, asks, pipes).items()):
            if place % 3 != number and not LONG:
                continue
            go()
            # Through the debugger, as an extension would: the policy of the page forbids other scripts.
            session = tab.page.context.new_cdp_session(tab.page)
            session.send("Runtime.evaluate", {"expression": _AXE.read_text()})
            violations = tab.page.evaluate(_RUN, "forced_colors" not in look)
            found += [f"{name} {look}: {each}" for each in violations]
        tab.page.context.close()
    assert not found, "\n".join(found)


def test_the_live_region_says_each_change_once(
    chromium: Chromium, serving: Serving, world: World, start: Start
) -> None:
    tab = chromium.signed_in()
    tab.shows("Nothing runs here yet")
    tab.page.evaluate(_OBSERVED)
    first = start("read go; exit 3", tty=True, name="first")

    def said() -> list[str]:
        return [text for text, _ in tab.page.evaluate("window.said")]

    until(lambda: any("first: " in each for each in said()))
    until(lambda: first.refresh().needs_input)
    until(lambda: "first: needs input" in said())
    first.submit("")
    until(lambda: "first: exit 3" in said())
    second = start("sleep 60", name="second")
    until(lambda: "second: running" in said())
    second.stop(by="agent-7")
    until(lambda: "second: stopped by agent-7" in said())
    serving.kill()
    until(lambda: "The server does not answer" in said())
    serving.start()
    until(lambda: "The server answers again" in said())
    third = start("sleep 600", name="third")
    until(lambda: "third: running" in said())
    world.hold("gc", check=True)
    assert third.refresh().state == "running"
    sentences = tab.page.evaluate("window.said")
    texts = [text for text, _ in sentences]
    for text in (
        *("first: needs input", "first: exit 3", "second: running", "second: stopped by agent-7", "third: running"),
        *("The server does not answer", "The server answers again"),
    ):
        assert texts.count(text) == 1, texts
    times = [at for _, at in sentences]
    # At most one a second; each may be drawn late.
    late = 1000
    spans = [(there - here) * 1000 - late for here, there in combinations(range(len(times)), 2)]
    assert all(later - earlier >= span for (earlier, later), span in zip(combinations(times, 2), spans, strict=True))


@pytest.mark.timeout(300)
def test_everything_by_keyboard_alone(chromium: Chromium, start: Start) -> None:
    asks = start("printf 'Sure? [y/N] '; read answer; echo got $answer; sleep 600", tty=True, name="asks")
    until(lambda: asks.refresh().needs_input)
    tab = chromium.signed_in()
    page = tab.page
    press = page.keyboard.press
    page.wait_for_selector(tab.row("asks"))

    def focus(text: str) -> None:
        """The focus is on this, and visible."""
        until(lambda: text in str(page.evaluate(_FOCUS)), what=f"the focus on {text}")

    def back_to(text: str) -> None:
        page.wait_for_selector("dialog", state="detached")
        focus(text)

    def find_typed() -> None:
        page.wait_for_selector("main.list")
        press("/")
        focus("Filter sessions")
        page.keyboard.type("typed")
        page.wait_for_selector(".count")
        press("Enter")
        press("j")
        focus("typed")

    press("j")
    focus("asks")
    press("n")
    page.wait_for_selector("dialog[open]")
    focus("Command")
    page.keyboard.type("cat; sleep 600")
    for _ in range(4):
        press("Tab")
    page.keyboard.type("typed")
    press("Enter")
    page.wait_for_selector(".connection.live")
    page.keyboard.type("hello")
    press("Enter")
    tab.terminal_shows("hello")
    press("Control+]")
    press("Escape")
    focus("screen")
    press("Control+k")
    page.wait_for_selector("dialog[open]")
    focus("Action or session")
    page.keyboard.type("find")
    press("Escape")
    back_to("screen")
    page.keyboard.press("Shift+Tab")
    focus("Stop")
    press("Escape")
    find_typed()
    press("s")
    page.wait_for_selector("dialog")
    press("Tab")
    focus("Make a link")
    press("Enter")
    page.wait_for_selector("dialog .copy")
    press("Escape")
    back_to("typed")
    press("?")
    page.wait_for_selector("dialog")
    press("Escape")
    back_to("typed")
    press("Enter")
    page.wait_for_selector(".connection.live")
    press("Control+]")
    press("b")
    page.wait_for_selector(".past")
    press("Escape")
    find_typed()
    press("Enter")
    page.wait_for_selector(".connection.live")
    press("Control+]")
    press("/")
    focus("Find in the log")
    page.keyboard.type("hello")
    press("Enter")
    page.wait_for_selector(".hits li")
    press("Escape")
    page.wait_for_selector(".find", state="detached")
    press("Control+k")
    page.wait_for_selector("dialog[open]")
    focus("Action or session")
    page.keyboard.type("stop this")
    press("Enter")
    page.wait_for_selector("dialog[aria-label='Stop this session?']")
    focus("Stop")
    press("Enter")
    tab.shows("stopped by", ".state")
    press("g")
    press("i")
    page.wait_for_selector(".question")
    while "Answer to asks" not in page.evaluate(_FOCUS):
        press("Tab")
        assert page.evaluate(_FOCUS) != "invisible"
    page.keyboard.type("yes")
    press("Enter")
    assert asks.wait(match="got yes", timeout=60).reason == "match"
