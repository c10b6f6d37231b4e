"""The environment of a command whose output is captured: no colours, no progress bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_REMOVED = (
    *("FORCE_COLOR", "CLICOLOR_FORCE", "COLORTERM", "TERM_PROGRAM", "TERM_PROGRAM_VERSION"),
    *("WT_SESSION", "VTE_VERSION", "ANSICON", "ConEmuANSI"),
)
_SET = {
    "NO_COLOR": "1",
    "CLICOLOR": "0",
    "TERM": "dumb",
    "NODE_DISABLE_COLORS": "1",
    "PY_COLORS": "0",
    "CARGO_TERM_COLOR": "never",
    "RUST_LOG_STYLE": "never",
    "YARN_ENABLE_COLORS": "0",
    "npm_config_color": "false",
    "npm_config_progress": "false",
    "pnpm_config_color": "false",
    "pnpm_config_progress": "false",
}
_TOUCHED = {name.upper() for name in (*_REMOVED, *_SET)}


def changes(inherited: Iterable[str]) -> dict[str, str | None]:
    """What a start changes of the variables with these names; None takes one away. Names are compared without case,
    as the programs that read them do. Another place may have what is not inherited here."""
    found: dict[str, str | None] = {name: None for name in inherited if name.upper() in _TOUCHED}
    return {**dict.fromkeys(_REMOVED), **found, **_SET}
