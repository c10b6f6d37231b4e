"""Which variants of a test run: all in `make test-all`; in `make test` the usual one always, each other once a promise.

A variant is the same test by another way: with an ability switched off, over MCP, through asyncio.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

# The parameter of each of these fixtures that every test runs with.
USUAL = {
    "without": [""],
    "agents": ["library"],
    "hf": ["blocking-launcher"],
    "away": ["ssh", "over_ssh"],
}


def chosen(items: list[pytest.Item]) -> set[str]:
    """The ids of the tests that run. Depends on which there are, not on their order."""
    shown: set[tuple[str, object, str]] = set()
    found = set()
    for item in sorted(items, key=lambda item: item.nodeid):
        unusual = list(_unusual(item))
        new = {(fixture, value, promise) for fixture, value in unusual for promise in _promises(item)} - shown
        shown |= new
        if new or not unusual:
            found.add(item.nodeid)
    return found


def _unusual(item: pytest.Item) -> Iterator[tuple[str, object]]:
    called = item.callspec.params if isinstance(item, pytest.Function) and hasattr(item, "callspec") else {}
    for fixture, usual in USUAL.items():
        if fixture in called and called[fixture] not in usual:
            yield fixture, called[fixture]


def _promises(item: pytest.Item) -> list[str]:
    """What it proves; a test that names no promise stands for its file."""
    return [str(row) for mark in item.iter_markers("covers") for row in mark.args] or [str(item.path)]
