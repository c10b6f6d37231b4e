"""The terminal options of a start, checked, and the environment of a program on a terminal of its own."""

from __future__ import annotations

from .. import __version__
from ..config import prompt_patterns
from ..errors import BadArgument, BadSize
from ..model.units import shown
from ..runner.sizes import POLICIES
from ..runner.tty import COLS_MAX, ROWS_MAX

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection
    from typing import Any

    from ..config import Config

DEFAULT_TERM = "xterm-256color"
_OPTIONS = ("term", "size_policy", "echo", "clipboard", "colors")
# What describes the caller's terminal would be a lie about this one.
_REMOVED = frozenset(["LINES", "COLUMNS", "WINDOWID", "TMUX", "TMUX_PANE", "STY", "TERM_SESSION_ID", "WT_SESSION"])
_REMOVED_FAMILIES = ("KITTY_", "ITERM_", "WEZTERM_", "ALACRITTY_", "GHOSTTY_", "VTE_", "KONSOLE_")


def check_tty(asked: object) -> dict[str, Any] | None:
    """`tty` of a start: None for pipes, else every option with its value."""
    if asked is None or asked is False:
        return None
    given = {} if asked is True else dict(asked) if hasattr(asked, "keys") else None  # type: ignore[call-overload]
    if given is None:
        raise BadArgument("tty", f"{shown(asked)} is neither True nor a mapping of options")
    unknown = sorted(set(map(str, given)) - set(_OPTIONS))
    if unknown:
        raise BadArgument("tty", f"no option {shown(unknown[0])}", f"one of {', '.join(_OPTIONS)}")
    policy = given.get("size_policy", "latest")
    if policy not in POLICIES:
        raise BadArgument("tty", f"size_policy {shown(policy)} is not one of {', '.join(POLICIES)}")
    term = given.get("term")
    if term is not None and (not isinstance(term, str) or not term.strip() or "\0" in term or "/" in term):
        raise BadArgument("tty", f"term {shown(term)} is not the name of a terminal", f"such as {DEFAULT_TERM}")
    for switch in ("echo", "clipboard"):
        if not isinstance(given.get(switch, True), bool):
            raise BadArgument("tty", f"{switch} is neither True nor False")
    return {
        "term": term,
        "size_policy": policy,
        "echo": given.get("echo", True),
        "clipboard": given.get("clipboard", False),
        "colors": _colors(given.get("colors")),
    }


def asked_again(recorded: dict[str, Any], env: Collection[str]) -> dict[str, Any]:
    """`tty` of a start as it was asked for, from the spec: what came from the configuration comes from it again, and a
    TERM that is given anew wins over the one there was."""
    return {name: recorded[name] for name in _OPTIONS if name in recorded and (name != "term" or "TERM" not in env)}


def watched(config: Config) -> dict[str, Any]:
    """What is configured about looking at a terminal: whether input is kept, and what questions look like."""
    added = prompt_patterns(config.terminal_prompts, "terminal.prompts")
    prompts = {"added": added, "replace": config.terminal_prompts_replace} if added else None
    return {"audit": config.terminal_audit_input, "prompts": prompts}


def check_size(size: object) -> list[int]:
    """Rows and columns, as a pair or as `30x120`."""
    pair = size.lower().split("x") if isinstance(size, str) else size
    try:
        rows, cols = (int(each) for each in pair)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        raise BadSize(shown(size)) from None
    if not (1 <= rows <= ROWS_MAX and 1 <= cols <= COLS_MAX):
        raise BadSize(f"{rows}x{cols}")
    return [rows, cols]


def environment(env: dict[str, str], given: Collection[str], tty: dict[str, Any]) -> dict[str, str]:
    """What was given explicitly wins; what is only inherited from the caller's terminal goes."""
    mended = {
        name: value
        for name, value in env.items()
        if name in given or not (name in _REMOVED or name.startswith(_REMOVED_FAMILIES))
    }
    wanted = env.get("TERM", "") if "TERM" in given else ""
    mended["TERM"] = tty["term"] or (wanted if wanted.strip() not in ("", "dumb") else DEFAULT_TERM)
    ours = {"COLORTERM": "truecolor", "TERM_PROGRAM": "holdfast", "TERM_PROGRAM_VERSION": __version__}
    return {**mended, **{name: value for name, value in ours.items() if name not in given}}


def _colors(asked: object) -> dict[str, list[int]] | None:
    if asked is None:
        return None
    if not hasattr(asked, "keys"):
        raise BadArgument("tty", "colors is no mapping", 'give {"foreground": "#c0c0c0", "background": "#000000"}')
    given = dict(asked)  # type: ignore[call-overload]
    for name in given:
        if name not in ("foreground", "background", "cursor"):
            raise BadArgument("tty", f"no colour {shown(name)}", "one of foreground, background, cursor")
    return {name: _color(value) for name, value in given.items()}


def _color(value: object) -> list[int]:
    if isinstance(value, str) and len(value) == 7 and value[0] == "#":
        try:
            return list(bytes.fromhex(value[1:]))
        except ValueError:
            pass
    parts = list(value) if isinstance(value, (list, tuple)) else []
    if len(parts) == 3 and all(isinstance(part, int) and 0 <= part <= 255 for part in parts):
        return parts
    raise BadArgument("tty", f"{shown(value)} is no colour", 'such as "#1e1e2e" or [30, 30, 46]')
