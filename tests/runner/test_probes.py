"""Ports, HTTP answers and commands as probes: real sockets, real processes, a real loop."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import processes as tree
from holdfast.core.loop import Loop
from holdfast.runner.features import probes
from holdfast.runner.features.probes import BadProbe, Command, Port, TcpProbe, split_url, status_of
from support import processes
from support.still_life import StillLife, still_life
from support.waiting import BOUND_S

LOOPBACK = socket.inet_pton(socket.AF_INET, "127.0.0.1")
LOOPBACK_6 = socket.inet_pton(socket.AF_INET6, "::1")


@contextmanager
def listening(address: str = "127.0.0.1", *, family: int = socket.AF_INET) -> Iterator[tuple[socket.socket, int]]:
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind((address, 0))
        server.listen()
        yield server, server.getsockname()[1]


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A server that says this to whoever asks, and what it was asked."""
    requests: list[bytes] = []
    with listening() as (server, port):

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    requests.append(connection.recv(65536))
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield port, requests
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def life(tmp_path: Path) -> Iterator[StillLife]:
    loop = Loop()
    with still_life(tmp_path, loop=loop) as life:
        yield life
    loop.close()


def run(life: StillLife, done: Callable[[], object], bound: float = BOUND_S) -> None:
    """The loop, until that is so."""
    loop: Loop = life.loop
    deadline = time.monotonic() + bound
    while not done():
        planned = loop._next()
        now = time.monotonic()
        assert now < deadline, "too late"
        loop.dispatch(loop.ready(min(0.05, deadline - now if planned is None else max(0.0, planned - now))))
        life.tree.reap()
        loop._fire(time.monotonic())


def tried(life: StillLife, probe: Port | Command, bound: float = BOUND_S) -> tuple[bool, str]:
    answers: list[tuple[bool, str]] = []
    probe.run(lambda ok, detail: answers.append((ok, detail)))
    run(life, lambda: answers, bound)
    assert len(answers) == 1
    return answers[0]


def of_session(life: StillLife, *pids: int) -> None:
    life.tree.processes = [tree.look(pid) for pid in pids]


def port(life: StillLife, number: int, *, owner_check: bool = True, **parts: Any) -> Port:
    return Port(life, {"port": number, **parts}, owner_check=owner_check)  # type: ignore[arg-type]


def http(life: StillLife, url: str, *, owner_check: bool = False, within_s: float = 5.0, **parts: Any) -> Port:
    return Port(life, {"http": url, **parts}, owner_check=owner_check, within_s=within_s)  # type: ignore[arg-type]


@contextmanager
def unused_port() -> Iterator[int]:
    """Bound, so that nobody else takes it, and nobody listens there."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]


# Who listens.


@pytest.mark.parametrize(
    "address, family, wanted, found",
    [
        ("127.0.0.1", socket.AF_INET, [LOOPBACK], True),
        ("0.0.0.0", socket.AF_INET, [LOOPBACK], True),
        ("::", socket.AF_INET6, [LOOPBACK], True),
        ("::", socket.AF_INET6, [LOOPBACK_6], True),
        ("::1", socket.AF_INET6, [LOOPBACK_6], True),
        ("::1", socket.AF_INET6, [LOOPBACK], False),
        ("::1", socket.AF_INET6, [LOOPBACK, LOOPBACK_6], True),
        ("127.0.0.2", socket.AF_INET, [LOOPBACK], False),
        ("127.0.0.1", socket.AF_INET, [LOOPBACK_6], False),
    ],
)
def test_a_listener_is_found_by_the_addresses_it_takes(
    address: str, family: int, wanted: list[bytes], found: bool
) -> None:
    with listening(address, family=family) as (server, number):
        inode = os.fstat(server.fileno()).st_ino
        # At another address somebody else may have the same number.
        assert probes.find_listeners(number, wanted).get(inode) == (os.getuid() if found else None)
        assert probes.find_listeners(number + 1, wanted).get(inode) is None


def test_a_connection_is_no_listener() -> None:
    with listening() as (server, number), socket.create_connection(("127.0.0.1", number)) as client:
        connection, _ = server.accept()
        with connection:
            assert probes.find_listeners(client.getsockname()[1], [LOOPBACK]) == {}


def test_many_listeners_are_all_looked_at() -> None:
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(700)]
    try:
        for server in servers[::97]:
            assert os.fstat(server.fileno()).st_ino in probes.find_listeners(server.getsockname()[1], [LOOPBACK])
    finally:
        for server in servers:
            server.close()


def test_the_holder_of_a_socket_is_found_among_given_and_among_all_processes() -> None:
    with listening() as (server, _):
        inode = os.fstat(server.fileno()).st_ino
        me = tree.look(os.getpid())
        assert me is not None
        assert probes.listener_holder([inode], [me]) == os.getpid()
        assert probes.listener_holder([inode + 1], [me]) is None
        search = probes.ListenerSearch([inode])
        while search.step() is None:
            pass
        assert search.pid == os.getpid()


# What a runner can ask.


@pytest.mark.parametrize(
    "url, parts",
    [
        ("http://127.0.0.1:3000/health?deep=1#top", ("127.0.0.1", 3000, "/health?deep=1")),
        ("http://localhost", ("localhost", 80, "/")),
        ("HTTP://localhost:8080/", ("localhost", 8080, "/")),
        ("http://[::1]:9/x", ("::1", 9, "/x")),
        ("http://localhost?a=b", ("localhost", 80, "/?a=b")),
    ],
)
def test_a_url_is_split(url: str, parts: tuple[str, int, str]) -> None:
    assert split_url(url) == parts
    probes.check({"http": url})


@pytest.mark.parametrize(
    "probe, reason",
    [
        ({"http": "https://localhost/"}, "only sends http:"),
        ({"http": "ftp://localhost/"}, "not a URL"),
        ({"http": "http://"}, "not a URL"),
        ({"http": "http://host name/"}, "not a URL"),
        ({"http": "http://me@localhost/"}, "lacks a host"),
        ({"http": "http://localhost:http/"}, "lacks a host"),
        ({"http": "http://example.com/"}, "does not resolve names"),
        ({"http": "http://localhost:99999/"}, "1 to 65535"),
        ({"port": 0}, "1 to 65535"),
        ({"port": "80"}, "1 to 65535"),
        ({"port": 80, "host": "example.com"}, "does not resolve names"),
        ({"command": []}, "at least one"),
        ({"rumour": True}, "a probe is"),
    ],
)
def test_what_cannot_be_probed_is_refused_with_the_reason(probe: dict[str, Any], reason: str) -> None:
    with pytest.raises(BadProbe, match=reason):
        probes.check(probe)


def test_a_name_that_its_host_has_looked_up_can_be_asked() -> None:
    probes.check({"http": "http://example.com/", "address": "127.0.0.1"})
    probes.check({"port": 80, "host": "example.com", "address": "::1"})


# Ports.


@pytest.mark.covers("signals:35")
def test_a_port_that_a_process_of_the_session_listens_on_is_ready(life: StillLife) -> None:
    with listening() as (_, number):
        of_session(life, os.getpid())
        assert tried(life, port(life, number)) == (True, f"port {number} is held by pid {os.getpid()} of this session")


@pytest.mark.covers("signals:35")
def test_a_foreign_listener_is_named_and_not_ready(life: StillLife) -> None:
    script = "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); input()"
    argv = [sys.executable, "-I", "-S", "-c", script]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as foreign:
        assert foreign.stdout is not None
        number = int(foreign.stdout.readline())
        of_session(life, os.getpid())
        probe = port(life, number)
        named = f"port {number} is held by pid {foreign.pid} (python"
        details: list[str] = []

        def is_named() -> bool:
            ok, detail = tried(life, probe)
            assert not ok
            details.append(detail)
            return named in detail

        run(life, is_named, 20.0)
        others = {detail for detail in details if named not in detail}
        assert others <= {f"port {number} is held by a process of user {os.getuid()} which is not of this session"}
        ok, _ = tried(life, http(life, f"http://127.0.0.1:{number}/", owner_check=True))
        assert not ok, "nor is it asked"
        # A published port of a container is held by somebody else: then to be let in is enough.
        assert tried(life, port(life, number, owner_check=False)) == (True, f"127.0.0.1:{number} takes connections")


def test_a_port_without_a_listener_is_not_ready(life: StillLife) -> None:
    with unused_port() as number:
        assert tried(life, port(life, number, host="127.0.0.1")) == (False, f"nothing listens on port {number}")
        ok, detail = tried(life, port(life, number, owner_check=False, host="127.0.0.1"))
    assert (ok, detail) == (False, f"127.0.0.1:{number}: Connection refused")


def test_being_looked_at_uses_no_connection_up(life: StillLife) -> None:
    with listening() as (server, number):
        of_session(life, os.getpid())
        assert tried(life, port(life, number))[0]
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.accept()


def test_localhost_is_asked_at_both_of_its_addresses(life: StillLife) -> None:
    with listening("::1", family=socket.AF_INET6) as (_, number):
        assert tried(life, port(life, number, owner_check=False)) == (True, f"[::1]:{number} takes connections")
        of_session(life, os.getpid())
        assert tried(life, port(life, number))[0]


# HTTP.


@pytest.mark.parametrize(
    "answer, statuses, good, said",
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", [], True, "answers 200"),
        (b"HTTP/1.0 204 No Content\r\n\r\n", None, True, "answers 204"),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n", None, False, "answers 302"),
        (b"HTTP/1.1 401 Unauthorized\r\n\r\n", [401], True, "answers 401"),
        (b"HTTP/1.1 200 OK\r\n\r\n", [401], False, "answers 200"),
        (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 500 Oh\r\n\r\n", None, False, "answers 500"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", None, False, "does not speak HTTP"),
        (b"", None, False, "does not speak HTTP"),
    ],
)
def test_an_answer_is_judged_by_its_status(
    life: StillLife, answer: bytes, statuses: list[int] | None, good: bool, said: str
) -> None:
    with answering(answer) as (number, requests):
        ok, detail = tried(life, http(life, f"http://127.0.0.1:{number}/ready?x=1", statuses=statuses))
        assert (ok, detail) == (good, f"127.0.0.1:{number} {said}")
        (request,) = requests
        assert request.startswith(b"GET /ready?x=1 HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % number)
        assert request.endswith(b"\r\n\r\n")


def test_a_server_that_never_answers_is_left_after_a_time(life: StillLife) -> None:
    with listening() as (_, number):
        ok, detail = tried(life, http(life, f"http://127.0.0.1:{number}/", within_s=0.05))
        assert (ok, detail) == (False, f"127.0.0.1:{number}: no answer in 0.05 s")
        assert life.loop.watched == {}


def test_a_probe_that_is_cancelled_says_nothing_and_leaves_nothing(life: StillLife) -> None:
    with listening() as (_, number):
        probe = http(life, f"http://127.0.0.1:{number}/")
        probe.run(lambda _ok, _detail: pytest.fail("it was cancelled"))
        assert life.loop.watched != {}
        probe.cancel()
        assert life.loop.watched == {}
        assert life.loop._next() is None


def test_no_descriptor_for_a_question_is_an_answer(life: StillLife, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    answers: list[tuple[bool, str]] = []
    monkeypatch.setattr("holdfast.runner.features.probes.socket.socket", refuse)
    TcpProbe(life.loop, ("127.0.0.1", 9), lambda ok, detail: answers.append((ok, detail)))
    assert answers == [(False, "127.0.0.1:9: Too many open files")]


@given(
    st.binary(max_size=80), st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Hi\r\nA: b\r\n\r\n"])
)
def test_the_status_is_known_from_the_first_bytes_that_report_it(rest: bytes, before: bytes) -> None:
    whole = before + b"HTTP/1.1 418 I'm a teapot\r\n" + rest
    known = [status_of(whole[:size]) for size in range(len(whole) + 1)]
    first = known.index(418)
    assert set(known[:first]) == {None}
    assert set(known[first:]) == {418}


@given(st.binary(max_size=200))
def test_bytes_that_are_no_answer_are_never_taken_for_one(received: bytes) -> None:
    status = status_of(received)
    assert status in (None, 0) or received.startswith(b"HTTP/1.")


# Commands.


def command(life: StillLife, *argv: str, within_s: float = 10.0) -> Command:
    environment = {"PATH": os.environ["PATH"], tree.SESSION_VARIABLE: "b00000000"}
    return Command(life, list(argv), environment, within_s)  # type: ignore[arg-type]


def test_a_command_that_ends_with_0_is_a_hit(life: StillLife) -> None:
    assert tried(life, command(life, "sh", "-c", "echo fine")) == (True, "sh exited with 0")


@pytest.mark.parametrize(
    "script, said",
    [
        ("echo first; echo no such page >&2; exit 22", "sh exited with 22: no such page"),
        ("kill -TERM $$", "sh was ended by SIGTERM"),
        ("yes | head -c 1000000; exit 3", "sh exited with 3: y"),
    ],
)
def test_another_end_is_a_miss_with_what_it_said_last(life: StillLife, script: str, said: str) -> None:
    assert tried(life, command(life, "sh", "-c", script)) == (False, said)


def test_a_command_that_cannot_be_started_is_a_miss(life: StillLife) -> None:
    ok, detail = tried(life, command(life, "no-such-program"))
    assert not ok
    assert "no-such-program" in detail


def test_a_command_that_takes_too_long_is_ended_with_its_children(life: StillLife) -> None:
    ok, detail = tried(life, command(life, "sh", "-c", "sleep 3600 & sleep 3600", within_s=0.2))
    assert (ok, detail) == (False, "sh took more than 0.2 s")
    assert life.tree.apart == {}
    assert life.loop.watched == {}
    os.wait()


def test_a_probing_command_is_no_part_of_the_session_also_while_its_exec_is_half_done(
    life: StillLife, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What the kernel shows between the moment when we go on and the end of the exec.
    real = tree.environment
    half_done: Iterator[dict[str, str]] = iter([{}, {}])
    monkeypatch.setattr(tree, "environment", lambda pid: next(half_done, None) or real(pid))
    monkeypatch.setattr(tree, "command_line", lambda _pid: [])
    probe = command(life, "sleep", "3600")
    probe.run(lambda _ok, _detail: None)
    (pid,) = life.tree.apart
    assert pid in {child.pid for child in processes.descendants(os.getpid())}
    assert pid not in {process.pid for process in tree.descendants(os.getpid())}
    probe.cancel()
    os.waitpid(pid, 0)
