"""Containers for tests: podman with its own storage, state and control groups, so that no others are touched."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support import processes
from support.processes import Process
from support.waiting import TooLate, until

# The container is removed when podman says so; its monitor and the cleaning that this one starts leave a moment later.
_LEAVING_BOUND_S = 60.0
# The census reports what a test leaves running in the shared container; we only give it time to leave.
_REST_BOUND_S = 30.0
_COMMAND_BOUND_S = 60.0

# The first process of a container. It reaps no process while a test runs, like `sleep infinity`, and all of them
# between tests (after SIGUSR1, until SIGUSR2): the census would count the zombies of one test in the next.
_FIRST_PROCESS = """
import os, signal
signals = {signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
reaping = False
while True:
    got = signal.sigwait(signals)
    reaping = got == signal.SIGUSR1 or (reaping and got == signal.SIGCHLD)
    try:
        while reaping and os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass
"""

_STORAGE = """
[storage]
driver = "vfs"
graphroot = "{root}/storage"
runroot = "{root}/run"
"""

# No logs of events, no network, and limits that any machine can give: podman would ask for a million descriptors.
_ENGINE = """
[containers]
netns = "none"
cgroups = "no-conmon"
log_driver = "none"
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]

[engine]
runtime = "{runtime}"
cgroup_manager = "cgroupfs"
events_logger = "none"
lock_type = "file"
static_dir = "{root}/static"
tmp_dir = "{root}/state"
volume_path = "{root}/volumes"

[engine.runtimes]
{runtime} = ["{root}/{runtime}"]

[network]
network_config_dir = "{root}/network"
"""

# The plain `podman exec` has no option for where the runtime keeps its state.
_RUNTIME = """#!/bin/sh
exec {runtime} --root {root}/runtime "$@"
"""

_FOLDERS = ("dev", "etc", "home", "opt", "proc", "root", "run", "sys", "tmp", "usr", "var/tmp")
_LINKS = ("bin", "lib", "lib32", "lib64", "libx32", "sbin")
# Where a command inside may have written; podman mounts one file below run.
_WRITTEN = ("home", "root", "run", "tmp", "var/tmp")
_MOUNTED = (".containerenv",)

# All that a container without Python has.
_FEW_PROGRAMS = (
    *("sh", "cat", "chmod", "cp", "dd", "echo", "env", "false", "head", "id", "ln", "ls", "mkdir", "mv", "printf"),
    *("pwd", "readlink", "rm", "sleep", "sort", "tail", "test", "timeout", "touch", "tr", "true", "uname", "wc"),
)


def missing() -> str | None:
    """Why this machine cannot run our containers; None when it can."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("podman") is None:
        return "no podman"
    if runtime() is None:
        return "neither runc nor crun"
    if not Path("/bin").is_symlink():
        return "/bin is not a part of /usr, which containers share"
    if not any(Path(folder, "python3").exists() for folder in ("/usr/local/bin", "/usr/bin")):
        return "no python3 below /usr, which containers share"
    return None


def runtime() -> str | None:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return shutil.which("runc", path=path) or shutil.which("crun", path=path)


class Inside(NamedTuple):
    """A process in a container: its pid there, its pid here."""

    pid: int
    outer: int
    command: str


class Podman:
    """One directory that holds everything podman knows; plain `podman` finds it through `environment`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.group = f"/{root.name}"
        self.environment = {
            "CONTAINERS_STORAGE_CONF": str(root / "storage.conf"),
            "CONTAINERS_CONF": str(root / "containers.conf"),
        }
        path = runtime()
        assert path is not None
        name = Path(path).name
        (root / "storage.conf").write_text(_STORAGE.format(root=root))
        (root / "containers.conf").write_text(_ENGINE.format(root=root, runtime=name))
        (root / name).write_text(_RUNTIME.format(root=root, runtime=path))
        (root / name).chmod(0o700)

    def __call__(self, *args: str, input: str | None = None) -> str:
        """Run one podman command to its end; its stdout."""
        done = subprocess.run(
            ["podman", *args],
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=_COMMAND_BOUND_S,
            env={**os.environ, **self.environment},
            check=False,
        )
        if done.returncode != 0:
            raise PodmanFailed(args, done.returncode, done.stderr)
        return done.stdout

    def container(self, *, python: bool = True) -> Container:
        """A new running container."""
        return Container(self, python=python)

    def close(self) -> None:
        """Take the directory away, and prove that nothing of it is left anywhere."""
        with contextlib.suppress(TooLate):
            until(self._is_gone, _LEAVING_BOUND_S, what="the end of what podman runs")
        left = [f"mount {point}" for point in mount_points() if point.startswith(f"{self.root}/")]
        left += [f"process {processes.describe(row)}" for row in running_with(str(self.root))]
        left += [f"control group {directory}" for directory in self._groups()]
        if left:
            raise AssertionError("podman left behind: " + ", ".join(left))
        shutil.rmtree(self.root)

    def _is_gone(self) -> bool:
        """Whether its last processes have left their control groups, which are removed then."""
        processes.reap_adopted()
        for directory in self._groups():
            with contextlib.suppress(OSError):
                directory.rmdir()
        return not running_with(str(self.root)) and not self._groups()

    def _groups(self) -> list[Path]:
        """Its directories in every hierarchy of control groups, the innermost first."""
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            points = {line.split()[4] for line in file if " - cgroup" in line}
        parents = [Path(point + self.group) for point in points]
        found = [Path(directory) for parent in parents for directory, _, _ in os.walk(parent, topdown=False)]
        return [directory for directory in found if directory.is_dir()]


class PodmanFailed(AssertionError):
    def __init__(self, args: tuple[str, ...], code: int, said: str) -> None:
        super().__init__(f"podman {' '.join(args)} ended with {code}: {said.strip()}")


class Container:
    """A running container whose /usr is this machine's, read-only, and whose other directories are its own.

    `root` is its file system as seen from here. Without `python` it has a few programs of its own in place of /usr.
    """

    def __init__(self, podman: Podman, *, python: bool) -> None:
        self._podman = podman
        self.environment = podman.environment
        self.name = f"hf-{secrets.token_hex(4)}"
        self.place = f"podman:{self.name}"
        self.root = podman.root / self.name
        # A restarted container has other processes than those that the census counted before the test.
        self.is_shared = False
        self._paused = False
        lay_out(self.root)
        if python:
            mounts = [f"--volume={path}:{path}:ro" for path in ("/usr", "/etc/alternatives") if os.path.isdir(path)]
            command = ["python3", "-I", "-S", "-c", _FIRST_PROCESS]
        else:
            copy_programs(self.root)
            mounts = []
            command = ["sleep", "infinity"]
        start = ["run", "--detach", f"--name={self.name}", f"--cgroup-parent={podman.group}", *mounts]
        try:
            self.id = podman(*start, "--rootfs", str(self.root), *command).strip()
        except PodmanFailed:
            with contextlib.suppress(PodmanFailed):
                podman("rm", "--force", "--time=0", self.name)
            raise
        self._first = self._find_first()

    def run(self, *argv: str, input: str | None = None) -> str:
        """Run a command inside to its end; its stdout. Fails when the command does."""
        return self._podman("exec", "--interactive", self.name, *argv, input=input)

    def processes(self) -> list[Inside]:
        """What runs inside, but for the first process and for zombies."""
        return [self._inside(row) for row in self._others() if row.state not in "ZX"]

    def zombies(self) -> list[Inside]:
        """Processes inside that have ended and were not reaped."""
        return [self._inside(row) for row in self._others() if row.state == "Z"]

    def pause(self) -> None:
        self._podman("pause", self.name)
        self._paused = True

    def unpause(self) -> None:
        self._podman("unpause", self.name)
        self._paused = False

    def stop(self) -> None:
        """Everything inside is killed; the files stay."""
        self._refuse_if_shared()
        self._podman("stop", "--time=0", self.name)
        self._wait_cleaned()

    def start(self) -> None:
        self._podman("start", self.name)
        self._first = self._find_first()

    def remove(self) -> None:
        """Away with it, whatever state it is in, and prove that nothing of it is left. Twice is once."""
        self._refuse_if_shared()
        # podman's own cleanup of a stopped container or exec can race with `rm` and leave files behind: let it
        # finish first. Those files are podman's and go with its directory; mounts would outlive it.
        if self._paused:
            self.unpause()
        until(self._is_stopped, _LEAVING_BOUND_S, what=f"the stop of container {self.name}")
        self._wait_cleaned()
        self._podman("rm", "--force", "--ignore", "--time=0", self.name)
        self._wait_cleaned()
        left = [f"mount {point}" for point in mount_points() if self.id in point or point.startswith(f"{self.root}/")]
        if left:
            raise AssertionError(f"container {self.name} left behind: " + ", ".join(left))
        if self.root.exists():
            shutil.rmtree(self.root)

    def wake(self) -> None:
        """Before a test: from now on the first process reaps no process."""
        processes.send(self._first, signal.SIGUSR2)

    def rest(self) -> None:
        """After a test: no process inside and no file of the test."""
        if self._paused:
            self.unpause()
        if processes.is_gone(self._first.pid, self._first.start):
            raise AssertionError(f"container {self.name} ended during the test: take `own_container` for that")
        processes.send(self._first, signal.SIGUSR1)
        with contextlib.suppress(TooLate):
            until(lambda: not self._others(), _REST_BOUND_S, what=f"an empty container {self.name}")
        for folder in _WRITTEN:
            for path in (self.root / folder).iterdir():
                if path.name not in _MOUNTED:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()

    def _refuse_if_shared(self) -> None:
        if self.is_shared:
            raise AssertionError("other tests use this container too: take `own_container`")

    def _find_first(self) -> Process:
        row = processes.look(int(self._podman("container", "inspect", "--format={{.State.Pid}}", self.name)))
        assert row is not None, f"container {self.name} ended at once"
        return row

    def _others(self) -> list[Process]:
        here = pid_namespace(self._first.pid)
        rows = processes.table().values()
        return [row for row in rows if row.pid != self._first.pid and here and pid_namespace(row.pid) == here]

    def _inside(self, row: Process) -> Inside:
        return Inside(inner_pid(row.pid), row.pid, processes.command_line(row.pid) or f"[{row.comm}]")

    def _is_stopped(self) -> bool:
        """podman refuses while its cleanup of an exec is under way."""
        try:
            self._podman("stop", "--ignore", "--time=0", self.name)
        except PodmanFailed as problem:
            if "active exec sessions" not in str(problem):
                raise
            return False
        return True

    def _wait_cleaned(self) -> None:
        def is_clean() -> bool:
            processes.reap_adopted()
            return not running_with(self.id)

        until(is_clean, _LEAVING_BOUND_S, what=f"the end of what podman runs for container {self.name}")


def lay_out(root: Path) -> None:
    """The directories of a machine with one user."""
    for folder in _FOLDERS:
        (root / folder).mkdir(parents=True)
    for folder in ("tmp", "var/tmp"):
        (root / folder).chmod(0o1777)
    (root / "root").chmod(0o700)
    for name in _LINKS:
        if Path("/", name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
    (root / "etc" / "group").write_text("root:x:0:\n")
    cache = Path("/etc/ld.so.cache")
    if cache.exists():
        shutil.copy(cache, root / "etc")


def copy_programs(root: Path) -> None:
    """A few programs and the libraries that they name."""
    programs = [path for path in map(shutil.which, _FEW_PROGRAMS) if path is not None]
    listed = subprocess.run(["ldd", *programs], capture_output=True, text=True, timeout=_COMMAND_BOUND_S, check=True)
    words = {word for line in listed.stdout.splitlines() if not line.endswith(":") for word in line.split()}
    for path in [*programs, *sorted(word for word in words if word.startswith("/"))]:
        # Below usr in any case: /bin and /lib are links into it, there as here.
        target = root / "usr" / path.removeprefix("/usr").lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    for name in _LINKS:
        if (root / name).is_symlink():
            (root / "usr" / name).mkdir(exist_ok=True)


def running_with(text: str) -> list[Process]:
    """Living processes that have this in their command line."""
    return [row for row in processes.table().values() if row.state != "Z" and text in processes.command_line(row.pid)]


def mount_points() -> Iterator[str]:
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        yield from [line.split()[4] for line in file]


def pid_namespace(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def inner_pid(pid: int) -> int:
    """Its pid in the namespace it lives in; 0 when it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[-1]) for line in file if line.startswith("NSpid:"))
    except (FileNotFoundError, ProcessLookupError):
        return 0
