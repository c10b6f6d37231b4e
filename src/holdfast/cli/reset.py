"""Mend this terminal after an attach that was killed: its modes, keys, mouse, colours, screens and settings.

What `hold attach` does by itself when it leaves, but for everything it could ever have been put into. Nothing that is
shown is erased.
"""

from __future__ import annotations

import os

from ..errors import HoldfastError
from .output import is_terminal, write
from .parsing import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = ""
EXAMPLES = """
hold reset
hold reset > /dev/pts/3                 mend another terminal
"""


def arrange(parser: Parser) -> None:
    pass


def main(_args: Namespace) -> int:
    from ..terminal.undo import everything

    if not is_terminal(1):
        error = HoldfastError("our output is no terminal that could be mended")
        error.fix = "run `hold reset` in the terminal, or with its output there"
        raise error
    try:
        cols = os.get_terminal_size(1).columns or 80
    except OSError:
        cols = 80
    write(1, everything(cols))
    _make_usual(1)
    return 0


def _make_usual(fd: int) -> None:
    """Lines, echo and signal keys, as a login sets them."""
    import termios

    settings = termios.tcgetattr(fd)
    settings[0] |= termios.BRKINT | termios.ICRNL | termios.IXON
    settings[0] &= ~(termios.IGNBRK | termios.INLCR | termios.IGNCR | termios.ISTRIP)
    settings[1] |= termios.OPOST | termios.ONLCR
    settings[3] |= termios.ICANON | termios.ISIG | termios.IEXTEN | termios.ECHO | termios.ECHOE | termios.ECHOK
    settings[3] &= ~termios.ECHONL
    termios.tcsetattr(fd, termios.TCSANOW, settings)
