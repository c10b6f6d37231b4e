"""The nodes of `bench.many_nodes`, which print `asked` when their list is asked for, and answer it after SIGUSR1.

python held_lists.py PLAN
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from typing import TYPE_CHECKING

from bench import many_nodes

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


async def main(path: str) -> None:
    answering = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, answering.set)

    class Held(many_nodes.Application):
        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
            if scope["path"] == "/v1/sessions":
                print("asked", flush=True)
                await answering.wait()
            await super().__call__(scope, receive, send)

    with open(path) as file:  # noqa: ASYNC230
        plan = json.load(file)
    await many_nodes.serve(plan, Held)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
