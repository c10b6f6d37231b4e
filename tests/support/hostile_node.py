"""A node that lies: the real protocol in front of an application that answers what no honest one would.

python hostile_node.py HOME ROWS ID: a joined home, how many sessions its events are about, an id that the view has.
With -1 rows it refuses every request, in words of its own.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Any

from holdfast.errors import HoldfastError
from holdfast.home import Home
from holdfast.nodes.joining import Joined
from holdfast.nodes.offering import Offering
from holdfast.server.tokens import Caller

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

MARKUP = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
BIDI = "\u202egnp.exe\u2066 \x1b]0;owned\x07\x1b[2J \ud800"
LONG = "n" * (1 << 20)
LATER = "2036-01-01T00:00:00.000Z"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
WRONG_IDS: list[Any] = ["../../etc/passwd", "a/b/c/d/e", "..", LONG, None, 7, {}, "UPPERCASE"]
# Events in one message.
_BATCH = 50


def identifier(number: int) -> str:
    text = ""
    while number:
        number, digit = divmod(number, len(_DIGITS))
        text = _DIGITS[digit] + text
    return text.rjust(9, "z")


def row(id: object, **facts: Any) -> dict[str, Any]:
    times = {"created_at": LATER, "started_at": LATER, "last_output_at": LATER, "observed_at": LATER}
    return {"id": id, "kind": "local_bash", "state": "running", "status": "running", "node": None, **times, **facts}


def listed(taken: str) -> list[Any]:
    """What the list of its sessions has."""
    nested: Any = "deep"
    for _ in range(500):
        nested = [nested]
    wide = {f"{n}{'k' * 200}": "v" * 4000 for n in range(200)}
    return [
        row("markup000", name=MARKUP, command=MARKUP, owner=MARKUP, labels={MARKUP: MARKUP}, place=MARKUP),
        row("bidi00000", name=BIDI, command=BIDI, cwd=BIDI, health=BIDI, labels={BIDI: BIDI}),
        row(taken, name="claims to be ours", node=None, place="local"),
        row("another00", name="claims another", node="honest", place="node:honest"),
        row(
            "nested000", metadata={"a": nested}, needs_input={"a": nested}, size=["1", LONG], pid=-1, exit={"code": []}
        ),
        row("wide00000", labels=wide, metadata={"a": [wide] * 5}),
        row("undated00", created_at="zzzz", started_at=[7], ended_at=LONG[:1000]),
        *(row(wrong) for wrong in WRONG_IDS),
        "no row",
        row("lastlong0", name=LONG, description=LONG, command=LONG),
    ]


class Application:
    """Serves what it is told to; in the place of a home's own server."""

    def __init__(self, rows: int, taken: str) -> None:
        self._rows = rows
        self._taken = taken

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._rows < 0:
            raise HoldfastError(BIDI + LONG[:5000])
        is_refused = scope["path"].startswith("/v1/sessions/") or b"refused" in scope["query_string"]
        start = {"type": "http.response.start", "headers": [(b"content-type", b"text/html")]}
        await send({**start, "status": 418 if is_refused else 200})
        if scope["path"] == "/v1/events":
            await self._events(send)
        else:
            is_info = scope["path"] == "/v1/info"
            said: dict[str, Any] = {"items": listed(self._taken), "count": MARKUP}
            if is_info:
                said = {"version": BIDI + MARKUP + LONG, "scopes": LONG}
            elif is_refused:
                said = {"code": BIDI, "type": BIDI, "title": BIDI, "detail": BIDI + MARKUP + LONG, "fix": BIDI + LONG}
            await send({"type": "http.response.body", "body": json.dumps(said).encode(), "more_body": False})

    async def _events(self, send: Send) -> None:
        if not self._rows:
            await asyncio.Event().wait()
        for first in range(0, self._rows, _BATCH):
            told = [row(identifier(n), name=MARKUP, command="c" * 5000) for n in range(first, first + _BATCH)]
            body = "".join(f"event: session\ndata: {json.dumps(each)}\n\n" for each in told)
            await send({"type": "http.response.body", "body": body.encode(), "more_body": True})
        print("all told", flush=True)
        self._rows = 0
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def main() -> None:
    joined = Joined(Home(sys.argv[1]))
    ((address, name),) = joined.fabrics()
    application = Application(int(sys.argv[2]), sys.argv[3])
    caller = Caller("view", "view", "observe", b"")
    offering = Offering(joined, application, lambda *_: caller, [], lambda *_, **__: None)
    async with offering.through(address, name):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
