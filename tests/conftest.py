"""Load the fixtures of support/: a private world, failpoints, bystanders, and the census after each test."""

from __future__ import annotations

import os
import sys

import pytest

# Hundreds of programs of ours start in one run: compile each module once, not once in every process.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

pytest.register_assert_rewrite("support")
pytest_plugins = [
    "support.suite",
    "support.world",
    "support.census",
    "support.points",
    "support.bystander",
    "support.shared_launcher",
    "support.reference_screen",
    "support.facades",
    "support.agents",
    "support.promised",
    "support.places",
    "support.serving",
    "support.browser",
    "support.fleets",
    "support.releases",
]
