"""What a model is told of the tools: valid, strict where it has to be, and short."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from holdfast.model.options import SWITCH
from holdfast.sessions.wait import CONDITIONS
from holdfast.tools import base
from holdfast.tools.native.words import PATTERNS

if TYPE_CHECKING:
    from support.agents import Agents

# What the strict modes accept of JSON Schema.
STRICT_WORDS = {"type", "properties", "required", "additionalProperties", "items", "enum", "anyOf", "description"}

# What one of them takes in one request.
STRICT_TOOLS, STRICT_OPTIONAL, STRICT_UNIONS = 20, 24, 16


def inputs(tool: dict[str, Any]) -> dict[str, Any]:
    inner = tool.get("function", tool)
    found: dict[str, Any] = inner.get("inputSchema") or inner.get("input_schema") or inner["parameters"]
    return found


def nodes(schema: Any) -> list[dict[str, Any]]:
    """Every schema in a schema: names of properties are no words of it."""
    found = [schema]
    for part in (*schema.get("properties", {}).values(), *schema.get("anyOf", ())):
        found += nodes(part)
    return found + (nodes(schema["items"]) if "items" in schema else [])


@pytest.mark.covers("native:20")
def test_schemas_are_valid_strict_and_short(direct: Agents) -> None:
    tools = direct("native").tools
    for shape in ("mcp", "openai", "anthropic"):
        for strict in (False, True):
            for tool in tools.schemas(shape, strict=strict):
                jsonschema.Draft202012Validator.check_schema(inputs(tool))
    for shape in ("openai", "anthropic"):
        for tool in tools.schemas(shape, strict=True):
            assert tool.get("function", tool)["strict"] is True
            for node in nodes(inputs(tool)):
                assert set(node) <= STRICT_WORDS
                texts = [each for each in node.get("enum", ()) if each is not None or "null" not in node["type"]]
                assert all(isinstance(each, str) for each in texts)
                assert node.get("additionalProperties", False) is False
    # The one wants everything required, the other bounds what is optional and unions, over all tools together.
    assert all(
        inputs(each)["required"] == list(inputs(each)["properties"]) for each in tools.schemas("openai", strict=True)
    )
    bounded = [inputs(each) for each in tools.schemas("anthropic", strict=True)]
    assert len(bounded) <= STRICT_TOOLS
    assert sum(len(each["properties"]) - len(each["required"]) for each in bounded) <= STRICT_OPTIONAL
    assert sum("anyOf" in node for each in bounded for node in nodes(each)) <= STRICT_UNIONS
    assert all(len(tool["description"]) < 600 for tool in tools.schemas("mcp"))
    for node in (node for tool in tools.schemas("mcp") for node in nodes(inputs(tool))):
        assert len(node.get("description", "")) < 600
    assert len(json.dumps(tools.schemas("mcp"), separators=(",", ":"))) < 6000


def test_every_condition_with_a_value_says_what_its_pattern_is() -> None:
    assert set(PATTERNS) == {name for name, row in CONDITIONS.items() if row.takes != SWITCH}


def test_the_defaults_of_a_call_fit_its_own_schema(direct: Agents) -> None:
    for tool in direct("native").tools.tools:
        for each in tool.parameters:
            if each.default is not None:
                jsonschema.validate({each.name: each.default}, {"properties": {each.name: each.schema()}})
        strict = base.schema_of(tool.parameters, strict=True)
        nothing = {each.name: None for each in tool.parameters if not each.required}
        jsonschema.validate(nothing, {**strict, "required": list(nothing)})


def test_the_tools_say_what_they_do_to_the_world(direct: Agents) -> None:
    by_name = {tool["name"]: tool["annotations"] for tool in direct("native").tools.schemas("mcp")}
    assert {name for name, said in by_name.items() if said["readOnlyHint"]} == {"read", "wait", "screen", "list"}
    assert {name for name, said in by_name.items() if said["destructiveHint"]} == {"run", "send", "stop"}
    assert by_name["stop"]["idempotentHint"]
    assert {name for name, said in by_name.items() if said["openWorldHint"]} == {"run", "send"}


def test_a_host_that_brings_signals_itself_leaves_that_tool_out(direct: Agents) -> None:
    agent = direct("native", signals=False)
    assert "signals" not in [tool["name"] for tool in agent.tools.schemas()]
    assert agent.call("signals").error
