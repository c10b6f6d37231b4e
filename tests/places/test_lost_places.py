"""Places that cannot be reached, hang, vanish or never existed: each is reported as such."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from holdfast import errors
from support import signal_file
from support.own_time import QuietTime
from support.places import Away, deputies, kill_deputies, runners_there
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.containers import Container
    from support.places import NewContainer
    from support.ssh_hosts import SshHost
    from support.world import World

OWNER = "agent-7"


@pytest.fixture
def host(world: World, monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """A host with short timeouts."""
    monkeypatch.setenv("HOLDFAST_HOSTS_SWEEP_TIMEOUT", "300ms")
    monkeypatch.setenv("HOLDFAST_HOSTS_REPLY_TIMEOUT", "500ms")
    return world.open()


def nothing_is_left(world: World) -> bool:
    sessions = world.home / "sessions"
    return not deputies(world) and not (sessions.exists() and list(sessions.iterdir()))


def test_a_link_that_drops_is_opened_again_by_itself(remote: Away, host: Holdfast) -> None:
    gate = remote.gate()
    session = host.start(remote.probe("quiet", "say", "one", "await", gate, "say", "two"), place=remote.place)
    session.wait(match="one", timeout=30)
    remote.cable.drop()
    gate.release()
    copy = host.home.session(session.id)
    until(lambda: os.path.exists(f"{copy}/exit.json"), what="the end, with nobody asking for it")
    assert host.get(session.id).text() == "one\ntwo\n"


def test_a_cable_that_is_cut_makes_it_unreachable_until_it_is_mended(remote: Away, host: Holdfast) -> None:
    words = ["quiet", "say", "one", "read-line", "forever"]
    session = host.start(remote.probe(*words), stdin="open", place=remote.place)
    session.wait(match="one", timeout=30)
    beside = host.start(["sleep", "600"])
    remote.cable.cut()
    passed = QuietTime()
    assert host.get(session.id).state == "unreachable"
    # One that can be reached may be late for a host that waits for nobody for long.
    until(lambda: host.get(beside.id).state == "running")
    expected = {session.id: "unreachable", beside.id: "running"}
    until(lambda: {each.id: each.state for each in host.sessions()} == expected)
    with pytest.raises(errors.Unreachable):
        session.send("in vain\n")
    assert session.text() == "one\n", "what came before can be read"
    assert passed.seconds() < 10
    remote.cable.mend()
    until(lambda: host.get(session.id).state == "running")
    session.send("again\n")
    assert session.wait(match="got again", timeout=30).reason == "match"
    for each in (session, beside):
        each.stop(grace=0)


def test_a_machine_that_is_down_makes_it_unreachable_until_it_is_up(remote: Away, host: Holdfast) -> None:
    session = host.start(remote.probe("forever"), place=remote.place)
    session.wait(match="ready", timeout=30)
    remote.cable.down()
    until(lambda: host.get(session.id).state == "unreachable")
    with pytest.raises(errors.PlaceUnreachable):
        host.run("true", place=remote.place)
    remote.cable.mend()
    until(lambda: host.get(session.id).state == "running")
    session.stop(grace=0)


def test_a_paused_container_makes_it_unreachable_until_it_continues(
    host: Holdfast, in_podman: Away, container: Container
) -> None:
    session = host.start(in_podman.probe("forever"), place=in_podman.place)
    session.wait(match="ready", timeout=30)
    container.pause()
    assert host.get(session.id).state == "unreachable"
    container.unpause()
    until(lambda: host.get(session.id).state == "running")
    session.stop(grace=0)


def away_in(container: Container, world: World) -> Away:
    root = container.root
    return Away(container.place, world, home=root / "root", work=root / "tmp", work_there="/tmp", home_there="/root")


@pytest.mark.parametrize("watched", [True, False])
def test_a_container_that_is_removed_takes_its_sessions(
    host: Holdfast, own_container: Container, world: World, watched: bool
) -> None:
    away = away_in(own_container, world)
    session = host.start(away.probe("quiet", "say", "so far", "forever"), owner=OWNER, place=away.place)
    session.wait(match="so far", timeout=30)
    if not watched:
        kill_deputies(world)
    own_container.remove()
    if not watched:
        host.get(session.id)
    until(lambda: not deputies(world))
    found = host.get(session.id)
    assert (found.state, found.text()) == ("lost", "so far\n")
    assert found.exit is not None
    assert (found.exit.code, found.exit.cause) == (None, "lost")
    (signal,) = host.signals(OWNER).claim()
    assert signal.fields["phase"] == "ended"
    assert len(signal_file.endings(world, session.id)) == 1
    assert session.wait(timeout=30).reason == "lost"


def test_a_container_that_was_stopped_and_started_has_lost_its_sessions(
    host: Holdfast, own_container: Container, world: World
) -> None:
    away = away_in(own_container, world)
    session = host.start(away.probe("quiet", "say", "so far", "forever"), place=away.place)
    session.wait(match="so far", timeout=30)
    own_container.stop()
    until(lambda: host.get(session.id).state == "unreachable")
    own_container.start()
    until(lambda: host.get(session.id).state == "lost")
    assert session.text() == "so far\n"
    until(lambda: away.sessions() == [])


def test_a_place_without_python_is_reported_as_such(host: Holdfast, new_container: NewContainer, world: World) -> None:
    bare = new_container(python=False)
    with pytest.raises(errors.PlaceNoPython, match="python3"):
        host.run("true", place=bare.place)
    until(lambda: nothing_is_left(world))


def test_an_unknown_container_is_gone(host: Holdfast, container: Container, world: World) -> None:
    with pytest.raises(errors.PlaceGone, match="no such container"):
        host.run("true", place="podman:never-there")
    until(lambda: nothing_is_left(world))


def test_an_unknown_host_or_a_refused_port_is_unreachable(
    over_ssh: Away, host: Holdfast, ssh_host: SshHost, world: World
) -> None:
    ssh_host.cable.down()
    for place in ("ssh:no-such-host.invalid", over_ssh.place):
        with pytest.raises(errors.PlaceUnreachable):
            host.run("true", place=place)
        until(lambda: nothing_is_left(world))


def test_a_program_that_is_not_installed_is_named(
    host: Holdfast, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_PLACES_DOCKER", "no-such-docker")
    with world.open() as hf, pytest.raises(errors.PlaceUnreachable, match="no-such-docker"):
        hf.run("true", place="docker:any")
    until(lambda: nothing_is_left(world))


def test_a_home_there_that_cannot_be_written_refuses_the_start(remote: Away, host: Holdfast, world: World) -> None:
    remote.state.mkdir(parents=True, exist_ok=True)
    (remote.state / "guests").write_text("in the way")
    with pytest.raises(errors.PlaceUnreachable, match="not a directory"):
        host.run("true", place=remote.place)
    (remote.state / "guests").unlink()
    if (remote.state / "runner").exists():
        (remote.state / "runner").rename(remote.state / "kept")
    (remote.state / "runner").write_text("in the way")
    with pytest.raises(errors.PlaceUnreachable, match="Not a directory"):
        host.run("true", place=remote.place)
    (remote.state / "runner").unlink()
    until(lambda: nothing_is_left(world))


def test_a_place_that_shares_our_home_is_one_like_any_other(
    over_ssh: Away, ssh_host: SshHost, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_HOME", str(over_ssh.state))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(ssh_host.runtime))
    with world.open() as hf:
        session = hf.start(over_ssh.probe("quiet", "say", "one", "read-line"), stdin="open", place=over_ssh.place)
        session.wait(match="one", timeout=30)
        assert [each.id for each in hf.sessions()] == [session.id]
        session.send("two\n")
        assert session.wait(timeout=30).reason == "exit"
        assert session.text() == "one\ngot two\n"


def test_a_runner_that_cannot_be_started_from_outside_leaves_nothing(
    in_podman: Away, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'case " $* " in *" exec -d "*) echo no more processes >&2; exit 125;; esac; exec podman "$@"'
    monkeypatch.setenv("HOLDFAST_PLACES_PODMAN", shlex.join(["sh", "-c", script, "podman"]))
    with world.open() as hf, pytest.raises(errors.PlaceUnreachable, match="no more processes"):
        hf.run("true", place=in_podman.place)
    until(lambda: nothing_is_left(world))


def test_what_ended_there_long_ago_is_forgotten(remote: Away, world: World) -> None:
    old, young = remote.guests / "bold", remote.guests / "byoung"
    for directory in (old, young):
        directory.mkdir(parents=True)
        for name in ("spec.json", "exit.json"):
            (directory / name).write_text("{}")
    os.utime(old / "exit.json", (0, 0))
    for directory in (remote.guests.parent, remote.guests):
        directory.chmod(0o700)
    world.open().run("true", place=remote.place)
    assert "byoung" in remote.sessions()
    assert "bold" not in remote.sessions()
    shutil.rmtree(young)


def test_a_login_that_talks_first_is_no_trouble(
    over_ssh: Away, ssh_host: SshHost, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = f"sh -c 'echo Welcome; head -c 100000 /dev/zero; echo; exec \"$@\"' noisy {shlex.join(ssh_host.argv)}"
    monkeypatch.setenv("HOLDFAST_PLACES_SSH", noisy)
    assert world.open().run("echo hi", place=over_ssh.place).text() == "hi\n"


def test_a_runner_killed_there_leaves_a_stale_session_that_can_be_ended(
    remote: Away, host: Holdfast, world: World
) -> None:
    words = ["ignore", "TERM", "fork", "{", "setsid", "say", "deep", "forever", "}", "forever"]
    session = host.start(remote.probe(*words), owner=OWNER, place=remote.place)
    session.wait(match="deep", timeout=30)
    for pid in runners_there(remote, session.id):
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)
    until(lambda: not deputies(world), what="the deputy's end")
    assert host.get(session.id).state == "stale"
    with host.signals(OWNER).claim() as batch:
        assert [each.variant for each in batch] == ["health"]
    assert host.get(session.id).state == "stale"
    stopped = session.stop(grace=0.1)
    assert (len(stopped.found), stopped.survivors) == (2, [])
    found = host.get(session.id)
    assert (found.state, found.text()) == ("lost", "ready\ndeep\n")
    assert found.exit is not None
    assert (found.exit.cause, found.exit.stopped, found.status) == ("stop", "kill", "killed")
    (ended,) = host.signals(OWNER).claim()
    assert (ended.fields["phase"], ended.fields["stopped"]) == ("ended", "kill")
    assert len(signal_file.endings(world, session.id)) == 1


def test_what_lives_on_in_a_container_without_its_runner_is_ended_there(
    host: Holdfast, own_container: Container, world: World
) -> None:
    away = away_in(own_container, world)
    session = host.start(away.probe("ignore", "TERM", "forever"), place=away.place)
    session.wait(match="ready", timeout=30)
    for pid in runners_there(away, session.id):
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)
    until(lambda: not deputies(world), what="the deputy's end")
    assert host.get(session.id).state == "stale"
    assert session.stop(grace=0.1).survivors == []
    assert (host.get(session.id).state, host.get(session.id).status) == ("lost", "killed")
    until(lambda: own_container.processes() == [])
