"""The words of the native toolset: schemas, phrases, errors."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from ... import errors
from ...model import FINAL_STATES, LOST, STALE, UNREACHABLE
from ...sessions.wait import CONDITIONS
from ...signals.redact import clean_text, escape_hidden
from ...signals.wording import spell
from ..base import BOOLEAN, INTEGER, NUMBER, PAIRS, SIGNALS, STRING, STRINGS, WORDS, Answer, Parameter, Tool
from ..owner_sessions import elapsed_s

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from ...errors import HoldfastError
    from ...model import Snapshot, Woke
    from ...sessions.aio import AsyncSession
    from ..base import Toolset


# The words for sessions, times and sizes. Pure.


_QUOTED_CHARACTERS = 100
_LIMITS = {
    "overall_timeout": "ended by timeout_s",
    "idle_timeout": "ended by idle_timeout_s",
    "ttl": "ended by its time to live",
    "owner_gone": "ended with its owner",
    "out_of_memory": "killed, out of memory",
    "lost": "lost, its end was not observed",
}

_WARNINGS = {
    "tty_raw": "the program reads single keys and may not treat this as end of input",
    "canonical_limit": "a line this long may be cut by the terminal",
}
_EVIDENCE = {
    "blocked_read": "it is blocked reading its input",
    "polled_read": "it polls for input",
    "echo_off": "echo is off",
    "prompt_mark": "it marked a prompt",
    "pattern": "the line looks like a question",
    "bell": "it rang the bell",
}


def ref(session: Snapshot) -> str:
    """How a call refers to it. After its end another session may have its name."""
    return session.name if session.name and session.state not in FINAL_STATES else session.id


def called(session: Snapshot) -> str:
    return f"{session.name} {session.id}" if session.name else session.id


def call(tool: str, **arguments: object) -> str:
    """A call as a model writes it."""
    return f"{tool}({', '.join(f'{name}={_value(value)}' for name, value in arguments.items())})"


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(map(_value, value)) + "]"
    return quoted(value) if isinstance(value, str) else str(value)


def quoted(text: str, limit: int = _QUOTED_CHARACTERS) -> str:
    """Foreign text inside a line of ours."""
    return '"' + label(text, limit).replace("\\", "\\\\").replace('"', '\\"') + '"'


def label(text: str, limit: int = _QUOTED_CHARACTERS) -> str:
    words = escape_hidden(" ".join(clean_text(text).split()))
    return words if len(words) <= limit else words[: limit - 3] + "..."


def state_of(session: Snapshot) -> str:
    """`exit 1 after 12.4s`, `running 10s`, and what is known beside it."""
    took = spell(seconds(session))
    if session.exit is not None:
        return f"{ending(session)} after {took}"
    if session.state == STALE:
        return f"running {took}, but its supervisor is gone"
    if session.state == UNREACHABLE:
        return f"running {took}, but its supervisor does not answer"
    if session.stopping:
        return f"running {took}, being stopped"
    return f"running {took}"


def ending(session: Snapshot) -> str:
    exit = session.exit
    if exit is None:
        return session.state
    if exit.cause == "stop":
        by = "you" if exit.by == session.owner else label(exit.by or "", 40)
        how = f"stopped by {by}" if by else "stopped"
    else:
        how = _LIMITS.get(exit.cause, "")
    if exit.code is not None:
        code = f"exit {exit.code}"
    else:
        code = f"signal {exit.signal.removeprefix('SIG')}" if exit.signal else ""
        if code and not how:
            how, code = f"killed by {code}", ""
    return f"{how} ({code})" if how and code else how or code or ("lost" if session.state == LOST else "ended")


def seconds(session: Snapshot) -> float:
    """How long it ran, or has been running."""
    begin = session.started_at or session.created_at
    end = session.ended_at or session.observed_at
    return elapsed_s(begin, end) if end else 0.0


def ago(at: str | None, now: str) -> str:
    return spell(elapsed_s(at, now)) + " ago" if at else "earlier"


def size(count: int) -> str:
    """120 bytes, 3.4 KB, 1.2 MB."""
    if count < 1000:
        return "1 byte" if count == 1 else f"{count} bytes"
    return f"{count / 1000:.1f} KB" if count < 999_950 else f"{count / 1_000_000:,.1f} MB"


def lines_and_bytes(lines: int, count: int) -> str:
    return f"{lines:,} line{'' if lines == 1 else 's'}, {size(count)}"


def cursor(offsets: dict[str, int]) -> str:
    """A stream that it does not name is read from its beginning: one that said nothing need not be named."""
    return ",".join(f"{stream}:{offset}" for stream, offset in offsets.items() if offset) or "0"


def waits(session: Snapshot) -> str:
    """The input that the command waits for, with the evidence; empty if there is none."""
    found: dict[str, Any] | None = session.needs_input
    if not found:
        return ""
    evidence = " and ".join(_EVIDENCE.get(each, str(each)) for each in found.get("evidence") or ())
    kind = "a secret" if found.get("secret") else "input"
    asked = f" at {quoted(found['line'], 80)}" if found.get("line") else ""
    return f"waits for {kind}{asked}" + (f" ({evidence})" if evidence else "")


def why(woke: Woke, pattern: str | None) -> str:
    """Why a wait is over."""
    if woke.reason == "match":
        return f"matched {quoted(woke.match or '')}"
    if woke.reason == "idle":
        return f"quiet for {spell(float(pattern or IDLE_S))}"
    return f"port {pattern} is open" if woke.reason == "port" else ""


def warning(said: str) -> str:
    """The explanation in `name: explanation`, or that of a known name."""
    name, _, explanation = said.partition(": ")
    return explanation or _WARNINGS.get(name, name)


# One session in an answer: its state, the next step, and its facts for programs. Pure.


def status(session: Snapshot, *said: str) -> str:
    """The line about a session: its name, its state, and what else is known."""
    parts = [f"{called(session)} {state_of(session)}", *filter(None, said)]
    if session.exit is None:
        parts += filter(None, [readiness(session), waits(session)])
    elif session.exit.survivors:
        count = len(session.exit.survivors) + session.exit.survivors_more
        ended = "are being ended" if session.stopping else f"still run, {call('stop', ids=session.id)} ends them"
        parts.append(f"{count} of its processes {ended}")
    return ", ".join(parts)


def readiness(session: Snapshot) -> str:
    found: dict[str, Any] | None = session.metadata.get("ready")
    if not found:
        return ""
    if found.get("ok"):
        return f"ready on {str(found.get('probe')).replace(':', ' ', 1)}"
    return f"not ready: {quoted(str(found['detail']), 160)}" if found.get("ok") is False else "not ready yet"


def next_step(session: Snapshot) -> str:
    """The next call for a session that still runs; empty for one that has ended."""
    if session.state in FINAL_STATES:
        return ""
    name = ref(session)
    if session.needs_input or session.metadata.get("input_state") == "at_prompt":
        return call("send", id=name, text="...", **({} if session.tty else {"submit": True}))
    if session.tty:
        return f"{call('send', id=name, text='...')} or {call('wait', ids=name)}"
    ready = session.metadata.get("ready")
    if not ready:
        return call("wait", ids=name)
    return call("wait", ids=name, until="ready") if ready.get("ok") is None else ""


def facts(session: Snapshot, **more: Any) -> dict[str, Any]:
    """The facts of a session, for programs."""
    found: dict[str, Any] = {
        "id": session.id,
        "name": session.name,
        "status": session.status,
        "state": session.state,
        "exit": None if session.exit is None else _exit(session),
        "cursor": session.cursor,
    }
    if session.needs_input:
        found["needs_input"] = session.needs_input
    if "ready" in session.metadata:
        found["ready"] = session.metadata["ready"]
    return {**found, **more}


def _exit(session: Snapshot) -> dict[str, Any]:
    exit = session.exit
    assert exit is not None
    survivors = [{"pid": each.get("pid"), "command": each.get("command")} for each in exit.survivors]
    return {
        "code": exit.code,
        "signal": exit.signal,
        "cause": exit.cause,
        "by": exit.by,
        "text": ending(session),
        "survivors": survivors,
    }


# Errors that teach: what is wrong, then the call that works, in one line.


_NAMED = 8


async def problem_answer(tools: Toolset, tool: Tool, problem: HoldfastError) -> Answer:
    text = await _worded(tools, tool, problem)
    # Nothing about other owners, not even their ids.
    return Answer(text, {"error": {"code": problem.code, "message": text}}, error=True)


async def _worded(tools: Toolset, tool: Tool, problem: HoldfastError) -> str:
    if isinstance(problem, (errors.NotFound, errors.Removed)):
        missing = problem.ref if isinstance(problem, errors.NotFound) else problem.id
        return _not_found(missing, await tools.hf.sessions(owner=tools.owner, all=True))
    if isinstance(problem, errors.AmbiguousId):
        return f"{quoted(problem.ref)} fits {', '.join(problem.candidates[:_NAMED])}; give more characters of the id"
    if isinstance(problem, errors.NameTaken):
        return await _name_taken(tools, problem)
    if isinstance(problem, errors.KeyReused):
        holder = await _mine(tools, problem.holder)
        runs = f", which runs as {holder.id}" if holder else ""
        return f"the key belongs to another command{runs}; run(..., replace=true) stops it first, or give another key"
    if isinstance(problem, errors.BadKey):
        near = f"did you mean {' or '.join(problem.suggestions[:3])}? " if problem.suggestions else ""
        return (
            f"no key {quoted(problem.key)}; {near}put text into text=; keys have names such as Enter, C-c, M-x, Up, F5"
        )
    if isinstance(problem, errors.BadArgument):
        return _bad_argument(tool, problem)
    if isinstance(problem, errors.DiskFull):
        return f"the disk is full, {size(problem.free)} are free: nothing was started; free some space and try again"
    if isinstance(problem, errors.SpawnError):
        return f"{problem.message}; check the program and cwd"
    session = await _known(tools, problem)
    return _plain(problem) if session is None else _about(session, tool, problem)


def _plain(problem: HoldfastError) -> str:
    """In the library's words; a fix for people at a shell does not help an agent."""
    return problem.message if "`hold" in problem.fix else f"{problem.message}; {problem.fix}"


def _about(session: Snapshot, tool: Tool, problem: HoldfastError) -> str:
    it, name = called(session), ref(session)
    if isinstance(problem, (errors.SessionEnded, errors.AlreadyEnded)):
        when = ago(session.ended_at, session.observed_at)
        return f"{it} has ended: {ending(session)}, {when}; {call('read', id=name)} still works, run starts it again"
    if isinstance(problem, errors.StdinClosed):
        return f'stdin of {it} is closed; start it with run(..., stdin="open") or run(..., tty=true)'
    if isinstance(problem, errors.NotATty):
        instead = call("read", id=name) if tool.name == "screen" else call("send", id=name, text="...")
        return f"{it} is not a terminal; {instead}, or start it with run(..., tty=true)"
    if isinstance(problem, errors.RunnerGone):
        if session.state in FINAL_STATES:
            return f"{it} has ended: {ending(session)}; {call('read', id=name)} still works, run starts it again"
        return (
            f"the supervisor of {it} is gone, its command still runs: it takes no input and nothing reports its end; "
            f"{call('read', id=name)} gives what was kept, {call('stop', ids=name)} ends it with its processes"
        )
    if isinstance(problem, errors.Unreachable):
        return (
            f"the supervisor of {it} is alive and does not answer; try again, {call('read', id=name)} works without "
            f"it, {call('stop', ids=name)} ends the command without it"
        )
    return _plain(problem)


async def _known(tools: Toolset, problem: HoldfastError) -> AsyncSession | None:
    id = problem.facts.get("id")
    return await _mine(tools, id if isinstance(id, str) else None)


def _not_found(missing: str, sessions: Sequence[Snapshot]) -> str:
    live = [each for each in sessions if each.state not in FINAL_STATES]
    names = {word: each for each in sessions for word in (each.id, each.name) if word}
    near = list(dict.fromkeys(called(names[word]) for word in get_close_matches(missing, names, 3)))
    said = [f"no session {quoted(missing)}"]
    if near:
        said.append(f"nearest is {' or '.join(near)}")
    if live:
        more = ", ..." if len(live) > _NAMED else ""
        said.append(f"running: {', '.join(label(ref(each), 40) for each in live[-_NAMED:])}{more}")
    else:
        said.append("no session of yours is running")
    said.append("list(all=true) shows all" if len(sessions) > len(live) else "run starts one")
    return "; ".join(said)


async def _name_taken(tools: Toolset, problem: errors.NameTaken) -> str:
    holder = await _mine(tools, problem.holder)
    if holder is None:
        return f"the name {quoted(problem.name)} is taken; choose another"
    return (
        f"the name {quoted(problem.name)} is used by the running session {holder.id}; use that session, choose "
        "another name, or run(..., replace=true) without key stops it first"
    )


async def _mine(tools: Toolset, id: str | None) -> AsyncSession | None:
    try:
        return await tools.find(id) if id else None
    except errors.HoldfastError:
        return None


def _bad_argument(tool: Tool, problem: errors.BadArgument) -> str:
    """In the tool's own names for things."""
    name = problem.argument
    known = [each.name for each in tool.parameters]
    if name not in known and f"{name}_s" in known:
        name = f"{name}_s"
    if name == "pattern" and name not in known and "search" in known:
        name = "search"
    return f"{name}: {problem.why}; {problem.fix}"


# The tools as a model sees them. They are part of every request of an agent: every word costs tokens.


WAIT_MAX_S = 600
BUDGET = 8000
BUDGET_MAX = 100_000

STREAMS = ("stdout", "stderr", "tty")

_ID = Parameter("id", STRING, "id, prefix, name or last", required=True, aliases=("ids",))

RUN = Tool(
    "run",
    "Run a command. If it ends within wait_s you get its result; else it keeps running in the background and you get "
    "its output so far; other tools take its id or name. Start servers with name and ready. To learn of its end, wait.",
    (
        Parameter("command", WORDS, "shell line, or argv list", required=True),
        Parameter("wait_s", NUMBER, default=10, minimum=0, maximum=WAIT_MAX_S),
        Parameter("name", STRING),
        Parameter("cwd", STRING),
        Parameter("env", PAIRS, "NAME=VALUE"),
        Parameter("tty", BOOLEAN, "for REPLs, full-screen programs", default=False),
        Parameter("stdin", STRING, default="closed", choices=("closed", "open")),
        Parameter("timeout_s", NUMBER, "time limit", above=0),
        Parameter("idle_timeout_s", NUMBER, "time limit without output", above=0),
        Parameter("ready", STRING, "return when ready: port:3000, http:URL, line:REGEX"),
        Parameter("watch", STRINGS, "signal lines with this text or /regex/"),
        Parameter("notify", STRING, "signal its end", default="auto", choices=("auto", "exit", "failure", "never")),
        Parameter("key", STRING, "at most one runs under it"),
        Parameter("replace", BOOLEAN, "stop the holder of key or name first", default=False),
    ),
    destroys=True,
    opens=True,
)
READ = Tool(
    "read",
    "Output of a session, running or ended. Without since, tail and search: what is new since you last saw it.",
    (
        _ID,
        Parameter("since", STRING, "cursor, such as stdout:2048; 0 is the beginning"),
        Parameter("tail", INTEGER, "last lines", minimum=1, maximum=10_000),
        Parameter("search", STRING, "regex, newest matches first; (?i) ignores case"),
        Parameter("context", INTEGER, "lines around a match", default=2, minimum=0, maximum=50),
        Parameter("stream", STRING, choices=STREAMS),
        Parameter("budget", INTEGER, "characters", default=BUDGET, minimum=200, maximum=BUDGET_MAX),
        Parameter("raw", BOOLEAN, "not folded", default=False),
    ),
    reads=True,
)
# A session that is silent for this long is idle.
IDLE_S = 2.0
# What `pattern` of `wait` is, for each condition that takes a value; `why` says that it came true.
PATTERNS = {
    "match": "a regex over unseen output",
    "idle": f"quiet seconds (default {IDLE_S:g})",
    "port": "a port number",
}
WAIT = Tool(
    "wait",
    "Block until the first of these sessions ends or meets the condition; says which, why, and what is new. An end "
    "always ends the wait. After timeout_s they still run.",
    (
        Parameter("ids", STRINGS, required=True, aliases=("id",)),
        Parameter("until", STRING, default="exit", choices=tuple(CONDITIONS)),
        Parameter("pattern", STRING, "; ".join(f"{until}: {what}" for until, what in PATTERNS.items())),
        Parameter("timeout_s", NUMBER, default=60, minimum=0, maximum=WAIT_MAX_S),
    ),
    reads=True,
)
SEND = Tool(
    "send",
    "Type into a session (tty=true or stdin=open); returns what came back: new output, or the changed rows of a "
    "terminal. Give one of text, keys, paste, eof.",
    (
        _ID,
        Parameter("text", STRING),
        Parameter("keys", STRINGS, "Enter, C-c, Up, Escape, F5"),
        Parameter("paste", STRING),
        Parameter("eof", BOOLEAN, "end of input"),
        Parameter("submit", BOOLEAN, "Enter after text or paste; default: after text on a terminal"),
        Parameter("wait_s", NUMBER, default=1, minimum=0, maximum=WAIT_MAX_S),
    ),
    # What is typed into a shell is a command like any other.
    destroys=True,
    opens=True,
)
SCREEN = Tool(
    "screen",
    "The screen of a terminal session, cursor as a block; says whether it waits for input.",
    (_ID, Parameter("history", INTEGER, "rows above the screen", default=0, minimum=0, maximum=1000)),
    reads=True,
)
STOP = Tool(
    "stop",
    "End sessions with all their processes; says how they ended and what survived.",
    (
        Parameter("ids", STRINGS, aliases=("id",)),
        Parameter("all", BOOLEAN, "all of yours", default=False),
        Parameter("grace_s", NUMBER, "until it is killed", default=5, minimum=0, maximum=WAIT_MAX_S),
    ),
    destroys=True,
    repeats=True,
)
LIST = Tool(
    "list",
    "Your sessions, one line each: id, name, state, command, unread output.",
    (Parameter("all", BOOLEAN, "ended ones too", default=False),),
    reads=True,
)
TOOLS = (RUN, READ, WAIT, SEND, SCREEN, STOP, LIST, SIGNALS)
