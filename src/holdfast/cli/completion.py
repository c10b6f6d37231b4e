"""Print the completion script of a shell. It completes commands, options, and the ids and names of sessions."""

from __future__ import annotations

from .output import say
from .parsing import Parser

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "bash|zsh|fish"
EXAMPLES = """
eval "$(hold completion bash)"                                         in ~/.bashrc
eval "$(hold completion zsh)"                                          in ~/.zshrc, after compinit
hold completion fish > ~/.config/fish/completions/hold.fish
"""

# Each asks `hold __complete`, which prints `word<TAB>meaning` lines; nothing printed means: complete files.
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


def arrange(parser: Parser) -> None:
    parser.add_argument("shell", choices=tuple(SCRIPTS), metavar="SHELL", help="bash, zsh or fish")


def main(args: Namespace) -> int:
    say(SCRIPTS[args.shell])
    return 0
