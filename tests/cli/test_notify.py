"""`hold notify`: channels to people, set up and tested from the command line."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from holdfast.config.settings import PEOPLE_EVENTS
from holdfast.runner.people_notifier import take_lock
from support.notified import Receiver
from support.scale import scaled
from support.waiting import BOUND_S, until
from support.world import World

TEST = "Holdfast: test notice"


def _config(world: World) -> Path:
    return world.root / "user" / ".config" / "holdfast" / "config.toml"


def _came(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def _gone(world: World) -> None:
    """The process that notifies has left."""

    def is_free() -> bool:
        lock = take_lock(str(world.home))
        if lock is not None:
            os.close(lock)
        return lock is not None

    until(is_free, BOUND_S, what="the end of the process that notifies")


@pytest.mark.covers("habits:16")
def test_a_command_is_set_up_in_one_line_and_gets_what_happens_from_then_on(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_PEOPLE_APART", "10ms")
    # What ended in the last hour.
    behind = world.cwd / "shift"
    monkeypatch.setenv("HOLDFAST_WALL_SHIFT_FILE", str(behind))
    for ago_s in scaled((3000, 60), range(3000, 0, -300)):
        behind.write_text(f"-{ago_s}")
        world.hold("start", "--", "false", check=True)
        world.hold("wait", "last")
    monkeypatch.delenv("HOLDFAST_WALL_SHIFT_FILE")
    file = world.cwd / "notices"
    note = world.cwd / "note"
    note.write_text(f'#!/bin/sh\necho "$1" >> {file}\n')
    note.chmod(0o755)
    done = world.hold("notify", "--command", str(note), "--on", "all", check=True)
    assert done.stdout == "people:command: test notice sent\n"
    assert _came(file) == [TEST]
    world.hold("run", "--name", "quiet", "--", "false")  # seen in the foreground
    stopped = world.hold("start", "--name", "stopped", "--", *world.probe("forever"), check=True).stdout.strip()
    world.hold("stop", stopped, check=True)
    killed = world.hold("start", "--name", "killed", "--", *world.probe("forever"), check=True).stdout.strip()
    world.hold("kill", killed, check=True)
    world.hold("start", "--name", "broken", "--", "false", check=True)
    until(lambda: len(_came(file)) == 2, BOUND_S, what="the notice of a failure")
    # A success too, with `--on all`.
    world.hold("start", "--name", "fine", "--", "true", check=True)
    until(lambda: len(_came(file)) == 3, BOUND_S, what="the notice of a success")
    _gone(world)
    for each in world.home.glob("index.db*"):
        each.unlink(missing_ok=True)
    world.hold("start", "--name", "final", "--", "false", check=True)
    until(lambda: len(_came(file)) == 4, BOUND_S, what="the notice of the final one")
    _gone(world)
    names = [title.split()[0] for title in _came(file)[1:]]
    assert names == ["broken", "fine", "final"]


@pytest.mark.covers("habits:16")
def test_a_webhook_is_set_up_with_a_secret_and_tested(world: World) -> None:
    with Receiver() as receiver:
        done = world.hold("notify", "--webhook", receiver.url, check=True)
        assert done.stdout == "people:webhook:127.0.0.1: test notice sent\n"
        secret = _config(world).parent / "127.0.0.1.secret"
        assert str(secret) in done.stderr
        assert secret.stat().st_mode & 0o777 == 0o600
        first = receiver.next()
        assert json.loads(first.body)["event"]["test"] is True
        assert first.headers["Holdfast-Signature"].startswith("t=")
        # Again changes nothing; `test` sends through each channel.
        before = (_config(world).read_text(), secret.read_text())
        world.hold("notify", "--webhook", receiver.url, check=True)
        assert (_config(world).read_text(), secret.read_text()) == before
        receiver.next()
        assert json.loads(world.hold("notify", "test", "--json", check=True).stdout) == {
            "people:webhook:127.0.0.1": {"outcome": "delivered", "why": None}
        }
        receiver.next()


def test_a_channel_that_does_not_work_is_said_at_once(world: World) -> None:
    done = world.hold("notify", "--command", "/no/such/program")
    assert done.returncode == 1
    assert done.stdout.startswith("people:command: NOT sent: /no/such/program could not be started")
    assert world.hold("notify", "test").returncode == 1


def test_the_rest_of_the_configuration_stays_as_it_is(world: World) -> None:
    file = _config(world)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('# mine\n[people]\nbell = false\n\n[people.command]\nargv = ["old"]\n\n[start]\ngrace = "7s"\n')
    file.chmod(0o600)
    world.hold("notify", "--command", "true {title}", "--on", "failed,needs_input", check=True)
    text = file.read_text()
    assert text.startswith("# mine\n[people]\nbell = false\n")
    assert tomllib.loads(text) == {
        "people": {"bell": False, "command": {"argv": ["true", "{title}"], "events": ["failed", "needs_input"]}},
        "start": {"grace": "7s"},
    }
    # A table that is written in another way is left alone.
    file.write_text('people.command.argv = ["old"]\n')
    refused = world.hold("notify", "--command", "true")
    assert (refused.returncode, "write it there yourself: [people.command]" in refused.stderr) == (2, True)
    assert file.read_text() == 'people.command.argv = ["old"]\n'


def test_wrong_use_names_what_was_meant(world: World) -> None:
    for words, expected in {
        ("notify",): "give --command, --webhook, test",
        ("notify", "on"): "give --command, --webhook, test",
        ("notify", "tset"): "did you mean `test`?",
        ("notify", "--command", "true", "--on", "faild"): "did you mean failed?",
        ("notify", "--command", "'"): "quote the whole command",
        # No shell would read it: it would be sent, and nothing would come.
        ("notify", "--command", "echo {title} >> notices"): "put the line into a script",
        ("notify", "--command", "echo {title} | mail ada"): "put the line into a script",
        ("notify", "--command", "date; echo"): "put the line into a script",
        ("notify", "--webhook", "ftp://x"): "such as https://",
        ("notify", "test", "--on", "all"): "--on comes with",
    }.items():
        done = world.hold(*words)
        assert (done.returncode, expected in done.stderr) == (2, True), done.stderr
    assert not _config(world).exists()
    assert "ended" in PEOPLE_EVENTS
