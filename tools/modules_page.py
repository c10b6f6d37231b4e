"""Writes docs/modules.md: the first sentence of the docstring of every module. `--check` only says whether the page is
current."""

from __future__ import annotations

import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from layers import LAYERS

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src" / "holdfast"
PAGE = REPOSITORY / "docs" / "modules.md"

_HEAD = """# Modules

What each module is for, from the bottom up. [Architecture](architecture.md) says how they work together. This page is
made by `tools/modules_page.py`.

"""
_INDENT, _WIDTH = 35, 120


def page() -> str:
    top = [name for names in LAYERS for name in names if name and "." not in name]
    lines = [line for name in top for line in _package(name)]
    return _HEAD + "```\n" + "\n".join(lines) + "\n```\n"


def _package(name: str) -> Iterator[str]:
    if not (SOURCE / name).is_dir():
        yield _row(f"{name}.py", SOURCE / f"{name}.py")
        return
    yield _row(f"{name}/", SOURCE / name / "__init__.py")
    for path in sorted((SOURCE / name).glob("*.py")):
        if path.name != "__init__.py":
            yield _row(f"{name}/{path.name}", path)
    for path in sorted((SOURCE / name).glob("*/__init__.py")):
        yield from _package(f"{name}/{path.parent.name}")


def _row(name: str, path: Path) -> str:
    text = " ".join((ast.get_docstring(ast.parse(path.read_bytes())) or "").split())
    sentence = re.split(r"\.(?: |$)", text)[0]
    lead = f"{name} ".ljust(_INDENT)
    return textwrap.fill(sentence, _WIDTH, initial_indent=lead, subsequent_indent=" " * _INDENT, break_on_hyphens=False)


def main(arguments: list[str]) -> int:
    if arguments != ["--check"]:
        PAGE.write_text(page(), encoding="utf-8")
        return 0
    if PAGE.read_text(encoding="utf-8") == page():
        return 0
    print("docs/modules.md is not current: run tools/modules_page.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
