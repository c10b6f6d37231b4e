"""The modes of a terminal by their numbers, and modifyOtherKeys and the kitty keyboard.

The alternate screen is not among the set modes: `Modes.alternate` says which screen is active.
"""

from __future__ import annotations

from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Parameters = tuple[int, ...]


MOUSE = (9, 1000, 1002, 1003)
ENCODINGS = {1005: "utf8", 1006: "sgr", 1015: "urxvt", 1016: "pixels"}
ALTERNATE = (47, 1047, 1049)
SYNCHRONIZED = 2026
# An update that is not ended within this time is taken as ended.
SYNCHRONIZED_MAX_S = 1.0

KNOWN = frozenset(
    (1, 5, 6, 7, 12, 25, 45, 66, 67, 69, 1004, 1007, 1048, 2004, SYNCHRONIZED, 2031, *MOUSE, *ENCODINGS, *ALTERNATE)
)
KNOWN_ANSI = frozenset((4, 20))
DEFAULT = frozenset((7, 25))

# DECCOLM only clears the page, if ?40 allows it: the clients decide the width.
COLUMNS, ALLOW_COLUMNS = 3, 40
# Never set: DECCOLM would resize, ?2027 changes widths, ?2048 makes the terminal send reports.
REFUSED = frozenset((COLUMNS, ALLOW_COLUMNS, 2027, 2048))
_PERMANENTLY_RESET = frozenset((COLUMNS, ALLOW_COLUMNS))

# Changes of these are reported to clients, which act on them. Layout, cursor and updates are not among them.
REPORTED = frozenset((1, 5, 66, 67, 1004, 1007, 2004, 2031, *MOUSE, *ENCODINGS, *ALTERNATE))

SOFT_RESET = (1, 6, 45, 66, 69)

# The most unknown and saved modes: a hostile stream can set a hundred thousand.
KEPT_MAX = 64


class Modes:
    __slots__ = ("dec", "ansi", "unknown", "saved", "alternate", "_updating_since")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.dec = set(DEFAULT)
        self.ansi: set[int] = set()
        # "?1034" or "12" -> whether it is set, so that it can be restored.
        self.unknown: dict[str, bool] = {}
        self.saved: dict[int, bool] = {}
        self.alternate = False
        self._updating_since = 0.0

    def has(self, number: int) -> bool:
        return self.alternate if number in ALTERNATE else number in self.dec

    def set(self, number: int, on: bool) -> bool:
        """Set or reset a DEC mode. Returns whether that changed something."""
        if number not in KNOWN:
            if number == ALLOW_COLUMNS:
                (self.dec.add if on else self.dec.discard)(number)
            elif number not in REFUSED:
                self._keep(f"?{number}", on)
            return False
        if number == SYNCHRONIZED and on:
            self._updating_since = monotonic()
        if self.has(number) == on and not (number in MOUSE and not on):
            return False
        if number in MOUSE:
            # Only one can be set, and resetting any of them resets it.
            before = self.mouse
            self.dec.difference_update(MOUSE)
            if on:
                self.dec.add(number)
            return self.mouse != before
        if on and number in ENCODINGS:
            self.dec.difference_update(ENCODINGS)
        if number not in ALTERNATE:
            (self.dec.add if on else self.dec.discard)(number)
        return True

    def set_ansi(self, number: int, on: bool) -> None:
        if number not in KNOWN_ANSI:
            self._keep(str(number), on)
        elif on:
            self.ansi.add(number)
        else:
            self.ansi.discard(number)

    def _keep(self, name: str, on: bool) -> None:
        if name in self.unknown or len(self.unknown) < KEPT_MAX:
            self.unknown[name] = on

    def save(self, number: int) -> None:
        if number in KNOWN and (number in self.saved or len(self.saved) < KEPT_MAX):
            self.saved[number] = self.has(number)

    def report(self, number: int) -> int:
        """DECRQM: 1 set, 2 reset, 4 permanently reset, 0 unknown."""
        if number in KNOWN:
            on = self.is_updating if number == SYNCHRONIZED else self.has(number)
            return 1 if on else 2
        return 4 if number in _PERMANENTLY_RESET else 0

    def report_ansi(self, number: int) -> int:
        if number in KNOWN_ANSI:
            return 1 if number in self.ansi else 2
        return 0

    @property
    def mouse(self) -> int:
        for number in MOUSE:
            if number in self.dec:
                return number
        return 0

    @property
    def mouse_encoding(self) -> str:
        for number, name in ENCODINGS.items():
            if number in self.dec:
                return name
        return "x10"

    @property
    def is_updating(self) -> bool:
        return SYNCHRONIZED in self.dec and monotonic() - self._updating_since < SYNCHRONIZED_MAX_S

    def snapshot(self) -> dict[str, Any]:
        return {
            "dec": sorted(self.dec),
            "ansi": sorted(self.ansi),
            "unknown": dict(self.unknown),
            "saved": [[number, on] for number, on in self.saved.items()],
        }

    def continue_from(self, snapshot: dict[str, Any], alternate: bool) -> None:
        self.alternate = alternate
        self.dec = set(snapshot["dec"])
        self.ansi = set(snapshot["ansi"])
        self.unknown = dict(snapshot["unknown"])
        self.saved = dict(snapshot["saved"])


STACK_MAX = 16
_FLAGS = 0x1F


class KeyModes:
    """modifyOtherKeys and the kitty keyboard. Each method returns whether it changed something."""

    __slots__ = ("modify_other", "kitty")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.modify_other = 0
        # A stack of flags for the main and one for the alternate screen. The last flags are in force, the first were
        # not pushed.
        self.kitty: list[list[int]] = [[0], [0]]

    def set_modify(self, parameters: Parameters) -> bool:
        """`CSI > 4 ; n m`; without n, or without any parameter, it is reset."""
        if parameters[:1] not in ((), (4,)):
            return False
        return self._change_modify(parameters[1] if len(parameters) > 1 and parameters[1] <= 3 else 0)

    def disable_modify(self, parameters: Parameters) -> bool:
        """`CSI > 4 n`."""
        return self._change_modify(0) if parameters[:1] == (4,) else False

    def _change_modify(self, value: int) -> bool:
        changed = value != self.modify_other
        self.modify_other = value
        return changed

    def set_kitty(self, screen: bool, parameters: Parameters) -> bool:
        """`CSI = flags ; how u`: 1 sets exactly these flags, 2 adds them, 3 removes them."""
        flags = parameters[0] & _FLAGS if parameters else 0
        how = parameters[1] if len(parameters) > 1 else 1
        now = self.kitty[screen][-1]
        return self._change(screen, now | flags if how == 2 else now & ~flags if how == 3 else flags)

    def push_kitty(self, screen: bool, parameters: Parameters) -> bool:
        stack = self.kitty[screen]
        stack.append(stack[-1])
        del stack[: -STACK_MAX - 1]
        return self._change(screen, parameters[0] & _FLAGS if parameters else 0)

    def pop_kitty(self, screen: bool, parameters: Parameters) -> bool:
        stack = self.kitty[screen]
        before = stack[-1]
        del stack[-(parameters[0] or 1 if parameters else 1) :]
        if not stack:
            stack.append(0)
        return stack[-1] != before

    def _change(self, screen: bool, flags: int) -> bool:
        stack = self.kitty[screen]
        changed = flags != stack[-1]
        stack[-1] = flags
        return changed

    def snapshot(self) -> dict[str, Any]:
        return {"modify_other": self.modify_other, "kitty": [list(stack) for stack in self.kitty]}

    def continue_from(self, snapshot: dict[str, Any]) -> None:
        self.modify_other = snapshot["modify_other"]
        self.kitty = [list(stack) for stack in snapshot["kitty"]]
