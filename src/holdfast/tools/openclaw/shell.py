"""Which shell takes the command: the user's own where it can, never one that reads its start-up files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Not for commands: two that end at once, and one with another language.
_UNFIT = ("false", "nologin", "fish")
_FLAGS = {"bash": ("--noprofile", "--norc", "-c"), "zsh": ("-f", "-c")}
_PLACES = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")


def words(environ: Mapping[str, str]) -> list[str]:
    """All that stands before the command, which follows as one argument."""
    shell = environ.get("SHELL", "")
    if os.path.basename(shell) in _UNFIT or not os.path.isabs(shell) or not os.access(shell, os.X_OK):
        shell = next((path for path in _PLACES if os.access(path, os.X_OK)), "/bin/sh")
    return [shell, *_FLAGS.get(os.path.basename(shell), ("-c",))]


# The same, found out in another place by a shell that every place has. The words behind it are what goes in front of
# PATH, and the command. A variable that the place has too would reach the command with our value: hence its long name.
_CHOOSE = f"""
_hf_shell=$SHELL
case ${{_hf_shell##*/}} in {"|".join(_UNFIT)}) _hf_shell= ;; esac
case $_hf_shell in /*) [ -x "$_hf_shell" ] || _hf_shell= ;; *) _hf_shell= ;; esac
[ -n "$_hf_shell" ] || _hf_shell=$(command -v bash) || _hf_shell=/bin/sh
[ -z "$1" ] || export PATH="$1${{PATH:+:$PATH}}"
case ${{_hf_shell##*/}} in
{chr(10).join(f'{name}) exec "$_hf_shell" {" ".join(flags)} "$2" ;;' for name, flags in _FLAGS.items())}
*) exec "$_hf_shell" -c "$2" ;;
esac
"""


def words_there(path_prepend: Sequence[str]) -> list[str]:
    """As `words`, for another place: whoever reads them there is gone when the command begins."""
    return ["/bin/sh", "-c", _CHOOSE, "sh", ":".join(path_prepend)]
