"""An agent with the tools of dominds, scripted in the place of a model: it starts a small server, breaks it, replaces
itself in the middle by a new process, is told that the server died, reads why, repairs it, and leaves nothing running.

    python examples/dominds_agent.py DIRECTORY
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.tools import toolset

SERVER = """
import http.server, time
{slow_import}
server = http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
print("serving on port", server.server_port, flush=True)
server.serve_forever()
"""
# A mistake that shows only after the command has become a daemon.
MISTAKE = "time.sleep(3); import no_such_module"


class Agent:
    """What a model would do, call by call. Everything it knows of its daemons comes from the tools."""

    def __init__(self, tools: Any, directory: Path) -> None:
        self.tools = tools
        self.file = directory / "server.py"

    async def call(self, tool: str, **arguments: Any) -> Any:
        answer = await self.tools.call(tool, arguments)
        print(f"{tool}: {answer.text.splitlines()[0]}")
        return answer

    async def start(self, mistake: str = "") -> int:
        """Write the server and start it; it outlives the second that is waited for it."""
        self.file.write_text(SERVER.format(slow_import=mistake))
        answer = await self.call("shell_cmd", command=f"exec {sys.executable} {self.file}", timeoutSeconds=1)
        pid: int = answer.data["pid"]
        return pid

    async def wait_until_ready(self, pid: int) -> None:
        while True:
            seen = await self.call("get_daemon_output", pid=pid)
            if "serving on port" in seen.text:
                return
            await self.call("get_daemon_output", pid=pid, timeout_ms=5000)

    async def be_told(self) -> str:
        """Sleep until something ended, and take the message that the host puts into the dialog."""
        messages: list[str] = []

        async def inject(dialog: str, message: Any) -> None:
            messages.append(message.text)

        wakeups = self.tools.wakeups(lambda origin: "main", inject)
        try:
            while not messages:
                await wakeups.waker
                await wakeups.deliver()
        finally:
            wakeups.close()
        return messages[0]


async def first_life(agent: Agent) -> None:
    pid = await agent.start()
    await agent.wait_until_ready(pid)
    await agent.call("stop_daemon", pid=pid)
    await agent.start(MISTAKE)


async def second_life(agent: Agent) -> None:
    for reminder in await agent.tools.reminders():
        print(f"reminded of: {reminder.render().splitlines()[0]}")
    notice = await agent.be_told()
    print(f"told: {' / '.join(notice.splitlines()[2:5])}")
    pid = int(re.findall(r"- PID: (\d+)", notice)[0])
    read = await agent.call("get_daemon_output", pid=pid, stdout=False)
    print("the error:", re.findall(r"ModuleNotFoundError.*", read.text)[0])
    pid = await agent.start()
    await agent.wait_until_ready(pid)
    await agent.call("stop_daemon", pid=pid)


async def live(life: Any, directory: Path) -> None:
    async with (
        holdfast.open_async() as hf,
        toolset("dominds", hf, owner="example", dialog="main") as tools,
    ):
        await life(Agent(tools, directory))


def main() -> None:
    directory = Path(sys.argv[1])
    if sys.argv[2:] == ["again"]:
        asyncio.run(live(second_life, directory))
        print("done")
        return
    asyncio.run(live(first_life, directory))
    print("replacing myself", flush=True)
    os.execv(sys.executable, [sys.executable, __file__, str(directory), "again"])


if __name__ == "__main__":
    main()
