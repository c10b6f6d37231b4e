"""What a test needs from the machine. A missing lever skips the test, or fails it under --strict-env."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support import containers, promises, ssh_hosts
from support.waiting import BOUND_S

if TYPE_CHECKING:
    from support.world import World


# Root and non-root exclude each other, a service manager is not found wherever tests run, and the list of promises is
# not part of a clone: these always skip.
_JOBS = ("root", "non-root", "systemd", "promises")


def namespace_argv(*flags: str) -> list[str]:
    """A prefix that runs a program in namespaces of its own, as their root."""
    return ["unshare", "--user", "--map-root-user", *flags]


def _root() -> str | None:
    return None if os.geteuid() == 0 else "not root"


def _non_root() -> str | None:
    return None if os.geteuid() != 0 else "root ignores modes and limits"


def _namespaces() -> str | None:
    return _runs(*namespace_argv("--pid", "--fork", "--mount-proc", "true"))


def _time_namespace() -> str | None:
    return _runs(*namespace_argv("--time", "--boottime", "100", "--fork", "true"))


def _setpriv() -> str | None:
    return _root() or (None if shutil.which("setpriv") else "no setpriv")


def _cgroup() -> str | None:
    parent = cgroup_parent()
    if parent is None:
        return "no cgroup v2 we may write to"
    offered = (parent / "cgroup.controllers").read_text().split()
    return None if "memory" in offered else "no memory controller in cgroup v2"


def _strace() -> str | None:
    return _runs("strace", "-qq", "-o", os.devnull, "true")


def _systemd() -> str | None:
    return _runs("systemctl", "--user", "show", "--property=Version")


def _first_pid_namespace() -> str | None:
    # The kernel's PROC_PID_INIT_INO, the same on every machine.
    first = os.stat("/proc/self/ns/pid").st_ino == 0xEFFFFFFC
    return None if first else "not in the first pid namespace, which alone sees everybody"


def _pids_group() -> str | None:
    return _root() or (None if pids_group_parent() else "no control group in which processes can be counted")


def _service_group() -> str | None:
    parent = cgroup_parent()
    if _root() or parent is None:
        return _root() or "no unified control group hierarchy that we may write to"
    probe = parent / f"holdfast-lever-{os.getpid()}"
    probe.mkdir()
    try:
        return None if (probe / "cgroup.kill").exists() else "this kernel has no cgroup.kill"
    finally:
        probe.rmdir()


LEVERS: dict[str, Callable[[], str | None]] = {
    "root": _root,
    "non-root": _non_root,
    "namespaces": _namespaces,
    "time-namespace": _time_namespace,
    "setpriv": _setpriv,
    "cgroup": _cgroup,
    "pids-group": _pids_group,
    "service-group": _service_group,
    "first-pid-namespace": _first_pid_namespace,
    "strace": _strace,
    "fish": lambda: _runs("fish", "--version"),
    "htop": lambda: _runs("htop", "--version"),
    "less": lambda: _runs("less", "--version"),
    # Not run: it would write its settings into the home directory.
    "mc": lambda: None if shutil.which("mc") else "no mc",
    "tmux": lambda: _runs("tmux", "-V"),
    # Not run: it would write a cache into the home directory.
    "nvim": lambda: None if shutil.which("nvim") else "no nvim",
    "podman": containers.missing,
    "sshd": ssh_hosts.missing,
    "vim": lambda: _runs("vim", "--version"),
    "promises": lambda: None if promises.SHARED.is_dir() else "the list of promises is not beside this clone",
    "vttest": lambda: None if shutil.which("vttest") else "no vttest",
    "zsh": lambda: _runs("zsh", "--version"),
    "systemd": _systemd,
}


@functools.cache
def missing(lever: str) -> str | None:
    """Why this lever is not here; None when it is."""
    return LEVERS[lever]()


def cgroup_parent() -> Path | None:
    """The cgroup v2 directory of this process, if children can be made in it."""
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in mounts if " - cgroup2 " in line]
    own = [line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")]
    if not points or not own:
        return None
    parent = Path(points[0]) / own[0].lstrip("/")
    return parent if os.access(parent, os.W_OK) and (parent / "cgroup.controllers").exists() else None


def pids_group_parent() -> Path | None:
    """Where a control group with `pids.max` can be made, in either hierarchy."""
    older = Path("/sys/fs/cgroup/pids")
    if older.is_dir():
        return older
    own = cgroup_parent()
    for parent in () if own is None else (own, own.parent):
        handed_on = parent / "cgroup.subtree_control"
        if handed_on.exists() and "pids" in handed_on.read_text().split():
            return parent
    return None


def require(item: pytest.Item, strict: bool) -> None:
    """Skip or fail a test whose marks name a lever that is missing."""
    wanted = [str(name) for mark in item.iter_markers("needs") for name in mark.args]
    wanted += [name for name in ("root", "namespaces") if item.get_closest_marker(name)]
    for lever in wanted:
        demand(lever, strict)


def demand(lever: str, strict: bool) -> None:
    """Skip or fail the running test if this lever is missing."""
    if lever not in LEVERS:
        pytest.fail(f"no lever {lever!r}; there are {', '.join(LEVERS)}", pytrace=False)
    reason = missing(lever)
    if reason is None:
        return
    if strict and lever not in _JOBS:
        pytest.fail(f"lever {lever} is missing: {reason}", pytrace=False)
    pytest.skip(f"needs {lever}: {reason}")


def may_skip(reason: str) -> bool:
    """Whether a test that skipped for this reason passes under --strict-env."""
    return reason.startswith(tuple(f"needs {lever}: " for lever in _JOBS))


def _runs(*argv: str) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip() or f"{argv[0]} ended with {done.returncode}"


# Unused on test machines. Limits count per uid, so each test process has its own.
_FIRST_UID = 540_000


def normal_user(world: World) -> list[str]:
    """A prefix that runs a program as an ordinary user, to whom this world is given."""
    uid = _FIRST_UID + os.getpid() % 60_000
    for directory, folders, files in os.walk(world.root):
        for name in [".", *folders, *(file for file in files if not _is_set_id(Path(directory, file)))]:
            os.chown(os.path.join(directory, name), uid, uid)
    # The interpreter may stand in a directory that is closed to others; reading it is all this grants.
    read = "+dac_read_search"
    return [
        "setpriv",
        *(f"--reuid={uid}", f"--regid={uid}", "--clear-groups"),
        *(f"--inh-caps=-all,{read}", f"--ambient-caps=-all,{read}"),
    ]


def _is_set_id(path: Path) -> bool:
    return bool(path.lstat().st_mode & 0o4000)


PID_NAMESPACE = namespace_argv("--pid", "--fork", "--mount-proc")

# `end(pid)` kills and reaps; `stranger(pid)` starts another process that has that pid.
STRANGER = """
import os, signal, subprocess

def start(pid):
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[19])

last_tick = 0

def end(pid):
    global last_tick
    last_tick = max(last_tick, start(pid))
    os.kill(pid, signal.SIGKILL)
    while os.path.exists(f"/proc/{pid}"):
        try:
            os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            pass

def stranger(pid):
    for _ in range(1000):
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(pid - 1))
        other = subprocess.Popen(["sleep", "600"])
        # Within one tick of the kernel's clock even the start times are the same.
        if other.pid == pid and start(pid) > last_tick:
            return other
        other.kill()
        other.wait()
    raise SystemExit(f"pid {pid} was never free")
"""
