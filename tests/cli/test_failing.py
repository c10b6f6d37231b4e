"""Every error as text and exit code; streams that are closed, full or gone; words that are wrong."""

from __future__ import annotations

import json
import re
import signal
import subprocess

import pytest

from cli.conftest import Start
from cli.outer import Outer
from holdfast import errors
from holdfast.cli.output import complain, in_command_line_terms
from support.faults import kill_runner, sweep_up, wedged
from support.world import World


def failed(world: World, *words: object, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """The exit code, the message and the fix. The same as JSON says the same; stdout stays empty."""
    done = world.hold(*words, env=env)
    assert done.stdout == ""
    message, fix = done.stderr.rstrip("\n").split("\n")
    assert message.startswith("hold: ")
    assert fix.startswith("fix: ")
    place = words.index("--") if "--" in words else len(words)
    as_json = world.hold(*words[:place], "--json", *words[place:], env=env)
    assert as_json.stdout == ""
    reported = json.loads(as_json.stderr)
    assert (as_json.returncode, sorted(reported)) == (done.returncode, ["code", "facts", "fix", "message"])
    assert reported["fix"] == fix.removeprefix("fix: ")
    return done.returncode, message.removeprefix("hold: "), reported["code"]


Case = tuple[tuple[object, ...], int, str, str]

WRONG: dict[str, Case] = {
    "no such session": (("status", "nobody"), 3, "not-found", "no such session: 'nobody'"),
    "no last session": (("logs", "last"), 3, "not-found", "no such session: 'last'"),
    "no session given": (("stop",), 2, "bad-request", "stop: no session given"),
    "ids and a filter": (("stop", "x", "--all"), 2, "bad-request", "stop: give ids, or one of"),
    "no command": (("run",), 2, "bad-request", "run: no command given"),
    "nothing behind the dashes": (("start", "--"), 2, "bad-request", "start: no command given"),
    "an empty command": (("start", "--", ""), 2, "empty-command", "the command is empty"),
    "an unknown option": (("ls", "--bogus"), 2, "bad-request", "ls: unrecognized arguments: --bogus"),
    "a missing argument": (("search", "x"), 2, "bad-request", "search: the following arguments are required: PATTERN"),
    "two excluding options": (("logs", "x", "-n", "1", "--since", "0"), 2, "bad-request", "logs: argument --since"),
    "a bad duration": (("run", "--wait", "soon", "--", "true"), 2, "bad-argument", "--wait: 'soon' cannot"),
    "a bad size": (("start", "--memory", "1Q", "--", "true"), 2, "bad-argument", "--memory: '1Q' has no known unit"),
    "a bad pair": (("start", "--label", "x", "--", "true"), 2, "bad-argument", "--label: 'x' is not KEY=VALUE"),
    "a bad number": (("logs", "x", "-n", "-3"), 2, "bad-argument", "-n: '-3' is not a whole number"),
    "a bad name": (("start", "--name", "a/b", "--", "true"), 2, "bad-argument", "--name: has a /"),
    "a bad lifetime": (
        ("start", "--lifetime", "call", "--", "true"),
        2,
        "bad-argument",
        "--lifetime: `call` works only with `hold run`",
    ),
    "a missing program": (("run", "--", "/nowhere/x"), 127, "spawn-error", "the command could not be started: exec"),
    "a missing directory": (("start", "--cwd", "/nowhere", "--", "true"), 1, "spawn-error", "the command could not"),
    "a missing input": (("run", "--input", "none", "--", "true"), 125, "error", "none: No such file or directory"),
    "a place": (("start", "--place", "moon:base", "--", "true"), 1, "place-unsupported", "cannot start a runner"),
    "a size": (("start", "--tty", "--size", "0x80", "--", "true"), 2, "bad-size", "not a terminal size"),
    "a bad pattern": (
        ("start", "--watch", "/(a+)+$/", "--", "true"),
        2,
        "bad-argument",
        "--watch: '(a+)+$': a repetition",
    ),
    "a bad probe": (("start", "--ready", "port:0", "--", "true"), 2, "bad-argument", "--ready: 0 is not a port"),
    "half a probe": (("start", "--ready-any", "--", "true"), 2, "bad-argument", "--ready-any: changes --ready"),
    "a bad policy": (("start", "--restart", "maybe", "--", "true"), 2, "bad-request", "start: argument --restart"),
    "no such signal": (("ack", "nonsense"), 2, "bad-argument", "SIGNAL: 'nonsense' is not the id of a signal"),
    "a signal of an unknown session": (("ack", "b00000000.1"), 3, "not-found", "no such session: 'b00000000'"),
    "several up to": (("ack", "home.1", "home.2", "--upto"), 2, "bad-request", "ack: --upto takes one signal"),
    "no such consumer": (("signals", "--consumer", "x"), 1, "not-found", "no consumer 'x'"),
    "neither on nor off": (("notify", "maybe", "x"), 2, "bad-request", "notify: argument action: invalid choice"),
    "parked and followed": (("signals", "--parked", "-f"), 2, "bad-request", "signals: --parked cannot be combined"),
}


# A keyword of Python, or a fix that fixes nothing.
PYTHON = re.compile(r"\b[a-z]+_[a-z_]+\b|\b[a-z]+=(True|False|None|'|\"|$|[ ,;])|\b[a-z]+\(\)")
USELESS = ("give a valid value", "see `hold doctor`")

# What people get wrong, and a part of the fix that is printed.
MISTAKES: dict[tuple[str, ...], str] = {
    ("start", "--log-cap", "10", "--", "true"): "give at least",
    ("start", "--input", "nofile", "--", "true"): "check the path",
    ("start", "--input", "/", "--", "true"): "not a directory",
    ("start", "--idle-timeout", "0", "--", "true"): "leave it out",
    ("start", "--memory", "0", "--", "true"): "leave it out",
    ("start", "--replace", "--", "true"): "give --key or --name too",
    ("start", "--tty", "--stdin", "closed", "--", "true"): "leave stdin out",
    ("start", "--input", "/dev/null", "--stdin", "closed", "--", "true"): "--stdin open",
    ("start", "--place", "moon:base", "--", "true"): "ssh:HOST",
    ("start", "--place", "ssh:", "--", "true"): "ssh:NAME",
    ("start", "--pass-fd", "77", "--", "true"): "77<FILE",
    ("start", "--owner-pid", "1", "--", "true"): "--lifetime owner",
    ("start", "--lifetime", "owner", "--owner-pid", "4194399", "--", "true"): "a process that runs",
    ("start", "--lifetime", "call", "--", "true"): "`hold run`",
    ("start", "--label", "a:b=c", "--", "true"): "use . or -",
    ("start", "--env", "=x", "--", "true"): "",
    ("start", "--foreground", "zz", "--", "true"): "#1e1e2e",
    ("start", "--size", "0x0", "--", "true"): "columns from 1",
    ("start", "--health", "nothing", "--", "true"): "port:3000",
    ("start", "--ready", "nothing", "--", "true"): "port:3000",
    ("start", "--stop-ladder", "X:1", "--", "true"): "TERM/group:5s",
    ("start", "--notify", "always", "--", "true"): "hold start --help",
    ("kill", "-99", "ID"): "such as HUP",
    ("kill", "-s", "HPU", "ID"): "did you mean HUP?",
    ("keys", "ID", "Entr"): "did you mean Enter",
    ("keys", "ID", "Enter"): "--tty",
    ("screen", "ID"): "--tty",
    ("attach", "ID"): "--tty",
    ("resize", "ID", "10x10"): "--tty",
    ("send", "ID", "x"): "--stdin open",
    ("eof", "ID"): "--stdin open",
    ("wait", "ID", "--ready"): "start it with --ready",
    ("wait", "ID", "--match", "("): "",
    ("wait", "ID", "--port", "99999"): "from 1 to 65535",
    ("search", "ID", "("): "",
    ("logs", "ID", "--since", "x"): "cursor",
    ("logs", "ID", "--since", "stdout:999999"): "earlier read",
    ("export", "ID", "/nowhere/x"): "",
    ("rm", "ID"): "hold stop",
    ("signals", "--consumer", "a b"): "",
    ("serve", "--bind", "300.1.1.1"): "such as 127.0.0.1",
    ("serve", "--tls-cert", "x"): "--tls-key",
    ("mcp", "--print-config", "nobody"): "",
    ("open",): "`hold serve`",
    ("notify", "--command", ""): "name a program",
}


@pytest.mark.covers("habits:5")
@pytest.mark.parametrize("words", MISTAKES, ids=" ".join)
def test_no_error_names_a_keyword_of_python_and_every_fix_is_one(
    world: World, start: Start, words: tuple[str, ...]
) -> None:
    id = start("forever") if "ID" in words else ""
    done = world.hold(*[id if word == "ID" else word for word in words])
    assert done.returncode != 0
    said = done.stderr.replace(id, "ID") if id else done.stderr
    assert not PYTHON.search(said), said
    fix = said.partition("fix: ")[2].strip()
    assert fix not in ("", *USELESS), said
    assert MISTAKES[words] in fix


@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_with_the_fix(world: World, case: str) -> None:
    words, code, slug, begin = WRONG[case]
    returncode, message, reported = failed(world, *words)
    assert (returncode, reported) == (code, slug)
    assert message.startswith(begin)
    assert world.hold("run", "--", "echo", "fine").stdout == "fine\n"


def test_a_session_that_ended_takes_no_input_and_no_signal(world: World, start: Start) -> None:
    id = start("exit", 3)
    world.hold("wait", id, "--exit", "--timeout", "30s", check=True)
    code, message, reported = failed(world, "send", id, "x")
    assert (code, reported) == (4, "session-ended")
    assert message.startswith(f"session {id} ended with code 3")
    done = world.hold("kill", "-s", "HUP", id)
    assert done.returncode == 4
    assert f"session {id} ended" in done.stderr


@pytest.mark.parametrize("words", [("export",), ("screen", "-o")])
def test_a_file_that_cannot_be_written_is_named_as_it_was_given(
    world: World, start: Start, words: tuple[str, ...]
) -> None:
    id = start("forever", options=("--tty",))
    done = world.hold(words[0], id, *words[1:], "/nowhere/x")
    assert (done.returncode, done.stderr.split("\n")[0]) == (1, "hold: /nowhere/x: No such file or directory")


def test_a_closed_input_is_said_to_be_closed(world: World, start: Start) -> None:
    id = start("forever")
    code, message, reported = failed(world, "send", id, "x")
    assert (code, reported) == (4, "stdin-closed")
    assert "started with stdin closed" in message
    assert failed(world, "eof", id)[0] == 4


def test_an_input_that_is_not_read_is_busy_or_too_large(world: World, start: Start) -> None:
    id = start("forever", options=("--stdin", "open"))
    half = "x" * 100_000
    for _ in range(20):
        done = world.hold("send", id, half)
        if done.returncode:
            break
    assert done.returncode == 1
    assert "the input queue is full" in done.stderr
    assert "fix: try again shortly" in done.stderr


def test_a_bad_cursor_and_one_ahead_are_distinguished(world: World, start: Start) -> None:
    id = start("forever")
    world.hold("wait", id, "--match", "ready", "--timeout", "30s", check=True)
    assert failed(world, "logs", id, "--since", "yesterday")[::2] == (2, "bad-cursor")
    assert failed(world, "logs", id, "--since", "stdout:99")[::2] == (2, "offset-ahead")


def test_a_bad_pattern_names_the_place(world: World, start: Start) -> None:
    id = start("forever")
    code, message, reported = failed(world, "search", id, "a(b")
    assert (code, reported) == (2, "bad-argument")
    assert "regular expression" in message


def test_a_name_and_a_key_have_one_holder(world: World, start: Start) -> None:
    id = start("forever", options=("--name", "web", "--key", "k"))
    code, message, reported = failed(world, "start", "--name", "web", "--", "true")
    assert (code, reported) == (4, "name-taken")
    assert id in message
    assert failed(world, "start", "--key", "k", "--", "true")[::2] == (4, "key-reused")


def test_a_removed_session_is_distinguished_from_one_that_never_existed(world: World, start: Start) -> None:
    id = start("exit", 0)
    world.hold("wait", id, "--exit", "--timeout", "30s", check=True)
    world.hold("rm", id, check=True)
    assert failed(world, "logs", id) == (3, f"session {id} was removed", "removed")


def test_an_ambiguous_prefix_lists_the_candidates(world: World) -> None:
    # Ids are random: two that begin alike are made of one session and its copy.
    id = world.hold("start", "--", "true", check=True).stdout.strip()
    world.hold("wait", id, "--exit", check=True)
    twin = id[:6] + "zzz" if id[6:] != "zzz" else id[:6] + "yyy"
    world.session(twin).mkdir(mode=0o700)
    for path in world.session(id).iterdir():
        (world.session(twin) / path.name).write_text(path.read_text().replace(id, twin))
    code, message, reported = failed(world, "status", id[:6])
    assert (code, reported) == (2, "ambiguous-id")
    assert id in message
    assert twin in message


def test_a_silent_runner_and_a_lost_one_are_distinguished(world: World, start: Start) -> None:
    hf = world.open()
    session = hf.get(start("forever", options=("--stdin", "open")))
    with wedged(session):
        env = {"HOLDFAST_HOSTS_REPLY_TIMEOUT": "200ms", "HOLDFAST_HOSTS_SWEEP_TIMEOUT": "200ms"}
        code, message, reported = failed(world, "send", session.id, "x", env=env)
        assert (code, reported) == (5, "unreachable")
        assert f"(pid {session.runner_pid})" in message
    kill_runner(session)
    code, message, reported = failed(world, "send", session.id, "x")
    assert (code, reported) == (5, "runner-gone")
    assert f"alive as pid {session.pid}" in message
    assert world.hold("stop", session.id, "--grace", "0").returncode == 0
    sweep_up(world, hf)


def test_a_record_that_was_changed_is_not_believed(world: World, start: Start) -> None:
    id = start("forever", options=("--stdin", "open"))
    path = world.session(id) / "state.json"
    state = json.loads(path.read_text())
    path.write_text(json.dumps({**state, "nonce": "0" * 32}))
    code, message, reported = failed(world, "send", id, "x")
    assert (code, reported) == (5, "identity-mismatch")
    assert "nonce" in message
    path.write_text(json.dumps(state))
    assert world.hold("send", id, "x").returncode == 0


def test_a_damaged_record_names_the_file(world: World, start: Start) -> None:
    id = start("exit", 0)
    world.hold("wait", id, "--exit", "--timeout", "30s", check=True)
    path = world.session(id) / "exit.json"
    path.write_text("{")
    code, message, reported = failed(world, "status", id)
    assert (code, reported) == (1, "damaged-record")
    assert str(path) in message


def test_a_wrong_setting_names_file_and_line(world: World) -> None:
    file = world.root / "config.toml"
    file.write_text("[log]\nkepe = 1\n")
    env = {"HOLDFAST_CONFIG": str(file)}
    code, message, reported = failed(world, "start", "--", "true", env=env)
    assert (code, reported) == (2, "config-error")
    assert f"{file}:2" in message
    assert "did you mean keep" in world.hold("run", "--", "true", env=env).stderr


def test_a_home_that_others_may_change_is_refused(world: World) -> None:
    world.hold("ls", check=True)
    world.home.chmod(0o777)
    code, message, reported = failed(world, "ls")
    assert (code, reported) == (1, "unsafe-directory")
    assert str(world.home) in message
    world.home.chmod(0o700)


def test_an_input_larger_than_a_start_can_carry_is_too_large_for_a_command_that_restarts(world: World) -> None:
    (world.cwd / "large").write_bytes(bytes(9 << 20))
    words = ("start", "--input", "large", "--restart", "on-failure", "--", "true")
    assert failed(world, *words)[::2] == (1, "too-large")


def test_a_survivor_makes_a_stop_fail(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    from holdfast.cli.end import in_words
    from holdfast.model import Stopped

    stopped = Stopped("b12345678", survivors=[{"pid": 7, "start": 1, "command": "evil\x1b[m", "error": "EPERM"}])
    assert in_words(stopped) == "NOT ended, still there: pid 7 evil\\x1b[m (EPERM)"
    assert not stopped.done


@pytest.mark.parametrize("slug", sorted(errors._BY_CODE))
def test_every_error_has_a_text_a_fix_and_an_exit_code(slug: str, capsys: pytest.CaptureFixture[str]) -> None:
    kind = errors._BY_CODE[slug]
    error = errors.HoldfastError.from_wire({"code": kind.code, "message": f"the case\x1b[2J of {kind.code}"})
    assert complain(error, as_json=False) == kind.exit_code
    said = capsys.readouterr()
    assert said.out == ""
    fix = in_command_line_terms(error, ())[1]
    assert said.err == f"hold: the case\\x1b[2J of {kind.code}\nfix: {fix}\n"
    assert not PYTHON.search(fix)
    assert kind.exit_code in (1, 2, 3, 4, 5, 124)
    assert complain(error, as_json=True) == kind.exit_code
    assert json.loads(capsys.readouterr().err)["code"] == kind.code


def test_a_bug_of_ours_is_no_message() -> None:
    assert complain(ZeroDivisionError(), as_json=False) is None


def test_a_reader_that_leaves_a_listing_is_no_error(world: World, start: Start) -> None:
    id = start("lines", 100_000)
    world.hold("wait", id, "--exit", "--timeout", "30s", check=True)
    program = world.program(world.hold_argv("logs", id))
    assert program.line() == "ready"
    program.hang_up()
    assert program.wait() == 128 + signal.SIGPIPE
    assert program.errors() == ""


def shell(world: World, line: str, *words: object) -> subprocess.CompletedProcess[str]:
    argv = ["sh", "-c", line, "sh", *world.hold_argv(*words)]
    return subprocess.run(argv, capture_output=True, text=True, timeout=20, check=False)


@pytest.mark.parametrize("words", [("ls", "-a"), ("config",), ("run", "--", "echo", "lost"), ("logs", "last"), ()])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_break_nothing(world: World, words: tuple[str, ...], closed: str) -> None:
    world.hold("run", "--", "echo", "kept", check=True)
    before = {path: path.read_bytes() for path in (world.home / "sessions").glob("*/stdout.*")}
    done = shell(world, f'"$@" {closed}', *words)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    after = {path: path.read_bytes() for path in (world.home / "sessions").glob("*/stdout.*")}
    assert before.items() <= after.items()


def test_a_full_device_is_an_error_that_says_so(world: World) -> None:
    done = shell(world, '"$@" >/dev/full', "config")
    assert done.returncode == 1
    assert "hold: No space left on device" in done.stderr
    assert "Exception" not in done.stderr


@pytest.mark.parametrize("locale", ["C", "POSIX", "en_US.ISO-8859-1"])
def test_a_locale_without_utf_8_breaks_nothing(world: World, locale: str) -> None:
    env = {"LC_ALL": locale, "LANG": locale, "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = world.hold("run", "--name", "bücher", "--", "echo", "größe", env=env)
    assert (done.stdout, done.returncode) == ("größe\n", 0)
    listed = world.hold("ls", "-a", env=env)
    assert listed.returncode == 0
    assert "Traceback" not in listed.stderr


def test_an_interrupted_wait_exits_with_130(world: World, start: Start) -> None:
    id = start("forever")
    program = world.program(world.hold_argv("logs", "-f", id))
    assert program.line() == "ready"
    program.signal(signal.SIGINT)
    assert program.wait() == 130
    assert program.errors() == ""


def test_after_ctrl_c_the_prompt_of_the_shell_is_on_a_line_of_its_own(world: World, start: Start) -> None:
    window = Outer(world.hold_argv("logs", "-f", start("forever")))
    world.closing.callback(window.close)
    window.shows("ready")
    window.type(b"\x03")
    assert window.end() == 130
    assert window.printed.endswith(b"^C\r\n")


def test_an_unknown_command_names_the_nearest(world: World) -> None:
    done = world.hold("stauts")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "hold: no command 'stauts'\nfix: did you mean `hold status`?\n"
    assert "hold --help" in world.hold("\x1b[2J").stderr
