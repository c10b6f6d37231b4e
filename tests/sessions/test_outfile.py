"""Files that are written where the user wants them, beside what others planted there."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Session
from holdfast.errors import UnsafeFile
from holdfast.sessions.recording import save
from support.world import World

NOBODY = 65534


@pytest.fixture
def shared(world: World) -> Path:
    """A directory as /tmp is one."""
    path = world.root / "shared"
    path.mkdir()
    path.chmod(0o1777)
    return path


@pytest.fixture
def session(world: World) -> Session:
    return world.open().run("printf one", tty=True)


@pytest.mark.covers("found:41")
@pytest.mark.parametrize("surface", ["export", "hold export", "hold screen"])
def test_a_planted_link_is_replaced_and_what_it_names_stays(
    world: World, shared: Path, session: Session, surface: str
) -> None:
    victim, out = world.root / "victim", shared / "out.cast"
    victim.write_text("precious")
    out.symlink_to(victim)
    # By the names that drafts had: those of every process that may come next, and our own.
    for pid in (os.getpid(), *range(os.getpid(), os.getpid() + 50)):
        draft = shared / f"out.cast.{pid}.part"
        if not draft.is_symlink():
            draft.symlink_to(victim)
    planted = {path.name for path in shared.iterdir()}
    if surface == "export":
        session.export(str(out))
    elif surface == "hold export":
        world.hold("export", session.id, out, check=True)
    else:
        world.hold("screen", session.id, "-o", out, check=True)
    assert victim.read_text() == "precious"
    assert not out.is_symlink()
    assert "one" in out.read_text()
    assert {path.name for path in shared.iterdir()} == planted


@pytest.mark.covers("found:41")
def test_the_draft_has_a_name_that_cannot_be_guessed_and_is_made_new(shared: Path) -> None:
    names: set[str] = set()

    def content() -> Iterator[bytes]:
        names.update(path.name for path in shared.iterdir())
        yield b"x"

    for _ in range(3):
        save(str(shared / "out"), content())
    drafts = names - {"out"}
    assert len(drafts) == 3
    assert all(len(name.removeprefix("out.").removesuffix(".part")) == 16 for name in drafts)
    assert [path.name for path in shared.iterdir()] == ["out"]


@pytest.mark.root
@pytest.mark.covers("found:41")
def test_a_pipe_or_a_device_is_written_to_only_if_it_is_ours_or_the_systems(
    world: World, shared: Path, session: Session
) -> None:
    pipe = shared / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    save(str(pipe), [b"for us"])
    assert os.read(reader, 100) == b"for us"
    os.chown(pipe, NOBODY, -1)
    with pytest.raises(UnsafeFile):
        save(str(pipe), [b"for somebody else"])
    assert os.read(reader, 100) == b""
    os.close(reader)
    # A link to a pipe is not followed either.
    target, link = world.root / "target", shared / "link"
    os.mkfifo(target)
    link.symlink_to(target)
    save(str(link), [b"new"])
    assert link.read_bytes() == b"new"
    assert "one" in world.hold("export", session.id, "/dev/stdout", check=True).stdout
