"""`hold completion`, and `hold __complete`, which its scripts call."""

from __future__ import annotations

from . import names, parser_of
from .output import printable, say
from .parsing import Argument, Namespace, Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from ..sessions.core import Core

COMPLETION_HELP = """\
Print the completion script of a shell. It completes commands, options, and the ids and names of sessions."""

COMPLETION_USAGE = "bash|zsh|fish"
COMPLETION_EXAMPLES = """
eval "$(hold completion bash)"                                         in ~/.bashrc
eval "$(hold completion zsh)"                                          in ~/.zshrc, after compinit
hold completion fish > ~/.config/fish/completions/hold.fish
"""

# Each calls `hold __complete`, and completes file names if that prints nothing.
_BASH = r"""_hold() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        COMPREPLY+=("$(printf %q "${line%%$'\t'*}")")
    done < <(command hold __complete "$COMP_CWORD" "${COMP_WORDS[@]}" 2>/dev/null)
}
complete -o default -F _hold hold holdfast"""

_ZSH = r"""_hold() {
    local line
    local -a words_found shown
    for line in "${(@f)$(command hold __complete $((CURRENT - 1)) "${words[@]}" 2>/dev/null)}"; do
        [[ -n $line ]] || continue
        words_found+=("${line%%$'\t'*}")
        shown+=("${line/$'\t'/  -- }")
    done
    if (( $#words_found )); then
        compadd -l -d shown -- "${words_found[@]}"
    else
        _files
    fi
}
compdef _hold hold holdfast"""

_FISH = r"""function __hold_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    command hold __complete (count $words) $words $current 2>/dev/null
end
complete -c hold -a '(__hold_complete)'
complete -c holdfast -a '(__hold_complete)'"""

SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


def completion_arrange(parser: Parser) -> None:
    parser.add_argument("shell", choices=tuple(SCRIPTS), metavar="SHELL", help="bash, zsh or fish")


def completion_main(args: Namespace) -> int:
    say(SCRIPTS[args.shell])
    return 0


# `hold __complete POSITION WORD...` prints what may come at that position, one `word<TAB>meaning` a line, and nothing
# where a file or the user's command is expected: the shell completes those itself.


_RECENT = 50
_LIVE_ONLY = ("stop", "kill", "send", "submit", "keys", "paste", "eof", "resize", "notify")
_FINISHED_ONLY = ("rm",)


def main(words: list[str]) -> int:
    try:
        position, line = int(words[0]), words[1:]
        current = line[position] if position < len(line) else ""
        found = list(candidates(line[1:position], current))
    except Exception:  # noqa: BLE001
        # A message would appear in the middle of the line that is being typed.
        return 1
    for word, meaning in found:
        if word.startswith(current):
            say(f"{word}\t{printable(meaning)[:60]}".rstrip("\t"))
    return 0


def candidates(before: list[str], current: str) -> Iterator[tuple[str, str]]:
    """Words that may follow the words `before`, each with its meaning."""
    name = before[0] if before else "help"
    if name == "help":
        yield from names().items()
        return
    if name not in names():
        return
    actions = parser_of(name)[0].arguments
    options = {option: action for action in actions for option in action.option_strings}
    takes_value = {option for option, action in options.items() if action.nargs != 0}
    # Words that are neither options nor values of options.
    plain = [
        word for word, last in zip(before[1:], before, strict=False) if word[:1] != "-" and last not in takes_value
    ]
    if name in ("run", "start") and ("--" in before or plain):
        return  # the user's command
    if before[-1] in takes_value:
        expected = options[before[-1]]
    elif current.startswith("-"):
        yield from ((word, each.help or "") for word, each in options.items())
        return
    else:
        positional = [action for action in actions if not action.option_strings]
        repeated = positional[-1:] if positional and positional[-1].nargs in ("+", "*") else []
        following = positional[len(plain) : len(plain) + 1] or repeated
        if not following:
            return
        expected = following[0]
    yield from _values(name, expected)


def _values(name: str, expected: Argument) -> Iterator[tuple[str, str]]:
    """Values of an option or of a positional argument of the command `name`."""
    if expected.choices:
        yield from ((str(choice), "") for choice in expected.choices)
        return
    if expected.dest not in ("session", "sessions", "owner", "consumer", "signals"):
        return
    from .host import open_home

    with open_home() as hf:
        core = hf._core
        if expected.dest in ("session", "sessions"):
            yield from _sessions(core, name)
        elif expected.dest == "owner":
            yield from _owners(core)
        elif expected.dest == "consumer":
            yield from ((each["name"], f"{each['waiting']} wait") for each in core.consumers.known())
        elif expected.dest == "signals":
            from ..sessions.driver import drive
            from .signals import words

            waiting = drive(core.consumers.listing().waiting(_RECENT))
            yield from ((each.signal.id, words(each)) for each in waiting)


def _sessions(core: Core, command: str) -> Iterator[tuple[str, str]]:
    """Ids and names, from the files alone, because a runner may take a while to answer."""
    from ..errors import HoldfastError
    from ..model import LIVE_STATES, command_text
    from ..sessions.observe import from_files, read_files

    for id in core.index.unfinished():
        try:
            seen = from_files(read_files(core.home, id))
        except HoldfastError:
            continue
        if command in (_FINISHED_ONLY if seen.state in LIVE_STATES else _LIVE_ONLY):
            continue
        spec = seen.files.current()
        name, text = spec.get("name"), command_text(spec.get("command"))
        if isinstance(name, str):
            yield name, text
        yield id, f"{name}: {text}" if isinstance(name, str) else text
    if command not in _LIVE_ONLY:
        yield from ((id, record["command"]) for id, record in core.index.query(limit=_RECENT).records.items())


def _owners(core: Core) -> Iterator[tuple[str, str]]:
    from ..sessions.observe import read_files

    live = [read_files(core.home, id).current().get("owner") for id in core.index.unfinished()]
    finished = [record["owner"] for record in core.index.query(limit=_RECENT).records.values()]
    yield from ((owner, "") for owner in dict.fromkeys([*live, *finished]) if isinstance(owner, str))
