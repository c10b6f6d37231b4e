"""The blocking half of the library has the same calls as the asyncio half."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, assert_type

import pytest

import holdfast
from holdfast import AsyncHoldfast, AsyncSession, Holdfast, Session
from holdfast.daemons.lsp import AsyncLanguageServer, LanguageServer
from holdfast.daemons.view import AsyncDaemons, Daemons
from holdfast.errors import BadArgument
from holdfast.model import Snapshot, Woke
from holdfast.sessions.attach import AsyncAttachment, Attachment
from holdfast.sessions.log import Page
from holdfast.signals.consumer import AsyncBatch, AsyncConsumer, AsyncNotice, Batch, Consumer, Notice
from holdfast.signals.loop import AsyncGate, Gate
from holdfast.tools.evva import state

if TYPE_CHECKING:
    from support.world import World

HALVES = [
    (Holdfast, AsyncHoldfast),
    (Session, AsyncSession),
    (Attachment, AsyncAttachment),
    (Daemons, AsyncDaemons),
    (LanguageServer, AsyncLanguageServer),
    (Gate, AsyncGate),
    (state.Gate, state.AsyncGate),
    (state.DaemonState, state.AsyncDaemonState),
    # Their asyncio halves have public names for the rest of the package too.
    (Consumer, AsyncConsumer),
    (Batch, AsyncBatch),
    (Notice, AsyncNotice),
]
# What only asyncio needs; of a consumer and its batches, also what the rest of the package calls.
ASYNC_ONLY = {
    AsyncAttachment: {"drain"},
    AsyncConsumer: {"catch_up", "name", "open", "release_when_free", "retry", "wakers"},
    AsyncBatch: {"abandon", "ids", "mark_done"},
    AsyncNotice: {"abandon", "ids", "mark_done", "role_hint", "text"},
}


def calls(kind: type) -> dict[str, Any]:
    found = {name: value for name, value in inspect.getmembers_static(kind) if not name.startswith("_")}
    return {name: value for name, value in found.items() if isinstance(value, FunctionType | property)}


def shown(call: Any) -> tuple[str, str | None]:
    function: Any = call.fget if isinstance(call, property) else call
    return str(inspect.signature(function)), inspect.getdoc(function)


@pytest.mark.parametrize("ours, theirs", HALVES, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_both_halves_have_the_same_names_signatures_and_docstrings(ours: type, theirs: type) -> None:
    blocking, asynchronous = calls(ours), calls(theirs)
    assert blocking.keys() == asynchronous.keys() - ASYNC_ONLY.get(theirs, set())
    for name, call in blocking.items():
        if call is asynchronous[name]:
            continue
        signature, doc = shown(asynchronous[name])
        signature = signature.replace("Async", "").replace("Awaitable[object]", "object")
        assert shown(call) == (signature, doc), name
        assert not inspect.iscoroutinefunction(call), name


def test_type_checkers_know_what_blocking_calls_take_and_return(world: World) -> None:
    """mypy reads this test too: it fails where a type differs, and where a wrong argument is accepted."""
    started: list[Session] = []
    with assert_type(holdfast.open(), Holdfast) as hf:
        session = assert_type(hf.run("echo hi; exit 3", name="one", started=started.append), Session)
        assert [each.id for each in started] == [session.id]
        assert assert_type(hf.get("one"), Session).id == session.id
        assert [each.id for each in assert_type(hf.sessions(all=True), list[Session])] == [session.id]
        assert assert_type(session.refresh(), Session) is session
        assert assert_type(session.wait(timeout=5), Woke).reason == "exit"
        assert assert_type(session.read(stream="stdout"), Page).text == "hi\n"
        assert assert_type(session.tail(1), str) == "hi\n"
        assert b"".join(assert_type(session.raw(), Iterator[bytes])) == b"hi\n"
        assert [page.text for page in assert_type(session.follow(), Iterator[Page])] == ["hi\n"]
        assert [shot.id for shot in assert_type(hf.daemons.list(include_terminal=True), list[Snapshot])] == [session.id]
        again = assert_type(session.restart(), Session)
        assert again.wait(timeout=30).session is again
        with pytest.raises(BadArgument):
            hf.start("true", nonsense=1)  # type: ignore[call-arg]
        with pytest.raises(BadArgument):
            hf.start("true", name=1)  # type: ignore[arg-type]
        with pytest.raises(BadArgument):
            session.wait(nonsense=1)  # type: ignore[call-arg]
        with pytest.raises(BadArgument):
            session.wait(idle=[1])  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            session.read(nonsense="stdout")  # type: ignore[call-arg]
    assert (repr(hf), repr(again)) == (f"<Holdfast {world.home}>", f"<Session {again.id} exited with code 3>")


def test_an_error_of_a_blocking_call_shows_the_coroutine_in_its_traceback(world: World) -> None:
    session = world.open().run("true")
    with pytest.raises(BadArgument) as wrong:
        session.export("out", format="film")
    frames = [(Path(entry.path).name, entry.name) for entry in wrong.traceback]
    assert frames[1:] == [("driver.py", "call"), ("driver.py", "drive"), ("aio.py", "export")]


class OwnSession(Session):
    def title(self) -> str:
        return f"{self.id}: {self.state}"


class OwnHoldfast(Holdfast):
    pass


def test_classes_of_users_keep_their_type(world: World) -> None:
    with assert_type(OwnHoldfast(), OwnHoldfast) as hf:
        session = OwnSession(hf._core, hf.run("true"))
        assert session.wait(timeout=5).session is session
        assert session.title() == f"{session.id}: exited"
        assert repr(session).startswith("<OwnSession ")


def test_a_blocking_host_loads_no_event_loop(world: World) -> None:
    code = (
        "import sys, holdfast\n"
        "with holdfast.open() as hf:\n"
        "    print(hf.run('true').text(), hf.sessions())\n"
        "assert 'asyncio' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
