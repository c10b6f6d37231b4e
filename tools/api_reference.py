"""Writes docs/api.md from signatures and docstrings of the public names. `--check` only tells whether it is current.

What an option or a key means stands here; that each has a meaning, and that none is left over, is checked.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import holdfast
from holdfast import errors, model
from holdfast.host import search
from holdfast.host.log import Page

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

OPTIONS: Mapping[str, str] = {
    "name": "To find it by. One live session per name; a taken one is `name-taken`. Free again when the session ends.",
    "owner": "Whom it belongs to: an agent, a conversation, a task. Opaque text to filter by.",
    "labels": "More text to filter by, at most 64 pairs.",
    "description": "What it is for. Default: the name, else the command.",
    "kind": "Which kind of session it is. Default `local_bash`.",
    "key": "One live session per key: a second start with the same key and command returns the first session.",
    "replace": "End the live holder of the key (or name) first, and take its place.",
    "cwd": "Where it runs. Default: the directory of the caller.",
    "env": "Variables on top of the caller's; None takes one away. Values are never stored.",
    "clean_env": "Start from an empty environment instead of the caller's.",
    "shell": "Runs a command given as text. Default: the setting `start.shell`.",
    "argv0": "What the program sees as its own name.",
    "tty": "True: on a terminal of its own; or a mapping of `term`, `size_policy` (latest, smallest, fixed), `echo`, "
    "`clipboard`, `colors`.",
    "size": "Rows and columns of the terminal. Default: the settings `terminal.rows` and `terminal.cols`.",
    "stdin": "`closed` is /dev/null, `open` a pipe for `send`. Default: the setting `start.stdin`.",
    "input": "All of its input, at most 8 MiB; its end follows at once.",
    "pass_fds": "Open descriptors of the caller that the command gets, under the same numbers or those of a mapping; "
    "None there is a file of its runner's, kept as `report` when it ends.",
    "merge_stderr": "One stream, `stdout`, for both.",
    "timeout": "End it after this time, cause `overall_timeout`.",
    "idle_timeout": "End it after so much silence, cause `idle_timeout`.",
    "ttl": "End it after this time, cause `ttl`: for whoever lends sessions out and must tell it from a timeout.",
    "lifetime": "`detached`: until it ends (default). `owner`: until a process ends. `call`: until its `run` ends.",
    "owner_pid": 'The process for `lifetime="owner"`. Default: the caller.',
    "memory": "Limit for the whole tree; the cause is then `out_of_memory`. Needs control groups, else `unsupported`.",
    "limits": 'Resource limits by their short names, such as `{"nofile": 1024}` or `(soft, hard)`.',
    "umask": "Default: the caller's.",
    "oom_score_adj": "How early the kernel takes it when memory runs out. Default: the setting `start.oom_score_adj`.",
    "grace": "How long a stop waits before it kills. Default: the setting `start.grace`.",
    "stop_ladder": 'Rungs of a stop in place of the usual: `{"signal": "INT", "target": "command", "wait_s": 2}` each.',
    "notify": "Kept in the record for a later release: `never`, `exit`, `failure` or `auto`.",
    "place": "Only `local` today.",
    "metadata": "Anything JSON can tell, at most 64 KiB; comes back in the snapshot.",
    "log_cap": "How much of its output is kept. Default: the setting `log.session_cap`.",
    "notify_people": "Tell people of its end in any case (true), or of nothing (false), by the channels that are "
    "configured.",
    "watch": "Patterns whose lines are told to the owner: text, `/regex/` with `i` behind it, or a dict with "
    "`literal` or `regex`, "
    "`stream`, `ignore_case`, `once`, `before`.",
    "soft": "Tell the owner when it takes longer than this; nothing is ended.",
    "heartbeat": "Tell the owner of new output this often, at most once a minute.",
    "ready": "When it is ready: `port:N`, `http:URL`, `line:PATTERN`, a list of them, or a dict with `all` or "
    "`any`, `timeout`, `owner_check`.",
    "health": "A look at it again and again: `port:N`, `http:URL`, or a dict with `command`, `interval`, `misses`.",
    "monitor": "Each line is a signal, gathered and paced: true, or a dict with `include`, `exclude`, `persistent`, "
    "`on_flood`.",
    "restart": "`never`, `on-failure`, `always`, or a dict with `policy`, `delay`, `delay_max`, `reset_after`, "
    "`attempts`, `window`, "
    "`success_codes`, `final_codes`, `reset_on_ready`.",
}

KEYS: Mapping[str, str] = {
    "id": "The letter of its kind and 8 characters.",
    "kind": "As it was started.",
    "name": "As it is now: `update` may change it.",
    "description": "The name or the command where none was given.",
    "owner": "Whom it belongs to.",
    "labels": "By key.",
    "command": "As one line, cut at 512 characters.",
    "cwd": "Where it runs.",
    "tty": "False: sessions run on pipes today.",
    "size": "None on pipes.",
    "state": "`starting`, `running`, `exited`, `unreachable`, `stale` or `lost`.",
    "status": "`pending`, `running`, `completed`, `failed` or `killed`.",
    "stopping": "While a stop is under way: `by`, `since`, `stage`.",
    "pid": "Of the command.",
    "runner_pid": "Of its runner.",
    "place": "`local`.",
    "created_at": "When it was asked for.",
    "started_at": "When the command came to life.",
    "ended_at": "When the command ended.",
    "attempt": "1.",
    "desired": "Whether it is meant to be `up` or `down`.",
    "exit": "None until the command has ended.",
    "cursor": "`ends` as text: the place behind everything printed so far.",
    "ends": "Bytes printed so far, by stream.",
    "dropped_before": "Bytes no longer kept, by stream: the log begins there.",
    "log_bytes": "Bytes kept.",
    "last_output_at": "When it last printed something.",
    "attached": "Viewers; none on pipes.",
    "needs_input": "None on pipes.",
    "health": "None today.",
    "in_process": "False.",
    "endpoint": "The socket of its runner.",
    "observed_at": "When all of this was seen.",
    "metadata": "What the start gave, and what there is of `evidence`, `warnings`, `gaps`, `error` and more.",
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
    for name, member in vars(kind).items():
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
    for name, signed, told in members(kind):
        if signed:
            yield f"### {kind.__name__}.{name}\n\n```text\n{signed}\n```\n"
            if told:
                yield f"{told}\n"
        else:
            yield f"### {kind.__name__}.{name}\n\n{told}\n"


def options() -> Iterator[str]:
    here = list(model.StartOptions.__annotations__)
    complete("option", OPTIONS, here)
    yield "## Options of run and start\n"
    yield "None is the same as leaving an option out, and the default where nothing else is said.\n"
    yield "| option | takes | meaning |\n| --- | --- | --- |"
    for name in here:
        takes = (
            str(model.StartOptions.__annotations__[name])
            .replace("Duration", "float | str")
            .replace("Size", "int | str")
        )
        yield f"| `{name}` | {code(takes)} | {OPTIONS[name]} |"
    yield ""


def snapshot() -> Iterator[str]:
    complete("key", KEYS, model.SESSION_KEYS)
    yield "## Snapshot\n"
    yield "What was known at `observed_at`: attributes of a `Session`, keys of its `to_json()` and of `--json`.\n"
    yield "| key | type | meaning |\n| --- | --- | --- |"
    for name in model.SESSION_KEYS:
        yield f"| `{name}` | {code(str(model.Snapshot.__annotations__[name]))} | {KEYS[name]} |"
    yield ""


def results() -> Iterator[str]:
    yield "## Results\n"
    for kind in RESULTS:
        slots = [name for name in kind.__slots__ if not name.startswith("_")]
        slots += [name for name, member in vars(kind).items() if isinstance(member, property)]
        yield f"**{kind.__name__}**: {', '.join(f'`{name}`' for name in slots)}. {sentence(kind)}\n"


def conditions() -> Iterator[str]:
    yield _ERRORS
    yield "| code | class | exit code | facts | fix |\n| --- | --- | --- | --- | --- |"
    for slug, kind in sorted(errors._BY_CODE.items()):
        if kind.__module__ != errors.__name__:
            continue  # of HTTP alone: there when the server was loaded
        facts = ", ".join(f"`{name}`" for name in kind.__annotations__)
        fix = kind.fix if kind.fix != errors.HoldfastError.fix else "said by each"
        yield f"| `{slug}` | `{kind.__name__}` | {kind.exit_code} | {facts} | {fix.replace('|', ' or ')} |"
    yield ""


def code(text: str) -> str:
    return "`" + text.replace("|", "\\|") + "`"


def complete(what: str, told: Mapping[str, str], there: object) -> None:
    names = set(there)  # type: ignore[call-overload]
    if set(told) != names:
        sys.exit(f"api_reference.py: {what} without a meaning, or a meaning without {what}: {set(told) ^ names}")


def page() -> str:
    for blocking, other in ((holdfast.Holdfast, holdfast.AsyncHoldfast), (holdfast.Session, holdfast.AsyncSession)):
        ours, theirs = ({name for name in vars(kind) if not name.startswith("_")} for kind in (blocking, other))
        if ours != theirs:
            sys.exit(f"api_reference.py: {blocking.__name__} and {other.__name__} differ: {ours ^ theirs}")
    parts = [
        _HEAD,
        f"## open\n\n```text\n{signature(holdfast.open, 'holdfast.open')}\n```\n",
        sentence(holdfast.open) + "\n",
    ]
    parts += [*described(holdfast.Holdfast), *options(), *described(holdfast.Session), *snapshot(), *results()]
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
