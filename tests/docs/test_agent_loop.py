"""The agent loop of the guide, run as it is printed there: killed in the middle of a turn, and started again."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from support.program import Program
from support.world import World

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "agent-loop.md"


def program() -> str:
    found = re.search(r"```python no-run\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    assert found
    return found[1]


def test_the_loop_has_no_more_lines_than_its_title_says() -> None:
    assert len(program().rstrip().splitlines()) <= 30


@pytest.mark.covers("signals:10")
def test_a_loop_that_is_killed_in_a_turn_gets_the_same_notice_when_it_is_started_again(world: World) -> None:
    (world.cwd / "Makefile").write_text("all:\n\t@echo compiling; echo 'main.c:1: error: no' >&2; exit 1\n")
    first = world.host(program(), "crash")
    notice = _notice(first)
    assert "main.c:1: error: no" in notice
    first.kill()
    again = world.host(program())
    second = _notice(again)
    assert "redelivered" in second
    assert "main.c:1: error: no" in second
    while "failed, exit code 2" not in second:
        second = _notice(again)
    again.kill()
    world.hold("gc", check=True)  # what killed hosts leave in the runtime directory


def _notice(agent: Program) -> str:
    return "\n".join(agent.lines_until("</holdfast-notice>"))
