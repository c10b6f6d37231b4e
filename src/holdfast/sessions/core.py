"""A host's view of one home: find and observe its sessions, reach their runners, keep the index current."""

from __future__ import annotations

import os
import time

from ..core import clock
from ..core.processes import orphans
from ..core.records import runner_lives
from ..errors import DamagedRecord, IdentityMismatch, NotFound, ProtocolError, Removed, RunnerGone, Unreachable
from ..home import Home, runtime_directory
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
    Exit,
    Recovered,
    Snapshot,
)
from .connection import Connection, prove
from .find import find
from .observe import Files, Observed, from_files, needs_deputy, read_again, read_files, runner_holds, sweep

TYPE_CHECKING = False
if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any

    from ..config import Config
    from ..signals.consumers import Consumers
    from ..signals.missing import RunnerGoneFacts
    from .driver import Driver
    from .log import Log
    from .screens import Keyframe


# A runner that has written its spec opens its endpoint within a millisecond; the next check comes after this.
_ENDPOINT_S = 0.01
# Ends are noted in the index so many at a time.
_ROWS_AT_ONCE = 32
# A list of live sessions leaves fewer ends than this to the next list: reading their directories again is quicker.
_WORTH_NOTING = 8


class Core:
    """One home, for blocking hosts and for asyncio: only the driver differs."""

    def __init__(self, driver: Driver, home: Home, config: Config, author: str) -> None:
        self.driver = driver
        self.home = home
        self.config = config
        self.author = author
        home.create()
        self.runtime = runtime_directory()
        # True if the services of the project here are found by their own names.
        self.services = False
        self.index = Index(home, self._row, self._finish)
        self._final_rows: list[Row] = []
        # What could not be used when many sessions were last read, by session.
        self.damaged: dict[str, DamagedRecord] = {}
        # Where the launcher of this host listens; see `launch.launcher_path`.
        self.launcher_path: str | None = None
        # The last screens that were drawn, by session; see `screens.screen`.
        self.keyframes: dict[str, Keyframe] = {}
        self._consumers: Consumers | None = None

    @property
    def consumers(self) -> Consumers:
        if self._consumers is None:
            from ..signals.consumers import Consumers

            how = self.driver, self.index, self.config, self.runtime
            self._consumers = Consumers(*how, self._facts_without_runner, self._call_people)
        return self._consumers

    def blocking(self) -> Core:
        """The same home; its waits block the calling thread."""
        import copy

        from .driver import Blocking

        other = copy.copy(self)
        other.driver = Blocking()
        other._consumers = None
        return other

    def close(self) -> None:
        self.flush_rows()
        self.index.close()

    # Finding.

    def find(self, ref: object, owner: str | None = None) -> str:
        """Among the sessions of this home. `NODE/REF` finds the copy of a visit, of any owner."""
        if isinstance(ref, str) and "/" in ref:
            from .visit import find_copy

            return find_copy(self, ref)
        return find(self.home, self.index, ref, owner, services=self.services)

    async def locate(self, ref: object, owner: str | None = None) -> str:
        """Like `find`, but visits `NODE/REF` first."""
        if isinstance(ref, str) and "/" in ref:
            from .visit import visit

            return await visit(self, ref, owner)
        return self.find(ref, owner)

    async def look_up(self, ref: object, owner: str | None = None) -> Snapshot:
        """The session that `ref` means. If another process removes it meanwhile, the next one that `ref` means."""
        before: str | None = None
        while True:
            id = await self.locate(ref, owner)
            try:
                return (await self.observe(id)).snapshot()
            except (NotFound, Removed):
                if id in (ref, before):
                    raise
                before = id

    # Observing.

    async def observe(self, id: str) -> Observed:
        """Observe one session; if its runner is alive, its identity is proven."""
        seen = (await self._sweep([read_files(self.home, id)]))[0]
        if seen.damage is not None:
            raise seen.damage
        if seen.state == LOST:
            seen.signal_id = self.ensure_end_signal(id)
        self.note(seen)
        return seen

    def ensure_end_signal(self, id: str) -> str | None:
        """The id of the signal of the end, for callers that report the end themselves. A killed runner wrote none: then
        the first host that finds the session writes one, which may be this call."""
        files = read_files(self.home, id)
        named: str | None = (files.exit or {}).get("signal_id")
        if named is None and from_files(files).state in FINAL_STATES:
            from ..signals.lines import ended_id

            named = ended_id(self.home, id)
            if named is None:
                self.consumers.catchup.record_lost([id])
                named = ended_id(self.home, id)
        return named

    def note(self, seen: Observed) -> None:
        """Remember that a session is final, so that it need not be read again. Rows are written a few at a time
        (`flush_rows`); if a row is lost before that, the next listing finds the session in its directory."""
        if seen.final:
            try:
                self._final_rows.append(row_of(seen))
            except Removed:
                return  # while we looked
            if len(self._final_rows) >= _ROWS_AT_ONCE:
                self.flush_rows()

    def flush_rows(self) -> None:
        """Write the noted ends into the index. For a runner that was killed before it signalled its end, this host
        does."""
        rows, self._final_rows = self._final_rows, []
        unsignalled = self.index.note(rows) if rows else []
        if unsignalled:
            gone = {id for id in unsignalled if not runner_lives(self.home.session(id))}
            # Most runners were only about to leave.
            unsignalled = self.index.note([row for row in rows if row.id in gone])
            if unsignalled:
                self.consumers.catchup.record_lost(unsignalled)

    async def sessions(
        self, *, all: bool, fits: Callable[[Snapshot], bool], owner: str | None = None
    ) -> list[Snapshot]:
        """The live sessions, or all; newest last. With an owner, runners of other owners are not even asked."""
        self.flush_rows()
        look = self.index.query(owner=owner) if all else self.index.look()
        shots, unread = [], []
        for id, record in look.records.items():
            try:
                exit = None if record["exit"] is None else Exit.from_json(record["exit"])
                shots.append(Snapshot(**{**record, "exit": exit}))
            except (KeyError, AttributeError):
                unread.append(id)  # of another release, or damaged: read its directory
        worth_noting = 1 if all else _WORTH_NOTING
        seen, _ = await self._observe_all([*look.unfinished, *unread], owner, worth_noting)
        for each in seen:
            if all or each.state in LIVE_STATES or each.has_survivors:
                try:
                    shots.append(each.snapshot())
                except Removed:
                    continue  # while we looked
        return sorted(filter(fits, shots), key=lambda shot: (shot.created_at or "", shot.id))

    async def recover(self) -> Recovered:
        began = time.monotonic()
        self.flush_rows()
        look = self.index.look()
        seen, damaged = await self._observe_all(look.unfinished)
        groups: dict[str, list[Any]] = {state: [] for state in (RUNNING, EXITED, UNREACHABLE, STALE, LOST)}
        for each in seen:
            try:
                groups[RUNNING if each.state == STARTING else each.state].append(each.snapshot())
            except Removed:
                continue  # while we looked
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
        self, ids: Iterable[str], owner: str | None = None, worth_noting: int = 1
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
            files = [each for each in files if each.current().get("owner") == owner]
        seen = []
        for each in await self._sweep(files):
            if each.damage is None:
                seen.append(each)
            else:
                damaged[each.files.id] = each.damage
        ended = [each for each in seen if each.final]
        # A runner that was killed did not signal its end: this host does.
        if len(ended) >= worth_noting or any(each.state == LOST for each in ended):
            for each in ended:
                self.note(each)
            self.flush_rows()
        return seen, damaged

    async def _with_deputies(self, files: list[Files]) -> list[Files]:
        """The same files, after a new deputy was started for each session in another place that has none."""
        alone = [needs_deputy(each) for each in files]
        specs = [each.spec for each, is_alone in zip(files, alone, strict=True) if is_alone]
        if specs:
            from .launch import send_deputies

            await self.driver.call(lambda: send_deputies(self, specs))
        return [read_again(each) if is_alone else each for each, is_alone in zip(files, alone, strict=True)]

    async def _sweep(self, files: list[Files]) -> list[Observed]:
        files = await self._with_deputies(files)
        timeout = self.config.hosts_sweep_timeout
        seen = await sweep(self.driver, files, author=self.author, timeout=timeout)
        # If a deputy died meanwhile, another can say more.
        again = [at for at, each in enumerate(seen) if each.files.away and needs_deputy(each.files)]
        if again:
            files = await self._with_deputies([seen[at].files for at in again])
            second = await sweep(self.driver, files, author=self.author, timeout=timeout)
            for at, each in zip(again, second, strict=True):
                seen[at] = each
        return seen

    def _row(self, id: str) -> Row | None:
        """The index row of a directory, from the files alone."""
        try:
            return row_of(from_files(read_files(self.home, id)))
        except (NotFound, DamagedRecord, Removed):
            return None

    def _finish(self, db: sqlite3.Connection, id: str) -> bool:
        """Put its remaining signals into the index, before the session is final there. A runner that is still alive may
        add more."""
        from ..signals.catchup import finish

        return not runner_lives(self.home.session(id)) and finish(db, self.home, id, writer_lives=False)

    def _facts_without_runner(self, id: str) -> RunnerGoneFacts | None:
        from .launch import send_deputies
        from .without_runner import facts_without_runner

        try:
            files = read_files(self.home, id)
        except NotFound:
            return None
        if needs_deputy(files):
            send_deputies(self, [files.spec])
            if needs_deputy(files):
                raise BlockingIOError  # the new deputy is already gone: another is started in a moment
            files = read_again(files)
        return facts_without_runner(files, row_of)

    def _call_people(self, variant: str, record: dict[str, Any], notify: bool | None) -> None:
        from .without_runner import start_deliverer_for

        start_deliverer_for(self.home, self.config, variant, record, notify)

    # Acting.

    async def connect(self, id: str, within: float | None = None) -> tuple[Files, Connection]:
        """A connection to this session's runner, with proven identity; the error says why there is none. `within` is
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
                    raise seen.error_without_runner(waited) from None
            except ProtocolError as problem:
                raise IdentityMismatch(id, "the answer at its endpoint", "a runner's hello", problem.why) from None
            await self.driver.ready((), (), _ENDPOINT_S)
        try:
            prove(id, connection.hello, files.spec, read_again(files).state or files.state)
        except BaseException:
            connection.close()
            raise
        return files, connection

    async def request(self, id: str, type: str, within: float | None = None, /, **fields: object) -> dict[str, Any]:
        """`within` is for a caller that cannot wait as long as a runner may take."""
        _, connection = await self.connect(id, within)
        reply_s = self.config.hosts_reply_timeout
        try:
            return await connection.request(type, reply_s if within is None else min(reply_s, within), **fields)
        except RunnerGone:
            # It left while we talked to it: most often because the command has just ended.
            raise from_files(read_files(self.home, id)).error_without_runner() from None
        finally:
            connection.close()

    def lives_on(self, id: str) -> bool:
        """True if anything is left of a session whose records cannot be used."""
        return bool(runner_holds(self.home, id, self.runtime) or orphans(id, None, None))

    async def pending_signals(self, shots: Iterable[Snapshot]) -> dict[str, int]:
        """How many signals of each wait for its owner; without an owner, for the person at the terminal."""
        shots = list(shots)
        waiting = await self.consumers.listing().counts({shot.owner for shot in shots}) if shots else {}
        return {shot.id: waiting.get(shot.id, 0) for shot in shots}

    def collect_when_due(self, spare: str) -> None:
        """Hosts collect now and then, so that no user has to. The session that was just started stays, even if it has
        ended and the disk is full."""
        if not self.config.collect_enabled:
            return
        interval = self.config.collect_interval
        try:
            age = clock.wall_ns() / 1e9 - os.stat(self.home.gc_stamp).st_mtime
        except FileNotFoundError:
            age = interval
        # A stamp in the future is from before the clock was set back: waiting for it could take years.
        if not 0 <= age < interval:
            from .gc import collect_home

            collect_home(self, dry_run=False, all=False, spare=spare)

    def endpoint(self, id: str) -> str:
        """Where the runner of a session here, or the deputy of one in another place, listens."""
        return os.path.join(self.runtime, id + ".sock")

    def log(self, id: str) -> Log:
        from .log import Log

        return Log(self.home.session(id))


def fits(
    *,
    owner: str | None,
    labels: Mapping[str, str] | None,
    status: str | None,
    state: str | None,
    name: str | None,
    search: str | None,
) -> Callable[[Snapshot], bool]:
    """True if a session matches the filter of a listing."""
    wanted = search.casefold() if search else None

    def fit(shot: Snapshot) -> bool:
        return (
            (owner is None or shot.owner == owner)
            and (status is None or shot.status == status)
            and (state is None or shot.state == state)
            and (name is None or shot.name == name)
            and all(shot.labels.get(key) == value for key, value in (labels or {}).items())
            and (wanted is None or wanted in _searchable(shot))
        )

    return fit


def _searchable(shot: Snapshot) -> str:
    labels = [f"{key}={value}" for key, value in shot.labels.items()]
    return "\n".join([shot.id, shot.name or "", shot.command, shot.cwd or "", shot.description, *labels]).casefold()


def row_of(seen: Observed) -> Row:
    shot = seen.snapshot()
    final = seen.final
    return Row(
        shot.id,
        name=shot.name,
        owner=shot.owner,
        created_at=shot.created_at,
        pid=shot.pid,
        final=final,
        record=shot.to_json() if final else None,
    )
