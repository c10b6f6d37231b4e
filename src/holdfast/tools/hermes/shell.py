"""Which shell runs commands, with which PATH, and how the last directory of one is learned."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from ...errors import HoldfastError
from . import limits, texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ...host.aio import AsyncHoldfast

_KNOWN = ("bash", "zsh", "sh", "dash", "ksh", "mksh")
# The number under which a foreground command has the file for its last directory: one that scripts do not choose for
# their own. Opened by its path, for dash knows no descriptors of more than one digit.
DIRECTORY_FD = 199
# It evaluates the command as it is, as the only thing it knows of: no parameters, no variable of ours. A command that
# replaces the shell, or the trap, is one whose last directory is not known.
_WRAPPER = f"trap '{{ pwd -P >/proc/self/fd/{DIRECTORY_FD}; }} 2>/dev/null' EXIT; eval \"set --;$1\""
_MARK = "holdfast-path:"
_PATH_MAX_BYTES = 4096

# By shell, and the HOME and PATH that it began with: asked once, for profiles are slow.
_login_paths: dict[tuple[str, str, str], str] = {}


def chosen(environ: Mapping[str, str]) -> str:
    """The user's shell where it speaks as commands expect, else bash, else sh."""
    wanted = environ.get("SHELL", "")
    if os.path.basename(wanted) in _KNOWN and os.path.isabs(wanted) and os.access(wanted, os.X_OK):
        return wanted
    return shutil.which("bash", path=environ.get("PATH")) or "/bin/sh"


def wrapped(shell: str) -> list[str]:
    return [shell, "-c", _WRAPPER, shell]


async def login_path(hf: AsyncHoldfast, shell: str, env: Mapping[str, str]) -> tuple[str, str | None]:
    """The PATH of a login shell, what the host has besides behind it; and what went wrong, told once."""
    key = (shell, env.get("HOME", ""), env.get("PATH", ""))
    if key in _login_paths:
        return _login_paths[key], None
    _login_paths[key], problem = await _ask_login_path(hf, shell, env)
    return _login_paths[key], problem


async def _ask_login_path(hf: AsyncHoldfast, shell: str, env: Mapping[str, str]) -> tuple[str, str | None]:
    ours = env.get("PATH", "")
    try:
        asked = await hf.run(
            [shell, "-l", "-c", f'printf "\\n{_MARK}%s\\n" "$PATH"'],
            env=env,
            clean_env=True,
            timeout=limits.LOGIN_PATH_S,
            notify="never",
            labels={"hermes.asks": "path"},
        )
        found = [line for line in (await asked.text("stdout")).splitlines() if line.startswith(_MARK)]
        # A shell that left something running is not removed yet; retention does it.
        if not (asked.exit and asked.exit.survivors):
            await asked.remove()
    except HoldfastError as problem:
        return ours, texts.login_path_failed(shell, str(problem))
    if not found:
        why = "it took too long" if asked.exit and asked.exit.cause == "overall_timeout" else "it did not say"
        return ours, texts.login_path_failed(shell, why)
    theirs = found[-1].removeprefix(_MARK).split(":")
    return ":".join(theirs + [each for each in ours.split(":") if each and each not in theirs]), None


class LastDirectory:
    """A file in memory that the shell writes into at its end. Unlike a pipe it can be left alone at any time."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("last-directory")

    def read(self) -> str | None:
        """None: nothing was written, or no directory."""
        said = os.fsdecode(os.pread(self.fd, _PATH_MAX_BYTES + 1, 0))
        path = said.removesuffix("\n")
        return path if said.endswith("\n") and os.path.isabs(path) and os.path.isdir(path) else None

    def close(self) -> None:
        os.close(self.fd)
