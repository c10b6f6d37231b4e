"""Going back: the screen at any offset, playing on from there, and the marks of the timeline."""

from __future__ import annotations

import random
import re
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pytest

from support.browser import until
from support.scale import scaled
from support.webviewer import WebViewer

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.serving import Serving
    from support.world import World

    Start = Callable[..., Session]

# Paints a part for each line that it reads: colours, wide characters, wrapped lines, a scrolling region.
_PAINTING = """
import os, sys
print("ready", flush=True)
for part, _ in enumerate(sys.stdin):
    for n in range(30):
        wide = "\\x1b[%d;%dH\\x1b[3%dm p%d s%d \\u4e2d\\u6587\\x1b[0m" % (n % 9 + 2, n * 7 % 50, n % 8, part, n)
        os.write(1, wide.encode())
    scrolled = b"".join(b"\\r\\nrow %d" % n for n in range(9))
    os.write(1, b"\\x1b[3;8r\\x1b[8;1H" + scrolled + b"\\x1b[r\\x1b[10;1H" + b"x" * 90)
    print("\\r\\npart", part, flush=True)
"""
_COUNTING = """
import os, sys, time
n = 0
while not os.path.exists(sys.argv[1]):
    n += 1
    print("\\x1b[3%dmline-%d\\x1b[0m" % (n % 7 + 1, n), flush=True)
    time.sleep(0.05)
print("done", flush=True)
time.sleep(600)
"""
_ROWS = """() => {
    const { buffer: { active }, rows } = document.querySelector(".terminal").terminal;
    const line = (row) => active.getLine(active.baseY + row)?.translateToString(true) ?? "";
    return Array.from({ length: rows }, (_, row) => line(row)).join("\\n").trimEnd();
}"""
# Every size with the offset that was drawn then, and every pause that was asked for.
_SPY = """() => {
    const box = document.querySelector(".past .terminal");
    window.sizes = [];
    window.pauses = [];
    box.terminal.onResize(({ rows, cols }) => window.sizes.push([Number(box.dataset.offset), rows, cols]));
    const timeout = window.setTimeout;
    window.setTimeout = (work, ms, ...rest) => {
        // The end of a promise is what a replay waits for; others have timers of their own.
        if (String(work).includes("native code")) window.pauses.push(ms);
        return timeout(work, ms, ...rest);
    };
}"""
# The offset that a replay has reached, how long it took, and how long it waited.
_PLAYED = """() => [
    Number(document.querySelector(".past .terminal").dataset.offset),
    performance.now() - window.began,
    window.pauses.reduce((all, each) => all + each, 0),
]"""


def rows(tab: Tab) -> str:
    return str(tab.page.evaluate(_ROWS))


def shown_at(tab: Tab, offset: int) -> None:
    tab.page.wait_for_selector(f".past .terminal[data-offset='{offset}']")


def painted(session: Session, sizes: tuple[tuple[int, int], ...] = ((20, 60), (12, 100), (24, 80))) -> None:
    """Paint a part in each of these sizes."""
    for part, size in enumerate(((24, 80), *sizes)):
        session.resize(*size)
        session.submit("more")
        assert session.wait(match=f"part {part}", timeout=60).reason == "match"


def files(directory: Path) -> dict[str, tuple[int, int]]:
    """All but what the runner tells by itself: that the program waits for input."""
    found = ((path, path.stat()) for path in directory.rglob("*") if path.name != "signals.jsonl")
    return {str(path): (stat.st_size, stat.st_mtime_ns) for path, stat in found}


@pytest.mark.covers("page:21")
def test_the_screen_at_any_offset_is_that_of_the_command_line(chromium: Chromium, world: World, start: Start) -> None:
    session = start([sys.executable, "-c", _PAINTING], tty={"echo": False}, name="painting", size=(24, 80))
    assert session.wait(match="ready", timeout=60).reason == "match"
    painted(session)
    tab = chromium.signed_in()
    for _ in ("running", "ended"):
        before, size = files(world.session(session.id)), session.refresh().size
        first = len(tab.requests)
        for offset in random.Random(21).sample(range(session.ends["tty"] + 1), scaled(8, 50)):
            tab.open(f"/s/{session.id}?at={offset}")
            shown_at(tab, offset)
            wanted = world.hold("screen", session.id, "--at", offset, check=True).stdout.rstrip("\n")
            assert rows(tab) == wanted, offset
        tab.page.locator(".timeline svg").click(position={"x": 200, "y": 30})
        tab.page.wait_for_url(lambda url, last=offset: f"at={last}" not in url)  # type: ignore[misc]
        assert files(world.session(session.id)) == before
        assert session.refresh().size == size
        assert session.attached == {"control": 0, "observe": 0}
        sent = {(each.method, each.url.partition("?")[0].rpartition("/")[2]) for each in tab.requests[first:]}
        assert {name for method, name in sent if method != "GET"} <= {"people:web:page"}
        session.stop(grace=0)
    assert tab.problems == []


@pytest.mark.covers("page:22")
def test_going_back_in_time_and_to_live_again_does_not_affect_other_clients(
    chromium: Chromium, serving: Serving, world: World, start: Start
) -> None:
    seconds = scaled(3, 30)
    stop = world.root / "stop"
    session = start([sys.executable, "-c", _COUNTING, str(stop)], tty=True, name="counter", size=(24, 80))
    assert session.wait(match=f"line-{20 * seconds + 40}\\b", timeout=90).reason == "match"
    tab = chromium.signed_in()
    tab.page.click(tab.row("counter"))
    tab.shows("live", ".connection")
    viewer = WebViewer(serving.address, serving.token, session.id, role="observe")
    world.closing.callback(viewer.leave)
    viewer.until(lambda: bool(viewer.live), "output")
    said, size = len(viewer.told), session.refresh().size

    tab.page.wait_for_selector(".timeline svg")
    earlier = session.refresh().ends["tty"]
    slices = serving.call("GET", f"/v1/sessions/{session.id}/frames?buckets=160").json["items"]
    least, most = 0.8 * earlier, 1.2 * session.refresh().ends["tty"]
    assert least <= sum(each["bytes"] for each in slices) <= most
    box = tab.page.locator(".timeline svg").bounding_box()
    assert box is not None
    passed = tab.page.evaluate("Date.now()") - _ms(slices[0]["from"])
    x = box["width"] * (passed - seconds * 1000) / passed
    clicked = tab.page.evaluate("Date.now()")
    tab.page.locator(".timeline svg").click(position={"x": x, "y": 35})
    tab.page.wait_for_selector(".past .terminal[data-offset]")
    began = _offset(tab)
    frames = serving.call("GET", f"/v1/sessions/{session.id}/frames?from={began}&stream=tty&limit=1000").json["items"]
    moments = {each["offset"]: _ms(each["at"]) for each in frames}
    # So far back; the timeline may end some seconds ago.
    back = clicked - moments[min(moments)]
    assert seconds * 800 <= back <= seconds * 1200 + 10_000
    # The person reads when that was, by their own clock.
    moment = datetime.fromtimestamp(moments[min(moments)] / 1000).strftime("%H:%M:%S")  # noqa: DTZ006
    tab.shows(" ago, ", ".past .moment")
    assert re.fullmatch(rf"as it was \d+[sm] ago, {moment}", tab.page.inner_text(".past .moment"))
    tab.page.evaluate(_SPY)
    tab.page.evaluate("window.began = performance.now()")
    tab.page.select_option(".past select", "4")
    tab.page.click(".past button:has-text('Play')")
    until(lambda: _offset(tab) > began + 200)
    shown, played, waited = tab.page.evaluate(_PLAYED)
    recorded = moments[max(each for each in moments if each <= shown)] - moments[min(moments)]
    # Other work makes it later than that, and its pauses shorter, never the other way.
    assert played * 4 >= recorded - 1000
    assert waited * 4 <= recorded + 1000
    # Live went on meanwhile, behind it.
    at = session.refresh().ends["tty"]
    until(lambda: session.refresh().ends["tty"] > at)
    assert session.attached == {"control": 1, "observe": 1}
    tab.page.click(".past button:has-text('Live')")
    tab.page.wait_for_selector(".past", state="detached")
    stop.touch()
    tab.terminal_shows("done")
    assert rows(tab) == session.screen().text
    viewer.until(lambda: b"done" in viewer.live, "the last line")
    # Which window has the keyboard is all that changed: no size, nobody came or left.
    assert {each["type"] for each in viewer.told[said:]} <= {"clients"}
    assert all(_presence(each) == _presence(viewer.told[0]) for each in viewer.told[said:])
    assert session.refresh().size == size
    assert session.attached == {"control": 1, "observe": 1}
    assert tab.problems == []


def _presence(message: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**each, "focused": None} for each in message["clients"]]


def _ms(at: str) -> float:
    return datetime.fromisoformat(at).timestamp() * 1000


def _offset(tab: Tab) -> int:
    return int(tab.page.get_attribute(".past .terminal", "data-offset") or 0)


@pytest.mark.covers("page:23")
def test_a_replay_ends_on_the_last_screen_with_every_size_at_its_offset(
    chromium: Chromium, world: World, start: Start
) -> None:
    session = start([sys.executable, "-c", _PAINTING], tty={"echo": False}, name="painting", size=(24, 80))
    assert session.wait(match="ready", timeout=60).reason == "match"
    painted(session, ((20, 60), (12, 100)))
    # More than the two seconds that a replay waits.
    began = time.monotonic()
    assert session.wait(idle=3.2, timeout=60).reason == "idle"
    session.submit("last")
    assert session.wait(match="part 3", timeout=60).reason == "match"
    silent = time.monotonic() - began
    session.stop(grace=0)
    end, wanted = session.refresh().ends["tty"], session.screen().text
    sizes = [list(each) for each in world.open()._core.log(session.id).resizes() if each[0] > 0]
    tab = chromium.signed_in()
    for speed, longest in (("1", 2000), ("16", 125)):
        tab.open(f"/s/{session.id}?at=0")
        shown_at(tab, 0)
        tab.page.evaluate(_SPY)
        tab.page.select_option(".past select", speed)
        tab.page.click(".past button:has-text('Play')")
        shown_at(tab, end)
        tab.page.wait_for_selector(".past button:has-text('Play')")
        assert rows(tab) == wanted
        tab.shows("s without output skipped", ".past .bar")
        skipped = re.search(r"(\d+)s without output skipped", tab.page.inner_text(".past .bar"))
        assert skipped
        assert 1 <= int(skipped[1]) <= silent
        seen = tab.page.evaluate("window.sizes")
        assert seen == [each for n, each in enumerate(seen) if n == 0 or each[1:] != seen[n - 1][1:]]
        assert seen == sizes
        # The pause of more than three seconds is cut to two, and may be late already.
        pauses = tab.page.evaluate("window.pauses")
        assert max(pauses, default=0) <= longest + 50
        assert longest < 1000 or max(pauses) >= 1000
    assert tab.problems == []


_EVENTFUL = """
import sys
for n in range(60_000): print("filler %09d" % n)
print("ERROR found", flush=True)
sys.stdin.readline()
answer = input("Continue? [y/N] ")
print("got", answer, flush=True)
"""


@pytest.mark.covers("page:24")
def test_marks_stand_at_their_offsets_and_lead_there(chromium: Chromium, serving: Serving, start: Start) -> None:
    session = start([sys.executable, "-c", _EVENTFUL], tty=True, name="eventful", watch=["ERROR"], log_cap=1 << 20)
    until(lambda: [each for each in session.told() if getattr(each, "variant", "") == "watch"])
    session.submit("on")
    until(lambda: session.refresh().needs_input is not None)
    session.submit("y")
    assert session.wait(exit=True, timeout=60).reason == "exit"
    session.refresh()
    inputs = serving.call("GET", f"/v1/sessions/{session.id}/inputs").json["items"]
    told = {each.variant: each.fields for each in session.told() if hasattr(each, "variant")}
    dropped = session.dropped_before["tty"]
    assert dropped > 0
    wanted = {
        f"{dropped / 1024:.1f} KiB dropped by the cap": dropped,
        "watch": told["watch"]["offset"],
        f"input by {inputs[0]['by']}": inputs[0]["offset"],
        "question": told["needs_input"]["offset"],
        "the end": session.ends["tty"],
    }
    tab = chromium.signed_in()
    tab.page.click(tab.row("eventful"))
    summary = tab.page.locator(".timeline summary")
    summary.click()
    reached = _reached(serving.call("GET", f"/v1/sessions/{session.id}/frames?buckets=160").json["items"])
    for name, offset in wanted.items():
        listed = tab.page.get_by_role("list", name="Marks").get_by_role("button", name=name).first
        listed.click()
        tab.page.wait_for_url(f"**at={offset}*")
        shown_at(tab, offset)
        tab.page.click(".past button:has-text('The end')")
        tab.page.wait_for_selector(".past", state="detached")
        drawn = tab.page.locator(f".timeline .mark:has(title:text-is({name!r}))").first
        slice = int(float(drawn.get_attribute("x") or -1))
        assert reached[slice - 1] <= offset <= reached[slice], name
        drawn.click(force=True)
        tab.page.wait_for_url(f"**at={offset}*")
        shown_at(tab, offset)
    assert tab.problems == []


def _reached(slices: list[dict[str, Any]]) -> list[int]:
    """The offset at the end of each slice; one more in front, for the first one."""
    found = [0]
    for each in slices:
        found.append(max(found[-1], (each["last"] or {"tty": 0})["tty"]))
    return [*found[1:], 0]
