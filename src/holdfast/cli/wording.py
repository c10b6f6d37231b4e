"""An error of the library in the words of the command line: `--log-cap` in the place of `log_cap=`."""

from __future__ import annotations

import re

from ..errors import BadArgument

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from ..errors import HoldfastError

# A keyword of Python with its value, or with nothing behind it: `tty=True`, `stdin="open"`, `ready=`.
_KEYWORD = re.compile(r"""\b([a-z][a-z_]*)=(?:True\b|"([^"]*)"|'([^']*)'|(?=[\s,;]|$))""")
_CALL = re.compile(r"\b(run|start|restart|stop|wait)\(\)")
_NAME = re.compile(r"\b[a-z]+(?:_[a-z]+)+\b")
# Where an option is not spelt as the keyword is.
_SPELT = {"labels": "label", "label key": "label", "pass_fds": "pass-fd"}
_PHRASES = (
    ("as `literal`", "with `hold send`"),
    ('with the size policy "fixed"', "with --size-policy fixed"),
    ("without tty", "without --tty"),
    ("with the role control", "without --observe"),
    ("or None to go without", "or go without with --unset-env"),
    ("read from dropped_before on", "leave --since out"),
)


def typed(error: HoldfastError, options: Collection[str]) -> tuple[str, str]:
    """The message and the fix, for somebody who typed a command that has these options."""
    message, fix = error.message, error.fix
    for ours, theirs in _PHRASES:
        fix = fix.replace(ours, theirs)
    fix = _in_options(fix)
    if not isinstance(error, BadArgument):
        return (_in_options(message) if error.code == "unsupported" else message), fix
    argument = error.facts.get("argument")
    why = message.removeprefix(f"{argument}: ")
    if not isinstance(argument, str) or why == message:
        return message, fix
    option = _spelt(argument)
    return f"{option if option in options else argument}: {_in_options(why)}", fix


def _in_options(text: str) -> str:
    from ..model.options import START_OPTIONS

    def keyword(found: re.Match[str]) -> str:
        value = found[2] or found[3]
        return _spelt(found[1]) + (f" {value}" if value else "")

    def name(found: re.Match[str]) -> str:
        return _spelt(found[0]) if found[0] in START_OPTIONS else found[0]

    return _NAME.sub(name, _KEYWORD.sub(keyword, _CALL.sub(r"`hold \1`", text)))


def _spelt(keyword: str) -> str:
    return "--" + _SPELT.get(keyword, keyword).replace("_", "-")
