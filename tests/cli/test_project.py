"""`hold up`, `down` and `ps`: a project of services from `holdfast.toml` or a `Procfile`."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest

from support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from holdfast import Holdfast, Session
    from support.program import Program
    from support.world import World

FILE = """
[project]
name = "shop"

[session.web]
command = "test -e api-ready && test -e migrated || exit 9; echo web-is-up; exec sleep 600"
after = ["api:ready", "migrate:exit"]
ready = "line:web-is-up"

[session.api]
command = ["sh", "-c", "until test -e go; do sleep 0.1; done; touch api-ready; echo api-is-up; exec sleep 600"]
after = ["db"]
ready = "line:api-is-up"

[session.db]
command = "until test -e db-go; do sleep 0.1; done; echo db-is-up; exec sleep 600"
ready = "line:db-is-up"

[session.migrate]
command = "touch migrated; echo migrated"
after = ["db"]

[session.mail]
command = "exec sleep 600"
env = { MODE = "test" }
"""
NAMES = {"db", "api", "migrate", "web", "mail"}


@pytest.fixture
def folder(world: World) -> Iterator[Path]:
    made = world.cwd / "one"
    made.mkdir()
    yield made
    for session in opened(world).sessions():
        session.kill()


def hold(world: World, folder: Path, *words: str) -> tuple[int, str, str]:
    argv = ["env", "-C", str(folder), *world.hold_argv(*words)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    return done.returncode, done.stdout, done.stderr


def opened(world: World, _known: dict[Path, Holdfast] = {}) -> Holdfast:  # noqa: B006
    """One host for each test."""
    if world.root not in _known:
        _known.clear()
        _known[world.root] = world.open()
    return _known[world.root]


def services(world: World, folder: Path) -> dict[str, Session]:
    live = [each for each in opened(world).sessions() if each.cwd == str(folder)]
    return {each.labels["service"]: each for each in live}


def every(world: World, folder: Path) -> list[str]:
    """Each session of the project, in the order of their starts."""
    found = [each for each in opened(world).sessions(all=True) if each.cwd == str(folder)]
    return [each.labels["service"] for each in sorted(found, key=lambda each: each.created_at or "")]


def begun(world: World, folder: Path, *words: str) -> Program:
    return world.program(world.hold_argv("up", *words), prefix=("env", "-C", str(folder)))


def go(folder: Path, *files: str) -> None:
    for each in files or ("db-go", "go"):
        (folder / each).touch()


@pytest.mark.covers("habits:12")
def test_five_services_come_up_in_order_and_go_down_in_reverse(world: World, folder: Path) -> None:
    (folder / "holdfast.toml").write_text(FILE)
    up = begun(world, folder)
    # What needs a slow one has not been started, what needs nothing has.
    until(lambda: set(every(world, folder)) == {"db", "mail"}, what="db and mail")
    until(lambda: "waiting for db to be ready (line:db-is-up)" in up.errors(), what="what it waits for")
    assert set(every(world, folder)) == {"db", "mail"}
    go(folder, "db-go")
    until(lambda: set(every(world, folder)) == NAMES - {"web"}, what="what needs db alone")
    until(lambda: "migrate: done" in up.errors(), what="the end of migrate")
    assert "web" not in every(world, folder)
    go(folder, "go")
    assert up.wait(30) == 0
    assert sorted(every(world, folder)) == sorted(NAMES)
    said = up.errors()
    assert re.search(r"shop: all 5 services are ready after \S+\nshop: `hold logs -f --label project=shop` ", said)
    started = {name: at(said, f" {name}: started") for name in NAMES}
    assert max(started["db"], started["mail"]) < at(said, "db: ready") < min(started["api"], started["migrate"])
    assert max(at(said, "api: ready"), at(said, "migrate: done")) < started["web"] < at(said, "web: ready")
    first = services(world, folder)
    assert set(first) == {"db", "api", "web", "mail"}
    assert first["web"].labels == {"project": "shop", "service": "web"}
    assert all(first[name].refresh().metadata["ready"]["ok"] for name in ("db", "api", "web"))
    # One is edited: that one is started again, the others are left alone.
    text = (folder / "holdfast.toml").read_text()
    (folder / "holdfast.toml").write_text(text.replace('MODE = "test"', 'MODE = "live"'))
    code, _, said = hold(world, folder, "up")
    assert code == 0, said
    second = services(world, folder)
    assert {name for name in second if second[name].id != first[name].id} == {"mail"}
    assert "migrate: already done" in said
    assert "migrate: waiting" not in said
    assert sorted(every(world, folder)) == sorted([*NAMES, "mail"])
    code, listed, _ = hold(world, folder, "ps", "--json")
    assert set(json.loads(listed)) == NAMES
    # One alone is stopped and started again.
    assert hold(world, folder, "down", "web")[0] == 0
    assert set(services(world, folder)) == {"db", "api", "mail"}
    assert hold(world, folder, "up", "web")[0] == 0
    second = services(world, folder)
    code, gone, _ = hold(world, folder, "down")
    assert code == 0
    assert sorted(line.partition(":")[0] for line in gone.splitlines()) == ["api", "db", "mail", "web"]
    ends = {name: second[name].refresh().ended_at or "" for name in second}
    assert ends["web"] < ends["api"] < ends["db"]
    assert services(world, folder) == {}


def at(text: str, part: str) -> int:
    assert part in text, text
    return text.index(part)


@pytest.mark.covers("habits:12")
def test_a_service_that_fails_is_named_with_its_last_lines_and_the_others_come_up(world: World, folder: Path) -> None:
    text = FILE.replace("touch migrated; echo migrated", "seq 20; echo no table >&2; exit 3")
    (folder / "holdfast.toml").write_text(text + '[session.extra]\ncommand = ["no-such-program"]\n')
    go(folder)
    code, _, said = hold(world, folder, "up")
    assert code == 1
    assert "shop: web: not started, because migrate failed" in said
    assert re.search(r"hold: 2 services failed:\n(?s:.*)  migrate \(\w+\) failed with exit code 3:\n    12\n", said)
    assert "    20\n    no table\n" in said
    assert re.search(r"  extra was not started:\n    .*no-such-program", said)
    assert "web" not in every(world, folder)
    assert set(services(world, folder)) == {"db", "api", "mail"}
    (folder / "holdfast.toml").write_text(text.replace("exit 3", "touch migrated"))
    code, _, said = hold(world, folder, "up")
    assert code == 0, said
    assert set(services(world, folder)) == {"db", "api", "mail", "web"}


@pytest.mark.parametrize(
    "command, how",
    [
        ("no-such-program", "failed with exit code 127:\n  .*not found"),
        ("kill -9 $$", r"failed with SIGKILL:\n  \(it printed nothing\)"),
    ],
)
def test_a_service_without_a_condition_that_ends_at_once_has_failed(
    world: World, folder: Path, command: str, how: str
) -> None:
    (folder / "Procfile").write_text(f"web: {command}\n")
    code, _, said = hold(world, folder, "up")
    assert code == 1
    assert re.search(rf"hold: web \(\w+\) {how}\n", said), said


def test_one_that_is_restarted_again_and_again_has_failed(world: World, folder: Path) -> None:
    (folder / "holdfast.toml").write_text(
        "[session.web]\ncommand = 'echo crash; exit 3'\nrestart = { policy = 'always', delay = 60 }\n"
    )
    code, _, said = hold(world, folder, "up")
    assert code == 1
    assert re.search(r"hold: web \(\w+\) fails and is restarted:\n  crash\n", said), said


@pytest.mark.covers("habits:12")
@pytest.mark.parametrize("started", range(1, 5))
def test_an_up_that_was_killed_is_finished_by_the_next_and_starts_nothing_twice(
    world: World, folder: Path, started: int
) -> None:
    (folder / "holdfast.toml").write_text(FILE)
    go(folder, "db-go")
    up = begun(world, folder)
    # Killed when so many directories are there: some of these sessions are still being started.
    sessions = world.home / "sessions"
    until(lambda: sessions.exists() and len(list(sessions.iterdir())) >= started, what="the middle of the start")
    os.kill(up.pid, signal.SIGKILL)
    up.wait(30)
    go(folder)
    code, _, said = hold(world, folder, "up")
    assert code == 0, said
    assert sorted(every(world, folder)) == sorted(NAMES)
    assert set(services(world, folder)) == NAMES - {"migrate"}


def test_ctrl_c_leaves_all_running_and_says_so(world: World, folder: Path) -> None:
    (folder / "holdfast.toml").write_text(FILE)
    up = begun(world, folder)
    until(lambda: "waiting for" in up.errors(), what="the middle of the start")
    os.kill(up.pid, signal.SIGINT)
    assert up.wait(30) == 130
    assert re.search("shop: left running: (db, mail|mail, db); `hold down` stops them\n$", up.errors())
    assert set(services(world, folder)) == {"db", "mail"}
    go(folder)
    attached = begun(world, folder, "--attach")
    while not re.match(r"api +\| api-is-up$", attached.line()):
        pass
    until(lambda: "services are ready" in attached.errors(), what="the end of the start")
    services(world, folder)["mail"].kill()
    until(lambda: "shop: mail: killed" in attached.errors(), what="the end of one")
    os.kill(attached.pid, signal.SIGINT)
    assert attached.wait(30) == 130
    assert "left running: " in attached.errors()
    assert attached.errors().count("shop: migrate: exit 0") == 1
    # What ended before this `up` is not said to end now.
    again = begun(world, folder, "--attach")
    until(lambda: "shop: Ctrl-C leaves them running" in again.errors(), what="the end of the start")
    os.kill(again.pid, signal.SIGINT)
    assert again.wait(30) == 130
    assert "shop: migrate: already done" in again.errors()
    assert "exit 0" not in again.errors()
    assert set(services(world, folder)) == {"db", "api", "web", "mail"}


def test_attached_output_appears_while_services_still_start(world: World, folder: Path) -> None:
    (folder / "holdfast.toml").write_text(FILE)
    go(folder, "db-go")
    up = begun(world, folder, "--attach")
    assert {up.line(), up.line()} == {"db      | db-is-up", "migrate | migrated"}
    assert "ready after" not in up.errors()
    assert set(services(world, folder)) == {"db", "mail", "api"}
    go(folder)
    assert up.line() == "api     | api-is-up"
    assert up.line() == "web     | web-is-up"
    until(lambda: "all 5 services are ready" in up.errors(), what="the end of the start")
    os.kill(up.pid, signal.SIGINT)
    assert up.wait(30) == 130


STUBBORN = """\
[session.db]
command = "trap 'touch db-asked' TERM; touch db-on; while :; do sleep 0.05; done"
[session.one]
command = "trap 'touch one-asked' TERM; touch one-on; until test -e go; do sleep 0.05; done"
after = ["db"]
[session.two]
command = "trap 'touch two-asked' TERM; touch two-on; until test -e go; do sleep 0.05; done"
after = ["db"]
"""


def test_down_stops_at_once_what_no_other_needs_and_the_rest_when_those_are_gone(world: World, folder: Path) -> None:
    (folder / "holdfast.toml").write_text(STUBBORN)
    assert hold(world, folder, "up")[0] == 0
    until(lambda: all((folder / f"{name}-on").exists() for name in ("db", "one", "two")), what="the traps")
    down = world.program(world.hold_argv("down", "--grace", "1m"), prefix=("env", "-C", str(folder)))
    # Both are asked, although neither ends.
    until(lambda: all((folder / f"{name}-asked").exists() for name in ("one", "two")), what="both are asked")
    assert set(services(world, folder)) == {"db", "one", "two"}
    assert not (folder / "db-asked").exists()
    go(folder, "go")
    until((folder / "db-asked").exists, what="db is asked")
    assert set(services(world, folder)) == {"db"}
    services(world, folder)["db"].kill()
    assert down.wait(30) == 0


def test_a_service_or_all_of_them_are_restarted(world: World, folder: Path) -> None:
    (folder / "holdfast.toml").write_text(FILE)
    go(folder)
    assert hold(world, folder, "up")[0] == 0
    first = services(world, folder)
    code, _, said = hold(world, folder, "restart", "web")
    assert code == 0, said
    second = services(world, folder)
    assert {name for name in second if second[name].id != first[name].id} == {"web"}
    assert second["web"].metadata["ready"]["ok"]
    code, _, said = hold(world, folder, "restart")
    assert code == 0, said
    third = services(world, folder)
    assert not {each.id for each in third.values()} & {each.id for each in second.values()}
    # Outside a project, and for what is no service, it is about sessions.
    code, _, said = hold(world, folder, "restart", "no-such")
    assert (code, "no such session" in said) == (3, True)
    code, _, said = hold(world, world.cwd, "restart")
    assert (code, "no holdfast.toml" in said) == (1, True)


def test_logs_of_a_project_are_those_of_all_its_services_also_when_they_have_ended(world: World, folder: Path) -> None:
    (folder / "Procfile").write_text("web: echo from web; exec sleep 600\njob: echo from job\n")
    assert hold(world, folder, "logs")[0] == 2  # nothing was started yet
    assert hold(world, folder, "up")[0] == 0
    for _ in range(2):
        code, shown, _ = hold(world, folder, "logs")
        assert (code, sorted(shown.splitlines())) == (0, ["one-job | from job", "one-web | from web"])
        assert hold(world, folder, "logs", "--label", "project=one", "--path")[0] == (
            0 if services(world, folder) else 2
        )
        hold(world, folder, "down")
    _, _, said = hold(world, folder, "logs", "--label", "project=one")
    assert "fix: `hold ls -a --label project=one` lists those that have ended" in said
    code, _, said = hold(world, world.cwd, "logs")
    assert (code, "hold: logs: no session given\nfix: name one: `hold ls` lists them" in said) == (2, True)


def test_in_a_project_a_service_is_found_by_its_own_name(world: World, folder: Path) -> None:
    (folder / "holdfast.toml").write_text(
        "[project]\nname = 'shop'\n[session.web]\ncommand = 'echo served; exec sleep 9m'\n"
    )
    below = folder / "below"
    below.mkdir()
    # Before its first start, there is no session of that name.
    assert hold(world, folder, "logs", "web")[0] == 3
    assert hold(world, folder, "up")[0] == 0
    service = services(world, folder)["web"]
    service.wait(match="served", timeout=30)
    assert hold(world, folder, "logs", "web")[1] == hold(world, below, "logs", "web")[1] == "served\n"
    assert json.loads(hold(world, folder, "status", "web", "--json")[1])["id"] == service.id
    code, _, said = hold(world, folder, "attach", "web")
    assert (code, service.id in said) == (4, True)  # it has no terminal
    assert hold(world, world.cwd, "logs", "web")[0] == 3
    assert hold(world, world.cwd, "logs", "shop-web")[1] == "served\n"
    # Two that run: neither is meant, and both are named.
    other = opened(world).start("exec sleep 600", name="web")
    for words in (("logs", "web"), ("stop", "web"), ("restart", "web")):
        code, out, said = hold(world, folder, *words)
        assert code == 2
        assert service.id in out + said
        assert other.id in out + said
    assert {service.refresh().state, other.refresh().state} == {"running"}
    assert json.loads(hold(world, world.cwd, "status", "web", "--json")[1])["id"] == other.id
    # Of two, the one that runs.
    other.stop()
    assert hold(world, folder, "restart", "web")[0] == 0
    service = services(world, folder)["web"]
    assert json.loads(hold(world, folder, "status", "web", "--json")[1])["id"] == service.id
    assert hold(world, folder, "stop", "web")[0] == 0
    assert services(world, folder) == {}
    assert hold(world, folder, "logs", "web")[0] == 2
    other = opened(world).start("exec sleep 600", name="web")
    assert hold(world, folder, "stop", "web")[0] == 0
    assert other.refresh().state == "exited"


def test_two_ups_at_the_same_time_start_each_service_once(world: World, folder: Path) -> None:
    (folder / "Procfile").write_text("".join(f"job{n}: exec sleep 600\n" for n in range(4)))
    both = [world.program(world.hold_argv("up"), prefix=("env", "-C", str(folder))) for _ in range(2)]
    assert [each.wait(60) for each in both] == [0, 0]
    assert sorted(every(world, folder)) == ["job0", "job1", "job2", "job3"]


# As it is, the example of foreman 0.87.2 (https://github.com/ddollar/foreman, data/example/Procfile, MIT License).
FOREMAN = """\
ticker:  ruby ./ticker $PORT
error:   ruby ./error
utf8:    ruby ./utf8
spawner: ./spawner
"""
# The shapes of the files of public projects: bundle exec, variables before the command and in it, a path of the
# project, comments, `release`.
PROCFILE = """\
# Processes of the production machines
## migrations
release: bundle exec rails db:migrate

web: bundle exec puma -C config/puma.rb -p ${PORT:-3000} -e $RAILS_ENV
worker:   QUEUE="default,mailers" bundle exec sidekiq -c ${WORKERS:-1} && echo over
stream: PORT=4000 yarn run start
# cron: bundle exec clockwork
webpack_dev: ./bin/webpack-dev-server --host 127.0.0.1
"""
# A program that prints how it was called, and serves until it is stopped.
PROGRAM = """\
#!/bin/sh
echo "$(basename "$0")" "$@" "queue=$QUEUE" "port=$PORT" "secret=$SECRET" "in=$(basename "$PWD")"
case "$*" in *db:migrate*) exit 0;; esac
exec sleep 600
"""
FOREMAN_CALLS = {
    "ticker": "ruby ./ticker 5000 queue= port=5000 secret=a b",
    "error": "ruby ./error queue= port=5100 secret=a b",
    "utf8": "ruby ./utf8 queue= port=5200 secret=a b",
    "spawner": "spawner queue= port=5300 secret=a b",
}
CALLS = {
    "release": "bundle exec rails db:migrate queue= port=5000 secret=a b",
    "web": "bundle exec puma -C config/puma.rb -p 5100 -e staging queue= port=5100 secret=a b",
    "worker": "bundle exec sidekiq -c 3 queue=default,mailers port=5200 secret=a b",
    "stream": "yarn run start queue= port=4000 secret=a b",
    "webpack_dev": "webpack-dev-server --host 127.0.0.1 queue= port=5400 secret=a b",
}


def program(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(PROGRAM)
    path.chmod(0o755)


@pytest.mark.covers("habits:13")
@pytest.mark.parametrize(
    "file, text, calls",
    [
        ("holdfast.toml", FILE, dict.fromkeys(NAMES, "")),
        ("Procfile", FOREMAN, FOREMAN_CALLS),
        ("Procfile", PROCFILE, CALLS),
    ],
    ids=["holdfast.toml", "Procfile of foreman", "Procfile"],
)
def test_the_same_project_in_two_directories_at_once_does_not_collide(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch, file: str, text: str, calls: dict[str, str]
) -> None:
    """The programs of a Procfile are stand-ins that print how they were called."""
    monkeypatch.setenv("PATH", f"{world.root / 'programs'}{os.pathsep}{os.environ['PATH']}")
    for name in ("bundle", "yarn", "ruby"):
        program(world.root / "programs" / name)
    other = world.cwd / "two"
    other.mkdir()
    for each in (folder, other):
        (each / file).write_text(text)
        (each / ".env").write_text("# staging\nRAILS_ENV=staging\nexport WORKERS='3'\nSECRET=\"a b\"\n")
        program(each / "bin" / "webpack-dev-server")
        program(each / "spawner")
        go(each)
    ups = [world.program(world.hold_argv("up"), prefix=("env", "-C", str(each))) for each in (folder, other)]
    assert [up.wait(60) for up in ups] == [0, 0], [up.errors() for up in ups]
    one, two = services(world, folder), services(world, other)
    assert set(one) == set(two) == set(calls) - {"migrate", "release"}
    assert not {each.id for each in one.values()} & {each.id for each in two.values()}
    assert sorted(every(world, folder)) == sorted(every(world, other)) == sorted(calls)
    below = other / "below"
    below.mkdir()
    assert hold(world, below, "down")[0] == 0
    assert services(world, other) == {}
    assert {each.refresh().state for each in one.values()} == {"running"}
    if file == "Procfile":
        for session in opened(world).sessions(all=True):
            assert session.wait(match="in=", timeout=30).reason in ("match", "exit")
            called = f"{calls[session.labels['service']]} in={os.path.basename(session.cwd or '')}\n"
            assert session.text() == called


@pytest.mark.covers("habits:14")
@pytest.mark.parametrize(
    "text, line, key, word",
    [
        ("[session.a]\ncommand = 'true'\n[session.b\ncommand = 'x'\n", 3, "", "not TOML"),
        ("[session.a]\ncommand = 'true'\nredy = 'port:1'\n", 3, "session.a.redy", "did you mean ready?"),
        ("[session.a]\ncommand = 'true'\ntimeout = 5m\n", 3, "", 'write timeout = "5m"'),
        ("[session]\na = { command = 'true', redy = 1 }\n", 2, "session.a.redy", "did you mean ready?"),
        ("[sesion.a]\ncommand = 'true'\n", 1, "sesion", "did you mean session?"),
        ("[session.a]\ncommand = 'true'\n[session.b]\ncwd = '.'\n", 3, "session.b.command", "must be a line"),
        ("[session.a]\ncommand = 'true'\nrestart = 'sometimes'\n", 3, "session.a.restart", "sometimes"),
        ("[session.a]\ncommand = 'true'\ncwd = 'no/such'\n", 3, "session.a.cwd", "not a directory"),
        (
            "[session.a]\ncommand = 'true'\nafter = ['b']\n[session.b]\ncommand = 'true'\nafter = ['a']\n",
            *(6, "session.b.after", "a -> b -> a"),
        ),
        (
            "[session.a]\ncommand = 'true'\n[session.b]\ncommand = 'x'\nafter = ['aa']\n",
            5,
            "session.b.after",
            "mean a?",
        ),
        ("[session.a]\ncommand = 'true'\n[session.'b/c d']\ncommand = 'true'\n", 3, "session.b/c d", "has a /"),
        ("[session.a]\ncommand = 'true'\nlabels = 'x'\n", 3, "session.a.labels", "not a mapping"),
        ("[session.a]\ncommand = 'true'\nsize = '80x24'\n", 3, "session.a.size", "give tty = true too"),
        ("[session.a]\ncommand = 'true'\n\nafter = ['a']\n", 4, "session.a.after", "a -> a"),
    ],
    ids=[
        "syntax",
        "key",
        "quotes",
        "inline",
        "section",
        "no command",
        "value",
        "directory",
        "cycle",
        "dependency",
        "name",
        "labels",
        "size",
        "itself",
    ],
)
def test_a_mistake_in_the_file_names_file_line_and_key_and_starts_nothing(
    world: World, folder: Path, text: str, line: int, key: str, word: str
) -> None:
    (folder / "holdfast.toml").write_text(text)
    code, _, said = hold(world, folder, "up")
    assert code == 2, said
    assert f"{folder / 'holdfast.toml'}:{line}: {key}" in said
    assert word in said
    assert world.open().sessions(all=True) == []


def test_without_a_project_up_says_what_to_create_and_ps_lists_as_ls_does(world: World, folder: Path) -> None:
    code, _, said = hold(world, folder, "up")
    assert code == 1
    assert "create holdfast.toml" in said
    session = world.open().start(["sleep", "600"])
    assert session.id in hold(world, folder, "ps")[1]
