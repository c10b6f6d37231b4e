"""The state of a terminal without cells, and what each sequence does to it."""

from __future__ import annotations

import re

from . import colors, replies
from .colors import COMMANDS, Colors
from .cursor import Cursor
from .modes import ALLOW_COLUMNS, ALTERNATE, COLUMNS, REPORTED, SOFT_RESET, KeyModes, Modes
from .parser import numbers, split_csi, split_dcs
from .widths import label

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Callable

    Parameters = tuple[int, ...]
    Action = tuple[Callable[[Any], None], Any]


# Labels that a program sets by OSC: title, directory, link, progress, prompt, notices. Bounded plain text.


TITLE_MAX_BYTES = 1024
URI_MAX_BYTES = 4096
STACK_MAX = 16

_EXIT_CODE = re.compile(rb"-?[0-9]{1,10}")
_ZONES = {b"A": "prompt", b"B": "input", b"C": "output", b"D": None}
_PLAIN = (
    *("title", "icon", "title_stack", "cwd", "link", "progress", "pointer", "prompt_zone", "last_exit_code", "bells"),
)


class Labels:
    __slots__ = _PLAIN

    def __init__(self) -> None:
        self.title = ""
        self.icon = ""
        # [title, icon] each, None for one that was not pushed.
        self.title_stack: list[list[str | None]] = []
        self.cwd: str | None = None
        # [parameters, URI] of the text that is being printed.
        self.link: list[str] | None = None
        # [state, percent]: 1 normal, 2 error, 3 unknown, 4 paused.
        self.progress: list[int] | None = None
        self.pointer: str | None = None
        self.prompt_zone: str | None = None
        self.last_exit_code: int | None = None
        self.bells = 0

    def reset(self) -> None:
        """RIS. Titles, directory and the last exit code stay."""
        self.title_stack.clear()
        self.link = self.progress = self.pointer = self.prompt_zone = None

    def carry_out(self, number: int, text: bytes) -> bool:
        """Carry out an OSC. Returns whether something changed that a client acts on."""
        if number in (0, 1, 2):
            return self._set_title(number, label(text, TITLE_MAX_BYTES))
        if number == 7:
            return self._change("cwd", label(text, URI_MAX_BYTES) or None)
        if number == 8:
            parameters, _, uri = text.partition(b";")
            uri_text = label(uri, URI_MAX_BYTES)
            self.link = [label(parameters, TITLE_MAX_BYTES), uri_text] if uri_text else None
        elif number == 9:
            return self._notice_or_progress(text)
        elif number == 22:
            return self._change("pointer", label(text, TITLE_MAX_BYTES) or None)
        elif number == 133:
            return self._prompt(text)
        elif number == 777:
            self.bells += 1
        return False

    def _notice_or_progress(self, text: bytes) -> bool:
        """`4;state;percent` is progress, other numbers are commands of ConEmu, all else is a notice."""
        fields = text.split(b";")
        if fields[0] != b"4":
            self.bells += not (fields[0].isdigit() and len(fields) > 1)
            return False
        state, percent = (
            int(field) if field.isdigit() and len(field) <= 3 else 0 for field in (*fields[1:3], b"", b"")[:2]
        )
        if state > 4:
            return False
        return self._change("progress", [state, min(percent, 100)] if state else None)

    def _prompt(self, text: bytes) -> bool:
        fields = text.split(b";")
        if fields[0] not in _ZONES:
            return False
        changed = self._change("prompt_zone", _ZONES[fields[0]])
        if fields[0] == b"D":
            code = fields[1] if len(fields) > 1 else b""
            changed |= self._change("last_exit_code", int(code) if _EXIT_CODE.fullmatch(code) else None)
        return changed

    def _set_title(self, number: int, text: str) -> bool:
        changed = False
        if number != 1:
            changed |= self._change("title", text)
        if number != 2:
            changed |= self._change("icon", text)
        return changed

    def push_title(self, which: int) -> None:
        self.title_stack.append([None if which == 1 else self.title, None if which == 2 else self.icon])
        del self.title_stack[:-STACK_MAX]

    def pop_title(self, which: int) -> bool:
        if not self.title_stack:
            return False
        title, icon = self.title_stack.pop()
        changed = title is not None and which != 1 and self._change("title", title)
        return (icon is not None and which != 2 and self._change("icon", icon)) or changed

    def _change(self, name: str, value: object) -> bool:
        changed: bool = getattr(self, name) != value
        setattr(self, name, value)
        return changed

    def snapshot(self) -> dict[str, Any]:
        values = {name: getattr(self, name) for name in _PLAIN}
        return {**values, "title_stack": [list(pushed) for pushed in self.title_stack]}

    def continue_from(self, snapshot: dict[str, Any]) -> None:
        for name in _PLAIN:
            setattr(self, name, snapshot[name])
        self.title_stack = [list(pushed) for pushed in snapshot["title_stack"]]


# Sequences repeat: the actions of this many are kept, if they are no longer than this.
_KNOWN_MAX = 256
_KNOWN_MAX_BYTES = 24

# Modes that movement depends on, and the one that saves the cursor.
_LAYOUT = frozenset((6, 7, 45, 69, 1048))


class State:
    def __init__(
        self,
        cursor: Cursor,
        version: str = "0",
        colors: dict[str, Any] | None = None,
        clipboard: bool = False,
        colorfgbg: str | None = None,
        term: str = "xterm-256color",
    ) -> None:
        self.version = version
        self.term = term
        self.clipboard = clipboard
        self.cursor = cursor
        self.modes = Modes()
        self.colors = Colors(colors, colorfgbg)
        self.labels = Labels()
        # Pixels of a cell, height and width, of the client that sizes.
        self.cell: tuple[int, int] | None = None
        self.keys = KeyModes()
        self.cursor_shape = 0
        # Where the alternate screen was entered, and whether it will be blank when it is entered next.
        self.alt_entry: int | None = None
        self.alt_clean = True
        # Linefeeds on the main screen, and how many there were when its history was last cleared.
        self.line_count = 0
        self.history_start = 0
        # The offset of the sequence that is being carried out.
        self.at = 0
        self.replies: list[bytes] = []
        self.news = False
        self.known: dict[bytes, Action] = {}
        self._csi = self._csi_table()
        self._esc = self._esc_table()
        self.controls = self._control_table()

    def cleared(self, alternate: bool) -> None:
        """Called before the sequence at `at` clears this screen completely."""
        raise NotImplementedError

    def csi(self, raw: bytes) -> Action:
        """The action of this CSI: a function and its argument."""
        prefix, body, intermediates, final = split_csi(raw)
        name = prefix + intermediates + final
        action: Action
        if name == b"m":
            action = self._draw, colors.parse_pen(body)
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
            **{name: self._answering(answer) for name, answer in replies.CSI.items()},
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
            b"?J": cursor.erase_display,
            b"K": cursor.erase_line,
            b"?K": cursor.erase_line,
            b"X": cursor.erase_cells,
            b"@": cursor.insert_cells,
            b"P": cursor.delete_cells,
            b"L": cursor.insert_lines,
            b"M": cursor.delete_lines,
            b"S": cursor.scroll_up,
            b"T": cursor.scroll_down,
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
            b">m": lambda parameters: self._note(self.keys.set_modify(parameters)),
            b">n": lambda parameters: self._note(self.keys.disable_modify(parameters)),
            b"=u": lambda parameters: self._note(self.keys.set_kitty(self.modes.alternate, parameters)),
            b">u": lambda parameters: self._note(self.keys.push_kitty(self.modes.alternate, parameters)),
            b"<u": lambda parameters: self._note(self.keys.pop_kitty(self.modes.alternate, parameters)),
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
            b"Z": lambda: self._answer(replies.attributes(self)),
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

    def _note(self, changed: bool) -> None:
        if changed:
            self.news = True

    # Queries.

    def _answering(self, answer: replies.Answer) -> Callable[[Parameters], None]:
        return lambda parameters: self._answer(answer(self, parameters))

    def _answer(self, reply: str) -> None:
        if reply:
            self.replies.append(reply.encode())

    def device_control(self, raw: bytes) -> None:
        prefix, _, intermediates, final, asked, _ = split_dcs(raw)
        name = prefix + intermediates + final
        if name == b"$q":
            self.replies.append(replies.setting(self, asked))
        elif name == b"+q":
            self.replies += replies.capabilities(self, asked)

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
        cursor.erase_display(parameters)

    def _draw(self, strokes: colors.Strokes) -> None:
        colors.draw_pen(self.cursor.pen, strokes)

    # Modes.

    def _set_ansi_modes(self, parameters: Parameters, on: bool) -> None:
        for number in parameters:
            self.modes.set_ansi(number, on)
            if number == 4:
                self.cursor.insert = on
            elif number == 20:
                self.cursor.newline = on

    def _set_modes(self, parameters: Parameters, on: bool) -> None:
        # An alternate screen that is cleared on entry, or is blank already.
        is_blank = 1049 in parameters or (self.alt_clean and not self.modes.alternate)
        if on and is_blank and any(number in ALTERNATE for number in parameters):
            self.cleared(True)
        for number in parameters:
            if number in ALTERNATE:
                self._switch_screen(number, on)
                continue
            if number == COLUMNS and ALLOW_COLUMNS in self.modes.dec:
                self._switch_columns()
            if self.modes.set(number, on) and number in REPORTED:
                self.news = True
            if number in _LAYOUT:
                self._lay_out(number, on)

    def _switch_columns(self) -> None:
        """DECCOLM on a terminal whose window keeps its size: the page and the margins are cleared, cursor home."""
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
            # Only 1047 clears it when leaving.
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
        """Only the flags: what depends on them is reset elsewhere."""
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
            self._note(shape != self.cursor_shape)
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
            self._note(self.labels.pop_title(which))
        else:
            self._answer(replies.CSI[b"t"](self, parameters))

    # OSC.

    def operating_system_command(self, payload: bytes, terminator: bytes) -> None:
        digits, _, text = payload.partition(b";")
        if not digits.isdigit() or len(digits) > 4:
            return
        command = int(digits)
        if command not in COMMANDS:
            self._note(self.labels.carry_out(command, text))
            return
        was_dark, changes = self.colors.are_dark, self.colors.changes
        for asked in self.colors.carry_out(command, text):
            self.replies.append(replies.color(self, asked, terminator))
        self._note(self.colors.changes != changes)
        self.scheme_changed(was_dark)

    def scheme_changed(self, was_dark: bool) -> None:
        if was_dark != self.colors.are_dark and 2031 in self.modes.dec:
            self._answer(replies.color_scheme(self))


def _nothing(_argument: object) -> None:
    pass
