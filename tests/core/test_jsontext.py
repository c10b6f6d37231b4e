"""JSON by the C functions of the standard library, against the package that wraps them."""

from __future__ import annotations

import json
import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core import jsontext

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_any_value_is_written_as_the_package_writes_it_and_read_back(value: object) -> None:
    text = jsontext.write(value)
    assert text == json.dumps(value, separators=(",", ":"))
    assert jsontext.read(f" \n{text}\t\r\n") == value
    assert jsontext.read_finite(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    ["", " ", "{", "[1,]", "1 2", "{}{}", '{"a"}', '"\x01"', "NaN", '{"a":NaN}', "[-Infinity]", "nul", "\ufeff{}"],
)
def test_what_is_not_one_json_value_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        jsontext.read_finite(text)


def test_infinity_is_read_only_where_it_may_stand() -> None:
    assert jsontext.read(b"[Infinity,-Infinity]") == [math.inf, -math.inf]
    with pytest.raises(ValueError, match="Infinity is not a number"):
        jsontext.read_finite("[Infinity]")


def test_a_broken_text_is_a_value_error_also_when_the_package_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "json"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(ValueError, match="not JSON"):
        jsontext.read("{")


def test_nesting_without_end_is_a_recursion_error() -> None:
    with pytest.raises(RecursionError):
        jsontext.read("[" * 100_000)


def test_what_json_cannot_say_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="bytes cannot be written as JSON"):
        jsontext.write({"raw": b""})


def test_an_interpreter_without_the_c_functions_reads_and_writes_the_same() -> None:
    write, scan, scan_finite = jsontext._package_functions()
    assert "".join(write({"a": [1, None]}, 0)) == '{"a":[1,null]}'
    assert scan('{"a":[1,null]}', 0) == ({"a": [1, None]}, 14)
    with pytest.raises(ValueError, match="NaN is not a number"):
        scan_finite("NaN", 0)
