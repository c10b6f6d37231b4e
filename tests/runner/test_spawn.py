"""From a spec to a process: exactly the argv, environment, directory, mask, limits and descriptors that were asked."""

from __future__ import annotations

import errno
import json
import os
import posix
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.runner import spawn
from holdfast.runner.spawn import Spawned, SpawnFailed

# Tells everything a process is born with, as JSON, before the interpreter could change it: no imports but these.
_TELL = """
import json, os, resource, signal, sys
listing = os.open("/proc/self/fd", os.O_RDONLY)
names = sorted(int(name) for name in os.listdir(listing))
status = dict(line.rstrip("\\n").split(":\\t", 1) for line in open("/proc/self/status") if ":\\t" in line)
print(json.dumps({
    "fds": [fd for fd in names if fd != listing and os.path.lexists(f"/proc/self/fd/{fd}")],
    "argv": [word.hex() for word in open("/proc/self/cmdline", "rb").read().split(b"\\0")[:-1]],
    "env": {os.fsencode(k).hex(): os.fsencode(v).hex() for k, v in os.environ.items()},
    "cwd": os.getcwd(),
    "umask": status["Umask"],
    "blocked": int(status["SigBlk"], 16),
    "ignored": int(status["SigIgn"], 16),
    "nofile": resource.getrlimit(resource.RLIMIT_NOFILE),
    "core": resource.getrlimit(resource.RLIMIT_CORE),
    "pgid": os.getpgrp(),
    "pid": os.getpid(),
    "oom": int(open("/proc/self/oom_score_adj").read()),
    "stdin": os.readlink("/proc/self/fd/0"),
    "same": os.path.samestat(os.fstat(1), os.fstat(2)),
}))
"""
TELL = [sys.executable, "-I", "-S", "-c", _TELL]

Spawn = Callable[..., Spawned]


def spec(command: object, **options: Any) -> dict[str, Any]:
    return {
        "command": command,
        "shell": "/bin/sh",
        "argv0": None,
        "cwd": "/",
        "umask": 0o22,
        "limits": {},
        "oom_score_adj": 0,
        "stdin": "closed",
        "merge_stderr": False,
        **options,
    }


@pytest.fixture
def start() -> Iterator[Spawn]:
    """Spawn, and leave neither pipe nor process behind."""
    before = os.getcwd()
    made: list[Spawned] = []

    def go(
        command: object, env: dict[str, str] | None = None, passed: list[tuple[int, int]] | None = None, **options: Any
    ) -> Spawned:
        try:
            made.append(spawn.spawn(spec(command, **options), env or {"PATH": os.defpath}, passed or []))
        finally:
            os.chdir(before)
        return made[-1]

    yield go
    for command in made:
        for fd in [*command.outputs.values(), *([] if command.stdin is None else [command.stdin])]:
            os.close(fd)
        try:
            os.waitpid(command.pid, 0)
        except ChildProcessError:
            pass


def output(command: Spawned, stream: str = "stdout") -> bytes:
    """All it prints, and its end."""
    fd = command.outputs[stream]
    os.set_blocking(fd, True)
    parts = []
    while part := os.read(fd, 1 << 16):
        parts.append(part)
    return b"".join(parts)


def told(command: Spawned) -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(output(command))
    facts["argv"] = [bytes.fromhex(word) for word in facts["argv"]]
    facts["env"] = {bytes.fromhex(k): bytes.fromhex(v) for k, v in facts["env"].items()}
    return facts


def test_a_list_is_argv_and_nothing_reads_it_but_the_program(start: Spawn) -> None:
    odd = ["", " ", "$HOME", "*", "a'b\"c", "ü", os.fsdecode(b"\xff\xfe"), "-c", "x\ny"]
    assert told(start([*TELL, *odd]))["argv"] == [os.fsencode(word) for word in [*TELL, *odd]]


def test_text_runs_in_the_shell(start: Spawn) -> None:
    assert output(start('echo $((6*7)) "$0"')) == b"42 /bin/sh\n"


def test_another_name_can_stand_in_argv0(start: Spawn) -> None:
    assert output(start(["sh", "-c", "cat /proc/$$/cmdline"], argv0="-login"))[:7] == b"-login\0"


def test_the_environment_is_the_one_given_and_no_other(start: Spawn) -> None:
    env = {"PATH": "/bin", "EMPTY": "", "ODD": "a=b\n\u00fc" + os.fsdecode(b"\xff")}
    found = told(start(TELL, env))["env"]
    found.pop(b"LC_CTYPE", None)  # the interpreter's own, where no locale is set
    assert found == {os.fsencode(name): os.fsencode(value) for name, value in env.items()}


def test_directory_and_mask_are_the_commands_and_ours_come_back(start: Spawn, tmp_path: Path) -> None:
    before = os.umask(0o022)
    os.umask(before)
    facts = told(start(TELL, cwd=str(tmp_path), umask=0o157))
    assert (facts["cwd"], facts["umask"]) == (str(tmp_path), "0157")
    assert os.umask(before) == before


def test_the_command_leads_a_group_of_its_own_with_no_signal_blocked_or_ignored(start: Spawn) -> None:
    before = [signal.signal(number, signal.SIG_IGN) for number in (signal.SIGTERM, signal.SIGUSR2)]
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        command = start(["cat", "/proc/self/status"], oom_score_adj=0)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
        for number, handler in zip((signal.SIGTERM, signal.SIGUSR2), before, strict=True):
            signal.signal(number, handler)
    status = dict(line.split(":\t") for line in output(command).decode().splitlines() if ":\t" in line)
    assert int(status["SigBlk"], 16) == 0
    # Also those that the C library keeps for itself.
    assert int(status["SigIgn"], 16) == 0
    assert told(start(TELL))["pgid"] != os.getpgrp()
    facts = told(start(TELL))
    assert facts["pgid"] == facts["pid"]


def test_limits_hold_from_birth_soft_and_hard_and_ours_are_unchanged(start: Spawn) -> None:
    ours = resource.getrlimit(resource.RLIMIT_NOFILE)
    facts = told(start(TELL, limits={"nofile": [77, 99], "core": [0, 0]}))
    assert facts["nofile"][0] == 77
    assert facts["core"] == [0, 0]
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == ours
    # The hard one is set from outside right after the birth: a command that asks later sees it.
    late = start(["sh", "-c", "read line; ulimit -Hn"], limits={"nofile": [77, 99]}, stdin="open")
    assert late.stdin is not None
    os.write(late.stdin, b"\n")
    assert output(late) == b"99\n"


def test_a_limit_that_leaves_no_descriptor_to_us_is_still_set_and_taken_back(
    start: Spawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the faulty code the score could not be written any more under such a limit, and the C library refused
    to hand over descriptors above it."""
    # The suite's own looks at every child that is born, for which there is no descriptor then.
    monkeypatch.setattr(os, "posix_spawn", posix.posix_spawn)
    before = Path("/proc/self/oom_score_adj").read_text()
    command = start(["cat", "/proc/self/oom_score_adj"], limits={"nofile": [4, 4]}, oom_score_adj=900)
    assert output(command) == b"900\n"
    assert Path("/proc/self/oom_score_adj").read_text() == before


def test_the_kernel_takes_the_command_before_us(start: Spawn) -> None:
    before = Path("/proc/self/oom_score_adj").read_text()
    assert told(start(TELL, oom_score_adj=1000))["oom"] == 1000
    assert Path("/proc/self/oom_score_adj").read_text() == before


def inherited() -> set[int]:
    """What whoever started the tests left open for every child; a runner sheds it at its own start."""
    return {int(name) for name in os.listdir("/proc/self/fd") if int(name) > 2 and _is_inheritable(int(name))}


def _is_inheritable(fd: int) -> bool:
    try:
        return os.get_inheritable(fd)
    except OSError:
        return False


def test_the_command_has_its_three_streams_and_nothing_else(start: Spawn) -> None:
    canary = os.open("/dev/null", os.O_RDONLY)
    try:
        facts = told(start(TELL))
    finally:
        os.close(canary)
    assert set(facts["fds"]) == {0, 1, 2} | inherited()
    assert facts["stdin"] == "/dev/null"
    assert not facts["same"]
    assert told(start(TELL, merge_stderr=True))["same"]


def test_passed_descriptors_stand_where_they_were_asked_for(start: Spawn, tmp_path: Path) -> None:
    files = []
    for number in range(3):
        (tmp_path / str(number)).write_text(f"file {number}\n")
        files.append(os.open(tmp_path / str(number), os.O_RDONLY))
    try:
        command = start(
            ["bash", "-c", "cat <&17; cat <&9; cat <&8; ls -1 /proc/self/fd"],
            passed=[(files[0], 17), (files[1], 9), (files[2], 8)],
        )
        printed = output(command).decode().split("\n")
    finally:
        for fd in files:
            os.close(fd)
    assert printed[:3] == ["file 0", "file 1", "file 2"]
    # The listing itself is one more.
    found = {int(name) for name in printed[3:-1]} - inherited()
    assert found >= {0, 1, 2, 8, 9, 17}
    assert len(found) == 7


@given(st.permutations(list(range(4))))
@settings(deadline=None, max_examples=24, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_descriptors_that_change_places_among_each_other_all_arrive(
    start: Spawn, tmp_path: Path, order: list[int]
) -> None:
    files = []
    for number in order:
        (tmp_path / str(number)).write_text(str(number))
        files.append(os.open(tmp_path / str(number), os.O_RDONLY))
    # Each goes to the number that another one, or itself, has now.
    passed = list(zip(files, [sorted(files)[place] for place in order], strict=True))
    try:
        cats = "".join(f"cat <&{number};" for number in sorted(files))
        assert output(start(["bash", "-c", cats], passed=passed)) == b"0123"
    finally:
        for fd in files:
            os.close(fd)


def test_stdin_is_a_pipe_where_it_is_open(start: Spawn) -> None:
    command = start(["cat"], stdin="open")
    assert command.stdin is not None
    os.write(command.stdin, b"through\n")
    os.close(command.stdin)
    command.stdin = None
    assert output(command) == b"through\n"


def test_our_ends_never_block(start: Spawn) -> None:
    command = start(["sleep", "0"], stdin="open")
    assert command.stdin is not None
    for fd in (command.stdin, *command.outputs.values()):
        assert not os.get_blocking(fd)


def test_a_program_is_looked_for_in_the_path_of_the_command(start: Spawn, tmp_path: Path) -> None:
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    assert output(start(["mine"], {"PATH": f"/nonexistent:{tmp_path}"})) == b"found\n"
    assert output(start(["mine"], {"PATH": ":/nonexistent"}, cwd=str(tmp_path))) == b"found\n"


def _script(path: Path, text: str, mode: int = 0o755) -> str:
    path.write_text(text)
    path.chmod(mode)
    return str(path)


Case = Callable[[Path], tuple[dict[str, Any], int, str, str]]


CASES: dict[str, Case] = {
    "no such file": lambda d: (spec([f"{d}/none"]), errno.ENOENT, "exec", f"{d}/none"),
    "not in the path": lambda d: (spec(["surely-not-there"]), errno.ENOENT, "exec", "surely-not-there"),
    "no execute bit": lambda d: (spec([_script(d / "s", "#!/bin/sh\n", 0o644)]), errno.EACCES, "exec", f"{d}/s"),
    "a directory": lambda d: (spec([str(d)]), errno.EACCES, "exec", str(d)),
    "bad interpreter": lambda d: (spec([_script(d / "s", "#!/none\n")]), errno.ENOENT, "interpreter", f"{d}/s"),
    "no program": lambda d: (spec([_script(d / "s", "junk")]), errno.ENOEXEC, "exec", f"{d}/s"),
    "argv too long": lambda d: (spec(["true", "x" * (1 << 18)]), errno.E2BIG, "exec", "/bin/true"),
    "cwd gone": lambda d: (spec(["true"], cwd=f"{d}/gone"), errno.ENOENT, "cwd", f"{d}/gone"),
    "cwd a file": lambda d: (spec(["true"], cwd=_script(d / "f", "")), errno.ENOTDIR, "cwd", f"{d}/f"),
    "shell gone": lambda d: (spec("true", shell=f"{d}/sh"), errno.ENOENT, "exec", f"{d}/sh"),
    "NUL in a word": lambda d: (spec(["true", "a\0b"]), errno.EINVAL, "exec", "/bin/true"),
    "name too long": lambda d: (spec([f"{d}/{'n' * 300}"]), errno.ENAMETOOLONG, "exec", f"{d}/{'n' * 300}"),
    "a loop of links": lambda d: (spec([_loop(d)]), errno.ELOOP, "exec", f"{d}/loop"),
}


def _loop(directory: Path) -> str:
    (directory / "loop").symlink_to(directory / "loop")
    return str(directory / "loop")


@pytest.mark.parametrize("case", CASES)
def test_a_command_that_cannot_be_says_at_which_step_for_which_path_and_why(case: str, tmp_path: Path) -> None:
    wanted, number, step, path = CASES[case](tmp_path)
    before = (os.getcwd(), len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE))
    try:
        with pytest.raises(SpawnFailed) as failure:
            spawn.spawn({**wanted, "limits": {"nofile": [64, 64]}, "oom_score_adj": 500}, {"PATH": "/bin"}, [])
    finally:
        os.chdir(before[0])
    record = failure.value.record()
    assert (record["errno"], record["step"], record["path"]) == (number, step, path)
    assert record["name"] == errno.errorcode[number]
    assert os.strerror(number) in record["message"]
    assert (os.getcwd(), len(os.listdir("/proc/self/fd")), resource.getrlimit(resource.RLIMIT_NOFILE)) == before


def test_no_descriptor_for_a_pipe_is_reported_as_such_and_none_is_lost(start: Spawn) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd")) - 1
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    filler = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 4, before[1]))
    try:
        while True:
            try:
                filler.append(os.dup(0))
            except OSError:
                break
        for spare in range(5):
            with pytest.raises(SpawnFailed) as failure:
                start(["true"], stdin="open")
            assert failure.value.errno == errno.EMFILE
            assert failure.value.step in ("pipe", "exec")
            if filler and spare < 4:
                os.close(filler.pop())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in filler:
            os.close(fd)
    assert len(os.listdir("/proc/self/fd")) - 1 == opened


@pytest.mark.parametrize("setsid", [False, True])
def test_systems_other_than_linux_get_posix_spawn_of_python(monkeypatch: pytest.MonkeyPatch, setsid: bool) -> None:
    """The numbers of the flags are those of Linux: on macOS they would start the command suspended."""

    def refuse(*_: object) -> None:
        raise AssertionError("the flags of Linux were used")

    reader, writer = os.pipe()
    argv = [sys.executable, "-c", "import os; print(os.getpid() == os.getpgrp(), os.getpid() == os.getsid(0))"]
    with monkeypatch.context() as patch:
        patch.setattr(spawn, "_make_attributes", refuse)
        patch.setattr(spawn, "_attributes", {})
        patch.setattr(sys, "platform", "darwin")
        pid = spawn.posix_spawn(argv[0], argv, {}, [(os.POSIX_SPAWN_DUP2, writer, 1)], setsid)
    os.close(writer)
    with open(reader) as said:
        assert said.read().split() == ["True", str(setsid)]
    assert os.waitpid(pid, 0)[1] == 0
