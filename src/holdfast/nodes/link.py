"""The program of a link to `node:NAME`: carries its stdin and stdout to a far end on that node.

python -m holdfast.nodes.link NAME DIGEST SIZE

If the environment names a session, the link visits it: others started it there.
"""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress

from ..core import wire
from ..core.processes import VISIT_VARIABLE
from ..errors import HoldfastError, NodeUnreachable
from ..home import Home
from ..places.link import MARK
from .conversation import BYTES, ERRORS, LAST
from .exchange import Broken
from .far_app import Calls
from .joining import Viewing

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
        talk = await calls.open(name)
        if visit is None:
            await talk.send({"type": "far", "digest": digest, "size": size})
        else:
            await talk.send({"type": "visit", "session": visit, "scope": "control"})
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)

        async def outwards() -> None:
            while raw := await reader.read(_READ_BYTES):
                await talk.send_body(BYTES, raw)
            await talk.close()

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
                    await asyncio.to_thread(_write_all, raw)
        except Broken as problem:
            error = HoldfastError.from_wire(problem.problem) if problem.problem else None
            if visit is not None:
                raise error or NodeUnreachable(name, str(problem), True) from None
            sys.stderr.write(f"holdfast: {error or problem}\n")
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
        if visit is not None:
            # The deputy passes this error on with its type.
            _write_all(MARK + b"have\n" + wire.control({"type": "refused", "problem": problem.to_json()}))
        code = _NO_LINK
    except (BrokenPipeError, KeyboardInterrupt):
        code = _NO_LINK
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
