"""Open the home for the command line."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..config import Config
    from ..errors import ConfigError
    from ..sessions.api import Holdfast, Session


# The warning about the configuration is written once, however often the home is opened.
_warned = False
# Of how many finished sessions a name is suggested.
_NAMES = 100


def open_home(*, need_config: bool = False, skip_unsafe: bool = False) -> Holdfast:
    """The library, for one command. What has no public call, a command does by its `_core`."""
    from ..sessions.api import Holdfast

    hf = Holdfast(config=settings(need_config=need_config, skip_unsafe=skip_unsafe), author=author())
    hf._core.services = True
    return hf


def services_here(hf: Holdfast) -> list[Session]:
    """The newest session of each service of the project here, for a command that names none."""
    from ..project import find, load

    file = find(os.getcwd())
    return [] if file is None else list(load(file).sessions(hf, all=True).values())


def settings(*, need_config: bool = False, skip_unsafe: bool = False) -> Config:
    """The configuration. If it is invalid: the defaults and a warning, so that sessions can still be listed and
    stopped; with `need_config`, for commands that start or remove sessions, an error. A file that other users could
    have written is an error too, except with `skip_unsafe`."""
    from ..config import Config, UnsafeConfig, load
    from ..errors import ConfigError

    try:
        return load(os.environ)
    except ConfigError as problem:
        if need_config or (isinstance(problem, UnsafeConfig) and not skip_unsafe):
            raise
        _warn(problem)
        return Config()


def _warn(problem: ConfigError) -> None:
    global _warned
    if not _warned:
        from .output import note, printable

        note(printable(f"{problem.message}; the defaults are used; fix: {problem.fix}"))
    _warned = True


def near_session(error: Exception) -> str:
    """`did you mean NAME? `, if a session has a name like the one that was not found; another one, if it is a session
    that was to be started as if it were a program."""
    from ..errors import HoldfastError, NotFound, SpawnError
    from ..model.session import nearest
    from ..sessions.claims import name_of

    if not isinstance(error, SpawnError) and type(error) is not NotFound:
        return ""
    try:
        with open_home(skip_unsafe=True) as hf:
            ids = [*hf._core.index.unfinished(), *hf._core.index.query(limit=_NAMES).records]
            names = [name_of(hf.home, id) for id in ids]
    except (HoldfastError, OSError):
        return ""  # the first error is the one that counts
    if isinstance(error, SpawnError):
        is_session = error.path is not None and error.path in names
        return f"to start that session again: `hold restart {error.path}`; otherwise " if is_session else ""
    near = nearest(error.ref, [name for name in names if isinstance(name, str)])
    return f"did you mean {near}? " if near else ""


def near_label(hf: Holdfast, labels: list[tuple[str, str]] | None, owner: str | None = None) -> str:
    """`; did you mean K=V?`, if a session has a label, or an owner, like one that was not found."""
    from ..model.session import nearest

    sessions = hf.sessions(all=True)
    known = [f"{key}={value}" for session in sessions for key, value in session.labels.items()]
    owners = [session.owner for session in sessions if session.owner]
    wanted = [f"{key}={value}" for key, value in labels or ()]
    near = [found for each in wanted if each not in known and (found := nearest(each, known))]
    near += filter(None, [nearest(owner, owners) if owner and owner not in owners else None])
    return f"; did you mean {near[0]}?" if near else ""


def author(way: str = "cli") -> str:
    """The name that is recorded with each request: `cli:USER`."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME")
    if not user:
        import pwd

        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = str(os.getuid())
    return f"{way}:{user}"
