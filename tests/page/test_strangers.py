"""Who may not: an observer, a page of another origin, and another program on the server's port."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.browser import until
from support.own_time import QuietTime
from support.strangers import http_client, program_on

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Session
    from support.browser import Chromium, Tab
    from support.serving import Serving
    from support.world import World

    Start = Callable[..., Session]

_ACTIONS = {"Stop", "Share", "Start", "Start again", "Take control", "Observe", "Send", "Settle all"}


def traffic(tab: Tab) -> list[str]:
    """All that the server sends to this tab from now on: bodies, events and frames."""
    received: list[str] = []
    devtools = tab.devtools
    devtools.send("Network.enable")
    tab.page.on("websocket", lambda each: each.on("framereceived", lambda data: received.append(str(data))))
    tab.page.add_init_script(_TAP)
    return received


# The body of each answer as the page reads it, the stream of events too.
_TAP = """
    const fetched = window.fetch;
    window.received = "";
    window.fetch = async (...args) => {
        const answer = await fetched(...args);
        const [ours, theirs] = answer.body ? answer.body.tee() : [null, null];
        const decoder = new TextDecoder();
        ours?.pipeTo(new WritableStream({write(part) { window.received += decoder.decode(part, {stream: true}); }}));
        return new Response(theirs, answer);
    };
"""


@pytest.mark.covers("page:16")
def test_an_observer_link_shows_one_session_and_nothing_else(
    chromium: Chromium, serving: Serving, start: Start
) -> None:
    shared = start("cat", tty=True, name="shared", watch=["everybody"])
    start("while :; do echo next-door; sleep 0.1; done", name="neighbour", owner="landlord", labels={"street": "elm"})
    link = serving.call("POST", f"/v1/sessions/{shared.id}/links", {"ttl": "1h"}).json
    tab = chromium.tab()
    received = traffic(tab)
    tab.open(link["url"])
    tab.shows("observing", ".connection")
    shared.send("for everybody\n")
    tab.terminal_shows("for everybody")
    # Its echo, and what the command prints.
    written = 2 * len("for everybody\r\n")
    until(lambda: shared.refresh().ends["tty"] == written)
    tab.page.click(".terminal")
    tab.page.keyboard.type("typed by an observer\n")
    tab.shows("You are observing", "main")
    for view in ("log", "signals", "about", "screen"):
        tab.page.click(f"nav button:text-is('{view}')")
        tab.page.wait_for_selector(f"nav button[aria-pressed=true]:text-is('{view}')")
    # A signal and an input lead to their places, and the address stays that of a link.
    for view, line in (("signals", "watch"), ("about", "wrote")):
        tab.page.click(f"nav button:text-is('{view}')")
        tab.page.click(f".signals a:has-text('{line}')")
        tab.page.wait_for_selector(".past .terminal[data-offset]")
        assert tab.page.evaluate("location.pathname") == "/link"
        tab.page.reload()
        tab.page.wait_for_selector(".past .terminal[data-offset]")
        assert tab.page.query_selector("header.top") is None
        tab.page.click(".past button:text-is('Live')")
        tab.shows("observing", ".connection")
    for address in ("/", "/inbox", "/grid"):
        assert tab.page.query_selector(f"a[href='{address}']") is None
    assert "token" not in tab.page.url
    assert tab.page.query_selector("header.top") is None
    buttons = tab.page.eval_on_selector_all("button", "all => all.map((each) => each.textContent)")
    assert not _ACTIONS & set(buttons)
    assert shared.refresh().ends["tty"] == written
    seen = "".join((tab.page.content(), tab.page.evaluate("window.received"), *received))
    assert "shared" in seen
    assert not [word for word in ("neighbour", "next-door", "landlord", "elm", "street") if word in seen]

    passed = QuietTime()
    assert serving.call("DELETE", f"/v1/sessions/{shared.id}/links/{link['id']}").status == 204
    tab.shows("signed out")
    assert passed.seconds() <= 2
    left = tab.page.evaluate(
        "[document.documentElement.outerHTML, document.title, {...sessionStorage}, {...localStorage}]"
    )
    assert not [word for word in ("shared", "everybody", shared.id, "hf_") if word in str(left)]
    tab.page.reload()
    tab.shows("You are not signed in.")


@pytest.mark.covers("page:17")
def test_nothing_that_an_observer_does_reaches_a_command(chromium: Chromium, serving: Serving, start: Start) -> None:
    session = start("cat", tty=True, name="watched", size=(24, 80))
    asks = start("printf 'Sure? [y/N] '; read answer; sleep 60", tty=True, name="asks")
    until(lambda: asks.refresh().needs_input is not None)
    ends = (0, asks.ends["tty"])
    token = serving.call("POST", "/v1/tokens", {"scope": "observe", "label": "watcher"}).json["token"]
    tab = chromium.tab(chromium.context(permissions=["clipboard-read", "clipboard-write"]))
    page, sent = tab.page, tab.sent()
    tab.open(f"/#token={token}")
    page.wait_for_selector(tab.row("watched"))
    page.keyboard.press("j")
    for key in ("n", "x", "s"):
        page.keyboard.press(key)
        assert page.query_selector("dialog") is None
    page.keyboard.press("Control+k")
    page.wait_for_selector("dialog [role=option]")
    offered = page.eval_on_selector_all(
        "dialog [role=option]", "all => all.map((each) => each.textContent.toLowerCase())"
    )
    assert not [
        each for each in offered if any(word in each for word in ("start", "stop", "share", "token", "control"))
    ]
    page.keyboard.press("Escape")
    page.click("header.top a:text('Inbox')")
    page.wait_for_selector(".question")
    assert page.query_selector(".question form") is None

    tab.attach(session, status="observing")
    page.click(".terminal")
    page.keyboard.type("typed\n")
    page.keyboard.press("Control+c")
    page.evaluate("navigator.clipboard.writeText('pasted')")
    page.keyboard.press("Control+Shift+V")
    page.evaluate(_DROP)
    page.mouse.wheel(0, 300)
    for key in "orzl":
        page.keyboard.press("Control+]")
        page.keyboard.press(key)
    tab.shows("observing", ".connection")
    assert not _ACTIONS & set(page.eval_on_selector_all("button", "all => all.map((each) => each.textContent)"))
    # Made to send it all the same.
    page.evaluate(_FORCE)
    page.wait_for_function("() => window.refusals >= 3", polling=20)
    page.evaluate("document.querySelector('.terminal').attachment.setRole('control')")
    tab.shows("not attached", ".connection")

    assert not [each for each in sent if each["type"] in ("resize", "focus")]
    asked = {each.url.partition("/v1/")[2].rpartition("/")[2] for each in tab.requests if each.method != "GET"}
    assert asked <= {"tickets", "prove"}
    assert (session.refresh().ends["tty"], asks.refresh().ends["tty"]) == ends
    assert session.size == [24, 80]
    assert serving.call("GET", f"/v1/sessions/{session.id}/inputs").json["items"] == []


_DROP = """() => {
    const data = new DataTransfer();
    data.setData("text/plain", "dropped");
    document.querySelector(".xterm-screen").dispatchEvent(
        new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}));
}"""
_FORCE = """() => {
    const attachment = document.querySelector(".terminal").attachment;
    window.refusals = 0;
    attachment.socket.addEventListener("message", ({data}) => {
        window.refusals += new TextDecoder().decode(data).includes("observe-only");
    });
    attachment.send({type: "input", id: 1, data: "forced"});
    attachment.send({type: "input", id: 2, keys: ["C-c"]});
    attachment.send({type: "input", id: 3, paste: "forced"});
}"""


# Whatever a page can try at another origin; each attempt says what it got.
_ATTEMPTS = """async ([url, id, token, ticket]) => {
    const got = {};
    const attempt = async (name, work) => { got[name] = await work().catch(() => "refused"); };
    const start = JSON.stringify({command: "touch started"});
    const read = (...args) => fetch(...args).then(async (answer) => answer.status + await answer.text());
    await attempt("read", () => read(url + "/v1/sessions"));
    await attempt("read with a token", () => read(url + "/v1/sessions", {headers: {Authorization: "Bearer " + token}}));
    await attempt("read public", () => read(url + "/openapi.json"));
    await attempt("read the page", () => read(url + "/"));
    await attempt("read opaquely", () => read(url + "/v1/sessions", {mode: "no-cors"}));
    await attempt("start", () => read(url + "/v1/sessions", {method: "POST", body: start}));
    await attempt("start opaquely", () => read(url + "/v1/sessions", {method: "POST", body: start, mode: "no-cors"}));
    await attempt("start with a token", () => read(url + "/v1/sessions", {method: "POST", body: start,
        headers: {Authorization: "Bearer " + token, "Content-Type": "application/json"}}));
    for (const query of ["", "?ticket=" + ticket]) {
        await attempt("attach" + query.slice(0, 7), () => new Promise((done) => {
            const address = url.replace("http", "ws") + `/v1/sessions/${id}/attach${query}`;
            const socket = new WebSocket(address, "holdfast.v1");
            socket.onopen = () => done("attached");
            socket.onerror = () => done("refused");
        }));
    }
    const loaded = (name, attributes) => new Promise((done) => {
        const element = Object.assign(document.createElement(name), attributes);
        element.onload = () => done(name === "iframe" ? "loaded" : "ran");
        element.onerror = () => done("refused");
        document.body.append(element);
    });
    await attempt("script", () => loaded("script", {src: url + "/v1/sessions"}));
    await attempt("style", () => loaded("link", {rel: "stylesheet", href: url + "/"}));
    await loaded("iframe", {src: url + "/", name: "framed"});
    const form = Object.assign(document.createElement("form"),
        {action: url + "/v1/sessions", method: "POST", enctype: "text/plain", target: "framed"});
    form.append(Object.assign(document.createElement("input"), {name: start.slice(0, -1) + ',"x":"', value: '"}'}));
    document.body.append(form);
    form.submit();
    const opened = window.open(url + "/");
    await attempt("opened", async () => {
        // Until it has left the empty document, which is still ours.
        const pause = () => new Promise((done) => setTimeout(done, 20));
        while (!opened.closed && opened.location.href === "about:blank") await pause();
        return opened.document.body.textContent;
    });
    return got;
}"""


@pytest.mark.covers("page:18", "server:7")
@pytest.mark.parametrize("is_signed_in", [True, False])
def test_a_page_of_another_origin_can_do_nothing(
    chromium: Chromium, serving: Serving, world: World, start: Start, is_signed_in: bool
) -> None:
    session = start("cat", tty=True, name="private-name")
    context = chromium.context()
    if is_signed_in:
        chromium.signed_in(context).attach(session)
    before = [each["id"] for each in serving.call("GET", "/v1/sessions").json["items"]]
    with program_on(0) as (origin, _):
        tab = chromium.tab(context)
        tab.open(origin)
        arguments = [serving.url, session.id, serving.token, serving.ticket(session.id)]
        got = tab.page.evaluate(_ATTEMPTS, arguments)
        opaque = {got.pop(name) for name in ("read opaquely", "start opaquely")}
        # An opaque answer has neither status nor body.
        assert opaque <= {"0", "refused"}
        assert set(got.values()) == {"refused"}, got
        framed = tab.page.frame("framed")
        assert framed is not None
        until(lambda: framed.url.startswith("chrome-error:"))
        assert "private-name" not in str(got)
    assert [each["id"] for each in serving.call("GET", "/v1/sessions").json["items"]] == before
    assert not (world.cwd / "started").exists()
    assert session.refresh().attached["control"] == int(is_signed_in)


@pytest.mark.covers("page:19", "server:10")
@pytest.mark.parametrize("body", [b'{"proof": "' + b"0" * 64 + b'", "token": "hf_home_mine"}', b"<html>"])
def test_a_stranger_on_the_port_gets_no_secret(
    chromium: Chromium, serving: Serving, world: World, start: Start, body: bytes
) -> None:
    session = start("cat", tty=True, name="watched")
    tab = chromium.signed_in()
    tab.attach(session)
    tab.page.click(".terminal")
    example = http_client()
    client = example.Client(serving.url, serving.token)
    assert client.call("GET", "/v1/info")["scopes"]
    secrets = [serving.secret, tab.page.evaluate("sessionStorage.getItem('token')").split("_", 2)[2]]
    serving.kill()
    with program_on(serving.port, body) as (_, received):
        tab.shows("could not prove that it is your server", ".lost")
        tab.page.keyboard.type("password")
        tab.shows("Not confirmed: password", ".unsent")
        tab.page.click("text=Try now")
        until(lambda: tab.page.evaluate("1") and sum(b"/v1/auth/prove" in each for each in received) > 3)
        # Nor do the client over HTTP and the programs of this home take it for their server.
        with pytest.raises(example.NotTheServer):
            client.call("POST", "/v1/sessions", {"command": "echo password"})
        assert world.hold("open").returncode != 0
        assert "watched" in world.hold("ls", check=True).stdout
    assert {each.split()[1] for each in received} == {b"/v1/auth/prove"}
    everything = b"".join(received)
    assert not [
        each for each in (*secrets, "hf_", "Bearer", "Authorization", "password") if each.encode() in everything
    ]
    serving.start()
    tab.page.wait_for_selector(".connection:is(.resumed, .live)")
    tab.page.wait_for_selector(".lost", state="detached")
    assert session.refresh().ends["tty"] == 0
    assert client.call("GET", "/v1/info")["scopes"]
    client.close()
    world.hold("gc", check=True)
