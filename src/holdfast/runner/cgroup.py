"""Control groups: out of the group of a service that may be stopped, and a memory limit for one session.

For the limit both hierarchies are known, because machines still boot with the older one. The command is born
inside: the runner steps in just before the spawn and out again right after.
"""

from __future__ import annotations

import errno
import os

from . import points

# Beside the service's own group; whoever looks at the tree of groups sees whose it is.
_OUTSIDE = "holdfast"


def leave_service_group() -> str | None:
    """Step out of a service's group, since its manager ends everybody in there together with the service.

    Returns what the callers of sessions started from here must know: where we went, or that we could not go.
    None: we are in no service. Decision 0009 has the reasons.
    """
    with open("/proc/self/cgroup") as file:
        paths = {controllers: path.rstrip("\n") for _, controllers, path in (line.split(":", 2) for line in file)}
    group = paths.get("", "/")
    service = _service(group) or _service(paths.get("name=systemd", "/"))
    if service is None:
        return None
    mount = _mounts()[1]
    outside = os.path.join(group.partition("/" + service)[0] or "/", _OUTSIDE)
    try:
        if mount is None or _service(group) is None or points.off("cgroup"):
            raise PermissionError(errno.EPERM, "the unified hierarchy is not in use")
        os.makedirs(mount + outside, 0o755, exist_ok=True)
        _write(os.path.join(mount + outside, "cgroup.procs"), "0")
    except OSError as problem:
        return f"stopping {service} ends this session too: its group cannot be left ({problem.strerror})"
    return f"runs in the control group {outside}, so that it outlives {service}; limits of {service} do not hold for it"


def _service(path: str) -> str | None:
    """The service whose stop would end the processes of this group; a scope ends with its last process only."""
    for name in reversed(path.split("/")):
        if name.endswith(".scope"):
            return None
        if name.endswith(".service"):
            return name
    return None


class Unavailable(Exception):
    """No memory limit can be set here; the text says why."""


class MemoryGroup:
    def __init__(self, session: str, limit_bytes: int) -> None:
        if points.off("cgroup"):
            raise Unavailable("control groups are switched off")
        self._origin, parent, self._unified = _own_group()
        self.path = os.path.join(parent, f"holdfast-{session}")
        unified = self._unified
        try:
            os.mkdir(self.path, 0o755)
            _write(
                os.path.join(self.path, "memory.max" if unified else "memory.limit_in_bytes"),
                str(limit_bytes),
            )
        except OSError as problem:
            self.remove()
            raise Unavailable(f"{self.path}: {problem.strerror}") from None
        try:
            # Swapping instead of ending would turn the limit into a slow machine.
            swap = "memory.swap.max" if unified else "memory.memsw.limit_in_bytes"
            _write(os.path.join(self.path, swap), "0" if unified else str(limit_bytes))
        except OSError:
            pass  # no swap accounting here

    def __enter__(self) -> None:
        _write(os.path.join(self.path, "cgroup.procs"), "0")

    def __exit__(self, *_: object) -> None:
        try:
            _write(os.path.join(self._origin, "cgroup.procs"), "0")
        except OSError:
            pass  # where we came from is gone: the runner shares its command's limit then, and still owns it

    def oom_kills(self) -> int:
        name = "memory.events" if self._unified else "memory.oom_control"
        try:
            with open(os.path.join(self.path, name)) as file:
                counts = dict(line.split() for line in file)
        except (OSError, ValueError):
            return 0
        return int(counts.get("oom_kill", 0))

    def remove(self) -> None:
        try:
            os.rmdir(self.path)
        except OSError:
            pass  # never made, or a survivor still lives in it: it then goes with the machine


def _own_group() -> tuple[str, str, bool]:
    """In the hierarchy that has the memory controller: the group we are in, the one to make ours in, and whether
    it is the unified hierarchy."""
    mounts = _mounts()
    with open("/proc/self/cgroup") as file:
        lines = [line.rstrip("\n").split(":", 2) for line in file]
    for _, controllers, path in lines:
        mount = mounts[0] if "memory" in controllers.split(",") else None
        if mount is not None:
            group = mount + path.rstrip("/")
            return group, group, False
    for _, controllers, path in lines:
        if not controllers and mounts[1] is not None:
            group = mounts[1] + path.rstrip("/")
            # A group that holds processes may not hand controllers to its children, so ours goes beside it.
            parent = os.path.dirname(group) if path != "/" else group
            with open(os.path.join(parent, "cgroup.subtree_control")) as file:
                if "memory" in file.read().split():
                    return group, parent, True
            raise Unavailable(f"{parent} does not hand out the memory controller")
    raise Unavailable("no control group hierarchy with a memory controller is mounted")


def _mounts() -> tuple[str | None, str | None]:
    """Where the memory controller of the older hierarchy, and the unified hierarchy, are mounted."""
    older = unified = None
    with open("/proc/self/mountinfo") as file:
        for line in file:
            left, _, right = line.partition(" - ")
            kind, _, options = right.split()[:3]
            point = left.split()[4]
            if kind == "cgroup2":
                unified = point
            elif kind == "cgroup" and "memory" in options.split(","):
                older = point
    return older, unified


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
