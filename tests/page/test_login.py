"""Signing in: the one-time code, the token in the tab, and what is left when it closes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Session
    from support.browser import Chromium
    from support.serving import Serving
    from support.world import World

    Start = Callable[..., Session]

# Notes the address at each request that the page sends.
_SPY = """
    const fetched = window.fetch;
    window.addressesAtRequests = [];
    window.fetch = (...args) => { window.addressesAtRequests.push(location.href); return fetched(...args); };
"""


@pytest.mark.covers("page:1")
def test_the_printed_address_opens_the_list_once(
    chromium: Chromium, serving: Serving, world: World, start: Start
) -> None:
    start("sleep 60", name="sleeper")
    address = serving.line.split()[0]
    assert "#code=" in address
    tab = chromium.tab()
    tab.page.add_init_script(_SPY)
    tab.open(address)
    tab.page.wait_for_selector(tab.row("sleeper"))
    addresses = tab.page.evaluate("window.addressesAtRequests")
    assert addresses
    assert set(addresses) == {f"{serving.url}/"}
    assert tab.page.url == f"{serving.url}/"

    tab.page.reload()
    tab.page.wait_for_selector(tab.row("sleeper"))
    assert sum("/v1/auth/exchange" in each.url for each in tab.requests) == 1

    again = chromium.tab()
    again.open(address)
    again.shows("The code in this address is used or too old.")
    again.shows("hold open")
    assert again.page.query_selector("a.row") is None
    # A fresh address in the same tab changes only the fragment.
    again.open(f"{serving.url}/#code={serving.fresh_code()}")
    again.page.wait_for_selector(again.row("sleeper"))
    assert again.page.url == f"{serving.url}/"


@pytest.mark.covers("page:20")
def test_the_token_is_only_in_the_tab(chromium: Chromium, serving: Serving, world: World, start: Start) -> None:
    start("sleep 60", name="sleeper")
    context = chromium.context()
    tab = chromium.tab(context)
    tab.open(f"{serving.url}/#code={serving.fresh_code()}")
    tab.page.wait_for_selector(tab.row("sleeper"))
    secret = tab.page.evaluate("sessionStorage.getItem('token')").split("_", 2)[2]
    tab.page.click(tab.row("sleeper"))
    tab.page.wait_for_selector("main.session")
    tab.page.go_back()
    tab.page.wait_for_selector("main.list")
    addresses = [each.url for each in tab.requests] + [each.url for each in tab.sockets]
    assert not any(secret in each for each in addresses)
    history = tab.page.context.new_cdp_session(tab.page).send("Page.getNavigationHistory")["entries"]
    assert not any(secret in str(each) or "code=" in each["url"] for each in history)
    assert secret not in str(tab.page.evaluate("({...localStorage})"))
    for path in world.home.rglob("*"):
        if path.is_file():
            assert secret.encode() not in path.read_bytes(), path
    assert secret not in serving.program.errors()

    tab.page.close()
    later = chromium.tab(context)
    later.open("/")
    later.shows("You are not signed in.")
    later.shows("hold open")
