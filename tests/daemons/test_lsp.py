"""Language servers: supervised like any session, connected to the host that started them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.daemons import lsp as speaking
from holdfast.daemons.lsp import LanguageServer
from holdfast.daemons.lsp_protocol import Reader
from holdfast.errors import ServerGone, ServerRefused, Timeout
from support import lsp_server, processes
from support.faults import halt, runner_of
from support.own_time import QuietTime
from support.points import Points
from support.signal_file import endings, records
from support.waiting import BOUND_S, until, wait_gone
from support.world import World

REAL = Path(sys.executable).with_name("jedi-language-server")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarts without their pause."""
    monkeypatch.setenv("HOLDFAST_RESTART_DELAY", "10ms")


def recorded(world: World, id: str, variant: str, key: str) -> list[Any]:
    return [record[variant].get(key) for record in records(world, id) if variant in record]


def over(server: LanguageServer) -> None:
    server._thread.join(BOUND_S)
    assert not server._thread.is_alive()


def test_a_server_is_initialized_and_answers_and_its_stderr_is_its_output(world: World) -> None:
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv(), server="toy", owner="conv-1", description="a toy")
    assert server.request("echo", {"text": "ü€𝄞"}) == {"text": "ü€𝄞"}
    assert server.capabilities == {"echo": True}
    assert server.state == "running"
    shot = hf.daemons.get(server.id)
    assert server.id.startswith("l")
    assert (shot.kind, shot.status, shot.health, shot.owner) == ("lsp", "running", "healthy", "conv-1")
    expected = {"server": "toy", "state": "running", "restarts": 0, "failed_starts": 0, "max_restarts": 3}
    assert {name: shot.metadata[name] for name in expected} == expected
    assert shot.metadata["open_requests"] == 0
    assert hf.daemons.output(server.id).text == "ready to serve\n"
    server.stop()
    shot = hf.daemons.get(server.id)
    assert shot.exit is not None
    assert (shot.status, shot.exit.cause, shot.exit.code, shot.metadata["state"]) == ("killed", "stop", 0, "stopped")
    assert hf.daemons.output(server.id).text == "ready to serve\nshutting down\nbye\n"
    ended = records(world, server.id)[-1]
    assert list(ended["lifecycle"]["tail"]) == ["stderr"], "the protocol is not shown"
    assert ended["snapshot"]["metadata"]["state"] == "stopped"


def test_a_server_whose_first_record_had_to_wait_for_the_disk_is_initialized(world: World, points: Points) -> None:
    points.set("signals.data=1*error:ENOSPC")
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv(), server="toy")
    points.clear()
    assert server.request("echo", 1) == 1
    server.stop()


def test_a_large_message_is_written_in_pieces_and_comes_back_whole(world: World) -> None:
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv(), server="toy")
    text = "x" * 1_500_000
    assert server.request("echo", {"text": text})["text"] == text
    server.stop()


def test_what_a_server_refuses_or_never_answers_is_reported_by_type(world: World) -> None:
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv(), server="toy")
    with pytest.raises(ServerRefused) as refused:
        server.request("textDocument/hover", {})
    assert (refused.value.number, refused.value.method) == (lsp_server.BAD, "textDocument/hover")
    assert "no textDocument/hover here" in refused.value.message
    with pytest.raises(Timeout):
        server.request("hang", timeout=0.05)
    assert server.open_requests == 0
    assert server.request("echo", [1]) == [1]
    server.stop()
    with pytest.raises(ServerGone, match="it was stopped"):
        server.request("echo", [1])


def test_what_a_server_asks_of_its_client_is_answered(world: World) -> None:
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv(), server="toy")

    def answer(method: str, params: Any) -> dict[str, Any]:
        server.request("ask", {"method": method, "params": params})
        return until(lambda: server.request("heard").pop("answer", None), what="the client's answer")

    assert answer("workspace/configuration", {"items": [{}, {}]})["result"] == [None, None]
    assert answer("client/registerCapability", {"registrations": []})["result"] is None
    assert answer("workspace/applyEdit", {})["error"]["code"] == lsp_server.BAD
    server.stop()


def test_diagnostics_are_new_ones_only_and_notifications_reach_the_host(world: World) -> None:
    hf = world.open()
    heard: list[str] = []
    server = hf.daemons.lsp(lsp_server.argv(), server="toy", notified=lambda method, _params: heard.append(method))

    def opened(text: str) -> str:
        document = {"uri": "file:///a.py", "languageId": "python", "version": 1, "text": text}
        server.notify("textDocument/didOpen", {"textDocument": document})
        server.request("echo")
        return server.diagnostics.drain().text

    assert opened("fine\nwrong here\n") == "/a.py:2:1: error: wrong here"
    assert opened("fine\nwrong here\nalso wrong\n") == "/a.py:3:1: error: also wrong"
    assert heard == ["textDocument/publishDiagnostics"] * 2
    server.stop()


@pytest.mark.covers("signals:40")
@pytest.mark.usefixtures("quick")
def test_a_killed_server_fails_what_waits_at_once_and_is_back_under_the_same_id(world: World) -> None:
    hf = world.open()
    phases: list[str] = []
    hf.daemons.observe(lambda change: phases.append(change.op) if change.op.startswith("phase:") else None)
    server = hf.daemons.lsp(lsp_server.argv(), server="toy")
    waiting = [server.ask("hang")[1] for _ in range(3)]
    shot = hf.daemons.get(server.id)
    assert shot.metadata["open_requests"] == 3
    assert shot.pid is not None
    passed = QuietTime()
    os.kill(shot.pid, signal.SIGKILL)
    for each in waiting:
        with pytest.raises(ServerGone, match="SIGKILL") as gone:
            each.result(BOUND_S)
        assert (gone.value.id, gone.value.server, gone.value.method) == (server.id, "toy", "hang")
    assert passed.seconds() < 1.0
    assert server.request("echo", "again") == "again"
    assert server.restarts == 1
    shot = hf.daemons.get(server.id)
    assert (shot.id, shot.metadata["restarts"], shot.health, shot.status) == (server.id, 1, "healthy", "running")
    assert recorded(world, server.id, "health", "state") == ["healthy", "unhealthy", "healthy"]
    assert recorded(world, server.id, "ready", "ok") == [True, True]
    server.stop()
    hf.daemons.close()
    assert phases == [f"phase:{state}" for state in ("running", "error", "starting", "running", "stopping", "stopped")]


@pytest.mark.covers("signals:40")
@pytest.mark.usefixtures("quick")
def test_three_failed_starts_in_a_row_end_it_and_two_do_not(world: World) -> None:
    hf = world.open()
    lucky = hf.daemons.lsp(lsp_server.argv("fail", 2, world.cwd / "lucky"), server="toy")
    assert lucky.request("echo", 1) == 1
    assert lucky.restarts == 2
    lucky.stop()
    hopeless = hf.daemons.lsp(lsp_server.argv("fail", 9, world.cwd / "hopeless"), server="toy")
    with pytest.raises(ServerGone, match="too often"):
        hopeless.wait_running()
    over(hopeless)
    assert hopeless.state == "error"
    shot = hf.daemons.get(hopeless.id)
    assert shot.exit is not None
    assert (shot.status, shot.exit.code, shot.attempt) == ("failed", 3, 3)
    assert (shot.metadata["state"], shot.metadata["failed_starts"], shot.metadata["max_restarts"]) == ("error", 3, 3)
    assert (world.cwd / "hopeless").read_text() == "xxx"
    (ended,) = until(lambda: endings(world, hopeless.id), what="the ending")
    assert ended["lifecycle"]["start_limit"] is True
    metadata = ended["snapshot"]["metadata"]
    assert (metadata["server"], metadata["state"], metadata["failed_starts"]) == ("toy", "error", 3)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "words,why",
    [(["silent"], "`initialize` was not answered"), (["garbage"], "an invalid message"), (["refuse"], "not with me")],
    ids=["does not answer", "does not speak the protocol", "refuses"],
)
def test_a_running_server_that_cannot_be_used_has_failed_to_start(
    world: World, monkeypatch: pytest.MonkeyPatch, words: list[str], why: str
) -> None:
    if words == ["silent"]:
        monkeypatch.setattr(speaking, "INITIALIZE_S", 0.3)
    answers: list[Future[Any]] = []
    initialized = LanguageServer._initialized

    def note(server: LanguageServer, answer: Future[Any]) -> None:
        answers.append(answer)
        initialized(server, answer)

    monkeypatch.setattr(LanguageServer, "_initialized", note)
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv(*words), server="toy", max_restarts=2)
    over(server)
    with pytest.raises((ServerGone, ServerRefused), match=why):
        answers[0].result(0)
    shot = hf.daemons.get(server.id)
    assert shot.exit is not None
    assert (shot.status, shot.exit.signal, shot.attempt) == ("failed", "SIGKILL", 2)


@pytest.mark.usefixtures("quick")
def test_a_server_that_prints_no_messages_any_more_is_replaced(world: World) -> None:
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv(), server="toy")
    _, waiting = server.ask("hang")
    server.notify("mess")
    with pytest.raises(ServerGone, match="an invalid message"):
        waiting.result(BOUND_S)
    assert server.request("echo", 7) == 7
    assert server.restarts == 1
    server.stop()


@pytest.mark.usefixtures("quick")
def test_a_server_that_closes_its_output_and_lives_on_is_replaced(world: World) -> None:
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv(), server="toy")
    _, waiting = server.ask("hang")
    server.notify("mute")
    with pytest.raises(ServerGone, match="closed its output"):
        waiting.result(BOUND_S)
    assert server.request("echo", 7) == 7
    assert server.restarts == 1
    assert recorded(world, server.id, "health", "state") == ["healthy", "unhealthy", "healthy"]
    server.stop()


@pytest.mark.usefixtures("quick")
def test_a_runner_that_is_stopped_for_a_moment_does_not_end_the_reading(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv(), server="toy")
    _, waiting = server.ask("hang")
    runner = runner_of(hf.get(server.id))
    wake = threading.Timer(0.8, processes.send, (runner, signal.SIGCONT))
    sleep = Reader._sleep

    async def halt_first(reader: Reader, until: float) -> bool:
        # The server has closed its output: the next question to the runner has a short limit.
        if reader._closed_at is not None and wake.ident is None:
            halt(runner.pid)
            wake.start()
        return await sleep(reader, until)

    monkeypatch.setattr(Reader, "_sleep", halt_first)
    server.notify("mute")
    with pytest.raises(ServerGone, match="closed its output"):
        waiting.result(BOUND_S)
    wake.join()
    assert server.request("echo", 7) == 7
    assert (server.state, server.restarts) == ("running", 1)
    server.stop()


@pytest.mark.usefixtures("quick")
def test_a_server_that_leaves_by_itself_has_failed_even_with_code_0(world: World) -> None:
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv(), server="toy")
    with pytest.raises(ServerGone, match="exited with code 0"):
        server.request("die", {"code": 0})
    assert server.request("echo", 7) == 7
    assert server.restarts == 1
    server.stop()


def test_a_server_that_does_not_leave_is_ended_by_the_ladder_and_not_restarted(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(speaking, "_POLITE_S", 0.1)
    monkeypatch.setattr(speaking, "_TERM_S", 0.1)
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv("deaf"), server="toy")
    server.wait_running()
    assert hf.daemons.stop(server.id, by="me").status == "running"
    over(server)
    shot = hf.daemons.get(server.id)
    assert shot.exit is not None
    assert (shot.status, shot.exit.signal, shot.exit.by, shot.attempt) == ("killed", "SIGKILL", "me", 1)


def test_a_stop_by_another_host_ends_what_waits_and_nothing_comes_again(world: World) -> None:
    hf = world.open()
    server = hf.daemons.lsp(lsp_server.argv(), server="toy")
    _, waiting = server.ask("hang")
    with holdfast.open(author="other") as other:
        assert other.daemons.list("lsp")[0].metadata["state"] == "running"
        other.daemons.stop(server.id)
    with pytest.raises(ServerGone, match="stopped"):
        waiting.result(BOUND_S)
    over(server)
    assert server.state == "stopped"
    shot = hf.daemons.get(server.id)
    assert (shot.status, shot.attempt) == ("killed", 1)


def test_a_server_ends_with_the_host_that_started_it(world: World) -> None:
    host = world.host(
        "import holdfast, sys, threading\n"
        "hf = holdfast.open()\n"
        "server = hf.daemons.lsp(sys.argv[1:], server='toy')\n"
        "server.wait_running()\n"
        "print(server.id, hf.daemons.get(server.id).pid)\n"
        "threading.Event().wait()\n",
        *lsp_server.argv(),
    )
    id, pid = host.line().split()
    host.kill()
    wait_gone(int(pid))
    hf = world.open()
    assert hf.get(id).wait(timeout=BOUND_S).reason == "exit"
    shot = hf.daemons.get(id)
    assert shot.exit is not None
    assert (shot.status, shot.exit.cause, shot.metadata["state"]) == ("killed", "owner_gone", "stopped")


def test_for_asyncio_requests_wait_on_the_loop_and_a_cancelled_one_is_taken_back(world: World) -> None:
    async def main() -> None:
        async with holdfast.open_async() as hf:
            server = await hf.daemons.lsp(lsp_server.argv(), server="toy")
            answers = await asyncio.gather(*(server.request("echo", number) for number in range(20)))
            assert answers == list(range(20))
            hanging = asyncio.create_task(server.request("hang"))
            await server.request("echo")
            hanging.cancel()
            await asyncio.wait([hanging])
            assert hanging.cancelled()
            assert server.open_requests == 0
            with pytest.raises(Timeout):
                await server.request("hang", timeout=0.05)
            assert await server.request("echo", "still") == "still"
            await server.stop()
            assert server.state == "stopped"

    asyncio.run(main())


@pytest.mark.slow
@pytest.mark.covers("signals:40")
def test_a_real_language_server_is_supervised_killed_restarted_and_stopped(world: World) -> None:
    hf = world.open()
    server = hf.daemons.lsp([str(REAL)], server="jedi", owner="conv-1", env={"PYTHONDONTWRITEBYTECODE": "1"})
    server.wait_running(60)
    uri = f"file://{world.cwd}/module.py"
    text = "def answer() -> int:\n    return 42\n\n\nanswer()\n\n\ndef broken(:\n"
    document = {"uri": uri, "languageId": "python", "version": 1, "text": text}
    place = {"textDocument": {"uri": uri}, "position": {"line": 4, "character": 2}}

    def definition() -> list[dict[str, Any]]:
        server.notify("textDocument/didOpen", {"textDocument": document})
        found: list[dict[str, Any]] = server.request("textDocument/definition", place, timeout=60)
        return found

    assert [each["range"]["start"]["line"] for each in definition()] == [0]
    until(server.diagnostics.drain, 30, what="the syntax error")
    pid = hf.daemons.get(server.id).pid
    assert pid is not None
    # Stopped, it cannot answer before it is killed.
    os.kill(pid, signal.SIGSTOP)
    _, waiting = server.ask("textDocument/definition", place)
    passed = QuietTime()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ServerGone, match="SIGKILL"):
        waiting.result(BOUND_S)
    assert passed.seconds() < 1.0
    server.wait_running(60)
    assert [each["range"]["start"]["line"] for each in definition()] == [0]
    shot = hf.daemons.get(server.id)
    assert (shot.id, shot.metadata["restarts"], shot.health) == (server.id, 1, "healthy")
    assert shot.pid != pid
    assert recorded(world, server.id, "health", "state") == ["healthy", "unhealthy", "healthy"]
    server.stop()
    shot = hf.daemons.get(server.id)
    assert shot.exit is not None
    assert (shot.status, shot.exit.cause) == ("killed", "stop")
