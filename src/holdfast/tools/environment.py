"""Which variables of a host its commands get, without secrets, and which shell runs them.

An allow-list, because the names of secrets cannot all be listed; and a list of names that are never passed on.
"""

from __future__ import annotations

import os
import re
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping


# What a program needs to work as it does in its user's shell.
_ALLOWED = re.compile(
    r"""
    PATH | HOME | USER | LOGNAME | SHELL | LANG | LANGUAGE | LC_\w+ | TZ | TMPDIR | XDG_\w+ | SSH_AUTH_SOCK
    | (?i: \w+_PROXY ) | SSL_CERT_\w+ | \w+_CA_BUNDLE | DISPLAY | WAYLAND_DISPLAY | DBUS_SESSION_BUS_ADDRESS
    | AWS_\w+ | CLAUDE_CODE_OAUTH_TOKEN
    """,
    re.VERBOSE,
)

# Variables that the tools of a developer read; secrets among them are excluded below.
_OF_TOOLS = re.compile(
    r"""
    (?!(?:HOLDFAST|HERMES|OPENCLAW)_)
    (?: \w+_HOME | GO[A-Z0-9]+ | NODE_\w+ | NVM_\w+ | PYENV_\w+ | RBENV_\w+ | CARGO_\w+ | RUST\w+ | KUBECONFIG
      | DOCKER_(?: HOST | CONTEXT | CONFIG | BUILDKIT ) | EDITOR | VISUAL | BROWSER | MANPATH | INFOPATH | LS_COLORS
      | COLORTERM | NO_COLOR | CI | DEBIAN_FRONTEND | MAKEFLAGS | CC | CXX | CFLAGS | CXXFLAGS | CPPFLAGS | LDFLAGS
      | PKG_CONFIG_PATH | LD_LIBRARY_PATH | ANDROID_\w+ | GRADLE_\w+ | MAVEN_\w+ | MVN_\w+ | JAVA_\w+
      | (?: RAILS | RACK | APP | FLASK | DJANGO )_ENV | DJANGO_SETTINGS_MODULE | GIT_(?: AUTHOR | COMMITTER )_\w+
      | GIT_EDITOR )
    """,
    re.VERBOSE,
)
_SECRET = re.compile(
    r"""
    (?: \w*_ )? (?: \w*KEY | \w*TOKENS? | \w*SECRETS? | \w*PASSWO?R?D | PASS | PASSPHRASE | PW | PWD | CREDENTIALS?
      | AUTH | COOKIE | DSN | WEBHOOK | PAT | SIGNATURE | PRIVATE ) (?: _\w* )?
    """,
    re.VERBOSE | re.IGNORECASE,
)
# They describe one shell, and are wrong in every other.
_OF_ONE_SHELL = re.compile(
    r"_|PWD|OLDPWD|SHLVL|TERM|COLUMNS|LINES|PS[0-4]|PROMPT_COMMAND|BASH\w*|HIST\w+|ENV|PPID|UID|EUID"
)

# Secrets of an agent's host: with one of them a command could act as that host, or become its user.
_DENIED = re.compile(
    r"""
    HOLDFAST_\w*(?: TOKEN | SECRET | PASSWORD )\w* | SUDO_PASSWORD
    | GH_TOKEN | GITHUB_TOKEN | GITHUB_APP_\w+
    | \w+_BOT_TOKEN | GATEWAY_RELAY_\w+ | HASS_\w+ | EMAIL_\w+ | MODAL_\w+ | DAYTONA_\w+
    | AUXILIARY_\w+_(?: API_KEY | BASE_URL ) | AWS_BEARER_TOKEN_BEDROCK
    | (?: TELEGRAM | DISCORD | SLACK | WHATSAPP | SIGNAL | MATRIX | MATTERMOST | FEISHU | LARK | DINGTALK | WECOM
        | WEIXIN | QQ | LINE | TEAMS | MSTEAMS | TWILIO | BLUEBUBBLES | IRC | ZULIP | GOOGLE_CHAT | ROCKETCHAT )
      _(?: \w*_ )?(?: TOKEN | SECRET | PASSWORD | PASSKEY | KEY | WEBHOOK | SID )(?: _\w+ )?
    | (?: HERMES | OPENCLAW )_\w*(?: TOKEN | SECRET | PASSWORD | SESSION_KEY | API_KEY )\w*
    """,
    re.VERBOSE | re.IGNORECASE,
)

# They name the host's own interpreter, which a project's must not run in.
_TRACES = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONHOME")

FORCE = "_HERMES_FORCE_"


def is_developer_tool_variable(name: str) -> bool:
    """Whether a developer's tool reads it and it is not a secret."""
    return _OF_TOOLS.fullmatch(name) is not None and not _SECRET.fullmatch(name) and not denied(name)


def exported(profile: Mapping[str, str], deny: Iterable[str] = ()) -> dict[str, str]:
    """The exports of a user's shell, without secrets (by name or by value) and without what describes that shell."""
    from ..signals.redact import redact

    kept = set(deny)
    return {
        name: value
        for name, value in profile.items()
        if name.isidentifier()
        and name not in kept
        and not _OF_ONE_SHELL.fullmatch(name)
        and not denied(name)
        and (_ALLOWED.fullmatch(name) or not (_SECRET.fullmatch(name) or redact(value) != value))
    }


def denied(name: str) -> bool:
    """Whether it is never passed on, even if it is asked for."""
    return _DENIED.fullmatch(name) is not None


def environment(
    host: Mapping[str, str],
    *,
    passed: Iterable[str] = (),
    given: Mapping[str, str | None] | None = None,
    deny: Iterable[str] = (),
    tools: bool = False,
) -> dict[str, str]:
    """The variables of a command. With `tools` also those that a developer's tools read. `passed` are more names of the
    host's, `given` are the caller's own (None takes one away, `_HERMES_FORCE_NAME` is a spelling of `NAME`), `deny` are
    names that this host keeps for itself."""
    wanted = set(passed)
    found = {
        name: value
        for name, value in host.items()
        if _ALLOWED.fullmatch(name) or name in wanted or (tools and is_developer_tool_variable(name))
    }
    found = {name: value for name, value in found.items() if not name.startswith(FORCE)}
    for name, value in (given or {}).items():
        if value is None:
            found.pop(name, None)
        else:
            found[name.removeprefix(FORCE)] = value
    _clear_traces(found, host)
    kept = set(deny)
    return {name: value for name, value in found.items() if name not in kept and not denied(name)}


def _clear_traces(found: dict[str, str], host: Mapping[str, str]) -> None:
    """Remove traces of the host's interpreter; values that the caller gave stay."""
    for name in _TRACES:
        if name in host and found.get(name) == host[name]:
            del found[name]
    if "PYTHONPATH" in found:
        ours = set(host.get("PYTHONPATH", "").split(":"))
        left = [entry for entry in found["PYTHONPATH"].split(":") if entry and entry not in ours]
        found["PYTHONPATH"] = ":".join(left)
        if not left:
            del found["PYTHONPATH"]


# The shell of a command: the user's own where it is fit for commands, else bash, else sh.


def chosen_shell(environ: Mapping[str, str], is_fit: Callable[[str], bool]) -> str:
    shell = environ.get("SHELL", "")
    if os.path.isabs(shell) and os.access(shell, os.X_OK) and is_fit(os.path.basename(shell)):
        return shell
    return shutil.which("bash", path=environ.get("PATH")) or "/bin/sh"


def choosing_there(names: Iterable[str], *, fit: bool) -> str:
    """The same in another place: lines for `/bin/sh`, which set `_hf_shell`. `names` are the shells that are fit, or
    those that are not. The variable has a long name because the command may inherit it."""
    known = "|".join(names)
    branches = f"{known}) ;; *) _hf_shell= ;;" if fit else f"{known}) _hf_shell= ;;"
    return f"""
_hf_shell=$SHELL
case ${{_hf_shell##*/}} in {branches} esac
case $_hf_shell in /*) [ -x "$_hf_shell" ] || _hf_shell= ;; *) _hf_shell= ;; esac
[ -n "$_hf_shell" ] || _hf_shell=$(command -v bash) || _hf_shell=/bin/sh
"""
