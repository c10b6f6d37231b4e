"""`hold __complete POSITION WORD...`: what may stand at that position of a command line, one `word<TAB>meaning` a line.

Prints nothing where a file, or a command of the user, is what is wanted; the shell knows those itself.
"""

from __future__ import annotations

from . import names, parser_of
from .output import say
from .tables import printable

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_RECENT = 50
# Only what lives can be told anything; only what is over can be removed.
_LIVE_ONLY = ("stop", "kill", "send", "eof", "notify")
_OVER_ONLY = ("rm",)


def main(words: list[str]) -> int:
    try:
        position, line = int(words[0]), words[1:]
        current = line[position] if position < len(line) else ""
        found = list(candidates(line[1:position], current))
    except Exception:  # noqa: BLE001
        # Whoever presses TAB wants no message in the middle of the line.
        return 1
    for word, meaning in found:
        if word.startswith(current):
            say(f"{word}\t{printable(meaning)[:60]}".rstrip("\t"))
    return 0


def candidates(before: list[str], current: str) -> Iterator[tuple[str, str]]:
    """What may follow the words `before`."""
    if not before:
        yield from names().items()
        return
    name = before[0]
    if name == "help":
        yield from names().items()
        return
    if name not in names():
        return
    parser, _ = parser_of(name)
    actions = parser._actions
    if name in ("run", "start") and ("--" in before or _command_began(actions, before[1:])):
        return
    option = _option(actions, before[-1])
    if option is not None and option.nargs != 0:
        for choice in option.choices or ():
            yield str(choice), ""
        if option.dest == "owner":
            yield from _owners()
        elif option.dest == "consumer":
            yield from _consumers()
        return
    if current.startswith("-"):
        for action in actions:
            if action.help != "==SUPPRESS==":
                for string in action.option_strings:
                    yield string, action.help or ""
        return
    expected = _positional(actions, before)
    if expected is None:
        return
    if expected.dest in ("session", "sessions"):
        yield from _sessions(name)
    elif expected.dest == "signals":
        yield from _signals()
    else:
        for choice in expected.choices or ():
            yield str(choice), ""


def _positional(actions: list[argparse.Action], before: list[str]) -> argparse.Action | None:
    """What the next word is that belongs to no option; of the last such, there may be many."""
    expected = [action for action in actions if not action.option_strings]
    at = sum(
        not word.startswith("-") and not _takes_value(actions, option)
        for word, option in zip(before[1:], before, strict=False)
    )
    if at < len(expected):
        return expected[at]
    return expected[-1] if expected and expected[-1].nargs in ("+", "*") else None


def _takes_value(actions: list[argparse.Action], word: str) -> bool:
    option = _option(actions, word)
    return option is not None and option.nargs != 0


def _option(actions: list[argparse.Action], word: str) -> argparse.Action | None:
    return next((action for action in actions if word in action.option_strings), None)


def _command_began(actions: list[argparse.Action], words: list[str]) -> bool:
    """Whether a word stands there that is neither an option nor the value of one: the user's command."""
    takes_value = False
    for word in words:
        if takes_value:
            takes_value = False
        elif word.startswith("-"):
            takes_value = _takes_value(actions, word)
        else:
            return True
    return False


def _sessions(command: str) -> Iterator[tuple[str, str]]:
    """Ids and names, from the files alone: nobody waits for a runner to press TAB."""
    from ..errors import HoldfastError
    from ..host.observe import from_files, read_files
    from ..model import LIVE_STATES, command_text
    from .door import core as open_core

    core = open_core()
    try:
        for id in core.index.unfinished():
            try:
                seen = from_files(read_files(core.home, id))
            except HoldfastError:
                continue
            over = seen.state not in LIVE_STATES
            if (over and command in _LIVE_ONLY) or (not over and command in _OVER_ONLY):
                continue
            spec = seen.files.now()
            yield from _words(id, spec.get("name"), command_text(spec.get("command")))
        if command not in _LIVE_ONLY:
            for id, record in core.index.query(limit=_RECENT).records.items():
                yield from _words(id, None, record["command"])
    finally:
        core.close()


def _owners() -> Iterator[tuple[str, str]]:
    from ..host.observe import read_files
    from .door import core as open_core

    core = open_core()
    try:
        live = [read_files(core.home, id).now().get("owner") for id in core.index.unfinished()]
        ended = [record["owner"] for record in core.index.query(limit=_RECENT).records.values()]
        for owner in dict.fromkeys([*live, *ended]):
            if isinstance(owner, str):
                yield owner, ""
    finally:
        core.close()


def _consumers() -> Iterator[tuple[str, str]]:
    from .door import core as open_core

    core = open_core()
    try:
        for each in core.consumers.known():
            yield each["name"], f"{each['waiting']} wait"
    finally:
        core.close()


def _signals() -> Iterator[tuple[str, str]]:
    from ..host.driver import drive
    from .door import core as open_core
    from .inbox import persons
    from .signals import words

    core = open_core()
    try:
        for each in drive(persons(core).waiting(_RECENT)):
            yield each.signal.id, words(each)
    finally:
        core.close()


def _words(id: str, name: object, command: str) -> Iterator[tuple[str, str]]:
    if isinstance(name, str):
        yield name, command
    yield id, f"{name}: {command}" if isinstance(name, str) else command
