"""Attached clients get every byte once and in order, whichever of them is slow or leaves."""

from __future__ import annotations

import hashlib
import os
import random
import re
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from holdfast import errors
from holdfast.model.events import Clients, Data, Exit, Gap, Init, Refused, Size, Written
from support.own_time import waited_ns
from support.peer import memory_kb
from support.processes import descriptors
from support.scale import scaled
from support.viewer import Viewer
from support.waiting import until, wait_gone

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Holdfast, Session
    from holdfast.sessions.attach import Attachment
    from support.waiting import Gate
    from support.world import World

RAW = "stty raw -echo"
MIB = 1 << 20


@pytest.fixture
def home(world: World) -> Holdfast:
    return world.open()


def received(attachment: Attachment, until: Callable[[Any], bool], bound: float = 20.0) -> list[Any]:
    """Events up to the first that is waited for, that one included."""
    events: list[Any] = []
    deadline = time.monotonic() + bound
    while not any(until(event) for event in events):
        fresh = attachment.wait(deadline - time.monotonic())
        assert fresh, f"nothing came any more after {events[-3:]}"
        events += fresh
    return events


def is_exit(event: Any) -> bool:
    return isinstance(event, Exit)


def live_bytes(events: list[Any]) -> bytes:
    """What came from C on; fails where an offset is missing or comes twice."""
    at: int | None = None
    parts = []
    for event in events:
        if isinstance(event, Init):
            at = event.at
        elif isinstance(event, Gap):
            at = None
        elif isinstance(event, Data) and at is not None and event.offset >= at:
            assert event.offset == at
            at += len(event.data)
            parts.append(event.data)
    return b"".join(parts)


def log_bytes(session: Session) -> bytes:
    return b"".join(session.raw("tty"))


def echoing(home: Holdfast, **options: Any) -> Session:
    """A session that gives back what it reads, byte for byte."""
    session = home.start(
        f"{RAW}; echo ready; exec cat", tty={"size_policy": options.pop("policy", "latest")}, **options
    )
    session.wait(match="ready", timeout=30)
    return session


def random_bytes(size: int) -> bytes:
    """Random throughout: of all values in an eighth of it, spread over the whole; of those that can be printed between.
    What cannot be printed a runner has to follow byte by byte, 64 MiB of it for half a minute."""
    printable = bytes(32 + value % 95 for value in range(256))
    data = random.Random(7).randbytes(size)
    # A length that shares no factor with any block or segment.
    period = 65521
    return b"".join(
        data[at : at + period // 8] + data[at + period // 8 : at + period].translate(printable)
        for at in range(0, size, period)
    )


@pytest.mark.covers("terminal:3")
@pytest.mark.slow
def test_random_bytes_are_the_same_live_replayed_and_on_disk(home: Holdfast, world: World) -> None:
    data = random_bytes(scaled(16, 64) * MIB)
    source = world.root / "source"
    source.write_bytes(data)
    gate = world.gate()
    session = home.start(f"{RAW}; head -c1 {gate} > /dev/null; exec cat {source}", tty=True, log_cap=256 * MIB)
    live, replayed = hashlib.sha256(), hashlib.sha256()
    with session.attach(role="observe", lag="exact", since="start") as attachment:
        gate.release()
        for event in attachment:
            if isinstance(event, Data):
                live.update(event.data)
            assert not isinstance(event, Gap)
            if is_exit(event):
                break
    with session.attach(role="observe", lag="exact", since="start") as attachment:
        for event in attachment:
            if isinstance(event, Data):
                replayed.update(event.data)
    stored = hashlib.sha256()
    for path in sorted(world.session(session.id).glob("tty.0*")):
        stored.update(path.read_bytes())
    printed = hashlib.sha256(data)
    assert live.hexdigest() == replayed.hexdigest() == stored.hexdigest() == printed.hexdigest()


@pytest.mark.covers("terminal:23", "STR-07")
@pytest.mark.slow
def test_a_thousand_attaches_in_mid_output_begin_at_c_and_miss_nothing(home: Holdfast, world: World) -> None:
    words = " ".join(world.probe("quiet", "lines-forever", 0.0001))
    choose = random.Random(4)
    session = home.start(f"stty -echo; read go; exec {words}", tty=True)
    early = session.attach(role="observe", since="now", lag="exact")
    session.send("go\n")
    kept = []
    for number in range(scaled(150, 1000)):
        begin: Any = choose.choice(["screen", "now", "start"])
        attachment = session.attach(role="observe", since=begin, lag="exact")
        events = received(attachment, lambda event: isinstance(event, Data | Exit))
        assert isinstance(events[0], Init)
        live_bytes(events)
        if number % scaled(15, 100) == 0 and begin != "start":
            kept.append((attachment, events))
        else:
            attachment.close()
    session.stop(grace=0)
    for attachment, events in [*kept, (early, [])]:
        with attachment:
            events += received(attachment, is_exit)
        assert isinstance(events[-1], Exit), "the exit comes behind the last byte"
        assert sum(map(is_exit, events)) == 1
        assert live_bytes(events) == log_bytes(session)[events[0].at :]


@pytest.mark.covers("terminal:18", "OWN-01")
def test_killing_every_host_in_mid_output_loses_and_doubles_nothing(home: Holdfast, world: World) -> None:
    words = world.probe("quiet", "lines", 20_000)
    code = f"""
import holdfast, sys
with holdfast.open() as hf:
    session = hf.start({words!r}, tty=True)
    print(session.id, flush=True)
    for event in session.attach():
        print(type(event).__name__, flush=True)
"""
    hosts = [world.host(code) for _ in range(2)]
    ids = [host.line() for host in hosts]
    sessions = [home.get(id) for id in ids]
    for host in hosts:
        while host.line() != "Data":
            pass
        host.kill()
    for session in sessions:
        with home.get(session.id).attach(role="observe", lag="exact", since="start") as attachment:
            events = received(attachment, is_exit, bound=30)
        expected = b"".join(b"line %d\r\n" % number for number in range(1, 20_001))
        assert live_bytes(events) == log_bytes(session) == expected
        assert session.refresh().exit is not None
        assert session.exit is not None
        assert session.exit.code == 0


# A client in a process of its own. Draws what it is shown, and prints the events it gets.
DRAWING = """
import sys, holdfast
from holdfast.model.events import Data, Gap
from support.viewer import Viewer
with holdfast.open() as hf, hf.get(sys.argv[1]).attach(role="observe") as attachment:
    viewer, reported = Viewer(attachment), 0
    while viewer.exit is None:
        viewer.take(None)
        for event in viewer.told[reported:]:
            name = type(event).__name__
            if isinstance(event, Gap):
                print(name, event.reason, flush=True)
            elif not isinstance(event, Data):
                print(name, flush=True)
        reported = len(viewer.told)
        if "the end" in viewer.text:
            print("shows", viewer.text.splitlines()[-2][-10:], viewer.text.splitlines()[-1], flush=True)
"""


@pytest.mark.covers("terminal:20", "STR-01", "found:32", "found:33")
@pytest.mark.slow
def test_a_stopped_client_slows_nothing_and_wakes_to_a_gap_and_the_screen(home: Holdfast, world: World) -> None:
    size = scaled(96, 1024) * MIB
    leave = world.gate()
    code = "import sys; sys.path.insert(0, sys.argv[2])" + DRAWING

    def printing() -> tuple[Session, Gate, Gate]:
        gate, reported = world.gate(), world.gate()
        output = f"yes {'x' * 1000} | head -c {size}; echo; echo the end"
        clock = "date +%s.%N"
        script = f"stty -echo; head -c1 {gate} > /dev/null; a=$({clock}); {output}; echo $a $({clock}) > {reported}"
        return home.start(f"{script}; head -c1 {leave} > /dev/null", tty=True, log_cap=8 * MIB), gate, reported

    # The other one prints the same at the same time without a client.
    (session, *watched), (other, *alone) = printing(), printing()
    client = world.host(code, session.id, str(Path(__file__).parents[1]))
    assert client.line() == "Init"
    os.kill(client.pid, signal.SIGSTOP)
    assert session.runner_pid is not None
    before = memory_kb(session.runner_pid)
    runners = [each.runner_pid or 0 for each in (session, other)]
    waited = [waited_ns(pid) for pid in runners]
    for gate, _ in (watched, alone):
        gate.release()
    took = []
    for (_, reported), pid, before_ns in zip((watched, alone), runners, waited, strict=True):
        began, ended = map(float, reported.line(240).split())
        # Without the time in which the kernel ran other programs in the place of the runner.
        took.append(ended - began - (waited_ns(pid) - before_ns) / 1e9)
    # A command that waited for its client would never end.
    assert took[0] < took[1] * 4, "a client that reads nothing slows the command"
    until(lambda: session.refresh().ends["tty"] > size, what="the end of the output")
    assert memory_kb(session.runner_pid, "VmHWM") < before + (16 << 10)
    os.kill(client.pid, signal.SIGCONT)
    said = [client.line(60)]
    while not said[-1].startswith("shows"):
        said.append(client.line(60))
    gaps = [line for line in said if line.startswith("Gap")]
    assert gaps == ["Gap skipped"]
    assert said[said.index(gaps[0]) + 1] == "Init"
    # How long the last row is depends on the size.
    assert re.fullmatch("shows x+ the end", said[-1])
    leave.release(2)
    while client.line() != "Exit":
        pass
    other.wait(timeout=30)


@pytest.mark.covers("terminal:21")
def test_an_exact_client_behind_gets_all_that_is_retained_then_one_gap_with_its_bounds(
    home: Holdfast, world: World
) -> None:
    gate = world.gate()
    words = " ".join(world.probe("quiet", "await", gate, "lines", 400_000))
    session = home.start(f"stty -echo; exec {words}", tty=True, log_cap=2 * MIB)
    attachment = session.attach(role="observe", lag="exact", since="start")
    events = received(attachment, lambda event: isinstance(event, Init))
    gate.release()
    session.wait(exit=True, timeout=60)
    events += received(attachment, is_exit)
    attachment.close()
    gaps = [event for event in events if isinstance(event, Gap)]
    assert [gap.reason for gap in gaps] == ["dropped"]
    before = b"".join(event.data for event in events[: events.index(gaps[0])] if isinstance(event, Data))
    after = b"".join(event.data for event in events[events.index(gaps[0]) :] if isinstance(event, Data))
    whole = b"".join(b"line %d\r\n" % number for number in range(1, 400_001))
    assert gaps[0].begin == len(before)
    assert before == whole[: len(before)]
    assert after == whole[gaps[0].end :]


@pytest.mark.covers("found:31")
@pytest.mark.parametrize("since", ["start", 10], ids=["behind", "resumed"])
def test_an_exact_client_that_the_cap_has_overtaken_continues_at_the_first_retained_byte(
    world: World, since: Literal["start"] | int
) -> None:
    printing, leaving, printed = (world.gate() for _ in range(3))
    words = ("quiet", "await", printing, "lines", 240_000, "tell", printed, "over", "await", leaving)
    session = world.open().start(f"stty -echo; exec {' '.join(world.probe(*words))}", tty=True, log_cap=MIB)
    attachment = session.attach(role="observe", lag="exact", since="start")
    events = received(attachment, lambda event: isinstance(event, Init))
    printing.release()
    assert printed.line(30) == "over"
    whole = b"".join(b"line %d\r\n" % number for number in range(1, 240_001))
    until(lambda: session.refresh().ends["tty"] == len(whole), what="the end of the output")
    first = session.dropped_before["tty"]
    assert 0 < first < len(whole) - (256 << 10), "something was dropped, and much is retained"
    if since != "start":
        attachment.close()
        attachment, events = session.attach(role="observe", lag="exact", since=since), []
    events += received(
        attachment, lambda event: isinstance(event, Data) and event.offset + len(event.data) == len(whole)
    )
    (gap,) = [event for event in events if isinstance(event, Gap)]
    begins = events[events.index(gap) + 1]
    after = [event for event in events[events.index(gap) :] if isinstance(event, Data)]
    assert (gap.reason, gap.end) == ("dropped", first)
    assert isinstance(begins, Init)
    assert (begins.at, after[0].offset) == (first, first)
    assert b"".join(event.data for event in after) == whole[first:]
    leaving.release()
    received(attachment, is_exit)
    attachment.close()


@pytest.mark.covers("found:31")
def test_an_exact_client_of_an_ended_session_continues_at_the_first_retained_byte(world: World) -> None:
    session = world.open().run(world.probe("quiet", "lines", 240_000), tty=True, log_cap=MIB, wait=30)
    first, end = session.dropped_before["tty"], session.ends["tty"]
    with session.attach(role="observe", lag="exact", since=10) as attachment:
        events = received(attachment, is_exit)
    (gap,) = [event for event in events if isinstance(event, Gap)]
    after = [event for event in events if isinstance(event, Data)]
    assert (gap.begin, gap.end, gap.reason) == (10, first, "dropped")
    assert after[0].offset == first
    assert sum(len(event.data) for event in after) == end - first > 0


def test_what_is_typed_comes_back_and_is_reported_as_written(home: Holdfast) -> None:
    session = echoing(home)
    with session.attach() as attachment:
        received(attachment, lambda event: isinstance(event, Init))
        number = attachment.send(b"hello")
        events = received(attachment, lambda event: isinstance(event, Data) and b"hello" in event.data)
        if not any(isinstance(event, Written) for event in events):
            events += received(attachment, lambda event: isinstance(event, Written))
        written = next(event for event in events if isinstance(event, Written))
        assert (written.id, written.bytes) == (number, 5)
    session.kill()


def test_an_observer_can_neither_type_nor_resize(home: Holdfast) -> None:
    session = echoing(home)
    with session.attach(role="observe") as attachment:
        received(attachment, lambda event: isinstance(event, Init))
        for act in (lambda: attachment.send(b"x"), lambda: attachment.resize(10, 10)):
            act()
            refused = received(attachment, lambda event: isinstance(event, Refused))[-1]
            assert isinstance(refused.error, errors.ObserveOnly)
    assert session.refresh().size == [30, 120]
    session.kill()


@pytest.mark.covers("terminal:29")
@pytest.mark.parametrize("policy, wanted", [("latest", [40, 100]), ("smallest", [20, 80]), ("fixed", [30, 120])])
def test_each_size_policy_among_three_clients(home: Holdfast, policy: str, wanted: list[int]) -> None:
    session = echoing(home, policy=policy)
    sizes = [(20, 200), (50, 80), (40, 100)]
    clients = [session.attach(size=size) for size in sizes]
    watcher, hidden = session.attach(role="observe"), session.attach(visible=False)
    for client in (*clients, watcher, hidden):
        received(client, lambda event: isinstance(event, Init))
    assert session.refresh().size == [30, 120], "a size counts from the first resize, after the painting"
    for client, (rows, cols) in zip(clients, sizes, strict=True):
        client.resize(rows, cols)
    hidden.resize(5, 5, visible=False)
    watcher.resize(6, 6)
    session.screen()
    session.tail(3)
    until(lambda: session.refresh().size == wanted, what=f"the size {wanted}")
    if policy == "latest":
        clients[0].send(b"k")
        until(lambda: session.refresh().size == [20, 200], what="the size of who types")
    last, *others = clients
    for client in (*others, watcher, hidden):
        client.close()
    alone = [30, 120] if policy == "fixed" else [20, 200]
    until(lambda: session.refresh().size == alone, what="the size of the last client")
    last.close()
    until(lambda: session.refresh().attached == {"control": 0, "observe": 0})
    assert session.size == alone, "when the last one leaves the size stays"
    session.resize(25, 90)
    assert session.refresh().size == [25, 90]
    session.kill()


def test_a_resize_by_request_is_refused_while_a_client_sizes(home: Holdfast) -> None:
    session = echoing(home)
    with session.attach() as attachment:
        attachment.resize(20, 60)
        received(attachment, lambda event: isinstance(event, Size))
        with pytest.raises(errors.SizePolicy):
            session.resize(10, 10)
    session.kill()


@pytest.mark.covers("terminal:30")
def test_a_dragged_window_is_reported_at_most_every_fifty_milliseconds_and_last_wins(home: Holdfast) -> None:
    script = "stty -echo; trap 'echo winch' WINCH; echo armed; while :; do sleep 0.02; done"
    session = home.start(script, tty=True)
    session.wait(match="armed", timeout=30)
    began = time.monotonic()
    with session.attach() as attachment:
        for step in range(200):
            attachment.resize(20 + step % 20, 60 + step)
        until(lambda: session.refresh().size == [39, 259], what="the last size")
        took = time.monotonic() - began
        session.wait(match="winch", timeout=30)
        session.wait(idle=0.2, timeout=30)
    assert 1 <= session.text().count("winch") <= took / 0.05 + 2
    session.kill()


@pytest.mark.covers("terminal:42")
def test_the_focus_that_one_of_two_clients_loses_is_kept_from_the_application(home: Holdfast) -> None:
    session = home.start(rf"{RAW}; printf '\033[?1004hready'; exec cat -v", tty=True)
    session.wait(match="ready", timeout=30)
    one, two = session.attach(), session.attach()
    for client in (one, two):
        client.send(b"\x1b[I")
    received(one, lambda event: isinstance(event, Clients) and all(each["focused"] for each in event.clients))
    one.send(b"\x1b[O")
    one.send(b"a")
    session.wait(match="a$", timeout=30)
    assert session.text().rpartition("ready")[2] == "^[[Ia"
    two.close()
    assert session.wait(match=r"\^\[\[O", timeout=30).reason == "match"
    one.close()
    session.kill()


@pytest.mark.covers("terminal:41", "STR-06", "found:33")
def test_a_full_queue_makes_the_typing_client_wait_and_a_request_busy(home: Holdfast, world: World) -> None:
    speak, gate = world.gate(), world.gate()
    waiting = f"head -c1 {speak} > /dev/null; echo meanwhile; head -c1 {gate} > /dev/null"
    session = home.start(f"{RAW}; echo ready; {waiting}; exec cat", tty=True)
    session.wait(match="ready", timeout=30)
    unit = bytes(range(256)) * 256
    with session.attach(since="now") as attachment, session.attach(since="now", role="observe") as other:
        received(attachment, lambda event: isinstance(event, Init))
        for _ in range(40):
            attachment.send(unit)
        until(lambda: attachment.wants_write, what="the back-pressure")

        accepted = 0
        try:
            while accepted < 40:
                session.send(unit)
                accepted += 1
        except errors.Busy:
            pass
        assert accepted < 40, "the queue is never full"
        assert session.text().strip() == "ready", "reading continues"
        received(other, lambda event: isinstance(event, Init))
        speak.release()
        said = received(other, lambda event: isinstance(event, Data))
        assert b"".join(event.data for event in said if isinstance(event, Data)) == b"meanwhile\n", (
            "another client is shown what is printed"
        )
        gate.release()
        typed = 0
        got = bytearray()
        while typed < 40 * len(unit) or len(got) < len(b"meanwhile\n") + (40 + accepted) * len(unit):
            for event in attachment.wait(30):
                if isinstance(event, Written):
                    typed += event.bytes
                elif isinstance(event, Data):
                    got += event.data
            assert not attachment.over
        assert typed == 40 * len(unit)
        assert bytes(got) == b"meanwhile\n" + unit * (40 + accepted), "nothing is lost, doubled or torn"
    session.kill()


@pytest.mark.covers("terminal:24")
def test_a_session_that_ended_is_attached_drawn_and_read_without_a_runner(home: Holdfast) -> None:
    done = home.start(r"printf 'first\r\n\033[2J\033[Hsecond\033[5;5Hthird'; exit 3", tty=True)
    done.wait(timeout=30)
    assert done.runner_pid is not None
    wait_gone(done.runner_pid)
    with done.attach() as attachment:
        events = list(attachment)
    assert isinstance(events[0], Init)
    assert isinstance(events[-1], Exit)
    assert events[-1].code == 3
    assert done.screen().text.splitlines()[0] == "second"
    assert "third" in done.screen().text
    assert "first" in done.tail(50)
    with pytest.raises(errors.SessionEnded):
        done.send("x")
    with pytest.raises(errors.SessionEnded):
        done.keys("Enter")


@pytest.mark.covers("terminal:24")
def test_a_screen_that_a_host_has_kept_is_not_missing_from_an_attach_or_an_export(
    home: Holdfast, tmp_path: Path
) -> None:
    """A host keeps the grid of the last screen. Attach and export give bytes of the log, which go further back."""
    session = home.run("seq 1 60000; printf end", tty=True, size=(10, 40))
    kept = session.screen(at=session.ends["tty"] - 3).text
    assert session.id in home._core.keyframes
    whole = session.screen().text
    assert whole == kept + "\nend"
    with session.attach(role="observe", history_rows=0) as attachment:
        viewer = Viewer(attachment)
        viewer.to_the_end()
        assert viewer.text == whole
    session.export(tmp_path / "cast", since=session.ends["tty"])
    assert "60000" in (tmp_path / "cast").read_text()


def test_a_screen_after_a_resize_without_output_is_that_of_a_host_that_kept_none(home: Holdfast, world: World) -> None:
    program = "stty -echo; printf '\\33[H\\33[2Jone'; read line; printf '\\33[H\\33[2J%s' $line; read end"
    session = home.start(program, tty=True, size=(10, 40))
    session.wait(match="one")
    assert session.screen().size == (10, 40)
    session.resize(5, 12)
    session.send("five-six-seven-eight\n")
    session.wait(match="five")
    kept, drawn = session.screen(), world.open().get(session.id).screen()
    assert kept.size == (5, 12)
    assert (kept.text, kept.cursor) == (drawn.text, drawn.cursor)
    session.kill()


def test_presence_lists_the_clients(home: Holdfast) -> None:
    session = echoing(home)
    with session.attach(label="reader", kind="web", size=(10, 20)) as one:
        received(one, lambda event: isinstance(event, Init))
        with session.attach(role="observe", label="agent"):
            reported = received(one, lambda event: isinstance(event, Clients))[-1]
            assert [(each["label"], each["role"], each["kind"]) for each in reported.clients] == [
                ("reader", "control", "web"),
                ("agent", "observe", "agent"),
            ]
            assert session.refresh().attached == {"control": 1, "observe": 1}
        reported = received(one, lambda event: isinstance(event, Clients))[-1]
        assert len(reported.clients) == 1
    session.kill()


@pytest.mark.covers("STR-02")
def test_clients_killed_in_mid_frame_do_no_harm(home: Holdfast, world: World) -> None:
    words = " ".join(world.probe("quiet", "lines", 200_000))
    session = home.start(f"stty -echo; read go; exec {words}", tty=True)
    code = """
import sys, holdfast
with holdfast.open() as hf, hf.get(sys.argv[1]).attach(role="observe", lag="exact", since="start") as attachment:
    print("attached", flush=True)
    for event in attachment:
        pass
"""
    clients = [world.host(code, session.id) for _ in range(6)]
    for client in clients:
        assert client.line() == "attached"
    assert session.runner_pid is not None
    open_before = len(descriptors(session.runner_pid))
    with session.attach(role="observe", lag="exact", since="start") as attachment:
        session.send("go\n")
        for client in clients:
            received(attachment, lambda event: isinstance(event, Data))
            client.kill()
        # The rest, in order, to the end.
        whole = b"".join(b"line %d\r\n" % number for number in range(1, 200_001))
        until(lambda: len(descriptors(session.runner_pid or 0)) <= open_before - 5, what="that they are let go")
        list(attachment)
    assert log_bytes(session) == whole


def test_attaching_from_inside_is_refused(home: Holdfast, world: World) -> None:
    code = """
import holdfast, os
for role in ("control", "observe"):
    try:
        holdfast.open().get(os.environ["HOLDFAST_SESSION_ID"]).attach(role=role)
    except holdfast.HoldfastError as error:
        print(error.code)
"""
    script = world.root / "inside.py"
    script.write_text(code)
    done = home.run([sys.executable, str(script)], tty=True, wait=20)
    assert done.text() == "self-attach\nself-attach\n"


def test_an_attach_to_anything_but_a_terminal_is_refused(home: Holdfast, world: World) -> None:
    pipes = home.start(world.probe("forever"))
    with pytest.raises(errors.NotATty):
        pipes.attach()
    with pytest.raises(errors.NotATty):
        pipes.keys("Enter")
    with pytest.raises(errors.NotATty):
        pipes.screen()
    pipes.kill()
    session = echoing(home)
    with pytest.raises(errors.OffsetAhead):
        session.attach(since=10**9)
    with pytest.raises(errors.BadArgument):
        session.attach(role="owner")  # type: ignore[arg-type]
    session.kill()


def test_a_frame_that_no_client_of_ours_sends_does_not_end_the_session(home: Holdfast) -> None:
    session = echoing(home)
    odd: Any = {"foreground": "\ud800", "background": [300, None, "x"], "cell": "?"}
    with session.attach(terminal=odd) as attachment:
        received(attachment, lambda event: isinstance(event, Init))
        attachment.send(b"still here")
        received(attachment, lambda event: isinstance(event, Data) and b"still here" in event.data)
    session.kill()


def test_what_the_kernel_never_took_is_not_reported_as_written(home: Holdfast, world: World) -> None:
    gate = world.gate()
    session = home.start(f"{RAW}; echo ready; head -c1 {gate} > /dev/null", tty=True)
    session.wait(match="ready", timeout=30)
    with session.attach(since="now") as attachment:
        attachment.send(bytes(400_000))
        gate.release()
        reported = [event for event in received(attachment, is_exit) if isinstance(event, Written)]
        reported += [event for event in attachment.wait(0.1) if isinstance(event, Written)]
    assert all(event.bytes < 400_000 for event in reported)


def test_giving_up_control_gives_up_the_focus_too(home: Holdfast) -> None:
    session = home.start(rf"{RAW}; printf '\033[?1004hready'; exec cat -v", tty=True)
    session.wait(match="ready", timeout=30)
    with session.attach() as attachment:
        attachment.send(b"\x1b[I")
        session.wait(match=r"\^\[\[I", timeout=30)
        attachment.observe()
        assert session.wait(match=r"\^\[\[O", timeout=30).reason == "match"
    session.kill()


def test_a_slow_call_of_keys_leaves_the_keyboard_to_others(home: Holdfast) -> None:
    session = echoing(home)
    before = session.refresh().cursor
    session.keys("a", "b", "c", delay_ms=2000)
    session.send("X")
    assert session.wait(match="aX", since=before, timeout=30).reason == "match"
    session.kill()


def test_the_paste_of_a_submit_and_its_enter_are_not_torn_apart(home: Holdfast) -> None:
    session = echoing(home)
    before = session.refresh().cursor
    session.submit("one", enter_delay_ms=300)
    session.send("two")
    assert session.wait(match="two", since=before, timeout=30).reason == "match"
    assert session.read(since=before).data == b"one\rtwo"
    session.kill()


def test_a_request_may_not_resize_under_a_client_that_is_just_painting(home: Holdfast) -> None:
    session = echoing(home)
    with session.attach(size=(20, 60)) as attachment:
        received(attachment, lambda event: isinstance(event, Init))
        with pytest.raises(errors.SizePolicy):
            session.resize(10, 10)
    session.kill()
