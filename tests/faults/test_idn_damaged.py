"""IDN-06: a damaged record costs its own session, and nobody else's."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Holdfast, errors
from holdfast.core import records
from holdfast.home import Home
from holdfast.sessions.observe import from_files, read_files
from support.bystander import Bystanders
from support.faults import kill_runner, sweep_up
from support.promised import Beside, home_is_usable, is_typed, left_alone
from support.world import World

RECORDS = ("spec.json", "state.json", "exit.json")


def finished(world: World) -> tuple[Home, Path]:
    """A session that printed on both streams and ended with 3."""
    done = world.open().run("echo out; echo err >&2; exit 3")
    return Home(), world.session(done.id)


def wounds(whole: bytes) -> Iterator[bytes]:
    """Cut at every byte, every byte flipped (all of it and its lowest bit), zeros, nonsense."""
    for at in range(len(whole)):
        yield whole[:at]
    for at, byte in enumerate(whole):
        for mask in (0xFF, 0x01):
            yield whole[:at] + bytes([byte ^ mask]) + whole[at + 1 :]
    yield bytes(len(whole))
    yield b"[]\n"
    yield b'{"v":1}\n'
    yield b"[" * 100_000


@pytest.mark.covers("IDN-06")
@pytest.mark.parametrize("name", RECORDS)
def test_idn_06_a_record_hurt_at_any_byte_is_refused_or_still_says_the_same(world: World, name: str) -> None:
    """Without its check a flipped digit would make another exit code, and nobody could tell."""
    home, directory = finished(world)
    path = directory / name
    whole = path.read_bytes()
    right = {field: value for field, value in records.read(str(path)).items() if field != "check"}
    refused = read_at_all = 0
    for wound in wounds(whole):
        path.write_bytes(wound)
        try:
            files = read_files(home, directory.name)
        except errors.DamagedRecord as problem:
            refused += problem.path == str(path)
            continue
        read = {"spec.json": files.spec, "state.json": files.state, "exit.json": files.exit}[name]
        # The check itself may be what was hurt: then the rest is whole.
        assert read is not None
        assert right.items() <= read.items(), wound[-80:]
        read_at_all += 1
    assert read_at_all < 2 * len('"check":"12345678"}\n')
    assert refused == 3 * len(whole) + 4 - read_at_all


@pytest.mark.covers("IDN-06")
def test_idn_06_frames_hurt_at_any_byte_cost_order_and_never_a_byte(world: World) -> None:
    _, directory = finished(world)
    session = world.open().get(directory.name)
    path = directory / "frames"
    whole = path.read_bytes()
    for wound in wounds(whole):
        path.write_bytes(wound)
        page = session.read()
        assert sorted(data for _, _, data in page.chunks) == [b"err\n", b"out\n"]
    path.unlink()
    path.mkdir()
    assert sorted(session.text().splitlines()) == ["err", "out"]


def copies(home: Home, directory: Path) -> Iterator[tuple[str, Path]]:
    """One copy of the session for each kind of damage, with its damage done."""
    for file in RECORDS:
        for number, damage in enumerate(("empty", "cut", "flip", "zeros", "directory", "pipe", "link", "nonsense")):
            copy = directory.parent / f"b{file[:2]}{number:06d}"
            shutil.copytree(directory, copy)
            spec = records.read(str(directory / "spec.json"))
            fd = os.open(copy, os.O_RDONLY)
            records.write(fd, "spec.json", {**spec, "id": copy.name})
            os.close(fd)
            path = copy / file
            whole = path.read_bytes()
            path.unlink()
            if damage == "directory":
                path.mkdir()
            elif damage == "pipe":
                os.mkfifo(path)
            elif damage == "link":
                path.symlink_to("/proc/self/mem")
            else:
                middle = len(whole) // 2
                path.write_bytes(
                    {
                        "empty": b"",
                        "cut": whole[:middle],
                        "flip": whole[:middle] + bytes([whole[middle] ^ 0x02]) + whole[middle + 1 :],
                        "zeros": bytes(len(whole)),
                        "nonsense": os.urandom(64),
                    }[damage]
                )
            yield damage, copy


@pytest.mark.covers("IDN-06")
def test_idn_06_damaged_sessions_are_reported_and_quarantined_and_block_no_other(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    home, directory = finished(world)
    hurt = {str(copy): damage for damage, copy in copies(home, directory)}
    hf = world.open()
    assert {session.id for session in hf.sessions(all=True)} == {directory.name, beside.session.id}
    assert {str(Path(path).parent) for path in hf.recover().quarantined} == set(hurt)
    for path in hurt:
        with pytest.raises(errors.DamagedRecord) as caught:
            hf.get(Path(path).name).stop()
        is_typed(caught.value)
    collected = hf.collect()
    assert collected.removed == []
    assert {line.partition(":")[0] for line in collected.skipped} == {Path(path).name for path in hurt}
    with pytest.raises(errors.StillRunning):
        hf.collect(all=True)

    told = [finding for finding in hf.doctor() if finding.check == "records" and finding.level != "ok"]
    assert len(told) == len(hurt)
    moved = [finding for finding in told if finding.repaired]
    left = {finding.path: finding for finding in told if not finding.repaired}
    # Where the spec itself is no file, its lock tells nothing: that is not moved without being asked.
    assert {hurt[str(path)] for path in left} == {"directory", "pipe", "link"}
    assert all("--rebuild" in (finding.fix or "") for finding in left.values())
    again = hf.doctor(rebuild=True)
    assert {finding.path for finding in again if finding.check == "records" and not finding.repaired} == {None}
    assert len(list((world.home / "quarantine").iterdir())) == len(hurt)
    for finding in moved:
        assert finding.path is not None
        assert Path(finding.path).is_dir()

    assert hf.recover().quarantined == []
    assert hf.collect().skipped == []
    assert hf.get(directory.name).text() == "out\nerr\n"
    assert_exit_known(hf, directory.name)
    beside.unharmed()
    left_alone(bystander)
    home_is_usable(hf)


def assert_exit_known(hf: Holdfast, id: str) -> None:
    ended = hf.get(id).exit
    assert ended is not None
    assert ended.code == 3


@pytest.mark.covers("IDN-06")
def test_idn_06_a_live_session_with_a_damaged_spec_is_left_where_it_is(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    session = hf.start(world.probe("forever"))
    assert session.wait(match="ready", timeout=30).reason == "match"
    path = world.session(session.id) / "spec.json"
    whole = path.read_bytes()
    # In place, as a bad disk would: the runner's lock is on this very file.
    with path.open("r+b") as file:
        file.write(bytes(len(whole)))
    with pytest.raises(errors.DamagedRecord):
        session.refresh()
    for rebuild in (False, True):
        told = [finding for finding in hf.doctor(rebuild=rebuild) if finding.path == str(path.parent)]
        assert [(finding.level, finding.repaired) for finding in told] == [("problem", False)]
    assert path.parent.is_dir()
    with path.open("r+b") as file:
        file.write(whole)
    assert session.refresh().state == "running"
    left_alone(bystander)
    beside.unharmed()
    assert session.stop(grace=0).done


@pytest.mark.covers("IDN-06")
def test_idn_06_a_damaged_session_whose_command_lives_is_kept_in_sight(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    """Moved aside, its command would run on with nobody to list or end it."""
    hf = world.open()
    session = hf.start(world.probe("forever"))
    assert session.wait(match="ready", timeout=30).reason == "match"
    path = world.session(session.id) / "state.json"
    whole = path.read_bytes()
    kill_runner(session)
    path.write_bytes(whole[:100])
    told = [finding for finding in hf.doctor() if finding.path == str(path.parent)]
    assert [(finding.level, finding.repaired) for finding in told] == [("problem", False)]
    assert str(session.pid) in (told[0].fix or "")
    path.write_bytes(whole)
    assert session.stop(grace=0).done
    assert from_files(read_files(Home(), session.id)).state == "lost"
    left_alone(bystander)
    beside.unharmed()
    sweep_up(world, hf)
