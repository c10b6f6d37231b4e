"""Paths, permissions, ids and names, on a real file system."""

from __future__ import annotations

import os
import re
import socket
import stat
import subprocess
import sys
import unicodedata
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import BadArgument, UnsafeDirectory
from holdfast.home import (
    Home,
    check_labels,
    check_name,
    check_owner,
    is_id,
    new_id,
    runtime_directory,
)
from holdfast.model import KIND_LETTERS


def _mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


def test_home_is_chosen_by_variable_then_state_directory_then_user() -> None:
    environ = {"HOLDFAST_HOME": "/a", "XDG_STATE_HOME": "/b", "HOME": "/c"}
    assert Home("/x", environ).path == "/x"
    assert Home(None, environ).path == "/a"
    del environ["HOLDFAST_HOME"]
    assert Home(None, environ).path == "/b/holdfast"
    environ["XDG_STATE_HOME"] = "relative"
    assert Home(None, environ).path == "/c/.local/state/holdfast"
    environ["HOLDFAST_HOME"] = ""
    assert Home(None, environ).path == "/c/.local/state/holdfast"


def test_relative_home_becomes_absolute() -> None:
    assert Home("x").path == os.path.abspath("x")


@pytest.mark.parametrize("path", ["", "/h\0"])
def test_home_that_is_no_path_is_refused(path: str) -> None:
    with pytest.raises(BadArgument, match="home"):
        Home(path)


def test_relative_user_home_is_refused() -> None:
    with pytest.raises(BadArgument, match="set HOME"):
        Home(None, {"HOME": "relative"})


def test_paths_of_a_home() -> None:
    home = Home("/h")
    assert (home.sessions, home.locks, home.quarantine) == ("/h/sessions", "/h/locks", "/h/quarantine")
    assert (home.index, home.gc_stamp) == ("/h/index.db", "/h/gc.stamp")
    assert home.session("b7k2m9qa1") == "/h/sessions/b7k2m9qa1"


@pytest.mark.parametrize(
    "id",
    [
        "",
        "../x",
        "..",
        "a/b/c/d",
        "b7k2m",
        "B7K2M9QA1",
        "b" * 33,
        "b7k2m9q\0",
        "b7k2m9qa1\n",
        "\uff427k2m9qa1",
        "x" * 4096,
    ],
)
def test_what_is_no_id_never_becomes_a_path(id: str) -> None:
    assert not is_id(id)
    with pytest.raises(BadArgument) as caught:
        Home("/h").session(id)
    assert len(str(caught.value)) < 300


@given(st.text(max_size=40))
def test_id_check_agrees_with_the_expression(text: str) -> None:
    assert is_id(text) == bool(re.fullmatch(r"[a-z0-9]{6,32}", text))


def test_new_home_is_private_whatever_the_umask_and_parents_too(tmp_path: Path) -> None:
    home = Home(str(tmp_path / "state" / "deep" / "holdfast"))
    before = os.umask(0)
    try:
        home.create()
    finally:
        os.umask(before)
    parents = [str(tmp_path / "state"), str(tmp_path / "state" / "deep")]
    for path in (*parents, home.path, home.sessions, home.locks, home.quarantine):
        assert _mode(path) == 0o700
    home.create()


def test_directories_are_never_given_another_mode_after_their_birth(tmp_path: Path) -> None:
    """`strace` would show it; the audit hook of the interpreter shows the same calls."""
    code = (
        "import sys, os\n"
        "seen = []\n"
        "watched = ('os.mkdir', 'os.chmod')\n"
        "sys.addaudithook(lambda event, args: event in watched and seen.append((event, args)))\n"
        "os.umask(0)\n"
        "from holdfast.home import Home, runtime_directory\n"
        "Home().create(); runtime_directory()\n"
        "assert [event for event, _ in seen] == ['os.mkdir'] * 5, seen\n"
        "assert all(args[1] == 0o700 for _, args in seen), seen\n"
    )
    environ = {
        "HOLDFAST_HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path),
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    subprocess.run([sys.executable, "-B", "-c", code], env=environ, check=True)


def test_home_behind_a_symlink_of_the_user_is_taken(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    Home(str(tmp_path / "link")).create()
    assert (tmp_path / "real" / "sessions").is_dir()


def test_home_behind_a_dangling_symlink_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    with pytest.raises(UnsafeDirectory, match="HOLDFAST_HOME"):
        Home(str(tmp_path / "link")).create()


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777, 0o1777])
def test_home_that_others_may_write_is_refused_with_the_fix(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "home"
    path.mkdir()
    path.chmod(mode)
    with pytest.raises(UnsafeDirectory, match="chmod 700") as caught:
        Home(str(path)).create()
    assert caught.value.path == str(path)
    assert list(path.iterdir()) == []
    assert _mode(path) == mode


def test_planted_directory_inside_a_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "sessions").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafeDirectory, match="symlink"):
        Home(str(tmp_path / "home")).create()
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_home_in_the_place_of_a_file_or_below_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "home"):
        with pytest.raises(UnsafeDirectory):
            Home(str(path)).create()


def test_runtime_directory_is_below_the_users_own(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir(mode=0o700)
    path = runtime_directory({"XDG_RUNTIME_DIR": str(tmp_path / "run"), "TMPDIR": str(tmp_path)})
    assert path == str(tmp_path / "run" / "holdfast")
    assert _mode(path) == 0o700
    assert runtime_directory({"XDG_RUNTIME_DIR": str(tmp_path / "run")}) == path


@pytest.mark.parametrize("value", [None, "", "relative", "/nonexistent/run"])
def test_without_one_the_runtime_directory_is_in_the_temporary_directory(tmp_path: Path, value: str | None) -> None:
    environ = {"TMPDIR": str(tmp_path)} | ({} if value is None else {"XDG_RUNTIME_DIR": value})
    path = runtime_directory(environ)
    assert path == str(tmp_path / f"holdfast-{os.geteuid()}")
    assert _mode(path) == 0o700


def _plant(kind: str, path: Path, target: Path) -> None:
    match kind:
        case "symlink":
            path.symlink_to(target)
        case "dangling symlink":
            path.symlink_to(target / "nothing")
        case "plain file":
            path.write_text("")
        case "socket":
            with socket.socket(socket.AF_UNIX) as planted:
                planted.bind(str(path))
        case _:
            path.mkdir()
            path.chmod(int(kind, 8))
            with socket.socket(socket.AF_UNIX) as planted:
                planted.bind(str(path / "b.sock"))


@pytest.mark.covers("SEC-05")
@pytest.mark.parametrize("kind", ["symlink", "dangling symlink", "plain file", "socket", "777", "770", "755", "701"])
def test_planted_runtime_directory_is_refused_with_the_fix_and_untouched(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # sun_path is short, the path of a test is not.
    monkeypatch.chdir(tmp_path)
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    path = Path(f"holdfast-{os.geteuid()}")
    _plant(kind, path, target)
    before = os.lstat(path)
    with pytest.raises(UnsafeDirectory) as caught:
        runtime_directory({"TMPDIR": str(tmp_path)})
    assert caught.value.path == str(tmp_path / path)
    assert caught.value.fix
    after = os.lstat(path)
    assert (after.st_ino, after.st_mode, after.st_mtime_ns) == (
        before.st_ino,
        before.st_mode,
        before.st_mtime_ns,
    )
    assert list(target.iterdir()) == []


@pytest.mark.covers("SEC-05")
@pytest.mark.root
def test_runtime_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    path = tmp_path / f"holdfast-{os.geteuid()}"
    path.mkdir(mode=0o700)
    os.chown(path, 12345, 12345)
    with pytest.raises(UnsafeDirectory, match="uid 12345"):
        runtime_directory({"TMPDIR": str(tmp_path)})
    with pytest.raises(UnsafeDirectory, match="unset XDG_RUNTIME_DIR"):
        runtime_directory({"XDG_RUNTIME_DIR": str(path), "TMPDIR": str(tmp_path)})
    with pytest.raises(UnsafeDirectory, match="uid 12345"):
        Home(str(path)).create()
    assert list(path.iterdir()) == []


def test_runtime_directory_in_a_place_where_others_may_rename_is_refused(tmp_path: Path) -> None:
    base = tmp_path / "tmp"
    base.mkdir()
    base.chmod(0o777)
    with pytest.raises(UnsafeDirectory, match="sticky"):
        runtime_directory({"TMPDIR": str(base)})
    assert list(base.iterdir()) == []
    base.chmod(0o1777)
    assert runtime_directory({"TMPDIR": str(base)})


def test_missing_temporary_directory_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(UnsafeDirectory, match="TMPDIR"):
        runtime_directory({"TMPDIR": str(tmp_path / "gone")})


def test_new_id_has_the_letter_of_its_kind_and_the_form_of_an_id() -> None:
    for kind, letter in [*KIND_LETTERS.items(), ("something else", "x")]:
        assert re.fullmatch(letter + "[0-9a-z]{8}", new_id(kind))
    assert len(set(KIND_LETTERS.values())) == len(KIND_LETTERS)


def test_new_ids_use_every_character_equally_often() -> None:
    count = Counter("".join(new_id("local_bash")[1:] for _ in range(9000)))
    assert len(count) == 36
    # 72,000 characters, 2,000 each, standard deviation 44: a biased modulo would be off by 280.
    assert all(abs(found - 2000) < 280 for found in count.values())


@pytest.mark.parametrize("name", ["web", "a b", "7k", "über", "日本語", "web.1", "x" * 64, "😀"])
def test_ordinary_name_is_kept(name: str) -> None:
    assert check_name(name) == name


def test_name_in_either_normal_form_is_the_same_name() -> None:
    assert check_name("u\u0308ber") == check_name("\u00fcber") == "\u00fcber"


@pytest.mark.parametrize(
    "name, why",
    [
        ("", "empty"),
        ("x" * 65, "longer"),
        ("x" * 5000, "longer"),
        ("é" * 65, "longer"),
        ("a/b", "path"),
        ("../x", "path"),
        ("-rf", "option"),
        ("1234", "pid"),
        ("١٢٣", "pid"),
        ("last", "newest"),
        (" web", "space"),
        ("web ", "space"),
        ("we\0b", "control"),
        ("we\nb", "control"),
        ("we\x1bb", "control"),
        ("we\x7fb", "control"),
        ("we\u202eb", "invisible"),
        ("we\u200bb", "invisible"),
        ("we\u2066b", "invisible"),
        ("we\ufeffb", "invisible"),
        ("we\u00a0b", "invisible"),
        ("we\u2028b", "invisible"),
        ("we\u0085b", "invisible"),
        ("we\udc80b", "invisible"),
        (7, "int"),
        (None, "NoneType"),
    ],
)
def test_odd_name_is_refused_with_its_own_reason(name: object, why: str) -> None:
    with pytest.raises(BadArgument, match=why) as caught:
        check_name(name)
    assert caught.value.fix
    assert caught.value.message.isascii()


@given(st.text(max_size=80))
def test_accepted_name_is_short_visible_and_stable(text: str) -> None:
    try:
        name = check_name(text)
    except BadArgument:
        return
    assert 1 <= len(name) <= 64
    assert name == unicodedata.normalize("NFC", name) == check_name(name)
    assert name.isprintable()
    assert "/" not in name
    name.encode()


def test_owner_is_opaque_but_visible_and_bounded() -> None:
    assert check_owner("agent-7/task:12") == "agent-7/task:12"
    for odd in ("", "x" * 257, "a\nb", 7):
        with pytest.raises(BadArgument, match="owner"):
            check_owner(odd)


def test_labels_are_text_by_text() -> None:
    assert check_labels({"role": "web", "empty": ""}) == {"role": "web", "empty": ""}
    odd: list[object] = [
        None,
        ["a"],
        {"": "x"},
        {"a=b": "x"},
        {"a:b": "x"},
        {"a": 1},
        {"a": "x\n"},
        {1: "x"},
        {"a": "x" * 257},
        {str(number): "" for number in range(65)},
    ]
    for labels in odd:
        with pytest.raises(BadArgument):
            check_labels(labels)
