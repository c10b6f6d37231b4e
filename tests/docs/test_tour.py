"""The documents are run. Each section of a document is one script, and must print what the document shows.

Every `console`, `sh` and `python` block counts, unless its fence says `no-run`:

- `console`: `$ command` (goes on after `> `), and below it what it prints;
- `sh`: commands that must succeed;
- `python`: the blocks of a section are one program; a `text output` block shows what it printed.

Ids, times, durations, sizes and pids may differ from those shown; a line `...` stands for any lines.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from support.world import World

REPOSITORY = Path(__file__).resolve().parents[2]
DOCUMENTS = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs" / "guides").glob("*.md"))]

_SHELL = ("console", "sh")
_SECTION_S = 30
_MARK = "--8<--"

# What differs from run to run, the same way on both sides. Columns are as wide as their widest cell.
_VARIES = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"\b[bp][0-9a-z]{8}\b"), "ID"),
    (re.compile(r"\b\d+(\.\d+)?(ms|s|m|h|d)\b"), "SPAN"),
    (re.compile(r"\bpid \d+"), "pid N"),
    (re.compile(r"\b[\d.]+ ([KMG]i)?B\b"), "SIZE"),
    (re.compile(r"[ \t]+"), " "),
)


class Block(NamedTuple):
    """A fenced block: where it begins, its language and flags, its lines."""

    line: int
    language: str
    flags: tuple[str, ...]
    lines: list[str]

    @property
    def runs(self) -> bool:
        return self.language in (*_SHELL, "python") and "no-run" not in self.flags


class Section(NamedTuple):
    title: str
    blocks: list[Block]


class Step(NamedTuple):
    """A piece of a shell script, and what it prints; None where nothing is shown."""

    line: int
    script: str
    shown: str | None


def sections(text: str) -> list[Section]:
    """What a document asks to be run, by heading."""
    found = [Section("", [])]
    block: Block | None = None
    for number, line in enumerate(text.split("\n"), 1):
        if block is not None:
            if line == "```":
                found[-1].blocks.append(block)
                block = None
            else:
                block.lines.append(line)
        elif line.startswith("```"):
            language, *flags = line.removeprefix("```").split() or [""]
            block = Block(number, language, tuple(flags), [])
        elif re.match(r"#{1,6} ", line):
            found.append(Section(line.lstrip("# "), []))
    if block is not None:
        raise AssertionError(f"the block at line {block.line} has no end")
    return [section for section in found if any(each.runs for each in section.blocks)]


def steps(block: Block) -> list[Step]:
    if block.language == "sh":
        return [Step(block.line, "set -e\n" + "\n".join(block.lines) + "\nset +e", None)]
    found: list[tuple[int, list[str], list[str]]] = []
    for number, line in enumerate(block.lines, block.line + 1):
        if line.startswith("$ "):
            found.append((number, [line.removeprefix("$ ")], []))
            continue
        assert found, f"line {number}: a transcript begins with `$ `"
        _, script, shown = found[-1]
        if line.startswith("> ") and not shown:
            script.append(line.removeprefix("> "))
        else:
            shown.append(line)
    return [Step(number, "\n".join(script), "\n".join(shown)) for number, script, shown in found]


def as_shown(printed: str, shown: str) -> bool:
    """Whether a program printed what the document says it prints."""
    pattern = "".join(
        r"(?:.*\n)*" if line.strip() == "..." else re.escape(line) + r"\n" for line in plain(shown).split("\n") if shown
    )
    return re.fullmatch(pattern, plain(printed) + "\n" if printed else "") is not None


def plain(text: str) -> str:
    for what, instead in _VARIES:
        text = what.sub(instead, text)
    return "\n".join(line.rstrip() for line in text.rstrip("\n").split("\n"))


def run_shell(document: Path, blocks: list[Block]) -> None:
    todo = [step for block in blocks for step in steps(block)]
    script = ["exec 2>&1"]
    for number, step in enumerate(todo):
        script += [step.script, f"printf '%s\\n' '{_MARK} {number}'"]
    done = execute(["bash", "-c", "\n".join(script)])
    parts = re.split(rf"{_MARK} \d+\n", done.stdout)
    for step, printed in zip(todo, parts, strict=False):
        if step.shown is not None and not as_shown(printed, step.shown):
            pytest.fail(f"{document.name}:{step.line}: {step.script}\nprinted\n{printed}\nand not\n{step.shown}")
    where = todo[min(len(parts), len(todo)) - 1]
    assert len(parts) == len(todo) + 1, f"{document.name}:{where.line}: ended in the middle:\n{done.stdout[-2000:]}"


def run_python(document: Path, blocks: list[Block]) -> None:
    programs = [block for block in blocks if block.language == "python"]
    first = programs[0].line
    # Blank lines in front, so that a traceback names the line of the document.
    source = "\n" * first + "\n".join("\n".join(block.lines) for block in programs)
    done = execute([sys.executable, "-W", "error", "-c", source])
    assert done.returncode == 0, f"{document.name}:{first}: {done.stdout}"
    shown = ["\n".join(block.lines) for block in blocks if block.flags == ("output",)]
    if shown and not as_shown(done.stdout, "\n".join(shown)):
        pytest.fail(f"{document.name}:{first}: printed\n{done.stdout}\nand not\n{shown[0]}")


def execute(argv: list[str]) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_SECTION_S,
        # The process that delivers notices stays until the next one about the same session may follow.
        env={**os.environ, "PATH": path, "USER": "ada", "HOLDFAST_PEOPLE_APART": "100ms"},
        process_group=0,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_what_a_document_shows_is_what_happens(document: Path, world: World) -> None:
    hf = world.open()
    try:
        for section in sections(document.read_text(encoding="utf-8")):
            running = [block for block in section.blocks if block.runs]
            languages = {block.language in _SHELL for block in running}
            assert len(languages) == 1, f"{document.name}: `{section.title}` mixes shell and Python"
            if languages == {True}:
                run_shell(document, running)
            else:
                run_python(document, [block for block in section.blocks if block.runs or block.flags == ("output",)])
            left = hf.sessions()
            assert not left, f"{document.name}: `{section.title}` leaves {left} running"
    finally:
        hf.stop_all([session.id for session in hf.sessions()], grace=0)


@pytest.mark.parametrize(
    "printed, shown, alike",
    [
        ("b7k2m9qa1\n", "bzzzzzzz0", True),
        ("b7k2m9qa1\n", "dev", False),
        ("stopped after 12ms (pid 7)\n", "stopped after 2s (pid 12345)", True),
        ("exit 1 after 0.1s\n", "exit 1 after 0s", True),
        ("ID    NAME\nb7k2m9qa1 dev\n", "ID NAME\nb00000000  dev", True),
        ("one\ntwo\nthree\n", "one\n...\nthree", True),
        ("one\ntwo\nthree\n", "one\n...", True),
        ("one\ntwo\nthree\n", "one\nthree", False),
        ("", "", True),
        ("something\n", "", False),
        ("", "something", False),
    ],
)
def test_only_ids_times_and_pids_may_differ(printed: str, shown: str, alike: bool) -> None:
    assert as_shown(printed, shown) is alike
