"""Language servers: one id through all restarts, given up after three failed starts, gone with their host."""

from __future__ import annotations

import os
import re
import signal

import pytest

from holdfast.tools.evva import DaemonState, Lsp
from support import lsp_server
from support.own_daemon import OWNER
from support.signal_file import endings
from support.waiting import BOUND_S, until, wait_gone
from support.world import World


@pytest.fixture
def state(world: World, monkeypatch: pytest.MonkeyPatch) -> DaemonState:
    monkeypatch.setenv("HOLDFAST_RESTART_DELAY", "10ms")
    return world.closing.enter_context(DaemonState(world.open(), OWNER))


@pytest.mark.covers("evva:28")
def test_a_killed_server_comes_back_a_failing_one_is_given_up_and_all_go_with_their_host(
    world: World, state: DaemonState
) -> None:
    server = state.start_lsp(lsp_server.argv(), server="toy")
    assert server.request("echo", 1) == 1
    assert state.start_lsp(lsp_server.argv(), server="toy") is server, "one at a time"
    other = world.closing.enter_context(DaemonState(state._hf, "another owner"))
    theirs_too = other.start_lsp(lsp_server.argv(), server="toy")
    assert theirs_too.id != server.id
    theirs_too.stop()
    (shot,) = state.snapshot_by_kind("lsp")
    assert shot.metadata == Lsp("toy", shot.metadata.command, "running", None, 0, 3, 0, shot.metadata.read)
    pid = world.open().get(server.id).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    until(lambda: server.restarts == 1, what="the restart")
    assert server.request("echo", 2) == 2
    (again,) = state.snapshot_by_kind("lsp")
    assert (again.id, again.status, again.metadata.restarts_total) == (shot.id, "running", 1)
    assert again.started_at >= shot.started_at

    broken = state.start_lsp(lsp_server.argv("fail", 99, world.root / "starts"), server="broken")
    until(lambda: endings(world, broken.id), what="giving up")
    gone = state.get(broken.id)
    assert gone is not None
    assert (gone.snapshot().status, gone.snapshot().metadata.restart_count) == ("failed", 3)

    def message() -> str:
        with state.fold() as fold:
            return fold.text

    text = until(message, what="the message")
    (block,) = re.findall(rf"<system-reminder>daemon {broken.id} \[lsp\] failed[^<]*</system-reminder>", text)
    assert ", server=broken, state=error, restarts=3/3" in block
    assert 'lsp server "broken" exceeded max restarts (3)' in block

    host = world.host(
        "import sys, threading, holdfast\n"
        "from holdfast.tools.evva import DaemonState\n"
        f"state = DaemonState(holdfast.open(), {OWNER!r})\n"
        "server = state.start_lsp(sys.argv[1:], server='theirs')\n"
        "server.wait_running()\n"
        "print(server.id, flush=True)\n"
        "threading.Event().wait()\n",
        *lsp_server.argv(),
    )
    theirs = world.open().get(host.line())
    assert theirs.pid is not None
    host.kill()
    wait_gone(theirs.pid)
    assert theirs.wait(timeout=BOUND_S).reason == "exit"


def test_a_stopped_server_is_killed_and_its_stderr_is_its_output(world: World, state: DaemonState) -> None:
    server = state.start_lsp(lsp_server.argv(), server="toy")
    assert server.request("echo", 1) == 1
    assert state.stop(server.id).status == "running"
    until(lambda: endings(world, server.id), what="the end")
    recalled = state.recall(server.id)
    assert recalled is not None
    shot = recalled.snapshot()
    assert (shot.status, shot.cause, shot.requested_by) == ("killed", "stop", OWNER)
    assert shot.metadata.output == "ready to serve\nshutting down\nbye\n"
