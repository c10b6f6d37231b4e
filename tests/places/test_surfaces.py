"""What is built on sessions works in another place too: terminals, signals, the command line, the asyncio facade."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

import holdfast
from cli.outer import Outer
from holdfast import errors
from support import signal_file
from support.places import deputies
from support.viewer import Viewer
from support.waiting import until

if TYPE_CHECKING:
    from holdfast import Holdfast
    from support.places import Away
    from support.world import World

OWNER = "agent-7"


def test_a_terminal_has_keys_a_screen_and_a_size(hf: Holdfast, away: Away) -> None:
    session = hf.start(["sh"], tty=True, size=(10, 40), env={"PS1": "$ "}, place=away.place)
    session.send("stty size; tput -T xterm cols; printf '\\033[2Jhere\\n'")
    session.keys("Enter")
    assert session.wait(match="10 40", timeout=30).reason == "match"
    session.resize(12, 50)
    session.submit("stty size")
    assert session.wait(match="12 50", timeout=30).reason == "match"
    until(lambda: "12 50" in session.screen().text)
    session.keys("C-d")
    assert session.wait(timeout=30).reason == "exit"
    assert "here" in session.text()


def test_attached_one_sees_what_comes_and_types_what_goes(hf: Holdfast, away: Away) -> None:
    session = hf.start(away.probe("cat"), tty=True, size=(10, 40), place=away.place)
    session.wait(match="ready", timeout=30)
    with session.attach() as attachment:
        viewer = Viewer(attachment)
        viewer.until(lambda: "ready" in viewer.text, "what was printed before")
        attachment.send(b"typed\r")
        viewer.until(lambda: viewer.text.count("typed") >= 2, "the echo and the copy")
        attachment.send(b"\x04")
        assert viewer.to_the_end().code == 0


def test_hold_attach_is_a_window_into_another_place(remote: Away, world: World) -> None:
    session = world.open().start(remote.probe("cat"), tty=True, size=(24, 80), place=remote.place)
    session.wait(match="ready", timeout=30)
    outer = Outer(world.hold_argv("attach", session.id))
    world.closing.callback(outer.close)
    outer.shows("ready")
    outer.type(b"typed\r")
    until(lambda: session.text().count("typed") == 2, what="the echo and the copy")
    outer.type(b"\x1dd")
    assert outer.end() == 0
    session.stop(grace=0)


def test_heartbeats_come_from_another_place(remote: Away, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    config = world.root / "config.toml"
    config.write_text('[session]\nheartbeat_floor = "1s"\n')
    monkeypatch.setenv("HOLDFAST_CONFIG", str(config))
    with world.open() as hf:
        session = hf.start(remote.probe("forever"), heartbeat=1, owner=OWNER, place=remote.place)
        (signal,) = next(iter(hf.signals(OWNER)))
        assert (signal.session, signal.variant, signal.fields["tail"]) == (session.id, "heartbeat", "ready")
        session.stop(grace=0)


def test_signals_reach_their_owner_without_a_running_host(hf: Holdfast, away: Away, world: World) -> None:
    gate = away.gate()
    listening = iter(hf.signals(OWNER))
    session = hf.start(
        away.probe("quiet", "say", "compiled ok", "await", gate, "exit", 3),
        owner=OWNER,
        watch=["compiled"],
        ready="line:compiled",
        heartbeat=60,
        place=away.place,
    )
    seen: list[Any] = []
    while len(seen) < 3:
        for signal in next(listening):
            assert signal.session == session.id
            seen.append(signal.variant)
            if signal.variant == "watch":
                gate.release()
    assert sorted(seen) == ["lifecycle", "ready", "watch"]
    (ended,) = signal_file.endings(world, session.id)
    assert (ended["lifecycle"]["code"], ended["lifecycle"]["status"]) == (3, "failed")
    until(lambda: not deputies(world))
    assert hf.signals(OWNER).pending() == 0


def test_lines_of_a_monitor_are_reported_as_they_come(hf: Holdfast, away: Away) -> None:
    listening = iter(hf.signals(OWNER))
    words = ["quiet", "say", "one", "read-line"]
    session = hf.start(away.probe(*words), stdin="open", monitor=True, owner=OWNER, place=away.place)
    lines = []
    for notice in listening:
        for signal in notice:
            if signal.variant == "event":
                lines += [line["text"] for line in signal.fields["lines"]]
        if lines == ["one"]:
            session.send("two\n")
        if "got two" in lines:
            break
    session.wait(timeout=30)


def test_the_command_line_names_a_place(hf: Holdfast, away: Away, world: World) -> None:
    ran = world.hold("run", "--place", away.place, "--", "sh", "-c", "echo hi; exit 7")
    assert (ran.returncode, ran.stdout) == (7, "hi\n")
    id = world.hold("start", "--place", away.place, "--name", "web", "--", "sleep", "600", check=True).stdout.strip()
    (row,) = json.loads(world.hold("ls", "--json", check=True).stdout)
    assert (row["id"], row["place"], row["state"]) == (id, away.place, "running")
    assert world.hold("stop", "web").returncode == 0


def test_asyncio_speaks_to_places_alike(away: Away) -> None:
    async def live() -> None:
        async with holdfast.open_async() as hf:
            first, second = await asyncio.gather(
                hf.run("echo one", place=away.place), hf.start(away.probe("forever"), place=away.place)
            )
            assert await first.text() == "one\n"
            assert (await second.wait(match="ready", timeout=30)).reason == "match"
            await second.stop(grace=0)
            assert second.status == "killed"

    asyncio.run(live())


def test_what_belongs_to_this_machine_is_refused(hf: Holdfast, away: Away) -> None:
    with pytest.raises(errors.Unsupported):
        hf.start("true", pass_fds=[3], place=away.place)
    with pytest.raises(errors.Unsupported):
        hf.start("true", lifetime="owner", place=away.place)
    session = hf.start(away.probe("forever"), place=away.place)
    with pytest.raises(errors.Unsupported):
        session.wait(port=80, timeout=1)
    session.stop(grace=0)
