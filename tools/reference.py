"""Writes docs/cli.md: the command line reference, from what `hold --help` and `hold COMMAND --help` print."""

from __future__ import annotations

from pathlib import Path

from holdfast import cli

PAGE = Path(__file__).resolve().parent.parent / "docs" / "cli.md"

HEADER = "# Command line\n\nWritten by `make docs` from the commands themselves; edit those.\n"


def page() -> str:
    parts = [HEADER, f"```text\n{cli.overview().rstrip()}\n```\n"]
    for name in cli.names():
        parser, _ = cli.parser_of(name)
        parts.append(f"## hold {name}\n\n```text\n{parser.format_help().rstrip()}\n```\n")
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
