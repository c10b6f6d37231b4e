"""The nouns: what a session looks like from its records, and how people write durations and sizes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import model
from holdfast.errors import BadArgument, NotFound
from holdfast.model import (
    SESSION_KEYS,
    Collected,
    Exit,
    Finding,
    Recovered,
    Stopped,
    Woke,
    rfc3339,
    seconds,
    size_bytes,
    snapshot,
    status_of,
)
from holdfast.model.options import OPTIONS, START_OPTIONS, StartOptions
from holdfast.sessions.wait import WAIT_OPTIONS, WaitConditions

SRC = Path(__file__).resolve().parent.parent / "src"

# The examples of docs/formats.md.
SPEC: dict[str, Any] = {
    "v": 1,
    "id": "b7k2m9qa1",
    "kind": "local_bash",
    "name": None,
    "description": None,
    "owner": None,
    "labels": {},
    "command": "echo hi",
    "cwd": "/w",
    "place": "local",
    "metadata": {"mine": 1},
    "restarted_from": None,
    "created_at": "2026-08-01T09:14:07.412Z",
}
STATE: dict[str, Any] = {
    "v": 1,
    "boot": "b",
    "runner": {"pid": 10, "start": 123},
    "command": {"pid": 11, "start": 124, "line": ["sh", "-c", "echo hi"]},
    "pgid": 11,
    "endpoint": "/run/user/0/holdfast/b7k2m9qa1.sock",
    "started_at": "2026-08-01T09:14:07.420Z",
    "attempt": 1,
    "changed": {"name": "web"},
}
EXIT: dict[str, Any] = {
    "v": 1,
    "exit": {
        "code": 0,
        "signal": None,
        "cause": "exit",
        "by": None,
        "oom": False,
        "complete": True,
        "survivors": [],
        "of_a_later_version": 1,
    },
    "started_at": "2026-08-01T09:14:07.420Z",
    "ended_at": "2026-08-01T09:14:07.430Z",
    "ends": {"stdout": 300, "stderr": 0},
    "dropped_before": {"stdout": 100, "stderr": 0},
    "gaps": [],
    "error": None,
}
NOW = "2026-08-01T10:00:00.000Z"


def _exit(cause: str, code: int | None = None, signal: str | None = None) -> Exit:
    return Exit(code, signal, cause)


def test_session_keys_are_those_of_the_design_in_their_order() -> None:
    assert " ".join(SESSION_KEYS) == (
        "id kind name description owner labels command cwd tty size state status stopping pid runner_pid "
        "runner_version place created_at started_at ended_at attempt desired exit cursor ends dropped_before log_bytes "
        "last_output_at attached needs_input health in_process endpoint observed_at metadata condition"
    )


@pytest.mark.parametrize(
    "state, exit, status",
    [
        ("starting", None, "pending"),
        ("running", None, "running"),
        ("unreachable", None, "running"),
        ("stale", None, "running"),
        ("lost", None, "failed"),
        ("lost", _exit("lost"), "failed"),
        ("exited", _exit("exit", 0), "completed"),
        ("exited", _exit("exit", 7), "failed"),
        ("exited", _exit("signal", None, "SIGSEGV"), "failed"),
        ("exited", _exit("spawn_error"), "failed"),
        ("exited", _exit("out_of_memory", None, "SIGKILL"), "failed"),
        ("exited", _exit("stop", 0), "killed"),
        ("exited", _exit("stop", None, "SIGTERM"), "killed"),
        ("exited", _exit("owner_gone", None, "SIGTERM"), "killed"),
        ("exited", _exit("overall_timeout", None, "SIGTERM"), "killed"),
        ("exited", _exit("idle_timeout", None, "SIGTERM"), "killed"),
        ("exited", _exit("ttl", None, "SIGTERM"), "killed"),
    ],
)
def test_every_state_and_cause_is_one_of_five_statuses(state: str, exit: Exit | None, status: str) -> None:
    assert status_of(state, exit) == status
    assert status in model.STATUSES
    assert state in model.STATES


def test_groups_of_states_and_causes_are_whole() -> None:
    assert set(model.LIVE_STATES) | set(model.FINAL_STATES) == set(model.STATES)
    assert len(set(model.CAUSES)) == len(model.CAUSES) == 10


def test_ended_session_is_reported_from_its_files_alone() -> None:
    found = snapshot(SPEC, STATE, EXIT, observed_state="exited", observed_at=NOW)
    assert found.to_json() == {
        "id": "b7k2m9qa1",
        "kind": "local_bash",
        "name": "web",
        "description": "web",
        "owner": None,
        "labels": {},
        "command": "echo hi",
        "cwd": "/w",
        "tty": False,
        "size": None,
        "state": "exited",
        "status": "completed",
        "stopping": None,
        "pid": 11,
        "runner_pid": 10,
        "runner_version": None,
        "place": "local",
        "created_at": "2026-08-01T09:14:07.412Z",
        "started_at": "2026-08-01T09:14:07.420Z",
        "ended_at": "2026-08-01T09:14:07.430Z",
        "attempt": 1,
        "desired": {"state": "up", "epoch": 1},
        "exit": {
            "code": 0,
            "signal": None,
            "cause": "exit",
            "by": None,
            "stopped": None,
            "oom": False,
            "complete": True,
            "survivors": [],
            "survivors_more": 0,
        },
        "cursor": "stdout:300,stderr:0",
        "ends": {"stdout": 300, "stderr": 0},
        "dropped_before": {"stdout": 100, "stderr": 0},
        "log_bytes": 200,
        "last_output_at": None,
        "attached": {"control": 0, "observe": 0},
        "needs_input": None,
        "health": None,
        "in_process": False,
        "endpoint": "/run/user/0/holdfast/b7k2m9qa1.sock",
        "observed_at": NOW,
        "metadata": {"mine": 1},
        "condition": "exited",
    }
    assert tuple(found.to_json()) == SESSION_KEYS


def test_runner_that_answers_has_the_last_word() -> None:
    live = {
        "state": "running",
        "pid": 11,
        "name": None,
        "owner": "agent-7",
        "labels": {"a": "b"},
        "description": "new",
        "ends": {"stdout": 5},
        "dropped_before": {"stdout": 0},
        "log_bytes": 5,
        "last_output_at": NOW,
        "stopping": {"by": "cli:root", "since": NOW, "stage": "command"},
        "stopped_by_signal": "SIGSTOP",
        "exit": None,
    }
    found = snapshot(SPEC, STATE, None, live, observed_state="running", observed_at=NOW)
    assert (found.name, found.owner, found.labels, found.description) == (None, "agent-7", {"a": "b"}, "new")
    assert (found.cursor, found.log_bytes, found.last_output_at) == ("stdout:5", 5, NOW)
    assert found.stopping is not None
    assert found.desired == {"state": "down", "epoch": 2}
    assert found.exit is None
    assert found.status == "running"
    assert found.metadata == {"mine": 1, "stopped_by_signal": "SIGSTOP"}


def test_session_that_never_got_a_state_is_reported_too() -> None:
    found = snapshot(SPEC, None, None, observed_state="starting", observed_at=NOW)
    assert (found.state, found.status, found.pid, found.runner_pid) == ("starting", "pending", None, None)
    assert (found.started_at, found.ended_at, found.endpoint, found.cursor) == (None, None, None, "0")


def test_lost_session_has_an_unknown_exit() -> None:
    found = snapshot(SPEC, STATE, None, {"ends": {"stdout": 9}}, observed_state="lost", observed_at=NOW)
    assert found.exit == Exit(None, None, "lost", complete=False)
    assert found.status == "failed"
    assert found.ends == {"stdout": 9}


def test_stopped_session_was_wanted_down() -> None:
    record = {**EXIT, "exit": {"code": None, "signal": "SIGTERM", "cause": "stop", "by": "cli:root"}}
    found = snapshot(SPEC, STATE, record, observed_state="exited", observed_at=NOW)
    assert found.desired["state"] == "down"
    assert found.status == "killed"
    assert found.exit is not None
    assert found.exit.by == "cli:root"


def test_spawn_error_stands_in_the_metadata() -> None:
    error = {"errno": 2, "step": "exec", "path": "/x", "message": "No such file"}
    record = {**EXIT, "exit": {"code": None, "signal": None, "cause": "spawn_error"}, "error": error}
    found = snapshot(SPEC, None, record, observed_state="exited", observed_at=NOW)
    assert found.metadata["error"] == error


def test_argv_is_quoted_and_a_long_command_cut() -> None:
    spec = {**SPEC, "command": ["printf", "%s", "a b"]}
    assert snapshot(spec, None, None, observed_state="starting", observed_at=NOW).command == "printf %s 'a b'"
    spec = {**SPEC, "command": "x" * 5000}
    assert len(snapshot(spec, None, None, observed_state="starting", observed_at=NOW).command) == 512


def test_snapshot_does_not_change_the_records() -> None:
    before = json.dumps([SPEC, STATE, EXIT])
    found = snapshot(SPEC, STATE, EXIT, observed_state="exited", observed_at=NOW)
    found.labels["x"] = "y"
    found.metadata["x"] = "y"
    found.ends["stdout"] = 0
    assert json.dumps([SPEC, STATE, EXIT]) == before


def test_results_render_as_json() -> None:
    session = snapshot(SPEC, STATE, EXIT, observed_state="exited", observed_at=NOW)
    woke = Woke("match", cursor="stdout:3", match="hi", session=session)
    assert woke.to_json()["session"] == session.to_json()
    assert tuple(woke.to_json()) == ("reason", "cursor", "match", "signal_id", "session")
    stopped = Stopped("b7k2m9qa1", error=NotFound("b7k2m9qa1"))
    assert stopped.to_json()["error"]["code"] == "not-found"
    assert not stopped.done
    assert Stopped("b7k2m9qa1", already=True).done
    assert not Stopped("b7k2m9qa1", survivors=[{"pid": 12}]).done
    recovered = Recovered(live=[session], took_s=0.5)
    assert recovered.to_json()["live"] == [session.to_json()]
    for result in (woke, stopped, recovered, Collected(removed=["b7k2m9qa1"]), Finding("home", "ok", "fine")):
        assert json.loads(json.dumps(result.to_json())) == result.to_json()
        assert type(result).__name__ in repr(result)


def test_every_start_option_has_a_type_and_a_row_in_the_same_order() -> None:
    assert list(StartOptions.__annotations__) == list(OPTIONS)


def test_every_condition_of_a_wait_has_a_type_and_a_row_in_the_same_order() -> None:
    assert list(WaitConditions.__annotations__) == list(WAIT_OPTIONS)


def test_start_options_are_all_there() -> None:
    assert " ".join(sorted(START_OPTIONS)) == (
        "argv0 clean_env cwd description env grace health heartbeat idle_timeout input key kind labels "
        "lifetime limits log_cap memory merge_stderr metadata monitor name notify notify_people oom_score_adj owner "
        "owner_pid pass_fds place ready replace restart shell size soft stdin stop_ladder timeout ttl "
        "tty umask watch"
    )


@pytest.mark.parametrize(
    "code, signal, shown",
    [
        (0, None, 0),
        (3, None, 3),
        (None, "SIGKILL", 137),
        (None, "SIG35", 163),
        (None, "SIGRTMIN", 162),
        (None, None, None),
    ],
)
def test_an_exit_knows_the_code_that_a_shell_would_show(
    code: int | None, signal: str | None, shown: int | None
) -> None:
    from holdfast.model.events import Exit as ExitEvent

    assert Exit(code, signal, "exit").shell_code == shown
    assert ExitEvent(code, signal, "exit", True, False).shell_code == shown


@pytest.mark.parametrize(
    "value, expected",
    [
        (5, 5.0),
        (0.5, 0.5),
        ("500ms", 0.5),
        ("10s", 10),
        ("5m", 300),
        ("2h", 7200),
        ("7d", 604800),
        ("1.5", 1.5),
        (" 3 s ", 3),
    ],
)
def test_durations_as_people_write_them(value: object, expected: float) -> None:
    found = seconds(value)
    assert found == expected
    assert isinstance(found, float)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "s",
        "-1",
        -1,
        "1e3",
        "1_0",
        "٣",
        "5 weeks",
        "5S",
        "inf",
        float("inf"),
        float("nan"),
        True,
        None,
        [5],
        pytest.param(1 << 20000, id="huge"),
    ],
)
def test_odd_duration_is_refused(value: object) -> None:
    with pytest.raises(BadArgument, match="500ms") as caught:
        seconds(value, "timeout")
    assert caught.value.argument == "timeout"


@pytest.mark.parametrize(
    "value, expected",
    [
        (0, 0),
        (4096, 4096),
        ("12", 12),
        ("512K", 512 << 10),
        ("64M", 64 << 20),
        ("64MiB", 64 << 20),
        ("1.5k", 1536),
        ("4g", 4 << 30),
    ],
)
def test_sizes_as_people_write_them(value: object, expected: int) -> None:
    assert size_bytes(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        "M",
        "64MB",
        "64 parsecs",
        "0.3",
        0.5,
        -1,
        "-1",
        True,
        None,
        float("nan"),
        float("inf"),
        1 << 60,
        "9" * 41,
    ],
)
def test_odd_size_is_refused(value: object) -> None:
    with pytest.raises(BadArgument, match="64M"):
        size_bytes(value, "memory")


_anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=50) | st.binary(max_size=5)
_amounts = st.from_regex(r"[0-9]{0,20}(\.[0-9]{0,5})?( )?[a-zA-Z]{0,3}", fullmatch=True)


@given(_anything | _amounts)
def test_any_value_is_a_bounded_number_or_a_typed_error(value: object) -> None:
    try:
        assert 0 <= seconds(value) <= model.session.LONGEST_S
    except BadArgument:
        pass
    try:
        assert 0 <= size_bytes(value) <= model.session.LARGEST_BYTES
    except BadArgument:
        pass


def test_times_are_rfc_3339_with_milliseconds() -> None:
    assert rfc3339(0) == "1970-01-01T00:00:00.000Z"
    assert rfc3339(1785575647412999999) == "2026-08-01T09:14:07.412Z"


def test_model_imports_nothing_heavy() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import holdfast.config\n"
        "heavy = 'typing dataclasses pathlib subprocess logging asyncio inspect tomllib re'.split()\n"
        "found = (set(sys.modules) - before).intersection(heavy)\n"
        "assert not found, found\n"
    )
    subprocess.run([sys.executable, "-S", "-c", code], env={"PYTHONPATH": str(SRC)}, check=True)
