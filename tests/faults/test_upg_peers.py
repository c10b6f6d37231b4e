"""UPG-01: runners and hosts of different releases understand each other, or say what they lack."""

from __future__ import annotations

import io
import socket
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from holdfast import errors, wire
from holdfast.host import launch
from holdfast.places.bundle import runner_archive
from holdfast.runner import records
from support.bystander import Bystanders
from support.points import Points
from support.promised import Beside, is_typed, promised
from support.waiting import wait_gone
from support.world import World

if TYPE_CHECKING:
    from holdfast import Session

OLD_VERSION = "0.0.9"
# What that release did not know yet; ending a session it always knew.
NOT_YET = ("update", "wait", "send_signal", "close_stdin", "write", "output")


def old_runner(path: Path, without: tuple[str, ...]) -> None:
    """Today's runner with its past taken for real: fewer requests, fewer parts of its identity, another number."""
    packed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(runner_archive())) as today, zipfile.ZipFile(packed, "w") as old:
        for name in today.namelist():
            source = today.read(name).decode()
            if name.endswith("runner/requests.py"):
                for feature in without:
                    assert f'    "{feature}": _' in source
                    lines = source.splitlines(keepends=True)
                    source = "".join(line for line in lines if not line.startswith(f'    "{feature}": _'))
            if name.endswith("runner/tree.py"):
                assert ', "timens": time_namespace()' in source
                source = source.replace(', "timens": time_namespace()', "")
            if name.endswith("runner/telling.py"):
                assert 'VERSION = "' in source
                for feature in without:
                    source = source.replace(f'"{feature}", ', "").replace(f', "{feature}")', ")")
                lines = source.splitlines(keepends=True)
                lines = [f'VERSION = "{OLD_VERSION}"\n' if line.startswith("VERSION") else line for line in lines]
                source = "".join(lines)
            old.writestr(name, source)
    path.write_bytes(packed.getvalue())


# The runners of every release, and one that is older than all of them.
FROZEN = sorted(Path(__file__).resolve().parents[1].glob("frozen/*/runner.pyz"))


@pytest.fixture
def start_old(world: World, points: Points, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Session]:
    """Start a session under a runner of another release; hosts that come later are today's."""

    def start(command: list[str], without: tuple[str, ...], archive: Path | None = None, **options: Any) -> Session:
        version = OLD_VERSION if archive is None else archive.parent.name
        if archive is None:
            archive = world.root / "old-runner.pyz"
            old_runner(archive, without)
        points.off("launcher")
        monkeypatch.setattr(launch, "_RUNNER", str(archive))
        session = world.open().start(command, **options)
        points.off()
        state = records.read(str(world.session(session.id) / "state.json"))
        assert state["version"] == version
        return session

    return start


@pytest.mark.covers("UPG-01")
@pytest.mark.parametrize("archive", [None, *FROZEN], ids=lambda path: path.parent.name if path else OLD_VERSION)
def test_upg_01_an_old_runner_serves_what_it_knows_to_todays_host(
    world: World,
    start_old: Callable[..., Session],
    bystander: Bystanders,
    beside: Beside,
    archive: Path | None,
) -> None:
    session = start_old(world.probe("cat"), (), archive, stdin="open", name="old")
    assert session.wait(match="ready", timeout=5).reason == "match"
    assert session.send("hello\n").accepted == 6
    assert session.wait(match="hello", timeout=5).reason == "match"
    session.update(name="older", timeout=60)
    assert world.open().get("older").id == session.id
    assert session.send_signal("WINCH") == 1
    promised(world, session, bystander=bystander, beside=beside)
    session.close_stdin()
    assert session.wait(exit=True, timeout=5).reason == "exit"
    ended = promised(world, session, bystander=bystander, beside=beside)
    assert ended.exit is not None
    assert (ended.exit.cause, ended.exit.code) == ("exit", 0)


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
        "wait": lambda: session.wait(exit=True, timeout=5),
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
    assert session.wait(match="ready", timeout=5).reason == "match"
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
