"""A session in another place answers as one that runs here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from holdfast import errors
from support import processes
from support.evidence import contents
from support.waiting import until

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.places import Away
    from support.world import World


def test_run_gives_output_and_code_and_leaves_nothing_there(hf: Holdfast, away: Away, world: World) -> None:
    done = hf.run("echo out; echo err >&2; exit 3", place=away.place)
    assert (done.state, done.status, done.place) == ("exited", "failed", away.place)
    assert done.exit is not None
    assert (done.exit.code, done.exit.cause, done.exit.complete) == (3, "exit", True)
    assert (done.text(stream="stdout"), done.text(stream="stderr")) == ("out\n", "err\n")
    until(lambda: away.sessions() == [])
    assert [each.id for each in hf.sessions(all=True)] == [done.id]


def test_wait_says_which_condition_came_true(hf: Holdfast, away: Away) -> None:
    session = hf.start(away.probe("quiet", "say", "up", "read-line", "forever"), stdin="open", place=away.place)
    assert session.wait(match="up", timeout=30).reason == "match"
    assert session.wait(timeout=0.01).reason == "timeout"
    assert session.wait(idle=0.05, timeout=30).reason == "idle"
    cursor = session.read().cursor
    session.send("more\n")
    assert session.wait(output=True, since=cursor, timeout=30).reason == "output"
    assert session.read(since=cursor).data == b"got more\n"
    session.stop(grace=0)
    assert session.wait(match="never printed").reason == "exit"


def test_input_is_sent_and_closed_there(hf: Holdfast, away: Away) -> None:
    assert hf.run(["cat"], input="hello\n", place=away.place).text() == "hello\n"
    session = hf.start(["cat"], stdin="open", place=away.place)
    session.send("one\n")
    session.send("two\n")
    session.close_stdin()
    assert session.wait(timeout=30).reason == "exit"
    assert session.text() == "one\ntwo\n"


def test_tail_search_and_follow_read_the_copy(hf: Holdfast, away: Away) -> None:
    session = hf.start(away.probe("quiet", "lines", 300, 0.001, "exit", 4), place=away.place)
    data = b"".join(page.data for page in session.follow())
    assert data == b"".join(b"line %d\n" % number for number in range(1, 301))
    assert session.tail(2) == "line 299\nline 300\n"
    hits = session.search(r"line 1\d\d", context=1, limit=1)
    assert (hits[0].text, hits[0].line) == ("line 100", 100)
    refreshed = session.refresh().exit
    assert refreshed is not None
    assert refreshed.code == 4


def test_stop_ends_a_tree_that_ignores_it_and_left_its_group(hf: Holdfast, away: Away) -> None:
    words = [
        "ignore",
        "TERM,INT,HUP",
        "fork",
        "{",
        "setsid",
        "fork",
        "{",
        "say",
        "deep",
        "forever",
        "}",
        "forever",
        "}",
    ]
    session = hf.start(away.probe(*words, "forever"), place=away.place)
    session.wait(match="deep", timeout=30)
    stopped = session.stop(grace=0.1)
    assert (len(stopped.found), stopped.survivors) == (3, [])
    assert session.exit is not None
    assert (session.exit.cause, session.status) == ("stop", "killed")
    # The container has nobody but the runner to bury these: the fixture counts zombies.


def test_kill_ends_it_at_once(hf: Holdfast, away: Away) -> None:
    session = hf.start(away.probe("ignore", "TERM", "forever"), place=away.place)
    session.wait(match="ready", timeout=30)
    assert session.kill().survivors == []
    assert session.exit is not None
    assert session.exit.signal == "SIGKILL"


def test_a_name_is_one_session_and_replace_ends_the_former(hf: Holdfast, away: Away) -> None:
    first = hf.start(away.probe("forever"), name="web", place=away.place)
    with pytest.raises(errors.NameTaken):
        hf.start(away.probe("forever"), name="web", place=away.place)
    second = hf.start(away.probe("forever"), name="web", place=away.place, replace=True)
    assert hf.get("web").id == second.id
    assert first.refresh().status == "killed"
    second.stop(grace=0)


def test_a_key_leads_to_the_session_that_has_it(hf: Holdfast, away: Away) -> None:
    first = hf.start(away.probe("forever"), key="k", place=away.place)
    assert hf.start(away.probe("forever"), key="k", place=away.place).id == first.id
    first.stop(grace=0)


def test_the_directory_is_one_there(hf: Holdfast, away: Away) -> None:
    (away.work / "a b").mkdir()
    assert hf.run("pwd", cwd=f"{away.work_there}/a b", place=away.place).text() == f"{away.work_there}/a b\n"
    at_home = hf.run("pwd", cwd="~", place=away.place)
    assert at_home.text().endswith(f"{away.home_there}\n")
    assert at_home.cwd == at_home.text().strip()
    with pytest.raises(errors.SpawnError) as caught:
        hf.run("pwd", cwd="~/missing", place=away.place)
    assert caught.value.facts["step"] == "cwd"


def test_values_of_the_environment_are_in_no_argv_and_no_file(hf: Holdfast, away: Away, world: World) -> None:
    secret = "s3cret-value-of-this-test"
    session = hf.start(
        away.probe("print-env", "TOKEN", "print-env", "HOME", "print-env", "HOLDFAST_HOME", "forever"),
        env={"TOKEN": secret},
        place=away.place,
    )
    session.wait(match="HOLDFAST_HOME", timeout=30)
    said = session.text()
    assert secret in said
    assert str(world.root) not in said, "the environment is the place's own"
    for row in processes.table().values():
        assert secret not in processes.command_line(row.pid)
    for root in (world.home, away.state):
        for path, data in contents(root):
            assert path.name.startswith("stdout") or secret.encode() not in data, path
    session.stop(grace=0)


def test_deadlines_are_kept_there(hf: Holdfast, away: Away) -> None:
    slow = hf.start(away.probe("forever"), timeout=0.3, place=away.place)
    idle = hf.start(away.probe("forever"), idle_timeout=0.3, place=away.place)
    for session, cause in ((slow, "overall_timeout"), (idle, "idle_timeout")):
        assert session.wait(timeout=30).reason == "exit"
        assert session.exit is not None
        assert session.exit.cause == cause


def test_survivors_are_listed_and_struck_off(hf: Holdfast, away: Away) -> None:
    gate = away.gate()
    session = hf.start(away.probe("daemon", "{", "await", gate, "}", "exit", 0), place=away.place)
    assert session.wait(timeout=30).reason == "exit"
    assert session.exit is not None
    assert len(session.exit.survivors) == 1
    assert [each.id for each in hf.sessions()] == [session.id]
    gate.release()
    until(lambda: not hf.get(session.id).exit.survivors)  # type: ignore[union-attr]


def test_restart_runs_it_again_in_the_same_place(hf: Holdfast, away: Away) -> None:
    session = hf.start(away.probe("forever"), name="web", place=away.place)
    again = session.restart()
    assert (again.place, again.name, again.state) == (away.place, "web", "running")
    assert again.id != session.id
    again.stop(grace=0)


def test_update_changes_name_and_owner(hf: Holdfast, away: Away) -> None:
    session = hf.start(away.probe("forever"), name="one", owner="a", place=away.place)
    session.update(name="two", owner="b", labels={"x": "y"})
    found = hf.get("two")
    assert (found.id, found.owner, found.labels) == (session.id, "b", {"x": "y"})
    session.stop(grace=0)
    assert (hf.get("two").owner, hf.get("two").labels) == ("b", {"x": "y"})
