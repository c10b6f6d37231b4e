"""The kinds of places: the command line of a link to each, and the runner as one archive. A place is a kind and a
name, such as `docker:web`."""

from __future__ import annotations

import os
import sys

from .. import __version__
from ..core import processes
from ..errors import BadArgument, PlaceUnsupported
from ..model.session import nearest, shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from ..config import Config


LOCAL = "local"


class Kind:
    """`program`: what the setting `places.<kind>` is by default. `link`: the words between the program and a command
    that is to run there; `{}` is the name of the place. `detached`: the same for a command that is started from outside
    and not waited for, because PID 1 in a container rarely reaps orphans. `is_machine`: it is reached over a network,
    and may come back after it was gone; any other kind is found through our environment. `name`: what its name is."""

    __slots__ = ("detached", "is_machine", "link", "name", "program")

    def __init__(
        self, program: str, link: str, *, detached: str = "", is_machine: bool = False, name: str = "NAME"
    ) -> None:
        self.program = program
        self.name = name
        self.link = link
        self.detached = detached
        self.is_machine = is_machine


# What goes over a link is the same everywhere. The settings of the programs, and the fix of PlaceUnsupported, are made
# from this table.
KINDS = {
    "ssh": Kind("ssh", "{}", is_machine=True, name="HOST"),
    "docker": Kind("docker", "exec -i {}", detached="exec -d {}"),
    "podman": Kind("podman", "exec -i {}", detached="exec -d {}"),
    "apptainer": Kind("apptainer", "exec instance://{}"),
    "singularity": Kind("singularity", "exec instance://{}"),
    # Its program is our own and no setting, and the node starts the far end.
    "node": Kind("", "{}", is_machine=True),
}
# A configured place: whether its command leads to a machine or to a container is unknown.
_OWN = Kind("", "", is_machine=True)
_NAME_CHARACTERS = 255
# The system limits the length of socket paths; `ssh` adds a hash and a few letters to this one.
_CONTROL_PATH_BYTES = 104 - 40 - 18
# Variables by which a program finds the containers of its user. A later host may have other values, and would take a
# container that it does not find for gone.
_WHERE = (
    *("HOME", "XDG_RUNTIME_DIR", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"),
    *("CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINERS_CONF", "CONTAINERS_STORAGE_CONF"),
)
_KEPT = (processes.ROLE_VARIABLE,)
_SSH_OPTIONS = ("BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=15", "ServerAliveCountMax=3")
_SSH_SHARED = ("ControlMaster=auto", "ControlPersist=60")


def check(place: object, config: Config | None = None) -> str:
    """`local`, a kind and a name, or the name of a place of the configuration. PlaceUnsupported for an unknown one."""
    if place is None or place == LOCAL:
        return LOCAL
    if not isinstance(place, str):
        raise BadArgument("place", f"{shown(place)} is not text", 'give "ssh:HOST" or "docker:NAME"')
    kind, colon, name = place.partition(":")
    if config is not None and place in config.own_places:
        return place
    if kind not in KINDS:
        raise unsupported(place, config)
    if not colon or not name or name.startswith("-") or not name.isprintable() or len(name) > _NAME_CHARACTERS:
        raise BadArgument("place", f"{shown(place)} names no place", f'give "{kind}:NAME"')
    return place


def unsupported(place: str, config: Config | None = None) -> PlaceUnsupported:
    near = nearest(place.partition(":")[0], [LOCAL, *KINDS, *(config.own_places if config else ())])
    known = ", ".join(f"{word}:{kind.name}" for word, kind in KINDS.items())
    return PlaceUnsupported(place, f"did you mean {near}?" if near else f"give {known}, or a [places.NAME]")


def is_away(spec: Mapping[str, Any]) -> bool:
    """Whether the runner of this session lives in another place. Here it has a deputy, and its files are a copy."""
    return spec.get("place") not in (None, LOCAL)


def way(place: str) -> dict[str, str | None]:
    """The variables by which later deputies find the same place."""
    kind = KINDS.get(place.partition(":")[0], _OWN)
    return {} if kind.is_machine and kind is not _OWN else {name: os.environ.get(name) for name in _WHERE}


def reach(
    place: str, config: Config, home: str, runtime: str, way: Mapping[str, str | None], visit: str | None = None
) -> dict[str, Any]:
    """What a deputy needs to open links to this place, and the code that it brings along. `visit` is the session of a
    node to be visited: the node follows it with its own code."""
    import hashlib
    import shlex
    import shutil

    from ..core import wire

    word, _, name = place.partition(":")
    kind = KINDS.get(word, _OWN)
    code = runner_archive() if visit is None else b""
    python = [*shlex.split(config.places_python), "-I", "-S"]
    with open(os.path.join(os.path.dirname(__file__), "boot.py"), "rb") as file:
        # In an alphabet that no shell on the way reads as anything else.
        boot = f'exec(__import__("base64").b64decode("{wire.as_text(file.read())}"))'
    arrive = [*python, "-c", boot, hashlib.blake2b(code, digest_size=16).hexdigest(), str(len(code))]
    environment = _environment(way)
    name_of_code = arrive[-2:]
    if word == "node":
        program, arrive = [sys.executable, "-m", "holdfast.nodes.link"], name_of_code
        environment["HOLDFAST_HOME"] = home
        if visit is not None:
            # Text of a user stays out of command lines.
            environment[processes.VISIT_VARIABLE] = visit
    elif kind is _OWN:
        check(place, config)
        program = list(config.own_places[place].argv)
        # A command that only changes the view of this machine hands on our environment, and the place has its own home.
        environment = {name: value for name, value in environment.items() if name[:9] != "HOLDFAST_" or name in _KEPT}
    else:
        program = shlex.split(getattr(config, f"places_{word}"))
    # By our own path: the deputy has none.
    program[:1] = [shutil.which(program[0]) or program[0]] if program else []
    if word == "ssh":
        program += _ssh_options(runtime)
        arrive = ["exec " + shlex.join(arrive)]
    detached = [*program, *_words(kind.detached, name), *python, "-X", "utf8"] if kind.detached else None
    return {
        "argv": [*program, *_words(kind.link, name), *arrive],
        "detached": detached,
        "comes_back": kind.is_machine,
        "env": environment,
        "timeout": config.places_timeout,
        "code": wire.as_text(code),
    }


def _words(template: str, name: str) -> list[str]:
    return [word.format(name) for word in template.split()]


def _environment(way: Mapping[str, str | None]) -> dict[str, str]:
    """The environment of a link: without the mark of the session that we may run in."""
    ours = {**os.environ, processes.SESSION_VARIABLE: None, processes.ROLE_VARIABLE: "runner", **way}
    return {name: value for name, value in ours.items() if value is not None}


def _ssh_options(runtime: str) -> list[str]:
    options = list(_SSH_OPTIONS)
    if len(os.fsencode(runtime)) + len("/ssh-") <= _CONTROL_PATH_BYTES:
        options.append(f"ControlPath={runtime}/ssh-%C")
        # The shared connection hides its origin: inside a session it would count as part of that session.
        options += ["ControlMaster=no"] if processes.SESSION_VARIABLE in os.environ else _SSH_SHARED
    return ["-T", *(word for option in options for word in ("-o", option))]


# The runner as one file, for machines that have only Python.


# One archive for one source: no time of build in it.
_DATE = (1980, 1, 1, 0, 0, 0)
# What runs there beside the runner. Deputies stay here.
_OF_PLACES = ("__init__.py", "mirror.py", "remote_end.py")


def runner_archive() -> bytes:
    """`python3 -I -S FILE self-test` tries it out, `python3 -I -S FILE runner` takes a start request on descriptor 3.

    Stored and not deflated: a Python without zlib can still say what it lacks.
    """
    import io
    import zipfile

    source = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    files = {"holdfast/__init__.py": f'__version__ = "{__version__}"\n'.encode()}
    paths = [os.path.join(source, "places", name) for name in _OF_PLACES]
    for package in ("core", "runner"):
        for folder, folders, names in os.walk(os.path.join(source, package)):
            folders.sort()
            paths += (os.path.join(folder, name) for name in sorted(names) if name.endswith(".py"))
    for path in paths:
        with open(path, "rb") as file:
            files[f"holdfast/{os.path.relpath(path, source)}"] = file.read()
    files["__main__.py"] = files.pop("holdfast/runner/__main__.py")
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, _DATE), content)
    return packed.getvalue()
