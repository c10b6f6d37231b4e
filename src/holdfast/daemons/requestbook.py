"""Requests to a language server that wait for their answer. All of them end: answered, refused, or failed together."""

from __future__ import annotations

import threading
from concurrent.futures import Future, InvalidStateError

from ..errors import Busy, ServerGone, ServerRefused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

# A server that answers none of so many answers no more.
OPEN_MAX = 1000


class Requestbook:
    def __init__(self, id: str, server: str) -> None:
        self._id = id
        self._server = server
        self._lock = threading.Lock()
        self._serial = 0
        self._open: dict[int, tuple[str, Future[Any]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, method: str) -> tuple[int, Future[Any]]:
        """The number under which it is asked. Numbers are never used again, whatever server gets them."""
        with self._lock:
            if len(self._open) >= OPEN_MAX:
                raise Busy(f"{OPEN_MAX} requests of language server {self._server} wait for their answer")
            self._serial += 1
            future: Future[Any] = Future()
            self._open[self._serial] = (method, future)
            return self._serial, future

    def answer(self, message: dict[str, Any]) -> None:
        """An answer to nothing, or a second one, is passed over."""
        number = message.get("id")
        with self._lock:
            entry = self._open.pop(number, None) if isinstance(number, int) else None
        if entry is None:
            return
        method, future = entry
        error = message.get("error")
        if error is None:
            _settle(future, message.get("result"))
            return
        facts = error if isinstance(error, dict) else {}
        code = facts.get("code")
        reason = str(facts.get("message", error))
        _refuse(future, ServerRefused(self._server, method, code if isinstance(code, int) else None, reason))

    def withdraw(self, number: int) -> bool:
        """Nobody waits for it any more. False when it is answered by now."""
        with self._lock:
            return self._open.pop(number, None) is not None

    def fail(self, number: int, problem: Exception) -> None:
        with self._lock:
            entry = self._open.pop(number, None)
        if entry is not None:
            _refuse(entry[1], problem)

    def fail_all(self, why: str) -> None:
        with self._lock:
            entries, self._open = list(self._open.values()), {}
        for method, future in entries:
            _refuse(future, self.gone(method, why))

    def gone(self, method: str | None, why: str) -> ServerGone:
        return ServerGone(self._id, self._server, method, why)


def _settle(future: Future[Any], value: object) -> None:
    try:
        future.set_result(value)
    except InvalidStateError:
        pass  # whoever asked has cancelled it


def _refuse(future: Future[Any], problem: Exception) -> None:
    try:
        future.set_exception(problem)
    except InvalidStateError:
        pass
