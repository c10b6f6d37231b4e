"""Arguments as models write them, against the parameters of a tool."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadArgument
from holdfast.tools.base import (
    BOOLEAN,
    INTEGER,
    MAP,
    NUMBER,
    PAIRS,
    STRING,
    STRINGS,
    WORDS,
    Parameter,
    schema_of,
    take_arguments,
)

EVERYTHING = (
    Parameter("command", WORDS, "what to run", required=True),
    Parameter("wait_s", NUMBER, default=10, minimum=0, maximum=600),
    Parameter("lines", INTEGER, minimum=1),
    Parameter("tty", BOOLEAN, default=False),
    Parameter("name", STRING),
    Parameter("ids", STRINGS, aliases=("id",)),
    Parameter("env", PAIRS),
    Parameter("extra", MAP),
    Parameter("stdin", STRING, default="closed", choices=("open", "closed")),
)


def taken(**arguments: Any) -> dict[str, Any]:
    return {
        name: value
        for name, value in take_arguments(EVERYTHING, arguments).items()
        if name in arguments or name == "ids"
    }


def test_what_is_left_out_has_its_default() -> None:
    found = take_arguments(EVERYTHING, {"command": "ls"})
    assert (found["wait_s"], found["tty"], found["stdin"], found["name"]) == (10, False, "closed", None)


@pytest.mark.covers("native:21")
@pytest.mark.parametrize(
    "name, value, meant",
    [
        ("wait_s", "2.5", 2.5),
        ("lines", "7", 7),
        ("lines", 7.0, 7),
        ("tty", "true", True),
        ("name", 3000, "3000"),
        ("ids", "web", ["web"]),
        ("ids", [1, "b"], ["1", "b"]),
        ("env", ["A=1", "B=x=y"], {"A": "1", "B": "x=y"}),
        ("env", {"A": 1}, {"A": "1"}),
        ("extra", {"A": "1"}, {"A": "1"}),
        ("extra", ["A=1"], {"A": "1"}),
        ("command", ["echo", "a"], ["echo", "a"]),
        ("name", None, None),
    ],
)
def test_what_is_obviously_meant_is_taken(name: str, value: object, meant: object) -> None:
    assert taken(**{"command": "ls", name: value})[name] == meant


def test_another_name_of_a_parameter_is_taken_as_it() -> None:
    assert take_arguments(EVERYTHING, {"command": "ls", "id": "web"})["ids"] == ["web"]


@pytest.mark.covers("native:21")
@pytest.mark.parametrize(
    "arguments, said",
    [
        ({}, "command: is required"),
        ({"command": None}, "command: is required"),
        ({"command": 7.5, "wait_s": []}, "wait_s: [] is not a number; give a number from 0 to 600"),
        ({"command": "ls", "wait_s": 601}, "out of bounds; give a number from 0 to 600"),
        ({"command": "ls", "lines": 0}, "give a whole number of at least 1"),
        ({"command": "ls", "lines": True}, "True is not a whole number"),
        ({"command": "ls", "lines": 1.5}, "1.5 is not a whole number"),
        ({"command": "ls", "stdin": "opne"}, "did you mean open?; give open or closed"),
        ({"command": "ls", "wait": 3}, "wait: there is no such parameter; did you mean wait_s?"),
        ({"command": "ls", "zzz": 3}, "there is command, wait_s"),
        ({"command": "ls", "env": ["A"]}, 'give a list of "NAME=VALUE"'),
        ([], "arguments: [] is not an object"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_can(arguments: Any, said: str) -> None:
    with pytest.raises(BadArgument) as refused:
        take_arguments(EVERYTHING, arguments)
    assert said in str(refused.value)


def test_values_of_variables_are_not_repeated_in_an_error() -> None:
    with pytest.raises(BadArgument) as refused:
        take_arguments(EVERYTHING, {"command": "ls", "env": {"TOKEN": "canary", "B": True}})
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("nullable", [True, False])
def test_no_schema_of_a_strict_mode_has_free_keys(nullable: bool) -> None:
    assert '"additionalProperties": {' not in json.dumps(schema_of(EVERYTHING, strict=True, nullable=nullable))


@pytest.mark.parametrize("name, value", [("tty", "true"), ("lines", "7"), ("lines", True), ("name", 3), ("ids", "a")])
def test_strict_toolsets_take_the_declared_type_alone(name: str, value: object) -> None:
    with pytest.raises(BadArgument):
        take_arguments(EVERYTHING, {"command": "ls", name: value}, strict=True)


@pytest.mark.parametrize("strict", [False, True])
def test_schemas_are_valid_and_accept_what_is_declared(strict: bool) -> None:
    made = schema_of(EVERYTHING, strict=strict)
    jsonschema.Draft202012Validator.check_schema(made)
    everything = {
        "command": ["ls"],
        "wait_s": 1,
        "lines": 2,
        "tty": True,
        "name": "web",
        "ids": ["a"],
        "env": ["A=1"],
        "extra": {"A": "1"} if not strict else ["A=1"],
        "stdin": "open",
    }
    jsonschema.validate(everything, made)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**everything, "more": 1}, made)


def test_in_a_strict_schema_everything_is_required_and_may_be_null() -> None:
    made = schema_of(EVERYTHING, strict=True)
    assert made["required"] == list(made["properties"])
    jsonschema.validate({**dict.fromkeys(made["properties"]), "command": "ls"}, made)


def test_in_a_strict_schema_without_nulls_only_what_has_no_default_is_optional() -> None:
    made = schema_of(EVERYTHING, strict=True, nullable=False)
    assert made["required"] == [each.name for each in EVERYTHING if each.required or each.default is not None]
    assert "null" not in str(made)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([each.name for each in EVERYTHING]) | st.text(max_size=5), json_values))
def test_whatever_is_given_it_is_taken_or_refused_by_name(arguments: dict[str, Any]) -> None:
    try:
        found = take_arguments(EVERYTHING, arguments)
    except BadArgument:
        return
    assert set(found) == {each.name for each in EVERYTHING}


@pytest.mark.parametrize("doc, said", [("end it then", "end it then; above 0"), ("", "above 0")])
def test_a_bound_that_schemas_have_no_word_for_is_said_in_the_description(doc: str, said: str) -> None:
    found = Parameter("timeout_s", NUMBER, doc, above=0).schema()
    assert found == {"type": "number", "description": said}
