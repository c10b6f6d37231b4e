"""Is the command ready? Real ports and a real log, on a clock that the test moves."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.core import processes
from holdfast.runner.features.readiness import Ready
from support.still_life import StillLife, still_life


@pytest.fixture
def life(tmp_path: Path) -> Iterator[StillLife]:
    with still_life(tmp_path) as life:
        yield life


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def probed(life: StillLife, *probes: dict[str, Any], mode: str = "all", timeout: float = 60.0) -> Ready:
    settings = {"mode": mode, "probes": list(probes), "timeout": timeout, "owner_check": True}
    ready = Ready(life, settings, settled.append)  # type: ignore[arg-type]
    settled.clear()
    life.features.append(ready)
    ready.begin(1)
    return ready


settled: list[bool] = []


def line(text: str, **parts: Any) -> dict[str, Any]:
    return {"line": {"id": "w1", "literal": text, "regex": None, **parts}}


def port_of(server: socket.socket) -> int:
    port: int = server.getsockname()[1]
    return port


def is_ours(life: StillLife) -> None:
    """This very process, and what it listens on, is of the session."""
    life.tree.processes = [processes.look(os.getpid())]


@pytest.mark.covers("signals:35")
def test_a_port_of_the_session_gives_one_ready(life: StillLife, server: socket.socket) -> None:
    ready = probed(life, {"port": port_of(server), "host": "127.0.0.1"})
    is_ours(life)
    life.loop.pass_by(1000.0)
    (told,) = life.told("ready")
    assert told == {
        "ok": True,
        "probe": f"port:{port_of(server)}",
        "detail": f"port {port_of(server)} is held by pid {os.getpid()} of this session",
        "after_s": 0.05,
    }
    assert ready.facts() == {"ready": told}
    assert settled == [True]
    assert life.loop.armed == 0, "probes run while it starts, and no longer"


@pytest.mark.covers("signals:35")
def test_a_foreign_listener_is_named_until_the_timeout(life: StillLife, server: socket.socket) -> None:
    ready = probed(life, {"port": port_of(server)})
    life.loop.pass_by(59.0)
    assert life.told("ready") == []
    held = f"port {port_of(server)} is held by pid {os.getpid()} (python"
    assert ready.facts()["ready"]["ok"] is None
    assert held in ready.facts()["ready"]["waits_for"][f"port:{port_of(server)}"]
    life.loop.pass_by(100.0)
    (told,) = life.told("ready")
    assert (told["ok"], told["probe"], told["after_s"]) == (False, f"port:{port_of(server)}", 60.0)
    assert told["detail"].startswith("not ready after 60 s: " + held)
    assert settled == [False]
    assert life.stopped_by == [], "the session is left as it is"
    assert life.loop.armed == 0


def test_probes_come_every_50_ms_and_then_ever_later_up_to_a_second(
    life: StillLife, server: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    probed(life, {"port": port_of(server)})
    looks: list[float] = []
    living = life.tree.living

    def look() -> list[Any]:
        looks.append(life.loop.passed)
        return living()

    monkeypatch.setattr(life.tree, "living", look)
    life.loop.pass_by(59.0)
    assert looks[:3] == pytest.approx([0.05, 0.1, 0.15])
    # A server that listens after a long time is noticed at most 2 % of that time late.
    for before, after in itertools.pairwise(looks):
        assert after - before == pytest.approx(min(max(0.05, before * 0.02), 1.0), rel=1e-3)
    assert looks[-1] - looks[-2] == pytest.approx(1.0)


def test_a_line_makes_it_ready_without_a_probe(life: StillLife) -> None:
    probed(life, line("compiled"))
    assert life.loop.armed == 1, "the end of the time alone"
    life.prints("starting\n")
    life.loop.pass_by(3.0)
    life.prints("\x1b[32mcomp\x1b[0miled\x1b[0m in 3 s\n", "stderr")
    life.loop.pass_by(1.0)
    (told,) = life.told("ready")
    assert (told["ok"], told["probe"], told["detail"]) == (True, "line:compiled", "stderr:0: compiled in 3 s")
    assert life.loop.armed == 0


def test_a_line_of_another_stream_does_not_count(life: StillLife) -> None:
    probed(life, line("up", stream="stderr"))
    life.prints("up\n")
    life.loop.pass_by(1.0)
    assert life.told("ready") == []
    life.prints("up\n", "stderr")
    life.loop.pass_by(1.0)
    assert len(life.told("ready")) == 1


def test_a_prompt_without_a_line_end_counts_after_half_a_second(life: StillLife) -> None:
    probed(life, line("ready>"))
    life.prints("ready> ")
    life.loop.pass_by(0.4)
    assert life.told("ready") == []
    life.loop.pass_by(0.2)
    assert life.told("ready")[0]["after_s"] == 0.5


@pytest.mark.parametrize("mode, after", [("any", [1.0]), ("all", [])])
def test_any_of_several_is_enough_or_all_are_needed(life: StillLife, mode: str, after: list[float]) -> None:
    probed(life, line("one"), line("two"), mode=mode)
    life.loop.pass_by(1.0)
    life.prints("two\n")
    life.loop.pass_by(1.0)
    assert life.times("ready") == after
    life.prints("one\n")
    life.loop.pass_by(1.0)
    (told,) = life.told("ready")
    assert told["probe"] == ("line:two" if mode == "any" else "line:one, line:two")
    assert told["ok"]


def test_a_host_that_says_so_is_believed(life: StillLife, server: socket.socket) -> None:
    ready = probed(life, {"port": port_of(server)})
    life.loop.pass_by(1.0)
    ready.report()
    ready.report()
    (told,) = life.told("ready")
    assert (told["ok"], told["probe"]) == (True, "told")
    assert life.loop.armed == 0


def test_notify_readiness_is_one_probe_among_others(life: StillLife) -> None:
    ready = probed(life, {"told": True}, line("up"))
    ready.report()
    assert life.told("ready") == []
    life.prints("up\n")
    life.loop.pass_by(0.1)
    assert life.told("ready")[0]["probe"] == "told, line:up"


def test_a_command_that_ends_before_it_was_ready_is_reported_as_not_ready(life: StillLife) -> None:
    ready = probed(life, line("up"))
    life.loop.pass_by(2.0)
    ready.finish()
    (told,) = life.told("ready")
    assert (told["ok"], told["detail"], told["after_s"]) == (False, "the command ended before it was ready", 2.0)
    assert life.loop.armed == 0
    ready.finish()
    assert len(life.told("ready")) == 1


def test_the_last_line_before_the_end_still_counts(life: StillLife) -> None:
    ready = probed(life, line("up"))
    life.prints("up")
    ready.finish()
    assert [told["ok"] for told in life.told("ready")] == [True]


def test_each_attempt_has_its_own_answer_and_only_its_own_output(life: StillLife) -> None:
    ready = probed(life, line("up"))
    life.prints("up\n")
    life.loop.pass_by(1.0)
    ready.pause()
    ready.begin(2)
    life.loop.pass_by(1.0)
    assert len(life.told("ready")) == 1
    assert ready.facts()["ready"]["ok"] is None
    life.prints("up\n")
    life.loop.pass_by(1.0)
    assert len(life.told("ready")) == 2


def test_an_attempt_that_failed_before_it_was_ready_says_nothing_where_another_follows(life: StillLife) -> None:
    ready = probed(life, line("up"))
    ready.pause()
    assert life.told("ready") == []
    assert life.loop.armed == 0
    ready.begin(2)
    life.loop.pass_by(60.0)
    assert [told["ok"] for told in life.told("ready")] == [False]


def test_what_an_older_host_let_pass_is_never_ready_and_says_why(life: StillLife) -> None:
    ready = probed(life, {"http": "https://localhost/"}, timeout=5.0)
    assert "only sends http:" in str(ready.facts())
    life.loop.pass_by(5.0)
    (told,) = life.told("ready")
    assert not told["ok"]
    assert "only sends http:" in told["detail"]
