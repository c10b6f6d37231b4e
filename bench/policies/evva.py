"""With `bash`, `daemon_output` and `daemon_stop`, told by messages. There is neither input nor a terminal."""

from __future__ import annotations

import re

from ..economy import Meter, free_port
from ..jobs import PYTHON


async def install(meter: Meter) -> None:
    await meter.call("bash", command=meter.program("install.py"))


async def failing_tests(meter: Meter) -> None:
    await meter.call("bash", command=meter.program("tests.py"))


async def _start(meter: Meter, command: str) -> str:
    answer = await meter.call("bash", command=command, run_in_background=True)
    found = re.search(r"Daemon (\w+) started", answer.text)
    assert found is not None, answer.text
    return found.group(1)


async def _until(meter: Meter, id: str, word: str) -> None:
    """Nothing here waits for a line: the agent sleeps in the shell, and looks."""
    for _ in range(20):
        await meter.poll("bash", command="sleep 1")
        meter.cost.lost_s += 1
        answer = await meter.poll("daemon_output", daemon_id=id, tail=5)
        if word in answer.text:
            return


async def dev_server(meter: Meter) -> None:
    id = await _start(meter, meter.program("server.py", free_port()))
    await _until(meter, id, "ready")
    await meter.call("daemon_stop", daemon_id=id)
    await meter.notice()


async def repl(meter: Meter) -> None:
    await meter.call("bash", command=f"{PYTHON} -c 'x = 2 ** 10'")
    await meter.call("bash", command=f"{PYTHON} -c 'x = 2 ** 10; print(x)'")


async def big_log(meter: Meter) -> None:
    await meter.call("bash", command=f"{meter.program('log.py')} > log.txt")
    await meter.call("bash", command="grep -n ERROR log.txt")


async def menu(meter: Meter) -> None:
    spawn = f'import pty; pty.spawn(["{PYTHON}", "menu.py"])'
    await meter.call("bash", command=f"(sleep 1; printf 'jj\\n'; sleep 1) | {PYTHON} -c '{spawn}'")


async def background_build(meter: Meter) -> None:
    await _start(meter, meter.program("build.py"))
    await meter.call("bash", command="cat README")
    await meter.call("bash", command="ls")
    await meter.notice()


async def crash(meter: Meter) -> None:
    await _start(meter, meter.program("crash.py"))
    await meter.notice()


async def short_commands(meter: Meter) -> None:
    for command in ("pwd", "ls", "cat README", "cat .git/HEAD", "wc -l README"):
        await meter.call("bash", command=command)


async def silent_wait(meter: Meter) -> None:
    await meter.call("bash", command=meter.program("silent.py"))


async def question(meter: Meter) -> None:
    await meter.call("bash", command=f"echo y | {meter.program('question.py')}")


async def new_server(meter: Meter) -> None:
    port = free_port()
    first = await _start(meter, meter.program("server.py", port))
    await _until(meter, first, "ready")
    await meter.call("daemon_stop", daemon_id=first)
    await meter.notice()
    second = await _start(meter, meter.program("server.py", port, 2))
    await _until(meter, second, "ready")
    await meter.call("daemon_stop", daemon_id=second)
    await meter.notice()
