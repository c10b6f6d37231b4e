"""The list: every state as it happens, a thousand rows by keyboard, filters in the address, rows that stay put."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from support.browser import until
from support.own_time import QuietTime
from support.scale import LONG, scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Route

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.points import Points
    from support.serving import Serving
    from support.world import World

    Start = Callable[..., Session]

COUNT = scaled(200, 1000)
_STUBBORN = "trap '' TERM; echo working; while :; do sleep 1; done"


def state(tab: Tab, name: str, glyph: str, word: str, beside: str = "") -> None:
    """Wait until the row of a session has this state, and this text beside its name."""
    tab.page.wait_for_function(
        """([row, glyph, word, beside]) => [...document.querySelectorAll("a.row")].some((each) => {
            const [name, state] = [each.querySelector(".name"), each.querySelector(".state")];
            return name.firstChild.textContent === row && state.firstChild.textContent === glyph
                && state.textContent.includes(word) && name.textContent.includes(beside);
        })""",
        arg=[name, glyph, word, beside],
    )


@pytest.mark.covers("page:4")
def test_what_happens_elsewhere_is_in_the_list_within_a_second(
    chromium: Chromium, serving: Serving, start: Start, world: World
) -> None:
    """Counted from the moment in which the library knows it."""
    tab = chromium.tab()
    held: list[Route] = []
    # Loading: the frame at once, and after a second what is waited for.
    tab.page.route("**/v1/sessions?*", lambda route: held.append(route))  # noqa: PLW0108
    tab.open(f"/#code={serving.fresh_code()}")
    tab.page.wait_for_selector("header.top")
    tab.shows("Waiting for the list of sessions", "main")
    until(lambda: tab.page.evaluate("1") and held)
    held[0].continue_()
    tab.page.unroute("**/v1/sessions?*")
    # Empty: three lines that can be copied, and the button.
    tab.shows("Nothing is running here yet")
    lines = tab.page.locator(".empty .copy code").all_inner_texts()
    assert [line.split()[:2] for line in lines] == [["hold", "start"], ["hold", "run"], ["hold", "start"]]
    tab.page.wait_for_selector(".empty button:text-is('Start a command')")
    document = tab.page.evaluate("window.same = Math.random()")
    hf = world.open()
    steady = start("sleep 600", name="steady")
    world.closing.callback(world.hold, "gc", check=True)
    passed = QuietTime()

    def shown(*facts: str) -> None:
        nonlocal passed
        state(tab, *facts)
        assert passed.seconds() <= 1, facts

    shown("steady", "●", "running")
    tab.page.fill("#filter", "no such session")
    tab.shows("No session matches the filter.", ".empty")
    tab.page.click(".empty button")
    tab.page.wait_for_selector(tab.row("steady"))
    asks = hf.start("read start; printf 'Overwrite? [y/N] '; read answer; exit 3", tty=True, name="asks")
    asks.submit("")
    until(lambda: asks.refresh().needs_input)
    passed = QuietTime()
    shown("asks", "◆", "needs input", "Overwrite? [y/N]")
    assert tab.page.title().startswith("(1)")
    asks.submit("y")
    asks.wait(exit=True, timeout=60)
    passed = QuietTime()
    shown("asks", "✗", "exit 3")
    assert tab.page.title() == "Holdfast"
    steady.stop(by="agent-7")
    passed = QuietTime()
    shown("steady", "■", "stopped by agent-7")
    dies = start("exec sleep 60", name="dies")
    until(lambda: dies.refresh().runner_pid)
    for pid in (dies.runner_pid, dies.pid):
        os.kill(pid or 0, signal.SIGKILL)
    until(lambda: hf.get(dies.id).state == "lost")
    passed = QuietTime()
    shown("dies", "?", "lost")
    asks.remove()
    passed = QuietTime()
    tab.page.locator(tab.row("asks")).wait_for(state="detached")
    assert passed.seconds() <= 1
    assert tab.page.evaluate("window.same") == document, "the page was loaded again"
    assert tab.problems == []


@pytest.mark.covers("page:4")
@pytest.mark.timeout(600)
def test_every_state_has_its_glyph_and_its_word(
    chromium: Chromium, serving: Serving, start: Start, world: World, points: Points
) -> None:
    # Killed runners leave their sockets behind.
    world.closing.callback(world.hold, "gc", check=True)
    points.set("runner.spec_written=pause")
    starter = world.program(world.hold_argv("start", "--name", "begins", "--", "true"))
    held = points.wait("runner.spec_written")
    points.clear()
    start("echo hello; sleep 600", name="runs")
    secret = start("stty -echo; printf 'Password: '; read secret", tty=True, name="secret")
    question = start("printf 'Continue? [y/N] '; read answer", tty=True, name="question")
    for name, command, options in (
        ("fine", "exit 0", {}),
        ("failed", "exit 3", {}),
        ("crashed", "kill -SEGV $$", {}),
        ("late", "sleep 60", {"timeout": 0.1}),
        ("silent", "sleep 60", {"idle_timeout": 0.1}),
        ("parent", "sleep 600 >/dev/null 2>&1 & echo started", {}),
    ):
        parent = start(command, name=name, **options)
        parent.wait(exit=True, timeout=60)
    with pytest.raises(holdfast.errors.SpawnError):
        start(["/no/such/program"], name="nothing")
    start("exit 3", restart="on-failure", name="flaps")
    stubborn = start(_STUBBORN, name="stubborn")
    stubborn.wait(match="working", timeout=60)
    stopper = threading.Thread(target=_stop, args=(world, stubborn.id))
    stopper.start()
    start("sleep 600", name="stopped").stop(by="agent-7")
    orphan, gone, frozen = (start("echo hello; exec sleep 600", name=name) for name in ("orphan", "gone", "frozen"))
    for session, number in ((orphan, signal.SIGKILL), (gone, signal.SIGKILL), (frozen, signal.SIGSTOP)):
        session.wait(match="hello", timeout=60)
        os.kill(session.runner_pid or 0, number)
    world.closing.callback(os.kill, frozen.runner_pid or 0, signal.SIGCONT)
    os.kill(gone.pid or 0, signal.SIGKILL)
    for asking in (secret, question):
        until(lambda asking=asking: asking.refresh().needs_input)  # type: ignore[misc]

    tab = chromium.signed_in(viewport={"width": 1280, "height": 1600})
    state(tab, "begins", "◌", "starting")
    state(tab, "runs", "●", "running")
    state(tab, "question", "◆", "needs input", "Continue? [y/N]")
    state(tab, "secret", "◆", "needs input", "asks for a secret")
    assert "Password" not in tab.page.inner_text(f"{tab.row('secret')} .name")
    state(tab, "stubborn", "◐", "stopping", "ada asked it to stop")
    beside = tab.page.inner_text(f"{tab.row('stubborn')} .name")
    assert re.search(r"ada asked it to stop \d+[sm] ago; now: term", beside, re.IGNORECASE), beside
    state(tab, "nothing", "✗", "could not start", "No such file or directory: /no/such/program")
    state(tab, "flaps", "◌", "restarting, try ", "starts in")
    state(tab, "fine", "✓", "exit 0")
    state(tab, "failed", "✗", "exit 3")
    state(tab, "crashed", "✗", "SIGSEGV")
    state(tab, "late", "■", "timed out")
    state(tab, "silent", "■", "idle timeout")
    state(tab, "stopped", "■", "stopped by agent-7")
    state(tab, "parent", "✓", "exit 0, 1 still running")
    assert re.fullmatch(r"\d+[sm] ago", tab.page.inner_text(f"{tab.row('failed')} .age:last-child"))
    # Timeouts are among the failures.
    tab.page.click(".chip:has-text('Failed')")
    tab.page.wait_for_selector(tab.row("stopped"), state="detached")
    shown = tab.page.locator("a.row .name > bdi:first-child").all_inner_texts()
    assert sorted(shown) == ["crashed", "failed", "gone", "late", "nothing", "silent"]
    tab.page.click(".chip:has-text('Failed')")
    tab.page.wait_for_selector(tab.row("stopped"))
    for name, glyph, why in (
        ("frozen", "!", "does not answer"),
        ("orphan", "!", "Stop ends it"),
        ("gone", "?", "log so far"),
    ):
        word = {"frozen": "unreachable", "orphan": "stale", "gone": "lost"}[name]
        state(tab, name, glyph, word, why)
        tab.page.click(tab.row(name))
        tab.shows(why, ".note")
        tab.shows("hello", ".terminal")
        tab.page.go_back()
    state(tab, "runs", "●", "running")
    if LONG:
        # Five minutes of silence.
        tab.page.set_default_timeout(400_000)
    else:
        # Five minutes later by the clock of another browser.
        tab = chromium.tab()
        tab.page.add_init_script("const now = Date.now; Date.now = () => now() + 300_000")
        tab.open(f"/#code={serving.fresh_code()}")
    state(tab, "runs", "○", "running, quiet")
    # Its survivor ends: it has left nothing any more.
    os.kill(parent.refresh().exit.survivors[0]["pid"], signal.SIGKILL)  # type: ignore[union-attr]
    tab.page.wait_for_selector(f"{tab.row('parent')} .state:has-text('still running')", state="detached")
    state(tab, "parent", "✓", "exit 0")
    stubborn.kill()
    stopper.join()
    held.release()
    starter.wait(30)


def _stop(world: World, id: str) -> None:
    with holdfast.open() as hf, suppress(holdfast.HoldfastError):
        hf.get(id).stop(grace=300, by="ada")


@pytest.mark.covers("page:4")
@pytest.mark.root
def test_a_command_that_the_kernel_took_for_its_memory_says_so(chromium: Chromium, start: Start, world: World) -> None:
    start(world.probe("alloc", 300), memory=64 << 20, name="greedy").wait(exit=True, timeout=60)
    tab = chromium.signed_in()
    state(tab, "greedy", "✗", "out of memory")


@pytest.mark.covers("page:5")
@pytest.mark.timeout(600)
def test_a_thousand_sessions_by_keyboard_and_by_address(chromium: Chromium, start: Start, world: World) -> None:
    """Twenty sessions ran; the others are copies of their records, with ids of their own."""
    hf = world.open()
    made = [hf.run("echo hi", wait=60, owner=f"agent-{n % 3}", labels={"n": str(n % 2)}) for n in range(20)]
    for n in range(COUNT - len(made)):
        copied(world, made[n % len(made)].id, f"bcopy{n:04}")
    last = hf.run("echo first", wait=60, name="zz-last")
    (world.home / "index.db").unlink()
    assert hf.get("zz-last").id == last.id
    tab = chromium.signed_in()
    tab.shows(str(COUNT + 1), ".chips")
    page = tab.page
    page.select_option("select[aria-label=sort]", "name")
    page.focus(".rows")
    page.keyboard.press("End")
    # Without a name the oldest is the last, and of the same age the one with the highest id.
    oldest = min(made, key=lambda each: str(each.created_at)).created_at
    ids = [each.id for each in hf.sessions(all=True) if each.created_at == oldest]
    page.wait_for_function("(id) => document.activeElement.dataset.id === id", arg=max(ids))
    rows = page.eval_on_selector("a.row[data-current]", "row => [row.getBoundingClientRect().bottom, innerHeight]")
    assert rows[0] <= rows[1]
    assert page.eval_on_selector_all("a.row", "rows => rows.length") < 100
    page.keyboard.press("Home")
    page.wait_for_function("() => document.activeElement.textContent.includes('zz-last')")
    for _ in range(50):
        page.keyboard.press("j")
    place = "document.activeElement.closest('li').style.top"
    page.wait_for_function(f"() => {place} === `${{32 + 50 * 32}}px`")

    page.fill("#filter", "echo hi")
    tab.shows(f"{COUNT} of {COUNT + 1}", ".count")
    page.select_option("select[aria-label=owner]", "agent-1")
    page.select_option("select[aria-label=group]", "label")
    page.wait_for_selector(".heading:has-text('n=0')")
    shown = order(tab)
    assert len(shown) > 10
    page.reload()
    until(lambda: order(tab) == shown, what="the same rows after a reload")
    page.go_back()
    page.wait_for_selector(".heading:has-text('Ended')")
    assert page.input_value("select[aria-label=owner]") == "agent-1"
    page.go_back()
    tab.shows(f"{COUNT} of {COUNT + 1}", ".count")
    for _ in range(2):
        page.go_forward()
    until(lambda: order(tab) == shown, what="the same rows after going back and forward")


_ORDER = """all => all
    .filter((each) => each.getBoundingClientRect().top < innerHeight)
    .map((each) => each.dataset.id ?? each.textContent)"""


def order(tab: Tab) -> Any:
    """Rows and headings in view; the row that keys act on is in the document anywhere."""
    return tab.page.eval_on_selector_all("a.row, .heading", _ORDER)


def copied(world: World, id: str, new: str) -> None:
    """Records in another spelling than the runner's need no check sum."""
    target = world.session(new)
    shutil.copytree(world.session(id), target)
    (target / "signals.jsonl").unlink()
    for path in target.glob("*.json"):
        record = json.loads(path.read_bytes().replace(id.encode(), new.encode()))
        record.pop("check")
        path.write_text(json.dumps(record, indent=1))


@pytest.mark.covers("page:5")
def test_a_row_stays_under_the_pointer_while_it_is_pressed(chromium: Chromium, start: Start, world: World) -> None:
    start("sleep 600", name="above")
    pressed = start("until [ -e go ]; do sleep 0.1; done; printf 'Sure? [y/N] '; read answer", tty=True, name="pressed")
    newest = start("sleep 600", name="newest")
    tab = chromium.signed_in()
    page = tab.page
    row = page.wait_for_selector(tab.row("pressed"))
    assert row is not None
    box = row.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 200, box["y"] + 10)
    page.mouse.down()
    (world.cwd / "go").touch()
    until(lambda: pressed.refresh().needs_input)
    start("sleep 600", name="even newer")
    state(tab, "pressed", "◆", "needs input", "Sure?")
    assert row.bounding_box() == box
    assert page.query_selector(tab.row("even newer")) is None
    page.mouse.up()
    page.wait_for_url(f"**/s/{pressed.id}")
    page.go_back()
    page.wait_for_selector(tab.row("even newer"))
    until(lambda: (page.query_selector(tab.row("pressed")) or row).bounding_box() != box)
    assert newest.refresh().state == "running"


def test_the_filter_is_there_at_the_next_visit_until_it_is_cleared(chromium: Chromium, start: Start) -> None:
    for owner in ("ada", "ben"):
        start("sleep 600", owner=owner, name=f"of-{owner}")
    context = chromium.context()
    tab = chromium.signed_in(context)
    tab.page.wait_for_selector(tab.row("of-ben"))
    tab.page.select_option("select[aria-label=owner]", "ada")
    tab.page.wait_for_selector(tab.row("of-ben"), state="detached")
    tab.page.click(tab.row("of-ada"))
    tab.page.wait_for_url("**/s/*")
    tab.page.click("header.top a:text-is('Sessions')")
    tab.page.wait_for_url("**/?owner=ada")
    tab.page.close()

    again = chromium.signed_in(context)
    again.page.wait_for_selector(again.row("of-ada"))
    assert again.page.url.endswith("/?owner=ada")
    assert again.page.query_selector(again.row("of-ben")) is None
    again.page.click("button:text-is('Clear')")
    again.page.wait_for_selector(again.row("of-ben"))
    again.page.reload()
    again.page.wait_for_selector(again.row("of-ben"))
    assert again.page.url.endswith("/")


def test_a_session_that_is_removed_breaks_no_connection(chromium: Chromium, start: Start, world: World) -> None:
    ended = world.open().run("true", name="ended", wait=60)
    tab = chromium.signed_in()
    tab.page.wait_for_selector(tab.row("ended"))
    ended.remove()
    tab.page.wait_for_selector(tab.row("ended"), state="detached")
    start("sleep 600", name="next")
    tab.page.wait_for_selector(tab.row("next"))
    assert len([each for each in tab.requests if "/v1/events" in each.url]) == 1
    assert tab.problems == []


def test_rows_are_not_shown_as_found_before_the_server_has_searched(
    chromium: Chromium, serving: Serving, start: Start
) -> None:
    for name in ("wanted", "other"):
        start("sleep 600", name=name)
    tab = chromium.signed_in()
    page = tab.page
    for name in ("wanted", "other"):
        page.wait_for_selector(tab.row(name))
    os.kill(serving.pid, signal.SIGSTOP)
    try:
        page.fill("#filter", "wanted")
        tab.shows("searching", ".count")
    finally:
        os.kill(serving.pid, signal.SIGCONT)
    tab.shows("1 of 2", ".count")
    page.wait_for_selector(tab.row("other"), state="detached")


def test_enter_opens_the_highlighted_row(chromium: Chromium, start: Start) -> None:
    session = start("sleep 600", name="only")
    tab = chromium.signed_in()
    tab.page.wait_for_selector(f"{tab.row('only')}[data-current]")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_url(f"**/s/{session.id}")
