"""The supervisor knows nothing of the tools, and the agent runner has no process code of its own."""

from __future__ import annotations

import ast
from pathlib import Path

import holdfast.tools.openclaw

PACKAGE = Path(holdfast.tools.openclaw.__file__).parent
FACADE = {"supervisor", "spawn", "runs"}
# What all toolsets share, and no tool: which variables of a host commands get, and how a call waits for a start.
SHARED = {"..environment", "..owner_sessions"}


def imported(module: str) -> set[str]:
    """Modules of this package, or of the tools, that a module names; the standard library by its first word."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((PACKAGE / f"{module}.py").read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 1:
            found |= {node.module} if node.module else {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 2:
            found |= {f"..{node.module}"} if node.module else {f"..{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def test_the_supervisor_imports_nothing_of_the_tools() -> None:
    own = {path.stem for path in PACKAGE.glob("*.py")}
    for module in FACADE:
        used = imported(module)
        assert {each for each in used if each.startswith("..")} <= SHARED
        assert used & own <= FACADE


def test_the_agent_runner_is_a_client_of_the_supervisor() -> None:
    used = imported("cli_agent")
    assert "supervisor" in used
    assert not used & {"subprocess", "signal", "os.path"}
    assert "supervisor" in imported("toolset")
