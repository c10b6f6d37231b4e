"""UPG-01: runners and hosts of different releases understand each other, or say what they lack."""

from __future__ import annotations

import io
import json
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import errors
from holdfast.core import records, wire
from holdfast.places.kinds import runner_archive
from holdfast.sessions import launch
from support import processes
from support.bystander import Bystanders
from support.points import Points
from support.promised import Beside, is_typed, promised
from support.releases import of_each_release, unpacked
from support.viewer import Viewer
from support.waiting import until, wait_gone
from support.world import World

if TYPE_CHECKING:
    from holdfast import Session

OLD_VERSION = "0.0.9"
# What that release did not know yet; ending a session it always knew.
NOT_YET = ("update", "wait", "send_signal", "close_stdin", "write", "output")


def old_runner(path: Path, without: tuple[str, ...]) -> None:
    """Older than every release: today's runner with fewer requests, fewer parts of its identity, another number."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(runner_archive())) as today, zipfile.ZipFile(packed, "w") as old:
        for name in today.namelist():
            source = today.read(name).decode()
            if name.endswith("runner/requests.py"):
                for feature in without:
                    assert f'    "{feature}": (_' in source
                    lines = source.splitlines(keepends=True)
                    source = "".join(line for line in lines if not line.startswith(f'    "{feature}": (_'))
            if name.endswith("core/processes.py"):
                assert ', "timens": time_namespace()' in source
                source = source.replace(', "timens": time_namespace()', "")
            if name.endswith("runner/status.py"):
                assert 'VERSION = "' in source
                for feature in without:
                    source = source.replace(f'"{feature}", ', "").replace(f', "{feature}")', ")")
                lines = source.splitlines(keepends=True)
                lines = [f'VERSION = "{OLD_VERSION}"\n' if line.startswith("VERSION") else line for line in lines]
                source = "".join(lines)
            old.writestr(name, source)
    path.write_bytes(packed.getvalue())


@pytest.fixture
def start_old(world: World, points: Points, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    """Start a session under a runner of another release; hosts that come later are today's."""

    def start(command: list[str], without: tuple[str, ...], archive: Path | None = None, **options: Any) -> Session:
        version = OLD_VERSION if archive is None else archive.parent.name
        if archive is None:
            archive = world.root / "old-runner.pyz"
            old_runner(archive, without)
        points.off("launcher")
        # A released runner refuses abilities that tests learned to switch off after it.
        monkeypatch.setenv("HOLDFAST_OFF", "launcher")
        monkeypatch.setattr(launch, "_RUNNER", str(archive))
        session = world.open().start(command, **options)
        points.off()
        state = records.read(str(world.session(session.id) / "state.json"))
        assert state["version"] == version
        return session

    return start


@pytest.mark.covers("UPG-01", "found:34")
@of_each_release
def test_upg_01_a_released_runner_serves_every_request_of_todays_host(
    world: World, start_old: Callable[..., Session], bystander: Bystanders, beside: Beside, release: Path
) -> None:
    session = start_old(world.probe("cat"), (), release / "runner.pyz", stdin="open", name="old")
    assert session.wait(match="ready", timeout=30).reason == "match"
    # A runner that knows how to has a title in the place of its command line.
    title = processes.command_line(session.runner_pid or 0)
    assert "runner.pyz" in title or title == f"hold: {session.id} old"
    session.watch("hel+o")
    assert session.send("hello\n").accepted == 6
    assert session.wait(match="hello", timeout=30).reason == "match"
    session.update(name="older", timeout=60)
    assert world.open().get("older").id == session.id
    assert session.send_signal("WINCH") == 1
    promised(world, session, bystander=bystander, beside=beside)
    session.close_stdin()
    assert session.wait(exit=True, timeout=30).reason == "exit"
    ended = promised(world, session, bystander=bystander, beside=beside)
    assert ended.exit is not None
    assert (ended.exit.cause, ended.exit.code) == ("exit", 0)


@pytest.mark.covers("UPG-01", "found:34")
@of_each_release
def test_upg_01_a_terminal_of_a_released_runner_is_attached_typed_to_drawn_and_stopped_by_todays_host(
    world: World, start_old: Callable[..., Session], bystander: Bystanders, release: Path
) -> None:
    session = start_old(["cat"], (), release / "runner.pyz", tty=True, size=(20, 60))
    session.submit("hello there")
    until(lambda: session.screen().text.count("hello there") == 2, what="the echo and the line")
    with session.attach() as attachment:
        viewer = Viewer(attachment)
        viewer.until(lambda: "hello there" in viewer.text, "the screen")
        attachment.send(b"typed\r")
        viewer.until(lambda: viewer.text.count("typed") == 2, "what was typed")
    session.resize(10, 40)
    assert session.refresh().size == [10, 40]
    session.keys("C-d")
    assert session.wait(exit=True, timeout=30).reason == "exit"
    deaf = start_old(
        world.probe("ignore", "HUP,TERM,INT", "say", "deaf", "forever"), (), release / "runner.pyz", tty=True
    )
    assert deaf.wait(match="deaf", timeout=30).reason == "match"
    stopped = deaf.stop(grace=0.2)
    assert (stopped.done, deaf.refresh().status) == (True, "killed")


# What a program of that release does with the sessions of today's runners, in its own words.
RELEASED_HOST = """
import json, sys
import holdfast
told = {"from": holdfast.__file__, "version": holdfast.__version__}
hf = holdfast.open()
pipes, terminal = hf.get(sys.argv[1]), hf.get(sys.argv[2])
told["states"] = sorted(each.state for each in hf.sessions() if each.id in sys.argv[1:])
told["read"] = pipes.read(0).text
told["send"] = pipes.send("hello\\n").accepted
told["wait"] = pipes.wait(match="hello", timeout=30).reason
pipes.update(name="renamed", timeout=600)
told["get"] = hf.get("renamed").id == pipes.id
told["signal"] = pipes.send_signal("WINCH")
pipes.watch("never printed")
terminal.submit("typed by it")
told["typed"] = terminal.wait(match="typed by it", timeout=30).reason
with terminal.attach() as attachment:
    for event in attachment:
        if type(event).__name__ == "Data" and b"typed by it" in event.data:
            break
    attachment.send(b"attached\\r")
    told["attached"] = terminal.wait(match="attached", timeout=30).reason
terminal.resize(10, 40)
told["size"] = terminal.refresh().size
told["screen"] = terminal.screen().text.splitlines()[0]
told["stop"] = terminal.stop(grace=0.2).done
pipes.close_stdin()
told["exit"] = pipes.wait(exit=True, timeout=30).reason
told["code"] = pipes.refresh().exit.code
own = hf.run("echo its own", wait=20)
told["own"] = [own.status, own.text()]
told["recover"] = len(hf.recover().live)
# On a busy machine also that it waited for input.
claimed = hf.signals("agent-7").claim().signals
told["signals"] = [each.session == pipes.id for each in claimed if each.variant == "lifecycle"]
print(json.dumps(told), flush=True)
"""


@pytest.mark.covers("UPG-01", "found:34")
@of_each_release
def test_upg_01_a_released_host_uses_sessions_of_todays_runner(
    world: World, bystander: Bystanders, beside: Beside, release: Path
) -> None:
    installed = unpacked(world, release)
    hf = world.open()
    pipes = hf.start(world.probe("cat"), stdin="open", owner="agent-7", notify="exit")
    terminal = hf.start(["cat"], tty=True, size=(20, 60))
    # Without the abilities that tests learned to switch off after it.
    code = (
        f"import os, sys; os.environ.pop('HOLDFAST_OFF', 0); sys.path.insert(0, {str(installed)!r})\n" + RELEASED_HOST
    )
    host = world.host(code, pipes.id, terminal.id)
    line = host.line(60)
    assert line, host.errors()
    did = json.loads(line)
    assert host.wait(30) == 0, host.errors()
    assert did.pop("from").startswith(str(installed))
    assert did.pop("version") == release.name
    assert did == {
        "states": ["running", "running"],
        "read": "ready\n",
        "send": 6,
        "wait": "match",
        "get": True,
        "signal": 1,
        "typed": "match",
        "attached": "match",
        "size": [10, 40],
        "screen": "typed by it",
        "stop": True,
        "exit": "exit",
        "code": 0,
        "own": ["completed", "its own\n"],
        "recover": 1,
        "signals": [True],
    }
    assert promised(world, pipes, bystander=bystander, beside=beside).status == "completed"
    assert terminal.refresh().status == "killed"
    assert next(each for each in hf.sessions(all=True) if each.id not in (pipes.id, terminal.id)).state


@pytest.mark.covers("UPG-01")
def test_upg_01_what_an_old_runner_does_not_know_is_unsupported_by_name_and_version(
    world: World, start_old: Callable[..., Session], bystander: Bystanders, beside: Beside
) -> None:
    session = start_old(world.probe("cat"), NOT_YET, stdin="open")
    acts: dict[str, Callable[[], object]] = {
        "update": lambda: session.update(owner="agent-7"),
        "send_signal": lambda: session.send_signal("TERM"),
        "close_stdin": session.close_stdin,
        "write": lambda: session.send("hello\n"),
        "wait": lambda: session.wait(exit=True, timeout=30),
    }
    for feature, act in acts.items():
        with pytest.raises(errors.Unsupported) as caught:
            act()
        assert (caught.value.feature, caught.value.version) == (feature, OLD_VERSION)
        assert feature in str(caught.value)
        assert OLD_VERSION in str(caught.value)
        is_typed(caught.value)
    # What needs no runner works as ever, and so does what every runner knows.
    assert session.refresh().state == "running"
    assert {each.id for each in world.open().sessions()} == {session.id, beside.session.id}
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=0).done
    assert promised(world, session, bystander=bystander, beside=beside).status == "killed"


class Caller:
    """A host of another release: it knows frames, and what it is told to say."""

    def __init__(self, session: Session, **greeting: object) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(5)
        self._socket.connect(session.endpoint or "")
        self._decoder = wire.Decoder()
        self._frames: list[Any] = []
        self.hello = self.next()
        self._socket.sendall(wire.control({"type": "hello", "protocol": 1, **greeting}))

    def __enter__(self) -> Caller:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def next(self) -> Any:
        while not self._frames:
            received = self._socket.recv(65536)
            assert received, "the runner hung up"
            self._frames += self._decoder.feed(received)
        return self._frames.pop(0)

    def ask(self, type: str, **fields: object) -> Any:
        self._socket.sendall(wire.control({"type": type, "id": 5, **fields}))
        return self.next()


@pytest.mark.covers("UPG-01")
@pytest.mark.parametrize(
    "greeting",
    [{}, {"protocol": 0}, {"protocol": 99, "features": ["telepathy"], "later": {"a": 1}}],
    ids=["bare", "older", "later"],
)
def test_upg_01_todays_runner_serves_a_host_of_another_release(
    world: World, bystander: Bystanders, beside: Beside, greeting: dict[str, object]
) -> None:
    session = world.open().start(world.probe("forever"))
    assert session.wait(match="ready", timeout=30).reason == "match"
    with Caller(session, **greeting) as old:
        assert old.hello["protocol"] == 1
        assert {"output", "stop", "wait", "update"} <= set(old.hello["features"])
        assert old.hello["identity"]["id"] == session.id
        reply = old.ask("status", later="field", and_another=[1])
        assert (reply["type"], reply["status"]["state"]) == ("reply", "running")
        refused = old.ask("reincarnate", into="a cat")
        assert (refused["type"], refused["code"]) == ("error", "unsupported")
        assert refused["facts"] == {"feature": "reincarnate", "version": old.hello["version"]}
        for type in ("attach", "resize", "restart"):
            assert old.ask(type)["code"] in ("not-a-tty", "unsupported")
        assert old.ask("ping")["type"] == "reply", "the connection is still good"
        assert session.refresh().state == "running"
        promised(world, session, bystander=bystander, beside=beside)
        stopped = old.ask("stop", grace=0, later="field")
        assert (stopped["type"], stopped["survivors"]) == ("reply", [])
    wait_gone(session.runner_pid or 0)
    assert promised(world, session, bystander=bystander, beside=beside).status == "killed"
