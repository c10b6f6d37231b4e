"""Writes docs/hold.1: the manual page, from the same commands and options as `hold COMMAND --help-all`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from holdfast import cli
from holdfast.cli.help import EXIT_CODES, NAMING
from holdfast.cli.parsing import Argument, Parser

PAGE = Path(__file__).resolve().parent.parent / "docs" / "hold.1"

_HEAD = r"""
.\" Written by `make docs` from the commands themselves; edit those.
.TH HOLD 1 2026-11-18 Holdfast
.SH NAME
hold \- run commands that outlive the terminal they were started from
.SH SYNOPSIS
.B hold
.I COMMAND
.RI [ OPTION... ]
.SH DESCRIPTION
All output of a command is kept, and every other terminal finds it.
"""
_TAIL = r"""
.SH FILES
.TP
.I ~/.config/holdfast/config.toml
the settings; see `hold config`
.TP
.I ~/.local/state/holdfast
sessions, their logs and records
.SH SEE ALSO
.BR nohup (1),
.BR tmux (1),
.BR timeout (1)
"""


def page() -> str:
    parts = [_HEAD, _text(NAMING), ".SH COMMANDS\n"]
    for name in cli.names():
        parts += _command(name, cli.parser_of(name)[0])
    parts += [".SH EXIT STATUS\n", _text(EXIT_CODES), _TAIL]
    return "\n".join(_lines("".join(parts))) + "\n"


def _lines(text: str) -> Iterator[str]:
    """Lines of at most 80 bytes, as `mandoc -Tlint` wants them; examples stay as they are. Macros separate paragraphs:
    empty lines are for text alone."""
    is_text = True
    for line in text.splitlines():
        if line in (".nf", ".fi"):
            is_text = line == ".fi"
        if line.startswith(".") or not is_text:
            yield line
        else:
            # No line may begin with a dot, which would be a macro.
            yield from wrap(line.replace(" .", " \\&."), 80, break_long_words=False, break_on_hyphens=False)


def _command(name: str, parser: Parser) -> list[str]:
    usage = "\n.br\n".join(map(_roff, parser.usage.splitlines()))
    parts = [f".SS {_quoted(f'hold {name}')}\n", f"{usage}\n.PP\n", _text(parser.description)]
    for title, arguments in parser.sections(whole=True).items():
        parts.append(f".PP\n{_roff(title.capitalize())}:\n")
        parts += [_argument(each) for each in arguments]
    return [*parts, ".PP\nExamples:\n.PP\n.nf\n", *(f"  {_roff(line)}\n" for line in parser.examples), ".fi\n"]


def _argument(argument: Argument) -> str:
    return f".TP\n.B {_quoted(argument.shown)}\n{_roff(' '.join(argument.help.split()))}\n"


def _text(text: str) -> str:
    """Paragraphs; a line with columns stays on its own."""
    out: list[str] = []
    for line in text.strip().splitlines():
        if not line:
            out.append(".PP")
            continue
        if "  " in line and out[-1:] != [".PP"]:
            out.append(".br")
        out.append(_roff(line.strip()))
    return "\n".join(out) + "\n"


def _roff(text: str) -> str:
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "\\(ga")
    # A dot at the beginning of a line would be a macro.
    return f"\\&{escaped}" if escaped.startswith((".", "\\(aq")) else escaped


def _quoted(text: str) -> str:
    return '"' + _roff(text).replace('"', '""') + '"'


if __name__ == "__main__":
    PAGE.write_text(page())
