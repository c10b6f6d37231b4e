"""The suite stands on support/: a private world, points, bystanders, and the census after each test."""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite("support")
pytest_plugins = [
    "support.suite",
    "support.world",
    "support.census",
    "support.points",
    "support.bystander",
    "support.facades",
    "support.agents",
    "support.promised",
    "support.places",
    "support.serving",
]
