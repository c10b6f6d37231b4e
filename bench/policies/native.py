"""With `run`, `wait`, `send`, `read` and `stop`."""

from __future__ import annotations

from ..economy import Meter, free_port
from ..jobs import PYTHON


async def install(meter: Meter) -> None:
    await meter.call("run", command=meter.program("install.py"))


async def failing_tests(meter: Meter) -> None:
    await meter.call("run", command=meter.program("tests.py"))


async def dev_server(meter: Meter) -> None:
    port = free_port()
    await meter.call("run", command=meter.program("server.py", port), name="web", ready=f"port:{port}")
    await meter.call("stop", ids=["web"])


async def repl(meter: Meter) -> None:
    await meter.call("run", command=f"{PYTHON} -q", tty=True, name="repl", wait_s=1)
    await meter.call("send", id="repl", text="x = 2 ** 10")
    await meter.call("send", id="repl", text="x")
    await meter.call("send", id="repl", keys=["C-d"])


async def big_log(meter: Meter) -> None:
    await meter.call("run", command=meter.program("log.py"), name="log", wait_s=60)
    await meter.call("read", id="log", search="ERROR")


async def menu(meter: Meter) -> None:
    await meter.call("run", command=meter.program("menu.py"), tty=True, name="menu", wait_s=1)
    await meter.call("send", id="menu", keys=["j", "j", "Enter"])


async def background_build(meter: Meter) -> None:
    await meter.call("run", command=meter.program("build.py"), name="build", wait_s=0)
    await meter.call("run", command="cat README")
    await meter.call("run", command="ls")
    await meter.call("wait", ids=["build"])


async def crash(meter: Meter) -> None:
    await meter.call("run", command=meter.program("crash.py"), name="worker", wait_s=0)
    await meter.notice()


async def short_commands(meter: Meter) -> None:
    for command in ("pwd", "ls", "cat README", "cat .git/HEAD", "wc -l README"):
        await meter.call("run", command=command)


async def silent_wait(meter: Meter) -> None:
    await meter.call("run", command=meter.program("silent.py"))


async def question(meter: Meter) -> None:
    await meter.call("run", command=meter.program("question.py"), tty=True, name="setup", wait_s=1)
    await meter.call("send", id="setup", text="y")


async def new_server(meter: Meter) -> None:
    port = free_port()
    command = meter.program("server.py", port)
    await meter.call("run", command=command, name="web", ready=f"port:{port}")
    await meter.call("run", command=f"{command} 2", name="web", replace=True, ready="line:version 2 ready")
    await meter.call("stop", ids=["web"])
