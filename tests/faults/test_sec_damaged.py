"""Planted and damaged files in session directories cost their own session and nobody else's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import errors
from holdfast.cli.look import described, listing
from holdfast.cli.output import Style
from holdfast.home import Home
from holdfast.sessions.observe import from_files, read_files
from support.scale import scaled
from support.waiting import until
from support.world import World

NESTED = 3000
# Each of them is wrong for most fields, and right for none that hosts compute with.
WRONG: tuple[Any, ...] = (True, -1, 10**25, 1.5, "x" * 70_000, [], {}, [[]], {"a": [1]}, ["a", 1])
OLD = (0, 0)


def fields(value: object, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a record."""
    inner = value.items() if isinstance(value, dict) else enumerate(value[:2]) if isinstance(value, list) else ()
    for key, each in inner:
        if key != "check":
            yield (*path, key)
            yield from fields(each, (*path, key))


def changed(record: dict[str, Any], path: tuple[Any, ...], wrong: object, *, drop: bool = False) -> bytes:
    copy = json.loads(json.dumps(record))
    holder = copy
    for key in path[:-1]:
        holder = holder[key]
    if drop:
        del holder[path[-1]]
    else:
        holder[path[-1]] = wrong
    return json.dumps(copy).encode()


@pytest.mark.covers("found:46")
@pytest.mark.parametrize("name", ["spec.json", "state.json", "exit.json"])
def test_a_field_of_the_wrong_type_is_refused_or_can_be_shown(world: World, name: str) -> None:
    """Whatever a record is made to say, it is named as damaged or every surface can render it."""
    hf = world.open()
    done = hf.run(
        "echo hi; exit 3",
        name="web",
        owner="agent",
        labels={"a": "b"},
        watch=["hi"],
        ready="line:hi",
        monitor=True,
        timeout=60,
        restart={"policy": "on-failure", "final_codes": [3]},
    )
    home, directory = Home(), world.session(done.id)
    path = directory / name
    record = json.loads(path.read_bytes())
    refused = shown = wounded = 0
    for field in list(fields(record)):
        wounds = [changed(record, field, None, drop=True), *(changed(record, field, wrong) for wrong in WRONG)]
        for wound in wounds:
            path.write_bytes(wound)
            wounded += 1
            try:
                files = read_files(home, done.id)
                shot = from_files(files).snapshot()
            except errors.DamagedRecord as problem:
                refused += name in problem.message
                continue
            listing([shot], Style(False, 80))
            described(shot, files.current(), str(directory))
            json.dumps(shot.to_json())
            shown += 1
    assert refused + shown == wounded
    assert refused > shown / 4


def nest(directory: Path) -> None:
    """A directory in a directory in a directory, from the innermost out: no path and no descriptor gets too long."""
    inner, outer = directory / "n", directory / "o"
    inner.mkdir()
    for _ in range(NESTED):
        outer.mkdir()
        inner.rename(outer / "n")
        outer.rename(inner)


def pipe(name: str) -> Callable[[Path], None]:
    def plant(directory: Path) -> None:
        (directory / name).unlink(missing_ok=True)
        os.mkfifo(directory / name)

    return plant


def deep(name: str) -> Callable[[Path], None]:
    def plant(directory: Path) -> None:
        path = directory / name
        record = json.loads(path.read_bytes().splitlines()[0])
        record["metadata" if name == "spec.json" else "deep"] = json.loads("[" * 400 + "]" * 400)
        path.write_text(json.dumps(record) + "\n")

    return plant


def append(name: str, raw: bytes) -> Callable[[Path], None]:
    def plant(directory: Path) -> None:
        with (directory / name).open("ab") as file:
            file.write(raw)

    return plant


def edit(name: str, **values: Any) -> Callable[[Path], None]:
    """Other values for some fields; `...` takes one away."""

    def plant(directory: Path) -> None:
        path = directory / name
        record = {**json.loads(path.read_bytes()), **values}
        path.write_text(json.dumps({key: value for key, value in record.items() if value is not ...}))

    return plant


# Those whose records say what happened cannot be used any more.
RECORDS: dict[str, Callable[[Path], None]] = {
    "pipe for a spec": pipe("spec.json"),
    "pipe for a state": pipe("state.json"),
    "pipe for an exit": pipe("exit.json"),
    "deep spec": deep("spec.json"),
    "deep state": deep("state.json"),
    "deep exit": deep("exit.json"),
    "changed is a list": edit("state.json", changed=["owner"]),
    "changed has numbers": edit("state.json", changed={"labels": {"a": 1}}),
    "no command": edit("state.json", command=...),
    "ends are text": edit("exit.json", ends={"stdout": "many"}),
    "no exit": edit("exit.json", exit=...),
    "no spec": lambda directory: (directory / "spec.json").unlink(),
}
# Those that can still be read, and hold what is no file or no signal.
CONTENTS: dict[str, Callable[[Path], None]] = {
    "pipe for signals": pipe("signals.jsonl"),
    "pipe for frames": pipe("frames"),
    "pipe for output": pipe("stdout.00000000000000000000"),
    "deep signal": deep("signals.jsonl"),
    "signal too deep to parse": append("signals.jsonl", b"[" * 9000 + b"\n"),
    "signals that are no JSON": append("signals.jsonl", b"nonsense\n"),
    "intent is a list": append("intent.json", b"[]"),
    "intent has numbers": append("intent.json", b'{"cause": 1, "by": 2, "at": 3}'),
    "deep intent": append("intent.json", b'{"cause":' + b"[" * 9000),
    "away has no evidence": append("away.json", b'{"state": "lost"}'),
    "here has numbers": append("here.json", b'{"changed": {"labels": {"a": 1}}}'),
    "deep here": append("here.json", b'{"changed":' + b"[" * 400 + b"]" * 400 + b"}"),
    "nested directories": nest,
}


class Planted:
    """One copy of a finished session for each kind of damage."""

    def __init__(self, world: World, letter: str) -> None:
        source = world.session(world.open().run("echo out; exit 3").id)
        self.sound = source.name
        self.kinds: dict[str, str] = {}
        for number, (kind, damage) in enumerate({**RECORDS, **CONTENTS}.items()):
            copy = source.parent / f"b{letter}{number:07d}"
            shutil.copytree(source, copy)
            for name in ("spec.json", "signals.jsonl"):
                text = (copy / name).read_text().replace(source.name, copy.name)
                (copy / name).write_text(text.partition(',"check"')[0] + "}" if name == "spec.json" else text)
            damage(copy)
            self.kinds[copy.name] = kind

    def of(self, kinds: dict[str, Callable[[Path], None]]) -> set[str]:
        return {id for id, kind in self.kinds.items() if kind in kinds}


def answered(world: World, *words: str) -> subprocess.CompletedProcess[str]:
    done = world.hold(*words, timeout=60.0)
    assert "Traceback" not in done.stderr, done.stderr
    return done


@pytest.mark.covers("found:46")
def test_damaged_sessions_are_named_and_every_command_answers(world: World) -> None:
    planted = Planted(world, "n")
    listed = answered(world, "ls", "-a", "--json")
    assert listed.returncode == 0
    shown = {row["id"] for row in json.loads(listed.stdout)}
    assert shown == {planted.sound, *planted.of(CONTENTS)}
    assert {line.split()[1] for line in listed.stderr.splitlines() if "is damaged" in line} == planted.of(RECORDS)

    recovered = answered(world, "recover", "--json")
    quarantined = json.loads(recovered.stdout)["quarantined"]
    assert {Path(path).parent.name for path in quarantined} == planted.of(RECORDS)
    for words in (["signals"], ["gc", "--dry-run"], ["ls"]):
        assert answered(world, *words).returncode == 0
    for id, kind in planted.kinds.items():
        if kind in ("pipe for a spec", "deep state", "no exit", "nested directories", "pipe for output"):
            told = answered(world, "status", id)
            assert told.returncode == (1 if kind in RECORDS else 0)
            assert id in told.stdout + told.stderr
            answered(world, "logs", id)

    findings = json.loads(answered(world, "doctor", "--json").stdout)
    named = [finding for finding in findings if finding["check"] == "records" and finding["level"] != "ok"]
    assert {id for id in planted.kinds if any(id in finding["text"] for finding in named)} == set(planted.kinds)
    # It moved all but the one whose spec is no file, which it moves when it is asked to.
    kept = {Path(finding["path"]).name for finding in named if not finding["repaired"]}
    assert {planted.kinds[id] for id in kept} == {"pipe for a spec"}
    answered(world, "doctor", "--rebuild")
    assert {path.name for path in (world.home / "sessions").iterdir()} == {planted.sound}
    assert answered(world, "doctor").returncode == 0
    # The tree is too deep for shutil.
    subprocess.run(["rm", "-rf", world.home / "quarantine"], check=True)


@pytest.mark.covers("found:46")
def test_rm_and_gc_get_rid_of_damaged_sessions(world: World) -> None:
    planted = Planted(world, "r")
    ids = list(planted.kinds)
    removed = answered(world, "rm", *ids[::2])
    assert removed.returncode == 0, removed.stderr
    rest = ids[1::2]
    for id in rest:
        for path in world.session(id).iterdir():
            os.utime(path, OLD, follow_symlinks=False)
    # By the age of their last change; those that can be read ended just now.
    collected = json.loads(answered(world, "gc", "--json").stdout)
    assert set(collected["removed"]) == {id for id in rest if id in planted.of(RECORDS)}
    assert collected["skipped"] == []
    assert answered(world, "gc", "--all").returncode == 0
    assert list((world.home / "sessions").iterdir()) == []


@pytest.mark.covers("found:46")
def test_a_planted_pipe_or_nonsense_beside_a_terminal_log_does_not_hang_its_readers(world: World) -> None:
    done = world.open().run("printf 'one\\ntwo\\n'", tty=True, size=(10, 40))
    directory = world.session(done.id)
    marks = directory / "marks.jsonl"
    whole = marks.read_bytes()
    mark = json.loads(whole.splitlines()[0])
    wounds = [b"[" * 100_000 + b"\n", b"x" * 1_000_000 + b"\n"]
    wounds += [b"\n".join(changed(mark, field, wrong) for wrong in WRONG) + b"\n" for field in fields(mark)]
    hf = world.open()
    session = hf.get(done.id)
    for wound in wounds:
        marks.write_bytes(wound)
        hf._core.keyframes.clear()
        assert len(session.screen().rows) == 10
        assert session.tail(2)
    for name in ("marks.jsonl", "inputs.jsonl", "keyframe.00000000000000000001"):
        (directory / name).unlink(missing_ok=True)
        os.mkfifo(directory / name)
    for words in (["screen", done.id], ["logs", done.id], ["export", done.id, str(world.root / "out.cast")]):
        assert answered(world, *words).returncode == 0


# Every name under which a runner opens something while its command runs.
OPENED = (
    *(".exit.reserved", "exit.json.tmp", "state.json.tmp", "stdout.dropped.tmp", "tty.dropped.tmp"),
    *(
        "frames",
        "frames.tmp",
        "runner.log",
        "signals.jsonl",
        "signals.jsonl.tmp",
        "marks.jsonl",
        "marks.tmp",
        "inputs.jsonl",
    ),
)


@pytest.mark.covers("found:46")
@pytest.mark.parametrize("tty", [False, True], ids=["pipes", "terminal"])
@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "link", "directory"])
def test_what_is_planted_in_a_live_session_does_not_hang_its_runner(world: World, kind: str, tty: bool) -> None:
    hf = world.open()
    options: dict[str, Any] = {"tty": True, "size": (10, 40)} if tty else {"stdin": "open"}
    flood = "head -c 1500000 /dev/zero | tr '\\0' x"
    session = hf.start(f"read go; {flood}; echo; echo last; exit 3", log_cap=1 << 20, watch=["last"], **options)
    directory = world.session(session.id)
    victim, elsewhere = world.root / "victim", world.root / "elsewhere"
    victim.write_text("mine")
    os.mkfifo(elsewhere)
    for name in OPENED:
        path = directory / name
        path.unlink(missing_ok=True)
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "directory":
            path.mkdir()
        else:
            path.symlink_to(victim if kind == "link" else elsewhere)
    session.update(name="renamed")
    session.send("go\n")
    assert session.wait(timeout=30).reason != "timeout"
    ended = session.refresh()
    assert ended.exit is not None
    assert (ended.state, ended.exit.code) == ("exited", 3)
    assert json.loads((directory / "exit.json").read_bytes())["exit"]["code"] == 3
    assert session.refresh().name == "renamed"
    assert session.text().splitlines()[-1] == "last"
    assert (directory / ("tty.dropped" if tty else "stdout.dropped")).is_file()
    assert victim.read_text() == "mine"
    assert answered(world, "rm", session.id).returncode == 0


def peak_kb(world: World, *words: str) -> int:
    """The most memory that a command took, which has to end well."""
    with (world.root / "said").open("wb") as said:
        process = subprocess.Popen(world.hold_argv(*words), stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (world.root / "said").read_text()[-2000:]
    return used.ru_maxrss


@pytest.mark.covers("found:38")
def test_a_file_of_signals_of_any_size_is_read_in_bounded_memory(world: World) -> None:
    hf = world.open()
    done = hf.run("echo hi", owner="agent", watch=["hi"])
    until(lambda: hf.signals("agent").pending(), what="its signals")
    hf.close()
    path = world.session(done.id) / "signals.jsonl"
    first = json.loads(path.read_bytes().splitlines()[0])
    usual = max(peak_kb(world, *words) for words in (["signals"], ["ls", "-a"], ["status", done.id], ["doctor"]))
    size = scaled(60, 400) << 20
    with path.open("ab") as file:
        # Signals, lines that are none, and at last a line that does not end.
        for number in range(100, 200):
            record = {**first, "seq": number, "id": f"{done.id}.{number}", "routed": True}
            file.write(json.dumps(record).encode() + b"\n")
        line = b"x" * 10_000 + b"\n"
        for _ in range(size // 2 // len(line)):
            file.write(line)
        for _ in range(size // 2 >> 20):
            file.write(b"y" * (1 << 20))
    (world.home / "index.db").unlink()
    for words in (["signals"], ["ls", "-a"], ["status", done.id]):
        assert peak_kb(world, *words) < usual + (40 << 10), words
    told = json.loads(world.hold("signals", "--owner", "agent", "--json", check=True).stdout)
    assert any(row["seq"] == 199 for row in told)
    assert peak_kb(world, "doctor") < usual + (40 << 10)
    assert not world.session(done.id).exists()
