"""A configuration file with a mistake: sessions are still seen and ended, nothing is started or removed by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.conftest import Start
from support.world import World

MISTAKES = {
    "an unknown key": ("[log]\nkepe = 1\n", ":2: log.kepe: unknown key", "did you mean keep?"),
    "a wrong type": ("[start]\ngrace = [1]\n", ":2: start.grace: ", ""),
    "no TOML": ("[log\nkeep = 1\n", ":1: ", "correct the TOML"),
}


@pytest.fixture
def config(world: World) -> Path:
    path = world.root / "user" / ".config" / "holdfast" / "config.toml"
    path.parent.mkdir(mode=0o700)
    return path


@pytest.mark.parametrize("mistake", MISTAKES)
def test_sessions_are_seen_and_ended_beside_a_mistake(world: World, start: Start, config: Path, mistake: str) -> None:
    text, where, fix = MISTAKES[mistake]
    web, db = start("say", "hello", "forever", options=("--name", "web")), start("forever", options=("--name", "db"))
    world.hold("wait", web, "--match", "hello", check=True)
    config.write_text(text)
    for words, shown in {
        ("ls",): web,
        ("status", "web"): web,
        ("logs", "web"): "hello",
        ("search", "web", "hello"): "hello",
        ("top",): "web",
        ("signals",): "",
        ("__complete", "2", "hold", "stop", ""): "web",
        ("stop", "web"): "stopped",
        ("kill", "db"): "stopped",
        ("wait", db, "--timeout", "9"): "",
        ("rm", web): "",
    }.items():
        done = world.hold(*words)
        assert shown in done.stdout, words
        assert done.stderr.count("\n") == 1, (words, done.stderr)
        assert f"{config}{where}" in done.stderr
        assert "the defaults are used" in done.stderr
        assert fix in done.stderr
    assert "traceback" not in done.stderr.lower()


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize(
    "words", [("run", "--", "echo", "ran"), ("start", "--", "true"), ("gc",), ("serve",), ("mcp",)]
)
def test_nothing_is_started_or_collected_beside_a_mistake(
    world: World, config: Path, mistake: str, words: tuple[str, ...]
) -> None:
    """`gc` would remove by the default of `log.keep` what the file may want to be kept."""
    text, where, fix = MISTAKES[mistake]
    config.write_text(text)
    refused = world.hold(*words, input="")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"hold: {config}{where}" in refused.stderr
    assert f"fix: {fix}" in refused.stderr
    assert not list(world.home.glob("sessions/*"))


def test_a_restart_is_a_start(world: World, start: Start, config: Path) -> None:
    id = start("exit", 0)
    world.hold("wait", id)
    config.write_text("[log]\nkepe = 1\n")
    assert world.hold("restart", id).returncode == 2


def test_doctor_reports_the_mistake_and_everything_else(world: World, start: Start, config: Path) -> None:
    start("forever")
    config.write_text("[log]\nkepe = 1\n")
    done = world.hold("doctor", "--json")
    assert done.returncode == 1
    findings = {each["check"]: each for each in json.loads(done.stdout)}
    assert findings["config"]["level"] == "problem"
    assert f"{config}:2: log.kepe: unknown key" in findings["config"]["text"]
    assert (findings["config"]["fix"], findings["config"]["path"]) == ("did you mean keep?", str(config))
    assert findings["sessions"]["text"].startswith("1 running")


def test_a_mistake_in_the_environment_is_one_too(world: World, start: Start) -> None:
    id = start("forever")
    env = {"HOLDFAST_LOG_KEPE": "1"}
    done = world.hold("stop", id, env=env)
    assert (done.returncode, "stopped" in done.stdout) == (0, True)
    assert "HOLDFAST_LOG_KEPE: unknown variable" in done.stderr
    assert world.hold("start", "--", "true", env=env).returncode == 2


def test_a_file_that_others_may_write_is_not_read_and_hinders_no_stop(world: World, start: Start, config: Path) -> None:
    web, db = start("forever"), start("forever")
    config.write_text('[cli]\ncolor = "never"\n')
    config.chmod(0o666)
    for words in (("ls",), ("status", web), ("logs", web), ("start", "--", "true"), ("attach", web)):
        refused = world.hold(*words)
        assert (refused.returncode, refused.stdout) == (2, ""), words
        assert "it is writable by group or others (mode 0666)" in refused.stderr
    for done in (world.hold("stop", web), world.hold("kill", db)):
        assert (done.returncode, "stopped" in done.stdout) == (0, True)
        assert done.stderr.count("\n") == 1
        assert f"{config}: it is writable by group or others (mode 0666); the defaults are used" in done.stderr
        assert f"chmod go-w {config}" in done.stderr
    examined = world.hold("doctor")
    assert (examined.returncode, "problem  config: " in examined.stdout) == (1, True)
