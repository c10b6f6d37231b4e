"""The parameters of a tool: their JSON Schema, and arguments checked against them with errors that teach.

One declaration is the source of both. Models write numbers as text and one thing where a list is wanted: what is
obvious is accepted where a toolset does not forbid it, and `null` is the same as leaving a parameter out.
"""

from __future__ import annotations

import math
from difflib import get_close_matches
from typing import TYPE_CHECKING

from ..errors import BadArgument

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

STRING = "string"
INTEGER = "integer"
NUMBER = "number"
BOOLEAN = "boolean"
STRINGS = "strings"
# A string or a list of strings.
WORDS = "words"
# Names and values, in a schema without free keys: `NAME=VALUE` each. A JSON object is accepted as well.
PAIRS = "pairs"
# A JSON object with free keys, for toolsets whose contract has one.
MAP = "map"

_SCHEMAS: dict[str, dict[str, Any]] = {
    STRING: {"type": "string"},
    INTEGER: {"type": "integer"},
    NUMBER: {"type": "number"},
    BOOLEAN: {"type": "boolean"},
    STRINGS: {"type": "array", "items": {"type": "string"}},
    WORDS: {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
    PAIRS: {"type": "array", "items": {"type": "string"}},
    MAP: {"type": "object", "additionalProperties": {"type": "string"}},
}
_IN_WORDS = {
    STRING: "text",
    INTEGER: "a whole number",
    NUMBER: "a number",
    BOOLEAN: "true or false",
    STRINGS: "a list of texts",
    WORDS: "text, or a list of texts",
    PAIRS: 'a list of "NAME=VALUE"',
    MAP: "an object of texts",
}
_TRUTHS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


class Parameter:
    """`default` is what a call without it gets, and what the schema says; a required one has none. `above` is for a
    limit that is left out where there is to be none; schemas only say it in words, for some model APIs refuse it."""

    __slots__ = ("above", "aliases", "choices", "default", "doc", "maximum", "minimum", "name", "required", "type")

    def __init__(
        self,
        name: str,
        type: str,
        doc: str = "",
        *,
        default: Any = None,
        required: bool = False,
        choices: Sequence[Any] = (),
        minimum: float | None = None,
        maximum: float | None = None,
        above: float | None = None,
        aliases: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.type = type
        self.doc = doc
        self.default = default
        self.required = required
        self.choices = tuple(choices)
        self.minimum = minimum
        self.maximum = maximum
        self.above = above
        self.aliases = tuple(aliases)

    def schema(self) -> dict[str, Any]:
        found = dict(_SCHEMAS[self.type])
        said = [self.doc] if self.doc else []
        if self.above is not None:
            said.append(f"above {self.above:g}")
        if said:
            found["description"] = "; ".join(said)
        if self.choices:
            found["enum"] = list(self.choices)
        if self.minimum is not None:
            found["minimum"] = self.minimum
        if self.maximum is not None:
            found["maximum"] = self.maximum
        if self.default is not None:
            found["default"] = self.default
        return found

    def take(self, value: Any, *, strict: bool) -> Any:
        """The value as the tool wants it, or BadArgument."""
        taken = _typed(value, self.type, strict)
        if taken is None:
            # Values of variables may be secrets.
            given = "that" if self.type in (PAIRS, MAP) else _shown(value)
            raise BadArgument(self.name, f"{given} is not {_IN_WORDS[self.type]}", f"give {self.wanted()}")
        if self.choices and taken not in self.choices:
            near = get_close_matches(str(taken), [str(each) for each in self.choices], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise BadArgument(self.name, f"{_shown(value)} is not known{hint}", f"give {self.wanted()}")
        if isinstance(taken, (int, float)) and not isinstance(taken, bool):
            low = self.minimum is not None and taken < self.minimum
            low = low or (self.above is not None and taken <= self.above)
            if low or (self.maximum is not None and taken > self.maximum):
                raise BadArgument(self.name, f"{_shown(value)} is out of bounds", f"give {self.wanted()}")
        return taken

    def wanted(self) -> str:
        if self.choices:
            return " or ".join(map(str, self.choices))
        words = _IN_WORDS[self.type]
        if self.above is not None:
            return f"{words} above {self.above:g}, or leave it out"
        if self.minimum is not None and self.maximum is not None:
            return f"{words} from {self.minimum:g} to {self.maximum:g}"
        if self.minimum is not None:
            return f"{words} of at least {self.minimum:g}"
        return words if self.maximum is None else f"{words} of at most {self.maximum:g}"


def schema(parameters: Sequence[Parameter]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "type": "object",
        "properties": {each.name: each.schema() for each in parameters},
        "additionalProperties": False,
    }
    required = [each.name for each in parameters if each.required]
    if required:
        found["required"] = required
    return found


def strict_schema(parameters: Sequence[Parameter], *, nullable: bool = True) -> dict[str, Any]:
    """For the strict modes of model APIs: every property is required, one that may be left out may be null, and what
    such a mode does not know (bounds, defaults) is said in words. Not `nullable` is for a mode that knows optional
    properties, but few of them and few unions: then only those without a default are optional."""
    properties: dict[str, Any] = {}
    for each in parameters:
        # Free keys are nothing that such a mode knows.
        found = dict(_SCHEMAS[PAIRS if each.type == MAP else each.type])
        if each.choices:
            found["enum"] = list(each.choices)
        if nullable and not each.required:
            found = _or_null(found)
        said = [each.doc] if each.doc else []
        if any(bound is not None for bound in (each.minimum, each.maximum, each.above)):
            said.append(each.wanted())
        if each.default is not None:
            said.append(f"default {each.default}")
        if said:
            found["description"] = "; ".join(said)
        properties[each.name] = found
    return {
        "type": "object",
        "properties": properties,
        "required": [each.name for each in parameters if nullable or each.required or each.default is not None],
        "additionalProperties": False,
    }


def _or_null(found: dict[str, Any]) -> dict[str, Any]:
    """A union only where there is one already: some who know strict schemas know no `anyOf`."""
    if "anyOf" in found:
        return {**found, "anyOf": [*found["anyOf"], {"type": "null"}]}
    choices = {"enum": [*found["enum"], None]} if "enum" in found else {}
    return {**found, "type": [found["type"], "null"], **choices}


def take(parameters: Sequence[Parameter], given: object, *, strict: bool = False) -> dict[str, Any]:
    """The arguments by name, defaults filled in. `strict` accepts no other type than the declared one."""
    if given is None:
        given = {}
    if not isinstance(given, dict):
        raise BadArgument("arguments", f"{_shown(given)} is not an object", "give the parameters by name")
    known = {name: each for each in parameters for name in (each.name, *each.aliases)}
    taken: dict[str, Any] = {each.name: each.default for each in parameters}
    for name, value in given.items():
        if name not in known:
            missing = [each.name for each in parameters if each.required and given.get(each.name) is None]
            near = get_close_matches(str(name), missing, 1) or get_close_matches(str(name), known, 1)
            fix = f"did you mean {near[0]}?" if near else "there is " + ", ".join(each.name for each in parameters)
            raise BadArgument(str(name)[:80], "there is no such parameter", fix)
        if value is not None:
            taken[known[name].name] = known[name].take(value, strict=strict)
    for each in parameters:
        if each.required and taken[each.name] is None:
            raise BadArgument(each.name, "is required", f"give {each.wanted()}")
    return taken


def _typed(value: Any, type: str, strict: bool) -> Any:
    """None: it cannot be read as that."""
    if type == BOOLEAN:
        if isinstance(value, bool):
            return value
        return None if strict else _TRUTHS.get(str(value).strip().lower())
    if type in (INTEGER, NUMBER):
        return _number(value, type, strict)
    if type == STRING:
        return value if isinstance(value, str) else _text(value, strict)
    if type == MAP:
        return _texts(value) if isinstance(value, dict) else _pairs(value)
    if type == PAIRS:
        return _pairs(value)
    if type == WORDS and isinstance(value, str):
        return value
    if isinstance(value, (list, tuple)):
        words = [each if isinstance(each, str) else _text(each, strict) for each in value]
        return None if None in words else words
    one = value if isinstance(value, str) else _text(value, strict)
    return None if strict or one is None else [one]


def _number(value: Any, type: str, strict: bool) -> int | float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)) or (strict and isinstance(value, str)):
        return None
    try:
        number = value if isinstance(value, (int, float)) else _spelled(value)
        if not math.isfinite(number):
            return None
    except (ValueError, OverflowError):
        return None
    if type == NUMBER:
        return number
    return int(number) if number == int(number) else None


def _spelled(text: str) -> int | float:
    return float(text) if any(mark in text for mark in ".eE") else int(text)


def _text(value: Any, strict: bool) -> str | None:
    if strict or isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return str(value)


def _texts(value: Any) -> dict[str, str] | None:
    if not isinstance(value, dict):
        return None
    texts = {str(name): each if isinstance(each, str) else _text(each, strict=False) for name, each in value.items()}
    return None if None in texts.values() else {name: each for name, each in texts.items() if each is not None}


def _pairs(value: Any) -> dict[str, str] | None:
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        return _texts(value)
    found = {}
    for each in value:
        if not isinstance(each, str) or "=" not in each:
            return None
        name, _, text = each.partition("=")
        found[name] = text
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def as_given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Only what was given: for whoever shows a call again."""
    return {name: value for name, value in arguments.items() if value is not None}
