"""The doctor looks at everything, mends what is safe to mend, and names the fix for the rest."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import socket
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast.sessions import doctor
from support import processes
from support.faults import halt, is_stopped, kill_launchers, kill_runner, sweep_up
from support.levers import namespace_argv
from support.points import Points
from support.promised import marked
from support.waiting import BOUND_S, until, wait_gone
from support.world import World

if TYPE_CHECKING:
    from holdfast import Holdfast
    from holdfast.model import Finding

pytestmark = pytest.mark.own_launcher

CHECKS = {
    "home",
    "runtime directory",
    "config",
    "free space",
    "locks",
    "records",
    "index",
    "sessions",
    "signals",
    "leftovers",
    "launcher",
    "pidfd",
    "subreaper",
    "memory limit",
    "children lists",
}


def about(hf: Holdfast, check: str, *, rebuild: bool = False) -> list[Finding]:
    return [finding for finding in hf.doctor(rebuild=rebuild) if finding.check == check]


def test_a_healthy_home_has_every_check_and_no_complaint(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_HELLO_S", BOUND_S)  # a launcher may be slow and well
    hf.run("true")
    found = hf.doctor()
    assert {finding.check for finding in found} == CHECKS
    # Whether a memory limit can be set is the machine's business, and said either way.
    assert [finding.to_json() for finding in found if finding.level != "ok" and finding.check != "memory limit"] == []
    assert not any(finding.repaired for finding in found)


def test_the_doctor_does_no_harm(world: World) -> None:
    hf = world.open()
    session = hf.start(world.probe("cat"), stdin="open")
    before = (session.pid, session.runner_pid, len(world.launchers()))
    for rebuild in (False, True, False):
        hf.doctor(rebuild=rebuild)
    assert session.send("hello\n").accepted == 6
    assert session.wait(match="hello", timeout=30).reason == "match"
    session.refresh()
    assert (session.pid, session.runner_pid, len(world.launchers())) == before
    assert session.stop(grace=0).done


def test_a_home_that_others_may_write_to_is_a_problem_with_its_fix(world: World) -> None:
    hf = world.open()
    world.home.chmod(0o777)
    (finding,) = about(hf, "home")
    assert (finding.level, finding.path) == ("problem", str(world.home))
    assert "chmod 700" in (finding.fix or "")
    world.home.chmod(0o700)
    assert about(hf, "home")[0].level == "ok"


def test_a_runtime_directory_that_became_a_symlink_is_a_problem(world: World) -> None:
    hf = world.open()
    aside = world.root / "aside"
    world.runtime.rename(aside)
    world.runtime.symlink_to(aside)
    (finding,) = about(hf, "runtime directory")
    assert finding.level == "problem"
    assert "symlink" in finding.text
    world.runtime.unlink()
    aside.rename(world.runtime)


def test_a_config_file_is_read_again_and_its_faults_are_named(world: World) -> None:
    path = world.root / "user" / ".config" / "holdfast" / "config.toml"
    path.parent.mkdir()
    path.write_text('[log]\nkeep = "3d"\n')
    hf = world.open()
    assert about(hf, "config")[0].to_json()["level"] == "ok"
    path.chmod(0o646)
    (finding,) = about(hf, "config")
    assert finding.level == "problem"
    assert "chmod go-w" in (finding.fix or "")
    path.chmod(0o600)
    path.write_text('[log]\nkepe = "3d"\n')
    (finding,) = about(hf, "config")
    assert finding.level == "problem"
    assert "config.toml:2" in finding.text
    assert "keep" in (finding.fix or "")


def test_free_space_below_the_floor_is_a_warning(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_LOG_FREE_FLOOR", "1024TiB")
    (finding,) = about(world.open(), "free space")
    assert finding.level == "warning"
    assert "hold gc" in (finding.fix or "")


def test_a_file_system_without_locks_is_a_problem(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    hf = world.open()
    monkeypatch.setattr(fcntl, "flock", lambda _fd, _how: None)
    finding = doctor._locking(hf._core)
    assert finding.level == "problem"
    assert "local file system" in (finding.fix or "")


def test_an_index_in_trouble_is_said_and_rebuilt_on_request(world: World) -> None:
    hf = world.open()
    done = hf.run("true")
    (world.home / "index.db").unlink()
    (world.home / "index.db").write_bytes(b"no database" * 1000)
    (finding,) = about(hf, "index")
    assert (finding.level, finding.repaired) == ("warning", False)
    assert finding.fix
    hf.doctor(rebuild=True)
    (finding,) = about(world.open(), "index", rebuild=True)
    assert (finding.level, finding.repaired) == ("ok", True)
    assert "1 sessions" in finding.text
    assert [session.id for session in hf.sessions(all=True)] == [done.id]


def test_stale_lost_and_unreachable_sessions_are_reported_with_what_to_do(world: World) -> None:
    hf = world.open()
    stale, lost, wedged, fine = (hf.start(world.probe("forever")) for _ in range(4))
    for session in (stale, lost, wedged, fine):
        assert session.wait(match="ready", timeout=30).reason == "match"
    for session in (stale, lost):
        kill_runner(session)
    for row in marked(lost.id):
        processes.end(row)
    halt(wedged.runner_pid or 0)
    try:
        for _ in range(2):
            reported = {str(finding.path): finding for finding in about(hf, "sessions")}
            assert {Path(path).name: finding.level for path, finding in reported.items() if path != "None"} == {
                stale.id: "problem",
                lost.id: "warning",
                wedged.id: "problem",
            }
            assert reported["None"].text.startswith("1 running")
            assert f"hold stop {stale.id}" in (reported[str(world.session(stale.id))].fix or "")
            assert f"hold restart {lost.id}" in (reported[str(world.session(lost.id))].fix or "")
            assert f"hold logs {wedged.id}" in (reported[str(world.session(wedged.id))].fix or "")
    finally:
        os.kill(wedged.runner_pid or 0, signal.SIGCONT)
    assert all(stopped.done for stopped in hf.stop_all([stale.id, wedged.id, fine.id], grace=0))
    sweep_up(world, hf)


def test_leftovers_are_reported_one_by_one_and_gc_takes_them(world: World) -> None:
    hf = world.open()
    half = world.session("b00000000")
    half.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(world.runtime / "b11111111.sock"))
    for path in (half, world.runtime / "b11111111.sock"):
        os.utime(path, (0, 0))
    reported = about(hf, "leftovers")
    assert {str(finding.path) for finding in reported} == {str(half), str(world.runtime / "b11111111.sock")}
    assert all("hold gc" in (finding.fix or "") for finding in reported)
    hf.collect()
    assert [finding.text for finding in about(hf, "leftovers")] == ["none"]


def test_a_launcher_of_another_context_is_reported_and_left_alone(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_HELLO_S", BOUND_S)  # a launcher may be slow and well
    monkeypatch.setenv("HOLDFAST_WALL_SHIFT_S", "1")
    world.open().run("true")
    monkeypatch.delenv("HOLDFAST_WALL_SHIFT_S")
    hf = world.open()
    hf.run("true")
    reported = about(hf, "launcher")
    assert sorted("not used from here" in finding.text for finding in reported) == [False, True]
    assert [finding.level for finding in reported] == ["ok", "ok"]
    assert len(world.launchers()) == 2


def test_a_launcher_that_does_not_answer_is_a_warning(world: World) -> None:
    hf = world.open()
    hf.run("true")
    (launcher,) = world.launchers()
    halt(launcher.pid)  # first, so that it forks no more spares
    # Not what one of them rehearses with.
    spares = [row for row in processes.descendants(launcher.pid) if row.comm == launcher.comm]
    for row in spares:
        processes.send(row, signal.SIGSTOP)
    for row in spares:
        # One that came back and was not wanted any more may be leaving.
        until(lambda row=row: is_stopped(row.pid) or processes.is_gone(row.pid, row.start))  # type: ignore[misc]
    try:
        (finding,) = about(hf, "launcher")
    finally:
        for row in (launcher, *spares):
            processes.send(row, signal.SIGCONT)
    assert finding.level == "warning"
    assert "did not answer" in finding.text


def test_a_killed_launcher_is_reported_until_gc_sweeps_it(world: World) -> None:
    hf = world.open()
    hf.run("true")
    (launcher,) = world.launchers()
    halt(launcher.pid)  # first, so that it forks no more spares
    spares = processes.descendants(launcher.pid)
    kill_launchers(world)
    for row in spares:
        wait_gone(row.pid)
    # Its spares took the socket along; this is what is left when they were killed too.
    (lock,) = world.runtime.glob("launcher-*.lock")
    with socket.socket(socket.AF_UNIX) as dead:
        path = lock.with_suffix(".sock")
        path.unlink(missing_ok=True)
        dead.bind(str(path))
    (finding,) = about(hf, "launcher")
    assert (finding.level, finding.path) == ("warning", str(path))
    assert str(path) in hf.collect().swept
    assert list(world.runtime.glob("launcher-*")) == []
    assert about(hf, "launcher")[0].text.startswith("none is running")


def test_abilities_that_are_missing_are_named_with_what_follows(world: World, points: Points) -> None:
    points.off("pidfd", "subreaper", "cgroup")
    found = {finding.check: finding for finding in world.open().doctor()}
    for check in ("pidfd", "subreaper", "memory limit"):
        assert found[check].level == "warning"
        assert "switched off" in found[check].text
        assert found[check].fix


@pytest.mark.needs("namespaces")
def test_seen_from_another_namespace_a_session_is_reported_as_not_verifiable(world: World) -> None:
    hf = world.open()
    session = hf.start(world.probe("forever"))
    assert session.wait(match="ready", timeout=30).reason == "match"
    kill_runner(session)
    code = (
        "import holdfast\nfor each in holdfast.open().doctor(): print(each.check, each.level, each.text)\nprint('end')"
    )
    host = world.host(code, prefix=namespace_argv("--pid", "--fork", "--mount-proc"))
    reported = [line for line in host.lines_until("end") if line.startswith("sessions problem")]
    assert len(reported) == 1
    assert f"{session.id} is unreachable" in reported[0]
    assert "cannot be verified from this pid namespace" in reported[0]
    assert session.stop(grace=0).done
    sweep_up(world, hf)


@pytest.mark.covers("found:22")
@pytest.mark.root
def test_a_read_only_home_is_reported_as_such_and_fails(world: World) -> None:
    world.open().run("echo hi")
    mounted = f"mount --bind {world.home} {world.home} && mount -o remount,ro,bind {world.home}"
    argv = ["unshare", "--mount", "sh", "-c", f'{mounted} && exec "$@"', "sh", *world.hold_argv("doctor", "--json")]
    reported = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert reported.returncode == 1, reported.stderr
    home = next(finding for finding in json.loads(reported.stdout) if finding["check"] == "home")
    assert home["level"] == "problem"
    assert "Read-only file system" in home["text"]
    assert home["fix"]
    assert world.hold("doctor").returncode == 0
    assert not list(world.home.rglob(".doctor-*"))


@pytest.mark.covers("found:22")
def test_after_ordinary_use_nothing_is_found(world: World) -> None:
    world.hold("run", "--", "echo", "hi", check=True)
    for name, words in {"web": ["sh", "-c", "echo hi; sleep 100"], "t": ["cat"]}.items():
        tty = ["--tty"] if name == "t" else []
        world.hold("start", "--name", name, "--owner", "me", "--watch", "hi", *tty, "--", *words, check=True)
    world.hold("run", "--", "sh", "-c", "sleep 100 </dev/null >/dev/null 2>&1 & echo left", check=True)
    world.hold("signals")
    world.hold("stop", "web", check=True)
    world.hold("restart", "web", check=True)
    world.hold("stop", "--all", check=True)
    world.hold("rm", "web", "t", check=True)
    reported = world.hold("doctor", "--json", check=True)
    # What the machine itself lacks is no matter of use.
    abilities = {"pidfd", "subreaper", "memory limit", "children lists", "free space"}
    assert [
        each for each in json.loads(reported.stdout) if each["level"] != "ok" and each["check"] not in abilities
    ] == []


@pytest.mark.covers("found:22")
def test_a_directory_without_a_spec_is_found_and_quarantined_and_gc_does_not_call_it_missing(world: World) -> None:
    hf = world.open()
    done = hf.run("echo hi")
    spec = world.session(done.id) / "spec.json"
    spec.unlink()
    collected = world.hold("gc")
    assert f"{done.id}: has no spec.json; `hold doctor` moves it to quarantine" in collected.stderr
    assert "missing" not in collected.stdout + collected.stderr
    assert "no session" not in collected.stderr
    reported = world.hold("doctor")
    assert reported.returncode == 0, reported.stdout
    assert str(spec) in reported.stdout
    [aside] = (world.home / "quarantine").iterdir()
    assert aside.name.startswith(done.id)
    assert (aside / "exit.json").exists()
    assert done.id not in world.hold("gc").stderr
