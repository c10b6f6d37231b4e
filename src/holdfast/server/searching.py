"""Search a log in a process of its own, which is killed when its time is over.

`python -m holdfast.server.searching` says that it is ready, reads a request from its input, and writes a line for each
hit as it finds it, and for how far it has come.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from ..core import jsontext
from ..sessions.log import Log
from ..sessions.search import Pattern, hits

if TYPE_CHECKING:
    from typing import Any


# A line of a hit: its text and those around it.
_LINE_BYTES = 32 << 20
# A process takes a while to start on a busy machine; the time of the search begins afterwards.
_START_S = 10.0


async def search(request: dict[str, Any], limit: int, seconds: float) -> tuple[list[dict[str, Any]], bool, int | None]:
    """At most `limit` hits, whether these are all, and the offset that was come to; None at the very beginning. A
    worker cannot report an error: check the pattern here."""
    import asyncio

    Pattern(request["pattern"], request["ignore_case"])
    words = (sys.executable, "-P", "-m", "holdfast.server.searching")
    pipe = asyncio.subprocess.PIPE
    worker = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=_LINE_BYTES)
    assert worker.stdin is not None
    assert worker.stdout is not None
    found: list[dict[str, Any]] = []
    at: int | None = None
    try:
        async with asyncio.timeout(_START_S):
            await worker.stdout.readline()
        async with asyncio.timeout(seconds):
            worker.stdin.write(json.dumps(request).encode())
            worker.stdin.close()
            while line := await worker.stdout.readline():
                hit = jsontext.read(line)
                if hit is None:
                    return found, True, at
                if isinstance(hit, int):
                    at = hit
                elif len(found) == limit:
                    return found, False, at
                else:
                    found.append(hit)
                    at = hit["offset"]
    except (TimeoutError, ConnectionError):
        pass
    finally:
        if worker.returncode is None:
            worker.kill()
        await worker.wait()
    return found, False, at


def main() -> None:
    print("ready", flush=True)
    request = jsontext.read(sys.stdin.buffer.read())
    fields = ("offset", "text", "spans", "before", "after")
    for hit in hits(Log(request.pop("directory")), **request):
        shown = hit if isinstance(hit, int) else {name: getattr(hit, name) for name in fields}
        print(json.dumps(shown), flush=True)
    # The last line says that these were all.
    print("null", flush=True)


if __name__ == "__main__":
    main()
