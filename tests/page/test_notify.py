"""Notifications of the browser: asked for by a click, one for all tabs, none for what is in view."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from support.browser import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.serving import Serving
    from support.world import World

    Start = Callable[..., Session]

_SHOWN = """async () => {
    const worker = await navigator.serviceWorker.getRegistration();
    const shown = worker ? await worker.getNotifications() : [];
    return shown.map((each) => ({title: each.title, tag: each.tag, body: each.body, data: each.data}));
}"""
# What a click on it does: the event that the browser sends to the worker.
_CLICK = """async () => {
    const [shown] = await registration.getNotifications();
    dispatchEvent(new NotificationEvent("notificationclick", {notification: shown}));
}"""


def _address(tab: Tab) -> str:
    return str(tab.page.evaluate("location.href"))


@pytest.mark.covers("page:28")
@pytest.mark.timeout(300)
def test_one_notification_for_two_tabs_after_a_click(
    chromium: Chromium, serving: Serving, start: Start, world: World
) -> None:
    window = chromium.window()
    first, second = chromium.signed_in(window), chromium.signed_in(window)

    def shown() -> Any:
        return first.page.evaluate(_SHOWN)

    early = start("read go; exit 3", tty=True, name="early")
    early.submit("")
    for tab in (first, second):
        tab.shows("exit 3", ".rows")
    assert shown() == []
    # The answer to the question that the click asks; until then the page may not notify.
    window.grant_permissions(["notifications"], origin=serving.url)
    for tab in (first, second):
        tab.page.bring_to_front()
        tab.page.click("button:text-is('Notify me')")
        tab.page.wait_for_selector("button:text-is('Notify me')", state="detached")

    # In view of the tab in front, by its name; the other one is hidden.
    start("until [ -e seen ]; do sleep 0.1; done", tty=True, name="watched")
    first.page.bring_to_front()
    first.open("/s/watched")
    first.page.wait_for_selector(".connection.live")
    until(lambda: second.page.evaluate("document.visibilityState") == "hidden")
    (world.cwd / "seen").touch()
    first.shows("exit 0", ".state")
    second.shows("exit 0", ".rows")
    assert shown() == []

    ends = start("until [ -e gone ]; do sleep 0.1; done; echo bye; exit 4", tty=True, name="ends")
    first.page.bring_to_front()
    first.page.click("header.top a.brand")
    window.new_page().bring_to_front()
    for tab in (first, second):
        until(lambda tab=tab: tab.page.evaluate("document.visibilityState") == "hidden")  # type: ignore[misc]
        tab.shows("ends", ".rows")
    (world.cwd / "gone").touch()
    for tab in (first, second):
        tab.shows("exit 4", ".rows")
    until(lambda: len(shown()) > 0)
    (only,) = shown()
    assert (only["title"], only["body"]) == ("ends: failed", "")
    (worker,) = window.service_workers
    worker.evaluate(_CLICK)
    at = f"/s/{ends.id}?at={ends.refresh().ends['tty']}"
    opened = until(lambda: next((each for each in (first, second) if at in _address(each)), None))
    assert opened is not None
    opened.shows("exit 4", ".state")
    assert shown() == []
