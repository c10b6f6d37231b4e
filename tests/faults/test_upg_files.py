"""UPG-03 to UPG-06: what becomes of sessions when the package, the interpreter or the home is replaced."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import holdfast
from holdfast import errors
from holdfast.core.records import lock_is_free
from holdfast.places.kinds import runner_archive
from support import interpreters
from support.bystander import Bystanders
from support.faults import runner_of
from support.promised import Beside, home_is_usable, is_typed, left_alone, promised
from support.waiting import until, wait_gone
from support.world import World

if TYPE_CHECKING:
    from holdfast import Session

PACKAGE = Path(holdfast.__file__).parent

# Starts a probe for each word, prints the ids, and leaves.
STARTER = """
import sys, holdfast
assert holdfast.__file__.startswith(sys.argv[1]), holdfast.__file__
hf = holdfast.open()
for word in sys.argv[2].split(","):
    print(hf.start(sys.argv[3:] + [word], stdin="open").id, flush=True)
"""


class Installation:
    """The package and an interpreter in a directory of their own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.package = root / "site" / "holdfast"
        shutil.copytree(PACKAGE, self.package, ignore=shutil.ignore_patterns("__pycache__"))
        version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
        library = root / "lib" / version
        library.parent.mkdir()
        library.symlink_to(sysconfig.get_path("stdlib"))
        self.python = root / "bin" / version
        self.python.parent.mkdir()
        shutil.copy2(os.path.realpath(sys.executable), self.python)

    def start(self, world: World, words: str, command: list[str]) -> list[Session]:
        host = world.program(
            [str(self.python), "-u", "-c", STARTER, str(self.package), words, *command],
            env={"PYTHONPATH": str(self.root / "site"), "PYTHONDONTWRITEBYTECODE": "1"},
        )
        ids = [host.line() for _ in words.split(",")]
        assert host.wait() == 0, host.errors()
        return [world.open().get(id) for id in ids]

    def delete(self) -> None:
        shutil.rmtree(self.root)


@pytest.fixture
def installation(world: World) -> Installation:
    return Installation(world.root / "installed")


@pytest.mark.covers("UPG-03")
def test_upg_03_with_package_and_interpreter_deleted_every_request_works_to_the_exit_record(
    world: World, without: str, installation: Installation, bystander: Bystanders, beside: Beside
) -> None:
    command = [*world.probe()[:4]]
    talker, stopped, killed, ended = installation.start(world, "cat,forever,forever,cat", command)
    for session in (talker, stopped, killed, ended):
        assert os.readlink(f"/proc/{session.runner_pid}/exe") == str(installation.python)
    installation.delete()
    assert os.readlink(f"/proc/{talker.runner_pid}/exe").endswith(" (deleted)")

    assert talker.send("hello\n").accepted == 6
    assert talker.wait(match="^hello$", timeout=30).reason == "match"
    assert talker.wait(idle=0.05, timeout=30).reason == "idle"
    talker.update(name="web", labels={"a": "b"}, timeout=60, idle_timeout=60, ttl=60)
    assert world.open().get("web").labels == {"a": "b"}
    assert talker.send_signal("WINCH") == 1
    with pytest.raises(errors.Unsupported):
        request(world, talker, "newer-than-you")
    assert request(world, talker, "output", stream="stdout", since=0)["end"] == 12
    talker.close_stdin()
    assert talker.wait(exit=True, timeout=30).reason == "exit"
    assert stopped.stop(grace=1).done
    assert killed.stop(grace=0).done
    os.kill(runner_of(ended).pid, signal.SIGTERM)
    assert ended.wait(exit=True, timeout=30).reason == "exit"
    outcomes = []
    for session in (talker, stopped, killed, ended):
        wait_gone(session.runner_pid or 0)
        seen = promised(world, session, bystander=bystander, beside=beside)
        assert seen.exit is not None
        outcomes.append((seen.exit.cause, seen.exit.code, seen.exit.signal))
    assert outcomes == [
        ("exit", 0, None),
        ("stop", None, "SIGTERM"),
        ("stop", None, "SIGKILL"),
        ("stop", None, "SIGTERM"),
    ]


def request(world: World, session: Session, type: str, **fields: object) -> dict[str, object]:
    from holdfast.sessions.driver import drive

    return drive(world.open()._core.request(session.id, type, **fields))


@pytest.mark.covers("UPG-03")
def test_upg_03_a_runner_whose_code_is_gone_writes_its_whole_log_and_its_ending(
    world: World, installation: Installation, bystander: Bystanders, beside: Beside
) -> None:
    (session,) = installation.start(world, "cat", world.probe()[:4])
    installation.delete()
    session.send("x" * 70_000 + "\n")
    session.close_stdin()
    assert session.wait(exit=True, timeout=30).reason == "exit"
    assert len(session.text()) == len("ready\n") + 70_001
    promised(world, session, bystander=bystander, beside=beside)
    assert not (world.session(session.id) / "runner.log").exists()


def replace(installation: Installation) -> None:
    source = installation.package / "runner" / "status.py"
    source.write_text(source.read_text().replace('VERSION = "', 'VERSION = "9.'))


@pytest.mark.covers("UPG-04")
def test_upg_04_yesterdays_launcher_is_known_by_version_and_source_and_not_used(
    world: World, installation: Installation, bystander: Bystanders
) -> None:
    (old,) = installation.start(world, "forever", world.probe()[:4])
    (yesterday,) = world.launchers()
    assert runner_of(old).ppid == yesterday.pid
    replace(installation)
    (new,) = installation.start(world, "forever", world.probe()[:4])
    assert runner_of(new).ppid in {launcher.pid for launcher in world.launchers()} - {yesterday.pid}
    assert version_in(world, old) == holdfast.__version__
    assert version_in(world, new) == "9." + holdfast.__version__
    told = [finding.text for finding in world.open().doctor() if finding.check == "launcher"]
    assert sorted(text.partition(",")[0] for text in told) == [
        f"version {version} of {installation.package}/runner"
        for version in (holdfast.__version__, "9." + holdfast.__version__)
    ]
    assert all("not used from here" in text for text in told)
    for session in (old, new):
        assert session.stop(grace=0).done
    left_alone(bystander)


@pytest.mark.covers("UPG-04")
def test_upg_04_yesterdays_launcher_leaves_and_its_sessions_do_not_notice(
    world: World, installation: Installation, monkeypatch: pytest.MonkeyPatch, bystander: Bystanders
) -> None:
    monkeypatch.setenv("HOLDFAST_LAUNCHER_IDLE", "0.3s")
    (old,) = installation.start(world, "forever", world.probe()[:4])
    replace(installation)
    (new,) = installation.start(world, "forever", world.probe()[:4])
    until(lambda: not world.launchers(), watch=world.runtime, what="the end of both launchers")
    until(lambda: not list(world.runtime.glob("launcher-*")), watch=world.runtime, what="the end of their files")
    for session in (old, new):
        assert session.refresh().state == "running"
        assert session.stop(grace=0).done
    left_alone(bystander)


def version_in(world: World, session: Session) -> object:
    from holdfast.core import records

    return records.read(str(world.session(session.id) / "state.json"))["version"]


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "runner.pyz"
    path.write_bytes(runner_archive())
    return path


@pytest.mark.covers("UPG-05")
@pytest.mark.parametrize("version", sorted(interpreters.NEW_ENOUGH), ids=lambda version: f"3.{version[1]}")
def test_upg_05_the_runner_as_one_file_passes_its_self_test(
    world: World, archive: Path, version: tuple[int, int]
) -> None:
    done = self_test(interpreters.NEW_ENOUGH[version], archive)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"holdfast runner {holdfast.__version__} on Python 3.{version[1]}: fine\n"


@pytest.mark.covers("UPG-05")
@pytest.mark.parametrize("version", sorted(interpreters.TOO_OLD), ids=lambda version: f"3.{version[1]}")
def test_upg_05_the_runner_as_one_file_refuses_an_older_python_in_one_line(
    world: World, archive: Path, version: tuple[int, int]
) -> None:
    for path in (archive, PACKAGE / "runner" / "__main__.py"):
        done = self_test(interpreters.TOO_OLD[version], path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.count("\n") == 1
        assert "needs Python 3.9 or later" in done.stderr


def self_test(python: str, path: Path) -> subprocess.CompletedProcess[str]:
    argv = [python, "-I", "-S", "-B", str(path), "self-test"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.covers("UPG-05")
def test_upg_05_the_archive_is_the_same_for_the_same_source_and_needs_nothing_else() -> None:
    first = runner_archive()
    assert first == runner_archive()
    assert len(first) < 1 << 20


@pytest.mark.covers("UPG-06")
def test_upg_06_removing_everything_is_refused_while_anything_lives(
    world: World, without: str, bystander: Bystanders
) -> None:
    hf = world.open()
    done = hf.run("echo done")
    live = hf.start(world.probe("cat"), stdin="open")
    survived = hf.run("sleep 600 >&2 & echo left", wait=30)
    assert survived.exit is not None
    assert len(survived.exit.survivors) == 1
    with pytest.raises(errors.StillRunning) as caught:
        hf.collect(all=True)
    is_typed(caught.value)
    for session in (live, survived):
        assert session.id in str(caught.value)
        with pytest.raises(errors.StillRunning):
            session.remove()
    refused = world.hold("gc", "--all")
    assert refused.returncode == errors.StillRunning.exit_code
    assert live.id in refused.stderr
    for session in (done, live, survived):
        assert world.session(session.id).is_dir()
    assert live.send("still here\n").accepted == len("still here\n")
    assert live.wait(match="still here", timeout=30).reason == "match"
    # Ended by request first, everything may go.
    assert all(stopped.done for stopped in hf.stop_all([live.id, survived.id], grace=0))
    # The process of so brief a runner may have become a spare: its lock says that the session has nobody any more.
    spec = world.session(survived.id) / "spec.json"
    until(lambda: lock_is_free(str(spec)), what="the end of its runner")
    assert world.hold("gc", "--all").returncode == 0
    assert hf.sessions(all=True) == []
    assert list((world.home / "sessions").iterdir()) == []
    home_is_usable(hf)
    left_alone(bystander)
