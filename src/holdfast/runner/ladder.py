"""How a command is ended: rung by rung, each gentler than the next, as a plain state machine without I/O.

The runner climbs it with timers and child exits, a host with a blocking loop when the runner is gone.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

COMMAND, GROUP, TREE = "command", "group", "tree"
# Every process group that has the session's terminal; and the terminal itself, as if somebody typed.
SESSION, TERMINAL = "session", "terminal"
# What a person types to interrupt: no signal, until the terminal makes one of it.
INTR = "INTR"
_OF_THE_COMMAND = (COMMAND, TERMINAL)

# The last rung is given this long to take effect before the answer names survivors.
SETTLE_S = 4.0


class Rung:
    __slots__ = ("signal", "target", "wait_s")

    def __init__(self, signal: str, target: str, wait_s: float) -> None:
        self.signal = signal
        self.target = target
        self.wait_s = wait_s

    def __str__(self) -> str:
        return f"{self.signal} to the {self.target}"


def rungs(grace_s: float, asked: list[dict[str, Any]] | None = None, *, tty: bool = False) -> list[Rung]:
    """The graceful signal to the command alone, so that it can shut its children down in its own order; then to
    whatever is left; then the kill. On a terminal first the key, twice, and before TERM a hang-up: interactive shells
    ignore the one and not the other. A grace of 0 kills at once. An asked rung that says it is the `last` is not
    followed by a kill: what does not leave then stays."""
    if asked is None and tty:
        climb = [
            Rung(INTR, TERMINAL, grace_s * 0.2),
            Rung(INTR, TERMINAL, grace_s * 0.2),
            Rung("HUP", SESSION, grace_s * 0.3),
            Rung("TERM", TREE, grace_s * 0.3),
        ]
    elif asked is None:
        climb = [Rung("TERM", COMMAND, grace_s * 0.6), Rung("TERM", TREE, grace_s * 0.4)]
    else:
        climb = [Rung(rung["signal"], rung.get("target", COMMAND), float(rung["wait_s"])) for rung in asked]
    if grace_s == 0:
        climb = [rung for rung in climb if rung.signal == "KILL"]
    asks_only = grace_s > 0 and asked is not None and bool(asked) and asked[-1].get("last") is True
    if not asks_only and (not climb or climb[-1].signal != "KILL"):
        climb.append(Rung("KILL", TREE, SETTLE_S))
    return climb


class Ladder:
    """Ask `step` whenever something died or `until` has passed; it names the rung to act on, if any."""

    def __init__(self, climb: list[Rung]) -> None:
        self._climb = climb
        self._position = -1
        self.until = 0.0
        self.over = False

    @property
    def rung(self) -> Rung | None:
        return self._climb[self._position] if self._position >= 0 else None

    @property
    def _reach(self) -> str:
        """How far this ladder goes: the target of its last rung."""
        return self._climb[-1].target

    def step(self, now: float, *, command_gone: bool, tree_gone: bool) -> Rung | None:
        if self.over:
            return None
        if tree_gone or (command_gone and self._reach == COMMAND):
            self.over = True
            return None
        current = self.rung
        if current is not None and now < self.until and not (command_gone and current.target in _OF_THE_COMMAND):
            return None
        self._position += 1
        while (
            command_gone and self._position < len(self._climb) and self._climb[self._position].target in _OF_THE_COMMAND
        ):
            self._position += 1  # nobody is there to get its signal, or to be waited for
        if self._position == len(self._climb):
            self._position -= 1
            self.over = True
            return None
        rung = self._climb[self._position]
        self.until = now + rung.wait_s
        return rung
