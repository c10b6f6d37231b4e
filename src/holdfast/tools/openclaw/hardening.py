"""What an agent may set in the environment of a command, and what it gets of the host's.

An override must not become a way to run other code than the command, or to send it elsewhere.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ...errors import BadArgument, HoldfastError, NotAllowed
from .. import environment as base

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHAPE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# They make a program run code, or find its libraries, elsewhere. Not even the host's own are handed on.
_LOADERS = re.compile(
    r"""
    LD_\w* | DYLD_\w* | BASH_FUNC_.* | NODE_OPTIONS | NODE_PATH | PYTHONPATH | PYTHONHOME | PYTHONBREAKPOINT | RUBYLIB
    | RUBYOPT | PERL5LIB | PERL5OPT | JAVA_TOOL_OPTIONS | BASH_ENV | ENV | IFS | PS4 | SHELLOPTS | SHELL | GCONV_PATH
    | GLIBC_TUNABLES | SSLKEYLOGFILE | LUA_INIT\w* | VIMINIT | CDPATH
    """,
    re.VERBOSE | re.IGNORECASE,
)
# They make tools read other settings, ask other programs, or speak to other machines.
_REDIRECTING = re.compile(
    r"""
    HOME | ZDOTDIR | GIT_SSH\w* | GIT_CONFIG_\w* | GIT_DIR | GIT_EXEC_PATH | GIT_EXTERNAL_DIFF | \w*_ASKPASS | PAGER
    | EDITOR | VISUAL | PROMPT_COMMAND | PYTHONSTARTUP | \w*_PROXY | \w*_CA_BUNDLE | SSL_CERT_\w* | NPM_CONFIG_\w*
    | PIP_\w* | UV_\w* | CARGO_REGISTRIES_\w* | TF_VAR_\w* | CC | CXX | RUSTC\w* | MAKEFLAGS | XDG_\w* | KUBECONFIG
    | SSH_AUTH_SOCK
    """,
    re.VERBOSE | re.IGNORECASE,
)
# What somebody approved was a command in a known environment: only its looks may still change.
_AFTER_APPROVAL = re.compile(r"TERM|LANG|LC_\w*|COLORTERM|NO_COLOR|FORCE_COLOR", re.IGNORECASE)

# By which a profile can tell that nobody looks on.
MARK = {"OPENCLAW_SHELL": "exec"}


class Violation(NotAllowed):
    """Nothing is started with it. The message is a sentence that openclaw's users know, and so the fix is one too."""

    fix = "Leave it out, and put what is needed into the command itself."

    def __init__(self, variable: str) -> None:
        what = "Custom 'PATH' variable" if variable.upper() == "PATH" else f"Environment variable '{variable}'"
        text = f"Security Violation: {what} is forbidden during host execution."
        HoldfastError.__init__(self, text, tool="exec", why=variable)

    def __str__(self) -> str:
        return f"{self.message} {self.fix}"


def check(overrides: Mapping[str, str], *, approved: bool = False, sandbox: bool = False) -> None:
    """In a sandbox an override applies inside of it, where it reaches nothing of the host's."""
    for name in overrides:
        if not _SHAPE.fullmatch(name):
            raise BadArgument("env", f"{name[:40]!a} is not the name of a variable", "use letters, digits and _")
        forbidden = name.upper() == "PATH" or _LOADERS.fullmatch(name) or _REDIRECTING.fullmatch(name)
        if (forbidden and not sandbox) or base.denied(name) or (approved and not _AFTER_APPROVAL.fullmatch(name)):
            raise Violation(name)


def inherited(host: Mapping[str, str]) -> dict[str, str]:
    """What of the host's is handed on without being asked for."""
    return {name: value for name, value in base.environment(host).items() if not _LOADERS.fullmatch(name)}


def environment(
    host: Mapping[str, str], overrides: Mapping[str, str], path_prepend: Sequence[str] = ()
) -> dict[str, str]:
    """All variables of the command. `overrides` have been checked."""
    env = {**inherited(host), **overrides}
    if path_prepend:
        env["PATH"] = ":".join([*path_prepend, *filter(None, [env.get("PATH")])])
    return env | MARK
