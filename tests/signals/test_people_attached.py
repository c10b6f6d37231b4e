"""People who are attached: what their signals say of them, and the bell that reaches them."""

from __future__ import annotations

from typing import Any

import pytest

from cli.outer import Outer
from holdfast.cli import display
from holdfast.model.events import Bell, Clients, Init
from holdfast.sessions.attach import Attachment
from holdfast.signals.people.program import ring
from support.signal_file import endings
from support.waiting import BOUND_S, until
from support.world import World


def _ended(world: World, id: str) -> dict[str, Any]:
    (record,) = until(lambda: endings(world, id), watch=world.session(id))
    return record


def _next(attachment: Attachment, kind: type[Any]) -> Any:
    for event in attachment:
        if isinstance(event, kind):
            return event
    raise AssertionError(f"no {kind.__name__} came")


@pytest.mark.covers("signals:37")
def test_a_signal_says_how_long_ago_the_person_at_its_terminal_typed(world: World) -> None:
    hf = world.open()
    session = hf.start(world.probe("read-line", "exit", 3), tty=True)
    with session.attach(kind="cli") as person:
        _next(person, Init)
        person.send(b"go\r")
        session.wait(exit=True, timeout=BOUND_S)
        attached = _ended(world, session.id)["snapshot"]["attached"]
    assert attached.pop("person_idle_s") < BOUND_S
    assert attached == {"control": 1, "observe": 0}


def test_a_person_who_looks_counts_as_present_and_one_who_only_attached_does_not(world: World) -> None:
    hf = world.open()
    gate = world.gate()
    idle = {}
    for name, act in (("came", None), ("looks", True), ("looked", False)):
        session = hf.start(world.probe("await", gate, "exit", 3), tty=True)
        with session.attach(kind="web") as person:
            _next(person, Init)
            if act is not None:
                person.focus(act)
                _next(person, Clients)
            gate.release()
            idle[name] = _ended(world, session.id)["snapshot"]["attached"]["person_idle_s"]
    assert idle["came"] is None
    assert idle["looks"] == 0.0
    assert 0.0 <= idle["looked"] < BOUND_S


def test_agents_and_observers_do_not_count_as_people(world: World) -> None:
    hf = world.open()
    session = hf.start(world.probe("read-line", "exit", 3), tty=True)
    with session.attach(kind="agent") as agent, session.attach(kind="cli", role="observe") as observer:
        _next(agent, Init)
        _next(observer, Init)
        observer.focus(True)
        _next(agent, Clients)
        agent.send(b"go\r")
        attached = _ended(world, session.id)["snapshot"]["attached"]
    assert attached == {"control": 1, "observe": 1, "person_idle_s": None}


def test_a_bell_reaches_every_person_and_no_agent(world: World) -> None:
    hf = world.open()
    one, two = (hf.start(world.probe("forever"), tty=True) for _ in range(2))
    piped = hf.start(world.probe("forever"))
    with (
        one.attach(kind="cli") as person,
        one.attach(kind="agent") as agent,
        two.attach(kind="web", role="observe") as observer,
    ):
        for each in (person, agent, observer):
            _next(each, Init)
        assert ring(str(world.home), hf.config, "build failed\x07\x1b]0;x\x07 \u202e!") == 2
        assert _next(person, Bell).text == "build failed]0;x !"
        assert _next(observer, Bell).text == "build failed]0;x !"
        person.focus(True)
        for event in agent:
            assert not isinstance(event, Bell)
            if isinstance(event, Clients) and any(client["focused"] for client in event.clients):
                break
    for session in (one, two, piped):
        session.stop(grace=0)
    assert ring(str(world.home), hf.config, "nobody") == 0


@pytest.mark.parametrize(
    "variables, shown",
    [
        ({"TERM_PROGRAM": "WezTerm"}, b"\x1b]9;done\x1b\\"),
        ({"TERM": "xterm-kitty"}, b"\x1b]9;done\x1b\\"),
        ({"TERM": "xterm-256color"}, b""),
        ({}, b""),
    ],
)
def test_a_notification_goes_to_terminals_that_are_known_to_show_it(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], shown: bytes
) -> None:
    for name in ("TERM", "TERM_PROGRAM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert display.notification("done") == shown


def test_a_bell_is_heard_at_the_terminal_of_hold_attach(world: World) -> None:
    hf = world.open()
    session = hf.start(world.probe("say", "shown", "forever"), tty=True)
    outer = Outer(world.hold_argv("attach", session.id), {"TERM": "xterm-kitty"})
    world.closing.callback(outer.close)
    outer.shows("shown")
    assert ring(str(world.home), hf.config, "build failed") == 1
    outer.until(lambda: b"\x07\x1b]9;build failed\x1b\\" in outer.printed, "the bell")
    session.stop(grace=0)
