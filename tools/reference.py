"""Writes docs/cli.md: the command line reference, from what `hold --help` and `hold COMMAND --help-all` print."""

from __future__ import annotations

import os
from pathlib import Path

from holdfast import cli
from holdfast.cli.help import overview

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

HEADER = "# Command line\n\nWritten by `make docs` from the commands themselves; edit those.\n"


def page() -> str:
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"  # whatever terminal this runs in
    try:
        return "\n".join(_parts())
    finally:
        del os.environ["COLUMNS"]
        if before is not None:
            os.environ["COLUMNS"] = before


def _parts() -> list[str]:
    parts = [HEADER, f"```text\n{overview(80).rstrip()}\n```\n"]
    for name in cli.names():
        parser, _ = cli.parser_of(name)
        parts.append(f"## hold {name}\n\n```text\n{parser.help(whole=True).rstrip()}\n```\n")
    return parts


if __name__ == "__main__":
    PAGE.write_text(page())
