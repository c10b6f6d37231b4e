"""A tracker's snapshot as the sequences that put a terminal into it, part by part. No cells, no side effects."""

from __future__ import annotations

from ..runner import pen as pens
from ..runner.modes import ALTERNATE, DEFAULT, SYNCHRONIZED
from .filter import REFUSED_MODES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    State = dict[str, Any]

_ORIGIN, _AUTOWRAP, _CURSOR_BLINK, _KEYPAD, _SIDES = 6, 7, 12, 66, 69
# What is set with the cursor and the margins, what is no flag, and what is over when anybody reads this.
_NOT_FLAGS = frozenset((_ORIGIN, _SIDES, _CURSOR_BLINK, 1048, SYNCHRONIZED, *ALTERNATE))
_NUMBERS = {"foreground": 10, "background": 11, "cursor": 12}
_DEFAULT_CHARSETS = ["B"] * 4
_SLOTS = "()*+"
_SLOTS_OF_96 = " -./"
_SHIFTS = ("\x0f", "\x0e", "\x1bn", "\x1bo")


def to(row: int, col: int) -> str:
    """The cursor to a place, both from 0."""
    return f"\x1b[{row + 1};{col + 1}H"


def pen(parts: dict[str, str]) -> str:
    return f"\x1b[{pens.sgr(parts)}m"


def link(opened: list[str] | None) -> str:
    return "\x1b]8;{};{}\x1b\\".format(*opened) if opened else ""


def charsets(names: list[str], shift: int) -> str:
    """From ASCII everywhere."""
    named = [_designated(slot, name) for slot, name in enumerate(names) if name != "B"]
    return "".join(named) + (_SHIFTS[shift] if shift else "")


def ascii_again(names: list[str], shift: int) -> str:
    """Back to ASCII everywhere."""
    return "".join(_designated(slot, "B") for slot, name in enumerate(names) if name != "B") + ("\x0f" if shift else "")


def _designated(slot: int, name: str) -> str:
    """A set of 96 characters has a `-` before its name."""
    return f"\x1b{_SLOTS_OF_96[slot]}{name[1:]}" if name.startswith("-") else f"\x1b{_SLOTS[slot]}{name}"


def protection(value: int) -> str:
    return f'\x1b[{value}"q' if value else ""


def saved_cursor(saved: dict[str, Any] | None) -> str:
    """On the screen it belongs to, with nothing set before and nothing set behind. Cells stay as they are."""
    if saved is None:
        return ""
    names, shift = saved.get("charsets", _DEFAULT_CHARSETS), saved["shift"]
    return "".join(
        (
            "\x1b[?6h" if saved["origin"] else "",
            to(saved["row"], saved["col"]),
            pen(saved["pen"]),
            protection(saved["protected"]),
            charsets(names, shift),
            "\x1b7",
            ascii_again(names, shift),
            protection(2 if saved["protected"] else 0),
            "\x1b[m",
            "\x1b[?6l" if saved["origin"] else "",
        )
    )


def tabs(state: State) -> str:
    stops = state["tabs"]
    if stops is None:
        return ""
    cols = state["size"][1]
    return "\x1b[3g" + "".join(f"\x1b[{stop + 1}G\x1bH" for stop in stops if stop < cols)


def margins(state: State) -> str:
    """They and origin mode move the cursor."""
    rows, cols = state["size"]
    top, bottom, left, right = state["margins"]
    out = ""
    if (top, bottom) != (0, rows - 1):
        out += f"\x1b[{top + 1};{bottom + 1}r"
    if _SIDES in state["modes"]["dec"]:
        out += "\x1b[?69h"
        if (left, right) != (0, cols - 1):
            out += f"\x1b[{left + 1};{right + 1}s"
    return out + ("\x1b[?6h" if _ORIGIN in state["modes"]["dec"] else "")


def place(state: State, row: int, col: int) -> str:
    """As `to`, under the margins in force."""
    if _ORIGIN in state["modes"]["dec"]:
        top, _, left, _ = state["margins"]
        return to(max(row - top, 0), max(col - left, 0))
    return to(row, col)


def flags(state: State) -> str:
    """Modes that are on or off and nothing else. What no client terminal may be put into is left out."""
    modes = state["modes"]
    dec = set(modes["dec"])
    # DECNKM is not known to every terminal; the older sequence is.
    out = ["\x1b=" if mode == _KEYPAD else f"\x1b[?{mode}h" for mode in sorted(dec - DEFAULT) if _is_flag(mode)]
    out += [f"\x1b[?{mode}l" for mode in sorted(DEFAULT - dec)]
    out += [f"\x1b[{mode}h" for mode in modes["ansi"]]
    for name, on in modes["unknown"].items():
        if not (name.startswith("?") and not _is_flag(int(name[1:]))):
            out.append(f"\x1b[{name}{'h' if on else 'l'}")
    return "".join(out)


def _is_flag(mode: int) -> bool:
    return mode not in _NOT_FLAGS and mode not in REFUSED_MODES


def shape(state: State) -> str:
    if state["shape"]:
        return f"\x1b[{state['shape']} q"
    return "\x1b[?12h" if _CURSOR_BLINK in state["modes"]["dec"] else ""


def keyboard(stack: list[int]) -> str:
    """The kitty keyboard of the active screen, from the state that nobody pushed."""
    lowest, *pushed = stack
    return (f"\x1b[={lowest};1u" if lowest else "") + "".join(f"\x1b[>{flags}u" for flags in pushed)


def modified_keys(state: State) -> str:
    level = state["keys"]["modify_other"]
    return f"\x1b[>4;{level}m" if level else ""


def colors(state: State) -> str:
    chosen = state["colors"]
    out = [f"\x1b]4;{index};{color}\x1b\\" for index, color in chosen["palette"].items()]
    out += [f"\x1b]{number};{chosen[name]}\x1b\\" for name, number in _NUMBERS.items() if chosen[name] is not None]
    return "".join(out)


def labels(state: State) -> str:
    """Title, icon, directory, progress and pointer."""
    said = state["labels"]
    out = ""
    if said["title"]:
        out += f"\x1b]2;{said['title']}\x1b\\"
    if said["icon"]:
        out += f"\x1b]1;{said['icon']}\x1b\\"
    if said["cwd"]:
        out += f"\x1b]7;{said['cwd']}\x1b\\"
    if said["progress"]:
        out += "\x1b]9;4;{};{}\x1b\\".format(*said["progress"])
    if said["pointer"]:
        out += f"\x1b]22;{said['pointer']}\x1b\\"
    return out
