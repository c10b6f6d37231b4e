"""Collection removes what may go, whole, and disturbs no process that reads, starts or collects beside it."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core import clock
from holdfast.errors import DamagedRecord, StillRunning
from holdfast.home import Home
from holdfast.index import Index, Row
from holdfast.sessions import claims
from holdfast.sessions.claims import Claim
from holdfast.sessions.driver import Blocking, drive
from holdfast.sessions.gc import Facts, Limits, Moment, collect, remove, write_stamp
from support.world import World

pytestmark = pytest.mark.own_launcher

DAY = 86_400.0
SEGMENT = "stdout." + "0" * 20


class Place:
    """A home with sessions that are only files, and an index of them."""

    def __init__(self, home: Home, runtime: Path) -> None:
        self.home = home
        self.runtime = runtime
        self.index = Index(home, lambda name: Row(name, created_at="2026"))

    def session(self, id: str, *, days_ago: float | None = None, bytes: int = 100) -> Path:
        """Ended so long ago; or live."""
        directory = Path(self.home.session(id))
        directory.mkdir(mode=0o700)
        (directory / "spec.json").write_text("{}")
        (directory / "state.json").write_text("{}")
        (directory / SEGMENT).write_bytes(b"x" * bytes)
        if days_ago is not None:
            ended_at = clock.rfc3339(int((time.time() - days_ago * DAY) * 1e9))
            (directory / "exit.json").write_text(json.dumps({"ended_at": ended_at}))
        return directory

    def observe(self, id: str) -> Facts | None:
        directory = Path(self.home.session(id))
        if not (directory / "spec.json").exists():
            raise DamagedRecord(str(directory / "spec.json"), "it is missing")
        if not (directory / "state.json").exists():
            return Facts(id, "starting", final=False, bytes=0)
        try:
            ended_at = clock.epoch(json.loads((directory / "exit.json").read_bytes())["ended_at"])
        except FileNotFoundError:
            return Facts(id, "running", final=False, bytes=(directory / SEGMENT).stat().st_size)
        return Facts(id, "exited", final=True, bytes=(directory / SEGMENT).stat().st_size, ended_at=ended_at)

    def socket(self, id: str, *, listening: bool = False) -> tuple[Path, socket.socket]:
        path = self.runtime / f"{id}.sock"
        end = socket.socket(socket.AF_UNIX)
        end.bind(str(path))
        if listening:
            end.listen(1)
        return path, end


@pytest.fixture
def place(world: World) -> Iterator[Place]:
    home = Home()
    home.create()
    world.runtime.mkdir(mode=0o700)
    made = Place(home, world.runtime)
    yield made
    made.index.close()


def age(path: Path, seconds: float = 120.0) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)


def tree(root: str) -> list[str]:
    return sorted(
        os.path.join(at, name)
        for at, folders, files in os.walk(root)
        for name in folders + files
        if not name.startswith("index.db")
    )


def test_old_sessions_go_whole_and_are_remembered_as_removed(place: Place) -> None:
    old = place.session("b00000001", days_ago=8)
    young = place.session("b00000002", days_ago=6)
    live = place.session("b00000003")
    place.index.look()
    size = sum(path.stat().st_size for path in old.iterdir())
    done = collect(place.home, place.index, Limits(), place.observe)
    assert done.removed == ["b00000001"]
    assert done.freed_bytes == size
    assert done.skipped == []
    assert sorted(os.listdir(place.home.sessions)) == [young.name, live.name]
    assert place.index.removed("b00000001")
    assert place.index.look().unfinished == ["b00000002", "b00000003"]
    assert abs(os.stat(place.home.gc_stamp).st_mtime - time.time()) < 60
    assert stat.S_IMODE(os.stat(place.home.gc_stamp).st_mode) == 0o600


def test_home_above_its_cap_loses_the_oldest_finished(place: Place) -> None:
    place.session("b00000001", days_ago=1, bytes=1000)
    place.session("b00000002", days_ago=2, bytes=1000)
    place.session("b00000003", bytes=5000)
    done = collect(place.home, place.index, Limits(home_bytes=6500), place.observe)
    assert done.removed == ["b00000002"]
    done = collect(place.home, place.index, Limits(home_bytes=100), place.observe)
    assert done.removed == ["b00000001"]
    assert "4,900 bytes" in done.skipped[0]
    assert os.listdir(place.home.sessions) == ["b00000003"]


def test_dry_run_reports_and_touches_nothing(place: Place) -> None:
    place.session("b00000001", days_ago=8)
    age(half := place.session("b00000002"))
    (half / "state.json").unlink()
    (half / SEGMENT).unlink()
    age(half)
    path, end = place.socket("b00000001")
    end.close()
    with drive(Claim(place.home, "name", "web").acquire(Blocking(), 0)) as held:
        held.set("b00000001")
    before = tree(place.home.path)
    done = collect(place.home, place.index, Limits(), place.observe, dry_run=True)
    assert done.dry_run
    assert done.removed == ["b00000001"]
    assert done.freed_bytes == 100
    assert {str(half), str(path), Claim(place.home, "name", "web").path} == set(done.swept)
    assert tree(place.home.path) == before
    assert path.exists()
    assert collect(place.home, place.index, Limits(), place.observe).swept == done.swept


def test_lost_session_counts_from_its_last_sign_of_life(place: Place) -> None:
    for id, days in (("b00000001", 8), ("b00000002", 6)):
        for path in place.session(id).iterdir():
            age(path, days * DAY)

    def observe(id: str) -> Facts:
        return Facts(id, "lost", final=True, bytes=100)

    assert collect(place.home, place.index, Limits(), observe).removed == ["b00000001"]


def test_links_and_folders_inside_a_session_are_removed_and_not_followed(world: World, place: Place) -> None:
    precious = world.root / "precious"
    precious.mkdir()
    (precious / "file").write_text("keep")
    old = place.session("b00000001", days_ago=8)
    (old / "link").symlink_to(precious)
    (old / "files" / "deep").mkdir(parents=True)
    (old / "files" / "deep" / "upload").write_text("x")
    (old / "files" / "link").symlink_to(precious / "file")
    elsewhere = world.root / "elsewhere"
    place.session("b00000002", days_ago=8).rename(elsewhere)
    Path(place.home.session("b00000002")).symlink_to(elsewhere)
    done = collect(place.home, place.index, Limits(), place.observe)
    assert done.removed == ["b00000001", "b00000002"]
    assert os.listdir(place.home.sessions) == []
    assert (precious / "file").read_text() == "keep"
    assert (elsewhere / "exit.json").exists()


def test_unreadable_session_is_reported_and_blocks_nothing(place: Place) -> None:
    (place.session("b00000001", days_ago=8) / "spec.json").unlink()
    place.session("b00000002", days_ago=8)
    done = collect(place.home, place.index, Limits(), place.observe)
    assert done.removed == ["b00000002"]
    assert len(done.skipped) == 1
    assert "b00000001" in done.skipped[0]
    assert os.path.isdir(place.home.session("b00000001"))


@pytest.mark.covers("IDN-05")
def test_incomplete_directories_are_swept_when_no_start_is_in_progress(place: Place) -> None:
    empty, spec, torn, young, locked, lived = (Path(place.home.session(f"b0000000{number}")) for number in range(6))
    for directory in (empty, spec, torn, young, locked, lived):
        directory.mkdir(mode=0o700)
    for directory in (spec, locked, lived):
        (directory / "spec.json").write_text("{}")
    (torn / "spec.json.tmp").write_text("{")
    (lived / SEGMENT).write_text("output")
    for directory in (empty, spec, torn, locked, lived):
        age(directory)
    starter = os.open(locked / "spec.json", os.O_RDONLY)
    try:
        fcntl.flock(starter, fcntl.LOCK_EX)
        done = collect(place.home, place.index, Limits(), place.observe)
        assert done.swept == [str(empty), str(spec), str(torn)]
        assert sorted(os.listdir(place.home.sessions)) == [young.name, locked.name, lived.name]
    finally:
        os.close(starter)
    assert collect(place.home, place.index, Limits(), place.observe).swept == [str(locked)]


@pytest.mark.covers("IDN-05")
def test_sockets_of_the_dead_are_swept_and_others_stay(place: Place) -> None:
    place.session("b00000001")
    place.session("b00000002", days_ago=1)
    place.session("b00000003", days_ago=1)
    ends = []
    kept: set[str] = set()
    gone: set[str] = set()
    for id, listening, old, stays in (
        ("b00000001", False, True, True),  # its session is not finished
        ("b00000002", False, False, False),
        ("b00000003", True, True, True),
        ("c00000004", False, True, False),
        ("c00000005", False, False, True),  # perhaps about to listen, for another home
        ("c00000006", True, True, True),
    ):
        path, end = place.socket(id, listening=listening)
        ends.append(end)
        if old:
            age(path)
        (kept if stays else gone).add(str(path))
    plain = place.runtime / "c00000007.sock"
    plain.write_text("not a socket")
    age(plain)
    link = place.runtime / "c00000008.sock"
    link.symlink_to(place.runtime / "c00000004.sock")
    age(link)
    foreign, end = place.socket("launcher-x")
    ends.append(end)
    age(foreign)
    done = collect(place.home, place.index, Limits(), place.observe)
    for end in ends:
        end.close()
    assert set(done.swept) == gone
    assert {str(path) for path in place.runtime.iterdir()} == kept | {str(plain), str(link), str(foreign)}
    for path in place.runtime.iterdir():
        path.unlink()


def test_runtime_directory_beyond_the_length_of_a_socket_path_is_swept(world: World, place: Place) -> None:
    deep = world.root / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True)
    directory = os.open(deep, os.O_RDONLY)
    try:
        with socket.socket(socket.AF_UNIX) as end:
            end.bind(f"/proc/self/fd/{directory}/c00000001.sock")
    finally:
        os.close(directory)
    age(deep / "c00000001.sock")
    done = collect(place.home, place.index, Limits(), place.observe, runtime=str(deep))
    assert done.swept == [str(deep / "c00000001.sock")]


def test_runtime_directory_that_cannot_be_trusted_is_reported(place: Place) -> None:
    place.session("b00000001", days_ago=8)
    place.runtime.chmod(0o777)
    done = collect(place.home, place.index, Limits(), place.observe)
    assert done.removed == ["b00000001"]
    assert "mode 0777 lets others in" in done.skipped[0]
    place.runtime.chmod(0o700)


def test_claims_go_with_their_holder_and_never_while_held(place: Place) -> None:
    place.session("b00000001", days_ago=1)
    place.session("b00000002", days_ago=8)
    for name, holder in (("kept", "b00000001"), ("going", "b00000002"), ("gone", "c00000009"), ("unset", None)):
        with drive(Claim(place.home, "name", name).acquire(Blocking(), 0)) as held:
            held.set(holder)
    fresh, old, orphan = (Claim(place.home, "key", name) for name in ("fresh", "old", "orphan"))
    for claim in (fresh, old, orphan):
        claim.ticket()
    for claim in (fresh, old):
        drive(claim.acquire(Blocking(), 0)).close()
    for claim in (old, orphan):
        age(Path(claim.path + ".tickets"), 7200)
    other = Path(place.home.locks, "something-else")
    other.touch()
    with drive(Claim(place.home, "name", "starting").acquire(Blocking(), 0)) as held:
        held.set("c00000010")
        done = collect(place.home, place.index, Limits(), place.observe)
        left = {os.path.join(place.home.locks, name) for name in os.listdir(place.home.locks)}
        names = ("kept", "starting")
        assert left == {Claim(place.home, "name", name).path for name in names} | {
            str(other),
            fresh.path + ".tickets",
        }
        assert len(done.swept) == 6
    assert collect(place.home, place.index, Limits(), place.observe).swept == [held_path(place, "starting")]


def test_leftovers_of_a_claim_are_removed_when_old_and_not_held(place: Place) -> None:
    claim = Claim(place.home, "key", "scope")
    for suffix in claims.BESIDE:
        Path(claim.path + suffix).touch()
    assert collect(place.home, place.index, Limits(), place.observe).swept == []
    for suffix in claims.BESIDE:
        age(Path(claim.path + suffix), 7200)
    with open(claim.path + claims.TICKETS) as drawing:
        assert claims.lock_now(drawing.fileno())
        collect(place.home, place.index, Limits(), place.observe)
        assert os.listdir(place.home.locks) == [os.path.basename(claim.path) + claims.TICKETS]
    collect(place.home, place.index, Limits(), place.observe)
    assert os.listdir(place.home.locks) == []


def held_path(place: Place, name: str) -> str:
    return Claim(place.home, "name", name).path


def test_what_a_killed_collector_left_is_finished(place: Place) -> None:
    place.session("b00000001", days_ago=8).rename(Path(place.home.sessions, ".trash-b00000001-00"))
    assert place.index.ids() == set()
    done = collect(place.home, place.index, Limits(), place.observe)
    assert done.removed == []
    assert done.freed_bytes > 100
    assert os.listdir(place.home.sessions) == []


def test_damaged_indexes_that_were_set_aside_go_by_age(place: Place) -> None:
    for name, days in (("index.db.broken-1", 8), ("index.db.broken-1-wal", 8), ("index.db.broken-2", 1)):
        path = Path(place.home.path, name)
        path.touch()
        age(path, days * DAY)
    done = collect(place.home, place.index, Limits(), place.observe)
    assert len(done.swept) == 2
    assert Path(place.home.path, "index.db.broken-2").exists()


def test_removal_of_what_is_there_again_is_forgotten(place: Place) -> None:
    place.index.mark_removed(["b00000001", "b00000002"])
    place.session("b00000001", days_ago=1)
    collect(place.home, place.index, Limits(), place.observe)
    place.session("b00000002").rename(Path(place.home.sessions, "c00000002"))
    assert place.index.removed("b00000002")
    remove(place.home, place.index, "b00000001")
    assert place.index.removed("b00000001")


def test_everything_is_removed_only_when_nothing_is_alive(place: Place) -> None:
    place.session("b00000001", days_ago=0)
    live = [place.session("b00000002"), place.session("b00000003")]
    Path(place.home.session("b00000004")).mkdir()
    with pytest.raises(StillRunning, match="sessions b00000002, b00000003, b00000004 are still running") as caught:
        collect(place.home, place.index, Limits(), place.observe, all=True)
    assert "hold stop" in str(caught.value)
    assert len(os.listdir(place.home.sessions)) == 4
    for directory in live:
        (directory / "exit.json").write_text(json.dumps({"ended_at": clock.now_text()}))
    age(Path(place.home.session("b00000004")))
    done = collect(place.home, place.index, Limits(), place.observe, all=True)
    assert done.removed == ["b00000001", "b00000002", "b00000003"]
    assert os.listdir(place.home.sessions) == []


@pytest.mark.covers("CLK-02")
@pytest.mark.parametrize("by", [-3600.0, 3650 * DAY])
def test_jumped_clock_keeps_everything_for_one_run_and_says_why(place: Place, by: float) -> None:
    place.session("b00000001", days_ago=8)
    place.session("b00000002", days_ago=1)
    now = Moment.now()
    write_stamp(place.home, now)
    jumped = Moment(now.wall_s + by, now.boot_s + 5, now.boot)
    done = collect(place.home, place.index, Limits(), place.observe, now=jumped)
    assert done.removed == []
    assert "no session is removed because of its age" in done.skipped[0]
    assert "wall clock" in done.skipped[0]
    # The clock was set right again: that is a jump as well, and the last one.
    collect(place.home, place.index, Limits(), place.observe, now=now)
    assert collect(place.home, place.index, Limits(), place.observe, now=now).removed == ["b00000001"]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"wall_s": "x"}', b"\xff" * 100, b'{"wall_s": 1}'])
def test_torn_stamp_counts_by_its_time_of_change(place: Place, content: bytes) -> None:
    place.session("b00000001", days_ago=8)
    stamp = Path(place.home.gc_stamp)
    stamp.write_bytes(content)
    age(stamp, -3600)
    assert "behind the last collection" in collect(place.home, place.index, Limits(), place.observe).skipped[0]
    stamp.write_bytes(content)
    assert collect(place.home, place.index, Limits(), place.observe).removed == ["b00000001"]


def test_remove_takes_one_session_and_reports_when_it_was_gone(place: Place) -> None:
    place.session("b00000001", days_ago=0, bytes=1000)
    freed = remove(place.home, place.index, "b00000001")
    assert freed is not None
    assert freed > 1000
    assert remove(place.home, place.index, "b00000001") is None
    assert place.index.removed("b00000001")
    assert os.listdir(place.home.sessions) == []


# 32 processes make, end, read, remove and collect at random. What is live is locked, as by a runner.
CHURN = """
import fcntl, json, os, random
from holdfast.home import Home
from holdfast.sessions.claims import Claim
from holdfast.sessions.driver import Blocking, drive
from holdfast.sessions.gc import Facts, Limits, collect, remove
from holdfast.index import Index, Row
from holdfast.core import clock

home = Home()
NAMES = {"spec.json", "state.json", "exit.json", "stdout." + "0" * 20}

def observe(id):
    path = home.session(id)
    if os.path.exists(os.path.join(path, "exit.json")):
        return Facts(id, "exited", final=True, bytes=100, ended_at=1.0)
    return Facts(id, "running", final=False, bytes=100) if os.path.isdir(path) else None

def row(id):
    facts = observe(id)
    return facts and Row(id, created_at="2026", final=facts.final, record={"id": id})

def put(id, name, text):
    with open(os.path.join(home.session(id), name), "w") as file:
        file.write(text)

def life(number):
    choose = random.Random(number)
    index = Index(home, row)
    locks = {}
    for turn in range(40):
        act = choose.random()
        if act < 0.3:
            id = f"r{number:02d}{turn:06d}"
            with drive(Claim(home, "name", str(choose.randrange(4))).acquire(Blocking(), 20)) as held:
                os.mkdir(home.session(id))
                for name in sorted(NAMES - {"exit.json"}):
                    put(id, name, id)
                held.set(id)
            locks[id] = os.open(os.path.join(home.session(id), "spec.json"), os.O_RDONLY)
            fcntl.flock(locks[id], fcntl.LOCK_EX)
        elif act < 0.5 and locks:
            id, fd = locks.popitem()
            assert set(os.listdir(home.session(id))) == NAMES - {"exit.json"}, "a live session was hurt"
            put(id, "exit.json", json.dumps({"ended_at": clock.now_text()}))
            os.close(fd)
        elif act < 0.7:
            for id in sorted(index.ids()):
                try:
                    text = open(os.path.join(home.session(id), "stdout." + "0" * 20)).read()
                except FileNotFoundError:
                    continue
                assert text in (id, ""), text
            index.note([each for each in map(row, index.look().unfinished) if each])
        elif act < 0.85:
            done = [id for id in sorted(index.ids()) if (facts := observe(id)) and facts.final]
            if done:
                remove(home, index, choose.choice(done))
        else:
            collected = collect(home, index, Limits(age_s=0.0), observe)
            assert not collected.skipped, collected.skipped
    for id, fd in locks.items():
        assert set(os.listdir(home.session(id))) == NAMES - {"exit.json"}, "a live session was hurt"

gate, release = os.pipe()
children = []
for number in range(32):
    pid = os.fork()
    if pid == 0:
        os.close(release)
        os.read(gate, 1)
        try:
            life(number)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(pid)
os.close(release)
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
print(sum(map(abs, codes)), flush=True)
"""


@pytest.mark.slow
def test_32_processes_start_read_remove_and_collect_without_hurting_the_living(world: World, place: Place) -> None:
    host = world.host(CHURN)
    assert host.line(60) == "0", host.errors()
    assert host.wait() == 0
    look = place.index.query()
    assert {*look.unfinished, *look.records} == place.index.ids()
    assert place.index.trouble is None
    left = collect(place.home, place.index, Limits(age_s=0.0), place.observe)
    assert not [name for name in os.listdir(place.home.sessions) if name.startswith(".")]
    assert left.skipped == []


def test_a_run_on_a_full_disk_can_still_be_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collection that its own start makes due does not remove it."""
    monkeypatch.setenv("HOLDFAST_LOG_FREE_FLOOR", "100TiB")
    with world.open() as hf:
        assert not (world.home / "gc.stamp").exists()
        assert hf.run("echo hello", wait=30).text() == "hello\n"
        assert (world.home / "gc.stamp").exists()
