"""IDN-02 to IDN-04 and IDN-12: what is not proven to be the session is neither talked to nor signalled."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import errors
from holdfast.core import wire
from support import processes
from support.bystander import Bystanders
from support.faults import kill_runner, runner_of, sweep_up
from support.points import Points
from support.promised import Beside, is_typed, left_alone, marked, promised
from support.waiting import until, wait_gone
from support.world import World

if TYPE_CHECKING:
    from holdfast import Session


def started(world: World, *words: object, **options: Any) -> Session:
    """A probe that has come as far as its first line: it no longer dies for want of a reader."""
    session = world.open().start(world.probe(*words), **options)
    assert session.wait(match="^ready$", timeout=30).reason == "match"
    return session


def edit(path: Path, *keys: str, to: Any) -> Any:
    """Change one part of a record by hand; what it was."""
    record = inner = json.loads(path.read_text())
    for key in keys[:-1]:
        inner = inner[key]
    before = inner[keys[-1]]
    inner[keys[-1]] = to
    path.write_text(json.dumps(record))
    return before


OTHER_BOOT = "0f0f0f0f-0000-4000-8000-000000000000"
# Each part of the record, how the error names it, and something else to put there; a number is moved by one.
PARTS: list[tuple[tuple[str, ...], str, Any]] = [
    (("boot",), "boot", OTHER_BOOT),
    (("nonce",), "nonce", "00" * 16),
    (("pidns",), "pidns", 4026530000),
    (("timens",), "timens", 4026530000),
    (("command", "start"), "command start", None),
    (("command", "pid"), "command pid", None),
    (("runner", "start"), "runner start", None),
    (("runner", "pid"), "runner pid", None),
]


@pytest.mark.covers("IDN-02")
def test_idn_02_each_wrong_part_alone_is_enough_to_refuse_a_living_runner(
    world: World, without: str, bystander: Bystanders, beside: Beside
) -> None:
    session = started(world, "cat", stdin="open")
    state = world.session(session.id) / "state.json"
    whole = state.read_bytes()
    for keys, part, value in PARTS:
        wrong = json.loads(whole)[keys[0]][keys[1]] + 1 if value is None else value
        right = edit(state, *keys, to=wrong)
        for act in (
            lambda: session.send("no\n"),
            lambda: session.stop(grace=0),
            lambda: session.send_signal("TERM"),
        ):
            with pytest.raises(errors.IdentityMismatch) as caught:
                act()
            assert caught.value.facts["part"] == part
            assert (caught.value.facts["recorded"], caught.value.facts["found"]) == (wrong, right)
            is_typed(caught.value)
        seen = session.refresh()
        assert seen.state == "unreachable"
        assert part in seen.metadata["evidence"]
        state.write_bytes(whole)
    promised(world, session, bystander=bystander, beside=beside)
    assert session.text() == "ready\n", "not one byte of what was refused arrived"
    assert session.stop(grace=0).done


@pytest.mark.covers("IDN-02")
def test_idn_02_each_wrong_part_alone_is_enough_to_signal_no_process_when_the_runner_is_gone(
    world: World, without: str, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    session = started(world, "forever")
    kill_runner(session)
    state = world.session(session.id) / "state.json"
    whole = state.read_bytes()
    cases: list[tuple[tuple[str, ...], int | None, str]] = [
        (("boot",), None, "boot"),
        (("command", "start"), 1, "command start"),
        (("command", "start"), -1, "command start"),
        (("command", "pid"), 1, "process group"),
    ]
    for keys, shift, part in cases:
        edit(state, *keys, to=OTHER_BOOT if shift is None else json.loads(whole)[keys[0]][keys[1]] + shift)
        with pytest.raises(errors.IdentityMismatch, match="nothing was signalled") as caught:
            session.stop(grace=0)
        assert caught.value.facts["part"] == part
        assert [row.pid for row in marked(session.id)] == [session.pid], "the command was left alone"
        left_alone(bystander)
        state.write_bytes(whole)
    assert session.refresh().state == "stale"
    assert session.stop(grace=0).done
    promised(world, session, bystander=bystander, beside=beside)
    sweep_up(world, hf)


@pytest.mark.covers("IDN-03")
def test_idn_03_another_sessions_runner_at_the_recorded_endpoint_gets_not_one_byte(
    world: World, without: str, bystander: Bystanders, beside: Beside
) -> None:
    ours, other = (started(world, "cat", stdin="open") for _ in range(2))
    endpoint, aside = Path(ours.endpoint or ""), world.root / "aside.sock"
    endpoint.rename(aside)
    endpoint.symlink_to(other.endpoint or "")
    for act in (lambda: ours.send("secret\n"), lambda: ours.stop(grace=0), lambda: ours.update(name="web")):
        with pytest.raises(errors.IdentityMismatch) as caught:
            act()
        assert caught.value.facts["part"] == "id"
    assert ours.refresh().state == "unreachable"
    endpoint.unlink()
    aside.rename(endpoint)
    for session in (ours, other):
        promised(world, session, bystander=bystander, beside=beside, error=caught.value)
        session.send("mine\n")
        assert session.wait(match="^mine$", timeout=30).reason == "match"
        assert session.text() == "ready\nmine\n"
        assert session.stop(grace=0).done


@pytest.mark.covers("IDN-03")
def test_idn_03_a_program_that_talks_nonsense_at_the_endpoint_gets_only_our_greeting(
    world: World, without: str, bystander: Bystanders, beside: Beside
) -> None:
    session = started(world, "cat", stdin="open")
    endpoint, aside = Path(session.endpoint or ""), world.root / "aside.sock"
    endpoint.rename(aside)
    for speech in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 8, b"\xff" * 64, wire.control({"type": "welcome"})):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(str(endpoint))
            listener.listen(8)
            imposter = Imposter(listener, speech)
            with pytest.raises(errors.IdentityMismatch) as caught:
                session.send("secret\n")
            is_typed(caught.value)
            assert session.refresh().state == "unreachable"
            heard = imposter.leave()
            assert b"secret" not in heard
            assert wire.as_text(b"secret\n").encode() not in heard
        endpoint.unlink()
    aside.rename(endpoint)
    promised(world, session, bystander=bystander, beside=beside)
    assert session.text() == "ready\n"
    assert session.stop(grace=0).done


class Imposter:
    """Answers every caller with the same bytes, and remembers what it was told."""

    def __init__(self, listener: socket.socket, speech: bytes) -> None:
        self._reader, writer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            os.close(self._reader)
            try:
                while True:
                    caller, _ = listener.accept()
                    caller.sendall(speech)
                    while received := caller.recv(65536):
                        os.write(writer, received)
            finally:
                os._exit(0)
        os.close(writer)

    def leave(self) -> bytes:
        """All that it heard."""
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        with os.fdopen(self._reader, "rb") as reader:
            return reader.read()


@pytest.mark.covers("IDN-04")
def test_idn_04_a_runner_that_leaves_late_removes_only_its_own_socket(
    world: World, points: Points, bystander: Bystanders, beside: Beside
) -> None:
    """On code that unlinks by path the successor's socket would vanish, and with it the way to its session."""
    points.set("endpoint.unlink=pause")
    points.off("launcher")
    hf = world.open()
    leaver = hf.start("exit 4")
    hit = points.wait("endpoint.unlink")
    endpoint = Path(leaver.endpoint or "")
    endpoint.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as successor:
        successor.bind(str(endpoint))
        successor.listen(1)
        inode = endpoint.stat().st_ino
        hit.release()
        wait_gone(hit.pid)
        assert endpoint.stat().st_ino == inode
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.connect(str(endpoint))
    endpoint.unlink()
    points.clear()
    ended = promised(world, leaver, bystander=bystander, beside=beside)
    assert ended.exit is not None
    assert ended.exit.code == 4


@pytest.mark.covers("IDN-04")
def test_idn_04_a_launcher_that_leaves_late_removes_only_its_own_socket(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    launcher = world.launchers()[0]
    path = next(world.runtime.glob("launcher-*.sock"))
    os.kill(launcher.pid, signal.SIGSTOP)
    path.unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as successor:
        successor.bind(str(path))
        successor.listen(1)
        inode = path.stat().st_ino
        os.kill(launcher.pid, signal.SIGTERM)
        os.kill(launcher.pid, signal.SIGCONT)
        wait_gone(launcher.pid)
        assert path.stat().st_ino == inode
    path.unlink()
    left_alone(bystander)
    beside.unharmed()


@pytest.mark.covers("IDN-12")
def test_idn_12_matching_by_the_text_of_a_command_hits_the_command_alone(
    world: World, without: str, bystander: Bystanders, beside: Beside
) -> None:
    text = f"find-me-{world.root.name}"
    session = world.open().start(world.probe("say", text, "forever"), name="plain", owner=text, description=text)
    assert session.wait(match=text, timeout=30).reason == "match"
    # What `pkill -f` would match, asked for without killing the rest of the machine.
    found = subprocess.run(["pgrep", "-f", text], capture_output=True, text=True, check=True).stdout.split()
    assert [int(pid) for pid in found] == [session.pid]
    assert text not in processes.command_line(runner_of(session).pid)
    for launcher in world.launchers():
        assert text not in processes.command_line(launcher.pid)
    os.kill(session.pid or 0, signal.SIGTERM)
    session.wait(exit=True, timeout=30)
    ended = promised(world, session, bystander=bystander, beside=beside)
    assert ended.exit is not None
    assert (ended.exit.signal, ended.exit.cause) == ("SIGTERM", "signal")


@pytest.mark.covers("IDN-12")
def test_idn_12_a_command_that_renames_itself_keeps_its_identity(
    world: World, without: str, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    session = hf.start(world.probe("rename", "somebody else", "say", "renamed", "forever"))
    assert session.wait(match="^renamed$", timeout=30).reason == "match"
    assert processes.look(session.pid or 0) is not None
    until(lambda: "somebody else" in Path(f"/proc/{session.pid}/comm").read_text(), what="the new name")
    assert session.refresh().state == "running"
    kill_runner(session)
    assert session.refresh().state == "stale"
    stopped = session.stop(grace=0)
    assert stopped.done
    assert [found["pid"] for found in stopped.found] == [session.pid]
    promised(world, session, bystander=bystander, beside=beside)
    sweep_up(world, hf)
