"""The gate: who is let in, from where, how, and what every answer carries."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import json
import os
import re
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from holdfast import errors
from holdfast.config.settings import Settings
from holdfast.errors import HoldfastError
from holdfast.server import page, responses, routes
from holdfast.server.endpoints import by_path
from holdfast.server.gate import Patience
from holdfast.server.listen import ListenAddress, names
from support.evidence import contents
from support.serving import UPGRADE, Answer, EventReader, Serving, read_answer, request, serving_inside
from support.waiting import BOUND_S

if TYPE_CHECKING:
    from pathlib import Path

    from support.world import World

HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
CLIPBOARD = {"clipboard-read", "clipboard-write"}
# What a page can ask a browser for: devices, sensors, credentials, windows, other machines. There is no word for all.
POWERFUL = {
    *("accelerometer", "camera", "captured-surface-control", "compute-pressure", "digital-credentials-get"),
    *("display-capture", "encrypted-media", "fullscreen", "gamepad", "geolocation", "gyroscope", "hid"),
    *("identity-credentials-get", "idle-detection", "keyboard-map", "local-fonts", "local-network"),
    *("local-network-access", "loopback-network", "magnetometer", "microphone", "midi", "otp-credentials", "payment"),
    *("picture-in-picture", "publickey-credentials-create", "publickey-credentials-get", "screen-wake-lock", "serial"),
    *("storage-access", "usb", "window-management", "xr-spatial-tracking"),
}
ATTACH = "/v1/sessions/nobody/attach"
JSON = {"Content-Type": "application/json"}


def seen(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.slug if answer.status >= 400 else ""


@pytest.mark.covers("server:6")
def test_only_the_hosts_of_the_server_are_answered(serving: Serving) -> None:
    port = serving.port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
        assert serving.ask("/healthz", {"Host": host}).status == 200
    for host in ("evil.test", f"evil.test:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", f"127.0.0.1.evil.test:{port}"):
        assert seen(serving.ask("/healthz", {"Host": host})) == (421, "wrong-host")
        assert seen(serving.upgrade(ATTACH, {**serving.bearer, "Host": host})) == (421, "wrong-host")
    assert seen(serving.ask("/healthz", {})) == (400, "bad-request")
    assert seen(serving.ask("/healthz", {"Host": serving.address, "host": serving.address})) == (400, "bad-request")


def test_a_request_of_an_older_http_without_a_host_is_refused(serving: Serving) -> None:
    with socket.create_connection(("127.0.0.1", serving.port), BOUND_S) as there:
        there.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert seen(read_answer(there)) == (400, "bad-request")


@pytest.mark.covers("server:8")
def test_other_origins_are_refused_on_upgrade(serving: Serving) -> None:
    ticket = serving.ticket(_session(serving), Origin=f"http://{serving.address}")
    foreign = ("null", "http://evil.test", f"http://127.0.0.1:{serving.port + 1}", f"https://{serving.address}", "")
    for origin in foreign:
        for target, headers in (
            (ATTACH, serving.bearer),
            (f"{ATTACH}?ticket={ticket}", {"Host": serving.address}),
        ):
            answer = serving.upgrade(target, {**headers, "Origin": origin})
            assert seen(answer) == (403, "bad-origin"), origin


def test_other_origins_are_refused_on_public_addresses_too_and_get_no_word_for_their_browser(serving: Serving) -> None:
    for target in ("/healthz", "/v1/info"):
        answer = serving.ask(target, {**serving.bearer, "Origin": "http://evil.test"})
        assert seen(answer) == (403, "bad-origin")
        assert not [name for name in answer.headers if name.startswith("access-control")]
    own = serving.ask("/v1/info", {**serving.bearer, "Origin": f"http://{serving.address}"})
    assert own.status == 200
    assert not [name for name in own.headers if name.startswith("access-control")]


def test_what_the_browser_says_of_the_site_that_asks_is_heeded(serving: Serving) -> None:
    for site, status in (("same-origin", 200), ("none", 200), ("same-site", 403), ("cross-site", 403)):
        assert serving.ask("/v1/info", {**serving.bearer, "Sec-Fetch-Site": site}).status == status


def test_a_link_on_another_site_opens_the_page_and_nothing_else(serving: Serving) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    for target, other, status in (
        ("/", {}, 200),
        ("/s/abcdef?observe", {}, 200),
        ("/", {"Sec-Fetch-Dest": "iframe"}, 403),
        ("/", {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        ("/healthz", {}, 403),
        ("/openapi.json", {}, 403),
        ("/v1/info", serving.bearer, 403),
    ):
        answer = serving.ask(target, {"Host": serving.address, **link, **other})
        assert answer.status == status, (target, other)


def test_behind_a_proxy_a_proof_is_for_the_public_url(serving: Serving) -> None:
    local, public = serving.address, f"hold.example:{serving.port}"
    serving.leave()
    serving.words = ("--public-url", f"https://{public}")
    serving.start()
    for host, origin in ((public, f"https://{public}"), (local, f"http://{local}")):
        headers = {"Host": host, "Content-Type": "application/json"}
        body = json.dumps({"id": "home", "nonce": "n"}).encode()
        proven = serving.ask("/v1/auth/prove", headers, method="POST", body=body).json
        key = hashlib.sha256(serving.secret.encode()).digest()
        wanted = hmac.new(key, f"holdfast-server{origin}n".encode(), hashlib.sha256).hexdigest()
        assert proven == {"proof": wanted, "origin": origin}


def test_what_the_gate_refuses_is_in_the_audit_file(serving: Serving, world: World) -> None:
    minted = serving.call("POST", "/v1/tokens", {"scope": "observe"}).json
    assert serving.ask("/healthz", {"Host": "evil.test"}).status == 421
    assert serving.ask("/healthz", {"Host": serving.address, "Origin": "null"}).status == 403
    assert serving.call("POST", "/v1/gc", {}, token=minted["token"]).status == 403
    audit = [json.loads(line) for line in (world.home / "server" / "audit.jsonl").read_text().splitlines()]
    refused = [(each["reason"], each["peer"], each.get("token")) for each in audit if each["action"] == "refused"]
    reasons = (("wrong_host", None), ("bad_origin", None), ("scope_missing", minted["id"]))
    assert refused == [(reason, "127.0.0.1", token) for reason, token in reasons]
    counted = serving.call("GET", "/metrics").body.decode()
    assert all(f'holdfast_auth_failures_total{{reason="{reason}"}} 1' in counted for reason, _ in reasons)


@pytest.mark.parametrize("trusted", [(), ("127.0.0.1/32", "10.0.0.0/8")])
def test_the_client_address_is_taken_only_from_a_trusted_proxy(world: World, trusted: tuple[str, ...]) -> None:
    given = [
        ({"X-Forwarded-For": "198.51.100.7"}, "198.51.100.7"),
        ({"X-Forwarded-For": "203.0.113.9, 198.51.100.7, 10.1.2.3"}, "198.51.100.7"),
        ({"Forwarded": "for=198.51.100.7;proto=https;by=10.0.0.1"}, "198.51.100.7"),
        ({"Forwarded": 'for=203.0.113.9, For="[2001:db8::7]:4711";host=a'}, "2001:db8::7"),
        ({"Forwarded": "for=198.51.100.7:80", "X-Forwarded-For": "198.51.100.7"}, "198.51.100.7"),
        # The proxy has written one of them, and the client the other.
        ({"Forwarded": "for=198.51.100.7", "X-Forwarded-For": "203.0.113.9"}, "127.0.0.1"),
        ({"Forwarded": "for=203.0.113.9, for=unknown"}, "127.0.0.1"),
        ({"Forwarded": "proto=https"}, "127.0.0.1"),
        ({"Forwarded": "for=unknown"}, "127.0.0.1"),
        ({}, "127.0.0.1"),
    ]
    serving = Serving(world, *(word for each in trusted for word in ("--trusted-proxy", each)))
    for headers, _ in given:
        assert serving.ask("/healthz", {"Host": serving.address, "Origin": "null", **headers}).status == 403
    audit = [json.loads(line) for line in (world.home / "server" / "audit.jsonl").read_text().splitlines()]
    peers = [each["peer"] for each in audit if each["action"] == "refused"]
    assert peers == [peer if trusted else "127.0.0.1" for _, peer in given]


def test_a_page_attaches_with_a_ticket_and_never_with_the_token(serving: Serving) -> None:
    answer = serving.upgrade(ATTACH, {**serving.bearer, "Origin": f"http://{serving.address}"})
    assert seen(answer) == (403, "bad-origin")


def test_a_configured_origin_may_ask_first_and_read_the_answer(world: World) -> None:
    serving = Serving(world, "--allow-origin", "https://page.example")
    page = {"Origin": "https://page.example", "Sec-Fetch-Site": "cross-site"}
    asked = serving.ask("/v1/info", {"Host": serving.address, **page}, method="OPTIONS")
    assert asked.status == 204
    assert "Authorization" in asked.headers["access-control-allow-headers"]
    answer = serving.ask("/v1/info", {**serving.bearer, **page})
    assert answer.status == 200
    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert seen(serving.ask("/v1/info", {"Host": serving.address, **page})) == (401, "unauthenticated")


def test_only_the_right_token_is_let_in(world: World) -> None:
    async def main() -> None:
        async with serving_inside() as inside:
            host = {"Host": f"127.0.0.1:{inside.port}"}
            secret = inside.token.removeprefix("hf_home_")
            wrong = ["", "Bearer", f"Bearer {secret}", f"Basic {inside.token}", f"Bearer hf_other_{secret}"]
            wrong += (
                f"Bearer hf_home_{secret[:-1]}",
                f"Bearer HF_home_{secret}",
                f"Bearer hf__{secret}",
                "Bearer hf__",
            )
            for given in wrong:
                for target in ("/v1/info", "/v1/nothing", "/v1/sessions/x/tickets"):
                    answer = await inside.ask(target, {**host, "Authorization": given})
                    assert seen(answer) == (401, "unauthenticated"), given
                    assert answer.headers["www-authenticate"] == 'Bearer realm="holdfast"'
                answer = await inside.upgrade(ATTACH, {**host, "Authorization": given})
                assert seen(answer) == (401, "unauthenticated"), given
            assert seen(await inside.ask("/v1/info", host)) == (401, "unauthenticated")
            assert seen(await inside.ask(f"/v1/info?ticket={secret}", host)) == (401, "unauthenticated")
            twice = {**inside.bearer, "authorization": inside.bearer["Authorization"]}
            assert seen(await inside.ask("/v1/info", twice)) == (400, "bad-request")
            assert (await inside.ask("/v1/info")).status == 200

    asyncio.run(main())


def test_wrong_tokens_wait_longer_each_time_and_the_right_one_never(world: World) -> None:
    async def main() -> None:
        async with serving_inside() as inside:
            wrong = {**inside.bearer, "Authorization": "Bearer hf_home_wrong"}
            for _ in range(8):
                assert (await inside.ask("/v1/info", wrong)).status == 401
            assert (await inside.ask("/v1/info")).status == 200
            assert inside.slept == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
            inside.now += 61
            assert (await inside.ask("/v1/info", wrong)).status == 401
            assert inside.slept[-1] == 0.25

    asyncio.run(main())


@pytest.mark.covers("server:13")
def test_a_thousand_wrong_tokens_delay_no_other_and_are_in_no_file(world: World) -> None:
    """Of those whose answers are held back there are 64; the rest are cut off."""
    session = world.open().run("true")

    async def wrong(port: int, number: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            head = f"GET /v1/info HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer hf_home_guess{number:04}"
            writer.write(f"{head}\r\nConnection: close\r\n\r\n".encode())
            return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()

    async def main() -> list[str]:
        async with serving_inside() as inside:
            inside.gate = asyncio.Event()
            held = [asyncio.ensure_future(wrong(inside.port, number)) for number in range(64)]
            while len(inside.slept) < 64:
                await asyncio.wait(held, timeout=0.01)
            cut_off: list[bytes] = []
            for start in range(64, 1000, 36):
                cut_off += await asyncio.gather(*(wrong(inside.port, number) for number in range(start, start + 36)))
            assert cut_off == [b""] * 936
            own = {"Host": inside.bearer["Host"], **JSON}
            with suppress(ConnectionResetError):
                login = await inside.ask("/v1/auth/exchange", own, method="POST", body=b'{"code": "guess0"}')
                assert login.status == 0, "a wrong code is cut off, too"
            assert (await inside.ask("/v1/info")).status == 200
            ticket = (await inside.ticket(session.id)).json["ticket"]
            assert (await inside.upgrade(f"/v1/sessions/{session.id}/attach?ticket={ticket}")).status != 401
            inside.gate.set()
            assert all(answer.startswith(b"HTTP/1.1 401") for answer in await asyncio.gather(*held))
            return [ticket, "guess0", inside.token]

    secrets = asyncio.run(main())
    assert secrets
    files = [(path, data) for path, data in contents(world.home) if path.name != "token"]
    assert files
    assert not [path for path, data in files for secret in secrets if secret.encode() in data]


def test_few_peers_are_remembered(world: World) -> None:
    async def no_time(_seconds: float) -> None: ...

    async def main() -> None:
        patience = Patience(lambda: 0.0, no_time)
        for number in range(5000):
            assert await patience.hold_back(f"peer-{number}")
        assert len(patience._failures) == 1024

    asyncio.run(main())


@pytest.mark.covers("server:5")
def test_every_answer_carries_every_security_header(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Every route of the table with every method, its static files, and all that goes wrong before and behind it."""
    if not page.is_built():
        (tmp_path / "assets").mkdir()
        (tmp_path / "index.html").write_text("<style nonce={nonce}></style>")
        for name in ("app-1a2b.js", "app-1a2b.js.gz"):
            (tmp_path / "assets" / name).write_bytes(b"code")
        monkeypatch.setattr(page, "_BUILT", tmp_path)
        page._assets.cache_clear()
        page._index.cache_clear()
    assert routes.__all__
    table = by_path()
    assert {"/", "/assets/{name}", "/metrics", "/v1/events", "/v1/sessions/{id}/log/{stream}"} < table.keys()

    async def main() -> None:
        async with serving_inside() as inside:
            made = await inside.ask(
                "/v1/sessions", {**inside.bearer, **JSON}, method="POST", body=b'{"command": "true"}'
            )
            id = made.json["id"]
            for path, methods in table.items():
                known = re.sub(r"\{(id|session)\}", id, path).replace("{stream}", "stdout").replace("{slug}", "busy")
                for target in {re.sub(r"\{\w+\}", "nobody", known), re.sub(r"\{\w+\}", "nobody", path)}:
                    if path == "/v1/events":
                        continue
                    for method in (*methods, *(("HEAD",) if "GET" in methods else ()), "OPTIONS"):
                        answer = await inside.ask(target, method=method)
                        assert answer.status < 500, (method, target, answer.body)
                        assert is_dressed(answer, is_page=path in page.ADDRESSES and method in ("GET", "HEAD"))
                    refused = await inside.ask(target, method="TRACE")
                    allowed = {*methods, *(("HEAD",) if "GET" in methods else ())}
                    assert (refused.status, set(refused.headers["allow"].split(", "))) == (405, allowed)
                    assert is_dressed(refused)
            with await asyncio.to_thread(EventReader, inside) as reader:
                assert reader.answer.status == 200
                assert is_dressed(reader.answer)
            for name, encoding in itertools.product(page._assets(), ("identity", "gzip")):
                static = await inside.ask(f"/assets/{name}", {**inside.bearer, "Accept-Encoding": encoding})
                assert (static.status, bool(static.body)) == (200, True)
                assert is_dressed(static, is_asset=True)
            attach = f"/v1/sessions/{id}/attach"
            terminal = await asyncio.to_thread(lambda: world.open().start("cat", tty=True))
            for status, answer in (
                (404, await inside.ask("/index.html")),
                (404, await inside.ask("/assets/other.js")),
                (401, await inside.ask("/v1/info", {"Host": inside.bearer["Host"]})),
                (421, await inside.ask("/v1/info", {"Host": "evil.test"})),
                (403, await inside.ask("/v1/info", {**inside.bearer, "Origin": "null"})),
                (400, await inside.ask("/v1/sessions/%2e%2e/tickets", method="POST")),
                (415, await inside.ask(f"/v1/sessions/{id}/tickets", method="POST", body=b"{}")),
                (413, await inside.ask("/healthz", {**inside.bearer, "X-Much": "x" * 17000})),
                (400, await inside.ask("not a request", {})),
                (400, await inside.ask(attach)),
                (400, await inside.ask(attach, {**inside.bearer, **UPGRADE, "Sec-WebSocket-Key": "short"})),
                (400, await inside.ask(attach, {**inside.bearer, **UPGRADE, "Sec-WebSocket-Version": "8"})),
                (400, await inside.ask(attach, {**inside.bearer, **UPGRADE, "X-Much": "x" * 9000})),
                (404, await inside.upgrade("/v1/nothing")),
                (404, await inside.upgrade(ATTACH)),
                (410, await inside.upgrade(attach)),
                (400, await inside.upgrade(f"/v1/sessions/{terminal.id}/attach?role=both")),
                (401, await inside.upgrade(f"/v1/sessions/{terminal.id}/attach", {"Host": inside.bearer["Host"]})),
                (101, await inside.upgrade(f"/v1/sessions/{terminal.id}/attach")),
            ):
                assert answer.status == status, answer.body
                assert is_dressed(answer)
                assert status == 101 or answer.slug
            monkeypatch.setattr(responses, "limits", lambda _: 1 / 0)
            broken = await inside.ask("/v1/info")
            assert seen(broken) == (500, "error")
            assert is_dressed(broken)
            assert b"ZeroDivisionError" not in broken.body
            await asyncio.to_thread(terminal.kill)

    asyncio.run(main())


def is_dressed(answer: Answer, *, is_page: bool = False, is_asset: bool = False) -> bool:
    """Every security header is there, with the right value, and nothing that tells more about the server."""
    wrong = {name for name, value in HEADERS.items() if answer.headers.get(name) != value}
    policy = answer.headers.get("content-security-policy", "").split("; ")
    wanted = {
        *("default-src 'none'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        "require-trusted-types-for 'script'",
    }
    assert wanted <= set(policy), policy
    assert any(part.startswith("style-src 'self' 'nonce-") for part in policy) == is_page
    features = dict(feature.split("=") for feature in answer.headers["permissions-policy"].split(", "))
    assert {name for name, allowed in features.items() if allowed != "()"} == CLIPBOARD
    assert {features[name] for name in CLIPBOARD} == {"(self)"}
    assert features.keys() >= POWERFUL, POWERFUL - features.keys()
    assert ("immutable" if is_asset else "no-store") in answer.headers["cache-control"]
    # A browser repeats a request on its own when a reused connection breaks; another program may have the port then.
    assert answer.status == 101 or answer.headers["connection"].lower() == "close"
    return not wrong and "server" not in answer.headers and "set-cookie" not in answer.headers


def test_only_a_trusted_proxy_is_believed_about_its_clients(world: World) -> None:
    told = {"X-Forwarded-For": "198.51.100.1, 203.0.113.9"}
    for words, peer in (((), "127.0.0.1"), (("--trusted-proxy", "127.0.0.0/8"), "203.0.113.9")):
        serving = Serving(world, *words)
        assert serving.ask("/v1/info", {"Host": serving.address, **told}).status == 401
        last = (world.home / "server" / "audit.jsonl").read_text().splitlines()[-1]
        assert (json.loads(last)["peer"], json.loads(last)["reason"]) == (peer, "no_token")
        serving.leave()
    refused = world.hold("serve", "--trusted-proxy", "nonsense", "--port", 0)
    assert "trusted-proxy" in refused.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"Content-Length": "5"},
        {"Transfer-Encoding": "chunked"},
        {"Connection": 'keep-alive, Upgrade,,"x'},
        {"Upgrade": "websocket, websocket"},
        {"Sec-WebSocket-Protocol": "a b"},
        {"Sec-WebSocket-Protocol": ""},
        {"Sec-WebSocket-Key": "short"},
        {"Sec-WebSocket-Key": "\xe9"},
        {"Sec-WebSocket-Version": "8"},
        {"X-Much": "x" * 8200},
        {f"X-{number}": "x" for number in range(130)},
    ],
    ids=lambda wrong: next(iter(wrong)),
)
def test_an_invalid_upgrade_is_answered_as_a_request(serving: Serving, wrong: dict[str, str]) -> None:
    for headers, status in (({"Host": serving.address}, 401), (serving.bearer, 400)):
        answer = serving.ask(ATTACH, {**headers, **UPGRADE, **wrong})
        assert answer.status == status, answer.body
        assert answer.slug
        assert is_dressed(answer)
    assert serving.leave() == 0
    assert serving.program.errors() == ""


def test_an_upgrade_of_another_kind_of_request_is_answered_as_that(serving: Serving) -> None:
    assert seen(serving.ask(ATTACH, {**serving.bearer, **UPGRADE}, method="POST")) == (405, "bad-request")
    # The longest line that the WebSocket library takes, and one byte more.
    for size, target in ((8192, "/{}"), (8193, "/{}"), (8193, "/{}?"), (8193, "/x?{}")):
        filler = "a" * (size - len(f"GET {target} HTTP/1.1\r\n") + 2)
        answer = serving.ask(target.format(filler), {"Host": serving.address, **UPGRADE})
        assert seen(answer) == (404, "not-found")
        assert is_dressed(answer)
    with socket.create_connection(("127.0.0.1", serving.port), BOUND_S) as there:
        lines = [f"{name}: {value}" for name, value in {**serving.bearer, **UPGRADE}.items()]
        there.sendall("\r\n".join([f"GET {ATTACH} HTTP/1.0", *lines, "", ""]).encode())
        assert seen(read_answer(there)) == (400, "bad-request")


def test_an_address_that_is_none_is_not_found_also_without_a_token(serving: Serving) -> None:
    host = {"Host": serving.address}
    for target in ("/nothing", "/s", "/n/a", "/v1", "/v1/nothing", "/assets", "/index.html", "//"):
        for method in ("GET", "POST"):
            answer = serving.ask(target, host, method=method)
            assert seen(answer) == (404, "not-found"), (method, target)
            assert is_dressed(answer)
        assert seen(serving.upgrade(target, host)) == (404, "not-found"), target
        wrong = {**host, "Authorization": "Bearer hf_home_wrong"}
        assert seen(serving.ask(target, wrong)) == (401, "unauthenticated"), target
    for target in ("/metrics", "/v1/sessions", "/v1/sessions/x", "/v1/nodes/a/sessions", "/v1/nodes/a/no/such"):
        assert seen(serving.ask(target, host)) == (401, "unauthenticated"), target


def test_a_refused_upgrade_is_no_error_of_the_server(serving: Serving) -> None:
    assert seen(serving.upgrade(ATTACH, {"Host": serving.address})) == (401, "unauthenticated")
    assert seen(serving.upgrade(ATTACH)) == (404, "not-found")
    assert serving.leave() == 0
    assert serving.program.errors() == ""


def test_a_client_that_is_gone_before_its_upgrade_is_answered_is_no_error_of_the_server(serving: Serving) -> None:
    session = serving.world.open().start(serving.world.probe("cat"), tty=True)
    runner = session.runner_pid
    assert runner is not None
    os.kill(runner, signal.SIGSTOP)
    try:
        with socket.create_connection(("127.0.0.1", serving.port), BOUND_S) as there:
            lines = [f"{name}: {value}" for name, value in {**serving.bearer, **UPGRADE}.items()]
            head = f"GET /v1/sessions/{session.id}/attach HTTP/1.1"
            there.sendall("\r\n".join([head, *lines, "", ""]).encode())
            assert serving.ask("/healthz").status == 200
        # Answered after it: the server knows of the end by then.
        assert serving.ask("/healthz").status == 200
    finally:
        os.kill(runner, signal.SIGCONT)
    assert serving.leave() == 0
    assert serving.program.errors() == ""
    session.stop(grace=0)


def test_paths_that_hide_something_are_refused(serving: Serving) -> None:
    for ref in ("%2e%2e", "..", ".", "a%2Fb", "a%5cb", "a%00b", "%2E"):
        assert seen(serving.ask(f"/v1/sessions/{ref}/tickets", method="POST")) == (400, "bad-request"), ref
        assert seen(serving.upgrade(f"/v1/sessions/{ref}/attach")) == (400, "bad-request"), ref


def test_what_is_too_large_is_refused(serving: Serving) -> None:
    large = {**serving.bearer, "X-Much": "x" * Settings.server_header_bytes}
    assert seen(serving.ask("/healthz", large)) == (413, "too-large")
    many = {**serving.bearer, **{f"X-{number}": "x" * 1000 for number in range(15)}, "X-Last": "x" * 1200}
    assert seen(serving.ask("/healthz", many)) == (413, "too-large")
    body = {**serving.bearer, "Content-Type": "application/json"}
    spaces = b" " * (Settings.server_body_bytes + 1)
    assert seen(serving.ask("/v1/sessions/x/tickets", body, method="POST", body=spaces)) == (413, "too-large")


@pytest.mark.parametrize("key", ["connections", "connections_per_peer"])
def test_connections_beyond_the_limit_get_an_error(world: World, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(f"HOLDFAST_SERVER_{key.upper()}", "2")

    async def main() -> None:
        async with serving_inside() as inside:
            strangers = [await asyncio.open_connection("127.0.0.1", inside.port) for _ in range(5)]
            asked = "".join(f"{name}: {value}\r\n" for name, value in inside.bearer.items())
            held = [await asyncio.open_connection("127.0.0.1", inside.port) for _ in range(2)]
            for reader, writer in held:
                writer.write(f"GET /v1/events HTTP/1.1\r\n{asked}\r\n".encode())
                assert (await reader.readline()).split()[1] == b"200"
            answer = await inside.ask("/v1/info")
            assert seen(answer) == (429, "too-many-clients")
            assert (answer.json["key"], answer.json["limit"]) == (f"server.{key}", 2)
            assert is_dressed(answer)
            assert (await inside.ask("/healthz")).status == 200
            for _, writer in (*strangers, *held):
                writer.close()

    asyncio.run(main())


def test_a_silent_peer_is_not_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A peer that sent a part of a request is told which limit it reached. For one that sent nothing an answer would be
    wrong: a browser opens connections before it needs them."""
    monkeypatch.setenv("HOLDFAST_SERVER_HEADER_TIME", "50ms")

    async def main() -> None:
        async with serving_inside() as inside:
            whole = f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{inside.port}\r\n".encode()
            proved = b'{"id": "home", "nonce": "x"}'
            typed = f"Content-Type: application/json\r\nContent-Length: {len(proved)}\r\n\r\n".encode()
            # After it the connection stays open.
            first = whole.replace(b"GET /healthz", b"POST /v1/auth/prove") + typed + proved
            for before, begun in (
                (b"", b""),
                (b"", b"GET /healthz HTT"),
                (b"", whole),
                (first, b"GET /h"),
                (first, b""),
            ):
                reader, writer = await asyncio.open_connection("127.0.0.1", inside.port)
                async with asyncio.timeout(30):
                    if before:
                        writer.write(before)
                        assert (await reader.readuntil(b'"}')).startswith(b"HTTP/1.1 200")
                    writer.write(begun)
                    answered = await reader.read()
                writer.close()
                if not begun:
                    assert answered == b""
                    continue
                answer = Answer(answered)
                assert (answer.status, answer.slug) == (400, "bad-request")
                assert (answer.json["key"], answer.json["limit"]) == ("server.header_time", 0.05)
                assert is_dressed(answer)

    asyncio.run(main())


def test_the_names_of_a_server_are_exact() -> None:
    made = names(
        ListenAddress(tls_cert="c", host_names=("Hold.example",), public_url="https://front.example:8443/"), 443
    )
    assert {"hold.example", "hold.example:443", "localhost", "front.example:8443"} <= made.hosts
    assert {"https://hold.example", "https://front.example:8443"} <= made.own_origins
    assert names(ListenAddress("0.0.0.0"), 4653).hosts == {"127.0.0.1:4653", "localhost:4653", "[::1]:4653"}
    assert "[fd00::1]:4653" in names(ListenAddress("fd00::1"), 4653).hosts
    for wrong in ("page.example", "ftp://page.example", "https://page.example/path", "https://user@page.example"):
        with pytest.raises(errors.BadArgument):
            names(ListenAddress(allow_origins=(wrong,)), 1)
    with pytest.raises(errors.BadArgument):
        names(ListenAddress(host_names=("*",)), 1)


def test_every_error_has_the_status_that_http_gives_it() -> None:
    for code, kind in errors._BY_CODE.items():
        assert responses.status_of(code) == kind.http_status
    assert responses.status_of("of-next-year") == 500


def test_a_problem_has_the_facts_and_no_fact_replaces_its_own_members() -> None:
    made = responses.problem(errors.AlreadyEnded("b12345678", "completed"), "r1", "/v1/x")
    assert made["id"] == "b12345678"
    assert made["status"] == 409
    assert made["type"] == "/problems/already-ended"
    assert (made["instance"], made["request_id"]) == ("/v1/x", "r1")
    json.loads(responses.body(HoldfastError("odd", path=b"bytes")))


def _session(serving: Serving) -> str:
    return serving.world.open().run("true", tty=True, wait=30).id


def test_ipv6_is_served_where_it_is_asked_for(world: World) -> None:
    serving = Serving(world, "--bind", "::1")
    answer = request(("::1", serving.port), "/healthz", {"Host": f"[::1]:{serving.port}"})
    assert answer.status == 200
