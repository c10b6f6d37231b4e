"""Places of one's own: `[places.NAME]` of the configuration. The suite of places runs over them, see `away`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from holdfast import errors
from holdfast.config import Config
from holdfast.places.kinds import KINDS, check
from places.conftest import configure_place
from support.places import deputies
from support.waiting import until

if TYPE_CHECKING:
    from support.places import Away
    from support.world import World

# What is configured, the error of a start, and what its text names.
BROKEN = {
    "missing": (["no-such-program", "exec"], errors.PlaceUnreachable, "no-such-program: No such file"),
    "hanging": (["sh", "-c", "read forever; read forever; exec sleep 600"], errors.PlaceUnreachable, "no answer"),
    "refusing": (["sh", "-c", "echo pod web-0 not found >&2; exit 1"], errors.PlaceUnreachable, "pod web-0 not found"),
    "no Python": (["env", "PATH=/nonexistent"], errors.PlaceNoPython, "python3"),
    "old Python": (["sh", "-c", "echo holdfast: a runner needs Python 3.9 >&2; exit 1"], errors.PlaceNoPython, "3.9"),
    "a banner and nothing": (["sh", "-c", "echo Welcome; exit 3"], errors.PlaceUnreachable, "broke off"),
}


@pytest.mark.covers("habits:21")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_command_gives_the_error_of_places_and_doctor_names_it(
    world: World, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    argv, error, named = BROKEN[name]
    configure_place(world, "box", argv)
    monkeypatch.setenv("HOLDFAST_PLACES_TIMEOUT", "1s" if name == "hanging" else "20s")
    with world.open() as hf:
        with pytest.raises(error, match=named):
            hf.run("true", place="box")
        assert hf.sessions(all=True) == []
    done = world.hold("doctor", "--place", "box")
    assert done.returncode == 1
    assert done.stdout.startswith("problem  place box: box ")
    assert named in done.stdout
    assert "fix: " in done.stdout
    until(lambda: not deputies(world), what="the end of all deputies")


@pytest.mark.covers("habits:21")
def test_a_banner_is_no_trouble_and_doctor_says_what_is_there(in_bwrap: Away, world: World) -> None:
    with world.open() as hf:
        plain = hf.config.own_places["box"].argv
        noisy = ["sh", "-c", 'echo Welcome; head -c 100000 /dev/zero; echo; exec "$@"', "noisy", *plain]
        configure_place(world, "box", noisy)
    with world.open() as hf:
        assert hf.run("echo hi", place="box").text() == "hi\n"
        before = [each.id for each in hf.sessions(all=True)]
    done = world.hold("doctor", "--place", "box", check=True)
    assert done.stdout.startswith("ok       place box: runs commands: Linux")
    assert f"in {in_bwrap.home}" in done.stdout
    # What it tried is gone.
    assert [each.id for each in world.open().sessions(all=True)] == before


def test_our_own_variables_stay_here(in_bwrap: Away, world: World) -> None:
    with world.open() as hf:
        argv = [word for word in hf.config.own_places["box"].argv if word != "--clearenv"]
    configure_place(world, "box", argv)
    with world.open() as hf:
        done = hf.run("echo ${HOLDFAST_HOME-none}", place="box")
        assert done.text() == "none\n"
        assert in_bwrap.state.exists()


def test_each_kind_has_a_program_and_stands_in_the_error_and_the_guides() -> None:
    guides = Path(__file__).parents[2] / "docs" / "guides"
    guide = (guides / "places.md").read_text() + (guides / "many-machines.md").read_text()
    with pytest.raises(errors.PlaceUnsupported) as refused:
        check("moon")
    for kind in KINDS:
        assert f"{kind}:" in refused.value.fix
        assert f"{kind}:" in guide
        assert kind == "node" or getattr(Config(), f"places_{kind}")


def test_a_mistyped_place_names_the_nearest(world: World) -> None:
    configure_place(world, "web-box", [sys.executable])
    done = world.hold("run", "--place", "webbox", "--", "true")
    assert (done.returncode, "did you mean web-box?" in done.stderr) == (125, True)
    assert "did you mean docker?" in world.hold("run", "--place", "dokcer:web", "--", "true").stderr


@pytest.mark.parametrize(
    "table, why",
    [
        ("[places.box]\n", "places.box.argv: not a list"),
        ('[places.box]\nargv = "sh"\n', "places.box.argv: not a list"),
        ('[places.box]\nargs = ["sh"]\n', "did you mean argv?"),
        ('[places.Box]\nargv = ["sh"]\n', "not a valid name for a place"),
        ('[places]\nbox = "sh"\n', "unknown key"),
    ],
)
def test_a_mistake_in_the_table_is_named_with_its_line(world: World, table: str, why: str) -> None:
    configure_place(world, "box", [])
    file = world.root / "user" / ".config" / "holdfast" / "config.toml"
    file.write_text(table)
    done = world.hold("run", "--place", "box", "--", "true")
    assert (done.returncode, f"{file}:" in done.stderr, why in done.stderr) == (2, True, True), done.stderr
