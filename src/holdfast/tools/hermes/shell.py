"""Which shell runs commands, with which PATH, and how the last directory of one is learned."""

from __future__ import annotations

import os
import shutil
import threading
from concurrent.futures import CancelledError, Future
from typing import TYPE_CHECKING

from ...errors import HoldfastError
from ...runner import report
from . import limits, texts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ...host.aio import AsyncHoldfast, AsyncSession

_KNOWN = ("bash", "zsh", "sh", "dash", "ksh", "mksh")
# The number under which a foreground command has the file for its last directory: one that scripts do not choose for
# their own. Opened by its path, for dash knows no descriptors of more than one digit.
DIRECTORY_FD = 199
# It evaluates the command as it is, as the only thing it knows of: no parameters, no variable of ours. A command that
# replaces the shell, or the trap, is one whose last directory is not known.
_WRAPPER = f"trap '{{ pwd -P >/proc/self/fd/{DIRECTORY_FD}; }} 2>/dev/null' EXIT; eval \"set --;$1\""
# Elsewhere nobody can look at what a directory really is, and so it says where it began as well.
_WRAPPER_AWAY = (
    f"{{ {{ pwd -P; printf '\\0'; }} >/proc/self/fd/{DIRECTORY_FD}; }} 2>/dev/null; "
    f"trap '{{ pwd -P >>/proc/self/fd/{DIRECTORY_FD}; }} 2>/dev/null' EXIT; eval \"set --;$1\""
)
_MARK = "holdfast-path:"
_SHELL_MARK, _OWN_MARK = "holdfast-shell:", "holdfast-own:"
_ENV_PROGRAM = shutil.which("env") or "/usr/bin/env"
# What `chosen` and `profile` find out here, asked in another place.
_SURVEY = f"""
s=$SHELL
case ${{s##*/}} in {"|".join(_KNOWN)}) ;; *) s= ;; esac
case $s in /*) [ -x "$s" ] || s= ;; *) s= ;; esac
[ -n "$s" ] || s=$(command -v bash) || s=/bin/sh
printf '\\n{_SHELL_MARK}%s\\n{_OWN_MARK}%s\\n' "$s" "$PATH"
exec "$s" -l -i -c 'printf "\\n{_MARK}%s\\n" "$PATH"'
"""
_PATH_MAX_BYTES = 4096
_BRIEFLY: dict[str, Any] = {
    "timeout": limits.PROFILE_S - 2 * limits.PROFILE_GRACE_S,
    "grace": limits.PROFILE_GRACE_S,
    "notify": "never",
    "labels": {"hermes.asks": "path"},
}

# By shell, and the HOME and PATH that it began with: asked once, for profiles are slow.
_profiles: dict[tuple[str, str, str], Future[dict[str, str]]] = {}
_profiles_lock = threading.Lock()
# The same by place: its shell, and the PATH of a login there; None where it did not say.
_surveys: dict[tuple[str, ...], tuple[str, str | None]] = {}


def chosen(environ: Mapping[str, str]) -> str:
    """The user's shell where it speaks as commands expect, else bash, else sh."""
    wanted = environ.get("SHELL", "")
    if os.path.basename(wanted) in _KNOWN and os.path.isabs(wanted) and os.access(wanted, os.X_OK):
        return wanted
    return shutil.which("bash", path=environ.get("PATH")) or "/bin/sh"


async def profile(hf: AsyncHoldfast, shell: str, env: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """What the user's shell exports after it has read its files as a login and interactive one (`-lic`), and what went
    wrong, told once. Asked once a host, whoever asks first; the others wait for it."""
    key = (shell, env.get("HOME", ""), env.get("PATH", ""))
    while True:
        with _profiles_lock:
            found = _profiles.get(key)
            mine = found is None
            if found is None:
                found = _profiles[key] = Future()
        if mine:
            break
        try:
            return (await hf._core.driver.call(found.result)), None
        except CancelledError:
            continue  # the call that asked was given up
    try:
        exports, problem = await _ask_profile(hf, shell, env)
    except BaseException:
        with _profiles_lock:
            del _profiles[key]
        found.cancel()
        raise
    found.set_result(exports)
    return exports, problem


async def _ask_profile(hf: AsyncHoldfast, shell: str, env: Mapping[str, str]) -> tuple[dict[str, str], str | None]:
    """It writes into memory: values are no matter of any disk."""
    fd = os.memfd_create("profile")
    try:
        words = [shell, "-l", "-i", "-c", f"{_ENV_PROGRAM} -0 >/proc/self/fd/{DIRECTORY_FD}"]
        asked = await hf.run(
            words, env={**env, "TERM": "dumb"}, clean_env=True, pass_fds={DIRECTORY_FD: fd}, **_BRIEFLY
        )
        said = os.pread(fd, os.fstat(fd).st_size, 0)
        await _leave(asked)
    except HoldfastError as problem:
        return {}, texts.profile_failed(shell, str(problem))
    finally:
        os.close(fd)
    pairs = [os.fsdecode(each).partition("=") for each in said.split(b"\0")[:-1]]
    if not pairs:
        return {}, texts.profile_failed(shell, _why(asked))
    return {name: value for name, _, value in pairs if env.get(name) != value}, None


async def survey(hf: AsyncHoldfast, place: str, env: Mapping[str, str]) -> tuple[str, str | None, str | None]:
    """The shell of another place, and the PATH of a login there, None where it did not say; and what went wrong, told
    once. A place that cannot be asked can run nothing either, and so that is no matter of this."""
    key = (place, *(env.get(name, "") for name in ("SHELL", "HOME", "PATH")))
    if key in _surveys:
        return *_surveys[key], None
    asked = await hf.run(["/bin/sh", "-c", _SURVEY], place=place, env=env, **_BRIEFLY)
    lines = (await asked.text("stdout")).splitlines()
    program, own, theirs = (_said(lines, mark) for mark in (_SHELL_MARK, _OWN_MARK, _MARK))
    try:
        await _leave(asked)
    except HoldfastError:
        pass  # retention does it
    if program is None:
        return "/bin/sh", None, texts.login_path_failed("shell", _why(asked), place)
    _surveys[key] = program, None if theirs is None else joined(theirs, own or "")
    problem = texts.login_path_failed(program, _why(asked), place) if theirs is None else None
    return *_surveys[key], problem


def _said(lines: Sequence[str], mark: str) -> str | None:
    """Behind the last such mark: a profile may print anything before it."""
    found = [line.removeprefix(mark) for line in lines if line.startswith(mark)]
    return found[-1] if found else None


def _why(asked: AsyncSession) -> str:
    return "it took too long" if asked.exit and asked.exit.cause == "overall_timeout" else "it did not say"


def joined(theirs: str, ours: str) -> str:
    first = theirs.split(":")
    return ":".join(first + [each for each in ours.split(":") if each and each not in first])


async def _leave(asked: AsyncSession) -> None:
    # A shell that left something running is not removed yet; retention does it.
    if not (asked.exit and asked.exit.survivors):
        await asked.remove()


def forget(place: str) -> None:
    """What is there now is not what was there before."""
    for key in [key for key in _surveys if key[0] == place]:
        del _surveys[key]


class LastDirectory:
    """How a foreground command says where it left: under a number of its own it has a file, in memory here."""

    def __init__(self, program: str) -> None:
        self._fd = os.memfd_create("last-directory")
        self.options = {"shell": [program, "-c", _WRAPPER, program], "pass_fds": {DIRECTORY_FD: self._fd}}

    def moved(self, session: AsyncSession) -> str | None:
        """None: nowhere else, or nothing was written, or no directory."""
        said = os.fsdecode(os.pread(self._fd, _PATH_MAX_BYTES + 1, 0))
        path = said.removesuffix("\n")
        is_one = said.endswith("\n") and os.path.isabs(path) and os.path.isdir(path)
        return path if is_one and path != os.path.realpath(session.cwd or "") else None

    def close(self) -> None:
        os.close(self._fd)


class LastDirectoryAway:
    """The same in another place, where the file is the runner's, who keeps what was written."""

    def __init__(self, hf: AsyncHoldfast, program: str) -> None:
        self._home = hf.home
        self.options = {"shell": [program, "-c", _WRAPPER_AWAY, program], "pass_fds": {DIRECTORY_FD: None}}

    def moved(self, session: AsyncSession) -> str | None:
        try:
            with open(os.path.join(self._home.session(session.id), report.FILE), "rb") as file:
                began, _, ended = os.fsdecode(file.read()).partition("\0")
        except FileNotFoundError:
            return None
        path = ended.removesuffix("\n")
        return path if ended.endswith("\n") and path.startswith("/") and ended != began else None

    def close(self) -> None:
        pass
