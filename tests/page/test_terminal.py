"""A terminal session in the page: what is typed, what is shown, and what is only read."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support.browser import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Session
    from support.browser import Chromium

    Start = Callable[..., Session]


def test_typing_reaches_the_program_and_its_answer_is_drawn(chromium: Chromium, start: Start) -> None:
    session = start([sys.executable, "-q"], tty=True, name="repl", size=(24, 80))
    tab = chromium.signed_in()
    tab.page.click(tab.row("repl"))
    tab.terminal_shows(">>>")
    tab.page.keyboard.type("6 * 7\n")
    tab.terminal_shows("42")
    assert "42" in session.screen().text
    # One of 16 million colours, which xterm.js sets as a style of the element.
    tab.page.keyboard.type("print('\\x1b[38;2;1;200;3mgreen\\x1b[0m')\n")
    green = tab.page.wait_for_selector(".xterm-rows span:text-is('green')")
    assert green is not None
    assert green.evaluate("span => getComputedStyle(span).color") == "rgb(1, 200, 3)"
    assert tab.problems == []


@pytest.mark.covers("page:6")
def test_previews_tiles_and_the_inbox_attach_to_nothing(chromium: Chromium, start: Start) -> None:
    ask = "printf 'Continue? [y/N] '; read answer; echo got $answer; sleep 60"
    session = start(ask, tty=True, name="asks", size=(17, 63))
    until(lambda: session.refresh().needs_input is not None)
    tab = chromium.signed_in()
    tab.page.wait_for_selector(tab.row("asks"))
    tab.page.keyboard.press("j")
    tab.shows("Continue? [y/N]", ".preview pre")
    tab.page.keyboard.press("g")
    tab.page.keyboard.press("g")
    tab.shows("Continue? [y/N]", ".tile pre")
    tab.page.keyboard.press("g")
    tab.page.keyboard.press("i")
    tab.shows("Continue? [y/N]", ".question")
    session.refresh()
    assert session.attached == {"control": 0, "observe": 0}
    assert tuple(session.size or ()) == (17, 63)
    assert tab.sockets == []
    assert tab.problems == []


def test_o_observes_a_session_that_is_open_and_the_address_says_so(chromium: Chromium, start: Start) -> None:
    session = start("echo 'only observe'; cat", tty=True, name="open")
    tab = chromium.signed_in()
    page = tab.page
    # A search for that word is not a wish to observe.
    tab.attach(session, "?find=observe")
    page.press(".find input", "Escape")
    page.focus("button:text-is('Find')")
    page.keyboard.press("o")
    tab.shows("observing", ".connection")
    page.reload()
    tab.shows("observing", ".connection")
    page.click("button:text-is('Take control')")
    page.wait_for_selector("button:text-is('Observe')")
    assert "observe" not in page.url
    page.wait_for_selector(".connection:is(.live, .resumed):not(:has-text('observing'))")
    page.click(".terminal")
    page.keyboard.type("typed\n")
    tab.terminal_shows("typed")
    # Out of the terminal, the key that filters the list finds in the session.
    page.focus("button:text-is('Find')")
    page.keyboard.press("/")
    page.wait_for_selector(".find input:focus")
    assert tab.problems == []


def test_a_session_is_left_without_an_error_before_it_is_drawn(chromium: Chromium, start: Start) -> None:
    """What xterm.js had still to do when its terminal was gone was an exception."""
    start("seq 1 3000; cat", tty=True, name="left")
    tab = chromium.signed_in()
    page = tab.page
    for _ in range(10):
        page.click(tab.row("left"))
        page.wait_for_selector(".terminal-box .xterm-screen")
        page.click("nav button:text-is('log')")
        page.wait_for_selector(".log .xterm-screen")
        page.click("header.top a.brand")
        page.wait_for_selector(tab.row("left"))
    tab.passes(1)
    assert tab.problems == []
