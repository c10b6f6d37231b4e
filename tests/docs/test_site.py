"""The documents as a site: every page is in it and in its navigation, and every link leads to a file of the site."""

from __future__ import annotations

import json
import os
import pwd
import subprocess
from pathlib import Path

import pytest

import site_pages

ROOT = Path(__file__).resolve().parents[2]


def test_every_page_and_what_it_links_to_is_in_the_site(tmp_path: Path) -> None:
    pages = site_pages.lay_out(tmp_path)
    assert {*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "bench/RESULTS.md"} <= set(pages)
    dead = [
        (page.name, link)
        for page in tmp_path.rglob("*.md")
        for link in site_pages.LINK.findall(page.read_text())
        if not (page.parent / link).exists()
    ]
    # In the reference a pattern can look like a link.
    assert [each for each in dead if each[1].endswith((".md", ".png", ".svg", ".py"))] == []
    listed = json.dumps(site_pages.contents())
    assert [
        name for page in pages if (name := site_pages.place(page)).startswith("guides/") and name not in listed
    ] == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_site_is_built_without_a_broken_link() -> None:
    # pip fills the site's environment with what is in the real home.
    env = os.environ | {"HOME": pwd.getpwuid(os.getuid()).pw_dir}
    done = subprocess.run(["make", "site"], cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert (ROOT / "build/site/html/guides/coming-from-tmux.html").exists()
