"""What the documents name exists: pages, headings, commands, options, settings; and the reference is current."""

from __future__ import annotations

import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

import api_reference
import modules_page
from holdfast import cli
from holdfast.config import SETTINGS, Config

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
WRITTEN = [page for page in PAGES if page.name not in ("cli.md", "config.md", "promises.md")]

_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_SHELL_BLOCK = re.compile(r"^```(sh|console)\b.*?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`\n]+)`")


def prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#{1,6} (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each `hold COMMAND WORDS` in the prose of a page and in its blocks for a shell, also those that are not run."""
    for code in _CODE.findall(prose(page)):
        if code.startswith("hold ") and code != "hold COMMAND":
            name, *words = shlex.split(code)[1:]
            yield name, words[: words.index("--")] if "--" in words else words
    for language, block in _SHELL_BLOCK.findall(page.read_text(encoding="utf-8")):
        for line in block.replace("\\\n", " ").split("\n"):
            if language == "sh" or line.startswith("$ "):
                yield from _on_line(line)


def _on_line(line: str) -> Iterator[tuple[str, list[str]]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    for at, word in enumerate(words[:-1]):
        if word == "hold" and (not at or not words[at - 1].strip("$();|&")):
            own = itertools.takewhile(lambda each: each != "--" and each.strip("();<>|&"), words[at + 1 :])
            name, *rest = own
            yield name, rest


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page: Path) -> None:
    dead = []
    for link in _LINK.findall(prose(page)):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert not dead


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_every_command_and_option_that_a_page_names_exists(page: Path) -> None:
    for name, words in commands(page):
        if name in ("--help", "--version"):
            continue
        assert name in cli.names(), f"no command `hold {name}`"
        parser, module = cli.parser_of(name)
        known = parser.options
        understood = getattr(module, f"{name}_understood", list)(words)  # `-9` as `-s 9`
        given = [word.partition("=")[0] for word in understood if word.startswith("-")]
        # `-aq` is `-a -q`.
        strangers = [each for each in given if each not in known and not {f"-{one}" for one in each[1:]} <= {*known}]
        assert not strangers, f"hold {name} knows no {strangers}"


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_every_setting_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:log|start|launcher|hosts|collect|cli)\.[a-z_]+)`", prose(page))
    assert set(named) - {"log.md", "log.py"} <= {setting.name for setting in SETTINGS}


@pytest.mark.covers("found:27")
def test_the_guides_name_the_real_default_of_the_reply_timeout() -> None:
    default_s = Config().hosts_reply_timeout
    words = {10.0: "ten"}[default_s]
    guide = prose(REPOSITORY / "docs" / "guides" / "when-things-go-wrong.md")
    sentences = [sentence for sentence in re.split(r"(?<=[.:])\s", guide) if "`hosts.reply_timeout`" in sentence]
    assert sentences
    assert all(f" {words} " in sentence for sentence in sentences), f"it is {default_s:g} s"


@pytest.mark.covers("found:27")
def test_there_is_a_guide_to_notices_for_people() -> None:
    guide = prose(REPOSITORY / "docs" / "guides" / "notices.md")
    assert all(f"`{channel}`" in guide or channel in guide for channel in ("command", "webhook", "bell"))


def test_the_index_of_documents_lists_them_all() -> None:
    index = REPOSITORY / "docs" / "README.md"
    listed = {(index.parent / link).resolve() for link in _LINK.findall(prose(index))}
    assert set(PAGES) - listed == {index}


def test_the_page_of_modules_is_up_to_date_and_names_each() -> None:
    assert modules_page.main(["--check"]) == 0, "run tools/modules_page.py"
    named = set(re.findall(r"^(\S+) +[`\w]", modules_page.PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    source = REPOSITORY / "src" / "holdfast"
    there = {path.relative_to(source).as_posix().removesuffix("__init__.py") for path in source.rglob("*.py")} - {""}
    assert there <= named


def test_the_page_of_the_python_api_is_up_to_date() -> None:
    assert api_reference.main(["--check"]) == 0, "run tools/api_reference.py"
