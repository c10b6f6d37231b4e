"""Records appear whole or not at all: at every error, and at every point where the machine could have stopped."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core import failpoints, records

RECORD = {"v": 1, "id": "b1234567", "line": ["sh", os.fsdecode(b"\xff"), "ü"], "changed": {"name": None}}
EXIT = {"v": 1, "exit": {"code": 0}, "gaps": [], "ends": {"stdout": 3}}

texts = st.text(st.characters(codec="utf-8"), max_size=20)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)
# `check` is the record's own.
any_record = st.dictionaries(texts.filter(lambda key: key != "check"), values, min_size=1, max_size=5)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)
    failpoints.reload({})


def body(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "check"}


def test_a_written_record_is_read_back_and_private(directory: int, tmp_path: Path) -> None:
    records.write(directory, "state.json", RECORD)
    assert body(records.read(str(tmp_path / "state.json"))) == RECORD
    assert os.listdir(tmp_path) == ["state.json"]
    assert (tmp_path / "state.json").stat().st_mode & 0o777 == 0o600


@given(any_record)
def test_any_record_is_read_back_as_it_was(record: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as path:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        records.write(fd, "state.json", record)
        os.close(fd)
        assert body(records.read(f"{path}/state.json")) == record


def test_fields_of_a_later_release_stay_when_a_record_is_rewritten(directory: int, tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text('{"v":1,"later":[1,2],"changed":{"name":"old"}}')
    records.write(directory, "state.json", RECORD)
    assert body(records.read(str(tmp_path / "state.json"))) == {**RECORD, "later": [1, 2]}


def test_a_locked_record_is_locked_from_the_moment_it_can_be_seen(directory: int, tmp_path: Path) -> None:
    seen: list[bool] = []
    real = os.rename

    def rename(*args: Any, **options: Any) -> None:
        real(*args, **options)
        with (tmp_path / "spec.json").open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                seen.append(False)
            except BlockingIOError:
                seen.append(True)

    with patch.object(os, "rename", rename):
        lock = records.write_locked(directory, "spec.json", RECORD)
    assert seen == [True]
    os.close(lock)
    assert body(records.read(str(tmp_path / "spec.json"))) == RECORD


def test_the_exit_record_is_written_into_the_space_reserved_at_the_start(directory: int, tmp_path: Path) -> None:
    records.reserve_exit(directory)
    room = (tmp_path / ".exit.reserved").stat()
    assert room.st_size == records.EXIT_ROOM_BYTES
    records.write_exit(directory, EXIT, durable=True)
    assert (tmp_path / "exit.json").stat().st_ino == room.st_ino
    assert body(records.read(str(tmp_path / "exit.json"))) == EXIT
    assert os.listdir(tmp_path) == ["exit.json"]


def test_the_exit_record_is_written_again_in_one_step(directory: int, tmp_path: Path) -> None:
    records.reserve_exit(directory)
    records.write_exit(directory, EXIT, durable=False)
    records.write_exit(directory, {**EXIT, "exit": {"code": 0, "complete": True}}, durable=True)
    assert records.read(str(tmp_path / "exit.json"))["exit"] == {"code": 0, "complete": True}
    assert os.listdir(tmp_path) == ["exit.json"]


def test_the_room_for_the_exit_record_holds_every_gap_warning_and_survivor_that_can_be_listed(
    directory: int, tmp_path: Path
) -> None:
    """On the faulty code a disk that refused often had more gaps to tell than room was taken for, and so had a
    command that left many processes behind."""
    far = 1 << 52
    gaps = [{"stream": "stdout", "from": far + n, "to": far + n, "reason": "disk"} for n in range(66)]
    warnings = ["the disk refuses the log of stdout (No space left on device); the command goes on" for _ in range(16)]
    records.reserve_exit(directory)
    survivor = {"pid": 1 << 22, "start": 1 << 40, "command": "x" * 200, "error": "EPERM"}
    exit = {"code": 0, "survivors": [survivor] * 20, "survivors_more": 1 << 22}
    records.write_exit(directory, {**EXIT, "exit": exit, "gaps": gaps, "warnings": warnings}, durable=False)
    assert (tmp_path / "exit.json").stat().st_size <= records.EXIT_ROOM_BYTES


Act = Callable[[int], object]


def _write_state(directory: int) -> None:
    records.write(directory, "state.json", RECORD)


def _write_spec(directory: int) -> None:
    os.close(records.write_locked(directory, "spec.json", RECORD))


def _write_exit(directory: int) -> None:
    records.write_exit(directory, EXIT, durable=True)


ACTS: dict[str, Act] = {"state.json": _write_state, "spec.json": _write_spec, "exit.json": _write_exit}


@pytest.mark.parametrize("name", ACTS)
@pytest.mark.parametrize("before", ["nothing", "an older one"])
@pytest.mark.parametrize("reserved", [False, True])
def test_an_error_at_any_step_leaves_the_old_record_or_none_and_the_next_try_works(
    directory: int, tmp_path: Path, name: str, before: str, reserved: bool
) -> None:
    reached = 0
    for point in ("records.create", "records.data", "records.rename"):
        for nth in range(1, 20):
            for path in tmp_path.iterdir():
                path.unlink()
            if reserved:
                records.reserve_exit(directory)
            if before == "an older one":
                (tmp_path / name).write_text('{"v":0}\n')
            failpoints.reload({"HOLDFAST_POINTS": f"{point}={nth}*error:ENOSPC"})
            refused = _errno_of(ACTS[name], directory)
            failpoints.reload({})
            if refused is None:
                break
            assert refused == errno.ENOSPC
            assert _content(tmp_path / name) == ({"v": 0} if before == "an older one" else None)
            if name != "spec.json":  # a start whose spec was refused is over
                ACTS[name](directory)
                assert _content(tmp_path / name) is not None
                assert {path.name for path in tmp_path.iterdir()} <= {name, ".exit.reserved"}
            reached += 1
        else:
            pytest.fail("the fault was always reached")
    assert reached >= 2


def _errno_of(act: Act, directory: int) -> int | None:
    try:
        act(directory)
    except OSError as problem:
        return problem.errno
    return None


def _content(path: Path) -> dict[str, Any] | None:
    try:
        return body(json.loads(path.read_text()))
    except FileNotFoundError:
        return None


class Tape:
    """The calls that change a directory, in order, so that it can be built as it was after each of them."""

    def __init__(self) -> None:
        self.steps: list[tuple[Any, ...]] = []
        self._real = {name: getattr(os, name) for name in ("open", "write", "rename", "unlink", "ftruncate", "fsync")}
        self._names: dict[int, str] = {}

    def __enter__(self) -> Tape:
        def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
            fd: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
            if flags & os.O_ACCMODE:
                self._names[fd] = path
                self.steps.append(("create", path, bool(flags & os.O_TRUNC)))
            return fd

        def wrote(fd: int, data: bytes) -> int:
            count: int = self._real["write"](fd, data)
            self.steps.append(("write", self._names[fd], bytes(data[:count])))
            return count

        def renamed(old: str, new: str, **options: Any) -> None:
            self._real["rename"](old, new, **options)
            self.steps.append(("rename", old, new))

        def cut(fd: int, size: int) -> None:
            self._real["ftruncate"](fd, size)
            self.steps.append(("cut", self._names[fd], size))

        fakes = {"open": opened, "write": wrote, "rename": renamed, "ftruncate": cut}
        self._patches = [patch.object(os, name, fake) for name, fake in fakes.items()]
        for each in self._patches:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._patches:
            each.stop()

    def states(self) -> Iterator[dict[str, bytes]]:
        """The files after each prefix of the steps, and after each part of its last write."""
        files: dict[str, bytes] = {}
        at: dict[str, int] = {}
        yield {}
        for verb, name, *rest in self.steps:
            if verb == "create":
                files[name] = b"" if rest[0] else files.get(name, b"")
                at[name] = 0
            elif verb == "write":
                old = files[name]
                for torn in range(1, len(rest[0]) + 1):
                    data = rest[0][:torn]
                    files[name] = old[: at[name]] + data + old[at[name] + torn :]
                    if torn < len(rest[0]):
                        yield dict(files)
                at[name] += len(rest[0])
            elif verb == "rename":
                files[rest[0]] = files.pop(name)
            elif verb == "cut":
                files[name] = files[name][: rest[0]]
            yield dict(files)


def test_a_machine_that_stops_at_any_byte_leaves_whole_records_only(tmp_path: Path) -> None:
    life = tmp_path / "life"
    life.mkdir()
    directory = os.open(life, os.O_RDONLY | os.O_DIRECTORY)
    with patch.object(records, "EXIT_ROOM_BYTES", 400), Tape() as tape:
        records.reserve_exit(directory)
        lock = records.write_locked(directory, "spec.json", RECORD)
        records.write(directory, "state.json", RECORD)
        records.write(directory, "state.json", {**RECORD, "changed": {"name": "web"}})
        records.write_exit(directory, EXIT, durable=True)
        records.write_exit(directory, {**EXIT, "exit": {"code": 0, "survivors": []}}, durable=True)
    os.close(lock)
    os.close(directory)
    count = 0
    for files in tape.states():
        count += 1
        for name in ("spec.json", "state.json", "exit.json"):
            if name in files:
                (tmp_path / "one").write_bytes(files[name])
                found = records.read(str(tmp_path / "one"))
                assert body(found) in (
                    RECORD,
                    {**RECORD, "changed": {"name": "web"}},
                    EXIT,
                    {**EXIT, "exit": {"code": 0, "survivors": []}},
                )
        if "state.json" in files:
            assert "spec.json" in files
        if "exit.json" in files:
            assert "state.json" in files
    assert count > 500


@given(st.binary(max_size=300))
@example(b"[" * 100_000)
@example(b"[1]")
@example(b'{"check":"00000000"}\n')
@example(b'{"a":1,"check":"00000000"}\n')
def test_any_bytes_are_a_record_or_a_value_error(raw: bytes) -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(raw)
        file.flush()
        try:
            assert isinstance(records.read(file.name), dict)
        except ValueError:
            pass


def test_every_flipped_bit_of_a_record_is_noticed(directory: int, tmp_path: Path) -> None:
    records.write(directory, "exit.json", EXIT)
    raw = bytearray((tmp_path / "exit.json").read_bytes())
    for at in range(len(raw)):
        for bit in range(8):
            raw[at] ^= 1 << bit
            (tmp_path / "hurt").write_bytes(raw)
            try:
                found = records.read(str(tmp_path / "hurt"))
            except ValueError:
                pass
            else:
                # In the check itself a flip may make another spelling, which is taken at its word.
                assert body(found) == EXIT or at >= len(raw) - 22
            raw[at] ^= 1 << bit


@pytest.mark.parametrize("plant", ["directory", "fifo"])
def test_a_non_file_is_no_record_and_is_not_waited_for(tmp_path: Path, plant: str) -> None:
    path = tmp_path / "spec.json"
    path.mkdir() if plant == "directory" else os.mkfifo(path)
    with pytest.raises((ValueError, IsADirectoryError)):
        records.read(str(path))


def test_an_absent_record_is_reported_as_absent(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        records.read(str(tmp_path / "spec.json"))


@pytest.mark.parametrize("kind", ["pipe", "link", "directory"])
def test_what_is_planted_for_the_reserved_room_blocks_nothing(directory: int, tmp_path: Path, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    os.mkfifo(elsewhere)
    for name in (".exit.reserved", "exit.json.tmp", "exit.json"):
        path = tmp_path / name
        os.mkfifo(path) if kind == "pipe" else path.mkdir() if kind == "directory" else path.symlink_to(elsewhere)
    records.note_ends(directory, {"stdout": 4})
    assert records.noted_ends(str(tmp_path)) == {}
    records.write_exit(directory, {"exit": {"code": 3}}, durable=True)
    assert records.read(str(tmp_path / "exit.json"))["exit"] == {"code": 3}


def test_a_runner_lives_while_it_holds_its_spec_and_nothing_else_of_that_name_is_one(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    held = records.write_locked(directory, "spec.json", {"v": 1})
    assert records.runner_lives(str(tmp_path))
    os.close(held)
    os.close(directory)
    spec = tmp_path / "spec.json"
    assert not records.runner_lives(str(tmp_path))
    spec.unlink()
    assert not records.runner_lives(str(tmp_path))
    spec.symlink_to(spec)
    assert not records.runner_lives(str(tmp_path))
    assert not records.runner_lives(str(spec))
