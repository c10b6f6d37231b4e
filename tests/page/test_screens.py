"""Every screen, tab and dialog of the page, and a link that shows one session alone."""

from __future__ import annotations

import re
from datetime import datetime
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest

from support.browser import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.serving import Serving
    from support.world import World

    Start = Callable[..., Session]


@pytest.mark.covers("page:3")
def test_no_screen_tab_or_dialog_fails_at_anything(chromium: Chromium, serving: Serving, start: Start) -> None:
    start("while :; do echo out; echo err >&2; sleep 0.2; done", name="pipes", owner="agent-7", labels={"a": "b"})
    link = r"printf '\033]8;;https://example.org/\033\\address\033]8;;\033\\\n'; "
    asks = start(f"{link}printf 'Sure? [y/N] '; read answer; sleep 600", tty=True, name="asks")
    ended = start("exit 3", name="ended")
    ended.wait(exit=True, timeout=60)
    until(lambda: asks.refresh().needs_input is not None)
    window = chromium.window()
    tab = chromium.signed_in(window)
    page = tab.page
    window.grant_permissions(["notifications"], origin=serving.url)
    page.click("button:text-is('Notify me')")
    page.wait_for_selector("button:text-is('Notify me')", state="detached")
    for name in ("pipes", "asks"):
        page.click(tab.row(name))
        page.wait_for_selector(".xterm-screen")
        for view in ("signals", "about", "log", *(["screen"] if name == "asks" else [])):
            page.click(f"nav button:text-is('{view}')")
            page.wait_for_selector(f"nav button[aria-pressed=true]:text-is('{view}')")
        page.wait_for_selector(".timeline svg")
        page.click(".timeline svg")
        page.wait_for_url("**at=*")
        page.click("button:text-is('Find')")
        page.fill(".find input[aria-label]", "u")
        page.press(".find input[aria-label]", "Enter")
        page.wait_for_selector(".hits li")
        page.click("button:text-is('Share')")
        page.click("button:text-is('Make a link')")
        page.wait_for_selector("dialog .made")
        page.keyboard.press("Escape")
        page.click("button:text-is('Stop')")
        page.wait_for_selector("dialog:has-text('Stop this session?')")
        page.keyboard.press("Escape")
        page.click("header.top a.brand")
    page.keyboard.press("?")
    page.wait_for_selector("dialog:has-text('Keys')")
    page.keyboard.press("Escape")
    page.keyboard.press("Control+k")
    page.fill("dialog input", "tokens")
    page.keyboard.press("Enter")
    page.wait_for_selector("dialog:has-text('Make a token')")
    page.keyboard.press("Escape")
    page.keyboard.press("n")
    page.wait_for_selector("dialog:has-text('Start a command')")
    page.keyboard.press("Escape")
    page.click("header.top a:text('Inbox')")
    page.wait_for_selector(".question")
    page.click("header.top a:text('Grid')")
    page.wait_for_selector(".tile")
    tab.shows("out", ".grid")
    tab.open(f"/s/{ended.id}")
    page.click("button:text-is('Start again')")
    page.wait_for_selector("dialog[aria-label='Start again'] textarea")
    tab.attach(asks)
    tab.terminal_shows("address")
    box = page.locator(".xterm-screen").bounding_box()
    assert box is not None
    # The first row.
    page.mouse.move(box["x"] + 30, box["y"] + 6)
    page.mouse.click(box["x"] + 40, box["y"] + 7)
    page.wait_for_selector("dialog[aria-label='Open this address?']")
    assert tab.problems == []

    observer = chromium.tab()
    observer.open(serving.call("POST", f"/v1/sessions/{asks.id}/links", {"ttl": "1h"}).json["url"])
    observer.shows("observing", ".connection")
    for view in ("signals", "about", "log", "screen"):
        observer.page.click(f"nav button:text-is('{view}')")
        observer.page.wait_for_selector(f"nav button[aria-pressed=true]:text-is('{view}')")
    observer.page.wait_for_selector(".connection.live")
    assert observer.problems == []


def test_start_again_sets_only_variables_that_got_a_value(chromium: Chromium, serving: Serving) -> None:
    body = {"command": 'test -n "$PATH" && echo "given=${GIVEN-unset}"', "env": {"GIVEN": "once"}, "name": "first"}
    first = serving.call("POST", "/v1/sessions", body).json["id"]
    secret = {"command": "true --password=Zk83hdQpL29x", "name": "secret"}
    assert serving.call("POST", "/v1/sessions", secret).status == 201
    tab = chromium.signed_in()
    page = tab.page
    tab.open(f"/s/{first}")
    tab.shows("exit 0", ".state")
    # Only a running session can be stopped.
    page.keyboard.press("x")
    page.click("header button:text-is('Start again')")
    assert page.input_value("dialog textarea[name=env]") == "GIVEN="
    page.fill("dialog input[name=name]", "again")
    page.click("dialog button.primary")
    tab.shows("again", "h1")
    tab.shows("exit 0", ".state")
    tab.terminal_shows("given=unset")

    tab.open("/s/secret")
    tab.shows("exit 0", ".state")
    page.click("header button:text-is('Start again')")
    tab.shows("type it again", "dialog .note")
    assert page.input_value("dialog textarea[name=command]") == ""


def test_a_command_that_is_started_for_a_process_ends_with_it(chromium: Chromium, world: World) -> None:
    owner = world.program(["cat"])
    tab = chromium.signed_in()
    page = tab.page
    page.click("header.top button.primary")
    page.fill("dialog textarea[name=command]", "sleep 600")
    page.click("dialog summary")
    page.select_option("dialog select[name=lifetime]", "owner")
    page.click("dialog button.primary")
    tab.shows("give the pid of the owning process", "dialog .trouble")
    page.fill("dialog input[name=owner_pid]", str(owner.pid))
    page.click("dialog button.primary")
    tab.shows("running", "main .state")
    owner.close_stdin()
    tab.shows("owner gone", "main .state")


def test_start_again_keeps_what_the_command_was_bound_to(chromium: Chromium, serving: Serving, world: World) -> None:
    owner = world.program(["cat"])
    body = {"command": "sleep 600", "name": "bound", "lifetime": "owner", "owner_pid": owner.pid}
    bound = serving.call("POST", "/v1/sessions", body).json["id"]
    tab = chromium.signed_in()
    page = tab.page
    tab.open(f"/s/{bound}")
    serving.call("POST", f"/v1/sessions/{bound}/stop", {"grace": 0})
    page.click("header button:text-is('Start again')")
    page.wait_for_selector("dialog select[name=lifetime]")
    assert page.input_value("dialog select[name=lifetime]") == "owner"
    assert page.input_value("dialog input[name=owner_pid]") == str(owner.pid)
    page.click("dialog button.primary")
    tab.shows("running", "main .state")
    owner.close_stdin()
    tab.shows("owner gone", "main .state")

    # A process that is gone, or another one with its number, cannot be the owner again.
    page.click("header button:text-is('Start again')")
    page.wait_for_selector("dialog select[name=lifetime]")
    assert page.input_value("dialog input[name=owner_pid]") == ""


def test_a_link_is_valid_for_a_day_and_until_a_time_of_this_clock(chromium: Chromium, start: Start) -> None:
    start("sleep 600", name="shared")
    tab = chromium.signed_in(timezone_id="Asia/Kolkata")
    page = tab.page
    tab.open("/s/shared")
    page.click("button:text-is('Share')")
    assert page.input_value("dialog select[name=ttl]") == "24h"
    with page.expect_response(lambda answer: answer.request.method == "POST") as made:
        page.click("button:text-is('Make a link')")
    expires = datetime.fromisoformat(made.value.json()["expires_at"])
    tab.shows(f"valid until {expires.astimezone(ZoneInfo('Asia/Kolkata')):%Y-%m-%d %H:%M}", "dialog li")
    page.keyboard.press("Escape")
    page.click("nav button:text-is('about')")
    page.wait_for_selector(".about")
    assert not re.search(r"\dT\d", page.inner_text(".about"))


def _starts(tab: Tab) -> int:
    return len([each for each in tab.requests if each.method == "POST" and each.url.endswith("/v1/sessions")])


def test_one_command_is_started_by_enter_and_by_a_double_click(chromium: Chromium) -> None:
    tab = chromium.signed_in()
    page = tab.page
    for number in (1, 2):
        page.wait_for_selector(".top .primary")
        page.keyboard.press("n")
        page.wait_for_selector("dialog textarea:focus")
        page.keyboard.type(f"echo typed-{number}")
        if number == 1:
            page.keyboard.press("Enter")
        else:
            page.dblclick("dialog button.primary")
        page.wait_for_selector("dialog", state="detached")
        tab.terminal_shows(f"typed-{number}")
        assert _starts(tab) == number
        page.click("header.top a.brand")


def test_a_tile_shows_the_rows_that_were_printed_last(chromium: Chromium, start: Start) -> None:
    start("seq 30; printf 'Sure? [y/N] '; read answer", tty=True, name="asks")
    tab = chromium.signed_in()
    tab.page.click("header.top a:text('Grid')")
    tab.shows("Sure?", ".tile pre")
    below = "pre => pre.firstChild.getBoundingClientRect().bottom - pre.getBoundingClientRect().bottom"
    assert tab.page.eval_on_selector(".tile pre", below) <= 0
