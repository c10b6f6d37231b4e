"""Writes docs/api.md from signatures and docstrings of the public names. `--check` only says whether it is current.

The meanings of the keys of a snapshot stand here; it checks that each key has one, and that none is left over.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import holdfast
from holdfast import errors, model
from holdfast.model.options import OPTIONS, Option, StartOptions
from holdfast.sessions import search
from holdfast.sessions.log import Page
from holdfast.sessions.wait import CONDITIONS, WAIT_OPTIONS, WaitConditions

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"

_HEAD = """# Python API

`import holdfast` gives `open`, `open_async`, `Holdfast`, `Session`, `AsyncHoldfast`, `AsyncSession`, `HoldfastError`
and `errors`. [From Python](guides/from-python.md) shows them at work. Durations are seconds or text such as `"500ms"`,
`"10s"`, `"5m"`; sizes are bytes or text such as `"64M"`. A `Command` is text for the shell, or a list of words.

This page is made by `tools/api_reference.py` from the source.
"""

_ASYNC = """## AsyncHoldfast and AsyncSession

`holdfast.open_async(home=None, *, config=None, author=None)` gives an `AsyncHoldfast`, for `async with`. Both classes
have the methods of `Holdfast` and `Session` under the same names and with the same arguments: as coroutines, and `raw`
and `follow` as asynchronous iterators. Attributes and properties are the same.
"""

_ERRORS = """## Errors

All derive from `holdfast.HoldfastError` and stand in `holdfast.errors`. `code` names the condition and is the same in
Python, in the JSON of the command line and on the wire; `exit_code` is what `hold` exits with. `message` says what
happened, `fix` what to do, `str()` both; `facts` is a dict, and each fact is an attribute too.
"""

KEYS: Mapping[str, str] = {
    "id": "The letter of its kind and 8 characters.",
    "kind": "As it was started.",
    "name": "As it is now: `update` may change it.",
    "description": "The name or the command where none was given.",
    "owner": "The agent, conversation or task that it belongs to.",
    "labels": "By key.",
    "command": "As one line, cut at 512 characters.",
    "cwd": "Where it runs.",
    "tty": "Whether it runs on a terminal.",
    "size": "None on pipes.",
    "state": "`starting`, `running`, `exited`, `unreachable`, `stale` or `lost`.",
    "status": "`pending`, `running`, `completed`, `failed` or `killed`.",
    "stopping": "While a stop is under way: `by`, `since`, `stage`.",
    "pid": "Of the command.",
    "runner_pid": "Of its runner.",
    "runner_version": "The release of its runner.",
    "place": "`local`, or another machine or container.",
    "created_at": "When it was requested.",
    "started_at": "When the command started.",
    "ended_at": "When the command ended.",
    "attempt": "Which run of the command this is, counted from 1.",
    "desired": "Whether it is meant to be `up` or `down`.",
    "exit": "None until the command has ended.",
    "cursor": "`ends` as text: the place behind everything printed so far.",
    "ends": "Bytes printed so far, by stream.",
    "dropped_before": "Bytes no longer kept, by stream: the log begins there.",
    "log_bytes": "Bytes kept.",
    "last_output_at": "When it last printed something.",
    "attached": "Attached clients, by role.",
    "needs_input": "What the command asks, while it waits for input on a terminal.",
    "health": "The result of the health check, if there is one.",
    "in_process": "Whether it runs inside a host instead of a runner.",
    "endpoint": "The socket of its runner.",
    "observed_at": "When all of this was seen.",
    "condition": "`state`, or of a running session: `stopping`, `restarting`, `suspended`, `needs input`, `unhealthy`.",
    "metadata": "The metadata of the start, and `warnings`, `gaps`, `error` and more where there are any.",
}

_WIDTH = 100

# Conditions of terminals, signals and servers: their words are fixed, nothing raises them yet.
RESULTS = (Page, search.Hit, model.Woke, model.Exit, model.Stopped, model.Recovered, model.Collected, model.Finding)


def signature(function: object, name: str) -> str:
    """As one would write it, without `self` and without quotes around the types."""
    parts = []
    starred = False
    found = inspect.signature(function)  # type: ignore[arg-type]
    for each in found.parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.VAR_KEYWORD:
            parts.append(f"**{each.name}")
            continue
        if each.kind is each.KEYWORD_ONLY and not starred:
            parts.append("*")
            starred = True
        default = "" if each.default is each.empty else f" = {each.default!r}"
        parts.append(f"{each.name}: {each.annotation}{default}")
    gives = "" if found.return_annotation in (found.empty, "None") else f" -> {found.return_annotation}"
    line = f"{name}({', '.join(parts)}){gives}"
    if len(line) <= _WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in parts), f"){gives}"])


def members(kind: type) -> Iterator[tuple[str, str, str]]:
    """Public members in the order of the source: heading, signature, sentence."""
    # `BaseSession` and `BaseHoldfast` have what both halves share.
    found = {name: member for each in (kind.__base__, kind) for name, member in vars(each).items()}
    for name, member in found.items():
        if name.startswith("_"):
            continue
        if isinstance(member, property):
            yield name, "", f"A property. {sentence(member.fget)}".rstrip()
        elif inspect.isfunction(member):
            yield name, signature(member, f"{kind.__name__}.{name}"), sentence(member)


def sentence(thing: object) -> str:
    return " ".join((inspect.getdoc(thing) or "").split())


def described(kind: type) -> Iterator[str]:
    yield f"## {kind.__name__}\n\n{sentence(kind)}\n"
    for name, signed, text in members(kind):
        if signed:
            yield f"### {kind.__name__}.{name}\n\n```text\n{signed}\n```\n"
            if text:
                yield f"{text}\n"
        else:
            yield f"### {kind.__name__}.{name}\n\n{text}\n"


def options() -> Iterator[str]:
    yield "## Options of run and start\n"
    yield "None is the same as leaving an option out, and the default where nothing else is said.\n"
    yield from rows("option", OPTIONS, StartOptions.__annotations__)


def conditions_of_wait() -> Iterator[str]:
    types = WaitConditions.__annotations__
    yield "## Conditions of wait\n"
    yield "The first that holds ends the wait.\n"
    yield from rows("condition", CONDITIONS, {name: each for name, each in types.items() if name in CONDITIONS})
    yield "These end no wait, but for `timeout`. They say how the conditions are judged.\n"
    others = {name: row for name, row in WAIT_OPTIONS.items() if name not in CONDITIONS}
    yield from rows("option", others, {name: each for name, each in types.items() if name not in CONDITIONS})


def rows(what: str, table: Mapping[str, Option], types: Mapping[str, object]) -> Iterator[str]:
    complete(what, table, types)
    yield f"| {what} | takes | meaning |\n| --- | --- | --- |"
    for name, takes in types.items():
        written = str(takes).replace("Duration", "float | str").replace("Size", "int | str")
        yield f"| `{name}` | {code(written)} | {table[name].doc} |"
    yield ""


def snapshot() -> Iterator[str]:
    complete("key", KEYS, model.SESSION_KEYS)
    yield "## Snapshot\n"
    yield "What was known at `observed_at`: attributes of a `Session`, keys of its `to_json()` and of `--json`.\n"
    yield "| key | type | meaning |\n| --- | --- | --- |"
    for name in model.SESSION_KEYS:
        yield f"| `{name}` | {code(str(model.Snapshot.__annotations__.get(name, 'str')))} | {KEYS[name]} |"
    yield ""


def results() -> Iterator[str]:
    yield "## Results\n"
    for kind in RESULTS:
        slots = [name for name in getattr(kind, "__slots__", kind.__annotations__) if not name.startswith("_")]
        slots += [name for name, member in vars(kind).items() if isinstance(member, property)]
        yield f"**{kind.__name__}**: {', '.join(f'`{name}`' for name in slots)}. {sentence(kind)}\n"


def conditions() -> Iterator[str]:
    yield _ERRORS
    yield "| code | class | exit code | facts | fix |\n| --- | --- | --- | --- | --- |"
    for slug, kind in sorted(errors._BY_CODE.items()):
        if kind.__module__ != errors.__name__:
            continue  # of HTTP alone: there when the server was loaded
        facts = ", ".join(f"`{name}`" for name in errors.facts_of(kind))
        fix = kind.fix if kind.fix != errors.HoldfastError.fix else "said by each"
        yield f"| `{slug}` | `{kind.__name__}` | {kind.exit_code} | {facts} | {fix.replace('|', ' or ')} |"
    yield ""


def code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def complete(what: str, meanings: Mapping[str, object], there: object) -> None:
    names = set(there)  # type: ignore[call-overload]
    if set(meanings) != names:
        sys.exit(f"api_reference.py: {what} without a meaning, or a meaning without {what}: {set(meanings) ^ names}")


def page() -> str:
    parts = [
        _HEAD,
        f"## open\n\n```text\n{signature(holdfast.open, 'holdfast.open')}\n```\n",
        sentence(holdfast.open) + "\n",
    ]
    parts += [
        *described(holdfast.Holdfast),
        *options(),
        *described(holdfast.Session),
        *conditions_of_wait(),
        *snapshot(),
        *results(),
    ]
    return "\n".join([*parts, _ASYNC, *conditions()])


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        if PAGE.exists() and PAGE.read_text(encoding="utf-8") == page():
            return 0
        print(f"{PAGE} is not current: run tools/api_reference.py", file=sys.stderr)
        return 1
    if arguments:
        print("usage: api_reference.py [--check]", file=sys.stderr)
        return 2
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
