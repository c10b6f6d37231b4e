"""SEC-10: odd ids and names are told apart, never become a path, and are never waited for."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast import Holdfast
from holdfast.errors import AmbiguousId, BadArgument, HoldfastError, NameTaken, NotFound, Removed
from support.bystander import Bystanders
from support.promised import Beside, home_is_usable, is_typed, promised
from support.world import World

ODD = [
    "",
    " ",
    ".",
    "..",
    "../x",
    "../../etc/passwd",
    "/etc/passwd",
    "sessions",
    "b123/../b456",
    "b1234567\0",
    "\0",
    "b1234567\n",
    "x" * 4096,
    "b" + "1" * 4096,
    "1" * 5000,
    "²",
    "١٢٣",
    "-1",
    "--all",
    "0",
    "1",
    "4294967296",
    "18446744073709551616",
    "b\u0430bcdefgh",  # a Cyrillic letter among Latin ones
    "\uff421234567",
    "B1234567",
    "\u202eb1234567",
    "\ud800",
    "%00",
    "$HOME",
    "*",
    "b*",
    "b_______",
    "b%",
    "'; DROP TABLE sessions; --",
    "last ",
    "LAST",
    "zzzz",
    "p00000000",
    "x99999999",
]


@pytest.mark.covers("SEC-10")
def test_sec_10_what_never_existed_is_not_found_at_once_and_touches_no_other_path(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    looked: list[str] = []
    real = os.open

    def watched(path: Any, *args: Any, **options: Any) -> int:
        looked.append(os.fsdecode(path))
        return real(path, *args, **options)

    for ref in [*ODD, 0, -1, None, True, 3.5, b"b1234567", ["b1234567"], object()]:
        with patch.object(os, "open", watched), pytest.raises(NotFound) as refusal:
            hf.get(ref)
        is_typed(refusal.value)
        assert "hold ls" in refusal.value.fix
        assert len(str(refusal.value)) < 700
        assert "\0" not in str(refusal.value)
        assert "\n" not in str(refusal.value)
    outside = [path for path in looked if ".." in path or path.startswith("/etc")]
    assert outside == []
    promised(world, beside.session, bystander=bystander, beside=beside)


@pytest.mark.covers("SEC-10")
def test_sec_10_ambiguous_removed_and_never_existed_are_three_errors(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    with patch("holdfast.sessions.start_request.new_id", side_effect=["bsame0001", "bsame0002", "bother003"]):
        first, second, third = (hf.run("true") for _ in range(3))
    with pytest.raises(AmbiguousId) as ambiguous:
        hf.get("bsame")
    assert sorted(ambiguous.value.candidates) == ["bsame0001", "bsame0002"]
    assert hf.get("bsame0001").id == first.id
    assert hf.get("both").id == third.id
    with pytest.raises(NotFound):
        hf.get("bot")  # too short for a prefix
    second.remove()
    assert hf.get("bsame").id == first.id
    for act in (hf.get, lambda ref: hf.get(ref).stop()):
        with pytest.raises(Removed) as removed:
            act("bsame0002")
        assert removed.value.id == "bsame0002"
    with pytest.raises(NotFound):
        hf.get("bsame0003")
    with pytest.raises(NotFound):
        hf.get("psame0001")  # the id of another kind
    for refusal in (ambiguous.value, removed.value):
        is_typed(refusal)
    promised(world, first, bystander=bystander, beside=beside)


@pytest.mark.covers("SEC-10")
def test_sec_10_a_handle_on_a_session_that_is_gone_says_so_in_every_call(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    gone = hf.run("echo x")
    hf.get(gone.id).remove()
    calls: dict[str, Callable[[], object]] = {
        "refresh": gone.refresh,
        "read": gone.read,
        "text": gone.text,
        "tail": lambda: gone.tail(1),
        "raw": lambda: list(gone.raw()),
        "search": lambda: gone.search("x"),
        "follow": lambda: list(gone.follow()),
        "wait": lambda: gone.wait(timeout=30),
        "send": lambda: gone.send("x"),
        "close_stdin": gone.close_stdin,
        "send_signal": lambda: gone.send_signal("TERM"),
        "stop": gone.stop,
        "kill": gone.kill,
        "remove": gone.remove,
        "update": lambda: gone.update(name="n"),
        "restart": gone.restart,
    }
    told = {}
    for name, call in calls.items():
        with pytest.raises(HoldfastError) as refusal:
            call()
        told[name] = refusal.value.code
        is_typed(refusal.value)
    assert set(told.values()) <= {"removed", "not-found"}, told
    promised(world, hf.run("true"), bystander=bystander, beside=beside)


@pytest.mark.covers("SEC-10")
@pytest.mark.parametrize(
    "name", ["", " x", "../x", "a/b", "a\0b", "x" * 65, "x" * 4096, "-rf", "12", "last", "a\nb", "\u202ex", "\ud800"]
)
def test_sec_10_a_name_that_could_be_mistaken_is_refused_and_nothing_started(world: World, name: str) -> None:
    hf = world.open()
    with pytest.raises(BadArgument) as refusal:
        hf.start("true", name=name)
    is_typed(refusal.value)
    assert os.listdir(world.home / "sessions") == []
    assert os.listdir(world.home / "locks") == []


@pytest.mark.covers("SEC-10")
def test_sec_10_names_that_look_alike_are_different_and_each_finds_its_own(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    hf = world.open()
    names = ["web", "w\u0435b", "Web", "\uff57\uff45\uff42", "w\u00e9b", "b1234567", "..web", "web.", "$(web)", "web;x"]
    made = {name: hf.start(world.probe("forever"), name=name) for name in names}
    for name, session in made.items():
        assert hf.get(name).id == session.id
    with pytest.raises(NameTaken) as taken:
        hf.start("true", name="we\u0301b")  # another spelling of one that is there
    assert taken.value.holder == made["w\u00e9b"].id
    assert sorted(os.listdir(world.home / "sessions")) == sorted(
        [beside.session.id, *(session.id for session in made.values())]
    )
    promised(world, made["web"], bystander=bystander, beside=beside)
    assert all(stopped.done for stopped in hf.stop_all([session.id for session in made.values()], grace=0))
    home_is_usable(hf)


@pytest.fixture
def populated(world: World) -> Holdfast:
    hf = world.open()
    for _ in range(3):
        hf.run("true")
    return hf


@given(ref=st.text(max_size=40) | st.integers() | st.text("b0123456789abcdefghijklmnopqrstuvwxyz", max_size=12))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_reference_is_found_or_refused_with_a_type(populated: Holdfast, ref: object) -> None:
    try:
        populated.get(ref)
    except (NotFound, AmbiguousId):
        pass
