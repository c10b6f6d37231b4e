"""The places that other tests stand on: real, cut off at will, and gone afterwards."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from support import processes
from support.containers import Container, Podman, PodmanFailed, running_with
from support.places import NewContainer
from support.ssh_hosts import SshHost
from support.waiting import TooLate, until, wait_for_file, wait_gone
from support.world import World

_OLDEST_PYTHON = "import sys; assert sys.version_info >= (3, 9); print(sys.stdin.read().upper())"


def test_plain_podman_finds_the_container_and_passes_stdin(world: World, container: Container) -> None:
    argv = ["podman", "exec", "-i", container.name, "python3", "-c", _OLDEST_PYTHON]
    done = subprocess.run(argv, input="through\n", capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "THROUGH"
    assert container.place == f"podman:{container.name}"


def test_a_container_has_another_home_and_a_shell(world: World, container: Container) -> None:
    said = container.run("sh", "-c", 'echo $HOME; echo kept > "$HOME/file"; ls /')
    assert said.split()[0] == "/root"
    assert "work" not in said.split()
    assert (container.root / "root" / "file").read_text() == "kept\n"


def test_processes_inside_are_reported_by_both_pids(container: Container) -> None:
    container.run("sh", "-c", "sleep 600 </dev/null >/dev/null 2>&1 & echo $! > /tmp/pid")
    # Until it has become its program, the shell's child has the shell's command line.
    until(lambda: [each.command for each in container.processes()] == ["sleep 600"])
    (inside,) = container.processes()
    assert inside.pid == int((container.root / "tmp" / "pid").read_text())
    assert processes.command_line(inside.outer) == "sleep 600"
    container.run("sh", "-c", f"kill {inside.pid}")
    wait_gone(inside.outer)


def test_the_first_process_reaps_no_process_while_a_test_runs(container: Container) -> None:
    container.run("sh", "-c", "/bin/true </dev/null >/dev/null 2>&1 & exit 0")
    until(lambda: container.zombies() and not container.processes())
    assert [row.command for row in container.zombies()] == ["[true]"]


@pytest.mark.parametrize("_", [1, 2])
def test_the_shared_container_is_empty_for_each_test(container: Container, _: int) -> None:
    assert container.zombies() == []
    assert container.processes() == []
    assert list((container.root / "root").iterdir()) == []
    container.run("sh", "-c", "echo left > /root/file; mkdir -p /tmp/a/b; true & exit 0")


def test_the_shared_container_cannot_be_taken_from_the_others(container: Container) -> None:
    with pytest.raises(AssertionError, match="own_container"):
        container.stop()
    with pytest.raises(AssertionError, match="own_container"):
        container.remove()


def test_a_paused_container_does_not_move_until_it_is_unpaused(container: Container) -> None:
    container.run("sh", "-c", "mkfifo /tmp/gate; (read line < /tmp/gate; echo $line > /tmp/got) >/dev/null 2>&1 &")
    got = container.root / "tmp" / "got"
    container.pause()
    gate = os.open(container.root / "tmp" / "gate", os.O_RDWR)
    try:
        os.write(gate, b"moved\n")
        with pytest.raises(PodmanFailed, match=r"state improper|paused"):
            container.run("true")
        with pytest.raises(TooLate):
            wait_for_file(got, 0.3)
        container.unpause()
        until(lambda: got.exists() and got.read_text() == "moved\n", watch=got.parent)
    finally:
        os.close(gate)


def test_a_stopped_container_keeps_its_files(own_container: Container) -> None:
    own_container.run("sh", "-c", "echo kept > /root/file; sleep 600 </dev/null >/dev/null 2>&1 &")
    own_container.stop()
    assert own_container.processes() == []
    with pytest.raises(PodmanFailed):
        own_container.run("true")
    own_container.start()
    assert own_container.run("cat", "/root/file") == "kept\n"


def test_a_removed_container_leaves_nothing(own_container: Container) -> None:
    own_container.run("sh", "-c", "sleep 600 </dev/null >/dev/null 2>&1 &")
    own_container.remove()
    assert not own_container.root.exists()
    assert running_with(own_container.id) == []
    with pytest.raises(PodmanFailed, match="no such container"):
        own_container.run("true")


def test_a_container_without_python_has_a_shell(new_container: NewContainer) -> None:
    bare = new_container(python=False)
    assert bare.run("sh", "-c", "command -v python3 || echo none") == "none\n"
    assert bare.run("sh", "-c", "cat; ls /usr/bin", input="in\n").startswith("in\n")


def test_podman_of_our_own_leaves_nothing(podman: Podman) -> None:
    root = Path("/tmp") / f"hf-podman-test-{os.getpid()}"
    root.mkdir()
    second = Podman(root)
    second.container().remove()
    second.close()
    assert not root.exists()
    assert not [path for path in Path("/sys/fs/cgroup").glob(f"*/{root.name}") if path.exists()]


def test_login_is_to_another_home(world: World, ssh_host: SshHost) -> None:
    said = ssh_host.run('echo "$HOME"; pwd; echo "$XDG_RUNTIME_DIR"; echo "${SSH_ORIGINAL_COMMAND-unset}"; cat', "in\n")
    assert said.splitlines() == [str(ssh_host.home), str(ssh_host.home), str(ssh_host.runtime), "unset", "in"]
    assert str(world.root) not in ssh_host.run("env")
    assert ssh_host.place == f"ssh:{ssh_host.host}"


def test_a_cut_line_hangs_and_continues_when_mended(world: World, ssh_host: SshHost) -> None:
    talk = world.program([*ssh_host.argv, ssh_host.host, "echo ready; cat"])
    assert talk.line() == "ready"
    ssh_host.cable.cut()
    talk.send("held up\n")
    late = world.program([*ssh_host.argv, ssh_host.host, "echo late"])
    with pytest.raises(TooLate):
        talk.line(bound=0.3)
    assert late.returncode is None
    ssh_host.cable.mend()
    assert talk.line() == "held up"
    assert late.line() == "late"


def test_a_dropped_line_breaks_and_a_new_one_works(world: World, ssh_host: SshHost) -> None:
    talk = world.program([*ssh_host.argv, ssh_host.host, "echo ready; cat"])
    assert talk.line() == "ready"
    ssh_host.cable.drop()
    assert talk.wait() == 255
    assert ssh_host.run("echo new") == "new\n"


def test_no_port_is_open_at_a_host_that_is_down(world: World, ssh_host: SshHost) -> None:
    talk = world.program([*ssh_host.argv, ssh_host.host, "echo ready; cat"])
    assert talk.line() == "ready"
    ssh_host.cable.down()
    assert talk.wait() == 255
    with pytest.raises(AssertionError, match="Connection refused"):
        ssh_host.run("true")
    ssh_host.cable.mend()
    assert ssh_host.run("echo up") == "up\n"


@pytest.mark.parametrize("cut", [False, True])
def test_a_control_connection_ends_with_the_host(world: World, places: ExitStack, ssh_host: SshHost, cut: bool) -> None:
    path = world.root / "control"
    master = [*ssh_host.argv, "-o", "ControlMaster=yes", "-o", f"ControlPath={path}", "-N", "-f", ssh_host.host]
    subprocess.run(master, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, timeout=30, check=True)
    wait_for_file(path)
    (running,) = running_with(str(path))
    if cut:
        ssh_host.cable.cut()
    places.close()
    wait_gone(running.pid)
    assert not ssh_host.root.exists()
