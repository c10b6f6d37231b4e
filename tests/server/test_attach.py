"""Attached over WebSocket, in both dialects: the same facts, every byte once, and nothing that a slow client costs."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from websockets.exceptions import InvalidStatus

from support.faults import kill_runner, sweep_up, wedged
from support.own_time import OwnTime, QuietTime, waited_ns
from support.peer import memory_kb
from support.scale import scaled
from support.serving import also_through_a_node
from support.waiting import until, wait_gone
from support.webviewer import BINARY, JSON, WebViewer

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Holdfast
    from holdfast.sessions.api import Session
    from support.serving import Serving
    from support.waiting import Gate
    from support.world import World

    Attach = Callable[..., WebViewer]

pytestmark = pytest.mark.parametrize("dialect", [BINARY, JSON])

# Waits for a line, prints 4 KiB in which every byte occurs, and what it is told after that.
BYTES = r"""
import os, random, sys, tty
tty.setraw(0)
os.write(1, b"ready")
os.read(0, 1)
data = bytes(range(256)) + random.Random(7).randbytes(3840)
os.write(1, data)
while (typed := os.read(0, 4096)) != b"\x04":
    os.write(1, typed)
sys.exit(3)
"""


@pytest.fixture
def home(world: World) -> Holdfast:
    return world.open()


@pytest.fixture
def attach(world: World, serving: Serving, dialect: str) -> Attach:
    def attached(session: Session | str, **query: Any) -> WebViewer:
        id = session if isinstance(session, str) else session.id
        viewer = WebViewer(serving.address, serving.token, id, dialect, base=serving.at("/v1/")[:-1], **query)
        world.closing.callback(viewer.leave)
        return viewer

    return attached


def refusal(attach: Attach, session: Session | str, **query: object) -> tuple[int, dict[str, Any]]:
    with pytest.raises(InvalidStatus) as refused:
        attach(session, **query)
    response = refused.value.response
    assert response.headers["Content-Type"] == "application/problem+json"
    return response.status_code, json.loads(response.body)


def bytes_session(home: Holdfast) -> Session:
    session = home.start([sys.executable, "-c", BYTES], tty=True, size=(24, 80))
    assert session.wait(match="ready", timeout=30).reason == "match"
    return session


@also_through_a_node
def test_the_first_message_is_the_screen_and_live_output_follows_it(home: Holdfast, attach: Attach) -> None:
    # The end of a line would come by itself, and maybe later.
    session = home.start("printf 'before \\033[31mred\\033[m '; read line; echo got $line; read rest", tty=True)
    session.wait(match="red", timeout=30)
    viewer = attach(session)
    init = viewer.begun()
    assert viewer.told[0] is init
    assert "before red" in viewer.text
    assert (init["role"], init["state"], init["resumed"], init["size"]) == ("control", "running", False, [30, 120])
    assert init["end"] == init["at"] == session.refresh().ends["tty"]
    assert init["modes"]["appCursorKeys"] is False
    assert init["modes"]["bracketedPasteMode"] is False
    assert [client["id"] for client in init["clients"]] == [init["client"]]
    number = viewer.type(b"word\r")
    viewer.until(lambda: "got word" in viewer.text, "its answer")
    viewer.until(lambda: viewer.of("written"), "that it was written")
    (written,) = viewer.of("written")
    assert (written["id"], written["bytes"]) == (number, 5)
    assert session.screen().text == viewer.text
    session.kill()


@pytest.mark.covers("server:20")
@pytest.mark.timeout(900)
def test_every_byte_comes_live_and_from_every_offset_as_it_is_in_the_log(
    home: Holdfast, attach: Attach, world: World
) -> None:
    session = bytes_session(home)
    live = [attach(session, from_="start", role=role) for role in ("control", "observe")]
    for viewer in live:
        viewer.begun()
    session.send("g")
    end = len("ready") + 4096
    for viewer in live:
        viewer.until(lambda viewer=viewer: viewer.at == end, "all bytes")  # type: ignore[misc]
    (segment,) = world.session(session.id).glob("tty.*")
    whole = segment.read_bytes()
    assert set(whole) == set(range(256))
    assert [bytes(viewer.live) for viewer in live] == [whole, whole]
    for role, step in (("observe", scaled(97, 1)), ("control", scaled(389, 1))):
        for offset in range(0, len(whole) + 1, step):
            viewer = attach(session, from_=offset, role=role)
            init = viewer.begun()
            assert (init["resumed"], init["at"], init["screen"]) == (True, offset, None)
            while viewer.at < len(whole):
                assert viewer.take(30)
            assert viewer.live == whole[offset:]
            viewer.leave()
    session.kill()


@also_through_a_node
def test_observers_share_one_connection_and_each_has_every_byte(home: Holdfast, attach: Attach, world: World) -> None:
    """Each had a connection to the runner of its own, which has 64 of them."""
    session = bytes_session(home)
    first = attach(session, from_="start", role="observe")
    first.begun()
    session.send("g")
    first.until(lambda: first.at == 4096 + 5, "all bytes")
    late = [attach(session, from_=offset, role="observe", lag="exact") for offset in (0, 5, 1000, 4101)]
    for viewer in late:
        assert viewer.begun()["client"] == first.begun()["client"]
        viewer.until(lambda viewer=viewer: viewer.at == 4101, "the rest")  # type: ignore[misc]
    assert session.refresh().attached == {"control": 0, "observe": 1}
    session.send("more")
    for viewer in (first, *late):
        viewer.until(lambda viewer=viewer: viewer.live.endswith(b"more"), "what it prints")  # type: ignore[misc]
    # The first may leave: the others keep the connection, and the last closes it.
    first.leave()
    session.send("and more")
    for viewer in late:
        viewer.until(lambda viewer=viewer: viewer.live.endswith(b"and more"), "what it prints")  # type: ignore[misc]
    for viewer in late[1:]:
        viewer.say("detach")
        viewer.until(lambda viewer=viewer: viewer.closed, "the end")  # type: ignore[misc]
        assert viewer.closed == (1000, "detached")
    session.send(b"\x04")
    late[0].until(lambda: late[0].closed, "the end")
    assert [message["type"] for message in late[0].told[-1:]] == ["session_ended"]
    assert late[0].closed == (1000, "ended")


def test_every_kind_of_input_is_counted_in_bytes(home: Holdfast, attach: Attach, serving: Serving) -> None:
    def counted() -> int:
        found = re.search(r'input_bytes_total{author_kind="web"} (\d+)', serving.ask("/metrics").body.decode())
        assert found is not None
        return int(found[1])

    session = home.start("stty raw -echo; printf up; exec cat", tty=True)
    session.wait(match="up", timeout=30)
    viewer = attach(session)
    viewer.begun()
    total = 0
    for fields, size in (({"keys": ["C-a", "Up"]}, 4), ({"paste": "abc"}, 3), ({"submit": "word"}, 5)):
        viewer.say("input", id=size, **fields)
        viewer.until(lambda: viewer.of("written")[-1:] and viewer.of("written")[-1]["id"] == size, "the answer")  # noqa: B023
        total += size
        assert counted() == total
    session.kill()


@also_through_a_node
def test_the_connection_of_observers_ends_with_the_last(home: Holdfast, attach: Attach) -> None:
    session = home.start("cat", tty=True)
    for _ in range(2):
        viewers = [attach(session, role="observe") for _ in range(3)]
        for viewer in viewers:
            viewer.begun()
        assert session.refresh().attached == {"control": 0, "observe": 1}
        for viewer in viewers:
            viewer.leave()
        until(lambda: session.refresh().attached == {"control": 0, "observe": 0}, what="that it is closed")
    session.kill()


@pytest.mark.covers("server:21", "nodes:17")
@pytest.mark.timeout(300)
@also_through_a_node
@pytest.mark.parametrize("role", ["control", "observe"])
def test_a_viewer_that_never_reads_slows_nothing_and_starts_again_when_it_wakes(
    home: Holdfast, attach: Attach, serving: Serving, role: str, world: World
) -> None:
    warm, flow = 6_000_000, scaled(20_000_000, 100_000_000)
    printing = "yes 'a line of a chatty program, of the length that such lines have' | head -c"

    def printer() -> tuple[Session, Gate]:
        reported = world.gate()
        timed = f"a=$(date +%s.%N); {printing} {flow}; echo $a $(date +%s.%N) > {reported}"
        program = f"stty raw -echo; printf up; head -c 1; {printing} {warm}; head -c 1; {timed}; exec cat"
        started = home.start(program, tty=True)
        started.wait(match="up", timeout=30)
        return started, reported

    def end(session: Session) -> int:
        newest = max(world.session(session.id).glob("tty.[0-9]*"))
        return int(newest.suffix[1:]) + newest.stat().st_size

    # The other one prints the same at the same time without a viewer.
    (session, watched), (other, alone) = printer(), printer()
    quiet = home.start("cat", tty=True)
    typist = _Typist(attach(quiet), [*serving.pids, quiet.runner_pid or 0])
    idle = [memory_kb(pid, "VmHWM") for pid in serving.pids]
    stuck = attach(session, role=role, reads_ahead=False)
    reading = attach(session, role=role, draws=False)
    reading.begun()
    for each in (session, other):
        each.send("1")
    reading.until(lambda: end(session) == reading.at == end(other) == warm + 3, "the first of it", 60)
    before = memory_kb(serving.pid, "VmHWM")
    runners = [each.runner_pid or 0 for each in (session, other)]
    waited = [waited_ns(pid) for pid in runners]
    for each in (session, other):
        each.send("2")
    # The command comes to its end while one of them has read nothing.
    with typist:
        reading.until(lambda: end(session) == reading.at == warm + flow + 4, "all of it", 120)
    assert len(typist.took) >= 5
    assert sorted(typist.took)[len(typist.took) * 99 // 100] < 0.05
    took = []
    for reported, pid, before_ns in zip((watched, alone), runners, waited, strict=True):
        began, ended = map(float, reported.line(120).split())
        # Without the time in which the kernel ran other programs in the place of the runner.
        took.append(ended - began - (waited_ns(pid) - before_ns) / 1e9)
    # The twin runs beside it; its runner has no viewer to send the output to.
    assert took[0] < took[1] * 1.5 + 0.5, "a viewer that reads nothing slows the command"
    other.kill()
    if len(serving.pids) == 1:
        assert memory_kb(serving.pid, "VmHWM") < before + (6 << 10)
    for pid, memory in zip(serving.pids, idle, strict=True):
        assert memory_kb(pid, "VmHWM") < memory + 20_000
    session.send("finished")
    init = stuck.begun()
    assert init["at"] == len("up"), "it was shown what was there before the flow"
    while stuck.at - init["at"] <= (512 - 64) << 10:
        assert stuck.take(20, ack=False)
    while stuck.take(0.2, ack=False):
        pass
    assert stuck.at - init["at"] <= 512 << 10, "no more than is allowed"
    stuck.ack()
    stuck.until(lambda: "finished" in stuck.text, "the last line", 60)
    gap = stuck.of("gap")[0]
    assert gap["reason"] == "skipped"
    behind = stuck.told[stuck.told.index(gap) + 1]
    assert (behind["type"], behind["at"]) == ("init", gap["to"])
    assert stuck.text == session.screen().text
    session.kill()
    quiet.kill()


class _Typist:
    """Types into a quiet session, and measures each echo, without waits for a processor."""

    def __init__(self, viewer: WebViewer, pids: list[int]) -> None:
        self._viewer = viewer
        self._pids = pids
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._type)
        self.took: list[float] = []

    def __enter__(self) -> None:
        self._viewer.begun()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _type(self) -> None:
        viewer = self._viewer
        # Not all the time: a flow that takes as long as a ping of a client that does not read would end it.
        while not self._over.wait(0.1):
            at, own = viewer.at, OwnTime(*self._pids)
            viewer.type(b"x")
            viewer.until(lambda: viewer.at > at, "the echo")  # noqa: B023
            self.took.append(own.stop().seconds(*self._pids))


@pytest.mark.parametrize("role", ["control", "observe"])
@also_through_a_node
def test_the_end_comes_once_behind_the_last_byte_and_closes_the_connection(
    home: Holdfast, attach: Attach, role: str
) -> None:
    session = bytes_session(home)
    viewer = attach(session, from_="start", role=role)
    viewer.begun()
    session.send("g")
    viewer.until(lambda: viewer.at == 4096 + 5, "all bytes")
    session.send(b"\x04")
    viewer.until(lambda: viewer.closed, "the end")
    (ended,) = viewer.of("session_ended")
    assert viewer.told[-1] is ended
    facts = ("exit_code", "signal", "cause", "status", "output_complete", "output_open", "survivors", "end")
    assert [ended[fact] for fact in facts] == [3, None, "exit", "failed", True, False, [], 4096 + 5]
    assert viewer.closed == (1000, "ended")
    assert viewer.live == session.read(since="tty:0").data
    over = attach(session, role=role)
    assert over.begun()["state"] == "exited"
    over.until(lambda: over.closed, "the end")
    assert [message["type"] for message in over.told] == ["init", "session_ended"]
    assert over.text == session.screen().text


@pytest.mark.parametrize("role", ["control", "observe"])
@also_through_a_node
def test_what_survivors_print_still_comes(home: Holdfast, attach: Attach, world: World, role: str) -> None:
    up, go, gate = world.gate(), world.gate(), world.gate()
    holder = ["setsid", "ignore", "HUP", "tell", up, "up", "await", gate, "say", "later"]
    session = home.start(world.probe("fork", "{", *holder, "}", "await", go, "exit", "7"), tty=True)
    up.line()
    viewer = attach(session, role=role)
    viewer.begun()
    go.release()
    viewer.until(lambda: viewer.of("session_ended"), "the end of the command")
    (ended,) = viewer.of("session_ended")
    assert (ended["exit_code"], ended["output_open"], len(ended["survivors"])) == (7, True, 1)
    gate.release()
    viewer.until(lambda: "later" in viewer.text, "what the survivor prints")
    viewer.until(lambda: viewer.closed, "the end")
    assert viewer.closed == (1000, "ended")


@also_through_a_node
def test_keys_pastes_and_lines_are_typed_as_the_runner_encodes_them(home: Holdfast, attach: Attach) -> None:
    session = home.start("printf '\\033[?2004h'; stty raw -echo; echo on; cat -v", tty=True)
    viewer = attach(session)
    viewer.begun()
    viewer.until(lambda: "on" in viewer.text, "the program")
    viewer.say("input", id="a", keys=["Up", "C-x"])
    viewer.say("input", id="b", paste="one\ntwo")
    viewer.say("input", id="c", submit="line", enter_delay_ms=0)
    viewer.say("input", id="d", data="é")
    shown = "^[[A^X^[[200~one^Mtwo^[[201~line^MM-CM-)"
    viewer.until(lambda: shown in viewer.text, shown)
    viewer.until(lambda: len(viewer.of("written")) == 4, "that all was written")
    viewer.say("input", data="quiet")
    viewer.say("input", id="e", data="!")
    viewer.until(lambda: len(viewer.of("written")) == 5, "the last")
    assert [message["id"] for message in viewer.of("written")] == ["a", "b", "c", "d", "e"]
    viewer.until(lambda: viewer.begun()["modes"]["bracketedPasteMode"] or viewer.of("mode_changed"), "the mode")
    session.kill()


@also_through_a_node
def test_what_cannot_be_done_is_said_by_name_and_the_connection_continues(home: Holdfast, attach: Attach) -> None:
    session = home.start("cat", tty=True)
    viewer = attach(session)
    viewer.begun()
    viewer.say("input", id=1, keys=["Entr"])
    viewer.say("input", id=2)
    viewer.say("resize", rows=0, cols=10)
    viewer.say("dance")
    viewer.say("input", id=3, paste="\u00e9" * 200_000)
    viewer.say("ack", ofset=3)
    viewer.send_raw("{" if viewer._dialect == JSON else b"\7")
    viewer.say("ping", t=12)
    viewer.until(lambda: viewer.of("pong") and len(viewer.of("error")) == 4, "the answers")
    viewer.until(lambda: len(viewer.of("written")) == 3, "the answers to input")
    assert viewer.of("pong") == [{"type": "pong", "t": 12}]
    problems = {message["id"]: message["problem"]["type"] for message in viewer.of("written")}
    assert problems == {1: "/problems/bad-key", 2: "/problems/bad-request", 3: "/problems/too-large"}
    errors = [message["code"] for message in viewer.of("error")]
    assert sorted(errors) == ["bad-request", "bad-request", "bad-request", "bad-size"]
    assert all(message["fix"] and message["detail"] for message in viewer.of("error"))
    viewer.type(b"still\r")
    viewer.until(lambda: viewer.text.count("still") == 2, "its echo")
    session.kill()


@also_through_a_node
def test_an_observer_neither_types_nor_resizes(home: Holdfast, attach: Attach) -> None:
    session = home.start("cat", tty=True)
    viewer = attach(session, role="observe")
    assert viewer.begun()["role"] == "observe"
    viewer.type(b"x")
    viewer.say("resize", rows=10, cols=10)
    viewer.until(lambda: viewer.of("written") and viewer.of("error"), "two refusals")
    assert viewer.of("written")[0]["problem"]["type"] == "/problems/observe-only"
    assert viewer.of("error")[0]["code"] == "observe-only"
    assert session.refresh().size == [30, 120]
    assert session.read().data == b""
    giving_up = attach(session)
    giving_up.begun()
    giving_up.say("observe")
    giving_up.type(b"y")
    giving_up.until(lambda: giving_up.of("written"), "a refusal")
    assert giving_up.of("written")[0]["problem"]["type"] == "/problems/observe-only"
    session.kill()


@also_through_a_node
def test_sizes_and_presence_are_reported(home: Holdfast, attach: Attach) -> None:
    session = home.start("cat", tty=True)
    first, second = attach(session, rows=24, cols=80), attach(session, role="observe")
    first.begun()
    second.begun()
    assert session.refresh().size == [30, 120], "a claim counts from the first resize on"
    first.say("resize", rows=24, cols=80)
    second.until(lambda: second.of("resized"), "the new size")
    resized = second.of("resized")[-1]
    assert (resized["rows"], resized["cols"], resized["by"]) == (24, 80, first.begun()["client"])
    assert {client["kind"] for client in second.begun()["clients"]} == {"web"}
    second.say("detach")
    second.until(lambda: second.closed, "the end")
    assert second.closed == (1000, "detached")
    first.until(lambda: first.of("clients") and len(first.of("clients")[-1]["clients"]) == 1, "that it is gone")
    session.kill()


@pytest.mark.timeout(240)
@also_through_a_node
def test_what_was_typed_before_a_detach_is_taken_however_much_is_printed(
    home: Holdfast, attach: Attach, world: World
) -> None:
    """A client that detaches does not wait: the runner's output and its `detach` cross on the way."""
    # Raw before anything is typed: to make it so throws away what was typed before.
    program = "import os, threading, tty\ntty.setraw(0)\n"
    program += (
        "threading.Thread(target=lambda: [os.write(1, b'y' * 2000) for _ in iter(int, 1)], daemon=True).start()\n"
    )
    program += "count = 0\n"
    times = scaled(2, 30)
    program += f"while count < {times}: count += len(os.read(0, 1))\nos._exit(0)"
    session = home.start([sys.executable, "-c", program], tty=True)
    assert session.wait(match="yyy", timeout=30).reason == "match"
    for _ in range(times):
        viewer = attach(session)
        viewer.begun()
        viewer.type(b"x")
        viewer.say("detach")
        viewer.until(lambda viewer=viewer: viewer.closed, "the end")  # type: ignore[misc]
        assert viewer.closed in ((1000, "detached"), (1000, "ended"))
        viewer.leave()
    assert session.wait(timeout=30).reason == "exit", "all of it was read"


@also_through_a_node
def test_a_screen_that_comes_again_is_painted_for_the_size_that_the_client_has_by_then(
    home: Holdfast, attach: Attach
) -> None:
    lines = 1_000_000
    draw = f"read go; seq 1 {lines}; printf '\\033[?1049h\\033[2J\\033[20;50Hfar away'; read rest"
    session = home.start(f"stty -echo; {draw}", tty=True, size=(30, 100))
    viewer = attach(session, rows=5, cols=20)
    viewer.begun()
    viewer.say("resize", rows=30, cols=100)
    viewer.until(lambda: viewer.of("resized") or session.refresh().size == [30, 100], "the size")
    viewer.type(b"go\r")
    session.wait(match="far away", timeout=60)
    viewer.until(lambda: viewer.of("gap") and "far away" in viewer.text, "the screen", 30)
    assert viewer.text == session.screen().text
    session.kill()


@also_through_a_node
def test_a_focus_report_is_answered_like_any_input(home: Holdfast, attach: Attach) -> None:
    session = home.start("printf '\\033[?1004h'; stty raw -echo; echo on; cat -v", tty=True)
    viewer = attach(session)
    viewer.begun()
    viewer.until(lambda: "on" in viewer.text, "the program")
    number = viewer.type(b"\x1b[I")
    viewer.until(lambda: viewer.of("written"), "an answer")
    assert viewer.of("written")[0]["id"] == number
    viewer.until(lambda: "^[[I" in viewer.text, "the report")
    session.kill()


@also_through_a_node
def test_a_session_on_pipes_is_followed_by_stream_to_its_last_byte(
    home: Holdfast, attach: Attach, world: World
) -> None:
    gate = world.gate()
    printed = "head -c 300000 /dev/urandom; echo error >&2"
    left = f"setsid sh -c 'head -c 1 < {gate} >/dev/null; echo later' 2>/dev/null &"
    session = home.start(f"echo first; read go; {printed}; {left} exit 7", stdin="open")
    session.wait(match="first", timeout=30)
    out, err, whole = (attach(session, **query) for query in ({}, {"stream": "stderr"}, {"from_": 2}))
    assert {name: out.begun()[name] for name in ("stream", "role", "size", "screen", "at", "state", "resumed")} == {
        "stream": "stdout",
        "role": "observe",
        "size": None,
        "screen": None,
        "at": 0,
        "state": "running",
        "resumed": False,
    }
    assert [whole.begun()[name] for name in ("at", "resumed")] == [2, True]
    session.send("go\n")
    out.until(lambda: out.of("session_ended"), "the end of the command")
    (ended,) = out.of("session_ended")
    assert (ended["exit_code"], ended["output_open"], ended["end"]) == (7, True, 300_006)
    gate.release()
    for viewer in (out, err, whole):
        viewer.until(lambda viewer=viewer: viewer.closed, "the end")  # type: ignore[misc]
        assert viewer.closed == (1000, "ended")
    log = session.read(stream="stdout").data
    assert log.endswith(b"later\n")
    assert [bytes(viewer.live) for viewer in (out, err, whole)] == [log, b"error\n", log[2:]]
    over = attach(session, from_="now")
    over.until(lambda: over.closed, "the end")
    assert [message["type"] for message in over.told] == ["init", "session_ended"]


@pytest.mark.parametrize("lag", [None, "skip"])
@also_through_a_node
def test_on_pipes_a_viewer_that_is_far_behind_continues_from_its_cursor(
    home: Holdfast, attach: Attach, world: World, lag: str | None
) -> None:
    """Unless it asks to skip. Its output was never read before, and the command does not wait for it."""
    flow = 6 << 20
    session = home.start(f"echo first; read go; head -c {flow} /dev/urandom; read go", stdin="open")
    session.wait(match="first", timeout=30)
    viewer = attach(session, reads_ahead=False, **({} if lag is None else {"lag": lag}))
    viewer.begun()
    session.send("go\n")
    until(lambda: session.refresh().ends.get("stdout") == flow + 6, what="that all is printed")
    session.send("go\n")
    session.wait(timeout=30)
    viewer.until(lambda: viewer.of("session_ended"), "the end", 60)
    log = session.read(stream="stdout", limit=flow + 6).data
    assert len(log) == flow + 6
    if lag is None:
        assert (viewer.of("gap"), viewer.live == log) == ([], True)
    else:
        (gap,) = viewer.of("gap")
        assert (gap["reason"], gap["to"]) == ("skipped", flow + 6)
        assert [init["at"] for init in viewer.of("init")] == [0, flow + 6]


@also_through_a_node
def test_what_cannot_be_attached_is_refused_before_the_upgrade(home: Holdfast, attach: Attach) -> None:
    session = home.start("cat", tty=True)
    pipes = home.start("sleep 600")
    assert refusal(attach, "nosuchsession")[0] == 404
    status, problem = refusal(attach, pipes, role="control")
    assert (status, problem["type"]) == (409, "/problems/not-a-tty")
    for wrong, stream in ((pipes, "tty"), (session, "stdout")):
        status, problem = refusal(attach, wrong, stream=stream)
        assert (status, problem["type"], problem["argument"]) == (400, "/problems/bad-argument", "stream")
    status, problem = refusal(attach, session, from_=10_000)
    assert (status, problem["type"]) == (416, "/problems/offset-ahead")
    for query in (
        {"from_": "there"},
        {"lag": "some"},
        {"history_rows": "-1"},
        {"rows": "0", "cols": "80"},
        {"rows": 9},
        {"form": 3},
    ):
        status, problem = refusal(attach, session, **query)
        assert (status, problem["type"]) == (400, "/problems/bad-argument"), query
    session.kill()
    pipes.kill()


@also_through_a_node
def test_a_server_that_is_killed_takes_nothing_along(
    home: Holdfast, attach: Attach, serving: Serving, dialect: str, world: World
) -> None:
    session = home.start("cat", tty=True)
    viewer = attach(session)
    viewer.begun()
    viewer.type(b"before\r")
    viewer.until(lambda: viewer.text.count("before") == 2, "its echo")
    serving.kill(signal.SIGKILL)
    wait_gone(serving.pid)
    viewer.until(lambda: viewer.closed, "the end of the connection")
    session.submit("meanwhile")
    until(lambda: session.screen().text.count("meanwhile") == 2, what="the echo")
    serving.start()
    viewer.join(from_=viewer.at)
    viewer.until(lambda: viewer.text.count("meanwhile") == 2, "what it missed")
    assert viewer.of("init")[-1]["resumed"] is True
    session.kill()


@pytest.mark.covers("found:11")
@also_through_a_node
def test_a_runner_that_is_stopped_is_unreachable_within_five_seconds(
    home: Holdfast, attach: Attach, serving: Serving
) -> None:
    session = home.start("echo up; exec sleep 600", tty=True)
    session.wait(match="up", timeout=30)
    for role in ("control", "observe"):
        passed = QuietTime()
        with wedged(session):
            status, problem = refusal(attach, session, role=role)
        assert passed.seconds() < 5
        assert (status, problem["type"], problem["pid"]) == (504, "/problems/unreachable", session.runner_pid)
        # What was refused is not attached when the runner wakes.
        until(lambda: session.refresh().attached == {"control": 0, "observe": 0}, what="that it is gone")
        viewer = attach(session, role=role)
        assert viewer.begun()["role"] == role
        viewer.leave()
    session.stop(grace=0)
    assert serving.leave() == 0
    assert serving.program.errors() == ""


@pytest.mark.covers("found:21")
@also_through_a_node
def test_a_stale_session_is_shown_and_said_to_have_no_runner(home: Holdfast, attach: Attach, world: World) -> None:
    session = home.start("trap '' HUP; echo kept; exec sleep 600", tty=True)
    session.wait(match="kept", timeout=30)
    kill_runner(session)
    assert home.get(session.id).state == "stale"
    viewer = attach(session)
    init = viewer.begun()
    assert (init["state"], viewer.text) == ("stale", "kept")
    viewer.until(lambda: viewer.closed is not None, "the end of the connection")
    (error,) = viewer.of("error")
    assert (error["code"], error["state"], error["pid"]) == ("runner-gone", "stale", session.pid)
    assert viewer.closed == (1011, "runner-gone")
    assert viewer.of("session_ended") == []
    home.get(session.id).stop(grace=0)
    sweep_up(world, home)


@pytest.mark.covers("found:21")
@pytest.mark.parametrize("role", ["control", "observe"])
@also_through_a_node
def test_a_runner_that_is_killed_under_a_viewer_is_gone_and_not_ended(
    home: Holdfast, attach: Attach, world: World, role: str
) -> None:
    session = home.start("trap '' HUP; echo kept; exec sleep 600", tty=True)
    session.wait(match="kept", timeout=30)
    viewer = attach(session, role=role)
    viewer.begun()
    kill_runner(session)
    viewer.until(lambda: viewer.closed is not None, "the end of the connection")
    assert viewer.closed == (1011, "runner-gone")
    assert [each["code"] for each in viewer.of("error")] == ["runner-gone"]
    home.get(session.id).stop(grace=0)
    sweep_up(world, home)
