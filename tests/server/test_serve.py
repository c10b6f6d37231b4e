"""How a server starts, where it may listen, what it says, and how it leaves."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import ssl
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from holdfast.cli.serve import SERVE_EXAMPLES
from holdfast.config.settings import Settings
from holdfast.home import Home
from holdfast.server import responses
from holdfast.server.listen import ListenAddress, opened
from holdfast.server.page import is_built
from holdfast.serving import listener
from support.levers import cgroup_parent
from support.serving import (
    START_BOUND_S,
    UPGRADE,
    Serving,
    new_certificate,
    read_answer,
    request,
    serving_inside,
    started,
)
from support.waiting import BOUND_S, until
from support.webviewer import BINARY, JSON

if TYPE_CHECKING:
    from websockets.sync.client import ClientConnection

    from support.serving import Inside
    from support.world import World

CLOSE = 8


def test_it_says_in_one_line_where_it_is_and_how_to_be_let_in(world: World) -> None:
    serving = Serving(world)
    assert re.match(r"http://127\.0\.0\.1:[0-9]+/#code=[\w-]{22} ", serving.line)
    assert str(world.home / "server" / "token") in serving.line
    assert serving.secret not in serving.line + serving.program.errors()
    assert serving.ask("/healthz", {"Host": serving.address}).json == {"ok": True}
    assert serving.ask("/readyz", {"Host": serving.address}).json == {"ok": True}
    info = serving.ask("/v1/info").json
    assert set(info) == {"version", "instance", "features", "limits", "scopes", "label"}
    assert {"attach", "sessions", "events"} <= set(info["features"])
    assert ("page" in info["features"]) == is_built()
    page = serving.ask("/", {"Host": serving.address})
    assert page.status == 200
    assert (b"make page" in page.body) != is_built()
    assert info["scopes"] == ["observe", "control", "manage"]
    assert serving.leave() == 0
    assert serving.program.line() == ""
    assert serving.program.errors() == ""


def test_a_unit_for_systemd_stops_the_server_alone(world: World) -> None:
    unit = world.hold("serve", "--print-unit", "--port", "4700", check=True).stdout
    assert "KillMode=process" in unit
    assert re.search(r"^ExecStart=/.* serve --port 4700$", unit, re.MULTILINE)


def test_without_a_server_there_is_nothing_to_open(world: World) -> None:
    refused = world.hold("open")
    assert refused.returncode != 0
    assert "hold serve" in refused.stderr
    serving = Serving(world)
    assert world.hold("open", check=True).stdout.startswith(f"{serving.url}/#code=")
    serving.kill()
    serving.program.wait(START_BOUND_S)
    assert world.hold("open").returncode != 0


def test_two_servers_of_one_home_have_one_token_and_two_instances(world: World) -> None:
    one, other = Serving(world), Serving(world)
    assert one.token == other.token
    assert one.ask("/v1/info").json["instance"] != other.ask("/v1/info").json["instance"]


@pytest.mark.covers("server:3")
def test_an_address_for_other_machines_without_tls_is_refused_before_anything_listens(world: World) -> None:
    """Somebody has the port already: had it tried to listen, it would say so."""
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        for bind in ("0.0.0.0", "::", "192.0.2.1"):
            refused = world.hold("serve", "--bind", bind, "--port", taken.getsockname()[1])
            assert refused.returncode != 0
            assert not refused.stdout
            assert "TLS" in refused.stderr
            assert "--tls-cert" in refused.stderr
            assert "--tls-key" in refused.stderr
            assert "--unix" in refused.stderr
            assert "ssh -L" in refused.stderr


def test_what_is_no_address_is_refused(world: World) -> None:
    for words, said in (
        (("--bind", "hold.example"), "is not an address"),
        (("--port", "70000"), "port: '70000' is not a port number"),
        (("--tls-cert", "c.pem"), "needs its key"),
        (("--tls-cert", "c.pem", "--tls-key", "k.pem"), "cannot be used"),
        (("--port", "0", "--public-url", "hold.example"), "is not an origin"),
    ):
        refused = world.hold("serve", *words)
        assert refused.returncode == 2
        assert said in refused.stderr


@pytest.mark.covers("server:4")
def test_the_token_is_for_its_owner_alone_from_its_first_instant(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    born: list[tuple[int, int]] = []
    opened, linked = os.open, os.link

    def looked_at(path: str, flags: int, mode: int = 0o777, **more: int) -> int:
        fd = opened(path, flags, mode, **more)
        if flags & os.O_CREAT and "token" in str(path):
            born.append((stat.S_IMODE(os.fstat(fd).st_mode), flags & (os.O_EXCL | os.O_NOFOLLOW)))
        return fd

    def appears(draft: str, path: str, **more: bool) -> None:
        born.append((stat.S_IMODE(os.lstat(draft).st_mode), os.lstat(draft).st_size))
        linked(draft, path, **more)

    home = Home()
    home.create()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", looked_at)
        patched.setattr(os, "link", appears)
        before = os.umask(0)
        try:
            token = listener.token_of(home, "token")
        finally:
            os.umask(before)
    assert born == [(0o600, os.O_EXCL | os.O_NOFOLLOW), (0o600, len(token) + 1)]
    path = world.home / "server" / "token"
    assert os.listdir(path.parent) == ["token"]
    path.unlink()

    argv = world.hold_argv("serve", "--port", 0)
    open_handed = world.program(["sh", "-c", 'umask 0; exec "$@"', "sh", *argv])
    assert open_handed.line(START_BOUND_S)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    open_handed.signal(signal.SIGTERM)
    assert open_handed.wait() == 0

    path.chmod(0o644)
    _refused(world, "others can read the token")
    path.rename(path.with_name("elsewhere"))
    path.with_name("elsewhere").chmod(0o600)
    path.symlink_to(path.with_name("elsewhere"))
    _refused(world, "it is a symlink")
    path.unlink()
    path.symlink_to(world.root / "nowhere")
    _refused(world, "it is a symlink")
    assert not (world.root / "nowhere").exists()


def _refused(world: World, why: str) -> None:
    refused = world.hold("serve", "--port", 0)
    assert refused.returncode != 0
    assert not refused.stdout
    assert why in refused.stderr
    assert "fix: rm " in refused.stderr


def test_a_busy_port_says_what_answers_there(world: World) -> None:
    port = Serving(world).port
    refused = world.hold("serve", "--port", port)
    assert refused.returncode == 2
    assert f"127.0.0.1:{port} is taken: another `hold serve` answers there" in refused.stderr
    assert "`hold open` prints an address of it" in refused.stderr
    with socket.create_server(("127.0.0.1", 0)) as mute:
        refused = world.hold("serve", "--port", mute.getsockname()[1])
    assert refused.returncode == 2
    assert "something that does not speak HTTP listens there" in refused.stderr


def test_a_unix_socket_is_for_its_owner_alone_and_goes_with_the_server(world: World) -> None:
    path = world.root / "sock" / "s"
    serving = Serving(world, "--unix", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    bearer = {"Host": "localhost", "Authorization": f"Bearer {serving.token}"}
    assert request(str(path), "/v1/info", bearer).status == 200
    assert request(str(path), "/v1/info", {**bearer, "Host": "evil.test"}).status == 421
    taken = world.hold("serve", "--unix", path)
    assert taken.returncode == 2
    assert "a server answers there" in taken.stderr
    serving.kill()
    serving.program.wait()
    assert path.exists()
    serving.start()
    assert request(str(path), "/healthz", {"Host": "localhost"}).status == 200
    assert serving.leave() == 0
    assert not path.exists()
    path.parent.chmod(0o755)
    assert "lets others in" in world.hold("serve", "--unix", path).stderr


def test_the_example_for_a_forwarded_port_answers_at_that_port(world: World) -> None:
    words = next(line for line in SERVE_EXAMPLES.splitlines() if "--unix" in line)
    port = re.search(r"ssh -L ([0-9]+):", SERVE_EXAMPLES)
    assert port is not None
    path = str(world.root / "sock" / "s")
    serving = Serving(world, *(path if word.endswith(".sock") else word for word in words.split()[2:]))
    bearer = {"Host": f"localhost:{port[1]}", "Authorization": f"Bearer {serving.token}"}
    assert request(path, "/v1/info", bearer).status == 200
    assert request(path, "/v1/info", {**bearer, "Origin": f"http://localhost:{port[1]}"}).status == 200


def test_with_a_certificate_it_serves_other_addresses_and_says_so_to_browsers(world: World) -> None:
    certificate, key = new_certificate(world.root)
    serving = Serving(
        world, "--bind", "0.0.0.0", "--tls-cert", certificate, "--tls-key", key, "--host-name", "hold.example"
    )
    assert serving.url == f"https://hold.example:{serving.port}"
    context = ssl.create_default_context(cafile=str(certificate))
    with (
        socket.create_connection(("127.0.0.1", serving.port), BOUND_S) as plain,
        context.wrap_socket(plain, server_hostname="hold.example") as there,
    ):
        there.sendall(f"GET /healthz HTTP/1.1\r\nHost: hold.example:{serving.port}\r\n\r\n".encode())
        answer = read_answer(there)
    assert answer.status == 200
    assert "max-age" in answer.headers["strict-transport-security"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_leave_it_notifies_its_viewers_and_touches_no_session(world: World, number: signal.Signals) -> None:
    session = world.open().start(world.probe("cat"), tty=True)
    before = (session.pid, session.runner_pid)
    serving = Serving(world)
    with connect(
        f"ws://{serving.address}/v1/sessions/{session.id}/attach",
        subprotocols=["holdfast.v1.json"],  # type: ignore[list-item]
        additional_headers={"Authorization": f"Bearer {serving.token}"},
    ) as viewer:
        assert '"init"' in str(viewer.recv(5))
        serving.kill(number)
        assert _close_code(viewer) == 1001
    assert serving.program.wait() == 0
    line = "hold: ended; the sessions are still running\n" if number == signal.SIGINT else ""
    assert serving.program.errors() == line
    now = session.refresh()
    assert (now.state, now.pid, now.runner_pid) == ("running", *before)
    session.stop(grace=0)


def test_what_is_typed_is_recorded_with_the_label_of_the_token(world: World, serving: Serving) -> None:
    session = world.open().start(world.probe("cat"), tty=True, name="typed")
    with connect(
        f"ws://{serving.address}/v1/sessions/typed/attach",
        subprotocols=["holdfast.v1.json"],  # type: ignore[list-item]
        additional_headers={"Authorization": f"Bearer {serving.token}"},
    ) as viewer:
        viewer.send('{"type": "input", "id": 1, "submit": "hello"}')
        assert session.wait(match="hello", timeout=30).reason == "match"
    assert '"web:home"' in (world.session(session.id) / "inputs.jsonl").read_text()
    session.stop(grace=0)


def _close_code(viewer: ClientConnection) -> int | None:
    try:
        while True:
            viewer.recv(5)
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None


def test_a_second_signal_ends_it_at_once(world: World) -> None:
    """The viewer never answers the close of the server, which therefore waits for it."""
    session = world.open().start(world.probe("cat"), tty=True)
    serving = Serving(world)
    with socket.create_connection(("127.0.0.1", serving.port), BOUND_S) as there:
        lines = [f"{name}: {value}" for name, value in {**serving.bearer, **UPGRADE}.items()]
        head = f"GET /v1/sessions/{session.id}/attach HTTP/1.1"
        there.sendall("\r\n".join([head, *lines, "", ""]).encode())
        assert read_answer(there).status == 101
        serving.kill(signal.SIGTERM)
        until(lambda: _refuses(serving.port), what="the end of listening")
        assert serving.program.returncode is None
        serving.kill(signal.SIGTERM)
        assert serving.program.wait() == 128 + signal.SIGTERM
    assert session.refresh().state == "running"
    session.stop(grace=0)


def test_what_cannot_be_answered_before_it_leaves_is_cut_off_and_is_no_error(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(responses, "LEAVING_S", 0.1)
    session = world.open().start(world.probe("cat"), tty=True)

    async def main() -> None:
        async with asyncio.timeout(START_BOUND_S):
            async with serving_inside() as inside:
                reader, writer = await asyncio.open_connection("127.0.0.1", inside.port)
                lines = [f"{name}: {value}" for name, value in {**inside.bearer, **UPGRADE}.items()]
                writer.write("\r\n".join([f"GET /v1/sessions/{session.id}/attach HTTP/1.1", *lines, "", ""]).encode())
                # Answered after it: the upgrade has passed the gate by then.
                assert (await inside.ask("/healthz")).status == 200
            assert await reader.read() == b""
            writer.close()

    runner = session.runner_pid
    assert runner is not None
    os.kill(runner, signal.SIGSTOP)
    try:
        asyncio.run(main())
    finally:
        os.kill(runner, signal.SIGCONT)
    assert caplog.text == ""
    session.stop(grace=0)


def _refuses(port: int) -> bool:
    with socket.socket() as there:
        return there.connect_ex(("127.0.0.1", port)) != 0


def test_a_message_that_is_too_large_and_a_missing_pong_end_the_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.open().start(world.probe("cat"), tty=True)

    async def closed_with(inside: Inside, said: bytes, dialect: str = JSON) -> tuple[int, str, bytes]:
        """Code and reason, and the last message before."""
        last = b""
        reader, writer = await asyncio.open_connection("127.0.0.1", inside.port)
        lines = [
            f"{name}: {value}"
            for name, value in {**inside.bearer, **UPGRADE, "Sec-WebSocket-Protocol": dialect}.items()
        ]
        writer.write("\r\n".join([f"GET /v1/sessions/{session.id}/attach HTTP/1.1", *lines, "", ""]).encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101")
        writer.write(said)
        try:
            while True:
                first, length = await reader.readexactly(2)
                if length == 126:
                    length = int.from_bytes(await reader.readexactly(2), "big")
                body = await reader.readexactly(length)
                if first & 15 == CLOSE:
                    return int.from_bytes(body[:2], "big"), body[2:].decode(), last
                last = body
        finally:
            writer.close()

    async def main() -> None:
        async with serving_inside() as inside, asyncio.timeout(30):
            # The head of a masked message, whose length alone is too much.
            long = bytes((0x82, 0xFF)) + (Settings.server_frame_bytes + 1).to_bytes(8, "big") + bytes(4)
            for dialect in (JSON, BINARY):
                code, reason, last = await closed_with(inside, long, dialect)
                assert (code, reason) == (1009, "too-large")
                error = json.loads(last[dialect == BINARY :])
                assert (error["type"], error["key"]) == ("error", "server.frame_bytes")
                assert (error["code"], error["limit"]) == ("too-large", Settings.server_frame_bytes)
        # Not before: a ping that is not answered would close that connection too.
        monkeypatch.setenv("HOLDFAST_SERVER_PING_INTERVAL", "50ms")
        monkeypatch.setenv("HOLDFAST_SERVER_PONG_WAIT", "50ms")
        async with serving_inside() as inside, asyncio.timeout(30):
            assert (await closed_with(inside, b""))[:2] == (4408, "no-pong (server.pong_wait is 0.05)")

    asyncio.run(main())
    session.stop(grace=0)


def test_an_idle_server_takes_no_time(world: World) -> None:
    """Under uvicorn's own loop it woke ten times a second."""
    serving = Serving(world)
    assert serving.ask("/healthz").status == 200

    def is_idle() -> bool:
        """False where it had still to do with the request: on a busy machine it comes to that late."""
        before = _wakeups(serving.pid)
        with pytest.raises(subprocess.TimeoutExpired):
            serving.program._process.wait(1.5)
        return _wakeups(serving.pid) - before <= 5

    until(is_idle, what="a second and a half with nothing to do")


def _wakeups(pid: int) -> int:
    """How often it has gone to sleep; being made to wait by others does not count."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))


def test_a_killed_server_leaves_its_token_and_the_next_one_takes_it(world: World) -> None:
    serving = Serving(world)
    token, port = serving.token, serving.port
    serving.kill()
    serving.program.wait()
    serving.start()
    assert (serving.token, serving.port) == (token, port)
    assert serving.ask("/v1/info").status == 200


@pytest.mark.needs("root", "service-group")
def test_in_a_unit_that_would_kill_its_sessions_it_says_so(world: World) -> None:
    parent = cgroup_parent()
    assert parent is not None
    unit = parent / f"holdfast-test-{os.getpid()}.slice" / "web.service"
    unit.mkdir(parents=True)
    enter = f'echo 0 > {unit}/cgroup.procs; exec "$@"'
    try:
        serving = Serving(world, prefix=["sh", "-c", enter, "sh"])
        assert serving.call("GET", "/healthz").status == 200
        until(lambda: "stopping web.service kills every process" in serving.program.errors(), what="the warning")
        assert "--print-unit" in serving.program.errors()
        # What is started from here is not in the group.
        session = started(serving, "exec cat", stdin="open")
        members = (unit / "cgroup.procs").read_text().split()
        assert str(serving.pid) in members
        assert not {str(session["pid"]), str(session["runner_pid"])} & set(members)
        serving.call("POST", f"/v1/sessions/{session['id']}/stop", {"grace": 0})
        serving.leave()
        world.end_launchers()
    finally:
        for group in (unit, unit.with_name("holdfast"), unit.parent):
            if group.is_dir():
                until(lambda group=group: not (group / "cgroup.procs").read_text(), what=f"the end of {group}")  # type: ignore[misc]
                group.rmdir()


def test_a_small_answer_is_sent_at_once() -> None:
    """Behind `written` the echo of a key waited 40 ms for the acknowledgement of the client."""
    with opened(ListenAddress(port=0)) as there, socket.create_connection(there.getsockname(), BOUND_S):
        accepted, _ = there.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
