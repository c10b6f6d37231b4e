"""From a real session to a person: runner, queue, deliverer and channel together."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.model.events import Bell
from holdfast.runner.people_notifier import take_lock
from holdfast.sessions.without_runner import start_deliverer_if_needed
from holdfast.signals.consumers import Consumers
from holdfast.signals.people import status
from support.faults import kill_runner
from support.notified import Got, Receiver
from support.points import Points
from support.signal_file import ended
from support.waiting import BOUND_S, until, wait_gone
from support.world import World

SECRET = "s3cret"
# A deliverer starts an interpreter and opens a home.
COMES_S = BOUND_S

Configure = Callable[..., Holdfast]


@pytest.fixture
def configure(world: World, monkeypatch: pytest.MonkeyPatch) -> Configure:
    """A host of a home with these channels, whose deliverer is as patient as a test."""
    secret = world.root / "secret"
    secret.touch(mode=0o600)
    secret.write_text(SECRET)

    def configured(*tables: str, hook: str | None = None, **settings: str) -> Holdfast:
        file = world.root / "user" / ".config" / "holdfast" / "config.toml"
        file.parent.mkdir(exist_ok=True)
        webhook = f'[people.webhook.ops]\nurl = "{hook}"\nsecret_file = "{secret}"\n' if hook else ""
        file.write_text("\n".join([*tables, webhook]))
        for name, value in {"apart": "50ms", "retry_waits": "10ms, 10ms, 10ms", **settings}.items():
            monkeypatch.setenv(f"HOLDFAST_PEOPLE_{name.upper()}", value)
        return world.open()

    return configured


def _gone(world: World) -> None:
    """The deliverer has left, and with it whatever it had to do."""

    def is_free() -> bool:
        lock = take_lock(str(world.home))
        if lock is not None:
            os.close(lock)
        return lock is not None

    until(is_free, COMES_S, what="the end of the deliverer")
    until(
        lambda: not [each for each in threading.enumerate() if each.name == "holdfast-people"],
        what="its being waited for",
    )


def _forget_wakes(world: World) -> None:
    """What a killed process left there is for a collection, and no matter of these tests."""
    for path in (world.runtime / "wake").iterdir():
        path.unlink()


def _verified(got: Got) -> dict[str, Any]:
    at, _, given = got.headers["Holdfast-Signature"].partition(",v1=")
    signed = at.removeprefix("t=").encode() + b"." + got.body
    assert hmac.compare_digest(given, hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest())
    record: dict[str, Any] = json.loads(got.body)
    assert got.headers["Holdfast-Signal-Id"] == record["id"]
    return record


@pytest.mark.covers("signals:37")
def test_a_webhook_that_fails_twice_gets_the_same_signal_three_times(world: World, configure: Configure) -> None:
    with Receiver([500, 500, 200]) as receiver:
        hf = configure(hook=receiver.url)
        session = hf.start(world.probe("err", "say", "broken", "exit", 7))
        records = [_verified(receiver.next(COMES_S)) for _ in range(3)]
        assert {record["id"] for record in records} == {records[0]["id"]}
        assert (records[0]["session"], records[0]["lifecycle"]["code"]) == (session.id, 7)
        _gone(world)
        hf.start(world.probe("exit", 8)).wait(exit=True, timeout=BOUND_S)
        assert _verified(receiver.next(COMES_S))["lifecycle"]["code"] == 8, "and not the settled one again"
        _gone(world)
        assert receiver.count == 4


@pytest.mark.covers("signals:37")
def test_a_deliverer_that_is_killed_between_two_tries_is_made_up_for_by_the_next(
    world: World, points: Points, configure: Configure
) -> None:
    with Receiver([500, 200]) as receiver:
        points.set("people.deliver=2*kill")
        hf = configure(hook=receiver.url)
        first = hf.start(world.probe("exit", 7))
        assert _verified(receiver.next(COMES_S))["session"] == first.id
        _gone(world)
        points.set("")
        second = hf.start(world.probe("exit", 8))
        found = {_verified(receiver.next(COMES_S))["session"] for _ in range(2)}
        assert found == {first.id, second.id}
        _gone(world)
        assert receiver.count == 3
    _forget_wakes(world)


@pytest.mark.covers("signals:37")
def test_a_deliverer_that_is_killed_after_it_reported_reports_it_again_rather_than_never(
    world: World, points: Points, configure: Configure
) -> None:
    with Receiver() as receiver:
        points.set("people.delivered=1*kill")
        hf = configure(hook=receiver.url)
        session = hf.start(world.probe("exit", 7))
        id = _verified(receiver.next(COMES_S))["id"]
        _gone(world)
        points.set("")
        again = world.program([sys.executable, "-m", "holdfast.signals.people.program", str(world.home)])
        record = _verified(receiver.next(COMES_S))
        assert (record["id"], record["session"]) == (id, session.id)
        assert again.wait(COMES_S) == 0
    _forget_wakes(world)


def _until_files_are_younger(world: World) -> None:
    """The kernel stamps files with a clock that is some milliseconds late, and signals have whole milliseconds."""
    now, path = time.time_ns() + 10**6, world.cwd / "stamp"

    def is_younger() -> bool:
        path.write_text("")
        return path.stat().st_ctime_ns > now

    until(is_younger)


@pytest.mark.covers("found:20")
def test_a_new_channel_sends_only_what_happens_from_then_on(world: World, configure: Configure) -> None:
    world.open().start(world.probe("exit", 6)).wait(exit=True, timeout=BOUND_S)
    _until_files_are_younger(world)
    with Receiver() as receiver:
        hf = configure(hook=receiver.url)
        later = hf.start(world.probe("exit", 7))
        assert _verified(receiver.next(COMES_S))["session"] == later.id
        _gone(world)
        assert receiver.count == 1


@pytest.mark.covers("found:20")
def test_a_channel_in_a_restored_file_is_as_old_as_the_file_is_there(world: World, configure: Configure) -> None:
    """The modification time of a copied or moved file lies before what happened without it."""
    world.open().start(world.probe("exit", 6)).wait(exit=True, timeout=BOUND_S)
    _until_files_are_younger(world)
    with Receiver() as receiver:
        hf = configure(hook=receiver.url)
        os.utime(world.root / "user" / ".config" / "holdfast" / "config.toml", (0, 0))
        later = hf.start(world.probe("exit", 7))
        assert _verified(receiver.next(COMES_S))["session"] == later.id
        _gone(world)
        assert receiver.count == 1


@pytest.mark.covers("found:20")
def test_a_new_channel_sends_the_end_of_a_session_that_ran_before(world: World, configure: Configure) -> None:
    gate = world.gate()
    session = world.open().start(world.probe("await", gate, "exit", 7))
    with Receiver() as receiver:
        configure(hook=receiver.url)
        gate.release()
        assert _verified(receiver.next(COMES_S))["session"] == session.id
        _gone(world)


@pytest.mark.covers("found:20")
def test_a_deleted_index_sends_nothing_again(world: World, configure: Configure) -> None:
    with Receiver() as receiver:
        hf = configure('[people]\nevents = ["ended"]', hook=receiver.url)
        first = hf.start(world.probe("exit", 7))
        assert _verified(receiver.next(COMES_S))["session"] == first.id
        _gone(world)
        _delete_index(world)
        second = world.open().start(world.probe("exit", 0))
        assert _verified(receiver.next(COMES_S))["session"] == second.id
        _gone(world)
        assert receiver.count == 2


@pytest.mark.covers("found:20")
def test_an_index_that_is_deleted_under_a_deliverer_sends_nothing_again(world: World, configure: Configure) -> None:
    with Receiver() as receiver:
        hf = configure(hook=receiver.url, apart="2s")
        first = hf.start(world.probe("exit", 7))
        assert _verified(receiver.next(COMES_S))["session"] == first.id
        until(lambda: _has_sent(world, first.id), what="the record of the delivery")
        _delete_index(world)
        second = hf.start(world.probe("exit", 8))
        assert _verified(receiver.next(COMES_S))["session"] == second.id
        _gone(world)
        assert receiver.count == 2


@pytest.mark.covers("found:20")
@pytest.mark.parametrize("notify_people", [None, True])
def test_a_stop_that_was_asked_for_is_not_sent(world: World, configure: Configure, notify_people: bool | None) -> None:
    with Receiver() as receiver:
        hf = configure('[people]\nevents = ["ended"]', hook=receiver.url)
        hf.start(world.probe("forever"), notify_people=notify_people).stop()
        by_itself = hf.start(world.probe("exit", 0))
        assert _verified(receiver.next(COMES_S))["session"] == by_itself.id
        _gone(world)
        assert receiver.count == 1


@pytest.mark.parametrize("words", [("-9",), ("-s", "TERM"), ()], ids=" ".join)
def test_a_kill_of_ones_own_is_not_sent_and_one_from_elsewhere_is(
    world: World, configure: Configure, words: tuple[str, ...]
) -> None:
    with Receiver() as receiver:
        hf = configure('[people]\nevents = ["ended"]', hook=receiver.url)
        ours, theirs = hf.start(world.probe("forever")), hf.start(world.probe("forever"))
        for session in (ours, theirs):
            session.wait(match="ready", timeout=30)
        world.hold("kill", *words, ours.id, check=True)
        ours.wait(exit=True, timeout=30)
        assert theirs.pid is not None
        os.kill(theirs.pid, signal.SIGKILL)
        assert _verified(receiver.next(COMES_S))["session"] == theirs.id
        _gone(world)
        assert receiver.count == 1


@pytest.mark.parametrize("tty", [(), ("--tty",)], ids=["pipes", "terminal"])
def test_the_end_of_a_run_in_the_foreground_is_sent_when_it_was_asked_for(
    world: World, configure: Configure, tty: tuple[str, ...]
) -> None:
    """Without that option it is not: the end was shown to the person who waited for it."""
    with Receiver() as receiver:
        configure('[people]\nevents = ["ended"]', hook=receiver.url)
        for options in ((), ("--notify-people",), ("--no-notify-people",)):
            name = options[0].strip("-") if options else "silent"
            world.hold("run", *tty, "--name", name, *options, "--", "true", check=True)
        reported = _verified(receiver.next(COMES_S))
        assert (reported["snapshot"]["name"], reported["lifecycle"]["status"]) == ("notify-people", "completed")
        _gone(world)
        assert receiver.count == 1


@pytest.mark.covers("found:20")
@pytest.mark.parametrize("apart", ["50ms", "2s"], ids=["no-deliverer", "a-deliverer-waits"])
def test_changed_events_hold_from_the_next_event_on(world: World, configure: Configure, apart: str) -> None:
    with Receiver() as receiver:
        hf = configure('[people]\nevents = ["failed"]', hook=receiver.url, apart=apart)
        gate = world.gate()
        # Started under the old list, ended under the new one.
        session = hf.start(world.probe("await", gate, "exit", 0))
        hf.start(world.probe("exit", 0)).wait(exit=True, timeout=BOUND_S)
        failed = hf.start(world.probe("exit", 7))
        assert _verified(receiver.next(COMES_S))["session"] == failed.id
        if apart == "50ms":
            _gone(world)
        configure('[people]\nevents = ["ended"]', hook=receiver.url, apart=apart)
        gate.release()
        assert _verified(receiver.next(COMES_S))["session"] == session.id
        _gone(world)
        assert receiver.count == 2, "what ended before the list changed is not sent"


def _delete_index(world: World) -> None:
    for file in world.home.glob("index.db*"):
        file.unlink(missing_ok=True)


def _has_sent(world: World, session: str) -> bool:
    sent = status.read(str(world.home)).get("people:webhook:ops", {}).get("sent", {})
    return any(id.startswith(f"{session}.") for id in sent)


@pytest.mark.covers("signals:37")
def test_a_name_with_the_signs_of_a_shell_reaches_the_command_as_text(world: World, configure: Configure) -> None:
    said = world.root / "said"
    code = "import sys, os; new = sys.argv[1] + '.new'; open(new, 'w').write(sys.argv[2]); os.rename(new, sys.argv[1])"
    argv = json.dumps([sys.executable, "-c", code, str(said), "{title}"])
    hf = configure(f"[people.command]\nargv = {argv}")
    hf.start(world.probe("exit", 7), name="$(touch x); `id` 'y'")
    until(said.exists, COMES_S, watch=world.root)
    assert said.read_text().startswith("$(touch x); `id` 'y' failed, exit code 7 after ")
    assert os.listdir(world.cwd) == []
    _gone(world)


@pytest.mark.covers("signals:37")
def test_a_session_with_an_attached_person_sends_no_notice(world: World, configure: Configure) -> None:
    with Receiver() as receiver:
        hf = configure(hook=receiver.url)
        session = hf.start(world.probe("read-line", "exit", 7), tty=True)
        with session.attach(kind="cli") as person:
            person.send(b"go\r")
            session.wait(exit=True, timeout=BOUND_S)
        other = hf.start(world.probe("exit", 8))
        assert _verified(receiver.next(COMES_S))["session"] == other.id
        _gone(world)
        assert receiver.count == 1


def test_the_wish_of_a_session_counts_as_it_is_now(world: World, configure: Configure) -> None:
    with Receiver() as receiver:
        hf = configure(hook=receiver.url)
        gate = world.gate()
        muted = hf.start(world.probe("await", gate, "exit", 7))
        muted.update(notify_people=False)
        gate.release()
        muted.wait(exit=True, timeout=BOUND_S)
        reported = hf.start(world.probe("exit", 0), notify_people=True)
        assert _verified(receiver.next(COMES_S))["session"] == reported.id
        _gone(world)
        assert receiver.count == 1


def test_several_in_a_short_time_are_one(world: World, configure: Configure) -> None:
    with Receiver(hold=True) as receiver:
        hf = configure('[people]\nevents = ["ended", "watch"]', hook=receiver.url, apart="300ms")
        gate = world.gate()
        session = hf.start(world.probe("say", "boom", "await", gate, "exit", 7), watch=["boom"])
        assert "watch" in _verified(receiver.next(COMES_S))
        gate.release()
        session.wait(exit=True, timeout=BOUND_S)
        receiver.release()
        assert _verified(receiver.next(COMES_S))["lifecycle"]["code"] == 7
        _gone(world)
        assert receiver.count == 2


def test_an_address_that_is_gone_is_left_alone_and_that_is_said(world: World, configure: Configure) -> None:
    with Receiver([410, 200]) as receiver:
        hf = configure(hook=receiver.url)
        hf.start(world.probe("exit", 7))
        receiver.next(COMES_S)
        _gone(world)
        assert "410" in status.read(str(world.home))["people:webhook:ops"]["over"]["why"]
        session = hf.start(world.probe("exit", 8))
        session.wait(exit=True, timeout=BOUND_S)
        _gone(world)
        assert receiver.count == 1
        moved = configure(hook=receiver.url.replace("x=1", "x=2"))
        moved.start(world.probe("exit", 9))
        got = {_verified(receiver.next(COMES_S))["lifecycle"]["code"] for _ in range(2)}
        assert got == {8, 9}, "what waited for it comes where it leads by now"
        _gone(world)


def test_a_signal_that_comes_while_the_deliverer_leaves_is_reported(
    world: World, points: Points, configure: Configure
) -> None:
    with Receiver() as receiver:
        points.set("people.leaving=1*pause")
        hf = configure(hook=receiver.url)
        hf.start(world.probe("exit", 7))
        receiver.next(COMES_S)
        hit = points.wait("people.leaving", COMES_S)
        second = hf.start(world.probe("exit", 8))
        second.wait(exit=True, timeout=BOUND_S)
        until(lambda: second.refresh().state == "exited")
        assert receiver.count == 1, "it has the lock, and does not look any more"
        hit.release()
        assert _verified(receiver.next(COMES_S))["session"] == second.id
        _gone(world)


def test_a_deliverer_keeps_no_session_from_ending(world: World, configure: Configure) -> None:
    with Receiver(hold=True) as receiver:
        hf = configure(hook=receiver.url)
        session = hf.start(world.probe("exit", 7))
        receiver.next(COMES_S)
        found = session.refresh()
        assert found.exit is not None
        assert (found.state, found.exit.survivors, found.exit.complete) == ("exited", [], True)
        runner = json.loads((world.session(session.id) / "state.json").read_text())["runner"]["pid"]
        until(lambda: not Path(f"/proc/{runner}").exists() or not _is_runner_of(runner, session.id))
        receiver.release()
        _gone(world)


def _is_runner_of(pid: int, id: str) -> bool:
    try:
        return any(id in os.readlink(link) for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


def test_people_who_are_attached_elsewhere_hear_the_bell(world: World, configure: Configure) -> None:
    hf = configure("[people]\nbell = true")
    looked_at = hf.start(world.probe("forever"), tty=True)
    with looked_at.attach(kind="cli") as person:
        hf.start(world.probe("exit", 7), name="build")
        bells = (event for event in person if isinstance(event, Bell))
        assert next(bells).text.startswith("build failed, exit code 7")
    looked_at.stop(grace=0)
    _gone(world)


def test_a_deliverer_that_is_asked_to_leave_gives_back_what_it_has(
    world: World, points: Points, configure: Configure
) -> None:
    with Receiver(hold=True) as receiver:
        hf = configure(hook=receiver.url)
        points.set("people.start=error:EAGAIN")
        ended(world, hf.start(world.probe("exit", 7)))
        points.set("")
        deliverer = world.program([sys.executable, "-m", "holdfast.signals.people.program", str(world.home)])
        id = _verified(receiver.next(COMES_S))["id"]
        second = world.program([sys.executable, "-m", "holdfast.signals.people.program", str(world.home)])
        assert second.wait(COMES_S) == 0, "one is enough"
        os.kill(deliverer.pid, 15)
        assert deliverer.wait(COMES_S) == 0
        receiver.release()
        third = world.program([sys.executable, "-m", "holdfast.signals.people.program", str(world.home)])
        assert _verified(receiver.next(COMES_S))["id"] == id
        assert third.wait(COMES_S) == 0


def test_a_deliverer_without_channels_or_with_a_broken_file_leaves(world: World, configure: Configure) -> None:
    configure()
    argv = [sys.executable, "-m", "holdfast.signals.people.program"]
    assert world.program([*argv, str(world.home)]).wait(COMES_S) == 0
    broken = world.root / "broken.toml"
    broken.write_text("[people]\nbel = true\n")
    program = world.program([*argv, "--config", str(broken), str(world.home)])
    assert program.wait(COMES_S) == 1
    assert "broken.toml:2: people.bel: unknown key" in program.errors()
    assert world.program(argv).wait(COMES_S) == 2


def test_people_are_notified_of_an_end_that_a_host_wrote(world: World, configure: Configure) -> None:
    with Receiver() as receiver:
        hf = configure(hook=receiver.url)
        world.closing.callback(hf.collect)
        session = hf.start(world.probe("forever"), owner="conv-1")
        assert session.pid is not None
        kill_runner(session)
        os.kill(session.pid, signal.SIGKILL)
        wait_gone(session.pid)
        assert hf.signals("conv-1").pending() == 1
        record = _verified(receiver.next(COMES_S))
        assert (record["session"], record["lifecycle"]["cause"]) == (session.id, "lost")
        _gone(world)


def test_a_host_calls_for_what_a_killed_deliverer_left(world: World, points: Points, configure: Configure) -> None:
    with Receiver([500, 200]) as receiver:
        hf = configure(hook=receiver.url)
        core = hf._core
        consumers = Consumers(core.driver, core.index, core.config, core.runtime)
        assert not start_deliverer_if_needed(core.home, core.config, consumers)
        points.set("people.deliver=2*kill")
        hf.start(world.probe("exit", 7)).wait(exit=True, timeout=BOUND_S)
        id = _verified(receiver.next(COMES_S))["id"]
        _gone(world)
        points.set("")
        assert start_deliverer_if_needed(core.home, core.config, consumers)
        assert _verified(receiver.next(COMES_S))["id"] == id
        _gone(world)
        assert not start_deliverer_if_needed(core.home, core.config, consumers)
    _forget_wakes(world)
