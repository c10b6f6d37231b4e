"""Checks what the architecture promises about the source and no type checker sees.

Imports point downwards only and in no circle, the runner needs the standard library alone, the fast path
stays light, bytes become text in the read layer only, and no test sleeps. Prints `path:line: what`, exits 1.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "holdfast"

# From the bottom up, as in docs/architecture.md. The longest prefix that matches decides; "" is the package.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("core",),
    ("runner",),
    ("errors", "model", "home", "config", "index", "places", "serving", "runner.__main__"),
    ("terminal", "sessions.driver"),
    ("signals",),
    ("sessions", "daemons", "signals.deliver", "signals.people.program"),
    ("", "project", "sessions.api", "sessions.aio", "sessions.lines", "tools"),
    ("server", "nodes"),
    ("cli",),
)

# Runners, deputies and the remote ends of links.
STANDALONE = (
    "core",
    "runner",
    *(f"places.{name}" for name in ("copy", "deputy", "link", "mirror", "remote_end", "visited")),
)

HEAVY = frozenset(
    (
        *("asyncio", "dataclasses", "inspect", "logging", "pathlib", "subprocess", "tomllib", "typing"),
        *("rich", "starlette", "textual", "uvicorn", "websockets"),
    )
)
OFF_THE_FAST_PATH = (
    *("sessions.doctor", "sessions.gc", "sessions.recording", "sessions.search"),
    *("sessions.terminal_log", "sessions.without_runner"),
    *("terminal", "cli.attach_loop", "cli.display"),
    *("daemons", "signals", "tools", "serving", "server", "nodes", "cli.top", "cli.top_rows", "cli.top_view"),
)

READ_LAYER = (
    *("cli", "core.jsontext", "core.records", "core.vt.text", "core.vt.replies", "core.vt.widths", "core.wire"),
    *("places.link", "runner.features.watch", "terminal", "nodes"),
)
CODECS_DECODERS = frozenset(("decode", "getdecoder", "getincrementaldecoder", "getreader", "iterdecode", "open"))

SLEEPY = frozenset({"anyio", "asyncio", "time", "trio"})
MAY_SLEEP = "support/probe.py"


@dataclass(frozen=True)
class Fault:
    path: Path
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class Import:
    """One imported module; `lazy` inside a function, `typing_only` under `if TYPE_CHECKING`."""

    target: str
    line: int
    lazy: bool
    typing_only: bool


@dataclass(frozen=True)
class Module:
    """One source file; `name` is dotted and relative to the package."""

    name: str
    path: Path
    tree: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"


def within(name: str, prefix: str) -> bool:
    return name == prefix or (prefix != "" and name.startswith(prefix + "."))


def stands_alone(name: str) -> bool:
    """Runs without the rest of the package and without any other."""
    return any(within(name, part) for part in STANDALONE)


def layer(name: str) -> int | None:
    matches = [(len(p), rank) for rank, prefixes in enumerate(LAYERS) for p in prefixes if within(name, p)]
    return max(matches)[1] if matches else None


def load(root: Path) -> dict[str, Module]:
    modules = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, path, ast.parse(path.read_bytes(), str(path)))
    return modules


def imports(module: Module, known: dict[str, Module]) -> Iterator[Import]:
    """Every import; those of our own package absolute and resolved to the module that is meant."""

    def absolute(node: ast.ImportFrom) -> str:
        if not node.level:
            return node.module or ""
        here = [PACKAGE, *module.name.split(".")] if module.name else [PACKAGE]
        base = here[: len(here) - node.level + module.is_package]
        return ".".join([*base, *([node.module] if node.module else [])])

    def targets(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
            return
        base = absolute(node)
        for alias in node.names:
            submodule = f"{base}.{alias.name}"
            # A constant, known before anything else is imported; but a runner travels without the rest.
            if base == PACKAGE and alias.name == "__version__" and not stands_alone(module.name):
                continue
            yield submodule if submodule.removeprefix(PACKAGE + ".") in known else base

    def visit(node: ast.AST, lazy: bool, typing_only: bool) -> Iterator[Import]:
        if isinstance(node, ast.Import | ast.ImportFrom):
            for target in dict.fromkeys(targets(node)):
                yield Import(target, node.lineno, lazy, typing_only)
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in (name_of(node.test) or "").split("."):
            for child in node.body:
                yield from visit(child, lazy, True)
            for child in node.orelse:
                yield from visit(child, lazy, typing_only)
            return
        inside = lazy or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for each in ast.iter_child_nodes(node):
            yield from visit(each, inside, typing_only)

    yield from visit(module.tree, False, False)


def name_of(node: ast.expr) -> str | None:
    """`a.b.c` for a chain of plain names, None for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = name_of(node.value)
        return base and f"{base}.{node.attr}"
    return None


def own(target: str) -> str | None:
    """The name relative to our package, None for a foreign module."""
    if not within(target, PACKAGE):
        return None
    return target.removeprefix(PACKAGE).removeprefix(".")


def check_module(module: Module, known: dict[str, Module]) -> Iterator[Fault]:
    rank = layer(module.name)
    if rank is None:
        text = f"{module.name} has no layer: give it one in tools/layers.py"
        yield Fault(module.path, 1, text)
        return
    in_runner = stands_alone(module.name)
    fast = not off_the_fast_path(module.name)
    for each in imports(module, known):
        target = own(each.target)
        eager = not each.lazy and not each.typing_only
        if target is None:
            top = each.target.partition(".")[0]
            if in_runner and top not in sys.stdlib_module_names:
                text = f"the runner imports {each.target}: it has the standard library alone"
                yield Fault(module.path, each.line, text)
            if fast and eager and top in HEAVY:
                text = f"{top} at module level on the fast path: import it where it is needed"
                yield Fault(module.path, each.line, text)
            continue
        theirs = layer(target)
        if in_runner and not stands_alone(target):
            text = f"the runner imports {each.target}: it has the standard library and itself alone"
            yield Fault(module.path, each.line, text)
        elif theirs is not None and theirs > rank:
            text = f"{module.name or PACKAGE} imports {each.target}, which is above it"
            yield Fault(module.path, each.line, text)
        if fast and eager and off_the_fast_path(target):
            text = f"{each.target} is slow to import: import it where it is needed"
            yield Fault(module.path, each.line, text)


def off_the_fast_path(name: str) -> bool:
    return any(within(name, prefix) for prefix in OFF_THE_FAST_PATH)


def check_circles(modules: dict[str, Module]) -> Iterator[Fault]:
    """Circles among imports that happen; those for types alone are none."""
    edges = {
        name: {
            target: each.line
            for each in imports(module, modules)
            if not each.typing_only and (target := own(each.target)) in modules and target != name
        }
        for name, module in modules.items()
    }
    done: set[str] = set()

    def walk(name: str, trail: list[str]) -> Iterator[Fault]:
        if name in trail:
            circle = [*trail[trail.index(name) :], name]
            text = "imports in a circle: " + " -> ".join(part or PACKAGE for part in circle)
            yield Fault(modules[circle[-2]].path, edges[circle[-2]][name], text)
        elif name not in done:
            for target in edges[name]:
                yield from walk(target, [*trail, name])
            done.add(name)

    for name in modules:
        yield from walk(name, [])


def check_decoding(module: Module) -> Iterator[Fault]:
    if any(within(module.name, prefix) for prefix in READ_LAYER):
        return
    advice = "bytes become text in core/vt (names of the system: os.fsdecode; records: jsontext.read)"
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(node.func) or ""
        keywords = {keyword.arg for keyword in node.keywords}
        decodes = (
            (isinstance(node.func, ast.Attribute) and node.func.attr == "decode")
            or (name == "str" and (len(node.args) > 1 or keywords & {"encoding", "errors"}))
            or (name.startswith("codecs.") and name.removeprefix("codecs.") in CODECS_DECODERS)
        )
        if decodes:
            yield Fault(module.path, node.lineno, advice)


def check_sleep(path: Path, tree: ast.Module) -> Iterator[Fault]:
    sleepy = set(SLEEPY)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            sleepy |= {alias.asname for alias in node.names if alias.name in SLEEPY and alias.asname}
    advice = "a test does not sleep: wait for a line of the probe, a point, or a file descriptor"
    for node in ast.walk(tree):
        imported = (
            isinstance(node, ast.ImportFrom)
            and node.module in SLEEPY
            and any(alias.name == "sleep" for alias in node.names)
        )
        used = isinstance(node, ast.Attribute) and node.attr == "sleep" and name_of(node.value) in sleepy
        if isinstance(node, ast.ImportFrom | ast.Attribute) and (imported or used):
            yield Fault(path, node.lineno, advice)


def check_package(root: Path) -> list[Fault]:
    modules = load(root)
    faults: list[Fault] = []
    for module in modules.values():
        faults += check_module(module, modules)
        faults += check_decoding(module)
    return [*faults, *check_circles(modules)]


def check_tests(root: Path) -> list[Fault]:
    faults: list[Fault] = []
    for path in sorted(root.rglob("*.py")):
        if path.relative_to(root).as_posix() != MAY_SLEEP:
            faults += check_sleep(path, ast.parse(path.read_bytes(), str(path)))
    return faults


def main() -> int:
    root = Path(__file__).resolve().parent.parent
    faults = check_package(root / "src" / PACKAGE) + check_tests(root / "tests")
    for fault in faults:
        print(Fault(fault.path.relative_to(root), fault.line, fault.text))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
