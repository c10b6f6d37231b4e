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
# PATH, and the command.
_CHOOSE = f"""
s=$SHELL
case ${{s##*/}} in {"|".join(_UNFIT)}) s= ;; esac
case $s in /*) [ -x "$s" ] || s= ;; *) s= ;; esac
[ -n "$s" ] || s=$(command -v bash) || s=/bin/sh
[ -z "$1" ] || export PATH="$1${{PATH:+:$PATH}}"
case ${{s##*/}} in
{chr(10).join(f'{name}) exec "$s" {" ".join(flags)} "$2" ;;' for name, flags in _FLAGS.items())}
*) exec "$s" -c "$2" ;;
esac
"""


def words_there(path_prepend: Sequence[str]) -> list[str]:
    """As `words`, for another place: whoever reads them there is gone when the command begins."""
    return ["/bin/sh", "-c", _CHOOSE, "sh", ":".join(path_prepend)]
