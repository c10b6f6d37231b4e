"""What an attached client is told, one class per frame."""

from __future__ import annotations

from .session import shell_code

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from ..errors import HoldfastError


class Event:
    """One of the classes below."""

    __slots__: tuple[str, ...] = ()

    def __init__(self, *values: object) -> None:
        for name, value in zip(self.__slots__, values, strict=True):
            setattr(self, name, value)

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={_short(getattr(self, name))}" for name in self.__slots__)
        return f"{type(self).__name__}({facts})"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


class Init(Event):
    """The screen at offset `at`: `state` of the terminal there, and the ranges of the log from which it is built. They
    come as `Data` below `at`; what comes from `at` on is live."""

    __slots__ = ("at", "size", "state", "restore", "resizes", "exact", "clients", "client_id", "status")

    at: int
    size: tuple[int, int]
    state: dict[str, Any] | None
    restore: list[dict[str, Any]]
    resizes: list[tuple[int, int, int]]
    exact: bool
    clients: list[dict[str, Any]]
    client_id: str | None
    status: dict[str, Any] | None


class Data(Event):
    """Raw bytes of the log, and where they stand in it."""

    __slots__ = ("offset", "data")

    offset: int
    data: bytes


class Mode(Event):
    """Something that a client acts on has changed, by the bytes before `offset`."""

    __slots__ = ("offset", "state")

    offset: int
    state: dict[str, Any]


class Size(Event):
    """The terminal has this size now; `by` is the client that decides it."""

    __slots__ = ("rows", "cols", "by")

    rows: int
    cols: int
    by: str | None


class Clients(Event):
    """Who is here, and who decides the size."""

    __slots__ = ("clients", "sizes_by")

    clients: list[dict[str, Any]]
    sizes_by: str | None


class Bell(Event):
    """Something happened that people are told of, in this session or another."""

    __slots__ = ("text",)

    text: str


class Gap(Event):
    """Bytes that do not come: `dropped` by the cap, `skipped` because we were too far behind, refused by the `disk`."""

    __slots__ = ("begin", "end", "reason")

    begin: int
    end: int
    reason: str


class Written(Event):
    """The kernel has taken the input with this number."""

    __slots__ = ("id", "bytes")

    id: int
    bytes: int


class Exit(Event):
    """The command has ended, and every byte of it that was recorded has come before."""

    __slots__ = ("code", "signal", "cause", "output_complete", "output_open")

    code: int | None
    signal: str | None
    cause: str
    output_complete: bool
    output_open: bool

    @property
    def shell_code(self) -> int | None:
        """The code that a shell would show of it; None where neither a code nor a signal was seen."""
        return shell_code(self.code, self.signal)


class Refused(Event):
    """What this client asked for was not done; `id` is the number of the input that it was, if it was one."""

    __slots__ = ("error", "id")

    error: HoldfastError
    id: int | None
