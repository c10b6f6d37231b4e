"""Records that no process of ours wrote are refused by name, or shown; they cause no exception."""

from __future__ import annotations

import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.core import records
from holdfast.errors import DamagedRecord, NotFound
from holdfast.home import Home
from holdfast.sessions.core import row_of
from holdfast.sessions.observe import from_files, read_files
from holdfast.sessions.without_runner import facts_without_runner

ID = "b00000000"
SPEC = {
    "v": 1,
    "id": ID,
    "kind": "local_bash",
    "name": "web",
    "labels": {"a": "b"},
    "command": ["sleep", "1"],
    "cwd": "/",
    "stdin": "closed",
    "endpoint": "/nowhere.sock",
    "grace": 5.0,
    "metadata": {},
    "created_at": "2026-08-01T09:14:07.412Z",
}
STATE = {
    "v": 1,
    "boot": "another",
    "pidns": 1,
    "timens": 1,
    "nonce": "00",
    "runner": {"pid": 4000001, "start": 1},
    "command": {"pid": 4000002, "start": 2, "line": ["sleep", "1"]},
    "pgid": 4000002,
    "started_at": "2026-08-01T09:14:07.500Z",
    "endpoint": "/nowhere.sock",
    "changed": {"name": "other"},
}
EXIT = {
    "v": 1,
    "exit": {"code": 3, "signal": None, "cause": "exit", "by": None, "complete": True, "survivors": []},
    "ended_at": "2026-08-01T09:14:08.412Z",
    "ends": {"stdout": 3},
    "dropped_before": {"stdout": 0},
    "gaps": [],
}

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def paths(record: dict[str, Any], before: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in record.items():
        found.append((*before, key))
        if isinstance(value, dict):
            found += paths(value, (*before, key))
    return found


RECORDS: dict[str, dict[str, Any]] = {"spec.json": SPEC, "state.json": STATE, "exit.json": EXIT}
PLACES = [(name, path) for name, record in RECORDS.items() for path in paths(record)]


def look(written: dict[str, bytes]) -> dict[str, Any] | None:
    """What a host says of these files; None when it refuses them."""
    with tempfile.TemporaryDirectory(prefix="hf-") as scratch:
        home = Home(scratch)
        directory = Path(home.session(ID))
        directory.mkdir(parents=True)
        for name, content in written.items():
            (directory / name).write_bytes(content)
        try:
            files = read_files(home, ID)
        except (DamagedRecord, NotFound):
            return None
        # Also in the signals to its owner.
        assert facts_without_runner(read_files(home, ID), row_of) is not None
        return from_files(files).snapshot().to_json()


@given(place=st.sampled_from(PLACES), value=anything)
@example(place=("exit.json", ("ends", "stdout")), value="x")
@example(place=("exit.json", ("exit", "survivors")), value={})
@example(place=("exit.json", ("exit", "survivors")), value=[{}])
@example(place=("exit.json", ("exit", "survivors")), value=[{"pid": 1, "start": 2}])
@example(place=("exit.json", ("ended_at",)), value="yesterday")
@example(place=("exit.json", ("exit", "cause")), value="a whim")
@example(place=("exit.json", ("ends",)), value={"a/b": 3})
@example(place=("spec.json", ("labels",)), value=["a"])
@example(place=("spec.json", ("command",)), value=[1, 2])
@example(place=("state.json", ("changed", "name")), value=7)
def test_whatever_stands_in_one_field_is_refused_or_shown(place: tuple[str, tuple[str, ...]], value: Any) -> None:
    name, path = place
    changed = copy.deepcopy(RECORDS)
    inner = changed[name]
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    reported = look({file: json.dumps(record).encode() for file, record in changed.items()})
    assert reported is None or json.dumps(reported)


@given(written=st.dictionaries(st.sampled_from(sorted(RECORDS)), st.binary(max_size=200)))
def test_whatever_bytes_stand_in_the_records_they_are_refused(written: dict[str, bytes]) -> None:
    assert look(written) is None


@settings(max_examples=50)
@given(record=st.dictionaries(st.text(), anything), later=st.dictionaries(st.text(), anything))
def test_a_record_reads_as_it_was_written_and_keeps_what_it_does_not_know(
    record: dict[str, Any], later: dict[str, Any]
) -> None:
    for ours in ("check", "v"):
        record.pop(ours, None)
        later.pop(ours, None)
    with tempfile.TemporaryDirectory(prefix="hf-") as scratch:
        directory = os.open(scratch, os.O_RDONLY | os.O_DIRECTORY)
        try:
            records.write(directory, "state.json", {"v": 1, **later})
            records.write(directory, "state.json", {"v": 1, **record})
        finally:
            os.close(directory)
        read = records.read(os.path.join(scratch, "state.json"))
        assert len(read.pop("check")) == 8
        assert read == {"v": 1, **later, **record}
        assert os.listdir(scratch) == ["state.json"]
