"""A far end is not trusted: whatever it says, nothing but the copy of its own session changes, and nobody falls."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from holdfast import errors
from holdfast.core import wire
from holdfast.places import copy as copies
from holdfast.places import link, mirror
from support import interpreters
from support.evidence import contents
from support.places import deputies, kill_deputies
from support.scale import scaled

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.node_hosts import NodeHost
    from support.places import Away
    from support.world import World

_QUICK = settings(max_examples=scaled(20, 60), suppress_health_check=[HealthCheck.function_scoped_fixture])
_NAMES = ["stdout.00000000000000000000", "frames", "signals.jsonl", "state.json", "exit.json", "x.tmp"]
_OURS = ["deputy.log", "away.json", "intent.json", "spec.json"]
_WILD = [*_OURS, "../escaped", "/tmp/escaped", ".", "..", "", "a/b", "\0", "é", "x" * 99]
_anything = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=5), st.lists(st.integers(), max_size=2))
_headings = st.fixed_dictionaries(
    {"type": st.sampled_from(["piece", "vanished"]), "name": st.sampled_from(_NAMES + _WILD) | _anything},
    optional={"at": st.integers(-5, 50) | _anything, "anew": _anything, "last": _anything},
)


def written(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): data for path, data in contents(root)}


@_QUICK
@given(told=st.lists(st.tuples(_headings, st.binary(max_size=40)), max_size=8))
@example(
    told=[
        ({"type": "piece", "name": "frames", "at": 0, "anew": True, "last": False}, b"ab"),
        ({"type": "piece", "name": "frames", "at": 2, "anew": False, "last": True}, b"c"),
    ]
)
def test_nothing_outside_the_copy_and_no_record_of_ours_is_written(
    tmp_path_factory: pytest.TempPathFactory, told: list[tuple[dict[str, Any], bytes]]
) -> None:
    root = tmp_path_factory.mktemp("copy")
    (root / "session").mkdir()
    ours = {"spec.json": b"ours", "away.json": b"ours", "intent.json": b"ours", "deputy.log": b"ours"}
    for name, content in ours.items():
        (root / "session" / name).write_bytes(content)
    (root / "session" / "stdout.00000000000000000008").symlink_to("../linked")
    directory = os.open(root / "session", os.O_RDONLY)
    try:
        copy = copies.Copy(directory, {"endpoint": "here"})
        for heading, raw in told:
            try:
                copy.take(heading, raw)
            except (ValueError, TypeError, OSError):
                break
    finally:
        os.close(directory)
    after = written(root)
    assert {name: after[f"session/{name}"] for name in ours} == ours
    assert all(path.startswith("session/") for path in after)
    theirs = [Path(path).name.removesuffix(".tmp") for path in after.keys() - {f"session/{name}" for name in ours}]
    assert all(map(mirror.is_copied, theirs))


@given(before=st.binary(max_size=300), cuts=st.lists(st.integers(0, 400), max_size=4), needed=st.booleans())
@settings(max_examples=scaled(20, 60))
def test_the_first_line_is_found_after_any_noise_and_cut_anywhere(before: bytes, cuts: list[int], needed: bool) -> None:
    assume(link.MARK.strip(b"\n") not in before)
    here = wire.control({"type": "here"})
    said = before + (link.MARK + b"need\n" if needed else b"") + link.MARK + b"have\n" + here
    heard: list[wire.Frame] = []
    greeting = link.Greeting(b"code")
    ends = sorted({min(cut, len(said)) for cut in cuts} | {0, len(said)})
    for start, end in itertools.pairwise(ends):
        heard += greeting.feed(said[start:end])
    assert heard == [{"type": "here"}]
    assert greeting.take_wanted() == (b"code" if needed else b"")
    assert greeting.take_wanted() == b""


HOSTILE = """
import os, sys, struct, json
sys.path.insert(0, {source!r})
from holdfast.core import wire
def say(raw):
    os.write(1, raw)
say(b"\\n\\x01holdfast-link 1 have\\n")
say(wire.control({{"type": "here", "cwd": "/", "user": "/", "home": "/", "version": "x", "archive": "x", "pid": 1}}))
os.read(0, 1 << 20)
for frame in {frames!r}:
    say(wire.control(frame) if isinstance(frame, dict) else wire.data(*frame))
os.read(0, 1 << 20)
"""


@pytest.mark.parametrize(
    "frames",
    [
        [{"type": "vanished", "name": "spec.json"}],
        [{"type": "vanished"}],
        [{"type": "piece", "name": "../../index.db", "at": 0, "anew": True, "last": True}, (0, b"x")],
        [{"type": "come", "archive": "x", "path": "y"}],
        [{"type": "start", "frame": 1}, {"type": "words"}, {"type": "hear"}, {"type": "piece_data"}],
        [{"type": "over", "state": ["missing"]}],
        [(1, b"not a frame of a runner at all")],
        [(0, b"bytes of nothing")],
        [{"type": "closed", "channel": 1}],
    ],
)
@pytest.mark.parametrize(
    "way", ["docker", pytest.param("node", marks=[pytest.mark.covers("nodes:23"), pytest.mark.long])]
)
def test_a_hostile_far_end_starts_nothing_and_takes_no_other_down(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    node_with: Callable[[list[str]], NodeHost],
    frames: list[Any],
    way: str,
) -> None:
    source = str(Path(wire.__file__).parents[2])
    script = world.root / "hostile.py"
    script.write_text(HOSTILE.format(source=source, frames=frames))
    argv = [sys.executable, str(script)]
    place, bound = ("docker:any", "500ms") if way == "docker" else (node_with(argv).place, "5s")
    monkeypatch.setenv("HOLDFAST_PLACES_DOCKER", shlex.join(argv))
    monkeypatch.setenv("HOLDFAST_PLACES_TIMEOUT", bound)
    monkeypatch.setenv("HOLDFAST_HOSTS_START_TIMEOUT", bound)
    hf = world.open()
    before = written(world.home)
    with pytest.raises(errors.HoldfastError):
        hf.start("true", place=place)
    assert len(deputies(world)) == 1, "it tries again"
    session = written(world.home / "sessions")
    assert {Path(path).name for path in session} <= {"spec.json", "deputy.log", ".exit.reserved"}
    assert {path for path in written(world.home) if not path.startswith(("sessions/", "index.db"))} == set(before)
    kill_deputies(world)
    for socket in world.runtime.glob("*.sock"):
        socket.unlink()


def test_a_node_can_leave_after_a_far_end_whose_output_nobody_took(
    world: World, node_with: Callable[[list[str]], NodeHost], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_PLACES_TIMEOUT", "5s")
    monkeypatch.setenv("HOLDFAST_HOSTS_START_TIMEOUT", "5s")
    node = node_with(["yes"])
    with pytest.raises(errors.HoldfastError):
        world.open().start("true", place=node.place)
    kill_deputies(world)
    for socket in world.runtime.glob("*.sock"):
        socket.unlink()
    # Its server ends in time.
    node.close()


def test_the_oldest_python_there_is_enough_and_an_older_one_is_named(
    over_ssh: Away, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = interpreters.all_of_them()
    if interpreters.OLDEST not in found:
        pytest.skip("no Python 3.9 here")
    monkeypatch.setenv("HOLDFAST_PLACES_PYTHON", found[interpreters.OLDEST])
    with world.open() as hf:
        session = hf.start(over_ssh.probe("quiet", "say", "one", "read-line"), stdin="open", place=over_ssh.place)
        session.wait(match="one", timeout=30)
        kill_deputies(world)
        session.send("two\n")
        assert session.wait(timeout=30).reason == "exit"
        assert session.text() == "one\ngot two\n"
    refusal = "import sys; sys.exit('holdfast: a runner needs Python 3.9 or later, and this is 3.6')"
    monkeypatch.setenv("HOLDFAST_PLACES_PYTHON", shlex.join([sys.executable, "-c", refusal]))
    with world.open() as hf, pytest.raises(errors.PlaceNoPython, match=r"3\.6"):
        hf.run("true", place=over_ssh.place)
