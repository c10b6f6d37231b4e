"""The modes of a terminal by their numbers: which there are, which are set, what DECRQM says of them.

The alternate screen is no flag, whatever mode led there: it is where the terminal is.
"""

from __future__ import annotations

from time import monotonic

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOUSE = (9, 1000, 1002, 1003)
ENCODINGS = {1005: "utf8", 1006: "sgr", 1015: "urxvt", 1016: "pixels"}
ALTERNATE = (47, 1047, 1049)
SYNCHRONIZED = 2026
# An update that is not ended in this time was forgotten.
SYNCHRONIZED_MAX_S = 1.0

KNOWN = frozenset(
    (1, 5, 6, 7, 12, 25, 45, 66, 67, 69, 1004, 1007, 1048, 2004, SYNCHRONIZED, 2031, *MOUSE, *ENCODINGS, *ALTERNATE)
)
KNOWN_ANSI = frozenset((4, 20))
DEFAULT = frozenset((7, 25))

# Of DECCOLM only that it clears the page is followed, where ?40 allows it: the width is the clients'.
COLUMNS, ALLOW_COLUMNS = 3, 40
# Never set: DECCOLM would resize, ?2027 change widths, ?2048 make the terminal write by itself.
REFUSED = frozenset((COLUMNS, ALLOW_COLUMNS, 2027, 2048))
_PERMANENTLY_RESET = frozenset((COLUMNS, ALLOW_COLUMNS))

# What a client does something about. Layout and the flicker of cursor and updates are not among it.
TOLD = frozenset((1, 5, 66, 67, 1004, 1007, 2004, 2031, *MOUSE, *ENCODINGS, *ALTERNATE))

SOFT_RESET = (1, 6, 45, 66, 69)

# Of modes nobody knows, and of saved ones: a hostile stream has a hundred thousand numbers to offer.
KEPT_MAX = 64


class Modes:
    __slots__ = ("dec", "ansi", "unknown", "saved", "alternate", "_updating_since")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.dec = set(DEFAULT)
        self.ansi: set[int] = set()
        # "?1034" or "12" -> whether it is set, for whoever restores this terminal.
        self.unknown: dict[str, bool] = {}
        self.saved: dict[int, bool] = {}
        self.alternate = False
        self._updating_since = 0.0

    def has(self, number: int) -> bool:
        return self.alternate if number in ALTERNATE else number in self.dec

    def set(self, number: int, on: bool) -> bool:
        """A DEC mode that is a mere flag. Whether that changed something."""
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
            # One at a time; to reset any of them is to reset the one there is.
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
