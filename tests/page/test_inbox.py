"""The inbox: questions that are answered in place, and signals that are settled."""

from __future__ import annotations

import hashlib
import json
import os
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast.signals.lines import Signal
from support.browser import until
from support.own_time import QuietTime

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.serving import Serving
    from support.world import World

    Start = Callable[..., Session]

_SECRET = "open-sesame-4711"
_ASKS = "head -c1 {gate} >/dev/null; printf 'Delete everything? [y/N] '; read answer; echo \"<$answer>\"; sleep 600"
_ASKS_SECRET = (
    "stty -echo; printf 'Password: '; read -r answer; stty echo; printf %s \"$answer\" | sha256sum; sleep 600"
)


@pytest.mark.covers("page:27")
def test_a_question_is_answered_in_the_inbox_and_a_secret_is_kept_nowhere(
    chromium: Chromium, serving: Serving, world: World, start: Start
) -> None:
    tab = chromium.signed_in()
    page = tab.page
    page.click("header.top a:text('Inbox')")
    tab.shows("No session waits for input.")
    gate = world.gate()
    asks = start(_ASKS.format(gate=gate), tty=True, name="asks")
    gate.release()
    until(lambda: asks.refresh().needs_input is not None)
    passed = QuietTime()
    tab.shows("Delete everything? [y/N]", ".question .line")
    assert passed.seconds() <= 1
    answer = page.locator(".question:has-text('asks') input")
    assert answer.get_attribute("type") == "text"
    answer.fill("y")
    answer.press("Enter")
    assert asks.wait(match="<y>", timeout=60).reason == "match"
    tab.shows("No session waits for input.")
    sent = [each for each in tab.requests if each.method == "POST" and each.url.endswith("/input")]
    assert [json.loads(each.post_data or "") for each in sent] == [{"submit": "y"}]

    secret = start(_ASKS_SECRET, tty=True, name="vault")
    field = page.locator(".question:has-text('vault') input")
    assert field.get_attribute("type") == "password"
    tab.shows("asks for a secret", ".question")
    assert "Password" not in page.inner_text("main")
    field.fill(_SECRET)
    field.press("Enter")
    digest = hashlib.sha256(_SECRET.encode()).hexdigest()
    assert secret.wait(match=digest, timeout=60).reason == "match"
    tab.shows("No session waits for input.")
    for path in (*world.home.rglob("*"), *(world.root / "user").rglob("*"), *(world.root / "tmp").rglob("*")):
        if path.is_file():
            assert _SECRET.encode() not in path.read_bytes(), path
    assert _SECRET not in serving.program.errors()
    assert _SECRET not in str(page.evaluate("[{...localStorage}, {...sessionStorage}, document.body.innerHTML]"))
    assert _SECRET not in page.url
    assert tab.problems == []


@pytest.mark.covers("page:27")
def test_a_secret_that_is_typed_below_the_terminal_is_kept_nowhere(
    chromium: Chromium, serving: Serving, world: World, start: Start
) -> None:
    gate = world.gate()
    secret = start(f"head -c1 {gate} >/dev/null; {_ASKS_SECRET}", tty=True, name="vault")
    tab = chromium.signed_in(viewport={"width": 390, "height": 844})
    page = tab.page
    tab.attach(secret)
    field = page.locator(".touch input")
    # Text typed before the question does not become part of the answer.
    field.fill("a draft")
    gate.release()
    page.wait_for_selector(".touch input[type=password]")
    until(lambda: field.input_value() == "")
    field.fill(_SECRET)
    kept = "[document.body.innerText, {...localStorage}, {...sessionStorage}]"
    assert _SECRET not in str(page.evaluate(kept))
    # While the server does not answer, the text that was sent is not shown either.
    os.kill(serving.pid, signal.SIGSTOP)
    try:
        field.press("Enter")
        tab.shows("Not accepted yet: a secret", ".unsent")
        assert _SECRET not in str(page.evaluate(kept))
    finally:
        os.kill(serving.pid, signal.SIGCONT)
    digest = hashlib.sha256(_SECRET.encode()).hexdigest()
    assert secret.wait(match=digest, timeout=60).reason == "match"
    page.wait_for_selector(".touch input[type=text]")
    assert field.input_value() == ""
    assert _SECRET not in str(page.evaluate(kept))


def test_signals_have_the_names_and_words_of_the_list(chromium: Chromium, start: Start) -> None:
    tab = chromium.signed_in()
    tab.page.click("header.top a:text('Inbox')")
    tab.shows("Nothing new.")
    start("sleep 600", timeout=0.1)
    start("printf 'Sure? [y/N] '; read answer; sleep 600", tty=True, name="asks")
    late = "section[aria-label=Signals] li:has-text('sleep 600'):has-text('timed out')"
    tab.page.wait_for_selector(late)
    assert tab.page.query_selector(f"{late} .bad") is not None
    # An open question is listed once, above.
    tab.page.wait_for_selector(".question:has-text('asks')")
    assert shown(tab) == ["sleep 600"]


def test_a_second_enter_answers_no_other_question(chromium: Chromium, serving: Serving, start: Start) -> None:
    """The field of the next question once got the focus of the one that was answered: one more Enter said yes to it."""
    asks = [
        start("read -p 'Sure? [Y/n] ' answer; echo \"<$answer>\"; sleep 600", tty=True, name=name)
        for name in ("first", "other")
    ]
    until(lambda: all(each.refresh().needs_input is not None for each in asks))
    tab = chromium.signed_in()
    tab.page.click("header.top a:text('Inbox')")
    tab.page.wait_for_function("() => document.querySelectorAll('.question input').length === 2")
    tab.page.fill(".question:has-text('first') input", "n")
    tab.page.keyboard.press("Enter")
    tab.page.wait_for_function("() => document.querySelectorAll('.question input').length === 1")
    tab.page.wait_for_function("() => document.activeElement.matches('h1')")
    tab.page.keyboard.press("Enter")
    tab.page.keyboard.press("Enter")
    assert asks[0].wait(match="<n>", timeout=60).reason == "match"
    sent = [each.post_data for each in tab.requests if each.method == "POST" and each.url.endswith("/input")]
    assert sent == ['{"submit":"n"}']
    assert asks[1].refresh().needs_input is not None


def _end_of(session: Session) -> str:
    told = [each for each in session.told() if isinstance(each, Signal)]
    ends = [each.id for each in told if each.fields.get("phase") == "ended"]
    return ends[0] if ends else ""


def shown(tab: Tab) -> list[str]:
    """The sessions whose signals wait."""
    return tab.page.locator("section[aria-label=Signals] li strong").all_inner_texts()


@pytest.mark.covers("page:29")
def test_signals_are_settled_one_by_one_and_all_in_every_tab(
    chromium: Chromium, serving: Serving, world: World, start: Start
) -> None:
    context = chromium.context()
    tab = chromium.tab(context)
    tab.open(f"/#code={serving.fresh_code()}")
    tab.page.click("header.top a:text('Inbox')")
    tab.shows("Nothing new.")
    other = chromium.tab(context)
    other.page.add_init_script(f"sessionStorage.setItem('token', {tab.page.evaluate('sessionStorage.token')!r})")
    other.open("/inbox")
    other.shows("Nothing new.")
    names = [f"ends-{n}" for n in range(5)]
    signals = {}
    for name in names:
        ended = start("exit 3", name=name)
        assert ended.wait(exit=True, timeout=60).reason == "exit"
        signals[name] = until(lambda ended=ended: _end_of(ended))  # type: ignore[misc]
    for each in (tab, other):
        until(lambda each=each: sorted(shown(each)) == names)  # type: ignore[misc]

    tab.page.click(f"button[aria-label='Settle {signals['ends-1']}']")
    for each in (tab, other):
        until(lambda each=each: sorted(shown(each)) == ["ends-0", "ends-2", "ends-3", "ends-4"])  # type: ignore[misc]

    # An agent settles one that both still show: it does not come back when they read again.
    world.hold("ack", signals["ends-2"], "--consumer", "people:web:page", check=True)
    other.page.click(f"button[aria-label='Settle {signals['ends-3']}']")
    for each in (tab, other):
        until(lambda each=each: sorted(shown(each)) == ["ends-0", "ends-4"])  # type: ignore[misc]
    other.page.reload()
    until(lambda: sorted(shown(other)) == ["ends-0", "ends-4"])

    tab.page.click("button:text-is('Settle all')")
    for each in (tab, other):
        each.shows("Nothing new.")
    tab.page.reload()
    tab.shows("Nothing new.")
    assert world.hold("signals", "--consumer", "people:web:page", "--json", check=True).stdout.strip() == "[]"

    # A signal leads to its session and offset.
    found = start("echo before; echo here it is; sleep 600", name="watched", watch=["here"])
    tab.page.click("section[aria-label=Signals] li a")
    tab.page.wait_for_url(f"**/s/{found.id}?at=7")
    until(lambda: tab.picked() == "here it is")
    assert tab.problems == other.problems == []
