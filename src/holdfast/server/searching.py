"""Search a log in a process of its own, which is killed when its time is over.

`python -m holdfast.server.searching` reports that it is ready, reads a request from its input, and writes a line for
each hit as it finds it, and lines with its progress. Such a process takes longer to start than most searches take:
after a search the next one is started, and waits for a minute.
"""

from __future__ import annotations

import json
import select
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from ..core import jsontext
from ..sessions.log import Log
from ..sessions.search import Pattern, hits

if TYPE_CHECKING:
    import asyncio
    from asyncio.subprocess import Process
    from typing import Any


# A line of a hit: its text and those around it.
_LINE_BYTES = 32 << 20
# A process takes a while to start on a busy machine; the time limit of the search begins afterwards.
_START_S = 10.0
# How long a spare worker waits for its search, and the last part of that time, in which it is no longer used.
_SPARE_S = 60.0
_LEAST_S = 10.0
_COUNTED_LOGS = 32


class Searches:
    """At most `most` at once, each for at most so many seconds."""

    def __init__(self, most: int, seconds: float) -> None:
        import asyncio

        self._turns = asyncio.Semaphore(most)
        self._seconds = seconds
        self._spare: asyncio.Task[Process] | None = None
        self._until = 0.0
        # Lines up to some offsets of the logs that were searched last.
        self._lines: dict[tuple[str, str], list[tuple[int, int]]] = {}

    def lines(self, log: Log, stream: str, offsets: list[int]) -> dict[int, int | None]:
        """The number of the line that begins at each of these ascending offsets; None for a dropped one."""
        key = (log.directory, stream)
        known = self._lines.pop(key, [])
        counts = log.lines_at(stream, offsets, known)
        self._lines[key] = known
        while len(self._lines) > _COUNTED_LOGS:
            del self._lines[next(iter(self._lines))]
        return {at: None if count is None else count + 1 for at, count in zip(offsets, counts, strict=True)}

    async def search(self, request: dict[str, Any], limit: int) -> tuple[list[dict[str, Any]], bool, int | None]:
        """At most `limit` hits, whether these are all, and the offset reached; None at the beginning of the log. A
        worker cannot report an error: check the pattern here."""
        Pattern(request["pattern"], request["ignore_case"])
        async with self._turns:
            if time.monotonic() > self._until:
                await self.close()
            spare, self._spare = self._spare, None
            try:
                return await _search(await (spare or _started()), request, limit, self._seconds)
            finally:
                self._keep_spare()

    def _keep_spare(self) -> None:
        import asyncio

        if self._spare is None:
            self._spare = asyncio.create_task(_started())
            self._until = time.monotonic() + _SPARE_S - _LEAST_S

    async def close(self) -> None:
        spare, self._spare = self._spare, None
        if spare is not None:
            with suppress(OSError):
                await _end(await spare)


async def _started() -> Process:
    import asyncio

    words = (sys.executable, "-P", "-m", "holdfast.server.searching")
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=_LINE_BYTES)


async def _end(worker: Process) -> None:
    with suppress(ProcessLookupError):
        worker.kill()
    await worker.wait()


async def _search(
    worker: Process, request: dict[str, Any], limit: int, seconds: float
) -> tuple[list[dict[str, Any]], bool, int | None]:
    import asyncio

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
        await _end(worker)
    return found, False, at


def main() -> None:
    print("ready", flush=True)
    waiting, _, _ = select.select([sys.stdin], [], [], _SPARE_S)
    text = sys.stdin.buffer.read() if waiting else b""
    if not text:
        return
    request = jsontext.read(text)
    fields = ("offset", "text", "spans", "before", "after")
    for hit in hits(Log(request.pop("directory")), **request):
        shown = hit if isinstance(hit, int) else {name: getattr(hit, name) for name in fields}
        print(json.dumps(shown), flush=True)
    # The last line says that these were all.
    print("null", flush=True)


if __name__ == "__main__":
    main()
