"""What hosts do, written once for blocking and asynchronous ones: start, find, observe, act."""

from __future__ import annotations

import errno
import os
import time

from .. import wire
from ..errors import (
    DamagedRecord,
    IdentityMismatch,
    KeyReused,
    MalformedAnswer,
    NameTaken,
    NotFound,
    ProtocolError,
    Removed,
    RunnerGone,
    SessionEnded,
    SpawnError,
    StillRunning,
    Superseded,
    Unreachable,
)
from ..home import Home, check_labels, check_name, check_owner, no_space, runtime_directory
from ..index import Index, Row
from ..model import (
    EXITED,
    FINAL_STATES,
    LIVE_STATES,
    LOST,
    RUNNING,
    STALE,
    STARTING,
    UNREACHABLE,
    Recovered,
    Snapshot,
    Stopped,
    seconds,
)
from ..places import LOCAL
from ..runner.tree import orphans, time_namespace
from .claims import Claim
from .connection import Connection, prove
from .finding import find, name_of
from .observe import (
    Files,
    Observed,
    from_files,
    halted,
    needs_deputy,
    read_again,
    read_files,
    record_here,
    runner_holds,
    stopped_away,
)
from .sweep import sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ..config import Config
    from ..model import StartOptions
    from ..signals.consumers import Consumers
    from ..signals.succession import Outcome
    from .claims import Held
    from .driver import Driver
    from .launch import Launching
    from .log import Log
    from .request import Command, StartRequest

# How long a start waits for another one that holds the same name or key; a replacement has to wait for a stop.
_NOTIFY = ("never", "exit", "failure", "auto")
_CLAIM_S = 10.0
_REPLACE_S = 60.0
# A runner that has written its spec opens its endpoint within a millisecond; the next look comes after this.
_ENDPOINT_S = 0.01
# On top of the ladder's own time: its last rung, the drain, and a busy machine.
_STOP_MARGIN_S = 10.0
# Ends are noted in the index so many at a time.
_ROWS_AT_ONCE = 32


class Core:
    """A host's view of one home. Everything but the wait itself is common to both kinds of host."""

    def __init__(self, driver: Driver, home: Home, config: Config, author: str) -> None:
        self.driver = driver
        self.home = home
        self.config = config
        self.author = author
        home.create()
        self.runtime = runtime_directory()
        self.index = Index(home, self._row, self._finish)
        self._over: list[Row] = []
        # What the last look at many sessions could not use, by session.
        self.damaged: dict[str, DamagedRecord] = {}
        self._launching: Launching | None = None
        self._consumers: Consumers | None = None

    @property
    def launching(self) -> Launching:
        if self._launching is None:
            from .launch import Launching

            self._launching = Launching(self.driver, self.runtime, self.config, self.author)
        return self._launching

    @property
    def consumers(self) -> Consumers:
        if self._consumers is None:
            from ..signals.consumers import Consumers

            places = self.home, self.config, self.runtime
            self._consumers = Consumers(self.driver, self.index, *places, self._outcome, self._call_people)
        return self._consumers

    def blocking(self) -> Core:
        """The same home, waited for in the calling thread."""
        import copy

        from .driver import Blocking

        other = copy.copy(self)
        other.driver = Blocking()
        other._launching = other._consumers = None
        return other

    def close(self) -> None:
        self.note_all()
        self.index.close()

    # Starting.

    async def start(
        self,
        command: Command,
        options: StartOptions,
        *,
        restarted_from: str | None = None,
        then: dict[str, Any] | None = None,
        hold: bool = False,
    ) -> tuple[Observed, Connection | None]:
        """A running session, and the connection that started it, on which `then` was already asked. No
        connection: the key's holder was alive and is returned instead of a second one. `hold`: while that
        connection is open, the command waits before the log's cap would cut what `has_read` has not reported."""
        from .request import build

        held: list[Held] = []
        try:
            try:
                request = build(command, options, config=self.config, author=self.author, environ=os.environ)
                request.spec["restarted_from"] = restarted_from
                for kind in ("key", "name"):
                    if request.spec[kind] is not None:
                        existing = await self._claim(Claim(self.home, kind, request.spec[kind]), request, held)
                        if existing is not None:
                            return existing, None
            except OSError as problem:
                if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise no_space(problem.filename or self.home.locks) from None
                raise SpawnError(problem.errno or 0, "request", problem.filename) from None
            return await self._launch(request, held, then, hold)
        finally:
            for claimed in held:
                claimed.close()

    async def _claim(self, claim: Claim, request: StartRequest, held: list[Held]) -> Observed | None:
        """Hold the name or key, or say who does. With `replace` the former holder is ended first, unless somebody
        who asked later is already waiting. One owner does not replace what belongs to another."""
        replace = request.replace and (claim.kind == "key" or request.spec["key"] is None)
        ticket = claim.ticket() if replace else 0
        mine = await self.driver.call(lambda: claim.acquire(_REPLACE_S if replace else _CLAIM_S))
        held.append(mine)
        if replace and not claim.newest(ticket):
            raise Superseded(claim.text)
        holder = await self._live_holder(mine.holder)
        if holder is not None and claim.kind == "name" and name_of(self.home, holder.files.id) != claim.text:
            holder = None  # it was renamed meanwhile
        if holder is not None:
            if replace and request.spec["owner"] in (None, holder.files.now().get("owner")):
                await self.end(holder.files.id, grace=None, by=request.spec["owner"])
            elif claim.kind == "name":
                raise NameTaken(claim.text, holder.files.id)
            elif _asked_alike(holder.files.spec, request.spec):
                return holder
            else:
                raise KeyReused(claim.text, holder.files.id)
        mine.set(request.spec["id"])
        return None

    async def _live_holder(self, id: str | None) -> Observed | None:
        if id is None:
            return None
        try:
            files = read_files(self.home, id)
        except (NotFound, DamagedRecord):
            return None
        seen = from_files(files)
        return seen if seen.state in LIVE_STATES else None

    async def _launch(
        self, request: StartRequest, held: list[Held], then: dict[str, Any] | None, hold: bool
    ) -> tuple[Observed, Connection]:
        spec = request.spec
        spec["endpoint"] = os.path.join(self.runtime, spec["id"] + ".sock")
        frame = {
            "type": "start",
            "home": self.home.path,
            "spec": spec,
            "env": request.env,
            "claims": len(held),
            "then": then,
            **({"hold": True} if hold else {}),
        }
        if spec["timeout"] is not None or spec["ttl"] is not None:
            # The command's time runs from here: a slow start is part of it.
            frame["asked"] = {"monotonic": time.monotonic(), "timens": time_namespace()}
        if spec["people"]["events"]:
            # Who tells people does it for the user, not in the environment that was made for the command.
            frame["host_env"] = dict(os.environ)
        if request.input is not None:
            frame["input"] = wire.as_text(request.input)
        descriptors = [claimed.fileno() for claimed in held] + request.fds
        start = self.launching.start if spec["place"] == LOCAL else self.launching.start_away
        connection = await start(frame, descriptors)
        for claimed in held:
            claimed.set(spec["id"])
        files = Files(spec["id"], self.home.session(spec["id"]), spec, None, None)
        status = connection.hello["status"]
        if status["error"] is not None:
            if then is not None and then.get("confirm"):
                await self._told_by_error(connection)
            connection.close()
            files = read_files(self.home, files.id)
            self.note(Observed(files, EXITED, "exit record"))
            error = status["error"]
            problem = SpawnError(error["errno"], error["step"], error["path"])
            # Its end is on record, for whoever tells of it in another way.
            problem.facts["id"] = files.id
            raise problem
        files.state = _state_from(connection.hello, spec)
        if spec["place"] != LOCAL:
            files = read_files(self.home, files.id)  # what its directory is called there
        return Observed(files, status["state"], "its runner answered", live=status), connection

    async def _told_by_error(self, connection: Connection) -> None:
        """Who asked for it gets the error: the ending need not be told once more."""
        try:
            reply_s = self.config.hosts_reply_timeout
            await connection.told_end(0.0, reply_s, late_s=reply_s)
        except (RunnerGone, Unreachable):
            pass

    # Finding.

    def find(self, ref: object, owner: str | None = None) -> str:
        return find(self.home, self.index, ref, owner)

    async def look_up(self, ref: object, owner: str | None = None) -> Snapshot:
        """The session that `ref` means. If another process removes it meanwhile, the next one that `ref` means."""
        before: str | None = None
        while True:
            id = self.find(ref, owner)
            try:
                return (await self.observe(id)).snapshot()
            except (NotFound, Removed):
                if id in (ref, before):
                    raise
                before = id

    # Observing.

    async def observe(self, id: str) -> Observed:
        """One session, identity proven where its runner lives."""
        seen = (await self._sweep([read_files(self.home, id)]))[0]
        if seen.damage is not None:
            raise seen.damage
        if seen.state == LOST:
            seen.signal_id = self.ended_signal(id)
        self.note(seen)
        return seen

    def ended_signal(self, id: str) -> str | None:
        """The record of the ending, for whoever tells it in another way than from the queue. A runner that was killed
        named none in its exit record: then whichever host finds it writes one, and this may be the first."""
        files = read_files(self.home, id)
        named: str | None = (files.exit or {}).get("signal_id")
        if named is None and from_files(files).state in FINAL_STATES:
            from ..signals.indexing import ended_id

            named = ended_id(self.home, id)
            if named is None:
                self.consumers.catchup.bury([id])
                named = ended_id(self.home, id)
        return named

    def note(self, seen: Observed) -> None:
        """What is over need not be read again. A few at a time, for a row costs less than its transaction; what is
        forgotten before that, the next look finds in its directory."""
        if seen.final:
            try:
                self._over.append(_row_of(seen))
            except Removed:
                return  # while we looked
            if len(self._over) >= _ROWS_AT_ONCE:
                self.note_all()

    def note_all(self) -> None:
        rows, self._over = self._over, []
        if rows:
            untold = self.index.note(rows)
            if untold:
                self._tell(untold)

    def _tell(self, untold: list[str]) -> None:
        """Whoever sees an end that its runner did not live to tell, tells it."""
        from ..signals.indexing import runner_lives

        gone = [id for id in untold if not runner_lives(self.home, id)]
        if gone:
            self.consumers.catchup.bury(gone)

    async def sessions(
        self, *, all: bool, fits: Callable[[Snapshot], bool], owner: str | None = None
    ) -> list[Snapshot]:
        """Live ones, or all; newest last. With an owner, runners of others are not even asked."""
        self.note_all()
        look = self.index.query(owner=owner) if all else self.index.look()
        shots, unread = [], []
        for id, record in look.records.items():
            try:
                shots.append(Snapshot(**{**record, "exit": _exit_from(record)}))
            except (KeyError, AttributeError):
                unread.append(id)  # of another release, or damaged: its directory tells
        seen, _ = await self._observe_all([*look.unfinished, *unread], owner)
        for each in seen:
            if all or each.state in LIVE_STATES or _survivors(each):
                try:
                    shots.append(each.snapshot())
                except Removed:
                    continue  # while we looked
        return sorted(filter(fits, shots), key=lambda shot: (shot.created_at or "", shot.id))

    async def recover(self) -> Recovered:
        began = time.monotonic()
        self.note_all()
        look = self.index.look()
        seen, damaged = await self._observe_all(look.unfinished)
        groups: dict[str, list[Any]] = {state: [] for state in (RUNNING, EXITED, UNREACHABLE, STALE, LOST)}
        for each in seen:
            groups[RUNNING if each.state == STARTING else each.state].append(each)
        return Recovered(
            live=groups[RUNNING],
            exited=groups[EXITED],
            unreachable=groups[UNREACHABLE],
            stale=groups[STALE],
            lost=groups[LOST],
            quarantined=[problem.path for problem in damaged.values()],
            took_s=round(time.monotonic() - began, 3),
        )

    async def _observe_all(
        self, ids: Iterable[str], owner: str | None = None
    ) -> tuple[list[Observed], dict[str, DamagedRecord]]:
        files: list[Files] = []
        damaged = self.damaged = {}
        for id in ids:
            try:
                files.append(read_files(self.home, id))
            except NotFound:
                continue  # a start that is just beginning, or its remains: gc knows
            except DamagedRecord as problem:
                damaged[id] = problem
        if owner is not None:
            files = [each for each in files if each.now().get("owner") == owner]
        seen = []
        for each in await self._sweep(files):
            if each.damage is None:
                seen.append(each)
                self.note(each)
            else:
                damaged[each.files.id] = each.damage
        self.note_all()
        return seen, damaged

    async def _with_deputies(self, files: list[Files]) -> list[Files]:
        """The same, where for those in other places whose link nobody holds any more somebody was sent."""
        alone = [needs_deputy(each) for each in files]
        specs = [each.spec for each, is_alone in zip(files, alone, strict=True) if is_alone]
        if specs:
            await self.driver.call(lambda: self.launching.send_deputies(self.home.path, specs))
        return [read_again(each) if is_alone else each for each, is_alone in zip(files, alone, strict=True)]

    async def _sweep(self, files: list[Files]) -> list[Observed]:
        files = await self._with_deputies(files)
        timeout = self.config.hosts_sweep_timeout
        seen = await sweep(self.driver, files, author=self.author, timeout=timeout)
        # Of a deputy that died while we looked another can tell more.
        again = [at for at, each in enumerate(seen) if each.files.away and needs_deputy(each.files)]
        if again:
            files = await self._with_deputies([seen[at].files for at in again])
            anew = await sweep(self.driver, files, author=self.author, timeout=timeout)
            for at, each in zip(again, anew, strict=True):
                seen[at] = each
        return seen

    def _row(self, id: str) -> Row | None:
        """A directory as the index wants it, from the files alone."""
        try:
            return _row_of(from_files(read_files(self.home, id)))
        except (NotFound, DamagedRecord, Removed):
            return None

    def _finish(self, db: sqlite3.Connection, id: str) -> bool:
        """The rest of its signals into the index, before it is final there."""
        from ..signals.indexing import finish, runner_lives

        return finish(db, self.home, id, writer_lives=runner_lives(self.home, id))

    def _outcome(self, id: str) -> Outcome | None:
        from .outcome import outcome

        try:
            files = read_files(self.home, id)
        except NotFound:
            return None
        if needs_deputy(files):
            self.launching.send_deputies(self.home.path, [files.spec])
            if needs_deputy(files):
                raise BlockingIOError  # it is gone before anybody can be told of that: another is sent in a moment
        return outcome(self.home, id, _row_of)

    def _call_people(self, variant: str, record: dict[str, Any], notify: bool | None) -> None:
        from ..signals.calling import call_for

        call_for(self.home, self.config, variant, record, notify)

    # Acting.

    async def connect(self, id: str, within: float | None = None) -> tuple[Files, Connection]:
        """A connection to this session's runner, identity proven. Why there is none is told by the error. `within` is
        for a caller that cannot wait as long as a runner may take."""
        (files,) = await self._with_deputies([read_files(self.home, id)])
        timeout = self.config.hosts_reply_timeout
        timeout = timeout if within is None else min(timeout, within)
        began = time.monotonic()
        while True:
            try:
                connection = await Connection.open(self.driver, files.endpoint, id, author=self.author, timeout=timeout)
                break
            except (RunnerGone, Unreachable) as problem:
                waited = time.monotonic() - began
                seen = from_files(read_files(self.home, id))
                if seen.files.away and isinstance(problem, Unreachable) and seen.state not in FINAL_STATES:
                    raise  # its deputy says why
                if seen.state != STARTING or waited >= timeout:
                    raise self._no_runner(seen, waited) from None
            except ProtocolError as problem:
                raise IdentityMismatch(id, "the answer at its endpoint", "a runner's hello", problem.why) from None
            await self.driver.ready((), (), _ENDPOINT_S)
        try:
            prove(id, connection.hello, files.spec, read_files(self.home, id).state)
        except BaseException:
            connection.close()
            raise
        return files, connection

    def _no_runner(self, seen: Observed, waited: float = 0.0) -> Exception:
        command = seen.files.command
        pid = None if command is None else command["pid"]
        if seen.state == EXITED:
            assert seen.files.exit is not None
            exit = seen.files.exit["exit"]
            return SessionEnded(seen.files.id, exit["code"], exit["signal"], seen.files.exit["ended_at"])
        if seen.state in (STALE, LOST):
            return RunnerGone(seen.files.id, seen.state, pid)
        runner = seen.files.runner or {}
        return Unreachable(seen.files.id, runner.get("pid"), round(waited, 3))

    async def request(self, id: str, type: str, within: float | None = None, /, **fields: object) -> dict[str, Any]:
        """`within` is for a caller that cannot wait as long as a runner may take."""
        _, connection = await self.connect(id, within)
        reply_s = self.config.hosts_reply_timeout
        try:
            return await connection.request(type, reply_s if within is None else min(reply_s, within), **fields)
        except RunnerGone:
            # It left while we spoke: most often because the command has just ended.
            raise self._no_runner(from_files(read_files(self.home, id))) from None
        finally:
            connection.close()

    async def update(self, id: str, changes: dict[str, Any]) -> None:
        for name, check in (("name", check_name), ("owner", check_owner), ("labels", check_labels)):
            if changes.get(name) is not None:
                changes[name] = check(changes[name])
        for name in ("timeout", "idle_timeout", "ttl", "soft"):
            if changes.get(name) is not None:
                changes[name] = seconds(changes[name])
        wanted = changes.get("name")
        files = read_files(self.home, id)
        if halted(files):
            # Fail at once: a stopped runner cannot answer.
            raise Unreachable(id, (files.runner or {}).get("pid"), 0.0)
        if wanted is None:
            try:
                await self.request(id, "update", **changes)
                record_here(files, changes)
            except (SessionEnded, RunnerGone):
                if not self._update_record(id, changes):
                    raise
        else:
            claim = Claim(self.home, "name", wanted)
            with await self.driver.call(lambda: claim.acquire(_CLAIM_S)) as held:
                holder = await self._live_holder(held.holder)
                if holder is not None and holder.files.id != id and name_of(self.home, holder.files.id) == wanted:
                    raise NameTaken(wanted, holder.files.id)
                await self.request(id, "update", **changes)
                record_here(files, changes)
                held.set(id)

    def _update_record(self, id: str, changes: dict[str, Any]) -> bool:
        """Without a runner the owner can still change, and of a session that has not ended whether its end is told.
        False where that cannot be done."""
        from .handing_over import hand_over, set_notify

        files = read_files(self.home, id)
        if files.state is None:
            return False  # no command ever ran
        if set(changes) == {"notify"} and changes["notify"] in _NOTIFY and files.exit is None and not files.away:
            return set_notify(files, changes["notify"])
        if set(changes) != {"owner"}:
            return False
        owner: str | None = changes["owner"]
        self.note(from_files(files))
        self.note_all()
        try:
            hand_over(self.consumers, files, owner, lambda: _row_of(from_files(read_files(self.home, id))))
        except BlockingIOError:
            return False
        return True

    async def stop(
        self, id: str, *, grace: float | None, by: str | None = None, ladder: Sequence[Mapping[str, Any]] | None = None
    ) -> Stopped:
        """Through the runner where it answers, from the records where it is gone or wedged. `ladder` is climbed in the
        place of the session's own."""
        if ladder is not None:
            from .request import check_ladder

            ladder = check_ladder(ladder)
        connection = await self.begin_stop(id, grace=grace, by=by, ladder=ladder)
        return await self.finish_stop(id, connection, grace=grace, by=by, ladder=ladder)

    async def end(self, id: str, *, grace: float | None, by: str | None = None) -> None:
        """Stop it to put another in its place, which may not run beside what survives."""
        stopped = await self.stop(id, grace=grace, by=by)
        if stopped.survivors:
            raise StillRunning(id, stopped.survivors)

    async def begin_stop(
        self, id: str, *, grace: float | None, by: str | None = None, ladder: Sequence[Mapping[str, Any]] | None = None
    ) -> Connection | None:
        """Set the ladder going and do not wait for it. None: there is no runner to do it."""
        try:
            _, connection = await self.connect(id)
        except (SessionEnded, RunnerGone, Unreachable):
            return None
        try:
            asked = {"grace": grace, "by": by or self.author, **({} if ladder is None else {"ladder": ladder})}
            await connection.ask("stop", self.config.hosts_reply_timeout, **asked)
        except (RunnerGone, Unreachable):
            connection.close()
            return None
        return connection

    async def finish_stop(
        self,
        id: str,
        connection: Connection | None,
        *,
        grace: float | None,
        by: str | None = None,
        ladder: Sequence[Mapping[str, Any]] | None = None,
    ) -> Stopped:
        files = read_files(self.home, id)
        wanted = files.spec["grace"] if grace is None else grace
        if connection is None:
            return await self._stop_without_runner(id, wanted, by, ladder)
        try:
            reply = await self._ladder_done(id, connection, _stop_bound(files, wanted, ladder))
        except (RunnerGone, Unreachable):
            return await self._stop_without_runner(id, wanted, by, ladder)
        finally:
            connection.close()
        return Stopped(
            id,
            found=reply["found"],
            found_more=reply.get("found_more", 0),
            survivors=reply["survivors"],
            survivors_more=reply.get("survivors_more", 0),
            rung=reply.get("rung"),
            took_s=reply.get("took_s") or 0.0,
            already=reply.get("already", False),
            signal_id=reply.get("signal_id"),
        )

    async def _ladder_done(self, id: str, connection: Connection, bound: float) -> dict[str, Any]:
        """Somebody who asked before us may have granted more grace than we did: as long as the runner answers, it is
        at work and nobody acts past it."""
        while True:
            try:
                return await connection.answer(bound)
            except Unreachable:
                try:
                    await self.request(id, "ping")
                except SessionEnded:
                    # It is done and has left meanwhile; its answer came before.
                    return await connection.answer(self.config.hosts_reply_timeout)

    async def _stop_without_runner(
        self, id: str, grace: float, by: str | None, ladder: Sequence[Mapping[str, Any]] | None
    ) -> Stopped:
        """It ended and its runner left; or the runner was killed; or it lives and is silent, and records the end
        when it wakes. Whatever of the session lives is found and verified from the records."""
        from .stopping import refuse_unproven, stop_from_records

        seen = from_files(read_files(self.home, id))
        if seen.state == STARTING:
            raise Unreachable(id, None, self.config.hosts_reply_timeout)
        if seen.files.away and not seen.final:
            if _survivors(seen):
                # They live in its place, without a runner that could end them.
                left = seen.files.exit["exit"] if seen.files.exit is not None else {}
                more = left.get("survivors_more") or 0
                return Stopped(id, survivors=left["survivors"], survivors_more=more, signal_id=self.ended_signal(id))
            if seen.state != STALE:
                raise self._no_runner(seen, self.config.hosts_reply_timeout)
            return await self._stop_away(seen.files, grace, by, ladder)
        if seen.state != EXITED:
            refuse_unproven(seen.files)
        if seen.final:
            return Stopped(id, already=True, signal_id=self.ended_signal(id))
        if seen.files.in_process:
            raise self._no_runner(Observed(seen.files, UNREACHABLE, seen.evidence), self.config.hosts_reply_timeout)
        stopped = await stop_from_records(self.driver, seen.files, grace=grace, by=by or self.author, ladder=ladder)
        stopped.signal_id = self.ended_signal(id)
        return stopped

    async def _stop_away(
        self, files: Files, grace: float, by: str | None, ladder: Sequence[Mapping[str, Any]] | None
    ) -> Stopped:
        """What lives on in another place without its runner is ended there, by a deputy that is sent for that."""
        from .stopping import record_intent

        record_intent(files, by or self.author)
        asked = ladder or (files.spec.get("stop_ladder") if grace > 0 else None)
        end = {"grace": grace, "ladder": asked, "within": _stop_bound(files, grace, ladder)}
        await self.driver.call(lambda: self.launching.send_deputies(self.home.path, [files.spec], end))
        seen = from_files(read_files(self.home, files.id))
        done = stopped_away(files)
        if done is None and not seen.final:
            raise self._no_runner(seen, self.config.hosts_reply_timeout)
        return Stopped(files.id, **(done or {"already": True}), signal_id=self.ended_signal(files.id))

    async def remove(self, id: str) -> None:
        from .collect import remove

        try:
            is_over = (await self.observe(id)).final
        except MalformedAnswer:
            raise
        except DamagedRecord:
            is_over = not self.lives_on(id)
        if not is_over:
            raise StillRunning(id)
        self.note_all()
        remove(self.home, self.index, id, self._claims(id))

    def _claims(self, id: str) -> list[Claim]:
        try:
            asked = read_files(self.home, id).now()
        except (NotFound, DamagedRecord):
            return []
        return [Claim(self.home, kind, asked[kind]) for kind in ("key", "name") if asked.get(kind) is not None]

    def lives_on(self, id: str) -> bool:
        """Whether anything is left of a session whose records cannot be used."""
        return bool(runner_holds(self.home, id, self.runtime) or orphans(id, None, None))

    def log(self, id: str) -> Log:
        from .log import Log

        return Log(self.home.session(id))


def _asked_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Does `other`, just asked for, ask for what `one` was?"""
    # Of a directory in another place its own name there is recorded too.
    given = {**one, "cwd": one.get("cwd_given", one.get("cwd")), "place": one.get("place") or LOCAL}
    return all(given.get(part) == other.get(part) for part in ("command", "shell", "cwd", "owner", "place"))


def _survivors(seen: Observed) -> bool:
    return seen.files.exit is not None and bool(seen.files.exit["exit"]["survivors"])


def _stop_bound(files: Files, grace: float, ladder: Sequence[Mapping[str, Any]] | None) -> float:
    climb: float = sum(rung["wait_s"] for rung in ladder or files.spec.get("stop_ladder") or ())
    return max(grace, climb) + _STOP_MARGIN_S


def _state_from(hello: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    identity = hello["identity"]
    return {
        **{part: identity.get(part) for part in ("boot", "pidns", "timens", "nonce", "runner", "command")},
        "endpoint": spec["endpoint"],
        "started_at": hello["status"]["started_at"],
        "attempt": 1,
        "changed": {},
    }


def _exit_from(record: dict[str, Any]) -> Any:
    from ..model import Exit

    return None if record["exit"] is None else Exit.from_json(record["exit"])


def _row_of(seen: Observed) -> Row:
    shot = seen.snapshot()
    final = seen.final
    return Row(
        shot.id,
        name=shot.name,
        owner=shot.owner,
        kind=shot.kind,
        command=shot.command,
        cwd=shot.cwd,
        labels=shot.labels,
        created_at=shot.created_at,
        ended_at=shot.ended_at,
        status=shot.status,
        pid=shot.pid,
        final=final,
        record=shot.to_json() if final else None,
    )
