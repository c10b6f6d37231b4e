"""Every error: a slug, a message made from facts, a fix, and the same thing again after the wire."""

from __future__ import annotations

import copy
import errno
import inspect
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import errors
from holdfast.errors import HoldfastError

# server.md §3, less what belongs to HTTP alone and to places that are not there yet.
STATUS_OF_SLUG = {
    400: ["bad-request", "bad-argument", "bad-cursor", "bad-key", "bad-size", "empty-command"],
    403: ["observe-only"],
    404: ["not-found"],
    409: [
        "name-taken",
        "key-reused",
        "ambiguous-id",
        "session-ended",
        "still-running",
        "stdin-closed",
        "not-a-tty",
        "self-attach",
        "size-policy",
        "consumer-mismatch",
        "identity-mismatch",
        "runner-gone",
    ],
    410: ["removed", "output-dropped"],
    413: ["too-large"],
    416: ["offset-ahead"],
    422: ["spawn-error", "pty-unavailable"],
    429: ["busy", "too-many-clients", "too-many-sessions"],
    501: ["unsupported", "place-unsupported"],
    502: ["place-unreachable", "place-gone", "place-no-python"],
    503: ["shutting-down"],
    504: ["unreachable"],
    507: ["disk-full"],
}

ONE_OF_EACH: list[HoldfastError] = [
    errors.BadRequest("no type"),
    errors.BadArgument("name", "is empty"),
    errors.BadCursor("x"),
    errors.BadKey("Entr", ["Enter"]),
    errors.BadSize("0x0"),
    errors.EmptyCommand(),
    errors.NotFound("web"),
    errors.Removed("b12345678"),
    errors.AmbiguousId("b123", ["b12345678", "b12399999"]),
    errors.NameTaken("web", "b12345678"),
    errors.KeyReused("k", "b12345678"),
    errors.NotAllowed("run", "it was not approved"),
    errors.RunInProgress(),
    errors.KindReserved("dream"),
    errors.Superseded("k"),
    errors.SessionEnded("b12345678", 7, None, "2026-08-01T09:14:07.412Z"),
    errors.AlreadyEnded("b12345678", "completed", {"id": "b12345678"}),
    errors.StillRunning("b12345678"),
    errors.StdinClosed("b12345678", "it was never open"),
    errors.NotATty("b12345678"),
    errors.SelfAttach("p12345678"),
    errors.SizePolicy("latest", "c3"),
    errors.ObserveOnly("c2"),
    errors.ConsumerMismatch("ui"),
    errors.IdentityMismatch("b12345678", "nonce", "aa", "bb"),
    errors.RunnerGone("b12345678", "stale", 4242),
    errors.Unreachable("b12345678", 4242, 5.0),
    errors.OutputDropped("stdout", 4096),
    errors.OffsetAhead("stdout", 9, 8),
    errors.TooLarge("the frame", 1 << 20),
    errors.SpawnError(errno.ENOENT, "exec", "/x"),
    errors.PtyUnavailable(errno.ENOSPC, 4096, 4096),
    errors.Busy("the input queue is full"),
    errors.TooManyClients(64),
    errors.TooManySessions(1000),
    errors.Unsupported("resize", "0.1.0"),
    errors.PlaceUnsupported("moon", "give ssh:HOST"),
    errors.PlaceUnreachable("ssh:moon", "no route to host"),
    errors.PlaceGone("podman:web", "no such container"),
    errors.PlaceNoPython("podman:web", "not found"),
    errors.ShuttingDown(),
    errors.DiskFull("/h", 12),
    errors.Timeout("the exit", 1.5),
    errors.ConfigError("/c.toml", 3, "log.kep", "unknown key", "did you mean keep?"),
    errors.UnsafeDirectory("/tmp/holdfast-0", "it is a symlink", "remove it"),
    errors.ProtocolError("a frame of length 0"),
    errors.ServerGone("l12345678", "pylsp", "textDocument/hover", "it exited with code 1"),
    errors.ServerRefused("pylsp", "textDocument/hover", -32601, "Method Not Found"),
    errors.DamagedRecord("/h/sessions/b12345678/spec.json", "not JSON"),
    errors.MalformedAnswer("b12345678", "/run/b12345678.sock", "status.ends must be an object, not 'x'"),
    errors.UnsafeFile("/tmp/out.cast", "it is a pipe of uid 1000"),
    errors.ForeignPeer(1000),
    errors.NodeUnreachable("web1", "no answer", False),
    errors.NodeRefused("web1", "another key answers under its name"),
    errors.NodeTaken("web1", "SHA256:abc"),
    errors.NodeTwice("web1", True),
    errors.VisitExists("k3v9x0a1b", "web1"),
]


def _classes() -> set[type[HoldfastError]]:
    return {
        each
        for _, each in inspect.getmembers(errors, inspect.isclass)
        # One without a code of its own only changes the words of another.
        if issubclass(each, HoldfastError) and each is not HoldfastError and "code" in vars(each)
    }


def test_the_list_here_has_one_of_each_class() -> None:
    assert {type(each) for each in ONE_OF_EACH} == _classes()


def test_slugs_are_unique_and_the_contract_has_them_with_the_same_status() -> None:
    slugs = [each.code for each in _classes()]
    assert len(slugs) == len(set(slugs))
    by_slug = {each.code: each.http_status for each in _classes()}
    for status, names in STATUS_OF_SLUG.items():
        for slug in names:
            assert by_slug[slug] == status, slug


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: error.code)
def test_each_error_says_the_case_and_the_fix_in_one_line(error: HoldfastError) -> None:
    assert error.message
    assert error.fix
    assert str(error) == f"{error.message}; {error.fix}"
    assert "\n" not in str(error)
    assert error.exit_code in {1, 2, 3, 4, 5, 124}
    assert type(error).__name__.removesuffix("Error").lower() == error.code.replace("-", "").removesuffix("error")


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: error.code)
def test_each_error_after_the_wire_is_the_same_error(error: HoldfastError) -> None:
    again = HoldfastError.from_wire(json.loads(json.dumps(error.to_json())))
    assert type(again) is type(error)
    assert again.to_json() == error.to_json()
    assert str(again) == str(error)
    for name in type(error).__annotations__:
        assert getattr(again, name) == getattr(error, name)


@pytest.mark.parametrize("error", ONE_OF_EACH, ids=lambda error: error.code)
def test_each_error_can_be_pickled_and_copied(error: HoldfastError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert again.to_json() == error.to_json()


def test_frame_with_an_unknown_code_is_the_base_error_carrying_it() -> None:
    error = HoldfastError.from_wire({"code": "of-next-year", "message": "odd", "facts": {"moon": 1}})
    assert type(error) is HoldfastError
    assert error.code == "of-next-year"
    assert error.facts == {"moon": 1}
    assert HoldfastError.code == "error"


def test_frame_without_facts_leaves_them_none() -> None:
    error = HoldfastError.from_wire({"code": "runner-gone", "message": "gone"})
    assert isinstance(error, errors.RunnerGone)
    assert error.pid is None
    assert error.fix == errors.RunnerGone.fix


def test_facts_never_replace_what_every_error_has() -> None:
    error = HoldfastError.from_wire(
        {
            "code": "session-ended",
            "message": "m",
            "facts": {"code": 7, "to_json": 1, "args": 2, "message": "x"},
        }
    )
    assert error.code == "session-ended"
    assert error.message == "m"
    assert error.to_json()["facts"]["code"] == 7  # type: ignore[index]


def test_text_of_strangers_in_a_message_is_quoted_and_cut() -> None:
    message = errors.NotFound("\x1b[31m" + "x" * 5000).message
    assert "\x1b" not in message
    assert len(message) < 200


def test_a_bad_key_names_the_nearest_or_says_why_and_always_the_way_to_send_text() -> None:
    assert errors.BadKey("Entr", ["Enter", "Insert"]).fix == "did you mean Enter, Insert? Text is sent as `literal`"
    assert "`literal`" in errors.BadKey("Zzz").fix
    assert errors.BadKey("hex:1", why="pairs of digits").message == "not a key: 'hex:1': pairs of digits"


def test_a_missing_pty_is_reported_with_counts_and_never_as_a_full_disk() -> None:
    assert errors.PtyUnavailable(errno.ENOSPC, 7, 7).message == "cannot open a PTY: none is free (7 of 7 in use)"
    assert errors.PtyUnavailable(errno.EACCES).message == "cannot open a PTY: Permission denied"


def test_session_ended_reports_signal_or_code() -> None:
    assert "with code 7" in errors.SessionEnded("b1", 7, None, None).message
    assert "by signal SIGKILL" in errors.SessionEnded("b1", None, "SIGKILL", None).message


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(
    code=_json | st.sampled_from([each.code for each in ONE_OF_EACH]),
    message=_json,
    facts=_json | st.dictionaries(st.sampled_from(["id", "pid", "code", "fix", "__class__", "self"]), _json),
)
def test_any_frame_makes_an_error_that_can_be_rendered(code: object, message: object, facts: object) -> None:
    error = HoldfastError.from_wire({"code": code, "message": message, "facts": facts})
    assert isinstance(str(error), str)
    json.dumps(error.to_json())
