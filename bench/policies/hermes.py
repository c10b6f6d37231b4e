"""With `terminal` and `process`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ..economy import Meter, free_port
from ..jobs import PYTHON

if TYPE_CHECKING:
    from typing import Any


async def install(meter: Meter) -> None:
    await meter.call("terminal", command=meter.program("install.py"))


async def failing_tests(meter: Meter) -> None:
    await meter.call("terminal", command=meter.program("tests.py"))


async def _start(meter: Meter, command: str, **options: Any) -> str:
    answer = await meter.call("terminal", command=command, background=True, **options)
    id: str = json.loads(answer.text)["session_id"]
    return id


async def dev_server(meter: Meter) -> None:
    id = await _start(meter, meter.program("server.py", free_port()), watch_patterns=["ready on"])
    await meter.notice()
    await meter.call("process", action="kill", session_id=id)


async def repl(meter: Meter) -> None:
    id = await _start(meter, f"{PYTHON} -q", pty=True)
    for line in ("x = 2 ** 10", "x"):
        await meter.call("process", action="submit", session_id=id, data=line)
        await meter.pause(0.3)
        await meter.poll("process", action="poll", session_id=id)
    await meter.call("process", action="close", session_id=id)
    await meter.call("process", action="wait", session_id=id)


async def big_log(meter: Meter) -> None:
    await meter.call("terminal", command=f"{meter.program('log.py')} > log.txt")
    await meter.call("terminal", command="grep -n ERROR log.txt")


async def menu(meter: Meter) -> None:
    id = await _start(meter, meter.program("menu.py"), pty=True)
    await meter.pause(0.5)
    await meter.poll("process", action="poll", session_id=id)
    await meter.call("process", action="write", session_id=id, data="jj\n")
    await meter.call("process", action="wait", session_id=id, timeout=10)


async def background_build(meter: Meter) -> None:
    await _start(meter, meter.program("build.py"), notify=True)
    await meter.call("terminal", command="cat README")
    await meter.call("terminal", command="ls")
    await meter.notice()


async def crash(meter: Meter) -> None:
    await _start(meter, meter.program("crash.py"), notify=True)
    await meter.notice()


async def short_commands(meter: Meter) -> None:
    for command in ("pwd", "ls", "cat README", "cat .git/HEAD", "wc -l README"):
        await meter.call("terminal", command=command)


async def silent_wait(meter: Meter) -> None:
    await meter.call("terminal", command=meter.program("silent.py"))


async def question(meter: Meter) -> None:
    id = await _start(meter, meter.program("question.py"), pty=True)
    await meter.pause(0.5)
    await meter.poll("process", action="poll", session_id=id)
    await meter.call("process", action="submit", session_id=id, data="y")
    await meter.call("process", action="wait", session_id=id, timeout=10)


async def new_server(meter: Meter) -> None:
    port = free_port()
    first = await _start(meter, meter.program("server.py", port), watch_patterns=["ready on"])
    await meter.notice()
    await meter.call("process", action="kill", session_id=first)
    second = await _start(meter, meter.program("server.py", port, 2), watch_patterns=["ready on"])
    await meter.notice()
    await meter.call("process", action="kill", session_id=second)
