"""An agent without a model, with the tools of evva: it starts a server, breaks it, is told, and repairs it.

    python examples/evva_agent.py DIRECTORY

In the middle it replaces its own process: what runs, and what it was not told yet, is there afterwards.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path

import holdfast
from holdfast.tools import Answer, toolset
from holdfast.tools.evva import AsyncDaemonState, Evva

SERVER = """
from http.server import HTTPServer, SimpleHTTPRequestHandler
server = HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler)
open("port", "w").write(str(server.server_port))
print("listening on", server.server_port, flush=True)
server.serve_forever()
"""
BROKEN = SERVER.replace("HTTPServer((", "HttpServer((")
# One line when the server answers: a monitor makes it a notification, so nobody has to ask again and again.
READY = "until [ -s port ] && curl -sf -o port.seen http://127.0.0.1:$(cat port)/; do sleep 0.05; done; echo ready"


class Scripted:
    def __init__(self, directory: Path, tools: Evva) -> None:
        self.directory = directory
        self.tools = tools
        self.state: AsyncDaemonState = tools.state
        self.woken = asyncio.Event()
        self.state.set_wake(self.woken.set)

    async def call(self, tool: str, **arguments: object) -> Answer:
        answer = await self.tools.call(tool, arguments)
        print(f"> {tool} {arguments.get('command') or arguments.get('daemon_id')}".split("\n")[0])
        return answer

    async def told(self, pattern: str) -> str:
        """Turns, until one is told what it waits for: each message is settled once it was dealt with."""
        while True:
            await self.woken.wait()
            self.woken.clear()
            with self.state.fold() as fold:
                print(*(f"< {line}" for line in fold.text.splitlines()[1:]), sep="\n")
                if re.search(pattern, fold.text):
                    return fold.text

    async def serve(self) -> str:
        """Start the server in the background: its id."""
        (self.directory / "port").unlink(missing_ok=True)
        command = f"{sys.executable} -u server.py"
        answer = await self.call("bash", command=command, description="the server", run_in_background=True)
        return str(answer.data["daemon_id"])

    async def ready(self) -> None:
        watch = {"description": "wait for the server", "persistent": False, "timeout_ms": 30_000}
        answer = await self.call("monitor", command=READY, **watch)
        await self.told(rf"daemon {answer.data['daemon_id']} \[monitor\] completed")

    async def first_half(self) -> str:
        """It works, then it is changed: the broken one is left behind under its id."""
        (self.directory / "server.py").write_text(SERVER)
        server = await self.serve()
        await self.ready()
        print("the server answers; now it is broken")
        (self.directory / "server.py").write_text(BROKEN)
        await self.call("daemon_stop", daemon_id=server)
        await self.told(rf"daemon {server} \[local_bash\] killed")
        return await self.serve()

    async def second_half(self, broken: str) -> None:
        """Another process of the same agent: it is told what happened meanwhile."""
        await self.told(rf"daemon {broken} \[local_bash\] failed")
        error = (await self.call("daemon_output", daemon_id=broken, tail=1)).text.splitlines()[-1]
        print(f"the error: {error}")
        (self.directory / "server.py").write_text(SERVER)
        server = await self.serve()
        await self.ready()
        print("the server answers again")
        await self.call("daemon_stop", daemon_id=server)
        await self.told(rf"daemon {server} \[local_bash\] killed")
        print((await self.call("daemon_list")).text)


async def main(directory: Path, broken: str | None) -> str | None:
    async with holdfast.open_async() as hf:
        tools = toolset("evva", hf, owner="evva-example", cwd=str(directory))
        assert isinstance(tools, Evva)
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
