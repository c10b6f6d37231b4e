"""The protocol of language servers: messages, open requests, diagnostics, reading the log.

The session's signals say where one attempt ends and the next begins, in order with its output: bytes of two processes
never become one message.
"""

from __future__ import annotations

import json
import threading
import time
from _blake2 import blake2b
from concurrent.futures import Future
from dataclasses import astuple, dataclass, field
from typing import Any

from ..errors import Busy, RunnerGone, ServerGone, ServerRefused, SessionEnded
from ..model import KILLED
from ..sessions.observe import from_files, read_files
from ..signals.redact import Quoter, clean_text, redact

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from ..sessions.connection import Connection
    from ..sessions.core import Core

    Message = dict[str, Any]


# Messages of JSON-RPC, without any I/O.


# A longer message is an error of the server.
MESSAGE_MAX_BYTES = 64 << 20
# Headers are a few dozen bytes; more bytes without their end are no header.
_HEADERS_MAX_BYTES = 4 << 10
_SEPARATOR = b"\r\n\r\n"


class BadMessage(Exception):
    """Not a message of this protocol. Nothing after it can be read."""


def frame(message: Message) -> bytes:
    body = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return b"Content-Length: %d\r\n\r\n" % len(body) + body


class Frames:
    """Bytes in, cut anywhere; messages out."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, received: bytes) -> list[Message]:
        self._buffer += received
        messages = []
        while (message := self._next()) is not None:
            messages.append(message)
        return messages

    def _next(self) -> Message | None:
        begin = self._buffer.find(_SEPARATOR)
        if begin < 0:
            if len(self._buffer) > _HEADERS_MAX_BYTES:
                raise BadMessage(f"{len(self._buffer)} bytes without the end of a header")
            return None
        size = _content_length(bytes(self._buffer[:begin]))
        end = begin + len(_SEPARATOR) + size
        if len(self._buffer) < end:
            return None
        body = bytes(self._buffer[begin + len(_SEPARATOR) : end])
        del self._buffer[:end]
        try:
            message = json.loads(body)
        except (ValueError, RecursionError) as problem:
            raise BadMessage(f"the body is not JSON: {problem}") from None
        if not isinstance(message, dict):
            raise BadMessage(f"a message is an object, not {type(message).__name__}")
        return message


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-length":
            digits = value.strip()
            if digits.isdigit() and int(digits) <= MESSAGE_MAX_BYTES:
                return int(digits)
            raise BadMessage(f"a length of {digits[:20]!r}")
    raise BadMessage(f"a header without a length: {head[:80]!r}")


# Reading stdout from the log of the session.


# A process that ends closes its output a moment before its end is known. After this long it has not ended.
_CLOSED_S = 0.25


@dataclass
class News:
    """What the reader found next: messages, and changes of the attempt."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    # Why its output cannot be read any more.
    bad: str | None = None
    # The number of an attempt that began.
    began: int | None = None
    # How the attempt ended; whether it was the last, and whether its end was asked for.
    left: str | None = None
    over: bool = False
    asked: bool = False


class Reader:
    """Reads messages from the log, attempt by attempt."""

    def __init__(self, core: Core, id: str) -> None:
        self._core = core
        self._id = id
        self._log = core.log(id)
        self._frames = Frames()
        self._cursor = 0
        self._seq = 0
        # The output up to here is known to be this attempt's.
        self._readable = 0
        # No more output of this attempt can be read.
        self._bad = False
        # Its output is closed; if it still runs at this time, it has closed it itself.
        self._closed_at: float | None = None
        self._records: list[dict[str, Any]] = []
        self._connection: Connection | None = None

    async def next(self, until: float) -> News:
        """Sleeps until there is something, or the clock shows `until`."""
        news = News()
        if self._records:
            self._take(self._records.pop(0), news)
            return news
        if self._cursor < self._readable:
            self._read(self._readable, news)
            return news
        try:
            over = await self._sleep(until)
        except (RunnerGone, SessionEnded):
            over = True
        if over:
            self.close()
            self._read_rest(news)
        elif self._closed_at is not None and time.monotonic() >= self._closed_at and not self._records:
            self._closed_at = None
            self._give_up("it closed its output", news)
        return news

    async def _sleep(self, until: float) -> bool:
        """Returns whether it is over without a signal of that, because the disk did not take the record."""
        reply_s = self._core.config.hosts_reply_timeout
        if self._connection is None:
            _, self._connection = await self._core.connect(self._id)
        asked: dict[str, object] = {"exit": True, "output_after": {"stdout": self._cursor}, "signals_after": self._seq}
        if self._closed_at is None and not self._bad:
            asked["closed"] = "stdout"
        elif self._closed_at is not None:
            until = min(until, self._closed_at)
        bound = None if until == float("inf") else max(0.0, until - time.monotonic())
        if bound is not None:
            asked["timeout"] = bound
        await self._connection.ask("wait", reply_s, **asked)
        # A runner that answers late is still there.
        reply = await self._connection.answer_in_time(bound, reply_s, late_s=reply_s)
        if reply["reason"] == "output":
            # The runner reports signals first: this output was printed before the next signal.
            self._readable = reply["status"]["ends"]["stdout"]
        elif reply["reason"] == "signals":
            self._records += reply["signals"]
        elif reply["reason"] == "closed":
            self._closed_at = time.monotonic() + _CLOSED_S
        return bool(reply["reason"] == "exit")

    def _take(self, record: dict[str, Any], news: News) -> None:
        self._seq = max(self._seq, record["seq"])
        fields = record.get("lifecycle")
        if fields is None:
            return
        self._closed_at = None
        # The output before this signal comes first.
        end = ((record.get("snapshot") or {}).get("ends") or {}).get("stdout")
        self._read(end, news)
        if fields["phase"] == "started":
            self._frames = Frames()
            self._bad = False
            self._cursor = max(self._cursor, end or 0)
            news.began = record["attempt"]
        else:
            news.left = _in_words(fields)
            news.over = fields["phase"] == "ended"
            news.asked = news.over and fields.get("status") == "killed"

    def _read(self, until: int | None, news: News) -> None:
        for begin, data in self._log.blocks("stdout", self._cursor, until):
            if begin != self._cursor and not self._bad:
                self._give_up(f"its output from {self._cursor} to {begin} is lost", news)
            self._cursor = begin + len(data)
            if self._bad:
                continue
            try:
                news.messages += self._frames.feed(data)
            except BadMessage as problem:
                self._give_up(f"it printed an invalid message: {problem}", news)

    def _give_up(self, why: str, news: News) -> None:
        self._bad = True
        news.bad = why

    def _read_rest(self, news: News) -> None:
        """The runner is gone: read the rest from the files."""
        self._read(None, news)
        seen = from_files(read_files(self._core.home, self._id))
        shot = seen.snapshot()
        news.over = True
        news.asked = shot.status == KILLED
        exit = seen.files.exit
        news.left = seen.evidence if exit is None else _in_words({**exit["exit"], **exit})

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _in_words(fields: Mapping[str, Any]) -> str:
    """How an attempt ended."""
    if fields.get("cause") in ("stop", "owner_gone"):
        return "it was stopped"
    if fields.get("start_limit"):
        return "it failed too often to be started again"
    if fields.get("signal"):
        return f"it was ended by {fields['signal']}"
    code = fields.get("code")
    return f"it exited with code {code}" if code is not None else f"it ended: {fields.get('cause')}"


# Open requests.


# A server that leaves so many unanswered does not answer any more.
OPEN_MAX = 1000


class OpenRequests:
    """Requests that wait for their answer. Each ends once: answered, refused, failed or withdrawn."""

    def __init__(self, id: str, server: str) -> None:
        self._id = id
        self._server = server
        self._lock = threading.Lock()
        self._serial = 0
        self._open: dict[int, tuple[str, Future[Any]]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def enter(self, method: str) -> tuple[int, Future[Any]]:
        """The number of a new request, and the future of its answer. Numbers are never used again, also not for a
        restarted server."""
        with self._lock:
            if len(self._open) >= OPEN_MAX:
                raise Busy(f"{OPEN_MAX} requests of language server {self._server} wait for their answer")
            self._serial += 1
            future: Future[Any] = Future()
            future.set_running_or_notify_cancel()  # only an answer or a failure ends it
            self._open[self._serial] = (method, future)
            return self._serial, future

    def answer(self, message: dict[str, Any]) -> None:
        """An answer to no open request is ignored."""
        number = message.get("id")
        entry = self._take(number) if isinstance(number, int) else None
        if entry is None:
            return
        method, future = entry
        error = message.get("error")
        if error is None:
            future.set_result(message.get("result"))
            return
        facts = error if isinstance(error, dict) else {}
        code = facts.get("code")
        reason = str(facts.get("message", error))
        future.set_exception(ServerRefused(self._server, method, code if isinstance(code, int) else None, reason))

    def withdraw(self, number: int) -> bool:
        """Its caller does not wait any more. False if it has ended."""
        return self._take(number) is not None

    def fail(self, number: int, problem: Exception) -> None:
        entry = self._take(number)
        if entry is not None:
            entry[1].set_exception(problem)

    def fail_all(self, why: str) -> None:
        with self._lock:
            entries, self._open = list(self._open.values()), {}
        for method, future in entries:
            future.set_exception(self.gone(method, why))

    def gone(self, method: str | None, why: str) -> ServerGone:
        return ServerGone(self._id, self._server, method, why)

    def _take(self, number: int) -> tuple[str, Future[Any]] | None:
        with self._lock:
            return self._open.pop(number, None)


# Diagnostics. A server publishes all diagnostics of a file again and again; an agent gets each once, and not too many
# at a time.


FILE_MAX = 10
DRAIN_MAX = 30
REMEMBERED_MAX = 500

# As the protocol numbers them.
SEVERITIES = {1: "error", 2: "warning", 3: "information", 4: "hint"}
_TEXT_CHARACTERS = 500


@dataclass(frozen=True)
class Diagnostic:
    """Lines and columns are counted from 1, as editors and compilers do."""

    uri: str
    line: int
    column: int
    severity: str
    message: str
    code: str | None
    source: str | None

    @property
    def key(self) -> bytes:
        return blake2b(repr(astuple(self)).encode("utf-8", "replace"), digest_size=16).digest()

    def __str__(self) -> str:
        """One line, quoted as in a drain: the server's text cannot hide, or end a message."""
        quoter = Quoter(redact, tags=True)
        by = quoter.label(" ".join(each for each in (self.source, self.code) if each))
        path = quoter.word(self.uri.removeprefix("file://"), _TEXT_CHARACTERS)
        message = quoter.label(self.message, _TEXT_CHARACTERS)
        return f"{path}:{self.line}:{self.column}: {self.severity}: {message}{f' [{by}]' if by else ''}"


@dataclass(frozen=True)
class Drained:
    """Diagnostics that were not drained before, worst first within a file, and how many there was no room for."""

    items: list[Diagnostic]
    more: int

    def __bool__(self) -> bool:
        return bool(self.items)

    @property
    def text(self) -> str:
        """One block; empty when there is nothing new."""
        lines = [str(each) for each in self.items]
        if self.more:
            lines.append(f"and {self.more} more diagnostics")
        return "\n".join(lines)


class Diagnostics:
    def __init__(self, *, remembered_max: int = REMEMBERED_MAX) -> None:
        self._remembered_max = remembered_max
        # The latest diagnostics of each file that has any; the file that was published longest ago is the first.
        self._files: dict[str, list[Diagnostic]] = {}
        # The hashes of those that were drained; the oldest is forgotten first.
        self._given: dict[bytes, None] = {}
        self.dropped = 0

    def publish(self, uri: object, found: object) -> None:
        """The diagnostics of a file; they replace those before."""
        if not isinstance(uri, str) or not isinstance(found, list):
            return
        self._files.pop(uri, None)
        valid = [each for each in (_diagnostic(uri, item) for item in found) if each is not None]
        if valid:
            self._files[uri] = valid
        while sum(map(len, self._files.values())) > self._remembered_max and len(self._files) > 1:
            self.dropped += len(self._files.pop(next(iter(self._files))))
        if len(valid) > self._remembered_max:
            self.dropped += len(valid) - self._remembered_max
            del valid[self._remembered_max :]

    def clear(self) -> None:
        """A restarted server publishes its diagnostics again."""
        self._files.clear()

    def current(self) -> list[Diagnostic]:
        """All of them, drained or not."""
        return [each for found in self._files.values() for each in found]

    def drain(self) -> Drained:
        """Those that are new since the last drain. Those without room come with the next."""
        items: list[Diagnostic] = []
        more = 0
        for found in self._files.values():
            fresh: dict[bytes, Diagnostic] = {}
            for each in found:
                if each.key not in self._given:
                    fresh.setdefault(each.key, each)
            ordered = sorted(fresh.items(), key=lambda pair: _rank(pair[1]))
            room = max(0, min(FILE_MAX, DRAIN_MAX - len(items)))
            for key, each in ordered[:room]:
                items.append(each)
                self._remember(key)
            more += len(ordered[room:])
        return Drained(items, more)

    def _remember(self, key: bytes) -> None:
        self._given[key] = None
        if len(self._given) > self._remembered_max:
            # Preferably one that is no longer current: a current one would be drained again.
            current = {each.key for each in self.current()}
            del self._given[next((each for each in self._given if each not in current), next(iter(self._given)))]


def _rank(each: Diagnostic) -> tuple[int, int, int]:
    order = list(SEVERITIES.values())
    return order.index(each.severity), each.line, each.column


def _diagnostic(uri: str, item: Any) -> Diagnostic | None:
    """None if it is invalid."""
    try:
        start = item["range"]["start"]
        line, column = int(start["line"]) + 1, int(start["character"]) + 1
        message = str(item["message"])
    except (KeyError, TypeError, ValueError):
        return None
    code, source = item.get("code"), item.get("source")
    return Diagnostic(
        uri,
        line,
        column,
        SEVERITIES.get(item.get("severity", 1), "error"),
        _one_line(message),
        None if code is None else _one_line(str(code)),
        _one_line(source) if isinstance(source, str) else None,
    )


def _one_line(text: str) -> str:
    shown = " ".join(clean_text(text).split())
    return shown if len(shown) <= _TEXT_CHARACTERS else shown[:_TEXT_CHARACTERS] + "..."
