"""The dozen jobs through the native toolset, against what the others were measured to need."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest
from bench.economy import PAGE, measure
from bench.jobs import PROOFS, write

if TYPE_CHECKING:
    from bench.economy import Cost

    from support.world import World


def recorded(row: str) -> dict[str, int]:
    """A row of sums of the page, by toolset."""
    lines = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.startswith("|")]
    (sums,) = [line[1:] for line in lines if line[0] == f"**{row}**"]
    return {name: int(re.sub(r"\D", "", each)) for name, each in zip(lines[0][1:], sums, strict=True)}


@pytest.mark.slow
@pytest.mark.covers("native:24")
def test_the_dozen_jobs_need_no_polling_and_less_than_half_the_tokens_of_any_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = world.root / "jobs"
    write(directory)
    monkeypatch.chdir(directory)

    async def all_at_once() -> list[Cost]:
        return await asyncio.gather(*(measure("native", job, directory) for job in PROOFS))

    costs = asyncio.run(all_at_once())
    assert len(costs) == 12
    assert sum(cost.polls for cost in costs) == 0
    others = recorded("tokens")
    del others["native"]
    assert len(others) == 4
    assert sum(cost.tokens for cost in costs) < min(others.values()) / 2
