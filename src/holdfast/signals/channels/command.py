"""A program of the user's choice is called for each notice: no shell, every argument stays one."""

from __future__ import annotations

import os
import signal
import subprocess
import threading

from ...config.channels import PLACEHOLDER
from . import DELIVERED, FAILED, Outcome

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..notices import Notice

VARIABLES = "HOLDFAST_EVENT_"
# At the beginning of an argument: an option, and in some programs a file whose content is meant.
_MEANINGFUL = ("-", "+", "@")


class Command:
    def __init__(self, argv: Sequence[str], environ: Mapping[str, str] = os.environ) -> None:
        self._argv = argv
        self._environ = environ

    def deliver(self, notice: Notice) -> Call:
        fields = notice.fields
        more = {"id": notice.first.id, "variant": notice.first.variant}
        variables = {VARIABLES + name.upper(): text for name, text in {**fields, **more}.items()}
        return Call(arguments(self._argv, fields), {**self._environ, **variables})


def arguments(argv: Sequence[str], fields: Mapping[str, str]) -> list[str]:
    """What stands for a placeholder is not looked at again: no text of a session becomes one. Nor does it become an
    option or the name of a file to be read: where such text is the beginning of an argument, a space goes before it."""
    return [_argument(word, fields) for word in argv]


def _argument(word: str, fields: Mapping[str, str]) -> str:
    filled = PLACEHOLDER.sub(lambda found: fields.get(found.group(1), found.group()), word)
    chosen_by_session = filled[:1] != word[:1] or PLACEHOLDER.match(word) is not None
    return f" {filled}" if chosen_by_session and filled.startswith(_MEANINGFUL) else filled


class Call:
    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._argv = argv
        self._environment = environment
        self._guard = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._over = False

    def run(self) -> Outcome:
        try:
            with self._guard:
                if self._over:
                    return Outcome(FAILED, "there was no time left for it")
                # In a group of its own, so that its end is the end of all that it started.
                self._process = process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    env=self._environment,
                    cwd="/",
                    process_group=0,
                )
        except OSError as problem:
            return Outcome(FAILED, f"{self._argv[0]} could not be started: {problem.strerror}")
        # Without reaping it: as long as it is a zombie, its number and its group's are its own.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with self._guard:
            self._over = True
            code = process.wait()
        if code == 0:
            return Outcome(DELIVERED)
        how = f"was ended by signal {-code}" if code < 0 else f"exited with code {code}"
        return Outcome(FAILED, f"{self._argv[0]} {how}")

    def abort(self) -> Outcome:
        with self._guard:
            if self._process is not None and not self._over:
                os.killpg(self._process.pid, signal.SIGKILL)
            self._over = True
        return Outcome(FAILED, f"{self._argv[0]} took too long and was killed")
