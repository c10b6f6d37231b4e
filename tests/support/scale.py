"""How much a test does: `make test` proves each promise once, `make test-all` repeats and enumerates in full."""

from __future__ import annotations

import os
from typing import TypeVar

# An environment variable rather than an option: parameters are chosen while test modules are imported.
LONG = os.environ.get("HOLDFAST_TESTS") == "all"

Value = TypeVar("Value")


def scaled(short: Value, full: Value) -> Value:
    """A size, a count or a list of parameters: `short` in `make test`, `full` in `make test-all`."""
    return full if LONG else short
