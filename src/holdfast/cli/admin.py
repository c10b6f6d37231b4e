"""`hold recover`, `doctor`, `gc` and `config`."""

from __future__ import annotations

import os

from .host import open_home
from .output import (
    DIM,
    GREEN,
    RED,
    YELLOW,
    Awaiting,
    age,
    megabytes,
    note,
    printable,
    say,
    say_json,
    state_words,
    style,
    table,
)
from .parsing import Namespace, Parser, add_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from ..home import Home
    from ..model import Finding


RECOVER_HELP = """\
Check every session that is not known to have ended, and print its state.

  live         the runner answered
  exited       it has ended meanwhile
  unreachable  the runner is alive and does not answer
  stale        the runner is gone, the command is still running: `hold stop` ends it
  lost         both are gone, and how it ended is unknown
"""

RECOVER_USAGE = "[--json]"
RECOVER_EXAMPLES = """
hold recover
hold recover --json | jq -r '.stale[].id'
"""

_GROUPS = {"live": GREEN, "exited": DIM, "unreachable": YELLOW, "stale": YELLOW, "lost": RED}


def recover_arrange(parser: Parser) -> None:
    add_json(parser, "the sessions by group")


def recover_main(args: Namespace) -> int:
    with open_home() as hf:
        found = hf.recover()
        if args.json:
            say_json(found)
            return 0
        rows = [
            (
                (group, colour),
                (session.id, ""),
                (session.name or "", ""),
                ("" if group != "exited" else state_words(session)[0], ""),
                (age(session.ended_at or session.started_at or session.created_at), DIM),
                (str(session.metadata.get("evidence", "")) if group not in ("live", "exited") else "", ""),
                (session.command, ""),
            )
            for group, colour in _GROUPS.items()
            for session in getattr(found, group)
        ]
        if rows:
            say(table(("GROUP", "ID", "NAME", "HOW", "AGE", "EVIDENCE", "COMMAND"), rows, style(hf.config)))
        else:
            note("nothing to recover: every session has ended")
        for path in found.quarantined:
            note(f"{path} cannot be read; `hold doctor` moves it to quarantine")
    return 0


DOCTOR_HELP = """\
Find and repair problems of the home, the runtime directory and the index.

Running sessions are not touched. Exits with 1 if a problem remains. With --place, run a short command at that place
instead, and name what is missing there.
"""

DOCTOR_USAGE = "[--rebuild] [--place PLACE] [--json]"
DOCTOR_EXAMPLES = """
hold doctor
hold doctor --place ssh:build-box
hold doctor --rebuild
"""

_COLOURS = {"ok": GREEN, "warning": YELLOW, "problem": RED}


def doctor_arrange(parser: Parser) -> None:
    parser.add_argument("--rebuild", action="store_true", help="build the index again from the session directories")
    parser.add_argument("--place", metavar="PLACE", help="only try this place")
    add_json(parser, "the findings")


def doctor_main(args: Namespace) -> int:
    with open_home(skip_unsafe=True) as hf:
        findings = hf.doctor(rebuild=args.rebuild, place=args.place)
        findings += _other_machines(hf.home) if args.place is None else []
        if args.json:
            say_json([finding.to_json() for finding in findings])
        else:
            shown = style(hf.config)
            for finding in findings:
                level = "repaired" if finding.repaired else finding.level
                colour = GREEN if finding.repaired else _COLOURS.get(finding.level, "")
                say(f"{shown.paint(level.ljust(8), colour)} {finding.check}: {printable(finding.text)}")
                if finding.fix and not finding.repaired and finding.level != "ok":
                    say(f"{'':8} fix: {printable(finding.fix)}")
    return 1 if any(finding.level == "problem" and not finding.repaired for finding in findings) else 0


def _other_machines(home: Home) -> list[Finding]:
    """Findings about the fabric, nodes and views of this home."""
    if not os.path.isdir(os.path.join(home.path, "nodes")):
        return []
    import asyncio

    from ..model import Finding

    try:
        from ..nodes.asking import examine
    except ImportError as problem:
        text = f"other machines cannot be reached: the package {problem.name} is missing"
        return [Finding("fabric", "problem", text, fix="`pip install 'holdfast[nodes]'`")]
    return asyncio.run(examine(home))


GC_HELP = """\
Remove sessions that ended long ago, the oldest logs above the size limit, and files left by killed processes.

The limits are settings: log.keep, log.home_cap, log.free_floor (see `hold config`). This also happens automatically
from time to time. A running session is never removed.
"""

GC_USAGE = "[--dry-run] [--all] [--json]"
GC_EXAMPLES = """
hold gc --dry-run
hold gc
hold stop --all && hold gc --all
"""


def gc_arrange(parser: Parser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="only print what would be removed")
    parser.add_argument("--all", action="store_true", help="every session; refused while one is running")
    add_json(parser, "what was removed")


def gc_main(args: Namespace) -> int:
    with open_home(need_config=True) as hf:
        total = _count(hf.home.sessions)
        with Awaiting(lambda: f"the collection: {total - _count(hf.home.sessions)} of {total} sessions removed"):
            done = hf.collect(dry_run=args.dry_run, all=args.all)
    if args.json:
        say_json(done)
        return 0
    verb = "would remove" if args.dry_run else "removed"
    for id in done.removed:
        say(f"{verb} {id}")
    for path in done.swept:
        say(f"{verb} {printable(path)}")
    for text in done.skipped:
        note(printable(text))
    gone = f"{_counted(done.removed, 'session')} and {_counted(done.swept, 'leftover')}"
    say(f"{verb} {gone}, {megabytes(done.freed_bytes)} in all")
    return 0


def _count(folder: str) -> int:
    try:
        return len(os.listdir(folder))
    except FileNotFoundError:
        return 0


def _counted(things: list[str], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


CONFIG_HELP = """\
Print the current settings, and where each comes from: the default, a line of the file, or an environment variable."""

CONFIG_USAGE = "[--json]"
CONFIG_EXAMPLES = """
hold config
hold config --json | jq '."start.grace"'
HOLDFAST_START_GRACE=30s hold config
"""


def config_arrange(parser: Parser) -> None:
    add_json(parser, "values and sources")


def config_main(args: Namespace) -> int:
    from ..config import SETTINGS, config_path, load

    config = load(os.environ)
    sources = config.sources()
    if args.json:
        values = {setting.name: getattr(config, setting.attribute) for setting in SETTINGS}
        values.update((name, table.to_json()) for name, table in config.tables().items())
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
    for name, own in config.tables().items():
        rows += [
            ((f"{name}.{key}", ""), (_shown(value, ""), ""), (sources[name], YELLOW))
            for key, value in own.to_json().items()
        ]
    say(table(("SETTING", "VALUE", "SOURCE"), rows, style(config)))
    say(f"\nfile: {config_path(os.environ)}" + ("" if config.file else " (does not exist)"))
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
