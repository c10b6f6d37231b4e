"""`hold help`: the overview on one screen, and topics: the beginnings of the guides."""

from __future__ import annotations

import os
import sys

from . import COMMANDS, PROGRAM, names, parser_of
from .output import columns

NAMING = """\
Name a session by its id, the beginning of its id (4 characters or more), its name, its pid, or `last`.
Every command that reports something takes --json.
"""

EXIT_CODES = """\
0 success, 1 the request failed, 2 wrong usage, 3 no such session, 4 not possible in this state, 5 the runner cannot be
reached, 124 timeout.

`hold run` and a plain `hold wait` exit with the code of the command; `run` with 127 if the command is not found, 126 if
it cannot be executed, 124 if its --timeout stopped it, 125 if Holdfast itself failed.
"""
_OWN = {
    "sessions": ("How to name a session", NAMING),
    "exit-codes": ("The exit codes of every command", EXIT_CODES),
}

_USAGE = f"usage: {PROGRAM} COMMAND [OPTION...]     Run commands that outlive your terminal.\n"
_MORE = f"`{PROGRAM} COMMAND --help` explains one; `{PROGRAM} help topics` lists more to read.\n"
_SCREEN = 80
# A shorter introduction is shown with the section that follows.
_ENOUGH = 400


def main(words: list[str]) -> int:
    asked = words[1] if len(words) > 1 and words[0] == "help" else ""
    if asked in names():
        sys.stdout.write(parser_of(asked)[0].help(whole="--help-all" in words))
    elif asked and not asked.startswith("-"):
        sys.stdout.write(_topic(asked))
    else:
        sys.stdout.write(overview(columns() or _SCREEN))
        if "--help-all" in words:
            for name in names():
                sys.stdout.write("\n" + parser_of(name)[0].help(whole=True))
    return 0


def overview(width: int) -> str:
    """Two columns, if there is room: all of it fits a terminal of 80x24."""
    lines: list[str] = []
    half = 0
    for group, commands in COMMANDS.items():
        label = group
        for name, (_, sentence) in commands.items():
            lines.append(f"{label:<7}{name:<7} {sentence}")
            label = ""
        half = half or (len(lines) if group == "End" else 0)
    if width >= _SCREEN:
        left, right = lines[:half], lines[half:]
        right += [""] * (len(left) - len(right))
        lines = [f"{one:<40}{other}".rstrip() for one, other in zip(left, right, strict=True)]
    return "\n".join([_USAGE.rstrip(), *lines, _MORE])


def _topic(asked: str) -> str:
    """A guide's title and introduction, and where the rest is."""
    from .parsing import help_width, usage, wrapped

    folder = guides()
    files = [name for name in sorted(os.listdir(folder)) if name.endswith(".md")] if folder else []
    topics = {**_OWN, **{name[:-3]: (os.path.join(folder, name), "") for name in files if name[:-3] not in names()}}
    width = help_width()
    if asked == "topics":
        titles = [(name, title if own else _title(title)) for name, (title, own) in topics.items()]
        room = max(len(name) for name, _ in titles) + 2
        return "".join(f"{name:<{room}}{title}\n" for name, title in titles) + f"\nRead one: {PROGRAM} help TOPIC\n"
    if asked not in topics:
        error = usage(f"no command or topic {asked[:80]!a}", PROGRAM, [asked], [*names(), *topics, "topics"])
        if not error.fix.startswith("did you mean"):
            error.fix = f"`{PROGRAM} help topics` lists them"
        raise error
    title, text = topics[asked]
    if text:
        return f"{title}\n\n{wrapped(text, width)}"
    with open(title, encoding="utf-8") as file:
        path, (title, text) = title, _introduction(file.read(), width)
    return f"{title}\n\n{text}\nThe whole guide:\n{path}\n"


def guides() -> str:
    """The directory of the guides: in the package, or in a clone."""
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    clone = os.path.join(os.path.dirname(os.path.dirname(package)), "docs", "guides")
    return next((each for each in (os.path.join(package, "guides"), clone) if os.path.isdir(each)), "")


def _title(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.readline().lstrip("# ").rstrip()


def _introduction(page: str, width: int) -> tuple[str, str]:
    """The title, and the first section that has text; without tables and the marks of Markdown."""
    import re

    from .parsing import filled, wrapped

    title, _, body = page.partition("\n")
    first, *others = re.split(r"^## ", body, flags=re.MULTILINE)
    shown = first if len(first) > _ENOUGH or not others else f"{first}\n{others[0]}"
    parts: list[str] = []
    # Text, the language of a block, the block, the rest of its last line, text again ...
    fields = [*re.split(r"^```(.*)\n", shown, flags=re.MULTILINE), "", "", ""]
    for text, language, code in zip(fields[::4], fields[1::4], fields[2::4], strict=False):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)|^\|.*", r"\1", text, flags=re.MULTILINE).replace("**", "")
        parts += ("\n".join(filled(block.strip(), width)) + "\n" for block in plain.split("\n\n") if block.strip())
        if language.startswith(("sh", "console")):
            parts.append(wrapped("".join(f"    {line}\n" for line in code.splitlines()), width))
    return title.lstrip("# "), "\n".join(parts)
