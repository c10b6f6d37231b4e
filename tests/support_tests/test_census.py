"""The census fails a test that leaves something, by name, and ends it: proven on small suites that leak."""

from __future__ import annotations

import re

from support import census, processes
from support.small_suite import run
from support.waiting import wait_gone
from support.world import World


def assert_matches(pattern: str, report: str) -> None:
    assert re.search(pattern, report), report


LEAKS = """
census._LEAVING_BOUND_S = 0.5  # nobody here is about to leave

def test_process(world):
    os.posix_spawn(sys.executable, probe.argv("forever"), {})

def test_zombie(world):
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)

def test_descriptor(world):
    os.open("/dev/null", os.O_RDONLY)

def test_thread(world):
    threading.Thread(target=threading.Event().wait, daemon=True, name="stray").start()

def test_runtime(world, request):
    world.runtime.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(world.runtime / "b1.sock"))
    held = open(world.runtime / "launcher-x.lock", "w")
    fcntl.flock(held, fcntl.LOCK_EX)
    request.config.held = held

def test_traceback(world):
    world.session("b12345678").mkdir(parents=True)
    (world.session("b12345678") / "runner.log").write_text("Traceback: the runner slipped")

def test_file_without_a_world():
    Path.home().joinpath("stray").write_text("")
"""
SAID = {
    "process": ["process pid .*probe.py forever"],
    "zombie": ["zombie pid .*not reaped"],
    "descriptor": ["descriptor .* -> /dev/null"],
    "thread": ["thread stray"],
    "runtime": ["socket .*b1.sock", "held lock .*launcher-x.lock"],
    "traceback": ["traceback in state/sessions/b12345678/runner.log", "the runner slipped"],
    "file_without_a_world": ["file outside the test's world: .*stray"],
}


def test_what_a_test_leaves_fails_it_by_name(world: World) -> None:
    """Each is said of the test that left it, and of no other: what it was is ended, or known, before the next."""
    report = run(world, LEAKS, "-q")
    assert f"{len(SAID)} passed, {len(SAID)} errors" in report
    parts = re.split(r"^_+ ERROR at teardown of test_(\w+) _+$", report, flags=re.MULTILINE)
    told = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert list(told) == list(SAID)
    for name, said in SAID.items():
        for pattern in said:
            assert_matches(pattern, told[name])
        left_by_others = [pattern for other in SAID if other != name for pattern in SAID[other]]
        listed = told[name].partition("left behind:")[2].partition("---")[0]
        assert not [pattern for pattern in left_by_others if re.search(pattern, listed)], listed


def test_an_ended_orphan_is_not_a_leak(world: World) -> None:
    assert "1 passed" in run(world, "def test_ok(world):\n    subprocess.run(probe.argv('daemon', 'exit', 3))\n", "-q")


def test_what_is_left_is_ended(world: World) -> None:
    gate = world.gate()
    body = f"""
    census._LEAVING_BOUND_S = 0.5  # it is not about to leave
    def test_leak(world):
        subprocess.run(probe.argv("daemon", "ignore", "TERM", "tell", "{gate}", "up", "forever"))
        with open("{gate}") as told:
            told.readline()
        Path("{world.root}/pids").write_text(Path(f"/proc/self/task/{{os.getpid()}}/children").read_text())
    """
    report = run(world, body, "-q")
    assert_matches("process pid .*probe.py daemon ignore TERM", report)
    for pid in (world.root / "pids").read_text().split():
        assert processes.is_gone(int(pid))
        wait_gone(int(pid))


def test_a_process_that_is_no_descendant_is_known_by_what_names_the_world(world: World) -> None:
    home = world.program(world.probe("forever"), env={"HOLDFAST_HOME": f"{world.root}/x"})
    bound = world.root / "b.sock"
    code = f"import socket; s = socket.socket(socket.AF_UNIX); s.bind({str(bound)!r}); print('bound'); input()"
    listener = world.host(code)
    assert (home.line(), listener.line()) == ("ready", "bound")
    sockets = census.sockets_under(world.root)
    assert len(sockets) == 1
    rows = {pid: processes.look(pid) for pid in (home.pid, listener.pid)}
    found = {pid for pid, row in rows.items() if row is not None and census.belongs(row, world.root, sockets)}
    assert found == {home.pid, listener.pid}
    row = rows[home.pid]
    assert row is not None
    assert not census.belongs(row, world.root / "elsewhere", set())


def test_a_failed_test_keeps_its_evidence(world: World) -> None:
    body = """
    def test_fails(world):
        (world.root / "note").write_text("seen")
        assert False
    """
    assert "1 failed" in run(world, body, "-q", "--evidence", str(world.root / "kept"))
    (note,) = (world.root / "kept").glob("*/note")
    assert note.read_text() == "seen"
    assert "--- processes" in note.with_name("evidence.txt").read_text()


def test_a_missing_lever_skips_and_fails_when_strict(world: World) -> None:
    body = """
    from support import levers
    levers.LEVERS["moon"] = lambda: "no moon here"
    @pytest.mark.needs("moon")
    def test_it(): pass
    @pytest.mark.needs("mars")
    def test_typo(): pass
    """
    loose = run(world, body)
    assert "1 skipped" in loose
    assert "no moon here" in loose
    assert "no lever 'mars'" in loose
    strict = run(world, body, "--strict-env")
    assert "lever moon is missing: no moon here" in strict


def test_a_launcher_is_asked_to_leave(world: World) -> None:
    gate = world.gate()
    body = f"""
    from support import processes
    def test_it(world):
        world.runtime.mkdir()
        words = ["daemon", "exit-on", "TERM", "0", "tell", "{gate}", "up", "forever"]
        subprocess.run(probe.argv(*words))
        with open("{gate}") as told:
            told.readline()
        (pid,) = Path(f"/proc/self/task/{{os.getpid()}}/children").read_text().split()
        row = processes.look(int(pid))
        (world.runtime / "launcher-x.lock").write_text(f"{{row.pid}} {{row.start}}\\n")
        assert [one.pid for one in world.launchers()] == [row.pid]
    """
    assert "1 passed" in run(world, body, "-q")
