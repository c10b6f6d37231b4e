"""The far end of a visit: a view follows a session that it has not started, with the node's own code.

It starts and removes nothing. Requests from hosts of the view are checked before they reach the runner: authors get the
name of the view, a view that may only observe cannot act, and no signal is acknowledged for the owner.
"""

from __future__ import annotations

import os

from ..core import jsontext, records, shapes, wire
from ..core.processes import VISIT_VARIABLE
from . import mirror
from .link import MARK
from .remote_end import RemoteEnd

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Message = dict[str, Any]


_OBSERVE = ("hello", "ping", "status", "output", "wait", "attach", "detach", "focus", "observe")
_CONTROL = (*_OBSERVE, "write", "close_stdin", "resize", "send_signal", "stop", "restart")
# Signals go to the owner: a visit acknowledges none.
_STRIPPED = ("confirm", "signals_after")


def run() -> None:
    """The environment has the session's home and id, the view's name and what it may do."""
    visit = jsontext.read(os.environ.pop(VISIT_VARIABLE))
    os.umask(0o077)
    os.write(1, MARK + b"have\n")
    Visited(visit).run()


class Visited(RemoteEnd):
    def __init__(self, visit: Message) -> None:
        super().__init__(visit["home"], "")
        self._visit = visit
        self._decoders: dict[int, wire.Decoder] = {}
        # Channels that attached: the runner knows their role and enforces it.
        self._attached: set[int] = set()
        self._allowed = _OBSERVE if visit["scope"] == "observe" else _CONTROL

    def _facts(self) -> Message:
        spec = records.found(None, os.path.join(self._home, "sessions", self._visit["id"], "spec.json"))
        try:
            shapes.check(shapes.SPEC, spec)
        except ValueError:
            return {"spec": None}
        return {"spec": spec}

    def _handles(self, message: Message) -> bool:
        return message["type"] in ("resume", "open", "close", "read", "took")

    def _on_resume(self, frame: Message) -> None:
        super()._on_resume({**frame, "id": self._visit["id"]})

    def _follow(self, id: str, have: dict[str, list[int]]) -> None:
        self._session = id
        directory = self._directory
        known = records.found(None, os.path.join(directory, "state.json"))
        known = known or records.found(None, os.path.join(directory, "spec.json"))
        self._endpoint = str(known.get("endpoint") or "")
        self._growth = mirror.Growth(directory, have, is_visit=True)

    def _pass_on(self, number: int, raw: bytes) -> None:
        if number not in self._channels:
            return
        decoder = self._decoders.setdefault(number, wire.Decoder())
        for frame in decoder.feed(raw):
            if not isinstance(frame, dict):
                super()._pass_on(number, wire.data(*frame))
            elif frame["type"] in self._allowed or number in self._attached:
                super()._pass_on(number, wire.control(self._as_visitor(frame)))
                if frame["type"] == "attach":
                    self._attached.add(number)
            elif wire.number_of(frame) is not None:
                self._refuse(number, frame)

    def _as_visitor(self, frame: Message) -> Message:
        frame = {name: value for name, value in frame.items() if name not in _STRIPPED}
        view = self._visit["view"]
        for name in ("author", "by"):
            if isinstance(frame.get(name), str):
                frame[name] = f"{frame[name][: wire.AUTHOR_CHARACTERS - len(view) - 1]}@{view}"
        if frame["type"] == "attach" and self._visit["scope"] == "observe":
            frame["role"] = "observe"
        return frame

    def _refuse(self, number: int, frame: Message) -> None:
        kind, node = str(frame["type"])[:80], self._visit["node"]
        if kind in _CONTROL:
            text = f"the node {node} lets this view observe only: `{kind}` needs the scope control"
            error = wire.error(frame, "observe-only", text, client=self._visit["view"])
            error["fix"] = "join it again with a new invitation that has `--scope control`"
        else:
            text = f"`{kind}` cannot be done by a visit: the session belongs to the node {node}"
            error = wire.error(frame, "unsupported", text, feature=f"{kind} by a visit")
            error["fix"] = "do it on the node itself"
        payload = wire.control(error)
        self._channels[number].owed += len(payload)
        self._send_data(number, payload)

    def _drop(self, channel: Any) -> None:
        self._decoders.pop(channel.number, None)
        self._attached.discard(channel.number)
        super()._drop(channel)
