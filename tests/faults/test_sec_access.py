"""SEC-04 to SEC-07: other users, planted directories, stray descriptors, and modes from the moment of birth."""

from __future__ import annotations

import array
import os
import re
import shlex
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from holdfast.core import wire
from holdfast.errors import UnsafeDirectory
from support import processes
from support.bystander import Bystanders
from support.peer import HELLO, Peer
from support.points import Points
from support.promised import Beside, home_is_usable, is_typed, promised
from support.serving import Serving, request
from support.waiting import until
from support.world import World

NOBODY = 65534
# An interpreter that any user may run; ours may stand in a directory of our own.
_COMMON_PYTHON = next((path for path in ("/usr/bin/python3", sys.executable) if os.path.exists(path)), sys.executable)
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]

# Connects, says what a client or a host would say, and tells every byte that comes back.
FOREIGNER = """
import socket, sys
sock = socket.socket(socket.AF_UNIX)
sock.settimeout(5)
try:
    sock.connect(sys.argv[1])
except OSError as problem:
    print("refused", type(problem).__name__)
    sys.exit()
got = b""
try:
    sock.sendall(bytes.fromhex(sys.argv[2]))
except OSError:
    pass
try:
    while True:
        part = sock.recv(4096)
        if not part:
            break
        got += part
except ConnectionResetError:
    pass
print("heard", got.hex())
"""


def foreigner(world: World, path: str, talk: bytes) -> str:
    """What another user gets out of this socket."""
    program = world.program([_COMMON_PYTHON, "-I", "-S", "-c", FOREIGNER, path, talk.hex()], prefix=AS_NOBODY)
    said = program.line()
    assert program.wait() == 0, program.errors()
    return said


@contextmanager
def opened_up(*paths: Path) -> Iterator[None]:
    """Everybody may do everything with these: what is left is the look at who is calling."""
    before = {path: stat.S_IMODE(path.stat().st_mode) for path in paths}
    for path in paths:
        path.chmod(0o777)
    try:
        yield
    finally:
        for path, mode in before.items():
            if path.exists():
                path.chmod(mode)


@pytest.mark.covers("SEC-04")
@pytest.mark.root
@pytest.mark.needs("setpriv")
@pytest.mark.parametrize("modes", ["as they are", "open to all"])
def test_sec_04_another_user_is_refused_by_runner_and_launcher_before_a_byte_is_parsed(
    world: World, bystander: Bystanders, beside: Beside, modes: str
) -> None:
    session = world.open().start(world.probe("say", "secret output", "cat"), stdin="open")
    assert session.wait(match="secret output", timeout=30).reason == "match"
    runner, launcher = Path(str(session.endpoint)), next(world.runtime.glob("launcher-*.sock"))
    talk = wire.control(HELLO) + wire.control({"type": "write", "id": 1, "data": "injected\n"})
    talk += wire.control({"type": "stop", "id": 2, "grace": 0})
    start = wire.control({"type": "start", "home": str(world.home), "spec": {"pass_fds": []}})
    if modes == "as they are":
        assert foreigner(world, str(runner), talk) == "refused PermissionError"
        assert foreigner(world, str(launcher), start) == "refused PermissionError"
    else:
        with opened_up(world.root, world.runtime_base, world.runtime, runner, launcher):
            for _ in range(5):
                assert foreigner(world, str(runner), talk) == "heard "
                assert foreigner(world, str(launcher), start) == "heard "
    assert "injected" not in session.text()
    done = world.open().run("echo fine")
    assert done.text() == "fine\n"
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=0).done


LISTENER = """
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
server.listen()
print("ready", flush=True)
while True:
    peer, _ = server.accept()
    got = peer.recv(1 << 20)
    print("caught", len(got), flush=True)
"""


@pytest.mark.covers("SEC-05")
@pytest.mark.root
@pytest.mark.needs("setpriv")
def test_sec_05_a_ready_made_socket_of_another_user_gets_no_start_request(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    """Its name is right and its directory is ours: only who listens there is wrong."""
    launcher = next(world.runtime.glob("launcher-*.sock"))
    world.end_launchers()
    with opened_up(world.root, world.runtime_base, world.runtime):
        program = world.program([_COMMON_PYTHON, "-I", "-S", "-c", LISTENER, str(launcher)], prefix=AS_NOBODY)
        assert program.line() == "ready", program.errors()
    done = world.open().run("echo fine", env={"TOKEN": "s3cret"})
    assert done.text() == "fine\n"
    promised(world, done, bystander=bystander, beside=beside)
    program.kill()
    assert program.line() in ("", "caught 0")


def plant_symlink(world: World) -> None:
    (world.root / "theirs").mkdir(mode=0o700)
    world.runtime.symlink_to(world.root / "theirs")


def plant_foreign(world: World) -> None:
    world.runtime.mkdir(mode=0o700)
    os.chown(world.runtime, NOBODY, NOBODY)


def plant_open(world: World) -> None:
    world.runtime.mkdir()
    world.runtime.chmod(0o777)


def plant_file(world: World) -> None:
    world.runtime.write_text("")


def plant_socket_inside(world: World) -> None:
    plant_open(world)
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(world.runtime / "launcher-0123456789abcdef.sock"))


def plant_foreign_base(world: World) -> None:
    os.chown(world.runtime_base, NOBODY, NOBODY)


PLANTS = [plant_symlink, plant_foreign, plant_open, plant_file, plant_socket_inside, plant_foreign_base]


@pytest.mark.covers("SEC-05")
@pytest.mark.root
def test_sec_05_a_planted_runtime_directory_is_refused_with_the_fix_and_nothing_is_made_through_it(
    world: World, bystander: Bystanders
) -> None:
    for plant in PLANTS:
        plant(world)
        before = sorted(str(path) for path in world.root.rglob("*") if world.home not in path.parents)
        with pytest.raises(UnsafeDirectory) as refusal:
            world.open()
        is_typed(refusal.value)
        assert str(world.runtime_base) in str(refusal.value)
        after = sorted(str(path) for path in world.root.rglob("*") if world.home not in path.parents)
        assert [path for path in after if path not in before] in ([], [str(world.home)]), plant
        os.chown(world.runtime_base, 0, 0)
        if world.runtime.is_symlink() or world.runtime.is_file():
            world.runtime.unlink()
        else:
            shutil.rmtree(world.runtime, ignore_errors=True)
        shutil.rmtree(world.root / "theirs", ignore_errors=True)
    home_is_usable(world.open())


@pytest.mark.covers("SEC-06")
@pytest.mark.parametrize("way", ["launcher", "direct"])
def test_sec_06_a_command_sees_its_streams_and_what_it_was_passed_and_nothing_else(
    world: World, points: Points, bystander: Bystanders, beside: Beside, way: str
) -> None:
    if way == "direct":
        points.off("launcher")
    canaries = []
    passed = os.open(world.root / "passed", os.O_RDWR | os.O_CREAT, 0o600)
    os.write(passed, b"through\n")
    os.lseek(passed, 0, 0)
    for number in (3, 9, 40, 63, 64, 65, 200):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(passed, number, inheritable=True)
            canaries.append(number)
    socks = socket.socketpair()
    for sock in socks:
        os.set_inheritable(sock.fileno(), True)
    try:
        hf = world.open()
        plain = hf.run(world.probe("quiet", "print-fds"))
        assert plain.text() == "fds 0 1 2\n"
        given = hf.run(world.probe("quiet", "print-fds"), pass_fds=[passed])
        assert given.text() == f"fds 0 1 2 {passed}\n"
        shown = hf.run(["bash", "-c", f"cat <&{passed}"], pass_fds=[passed])
        assert shown.text() == "through\n"
        # Ours have none of them either.
        session = hf.start(world.probe("forever"), pass_fds=[passed])
        assert session.runner_pid is not None
        for pid in [session.runner_pid, *(row.pid for row in world.launchers())]:
            assert str(world.root / "passed") not in processes.descriptors(pid).values()
        assert session.stop(grace=0).done
        promised(world, given, bystander=bystander, beside=beside)
    finally:
        for fd in [passed, *canaries]:
            os.close(fd)
        for sock in socks:
            sock.close()


@pytest.mark.covers("SEC-06")
def test_sec_06_descriptors_that_were_not_announced_are_closed_at_once_by_launcher_and_runner(
    world: World, bystander: Bystanders, beside: Beside
) -> None:
    stray = os.open(world.root / "stray", os.O_RDWR | os.O_CREAT, 0o600)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [stray] * 100))]
    session = world.open().start(world.probe("cat"), stdin="open")
    assert session.wait(match="^ready$", timeout=30).reason == "match"
    assert session.runner_pid is not None
    launcher = str(next(world.runtime.glob("launcher-*.sock")))
    try:
        with Peer(str(session.endpoint)) as peer:
            peer.hello()
            before = processes.descriptors(session.runner_pid)
            for _ in range(20):
                peer.sock.sendmsg([wire.control({"type": "ping", "id": 1})], rights)
                assert peer.message()["type"] == "reply"
            # None more; the connection of an earlier call may go meanwhile.
            assert processes.descriptors(session.runner_pid).items() <= before.items()
        with Peer(launcher, greet=False) as peer:
            # A start that is never finished: the spare waits for the rest and holds what came so far.
            peer.sock.sendmsg([b"\0"], rights)
        until(lambda: not holders(world.root / "stray"), what="the end of the stray descriptors")
        done = world.open().run(world.probe("quiet", "print-fds"))
        assert done.text() == "fds 0 1 2\n"
    finally:
        os.close(stray)
    promised(world, session, bystander=bystander, beside=beside)
    assert session.stop(grace=0).done


def holders(path: Path) -> list[int]:
    others = (row.pid for row in processes.table().values() if row.pid != os.getpid())
    return [pid for pid in others if str(path) in processes.descriptors(pid).values()]


# A whole day of a home: every kind of file comes into being.
DAY = """
import os, sys, holdfast
os.umask(0)
with holdfast.open() as hf:
    hf.run("echo out; echo err >&2", umask=0)
    seen = hf.start("seq 1 400000; cat", name="web", key="k", stdin="open", log_cap="1MiB", umask=0)
    seen.wait(match="^400000$", timeout=30)
    seen.update(name="api", labels={"a": "b"})
    hf.start("sleep 60 & echo", umask=0).stop(grace=0)
    seen.stop(grace=0)
    inbox = hf.signals("agent-7")
    with inbox.waker() as waker:
        shell = hf.start("echo drawn; read line; echo $line; exit 4", tty=True, owner="agent-7", notify="exit", umask=0)
        shell.wait(match="drawn", timeout=30)
        with shell.attach() as attachment:
            next(iter(attachment))
        assert "drawn" in shell.screen().text
        shell.resize(10, 40)
        shell.submit("typed")
        shell.wait(timeout=30)
        waker.wait(30)
        with inbox.claim() as batch:
            assert [each.session for each in batch.signals] == [shell.id]
    with hf.consumer("second", owners=["agent-7"]).claim() as batch:
        assert len(batch.signals) == 1
    assert "typed" in shell.screen().text
    hf.run("exit 3", key="k", replace=True, umask=0)
    hf.collect()
    hf.sessions(all=True)
    try:
        hf.run(["/nonexistent"])
    except holdfast.HoldfastError:
        pass
print("done")
"""

_CALL = re.compile(r"^\d+ +(\w+)\((.*)\) += (\S+)")


@pytest.mark.covers("SEC-07", "found:34")
@pytest.mark.slow
@pytest.mark.needs("strace")
@pytest.mark.parametrize("way", ["launcher", "direct"])
def test_sec_07_everything_of_ours_is_private_from_birth_and_never_narrowed_afterwards(
    world: World, points: Points, way: str
) -> None:
    if way == "direct":
        points.off("launcher")
    trace = world.root / "trace"
    calls = "open,openat,creat,mkdir,mkdirat,mknod,mknodat,bind,chmod,fchmod,fchmodat"
    tracer = ["strace", "-f", "-y", "-qq", "-s", "4096", "-e", f"trace={calls}", "-e", "signal=none", "-o", str(trace)]
    program = world.host(DAY, prefix=tracer)
    assert program.line(60) == "done", program.errors()
    world.end_launchers()
    assert program.wait(30) == 0, program.errors()
    made = {"files": 0, "directories": 0, "sockets": 0}
    ours = (str(world.home), str(world.runtime))
    for line in trace.read_text(errors="replace").splitlines():
        match = _CALL.match(line)
        if match is None or match[3].startswith("-1") or not any(path in line for path in ours):
            continue
        call, arguments = match[1], match[2]
        if call in ("open", "openat", "creat") and "O_CREAT" in arguments:
            assert arguments.rpartition(", ")[2] == "0600", line
            made["files"] += 1
        elif call in ("mkdir", "mkdirat"):
            assert arguments.rpartition(", ")[2] == "0700", line
            made["directories"] += 1
        elif call == "bind":
            made["sockets"] += 1
        else:
            assert call in ("open", "openat"), f"a mode was changed afterwards: {line}"
    # Sockets get their mode from a descriptor that has no name yet.
    narrowed = [line for line in trace.read_text(errors="replace").splitlines() if "fchmod(" in line]
    assert all("<socket:[" in line or "<UNIX" in line for line in narrowed), narrowed
    assert len(narrowed) >= made["sockets"]
    assert made["files"] > 30
    assert made["directories"] >= 8
    assert made["sockets"] >= 5
    names = {path.name for path in world.home.rglob("*")}
    assert {"marks.jsonl", "inputs.jsonl", "signals.jsonl", "index.db"} <= names, "the day of a terminal and a consumer"
    assert any(name.startswith("tty.") for name in names)
    for path in [*world.home.rglob("*"), *world.runtime.rglob("*")]:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), f"{path} is {mode:o}"


@pytest.mark.covers("found:48")
@pytest.mark.root
@pytest.mark.needs("setpriv")
def test_a_unix_socket_of_the_server_refuses_other_users(world: World) -> None:
    """Its directory was opened to others after the server had looked at it."""
    path = world.root / "sock" / "s"
    serving = Serving(world, "--unix", str(path))
    bearer = {"Host": "localhost", "Authorization": f"Bearer {serving.token}"}
    talk = "".join(f"{name}: {value}\r\n" for name, value in bearer.items())
    asked = f"GET /v1/info HTTP/1.1\r\n{talk}Connection: close\r\n\r\n".encode()
    with opened_up(world.root, path.parent, path):
        heard = bytes.fromhex(foreigner(world, str(path), asked).removeprefix("heard "))
    assert heard.startswith(b"HTTP/1.1 403 ")
    assert b"foreign-peer" in heard
    assert request(str(path), "/v1/info", bearer).status == 200


@pytest.mark.covers("found:48")
@pytest.mark.root
@pytest.mark.needs("setpriv")
@pytest.mark.parametrize("planted", ["directory", "link", "file"])
def test_the_advice_for_a_foreign_runtime_directory_works_without_root(world: World, planted: str) -> None:
    shared, user = world.root / "shared", world.root / "user"
    shared.mkdir()
    shared.chmod(0o1777)
    path = shared / f"holdfast-{NOBODY}"
    if planted == "directory":
        path.mkdir()
    elif planted == "link":
        path.symlink_to(user)
    else:
        path.touch()
    world.root.chmod(0o755)
    os.chown(user, NOBODY, NOBODY)
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HOLDFAST_"))},
        "HOME": str(user),
        "TMPDIR": str(shared),
        "HOLDFAST_HOME": str(user / "state"),
    }
    hold = shlex.join(world.hold_argv("run", "--", "echo", "fine"))
    # Our interpreter may stand in a directory of our own: it may be read, and nothing more.
    nobody = [*AS_NOBODY, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"]
    tried = subprocess.run([*nobody, "sh", "-c", hold], env=environment, capture_output=True, text=True, check=False)
    assert tried.returncode != 0
    advice = re.search(r"`(.*)`", tried.stderr)
    assert advice is not None, tried.stderr
    followed = [*nobody, "sh", "-c", f"{advice[1]} && {hold}"]
    done = subprocess.run(followed, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "fine\n"), done.stderr
    launchers = list((user / ".cache").glob("holdfast-run/holdfast/launcher-*.lock"))
    for lock in launchers:
        pid, _, start = lock.read_text().strip().partition(" ")
        row = processes.look(int(pid))
        if row is not None and str(row.start) == start:
            processes.send(row, signal.SIGTERM)
            processes.wait_any([row], 10)
