"""`hold ls` and `hold status`."""

from __future__ import annotations

from .. import __version__
from ..core.clock import epoch
from ..model import LIVE_STATES, STATES, STATUSES
from .host import near_label, open_home
from .output import (
    DIM,
    age,
    facts,
    is_terminal,
    lost_bytes,
    megabytes,
    note,
    outcome,
    say,
    say_json,
    span,
    state_words,
    stop_words,
    style,
    table,
)
from .parsing import Namespace, Parser, add_json, add_session, pair, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, TypeVar

    from ..model import Exit, Snapshot
    from ..model.session import Record
    from ..nodes.rows import FarShot
    from ..sessions.api import Session
    from ..sessions.core import Core
    from .output import Style

    AnySession = TypeVar("AnySession", Session, FarShot)


LS_HELP = """\
List the running sessions, oldest first; with -a also finished ones that are still kept."""

LS_USAGE = "[-a] [-q] [--here] [--owner KEY] [--label K=V] [--status STATUS] [--search TEXT] [--nodes [NAME]] [--json]"
LS_EXAMPLES = """
hold ls
hold ls -a --status failed
hold ls --nodes                              also sessions of other machines
hold ls --label app=web --json | jq -r '.[].id'
hold stop $(hold ls -q --search pytest)
"""


def ls_arrange(parser: Parser) -> None:
    parser.add_argument("-a", "--all", action="store_true", help="also finished sessions")
    parser.add_argument("-q", "--quiet", action="store_true", help="print only ids")
    parser.add_argument("--here", action="store_true", help="only sessions of this directory and below")
    parser.add_argument("--owner", metavar="KEY", help="only sessions of this owner")
    parser.add_argument(
        "--label", action="append", type=pair("--label"), metavar="K=V", help="only sessions with this label"
    )
    parser.add_argument("--name", help="only sessions with this name")
    parser.add_argument("--status", choices=STATUSES, metavar="STATUS", help="one of " + ", ".join(STATUSES))
    parser.add_argument("--state", choices=STATES, metavar="STATE", help="one of " + ", ".join(STATES))
    parser.add_argument("--search", metavar="TEXT", help="in id, name, command, directory, description or labels")
    parser.add_argument(
        "--nodes", action="store_true", help="also sessions of other machines; with NAME, only of that node"
    )
    parser.add_argument("node", nargs="?", metavar="NAME", help="with --nodes: only this node")
    add_json(parser, "the sessions")


def ls_main(args: Namespace) -> int:
    if args.node is not None and not args.nodes:
        raise usage(f"{args.node!a} is not an option; `hold status ID` shows one session", "hold ls")
    is_all = args.all or args.status in ("completed", "failed", "killed") or args.state in ("exited", "lost")
    wanted = {"owner": args.owner, "status": args.status, "state": args.state, "name": args.name}
    with open_home() as hf:
        local: list[Session] = []
        if args.node is None:
            local = hf.sessions(all=is_all, labels=dict(args.label or ()), search=args.search, **wanted)
        far: list[FarShot] = []
        cut: list[str] = []
        silent: dict[str, str] = {}
        if args.nodes:
            from .nodes import note_cut, note_silent, sessions_of_nodes

            labels = [f"{key}:{value}" for key, value in args.label or ()]
            query = {**wanted, "label": labels, "q": args.search}
            there, cut, silent = sessions_of_nodes(args.node, query, all=is_all)
            # A session that was started from here is in the list already. Of a visited one, the node's row is shown.
            started = {session.id for session in local if "visit" not in session.metadata}
            far = [shot for shot in there if (is_all or shot.state in LIVE_STATES) and shot.id not in started]
            shown = {shot.id for shot in far}
            local = [session for session in local if session.id not in shown]
        if args.here:
            local, far = _below_here(local), _below_here(far)
        if args.json:
            rows = _with_pending(hf._core, local)
            say_json([*({"node": None, **row} for row in rows), *far] if args.nodes else rows)
        elif args.quiet:
            for id in [*(each.id for each in local), *(f"{each.node}/{each.id}" for each in far)]:
                say(id)
        elif local or far:
            say(listing([*local, *far], style(hf.config)))
        elif is_terminal(1):
            near = near_label(hf, args.label, args.owner)
            note(("no sessions" if args.all else "no session is running; `hold ls -a` shows finished ones") + near)
        if cut:
            note_cut(cut)
        if silent:
            note_silent(silent)
        for id, problem in hf.damaged.items():
            note(f"{id} is damaged: {problem.message}; {problem.fix}")
        if hf.trouble is not None:
            note(hf.trouble)
    return 0


def _below_here(sessions: list[AnySession]) -> list[AnySession]:
    import os

    here = os.path.join(os.getcwd(), "")
    return [each for each in sessions if os.path.join(each.cwd or "", "").startswith(here)]


def _with_pending(core: Core, sessions: Sequence[Session]) -> list[dict[str, Any]]:
    """As JSON, with the number of signals that wait; null if the index is busy."""
    from ..errors import IndexBusy
    from ..sessions.driver import drive

    try:
        waiting = drive(core.pending_signals(sessions))
    except IndexBusy:
        waiting = {}
    return [{**session.to_json(), "pending_signals": waiting.get(session.id)} for session in sessions]


def listing(sessions: Sequence[Session | Snapshot], style: Style) -> str:
    head = (
        *("NODE", "ID", "NAME", "STATE", "AGE", "ENDED", "PLACE", "RUNNER", "ATTACHED", "OWNER", "LABELS"),
        "COMMAND",
    )
    rows = []
    for session in sessions:
        # The name of a service already has these two labels.
        named = session.name == f"{session.labels.get('project')}-{session.labels.get('service')}"
        hidden = ("project", "service") if named else ()
        labels = " ".join(f"{key}={value}" for key, value in session.labels.items() if key not in hidden)
        rows.append(
            (
                (getattr(session, "node", ""), ""),
                (session.id, ""),
                (session.name or "", ""),
                state_words(session),
                (age(session.created_at or session.started_at), DIM),
                (age(session.ended_at), DIM),
                ("" if session.place == "local" else session.place, ""),
                (_other_release(session), DIM),
                (str(sum(session.attached.values()) or ""), ""),
                (session.owner or "", ""),
                (labels, DIM),
                (session.command, ""),
            )
        )
    return table(head, rows, style)


def _other_release(session: Snapshot) -> str:
    """The release of its runner, if it lives and is not this one."""
    version = session.runner_version or __version__
    return version if version != __version__ and session.state in LIVE_STATES else ""


STATUS_HELP = """\
Everything known about one session, with the evidence for its state and the time of the observation."""

STATUS_USAGE = "ID [--json]"
STATUS_EXAMPLES = """
hold status web
hold status last --json | jq .exit
"""


# Metadata that is shown in words instead of JSON.
_ATTENTION = ("notes", "watch", "monitor", "ready")


def status_arrange(parser: Parser) -> None:
    add_session(parser)
    add_json(parser, "the session")


def status_main(args: Namespace) -> int:
    with open_home() as hf:
        session = hf.get(args.session)
        if args.json:
            say_json(_with_pending(hf._core, [session])[0])
        else:
            from ..sessions.observe import read_files

            home = hf._core.home
            asked = read_files(home, session.id).current()
            say(facts(described(session, asked, home.session(session.id)), style(hf.config)))
    return 0


def described(session: Snapshot, asked: Record, directory: str) -> list[tuple[str, str]]:
    """`asked` is the spec as it is now, with the log in `directory`."""
    extra = dict(session.metadata)
    # Its processes are not of this machine.
    place = "" if session.place == "local" else f" in {session.place}"
    evidence = extra.pop("evidence", None)
    for shown in ("lost_bytes", "restarting"):  # as words, in other lines
        extra.pop(shown, None)
    lines: list[tuple[str, str | None]] = [
        ("id", session.id),
        ("name", session.name),
        ("state", f"{session.state} ({state_words(session)[0]})" if session.exit else state_words(session)[0]),
        ("status", session.status),
        ("evidence", evidence),
        ("observed", _time(session.observed_at)),
        ("command", session.command),
        ("directory", session.cwd),
        ("description", session.description if session.description not in (session.name, session.command) else None),
        ("owner", session.owner),
        ("labels", " ".join(f"{key}={value}" for key, value in session.labels.items())),
        ("kind", session.kind),
        ("place", session.place if place else None),
        ("pid", None if session.pid is None else f"{session.pid}{place}"),
        ("runner", _runner(session, place)),
        ("size", None if session.size is None else "{1}x{0}".format(*session.size)),
        ("attached", _attached(session)),
        ("endpoint", session.endpoint),
        ("log", directory),
        ("limits", _limits(asked)),
        ("restart", _restart(session, asked)),
        ("created", _time(session.created_at)),
        ("started", _time(session.started_at)),
        ("ended", _time(session.ended_at)),
        ("ran for", _ran_for(session)),
        *_ending(session),
        ("stopping", _stopping(session)),
        *_output(session),
    ]
    for name, value in extra.items():
        lines.append((name.replace("_", " "), _in_words(value) if name in _ATTENTION else _as_text(value)))
    return [(key, value) for key, value in lines if value]


def _runner(session: Snapshot, place: str) -> str | None:
    if session.runner_pid is None:
        return None
    version = f", version {session.runner_version}" if session.runner_version else ""
    return f"pid {session.runner_pid}{place}{version}"


def _limits(asked: Record) -> str:
    times = {"timeout": "timeout", "idle timeout": "idle_timeout", "ttl": "ttl"}
    sizes = {"memory": "memory", "log": "log_cap"}
    parts = [f"{name} {span(asked[key])}" for name, key in times.items() if asked.get(key)]
    return ", ".join([*parts, *(f"{name} {megabytes(asked[key])}" for name, key in sizes.items() if asked.get(key))])


def _restart(session: Snapshot, asked: Record) -> str | None:
    """Its policy, and which attempt this is."""
    policy = asked.get("restart")
    if not policy:
        return None
    bound = f", at most {policy['in_a_row']} times in a row" if policy.get("in_a_row") else ""
    if not bound and policy.get("attempts") and policy.get("window"):
        bound = f", at most {policy['attempts']} times in {span(policy['window'])}"
    return f"{policy['policy']}{bound}; this is attempt {session.attempt}"


def _time(text: str | None) -> str | None:
    """Local time with its offset from UTC, and how long ago that was."""
    at = epoch(text)
    if at is None:
        return text
    from time import localtime, strftime

    local = strftime("%Y-%m-%d %H:%M:%S %z", localtime(at))
    return f"{local} ({age(text)} ago)"


def _attached(session: Snapshot) -> str | None:
    parts = [
        f"{count} {'typing' if role == 'control' else 'observing'}" for role, count in session.attached.items() if count
    ]
    return ", ".join(parts) or None


def _ran_for(session: Snapshot) -> str | None:
    began, ended = epoch(session.started_at), epoch(session.ended_at)
    return None if began is None or ended is None else span(ended - began)


def _ending(session: Snapshot) -> list[tuple[str, str | None]]:
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
    """A process in words: pid, command line, why it could not be signalled."""
    error = f" ({process['error']})" if process.get("error") else ""
    return f"pid {process.get('pid')} {process.get('command') or ''}".rstrip() + error


def _stopping(session: Snapshot) -> str | None:
    stop = session.stopping
    if stop is None:
        return None
    by = f" by {stop['by']}" if stop.get("by") else ""
    return f"since {_time(stop.get('since'))}{by}" + (f", now {stop['stage']}" if stop.get("stage") else "")


def _output(session: Snapshot) -> list[tuple[str, str | None]]:
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
    """`hits 2, patterns ERROR`, without empty values."""
    if isinstance(value, dict):
        if set(value) == {"id", "text"}:
            return str(value["text"])
        parts = [f"{key.replace('_', ' ')} {_in_words(each)}" for key, each in value.items() if each]
        return ", ".join(parts) or "nothing yet"
    if isinstance(value, list):
        return "; ".join(map(_in_words, value))
    return "yes" if value is True else str(value)


def _as_text(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)
