"""Write docs/promises.md from the covers marks of the tests; --check only says whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
PAGE = REPOSITORY / "docs" / "promises.md"


def main(arguments: list[str]) -> int:
    sys.path.insert(0, str(REPOSITORY / "tests"))
    from support import promises

    text = promises.page(promises.claims())
    if arguments != ["--check"]:
        PAGE.write_text(text)
        return 0
    if PAGE.exists() and PAGE.read_text() == text:
        return 0
    print("docs/promises.md is out of date: run tools/promises_page.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
