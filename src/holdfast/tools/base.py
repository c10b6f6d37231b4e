"""A toolset over the sessions of one owner: schemas, checked arguments, calls, answers."""

from __future__ import annotations

import asyncio
import json
import math
from contextvars import ContextVar
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType
from typing import TYPE_CHECKING

from ..errors import BadArgument, HoldfastError, NotAllowed
from ..signals.lines import Signal
from ..terminal.text import all_visible
from .owner_sessions import OwnerSessions

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from typing import Any, TypeVar

    from ..sessions.aio import AsyncHoldfast, AsyncSession


@dataclass(frozen=True)
class Tool:
    """One tool as a model sees it. `reads`: it changes nothing. `destroys`: it may end what runs, or run a shell line,
    which may do anything. `repeats`: calling it again with the same arguments changes nothing more. `opens`: it reaches
    beyond this machine's own records."""

    name: str
    description: str
    parameters: tuple[Parameter, ...] = ()
    title: str = ""
    reads: bool = False
    destroys: bool = False
    repeats: bool = False
    opens: bool = False

    def __repr__(self) -> str:
        return f"<Tool {self.name}>"


class Answer:
    """What a tool returns: `text` for the model, and `data`, the same facts as JSON. `error`: the call did not do what
    was asked.

    Clients show a model the one or the other, so each is complete. `data` has program output under `output` and our
    own words beside it under `message`, or everything under `text`, which `structured` adds where it is needed.
    """

    __slots__ = ("data", "error", "text")

    def __init__(self, text: str, data: Mapping[str, Any] | None = None, *, error: bool = False) -> None:
        self.text = text
        self.data: dict[str, Any] = dict(data or {})
        self.error = error

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Answer {'error ' if self.error else ''}{self.text[:60]!r}>"

    def redacted(self, redact: Callable[[str], str]) -> Answer:
        return Answer(redact(self.text), each_text(self.data, redact), error=self.error)

    @classmethod
    def of_error(cls, problem: HoldfastError) -> Answer:
        return cls(str(problem), {"error": problem.to_json()}, error=True)

    def visible(self) -> Answer:
        """The same with invisible characters (bidi, zero-width, tags) spelled out."""
        if self.text.isascii() and json.dumps(self.data, ensure_ascii=False, default=str).isascii():
            return self
        data = each_text(self.data, all_visible)
        text = json.dumps(data, ensure_ascii=False) if self._is_json() else all_visible(self.text)
        return Answer(text, data, error=self.error)

    def structured(self, left_out: tuple[str, ...] = ()) -> dict[str, Any]:
        """The data, complete on its own, without the keys that repeat the text at length."""
        found = {key: value for key, value in self.data.items() if key not in left_out}
        return found if "message" in found or self._says_all() else {**found, "text": self.text}

    def _says_all(self) -> bool:
        error = self.data.get("error")
        return self._is_json() or (isinstance(error, dict) and error.get("message") == self.text)

    def _is_json(self) -> bool:
        """Some toolsets give the data itself as text."""
        return self.text.startswith("{") and self.text == json.dumps(self.data, ensure_ascii=False)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {key: each_text(each, change) for key, each in value.items()}
    return [each_text(each, change) for each in value] if isinstance(value, (list, tuple)) else value


# The parameters of a tool: their JSON Schema, and arguments checked against them, with errors that say how to
# fix the call.
#
# One declaration is the source of both. Models write numbers as text, or one item where a list is wanted: that is
# accepted unless a toolset forbids it. `null` is the same as leaving a parameter out.


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


@dataclass(frozen=True)
class Parameter:
    """`default` is what a call without it gets, and what the schema says; a required parameter has none. `above` is an
    exclusive minimum; schemas say it in words only, because some model APIs refuse the keyword."""

    name: str
    type: str
    doc: str = ""
    default: Any = None
    required: bool = False
    choices: Sequence[Any] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    aliases: Sequence[str] = ()

    def schema(self, *, strict: bool = False, nullable: bool = True) -> dict[str, Any]:
        """As in `schema_of`."""
        # A strict mode does not know free keys.
        found = dict(_SCHEMAS[PAIRS if strict and self.type == MAP else self.type])
        said = [self.doc] if self.doc else []
        if self.choices:
            found["enum"] = list(self.choices)
        if strict:
            if nullable and not self.required:
                found = _or_null(found)
            if any(bound is not None for bound in (self.minimum, self.maximum, self.above)):
                said.append(self.wanted())
            if self.default is not None:
                said.append(f"default {self.default}")
        else:
            found |= as_given({"minimum": self.minimum, "maximum": self.maximum, "default": self.default})
            if self.above is not None:
                said.append(f"above {self.above:g}")
        return {**found, "description": "; ".join(said)} if said else found

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


def schema_of(parameters: Sequence[Parameter], *, strict: bool = False, nullable: bool = True) -> dict[str, Any]:
    """`strict` is for the strict modes of model APIs: every property is required, an optional one may be null, and
    keywords that such a mode does not know (bounds, defaults) are said in words. Not `nullable` is for a mode that
    knows optional properties, but few of them and few unions: then only those without a default are optional."""
    found: dict[str, Any] = {
        "type": "object",
        "properties": {each.name: each.schema(strict=strict, nullable=nullable) for each in parameters},
        "additionalProperties": False,
    }
    always = [each for each in parameters if each.required or (strict and (nullable or each.default is not None))]
    return {**found, "required": [each.name for each in always]} if always or strict else found


def _or_null(found: dict[str, Any]) -> dict[str, Any]:
    """A union only where there is one already: some strict modes do not know `anyOf`."""
    if "anyOf" in found:
        return {**found, "anyOf": [*found["anyOf"], {"type": "null"}]}
    choices = {"enum": [*found["enum"], None]} if "enum" in found else {}
    return {**found, "type": [found["type"], "null"], **choices}


def take_arguments(parameters: Sequence[Parameter], given: object, *, strict: bool = False) -> dict[str, Any]:
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
    """None if it cannot be read as that type."""
    if type == BOOLEAN:
        if isinstance(value, bool):
            return value
        return None if strict else _TRUTHS.get(str(value).strip().lower())
    if type in (INTEGER, NUMBER):
        return _number(value, type, strict)
    if type == STRING:
        return value if isinstance(value, str) else _text(value, strict)
    if type in (MAP, PAIRS):
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


def _pairs(value: Any) -> dict[str, str] | None:
    if isinstance(value, dict):
        texts: dict[str, Any] = {
            str(name): each if isinstance(each, str) else _text(each, strict=False) for name, each in value.items()
        }
        return None if None in texts.values() else texts
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, (list, tuple)):
        return None
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
    """Only the arguments that were given."""
    return {name: value for name, value in arguments.items() if value is not None}


# The toolset itself: schemas, checked calls, approval, progress.


if TYPE_CHECKING:
    T = TypeVar("T")
    Approve = Callable[["Call"], Awaitable[bool | str]]
    # Called with the last line of a session while a call waits for it.
    Progress = Callable[[str], Awaitable[None]]


# What happens to the text of a program on its way to a model, in this order:
# - where output is read, it is decoded, and escape sequences and control characters are removed: of pipes by
#   core/vt/text.py, of terminals by sessions/terminal_log.py;
# - where output is quoted, its hidden characters are spelled out, so that nothing hides from the next step (`visible`);
# - the toolset marks lines that imitate its own (`harmless` of its style, `native/answer_text.py`);
# - `Toolset.call` replaces secrets, if the host wants that (`Answer.redacted`; or by the toolset: `redacts_itself`);
# - `Toolset.call` spells out the hidden characters of everything else (`Answer.visible`);
# - `mcp/` replaces lone surrogates, which its transport cannot carry (`without_surrogates`).

SHAPES = ("mcp", "openai", "anthropic")
# How often a call that waits reports progress.
PROGRESS_S = 3.0

_progress: ContextVar[Progress | None] = ContextVar("progress", default=None)


@dataclass(frozen=True)
class Call:
    """A call that needs approval."""

    tool: Tool
    arguments: dict[str, Any]
    owner: str


class Toolset(OwnerSessions):
    """A subclass names its tools, and has a method `tool_<name>` for each, which gets the checked arguments.

    `approve` is asked before each tool that acts: True lets it pass, a text says why not.
    """

    name = ""
    tools: tuple[Tool, ...] = ()
    # Whether arguments of another type than the declared one are refused.
    strict_types = False
    # Whether the toolset has a queue of its own, and which signals that gets; None is all.
    own_queue = True
    variants: tuple[str, ...] | None = None
    # The instructions for an MCP client; every word has to be true for these tools.
    instructions = ""
    # What a client can read besides sessions and signals: descriptions by name.
    resources: Mapping[str, str] = MappingProxyType({})
    # Keys of the data that repeat the text at length: left out of structured content.
    said_in_text: tuple[str, ...] = ()
    # Takes secrets out of every answer; None returns what commands printed as it is.
    redact: Callable[[str], str] | None = None
    # Whether the toolset takes `redact` as an option of its own. Hermes does, because it redacts before it cuts: half a
    # secret is not recognised.
    redacts_itself = False

    def __init__(self, hf: AsyncHoldfast, owner: str, *, approve: Approve | None = None) -> None:
        super().__init__(hf, owner, self.name, own_queue=self.own_queue, variants=self.variants)
        self._approve = approve
        self._by_name = {tool.name: tool for tool in self.tools}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} for {self.owner}>"

    async def open(self) -> None:
        """Called before the first call of a tool. Calling it again changes nothing."""

    async def close(self) -> None:
        """Release what this object holds. Sessions are not affected."""

    async def __aenter__(self) -> Toolset:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def schemas(self, shape: str = "mcp", *, strict: bool = False) -> list[dict[str, Any]]:
        """In the form of one of the model APIs. `strict` is for modes that accept only a part of JSON Schema."""
        if shape not in SHAPES:
            raise BadArgument("shape", f"{shape[:40]!a} is not known", "give " + " or ".join(SHAPES))
        return [_shaped(tool, shape, strict) for tool in self.tools]

    async def call(self, name: str, arguments: object = None, *, progress: Progress | None = None) -> Answer:
        """A mistake of the model is an answer too, never an exception. Cancelling ends only the waiting."""
        tool = self._by_name.get(name)
        if tool is None:
            problem = BadArgument("tool", f"there is no {name[:40]!a}", "there is " + ", ".join(self._by_name))
            return Answer.of_error(problem)
        token = _progress.set(progress)
        try:
            # `_take` knows the subclass's own tools, and `signals` may have been added.
            taken = take_arguments(tool.parameters, arguments) if tool is SIGNALS else self._take(tool, arguments)
            if self._approve is not None and not tool.reads:
                verdict = await self._approve(Call(tool, as_given(taken), self.owner))
                if verdict is not True:
                    raise NotAllowed(tool.name, verdict or "it was not approved")
            answer: Answer = await getattr(self, "tool_" + name.replace("-", "_"))(**taken)
        except HoldfastError as problem:
            answer = await self._failed(tool, problem)
        finally:
            _progress.reset(token)
        return (answer if self.redact is None else answer.redacted(self.redact)).visible()

    def _take(self, tool: Tool, arguments: object) -> dict[str, Any]:
        return take_arguments(tool.parameters, arguments, strict=self.strict_types)

    async def _failed(self, tool: Tool, problem: HoldfastError) -> Answer:
        """A toolset may word its own errors."""
        return Answer.of_error(problem)

    def offer_signals(self) -> None:
        """For agents whose host delivers no notices: one more tool, unless the toolset has it."""
        if SIGNALS.name not in self._by_name:
            self.tools = (*self.tools, SIGNALS)
            self._by_name[SIGNALS.name] = SIGNALS

    async def resource(self, name: str) -> str:
        """The text of one of `resources`."""
        raise NotImplementedError

    async def reminding(self, answer: Answer) -> Answer:
        """The answer with what the toolset would show before each turn of the agent, for hosts that cannot show it."""
        return answer

    async def tool_signals(self, ack: list[str] | None) -> Answer:
        return await signals(self, ack)

    def redactor(self) -> Callable[[str], str] | None:
        """The function that takes secrets out of results, if the host wants that."""
        return self.redact

    async def with_progress(self, sessions: Sequence[AsyncSession], outcome: Awaitable[T]) -> T:
        """Await the outcome, and report the last line of each session meanwhile where the caller wants progress. A
        session that is only being started may be added to the list later."""
        report = _progress.get()
        if report is None:
            return await outcome
        reporting = asyncio.ensure_future(_report(report, sessions, self.redactor()))
        try:
            return await outcome
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)


async def _report(report: Progress, sessions: Sequence[AsyncSession], redact: Callable[[str], str] | None) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        for session in sessions:
            line = all_visible((await session.tail(1)).strip())
            if redact is not None:
                line = redact(line)
            await report(line[-200:] or "no output yet")


def _shaped(tool: Tool, shape: str, strict: bool) -> dict[str, Any]:
    schema = schema_of(tool.parameters, strict=strict, nullable=shape != "anthropic")
    if shape == "openai":
        function = {"name": tool.name, "description": tool.description, "parameters": schema, "strict": strict}
        return {"type": "function", "function": function}
    if shape == "anthropic":
        found: dict[str, Any] = {"name": tool.name, "description": tool.description, "input_schema": schema}
        return {**found, "strict": True} if strict else found
    return {
        "name": tool.name,
        "title": tool.title or tool.name,
        "description": tool.description,
        "inputSchema": schema,
        "annotations": {
            "readOnlyHint": tool.reads,
            "destructiveHint": tool.destroys,
            "idempotentHint": tool.repeats or tool.reads,
            "openWorldHint": tool.opens,
        },
    }


# A tool for agents whose host delivers no notices: what happened to their sessions, until it is acknowledged.


SIGNALS = Tool(
    "signals",
    "What happened to your sessions and was not acknowledged yet: ends, matches, questions.",
    (Parameter("ack", STRINGS, "ids you have dealt with, or upto:ID"),),
    repeats=True,
)
# Up to this many ids are acknowledged by name; more of them by the last.
_NAMED = 3
_UPTO = "upto:"


async def signals(toolset: Toolset, ack: list[str] | None) -> Answer:
    consumer = toolset.consumer()
    settled = 0
    for id in ack or ():
        upto = id.removeprefix(_UPTO)
        try:
            settled += await (consumer.ack(id) if upto == id else consumer.ack(upto=upto))
        except BadArgument as problem:
            raise BadArgument("ack", problem.why, problem.fix) from None
    notice = await consumer.drain(toolset.name)
    ids, text = notice.ids, notice.text
    # A signal is settled when it is acknowledged, because an answer may be lost on its way.
    await notice.release("shown, and not acknowledged yet")
    if not text:
        said = "no new signals"
        if shown := await _shown_signals(toolset):
            said += f"; {len(shown)} shown before and not acknowledged: signals(ack={_named(shown)})"
        return Answer(said, {"signals": [], "acknowledged": settled})
    data = {"signals": ids, "acknowledged": settled, "remaining": notice.remaining}
    return Answer(f"{text}\nshown again until acknowledged: signals(ack={_named(ids)})", data)


def _named(ids: list[str]) -> str:
    return json.dumps(ids if len(ids) <= _NAMED else [f"{_UPTO}{ids[-1]}"])


async def _shown_signals(toolset: Toolset) -> list[str]:
    """Signals that were shown, not acknowledged, and come again after a while."""
    consumer = toolset.consumer()
    found = []
    for id in sorted(await consumer.unsettled()):
        try:
            signals = await (await toolset.find(id)).told()
        except HoldfastError:
            continue  # the session was removed meanwhile
        found += [each for each in signals if isinstance(each, Signal) and await consumer.is_open(each.id)]
    return [each.id for each in sorted(found, key=lambda each: each.at)]
