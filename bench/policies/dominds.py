"""With `shell_cmd`, `get_daemon_output` and `stop_daemon`. No input and no terminal: dialogues are scripted."""

from __future__ import annotations

import re

from ..economy import Meter, free_port
from ..jobs import PYTHON


async def install(meter: Meter) -> None:
    await meter.call("shell_cmd", command=meter.program("install.py"), timeoutSeconds=30)


async def failing_tests(meter: Meter) -> None:
    await meter.call("shell_cmd", command=meter.program("tests.py"), timeoutSeconds=30)


async def _start(meter: Meter, command: str, seconds: int = 1) -> int:
    answer = await meter.call("shell_cmd", command=command, timeoutSeconds=seconds)
    found = re.search(r"PID: (\d+)", answer.text)
    assert found is not None, answer.text
    return int(found.group(1))


async def _until(meter: Meter, pid: int, word: str) -> None:
    for _ in range(20):
        answer = await meter.poll("get_daemon_output", pid=pid, timeout_ms=10_000)
        if word in answer.text or "exited" in answer.text:
            return


async def dev_server(meter: Meter) -> None:
    pid = await _start(meter, meter.program("server.py", free_port()))
    await _until(meter, pid, "ready")
    await meter.call("stop_daemon", pid=pid)


async def repl(meter: Meter) -> None:
    await meter.call("shell_cmd", command=f"{PYTHON} -c 'x = 2 ** 10'", timeoutSeconds=10)
    await meter.call("shell_cmd", command=f"{PYTHON} -c 'x = 2 ** 10; print(x)'", timeoutSeconds=10)


async def big_log(meter: Meter) -> None:
    await meter.call("shell_cmd", command=f"{meter.program('log.py')} > log.txt", timeoutSeconds=60)
    await meter.call("shell_cmd", command="grep -n ERROR log.txt", timeoutSeconds=10)


async def menu(meter: Meter) -> None:
    spawn = f'import pty; pty.spawn(["{PYTHON}", "menu.py"])'
    await meter.call(
        "shell_cmd", command=f"(sleep 1; printf 'jj\\n'; sleep 1) | {PYTHON} -c '{spawn}'", timeoutSeconds=10
    )


async def background_build(meter: Meter) -> None:
    await _start(meter, meter.program("build.py"))
    await meter.call("shell_cmd", command="cat README")
    await meter.call("shell_cmd", command="ls")
    await meter.notice()


async def crash(meter: Meter) -> None:
    await _start(meter, meter.program("crash.py"))
    await meter.notice()


async def short_commands(meter: Meter) -> None:
    for command in ("pwd", "ls", "cat README", "cat .git/HEAD", "wc -l README"):
        await meter.call("shell_cmd", command=command)


async def silent_wait(meter: Meter) -> None:
    await meter.call("shell_cmd", command=meter.program("silent.py"), timeoutSeconds=30)


async def question(meter: Meter) -> None:
    await meter.call("shell_cmd", command=f"echo y | {meter.program('question.py')}", timeoutSeconds=10)


async def new_server(meter: Meter) -> None:
    port = free_port()
    first = await _start(meter, meter.program("server.py", port))
    await _until(meter, first, "ready")
    await meter.call("stop_daemon", pid=first)
    second = await _start(meter, meter.program("server.py", port, 2))
    await _until(meter, second, "ready")
    await meter.call("stop_daemon", pid=second)
