"""What the Python surface promises, on every facade and through every way to start."""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from holdfast import errors
from holdfast.home import Home
from holdfast.sessions.observe import read_files
from support.own_time import QuietTime
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.world import World


def test_run_returns_the_finished_session_with_output_and_code(hf: Holdfast) -> None:
    done = hf.run("echo out; echo err >&2; exit 3")
    assert (done.state, done.status) == ("exited", "failed")
    assert done.exit is not None
    assert (done.exit.code, done.exit.signal, done.exit.cause) == (3, None, "exit")
    assert done.text(stream="stdout") == "out\n"
    assert done.text(stream="stderr") == "err\n"


def test_run_out_of_time_leaves_the_command_running(hf: Holdfast, world: World) -> None:
    slow = hf.run(world.probe("forever"), wait=0.05)
    assert (slow.state, slow.exit) == ("running", None)
    assert hf.get(slow.id).state == "running"
    slow.stop(grace=0)


def test_a_list_is_argv_and_a_string_runs_in_the_shell(hf: Holdfast) -> None:
    assert hf.run(["echo", "a  b", "$x"]).text() == "a  b $x\n"
    assert hf.run("x=7; echo $x").text() == "7\n"


def test_a_session_is_found_by_id_prefix_name_pid_and_last(hf: Holdfast, world: World) -> None:
    started = hf.start(world.probe("forever"), name="web")
    for ref in (started.id, started.id[:6], "web", started.pid, str(started.pid), "last"):
        assert hf.get(ref).id == started.id
    with pytest.raises(errors.NotFound):
        hf.get("nothing-like-it")
    started.stop(grace=0)
    assert hf.get("web").id == started.id, "the name still leads to its last bearer"


def test_a_finished_session_is_listed_only_when_all_are_asked_for(hf: Holdfast, world: World) -> None:
    done = hf.run("true")
    live = hf.start(world.probe("forever"), owner="agent-7", labels={"tier": "web"})
    assert [each.id for each in hf.sessions()] == [live.id]
    assert [each.id for each in hf.sessions(all=True)] == [done.id, live.id]
    assert [each.id for each in hf.sessions(owner="agent-7")] == [live.id]
    assert [each.id for each in hf.sessions(labels={"tier": "web"})] == [live.id]
    assert hf.sessions(labels={"tier": "db"}) == []
    assert [each.id for each in hf.sessions(all=True, status="completed")] == [done.id]
    live.stop(grace=0)


def test_a_list_of_live_sessions_leaves_a_few_ends_to_the_next_and_notes_many(world: World) -> None:
    home = world.open()
    started = [home.start("true") for _ in range(8)]
    for each in started:
        assert each.runner_pid is not None
        wait_gone(each.runner_pid)

    def unnoted() -> int:
        with world.open() as fresh:
            return len(fresh._core.index.unfinished())

    home.remove(started[0].id)
    assert home.sessions() == []
    assert unnoted() == 7
    last = home.start("true")
    assert last.runner_pid is not None
    wait_gone(last.runner_pid)
    assert home.sessions() == []
    assert unnoted() == 0
    assert {each.id for each in home.sessions(all=True)} == {each.id for each in [*started[1:], last]}


def test_reading_continues_at_the_cursor_and_consumes_nothing(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("quiet", "say", "one", "read-line", "forever"), stdin="open")
    assert session.wait(match="one").reason == "match"
    first = session.read()
    assert first.data == b"one\n"
    session.send("two\n")
    assert session.wait(match="got two", since=first.cursor).reason == "match"
    assert session.read(since=first.cursor).data == b"got two\n"
    assert session.read().data == b"one\ngot two\n"
    session.stop(grace=0)


def test_output_comes_in_the_order_it_was_printed(hf: Holdfast, world: World) -> None:
    gates = [world.gate() for _ in range(2)]
    words = ["quiet", "say", "a", "await", gates[0], "err", "say", "b", "await", gates[1], "out", "say", "c"]
    session = hf.start(world.probe(*words))
    for gate, text in zip(gates, ("a", "b"), strict=True):
        session.wait(match=text)
        gate.release()
    session.wait()
    assert session.read().data == b"a\nb\nc\n"


def test_tail_search_and_follow_read_the_same_log(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("quiet", "lines", 300))
    assert b"".join(page.data for page in session.follow()).split(b"\n")[:2] == [b"line 1", b"line 2"]
    assert session.tail(2) == "line 299\nline 300\n"
    hits = session.search(r"line 1\d\d", context=1, limit=1)
    assert (hits[0].text, hits[0].line) == ("line 100", 100)


def test_follow_gives_everything_until_the_end(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("quiet", "lines", 200, 0.001, "exit", 4))
    data = b"".join(page.data for page in session.follow())
    assert data == b"".join(b"line %d\n" % number for number in range(1, 201))
    assert session.refresh().exit is not None


def test_wait_says_which_condition_came_true(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("quiet", "say", "up", "read-line", "forever"), stdin="open")
    session.wait(match="up")
    assert session.wait(timeout=0.01).reason == "timeout"
    assert session.wait(idle=0.05, timeout=30).reason == "idle"
    cursor = session.read().cursor
    session.send("more\n")
    assert session.wait(output=True, since=cursor, timeout=30).reason == "output"
    session.stop(grace=0)
    assert session.wait(match="never printed").reason == "exit"


def test_output_beside_a_match_is_what_is_printed_after_the_call_or_the_cursor(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("quiet", "say", "up", "read-line", "forever"), stdin="open")
    before = session.wait(match="up", timeout=30).cursor
    assert session.wait(match="up", output=True, timeout=0).reason == "match"
    assert session.wait(match="never printed", output=True, timeout=0).reason == "timeout"
    for places in (before, "stderr:0,stdout:3", "stdout:3"):
        assert session.wait(match="never printed", output=True, since=places, timeout=0).reason == "timeout"
    session.send("more\n")
    woke = session.wait(match="never printed", output=True, since=before, timeout=30)
    assert (woke.reason, session.read(woke.cursor).text) == ("output", "got more\n")
    session.stop(grace=0)


def test_wait_for_a_port_ends_when_it_is_open(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("quiet", "serve", 0))
    reported = session.wait(match=r"port \d+").match
    assert reported is not None
    port = int(reported.split()[1])
    assert session.wait(port=port, timeout=30).reason == "port"
    session.stop(grace=0)


def test_an_end_before_the_wait_is_answered_at_once(hf: Holdfast) -> None:
    session = hf.start("exit 5")
    until(lambda: session.refresh().state == "exited")
    woke = session.wait()
    assert woke.reason == "exit"
    assert session.exit is not None
    assert session.exit.code == 5


def test_input_given_at_the_start_is_written_and_closed(hf: Holdfast) -> None:
    assert hf.run(["cat"], input="hello\n").text() == "hello\n"


def test_stdin_is_closed_by_default_and_the_error_names_the_fix(hf: Holdfast, world: World) -> None:
    assert hf.run(["cat"]).text() == ""
    session = hf.start(world.probe("forever"))
    with pytest.raises(errors.StdinClosed, match="stdin"):
        session.send("x")
    session.stop(grace=0)
    with pytest.raises(errors.SessionEnded):
        session.send("x")


def test_close_stdin_ends_a_reader(hf: Holdfast) -> None:
    session = hf.start(["cat"], stdin="open")
    assert session.send(b"bytes \xff\n").accepted == 8
    session.close_stdin()
    session.wait()
    assert session.read().data == b"bytes \xff\n"
    assert session.exit is not None
    assert session.exit.code == 0


def test_send_signal_reaches_the_command_alone(hf: Holdfast, world: World) -> None:
    child = ["say", "child", "forever"]
    session = hf.start(world.probe("quiet", "signal-report", "fork", "{", *child, "}", "say", "parent", "forever"))
    until(lambda: sorted(session.text().split()) == ["child", "parent"])
    assert session.send_signal("USR1") == 1
    session.wait(match="signal USR1")
    assert session.text().count("signal USR1") == 1
    with pytest.raises(errors.BadArgument):
        session.send_signal("NOPE")
    session.stop(grace=0)


def test_stop_is_recorded_with_who_asked(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("forever"))
    stopped = session.stop(grace=2, by="conv-17")
    assert (stopped.rung, stopped.survivors) == ("TERM to the command", [])
    assert session.status == "killed"
    assert session.exit is not None
    assert (session.exit.cause, session.exit.by, session.exit.signal) == ("stop", "conv-17", "SIGTERM")
    again = session.stop()
    assert again.already


def test_many_are_stopped_at_once(hf: Holdfast, world: World) -> None:
    sessions = [hf.start(world.probe("ignore", "TERM", "say", "up", "forever")) for _ in range(4)]
    for session in sessions:
        session.wait(match="^up$")
    answers = hf.stop_all([session.id for session in sessions], grace=0.3)
    assert [answer.survivors for answer in answers] == [[]] * 4
    assert sum(answer.took_s for answer in answers) > 1.0, "each took its whole grace"


def test_a_key_gives_the_running_session_instead_of_a_second(hf: Holdfast, world: World) -> None:
    command = world.probe("forever")
    first = hf.start(command, key="build")
    assert hf.start(command, key="build").id == first.id
    with pytest.raises(errors.KeyReused):
        hf.start(["true"], key="build")
    first.stop(grace=0)
    second = hf.start(command, key="build")
    assert second.id != first.id
    second.stop(grace=0)


def test_replace_ends_the_former_holder_of_the_key(hf: Holdfast, world: World) -> None:
    first = hf.start(world.probe("forever"), key="dev")
    second = hf.start(world.probe("forever"), key="dev", replace=True)
    assert first.refresh().status == "killed"
    assert second.state == "running"
    second.stop(grace=0)


def test_a_name_belongs_to_one_live_session(hf: Holdfast, world: World) -> None:
    first = hf.start(world.probe("forever"), name="web")
    with pytest.raises(errors.NameTaken, match=first.id):
        hf.start(["true"], name="web")
    first.stop(grace=0)
    second = hf.start(world.probe("forever"), name="web")
    assert hf.get("web").id == second.id
    second.stop(grace=0)


def test_update_changes_name_owner_labels_and_deadlines(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("forever"), name="old")
    session.update(name="new", owner="agent-9", labels={"a": "b"}, description="told")
    assert (session.name, session.owner, session.labels, session.description) == ("new", "agent-9", {"a": "b"}, "told")
    assert hf.get("new").id == session.id
    other = hf.start(world.probe("forever"), name="taken")
    with pytest.raises(errors.NameTaken):
        session.update(name="taken")
    session.update(timeout=0.05)
    session.wait(timeout=30)
    assert session.exit is not None
    assert session.exit.cause == "overall_timeout"
    other.stop(grace=0)


def test_remove_forgets_a_finished_session_and_refuses_a_live_one(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("forever"))
    with pytest.raises(errors.StillRunning):
        session.remove()
    session.stop(grace=0)
    session.remove()
    assert not world.session(session.id).exists()
    with pytest.raises(errors.Removed):
        hf.get(session.id)


def test_restart_starts_the_same_command_and_names_the_former(hf: Holdfast, world: World) -> None:
    first = hf.start(world.probe("forever"), name="web", labels={"k": "v"})
    second = first.restart()
    assert first.refresh().status == "killed"
    assert (second.name, second.labels, second.command) == ("web", {"k": "v"}, first.command)
    assert second.metadata["restarted_from"] == first.id
    second.stop(grace=0)


def test_restart_asks_again_for_variables_whose_values_were_not_kept(hf: Holdfast, world: World) -> None:
    first = hf.start(world.probe("print-env", "CANARY", "forever"), env={"CANARY": "one"})
    with pytest.raises(errors.BadArgument, match="CANARY"):
        first.restart()
    assert first.refresh().state == "running", "a refused restart stops nothing"
    second = first.restart(env={"CANARY": "two"})
    assert second.wait(match="two", timeout=30).reason == "match"
    second.stop(grace=0)


def test_restart_takes_away_again_what_was_taken_away(
    hf: Holdfast, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CANARY", "ours")
    first = hf.run(world.probe("print-env", "CANARY"), env={"CANARY": None})
    second = first.restart()
    second.wait(timeout=30)
    assert second.text() == first.text()


def test_restart_keeps_a_clean_environment_and_inherits_nothing_into_it(
    hf: Holdfast, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On faulty code all of the restarting host's variables, secrets too, reached a command that was to have none."""
    monkeypatch.setenv("CANARY", "ours")
    monkeypatch.setenv("GIVEN", "ours")
    first = hf.run("echo canary=$CANARY given=$GIVEN", clean_env=True, env={"GIVEN": "one"})
    with pytest.raises(errors.BadArgument, match="GIVEN"):
        first.restart()
    second = first.restart(env={"GIVEN": "two"})
    second.wait(timeout=30)
    assert second.text() == "canary= given=two\n"


def test_restart_asks_again_for_input_which_is_never_stored(hf: Holdfast) -> None:
    first = hf.run("cat", input="one\n")
    with pytest.raises(errors.BadArgument, match=r"input: 4 bytes .* give it again") as reported:
        first.restart()
    assert reported.value.argument == "input"
    second, third = first.restart(input="two\n"), first.restart(input="")
    for again in (second, third):
        again.wait(timeout=30)
    assert (second.text(), third.text()) == ("two\n", "")


def test_restart_asks_again_for_descriptors(hf: Holdfast, world: World) -> None:
    reader, writer = os.pipe()
    try:
        first = hf.start(world.probe("forever"), pass_fds=[reader])
        with pytest.raises(errors.BadArgument, match=f"pass_fds: {reader} "):
            first.restart()
        assert first.refresh().state == "running", "a refused restart stops nothing"
        second = first.restart(pass_fds=[reader])
    finally:
        os.close(reader)
        os.close(writer)
    assert json.loads((world.session(second.id) / "spec.json").read_text())["pass_fds"] == [reader]
    third = second.restart(pass_fds=[])
    assert json.loads((world.session(third.id) / "spec.json").read_text())["pass_fds"] == []
    third.stop(grace=0)


def test_restart_binds_to_the_same_owner_and_refuses_when_it_is_gone(hf: Holdfast, world: World) -> None:
    """On faulty code the new session was detached, and outlived the owner that the first was bound to."""
    owner = world.program(["cat"])
    first = hf.start(world.probe("forever"), lifetime="owner", owner_pid=owner.pid)
    second = first.restart()
    owner.end()
    second.wait(timeout=30)
    assert second.exit is not None
    assert second.exit.cause == "owner_gone"
    with pytest.raises(errors.BadArgument, match=f"lifetime: the owner .* process {owner.pid}, is gone"):
        second.restart()
    third = second.restart(owner_pid=os.getpid())
    assert json.loads((world.session(third.id) / "spec.json").read_text())["owner_process"]["pid"] == os.getpid()
    fourth = third.restart(lifetime="detached")
    assert json.loads((world.session(fourth.id) / "spec.json").read_text())["lifetime"] == "detached"
    fourth.stop(grace=0)


def test_restart_refuses_to_repeat_the_life_of_a_call(hf: Holdfast) -> None:
    done = hf.run("true", lifetime="call")
    with pytest.raises(errors.BadArgument, match=r"lifetime: `call`"):
        done.restart()
    again = done.restart(lifetime="detached")
    assert again.wait(timeout=30).reason == "exit"


@pytest.mark.parametrize(
    "options, cause",
    [({"timeout": 0.1}, "overall_timeout"), ({"idle_timeout": 0.1}, "idle_timeout"), ({"ttl": 0.1}, "ttl")],
)
def test_each_limit_ends_the_command_with_its_own_cause(
    hf: Holdfast, world: World, options: dict[str, float], cause: str
) -> None:
    done = hf.run(world.probe("forever"), **options)  # type: ignore[arg-type]
    assert done.status == "killed"
    assert done.exit is not None
    assert (done.exit.cause, done.exit.signal) == (cause, "SIGTERM")


def test_output_keeps_an_idle_limit_from_passing(hf: Holdfast, world: World) -> None:
    done = hf.run(world.probe("lines", 10, 0.25), idle_timeout=2)
    assert done.exit is not None
    assert done.exit.cause == "exit"


def test_a_call_bound_command_survives_the_return_of_its_call(hf: Holdfast, world: World) -> None:
    session = hf.run(world.probe("forever"), wait=0.05, lifetime="call")
    assert session.refresh().state == "running"
    session.stop(grace=0)


def test_what_a_call_bound_command_leaves_behind_survives_the_return_of_its_call(hf: Holdfast, world: World) -> None:
    done = hf.run(world.probe("fork", "{", "forever", "}", "exit", "0"), lifetime="call")
    assert done.exit is not None
    assert len(done.exit.survivors) == 1
    stopped = done.stop(grace=0)
    assert len(stopped.found) == 1
    assert stopped.survivors == []


def test_streams_can_be_merged(hf: Holdfast) -> None:
    done = hf.run("echo out; echo err >&2", merge_stderr=True)
    assert done.read().data == b"out\nerr\n"
    assert list(done.ends) == ["stdout"]


def test_descriptors_are_passed_under_their_own_numbers(hf: Holdfast, world: World) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"secret")
    os.close(writer)
    try:
        done = hf.run(["cat", f"/dev/fd/{reader}"], pass_fds=[reader])
    finally:
        os.close(reader)
    assert done.text() == "secret"


def test_a_descriptor_may_be_passed_under_another_number(hf: Holdfast) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"secret")
    os.close(writer)
    try:
        done = hf.run(["cat", "/dev/fd/3"], pass_fds={3: reader})
    finally:
        os.close(reader)
    assert done.text() == "secret"


def test_a_run_reports_its_session_before_it_waits(hf: Holdfast) -> None:
    reported: list[str] = []
    done = hf.run("echo done", started=lambda session: reported.append(session.id))
    assert (reported, done.text()) == ([done.id], "done\n")


def test_the_tree_is_found_though_the_command_is_gone(hf: Holdfast, world: World) -> None:
    # Until it has become its program, the shell's child has the shell's command line.
    is_sleep = 'read -r line </proc/$!/cmdline; [ "$line" = sleep60 ]'
    done = hf.run(f"sleep 60 & until {is_sleep}; do :; done; echo started")
    assert done.text() == "started\n"
    assert done.exit is not None
    assert (done.exit.code, done.exit.complete) == (0, False)
    (survivor,) = done.exit.survivors
    assert survivor["command"] == "sleep 60"
    stopped = done.stop()
    assert [found["pid"] for found in stopped.found] == [survivor["pid"]]
    wait_gone(survivor["pid"])
    assert done.exit.survivors == []
    assert done.exit.complete


def test_an_outside_kill_is_recorded_as_the_signal_it_was(hf: Holdfast, world: World) -> None:
    session = hf.start(world.probe("forever"))
    assert session.pid is not None
    os.kill(session.pid, signal.SIGSEGV)
    session.wait()
    assert session.status == "failed"
    assert session.exit is not None
    assert (session.exit.cause, session.exit.signal, session.exit.code) == ("signal", "SIGSEGV", None)


def test_recover_names_what_lives_and_what_ended_meanwhile(hf: Holdfast, world: World) -> None:
    live = hf.start(world.probe("forever"))
    ended = hf.start("true")
    until(lambda: ended.refresh().state == "exited")
    found = hf.recover()
    assert [each.id for each in found.live] == [live.id]
    assert found.unreachable == found.stale == found.lost == []
    live.stop(grace=0)


def test_an_unknown_option_is_refused_by_name(hf: Holdfast) -> None:
    with pytest.raises(errors.BadArgument, match="timeuot"):
        hf.start("true", timeuot=3)  # type: ignore[call-arg]
    with pytest.raises(errors.EmptyCommand):
        hf.start("  ")
    with pytest.raises(errors.PlaceUnsupported):
        hf.start("true", place="moon:base")


def test_a_wait_bears_with_a_runner_that_cannot_be_reached_for_as_long_as_an_answer_may_take(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that was killed and is not seen dead yet: its endpoint is gone, its process is there."""
    patient = world.open()
    started = patient.start(world.probe("quiet", "forever"))
    config = world.root / "config.toml"
    config.write_text('[hosts]\nreply_timeout = "300ms"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    session = world.open().get(started.id)
    endpoint = read_files(Home(), session.id).endpoint
    os.rename(endpoint, f"{endpoint}.away")
    try:
        assert started.wait(timeout=0.1).reason == "timeout"
        for wait in (session.wait, lambda: list(session.follow())):
            began, passed = time.monotonic(), QuietTime()
            with pytest.raises(errors.Unreachable):
                wait()
            assert time.monotonic() - began >= 0.3
            assert passed.seconds() < patient.config.hosts_reply_timeout
    finally:
        os.rename(f"{endpoint}.away", endpoint)
    started.stop(grace=0)


def test_a_wait_right_after_its_runner_was_killed_lasts_until_the_command_is_gone(world: World) -> None:
    hf = world.open()
    world.closing.callback(hf.collect)
    for _ in range(5):
        session = hf.start(world.probe("quiet", "forever"))
        assert session.runner_pid is not None
        assert session.pid is not None
        os.kill(session.runner_pid, signal.SIGKILL)
        assert session.wait(timeout=0.05).reason == "timeout"
        os.kill(session.pid, signal.SIGKILL)
        assert session.wait(timeout=30).reason == "lost"
