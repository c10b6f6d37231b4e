"""LOG-05 and LOG-06: torn files and power loss. Whatever the disk holds, it is read as far as it goes and no human is
needed."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.core import processes
from holdfast.errors import NotFound
from holdfast.sessions.log import Log
from holdfast.sessions.observe import from_files, read_files
from support import crash_states
from support.bystander import Bystanders
from support.promised import Beside, home_is_usable, promised
from support.scale import scaled
from support.world import World

# Cuts at each byte in the long form, at each seventh otherwise.
EVERY = scaled(7, 1)
STDOUT = b"".join(b"out %d\n" % n for n in range(1, 13))
STDERR = b"".join(b"err %d\n" % n for n in range(1, 7))
COMMAND = (
    "i=0; while [ $i -lt 12 ]; do i=$((i+1)); echo out $i; [ $((i%2)) = 0 ] && echo err $((i/2)) >&2; done; exit 7"
)


@pytest.fixture
def other_boot(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine came up again: nothing of what ran before is there."""
    boot_id = world.root / "boot_id"
    boot_id.write_text("00000000-1111-2222-3333-444444444444\n")
    monkeypatch.setattr(processes, "BOOT_ID_PATH", str(boot_id))


@pytest.fixture
def life(world: World) -> Iterator[list[crash_states.Step]]:
    """The steps of one life that printed on both streams, through several segments, and ended unwatched."""
    home = world.root / "recorded"
    home.mkdir(mode=0o700)
    steps = crash_states.record(home, COMMAND, world.root / "tape", read_bytes=32, segment_bytes=64)
    yield steps
    shutil.rmtree(home)


def read_all(directory: Path) -> dict[str, bytes]:
    log = Log(str(directory))
    return {stream: b"".join(log.raw(stream)) for stream in ("stdout", "stderr")}


@pytest.mark.covers("LOG-06")
def test_log_06_the_order_on_disk_is_spec_process_log_exit(life: list[crash_states.Step]) -> None:
    """What a power loss could turn into a lie is synced before the record that would tell it."""
    verbs = [(step[0], step[-1] if step[0] == "rename" else step[1]) for step in life]
    spawned = verbs.index(("spawn", ""))
    assert verbs.index(("rename", "spec.json")) < spawned < verbs.index(("rename", "state.json"))
    told = verbs.index(("rename", "exit.json"))
    stored = {name for verb, name, *_ in life if verb == "write" and name.startswith(("stdout.", "stderr.", "frames"))}
    assert len(stored) >= 4
    for name in stored:
        last_write = max(place for place, step in enumerate(life) if step[:2] == ("write", name))
        last_sync = max(place for place, step in enumerate(life) if step == ("sync", name))
        assert last_write < last_sync < told, name
    assert verbs.index(("sync", ".exit.reserved")) < told
    assert verbs[told + 1] == ("sync", ".")


@pytest.mark.covers("LOG-06")
@pytest.mark.slow
def test_log_06_after_a_power_loss_at_any_byte_the_records_are_true(
    world: World, life: list[crash_states.Step], other_boot: None, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    stage = crash_states.Stage(world.session(crash_states.SESSION))
    directory = stage.directory
    spawned = [step[0] for step in life].index("spawn")
    seen: dict[str, int] = {}
    for place, (number, files) in enumerate(crash_states.states(life, torn=True)):
        if files is None or place % EVERY:
            continue
        stage.build(files)
        assert "spec.json" in files or number <= spawned
        try:
            observed = from_files(read_files(hf.home, crash_states.SESSION))
        except NotFound:
            assert "spec.json" not in files
            seen["nothing"] = seen.get("nothing", 0) + 1
            continue
        seen[observed.state] = seen.get(observed.state, 0) + 1
        shot = observed.snapshot()
        assert shot.exit is not None
        got = read_all(directory)
        assert STDOUT.startswith(got["stdout"])
        assert STDERR.startswith(got["stderr"])
        if "exit.json" in files:
            assert (observed.state, shot.exit.code) == ("exited", 7)
            assert got == {"stdout": STDOUT, "stderr": STDERR}
            assert shot.ends == {"stdout": len(STDOUT), "stderr": len(STDERR)}
        else:
            assert (observed.state, shot.exit.cause, shot.exit.code) == ("lost", "lost", None)
    assert set(seen) == {"nothing", "lost", "exited"}
    assert sum(seen.values()) > 1500 // EVERY
    shutil.rmtree(directory)
    promised(world, beside.session, bystander=bystander, beside=beside)


@pytest.mark.covers("LOG-06")
def test_log_06_no_state_needs_a_human(
    world: World, life: list[crash_states.Step], other_boot: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every state is listed as what it is, damages no neighbour, and is swept by an ordinary collection."""
    monkeypatch.setenv("HOLDFAST_COLLECT_ENABLED", "false")
    hf = world.open()
    good = hf.run("echo good")
    stage = crash_states.Stage(world.session(crash_states.SESSION))
    directory = stage.directory
    states = [files for _, files in crash_states.states(life, torn=False) if files is not None]
    for files in states:
        stage.build(files)
        os.utime(directory, (1, 1))
        found = hf.recover()
        assert found.quarantined == []
        assert {session.id for session in [*found.lost, *found.exited]} <= {crash_states.SESSION}
        assert found.live == found.stale == found.unreachable == []
        listed = {session.id: session.state for session in hf.sessions(all=True)}
        assert listed[good.id] == "exited"
        assert listed.get(crash_states.SESSION) == (
            None if "spec.json" not in files else "exited" if "exit.json" in files else "lost"
        )
        collected = hf.collect()
        assert [text for text in collected.skipped if "clock" not in text and "future" not in text] == []
        hf.collect(all=True) if files is states[-1] else None
        if directory.exists():
            # It ended, or is known to be lost: it stays for its time, as any other.
            assert "spec.json" in files
            hf.get(crash_states.SESSION).remove()
        assert not directory.exists()
    home_is_usable(hf)


@pytest.mark.covers("LOG-05")
@pytest.mark.slow
def test_log_05_log_and_frames_cut_at_every_byte_give_all_before_the_tear_and_say_where_it_is(
    world: World, life: list[crash_states.Step], other_boot: None, beside: Beside, bystander: Bystanders
) -> None:
    hf = world.open()
    stage = crash_states.Stage(world.session(crash_states.SESSION))
    *_, (_, whole) = crash_states.states(life, torn=False)
    assert whole is not None
    printed = {"stdout": STDOUT, "stderr": STDERR}
    cuttable = [name for name in whole if name.startswith(("stdout.", "stderr.", "frames"))]
    # As the runner left it, and as a machine that stopped before the end was told.
    for files in (whole, {name: data for name, data in whole.items() if name != "exit.json"}):
        for name in cuttable:
            for size in range(0, len(files[name]), EVERY):
                stage.build({**files, name: files[name][:size]})
                session = hf.get(crash_states.SESSION)
                page = session.read()
                missing = {(gap.stream, place) for gap in page.gaps for place in range(gap.start, gap.stop)}
                got = {(stream, at + n): byte for stream, at, data in page.chunks for n, byte in enumerate(data)}
                # Nothing invented, nothing twice, nothing out of place.
                assert all(printed[stream][place] == byte for (stream, place), byte in got.items())
                assert len(got) == sum(len(data) for _, _, data in page.chunks)
                if name == "frames":
                    assert len(got) == len(STDOUT) + len(STDERR)
                    assert not missing
                    continue
                stream, _, first = name.partition(".")
                begin, end = int(first) + size, int(first) + len(whole[name])
                torn = {(stream, place) for place in range(begin, end)}
                assert not torn & set(got)
                # Every other byte is there, and the tear is named: the frames and the exit record know of it.
                assert len(got) == len(STDOUT) + len(STDERR) - len(torn)
                assert missing == torn, (name, size)
    shutil.rmtree(stage.directory)
    promised(world, beside.session, bystander=bystander, beside=beside)


def test_the_recorded_life_is_the_one_that_was_lived(world: World, life: list[crash_states.Step]) -> None:
    """The tape itself is right: its last state is what stands on the disk."""
    *_, (_, last) = crash_states.states(life, torn=False)
    directory = world.root / "recorded" / "sessions" / crash_states.SESSION
    assert last == {path.name: path.read_bytes() for path in directory.iterdir()}
    assert json.loads(last["exit.json"])["exit"]["code"] == 7
