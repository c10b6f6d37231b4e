"""LOG-07: a person changes files in the directory of a live session. The command continues, offsets stay valid, deleted
data stays deleted."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Session
from holdfast.core import wire
from holdfast.errors import HoldfastError, NotFound, Removed
from support import processes
from support.bystander import Bystanders
from support.peer import Peer
from support.promised import Beside, home_is_usable, is_typed, left_alone, promised
from support.waiting import until, wait_gone
from support.world import World


@pytest.fixture
def talker(world: World) -> Iterator[Session]:
    """A session that echoes; ended by the test or here."""
    session = world.open().start(world.probe("cat"), stdin="open")
    assert session.wait(match="^ready$", timeout=30).reason == "match"
    yield session
    row = processes.look(session.runner_pid or 0)
    if row is not None:
        try:
            with Peer(str(session.endpoint)) as peer:
                peer.send(wire.control({"type": "stop", "id": 1, "grace": 0}))
                peer.rest()
        except (FileNotFoundError, ConnectionRefusedError):
            pass  # it is just leaving
        wait_gone(row.pid)


def segment(world: World, session: Session, first: int = 0) -> Path:
    return world.session(session.id) / f"stdout.{first:020d}"


def say(session: Session, text: str) -> int:
    """One more line through the command, seen by the runner; the end of stdout then."""
    with Peer(str(session.endpoint)) as peer:
        before = peer.hello()["status"]["ends"]["stdout"]
        assert peer.ask("write", data=text + "\n")["type"] == "reply"
        reply = peer.ask("wait", output_after={"stdout": before + len(text)}, timeout=30)
        assert reply["reason"] == "output"
        end: int = reply["status"]["ends"]["stdout"]
    return end


@pytest.mark.covers("LOG-07")
def test_log_07_a_truncated_segment_is_a_named_hole_and_what_follows_keeps_its_offset(
    world: World, talker: Session, bystander: Bystanders, beside: Beside
) -> None:
    """On the faulty code the next bytes were appended to the cut file: read back at offsets they never had."""
    end = say(talker, "before the cut")
    os.truncate(segment(world, talker), 10)
    last = say(talker, "after the cut")
    page = talker.read(stream="stdout")
    assert [(offset, data) for _, offset, data in page.chunks] == [(0, b"ready\nbefo"), (end, b"after the cut\n")]
    assert [(gap.start, gap.stop, gap.reason) for gap in page.gaps] == [(10, end, "missing")]
    now = talker.refresh()
    assert (now.state, now.ends["stdout"]) == ("running", last)
    assert any("changed by another process" in text for text in now.metadata["warnings"])
    with Peer(str(talker.endpoint)) as peer:
        peer.hello()
        assert peer.ask("output", since=0)["cursor"] == 10
        assert peer.frame() == (0, b"ready\nbefo")
        assert peer.ask("output", since=10)["from"] == end
        assert peer.frame() == (end, b"after the cut\n")
    beside.unharmed()
    left_alone(bystander)


@pytest.mark.covers("LOG-07")
@pytest.mark.parametrize("how", ["delete", "directory in its place", "symlink in its place", "fifo in its place"])
def test_log_07_a_segment_taken_away_or_replaced_is_missing_and_the_session_continues(
    world: World, talker: Session, bystander: Bystanders, beside: Beside, how: str
) -> None:
    end = say(talker, "in the first segment")
    path = segment(world, talker)
    path.unlink()
    if how.startswith("directory"):
        path.mkdir()
    elif how.startswith("symlink"):
        path.symlink_to("/etc/passwd")
    elif how.startswith("fifo"):
        os.mkfifo(path)
    last = say(talker, "in a new one")
    page = talker.read(stream="stdout")
    assert [(offset, data) for _, offset, data in page.chunks] == [(end, b"in a new one\n")]
    assert [(gap.start, gap.stop) for gap in page.gaps] == [(0, end)]
    assert b"root:" not in page.data
    now = talker.refresh()
    assert (now.state, now.ends["stdout"]) == ("running", last)
    assert any("changed by another process" in text for text in now.metadata["warnings"])
    with Peer(str(talker.endpoint)) as peer:
        peer.hello()
        assert peer.ask("output", since=0)["from"] == end
        assert peer.frame() == (end, b"in a new one\n")
    assert talker.stop(grace=0).done
    done = talker.refresh()
    assert done.state == "exited"
    assert done.ends["stdout"] == last
    beside.unharmed()
    left_alone(bystander)


@pytest.mark.covers("LOG-07")
def test_log_07_files_that_others_put_there_are_passed_over(
    world: World, talker: Session, bystander: Bystanders, beside: Beside
) -> None:
    directory = world.session(talker.id)
    for name in ("stdout.5x5", "stdout.1", "stdout.9", "stdout.", "stderr.99999999999999999999", "frames.bak", "junk"):
        (directory / name).write_text("junk")
    say(talker, "on")
    with Peer(str(talker.endpoint)) as peer:
        peer.hello()
        assert peer.ask("output", since=0)["type"] == "reply"
        assert peer.frame() == (0, b"ready\non\n")
    assert talker.read(stream="stdout").data == b"ready\non\n"
    (directory / "stderr.99999999999999999999").unlink()
    promised(world, talker, bystander=bystander, beside=beside)


@pytest.mark.covers("LOG-07")
@pytest.mark.parametrize("record", ["state.json", "frames", ".exit.reserved", "runner.log"])
def test_log_07_any_other_file_of_a_live_session_may_be_deleted(
    world: World, talker: Session, bystander: Bystanders, beside: Beside, record: str
) -> None:
    (world.session(talker.id) / record).unlink(missing_ok=True)
    say(talker, "still here")
    assert talker.refresh().state in ("running", "starting")
    talker.update(labels={"a": "b"})
    assert (world.session(talker.id) / "state.json").exists()
    assert talker.stop(grace=0).done
    done = promised(world, talker, bystander=bystander, beside=beside)
    assert done.exit is not None
    assert (done.exit.signal, done.exit.cause) == ("SIGKILL", "stop")
    assert done.text() == "ready\nstill here\n"


@pytest.mark.covers("LOG-07")
def test_log_07_a_session_directory_removed_under_its_runner_is_not_brought_back(
    world: World, talker: Session, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    shutil.rmtree(world.session(talker.id))
    end = say(talker, "into the void")
    with Peer(str(talker.endpoint)) as peer:
        hello = peer.hello()
        assert hello["status"]["state"] == "running"
        assert hello["status"]["gaps"] == [{"stream": "stdout", "from": 6, "to": end, "reason": "disk"}]
        assert any("No such file" in text for text in hello["status"]["warnings"])
    with pytest.raises((NotFound, Removed)) as refusal:
        hf.get(talker.id)
    is_typed(refusal.value)
    with pytest.raises(HoldfastError) as refusal:
        talker.read()
    is_typed(refusal.value)
    hf.collect()
    assert talker.id not in {session.id for session in hf.sessions(all=True)}
    pid, runner = talker.pid, talker.runner_pid
    assert pid is not None
    assert not processes.is_gone(pid), "the command lives"
    with Peer(str(talker.endpoint)) as peer:
        peer.hello()
        stopped = peer.ask("stop", grace=0)
        assert stopped["survivors"] == []
        assert stopped["status"]["exit"]["cause"] == "stop"
    assert runner is not None
    wait_gone(runner)
    assert processes.is_gone(pid)
    assert not world.session(talker.id).exists()
    assert [session.id for session in hf.sessions(all=True)] == [beside.session.id]
    beside.unharmed()
    left_alone(bystander)
    home_is_usable(hf)


# Root without the right to ignore modes: the owner of everything, bound by what the modes say.
MODES_COUNT = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]

LOCKED_OUT = """
import json, os, sys, holdfast
from pathlib import Path

def tell(**facts): print(json.dumps(facts), flush=True)
def tried(act):
    try:
        act()
    except holdfast.HoldfastError as problem:
        return problem.code
    return None

hf = holdfast.open()
home = Path(os.environ["HOLDFAST_HOME"])
session = hf.start(sys.argv[1:], stdin="open")
session.wait(match="^ready$", timeout=30)
first = home / "sessions" / session.id / f"stdout.{0:020d}"
first.chmod(0)
page = session.read(stream="stdout")
session.send("one\\n")
session.wait(output=True, since="stdout:6", timeout=30)
tell(gaps=[list(gap) for gap in page.gaps], data=page.data.decode(), state=session.refresh().state, ends=session.ends)
first.chmod(0o600)
tell(text=session.text())
(home / "sessions").chmod(0o500)
home.chmod(0o500)
session.send("two\\n")
session.wait(match="^two$", timeout=30)
refused = tried(lambda: hf.start("true"))
listed = [each.id for each in hf.sessions()]
tell(text=session.text(), refused=refused, listed=listed, state=session.refresh().state)
directory = home / "sessions" / session.id
directory.chmod(0o500)
session.stop(grace=0)
ended = session.refresh()
tell(state=ended.state, signal=ended.exit.signal)
directory.chmod(0o700)
(home / "sessions").chmod(0o700)
home.chmod(0o700)
tell(code=hf.run("exit 3").exit.code)
"""


@pytest.mark.covers("LOG-07")
@pytest.mark.root
@pytest.mark.needs("setpriv")
def test_log_07_modes_that_lock_us_out_stop_no_command_and_are_reported(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    host = world.host(LOCKED_OUT, *world.probe("cat"), prefix=MODES_COUNT)

    def told() -> dict[str, object]:
        line = host.line()
        assert line, host.errors()
        found: dict[str, object] = json.loads(line)
        return found

    unreadable = told()
    assert unreadable["gaps"] == [["stdout", 0, 6, "unreadable"]]
    assert unreadable["data"] == ""
    assert (unreadable["state"], unreadable["ends"]) == ("running", {"stdout": 10, "stderr": 0})
    assert told()["text"] == "ready\none\n", "what was printed meanwhile went to the same file"
    closed = told()
    assert closed["text"] == "ready\none\ntwo\n"
    assert closed["refused"] == "disk-full"
    assert closed["state"] == "running"
    ended = told()
    assert ended["state"] == "exited"
    assert ended["signal"] == "SIGKILL"
    assert told() == {"code": 3}
    assert host.wait(30) == 0, host.errors()
    beside.unharmed()
    left_alone(bystander)
    until(lambda: len(processes.descendants(host.pid)) == 0, what="the end of the host's family")
