"""An agent without a model, with the tools of hermes: it starts a server, breaks it, is told, and repairs it.

    python examples/hermes_agent.py DIRECTORY

In the middle it replaces its own process: what runs, and what it was not told yet, is there afterwards.
"""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.tools import toolset
from holdfast.tools.hermes import Hermes

SERVER = """
from http.server import HTTPServer, SimpleHTTPRequestHandler
server = HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
print("listening on", server.server_port, flush=True)
server.serve_forever()
"""
BROKEN = SERVER.replace("HTTPServer((", "HttpServer((")


class Scripted:
    def __init__(self, directory: Path, tools: Hermes) -> None:
        self.directory = directory
        self.tools = tools
        self.waker = tools.consumer().waker()

    async def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        said = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        print(f"> {tool}({said})")
        return (await self.tools.call(tool, arguments)).data

    async def told(self, type: str, id: str) -> dict[str, Any]:
        """Turns, until one is told what it waits for: each message is settled once it was dealt with."""
        while True:
            await self.waker
            async with await self.tools.drain() as drained:
                print(*(f"< {line}" for line in drained.text.splitlines()), sep="\n")
                for event in drained.events:
                    if (event["type"], event["session_id"]) == (type, id):
                        return dict(event)

    async def serve(self, **options: Any) -> str:
        """Start the server in the background: its id."""
        begun = await self.call("terminal", command=f"{sys.executable} -u server.py", background=True, **options)
        return str(begun["session_id"])

    async def served(self) -> str:
        """A server that is ready: the line that it prints then is watched for."""
        id = await self.serve(watch_patterns=["listening on"])
        match = await self.told("watch_match", id)
        port = match["output"].split()[-1]
        page = await self.call("terminal", command=f"curl -sf http://127.0.0.1:{port}/ | grep -c server.py")
        print(f"the server answers: {page['exit_code'] == 0}")
        return id

    async def first_half(self) -> str:
        """It works, then it is changed: the broken one is left behind under its id."""
        (self.directory / "server.py").write_text(SERVER)
        await self.call("terminal", command=f"cd {shlex.quote(str(self.directory))}")
        server = await self.served()
        print("now it is broken")
        (self.directory / "server.py").write_text(BROKEN)
        await self.call("process", action="kill", session_id=server)
        return await self.serve(notify=True)

    async def second_half(self, broken: str) -> None:
        """Another process of the same agent: it is told what happened meanwhile."""
        ended = await self.told("completion", broken)
        print(f"it ended with {ended['exit_code']}")
        log = await self.call("process", action="log", session_id=broken, limit=1)
        print(f"the error: {log['output']}")
        (self.directory / "server.py").write_text(SERVER)
        server = await self.served()
        await self.call("process", action="kill", session_id=server[:9])
        rows = (await self.call("process", action="list"))["processes"]
        print(*(f"{row['session_id']} {row['status']} {row['completion_reason']}" for row in rows), sep="\n")


async def main(directory: Path, broken: str | None) -> str | None:
    async with holdfast.open_async() as hf:
        tools = toolset("hermes", hf, owner="hermes-example")
        assert isinstance(tools, Hermes)
        async with tools:
            agent = Scripted(directory, tools)
            if broken is None:
                return await agent.first_half()
            await agent.second_half(broken)
            return None


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    left = asyncio.run(main(place, sys.argv[2] if len(sys.argv) > 2 else None))
    if left is not None:
        print("I replace myself", flush=True)
        os.execv(sys.executable, [sys.executable, __file__, str(place), left])
