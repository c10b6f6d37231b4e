"""Open the home for the command line."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..config import Config
    from ..errors import ConfigError
    from ..sessions.api import Holdfast


# The warning about the configuration is written once, however often the home is opened.
_warned = False


def here(*, need_config: bool = False, skip_unsafe: bool = False) -> Holdfast:
    from ..sessions.api import Holdfast

    return Holdfast(config=settings(need_config=need_config, skip_unsafe=skip_unsafe), author=author())


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
