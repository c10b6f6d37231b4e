"""Browser tests take several seconds on an idle machine, and a timeout in the middle of one ends its worker."""

from __future__ import annotations

from pathlib import Path

import pytest

_BOUND_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(_BOUND_S), append=False)
