"""Lay the documents out as the source of a site, in build/site: `make site` bundles it with mkdocs-material.

The pages stay as they are read in the repository. The order of the site is that of the tables in docs/README.md, its
first page is the README, and what pages link to outside docs/ (results, the changelog, examples) comes along.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "build/site"
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[)#])")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_ROW = re.compile(r"^\| \[(.+?)\]\((.+?)\)", re.MULTILINE)

# Where pages that are outside docs/ stand in the site.
_MOVED = {"README.md": "index.md", "docs/README.md": "documents.md"}


def place(path: Path) -> str:
    """Where a file of the repository stands in the source of the site."""
    name = path.relative_to(ROOT).as_posix()
    return _MOVED.get(name, name.removeprefix("docs/"))


def lay_out(target: Path) -> list[Path]:
    """Copy every page, and every file that a page links to. Returns the pages."""
    shutil.rmtree(target, ignore_errors=True)
    waiting = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    done: list[Path] = []
    while waiting:
        page = waiting.pop()
        if page in done:
            continue
        done.append(page)
        there = target / place(page)
        there.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix != ".md":
            shutil.copy2(page, there)
            continue
        parts = _FENCE.split(page.read_text(encoding="utf-8"))
        for number in range(0, len(parts), 2):
            parts[number] = LINK.sub(partial(_moved, page, waiting), parts[number])
        # What the tests of the snippets read behind the language is not for readers.
        text = re.sub(r"^(```\w+) .*$", r"\1", "".join(parts), flags=re.MULTILINE)
        there.write_text(text, encoding="utf-8")
    return [page for page in done if page.suffix == ".md"]


def _moved(page: Path, waiting: list[Path], found: re.Match[str]) -> str:
    """The link from where the page stands in the site. A folder has no page: its README, or its first file."""
    linked = (page.parent / found[0]).resolve()
    if linked.is_dir():
        linked = min(linked.glob("*.py"))
    if linked.suffix != ".md" or not linked.is_relative_to(ROOT / "docs"):
        waiting.append(linked)
    return os.path.relpath(place(linked), os.path.dirname(place(page)))


def contents() -> list[object]:
    """The tables of docs/README.md as the navigation."""
    listed: list[object] = []
    index = ROOT / "docs/README.md"
    for section in index.read_text(encoding="utf-8").split("\n## "):
        title, _, body = section.partition("\n")
        rows: list[dict[str, str]] = [
            {name: place((index.parent / path).resolve())} for name, path in _ROW.findall(body)
        ]
        decisions = [row for row in rows if next(iter(row)).startswith("Decision ")]
        pages: list[object] = [row for row in rows if row not in decisions]
        if decisions:
            pages.append({"Decisions": decisions})
        listed += pages if title.startswith("# ") else [{title: pages}]
    return [*listed, {"All pages": "documents.md"}]


def main() -> None:
    pages = lay_out(TARGET / "source")
    config = {
        "site_name": "Holdfast",
        "site_description": "Runs commands that outlive the program that started them",
        "docs_dir": "source",
        "site_dir": "html",
        "use_directory_urls": False,
        "theme": {
            "name": "material",
            # Nothing is fetched from anywhere: the site works from a disk and tells no one who reads it.
            "font": False,
            "features": ["navigation.indexes", "navigation.top", "content.code.copy", "toc.follow"],
            "palette": [
                {"media": f"(prefers-color-scheme: {scheme})", "scheme": name, "primary": "teal"}
                for scheme, name in (("light", "default"), ("dark", "slate"))
            ],
        },
        "plugins": ["search"],
        "markdown_extensions": ["tables", "admonition", "pymdownx.superfences", {"toc": {"permalink": True}}],
        "validation": {"links": {"anchors": "warn", "not_found": "warn", "unrecognized_links": "warn"}},
        "nav": contents(),
    }
    # JSON is YAML.
    (TARGET / "mkdocs.yml").write_text(json.dumps(config, indent=2))
    print(f"{len(pages)} pages in {TARGET / 'source'}")


if __name__ == "__main__":
    main()
