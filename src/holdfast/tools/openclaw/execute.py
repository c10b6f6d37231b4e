"""`exec`: run a command, wait for a while, and report its state."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
from hashlib import sha256
from typing import TYPE_CHECKING

from ...errors import (
    BadArgument,
    Busy,
    HoldfastError,
    KeyReused,
    NotAllowed,
    NotFound,
    Removed,
    Superseded,
    Unreachable,
)
from ...model import FINAL_STATES, LOST
from ...places.kinds import LOCAL, unsupported
from ...sessions.claims import Claim
from ..base import Answer
from ..environment import choosing_there, chosen_shell
from ..owner_sessions import has_survivors
from . import runs, settings, spawn, views, words
from .runs import SETTLE_MS, Withdrawn
from .settings import Allow, Deny, Request, Unavailable
from .settings import Pending as AskedFor
from .spawn import CHILD, PTY, SpawnInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from ...sessions.aio import AsyncSession
    from .runs import ManagedRun
    from .toolset import OpenClaw


# The shell of a command, without its start-up files.


# Two exit at once, one has another language.
_UNFIT = ("false", "nologin", "fish")
_FLAGS = {"bash": ("--noprofile", "--norc", "-c"), "zsh": ("-f", "-c")}


def shell_words(environ: Mapping[str, str]) -> list[str]:
    """The words before the command, which follows as one argument."""
    shell = chosen_shell(environ, lambda name: name not in _UNFIT)
    return [shell, *_FLAGS.get(os.path.basename(shell), ("-c",))]


# Its arguments are the directories to put in front of PATH, and the command.
_CHOOSE = f"""{choosing_there(_UNFIT, fit=False)}
[ -z "$1" ] || export PATH="$1${{PATH:+:$PATH}}"
case ${{_hf_shell##*/}} in
{chr(10).join(f'{name}) exec "$_hf_shell" {" ".join(flags)} "$2" ;;' for name, flags in _FLAGS.items())}
*) exec "$_hf_shell" -c "$2" ;;
esac
"""


def words_there(path_prepend: Sequence[str]) -> list[str]:
    """As `shell_words`, for another place. The choosing shell is replaced by the chosen one."""
    return ["/bin/sh", "-c", _CHOOSE, "sh", ":".join(path_prepend)]


# The call.


_SHELL_KINDS = {126: "shell-not-executable", 127: "shell-command-not-found"}


async def execute(tools: OpenClaw, **asked: Any) -> Answer:
    command: str = asked["command"]
    if not command.strip():
        return failed(words.NO_COMMAND, "bad-argument")
    if command.split(None, 1)[0] == "/approve":
        return failed(words.NO_APPROVING, NotAllowed.code)
    overrides: dict[str, str] = asked["env"] or {}
    place = _place(tools.sandbox, asked["host"], asked["node"])
    # Another place checks the directory itself and runs nothing if it is unusable.
    cwd = _directory(tools.cwd, asked["workdir"] or "") if place == LOCAL else asked["workdir"] or None
    spawn.check_variables(overrides, sandbox=place != LOCAL)
    refusal = await _refused(tools, asked, command, cwd or "", place, overrides)
    if refusal is not None:
        return refusal
    holder = await _with_key(tools, asked["key"])
    if holder is not None and tools.kept.get(holder.id, views.ROW) != views.REMOVED:
        return await running(tools, holder, reused=True)
    if holder is not None:
        await _extinct(tools, holder)
    warning, wait_s = _waits(tools, asked)
    input = _input(tools, asked, command, cwd, place, overrides, foreground=wait_s != 0)
    try:
        run = await tools.supervisor.spawn(input, wait_s=wait_s)
    except KeyReused:
        # Another command was started with the same key meanwhile.
        holder = await _with_key(tools, asked["key"])
        if holder is None:
            # The session that holds it belongs to another owner.
            raise KeyReused(asked["key"], None) from None
        return await running(tools, holder, reused=True)
    except HoldfastError as problem:
        return failed(str(problem), problem.code, failureKind="runtime-error")
    if isinstance(run, Withdrawn):
        return failed(
            f"{words.ABORTED}: everything of this agent was cancelled", Superseded.code, failureKind="aborted"
        )
    if run.reused:
        return await running(tools, run.session, reused=True)
    answer = await _first_answer(tools, run)
    return answer if warning is None else Answer(f"{warning}\n{answer.text}", answer.data, error=answer.error)


async def _first_answer(tools: OpenClaw, run: ManagedRun) -> Answer:
    session = run.session
    try:
        await tools.with_progress([session], run.first_wait())
        session = run.session
    except Unreachable:
        await session.refresh()
    if session.state in FINAL_STATES:
        if runs.BACKGROUND_LABEL in session.labels:
            return await running(tools, session)
        if (await session.records())["spec"]["notify"] != "auto" or session.state == LOST:
            # With `auto` the runner has recorded that the call reported the end.
            if not has_survivors(session):
                tools.kept.put(session.id, views.ROW, views.REPORTED)
            await tools.acknowledge(session)
        return await ended(tools, session)
    if runs.BACKGROUND_LABEL not in session.labels:
        try:
            await session.update(labels={**session.labels, runs.BACKGROUND_LABEL: views.YIELDED})
        except HoldfastError:
            tools.kept.put(session.id, views.ROW, views.YIELDED)
    return await running(tools, session)


def _waits(tools: OpenClaw, asked: dict[str, Any]) -> tuple[str | None, float | None]:
    """A warning, and the seconds that the call waits; None waits until the end."""
    if "process" not in tools.offered:
        return (words.NO_PROCESS_TOOL if asked["background"] or asked["yieldMs"] is not None else None), None
    if asked["background"]:
        return None, 0.0
    wanted = tools.settings.yield_ms if asked["yieldMs"] is None else asked["yieldMs"]
    return None, settings.yield_ms(wanted) / 1000


def _input(
    tools: OpenClaw,
    asked: dict[str, Any],
    command: str,
    cwd: str | None,
    place: str,
    overrides: dict[str, str],
    *,
    foreground: bool,
) -> SpawnInput:
    timeout_s = tools.settings.timeout_s if asked["timeout"] is None else asked["timeout"]
    pty = bool(asked["pty"])
    line: dict[str, Any] = {"pty_command": command} if pty else {"shell_command": command}
    if not pty:
        line["stdin_mode"] = "pipe-open" if asked["stdin"] == "open" else "pipe-closed"
    elif asked["stdin"] == "open":
        raise BadArgument("stdin", "cannot be combined with pty, which is both input and output", "leave it out")
    notify = tools.settings.notify_on_exit if asked["notifyOnExit"] is None else _SPELLED[asked["notifyOnExit"]]
    labels = {} if foreground else {runs.BACKGROUND_LABEL: "asked"}
    prepend = tools.settings.path_prepend
    if place == LOCAL:
        words, env = shell_words(tools.environ), spawn.environment(tools.environ, overrides, prepend)
    else:
        words, env = words_there(prepend), {**overrides, **spawn.MARK}
    return SpawnInput(
        mode=PTY if pty else CHILD,
        **line,
        shell=words,
        place=place,
        session_id=tools.owner,
        scope_key=tools.owner,
        cwd=cwd,
        env=env,
        exact_env=place == LOCAL,
        timeout_ms=_limit_ms(timeout_s),
        no_output_timeout_ms=_limit_ms(asked["noOutputTimeout"] or 0),
        capture_output=False,
        labels=labels,
        notify="never" if not notify else "failure" if notify == "failure" else "auto" if foreground else "exit",
        key=_claimed(tools.owner, asked["key"]) if asked["key"] else None,
        metadata={"caller": runs.caller()} if foreground else None,
        oom_score_adj=tools.settings.oom_score_adj,
    )


def _limit_ms(limit_s: float) -> int:
    """Only 0 means no limit."""
    return max(1, round(limit_s * 1000)) if limit_s else 0


def _claimed(owner: str, key: str) -> str:
    """The key in the home: separate for each owner, and short."""
    return "openclaw:" + sha256(json.dumps([owner, key]).encode()).hexdigest()


_SPELLED = {"true": True, "false": False, "failure": "failure"}


def _directory(base: str, path: str) -> str:
    """The absolute directory. It is checked before anything runs."""
    path = os.path.abspath(os.path.join(base, os.path.expanduser(path)))
    if not os.path.isdir(path):
        raise BadArgument("workdir", f"{path} is not a directory", "give one that exists; nothing was run")
    if not os.access(path, os.X_OK):
        raise BadArgument("workdir", f"{path} cannot be entered", "give another; nothing was run")
    return path


def _place(sandbox: str | None, host: str | None, node: str | None) -> str:
    if host == "node":
        raise unsupported(f"node:{node or ''}")
    if node is not None:
        raise BadArgument("node", "can only be given with host node", 'give host:"node" too')
    if host == "gateway":
        return LOCAL
    if host == "sandbox" and sandbox is None:
        raise unsupported("sandbox")
    return sandbox or LOCAL


def _host(place: str) -> str:
    """The place in the agent's words."""
    return "gateway" if place == LOCAL else "sandbox"


async def _refused(
    tools: OpenClaw, asked: dict[str, Any], command: str, cwd: str, place: str, overrides: dict[str, str]
) -> Answer | None:
    """The policy's answer, unless it allows the command."""
    request = Request(
        command=command,
        cwd=cwd,
        env_names=tuple(sorted(overrides)),
        place=place,
        elevated=bool(asked["elevated"]),
        security=settings.stricter(tools.settings.security, asked["security"]),
        ask=settings.more_asking(tools.settings.ask, asked["ask"]),
    )
    verdict = await _decided(tools, request)
    if isinstance(verdict, Allow):
        if verdict.approval is not None:
            if verdict.approval != request.id:
                why = "what was approved is not what is asked now"
                return failed(f"exec was not allowed: {why}; nothing has run.", NotAllowed.code)
            spawn.check_variables(overrides, approved=True)
        return None
    if isinstance(verdict, Deny):
        return failed(verdict.text, NotAllowed.code)
    if isinstance(verdict, Unavailable):
        data = {
            "status": "approval-unavailable",
            "reason": verdict.reason,
            "host": _host(place),
            "command": command,
            "cwd": cwd,
        }
        return Answer(
            f"Approval is needed and no person can be asked: {verdict.reason}. Nothing has run.", data, error=True
        )
    assert isinstance(verdict, AskedFor)
    pending: dict[str, Any] = {
        "status": "approval-pending",
        "approvalId": request.id,
        "approvalSlug": request.slug,
        "expiresAtMs": verdict.expires_at_ms,
        "host": _host(place),
        "command": command,
        "cwd": cwd,
    }
    return Answer(f"Approval is pending ({request.slug}). Nothing has run; a person decides.", pending)


async def _decided(tools: OpenClaw, request: Request) -> settings.Verdict:
    allowed = tools.settings.allowlist
    path = os.pathsep.join([*tools.settings.path_prepend, tools.environ.get("PATH") or os.defpath])
    listed = settings.by_list(request, allowed, path if request.place == LOCAL else None)
    if listed is not None:
        return listed
    if tools.policy is None:
        return settings.without_hook(request, allowed)
    decided = tools.policy(request)
    return await decided if inspect.isawaitable(decided) else decided


async def _with_key(tools: OpenClaw, key: str | None) -> AsyncSession | None:
    """The live run that holds this key."""
    id = Claim(tools.hf.home, "key", _claimed(tools.owner, key)).peek() if key else None
    if id is None:
        return None
    try:
        holder = await tools.find(id)
    except (NotFound, Removed):
        return None
    return None if holder.state in FINAL_STATES else holder


async def _extinct(tools: OpenClaw, removed: AsyncSession) -> None:
    """Wait for a removed run to end: until then its key is not free, and neither is what it holds (a port, say)."""
    longest_s = (tools.settings.kill_grace_ms + SETTLE_MS) / 1000
    with contextlib.suppress(Unreachable):
        await removed.wait(extinct=True, timeout=longest_s)
    if removed.state not in FINAL_STATES:
        raise Busy(f"the removed session {runs.run_id(removed)} with the same key has not ended yet")


async def running(tools: OpenClaw, session: AsyncSession, *, reused: bool = False) -> Answer:
    spec = await runs.limits(session)
    at = views.timeout_at_ms(session, spec)
    tail, cut = await views.last_chars(session, settings.TAIL_CHARS)
    data: dict[str, Any] = {
        "status": "running",
        "sessionId": runs.run_id(session),
        "pid": session.pid,
        "startedAt": runs.at_ms(session.started_at),
        "cwd": session.cwd,
        "tail": tail,
        "timeoutAtMs": at,
        "cursor": session.cursor,
        **({"reused": True} if reused else {}),
    }
    left_s = None if at is None else max(0, at - views.now_ms()) / 1000
    in_reach = not reused or session.state in FINAL_STATES or views.is_backgrounded(tools, session)
    text = words.RUNS_ON if in_reach else words.IN_THE_FOREGROUND
    deadline = words.deadline(spec.get("timeout"), left_s)
    said = [text.format(session=data["sessionId"], pid=session.pid, deadline=deadline)]
    if tail.strip():
        heading = words.END_OF_OUTPUT_SO_FAR if cut else words.OUTPUT_SO_FAR
        said.append(f"{heading}\n{tail}".rstrip("\r\n"))
    return Answer("\n\n".join(said), data)


async def ended(tools: OpenClaw, session: AsyncSession) -> Answer:
    """The result of a finished run, for the call that waited for it."""
    output = await views.aggregated(session, tools.settings.aggregated_chars)
    shown, omitted = output.text, output.omitted
    name = runs.run_id(session)
    outcome, more = _outcome(session, await runs.limits(session))
    data: dict[str, Any] = {
        "status": "failed" if more else "completed",
        **views.ended_facts(session),
        "durationMs": views.runtime_ms(session),
        "aggregated": shown,
        "totalChars": output.chars,
        "cursor": output.cursor,
        "cwd": session.cwd,
        **more,
    }
    if omitted or output.discarded or "survivors" in data:
        data["sessionId"] = name
    notes = [words.DISCARDED] * output.discarded + [words.OMITTED_OF.format(session=name)] * omitted
    shown = "\n".join([*notes, *([shown] if shown else [])])
    said = [shown.rstrip("\r\n")] if shown.strip() else [] if outcome else [words.NO_OUTPUT]
    said += [outcome] if outcome else []
    if "survivors" in data:
        said.append(f"(session {name}) " + views.left_behind(session))
    return Answer("\n\n".join(said), data, error=data["status"] == "failed")


def _outcome(session: AsyncSession, spec: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The outcome in words, and the data of a failure. A command that exited by itself is no failure."""
    exit, why = session.exit, runs.reason(session)
    assert exit is not None
    if why == runs.OVERALL_TIMEOUT:
        return words.timed_out(spec.get("timeout")), {"failureKind": "overall-timeout"}
    if why == runs.NO_OUTPUT_TIMEOUT:
        return words.silent_too_long(spec.get("idle_timeout")), {"failureKind": "no-output-timeout"}
    if session.state == LOST and why == runs.MANUAL_CANCEL:
        return words.ABORTED, {"failureKind": "aborted"}
    if session.state == LOST:
        return words.LOST.format(session=runs.run_id(session)), {"failureKind": "runtime-error", "error": "runner-gone"}
    if exit.signal is not None:
        return words.by_signal(exit.signal, exit.by, exit.oom), {"failureKind": "signal"}
    if why == runs.MANUAL_CANCEL:
        by = f" for {exit.by}" if exit.by else ""
        return f"Command was stopped{by} and exited with code {exit.code}", {"failureKind": "aborted"}
    said = f"(Command exited with code {exit.code})" if exit.code else ""
    kind = _SHELL_KINDS.get(exit.code or 0)
    return said, {"failureKind": kind} if kind else {}


def failed(text: str, code: str, **more: Any) -> Answer:
    return Answer(text, {"status": "failed", "error": code, **more}, error=True)
