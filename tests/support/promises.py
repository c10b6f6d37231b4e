"""Which promise has which test: the `covers` marks, read from the source of the tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = REPOSITORY.parent / "shared"

_HEAD = """\
# Promises and their tests

One line for each proven promise: rows of the fault list (`KIL-04`), acceptance items (`native:2`).
Written by `tools/promises_page.py` from the `covers` marks; do not edit.

| promise | tests |
| --- | --- |
"""

_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


class Claim(NamedTuple):
    """A test that says it proves a promise, and the levers it needs for that."""

    id: str
    test: str
    says: str
    needs: tuple[str, ...] = ()


def known(shared: Path = SHARED) -> dict[str, str]:
    """Every promise there is, with its text."""
    found: dict[str, str] = {}
    for path in sorted((shared / "contracts").glob("*.md")):
        name = path.stem.removeprefix("toolset-")
        section = path.read_text().split("\n## Acceptance", 1)[-1]
        found.update((f"{name}:{n}", text) for n, text in re.findall(r"^(\d+)\. (.+)$", section, re.MULTILINE))
    rows = re.findall(r"^\| ([A-Z]{3}-\d+) \| ([^|]+)\|", (shared / "faults.md").read_text(), re.MULTILINE)
    found.update((id, text.strip()) for id, text in rows)
    return found


def claims(tests: Path = REPOSITORY / "tests") -> list[Claim]:
    """All covers marks, on functions, classes, parameters and whole modules."""
    found: list[Claim] = []
    for path in sorted(tests.rglob("test_*.py")):
        if path.parent.name != "support_tests":
            found += _claims_in(path, str(path.relative_to(tests)))
    return sorted(found, key=lambda claim: (_order(claim.id), claim.test))


def page(found: list[Claim]) -> str:
    """docs/promises.md."""
    by_id: dict[str, list[str]] = {}
    for claim in found:
        entry = f"`{claim.test}`: {claim.says}"
        tests = by_id.setdefault(claim.id, [])
        if entry not in tests:
            tests.append(entry)
    return _HEAD + "".join(f"| {id} | {'<br>'.join(tests)} |\n" for id, tests in by_id.items())


def _claims_in(path: Path, name: str) -> Iterator[Claim]:
    tree = ast.parse(path.read_text(), str(path))
    marks = [node.value for node in tree.body if isinstance(node, ast.Assign) and _is_pytestmark(node)]
    yield from _claims_below(tree.body, name, marks)


def _claims_below(body: list[ast.stmt], name: str, inherited: list[ast.expr]) -> Iterator[Claim]:
    for node in body:
        if not isinstance(node, _Definition):
            continue
        marks = inherited + node.decorator_list
        if isinstance(node, ast.ClassDef):
            yield from _claims_below(node.body, name, marks)
        elif node.name.startswith("test"):
            needs = [lever for mark in marks for lever in _named(mark, "needs", name)]
            needs += [lever for lever in ("root", "namespaces") if any(_is_mark(mark, lever) for mark in marks)]
            for id in dict.fromkeys(id for mark in marks for id in _named(mark, "covers", name)):
                yield Claim(id, f"{name}::{node.name}", _says(node), tuple(dict.fromkeys(needs)))


def _named(tree: ast.AST, mark: str, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_mark(node.func, mark):
            for argument in node.args:
                if not isinstance(argument, ast.Constant) or not isinstance(argument.value, str):
                    raise AssertionError(f"{name}:{node.lineno}: {mark}() takes names written out")
                yield argument.value


def _is_mark(node: ast.AST, mark: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == mark


def _says(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    told = ast.get_docstring(node)
    line = told.splitlines()[0] if told else node.name.removeprefix("test_").replace("_", " ")
    return line.replace("|", "\\|")


def _is_pytestmark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def _order(id: str) -> tuple[str, int]:
    prefix, _, number = id.replace(":", "-").rpartition("-")
    return prefix, int(number) if number.isdigit() else 0
