"""Releases that were frozen as files by `tools/freeze.py`. What is done with one is done by its own code alone."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

import holdfast

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping
    from typing import Any

    from support.program import Program
    from support.world import World

FROZEN = Path(__file__).resolve().parents[1] / "frozen"
# The folders of all releases, the oldest first.
RELEASES = sorted(FROZEN.iterdir(), key=lambda path: [int(number) for number in path.name.split(".")])
of_each_release = pytest.mark.parametrize("release", RELEASES, ids=lambda path: path.name)


def unpacked(world: World, release: Path) -> Path:
    """The host of a release, for PYTHONPATH."""
    target = world.root / f"release-{release.name}"
    if not target.exists():
        (wheel,) = release.glob("*.whl")
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(target)
    return target


def under_version(world: World, version: str, edits: Mapping[str, tuple[str, str]] | None = None) -> Path:
    """Today's host under another version, for PYTHONPATH; in each file of `edits` one text is replaced."""
    root = world.root / version
    if root.exists():
        return root
    shutil.copytree(Path(holdfast.__file__).parent, root / "holdfast")
    ours = (f'"{holdfast.__version__}"', f'"{version}"')
    for name, (old, new) in {"__init__.py": ours, "runner/status.py": ours, **(edits or {})}.items():
        path = root / "holdfast" / name
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))
    return root


class Side:
    """The command and the library of one version in this test's world; `path` is for PYTHONPATH, None for today's."""

    def __init__(self, world: World, version: str, path: Path | None) -> None:
        self.world = world
        self.version = version
        # A release refuses abilities that tests learned to switch off after it.
        self.env = {} if path is None else {"PYTHONPATH": str(path), "HOLDFAST_OFF": ""}

    def hold(self, *words: object, check: bool = True, **options: Any) -> subprocess.CompletedProcess[str]:
        return self.world.hold(*words, check=check, env=self.env, **options)

    def says(self, *words: object) -> str:
        return self.hold(*words).stdout.strip()

    def program(self, *words: object, **env: str) -> Program:
        return self.world.program(self.world.hold_argv(*words), env={**self.env, **env})

    def host(self, code: str, *args: object) -> Program:
        return self.world.host(code, *args, env=self.env)


def of_release(world: World, release: Path) -> Side:
    return Side(world, release.name, unpacked(world, release))


def of_today(world: World, release: Path) -> Side:
    """Today's, beside a release; under the next version as long as its own is still that of the release."""
    if release.name != holdfast.__version__:
        return Side(world, holdfast.__version__, None)
    head, _, last = release.name.rpartition(".")
    version = f"{head}.{int(last) + 1}"
    return Side(world, version, under_version(world, version))


class Change(NamedTuple):
    """A user who goes from one release to another."""

    before: Side
    after: Side


# The oldest release differs most from today's.
_CHANGES = [
    pytest.param((release, way), id=f"{way}-{release.name}", marks=() if release == RELEASES[0] else pytest.mark.long)
    for release in RELEASES
    for way in ("from", "back-to")
]


@pytest.fixture(params=_CHANGES)
def change(request: pytest.FixtureRequest, world: World) -> Change:
    """An upgrade from each release to today's, and a rollback to it."""
    release, way = request.param
    there, today = of_release(world, release), of_today(world, release)
    return Change(there, today) if way == "from" else Change(today, there)
