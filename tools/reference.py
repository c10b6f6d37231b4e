"""Writes docs/cli.md: the command line reference, from what `hold --help` and `hold COMMAND --help` print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOLD = Path(sys.executable).parent / "hold"

# A command in the list of `hold --help`: indented, one word, then its sentence.
COMMAND = re.compile(r"^ {2,6}([a-z]+)(?: {2,}|$)", re.MULTILINE)

HEADER = "# Command line\n\nWritten by `make docs` from the commands themselves; edit those.\n"


def help_of(*words: str) -> str:
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1"}
    done = subprocess.run(
        [HOLD, *words, "--help"], capture_output=True, text=True, check=True, timeout=30, env=environment
    )
    return done.stdout.rstrip()


def commands(overview: str) -> list[str]:
    return list(dict.fromkeys(COMMAND.findall(overview)))


def page() -> str:
    overview = help_of()
    names = commands(overview)
    if not names:
        sys.exit("hold --help lists no command")
    parts = [HEADER, f"```text\n{overview}\n```\n"]
    parts += [f"## hold {name}\n\n```text\n{help_of(name)}\n```\n" for name in names]
    return "\n".join(parts)


if __name__ == "__main__":
    (ROOT / "docs" / "cli.md").write_text(page())
