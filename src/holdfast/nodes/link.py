"""The program of a link to `node:NAME`: carries its stdin and stdout to a far end on that node.

python -m holdfast.nodes.link NAME DIGEST SIZE

If the environment names a session, the link visits it: others started it there.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

from ..core import wire
from ..core.processes import VISIT_VARIABLE
from ..errors import HoldfastError, NodeUnreachable
from ..home import Home
from ..places.link import MARK
from .conversation import BYTES, ERRORS, LAST
from .exchange import Broken
from .far_app import Calls
from .joining import Viewing

if TYPE_CHECKING:
    from typing import Any

    from .conversation import Conversation

_READ_BYTES = 64 << 10
_CONNECT_S = 10.0
_NO_LINK = 255


async def carry(name: str, digest: str, size: int, visit: str | None = None) -> int:
    viewing = Viewing(Home())
    address = viewing.address
    if address is None:
        sys.stderr.write("holdfast: this home has no fabric: see `hold node --help`\n")
        return _NO_LINK
    calls = Calls(viewing)
    async with calls.through(address) as fabric:
        with suppress(TimeoutError):
            await asyncio.wait_for(fabric.ready.wait(), _CONNECT_S)
        return await _carried(await calls.open(name), name, digest, size, visit)


async def _carried(talk: Conversation, name: str, digest: str, size: int, visit: str | None) -> int:
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    if visit is None:
        asked: dict[str, Any] = {"type": "far", "digest": digest, "size": size}
    else:
        asked = {"type": "visit", "session": visit, "scope": "control"}

    async def outwards() -> None:
        await talk.send(asked)
        while raw := await reader.read(_READ_BYTES):
            await talk.send_body(BYTES, raw)
        await talk.close()

    has_begun = False
    moving = asyncio.ensure_future(outwards())
    try:
        while True:
            frame = await talk.receive()
            if isinstance(frame, dict):
                return int(frame.get("code") or 0)
            number, raw = frame
            if number in (ERRORS, ERRORS + LAST):
                sys.stderr.buffer.write(raw)
                sys.stderr.flush()
            else:
                has_begun = True
                await asyncio.to_thread(_write_all, raw)
    except Broken as problem:
        why = problem.problem
        error = HoldfastError.from_wire(why) if why else NodeUnreachable(name, str(problem), True)
        if not has_begun:
            raise error from None
        sys.stderr.write(f"holdfast: {error}\n")
        return _NO_LINK
    finally:
        moving.cancel()
        with suppress(asyncio.CancelledError, Broken):
            await moving


def _write_all(raw: bytes) -> None:
    while raw:
        raw = raw[os.write(1, raw) :]


def main() -> None:
    visit = os.environ.pop(VISIT_VARIABLE, None)
    try:
        code = asyncio.run(carry(sys.argv[1], sys.argv[2], int(sys.argv[3]), visit))
    except HoldfastError as problem:
        sys.stderr.write(f"holdfast: {problem}\n")
        if visit is not None or not isinstance(problem, NodeUnreachable):
            # The deputy passes this error on with its type. A place that does not answer has an error of its own.
            _write_all(MARK + b"have\n" + wire.control({"type": "refused", "problem": problem.to_json()}))
        code = _NO_LINK
    except (BrokenPipeError, KeyboardInterrupt):
        code = _NO_LINK
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
