"""Without a mouse and without sight: each step by keys, an accessibility check of each screen, changes read out."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import Error

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


# Screens without a token, or with that of a link.
_ALONE = ("observer", "signed out")


def screens(tab: Tab, asks: Session, pipes: Session, ended: Session, link: str) -> dict[str, Callable[[], Any]]:
    """How to get to each screen and dialog from anywhere."""
    page = tab.page

    def at(path: str, ready: str) -> Callable[[], Any]:
        def go() -> None:
            tab.open(path)
            try:
                page.wait_for_selector(ready)
            except Error:
                raise AssertionError((path, ready, page.inner_text("body"), tab.problems[-3:])) from None

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

    def click(before: Callable[[], Any], target: str, name: str) -> Callable[[], Any]:
        def go() -> None:
            before()
            page.locator(target).first.click(position={"x": 20, "y": 8}, force=True)
            page.wait_for_selector(f"dialog[aria-label={name!r}] .buttons")

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
        "ended": at(f"/s/{ended.id}", ".ended"),
        "observer": at(link, ".connection.live"),
        "signed out": at("/#code=spent", ".copy"),
        "link": click(at(f"/s/{asks.id}", ".connection.live"), ".xterm-rows > div", "Open this address?"),
        "start again": click(
            at(f"/s/{ended.id}?tab=about", ".about"), "header button:text-is('Start again')", "Start again"
        ),
        "start": dialog("Start a command", ["n"]),
        "stop": dialog("Stop this session?", ["x"]),
        "share": dialog("Share as an observer link", ["s"]),
        "keys": dialog("Keys", ["?"]),
        "palette": dialog("Find a session or an action", ["Control+k"]),
        "tokens": dialog("Tokens", ["Control+k", *"tokens", "Enter"]),
    }


@pytest.mark.covers("page:31")
@pytest.mark.timeout(600)
def test_every_screen_and_dialog_passes_an_accessibility_check(
    chromium: Chromium, serving: Serving, start: Start
) -> None:
    pipes = start("while :; do echo out; echo err >&2; sleep 1; done", name="pipes", owner="agent-7", labels={"a": "b"})
    address = r"printf '\033]8;;https://example.org/\033\\an address\033]8;;\033\\\n'"
    asks = start(f"{address}; printf 'Sure? [y/N] '; read answer; sleep 60", tty=True, name="asks")
    ended = start("exit 3", name="failed", tty=True)
    ended.wait(exit=True, timeout=60)
    link = serving.call("POST", f"/v1/sessions/{asks.id}/links", {"ttl": "1h"}).json["url"]
    until(lambda: asks.refresh().needs_input)
    found: list[str] = []
    # In short, each screen in one of the three.
    looks: tuple[dict[str, Any], ...] = (
        {"color_scheme": "light"},
        {"color_scheme": "dark"},
        {"forced_colors": "active"},
    )

    def checked(tab: Tab) -> None:
        # Through the debugger, as an extension would: the policy of the page forbids other scripts.
        tab.devtools.send("Runtime.evaluate", {"expression": _AXE.read_text()})
        violations = tab.page.evaluate(_RUN, "forced_colors" not in look)
        found.extend(f"{name} {look}: {each}" for each in violations)

    for number, look in enumerate(looks):
        tab = chromium.signed_in(**look)
        for place, (name, go) in enumerate(screens(tab, asks, pipes, ended, link).items()):
            if place % 3 != number and not LONG:
                continue
            if name in _ALONE:
                # Another person's browser: the token of this one stays.
                other = chromium.tab(chromium.context(**look))
                screens(other, asks, pipes, ended, link)[name]()
                checked(other)
                other.page.context.close()
                continue
            go()
            checked(tab)
        tab.page.context.close()
    assert not found, "\n".join(found)


@pytest.mark.covers("page:31")
def test_the_live_region_says_each_change_once(
    chromium: Chromium, serving: Serving, world: World, start: Start
) -> None:
    tab = chromium.signed_in()
    tab.shows("Nothing is running here yet")
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


@pytest.mark.covers("page:30")
@pytest.mark.timeout(300)
def test_everything_by_keyboard_alone(chromium: Chromium, start: Start) -> None:
    asks = start("printf 'Sure? [y/N] '; read answer; echo got $answer; sleep 600", tty=True, name="asks")
    until(lambda: asks.refresh().needs_input)
    tab = chromium.signed_in()
    page = tab.page
    page.wait_for_selector(tab.row("asks"))

    def focus(text: str) -> None:
        """The focus is on this, and visible."""
        until(lambda: text in str(page.evaluate(_FOCUS)), what=f"the focus on {text}")

    def press(*keys: str, to: str) -> None:
        """Press keys; the focus is on this then."""
        for key in keys:
            page.keyboard.press(key)
        focus(to)

    def tab_to(text: str, key: str = "Tab") -> None:
        """Go on by Tab until the focus is on this. It is visible at each step."""
        passed: list[str] = []
        while text not in (found := str(page.evaluate(_FOCUS))):
            assert found != "invisible", passed
            assert len(passed) < 40, passed
            passed.append(found)
            page.keyboard.press(key)

    def write(text: str, *keys: str, to: str) -> None:
        page.keyboard.type(text)
        press(*keys, to=to)

    def attached() -> None:
        page.wait_for_selector(".connection.live")
        focus("Terminal input")

    # The list, and a dialog that is left without doing anything.
    press("j", to="asks")
    press("n", to="Command")
    press("Escape", to="asks")
    # Start
    press("n", to="Command")
    write("cat; sleep 600", "Tab", to="on a terminal")
    tab_to("Name")
    write("typed", "Enter", to="Terminal input")
    # Attach, and leave the terminal
    attached()
    write("hello", "Enter", to="Terminal input")
    tab.terminal_shows("hello")
    press("Control+]", "Escape", to="screen")
    # The palette, which is left again
    press("Control+k", to="Action or session")
    write("find", "Escape", to="screen")
    press("Shift+Tab", to="Stop")
    page.keyboard.press("Escape")
    # Filter
    page.wait_for_selector("main.list")
    press("/", to="Filter sessions")
    page.keyboard.type("typed")
    tab.shows("1 of 2", ".count")
    page.keyboard.press("Enter")
    press("j", to="typed")
    # Share
    press("s", to="Valid for")
    press("Tab", to="Make a link")
    press("Enter", to="Make a link")
    page.wait_for_selector("dialog .copy")
    tab_to("Copy", "Shift+Tab")
    press("Escape", to="typed")
    press("?", to="Close")
    press("Escape", to="typed")
    page.keyboard.press("Enter")
    attached()
    # Back in time, on from there, and live again
    press("Control+]", "b", to="Play")
    page.wait_for_selector(".past .xterm-screen")
    tab_to("Moment")
    press("Home", to="Moment")
    page.wait_for_selector(".past .terminal[data-offset='0'], .past .terminal[data-offset='7']")
    press("l", to="Terminal input")
    # Find, and a hit
    press("Control+]", "/", to="Find in the log")
    write("hello", "Enter", to="Find in the log")
    page.wait_for_selector(".hits li")
    tab_to("hello")
    press("Enter", to="hello")
    page.wait_for_selector(".past .terminal[data-offset]")
    press("Escape", to="Play")
    page.wait_for_selector(".find", state="detached")
    press("l", to="Terminal input")
    # Stop, by the palette out of the terminal
    press("Control+]", "k", to="Action or session")
    write("stop this", "Enter", to="Stop")
    page.wait_for_selector("dialog[aria-label='Stop this session?']")
    press("Enter", to="Terminal input")
    tab.shows("stopped by", ".state")
    # Answer
    press("Control+]", "Escape", to="screen")
    page.keyboard.press("g")
    page.keyboard.press("i")
    page.wait_for_selector(".question")
    tab_to("Answer to asks")
    write("yes", "Enter", to="Inbox")
    assert asks.wait(match="got yes", timeout=60).reason == "match"
