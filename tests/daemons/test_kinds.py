"""Kinds: letters, metadata, and that a new one is one class."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.daemons import kinds
from holdfast.daemons.kinds import Kind
from holdfast.errors import BadArgument
from holdfast.home import ID_ALPHABET, new_id
from holdfast.model import KIND_LETTERS, SESSION_KEYS, Exit, Snapshot

LETTERS = {
    "local_bash": "b",
    "terminal": "p",
    "monitor": "m",
    "lsp": "l",
    "local_task": "k",
    "local_agent": "a",
    "in_process_teammate": "t",
    "remote_agent": "r",
    "local_workflow": "w",
    "dream": "d",
}


def _shot(kind: str, **values: Any) -> Snapshot:
    basis: dict[str, Any] = {**dict.fromkeys(SESSION_KEYS), "id": "x12345678", "kind": kind, "command": "make"}
    return Snapshot(**{**basis, "metadata": {}, "state": "running", "status": "running", "attempt": 1, **values})


def _metadata(shot: Snapshot, **spec: Any) -> dict[str, Any]:
    return kinds.dress(shot, lambda: spec).metadata


def test_a_thousand_ids_of_each_kind_have_its_letter_and_eight_characters_of_any_kind() -> None:
    assert {kind: kinds.of(kind).prefix for kind in kinds.names()} == LETTERS
    for kind in [*kinds.names(), "whatever"]:
        ids = {new_id(kind) for _ in range(1000)}
        assert len(ids) == 1000
        assert {len(id) for id in ids} == {9}
        assert {id[0] for id in ids} == {LETTERS.get(kind, "x")}
        assert {letter for id in ids for letter in id[1:]} == set(ID_ALPHABET)


def test_every_kind_of_the_model_is_known_here_with_the_same_letter() -> None:
    assert {kind: kinds.of(kind).prefix for kind in kinds.names()} == KIND_LETTERS


def test_metadata_is_that_of_the_kind_beside_what_was_given() -> None:
    done = Exit(7, None, "exit")
    assert _metadata(_shot("local_bash", cwd="/w", exit=done, metadata={"mine": 1})) == {
        "mine": 1,
        "command": "make",
        "cwd": "/w",
        "exit_code": 7,
    }
    assert _metadata(_shot("terminal", size=[30, 120], metadata={"title": "vi"})) == {
        "command": "make",
        "rows": 30,
        "cols": 120,
        "title": "vi",
        "alt_screen": False,
    }


def test_a_monitor_reports_its_counts_its_level_and_when_it_ends() -> None:
    facts = {"count": 12, "suppressed": 3, "level": "held", "persistent": False}
    found = _metadata(
        _shot("monitor", started_at="2026-08-01T09:14:07.412Z", metadata={"monitor": facts}), timeout=300.0
    )
    assert (found["events"], found["suppressed"], found["level"]) == (12, 3, "held")
    assert found["deadline"] == "2026-08-01T09:19:07.412Z"
    assert _metadata(_shot("monitor"), timeout=None)["deadline"] is None


def test_a_language_server_reports_its_state_from_what_any_host_can_see() -> None:
    def state(**values: Any) -> str:
        return str(_metadata(_shot("lsp", **values))["state"])

    assert state() == "starting"
    assert state(metadata={"ready": True}) == "running"
    assert state(metadata={"ready": True}, health="unhealthy") == "error"
    assert state(stopping={"by": "me"}) == "stopping"
    assert state(state="exited", status="killed") == "stopped"
    assert state(state="exited", status="failed") == "error"
    found = _metadata(_shot("lsp", attempt=3, metadata={"server": "pylsp", "max_restarts": 3}))
    assert (found["server"], found["restarts"], found["max_restarts"]) == ("pylsp", 2, 3)


def test_an_agent_shows_five_hundred_characters_of_its_prompt() -> None:
    found = _metadata(_shot("local_agent", metadata={"prompt": "x" * 900, "agent_type": "reviewer", "async": True}))
    assert found["prompt"] == "x" * 500
    assert (found["agent_type"], found["async"], found["summary"]) == ("reviewer", True, None)


def test_an_unknown_kind_reports_nothing_and_breaks_nothing() -> None:
    assert _metadata(_shot("of_next_year", metadata={"a": 1})) == {"a": 1}
    assert kinds.of("of_next_year").prefix == "x"


class Build(Kind):
    name, prefix = "build", "u"
    in_process = True

    def metadata(self, shot: Snapshot, spec: kinds.Spec) -> dict[str, Any]:
        return {"target": spec().get("target")}


@pytest.fixture
def no_new_kinds() -> Iterator[None]:
    letters, known = dict(KIND_LETTERS), dict(kinds._KINDS)
    yield
    for table, before in ((KIND_LETTERS, letters), (kinds._KINDS, known)):
        table.clear()
        table.update(before)  # type: ignore[arg-type]


@pytest.mark.usefixtures("no_new_kinds")
def test_a_new_kind_is_one_class() -> None:
    kinds.register(Build())
    assert new_id("build").startswith("u")
    assert _metadata(_shot("build"), target="all") == {"target": "all"}


@pytest.mark.usefixtures("no_new_kinds")
@pytest.mark.parametrize(
    "prefix,why",
    [
        ("b", "local_bash"),
        ("uu", "cannot be the first letter"),
        ("-", "cannot be the first letter"),
        ("", "cannot be the first letter"),
    ],
)
def test_a_kind_whose_letter_is_taken_or_none_is_refused(prefix: str, why: str) -> None:
    kind = Build()
    kind.prefix = prefix
    with pytest.raises(BadArgument, match=why):
        kinds.register(kind)
