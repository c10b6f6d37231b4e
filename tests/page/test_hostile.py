"""A program that prints whatever could make a terminal in a browser act."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from support.browser import until
from support.own_time import QuietTime
from support.scale import scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.serving import Serving

    Start = Callable[..., Session]

_MARKUP = "<img src=x onerror=window.attacked=1><script>window.attacked=1</script>"
_HOSTILE = rf"""
import os, sys
# On a terminal when it is asked to, so that whoever is attached gets the bytes and not a drawn screen.
if os.isatty(0):
    import tty
    tty.setraw(0)
    os.write(1, b"ready\r\n")
    os.read(0, 1)
ESC, BEL, ST = "\x1b", "\x07", "\x1b\\"
out = []
# Queries, in both forms of their introducer.
csi = ["6n", "?6n", "5n", "c", "0c", ">c", "=c", ">q", "?1$p", "4$p", "?u", "?4m", "?996n", "0x", "1x", "?1;1;0S"]
csi += [f"{{n}}t" for n in (*range(1, 24), "8;10;10", "4;100;100")] + ["1;2;1;1;9;9*y", "?26n", "?15n"]
csi += ["5i", "4i", "?3h", "?40h", "?1004h", "?2031h", "?2048h", "?1000h", "?1003h", "?1006h"]
out += [ESC + "[" + each for each in csi] + ["\x9b" + each for each in csi]
dcs = ["+q544e", "$qm", "$q q", "$qr", '$q"p', "q#0;2;0;0;0#0!200~-", "1$r0m", "|evil"]
out += [ESC + "P" + each + ST for each in dcs]
osc = [f"4;{{n}};?" for n in (0, 1, 255)] + [f"{{n}};?" for n in (5, 10, 11, 12, 13, 14, 17, 19, 21, 22, 52, 99)]
osc += ["52;c;ZXZpbA==", "52;p;ZXZpbA==", "52;c;?", "9;evil", "777;notify;evil;evil", "99;i=1;evil", "50;evil"]
osc += ["1337;File=:ZXZpbA=="]
osc += [f"{{n}};{_MARKUP}\u202eevil\u2066" for n in (0, 1, 2)] + ["7;file://evil/", "133;A", "9;4;1;50"]
out += [ESC + "]" + each + end for each in osc for end in (BEL, ST)]
out += [ESC + "Z", "\x05", ESC + "_Ga=q,i=1;AAAA" + ST, ESC + "^evil" + ST, ESC + "Xevil" + ST]
out += [ESC + "[?1000l" + ESC + "[?1003l" + ESC + "[?1004l"]
out += ["{_MARKUP}\r\n", "\r\n"]
for target, name in (
    ("javascript:window.attacked=1", "script"),
    ("data:text/html,evil", "data"),
    ("https://evil.example/real?\u202etarget", "lie"),
):
    out += [ESC + "]8;;" + target + ST + "https://good.example/" + name + ESC + "]8;;" + ST + "\r\n"]
text = "".join(out).encode("utf-8", "replace")
def write(data):
    while data:
        data = data[os.write(1, data):]
if sys.argv[1:] == ["long"]:
    write(b"x" * {scaled(2, 10)}_000_000 + b"\r\n")
write(text + b"\r\nover\r\n")
while True:
    if not os.read(0, 1):
        break
"""

_WATCH = """
    window.violations = [];
    addEventListener("securitypolicyviolation", (event) => window.violations.push(event.violatedDirective));
    window.opened = 0;
    window.open = () => { window.opened += 1; return null; };
"""


def guarded(chromium: Chromium) -> Tab:
    """A tab that notes each violation of its policy, with something in the clipboard."""
    context = chromium.context(permissions=["clipboard-read", "clipboard-write"])
    context.add_init_script(_WATCH)
    tab = chromium.signed_in(context)
    tab.page.evaluate("navigator.clipboard.writeText('mine')")
    return tab


def is_untouched(tab: Tab, sessions: list[Session], serving: Serving) -> None:
    page = tab.page
    assert page.evaluate("navigator.clipboard.readText()") == "mine"
    assert page.evaluate("[window.attacked ?? 0, window.violations, window.opened]") == [0, [], 0]
    assert page.evaluate("document.title").endswith("Holdfast")
    assert page.eval_on_selector_all("main script, main img, main canvas, main iframe", "all => all.length") == 0
    sent = [each for each in tab.sent() if each["type"] == "input"]
    assert sent == []
    for session in sessions:
        items = serving.call("GET", f"/v1/sessions/{session.id}/inputs").json["items"]
        assert not [each for each in items if str(each["by"]).startswith("web")]
    assert tab.problems == []


def answers(tab: Tab) -> None:
    """The page answers within a second."""
    passed = QuietTime()
    tab.page.evaluate("new Promise((done) => setTimeout(done, 0))")
    assert passed.seconds() <= 1


def links_ask(tab: Tab, where: str = "") -> None:
    """A click on a link opens nothing: it shows the whole address, or nothing at all for one that is no address."""
    page = tab.page
    lines = page.eval_on_selector_all(f"{where} .xterm-rows > div", "all => all.map((each) => each.textContent)")
    for text, target in (("script", None), ("data", None), ("lie", "https://evil.example/real?%E2%80%AEtarget")):
        row = next(number for number, line in enumerate(lines) if f"good.example/{text}" in line)
        box = page.locator(f"{where} .xterm-screen").bounding_box()
        assert box is not None
        height = box["height"] / page.evaluate(f"document.querySelector('{where} .terminal').terminal.rows")
        page.mouse.move(box["x"] + 30, box["y"] + height * (row + 0.4))
        page.mouse.move(box["x"] + 40, box["y"] + height * (row + 0.5))
        answers(tab)
        page.mouse.click(box["x"] + 40, box["y"] + height * (row + 0.5))
        if target is None:
            assert page.query_selector("dialog") is None
            continue
        page.wait_for_selector("dialog[open]")
        assert page.text_content("dialog .target") == target
        assert page.get_attribute("dialog a", "rel") == "noopener noreferrer"
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")


@pytest.mark.covers("page:14")
def test_nothing_that_a_program_prints_makes_the_page_act(chromium: Chromium, serving: Serving, start: Start) -> None:
    tab = guarded(chromium)
    tab.sent()
    page = tab.page
    session = start([sys.executable, "-c", _HOSTILE, "long"], tty=True, name="hostile")
    tab.attach(session)
    tab.terminal_shows("ready")
    page.click(".terminal")
    session.send("g")
    while session.refresh().ends["tty"] > tab.screen()[0] or "over" not in tab.buffer():
        answers(tab)
    is_untouched(tab, [session], serving)

    links_ask(tab)
    is_untouched(tab, [session], serving)


@pytest.mark.covers("page:15")
def test_hostile_output_is_harmless_in_replay_log_and_preview(
    chromium: Chromium, serving: Serving, start: Start
) -> None:
    terminal = start([sys.executable, "-c", _HOSTILE, "long"], tty=True, name="hostile")
    pipes = start([sys.executable, "-c", _HOSTILE, "long"], name="hostile-pipes")
    assert terminal.wait(match="ready", timeout=60).reason == "match"
    terminal.send("g")
    for session in (terminal, pipes):
        assert session.wait(match="over", timeout=60).reason == "match"
    tab = guarded(chromium)
    tab.sent()
    page = tab.page
    for name in ("hostile", "hostile-pipes"):
        page.wait_for_selector(tab.row(name))
        page.focus(tab.row(name))
        tab.shows("over", ".preview pre")
        answers(tab)
        is_untouched(tab, [terminal, pipes], serving)
    page.click("header.top a:text('Grid')")
    tab.shows("over", ".tile pre")
    is_untouched(tab, [terminal, pipes], serving)
    end = terminal.refresh().ends["tty"]
    for address, where in (
        (f"/s/{pipes.id}", ".log"),
        (f"/s/{terminal.id}?tab=log", ".log"),
        (f"/s/{terminal.id}?at={end}", ".past"),
    ):
        tab.open(address)
        tab.shows("over", f"{where} .xterm-rows")
        answers(tab)
        if "tab=log" not in address:  # the transcript is text: it has no links
            links_ask(tab, where)
        page.click(f"{where} .terminal")
        page.keyboard.type("x")
        is_untouched(tab, [terminal, pipes], serving)
    # Played from where the queries begin.
    tab.open(f"/s/{terminal.id}?at={end - 20_000}")
    page.click(".past button:has-text('Play')")
    page.select_option("select[aria-label='Speed']", "16")
    tab.shows("over", ".past .xterm-rows")
    answers(tab)
    is_untouched(tab, [terminal, pipes], serving)


_COPIES = r"""
import base64, os, tty
tty.setraw(0)
os.write(1, b"ready\r\n")
while (asked := os.read(0, 1)):
    text = {b"w": b"words", b"x": b"other words", b"l": b"l" * (64 * 1024 + 1), b"q": b""}.get(asked)
    if text is not None:
        data = base64.b64encode(text) if text else b"?"
        os.write(1, b"\x1b]52;c;" + data + b"\x07did " + asked + b"\r\n")
"""


def test_a_session_that_may_writes_the_clipboard_while_it_is_focused(chromium: Chromium, start: Start) -> None:
    """Switched on for one session; never more than 64 KiB, never out of focus, never in replay, and nothing is read."""
    session = start([sys.executable, "-c", _COPIES], tty=True, name="copies")
    tab = guarded(chromium)
    page = tab.page
    clipboard = "navigator.clipboard.readText()"
    tab.attach(session)
    tab.terminal_shows("ready")
    page.click(".terminal")
    page.keyboard.type("w")
    tab.terminal_shows("did w")
    assert page.evaluate(clipboard) == "mine"

    page.keyboard.press("Control+]")
    page.keyboard.press("k")
    page.fill("dialog input", "clipboard")
    page.keyboard.press("Enter")
    page.wait_for_selector("button:text-is('Clipboard: on')")
    page.focus(".terminal textarea")
    page.keyboard.type("w")
    tab.shows("The session put 5 bytes into the clipboard.", ".unsent")
    assert page.evaluate(clipboard) == "words"
    page.keyboard.type("l")
    tab.shows("more than 64 KiB", ".unsent")
    tab.sent().clear()
    page.keyboard.type("q")
    tab.terminal_shows("did q")
    tab.until_taken()
    assert [each for each in tab.sent() if each["type"] == "input" and each.get("data") != "q"] == []
    page.focus("button:text-is('Find')")
    session.send("x")
    tab.terminal_shows("did x")
    assert page.evaluate(clipboard) == "words"

    page.click("button:text-is('Clipboard: on')")
    page.focus(".terminal textarea")
    page.keyboard.type("x")
    until(lambda: tab.buffer().count("did x") == 2)
    assert page.evaluate(clipboard) == "words"
    # Neither in the past nor after a reload.
    tab.open(f"/s/{session.id}?at={len('ready')}")
    page.click(".past button:has-text('Play')")
    tab.shows("did x", ".past .xterm-rows")
    page.click(".past button:text-is('Live')")
    tab.shows("live", ".connection")
    page.focus(".terminal textarea")
    page.keyboard.type("x")
    until(lambda: tab.buffer().count("did x") == 3)
    assert page.evaluate(clipboard) == "words"


_ADDRESSES = {
    "https://good.example/path?x=1": "字 see https://good.example/path?x=1, it says",
    "https://other.example/(a)": "or https://other.example/(a).",
    "http://third.example/a": "(http://third.example/a)",
    "mailto:ada@mail.example": "ask mailto:ada@mail.example!",
    "https://long.example/" + "a" * 200: "x" * 60 + " https://long.example/" + "a" * 200,
    "": "ftp://fourth.example/ javascript:window.attacked=1 file:///etc/passwd",
}


@pytest.mark.parametrize("tty", [True, False])
def test_addresses_in_plain_text_are_asked_about(chromium: Chromium, start: Start, tty: bool) -> None:
    text = "\n".join(_ADDRESSES.values())
    session = start(["printf", "%s\nover\n", text], tty=tty, name="addresses")
    session.wait(exit=True, timeout=60)
    tab = guarded(chromium)
    page = tab.page
    tab.open(f"/s/{session.id}")
    tab.shows("over", ".xterm-rows")
    box = page.locator(".xterm-screen").bounding_box()
    assert box is not None
    lines = page.eval_on_selector_all(".xterm-rows > div", "all => all.map((each) => each.textContent)")
    cols, rows = page.evaluate("(({ cols, rows }) => [cols, rows])(document.querySelector('.terminal').terminal)")
    for target in _ADDRESSES:
        shown = target[:20] or "ftp://fourth.example"
        row = next(number for number, line in enumerate(lines) if shown in line)
        column = lines[row].index(shown) + ("字" in lines[row])
        x, y = box["x"] + box["width"] * (column + 0.5) / cols, box["y"] + box["height"] * (row + 0.5) / rows
        page.mouse.move(x + 20, y)
        page.mouse.move(x, y)
        page.mouse.click(x, y)
        if not target:
            answers(tab)
            assert page.query_selector("dialog") is None
            continue
        page.wait_for_selector("dialog[open]")
        assert page.text_content("dialog .target") == target
        page.keyboard.press("Escape")
        page.wait_for_selector("dialog", state="detached")
    assert page.evaluate("[window.attacked ?? 0, window.opened]") == [0, 0]
