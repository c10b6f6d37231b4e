"""The fenced blocks of a text that was made for an agent."""

from __future__ import annotations


def split(text: str) -> tuple[list[str], dict[str, str]]:
    """The lines outside of all blocks, and what is in each block by the line above it. A block ends with the very fence
    that it began with."""
    fence, heading = "", ""
    outside: list[str] = []
    inside: dict[str, list[str]] = {}
    for line in text.split("\n"):
        if not fence and line.startswith("```") and line.endswith("console"):
            fence = line.removesuffix("console")
            heading = outside[-1]
            inside[heading] = []
        elif fence and line == fence:
            fence = ""
        elif fence:
            inside[heading].append(line)
        else:
            outside.append(line)
    assert not fence, "every block is closed"
    return outside, {heading: "\n".join(lines) for heading, lines in inside.items()}


def block(text: str, heading: str) -> str:
    """What stands in the block below the line that has this in it; empty where there is none."""
    return next((body for line, body in split(text)[1].items() if heading in line), "")
