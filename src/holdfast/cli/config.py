"""The settings in force, and where each comes from: the default, a line of the file, or a variable."""

from __future__ import annotations

import os

from .output import say, say_json
from .parsing import Parser, add_json
from .tables import DIM, YELLOW, style, table

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

USAGE = "[--json]"
EXAMPLES = """
hold config
hold config --json | jq '."start.grace"'
HOLDFAST_START_GRACE=30s hold config
"""


def arrange(parser: Parser) -> None:
    add_json(parser, "values and sources")


def main(args: Namespace) -> int:
    from ..config import SETTINGS, config_path, load

    config = load(os.environ)
    sources = config.sources()
    if args.json:
        values = {setting.name: getattr(config, setting.attribute) for setting in SETTINGS}
        values.update((name, channel.to_json()) for name, channel in config.channels().items())
        say_json({name: {"value": value, "source": sources[name]} for name, value in values.items()})
        return 0
    rows = []
    for setting in SETTINGS:
        source = sources[setting.name]
        rows.append(
            (
                (setting.name, ""),
                (_shown(getattr(config, setting.attribute), setting.kind), ""),
                (source, DIM if source == "default" else YELLOW),
            )
        )
    for name, channel in config.channels().items():
        rows += [
            ((f"{name}.{key}", ""), (_shown(value, ""), ""), (sources[name], YELLOW))
            for key, value in channel.to_json().items()
        ]
    say(table(("SETTING", "VALUE", "SOURCE"), rows, style(config)))
    say(f"\nfile: {config_path(os.environ)}" + ("" if config.file else " (not there)"))
    return 0


def _shown(value: object, kind: str) -> str:
    if kind == "size" and isinstance(value, int):
        for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value and value % factor == 0:
                return f"{value // factor}{unit}"
        return f"{value}"
    if kind == "duration" and isinstance(value, float):
        for unit, factor in (("d", 86400), ("h", 3600), ("m", 60)):
            if value and value % factor == 0:
                return f"{value / factor:g}{unit}"
        return f"{value:g}s"
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "(as people.events)"
    if isinstance(value, tuple):
        return ", ".join(_shown(each, "duration") for each in value)
    return str(value)
