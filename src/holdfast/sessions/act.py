"""Act on a session through its runner, or from its records if the runner is gone: update, signal, stop, remove."""

from __future__ import annotations

import time

from ..errors import (
    BadArgument,
    DamagedRecord,
    HoldfastError,
    MalformedAnswer,
    NameTaken,
    NotFound,
    Removed,
    RunnerGone,
    SessionEnded,
    StillRunning,
    Unreachable,
)
from ..home import check_labels, check_name, check_owner
from ..model import EXITED, STALE, STARTING, UNREACHABLE, Stopped, seconds
from .claims import CLAIM_S, Claim, live_holder, name_of
from .connection import open_socket
from .core import row_of
from .observe import Observed, from_files, halted, read_files, record_local_changes, stopped_away

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from .connection import Connection
    from .core import Core
    from .observe import Files

    Rungs = Sequence[Mapping[str, Any]]


_NOTIFY = ("never", "exit", "failure", "auto")
# On top of the ladder's own time: its last rung, the drain, and a busy machine.
_STOP_MARGIN_S = 10.0
# A runner leaves this long after its last answer, and the lock that it had is tried again this often.
_LEAVING_S, _AGAIN_S = 5.0, 0.02


async def update(core: Core, id: str, changes: dict[str, Any]) -> None:
    """Change the name, owner, labels, description, notifications and limits of a session."""
    for name, check in (("name", check_name), ("owner", check_owner), ("labels", check_labels)):
        if changes.get(name) is not None:
            changes[name] = check(changes[name])
    for name in ("timeout", "idle_timeout", "ttl", "soft"):
        if changes.get(name) is not None:
            changes[name] = seconds(changes[name], name)
    wanted = changes.get("name")
    files = read_files(core.home, id)
    if halted(files):
        # Fail at once: a stopped runner cannot answer.
        raise Unreachable(id, (files.runner or {}).get("pid"), 0.0)
    if wanted is None:
        await _request_update(core, files, changes)
        return
    claim = Claim(core.home, "name", wanted)
    with await claim.acquire(core.driver, CLAIM_S) as held:
        holder = live_holder(core.home, held.holder)
        if holder is not None and holder.files.id != id and name_of(core.home, holder.files.id) == wanted:
            raise NameTaken(wanted, holder.files.id)
        await _request_update(core, files, changes)
        held.set(id)


async def _request_update(core: Core, files: Files, changes: dict[str, Any]) -> None:
    try:
        await core.request(files.id, "update", **changes)
        record_local_changes(files, changes)
    except (SessionEnded, RunnerGone):
        leaves_by = time.monotonic() + _LEAVING_S
        while True:
            try:
                if _update_record(core, files.id, changes):
                    return
            except BlockingIOError:
                # Its runner is about to leave, and still has its lock.
                if time.monotonic() < leaves_by:
                    await core.driver.ready((), (), _AGAIN_S)
                    continue
            raise


def _update_record(core: Core, id: str, changes: dict[str, Any]) -> bool:
    """Without a runner, the name and the owner can still be changed, and `notify` of a session that has not ended.
    False for anything else. BlockingIOError while a runner has the lock of its signals."""
    from .without_runner import hand_over, record_changes

    files = read_files(core.home, id)
    if files.state is None:
        return False  # no command ever ran
    if set(changes) == {"notify"} and changes["notify"] in _NOTIFY and files.exit is None and not files.away:
        record_changes(files, changes)
        return True
    if set(changes) == {"name"}:
        record_changes(files, changes)
        core.note(from_files(read_files(core.home, id)))
        core.flush_rows()
        return True
    if set(changes) != {"owner"}:
        return False
    owner: str | None = changes["owner"]
    core.note(from_files(files))
    core.flush_rows()
    hand_over(core.consumers, files, owner, lambda: row_of(from_files(read_files(core.home, id))))
    return True


async def send_signal(core: Core, id: str, signal: str | int, target: str) -> int:
    """One operating-system signal; returns how many processes got it."""
    from ..core.kernel_signals import NAMES, NUMBERS

    name = NAMES.get(signal, "") if isinstance(signal, int) else signal.upper()
    if name not in NUMBERS and f"SIG{name}" not in NUMBERS:
        from ..model.session import nearest

        near = nearest(name.removeprefix("SIG"), [each.removeprefix("SIG") for each in NUMBERS])
        fix = f"did you mean {near}?" if near else "give a name such as HUP, TERM or USR1, or a number such as 15"
        raise BadArgument("signal", f"no signal {ascii(signal)[:40]}", fix)
    reply = await core.request(id, "send_signal", signal=name, target=target)
    sent: int = reply["sent"]
    return sent


async def stop(
    core: Core, id: str, *, grace: float | str | None, by: str | None = None, ladder: Rungs | None = None
) -> Stopped:
    """Stop a session through its runner, or from the records if the runner is gone or does not answer. `ladder`
    replaces the session's own."""
    stopping = Stop(core, id, grace, by, ladder)
    await stopping.begin()
    return await stopping.finish()


async def stop_all(
    core: Core, refs: Iterable[object], grace: float | str | None, by: str | None = None, ladder: Rungs | None = None
) -> list[Stopped]:
    """Stop all at the same time: every runner climbs its own ladder while the next one is asked."""
    wanted, under_way, answers = [], [], []
    for ref in refs:
        try:
            wanted.append(Stop(core, await core.locate(ref), grace, by, ladder))
        except Removed as problem:
            answers.append(Stopped(str(ref), error=problem))  # it was there when the caller listed it
    for stopping in wanted:
        try:
            await stopping.begin()
            under_way.append(stopping)
        except HoldfastError as problem:
            answers.append(Stopped(stopping.id, error=problem))
    for stopping in under_way:
        try:
            answers.append(await stopping.finish())
        except HoldfastError as problem:
            answers.append(Stopped(stopping.id, error=problem))
    return answers


async def stop_or_fail(core: Core, id: str, *, grace: float | None, by: str | None = None) -> None:
    """Stop a session to start another in its place: StillRunning if a process survives."""
    stopped = await stop(core, id, grace=grace, by=by)
    if stopped.survivors:
        raise StillRunning(id, stopped.survivors)


class Stop:
    """One stop of one session: `begin` asks its runner, `finish` waits for the result. Without a runner, `finish`
    stops it from the records."""

    def __init__(
        self, core: Core, id: str, grace: float | str | None, by: str | None = None, ladder: Rungs | None = None
    ) -> None:
        if ladder is not None:
            from .start_request import check_ladder

            ladder = check_ladder(ladder)
        self._core = core
        self.id = id
        self._asked_grace = None if grace is None else seconds(grace)
        self._by = by or core.author
        self._ladder = ladder
        self._connection: Connection | None = None

    async def begin(self) -> None:
        """Ask the runner to stop, and do not wait for it."""
        try:
            _, connection = await self._core.connect(self.id)
        except (SessionEnded, RunnerGone, Unreachable):
            return
        try:
            ladder = {} if self._ladder is None else {"ladder": self._ladder}
            reply_s = self._core.config.hosts_reply_timeout
            await connection.ask("stop", reply_s, grace=self._asked_grace, by=self._by, **ladder)
        except (RunnerGone, Unreachable):
            connection.close()
            return
        self._connection = connection

    async def accepted(self) -> None:
        """Wait until the runner has begun to stop it; without a runner, until it was stopped from the records."""
        if self._connection is not None:
            try:
                # Requests are answered in their order: when this one is, the stop is in progress.
                await self._connection.request("ping", self._core.config.hosts_reply_timeout)
                return
            except RunnerGone:
                pass  # it may be over by now, or its runner was killed just now
            finally:
                self._connection.close()
                self._connection = None
        await self.finish()

    async def finish(self) -> Stopped:
        self._files = read_files(self._core.home, self.id)
        self._grace: float = self._files.spec["grace"] if self._asked_grace is None else self._asked_grace
        if self._connection is None:
            return await self._finish_from_records()
        try:
            reply = await self._answer(self._connection)
        except (RunnerGone, Unreachable):
            return await self._finish_from_records()
        finally:
            self._connection.close()
        return Stopped(
            self.id,
            found=reply["found"],
            found_more=reply.get("found_more", 0),
            survivors=reply["survivors"],
            survivors_more=reply.get("survivors_more", 0),
            rung=reply.get("rung"),
            took_s=reply.get("took_s") or 0.0,
            already=reply.get("already", False),
            signal_id=reply.get("signal_id"),
        )

    def _bound_s(self) -> float:
        climb: float = sum(rung["wait_s"] for rung in self._ladder or self._files.spec.get("stop_ladder") or ())
        return max(self._grace, climb) + _STOP_MARGIN_S

    async def _answer(self, connection: Connection) -> dict[str, Any]:
        """An earlier stop may have granted more grace than ours: while the runner answers, it is still stopping."""
        while True:
            try:
                return await connection.answer(self._bound_s())
            except Unreachable:
                try:
                    await self._core.request(self.id, "ping")
                except SessionEnded:
                    # It has finished and left meanwhile; its answer came before.
                    return await connection.answer(self._core.config.hosts_reply_timeout)

    async def _finish_from_records(self) -> Stopped:
        """The session ended and its runner left; or the runner was killed; or it lives and does not answer, and records
        the end when it wakes. The processes are found and verified from the records."""
        from .without_runner import refuse_unproven, stop_from_records

        core, id = self._core, self.id
        seen = from_files(read_files(core.home, id))
        reply_s = core.config.hosts_reply_timeout
        if seen.state == STARTING:
            raise Unreachable(id, None, reply_s)
        if seen.files.away and not seen.final:
            if seen.has_survivors:
                # They are in its place, without a runner that could end them.
                left = seen.files.exit["exit"] if seen.files.exit is not None else {}
                more = left.get("survivors_more") or 0
                ended_id = core.ensure_end_signal(id)
                return Stopped(id, survivors=left["survivors"], survivors_more=more, signal_id=ended_id)
            if seen.state != STALE:
                raise seen.error_without_runner(reply_s)
            return await self._away(seen.files)
        if seen.state != EXITED:
            refuse_unproven(seen.files)
        if seen.final:
            return Stopped(id, already=True, signal_id=core.ensure_end_signal(id))
        if seen.files.in_process:
            raise Observed(seen.files, UNREACHABLE, seen.evidence).error_without_runner(reply_s)
        stopped = await stop_from_records(core.driver, seen.files, grace=self._grace, by=self._by, ladder=self._ladder)
        stopped.signal_id = core.ensure_end_signal(id)
        return stopped

    async def _away(self, files: Files) -> Stopped:
        """A deputy ends what still runs in another place without its runner."""
        from .launch import send_deputies
        from .without_runner import record_intent

        core = self._core
        record_intent(files, self._by)
        ladder = self._ladder or (files.spec.get("stop_ladder") if self._grace > 0 else None)
        end = {"grace": self._grace, "ladder": ladder, "within": self._bound_s()}
        await core.driver.call(lambda: send_deputies(core, [files.spec], end))
        seen = from_files(read_files(core.home, files.id))
        done = stopped_away(files)
        if done is None and not seen.final:
            raise seen.error_without_runner(core.config.hosts_reply_timeout)
        return Stopped(files.id, **(done or {"already": True}), signal_id=core.ensure_end_signal(files.id))


async def remove(core: Core, id: str) -> None:
    """Remove a session that has ended, or a damaged one without any live process."""
    from .gc import remove

    try:
        is_over = (await core.observe(id)).final
    except MalformedAnswer:
        raise
    except DamagedRecord:
        is_over = not core.lives_on(id)
    core.flush_rows()
    try:
        files = read_files(core.home, id)
        spec = files.current()
    except (NotFound, DamagedRecord):
        files, spec = None, {}
    if not is_over and not spec.get("visit"):
        raise StillRunning(id)
    claims = [Claim(core.home, kind, spec[kind]) for kind in ("key", "name") if spec.get(kind) is not None]
    remove(core.home, core.index, id, claims)
    if files is not None and spec.get("visit"):
        # A connection wakes its deputy, which leaves because the copy is gone.
        try:
            open_socket(files.endpoint).close()
        except OSError:
            pass
