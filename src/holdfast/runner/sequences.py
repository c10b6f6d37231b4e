"""The state of a terminal without cells, and what each sequence does to it."""

from __future__ import annotations

from . import answers, pen
from .colors import COMMANDS, Colors
from .cursor import Cursor
from .escapes import numbers, split_csi, split_dcs
from .keymodes import KeyModes
from .labels import Labels
from .modes import ALLOW_COLUMNS, ALTERNATE, COLUMNS, SOFT_RESET, TOLD, Modes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Parameters = tuple[int, ...]
    Action = tuple[Callable[[Any], None], Any]

# Sequences repeat: what was worked out is kept for so many of them, if they are no longer than this.
_KNOWN_MAX = 256
_KNOWN_MAX_BYTES = 24

# Modes that movement depends on, and the one that is a saved cursor.
_LAYOUT = frozenset((6, 7, 45, 69, 1048))


class State:
    def __init__(
        self,
        rows: int,
        cols: int,
        version: str,
        colors: dict[str, Any] | None,
        clipboard: bool,
        colorfgbg: str | None,
        term: str,
    ) -> None:
        self.version = version
        self.term = term
        self.clipboard = clipboard
        self.cursor = Cursor(rows, cols)
        self.modes = Modes()
        self.colors = Colors(colors, colorfgbg)
        self.labels = Labels()
        # Pixels of a cell, height and width, of the client that sizes.
        self.cell: tuple[int, int] | None = None
        self.keys = KeyModes()
        self.cursor_shape = 0
        # Where the alternate screen was entered, and whether it is blank when that happens next.
        self.alt_entry: int | None = None
        self.alt_clean = True
        # Linefeeds on the main screen, which is what goes into its history; and how many when that was last emptied.
        self.line_count = 0
        self.history_start = 0
        # Where the sequence stands that is being carried out.
        self.at = 0
        self.replies: list[bytes] = []
        self.news = False
        self.known: dict[bytes, Action] = {}
        self._csi = self._csi_table()
        self._esc = self._esc_table()
        self.controls = self._control_table()

    def cleared(self, alternate: bool) -> None:
        """The sequence at `at`, not yet carried out, leaves nothing on this screen of what was before."""
        raise NotImplementedError

    def csi(self, raw: bytes) -> Action:
        """What this CSI does: a function and its argument."""
        prefix, body, intermediates, final = split_csi(raw)
        name = prefix + intermediates + final
        action: Action
        if name == b"m":
            action = self._draw, pen.parse(body)
        elif name in self._csi:
            action = self._csi[name], numbers(body)
        else:
            action = _nothing, None
        if len(raw) <= _KNOWN_MAX_BYTES:
            if len(self.known) >= _KNOWN_MAX:
                self.known.clear()
            self.known[raw] = action
        return action

    def _csi_table(self) -> dict[bytes, Callable[[Parameters], None]]:
        """By prefix, intermediates and final."""
        cursor = self.cursor
        return {
            **{name: self._answering(answer) for name, answer in answers.CSI.items()},
            b"A": cursor.up,
            b"B": cursor.down,
            b"C": cursor.forward,
            b"D": cursor.back,
            b"E": cursor.next_lines,
            b"F": cursor.previous_lines,
            b"G": cursor.to_col,
            b"`": cursor.to_col,
            b"H": cursor.to,
            b"f": cursor.to,
            b"I": cursor.tab_forward,
            b"Z": cursor.tab_back,
            b"a": cursor.right_by,
            b"e": cursor.down_by,
            b"d": cursor.to_row,
            b"b": cursor.repeat,
            b"g": cursor.clear_tabs,
            b"W": cursor.control_tabs,
            b"?W": cursor.reset_tabs,
            b"J": self._erase,
            **dict.fromkeys((b"?J", b"K", b"?K"), cursor.erase),
            **dict.fromkeys((b"X", b"P", b"@"), cursor.unwrap),
            b"L": cursor.shift_lines,
            b"M": cursor.shift_lines,
            b"r": cursor.set_rows,
            b"s": self._save_or_set_cols,
            b"u": lambda _: self._restore_cursor(),
            b"h": lambda parameters: self._set_ansi_modes(parameters, True),
            b"l": lambda parameters: self._set_ansi_modes(parameters, False),
            b"?h": lambda parameters: self._set_modes(parameters, True),
            b"?l": lambda parameters: self._set_modes(parameters, False),
            b"?s": self._save_modes,
            b"?r": self._restore_modes,
            b"!p": lambda _: self._soft_reset(),
            b" q": self._set_shape,
            b'"q': self._set_protection,
            b">m": lambda parameters: self._heard(self.keys.set_modify(parameters)),
            b">n": lambda parameters: self._heard(self.keys.disable_modify(parameters)),
            b"=u": lambda parameters: self._heard(self.keys.set_kitty(self.modes.alternate, parameters)),
            b">u": lambda parameters: self._heard(self.keys.push_kitty(self.modes.alternate, parameters)),
            b"<u": lambda parameters: self._heard(self.keys.pop_kitty(self.modes.alternate, parameters)),
            b"t": self._window,
        }

    def _esc_table(self) -> dict[bytes, Callable[[], None]]:
        cursor = self.cursor
        return {
            b"7": self._save_cursor,
            b"8": self._restore_cursor,
            b"D": cursor.index,
            b"E": cursor.next_line,
            b"H": cursor.set_tab,
            b"M": cursor.reverse_index,
            b"N": lambda: self._shift_once(2),
            b"O": lambda: self._shift_once(3),
            b"Z": lambda: self._answer(answers.attributes(self)),
            b"=": lambda: self._set_modes((66,), True),
            b">": lambda: self._set_modes((66,), False),
            b"c": self._reset,
            b"n": lambda: self._shift(2),
            b"o": lambda: self._shift(3),
            b"#8": self._align,
        }

    def _control_table(self) -> dict[bytes, Callable[[], None]]:
        cursor = self.cursor
        return {
            b"\x07": self._ring,
            b"\x08": lambda: cursor.back(()),
            b"\x09": lambda: cursor.tab_forward(()),
            b"\x0a": self._linefeed,
            b"\x0b": cursor.linefeed,
            b"\x0c": cursor.linefeed,
            b"\x0d": cursor.carriage_return,
            b"\x0e": lambda: self._shift(1),
            b"\x0f": lambda: self._shift(0),
        }

    def _heard(self, changed: bool) -> None:
        if changed:
            self.news = True

    # Questions.

    def _answering(self, answer: answers.Answer) -> Callable[[Parameters], None]:
        return lambda parameters: self._answer(answer(self, parameters))

    def _answer(self, reply: str) -> None:
        if reply:
            self.replies.append(reply.encode())

    def device_control(self, raw: bytes) -> None:
        prefix, _, intermediates, final, asked, _ = split_dcs(raw)
        name = prefix + intermediates + final
        if name == b"$q":
            self.replies.append(answers.setting(self, asked))
        elif name == b"+q":
            self.replies += answers.capabilities(self, asked)

    # Controls and ESC sequences.

    def _ring(self) -> None:
        self.labels.bells += 1

    def _linefeed(self) -> None:
        self.cursor.linefeed()
        if not self.modes.alternate:
            self.line_count += 1

    def _shift(self, slot: int) -> None:
        self.cursor.shift = slot

    def _shift_once(self, slot: int) -> None:
        self.cursor.single_shift = slot

    def escape(self, intermediates: bytes, final: bytes) -> None:
        action = self._esc.get(intermediates + final)
        if action is not None:
            action()
        else:
            self.cursor.designate(intermediates, final)

    def _save_cursor(self) -> None:
        self.cursor.save(self.modes.alternate)

    def _restore_cursor(self) -> None:
        self.cursor.restore(self.modes.alternate)
        (self.modes.dec.add if self.cursor.origin else self.modes.dec.discard)(6)

    def _save_or_set_cols(self, parameters: Parameters) -> None:
        if self.modes.has(69):
            self.cursor.set_cols(parameters)
        else:
            self._save_cursor()

    def _align(self) -> None:
        """DECALN."""
        self.cleared(self.modes.alternate)
        self.cursor.no_margins()
        self.cursor.pending_wrap = False
        self.cursor.row = self.cursor.col = 0

    def _erase(self, parameters: Parameters) -> None:
        what = parameters[0] if parameters else 0
        cursor = self.cursor
        if what == 2 or (what == 0 and not cursor.row and not cursor.col):
            self.cleared(self.modes.alternate)
        elif what == 3:
            self.history_start = self.line_count
        cursor.erase(parameters)

    def _draw(self, strokes: pen.Strokes) -> None:
        pen.draw(self.cursor.pen, strokes)

    # Modes.

    def _set_ansi_modes(self, parameters: Parameters, on: bool) -> None:
        for number in parameters:
            self.modes.set_ansi(number, on)
            if number == 20:
                self.cursor.newline = on

    def _set_modes(self, parameters: Parameters, on: bool) -> None:
        # An alternate screen that is cleared on entry, or has been blank till then.
        is_blank = 1049 in parameters or (self.alt_clean and not self.modes.alternate)
        if on and is_blank and any(number in ALTERNATE for number in parameters):
            self.cleared(True)
        for number in parameters:
            if number in ALTERNATE:
                self._switch_screen(number, on)
                continue
            if number == COLUMNS and ALLOW_COLUMNS in self.modes.dec:
                self._switch_columns()
            if self.modes.set(number, on) and number in TOLD:
                self.news = True
            if number in _LAYOUT:
                self._lay_out(number, on)

    def _switch_columns(self) -> None:
        """DECCOLM, as on a terminal whose window keeps its size: the page is cleared, margins go, cursor home."""
        self.cleared(self.modes.alternate)
        self.cursor.no_margins()
        self.cursor.home()

    def _lay_out(self, number: int, on: bool) -> None:
        cursor = self.cursor
        if number == 6:
            cursor.origin = on
            cursor.home()
        elif number == 7:
            cursor.autowrap = on
        elif number == 45:
            cursor.reverse_wrap = on
        elif number == 69:
            cursor.left, cursor.right = 0, cursor.cols - 1
        elif on:
            self._save_cursor()
        else:
            self._restore_cursor()

    def _switch_screen(self, number: int, on: bool) -> None:
        modes = self.modes
        if on:
            if number == 1049:
                self._save_cursor()
                self.cursor.pending_wrap = False
            if not modes.alternate:
                modes.alternate = self.news = True
                self.alt_entry = self.at
                self.alt_clean = False
            return
        if modes.alternate:
            # Only this one leaves it blank.
            self.alt_clean = number == 1047
            modes.alternate = False
            self.alt_entry = None
            self.news = True
        if number == 1049:
            self._restore_cursor()

    def _save_modes(self, parameters: Parameters) -> None:
        for number in parameters:
            self.modes.save(number)

    def _restore_modes(self, parameters: Parameters) -> None:
        for number in parameters:
            if number in self.modes.saved:
                self._set_modes((number,), self.modes.saved[number])

    def _soft_reset(self) -> None:
        """DECSTR."""
        cursor, modes = self.cursor, self.modes
        cursor.soft_reset()
        cursor.saved[modes.alternate] = None
        self._set_modes_quietly(SOFT_RESET, False)
        self._set_modes_quietly((7, 25), True)
        modes.ansi.discard(4)
        self.keys.modify_other = 0
        self.news = True

    def _set_modes_quietly(self, those: tuple[int, ...], on: bool) -> None:
        """The flag alone: what depends on it is reset otherwise."""
        for number in those:
            (self.modes.dec.add if on else self.modes.dec.discard)(number)

    def _reset(self) -> None:
        """RIS."""
        self.cleared(False)
        self.history_start = self.line_count
        self.cursor.reset()
        self.modes.reset()
        self.colors.reset()
        self.labels.reset()
        self.keys.reset()
        self.cursor_shape = 0
        self.alt_entry = None
        self.alt_clean = True
        self.news = True

    # Cursor, keys, titles.

    def _set_shape(self, parameters: Parameters) -> None:
        shape = parameters[0] if parameters else 0
        if shape <= 6:
            self._heard(shape != self.cursor_shape)
            self.cursor_shape = shape
            self._set_modes_quietly((12,), shape in (1, 3, 5))

    def _set_protection(self, parameters: Parameters) -> None:
        value = parameters[0] if parameters else 0
        if value <= 2:
            self.cursor.protected = value

    def _window(self, parameters: Parameters) -> None:
        asked = parameters[0] if parameters else 0
        which = parameters[1] if len(parameters) > 1 else 0
        if asked == 22:
            self.labels.push_title(which)
        elif asked == 23:
            self._heard(self.labels.pop_title(which))
        else:
            self._answer(answers.CSI[b"t"](self, parameters))

    # OSC.

    def operating_system_command(self, payload: bytes, terminator: bytes) -> None:
        digits, _, text = payload.partition(b";")
        if not digits.isdigit() or len(digits) > 4:
            return
        command = int(digits)
        if command not in COMMANDS:
            self._heard(self.labels.hear(command, text))
            return
        was_dark, changes = self.colors.are_dark, self.colors.changes
        for asked in self.colors.hear(command, text):
            self.replies.append(answers.color(self, asked, terminator))
        self._heard(self.colors.changes != changes)
        self.scheme_changed(was_dark)

    def scheme_changed(self, was_dark: bool) -> None:
        if was_dark != self.colors.are_dark and 2031 in self.modes.dec:
            self._answer(answers.color_scheme(self))


def _nothing(_argument: object) -> None:
    pass
