"""A page, and a server of another release."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest

from support.browser import until
from support.releases import RELEASES, Side, of_release, of_today, unpacked

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast import Session
    from support.browser import Chromium
    from support.serving import Serving
    from support.world import World

    Start = Callable[..., Session]

_COUNTING = "i=0; while :; do i=$((i+1)); echo line-$i; sleep 0.05; done"


@pytest.mark.covers("UPG-01")
@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "release, first",
    [
        pytest.param(release, first, id=f"{first}-{release.name}")
        for release in RELEASES
        for first in ("today", "theirs")
        if (release.name, first) != ("0.1.0", "theirs")  # it has no page
    ],
)
def test_upg_01_an_open_page_goes_on_through_a_change_of_its_server_and_back(
    chromium: Chromium,
    serving: Serving,
    world: World,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    release: Path,
    first: str,
) -> None:
    has_page = (unpacked(world, release) / "holdfast/server/page/index.html").exists()
    there, today = of_release(world, release), of_today(world, release)
    before, after = (there, today) if first == "theirs" else (today, there)

    def serve(side: Side) -> None:
        serving.leave()
        with monkeypatch.context() as patch:
            for name, value in side.env.items():
                patch.setenv(name, value)
            serving.start()
        # Not by `call`, which holds every answer against today's description.
        with urlopen(Request(f"{serving.url}/v1/info", headers=serving.bearer), timeout=30) as answer:
            assert json.load(answer)["version"] == side.version

    serve(before)
    session = start(_COUNTING, tty=True, name="counter", size=(24, 80))
    tab = chromium.signed_in()
    tab.page.click(tab.row("counter"))
    tab.terminal_shows("line-5")
    marked = tab.page.evaluate("window.same = Math.random()")
    for side in (after, before):
        serve(side)
        if side is there and not has_page:
            # It cannot prove whose server it is: nothing secret is sent to it, and nothing is taken from it.
            tab.shows("could not prove that it is your server", "body")
            continue
        if side is after:
            tab.shows(f"The server has version {side.version}", ".lost")
        seen = len(numbers(tab.buffer()))
        until(lambda seen=seen: len(numbers(tab.buffer())) > seen + 5)  # type: ignore[misc]
        lines = numbers(tab.buffer())
        assert lines == list(range(1, len(lines) + 1)), "a line is missing or doubled"
        assert tab.page.evaluate("window.same") == marked, "the page was loaded again"
    assert session.refresh().state == "running"


def numbers(text: str) -> list[int]:
    lines = [line for line in text.splitlines() if line.startswith("line-")]
    return [int(line.removeprefix("line-")) for line in lines][:-1]
