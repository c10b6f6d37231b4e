"""The parser of one command: options as people write them, mistakes as errors that name the fix."""

from __future__ import annotations

import argparse

from ..errors import USAGE, BadArgument, HoldfastError
from ..model.units import seconds, size_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

    from ..model.session import Record

# Where the width of a line is not known, and the most that is easily read.
_WIDTH = 100
_WIDEST = 120
_HELP_COLUMN = 26

_REFERENCE_HELP = "id, beginning of an id, name, pid, or `last`"

# Nobody translates these few words, and looking for a translation costs more than parsing the options.
argparse._ = str  # type: ignore[attr-defined]


class Parser(argparse.ArgumentParser):
    def __init__(self, program: str, usage: str, description: str, examples: str) -> None:
        super().__init__(
            prog=program,
            usage=" ".join(f"{program} {usage}".split()),
            description=description.strip(),
            epilog="examples:\n" + "\n".join(f"  {line}" for line in examples.strip().splitlines()),
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        # Newer interpreters colour help on their own; the reference is made from it and must not change.
        self.color = False

    def error(self, message: str) -> NoReturn:
        raise usage(message, self.prog)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def __init__(self, prog: str) -> None:
        # The two columns that argparse itself leaves free.
        super().__init__(prog, max_help_position=_HELP_COLUMN, width=help_width())

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return wrapped(text, self._width)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _lines(" ".join(text.split()), width)

    def _format_usage(self, usage: str | None, actions: object, groups: object, prefix: str | None) -> str:
        """One group in brackets is never broken, unless it is longer than a line."""
        head = "usage: "
        words = _bracketed(usage or "")
        indent = " " * (len(head) + len(self._prog) + 1)
        lines = _lines(head + words, self._width, indent if len(indent) < self._width // 2 else "    ")
        return "\n".join(lines).replace(_JOINT, " ") + "\n\n"

    def _format_action_invocation(self, action: argparse.Action) -> str:
        """`-s, --signal SIG`, in every version of Python."""
        if not action.option_strings:
            return super()._format_action_invocation(action)
        names = ", ".join(action.option_strings)
        return names if action.nargs == 0 else f"{names} {self._format_args(action, action.dest.upper())}"


# Stands for a space that no line is broken at.
_JOINT = "\x1f"


def help_width() -> int:
    from .tables import columns

    return min(columns() or _WIDTH, _WIDEST)


def wrapped(text: str, width: int) -> str:
    """Paragraphs filled to a width. An indented line, such as an example, stays one: what does not fit of its comment
    goes below it."""
    out: list[str] = []
    paragraph: list[str] = []

    def close() -> None:
        if paragraph:
            out.extend(_lines(" ".join(paragraph), width))
            paragraph.clear()

    for line in text.splitlines():
        if not line.strip() or line.startswith(" ") or line.endswith(":"):
            close()
            out.extend(_kept(line, width))
        else:
            paragraph.append(line)
    close()
    return "\n".join(out) + "\n"


def _kept(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    indent = line[: len(line) - len(line.lstrip())]
    if len(indent) > width // 3:
        indent = " " * 6  # the rest of a comment that stood in a column of its own
    words, gap, comment = line.strip().partition("  ")
    lines = _lines(indent + words, width, indent + "    ")
    return lines + (_lines(indent + "    " + comment.strip(), width, indent + "    ") if gap else [])


def _lines(text: str, width: int, indent: str = "") -> list[str]:
    import textwrap

    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False, drop_whitespace=True
    )


def _bracketed(text: str) -> str:
    """With the spaces inside brackets as joints."""
    depth = 0
    out = []
    for each in text:
        depth += (each == "[") - (each == "]")
        out.append(_JOINT if each == " " and depth else each)
    return "".join(out)


def usage(message: str, program: str) -> HoldfastError:
    """Wrong words on the command line."""
    error = HoldfastError(f"{program.partition(' ')[2] or program}: {message}")
    error.code = "bad-request"
    error.exit_code = USAGE
    error.fix = f"see `{program} --help`"
    return error


def add_json(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--json", action="store_true", help=f"print {what} as JSON")


def add_session(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", type=_reference, metavar="ID", help=_REFERENCE_HELP)


def add_sessions(parser: argparse.ArgumentParser, nargs: str = "+") -> None:
    parser.add_argument("sessions", type=_reference, metavar="ID", nargs=nargs, help=_REFERENCE_HELP)


def _reference(text: str) -> str:
    """A session as people name it. What looks like an option is never one: it would be ended in its place."""
    if text.startswith("-"):
        raise BadArgument("ID", f"{text[:80]!a} looks like an option, not a session", "see the options with --help")
    return text


def add_streams(parser: argparse.ArgumentParser) -> None:
    streams = parser.add_mutually_exclusive_group()
    for name in ("stdout", "stderr"):
        streams.add_argument(f"--{name}", dest="stream", action="store_const", const=name, help=f"only its {name}")


def duration(option: str) -> Callable[[str], float]:
    return lambda text: seconds(text, option)


def size(option: str) -> Callable[[str], int]:
    return lambda text: size_bytes(text, option)


def count(option: str, low: int = 0) -> Callable[[str], int]:
    """A whole number, `low` or more."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) < 19) or int(text) < low:
            raise BadArgument(option, f"{text[:80]!a} is no whole number from {low} on", f"such as {max(low, 10)}")
        return int(text)

    return parse


def pair(option: str) -> Callable[[str], tuple[str, str]]:
    """KEY=VALUE."""

    def parse(text: str) -> tuple[str, str]:
        key, equals, value = text.partition("=")
        if not key or not equals:
            raise BadArgument(option, f"{text[:80]!a} is not KEY=VALUE", f"such as {option} color=blue")
        return key, value

    return parse


def ladder(text: str) -> list[Record]:
    """`INT:2s,TERM/group:5s,KILL/tree` as rungs: signal, whom it goes to, how long it is given."""
    from ..runner.kernel_signals import NUMBERS

    rungs: list[Record] = []
    for part in text.split(","):
        whom, _, wait = part.strip().partition(":")
        signal, slash, target = whom.partition("/")
        if "SIG" + signal.removeprefix("SIG") not in NUMBERS or (slash and target not in ("command", "group", "tree")):
            raise BadArgument("--stop-ladder", f"{part[:80]!a} is no rung", "such as INT:2s,TERM/group:5s,KILL/tree")
        rungs.append(
            {"signal": signal, "target": target or "command", "wait_s": seconds(wait or 0, "--stop-ladder")},
        )
    return rungs
