"""`exec`: run a command, wait a while, and tell how it stands."""

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
    PlaceUnsupported,
    Superseded,
    Unreachable,
)
from ...model import FINAL_STATES, LOST
from ...places import LOCAL
from ..answer import Answer
from . import hardening, policy, reading, rows, runs, settings, shell, texts
from .policy import Allow, Deny, Request, Unavailable
from .policy import Pending as AskedFor
from .scopes import label
from .spawning import CHILD, PTY, SETTLE_MS, SpawnInput
from .supervisor import Withdrawn

if TYPE_CHECKING:
    from typing import Any

    from ...host.aio import AsyncSession
    from .managed import ManagedRun
    from .toolset import OpenClaw

_SHELL_KINDS = {126: "shell-not-executable", 127: "shell-command-not-found"}


async def execute(tools: OpenClaw, **asked: Any) -> Answer:
    command: str = asked["command"]
    if not command.strip():
        return failed(texts.NO_COMMAND, "bad-argument")
    if command.split(None, 1)[0] == "/approve":
        return failed(texts.NO_APPROVING, NotAllowed.code)
    overrides: dict[str, str] = asked["env"] or {}
    place = _place(tools.sandbox, asked["host"], asked["node"])
    # Away it is found out there whether it can be used, and by whom nothing is run where it cannot.
    cwd = _directory(tools.cwd, asked["workdir"] or "") if place == LOCAL else asked["workdir"] or None
    hardening.check(overrides, sandbox=place != LOCAL)
    refusal = await _refused(tools, asked, command, cwd or "", place, overrides)
    if refusal is not None:
        return refusal
    reused = await _with_key(tools, asked["key"])
    if reused is not None:
        return await running(tools, reused, reused=True)
    await _removed_are_gone(tools, asked["key"])
    warning, wait_s = _waits(tools, asked)
    input = _input(tools, asked, command, cwd, place, overrides, foreground=wait_s != 0)
    try:
        run = await tools.supervisor.spawn(input, wait_s=wait_s)
    except KeyReused:
        # Somebody else started another command under it in this very moment.
        holder = await _with_key(tools, asked["key"])
        if holder is None:
            # Who bears it is none of this agent's business.
            raise KeyReused(asked["key"], None) from None
        return await running(tools, holder, reused=True)
    except HoldfastError as problem:
        return failed(str(problem), problem.code, failureKind="runtime-error")
    if isinstance(run, Withdrawn):
        return failed(
            f"{texts.ABORTED}: everything of this agent was cancelled", Superseded.code, failureKind="aborted"
        )
    if run.reused:
        return await running(tools, run.session, reused=True)
    answer = await _first_answer(tools, run)
    return answer if warning is None else Answer(f"{warning}\n{answer.text}", answer.data, error=answer.error)


async def _first_answer(tools: OpenClaw, run: ManagedRun) -> Answer:
    session = run.session
    try:
        await tools.waiting([session], run.first_wait())
        session = run.session
    except Unreachable:
        await session.refresh()
    if session.state in FINAL_STATES:
        if runs.BACKGROUND_LABEL in session.labels:
            return await running(tools, session)
        if (await session.records())["spec"]["notify"] != "auto" or session.state == LOST:
            # Else its runner knows that it was told, and a short command costs no write.
            if not (session.exit and session.exit.survivors):
                tools.notes.put(session.id, rows.ROW, rows.TOLD)
            await tools.acknowledge(session)
        return await ended(tools, session)
    if runs.BACKGROUND_LABEL not in session.labels:
        try:
            await session.update(labels={**session.labels, runs.BACKGROUND_LABEL: rows.YIELDED})
        except HoldfastError:
            tools.notes.put(session.id, rows.ROW, rows.YIELDED)
    return await running(tools, session)


def _waits(tools: OpenClaw, asked: dict[str, Any]) -> tuple[str | None, float | None]:
    """A warning, and how many seconds the call waits; None is until the end."""
    if "process" not in tools.offered:
        return (texts.NO_PROCESS_TOOL if asked["background"] or asked["yieldMs"] is not None else None), None
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
        raise BadArgument("stdin", "is not for a PTY, which is both input and output", "leave it out")
    notify = tools.settings.notify_on_exit if asked["notifyOnExit"] is None else _SPELLED[asked["notifyOnExit"]]
    labels = {} if foreground else {runs.BACKGROUND_LABEL: "asked"}
    if asked["key"]:
        labels[runs.KEY_LABEL] = label(asked["key"])
    prepend = tools.settings.path_prepend
    if place == LOCAL:
        words, env = shell.words(tools.environ), hardening.environment(tools.environ, overrides, prepend)
    else:
        words, env = shell.words_there(prepend), {**overrides, **hardening.MARK}
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
    """0 is none, and only 0 is."""
    return max(1, round(limit_s * 1000)) if limit_s else 0


def _claimed(owner: str, key: str) -> str:
    """What the home knows it by: apart from every other owner's, and never too long."""
    return "openclaw:" + sha256(json.dumps([owner, key]).encode()).hexdigest()


_SPELLED = {"true": True, "false": False, "failure": "failure"}


def _directory(base: str, path: str) -> str:
    """Checked before anything runs: nothing may run in the wrong place."""
    path = os.path.abspath(os.path.join(base, os.path.expanduser(path)))
    if not os.path.isdir(path):
        raise BadArgument("workdir", f"{path} is no directory", "give one that exists; nothing was run")
    if not os.access(path, os.X_OK):
        raise BadArgument("workdir", f"{path} may not be entered", "give another; nothing was run")
    return path


def _place(sandbox: str | None, host: str | None, node: str | None) -> str:
    if host == "node":
        raise PlaceUnsupported(f"node:{node or ''}")
    if node is not None:
        raise BadArgument("node", "names a node, and host is another place", 'give host:"node" too')
    if host == "gateway":
        return LOCAL
    if host == "sandbox" and sandbox is None:
        raise PlaceUnsupported("sandbox")
    return sandbox or LOCAL


def _host(place: str) -> str:
    """The place as the agent would ask for it."""
    return "gateway" if place == LOCAL else "sandbox"


async def _refused(
    tools: OpenClaw, asked: dict[str, Any], command: str, cwd: str, place: str, overrides: dict[str, str]
) -> Answer | None:
    """What the policy says, unless it lets the command run."""
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
            hardening.check(overrides, approved=True)
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
            f"Approval is needed and nobody can be asked: {verdict.reason}. Nothing has run.", data, error=True
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


async def _decided(tools: OpenClaw, request: Request) -> policy.Verdict:
    allowed = tools.settings.allowlist
    path = os.pathsep.join([*tools.settings.path_prepend, tools.environ.get("PATH") or os.defpath])
    listed = policy.by_list(request, allowed, path if request.place == LOCAL else None)
    if listed is not None:
        return listed
    if tools.policy is None:
        return policy.without_hook(request, allowed)
    decided = tools.policy(request)
    return await decided if inspect.isawaitable(decided) else decided


async def _with_key(tools: OpenClaw, key: str | None) -> AsyncSession | None:
    """The run that lives under this key."""
    if not key:
        return None
    found = [each for each in await _under_key(tools, key) if not _is_removed(tools, each)]
    return next((each for each in found if each.state not in FINAL_STATES), None)


async def _removed_are_gone(tools: OpenClaw, key: str | None) -> None:
    """A run that was removed is out of the agent's reach, and may need a while to end: until then its key is not free,
    and what it holds (a port, say) is not either."""
    longest_s = (tools.settings.kill_grace_ms + SETTLE_MS) / 1000
    for each in await _under_key(tools, key) if key else ():
        if not _is_removed(tools, each):
            continue
        with contextlib.suppress(Unreachable):
            await each.wait(extinct=True, timeout=longest_s)
        if each.state not in FINAL_STATES:
            raise Busy(f"the run that was removed, session {runs.run_id(each)} with the same key, has not ended yet")


async def _under_key(tools: OpenClaw, key: str) -> list[AsyncSession]:
    return [each for each in await rows.of_scope(tools) if each.labels.get(runs.KEY_LABEL) == label(key)]


def _is_removed(tools: OpenClaw, session: AsyncSession) -> bool:
    return bool(tools.notes.get(session.id, rows.ROW) == rows.REMOVED)


async def running(tools: OpenClaw, session: AsyncSession, *, reused: bool = False) -> Answer:
    spec = await runs.limits(session)
    at = rows.timeout_at_ms(session, spec)
    tail, cut = await reading.last_chars(session, settings.TAIL_CHARS)
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
    left_s = None if at is None else max(0, at - rows.now_ms()) / 1000
    in_reach = not reused or session.state in FINAL_STATES or rows.is_backgrounded(tools, session)
    word = texts.still_running if in_reach else texts.in_the_foreground
    said = [word(data["sessionId"], session.pid, texts.deadline(spec.get("timeout"), left_s))]
    if tail.strip():
        said.append(f"{texts.output_so_far(cut)}\n{tail}".rstrip("\r\n"))
    return Answer("\n\n".join(said), data)


async def ended(tools: OpenClaw, session: AsyncSession) -> Answer:
    """How it went, for a call that saw the end."""
    output = await reading.aggregated(session, tools.settings.aggregated_chars, tools.notes)
    shown, omitted = output.text, output.omitted
    name = runs.run_id(session)
    outcome, more = _outcome(session, await runs.limits(session))
    data: dict[str, Any] = {
        "status": "failed" if more else "completed",
        **rows.ended_facts(session),
        "durationMs": rows.runtime_ms(session),
        "aggregated": shown,
        "totalChars": output.chars,
        "cursor": output.cursor,
        "cwd": session.cwd,
        **more,
    }
    if omitted or output.discarded or "survivors" in data:
        data["sessionId"] = name
    notes = [texts.DISCARDED] * output.discarded + [texts.omitted(name)] * omitted
    shown = "\n".join([*notes, *([shown] if shown else [])])
    said = [shown.rstrip("\r\n")] if shown.strip() else [] if outcome else [texts.NO_OUTPUT]
    said += [outcome] if outcome else []
    if "survivors" in data:
        said.append(f"(session {name}) " + rows.left_behind(session))
    return Answer("\n\n".join(said), data, error=data["status"] == "failed")


def _outcome(session: AsyncSession, spec: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """In words, and what a failure adds; a command that ended by itself adds nothing, whatever its code."""
    exit, why = session.exit, runs.reason(session)
    assert exit is not None
    if why == runs.OVERALL_TIMEOUT:
        return texts.timed_out(spec.get("timeout")), {"failureKind": "overall-timeout"}
    if why == runs.NO_OUTPUT_TIMEOUT:
        return texts.silent_too_long(spec.get("idle_timeout")), {"failureKind": "no-output-timeout"}
    if session.state == LOST and why == runs.MANUAL_CANCEL:
        return texts.ABORTED, {"failureKind": "aborted"}
    if session.state == LOST:
        return texts.lost(runs.run_id(session)), {"failureKind": "runtime-error", "error": "runner-gone"}
    if exit.signal is not None:
        return texts.by_signal(exit.signal, exit.by, exit.oom), {"failureKind": "signal"}
    if why == runs.MANUAL_CANCEL:
        by = f" for {exit.by}" if exit.by else ""
        return f"Command was stopped{by} and exited with code {exit.code}", {"failureKind": "aborted"}
    said = f"(Command exited with code {exit.code})" if exit.code else ""
    kind = _SHELL_KINDS.get(exit.code or 0)
    return said, {"failureKind": kind} if kind else {}


def failed(text: str, code: str, **more: Any) -> Answer:
    return Answer(text, {"status": "failed", "error": code, **more}, error=True)
