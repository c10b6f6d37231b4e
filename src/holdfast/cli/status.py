"""Everything that is known about one session, with the evidence for it and the time of the look."""

from __future__ import annotations

from .door import here
from .inbox import with_pending
from .output import say, say_json
from .parsing import Parser, add_json, add_session
from .tables import age, epoch, facts, lost_bytes, megabytes, outcome, span, state_words, stop_words, style

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from ..host.api import Session
    from ..model import Exit
    from ..model.session import Record

USAGE = "ID [--json]"
EXAMPLES = """
hold status web
hold status last --json | jq .exit
"""


# What a session is attentive to, and what came of it.
_ATTENTION = ("notes", "watch", "monitor", "ready")


def arrange(parser: Parser) -> None:
    add_session(parser)
    add_json(parser, "the session")


def main(args: Namespace) -> int:
    with here() as hf:
        session = hf.get(args.session)
        if args.json:
            say_json(with_pending(hf._core, [session])[0])
        else:
            say(facts(described(session), style(hf.config)))
    return 0


def described(session: Session) -> list[tuple[str, str]]:
    extra = dict(session.metadata)
    evidence = extra.pop("evidence", None)
    extra.pop("lost_bytes", None)  # said in words
    lines: list[tuple[str, str | None]] = [
        ("id", session.id),
        ("name", session.name),
        ("state", f"{session.state} ({state_words(session)[0]})" if session.exit else state_words(session)[0]),
        ("status", session.status),
        ("evidence", evidence),
        ("observed", session.observed_at),
        ("command", session.command),
        ("directory", session.cwd),
        ("description", session.description if session.description not in (session.name, session.command) else None),
        ("owner", session.owner),
        ("labels", " ".join(f"{key}={value}" for key, value in session.labels.items())),
        ("kind", session.kind),
        ("pid", None if session.pid is None else str(session.pid)),
        ("runner", None if session.runner_pid is None else f"pid {session.runner_pid}"),
        ("endpoint", session.endpoint),
        ("created", _time(session.created_at)),
        ("started", _time(session.started_at)),
        ("ended", _time(session.ended_at)),
        ("ran for", _ran_for(session)),
        *_ending(session),
        ("stopping", _stopping(session)),
        *_output(session),
    ]
    for name, value in extra.items():
        lines.append((name.replace("_", " "), _in_words(value) if name in _ATTENTION else _told(value)))
    return [(key, value) for key, value in lines if value]


def _time(text: str | None) -> str | None:
    return None if text is None else f"{text} ({age(text)} ago)"


def _ran_for(session: Session) -> str | None:
    began, ended = epoch(session.started_at), epoch(session.ended_at)
    return None if began is None or ended is None else span(ended - began)


def _ending(session: Session) -> list[tuple[str, str | None]]:
    exit = session.exit
    if exit is None:
        return []
    return [
        ("exit", outcome(exit) if exit.code is not None or exit.signal is not None else None),
        ("cause", _cause(exit)),
        (
            "output",
            "a descendant may still add to it" if not exit.complete else None if lost_bytes(session) else "complete",
        ),
        *(("survivor", process_words(each)) for each in exit.survivors),
        ("survivors", f"and {exit.survivors_more} more" if exit.survivors_more else None),
    ]


def _cause(exit: Exit) -> str:
    if exit.cause == "signal":
        return f"signal, sent by {exit.by}" if exit.by else "signal, not by a stop or `hold kill`"
    parts = [exit.cause + (f" by {exit.by}" if exit.by else ""), stop_words(exit), "out of memory" if exit.oom else ""]
    return ", ".join(filter(None, parts))


def process_words(process: Record) -> str:
    """A process of a tree for people: pid, command line, why it could not be signalled."""
    error = f" ({process['error']})" if process.get("error") else ""
    return f"pid {process.get('pid')} {process.get('command') or ''}".rstrip() + error


def _stopping(session: Session) -> str | None:
    stop = session.stopping
    if stop is None:
        return None
    by = f" by {stop['by']}" if stop.get("by") else ""
    return f"since {stop.get('since')}{by}" + (f", now {stop['stage']}" if stop.get("stage") else "")


def _output(session: Session) -> list[tuple[str, str | None]]:
    lines: list[tuple[str, str | None]] = []
    for stream, end in session.ends.items():
        dropped = session.dropped_before.get(stream, 0)
        lines.append((stream, megabytes(end) + (f", the first {megabytes(dropped)} dropped" if dropped else "")))
    lost = lost_bytes(session)
    lines.append(("output", f"incomplete: the disk refused {megabytes(lost)} of it" if lost else None))
    lines.append(("last output", _time(session.last_output_at)))
    lines.append(("cursor", session.cursor))
    return lines


def _in_words(value: object) -> str:
    """Facts of ours, less those that say nothing: `hits 2, patterns ERROR`."""
    if isinstance(value, dict):
        if set(value) == {"id", "text"}:
            return str(value["text"])
        said = [f"{key.replace('_', ' ')} {_in_words(each)}" for key, each in value.items() if each]
        return ", ".join(said) or "nothing yet"
    if isinstance(value, list):
        return "; ".join(map(_in_words, value))
    return "yes" if value is True else str(value)


def _told(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)
