"""`hold stop`, `kill`, `rm`, `prune` and `rename`."""

from __future__ import annotations

from ..core.clock import epoch
from .host import near_label, near_session, open_home
from .look import process_words
from .output import Awaiting, complain, is_terminal, note, printable, say, say_json, span
from .parsing import Namespace, Parser, add_json, add_session, add_sessions, duration, no_session, pair, usage

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from ..model import Stopped
    from ..sessions.api import Holdfast, Session


SURVIVED = 1


def _end_all(hf: Holdfast, refs: Iterable[str], grace: float | None, *, as_json: bool) -> int:
    """Stop sessions in parallel and print a line for each. Not zero if one was not found or a process survived."""
    from ..errors import HoldfastError
    from ..sessions.driver import drive

    ids: dict[str, None] = {}
    worst = 0
    answers: list[dict[str, Any]] = []
    for ref in refs:
        try:
            ids[drive(hf._core.locate(ref))] = None  # its runner is asked by the stop
        except HoldfastError as problem:
            worst = worst or problem.exit_code
            answers.append({"ref": ref, "error": problem.to_json()})
            if not as_json:
                say(f"{printable(ref)}: {printable(problem.message)}; {near_session(problem)}{printable(problem.fix)}")
    with Awaiting(lambda: being_stopped(ids)):
        stops = hf.stop_all(list(ids), grace) if ids else []
    for stopped in stops:
        if not stopped.done:
            worst = worst or getattr(stopped.error, "exit_code", SURVIVED)
        answers.append(stopped.to_json())
        if not as_json:
            say(f"{stopped.id}: {in_words(stopped)}")
    if as_json:
        say_json(answers)
    return worst


def _each(
    args: Namespace, act: Callable[[str], tuple[dict[str, Any], str]], failed: dict[str, Any], option: str = ""
) -> int:
    """Do `act` for each session, which returns a record and a line. Returns the exit code of the first error."""
    from ..errors import HoldfastError

    worst = 0
    answers: list[dict[str, Any]] = []
    for ref in args.sessions:
        try:
            record, line = act(ref)
        except HoldfastError as problem:
            worst = worst or problem.exit_code
            answers.append({"ref": ref, **failed, "error": problem.to_json()})
            if not args.json:
                complain(problem, as_json=False, options=(option,), near=near_session(problem))
        else:
            answers.append({"ref": ref, **record, "error": None})
            if not args.json:
                say(line)
    if args.json:
        say_json(answers)
    return worst


def being_stopped(ids: Iterable[str]) -> str:
    """Which of these sessions are not over yet: the rung of each stop, and the processes that are left."""
    from ..core.processes import descendants, describe

    parts = []
    with open_home(skip_unsafe=True) as hf:
        for session in map(hf.get, ids):
            rung = (session.stopping or {}).get("stage")
            left = descendants(session.runner_pid) if session.place == "local" and session.runner_pid else []
            if rung or left:
                count = f", {len(left)} process{'' if len(left) == 1 else 'es'} left" if left else ""
                first = f", such as {process_words(describe(left[0]))}" if left else ""
                parts.append(f"{session.name or session.id} ({rung or 'stop'}{count}{first})")
    return ", ".join(parts) or "the end"


def in_words(answer: Stopped) -> str:
    if answer.error is not None:
        message = getattr(answer.error, "message", str(answer.error))
        return f"{printable(message)}; {printable(getattr(answer.error, 'fix', ''))}"
    if answer.survivors:
        left = [printable(process_words(each)) for each in answer.survivors]
        left += [f"and {answer.survivors_more} more"] if answer.survivors_more else []
        return "NOT ended, still there: " + ", ".join(left)
    if answer.already:
        return "already over"
    count = len(answer.found) + answer.found_more
    processes = "1 process" if count == 1 else f"{count} processes"
    return f"stopped, {processes} gone after {span(answer.took_s)}" + (f" ({answer.rung})" if answer.rung else "")


STOP_HELP = """\
Stop sessions gently, with everything they started: SIGTERM first, and SIGKILL after the grace.

Sessions are stopped in parallel. A line for each says which processes were found and which survived; the exit code is
not 0 if one survived. It is not an error if a session has already ended.
"""

STOP_USAGE = "ID... [--grace T] [--json]\n       hold stop (--all | --owner KEY | --label K=V) [--grace T] [--json]"
STOP_EXAMPLES = """
hold stop web
hold stop web worker --grace 30s
hold stop --owner agent-7
hold stop --all
"""


def stop_arrange(parser: Parser) -> None:
    add_sessions(parser, "*")
    parser.add_argument(
        "--grace", type=duration("--grace"), metavar="T", help="how long to wait before it is killed (default: 5s)"
    )
    parser.add_argument("--all", action="store_true", help="every running session of this home")
    parser.add_argument("--owner", metavar="KEY", help="every running session of this owner")
    parser.add_argument(
        "--label", action="append", type=pair("--label"), metavar="K=V", help="every running session with this label"
    )
    add_json(parser, "the processes found and the survivors, one entry for each session")


def stop_main(args: Namespace) -> int:
    wanted = args.all or args.owner is not None or bool(args.label)
    if wanted and args.sessions:
        raise usage("give ids, or one of --all, --owner and --label", "hold stop")
    if not wanted and not args.sessions:
        raise no_session("no session given", "hold stop")
    with open_home(skip_unsafe=True) as hf:
        refs = args.sessions
        if wanted:
            found = hf.sessions(owner=args.owner, labels=dict(args.label or ()))
            # Visited sessions belong to others.
            refs = [session.id for session in found if "visit" not in session.metadata]
            if not refs:
                if args.json:
                    say_json([])
                else:
                    note("no such session is running" + near_label(hf, args.label, args.owner))
                return 0
        return _end_all(hf, refs, args.grace, as_json=args.json)


KILL_HELP = """\
Kill sessions at once, with everything they started; with -s, only send an operating-system signal."""

KILL_USAGE = "[-s SIGNAL | -SIGNAL] [--target command|group|tree] ID... [--json]"
KILL_EXAMPLES = """
hold kill web
hold kill -HUP web                  as -s HUP or -1
hold kill -s USR1 --target tree web
"""


def kill_understood(words: list[str]) -> list[str]:
    """Accept `-9`, `-HUP` and `-SIGHUP` for `-s`, like every other `kill`."""
    from ..core.kernel_signals import NUMBERS

    found: list[str] = []
    for number, word in enumerate(words):
        if word == "--":
            return [*found, *words[number:]]
        name = word[1:].upper()
        named = name.isalnum() and ("SIG" + name in NUMBERS or name in NUMBERS)
        # Names and numbers of signals, and misspelt names; everything else stays an option.
        if word[:1] == "-" and word[1:2] != "-" and (word[1:].isdecimal() or named or word[1:].isupper()):
            found += ["-s", name]
        else:
            found.append(word)
    return found


def kill_arrange(parser: Parser) -> None:
    parser.add_argument("-s", "--signal", metavar="SIGNAL", help="name or number, such as HUP, SIGUSR1 or 10")
    parser.add_argument(
        "--target",
        choices=("command", "group", "tree"),
        default="command",
        metavar="TARGET",
        help="which processes get it: command (default), group (its process group) or tree (all it started)",
    )
    add_sessions(parser)
    add_json(parser, "the result, one entry for each session")


def kill_main(args: Namespace) -> int:
    with open_home(skip_unsafe=True) as hf:
        if args.signal is None:
            return _end_all(hf, args.sessions, 0.0, as_json=args.json)
        signal: str | int = int(args.signal) if args.signal.isdecimal() else args.signal

        def send(ref: str) -> tuple[dict[str, Any], str]:
            session = hf.get(ref)
            # SIGKILL is taken for an end of everything: what it leaves is named.
            is_kill = signal in (9, "KILL", "SIGKILL") and args.target == "command"
            left = _started_by(session) if is_kill else ""
            sent = session.send_signal(signal, args.target)
            text = f"{session.id}: sent to {sent} process{'' if sent == 1 else 'es'}"
            return {"id": session.id, "sent": sent}, text + left

        return _each(args, send, {"sent": 0}, "--signal")


def _started_by(session: Session) -> str:
    """The processes that the command of a session here has started."""
    from ..core.processes import descendants, described_some

    if session.place != "local" or session.pid is None:
        return ""
    some, more = described_some(descendants(session.pid))
    words = [printable(process_words(each)) for each in some] + [f"and {more} more"] * bool(more)
    return f"; what it started continues: {', '.join(words)} (`hold stop {session.id}` ends it)" if words else ""


RM_HELP = """\
Remove finished sessions, with their records and logs.

A session is not removed while it or a process that it started is running.
"""

RM_USAGE = "ID... [--json]"
RM_EXAMPLES = """
hold rm last
hold rm $(hold ls -aq --status completed)
"""


def rm_arrange(parser: Parser) -> None:
    add_sessions(parser)
    add_json(parser, "the result, one entry for each session")


def rm_main(args: Namespace) -> int:
    with open_home() as hf:

        def remove(ref: str) -> tuple[dict[str, Any], str]:
            id = hf.remove(ref)
            return {"id": id, "removed": True}, f"removed {id}"

        return _each(args, remove, {"removed": False})


PRUNE_HELP = """\
Remove finished sessions, with their records and logs: all of them, or only those of a given age or status.

On a terminal, it lists them and asks first, unless --yes is given. Sessions with living processes are kept.
"""

PRUNE_USAGE = "[--older T] [--status completed|failed|killed] [--yes] [--json]"
PRUNE_EXAMPLES = """
hold prune --older 1d
hold prune --status failed --yes
"""


def prune_arrange(parser: Parser) -> None:
    parser.add_argument(
        "--older", type=duration("--older"), metavar="T", help="only those that ended at least this long ago"
    )
    parser.add_argument("--status", choices=("completed", "failed", "killed"), help="only those with this status")
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_json(parser, "the ids that were removed")


def prune_main(args: Namespace) -> int:
    from time import time

    from ..errors import HoldfastError

    with open_home(need_config=True) as hf:
        before = time() - (args.older or 0)
        found = [
            each
            for each in hf.sessions(all=True, status=args.status)
            if each.exit is not None and (epoch(each.ended_at) or 0) <= before
        ]
        if found and not args.yes and is_terminal(0):
            for each in found:
                note(f"{each.id}  {printable(each.name or each.command)}", head="remove")
            what = "this session and its log" if len(found) == 1 else f"these {len(found)} sessions and their logs"
            if input(f"Remove {what}? [y/N] ").strip().lower() not in ("y", "yes"):
                note("nothing was removed")
                return 1
        removed = []
        for each in found:
            try:
                removed.append(hf.remove(each.id))
            except HoldfastError as problem:
                note(printable(f"{each.id} was not removed: {problem.message}"))
        if args.json:
            say_json(removed)
        else:
            say("removed 1 session" if len(removed) == 1 else f"removed {len(removed)} sessions")
    return 0


RENAME_HELP = """\
Give a session another name, also one that has ended."""

RENAME_USAGE = "ID NAME [--json]"
RENAME_EXAMPLES = """
hold rename last web
hold rename web old-web
"""


def rename_arrange(parser: Parser) -> None:
    add_session(parser)
    parser.add_argument("name", metavar="NAME", help="its new name")
    add_json(parser, "the session")


def rename_main(args: Namespace) -> int:
    with open_home() as hf:
        session = hf.get(args.session)
        session.update(name=args.name)
        if args.json:
            say_json(session)
    return 0
