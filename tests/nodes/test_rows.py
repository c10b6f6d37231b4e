"""What a node reports of its sessions is checked, bounded, and shown as that node's."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.model import SESSION_KEYS
from holdfast.nodes.rows import TEXT_CHARACTERS, far_shot

_ID = "b7k2m9qa1"


@pytest.mark.parametrize("id", ["../../etc", "a/b", "", "x" * 1000, None, 7, "B7K2M9QA1", "abc\x00def"])
def test_a_row_with_an_invalid_id_is_dropped(id: object) -> None:
    assert far_shot("a", {"id": id}) is None


@pytest.mark.parametrize(
    "claim", [None, 7, [], {}, "x" * 1_000_000, {"deep": {"deep": {"deep": {"deep": [1] * 10**5}}}}]
)
def test_whatever_a_row_contains_it_is_limited_and_has_the_name_of_its_node(claim: Any) -> None:
    row: dict[str, Any] = {**dict.fromkeys(SESSION_KEYS, claim), "id": _ID, "node": "another"}
    shot = far_shot("a", row)
    assert shot is not None
    shown = shot.to_json()
    assert (shown["node"], shown["id"]) == ("a", _ID)
    assert set(shown) == {*SESSION_KEYS, "node"}
    assert len(json.dumps(shown)) < 20 * TEXT_CHARACTERS
    assert isinstance(shot.command, str)
    assert isinstance(shot.labels, dict)
    assert shot.exit is None


@pytest.mark.parametrize("row", [None, [], "text", 7])
def test_a_row_that_is_not_an_object_is_dropped(row: object) -> None:
    assert far_shot("a", row) is None
