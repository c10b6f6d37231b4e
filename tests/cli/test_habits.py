"""What users of the shell, `timeout`, `kill` and `docker` type by habit."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from cli.conftest import Start
from cli.outer import Outer
from holdfast import cli
from holdfast.cli.parsing import REST
from support import processes
from support.faults import kill_runner, sweep_up
from support.serving import Serving
from support.waiting import until
from support.world import World


@pytest.mark.covers("habits:2")
@pytest.mark.parametrize(
    "command, code",
    [
        (["true"], 0),
        (["sh", "-c", "exit 77"], 77),
        (["no-such-command-anywhere"], 127),
        (["./no/such/path"], 127),
        (["./plain-file"], 126),
        (["./directory"], 126),
        (["./broken-script"], 127),
        (["sh", "-c", "kill -TERM $$"], 128 + signal.SIGTERM),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
        (["sh", "-c", "kill -USR1 $$"], 128 + signal.SIGUSR1),
    ],
    ids=["0", "77", "no command", "no path", "no permission", "directory", "no interpreter", "TERM", "KILL", "USR1"],
)
def test_a_run_exits_as_the_shell_would(world: World, command: list[str], code: int) -> None:
    (world.cwd / "plain-file").write_text("echo never\n")
    (world.cwd / "broken-script").write_text("#!/no/such/interpreter\n")
    (world.cwd / "broken-script").chmod(0o755)
    (world.cwd / "directory").mkdir()
    assert world.hold("run", "--cwd", world.cwd, "--", *command).returncode == code


@pytest.mark.covers("habits:2")
@pytest.mark.parametrize("words", [("forever",), ("exit-on", "TERM", 0, "forever")], ids=["dies", "exits 0"])
def test_a_run_that_its_timeout_ended_exits_with_124(world: World, words: tuple[object, ...]) -> None:
    done = world.hold("run", "--timeout", "1s", "--", *world.probe(*words))
    assert done.returncode == 124
    assert "timed out after 1s and was stopped" in done.stderr


@pytest.mark.covers("habits:2")
def test_a_run_exits_with_125_when_holdfast_itself_failed(world: World, start: Start) -> None:
    assert world.hold("run", "--cwd", "/no/such/directory", "--", "true").returncode == 125
    start("forever", options=("--name", "taken"))
    assert world.hold("run", "--name", "taken", "--", "true").returncode == 125
    # No home can be made below a file.
    (world.cwd / "file").touch()
    assert world.hold("run", "--", "true", env={"HOLDFAST_HOME": str(world.cwd / "file" / "home")}).returncode == 125
    # Its runner is killed: how the command ends can no longer be known.
    run = world.program(world.hold_argv("run", "--name", "orphan", "--", *world.probe("forever")))
    assert run.line() == "ready"
    session = world.open().get("orphan")
    assert session.runner_pid is not None
    assert session.pid is not None
    os.kill(session.runner_pid, signal.SIGKILL)
    os.kill(session.pid, signal.SIGKILL)
    assert run.wait(30) == 125
    sweep_up(world, world.open())


@pytest.mark.covers("habits:2", "found:28")
def test_a_plain_wait_exits_with_the_code_of_the_command(world: World, start: Start) -> None:
    for words, code in ((("exit", 0), 0), (("exit", 3), 3), (("die", "TERM"), 128 + signal.SIGTERM)):
        assert world.hold("wait", start(*words), "--timeout", "30s").returncode == code


@pytest.mark.covers("habits:2")
def test_a_wait_with_a_condition_says_whether_it_held(world: World, start: Start) -> None:
    running = start("say", "hello", "forever")
    assert world.hold("wait", running, "--match", "hello", "--timeout", "30s").returncode == 0
    assert world.hold("wait", running, "--match", "never", "--timeout", "100ms").returncode == 124
    assert world.hold("wait", running, "--timeout", "100ms").returncode == 124
    failed, fine = start("exit", 3), start("exit", 0)
    assert world.hold("wait", failed, "--exit", "--timeout", "30s").returncode == 0
    assert world.hold("wait", fine, "--exit", "--timeout", "30s").returncode == 0
    assert world.hold("wait", failed, "--match", "never", "--timeout", "30s").returncode == 3
    assert world.hold("wait", fine, "--match", "never", "--timeout", "30s").returncode == 1


@pytest.mark.covers("habits:2")
@pytest.mark.parametrize("name", cli.names())
def test_wrong_usage_is_2_everywhere(world: World, name: str) -> None:
    """Bad values are in `test_words.py`."""
    # In this process: each takes the time of an interpreter otherwise.
    assert cli.carry_out([name, "--no-such-option"]) == 2
    arguments = cli.parser_of(name)[0].arguments
    if any(not each.option_strings and each.nargs in (None, "+", REST) for each in arguments):
        assert cli.carry_out([name]) == 2


@pytest.mark.covers("habits:3", "found:28")
@pytest.mark.parametrize("spelling", ["-1", "-HUP", "-SIGHUP", "-hup", "-s HUP", "-s 1"])
def test_a_signal_as_people_write_it_goes_to_the_session_only(world: World, start: Start, spelling: str) -> None:
    web = start("signal-report", "forever", options=("--name", "web"))
    other = start("signal-report", "forever", options=("--name", "other"))
    session = world.open().get(web)
    session.wait(match="ready", timeout=30)
    world.open().get(other).wait(match="ready", timeout=30)
    done = world.hold("kill", *spelling.split(), "web")
    assert (done.returncode, done.stdout) == (0, f"{web}: sent to 1 process\n")
    assert session.wait(match="HUP", timeout=30).reason == "match"
    assert session.refresh().state == "running"
    assert "HUP" not in world.open().get(other).text()


@pytest.mark.covers("habits:3", "found:28")
@pytest.mark.parametrize("words", [("kill", "--", "-1"), ("kill", "--", "-1", "web"), ("stop", "-9", "web")])
def test_what_looks_like_an_option_is_never_a_session(world: World, start: Start, words: tuple[str, ...]) -> None:
    web = start("signal-report", "forever", options=("--name", "web"))
    session = world.open().get(web)
    session.wait(match="ready", timeout=30)
    done = world.hold(*words)
    assert done.returncode == 2
    assert "looks like an option" in done.stderr
    assert session.refresh().state == "running"
    assert session.pid is not None
    assert processes.look(session.pid) is not None
    assert session.text() == "ready\n"


@pytest.mark.covers("habits:3", "found:28")
def test_kill_9_kills_the_sessions_named_after_it(world: World, start: Start) -> None:
    web = start("ignore", "TERM,HUP", "forever", options=("--name", "web"))
    session = world.open().get(web)
    session.wait(match="ready", timeout=30)
    assert world.hold("kill", "-9", "web").returncode == 0
    until(lambda: session.refresh().exit is not None, what="the end")
    assert session.exit.signal == "SIGKILL"  # type: ignore[union-attr]


def test_a_kill_of_the_command_alone_names_what_it_leaves(world: World) -> None:
    id = world.hold("start", "--name", "web", "--", "sleep 600 & echo ready; wait", check=True).stdout.strip()
    world.hold("wait", "web", "--match", "ready", check=True)
    done = world.hold("kill", "-9", "web", check=True)
    left = rf"pid \d+ sleep 600 \(`hold stop {id}` ends it\)"
    assert re.fullmatch(rf"{id}: sent to 1 process; what it started continues: {left}\n", done.stdout)
    world.hold("stop", "web", check=True)


def _titles(*pids: int) -> list[str]:
    shown = subprocess.run(["ps", "-o", "args=", *map(str, pids)], capture_output=True, text=True, check=False)
    return [line.rstrip() for line in shown.stdout.splitlines()]


def _matching(name: str) -> list[int]:
    found = subprocess.run(["pgrep", "-f", name], capture_output=True, text=True, check=False)
    return [int(pid) for pid in found.stdout.split()]


@pytest.mark.covers("habits:17")
@pytest.mark.parametrize("launcher", ["true", "false"], ids=["launcher", "direct"])
def test_ps_and_pgrep_find_the_runner_of_a_name(world: World, launcher: str) -> None:
    name = f"web-{world.root.name}"
    words = ("start", "--name", name, "--", *world.probe("forever"))
    id = world.hold(*words, env={"HOLDFAST_LAUNCHER_ENABLED": launcher}, check=True).stdout.strip()
    session = world.open().get(id)
    runner = session.runner_pid
    assert runner is not None
    assert _titles(runner) == [f"hold: {id} {name}"]
    assert _matching(name) == [runner]
    # A new name is shown at once, however long it is.
    longer = f"web-{world.root.name}-".ljust(64, "é")
    session.update(name=longer)
    assert _titles(runner) == [f"hold: {id} {longer}"]
    assert _matching(longer) == [runner]
    # `pkill -f NAME` stops the session, and its end is recorded.
    os.kill(runner, signal.SIGTERM)
    session.wait(exit=True, timeout=30)
    assert session.exit is not None
    assert (session.exit.cause, session.exit.by) == ("stop", "system")


def test_a_launcher_and_its_spares_show_what_they_are(world: World) -> None:
    world.hold("run", "--", "true", check=True)
    titles = {tuple(_titles(launcher.pid)) for launcher in world.launchers()}
    assert titles == {("hold: launcher",)}
    children = Path(f"/proc/{world.launchers()[0].pid}/task/{world.launchers()[0].pid}/children")
    until(lambda: {"hold: spare"} == set(_titles(*map(int, children.read_text().split()))), what="spares")


@pytest.mark.covers("habits:4")
def test_a_size_is_columns_by_rows(world: World, start: Start) -> None:
    id = start("forever", options=("--tty", "--size", "80x24"))
    session = world.open().get(id)
    assert session.size == [24, 80]
    assert world.hold("run", "--tty", "--size", "81x25", "--", "stty", "size", check=True).stdout.split() == [
        "25",
        "81",
    ]
    world.hold("resize", id, "100x40", check=True)
    assert session.refresh().size == [40, 100]
    assert world.open().run(["true"], tty=True, size="90x20").size == [20, 90]
    wrong = world.hold("resize", id, "0x40")
    assert "columns from 1 to 1000 and rows" in wrong.stderr


@pytest.mark.covers("habits:4")
def test_the_order_of_rows_before_columns_is_nowhere_in_docs_tests_or_help() -> None:
    old = "ROWS" + "xCOLS"
    root = Path(__file__).parents[2]
    folders = ("docs", "tests", "src", "examples")
    files = [file for each in folders for file in (root / each).rglob("*") if file.suffix in (".py", ".md")]
    files.append(root / "README.md")
    assert [str(file) for file in files if old in file.read_text()] == []
    # A size in an option or a resize has more columns than rows.
    sizes = re.compile(r"(?:--size[\",= ]+|resize [\w.-]+ |\bresize\", [^\n]{0,20}\"|size=\")(\d+)x(\d+)")
    found = [pair for file in files for pair in sizes.findall(file.read_text()) if "0" not in pair]
    assert found
    assert [(cols, rows) for cols, rows in found if int(cols) < int(rows)] == []
    for command in ("start", "run", "resize"):
        assert "COLSxROWS" in cli.parser_of(command)[0].help(whole=True)


@pytest.mark.covers("habits:6")
def test_every_list_shows_the_same_condition(world: World, start: Start, serving: Serving) -> None:
    """In `ls`, `status`, `top` (its window and its table) and over HTTP, as words and as JSON."""
    ask = ["sh", "-c", "printf 'Continue? [y/N] '; read answer; exec sleep 600"]
    hf = world.open()
    want = {
        hf.start(ask, tty=True).id: "needs input",
        hf.start(["sleep", "600"], health={"command": ["false"], "interval": 5, "misses": 1}).id: "unhealthy",
        hf.start(["false"], restart={"policy": "always", "delay": 500, "delay_max": 500}).id: "restarting",
        start("forever"): "running",
    }
    for id, condition in want.items():
        session = hf.get(id)
        until(lambda s=session, c=condition: s.refresh().condition == c, what=condition)  # type: ignore[misc]

    def of(records: str) -> dict[str, str]:
        return {each["id"]: each["condition"] for each in json.loads(records)}

    assert of(world.hold("ls", "--json", check=True).stdout) == want
    assert of(world.hold("top", "--json", check=True).stdout) == want
    for id, condition in want.items():
        assert json.loads(world.hold("status", id, "--json", check=True).stdout)["condition"] == condition
        assert serving.call("GET", f"/v1/sessions/{id}").json["condition"] == condition
        assert re.search(rf"^state +{condition}", world.hold("status", id, check=True).stdout, re.MULTILINE)
        for command in (("ls",), ("top",)):
            shown = world.hold(*command, check=True).stdout
            assert re.search(rf"^{id} .*\b{condition}\b", shown, re.MULTILINE), shown
    window = Outer(world.hold_argv("top"), cols=120)
    world.closing.callback(window.close)
    for id, condition in want.items():
        window.until(
            lambda i=id, c=condition: re.search(rf"^ ?{i} .*\b{c}\b", window.text, re.MULTILINE),  # type: ignore[misc]
            f"{condition} in the window of top",
        )
    window.type(b"q")
    assert window.end() == 0
    for id in want:
        hf.get(id).kill()
    restarted = hf.get(next(id for id, condition in want.items() if condition == "restarting"))
    assert restarted.condition == "exited"


def test_a_session_is_renamed_and_listed_by_its_directory(world: World, start: Start) -> None:
    below = world.cwd / "below"
    below.mkdir()
    inside = start("forever", options=("--cwd", str(below)))
    start("forever", options=("--cwd", "/"))
    world.hold("rename", inside, "web", check=True)
    assert world.open().get("web").id == inside
    listed = subprocess.run(
        ["env", "-C", str(world.cwd), *world.hold_argv("ls", "-q", "--here")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert listed.stdout.split() == [inside]


def test_a_session_that_has_ended_or_is_lost_is_renamed_too(world: World, start: Start) -> None:
    """Its name is free for the next one, and the new name is in its records, not only in the index."""
    world.hold("run", "--name", "web", "--", "echo first; exit 3")
    lost = world.open().get(start("forever"))
    kill_runner(lost)
    lost.kill()
    until(lambda: lost.refresh().state == "lost", what="the session to be lost")
    world.hold("rename", "web", "old-web", check=True)
    world.hold("rename", lost.id, "gone", check=True)
    live = start("forever", options=("--name", "web"))
    taken = world.hold("rename", "old-web", "web")
    assert (taken.returncode, live in taken.stderr) == (4, True), taken.stderr
    for _ in range(2):
        assert world.hold("logs", "old-web", check=True).stdout == "first\n"
        found = {each.id: each.name for each in world.open().sessions(all=True)}
        assert set(found.values()) == {"old-web", "gone", "web"}
        assert (found[live], found[lost.id]) == ("web", "gone")
        for path in world.home.glob("index.db*"):
            path.unlink()
    sweep_up(world, world.open())


def test_prune_removes_what_has_ended_by_age_and_status(world: World, start: Start) -> None:
    live = start("forever")
    world.hold("run", "--name", "fine", "--", "true", check=True)
    world.hold("run", "--name", "bad", "--", "false")
    assert world.hold("prune", "--older", "1d", check=True).stdout == "removed 0 sessions\n"
    assert world.hold("prune", "--status", "failed", check=True).stdout == "removed 1 session\n"
    left = world.open().sessions(all=True)
    assert {each.name for each in left} == {None, "fine"}
    world.hold("prune", check=True)
    assert [each.id for each in world.open().sessions(all=True)] == [live]
