"""The index finds what the directories hold, whatever happens to its file."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.home import Home, is_id
from holdfast.index import Index, Row
from holdfast.index.database import SCHEMA
from support.own_time import QuietTime
from support.world import World


class Sessions:
    """Session directories, each with one file that is the whole truth about it."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.reads: list[str] = []

    def put(self, id: str, **fields: Any) -> None:
        directory = Path(self.home.session(id))
        directory.mkdir(mode=0o700, exist_ok=True)
        fields.setdefault("created_at", f"2026-08-01T09:00:00.{len(os.listdir(self.home.sessions)):03d}Z")
        if fields.get("final"):
            fields.setdefault("record", {"id": id, "name": fields.get("name")})
        (directory / "truth.json").write_text(json.dumps(fields))

    def read(self, id: str) -> Row | None:
        self.reads.append(id)
        try:
            fields = json.loads(Path(self.home.session(id), "truth.json").read_bytes())
        except (OSError, ValueError):
            return None
        return Row(id, **fields)

    def remove(self, id: str) -> None:
        shutil.rmtree(self.home.session(id))

    def settle(self) -> None:
        """As if the last change had been a while ago."""
        before = time.time_ns() - 10_000_000_000
        os.utime(self.home.sessions, ns=(before, before))


@pytest.fixture
def home(world: World) -> Home:
    made = Home()
    made.create()
    return made


@pytest.fixture
def sessions(home: Home) -> Sessions:
    made = Sessions(home)
    made.put("b00000001", name="web", pid=101)
    made.put("b00000002", name="db", owner="agent-7", pid=102, final=True)
    made.put("c00000003", name="web", owner="agent-7", pid=103, final=True)
    return made


@pytest.fixture
def index(sessions: Sessions) -> Iterator[Index]:
    made = Index(sessions.home, sessions.read)
    yield made
    made.close()


def fill(index: Index, sessions: Sessions) -> None:
    """What a host does after each look."""
    index.note(row for row in map(sessions.read, index.look().unfinished) if row)


def check_all(index: Index) -> None:
    """Every answer about the three sessions of the fixture is right."""
    look = index.query()
    assert {*look.unfinished, *look.records} == {"b00000001", "b00000002", "c00000003"}
    assert "b00000001" in look.unfinished
    assert index.prefix("b0000") == ["b00000001", "b00000002"]
    assert index.by_name("web") == ["c00000003", "b00000001"]
    assert index.by_pid(102) == ["b00000002"]
    assert index.last() == "c00000003"
    look = index.query(owner="agent-7")
    assert {"b00000002", "c00000003"} <= {*look.unfinished, *look.records}
    assert "b00000001" not in look.records
    assert not index.removed("b00000001")


def test_new_file_is_private_from_birth_and_in_wal_mode(home: Home) -> None:
    before = os.umask(0)
    index = Index(home, lambda _: None)
    try:
        assert index.look().unfinished == []
        names = [name for name in os.listdir(home.path) if name.startswith("index.db")]
        assert "index.db-wal" in names
        assert {stat.S_IMODE(os.stat(os.path.join(home.path, name)).st_mode) for name in names} == {0o600}
    finally:
        os.umask(before)
        index.close()


def test_look_gives_unfinished_ids_and_records_of_final_ones(index: Index, sessions: Sessions) -> None:
    assert index.query().unfinished == ["b00000001", "b00000002", "c00000003"]
    fill(index, sessions)
    look = index.query()
    assert look.unfinished == ["b00000001"]
    assert look.records["c00000003"] == {"id": "c00000003", "name": "web"}
    assert index.look().records == {}, "records cost time"
    assert set(index.query().records) == {"b00000002", "c00000003"}
    assert index.unfinished() == ["b00000001"]
    check_all(index)


def test_unchanged_directory_is_not_listed_again(
    index: Index, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(index, sessions)
    sessions.settle()
    index.look()
    monkeypatch.setattr(Index, "ids", lambda self: pytest.fail("listed without need"))
    assert index.look().unfinished == ["b00000001"]
    monkeypatch.undo()
    sessions.put("b00000009")
    assert index.look().unfinished == ["b00000001", "b00000009"]


def test_change_within_one_tick_of_the_clock_is_seen(index: Index, sessions: Sessions) -> None:
    """The directory changes after a look, and its time stamp stays the same."""
    now = time.time_ns() + 1_000_000_000
    os.utime(sessions.home.sessions, ns=(now, now))
    fill(index, sessions)
    index.look()
    sessions.put("b00000009")
    os.utime(sessions.home.sessions, ns=(now, now))
    assert "b00000009" in index.look().unfinished


def test_note_of_what_is_known_writes_nothing(index: Index, sessions: Sessions) -> None:
    sessions.settle()
    fill(index, sessions)
    with sqlite3.connect(sessions.home.index) as other:
        before = other.execute("PRAGMA data_version").fetchone()
        fill(index, sessions)
        index.note([row for row in [sessions.read("b00000002")] if row])
        assert other.execute("PRAGMA data_version").fetchone() == before
    other.close()


def test_final_row_needs_a_record() -> None:
    assert not Row("b00000001", final=True).final
    assert Row("b00000001", record={"id": 1}).record is None


@pytest.mark.covers("IDN-08")
def test_row_without_directory_is_dropped_and_never_comes_back(index: Index, sessions: Sessions) -> None:
    fill(index, sessions)
    late = [row for row in map(sessions.read, ["b00000001", "b00000002"]) if row]
    sessions.remove("b00000001")
    sessions.remove("b00000002")
    assert index.query().unfinished == []
    assert set(index.query().records) == {"c00000003"}
    index.note(late)
    sessions.settle()
    assert index.query().unfinished == []
    assert set(index.query().records) == {"c00000003"}
    assert index.prefix("b000") == []
    assert index.by_name("db") == []
    assert index.by_pid(102) == []
    assert list(index.query().records) == ["c00000003"]


@pytest.mark.covers("IDN-08")
def test_directory_wins_over_a_row_that_is_behind(index: Index, sessions: Sessions) -> None:
    """All hosts died between the exit record and its row; and no host noted a new name."""
    fill(index, sessions)
    sessions.put("b00000001", name="api", pid=101, final=True)
    assert index.look().unfinished == ["b00000001"]
    assert index.by_name("api") == ["b00000001"]
    assert index.by_name("web") == ["c00000003"]
    assert index.look().unfinished == []
    assert index.query().records["b00000001"]["name"] == "api"


def test_unreadable_directory_hides_no_other(index: Index, sessions: Sessions) -> None:
    Path(sessions.home.session("c00000003"), "truth.json").write_text("{")
    assert index.by_name("web") == ["b00000001"]
    assert index.last() == "b00000002"
    assert index.rebuild() == 2
    assert "c00000003" in index.look().unfinished


def test_names_that_are_no_ids_are_not_sessions(index: Index, sessions: Sessions) -> None:
    for name in (".trash-b00000001-00", "short", "B00000009", "b0000000.9"):
        os.mkdir(os.path.join(sessions.home.sessions, name))
    assert index.ids() == {"b00000001", "b00000002", "c00000003"}
    check_all(index)


@pytest.mark.parametrize("text", ["b0%", "B000", "../", "b000'", "\udcff", "", "b00000001x" * 10])
def test_odd_prefixes_match_nothing_by_accident(index: Index, sessions: Sessions, text: str) -> None:
    fill(index, sessions)
    assert index.prefix(text) == (["b00000001", "b00000002", "c00000003"] if text == "" else [])
    assert not index.removed(text)
    assert index.by_name(text) == []


@pytest.mark.parametrize("pid", [0, -1, 1 << 63, 1 << 80])
def test_odd_pids_match_nothing(index: Index, sessions: Sessions, pid: int) -> None:
    sessions.put("b00000009", pid=pid, final=True)
    fill(index, sessions)
    assert index.by_pid(pid) == []
    assert index.trouble is None


def test_bytes_of_no_encoding_survive_in_the_record(index: Index, sessions: Sessions) -> None:
    odd = "caf\udce9\0\ud800"
    sessions.put("b00000009", name=odd, final=True, record={"command": odd})
    fill(index, sessions)
    assert index.query().records["b00000009"] == {"command": odd}
    assert index.by_name(odd) == ["b00000009"]
    assert index.trouble is None


def test_query_gives_the_newest_first_up_to_a_limit(index: Index, sessions: Sessions) -> None:
    sessions.put("b00000011", created_at="2026-08-02T00:00:00.000Z", final=True)
    sessions.put("b00000012", created_at="2026-08-03T00:00:00.000Z", final=True)
    fill(index, sessions)
    assert list(index.query().records) == ["b00000012", "b00000011", "c00000003", "b00000002"]
    assert list(index.query(limit=2).records) == ["b00000012", "b00000011"]
    assert list(index.query(limit=0).records) == []


def test_removal_is_remembered_and_the_memory_is_bounded(index: Index, sessions: Sessions) -> None:
    fill(index, sessions)
    sessions.remove("b00000002")
    index.mark_removed(["b00000002"])
    assert index.removed("b00000002")
    assert set(index.query().records) == {"c00000003"}
    index.mark_removed(["b00000001"])
    assert not index.removed("b00000001"), "its directory is there, so it is not removed"
    index.mark_removed([f"d{number:08d}" for number in range(10_000)])
    assert not index.removed("b00000002")
    assert index.removed("d00000000")
    assert index.removed("d00009999")


def test_rebuild_starts_a_new_generation_and_reads_everything(index: Index, sessions: Sessions) -> None:
    fill(index, sessions)
    before = index.generation()
    with sqlite3.connect(sessions.home.index) as other:
        other.execute("UPDATE sessions SET name = 'wrong', final = 1, record = '{}'")
    other.close()
    assert index.rebuild() == 3
    assert index.generation() != before
    check_all(index)


def delete(home: Home) -> None:
    os.unlink(home.index)


def delete_all(home: Home) -> None:
    for end in ("", "-wal", "-shm"):
        os.unlink(home.index + end)


def empty(home: Home) -> None:
    os.truncate(home.index, 0)


def cut(home: Home) -> None:
    os.truncate(home.index, os.stat(home.index).st_size // 2 + 100)


def garbage(home: Home) -> None:
    Path(home.index).write_bytes(os.urandom(os.stat(home.index).st_size))


def garbage_behind_the_header(home: Home) -> None:
    size = os.stat(home.index).st_size
    with open(home.index, "r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * (size - 100))


def cut_wal(home: Home) -> None:
    os.truncate(home.index + "-wal", os.stat(home.index + "-wal").st_size // 2)


def garbage_wal(home: Home) -> None:
    Path(home.index + "-wal").write_bytes(b"\xa5" * os.stat(home.index + "-wal").st_size)


def delete_wal(home: Home) -> None:
    os.unlink(home.index + "-wal")


def swap_for_a_foreign_database(home: Home) -> None:
    with sqlite3.connect(home.index + ".other") as other:
        other.execute("CREATE TABLE meta (something TEXT)")
    other.close()
    os.rename(home.index + ".other", home.index)


def swap_for_the_index_of_another_home(home: Home) -> None:
    with tempfile.TemporaryDirectory() as path:
        other_home = Home(path)
        other_home.create()
        other = Sessions(other_home)
        other.put("b00000001", name="stranger", final=True, created_at="2030-01-01T00:00:00.000Z")
        other.put("z00000001", name="web", pid=102, final=True, owner="agent-7")
        foreign = Index(other_home, other.read)
        fill(foreign, other)
        other.settle()
        foreign.look()
        foreign.close()
        os.rename(other_home.index, home.index)
    with sqlite3.connect(home.index) as db:
        # What is final there is not final here; only the listing shows that.
        db.execute("UPDATE sessions SET final = 0, record = NULL WHERE id = 'b00000001'")
    db.close()


DAMAGES: list[Callable[[Home], None]] = [
    delete,
    delete_all,
    empty,
    cut,
    garbage,
    garbage_behind_the_header,
    cut_wal,
    garbage_wal,
    delete_wal,
    swap_for_a_foreign_database,
    swap_for_the_index_of_another_home,
]


@pytest.mark.covers("IDN-07")
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("settled", [True, False])
def test_damaged_file_is_replaced_and_every_answer_is_right(
    index: Index, sessions: Sessions, damage: Callable[[Home], None], settled: bool
) -> None:
    fill(index, sessions)
    if settled:
        sessions.settle()
        index.look()
    damage(sessions.home)
    fresh = Index(sessions.home, sessions.read)
    try:
        check_all(index)
        check_all(fresh)
        fill(index, sessions)
        assert index.look().unfinished == ["b00000001"], "what is noted now stays"
        assert fresh.look().unfinished == ["b00000001"]
        check_all(fresh)
    finally:
        fresh.close()
    aside = [name for name in os.listdir(sessions.home.path) if "broken" in name and name[-4] != "-"]
    if aside:
        assert any(aside[0] in str(each.trouble) for each in (index, fresh)), "said"


@pytest.mark.covers("IDN-07")
def test_io_error_of_a_home_that_is_gone_is_said_and_done_without(index: Index, home: Home) -> None:
    index.look()

    def fail(_: sqlite3.Connection) -> None:
        shutil.rmtree(home.path)
        error = sqlite3.OperationalError("disk I/O error")
        error.sqlite_errorcode = sqlite3.SQLITE_IOERR
        raise error

    assert index.database.ask(fail) is None
    assert index.trouble is not None
    assert "disk I/O error" in index.trouble
    assert not index.database.full


def test_directory_in_place_of_the_file_is_said_and_done_without(index: Index, sessions: Sessions) -> None:
    os.mkdir(sessions.home.index)
    check_all(index)
    assert "sessions are read from their directories" in str(index.trouble)


@pytest.mark.covers("IDN-07")
def test_file_of_a_later_release_is_left_alone_and_directories_are_read(index: Index, sessions: Sessions) -> None:
    fill(index, sessions)
    index.close()
    with sqlite3.connect(sessions.home.index) as later:
        later.execute("UPDATE meta SET value = ? WHERE key = 'schema'", (str(SCHEMA + 1),))
        later.execute("DROP TABLE sessions")
    later.close()
    before = Path(sessions.home.index).read_bytes()
    check_all(index)
    fill(index, sessions)
    index.mark_removed(["b00000009"])
    assert index.rebuild() == 3
    assert index.generation() is None
    assert "later release" in str(index.trouble)
    index.close()
    assert Path(sessions.home.index).read_bytes() == before


HOLD_EXCLUSIVE = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
if sys.argv[2] == "readers":
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
db.execute("BEGIN EXCLUSIVE")
db.execute("UPDATE meta SET value = value")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.covers("IDN-07")
@pytest.mark.parametrize("whom", ["writers", "readers"])
def test_file_held_by_another_process_costs_a_bounded_wait_and_is_said(
    world: World, index: Index, sessions: Sessions, whom: str
) -> None:
    fill(index, sessions)
    sessions.settle()
    index.look()
    index.close()
    holder = world.host(HOLD_EXCLUSIVE, sessions.home.index, whom)
    assert holder.line() == "held"
    passed = QuietTime()
    check_all(index)
    fill(index, sessions)
    index.mark_removed(["b00000009"])
    assert passed.seconds() < 5
    assert "locked" in str(index.trouble)
    holder.close_stdin()
    assert holder.wait() == 0
    later = Index(sessions.home, sessions.read)
    try:
        check_all(later)
        assert later.trouble is None
    finally:
        later.close()


def test_trouble_that_passed_is_forgotten(
    world: World, index: Index, sessions: Sessions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.index.database._RETRY_S", 0.0)
    fill(index, sessions)
    holder = world.host(HOLD_EXCLUSIVE, sessions.home.index, "writers")
    assert holder.line() == "held"
    index.mark_removed(["b00000009"])
    assert index.trouble
    assert not index.removed("b00000009")
    holder.kill()
    index.mark_removed(["b00000009"])
    assert index.trouble is None
    assert index.removed("b00000009")


READ_ONLY = """
import json, os, sys
from pathlib import Path
from holdfast.home import Home
from holdfast.index import Index, Row

home = Home()
def read(id):
    return Row(id, **json.loads(Path(home.session(id), "truth.json").read_bytes()))
index = Index(home, read)
print(index.look().unfinished)
index.note([read("b00000009")])
print(index.by_name("web"), index.last(), index.removed("b00000001"))
look = index.query()
print(sorted({*look.unfinished, *look.records}))
print(index.trouble)
"""


@pytest.mark.covers("IDN-07")
@pytest.mark.parametrize("what", ["file", "home"])
def test_read_only_file_or_home_is_said_and_answers_stay_right(
    world: World, index: Index, sessions: Sessions, what: str
) -> None:
    fill(index, sessions)
    index.close()
    sessions.put("b00000009", created_at="2020")
    if what == "file":
        os.chmod(sessions.home.index, 0o400)
    else:
        os.unlink(sessions.home.index)
        os.chmod(sessions.home.path, 0o500)
    # Root without these is bound by the modes like anybody else.
    bound = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    host = world.host(READ_ONLY, prefix=bound)
    unfinished = host.line()
    assert "b00000001" in unfinished
    assert "b00000009" in unfinished
    assert host.line() == "['c00000003', 'b00000001'] c00000003 False"
    assert host.line() == "['b00000001', 'b00000002', 'b00000009', 'c00000003']"
    assert sessions.home.index in host.line()
    assert host.wait() == 0, host.errors()
    os.chmod(sessions.home.path, 0o700)


FORK = """
import os, sys
from holdfast.home import Home
from holdfast.index import Index, Row

index = Index(Home(), lambda id: Row(id, created_at="2026"))
index.look()
index.database._lock.acquire()  # as if another thread had it at the fork
for round in range(3):
    pid = os.fork()
    if pid == 0:
        index.note([Row("b00000002", name=f"child {round}", final=True, record={"round": round})])
        os._exit(index.by_name(f"child {round}") != ["b00000002"])
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
index.database._lock.release()
print(index.query().records, index.trouble)
"""


def test_forked_child_opens_its_own_connection(world: World, sessions: Sessions) -> None:
    host = world.host(FORK)
    assert host.line() == "{'b00000002': {'round': 2}} None", host.errors()
    assert host.wait() == 0


def test_threads_share_one_index(index: Index, sessions: Sessions) -> None:
    failures: list[object] = []

    def use(number: int) -> None:
        for turn in range(20):
            sessions.put(f"t{number:04d}{turn:04d}", name=f"t{number}", final=True, created_at="2020")
            index.note([row for row in [sessions.read(f"t{number:04d}{turn:04d}")] if row])
            if sum(id.startswith(f"t{number:04d}") for id in index.query().records) != turn + 1:
                failures.append((number, turn, index.trouble))

    threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert index.trouble is None
    assert len(index.query().records) == 120


CHURN = """
import os, random, shutil, sys
from holdfast.home import Home
from holdfast.index import Index, Row

home = Home()
read = lambda id: Row(id, created_at="2026", final=True, record={"id": id})
gate, release = os.pipe()
children = []
for number in range(12):
    pid = os.fork()
    if pid == 0:
        os.close(release)
        os.read(gate, 1)
        index = Index(home, read)
        choose = random.Random(number)
        for turn in range(40):
            id = f"r{number:02d}{turn:06d}"
            os.mkdir(home.session(id))
            look = index.query()
            # Another process may have noted its end, or removed it, already.
            known = id in look.unfinished or id in look.records
            assert known or not os.path.exists(home.session(id)), (id, look.unfinished, index.trouble)
            index.note(map(read, look.unfinished))
            if choose.random() < 0.7:
                victim = choose.choice(sorted(index.ids()))
                try:
                    os.rmdir(home.session(victim))
                except FileNotFoundError:
                    continue
                index.mark_removed([victim])
        os._exit(0)
    children.append(pid)
os.close(release)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
print(sum(map(abs, codes)), flush=True)
"""


@pytest.mark.slow
def test_twelve_processes_start_remove_and_look_and_rows_equal_directories(world: World, home: Home) -> None:
    host = world.host(CHURN)
    assert host.line(30) == "0", host.errors()
    assert host.wait() == 0
    index = Index(home, lambda _: None)
    try:
        look = index.query()
        assert {*look.unfinished, *look.records} == index.ids()
        assert not any(index.removed(id) for id in index.ids())
    finally:
        index.close()
    assert not [name for name in os.listdir(home.path) if "broken" in name]


_TEXTS = st.none() | st.text(st.characters(), max_size=20)


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.from_regex(r"[a-z0-9]{6,32}", fullmatch=True),
        st.fixed_dictionaries(
            {
                "name": _TEXTS,
                "owner": _TEXTS,
                "pid": st.none() | st.integers(),
                "final": st.booleans(),
                "record": st.none() | st.dictionaries(st.text(), st.integers() | st.text(), max_size=2),
            }
        ),
        max_size=5,
    )
)
def test_whatever_is_noted_is_found_again(fields: dict[str, dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as path:
        home = Home(path)
        home.create()
        rows = {id: Row(id, created_at=f"2026-{id}", **values) for id, values in fields.items()}
        for id in rows:
            os.mkdir(home.session(id))
        index = Index(home, rows.get)
        try:
            index.look()
            index.note(rows.values())
            look = index.query()
            assert look.unfinished == sorted(id for id, row in rows.items() if not row.final)
            assert look.records == {id: row.record for id, row in rows.items() if row.final}
            assert index.last() == max(rows, default=None)
            for id, row in rows.items():
                assert is_id(id)
                assert id in index.prefix(id[:4])
                assert row.name is None or id in index.by_name(row.name)
                assert not row.final or id in index.query(owner=row.owner).records
            assert index.trouble is None
        finally:
            index.close()
