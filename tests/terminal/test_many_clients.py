"""Ten clients of every kind at one terminal: who types, resizes, stops, comes and goes, all see the same in the end."""

from __future__ import annotations

import random
import re
import select
import signal
import sys
import time
from typing import TYPE_CHECKING, Any, Protocol

import pytest

from cli.outer import Outer
from support.scale import scaled
from support.viewer import Viewer
from support.waiting import TooLate
from support.webviewer import BINARY, JSON, WebViewer

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast import Holdfast
    from holdfast.sessions.api import Session
    from support.serving import Serving
    from support.world import World

ROWS, COLS = 24, 80
SECONDS = scaled(9.0, 60.0)
# From the last change of size on everything is printed onto the same page.
SAME_SIZE_S = scaled(3.0, 10.0)

# Prints all the time; redraws when its size changes; counts what is typed. On `+` it prints twice as much as
# a client may be behind.
PROGRAM = r"""
import os, select, signal, sys, time, tty
tty.setraw(0)
reader, writer = os.pipe()
os.set_blocking(writer, False)
signal.set_wakeup_fd(writer)
signal.signal(signal.SIGWINCH, lambda *_: None)
typed = number = 0
burst_at = time.monotonic()

def say(text):
    data = text.encode()
    while data:
        data = data[os.write(1, data):]

while True:
    ready = select.select([0, reader], [], [], 0.02)[0]
    if reader in ready:
        os.read(reader, 4096)
        cols, rows = os.get_terminal_size(1)
        say("\x1b[2J\x1b[H" + f"{rows} rows, {cols} columns".center(cols - 1, "=") + "\r\n")
    if 0 in ready:
        data = os.read(0, 4096)
        typed += len(data)
        if b"+" in data:
            say("".join(f"flood {each:6} {'y' * 64}\r\n" for each in range(150000)))
        if b"!" in data:
            say(f"\r\n\x1b[7m that is all: {typed} typed \x1b[m")
            time.sleep(600)
    number += 1
    say(f"\x1b[3{number % 7 + 1}mline {number}\x1b[m \x1b[1m{typed}\x1b[m \u2502 \u6f22\u5b57 {'.' * (number % 9)}\r\n")
    if time.monotonic() > burst_at:
        burst_at += 1
        say("".join(f"burst {number} {each:5} {'x' * (each % 61)}\r\n" for each in range(BURST)))
""".replace("BURST", str(scaled(500, 3000)))


class Client(Protocol):
    """What the kinds of clients have in common here."""

    def pump(self) -> None: ...

    @property
    def text(self) -> str: ...


class Window:
    """`hold attach` in a window of its own."""

    def __init__(self, id: str, *options: str) -> None:
        argv = [sys.executable, "-m", "holdfast.cli", "attach", id, *options]
        self.outer = Outer(argv, rows=ROWS, cols=COLS)

    def pump(self) -> None:
        while self.outer._take(0):
            pass

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip() for line in self.outer.text.splitlines()).rstrip()


class Program:
    """One that attaches by the library."""

    def __init__(self, session: Session, role: Any) -> None:
        self.viewer = Viewer(session.attach(role=role, kind="agent"))

    def pump(self) -> None:
        while self.viewer.take(0):
            pass

    @property
    def text(self) -> str:
        return self.viewer.text


@pytest.fixture
def home(world: World) -> Holdfast:
    return world.open()


@pytest.mark.timeout(240)
@pytest.mark.covers("terminal:22", "found:32")
def test_ten_mixed_clients_show_the_same_after_a_minute_of_typing_resizing_and_output(
    home: Holdfast, world: World, serving: Serving
) -> None:
    session = home.start([sys.executable, "-c", PROGRAM], tty=True, size=(ROWS, COLS))

    def web(dialect: str, role: str = "control", **query: Any) -> WebViewer:
        viewer = WebViewer(serving.address, serving.token, session.id, dialect, role=role, **query)
        world.closing.callback(viewer.leave)
        return viewer

    def window(*options: str) -> Window:
        made = Window(session.id, *options)
        world.closing.callback(made.outer.close)
        # Before the next: what its terminal answers seconds late would count as typed.
        made.outer.until(lambda: made.text, "its first screen")
        return made

    typing, suspended, watching = window(), window(), window("--observe")
    binary, text = web(BINARY), web(JSON)
    observers = [web(BINARY, "observe"), web(JSON, "observe")]
    stopped = web(JSON, "observe")
    flapping = web(BINARY)
    program = Program(session, "control")
    world.closing.callback(program.viewer.attachment.close)
    live: list[Client] = [typing, watching, binary, text, *observers, flapping, program]
    everybody: list[Client] = [*live, suspended, stopped]
    assert len(everybody) == 10

    def pump_until(predicate: Callable[[], object], what: str, clients: list[Client], bound: float) -> None:
        deadline = time.monotonic() + bound
        while not predicate():
            if time.monotonic() > deadline:
                shown = {type(each).__name__: each.text[-300:] for each in clients}
                raise TooLate(f"{what}: {shown}", bound)
            for client in clients:
                client.pump()
            select.select([typing.outer.master, program.viewer.attachment.fileno()], [], [], 0.02)

    pump_until(lambda: all(client.text for client in everybody), "the first screens", everybody, 60)
    suspended.outer.signal(signal.SIGSTOP)
    chance = random.Random(22)
    typing.outer.type(b"+")
    sent = 1
    typists: list[Callable[[bytes], object]] = [
        typing.outer.type,
        binary.type,
        text.type,
        flapping.type,
        program.viewer.attachment.send,
    ]
    sizers: list[Callable[[int, int], object]] = [
        typing.outer.resize,
        lambda rows, cols: binary.say("resize", rows=rows, cols=cols),
        lambda rows, cols: text.say("resize", rows=rows, cols=cols),
        program.viewer.attachment.resize,
    ]
    began = time.monotonic()

    def passed() -> float:
        return time.monotonic() - began

    def pump_until_time(due: float, clients: list[Client]) -> None:
        pump_until(lambda: passed() >= due, "the time", clients, 60)

    def resumed() -> int:
        return sum(message["resumed"] for message in flapping.of("init"))

    type_at = size_at = flap_at = 0.0
    # A client that comes back right after a change of size is sent the screen instead.
    while passed() < SECONDS - SAME_SIZE_S or resumed() < scaled(3, 10):
        if passed() >= type_at:
            type_at = passed() + 0.1
            unit = b"word"[: chance.randint(1, 4)]
            chance.choice(typists)(unit)
            sent += len(unit)
        if passed() >= size_at:
            size_at = passed() + 0.7
            chance.choice(sizers)(chance.randint(10, 40), chance.randint(40, 120))
        if passed() >= flap_at:
            flap_at = passed() + scaled(1.0, 1.5)
            # What it typed has been taken before it goes.
            pump_until(lambda: len(flapping.of("written")) == flapping._number, "its words", live, 60)
            flapping.leave()
            flapping.join(from_=flapping.at)
        pump_until_time(min(type_at, size_at, flap_at), live)
    for size in sizers:
        size(ROWS, COLS)
    suspended.outer.signal(signal.SIGCONT)

    def newest_line() -> int:
        return max(map(int, re.findall(r"line (\d+)", program.text)), default=0)

    # Until the whole page was printed at this size.
    last = newest_line()
    until_at = passed() + SAME_SIZE_S
    while passed() < until_at or newest_line() < last + 2 * ROWS:
        chance.choice(typists)(b"w")
        sent += 1
        pump_until_time(passed() + 0.1, everybody)
        if home.get(session.id).size != [ROWS, COLS]:
            last = newest_line()

    pump_until(lambda: len(flapping.of("written")) == flapping._number, "its words", everybody, 60)
    # The last words of each client have arrived before another one ends it.
    pump_until(lambda: f" {sent} \u2502" in program.text, f"{sent} typed", everybody, 60)
    text.say("input", keys=["!"])
    marker = f"that is all: {sent + 1} typed"
    pump_until(lambda: all(marker in client.text for client in everybody), marker, everybody, 60)
    page = session.screen().text
    assert [client.text for client in everybody] == [page] * 10
    skipped = [number for number, message in enumerate(stopped.told) if message.get("reason") == "skipped"]
    assert skipped
    for number in skipped:
        shown = stopped.told[number + 1]
        assert shown["type"] == "init"
        assert shown["screen"]
    assert home.get(session.id).size == [ROWS, COLS]
    session.kill()
