"""With `exec` and `process`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..economy import Meter, free_port
from ..jobs import PYTHON

if TYPE_CHECKING:
    from typing import Any


async def install(meter: Meter) -> None:
    await meter.call("exec", command=meter.program("install.py"))


async def failing_tests(meter: Meter) -> None:
    await meter.call("exec", command=meter.program("tests.py"))


async def _start(meter: Meter, command: str, **options: Any) -> str:
    answer = await meter.call("exec", command=command, background=True, **options)
    found = re.search(r"session ([\w-]+)", answer.text)
    assert found is not None, answer.text
    return found.group(1)


async def _until(meter: Meter, id: str, *words: str) -> None:
    for _ in range(20):
        answer = await meter.poll("process", action="poll", sessionId=id, timeout=10_000)
        if any(word in answer.text for word in (*words, "Process exited")):
            return


async def dev_server(meter: Meter) -> None:
    id = await _start(meter, meter.program("server.py", free_port()))
    await _until(meter, id, "ready on")
    await meter.call("process", action="kill", sessionId=id)


async def repl(meter: Meter) -> None:
    id = await _start(meter, f"{PYTHON} -q", pty=True)
    await _until(meter, id, ">>>")
    for line, answer in (("x = 2 ** 10", ">>>"), ("x", "1024")):
        await meter.call("process", action="send-keys", sessionId=id, literal=line, keys=["Enter"])
        await _until(meter, id, answer)
    await meter.call("process", action="send-keys", sessionId=id, keys=["C-d"])
    await _until(meter, id)


async def big_log(meter: Meter) -> None:
    await meter.call("exec", command=f"{meter.program('log.py')} > log.txt", yieldMs=60_000)
    await meter.call("exec", command="grep -n ERROR log.txt")


async def menu(meter: Meter) -> None:
    id = await _start(meter, meter.program("menu.py"), pty=True)
    await _until(meter, id, "Pick one")
    await meter.call("process", action="send-keys", sessionId=id, literal="jj", keys=["Enter"])
    await _until(meter, id, "you chose")
    await _until(meter, id)


async def background_build(meter: Meter) -> None:
    id = await _start(meter, meter.program("build.py"))
    await meter.call("exec", command="cat README")
    await meter.call("exec", command="ls")
    await meter.notice()
    await meter.poll("process", action="poll", sessionId=id)


async def crash(meter: Meter) -> None:
    id = await _start(meter, meter.program("crash.py"))
    await meter.notice()
    await meter.call("process", action="log", sessionId=id, limit=20)


async def short_commands(meter: Meter) -> None:
    for command in ("pwd", "ls", "cat README", "cat .git/HEAD", "wc -l README"):
        await meter.call("exec", command=command)


async def silent_wait(meter: Meter) -> None:
    await meter.call("exec", command=meter.program("silent.py"))


async def question(meter: Meter) -> None:
    id = await _start(meter, meter.program("question.py"), pty=True)
    await _until(meter, id, "y/N")
    await meter.call("process", action="send-keys", sessionId=id, literal="y", keys=["Enter"])
    await _until(meter, id)


async def new_server(meter: Meter) -> None:
    port = free_port()
    first = await _start(meter, meter.program("server.py", port))
    await _until(meter, first, "ready on")
    await meter.call("process", action="kill", sessionId=first)
    second = await _start(meter, meter.program("server.py", port, 2))
    await _until(meter, second, "ready on")
    await meter.call("process", action="kill", sessionId=second)
