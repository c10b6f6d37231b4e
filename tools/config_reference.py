"""Writes docs/config.md from the settings themselves. `--check` only says whether the page is current."""

from __future__ import annotations

import sys
from pathlib import Path

from holdfast import config
from holdfast.config.channels import PLACEHOLDERS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "config.md"

_HEAD = """# Configuration

One TOML file: `$HOLDFAST_CONFIG`, else `$XDG_CONFIG_HOME/holdfast/config.toml`, else
`~/.config/holdfast/config.toml`. Without a file, the defaults apply. Environment variables override
the file. Unknown sections, keys and variables, and values of the wrong type, are errors that name the place:
nothing is started, and `hold gc` removes nothing. Commands that look at sessions or end them use the defaults and
say so in one line. A file that another user owns or may write is not read: every command refuses it, except
`hold stop`, `hold kill` and `hold doctor`, which use the defaults.
`hold config` shows every value and where it came from.

Sizes are a number of bytes or text such as `"512K"`, `"64MiB"`, `"4G"` (powers of 1024); durations a number
of seconds or text such as `"500ms"`, `"10s"`, `"5m"`, `"2h"`, `"7d"`.

Lists are lists of TOML, or text with commas or spaces between the items.

This page is made by `tools/config_reference.py` from `src/holdfast/config/`.
"""

_PLACEHOLDERS = ", ".join("`{" + name + "}`" for name in PLACEHOLDERS)

_CHANNELS = f"""### Channels

Besides `bell`, notices to people go through tables of their own; without one, people are not notified.

| table | key | meaning |
| --- | --- | --- |
| `[people.command]` | `argv` | Program and arguments, run without a shell. Replaced in an argument: {_PLACEHOLDERS} |
| | `events` | Which events it receives, instead of `people.events` |
| `[people.webhook.NAME]` | `url` | Where each notice is posted: `https`, or `http` on this machine itself |
| | `secret_file` | A file of mode 0600 that holds the secret which signs each post |
| | `events` | Which events it receives, instead of `people.events` |
"""


def toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def accepts(setting: config.Setting) -> str:
    if setting.words:
        return ", ".join(f"`{word}`" for word in setting.words)
    if setting.high is not None:
        return f"{setting.kind}, {setting.low:.10g} to {setting.high:.10g}"
    return f"{setting.kind}, at least {setting.low:.10g}" if setting.low else setting.kind


def page() -> str:
    lines = [_HEAD]
    for section in dict.fromkeys(setting.section for setting in config.SETTINGS):
        lines += [
            f"## [{section}]\n",
            "| key | takes | default | meaning | variable |",
            "| --- | --- | --- | --- | --- |",
        ]
        for each in config.SETTINGS:
            if each.section == section:
                row = (
                    f"`{each.key}`",
                    accepts(each),
                    f"`{toml(each.written())}`",
                    each.meaning,
                    f"`{each.variable}`",
                )
                lines.append(f"| {' | '.join(row)} |")
        lines.append("")
        if section == "people":
            lines.append(_CHANNELS)
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    if arguments == ["--check"]:
        if PAGE.read_text(encoding="utf-8") == page():
            return 0
        print(f"{PAGE} is not current: run tools/config_reference.py", file=sys.stderr)
        return 1
    if arguments:
        print("usage: config_reference.py [--check]", file=sys.stderr)
        return 2
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
