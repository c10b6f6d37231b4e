"""What goes wrong: each problem says what it is and what to do, and the page goes on when the server does."""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import Error

from support.browser import until
from support.levers import namespace_argv
from support.releases import under_version
from support.serving import Serving
from support.webviewer import WebViewer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.world import World

    Start = Callable[..., Session]

_COUNTING = "i=0; while :; do i=$((i+1)); echo line-$i; sleep 0.05; done"
_BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\nContent-Length: 11\r\n\r\n<h1>Oh</h1>"


def trouble(tab: Tab, title: str, detail: str, fix: str, within: str = ".trouble") -> None:
    for text in (title, detail, fix):
        try:
            tab.shows(text, within)
        except Error:
            raise AssertionError((text, tab.page.inner_text("body"))) from None


def start_by_dialog(tab: Tab, command: str) -> None:
    tab.page.keyboard.press("n")
    tab.page.fill("textarea[name=command]", command)
    tab.page.click("dialog button.primary")


@pytest.mark.covers("page:34")
@pytest.mark.timeout(300)
def test_each_problem_says_what_to_do_and_passes(
    chromium: Chromium, serving: Serving, world: World, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start("sleep 600", name="steady")
    asks = start("printf 'Sure? [y/N] '; read answer; echo got $answer; sleep 600", tty=True, name="asks")
    doomed = world.open().start("exit 0", name="doomed")
    tab = chromium.signed_in()
    page = tab.page
    page.wait_for_selector(".top .primary")
    marked = page.evaluate("window.same = Math.random()")

    def restarted() -> None:
        """Another server at the same address; the page finds it by itself."""
        assert serving.leave() == 0
        tab.shows("The server does not answer", ".lost")
        # Nothing that would write.
        page.wait_for_selector(".top .primary", state="detached")
        tab.shows("steady", ".rows")
        serving.start()
        page.wait_for_selector(".lost", state="detached")
        page.wait_for_selector(".top .primary")

    # A search that the server refuses.
    refused = serving.call("GET", f"/v1/sessions?q={'x' * 5000}").json
    page.fill("#filter", "x" * 5000)
    trouble(tab, refused["title"], refused["detail"], refused["fix"], "main.list .trouble")
    page.click("button:text-is('Clear')")
    page.wait_for_selector("main.list .trouble", state="detached")
    page.wait_for_selector(tab.row("steady"))

    # The server gone: a bar that says since when and when it tries again, and a button to try now.
    page.keyboard.press("n")
    page.wait_for_selector("dialog button.primary:not([disabled])")
    serving.kill()
    page.wait_for_selector("dialog button.primary[disabled]")
    page.keyboard.press("Escape")
    trouble(tab, "The server does not answer", "What is shown is", "Next try in", ".lost")
    page.wait_for_selector(".top .primary", state="detached")
    page.keyboard.press("n")
    assert page.query_selector("dialog") is None
    serving.start()
    with suppress(Error):
        # It may have come back by itself.
        page.click(".lost button:text-is('Try now')", timeout=2000)
    page.wait_for_selector(".lost", state="detached")
    page.wait_for_selector(".top .primary")

    # 413
    fix = serving.call("POST", "/v1/sessions", {"command": "x" * (1 << 20)}).json["fix"]
    start_by_dialog(tab, "x" * (1 << 20))
    trouble(tab, "too large", "1048576", fix)
    page.keyboard.press("Escape")

    # 429
    monkeypatch.setenv("HOLDFAST_SERVER_STARTS_PER_MINUTE", "1")
    restarted()
    assert serving.call("POST", "/v1/sessions", {"command": "true"}).status == 201
    secret = page.evaluate("sessionStorage.getItem('token')")
    assert serving.call("POST", "/v1/sessions", {"command": "true"}, token=secret).status == 201
    start_by_dialog(tab, "sleep 1")
    trouble(tab, "busy", "too many starts within a minute", "try again")
    page.keyboard.press("Escape")
    monkeypatch.delenv("HOLDFAST_SERVER_STARTS_PER_MINUTE")

    restarted()

    # A runner that does not answer
    page.click("header.top a:text('Inbox')")
    page.wait_for_selector(".question input")
    os.kill(asks.runner_pid or 0, signal.SIGSTOP)
    page.wait_for_selector(".question form", state="detached")
    page.wait_for_selector(".question:has-text('unreachable')")
    page.click("header.top a.brand")
    page.click(tab.row("asks"))
    trouble(tab, "unreachable", "Its runner does not answer", "Try again", "main.session")
    os.kill(asks.runner_pid or 0, signal.SIGCONT)
    page.wait_for_selector("main.session .note", state="detached")
    page.click("header.top a:text('Inbox')")
    page.fill(".question input", "y")
    page.keyboard.press("Enter")
    assert asks.wait(match="got y", timeout=60).reason == "match"

    # Removed elsewhere, while it is shown
    page.click("header.top a.brand")
    page.click(tab.row("doomed"))
    page.wait_for_selector("main.session nav")
    until(lambda: doomed.refresh().state == "exited")
    doomed.remove()
    trouble(tab, "removed", doomed.id, "hold")
    assert page.evaluate("window.same") == marked, "the page was loaded again"
    world.hold("gc", check=True)


@pytest.mark.covers("page:4", "page:34")
@pytest.mark.namespaces
@pytest.mark.timeout(300)
def test_a_full_disk_is_shown_where_a_start_failed_and_where_output_was_refused(
    chromium: Chromium, world: World
) -> None:
    """In a namespace of its own the server has a small disk for its sessions."""
    sessions = world.home / "sessions"
    mount = f"mount -t tmpfs -o size=1m,mode=700 tmpfs {sessions}"
    small = Serving(world, prefix=[*namespace_argv("--mount"), "sh", "-c", f'{mount} && exec "$@"', "sh"])
    command = f"head -c 2000000 /dev/zero > {sessions}/fill; until [ -e go ]; do sleep 0.1; done; rm {sessions}/fill"
    prints = "echo before; until [ -e full ]; do sleep 0.1; done; seq 1 20000; touch printed-$TTY; "
    prints += "while :; do echo after; sleep 0.2; done"
    printing = []
    for tty in (False, True):
        body = {"command": f"TTY={tty}; {prints}", "cwd": str(world.cwd), "tty": tty, "name": f"prints-{tty}"}
        answer = small.call("POST", "/v1/sessions", body)
        assert answer.status == 201, answer.body
        printing.append(answer.json["id"])
    assert small.call("POST", "/v1/sessions", {"command": command, "cwd": str(world.cwd)}).status == 201
    tab = chromium.tab()
    tab.open(f"{small.url}/#code={small.code}")
    tab.page.wait_for_selector(".top .primary")
    until(lambda: small.call("POST", "/v1/sessions", {"command": "true"}).status == 507)
    start_by_dialog(tab, "true")
    trouble(tab, "disk full", "space", "free")
    (world.cwd / "full").touch()
    for each in ("printed-False", "printed-True"):
        until((world.cwd / each).exists)
    (world.cwd / "go").touch()
    until(lambda: small.call("POST", "/v1/sessions", {"command": "true"}).status == 201)
    tab.page.click("dialog button.primary")
    tab.page.wait_for_selector("dialog", state="detached")
    tab.shows("exit 0", ".state")
    for id in printing:
        tail = f"/v1/sessions/{id}/tail?lines=2&format=text"
        until(lambda tail=tail: "after" in small.call("GET", tail).json["text"])  # type: ignore[misc]
        path = f"/v1/sessions/{id}"
        gaps = until(lambda path=path: small.call("GET", path).json["metadata"].get("gaps"))  # type: ignore[misc]
        assert {each["reason"] for each in gaps} == {"disk"}
        tab.open(f"{small.url}/s/{id}?tab=log&at=0")
        for gap in gaps:
            size = f"{(gap['to'] - gap['from']) / 1024:.1f} KiB refused by the disk, {gap['stream']}"
            until(lambda size=size: f"── {size} ──" in tab.buffer(), what=size)  # type: ignore[misc]
        text = tab.buffer()
        assert text.index("before") < text.index("refused by") < text.index("after")
        marks = tab.page.locator(".timeline .mark.gap title").all_text_contents()
        assert [each for each in marks if "refused by the disk" in each], marks
        small.call("POST", f"/v1/sessions/{id}/stop", {"grace": 0})
    world.end_launchers()


class Proxy:
    """What stands between a browser and the server, and now and then answers in its place."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.to = 0
        self.is_broken = False
        self._open: list[socket.socket] = [self.listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self.listener.accept()
                there = socket.create_connection(("127.0.0.1", self.to))
                self._open += [here, there]
                for one, other in ((here, there), (there, here)):
                    self._threads.append(threading.Thread(target=self._pass, args=(one, other)))
                    self._threads[-1].start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                if self.is_broken and data.startswith((b"GET ", b"POST ")):
                    one.sendall(_BAD_GATEWAY)
                else:
                    other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for each in self._open[1:]:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        for thread in self._threads:
            thread.join()
        for each in self._open:
            each.close()


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    made = Proxy()
    yield made
    made.close()


@pytest.mark.covers("page:34")
@pytest.mark.timeout(300)
def test_a_broken_answer_is_said_and_passes(chromium: Chromium, serving: Serving, start: Start, proxy: Proxy) -> None:
    """Something between browser and server answers for it in HTML."""
    start("sleep 600", name="steady")
    proxy.to = serving.port
    serving.leave()
    serving.words = ("--public-url", f"http://127.0.0.1:{proxy.port}")
    serving.start()
    tab = chromium.tab()
    tab.open(f"{serving.url}/#code={serving.code}")
    tab.page.wait_for_selector(tab.row("steady"))
    proxy.is_broken = True
    tab.page.click("header.top a:text-is('Grid')")
    trouble(tab, "broken answer", "(502)", "hold serve")
    proxy.cut()
    trouble(tab, "another program answers", "Nothing secret was sent to it", "hold serve", ".lost")
    proxy.is_broken = False
    proxy.cut()
    tab.page.wait_for_selector(".lost", state="detached")
    tab.page.wait_for_selector(".trouble", state="detached")


@pytest.mark.timeout(300)
def test_an_observer_beyond_the_limit_sees_why_until_there_is_room(
    chromium: Chromium, serving: Serving, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_SERVER_OBSERVERS_PER_SESSION", "1")
    serving.leave()
    serving.start()
    session = start("echo there; exec cat", tty=True, size=(24, 80))
    first = WebViewer(serving.address, serving.token, session.id, role="observe")
    first.begun()
    tab = chromium.signed_in()
    tab.open(f"/s/{session.id}?observe")
    where = ".terminal-box .trouble"
    trouble(tab, "too many clients", "server.observers_per_session is 1", "raise server.observers_per_session", where)
    tab.shows("offline, again in", ".connection")
    # It is not taken away while the page tries again.
    tab.page.evaluate("(where) => { document.querySelector(where).same = true }", where)
    for _ in range(2):
        tab.page.wait_for_event("websocket")
    assert tab.page.evaluate("(where) => document.querySelector(where)?.same", where)
    first.leave()
    tab.shows("observing", ".connection")
    tab.terminal_shows("there")
    tab.page.wait_for_selector(where, state="detached")


@pytest.mark.covers("page:35")
@pytest.mark.timeout(300)
def test_a_server_of_another_version_offers_its_page_and_reloads_nothing(
    chromium: Chromium, serving: Serving, world: World, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(_COUNTING, tty=True, name="counter", size=(24, 80))
    tab = chromium.signed_in()
    page = tab.page
    page.click(tab.row("counter"))
    tab.terminal_shows("line-5")
    marked = page.evaluate("window.same = Math.random()")
    for version, feature in (("9.9.0", "attach"), ("10.0.0", "attach-2")):
        serving.leave()
        edits = {"server/routes/home.py": ('("attach", ', f'("{feature}", ')}
        monkeypatch.setenv("PYTHONPATH", str(under_version(world, version, edits)))
        serving.start()
        assert serving.call("GET", "/v1/info").json["version"] == version
        tab.shows(f"The server has version {version}", ".lost")
        seen = len(numbers(tab))
        until(lambda seen=seen: len(numbers(tab)) > seen + 5)  # type: ignore[misc]
        assert "from=" in tab.sockets[-1].url
        lines = numbers(tab)
        assert lines == list(range(1, len(lines) + 1))
        assert page.evaluate("window.same") == marked, "the page was loaded again"
    tab.shows("This page is older than the server and does not know all of its features (attach)", ".lost")
    page.click(".lost button:text-is('Reload')")
    page.wait_for_function("() => window.same === undefined")
    page.wait_for_selector("header.top")


def numbers(tab: Tab) -> list[int]:
    lines = [line for line in tab.buffer().splitlines() if line.startswith("line-")]
    return [int(line.removeprefix("line-")) for line in lines][:-1]
