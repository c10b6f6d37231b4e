"""The log of pipes, and finding in everything that was printed."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from support.browser import until
from support.scale import scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Page

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.serving import Serving
    from support.world import World

    Start = Callable[..., Session]

_BOTH = """
import os, sys
for n in range(100_000):
    os.write(2 if n % 10 == 9 else 1, b"%s line %06d\\n" % (b"err" if n % 10 == 9 else b"\\x1b[32mout\\x1b[0m", n))
sys.stdin.readline()
for n in range(100_000, 100_200): print("out line %06d" % n)
sys.stdout.flush()
sys.stdin.readline()
"""
_NEEDLES = """
import sys
line = b"%08d haystack haystack haystack haystack haystack haystack haystack haystack haystack\\n"
count = int(sys.argv[1])
for n in range(count):
    sys.stdout.buffer.write(b"needle %d\\n" % n if n % (count // 150) == 7 else line % n)
print("ready", flush=True)
sys.stdin.readline()
"""
# From here on lines are printed later, to stdout alone.
_LATER = 100_000
_TOP = """() => {
    const { buffer: { active } } = document.querySelector(".terminal").terminal;
    return active.getLine(active.viewportY).translateToString(true);
}"""


def numbers(tab: Tab) -> list[int]:
    """Of all lines in the window. None is missing in either stream."""
    found = [int(each) for each in re.findall(r"line (\d{6})", tab.buffer())]
    for is_error in (True, False):
        stream = [n for n in found if (n % 10 == 9 and n < _LATER) == is_error]
        every = range(min(stream, default=0), max(stream, default=-1) + 1)
        assert stream == [n for n in every if (n % 10 == 9 and n < _LATER) == is_error]
    return found


def _picked(tab: Tab, session: Session) -> str:
    """Click on a line of stderr; that line, once it is set off and the address has its offset."""
    tab.page.locator(".xterm-rows > div:has-text('err line')").nth(1).click(force=True)
    at, line = re.search(r"at=(\d+)&of=stderr", tab.page.url), tab.picked()
    there = session.read(f"stderr:{at[1]}", stream="stderr", limit=16).text.strip() if at else None
    return line if line == there else ""


def _at_the_end(tab: Tab) -> int:
    tab.page.keyboard.press("End")
    return max(numbers(tab), default=0)


@pytest.mark.covers("page:4", "page:26")
def test_a_long_log_is_read_from_any_offset_both_ways(
    chromium: Chromium, serving: Serving, world: World, start: Start
) -> None:
    session = start([sys.executable, "-uc", _BOTH], name="both", stdin="open", log_cap=1 << 20)
    until(lambda: session.refresh().ends == {"stdout": 90_000 * 25, "stderr": 10_000 * 16})
    dropped = session.dropped_before
    assert dropped["stdout"] > 0
    tab = chromium.signed_in()
    page = tab.page
    page.click(tab.row("both"))
    tab.shows("following", ".log .bar")
    until(lambda: len(numbers(tab)) == 5000)
    assert 99_999 in numbers(tab)

    # Scrolled up it stays where it is, and says how much came.
    page.hover(".log .terminal")
    page.mouse.wheel(0, -2000)
    page.wait_for_selector(".log button:text-is('Follow')")
    top = page.evaluate(_TOP)
    session.send("more\n")
    page.wait_for_selector(".log button:text-is('Follow · 3.1 KiB new')")
    assert page.evaluate(_TOP) == top
    page.click(".log button:has-text('Follow')")
    until(lambda: 100_199 in numbers(tab))
    tab.shows("following", ".log .bar")

    # The first line that is kept, and what was dropped before it.
    page.click(".log button:text-is('First line')")
    first = session.read(f"stdout:{dropped['stdout']}", stream="stdout", limit=50).text.split("\n")[0]
    until(lambda: first in tab.buffer())
    size = f"{dropped['stdout'] / 1024 / 1024:.1f} MiB dropped by the cap, stdout"
    tab.terminal_shows(size)
    assert tab.buffer().index(size) < tab.buffer().index(first)
    assert size in page.evaluate(_TOP)
    assert tab.picked() == first

    # Any offset: the lines around it, on in both directions without a hole.
    offset = dropped["stdout"] + (session.ends["stdout"] - dropped["stdout"]) // 2 // 25 * 25
    wanted = session.read(f"stdout:{offset}", stream="stdout", limit=25).text.strip()
    page.fill("input[name=offset]", str(offset))
    page.press("input[name=offset]", "Enter")
    page.wait_for_url(f"**at={offset}*")
    until(lambda: tab.picked() == wanted)
    assert page.evaluate(_TOP).strip() == wanted
    before = numbers(tab)
    page.focus(".log textarea")
    page.keyboard.press("Home")
    until(lambda: min(numbers(tab), default=_LATER) < min(before))
    until(lambda: _at_the_end(tab) > max(before))

    # A line is a link: the same line in another browser. One of stderr as well, and of one stream alone.
    for stream in ("stderr", "all"):
        page.select_option("select[aria-label=Stream]", stream)
        until(lambda: (found := numbers(tab)) and (set(found) <= set(range(9, _LATER, 10))) == (stream == "stderr"))  # noqa: B023
        picked = until(lambda: _picked(tab, session))
        other = chromium.signed_in()
        other.open(page.url)
        until(lambda there=other, line=picked: there.picked() == line)  # type: ignore[misc]
        assert "err line" in picked
        assert other.problems == []
    assert tab.problems == []


@pytest.mark.covers("page:25", "page:26")
def test_every_line_of_a_short_log_is_reached(chromium: Chromium, start: Start) -> None:
    """The window around a line begins with the log and ends with it."""
    lines = "seq -f 'out %.0f' 9; seq -f 'err %.0f' 9 >&2"
    both = start(f"{lines}; sleep 600", name="both")
    silent = start("seq -f 'err %.0f' 9 >&2; sleep 600", name="silent")
    terminal = start("seq -f 'row %.0f' 9; sleep 600", tty=True, name="terminal")
    for each in (both, silent, terminal):
        assert each.wait(match="9", timeout=60).reason == "match"
    until(lambda: both.refresh().ends == {"stdout": 54, "stderr": 54})
    tab = chromium.signed_in()
    page = tab.page

    def shows(line: str) -> None:
        until(lambda: tab.picked() == line, what=f"{line} highlighted")

    def go_to(offset: int) -> None:
        page.fill("input[name=offset]", str(offset))
        page.press("input[name=offset]", "Enter")

    tab.open(f"/s/{both.id}?at=18")
    shows("out 4")
    page.click(".log button:text-is('First line')")
    shows("out 1")
    go_to(30)
    shows("out 6")
    for stream in ("stderr", "all"):
        page.select_option("select[aria-label=Stream]", stream)
        page.wait_for_selector(".xterm-rows:has-text('out 1')", state="attached" if stream == "all" else "detached")
        page.click(".log button:text-is('First line')")
        shows("err 1" if stream == "stderr" else "out 1")
        go_to(12)
        shows("err 3" if stream == "stderr" else "out 3")

    tab.open(f"/s/{silent.id}")
    tab.terminal_shows("err 9")
    page.click(".log button:text-is('First line')")
    shows("err 1")
    go_to(24)
    shows("err 5")

    tab.open(f"/s/{terminal.id}?tab=log&at=14")
    shows("row 3")
    page.click(".log button:text-is('First line')")
    shows("row 1")

    for each, text in ((both, "err 5"), (terminal, "row 5")):
        tab.open(f"/s/{each.id}?tab=log&find={text}")
        page.click(".hits li button")
        shows(text)
    assert tab.problems == []


def _all_found(page: Page) -> bool:
    """Ask for more once, unless there is none."""
    page.wait_for_selector(".find [role=status]:has-text('found')")
    if page.query_selector(".hits button:has-text('Show older')") is None:
        return True
    page.click(".hits button:has-text('Show older')")
    return False


def _hits(page: Page) -> list[int]:
    return [int(each.split()[1]) for each in page.locator(".hits bdi").all_inner_texts()]


@pytest.mark.covers("page:25")
def test_find_shows_the_newest_hits_and_leads_to_line_and_screen(chromium: Chromium, start: Start) -> None:
    count = scaled(50_000, 780_000)
    needles = [n for n in range(count) if n % (count // 150) == 7]
    words = [sys.executable, "-c", _NEEDLES, str(count)]
    session = start(words, name="pipes", stdin="open", log_cap=128 << 20)
    terminal = start(words, name="terminal", tty=True, log_cap=128 << 20)
    tab = chromium.signed_in()
    page = tab.page
    for each in (terminal, session):
        assert each.wait(match="ready", timeout=120).reason == "match"
        assert sum(each.refresh().ends.values()) > scaled(4, 64) << 20
        tab.open(f"/s/{each.id}?find=1")
        page.fill(".find input[aria-label]", "needle")
        page.press(".find input[aria-label]", "Enter")
        tab.shows("and more found, newest first", ".find")
        # A page has at most 50, and fewer where the server's time for it is over: on a busy machine even none.
        until(lambda: _hits(page) or _all_found(page))
        hits = _hits(page)
        assert len(hits) <= 50
        assert hits == needles[: -len(hits) - 1 : -1]
        tab.shows(f"{len(hits)} and more found", ".find")
        until(lambda: _all_found(page))
        tab.shows(f"{len(needles)} found, newest first", ".find")
        assert _hits(page) == needles[::-1]

    page.locator(".hits li button").nth(1).click()
    until(lambda: tab.picked() == f"needle {hits[1]}")
    offset = int(re.search(r"at=(\d+)", page.url)[1])  # type: ignore[index]
    assert session.read(f"stdout:{offset}", stream="stdout", limit=40).text.startswith(f"needle {hits[1]}\n")

    page.check(".find input[type=checkbox]")
    page.fill(".find input[aria-label]", "needle (")
    page.press(".find input[aria-label]", "Enter")
    tab.shows("is not a regular expression", ".find .trouble")
    tab.shows("use RE2 syntax", ".find .trouble")
    page.fill(".find input[aria-label]", "need.e [0-9]*7$")
    page.press(".find input[aria-label]", "Enter")
    page.wait_for_selector(".hits li")
    assert page.query_selector(".find .trouble") is None

    tab.open(f"/s/{terminal.id}?find=needle")
    page.locator(".hits li button").nth(2).click()
    page.wait_for_selector(".past .terminal[data-offset]")
    shown = needles[-3]
    until(lambda: tab.buffer().rstrip().endswith(f"needle {shown}"))
    page.click("nav button:text-is('log')")
    until(lambda: f"needle {shown}" in tab.buffer())
    page.locator(".hits li button").nth(2).click()
    until(lambda: tab.picked() == f"needle {shown}")
    assert [each for each in tab.problems if "400" not in each] == []


def test_the_transcript_of_a_terminal_shows_gaps_where_they_are(chromium: Chromium, start: Start, world: World) -> None:
    session = start("i=0; while [ $i -lt 300 ]; do i=$((i+1)); printf 'row %03d\\n' $i; done", tty=True, name="rows")
    session.wait(exit=True, timeout=30)
    # Nine bytes a row with its CR LF: rows 101 to 110, and 201 to 220, are lost.
    (segment,) = (world.session(session.id)).glob("tty.0*")
    data = segment.read_bytes()
    assert len(data) == 2700
    segment.write_bytes(data[:900])
    for begin, end in ((990, 1800), (1980, 2700)):
        segment.with_name(f"tty.{begin:020}").write_bytes(data[begin:end])
    wanted = "".join(f"row {n:03}\n" for n in range(1, 101)) + "── 90 B missing, tty ──\n"
    wanted += "".join(f"row {n:03}\n" for n in range(111, 201)) + "── 180 B missing, tty ──\n"
    wanted += "".join(f"row {n:03}\n" for n in range(221, 301))
    tab = chromium.signed_in()
    for at in ("", "&at=0", "&at=900", "&at=990", "&at=1350"):
        tab.open(f"/s/{session.id}?tab=log{at}")
        tab.page.wait_for_selector(".xterm-screen")
        until(lambda: tab.buffer().rstrip() == wanted.rstrip(), what=f"gaps at {at}")
