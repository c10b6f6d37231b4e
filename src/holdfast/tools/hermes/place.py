"""Where the commands of a task run: as its host says, or as variables say that hermes-agent has."""

from __future__ import annotations

import asyncio
import inspect
import os
from typing import TYPE_CHECKING

from ... import places
from ...errors import BadArgument, HoldfastError, PlaceGone
from . import shell

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping
    from typing import TypeVar

    from ...index.kept import Kept
    from .settings import Settings

    T = TypeVar("T")

LOCAL = places.LOCAL
_KIND = "TERMINAL_ENV"
# The container, or the instance, that the commands run in.
_CONTAINER = "TERMINAL_CONTAINER"
_SSH_HOST, _SSH_USER, _SSH_PORT, _SSH_KEY = (f"TERMINAL_SSH_{name}" for name in ("HOST", "USER", "PORT", "KEY"))
_SSH_USUAL_PORT = "22"
# In a name, what stands for the task: each has a place of its own then.
_TASK = "{task_id}"
_INSTEAD = "place"


def named(given: str | None, task_id: str, environ: Mapping[str, str] = os.environ) -> str:
    """A place, from its name (`podman:NAME`) or its kind (`podman`); from the variables where none is given."""
    asked = (environ.get(_KIND, "") if given is None else given).strip() or LOCAL
    if asked in places.KINDS:
        asked = f"{asked}:{_ssh(environ) if asked == 'ssh' else _needed(environ, _CONTAINER, asked)}"
    return places.check(asked.replace(_TASK, task_id))


def _needed(environ: Mapping[str, str], variable: str, kind: str) -> str:
    found = environ.get(variable, "").strip()
    if not found:
        raise BadArgument(variable, f"is not set, and commands are to run in {kind}", "set it; nothing was started")
    return found


def _ssh(environ: Mapping[str, str]) -> str:
    host = _needed(environ, _SSH_HOST, "ssh")
    user, port = environ.get(_SSH_USER, "").strip(), environ.get(_SSH_PORT, "").strip()
    if environ.get(_SSH_KEY, "").strip():
        fix = "name the key in ssh's own configuration, or in the setting places.ssh; nothing was started"
        raise BadArgument(_SSH_KEY, "is not handed to ssh", fix)
    name = f"{user}@{host}" if user else host
    return name if port in ("", _SSH_USUAL_PORT) else f"ssh://{name}:{port}"


class Place:
    """The place of one task. One that is gone may be made again, and is another one then."""

    def __init__(self, settings: Settings, kept: Kept) -> None:
        self._settings = settings
        self._kept = kept
        # One call at a time makes it again; and how often that was done.
        self._making = asyncio.Lock()
        self._made = 0

    def now(self) -> str:
        place = named(self._settings.place, self._settings.task_id)
        instead = None if place == LOCAL else self._kept.get(place, _INSTEAD)
        return instead if isinstance(instead, str) else place

    async def begin(self, start: Callable[[str], Awaitable[T]]) -> tuple[T, bool]:
        """What `start` makes of the place, and whether that had to be made again for it."""
        place, made = self.now(), self._made
        try:
            return await start(place), False
        except PlaceGone as gone:
            async with self._making:
                # Another call may have been quicker, also under the same name; or another host.
                if self._made == made and self.now() == place:
                    await self._make_again(place, gone)
        return await start(self.now()), True

    async def _make_again(self, place: str, gone: PlaceGone) -> None:
        shell.forget(place)
        self.move(place, None)
        first = named(self._settings.place, self._settings.task_id)
        if place != first:
            self._kept.put(first, _INSTEAD, None)
        again = self._settings.recreate
        if again is None:
            raise gone
        try:
            made = again(self._settings.task_id)
            new = places.check(await made if inspect.isawaitable(made) else made)
        except HoldfastError:
            raise
        except Exception as problem:
            raise PlaceGone(place, f"making it again failed ({type(problem).__name__}: {problem})") from problem
        if new == LOCAL:
            fix = "have it make a container; nothing was started"
            raise BadArgument("recreate", "gave this machine in the place of another one", fix)
        if new != first:
            self._kept.put(first, _INSTEAD, new)
        self._made += 1

    # Its working directory.

    def directory(self, place: str) -> str | None:
        """Where the last command left the task, else where the task begins; None away is where a command arrives."""
        settings = self._settings
        found = self._kept.get(f"task:{settings.task_id}", _topic(place))
        if isinstance(found, str):
            return found
        return settings.cwd or os.environ.get("TERMINAL_CWD") or (os.getcwd() if place == LOCAL else None)

    def move(self, place: str, directory: str | None) -> None:
        self._kept.put(f"task:{self._settings.task_id}", _topic(place), directory)


def _topic(place: str) -> str:
    return "cwd" if place == LOCAL else f"cwd in {place}"
