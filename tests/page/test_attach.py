"""An attached terminal whose connection breaks, whose input is not taken, and which is not the only one."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING

import pytest

from support.browser import plain_rows, until
from support.scale import scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.serving import Serving
    from support.world import World

    Start = Callable[..., Session]

# Counts without a pause, and says each byte that is typed. `P` has it print five megabytes.
_COUNTING = """
import os, select, sys, tty
tty.setraw(0)
n = 0
while True:
    if select.select([0], [], [], 0.02)[0]:
        for byte in os.read(0, 4096):
            os.write(1, b"typed-%c\\r\\n" % byte)
            if byte == ord("P"):
                sys.stdout.buffer.write(b"".join(b"flood-%07d\\r\\n" % i for i in range(5_000_000 // 15)))
                sys.stdout.flush()
    n += 1
    os.write(1, b"line-%d\\r\\n" % n)
"""


@pytest.fixture
def counter(start: Start) -> Session:
    return start([sys.executable, "-c", _COUNTING], tty=True, name="counter", size=(24, 80))


def numbers(text: str, word: str = "line-") -> list[int]:
    """The numbers of all whole lines of this form, without the last, which may be half there."""
    return [int(line.removeprefix(word)) for line in text.splitlines()[:-1] if line.startswith(word)]


def counts_on(tab: Tab, session: Session) -> None:
    """The terminal shows what the session's screen was at that byte, goes on, and has no number twice or not at all."""
    last = until(lambda: numbers(tab.buffer()))[-1]
    until(lambda: max(numbers(tab.buffer()), default=0) > last + 5, what="more numbers")
    # A resize between two bytes reaches the session first and the page a moment later, at the same offset.
    until(tab.is_fitted, what="the page's own size")
    offset, text = tab.screen()
    assert text == plain_rows(session.screen(at=offset).text)
    counted = numbers(tab.buffer())
    assert counted == list(range(counted[0], counted[-1] + 1))


def stands_still(tab: Tab) -> bool:
    """Nothing is drawn for half a second; the program prints every 20 ms."""
    before = tab.buffer()
    tab.passes(0.5)
    return tab.buffer() == before


def typed(world: World, session: Session) -> str:
    """What the program has read, in order."""
    log = b"".join(path.read_bytes() for path in sorted(world.session(session.id).glob("tty.0*")))
    return "".join(line[6:].decode() for line in log.split(b"\r\n")[:-1] if line.startswith(b"typed-"))


@pytest.mark.covers("page:7")
def test_whatever_happens_to_the_page_each_byte_is_shown_and_typed_once(
    chromium: Chromium, serving: Serving, world: World, counter: Session
) -> None:
    window = chromium.window()
    tab = chromium.signed_in(window)
    page = tab.page
    tab.attach(counter)
    page.click(".terminal")
    until(lambda: len(numbers(tab.buffer())) > 5)

    page.keyboard.type("ab")
    until(lambda: typed(world, counter) == "ab")
    counts_on(tab, counter)

    before = counter.refresh().size
    tab.devtools.send("Emulation.setDeviceMetricsOverride", _metrics(900, 500))
    until(lambda: counter.refresh().size != before)
    counts_on(tab, counter)
    tab.devtools.send("Emulation.setDeviceMetricsOverride", _metrics(1200, 800))
    page.keyboard.type("c")
    counts_on(tab, counter)

    page.reload()
    tab.shows("live", ".connection")
    page.keyboard.type("d")
    counts_on(tab, counter)

    other = window.new_page()
    until(lambda: page.evaluate("document.visibilityState") == "hidden")
    tab.passes(scaled(1, 10))
    other.close()
    until(lambda: page.evaluate("document.visibilityState") == "visible")
    page.keyboard.type("e")
    counts_on(tab, counter)

    serving.kill()
    tab.shows("offline", ".connection")
    serving.start()
    page.wait_for_selector(".connection:is(.resumed, .live)")
    page.keyboard.type("f")
    counts_on(tab, counter)

    window.set_offline(True)
    tab.shows("offline", ".connection")
    # What was received before may still be drawn.
    until(lambda: stands_still(tab), what="the end of what was under way")
    last = numbers(tab.buffer())[-1]
    tab.passes(scaled(3, 30))
    assert numbers(tab.buffer())[-1] == last
    window.set_offline(False)
    counts_on(tab, counter)
    tab.shows("live", ".connection")
    page.keyboard.type("g")
    until(lambda: "g" in typed(world, counter))
    counts_on(tab, counter)
    assert typed(world, counter) == "abcdefg"
    # The server that was killed left its socket for hints behind.
    world.hold("gc", check=True)


def _metrics(width: int, height: int) -> dict[str, int | bool]:
    return {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}


@pytest.mark.covers("page:8")
def test_a_short_break_keeps_place_and_selection_and_a_long_one_says_what_was_skipped(
    chromium: Chromium, serving: Serving, world: World, start: Start
) -> None:
    # Prints on demand alone, so that what is in view stays there.
    waiting = _COUNTING.replace("[], 0.02)", "[])")
    session = start(["sh", "-c", f"seq 300; exec {sys.executable} -c '{waiting}'"], tty=True, size=(24, 80))
    tab = chromium.signed_in()
    page = tab.page
    tab.attach(session)
    tab.terminal_shows("300")
    page.evaluate(f"{_TERMINAL}.scrollToLine(100)")
    page.dblclick(".xterm-screen", position={"x": 10, "y": 100})
    place = page.evaluate(f"[{_TERMINAL}.buffer.active.viewportY, {_TERMINAL}.getSelection()]")
    assert place[1].isdigit()

    offset, _ = tab.screen()
    serving.kill()
    tab.shows("offline", ".connection")
    session.send("x")
    serving.start()
    tab.shows(f"resumed at {offset}", ".connection")
    assert f"from={offset}" in tab.sockets[-1].url
    until(lambda: tab.buffer().endswith("line-1\n"))
    assert page.evaluate(f"[{_TERMINAL}.buffer.active.viewportY, {_TERMINAL}.getSelection()]") == place
    # Also when the session prints nothing more.
    tab.shows("live", ".connection")
    assert page.query_selector("button.gap") is None

    offset, _ = tab.screen()
    serving.kill()
    tab.shows("offline", ".connection")
    session.send("P")
    assert session.wait(match="line-2", timeout=60).reason == "match"
    serving.start()
    page.wait_for_selector("button.gap")
    tab.shows("line-2", ".xterm-rows")
    shown, text = tab.screen()
    assert text == plain_rows(session.screen(at=shown).text)
    skipped = page.inner_text("button.gap")
    assert skipped.startswith(f"{(shown - offset) / (1 << 20):.1f} MiB skipped")
    page.click("button.gap")
    page.wait_for_url(f"**at={offset}*")
    tab.shows("typed-P", ".log .xterm-rows")
    log = "document.querySelector('.log .terminal').terminal.buffer.active"
    until(lambda: page.evaluate(f"(b => b.getLine(b.viewportY).translateToString(true))({log})") == "typed-P")
    tab.shows("flood-0000003", ".log .xterm-rows")
    world.hold("gc", check=True)


_TERMINAL = "document.querySelector('.terminal').terminal"


@pytest.mark.covers("page:9")
def test_input_that_a_stopped_server_does_not_take_is_shown_and_never_sent_again_by_itself(
    chromium: Chromium, serving: Serving, world: World, counter: Session
) -> None:
    tab = chromium.signed_in()
    page = tab.page
    tab.attach(counter)
    page.click(".terminal")
    serving.kill(signal.SIGSTOP)
    page.keyboard.type("abc")
    tab.shows("Not accepted yet: abc", ".unsent")
    tab.passes(scaled(2, 20))
    tab.shows("Not accepted yet: abc", ".unsent")
    serving.kill(signal.SIGCONT)
    page.wait_for_selector(".unsent", state="detached")
    until(lambda: typed(world, counter) == "abc")

    serving.kill(signal.SIGSTOP)
    page.keyboard.type("de")
    page.keyboard.press("Enter")
    tab.shows("Not accepted yet: de Enter", ".unsent")
    serving.kill(signal.SIGKILL)
    tab.shows("Not confirmed: de Enter", ".unsent")
    serving.start()
    page.wait_for_selector(".connection:is(.resumed, .live)")
    page.click(".terminal")
    page.keyboard.type("f")
    until(lambda: typed(world, counter) == "abcf")
    tab.shows("Not confirmed: de Enter", ".unsent")
    page.click(".unsent button:text-is('Send again')")
    page.wait_for_selector(".unsent", state="detached")
    until(lambda: typed(world, counter) == "abcfde\r")
    counts_on(tab, counter)
    world.hold("gc", check=True)


@pytest.mark.covers("page:10")
@pytest.mark.parametrize("policy", ["latest", "smallest", "fixed"])
def test_only_a_visible_terminal_in_control_sizes_the_session(chromium: Chromium, start: Start, policy: str) -> None:
    session = start(
        "echo hello; trap 'stty size' WINCH; while :; do sleep 0.1; done",
        tty={"size_policy": policy},
        name="sized",
        size=(17, 63),
    )

    def size() -> list[int]:
        return list(session.refresh().size or ())

    window = chromium.window()
    observer = chromium.signed_in()
    observer.page.wait_for_selector(observer.row("sized"))
    observer.page.keyboard.press("j")
    observer.shows("hello", ".preview pre")
    observer.page.set_viewport_size({"width": 700, "height": 500})
    assert size() == [17, 63]
    observer.attach(session, "?observe=1", "observing")
    observer.page.click(".terminal")
    observer.shows("63\u00d717", ".bar")

    first = chromium.signed_in(window)
    front = window.new_page()
    until(lambda: first.page.evaluate("document.visibilityState") == "hidden")
    first.attach(session)
    first.shows("63\u00d717", ".bar")
    until(lambda: session.refresh().attached == {"control": 1, "observe": 1})
    assert size() == [17, 63]

    front.close()
    first.page.click(".terminal")
    other = chromium.signed_in(viewport={"width": 800, "height": 900})
    other.attach(session)
    other.page.click(".terminal")
    sizes = [each.page.evaluate(_FIT) for each in (first, other)]
    assert sizes[0] != sizes[1]

    def settles(wanted: list[int], *not_ours: Tab) -> None:
        until(lambda: size() == wanted, what=f"{wanted}")
        for tab in (observer, *not_ours):
            tab.shows(f"{wanted[1]}\u00d7{wanted[0]}", ".bar")
            assert tab.page.evaluate(f"[{_TERMINAL}.rows, {_TERMINAL}.cols]") == wanted

    if policy == "fixed":
        settles([17, 63], first, other)
        return
    if policy == "smallest":
        both = [min(pair) for pair in zip(*sizes, strict=True)]
        settles(both, first, other)
    else:
        settles(sizes[1], first)
        first.page.keyboard.type("x")
        settles(sizes[0], other)
    # Hidden, it counts no more; and what it would like for itself is nobody's.
    front = window.new_page()
    until(lambda: first.page.evaluate("document.visibilityState") == "hidden")
    settles(sizes[1], first)


_FIT = "(({rows, cols}) => [rows, cols])(document.querySelector('.terminal').attachment.screen.fit.proposeDimensions())"


@pytest.mark.covers("page:32")
def test_a_screen_reader_gets_the_output_and_tab_leaves_only_behind_the_prefix(
    chromium: Chromium, world: World, start: Start
) -> None:
    session = start([sys.executable, "-c", _COUNTING.replace("[], 0.02)", "[])")], tty=True, size=(24, 80))
    tab = chromium.signed_in()
    page = tab.page
    tab.attach(session)
    until(lambda: page.evaluate(_IS_IN_TERMINAL))

    def reaches(key: str, wanted: str) -> None:
        """The terminal has the focus, and the program the key."""
        page.keyboard.press(key)
        until(lambda: typed(world, session) == wanted)
        assert page.evaluate(_IS_IN_TERMINAL)

    reaches("a", "a")
    log = world.session(session.id)
    reaches("Tab", "a\t")
    page.keyboard.press("Shift+Tab")
    until(lambda: b"typed-Z" in b"".join(path.read_bytes() for path in log.glob("tty.0*")))
    assert page.evaluate(_IS_IN_TERMINAL)
    for key, place in (("Shift+Tab", 2), ("Tab", 4), ("Escape", None)):
        page.keyboard.press("Control+]")
        tab.shows("leave", ".prefix")
        page.keyboard.press(key)
        assert not page.evaluate(_IS_IN_TERMINAL)
        # Before it or behind it in the order of the page (the bits of compareDocumentPosition).
        bits = "document.querySelector('.terminal').compareDocumentPosition(document.activeElement)"
        assert place is None or page.evaluate(bits) == place
        if key == "Shift+Tab":
            # The switch is reached before the terminal.
            while not page.evaluate("document.activeElement.matches('input[type=checkbox]')"):
                page.keyboard.press("Shift+Tab")
            page.keyboard.press("Space")
            page.wait_for_selector(".xterm-accessibility")
        page.focus(".terminal textarea")
    session.send("bc")
    tab.shows("typed-c", ".xterm-accessibility .live-region")
    tab.shows("typed-b", ".xterm-accessibility-tree")
    page.reload()
    page.wait_for_selector(".xterm-accessibility")
    assert typed(world, session).replace("\x1b[Z", "") == "a\tbc"


_IS_IN_TERMINAL = "document.activeElement.closest('.terminal') !== null"
