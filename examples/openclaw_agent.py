"""An agent without a model, with the tools of openclaw: it starts a server, breaks it, is told, and repairs it.

    python examples/openclaw_agent.py DIRECTORY

In the middle it replaces its own process. What runs goes on, and what it was not told yet waits for it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.tools import Answer, toolset
from holdfast.tools.openclaw import OpenClaw

SERVER = """
from http.server import HTTPServer, SimpleHTTPRequestHandler
server = HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
print(f"listening on {server.server_port}", flush=True)
server.serve_forever()
"""
BROKEN = SERVER.replace("HTTPServer((", "HttpServer((")


class Scripted:
    def __init__(self, directory: Path, tools: OpenClaw) -> None:
        self.directory = directory
        self.tools = tools

    async def call(self, tool: str, **arguments: Any) -> Answer:
        said = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        answer = await self.tools.call(tool, arguments)
        print(f"> {tool}({said})", *(f"  {line}" for line in answer.text.splitlines()), sep="\n")
        return answer

    async def start(self) -> str:
        """The server, as a service: in the background, without a time limit."""
        line = f"{sys.executable} server.py"
        started = await self.call("exec", command=line, workdir=str(self.directory), background=True, timeout=0)
        return str(started.data["sessionId"])

    async def served(self) -> str:
        """A server that is ready: a poll that waits costs nothing."""
        server = await self.start()
        polled = await self.call("process", action="poll", sessionId=server, timeout=30_000)
        port = polled.text.split("listening on ")[1].split()[0]
        page = await self.call("exec", command=f"curl -sf http://127.0.0.1:{port}/ | grep -c server.py")
        print(f"the server answers: {page.data['exitCode'] == 0}")
        return server

    async def first_half(self) -> None:
        """It works, then it is changed and started again; how that went, this process does not wait to see."""
        (self.directory / "server.py").write_text(SERVER)
        server = await self.served()
        print("now it is broken")
        (self.directory / "server.py").write_text(BROKEN)
        await self.call("process", action="kill", sessionId=server)
        await self.start()

    async def second_half(self) -> None:
        """Another process of the same agent: it is told what happened, and looks after it."""
        consumer = self.tools.consumer()
        await consumer.waker()
        async with await self.tools.drain() as notice:
            print(*(f"< {line}" for line in notice.text.splitlines()), sep="\n")
            failed = next(line for line in notice.text.splitlines() if line.startswith("Exec failed"))
            broken = failed.partition("(")[2].partition(",")[0]
        log = await self.call("process", action="log", sessionId=broken, limit=1)
        print(f"the error: {log.text}")
        (self.directory / "server.py").write_text(SERVER)
        server = await self.served()
        await self.call("process", action="kill", sessionId=server)
        await self.call("process", action="list")


async def main(directory: Path, is_restarted: bool) -> None:
    async with holdfast.open_async() as hf:
        tools = toolset("openclaw", hf, owner="openclaw-example")
        assert isinstance(tools, OpenClaw)
        async with tools:
            agent = Scripted(directory, tools)
            await (agent.second_half() if is_restarted else agent.first_half())


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    again = sys.argv[2:] == ["again"]
    asyncio.run(main(place, again))
    if not again:
        print("I replace myself", flush=True)
        os.execv(sys.executable, [sys.executable, __file__, str(place), "again"])
