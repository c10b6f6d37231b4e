"""Which promise has which test: the `covers` marks, read from the source of the tests."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parents[2]
SHARED = REPOSITORY.parent / "shared"

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_Definition = _Function | ast.ClassDef


class Claim(NamedTuple):
    """A test that says it proves a promise, and the levers it needs for that.
    `long`: it runs only in `make test-all`."""

    id: str
    test: str
    says: str
    needs: tuple[str, ...] = ()
    long: bool = False


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
    """All covers marks, on functions, classes, parameters, whole modules, and parameters of fixtures of the folder."""
    found: list[Claim] = []
    for path in sorted(tests.rglob("test_*.py")):
        if path.parent.name != "support_tests":
            found += _claims_in(path, str(path.relative_to(tests)))
    return sorted(found, key=lambda claim: (_order(claim.id), claim.test))


def only_long(found: list[Claim]) -> list[str]:
    """Promises that no test of `make test` proves."""
    short = {claim.id for claim in found if not claim.long}
    return sorted({claim.id for claim in found} - short, key=_order)


def _claims_in(path: Path, name: str) -> Iterator[Claim]:
    tree = ast.parse(path.read_text(), str(path))
    marks = [node.value for node in tree.body if isinstance(node, ast.Assign) and _is_pytestmark(node)]
    yield from _claims_below(tree.body, name, marks, _fixtures(path.with_name("conftest.py")))


def _fixtures(path: Path) -> dict[str, list[ast.expr]]:
    """For each fixture of a `conftest.py`, the expressions that its parameters and those of its own fixtures are made
    of."""
    body = ast.parse(path.read_text(), str(path)).body if path.exists() else []
    assigned = {
        target.id: node.value
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    found: dict[str, list[ast.expr]] = {}
    for node in body:
        if isinstance(node, _Function):
            names = [
                below.id for each in node.decorator_list for below in ast.walk(each) if isinstance(below, ast.Name)
            ]
            own = [assigned[name] for name in names if name in assigned]
            found[node.name] = own + [each for used in node.args.args for each in found.get(used.arg, [])]
    return found


def _claims_below(
    body: list[ast.stmt], name: str, inherited: list[ast.expr], fixtures: dict[str, list[ast.expr]]
) -> Iterator[Claim]:
    for node in body:
        if not isinstance(node, _Definition):
            continue
        marks = inherited + node.decorator_list
        if isinstance(node, ast.ClassDef):
            yield from _claims_below(node.body, name, marks, fixtures)
        elif node.name.startswith("test"):
            marks = marks + [each for used in node.args.args for each in fixtures.get(used.arg, [])]
            needs = [lever for mark in marks for lever in _named(mark, "needs", name)]
            needs += [lever for lever in ("root", "namespaces") if any(_is_mark(mark, lever) for mark in marks)]
            claimed: dict[str, bool] = {}
            for mark in marks:
                for id, long in _covers(mark, name):
                    claimed[id] = long and claimed.get(id, True)
            all_long = any(_is_mark(mark, "long") for mark in _listed(marks))
            for id, long in claimed.items():
                needed = tuple(dict.fromkeys(needs))
                yield Claim(id, f"{name}::{node.name}", _says(node), needed, long or all_long)


def _covers(tree: ast.expr, name: str) -> Iterator[tuple[str, bool]]:
    """The ids that a mark claims, and whether only a long parameter of the test proves them."""
    parameters = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _is_mark(node.func, "param")]
    long = [node for node in parameters if any(_is_mark(below, "long") for below in ast.walk(node))]
    of_long = [id for node in long for id in _named(node, "covers", name)]
    for id in _named(tree, "covers", name):
        if id in of_long:
            of_long.remove(id)
            yield id, True
        else:
            yield id, False


def _listed(marks: list[ast.expr]) -> Iterator[ast.expr]:
    """Marks one by one: those of a module may stand in a list."""
    for mark in marks:
        yield from _listed(mark.elts) if isinstance(mark, ast.List | ast.Tuple) else [mark]


def _named(tree: ast.AST, mark: str, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and _is_mark(node.func, mark):
            for argument in node.args:
                if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                    yield argument.value
                elif mark == "covers":
                    raise AssertionError(f"{name}:{node.lineno}: {mark}() takes names written out")


def _is_mark(node: ast.AST, mark: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == mark


def _says(node: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    text = ast.get_docstring(node)
    line = text.splitlines()[0] if text else node.name.removeprefix("test_").replace("_", " ")
    return line.replace("|", "\\|")


def _is_pytestmark(node: ast.Assign) -> bool:
    return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets)


def _order(id: str) -> tuple[str, int]:
    prefix, _, number = id.replace(":", "-").rpartition("-")
    return prefix, int(number) if number.isdigit() else 0
