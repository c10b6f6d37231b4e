"""How the command line opens the home: as a host that says who sits at it."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..config import Config
    from ..errors import ConfigError
    from ..host.api import Holdfast
    from ..host.core import Core

# Whether the warning about the configuration was written: one line a process, however often the home is opened.
_warned = False


def here(*, need_config: bool = False, skip_unsafe: bool = False) -> Holdfast:
    from ..host.api import Holdfast

    return Holdfast(config=settings(need_config=need_config, skip_unsafe=skip_unsafe), author=author())


def core(*, need_config: bool = False) -> Core:
    """For `run`, which holds on to the connection that started its session."""
    from ..home import Home
    from ..host.core import Core
    from ..host.driver import Blocking

    return Core(Blocking(), Home(), settings(need_config=need_config), author())


def settings(*, need_config: bool = False, skip_unsafe: bool = False) -> Config:
    """The configuration. Where it cannot be understood, the defaults and a warning, so that a typo hides no session and
    keeps none alive; an error with `need_config`, for commands that start or remove something by its rules. A file that
    others could have written is refused, except with `skip_unsafe`."""
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
        from .output import note
        from .tables import printable

        note(printable(f"{problem.message}; the defaults are used; fix: {problem.fix}"))
    _warned = True


def author(way: str = "cli") -> str:
    """Who asks, for the records of what was asked."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME")
    if not user:
        import pwd

        try:
            user = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            user = str(os.getuid())
    return f"{way}:{user}"
