"""Which variables of a host its commands get: those that programs need anywhere, those that were asked for, no secrets.

An allow-list, since nobody can list all names of secrets; and below it a floor of names that are never handed on.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

# What a program needs to work as it does in its user's shell.
_ALLOWED = re.compile(
    r"""
    PATH | HOME | USER | LOGNAME | SHELL | LANG | LANGUAGE | LC_\w+ | TZ | TMPDIR | XDG_\w+ | SSH_AUTH_SOCK
    | (?i: \w+_PROXY ) | SSL_CERT_\w+ | \w+_CA_BUNDLE | DISPLAY | WAYLAND_DISPLAY | DBUS_SESSION_BUS_ADDRESS
    | AWS_\w+ | CLAUDE_CODE_OAUTH_TOKEN
    """,
    re.VERBOSE,
)

# What an agent's host holds for itself: whoever had it could speak for that host, or become its user.
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

_FORCE = "_HERMES_FORCE_"


def allowed(name: str) -> bool:
    """Is it handed on without being asked for?"""
    return _ALLOWED.fullmatch(name) is not None and not denied(name)


def denied(name: str) -> bool:
    """May it never be handed on, whoever asks?"""
    return _DENIED.fullmatch(name) is not None


def environment(
    host: Mapping[str, str],
    *,
    passed: Iterable[str] = (),
    given: Mapping[str, str | None] | None = None,
    deny: Iterable[str] = (),
) -> dict[str, str]:
    """The variables of a command. `passed` are more names of the host's, `given` are the caller's own (None takes one
    away, `_HERMES_FORCE_NAME` is a spelling of `NAME`), `deny` are names that this host keeps for itself."""
    wanted = set(passed)
    found = {name: value for name, value in host.items() if _ALLOWED.fullmatch(name) or name in wanted}
    found = {name: value for name, value in found.items() if not name.startswith(_FORCE)}
    for name, value in (given or {}).items():
        if value is None:
            found.pop(name, None)
        else:
            found[name.removeprefix(_FORCE)] = value
    _clear_traces(found, host)
    kept = set(deny)
    return {name: value for name, value in found.items() if name not in kept and not denied(name)}


def _clear_traces(found: dict[str, str], host: Mapping[str, str]) -> None:
    """A value of the caller's own is none of the host's traces."""
    for name in _TRACES:
        if name in host and found.get(name) == host[name]:
            del found[name]
    if "PYTHONPATH" in found:
        ours = set(host.get("PYTHONPATH", "").split(":"))
        left = [entry for entry in found["PYTHONPATH"].split(":") if entry and entry not in ours]
        found["PYTHONPATH"] = ":".join(left)
        if not left:
            del found["PYTHONPATH"]
