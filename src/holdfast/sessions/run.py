"""Start, run and restart a session: claim its name and key, launch its runner, wait for its end or show its output."""

from __future__ import annotations

import errno
import os
import time

from ..core import wire
from ..core.processes import same as same_process
from ..core.processes import time_namespace
from ..errors import (
    BadArgument,
    HoldfastError,
    IdentityMismatch,
    KeyReused,
    NameTaken,
    RunnerGone,
    SessionEnded,
    SpawnError,
    Superseded,
    Unreachable,
)
from ..home import no_space
from ..model import EXITED, FINAL_STATES, seconds
from ..model.options import OPTIONS, SIGNAL_FEATURES
from ..places.kinds import LOCAL, is_away
from .claims import CLAIM_S, Claim, kept_holder, live_holder, name_of
from .observe import Files, Observed, read_end, read_files, unverifiable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence
    from typing import Any, Literal

    from ..model.options import StartOptions
    from .claims import Held
    from .connection import Connection
    from .core import Core
    from .log import Page
    from .start_request import Command, StartRequest

    Lifetime = Literal["detached", "owner", "call"]


# How long a replacement waits for another one, which may have to wait for a stop.
_REPLACE_S = 60.0
# How long the end of a call waits for the runner to confirm that the command lives on.
_OUTLIVE_CALL_S = 0.2
# A run with no other signals than those of its start, which is never queued, and of its end.
_START_AND_END = 2


async def start(core: Core, command: Command, options: StartOptions, *, once: str | None = None) -> Observed:
    """Start a session in the background. `once` is a digest of the request: the key belongs to that request, also after
    the session has ended."""
    if options.get("lifetime") == "call":
        raise BadArgument("lifetime", "`call` works only with run(): start() returns at once", "use run(), or `owner`")
    seen, connection = await start_connected(core, command, options, once=once)
    if connection is not None:
        connection.close()
    _count_listeners(core, seen, options)
    core.collect_when_due(seen.files.id)
    return seen


def _count_listeners(core: Core, seen: Observed, options: StartOptions) -> None:
    """Count the consumers of its signals, and note if signals were asked for and there is no consumer yet."""
    from ..index.queues import listening

    spec = seen.files.spec
    owner = spec.get("owner")
    seen.consumers = listening(core.home, owner, spec.get("kind") or "")
    asked = options.get("notify") in ("exit", "failure") or any(options.get(each) for each in SIGNAL_FEATURES)
    if asked and not seen.consumers:
        whose = "sessions without an owner" if owner is None else f"owner {owner}"
        notes = [*(spec.get("notes") or ()), f"no consumer for signals of {whose} yet; they wait"]
        seen.files.spec = {**spec, "notes": notes}


async def run(
    core: Core,
    command: Command,
    wait: float | str | None,
    options: StartOptions,
    started: Callable[[Observed], None] | None = None,
) -> Observed:
    """Start a session and wait for its end on the connection that started it. Aborting this call ends the wait, and
    with `lifetime="call"` the command. `started` is called as soon as it runs."""
    from .wait import Wait

    limit = None if wait is None else seconds(wait)
    options.setdefault("notify", "auto")
    seen, connection = await start_connected(core, command, options, then=_exit_wait(options, limit))
    id = seen.files.id
    if started is not None:
        started(seen)
    if connection is None:
        await Wait(core, id, timeout=limit).run()
        held = await core.observe(id)
        held.existed = True
        return held
    until = None if limit is None else time.monotonic() + limit
    reply_s, in_time = core.config.hosts_reply_timeout, True
    reply: dict[str, Any] | None
    try:
        try:
            reply = await connection.wait_and_confirm_end(limit, reply_s)
        except Unreachable:
            if until is None or time.monotonic() < until:
                raise
            in_time, seen = False, await core.observe(id)
            # If it ended just after the limit, it is asked once more, so that the confirmation is not lost.
            reply = await connection.confirm_now(reply_s) if seen.state == EXITED else None
        if options.get("lifetime") == "call" and (reply is None or _lives_on(reply)):
            await _outlive_call(connection)
        if reply is None:
            return seen
    except RunnerGone:
        await Wait(core, id, timeout=limit).run()
        return await core.observe(id)
    finally:
        connection.close()
    core.collect_when_due(id)
    status = reply["status"]
    ended = Observed(read_end(core.home, seen.files), status["state"], "its runner answered", live=status)
    # Its end was confirmed before the runner gave up waiting for that.
    confirmed = in_time and options["notify"] == "auto" and not _lives_on(reply)
    ended.nothing_queued = confirmed and status["signals"] == _START_AND_END
    core.note(ended)
    return ended


async def foreground(core: Core, command: Command, options: StartOptions, *, backpressure: bool = True) -> Foreground:
    """Start a session, whose output and end the caller shows. With `backpressure` the command waits before the log's
    cap would cut what was not read. Like every start it may collect old sessions."""
    options.setdefault("notify", "auto")
    seen, connection = await start_connected(
        core, command, options, then=_exit_wait(options, None), backpressure=backpressure
    )
    core.collect_when_due(seen.files.id)
    return Foreground(core, seen, connection)


class Foreground:
    """A run whose caller reads the output while the command runs, and reports its end itself."""

    def __init__(self, core: Core, seen: Observed, connection: Connection | None) -> None:
        self._core = core
        self._connection = connection
        self._reply_s = core.config.hosts_reply_timeout
        self.seen = seen
        # False: a session with the same key was running already.
        self.is_new = connection is not None

    async def pages(self, until: float | None = None) -> AsyncIterator[Page]:
        """The output as it comes, until the command has ended or the monotonic clock shows `until`."""
        from .log import parse_cursor
        from .segments import STREAMS
        from .wait import follow

        # Far from the cap nothing is cut: most runs never report how far they have read.
        quiet_bytes = self.seen.files.spec["log_cap"] // 4
        async for page in follow(self._core, self.seen.files.id, None, None, until=until):
            yield page
            read = parse_cursor(page.cursor, STREAMS)
            if self._connection is not None and sum(read.values()) > quiet_bytes:
                try:
                    await self._connection.has_read(read, self._reply_s)
                except HoldfastError:
                    pass  # its runner is gone; its output is in the log

    async def confirm_end(self) -> None:
        """The caller reports the end: it need not be signalled to the owner."""
        if self._connection is not None:
            try:
                await self._connection.confirm_now(self._reply_s)
            except HoldfastError:
                pass

    async def outlive_call(self) -> None:
        """Keep the command running, also one with `lifetime="call"`."""
        if self._connection is not None:
            await _outlive_call(self._connection)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()


def _lives_on(reply: dict[str, Any]) -> bool:
    """Whether the session still has processes, according to the runner's answer to a wait for its end."""
    return reply["reason"] == "timeout" or bool((reply["status"].get("exit") or {}).get("survivors"))


async def _outlive_call(connection: Connection) -> None:
    """Keep a command with `lifetime="call"` alive when its call returns. A runner that was stopped by a signal reads
    this when it continues, before it sees that the connection was closed."""
    try:
        await connection.request("update", _OUTLIVE_CALL_S, lifetime="detached")
    except (RunnerGone, Unreachable):
        pass


def _exit_wait(options: StartOptions, limit: float | None) -> dict[str, Any]:
    """What a start asks on its own connection. We confirm an end with `notify=auto` that the runner gives us."""
    confirm = options.get("notify") == "auto"
    return {"type": "wait", "id": 0, "exit": True, "confirm": confirm, **({} if limit is None else {"timeout": limit})}


async def start_connected(
    core: Core,
    command: Command,
    options: StartOptions,
    *,
    restarted_from: str | None = None,
    then: dict[str, Any] | None = None,
    backpressure: bool = False,
    once: str | None = None,
) -> tuple[Observed, Connection | None]:
    """A running session, and the connection that started it, on which `then` was already asked. Without a connection
    the holder of the key is returned instead of a second session. With `backpressure` the command waits,
    while that connection is open, before the log's cap would cut what `has_read` has not reported."""
    from .start_request import build

    held: list[Held] = []
    try:
        try:
            request = build(command, options, config=core.config, author=core.author, environ=os.environ)
            request.spec |= {"restarted_from": restarted_from, **({} if once is None else {"request": once})}
            for kind in ("key", "name"):
                if request.spec[kind] is not None:
                    existing = await _claim(core, Claim(core.home, kind, request.spec[kind]), request, held)
                    if existing is not None:
                        existing.existed = True
                        return existing, None
        except OSError as problem:
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                raise no_space(problem.filename or core.home.locks) from None
            raise SpawnError(problem.errno or 0, "request", problem.filename) from None
        return await _send_start(core, request, held, then, backpressure)
    finally:
        for claimed in held:
            claimed.close()


async def _claim(core: Core, claim: Claim, request: StartRequest, held: list[Held]) -> Observed | None:
    """Hold the name or key, or return its holder. With `replace` the former holder is stopped first, unless a later
    replacement already waits. One owner does not replace the session of another."""
    replace = request.replace and (claim.kind == "key" or request.spec["key"] is None)
    ticket = claim.ticket() if replace else 0
    mine = await claim.acquire(core.driver, _REPLACE_S if replace else CLAIM_S)
    held.append(mine)
    if replace and not claim.newest(ticket):
        raise Superseded(claim.text)
    holder = live_holder(core.home, mine.holder)
    spec = request.spec
    if holder is None and "request" in spec and spec["restarted_from"] is None and claim.kind == "key":
        holder = kept_holder(core.home, mine.holder)
    if holder is not None and claim.kind == "name" and name_of(core.home, holder.files.id) != claim.text:
        holder = None  # it was renamed meanwhile
    if holder is not None:
        if replace and spec["owner"] in (None, holder.files.current().get("owner")):
            from .act import stop_or_fail

            await stop_or_fail(core, holder.files.id, grace=None, by=spec["owner"])
        elif claim.kind == "name":
            raise NameTaken(claim.text, holder.files.id)
        elif _same_request(holder.files.spec, spec):
            return holder
        else:
            raise KeyReused(claim.text, holder.files.id)
    mine.set(spec["id"])
    return None


def _same_request(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether the new spec `other` comes from the same request as `one`, or is for the same command."""
    if "request" in other:
        return bool(one.get("request") == other["request"])
    # In another place `cwd` is the resolved directory.
    given = {**one, "cwd": one.get("cwd_given", one.get("cwd")), "place": one.get("place") or LOCAL}
    return all(given.get(part) == other.get(part) for part in ("command", "shell", "cwd", "owner", "place"))


async def _send_start(
    core: Core, request: StartRequest, held: list[Held], then: dict[str, Any] | None, backpressure: bool
) -> tuple[Observed, Connection]:
    from .launch import reach_runner

    spec = request.spec
    spec["endpoint"] = core.endpoint(spec["id"])
    frame = {
        "type": "start",
        "home": core.home.path,
        "spec": spec,
        "env": request.env,
        "claims": len(held),
        "then": then,
        **({"hold": True} if backpressure else {}),  # the wire's name for backpressure
    }
    if spec["timeout"] is not None or spec["ttl"] is not None:
        # The command's time runs from here: a slow start is part of it.
        frame["asked"] = {"monotonic": time.monotonic(), "timens": time_namespace()}
    if spec["people"]["events"]:
        # Messages to people are sent in the user's environment, not in that of the command.
        frame["host_env"] = dict(os.environ)
    if request.input is not None:
        frame["input"] = wire.as_text(request.input)
    descriptors = [claimed.fileno() for claimed in held] + request.fds
    connection = await reach_runner(core, frame, descriptors)
    for claimed in held:
        claimed.set(spec["id"])  # again: a start that took another way has another id
    return await _started(core, spec, connection, confirms=then is not None and then.get("confirm") is True), connection


async def _started(core: Core, spec: dict[str, Any], connection: Connection, *, confirms: bool) -> Observed:
    """The session as the hello describes it. Raises SpawnError if the command could not be started."""
    files = Files(spec["id"], core.home.session(spec["id"]), spec, None, None)
    status = connection.hello["status"]
    if status["error"] is not None:
        if confirms:
            # The caller gets the error: the end need not be signalled as well.
            try:
                await connection.confirm_now(core.config.hosts_reply_timeout)
            except (RunnerGone, Unreachable):
                pass
        connection.close()
        files = read_files(core.home, files.id)
        core.note(Observed(files, EXITED, "exit record"))
        error = status["error"]
        problem = SpawnError(error["errno"], error["step"], error["path"])
        # Its end is on record, for callers that report it in another way.
        problem.facts["id"] = files.id
        raise problem
    identity = connection.hello["identity"]
    files.state = {
        **{part: identity.get(part) for part in ("boot", "pidns", "timens", "nonce", "runner", "command")},
        "endpoint": spec["endpoint"],
        "started_at": status["started_at"],
        "attempt": 1,
        "changed": {},
    }
    if spec["place"] != LOCAL:
        files = read_files(core.home, files.id)  # with the directory's name there
    return Observed(files, status["state"], "its runner answered", live=status)


# The same command again: options from the spec of the session, the rest given by the caller.


async def restart(
    core: Core,
    id: str,
    *,
    env: Mapping[str, str | None] | None = None,
    input: str | bytes | None = None,
    pass_fds: Sequence[int] | None = None,
    lifetime: Lifetime | None = None,
    owner_pid: int | None = None,
    grace: float | None = None,
) -> Observed:
    """Stop it if it runs, and start it again. A restart that cannot be the same is refused before anything is
    stopped; one whose stop leaves survivors starts nothing beside them. A session with a restart policy is
    restarted in place by its runner, unless something is to be different."""
    from .act import stop_or_fail
    from .feature_options import given_again
    from .start_request import tty_again

    files = read_files(core.home, id)
    now = files.current()
    given = (env, input, pass_fds, lifetime, owner_pid, grace)
    if now.get("restart") and all(each is None for each in given):
        try:
            await core.request(id, "restart", by=core.author)
            return await core.observe(id)
        except (SessionEnded, RunnerGone, Unreachable):
            pass  # there is no runner that could restart it in place
    again = (name for name, option in OPTIONS.items() if option.again)
    options: Any = {name: now[name] for name in again if now.get(name) is not None}
    options.update(given_again(now))
    options["env"] = _environment(now, env)
    if "tty" in options:
        options["tty"] = tty_again(options["tty"], options["env"])
    if input is None and now.get("input_bytes") is not None:
        why = f"{now['input_bytes']} bytes were given at the first start, and input is never stored"
        raise BadArgument("input", why, "give it again, or an empty one to run without input")
    options["input"] = input
    if pass_fds is None and now.get("pass_fds"):
        passed = ", ".join(map(str, now["pass_fds"]))
        raise BadArgument("pass_fds", f"{passed} were passed at the first start", "pass them again, or none: []")
    options["pass_fds"] = pass_fds
    options.update(_lifetime(files, now, lifetime, owner_pid))
    try:
        await stop_or_fail(core, id, grace=grace)
    except IdentityMismatch:
        # A finished session needs no proof: its pid belongs to another process, or is from before the reboot.
        if (await core.observe(id)).state not in FINAL_STATES:
            raise
    once = files.spec.get("request")
    seen, connection = await start_connected(core, files.spec["command"], options, restarted_from=id, once=once)
    if connection is not None:
        connection.close()
    return seen


def _environment(now: dict[str, Any], env: Mapping[str, str | None] | None) -> dict[str, str | None]:
    """Variables that were given at the first start must be given again, or be in the environment that is passed
    on: their values are not on disk. Those that were removed are removed again."""
    given: dict[str, str | None] = {name: None for name in now["env_set"] if name not in now["env_names"]}
    given.update(env or {})
    # What a place has is not known here.
    inherited = os.environ if not is_away(now) and not now.get("clean_env") else ()
    missing = [name for name in now["env_set"] if name not in given and name not in inherited]
    if missing:
        raise BadArgument(
            "env",
            f"the first start set {', '.join(missing)}, and values are never stored",
            "give them again, or None to leave them out",
        )
    return given


def _lifetime(files: Files, now: dict[str, Any], lifetime: Lifetime | None, owner_pid: int | None) -> dict[str, Any]:
    if lifetime is None and owner_pid is not None:
        lifetime = "owner"
    wanted = lifetime or now.get("lifetime") or "detached"
    if wanted == "call":
        why = "`call` works only with run(): a restart returns at once"
        raise BadArgument("lifetime", why, "give `detached` or `owner`, or call run() again")
    if lifetime is None and wanted == "owner":
        owner = now["owner_process"]
        if unverifiable(files) is not None or not same_process(owner["pid"], owner["start"]):
            why = f"the owner it was bound to, process {owner['pid']}, is gone"
            raise BadArgument("lifetime", why, "give `detached`, or another owner_pid")
        owner_pid = owner["pid"]
    return {"lifetime": wanted, "owner_pid": owner_pid}
