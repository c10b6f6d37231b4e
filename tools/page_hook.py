"""Build hook of the package: bundles the page in `web/` into `holdfast/server/page`, for the wheel and the sdist."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent.parent
SOURCE, TARGET = ROOT / "web", ROOT / "src/holdfast/server/page"


class PageHook(BuildHookInterface):  # type: ignore[type-arg]
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # A clone is installed without the page: `make page` builds it when somebody needs it.
        if version != "editable":
            build()
            build_data["artifacts"].append("/src/holdfast/server/page/**")


def build() -> None:
    """Bundle the page. A build from the sdist finds it bundled; a build without Node goes without it and says so."""
    if (TARGET / "index.html").exists() and not (SOURCE / "package.json").exists():
        return
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        print("the page is not built: node and npm are missing", file=sys.stderr)
        return
    stamp = SOURCE / "node_modules/.package-lock.json"
    lock = SOURCE / "package-lock.json"
    if not stamp.exists() or stamp.stat().st_mtime < lock.stat().st_mtime:
        subprocess.run([npm, "ci", "--loglevel=error"], cwd=SOURCE, check=True)
    subprocess.run([node, "build.mjs", str(TARGET)], cwd=SOURCE, check=True)


if __name__ == "__main__":
    build()
