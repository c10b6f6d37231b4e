"""The product broken on purpose: each change in `tools/mutations.py` makes the test that is named there fail."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).resolve().parents[2] / "tools" / "mutations.py"


def _tool() -> Any:
    spec = importlib.util.spec_from_file_location("mutations", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["mutations"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


TOOL = _tool()


@pytest.mark.covers("found:32")
@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", TOOL.MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
def test_a_test_notices(mutation: Any) -> None:
    assert TOOL.notices(mutation) is None


@pytest.mark.parametrize("mutation", TOOL.MUTATIONS, ids=lambda mutation: mutation.name.replace(" ", "-"))
def test_what_is_changed_is_still_in_the_source(mutation: Any) -> None:
    text = (_FILE.parents[1] / "src" / "holdfast" / mutation.file).read_text(encoding="utf-8")
    assert text.count(mutation.before) == 1
