"""Our own keyboard: what of it is typed, what is for us, and what only answers our questions to the terminal."""

from __future__ import annotations

import os
import time

from ..terminal import detach
from ..terminal.detach import DetachScanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..terminal.detach import DetachKey, Outcome
    from ..terminal.probe import Answers
    from .ownterminal import OwnTerminal


class Keyboard:
    """Fed with what the terminal sends. Something held is to be released at `release_at` if nothing came until then.

    `described` is what the terminal told of itself, `flags` its kitty keyboard before us."""

    def __init__(self, key: DetachKey | None) -> None:
        self.described: dict[str, Any] | None = None
        self.flags = 0
        self.release_at: float | None = None
        self._scanner = DetachScanner(key)
        # Until the last answer has come, however late: no key sends what an answer looks like.
        self._answers: Answers | None = None

    def ask(self, terminal: OwnTerminal) -> bytes:
        """Ask the terminal, which is raw, about itself; what was typed meanwhile. One that knows no sequences is left
        alone."""
        if terminal.keys is None or os.environ.get("TERM", "dumb") == "dumb":
            return b""
        from ..terminal.probe import probe

        answers, typed = probe(terminal.keys, terminal.screen)
        self.described = answers.describe(*(terminal.size() or (0, 0)))
        self.flags = answers.keyboard or 0
        if not answers.complete:
            self._answers = answers
        return typed

    def feed(self, data: bytes, *, exact_keys: bool) -> Outcome:
        """Units to send and commands. `exact_keys`: whether the terminal was asked to send more than the usual."""
        if self._answers is not None:
            data = self._answers.feed(data)
            if self._answers.complete:
                self._answers = None
        self._scanner.holds_escape = exact_keys
        return self._then(self._scanner.feed(data))

    def release(self) -> Outcome:
        """Nothing followed: it was typed."""
        if self._answers is not None and self._answers.holds:
            return self._then(self._scanner.feed(self._answers.release()))
        return self._then(self._scanner.release())

    def _then(self, outcome: Outcome) -> Outcome:
        wait_s = self._scanner.wait_s
        if self._answers is not None and self._answers.holds:
            wait_s = detach.HOLD_S
        self.release_at = None if wait_s is None else time.monotonic() + wait_s
        return outcome
