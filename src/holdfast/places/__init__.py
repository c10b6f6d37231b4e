"""Where a runner can live: how a link to each place is carried. What goes over it is the same everywhere.

A place is a kind and a name. All that differs is the command line whose input and output are the link, and where a
runner would not be buried by whoever adopts it, the one that starts it from outside.
"""

from __future__ import annotations

import os

from ..errors import BadArgument, PlaceUnsupported
from ..model.units import shown
from ..runner import tree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..config import Config

LOCAL = "local"
KINDS = ("ssh", "docker", "podman", "apptainer", "singularity")
_NAME_CHARACTERS = 255
# Longer paths of sockets the system does not take; `ssh` adds a hash and a few letters to what it is told.
_CONTROL_PATH_BYTES = 104 - 40 - 18
# By these a program finds the containers of its user. Whoever looks for a session later may have others, and must not
# take what he does not find for gone.
_WHERE = (
    *("HOME", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"),
    *("CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
)
_SSH_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=15", "ServerAliveCountMax=3")
_SSH_SHARED = ("ControlMaster=auto", "ControlPersist=60")


def check(place: object) -> str:
    """`local`, or a kind and a name. PlaceUnsupported for a kind that we know no way to."""
    if place is None or place == LOCAL:
        return LOCAL
    if not isinstance(place, str):
        raise BadArgument("place", f"{shown(place)} is not text", 'give "ssh:HOST" or "docker:NAME"')
    kind, colon, name = place.partition(":")
    if kind not in KINDS:
        raise PlaceUnsupported(place)
    if not colon or not name or name.startswith("-") or not name.isprintable() or len(name) > _NAME_CHARACTERS:
        raise BadArgument("place", f"{shown(place)} names no place", f'give "{kind}:NAME"')
    return place


def way(place: str) -> dict[str, str | None]:
    """What is to be remembered of our environment, for deputies that others send there."""
    return {} if place.startswith("ssh:") else {name: os.environ.get(name) for name in _WHERE}


def reach(place: str, config: Config, runtime: str, way: Mapping[str, str | None]) -> dict[str, Any]:
    """What a deputy needs to open links to this place, and the code that it brings along."""
    import hashlib
    import shlex
    import shutil

    from .. import wire
    from .bundle import runner_archive

    kind, _, name = place.partition(":")
    code = runner_archive()
    python = [*shlex.split(config.places_python), "-I", "-S"]
    with open(os.path.join(os.path.dirname(__file__), "boot.py"), "rb") as file:
        # In an alphabet that no shell on the way reads as anything else.
        boot = f'exec(__import__("base64").b64decode("{wire.as_text(file.read())}"))'
    arrive = [*python, "-c", boot, hashlib.blake2b(code, digest_size=16).hexdigest(), str(len(code))]
    program = shlex.split(getattr(config, f"places_{kind}"))
    # By our own path: the deputy has none.
    program[:1] = [shutil.which(program[0]) or program[0]] if program else []
    detached: list[str] | None = None
    if kind == "ssh":
        argv = [*program, *_ssh_options(runtime), name, "exec " + shlex.join(arrive)]
    elif kind in ("docker", "podman"):
        argv = [*program, "exec", "-i", name, *arrive]
        # The first process of a container seldom buries those whose parents are gone.
        detached = [*program, "exec", "-d", name, *python, "-X", "utf8"]
    else:
        argv = [*program, "exec", f"instance://{name}", *arrive]
    return {
        "argv": argv,
        "detached": detached,
        "env": _environment(way),
        "timeout": config.places_timeout,
        "code": wire.as_text(code),
    }


def _environment(way: Mapping[str, str | None]) -> dict[str, str]:
    """Of a link: it is no part of the session that we may be in ourselves."""
    ours = {**os.environ, tree.SESSION_VARIABLE: None, tree.ROLE_VARIABLE: "runner", **way}
    return {name: value for name, value in ours.items() if value is not None}


def _ssh_options(runtime: str) -> list[str]:
    options = list(_SSH_OPTIONS)
    if len(os.fsencode(runtime)) + len("/ssh-") <= _CONTROL_PATH_BYTES:
        options.append(f"ControlPath={runtime}/ssh-%C")
        # Who keeps a connection for others hides what it is: in a session it would be taken for a part of that.
        options += ["ControlMaster=no"] if tree.SESSION_VARIABLE in os.environ else _SSH_SHARED
    return ["-T", *(word for option in options for word in ("-o", option))]
