"""The bundle of the page: its size, the same bytes each time, and what a package without Node has."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.serving import Serving

if TYPE_CHECKING:
    from support.world import World

ROOT = Path(__file__).parents[2]
LIMITS = {"app": 45_000, "term": 125_000}
_BOUND_S = 180


def build(target: Path) -> dict[str, bytes]:
    subprocess.run(["node", "build.mjs", str(target)], cwd=ROOT / "web", check=True, timeout=_BOUND_S)
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


@pytest.mark.covers("page:2")
def test_two_builds_are_the_same_and_within_their_sizes(tmp_path: Path) -> None:
    first, second = build(tmp_path / "first"), build(tmp_path / "second")
    assert first == second
    chunks = [name for name in first if name.endswith(".js") and not name.startswith("assets/sw-")]
    assert sorted(Path(name).name.partition("-")[0] for name in chunks) == ["app", "term"]
    sizes = {Path(name).name.partition("-")[0]: len(first[name + ".gz"]) for name in chunks}
    sizes["app"] += sum(len(first[name + ".gz"]) for name in first if name.endswith(".css"))
    assert all(sizes[name] <= limit for name, limit in LIMITS.items()), sizes
    for name in first:
        if name.endswith(".gz"):
            assert gzip.decompress(first[name]) == first[name.removesuffix(".gz")]


def test_types_are_checked() -> None:
    subprocess.run(["node_modules/.bin/tsc", "--noEmit"], cwd=ROOT / "web", check=True, timeout=_BOUND_S)


def clone(tmp_path: Path) -> Path:
    """What a package is built from, without anything built."""
    left = (
        ".*_cache",
        ".git",
        ".venv",
        "build",
        "dist",
        "tests",
        "bench",
        "docs",
        "__pycache__",
        "node_modules",
        "page",
    )
    return Path(shutil.copytree(ROOT, tmp_path / "clone", ignore=shutil.ignore_patterns(*left)))


def without_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A PATH on which there is neither node nor npm."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("sh", "env", "cat"):
        (tools / name).symlink_to(shutil.which(name) or name)
    monkeypatch.setenv("PATH", str(tools))
    assert shutil.which("node") is None


@pytest.mark.covers("page:2")
def test_a_clone_without_node_says_make_page(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = clone(tmp_path)
    without_node(monkeypatch, tmp_path)
    hook = [sys.executable, str(source / "tools/page_hook.py")]
    done = subprocess.run(hook, check=True, capture_output=True, text=True, timeout=_BOUND_S)
    assert "node and npm are missing" in done.stderr
    monkeypatch.setenv("PYTHONPATH", str(source / "src"))
    serving = Serving(world)
    assert "page" not in serving.call("GET", "/v1/info").json["features"]
    for path in ("/", "/inbox", "/s/any"):
        assert b"make page" in serving.ask(path, {"Host": serving.address}).body
    assert serving.call("GET", "/v1/sessions").status == 200
