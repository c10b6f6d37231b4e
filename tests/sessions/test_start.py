"""Every start option: what is taken, what it becomes, and that everything else is refused before anything exists."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.config import Config
from holdfast.core import processes, wire
from holdfast.errors import BadArgument, EmptyCommand, HoldfastError, PlaceUnsupported, TooLarge, Unsupported
from holdfast.home import is_id
from holdfast.model.options import OPTIONS, START_OPTIONS
from holdfast.sessions.start_request import StartRequest, build, current_umask

ENVIRON = {"PATH": "/bin", "HOME": "/h", "HOLDFAST_SESSION_ID": "bouter123"}


def asked(command: Any = "true", environ: dict[str, str] | None = None, **options: Any) -> StartRequest:
    given: Any = options
    return build(command, given, config=Config(), author="api:1", environ=ENVIRON if environ is None else environ)


def spec(**options: Any) -> dict[str, Any]:
    return asked(**options).spec


@pytest.fixture
def opened() -> Iterator[int]:
    fd = os.open("/dev/null", os.O_RDONLY)
    yield fd
    os.close(fd)


def test_a_bare_command_gets_the_defaults_of_the_design() -> None:
    found = spec()
    assert is_id(found["id"])
    assert found["id"][0] == "b"
    assert found["v"] == 1
    expected: dict[str, Any] = {
        "kind": "local_bash",
        "name": None,
        "description": None,
        "owner": None,
        "labels": {},
        "command": "true",
        "shell": "/bin/sh",
        "argv0": None,
        "cwd": os.getcwd(),
        "env_names": ["HOME", "PATH"],
        "env_set": [],
        "clean_env": False,
        "umask": current_umask(),
        "limits": {},
        "memory": None,
        "stdin": "closed",
        "input_bytes": None,
        "merge_stderr": False,
        "pass_fds": [],
        "timeout": None,
        "idle_timeout": None,
        "ttl": None,
        "lifetime": "detached",
        "owner_process": None,
        "key": None,
        "stop_ladder": None,
        "notify": "exit",
        "log_cap": 64 << 20,
        "place": "local",
        "author": "api:1",
        "metadata": {},
        "restarted_from": None,
    }
    assert {name: found[name] for name in expected} == expected


def test_every_option_left_out_and_given_as_none_is_the_same() -> None:
    plain = asked()
    empty = asked(**dict.fromkeys(START_OPTIONS))
    differing = {name for name in plain.spec if plain.spec[name] != empty.spec[name]}
    assert differing <= {"id", "created_at"}
    assert (empty.env, empty.input, empty.replace) == (plain.env, plain.input, plain.replace)


TAKEN: list[tuple[str, Any, Any]] = [
    ("name", "web", "web"),
    ("name", "u\u0308ber", "über"),
    ("owner", "agent-7/task:9", "agent-7/task:9"),
    ("labels", {"a": "b"}, {"a": "b"}),
    ("labels", MappingProxyType({"a": ""}), {"a": ""}),
    ("description", "what it is for", "what it is for"),
    ("kind", "monitor", "monitor"),
    ("kind", "mine", "mine"),
    ("key", "task 9", "task 9"),
    ("cwd", "/usr/../tmp", "/tmp"),
    ("cwd", Path("/tmp"), "/tmp"),
    ("shell", "/bin/bash", "/bin/bash"),
    ("argv0", "-sh", "-sh"),
    ("stdin", "open", "open"),
    ("merge_stderr", True, True),
    ("timeout", 5, 5.0),
    ("timeout", "500ms", 0.5),
    ("idle_timeout", "2h", 7200.0),
    ("ttl", 0.25, 0.25),
    ("memory", "64M", 64 << 20),
    ("memory", 8 << 20, 8 << 20),
    ("limits", {"nofile": 64}, {"nofile": [64, 64]}),
    ("limits", {"nofile": (64, 128), "core": [0, -1]}, {"nofile": [64, 128], "core": [0, -1]}),
    ("umask", 0o077, 0o077),
    ("umask", 0, 0),
    ("oom_score_adj", -5, -5),
    ("grace", 0, 0.0),
    ("grace", "1m", 60.0),
    (
        "stop_ladder",
        [{"signal": "sigint", "wait_s": "2s"}, {"signal": "HUP", "target": "group", "wait_s": 1}],
        [
            {"signal": "INT", "target": "command", "wait_s": 2.0},
            {"signal": "HUP", "target": "group", "wait_s": 1.0},
        ],
    ),
    ("stop_ladder", [], []),
    ("notify", "never", "never"),
    ("metadata", {"a": [1, None, {"b": 2.5}]}, {"a": [1, None, {"b": 2.5}]}),
    ("log_cap", "1MiB", 1 << 20),
    ("place", "local", "local"),
]


@pytest.mark.parametrize("option, given, becomes", TAKEN)
def test_an_acceptable_value_is_written_down_in_its_one_form(option: str, given: Any, becomes: Any) -> None:
    assert spec(**{option: given})[option] == becomes


REFUSED: list[tuple[str, Any]] = [
    ("name", ""),
    ("name", "a/b"),
    ("name", "-x"),
    ("name", "12"),
    ("name", "last"),
    ("name", "a\0"),
    ("name", 7),
    ("name", "x" * 65),
    ("owner", ""),
    ("owner", "x" * 257),
    ("owner", ["a"]),
    ("labels", [("a", "b")]),
    ("labels", "a=b"),
    ("labels", {"a": 1}),
    ("labels", {"a=b": "c"}),
    ("labels", {str(n): "v" for n in range(65)}),
    ("description", 7),
    ("description", "x" * 2000),
    ("kind", 7),
    ("kind", "x" * 100),
    ("key", 7),
    ("key", ""),
    ("key", "x" * 2000),
    ("cwd", 7),
    ("cwd", "a\0b"),
    ("cwd", "\ud800"),
    ("cwd", b"/tmp"),
    ("shell", 7),
    ("shell", "a\0"),
    ("argv0", ["x"]),
    ("argv0", "a\0"),
    ("env", "A=b"),
    ("env", [("A", "b")]),
    ("env", {"": "x"}),
    ("env", {"A=B": "x"}),
    ("env", {"A\0": "x"}),
    ("env", {7: "x"}),
    ("env", {"A": "x\0"}),
    ("env", {"A": 7}),
    ("env", {"A": "\ud800"}),
    ("clean_env", "yes"),
    ("stdin", "maybe"),
    ("stdin", True),
    ("input", 7),
    ("input", ["a"]),
    ("input", "\ud800"),
    ("merge_stderr", "no"),
    ("merge_stderr", 1),
    ("replace", "no"),
    ("replace", True),
    ("timeout", 0),
    ("timeout", -1),
    ("timeout", "soon"),
    ("timeout", "5 fortnights"),
    ("timeout", float("inf")),
    ("timeout", float("nan")),
    ("timeout", True),
    ("timeout", [5]),
    ("idle_timeout", 0),
    ("ttl", "0s"),
    ("memory", (8 << 20) - 1),
    ("memory", "64MB"),
    ("memory", -1),
    ("limits", ["nofile"]),
    ("limits", {"nosuch": 1}),
    ("limits", {7: 1}),
    ("limits", {"nofile": "many"}),
    ("limits", {"nofile": (1, 2, 3)}),
    ("limits", {"nofile": (2, 1)}),
    ("limits", {"nofile": (-1, 1)}),
    ("limits", {"nofile": -2}),
    ("limits", {"nofile": 1.5}),
    ("umask", 0o1000),
    ("umask", -1),
    ("umask", "022"),
    ("umask", True),
    ("oom_score_adj", 1001),
    ("oom_score_adj", -1001),
    ("oom_score_adj", "0"),
    ("grace", -1),
    ("grace", "long"),
    ("stop_ladder", "TERM"),
    ("stop_ladder", ["TERM"]),
    ("stop_ladder", [{}]),
    ("stop_ladder", [{"signal": "NOPE", "wait_s": 1}]),
    ("stop_ladder", [{"signal": "TERM", "target": "everyone", "wait_s": 1}]),
    ("stop_ladder", [{"signal": "TERM", "wait_s": -1}]),
    ("notify", "sometimes"),
    ("notify", ["exit"]),
    ("lifetime", "forever"),
    ("owner_pid", 1),
    ("pass_fds", 5),
    ("pass_fds", [2]),
    ("pass_fds", [-1]),
    ("pass_fds", ["5"]),
    ("pass_fds", [True]),
    ("pass_fds", [999_999]),
    ("pass_fds", [2**40]),
    ("metadata", [1]),
    ("metadata", {"a": {1, 2}}),
    ("metadata", {"a": float("nan")}),
    ("log_cap", OPTIONS["log_cap"].low - 1),
    ("log_cap", "none"),
    ("ready", {"port": 1, "bogus": 2}),
    ("ready", {"port": 1, "http": "http://127.0.0.1/"}),
    ("ready", {"line": "up", 7: 2}),
    ("ready", {"all": ["port:1"], "any": ["port:2"]}),
    ("ready", {"any": [{"line": "up", "statuses": [200]}]}),
    ("health", {"port": 1, "bogus": 2}),
    ("health", {"command": ["true"], "interval": 5, "timeout": 1}),
]


@pytest.mark.parametrize("option, given", REFUSED, ids=lambda value: ascii(value)[:30])
def test_an_unacceptable_value_is_refused_by_name_with_a_fix(option: str, given: Any) -> None:
    with pytest.raises(BadArgument) as refusal:
        asked(**{option: given})
    reported = refusal.value.argument
    assert reported == option or reported.startswith(("label", "limit")), reported
    assert refusal.value.fix
    assert len(str(refusal.value)) < 400


def test_every_option_of_the_surface_is_tested_here() -> None:
    later = {"tty", "size", "notify_people", "watch", "soft", "heartbeat", "ready", "health", "monitor", "restart"}
    tested = {option for option, _ in REFUSED} | {option for option, _, _ in TAKEN} | later
    assert tested == START_OPTIONS


@pytest.mark.parametrize("place", ["modal:one", "kubernetes:1", "nonsense"])
def test_a_place_that_we_know_no_way_to_is_refused(place: str) -> None:
    with pytest.raises(PlaceUnsupported, match=place):
        asked(place=place)


@pytest.mark.parametrize("place", [7, "ssh", "ssh:", "ssh:-oProxyCommand=x", "docker:a\nb", "podman:" + "x" * 300])
def test_a_place_without_a_name_is_refused(place: Any) -> None:
    with pytest.raises(BadArgument, match="place"):
        asked(place=place)


@pytest.mark.parametrize("option, given", [("pass_fds", {7: 0}), ("lifetime", "owner")])
def test_what_is_of_this_machine_is_not_handed_to_another_place(option: str, given: Any) -> None:
    with pytest.raises(Unsupported, match=option):
        asked(place="ssh:host", **{option: given})


def test_an_unknown_option_is_named_with_the_known_ones() -> None:
    with pytest.raises(BadArgument, match=r"timeot.*idle_timeout"):
        asked(timeot=5)


@pytest.mark.parametrize("command", ["", "  \n", [], [""], ["", "x"], ()])
def test_an_empty_command_is_refused_as_that(command: Any) -> None:
    with pytest.raises(EmptyCommand):
        asked(command)


@pytest.mark.parametrize(
    "command", [None, 7, b"ls", [b"ls"], ["ls", 7], ["ls", None], "a\0b", ["a", "b\0"], ["\ud800"]]
)
def test_a_command_that_no_program_can_be_given_is_refused(command: Any) -> None:
    with pytest.raises(BadArgument, match="command"):
        asked(command)


def test_a_command_is_kept_word_for_word() -> None:
    odd = ["sh", "", " ", "$x", os.fsdecode(b"\xff"), "ü\n"]
    assert asked(odd).spec["command"] == odd
    assert asked(tuple(odd)).spec["command"] == odd
    assert asked([Path("/bin/ls")]).spec["command"] == ["/bin/ls"]
    assert asked("  echo  'x' ").spec["command"] == "  echo  'x' "


def test_the_environment_is_ours_changed_by_what_was_given_and_the_spec_has_names_alone() -> None:
    request = asked(env={"SECRET": "s3cret", "HOME": None, "PATH": "/x"})
    assert request.env == {"PATH": "/x", "SECRET": "s3cret"}
    assert request.spec["env_names"] == ["PATH", "SECRET"]
    assert request.spec["env_set"] == ["HOME", "PATH", "SECRET"]
    assert "s3cret" not in repr(request.spec)
    clean = asked(clean_env=True, env={"ONLY": "this"})
    assert clean.env == {"ONLY": "this"}


def test_a_refused_value_of_a_variable_is_not_repeated() -> None:
    with pytest.raises(BadArgument) as refusal:
        asked(env={"TOKEN": "s3cret\0"})
    assert "TOKEN" in str(refusal.value)
    assert "s3cret" not in str(refusal.value)


def test_input_opens_stdin_and_contradicting_it_is_refused() -> None:
    request = asked(input="ü\n")
    assert (request.input, request.spec["stdin"]) == ("ü\n".encode(), "open")
    assert asked(input=bytearray(b"x"), stdin="open").input == b"x"
    assert asked(input=b"").spec["stdin"] == "open"
    with pytest.raises(BadArgument, match="closed stdin"):
        asked(input="x", stdin="closed")


def test_what_is_too_large_is_refused_with_the_limit() -> None:
    with pytest.raises(TooLarge) as refusal:
        asked(input=bytes((8 << 20) + 1))
    assert refusal.value.limit == 8 << 20
    assert asked(input=bytes(8 << 20)).input is not None
    with pytest.raises(TooLarge):
        asked(metadata={"a": "x" * (64 << 10)})


def test_passed_descriptors_are_checked_to_be_open_and_counted_once(opened: int) -> None:
    assert spec(pass_fds=[opened, opened])["pass_fds"] == [opened]
    assert spec(pass_fds=range(opened, opened + 1))["pass_fds"] == [opened]
    with pytest.raises(BadArgument, match="one start can take"):
        asked(pass_fds=[opened] * 300)


def test_an_owned_session_names_its_owner_by_pid_and_start() -> None:
    me = os.getpid()
    assert spec(lifetime="owner")["owner_process"] == {"pid": me, "start": processes.start_time(me)}
    assert spec(lifetime="owner", owner_pid=me)["owner_process"]["pid"] == me
    for pid in (0, -1, 2**31, "1", 2**22 + 1):
        with pytest.raises(BadArgument, match="owner_pid"):
            asked(lifetime="owner", owner_pid=pid)


def test_replacing_needs_something_to_replace() -> None:
    assert asked(replace=True, key="k").replace
    assert asked(replace=True, name="n").replace
    with pytest.raises(BadArgument, match="replace"):
        asked(replace=True)


def test_each_start_has_an_id_of_its_own_whose_letter_is_the_kind() -> None:
    ids = {spec(kind=kind)["id"] for kind in ("local_bash", "monitor", "mine") for _ in range(50)}
    assert len(ids) == 150
    assert {id[0] for id in ids} == {"b", "m", "x"}


def test_the_umask_is_read_without_being_changed() -> None:
    before = os.umask(0o027)
    try:
        assert spec()["umask"] == 0o027
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.binary(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(START_OPTIONS)), anything)
def test_any_value_of_any_option_is_taken_or_refused_with_a_type(option: str, value: Any) -> None:
    try:
        request = asked(**{option: value})
    except HoldfastError:
        return
    # What was taken can be sent, and comes out the same.
    frame = {"type": "start", "spec": request.spec, "env": request.env}
    assert wire.Decoder(wire.START_MAX_BYTES).feed(wire.control(frame)) == [frame]


@given(anything)
def test_any_command_is_taken_or_refused_with_a_type(command: Any) -> None:
    try:
        asked(command)
    except HoldfastError:
        pass


def test_every_signal_of_the_system_can_stand_in_a_ladder() -> None:
    names = [number.name for number in signal.Signals]
    ladder = spec(stop_ladder=[{"signal": name, "wait_s": 0} for name in names])["stop_ladder"]
    assert [rung["signal"] for rung in ladder] == [name.removeprefix("SIG") for name in names]


def test_a_shell_is_a_program_or_all_words_before_the_command() -> None:
    assert spec(shell="/bin/dash")["shell"] == "/bin/dash"
    assert spec(shell=["/bin/sh", "-c", 'eval "$1"', "sh"])["shell"] == ["/bin/sh", "-c", 'eval "$1"', "sh"]
    for wrong in ([], [""], ["sh", 1], ["sh", "a\0"]):
        with pytest.raises(BadArgument):
            spec(shell=wrong)
