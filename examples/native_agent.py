"""An agent without a model, with the native tools: it starts a server, breaks it, is told, and repairs it.

    python examples/native_agent.py DIRECTORY

In the middle it replaces its own process: what runs, and what it was not told yet, is there afterwards.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import holdfast
from holdfast.tools import Answer, Toolset, toolset

SERVER = """
from http.server import HTTPServer, SimpleHTTPRequestHandler
server = HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
print("listening on", server.server_port, flush=True)
server.serve_forever()
"""
BROKEN = SERVER.replace("HTTPServer((", "HttpServer((")


class Scripted:
    def __init__(self, directory: Path, tools: Toolset) -> None:
        self.directory = directory
        self.tools = tools

    async def call(self, tool: str, **arguments: Any) -> Answer:
        """What a model would ask for, and what it would read."""
        print(f"> {tool}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})")
        answer = await self.tools.call(tool, arguments)
        print(*(f"  {line}" for line in answer.text.splitlines()), sep="\n")
        return answer

    async def told(self) -> str:
        """The next turn: woken when something happened. What it was told is settled once it was dealt with."""
        consumer = self.tools.consumer()
        with consumer.waker() as waker:
            while True:
                await waker
                async with await consumer.drain("native") as notice:
                    if notice:
                        print(*(f"< {line}" for line in notice.text.splitlines()), sep="\n")
                        return notice.text

    async def serve(self, **options: Any) -> Answer:
        """Start the server, in the place of an older one: answers when it is ready, or has failed."""
        command = [sys.executable, "-u", "server.py"]
        where = str(self.directory)
        return await self.call("run", command=command, cwd=where, name="web", replace=True, **options)

    async def works(self) -> bool:
        """The port is in the output that is there; the page is asked for with a command."""
        found = await self.call("read", id="web", search="listening on", context=0)
        port = found.data["matches"][0]["text"].split()[-1]
        page = await self.call("run", command=f"curl -sf http://127.0.0.1:{port}/ | grep -c server.py")
        return bool(page.data["exit"]["code"] == 0)

    async def first_half(self) -> None:
        """It works, then it is changed and started again, and nobody waits for what comes of it."""
        (self.directory / "server.py").write_text(SERVER)
        await self.serve(ready="line:^listening")
        print(f"the server answers: {await self.works()}")
        print("now it is broken")
        (self.directory / "server.py").write_text(BROKEN)
        await self.serve(wait_s=0)

    async def second_half(self) -> None:
        """Another process of the same agent: it is told what happened meanwhile."""
        while "exit code 1" not in await self.told():
            pass
        error = await self.call("read", id="web", tail=1)
        print(f"the error: {error.data['output']}")
        (self.directory / "server.py").write_text(SERVER)
        await self.serve(ready="line:^listening")
        print(f"the server answers: {await self.works()}")
        await self.call("stop", all=True)
        await self.call("list", all=True)


async def main(directory: Path, again: bool) -> None:
    async with holdfast.open_async() as hf, toolset("native", hf, owner="native-example", signals=False) as tools:
        agent = Scripted(directory, tools)
        await (agent.second_half() if again else agent.first_half())


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    is_successor = len(sys.argv) > 2
    asyncio.run(main(place, is_successor))
    if not is_successor:
        print("I replace myself", flush=True)
        os.execv(sys.executable, [sys.executable, __file__, str(place), "again"])
